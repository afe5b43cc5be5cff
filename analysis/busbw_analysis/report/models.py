"""Each curve against theory: sections, figures and tables of models, their parts and their assumptions."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, Literal, TypeAlias

import numpy as np

from busbw.units import about_size, format_rate, format_size, format_time, listed
from busbw_analysis.data.grouped import by_key, grouped
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.diagnosis.judge import Curve, Judgement
from busbw_analysis.diagnosis.normality import Modelled, in_words, modelled_curve
from busbw_analysis.fitting.curve import Fit
from busbw_analysis.models.bounds import Fastest, Spent
from busbw_analysis.models.select import Prediction
from busbw_analysis.report import plots
from busbw_analysis.report.crossovers import beside_each_other
from busbw_analysis.report.curves import points_of, predictions_of
from busbw_analysis.report.document import (
    MISSING,
    Block,
    Cell,
    Column,
    Figure,
    LegendEntry,
    Paragraph,
    Section,
    Table,
    percent,
    table,
)
from busbw_analysis.report.fits import fits_table
from busbw_analysis.report.labels import curve_label, ends_in_words, ends_of, varying_fields
from busbw_analysis.report.plots import (
    HAIRLINE,
    INK,
    PAGE,
    canvas,
    head,
    sample,
    size_axis,
)
from busbw_analysis.report.svg import SERIES, VARIABLES, inline

Part = Literal["latency", "bandwidth", "reduction", "unexplained"]

COLOURS: Final[dict[Part, str]] = {
    "latency": SERIES[0],
    "bandwidth": SERIES[1],
    "reduction": SERIES[2],
    "unexplained": HAIRLINE,
}
"""In the order of the stack, from the bottom up."""

_HIGHEST_STACK = 2.0
"""A column is cut off at twice the measured time; the table has its numbers."""


Stack = Mapping[int, Mapping[Part, float]]
"""Shares of the measured time, by size (bytes). A sum above 1 means that the model is too slow."""

_LIMITED = (
    "R limits all algorithms, even if the textbook formula omits it: no time is shorter than all bytes of all ranks "
    "at R. Algorithms that move equally many bytes therefore take about as long at large sizes."
)
_OPEN: Final = 6
"""Most curves shown unfolded; with more, each is folded."""
_MOST_DRAWN: Final = 30
"""Most curves drawn: drawing dominates the time of a report. Others have tables only."""
_NAMED: Final = 2

_HOW: Final = (
    "A model is a formula with α and β from messages between two ranks of the same run, never from the curve that it "
    "is compared with. The columns split the measured time into latency (α), bandwidth (β, or R if the ranks of a host "
    "share less, and copies in memory) and an unexplained rest. Columns above 100 %: the model predicts more than was "
    "measured."
)
_LEAST: Final = (
    "No algorithm can be faster than the lower bound (Chan et al. 2007), with the same α, β and R. Efficiency is the "
    "bound over the measured time. Its ⌈lg n⌉ α assumes one message at a time: algorithms that send to several ranks "
    "at once (direct, spread, linear, a server) may need less."
)


def theory(judgement: Judgement) -> Section | None:
    """One part for every op that has a modelled curve or several measured algorithms; None if there is none. The op's
    section says why a curve has no model.
    """
    modelled = [member for curve in judgement.curves if (member := modelled_curve(curve)) is not None]
    by_op = grouped(modelled, lambda member: member.curve.series.key.op)
    ops = dict.fromkeys((*by_op, *(comparison.key.op for comparison in judgement.comparisons)))
    if not ops:
        return None
    count = len(modelled)
    blocks: list[Block] = [*map(Paragraph, (_HOW, _LEAST, _LIMITED))] if count else []
    if count > _MOST_DRAWN:
        blocks.append(Paragraph(f"{count} curves have a model; the first {_MOST_DRAWN} are drawn.", tone="quiet"))
    parts: list[Section] = []
    drawn = _MOST_DRAWN
    for number, op in enumerate(ops, start=1):
        members = by_op.get(op, [])
        parts.append(_operation(f"theory-{number}", op, members, judgement, drawn=drawn, folded=count > _OPEN))
        drawn -= len(members)
    gist = "Latency, bandwidth and unexplained time of each operation, and the lower bound of any algorithm."
    return Section("theory", "Measured against theory", tuple(blocks), tuple(parts), gist=gist)


def _operation(
    anchor: str, op: str, members: Sequence[Modelled], judgement: Judgement, *, drawn: int, folded: bool
) -> Section:
    varying = varying_fields(member.curve.series.key for member in members)
    labels = [curve_label(member.curve.series.key, varying) for member in members]
    doubts = [judgement.doubts[member.curve.series.key].model for member in members]
    texts = [
        in_words(member.curve, doubt, judgement.facts, judgement.cases)
        for member, doubt in zip(members, doubts, strict=True)
    ]
    captions = (f"{text} {_efficiency(member)}".rstrip() for text, member in zip(texts, members, strict=True))
    figures = [
        model_figure(f"{anchor}-{number}", member, words, draw=number <= drawn)
        for number, (member, words) in enumerate(zip(members, captions, strict=True), start=1)
    ]
    blocks: list[Block] = [Paragraph(text) for text in _fastest(op, members, labels)]
    blocks += _model_tables([member.curve for member in members])
    notes = dict.fromkeys(member.explanation.gamma_origin for member in members if member.explanation.gamma_origin)
    blocks += [Paragraph(f"Reduction: {note}.", tone="quiet") for note in notes]
    comparisons = (comparison for comparison in judgement.comparisons if comparison.key.op == op)
    for number, comparison in enumerate(comparisons, start=1):
        blocks += beside_each_other(comparison, f"{anchor}-{number}", draw=drawn > 0)
    if len(members) <= 1:
        return Section(anchor, op, (*figures, *blocks))
    parts = tuple(
        Section(f"{anchor}-curve-{number}", label, (replace(figure, caption=""),), folded=folded, gist=figure.caption)
        for number, (label, figure) in enumerate(zip(labels, figures, strict=True), start=1)
    )
    return Section(anchor, op, tuple(blocks), parts)


def _efficiency(modelled: Modelled) -> str:
    """How close the curve comes to the lower bound."""
    shares = [
        (spent.bound_share, spent.size_bytes) for spent in modelled.explanation.spent if spent.bound_share is not None
    ]
    if not shares:
        return ""
    best, size = max(shares)
    at = f" at {format_size(size)}" if size else ""
    if best > 1:
        return (
            f"It is faster than the lower bound {modelled.explanation.bound}{at}, which is {percent(best)} % of its "
            "time: the α and β of this run's messages do not apply to it."
        )
    return f"Its best efficiency is {percent(best)} %{at}, against the lower bound {modelled.explanation.bound}."


def _fastest(op: str, members: Sequence[Modelled], labels: Sequence[str]) -> Iterator[str]:
    """The textbook algorithm predicted to be fastest at each size; curves with the same result share a sentence."""
    labelled = (
        (f"{_in_turn(member.explanation.fastest)}.{_at_once(member)}", label)
        for member, label in zip(members, labels, strict=True)
        if member.explanation.fastest and member.curve.series.points[-1].size_bytes
    )
    by_text = by_key(labelled)
    for text, whose in by_text.items():
        which = "" if len(by_text) == 1 else f" for {', '.join(whose)}"
        yield f"With the same α, β and R, the fastest textbook algorithm for {op}{which} is {text}"


def _in_turn(fastest: Sequence[Fastest]) -> str:
    later = "".join(f" up to S* = {about_size(turn.from_bytes)}, then {_tied(turn)}" for turn in fastest[1:])
    return f"{_tied(fastest[0])}{later or ' at every measured size'}"


def _at_once(modelled: Modelled) -> str:
    """Algorithms that were not compared, because their formulas ignore the cost of concurrent messages."""
    names = [other.algorithm for other in modelled.explanation.others if other.at_once > 1]
    if not names:
        return ""
    return f" Not compared: {listed(names)}. Their formulas charge one α for several messages sent at the same time."


def _tied(fastest: Fastest) -> str:
    tie = " (a tie)" if len(fastest.algorithms) > 1 else ""
    return f"{listed(fastest.algorithms, _NAMED, word='or')}{tie}"


def _model_tables(curves: Sequence[Curve]) -> list[Block]:
    """The assumptions of each model, and predictions for other algorithms."""
    used = by_key(
        ((prediction.algorithm, prediction.formula, prediction.parameters, prediction.source), prediction.size_bytes)
        for curve in curves
        for prediction in predictions_of(curve)
    )
    columns: tuple[Column[tuple[tuple[str, str, str, str], list[int]]], ...] = (
        Column("Algorithm", lambda row: row[0][0]),
        Column("Sizes", lambda row: f"{format_size(min(row[1]))} … {format_size(max(row[1]))}"),
        Column("Time", lambda row: row[0][1]),
        Column("Parameters", lambda row: row[0][2]),
        Column("Source", lambda row: row[0][3]),
    )
    blocks: list[Block] = [table("Model assumptions", columns, used.items(), folded=True)] if used else []
    varying = varying_fields(curve.series.key for curve in curves)
    return blocks + [
        _alternatives(curve, curve_label(curve.series.key, varying) if len(curves) > 1 else "")
        for curve in curves
        if curve.alternatives
    ]


def _alternatives(curve: Curve, label: str) -> Table:
    """Predictions for textbook algorithms at the largest size."""
    point = curve.series.points[-1]
    columns: tuple[Column[Prediction], ...] = (
        Column("Algorithm", lambda prediction: prediction.algorithm),
        Column("Predicted time", lambda prediction: prediction.time_ns, format_time),
        Column("busbw", lambda prediction: prediction.busbw, format_rate),
        Column("Formula", lambda prediction: prediction.formula),
        Column("Source", lambda prediction: prediction.source),
    )
    name = f"{label}: other" if label else "Other"
    caption = (
        f"{name} textbook algorithms at {format_size(point.size_bytes)} with the same α, β and R; measured: "
        f"{format_time(point.time_ns)}"
    )
    return table(caption, columns, curve.alternatives, folded=True)


def fits(judgement: Judgement) -> Section:
    """All fits, and the reasons for missing ones."""
    named = [(curve.series.key.label, curve) for curve in judgement.curves]
    block = fits_table(named) if named else Paragraph("There is no curve to fit.")
    fitted = [curve.fit for curve in judgement.curves if isinstance(curve.fit, Fit)]
    gist = f"Latency and bandwidth of {len(fitted)} of {len(named)} curves."
    return Section("fits", "Fits", (block,), gist=gist)


_MOST_OTHERS: Final = 6


def model_figure(identity: str, modelled: Modelled, words: str, *, draw: bool) -> Figure:
    """Drawings, legend and numbers of one curve; only the numbers if nothing can or should be drawn."""
    curve = modelled.curve
    series = (plots.Series(0, tuple(points_of(curve, "time", "measured"))),)
    if not draw or not plots.drawable(series, sizes=3):
        return Figure(words, (), (), _numbers(modelled, folded=False))
    others = _distinct(modelled)
    lines = [plots.Line("other", vertices, None) for _, vertices in others]
    bound = [
        (float(spent.size_bytes), spent.bound_ns) for spent in modelled.explanation.spent if spent.bound_ns is not None
    ]
    lines += [plots.Line("bound", tuple(bound), None)] if bound else []
    lines.append(plots.Line("model", tuple((float(p.size_bytes), p.time_ns) for p in modelled.model), 0))
    panel = plots.Panel("time", "Measured, predicted and bound", series, tuple(lines))
    stack = {spent.size_bytes: _parts(spent) for spent in modelled.explanation.spent if spent.size_bytes}
    name = curve.series.key.label
    pictures = (
        plots.draw(panel, f"{identity}-time", f"{name}: measured and predicted time over size", words),
        draw_stack(stack, f"{identity}-parts", f"{name}: where the time goes", words),
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
    yield LegendEntry(plots.swatch(0, "points"), "measured")
    algorithms = ", ".join(dict.fromkeys(p.algorithm for p in modelled.model))
    yield LegendEntry(plots.swatch(0, "model"), f"model: {algorithms}")
    if modelled.explanation.bound:
        yield LegendEntry(plots.swatch(None, "bound"), f"lower bound: {modelled.explanation.bound}")
    if others:
        yield LegendEntry(plots.swatch(None, "other"), f"other algorithms: {', '.join(others)}")
    shown = {part for shares in stack.values() for part in shares}
    yield from (LegendEntry(part_swatch(part), name) for part, name in _NAMES.items() if part in shown)


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


def draw_stack(stack: Stack, identity: str, title: str, description: str) -> str:
    """Shares of the measured time as an inline SVG: one column per size, and a line at 100 %."""
    from matplotlib.ticker import PercentFormatter  # noqa: PLC0415 - heavy

    with canvas() as (figure, axes):
        top = max(1.0, *(sum(shares.values()) for shares in stack.values()))
        axes.set_ylim(0, min(top, _HIGHEST_STACK) * 1.04)
        sizes = sorted(stack)
        nearest = min(larger / smaller for smaller, larger in pairwise(sizes))
        half = min(math.sqrt(nearest), 2.0) ** 0.84
        size_axis(axes, sizes, 1.15 * half)
        head(axes, "Where the time goes")
        axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
        lefts, widths = [size / half for size in sizes], [size * half - size / half for size in sizes]
        floors = np.zeros(len(sizes))
        for part, colour in COLOURS.items():
            shares = np.asarray([stack[size].get(part, 0.0) for size in sizes])
            axes.bar(
                lefts,
                shares,
                widths,
                floors,
                align="edge",
                facecolor=colour,
                edgecolor=PAGE,
                linewidth=0.6,
                zorder=3,
            )
            floors += shares
        axes.axhline(1.0, color=INK, linewidth=0.9, zorder=4)
        return inline(figure, identity, title, description)


def part_swatch(part: Part) -> str:
    """A legend sample of a part."""
    return sample(f'<path d="M7 1h14v12h-14z" fill="{VARIABLES[COLOURS[part]]}"/>')
