"""Writes tables and paragraphs as aligned text for a terminal; headings and notes stand behind ``#``."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Final, TypeAlias

from busbw_analysis.report.document import MISSING, Block, Cell, Paragraph, Section, Table, Tone

Line: TypeAlias = tuple[tuple[str, Tone], ...]
"""Pieces of a line, each with its tone."""

_WIDTH: Final = 80
_wrap: Final = partial(textwrap.wrap, break_long_words=False, break_on_hyphens=False)
_BELOW: Final = "    | "
"""Before what stands below a row: words from outside must not begin a line, where they could be taken for another."""


def render_lines(said: Sequence[tuple[str, str]], start: str = "") -> str:
    """Labels, in a column of their own, and their sentences in lines of 80 columns that begin with ``start``."""
    width = 2 + max(len(label) for label, _ in said)
    later = start + " " * width
    return "\n".join(
        line
        for label, text in said
        for line in _wrap(f"{label}:".ljust(width) + text, _WIDTH, initial_indent=start, subsequent_indent=later)
    )


def render(blocks: Iterable[Block | Section]) -> str:
    """The blocks with an empty line between any two; what is folded is left out, the report and JSON have it."""
    return "\n".join("".join(text for text, _ in line) for line in lines(blocks))


def lines(blocks: Iterable[Block | Section]) -> Iterator[Line]:
    """The same as lines of pieces, each with its tone."""
    shown = False
    for block in blocks:
        for number, line in enumerate(_lines(block)):
            if shown and not number:
                yield ()
            shown = True
            yield line


def _lines(block: Block | Section) -> Iterator[Line]:
    if isinstance(block, Section):
        yield _quiet(f"# {block.heading}")
        yield from lines(block.blocks)
    elif isinstance(block, Paragraph):
        yield from _notes(block.text.split("\n"))
    elif isinstance(block, Table) and not block.folded:
        yield from _table(block)


def _notes(notes: Iterable[str]) -> Iterator[Line]:
    """Each note behind ``#``, in lines of 80 columns."""
    for note in notes:
        for line in _wrap(note, _WIDTH - 2) or [""]:
            yield _quiet(f"# {line}".rstrip())


def _quiet(text: str) -> Line:
    return ((text, "quiet"),)


def _table(table: Table) -> Iterator[Line]:
    """Words left, numbers right; a line for groups and one for units where there are any. Columns that have no room in
    a line are said below each row, or once above all rows where these have the same.
    """
    heads = [
        [
            "" if name == before else name
            for before, name in pairwise(["", *(column.group for column in table.columns)])
        ],
        [column.name for column in table.columns],
        [f"({column.unit})" if column.unit else "" for column in table.columns],
    ]
    every = [*heads, *([cell.text for cell in row] for row in table.rows)]
    widths = [max(map(len, cells)) for cells in zip(*every, strict=True)]
    ends = accumulate(width + 2 for width in widths)
    shown = sum(end <= _WIDTH for end in ends)
    rest = range(shown, len(widths))
    alike = [place for place in rest if len(table.rows) > 1 and len({row[place].text for row in table.rows}) == 1]
    below = [place for place in rest if place not in alike]

    def placed(cells: Sequence[str]) -> list[str]:
        return [
            text.rjust(width) if column.numeric else text.ljust(width)
            for text, width, column in zip(cells[:shown], widths, table.columns, strict=False)
        ]

    if table.caption:
        yield from _notes([table.caption])
    for head in heads:
        if any(head[:shown]):
            yield _quiet(f"# {'  '.join(placed(head))}".rstrip())
    if alike and (said := _said(table, table.rows[0], alike)):
        yield from _notes([f"all rows: {said}"])
    for row in table.rows:
        pieces = [
            ("  " + text, cell.tone) for text, cell in zip(placed([cell.text for cell in row]), row, strict=False)
        ]
        while pieces and not pieces[-1][0].strip():
            pieces.pop()
        if pieces:
            yield (*pieces[:-1], (pieces[-1][0].rstrip(), pieces[-1][1]))
        begin, text = _BELOW if shown else "  | ", _said(table, row, below)
        for line in _wrap(text, _WIDTH, initial_indent=begin, subsequent_indent=_BELOW):
            yield ((line, "plain"),)
    yield from _notes(table.notes)


def _said(table: Table, row: Sequence[Cell], places: Iterable[int]) -> str:
    """Cells of a row with the names of their columns, but for that of the first one, which names the row."""
    found = ((place, table.columns[place], row[place].text) for place in places)
    return "; ".join(
        f"{column.group} {column.name}".strip() + f": {text} {column.unit}".rstrip() if place else text
        for place, column, text in found
        if text not in {"", MISSING}
    )
