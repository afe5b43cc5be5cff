"""The segmented α–β fit of time over size for one curve, and its error.

Errors are relative and coefficients non-negative, because ordinary least squares let the largest size decide α. A fit
has one to four segments with jumps between them, because protocols and algorithms change with size. The number of
segments is the smallest whose error on left-out sizes is within one standard error of the best (Breiman et al. 1984),
paired by size; more if BIC supports them strongly (Kass and Raftery 1995).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

import numpy as np

from busbw.errors import AnalysisError
from busbw.ops import ARITHMETIC, LATENCIES, LOCAL, STORING
from busbw.units import counted, format_size, format_time
from busbw_analysis.data.intervals import tail_of_medians
from busbw_analysis.data.rank_statistics import kendall
from busbw_analysis.data.series import Series
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.fitting.score import VALID_LAUNCHES, VALID_SIZES, Validation, validation
from busbw_analysis.fitting.segments import Cuts, Floats, best_cuts

LEAST_SIZES: Final = 5
"""Sizes that a curve needs; a segment may have fewer."""

LEAST_IN_A_SEGMENT: Final = 4
"""Sizes that a segment needs."""

LAUNCHES_FOR_A_BOOTSTRAP = 5
"""With fewer launches, no resampling gives an interval with nearly its nominal coverage."""

_SIZES_FOR_FOUR = 24
_RESAMPLES = 400
_VALID_IN_SAMPLE = 0.10
"""A fit with a larger mean error on its own sizes is not validated, whatever its held-out errors."""
_FALL: Final = 0.10
"""A line that falls by at most this fraction from the smallest to the largest size counts as flat."""
_BY_CHANCE: Final = 0.01
"""Allowed probability that a flat noisy curve counts as falling."""
_LARGEST_FALL: Final = 3.0
_TINY = 1e-18
_STRONG = 6.0
"""A difference in BIC that Kass and Raftery 1995 call strong evidence."""
_NEGLIGIBLE = 1e-4
"""A difference of 0.01 % in the error does not justify another segment."""

Coefficient = Literal["alpha", "beta"]


@dataclass(frozen=True, slots=True)
class Segment:
    """T(S) = ``alpha_seconds`` + ``beta_seconds_per_byte`` · S for the sizes from ``first_bytes`` to ``last_bytes``.

    ``at_bound``: coefficients that are 0 because negative values are not allowed.
    """

    alpha_seconds: float
    beta_seconds_per_byte: float
    first_bytes: int
    last_bytes: int
    at_bound: tuple[Coefficient, ...]

    def seconds(self, size_bytes: float) -> float:
        """T of one size."""
        return self.alpha_seconds + self.beta_seconds_per_byte * size_bytes


@dataclass(frozen=True, slots=True)
class Candidate:
    """One number of segments: its mean leave-one-size-out log error, the standard error of that, and its BIC."""

    segments: int
    held_out_error: float
    standard_error: float
    bic: float


@dataclass(frozen=True, slots=True)
class Bounds:
    """Both ends of a 95 % interval from resampling launches."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class FitIntervals:
    """95 % intervals of the fit from a cluster bootstrap over launches, with ``resamples`` refits."""

    alpha_seconds: Bounds
    algbw: Bounds | None
    resamples: int


@dataclass(frozen=True, slots=True)
class Fit:
    """The fit of one curve.

    ``segments``, ``breaks_bytes``: the segments and the breakpoints between them.
    ``alpha_seconds``: the intercept of the first segment.
    ``algbw``, ``busbw``: asymptotic rates of the last segment in B/s; None without a slope or a bus factor.
    ``half_size_bytes``: the size at which half of that rate is reached (n½).
    ``mean_residual``, ``max_residual``: |T̂ − T| / T over the fitted sizes.
    ``candidates``: all numbers of segments that were tried.
    ``intervals``: None with too few launches; ``interval_note`` gives the reason.
    ``validated``: whether held-out sizes, held-out launches (if several) and residuals are small enough; None if no
    size could be held out. ``validation_note`` gives the errors or the reason, ``doubts`` what is wrong of a fit that
    is not validated.
    """

    sizes_bytes: tuple[int, ...]
    times_ns: tuple[float, ...]
    segments: tuple[Segment, ...]
    breaks_bytes: tuple[float, ...]
    alpha_seconds: float
    algbw: float | None
    busbw: float | None
    half_size_bytes: float | None
    mean_residual: float
    max_residual: float
    candidates: tuple[Candidate, ...]
    intervals: FitIntervals | None
    interval_note: str
    held_out_sizes: Validation
    held_out_launches: Validation
    validated: bool | None
    validation_note: str
    doubts: tuple[str, ...]


def fit_series(series: Series) -> Fit | Unavailable:
    """The fit of one measured curve, or the reason why there is none."""
    if series.key.op in ARITHMETIC:
        why = "its time depends on its FLOP, which are not proportional to S; see the roofline"
        return Unavailable("see-roofline", why)
    if series.key.op in LATENCIES:
        return Unavailable("latency", "its time is that of one load, which has no rate")
    ranks = len(series.key.ranks)
    if series.key.op not in LOCAL | STORING and ranks < 2:
        why = f"{series.key.op} on {ranks} rank sends nothing, so it has no α and β; measure on 2 or more ranks"
        return Unavailable("one-rank", why)
    sizes, times = [point.size_bytes for point in series.points], [point.time_ns for point in series.points]
    try:
        return fit_points(sizes, times, bus_factor=series.bus_factor, launch_medians_ns=series.in_common)
    except AnalysisError as error:
        return Unavailable(error.code, str(error))


def fit_points(
    sizes_bytes: Sequence[int],
    times_ns: Sequence[float],
    *,
    bus_factor: float | None = None,
    launch_medians_ns: Sequence[Sequence[float]] = (),
) -> Fit:
    """Fit T(S) to sizes (bytes, ascending) and times (ns per call).

    ``launch_medians_ns[i]``: the median of each launch at size i, with the same launches in the same order at each
    size. Without them, or with fewer than 5, there is no interval. Raises AnalysisError for data that cannot be fitted.
    """
    if len(sizes_bytes) != len(times_ns):
        raise AnalysisError(f"{len(sizes_bytes)} sizes but {len(times_ns)} times: each size needs one time")
    if not any(sizes_bytes):
        raise AnalysisError("the op has no size, so its time cannot be fitted over size", code="no-size")
    sizes = np.asarray(sizes_bytes, dtype=np.float64)
    times = np.asarray(times_ns, dtype=np.float64) / 1e9
    refuse_curve(sizes_bytes, times)
    launches = launch_matrix(launch_medians_ns) / 1e9
    noise = _noise(launches)
    core = _fit_core(sizes, times, noise)
    residuals = np.abs(core.by_segments(sizes) / times - 1)
    first, last = core.segments[0], core.segments[-1]
    algbw = 1 / last.beta_seconds_per_byte if last.beta_seconds_per_byte > 0 else None
    intervals, note = _intervals(sizes, launches, len(core.segments))
    by_sizes = _held_out_sizes(sizes, times, noise)
    by_launches = _held_out_launches(sizes, launches, len(core.segments))
    validated, validation_note, doubts = _verdict(by_sizes, by_launches, float(residuals.mean()))
    return Fit(
        sizes_bytes=tuple(sizes_bytes),
        times_ns=tuple(times_ns),
        segments=core.segments,
        breaks_bytes=core.breaks_bytes,
        alpha_seconds=first.alpha_seconds,
        algbw=algbw,
        busbw=None if algbw is None or bus_factor is None else algbw * bus_factor,
        half_size_bytes=None if algbw is None else last.alpha_seconds * algbw,
        mean_residual=float(residuals.mean()),
        max_residual=float(residuals.max()),
        candidates=core.candidates,
        intervals=intervals,
        interval_note=note,
        held_out_sizes=by_sizes,
        held_out_launches=by_launches,
        validated=validated,
        validation_note=validation_note,
        doubts=doubts,
    )


def refuse_curve(sizes_bytes: Sequence[int], seconds: Floats) -> None:
    """Raise AnalysisError unless times over ascending sizes can be α + β·S, in one or more segments.

    Time may fall at a jump, for example when a library changes its protocol, and by noise, but not over the whole
    curve. A curve is refused if its line falls by more than 10 % and the order of sizes and times is as opposed
    (Kendall 1938) as in 1 of 100 flat curves. Of simulated flat curves of 5 to 24 sizes with 5 to 20 % noise, this
    refused 0 to 2 in 100; with 5 % noise, it refused all curves that fell to 38 % and 60 to 100 in 100 that fell to
    70 %.
    """

    def at(index: int) -> str:
        return f"{format_time(seconds[index] * 1e9)} at {format_size(sizes_bytes[index])}"

    twice = next((size for size, following in pairwise(sizes_bytes) if size == following), None)
    if twice is not None:
        raise AnalysisError(f"the curve has {format_size(twice)} twice; a fit needs each size once", code="size-twice")
    if sizes_bytes[0] <= 0:
        message = f"the curve has the size {format_size(sizes_bytes[0])}; a fit needs sizes above 0"
        raise AnalysisError(message, code="no-size")
    if len(sizes_bytes) < LEAST_SIZES:
        sizes = counted(len(sizes_bytes), "size")
        message = f"the curve has {sizes}; a fit needs at least {LEAST_SIZES} different sizes above 0"
        raise AnalysisError(message, code="few-sizes")
    for size, time in zip(sizes_bytes, seconds, strict=True):
        if not (math.isfinite(time) and time > 0):
            raise AnalysisError(
                f"the curve at {format_size(size)} has a time of {time:g} s; times must be positive and finite, so "
                "measure it again",
                code="impossible-time",
            )
    if _falls(np.asarray(sizes_bytes, dtype=np.float64), seconds):
        raise AnalysisError(
            f"the time of the curve falls with size, from {at(0)} to {at(-1)}, so it has no cost per byte; measure "
            "larger sizes, and check the smaller sizes for outliers or interference",
            code="negative-slope",
        )
    falls = np.maximum.accumulate(seconds) > _LARGEST_FALL * seconds
    if falls.any():
        low = int(falls.argmax())
        raise AnalysisError(
            f"the time of the curve falls from {at(int(seconds[:low].argmax()))} to {at(low)}, to less than "
            f"1/{_LARGEST_FALL:g}, which α + β·S cannot explain; check the smaller size for outliers or interference, "
            "and measure it again",
            code="falls",
        )


def _falls(sizes: np.ndarray, times: np.ndarray) -> bool:
    """Whether the unconstrained line of least squared relative error falls, and not by chance."""
    system = np.stack([np.ones_like(sizes), sizes / sizes[-1]], axis=1) / times[:, None]
    alpha, beta = np.linalg.lstsq(system, np.ones_like(times), rcond=None)[0]
    first = sizes[0] / sizes[-1]
    if beta * (1 - first) >= -_FALL * (alpha + beta * first):
        return False
    return kendall(sizes, times).p_falls < _BY_CHANCE


def launch_matrix(by_size: Sequence[Sequence[float]]) -> Floats:
    """The numbers of the launches at every size as launches × sizes; no rows if the sizes have different numbers of
    launches.
    """
    if len({len(launches) for launches in by_size}) != 1:
        return np.empty((0, len(by_size)))
    return np.asarray(by_size, dtype=np.float64).T


def _noise(launches: Floats) -> float:
    """Standard error of ln T from the variation between launches; 0 with a single launch."""
    if len(launches) < 2:
        return 0.0
    return float(np.sqrt(np.mean(np.var(np.log(launches), axis=0, ddof=1)) / len(launches)))


@dataclass(frozen=True, slots=True)
class _Core:
    """A fit without intervals and validation."""

    segments: tuple[Segment, ...]
    breaks_bytes: tuple[float, ...]
    candidates: tuple[Candidate, ...]

    def by_segments(self, sizes: Floats) -> Floats:
        """Seconds at ``sizes``, each from the segment that contains it."""
        number = np.searchsorted(np.asarray(self.breaks_bytes), sizes, side="right")
        alpha = np.asarray([segment.alpha_seconds for segment in self.segments])
        beta = np.asarray([segment.beta_seconds_per_byte for segment in self.segments])
        return np.asarray(alpha[number] + beta[number] * sizes)


def _fit_core(sizes: Floats, times: Floats, noise: float) -> _Core:
    count = len(sizes)
    most = min(count // LEAST_IN_A_SEGMENT, 4 if count >= _SIZES_FOR_FOUR else 3)
    numbers = range(1, most + 1)
    errors = [_left_out_errors(sizes, times, number) for number in numbers]
    cuts = [best_cuts(sizes[None], times[None], number, LEAST_IN_A_SEGMENT) for number in numbers]
    candidates: list[Candidate] = []
    for number, left_out, cut in zip(numbers, errors, cuts, strict=True):
        variance = max(float(cut.residual[0]) / count, noise**2, _TINY)
        bic = count * math.log(variance) + (3 * number - 1) * math.log(count)
        standard_error = float(left_out.std(ddof=1) / math.sqrt(count))
        candidates.append(Candidate(number, float(left_out.mean()), standard_error, bic))
    best = min(errors, key=lambda error: float(error.mean()))
    least = next(index for index, error in enumerate(errors) if _as_good(error, best))
    chosen = _strongest([candidate.bic for candidate in candidates], least)
    starts = [int(start) for start in cuts[chosen].starts[0]]
    ends = [*starts[1:], count]
    segments = tuple(_segment(sizes[low:high], times[low:high]) for low, high in zip(starts, ends, strict=True))
    breaks = tuple(float(np.sqrt(sizes[start - 1] * sizes[start])) for start in starts[1:])
    return _Core(segments, breaks, tuple(candidates))


def _as_good(errors: Floats, best: Floats) -> bool:
    """Whether the mean of ``errors`` is within one standard error of the mean of ``best``.

    The standard error is that of the paired differences by size, because next to a jump all candidates have similar
    errors. Unpaired, it hid the second of two planted jumps in 60 of 60 simulated curves of 24 sizes with 2 % noise;
    paired, in 2 of 60 (with 10 % noise: 60 and 52). A straight line was split by mistake in 2–3 and in 2–4 of 60.
    """
    extra = errors - best
    return float(extra.mean()) <= float(extra.std(ddof=1)) / math.sqrt(len(extra)) + _NEGLIGIBLE


def _strongest(bics: Sequence[float], least: int) -> int:
    """The index with the lowest BIC if it is above ``least`` and its evidence is strong; else ``least``.

    A left-out size next to a jump is predicted from the wrong side, however well the jump is known, so left-out errors
    penalise every jump. With 5 % noise, they alone find both of two planted jumps in 27 of 100 curves of 20 sizes, and
    with this rule in 91 to 100. A straight line is split by mistake in 4 of 100 with and without the rule; with 12
    sizes, in 10 with it.
    """
    lowest = min(range(len(bics)), key=lambda index: bics[index])
    return lowest if lowest > least and bics[least] - bics[lowest] > _STRONG else least


def _segment(sizes: Floats, times: Floats) -> Segment:
    """The line of non-negative least squares of relative errors: rows divided by T, columns scaled to at most 1."""
    rows = np.stack([1 / times, sizes / times], axis=1)
    scale = rows.max(axis=0)
    alpha, beta = (float(value) for value in _not_negative(rows / scale) / scale)
    named: dict[Coefficient, float] = {"alpha": alpha, "beta": beta}
    at_bound = tuple(name for name, value in named.items() if value == 0)
    return Segment(alpha, beta, int(sizes[0]), int(sizes[-1]), at_bound)


def _not_negative(rows: Floats) -> Floats:
    """The two coefficients, none below 0, with the least squares of 1 − ``rows`` · coefficients."""
    coefficients, *_ = np.linalg.lstsq(rows, np.ones(len(rows)), rcond=None)
    if (coefficients >= 0).all():
        return np.asarray(coefficients)
    # With one coefficient at its bound, the other is a line through the origin; the better of the two.
    each = np.maximum(rows.sum(axis=0), 0) / (rows**2).sum(axis=0)
    errors = ((1 - rows * each) ** 2).sum(axis=0)
    return np.where(np.arange(2) == np.argmin(errors), each, 0.0)


def _left_out_errors(sizes: Floats, times: Floats, segments: int) -> Floats:
    """|ln(T̂/T)| of every size, predicted by a fit to all others. A fold lacks one size, so a segment may too."""
    count = len(sizes)
    others = np.asarray([[other for other in range(count) if other != left] for left in range(count)])
    folds = best_cuts(sizes[others], times[others], segments, LEAST_IN_A_SEGMENT - 1)
    predicted = np.maximum(folds.predict(sizes[:, None])[:, 0], _TINY)
    return np.asarray(np.abs(np.log(predicted / times)))


def _intervals(sizes: Floats, launches: Floats, segments: int) -> tuple[FitIntervals | None, str]:
    """Percentiles over resamples of whole launches; the breakpoints are searched again in every resample.

    Plain percentiles covered the truth in 91 to 96 % of simulated curves of 5 to 20 launches, these in 92 to 99 %
    (`make bench-fit`).
    """
    count = len(launches)
    cuts = resampled_cuts(sizes, launches, segments)
    if cuts is None:
        few = "1 launch" if count == 1 else f"{count} launches" if count else "launches differ between sizes"
        return None, f"no interval: {few}; {LAUNCHES_FOR_A_BOOTSTRAP} are needed"
    tail = tail_of_medians(count)
    alpha, slopes = (
        Bounds(*np.quantile(values, (tail, 1 - tail)).tolist()) for values in (cuts.alpha[:, 0], cuts.beta[:, -1])
    )
    algbw = Bounds(1 / slopes.high, 1 / slopes.low) if slopes.low > 0 else None
    return FitIntervals(alpha, algbw, _RESAMPLES), f"95 % from resampling {count} launches"


def resampled_cuts(sizes: Floats, launches: Floats, segments: int) -> Cuts | None:
    """The fits of resampled ``launches`` (seconds, launches × sizes), each with this number of segments and its own
    breakpoints; None with too few launches.
    """
    if len(launches) < LAUNCHES_FOR_A_BOOTSTRAP:
        return None
    draws = np.random.default_rng(0).integers(0, len(launches), size=(_RESAMPLES, len(launches)))
    times = np.median(launches[draws], axis=1)
    return best_cuts(np.broadcast_to(sizes, times.shape), times, segments, LEAST_IN_A_SEGMENT)


def _held_out_sizes(sizes: Floats, times: Floats, noise: float) -> Validation:
    """Fit every second size and predict the sizes between them."""
    count = len(sizes)
    tested = np.arange(1, count - 1, 2)
    kept = np.setdiff1d(np.arange(count), tested)
    errors = None
    if len(kept) >= LEAST_IN_A_SEGMENT and len(tested) > 1:
        core = _fit_core(sizes[kept], times[kept], noise)
        errors = np.abs(core.by_segments(sizes[tested]) / times[tested] - 1)
    why_not = f"{count} sizes are too few to hold out every second one"
    return validation("every second size", errors, VALID_SIZES, why_not=why_not)


def _held_out_launches(sizes: Floats, launches: Floats, segments: int) -> Validation:
    """Predict each launch from a fit of all others with the same number of segments."""
    count, errors = len(launches), None
    if count > 1:
        others = np.asarray([np.median(np.delete(launches, left, axis=0), axis=0) for left in range(count)])
        everywhere = np.broadcast_to(sizes, launches.shape)
        cuts = best_cuts(everywhere, others, segments, LEAST_IN_A_SEGMENT)
        errors = np.abs(cuts.predict(everywhere) / launches - 1).ravel()
    why_not = "there is only one launch" if count else "no launch measured all sizes"
    return validation("each launch in turn", errors, VALID_LAUNCHES, why_not=why_not)


def _verdict(
    by_sizes: Validation, by_launches: Validation, mean_residual: float
) -> tuple[bool | None, str, tuple[str, ...]]:
    """Whether the fit is validated, a note with the errors or the reason, and the doubts."""
    tried = [test for test in (by_sizes, by_launches) if test.passed is not None]
    off = [f"{test.held_out} is off by {test.median_error:.1%} (median)" for test in tried if not test.passed]
    if mean_residual > _VALID_IN_SAMPLE:
        off.append(f"its own sizes are off by {mean_residual:.1%} (mean)")
    if off:
        return False, f"not validated: {'; '.join(off)}", tuple(off)
    if by_sizes.passed is None:
        return None, by_sizes.note, (by_sizes.note,)
    errors = [
        f"{test.held_out} is off by {test.median_error:.1%} (median), {test.worst_error:.1%} (worst)" for test in tried
    ]
    return True, f"validated: {'; '.join(errors)}", ()
