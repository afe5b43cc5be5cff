"""Output of text with control characters escaped, so that no terminal, browser or table interprets them.

A run folder may come from an untrusted source. An escape sequence in a host name could rewrite the terminal, a change
of the writing direction could reverse a sentence, and a line break could forge a line.
"""

import os
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TextIO

import click
import msgspec

_SPACE: Final = re.compile("[\t\n\v\f\r\x85\u2028\u2029]+")
_UNPRINTED: Final = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_FORMULA: Final = re.compile(r"'*[=+\-@\t\r\n]")
_CONTROL: Final = re.compile(f"[\x00-\x1f{_UNPRINTED}]")
_NO_LINE_END: Final = re.compile(f"[\x00-\x09\x0b-\x1f{_UNPRINTED}]")


def plain_text(text: str) -> str:
    r"""``text`` on one line, with every control character escaped, such as ``\x1b``."""
    # Most texts are printable, and a list of runs has a hundred thousand.
    return text if text.isprintable() else _CONTROL.sub(_escaped, _SPACE.sub(" ", text))


def as_argument(path: object) -> str:
    """A path as a word of a shell's command line: no option, and on one line of printable characters."""
    text = str(path)
    text = f"./{text}" if text.startswith("-") else text
    if text.isprintable():
        return shlex.quote(text)
    plain = (chr(byte) if 32 <= byte < 127 and byte not in b"'\\" else f"\\x{byte:02x}" for byte in os.fsencode(text))
    return f"$'{''.join(plain)}'"


def as_cell(text: str) -> str:
    """``text`` as a cell of a spreadsheet, which would run what begins like a formula: after an apostrophe it is text.

    Source: OWASP, CSV Injection. ``from_cell`` is the inverse.
    """
    return f"'{text}" if _FORMULA.match(text) else text


def from_cell(cell: str) -> str:
    """The text of a cell that ``as_cell`` made."""
    return cell[1:] if cell[:1] == "'" and _FORMULA.match(cell) else cell


def with_texts(value: Any, change: Callable[[str], str]) -> Any:  # noqa: ANN401 - a record or JSON
    """``value``, a record or JSON, with ``change`` applied to every text in it. Parts without a changed text are not
    copied.
    """
    if isinstance(value, str):
        text = change(value)
        return value if text == value else text
    if isinstance(value, msgspec.Struct):
        fields = [(name, getattr(value, name)) for name in value.__struct_fields__]
        changed = {name: new for name, old in fields if (new := with_texts(old, change)) is not old}
        return msgspec.structs.replace(value, **changed) if changed else value
    if isinstance(value, Mapping):
        pairs = {with_texts(name, change): with_texts(inner, change) for name, inner in value.items()}
        return value if pairs == value else pairs
    # Sample vectors are tuples of numbers only, but a JSON list may begin with a number and contain text.
    if isinstance(value, list) or (isinstance(value, tuple) and value and not isinstance(value[0], int | float)):
        inners = [with_texts(inner, change) for inner in value]
        same = all(inner is other for inner, other in zip(inners, value, strict=True))
        return value if same else type(value)(inners)
    return value


def echo(text: object, *, err: bool = False, nl: bool = True) -> None:
    r"""Print ``text`` with its line breaks, and every other control character escaped as ``\u001b``, which is valid in
    JSON. Apply ``plain_text`` first to text for one line or cell.
    """
    click.echo(_NO_LINE_END.sub(lambda match: f"\\u{ord(match[0]):04x}", str(text)), err=err, nl=nl)


_COLUMNS_OF_A_FILE: Final = 80
_FEWEST_COLUMNS: Final = 20


def output_columns(stream: TextIO | None = None) -> int:
    """Width of the output: ``COLUMNS``, else that of the terminal of ``stream`` (stdout), else 80 columns."""
    given = os.environ.get("COLUMNS", "")
    # Not shutil's size, which is that of the first stdout, where a test or a notebook has replaced it.
    columns = int(given) if given.isdecimal() and len(given) < 6 else 0
    if not columns:
        with suppress(OSError, ValueError):
            columns = os.get_terminal_size((stream or sys.stdout).fileno()).columns
    return max(_FEWEST_COLUMNS, columns or _COLUMNS_OF_A_FILE)


_WIDEST_PROSE: Final = 120
wrapped: Final = partial(textwrap.wrap, break_long_words=False, break_on_hyphens=False)


def prose_width() -> int:
    """Columns for sentences: lines longer than 120 are hard to read."""
    return min(output_columns(), _WIDEST_PROSE)


def render_lines(labelled: Sequence[tuple[str, str]], start: str = "", width: int = 0) -> str:
    """Labels in a column of their own, at least ``width`` wide, and their sentences, wrapped; every line begins with
    ``start``.
    """
    width = 2 + max(width, *(len(label) for label, _ in labelled))
    later = start + " " * width
    room = prose_width()
    return "\n".join(
        line
        for label, text in labelled
        for line in wrapped(f"{label}:".ljust(width) + text, room, initial_indent=start, subsequent_indent=later)
    )


def say(text: object) -> None:
    """Print a message of busbw on stderr, flushed so that it is not lost when the process exits immediately."""
    sys.stderr.write(f"busbw: {text}\n")
    sys.stderr.flush()


_COLOURS: Final = {"good": "green", "caution": "yellow", "bad": "red", "bar": "cyan"}


def echo_toned(lines: Iterable[Iterable[tuple[str, str]]], *, err: bool = False, bold: bool = False) -> None:
    """Print lines of (text, tone) parts. The tones ``good``, ``caution``, ``bad``, ``bar`` and ``quiet`` have colours
    if the output is a terminal and ``NO_COLOR`` is not set.
    """
    stream = sys.stderr if err else sys.stdout
    coloured = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    for line in lines:
        styled = (
            click.style(plain_text(text), fg=_COLOURS.get(tone), dim=tone == "quiet" or None, bold=bold or None)
            for text, tone in line
        )
        click.echo("".join(styled), color=coloured, err=err)  # removes the colours if ``coloured`` is False


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
