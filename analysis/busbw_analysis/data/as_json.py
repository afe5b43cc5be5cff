"""Conversion of records to JSON values."""

import math
from dataclasses import fields, is_dataclass

import msgspec
import numpy as np

from busbw.runs.records import JSON
from busbw_analysis.data.unavailable import Unavailable


def plain(value: object) -> JSON:
    """``value`` as JSON: dataclasses and records as objects, arrays and tuples as lists, non-finite numbers as null.

    An ``Unavailable`` becomes an object with its reason and its code.
    """
    if isinstance(value, Unavailable):
        return {"none": value.reason, "code": value.code}
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    elif is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    elif isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return np.where(np.isfinite(value), value.astype(np.object_), np.asarray(None)).tolist()
    elif isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def values_of(record: object, *names: str) -> dict[str, JSON]:
    """The fields or properties ``names`` of a record, as JSON."""
    return {name: plain(getattr(record, name)) for name in names}


def with_values(record: object, *names: str) -> dict[str, JSON]:
    """All fields of a record, and its properties ``names``, as JSON."""
    return {**plain(record), **values_of(record, *names)}
