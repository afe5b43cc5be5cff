"""Grouping of items by a key, in order of first appearance."""

from collections.abc import Callable, Iterable
from typing import TypeVar

_Key = TypeVar("_Key")
_Item = TypeVar("_Item")
_Value = TypeVar("_Value")


def grouped(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    """``items`` grouped by their ``key``; keys and items keep their order of first appearance."""
    return by_key((key(item), item) for item in items)


def by_key(pairs: Iterable[tuple[_Key, _Value]]) -> dict[_Key, list[_Value]]:
    """The values of each key in ``pairs``; keys and values keep their order of first appearance."""
    groups: dict[_Key, list[_Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups
