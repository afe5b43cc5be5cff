"""Render tables and paragraphs as aligned text for a terminal; headings and notes begin with ``#``."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Final, TypeAlias

from busbw_analysis.report.document import MISSING, Block, Cell, Paragraph, Section, Table, Tone

Line: TypeAlias = tuple[tuple[str, Tone], ...]
"""The segments of a line, each with its tone."""

_WIDTH: Final = 80
_wrap: Final = partial(textwrap.wrap, break_long_words=False, break_on_hyphens=False)
_NUMBERS: Final = 3
"""A table of numbers shows at least so many columns beside each other."""
_SHORT: Final = 24
"""Longest name that stays in its column where others have a line of their own."""
_BELOW: Final = "    | "
"""Prefix of text below a row: external words must not begin a line, where they could pass for another row."""


def render_lines(labelled: Sequence[tuple[str, str]], start: str = "") -> str:
    """Labels in a column of their own and their sentences, wrapped to 80 columns; every line begins with ``start``."""
    width = 2 + max(len(label) for label, _ in labelled)
    later = start + " " * width
    return "\n".join(
        line
        for label, text in labelled
        for line in _wrap(f"{label}:".ljust(width) + text, _WIDTH, initial_indent=start, subsequent_indent=later)
    )


def render(blocks: Iterable[Block | Section]) -> str:
    """The blocks, separated by empty lines. Folded tables are left out; the report and JSON have them."""
    return "\n".join("".join(text for text, _ in line) for line in lines(blocks))


def lines(blocks: Iterable[Block | Section]) -> Iterator[Line]:
    """The same as ``render``, as lines of segments with tones."""
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
    """Each note behind ``#``, wrapped to 80 columns."""
    for note in notes:
        for line in _wrap(note, _WIDTH - 2) or [""]:
            yield _quiet(f"# {line}".rstrip())


def _quiet(text: str) -> Line:
    return ((text, "quiet"),)


def _table(table: Table) -> Iterator[Line]:
    """Words left, numbers right, with a line for groups and one for units if there are any.

    Columns that do not fit the line are printed below each row, or once above all rows if all values are equal. A name
    that leaves no room for the numbers has a line of its own.
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
    shown = _fitting(widths)
    apart = shown < _NUMBERS < len(widths) and table.columns[1].numeric
    if apart:
        widths[0] = max(len(row[0]) for row in every if len(row[0]) <= _SHORT)
        shown = _fitting(widths)
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
    if alike and (shared := _named(table, table.rows[0], alike)):
        yield from _notes([f"all rows: {shared}"])
    for row in table.rows:
        cells = row
        if apart and len(row[0].text) > _SHORT:
            yield from _indented(row[0].text, "  ", row[0].tone)
            cells = (Cell(""), *row[1:])
        yield from _row(zip(placed([cell.text for cell in cells]), cells, strict=False))
        yield from _indented(_named(table, row, below), _BELOW if shown else "  | ")
    yield from _notes(table.notes)


def _row(placed: Iterable[tuple[str, Cell]]) -> Iterator[Line]:
    """The aligned cells of a row without the empty ones at its end; no line if all are empty."""
    pieces = [("  " + text, cell.tone) for text, cell in placed]
    while pieces and not pieces[-1][0].strip():
        pieces.pop()
    if pieces:
        yield (*pieces[:-1], (pieces[-1][0].rstrip(), pieces[-1][1]))


def _indented(text: str, begin: str, tone: Tone = "plain") -> Iterator[Line]:
    """``text``, wrapped to 80 columns behind ``begin``."""
    for line in _wrap(text, _WIDTH, initial_indent=begin, subsequent_indent=_BELOW):
        yield ((line, tone),)


def _fitting(widths: Iterable[int]) -> int:
    """The number of columns that fit the line."""
    return sum(end <= _WIDTH for end in accumulate(width + 2 for width in widths))


def _named(table: Table, row: Sequence[Cell], places: Iterable[int]) -> str:
    """Cells of a row with their column names, except for the first column, which names the row."""
    found = ((place, table.columns[place], row[place].text) for place in places)
    return "; ".join(
        f"{column.group} {column.name}".strip() + f": {text} {column.unit}".rstrip() if place else text
        for place, column, text in found
        if text not in {"", MISSING}
    )
