"""What a run folder says becomes text that no terminal, browser or table takes for an order."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import msgspec

from busbw.escape import plain_text
from busbw.runs.records import JSON
from busbw.runs.store import StoredRun

_Record = TypeVar("_Record", bound=msgspec.Struct)


def plain_run(stored: StoredRun) -> StoredRun:
    """``stored`` with all its strings as ``plain_text``; the numbers are not touched."""
    return replace(
        stored,
        run=_record(stored.run),
        rows=tuple(_record(row) for row in stored.rows),
        warnings=tuple(plain_text(warning) for warning in stored.warnings),
    )


def _record(record: _Record) -> _Record:
    """The same record unless one of its strings changes, so that a healthy run costs one look at each field."""
    values = {name: getattr(record, name) for name in record.__struct_fields__}
    changed = {name: cleaned for name, value in values.items() if (cleaned := _value(value)) is not value}
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
    # Vectors of samples are tuples of nothing but numbers; a list of JSON may begin with one.
    if isinstance(value, list) or (isinstance(value, tuple) and value and not isinstance(value[0], int | float)):
        cleaned = [_value(inner) for inner in value]
        same = all(one is other for one, other in zip(cleaned, value, strict=True))
        return value if same else type(value)(cleaned)
    return value
