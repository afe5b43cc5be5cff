"""Render tables and paragraphs as aligned text for a terminal; headings and notes begin with ``#``."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final, TypeAlias

from busbw.escape import output_columns, prose_width, wrapped
from busbw_analysis.report.document import MISSING, Block, Cell, Paragraph, Section, Table, Tone

Line: TypeAlias = tuple[tuple[str, Tone], ...]
"""The segments of a line, each with its tone."""

_NUMBERS: Final = 3
"""A table of numbers shows at least so many columns beside each other."""
_SHORT: Final = 24
"""Longest name that stays in its column where others have a line of their own."""
_BELOW: Final = "    | "
"""Prefix of text below a row: external words must not begin a line, where they could pass for another row."""


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
        yield from _table(block, output_columns())


def _notes(notes: Iterable[str]) -> Iterator[Line]:
    """Each note behind ``#``, wrapped to the output's width."""
    for note in notes:
        for line in wrapped(note, prose_width() - 2) or [""]:
            yield _quiet(f"# {line}".rstrip())


def _quiet(text: str) -> Line:
    return ((text, "quiet"),)


def _table(table: Table, room: int) -> Iterator[Line]:
    """Words left, numbers right, with a line for groups and one for units if there are any.

    Columns beyond ``room``, except bars, are printed below each row, or once above all rows if all values are equal. A
    name that leaves no room for the numbers has a line of its own.
    """
    heads, widths = _heads(table), _widths(table)
    shown = _count_fitting(widths, room)
    apart = shown < _NUMBERS < len(widths) and table.columns[1].numeric
    if apart:
        names = [head[0] for head in heads] + [row[0].text for row in table.rows]
        widths[0] = max(len(name) for name in names if len(name) <= _SHORT)
        shown = _count_fitting(widths, room)
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
    if alike and (shared := _name_cells(table, table.rows[0], alike)):
        yield from _notes([f"all rows: {shared}"])
    for row in table.rows:
        cells = row
        if apart and len(row[0].text) > _SHORT:
            yield from _indented(row[0].text, "  ", room, row[0].tone)
            cells = (Cell(""), *row[1:])
        yield from _row(zip(placed([cell.text for cell in cells]), cells, strict=False))
        yield from _indented(_name_cells(table, row, below), _BELOW if shown else "  | ", room)
    yield from _notes(table.notes)


def _row(placed: Iterable[tuple[str, Cell]]) -> Iterator[Line]:
    """The aligned cells of a row without the empty ones at its end; no line if all are empty."""
    pieces = [("  " + text, cell.tone) for text, cell in placed]
    while pieces and not pieces[-1][0].strip():
        pieces.pop()
    if pieces:
        yield (*pieces[:-1], (pieces[-1][0].rstrip(), pieces[-1][1]))


def _indented(text: str, begin: str, room: int, tone: Tone = "plain") -> Iterator[Line]:
    """``text``, wrapped to ``room`` columns behind ``begin``."""
    for line in wrapped(text, max(room, len(begin) + 8), initial_indent=begin, subsequent_indent=_BELOW):
        yield ((line, tone),)


def _count_fitting(widths: Iterable[int], room: int) -> int:
    """The number of columns that fit the line."""
    return sum(end <= room for end in accumulate(width + 2 for width in widths))


def _heads(table: Table) -> list[list[str]]:
    """Groups, names and units of the columns, as lines of texts."""
    groups = pairwise(["", *(column.group for column in table.columns)])
    return [
        ["" if name == before else name for before, name in groups],
        [column.name for column in table.columns],
        [f"({column.unit})" if column.unit else "" for column in table.columns],
    ]


def _widths(table: Table) -> list[int]:
    every = [*_heads(table), *([cell.text for cell in row] for row in table.rows)]
    return [max(map(len, cells)) for cells in zip(*every, strict=True)]


def _name_cells(table: Table, row: Sequence[Cell], places: Iterable[int]) -> str:
    """Cells of a row with their column names, except for the first column, which names the row."""
    return "; ".join(
        f"{f'{column.group} {column.name}'.strip()}: {cell.text} {column.unit}".rstrip()
        if place and column.name
        else cell.text
        for place in places
        for column, cell in [(table.columns[place], row[place])]
        if cell.text not in {"", MISSING} and cell.tone != "bar"
    )
