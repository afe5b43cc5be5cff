"""The samples of all pairs of one block as columns: a pair matrix of 1,024 ranks has a million pairs per block.

A record per pair takes several kB, and its checks ten times as long as the record itself. Columns take only the size of
the numbers, and the checks of ``soundness`` are made for many pairs at once.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import chain, islice

import msgspec
import numpy as np
import numpy.typing as npt

from busbw.errors import DamagedRun
from busbw.ops import PAIRED
from busbw.runs.records import QUANTILES, Case, GroupSamples, Measurement, RankSamples
from busbw.runs.soundness import numbers_samples, of_factors
from busbw.runs.store import NOT_A_RECORD, Groups

Integers = npt.NDArray[np.signedinteger]

_AT_A_TIME = 4096
"""Number of pairs that exist as records at the same time."""
_EXACT_NS = 2**52
"""52 days. Up to this limit, numpy compares integers with floats as exactly as Python does."""
_GROUP_DECODER = msgspec.json.Decoder(GroupSamples)


@dataclass(frozen=True, slots=True, eq=False)
class PairPart:
    """Many groups of two ranks as columns, named after ``GroupSamples``. Samples of all pairs are concatenated.

    ranks: pairs × 2
    length: number of samples of each pair
    slowest, fastest, skew, span: all samples, ns; empty if not recorded
    late, last: one entry per sample: which of the two ranks, 0 or 1; empty if not recorded
    factors: pairs × (bus factor, wire bytes, moved factor); NaN for None
    quantiles: pairs × 2 × quantiles, ns
    disturbed: pairs × (number of disturbed samples, number of missed windows)
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


@dataclass(frozen=True, slots=True, eq=False)
class PairColumns(PairPart):
    """The pairs of one block, in the order of the record. Sample i of pair p is at ``starts[p]`` + i.

    starts: index of the first sample of every pair; one more entry than pairs
    disturbed: number of samples, over all pairs, in which a core was lost, and in which a window was missed

    Data that no analysis of a matrix needs are left out: exit skew, the other clock, samples and entries per rank.
    """

    starts: Integers

    def __len__(self) -> int:
        return len(self.ranks)

    def group(self, pair: int) -> GroupSamples:
        """The record of one pair, without the data that are left out."""
        samples = slice(int(self.starts[pair]), int(self.starts[pair + 1]))

        def known(column: Integers) -> tuple[int, ...] | None:
            return tuple(column[samples].tolist()) if len(column) else None

        bus_factor, wire_bytes, moved_factor = self.factors[pair].tolist()
        ranks = self.ranks[pair]
        members = zip(ranks.tolist(), self.quantiles[pair].tolist(), strict=True)
        return GroupSamples(
            ranks=tuple(ranks.tolist()),
            bus_factor=None if math.isnan(bus_factor) else bus_factor,
            wire_bytes=wire_bytes,
            moved_factor=moved_factor,
            slowest_ns=tuple(self.slowest[samples].tolist()),
            fastest_ns=tuple(self.fastest[samples].tolist()),
            late_rank=tuple(ranks[self.late[samples]].tolist()),
            last_rank=tuple(ranks[self.last[samples]].tolist()) if len(self.last) else None,
            arrival_skew_ns=known(self.skew),
            exit_span_ns=known(self.span),
            per_rank=tuple(
                RankSamples(rank=rank, quantiles_ns=tuple(quantiles), samples_ns=None) for rank, quantiles in members
            ),
        )


class PairBlock(Measurement, frozen=True, kw_only=True, tag="measurement", tag_field="kind"):
    """A block of a pair matrix: ``groups`` is empty, and the samples are in ``columns``."""

    columns: PairColumns


def packed(row: Measurement, groups: Iterable[GroupSamples]) -> Measurement:
    """``row`` with ``groups``, as columns if it is a pair matrix. A ``keep`` function for ``store.read``."""
    # Samples of an overlapping computation are kept per group.
    if row.case.op not in PAIRED or row.case.mode == "overlap":
        return msgspec.structs.replace(row, groups=tuple(groups))
    kept = {name: getattr(row, name) for name in Measurement.__struct_fields__ if name != "groups"}
    parts = _sound_parts(row.case, groups.raw) if isinstance(groups, Groups) else None
    if parts is None:
        left = iter(groups)
        parts = [_part(some) for some in iter(lambda: list(islice(left, _AT_A_TIME)), [])]
    return PairBlock(**kept, groups=(), columns=_columns(parts))


def _columns(parts: list[PairPart]) -> PairColumns:
    """All parts joined. Empties ``parts`` and frees every column once it is copied, to save memory."""
    if not parts:
        message = "a block of a pair matrix contains no pair; measure it again"
        raise DamagedRun(message)
    chunks = {field.name: [getattr(part, field.name) for part in parts] for field in fields(PairPart)}
    parts.clear()
    columns = {name: np.concatenate(chunks.pop(name)) for name in list(chunks)}
    for name in ("last", "skew", "span"):
        # All pairs of a block share a clock or none do; if any pair lacks the number, the column is dropped.
        if len(columns[name]) != len(columns["slowest"]):
            columns[name] = np.empty(0, dtype=np.int32)
    columns["disturbed"] = columns["disturbed"].sum(axis=0)
    return PairColumns(**columns, starts=np.concatenate([[0], np.cumsum(columns["length"], dtype=np.int64)]))


def _sound_parts(case: Case, raw: Sequence[msgspec.Raw]) -> list[PairPart] | None:
    """All groups of a row as columns. None if they must be checked one by one: there are none, they have an unusual
    form, or one is inconsistent; ``soundness`` then names the error.
    """
    parts: list[PairPart] = []
    for first in range(0, len(raw), _AT_A_TIME):
        try:
            pairs = list(map(_GROUP_DECODER.decode, raw[first : first + _AT_A_TIME]))
            part = _part(pairs)
        except (*NOT_A_RECORD, DamagedRun, ValueError, OverflowError):
            return None
        if not (all(map(_is_usual, pairs)) and _is_sound(part, case)):
            return None
        parts.append(part)
    if not parts:
        return None
    names = np.concatenate([part.ranks @ np.asarray([case.ranks, 1]) for part in parts])
    return parts if len(np.unique(names)) == len(names) else None


def _part(pairs: Sequence[GroupSamples]) -> PairPart:
    """``pairs`` as columns. Raises DamagedRun for a group without exactly two ranks, ValueError as ``_which`` does."""
    if any(len(pair.ranks) != 2 for pair in pairs):
        message = "a block of a pair matrix contains a group without exactly two ranks; measure it again"
        raise DamagedRun(message)
    ranks = _small(np.asarray([pair.ranks for pair in pairs], dtype=np.int64))
    length = np.asarray([len(pair.slowest_ns) for pair in pairs])
    factors = [(pair.bus_factor, pair.wire_bytes, pair.moved_factor) for pair in pairs]
    quantiles = [[rank.quantiles_ns for rank in pair.per_rank] for pair in pairs]

    def column(name: str) -> Integers:
        vectors = (getattr(pair, name) or () for pair in pairs)
        return _small(np.fromiter(chain.from_iterable(vectors), dtype=np.int64))

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
        quantiles=_small(np.asarray(quantiles, dtype=np.int64)),
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


def _is_usual(pair: GroupSamples) -> bool:
    """Whether a pair has no samples of single ranks, which only small blocks keep, and is sound in what ``_part``
    leaves out: the order of its ranks, and which samples were disturbed.
    """
    whole = all(
        len(one.quantiles_ns) == len(QUANTILES) and one.samples_ns is None and one.entries_ns is None
        for one in pair.per_rank
    )
    disturbed = (numbers_samples(numbers, len(pair.slowest_ns)) for numbers in (pair.disturbed, pair.missed) if numbers)
    return whole and tuple(one.rank for one in pair.per_rank) == pair.ranks and all(disturbed)


def _is_sound(part: PairPart, case: Case) -> bool:
    """Whether every pair of ``part`` passes the checks of ``sound_groups``, which names the error if not."""
    low, high = part.ranks.min(axis=1), part.ranks.max(axis=1)
    if not (low.min() >= 0 and high.max() < case.ranks and (low < high).all() and part.length.min() > 0):
        return False
    for bus, wire_bytes, moved in set(map(tuple, part.factors.tolist())):
        if any(of_factors(None if math.isnan(bus) else bus, wire_bytes, moved, case.op, 2)):
            return False
    if (part.fastest > part.slowest).any() or part.slowest.max() > _EXACT_NS:
        return False
    return bool((part.quantiles[..., 1:] >= part.quantiles[..., :-1]).all()) and _quantiles_agree(part)


def _small(numbers: npt.NDArray[np.int64]) -> Integers:
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
