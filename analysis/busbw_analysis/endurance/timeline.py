"""One case over the time of a run with a duration: drift, steps and periodic slow spells.

Drift is the median slope of pairs of points (Theil 1950) with the interval of Sen 1968, of the logarithm of the median
times; pairs across a step do not count. A period is a peak of the periodogram (Schuster 1898) of the means' ranks at
their times, against the median power at neighbouring frequencies, so that slow irregular changes are none; its slow
spells are those of the folded series.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from busbw.runs.records import Window
from busbw_analysis.data.distributions import normal_quantile
from busbw_analysis.data.intervals import Floats
from busbw_analysis.history.steps import Step, steps_of

Places = npt.NDArray[np.int64]

FEWEST: Final = 30
"""Windows of a case that is judged."""
_POINTS: Final = 512
"""Points of which pairs are formed, medians of equal numbers of windows."""
_LEAST_CHANGE: Final = 0.01
"""A drift that changes the time by less over the whole run is none."""
_CERTAIN: Final = 0.999
_SHOWN: Final = 0.95
_CYCLES: Final = 8
"""Fewest periods within the run."""
_OVERSAMPLING: Final = 4
_GRID: Final = 8
_NEIGHBOURS: Final = 200
"""Frequencies around a peak whose median power is its noise."""
_FALSE_ALARM: Final = 1e-6
_PHASES: Final = 20


@dataclass(frozen=True, slots=True)
class Drift:
    """Change of the time per hour, as a share, with its 95 % interval."""

    per_hour: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Spells:
    """Slow spells that recur. ``period_seconds``; ``share`` of it that is slow; ``ratio``: slow over other times."""

    period_seconds: float
    share: float
    ratio: float


@dataclass(frozen=True, slots=True)
class Move:
    """A step of the level. ``seconds``: its moment in time of the run, between ``low`` and ``high`` with 95 %;
    ``started``: UTC of its first window; ``ratio``: time after over before.
    """

    seconds: float
    low: float
    high: float
    started: str
    ratio: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """One case over time.

    case: its index
    seconds: middle of each window, in time of the run
    median_ns: of each window
    windows, seconds_measured: their number, and the end of the last
    drift: None if the interval contains 0 or the change is below 1 %
    """

    case: int
    seconds: Floats
    median_ns: Floats
    windows: int
    seconds_measured: float
    drift: Drift | None
    moves: tuple[Move, ...]
    spells: Spells | None


def timeline_of(case: int, windows: Sequence[Window]) -> Timeline:
    """The time-line of a case from its ``windows``, at least one, in order."""
    seconds = np.asarray([(window.begin_ns + window.end_ns) / 2e9 for window in windows])
    medians = np.asarray([window.quantiles_ns[3] for window in windows])
    means = np.asarray([window.mean_ns for window in windows])
    judged = len(windows) >= FEWEST
    parts = np.array_split(np.arange(len(windows)), min(_POINTS, len(windows)))
    times = np.asarray([seconds[part].mean() for part in parts])
    levels = np.asarray([np.median(medians[part]) for part in parts])
    steps = steps_of(levels.tolist()) if judged else ()
    segment: Places = np.searchsorted([step.at for step in steps], np.arange(len(parts)), side="right").astype(np.int64)
    drift = _drift(times, np.log(levels), segment) if judged else None
    return Timeline(
        case=case,
        seconds=seconds,
        median_ns=medians,
        windows=len(windows),
        seconds_measured=windows[-1].end_ns / 1e9,
        drift=drift,
        moves=tuple(_move(step, [windows[part[0]] for part in parts], levels, segment) for step in steps),
        spells=_spells(seconds, means, times, np.log(levels), segment) if judged else None,
    )


def _move(step: Step, first: Sequence[Window], levels: Floats, segment: Places) -> Move:
    place = segment[step.at]
    before, after = (float(np.median(levels[segment == number])) for number in (place - 1, place))
    return Move(
        seconds=first[step.at].begin_ns / 1e9,
        low=first[step.low].begin_ns / 1e9,
        high=first[step.high].begin_ns / 1e9,
        started=first[step.at].started,
        ratio=after / before,
    )


def _drift(times: Floats, logs: Floats, segment: Places) -> Drift | None:
    earlier, later = np.triu_indices(len(times), 1)
    within = segment[earlier] == segment[later]
    earlier, later = earlier[within], later[within]
    slopes = np.sort((logs[later] - logs[earlier]) / (times[later] - times[earlier]) * 3600)
    slope = float(np.median(slopes))
    residuals = logs - slope / 3600 * times
    residuals -= np.asarray([np.median(residuals[segment == number]) for number in segment])
    correlation = min(max(0.0, float(residuals[1:] @ residuals[:-1]) / max(float(residuals @ residuals), 1e-300)), 0.99)
    counts = np.unique(segment, return_counts=True)[1]
    # Variance of Kendall's statistic within segments, inflated by autocorrelation.
    variance = float((counts * (counts - 1) * (2 * counts + 5) / 18).sum()) * (1 + correlation) / (1 - correlation)

    def ends(confidence: float) -> tuple[float, float]:
        reach = normal_quantile((1 + confidence) / 2) * math.sqrt(variance) / 2
        low, high = (round(len(slopes) / 2 + sign * reach) for sign in (-1, 1))
        return float(slopes[max(0, low)]), float(slopes[min(len(slopes) - 1, high)])

    certain_low, certain_high = ends(_CERTAIN)
    changes = abs(slope) * (times[-1] - times[0]) / 3600
    if certain_low <= 0 <= certain_high or changes < _LEAST_CHANGE:
        return None
    return Drift(slope, *ends(_SHOWN))


def _spells(seconds: Floats, means: Floats, times: Floats, levels: Floats, segment: Places) -> Spells | None:
    logs = np.log(means)
    # Without steps and drift: the median of the segment, and a line through all.
    of_segment = np.asarray([np.median(levels[segment == number]) for number in segment])
    logs = logs - np.interp(seconds, times, of_segment)
    logs = logs - np.polyval(np.polyfit(seconds, logs, 1), seconds)
    ranks = logs.argsort().argsort().astype(np.float64)
    ranks -= ranks.mean()
    whole = float(seconds[-1] - seconds[0])
    most = len(seconds) // 2
    if ranks.std() == 0 or most <= _CYCLES:
        return None
    # On a grid that is finer than the windows, so that the transform knows their times (Press & Rybicki 1989).
    grid = np.zeros(_GRID * len(seconds) * _OVERSAMPLING)
    np.add.at(grid, np.floor((seconds - seconds[0]) / whole * _GRID * len(seconds)).astype(np.int64), ranks)
    frequencies = slice(_CYCLES * _OVERSAMPLING, most * _OVERSAMPLING + 1)
    cycles = np.arange(len(grid))[frequencies] / _OVERSAMPLING
    power = np.abs(np.fft.rfft(grid))[frequencies] ** 2 / (len(ranks) * ranks.var())
    best = int(power.argmax())
    around = power[max(0, best - _NEIGHBOURS) : best + _NEIGHBOURS + 1]
    # Power is exponential for noise, whose median is ln 2 of the mean.
    excess = float(power[best]) / max(float(np.median(around)) / math.log(2), 1e-300)
    if len(cycles) * math.exp(-excess) > _FALSE_ALARM:
        return None
    period = whole / float(cycles[best])
    phases = np.floor(seconds / period % 1 * _PHASES).astype(np.int64)
    folded = np.asarray([np.median(logs[phases == phase]) for phase in range(_PHASES) if (phases == phase).any()])
    slow = folded > (folded.min() + folded.max()) / 2
    ratio = math.exp(float(folded[slow].mean() - folded[~slow].mean()))
    return Spells(period, float(slow.mean()), ratio)
