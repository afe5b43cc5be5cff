"""Export of runs to formats of other programs: the table of formats, with one module per kind."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from busbw_analysis.assembly import compose
from busbw_analysis.assembly.slices import SLICES
from busbw_analysis.data.load import Samples
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.export import nccl_tests, openmetrics, osu, tidy
from busbw_analysis.export.tidy import Columns, case_columns, sample_columns
from busbw_analysis.report import to_markdown


@dataclass(frozen=True, slots=True)
class Exporter:
    """An export format.

    cases: writes the results of a run; raises AnalysisError if the format can represent none of them
    samples: writes the samples of a run; None if the format has no samples
    binary: whether the output is not text
    """

    cases: Callable[[Judgement], bytes]
    samples: Callable[[Samples], bytes] | None = None
    binary: bool = False


def _table_exporter(written: Callable[[Columns], bytes], *, binary: bool = False) -> Exporter:
    """A format for any table: one row per case and group of ranks, or one per sample."""
    return Exporter(lambda run: written(case_columns(run)), lambda run: written(sample_columns(run)), binary)


EXPORTERS: Final = {
    "nccl-tests": Exporter(nccl_tests.text),
    "osu": Exporter(osu.text),
    "csv": _table_exporter(tidy.to_csv),
    "json-lines": _table_exporter(tidy.to_json_lines),
    "parquet": _table_exporter(tidy.to_parquet, binary=True),
    "openmetrics": Exporter(openmetrics.text),
    **{name: Exporter(write) for row in SLICES for name, write in row.exports.items()},
    "markdown": Exporter(lambda judged: to_markdown.render(compose.page_of(judged)).encode()),
}
