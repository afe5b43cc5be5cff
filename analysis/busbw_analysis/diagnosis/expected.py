"""What one measured curve should reach: the times of its model and the rate of its peak."""

from collections.abc import Iterator
from dataclasses import dataclass

from busbw.ops import LOCAL, ON_SOCKETS, STORING
from busbw_analysis.data.bands import BANDS, Band, band_of
from busbw_analysis.data.series import Series
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.models.costs import Parameters
from busbw_analysis.models.select import Prediction
from busbw_analysis.peaks.peaks import Peak


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """A measured curve, and what it should reach.

    model: predicted times; ``model[i]`` belongs to ``series.points[i]``.
    parameters: the parameters of the model.
    peak: the rate that is 100 %.
    """

    series: Series
    model: tuple[Prediction, ...] | Unavailable
    parameters: Parameters | Unavailable
    peak: Peak | Unavailable

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
