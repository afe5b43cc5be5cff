"""Fast decoding of a row with many pairs: JSON text to columns, with vectorised consistency checks.

The checks of a record take about 100 µs a pair, and a row of 1,024 ranks has a million pairs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import msgspec
import numpy as np
import numpy.typing as npt

from busbw.runs.records import QUANTILES, Case, GroupSamples, RankSamples
from busbw.runs.soundness import numbers_samples, of_factors
from busbw.runs.store import NOT_A_RECORD

Integers = npt.NDArray[np.signedinteger]

_AT_A_TIME = 1024
"""Number of pairs that are decoded together."""
_EXACT_NS = 2**52
"""52 days. Up to this limit, numpy compares integers with floats as exactly as Python does."""


@dataclass(frozen=True, slots=True, eq=False)
class PairPart:
    """Many groups of two ranks as columns, named after ``GroupSamples``. Samples of all pairs are concatenated.

    ranks: pairs × 2
    length: number of samples of each pair
    slowest, fastest, skew, span: all samples, ns; empty if not recorded
    fastest_rank, last_rank: one entry per sample: which of the two ranks, 0 or 1; empty if not recorded
    factors: pairs × (bus factor, wire bytes, traffic factor); NaN for None
    quantiles: pairs × 2 × quantiles, ns
    disturbed: pairs × (number of disturbed samples, number of missed windows)
    """

    ranks: Integers
    length: Integers
    slowest: Integers
    fastest: Integers
    fastest_rank: Integers
    last_rank: Integers
    skew: Integers
    span: Integers
    factors: npt.NDArray[np.float64]
    quantiles: Integers
    disturbed: Integers


_VECTORS = (
    *("fastest_ns", "fastest_rank", "last_rank"),
    *("arrival_skew_ns", "exit_span_ns", "exit_skew_ns", "other_clock_ns"),
)


class _Rank(RankSamples, frozen=True, kw_only=True, gc=False):
    """One rank of a pair, without its samples, which only small blocks keep."""

    samples_ns: None
    entries_ns: None = None


class _Pair(GroupSamples, frozen=True, kw_only=True, gc=False):
    """A group of two ranks. Of the checks of a record only that of the lengths is made pair by pair."""

    ranks: tuple[int, int]
    overlap: None = None
    per_rank: tuple[_Rank, _Rank]

    def __post_init__(self) -> None:
        samples = len(self.slowest_ns)
        for name in _VECTORS:
            vector = getattr(self, name)
            if vector is not None and len(vector) != samples:
                message = "the vectors of one pair differ in length"
                raise ValueError(message)


_PAIR_DECODER = msgspec.json.Decoder(_Pair)


def parts_of(case: Case, raw: Sequence[msgspec.Raw]) -> list[PairPart] | None:
    """All groups of a row as columns. None if they must be decoded one by one: there are none, they have an unusual
    form, or one is inconsistent; ``soundness`` then names the error.
    """
    parts: list[PairPart] = []
    for first in range(0, len(raw), _AT_A_TIME):
        try:
            pairs = list(map(_PAIR_DECODER.decode, raw[first : first + _AT_A_TIME]))
            part = part_of(pairs)
        except (*NOT_A_RECORD, ValueError, OverflowError):
            return None
        if not (all(map(_is_consistent, pairs)) and _is_sound(part, case)):
            return None
        parts.append(part)
    if not parts:
        return None
    names = np.concatenate([part.ranks @ np.asarray([case.ranks, 1]) for part in parts])
    return parts if len(np.unique(names)) == len(names) else None


def part_of(pairs: Sequence[GroupSamples]) -> PairPart:
    """``pairs`` as columns. Raises ValueError for quantiles that are not ``QUANTILES``, and as ``_which`` does."""

    def column(name: str) -> Integers:
        vectors = (getattr(pair, name) or () for pair in pairs)
        return small(np.fromiter(chain.from_iterable(vectors), dtype=np.int64))

    ranks = small(np.asarray([pair.ranks for pair in pairs], dtype=np.int64))
    length = np.asarray([len(pair.slowest_ns) for pair in pairs])
    factors = [(pair.bus_factor, pair.wire_bytes, pair.traffic_factor) for pair in pairs]
    quantiles = np.asarray([[rank.quantiles_ns for rank in pair.per_rank] for pair in pairs], dtype=np.int64)
    return PairPart(
        ranks=ranks,
        length=length,
        slowest=column("slowest_ns"),
        fastest=column("fastest_ns"),
        fastest_rank=_which(ranks, length, column("fastest_rank")),
        last_rank=_which(ranks, length, column("last_rank")),
        skew=column("arrival_skew_ns"),
        span=column("exit_span_ns"),
        factors=np.asarray(factors, dtype=np.float64),  # None becomes NaN
        quantiles=small(quantiles.reshape(len(pairs), 2, len(QUANTILES))),
        disturbed=np.asarray([(len(pair.disturbed), len(pair.missed)) for pair in pairs]),
    )


def _which(ranks: Integers, length: Integers, named: Integers) -> Integers:
    """The position, 0 or 1, of each rank in ``named`` among the two ``ranks`` of its pair.

    Empty if some samples name no rank. Raises ValueError for a rank that is not of the pair.
    """
    if len(named) < length.sum():
        return np.empty(0, dtype=np.int8)
    first, second_rank = np.repeat(ranks, length, axis=0).T
    second = named == second_rank
    if not (second | (named == first)).all():
        message = "a rank that is not of the pair"
        raise ValueError(message)
    return np.asarray(second, dtype=np.int8)


def _is_consistent(pair: _Pair) -> bool:
    """Whether those data of ``pair`` that are in no column pass the checks of ``sound_groups``."""
    first, second = pair.per_rank
    kept = [numbers for numbers in (pair.disturbed, pair.missed) if numbers]
    samples = len(pair.slowest_ns)
    return (first.rank, second.rank) == pair.ranks and all(numbers_samples(numbers, samples) for numbers in kept)


def _is_sound(part: PairPart, case: Case) -> bool:
    """Whether every pair of ``part`` passes the checks of ``sound_groups``, which names the error if not."""
    low, high = part.ranks.min(axis=1), part.ranks.max(axis=1)
    if not (low.min() >= 0 and high.max() < case.ranks and (low < high).all() and part.length.min() > 0):
        return False
    for bus, wire_bytes, moved in set(map(tuple, part.factors.tolist())):
        if any(of_factors(None if math.isnan(bus) else bus, wire_bytes, moved, case.op, 2)):
            return False
    if part.fastest.min() <= 0 or (part.fastest > part.slowest).any() or part.slowest.max() > _EXACT_NS:
        return False
    return bool((part.quantiles[..., 1:] >= part.quantiles[..., :-1]).all()) and _quantiles_agree(part)


def small(numbers: npt.NDArray[np.int64]) -> Integers:
    """``numbers`` in 32 bits if they fit; most times are below 2 s."""
    limit = np.iinfo(np.int32)
    fits = not numbers.size or (numbers.min() >= limit.min and numbers.max() <= limit.max)
    return numbers.astype(np.int32) if fits else numbers


def _quantiles_agree(part: PairPart) -> bool:
    """Whether both ranks' quantiles lie between those of the fastest and of the slowest times, in every pair."""
    starts = np.cumsum(part.length) - part.length
    for length in np.unique(part.length).tolist():
        alike = np.flatnonzero(part.length == length)
        at = starts[alike, np.newaxis] + np.arange(length)
        lowest, highest = (
            np.quantile(np.sort(column[at], axis=1), QUANTILES, axis=1).T[:, np.newaxis]
            for column in (part.fastest, part.slowest)
        )
        found = part.quantiles[alike]
        if not ((lowest - 1 <= found) & (found <= highest + 1)).all():  # they are rounded
            return False
    return True
