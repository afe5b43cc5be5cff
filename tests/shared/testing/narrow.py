"""Values of the one type that a test expects, also for mypy."""

from typing import TypeVar

_Value = TypeVar("_Value")


def require(value: _Value | None) -> _Value:
    """``value``, which must not be None."""
    assert value is not None
    return value


def require_type(kind: type[_Value], value: object) -> _Value:
    """``value``, which must be a ``kind``."""
    assert isinstance(value, kind), value
    return value
