"""Sampling one round: warm up, take samples until the stopping rule is met, and reduce the results over all ranks.

Every decision (warm-up calls, calls per sample, samples, when to stop) is a pure function of ``stopping`` over
all-reduced numbers, so all ranks decide alike without further messages. Control traffic is a fixed number of
reductions per batch, with at most ``stopping.MOST_BATCHES`` batches.
Protocol: docs/method.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import cycle, repeat

import numpy as np

from busbw.backends.base import Call, Vector, explained, in_order
from busbw.measure import loops, stopping
from busbw.measure.bench import Bench, Pace, Part, agreed, fail_together
from busbw.measure.loops import STARTS_OVERLAPPED, DeviceWork, Hold, Loop, Samples, idle, require_time
from busbw.measure.reduction import Batch, durations, gather_ranks, record_group, reduce_batch, timed_by
from busbw.measure.stopping import ROWED, Budget
from busbw.measure.sync import SYNCHRONIZERS
from busbw.ops.base import Matrix, Op
from busbw.ops.groups import Round
from busbw.runs.records import Case, GroupSamples, LoopKind, StopReason

_CAPTURED = {"graph", "overlap"}
"""Modes in which a device captures a graph: of the calls, or of the concurrent computation."""


@dataclass(frozen=True, slots=True)
class RoundResult:
    """Samples of one round of groups, reduced over all ranks; identical on every rank.

    groups: samples of each group.
    pace: with which they were taken.
    warmup_calls: calls made before the first sample.
    stop_reason: why sampling ended.
    """

    groups: tuple[GroupSamples, ...]
    pace: Pace
    warmup_calls: int
    stop_reason: StopReason

    @property
    def loop(self) -> LoopKind:
        """Which loop made the calls."""
        return "compiled" if self.pace.compiled else "python"


class _Sampler:
    """Takes batches of samples of one round on one rank.

    flush: evicts the data from the caches before each sample (None: nothing does).
    compiled: whether the part's compiled sequence of calls may be used.
    calls: calls per sample.
    work_units: amount of computation that runs concurrently with a call (0: none).
    """

    def __init__(self, bench: Bench, case: Case, part: Part | None, flush: Call | None) -> None:
        self.bench, self.case, self.part, self._flush = bench, case, part, flush
        self._start = SYNCHRONIZERS[case.sync](bench.backend, bench.common)
        self._work = bench.work if bench.backend.device is None else DeviceWork(bench.backend.device)
        self._hold = Hold() if case.pre_enqueue else None
        self._replays: Iterator[Call] | None = None  # captured sequences of calls
        self.compiled, self.calls, self.work_units = True, 1, 0

    def batch(self, count: int, pace_ns: int) -> Samples:
        """Take ``count`` samples."""
        starts = self._starts
        with explained(self.bench.backend):
            self._start.begin(count * starts, pace_ns // starts)
        bench, part, device = self.bench, self.part, self.bench.backend.device
        row = self.calls if self._replays is None else 1
        if self._hold is not None:
            self._hold.ns = int(agreed(bench, [self._hold.wanted_ns(row)])[0])
        if part is None:
            with explained(bench.backend):
                return idle(self._start, self._flush, count, overlaps=self.work_units > 0, on_device=device is not None)
        operations = [buffer_set.operation for buffer_set in part.sets]
        each = [self._timed(operation.call) for operation in operations]
        # cycle over a single call costs more than repeat.
        calls = repeat(each[0]) if len(each) == 1 else cycle(each)
        compiled = part.row if self.compiled else None
        loop = Loop(bench.backend, bench.clock, self._replays or calls, self._start, self._prepare, row, compiled)
        posts = cycle([operation.post for operation in operations if operation.post is not None])
        compute = partial(self._work.do, self.work_units)
        if device is None:
            samples = loops.take_overlapped(loop, posts, compute, count) if self.work_units else loops.take(loop, count)
        elif self.work_units:
            samples = loops.take_overlapped_on_device(loop, device, posts, compute, count, self._hold)
        else:
            samples = loops.take_on_device(loop, device, count, self._hold)
        require_time(samples, bench.backend.rank)
        return samples

    def settle(self, calls: int) -> str:
        """Set the number of calls per sample, and capture them in mode graph.

        Returns the error message of a failed capture, or empty. In mode overlap the computation is captured later, so
        the known obstacle is returned now.
        """
        self.calls = calls
        backend, device = self.bench.backend, self.bench.backend.device
        if self.case.mode == "overlap" and device is not None:
            return device.uncapturable or ""
        if self.case.mode == "graph" and device is not None and self.part is not None:
            operations = [buffer_set.operation.call for buffer_set in self.part.sets]
            try:
                self._replays = loops.captured(device, operations, calls)
            except backend.raises as error:
                return backend.explain(error)
        return ""

    def balance(self, budget: Budget, pace_ns: int) -> Vector:
        """Make samples compute concurrently, about as long as the call takes alone (OSU's choice).

        All ranks compute the same amount. Returns repeated times of the computation alone, ns of the slowest rank.
        The call is timed as it will be sampled. Call and computation are timed again after every change, because first
        estimates are unreliable while other processes use the cores. A call with its start takes ``pace_ns``; a sample
        has two.
        """
        self.work_units = stopping.FIRST_UNITS
        tries = stopping.calibration_samples(budget, 2 * pace_ns)
        alone = self.alone(tries)
        for _ in range(stopping.MOST_CALIBRATIONS):
            alone_ns = int(np.median(alone))
            pace = 2 * pace_ns + alone_ns
            parts = self.batch(stopping.calibration_samples(budget, pace), pace).overlapped
            # Idle ranks have zeros.
            pure_ns = int(np.median(agreed(self.bench, parts.pure.tolist()))) if parts is not None else 0
            units = stopping.balanced_units(self.work_units, alone_ns, pure_ns)
            if units == self.work_units:
                break
            self.work_units = units
            alone = self.alone(tries)
        return alone

    def alone(self, count: int) -> Vector:
        """Times of the computation without communication: ``count`` values, ns of the slowest rank."""
        with explained(self.bench.backend):
            self.bench.backend.barrier()
            tries = self._work.tries_ns(self.bench.clock, self.work_units, count)
        return agreed(self.bench, tries.tolist())

    def _timed(self, call: Call) -> Call:
        """The timed region: the call, and in mode barriers the barrier after it."""
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
        """Flags (1) for samples of the last batch that began late on this rank, or too early on its device."""
        count = len(samples.entries)
        missed = np.zeros(count, dtype=np.int64) if samples.unheld is None else samples.unheld.copy()
        missed[np.asarray(self._start.missed(), dtype=np.int64) // self._starts] = 1
        return missed

    @property
    def _prepare(self) -> Call | None:
        """Untimed work before a sample: flush the caches, prepare the operation."""
        own, flush = None if self.part is None else self.part.sets[0].operation.prepare, self._flush
        if own is None or flush is None:
            return own or flush
        return in_order(flush, own)  # own last, because the threads that it wakes soon go back to sleep

    @property
    def _starts(self) -> int:
        return STARTS_OVERLAPPED if self.work_units else 1


@dataclass(frozen=True, slots=True)
class RoundSettings:
    """Settings of all rounds of a block.

    budget: share of the case's samples and time for one round.
    flush: evicts the data from the caches before each sample (None: nothing does).
    sets: number of buffer sets that are used in turn.
    calls: calls per sample (None: the first round determines it for all).
    pace: of an earlier round with like groups, which this one need not find again (None: it has to).
    """

    budget: Budget
    flush: Call | None = None
    sets: int = 1
    calls: int | None = None
    pace: Pace | None = None


def sample(
    bench: Bench, op: Op, case: Case, groups: Round, part: Part | None, matrix: Matrix, settings: RoundSettings
) -> RoundResult:
    """Warm up and sample ``case`` on all ``groups`` concurrently. Collective; ``part`` is this rank's (None: idle).

    Raises CaseFailed, on all ranks, when the mode needs a capture and it fails; BackendError when a rank is lost;
    ClockError when a sample has no positive duration.
    """
    budget, device = settings.budget, bench.backend.device
    sampler = _Sampler(bench, case, part, settings.flush)
    if settings.pace is None:
        pace, warmup = _find_pace(bench, op, case, part, sampler, settings)
    else:
        pace, warmup = settings.pace, bench.timing.warmup_calls
        sampler.compiled = pace.compiled
        sampler.batch(warmup, pace.each_ns)
    estimate, each_ns, by = pace.estimate_ns, pace.each_ns, timed_by(case)
    error = sampler.settle(pace.calls)
    if device is not None and case.mode in _CAPTURED:
        fail_together(bench, error, "cannot be captured")
    if device is not None and case.mode in ROWED:
        # Absorbs one-time costs, and times a call within a sequence, which differs from an isolated one.
        row_ns = int(agreed(bench, [int(durations(sampler.batch(1, each_ns), by)[0])])[0])
        estimate = max(1, row_ns // sampler.calls)
    before = sampler.balance(budget, each_ns) if case.mode == "overlap" else None
    # Each sample has one barrier, however many calls it has.
    each_ns = each_ns - estimate + sampler.calls * estimate if before is None else 2 * each_ns + int(np.median(before))
    seen, batches, reason = _sample_until_done(
        bench, groups, sampler, budget, sampler.calls * estimate, each_ns, pace.origin
    )
    alone_ns: int | None = None
    if before is not None:
        # The machine may have changed meanwhile, so the reference is measured before and after the samples.
        alone_ns = int(np.median(np.concatenate([before, sampler.alone(len(before))])))
    per_rank = gather_ranks(bench.backend, batches, took_part=part is not None)
    recorded = tuple(
        record_group(bench, case, group, matrix, seen[:, number], per_rank, alone_ns)
        for number, group in enumerate(groups)
    )
    return RoundResult(recorded, pace, warmup, reason)


def _find_pace(
    bench: Bench, op: Op, case: Case, part: Part | None, sampler: _Sampler, settings: RoundSettings
) -> tuple[Pace, int]:
    """Warm up; returns the pace, and the number of calls that it took."""
    device, by = bench.backend.device, timed_by(case)
    once = sampler.batch(1, 0)
    by_python = part is not None and part.row is None
    estimate, anywhere = map(int, agreed(bench, [int((once.exits - once.entries)[0]), by_python]))
    sampler.compiled = not anywhere  # the same loop on all ranks
    warmup = stopping.warmup_calls(bench.timing, estimate)
    began = bench.clock.now_ns()
    warm = sampler.batch(warmup, estimate)
    ended = bench.clock.now_ns()
    now = int(bench.common.common(np.asarray([ended], dtype=np.int64))[0])
    own = [int(np.median(durations(warm, by))), (ended - began) // warmup, -now]
    estimate, each, earliest = map(int, agreed(bench, own))
    # These ops are prepared once per sample, so a second call would find nothing prepared.
    calls = 1
    if not (op.stores or op.fresh):
        timer_ns = device.tick_ns if device is not None and by == "device" else bench.timer_ns
        calls = stopping.calls_per_sample(case.mode, estimate, timer_ns, settings.budget, case.cache)
    origin = -earliest if bench.common.comparable else now
    return Pace(estimate, each, settings.calls or calls, sampler.compiled, origin), warmup


def _sample_until_done(
    bench: Bench, groups: Round, sampler: _Sampler, budget: Budget, estimate_ns: int, pace_ns: int, origin: int
) -> tuple[Vector, list[Batch], StopReason]:
    """Take batches of samples until the stopping rule is met; returns all of them as ``reduce_batch`` does."""
    batches: list[Batch] = []
    seen: list[Vector] = []
    began = bench.clock.now_ns()
    more, precision = stopping.first_batch(budget, estimate_ns, pace_ns), bench.timing.precision
    if sampler.case.sync == "window":
        # The window length is adapted after each batch; ranks could miss all of a large first batch.
        more = min(more, budget.least_samples)
    while True:
        samples = sampler.batch(more, pace_ns)
        entries, exits = bench.common.common(samples.entries), bench.common.common(samples.exits)
        late = sampler.missed(samples)
        batches.append(Batch(samples, entries - origin, exits - origin, late, timed_by(sampler.case)))
        reduced, elapsed = reduce_batch(bench.backend, groups, batches[-1], bench.clock.now_ns() - began)
        seen.append(reduced)
        everything = np.concatenate(seen, axis=-1)
        reason = stopping.stop_reason(budget, everything[0], elapsed, precision, len(batches))
        if reason is not None:
            return everything, batches, reason
        more = stopping.next_batch(budget, everything[0], elapsed, precision, len(batches))
