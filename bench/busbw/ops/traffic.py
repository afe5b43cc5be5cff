"""Uneven traffic: how many elements each rank sends to each other one, from a skew or from a matrix of weights."""

import csv
import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from busbw.errors import UsageError
from busbw.ops.base import Matrix

Weights = tuple[tuple[float, ...], ...]
_Value = TypeVar("_Value", int, float)

_LARGEST_SKEW = 1.0


def skewed(ranks: int, skew: float) -> Weights:
    """Weights that grow linearly with the destination, from 1 − skew to 1 + skew: the last rank is the hot one.

    Raises UsageError unless 0 ≤ skew ≤ 1.
    """
    if not 0 <= skew <= _LARGEST_SKEW:
        message = f"skew {skew} is not allowed; allowed is 0 (even) to 1 (the first rank receives nothing)"
        raise UsageError(message)
    middle = (ranks - 1) / 2
    row = tuple(1 + skew * ((to - middle) / middle if middle else 0.0) for to in range(ranks))
    return tuple(row for _ in range(ranks))


def read_weights(path: Path) -> Weights:
    """A traffic matrix from a CSV file: line s, column d is what rank s sends to rank d, in any unit.

    Raises UsageError when it cannot be read, is not square, holds something else than numbers ≥ 0, or is all zero.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.reader(file) if any(cell.strip() for cell in row)]
    except (OSError, UnicodeDecodeError) as error:
        message = f"traffic matrix {path}: cannot read it: {error}"
        raise UsageError(message) from error
    weights: list[tuple[float, ...]] = []
    for number, row in enumerate(rows, start=1):
        try:
            weights.append(tuple(float(cell) for cell in row))
        except ValueError:
            message = f"traffic matrix {path}, row {number}: {row} is not numbers separated by commas"
            raise UsageError(message) from None
    return checked_weights(weights, str(path))


def checked_weights(weights: Sequence[Sequence[float]], origin: str) -> Weights:
    """``weights`` as a matrix. Raises UsageError unless it is square, finite, not negative and not all zero."""
    side = len(weights)
    if side == 0 or any(len(row) != side for row in weights):
        widths = sorted({len(row) for row in weights})
        message = f"traffic matrix {origin} has {side} rows of {widths} columns; it must be square"
        raise UsageError(message)
    values = [value for row in weights for value in row]
    if not all(math.isfinite(value) and value >= 0 for value in values) or not any(values):
        message = f"traffic matrix {origin} must hold finite numbers ≥ 0, and not only zeros"
        raise UsageError(message)
    return tuple(tuple(float(value) for value in row) for row in weights)


def split(weights: Weights, count: int) -> Matrix:
    """Elements from s to d in the proportions of ``weights``, so that the busiest rank sends or receives ``count``.

    That is the S of the definitions: the largest over the ranks of what is sent or received. Shares are rounded down;
    what the busiest rank then lacks is added to its blocks one by one, those that lost most first, and never beyond
    what another rank may send or receive.
    """
    sent = [sum(row) for row in weights]
    received = [sum(column) for column in zip(*weights, strict=True)]
    heaviest = max(*sent, *received)
    if heaviest in received and heaviest not in sent:
        return _transposed(split(_transposed(weights), count))
    exact = [[weight * count / heaviest for weight in row] for row in weights]
    matrix = [[math.floor(share) for share in row] for row in exact]
    busiest = sent.index(heaviest)
    row = matrix[busiest]
    lost = sorted(range(len(row)), key=lambda to: row[to] - exact[busiest][to])
    for to in (to for to in lost if exact[busiest][to] > 0):
        if sum(row) < count and sum(line[to] for line in matrix) < count:
            row[to] += 1
    return tuple(tuple(line) for line in matrix)


def _transposed(matrix: tuple[tuple[_Value, ...], ...]) -> tuple[tuple[_Value, ...], ...]:
    return tuple(zip(*matrix, strict=True))


def largest(matrix: Matrix) -> int:
    """The largest over the ranks of the elements that are sent or received."""
    return max(*map(sum, matrix), *map(sum, _transposed(matrix)))


def crossing(matrix: Matrix) -> int:
    """Elements that leave their rank: everything but the diagonal."""
    return sum(sum(row) for row in matrix) - sum(matrix[rank][rank] for rank in range(len(matrix)))


def fingerprint(weights: Weights) -> str:
    """Eight hex digits that tell one matrix from another."""
    return hashlib.sha256(repr(weights).encode()).hexdigest()[:8]
