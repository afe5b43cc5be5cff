"""The numbers of every launch, case and group of ranks: what all statistics over launches are computed from.

The launch is the experimental unit: a row has the statistics of the samples of one launch, and everything across
launches is computed from these rows. Groups with the same number of samples are computed by one numpy call. All times
are ns per call.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from busbw.runs.records import Imported, Measurement, Window
from busbw.runs.store import StoredRun
from busbw.statistics import autocorrelation_times, median_interval, medians_of
from busbw_analysis.data.block_columns import BlockColumns, Floats, columns_of
from busbw_analysis.data.grouped import by_key, grouped
from busbw_analysis.data.ragged import Integers, Ragged, numbered, spans
from busbw_analysis.data.windows import statistics_of

Flags = npt.NDArray[np.bool_]
Texts = npt.NDArray[np.object_]
_Columns = dict[str, npt.NDArray[Any]]

SLOW_TIMES_MEDIAN: Final = 5.0
SLOW_LEAST_NS: Final = 1e6
"""A sample above both 5 × the median of its launch and 1 ms is slow."""

_MODE_LEAST_SHARE = 0.2
_AT_A_TIME = 1 << 20
"""Number of samples that are floating-point numbers at the same time; about ten copies of them exist."""

OVERLAP: Final = ("pure", "post", "compute", "wait", "exposed", "compute_alone", "slowdown")
"""Parts of a call that overlaps with computation, as in ``records.OverlapSamples``: ns, and a ratio."""


@dataclass(frozen=True, slots=True, eq=False)
class LaunchTable:
    """One row for each case, group of ranks and launch, in this order; unknown numbers are NaN.

    case_index: index of the case in the run
    launch: number of the launch in the run
    ranks: the group
    bus_factor, wire_bytes, traffic_factor: as in ``records.GroupSamples``
    median_ns, mean_ns, p5_ns, p95_ns, p99_ns: of the slowest rank's times; of a run with a duration, of all samples
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

    case_index: Integers
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
    entries: Flags
    overlap: Floats
    own_ns: Floats
    own_share: Floats
    late: Integers
    statistic: Texts

    def __len__(self) -> int:
        return len(self.case_index)

    def take(self, rows: Integers) -> "LaunchTable":
        """These ``rows``, in this order."""
        members = self.ranks.places(rows)
        columns = {name: getattr(self, name)[members if name in OF_MEMBERS else rows] for name in COLUMNS}
        return LaunchTable(ranks=self.ranks.take(rows), **columns)


OF_MEMBERS: Final = frozenset({"own_ns", "own_share", "late"})
"""Columns with one entry per rank of a group."""
_TYPES: Final[Mapping[Any, tuple[npt.DTypeLike, float | str]]] = {
    Floats: (np.float64, np.nan),
    Integers: (np.int64, 0),
    Flags: (np.bool_, False),
    Texts: (np.object_, ""),
}
COLUMNS: Final = {field.name: _TYPES[field.type] for field in fields(LaunchTable) if field.name != "ranks"}
"""The numpy type of each column, and the value of an unknown number."""


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
    cases = {case: place for place, case in enumerate(stored.run.cases)}
    measured = by_key((cases[row.case], row) for row in stored.rows if isinstance(row, Measurement))
    printed = by_key((cases[row.case], row) for row in stored.rows if isinstance(row, Imported))
    tables = [_of_blocks(index, blocks) for index, blocks in measured.items()]
    for case, windows in by_key((row.case, row) for row in stored.windows).items():
        _put_windows(tables, cases[case], windows)
    return joined([*tables, *(_of_log(index, rows) for index, rows in printed.items())])


def _put_windows(tables: Iterable[LaunchTable], case: int, windows: Sequence[Window]) -> None:
    """Replace the times of a case by those of all its samples, in launches in which it has one group of ranks.

    A launch of a resumed run may have no stored block of the case: its windows count with the nearest one that has.
    """
    for table in tables:
        places = np.flatnonzero(table.case_index == case)
        if not len(places):
            continue
        launches = table.launch[places]
        of_launches = by_key((int(launches[abs(launches - window.launch).argmin()]), window) for window in windows)
        for place in places.tolist():
            of_launch = of_launches.get(int(table.launch[place]), ())
            if not of_launch or np.count_nonzero(table.launch[places] == table.launch[place]) > 1:
                continue
            for name, value in statistics_of(of_launch).items():
                if name not in {"low_ns", "high_ns"} or len(places) == 1:
                    getattr(table, name)[place] = value


def _of_log(case: int, rows: Sequence[Imported]) -> LaunchTable:
    """One row per group and table of a log: the median of the numbers that the table has for it."""
    launches = [
        members
        for group in grouped(rows, lambda row: row.ranks).values()
        for members in grouped(group, lambda row: row.launch).values()
    ]
    first = [members[0] for members in launches]
    times = _floats(median(row.time_ns for row in members) for members in launches)
    low, high = np.asarray([_tails(members) for members in launches]).T
    names = [dict.fromkeys(row.statistic or "unknown" for row in members) for members in launches]
    return _filled(
        Ragged.of_rows([row.ranks for row in first]),
        case_index=np.full(len(first), case),
        launch=_integers(row.launch for row in first),
        bus_factor=_floats(row.bus_factor for row in first),
        wire_bytes=_floats(row.wire_bytes for row in first),
        traffic_factor=np.ones(len(first)),
        median_ns=times,
        mean_ns=times,
        p5_ns=low,
        p95_ns=high,
        samples=_integers(sum(len(row.samples_ns) for row in members) for members in launches),
        statistic=np.asarray([" and ".join(texts) for texts in names], dtype=object),
    )


def _tails(rows: Sequence[Imported]) -> Floats:
    """The 5th and 95th percentile; NaN unless all rows have samples."""
    if not all(row.samples_ns for row in rows):
        return np.full(2, np.nan)
    return np.asarray(np.median([np.quantile(row.samples_ns, (0.05, 0.95)) for row in rows], axis=0))


def _floats(numbers: Iterable[float | None]) -> Floats:
    return np.asarray(list(numbers), dtype=np.float64)  # None becomes NaN


def _integers(numbers: Iterable[int]) -> Integers:
    return np.fromiter(numbers, dtype=np.int64)


def _filled(ranks: Ragged, **columns: npt.NDArray[Any]) -> LaunchTable:
    """A table with these columns; the others are unknown, or 0 for counts."""
    empty: _Columns = {
        name: np.full(len(ranks.flat) if name in OF_MEMBERS else len(ranks), unknown, dtype)
        for name, (dtype, unknown) in COLUMNS.items()
    }
    empty["overlap"] = np.full((len(ranks), len(OVERLAP)), np.nan)
    return LaunchTable(ranks=ranks, **{**empty, **columns})


def _of_blocks(case: int, blocks: Sequence[Measurement]) -> LaunchTable:
    """The rows of a case from its ``blocks``. An entry is one group in one block."""
    parts = [columns_of(block) for block in blocks]
    ranks, lengths = Ragged.joined(part.ranks for part in parts), np.concatenate([part.length for part in parts])
    block = np.repeat(np.arange(len(parts)), [len(part.length) for part in parts])
    # The launches of a group are in the order of the blocks.
    seen = list(dict.fromkeys(row.launch for row in blocks))
    group, launch = numbered(ranks), _integers(seen.index(row.launch) for row in blocks)[block]
    order = np.lexsort((launch, group))
    is_first = (np.diff(group[order], prepend=-1) != 0) | (np.diff(launch[order], prepend=-1) != 0)
    row = np.empty_like(order)
    row[order] = np.cumsum(is_first) - 1
    rows = Ragged.of(order, np.bincount(row))
    first = order[is_first]
    factors = np.concatenate([part.factors for part in parts])[first]
    lost = np.concatenate([part.disturbed for part in parts])
    calls = _integers(measured.calls for measured in blocks)
    error = _floats(measured.clock_error_ns or 0 for measured in blocks) / calls
    recorded = np.asarray([len(part.last_place) == len(part.slowest) for part in parts])
    each = Ragged.of(np.arange(len(order)), np.ones_like(order))
    of_entries = _statistics([_samples(parts, "slowest")], each, lengths, _of_entry)
    return _filled(
        ranks.take(first),
        case_index=np.full(len(first), case),
        launch=np.asarray(seen)[launch[first]],
        bus_factor=factors[:, 0],
        wire_bytes=factors[:, 1],
        traffic_factor=factors[:, 2],
        samples=np.bincount(row, lengths).astype(np.int64),
        disturbed=np.bincount(row, lost[:, 0]).astype(np.int64),
        missed=np.bincount(row, lost[:, 1]).astype(np.int64),
        effective=np.bincount(row, lengths / of_entries["tau"]),
        blocks=rows.lengths,
        drifting=np.bincount(row, of_entries["drift"]).astype(np.int64),
        clock_error_ns=np.maximum.reduceat(error[block[order]], rows.starts[:-1]),
        entries=np.logical_and.reduceat(recorded[block[order]], rows.starts[:-1]),
        **_of_samples(parts, calls[block], rows, lengths, group[first]),
        **_of_members(parts, ranks, rows, of_entries["middle"], calls[block]),
    )


def _samples(parts: Sequence[BlockColumns], name: str) -> npt.NDArray[Any]:
    """One number per sample, as recorded; NaN where a block did not record it."""
    columns = [getattr(part, name) for part in parts]
    return np.concatenate(
        [
            column if len(column) else np.full(len(part.slowest), np.nan)
            for column, part in zip(columns, parts, strict=True)
        ]
    )


def _statistics(
    samples: Sequence[npt.NDArray[Any]],
    rows: Ragged,
    lengths: Integers,
    of: Callable[[Floats], Mapping[str, npt.NDArray[Any]]],
    calls: Integers | None = None,
) -> _Columns:
    """The statistics ``of`` the samples of every row; ``of`` gets rows with equally many (n × samples).

    samples: those of all entries, one after the other; several columns are added. They become floating-point numbers
        batch by batch, because there may be tens of millions.
    rows, lengths: the entries of every row, and the number of samples of every entry
    calls: calls per sample of every entry, by which they are divided (None: as recorded)
    """
    begins = np.cumsum(lengths) - lengths
    total = np.add.reduceat(lengths[rows.flat], rows.starts[:-1])
    parts = []
    for batch in _batches(total):
        entries = rows.flat[rows.places(batch)]
        at = spans(begins[entries], lengths[entries])
        divisors = 1 if calls is None else np.repeat(calls[entries], lengths[entries])
        numbers = sum((column[at] / divisors for column in samples[1:]), start=samples[0][at] / divisors)
        parts.append((batch, of(numbers.reshape(len(batch), -1, *numbers.shape[1:]))))
    order = np.argsort(np.concatenate([batch for batch, _ in parts]))
    return {name: np.concatenate([columns[name] for _, columns in parts])[order] for name in parts[0][1]}


def _batches(lengths: Integers) -> Iterator[Integers]:
    """Indices of items with equal ``lengths``, in batches of at most ``_AT_A_TIME`` samples."""
    order = np.argsort(lengths, kind="stable")
    for alike in np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1):
        step = max(1, _AT_A_TIME // max(1, int(lengths[alike[0]])))
        yield from (alike[first : first + step] for first in range(0, len(alike), step))


def _of_entry(slowest: Floats) -> _Columns:
    """Of one block: autocorrelation time, drift, and median of the slowest rank (ns per sample)."""
    tau = autocorrelation_times(slowest)
    return {"tau": tau, "drift": all_drifts(slowest, tau), "middle": medians_of(slowest)}


def _of_slowest(slowest: Floats) -> _Columns:
    ordered = np.sort(slowest, axis=1)
    middle = np.median(ordered, axis=1)
    p5, p95, p99 = np.quantile(ordered, (0.05, 0.95, 0.99), axis=1)
    fast, slow, share = all_modes(slowest).T
    is_slow = slowest > np.maximum(SLOW_TIMES_MEDIAN * middle, SLOW_LEAST_NS)[:, np.newaxis]
    return {
        "median_ns": middle,
        "mean_ns": slowest.mean(axis=1),
        "p5_ns": p5,
        "p95_ns": p95,
        "p99_ns": p99,
        "outliers": all_outliers(slowest),
        "slow": is_slow.sum(axis=1),
        "slow_ns": np.where(is_slow, slowest, 0.0).sum(axis=1),
        "total_ns": slowest.sum(axis=1),
        "fast_mode_ns": fast,
        "slow_mode_ns": slow,
        "slow_mode_share": share,
    }


def _within(slowest: Floats) -> _Columns:
    low, high = median_intervals(slowest, autocorrelation_times(slowest))
    return {"low_ns": low, "high_ns": high}


def _of_samples(
    parts: Sequence[BlockColumns], calls: Integers, rows: Ragged, lengths: Integers, group: Integers
) -> _Columns:
    """The statistics of the samples of every row; ``calls``: of every entry; ``group``: the number of a row's group."""
    slowest, fastest = [_samples(parts, "slowest")], [_samples(parts, "fastest")]
    columns = _statistics(slowest, rows, lengths, _of_slowest, calls)
    columns |= _statistics(fastest, rows, lengths, lambda samples: {"fastest_ns": medians_of(samples)}, calls)
    if any(len(part.skew) or len(part.span) for part in parts):
        skew, span = _samples(parts, "skew"), _samples(parts, "span")
        columns |= _statistics([skew], rows, lengths, lambda samples: {"skew_ns": medians_of(samples)}, calls)
        # ``span`` is from the last entry to the last exit.
        columns |= _statistics([skew, span], rows, lengths, lambda samples: {"span_ns": medians_of(samples)}, calls)
    if any(part.overlap.size for part in parts):
        overlap = np.concatenate([_overlap(part) for part in parts])
        columns |= _statistics([overlap], rows, lengths, lambda samples: {"overlap": np.median(samples, axis=1)})
    alone = np.flatnonzero(np.bincount(group)[group] == 1)
    if len(alone):
        for name, values in _statistics(slowest, rows.take(alone), lengths, _within, calls).items():
            columns[name] = np.full(len(rows), np.nan)
            columns[name][alone] = values
    return columns


def _overlap(part: BlockColumns) -> Floats:
    """The parts of an overlapped call, samples × ``OVERLAP``. Each computation is divided by the time alone in its own
    block, because every block has its own amount of computation.
    """
    if not part.overlap.size:
        return np.full((len(part.slowest), len(OVERLAP)), np.nan)
    return np.column_stack([part.overlap, part.overlap[:, 2] / part.overlap[:, 5]])


def _of_members(
    parts: Sequence[BlockColumns], ranks: Ragged, rows: Ragged, middle: Floats, calls: Integers
) -> _Columns:
    """The columns ``OF_MEMBERS``.

    ranks, middle, calls: of every entry: its ranks, median of the slowest rank (ns per sample) and calls per sample
    """
    own = np.concatenate([part.middles for part in parts]).astype(np.float64)
    late = np.concatenate([_arrivals(part) for part in parts])
    values = {"own_ns": own / np.repeat(calls, ranks.lengths), "own_share": own / np.repeat(middle, ranks.lengths)}
    of_rows = ranks.take(rows.flat[rows.starts[:-1]])
    columns: _Columns = {name: np.empty(len(of_rows.flat)) for name in values}
    columns["late"] = np.empty(len(of_rows.flat), dtype=np.int64)
    shape = np.stack([rows.lengths, of_rows.lengths], axis=1)
    for blocks, size in np.unique(shape, axis=0).tolist():
        alike = np.flatnonzero((shape == (blocks, size)).all(axis=1))
        at = ranks.places(rows.flat[rows.places(alike)]).reshape(len(alike), blocks, size)
        to = of_rows.places(alike)
        for name, column in values.items():
            columns[name][to] = np.median(column[at], axis=1).ravel()
        columns["late"][to] = late[at].sum(axis=1).ravel()
    return columns


def _arrivals(part: BlockColumns) -> Integers:
    """In how many samples each rank of every group entered last, or was the fastest if entries are not recorded."""
    places = part.last_place if len(part.last_place) else part.fastest_place
    return np.bincount(np.repeat(part.ranks.starts[:-1], part.length) + places, minlength=len(part.ranks.flat))


# --- features of a distribution that a median and its interval do not show -------------------------------------------


@dataclass(frozen=True, slots=True)
class Modes:
    """Two modes of one distribution: their centres (ns per call) and the share of samples in the slower mode."""

    fast_ns: float
    slow_ns: float
    slow_share: float


def all_modes(samples: Floats) -> Floats:
    """The two modes of the positive samples of every row (n × samples): the fields of ``Modes`` (n × 3), NaN for a
    unimodal row.

    The sorted logarithms are split where the variance within the two sides is lowest (Otsu 1979). The result is two
    modes if each side holds 20–80 % of the samples, the centres differ by a factor of at least 2, and Ashman's D =
    √2·|m₁ − m₂| / √(s₁² + s₂²) is above 4. For comparison, a normal distribution split at its median has D = 2.65, a
    uniform one 3.46.
    """
    count = samples.shape[-1]
    modes = np.full((len(samples), 3), np.nan)
    sizes = np.arange(1, count)
    allowed = (sizes >= _MODE_LEAST_SHARE * count) & (sizes <= (1 - _MODE_LEAST_SHARE) * count)
    if not allowed.any() or count < 10:
        return modes
    logs = np.log(np.sort(samples, axis=1))
    sums, squares = np.cumsum(logs, axis=1), np.cumsum(logs**2, axis=1)
    within = squares[:, -1:] - sums[:, :-1] ** 2 / sizes - (sums[:, -1:] - sums[:, :-1]) ** 2 / (count - sizes)
    cuts = np.argmin(np.where(allowed, within, np.inf), axis=1) + 1
    for cut in np.unique(cuts):
        rows = np.flatnonzero(cuts == cut)
        low, high = logs[rows, :cut], logs[rows, cut:]
        fast, slow = np.median(low, axis=1), np.median(high, axis=1)
        distance, width = slow - fast, np.hypot(low.std(axis=1), high.std(axis=1))
        two = (distance >= np.log(2)) & (np.sqrt(2) * distance > 4 * width)
        modes[rows[two]] = np.column_stack([np.exp(fast), np.exp(slow), np.full(len(rows), (count - cut) / count)])[two]
    return modes


def all_outliers(samples: Floats) -> npt.NDArray[np.int64]:
    """The number of samples of every row (… × samples → …) outside Tukey's outer fences: more than 3 interquartile
    ranges beyond the quartiles.
    """
    low, high = np.quantile(np.sort(samples, axis=-1), (0.25, 0.75), axis=-1, keepdims=True)  # faster if sorted
    reach = 3 * (high - low)
    return np.asarray(((samples < low - reach) | (samples > high + reach)).sum(axis=-1))


def all_drifts(samples: Floats, tau: Floats) -> npt.NDArray[np.bool_]:
    """Whether the medians of the first and last third of a block differ by more than the width of its interval, for
    every block: n × samples → n.

    The interval uses the effective sample size, given the autocorrelation time ``tau`` in samples.
    """
    third = samples.shape[1] // 3
    if third == 0:
        return np.zeros(len(samples), dtype=np.bool_)
    low, high = median_intervals(samples, tau)
    change = np.abs(medians_of(samples[:, :third]) - medians_of(samples[:, -third:]))
    return np.asarray(change > high - low)  # False without an interval, because comparing with NaN is False


def median_intervals(samples: Floats, tau: Floats) -> tuple[Floats, Floats]:
    """The ends of ``statistics.median_interval`` of every row; NaN if there is no interval."""
    count = samples.shape[1]
    ordered = np.sort(samples, axis=1)
    effective = np.maximum(1, (count / np.maximum(tau, 1.0)).astype(np.int64))
    low, high = np.full(len(samples), np.nan), np.full(len(samples), np.nan)
    for free in np.unique(effective):
        mine = effective == free
        # For the values 0, 1, 2 …, the ends are the indices.
        ends = median_interval(np.arange(count), tau=float(tau[mine][0]))
        if ends.low is not None and ends.high is not None:
            low[mine], high[mine] = ordered[mine, int(ends.low)], ordered[mine, int(ends.high)]
    return low, high
