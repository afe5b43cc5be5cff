"""JSON inside logs: a document after other lines, or one object per line. No value is trusted to have its type."""

import json
import re
from collections.abc import Iterable
from itertools import accumulate, pairwise
from typing import Any, Final

from busbw.errors import LogError
from busbw_analysis.data.readers.lines import number

MOST_BYTES: Final = 64 << 20
_MOST_STARTS: Final = 20
_BARE: Final = re.compile(r"(?<=[:,\[])\s*-?(?:inf|nan|Infinity|NaN)\b")
_DECODER: Final = json.JSONDecoder()


class Document(dict[str, Any]):
    """The object of a document, with the text that contains it."""

    text = ""

    def lines_of(self, key: str, count: int) -> list[int]:
        """The line of every occurrence of ``key``; 1 for all of them unless there are exactly ``count``."""
        starts = [match.start() for match in re.finditer(rf'"{re.escape(key)}"\s*:', self.text)]
        if len(starts) != count:
            return [1] * count
        breaks = (self.text.count("\n", start, end) for start, end in pairwise([0, *starts]))
        return [1 + before for before in accumulate(breaks)]


def document(source: str, lines: Iterable[str]) -> Document:
    """The first object of a log. Raises LogError if it is cut off, damaged or too large."""
    parts, size = [], 0
    for part in lines:
        size += len(part)
        if size > MOST_BYTES:
            raise LogError(f"{source}: more than {MOST_BYTES >> 20} MiB of JSON", code="too-large")
        parts.append(part)
    text = "".join(parts)
    starts = [match.start(1) for match in re.finditer(r"^[ \t]*([{\[])[ \t]*(?=[\"\]{}\n]|$)", text, re.MULTILINE)]
    failure: ValueError | RecursionError | None = None
    for start in starts[:_MOST_STARTS]:
        try:
            value = decoded(text, start)
        except (ValueError, RecursionError) as error:
            failure = failure or error
            continue
        if isinstance(value, dict):
            parsed = Document(value)
            parsed.text = text
            return parsed
    cut = isinstance(failure, json.JSONDecodeError) and failure.pos >= len(text.rstrip()) - 1
    cut = cut or "Unterminated" in str(failure)
    line = getattr(failure, "lineno", 1)
    message = f"{source}:{line}: the JSON is {'cut off' if cut else 'invalid'}"
    raise LogError(message, code="truncated" if cut else "damaged-json")


def decoded(text: str, start: int) -> object:
    """The value that begins at ``start``. Infinity and NaN, which JSON does not allow, become null."""
    try:
        return _DECODER.raw_decode(text, start)[0]
    except json.JSONDecodeError:
        if _BARE.search(text, start) is None:
            raise
        return _DECODER.raw_decode(_BARE.sub("null", text), start)[0]


def mapping(value: object) -> dict[str, Any]:
    """The value if it is an object, else an empty object."""
    return value if isinstance(value, dict) else {}


def items(value: object) -> list[Any]:
    """The value if it is a list, else an empty list."""
    return value if isinstance(value, list) else []


def text(value: object) -> str | None:
    """A string or number as text; None for other types and for empty text."""
    return str(value).strip()[:4096] or None if isinstance(value, str | int | float) else None


def real(value: object) -> float | None:
    """A finite number, possibly given as text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    if isinstance(value, int) and abs(value) > 1 << 1000:
        return None
    return number(repr(float(value)) if not isinstance(value, str) else value.strip())


def reals(value: object, factor: float) -> tuple[float, ...]:
    """The numbers of a list times ``factor``; empty unless all items are numbers."""
    numbers = [real(item) for item in items(value)]
    return tuple(item * factor for item in numbers if item is not None) if None not in numbers else ()
