"""Records as JSON has them."""

import math
from dataclasses import fields, is_dataclass

import msgspec
import numpy as np

from busbw.runs.records import JSON
from busbw_analysis.data.unavailable import Unavailable


def plain(value: object) -> JSON:
    """Dataclasses, records, arrays and tuples as JSON has them; numbers that are not finite as null; what is not
    available as its reason and its code.
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
