"""The curves of a run, each with everything that it is compared with."""

from dataclasses import dataclass

from busbw.system.catalog import Catalogue
from busbw_analysis.data.series import Series
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.doubts import Doubt, Doubts, doubts_of
from busbw_analysis.diagnosis.expected import Expected
from busbw_analysis.fitting.curve import Fit, fit_series
from busbw_analysis.fitting.published import Published, published_like
from busbw_analysis.models.bounds import Explanation, explain
from busbw_analysis.models.parameters import shared
from busbw_analysis.models.results import Results
from busbw_analysis.models.select import Prediction, predict, predict_alternatives
from busbw_analysis.peaks.paths import gpu_model
from busbw_analysis.peaks.peaks import Hardware, peak_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve(Expected):
    """One measured curve with everything that it is compared with.

    explanation: where the time goes; available if the model is.
    alternatives: textbook algorithms at the largest size, not used by verdicts.
    published: published results for the same GPUs, which verdicts use if there is no model.
    model_doubt, peak_doubt: why no verdict may be by the model or the peak.
    """

    fit: Fit | Unavailable
    explanation: Explanation | Unavailable
    alternatives: tuple[Prediction, ...] = ()
    published: tuple[Published, ...] = ()
    model_doubt: Doubt | None = None
    peak_doubt: Doubt | None = None


def curves_of(results: Results, rows: Catalogue) -> tuple[Curve, ...]:
    """All curves of ``results``; ``rows`` is the catalogue of peaks."""
    hardware = Hardware(results.facts, results.rates, rows)
    expected = [_expected(series, results, hardware) for series in results.series]
    doubts = doubts_of(expected, results.cases)
    return tuple(_curve(*of_curve, results, hardware) for of_curve in zip(expected, doubts, strict=True))


def _expected(series: Series, results: Results, hardware: Hardware) -> Expected:
    key, sizes = series.key, [point.size_bytes for point in series.points]
    parameters = shared(results.messages.parameters_for(series), series.sharing, far=key.hosts > 1)
    return Expected(
        series=series,
        model=predict(key, series.bus_factor, sizes, parameters, results.library),
        parameters=parameters,
        peak=peak_of(series, hardware),
    )


def _curve(expected: Expected, doubts: Doubts, results: Results, hardware: Hardware) -> Curve:
    series, parameters = expected.series, expected.parameters
    largest_bytes = series.points[-1].size_bytes
    return Curve(
        series=series,
        model=expected.model,
        parameters=parameters,
        peak=expected.peak,
        fit=fit_series(series),
        explanation=explain(series, results.series, parameters, results.library),
        alternatives=predict_alternatives(series.key, series.bus_factor, largest_bytes, parameters),
        published=_published(series, hardware),
        model_doubt=doubts.model,
        peak_doubt=doubts.peak,
    )


def _published(series: Series, hardware: Hardware) -> tuple[Published, ...]:
    if series.key.device == "cpu":
        return ()
    gpu = gpu_model(hardware.facts.gpus_of(series.key.ranks), hardware.rows)
    return () if isinstance(gpu, Unavailable) else published_like(series.key, gpu.name)
