"""Every pair of ranks against the others: which sender, receiver or single pair is slow."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from busbw.units import format_rate, format_size
from busbw_analysis.summary import CaseSummary

Floats = npt.NDArray[np.float64]

LEAST_RANKS = 4
"""With fewer, a row has too few cells for its median to outvote one slow cell."""

_SLOW_RATIO = 0.7
_LINE_SIGMAS = 4.0
_PAIR_SIGMAS = 6.0
_LEAST_SIGMA = 0.05
_MAD_TO_SIGMA = 1.4826


@dataclass(frozen=True, slots=True)
class Odd:
    """A row, column or pair of a matrix that stands out: ``what`` names it, ``ratio`` its rate over the usual."""

    kind: Literal["sender", "receiver", "pair"]
    ranks: tuple[int, ...]
    ratio: float
    text: str


@dataclass(frozen=True, slots=True)
class PairMatrix:
    """Every ordered pair at one size: ``rate[s, d]`` (B/s) and ``time_ns[s, d]`` from ``ranks[s]`` to ``ranks[d]``;
    NaN on the diagonal and where nothing was measured. ``variant`` is ``together`` or ``alone``.
    """

    ranks: tuple[int, ...]
    size_bytes: int
    dtype: str | None
    variant: str | None
    rate: Floats
    time_ns: Floats
    odd: tuple[Odd, ...]


def matrices_of(summaries: Iterable[CaseSummary]) -> tuple[PairMatrix, ...]:
    """The pair matrices of the measured cases, in the order of the plan."""
    return tuple(
        _matrix(summary) for summary in summaries if summary.case.op == "pair_matrix" and summary.state == "measured"
    )


def _matrix(summary: CaseSummary) -> PairMatrix:
    ranks = tuple(sorted({rank for group in summary.groups for rank in group.ranks}))
    place = {rank: index for index, rank in enumerate(ranks)}
    time_ns = np.full((len(ranks), len(ranks)), np.nan)
    for group in summary.groups:
        source, destination = group.ranks
        time_ns[place[source], place[destination]] = group.time_ns
    rate: Floats = summary.case.size_bytes / time_ns * 1e9
    return PairMatrix(
        ranks=ranks,
        size_bytes=summary.case.size_bytes,
        dtype=summary.case.dtype,
        variant=summary.case.variant,
        rate=rate,
        time_ns=time_ns,
        odd=odd_ones(ranks, rate, summary.case.size_bytes),
    )


def odd_ones(ranks: tuple[int, ...], rate: Floats, size_bytes: int) -> tuple[Odd, ...]:
    """The slow rows, columns and then single cells of ``rate`` (n × n, B/s, NaN where there is none).

    The usual rate is the median of all row and column medians, the usual scatter the median over the rows of their
    MAD: one slow host slows half of the cells of a 4 × 4 matrix, which no median over all cells survives. A row or
    column is named when its median is below 70 % of the usual and more than 4 σ away, a cell at 6 σ (there are n²
    of them). Nobody is named among fewer than 4 ranks, or with a hole in the matrix.
    """
    count = len(ranks)
    holes = np.isnan(rate) & ~np.eye(count, dtype=np.bool_)
    if count < LEAST_RANKS or holes.any():
        return ()
    logs = np.log(rate)
    rows, columns = np.nanmedian(logs, axis=1), np.nanmedian(logs, axis=0)
    usual = float(np.median(np.concatenate([rows, columns])))
    scatter = float(np.median(np.nanmedian(np.abs(logs - rows[:, None]), axis=1)))
    sigma = max(_MAD_TO_SIGMA * scatter, _LEAST_SIGMA)
    found: list[Odd] = []

    def is_slow(value: float, sigmas: float) -> bool:
        return value - usual < min(math.log(_SLOW_RATIO), -sigmas * sigma)

    def name(kind: Literal["sender", "receiver", "pair"], who: tuple[int, ...], value: float, words: str) -> None:
        ratio = math.exp(value - usual)
        measured, expected = format_rate(math.exp(value)), format_rate(math.exp(usual))
        text = f"{words} at {format_size(size_bytes)}: {measured} where {expected} is usual ({ratio:.0%})"
        found.append(Odd(kind, who, ratio, text))

    slow_rows = [index for index in range(count) if is_slow(rows[index], _LINE_SIGMAS)]
    slow_columns = [index for index in range(count) if is_slow(columns[index], _LINE_SIGMAS)]
    for index in slow_rows:
        name("sender", (ranks[index],), rows[index], f"everything that rank {ranks[index]} sends is slow")
    for index in slow_columns:
        name("receiver", (ranks[index],), columns[index], f"everything that rank {ranks[index]} receives is slow")
    for source in range(count):
        for to in range(count):
            explained = source == to or source in slow_rows or to in slow_columns
            if not explained and is_slow(logs[source, to], _PAIR_SIGMAS):
                words = f"the pair {ranks[source]} → {ranks[to]} is slow"
                name("pair", (ranks[source], ranks[to]), logs[source, to], words)
    return tuple(found)
