"""Over the ranks: what all of them saw of a batch of samples, brought together by the backend's own reductions.

One max-reduction a batch and one a round, whatever the number of samples and ranks: rank 0 has no more to do than the
others, and every rank ends with the same numbers, from which all decide alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from busbw.backends.base import Backend, Vector
from busbw.measure.loops import Samples
from busbw.ops import traffic
from busbw.ops.base import Matrix, Op
from busbw.ops.groups import Ranks, Round
from busbw.runs.records import QUANTILES, Case, GroupSamples, OverlapSamples, RankSamples, TimedBy

KEPT_VALUES = 4096
"""All ranks' samples of a group are kept while a block has no more of them than this; above it, quantiles only."""

_ABSENT = np.iinfo(np.int64).min
_ALWAYS = 8


def timed_by(case: Case) -> TimedBy:
    """Whose clock the durations of record are from, where ranks drive a device.

    A call on its own is what a program waits for, so there the host's time counts, launching and waiting included.
    In rows and graphs the device has its next call before it has done the last, and beside a computation the parts can
    be told apart by the device alone; and where the stream was held, the host's time has that in it.
    """
    return "host" if case.mode in {"isolated", "barriers"} and not case.pre_enqueue else "device"


def durations(samples: Samples, clock: TimedBy) -> Vector:
    """How long samples took by one of the clocks, ns; by the host's where there is no device."""
    return samples.exits - samples.entries if clock == "host" or samples.device_ns is None else samples.device_ns


@dataclass(frozen=True, slots=True)
class Seen:
    """What all ranks saw of some samples, the same on every rank: each field is groups × samples, ns or ranks.

    ``beside`` and ``overlap`` (5 × groups × samples: pure, post, compute, wait, exposed, and on a device a 6th: post on
    the host) only where they were taken.
    """

    slowest: Vector
    fastest: Vector
    late_rank: Vector
    last_rank: Vector
    arrival_skew: Vector
    exit_span: Vector
    exit_skew: Vector
    switched: Vector
    missed: Vector
    beside: Vector | None
    overlap: Vector | None


@dataclass(frozen=True, slots=True)
class Taken:
    """A batch on this rank: samples, when they were on the common clock since ``origin``, and the windows it missed."""

    samples: Samples
    entries: Vector
    exits: Vector
    missed: Vector
    timed_by: TimedBy = "host"

    @property
    def durations(self) -> Vector:
        """The durations of record, ns."""
        return durations(self.samples, self.timed_by)

    @property
    def beside(self) -> Vector | None:
        """The durations by the clock that is not of record, ns; None where there is but one."""
        if self.samples.device_ns is None:
            return None
        return durations(self.samples, "host" if self.timed_by == "device" else "device")


def joined(batches: list[Seen]) -> Seen:
    """Batches of one round as one."""
    return Seen(**{field.name: _along([getattr(batch, field.name) for batch in batches]) for field in fields(Seen)})


def _along(vectors: Sequence[Vector | None]) -> Any:  # noqa: ANN401 - None only of what may be None
    there = [vector for vector in vectors if vector is not None]
    return np.concatenate(there, axis=-1) if there else None


def reduce_batch(backend: Backend, groups: Round, taken: Taken) -> Seen:
    """What all ranks saw of a batch; every rank calls it.

    One max-reduction of durations; negated durations with the rank packed below them, so that the minimum brings its
    owner along; entries, likewise packed; exits; negated entries and exits; and what was noted of each sample. Times
    are since a common origin, so that packing cannot overflow.
    """
    size, rank = backend.size, backend.rank
    lasted, beside, overlapped = taken.durations, taken.beside, taken.samples.overlapped
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
    if beside is not None:
        rows.append(beside)
    if overlapped is not None:
        parts = (overlapped.pure, overlapped.post, overlapped.compute, overlapped.wait)
        rows += [*parts, overlapped.post + overlapped.wait]
        rows += [] if overlapped.host_post is None else [overlapped.host_post]
    mine = np.full((len(rows), len(groups), len(lasted)), _ABSENT, dtype=np.int64)
    for number, group in enumerate(groups):
        if rank in group:
            mine[:, number] = rows
    everywhere = backend.reduce(mine.reshape(-1), "max").reshape(mine.shape)
    slowest, shortest, latest, last_out, first_in, first_out, switched, missed = everywhere[:_ALWAYS]
    last_in = latest // size
    more = everywhere[_ALWAYS:]
    return Seen(
        slowest=slowest,
        fastest=-shortest // size,
        late_rank=-shortest % size,
        last_rank=latest % size,
        arrival_skew=last_in + first_in,
        exit_span=last_out - last_in,
        exit_skew=last_out + first_out,
        switched=switched,
        missed=missed,
        beside=None if beside is None else more[0],
        overlap=None if overlapped is None else more[0 if beside is None else 1 :],
    )


@dataclass(frozen=True, slots=True)
class PerRank:
    """Of every rank of the world: quantiles of its durations (ranks × quantiles) and, where there are few samples, all
    durations and entries since the origin (ranks × samples).
    """

    quantiles: Vector
    durations: Vector | None
    entries: Vector | None


def gather_ranks(backend: Backend, batches: list[Taken], *, took_part: bool) -> PerRank:
    """What every rank saw in a round; every rank calls it."""
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


@dataclass(frozen=True, slots=True)
class Facts:
    """What is the same for all groups of a round: the traffic of an uneven op, whether clocks can be compared, what
    the backend moves, and what the computation of an overlap takes alone (None: there was none).
    """

    matrix: Matrix
    comparable: bool
    moved_factor: float
    compute_alone_ns: int | None


def record_group(
    op: Op, case: Case, group: Ranks, number: int, seen: Seen, per_rank: PerRank, facts: Facts
) -> GroupSamples:
    """The record of group ``number`` of a round."""
    wire = (
        float(traffic.crossing(facts.matrix) * case.size_bytes / max(case.count, 1))
        if op.uneven
        else op.wire_bytes(len(group), case.size_bytes)
    )
    comparable = facts.comparable
    entries = per_rank.entries if comparable else None
    origin = 0 if entries is None else int(entries[list(group)].min())
    return GroupSamples(
        ranks=group,
        bus_factor=op.factor(len(group)),
        wire_bytes=float(wire),
        moved_factor=facts.moved_factor,
        slowest_ns=_integers(seen.slowest[number]),
        fastest_ns=_integers(seen.fastest[number]),
        late_rank=_integers(seen.late_rank[number]),
        last_rank=_integers(seen.last_rank[number]) if comparable else None,
        arrival_skew_ns=_integers(seen.arrival_skew[number]) if comparable else None,
        exit_span_ns=_integers(seen.exit_span[number]) if comparable else None,
        exit_skew_ns=_integers(seen.exit_skew[number]) if comparable else None,
        disturbed=_integers(np.flatnonzero(seen.switched[number])),
        missed=_integers(np.flatnonzero(seen.missed[number])),
        timed_by="host" if seen.beside is None else timed_by(case),
        beside_ns=None if seen.beside is None else _integers(seen.beside[number]),
        overlap=_overlap(seen, number, facts.compute_alone_ns),
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


def _overlap(seen: Seen, number: int, compute_alone_ns: int | None) -> OverlapSamples | None:
    if seen.overlap is None or compute_alone_ns is None:
        return None
    pure, post, compute, wait, exposed, *host_post = (_integers(row[number]) for row in seen.overlap)
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
