"""The groups of a case, which may be all pairs of a matrix. Numbers needed for all pairs are columns."""

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias, overload

import numpy as np
import numpy.typing as npt

from busbw.runs.records import Case
from busbw_analysis.data.groups import GroupSummary, summarise_group
from busbw_analysis.data.intervals import Floats
from busbw_analysis.data.load import Block, Dataset
from busbw_analysis.data.pair_columns import PairBlock
from busbw_analysis.data.pair_numbers import PairTimes, numbers_of


class PairGroups(Sequence[GroupSummary]):
    """The summaries of all pairs of a case. ``numbers`` has the common ones as columns; a complete summary is made on
    access and takes about 100 µs.
    """

    def __init__(self, case: Case, blocks: Sequence[tuple[int, PairBlock]]) -> None:
        self.numbers = numbers_of(case, blocks)
        self._case = case
        self._blocks = tuple(blocks)
        self._made = lru_cache(maxsize=64)(self._make)

    def __len__(self) -> int:
        return len(self.numbers.time_ns)

    @overload
    def __getitem__(self, index: int) -> GroupSummary: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[GroupSummary, ...]: ...
    def __getitem__(self, index: int | slice) -> GroupSummary | tuple[GroupSummary, ...]:
        if isinstance(index, slice):
            return tuple(self._made(place) for place in range(len(self))[index])
        return self._made(range(len(self))[index])

    def _make(self, pair: int) -> GroupSummary:
        blocks: list[Block] = []
        for number, place in self.numbers.entries(pair):
            run, block = self._blocks[number]
            blocks.append(Block(run, block.launch, block.block, -1, block, block.columns.group(place)))
        return summarise_group(self._case, blocks[0].samples.ranks, blocks)


Groups: TypeAlias = tuple[GroupSummary, ...] | PairGroups


def pair_times(groups: Groups) -> PairTimes:
    """The times of ``groups`` with two ranks each."""
    if isinstance(groups, PairGroups):
        return groups.numbers
    launches = np.asarray([group.launches for group in groups])
    medians = np.full((len(groups), max(launches, default=0)), np.nan)
    for row, group in zip(medians, groups, strict=True):
        row[: group.launches] = group.launch_medians_ns
    ends = [(group.interval.low_ns, group.interval.high_ns) for group in groups]
    low, high = np.asarray(ends, dtype=np.float64).reshape(-1, 2).T
    apart = [0.0 if group.modes is None else group.modes.slow_ns / group.modes.fast_ns for group in groups]
    keys = [group.launch_keys for group in groups]
    return PairTimes(pairs_of(groups), times_of(groups), low, high, launches, medians, keys, np.asarray(apart))


def of_groups(groups: Groups, name: str) -> Floats:
    """The field ``name`` of ``GroupSummary`` or ``PairNumbers`` for every group; NaN for None."""
    if isinstance(groups, PairGroups):
        return np.asarray(getattr(groups.numbers, name), dtype=np.float64)
    return np.asarray([getattr(group, name) for group in groups], dtype=np.float64)


def times_of(groups: Groups) -> Floats:
    """The time of every group, ns per call."""
    return of_groups(groups, "time_ns")


def fastest_of(groups: Groups) -> Sequence[GroupSummary]:
    """Candidates for the highest busbw: all groups, or the fastest pair of a matrix, whose pairs move equal bytes."""
    return (groups[int(np.argmin(times_of(groups)))],) if isinstance(groups, PairGroups) else groups


def pairs_of(groups: Groups) -> npt.NDArray[np.signedinteger]:
    """Sender and receiver of every pair (pairs × 2)."""
    if isinstance(groups, PairGroups):
        return groups.numbers.ranks
    return np.asarray([group.ranks for group in groups], dtype=np.int64).reshape(-1, 2)


def between_hosts(dataset: Dataset, groups: Groups) -> npt.NDArray[np.bool_]:
    """Which pairs have their ranks on two different hosts."""
    hosts = {host: number for number, host in enumerate(dict.fromkeys(dataset.hosts))}
    ends = np.asarray([hosts[host] for host in dataset.hosts])[pairs_of(groups)]
    return np.asarray(ends[:, 0] != ends[:, 1])


def has_modes(groups: Groups) -> bool:
    """Whether any group is bimodal."""
    if isinstance(groups, PairGroups):
        return bool(groups.numbers.has_modes.any())
    return any(group.modes is not None for group in groups)


def ranks_in(groups: Groups) -> tuple[int, ...]:
    """All ranks of ``groups``, in ascending order."""
    if isinstance(groups, PairGroups):
        return tuple(np.unique(groups.numbers.ranks).tolist())
    return tuple(sorted({rank for group in groups for rank in group.ranks}))
