"""The plateaus of a rate over its working set: where one level of memory ends and the next begins, from the data alone.

A call takes its start, c, which is the same for every size, and W / B(W), the time to move the working set W at the
rate B of the memory that holds it. T = c + W / B if one waits for the other, or about the longer of the two. On a GPU
the start alone would turn most of a sweep into a ramp and hide the caches behind it. So c is fitted along with the
plateaus, and sizes that it hides are on no plateau.

A plateau is a run of neighbouring sizes: most rates, with those at both ends, are within a tenth (or the noise) of the
run's median. The longest run comes first, then the longest on either side of it. Of several starts, the one whose
plateaus hold the most sizes most closely is chosen. On known curves this is right as
often as an exact segmentation with a charge for the parameters.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from busbw.units import about_size
from busbw_analysis.data.intervals import IntervalKind, interval_of
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.fitting.curve import launch_matrix
from busbw_analysis.fitting.segments import Floats

LEAST_ON_A_PLATEAU = 3
"""Fewest sizes on a plateau; they must also span an octave. A shorter one is a ramp or chance."""
LEAST_STEP = 0.10
"""Levels that are closer are the same: alignment and page placement cause such differences, too."""
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
_LEAST_SHARE = 0.5
"""Smallest share of a change of the memory's rate that must reach the time of a size on a plateau; below it, the start
of the call hides the memory. If the memory waits for the start, this is half of the time.
"""
_NOTHING = 0.05
"""A share of the memory that says nothing about its rate."""
_MOST = 0.6
"""The share of a plateau's sizes that must be near its level: single slow sizes do not end it."""
_STEP = math.log1p(LEAST_STEP)
_ROUNDING = 1e-9
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
class Plateaus:
    """The plateaus of one curve, by ascending working set.

    call_bytes: bytes that the memory of the first plateau moves in the time that a call takes to start; plateaus
        exclude that time.
    end: how the sweep ends: on a plateau that is long enough (``flat``) or not (``short``), on one that may be a cache
        (``small``), or on the way to another level (``falls``, ``rises``).
    noise: standard deviation of ln(time).
    caches_bytes: last-level cache per rank, as stated by the system (None: unknown); not used to find plateaus.
    """

    plateaus: tuple[Plateau, ...]
    call_bytes: float
    end: End
    noise: float
    caches_bytes: int | None

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
            inner = "no cache plateau precedes it" if len(self.plateaus) == 1 else "the plateaus before it are caches"
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
    # If the rate falls all the way, its steps are not noise, but the changes of the steps still are.
    spread = min(sweep.spread(order) for sweep in sweeps for order in (1, 2))
    noise = max(spread, _between_launches(launches), _LEAST_NOISE)
    tried = [(sweep, sweep.runs(max(_STEP, 3 * noise), max(_STEP, 2 * noise))) for sweep in sweeps]
    sweep, runs = max(tried, key=lambda pair: pair[0].score(pair[1]))
    if not runs:
        return Unavailable(
            "nowhere-flat",
            f"the rate is never constant over {LEAST_ON_A_PLATEAU} sizes and an octave: it changes by more than "
            f"{LEAST_STEP:.0%} everywhere",
        )
    heights, begin, end = sweep.heights, *runs[-1]
    beyond = heights[end + 1 :] - np.median(heights[begin : end + 1])
    if len(beyond) and abs(float(np.median(beyond))) < _STEP:
        # Sizes after the last plateau that are less than a step away belong to it, whatever their slope. Those before
        # the first plateau do not, because the start of a call shows more and more there.
        runs, beyond = [*runs[:-1], (begin, count - 1)], beyond[:0]
    # Heights of every launch, without the start of the call: launches × sizes.
    over = np.asarray([_Sweep(moved, launch, sweep.start, sweep.power).heights for launch in launches])
    plateaus = tuple(_plateau(working_sets, heights, over, low, high) for low, high in runs)
    return Plateaus(
        plateaus=plateaus,
        call_bytes=sweep.start * plateaus[0].rate,
        end=_end(beyond, noise, plateaus[-1], least_of_memory(caches_bytes)),
        noise=noise,
        caches_bytes=caches_bytes,
    )


@dataclass(frozen=True, slots=True)
class _Sweep:
    """Measured times of a curve.

    working_sets: bytes, ascending.
    times: seconds.
    start: seconds of a call that are not the memory's.
    power: p in Tᵖ = startᵖ + (W / B)ᵖ: 1 if the memory waits for the start of a call, more if it works beside the start
        of the next one.
    """

    working_sets: Floats
    times: Floats
    start: float
    power: float

    @property
    def shares(self) -> Floats:
        """The share of a change of the memory's rate that reaches the time, for every size."""
        return np.asarray(np.maximum(1 - (self.start / self.times) ** self.power, 0.0))

    @property
    def first(self) -> int:
        """Index of the first size after all those that the start of the call hides."""
        hidden = np.flatnonzero(self.shares < _LEAST_SHARE)
        return int(hidden[-1]) + 1 if len(hidden) else 0

    @property
    def heights(self) -> Floats:
        """ln of the rate without the start of the call; less reliable the smaller the share of the memory."""
        moving = self.times * np.maximum(self.shares, _NOTHING) ** (1 / self.power)
        return np.asarray(np.log(self.working_sets / moving))

    def spread(self, order: int) -> float:
        """Standard deviation of ln(time) of one size, from differences between neighbours: most steps (``order`` 1) are
        those of a plateau, most bends (2) those of a straight line. Infinite if the start of the call hides too much.
        """
        if len(self.working_sets) - self.first < LEAST_SIZES:
            return math.inf
        differences = np.diff(self.heights[self.first :], order)
        # The start of a call is constant here, so the rest of the time varies more.
        shares = self.shares[self.first : len(self.times) - order]
        return float(np.median(np.abs(differences) * shares)) / _MEDIAN_DEVIATION / math.sqrt(2 if order == 1 else 6)

    def runs(self, width: float, step: float) -> list[tuple[int, int]]:
        """First and last index of every plateau. Its sizes are within ``width`` of its level and its neighbours at
        least a ``step`` away, both in ln(rate).
        """
        octaves, heights = np.log2(self.working_sets), self.heights
        runs: list[tuple[int, int]] = []
        for run in _longest(octaves, heights, self.first, len(heights), width):
            if runs and abs(np.median(heights[slice(*run)]) - np.median(heights[slice(*runs[-1])])) < step:
                runs[-1] = runs[-1][0], run[1]
            else:
                runs.append(run)
        return [(begin, end - 1) for begin, end in runs]

    def score(self, runs: Sequence[tuple[int, int]]) -> float:
        """The sizes on plateaus, fewer the farther they are from their level; less one for every plateau and start."""
        levels = [self.heights[begin : end + 1] for begin, end in runs]
        near = [float(np.maximum(0, 1 - np.abs(level - np.median(level)) / (_STEP / 2)).sum()) for level in levels]
        return sum(near) - len(near) - (self.start > 0)


def _longest(octaves: Floats, heights: Floats, first: int, count: int, width: float) -> list[tuple[int, int]]:
    """Begin and end (exclusive) of the longest run from ``first`` to ``count``, and of those before and behind it. Both
    halves of a run must have the same level, so a hump is not a plateau.
    """
    for length in range(count - first, LEAST_ON_A_PLATEAU - 1, -1):
        flattest, chosen = math.inf, -1
        for begin in range(first, count - length + 1):
            part, half = heights[begin : begin + length], length // 2
            away = np.abs(part - np.median(part))
            if (
                octaves[begin + length - 1] - octaves[begin] >= 1 - _ROUNDING
                and max(away[0], away[-1]) <= width
                and np.mean(away <= width) >= _MOST
                and abs(np.median(part[:half]) - np.median(part[-half:])) <= width
                and away.mean() < flattest
            ):
                flattest, chosen = float(away.mean()), begin
        if chosen >= 0:
            ends = chosen, chosen + length
            before = _longest(octaves, heights, first, chosen, width)
            return [*before, ends, *_longest(octaves, heights, ends[1], count, width)]
    return []


def _sweeps(moved: Floats, times: Floats) -> Iterator[_Sweep]:
    """The curve with every candidate start of a call: none, or the intercept of the straight line through the times of
    the smallest sizes, for every number of them. Each size has the same weight, because errors are relative.
    """
    yield _Sweep(moved, times, 0.0, 1.0)
    for power in _POWERS:
        starts: list[float] = []
        for count in range(3, len(moved) + 1):
            line = (np.stack([np.ones(count), moved[:count] / moved[0]]) / times[:count]) ** power
            (begun, _), *_ = np.linalg.lstsq((line / line.max()).T, np.ones(count), rcond=None)
            start = float(max(begun, 0.0) / line.max()) ** (1 / power)
            sweep = _Sweep(moved, times, start, power)
            if sweep.shares.min() < _NO_START and all(abs(start / other - 1) > _SAME_START for other in starts):
                starts.append(start)
                yield sweep


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
