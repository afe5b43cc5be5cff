"""What was measured, in numbers: per case and group the headline, its interval, spread, skew and the view of each rank.

The statistic of record is the median over the slowest rank's times within a launch; everything across launches is
computed over launch medians, because the launch is the experimental unit. All times here are ns per call.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from statistics import median
from typing import Literal, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from busbw.ops import LOCAL, PAIRED
from busbw.runs.records import Case, Check, Imported, LoopKind, Measurement
from busbw.statistics import autocorrelation_time, median_interval, spread
from busbw_analysis.data.disturbance import Disturbance, disturbance_of
from busbw_analysis.data.intervals import Resampled, cluster_bootstrap, median_over_launches
from busbw_analysis.data.load import Block, CaseRow, CaseState, Dataset, rank_list
from busbw_analysis.data.overlap import Overlap, overlap_of
from busbw_analysis.data.pair_columns import PairBlock
from busbw_analysis.data.pair_numbers import (
    CLOCK_ERROR_SHARE,
    SLOW_LEAST_NS,
    SLOW_TIMES_MEDIAN,
    PairNumbers,
    numbers_of,
)
from busbw_analysis.data.rank_views import RankView, views_of
from busbw_analysis.data.shape import Modes, common_modes, drifts, find_modes, outliers

Floats = npt.NDArray[np.float64]
IntervalKind = Literal[
    "95 % over launches", "range of launch medians", "95 % within this launch", "range of the tables of a log", "none"
]
Flag = Literal[
    "bimodal",
    "outlier mode",
    "skew>10%",
    "drift",
    "autocorrelated",
    "outliers",
    "oversubscribed",
    "disturbed",
    "unbalanced",
    "clock error",
    "excess traffic",
    "not converged",
    "not checked",
]

LAUNCHES_FOR_AN_INTERVAL = 6
"""Below it the order-statistic interval of a median does not exist at 95 % (5 values cover 93.75 %)."""

_SKEW_WORTH_A_FLAG = 0.1
_SLOW_TIME_SHARE_WORTH_A_FLAG = 0.1
_TAU_WORTH_A_FLAG = 5.0
_OUTLIERS_WORTH_A_FLAG = 0.05


@dataclass(frozen=True, slots=True)
class Interval:
    """How sure the headline is, in ns per call. ``kind`` says what the two ends are; both are None for ``none``."""

    low_ns: float | None
    high_ns: float | None
    kind: IntervalKind


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """One case on one group of ranks. Times are ns per call, rates B/s.

    ``time_ns`` is the headline: the median over launches of the launch medians of the slowest rank's time.
    ``fastest_ns`` is the same for the fastest rank: for a synchronising op the cost without arrival skew. ``p5_ns`` and
    ``p95_ns`` are medians over launches of theirs. ``spread`` is the median over launches of half of p95 − p5 over the
    median, each of one launch; so is ``skew_share``, of median arrival skew over median time. ``span_ns`` is the median
    time from the first entry to the last exit; both are None without a shared clock. ``busbw`` is None where there is
    no wire. ``slow_share`` and ``slow_time_share`` are the samples above max(5 × median of their launch, 1 ms) and the
    time they took. ``modes`` are those of at least half of the launches.
    ``clock_error_ns`` is how far the clocks of two ranks may be apart; where that is more than 5 % of the time, there
    is no skew. ``launch_medians_ns`` are in the order of the launches. ``entry_known``: a shared clock told in every
    sample which rank entered last. ``overlap`` is there for the mode of that name.

    Of a number that another tool printed there are no samples. ``time_ns`` is what ``statistic`` says, and instead of
    launch medians there is one such number for each table of the log that has the case.
    """

    ranks: tuple[int, ...]
    label: str
    time_ns: float
    interval: Interval
    fastest_ns: float | None
    p5_ns: float | None
    p95_ns: float | None
    spread: float | None
    skew_share: float | None
    span_ns: float | None
    algbw: float | None
    busbw: float | None
    bus_factor: float | None
    wire_bytes: float
    moved_factor: float
    launch_medians_ns: tuple[float, ...]
    launch_means_ns: tuple[float, ...]
    launch_keys: tuple[tuple[int, int], ...]
    mean: Resampled | None
    p99: Resampled | None
    samples: int
    effective_samples: int
    tau: float
    outlier_share: float
    slow_share: float
    slow_time_share: float
    modes: Modes | None
    drift: bool
    views: tuple[RankView, ...]
    entry_known: bool
    clock_error_ns: float
    overlap: Overlap | None
    statistic: str | None = None

    @property
    def launches(self) -> int:
        """How many launches measured it."""
        return len(self.launch_medians_ns)


class PairGroups(Sequence[GroupSummary]):
    """The summaries of all pairs of a case: ``numbers`` has some of their numbers as columns; a whole one is made when
    it is asked for, which takes some 100 µs.
    """

    def __init__(self, case: Case, blocks: Sequence[tuple[int, PairBlock]]) -> None:
        self.numbers: PairNumbers = numbers_of(case, blocks, LAUNCHES_FOR_AN_INTERVAL)
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
        return _group(self._case, blocks[0].samples.ranks, blocks)


Groups: TypeAlias = tuple[GroupSummary, ...] | PairGroups


@dataclass(frozen=True, slots=True, eq=False)
class PairTimes:
    """Of every pair of an op of pairs, as columns: see ``PairNumbers``. ``keys[i]`` names the launches of pair i."""

    ranks: npt.NDArray[np.signedinteger]
    time_ns: Floats
    low_ns: Floats
    high_ns: Floats
    launches: npt.NDArray[np.signedinteger]
    launch_medians_ns: Floats
    has_modes: npt.NDArray[np.bool_]
    keys: Sequence[tuple[tuple[int, int], ...]]


def pair_times(groups: Groups) -> PairTimes:
    """The times of ``groups`` of two ranks each."""
    if isinstance(groups, PairGroups):
        found = groups.numbers
        alike = len(found.launch_keys) == 1
        return PairTimes(
            found.ranks,
            found.time_ns,
            found.low_ns,
            found.high_ns,
            found.launches,
            found.launch_medians_ns,
            found.slow_over_fast > 0,
            found.launch_keys * len(groups) if alike else found.launch_keys,
        )
    launches = np.asarray([group.launches for group in groups])
    medians = np.full((len(groups), max(launches, default=0)), np.nan)
    for row, group in zip(medians, groups, strict=True):
        row[: group.launches] = group.launch_medians_ns
    ends = [(group.interval.low_ns, group.interval.high_ns) for group in groups]
    low, high = np.asarray(ends, dtype=np.float64).reshape(-1, 2).T
    return PairTimes(
        pairs_of(groups),
        times_of(groups),
        low,
        high,
        launches,
        medians,
        np.asarray([group.modes is not None for group in groups]),
        [group.launch_keys for group in groups],
    )


def of_groups(groups: Groups, name: str) -> Floats:
    """What ``GroupSummary`` and ``PairNumbers`` call ``name``, of every group; NaN where there is no number."""
    if isinstance(groups, PairGroups):
        return np.asarray(getattr(groups.numbers, name), dtype=np.float64)
    return np.asarray([getattr(one, name) for one in groups], dtype=np.float64)


def times_of(groups: Groups) -> Floats:
    """The headline of every group, ns per call."""
    return of_groups(groups, "time_ns")


def fastest_of(groups: Groups) -> Sequence[GroupSummary]:
    """The groups that one with the highest busbw is among: of pairs, which move the same bytes, the fastest alone."""
    return (groups[int(np.argmin(times_of(groups)))],) if isinstance(groups, PairGroups) else groups


def pairs_of(groups: Groups) -> npt.NDArray[np.signedinteger]:
    """Sender and receiver of every group of an op of pairs (pairs × 2)."""
    if isinstance(groups, PairGroups):
        return groups.numbers.ranks
    return np.asarray([group.ranks for group in groups], dtype=np.int64).reshape(-1, 2)


def between_hosts(dataset: Dataset, groups: Groups) -> npt.NDArray[np.bool_]:
    """Which groups of an op of pairs have their ranks on two hosts."""
    hosts = {host: number for number, host in enumerate(dict.fromkeys(dataset.runs[0].run.hosts))}
    ends = np.asarray([hosts[host] for host in dataset.runs[0].run.hosts])[pairs_of(groups)]
    return np.asarray(ends[:, 0] != ends[:, 1])


def has_modes(groups: Groups) -> bool:
    """Whether a group has two modes."""
    if isinstance(groups, PairGroups):
        return bool((groups.numbers.slow_over_fast > 0).any())
    return any(group.modes is not None for group in groups)


def ranks_in(groups: Groups) -> tuple[int, ...]:
    """All ranks that have a part in one of ``groups``, in their order."""
    if isinstance(groups, PairGroups):
        return tuple(np.unique(groups.numbers.ranks).tolist())
    return tuple(sorted({rank for group in groups for rank in group.ranks}))


@dataclass(frozen=True, slots=True)
class Total:
    """All groups of a split together: rates add up (B/s), the time is that of the slowest group (ns per call)."""

    time_ns: float
    algbw: float | None
    busbw: float | None
    wire_bytes: float


@dataclass(frozen=True, slots=True)
class CaseSummary:
    """One case of the plan: what became of it and, where it was measured, one summary per group of ranks.

    ``groups`` is empty unless the case was measured and never failed by its own doing: wrong data are no fast result,
    and the launches that went well stay in the run folder. ``total`` is there for concurrent groups only (not for the
    pair matrix, whose pairs take turns). ``check`` is ``verified``, ``wrong (what)``, ``not checked (reason)``
    or, when the case failed for another reason, ``failed (reason)``. ``loops`` have made the calls. ``lost`` says which
    launches of a measured case failed by no doing of it, and wait for ``--resume``.
    """

    index: int
    case: Case
    state: CaseState
    reasons: tuple[str, ...]
    check: str
    stop_reasons: tuple[str, ...]
    groups: Groups
    total: Total | None
    flags: tuple[Flag, ...]
    disturbance: Disturbance
    loops: tuple[LoopKind, ...] = ("python",)
    lost: tuple[str, ...] = ()

    @property
    def only(self) -> GroupSummary | None:
        """The one group of an op on all ranks or on one pair; None for splits, the pair matrix and unmeasured cases."""
        return self.groups[0] if len(self.groups) == 1 else None


def summarise(dataset: Dataset) -> tuple[CaseSummary, ...]:
    """Every case of ``dataset``, in the order of the plan, whatever became of it."""
    by_case: dict[int, list[Block]] = {}
    for block in dataset.blocks:
        by_case.setdefault(block.case, []).append(block)
    pairs: dict[int, list[tuple[int, PairBlock]]] = {}
    for run, case, pair_block in dataset.pair_blocks:
        pairs.setdefault(case, []).append((run, pair_block))
    told: dict[int, list[tuple[int, Imported]]] = {}
    for run, case, imported in dataset.imported:
        told.setdefault(case, []).append((run, imported))
    return tuple(
        _pair_case(row, pairs[row.index])
        if row.index in pairs
        else _imported_case(row, told[row.index])
        if row.index in told
        else _case(row, by_case.get(row.index, []))
        for row in dataset.cases
    )


def _pair_case(row: CaseRow, blocks: Sequence[tuple[int, PairBlock]]) -> CaseSummary:
    rows = [block for _, block in blocks]
    groups = PairGroups(row.case, blocks) if row.state == "measured" else ()
    disturbance = disturbance_of((), rows)
    return CaseSummary(
        index=row.index,
        case=row.case,
        state=row.state,
        reasons=row.reasons,
        check=_failure(row.reasons) if row.state == "failed" else _check([block.check for block in rows]),
        stop_reasons=tuple(sorted({block.stop_reason for block in rows})),
        groups=groups,
        total=None,
        flags=_flags(row.case, rows, groups, disturbance) if groups else (),
        disturbance=disturbance,
        loops=tuple(sorted({block.loop for block in rows})),
        lost=row.lost,
    )


def _case(row: CaseRow, blocks: Sequence[Block]) -> CaseSummary:
    case, state, reasons = row.case, row.state, row.reasons
    by_group: dict[tuple[int, ...], list[Block]] = {}
    for block in blocks if state == "measured" else ():
        by_group.setdefault(block.samples.ranks, []).append(block)
    groups = tuple(_group(case, ranks, members) for ranks, members in by_group.items())
    disturbance = disturbance_of(blocks)
    return CaseSummary(
        index=row.index,
        case=case,
        state=state,
        reasons=reasons,
        check=_failure(reasons) if state == "failed" else _check([block.measurement.check for block in blocks]),
        stop_reasons=tuple(sorted({block.measurement.stop_reason for block in blocks})),
        groups=groups,
        total=_total(groups) if len(groups) > 1 and case.op not in PAIRED else None,
        flags=_flags(case, [block.measurement for block in blocks], groups, disturbance) if groups else (),
        disturbance=disturbance,
        loops=tuple(sorted({block.measurement.loop for block in blocks})),
        lost=row.lost,
    )


def _failure(reasons: Sequence[str]) -> str:
    wrong = next((reason for reason in reasons if reason.startswith("wrong data")), None)
    if wrong is not None:
        return f"wrong ({wrong.removeprefix('wrong data').lstrip(': ') or 'no number given'})"
    return f"failed ({'; '.join(reasons)})"


def _imported_case(row: CaseRow, told: Sequence[tuple[int, Imported]]) -> CaseSummary:
    """A case of another tool's log: its groups are made of what is printed, and nothing is made of samples."""
    by_group: dict[tuple[int, ...], list[tuple[int, Imported]]] = {}
    for run, one in told if row.state == "measured" else ():
        by_group.setdefault(one.ranks, []).append((run, one))
    groups = tuple(_imported_group(row.case, ranks, members) for ranks, members in by_group.items())
    return CaseSummary(
        index=row.index,
        case=row.case,
        state=row.state,
        reasons=row.reasons,
        check=_failure(row.reasons) if row.state == "failed" else _check([one.check for _, one in told]),
        stop_reasons=(),
        groups=groups,
        total=_total(groups) if len(groups) > 1 and row.case.op not in PAIRED else None,
        flags=(),
        disturbance=disturbance_of(()),
        loops=(),
        lost=row.lost,
    )


def _imported_group(case: Case, ranks: tuple[int, ...], told: Sequence[tuple[int, Imported]]) -> GroupSummary:
    by_table: dict[tuple[int, int], list[float]] = {}
    for run, one in told:
        by_table.setdefault((run, one.launch), []).append(one.time_ns)
    numbers = tuple(median(times) for times in by_table.values())
    time_ns, first = median(numbers), told[0][1]
    rate = case.size_bytes / time_ns * 1e9 if case.size_bytes else None
    ends = (min(numbers), max(numbers)) if len(numbers) > 1 else None
    return GroupSummary(
        ranks=ranks,
        label=rank_list(ranks),
        time_ns=time_ns,
        interval=Interval(None, None, "none") if ends is None else Interval(*ends, "range of the tables of a log"),
        fastest_ns=None,
        p5_ns=None,
        p95_ns=None,
        spread=None,
        skew_share=None,
        span_ns=None,
        algbw=rate,
        busbw=None if rate is None or first.bus_factor is None else rate * first.bus_factor,
        bus_factor=first.bus_factor,
        wire_bytes=first.wire_bytes,
        moved_factor=1.0,
        launch_medians_ns=numbers,
        launch_means_ns=numbers,
        launch_keys=tuple(by_table),
        mean=None,
        p99=None,
        samples=0,
        effective_samples=0,
        tau=1.0,
        outlier_share=0.0,
        slow_share=0.0,
        slow_time_share=0.0,
        modes=None,
        drift=False,
        views=(),
        entry_known=False,
        clock_error_ns=0.0,
        overlap=None,
        statistic=" and ".join(dict.fromkeys(one.statistic or "not told" for _, one in told)),
    )


def _check(checks: Sequence[Check]) -> str:
    reasons = list(dict.fromkeys(check.reason or "no reason given" for check in checks if check.state == "not checked"))
    if reasons:
        return f"not checked ({'; '.join(reasons)})"
    return "verified" if checks else "–"


def _total(groups: Sequence[GroupSummary]) -> Total:
    return Total(
        time_ns=max(group.time_ns for group in groups),
        algbw=_added([group.algbw for group in groups]),
        busbw=_added([group.busbw for group in groups]),
        wire_bytes=sum(group.wire_bytes for group in groups),
    )


def _added(rates: Sequence[float | None]) -> float | None:
    """The sum, or None when one of them does not exist: half a sum is no sum."""
    known = [rate for rate in rates if rate is not None]
    return sum(known) if len(known) == len(rates) else None


def _flags(case: Case, measured: Sequence[Measurement], groups: Groups, disturbance: Disturbance) -> tuple[Flag, ...]:
    """What a reader of one row must know. ``oversubscribed`` is added by ``judge``, which knows the machine."""
    of = partial(of_groups, groups)
    overlaps = () if isinstance(groups, PairGroups) else [one.overlap for one in groups if one.overlap is not None]
    wanted: tuple[tuple[Flag, bool | np.bool_], ...] = (
        ("bimodal", has_modes(groups)),
        ("outlier mode", (of("slow_time_share") > _SLOW_TIME_SHARE_WORTH_A_FLAG).any()),
        # Ranks that copy wait for nobody, so when they come changes nothing.
        ("skew>10%", case.op not in LOCAL and (of("skew_share") > _SKEW_WORTH_A_FLAG).any()),
        ("drift", of("drift").any()),
        ("autocorrelated", (of("tau") >= _TAU_WORTH_A_FLAG).any()),
        ("outliers", (of("outlier_share") > _OUTLIERS_WORTH_A_FLAG).any()),
        ("disturbed", disturbance.high),
        ("unbalanced", any(one.unbalanced for one in overlaps)),
        ("clock error", (of("clock_error_ns") > CLOCK_ERROR_SHARE * of("time_ns")).any()),
        ("excess traffic", (of("moved_factor") > 1).any()),
        ("not converged", any(one.stop_reason != "converged" for one in measured)),
    )
    return tuple(flag for flag, raised in wanted if raised)


def _group(case: Case, ranks: tuple[int, ...], blocks: Sequence[Block]) -> GroupSummary:
    by_launch: dict[tuple[int, int], list[Block]] = {}
    for block in blocks:
        by_launch.setdefault((block.run, block.launch), []).append(block)
    launches = [_Launch.of(members) for members in by_launch.values()]
    slowest = np.concatenate([launch.slowest for launch in launches])
    medians = tuple(float(np.median(launch.slowest)) for launch in launches)
    time_ns = median(medians)
    p5, p95 = (median([float(np.quantile(launch.slowest, share)) for launch in launches]) for share in (0.05, 0.95))
    slow = np.concatenate([launch.slow for launch in launches])
    each = [np.asarray(block.samples.slowest_ns, dtype=np.float64) for block in blocks]
    taus = [autocorrelation_time(one) for one in each]
    effective = sum(len(one) / tau for one, tau in zip(each, taus, strict=True))
    samples = blocks[0].samples
    error_ns = max((block.measurement.clock_error_ns or 0) / block.measurement.calls for block in blocks)
    # Half of an overlapped sample is computation: its time is no rate of anything.
    rate = case.size_bytes / time_ns * 1e9 if case.size_bytes and case.mode != "overlap" else None
    return GroupSummary(
        ranks=ranks,
        label=rank_list(ranks),
        time_ns=time_ns,
        interval=_interval(medians, launches[0].slowest),
        fastest_ns=median([float(np.median(launch.fastest)) for launch in launches]),
        p5_ns=p5,
        p95_ns=p95,
        spread=median([spread(launch.slowest) for launch in launches]),
        skew_share=_skew_share(launches) if _clock_serves(error_ns, time_ns) else None,
        span_ns=_median_span(launches) if _clock_serves(error_ns, time_ns) else None,
        algbw=rate,
        busbw=None if rate is None or samples.bus_factor is None else rate * samples.bus_factor,
        bus_factor=samples.bus_factor,
        wire_bytes=samples.wire_bytes,
        moved_factor=samples.moved_factor,
        launch_medians_ns=medians,
        launch_means_ns=tuple(float(launch.slowest.mean()) for launch in launches),
        launch_keys=tuple(by_launch),
        mean=_over_launches(launches, _mean),
        p99=_over_launches(launches, _p99),
        samples=len(slowest),
        effective_samples=max(1, int(effective)),
        tau=len(slowest) / effective,
        outlier_share=sum(outliers(launch.slowest) for launch in launches) / len(slowest),
        slow_share=float(slow.mean()),
        slow_time_share=float(slowest[slow].sum() / slowest.sum()),
        modes=common_modes([find_modes(launch.slowest) for launch in launches]),
        drift=2 * sum(drifts(one, tau) for one, tau in zip(each, taus, strict=True)) > len(blocks),
        views=views_of(ranks, by_launch),
        entry_known=_clock_serves(error_ns, time_ns) and all(block.samples.last_rank is not None for block in blocks),
        clock_error_ns=error_ns,
        overlap=overlap_of(by_launch),
    )


def _clock_serves(error_ns: float, time_ns: float) -> bool:
    """Whether the clocks agree well enough to tell who came when within a call of ``time_ns``."""
    return error_ns <= CLOCK_ERROR_SHARE * time_ns


@dataclass(frozen=True, slots=True)
class _Launch:
    """All samples of one launch in the order they were taken, ns per call."""

    slowest: Floats
    fastest: Floats
    skew: Floats
    exit_span: Floats

    @classmethod
    def of(cls, blocks: Sequence[Block]) -> "_Launch":
        def joined(name: str) -> Floats:
            return np.concatenate([_per_call(block, getattr(block.samples, name)) for block in blocks])

        return cls(joined("slowest_ns"), joined("fastest_ns"), joined("arrival_skew_ns"), joined("exit_span_ns"))

    @property
    def slow(self) -> npt.NDArray[np.bool_]:
        """Which samples are much slower than is usual in this launch."""
        return np.asarray(self.slowest > max(SLOW_TIMES_MEDIAN * float(np.median(self.slowest)), SLOW_LEAST_NS))


def _per_call(block: Block, vector: Sequence[int] | None) -> Floats:
    """ns per call; NaN where nothing was recorded."""
    if vector is None:
        return np.full(len(block.samples.slowest_ns), np.nan)
    return np.asarray(vector, dtype=np.float64) / block.measurement.calls


def _interval(medians: Sequence[float], samples_of_first: Floats) -> Interval:
    if len(medians) == 1:
        within = median_interval(samples_of_first, tau=autocorrelation_time(samples_of_first))
        return Interval(within.low, within.high, "none" if within.low is None else "95 % within this launch")
    over = median_over_launches(medians)
    if len(medians) >= LAUNCHES_FOR_AN_INTERVAL and over.low is not None:
        return Interval(over.low, over.high, "95 % over launches")
    return Interval(min(medians), max(medians), "range of launch medians")


def _skew_share(launches: Sequence[_Launch]) -> float | None:
    shares = [float(np.median(launch.skew)) / float(np.median(launch.slowest)) for launch in launches]
    return None if any(np.isnan(share) for share in shares) else median(shares)


def _median_span(launches: Sequence[_Launch]) -> float | None:
    spans = [float(np.median(launch.skew + launch.exit_span)) for launch in launches]
    return None if any(np.isnan(span) for span in spans) else median(spans)


def _over_launches(launches: Sequence[_Launch], statistic: Callable[[Floats], float]) -> Resampled:
    if len(launches) < LAUNCHES_FOR_AN_INTERVAL:
        value = float(np.mean([statistic(launch.slowest) for launch in launches]))
        return Resampled(value, None, None, len(launches))
    return cluster_bootstrap([launch.slowest for launch in launches], statistic)


def _mean(samples: Floats) -> float:
    return float(samples.mean())


def _p99(samples: Floats) -> float:
    return float(np.quantile(samples, 0.99))
