"""Export to gauges in the OpenMetrics text format, which the textfile collector of node_exporter reads too."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest

from busbw.runs.records import Detail, case_in_words
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.names import rank_list
from busbw_analysis.data.summary import CaseSummary
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.peaks.peaks import Peak
from busbw_analysis.report.show import peaks_of, share_of

_LABELS: Final = (
    *("machine", "op", "dtype", "redop", "size_bytes", "in_place", "backend", "device", "mode", "settings"),
    *("ranks", "hosts"),
)
_HAVE_LABELS: Final[frozenset[Detail]] = frozenset({"op", "dtype", "redop", "mode", "in_place", "device"})

_Of = Callable[[GroupSummary, Peak | None], float | None]
_GAUGES: Final[tuple[tuple[str, str, str, _Of], ...]] = (
    ("busbw_time", "seconds", "Median time per call of the slowest rank", lambda group, _: group.time_ns / 1e9),
    ("busbw_time_low", "seconds", "Lower end of its interval", lambda group, _: _seconds(group.interval.low_ns)),
    ("busbw_time_high", "seconds", "Upper end of its interval", lambda group, _: _seconds(group.interval.high_ns)),
    ("busbw_algorithm_bandwidth", "bytes_per_second", "Size over time", lambda group, _: group.algbw),
    ("busbw_bus_bandwidth", "bytes_per_second", "Bus bandwidth as in nccl-tests", lambda group, _: group.busbw),
    ("busbw_peak", "ratio", "Bandwidth over the peak of the hardware", share_of),
)
"""Name, unit, help text, and value for a group of ranks; None omits the gauge."""


def _seconds(time_ns: float | None) -> float | None:
    return None if time_ns is None else time_ns / 1e9


@dataclass(frozen=True, slots=True)
class _Gauges:
    judgement: Judgement

    def collect(self) -> Iterator[Metric]:
        peaks = peaks_of(self.judgement)
        for name, unit, words, of in _GAUGES:
            gauge = GaugeMetricFamily(name, words, labels=_LABELS, unit=unit)
            for summary in self.judgement.cases:
                for group in summary.groups:
                    value = of(group, peaks.get((summary.index, group.ranks)))
                    if value is not None:
                        gauge.add_metric(self._labels(summary, group), value)
            yield gauge
        failed = GaugeMetricFamily(
            "busbw_failed_cases", "Cases without a result, or with wrong data", labels=["machine"]
        )
        count = sum(summary.state == "failed" for summary in self.judgement.cases)
        failed.add_metric([self._machine], count)
        yield failed
        began = GaugeMetricFamily("busbw_started", "Start of the run", labels=["machine"], unit="seconds")
        started = self.judgement.runs[-1].run.started
        began.add_metric([self._machine], datetime.fromisoformat(started).timestamp())
        yield began

    @property
    def _machine(self) -> str:
        return self.judgement.runs[0].run.machine

    def _labels(self, summary: CaseSummary, group: GroupSummary) -> list[str]:
        case = summary.case
        hosts = self.judgement.facts.host_count(group.ranks)
        return [
            self._machine,
            *(str(value) if value is not None else "" for value in (case.op, case.dtype, case.redop, case.size_bytes)),
            *(str(case.in_place).lower(), case.backend, case.device, case.mode),
            ", ".join(case_in_words(case, _HAVE_LABELS)),
            *(rank_list(group.ranks), "" if hosts is None else str(hosts)),
        ]


def text(judgement: Judgement) -> bytes:
    """One gauge for each number of a case and group of ranks."""
    written: bytes = generate_latest(_Gauges(judgement))  # type: ignore[no-untyped-call]  # not typed in the library
    return written
