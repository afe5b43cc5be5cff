"""The curves of a run, each with everything that it is compared with, and which of these references cannot be trusted.

``doubts_of`` alone decides that; every verdict and output follows. A model or a measured peak is doubted if its own
measurements were disturbed or scatter, or if it and the results do not fit each other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

from busbw.ops import LOCAL, ON_SOCKETS, STORING
from busbw.system.catalog import Catalogue
from busbw_analysis.data.bands import BANDS, Band, band_of
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.series import Series, SeriesKey
from busbw_analysis.data.summary import CaseSummary
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.fitting.curve import Fit, fit_series
from busbw_analysis.fitting.published import Published, PublishedPoint, published_like, published_of
from busbw_analysis.models.bounds import Explanation, explain
from busbw_analysis.models.costs import Parameters
from busbw_analysis.models.parameters import Gamma, gamma_of, shared
from busbw_analysis.models.results import Results
from busbw_analysis.models.select import Prediction, models_of, predict, predict_alternatives
from busbw_analysis.peaks.paths import gpu_model
from busbw_analysis.peaks.peaks import Hardware, Peak, peak_of

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
class JudgedPoint:
    """The largest measured size of a band, compared with each reference; None if that is unknown.

    peak_share: busbw over the peak.
    model_ratio: measured over predicted time.
    """

    band: Band
    point: GroupSummary
    peak_share: float | None
    model_ratio: float | None
    published: PublishedPoint | None


@dataclass(frozen=True, slots=True)
class Curve:
    """One measured curve with everything that it is compared with.

    model: predicted times; ``model[i]`` belongs to ``series.points[i]``.
    parameters: the parameters of the model.
    gamma: the time per reduced byte; not part of the model.
    peak: the rate that is 100 %.
    explanation: where the time goes; available if the model is.
    alternatives: textbook algorithms at the largest size, not used by verdicts.
    published: published results for the same GPUs, which verdicts use if there is no model.
    judged: the bands of sizes; none of memory, storage and the socket streams that serve as peaks.
    """

    series: Series
    fit: Fit | Unavailable
    model: tuple[Prediction, ...] | Unavailable
    parameters: Parameters | Unavailable
    gamma: Gamma
    peak: Peak | Unavailable
    explanation: Explanation | Unavailable
    alternatives: tuple[Prediction, ...]
    published: tuple[Published, ...]
    judged: tuple[JudgedPoint, ...]


def curves_of(results: Results, rows: Catalogue) -> tuple[Curve, ...]:
    """All curves of ``results``; ``rows`` is the catalogue of peaks."""
    hardware = Hardware(results.facts, results.rates, rows)
    return tuple(_curve(series, results, hardware) for series in results.series)


def _curve(series: Series, results: Results, hardware: Hardware) -> Curve:
    key, factor = series.key, series.bus_factor
    sizes = [point.size_bytes for point in series.points]
    gamma = gamma_of(key, results.messages.sums)
    parameters = shared(results.messages.parameters_for(series), series.sharing, far=key.hosts > 1)
    models = models_of(key, sizes, results.library)
    model = predict(key, factor, sizes, models, parameters)
    peak, published = peak_of(series, hardware), _published(series, hardware)
    return Curve(
        series=series,
        fit=fit_series(series),
        model=model,
        alternatives=predict_alternatives(key, factor, sizes[-1], parameters),
        parameters=parameters,
        gamma=gamma,
        peak=peak,
        explanation=explain(series, models, parameters, gamma),
        published=published,
        judged=tuple(_judged(series, model, peak, published)),
    )


def _judged(
    series: Series,
    model: Sequence[Prediction] | Unavailable,
    peak: Peak | Unavailable,
    published: Sequence[Published],
) -> Iterator[JudgedPoint]:
    if series.key.op in LOCAL | STORING | ON_SOCKETS:
        return
    most = peak.busbw if isinstance(peak, Peak) else None
    last = {band_of(point.size_bytes): index for index, point in enumerate(series.points)}
    for band, index in ((band, last[band]) for band, _, _ in BANDS if band in last):
        point = series.points[index]
        yield JudgedPoint(
            band=band,
            point=point,
            peak_share=None if most is None or point.busbw is None else point.busbw / most,
            model_ratio=None if isinstance(model, Unavailable) else point.time_ns / model[index].time_ns,
            published=published_of(published, point),
        )


def _published(series: Series, hardware: Hardware) -> tuple[Published, ...]:
    if series.key.device == "cpu":
        return ()
    gpu = gpu_model(hardware.facts.gpus_of(series.key.ranks), hardware.rows)
    return () if isinstance(gpu, Unavailable) else published_like(series.key, gpu.name)


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
