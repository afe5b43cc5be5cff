"""Reduction of samples over the ranks, with the backend's own all-reduce.

One max-reduction per batch and one per round, whatever the number of samples and ranks. Rank 0 has no extra work, and
every rank ends with the same numbers, so all decide alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from busbw.backends.base import Backend, Vector
from busbw.measure.bench import Bench
from busbw.measure.loops import Samples
from busbw.ops import OPS, traffic
from busbw.ops.base import Matrix
from busbw.ops.groups import Ranks, Round
from busbw.runs.records import QUANTILES, Case, GroupSamples, OverlapSamples, RankSamples, TimedBy

KEPT_VALUES = 4096
"""Most values for which the samples of every rank are stored; above it, only quantiles are."""

_ABSENT = np.iinfo(np.int64).min


def timed_by(case: Case) -> TimedBy:
    """Which clock the reported durations come from on a device.

    host: isolated calls, because a program waits for launch, execution and synchronisation.
    device: back-to-back calls and graphs, whose launches overlap with execution; overlap with computation, whose parts
    only the device can separate; and pre-enqueued calls, because the host's time includes the hold.
    """
    return "host" if case.mode in {"isolated", "barriers"} and not case.pre_enqueue else "device"


def durations(samples: Samples, clock: TimedBy) -> Vector:
    """Durations of samples by one of the clocks, ns; by the host's if there is no device."""
    return samples.exits - samples.entries if clock == "host" or samples.device_ns is None else samples.device_ns


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch on this rank: samples, their entries and exits on the common clock since the origin, and misses."""

    samples: Samples
    entries: Vector
    exits: Vector
    missed: Vector
    timed_by: TimedBy

    @property
    def durations(self) -> Vector:
        """Durations by the clock that is reported, ns."""
        return durations(self.samples, self.timed_by)

    @property
    def other_clock(self) -> Vector | None:
        """Durations by the other clock, ns; None if there is only one."""
        if self.samples.device_ns is None:
            return None
        return durations(self.samples, "host" if self.timed_by == "device" else "device")


def reduce_batch(backend: Backend, groups: Round, taken: Batch, elapsed_ns: int) -> tuple[Vector, int]:
    """Reduce one batch over all ranks with a single max-reduction; returns rows × groups × samples, and the most of
    ``elapsed_ns``. Collective.

    Durations and entries are packed with the rank in the low digits (value · size + rank), so the extreme value
    carries its owner. Negated rows give minima. Times count from a common origin, so packing cannot overflow.
    """
    size, rank = backend.size, backend.rank
    lasted, other_clock, overlapped = taken.durations, taken.other_clock, taken.samples.overlapped
    rows = [
        lasted,
        -(lasted * size + rank),
        taken.entries * size + rank,
        taken.exits,
        -taken.entries,
        -taken.exits,
        taken.samples.switched,
        taken.missed,
    ]
    if other_clock is not None:
        rows.append(other_clock)
    if overlapped is not None:
        parts = (overlapped.pure, overlapped.post, overlapped.compute, overlapped.wait)
        rows += [*parts, overlapped.post + overlapped.wait]
        rows += [] if overlapped.host_post is None else [overlapped.host_post]
    mine = np.full((len(rows), len(groups), len(lasted)), _ABSENT, dtype=np.int64)
    for number, group in enumerate(groups):
        if rank in group:
            mine[:, number] = rows
    reduced = backend.reduce(np.append(mine.reshape(-1), elapsed_ns), "max")
    return reduced[:-1].reshape(mine.shape), int(reduced[-1])


@dataclass(frozen=True, slots=True)
class PerRank:
    """Durations of every rank of the world in one round, ns.

    quantiles: ranks × quantiles.
    durations, entries: ranks × samples, entries since the origin (None: too many samples to keep).
    """

    quantiles: Vector
    durations: Vector | None
    entries: Vector | None


def gather_ranks(backend: Backend, batches: list[Batch], *, took_part: bool) -> PerRank:
    """Gather the durations of every rank in a round. Collective."""
    everything = np.concatenate([batch.durations for batch in batches])
    size, count = backend.size, len(everything)
    keep = size * count <= KEPT_VALUES
    width = len(QUANTILES) + (2 * count if keep else 0)
    table = np.full((size, width), _ABSENT, dtype=np.int64)
    if took_part:
        table[backend.rank, : len(QUANTILES)] = np.rint(np.quantile(everything, QUANTILES))
        if keep:
            entries = np.concatenate([batch.entries for batch in batches])
            table[backend.rank, len(QUANTILES) :] = np.concatenate([everything, entries])
    table = backend.reduce(table.reshape(-1), "max").reshape(size, width)
    quantiles, rest = table[:, : len(QUANTILES)], table[:, len(QUANTILES) :]
    return PerRank(quantiles, rest[:, :count] if keep else None, rest[:, count:] if keep else None)


def record_group(
    bench: Bench, case: Case, group: Ranks, matrix: Matrix, reduced: Vector, per_rank: PerRank, alone_ns: int | None
) -> GroupSamples:
    """The record of one group of a round.

    matrix: traffic of an uneven op, elements.
    reduced: rows × samples of the group, in the order of ``reduce_batch``.
    alone_ns: duration of the concurrent computation alone (None: no concurrent computation).
    """
    op = OPS[case.op]
    wire = op.wire_bytes(len(group), case.size_bytes)
    if op.uneven:
        wire = traffic.crossing(matrix) * case.size_bytes / max(case.count, 1)
    size, comparable, on_device = bench.backend.size, bench.common.comparable, bench.backend.device is not None
    slowest, shortest, latest, last_out, first_in, first_out, switched, missed, *others = reduced
    other_clock = others.pop(0) if on_device else None
    last_in = latest // size
    entries = per_rank.entries if comparable else None
    origin = 0 if entries is None else int(entries[list(group)].min())
    return GroupSamples(
        ranks=group,
        bus_factor=op.factor(len(group)),
        wire_bytes=float(wire),
        traffic_factor=bench.backend.traffic_factor(op),
        slowest_ns=_integers(slowest),
        fastest_ns=_integers(-shortest // size),
        fastest_rank=_integers(-shortest % size),
        last_rank=_integers(latest % size) if comparable else None,
        arrival_skew_ns=_integers(last_in + first_in) if comparable else None,
        exit_span_ns=_integers(last_out - last_in) if comparable else None,
        exit_skew_ns=_integers(last_out + first_out) if comparable else None,
        disturbed=_integers(np.flatnonzero(switched)),
        missed=_integers(np.flatnonzero(missed)),
        timed_by=timed_by(case) if on_device else "host",
        other_clock_ns=None if other_clock is None else _integers(other_clock),
        overlap=None if alone_ns is None else _overlap(others, alone_ns),
        per_rank=tuple(
            RankSamples(
                rank=rank,
                quantiles_ns=_integers(per_rank.quantiles[rank]),
                samples_ns=None if per_rank.durations is None else _integers(per_rank.durations[rank]),
                entries_ns=None if entries is None else _integers(entries[rank] - origin),
            )
            for rank in group
        ),
    )


def _overlap(parts: Sequence[Vector], compute_alone_ns: int) -> OverlapSamples:
    """``parts``: pure, post, compute, wait, exposed; on a device a 6th, post on the host."""
    pure, post, compute, wait, exposed, *host_post = map(_integers, parts)
    return OverlapSamples(
        pure_ns=pure,
        post_ns=post,
        compute_ns=compute,
        wait_ns=wait,
        exposed_ns=exposed,
        host_post_ns=host_post[0] if host_post else None,
        compute_alone_ns=compute_alone_ns,
    )


def _integers(vector: Vector) -> tuple[int, ...]:
    return tuple(vector.tolist())
