"""Uneven traffic: elements that each rank sends to each other rank, from an imbalance or a matrix of weights."""

import csv
import hashlib
import io
import math
from collections.abc import Sequence
from pathlib import Path

from busbw.errors import UsageError
from busbw.ops.base import Matrix
from busbw.ops.limits import MOST_MATRIX_RANKS, MOST_TRAFFIC_BYTES, read_text
from busbw.ops.settings import TrafficSettings

Weights = tuple[tuple[float, ...], ...]


def settings_of(imbalance: float, traffic: Weights | None) -> TrafficSettings:
    """The settings of a case; ``traffic``: the matrix that replaces the imbalance."""
    return TrafficSettings(imbalance=imbalance) if traffic is None else TrafficSettings(traffic=fingerprint(traffic))


def weights_of(imbalance: float, traffic: Weights | None, ranks: int) -> Weights:
    """The weights for a group of ``ranks``. Raises UsageError if the matrix is for another number of ranks."""
    if traffic is None:
        return imbalanced(ranks, imbalance)
    if len(traffic) != ranks:
        raise UsageError(
            f"the traffic matrix is for {len(traffic)} ranks, but a group has {ranks} ranks; use equal numbers"
        )
    return traffic


def imbalanced(ranks: int, imbalance: float) -> Weights:
    """Weights that grow linearly with the destination, from 1 − imbalance to 1 + imbalance (the last rank).

    Raises UsageError unless 0 ≤ imbalance ≤ 1.
    """
    if not 0 <= imbalance <= 1:
        raise UsageError(f"imbalance {imbalance} is not allowed; use 0 (even) to 1 (the first rank receives nothing)")
    middle = (ranks - 1) / 2
    row = tuple(1 + imbalance * ((to - middle) / middle if middle else 0.0) for to in range(ranks))
    return tuple(row for _ in range(ranks))


def read_weights(path: Path) -> Weights:
    """A traffic matrix from a CSV file: line s, column d is the traffic from rank s to rank d, in any unit.

    Raises UsageError if it is unreadable, not square, all zero, or has a value that is not a number ≥ 0.
    """
    text = read_text(path, MOST_TRAFFIC_BYTES, "traffic matrix ")
    rows = csv.reader(io.StringIO(text, newline=""))
    try:
        weights = [tuple(map(float, row)) for row in rows if any(cell.strip() for cell in row)]
    except (ValueError, csv.Error):
        raise UsageError(f"traffic matrix {path}, row {rows.line_num}: not numbers separated by commas") from None
    return checked_weights(weights, str(path))


def checked_weights(weights: Sequence[Sequence[float]], origin: str) -> Weights:
    """``weights`` as a matrix. Raises UsageError unless it is square, finite, not negative and not all zero."""
    side = len(weights)
    if side == 0 or any(len(row) != side for row in weights):
        widths = sorted({len(row) for row in weights})[:8]
        raise UsageError(f"traffic matrix {origin} has {side} rows of {widths} columns; it must be square")
    refuse_large(side)
    if not all(0 <= value < math.inf for row in weights for value in row) or not any(map(any, weights)):
        raise UsageError(f"traffic matrix {origin} must hold finite numbers ≥ 0, and not only zeros")
    return tuple(tuple(float(value) for value in row) for row in weights)


def refuse_large(ranks: int) -> None:
    """Raise UsageError for a group whose matrix of pairs would have too many cells."""
    if ranks > MOST_MATRIX_RANKS:
        raise UsageError(
            f"a matrix of {ranks} × {ranks} ranks is too large; use groups of at most {MOST_MATRIX_RANKS} ranks"
        )


def split(weights: Weights, count: int) -> Matrix:
    """Elements from s to d in the proportions of ``weights``, so that the busiest rank sends or receives ``count``.

    That is the definition of S: the most that any rank sends or receives. Shares are rounded down; the elements that
    the busiest rank loses are given back one by one to its blocks, largest loss first, without exceeding what another
    rank may send or receive.
    """
    sent = [sum(row) for row in weights]
    received = [sum(column) for column in zip(*weights, strict=True)]
    heaviest = max(*sent, *received)
    if heaviest in received and heaviest not in sent:
        turned = split(tuple(zip(*weights, strict=True)), count)
        return tuple(zip(*turned, strict=True))
    exact = [[weight * count / heaviest for weight in row] for row in weights]
    matrix = [[math.floor(share) for share in row] for row in exact]
    busiest = sent.index(heaviest)
    row = matrix[busiest]
    lost = sorted(range(len(row)), key=lambda to: row[to] - exact[busiest][to])
    for to in (to for to in lost if exact[busiest][to] > 0):
        if sum(row) < count and sum(line[to] for line in matrix) < count:
            row[to] += 1
    return tuple(tuple(line) for line in matrix)


def crossing(matrix: Matrix) -> int:
    """Elements that leave their rank: all off-diagonal entries."""
    return sum(sum(row) for row in matrix) - sum(matrix[rank][rank] for rank in range(len(matrix)))


def fingerprint(weights: Weights) -> str:
    """Eight hex digits that identify a matrix."""
    return hashlib.sha256(repr(weights).encode()).hexdigest()[:8]
