"""Where the measured curves of two algorithms cross, and what one gains over the other, as far as intervals leave no
doubt of it.

At a size at which the intervals of both overlap, neither is told from the other, however often their medians change
places. One that was faster for sure at some size and slower for sure at a larger one was crossed between those two:
where straight lines through the medians meet, and for the range those through the ends of the intervals. Times are
taken to be straight over the size from one measured size to the next, as they are by every formula: on logarithmic
paper, lines that are straight there would put the crossing of two formulas up to a quarter away for sizes four times
apart.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from busbw_analysis.data.series import Point

Timed = Mapping[int, tuple[Point, Point]]
"""Both points of two algorithms at each size above 0, ascending."""


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
