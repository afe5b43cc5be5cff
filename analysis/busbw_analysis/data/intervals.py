"""Intervals over launches: distribution-free for a median of one number per launch, bootstrap for a mean.

The launch is the experimental unit. The median of launch medians gets a distribution-free interval. A mean over
launches (of a mean, an extreme quantile or a share) is bootstrapped by resampling whole launches.

Sources: interpolated order-statistic interval, Hettmansperger & Sheather 1986; resampling of clusters, Davison &
Hinkley 1997, section 3.8; widened percentiles for few clusters, Hesterberg 2015, section 4.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from busbw_analysis.data.distributions import binomial_tail, normal_below, normal_quantile, student_quantile

Floats = npt.NDArray[np.float64]
IntervalKind = Literal[
    "95 % over launches", "range of launch medians", "95 % within this launch", "range of the tables of a log", "none"
]
LAUNCHES_FOR_AN_INTERVAL = 6
"""With fewer launches, no order-statistic interval of a median covers 95 % (5 values cover 93.75 %)."""

_CONFIDENCE = 0.95
_RESAMPLES = 5000


@dataclass(frozen=True, slots=True)
class Interval:
    """The uncertainty of a time, in ns per call. ``kind`` says what the ends are; both are None for ``none``."""

    low_ns: float | None
    high_ns: float | None
    kind: IntervalKind


def interval_of(by_launch: Sequence[float] | Floats) -> Interval:
    """The interval of the median of one number per launch, in the unit of the numbers; it covers the true median 95 %
    of the time.

    Order statistics alone offer only the coverages of the binomial distribution (96.9 % with 6 launches, 97.9 % with
    10). So each end is interpolated between the last pair that covers at least 95 % and the first that does not. With
    fewer than 6 launches no pair covers enough, and the ends are the range; for a single launch there are none.
    """
    if len(by_launch) < 2:
        return Interval(None, None, "none")
    low, high = ends_over_launches(np.asarray(by_launch, dtype=np.float64))
    enough = len(by_launch) >= LAUNCHES_FOR_AN_INTERVAL
    return Interval(float(low), float(high), "95 % over launches" if enough else "range of launch medians")


def ends_over_launches(numbers: Floats) -> tuple[Floats, Floats]:
    """The ends of this interval for many rows (… × launches → …)."""
    ordered, count = np.sort(numbers, axis=-1), numbers.shape[-1]
    if count < LAUNCHES_FOR_AN_INTERVAL:
        return ordered[..., 0], ordered[..., -1]
    rank, inwards = _between(count)
    low = (1 - inwards) * ordered[..., rank - 1] + inwards * ordered[..., rank]
    high = (1 - inwards) * ordered[..., count - rank] + inwards * ordered[..., count - rank - 1]
    return low, high


@functools.lru_cache(maxsize=64)
def _between(count: int) -> tuple[int, float]:
    """The rank of the order statistic below the lower end, and the fraction of the way to the next."""
    covers = [1 - 2 * binomial_tail(count - rank + 1, count, 0.5) for rank in range(1, (count + 1) // 2 + 1)]
    rank = max(rank for rank, share in enumerate(covers, start=1) if share >= _CONFIDENCE)
    wide = covers[rank - 1]
    narrow = covers[rank] if rank < len(covers) else 0.0
    excess = (wide - _CONFIDENCE) / (wide - narrow)
    return rank, (count - rank) * excess / (rank + (count - 2 * rank) * excess)


@dataclass(frozen=True, slots=True)
class Resampled:
    """A mean over ``launches`` launches with its bootstrap interval; ``low`` and ``high`` are None for too few."""

    value: float
    low: float | None
    high: float | None
    launches: int


def resampled(numbers: Sequence[float]) -> Resampled:
    """The mean of one number per launch, and its interval. Needs at least two launches.

    Launches are drawn with replacement, each with all its samples: they include the variation within a launch, and
    resampling blocks too would count it twice. The percentiles make the interval of a mean as wide as Student's,
    because plain percentiles are too narrow for few launches. Even so, measured coverage at nominal 95 % is 73 to 76 %
    with 3 launches, 87 to 88 % with 4 and 92 to 95 % from 6 on. Below 6 launches, do not print it as an interval.
    The result is deterministic.
    """
    whole = np.asarray(numbers, dtype=np.float64)
    tail = tail_of(len(whole))
    low, high = np.quantile(whole[_drawn(len(whole))].mean(axis=1), (tail, 1 - tail))
    return Resampled(float(whole.mean()), float(low), float(high), len(whole))


@functools.lru_cache(maxsize=16)
def _drawn(count: int) -> npt.NDArray[np.int64]:
    """The launches of each resample, as indices. Drawn once, because all cases of a report use the same."""
    return np.random.default_rng(0).integers(count, size=(_RESAMPLES, count))


@functools.lru_cache(maxsize=64)
def tail_of(count: int) -> float:
    """The share of resamples to cut off at each end of a bootstrap over ``count`` launches.

    It is less than for plain percentiles, so that the interval of a mean is as wide as Student's (Hesterberg 2015,
    section 4).
    """
    return normal_below(student_quantile((1 - _CONFIDENCE) / 2, count - 1) * math.sqrt(count / (count - 1)))


@functools.lru_cache(maxsize=64)
def tail_of_medians(count: int) -> float:
    """``tail_of`` for statistics of medians over ``count`` launches instead of means.

    Resampled medians of few launches scatter more than means, which replaces Student's correction. Only the smaller
    variance of draws with replacement remains to be corrected (`make bench-fit` prints the coverage).
    """
    return normal_below(normal_quantile((1 - _CONFIDENCE) / 2) * math.sqrt(count / (count - 1)))
