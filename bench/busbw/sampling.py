"""Sampling one round: warm up, take samples until they are enough, and bring together what all ranks saw.

Every decision (how many warm-up calls, how many samples, when to stop) is a pure function of numbers that an
all-reduce made the same on every rank, so all ranks decide alike without being told. Control traffic costs a fixed
number of reductions per batch of samples, whatever the number of samples. Protocol: docs/method.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from busbw.backends.base import Backend, Call, Vector
from busbw.clock import Clock
from busbw.errors import ClockError
from busbw.ops import traffic
from busbw.ops.base import Layout, Matrix, Op
from busbw.ops.data import Pattern
from busbw.ops.groups import Ranks, Round
from busbw.plan import Timing
from busbw.records import QUANTILES, Case, GroupSamples, RankSamples, StopReason
from busbw.statistics import autocorrelation_time, median_interval

if TYPE_CHECKING:
    import torch

_SECOND_NS = 1_000_000_000
_KEPT_VALUES = 4096
"""All ranks' samples of a group are kept while a block has no more of them than this; above it, quantiles only."""

_ABSENT = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True)
class Bench:
    """What a rank measures with: its backend and clock, the timing rules, and whether all ranks read one clock."""

    backend: Backend
    clock: Clock
    timing: Timing
    shared_clock: bool
    seed: int


@dataclass(frozen=True, slots=True)
class Part:
    """This rank's part in one round: its group, its buffers and its call; None of them when it sits the round out."""

    group: Ranks
    layout: Layout
    send: "torch.Tensor"
    receive: "torch.Tensor"
    made_of: Pattern | None
    call: Call


@dataclass(frozen=True, slots=True)
class Samples:
    """What this rank saw: entry and exit of every sample, ns on its own clock."""

    entries: Vector
    exits: Vector


@dataclass(frozen=True, slots=True)
class Budget:
    """A block's and a round's share of the case's budget in this launch."""

    min_samples: int
    least_samples: int
    max_samples: int
    min_ns: float
    max_ns: float


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What all ranks saw in one round of groups; the same on every rank."""

    groups: tuple[GroupSamples, ...]
    warmup_calls: int
    stop_reason: StopReason


def budget_of(timing: Timing, rounds: int) -> Budget:
    """A round's share of what a case may spend in one launch, when each of its blocks has ``rounds`` rounds."""
    parts = timing.blocks * rounds
    return Budget(
        min_samples=max(timing.least_samples // timing.blocks, math.ceil(timing.min_samples / timing.blocks), 2),
        least_samples=max(math.ceil(timing.least_samples / timing.blocks), 2),
        max_samples=max(timing.max_samples // timing.blocks, 2),
        min_ns=timing.min_seconds * _SECOND_NS / parts,
        max_ns=timing.max_seconds * _SECOND_NS / parts,
    )


def agreed(bench: Bench, values: Sequence[int]) -> Vector:
    """The maximum over all ranks, at all ranks."""
    return bench.backend.reduce(np.asarray(values, dtype=np.int64), "max")


def sample(
    bench: Bench, op: Op, case: Case, groups: Round, part: Part | None, matrix: Matrix, budget: Budget
) -> RoundResult:
    """Warm up and sample ``case`` on all ``groups`` at once; every rank calls it, with its own ``part`` (None: idle).

    Raises BackendError when a rank is lost and ClockError when a sample did not take time.
    """
    once = run(bench, part, 1)
    estimate = int(agreed(bench, [int((once.exits - once.entries)[0])])[0])
    warmup = warmup_calls(bench.timing, estimate)
    began = bench.clock.now_ns()
    warm = run(bench, part, warmup)
    spent = bench.clock.now_ns() - began
    estimate, pace = map(int, agreed(bench, [int(np.median(warm.exits - warm.entries)), spent // warmup]))
    batches: list[Samples] = []
    seen: list[Vector] = []
    # Where the clock is one, all ranks count from the start of the first of them; elsewhere each from its own.
    began = bench.clock.now_ns()
    origin = -int(agreed(bench, [-began])[0]) if bench.shared_clock else began
    count = 0
    more = first_batch(budget, estimate, pace)
    while True:
        batches.append(run(bench, part, more))
        seen.append(_reduce(bench, groups, batches[-1], origin))
        count += more
        everything = np.concatenate(seen, axis=2)
        elapsed = int(agreed(bench, [bench.clock.now_ns() - began])[0])
        reason = stop_reason(budget, everything[0], elapsed, bench.timing.precision)
        if reason is not None:
            break
        affordable = int((budget.max_ns - elapsed) / (elapsed / count))
        more = min(count, budget.max_samples - count, max(affordable, budget.least_samples - count, 1))
    durations = np.concatenate([batch.exits - batch.entries for batch in batches])
    quantiles = _per_rank(bench, durations, took_part=part is not None)
    recorded = tuple(
        _group(bench, op, case, matrix, group, everything[:, number], quantiles) for number, group in enumerate(groups)
    )
    return RoundResult(recorded, warmup, reason)


def run(bench: Bench, part: Part | None, count: int) -> Samples:
    """``count`` samples of one call each, a barrier of the whole world before each."""
    entries = np.zeros(count, dtype=np.int64)
    exits = np.zeros(count, dtype=np.int64)
    now, barrier = bench.clock.now_ns, bench.backend.barrier
    if part is None:
        for _ in range(count):
            barrier()
        return Samples(entries, exits)
    call = part.call
    for index in range(count):
        barrier()
        before = now()
        call()
        exits[index] = now()
        entries[index] = before
    if bool((exits <= entries).any()):
        index = int(np.flatnonzero(exits <= entries)[0])
        message = (
            f"rank {bench.backend.rank}: a sample began at {entries[index]} ns and ended at {exits[index]} ns; "
            "the clock is broken"
        )
        raise ClockError(message)
    return Samples(entries, exits)


def warmup_calls(timing: Timing, estimate_ns: int) -> int:
    """Calls that fill the warm-up time at ``estimate_ns`` each, within the plan's limits."""
    wanted = math.ceil(timing.warmup_seconds * _SECOND_NS / max(estimate_ns, 1))
    return min(max(wanted, timing.warmup_calls), timing.warmup_calls_cap)


def first_batch(budget: Budget, estimate_ns: int, pace_ns: int) -> int:
    """Samples of the first batch: enough for the minimum in count and time, as far as the maximum time allows.

    A sample measures ``estimate_ns`` and takes ``pace_ns`` of the budget: the barrier before it is paid for, too.
    """
    wanted = max(budget.min_samples, math.ceil(budget.min_ns / max(estimate_ns, 1)))
    affordable = max(budget.least_samples, int(budget.max_ns / max(pace_ns, estimate_ns, 1)))
    return max(1, min(wanted, affordable, budget.max_samples))


def stop_reason(
    budget: Budget, slowest: Sequence[Vector] | Vector, elapsed_ns: int, precision: float
) -> StopReason | None:
    """Whether these samples are enough; None to go on. All groups of a round must have converged.

    The interval of the median is that of as many free samples as the autocorrelation leaves.
    """
    count = len(slowest[0])
    spent = min(int(vector.sum()) for vector in slowest)
    if (
        count >= budget.min_samples
        and spent >= budget.min_ns
        and all(_half_width(vector) <= precision for vector in slowest)
    ):
        return "converged"
    if count >= budget.max_samples:
        return "cap_samples"
    return "cap_time" if elapsed_ns >= budget.max_ns and count >= budget.least_samples else None


def _half_width(vector: Vector) -> float:
    return median_interval(vector, tau=autocorrelation_time(vector)).relative_half_width


# --- over the ranks --------------------------------------------------------------------------------------------


def _reduce(bench: Bench, groups: Round, batch: Samples, origin_ns: int) -> Vector:
    """What all ranks saw of a batch, as 6 × groups × samples, the same on all ranks: slowest, fastest, late rank,
    last rank, arrival skew, exit span.

    One max-reduction: durations; negated durations with the rank packed below them, so that the minimum brings its
    owner along; entries, likewise packed; exits; and negated entries. Times are since ``origin_ns``, so that packing
    cannot overflow; what compares clocks means something only where they are one.
    """
    size = bench.backend.size
    entries, exits = batch.entries - origin_ns, batch.exits - origin_ns
    mine = np.full((5, len(groups), len(entries)), _ABSENT, dtype=np.int64)
    for number, group in enumerate(groups):
        if bench.backend.rank in group:
            mine[0, number] = exits - entries
            mine[1, number] = -((exits - entries) * size + bench.backend.rank)
            mine[2, number] = entries * size + bench.backend.rank
            mine[3, number] = exits
            mine[4, number] = -entries
    slowest, shortest, latest, last_out, first_in = bench.backend.reduce(mine.reshape(-1), "max").reshape(mine.shape)
    last_in = latest // size
    return np.stack(
        (slowest, -shortest // size, -shortest % size, latest % size, last_in + first_in, last_out - last_in)
    )


def _per_rank(bench: Bench, durations: Vector, *, took_part: bool) -> tuple[Vector, Vector | None]:
    """Quantiles of every rank (ranks × quantiles), and every rank's samples (ranks × samples) when they are few."""
    size, rank, count = bench.backend.size, bench.backend.rank, len(durations)
    own = np.quantile(durations, QUANTILES) if took_part else np.zeros(len(QUANTILES))
    keep = size * count <= _KEPT_VALUES
    width = len(QUANTILES) + (count if keep else 0)
    table = np.zeros((size, width), dtype=np.int64)
    table[rank, : len(QUANTILES)] = np.rint(own)
    if keep and took_part:
        table[rank, len(QUANTILES) :] = durations
    table = bench.backend.reduce(table.reshape(-1), "max").reshape(size, width)
    return table[:, : len(QUANTILES)], table[:, len(QUANTILES) :] if keep else None


def _group(
    bench: Bench,
    op: Op,
    case: Case,
    matrix: Matrix,
    group: Ranks,
    seen: Vector,
    per_rank: tuple[Vector, Vector | None],
) -> GroupSamples:
    slowest, fastest, late, last, skew, span = seen
    quantiles, kept = per_rank
    wire = (
        float(traffic.crossing(matrix) * case.size_bytes / max(case.count, 1))
        if op.uneven
        else op.wire_bytes(len(group), case.size_bytes)
    )
    return GroupSamples(
        ranks=group,
        bus_factor=op.factor(len(group)),
        wire_bytes=float(wire),
        moved_factor=bench.backend.moved_factor(op),
        slowest_ns=_integers(slowest),
        fastest_ns=_integers(fastest),
        late_rank=_integers(late),
        last_rank=_integers(last) if bench.shared_clock else None,
        arrival_skew_ns=_integers(skew) if bench.shared_clock else None,
        exit_span_ns=_integers(span) if bench.shared_clock else None,
        per_rank=tuple(
            RankSamples(
                rank=rank,
                quantiles_ns=_integers(quantiles[rank]),
                samples_ns=_integers(kept[rank]) if kept is not None else None,
            )
            for rank in group
        ),
    )


def _integers(vector: Vector) -> tuple[int, ...]:
    return tuple(vector.tolist())
