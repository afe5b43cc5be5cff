"""The part of a report about fits: each curve in its few numbers, every refusal in words, and what several tell."""

from collections.abc import Sequence
from typing import Final

from busbw.units import format_rate
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.fitting.curve import Bounds, Fit
from busbw_analysis.fitting.joint import OneRegime
from busbw_analysis.fitting.score import Validation
from busbw_analysis.report.document import (
    MISSING,
    Block,
    Cell,
    Column,
    Paragraph,
    Section,
    Table,
    Tone,
    percent,
    sentence,
    three_digits,
    words,
)
from busbw_analysis.report.sections.joint_fits import joint_fits
from busbw_analysis.report.tables.joint_fits import joint_rows

_HELD_OUT: Final = (
    "Held out: every second size was predicted from the others, and each launch from the fit of the other launches. "
    "Validated when the median error of both is at most 10 %, and the mean residual, too."
)
_TONES: Final[dict[bool | None, Tone]] = {True: "good", False: "caution", None: "quiet"}
_RATE_UNITS: Final = {"TB/s": 1e12, "GB/s": 1e9, "MB/s": 1e6, "kB/s": 1e3, "B/s": 1.0}


def fits(judgement: Judgement, regimes: Sequence[OneRegime]) -> Section:
    """Every fit in its few numbers, and every refusal in words; the joint fits of ``regimes`` beside them."""
    fitted = [(curve.series.key.label, curve.fit) for curve in judgement.curves if isinstance(curve.fit, Fit)]
    refused = [
        (curve.series.key.label, curve.fit.reason) for curve in judgement.curves if isinstance(curve.fit, Unavailable)
    ]
    blocks: list[Block] = []
    if fitted:
        rows = tuple(_fit_row(label, fit) for label, fit in fitted)
        columns = (
            Column("Curve", numeric=False),
            Column("Validated", numeric=False),  # in sight: the table is wide
            Column("α0", "µs"),
            Column("B∞ (algbw)", numeric=True),
            Column("busbw at B∞"),
            Column("S½"),
            Column("Pieces, breaks at", numeric=False),
            Column("mean", "%", group="Residual"),
            Column("worst", "%", group="Residual"),
            Column("median", "%", group="Held-out sizes"),
            Column("worst", "%", group="Held-out sizes"),
            Column("median", "%", group="Held-out launches"),
            Column("worst", "%", group="Held-out launches"),
        )
        notes = [_HELD_OUT]
        notes += dict.fromkeys(fit.interval_note for _, fit in fitted if fit.interval_note)
        caption = "time = α0 + S / B∞, in pieces; 95 % intervals in brackets where there are launches enough"
        blocks.append(Table(caption, columns, rows, note=" ".join(sentence(note) for note in notes)))
    if refused:
        reasons = tuple(words(pair) for pair in refused)
        why = (Column("Curve", numeric=False), Column("Why there is no fit", numeric=False))
        blocks.append(Table("Curves without a fit", why, reasons))
    if not blocks:
        blocks.append(Paragraph("There is no curve to fit."))
    parts = joint_fits(joint_rows(regimes))
    return Section("fits", "Fits", tuple(blocks), parts)


def _fit_row(label: str, fit: Fit) -> tuple[Cell, ...]:
    alpha, rate = three_digits(fit.alpha_seconds * 1e6), format_rate(fit.algbw)
    if fit.intervals is not None:
        bounds = fit.intervals.alpha_seconds
        alpha += f" [{three_digits(bounds.low * 1e6)}, {three_digits(bounds.high * 1e6)}]"
        if fit.intervals.algbw is not None:
            rate = _between(rate, fit.intervals.algbw)
    pieces = f"{len(fit.segments)}"
    if fit.breaks_bytes:
        pieces += ": " + ", ".join(_near_size(size) for size in fit.breaks_bytes)
    return (
        Cell(label),
        Cell("validated" if fit.validated else fit.validation_note, tone=_TONES[fit.validated]),
        Cell(alpha),
        Cell(rate),
        Cell(format_rate(fit.busbw)),
        Cell(MISSING if fit.half_size_bytes is None else _near_size(fit.half_size_bytes)),
        Cell(pieces),
        Cell(percent(fit.mean_residual)),
        Cell(percent(fit.max_residual)),
        *_off(fit.held_out_sizes),
        *_off(fit.held_out_launches),
    )


def _off(checked: Validation) -> tuple[Cell, Cell]:
    if checked.median_error is None or checked.worst_error is None:
        return Cell(MISSING, tone="quiet"), Cell(MISSING, tone="quiet")
    return Cell(percent(checked.median_error)), Cell(percent(checked.worst_error))


def _between(rate: str, bounds: Bounds) -> str:
    """A formatted rate with its interval in the same unit: ``4.53 [4.46, 4.64] GB/s``."""
    number, unit = rate.split(" ")
    low, high = (three_digits(bound / _RATE_UNITS[unit]) for bound in (bounds.low, bounds.high))
    return f"{number} [{low}, {high}] {unit}"


def _near_size(size_bytes: float) -> str:
    """A size that was computed: three digits are all it has."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size_bytes >= factor:
            return f"{three_digits(size_bytes / factor)} {unit}"
    return f"{three_digits(size_bytes)} B"
