"""Text on its way to a terminal: no terminal, browser or table takes it for an order, because control characters are
written out.

A run folder may come from anyone. An escape sequence in a host name would recolour or rewrite the terminal of whoever
looks at it, a reversal of the writing direction would turn a sentence around, and a line break would forge a line.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import click
import msgspec

_SPACE: Final = re.compile("[\t\n\v\f\r\x85\u2028\u2029]+")
_UNPRINTED: Final = "\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_CONTROL: Final = re.compile(f"[\x00-\x1f{_UNPRINTED}]")
_NO_LINE_END: Final = re.compile(f"[\x00-\x09\x0b-\x1f{_UNPRINTED}]")


def plain_text(text: str) -> str:
    r"""``text`` on one line, with every control character written out, as ``\x1b``."""
    return _CONTROL.sub(_written_out, _SPACE.sub(" ", text))


def with_texts(value: Any, change: Callable[[str], str]) -> Any:  # noqa: ANN401 - a record or JSON, the same again
    """``value``, a record or JSON, with every text in it as ``change`` makes it; what no text changes in stays itself,
    so that a healthy run costs one look at each field.
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
    # Vectors of samples are tuples of nothing but numbers; a list of JSON may begin with one.
    if isinstance(value, list) or (isinstance(value, tuple) and value and not isinstance(value[0], int | float)):
        inners = [with_texts(inner, change) for inner in value]
        same = all(one is other for one, other in zip(inners, value, strict=True))
        return value if same else type(value)(inners)
    return value


def echo(text: object, *, err: bool = False, nl: bool = True) -> None:
    r"""Print ``text``, whose line breaks are our own, with every other control character written out, as ``\u001b``:
    in JSON it still means the same character. What is one line or one cell goes through ``plain_text`` before.
    """
    click.echo(_NO_LINE_END.sub(lambda found: f"\\u{ord(found[0]):04x}", str(text)), err=err, nl=nl)


def say(text: object) -> None:
    """A line of busbw's own on stderr, from wherever a run is, which is not lost when the process ends at once."""
    sys.stderr.write(f"busbw: {text}\n")
    sys.stderr.flush()


_COLOURS: Final = {"good": "green", "caution": "yellow", "bad": "red", "bar": "cyan"}


def echo_toned(lines: Iterable[Iterable[tuple[str, str]]]) -> None:
    """Print lines of pieces as ``echo`` does: ``good``, ``caution``, ``bad``, ``bar`` and ``quiet`` ones in colours,
    where stdout is a terminal and ``NO_COLOR`` is not set.
    """
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    for line in lines:
        texts = (click.style(plain_text(text), fg=_COLOURS.get(tone), dim=tone == "quiet") for text, tone in line)
        click.echo("".join(texts), color=coloured)  # which takes the colours away again where there are to be none


def _written_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
