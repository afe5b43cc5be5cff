"""Features of a distribution that a median and its interval do not show: two modes, outliers, drift."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from busbw.statistics import median_interval, medians_of

Floats = npt.NDArray[np.float64]

_MODE_LEAST_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Modes:
    """Two modes of one distribution: their centres (ns per call) and the share of samples in the slower mode."""

    fast_ns: float
    slow_ns: float
    slow_share: float


def all_modes(samples: Floats) -> Floats:
    """The two modes of the positive samples of every row (n × samples): the fields of ``Modes`` (n × 3), NaN for a
    unimodal row.

    The sorted logarithms are split where the variance within the two sides is lowest (Otsu 1979). The result is two
    modes if each side holds 20–80 % of the samples, the centres differ by a factor of at least 2, and Ashman's D =
    √2·|m₁ − m₂| / √(s₁² + s₂²) is above 4. For comparison, a normal distribution split at its median has D = 2.65, a
    uniform one 3.46.
    """
    count = samples.shape[-1]
    modes = np.full((len(samples), 3), np.nan)
    sizes = np.arange(1, count)
    allowed = (sizes >= _MODE_LEAST_SHARE * count) & (sizes <= (1 - _MODE_LEAST_SHARE) * count)
    if not allowed.any() or count < 10:
        return modes
    logs = np.log(np.sort(samples, axis=1))
    sums, squares = np.cumsum(logs, axis=1), np.cumsum(logs**2, axis=1)
    within = squares[:, -1:] - sums[:, :-1] ** 2 / sizes - (sums[:, -1:] - sums[:, :-1]) ** 2 / (count - sizes)
    cuts = np.argmin(np.where(allowed, within, np.inf), axis=1) + 1
    for cut in np.unique(cuts):
        rows = np.flatnonzero(cuts == cut)
        low, high = logs[rows, :cut], logs[rows, cut:]
        fast, slow = np.median(low, axis=1), np.median(high, axis=1)
        distance, width = slow - fast, np.hypot(low.std(axis=1), high.std(axis=1))
        two = (distance >= np.log(2)) & (np.sqrt(2) * distance > 4 * width)
        modes[rows[two]] = np.column_stack([np.exp(fast), np.exp(slow), np.full(len(rows), (count - cut) / count)])[two]
    return modes


def all_outliers(samples: Floats) -> npt.NDArray[np.int64]:
    """The number of samples of every row (… × samples → …) outside Tukey's outer fences: more than 3 interquartile
    ranges beyond the quartiles.
    """
    low, high = np.quantile(np.sort(samples, axis=-1), (0.25, 0.75), axis=-1, keepdims=True)  # faster if sorted
    reach = 3 * (high - low)
    return np.asarray(((samples < low - reach) | (samples > high + reach)).sum(axis=-1))


def all_drifts(samples: Floats, tau: Floats) -> npt.NDArray[np.bool_]:
    """Whether the medians of the first and last third of a block differ by more than the width of its interval, for
    every block: n × samples → n.

    The interval uses the effective sample size, given the autocorrelation time ``tau`` in samples.
    """
    third = samples.shape[1] // 3
    if third == 0:
        return np.zeros(len(samples), dtype=np.bool_)
    low, high = median_intervals(samples, tau)
    change = np.abs(medians_of(samples[:, :third]) - medians_of(samples[:, -third:]))
    return np.asarray(change > high - low)  # False without an interval, because comparing with NaN is False


def median_intervals(samples: Floats, tau: Floats) -> tuple[Floats, Floats]:
    """The ends of ``statistics.median_interval`` of every row; NaN if there is no interval."""
    count = samples.shape[1]
    ordered = np.sort(samples, axis=1)
    effective = np.maximum(1, (count / np.maximum(tau, 1.0)).astype(np.int64))
    low, high = np.full(len(samples), np.nan), np.full(len(samples), np.nan)
    for free in np.unique(effective):
        mine = effective == free
        # For the values 0, 1, 2 …, the ends are the indices.
        ends = median_interval(np.arange(count), tau=float(tau[mine][0]))
        if ends.low is not None and ends.high is not None:
            low[mine], high[mine] = ordered[mine, int(ends.low)], ordered[mine, int(ends.high)]
    return low, high
