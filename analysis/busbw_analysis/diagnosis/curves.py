"""The curves of a run, each with everything that it is compared with."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from busbw.ops import LOCAL, ON_SOCKETS, STORING
from busbw.system.catalog import Catalogue
from busbw_analysis.data.bands import BANDS, Band, band_of
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.series import Series
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
