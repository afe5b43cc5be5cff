"""Forecasts: the time of a call at a size or number of ranks that was not measured, its basis, and its extrapolation.

For a measured number of ranks, the fit of that curve gives the time; beyond its largest size, only the last segment is
used. For other numbers of ranks, see ``carried`` and ``prediction``. Every forecast includes the held-out error of the
method that produced it.
"""

from bisect import bisect_right
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from busbw.errors import AnalysisError
from busbw.ops import bus_factor
from busbw.units import about_size, format_rate, format_size, format_time
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.intervals import tail_of_medians
from busbw_analysis.data.series import Series
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.fitting.checks import LEAST_SIZES
from busbw_analysis.fitting.curve import Fit, Segment, fit_points, fit_series, launch_matrix, resampled_cuts
from busbw_analysis.fitting.score import VALID_SIZES, Validation, validation
from busbw_analysis.fitting.segments import Cuts
from busbw_analysis.predict.held_out import ROUNDED, Shape

Basis = Literal["curve", "carried", "messages"]
"""What a forecast is based on: the curve of the same ranks, that of other ranks, or messages between two ranks."""


@dataclass(frozen=True, slots=True)
class Value:
    """An estimate with both ends of its 95 % interval, which are None if there is none."""

    value: float
    low: float | None = None
    high: float | None = None


Respect = Literal["size", "jump", "cores", "ranks", "hosts", "ranks per host"]


@dataclass(frozen=True, slots=True)
class Extrapolation:
    """A respect in which a question lies outside the data, and ``how``: what is asked, and what was measured."""

    respect: Respect
    how: str

    @property
    def in_words(self) -> str:
        """``size: 4 MiB is 2 × the largest measured size, 2 MiB``."""
        return f"{self.respect}: {self.how}"


@dataclass(frozen=True, slots=True)
class Forecast:
    """The predicted time of one call.

    ``seconds``: time of the call with its 95 % interval.
    ``basis``, ``rests_on``: the kind of evidence, and the evidence in words.
    ``carried_from``: the shape of the curve that was carried; None for another basis.
    ``algorithm``: the algorithm of the call; None for the fit of its own curve.
    ``formula``, ``parameters``: the model in symbols, and its parameter values with their origin.
    ``interval_note``: origin of the interval, or the reason why there is none.
    ``extrapolated``: in which respects the question lies outside the data.
    ``held_out``: error of the same method on held-out data.
    ``measured``: the measured point of the same ranks and size, if any; the fit has used it.
    ``notes``: notes on the model.
    """

    op: str
    size_bytes: int
    ranks: int
    hosts: int
    seconds: Value
    basis: Basis
    rests_on: str
    algorithm: str | None
    formula: str
    parameters: str
    interval_note: str
    extrapolated: tuple[Extrapolation, ...]
    held_out: Validation
    measured: GroupSummary | None
    carried_from: Shape | None = None
    notes: tuple[str, ...] = ()

    @property
    def algbw(self) -> float | None:
        """B/s; None for an op without a size."""
        return self.size_bytes / self.seconds.value if self.size_bytes else None

    @property
    def busbw(self) -> float | None:
        """B/s; None for an op without a bus factor."""
        factor = bus_factor(self.op, self.ranks)
        return None if self.algbw is None or factor is None else self.algbw * factor

    @property
    def has_interval(self) -> bool:
        """Whether ``seconds`` has an interval."""
        return self.seconds.low is not None

    @property
    def error(self) -> float | None:
        """(predicted − measured) / measured; None if not measured."""
        return None if self.measured is None else self.seconds.value / (self.measured.time_ns / 1e9) - 1


@dataclass(frozen=True, slots=True)
class FittedCurve:
    """A curve with its fit, None for an op without a size, whose one time is α.

    ``resampled`` has the fits of resampled launches, None with too few launches.
    """

    series: Series
    fit: Fit | None
    resampled: Cuts | None

    @property
    def interval_note(self) -> str:
        """The origin of the interval, or the reason why there is none."""
        if self.fit is not None:
            return self.fit.interval_note
        kind = self.series.points[0].interval.kind
        return f"interval of the measured time: {kind}" if kind != "none" else "no interval: the measured time has none"

    def seconds(self, size_bytes: int, waiting: float = 1.0, moving: float = 1.0) -> Value:
        """The time from the segment that contains the size; beyond the largest size, from the last segment.

        ``waiting``, ``moving``: factors of α and β, for other ranks. The interval of a size between two segments covers
        the times of both, because the exact breakpoint was not measured.
        """

        def time(segment: Segment) -> float:
            return waiting * segment.alpha_seconds + moving * segment.beta_seconds_per_byte * size_bytes

        value = time(self.segment(size_bytes))
        if self.fit is None:
            ends_ns = self.series.points[0].interval.low_ns, self.series.points[0].interval.high_ns
            return Value(value, *(None if ns is None else waiting * ns / 1e9 for ns in ends_ns))
        if self.resampled is None:
            return Value(value)
        count = len(self.resampled.starts)
        sizes = np.broadcast_to(np.asarray(self.fit.sizes_bytes, dtype=np.float64), (count, len(self.fit.sizes_bytes)))
        samples = self.resampled.predict(sizes, np.full(count, float(size_bytes)), waiting, moving)
        tail = tail_of_medians(len(self.series.in_common[0]))
        low, high = (float(end) for end in np.quantile(samples, (tail, 1 - tail)))
        # If resamples have other breakpoints, the time from all launches may lie outside their interval.
        ends = [value, *map(time, self.around(size_bytes))]
        return Value(value, min(low, *ends), max(high, *ends))

    def segment(self, size_bytes: int) -> Segment:
        """The segment that contains the size, or the nearest one outside the measured sizes."""
        if self.fit is None:
            return Segment(self.series.points[0].time_ns / 1e9, 0.0, 0, 0, ("beta",))
        return self.fit.segments[bisect_right(self.fit.breaks_bytes, size_bytes)]

    def no_slope(self, size_bytes: int) -> Unavailable | None:
        """Why nothing is known of a size beyond the largest one; None if something is."""
        if self.fit is None or size_bytes <= self.fit.sizes_bytes[-1]:
            return None
        segment = self.fit.segments[-1]
        if "beta" not in segment.at_bound:
            return None
        return Unavailable(
            "no-slope",
            f"{format_size(size_bytes)} is beyond the largest measured size, {format_size(self.fit.sizes_bytes[-1])}, "
            f"and from {format_size(segment.first_bytes)} on the time does not grow with size, so there is no rate to "
            "extrapolate; measure larger sizes",
        )

    def parameters(self, size_bytes: int) -> str:
        """α and the rate of the segment that contains the size."""
        if self.fit is None:
            return f"{format_time(self.series.points[0].time_ns)} of a call"
        segment = self.segment(size_bytes)
        flat = "beta" in segment.at_bound
        rate = "time does not grow with size" if flat else f"B {format_rate(1 / segment.beta_seconds_per_byte)} (algbw)"
        return (
            f"α {format_time(segment.alpha_seconds * 1e9)}, {rate}, from sizes {format_size(segment.first_bytes)} to "
            f"{format_size(segment.last_bytes)}"
        )

    def around(self, size_bytes: int) -> tuple[Segment, ...]:
        """The two segments that a size lies between; empty if it is inside one, or outside the measured sizes."""
        pairs = pairwise(() if self.fit is None else self.fit.segments)
        return next((pair for pair in pairs if pair[0].last_bytes < size_bytes < pair[1].first_bytes), ())

    def jump(self, size_bytes: int) -> str | None:
        """A note on a size between two segments that give different times; None elsewhere."""
        around = self.around(size_bytes)
        if not around:
            return None
        least, most = sorted(segment.seconds(size_bytes) for segment in around)
        if most <= least * (1 + VALID_SIZES):
            return None
        ends = f"{format_size(around[0].last_bytes)} and {format_size(around[1].first_bytes)}"
        times = f"{format_time(least * 1e9)} or {format_time(most * 1e9)}"
        return f"between {ends}, where the time jumps at a size that was not measured: {times}"


def curve_of(series: Series) -> FittedCurve:
    """Fit a curve to predict other sizes. Raises AnalysisError if it cannot be fitted."""
    if not series.points[-1].size_bytes:
        return FittedCurve(series, None, None)
    fit = fit_series(series)
    if not isinstance(fit, Fit):
        raise AnalysisError(f"no prediction from the curve of {series.key.label}: {fit.reason}", code=fit.code)
    sizes = np.asarray(fit.sizes_bytes, dtype=np.float64)
    resampled = resampled_cuts(sizes, launch_matrix(series.in_common) / 1e9, len(fit.segments))
    return FittedCurve(series, fit, resampled)


def by_curve(curve: FittedCurve, size_bytes: int) -> Forecast | Unavailable:
    """The forecast from a curve for one size; ``no-slope`` beyond the largest size if the last segment has none, or
    ``no-curve-over-sizes`` for an op without a size.
    """
    series, fit = curve.series, curve.fit
    if fit is None:
        return Unavailable("no-curve-over-sizes", f"{series.key.op} has no size")
    flat = curve.no_slope(size_bytes)
    if flat is not None:
        return flat
    first, last = fit.sizes_bytes[0], fit.sizes_bytes[-1]
    jump = curve.jump(size_bytes)
    held_out = _beyond(fit, size_bytes / last) if size_bytes > last else _between(fit)
    untested = [f"sizes below {format_size(first)}"] if size_bytes < first else []
    beyond = beyond_sizes(size_bytes, first, last)
    if jump:
        untested.append("sizes at a jump")
        beyond.append(Extrapolation("jump", f"{about_size(size_bytes)} is {jump}"))
    return Forecast(
        op=series.key.op,
        size_bytes=size_bytes,
        ranks=len(series.key.ranks),
        hosts=series.key.hosts,
        seconds=curve.seconds(size_bytes),
        basis="curve",
        rests_on="the fit of the curve of these ranks",
        algorithm=None,
        formula="T = α + S/B per segment",
        parameters=curve.parameters(size_bytes),
        interval_note=fit.interval_note,
        extrapolated=tuple(beyond),
        held_out=held_out.asked_for(*untested),
        measured=series.at(size_bytes),
    )


def beyond_sizes(size_bytes: int, first: int, last: int) -> list[Extrapolation]:
    """A size outside the measured range from ``first`` to ``last``; empty inside it."""
    size = about_size(size_bytes)
    if size_bytes > last * ROUNDED:
        times = f"{size_bytes / last:.3g} × the largest measured size, {format_size(last)}"
        return [Extrapolation("size", f"{size} is {times}")]
    if size_bytes < first:
        return [Extrapolation("size", f"{size} is below the smallest measured size, {format_size(first)}")]
    return []


def _between(fit: Fit) -> Validation:
    """The held-out sizes of a fit; the reason is included if another of its checks has failed."""
    checked = fit.held_out_sizes
    why = "; ".join(fit.doubts)
    if checked.median_error is None:
        return replace(checked, held_out=why)
    how = f"{checked.count} held-out sizes"
    # If these passed but the fit did not, another check has failed.
    how = f"{why}; {how}" if checked.passed and not fit.validated else how
    return replace(checked, held_out=how, passed=fit.validated)


def _beyond(fit: Fit, reach: float) -> Validation:
    """Hold out the largest sizes, as far as the question extrapolates or the data allow, and predict them."""
    sizes, times = fit.sizes_bytes, fit.times_ns
    count = max(sum(1 for size in sizes if size * reach <= sizes[-1]), LEAST_SIZES)
    if count >= len(sizes):
        return validation(f"with {len(sizes)} sizes none can be held out", None, VALID_SIZES)
    try:
        smaller = fit_points(sizes[:count], times[:count])
    except AnalysisError as error:
        return validation(f"without the largest sizes there is no fit: {error}", None, VALID_SIZES)
    errors = [
        abs(smaller.segments[-1].seconds(size) / (time / 1e9) - 1)
        for size, time in zip(sizes[count:], times[count:], strict=True)
    ]
    tried = sizes[-1] / sizes[count - 1]
    far = tried >= min(reach, sizes[-1] / sizes[-2]) and tried * 1.001 >= reach
    largest = f"the largest sizes ({len(errors)})"
    how = f"{largest}, predicted from the others up to {format_size(sizes[count - 1])} (× {tried:.3g}),"
    if errors[-1] > VALID_SIZES:
        how += f" the largest off by {errors[-1]:.1%},"
    validated = validation(how, errors, VALID_SIZES)
    # The smaller of them may be right although the largest has left the segment.
    validated = replace(validated, passed=validated.passed and errors[-1] <= VALID_SIZES)
    return validated if far else validated.asked_for(f"sizes × {reach:.3g}")
