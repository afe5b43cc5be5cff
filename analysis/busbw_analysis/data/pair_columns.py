"""The samples of all pairs of one block as columns: a pair matrix of 1,024 ranks has a million pairs per block.

A record per pair takes several kB and about 100 µs; columns take only the size of the numbers.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import islice

import msgspec
import numpy as np

from busbw.errors import DamagedRun
from busbw.ops import PAIRED
from busbw.runs.records import GroupSamples, Measurement, RankSamples
from busbw.runs.store import Groups
from busbw_analysis.data.pair_parts import Integers, PairPart, part_of, parts_of

_AT_A_TIME = 4096
"""Number of pairs that exist as records at the same time."""


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

        bus_factor, wire_bytes, traffic_factor = self.factors[pair].tolist()
        ranks = self.ranks[pair]
        members = zip(ranks.tolist(), self.quantiles[pair].tolist(), strict=True)
        return GroupSamples(
            ranks=tuple(ranks.tolist()),
            bus_factor=None if math.isnan(bus_factor) else bus_factor,
            wire_bytes=wire_bytes,
            traffic_factor=traffic_factor,
            slowest_ns=tuple(self.slowest[samples].tolist()),
            fastest_ns=tuple(self.fastest[samples].tolist()),
            fastest_rank=tuple(ranks[self.fastest_rank[samples]].tolist()),
            last_rank=tuple(ranks[self.last_rank[samples]].tolist()) if len(self.last_rank) else None,
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
    parts = parts_of(row.case, groups.raw) if isinstance(groups, Groups) else None
    if parts is None:
        left = iter(groups)
        parts = [_part(some) for some in iter(lambda: list(islice(left, _AT_A_TIME)), [])]
    return PairBlock(**kept, groups=(), columns=_columns(parts))


def _columns(parts: list[PairPart]) -> PairColumns:
    """All parts joined. Empties ``parts`` and frees every column once it is copied, to save memory."""
    chunks = {field.name: [getattr(part, field.name) for part in parts] for field in fields(PairPart)}
    parts.clear()
    columns = {name: np.concatenate(chunks.pop(name)) for name in list(chunks)}
    for name in ("last_rank", "skew", "span"):
        # All pairs of a block share a clock or none do; if any pair lacks the number, the column is dropped.
        if len(columns[name]) != len(columns["slowest"]):
            columns[name] = np.empty(0, dtype=np.int32)
    columns["disturbed"] = columns["disturbed"].sum(axis=0)
    return PairColumns(**columns, starts=np.concatenate([[0], np.cumsum(columns["length"], dtype=np.int64)]))


def _part(groups: Sequence[GroupSamples]) -> PairPart:
    if any(len(group.ranks) != 2 for group in groups):
        message = "a block of a pair matrix contains a group without exactly two ranks; measure it again"
        raise DamagedRun(message)
    return part_of(groups)
