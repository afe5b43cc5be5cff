"""The judgement on runs with all slices."""

from collections.abc import Sequence
from pathlib import Path

from busbw.system.catalog import Catalogue, catalogue
from busbw_analysis.assembly.slices import SLICES
from busbw_analysis.data.imported import LogFacts
from busbw_analysis.data.load import Dataset, pool
from busbw_analysis.data.sources import read_all
from busbw_analysis.diagnosis import judge as core
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.diagnosis.selftest import SelfTest, selftest_for


def judge(dataset: Dataset, selftest: SelfTest | None = None, rows: Catalogue | None = None) -> Judgement:
    """The judgement on ``dataset``, as ``diagnosis.judge``, with all slices."""
    return core.judge(dataset, selftest, rows, [row.judge for row in SLICES])


def judgement_of(
    runs: Sequence[str], results_dir: Path, peaks_file: Path | None, *, force: bool, facts: LogFacts | None = None
) -> Judgement:
    """The judgement on the runs named by ``runs`` (paths, names, or ``latest``), pooled; ``facts`` apply to logs.

    Raises StoreError for anything that is not a run, and UnlikeRuns for runs that may not be pooled unless ``force``.
    """
    rows = catalogue(peaks_file)
    return judge_with_selftest(pool(read_all(results_dir, runs, facts), force=force), rows)


def judge_with_selftest(dataset: Dataset, rows: Catalogue) -> Judgement:
    """The judgement on ``dataset``, with the self-test stored beside its first run."""
    first = dataset.runs[0]
    if first.run.imported is not None:
        return judge(dataset, None, rows)
    backend = first.run.cases[0].backend if first.run.cases else ""
    began = max(stored.run.started for stored in dataset.runs)
    return judge(dataset, selftest_for(first.path.parent, backend, len(first.run.hosts), began), rows)
