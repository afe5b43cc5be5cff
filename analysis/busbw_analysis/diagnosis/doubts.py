"""Which references of a run cannot be trusted: the only place that decides it; every verdict and output follows.

A model or a measured peak is doubted if its own measurements were disturbed or scatter, or if it and the results do not
fit each other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.summary import CaseSummary
from busbw_analysis.diagnosis.expected import Expected
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


def doubts_of(curves: Sequence[Expected], cases: Sequence[CaseSummary]) -> Iterator[Doubts]:
    """Why the model and the peak of each of ``curves`` cannot be trusted; ``cases`` are all of the run, by index."""
    contradicted, exceeded = _contradicted_models(curves, cases), _exceeded_peaks(curves)
    measured_with = {curve.parameters.cases for curve in curves if isinstance(curve.parameters, Parameters)}
    measured_with |= {curve.peak.cases for curve in curves if isinstance(curve.peak, Peak)}
    of_cases = {measured: _doubt_of_cases(measured, curves, cases) for measured in measured_with}
    for curve in curves:
        model, peak = curve.parameters, curve.peak
        model_doubt = peak_doubt = None
        if isinstance(model, Parameters):
            model_doubt = of_cases[model.cases] or ("contradicted" if _messages(model) in contradicted else None)
        if isinstance(peak, Peak):
            peak_doubt = of_cases[peak.cases] or ("exceeded" if peak.cases in exceeded else None)
        yield Doubts(model_doubt, peak_doubt)


def _doubt_of_cases(measured: Sequence[int], curves: Sequence[Expected], cases: Sequence[CaseSummary]) -> Doubt | None:
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


def _contradicted_models(curves: Sequence[Expected], cases: Sequence[CaseSummary]) -> set[tuple[float, float]]:
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
    curve: Expected, cases: Sequence[CaseSummary]
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


def _exceeded_peaks(curves: Sequence[Expected]) -> set[tuple[int, ...]]:
    """The cases of the sockets' rates that some operation exceeds by so much that they limit no other one either.

    Not those of memory copies, which only messages in a cache exceed.
    """
    return {
        curve.peak.cases
        for curve in curves
        if isinstance(curve.peak, Peak) and curve.peak.level == "plain TCP of a host"
        if any((curve.peak_share_at(index) or 0.0) > MODEL_TOLERANCE for _, index in curve.judged_points())
    }
