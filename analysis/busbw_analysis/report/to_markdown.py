"""Render a page as Markdown: what HTML shows before anything is unfolded, without drawings."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from busbw.units import counted, listed
from busbw_analysis.data.sentences import sentences
from busbw_analysis.report.document import SEVERITY, Block, Figure, Page, Paragraph, Section, Table, Terms

_MOST_ROWS: Final = 32
_MOST_NAMED: Final = 5
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~$])")


def render(page: Page) -> str:
    """The page as GitHub Markdown. Text from outside cannot become markup, HTML or a broken table."""
    return "\n".join(_lines(page)).rstrip() + "\n"


def escape(text: str) -> str:
    """``text`` as one line of Markdown that shows exactly this text."""
    flat = " ".join(text.split())
    escaped = _SPECIAL.sub(r"\\\1", flat).replace("&", "&amp;").replace("://", ":&#8203;//")
    # At the start of a line these characters would begin a list, a quotation or a heading.
    return re.sub(r"^([-+=]|\d+[.)])(?=\s|$)", r"\\\1", escaped)


def _lines(page: Page) -> Iterator[str]:
    yield from (f"# {escape(page.title)}", "", escape(page.subtitle), "")
    for name, answer, verdicts in page.answers:
        yield from (f"## {escape(name)}", "") if name else ()
        yield from (f"- **{label}:** {escape(text)}" for label, text in answer.lines)
        yield from ("", *(f"- **{SEVERITY[finding.severity]}:** {escape(finding.text)}" for finding in answer.opened))
        folded = listed(dict.fromkeys(finding.subject for finding in answer.folded), _MOST_NAMED)
        more = f"- {counted(len(answer.folded), 'more finding')} in report.html: {escape(folded)}"
        yield from (more, "") if answer.folded else ("",)
        yield from () if verdicts is None else _table(verdicts)
    if page.figure is not None:
        yield from (escape(page.figure.caption), "")
        yield from _table(replace(page.figure.table, folded=False))
    for section in page.sections:
        yield from () if section.folded else _section(section)
    yield from ("## More in the HTML report", "")
    for section in page.sections:
        yield from (f"- **{escape(section.heading)}:** {escape(section.gist)}",) if section.folded else ()
    tables = "`busbw show RUN --all --explain` prints the tables"
    yield from ("", f"`busbw report` writes the HTML report, and report.json with every number; {tables}.")


def _section(section: Section) -> Iterator[str]:
    yield from (f"## {escape(section.heading)}", "")
    if section.gist:
        yield from (escape(section.gist), "")
    for block in section.blocks:
        yield from _block(block)
    for part in section.parts:
        captions = [part.gist, *(block.caption for block in part.blocks if isinstance(block, Figure))]
        yield f"- **{escape(part.heading)}:** {escape(sentences(*captions))}"
    yield from [""] * bool(section.parts)


def _block(block: Block) -> Iterator[str]:
    if isinstance(block, Paragraph):
        yield from () if block.tone == "quiet" else (escape(block.text), "")  # how figures are drawn, and what lacks
    elif isinstance(block, Terms):
        yield from (f"- **{escape(term)}**: {escape(meaning)}" for term, meaning in block.entries)
        yield ""
    elif isinstance(block, Figure):
        yield from (escape(block.caption), "")
        yield from _table(block.table)
    else:
        yield from _table(block)


def _table(table: Table) -> Iterator[str]:
    if table.folded:
        return
    if len(table.rows) > _MOST_ROWS:
        yield from (f"*{escape(table.caption)}*: {len(table.rows)} rows in the HTML report", "")
        return
    yield from (f"*{escape(table.caption)}*", "") if table.caption else ()
    yield "| " + " | ".join(escape(column.heading) for column in table.columns) + " |"
    yield "|" + "|".join("---:" if column.numeric else ":---" for column in table.columns) + "|"
    for row in table.rows:
        yield "| " + " | ".join(escape(cell.text) for cell in row) + " |"
    yield ""
    if table.note:
        yield from (escape(table.note), "")
