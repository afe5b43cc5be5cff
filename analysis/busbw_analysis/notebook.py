"""An analysed run for notebooks and scripts: data frames, a figure, and an HTML summary."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from html import escape
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from busbw.errors import UsageError, refuse_unknown
from busbw.runs.store import usual_results_dir
from busbw.system.catalog import catalogue
from busbw_analysis.assembly.judge import judgement_of
from busbw_analysis.data.imported import LogFacts
from busbw_analysis.diagnosis.answer import answer_of
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.export.tidy import Columns, case_columns, sample_columns
from busbw_analysis.report import plots
from busbw_analysis.report.curves import curve_label, panel_of, varying_fields
from busbw_analysis.report.show import about, show_blocks, show_rows
from busbw_analysis.report.to_terminal import render

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Run:
    """One run, or several pooled runs, with the analysis as ``judgement``."""

    judgement: Judgement

    def table(self) -> "pd.DataFrame":
        """One row per case and group of ranks, in the order of the plan; docs/python.md lists the columns."""
        return _frame(case_columns(self.judgement))

    def samples(self) -> "pd.DataFrame":
        """One row per sample and group of ranks; docs/python.md lists the columns. Times are ns per call."""
        return _frame(sample_columns(self.judgement.samples)).astype({"group": "category"})

    def plot(self, op: str) -> "Figure":
        """Plot the busbw of ``op`` over size, with intervals, fits, models and peaks; algbw if nothing crosses a wire.

        Raises UsageError if the run has no curve of ``op``.
        """
        rated = (curve for curve in self.judgement.curves if any(point.algbw for point in curve.series.points))
        drawn = dict.fromkeys(curve.series.key.op for curve in rated)
        if op not in drawn:
            refuse_unknown("op", op, drawn)
        curves = [curve for curve in self.judgement.curves if curve.series.key.op == op]
        varying = varying_fields(curve.series.key for curve in curves)
        labels = [curve_label(curve.series.key, varying) for curve in curves]
        panel = panel_of(curves, labels)
        with plots.canvas((0.12, 0.1, 0.84, 0.8), width=560, height=360) as (figure, axes):
            plots.paint(axes, panel)
            figure.patch.set_visible(True)
            plots.dress(axes, muted="#555555", hairline="#dddddd")
            handles, names = axes.get_legend_handles_labels()
            entries = dict(zip(names, handles, strict=True))
            axes.legend(entries.values(), entries.keys(), fontsize=9, frameon=False)
            axes.set_title(f"{op}: {panel.heading}", loc="left", x=0, fontsize=12)
        return figure

    def _repr_html_(self) -> str:
        """The answer and the table, as a notebook shows them."""
        answer = "".join(f"<p>{label}: {escape(text)}</p>" for label, text in answer_of(self.judgement).lines)
        table = render(show_blocks(show_rows(self.judgement), *about(self.judgement)))
        return f"{answer}<pre>{escape(table)}</pre>"


def _frame(columns: Columns) -> "pd.DataFrame":
    """``columns`` as a frame. Raises UsageError without pandas."""
    try:
        import pandas as pd  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise UsageError("a data frame needs pandas: pip install 'busbw[frames]'", code="no-pandas") from error
    return pd.DataFrame(columns)


def _facts(given: Mapping[str, str | int | None]) -> LogFacts:
    """Facts about logs, by the names of the fields. Raises UsageError for an unknown name or a wrong type."""
    names = [field.name for field in fields(LogFacts)]
    if unknown := next((name for name in given if name not in names), None):
        refuse_unknown("fact of a log", unknown, names)
    types = {"ranks": int, "hosts": int}
    for name, value in given.items():
        if value is not None and type(value) is not types.get(name, str):
            raise UsageError(f"invalid fact of a log: {name} {value!r}; expected {types.get(name, str).__name__}")
    return LogFacts.stated(given, catalogue())


def judged(
    runs: tuple[str, ...],
    results_dir: str | PathLike[str] | None,
    *,
    force: bool,
    facts: Mapping[str, str | int | None],
) -> Run:
    """See ``busbw_analysis.load``."""
    if not runs:
        raise UsageError("no run given; name a folder, the start or end of a run's name, or latest")
    folder = usual_results_dir() if results_dir is None else Path(results_dir)
    return Run(judgement_of(runs, folder, None, force=force, facts=_facts(facts)))
