"""Each curve against theory: sections, figures and tables of models, their parts and their assumptions."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from busbw.units import about_size, format_rate, format_size, format_time, listed
from busbw_analysis.data.grouped import by_key, grouped
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.diagnosis.judge import Curve, Judgement
from busbw_analysis.diagnosis.verdicts import Modelled, in_words, modelled_curve
from busbw_analysis.fitting.curve import Fit
from busbw_analysis.models.bounds import Explanation, Fastest, Spent
from busbw_analysis.models.select import Prediction
from busbw_analysis.report import plots
from busbw_analysis.report.curves import curve_label, points_of, predictions_of, varying_fields
from busbw_analysis.report.document import (
    Block,
    Cell,
    Column,
    Figure,
    Paragraph,
    Section,
    Table,
    ends_in_words,
    ends_of,
    percent,
    table,
)
from busbw_analysis.report.fits import crossing_table, fastest_in_turn, fits_table

_OPEN: Final = 6
"""Most curves shown unfolded; with more, each is folded."""
_MOST_DRAWN: Final = 30
"""Most curves drawn: drawing dominates the time of a report. Others have tables only."""
_NAMED: Final = 2

_HOW: Final = (
    "A model is a formula with α and β from messages between two ranks of the same run, never from the curve that it "
    "is compared with. The columns split the measured time into latency (α), bandwidth (β or, if lower, R, the rate "
    "that the ranks of a host share; and copies in memory) and an unexplained rest. A sum above 100 %: the model "
    "predicts more than was measured."
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
    blocks: list[Block] = [*map(Paragraph, (_HOW, _LEAST))] if count else []
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
    figures: list[Figure] = []
    for number, member in enumerate(members, start=1):
        doubt = judgement.doubts[member.curve.series.key].model
        words = f"{in_words(member.curve, doubt, judgement.facts, judgement.cases)} {_efficiency(member.explanation)}"
        figures.append(_figure(f"{anchor}-{number}", member, words.rstrip(), draw=number <= drawn))
    blocks: list[Block] = [Paragraph(text) for text in _fastest(op, members, labels)]
    blocks += _model_tables([member.curve for member in members], labels)
    notes = dict.fromkeys(member.explanation.gamma_origin for member in members if member.explanation.gamma_origin)
    blocks += [Paragraph(f"Reduction: {note}.", tone="quiet") for note in notes]
    for comparison in judgement.comparisons:
        if comparison.key.op == op:
            blocks += [*map(Paragraph, fastest_in_turn(comparison)), crossing_table(comparison)]
    if len(members) <= 1:
        return Section(anchor, op, (*figures, *blocks))
    parts = tuple(
        Section(f"{anchor}-curve-{number}", label, (replace(figure, caption=""),), folded=folded, gist=figure.caption)
        for number, (label, figure) in enumerate(zip(labels, figures, strict=True), start=1)
    )
    return Section(anchor, op, tuple(blocks), parts)


def _efficiency(explanation: Explanation) -> str:
    """How close the curve comes to the lower bound."""
    shares = ((spent.bound_share, spent.size_bytes) for spent in explanation.spent if spent.bound_share is not None)
    best, size = max(shares, default=(None, 0))
    if best is None:
        return ""
    at = f" at {format_size(size)}" if size else ""
    if best > 1:
        return (
            f"It is faster than the lower bound {explanation.bound}{at}, which is {percent(best)} % of its time: the α "
            "and β of this run's messages do not apply to it."
        )
    return f"Its best efficiency is {percent(best)} %{at}, against the lower bound {explanation.bound}."


def _fastest(op: str, members: Sequence[Modelled], labels: Sequence[str]) -> Iterator[str]:
    """The textbook algorithm predicted to be fastest at each size; curves with the same result share a sentence."""
    by_text: dict[str, list[str]] = {}
    for member, label in zip(members, labels, strict=True):
        if (fastest := member.explanation.fastest) and member.curve.series.points[-1].size_bytes:
            turns = "".join(f" up to S* = {about_size(turn.from_bytes)}, then {_tied(turn)}" for turn in fastest[1:])
            text = f"{_tied(fastest[0])}{turns or ' at every measured size'}."
            if left_out := [other.algorithm for other in member.explanation.others if other.at_once > 1]:
                text += f" Not compared: {listed(left_out)}, whose formulas charge one α for several messages at once."
            by_text.setdefault(text, []).append(label)
    for text, whose in by_text.items():
        which = "" if len(by_text) == 1 else f" for {', '.join(whose)}"
        yield f"With the same α, β and R, the fastest textbook algorithm for {op}{which} is {text}"


def _tied(fastest: Fastest) -> str:
    if len(fastest.algorithms) == 1:
        return fastest.algorithms[0]
    return f"{listed((f'“{name}”' for name in fastest.algorithms), _NAMED, word='or')} (a tie)"


def _model_tables(curves: Sequence[Curve], labels: Sequence[str]) -> Iterator[Table]:
    """The assumptions of each model, and predictions for textbook algorithms at the largest size."""
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
    if used:
        yield table("Model assumptions", columns, used.items(), folded=True)
    for curve, label in zip(curves, labels, strict=True):
        point = curve.series.points[-1]
        caption = (
            f"{f'{label}: other' if len(curves) > 1 else 'Other'} textbook algorithms at "
            f"{format_size(point.size_bytes)} with the same α, β and R; measured: {format_time(point.time_ns)}"
        )
        if curve.alternatives:
            yield table(caption, _ALTERNATIVE_COLUMNS, curve.alternatives, folded=True)


_ALTERNATIVE_COLUMNS: Final[tuple[Column[Prediction], ...]] = (
    Column("Algorithm", lambda prediction: prediction.algorithm),
    Column("Predicted time", lambda prediction: prediction.time_ns, format_time),
    Column("busbw", lambda prediction: prediction.busbw, format_rate),
    Column("Formula", lambda prediction: prediction.formula),
    Column("Source", lambda prediction: prediction.source),
)


def fits(judgement: Judgement) -> Section:
    """All fits, and the reasons for missing ones."""
    named = [(curve.series.key.label, curve) for curve in judgement.curves]
    block = fits_table(named) if named else Paragraph("There is no curve to fit.")
    fitted = sum(isinstance(curve.fit, Fit) for _, curve in named)
    return Section("fits", "Fits", (block,), gist=f"Latency and bandwidth of {fitted} of {len(named)} curves.")


def _figure(identity: str, modelled: Modelled, words: str, *, draw: bool) -> Figure:
    """Drawing, legend and numbers of one curve; only the numbers if nothing can or should be drawn."""
    note = f"{ends_in_words(point.interval.kind for point, _, _ in modelled.rows)} Shares are as uncertain as the time."
    series = (plots.Series(0, tuple(points_of(modelled.curve, "time", "measured")), label="measured"),)
    drawn = draw and plots.drawable(series, sizes=3)
    numbers = table("Where the time goes", _NUMBER_COLUMNS, modelled.rows, note, folded=drawn)
    if not drawn:
        return Figure(words, (), (), numbers)
    explanation, algorithms = modelled.explanation, dict.fromkeys(part.algorithm for part in modelled.model)
    predicted = tuple((part.size_bytes, part.time_ns) for part in modelled.model)
    lines = [plots.Line("model", predicted, 0, label=f"model: {', '.join(algorithms)}")]
    if explanation.bound:
        bound = ((spent.size_bytes, spent.bound_ns) for spent in explanation.spent if spent.bound_ns is not None)
        lines.append(plots.Line("bound", tuple(bound), label=f"lower bound: {explanation.bound}"))
    panel = plots.Panel("time", "Measured and predicted", series, tuple(lines))
    title = f"{modelled.curve.series.key.label}: measured and predicted time over size"
    return Figure(words, (partial(plots.draw, panel, f"{identity}-time", title, words),), plots.legend(panel), numbers)


_Row: TypeAlias = tuple[GroupSummary, Prediction, Spent]


def _share(share: float) -> str:
    """Per cent; anything below a tenth of a per cent as ``< 0.1``."""
    return "< 0.1" if 0 < share < 0.001 else percent(share)


def _of_the_time(name: str, ns: Callable[[Spent], float | None]) -> Column[_Row]:
    def share(row: _Row) -> float | None:
        return None if (part := ns(row[2])) is None else part / row[2].measured_ns

    return Column(name, share, _share, "%", "Of the time")


def _unexplained(spent: Spent) -> Cell:
    left = spent.unexplained_ns / spent.measured_ns
    return Cell(_share(left)) if left >= 0 else Cell(f"model too slow by {_share(-left)}", tone="quiet")


_NUMBER_COLUMNS: Final[tuple[Column[_Row], ...]] = (
    Column("Size S", lambda row: row[0].size_bytes or None, format_size),
    Column("Time", lambda row: row[0].time_ns, format_time, ends=lambda row: ends_of(row[0].interval)),
    Column("Model", lambda row: row[1].time_ns, format_time),
    _of_the_time("latency (α)", lambda spent: spent.latency_ns),
    _of_the_time("bandwidth (β, R, copies)", lambda spent: spent.bandwidth_ns),
    _of_the_time("reduction (γ)", lambda spent: spent.reduction_ns),
    Column("unexplained", lambda row: _unexplained(row[2]), str, "%", "Of the time"),
    Column("Lower bound", lambda row: row[2].bound_ns, format_time),
    Column("Bound / time", lambda row: row[2].bound_share, percent, "%"),
)
