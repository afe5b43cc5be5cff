"""The steps of a training program's log: their time, which are slow and when, and the share of the GPU's peak."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

import numpy as np

from busbw.errors import LogError
from busbw.system.catalog import Gpu
from busbw.units import counted, format_time, listed
from busbw_analysis.data.rank_statistics import theil_sen
from busbw_analysis.data.readers.training import StepLine, TrainingLog, Unit
from busbw_analysis.diagnosis.findings import Finding
from busbw_analysis.report.document import Column, Table, table

_LEAST: Final = 3
"""Steps of which a log needs at least, behind the warm-up."""
_EARLY: Final = 2
"""Lines at the start of a program; an excerpt may begin behind them."""
_WARM_SHARE: Final = 0.2
"""Most of a log that may be warm-up."""
_UNTIMED: Final = 0.5
"""Below this share of the median a first step was not waited for: JAX returns before it is done."""
_SLOW: Final = 1.2
_MADS: Final = 6 * 1.4826
"""A step is slow if its cost is above 1.2 times the median, and above it by 6 standard deviations of the others."""
_WAITS: Final = 0.1
"""Share of the time of all steps from which on waiting for data is worth a word."""
_LEAST_FOR_SCATTER, _WIDE = 5, 5.0
"""Steps without a usual time: of so many, 95 % take up to so many times as long as 5 %."""
_LATE_DATA: Final = 0.8
_THEY_WAIT: Final = "They wait for their data"
_LEAST_HITS: Final = 3
_REGULAR: Final = 0.8
"""Share of the slow steps that a period must have, and share of its multiples that must be slow."""
_LEAST_DRIFT: Final = 0.02
_MOST_FOR_DRIFT: Final = 2000
"""Steps of which all pairs are compared; of more, some at equal distances: a hundred thousand took 240 GB."""
_LEAST_FOR_DRIFT, _FEW_FOR_DRIFT, _DRIFT_OF_FEW = 8, 20, 0.1
"""Steps of which a drift is known; of fewer than the second number, a drift of at least this share."""
_LOW_SHARE: Final = 0.3
"""Utilisation below which dense models on GPUs are worth a look: published runs have 0.35 to 0.55."""


@dataclass(frozen=True, slots=True)
class Drift:
    """Change of the cost of a step from the first to the last, as a share, with its 95 % interval (Sen 1968)."""

    share: float
    low: float
    high: float

    @property
    def seen(self) -> bool:
        """Whether it is certain, and large enough to matter."""
        return self.low * self.high > 0 and abs(self.share) >= _LEAST_DRIFT


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The steps of a log behind the warm-up.

    program, unit: as in ``TrainingLog``
    every: steps that a line is the mean of
    warm_up: lines left out, at the start and behind each restart
    restarts: how often the number of the step went back
    runs: number of lines and median value of each start of the program with enough steps
    count: lines that are counted
    typical, low, high: median, 5 % and 95 % quantile of the values
    slow: lines of slow steps
    slow_share: share of the time that slow steps take beyond the median
    period: steps between slow ones; None: they have no period
    drift: None with too few steps
    flops, tokens: medians; None: not printed
    utilised: share of ``peak``
    peak: FLOP/s, and what it is of
    timed_out: whether torch's watchdog of NCCL ended the job
    by_clock: as in ``TrainingLog``
    data_share: share of the time in which steps waited for data; None: not printed
    """

    program: str
    unit: Unit
    every: int
    warm_up: int
    restarts: int
    runs: tuple[tuple[int, float], ...]
    count: int
    typical: float
    low: float
    high: float
    slow: tuple[StepLine, ...]
    slow_share: float
    period: int | None
    drift: Drift | None
    flops: float | None
    tokens: float | None
    utilised: float | None
    peak: tuple[float, str] | None
    timed_out: bool
    by_clock: bool
    data_share: float | None


def step_times(log: TrainingLog, gpu: Gpu | None = None, dtype: str = "bfloat16") -> StepTimes:
    """The steps of ``log``.

    gpu, dtype: the GPU whose dense peak of this type is 100 %; None: what the program states
    Raises LogError (``too-few-steps``) if too few are left behind the warm-up.
    """
    segments = _segments(log.steps)
    cost = {id(step): step.value if log.unit == "s" else 1 / step.value for step in log.steps}
    usual = median(cost.values())
    gap = _every(log.steps)
    early = gap if log.by_clock else _EARLY * gap  # the clock starts when a step is done
    steady = [
        segment[_warm_up([cost[id(step)] for step in segment], usual, goes_on=segment[0].step > early) :]
        for segment in segments
    ]
    steps = [step for segment in steady for step in segment]
    if len(steps) < _LEAST:
        raise LogError(
            f"{log.source}: {counted(len(steps), 'step')} of {log.program} behind the warm-up; at least {_LEAST} are "
            "needed",
            code="too-few-steps",
        )
    costs = np.array([cost[id(step)] for step in steps])
    middle = float(np.median(costs))
    limit = max(_SLOW * middle, middle + _MADS * float(np.median(abs(costs - middle))))
    slow = tuple(step for step, taken in zip(steps, costs, strict=True) if taken > limit)
    values = np.array([step.value for step in steps])
    low, high = np.quantile(values, (0.05, 0.95))
    peak = _peak(log, gpu, dtype)
    flops = _median([step.flops for step in steps])
    stated = _median([step.utilised for step in steps])
    by_peak = None if flops is None or peak is None else flops / peak[0]
    return StepTimes(
        program=log.program,
        unit=log.unit,
        every=_every(steps),
        warm_up=len(log.steps) - len(steps),
        restarts=len(segments) - 1,
        runs=tuple((len(run), median(step.value for step in run)) for run in steady if len(run) >= _LEAST),
        count=len(steps),
        typical=float(np.median(values)),
        low=float(low),
        high=float(high),
        slow=slow,
        slow_share=float((costs[costs > limit] - middle).sum() / costs.sum()),
        period=_period([step.step for step in slow], [step.step for step in steps]),
        drift=_drift([step.step for step in steps], costs, limit),
        flops=flops,
        tokens=_median([step.tokens for step in steps]),
        utilised=stated if by_peak is None else by_peak,
        peak=peak,
        timed_out=log.timed_out,
        by_clock=log.by_clock,
        data_share=_data_share(steps) if log.unit == "s" else None,
    )


def _data_share(steps: Sequence[StepLine]) -> float | None:
    waits = [(step.data, step.value) for step in steps if step.data is not None and step.data <= step.value]
    return sum(waited for waited, _ in waits) / sum(value for _, value in waits) if len(waits) == len(steps) else None


def _every(steps: Sequence[StepLine]) -> int:
    """Steps from a line to the next."""
    gaps = Counter(after.step - before.step for before, after in pairwise(steps) if after.step > before.step)
    return gaps.most_common(1)[0][0] if gaps else 1


def _segments(steps: Sequence[StepLine]) -> list[list[StepLine]]:
    """The steps from each start of the program: where the number goes back, it was restarted."""
    segments: list[list[StepLine]] = [[]]
    for step in steps:
        if segments[-1] and step.step < segments[-1][-1].step:
            segments.append([])
        segments[-1].append(step)
    return segments


def _warm_up(costs: Sequence[float], usual: float, *, goes_on: bool) -> int:
    """How many lines at the start are slow (compilation, allocation, first batch) or untimed. At least the first, but
    for a usual one of an excerpt that begins later (``goes_on``); all that are untimed, however short the log.
    """
    least = _UNTIMED * usual
    if goes_on and least <= costs[0] <= _SLOW * usual:
        return 0
    most = max(1, int(_WARM_SHARE * len(costs)))
    warm = next((at for at, cost in enumerate(costs[1:most], 1) if least <= cost <= _SLOW * usual), most)
    return next((at for at, cost in enumerate(costs[warm:], warm) if cost >= least), warm)


def _period(slow: Sequence[int], steps: Sequence[int]) -> int | None:
    """The number of steps between slow ones, if most slow steps are multiples of it behind the first of them, and most
    multiples are slow.
    """
    gaps = Counter(after - before for before, after in pairwise(slow) if after > before)
    for period, hits in gaps.most_common(3):
        if period < 2 or hits < _LEAST_HITS - 1:
            continue
        places = Counter(step % period for step in slow)
        place, regular = places.most_common(1)[0]
        due = sum(step % period == place and min(slow) <= step <= max(slow) for step in steps)
        if regular >= _LEAST_HITS and regular >= _REGULAR * len(slow) and regular >= _REGULAR * due:
            return period
    return None


def _drift(steps: Sequence[int], costs: np.ndarray, limit: float) -> Drift | None:
    usual = costs <= limit
    if usual.sum() < _LEAST_FOR_DRIFT:
        return None
    every = -(-int(usual.sum()) // _MOST_FOR_DRIFT)
    numbers, costs = np.array(steps, dtype=float)[usual][::every], costs[usual][::every]
    span = numbers.max() - numbers.min()
    if not span:
        return None
    share, low, high = (math.expm1(slope * span) for slope in theil_sen(numbers, np.log(costs)))
    if usual.sum() < _FEW_FOR_DRIFT and abs(share) < _DRIFT_OF_FEW:
        return None
    return Drift(share, low, high)


def _median(values: Sequence[float | None]) -> float | None:
    printed = [value for value in values if value is not None]
    return median(printed) if printed else None


def _peak(log: TrainingLog, gpu: Gpu | None, dtype: str) -> tuple[float, str] | None:
    if gpu is not None and dtype in gpu.flops:
        return gpu.flops[dtype], f"dense {dtype} of {gpu.name}"
    return None if log.peak is None else (log.peak, "as the program states it")


def headline(times: StepTimes, *, past: bool = False) -> str:
    """The answer in one sentence; ``past``: as the end of one about a job that is over."""
    rate = "" if times.flops is None else f"; {times.flops / 1e12:.4g} TFLOP/s a GPU"
    if times.utilised is not None and times.peak is not None:
        rate += f" are {times.utilised:.1%} of {times.peak[0] / 1e12:.4g} TFLOP/s ({times.peak[1]})"
    elif times.utilised is not None:
        rate += f"; the program states {times.utilised:.1%} of its peak"
    elif times.flops is not None:
        rate += "; --gpu gives their share of its peak"
    takes, trains = ("a step of {} took", "{} trained") if past else ("A step of {} takes", "{} trains")
    does = (takes if times.unit == "s" else trains).format(times.program)
    return f"{does} {_value(times.typical, times.unit)} in the median of {counted(times.count, 'line')}{rate}"


def _value(value: float, unit: Unit) -> str:
    return format_time(value * 1e9) if unit == "s" else f"{value:,.4g} {unit}"


def findings(times: StepTimes) -> Iterator[Finding]:
    """What is unusual about the steps, and what to do."""
    if times.timed_out:
        claim = "torch's watchdog of NCCL ended the job; busbw show names the ranks in the same log"
        yield Finding("bad", "timeout", (claim,))
    yield from _slow(times)
    drift = times.drift
    if drift is not None and drift.seen:
        way = "slower" if drift.share > 0 else "faster"
        claim = (
            f"steps became {way} by {abs(drift.share):.1%} from first to last ({drift.low:+.1%} to {drift.high:+.1%})"
        )
        why = "Usual causes: clocks and temperatures of GPUs, memory that grows, longer sequences"
        yield Finding("caution" if drift.share > 0 else "note", "drift", (claim, why))
    if times.by_clock:
        claim = "these are the times between lines of the log, with all that the program did there"
        yield Finding("note", "by-clock", (claim,))
    if times.restarts:
        claim = f"the number of the step went back {counted(times.restarts, 'time')}: the program was restarted"
        yield Finding("note", "restarted", (claim,))
        typical = [value for _, value in times.runs]
        if typical and max(typical) > _SLOW * min(typical):
            each = listed(
                [f"{_value(value, times.unit)} ({counted(count, 'line')})" for count, value in times.runs[:5]]
            )
            claim = f"the runs differ, so that their common median says little: {each}"
            yield Finding("caution", "runs-differ", (claim, "Compare what was changed between them"))
    if times.every > 1:
        claim = f"every line is about {times.every} steps, so a single slow step shows as a part of its size"
        yield Finding("note", "means", (claim,))
    if times.utilised is not None and times.utilised < _LOW_SHARE:
        claim = f"{times.utilised:.1%} of the peak is little for a dense model: published runs have 35 to 55 %"
        why = "busbw training plan says what a step of a model should take on a network, and what limits it"
        yield Finding("caution", "low-utilisation", (claim, why))


def _slow(times: StepTimes) -> Iterator[Finding]:
    """What is unusual about single steps."""
    waits = [step.data for step in times.slow if step.data is not None]
    late = times.unit == "s" and sum(waits) >= _LATE_DATA * sum(step.value for step in times.slow)
    lost = f"cost an extra {times.slow_share:.1%} of all time"
    if times.slow and times.period is not None:
        claim = f"one step in {times.period} is slow: {len(times.slow)} slow steps {lost}"
        why = (
            "Something that is done so often is the cause: a checkpoint, an evaluation, a log, garbage collection. "
            "Compare the period with the intervals in the program's options"
        )
        yield Finding("caution", "periodic-slow-steps", (claim, _THEY_WAIT if late else why))
    elif times.slow:
        first = listed([str(step.step) for step in times.slow[:5]])
        claim = f"slow steps without a period {lost}: {len(times.slow)} of {times.count}, first {first}"
        why = "Look for late data, a rank that is late and errors of links at these times"
        yield Finding("caution", "slow-steps", (claim, _THEY_WAIT if late else why))
    if not times.slow and times.unit == "s" and times.count >= _LEAST_FOR_SCATTER and times.high > _WIDE * times.low:
        claim = f"steps have no usual time: {_value(times.low, 's')} to {_value(times.high, 's')} (5 % to 95 %)"
        why = "Look for late data, shared GPUs or storage; sequences of unequal length do it, too"
        yield Finding("caution", "scatter", (claim, why))
    if times.data_share is not None and times.data_share >= _WAITS:
        claim = f"steps wait for data in {times.data_share:.1%} of their time"
        why = "More or faster workers of the data loader, or faster storage, shorten them; the network does not"
        yield Finding("caution", "data-wait", (claim, why))


def facts_table(times: StepTimes) -> Table:
    """The numbers behind the answer."""
    drift = times.drift
    rows = (
        ("median", _value(times.typical, times.unit)),
        ("5 % to 95 %", f"{_value(times.low, times.unit)} to {_value(times.high, times.unit)}"),
        ("left out as warm-up", counted(times.warm_up, "line")),
        ("tokens a GPU", None if times.tokens is None or times.unit != "s" else f"{times.tokens:,.5g} /s"),
        ("drift", None if drift is None else f"{drift.share:+.2%} ({drift.low:+.2%} to {drift.high:+.2%})"),
        ("slow steps", f"{len(times.slow)}, {times.slow_share:.1%} of the time"),
    )
    columns: tuple[Column[tuple[str, str | None]], ...] = (
        Column("what", lambda row: row[0]),
        Column("value", lambda row: row[1]),
    )
    return table("", columns, (row for row in rows if row[1] is not None))
