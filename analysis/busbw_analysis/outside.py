"""What a run folder says becomes text that no terminal, browser or table takes for an order: control characters shown.

A run may come from anyone. An escape sequence in a host name would recolour or rewrite the terminal of whoever looks
at it, a reversal of the writing direction would turn a sentence around, and a line break would forge a line.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, TypeVar

import msgspec

from busbw.records import JSON
from busbw.store import StoredRun

_Record = TypeVar("_Record", bound=msgspec.Struct)

_SPACE: Final = re.compile("[\t\n\v\f\r\x85\u2028\u2029]+")
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def plain_text(text: str) -> str:
    r"""``text`` on one line, with every control character written out, as ``\x1b``."""
    return _CONTROL.sub(_written_out, _SPACE.sub(" ", text))


def plain_run(stored: StoredRun) -> StoredRun:
    """``stored`` with all its strings as ``plain_text``; the numbers are not touched."""
    return replace(
        stored,
        run=_record(stored.run),
        rows=tuple(_record(row) for row in stored.rows),
        warnings=tuple(plain_text(warning) for warning in stored.warnings),
    )


def _written_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _record(record: _Record) -> _Record:
    """The same record unless one of its strings changes, so that a healthy run costs one look at each field."""
    changed: dict[str, JSON] = {}
    for name in record.__struct_fields__:
        value = getattr(record, name)
        cleaned = _value(value)
        if cleaned is not value:
            changed[name] = cleaned
    return msgspec.structs.replace(record, **changed) if changed else record


def _value(value: JSON) -> JSON:
    """``value`` itself where nothing changes."""
    if isinstance(value, str):
        text = plain_text(value)
        return value if text == value else text
    if isinstance(value, msgspec.Struct):
        return _record(value)
    if isinstance(value, Mapping):
        pairs = {_value(name): _value(inner) for name, inner in value.items()}
        return value if pairs == value else pairs
    if isinstance(value, tuple | list) and value and not isinstance(value[0], int | float):
        cleaned = [_value(inner) for inner in value]
        same = all(one is other for one, other in zip(cleaned, value, strict=True))
        return value if same else type(value)(cleaned)
    return value
