"""The plateaus of a rate over its working set: where one memory ends and the next begins, from the data alone.

A call takes its start, c, which is the same for every size, and W / B(W), moving the working set W at the rate B of the
memory that holds it: T = c + W / B where one waits for the other, or about the longer of the two. ln B is a row of
levels with ramps between them: constant on a plateau and a straight line over the logarithm of the working set from one
plateau to the next, because a cache does not end at one size. On a GPU the start alone would make most of a sweep a
ramp, and the caches behind it would drown; so c is found along with the levels, and sizes that it hides are on none.

The number of plateaus is that of the least error when each plateau is charged for its three numbers (level and both
ends), each ramp and a start for one, as the Bayesian information criterion has it for errors that are exponential on
both sides (Schwarz 1978). Over known curves that was right more often than the one-standard-error rule on left-out
sizes (94 against 87 %): a plateau of three or four sizes does not survive the loss of one.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from busbw.units import about_size
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.groups import IntervalKind, interval_of
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.divisions import LEAST_ON_A_PLATEAU, LEAST_STEP, Division, Search, Sweep
from busbw_analysis.fitting.segments import Floats

LEAST_SIZES = 6
"""Fewer cannot show two plateaus."""
OCTAVES_OF_THE_OUTERMOST = 2.0
"""So long must the last plateau be for the outermost memory to be called reached."""
LEAST_OF_THE_OUTERMOST = 64 << 20
"""So large (bytes) must the last working set be for that: a curve that is flat inside a cache looks no different."""
TIMES_THE_CACHES = 4
"""And so many times what the last-level caches hold, where that was told: no more than a quarter is in them then. It is
what STREAM asks of an array (McCalpin 1995)."""

_LEAST_NOISE = 0.002
_POWERS = (1.0, 3.0)
"""How the start of a call and the work of the memory may make up its time: one after the other, or side by side."""
_NO_START = 0.95
"""Share of the memory at the smallest size from which on no start of a call is looked for: levels differ by more."""
_SAME_START = 0.03
"""Two starts of a call that differ by less are tried as one."""
_MEDIAN_DEVIATION = 0.6745
"""Median absolute deviation of a normal distribution over its standard deviation."""

End = Literal["flat", "falls", "rises", "short", "small"]


@dataclass(frozen=True, slots=True)
class Plateau:
    """A rate (B/s) that holds for the working sets from ``first_bytes`` to ``last_bytes``, ``sizes`` of which were
    measured, without the time that a call takes to start. ``low`` and ``high`` are the ends of what ``kind`` says, over
    launches; None for a single launch.
    """

    first_bytes: int
    last_bytes: int
    sizes: int
    rate: float
    low: float | None
    high: float | None
    kind: IntervalKind

    @property
    def octaves(self) -> float:
        """How many times the working set doubles on it."""
        return float(np.log2(self.last_bytes / self.first_bytes))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A number of plateaus that was tried: the mean error of ln(time), and the ``score``, in which plateaus and ramps
    are charged for their numbers; the least one is chosen.
    """

    plateaus: int
    error: float
    score: float


@dataclass(frozen=True, slots=True)
class Plateaus:
    """The plateaus of one curve by growing working set. ``end`` is how the sweep ends: on a plateau that is long enough
    (``flat``) or not (``short``), on one of sizes that caches have, too (``small``), or on the way to another level
    (``falls``, ``rises``). ``start_bytes`` is the first working set on a plateau; ``call_bytes`` is what the memory of
    the first plateau moves while a call starts, a time that no plateau has in it. ``faster_before``: smaller working
    sets, two or more in a row, were measured to be faster than the first plateau. ``noise`` is the standard deviation
    of ln(time) that the search reckoned with. ``caches_bytes`` is what the last-level caches hold for a rank, as the
    system states it (None: it does not); no plateau is found by it.
    """

    plateaus: tuple[Plateau, ...]
    start_bytes: int
    call_bytes: float
    faster_before: bool
    end: End
    noise: float
    candidates: tuple[Candidate, ...]
    caches_bytes: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """``plateau 1 (up to 32 KiB)``: what the data say, and no name of a cache."""
        last = len(self.plateaus) - 1
        return tuple(
            f"plateau {number + 1} ({f'from {about_size(one.first_bytes)}' if number == last else ''}"
            f"{'' if number == last else f'up to {about_size(one.last_bytes)}'})"
            for number, one in enumerate(self.plateaus)
        )

    @property
    def outermost(self) -> str:
        """What may be said of the last plateau: whether it is the memory behind all caches."""
        one, told = self.plateaus[-1], self.caches_bytes
        if self.end == "flat":
            evidence = "the sizes alone, for what the caches hold was not told"
            if told:
                evidence = f"its sizes and the {about_size(told)} of last-level cache that the system states for a rank"
            inner = "no cache was seen before it" if len(self.plateaus) == 1 else "the ones before it are caches"
            if len(self.plateaus) == 1 and self.faster_before:
                inner = "smaller working sets are faster, so of a cache, but at too few sizes for a plateau"
            return (
                f"the outermost level seen: flat for {one.octaves:.1f} octaves, from {about_size(one.first_bytes)} to "
                f"{about_size(one.last_bytes)}, so most likely the memory behind the caches, by {evidence}; {inner}"
            )
        if self.end == "short":
            return (
                f"it spans only {one.octaves:.1f} octaves at the end of the sweep: memory was perhaps not reached, "
                "take larger sizes"
            )
        if self.end == "small":
            known = f" (the system states {about_size(told)} of last-level cache for a rank)" if told else ""
            return (
                f"it ends at {about_size(one.last_bytes)}, which a cache may hold{known}; memory was perhaps "
                f"not reached, take working sets up to {about_size(least_of_memory(told))}"
            )
        return f"the rate still {self.end} at the end of the sweep: memory was perhaps not reached, take larger sizes"


def least_of_memory(caches_bytes: int | None) -> int:
    """The working set (bytes) that a plateau must reach to be called the memory behind caches of so many bytes (None or
    0: not told).
    """
    return max(LEAST_OF_THE_OUTERMOST, TIMES_THE_CACHES * (caches_bytes or 0))


def find_plateaus(
    working_sets: Sequence[int],
    rates: Sequence[float],
    launch_rates: Sequence[Sequence[float]] = (),
    caches_bytes: int | None = None,
) -> Plateaus | Unavailable:
    """The plateaus of ``rates`` (B/s) over ``working_sets`` (bytes, ascending).

    ``launch_rates[i]`` are the rates of the single launches at size i: they tell the noise and the interval.
    ``caches_bytes`` is what the last-level caches hold for a rank, where the system states it: the last plateau is not
    called memory before it goes far beyond that.
    """
    count = len(working_sets)
    if count < LEAST_SIZES:
        sizes = "1 size is" if count == 1 else f"{count} sizes are"
        return Unavailable("few-sizes", f"{sizes} too few to find plateaus; it takes at least {LEAST_SIZES}")
    moved = np.asarray(working_sets, dtype=np.float64)
    times = moved / np.asarray(rates, dtype=np.float64)
    launches = _launches(moved, launch_rates)
    sweeps = list(_sweeps(moved, times))
    steps, bends = (min(_spread(sweep, order) for sweep in sweeps) for order in (1, 2))
    noise = max(steps, _between_launches(launches), _LEAST_NOISE)
    tried = by_key((number, (of, one)) for of in sweeps for number, one in Search(of, noise, bends).best().items())
    found = {number: min(options, key=lambda option: option[1].score) for number, options in tried.items()}
    if not found:
        return Unavailable(
            "nowhere-flat",
            f"the rate is nowhere the same over {LEAST_ON_A_PLATEAU} sizes and an octave: it changes by more than "
            f"{LEAST_STEP:.0%} all the way",
        )
    sweep, division = min(found.values(), key=lambda one: one[1].score)
    heights, runs = sweep.heights, _whole(division, sweep.heights)
    # A launch without the start of the call: heights of launches × sizes.
    over = np.asarray([Sweep(moved, launch, sweep.start, sweep.power).heights for launch in launches])
    plateaus = tuple(_plateau(working_sets, heights, over, low, high) for low, high in runs)
    return Plateaus(
        plateaus=plateaus,
        start_bytes=plateaus[0].first_bytes,
        call_bytes=sweep.start * plateaus[0].rate,
        faster_before=_faster(rates[: runs[0][0]], plateaus[0].rate, noise),
        end=_end(heights[runs[-1][1] + 1 :] - division.levels[-1], noise, plateaus[-1], least_of_memory(caches_bytes)),
        noise=noise,
        candidates=tuple(
            Candidate(number, float(of.errors(one.predict(of.octaves), slice(None)).mean()), one.score / count)
            for number, (of, one) in sorted(found.items())
        ),
        caches_bytes=caches_bytes,
    )


def _launches(moved: Floats, launch_rates: Sequence[Sequence[float]]) -> Floats:
    """Times, launches × sizes; no rows when the sizes were not all measured in the same number of launches."""
    counts = {len(rates) for rates in launch_rates}
    if len(counts) != 1:
        return np.empty((0, len(moved)))
    return np.asarray(moved / np.asarray(launch_rates, dtype=np.float64).T)


def _sweeps(moved: Floats, times: Floats) -> Iterator[Sweep]:
    """The curve with every start of a call that it may have: none, or where the straight line through the times of the
    smallest sizes begins, for however many of them lie in one memory. Each size weighs alike, as errors are relative.
    """
    yield Sweep(moved, times, 0.0, 1.0)
    for power in _POWERS:
        known: list[float] = []
        for count in range(3, len(moved) + 1):
            line = (np.stack([np.ones(count), moved[:count] / moved[0]]) / times[:count]) ** power
            (begun, _), *_ = np.linalg.lstsq((line / line.max()).T, np.ones(count), rcond=None)
            start = float(max(begun, 0.0) / line.max()) ** (1 / power)
            sweep = Sweep(moved, times, start, power)
            if sweep.shares.min() < _NO_START and all(abs(start / other - 1) > _SAME_START for other in known):
                known.append(start)
                yield sweep


def _spread(sweep: Sweep, order: int) -> float:
    """Standard deviation of ln(time) of one size by its differences to its neighbours: most steps (``order`` 1) are
    those of a plateau, most bends (2) those of a straight line. Infinite where the start of the call hides too much.
    """
    if len(sweep.working_sets) - sweep.first < LEAST_SIZES:
        return math.inf
    differences = np.diff(sweep.heights[sweep.first :], order)
    # The start of a call does not vary here, so what is left of the time without it varies the more.
    shares = sweep.shares[sweep.first : len(sweep.times) - order]
    return float(np.median(np.abs(differences) * shares)) / _MEDIAN_DEVIATION / math.sqrt(2 if order == 1 else 6)


def _between_launches(launches: Floats) -> float:
    """Standard deviation of the median of ln(time) by what launches differ in beyond a common factor; 0 for one."""
    if len(launches) < 2:
        return 0.0
    y = np.log(launches)
    rest = y - y.mean(axis=0) - y.mean(axis=1, keepdims=True) + y.mean()
    return float(np.sqrt((rest**2).sum() / ((len(y) - 1) * y.shape[1]) / len(y)))


def _plateau(working_sets: Sequence[int], heights: Floats, over: Floats, low: int, high: int) -> Plateau:
    inside = slice(low, high + 1)
    levels = np.exp(np.median(over[:, inside] if len(over) else heights[None, inside], axis=1))
    rate, ends = float(np.median(levels)), interval_of(levels)
    return Plateau(working_sets[low], working_sets[high], high - low + 1, rate, ends.low_ns, ends.high_ns, ends.kind)


def _whole(division: Division, heights: Floats) -> tuple[tuple[int, int], ...]:
    """First and last index of every plateau. Sizes behind the last one that are less than a step away from it are on
    it, whatever slope chance gave them; those before the first are not: there a call's start shows more and more.
    """
    begins, ends = division.runs[-1]
    beyond = heights[ends + 1 :] - division.levels[-1]
    if len(beyond) and abs(float(np.median(beyond))) < np.log1p(LEAST_STEP):
        ends = len(heights) - 1
    return (*division.runs[:-1], (begins, ends))


def _faster(before: Sequence[float], rate: float, noise: float) -> bool:
    """Whether two sizes in a row are faster than ``rate``: one odd size is no cache."""
    least = rate * (1 + max(LEAST_STEP, 3 * noise))
    return any(min(pair) > least for pair in pairwise(before))


def _end(beyond: Floats, noise: float, last: Plateau, least_bytes: int) -> End:
    """By the median of what lies behind the last plateau: one odd size at the end is no way to another level."""
    if len(beyond):
        away = float(np.median(beyond))
        if abs(away) > max(LEAST_STEP, 3 * noise):
            return "falls" if away < 0 else "rises"
    if last.octaves < OCTAVES_OF_THE_OUTERMOST:
        return "short"
    return "flat" if last.last_bytes >= least_bytes else "small"
