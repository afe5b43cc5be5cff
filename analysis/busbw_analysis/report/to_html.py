"""Render a page as one self-contained HTML file: no requests, the reader's own fonts, and one script that the page can
be read without.
"""

import base64
import hashlib
import re
from importlib.resources import files
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from busbw_analysis.diagnosis.answer import OPEN_FINDINGS
from busbw_analysis.diagnosis.trust import MOST_CONFIDENCE
from busbw_analysis.report.document import SEVERITY, TONES, Cell, Page, Table
from busbw_analysis.report.run import anchor_of, term_of

_NUMBER: Final = re.compile(r"[\d\u202f]+(\.\d+)?")
_OPTION: Final = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
_FIGURE_SPACE, _POINT_SPACE = "\u2007", "\u2008"


def render(page: Page) -> str:
    """The page as HTML. The templates escape all text; only our own drawings are inserted as markup."""
    environment = Environment(
        loader=PackageLoader("busbw_analysis.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(
        {
            "drawing": Markup,
            "aligned": aligned,
            "digest": _digest,
            "anchor_of": anchor_of,
            "term_of": term_of,
            "unbroken": unbroken,
        }
    )
    script = files("busbw_analysis.report").joinpath("templates/report.js").read_text(encoding="utf-8")
    return environment.get_template("report.html.j2").render(
        page=page,
        script=script,
        severity=SEVERITY,
        tones=TONES,
        most_confidence=MOST_CONFIDENCE,
        open_findings=OPEN_FINDINGS,
    )


def unbroken(text: str) -> Markup:
    """Escaped text in which no line ends inside an option: browsers break after each hyphen."""
    return Markup(_OPTION.sub(r'<span class="option">\g<0></span>', str(escape(text))))  # noqa: S704 - escaped


def _digest(script: str) -> str:
    """The hash that lets the content security policy allow this script only."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def aligned(table: Table) -> list[list[tuple[Cell, str]]]:
    """The rows of a table with the text to show, padded so that the decimal points of a column align."""
    texts = ([cell.text for cell in cells] for cells in zip(*table.rows, strict=True))
    shown = [
        _pad(of) if column.numeric and column.unit else of for column, of in zip(table.columns, texts, strict=False)
    ]
    return [list(zip(*row, strict=True)) for row in zip(table.rows, zip(*shown, strict=True), strict=True)]


def _pad(texts: list[str]) -> list[str]:
    matches = [_NUMBER.fullmatch(text) for text in texts]
    decimals = [len(match[1] or "") if match else 0 for match in matches]
    # A whole number also lacks the decimal point, which is narrower than a digit.
    spaces = (_POINT_SPACE + _FIGURE_SPACE * max(decimals))[: max(decimals)]
    return [
        text + spaces[places:] if match else text for text, match, places in zip(texts, matches, decimals, strict=True)
    ]
