"""Reads runs and pools them into one ``Dataset``; refuses to pool runs whose environments differ.

All analysis starts from a ``Dataset``. The launch is the experimental unit: pooled runs contribute launches, never
anonymous samples.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from busbw.errors import AnalysisError, UnlikeRuns
from busbw.runs import store
from busbw.runs.facts import SAME_FACTS, SAME_VARIABLES, fact
from busbw.runs.placement import (
    RankPlacement,
    binding,
    oversubscribed_hosts,
    rank_placements,
    ranks_and_cores,
    variables_of,
)
from busbw.runs.records import JSON, BackendTraits, Measurement, Run
from busbw.units import counted, format_size
from busbw_analysis.data.cases import CaseRow, cases_of
from busbw_analysis.data.grouped import by_key, grouped
from busbw_analysis.data.kept import Summarised, read_summarised, summary_of
from busbw_analysis.data.lateness import GroupLateness, together
from busbw_analysis.data.launches import LaunchTable
from busbw_analysis.data.samples import Samples, plain_run
from busbw_analysis.data.series import Series, series_of
from busbw_analysis.data.summary import CaseSummary, summarise

_SHOWN_VALUE = 120
"""Maximum characters of a value in an error message."""

_WARM_UP_RULES = ("launch_warmup_seconds", "warmup_seconds", "warmup_calls", "max_warmup_calls")


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
        return None if _unknown(self.runs[0].run, "hosts") else len(self.hosts_of(ranks))

    @property
    def hosts_in_words(self) -> str:
        """The number of hosts of all runs as text: ``1 host``, ``2 hosts`` or ``unknown hosts``."""
        if any(_unknown(stored.run, "hosts") for stored in self.runs):
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
        """The traits of the backend; only its name for a backend that busbw does not know."""
        return _backend(self.runs[0].run)

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

    def environment(self, host: str) -> Mapping[str, JSON]:
        """The recorded facts of ``host``; empty if there are none."""
        return self.largest.environments.get(host, {})


def _listed(values: Iterable[object]) -> JSON:
    """The distinct ``values`` as text; None if there are none."""
    return ", ".join(sorted({str(value) for value in values})) or None


def _over_hosts(path: str) -> Callable[[Run], JSON]:
    """The distinct values of one environment fact over the hosts of a run; None if no host recorded a value."""
    return lambda run: _listed(value for value in _facts(run, path) if value not in (None, {}))


def _facts(run: Run, path: str) -> Iterator[JSON]:
    yield from (fact(environment, path) for environment in run.environments.values())


def _memory(run: Run) -> JSON:
    """Memory of the hosts in whole GiB: the kernel's own share differs by some pages from boot to boot."""
    sizes = _facts(run, "memory.total_bytes")
    return _listed(f"{round(size / 2**30)} GiB" for size in sizes if isinstance(size, int | float))


def _variables(run: Run) -> JSON:
    """Each environment variable that changes results → its values over the hosts."""
    if run.imported is not None:
        return None
    variables = (item for environment in run.environments.values() for item in variables_of(environment).items())
    found = by_key((name, value) for name, value in variables if name.startswith(SAME_VARIABLES))
    return {name: _listed(values) for name, values in found.items()}


def _placement(run: Run) -> JSON:
    """Which ranks share a host. Hosts are numbered in order of appearance, because their names may differ."""
    if _unknown(run, "hosts"):
        return None
    seen = {host: str(number) for number, host in enumerate(dict.fromkeys(run.hosts))}
    return " ".join(seen[host] for host in run.hosts)


def _binding(run: Run) -> JSON:
    """How ranks are bound to cores, without core numbers: another job may get other cores of the same kind."""
    by_host = grouped(rank_placements(run.hosts, run.environments), lambda placement: placement.host)
    return _listed(words for here in by_host.values() if (words := binding(here)) is not None)


def _unknown(run: Run, name: str) -> bool:
    """Whether neither the log of an imported run nor the user stated the fact ``name``."""
    return run.imported is not None and name in run.imported.unknown


def _of_cases(field: str) -> Callable[[Run], JSON]:
    return lambda run: _listed(getattr(case, field) for case in run.cases)


def _warm_up(run: Run) -> JSON:
    timing = run.plan.get("timing")
    if not isinstance(timing, Mapping):
        return None
    return ", ".join(f"{name}={timing[name]}" for name in _WARM_UP_RULES if name in timing) or None


_FACTS = tuple((path, _over_hosts(path)) for path in SAME_FACTS)

CHECKED: tuple[tuple[str, Callable[[Run], JSON]], ...] = (
    ("machine", lambda run: None if _unknown(run, "machine") else run.machine),
    ("ranks", lambda run: len(run.hosts)),
    ("hosts", lambda run: None if _unknown(run, "hosts") else len(set(run.hosts))),
    ("placement of ranks on hosts", _placement),
    ("backend", _of_cases("backend")),
    ("device", _of_cases("device")),
    *_FACTS[:4],
    ("binding of ranks to cores", _binding),
    ("memory", _memory),
    *_FACTS[4:],
    ("variables", _variables),
    ("warm-up", _warm_up),
    ("busbw", lambda run: None if run.imported is not None else run.busbw),
)
"""The facts that must be equal in pooled runs: name for messages, and function that reads the fact from a run.

A fact that one run did not record is not a difference; it becomes a notice instead.
"""


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
    runs = tuple(plain_run(run.stored) for run in known)
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
        notices += _refuse(differences(runs[0], stored), force=force)
    cases = cases_of(runs)
    tables, indices = tuple(run.table for run in known), {row.case: row.index for row in cases}
    of_runs = [[indices[case] for case in stored.run.cases] for stored in runs]
    summaries, backend = _summaries(cases, runs, tables), _backend(runs[0].run)
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


def _backend(run: Run) -> BackendTraits:
    return run.backend or BackendTraits(cost_models=run.cases[0].backend if run.cases else "")


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


@dataclass(frozen=True, slots=True)
class Difference:
    """A fact in ``CHECKED`` that differs between two runs.

    key, text: its name, and a sentence with both values
    unknown_in: the run that did not record it; None if both did
    """

    key: str
    text: str
    unknown_in: str | None = None


def differences(first: store.StoredRun, second: store.StoredRun) -> tuple[Difference, ...]:
    """All facts in ``CHECKED`` that differ between two runs, and whether their cases used different benchmark loops."""
    found: list[Difference] = []
    for key, value_of in CHECKED:
        value, other = value_of(first.run), value_of(second.run)
        if value == other:
            continue
        if value is None or other is None:
            without = first.run.id if value is None else second.run.id
            text = f"run {without} did not record {key!r}, so it could not be compared with the other runs"
            found.append(Difference(key, text, without))
        elif isinstance(value, Mapping) and isinstance(other, Mapping):
            unlike = [name for name in sorted({*value, *other}) if value.get(name) != other.get(name)]
            texts = (
                f"variable {name} is {_set_to(value.get(name))} in run {first.run.id} and {_set_to(other.get(name))} "
                f"in run {second.run.id}"
                for name in unlike
            )
            found += [Difference(key, text) for text in texts]
        else:
            text = f"{key!r} is {_short(value)} in run {first.run.id} and {_short(other)} in run {second.run.id}"
            found.append(Difference(key, text))
    return (*found, *_other_loops(first, second))


def _set_to(value: JSON) -> str:
    return "not set" if value is None else _short(value)


def _other_loops(first: store.StoredRun, second: store.StoredRun) -> Iterator[Difference]:
    """The Python loop takes two or three times as long for short calls: results of different loops do not compare."""
    loops, others = (by_key((row.case, row.loop) for row in stored.measurements) for stored in (first, second))
    unlike = [case for case, used in loops.items() if case in others and {*others[case]} != {*used}]
    if unlike:
        case = unlike[0]
        used = [
            f"{' and '.join(sorted({*by_case[case]}))} in run {stored.run.id}"
            for by_case, stored in ((loops, first), (others, second))
        ]
        where = f"{case.op} at {format_size(case.size_bytes)} and {len(unlike) - 1} more common cases"
        yield Difference("loop", f"'loop', which made the calls, is {used[0]} and {used[1]}, for {where}")


def _refuse(found: Sequence[Difference], *, force: bool) -> list[str]:
    unlike = [difference for difference in found if difference.unknown_in is None]
    if unlike and not force:
        text = "; ".join(one.text for one in unlike if one.key == unlike[0].key)  # every variable
        message = f"these runs may not be pooled: {text}; analyse them one by one, or pool them anyway with --force"
        raise UnlikeRuns(message)
    return [each.text if each.unknown_in is not None else f"pooled although {each.text}" for each in found]


def _short(value: JSON) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_VALUE else f"{text[:_SHOWN_VALUE]}…"
