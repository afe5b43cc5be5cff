"""Report sections on models: each curve against theory and other algorithms; and the fits."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from busbw.units import about_size, format_rate, format_size, format_time, listed
from busbw_analysis.data.grouped import by_key, grouped
from busbw_analysis.diagnosis.judge import Curve, Judgement
from busbw_analysis.diagnosis.normality import Modelled, in_words, modelled_curve
from busbw_analysis.fitting.curve import Fit
from busbw_analysis.models.bounds import Fastest
from busbw_analysis.models.select import Prediction
from busbw_analysis.report.document import Block, Column, Paragraph, Section, Table, percent, table
from busbw_analysis.report.sections.crossovers import beside_each_other
from busbw_analysis.report.sections.curves import predictions_of
from busbw_analysis.report.sections.labels import curve_label, varying_fields
from busbw_analysis.report.sections.model_figures import model_figure
from busbw_analysis.report.tables.fits import fits_table

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
