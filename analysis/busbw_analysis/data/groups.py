"""The numbers of one case on one group of ranks: headline, interval, spread, skew and the view of each rank.

The statistic of record is the median over the slowest rank's times within a launch; everything across launches is
computed over launch medians, because the launch is the experimental unit. All times here are ns per call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

import numpy as np
import numpy.typing as npt

from busbw.runs.records import Case, Imported
from busbw.statistics import autocorrelation_time, median_interval, spread
from busbw_analysis.data.grouped import by_key, grouped
from busbw_analysis.data.intervals import Resampled, median_over_launches, resampled
from busbw_analysis.data.load import Block, rank_list
from busbw_analysis.data.overlap import Overlap, overlap_of
from busbw_analysis.data.pair_numbers import (
    CLOCK_ERROR_SHARE,
    SLOW_LEAST_NS,
    SLOW_TIMES_MEDIAN,
)
from busbw_analysis.data.rank_views import RankView, views_of
from busbw_analysis.data.shape import Modes, common_modes, drifts, find_modes, outliers

Floats = npt.NDArray[np.float64]
IntervalKind = Literal[
    "95 % over launches", "range of launch medians", "95 % within this launch", "range of the tables of a log", "none"
]
LAUNCHES_FOR_AN_INTERVAL = 6
"""Below it the order-statistic interval of a median does not exist at 95 % (5 values cover 93.75 %)."""


@dataclass(frozen=True, slots=True)
class Interval:
    """How sure the headline is, in ns per call. ``kind`` says what the two ends are; both are None for ``none``."""

    low_ns: float | None
    high_ns: float | None
    kind: IntervalKind


def interval_of(by_launch: Sequence[float] | Floats) -> Interval:
    """Of one number a launch, in its unit: where there are launches enough, else their range; none for a single one."""
    if len(by_launch) < 2:
        return Interval(None, None, "none")
    over = median_over_launches(by_launch)
    if over.low is not None:
        return Interval(over.low, over.high, "95 % over launches")
    return Interval(float(min(by_launch)), float(max(by_launch)), "range of launch medians")


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

    Of most numbers that another tool printed there are no samples. ``time_ns`` is what ``statistic`` says, and instead
    of launch medians there is one such number for each table of the log that has the case.
    """

    ranks: tuple[int, ...]
    label: str
    time_ns: float
    interval: Interval
    algbw: float | None
    busbw: float | None
    bus_factor: float | None
    wire_bytes: float
    launch_medians_ns: tuple[float, ...]
    launch_means_ns: tuple[float, ...]
    launch_keys: tuple[tuple[int, int], ...]
    moved_factor: float = 1.0
    fastest_ns: float | None = None
    p5_ns: float | None = None
    p95_ns: float | None = None
    spread: float | None = None
    skew_share: float | None = None
    span_ns: float | None = None
    mean: Resampled | None = None
    p99: Resampled | None = None
    samples: int = 0
    effective_samples: int = 0
    tau: float = 1.0
    outlier_share: float = 0.0
    slow_share: float = 0.0
    slow_time_share: float = 0.0
    modes: Modes | None = None
    drift: bool = False
    views: tuple[RankView, ...] = ()
    entry_known: bool = False
    clock_error_ns: float = 0.0
    overlap: Overlap | None = None
    statistic: str | None = None

    @property
    def launches(self) -> int:
        """How many launches measured it."""
        return len(self.launch_medians_ns)


def summarise_imported(case: Case, ranks: tuple[int, ...], told: Sequence[tuple[int, Imported]]) -> GroupSummary:
    """A group of a case of another tool's log: what is printed, one number a table."""
    by_table = by_key(((run, one.launch), one.time_ns) for run, one in told)
    numbers = tuple(median(times) for times in by_table.values())
    time_ns, first = median(numbers), told[0][1]
    rate = case.size_bytes / time_ns * 1e9 if case.size_bytes else None
    ends = (min(numbers), max(numbers)) if len(numbers) > 1 else None
    low, middle, high = _quantiles(told) or (None, None, None)
    return GroupSummary(
        ranks=ranks,
        label=rank_list(ranks),
        time_ns=time_ns,
        p5_ns=low,
        p95_ns=high,
        spread=None if low is None or middle is None or high is None else (high - low) / 2 / middle,
        samples=sum(len(one.samples_ns) for _, one in told),
        interval=Interval(None, None, "none") if ends is None else Interval(*ends, "range of the tables of a log"),
        algbw=rate,
        busbw=None if rate is None or first.bus_factor is None else rate * first.bus_factor,
        bus_factor=first.bus_factor,
        wire_bytes=first.wire_bytes,
        launch_medians_ns=numbers,
        launch_means_ns=numbers,
        launch_keys=tuple(by_table),
        statistic=" and ".join(dict.fromkeys(one.statistic or "not told" for _, one in told)),
    )


def _quantiles(told: Sequence[tuple[int, Imported]]) -> tuple[float, float, float] | None:
    """p5, median and p95 in ns, each the median over the rows of a case; None unless all of them have samples."""
    sampled = [one.samples_ns for _, one in told if one.samples_ns]
    if len(sampled) < len(told):
        return None
    low, middle, high = np.median([np.quantile(samples, (0.05, 0.5, 0.95)) for samples in sampled], axis=0)
    return float(low), float(middle), float(high)


def summarise_group(case: Case, ranks: tuple[int, ...], blocks: Sequence[Block]) -> GroupSummary:
    """A group of ``case`` by its measured ``blocks``."""
    by_launch = grouped(blocks, lambda block: (block.run, block.launch))
    slowest, fastest, skew, exit_span = (
        [_samples(members, f"{name}_ns") for members in by_launch.values()]
        for name in ("slowest", "fastest", "arrival_skew", "exit_span")
    )
    together = np.concatenate(slowest)
    medians = tuple(float(np.median(one)) for one in slowest)
    means = tuple(float(one.mean()) for one in slowest)
    time_ns = median(medians)
    p5, p95 = (median([float(np.quantile(one, share)) for one in slowest]) for share in (0.05, 0.95))
    limits = [max(SLOW_TIMES_MEDIAN * middle, SLOW_LEAST_NS) for middle in medians]
    slow = np.concatenate([one > limit for one, limit in zip(slowest, limits, strict=True)])
    each = [np.asarray(block.samples.slowest_ns, dtype=np.float64) for block in blocks]
    taus = [autocorrelation_time(one) for one in each]
    effective = sum(len(one) / tau for one, tau in zip(each, taus, strict=True))
    samples = blocks[0].samples
    error_ns = max((block.measurement.clock_error_ns or 0) / block.measurement.calls for block in blocks)
    skews = [float(np.median(one) / middle) for one, middle in zip(skew, medians, strict=True)]
    spans = [float(np.median(one + other)) for one, other in zip(skew, exit_span, strict=True)]
    clock_serves = error_ns <= CLOCK_ERROR_SHARE * time_ns  # to tell who came when within a call
    # Half of an overlapped sample is computation: its time is no rate of anything.
    rate = case.size_bytes / time_ns * 1e9 if case.size_bytes and case.mode != "overlap" else None
    return GroupSummary(
        ranks=ranks,
        label=rank_list(ranks),
        time_ns=time_ns,
        interval=_interval(medians, slowest[0]),
        fastest_ns=median([float(np.median(one)) for one in fastest]),
        p5_ns=p5,
        p95_ns=p95,
        spread=median([spread(one) for one in slowest]),
        skew_share=_median_of_all(skews) if clock_serves else None,
        span_ns=_median_of_all(spans) if clock_serves else None,
        algbw=rate,
        busbw=None if rate is None or samples.bus_factor is None else rate * samples.bus_factor,
        bus_factor=samples.bus_factor,
        wire_bytes=samples.wire_bytes,
        moved_factor=samples.moved_factor,
        launch_medians_ns=medians,
        launch_means_ns=means,
        launch_keys=tuple(by_launch),
        mean=_over_launches(means),
        p99=_over_launches([float(np.quantile(samples, 0.99)) for samples in slowest]),
        samples=len(together),
        effective_samples=max(1, int(effective)),
        tau=len(together) / effective,
        outlier_share=sum(outliers(one) for one in slowest) / len(together),
        slow_share=float(slow.mean()),
        slow_time_share=float(together[slow].sum() / together.sum()),
        modes=common_modes([find_modes(one) for one in slowest]),
        drift=2 * sum(drifts(one, tau) for one, tau in zip(each, taus, strict=True)) > len(blocks),
        views=views_of(ranks, by_launch),
        entry_known=clock_serves and all(block.samples.last_rank is not None for block in blocks),
        clock_error_ns=error_ns,
        overlap=overlap_of(by_launch),
    )


def _samples(blocks: Sequence[Block], name: str) -> Floats:
    """All samples of one launch in the order they were taken, ns per call; NaN where nothing was recorded."""
    return np.concatenate([_per_call(block, getattr(block.samples, name)) for block in blocks])


def _per_call(block: Block, vector: Sequence[int] | None) -> Floats:
    if vector is None:
        return np.full(len(block.samples.slowest_ns), np.nan)
    return np.asarray(vector, dtype=np.float64) / block.measurement.calls


def _interval(medians: Sequence[float], samples_of_first: Floats) -> Interval:
    if len(medians) > 1:
        return interval_of(medians)
    within = median_interval(samples_of_first, tau=autocorrelation_time(samples_of_first))
    return Interval(within.low, within.high, "none" if within.low is None else "95 % within this launch")


def _median_of_all(values: Sequence[float]) -> float | None:
    """None where one of them is not known (NaN)."""
    return None if np.isnan(values).any() else median(values)


def _over_launches(numbers: Sequence[float]) -> Resampled:
    if len(numbers) < LAUNCHES_FOR_AN_INTERVAL:
        return Resampled(float(np.mean(numbers)), None, None, len(numbers))
    return resampled(numbers)
