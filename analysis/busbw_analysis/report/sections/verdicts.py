"""The report's verdicts: one row per operation, and for each operation the numbers behind its verdicts."""

from collections.abc import Callable, Sequence
from typing import Final

from busbw.units import format_rate, format_size, format_time
from busbw_analysis.data.bands import Band
from busbw_analysis.data.grouped import grouped
from busbw_analysis.diagnosis.answer import Answer
from busbw_analysis.diagnosis.judge import Judgement, Verdict
from busbw_analysis.diagnosis.verdicts import MODEL_TOLERANCE, NEAR_PEAK, NEAR_PRACTICAL, Status
from busbw_analysis.peaks.peaks import Peak
from busbw_analysis.report.document import TONES, Block, Cell, Column, Paragraph, Table, percent, sentence, table
from busbw_analysis.report.sections.labels import curve_label, ends_of, op_anchor, varying_fields

HOW: Final = (
    "Verdicts are rules of thumb, not statistical tests. They compare medians with "
    f"{NEAR_PEAK:.0%} of the peak, or {NEAR_PRACTICAL:.0%} of the rate reached in practice, and with "
    f"{MODEL_TOLERANCE:g} times the model's time. Undecided: the interval or range of launches contains the limit."
)
_SYMBOLS: Final[dict[Status, str]] = {
    "slower": "✗",
    "undecided": "?",
    "faster": "✓",
    "as expected": "✓",
    "not judged": "·",
}
"""In this order, from worst to best."""
_BANDS: Final[tuple[tuple[Band, str], ...]] = (
    ("small", "Small (≤ 4 KiB)"),
    ("middle", "Middle"),
    ("large", "Large (≥ 1 MiB)"),
)


def verdict_table(judgement: Judgement, answer: Answer) -> Table | None:
    """One row per operation: the worst verdict of its curves in each band of sizes, and its best busbw. None if nothing
    was judged.
    """
    by_op = grouped(answer.verdicts, lambda verdict: verdict.op)
    if not by_op:
        return None
    best: dict[str, tuple[float, int, float | None]] = {}
    for curve in judgement.curves:
        peak = curve.peak.busbw if isinstance(curve.peak, Peak) else None
        for point in curve.series.points:
            share = None if peak is None or point.busbw is None else point.busbw / peak
            one = (point.busbw or 0.0, point.size_bytes, share)
            best[curve.series.key.op] = max(best.get(curve.series.key.op, one), one, key=lambda rated: rated[0])

    def judged(band: Band) -> Callable[[str], Cell | None]:
        """The cell of an op; operations without a size count as small."""
        bands = {band, "no size"} if band == "small" else {band}
        return lambda op: _cell(found) if (found := [one for one in by_op[op] if one.band in bands]) else None

    columns: tuple[Column[str], ...] = (
        Column("Operation", lambda op: Cell(op, link=op_anchor(op))),
        *(Column(name, judged(band)) for band, name in _BANDS),
        Column("Best busbw", lambda op: best[op] if best[op][0] else None, _rate_at),
        Column("Of peak", lambda op: best[op][2], lambda share: f"{percent(share)} %"),
    )
    return table("Verdicts by operation and size", columns, by_op, HOW)


def _rate_at(best: tuple[float, int, float | None]) -> str:
    return f"{format_rate(best[0])} at {format_size(best[1])}"


def _cell(verdicts: Sequence[Verdict]) -> Cell:
    """The worst of ``verdicts``, with its ratio."""
    worst = min(verdicts, key=lambda one: (list(_SYMBOLS).index(one.status), -(one.model_ratio or 0.0)))
    text = worst.text
    if worst.status == "undecided":
        text = f"{worst.model_ratio:.2g}× the model's time" if worst.model_ratio else worst.text.partition(": ")[2]
    several = f" (worst of {len(verdicts)})" if len(verdicts) > 1 else ""
    return Cell(f"{_SYMBOLS[worst.status]} {text}{several}", tone=TONES[worst.status])


def reasons(judgement: Judgement, answer: Answer, name: str = "") -> dict[str, list[Block]]:
    """For each operation, its verdicts and their numbers. ``name`` is the run's name if there are several."""
    of = f" · {name}" if name else ""
    causes = {cause.code: cause.text for cause in answer.causes}
    by_op = grouped(answer.verdicts, lambda verdict: verdict.op)
    keys = {curve.series.key.label: curve.series.key for curve in judgement.curves}
    columns: tuple[Column[Verdict], ...] = (
        Column("Curve", lambda one: labels[one.label] or None),
        Column("At", lambda one: format_size(one.size_bytes) if one.size_bytes else None),
        Column("Verdict", lambda one: Cell(f"{_SYMBOLS[one.status]} {one.text}", tone=TONES[one.status])),
        Column("Time", lambda one: one.time_ns, format_time, ends=lambda one: ends_of(one.interval)),
        Column("Model's time", lambda one: one.time_ns / one.model_ratio if one.model_ratio else None, format_time),
        Column("busbw", lambda one: one.busbw, format_rate),
        Column("Of peak", lambda one: one.peak_share, percent, "%"),
    )
    found: dict[str, list[Block]] = {}
    labels: dict[str, str] = {}
    for op, verdicts in by_op.items():
        varying = varying_fields(keys[one.label] for one in verdicts)
        labels |= {one.label: curve_label(keys[one.label], varying) if varying else "" for one in verdicts}
        # State once what each 100 % means.
        known = {one.denominator: one.busbw / one.peak_share for one in verdicts if one.busbw and one.peak_share}
        peaks = (f"100 % of peak is {format_rate(rate)}: {what}" for what, rate in known.items())
        measured = f"{op}{of}: measured against model and peak"
        found[op] = [table(measured, columns, verdicts, *peaks, without_empty=True)]
        # A single cause of everything is at the top of the page.
        codes = dict.fromkeys(one.explained_by for one in verdicts if one.explained_by and len(causes) > 1)
        found[op] += [Paragraph(sentence(f"explained by: {causes[code]}"), "quiet") for code in codes]
    return found
