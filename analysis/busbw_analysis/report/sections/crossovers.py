"""Report blocks that compare several algorithms of one op: their distance from the fastest, and measured and predicted
crossovers.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np

from busbw.units import about_size, format_size, format_time
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.sentences import sentences
from busbw_analysis.diagnosis.algorithms import AlgorithmComparison
from busbw_analysis.report.document import Block, Column, Figure, LegendEntry, table, three_digits
from busbw_analysis.report.plots import curves, models
from busbw_analysis.report.plots.axes import SLOTS
from busbw_analysis.report.sections.labels import ends_of
from busbw_analysis.report.tables.crossovers import crossing_table

_LEAST_SIZES: Final = 3
_STEPS: Final = 12
"""Vertices of a line between two neighbouring sizes."""


def beside_each_other(comparison: AlgorithmComparison, anchor: str, *, draw: bool = True) -> tuple[Block, ...]:
    """A figure of every algorithm's time relative to the fastest, and a table of all pairs."""
    sizes = comparison.by_size
    figure = (_figure(comparison, sizes, anchor),) if draw and len(sizes) >= _LEAST_SIZES else ()
    return (*figure, crossing_table(comparison))


def _figure(comparison: AlgorithmComparison, sizes: Mapping[int, Mapping[str, GroupSummary]], anchor: str) -> Figure:
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
        *(Column(name, partial(ratio, name), three_digits, group="Time / fastest time") for name in names),
    )
    left = [name for name in comparison.curves if name not in names]
    note = "Each curve's own table has the intervals of its times."
    note += f" Not drawn because slower: {', '.join(left)}." if left else ""
    numbers = table(f"{label}: time over that of the fastest", columns, sizes, note, folded=True)
    return Figure(caption, (picture,), tuple(_legend(names, comparison)), numbers)


def _relative(point: GroupSummary, least_ns: float) -> curves.Point:
    """A time and its ends relative to the fastest time."""
    low, high = (None if end is None else end / least_ns for end in ends_of(point.interval))
    return curves.Point(point.size_bytes, point.time_ns / least_ns, low, high)


def _lines(sizes: Mapping[int, Mapping[str, GroupSummary]]) -> Mapping[str, tuple[tuple[float, float], ...]]:
    """Times relative to the fastest, also between sizes, by the linear interpolation that finds the crossovers."""
    measured = np.asarray(list(sizes), dtype=np.float64)
    steps = [np.geomspace(*two, _STEPS, endpoint=False) for two in pairwise(measured)]
    between = np.concatenate([*steps, measured[-1:]])
    names = list(next(iter(sizes.values())))
    times = [np.interp(between, measured, [points[name].time_ns for points in sizes.values()]) for name in names]
    least = np.min(times, axis=0)
    return {
        name: tuple(zip(between.tolist(), (curve / least).tolist(), strict=True))
        for name, curve in zip(names, times, strict=True)
    }


def _drawn(comparison: AlgorithmComparison, sizes: Mapping[int, Mapping[str, GroupSummary]]) -> list[str]:
    """As many names as one figure can distinguish, those closest to the fastest, in their order."""

    def distance(name: str) -> float:
        return sum(math.log(points[name].time_ns) for points in sizes.values())

    chosen = list(dict.fromkeys([*comparison.leaders, *sorted(comparison.curves, key=distance)]))[:SLOTS]
    return [name for name in comparison.curves if name in chosen]


def _caption(comparison: AlgorithmComparison) -> str:
    """The fastest algorithm, and the certain crossovers."""
    turns = sorted(comparison.turns, key=lambda turn: turn[0].at_bytes)
    if len(comparison.leaders) == 1:
        return f"By the medians, {comparison.leaders[0]} is the fastest at every size."
    if not turns:
        names = ", ".join(comparison.leaders)
        return f"By the medians, the fastest are in turn {names}, but none of the crossovers is certain."
    changes = [
        f"{crossing.below} gives way to {crossing.above} at {about_size(crossing.at_bytes)}"
        + ("" if expected is None else f", where S* is {about_size(expected)}")
        for crossing, expected in turns
    ]
    return sentences("; ".join(changes))


def _legend(names: Sequence[str], comparison: AlgorithmComparison) -> Iterator[LegendEntry]:
    yield from (LegendEntry(curves.swatch(slot, "points"), name) for slot, name in enumerate(names))
    if comparison.turns:
        ranged = any(turn.low_bytes is not None for turn, _ in comparison.turns)
        yield LegendEntry(curves.swatch(None, "bound"), f"measured crossover{', with its range' if ranged else ''}")
    if any(expected is not None for _, expected in comparison.turns):
        yield LegendEntry(curves.swatch(None, "model"), "S* from the formulas")
