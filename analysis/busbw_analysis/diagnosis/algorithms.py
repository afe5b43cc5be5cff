"""Algorithms of one op held against each other: which is the fastest at which sizes, where two cross, and whether
formulas said so (S*, where both take the same time).

Measured over send/recv beside each other, and beside what the library runs by itself.

Measured, at a size at which the intervals of both overlap, neither is told from the other, however often their medians
change places. One that was faster for sure at some size and slower for sure at a larger one was crossed between those
two: where straight lines through the medians meet, and for the range those through the ends of the intervals. Times are
taken to be straight over the size from one measured size to the next, as they are by every formula: on logarithmic
paper, lines that are straight there would put the crossing of two formulas up to a quarter away for sizes four times
apart.

Costs are fed with α and β (γ, R) of messages of the same run, or else with the parameters of a joint fit.
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from typing import Final

import numpy as np
from scipy.optimize import brentq

from busbw.errors import AnalysisError
from busbw.units import format_time
from busbw_analysis.data.series import Point, Series, SeriesKey
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.verdicts import Curve
from busbw_analysis.fitting.design import Parameter
from busbw_analysis.fitting.identify import A_CALL, written
from busbw_analysis.fitting.joint import JointFit, OneRegime
from busbw_analysis.models.bounds import gamma_of
from busbw_analysis.models.choices import Calls, Library
from busbw_analysis.models.costs import CostModel, Parameters
from busbw_analysis.models.select import candidates
from busbw_analysis.predict.selection import LIBRARY, algorithm_of, shape_of

Timed = Mapping[int, tuple[Point, Point]]
"""Both points of two algorithms at each size above 0, ascending."""


_BEYOND: Final = 16
"""S* of costs that are no straight lines is looked for up to so many times what was measured, and down to as little."""
_STEPS: Final = 8
"""For each factor of two."""
_ALIKE: Final = 1e-9
"""Costs that differ by less are the same, but for what floating point makes of them."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """``below`` is faster up to ``at_bytes``, ``above`` from there on. A measured one lies between ``low_bytes`` and
    ``high_bytes``, which are None where times have no interval; one of formulas is a number and has none.
    """

    below: str
    above: str
    at_bytes: float
    low_bytes: float | None = None
    high_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class Gain:
    """How many ``times`` as long the slower one takes at one size. ``sure``: their intervals do not overlap."""

    size_bytes: int
    faster: str
    times: float
    sure: bool


def faster(names: tuple[str, str], points: tuple[Point, Point]) -> str | None:
    """Which of two is the faster for sure; None where their intervals overlap, or their times are one."""
    (low, high), (other_low, other_high) = (_ends(point) for point in points)
    if high < other_low:
        return names[0]
    return names[1] if other_high < low else None


def gain(names: tuple[str, str], size_bytes: int, points: tuple[Point, Point]) -> Gain:
    """What the one with the smaller median gains over the other."""
    ratio = points[1].time_ns / points[0].time_ns
    sure = faster(names, points) is not None
    return Gain(size_bytes, names[0] if ratio >= 1 else names[1], max(ratio, 1 / ratio), sure)


def crossings(names: tuple[str, str], timed: Timed) -> tuple[Crossing, ...]:
    """Every crossing of which there is no doubt, by ascending size."""
    sizes = list(timed)
    sure = [(place, name) for place, size in enumerate(sizes) if (name := faster(names, timed[size])) is not None]
    found: list[Crossing] = []
    for (first, below), (last, above) in pairwise(sure):
        if below != above:
            between = {size: timed[size] for size in sizes[first : last + 1]}
            if below != names[0]:
                between = {size: (two, one) for size, (one, two) in between.items()}
            found.append(_crossing(below, above, between))
    return tuple(found)


def _crossing(below: str, above: str, timed: Timed) -> Crossing:
    """The one crossing of ``timed``, whose first point of each two is below and faster at first. Medians that change
    places several times on the way do so by chance, so the middle of those places is taken.
    """
    medians = _places([(size, one.time_ns - two.time_ns) for size, (one, two) in timed.items()])
    at = math.sqrt(medians[0] * medians[-1])
    if any(point.interval.low_ns is None for both in timed.values() for point in both):
        return Crossing(below, above, at)
    ends = [(size, _ends(one), _ends(two)) for size, (one, two) in timed.items()]
    soonest = _places([(size, one[1] - two[0]) for size, one, two in ends])
    latest = _places([(size, one[0] - two[1]) for size, one, two in ends])
    return Crossing(below, above, at, soonest[0], latest[-1])


def _places(differences: Sequence[tuple[int, float]]) -> list[float]:
    """The sizes in bytes at which ``differences``, which begin below 0 and end above, change their sign."""
    found: list[float] = []
    for (size, before), (next_size, after) in pairwise(differences):
        if (before < 0) != (after < 0):
            found.append(size + (next_size - size) * before / (before - after))
    return found


def _ends(point: Point) -> tuple[float, float]:
    """Both ends of the interval, of which there is nothing but the median where there is none."""
    low, high = point.interval.low_ns, point.interval.high_ns
    return (point.time_ns, point.time_ns) if low is None or high is None else (low, high)


@dataclass(frozen=True, slots=True)
class Expected:
    """What the formulas of two algorithms say: their crossings S*, and which is the ``faster`` at each size that was
    measured (None: they cost the same; sizes at which no cost of one is known are not in it). ``origin`` says where
    α, β, γ and R are from.
    """

    crossings: tuple[Crossing, ...]
    faster: Mapping[int, str | None]
    origin: str


def sized(series: Series) -> dict[int, Point]:
    """The points of ``series`` by their size, for S* without those of no bytes."""
    return {point.size_bytes: point for point in series.points if point.size_bytes}


@dataclass(frozen=True, slots=True)
class Costs:
    """What the algorithms of one op cost on one number of ranks and hosts.

    ``models``: by name, or why one is not known.
    ``parameters``: what they are fed with.
    ``shape``: ranks and hosts.
    ``origin``: where the parameters are from, in words.
    """

    models: Mapping[str, CostModel | Unavailable]
    parameters: Parameters | JointFit
    shape: tuple[int, int]
    origin: str

    def difference(self, one: CostModel, other: CostModel, size_bytes: float) -> float:
        """Of the logarithms of both times: below 0 where ``one`` takes less; NaN where no cost is known."""
        try:
            first, second = (self.parameters.seconds(model, *self.shape, size_bytes) for model in (one, other))
        except AnalysisError:
            # The library takes an algorithm there of which no cost is known.
            return math.nan
        return math.log(first / second)


def _expected(costs: Costs, names: tuple[str, str], sizes: Sequence[int]) -> Expected | Unavailable:
    one, other = (costs.models[name] for name in names)
    if isinstance(one, Unavailable):
        return one
    if isinstance(other, Unavailable):
        return other
    difference = functools.partial(costs.difference, one, other)
    at_sizes = {size: value for size in sizes if not math.isnan(value := difference(size))}
    if not at_sizes:
        return Unavailable(
            "no-common-size", f"at no size that was measured a cost of both {names[0]} and {names[1]} is known"
        )
    if isinstance(costs.parameters, Parameters) and LIBRARY not in names:
        at = costs.parameters.crossover_bytes(one, other, *costs.shape)
        places = [] if at is None else [(at, difference(at / 2))]
    else:
        places = list(_sign_changes(difference, sizes[0] / _BEYOND, sizes[-1] * _BEYOND))
    return Expected(
        crossings=tuple(Crossing(*(names if before < 0 else names[::-1]), at) for at, before in places),
        faster={
            size: None if abs(value) <= _ALIKE else names[0] if value < 0 else names[1]
            for size, value in at_sizes.items()
        },
        origin=costs.origin,
    )


def _sign_changes(
    difference: Callable[[float], float], first_bytes: float, last_bytes: float
) -> Iterator[tuple[float, float]]:
    """The sizes at which ``difference`` changes its sign, each with what it is before."""
    grid = np.geomspace(first_bytes, last_bytes, round(_STEPS * math.log2(last_bytes / first_bytes)) + 1)
    differences = [(float(size), difference(float(size))) for size in grid]
    apart = [(size, value) for size, value in differences if math.isnan(value) or abs(value) > _ALIKE]
    for (size, before), (next_size, after) in pairwise(apart):
        if before < 0 < after or after < 0 < before:
            yield float(brentq(difference, size, next_size)), before


def costs_of(
    members: Mapping[str, Curve],
    everything: Sequence[Series],
    library: Library | Unavailable | None,
    joint: Sequence[OneRegime],
) -> Iterator[Costs | Unavailable]:
    """By messages, where the models of these curves have their parameters from there, and then by a joint fit."""
    first = next(iter(members.values()))
    key, shape, parameters = first.series.key, shape_of(first.series), first.parameters
    if isinstance(parameters, Parameters):
        calls = None if library is None else Calls(library, key.dtype, key.mode)
        gamma, words = gamma_of(key, everything)
        yield Costs(
            {name: _by_messages(curve, shape, calls) for name, curve in members.items()},
            replace(parameters, gamma_seconds_per_byte=gamma or 0.0),
            shape,
            parameters.origin if gamma is None else f"{parameters.origin}; {words}",
        )
    else:
        yield parameters
    series = {name: curve.series for name, curve in members.items()}
    fitted = next((one.joint for one in joint if one.joint is not None and _has(one.joint, series.values())), None)
    if fitted is not None:
        yield Costs({name: _by_joint(one, fitted) for name, one in series.items()}, fitted, shape, _origin(fitted))


def _by_messages(curve: Curve, shape: tuple[int, int], calls: Calls | None) -> CostModel | Unavailable:
    if isinstance(curve.model, Unavailable):
        return curve.model
    key = curve.series.key
    model = candidates(key.op, key.cost_models, key.algorithm, calls)[0]
    return _ONE_LEVEL if model.inner_sent(*shape, 1) > 0 else model


_ONE_LEVEL: Final = Unavailable(
    "one-level",
    "α and β of messages between hosts say nothing of what stays inside a host, for which an algorithm in two levels "
    "needs others: busbw fit finds both from runs on several numbers of hosts and of ranks on each",
)


def _has(joint: JointFit, curves: Iterable[Series]) -> bool:
    """Whether all of ``curves`` are among the data of ``joint``, with the times that they have here."""
    seen = {(one.op, one.algorithm, one.ranks, one.hosts, one.size_bytes, one.seconds) for one in joint.observations}
    return all(
        (series.key.op, series.key.algorithm, *shape_of(series), size, point.time_ns / 1e9) in seen
        for series in curves
        for size, point in sized(series).items()
    )


def _by_joint(series: Series, joint: JointFit) -> CostModel | Unavailable:
    model = joint.curves[series.key.op, series.key.algorithm]
    try:
        joint.seconds(model, *shape_of(series), series.points[-1].size_bytes)
    except AnalysisError as error:
        return Unavailable(error.code, str(error))
    return model


def _origin(joint: JointFit) -> str:
    """What of the parameters is known: each by itself, or sums of those that the data do not tell apart."""
    known = [written(name, estimate.value) for name, estimate in joint.parameters.items() if estimate.value > 0]
    sums = [
        f"{mixed.sum} = {_in_units(mixed.parameters[0], mixed.estimate.value)}"
        for mixed in joint.not_separated
        if mixed.estimate is not None and mixed.estimate.value > 0
    ]
    told = f"{', '.join([*known, *sums])}, from a joint fit" if known or sums else "a joint fit"
    return f"{told} that has these very curves among its data"


def _in_units(parameter: Parameter, value: float) -> str:
    return format_time(1e9 * value) if parameter in A_CALL else f"{1e9 * value:.3g} ns/B"


@dataclass(frozen=True, slots=True)
class Pair:
    """Two algorithms at the sizes that both were measured at: which was ``faster`` for sure at each (None: not told
    apart), where they cross, and what their formulas say of that.
    """

    names: tuple[str, str]
    sizes_bytes: tuple[int, ...]
    faster: tuple[str | None, ...]
    measured: tuple[Crossing, ...]
    smallest: Gain
    largest: Gain
    expected: Expected | Unavailable

    def expected_bytes(self, crossing: Crossing) -> float | None:
        """The S* that a measured ``crossing`` is to be held against: the nearest at which the same two change places
        in the same direction. None where the formulas have no such.
        """
        if isinstance(self.expected, Unavailable):
            return None
        alike = [one.at_bytes for one in self.expected.crossings if one.below == crossing.below]
        return min(alike, key=lambda at: abs(math.log(at / crossing.at_bytes)), default=None)

    def ratio(self, crossing: Crossing) -> float | None:
        """A measured ``crossing`` over its S*; None where there is none."""
        expected = self.expected_bytes(crossing)
        return None if expected is None else crossing.at_bytes / expected

    @property
    def undecided(self) -> tuple[int, ...]:
        """The sizes that do not tell them apart, but for those between which they cross."""
        sure = [place for place, name in enumerate(self.faster) if name is not None]
        crossed = {
            place
            for one, two in pairwise(sure)
            if self.faster[one] != self.faster[two]
            for place in range(one + 1, two)
        }
        return tuple(
            size
            for place, (size, name) in enumerate(zip(self.sizes_bytes, self.faster, strict=True))
            if name is None and place not in crossed
        )


@dataclass(frozen=True, slots=True)
class AlgorithmComparison:
    """All algorithms of one op on the same ranks, measured in the same way, and every two of them. ``key`` is what they
    have in common.
    """

    key: SeriesKey
    curves: Mapping[str, Series]
    pairs: tuple[Pair, ...]

    @property
    def by_size(self) -> Mapping[int, Mapping[str, Point]]:
        """What was measured at each size that all of them have, ascending."""
        points = {name: sized(series) for name, series in self.curves.items()}
        common = set.intersection(*(set(found) for found in points.values()))
        return {size: {name: found[size] for name, found in points.items()} for size in sorted(common)}

    @property
    def _fastest(self) -> list[tuple[int, str]]:
        """Each of these sizes with the algorithm that has the least median there."""
        return [(size, min(points, key=lambda name: points[name].time_ns)) for size, points in self.by_size.items()]

    @property
    def leaders(self) -> tuple[str, ...]:
        """Those with the least median at one of these sizes or more, from the smallest size on."""
        return tuple(dict.fromkeys(name for _, name in self._fastest))

    @property
    def turns(self) -> tuple[tuple[Crossing, float | None], ...]:
        """The measured crossings at which the fastest of all changes, each with its S*."""
        found: list[tuple[Crossing, float | None]] = []
        for pair in self.pairs:
            for one in pair.measured:
                before = [name for size, name in self._fastest if size < (one.low_bytes or one.at_bytes)]
                after = [name for size, name in self._fastest if size > (one.high_bytes or one.at_bytes)]
                if before[-1:] == [one.below] and after[:1] == [one.above]:
                    found.append((one, pair.expected_bytes(one)))
        return tuple(found)


def algorithm_comparisons(
    curves: Sequence[Curve], library: Library | Unavailable | None = None, joint: Sequence[OneRegime] = ()
) -> tuple[AlgorithmComparison, ...]:
    """Every op that two algorithms were measured of, over send/recv or one of them by the backend itself (``library``:
    which it is over MPI).

    S* has the parameters of the models of ``curves``, which are from messages; of two for which these say nothing those
    of a ``joint`` fit, where these very curves are among its data.
    """
    found: dict[SeriesKey, dict[str, Curve]] = {}
    for curve in curves:
        key, name = curve.series.key, algorithm_of(curve.series.key)
        if sized(curve.series):
            found.setdefault(replace(key, algorithm=None), {})[name] = curve
    everything = [curve.series for curve in curves]
    comparisons = [
        AlgorithmComparison(key, series, tuple(_pairs(series, tuple(costs_of(members, everything, library, joint)))))
        for key, members in found.items()
        if len(members) > 1 and (series := {name: curve.series for name, curve in members.items()})
    ]
    return tuple(comparison for comparison in comparisons if comparison.pairs)


def lacks_formulas(comparisons: Sequence[AlgorithmComparison]) -> bool:
    """Whether there are two algorithms without S*, which a joint fit may have."""
    return any(isinstance(pair.expected, Unavailable) for comparison in comparisons for pair in comparison.pairs)


def _pairs(curves: Mapping[str, Series], costs: Sequence[Costs | Unavailable]) -> Iterator[Pair]:
    for names in combinations(curves, 2):
        one, other = (sized(curves[name]) for name in names)
        timed = {size: (one[size], other[size]) for size in one if size in other}
        sizes = tuple(timed)
        if sizes:
            # By the first of the costs that has both, else what the last one lacks.
            told = [one if isinstance(one, Unavailable) else _expected(one, names, sizes) for one in costs]
            yield Pair(
                names=names,
                sizes_bytes=sizes,
                faster=tuple(faster(names, both) for both in timed.values()),
                measured=crossings(names, timed),
                smallest=gain(names, sizes[0], timed[sizes[0]]),
                largest=gain(names, sizes[-1], timed[sizes[-1]]),
                expected=next((one for one in told if isinstance(one, Expected)), told[-1]),
            )
