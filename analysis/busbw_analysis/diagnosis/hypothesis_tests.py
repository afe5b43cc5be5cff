"""Two sides compared, each consisting of launches: the estimate, the exact test and the verdict.

A side maps every launch to one number, so samples cannot be pooled by mistake. Sources: rank-sum and signed-rank test
with their estimates and intervals, Hollander, Wolfe & Chicken 2014 (sections 4.1 to 4.3, 3.1 to 3.3); multiple tests,
Holm 1979.
"""

import functools
import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np

from busbw.errors import AnalysisError
from busbw_analysis.data.distributions import normal_below, root, student_quantile, student_tail
from busbw_analysis.data.intervals import Floats

LaunchKey: TypeAlias = tuple[str, int]
"""One launch: id of the run and number within the run."""

Launches: TypeAlias = Mapping[LaunchKey, float]
"""One number per launch of a side, for example the median time of a case."""

Pairs: TypeAlias = Sequence[tuple[LaunchKey, LaunchKey]]
"""Neighbouring launches, one of each side."""

Label = Literal["faster", "slower", "equal", "cannot tell"]

CONFIDENCE = 0.95
_LEVEL: Final = 1 - CONFIDENCE
"""Level of the two-sided tests, unless a caller has another."""
LAUNCHES_FOR_A_TEST = 4
"""With 3 launches per side, the smallest p of any exact test on launches is 0.1."""

POWER = 0.8
"""The probability with which the recommended number of launches is enough."""

MOST_DIFFERENCE: Final = 10.0
"""Launches that detect only larger differences (a share) tell nothing."""

_EFFICIENCY = 3 / math.pi
"""Efficiency of a rank test relative to the t test on normal samples (Pitman); higher for heavier tails."""

_MOST_LAUNCHES = 1000
_LEAST_SCATTER = 1e-6
_EXACT = 60
"""Above this number of launches on a side, the null distribution of the rank sum is approximated as normal."""

_COARSE = 12
"""Up to this number of launches per side, the discreteness of the exact test's p matters."""

_ROUNDING = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class Estimate:
    """B over A.

    ratio: Hodges-Lehmann estimate on logarithms.
    low, high: exact 95 % interval; None if there are too few launches.
    p_value: of the hypothesis that there is no difference; None if there are too few launches.
    launches: number of launches of A and of B.
    scatter: standard deviation of the logarithm between launches of a side (``paired``: of half of a pair's difference,
        which is comparable); None if no side has two.
    """

    ratio: float
    low: float | None
    high: float | None
    p_value: float | None
    launches: tuple[int, int]
    scatter: float | None
    paired: bool


@dataclass(frozen=True, slots=True)
class Needed:
    """A number of launches per side (paired: of pairs), and what it achieves with probability ``POWER``.

    detects: a true difference of this share (B takes 1 + share times as long as A, or the reverse) is detected; None:
        the sides are called equal.
    """

    launches: int
    detects: float | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one comparison.

    adjusted_p: p-value, adjusted for all tests of the family.
    needed: launches that would decide; only with ``cannot tell``. None also if one launch per side shows no scatter, or
        if 1000 launches would not do.
    fewest: fewest launches per side (paired: pairs) with which any difference could be detected; None if there are that
        many.
    detectable: the smallest difference (a share) that these launches detect with probability ``POWER``; only with
        ``cannot tell``. None if there are fewer than ``fewest``.
    """

    word: Label
    adjusted_p: float | None
    needed: Needed | None
    fewest: int | None = None
    detectable: float | None = None


def estimate(first: Launches, second: Launches, pairs: Pairs | None = None) -> Estimate:
    """The ratio of ``second`` to ``first``: by the rank-sum test, or with ``pairs`` by the signed-rank test.

    The sides must not share a launch. Pairs that lack a launch are left out. Raises AnalysisError if a side is empty,
    or a value is not positive and finite.
    """
    for side in (first, second):
        if not side or not all(math.isfinite(value) and value > 0 for value in side.values()):
            raise AnalysisError(
                f"a side has the values {list(side.values())[:5]}; expected one positive, finite number per launch"
            )
    if pairs is None:
        logs_a, logs_b = (np.log(list(side.values())) for side in (first, second))
        points = np.sort((logs_b[:, np.newaxis] - logs_a).ravel())
        return _estimate(points, (len(logs_a), len(logs_b)), _scatter(logs_a, logs_b), paired=False)
    whole = [(first[left], second[right]) for left, right in pairs if left in first and right in second]
    if not whole:
        raise AnalysisError("no pair of launches has a value on both sides; at least one is needed")
    steps = np.log([value_b / value_a for value_a, value_b in whole])
    rows, columns = np.triu_indices(len(steps))
    points = np.sort((steps[rows] + steps[columns]) / 2)
    scatter = float(steps.std(ddof=1)) / math.sqrt(2) if len(steps) > 1 else None
    return _estimate(points, (len(steps), len(steps)), scatter, paired=True)


def adjusted(estimates: Sequence[Estimate]) -> tuple[float | None, ...]:
    """The p-value of each estimate, adjusted by Holm: they bound the probability of any false alarm, whatever the
    dependence of the tests. None for those without a p-value, which are not part of the family.
    """
    return holm([row.p_value for row in estimates])


def holm(p_values_of_family: Sequence[float | None]) -> tuple[float | None, ...]:
    """``adjusted`` for p-values."""
    family = sorted((p_value, place) for place, p_value in enumerate(p_values_of_family) if p_value is not None)
    p_values: list[float | None] = [None] * len(p_values_of_family)
    worst = 0.0
    for rank, (p_value, place) in enumerate(family):
        worst = max(worst, min(1.0, (len(family) - rank) * p_value))
        p_values[place] = worst
    return tuple(p_values)


def verdicts(estimates: Sequence[Estimate], within: float) -> tuple[Verdict, ...]:
    """One verdict for each of ``estimates``, which are one family of tests.

    ``equal``: the interval lies within 1 ± ``within``, even if a smaller difference is significant. Otherwise
    ``faster`` or ``slower`` if the adjusted p-value is at most 5 %, else ``cannot tell``. Estimates of too few launches
    are not part of the family; recommended numbers of launches are for all of them as one family.
    """
    p_values = adjusted(estimates)
    tested = len(estimates) - p_values.count(None)
    return tuple(
        _verdict(estimated, p_value, within, tested, len(estimates))
        for estimated, p_value in zip(estimates, p_values, strict=True)
    )


def _verdict(estimated: Estimate, p_value: float | None, within: float, tested: int, tests: int) -> Verdict:
    """The verdict on one of ``tests``, of which ``tested`` have a p-value; ``p_value`` is adjusted by Holm."""
    decidable = estimated.p_value is not None and can_tell(estimated.launches, tested, paired=estimated.paired)
    fewest = None if decidable else fewest_launches(tests, paired=estimated.paired)
    low, high = estimated.low, estimated.high
    if low is not None and high is not None and 1 - within <= low and high <= 1 + within:
        return Verdict("equal", p_value, None, fewest)
    if p_value is not None and p_value <= (1 - CONFIDENCE) * _ROUNDING:
        return Verdict("slower" if estimated.ratio > 1 else "faster", p_value, None, fewest)
    detectable = None
    if decidable and estimated.scatter is not None:
        detectable = smallest_difference(estimated.scatter, min(estimated.launches), tested, paired=estimated.paired)
    return Verdict("cannot tell", p_value, _needed(estimated, within, tests), fewest, detectable)


def launches_needed(
    scatter: float, within: float, tests: int = 1, *, paired: bool = False, level: float = _LEVEL
) -> int | None:
    """Launches per side with which a verdict is reached with probability ``POWER``; None for more than 1000.

    This holds if the sides are equal (the interval must lie within 1 ± ``within``) and if they differ by ``within`` (as
    the first of ``tests`` in Holm's order, the hardest place). ``scatter`` as in ``Estimate``; ``within`` is above 0;
    ``level`` is that of the two-sided tests.

    Computed from the noncentral t distribution and the efficiency of a rank test on normal values.
    """
    margin = math.log1p(within)

    def enough(count: int) -> bool:
        size = _Size(count, scatter, tests, paired, level)
        return min(size.finds(margin), size.confirms(0.0, margin)) >= POWER

    return _first(enough, fewest_launches(tests, paired=paired, level=level))


def smallest_difference(
    scatter: float, launches: int, tests: int = 1, *, paired: bool = False, level: float = _LEVEL
) -> float:
    """The smallest difference (a share) between two sides that a test detects with probability ``POWER``.

    scatter: as in ``Estimate``.
    launches: of each side (``paired``: pairs), at least ``fewest_launches``.
    tests: the difference is detected as the first of so many in Holm's order.
    level: of the two-sided tests.
    """
    error = _Size(launches, scatter, tests, paired, level).error
    return math.expm1(_detected_errors(launches, tests, paired, level) * error)


@functools.lru_cache(maxsize=1024)
def _detected_errors(launches: int, tests: int, paired: bool, level: float) -> float:  # noqa: FBT001 - a key of the cache
    """The difference in standard errors that is detected with probability ``POWER``."""
    size, most = _Size(launches, 1.0, tests, paired, level), 1.0
    while size.finds(most * size.error) < POWER:
        most *= 2
    return root(lambda steps: size.finds(steps * size.error) - POWER, 0.0, most)


def shown_from(*differences: float) -> str:
    """What launches detect: differences (shares) from these on, or nothing beyond ``MOST_DIFFERENCE``."""
    least, most = min(differences), max(differences)
    if least > MOST_DIFFERENCE:
        return "can tell nothing, because they differ too much"
    return f"would show changes of {' to '.join(dict.fromkeys(map(percent, (least, most))))} or more"


def scatter_in_words(share: float) -> str:
    """Scatter of times, the exponential of a standard deviation of logarithms less 1: above 1, a factor."""
    return f"± {percent(share)}" if share <= 1 else f"a factor of {1 + share:,.2g}"


def percent(share: float) -> str:
    """A difference as a percentage with two digits; of more than ``MOST_DIFFERENCE`` only that it is."""
    if share > MOST_DIFFERENCE:
        return f"more than {100 * MOST_DIFFERENCE:,.0f} %"
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def _needed(estimated: Estimate, within: float, tests: int) -> Needed | None:
    """As ``launches_needed``. If there are that many already: the launches that would detect the observed ratio, or
    show that it lies within 1 ± ``within``, whichever needs fewer.
    """
    have, scatter = min(estimated.launches), estimated.scatter
    if scatter is None:
        return None
    needed = launches_needed(scatter, within, tests, paired=estimated.paired) if within > 0 else 0
    if needed is None:
        return None
    if needed > have:
        return Needed(needed, within)
    seen, margin = abs(math.log(estimated.ratio)), math.log1p(within)

    def enough(count: int) -> bool:
        size = _Size(count, scatter, tests, estimated.paired)
        return max(size.finds(seen), size.confirms(seen, margin)) >= POWER

    count = _first(enough, max(have + 1, fewest_launches(tests, paired=estimated.paired)))
    if count is None:
        return None
    finds = _Size(count, scatter, tests, estimated.paired).finds(seen) >= POWER
    return Needed(count, math.expm1(seen) if finds else None)


def _first(enough: Callable[[int], bool], fewest: int) -> int | None:
    """The smallest number from ``fewest`` on that is enough; None if even the largest is not."""
    if not enough(_MOST_LAUNCHES):
        return None
    return fewest + bisect_left(range(fewest, _MOST_LAUNCHES), True, key=enough)


def can_tell(launches: tuple[int, int], tests: int, *, paired: bool, level: float = _LEVEL) -> bool:
    """Whether so many launches of A and of B (``paired``: pairs) can detect a difference as the first of ``tests`` in
    Holm's order.
    """
    count_a, count_b = launches
    least_p = 2 * (0.5 ** min(count_a, count_b) if paired else 1 / math.comb(count_a + count_b, count_a))
    return least_p * tests <= level * _ROUNDING


def fewest_launches(tests: int, *, paired: bool, level: float = _LEVEL) -> int:
    """The fewest launches per side with which the test can reach ``level`` in the hardest place of Holm's order."""
    count = LAUNCHES_FOR_A_TEST
    while not can_tell((count, count), tests, paired=paired, level=level):
        count += 1
    return count


@dataclass(frozen=True, slots=True)
class _Size:
    """The power of a comparison with ``count`` launches per side, given their scatter."""

    count: int
    scatter: float
    tests: int
    paired: bool
    level: float = _LEVEL

    @property
    def error(self) -> float:
        """The standard error of the logarithm of the ratio."""
        return max(self.scatter, _LEAST_SCATTER) * math.sqrt(2 / (self.count * _EFFICIENCY))

    @property
    def freedom(self) -> int:
        """Degrees of freedom of that error."""
        return self.count - 1 if self.paired else 2 * self.count - 2

    def attained(self, alpha: float) -> float:
        """The actual false alarm rate of an exact test at ``alpha``, which is coarse for few launches."""
        if self.count > _COARSE:
            return alpha
        below = 2 * np.cumsum(_null((self.count, self.count), paired=self.paired))
        return float(below[below <= alpha * _ROUNDING].max(initial=_LEAST_SCATTER))

    def finds(self, difference: float) -> float:
        """The probability that a true ``difference`` (a logarithm) is detected."""
        critical = student_quantile(1 - self.attained(self.level / self.tests) / 2, self.freedom)
        return student_tail(critical, self.freedom, difference / self.error)

    def confirms(self, difference: float, margin: float) -> float:
        """The probability that the interval lies within ± ``margin`` if the truth is ``difference``."""
        critical = student_quantile(1 - self.attained(1 - CONFIDENCE) / 2, self.freedom)
        ends = [(margin + sign * difference) / self.error - critical for sign in (-1, 1)]
        return max(0.0, sum(map(normal_below, ends)) - 1)


def _scatter(logs_a: Floats, logs_b: Floats) -> float | None:
    freedom = len(logs_a) + len(logs_b) - 2
    if freedom < 1:
        return None
    return math.sqrt(float(((logs_a - logs_a.mean()) ** 2).sum() + ((logs_b - logs_b.mean()) ** 2).sum()) / freedom)


def _estimate(points: Floats, launches: tuple[int, int], scatter: float | None, *, paired: bool) -> Estimate:
    """Estimate, interval and p-value.

    points: sorted; differences of all pairs across the sides, or means of all pairs of steps.

    Test and interval use the same null distribution, so they never contradict each other. Ties count as no difference.
    """
    ratio = math.exp(float(np.median(points)))
    if min(launches) < LAUNCHES_FOR_A_TEST:
        return Estimate(ratio, None, None, None, launches, scatter, paired)
    below = np.cumsum(_null(launches, paired=paired))
    rest = len(points) - max(int((points > 0).sum()), int((points < 0).sum()))
    p_value = min(1.0, 2 * float(below[rest]))
    cut = int(np.searchsorted(below, (1 - CONFIDENCE) / 2 * _ROUNDING, side="right"))
    low, high = (None, None) if cut == 0 else (math.exp(points[cut - 1]), math.exp(points[len(points) - cut]))
    return Estimate(ratio, low, high, p_value, launches, scatter, paired)


def _null(launches: tuple[int, int], *, paired: bool) -> Floats:
    """The probability of each value of the statistic if there is no difference."""
    return _signed_rank(launches[0]) if paired else _rank_sum(*launches)


@functools.lru_cache(maxsize=256)
def _rank_sum(size_a: int, size_b: int) -> Floats:
    """The probability that u of ``size_a`` · ``size_b`` pairs have the second above the first; u = 0 …, equal sides.

    Mann & Whitney 1947: the largest of all values is on either side in proportion to their numbers. With more than 60
    launches on a side it is normal to 4 digits, and the exact computation would take seconds.
    """
    if max(size_a, size_b) > _EXACT:
        middle, spread = size_a * size_b / 2, math.sqrt(size_a * size_b * (size_a + size_b + 1) / 12)
        return np.diff([normal_below((rank - 0.5 - middle) / spread) for rank in range(size_a * size_b + 2)])
    rows = [np.ones(1) for _ in range(size_b + 1)]
    for first in range(1, size_a + 1):
        new = [np.ones(1)]
        for second in range(1, size_b + 1):
            chances = np.zeros(first * second + 1)
            # The largest value is on the first side, and no second value is above it; or it is on the second side.
            chances[: (first - 1) * second + 1] += rows[second] * first / (first + second)
            chances[first:] += new[second - 1] * second / (first + second)
            new.append(chances)
        rows = new
    return rows[size_b]


@functools.lru_cache(maxsize=256)
def _signed_rank(count: int) -> Floats:
    """The probability of each sum of the ranks of the positive ones among ``count`` values with random signs."""
    chances = np.ones(1)
    for rank in range(1, count + 1):
        chances = (np.append(chances, np.zeros(rank)) + np.append(np.zeros(rank), chances)) / 2
    return chances
