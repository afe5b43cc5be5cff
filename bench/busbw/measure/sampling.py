"""Sampling one round: warm up, take samples until they are enough, and bring together what all ranks saw.

Every decision (how many warm-up calls, calls per sample, samples, when to stop) is a pure function of ``pacing`` over
numbers that an all-reduce made the same on every rank, so all ranks decide alike without being told. Control traffic
is a fixed number of reductions per batch, and there are at most ``pacing.MOST_BATCHES`` of them.
Protocol: docs/method.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import cycle, repeat

import numpy as np

from busbw.backends.base import Call, Vector, explained
from busbw.measure import device_loops, stopping
from busbw.measure.bench import Bench, Part, agreed, fail_together
from busbw.measure.compute import ComputeLoad
from busbw.measure.device_loops import DeviceLoop, DeviceWork, Hold
from busbw.measure.loops import STARTS_OVERLAPPED, Loop, Samples, idle, require_time, take, take_overlapped
from busbw.measure.reduction import (
    Facts,
    Seen,
    Taken,
    durations,
    gather_ranks,
    joined,
    record_group,
    reduce_batch,
    timed_by,
)
from busbw.measure.stopping import ROWED, Budget
from busbw.measure.sync import Start, synchronizer_for
from busbw.ops.base import Matrix, Op
from busbw.ops.groups import Round
from busbw.runs.records import Case, GroupSamples, LoopKind, StopReason

_CAPTURED = {"graph", "overlap"}
"""Modes that need what a device captures: the calls, or the computation beside them."""


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What all ranks saw in one round of groups; the same on every rank. ``calls`` are those of one sample, made by the
    ``loop``.
    """

    groups: tuple[GroupSamples, ...]
    calls: int
    warmup_calls: int
    stop_reason: StopReason
    loop: LoopKind


@dataclass(slots=True)
class _Sampler:
    """One round on one rank: how it takes a batch, once that is settled. ``work`` is what is computed beside a call,
    ``hold`` holds the stream of a device, ``replays`` are the rows of calls that were captured. ``compiled``: the
    part's own row may be used.
    """

    bench: Bench
    case: Case
    part: Part | None
    start: Start
    flush: Call | None
    work: ComputeLoad
    hold: Hold | None
    replays: Iterator[Call] | None = None
    compiled: bool = True
    calls: int = 1
    computes: bool = False
    work_units: int = 0

    def batch(self, count: int, pace_ns: int) -> Samples:
        """``count`` samples."""
        starts = self._starts
        self.start.begin(count * starts, pace_ns // starts)
        bench, part, device = self.bench, self.part, self.bench.backend.device
        row = self.calls if self.replays is None else 1
        if self.hold is not None:
            self.hold.ns = int(agreed(bench, [self.hold.wanted_ns(row)])[0])
        if part is None:
            return idle(self.start, self.flush, count, overlaps=self.computes, on_device=device is not None)
        operations = [one.operation for one in part.sets]
        each = [self._timed(one.call) for one in operations]
        # A round over one call would cost more than repeating it.
        calls = repeat(each[0]) if len(each) == 1 else cycle(each)
        compiled = part.row if self.compiled else None
        loop = Loop(bench.backend, bench.clock, self.replays or calls, self.start, self._prepare, row, compiled)
        on_device = None if device is None else DeviceLoop(loop, device, self.hold)
        if not self.computes:
            samples = take(loop, count) if on_device is None else device_loops.take(on_device, count)
        else:
            posts = cycle([one.post for one in operations if one.post is not None])
            beside = partial(self.work.do, self.work_units)
            if on_device is None:
                samples = take_overlapped(loop, posts, beside, count)
            else:
                samples = device_loops.take_overlapped(on_device, posts, beside, count)
        require_time(samples, bench.backend.rank)
        return samples

    def settle(self, calls: int) -> str:
        """From now on a sample has ``calls`` calls, captured where the mode is to replay them: what went wrong then, or
        is known to go wrong with the computation that mode overlap captures.
        """
        self.calls = calls
        device = self.bench.backend.device
        if self.case.mode == "overlap" and device is not None:
            return device.uncapturable or ""
        if self.case.mode == "graph" and device is not None and self.part is not None:
            try:
                self.replays = device_loops.captured(device, [one.operation.call for one in self.part.sets], calls)
            except self.bench.backend.raises as error:
                return self.bench.backend.explain(error)
        return ""

    def _timed(self, call: Call) -> Call:
        """What is between two reads of the clock: the call, and in mode barriers the barrier behind it."""
        if self.case.mode != "barriers":
            return call
        backend = self.bench.backend

        def enclosed() -> None:
            call()
            if backend.device is not None:
                backend.device.synchronise()
            backend.barrier()

        return enclosed

    def missed(self, samples: Samples) -> Vector:
        """Which ``samples``, those of the last batch, began too late on this rank, or on its device too early (1)."""
        count = len(samples.entries)
        missed = np.zeros(count, dtype=np.int64) if samples.unheld is None else samples.unheld.copy()
        missed[np.asarray(self.start.missed(), dtype=np.int64) // self._starts] = 1
        return missed

    @property
    def _prepare(self) -> Call | None:
        """What is done before a sample, outside of its time: for the operation, or to the caches."""
        own, flush = None if self.part is None else self.part.sets[0].operation.prepare, self.flush
        if own is None or flush is None:
            return own or flush

        def both() -> None:
            flush()
            own()  # at last, for threads that it wakes do not wait for long

        return both

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
    sample (None: nothing), how many sets of buffers there are, and how many calls a sample has (None: the first round
    settles it for all).
    """

    budget: Budget
    flush: Call | None = None
    sets: int = 1
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

    Raises CaseFailed, on all ranks alike, when the calls cannot be captured as the mode needs it, BackendError when a
    rank is lost and ClockError when a sample did not take time.
    """
    budget, device = terms.budget, bench.backend.device
    start = synchronizer_for(case.sync, bench.backend, bench.common)
    work = bench.work if device is None else DeviceWork(device)
    sampler = _Sampler(bench, case, part, start, terms.flush, work, Hold() if case.pre_enqueue else None)
    once = sampler.batch(1, 0)
    by_python = part is not None and part.row is None
    estimate, anywhere = map(int, agreed(bench, [int((once.exits - once.entries)[0]), by_python]))
    sampler.compiled = not anywhere  # all ranks alike
    warmup = stopping.warmup_calls(bench.timing, estimate)
    began = bench.clock.now_ns()
    warm = sampler.batch(warmup, estimate)
    spent = bench.clock.now_ns() - began
    by = timed_by(case)
    estimate, pace = map(int, agreed(bench, [int(np.median(durations(warm, by))), spent // warmup]))
    # A second call in a sample would find nothing prepared.
    calls = 1
    if not (op.stores or op.fresh):
        calls = stopping.calls_per_sample(case.mode, estimate, bench.timer_ns, budget, case.cache)
    error = sampler.settle(terms.calls or calls)
    if device is not None and case.mode in _CAPTURED:
        fail_together(bench, error, "cannot be captured")
    if device is not None and case.mode in ROWED:
        # The first row has everything that comes once, and a call within a row is not as long as one on its own.
        row_ns = int(agreed(bench, [int(durations(sampler.batch(1, pace), by)[0])])[0])
        estimate = max(1, row_ns // sampler.calls)
    before = _balance(bench, sampler, budget, pace) if case.mode == "overlap" else None
    # The barrier before a sample is paid for once, however many calls it has.
    pace = pace - estimate + sampler.calls * estimate if before is None else 2 * pace + int(np.median(before))
    seen, batches, reason = _until_enough(bench, groups, sampler, budget, sampler.calls * estimate, pace)
    alone_ns: int | None = None
    if before is not None:
        # The machine may have changed meanwhile: what the samples are held against is of both ends.
        alone_ns = int(np.median(np.concatenate([before, _alone(bench, sampler, len(before))])))
    per_rank = gather_ranks(bench.backend, batches, took_part=part is not None)
    facts = Facts(matrix, bench.common.comparable, bench.backend.moved_factor(op), alone_ns)
    recorded = tuple(
        record_group(op, case, group, number, seen, per_rank, facts) for number, group in enumerate(groups)
    )
    return RoundResult(recorded, sampler.calls, warmup, reason, "python" if anywhere else "compiled")


def _balance(bench: Bench, sampler: _Sampler, budget: Budget, pace_ns: int) -> Vector:
    """From now on the sampler computes beside the call, for about as long as the call takes alone (OSU's choice), the
    same amount on every rank. Returns what that takes alone, some times over, ns of the slowest rank.

    The call is timed as it will be sampled, and both are looked at again after every change, because neither a first
    estimate nor the rate of a computation can be believed while something else has the cores. A call that takes
    ``pace_ns`` with its start is part of two in a sample.
    """
    sampler.computes, sampler.work_units = True, stopping.FIRST_UNITS
    alone = _alone(bench, sampler, stopping.calibration_samples(budget, 2 * pace_ns))
    for _ in range(stopping.MOST_CALIBRATIONS):
        alone_ns = int(np.median(alone))
        pace = 2 * pace_ns + alone_ns
        parts = sampler.batch(stopping.calibration_samples(budget, pace), pace).overlapped
        # Those who sit the round out have zeros.
        pure_ns = int(np.median(agreed(bench, parts.pure.tolist()))) if parts is not None else 0
        units = stopping.balanced_units(sampler.work_units, alone_ns, pure_ns)
        if units == sampler.work_units:
            break
        sampler.work_units = units
        alone = _alone(bench, sampler, stopping.calibration_samples(budget, 2 * pace_ns))
    return alone


def _alone(bench: Bench, sampler: _Sampler, count: int) -> Vector:
    """What the computation takes when nothing is under way: ``count`` times, ns of the slowest rank."""
    with explained(bench.backend):
        bench.backend.barrier()
        tries = sampler.work.tries_ns(bench.clock, sampler.work_units, count)
    return agreed(bench, tries.tolist())


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
    more = stopping.first_batch(budget, estimate_ns, pace_ns)
    if sampler.case.sync == "window":
        # How long windows have to be is learnt from batch to batch; a large first one could be missed as a whole.
        more = min(more, budget.least_samples)
    while True:
        samples = sampler.batch(more, pace_ns)
        entries, exits = bench.common.common(samples.entries), bench.common.common(samples.exits)
        late = sampler.missed(samples)
        batches.append(Taken(samples, entries - origin, exits - origin, late, timed_by(sampler.case)))
        seen.append(reduce_batch(bench.backend, groups, batches[-1]))
        count += more
        everything = joined(seen)
        elapsed = int(agreed(bench, [bench.clock.now_ns() - began])[0])
        precision = bench.timing.precision
        reason = stopping.stop_reason(budget, everything.slowest, elapsed, precision, len(batches))
        if reason is not None:
            return everything, batches, reason
        more = stopping.next_batch(budget, everything.slowest, elapsed, precision, len(batches))
