"""The curves of a run, each with everything that it is compared with."""

from collections.abc import Iterator
from dataclasses import dataclass

from busbw.ops import LOCAL, ON_SOCKETS, STORING
from busbw.system.catalog import Catalogue
from busbw_analysis.data.bands import BANDS, Band, band_of
from busbw_analysis.data.series import Series
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.fitting.curve import Fit, fit_series
from busbw_analysis.fitting.published import Published, published_like
from busbw_analysis.models.bounds import Explanation, explain
from busbw_analysis.models.costs import Parameters
from busbw_analysis.models.parameters import shared
from busbw_analysis.models.results import Results
from busbw_analysis.models.select import Prediction, predict, predict_alternatives
from busbw_analysis.peaks.paths import gpu_model
from busbw_analysis.peaks.peaks import Hardware, Peak, peak_of


@dataclass(frozen=True, slots=True)
class Curve:
    """One measured curve with everything that it is compared with.

    model: predicted times; ``model[i]`` belongs to ``series.points[i]``.
    parameters: the parameters of the model.
    peak: the rate that is 100 %.
    explanation: where the time goes; available if the model is.
    alternatives: textbook algorithms at the largest size, not used by verdicts.
    published: published results for the same GPUs, which verdicts use if there is no model.
    """

    series: Series
    fit: Fit | Unavailable
    model: tuple[Prediction, ...] | Unavailable
    parameters: Parameters | Unavailable
    peak: Peak | Unavailable
    explanation: Explanation | Unavailable
    alternatives: tuple[Prediction, ...]
    published: tuple[Published, ...]

    def judged_points(self) -> Iterator[tuple[Band, int]]:
        """The measured bands of sizes, each with the index of its largest size; none of memory, storage and the socket
        streams that serve as peaks, which are not judged.
        """
        if self.series.key.op in LOCAL | STORING | ON_SOCKETS:
            return
        last = {band_of(point.size_bytes): index for index, point in enumerate(self.series.points)}
        yield from ((band, last[band]) for band, _, _ in BANDS if band in last)

    def model_ratio_at(self, index: int) -> float | None:
        """Measured over predicted time of a point; None without a model."""
        model = self.model
        return None if isinstance(model, Unavailable) else self.series.points[index].time_ns / model[index].time_ns

    def peak_share_at(self, index: int) -> float | None:
        """Busbw of a point over the peak; None if one of them is unknown."""
        peak, busbw = self.peak.busbw if isinstance(self.peak, Peak) else None, self.series.points[index].busbw
        return None if peak is None or busbw is None else busbw / peak


def curves_of(results: Results, rows: Catalogue) -> tuple[Curve, ...]:
    """All curves of ``results``; ``rows`` is the catalogue of peaks."""
    hardware = Hardware(results.facts, results.rates, rows)
    return tuple(_curve(series, results, hardware) for series in results.series)


def _curve(series: Series, results: Results, hardware: Hardware) -> Curve:
    key, factor, library = series.key, series.bus_factor, results.library
    sizes = [point.size_bytes for point in series.points]
    parameters = shared(results.messages.parameters_for(series), series.sharing, far=key.hosts > 1)
    return Curve(
        series=series,
        fit=fit_series(series),
        model=predict(key, factor, sizes, parameters, library),
        alternatives=predict_alternatives(key, factor, sizes[-1], parameters),
        parameters=parameters,
        peak=peak_of(series, hardware),
        explanation=explain(series, results.series, parameters, library),
        published=_published(series, hardware),
    )


def _published(series: Series, hardware: Hardware) -> tuple[Published, ...]:
    if series.key.device == "cpu":
        return ()
    gpu = gpu_model(hardware.facts.gpus_of(series.key.ranks), hardware.rows)
    return () if isinstance(gpu, Unavailable) else published_like(series.key, gpu.name)
