"""The tests behind a gate, one for each number that a rule limits: what was measured, and what it could have shown.

All tests of a gate are one family: Holm's correction bounds the probability that a healthy machine fails any of its
rules by ``ERROR_RATE``, whatever the number of rules and cases and however they depend on each other.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Final, Literal, Protocol

import numpy as np

from busbw.units import counted
from busbw_analysis.data.distributions import (
    binomial_tail,
    normal_below,
    normal_quantile,
    root,
    student_quantile,
    student_tail,
)
from busbw_analysis.data.intervals import interval_of
from busbw_analysis.diagnosis.hypothesis_tests import (
    CONFIDENCE,
    POWER,
    Estimate,
    Launches,
    adjusted,
    can_tell,
    estimate,
    fewest_launches,
    launches_needed,
    smallest_difference,
)

State = Literal["pass", "fail", "cannot tell"]
Doubt = Literal["too few launches", "disturbed", "too much scatter", "not significant", "runs differ"]
"""Why a test cannot tell. ``too much scatter``: a slowdown that must be seen could not have been; ``not significant``:
the value is beyond its limit, but by less than launches scatter; ``disturbed``: other programs took CPU time from its
only launch. ``runs differ``: those of the baseline do, by more
than their launches.
"""

ERROR_RATE: Final = 0.001
"""The probability that a healthy machine fails a gate."""
TWO_SIDED: Final = 2 * ERROR_RATE
"""The level of two-sided tests whose upper side has ``ERROR_RATE``: being faster fails no gate."""
MOST_LAUNCHES: Final = 1000
"""More launches than that are not recommended to anybody."""

LAUNCH_SCATTER: Final = 0.35
"""Standard deviation of the logarithm of a time between launches that too few launches are assumed to have at most.

Launches of one machine seldom differ by a factor of 1.5, which is 1.2 of these. Where other programs take CPU time,
they do (single launches took 10 times as long), and nothing is assumed.
"""
LEAST_SCATTER: Final = 0.005
"""No scatter is taken to be smaller: few launches can agree by chance, and clocks are coarse."""

FEWEST_RUNS: Final = 3
"""Fewer runs do not show how much runs scatter."""
ENOUGH_RUNS: Final = 10
"""So many show it well enough to be believed, even if no two of them differ significantly."""


class Test(Protocol):
    """The test of one number.

    A ``share`` below is an increase of the number (of a rate: of its time) by this fraction.
    """

    @property
    def subject(self) -> str:
        """The case or band of sizes."""

    @property
    def value(self) -> float:
        """What was measured, in the unit of the metric."""

    @property
    def ends(self) -> tuple[float, float] | None:
        """The 95 % interval of the value."""

    @property
    def launches(self) -> tuple[int, ...]:
        """The number of launches; with a baseline, those of the baseline first."""

    @property
    def p_value(self) -> float | None:
        """Of the hypothesis that the true value keeps the limit; None: a count, which is exact."""

    @property
    def excess(self) -> float:
        """How far the value is beyond its limit, as the logarithm of a ratio; negative if it keeps the limit."""

    def state(self, adjusted: float | None, tests: int, detect: float | None) -> State:
        """The verdict by the p-value ``adjusted`` for a family of so many ``tests``.

        detect: a slowdown of this share must have been detectable; None: any.
        """

    def doubt(self, tests: int) -> Doubt:
        """Why the state is ``cannot tell``, if it is."""

    def smallest(self, tests: int) -> float | None:
        """The smallest share that would have failed with probability ``POWER``; None: no share would."""

    def needed(self, tests: int, detect: float | None) -> int | None:
        """The launches that would decide; None: more than ``MOST_LAUNCHES``, or launches do not help."""


@dataclass(frozen=True, slots=True)
class LimitTest:
    """One number per launch against a fixed limit.

    The true value is the median over launches. Two tests of the logarithms share the error rate: Student's, with the
    scatter that the launches show, and one with the scatter ``assumed``, or what was seen if that is more. The second
    needs a single launch, but sees only gross differences. Neither holds for launches in two modes or far from normal;
    therefore a failure also needs the sign test, which holds for all of them, as far as so few launches can reach it:
    10 launches and fewer must all be beyond the limit.

    values: one per launch, positive, in the unit of the metric.
    assumed: standard deviation of their logarithm; None: nothing can be assumed, so that a single launch cannot fail.
    worse: 1 if values above the limit are bad, −1 if those below are.
    """

    subject: str
    values: tuple[float, ...]
    limit: float
    worse: Literal[-1, 1]
    assumed: float | None = LAUNCH_SCATTER

    @property
    def value(self) -> float:
        """The median over launches."""
        return float(np.median(self.values))

    @property
    def launches(self) -> tuple[int, ...]:
        """The number of launches."""
        return (len(self.values),)

    @property
    def scatter(self) -> float | None:
        """Standard deviation of the logarithm between launches; None for a single launch."""
        if len(self.values) < 2:
            return None
        return max(float(np.log(self.values).std(ddof=1)), LEAST_SCATTER)

    @property
    def ends(self) -> tuple[float, float] | None:
        """The interval of the median; of fewer than 6 launches the range."""
        interval = interval_of(self.values)
        return None if interval.low_ns is None or interval.high_ns is None else (interval.low_ns, interval.high_ns)

    @property
    def excess(self) -> float:
        """The logarithm of the value over its limit, positive if beyond."""
        return self.worse * math.log(self.value / self.limit)

    @property
    def clear(self) -> bool:
        """Whether so many launches are beyond the limit that the sign test is significant, or all are."""
        beyond = sum(self.worse * (value - self.limit) > 0 for value in self.values)
        count = len(self.values)
        return beyond == count or binomial_tail(beyond, count, 0.5) <= ERROR_RATE

    @property
    def p_value(self) -> float:
        """Twice the smaller p-value of the two tests."""
        count, scatter, p_values = len(self.values), self.scatter, [1.0]
        excess = self.worse * float(np.log(self.values).mean() - math.log(self.limit))
        if self.assumed is not None:
            widest = max(self.assumed, scatter or 0.0)
            p_values.append(1 - normal_below(excess / widest * math.sqrt(count)))
        if scatter is not None:
            p_values.append(student_tail(excess / scatter * math.sqrt(count), count - 1))
        return min(1.0, 2 * min(p_values))

    def state(self, adjusted: float | None, tests: int, detect: float | None) -> State:
        """``fail`` if the value is beyond the limit by more than scatter; ``cannot tell`` if it is beyond by less."""
        if adjusted is not None and adjusted <= ERROR_RATE and self.clear:
            return "fail"
        smallest = self.smallest(tests)
        blind = smallest == math.inf or (detect is not None and smallest > detect)
        return "cannot tell" if self.excess > 0 or blind else "pass"

    def doubt(self, tests: int) -> Doubt:
        """Whether these launches can fail at all, and whether the value keeps its limit."""
        if self.smallest(tests) == math.inf:
            return "disturbed" if len(self.values) == 1 and self.assumed is None else "too few launches"
        return "not significant" if self.excess > 0 else "too much scatter"

    def smallest(self, tests: int) -> float:
        """The distance to the limit, and what the tests need beyond it; infinite if no number is so large."""
        beyond = _margin(len(self.values), self.scatter, self.assumed, tests)
        try:
            return math.expm1(max(0.0, beyond - self.excess))
        except OverflowError:
            return math.inf

    def needed(self, tests: int, detect: float | None) -> int | None:
        """The launches that would show that the value is beyond its limit, or that ``detect`` would be."""
        room = self.excess
        if room <= 0:
            room = math.inf if detect is None else room + math.log1p(detect)
        scatter = LAUNCH_SCATTER if self.scatter is None else self.scatter
        if room <= 0:
            return None
        fewest = len(self.values) + 1
        if fewest > MOST_LAUNCHES or _margin(MOST_LAUNCHES, scatter, self.assumed, tests) > room:
            return None
        return fewest + bisect_left(
            range(fewest, MOST_LAUNCHES), True, key=lambda count: _margin(count, scatter, self.assumed, tests) <= room
        )


def _margin(count: int, scatter: float | None, assumed: float | None, tests: int) -> float:
    """How far (a logarithm) a true value must be beyond its limit to fail with probability ``POWER``, as the first of
    ``tests`` in Holm's order.
    """
    margins = [math.inf]
    if assumed is not None:
        widest = max(assumed, scatter or 0.0)
        margins.append((normal_quantile(1 - ERROR_RATE / 2 / tests) + normal_quantile(POWER)) * widest)
    if scatter is not None:
        margins.append(_student_margin(count, tests) * scatter)
    return min(margins) / math.sqrt(count)


@lru_cache(maxsize=4096)
def _student_margin(count: int, tests: int) -> float:
    """``_margin`` of Student's test in standard errors."""
    critical = student_quantile(1 - ERROR_RATE / 2 / tests, count - 1)
    most = 2 * critical + 10.0
    return root(lambda shift: student_tail(critical, count - 1, shift) - POWER, 0.0, most)


@lru_cache(maxsize=1024)
def bound(runs: int, share: float) -> float:
    """How many standard deviations (of ``runs`` runs) above their mean a limit is that the next run exceeds with
    probability ``share``, and that at most this share of all runs exceeds with 95 % confidence, whichever is farther;
    their logarithms are taken as normal. Infinite for fewer than ``FEWEST_RUNS``.

    Source: Hahn & Meeker 1991, sections 4.7 and 4.6.
    """
    if runs < FEWEST_RUNS:
        return math.inf
    freedom = runs - 1
    next_run = student_quantile(1 - share, freedom) * math.sqrt(1 + 1 / runs)
    shift = normal_quantile(1 - share) * math.sqrt(runs)
    tolerance = root(
        lambda value: student_tail(value * math.sqrt(runs), freedom, shift) - (1 - CONFIDENCE), 0.0, 10 * next_run
    )
    return max(next_run, tolerance)


@dataclass(frozen=True, slots=True)
class BaselineTest:
    """A band of sizes against a baseline: the exact rank-sum test on launches.

    A difference that is shown to be smaller than the tolerance does not fail, however significant it is. If the runs of
    the baseline differ from each other by more than their launches, launches do not stand for runs: then, and with
    ``ENOUGH_RUNS`` always, a failure must also be beyond what the next run of the baseline would be (``bound``).

    limit: the ratio of times, above 1, up to which a band is not called slower.
    runs, run_scatter: number of runs of the baseline, and their scatter as of ``scatter_between``.
    """

    subject: str
    estimate: Estimate
    limit: float
    runs: int = 1
    run_scatter: float = 0.0

    @property
    def value(self) -> float:
        """The ratio of times, as estimated."""
        return self.estimate.ratio

    @property
    def ends(self) -> tuple[float, float] | None:
        """Its exact interval."""
        low, high = self.estimate.low, self.estimate.high
        return None if low is None or high is None else (low, high)

    @property
    def launches(self) -> tuple[int, ...]:
        """Of the baseline, and of the run."""
        return self.estimate.launches

    @property
    def p_value(self) -> float:
        """Of the hypothesis that the run is not slower."""
        two_sided = self.estimate.p_value
        return 1.0 if two_sided is None or self.value <= 1 else two_sided / 2

    @property
    def excess(self) -> float:
        """The logarithm of the ratio over its limit."""
        return math.log(self.value / self.limit)

    def decidable(self, tests: int) -> bool:
        """Whether so many launches can fail at all."""
        estimate = self.estimate
        return estimate.p_value is not None and can_tell(estimate.launches, tests, paired=False, level=TWO_SIDED)

    def state(self, adjusted: float | None, tests: int, detect: float | None) -> State:
        """``fail`` if the band is slower, and not shown to be within the limit; ``cannot tell`` if a slowdown of
        ``detect`` could not have been seen.
        """
        ends = self.ends
        if not self.decidable(tests) or ends is None:
            return "cannot tell"
        margin = self.margin(tests)
        if adjusted is not None and adjusted <= ERROR_RATE and ends[1] > self.limit and math.log(self.value) > margin:
            return "fail"
        if margin == math.inf or (detect is not None and margin > math.log1p(detect)):
            return "cannot tell"
        if detect is None or ends[1] <= 1 + detect:
            return "pass"
        smallest = self.smallest(tests)
        sees = smallest is not None and smallest <= detect and self.value < 1 + detect
        return "pass" if sees else "cannot tell"

    def margin(self, tests: int) -> float:
        """How far (a logarithm) above the baseline its next run may be."""
        return bound(self.runs, ERROR_RATE / tests) * self.run_scatter if self.run_scatter else 0.0

    def doubt(self, tests: int) -> Doubt:
        """Whether so many launches could ever fail, and whether they stand for runs."""
        if not self.decidable(tests):
            return "too few launches"
        return "runs differ" if math.expm1(self.margin(tests)) > self._by_launches(tests) else "too much scatter"

    def _by_launches(self, tests: int) -> float:
        """The smallest share that launches alone would show; there are enough of them."""
        launches, scatter = min(self.launches), self.estimate.scatter or LEAST_SCATTER
        return smallest_difference(scatter, launches, tests, level=TWO_SIDED)

    def smallest(self, tests: int) -> float | None:
        """At least the tolerance."""
        if not self.decidable(tests):
            return None
        return max(self._by_launches(tests), self.limit - 1, math.expm1(self.margin(tests)))

    def needed(self, tests: int, detect: float | None) -> int | None:
        """The launches of each side that can fail, and that would show ``detect``."""
        if self.doubt(tests) == "runs differ":
            return None
        fewest, estimate = fewest_launches(tests, paired=False, level=TWO_SIDED), self.estimate
        if estimate.scatter is None or detect is None:
            return fewest
        count = launches_needed(estimate.scatter, detect, tests, level=TWO_SIDED)
        enough = count is not None and count <= min(estimate.launches)  # for ``detect``, not for what was seen
        return None if enough else count


def scatter_between(runs: Sequence[Launches]) -> float:
    """The standard deviation between runs of the logarithm of their median. Each run has one number per launch.

    0 for fewer than ``ENOUGH_RUNS`` of which no two differ by the exact test on launches at 5 %: a standard deviation
    of few runs is too uncertain to be used without need.
    """
    if len(runs) < ENOUGH_RUNS:
        pairs = [estimate(first, second) for first, second in combinations(runs, 2)]
        if not any(p_value is not None and p_value <= 1 - CONFIDENCE for p_value in adjusted(pairs)):
            return 0.0
    medians = [math.log(float(np.median(list(launches.values())))) for launches in runs]
    return max(float(np.std(medians, ddof=1)), LEAST_SCATTER)


@dataclass(frozen=True, slots=True)
class CountTest:
    """A number of cases, counters or devices, which is known exactly.

    names: what is counted; of devices, hosts with too few.
    looked_at: how many could have been; None: any number.
    what: what is counted, as a singular noun.
    fewest: devices of the host with the fewest, which must not be below the limit; None: a number of ``names``, which
        must not exceed it.
    """

    names: tuple[str, ...]
    looked_at: int | None
    limit: float
    what: str = "case"
    fewest: int | None = None

    @property
    def subject(self) -> str:
        """The first that is counted."""
        return self.names[0] if self.names else ""

    @property
    def value(self) -> int:
        """How many are counted."""
        return len(self.names) if self.fewest is None else self.fewest

    @property
    def amount(self) -> str:
        """The value in words."""
        if self.looked_at is None:
            return counted(self.value, self.what)
        return f"{self.value} of {counted(self.looked_at, self.what)}"

    @property
    def ends(self) -> None:
        """A count has no interval."""
        return

    @property
    def launches(self) -> tuple[int, ...]:
        """A count does not depend on launches."""
        return ()

    @property
    def p_value(self) -> None:
        """A count is not part of the family."""
        return

    @property
    def excess(self) -> float:
        """The difference to the limit: the more, the worse."""
        return self.value - self.limit if self.fewest is None else self.limit - self.fewest

    def doubt(self, tests: int) -> Doubt:  # noqa: ARG002
        """Raises ValueError: a count is never in doubt."""
        raise ValueError("a count passes or fails")

    def state(self, adjusted: float | None, tests: int, detect: float | None) -> State:  # noqa: ARG002 - as of all tests
        """Whether the limit is exceeded."""
        return "fail" if self.excess > 0 else "pass"

    def smallest(self, tests: int) -> None:  # noqa: ARG002
        """A count sees no slowdown."""
        return

    def needed(self, tests: int, detect: float | None) -> None:  # noqa: ARG002
        """A count is decided."""
        return
