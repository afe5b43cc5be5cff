"""Algorithms of the same op compared: the fastest at each size, the crossover sizes, and the predictions of the cost
formulas (S*, the size at which two algorithms take the same time).

The algorithms are explicit ones over send/recv, compared with each other and with the library's own.

If the intervals of two algorithms overlap at a size, their order there is undecided, whatever their medians. If one is
certainly faster at some size and certainly slower at a larger one, they cross between the two. The crossover is where
straight lines through the medians meet; its range is where those through the ends of the intervals meet. Times are
taken as linear in the size between two measured sizes, as in every formula. Interpolation on logarithmic axes would
misplace the crossover of two formulas by up to a quarter for sizes four times apart.

Costs use α and β (γ, R) from messages of the same run.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import Final

import numpy as np

from busbw.errors import AnalysisError
from busbw_analysis.data.distributions import root
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.series import LIBRARY, Series, SeriesKey
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.curves import Curve
from busbw_analysis.models.choices import Calls, Library
from busbw_analysis.models.costs import CostModel, Parameters
from busbw_analysis.models.select import candidates

Timed = Mapping[int, tuple[GroupSummary, GroupSummary]]
"""The points of two algorithms at each size above 0, ascending."""


_BEYOND: Final = 16
"""If costs are not linear, S* is searched from the smallest measured size divided by this to the largest times this."""
_STEPS: Final = 8
"""Grid points per factor of two in this search."""
_ALIKE: Final = 1e-9
"""Costs that differ by less are equal up to rounding."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """A crossover: ``below`` is faster up to ``at_bytes``, ``above`` beyond.

    low_bytes, high_bytes: range of a measured crossover; None if times have no interval. A crossover of formulas has
        none.
    """

    below: str
    above: str
    at_bytes: float
    low_bytes: float | None = None
    high_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class Gain:
    """The difference of two algorithms at one size.

    times: time of the slower one over that of the faster one.
    sure: their intervals do not overlap.
    """

    size_bytes: int
    faster: str
    times: float
    sure: bool


def faster(names: tuple[str, str], points: tuple[GroupSummary, GroupSummary]) -> str | None:
    """The certainly faster one of two; None if their intervals overlap or their times are equal."""
    (low, high), (other_low, other_high) = (point.ends for point in points)
    if high < other_low:
        return names[0]
    return names[1] if other_high < low else None


def gain(names: tuple[str, str], size_bytes: int, points: tuple[GroupSummary, GroupSummary]) -> Gain:
    """The gain of the one with the smaller median over the other."""
    ratio = points[1].time_ns / points[0].time_ns
    sure = faster(names, points) is not None
    return Gain(size_bytes, names[0] if ratio >= 1 else names[1], max(ratio, 1 / ratio), sure)


def crossings(names: tuple[str, str], timed: Timed) -> tuple[Crossing, ...]:
    """Every certain crossover, by ascending size."""
    sizes = list(timed)
    sure = [(place, name) for place, size in enumerate(sizes) if (name := faster(names, timed[size])) is not None]
    crossovers: list[Crossing] = []
    for (first, below), (last, above) in pairwise(sure):
        if below != above:
            place = names.index(below)
            between = {size: (timed[size][place], timed[size][1 - place]) for size in sizes[first : last + 1]}
            crossovers.append(_crossing(below, above, between))
    return tuple(crossovers)


def _crossing(below: str, above: str, timed: Timed) -> Crossing:
    """The crossover within ``timed``, in which ``below`` comes first in each pair and is faster at the first size.

    Medians that change order several times do so by chance, so the middle of these places is taken.
    """
    medians = _places([(size, left.time_ns - right.time_ns) for size, (left, right) in timed.items()])
    at = math.sqrt(medians[0] * medians[-1])
    if any(point.interval.low_ns is None for both in timed.values() for point in both):
        return Crossing(below, above, at)
    soonest = _places([(size, left.ends[1] - right.ends[0]) for size, (left, right) in timed.items()])
    latest = _places([(size, left.ends[0] - right.ends[1]) for size, (left, right) in timed.items()])
    return Crossing(below, above, at, soonest[0], latest[-1])


def _places(differences: Sequence[tuple[int, float]]) -> list[float]:
    """The sizes in bytes at which ``differences``, which begin below 0 and end above, change sign."""
    return [
        size + (next_size - size) * before / (before - after)
        for (size, before), (next_size, after) in pairwise(differences)
        if (before < 0) != (after < 0)
    ]


@dataclass(frozen=True, slots=True)
class _Costed:
    """The cost model of an algorithm and the parameters of messages."""

    cost: CostModel
    parameters: Parameters

    def seconds(self, ranks: int, hosts: int, size_bytes: float) -> float:
        """The time of one call; NaN if it is unknown what a library runs at this size."""
        try:
            return self.parameters.seconds(self.cost, ranks, hosts, size_bytes)
        except AnalysisError:
            return math.nan


@dataclass(frozen=True, slots=True)
class Expected:
    """The prediction of the cost formulas for two algorithms.

    crossings: their crossovers S*.
    faster: the faster one at each measured size (None: equal cost); sizes without a known cost are left out.
    origin: where α, β, γ and R come from.
    """

    crossings: tuple[Crossing, ...]
    faster: Mapping[int, str | None]
    origin: str


def sized(series: Series) -> dict[int, GroupSummary]:
    """The points of ``series`` by size, without size 0, which has no S*."""
    return {point.size_bytes: point for point in series.points if point.size_bytes}


def _predict(
    left: _Costed | Unavailable,
    right: _Costed | Unavailable,
    shape: tuple[int, int],
    names: tuple[str, str],
    sizes: Sequence[int],
) -> Expected | Unavailable:
    """The prediction for two algorithms with the same parameters."""
    if isinstance(left, Unavailable):
        return left
    if isinstance(right, Unavailable):
        return right

    def difference(size_bytes: float) -> float:
        """Of the logarithms of both times: below 0 if ``left`` takes less; NaN if a cost is unknown."""
        return math.log(left.seconds(*shape, size_bytes) / right.seconds(*shape, size_bytes))

    at_sizes = {size: value for size in sizes if not math.isnan(value := difference(size))}
    if not at_sizes:
        return Unavailable("no-common-size", f"no measured size has a known cost of both {names[0]} and {names[1]}")
    if LIBRARY not in names:
        at = left.parameters.crossover_bytes(left.cost, right.cost, *shape)
        places = [] if at is None else [(at, difference(at / 2))]
    else:
        places = list(_sign_changes(difference, sizes[0] / _BEYOND, sizes[-1] * _BEYOND))
    return Expected(
        crossings=tuple(Crossing(*(names if before < 0 else names[::-1]), at) for at, before in places),
        faster={
            size: None if abs(value) <= _ALIKE else names[0] if value < 0 else names[1]
            for size, value in at_sizes.items()
        },
        origin=left.parameters.origin,
    )


def _sign_changes(
    difference: Callable[[float], float], first_bytes: float, last_bytes: float
) -> Iterator[tuple[float, float]]:
    """The sizes at which ``difference`` changes its sign, each with the value before."""
    grid = np.geomspace(first_bytes, last_bytes, round(_STEPS * math.log2(last_bytes / first_bytes)) + 1)
    differences = [(float(size), difference(float(size))) for size in grid]
    apart = [(size, value) for size, value in differences if math.isnan(value) or abs(value) > _ALIKE]
    for (size, before), (next_size, after) in pairwise(apart):
        if before < 0 < after or after < 0 < before:
            yield root(difference, size, next_size), before


def _costs_of(
    members: Mapping[str, Curve], library: Library | Unavailable | None
) -> Mapping[str, _Costed | Unavailable]:
    """The costs of the algorithms of one op."""
    first = next(iter(members.values()))
    key, parameters = first.series.key, first.parameters
    if isinstance(parameters, Unavailable):
        return dict.fromkeys(members, parameters)
    calls = None if library is None else Calls(library, key.dtype, key.mode)
    gamma, words = first.gamma
    if gamma is not None:
        origin = f"{parameters.origin}; {words}"
        parameters = replace(parameters, gamma_seconds_per_byte=gamma, origin=origin)
    return {name: _cost_of(curve, parameters, calls) for name, curve in members.items()}


def _cost_of(curve: Curve, parameters: Parameters, calls: Calls | None) -> _Costed | Unavailable:
    """The algorithm behind ``curve`` with ``parameters``; ``calls`` as in ``candidates``."""
    if isinstance(curve.model, Unavailable):
        return curve.model
    key = curve.series.key
    cost = candidates(key.op, key.cost_models, key.algorithm, calls)[0]
    if cost.inner_sent(*curve.series.shape, 1) > 0:
        return Unavailable(
            "one-level", "messages between hosts give no α and β within a host, which a two-level algorithm needs"
        )
    return _Costed(cost, parameters)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two algorithms at the sizes at which both were measured.

    faster: the certainly faster one at each size; None if undecided.
    measured: their crossovers.
    expected: prediction of the cost formulas.
    """

    names: tuple[str, str]
    sizes_bytes: tuple[int, ...]
    faster: tuple[str | None, ...]
    measured: tuple[Crossing, ...]
    smallest: Gain
    largest: Gain
    expected: Expected | Unavailable

    def expected_bytes(self, crossing: Crossing) -> float | None:
        """The S* for a measured ``crossing``: the nearest one in the same direction; None if the formulas have none."""
        if isinstance(self.expected, Unavailable):
            return None
        alike = [predicted.at_bytes for predicted in self.expected.crossings if predicted.below == crossing.below]
        return min(alike, key=lambda at: abs(math.log(at / crossing.at_bytes)), default=None)

    def ratio(self, crossing: Crossing) -> float | None:
        """A measured ``crossing`` over its S*; None if there is no S*."""
        expected = self.expected_bytes(crossing)
        return None if expected is None else crossing.at_bytes / expected

    @property
    def undecided(self) -> tuple[int, ...]:
        """The undecided sizes, except those between which the two cross."""
        sure = [place for place, name in enumerate(self.faster) if name is not None]
        crossed = [range(start, end) for start, end in pairwise(sure) if self.faster[start] != self.faster[end]]
        unsure = [place for place, name in enumerate(self.faster) if name is None]
        return tuple(self.sizes_bytes[place] for place in unsure if not any(place in span for span in crossed))


@dataclass(frozen=True, slots=True)
class AlgorithmComparison:
    """All algorithms of one op, measured in the same way on the same ranks, and all pairs of them. ``key`` is what they
    share.
    """

    key: SeriesKey
    curves: Mapping[str, Series]
    pairs: tuple[Pair, ...]

    @property
    def by_size(self) -> Mapping[int, Mapping[str, GroupSummary]]:
        """The points at each size that all algorithms have, ascending."""
        points = {name: sized(series) for name, series in self.curves.items()}
        common = set.intersection(*(set(curve) for curve in points.values()))
        return {size: {name: curve[size] for name, curve in points.items()} for size in sorted(common)}

    @property
    def _fastest(self) -> list[tuple[int, str]]:
        """Each of these sizes with the algorithm that has the smallest median."""
        return [(size, min(points, key=lambda name: points[name].time_ns)) for size, points in self.by_size.items()]

    @property
    def leaders(self) -> tuple[str, ...]:
        """The algorithms with the smallest median at any of these sizes, from the smallest size on."""
        return tuple(dict.fromkeys(name for _, name in self._fastest))

    @property
    def turns(self) -> tuple[tuple[Crossing, float | None], ...]:
        """The measured crossovers at which the overall fastest changes, each with its S*."""
        turns: list[tuple[Crossing, float | None]] = []
        for pair in self.pairs:
            for crossing in pair.measured:
                before = [name for size, name in self._fastest if size < (crossing.low_bytes or crossing.at_bytes)]
                after = [name for size, name in self._fastest if size > (crossing.high_bytes or crossing.at_bytes)]
                if before[-1:] == [crossing.below] and after[:1] == [crossing.above]:
                    turns.append((crossing, pair.expected_bytes(crossing)))
        return tuple(turns)


def algorithm_comparisons(
    curves: Sequence[Curve], library: Library | Unavailable | None
) -> tuple[AlgorithmComparison, ...]:
    """Every op with several measured algorithms, over send/recv or by the backend itself (``library``: its choice for
    MPI).

    S* uses the parameters of the models of ``curves``, which come from messages.
    """
    groups: dict[SeriesKey, dict[str, Curve]] = {}
    for curve in curves:
        key, name = curve.series.key, curve.series.key.algorithm or LIBRARY
        if sized(curve.series):
            groups.setdefault(key.of_library, {})[name] = curve
    comparisons = []
    for key, members in groups.items():
        if len(members) > 1:
            costs = _costs_of(members, library)
            series = {name: curve.series for name, curve in members.items()}
            comparisons.append(AlgorithmComparison(key, series, tuple(_pairs(series, costs))))
    return tuple(comparison for comparison in comparisons if comparison.pairs)


def _pairs(curves: Mapping[str, Series], costs: Mapping[str, _Costed | Unavailable]) -> Iterator[Pair]:
    shape = next(iter(curves.values())).shape
    for names in combinations(curves, 2):
        first, second = (sized(curves[name]) for name in names)
        timed = {size: (first[size], second[size]) for size in first if size in second}
        sizes = tuple(timed)
        if sizes:
            yield Pair(
                names=names,
                sizes_bytes=sizes,
                faster=tuple(faster(names, both) for both in timed.values()),
                measured=crossings(names, timed),
                smallest=gain(names, sizes[0], timed[sizes[0]]),
                largest=gain(names, sizes[-1], timed[sizes[-1]]),
                expected=_predict(costs[names[0]], costs[names[1]], shape, names, sizes),
            )
