"""Which references of a run cannot be trusted: the only place that decides it; every verdict and output follows.

A model or a measured peak is doubted if its own measurements were disturbed or scatter, or if it and the results do not
fit each other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.series import SeriesKey
from busbw_analysis.data.summary import CaseSummary
from busbw_analysis.diagnosis.curves import Curve
from busbw_analysis.models.costs import Parameters
from busbw_analysis.peaks.peaks import Peak

Doubt = Literal["disturbed", "scattered", "contradicted", "exceeded"]
"""Why a reference cannot be trusted. ``disturbed``: other load while it was measured; ``scattered``: its launches
differ too much; ``contradicted``: it and the results do not fit each other; ``exceeded``: a rate is above the peak.
"""

DOUBTS: Final[dict[Doubt, str]] = {
    "disturbed": "the reference was disturbed",
    "scattered": "the launches of the reference differ too much",
    "contradicted": "the reference does not fit the results",
    "exceeded": "the peak is too low",
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
    contradicted, exceeded = _contradicted_models(curves, cases), _exceeded_peaks(curves)
    by_cases = cache(lambda measured: _doubt_of_cases(measured, curves, cases))

    def of_curve(curve: Curve) -> Doubts:
        model = peak = None
        if isinstance(curve.parameters, Parameters):
            misfit: Doubt | None = "contradicted" if _messages(curve.parameters) in contradicted else None
            model = by_cases(curve.parameters.cases) or misfit
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


def _contradicted_models(curves: Sequence[Curve], cases: Sequence[CaseSummary]) -> set[tuple[float, float]]:
    """α and β of the models that the results contradict: most results are faster than the model allows, or some take
    less than half of its time although others are slower.
    """
    by_messages = by_key(entry for curve in curves for entry in _ratios(curve, cases))
    return {
        messages
        for messages, ratios in by_messages.items()
        if (
            len(ratios) >= _LEAST_RATIOS
            and 2 * sum(ratio < 1 / MODEL_TOLERANCE for ratio, _, _ in ratios) > len(ratios)
        )
        or (any(high < BEATEN for _, _, high in ratios) and any(low > MODEL_TOLERANCE for _, low, _ in ratios))
    }


def _ratios(
    curve: Curve, cases: Sequence[CaseSummary]
) -> Iterator[tuple[tuple[float, float], tuple[float, float, float]]]:
    """α and β of a curve's model, with each judged time over the model's: median and both ends of the interval.

    None of calls in another mode than the messages: calls in a row, for example, hide part of α.
    """
    parameters = curve.parameters
    if not isinstance(parameters, Parameters) or not parameters.cases:
        return
    if cases[parameters.cases[0]].case.mode != curve.series.key.mode:
        return
    for _, index in curve.judged_points():
        point, ratio = curve.series.points[index], curve.model_ratio_at(index)
        if ratio is not None:
            low, high = (ratio * end / point.time_ns for end in point.ends)
            yield _messages(parameters), (ratio, low, high)


def _exceeded_peaks(curves: Sequence[Curve]) -> set[tuple[int, ...]]:
    """The cases of the sockets' rates that some operation exceeds by so much that they limit no other one either.

    Not those of memory copies, which only messages in a cache exceed.
    """
    return {
        curve.peak.cases
        for curve in curves
        if isinstance(curve.peak, Peak) and curve.peak.level == "plain TCP of a host"
        if any((curve.peak_share_at(index) or 0.0) > MODEL_TOLERANCE for _, index in curve.judged_points())
    }
