"""Which of the references that curves are compared with cannot be trusted.

``doubts_of`` alone decides that; every verdict and output follows. A model or a measured peak is doubted if its own
measurements were disturbed or scatter, or if it and the results do not fit each other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

from busbw_analysis.data.series import SeriesKey
from busbw_analysis.data.summary import CaseSummary
from busbw_analysis.diagnosis.curves import Curve
from busbw_analysis.models.costs import Parameters
from busbw_analysis.peaks.peaks import Peak

Doubt = Literal["disturbed", "scattered", "contradicted", "exceeded"]
"""Why a reference cannot be trusted. ``disturbed``: other load while it was measured; ``scattered``: its times
scatter too much; ``contradicted``: it and the results do not fit each other; ``exceeded``: a rate is above the peak.
"""

DOUBTS: Final[dict[Doubt, str]] = {
    "disturbed": "the reference was disturbed",
    "scattered": "the times of the reference scatter too much",
    "contradicted": "the reference does not fit the results",
    "exceeded": "the reference is too low",
}

MODEL_TOLERANCE: Final = 1.25
"""Up to this factor, a time agrees with the model; a rule of thumb, not a test."""
BEATEN: Final = 0.5
"""A time below this share of what a reference says contradicts the reference."""
_LEAST_RATIOS: Final = 3
"""From this number of results on, a model that most of them beat is doubted."""


@dataclass(frozen=True, slots=True)
class Doubts:
    """Why the model and the peak of a curve cannot be trusted; None if they can."""

    model: Doubt | None
    peak: Doubt | None


def doubts_of(curves: Sequence[Curve], cases: Sequence[CaseSummary]) -> dict[SeriesKey, Doubts]:
    """Why the model and the peak of each of ``curves`` cannot be trusted; ``cases`` are all of the run, by index."""
    exceeded = _exceeded_peaks(curves)
    by_cases = cache(lambda measured: _doubt_of_cases(measured, curves, cases))
    misfit = cache(lambda messages: _misfit([row for curve in curves for row in _ratios(curve, messages, cases)]))

    def of_curve(curve: Curve) -> Doubts:
        model = peak = None
        if isinstance(curve.parameters, Parameters):
            model = by_cases(curve.parameters.cases) or misfit(_messages(curve.parameters))
        if isinstance(curve.peak, Peak):
            peak = by_cases(curve.peak.cases) or ("exceeded" if curve.peak.cases in exceeded else None)
        return Doubts(model, peak)

    return {curve.series.key: of_curve(curve) for curve in curves}


def _doubt_of_cases(measured: Sequence[int], curves: Sequence[Curve], cases: Sequence[CaseSummary]) -> Doubt | None:
    """Why a reference that was ``measured`` with these cases cannot be trusted, by these cases alone."""
    if any(cases[index].disturbance.high for index in measured):
        return "disturbed"
    for series in (curve.series for curve in curves):
        points = [point for point in series.points if point.case in measured]
        if any(low < BEATEN * high for low, high in (point.ends for point in points)):
            return "scattered"
        # Time does not fall with size, so the time of the smallest message, which is α, is too long.
        if len(points) > 1 and any(point.ends[1] < BEATEN * points[0].time_ns for point in series.points):
            return "contradicted"
    return None


def _messages(parameters: Parameters) -> tuple[float, float]:
    """What all models from the same messages share."""
    return parameters.alpha_seconds, parameters.beta_seconds_per_byte


def _misfit(ratios: Sequence[tuple[float, float, float]]) -> Doubt | None:
    """Whether results contradict a model: most are faster than it allows, or some take less than half of its time
    although others are slower.
    """
    beaten = sum(ratio < 1 / MODEL_TOLERANCE for ratio, _, _ in ratios)
    mostly = len(ratios) >= _LEAST_RATIOS and 2 * beaten > len(ratios)
    mixed = any(high < BEATEN for _, _, high in ratios) and any(low > MODEL_TOLERANCE for _, low, _ in ratios)
    return "contradicted" if mostly or mixed else None


def _ratios(
    curve: Curve, messages: tuple[float, float], cases: Sequence[CaseSummary]
) -> Iterator[tuple[float, float, float]]:
    """Each judged time of a curve over its model's, if that is from ``messages``: median and both ends of the interval.

    None of calls in another mode than the messages: calls in a row, for example, hide part of α.
    """
    parameters = curve.parameters
    if not isinstance(parameters, Parameters) or not parameters.cases or _messages(parameters) != messages:
        return
    if cases[parameters.cases[0]].case.mode != curve.series.key.mode:
        return
    for judged in curve.judged:
        ratio, point = judged.model_ratio, judged.point
        if ratio is not None:
            low, high = (ratio * end / point.time_ns for end in point.ends)
            yield ratio, low, high


def _exceeded_peaks(curves: Sequence[Curve]) -> set[tuple[int, ...]]:
    """The cases of the sockets' rates that some operation exceeds by so much that they limit no other one either.

    Not those of memory copies, which only messages in a cache exceed.
    """
    return {
        curve.peak.cases
        for curve in curves
        if isinstance(curve.peak, Peak) and curve.peak.level == "plain TCP of a host"
        if any((judged.peak_share or 0.0) > MODEL_TOLERANCE for judged in curve.judged)
    }
