"""All divisions of a curve into plateaus and the ramps between them; the best one for every number of plateaus.

The search is exact (Bellman 1961). Errors are absolute errors of the logarithm of a call's time, so that a single slow
size does not move a level.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from busbw_analysis.fitting.segments import Floats, Integers

LEAST_ON_A_PLATEAU = 3
"""Fewest sizes on a plateau; they must also span an octave. A shorter one is a ramp or chance."""
LEAST_STEP = 0.10
"""Levels that are closer are the same: alignment and page placement cause such differences, too."""
LEAST_SHARE = 0.5
"""Smallest share of a change of the memory's rate that must reach the time of a size on a plateau; below it, the start
of the call hides the memory. If the memory waits for the start, this is half of the time.
"""

_NOTHING = 0.05
"""A share of the memory that says nothing about its rate."""
_MOST_PLATEAUS = 5
_NUMBERS_OF_A_PLATEAU = 3
_LONGEST_RAMP = 4.0
"""Octaves between two plateaus."""
_ROUNDING = 1e-9
_MEAN_DEVIATION = 0.8
"""Mean absolute deviation of a normal distribution over its standard deviation, √(2/π)."""


@dataclass(frozen=True, slots=True)
class Sweep:
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
    def octaves(self) -> Floats:
        """log₂ of the working sets."""
        return np.asarray(np.log2(self.working_sets))

    @property
    def shares(self) -> Floats:
        """The share of a change of the memory's rate that reaches the time, for every size."""
        return np.asarray(np.maximum(1 - (self.start / self.times) ** self.power, 0.0))

    @property
    def first(self) -> int:
        """Index of the first size after all those that the start of the call hides."""
        hidden = np.flatnonzero(self.shares < LEAST_SHARE)
        return int(hidden[-1]) + 1 if len(hidden) else 0

    @property
    def heights(self) -> Floats:
        """ln of the rate without the start of the call; less reliable the smaller the share of the memory."""
        moving = self.times * np.maximum(self.shares, _NOTHING) ** (1 / self.power)
        return np.asarray(np.log(self.working_sets / moving))

    def errors(self, heights: Floats, sizes: slice | Integers) -> Floats:
        """Absolute error of ln(time) at ``heights`` (ln of rates, last axis along ``sizes``)."""
        moving = (self.working_sets[sizes] * np.exp(-heights) / self.times[sizes]) ** self.power
        begun = (self.start / self.times[sizes]) ** self.power
        return np.asarray(np.abs(np.log(begun + moving)) / self.power)


@dataclass(frozen=True, slots=True)
class Division:
    """A division of a curve.

    runs: first and last index of every plateau.
    levels: ln(rate) on each plateau.
    before: ln(rate) of the sizes before the first plateau.
    fall: slope (per octave) of a straight line after the last plateau.
    """

    runs: tuple[tuple[int, int], ...]
    levels: tuple[float, ...]
    before: tuple[float, ...]
    fall: float
    score: float

    def predict(self, octaves: Floats) -> Floats:
        """ln(rate) at the sizes of the division (log₂ of bytes), without the start of the call."""
        knots = [octaves[end] for run in self.runs for end in run]
        values = [level for level in self.levels for _ in range(2)]
        inside = np.interp(octaves, knots, values)
        inside[: len(self.before)] = self.before
        after = self.levels[-1] + self.fall * (octaves - knots[-1])
        return np.where(octaves > knots[-1], after, inside)


class Search:
    """The best divisions of a sweep.

    A division costs the sum of its absolute errors, plus, for each of its parameters, half of ln N times the mean
    absolute deviation of an error. ``noise`` is the standard deviation of ln(time); ``bends`` is that by second
    differences, which holds if the rate falls all the way.
    """

    def __init__(self, sweep: Sweep, noise: float, bends: float) -> None:
        self._sweep = sweep
        self._x, self._y = sweep.octaves, sweep.heights
        self._penalty = _MEAN_DEVIATION * noise * np.log(len(self._x)) / 2
        # If the rate falls all the way, its steps are not noise, but the changes of the steps still are.
        self._flat = max(float(np.log1p(LEAST_STEP)), 3 * min(noise, bends))
        nothing = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0), np.empty(0))
        begins, lasts, levels, costs = zip(nothing, *self._runs(), strict=True)
        self._begin: Integers = np.concatenate(begins)
        self._last: Integers = np.concatenate(lasts)
        self._level: Floats = np.concatenate(levels)
        self._cost: Floats = np.concatenate(costs)

    def best(self) -> dict[int, Division]:
        """Number of plateaus → the division with the lowest cost; impossible numbers are left out."""
        if not len(self._begin):
            return {}
        after, falls = self._tails()
        ramps = self._ramps()
        head_costs, heads = self._heads()
        total = self._cost + head_costs + self._penalty * (self._sweep.start > 0)
        behind: list[Integers] = []
        divisions: dict[int, Division] = {}
        for number in range(1, _MOST_PLATEAUS + 1):
            chosen = int(np.argmin(total + after))
            if not np.isfinite(total[chosen] + after[chosen]):
                break
            path = [chosen]
            for pointers in reversed(behind):
                path.insert(0, int(pointers[path[0]]))
            charged = _NUMBERS_OF_A_PLATEAU * number * self._penalty
            divisions[number] = Division(
                runs=tuple((int(self._begin[place]), int(self._last[place])) for place in path),
                levels=tuple(float(self._level[place]) for place in path),
                before=tuple(heads[path[0]].tolist()),
                fall=float(falls[chosen]),
                score=float(total[chosen] + after[chosen] + charged),
            )
            options = total[:, None] + ramps
            behind.append(np.argmin(options, axis=0))
            total = options.min(axis=0) + self._cost
        return divisions

    def _runs(self) -> Iterator[tuple[Integers, Integers, Floats, Floats]]:
        """The possible plateaus: first and last index, level and cost. Both halves must have the same level, and most
        sizes must be near it, so a hump is not a plateau.
        """
        first = self._sweep.first
        for length in range(LEAST_ON_A_PLATEAU, len(self._x) - first + 1):
            begin = np.arange(first, len(self._x) - length + 1)
            begin = begin[self._x[begin + length - 1] - self._x[begin] >= 1 - _ROUNDING]
            sizes, half = begin[:, None] + np.arange(length), length // 2
            heights = self._y[sizes]
            level = np.median(heights, axis=1)
            trend = np.median(heights[:, :half], axis=1) - np.median(heights[:, length - half :], axis=1)
            spread = np.median(np.abs(heights - level[:, None]), axis=1)
            kept = (np.abs(trend) <= self._flat) & (spread <= self._flat)
            errors = self._sweep.errors(level[kept, None], sizes[kept])
            yield begin[kept], begin[kept] + length - 1, level[kept], errors.sum(axis=1)

    def _ramps(self) -> Floats:
        """The cost of the ramp from every plateau to every other; infinite if the step is too small or the ramp too
        long.
        """
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
                cost = self._sweep.errors(low * (1 - share) + high * share, inner).sum(axis=2)
                cost += self._penalty * (begin > last + 1)
                step = np.abs(low - high)[:, :, 0] >= np.log1p(LEAST_STEP)
                costs[np.ix_(rows, columns)] = np.where(step, cost, np.inf)
        return costs

    def _heads(self) -> tuple[Floats, list[Floats]]:
        """For every plateau, the cost of being the first one, and ln(rate) before it: its own level, a straight line,
        or the level of a memory that the start of the call hides, with a ramp from there.
        """
        costs, heads = np.zeros(len(self._begin)), [np.empty(0)] * len(self._begin)
        for begin in np.unique(self._begin[self._begin > 0]).tolist():
            rows = np.flatnonzero(self._begin == begin)
            options = list(self._options(begin, self._level[rows][:, None]))
            charged = np.asarray([cost for cost, _ in options])
            best = np.argmin(charged, axis=0)
            costs[rows] = charged.min(axis=0)
            for number, row in enumerate(rows.tolist()):
                heads[row] = options[best[number]][1][number]
        return costs, heads

    def _options(self, begin: int, level: Floats) -> Iterator[tuple[Floats, Floats]]:
        """Costs and ln(rates) of the sizes before ``begin``, for plateaus with these levels (a column)."""
        sizes, first = slice(0, begin), self._sweep.first
        distance = self._x[sizes] - self._x[begin]
        own = np.broadcast_to(level, (len(level), begin))
        # Hidden sizes may belong to the same memory; other sizes of that memory would be on the plateau.
        yield self._sweep.errors(own, sizes).sum(axis=1) + self._penalty * (begin > first), own
        shares = np.maximum(self._sweep.shares[sizes], _NOTHING)
        line = level + _weighted_median((self._y[sizes] - level) / distance, shares)[:, None] * distance
        yield self._sweep.errors(line, sizes).sum(axis=1) + self._penalty, line
        visible = np.flatnonzero(shares > _NOTHING)
        for end in visible[: begin if first else 0].tolist():
            if end - first + 1 >= LEAST_ON_A_PLATEAU and self._x[end] - self._x[first] >= 1 - _ROUNDING:
                return
            hidden = float(_weighted_median(self._y[None, : end + 1], shares[: end + 1])[0])
            part = np.clip((self._x[sizes] - self._x[end]) / (self._x[begin] - self._x[end]), 0.0, 1.0)
            stepped = hidden * (1 - part) + level * part
            yield self._sweep.errors(stepped, sizes).sum(axis=1) + 2 * self._penalty, stepped

    def _tails(self) -> tuple[Floats, Floats]:
        """For every plateau, the cost of being the last one, and the slope of the line through the sizes after it."""
        costs, falls = np.zeros(len(self._begin)), np.zeros(len(self._begin))
        for last in np.unique(self._last[self._last < len(self._x) - 1]).tolist():
            rows, sizes = np.flatnonzero(self._last == last), slice(last + 1, len(self._x))
            distance, level = self._x[sizes] - self._x[last], self._level[rows]
            falls[rows] = np.median((self._y[sizes] - level[:, None]) / distance, axis=1)
            line = level[:, None] + falls[rows][:, None] * distance
            costs[rows] = self._sweep.errors(line, sizes).sum(axis=1) + self._penalty
        return costs, falls


def _weighted_median(values: Floats, weights: Floats) -> Floats:
    """The weighted median of every row; columns have the weights."""
    order = np.argsort(values, axis=1)
    reached = np.argmax(np.cumsum(weights[order], axis=1) >= weights.sum() / 2, axis=1)
    rows = np.arange(len(values))
    return np.asarray(values[rows, order[rows, reached]])
