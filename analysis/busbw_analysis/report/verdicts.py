"""The verdicts of the report: one table over all operations, and those of each operation with their numbers."""

from collections.abc import Callable
from typing import Final

from busbw.units import format_rate, format_size, format_time
from busbw_analysis.data.bands import Band
from busbw_analysis.data.grouped import by_key, grouped
from busbw_analysis.data.sentences import sentences
from busbw_analysis.diagnosis.answer import Answer
from busbw_analysis.diagnosis.doubts import MODEL_TOLERANCE
from busbw_analysis.diagnosis.judge import Judgement, Verdict
from busbw_analysis.diagnosis.verdicts import NEAR_PEAK, NEAR_PRACTICAL, Status
from busbw_analysis.peaks.peaks import of_peak
from busbw_analysis.report.curves import curve_label, op_anchor, varying_fields
from busbw_analysis.report.document import TONES, Block, Cell, Column, Paragraph, Table, ends_of, percent, table

_LIMITS: Final = (
    f"as expected: at least {NEAR_PEAK:.0%} of the peak ({NEAR_PRACTICAL:.0%} of the rate in practice), or at most "
    f"{MODEL_TOLERANCE:g} times the model's time"
)
_MEANINGS: Final[dict[str, str]] = {
    "as expected": _LIMITS,
    "slower": _LIMITS,
    "faster": f"faster: all of the interval is below 1/{MODEL_TOLERANCE:g} of the model's time",
    "undecided": "undecided: the interval contains a limit, so more launches would decide",
    "cannot tell": "cannot tell: model or peak were disturbed, scatter by a factor of 2, are contradicted or exceeded",
}
"""What the words of verdicts mean, as rules of thumb."""
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
        return lambda op: (
            _verdict_cell(*rows, overview=True) if (rows := [row for row in by_op[op] if row.band in bands]) else None
        )

    columns: tuple[Column[str], ...] = (
        Column("Operation", lambda op: Cell(op, link=op_anchor(op))),
        *(Column(name, judged(band)) for band, name in _BANDS),
        Column("Best busbw", best.get, lambda rate: f"{format_rate(rate.busbw)} at {format_size(rate.size_bytes)}"),
        Column(
            of_peak(rate.level for rate in best.values() if rate and rate.level),
            lambda op: rate.share if (rate := best[op]) else None,
            lambda share: f"{percent(share)} %",
        ),
    )
    by_peak = by_key(
        ((rate.peak, rate.what), op) for op, rate in best.items() if rate is not None and rate.what is not None
    )
    peaks = (f"100 % is {format_rate(peak)} for {', '.join(ops)}, from {what}" for (peak, what), ops in by_peak.items())
    shown = {verdict.word for verdict in answer.verdicts}
    meanings = dict.fromkeys(meaning for word, meaning in _MEANINGS.items() if word in shown)
    return table("Verdicts by operation and size", columns, by_op, *meanings, *peaks)


def _verdict_cell(*verdicts: Verdict, overview: bool = False) -> Cell:
    """The worst of ``verdicts``, with its ratio; an ``overview`` leaves why a reference is doubted to the answer."""
    worst = min(verdicts, key=lambda verdict: (list(_SYMBOLS).index(verdict.status), -(verdict.model_ratio or 0.0)))
    more = f" (worst of {len(verdicts)} curves)" if len(verdicts) > 1 else ""
    text = "cannot tell" if overview and worst.doubt else worst.text
    return Cell(f"{_SYMBOLS[worst.status]} {text}{more}", tone=TONES[worst.status])


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
        Column(of_peak(row.level for row in answer.verdicts if row.level), lambda row: row.peak_share, percent, "%"),
    )
    wanting = [code for verdict, code in answer.verdicts.items() if verdict.status in {"slower", "undecided"}]
    # A single cause of everything is at the top of the page.
    of_everything = len(causes) == 1 and all(wanting)
    blocks: dict[str, list[Block]] = {}
    varying = {op: varying_fields(verdict.key for verdict in verdicts) for op, verdicts in by_op.items()}
    for op, verdicts in by_op.items():
        # State once what each 100 % means.
        rates = {row.denominator: row.busbw / row.peak_share for row in verdicts if row.busbw and row.peak_share}
        peaks = (f"100 % is {format_rate(rate)}: {what}" for what, rate in rates.items())
        measured = f"{op}{of}: measured against model and peak"
        notes = dict.fromkeys(f"{format_size(row.size_bytes)}: {row.why}" for row in verdicts if row.why)
        blocks[op] = [table(measured, columns, verdicts, *peaks, *notes)]
        # A verdict says itself why its reference is doubted.
        explained = [row for row in verdicts if not row.doubt and not of_everything]
        codes = dict.fromkeys(code for row in explained if (code := answer.verdicts[row]))
        blocks[op] += [Paragraph(sentences(f"explained by: {causes[code]}"), "quiet") for code in codes]
    return blocks
