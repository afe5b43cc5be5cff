"""The numbers of every launch, case and group of ranks: what all statistics over launches are computed from.

The launch is the experimental unit: a row has the statistics of the samples of one launch, and everything across
launches is computed from these rows. Groups with the same number of samples are computed by one numpy call. All times
are ns per call.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from busbw.runs.records import Imported, Measurement
from busbw.runs.store import StoredRun
from busbw.statistics import autocorrelation_times, medians_of
from busbw_analysis.data.block_columns import BlockColumns, Floats, columns_of
from busbw_analysis.data.grouped import by_key, grouped
from busbw_analysis.data.ragged import Integers, Ragged, numbered, spans
from busbw_analysis.data.shape import all_drifts, all_modes, all_outliers, median_intervals

SLOW_TIMES_MEDIAN: Final = 5.0
SLOW_LEAST_NS: Final = 1e6
"""A sample above both 5 × the median of its launch and 1 ms is slow."""

_AT_A_TIME = 1 << 20
"""Number of samples that are floating-point numbers at the same time; about ten copies of them exist."""

OVERLAP: Final = ("pure", "post", "compute", "wait", "exposed", "compute_alone", "slowdown")
"""Parts of a call that overlaps with computation, as in ``records.OverlapSamples``: ns, and a ratio."""


@dataclass(frozen=True, slots=True, eq=False)
class LaunchTable:
    """One row for each case, group of ranks and launch, in this order; unknown numbers are NaN.

    case: index of the case in the run
    launch: number of the launch in the run
    ranks: the group
    bus_factor, wire_bytes, traffic_factor: as in ``records.GroupSamples``
    median_ns, mean_ns, p5_ns, p95_ns, p99_ns: of the slowest rank's times
    fastest_ns: median of the fastest rank's times
    skew_ns: median arrival skew
    span_ns: median time from first entry to last exit
    low_ns, high_ns: 95 % interval of the median within the launch; only if the group has no other launch
    samples, effective: number of samples, and the same without autocorrelation
    outliers: samples outside Tukey's outer fences
    slow, slow_ns, total_ns: number and sum of slow samples, and sum of all samples
    fast_mode_ns, slow_mode_ns, slow_mode_share: the two modes; NaN if unimodal
    disturbed, missed: samples in which the kernel descheduled a rank, and in which a rank missed its start window
    blocks, drifting: number of blocks, and of those that drift
    clock_error_ns: largest difference between the clocks of two ranks
    entries: whether every sample recorded which rank entered last
    overlap: rows × ``OVERLAP``: medians; NaN without an overlap
    own_ns, own_share, late: aligned with ``ranks.flat``: a rank's median time (median over blocks); the same over the
        slowest rank's; samples in which it entered last, or was the fastest where entries are not recorded
    statistic: what the number is in the log of another tool; "" for busbw's own runs
    """

    case: Integers
    launch: Integers
    ranks: Ragged
    bus_factor: Floats
    wire_bytes: Floats
    traffic_factor: Floats
    median_ns: Floats
    mean_ns: Floats
    p5_ns: Floats
    p95_ns: Floats
    p99_ns: Floats
    fastest_ns: Floats
    skew_ns: Floats
    span_ns: Floats
    low_ns: Floats
    high_ns: Floats
    samples: Integers
    effective: Floats
    outliers: Integers
    slow: Integers
    slow_ns: Floats
    total_ns: Floats
    fast_mode_ns: Floats
    slow_mode_ns: Floats
    slow_mode_share: Floats
    disturbed: Integers
    missed: Integers
    blocks: Integers
    drifting: Integers
    clock_error_ns: Floats
    entries: npt.NDArray[np.bool_]
    overlap: Floats
    own_ns: Floats
    own_share: Floats
    late: Integers
    statistic: npt.NDArray[np.object_]

    def __len__(self) -> int:
        return len(self.case)

    def take(self, rows: Integers) -> "LaunchTable":
        """These ``rows``, in this order."""
        members = self.ranks.places(rows)
        columns = {name: getattr(self, name)[members if name in OF_MEMBERS else rows] for name in COLUMNS}
        return LaunchTable(ranks=self.ranks.take(rows), **columns)


OF_MEMBERS: Final = frozenset({"own_ns", "own_share", "late"})
"""Columns with one entry per rank of a group."""
COLUMNS: Final = tuple(field.name for field in fields(LaunchTable) if field.name != "ranks")
COUNTS: Final = ("case", "launch", "samples", "outliers", "slow", "disturbed", "missed", "blocks", "drifting", "late")
"""Columns of whole numbers; of counts, 0 where nothing was counted."""
_QUANTILES: Final = ("p5_ns", "p95_ns", "p99_ns")
_OF_SAMPLES: Final = (
    *("median_ns", "mean_ns", *_QUANTILES, "fastest_ns", "skew_ns", "span_ns", "low_ns", "high_ns"),
    *("outliers", "slow", "slow_ns", "total_ns", "fast_mode_ns", "slow_mode_ns", "slow_mode_share"),
)


def joined(tables: Sequence[LaunchTable]) -> LaunchTable:
    """The rows of all ``tables``, in order."""
    if len(tables) == 1:
        return tables[0]
    if not tables:
        return _filled(Ragged.of_rows(()))
    columns = {name: np.concatenate([getattr(table, name) for table in tables]) for name in COLUMNS}
    return LaunchTable(ranks=Ragged.joined(table.ranks for table in tables), **columns)


def launch_table(stored: StoredRun) -> LaunchTable:
    """The numbers of all measured and imported rows of a run."""
    cases, rows = {case: place for place, case in enumerate(stored.run.cases)}, stored.rows
    measured = grouped((row for row in rows if isinstance(row, Measurement)), lambda row: cases[row.case])
    printed = grouped((row for row in rows if isinstance(row, Imported)), lambda row: cases[row.case])
    tables = [_of_blocks(index, blocks) for index, blocks in measured.items()]
    tables += [_of_log(index, members) for index, members in printed.items()]
    return joined(tables)


def _of_log(case: int, rows: Sequence[Imported]) -> LaunchTable:
    """One row per group and table of a log: the median of the numbers that the table has for it."""
    by_launch = by_key(((row.ranks, row.launch), row) for row in rows)
    by_group = grouped(by_launch.items(), lambda item: item[0][0])
    members = [item for items in by_group.values() for item in items]
    sampled = [[row.samples_ns for row in of] if all(row.samples_ns for row in of) else [] for _, of in members]
    quantiles = [
        np.median([np.quantile(samples, (0.05, 0.5, 0.95)) for samples in of], axis=0) if of else np.full(3, np.nan)
        for of in sampled
    ]
    low, _, high = np.asarray(quantiles, dtype=np.float64).reshape(-1, 3).T
    first = [of[0] for _, of in members]
    times = _floats(median(row.time_ns for row in of) for _, of in members)
    return _filled(
        Ragged.of_rows([group for (group, _), _ in members]),
        case=np.full(len(members), case, dtype=np.int64),
        launch=_integers(launch for (_, launch), _ in members),
        bus_factor=_floats(row.bus_factor for row in first),
        wire_bytes=_floats(row.wire_bytes for row in first),
        traffic_factor=np.ones(len(members)),
        median_ns=times,
        mean_ns=times,
        p5_ns=low,
        p95_ns=high,
        samples=_integers(sum(len(row.samples_ns) for row in of) for _, of in members),
        statistic=np.asarray(
            [" and ".join(dict.fromkeys(row.statistic or "unknown" for row in of)) for _, of in members], dtype=object
        ),
    )


def _floats(numbers: Iterable[float | None]) -> Floats:
    return np.asarray(list(numbers), dtype=np.float64)  # None becomes NaN


def _integers(numbers: Iterable[int]) -> Integers:
    return np.fromiter(numbers, dtype=np.int64)


def _filled(ranks: Ragged, **columns: npt.NDArray[Any]) -> LaunchTable:
    """A table with these columns; the others are unknown, or 0 for counts."""
    rows, members = len(ranks), len(ranks.flat)
    empty: dict[str, npt.NDArray[Any]] = {
        **{name: np.full(members if name in OF_MEMBERS else rows, np.nan) for name in COLUMNS},
        **{name: np.zeros(members if name in OF_MEMBERS else rows, dtype=np.int64) for name in COUNTS},
        "overlap": np.full((rows, len(OVERLAP)), np.nan),
        "entries": np.zeros(rows, dtype=np.bool_),
        "statistic": np.full(rows, "", dtype=object),
    }
    return LaunchTable(ranks=ranks, **{**empty, **columns})


@dataclass(frozen=True, slots=True, eq=False)
class _Entries:
    """One entry for every group in every block, sorted by group, then launch, then block.

    segment: index of the combination of group and launch
    joined: position of the group among all groups of all blocks
    block, place: index of the block, and position of the group in this block
    length: number of samples
    """

    segment: Integers
    joined: Integers
    block: Integers
    place: Integers
    length: Integers


def _of_blocks(case: int, blocks: Sequence[Measurement]) -> LaunchTable:
    """The rows of a case from its ``blocks``, in order."""
    columns = [columns_of(block) for block in blocks]
    calls = _integers(block.calls for block in blocks)
    entries, first_at, launches = _ordered(blocks, columns)
    rows = len(first_at)
    factors = np.concatenate([part.factors for part in columns])[first_at]
    error = _floats((block.clock_error_ns or 0) / block.calls for block in blocks)
    recorded = np.asarray([len(part.last_place) == len(part.slowest) for part in columns])
    error_of_row, recorded_of_row = np.zeros(rows), np.ones(rows, dtype=np.bool_)
    np.maximum.at(error_of_row, entries.segment, error[entries.block])
    np.logical_and.at(recorded_of_row, entries.segment, recorded[entries.block])
    tau, drift, middle = _of_entries(columns, entries)
    lost = np.concatenate([part.disturbed for part in columns])[entries.joined]
    ranks = Ragged.joined(part.ranks for part in columns).take(first_at)
    group = numbered(ranks)
    alone = np.bincount(group)[group] == 1
    return _filled(
        ranks,
        case=np.full(rows, case, dtype=np.int64),
        launch=launches,
        bus_factor=factors[:, 0],
        wire_bytes=factors[:, 1],
        traffic_factor=factors[:, 2],
        samples=np.bincount(entries.segment, entries.length, rows).astype(np.int64),
        disturbed=np.bincount(entries.segment, lost[:, 0], rows).astype(np.int64),
        missed=np.bincount(entries.segment, lost[:, 1], rows).astype(np.int64),
        effective=np.bincount(entries.segment, entries.length / tau, rows),
        blocks=np.bincount(entries.segment, minlength=rows),
        drifting=np.bincount(entries.segment, drift, rows).astype(np.int64),
        clock_error_ns=error_of_row,
        entries=recorded_of_row,
        **_of_samples(columns, calls, entries, alone),
        **_of_members(columns, calls, entries, ranks, middle),
    )


def _ordered(blocks: Sequence[Measurement], columns: Sequence[BlockColumns]) -> tuple[_Entries, Integers, Integers]:
    """The sorted entries of all groups of all blocks; of every row, its first entry in the joined columns, and its
    launch.
    """
    ranks = Ragged.joined(part.ranks for part in columns)
    block = np.repeat(np.arange(len(columns)), [len(part.length) for part in columns])
    group = numbered(ranks)
    seen = list(dict.fromkeys(row.launch for row in blocks))
    # The launches of a group are in the order of the blocks.
    launch = _integers(seen.index(row.launch) for row in blocks)[block]
    order = np.lexsort((np.arange(len(block)), launch, group))
    new = np.concatenate([[True], (np.diff(group[order]) != 0) | (np.diff(launch[order]) != 0)])
    place = np.concatenate([np.arange(len(part.length)) for part in columns])
    length = np.concatenate([part.length for part in columns])
    entries = _Entries(np.cumsum(new) - 1, order, block[order], place[order], length[order])
    return entries, order[new], np.asarray(seen)[launch[order][new]]


def _batches(lengths: Integers) -> Iterator[Integers]:
    """Indices of items with equal ``lengths``, in batches of at most ``_AT_A_TIME`` samples."""
    order = np.argsort(lengths, kind="stable")
    for alike in np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1):
        step = max(1, _AT_A_TIME // max(1, int(lengths[alike[0]])))
        yield from (alike[first : first + step] for first in range(0, len(alike), step))


def _gather(
    columns: Sequence[BlockColumns], entries: _Entries, chosen: Integers, name: str, calls: Integers | None = None
) -> Floats:
    """The samples of the ``chosen`` entries, concatenated: as recorded, or divided by the ``calls`` of their block; NaN
    where a block did not record them.
    """
    lengths = entries.length[chosen]
    starts = np.cumsum(lengths) - lengths
    flat = np.empty(int(lengths.sum()))
    for number in np.unique(entries.block[chosen]).tolist():
        mine = np.flatnonzero(entries.block[chosen] == number)
        column = getattr(columns[number], name)
        to = spans(starts[mine], lengths[mine])
        if len(column):
            begins = np.cumsum(columns[number].length) - columns[number].length
            samples = column[spans(begins[entries.place[chosen[mine]]], lengths[mine])]
            flat[to] = samples if calls is None else samples / calls[number]
        else:
            flat[to] = np.nan
    return flat


def _of_entries(columns: Sequence[BlockColumns], entries: _Entries) -> tuple[Floats, Floats, Floats]:
    """Autocorrelation time, drift (0 or 1) and median of the slowest rank (ns per sample) of every entry."""
    tau, drift, middle = np.ones(len(entries.block)), np.zeros(len(entries.block)), np.empty(len(entries.block))
    for batch in _batches(entries.length):
        samples = _gather(columns, entries, batch, "slowest").reshape(len(batch), -1)
        tau[batch] = autocorrelation_times(samples)
        drift[batch] = all_drifts(samples, tau[batch])
        middle[batch] = medians_of(samples)
    return tau, drift, middle


def _of_samples(
    columns: Sequence[BlockColumns], calls: Integers, entries: _Entries, alone: npt.NDArray[np.bool_]
) -> dict[str, npt.NDArray[Any]]:
    """The statistics of the samples of every row; ``alone``: rows that need an interval within the launch."""
    rows = len(alone)
    statistics = {name: np.full(rows, np.nan) for name in _OF_SAMPLES}
    overlap = np.full((rows, len(OVERLAP)), np.nan)
    ends = np.searchsorted(entries.segment, np.arange(rows), "right")
    begins = np.searchsorted(entries.segment, np.arange(rows), "left")
    recorded = {name for name in ("skew", "span") if any(len(getattr(part, name)) for part in columns)}
    for batch in _batches(np.bincount(entries.segment, entries.length, rows).astype(np.int64)):
        chosen = spans(begins[batch], (ends - begins)[batch])
        shape = (len(batch), -1)
        slowest = _gather(columns, entries, chosen, "slowest", calls).reshape(shape)
        ordered = np.sort(slowest, axis=1)
        middle = np.median(ordered, axis=1)
        limit = np.maximum(SLOW_TIMES_MEDIAN * middle, SLOW_LEAST_NS)[:, np.newaxis]
        modes = all_modes(slowest)
        numbers = {
            "median_ns": middle,
            "mean_ns": slowest.mean(axis=1),
            **dict(zip(_QUANTILES, np.quantile(ordered, (0.05, 0.95, 0.99), axis=1), strict=True)),
            "fastest_ns": medians_of(_gather(columns, entries, chosen, "fastest", calls).reshape(shape)),
            "outliers": all_outliers(slowest),
            "slow": (slowest > limit).sum(axis=1),
            "slow_ns": np.where(slowest > limit, slowest, 0.0).sum(axis=1),
            "total_ns": slowest.sum(axis=1),
            **dict(zip(("fast_mode_ns", "slow_mode_ns", "slow_mode_share"), modes.T, strict=True)),
        }
        if recorded:
            skew, span = (_gather(columns, entries, chosen, name, calls).reshape(shape) for name in ("skew", "span"))
            # ``span`` is from the last entry to the last exit.
            numbers |= {"skew_ns": medians_of(skew), "span_ns": medians_of(skew + span)}
        for name, values in numbers.items():
            statistics[name][batch] = values
        if (single := alone[batch]).any():
            within = slowest[single]
            low, high = median_intervals(within, autocorrelation_times(within))
            statistics["low_ns"][batch[single]], statistics["high_ns"][batch[single]] = low, high
    for row, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        if columns[entries.block[begin]].overlap.size:
            overlap[row] = _overlap([columns[block] for block in entries.block[begin:end]], entries, begin, end)
    whole = {name: statistics[name].astype(np.int64) for name in ("outliers", "slow")}
    return {**statistics, **whole, "overlap": overlap}


def _overlap(parts: Sequence[BlockColumns], entries: _Entries, begin: int, end: int) -> Floats:
    """The medians of the parts of an overlapped call over all samples of the entries ``begin`` to ``end``. Each
    computation is divided by the time alone in its own block, because every block has its own amount of computation.
    """
    tables = []
    for part, place in zip(parts, entries.place[begin:end].tolist(), strict=True):
        if not part.overlap.size:
            return np.full(len(OVERLAP), np.nan)
        first = int(part.length[:place].sum())
        table = part.overlap[first : first + int(part.length[place])]
        tables.append(np.column_stack([table, table[:, 2] / table[:, 5]]))
    return np.asarray(np.median(np.concatenate(tables), axis=0))


def _of_members(
    columns: Sequence[BlockColumns], calls: Integers, entries: _Entries, ranks: Ragged, middle: Floats
) -> dict[str, npt.NDArray[Any]]:
    """The columns ``OF_MEMBERS``; ``middle``: median of the slowest rank in every entry, ns per sample."""
    every = Ragged.joined(part.ranks for part in columns)
    members = every.lengths[entries.joined]
    own = np.concatenate([part.middles for part in columns]).astype(np.float64)[every.places(entries.joined)]
    late = _arrivals(columns, entries, members)
    # The entries of a row are neighbours and have equally many ranks.
    count = np.bincount(entries.segment, minlength=len(ranks))
    first = np.concatenate([[0], np.cumsum(members)])[np.searchsorted(entries.segment, np.arange(len(ranks)))]
    values = {"own_ns": own / np.repeat(calls[entries.block], members), "own_share": own / np.repeat(middle, members)}
    medians = {name: np.empty(len(ranks.flat)) for name in values}
    total = np.zeros(len(ranks.flat), dtype=np.int64)
    shape = np.stack([count, ranks.lengths], axis=1)
    for blocks, size in np.unique(shape, axis=0).tolist():
        alike = np.flatnonzero((shape == (blocks, size)).all(axis=1))
        at = first[alike][:, np.newaxis, np.newaxis] + np.arange(blocks * size).reshape(blocks, size)
        to = ranks.places(alike)
        for name, column in values.items():
            medians[name][to] = np.median(column[at], axis=1).ravel()
        total[to] = late[at].sum(axis=1).ravel()
    return {**medians, "late": total}


def _arrivals(columns: Sequence[BlockColumns], entries: _Entries, members: Integers) -> Integers:
    """In how many samples of every entry each rank of the group entered last, or was the fastest if the block does not
    record entries: entry after entry, in the order of the group's ranks.
    """
    offset = np.cumsum(members) - members
    counts = np.zeros(int(members.sum()), dtype=np.int64)
    for number in np.unique(entries.block).tolist():
        part = columns[number]
        mine = np.flatnonzero(entries.block == number)
        places = part.last_place if len(part.last_place) else part.fastest_place
        begins = np.cumsum(part.length) - part.length
        at = spans(begins[entries.place[mine]], part.length[entries.place[mine]])
        counts += np.bincount(
            np.repeat(offset[mine], part.length[entries.place[mine]]) + places[at], minlength=len(counts)
        )
    return counts
