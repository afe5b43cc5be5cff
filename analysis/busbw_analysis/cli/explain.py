"""The command ``busbw explain``: what the flags and headings of tables mean."""

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
    terms, headings = {**FLAGS, **dict(glossary_terms())}, heading_terms()
    asked = (terms, headings) if given else (FLAGS,)
    for names in asked:
        if shown := [(name, text) for name, text in names.items() if name.lower().startswith(given)]:
            break
    else:
        raise UsageError(f"{given!r} is none of the terms: {', '.join(terms | headings)}")
    echo(render_lines(shown))
