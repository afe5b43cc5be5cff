"""The samples of all groups of one block as columns: a pair matrix of 1,024 ranks has a million groups per block.

A record per group takes several kB and about 100 µs; columns take only the size of the numbers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain, islice
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from busbw.errors import DamagedRun
from busbw.ops import PAIRED
from busbw.runs.records import QUANTILES, GroupSamples, Measurement
from busbw.runs.store import StoredRun
from busbw_analysis.data.ragged import Integers, Ragged

Floats = npt.NDArray[np.float64]

_LARGEST: Final = int(np.iinfo(np.int32).max)
_MIDDLE: Final = QUANTILES.index(0.5)
_OVERLAP_PARTS: Final = 6
_AT_A_TIME: Final = 1024
"""Number of pairs that exist as records at the same time."""
_OPTIONAL: Final = ("last_place", "skew", "span")


@dataclass(frozen=True, slots=True, eq=False)
class BlockColumns:
    """Groups of one block in the order of the record, named after ``GroupSamples``. Samples are concatenated, ns.

    ranks: of every group
    length: number of samples of each group
    slowest, fastest, skew, span: of every sample; empty if not recorded for all of them
    fastest_place, last_place: place in its group of the rank that was fastest, and of the one that entered last
    factors: groups × (bus factor, wire bytes, traffic factor); NaN for None
    middles: median time of every rank, aligned with ``ranks.flat``
    disturbed: groups × (number of disturbed samples, number of missed windows)
    overlap: samples × (pure, post, computation, wait, exposed, computation alone); empty without an overlap

    Data that no summary needs are left out: exit skew, the other clock, samples and entries per rank.
    """

    ranks: Ragged
    length: Integers
    slowest: Integers
    fastest: Integers
    fastest_place: Integers
    last_place: Integers
    skew: Integers
    span: Integers
    factors: Floats
    middles: Integers
    disturbed: Integers
    overlap: Floats


class PairBlock(Measurement, frozen=True, kw_only=True, tag="measurement", tag_field="kind"):
    """A block of a pair matrix: ``groups`` is empty, and the samples are in ``columns``."""

    columns: BlockColumns


def columns_of(block: Measurement) -> BlockColumns:
    """The samples of ``block`` as columns."""
    return block.columns if isinstance(block, PairBlock) else group_columns(block.groups)


def group_columns(groups: Sequence[GroupSamples]) -> BlockColumns:
    """``groups`` as columns. Raises ValueError for a sample that names a rank of another group."""

    def column(name: str) -> Integers:
        vectors = [getattr(group, name) for group in groups]
        return small(np.fromiter(chain.from_iterable(vectors if all(vectors) else ()), dtype=np.int64))

    ranks = Ragged.of_rows([group.ranks for group in groups])
    length = np.asarray([len(group.slowest_ns) for group in groups])
    factors = [(group.bus_factor, group.wire_bytes, group.traffic_factor) for group in groups]
    middles = [entry.quantiles_ns[_MIDDLE] for group in groups for entry in group.per_rank]
    return BlockColumns(
        ranks=Ragged(small(ranks.flat), ranks.starts),
        length=length,
        slowest=column("slowest_ns"),
        fastest=column("fastest_ns"),
        fastest_place=_places(ranks, length, column("fastest_rank")),
        last_place=_places(ranks, length, column("last_rank")),
        skew=column("arrival_skew_ns"),
        span=column("exit_span_ns"),
        factors=np.asarray(factors, dtype=np.float64),  # None becomes NaN
        middles=small(np.asarray(middles, dtype=np.int64)),
        disturbed=np.asarray([(len(group.disturbed), len(group.missed)) for group in groups]),
        overlap=_overlap(groups),
    )


def _places(ranks: Ragged, length: Integers, named: Integers) -> Integers:
    """The place in its group of each rank in ``named``, one per sample. Raises ValueError for one of another group."""
    dtype = np.int8 if ranks.lengths.max() <= np.iinfo(np.int8).max else np.int32
    if not len(named):
        return np.empty(0, dtype)
    # Group and rank as one number, in which those of the samples are searched.
    group, most = np.arange(len(ranks)), max(ranks.flat.max(), named.max()) + 1
    keys = np.repeat(group * most, ranks.lengths) + ranks.flat
    starts, wanted = np.repeat(ranks.starts[:-1], length), np.repeat(group * most, length) + named
    if (ranks.lengths == 2).all():  # a search takes four times as long
        at = starts + (ranks.flat[starts + 1] == named)
    else:
        order = np.argsort(keys)
        at = order[np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)]
    if (keys[at] != wanted).any():
        raise ValueError("a rank that is not of the group")
    return np.asarray((at - starts).astype(dtype))


def _overlap(groups: Sequence[GroupSamples]) -> Floats:
    parts = [group.overlap for group in groups if group.overlap is not None]
    if not parts or len(parts) < len(groups):
        return np.empty((0, _OVERLAP_PARTS))
    tables = [
        # busbw never records 0; a clock without any tick must not break a report.
        np.broadcast_arrays(
            part.pure_ns, part.post_ns, part.compute_ns, part.wait_ns, part.exposed_ns, max(part.compute_alone_ns, 1)
        )
        for part in parts
    ]
    return np.concatenate([np.asarray(table, dtype=np.float64).T for table in tables])


def small(numbers: npt.NDArray[np.int64]) -> Integers:
    """``numbers`` in 32 bits if they fit; most times are below 2 s."""
    fits = not numbers.size or (numbers.min() >= -_LARGEST - 1 and numbers.max() <= _LARGEST)
    return numbers.astype(np.int32) if fits else numbers


def joined_columns(parts: list[BlockColumns]) -> BlockColumns:
    """All ``parts`` of a block joined. Empties ``parts`` and frees every column once it is copied, to save memory."""
    chunks = {field.name: [getattr(part, field.name) for part in parts] for field in fields(BlockColumns)}
    parts.clear()
    ranks = Ragged.joined(chunks.pop("ranks"))
    columns: dict[str, Any] = {name: np.concatenate(chunks.pop(name)) for name in list(chunks)}
    # All groups share a clock, or none do.
    lacking = {name: columns[name][:0] for name in _OPTIONAL if len(columns[name]) < len(columns["slowest"])}
    return BlockColumns(ranks=ranks, **(columns | lacking))


def packed(row: Measurement, groups: Iterable[GroupSamples]) -> Measurement:
    """``row`` with ``groups``, as columns if it is a pair matrix. A ``keep`` function for ``store.read``."""
    # Samples of an overlapping computation are kept per group.
    if row.case.op not in PAIRED or row.case.mode == "overlap":
        return msgspec.structs.replace(row, groups=tuple(groups))
    kept = {name: getattr(row, name) for name in Measurement.__struct_fields__ if name != "groups"}
    left = iter(groups)
    parts = [_pair_columns(some) for some in iter(lambda: list(islice(left, _AT_A_TIME)), [])]
    return PairBlock(**kept, groups=(), columns=joined_columns(parts))


def packed_run(stored: StoredRun) -> StoredRun:
    """``stored`` with pair matrices as columns, for runs that were not read with ``packed``."""
    rows = (
        packed(row, row.groups)
        if isinstance(row, Measurement) and row.case.op in PAIRED and not isinstance(row, PairBlock)
        else row
        for row in stored.rows
    )
    return replace(stored, rows=tuple(rows))


def _pair_columns(groups: Sequence[GroupSamples]) -> BlockColumns:
    if any(len(group.ranks) != 2 for group in groups):
        message = "a block of a pair matrix contains a group without exactly two ranks; measure it again"
        raise DamagedRun(message)
    return group_columns(groups)
