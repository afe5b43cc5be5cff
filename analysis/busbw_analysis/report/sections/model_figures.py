"""The figure of a curve that has a model: measured and predicted, as two drawings, a legend and a table."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

from busbw.units import format_size, format_time
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.diagnosis.normality import Modelled
from busbw_analysis.models.bounds import Spent
from busbw_analysis.models.select import Prediction
from busbw_analysis.report.document import MISSING, Cell, Column, Figure, LegendEntry, Table, percent, table
from busbw_analysis.report.plots import curves, models
from busbw_analysis.report.plots.models import Part, Stack
from busbw_analysis.report.sections.curves import points_of
from busbw_analysis.report.sections.labels import ends_in_words, ends_of

_MOST_OTHERS: Final = 6


def model_figure(identity: str, modelled: Modelled, words: str, *, draw: bool) -> Figure:
    """Drawings, legend and numbers of one curve; only the numbers if nothing can or should be drawn."""
    curve = modelled.curve
    series = (curves.Series(0, tuple(points_of(curve, "time", "measured"))),)
    if not draw or not curves.drawable(series, sizes=3):
        return Figure(words, (), (), _numbers(modelled, folded=False))
    others = _distinct(modelled)
    lines = [curves.Line("other", vertices, None) for _, vertices in others]
    bound = [
        (float(spent.size_bytes), spent.bound_ns) for spent in modelled.explanation.spent if spent.bound_ns is not None
    ]
    lines += [curves.Line("bound", tuple(bound), None)] if bound else []
    lines.append(curves.Line("model", tuple((float(p.size_bytes), p.time_ns) for p in modelled.model), 0))
    panel = curves.Panel("time", "Measured, predicted and bound", series, tuple(lines))
    stack = {spent.size_bytes: _parts(spent) for spent in modelled.explanation.spent if spent.size_bytes}
    name = curve.series.key.label
    pictures = (
        curves.draw(panel, f"{identity}-time", f"{name}: measured and predicted time over size", words),
        models.draw_stack(stack, f"{identity}-parts", f"{name}: where the time goes", words),
    )
    legend = tuple(_legend(modelled, [label for label, _ in others], stack))
    return Figure(words, pictures, legend, _numbers(modelled, folded=True))


def size_in_words(size_bytes: int) -> str:
    """A size in words; a dash for an operation without one, such as barrier."""
    return format_size(size_bytes) if size_bytes else MISSING


def _distinct(modelled: Modelled) -> list[tuple[str, tuple[tuple[float, float], ...]]]:
    """The other algorithms as lines, the fastest first; those with equal times share a line and its label.

    Algorithms that send several messages for one α come last, if there is room.
    """
    sizes = [float(spent.size_bytes) for spent in modelled.explanation.spent]
    own = tuple(float(f"{p.time_ns:.6g}") for p in modelled.model)
    others = (
        ((other.at_once > 1, tuple(float(f"{time_ns:.6g}") for time_ns in other.times_ns)), other.algorithm)
        for other in modelled.explanation.others
    )
    lines = by_key((line, name) for line, name in others if line[1] != own)

    def rank(line: tuple[bool, tuple[float, ...]]) -> tuple[bool, float]:
        return line[0], math.prod(time_ns ** (1 / len(sizes)) for time_ns in line[1])

    return [
        (
            " = ".join(lines[at_once, times]) + (" (several messages for one α)" if at_once else ""),
            tuple(zip(sizes, times, strict=True)),
        )
        for at_once, times in sorted(lines, key=rank)[:_MOST_OTHERS]
    ]


def _parts(spent: Spent) -> dict[Part, float]:
    """Shares of the measured time, from the bottom up; an unexplained part only if it is positive."""
    parts: dict[Part, float] = {"latency": spent.latency_ns, "bandwidth": spent.bandwidth_ns}
    if spent.reduction_ns is not None:
        parts["reduction"] = spent.reduction_ns
    if spent.unexplained_ns > 0:
        parts["unexplained"] = spent.unexplained_ns
    return {part: ns / spent.measured_ns for part, ns in parts.items()}


_NAMES: Final[dict[Part, str]] = {
    "latency": "latency (α)",
    "bandwidth": "bandwidth (β or R, copies)",
    "reduction": "reduction (γ)",
    "unexplained": "unexplained",
}


def _legend(modelled: Modelled, others: Sequence[str], stack: Stack) -> Iterator[LegendEntry]:
    yield LegendEntry(curves.swatch(0, "points"), "measured")
    algorithms = ", ".join(dict.fromkeys(p.algorithm for p in modelled.model))
    yield LegendEntry(curves.swatch(0, "model"), f"model: {algorithms}")
    if modelled.explanation.bound:
        yield LegendEntry(curves.swatch(None, "bound"), f"lower bound: {modelled.explanation.bound}")
    if others:
        yield LegendEntry(curves.swatch(None, "other"), f"other algorithms: {', '.join(others)}")
    shown = {part for shares in stack.values() for part in shares}
    yield from (LegendEntry(models.swatch(part), name) for part, name in _NAMES.items() if part in shown)


def _share(share: float) -> str:
    """Per cent; anything below a tenth of a per cent as ``< 0.1``."""
    return "< 0.1" if 0 < share < 0.001 else percent(share)


_Row: TypeAlias = tuple[GroupSummary, Prediction, Spent]


def _of_the_time(name: str, ns: Callable[[Spent], float | None]) -> Column[_Row]:
    def share(row: _Row) -> float | None:
        return None if (part := ns(row[2])) is None else part / row[2].measured_ns

    return Column(name, share, _share, "%", "Of the time")


_NUMBER_COLUMNS: Final[tuple[Column[_Row], ...]] = (
    Column("Size S", lambda row: row[0].size_bytes, size_in_words),
    Column("Time", lambda row: row[0].time_ns, format_time, ends=lambda row: ends_of(row[0].interval)),
    Column("Model", lambda row: row[1].time_ns, format_time),
    _of_the_time("latency (α)", lambda spent: spent.latency_ns),
    _of_the_time("bandwidth (β, R, copies)", lambda spent: spent.bandwidth_ns),
    _of_the_time(_NAMES["reduction"], lambda spent: spent.reduction_ns),
    Column("unexplained", lambda row: _unexplained(row[2]), str, "%", "Of the time"),
    Column("Lower bound", lambda row: row[2].bound_ns, format_time),
    Column("Bound / time", lambda row: row[2].bound_share, percent, "%"),
)


def _numbers(modelled: Modelled, *, folded: bool) -> Table:
    """The parts of the time at every size."""
    note = f"{ends_in_words(point.interval.kind for point, _, _ in modelled.rows)} Shares are as uncertain as the time."
    return table("Where the time goes", _NUMBER_COLUMNS, modelled.rows, note, folded=folded)


def _unexplained(spent: Spent) -> Cell:
    left = spent.unexplained_ns / spent.measured_ns
    return Cell(_share(left)) if left >= 0 else Cell(f"model too slow by {_share(-left)}", tone="quiet")
