"""The pairs of a long row, taken from its text as columns and held against themselves all at once.

A record per pair takes some 100 µs to make and to look at, and a row of 1,024 ranks has a million of them.
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
"""Pairs that are decoded together."""
_EXACT_NS = 2**52
"""52 days; up to there numpy compares whole numbers with fractions as Python does."""


@dataclass(frozen=True, slots=True, eq=False)
class PairPart:
    """Many groups of two ranks as columns, by the names of ``GroupSamples``; the samples of pair after pair in one.

    ``ranks`` (pairs × 2), ``length`` (samples of each pair), ``slowest`` … ``span`` (all samples, ns; empty where not
    recorded), ``late`` and ``last`` (likewise; which of the two ranks it is, 0 or 1), ``factors`` (pairs × bus factor,
    wire bytes and moved factor; NaN: none), ``quantiles`` (pairs × 2 × quantiles, ns), ``disturbed`` (pairs × how many
    samples were disturbed, and missed).
    """

    ranks: Integers
    length: Integers
    slowest: Integers
    fastest: Integers
    late: Integers
    last: Integers
    skew: Integers
    span: Integers
    factors: npt.NDArray[np.float64]
    quantiles: Integers
    disturbed: Integers


def parts_of(case: Case, raw: Sequence[msgspec.Raw]) -> list[PairPart] | None:
    """All groups of a long row as columns; None: they have to be taken one by one, as there are none, they are not as
    most pairs are, or one of them has a flaw: which, ``soundness`` tells.
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
    """What a rank of a pair saw; more than this is kept of small blocks only."""

    rank: int
    quantiles_ns: msgspec.Raw
    samples_ns: None
    entries_ns: None = None


class _PairText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """``GroupSamples`` of two ranks, whose long vectors are not decoded."""

    ranks: tuple[int, int]
    bus_factor: float | None
    wire_bytes: float
    moved_factor: float = 1.0
    slowest_ns: msgspec.Raw
    fastest_ns: msgspec.Raw
    late_rank: msgspec.Raw
    last_rank: msgspec.Raw = msgspec.Raw(b"null")
    arrival_skew_ns: msgspec.Raw
    exit_span_ns: msgspec.Raw
    exit_skew_ns: msgspec.Raw = msgspec.Raw(b"null")
    disturbed: tuple[int, ...] = ()
    missed: tuple[int, ...] = ()
    timed_by: TimedBy = "host"
    beside_ns: msgspec.Raw = msgspec.Raw(b"null")
    overlap: None = None
    per_rank: tuple[_RankText, _RankText]


_PAIR_DECODER = msgspec.json.Decoder(_PairText)


def _pair_part(raw: Sequence[msgspec.Raw]) -> PairPart:
    """Pairs as columns. Raises ValueError and what decoding raises where they are not as most are."""
    pairs = list(map(_PAIR_DECODER.decode, raw))
    length = _numbers([pair.slowest_ns for pair in pairs])[1]

    def column(name: str) -> Integers:
        texts = list(map(attrgetter(name), pairs))
        if name not in {"slowest_ns", "fastest_ns", "late_rank"} and b"".join(texts) == b"null" * len(texts):
            return np.empty(0, dtype=np.int32)
        values, lengths = _numbers(texts)
        if not np.array_equal(lengths, length):
            message = f"{name} has another length than slowest_ns"
            raise ValueError(message)
        return values

    of_ranks = [(pair.ranks, pair.per_rank[0], pair.per_rank[1]) for pair in pairs]
    quantiles, counts = _numbers([one.quantiles_ns for _, *both in of_ranks for one in both])
    if (
        any(ranks != (one.rank, other.rank) for ranks, one, other in of_ranks)
        or (counts != len(QUANTILES)).any()
        or not all(_within_reach(column(name)) for name in ("exit_skew_ns", "beside_ns"))
        or not all(
            numbers_samples(numbers, samples)
            for pair, samples in zip(pairs, length.tolist(), strict=True)
            for numbers in (pair.disturbed, pair.missed)
            if numbers
        )
    ):
        message = "something that is not in the columns has a flaw"
        raise ValueError(message)
    return part_of(pairs, length, column, quantiles.reshape(len(pairs), 2, len(QUANTILES)))


def part_of(
    pairs: Sequence["GroupSamples | _PairText"],
    length: Integers,
    column: Callable[[str], Integers],
    quantiles: Integers,
) -> PairPart:
    """``pairs`` as columns, of which ``column`` makes those of samples. Raises ValueError as ``_which`` does."""
    ranks = small(np.asarray([pair.ranks for pair in pairs], dtype=np.int64))
    factors = [(pair.bus_factor, pair.wire_bytes, pair.moved_factor) for pair in pairs]
    return PairPart(
        ranks=ranks,
        length=length,
        slowest=column("slowest_ns"),
        fastest=column("fastest_ns"),
        late=_which(ranks, length, column("late_rank")),
        last=_which(ranks, length, column("last_rank")),
        skew=column("arrival_skew_ns"),
        span=column("exit_span_ns"),
        factors=np.asarray(factors, dtype=np.float64),  # None becomes NaN
        quantiles=quantiles,
        disturbed=np.asarray([(len(pair.disturbed), len(pair.missed)) for pair in pairs]),
    )


def _which(ranks: Integers, length: Integers, named: Integers) -> Integers:
    """Which of the two ``ranks`` of its pair each of ``named`` is, 0 or 1; empty where some samples name none. Raises
    ValueError for another rank.
    """
    if len(named) < length.sum():
        return np.empty(0, dtype=np.int8)
    one, other = np.repeat(ranks, length, axis=0).T
    second = named == other
    if not (second | (named == one)).all():
        message = "a rank that is not of the pair"
        raise ValueError(message)
    return np.asarray(second, dtype=np.int8)


_NO_NUMBER = 0xFF
_AS_ONE_ROW = bytes(
    {"[": ord(" "), "]": ord(",")}.get(chr(letter), letter if chr(letter) in "0123456789,-" else _NO_NUMBER)
    for letter in range(256)
)
"""Makes numbers with a comma behind each of JSON arrays of whole numbers."""


def _numbers(texts: Sequence[msgspec.Raw]) -> tuple[Integers, Integers]:
    """The whole numbers of JSON arrays, all in one, and how many are in each; raises ValueError for anything else.

    numpy takes them from the text in half the time that it takes to make Python's integers and go on from there.
    """
    text = b"".join(texts)
    row = text.translate(_AS_ONE_ROW)
    letters = np.frombuffer(row, dtype=np.uint8)
    ends = np.cumsum(np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))) - 1
    # No array holds another one when there are as many as texts; a space before the end of one is where it began.
    if (
        letters.max() == _NO_NUMBER
        or text.count(b"]") != len(texts)
        or (letters[ends] != ord(",")).any()
        or (letters[ends - 1] == ord(" ")).any()
    ):
        message = "not all are arrays of whole numbers"
        raise ValueError(message)
    commas = np.flatnonzero(letters == ord(","))
    return small(np.fromstring(row, dtype=np.int64, sep=",")), np.diff(np.searchsorted(commas, ends), prepend=-1)


def _is_sound(part: PairPart, case: Case) -> bool:
    """Whether every pair of ``part`` is as ``sound_groups`` wants it, all at once; which flaw it is, that one tells.

    Not looked at is what ``part`` has only in short: the numbers of the disturbed samples, and whose quantiles they
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
    """In 32 bits where they fit: most times are below 2 s."""
    limit = np.iinfo(np.int32)
    fits = not numbers.size or (numbers.min() >= limit.min and numbers.max() <= limit.max)
    return numbers.astype(np.int32) if fits else numbers


def _within_reach(values: Integers, least: int = 0) -> bool:
    """Whether all ``values`` (ns) are from ``least`` to the longest time there is."""
    return not len(values) or bool(least <= values.min() and values.max() <= LONGEST_NS)


def _quantiles_agree(part: PairPart) -> bool:
    """Whether the quantiles of both ranks of every pair lie between those of its fastest and its slowest times."""
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
