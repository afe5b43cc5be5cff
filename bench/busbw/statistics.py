"""Statistics that the stopping rule and the tables share, so that both use the same intervals.

Sources: order-statistic interval of the median, Hoefler & Belli 2015 rule 5 (the same as
``scipy.stats.quantile_test(x, p=0.5).confidence_interval()``); integrated autocorrelation time with the initial
positive sequence, Geyer 1992.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_FEWEST_TO_CORRELATE = 4


@dataclass(frozen=True, slots=True)
class MedianInterval:
    """A median with its distribution-free interval; ``low`` and ``high`` are None if there are too few values."""

    median: float
    low: float | None
    high: float | None

    @property
    def relative_half_width(self) -> float:
        """Half of the interval's width, relative to the median; infinite without an interval."""
        if self.low is None or self.high is None or self.median <= 0:
            return math.inf
        return (self.high - self.low) / 2 / self.median


def median_interval(values: npt.ArrayLike, confidence: float = 0.95, tau: float = 1.0) -> MedianInterval:
    """The median of ``values`` (any order, at least one) with its order-statistic interval.

    ``tau`` is the autocorrelation time in samples: n correlated values contain the information of n / tau independent
    ones, so the interval's ends have the ranks for n / tau values. With fewer than 6 effective values there is no
    two-sided 95 % interval.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    count = len(ordered)
    median = float(np.median(ordered))
    effective = max(1, int(count / max(tau, 1.0)))
    below = _rank_below(effective, confidence)
    if below is None:
        return MedianInterval(median, None, None)
    low = below * count // effective
    high = count - 1 - low
    return MedianInterval(median, float(ordered[low]), float(ordered[high]))


def spreads(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Half of p95 − p5 of every row, relative to the median: 0.1 if nine in ten values lie within about ± 10 % of it.

    ``show`` and the report use this definition for the samples of a launch.
    """
    # On sorted rows numpy needs a third of the time for quantiles, including the sort.
    low, middle, high = np.quantile(np.sort(rows, axis=1), (0.05, 0.5, 0.95), axis=1)
    return np.asarray((high - low) / 2 / middle)


def medians_of(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The median of every row; NaN if the row contains NaN. Sorting first takes a third of the time."""
    return np.asarray(np.median(np.sort(rows, axis=1), axis=1))


@functools.lru_cache(maxsize=4096)
def _rank_below(count: int, confidence: float) -> int | None:
    """The number of sorted values that can be removed at each end so that the rest covers the median (None: none).

    It is the largest k with P(X ≤ k) ≤ (1 - confidence) / 2 for X binomial with p = 1/2. Computed from the logarithms
    of ratios of neighbouring terms, because factorials overflow and the normal approximation is off by one. Cached,
    because the stopping rule uses few different counts.
    """
    successes = np.arange(1, count // 2 + 1)
    terms = np.exp(np.append(0.0, np.cumsum(np.log((count - successes + 1) / successes))) - count * math.log(2))
    tail = (1 - confidence) / 2 * (1 + 1e-9)  # rounding must not decide a tie
    cut = int(np.searchsorted(np.cumsum(terms), tail, side="right")) - 1
    return cut if cut >= 0 else None


def autocorrelation_time(values: npt.ArrayLike) -> float:
    """Integrated autocorrelation time (in samples, ≥ 1) of the indicator "above the median".

    The indicator, because the error of the median is needed and one outlier must not dominate. The sum ends before the
    first pair of lags that is not positive (Geyer's initial positive sequence).
    """
    return float(autocorrelation_times(np.asarray(values, dtype=np.float64)[np.newaxis])[0])


def autocorrelation_times(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """``autocorrelation_time`` of every row."""
    count = rows.shape[1]
    times = np.ones(len(rows))
    if count < _FEWEST_TO_CORRELATE:
        return times
    indicator = (rows > medians_of(rows)[:, np.newaxis]).astype(np.float64)
    indicator -= indicator.mean(axis=1, keepdims=True)
    power = np.matmul(indicator[:, np.newaxis], indicator[:, :, np.newaxis])[:, 0]
    moves = np.flatnonzero(power[:, 0] != 0)
    spectrum = np.fft.rfft(indicator[moves], 2 * count, axis=1)
    correlation = np.fft.irfft(spectrum * np.conj(spectrum), axis=1)[:, :count] / power[moves]
    even = count // 2 * 2
    pairs = correlation[:, :even:2] + correlation[:, 1:even:2]
    ends = pairs <= 0
    stops = np.where(ends.any(axis=1), ends.argmax(axis=1), pairs.shape[1])
    # One sum per stop: the sum of a row padded with zeros would differ in its last bit.
    for stop in np.unique(stops).tolist():
        mine = stops == stop
        times[moves[mine]] = np.maximum(1.0, 2 * pairs[mine, :stop].sum(axis=1) - 1)
    return times
