"""Fast decoding of a row with many pairs: JSON text to columns, with vectorised consistency checks.

A record per pair takes about 100 µs to make and to check, and a row of 1,024 ranks has a million pairs.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

import msgspec
import numpy as np
import numpy.typing as npt

from busbw.runs.records import LONGEST_NS, QUANTILES, Case, GroupSamples, TimedBy
from busbw.runs.soundness import numbers_samples, of_factors
from busbw.runs.store import NOT_A_RECORD

Integers = npt.NDArray[np.signedinteger]

_AT_A_TIME = 4096
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


def parts_of(case: Case, raw: Sequence[msgspec.Raw]) -> list[PairPart] | None:
    """All groups of a row as columns. None if they must be decoded one by one: there are none, they have an unusual
    form, or one is inconsistent; ``soundness`` then names the error.
    """
    parts: list[PairPart] = []
    for first in range(0, len(raw), _AT_A_TIME):
        try:
            part = _pair_part(raw[first : first + _AT_A_TIME])
        except (*NOT_A_RECORD, ValueError, OverflowError):
            return None
        if not _is_sound(part, case):
            return None
        parts.append(part)
    if not parts:
        return None
    names = np.concatenate([part.ranks @ np.asarray([case.ranks, 1]) for part in parts])
    return parts if len(np.unique(names)) == len(names) else None


class _RankText(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """``RankSamples`` of one rank of a pair, without its samples, which only small blocks keep."""

    rank: int
    quantiles_ns: msgspec.Raw
    samples_ns: None
    entries_ns: None = None


class _PairText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """``GroupSamples`` of two ranks; long vectors stay undecoded."""

    ranks: tuple[int, int]
    bus_factor: float | None
    wire_bytes: float
    traffic_factor: float = 1.0
    slowest_ns: msgspec.Raw
    fastest_ns: msgspec.Raw
    fastest_rank: msgspec.Raw
    last_rank: msgspec.Raw = msgspec.Raw(b"null")
    arrival_skew_ns: msgspec.Raw
    exit_span_ns: msgspec.Raw
    exit_skew_ns: msgspec.Raw = msgspec.Raw(b"null")
    disturbed: tuple[int, ...] = ()
    missed: tuple[int, ...] = ()
    timed_by: TimedBy = "host"
    other_clock_ns: msgspec.Raw = msgspec.Raw(b"null")
    overlap: None = None
    per_rank: tuple[_RankText, _RankText]


_PAIR_DECODER = msgspec.json.Decoder(_PairText)


def _pair_part(raw: Sequence[msgspec.Raw]) -> PairPart:
    """Pairs as columns. Raises ValueError, or a decoding error, for pairs of an unusual form."""
    pairs = list(map(_PAIR_DECODER.decode, raw))
    length = _numbers([pair.slowest_ns for pair in pairs])[1]

    def column(name: str) -> Integers:
        texts = list(map(attrgetter(name), pairs))
        if name not in {"slowest_ns", "fastest_ns", "fastest_rank"} and b"".join(texts) == b"null" * len(texts):
            return np.empty(0, dtype=np.int32)
        values, lengths = _numbers(texts)
        if not np.array_equal(lengths, length):
            message = f"{name} and slowest_ns differ in length"
            raise ValueError(message)
        return values

    quantiles, counts = _numbers([rank.quantiles_ns for pair in pairs for rank in pair.per_rank])
    if (
        any(pair.ranks != (pair.per_rank[0].rank, pair.per_rank[1].rank) for pair in pairs)
        or (counts != len(QUANTILES)).any()
        or not all(_within_reach(column(name)) for name in ("exit_skew_ns", "other_clock_ns"))
        or not all(
            numbers_samples(numbers, samples)
            for pair, samples in zip(pairs, length.tolist(), strict=True)
            for numbers in (pair.disturbed, pair.missed)
            if numbers
        )
    ):
        message = "a field outside the columns is inconsistent"
        raise ValueError(message)
    return part_of(pairs, length, column, quantiles.reshape(len(pairs), 2, len(QUANTILES)))


def part_of(
    pairs: Sequence["GroupSamples | _PairText"],
    length: Integers,
    column: Callable[[str], Integers],
    quantiles: Integers,
) -> PairPart:
    """``pairs`` as columns; ``column`` makes the columns of samples. Raises ValueError as ``_which`` does."""
    ranks = small(np.asarray([pair.ranks for pair in pairs], dtype=np.int64))
    factors = [(pair.bus_factor, pair.wire_bytes, pair.traffic_factor) for pair in pairs]
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
        quantiles=quantiles,
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


_NO_NUMBER = 0xFF
_AS_ONE_ROW = bytes(
    {"[": ord(" "), "]": ord(",")}.get(chr(letter), letter if chr(letter) in "0123456789,-" else _NO_NUMBER)
    for letter in range(256)
)
"""Translation table from JSON arrays of integers to numbers that are each followed by a comma."""


def _numbers(texts: Sequence[msgspec.Raw]) -> tuple[Integers, Integers]:
    """The integers of JSON arrays, concatenated, and the length of each array. Raises ValueError for other values.

    Parsing the text with numpy takes half the time of making Python integers first.
    """
    text = b"".join(texts)
    row = text.translate(_AS_ONE_ROW)
    letters = np.frombuffer(row, dtype=np.uint8)
    ends = np.cumsum(np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))) - 1
    # As many "]" as texts: no array is nested. A space before the end of an array: the array is empty.
    if (
        letters.max() == _NO_NUMBER
        or text.count(b"]") != len(texts)
        or (letters[ends] != ord(",")).any()
        or (letters[ends - 1] == ord(" ")).any()
    ):
        message = "not all values are arrays of integers"
        raise ValueError(message)
    commas = np.flatnonzero(letters == ord(","))
    return small(np.fromstring(row, dtype=np.int64, sep=",")), np.diff(np.searchsorted(commas, ends), prepend=-1)


def _is_sound(part: PairPart, case: Case) -> bool:
    """Whether every pair of ``part`` passes the checks of ``sound_groups``, which names the error if not.

    Two things are not checked here because ``part`` lacks them: which samples were disturbed, and whose quantiles they
    are.
    """
    low, high = part.ranks.min(axis=1), part.ranks.max(axis=1)
    if not (low.min() >= 0 and high.max() < case.ranks and (low < high).all() and part.length.min() > 0):
        return False
    for bus, wire_bytes, moved in set(map(tuple, part.factors.tolist())):
        if any(of_factors(None if math.isnan(bus) else bus, wire_bytes, moved, case.op, 2)):
            return False
    if not _within_reach(part.skew) or not _within_reach(part.span, -LONGEST_NS):
        return False
    if part.fastest.min() <= 0 or (part.fastest > part.slowest).any() or part.slowest.max() > _EXACT_NS:
        return False
    return bool((part.quantiles[..., 1:] >= part.quantiles[..., :-1]).all()) and _quantiles_agree(part)


def small(numbers: npt.NDArray[np.int64]) -> Integers:
    """``numbers`` in 32 bits if they fit; most times are below 2 s."""
    limit = np.iinfo(np.int32)
    fits = not numbers.size or (numbers.min() >= limit.min and numbers.max() <= limit.max)
    return numbers.astype(np.int32) if fits else numbers


def _within_reach(values: Integers, least: int = 0) -> bool:
    """Whether all ``values`` (ns) are between ``least`` and the longest valid time."""
    return not len(values) or bool(least <= values.min() and values.max() <= LONGEST_NS)


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
