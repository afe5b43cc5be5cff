"""The summary numbers of all pairs of a matrix, computed by one numpy call for many pairs.

They equal those that ``groups`` computes for one group. Pairs with the same number of samples are computed together;
all pairs of a round have the same number.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from busbw.runs.records import Case
from busbw.statistics import autocorrelation_times, medians_of, spreads
from busbw_analysis.data.intervals import Floats, interval_over_launches
from busbw_analysis.data.pair_columns import PairBlock
from busbw_analysis.data.shape import all_drifts, all_modes, all_outliers, median_intervals

Integers = npt.NDArray[np.signedinteger]
Truths = npt.NDArray[np.bool_]

CLOCK_ERROR_SHARE: Final = 0.05
SLOW_TIMES_MEDIAN: Final = 5.0
SLOW_LEAST_NS: Final = 1e6

_AT_A_TIME = 1 << 20
"""Number of samples that are floating-point numbers at the same time; about ten copies of them exist."""


@dataclass(frozen=True, slots=True, eq=False)
class PairTimes:
    """The times of every pair, named as in ``GroupSummary``. Unknown numbers are NaN.

    ranks: pairs × 2, in order of first appearance
    time_ns: ns per call
    low_ns, high_ns: interval over launches; with too few launches their range; for one launch, the interval within it
    launches: number of launches of every pair
    launch_medians_ns: pairs × launches, in the order of each pair's launches; NaN after a pair's last launch
    launch_keys: the launches of every pair
    slow_over_fast: ratio of the two modes; 0 for a unimodal pair
    """

    ranks: Integers
    time_ns: Floats
    low_ns: Floats
    high_ns: Floats
    launches: Integers
    launch_medians_ns: Floats
    launch_keys: Sequence[tuple[tuple[int, int], ...]]
    slow_over_fast: Floats

    @property
    def has_modes(self) -> Truths:
        """Which pairs are bimodal."""
        return self.slow_over_fast > 0


@dataclass(frozen=True, slots=True, eq=False)
class _Entries:
    """One entry for every pair in every block, sorted by pair, then launch, then block.

    pair: index of the pair
    segment: index of the combination of pair and launch
    block, place: index of the block, and position of the pair in this block
    length: number of samples
    """

    pair: Integers
    segment: Integers
    block: Integers
    place: Integers
    length: Integers


@dataclass(frozen=True, slots=True, eq=False)
class PairNumbers(PairTimes):
    """Further numbers of every pair, named as in ``GroupSummary``; ``launch_means_ns`` has the shape of the medians."""

    launch_means_ns: Floats
    spread: Floats
    skew_share: Floats
    samples: Integers
    tau: Floats
    outlier_share: Floats
    slow_time_share: Floats
    drift: Truths
    clock_error_ns: Floats
    traffic_factor: Floats
    _entries: _Entries

    def entries(self, pair: int) -> list[tuple[int, int]]:
        """The blocks that contain a pair, with its position in each, in the order of the blocks."""
        first, end = np.searchsorted(self._entries.pair, [pair, pair + 1])
        blocks, places = (column[first:end].tolist() for column in (self._entries.block, self._entries.place))
        return list(zip(blocks, places, strict=True))


def numbers_of(case: Case, blocks: Sequence[tuple[int, PairBlock]]) -> PairNumbers:
    """The numbers of all pairs of ``case``; ``blocks`` are its blocks in order, each with the index of its run."""
    first_at, entries, keys, launches = _ordered(case, blocks)
    pairs = len(first_at)
    tau, drift = _of_entries(blocks, entries)
    segments = _of_segments(blocks, entries)
    by_pair = {name: _by_pair(values, launches) for name, values in segments.items()}
    medians = by_pair["median"]
    time_ns = _median(medians, launches)
    low, high = _intervals(medians, launches)
    single = np.flatnonzero(launches == 1)
    if len(single):
        # For a single launch: the interval of the median within the launch.
        low[single], high[single] = _within(blocks, entries, single)
    total = np.bincount(entries.pair, weights=entries.length, minlength=pairs)
    effective = np.bincount(entries.pair, weights=entries.length / tau, minlength=pairs)
    count = np.bincount(entries.pair, minlength=pairs)
    error_of_block = np.asarray([(block.clock_error_ns or 0) / block.calls for _, block in blocks])
    error = np.zeros(pairs)
    np.maximum.at(error, entries.pair, error_of_block[entries.block])
    skew = _median(by_pair["skew"] / medians, launches)
    return PairNumbers(
        ranks=np.concatenate([block.columns.ranks for _, block in blocks])[first_at],
        time_ns=time_ns,
        low_ns=low,
        high_ns=high,
        launches=launches,
        launch_medians_ns=medians,
        launch_means_ns=by_pair["mean"],
        launch_keys=keys,
        spread=_median(by_pair["spread"], launches),
        skew_share=np.where(error <= CLOCK_ERROR_SHARE * time_ns, skew, np.nan),
        samples=total.astype(np.int64),
        tau=total / effective,
        outlier_share=np.nansum(by_pair["outliers"], axis=1) / total,
        slow_time_share=np.nansum(by_pair["slow"], axis=1) / np.nansum(by_pair["sum"], axis=1),
        slow_over_fast=_mode_ratio(by_pair["fast_mode"], by_pair["slow_mode"], launches),
        drift=2 * np.bincount(entries.pair, weights=drift, minlength=pairs) > count,
        clock_error_ns=error,
        traffic_factor=np.concatenate([block.columns.factors[:, 2] for _, block in blocks])[first_at],
        _entries=entries,
    )


def _ordered(
    case: Case, blocks: Sequence[tuple[int, PairBlock]]
) -> tuple[Integers, _Entries, list[tuple[tuple[int, int], ...]], Integers]:
    """Sort all pairs of all blocks.

    Returns the position of the first appearance of each pair in the joined columns, ascending; the sorted entries; the
    launches of every pair; and how many launches each pair has.
    """
    columns = [block.columns for _, block in blocks]
    names = np.concatenate([part.ranks[:, 0].astype(np.int64) * case.ranks + part.ranks[:, 1] for part in columns])
    block = np.repeat(np.arange(len(blocks)), [len(part) for part in columns])
    place = np.concatenate([np.arange(len(part)) for part in columns])
    length = np.concatenate([part.length for part in columns])
    unique, first_at, number = np.unique(names, return_index=True, return_inverse=True)
    order_of = np.empty(len(unique), dtype=np.int64)
    order_of[np.argsort(first_at)] = np.arange(len(unique))
    pair = order_of[number]
    seen = list(dict.fromkeys((run, record.launch) for run, record in blocks))
    # The launches of a pair are in the order of the blocks.
    launch = np.asarray([seen.index((run, record.launch)) for run, record in blocks])[block]
    order = np.lexsort((np.arange(len(pair)), launch, pair))
    pair, launch = pair[order], launch[order]
    new = np.concatenate([[True], (np.diff(pair) != 0) | (np.diff(launch) != 0)])
    launches = np.bincount(pair[new], minlength=len(unique))
    keys = [tuple(seen)] * len(unique)
    if launches.min() < len(seen):
        present = np.split(launch[new], np.cumsum(launches)[:-1])
        keys = [tuple(seen[index] for index in indices.tolist()) for indices in present]
    entries = _Entries(pair, np.cumsum(new) - 1, block[order], place[order], length[order])
    return np.sort(first_at), entries, keys, launches


def _batches(lengths: Integers) -> Iterator[Integers]:
    """Indices of items with equal ``lengths``, in batches of at most ``_AT_A_TIME`` samples."""
    order = np.argsort(lengths, kind="stable")
    for alike in np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1):
        step = max(1, _AT_A_TIME // max(1, int(lengths[alike[0]])))
        yield from (alike[first : first + step] for first in range(0, len(alike), step))


def _gather(
    blocks: Sequence[tuple[int, PairBlock]], entries: _Entries, wanted: Integers, name: str, *, per_call: bool = True
) -> Floats:
    """The samples of the ``wanted`` entries, concatenated; in ns per call, or with ``per_call=False`` as recorded."""
    lengths = entries.length[wanted]
    starts = np.cumsum(lengths) - lengths
    flat = np.empty(int(lengths.sum()))
    for number in np.unique(entries.block[wanted]).tolist():
        block = blocks[number][1]
        mine = np.flatnonzero(entries.block[wanted] == number)
        column = getattr(block.columns, name)
        counts = lengths[mine]
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        to = np.repeat(starts[mine], counts) + within
        if len(column):
            samples = column[np.repeat(block.columns.starts[entries.place[wanted[mine]]], counts) + within]
            flat[to] = samples / block.calls if per_call else samples
        else:
            flat[to] = np.nan
    return flat


def _of_entries(blocks: Sequence[tuple[int, PairBlock]], entries: _Entries) -> tuple[Floats, Truths]:
    """Autocorrelation time and drift of every pair in every block."""
    tau, drift = np.ones(len(entries.pair)), np.zeros(len(entries.pair), dtype=np.bool_)
    for batch in _batches(entries.length):
        samples = _gather(blocks, entries, batch, "slowest", per_call=False).reshape(len(batch), -1)
        tau[batch] = autocorrelation_times(samples)
        drift[batch] = all_drifts(samples, tau[batch])
    return tau, drift


def _members(entries: _Entries, column: Integers, wanted: Integers) -> Iterator[tuple[Integers, Integers]]:
    """Batches of the ``wanted`` values of a sorted ``column`` of entries that have equally many samples.

    Yields their positions in ``wanted``, and the indices of all their entries.
    """
    first, end = (np.searchsorted(column, wanted, side) for side in ("left", "right"))
    counts = end - first
    for batch in _batches(np.bincount(column, weights=entries.length).astype(np.int64)[wanted]):
        mine = counts[batch]
        yield batch, np.repeat(first[batch] - (np.cumsum(mine) - mine), mine) + np.arange(int(mine.sum()))


def _of_segments(blocks: Sequence[tuple[int, PairBlock]], entries: _Entries) -> dict[str, Floats]:
    """The numbers of every pair in every launch, by name."""
    segments = np.arange(int(entries.segment[-1]) + 1)
    names = ("median", "spread", "mean", "sum", "slow", "skew", "outliers", "fast_mode", "slow_mode")
    found = {name: np.empty(len(segments)) for name in names}
    skewed = any(len(block.columns.skew) for _, block in blocks)
    for batch, wanted in _members(entries, entries.segment, segments):
        slowest = _gather(blocks, entries, wanted, "slowest").reshape(len(batch), -1)
        found["median"][batch] = medians_of(slowest)
        found["spread"][batch] = spreads(slowest)
        found["mean"][batch] = slowest.mean(axis=1)
        found["sum"][batch] = slowest.sum(axis=1)
        limit = np.maximum(SLOW_TIMES_MEDIAN * found["median"][batch], SLOW_LEAST_NS)
        found["slow"][batch] = np.where(slowest > limit[:, np.newaxis], slowest, 0.0).sum(axis=1)
        found["outliers"][batch] = all_outliers(slowest)
        modes = all_modes(slowest)
        found["fast_mode"][batch], found["slow_mode"][batch] = modes[:, 0], modes[:, 1]
        skew = _gather(blocks, entries, wanted, "skew").reshape(len(batch), -1) if skewed else slowest * np.nan
        found["skew"][batch] = medians_of(skew)
    return found


def _within(blocks: Sequence[tuple[int, PairBlock]], entries: _Entries, pairs: Integers) -> tuple[Floats, Floats]:
    """The interval within the single launch of each of ``pairs``."""
    low, high = np.empty(len(pairs)), np.empty(len(pairs))
    for batch, wanted in _members(entries, entries.pair, pairs):
        samples = _gather(blocks, entries, wanted, "slowest").reshape(len(batch), -1)
        low[batch], high[batch] = median_intervals(samples, autocorrelation_times(samples))
    return low, high


def _by_pair(values: Floats, launches: Integers) -> Floats:
    """Reshape one number per pair and launch to pairs × launches; NaN after the last launch of a pair."""
    most = int(launches.max())
    if (launches == most).all():
        return values.reshape(len(launches), most)
    places = np.minimum((np.cumsum(launches) - launches)[:, np.newaxis] + np.arange(most), len(values) - 1)
    return np.asarray(np.where(np.arange(most) < launches[:, np.newaxis], values[places], np.nan))


def _median(values: Floats, launches: Integers) -> Floats:
    """The median over the launches of every pair; NaN if any launch has NaN."""
    found = np.empty(len(values))
    for count in np.unique(launches).tolist():
        mine = launches == count
        found[mine] = np.median(values[mine, :count], axis=1)
    return found


def _intervals(medians: Floats, launches: Integers) -> tuple[Floats, Floats]:
    """The interval over launches; their range if there are too few."""
    low, high = np.empty(len(medians)), np.empty(len(medians))
    for count in np.unique(launches).tolist():
        mine = launches == count
        ordered = np.sort(medians[mine, :count], axis=1)
        first, last = interval_over_launches(ordered)
        low[mine] = ordered[:, 0] if first is None else first
        high[mine] = ordered[:, -1] if last is None else last
    return low, high


def _mode_ratio(fast: Floats, slow: Floats, launches: Integers) -> Floats:
    """Slow mode over fast mode for pairs of which at least half of the launches are bimodal; else 0."""
    found = np.zeros(len(fast))
    two = 2 * (~np.isnan(fast)).sum(axis=1) >= launches
    if two.any():
        found[two] = np.nanmedian(slow[two], axis=1) / np.nanmedian(fast[two], axis=1)
    return found
