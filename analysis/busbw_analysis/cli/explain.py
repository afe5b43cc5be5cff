"""The command ``busbw explain``: what the flags and headings of tables mean."""

import re
from difflib import get_close_matches
from typing import Final

import click

from busbw.errors import UsageError
from busbw.escape import echo, render_lines
from busbw.ops import OPS
from busbw_analysis.data.grouped import grouped
from busbw_analysis.data.summary import FLAGS
from busbw_analysis.report.run import glossary_terms, heading_terms

_WORD: Final = re.compile(r"[\w-]")


def meanings(words: str) -> dict[str, str]:
    """The terms that begin with ``words`` and their meanings: the term of these words and the flags that begin with
    them, else those that have them as whole words, if any do.

    Terms of one meaning are one entry, the shortest first; without ``words`` the flags are meant. Dashes are spaces,
    and a plural is its term.
    """
    given = _plain(words)
    names = _terms() if given else FLAGS
    if not any(_plain(name).startswith(given) for name in names):
        given = given.removesuffix("s")
    begun = {name: text for name, text in names.items() if _plain(name).startswith(given)}
    whole = {name: text for name, text in begun.items() if given and not _WORD.match(name, len(given))}
    exact = {name: text for name, text in whole.items() if _plain(name) == given or name in FLAGS}
    matching = exact or whole or begun
    terms = grouped(sorted(matching, key=len) if given else matching, matching.__getitem__)
    return {", ".join(names): text for text, names in terms.items()}


def _terms() -> dict[str, str]:
    ops = {name: f"{op.summary}; size S: {op.size_meaning}" if op.sized else op.summary for name, op in OPS.items()}
    return {**ops, **heading_terms(), **dict(glossary_terms()), **FLAGS}


def _plain(term: str) -> str:
    return term.lower().replace("-", " ")


@click.command()
@click.argument("words", metavar="[TERM]", nargs=-1)
def explain(words: tuple[str, ...]) -> None:
    """Say what TERM means: a flag, such as bimodal, a heading, such as busbw, or an operation. Without TERM: all flags.

    The beginning of a term suffices, and its words need no quotes.
    """
    given = " ".join(words)
    shown = meanings(given)
    if not shown:
        names = [name.lower() for name in _terms()]
        near = get_close_matches(given.lower(), names, cutoff=0.75)
        meant = f"; near: {', '.join(near)}" if near else ""
        raise UsageError(f"{given!r} is no flag, heading or operation{meant}; busbw explain shows all flags")
    echo(render_lines([*shown.items()]))
