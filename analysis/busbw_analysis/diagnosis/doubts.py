"""Which references of a run cannot be trusted: the only place that decides it; every verdict and output follows.

A model or a measured peak is doubted if its own measurements were disturbed or scatter, or if it and the results do not
fit each other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.summary import CaseSummary
from busbw_analysis.diagnosis.verdicts import (
    MODEL_TOLERANCE,
    Curve,
    Doubt,
    ends_of,
    judged_points,
    model_ratio_at,
    peak_share_at,
)
from busbw_analysis.models.costs import Parameters
from busbw_analysis.peaks.peaks import Peak

BEATEN: Final = 0.5
"""A time below this share of what a reference says contradicts the reference."""
_LEAST_RATIOS: Final = 3
"""From this number of results on, a model that most of them beat is doubted."""


def with_doubts(curves: Sequence[Curve], cases: Sequence[CaseSummary]) -> tuple[Curve, ...]:
    """``curves`` with ``model_doubt`` and ``peak_doubt``; ``cases`` are all of the run, by index."""
    contradicted, exceeded = _contradicted_models(curves, cases), _exceeded_peaks(curves)
    known: dict[tuple[int, ...], Doubt | None] = {}

    def doubt_of(measured: tuple[int, ...], other: Doubt | None) -> Doubt | None:
        if measured not in known:
            known[measured] = _doubt_of_cases(measured, curves, cases)
        return known[measured] or other

    def doubted(curve: Curve) -> Curve:
        model, peak = curve.parameters, curve.peak
        return replace(
            curve,
            model_doubt=doubt_of(model.cases, "contradicted" if _messages(model) in contradicted else None)
            if isinstance(model, Parameters)
            else None,
            peak_doubt=doubt_of(peak.cases, "exceeded" if peak.cases in exceeded else None)
            if isinstance(peak, Peak)
            else None,
        )

    return tuple(map(doubted, curves))


def _doubt_of_cases(measured: Sequence[int], curves: Sequence[Curve], cases: Sequence[CaseSummary]) -> Doubt | None:
    """Why a reference that was ``measured`` with these cases cannot be trusted, by these cases alone."""
    if any(cases[index].disturbance.high for index in measured):
        return "disturbed"
    for series in (curve.series for curve in curves):
        points = [point for point in series.points if point.case in measured]
        if any(low < BEATEN * high for low, high in map(ends_of, points)):
            return "scattered"
        # Time does not fall with size, so the time of the smallest message, which is α, is too long.
        if len(points) > 1 and any(ends_of(point)[1] < BEATEN * points[0].time_ns for point in series.points):
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
    for _, index in judged_points(curve):
        point, ratio = curve.series.points[index], model_ratio_at(curve, index)
        if ratio is not None:
            low, high = (ratio * end / point.time_ns for end in ends_of(point))
            yield _messages(parameters), (ratio, low, high)


def _exceeded_peaks(curves: Sequence[Curve]) -> set[tuple[int, ...]]:
    """The cases of the sockets' rates that some operation exceeds by so much that they limit no other one either.

    Not those of memory copies, which only messages in a cache exceed.
    """
    return {
        curve.peak.cases
        for curve in curves
        if isinstance(curve.peak, Peak) and curve.peak.level == "plain TCP of a host"
        if any((peak_share_at(curve, index) or 0.0) > MODEL_TOLERANCE for _, index in judged_points(curve))
    }
