"""The parts of a report about models: each modelled curve beside theory and other algorithms; and fits."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from busbw.units import about_size, format_rate, format_size, format_time
from busbw_analysis.data.grouped import by_key, grouped
from busbw_analysis.diagnosis.judge import Curve, Judgement
from busbw_analysis.diagnosis.normality import Modelled, in_words, modelled_curve
from busbw_analysis.fitting.curve import Fit
from busbw_analysis.models.bounds import Fastest
from busbw_analysis.models.select import Prediction
from busbw_analysis.report.document import Block, Column, Paragraph, Section, Table, listed, percent, table
from busbw_analysis.report.sections.crossovers import beside_each_other
from busbw_analysis.report.sections.curves import predictions_of
from busbw_analysis.report.sections.labels import curve_label, varying_fields
from busbw_analysis.report.sections.model_figures import model_figure
from busbw_analysis.report.tables.fits import fits_table
from busbw_analysis.report.tables.joint_fits import joint_sections

_LIMITED = (
    "R limits all of them, also where the textbook's formula leaves it out: no time is less than that of all bytes of "
    "all ranks at R, which is why algorithms that move as many bytes take alike at a large size."
)
_OPEN: Final = 6
"""So many curves are shown unfolded; where there are more, each can be opened."""
_MOST_DRAWN: Final = 30
"""Drawing is most of the work of a report; beyond so many curves there are the tables alone."""
_NAMED: Final = 3

_HOW: Final = (
    "A model is a formula whose α and β come from messages between two ranks of the same run, and never from the curve "
    "that it is held against. Predicted / measured − 1 is 0 where it is right, below 0 where the call takes longer "
    "than it says. The columns show what share of the measured time the model gives to latency (α) and to bandwidth "
    "(β, or R where all ranks of a host share less, and copies in memory); what is left is unexplained. Columns above "
    "the line of 100 %: the model says more than was measured."
)
_LEAST: Final = (
    "The lower bound is what no algorithm can do without (Chan et al. 2007), with the same α, β and R; the bound over "
    "the measured time is the efficiency. ⌈lg n⌉ α in it is for messages one at a time: algorithms that send to "
    "several ranks at once (direct, spread, linear, a server) may need less."
)


def theory(judgement: Judgement) -> Section | None:
    """A part for every op of which a curve has a model, or of which several algorithms were measured; None where there
    is none. Why a curve has no model stands with the op.
    """
    modelled = [one for curve in judgement.curves if (one := modelled_curve(curve)) is not None]
    by_op = grouped(modelled, lambda one: one.curve.series.key.op)
    ops = dict.fromkeys((*by_op, *(one.key.op for one in judgement.comparisons)))
    if not ops:
        return None
    count = len(modelled)
    blocks: list[Block] = [Paragraph(_HOW), Paragraph(_LEAST)] if count else []
    if count > _MOST_DRAWN:
        blocks.append(Paragraph(f"{count} curves have a model; the first {_MOST_DRAWN} are drawn.", tone="quiet"))
    parts: list[Section] = []
    drawn = _MOST_DRAWN
    for number, op in enumerate(ops, start=1):
        members = by_op.get(op, [])
        parts.append(_operation(f"theory-{number}", op, members, judgement, drawn=drawn, folded=count > _OPEN))
        drawn -= len(members)
    gist = "Where the time of each operation goes, and the least that any algorithm needs."
    return Section("theory", "Measured against theory", tuple(blocks), tuple(parts), gist=gist)


def _operation(
    anchor: str, op: str, members: Sequence[Modelled], judgement: Judgement, *, drawn: int, folded: bool
) -> Section:
    varying = varying_fields(one.curve.series.key for one in members)
    labels = [curve_label(one.curve.series.key, varying) for one in members]
    cases = dict(enumerate(judgement.cases))
    told = (f"{in_words(one.curve, judgement.dataset, cases)} {_efficiency(one)}".rstrip() for one in members)
    figures = [
        model_figure(f"{anchor}-{number}", one, words, draw=number <= drawn)
        for number, (one, words) in enumerate(zip(members, told, strict=True), start=1)
    ]
    blocks: list[Block] = [Paragraph(text) for text in _fastest(op, members, labels)]
    blocks += _model_tables([one.curve for one in members])
    notes = dict.fromkeys(one.explanation.sums for one in members if one.explanation.sums)
    blocks += [Paragraph(f"Reduction: {note}.", tone="quiet") for note in notes]
    beside = (one for one in judgement.comparisons if one.key.op == op)
    for number, comparison in enumerate(beside, start=1):
        blocks += beside_each_other(comparison, f"{anchor}-{number}", draw=drawn > 0)
    if len(members) <= 1:
        return Section(anchor, op, (*figures, *blocks))
    parts = tuple(
        Section(f"{anchor}-curve-{number}", label, (replace(figure, caption=""),), folded=folded, gist=figure.caption)
        for number, (label, figure) in enumerate(zip(labels, figures, strict=True), start=1)
    )
    return Section(anchor, op, tuple(blocks), parts)


def _efficiency(one: Modelled) -> str:
    """How near the curve comes to the least that any algorithm needs."""
    shares = [(spent.bound_share, spent.size_bytes) for spent in one.explanation.spent if spent.bound_share is not None]
    if not shares:
        return ""
    best, size = max(shares)
    at = f" at {format_size(size)}" if size else ""
    if best > 1:
        return (
            f"It takes less than the lower bound {one.explanation.bound}{at}, which would be {percent(best)} % of its "
            "time: what messages of this run cost does not hold for it."
        )
    return f"It comes nearest to the lower bound {one.explanation.bound}{at}, with an efficiency of {percent(best)} %."


def _fastest(op: str, members: Sequence[Modelled], labels: Sequence[str]) -> Iterator[str]:
    """Which of the textbook's algorithms should win where, once for all curves that it is the same for."""
    known = (
        (f"{_in_turn(one.explanation.fastest)}.{_at_once(one)}", label)
        for one, label in zip(members, labels, strict=True)
        if one.explanation.fastest and one.curve.series.points[-1].size_bytes
    )
    told = by_key(known)
    for text, whose in told.items():
        which = "" if len(told) == 1 else f" for {', '.join(whose)}"
        yield f"By their formulas with the same α, β and R the fastest {op} of the textbooks{which} is {text}"


def _in_turn(found: Sequence[Fastest]) -> str:
    later = "".join(f" up to S* = {about_size(one.from_bytes)}, then {_tied(one)}" for one in found[1:])
    return f"{_tied(found[0])}{later or ' at every size that was measured'}"


def _at_once(one: Modelled) -> str:
    """Which algorithms were not compared, for their formulas know no price of messages that are sent at once."""
    names = [other.algorithm for other in one.explanation.others if other.at_once > 1]
    if not names:
        return ""
    sends = "sends several messages at once; its formula takes"
    if len(names) > 1:
        sends = "send several messages at once; their formulas take"
    return f" Not compared: {listed(names)}, which {sends} those to cost one α together."


def _tied(found: Fastest) -> str:
    names = found.algorithms
    named = names if len(names) <= _NAMED else (*names[: _NAMED - 1], f"{len(names) - _NAMED + 1} more")
    return f"{listed(named, 'or')}{' (a tie)' if len(names) > 1 else ''}"


def _model_tables(curves: Sequence[Curve]) -> list[Block]:
    """What each model assumes, and what other algorithms would take."""
    used = by_key(
        ((one.algorithm, one.formula, one.parameters, one.source), one.size_bytes)
        for curve in curves
        for one in predictions_of(curve)
    )
    columns: tuple[Column[tuple[tuple[str, str, str, str], list[int]]], ...] = (
        Column("Algorithm", lambda one: one[0][0]),
        Column("Sizes", lambda one: f"{format_size(min(one[1]))} … {format_size(max(one[1]))}"),
        Column("Time", lambda one: one[0][1]),
        Column("Parameters", lambda one: one[0][2]),
        Column("Source", lambda one: one[0][3]),
    )
    blocks: list[Block] = [table("What the model assumes", columns, used.items(), folded=True)] if used else []
    varying = varying_fields(curve.series.key for curve in curves)
    return blocks + [
        _alternatives(curve, curve_label(curve.series.key, varying) if len(curves) > 1 else "")
        for curve in curves
        if curve.alternatives
    ]


def _alternatives(curve: Curve, label: str) -> Table:
    """The textbook algorithms for the op next to the one that the backend runs, at the largest size."""
    point = curve.series.points[-1]
    columns: tuple[Column[Prediction], ...] = (
        Column("Algorithm", lambda one: one.algorithm),
        Column("Predicted time", lambda one: one.time_ns, format_time),
        Column("busbw", lambda one: one.busbw, format_rate),
        Column("Formula", lambda one: one.formula),
        Column("Source", lambda one: one.source),
    )
    name = f"{label}: other" if label else "Other"
    caption = (
        f"{name} algorithms from the textbooks at {format_size(point.size_bytes)} with the same α, β and R; "
        f"{format_time(point.time_ns)} was measured"
    )
    return table(caption, columns, curve.alternatives, _LIMITED, folded=True)


def fits(judgement: Judgement) -> Section:
    """Every fit in its few numbers, and every refusal in words; the joint fits beside them."""
    named = [(curve.series.key.label, curve) for curve in judgement.curves]
    block = fits_table(named) if named else Paragraph("There is no curve to fit.")
    fitted = [curve.fit for curve in judgement.curves if isinstance(curve.fit, Fit)]
    gist = f"Latency and bandwidth of {len(fitted)} of {len(named)} curves, and of all of them together."
    return Section("fits", "Fits", (block,), joint_sections(judgement.regimes), gist=gist)
