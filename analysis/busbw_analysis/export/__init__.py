"""Export of runs to formats of other programs: the table of formats, with one module per kind."""

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
    """An export format.

    name, summary: name and description for the command line
    cases: writes the results of a run; raises AnalysisError if the format can represent none of them
    samples: writes the samples of a run; None if the format has no samples
    binary: whether the output is not text
    """

    name: str
    summary: str
    cases: Callable[[Judgement], bytes]
    samples: Callable[[Dataset], bytes] | None = None
    binary: bool = False


def _tidy(name: str, summary: str, written: Callable[[pd.DataFrame], bytes], *, binary: bool = False) -> Exporter:
    """A format for any table: one row per case and group of ranks, or one per sample."""
    return Exporter(name, summary, lambda run: written(case_frame(run)), lambda run: written(sample_frame(run)), binary)


EXPORTERS: Final = {
    exporter.name: exporter
    for exporter in (
        Exporter("nccl-tests", "the tables of nccl-tests 2.18", nccl_tests.text),
        Exporter("osu", "the tables of the OSU micro-benchmarks", osu.text),
        _tidy("csv", "one row per case, or with --samples per sample", frames.csv),
        _tidy("json-lines", "as csv, one JSON object per line", frames.json_lines),
        _tidy("parquet", "as csv, needs pyarrow", frames.parquet, binary=True),
        Exporter("openmetrics", "gauges for the textfile collector of node_exporter", openmetrics.text),
        Exporter("trace", "timelines of training steps for Perfetto and chrome://tracing", trace.text),
        Exporter("markdown", "the report", lambda judged: to_markdown.render(compose.page_of(judged)).encode()),
    )
}
