"""JSON of records where several threads may read it."""

from functools import cache
from threading import Lock
from typing import Any, TypeVar

import msgspec

_Decoded = TypeVar("_Decoded")
_DECODERS = Lock()


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:  # noqa: ANN401 - any type that msgspec knows
    return msgspec.json.Decoder(kind)


def decode(text: str | bytes, kind: type[_Decoded]) -> _Decoded:
    """What ``text``, JSON, says as ``kind``. Raises MsgspecError.

    For code that may run in several threads: msgspec crashes where two prepare the same kind at once
    (``msgspec.json.decode`` does at its first call), so one prepares after the other.
    """
    with _DECODERS:
        decoder: msgspec.json.Decoder[_Decoded] = _decoder(kind)  # type: ignore[arg-type] # mypy: a type is not hashable
    return decoder.decode(text)
