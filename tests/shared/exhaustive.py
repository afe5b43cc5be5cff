"""How much the tests try: what every commit is held to, or all there is.

``make test-exhaustive`` sets BUSBW_EXHAUSTIVE=1 for the latter. Tests marked ``slow`` are another thing: ``make test``
leaves them out, ``make test-all`` runs them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

import pytest

_Row = TypeVar("_Row")

EXHAUSTIVE = os.environ.get("BUSBW_EXHAUSTIVE") == "1"

AT_NIGHT = pytest.mark.skipif(not EXHAUSTIVE, reason="for make test-exhaustive")
"""Marks a test with real ranks that goes the way of another one."""

RANKS = tuple(range(1, 65)) if EXHAUSTIVE else (*range(1, 10), 12, 15, 16, 17, 31, 32, 33)
"""Numbers of ranks of an algorithm: the small ones, and powers of two with their neighbours."""

EXAMPLES = 200 if EXHAUSTIVE else 25
"""How many a property is tried on (hypothesis)."""


def trials(few: int, many: int) -> int:
    """How often something random is tried: ``few`` times for a commit."""
    return many if EXHAUSTIVE else few


def fewest_held(count: int, share: float = 0.95) -> int:
    """Of ``count`` intervals that each hold the truth with this probability, the number that as good as always do:
    fewer have a probability below 1 %.
    """
    from scipy.stats import binom  # noqa: PLC0415 - tests with real ranks need none of it

    return int(binom.ppf(0.01, count, share))


def thinned(every: Iterable[_Row], each: int) -> list[_Row]:
    """Of a table of parameters every so manieth row for a commit. ``each`` should divide no side of the table."""
    rows = list(every)
    return rows if EXHAUSTIVE else rows[::each]
