"""Print the answer of a command: a headline, and then the data as JSON or as tables."""

from collections.abc import Iterable

from busbw.escape import echo
from busbw.runs.records import JSON
from busbw_analysis.cli.options import print_json
from busbw_analysis.report.document import Block, Paragraph
from busbw_analysis.report.to_terminal import render


def print_answer(headline: str, document: dict[str, JSON], shown: Iterable[Block], *, as_json: bool) -> None:
    """Print the headline and then ``document`` as JSON, or ``shown``."""
    if as_json:
        print_json({"headline": headline, **document})
    else:
        echo(render([Paragraph(headline), *shown]))
