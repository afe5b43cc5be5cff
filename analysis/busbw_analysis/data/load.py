"""Reads runs and pools them into one ``Dataset``; refuses to pool runs whose environments differ.

All analysis starts from a ``Dataset``. The launch is the experimental unit: pooled runs contribute launches, never
anonymous samples.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from busbw.errors import AnalysisError, UsageError
from busbw.runs import store
from busbw.runs.records import Case, Imported, Measurement
from busbw_analysis.data.apart import apart
from busbw_analysis.data.block_columns import packed
from busbw_analysis.data.counters import Moved, moved_in
from busbw_analysis.data.facts import Facts, facts_of
from busbw_analysis.data.kept import Summarised, plain_run, read_summarised, summary_of
from busbw_analysis.data.lateness import GroupLateness, together
from busbw_analysis.data.likeness import differences, notices_of
from busbw_analysis.data.series import Series, series_of
from busbw_analysis.data.summary import CaseSummary, summarise


@dataclass(frozen=True)
class Samples:
    """The samples of several runs, read when they are first asked for.

    sources: runs with their samples, or the folders that have them
    cases: the index of every case in ``Dataset.cases``
    """

    sources: tuple[store.StoredRun | Path, ...]
    cases: Mapping[Case, int]

    @cached_property
    def runs(self) -> tuple[store.StoredRun, ...]:
        """All runs with their samples; control characters in their text are escaped. Raises like ``store.read``."""
        return tuple(
            plain_run(store.read(source, keep=packed) if isinstance(source, Path) else source)
            for source in self.sources
        )

    def rows(self) -> Iterator[tuple[int, int, Measurement | Imported]]:
        """The results of all runs: index of the run, index of the case, and the row (``PairBlock``: a pair matrix)."""
        for run, stored in enumerate(self.runs):
            for row in stored.rows:
                if isinstance(row, Measurement | Imported):
                    yield run, self.cases[row.case], row


@dataclass(frozen=True, slots=True)
class Dataset:
    """One or more comparable runs, pooled.

    runs: as recorded, without their samples
    facts: of their hosts, ranks and backend
    summaries: one for each case of their plans
    series: the curves of the measured cases
    lateness: how late the ranks of each group arrive
    notices: warnings about the data: torn lines, facts that only some runs recorded, overruled differences
    counters: counters of the hosts that moved
    samples: the raw samples, for what shows or tests them
    """

    runs: tuple[store.StoredRun, ...]
    facts: Facts
    summaries: tuple[CaseSummary, ...]
    series: tuple[Series, ...]
    lateness: tuple[GroupLateness, ...]
    notices: tuple[str, ...]
    counters: tuple[Moved, ...]
    samples: Samples


def load(paths: Sequence[Path], *, force: bool = False) -> Dataset:
    """Read the run folders ``paths`` and pool them.

    Raises UnlikeRuns, with the key and both values, if two runs differ in one of ``CHECKED``. With ``force`` they are
    pooled anyway, with a notice. Raises AnalysisError for no run or the same run twice, StoreError for an unreadable
    folder.
    """
    return pool(map(read_summarised, paths), force=force)


def pool(inputs: Iterable[store.StoredRun | Summarised], *, force: bool | None = False) -> Dataset:
    """``load`` for runs that are already read. Control characters in their text are escaped here, for all later use."""
    summarised = _apart(list(map(summary_of, inputs)))
    runs = tuple(run.stored if run.is_plain else plain_run(run.stored) for run in summarised)
    if not runs:
        message = "no run given; name at least one run folder"
        raise AnalysisError(message)
    notices = [warning for stored in runs for warning in stored.warnings]
    identifiers = [stored.run.id for stored in runs]
    twice = sorted({identifier for identifier in identifiers if identifiers.count(identifier) > 1})
    if twice:
        raise UsageError(f"run {twice[0]} is given more than once, so its launches would count twice; give it once")
    for stored in runs[1:]:
        notices += notices_of(differences(runs[0], stored), force=force)
    facts = facts_of(runs)
    summaries = summarise(runs, [run.table for run in summarised], facts)
    indices = {summary.case: summary.index for summary in summaries}
    places = ([indices[case] for case in stored.run.cases] for stored in runs)
    of_runs = list(zip((run.lateness for run in summarised), places, strict=True))
    return Dataset(
        runs=runs,
        facts=facts,
        summaries=summaries,
        series=series_of(summaries, facts),
        lateness=together(of_runs, facts.hosts),
        notices=tuple(notices),
        counters=moved_in(runs),
        samples=Samples(tuple(run.samples or run.stored.path for run in summarised), indices),
    )


def _apart(inputs: list[Summarised]) -> list[Summarised]:
    """Logs of other tools over other hosts or devices, each with groups of its own."""
    if len(inputs) < 2 or any(run.stored.run.imported is None for run in inputs):
        return inputs
    whole = [run.samples or store.read(run.stored.path, keep=packed) for run in inputs]
    moved = apart(whole)
    return inputs if moved == whole else list(map(summary_of, moved))


def pool_by_setup(inputs: Iterable[store.StoredRun | Summarised]) -> tuple[Dataset, ...]:
    """Group runs that agree in all of ``CHECKED`` and pool each group; groups keep the given order.

    Raises the errors of ``pool``.
    """
    sides: list[list[Summarised]] = []
    for summarised in map(summary_of, inputs):
        matching = (
            side
            for side in sides
            if all(difference.unknown_in for difference in differences(side[0].stored, summarised.stored))
        )
        if (side := next(matching, None)) is None:
            sides.append(side := [])
        side.append(summarised)
    return tuple(pool(side) for side in sides) or (pool(()),)
