"""Reading the blocks of pair matrices as columns, long rows straight from JSON with vectorised consistency checks.

The checks of a record take about 100 µs a pair, and a row of 1,024 ranks has a million pairs.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice

import msgspec
import numpy as np

from busbw.errors import DamagedRun
from busbw.ops import PAIRED
from busbw.runs import store
from busbw.runs.records import QUANTILES, Case, GroupSamples, Measurement, RankSamples
from busbw.runs.soundness import numbers_samples, of_factors
from busbw_analysis.data.block_columns import BlockColumns, PairBlock, group_columns, joined_columns
from busbw_analysis.data.ragged import Integers

_AT_A_TIME = 1024
"""Number of pairs that exist as records at the same time."""
_EXACT_NS = 2**52
"""52 days. Up to this limit, numpy compares integers with floats as exactly as Python does."""


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


def parts_of(case: Case, raw: Sequence[msgspec.Raw]) -> list[BlockColumns] | None:
    """All groups of a row as columns. None if they must be decoded one by one: there are none, they have an unusual
    form, or one is inconsistent; ``soundness`` then names the error.
    """
    parts: list[BlockColumns] = []
    for first in range(0, len(raw), _AT_A_TIME):
        try:
            pairs = list(map(_PAIR_DECODER.decode, raw[first : first + _AT_A_TIME]))
            part = group_columns(pairs)
            quantiles = np.asarray([[rank.quantiles_ns for rank in pair.per_rank] for pair in pairs], dtype=np.int64)
            quantiles = quantiles.reshape(len(pairs), 2, len(QUANTILES))
        except (*store.NOT_A_RECORD, ValueError, IndexError, OverflowError):
            return None
        if not (all(map(_is_consistent, pairs)) and _is_sound(part, quantiles, case)):
            return None
        parts.append(part)
    if not parts:
        return None
    names = np.concatenate([part.ranks.flat.reshape(-1, 2) @ np.asarray([case.ranks, 1]) for part in parts])
    return parts if len(np.unique(names)) == len(names) else None


def packed(row: Measurement, groups: Iterable[GroupSamples]) -> Measurement:
    """``row`` with ``groups``, as columns if it is a pair matrix. A ``keep`` function for ``store.read``."""
    # Samples of an overlapping computation are kept per group.
    if row.case.op not in PAIRED or row.case.mode == "overlap":
        return msgspec.structs.replace(row, groups=tuple(groups))
    kept = {name: getattr(row, name) for name in Measurement.__struct_fields__ if name != "groups"}
    parts = parts_of(row.case, groups.raw) if isinstance(groups, store.Groups) else None
    if parts is None:
        left = iter(groups)
        parts = [_columns(some) for some in iter(lambda: list(islice(left, _AT_A_TIME)), [])]
    return PairBlock(**kept, groups=(), columns=joined_columns(parts))


def packed_run(stored: store.StoredRun) -> store.StoredRun:
    """``stored`` with pair matrices as columns, for runs that were not read with ``packed``."""
    rows = (
        packed(row, row.groups)
        if isinstance(row, Measurement) and row.case.op in PAIRED and not isinstance(row, PairBlock)
        else row
        for row in stored.rows
    )
    return replace(stored, rows=tuple(rows))


def _columns(groups: Sequence[GroupSamples]) -> BlockColumns:
    if any(len(group.ranks) != 2 for group in groups):
        message = "a block of a pair matrix contains a group without exactly two ranks; measure it again"
        raise DamagedRun(message)
    return group_columns(groups)


def _is_consistent(pair: _Pair) -> bool:
    """Whether those data of ``pair`` that are in no column pass the checks of ``sound_groups``."""
    first, second = pair.per_rank
    kept = [numbers for numbers in (pair.disturbed, pair.missed) if numbers]
    samples = len(pair.slowest_ns)
    return (first.rank, second.rank) == pair.ranks and all(numbers_samples(numbers, samples) for numbers in kept)


def _is_sound(part: BlockColumns, quantiles: Integers, case: Case) -> bool:
    """Whether every pair of ``part`` passes the checks of ``sound_groups``, which names the error if not."""
    ranks = part.ranks.flat.reshape(-1, 2)
    low, high = ranks.min(axis=1), ranks.max(axis=1)
    if not (low.min() >= 0 and high.max() < case.ranks and (low < high).all() and part.length.min() > 0):
        return False
    for bus, wire_bytes, moved in set(map(tuple, part.factors.tolist())):
        if any(of_factors(None if math.isnan(bus) else bus, wire_bytes, moved, case.op, 2)):
            return False
    if part.fastest.min() <= 0 or (part.fastest > part.slowest).any() or part.slowest.max() > _EXACT_NS:
        return False
    return bool((quantiles[..., 1:] >= quantiles[..., :-1]).all())
