"""The report's verdicts: one row per operation, and for each operation the numbers behind its verdicts."""

from collections.abc import Callable, Sequence
from typing import Final

from busbw.units import format_rate, format_size, format_time
from busbw_analysis.data.bands import Band
from busbw_analysis.data.grouped import by_key, grouped
from busbw_analysis.data.sentences import sentences
from busbw_analysis.diagnosis.answer import Answer
from busbw_analysis.diagnosis.doubts import MODEL_TOLERANCE
from busbw_analysis.diagnosis.judge import Judgement, Verdict
from busbw_analysis.diagnosis.verdicts import NEAR_PEAK, NEAR_PRACTICAL, Status
from busbw_analysis.report.document import TONES, Block, Cell, Column, Paragraph, Table, percent, table
from busbw_analysis.report.labels import curve_label, ends_of, op_anchor, varying_fields

HOW: Final = (
    "Verdicts are rules of thumb, not statistical tests. As expected: the median is at least "
    f"{NEAR_PEAK:.0%} of the peak ({NEAR_PRACTICAL:.0%} of the rate reached in practice), or at most "
    f"{MODEL_TOLERANCE:g} times the model's time. Undecided: the interval or range of launches contains this limit, so "
    "more launches would decide. Cannot tell: the measurements behind the model or the peak were disturbed, scatter by "
    "a factor of 2, or contradict the results."
)
_SYMBOLS: Final[dict[Status, str]] = {
    "slower": "✗",
    "undecided": "?",
    "faster": "↑",
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
    best = {op: judgement.best_of({op}) for op in by_op}

    def judged(band: Band) -> Callable[[str], Cell | None]:
        """The cell of an op; operations without a size count as small."""
        bands = {band, "no size"} if band == "small" else {band}
        return lambda op: _cell(rows) if (rows := [row for row in by_op[op] if row.band in bands]) else None

    columns: tuple[Column[str], ...] = (
        Column("Operation", lambda op: Cell(op, link=op_anchor(op))),
        *(Column(name, judged(band)) for band, name in _BANDS),
        Column("Best busbw", best.get, lambda rate: f"{format_rate(rate.busbw)} at {format_size(rate.size_bytes)}"),
        Column("Of peak", lambda op: rate.share if (rate := best[op]) else None, lambda share: f"{percent(share)} %"),
    )
    by_peak = by_key((rate.what, op) for op, rate in best.items() if rate is not None and rate.what is not None)
    peaks = (f"100 % of peak is the rate of {peak} for {', '.join(ops)}" for peak, ops in by_peak.items())
    return table("Verdicts by operation and size", columns, by_op, HOW, *peaks)


def _cell(verdicts: Sequence[Verdict]) -> Cell:
    """The worst of ``verdicts``, with its ratio."""
    worst = min(verdicts, key=lambda verdict: (list(_SYMBOLS).index(verdict.status), -(verdict.model_ratio or 0.0)))
    return _verdict_cell(worst, f" (worst of {len(verdicts)})" if len(verdicts) > 1 else "")


def _verdict_cell(verdict: Verdict, more: str = "") -> Cell:
    return Cell(f"{_SYMBOLS[verdict.status]} {verdict.text}{more}", tone=TONES[verdict.status])


def reasons(answer: Answer, name: str = "") -> dict[str, list[Block]]:
    """For each operation, its verdicts and their numbers. ``name`` is the run's name if there are several."""
    of = f" · {name}" if name else ""
    causes = {cause.code: cause.text for cause in answer.causes}
    by_op = grouped(answer.verdicts, lambda verdict: verdict.op)
    columns: tuple[Column[Verdict], ...] = (
        Column("Curve", lambda row: curve_label(row.key, varying[row.op]) if varying[row.op] else None),
        Column("At", lambda row: format_size(row.size_bytes) if row.size_bytes else None),
        Column("Verdict", _verdict_cell),
        Column("Time", lambda row: row.time_ns, format_time, ends=lambda row: ends_of(row.interval)),
        Column("Model's time", lambda row: row.time_ns / row.model_ratio if row.model_ratio else None, format_time),
        Column("busbw", lambda row: row.busbw, format_rate),
        Column("Of peak", lambda row: row.peak_share, percent, "%"),
    )
    wanting = [verdict.explained_by for verdict in answer.verdicts if verdict.status in {"slower", "undecided"}]
    # A single cause of everything is at the top of the page.
    of_everything = len(causes) == 1 and all(wanting)
    blocks: dict[str, list[Block]] = {}
    varying = {op: varying_fields(verdict.key for verdict in verdicts) for op, verdicts in by_op.items()}
    for op, verdicts in by_op.items():
        # State once what each 100 % means.
        rates = {row.denominator: row.busbw / row.peak_share for row in verdicts if row.busbw and row.peak_share}
        peaks = (f"100 % of peak is {format_rate(rate)}: {what}" for what, rate in rates.items())
        measured = f"{op}{of}: measured against model and peak"
        notes = dict.fromkeys(f"{format_size(row.size_bytes)}: {row.why}" for row in verdicts if row.why)
        blocks[op] = [table(measured, columns, verdicts, *peaks, *notes)]
        codes = dict.fromkeys(row.explained_by for row in verdicts if row.explained_by and not of_everything)
        blocks[op] += [Paragraph(sentences(f"explained by: {causes[code]}"), "quiet") for code in codes]
    return blocks
