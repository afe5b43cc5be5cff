"""The part of a report about algorithms of one op beside each other: how far each is from the fastest, where they
cross, and whether formulas said so.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np

from busbw.units import about_size, format_size, format_time
from busbw_analysis.data.series import Point
from busbw_analysis.diagnosis.algorithms import AlgorithmComparison
from busbw_analysis.report.document import Block, Column, Figure, LegendEntry, sentence, table, three_digits
from busbw_analysis.report.plots import curves, models
from busbw_analysis.report.plots.axes import SLOTS
from busbw_analysis.report.sections.labels import ends_of
from busbw_analysis.report.tables.crossovers import crossing_table

_LEAST_SIZES: Final = 3
_STEPS: Final = 12
"""Of a line from one size to the next."""


def beside_each_other(comparison: AlgorithmComparison, anchor: str, *, draw: bool = True) -> tuple[Block, ...]:
    """A picture and the numbers of how far every algorithm is from the fastest, and every two of them in a table."""
    sizes = comparison.by_size
    figure = (_figure(comparison, sizes, anchor),) if draw and len(sizes) >= _LEAST_SIZES else ()
    return (*figure, crossing_table(comparison))


def _figure(comparison: AlgorithmComparison, sizes: Mapping[int, Mapping[str, Point]], anchor: str) -> Figure:
    names = _drawn(comparison, sizes)
    lines = _lines(sizes)
    least = {size: min(point.time_ns for point in points.values()) for size, points in sizes.items()}
    drawn = [([_relative(points[name], least[size]) for size, points in sizes.items()], lines[name]) for name in names]
    caption = _caption(comparison)
    label = comparison.key.label
    title = f"{label}: time over that of the fastest"
    picture = models.draw_relative(drawn, comparison.turns, f"{anchor}-algorithms", title, caption)

    def ratio(name: str, size: int) -> float:
        return sizes[size][name].time_ns / least[size]

    columns: tuple[Column[int], ...] = (
        Column("Size S", lambda size: size, format_size),
        Column("Fastest", lambda size: least[size], format_time),
        *(Column(name, partial(ratio, name), three_digits, group="Times as long as the fastest") for name in names),
    )
    left = [name for name in comparison.curves if name not in names]
    note = "As unsure as the times, whose ends stand with each curve."
    note += f" Not drawn, for they are slower: {', '.join(left)}." if left else ""
    numbers = table(f"{label}: times as long as the fastest", columns, sizes, note, folded=True)
    return Figure(caption, (picture,), tuple(_legend(names, comparison)), numbers)


def _relative(point: Point, least_ns: float) -> curves.Point:
    """A time and its ends over that of the fastest."""
    low, high = (None if end is None else end / least_ns for end in ends_of(point.interval))
    return curves.Point(point.size_bytes, point.time_ns / least_ns, low, high)


def _lines(sizes: Mapping[int, Mapping[str, Point]]) -> Mapping[str, tuple[tuple[float, float], ...]]:
    """Times over that of the fastest, between the sizes as well, where crossings are found by straight lines."""
    measured = np.asarray(list(sizes), dtype=np.float64)
    steps = [np.geomspace(*two, _STEPS, endpoint=False) for two in pairwise(measured)]
    between = np.concatenate([*steps, measured[-1:]])
    names = list(next(iter(sizes.values())))
    times = [np.interp(between, measured, [points[name].time_ns for points in sizes.values()]) for name in names]
    least = np.min(times, axis=0)
    return {
        name: tuple(zip(between.tolist(), (one / least).tolist(), strict=True))
        for name, one in zip(names, times, strict=True)
    }


def _drawn(comparison: AlgorithmComparison, sizes: Mapping[int, Mapping[str, Point]]) -> list[str]:
    """As many as can be told apart, in their order: where there are more, those nearest to the fastest."""

    def distance(name: str) -> float:
        return sum(math.log(points[name].time_ns) for points in sizes.values())

    chosen = list(dict.fromkeys([*comparison.leaders, *sorted(comparison.curves, key=distance)]))[:SLOTS]
    return [name for name in comparison.curves if name in chosen]


def _caption(comparison: AlgorithmComparison) -> str:
    """Who is the fastest, and where that changes for sure."""
    turns = sorted(comparison.turns, key=lambda turn: turn[0].at_bytes)
    if len(comparison.leaders) == 1:
        return f"By its medians {comparison.leaders[0]} is the fastest at every size."
    if not turns:
        names = ", ".join(comparison.leaders)
        return f"By their medians {names} are the fastest in turn, but none of their crossings is sure."
    told = [
        f"{one.below} gives way to {one.above} at {about_size(one.at_bytes)}"
        + ("" if expected is None else f", where S* is {about_size(expected)}")
        for one, expected in turns
    ]
    return sentence("; ".join(told))


def _legend(names: Sequence[str], comparison: AlgorithmComparison) -> Iterator[LegendEntry]:
    yield from (LegendEntry(curves.swatch(slot, "points"), name) for slot, name in enumerate(names))
    if comparison.turns:
        ranged = any(turn.low_bytes is not None for turn, _ in comparison.turns)
        yield LegendEntry(curves.swatch(None, "bound"), f"measured crossing{', with its range' if ranged else ''}")
    if any(expected is not None for _, expected in comparison.turns):
        yield LegendEntry(curves.swatch(None, "model"), "S* of their formulas")
