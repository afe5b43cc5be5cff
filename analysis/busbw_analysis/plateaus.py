"""The plateaus of a rate over its working set: where one memory ends and the next begins, from the data alone.

A curve is a row of levels with ramps between them: the logarithm of the rate is constant on a plateau and a straight
line over the logarithm of the working set from one plateau to the next, because a cache does not end at one size. The
search over all divisions is exact (Bellman 1961). Errors are absolute ones of logarithms, so that a size that came out
slow bends no level. The number of plateaus is that of the least error when each plateau is charged for its three
numbers (level and both ends) and each ramp for one, as the Bayesian information criterion has it for errors that are
exponential on both sides (Schwarz 1978). Over known curves that was right more often than the one-standard-error rule
on left-out sizes (94 against 87 %): a plateau of three or four sizes does not survive the loss of one.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from busbw.units import about_size
from busbw_analysis.launches import median_over_launches
from busbw_analysis.summary import LAUNCHES_FOR_AN_INTERVAL, IntervalKind
from busbw_analysis.theory.segments import Floats, Integers

LEAST_SIZES = 6
"""Fewer cannot show two plateaus."""
LEAST_ON_A_PLATEAU = 3
"""Sizes; they must also span an octave. What is shorter is a ramp, or chance."""
LEAST_STEP = 0.10
"""Two levels that are closer are one: that much, alignment and luck with pages make too."""
OCTAVES_OF_THE_OUTERMOST = 2.0
"""So long must the last plateau be for the outermost memory to be called reached."""
LEAST_OF_THE_OUTERMOST = 64 << 20
"""So large (bytes) must the last working set be for that: a curve that is flat inside a cache looks no different."""

_MOST_PLATEAUS = 5
_NUMBERS_OF_A_PLATEAU = 3
_LONGEST_RAMP = 4.0
"""Octaves between two plateaus."""
_LEAST_NOISE = 0.002
_ROUNDING = 1e-9
_MEAN_DEVIATION = 0.8
"""Mean absolute deviation of a normal distribution over its standard deviation, √(2/π)."""
_MEDIAN_DEVIATION = 0.6745
"""Median absolute deviation of a normal distribution over its standard deviation."""

End = Literal["flat", "falls", "rises", "short", "small"]


@dataclass(frozen=True, slots=True)
class Plateau:
    """A rate (B/s) that holds for the working sets from ``first_bytes`` to ``last_bytes``, ``sizes`` of which were
    measured. ``low`` and ``high`` are the ends of what ``kind`` says, over launches; None for a single launch.
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
    """A number of plateaus that was tried: the mean error of ln(rate), and the ``score``, in which plateaus and ramps
    are charged for their numbers; the least one is chosen.
    """

    plateaus: int
    error: float
    score: float


@dataclass(frozen=True, slots=True)
class Plateaus:
    """The plateaus of one curve by growing working set. ``end`` is how the sweep ends: on a plateau that is long enough
    (``flat``) or not (``short``), on one of sizes that caches have, too (``small``), or on the way to another level
    (``falls``, ``rises``). ``start_bytes`` is the first working set on a plateau. ``noise`` is the standard deviation
    of ln(rate) that the search reckoned with.
    """

    plateaus: tuple[Plateau, ...]
    start_bytes: int
    end: End
    noise: float
    candidates: tuple[Candidate, ...]

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
        one = self.plateaus[-1]
        if self.end == "flat":
            inner = "no cache was seen before it" if len(self.plateaus) == 1 else "the ones before it are caches"
            return (
                f"the outermost level seen: flat for {one.octaves:.1f} octaves, from {about_size(one.first_bytes)} to "
                f"{about_size(one.last_bytes)}, so most likely the memory behind the caches; {inner}"
            )
        if self.end == "short":
            return (
                f"it spans only {one.octaves:.1f} octaves at the end of the sweep: memory was perhaps not reached, "
                "take larger sizes"
            )
        if self.end == "small":
            return (
                f"it ends at {about_size(one.last_bytes)}, which a cache may hold: memory was perhaps not reached, "
                "take larger sizes"
            )
        return f"the rate still {self.end} at the end of the sweep: memory was perhaps not reached, take larger sizes"


@dataclass(frozen=True, slots=True)
class NoPlateaus:
    """No plateaus, and why."""

    reason: str


def find_plateaus(
    working_sets: Sequence[int], rates: Sequence[float], launch_rates: Sequence[Sequence[float]] = ()
) -> Plateaus | NoPlateaus:
    """The plateaus of ``rates`` (B/s) over ``working_sets`` (bytes, ascending).

    ``launch_rates[i]`` are the rates of the single launches at size i: they tell the noise and the interval.
    """
    count = len(working_sets)
    if count < LEAST_SIZES:
        sizes = "1 size is" if count == 1 else f"{count} sizes are"
        return NoPlateaus(f"{sizes} too few to find plateaus; it takes at least {LEAST_SIZES}")
    x, y = np.log2(np.asarray(working_sets, dtype=np.float64)), np.log(np.asarray(rates, dtype=np.float64))
    launches = _launches(launch_rates)
    noise = _noise(y, launches)
    found = _Search(x, y, noise).best()
    if not found:
        return NoPlateaus(
            f"the rate is nowhere the same over {LEAST_ON_A_PLATEAU} sizes and an octave: it changes by more than "
            f"{LEAST_STEP:.0%} all the way"
        )
    shape = found[min(found, key=lambda number: found[number].score)]
    runs = _whole(shape, y)
    plateaus = tuple(_plateau(working_sets, y, launches, low, high) for low, high in runs)
    return Plateaus(
        plateaus=plateaus,
        start_bytes=plateaus[0].first_bytes,
        end=_end(y[runs[-1][1] + 1 :] - shape.levels[-1], noise, plateaus[-1]),
        noise=noise,
        candidates=tuple(
            Candidate(number, float(np.abs(y - one.predict(x)).mean()), one.score / count)
            for number, one in found.items()
        ),
    )


def _launches(launch_rates: Sequence[Sequence[float]]) -> Floats:
    """ln(rate), launches × sizes; no rows when the sizes were not all measured in the same number of launches."""
    counts = {len(rates) for rates in launch_rates}
    if len(counts) != 1:
        return np.empty((0, len(launch_rates)))
    return np.log(np.asarray(launch_rates, dtype=np.float64).T)


def _noise(y: Floats, launches: Floats) -> float:
    """Standard deviation of ln(rate) of one size: by the steps from size to size, most of which lie on plateaus, or by
    what launches differ in beyond a common factor, if that is more.
    """
    steps = float(np.median(np.abs(np.diff(y)))) / _MEDIAN_DEVIATION / math.sqrt(2)
    if len(launches) < 2:
        return max(steps, _LEAST_NOISE)
    rest = launches - launches.mean(axis=0) - launches.mean(axis=1, keepdims=True) + launches.mean()
    repeated = float(np.sqrt((rest**2).sum() / ((len(launches) - 1) * len(y)) / len(launches)))
    return max(steps, repeated, _LEAST_NOISE)


def _plateau(working_sets: Sequence[int], y: Floats, launches: Floats, low: int, high: int) -> Plateau:
    inside = slice(low, high + 1)
    levels = np.exp(np.median(launches[:, inside] if len(launches) else y[None, inside], axis=1))
    rate = float(np.median(levels))
    ends: tuple[float | None, float | None] = (None, None)
    kind: IntervalKind = "none"
    if len(launches) > 1:
        over = median_over_launches(levels)
        if len(launches) >= LAUNCHES_FOR_AN_INTERVAL and over.low is not None:
            ends, kind = (over.low, over.high), "95 % over launches"
        else:
            ends, kind = (float(levels.min()), float(levels.max())), "range of launch medians"
    return Plateau(working_sets[low], working_sets[high], high - low + 1, rate, *ends, kind)


def _whole(shape: "_Shape", y: Floats) -> tuple[tuple[int, int], ...]:
    """First and last index of every plateau. Sizes behind the last one that are less than a step away from it are on
    it, whatever slope chance gave them; those before the first are not: there a call's start shows more and more.
    """
    begins, ends = shape.runs[-1]
    if ends < len(y) - 1 and abs(float(np.median(y[ends + 1 :])) - shape.levels[-1]) < np.log1p(LEAST_STEP):
        ends = len(y) - 1
    return (*shape.runs[:-1], (begins, ends))


def _end(beyond: Floats, noise: float, last: Plateau) -> End:
    if len(beyond) and abs(beyond[-1]) > max(LEAST_STEP, 4 * noise):
        return "falls" if beyond[-1] < 0 else "rises"
    if last.octaves < OCTAVES_OF_THE_OUTERMOST:
        return "short"
    return "flat" if last.last_bytes >= LEAST_OF_THE_OUTERMOST else "small"


@dataclass(frozen=True, slots=True)
class _Shape:
    """A division: first and last index of every plateau, ln(rate) on each, and how the curve goes on at both ends.

    Before the first plateau lies a straight line of slope ``rise`` (per octave) or, where ``start`` is above 0, the
    cost of starting a call: working sets of ``start`` bytes reach half of the rate.
    """

    runs: tuple[tuple[int, int], ...]
    levels: tuple[float, ...]
    rise: float
    start: float
    fall: float
    score: float

    def predict(self, x: Floats) -> Floats:
        """ln(rate) at ``x``, the sizes that the division is of (log₂ of bytes)."""
        knots = [x[end] for run in self.runs for end in run]
        values = [level for level in self.levels for _ in range(2)]
        inside = np.interp(x, knots, values)
        before = _head(knots[0], x, self.levels[0], self.rise, self.start)
        after = self.levels[-1] + self.fall * (x - knots[-1])
        return np.where(x < knots[0], before, np.where(x > knots[-1], after, inside))


def _head(begin: float, x: Floats, level: float, rise: float, start: float) -> Floats:
    if start > 0:
        return np.asarray(level - np.log1p(start / np.exp2(x)))
    return np.asarray(level + rise * (x - begin))


class _Search:
    """All divisions of one curve into plateaus and ramps, and the best one for every number of plateaus.

    A division costs the sum of its absolute errors, and for each of its numbers half of ln N times the mean absolute
    deviation of an error.
    """

    def __init__(self, x: Floats, y: Floats, noise: float) -> None:
        self._x, self._y = x, y
        self._penalty = _MEAN_DEVIATION * noise * np.log(len(x)) / 2
        # Where the rate falls all the way its steps are no noise, but how they change still is.
        bends = float(np.median(np.abs(np.diff(y, 2)))) / _MEDIAN_DEVIATION / math.sqrt(6)
        self._flat = max(float(np.log1p(LEAST_STEP)), 3 * min(noise, bends))
        runs = list(self._runs())
        self._begin: Integers = np.asarray([run[0] for run in runs], dtype=np.int64)
        self._last: Integers = np.asarray([run[1] for run in runs], dtype=np.int64)
        self._level: Floats = np.asarray([run[2] for run in runs])
        self._cost: Floats = np.asarray([run[3] for run in runs])

    def best(self) -> dict[int, _Shape]:
        """Number of plateaus → the division that costs least; numbers that are not possible are left out."""
        if not len(self._begin):
            return {}
        heads = [self._before(number) for number in range(len(self._begin))]
        tails = [self._after(number) for number in range(len(self._begin))]
        after = np.asarray([cost for cost, _ in tails])
        ramps = self._ramps()
        total = self._cost + np.asarray([cost for cost, _, _ in heads])
        behind: list[Integers] = []
        shapes: dict[int, _Shape] = {}
        for number in range(1, _MOST_PLATEAUS + 1):
            chosen = int(np.argmin(total + after))
            if not np.isfinite(total[chosen] + after[chosen]):
                break
            path = [chosen]
            for pointers in reversed(behind):
                path.insert(0, int(pointers[path[0]]))
            _, rise, start = heads[path[0]]
            charged = _NUMBERS_OF_A_PLATEAU * number * self._penalty
            shapes[number] = _Shape(
                runs=tuple((int(self._begin[one]), int(self._last[one])) for one in path),
                levels=tuple(float(self._level[one]) for one in path),
                rise=rise,
                start=start,
                fall=tails[chosen][1],
                score=float(total[chosen] + after[chosen] + charged),
            )
            options = total[:, None] + ramps
            behind.append(np.argmin(options, axis=0))
            total = options.min(axis=0) + self._cost
        return shapes

    def _runs(self) -> Iterator[tuple[int, int, float, float]]:
        """What may be a plateau: first and last index, level and cost. Its two halves must be level with each other."""
        for length in range(LEAST_ON_A_PLATEAU, len(self._x) + 1):
            windows = np.lib.stride_tricks.sliding_window_view(self._y, length)
            levels = np.median(windows, axis=1)
            costs = np.abs(windows - levels[:, None]).sum(axis=1)
            half = length // 2
            trends = np.median(windows[:, :half], axis=1) - np.median(windows[:, length - half :], axis=1)
            for begin in np.flatnonzero(np.abs(trends) <= self._flat).tolist():
                if self._x[begin + length - 1] - self._x[begin] >= 1 - _ROUNDING:
                    yield begin, begin + length - 1, float(levels[begin]), float(costs[begin])

    def _ramps(self) -> Floats:
        """The cost of going from every plateau to every other; infinite where that is no step, or too far."""
        costs = np.full((len(self._begin), len(self._begin)), np.inf)
        for last in np.unique(self._last).tolist():
            for begin in np.unique(self._begin).tolist():
                if begin <= last or self._x[begin] - self._x[last] > max(
                    _LONGEST_RAMP, self._x[last + 1] - self._x[last]
                ):
                    continue
                rows, columns = np.flatnonzero(self._last == last), np.flatnonzero(self._begin == begin)
                low, high = self._level[rows][:, None, None], self._level[columns][None, :, None]
                inner = slice(last + 1, begin)
                share = (self._x[inner] - self._x[last]) / (self._x[begin] - self._x[last])
                cost = np.abs(self._y[inner] - low * (1 - share) - high * share).sum(axis=2)
                cost += self._penalty * (begin > last + 1)
                step = np.abs(low - high)[:, :, 0] >= np.log1p(LEAST_STEP)
                costs[np.ix_(rows, columns)] = np.where(step, cost, np.inf)
        return costs

    def _before(self, number: int) -> tuple[float, float, float]:
        """Cost of the sizes before a plateau, with slope or size of half rate, whichever explains them better."""
        begin, level = int(self._begin[number]), float(self._level[number])
        if begin == 0:
            return 0.0, 0.0, 0.0
        x, y = self._x[:begin], self._y[:begin]
        start = float(np.median(np.exp2(x) * np.expm1(level - y)))
        rise = float(np.median((y - level) / (x - self._x[begin])))
        options = [(rise, 0.0), (0.0, start)] if start > 0 else [(rise, 0.0)]
        costs = [float(np.abs(y - _head(float(self._x[begin]), x, level, *option)).sum()) for option in options]
        best = int(np.argmin(costs))
        return costs[best] + self._penalty, *options[best]

    def _after(self, number: int) -> tuple[float, float]:
        """Cost of the sizes behind a plateau, and the slope of the line through them."""
        last, level = int(self._last[number]), float(self._level[number])
        if last == len(self._x) - 1:
            return 0.0, 0.0
        distance = self._x[last + 1 :] - self._x[last]
        fall = float(np.median((self._y[last + 1 :] - level) / distance))
        return float(np.abs(self._y[last + 1 :] - level - fall * distance).sum()) + self._penalty, fall
