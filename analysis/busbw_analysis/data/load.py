"""Reads runs and pools them into one ``Dataset``; refuses to pool runs whose environments differ.

All analysis starts from a ``Dataset``. The launch is the experimental unit: pooled runs contribute launches, never
anonymous samples.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from busbw.errors import AnalysisError
from busbw.runs import store
from busbw.runs.facts import UNKNOWN_HOST, HostFacts
from busbw.runs.placement import (
    RankPlacement,
    oversubscribed_hosts,
    rank_placements,
    ranks_and_cores,
)
from busbw.runs.records import BackendTraits, Measurement, Run
from busbw.units import counted
from busbw_analysis.data.cases import CaseRow, cases_of
from busbw_analysis.data.kept import Summarised, read_summarised, summary_of
from busbw_analysis.data.lateness import GroupLateness, together
from busbw_analysis.data.launches import LaunchTable
from busbw_analysis.data.likeness import differences, is_unknown, notices_of
from busbw_analysis.data.samples import Samples, plain_run
from busbw_analysis.data.series import Series, series_of
from busbw_analysis.data.summary import CaseSummary, summarise


@dataclass(frozen=True, slots=True)
class Dataset:
    """One or more comparable runs, pooled.

    summaries: one for each of ``cases``
    series: the curves of the measured cases
    notices: warnings about the data: torn lines, facts that only some runs recorded, overruled differences
    lateness: how late the ranks of each group arrive
    tables: the numbers of the launches of each of ``runs``
    samples: the raw samples, for what shows or tests them
    """

    runs: tuple[store.StoredRun, ...]
    cases: tuple[CaseRow, ...]
    summaries: tuple[CaseSummary, ...]
    series: tuple[Series, ...]
    lateness: tuple[GroupLateness, ...]
    notices: tuple[str, ...]
    tables: tuple[LaunchTable, ...]
    samples: Samples

    def measurements(self) -> Iterator[tuple[int, Measurement]]:
        """All blocks with the index of their run."""
        yield from (
            (run, row) for run, stored in enumerate(self.runs) for row in stored.rows if isinstance(row, Measurement)
        )

    def with_cases(self, cases: tuple[CaseRow, ...]) -> "Dataset":
        """The same runs with other states of their cases."""
        return replace(self, cases=cases, summaries=_summaries(cases, self.runs, self.tables))

    @property
    def from_logs(self) -> bool:
        """Whether all runs are logs of other tools."""
        return all(stored.run.imported is not None for stored in self.runs)

    @property
    def pooled(self) -> tuple[str, ...]:
        """The ids of the runs whose launches are pooled; empty for a single run."""
        return tuple(stored.run.id for stored in self.runs) if len(self.runs) > 1 else ()

    @property
    def largest(self) -> Run:
        """The first run with the most ranks. Only runs pooled by force can differ in placement."""
        return _largest(self.runs)

    @property
    def hosts(self) -> Sequence[str]:
        """The host of every rank in the largest run."""
        return self.largest.hosts

    def hosts_of(self, ranks: Iterable[int]) -> tuple[str, ...]:
        """The distinct hosts of ``ranks``, in rank order."""
        hosts = self.hosts
        return tuple(dict.fromkeys(hosts[rank] for rank in ranks if rank < len(hosts)))

    def host_count(self, ranks: Iterable[int]) -> int | None:
        """The number of hosts of ``ranks``; None if a log of another tool does not contain it."""
        return None if is_unknown(self.runs[0].run, "hosts") else len(self.hosts_of(ranks))

    @property
    def hosts_in_words(self) -> str:
        """The number of hosts of all runs as text: ``1 host``, ``2 hosts`` or ``unknown hosts``."""
        if any(is_unknown(stored.run, "hosts") for stored in self.runs):
            return "unknown hosts"
        hosts = len({host for stored in self.runs for host in stored.run.hosts})
        return counted(hosts, "host")

    @property
    def placements(self) -> tuple[RankPlacement, ...]:
        """The placement of every rank in the largest run."""
        run = self.largest
        return rank_placements(run.hosts, run.environments)

    @property
    def backend(self) -> BackendTraits:
        """The traits of the backend."""
        return self.runs[0].run.backend

    @property
    def oversubscribed_hosts(self) -> dict[str, tuple[int, int]]:
        """The hosts with more ranks than usable cores, with (ranks, cores)."""
        run = self.largest
        return oversubscribed_hosts(run.hosts, run.environments)

    @property
    def full_hosts(self) -> tuple[str, ...]:
        """The hosts with exactly one rank per usable core, and so no spare core."""
        run = self.largest
        found = ranks_and_cores(run.hosts, run.environments)
        return tuple(host for host, (ranks, cores) in found.items() if ranks == cores)

    def environment(self, host: str) -> HostFacts:
        """The recorded facts of ``host``; all unknown if there are none."""
        return self.largest.environments.get(host, UNKNOWN_HOST)


def load(paths: Sequence[Path], *, force: bool = False) -> Dataset:
    """Read the run folders ``paths`` and pool them.

    Raises UnlikeRuns, with the key and both values, if two runs differ in one of ``CHECKED``. With ``force`` they are
    pooled anyway, with a notice. Raises AnalysisError for no run or the same run twice, StoreError for an unreadable
    folder.
    """
    return pool(map(read_summarised, paths), force=force)


def pool(found: Iterable[store.StoredRun | Summarised], *, force: bool = False) -> Dataset:
    """``load`` for runs that are already read. Control characters in their text are escaped here, for all later use."""
    known = list(map(summary_of, found))
    runs = tuple(run.stored if run.is_plain else plain_run(run.stored) for run in known)
    if not runs:
        message = "no run given; name at least one run folder"
        raise AnalysisError(message)
    notices = [warning for stored in runs for warning in stored.warnings]
    identifiers = [stored.run.id for stored in runs]
    twice = sorted({identifier for identifier in identifiers if identifiers.count(identifier) > 1})
    if twice:
        message = f"run {twice[0]} is given more than once; its launches would count twice"
        raise AnalysisError(message)
    for stored in runs[1:]:
        notices += notices_of(differences(runs[0], stored), force=force)
    cases = cases_of(runs)
    tables, indices = tuple(run.table for run in known), {row.case: row.index for row in cases}
    of_runs = [[indices[case] for case in stored.run.cases] for stored in runs]
    summaries, backend = _summaries(cases, runs, tables), runs[0].run.backend
    hosts = _largest(runs).hosts
    return Dataset(
        runs=runs,
        cases=cases,
        summaries=summaries,
        series=series_of(summaries, hosts, backend.cost_models),
        lateness=together([(run.lateness, places) for run, places in zip(known, of_runs, strict=True)], hosts),
        notices=tuple(notices),
        tables=tables,
        samples=Samples(tuple(run.samples or run.stored.path for run in known), indices),
    )


def _summaries(
    cases: Sequence[CaseRow], runs: Sequence[store.StoredRun], tables: Sequence[LaunchTable]
) -> tuple[CaseSummary, ...]:
    largest = _largest(runs)
    crowded = oversubscribed_hosts(largest.hosts, largest.environments)
    return summarise(cases, runs, tables, [host in crowded for host in largest.hosts])


def _largest(runs: Sequence[store.StoredRun]) -> Run:
    """The first run with the most ranks. Only runs pooled by force can differ in placement."""
    return max((stored.run for stored in runs), key=lambda run: len(run.hosts))


def pool_by_setup(found: Iterable[store.StoredRun | Summarised]) -> tuple[Dataset, ...]:
    """Group runs that agree in all of ``CHECKED`` and pool each group; groups keep the given order.

    Raises the errors of ``pool``.
    """
    sides: list[list[Summarised]] = []
    for known in map(summary_of, found):
        matching = (side for side in sides if all(one.unknown_in for one in differences(side[0].stored, known.stored)))
        if (side := next(matching, None)) is None:
            sides.append(side := [])
        side.append(known)
    return tuple(pool(side) for side in sides) or (pool(()),)
