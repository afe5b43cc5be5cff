"""Predictions of what was not measured: all that commands, reports and training plans use of them."""

from collections.abc import Sequence
from functools import lru_cache

from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.models.costs import Parameters
from busbw_analysis.models.results import Results
from busbw_analysis.predict.forecast import Forecast
from busbw_analysis.predict.over_ranks import Line, Scaling, scaling
from busbw_analysis.predict.prediction import Prediction, answer, sized
from busbw_analysis.predict.query import query
from busbw_analysis.predict.selection import measured_curves, read_groups, read_results
from busbw_analysis.predict.ways import Ways

__all__ = [
    "Forecast",
    "Line",
    "Prediction",
    "Questions",
    "Scaling",
    "Ways",
    "read_groups",
    "read_results",
    "scaling",
    "sized",
]


class Questions:
    """Answers questions from ``results`` as read by ``read_results``; curves are selected once for many questions."""

    def __init__(self, results: Sequence[Results]) -> None:
        self.results = tuple(results)
        self._ways = lru_cache(maxsize=None)(self._select)

    def _select(self, op: str, algorithm: str | None, **way: str | float | None) -> Ways:
        return Ways(measured_curves(self.results, op, algorithm, **way))

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
        ways = self._ways(op, algorithm, **way)
        return answer(ways, query(ways.data, ranks, sizes_bytes, hosts=hosts, ranks_per_host=ranks_per_host))

    def messages(self, op: str, *, far: bool) -> Parameters | Unavailable:
        """α, β and R of messages inside a host (``far``: between hosts), timed in the same way as ``op``."""
        return self._ways(op, None).data.parameters(far=far)
