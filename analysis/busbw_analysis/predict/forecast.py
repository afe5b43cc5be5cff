"""The time of a call at a size or number of ranks that was not measured, from the fit of a curve.

For a measured number of ranks, the fit of that curve gives the time; beyond its largest size, only the last segment is
used. To other ranks it is carried: the time of a segment is α + β S, where α changes as the rounds of the algorithm and
β as its bytes. The bytes are those that the busiest rank sends, or on one host with a known rate R of all ranks, those
that limit the time. Every forecast includes the error of its method on held-out data.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import pairwise
from operator import itemgetter
from statistics import median
from typing import Final, Literal

import numpy as np

from busbw.errors import AnalysisError
from busbw.ops import bus_factor
from busbw.units import about_size, counted, format_rate, format_size, format_time
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.intervals import tail_of_medians
from busbw_analysis.data.series import Series
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.fitting.curve import (
    LEAST_SIZES,
    Fit,
    Segment,
    fit_points,
    fit_series,
    launch_matrix,
    resampled_cuts,
)
from busbw_analysis.fitting.score import VALID_RANKS, VALID_SIZES, Validation, validation
from busbw_analysis.fitting.segments import Cuts
from busbw_analysis.models.costs import CostModel, Parameters

LEAST_RANKS: Final = 3
"""Fewest ranks of a curve that is carried: between 2 ranks, most algorithms are the same single exchange."""

ROUNDED: Final = 1.01
"""Sizes within this factor are equal: sizes are rounded to whole elements per rank (2 MiB on 6 ranks: 2,097,144 B)."""

_NEAREST: Final = 3
"""Number of held-out sizes near a requested size that must be predicted well."""

Shape = tuple[int, int]
"""Numbers of ranks and hosts."""

Basis = Literal["curve", "carried", "messages"]
"""What a forecast is based on: the curve of the same ranks, that of other ranks, or messages between two ranks."""

Algorithm = Callable[[Shape, int], CostModel | Unavailable]
"""Ranks and hosts, and bytes of a call → its algorithm."""

Respect = Literal["size", "jump", "cores", "ranks", "hosts", "ranks per host"]


def on_a_host(shape: Shape) -> int:
    """Ranks on the fullest host."""
    return -(-shape[0] // shape[1])


@dataclass(frozen=True, slots=True)
class Value:
    """An estimate with both ends of its 95 % interval, which are None if there is none."""

    value: float
    low: float | None = None
    high: float | None = None


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

    ``seconds``: time of the call with its 95 % interval as far as launches scatter, whatever the method is worth.
    ``basis``, ``rests_on``: the kind of evidence, and the evidence in words.
    ``carried_from``: the shape of the curve that was carried; None for another basis.
    ``cost``: the cost model of its algorithm; None for the fit of its own curve.
    ``parameters``: the values of the parameters of the model, with their origin.
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
    _: KW_ONLY
    seconds: Value
    basis: Basis
    rests_on: str
    cost: CostModel | None = None
    parameters: str
    interval_note: str
    extrapolated: tuple[Extrapolation, ...]
    held_out: Validation
    measured: GroupSummary | None
    carried_from: Shape | None = None
    notes: tuple[str, ...] = ()

    @property
    def ends(self) -> tuple[float, float] | None:
        """The 95 % interval of ``seconds``; None without one, and if held-out data do not validate the method: how
        launches scatter says nothing of its error.
        """
        low, high = self.seconds.low, self.seconds.high
        return None if low is None or high is None or not self.held_out.passed else (low, high)

    @property
    def origin_of_ends(self) -> str:
        """The origin of the interval, or the reason why there is none."""
        if self.ends is None and self.seconds.low is not None:
            return "no interval: launches scatter, but the error of a method that is not validated is unknown"
        return self.interval_note

    @property
    def algorithm(self) -> str | None:
        """The algorithm of the call; None for the fit of its own curve."""
        return None if self.cost is None else self.cost.algorithm

    @property
    def formula(self) -> str:
        """The model in symbols."""
        return "T = α + S β per segment" if self.cost is None else self.cost.formula

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

    @classmethod
    def of(cls, series: Series) -> "FittedCurve | Unavailable":
        """The fit of a curve for other sizes and ranks, or why there is none."""
        if not series.points[-1].size_bytes:
            return cls(series, None, None)
        fit = fit_series(series)
        if isinstance(fit, Unavailable):
            return replace(fit, reason=f"no prediction from the curve of {series.key.label}: {fit.reason}")
        sizes = np.asarray(fit.sizes_bytes, dtype=np.float64)
        return cls(series, fit, resampled_cuts(sizes, launch_matrix(series.in_common) / 1e9, len(fit.segments)))

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
        samples = self.resampled.predict(np.full((len(self.resampled.starts), 1), float(size_bytes)), waiting, moving)
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
        if self.fit is None or size_bytes <= self.fit.sizes_bytes[-1] or "beta" not in self.fit.segments[-1].at_bound:
            return None
        return Unavailable(
            "no-slope",
            f"{format_size(size_bytes)} is beyond the largest measured size, {format_size(self.fit.sizes_bytes[-1])}, "
            f"and from {format_size(self.fit.segments[-1].first_bytes)} on the time does not grow with size, so there "
            "is no rate to extrapolate; measure larger sizes",
        )

    def parameters(self, size_bytes: int) -> str:
        """α and the rate of the segment that contains the size."""
        if self.fit is None:
            return f"{format_time(self.series.points[0].time_ns)} of a call"
        segment = self.segment(size_bytes)
        flat = "beta" in segment.at_bound
        rate = (
            "time does not grow with size" if flat else f"1/β {format_rate(1 / segment.beta_seconds_per_byte)} (algbw)"
        )
        return (
            f"of the curve: α {format_time(segment.alpha_seconds * 1e9)}, {rate}, "
            f"from {format_size(segment.first_bytes)} to "
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

    def forecast(self, size_bytes: int) -> Forecast | Unavailable:
        """The forecast for a size; ``no-slope`` beyond the largest if the last segment has none."""
        series, fit, flat = self.series, self.fit, self.no_slope(size_bytes)
        if flat is not None or fit is None:
            return flat or Unavailable("no-size", f"{series.key.op} has no size")
        first, last = fit.sizes_bytes[0], fit.sizes_bytes[-1]
        held_out = _beyond(fit, size_bytes / last) if size_bytes > last else _between(fit)
        untested = [f"sizes below {format_size(first)}"] if size_bytes < first else []
        extrapolated = beyond_sizes(size_bytes, first, last)
        if jump := self.jump(size_bytes):
            untested.append("sizes at a jump")
            extrapolated.append(Extrapolation("jump", f"{about_size(size_bytes)} is {jump}"))
        return Forecast(
            series.key.op,
            size_bytes,
            *series.shape,
            seconds=self.seconds(size_bytes),
            basis="curve",
            rests_on="the fit of the curve of these ranks",
            parameters=self.parameters(size_bytes),
            interval_note=fit.interval_note,
            extrapolated=tuple(extrapolated),
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
    how = f"{how}; {why}" if checked.passed and not fit.validated else how
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
    largest = "largest size" if len(errors) == 1 else f"{len(errors)} largest sizes"
    how = f"the {largest}, predicted from the others up to {format_size(sizes[count - 1])} (× {tried:.3g})"
    if errors[-1] > VALID_SIZES and len(errors) > 1:
        how += f", the largest off by {errors[-1]:.1%}"
    validated = validation(how, errors, VALID_SIZES)
    # The smaller of them may be right although the largest has left the segment.
    validated = replace(validated, passed=validated.passed and errors[-1] <= VALID_SIZES)
    return validated if far else validated.asked_for(f"sizes × {reach:.3g}")


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The test of a method on the curves of the most ranks, which it did not use.

    ``errors``: (bytes, relative error) of every time of these curves; empty if nothing could be held out.
    ``tested``, ``seen``: the shapes of these curves, and of those that the method used.
    """

    result: Validation
    errors: tuple[tuple[int, float], ...] = ()
    tested: tuple[Shape, ...] = ()
    seen: tuple[Shape, ...] = ()

    @classmethod
    def of(
        cls,
        curves: Sequence[Series],
        seen: Sequence[Shape] | None,
        seconds: Callable[[Shape, int], float | None],
        words: tuple[str, str],
    ) -> "HeldOut":
        """The test on ``curves`` of a method that gives ``seconds``, or None, for a shape and a size.

        ``seen``: None for all ``curves`` of fewer ranks. ``words``: how the times were predicted, and the reason if
        none was.
        """
        most = max((curve.shape[0] for curve in curves), default=0)
        tested = [curve for curve in curves if curve.shape[0] == most]
        errors = tuple(
            (point.size_bytes, abs(predicted / (point.time_ns / 1e9) - 1))
            for curve in tested
            for point in curve.points
            if (predicted := seconds(curve.shape, point.size_bytes)) is not None
        )
        how, why_not = words
        if not errors:
            return cls(validation(why_not, None, VALID_RANKS))
        result = validation(
            f"{counted(len(errors), 'time')} measured on {counted(most, 'rank')}, {how}",
            [error for _, error in errors],
            VALID_RANKS,
        )
        fewer = tuple(curve.shape for curve in curves if curve.shape[0] < most) if seen is None else tuple(seen)
        return cls(result, errors, tuple(curve.shape for curve in tested), fewer)

    def asked_for(self, shape: Shape, size_bytes: int, *beyond: str) -> Validation:
        """The result as it applies to a question, which may lie outside the tested range, or ``beyond`` any test.

        The sizes nearest to the question must pass by themselves: the rate may be wrong although the time of a round is
        right.
        """
        result = self.result
        if not self.errors:
            return result.asked_for(*beyond)
        nearest = sorted(self.errors, key=lambda error: abs(math.log(max(error[0], 1) / max(size_bytes, 1))))
        near = median(error for _, error in nearest[:_NEAREST])
        if result.passed and near > VALID_RANKS:
            where = f", those near {about_size(size_bytes)} off by {near:.1%}"
            result = replace(result, held_out=result.held_out + where, passed=False)
        return result.asked_for(*self.untested(shape, size_bytes), *beyond)

    def untested(self, shape: Shape, size_bytes: int) -> tuple[str, ...]:
        """The respects in which a question lies outside the tested range, in words.

        The range of ranks and of hosts begins with the fewest measured, and ends at the most measured times the factor
        by which the test itself extrapolated.
        """
        each = on_a_host(shape)
        rows = [(itemgetter(0), f"{shape[0]} ranks"), (itemgetter(1), f"{shape[1]} hosts")]
        outside = [words for amount, words in rows if not self._reaches(amount, shape)]
        if shape[1] > 1 and not self._reaches(on_a_host, shape):
            outside.append("one rank on each host" if each == 1 else f"{each} ranks on a host")
        sizes = [size for size, _ in self.errors]
        if size_bytes > max(sizes) * ROUNDED:
            outside.append(f"sizes beyond {format_size(max(sizes))}")
        elif size_bytes < min(sizes):
            outside.append(f"sizes below {format_size(min(sizes))}")
        return tuple(outside)

    def _reaches(self, amount: Callable[[Shape], int], shape: Shape) -> bool:
        most, before = max(map(amount, self.tested)), max(map(amount, self.seen))
        return min(map(amount, (*self.tested, *self.seen))) <= amount(shape) <= most * max(most / before, 1)


@dataclass(frozen=True, slots=True)
class Carry:
    """A fitted curve with the factors of α (``rounds``) and β (``moved``) that carry it to other ranks."""

    source: FittedCurve
    cost: CostModel
    rounds: float
    moved: float

    def seconds(self, size_bytes: int) -> Value:
        """The time at a size, with the interval of the curve."""
        return self.source.seconds(size_bytes, self.rounds, self.moved)

    @property
    def words(self) -> str:
        """``the curve of 6 ranks, scaled by ring: rounds × 1.4, bytes × 1.05``."""
        ranks, hosts = self.source.series.shape
        where = f" on {hosts} hosts" if hosts > 1 else ""
        moved = f", bytes × {self.moved:.3g}" if self.source.fit is not None else ""
        return f"the curve of {ranks} ranks{where}, scaled by {self.cost.algorithm}: rounds × {self.rounds:.3g}{moved}"


@dataclass(frozen=True, slots=True)
class Carrier:
    """Carries the fits of ``curves``, all on one host or all on several, to other numbers of ranks.

    ``algorithm``: the one behind each call.
    ``parameters``: those of messages on one host, with the rate R that its ranks share; None if unknown.
    """

    curves: tuple[FittedCurve, ...]
    algorithm: Algorithm
    parameters: Parameters | None

    def carry(self, shape: Shape, size_bytes: int) -> Carry | Unavailable:
        """The nearest curve that ran the same algorithm at this size, and its factors for ``shape``.

        Without one: ``nothing-to-carry``; or ``no-slope`` beyond the largest size of every such curve if its time does
        not grow; or the reason why the algorithm is unknown.
        """
        cost = self.algorithm(shape, size_bytes)
        if isinstance(cost, Unavailable):
            return cost
        why: Unavailable | None = None
        for curve in sorted(self.curves, key=lambda curve: _distance(curve.series.shape, shape)):
            there = curve.series.shape
            ran = self.algorithm(there, size_bytes)
            if isinstance(ran, Unavailable) or ran.algorithm != cost.algorithm:
                continue
            if cost.two_levels and there[0] * shape[1] != shape[0] * there[1]:
                continue
            flat = curve.no_slope(size_bytes)
            if flat is not None:
                why = why or flat
                continue
            # α is the time at the segment's start: rounds that become more with size are in its slope.
            start = min(size_bytes, curve.segment(size_bytes).first_bytes)
            rounds = cost.rounds(*shape, start) / ran.rounds(*there, start)
            before = self._moving(ran, there, size_bytes)
            return Carry(curve, cost, rounds, self._moving(cost, shape, size_bytes) / before if before else 1.0)
        least = f"fitted curve of {LEAST_RANKS} or more ranks by the same algorithm"
        if cost.two_levels:
            least += f" and {on_a_host(shape)} ranks on a host"
        return why or Unavailable("nothing-to-carry", f"there is no {least}")

    def _moving(self, model: CostModel, shape: Shape, size_bytes: int) -> float:
        """A number that grows as the time per byte."""
        if self.parameters is None or not size_bytes:
            return model.sent(*shape, size_bytes)
        alone = model.rounds(*shape, size_bytes) * self.parameters.alpha_seconds
        return self.parameters.seconds(model, *shape, size_bytes) - alone

    def held_out(self) -> HeldOut:
        """The error on the largest number of ranks, carried from the curves of fewer ranks."""
        series = [curve.series for curve in self.curves]
        largest = max((curve.shape[0] for curve in series), default=0)
        fewer = replace(self, curves=tuple(curve for curve in self.curves if curve.series.shape[0] < largest))

        def seconds(shape: Shape, size_bytes: int) -> float | None:
            carry = fewer.carry(shape, size_bytes)
            return carry.seconds(size_bytes).value if isinstance(carry, Carry) else None

        why_not = f"a test needs two measured numbers of ranks, each {LEAST_RANKS} or more, by the same algorithm"
        return HeldOut.of(series, None, seconds, ("carried from fewer ranks", why_not))


def _distance(shape: Shape, other: Shape) -> float:
    return sum(abs(math.log(amount / other_amount)) for amount, other_amount in zip(shape, other, strict=True))
