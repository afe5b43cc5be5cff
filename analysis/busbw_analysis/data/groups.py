"""The summary of one case on one group of ranks: time, interval, spread, skew and one view per rank.

The statistic of record is the median of the slowest rank's times within a launch. Everything across launches is
computed over launch medians, because the launch is the experimental unit. All times here are ns per call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from busbw.runs.records import Case, Imported
from busbw.statistics import autocorrelation_time, median_interval, spread
from busbw_analysis.data.grouped import by_key, grouped
from busbw_analysis.data.intervals import LAUNCHES_FOR_AN_INTERVAL, Floats, Interval, Resampled, interval_of, resampled
from busbw_analysis.data.load import Block, rank_list
from busbw_analysis.data.overlap import Overlap, overlap_of
from busbw_analysis.data.pair_numbers import CLOCK_ERROR_SHARE, SLOW_LEAST_NS, SLOW_TIMES_MEDIAN
from busbw_analysis.data.rank_views import RankView, views_of
from busbw_analysis.data.shape import Modes, common_modes, drifts, find_modes, outliers


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """One case on one group of ranks. Times are ns per call, rates B/s, shares fractions from 0 to 1.

    ranks, label: the ranks, and the same as text
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
    mean, p99: means over launches, with bootstrap intervals
    samples, effective_samples, tau: number of samples, the same without autocorrelation, and their ratio
    outlier_share: share of samples outside Tukey's outer fences
    slow_share, slow_time_share: samples above max(5 × median of their launch, 1 ms), as share of samples and of time
    modes: the two modes, if at least half of the launches are bimodal
    drift: whether most blocks drift
    entry_known: whether a shared clock recorded in every sample which rank entered last
    clock_error_ns: largest difference between the clocks of two ranks, per call
    overlap: only in mode ``overlap``
    statistic: what ``time_ns`` is in the log of another tool; None for busbw's own runs

    Logs of other tools mostly contain no samples. Instead of launch medians, there is one number for each table of the
    log that contains the case.
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
    traffic_factor: float = 1.0
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
        """The number of launches that measured it."""
        return len(self.launch_medians_ns)


def summarise_imported(case: Case, ranks: tuple[int, ...], rows: Sequence[tuple[int, Imported]]) -> GroupSummary:
    """Summarise a group from rows of other tools' logs, each with the index of its run: one number per table."""
    by_table = by_key(((run, row.launch), row.time_ns) for run, row in rows)
    numbers = tuple(median(times) for times in by_table.values())
    time_ns, first = median(numbers), rows[0][1]
    rate = case.size_bytes / time_ns * 1e9 if case.size_bytes else None
    ends = (min(numbers), max(numbers)) if len(numbers) > 1 else None
    low, middle, high = _quantiles(rows) or (None, None, None)
    return GroupSummary(
        ranks=ranks,
        label=rank_list(ranks),
        time_ns=time_ns,
        p5_ns=low,
        p95_ns=high,
        spread=None if low is None or middle is None or high is None else (high - low) / 2 / middle,
        samples=sum(len(row.samples_ns) for _, row in rows),
        interval=Interval(None, None, "none") if ends is None else Interval(*ends, "range of the tables of a log"),
        algbw=rate,
        busbw=None if rate is None or first.bus_factor is None else rate * first.bus_factor,
        bus_factor=first.bus_factor,
        wire_bytes=first.wire_bytes,
        launch_medians_ns=numbers,
        launch_means_ns=numbers,
        launch_keys=tuple(by_table),
        statistic=" and ".join(dict.fromkeys(row.statistic or "unknown" for _, row in rows)),
    )


def _quantiles(rows: Sequence[tuple[int, Imported]]) -> tuple[float, float, float] | None:
    """p5, median and p95 in ns, each the median over ``rows``; None unless all rows have samples."""
    sampled = [row.samples_ns for _, row in rows if row.samples_ns]
    if len(sampled) < len(rows):
        return None
    low, middle, high = np.median([np.quantile(samples, (0.05, 0.5, 0.95)) for samples in sampled], axis=0)
    return float(low), float(middle), float(high)


def summarise_group(case: Case, ranks: tuple[int, ...], blocks: Sequence[Block]) -> GroupSummary:
    """Summarise a group of ``case`` from its measured ``blocks``."""
    by_launch = grouped(blocks, lambda block: (block.run, block.launch))
    slowest, fastest, skew, exit_span = (
        [_samples(members, f"{name}_ns") for members in by_launch.values()]
        for name in ("slowest", "fastest", "arrival_skew", "exit_span")
    )
    together = np.concatenate(slowest)
    medians = tuple(float(np.median(times)) for times in slowest)
    means = tuple(float(times.mean()) for times in slowest)
    time_ns = median(medians)
    p5, p95 = (median([float(np.quantile(times, share)) for times in slowest]) for share in (0.05, 0.95))
    limits = [max(SLOW_TIMES_MEDIAN * middle, SLOW_LEAST_NS) for middle in medians]
    slow = np.concatenate([times > limit for times, limit in zip(slowest, limits, strict=True)])
    by_block = [np.asarray(block.samples.slowest_ns, dtype=np.float64) for block in blocks]
    taus = [autocorrelation_time(times) for times in by_block]
    effective = sum(len(times) / tau for times, tau in zip(by_block, taus, strict=True))
    samples = blocks[0].samples
    error_ns = max((block.measurement.clock_error_ns or 0) / block.measurement.calls for block in blocks)
    skews = [float(np.median(delays) / middle) for delays, middle in zip(skew, medians, strict=True)]
    spans = [float(np.median(delays + times)) for delays, times in zip(skew, exit_span, strict=True)]
    clock_serves = error_ns <= CLOCK_ERROR_SHARE * time_ns  # accurate enough to order arrivals within a call
    # Half of an overlapped sample is computation, so size over time is not a bandwidth.
    rate = case.size_bytes / time_ns * 1e9 if case.size_bytes and case.mode != "overlap" else None
    return GroupSummary(
        ranks=ranks,
        label=rank_list(ranks),
        time_ns=time_ns,
        interval=_interval(medians, slowest[0]),
        fastest_ns=median([float(np.median(times)) for times in fastest]),
        p5_ns=p5,
        p95_ns=p95,
        spread=median([spread(times) for times in slowest]),
        skew_share=_median_if_known(skews) if clock_serves else None,
        span_ns=_median_if_known(spans) if clock_serves else None,
        algbw=rate,
        busbw=None if rate is None or samples.bus_factor is None else rate * samples.bus_factor,
        bus_factor=samples.bus_factor,
        wire_bytes=samples.wire_bytes,
        traffic_factor=samples.traffic_factor,
        launch_medians_ns=medians,
        launch_means_ns=means,
        launch_keys=tuple(by_launch),
        mean=_over_launches(means),
        p99=_over_launches([float(np.quantile(times, 0.99)) for times in slowest]),
        samples=len(together),
        effective_samples=max(1, int(effective)),
        tau=len(together) / effective,
        outlier_share=sum(outliers(times) for times in slowest) / len(together),
        slow_share=float(slow.mean()),
        slow_time_share=float(together[slow].sum() / together.sum()),
        modes=common_modes([find_modes(times) for times in slowest]),
        drift=2 * sum(drifts(times, tau) for times, tau in zip(by_block, taus, strict=True)) > len(blocks),
        views=views_of(ranks, by_launch),
        entry_known=clock_serves and all(block.samples.last_rank is not None for block in blocks),
        clock_error_ns=error_ns,
        overlap=overlap_of(by_launch),
    )


def _samples(blocks: Sequence[Block], name: str) -> Floats:
    """All samples of one launch in the order of measurement, ns per call; NaN if not recorded."""
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


def _median_if_known(values: Sequence[float]) -> float | None:
    """The median; None if any value is unknown (NaN)."""
    return None if np.isnan(values).any() else median(values)


def _over_launches(numbers: Sequence[float]) -> Resampled:
    if len(numbers) < LAUNCHES_FOR_AN_INTERVAL:
        return Resampled(float(np.mean(numbers)), None, None, len(numbers))
    return resampled(numbers)
