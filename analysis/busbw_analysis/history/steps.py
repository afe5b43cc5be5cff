"""Steps in a history: one value per run, in time order.

Candidates are the optimal segmentation of the logarithms (least squares with a penalty per segment, exact by dynamic
programming: Jackson et al. 2005). Then the least certain step is removed, and all others are tested again, until every
step passes: a Student test between the segments beside it, with a variance inflated for the autocorrelation within
segments (Bartlett 1946), and a straight line must not describe both segments as well. If one line describes the whole
history better, for its number of parameters (Zhang & Siegmund 2007), there is a drift and no step. Runs without a
lasting change (spikes) are first replaced by their running median (Hampel 1974). ``tests/bench/steps.py`` measures the
error rates, and the F1 on the series that TCPDBench had annotated: 0.72 on the 27 that are stored there, where the best
of its methods has 0.64 with its default settings.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from busbw.errors import AnalysisError
from busbw_analysis.data.distributions import normal_quantile, student_quantile, student_tail
from busbw_analysis.data.intervals import Floats

SIGNIFICANCE: Final = 2e-5
"""Largest p of a step, so strict because every pair of segments of every run is tested: simulated stationary histories
have at most 1 false step in 1,000 runs."""
FOUND: Final = 0.95
"""Probability that a step of ``smallest_step`` is found."""
SOON: Final = 10
"""Number of runs after a step within which it is to be found."""

FEWEST_BEFORE: Final = 25
"""Number of runs from which on ``smallest_step`` holds."""

_LEAST: Final = 3
"""Runs in a segment."""
FEWEST_RUNS: Final = 2 * _LEAST
"""Number of runs from which on any step can be found."""
_MOST_BOUNDS: Final = 1000
"""Places at which bounds are tried; the time grows with its square."""
_PENALTY: Final = 3.0
"""Of a segment, in variances × log(runs): lower than that of the test, which decides."""
_WINDOW: Final = 3
"""Runs on each side in the running median. A spike is at most this many runs long."""
_SPIKE: Final = 4.0
"""Distance of a spike from the running median, in standard deviations."""
_PRIOR_RUNS: Final = 30
_PRIOR_CORRELATION: Final = 0.3
"""The autocorrelation is averaged with this one as if that many more runs had it, because a short history does not
show its own."""
_MOST_CORRELATION: Final = 0.99
_AS_GOOD: Final = 3.0
"""A line is as good as a step unless its squared residuals are larger by this number of variances."""
_DATE: Final = 11.03
"""95 % quantile of the location of the maximum of a two-sided Brownian motion with drift (Bai 1997)."""
_MAD: Final = 1 / normal_quantile(0.75)
"""Standard deviation of normal values over their median absolute deviation."""

Places: TypeAlias = int | npt.NDArray[np.int64]
"""Indices between values."""


@dataclass(frozen=True, slots=True)
class Step:
    """A lasting change.

    at: index of the first value after the step
    before, after: medians of the segments beside it
    low, high: indices between which ``at`` lies with 95 % (Bai 1997)
    p_value: of the hypothesis that the segments beside it have the same mean, for this step alone
    """

    at: int
    before: float
    after: float
    low: int
    high: int
    p_value: float


@dataclass(frozen=True, slots=True)
class _Noise:
    """The scatter within segments. ``variance``: of a value; ``inflation``: of the variance of a mean by
    autocorrelation; ``freedom``: degrees of freedom.
    """

    variance: float
    inflation: float
    freedom: int


def steps_of(values: Sequence[float]) -> tuple[Step, ...]:
    """The steps in ``values``, which are positive and ordered in time, one per run.

    Of 2 % scatter between runs, a step of 5 % is found within 10 runs if at least 60 came before it
    (``smallest_step``). A drift is no step. Raises AnalysisError for a value that is not positive and finite.
    """
    given = np.asarray(values, dtype=np.float64)
    if not (np.isfinite(given).all() and (given > 0).all()):
        message = "a history has a value that is not positive and finite, of which no logarithm exists"
        raise AnalysisError(message)
    if len(given) < 2 * _LEAST:
        return ()
    scale = _scale(np.log(given))
    if scale == 0:
        return ()
    logs = _without_spikes(np.log(given), scale)
    bounds = _segmentation(logs, _PENALTY * math.log(len(logs)) * scale**2)
    while len(bounds) > 2:
        noise = _noise(logs, bounds)
        scores = [_score(logs, *beside, noise) for beside in zip(bounds, bounds[1:], bounds[2:], strict=False)]
        if _p_value(min(scores), noise) <= SIGNIFICANCE:
            if _is_line(logs, bounds):
                return ()
            return tuple(
                _step(given, logs, beside, noise, _p_value(score, noise))
                for beside, score in zip(zip(bounds, bounds[1:], bounds[2:], strict=False), scores, strict=True)
            )
        del bounds[1 + int(np.argmin(scores))]
    return ()


def smallest_step(scatter: float, runs: int) -> float:
    """The smallest step, as a share of the value before it, that ``steps_of`` finds within 10 runs with 95 %.

    scatter: standard deviation of the logarithm between independent runs
    runs: number before the step, at least ``FEWEST_BEFORE``
    """
    total = runs + SOON
    # The autocorrelation, which is 0, is estimated with this standard error (Bartlett 1946).
    inflation = _inflation(1 / math.sqrt(total), total)
    needed = student_quantile(1 - SIGNIFICANCE / 2, total - 2) + normal_quantile(FOUND)
    return math.expm1(needed * scatter * math.sqrt(inflation * (1 / runs + 1 / SOON)))


def _scale(logs: Floats) -> float:
    """Standard deviation of a value, by differences of neighbours, which few steps and spikes do not change."""
    changes = np.diff(logs)
    typical = _MAD * float(np.median(np.abs(changes)))
    return (typical or float(changes.std())) / math.sqrt(2)


def _without_spikes(logs: Floats, scale: float) -> Floats:
    around = np.lib.stride_tricks.sliding_window_view(np.pad(logs, _WINDOW, mode="reflect"), 2 * _WINDOW + 1)
    medians = np.median(around, axis=1)
    return np.where(np.abs(logs - medians) > _SPIKE * scale, medians, logs)


def _segmentation(logs: Floats, penalty: float) -> list[int]:
    """Bounds of the segments, 0 and the end included, with the least sum of squared residuals and penalties.

    Of more than ``_MOST_BOUNDS`` values, bounds are first tried at every k-th, and then each moved to the best between.
    """
    count = len(logs)
    sums, squares = (np.concatenate([[0.0], np.cumsum(logs**power)]) for power in (1, 2))

    def residuals(begin: Places, end: Places) -> Floats:
        cost: Floats = squares[end] - squares[begin] - (sums[end] - sums[begin]) ** 2 / (end - begin)
        return cost

    stride = -(-count // _MOST_BOUNDS)
    places = np.unique(np.append(np.arange(0, count, stride), count))
    # Least cost of the values before a place; not between 0 and the end of the first segment.
    cost = np.full(len(places), np.inf)
    cost[0] = 0.0
    begins = np.zeros(len(places), dtype=np.int64)
    for number, end in enumerate(places):
        last = int(np.searchsorted(places, end - _LEAST, side="right"))
        if last:
            totals = cost[:last] + residuals(places[:last], end)
            begins[number] = totals.argmin()
            cost[number] = totals[begins[number]] + penalty
    numbers = [len(places) - 1]
    while numbers[0]:
        numbers.insert(0, int(begins[numbers[0]]))
    bounds = [int(places[number]) for number in numbers]
    for number in range(1, len(bounds) - 1) if stride > 1 else ():
        begin, at, end = bounds[number - 1 : number + 2]
        near = np.arange(max(begin + _LEAST, at - stride), min(end - _LEAST, at + stride) + 1)
        bounds[number] = int(near[(residuals(begin, near) + residuals(near, end)).argmin()])
    return bounds


def _noise(logs: Floats, bounds: Sequence[int]) -> _Noise:
    segments = len(bounds) - 1
    means = [float(logs[begin:end].mean()) for begin, end in pairwise(bounds)]
    residuals = logs - np.repeat(means, np.diff(bounds))
    products = residuals[1:] * residuals[:-1]
    products[np.asarray(bounds[1:-1], dtype=np.int64) - 1] = 0.0  # across segments
    total = float(residuals @ residuals)
    share = segments / len(logs)
    # A mean that is estimated from L values biases the autocorrelation r by −(1 + 3 r) / L (Kendall 1954).
    correlation = (float(products.sum()) / total + share) / max(1 - 3 * share, 0.1) if total else 0.0
    freedom = len(logs) - segments
    return _Noise(total / freedom, _inflation(correlation, len(logs)), freedom)


def _inflation(correlation: float, count: int) -> float:
    """Factor by which autocorrelation inflates the variance of a mean of ``count`` values or fewer."""
    limited = min(max(correlation, -0.5), _MOST_CORRELATION)
    assumed = max(0.0, (count * limited + _PRIOR_RUNS * _PRIOR_CORRELATION) / (count + _PRIOR_RUNS))
    return (1 + assumed) / (1 - assumed)


def _score(logs: Floats, begin: int, at: int, end: int, noise: _Noise) -> float:
    """Student's statistic of the means beside a step; 0 if a line describes both segments as well."""
    before, after, both = logs[begin:at], logs[at:end], logs[begin:end]
    difference = abs(float(after.mean() - before.mean()))
    places = np.arange(end - begin) - (end - begin - 1) / 2
    total = float(((both - both.mean()) ** 2).sum())
    of_line = total - float(places @ both) ** 2 / float(places @ places)
    of_step = total - difference**2 * len(before) * len(after) / len(both)
    if of_line <= of_step + _AS_GOOD * noise.variance:
        return 0.0
    variance = noise.variance * noise.inflation * (1 / len(before) + 1 / len(after))
    return difference / math.sqrt(variance) if variance > 0 else math.inf


def _is_line(logs: Floats, bounds: Sequence[int]) -> bool:
    """Whether a line describes the values better than the segments, each of which costs three parameters."""
    places = np.arange(len(logs)) - (len(logs) - 1) / 2
    total = float(((logs - logs.mean()) ** 2).sum())
    of_line = total - float(places @ logs) ** 2 / float(places @ places)
    of_steps = sum(float(((part - part.mean()) ** 2).sum()) for part in np.split(logs, bounds[1:-1]))
    price = (3 * (len(bounds) - 2) - 1) * math.log(len(logs))
    return of_steps > 0 and len(logs) * math.log(of_line / of_steps) <= price


def _p_value(score: float, noise: _Noise) -> float:
    """Two-sided, for independent values with the inflated variance."""
    return 0.0 if math.isinf(score) else max(0.0, 2 * student_tail(score, noise.freedom))


def _step(values: Floats, logs: Floats, bounds: Sequence[int], noise: _Noise, p_value: float) -> Step:
    begin, at, end = bounds
    size = float(logs[at:end].mean() - logs[begin:at].mean())
    reach = int(_DATE * noise.variance * noise.inflation / size**2) + 1
    return Step(
        at=at,
        before=float(np.median(values[begin:at])),
        after=float(np.median(values[at:end])),
        low=max(begin + 1, at - reach),
        high=min(end - 1, at + reach),
        p_value=p_value,
    )
