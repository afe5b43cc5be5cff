"""The shape of samples: two modes, far outliers, a level that moves. What a median and its interval do not show."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass

import numpy as np
import numpy.typing as npt

from busbw.statistics import median_interval

Floats = npt.NDArray[np.float64]

_MODE_LEAST_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Modes:
    """Two modes of one distribution: their centres (ns per call) and the share of samples in the slower one."""

    fast_ns: float
    slow_ns: float
    slow_share: float


def find_modes(samples: Floats) -> Modes | None:
    """The two modes of ``samples`` (positive, any order), or None when one mode describes them.

    The sorted logarithms are cut where the variance within the two sides is least (Otsu 1979). Two modes are believed
    when each side holds 20–80 % of the samples, the centres differ by a factor of at least 2, and Ashman's D =
    √2·|m₁ − m₂| / √(s₁² + s₂²) is above 4: a normal distribution cut at its median has D = 2.65, a uniform one 3.46.
    """
    (found,) = all_modes(samples[np.newaxis])
    return None if np.isnan(found[0]) else Modes(*map(float, found))


def all_modes(samples: Floats) -> Floats:
    """The same of many distributions at once (n × samples): the fields of ``Modes`` (n × 3), NaN for none."""
    count = samples.shape[-1]
    found = np.full((len(samples), 3), np.nan)
    sizes = np.arange(1, count)
    allowed = (sizes >= _MODE_LEAST_SHARE * count) & (sizes <= (1 - _MODE_LEAST_SHARE) * count)
    if not allowed.any() or count < 10:
        return found
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
        found[rows[two]] = np.column_stack([np.exp(fast), np.exp(slow), np.full(len(rows), (count - cut) / count)])[two]
    return found


def common_modes(by_launch: Sequence[Modes | None]) -> Modes | None:
    """The two modes that at least half of the launches have, each number the median over those; None otherwise.

    Launches that have one mode each, one here and one there, differ from each other, which is something else.
    """
    found = [modes for modes in by_launch if modes is not None]
    if not found or 2 * len(found) < len(by_launch):
        return None
    return Modes(*np.median([astuple(modes) for modes in found], axis=0).tolist())


def outliers(samples: Floats) -> int:
    """How many samples lie outside Tukey's outer fences: further from the quartiles than three times the
    distance between them.
    """
    return int(all_outliers(samples[np.newaxis])[0])


def all_outliers(samples: Floats) -> npt.NDArray[np.int64]:
    """The same of many distributions at once: … × samples → …."""
    low, high = np.quantile(np.sort(samples, axis=-1), (0.25, 0.75), axis=-1, keepdims=True)  # sorted it is faster
    reach = 3 * (high - low)
    return np.asarray(((samples < low - reach) | (samples > high + reach)).sum(axis=-1))


def drifts(block: Floats, tau: float) -> bool:
    """Whether first and last third of a block differ by more than twice the half-width of its interval, that of
    as many free samples as the autocorrelation time ``tau`` leaves.
    """
    return bool(all_drifts(block[np.newaxis], np.asarray([tau]))[0])


def all_drifts(samples: Floats, tau: Floats) -> npt.NDArray[np.bool_]:
    """The same of many blocks at once: n × samples → n."""
    third = samples.shape[1] // 3
    if third == 0:
        return np.zeros(len(samples), dtype=np.bool_)
    low, high = median_intervals(samples, tau)
    change = np.abs(medians_of(samples[:, :third]) - medians_of(samples[:, -third:]))
    return np.asarray(change > high - low)  # no interval, no drift: nothing is above NaN


def median_intervals(samples: Floats, tau: Floats) -> tuple[Floats, Floats]:
    """The ends of ``statistics.median_interval`` of every row; NaN where there is none."""
    count = samples.shape[1]
    ordered = np.sort(samples, axis=1)
    effective = np.maximum(1, (count / np.maximum(tau, 1.0)).astype(np.int64))
    low, high = np.full(len(samples), np.nan), np.full(len(samples), np.nan)
    for free in np.unique(effective):
        mine = effective == free
        # Of the numbers 0, 1, 2 … the ends are the places themselves.
        ends = median_interval(np.arange(count), tau=float(tau[mine][0]))
        if ends.low is not None and ends.high is not None:
            low[mine], high[mine] = ordered[mine, int(ends.low)], ordered[mine, int(ends.high)]
    return low, high


def medians_of(rows: Floats) -> Floats:
    """The median of every row; NaN where one of its numbers is. Sorted first, it takes a third of the time."""
    return np.asarray(np.median(np.sort(rows, axis=1), axis=1))
