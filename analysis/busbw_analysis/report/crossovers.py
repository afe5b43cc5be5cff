"""Several algorithms of one op: their distance from the fastest, and crossovers, for ``busbw fit`` and the report."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np

from busbw.units import about_size, format_size, format_time
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.sentences import sentences
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.algorithms import AlgorithmComparison, Crossing, Expected, Gain, Pair
from busbw_analysis.report import plots
from busbw_analysis.report.document import MISSING, Block, Column, Figure, LegendEntry, Table, table, three_digits
from busbw_analysis.report.labels import ends_of
from busbw_analysis.report.plots import (
    HAIRLINE,
    INK,
    LINE_STYLES,
    SLOTS,
    Point,
    canvas,
    draw_bars,
    draw_points,
    head,
    log_height,
    size_axis,
)
from busbw_analysis.report.svg import SERIES, inline

UNDECIDED: Final = "undecided"
_PAIRS: Final = 6
"""Up to this many pairs (those of four algorithms), all are shown."""
_NAMED: Final = 3

_NOTES: Final = (
    "faster: the intervals do not overlap; in brackets the range of the crossover; S*: crossover of the formulas",
    "not observed: the formulas cross among these sizes, but only one algorithm was measured to be faster",
    "undecided: the intervals overlap at every size; contradicts the model: the formulas favour the other one",
)


def shown(comparison: AlgorithmComparison) -> tuple[Pair, ...]:
    """The pairs to show: of many pairs, those with an algorithm that is the fastest somewhere.

    All pairs if no size is common to all algorithms, so that none is known to be the fastest.
    """
    leaders = comparison.leaders
    if len(comparison.pairs) <= _PAIRS or not leaders:
        return comparison.pairs
    return tuple(pair for pair in comparison.pairs if not set(leaders).isdisjoint(pair.names))


def measured_words(pair: Pair) -> str:
    """Which of two algorithms was faster, by size."""
    count = len(pair.sizes_bytes)
    undecided = pair.undecided
    if len(undecided) == count:
        return f"{UNDECIDED} at any of {count} sizes" if count > 1 else f"{UNDECIDED} at the one size"
    if pair.measured:
        text = crossing_words(pair.measured)
    else:
        name = next(name for name in pair.faster if name is not None)
        certain = [size for size in pair.sizes_bytes if size not in undecided]
        if undecided and len(certain) <= _NAMED:
            return f"{name} at {_sizes(certain)}; {UNDECIDED} elsewhere"
        text = f"{name} at {len(certain)} of {count} sizes" if undecided else f"{name} at all {count} sizes"
    if not undecided:
        return text
    return f"{text}; {UNDECIDED} at {_sizes(undecided) if len(undecided) <= _NAMED else f'{len(undecided)} of {count}'}"


def _sizes(sizes_bytes: Iterable[int]) -> str:
    return ", ".join(map(format_size, sizes_bytes))


def crossing_words(crossings: Sequence[Crossing]) -> str:
    """``tree up to 23 KiB (20 KiB … 27 KiB), then ring``."""
    parts = [f"{crossing.below} up to {about_size(crossing.at_bytes)}{_range(crossing)}" for crossing in crossings]
    return f"{', '.join(parts)}, then {crossings[-1].above}"


def _range(crossing: Crossing) -> str:
    if crossing.low_bytes is None or crossing.high_bytes is None:
        return " (no interval)"
    return f" ({about_size(crossing.low_bytes)} … {about_size(crossing.high_bytes)})"


def formula_words(pair: Pair) -> str:
    """S* of the pair and the algorithm that is faster above it; if S* was not measured, the nearest one."""
    expected = pair.expected
    if isinstance(expected, Unavailable):
        return MISSING
    if not expected.crossings:
        return f"none: {_at_sizes(expected, len(pair.sizes_bytes))}"
    inside = [crossing for crossing in expected.crossings if _inside(pair, crossing)]
    if inside:
        return ", ".join(f"{about_size(crossing.at_bytes)}, then {crossing.above}" for crossing in inside[:_NAMED])
    middle = math.sqrt(pair.sizes_bytes[0] * pair.sizes_bytes[-1])
    nearest = min(expected.crossings, key=lambda crossing: abs(math.log(crossing.at_bytes / middle)))
    return f"{about_size(nearest.at_bytes)} (not measured), then {nearest.above}"


def _at_sizes(expected: Expected, count: int) -> str:
    """Which formula is cheaper at how many of ``count`` sizes, if the formulas do not cross."""
    places = Counter(name for name in expected.faster.values() if name is not None)
    if not places:
        return "they cost the same"
    return ", ".join(
        f"{name} at all sizes" if number == count else f"{name} at {number} of {count} sizes"
        for name, number in places.items()
    )


def agreement_words(pair: Pair) -> str:
    """The measured crossovers over S* as ratios, or in words if there is not one of each."""
    expected = pair.expected
    if isinstance(expected, Unavailable):
        return MISSING
    if pair.measured:
        ratios = [pair.ratio(crossing) for crossing in pair.measured]
        words = ["not predicted" if ratio is None else f"{ratio:#.2g}".rstrip(".") for ratio in ratios]
        return ", ".join(words if any(ratios) else words[:1])
    certain = {size: name for size, name in zip(pair.sizes_bytes, pair.faster, strict=True) if name is not None}
    if not certain:
        return UNDECIDED
    held = [
        name == by_formula for size, name in certain.items() if (by_formula := expected.faster.get(size)) is not None
    ]
    if any(_inside(pair, crossing) for crossing in expected.crossings):
        return UNDECIDED if all(held) else "not observed"
    if held:
        return "as predicted" if all(held) else "contradicts the model"
    return UNDECIDED if certain.keys().isdisjoint(expected.faster) else "predicted alike"


def _inside(pair: Pair, crossing: Crossing) -> bool:
    return pair.sizes_bytes[0] < crossing.at_bytes < pair.sizes_bytes[-1]


def gain_words(gain: Gain) -> str:
    """``ring 2.1 ×``."""
    return f"{gain.faster} {gain.times:.3g} ×" if gain.sure else UNDECIDED


def intervals_words(comparison: AlgorithmComparison) -> str:
    """The kinds of the times' intervals, and how sizes without one are decided."""
    kinds = dict.fromkeys(point.interval.kind for series in comparison.curves.values() for point in series.points)
    interval_kinds = [kind for kind in kinds if kind != "none"]
    lacking = "none at some sizes, decided by medians alone" if interval_kinds else "none, decided by medians alone"
    return ", ".join([*interval_kinds, *([lacking] if "none" in kinds else [])])


def origin_words(pair: Pair) -> str:
    """The origin of the parameters of S*, or why there is no S*."""
    expected = pair.expected
    return f"no S*: {expected.reason}" if isinstance(expected, Unavailable) else f"S* by {expected.origin}"


def origins(origins_of: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Each text of the pairs (names, text) once, with its names if there are several texts."""
    by_words = by_key((words, names) for names, words in origins_of)
    several = len(by_words) > 1
    return tuple(f"{words} ({'; '.join(names)})" if several else words for words, names in by_words.items())


def crossing_table(comparison: AlgorithmComparison, name: str | None = None) -> Table:
    """A row for every two algorithms that are shown; ``name`` is the name of the curve."""
    pairs = shown(comparison)
    ends = (min(pair.sizes_bytes[0] for pair in pairs), max(pair.sizes_bytes[-1] for pair in pairs))
    columns: list[Column[Pair]] = [
        Column("Algorithms", lambda pair: " and ".join(pair.names)),
        Column("Faster, as measured", measured_words),
        Column("S*", formula_words),
        Column("Measured / S*", agreement_words),
        Column(f"At {format_size(ends[0])}", lambda pair: gain_words(pair.smallest)),
        Column(f"At {format_size(ends[1])}", lambda pair: gain_words(pair.largest)),
    ]
    more = len(comparison.pairs) - len(pairs)
    notes = [
        f"intervals: {intervals_words(comparison)}",
        *origins((" and ".join(pair.names), origin_words(pair)) for pair in pairs),
        *_NOTES,
        *([f"{more} more pairs are in the JSON"] if more else []),
    ]
    return table(f"{name or comparison.key.label}: every two algorithms", columns[: 4 + len(set(ends))], pairs, *notes)


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
    picture = draw_relative(drawn, comparison.turns, f"{anchor}-algorithms", title, caption)

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


def _relative(point: GroupSummary, least_ns: float) -> plots.Point:
    """A time and its ends relative to the fastest time."""
    low, high = (None if end is None else end / least_ns for end in ends_of(point.interval))
    return plots.Point(point.size_bytes, point.time_ns / least_ns, low, high)


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
    yield from (LegendEntry(plots.swatch(slot, "points"), name) for slot, name in enumerate(names))
    if comparison.turns:
        ranged = any(turn.low_bytes is not None for turn, _ in comparison.turns)
        yield LegendEntry(plots.swatch(None, "bound"), f"measured crossover{', with its range' if ranged else ''}")
    if any(expected is not None for _, expected in comparison.turns):
        yield LegendEntry(plots.swatch(None, "model"), "S* from the formulas")


_LEAST_SPAN: Final = 2.0


def draw_relative(
    algorithms: Sequence[tuple[Sequence[Point], Sequence[tuple[float, float]]]],
    turns: Sequence[tuple[Crossing, float | None]],
    identity: str,
    title: str,
    description: str,
) -> str:
    """Times relative to the fastest over size as an inline SVG, with a line at every crossover and its S*.

    algorithms: for each its points, and the vertices (bytes, ratio) of the line between them.
    """
    with canvas() as (figure, axes):
        every = [point for points, _ in algorithms for point in points]
        reach = max(_LEAST_SPAN, 1.15 * max(point.value for point in every))
        log_height(axes, 1 / reach**0.06, reach, "{:g} ×".format)
        size_axis(axes, [point.size_bytes for point in every])
        head(axes, "Time / that of the fastest")
        left, right = axes.get_xlim()
        for turn, expected in turns:
            if turn.low_bytes is not None and turn.high_bytes is not None:
                axes.axvspan(turn.low_bytes, turn.high_bytes, facecolor=HAIRLINE, alpha=0.45, linewidth=0, zorder=1)
            for size, (style, width) in ((turn.at_bytes, LINE_STYLES["bound"]), (expected, LINE_STYLES["model"])):
                if size is not None and left < size < right:
                    axes.axvline(size, color=INK, linewidth=width, linestyle=style, zorder=2)
        for slot, (points, line) in enumerate(algorithms):
            draw_bars(axes, slot, points)
            axes.plot(*zip(*line, strict=True), color=SERIES[slot], linewidth=0.8, zorder=3)
            draw_points(axes, slot, [(point.size_bytes, point.value) for point in points])
        return inline(figure, identity, title, description)
