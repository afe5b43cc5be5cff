"""Writes tables and paragraphs as aligned text for a terminal; headings and notes stand behind ``#``."""

import textwrap
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

from busbw_analysis.diagnosis.answer import Answer
from busbw_analysis.report.document import Block, Paragraph, Section, Table

_WIDTH: Final = 80


def render_answer(answer: Answer, start: str = "") -> str:
    """The answer in lines of 80 columns that begin with ``start``, its labels in a column of their own."""
    width = 2 + max(len(label) for label, _ in answer.lines)
    later = start + " " * width
    return "\n".join(
        textwrap.fill(f"{label}:".ljust(width) + text, _WIDTH, initial_indent=start, subsequent_indent=later)
        for label, text in answer.lines
    )


def render(blocks: Iterable[Block | Section]) -> str:
    """The blocks with an empty line between any two; what is folded is left out, the report and JSON have it."""
    return "\n\n".join(text for block in blocks if (text := "\n".join(_lines(block))))


def _lines(block: Block | Section) -> Iterator[str]:
    if isinstance(block, Section):
        yield f"# {block.heading}"
        yield render(block.blocks)
    elif isinstance(block, Paragraph):
        yield f"# {block.text}"
    elif isinstance(block, Table) and not block.folded:
        yield from _table(block)


def _table(table: Table) -> Iterator[str]:
    """Words left, numbers right; a line for groups and one for units where there are any."""
    heads = [
        [
            "" if name == before else name
            for before, name in pairwise(["", *(column.group for column in table.columns)])
        ],
        [column.name for column in table.columns],
        [f"({column.unit})" if column.unit else "" for column in table.columns],
    ]
    heads = [head for head in heads if any(head)]
    lines = [*heads, *([cell.text for cell in row] for row in table.rows)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    if table.caption:
        yield f"# {table.caption}"
    for number, line in enumerate(lines):
        cells = (
            text.rjust(width) if column.numeric else text.ljust(width)
            for text, width, column in zip(line, widths, table.columns, strict=True)
        )
        yield (("# " if number < len(heads) else "  ") + "  ".join(cells)).rstrip()
    yield from (f"# {note}" for note in table.notes)
