"""Algorithms of one op held against each other: which is the fastest at which sizes, and whether formulas said so.

Measured over send/recv beside each other, and beside what the library runs by itself.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

from busbw_analysis.data.series import Point, Series, SeriesKey
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.crossovers import (
    Costs,
    Crossing,
    Expected,
    Gain,
    Timed,
    costs_of,
    crossings,
    expected_of,
    faster,
    gain,
    sized,
)
from busbw_analysis.diagnosis.verdicts import Curve
from busbw_analysis.fitting.joint import OneRegime
from busbw_analysis.models.choices import Library
from busbw_analysis.predict.selection import algorithm_of


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
    def leaders(self) -> tuple[str, ...]:
        """Those with the least median at one of these sizes or more, from the smallest size on."""
        return tuple(
            dict.fromkeys(min(points, key=lambda name: points[name].time_ns) for points in self.by_size.values())
        )

    @property
    def turns(self) -> tuple[tuple[Crossing, float | None], ...]:
        """The measured crossings at which the fastest of all changes, each with its S*."""
        fastest = [(size, min(points, key=lambda name: points[name].time_ns)) for size, points in self.by_size.items()]
        found: list[tuple[Crossing, float | None]] = []
        for pair in self.pairs:
            for one in pair.measured:
                before = [name for size, name in fastest if size < (one.low_bytes or one.at_bytes)]
                after = [name for size, name in fastest if size > (one.high_bytes or one.at_bytes)]
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
        if timed:
            yield _pair(names, timed, costs)


def _pair(names: tuple[str, str], timed: Timed, costs: Sequence[Costs | Unavailable]) -> Pair:
    sizes = tuple(timed)
    return Pair(
        names=names,
        sizes_bytes=sizes,
        faster=tuple(faster(names, both) for both in timed.values()),
        measured=crossings(names, timed),
        smallest=gain(names, sizes[0], timed[sizes[0]]),
        largest=gain(names, sizes[-1], timed[sizes[-1]]),
        expected=expected_of(names, sizes, costs),
    )
