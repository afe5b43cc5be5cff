"""Rows as aligned columns for a terminal, in the manner of nccl-tests, and what several tables have in theirs."""

from collections.abc import Sequence
from typing import Final, TypeAlias

from busbw.runs.records import JSON
from busbw_analysis.fitting.score import Validation

Row: TypeAlias = dict[str, JSON]
"""One line of a table by the names of its columns, in base units."""

MISSING: Final = "–"
"""What a cell without a value shows."""

_LEFT: Final = frozenset(
    {"op", "flags", "curve", "note", "case", "verdict", "algorithm", "algorithms", "links", "busiest", "faster", "S*"}
)


def aligned(columns: Sequence[tuple[str, str]], body: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    """Header and units behind ``#``, then ``body``, then ``notes`` behind ``#``; words left, numbers right.

    ``columns`` are names and units.
    """
    head = [[name for name, _ in columns], [unit for _, unit in columns]]
    lines = [*head, *body] if any(unit for _, unit in columns) else [head[0], *body]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    texts: list[str] = []
    for number, line in enumerate(lines):
        cells = (
            cell.ljust(width) if name in _LEFT else cell.rjust(width)
            for cell, width, (name, _) in zip(line, widths, columns, strict=True)
        )
        mark = "# " if number < len(lines) - len(body) else "  "
        texts.append((mark + "  ".join(cells)).rstrip())
    return "\n".join([*texts, *(f"# {note}" for note in notes)])


def validation_row(check: Validation) -> Row:
    """What a fit, of one curve or of many, is off by on data that were kept from it."""
    return {
        "held_out": check.held_out,
        "median_error": check.median_error,
        "worst_error": check.worst_error,
        "count": check.count,
        "validated": check.passed,
        "note": check.note,
    }
