"""Rank statistics of pairs: Kendall's τ with its test, and the Theil–Sen slope with its interval.

SciPy has both, and would be four tenths of all that an installation without PyTorch needs.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from busbw_analysis.data.distributions import normal_below, normal_quantile
from busbw_analysis.data.intervals import Floats

_MOST_EXACT = 33
"""Pairs up to which the exact distribution is used, as SciPy does."""


@dataclass(frozen=True, slots=True)
class Kendall:
    """Association of two vectors.

    tau: τ-b, from −1 to 1; NaN if either vector is constant
    p_falls: probability of at most this τ if the order is by chance; NaN if τ is
    """

    tau: float
    p_falls: float


def kendall(first: npt.ArrayLike, second: npt.ArrayLike) -> Kendall:
    """Kendall's τ-b of two vectors of the same length, ≥ 2, and its one-sided test: exact without ties up to 33 values,
    else normal.

    Source: M. G. Kendall, Rank Correlation Methods, 4th ed. (1970), chapters 3 to 5.
    """
    x, y = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    count, below = len(x), np.tril_indices(len(x), -1)
    signs = [np.sign(values[below[0]] - values[below[1]]) for values in (x, y)]
    score, untied = float(signs[0] @ signs[1]), [float(np.abs(sign).sum()) for sign in signs]
    if not all(untied):
        return Kendall(math.nan, math.nan)
    tau = score / math.sqrt(untied[0] * untied[1])
    pairs = count * (count - 1) // 2
    if untied == [pairs, pairs] and count <= _MOST_EXACT:
        return Kendall(tau, _as_few_concordant(count, round((score + pairs) / 2)))
    return Kendall(tau, normal_below(score / math.sqrt(_variance(count, _ties(x), _ties(y)))))


def _as_few_concordant(count: int, concordant: int) -> float:
    """The share of the orders of ``count`` values that have at most so many concordant pairs.

    The k-th value is above 0 to k − 1 of those before it, with equal probability.
    """
    share = np.ones(1)
    for number in range(2, count + 1):
        share = np.convolve(share, np.full(number, 1 / number))
    return float(share[: concordant + 1].sum())


def _ties(values: Floats) -> npt.NDArray[np.int64]:
    counts = np.unique(values, return_counts=True)[1].astype(np.int64)
    return counts[counts > 1]


def _variance(count: int, *ties: npt.NDArray[np.int64]) -> float:
    """Variance of the difference of concordant and discordant pairs (Kendall 1970, formula 4.4)."""
    main = count * (count - 1) * (2 * count + 5)
    tied = sum(float((tie * (tie - 1) * (2 * tie + 5)).sum()) for tie in ties)
    twos = math.prod(float((tie * (tie - 1)).sum()) for tie in ties)
    threes = math.prod(float((tie * (tie - 1) * (tie - 2)).sum()) for tie in ties)
    more = threes / (9 * count * (count - 1) * (count - 2)) if count > 2 else 0.0
    return (main - tied) / 18 + more + twos / (2 * count * (count - 1))


def theil_sen(at: npt.ArrayLike, values: npt.ArrayLike) -> tuple[float, float, float]:
    """The median slope of all pairs of points, and the ends of its 95 % interval. Not all places ``at`` may be equal.

    Source: P. K. Sen, Estimates of the regression coefficient based on Kendall's tau, JASA 63 (1968), formula 2.6.
    """
    places, heights = np.asarray(at, dtype=np.float64), np.asarray(values, dtype=np.float64)
    runs = places[:, None] - places
    slopes = np.sort(((heights[:, None] - heights)[runs > 0]) / runs[runs > 0])
    count = len(places)
    tied = sum(float((tie * (tie - 1) * (2 * tie + 5)).sum()) for tie in (_ties(places), _ties(heights)))
    # Ties in both vectors can be subtracted twice.
    variance = max(count * (count - 1) * (2 * count + 5) - tied, 0.0) / 18
    half = normal_quantile(0.975) * math.sqrt(variance)
    low, high = max(round((len(slopes) - half) / 2) - 1, 0), min(round((len(slopes) + half) / 2), len(slopes) - 1)
    return float(np.median(slopes)), float(slopes[low]), float(slopes[high])
