"""The plateaus of a rate over its working set: where one level of memory ends and the next begins, from the data alone.

A call takes its start, c, which is the same for every size, and W / B(W), the time to move the working set W at the
rate B of the memory that holds it. T = c + W / B if one waits for the other, or about the longer of the two. ln B is a
sequence of levels with ramps between them: constant on a plateau, and linear in the logarithm of the working set from
one plateau to the next, because a cache does not end at one size. On a GPU the start alone would turn most of a sweep
into a ramp and hide the caches behind it. So c is fitted along with the levels, and sizes that it hides are on no
plateau.

The number of plateaus minimises the error plus a charge for the parameters: three per plateau (level and both ends),
one per ramp and one for a start, as in the Bayesian information criterion for errors with a Laplace distribution
(Schwarz 1978). On known curves this was right more often than the one-standard-error rule on left-out sizes (94 against
87 %), because a plateau of three or four sizes does not survive the loss of one.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from busbw.units import about_size
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.intervals import IntervalKind, interval_of
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.fitting.curve import launch_matrix
from busbw_analysis.fitting.segments import Floats
from busbw_analysis.node.divisions import LEAST_ON_A_PLATEAU, LEAST_STEP, Division, Search, Sweep

LEAST_SIZES = 6
"""Fewer sizes cannot show two plateaus."""
OCTAVES_OF_THE_OUTERMOST = 2.0
"""Shortest last plateau that may be called the outermost memory."""
LEAST_OF_THE_OUTERMOST = 64 << 20
"""Smallest last working set (bytes) for that, because a curve inside a cache can be flat, too."""
TIMES_THE_CACHES = 4
"""And in multiples of the last-level caches, if their size is known: then at most a quarter of it is in caches. STREAM
asks the same of its arrays (McCalpin 1995).
"""

_LEAST_NOISE = 0.002
_POWERS = (1.0, 3.0)
"""How the start of a call and the work of the memory add up: one after the other, or overlapping."""
_NO_START = 0.95
"""If the memory's share of the smallest size is at least this, no start of a call is fitted: levels differ by more."""
_SAME_START = 0.03
"""Starts of a call that differ by less are tried as one."""
_MEDIAN_DEVIATION = 0.6745
"""Median absolute deviation of a normal distribution over its standard deviation."""

End = Literal["flat", "falls", "rises", "short", "small"]


@dataclass(frozen=True, slots=True)
class Plateau:
    """A rate that is constant over a range of working sets.

    first_bytes, last_bytes: the range.
    sizes: number of measured sizes in it.
    rate: B/s, without the time that a call takes to start.
    low, high: interval or range of ``rate`` over launches, as ``kind`` says; None for a single launch.
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
        """How many times the working set doubles on the plateau."""
        return float(np.log2(self.last_bytes / self.first_bytes))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A number of plateaus that was tried.

    error: mean error of ln(time).
    score: error plus the charge for parameters; the lowest is chosen.
    """

    plateaus: int
    error: float
    score: float


@dataclass(frozen=True, slots=True)
class Plateaus:
    """The plateaus of one curve, by ascending working set.

    start_bytes: first working set on a plateau.
    call_bytes: bytes that the memory of the first plateau moves in the time that a call takes to start; plateaus
        exclude that time.
    faster_before: two or more consecutive smaller working sets were faster than the first plateau.
    end: how the sweep ends: on a plateau that is long enough (``flat``) or not (``short``), on one that may be a cache
        (``small``), or on the way to another level (``falls``, ``rises``).
    noise: standard deviation of ln(time) in the search.
    caches_bytes: last-level cache per rank, as stated by the system (None: unknown); not used to find plateaus.
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
        """Names such as ``plateau 1 (up to 32 KiB)``: by the data, without claiming which cache it is."""
        ranges = [f"up to {about_size(plateau.last_bytes)}" for plateau in self.plateaus[:-1]]
        ranges.append(f"from {about_size(self.plateaus[-1].first_bytes)}")
        return tuple(f"plateau {number} ({where})" for number, where in enumerate(ranges, 1))

    @property
    def outermost(self) -> str:
        """Whether the last plateau is the memory behind all caches, as text."""
        last, caches = self.plateaus[-1], self.caches_bytes
        if self.end == "flat":
            evidence = "the sizes alone, because the size of the caches is unknown"
            if caches:
                evidence = f"its sizes and the {about_size(caches)} of last-level cache per rank that the system states"
            inner = "no cache was seen before it" if len(self.plateaus) == 1 else "the plateaus before it are caches"
            if len(self.plateaus) == 1 and self.faster_before:
                inner = "smaller working sets are faster, so in a cache, but at too few sizes for a plateau"
            return (
                f"the outermost level seen: flat for {last.octaves:.1f} octaves, from {about_size(last.first_bytes)} "
                f"to {about_size(last.last_bytes)}, so most likely the memory behind the caches, by {evidence}; {inner}"
            )
        if self.end == "short":
            return (
                f"it spans only {last.octaves:.1f} octaves at the end of the sweep: memory may not have been reached; "
                "use larger sizes"
            )
        if self.end == "small":
            stated = f" (the system states {about_size(caches)} of last-level cache per rank)" if caches else ""
            return (
                f"it ends at {about_size(last.last_bytes)}, which may fit into a cache{stated}: memory may not have "
                f"been reached; use working sets up to {about_size(least_of_memory(caches))}"
            )
        return f"the rate still {self.end} at the end of the sweep: memory may not have been reached; use larger sizes"


def least_of_memory(caches_bytes: int | None) -> int:
    """The working set (bytes) that a plateau must reach to be called memory behind caches of this size (None or 0:
    unknown).
    """
    return max(LEAST_OF_THE_OUTERMOST, TIMES_THE_CACHES * (caches_bytes or 0))


def find_plateaus(
    working_sets: Sequence[int],
    rates: Sequence[float],
    launch_rates: Sequence[Sequence[float]] = (),
    caches_bytes: int | None = None,
) -> Plateaus | Unavailable:
    """The plateaus of ``rates`` (B/s) over ``working_sets`` (bytes, ascending).

    launch_rates: rates of the single launches at each size, for noise and intervals.
    caches_bytes: last-level cache per rank, if the system states it; the last plateau is only called memory if it
        extends far beyond.
    """
    count = len(working_sets)
    if count < LEAST_SIZES:
        sizes = "1 size is" if count == 1 else f"{count} sizes are"
        return Unavailable("few-sizes", f"{sizes} too few to find plateaus; measure at least {LEAST_SIZES}")
    moved = np.asarray(working_sets, dtype=np.float64)
    times = moved / np.asarray(rates, dtype=np.float64)
    launches: Floats = moved / launch_matrix(launch_rates or [()] * count)
    sweeps = list(_sweeps(moved, times))
    steps, bends = (min(_spread(sweep, order) for sweep in sweeps) for order in (1, 2))
    noise = max(steps, _between_launches(launches), _LEAST_NOISE)
    tried = by_key(
        (number, (of, candidate)) for of in sweeps for number, candidate in Search(of, noise, bends).best().items()
    )
    best = {number: min(options, key=lambda option: option[1].score) for number, options in tried.items()}
    if not best:
        return Unavailable(
            "nowhere-flat",
            f"the rate is never constant over {LEAST_ON_A_PLATEAU} sizes and an octave: it changes by more than "
            f"{LEAST_STEP:.0%} everywhere",
        )
    sweep, division = min(best.values(), key=lambda option: option[1].score)
    heights, runs = sweep.heights, _whole(division, sweep.heights)
    # Heights of every launch, without the start of the call: launches × sizes.
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
            Candidate(
                number, float(of.errors(candidate.predict(of.octaves), slice(None)).mean()), candidate.score / count
            )
            for number, (of, candidate) in sorted(best.items())
        ),
        caches_bytes=caches_bytes,
    )


def _sweeps(moved: Floats, times: Floats) -> Iterator[Sweep]:
    """The curve with every candidate start of a call: none, or the intercept of the straight line through the times of
    the smallest sizes, for every number of them. Each size has the same weight, because errors are relative.
    """
    yield Sweep(moved, times, 0.0, 1.0)
    for power in _POWERS:
        starts: list[float] = []
        for count in range(3, len(moved) + 1):
            line = (np.stack([np.ones(count), moved[:count] / moved[0]]) / times[:count]) ** power
            (begun, _), *_ = np.linalg.lstsq((line / line.max()).T, np.ones(count), rcond=None)
            start = float(max(begun, 0.0) / line.max()) ** (1 / power)
            sweep = Sweep(moved, times, start, power)
            if sweep.shares.min() < _NO_START and all(abs(start / other - 1) > _SAME_START for other in starts):
                starts.append(start)
                yield sweep


def _spread(sweep: Sweep, order: int) -> float:
    """Standard deviation of ln(time) of one size, from differences between neighbours: most steps (``order`` 1) are
    those of a plateau, most bends (2) those of a straight line. Infinite if the start of the call hides too much.
    """
    if len(sweep.working_sets) - sweep.first < LEAST_SIZES:
        return math.inf
    differences = np.diff(sweep.heights[sweep.first :], order)
    # The start of a call is constant here, so the rest of the time varies more.
    shares = sweep.shares[sweep.first : len(sweep.times) - order]
    return float(np.median(np.abs(differences) * shares)) / _MEDIAN_DEVIATION / math.sqrt(2 if order == 1 else 6)


def _between_launches(launches: Floats) -> float:
    """Standard deviation of the median of ln(time), by the differences between launches beyond a common factor; 0 for
    one.
    """
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
    """First and last index of every plateau. Sizes after the last plateau that are less than a step away from it are
    added, whatever their slope. Sizes before the first plateau are not, because the start of a call shows more and more
    there.
    """
    begins, ends = division.runs[-1]
    beyond = heights[ends + 1 :] - division.levels[-1]
    if len(beyond) and abs(float(np.median(beyond))) < np.log1p(LEAST_STEP):
        ends = len(heights) - 1
    return (*division.runs[:-1], (begins, ends))


def _faster(before: Sequence[float], rate: float, noise: float) -> bool:
    """Whether two consecutive sizes are faster than ``rate``; a single one is not evidence of a cache."""
    least = rate * (1 + max(LEAST_STEP, 3 * noise))
    return any(min(pair) > least for pair in pairwise(before))


def _end(beyond: Floats, noise: float, last: Plateau, least_bytes: int) -> End:
    """How the sweep ends, by the median of the sizes after the last plateau; a single odd size does not count as
    another level.
    """
    if len(beyond):
        away = float(np.median(beyond))
        if abs(away) > max(LEAST_STEP, 3 * noise):
            return "falls" if away < 0 else "rises"
    if last.octaves < OCTAVES_OF_THE_OUTERMOST:
        return "short"
    return "flat" if last.last_bytes >= least_bytes else "small"
