"""Normal, binomial and Student's distributions without scipy, whose import takes longer than all of ``busbw show``."""

import math
from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist
from typing import Final

import numpy as np

_NORMAL: Final = NormalDist()
_STEPS: Final = 401
_HALVINGS: Final = 60


def normal_quantile(probability: float) -> float:
    """The value that a standard normal variable is below with this probability (0 < p < 1)."""
    return _NORMAL.inv_cdf(probability)


def normal_below(value: float) -> float:
    """The probability that a standard normal variable is below ``value``."""
    return math.erfc(-value / math.sqrt(2)) / 2


@lru_cache(maxsize=4096)
def binomial_tail(least: int, count: int, probability: float) -> float:
    """The probability of ``least`` or more successes in ``count`` trials."""
    if least <= 0 or probability >= 1:
        return 1.0
    if least > count or probability <= 0:
        return 0.0
    successes = np.arange(least, count + 1)
    ways = [math.lgamma(count + 1) - math.lgamma(number + 1) - math.lgamma(count - number + 1) for number in successes]
    logs = np.asarray(ways) + successes * math.log(probability) + (count - successes) * math.log1p(-probability)
    return min(1.0, float(np.exp(logs - logs.max()).sum() * math.exp(logs.max())))


@lru_cache(maxsize=4096)
def student_tail(value: float, freedom: int, shift: float = 0.0) -> float:
    """The probability that a (non-central) Student variable is above ``value``.

    It is (Z + ``shift``) / S with Z standard normal and S² a χ² variable over its degrees of freedom, so the
    probability is the mean of Φ(shift − value · S) over S, here by Simpson's rule.
    """
    if not shift:
        return _central_tail(value, freedom)
    spread = 1 / math.sqrt(2 * freedom)
    scales, step = np.linspace(max(1e-9, 1 - 12 * spread), 1 + 14 * spread, _STEPS, retstep=True)
    logs = (freedom - 1) * np.log(scales) - freedom * scales**2 / 2
    logs += math.log(2) + freedom / 2 * math.log(freedom / 2) - math.lgamma(freedom / 2)
    above = np.asarray([normal_below(shift - value * scale) for scale in scales.tolist()])
    weights = np.full(_STEPS, 2.0)
    weights[1::2], weights[0], weights[-1] = 4.0, 1.0, 1.0
    return min(1.0, float((np.exp(logs) * above * weights).sum() * float(step) / 3))


def _central_tail(value: float, freedom: int) -> float:
    """The finite series for whole degrees of freedom (Abramowitz & Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(value / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    numbers = np.arange(3 if freedom % 2 else 2, freedom, 2)
    terms = np.multiply.accumulate(np.append(cosine if freedom % 2 else 1.0, cosine**2 * (numbers - 1) / numbers))
    total = float(np.add.accumulate(terms)[-1])
    within = 2 / math.pi * (angle + sine * total * (freedom > 1)) if freedom % 2 else sine * total
    return (1 - within) / 2


@lru_cache(maxsize=4096)
def student_quantile(probability: float, freedom: int) -> float:
    """The value that Student's variable is below with this probability (0 < p < 1)."""
    tail, most = min(probability, 1 - probability), 2.0
    while _central_tail(most, freedom) > tail:
        most *= 2
    value = root(lambda value: _central_tail(value, freedom) - tail, 0.0, most)
    return value if probability > 1 / 2 else -value


def root(function: Callable[[float], float], low: float, high: float) -> float:
    """A root of ``function`` between ``low`` and ``high``, where its signs differ, by bisection."""
    rising = function(high) > 0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if (function(middle) > 0) == rising else (middle, high)
    return (low + high) / 2
