"""Render a page as Markdown: the same text and tables as in HTML, without drawings."""

import re
from collections.abc import Iterator

from busbw_analysis.report.document import SEVERITY, Block, Figure, Page, Paragraph, Section, Table, Terms

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
        findings = (*answer.opened, *answer.folded)
        yield from ("", *(f"- **{SEVERITY[finding.severity]}:** {escape(finding.text)}" for finding in findings), "")
        yield from () if verdicts is None else _table(verdicts)
    yield from () if page.figure is None else _block(page.figure)
    for section in page.sections:
        yield from _section(section, 2)


def _section(section: Section, level: int) -> Iterator[str]:
    yield from (f"{'#' * level} {escape(section.heading)}", "")
    if section.gist:
        yield from (escape(section.gist), "")
    for block in section.blocks:
        yield from _block(block)
    for part in section.parts:
        yield from _section(part, level + 1)


def _block(block: Block) -> Iterator[str]:
    if isinstance(block, Paragraph):
        yield from (escape(block.text), "")
    elif isinstance(block, Terms):
        yield from (f"- **{escape(term)}**: {escape(meaning)}" for term, meaning in block.entries)
        yield ""
    elif isinstance(block, Figure):
        yield from (escape(block.caption), "")
        yield from _table(block.table)
    else:
        yield from _table(block)


def _table(table: Table) -> Iterator[str]:
    yield from (f"*{escape(table.caption)}*", "")
    yield "| " + " | ".join(escape(column.heading) for column in table.columns) + " |"
    yield "|" + "|".join("---:" if column.numeric else ":---" for column in table.columns) + "|"
    for row in table.rows:
        yield "| " + " | ".join(escape(cell.text) for cell in row) + " |"
    yield ""
    if table.note:
        yield from (escape(table.note), "")
