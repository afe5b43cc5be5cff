"""The numbers of all pairs of a matrix at once, as ``summary`` has them of one group: one numpy call for many pairs.

Samples are taken together by how many of them there are: all pairs of a round have as many as each other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from busbw.runs.records import Case
from busbw.statistics import spreads
from busbw_analysis.data.intervals import interval_over_launches
from busbw_analysis.data.pair_columns import PairBlock
from busbw_analysis.data.shape import all_drifts, all_modes, all_outliers, median_intervals, medians_of

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.signedinteger]
Truths = npt.NDArray[np.bool_]

CLOCK_ERROR_SHARE: Final = 0.05
SLOW_TIMES_MEDIAN: Final = 5.0
SLOW_LEAST_NS: Final = 1e6

_AT_A_TIME = 1 << 20
"""Samples that are there as floating-point numbers at one time; some ten copies of them."""
_FEWEST_TO_CORRELATE = 4


@dataclass(frozen=True, slots=True, eq=False)
class PairTimes:
    """The times of every pair of an op of pairs (NaN: there is none), by the name that they have in ``GroupSummary``.

    ``ranks`` (pairs × 2) are in the order in which the pairs first came. ``launch_medians_ns`` are pairs × launches, in
    the order of the launches of each pair; NaN behind the last one of a pair that lacks some. ``launch_keys``: the
    launches of every pair; one entry alone where all pairs have the same. ``low_ns`` and ``high_ns`` are of the
    interval over launches where there are enough, else the range of their medians, and for a single launch that within
    it. ``slow_over_fast``: how far two modes are apart (0: there is one).
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
        """Which pairs have two modes."""
        return self.slow_over_fast > 0

    @property
    def keys(self) -> Sequence[tuple[tuple[int, int], ...]]:
        """The launches of every pair."""
        return self.launch_keys if len(self.launch_keys) > 1 else [*self.launch_keys] * len(self.ranks)


@dataclass(frozen=True, slots=True, eq=False)
class PairNumbers(PairTimes):
    """More numbers of every pair; ``launch_means_ns`` are laid out as the medians."""

    launch_means_ns: Floats
    spread: Floats
    skew_share: Floats
    samples: Integers
    tau: Floats
    outlier_share: Floats
    slow_time_share: Floats
    drift: Truths
    clock_error_ns: Floats
    moved_factor: Floats
    _pair_of_entry: Integers
    _block_of_entry: Integers
    _place_of_entry: Integers

    def entries(self, pair: int) -> list[tuple[int, int]]:
        """In which blocks a pair is, and where in each: the order of the blocks."""
        first, end = np.searchsorted(self._pair_of_entry, [pair, pair + 1])
        return list(
            zip(self._block_of_entry[first:end].tolist(), self._place_of_entry[first:end].tolist(), strict=True)
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Entries:
    """Every pair of every block, the blocks of a pair behind each other: by pair, then by launch, then as they came.

    ``pair``, ``segment`` (a pair in a launch), ``block``, ``place`` (in that block) and ``length`` have one entry each.
    """

    pair: Integers
    segment: Integers
    block: Integers
    place: Integers
    length: Integers


def numbers_of(case: Case, blocks: Sequence[tuple[int, PairBlock]]) -> PairNumbers:
    """The numbers of all pairs of ``case``; ``blocks`` are its blocks with the run of each, in their order."""
    came, entries, keys, launches = _ordered(case, blocks)
    pairs = len(came)
    tau, drift = _of_entries(blocks, entries)
    segments = _of_segments(blocks, entries)
    by_pair = {name: _by_pair(values, launches) for name, values in segments.items()}
    medians = by_pair["median"]
    time_ns = _median(medians, launches)
    low, high = _intervals(medians, launches)
    single = np.flatnonzero(launches == 1)
    if len(single):
        # One launch alone: how sure its samples are of their median.
        low[single], high[single] = _within(blocks, entries, single)
    total = np.bincount(entries.pair, weights=entries.length, minlength=pairs)
    effective = np.bincount(entries.pair, weights=entries.length / tau, minlength=pairs)
    count = np.bincount(entries.pair, minlength=pairs)
    error_of_block = np.asarray([(block.clock_error_ns or 0) / block.calls for _, block in blocks])
    error = np.zeros(pairs)
    np.maximum.at(error, entries.pair, error_of_block[entries.block])
    skew = _median(by_pair["skew"] / medians, launches)
    return PairNumbers(
        ranks=np.concatenate([block.columns.ranks for _, block in blocks])[came],
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
        slow_over_fast=_apart(by_pair["fast_mode"], by_pair["slow_mode"], launches),
        drift=2 * np.bincount(entries.pair, weights=drift, minlength=pairs) > count,
        clock_error_ns=error,
        moved_factor=np.concatenate([block.columns.factors[:, 2] for _, block in blocks])[came],
        _pair_of_entry=entries.pair,
        _block_of_entry=entries.block,
        _place_of_entry=entries.place,
    )


def _ordered(
    case: Case, blocks: Sequence[tuple[int, PairBlock]]
) -> tuple[Integers, _Entries, tuple[tuple[tuple[int, int], ...], ...], Integers]:
    """Where in all columns each pair came first, in that order, where it is in the blocks, and its launches."""
    columns = [block.columns for _, block in blocks]
    names = np.concatenate([one.ranks[:, 0].astype(np.int64) * case.ranks + one.ranks[:, 1] for one in columns])
    block = np.repeat(np.arange(len(blocks)), [len(one) for one in columns])
    place = np.concatenate([np.arange(len(one)) for one in columns])
    length = np.concatenate([one.length for one in columns])
    unique, came, number = np.unique(names, return_index=True, return_inverse=True)
    order_of = np.empty(len(unique), dtype=np.int64)
    order_of[np.argsort(came)] = np.arange(len(unique))
    pair = order_of[number]
    seen = list(dict.fromkeys((run, one.launch) for run, one in blocks))
    # The launches of a pair are in the order in which it came in them, which is that of the blocks.
    launch = np.asarray([seen.index((run, one.launch)) for run, one in blocks])[block]
    order = np.lexsort((np.arange(len(pair)), launch, pair))
    pair, launch = pair[order], launch[order]
    new = np.concatenate([[True], (np.diff(pair) != 0) | (np.diff(launch) != 0)])
    launches = np.bincount(pair[new], minlength=len(unique))
    present = np.split(launch[new], np.cumsum(launches)[:-1]) if launches.min() < len(seen) else [np.arange(len(seen))]
    keys = tuple(tuple(seen[one] for one in mine.tolist()) for mine in present)
    return np.sort(came), _Entries(pair, np.cumsum(new) - 1, block[order], place[order], length[order]), keys, launches


def _batches(lengths: Integers) -> Iterator[Integers]:
    """The numbers of what is of one length, so many at a time that their samples fit."""
    order = np.argsort(lengths, kind="stable")
    for alike in np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1):
        step = max(1, _AT_A_TIME // max(1, int(lengths[alike[0]])))
        yield from (alike[first : first + step] for first in range(0, len(alike), step))


def _gather(
    blocks: Sequence[tuple[int, PairBlock]], entries: _Entries, wanted: Integers, name: str, *, per_call: bool = True
) -> Floats:
    """The samples of ``wanted`` entries, one behind the other; ns per call unless they are as recorded."""
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


def autocorrelation_times(samples: Floats) -> Floats:
    """``statistics.autocorrelation_time`` of every row, to the last bit: whole numbers of free samples hang on it."""
    rows, count = samples.shape
    times = np.ones(rows)
    if count < _FEWEST_TO_CORRELATE:
        return times
    indicator = (samples > medians_of(samples)[:, np.newaxis]).astype(np.float64)
    indicator -= indicator.mean(axis=1, keepdims=True)
    power = np.matmul(indicator[:, np.newaxis], indicator[:, :, np.newaxis])[:, 0]
    moves = np.flatnonzero(power[:, 0] != 0)
    spectrum = np.fft.rfft(indicator[moves], 2 * count, axis=1)
    correlation = np.fft.irfft(spectrum * np.conj(spectrum), axis=1)[:, :count] / power[moves]
    even = count // 2 * 2
    pairs = correlation[:, :even:2] + correlation[:, 1:even:2]
    ends = pairs <= 0
    stops = np.where(ends.any(axis=1), ends.argmax(axis=1), pairs.shape[1])
    for stop in np.unique(stops).tolist():
        mine = stops == stop
        times[moves[mine]] = np.maximum(1.0, 2 * pairs[mine, :stop].sum(axis=1) - 1)
    return times


def _members(entries: _Entries, column: Integers, wanted: Integers) -> Iterator[tuple[Integers, Integers]]:
    """Some at a time of what is ``wanted`` of a ``column`` of entries and has as many samples as each other: its places
    in ``wanted``, and its entries.
    """
    first, end = (np.searchsorted(column, wanted, side) for side in ("left", "right"))
    counts = end - first
    for batch in _batches(np.bincount(column, weights=entries.length).astype(np.int64)[wanted]):
        mine = counts[batch]
        yield batch, np.repeat(first[batch] - (np.cumsum(mine) - mine), mine) + np.arange(int(mine.sum()))


def _of_segments(blocks: Sequence[tuple[int, PairBlock]], entries: _Entries) -> dict[str, Floats]:
    """What every pair has in every launch, by name."""
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
    """The interval within the one launch of each of ``pairs``."""
    low, high = np.empty(len(pairs)), np.empty(len(pairs))
    for batch, wanted in _members(entries, entries.pair, pairs):
        samples = _gather(blocks, entries, wanted, "slowest").reshape(len(batch), -1)
        low[batch], high[batch] = median_intervals(samples, autocorrelation_times(samples))
    return low, high


def _by_pair(values: Floats, launches: Integers) -> Floats:
    """One number a pair and launch as pairs × launches; NaN behind the last launch of a pair."""
    most = int(launches.max())
    if (launches == most).all():
        return values.reshape(len(launches), most)
    places = np.minimum((np.cumsum(launches) - launches)[:, np.newaxis] + np.arange(most), len(values) - 1)
    return np.asarray(np.where(np.arange(most) < launches[:, np.newaxis], values[places], np.nan))


def _median(values: Floats, launches: Integers) -> Floats:
    """The median over the launches of every pair; NaN where one of them has no number."""
    found = np.empty(len(values))
    for count in np.unique(launches).tolist():
        mine = launches == count
        found[mine] = np.median(values[mine, :count], axis=1)
    return found


def _intervals(medians: Floats, launches: Integers) -> tuple[Floats, Floats]:
    """The interval over launches where there are enough, else their range."""
    low, high = np.empty(len(medians)), np.empty(len(medians))
    for count in np.unique(launches).tolist():
        mine = launches == count
        ordered = np.sort(medians[mine, :count], axis=1)
        first, last = interval_over_launches(ordered)
        low[mine] = ordered[:, 0] if first is None else first
        high[mine] = ordered[:, -1] if last is None else last
    return low, high


def _apart(fast: Floats, slow: Floats, launches: Integers) -> Floats:
    """How far two modes are apart that at least half of the launches have; 0 where they have not."""
    found = np.zeros(len(fast))
    two = 2 * (~np.isnan(fast)).sum(axis=1) >= launches
    if two.any():
        found[two] = np.nanmedian(slow[two], axis=1) / np.nanmedian(fast[two], axis=1)
    return found
