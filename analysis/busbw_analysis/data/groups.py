"""The summary of every case on every group of ranks: time, interval, spread, skew and one view per rank.

The statistic of record is the median of the slowest rank's times within a launch. Everything across launches is
computed over launch medians, because the launch is the experimental unit. All times here are ns per call.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, overload

import numpy as np

from busbw.runs.records import Case
from busbw_analysis.data.intervals import (
    LAUNCHES_FOR_AN_INTERVAL,
    Floats,
    Interval,
    Resampled,
    ends_over_launches,
    interval_of,
    resampled,
)
from busbw_analysis.data.launches import Flags, LaunchTable, Modes, joined
from busbw_analysis.data.names import rank_list
from busbw_analysis.data.ragged import Integers, Ragged, numbered

CLOCK_ERROR_SHARE: Final = 0.05
"""Clocks that may differ by more than this share of a call's time cannot order the arrivals at the call."""


_BALANCED: Final = (0.5, 2.0)
"""Range of computation alone over call alone in which the two count as about equal."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """The overlap of communication with computation in one group, as OSU defines it for non-blocking collectives: the
    time saved by running call and computation together instead of one after the other, as a share of the time of the
    call alone. Time spent computing does not count as communication, even if the two slow each other down; that
    slowdown is reported separately. Times are ns per call: medians over launches of launch medians of the slowest rank.

    share: max(0, 1 − exposed / pure), median over launches: 1 if posting and waiting add nothing to the computation,
        0 if they cost as much as the call alone
    low, high: 95 % interval of ``share`` if there are enough launches, else their range; None for a single launch
    pure_ns: the call alone
    post_ns, wait_ns: posting the call, and waiting for it after the computation
    exposed_ns: the part of the call that the computation does not hide
    compute_alone_ns: the computation alone
    slowdown: computation during the call over the same computation alone. Each sample is divided by the time alone in
        its own block, because every block has its own amount of computation.
    slowdown_low, slowdown_high: interval of ``slowdown``, of the same kind as ``low`` and ``high``
    balance: computation alone over call alone, in the launch where they differ most; 1 is ideal
    """

    share: float
    low: float | None
    high: float | None
    pure_ns: float
    post_ns: float
    wait_ns: float
    exposed_ns: float
    compute_alone_ns: float
    slowdown: float
    slowdown_low: float | None
    slowdown_high: float | None
    balance: float

    @property
    def unbalanced(self) -> bool:
        """Whether in some launch computation and call differed too much in length."""
        return not _BALANCED[0] <= self.balance <= _BALANCED[1]


def overlap_of(launches: Floats) -> Overlap | None:
    """The overlap of one group of ranks from launches × ``launches.OVERLAP``; None unless all launches have one."""
    if np.isnan(launches).any():
        return None
    pure, post, _, wait, exposed, alone, slowed = launches.T
    hidden = np.maximum(0.0, 1.0 - exposed / pure)
    share, slowdown = interval_of(hidden), interval_of(slowed)
    return Overlap(
        share=float(np.median(hidden)),
        low=share.low_ns,
        high=share.high_ns,
        pure_ns=float(np.median(pure)),
        post_ns=float(np.median(post)),
        wait_ns=float(np.median(wait)),
        exposed_ns=float(np.median(exposed)),
        compute_alone_ns=float(np.median(alone)),
        slowdown=float(np.median(slowed)),
        slowdown_low=slowdown.low_ns,
        slowdown_high=slowdown.high_ns,
        balance=max((alone / pure).tolist(), key=lambda ratio: max(ratio, 1 / ratio)),
    )


@dataclass(frozen=True, slots=True)
class RankView:
    """The results of one rank.

    median_ns: median over launches of this rank's median time, ns per call
    own_share: the same over the slowest rank's median
    late_count: number of samples in which this rank entered last. If ``GroupSummary.entry_known`` is false: in which it
        had the shortest time. That usually means the same for a synchronising op, and nothing for any other.
    samples: number of samples counted
    """

    rank: int
    median_ns: float
    own_share: float
    late_count: int
    samples: int


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """One case on one group of ranks. Times are ns per call, rates B/s, shares fractions from 0 to 1.

    case, size_bytes: index of the case, and its size
    ranks: the ranks
    time_ns: median over launches of the launch medians of the slowest rank's time
    interval: uncertainty of ``time_ns``
    algbw, busbw, bus_factor: None for an op without them, such as busbw if nothing crosses a wire
    wire_bytes: bytes that all ranks together must send per call with the best algorithm
    launch_medians_ns, launch_means_ns, launch_keys: one entry per launch, in order; a key is run and launch
    traffic_factor: how many times ``wire_bytes`` the backend is known to move
    fastest_ns: ``time_ns`` of the fastest rank; for a synchronising op, the cost without arrival skew
    p5_ns, p95_ns: medians over launches of these quantiles
    spread: (p95 − p5) / 2 over the median of a launch; median over launches
    skew_share: median arrival skew over median time of a launch; median over launches
    span_ns: median time from first entry to last exit. This and the skew are None without a shared clock, and if
        ``clock_error_ns`` is above 5 % of the time.
    launch_p99_ns: as ``launch_medians_ns``; empty for the log of another tool
    samples, tau: number of samples, and the same over those without autocorrelation
    outlier_share: share of samples outside Tukey's outer fences
    slow_time_share: share of the time of samples above max(5 × median of their launch, 1 ms)
    modes: the two modes, if at least half of the launches are bimodal
    drift: whether most blocks drift
    entry_known: whether a shared clock recorded in every sample which rank entered last
    clock_error_ns: largest difference between the clocks of two ranks, per call
    overlap: only in mode ``overlap``
    statistic: what ``time_ns`` is in the log of another tool; None for busbw's own runs
    place: all groups of the case, and the position of this one

    Logs of other tools mostly contain no samples. Instead of launch medians, there is one number for each table of the
    log that contains the case.
    """

    case: int
    size_bytes: int
    ranks: tuple[int, ...]
    time_ns: float
    interval: Interval
    algbw: float | None
    busbw: float | None
    bus_factor: float | None
    wire_bytes: float
    launch_medians_ns: tuple[float, ...]
    launch_means_ns: tuple[float, ...]
    launch_keys: tuple[tuple[int, int], ...]
    traffic_factor: float = 1.0
    fastest_ns: float | None = None
    p5_ns: float | None = None
    p95_ns: float | None = None
    spread: float | None = None
    skew_share: float | None = None
    span_ns: float | None = None
    launch_p99_ns: tuple[float, ...] = ()
    samples: int = 0
    tau: float = 1.0
    outlier_share: float = 0.0
    slow_time_share: float = 0.0
    modes: Modes | None = None
    drift: bool = False
    entry_known: bool = False
    clock_error_ns: float = 0.0
    overlap: Overlap | None = None
    statistic: str | None = None
    place: tuple["Groups", int] | None = field(default=None, repr=False, compare=False)

    @property
    def label(self) -> str:
        """The ranks as text."""
        return rank_list(self.ranks)

    @property
    def ends(self) -> tuple[float, float]:
        """Both ends of the interval, in ns; the median twice if there is no interval."""
        low, high = self.interval.low_ns, self.interval.high_ns
        return (self.time_ns, self.time_ns) if low is None or high is None else (low, high)

    @property
    def views(self) -> tuple[RankView, ...]:
        """The results of every rank; empty for the log of another tool."""
        if self.place is None or self.statistic is not None:
            return ()
        groups, place = self.place
        return groups.views_of(place)

    @property
    def launches(self) -> int:
        """The number of launches that measured it."""
        return len(self.launch_medians_ns)

    @property
    def mean(self) -> Resampled | None:
        """The mean over launches of the launch means, with its bootstrap interval; None for the log of another tool."""
        return _over_launches(self.launch_means_ns) if self.launch_p99_ns else None

    @property
    def p99(self) -> Resampled | None:
        """The mean over launches of the 99th percentile, with its bootstrap interval, as ``mean``."""
        return _over_launches(self.launch_p99_ns) if self.launch_p99_ns else None


def _over_launches(numbers: Sequence[float]) -> Resampled:
    if len(numbers) < LAUNCHES_FOR_AN_INTERVAL:
        return Resampled(float(np.mean(numbers)), None, None, len(numbers))
    return resampled(numbers)


@dataclass(frozen=True, slots=True, eq=False)
class Groups(Sequence[GroupSummary]):
    """All groups of ranks of one case, such as the pairs of a matrix.

    Numbers that are needed of all groups are columns, named as in ``GroupSummary``; a summary is made on access.
    Unknown numbers are NaN.

    case_index, case: of all groups
    rows: one row per group and launch
    run: the index of the run of every row
    first, launches: first row and number of rows of every group
    ranks: the ranks of every group
    """

    case_index: int
    case: Case
    rows: LaunchTable
    run: Integers
    first: Integers
    launches: Integers
    ranks: Ragged
    launch_medians_ns: Floats
    time_ns: Floats
    low_ns: Floats
    high_ns: Floats
    clock_error_ns: Floats
    skew_share: Floats
    samples: Integers
    tau: Floats
    outlier_share: Floats
    slow_time_share: Floats
    slow_over_fast: Floats
    drift: Flags
    traffic_factor: Floats

    def __len__(self) -> int:
        return len(self.first)

    @overload
    def __getitem__(self, index: int) -> GroupSummary: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[GroupSummary, ...]: ...
    def __getitem__(self, index: int | slice) -> GroupSummary | tuple[GroupSummary, ...]:
        if isinstance(index, slice):
            return tuple(self._summary(place) for place in range(len(self))[index])
        return self._summary(range(len(self))[index])

    @property
    def pairs(self) -> Integers:
        """Sender and receiver of every group of two ranks (groups × 2)."""
        return self.ranks.flat.reshape(-1, 2)

    @property
    def members(self) -> tuple[int, ...]:
        """All ranks of the groups, ascending."""
        return tuple(np.unique(self.ranks.flat).tolist())

    @property
    def bimodal(self) -> Flags:
        """Which groups have two modes."""
        return self.slow_over_fast > 0

    @property
    def launch_keys(self) -> list[tuple[tuple[int, int], ...]]:
        """The launches of every group: run and number."""
        keys = self.keys
        ends = self.first + self.launches
        return [tuple(keys[begin:end]) for begin, end in zip(self.first.tolist(), ends.tolist(), strict=True)]

    @property
    def keys(self) -> list[tuple[int, int]]:
        """Run and number of the launch of every row."""
        return list(zip(self.run.tolist(), self.rows.launch.tolist(), strict=True))

    @property
    def statistics(self) -> tuple[str, ...]:
        """What the numbers are in the logs of other tools; empty for busbw's own runs."""
        return tuple(dict.fromkeys(name for name in self.rows.statistic.tolist() if name))

    def _summary(self, group: int) -> GroupSummary:
        rows, first = self.rows, int(self.first[group])
        mine = slice(first, first + int(self.launches[group]))
        printed = rows.statistic[first] != ""
        time_ns, case = float(self.time_ns[group]), self.case
        rate = case.size_bytes / time_ns * 1e9 if case.has_rate else None
        bus_factor = _known(rows.bus_factor[first])
        p5, middle, p95 = rows.p5_ns[mine], rows.median_ns[mine], rows.p95_ns[mine]
        columns = (rows.fastest_ns[mine], p5, p95, (p95 - p5) / 2 / middle, rows.span_ns[mine])
        fastest_ns, p5_ns, p95_ns, spread, span_ns = map(_known, np.median(columns, axis=1))
        clock_serves = bool(self.clock_error_ns[group] <= CLOCK_ERROR_SHARE * time_ns)
        modes = (np.nanmedian(column[mine]) for column in (rows.fast_mode_ns, rows.slow_mode_ns, rows.slow_mode_share))
        return GroupSummary(
            case=self.case_index,
            size_bytes=case.size_bytes,
            ranks=self.ranks.row(group),
            **{name: _known(getattr(self, name)[group]) for name in _COLUMNS},
            fastest_ns=fastest_ns,
            p5_ns=p5_ns,
            p95_ns=p95_ns,
            interval=self._interval(group, printed=printed),
            algbw=rate,
            busbw=None if rate is None or bus_factor is None else rate * bus_factor,
            bus_factor=bus_factor,
            wire_bytes=float(rows.wire_bytes[first]),
            launch_medians_ns=tuple(middle.tolist()),
            launch_means_ns=tuple(rows.mean_ns[mine].tolist()),
            launch_p99_ns=() if printed else tuple(rows.p99_ns[mine].tolist()),
            launch_keys=tuple(zip(self.run[mine].tolist(), rows.launch[mine].tolist(), strict=True)),
            spread=spread,
            span_ns=span_ns if clock_serves else None,
            modes=Modes(*map(float, modes)) if self.slow_over_fast[group] > 0 else None,
            entry_known=clock_serves and bool(rows.entries[mine].all()),
            overlap=overlap_of(rows.overlap[mine]),
            statistic=" and ".join(dict.fromkeys(rows.statistic[mine])) if printed else None,
            place=(self, group),
        )

    def _interval(self, group: int, *, printed: bool) -> Interval:
        low, high = _known(self.low_ns[group]), _known(self.high_ns[group])
        if low is None or high is None:
            return Interval(None, None, "none")
        launches = int(self.launches[group])
        if printed:
            return Interval(low, high, "range of the tables of a log")
        if launches == 1:
            return Interval(low, high, "95 % within this launch")
        enough = launches >= LAUNCHES_FOR_AN_INTERVAL
        return Interval(low, high, "95 % over launches" if enough else "range of launch medians")

    def views_of(self, group: int) -> tuple[RankView, ...]:
        """The results of every rank of a group."""
        ranks = self.ranks.row(group)
        first, launches = int(self.first[group]), int(self.launches[group])
        starts = self.rows.ranks.starts
        each = slice(int(starts[first]), int(starts[first + launches]))
        own, share, late = (
            column[each].reshape(launches, len(ranks))
            for column in (self.rows.own_ns, self.rows.own_share, self.rows.late)
        )
        columns = (np.median(own, axis=0).tolist(), np.median(share, axis=0).tolist(), late.sum(axis=0).tolist())
        samples = int(self.samples[group])
        return tuple(RankView(*values, samples) for values in zip(ranks, *columns, strict=True))


_COLUMNS: Final = {field.name for field in fields(GroupSummary)} & {
    field.name for field in fields(Groups) if field.type in {Floats, Integers, Flags}
} - {"launch_medians_ns"}
"""Columns of ``Groups`` with one number per group."""


def _known(number: Any) -> Any:  # noqa: ANN401 - a number of numpy as one of Python
    return None if np.isnan(number) else number.item()


def groups_of(index: int, case: Case, tables: Sequence[tuple[int, LaunchTable]]) -> Groups:
    """The groups of ``case``, whose index is ``index``, in order of first appearance.

    tables: its rows, with the index of their run
    """
    rows = joined([table for _, table in tables])
    run = np.repeat([run for run, _ in tables], [len(table) for _, table in tables]).astype(np.int64)
    group = numbered(rows.ranks)
    if len(tables) > 1:
        order = np.argsort(group, kind="stable")
        rows, run, group = rows.take(order), run[order], group[order]
    launches = np.bincount(group)
    first = np.cumsum(launches) - launches
    medians = _by_group(rows.median_ns, launches)
    time_ns, low, high = _medians_and_ends(medians, launches).T
    printed = rows.statistic[first] != ""
    if printed.any():
        low[printed], high[printed] = np.nanmin(medians, axis=1)[printed], np.nanmax(medians, axis=1)[printed]
    single = launches == 1
    low[single], high[single] = rows.low_ns[first[single]], rows.high_ns[first[single]]
    samples, effective, total_ns, outliers, slow_ns, drifting, blocks = (
        np.bincount(group, column, len(first))
        for column in (
            *(rows.samples, rows.effective, rows.total_ns, rows.outliers, rows.slow_ns, rows.drifting, rows.blocks),
        )
    )
    error = np.zeros(len(first))
    np.maximum.at(error, group, np.nan_to_num(rows.clock_error_ns))
    skew, _, _ = _medians_and_ends(_by_group(rows.skew_ns / rows.median_ns, launches), launches).T
    with np.errstate(invalid="ignore"):  # the log of another tool has no samples
        tau, outlier_share, slow_time_share = samples / effective, outliers / samples, slow_ns / total_ns
    return Groups(
        case_index=index,
        case=case,
        rows=rows,
        run=run,
        first=first,
        launches=launches,
        ranks=rows.ranks.take(first),
        launch_medians_ns=medians,
        time_ns=time_ns,
        low_ns=low,
        high_ns=high,
        clock_error_ns=error,
        skew_share=np.where(error <= CLOCK_ERROR_SHARE * time_ns, skew, np.nan),
        samples=samples.astype(np.int64),
        tau=np.where(printed, 1.0, tau),
        outlier_share=np.where(printed, 0.0, outlier_share),
        slow_time_share=np.where(printed, 0.0, slow_time_share),
        slow_over_fast=_mode_ratio(rows, launches),
        drift=2 * drifting > blocks,
        traffic_factor=rows.traffic_factor[first],
    )


def _by_group(values: Floats, launches: Integers) -> Floats:
    """Reshape one number per group and launch to groups × launches; NaN after the last launch of a group."""
    most = int(launches.max(initial=1))
    if (launches == most).all():
        return values.reshape(len(launches), most)
    places = np.minimum((np.cumsum(launches) - launches)[:, np.newaxis] + np.arange(most), len(values) - 1)
    return np.asarray(np.where(np.arange(most) < launches[:, np.newaxis], values[places], np.nan))


def _medians_and_ends(values: Floats, launches: Integers) -> Floats:
    """Median, and the ends of its interval, of the numbers of every group (groups × launches → groups × 3). NaN if any
    launch has NaN.
    """
    ends = np.empty((len(values), 3))
    for count in np.unique(launches).tolist():
        mine = launches == count
        numbers = values[mine, :count]
        ends[mine] = np.stack([np.median(numbers, axis=1), *ends_over_launches(numbers)], axis=1)
    return ends


def _mode_ratio(rows: LaunchTable, launches: Integers) -> Floats:
    """Slow mode over fast mode of groups of which at least half of the launches are bimodal; else 0. Launches with one
    mode each at different times are not bimodal: they differ from each other.
    """
    fast, slow = _by_group(rows.fast_mode_ns, launches), _by_group(rows.slow_mode_ns, launches)
    ratios = np.zeros(len(fast))
    two = 2 * (~np.isnan(fast)).sum(axis=1) >= launches
    if two.any():
        ratios[two] = np.nanmedian(slow[two], axis=1) / np.nanmedian(fast[two], axis=1)
    return ratios
