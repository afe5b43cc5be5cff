"""What was not measured: the time of a call at other sizes and on other numbers of ranks, what that rests on, and how
far it reaches beyond the data.

On ranks that were measured, the fit of their own curve answers, beyond its largest size the last piece of it alone; on
others a scaling model does: the rounds and bytes of an algorithm times parameters that were found in the same data.
How wrong the same way of predicting was where the truth was kept from it stands beside every answer.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from busbw.errors import AnalysisError
from busbw.ops import bus_factor
from busbw.units import about_size, format_rate, format_size, format_time
from busbw_analysis.data.intervals import tail_of_medians
from busbw_analysis.data.series import Point, Series
from busbw_analysis.fitting.checks import LEAST_SIZES
from busbw_analysis.fitting.curve import Fit, Segment, fit_points, fit_series, launch_matrix, resampled_cuts
from busbw_analysis.fitting.score import VALID_SIZES, Validation, validation
from busbw_analysis.fitting.segments import Cuts
from busbw_analysis.models.costs import INSIDE_AS_BETWEEN
from busbw_analysis.predict.scaling_models import BY_CURVE, ROUNDED, ScalingModel, Value, answering

NEW_REGIME = "a new regime"
"""What is said of a question for which another set of parameters may hold than for all that was measured."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is predicted of one call: ``seconds`` with its interval, what it rests on and what is extrapolated.

    ``measured`` is the point of the same ranks and size, where the data have it; it was part of what the fit has seen.
    ``ties`` are the times that other algorithms predict which the data cannot tell from the chosen one, None where
    parameters do not tell. ``notes`` are those of the model that answers.
    """

    op: str
    size_bytes: int
    ranks: int
    hosts: int
    seconds: Value
    basis: str
    algorithm: str | None
    formula: str
    parameters: str
    interval_note: str
    extrapolated: tuple[str, ...]
    held_out: Validation
    measured: Point | None
    ties: tuple[tuple[str, float | None], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def algbw(self) -> float | None:
        """B/s; None for an op that has no size."""
        return self.size_bytes / self.seconds.value if self.size_bytes else None

    @property
    def busbw(self) -> float | None:
        """B/s; None where there is no wire."""
        factor = bus_factor(self.op, self.ranks)
        return None if self.algbw is None or factor is None else self.algbw * factor

    @property
    def error(self) -> float | None:
        """(predicted − measured) / measured; None where it was not measured."""
        return None if self.measured is None else self.seconds.value / (self.measured.time_ns / 1e9) - 1


@dataclass(frozen=True, slots=True)
class FittedCurve:
    """A curve with its fit and, where there are launches enough, the cuts of every resample of them."""

    series: Series
    fit: Fit
    resampled: Cuts | None

    def seconds(self, size_bytes: int) -> Value:
        """The time by the piece that the size falls in: the last one beyond the largest size. The interval of a size
        between two pieces holds what both say, for where one ends and the other begins was not measured.
        """
        piece = self.fit.segments[bisect_right(self.fit.breaks_bytes, size_bytes)]
        value = _by_piece(piece, size_bytes)
        if self.resampled is None:
            return Value(value)
        count = len(self.resampled.starts)
        sizes = np.broadcast_to(np.asarray(self.fit.sizes_bytes, dtype=np.float64), (count, len(self.fit.sizes_bytes)))
        found = self.resampled.predict(sizes, np.full(count, float(size_bytes)))
        tail = tail_of_medians(len(self.series.in_common[0]))
        low, high = (float(end) for end in np.quantile(found, (tail, 1 - tail)))
        # Where resamples cut elsewhere, what all launches say may lie outside.
        ends = [value, *(_by_piece(one, size_bytes) for one in self.around(size_bytes))]
        return Value(value, min(low, *ends), max(high, *ends))

    def around(self, size_bytes: int) -> tuple[Segment, ...]:
        """The two pieces that a size lies between; none where it is inside of one, or outside of all."""
        pairs = pairwise(self.fit.segments)
        return next((pair for pair in pairs if pair[0].last_bytes < size_bytes < pair[1].first_bytes), ())

    def jump(self, size_bytes: int) -> str | None:
        """What has to be said of a size where two pieces say different times."""
        around = self.around(size_bytes)
        if not around:
            return None
        least, most = sorted(_by_piece(one, size_bytes) for one in around)
        if most <= least * (1 + VALID_SIZES):
            return None
        ends = f"{format_size(around[0].last_bytes)} and {format_size(around[1].first_bytes)}"
        times = f"{format_time(least * 1e9)} or {format_time(most * 1e9)}"
        return f"between {ends}, where the time jumps and it was not measured at which size: {times}"


def _by_piece(piece: Segment, size_bytes: int) -> float:
    return piece.alpha_seconds + piece.beta_seconds_per_byte * size_bytes


def curve_of(series: Series) -> FittedCurve:
    """Fit a curve, to be asked for other sizes. Raises AnalysisError for one that carries no fit."""
    fit = fit_series(series)
    if not isinstance(fit, Fit):
        raise AnalysisError(f"the curve of {series.key.label} carries no prediction: {fit.reason}", code=fit.code)
    sizes = np.asarray(fit.sizes_bytes, dtype=np.float64)
    resampled = resampled_cuts(sizes, launch_matrix(series.in_common), len(fit.segments))
    return FittedCurve(series, fit, resampled)


def by_curve(curve: FittedCurve, size_bytes: int) -> Forecast:
    """The answer of a curve for one size. Raises AnalysisError beyond the largest when its last piece has no slope."""
    series, fit = curve.series, curve.fit
    first, last = fit.sizes_bytes[0], fit.sizes_bytes[-1]
    piece = fit.segments[bisect_right(fit.breaks_bytes, size_bytes)]
    flat = "beta" in piece.at_bound
    if size_bytes > last and flat:
        raise AnalysisError(
            f"{format_size(size_bytes)} is beyond the largest measured size, {format_size(last)}, and from "
            f"{format_size(piece.first_bytes)} on time does not grow with size, so no rate follows for larger ones; "
            "measure larger sizes",
            code="no-slope",
        )
    seconds = curve.seconds(size_bytes)
    jump = curve.jump(size_bytes)
    held_out = _beyond(curve, size_bytes / last) if size_bytes > last else _between(fit)
    untested = [f"sizes below {format_size(first)}"] if size_bytes < first else []
    beyond = size_words(size_bytes, first, last)
    if jump:
        untested.append("where it jumps")
        beyond.append(f"jump: {about_size(size_bytes)} is {jump}")
    rate = "time does not grow with size" if flat else f"B {format_rate(1 / piece.beta_seconds_per_byte)} (algbw)"
    return Forecast(
        op=series.key.op,
        size_bytes=size_bytes,
        ranks=len(series.key.ranks),
        hosts=series.key.hosts,
        seconds=seconds,
        basis=BY_CURVE,
        algorithm=None,
        formula="T = α + S/B, in pieces",
        parameters=(
            f"α {format_time(piece.alpha_seconds * 1e9)}, {rate}, from the sizes {format_size(piece.first_bytes)} to "
            f"{format_size(piece.last_bytes)}"
        ),
        interval_note=fit.interval_note,
        extrapolated=tuple(beyond),
        held_out=held_out.asked_for(*untested),
        measured=_point(series, size_bytes),
    )


def size_words(size_bytes: int, first: int, last: int) -> list[str]:
    """What is to be said of a size outside of those that were measured."""
    if size_bytes > last * ROUNDED:
        how = about_size(size_bytes), format_size(last)
        return [f"size: {how[0]} is {size_bytes / last:.3g} × the largest measured one, {how[1]}"]
    if size_bytes < first:
        return [f"size: {about_size(size_bytes)} is below the smallest measured one, {format_size(first)}"]
    return []


def _between(fit: Fit) -> Validation:
    checked = fit.held_out_sizes
    why = fit.validation_note.removeprefix("not validated: ")
    if checked.median_error is None:
        return replace(checked, held_out=why)
    how = f"{checked.count} held-out sizes"
    # Where those passed and the fit did not, it is for what else it was tried on.
    how = f"{why}; {how}" if checked.passed and not fit.validated else how
    return replace(checked, held_out=how, passed=fit.validated)


def _beyond(curve: FittedCurve, reach: float) -> Validation:
    """Hide the largest sizes, as far as the question reaches or as the data allow, and predict them from the others."""
    sizes, times = curve.fit.sizes_bytes, curve.fit.times_ns
    count = max(sum(1 for size in sizes if size * reach <= sizes[-1]), LEAST_SIZES)
    if count >= len(sizes):
        return validation(f"{len(sizes)} sizes leave none to be held out", None, VALID_SIZES)
    try:
        fit = fit_points(sizes[:count], times[:count])
    except AnalysisError as error:
        return validation(f"without the largest sizes there is no fit: {error}", None, VALID_SIZES)
    errors = [
        abs(_by_piece(fit.segments[-1], size) / (time / 1e9) - 1)
        for size, time in zip(sizes[count:], times[count:], strict=True)
    ]
    tried = sizes[-1] / sizes[count - 1]
    far = tried >= min(reach, sizes[-1] / sizes[-2]) and tried * 1.001 >= reach
    largest = f"the largest sizes ({len(errors)})"
    how = f"{largest}, predicted from the others up to {format_size(sizes[count - 1])} (× {tried:.3g}),"
    if errors[-1] > VALID_SIZES:
        how += f" the farthest off by {errors[-1]:.1%},"
    found = validation(how, errors, VALID_SIZES)
    # The nearer ones may be right by the same piece that the farthest has left.
    found = replace(found, passed=found.passed and errors[-1] <= VALID_SIZES)
    return found if far else found.asked_for(f"× {reach:.3g}")


def by_scaling_model(
    models: Sequence[ScalingModel], ranks: int, hosts: int, size_bytes: int, reaches: Sequence[str], like: Series | None
) -> Forecast:
    """The answer of the chosen one of ``models`` for ``ranks`` on ``hosts``, or of one that cannot be told from it.
    ``reaches`` is what is extrapolated, ``like`` the curve of just these ranks. Raises AnalysisError where no such
    algorithm exists for so many ranks.
    """
    model, instead = answering(models, ranks, hosts, size_bytes)
    cost = model.cost
    run = cost.at(ranks, hosts, size_bytes)
    beyond = [NEW_REGIME] if any(NEW_REGIME in said for said in reaches) else []
    parameters = model.origin
    if not cost.of_hosts_known(ranks, hosts, size_bytes):
        parameters += f"; of {run.algorithm} {INSIDE_AS_BETWEEN}"
    return Forecast(
        op=cost.op,
        size_bytes=size_bytes,
        ranks=ranks,
        hosts=hosts,
        seconds=model.at(ranks, hosts, size_bytes),
        basis=model.basis,
        algorithm=run.algorithm,
        formula=run.formula,
        parameters=parameters,
        interval_note=model.interval_note,
        extrapolated=(*reaches, *([instead] if instead else [])),
        held_out=model.held_out_for(ranks, hosts, size_bytes).asked_for(*beyond),
        measured=None if like is None else _point(like, size_bytes),
        ties=tuple(
            (other.cost.algorithm, other.told(ranks, hosts, size_bytes))
            for other in models
            if other.tied and other.cost is not cost and other.cost.possible(ranks, hosts, size_bytes)
        ),
        notes=model.notes,
    )


def _point(series: Series, size_bytes: int) -> Point | None:
    return next((point for point in series.points if point.size_bytes == size_bytes), None)
