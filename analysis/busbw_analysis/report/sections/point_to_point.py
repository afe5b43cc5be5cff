"""The part of a report about models of one message: which predicts held-out sizes, and what stays unknown."""

from collections.abc import Sequence
from typing import Final

from busbw_analysis.fitting.point_to_point import VALID_MEDIAN_ERROR
from busbw_analysis.report.document import Column, Paragraph, Section, Table, sentence, without_empty, words
from busbw_analysis.report.tables.layout import Row
from busbw_analysis.report.tables.point_to_point import COLUMNS, NOTES, cells

_HOW: Final = (
    "What a message between two ranks takes, by models of the literature: Hockney (one line), eager/rendezvous (two, "
    "with a handshake from a threshold on), PLogP (a table of sizes), LogGP (rows of messages) and max-rate (pairs at "
    "once). The first three compete on every second size, which was left out, and where the best of them has a median "
    f"error above {VALID_MEDIAN_ERROR:.0%} none holds. How well launches predict each other is said of the curves."
)
_TOLD: Final = 2
"""So many curves are told in words."""
_OPEN: Final = 8
"""So many rows are shown unfolded."""
_WORDS: Final = frozenset({"curve", "model", "threshold", "note"})


def messages(rows: Sequence[Row]) -> Section | None:
    """``rows`` of ``message_rows``: who wins in words, and all of them in a table; None where there are none."""
    if not rows:
        return None
    winners = [_winner(row) for row in rows if row.get("wins")]
    more = [f"{len(winners) - _TOLD} more curves are in the table."] if len(winners) > _TOLD else []
    found = " ".join([*winners[:_TOLD], *more])
    columns = [
        Column(f"{name[:1].upper()}{name[1:]}" if name.isascii() else name, unit, numeric=name not in _WORDS)
        for name, unit in COLUMNS
    ]
    table = Table(
        "Models of one message",
        *without_empty(columns, [words(cells(row)) for row in rows]),
        row_headers=2,
        folded=len(rows) > _OPEN,
        note=" ".join(sentence(note) for note in NOTES),
    )
    told = (Paragraph(found),) if found else ()
    return Section("messages", "One message", (*told, Paragraph(_HOW), table))


def _winner(row: Row) -> str:
    """Who predicts the left-out sizes of a curve, and how well; validated is what launches predict, too."""
    error, worst, sizes = (row[f"held_out_{name}"] for name in ("median_error", "worst_error", "sizes"))
    verdict = "within" if error <= VALID_MEDIAN_ERROR else "above"
    off = f"{error:.1%} (median, {verdict} {VALID_MEDIAN_ERROR:.0%}) and {worst:.1%} (worst) on {sizes} left-out sizes"
    return f"{row['curve']}: {row['model']} is taken, off by {off}."
