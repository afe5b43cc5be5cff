"""Export to gauges in the OpenMetrics text format, which the textfile collector of node_exporter reads too."""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Final

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.openmetrics.exposition import generate_latest

from busbw.runs.records import Case, Detail, case_in_words
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.names import rank_list
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


def text(judgement: Judgement) -> bytes:
    """One gauge for each number of a case and group of ranks."""
    registry = CollectorRegistry()
    peaks, machine = peaks_of(judgement), judgement.runs[0].run.machine
    gauges = [(Gauge(name, words, _LABELS, unit=unit, registry=registry), of) for name, unit, words, of in _GAUGES]
    for summary in judgement.cases:
        for group in summary.groups:
            labels = [machine, *_labels(summary.case, group, judgement.facts.host_count(group.ranks))]
            for gauge, of in gauges:
                if (value := of(group, peaks.get((summary.index, group.ranks)))) is not None:
                    gauge.labels(*labels).set(value)
    failed = Gauge("busbw_failed_cases", "Cases without a result, or with wrong data", ["machine"], registry=registry)
    failed.labels(machine).set(sum(summary.state == "failed" for summary in judgement.cases))
    began = Gauge("busbw_started", "Start of the run", ["machine"], unit="seconds", registry=registry)
    began.labels(machine).set(datetime.fromisoformat(judgement.runs[-1].run.started).timestamp())
    written: bytes = generate_latest(registry)  # type: ignore[no-untyped-call]  # not typed in the library
    return written


def _labels(case: Case, group: GroupSummary, hosts: int | None) -> Iterator[str]:
    texts = (case.op, case.dtype, case.redop, case.size_bytes)
    yield from ("" if value is None else str(value) for value in texts)
    yield from (str(case.in_place).lower(), case.backend, case.device, case.mode)
    yield ", ".join(case_in_words(case, _HAVE_LABELS))
    yield from (rank_list(group.ranks), "" if hosts is None else str(hosts))
