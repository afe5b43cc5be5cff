"""Times of algorithms from messages or joint fits, and predictions of what was not measured: all that commands, reports
and comparisons of algorithms use of it.
"""

from collections.abc import Sequence
from functools import lru_cache, partial

from busbw_analysis.data.load import Dataset
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.models.costs import Parameters
from busbw_analysis.predict.forecast import Forecast
from busbw_analysis.predict.prediction import Line, Prediction, Scaling, answer, query, scaling, sized
from busbw_analysis.predict.scaling_models import BY_MESSAGES, Costed, by_joint_fit, by_messages
from busbw_analysis.predict.selection import joint_fits_of, measured_curves, read_groups

__all__ = [
    "BY_MESSAGES",
    "Costed",
    "Forecast",
    "Line",
    "Prediction",
    "Questions",
    "Scaling",
    "by_joint_fit",
    "by_messages",
    "joint_fits_of",
    "read_groups",
    "scaling",
    "sized",
]


class Questions:
    """Answers questions about ``datasets`` as read by ``read_groups``; curves are selected once for many questions."""

    def __init__(self, datasets: Sequence[Dataset]) -> None:
        self.datasets = tuple(datasets)
        self._curves = lru_cache(maxsize=None)(partial(measured_curves, self.datasets))

    def predict(
        self,
        op: str,
        ranks: int,
        sizes_bytes: Sequence[int] = (),
        *,
        algorithm: str | None = None,
        hosts: int | None = None,
        ranks_per_host: int | None = None,
        **way: str | float | None,
    ) -> Prediction:
        """The time of ``op`` on ``ranks`` ranks at each of ``sizes_bytes``.

        ``algorithm``: an explicit algorithm over send/recv; None is the library's own.
        ``hosts``, ``ranks_per_host``: at most one of them, to distribute the ranks over hosts.
        ``way``: dtype, mode or imbalance, as in ``measured_curves``.

        Raises UsageError for an invalid question, AnalysisError if the data do not determine an answer.
        """
        data = self._curves(op, algorithm, **way)
        return answer(data, query(data, ranks, sizes_bytes, hosts=hosts, ranks_per_host=ranks_per_host))

    def messages(self, op: str, *, far: bool) -> Parameters | Unavailable:
        """α, β and R of messages inside a host (``far``: between hosts), timed in the same way as ``op``."""
        return self._curves(op, None).parameters(far=far)
