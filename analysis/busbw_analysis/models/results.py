"""The results of pooled runs, with the rates and messages among them that all curves are compared with."""

from dataclasses import dataclass

from busbw.runs.store import StoredRun
from busbw_analysis.data.counters import Moved
from busbw_analysis.data.facts import Facts
from busbw_analysis.data.lateness import GroupLateness
from busbw_analysis.data.load import Dataset
from busbw_analysis.data.series import Series
from busbw_analysis.data.summary import CaseSummary
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.models.choices import Library, library_of_run
from busbw_analysis.models.parameters import Messages, messages_of
from busbw_analysis.peaks.peaks import HostRates, host_rates


@dataclass(frozen=True, slots=True)
class Results:
    """What pooled runs recorded and measured.

    runs: as recorded, without their samples
    facts: of their hosts, ranks and backend
    cases: summaries of all cases of their plans, by index
    series: the curves of the measured cases
    rates: memory copies and plain sockets of the hosts
    messages: messages between two ranks
    library: the MPI library; None if the backend is not MPI
    lateness: how late the ranks of each group arrive
    notices: warnings about the data: torn lines, facts that only some runs recorded, overruled differences
    counters: counters of the hosts that moved
    """

    runs: tuple[StoredRun, ...]
    facts: Facts
    cases: tuple[CaseSummary, ...]
    series: tuple[Series, ...]
    rates: HostRates
    messages: Messages
    library: Library | Unavailable | None
    lateness: tuple[GroupLateness, ...]
    notices: tuple[str, ...]
    counters: tuple[Moved, ...]


def results_of(dataset: Dataset) -> Results:
    """The results of the runs of ``dataset``."""
    facts, cases, series = dataset.facts, dataset.summaries, dataset.series
    rates = host_rates(cases, facts)
    return Results(
        runs=dataset.runs,
        facts=facts,
        cases=cases,
        series=series,
        rates=rates,
        messages=messages_of(series, cases, facts, rates),
        library=library_of_run(facts),
        lateness=dataset.lateness,
        notices=dataset.notices,
        counters=dataset.counters,
    )
