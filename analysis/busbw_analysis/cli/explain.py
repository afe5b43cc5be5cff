"""The command ``busbw explain``: what the flags and headings of tables mean."""

from difflib import get_close_matches

import click

from busbw.errors import UsageError
from busbw.escape import echo
from busbw_analysis.data.summary import FLAGS
from busbw_analysis.report.run import glossary_terms, heading_terms
from busbw_analysis.report.to_terminal import render_lines


@click.command()
@click.argument("words", metavar="[TERM]", nargs=-1)
def explain(words: tuple[str, ...]) -> None:
    """Say what TERM means: a flag, such as bimodal, or a heading, such as busbw. Without TERM: all flags.

    The beginning of a term suffices, and its words need no quotes.
    """
    given = " ".join(words).lower()
    names = {**heading_terms(), **dict(glossary_terms()), **FLAGS} if given else FLAGS
    shown = [(name, text) for name, text in names.items() if name.lower().startswith(given)]
    if not shown:
        near = get_close_matches(given, [name.lower() for name in names], cutoff=0.5)
        meant = f"; near: {', '.join(near)}" if near else ""
        raise UsageError(f"{' '.join(words)!r} is no flag or heading{meant}; busbw explain shows all flags")
    echo(render_lines(shown))
