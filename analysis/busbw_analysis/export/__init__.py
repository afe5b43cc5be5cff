"""Runs as other programs read them: the table of formats, one module for each kind."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pandas as pd

from busbw_analysis.data.load import Dataset
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.export import frames, nccl_tests, openmetrics, osu, trace
from busbw_analysis.report import compose, to_markdown
from busbw_analysis.report.tables.frames import case_frame, sample_frame


@dataclass(frozen=True, slots=True)
class Exporter:
    """A format: what it is of, a judged run as bytes, and where it has them the samples of one.

    cases, samples: raise AnalysisError for a run without anything that the format can hold
    binary: it is no text
    """

    name: str
    summary: str
    cases: Callable[[Judgement], bytes]
    samples: Callable[[Dataset], bytes] | None = None
    binary: bool = False


def _tidy(name: str, summary: str, written: Callable[[pd.DataFrame], bytes], *, binary: bool = False) -> Exporter:
    """A format that holds any table: one row a case and group of ranks, or one a sample."""
    return Exporter(name, summary, lambda one: written(case_frame(one)), lambda one: written(sample_frame(one)), binary)


EXPORTERS: Final = {
    one.name: one
    for one in (
        Exporter("nccl-tests", "the tables of nccl-tests 2.18", nccl_tests.text),
        Exporter("osu", "the tables of the OSU micro-benchmarks", osu.text),
        _tidy("csv", "one row a case, or with --samples one a sample", frames.csv),
        _tidy("json-lines", "the same, one object a line", frames.json_lines),
        _tidy("parquet", "the same, by pyarrow", frames.parquet, binary=True),
        Exporter("openmetrics", "gauges, for the textfile collector of node_exporter", openmetrics.text),
        Exporter("trace", "timelines of steps of training, for Perfetto and chrome://tracing", trace.text),
        Exporter("markdown", "the report", lambda judged: to_markdown.render(compose.page_of(judged)).encode()),
    )
}
