"""Sampling one round: warm up, take samples until they are enough, and bring together what all ranks saw.

Every decision (how many warm-up calls, calls per sample, samples, when to stop) is a pure function of ``pacing`` over
numbers that an all-reduce made the same on every rank, so all ranks decide alike without being told. Control traffic
is a fixed number of reductions per batch, and there are at most ``pacing.MOST_BATCHES`` of them.
Protocol: docs/method.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle, repeat
from typing import TYPE_CHECKING

import numpy as np

from busbw.backends.base import Backend, Operation, Vector
from busbw.clock import Clock
from busbw.loops import STARTS_OVERLAPPED, Loop, Samples, idle, require_time, take, take_overlapped
from busbw.ops.base import Layout, Matrix, Op
from busbw.ops.data import Pattern
from busbw.ops.groups import Ranks, Round
from busbw.pacing import Budget, calls_per_sample, first_batch, next_batch, stop_reason, warmup_calls
from busbw.plan import Timing
from busbw.records import Case, GroupSamples, StopReason
from busbw.reduction import Facts, Seen, Taken, gather_ranks, joined, record_group, reduce_batch
from busbw.starts import Start, start_for
from busbw.synchronise import CommonClock
from busbw.work import Work

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Bench:
    """What a rank measures with: its backend and clock, the timing rules, and the clock that all ranks share.

    ``timer_ns`` is what reading the clock costs on the rank where it is dearest, ``work`` what is computed beside a
    communication. ``hosts[r]`` is the host of rank r.
    """

    backend: Backend
    clock: Clock
    timing: Timing
    common: CommonClock
    seed: int
    timer_ns: int = 0
    hosts: tuple[str, ...] = ()
    work: Work = field(default_factory=Work)


@dataclass(frozen=True, slots=True)
class BufferSet:
    """One pair of buffers and the operation that is bound to them."""

    send: "torch.Tensor"
    receive: "torch.Tensor"
    operation: Operation


@dataclass(frozen=True, slots=True)
class Part:
    """This rank's part in one round: its group, its buffers with their operations, and what is done before a sample;
    None of them when it sits the round out.
    """

    group: Ranks
    layout: Layout
    sets: tuple[BufferSet, ...]
    made_of: Pattern | None


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What all ranks saw in one round of groups; the same on every rank. ``calls`` are those of one sample."""

    groups: tuple[GroupSamples, ...]
    calls: int
    warmup_calls: int
    stop_reason: StopReason


def agreed(bench: Bench, values: Sequence[int]) -> Vector:
    """The maximum over all ranks, at all ranks."""
    return bench.backend.reduce(np.asarray(values, dtype=np.int64), "max")


@dataclass(slots=True)
class _Sampler:
    """One round on one rank: how it takes a batch, once that is settled."""

    bench: Bench
    case: Case
    part: Part | None
    start: Start
    flush: "Sweep | None"
    calls: int = 1
    computes: bool = False
    work_units: int = 0

    def batch(self, count: int, pace_ns: int) -> Samples:
        """``count`` samples."""
        starts = self._starts
        self.start.begin(count * starts, pace_ns // starts)
        bench, part = self.bench, self.part
        prepare = None if self.flush is None else self.flush.sweep
        if part is None:
            return idle(self.start, prepare, count, overlaps=self.computes)
        operations = [one.operation for one in part.sets]
        # A round over one call would cost more than repeating it.
        calls = repeat(operations[0].call) if len(operations) == 1 else cycle([one.call for one in operations])
        loop = Loop(bench.backend, bench.clock, calls, self.start, prepare, self.calls)
        if self.computes:
            posts = cycle([one.post for one in operations if one.post is not None])
            samples = take_overlapped(loop, posts, lambda: bench.work.do(self.work_units), count)
        else:
            samples = take(loop, count)
        require_time(samples, bench.backend.rank)
        return samples

    def missed(self, count: int) -> Vector:
        """Which of the ``count`` samples of the last batch began too late on this rank (1)."""
        missed = np.zeros(count, dtype=np.int64)
        missed[np.asarray(self.start.missed(), dtype=np.int64) // self._starts] = 1
        return missed

    @property
    def _starts(self) -> int:
        return STARTS_OVERLAPPED if self.computes else 1


class Sweep:
    """Drives everything out of the caches: writes through ``size_bytes`` of memory of its own."""

    def __init__(self, size_bytes: int) -> None:
        self._memory = np.zeros(max(size_bytes, 1), dtype=np.uint8)

    def sweep(self) -> None:
        """Write all of it."""
        self._memory += 1


@dataclass(frozen=True, slots=True)
class Terms:
    """What holds for every round of a block: its share of the budget, what drives the data out of the caches before a
    sample (None: nothing), and how many calls a sample has (None: the first round settles it for all).
    """

    budget: Budget
    flush: Sweep | None = None
    calls: int | None = None


def sample(
    bench: Bench,
    op: Op,
    case: Case,
    groups: Round,
    part: Part | None,
    matrix: Matrix,
    terms: Terms,
) -> RoundResult:
    """Warm up and sample ``case`` on all ``groups`` at once; every rank calls it, with its own ``part`` (None: idle).

    Raises BackendError when a rank is lost and ClockError when a sample did not take time.
    """
    budget = terms.budget
    sampler = _Sampler(bench, case, part, start_for(case.sync, bench.backend, bench.common), terms.flush)
    once = sampler.batch(1, 0)
    estimate = int(agreed(bench, [int((once.exits - once.entries)[0])])[0])
    warmup = warmup_calls(bench.timing, estimate)
    began = bench.clock.now_ns()
    warm = sampler.batch(warmup, estimate)
    spent = bench.clock.now_ns() - began
    estimate, pace = map(int, agreed(bench, [int(np.median(warm.exits - warm.entries)), spent // warmup]))
    sampler.calls = terms.calls or calls_per_sample(case.mode, estimate, bench.timer_ns, budget, case.cache)
    alone_ns: int | None = None
    if case.mode == "overlap":
        alone_ns = _prepare_work(bench, sampler, estimate)
    # The barrier before a sample is paid for once, however many calls it has.
    pace = pace - estimate + sampler.calls * estimate if case.mode != "overlap" else 2 * pace + (alone_ns or 0)
    seen, batches, reason = _until_enough(bench, groups, sampler, budget, sampler.calls * estimate, pace)
    per_rank = gather_ranks(bench.backend, batches, took_part=part is not None)
    facts = Facts(matrix, bench.common.comparable, bench.backend.moved_factor(op), alone_ns)
    recorded = tuple(
        record_group(op, case, group, number, seen, per_rank, facts) for number, group in enumerate(groups)
    )
    return RoundResult(recorded, sampler.calls, warmup, reason)


def _prepare_work(bench: Bench, sampler: _Sampler, estimate_ns: int) -> int:
    """As much computation as the communication takes (OSU's choice), the same on every rank; what it takes alone."""
    work = bench.work
    unit_ns = int(agreed(bench, [work.unit_ns(bench.clock)])[0])
    sampler.work_units = max(1, round(estimate_ns / unit_ns))
    bench.backend.barrier()
    alone_ns = int(agreed(bench, [work.median_ns(bench.clock, lambda: work.do(sampler.work_units))])[0])
    sampler.computes = True
    return alone_ns


def _until_enough(
    bench: Bench, groups: Round, sampler: _Sampler, budget: Budget, estimate_ns: int, pace_ns: int
) -> tuple[Seen, list[Taken], StopReason]:
    """Batches of samples until the stopping rule is content."""
    batches: list[Taken] = []
    seen: list[Seen] = []
    began = bench.clock.now_ns()
    # All ranks count from the start of the first of them; where clocks cannot be compared, each from its own.
    origin = int(bench.common.common(np.asarray([began], dtype=np.int64))[0])
    if bench.common.comparable:
        origin = -int(agreed(bench, [-origin])[0])
    count = 0
    more = first_batch(budget, estimate_ns, pace_ns)
    while True:
        samples = sampler.batch(more, pace_ns)
        entries, exits = bench.common.common(samples.entries), bench.common.common(samples.exits)
        batches.append(Taken(samples, entries - origin, exits - origin, sampler.missed(more)))
        seen.append(reduce_batch(bench.backend, groups, batches[-1]))
        count += more
        everything = joined(seen)
        elapsed = int(agreed(bench, [bench.clock.now_ns() - began])[0])
        precision = bench.timing.precision
        reason = stop_reason(budget, everything.slowest, elapsed, precision, len(batches))
        if reason is not None:
            return everything, batches, reason
        more = next_batch(budget, everything.slowest, elapsed, precision, len(batches))
