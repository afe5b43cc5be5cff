"""The one way to sort things by what they have in common."""

from collections.abc import Callable, Iterable
from typing import TypeVar

_Key = TypeVar("_Key")
_Item = TypeVar("_Item")
_Value = TypeVar("_Value")


def grouped(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    """``items`` by their ``key``, both in the order in which they first came."""
    return by_key((key(item), item) for item in items)


def by_key(pairs: Iterable[tuple[_Key, _Value]]) -> dict[_Key, list[_Value]]:
    """The values of every key of ``pairs``, both in the order in which they first came."""
    found: dict[_Key, list[_Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found
