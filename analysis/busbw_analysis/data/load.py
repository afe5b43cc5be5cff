"""Reads runs and pools them into one ``Dataset``; refuses to pool runs whose environments differ.

All analysis starts from a ``Dataset``. The launch is the experimental unit, so every sample keeps its run and launch:
pooled runs contribute launches, never anonymous samples.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any, Literal, TypeVar

from busbw.errors import AnalysisError, UnlikeRuns
from busbw.escape import plain_text, with_texts
from busbw.ops import PAIRED
from busbw.runs import store
from busbw.runs.causes import WRONG_DATA
from busbw.runs.facts import SAME_FACTS, SAME_VARIABLES, UNKNOWN_HOST, HostFacts
from busbw.runs.placement import (
    RankPlacement,
    binding,
    oversubscribed_hosts,
    rank_placements,
    ranks_and_cores,
    variables_of,
)
from busbw.runs.progress import progress_of
from busbw.runs.records import BackendTraits, Case, FailureCause, GroupSamples, Imported, Measurement, Run
from busbw.units import counted, format_size
from busbw_analysis.data.grouped import by_key, grouped
from busbw_analysis.data.pair_columns import PairBlock, packed

_Made = TypeVar("_Made")
CaseState = Literal["measured", "failed", "skipped", "not reached"]

_SHOWN_VALUE = 120
"""Maximum characters of a value in an error message."""

_WARM_UP_RULES = ("launch_warmup_seconds", "warmup_seconds", "warmup_calls", "max_warmup_calls")


@dataclass(frozen=True, slots=True)
class Block:
    """One block of one group of ranks.

    run, launch, number: index of the run, launch in the run, block in the launch
    case: index into ``Dataset.cases``
    measurement: the record of the whole block
    samples: the samples of this group
    """

    run: int
    launch: int
    number: int
    case: int
    measurement: Measurement
    samples: GroupSamples


@dataclass(frozen=True, slots=True)
class CaseRow:
    """One case of the plan and its state over all pooled runs.

    index: position in ``Dataset.cases``
    reasons: why it failed, was skipped or was not reached
    lost: launches of a measured case that failed for a transient reason and were not measured again
    cause: code of the first reason of a failed case; wrong data come first
    """

    index: int
    case: Case
    state: CaseState
    reasons: tuple[str, ...]
    lost: tuple[str, ...] = ()
    cause: FailureCause | None = None


@dataclass(frozen=True, slots=True)
class Dataset:
    """One or more comparable runs, pooled.

    blocks: one entry per block and group of ranks, except for pair matrices
    notices: warnings about the data: torn lines, facts that only some runs recorded, overruled differences
    pair_blocks: blocks of pair matrices: index into ``runs``, index into ``cases``, block with samples as columns
    imported: results from logs of other tools, with the same two indices
    kept: results cached by ``once``
    """

    runs: tuple[store.StoredRun, ...]
    cases: tuple[CaseRow, ...]
    blocks: tuple[Block, ...]
    notices: tuple[str, ...]
    pair_blocks: tuple[tuple[int, int, PairBlock], ...] = ()
    imported: tuple[tuple[int, int, Imported], ...] = ()
    kept: dict[object, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def measured(self) -> Iterator[tuple[int, Measurement, int]]:
        """All blocks as run, record and number of groups: one entry per group, but one for all pairs of a matrix."""
        yield from ((block.run, block.measurement, 1) for block in self.blocks)
        yield from ((run, block, len(block.columns)) for run, _, block in self.pair_blocks)

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
        return max((stored.run for stored in self.runs), key=lambda run: len(run.hosts))

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
        run = self.runs[0].run
        return run.backend or BackendTraits(cost_models=run.cases[0].backend if run.cases else "")

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


def once(made_of: Callable[[Dataset], _Made]) -> Callable[[Dataset], _Made]:
    """Decorator that computes ``made_of`` a dataset once and caches the result in the dataset."""

    @wraps(made_of)
    def made(dataset: Dataset) -> _Made:
        if made_of not in dataset.kept:
            dataset.kept[made_of] = made_of(dataset)
        found: _Made = dataset.kept[made_of]
        return found

    return made


def _listed(values: Iterable[object]) -> str | None:
    """The distinct ``values`` as text; None if there are none."""
    return ", ".join(sorted({str(value) for value in values})) or None


def _over_hosts(value_of: Callable[[HostFacts], object]) -> Callable[[Run], str | None]:
    """The distinct values of one fact over the hosts of a run; None if no host recorded a value."""
    return lambda run: _listed(value for value in map(value_of, run.environments.values()) if value not in (None, {}))


def _memory(run: Run) -> str | None:
    """Memory of the hosts in whole GiB: the kernel's own share differs by some pages from boot to boot."""
    sizes = (host.memory.total_bytes for host in run.environments.values())
    return _listed(f"{round(size / 2**30)} GiB" for size in sizes if size is not None)


def _variables(run: Run) -> dict[str, str | None] | None:
    """Each environment variable that changes results → its values over the hosts."""
    if run.imported is not None:
        return None
    variables = (item for environment in run.environments.values() for item in variables_of(environment).items())
    found = by_key((name, value) for name, value in variables if name.startswith(SAME_VARIABLES))
    return {name: _listed(values) for name, values in found.items()}


def _placement(run: Run) -> str | None:
    """Which ranks share a host. Hosts are numbered in order of appearance, because their names may differ."""
    if _unknown(run, "hosts"):
        return None
    seen = {host: str(number) for number, host in enumerate(dict.fromkeys(run.hosts))}
    return " ".join(seen[host] for host in run.hosts)


def _binding(run: Run) -> str | None:
    """How ranks are bound to cores, without core numbers: another job may get other cores of the same kind."""
    by_host = grouped(rank_placements(run.hosts, run.environments), lambda placement: placement.host)
    return _listed(words for here in by_host.values() if (words := binding(here)) is not None)


def _unknown(run: Run, name: str) -> bool:
    """Whether neither the log of an imported run nor the user stated the fact ``name``."""
    return run.imported is not None and name in run.imported.unknown


def _of_cases(field: str) -> Callable[[Run], str | None]:
    return lambda run: _listed(getattr(case, field) for case in run.cases)


def _warm_up(run: Run) -> str | None:
    timing = run.plan.get("timing")
    if not isinstance(timing, Mapping):
        return None
    return ", ".join(f"{name}={timing[name]}" for name in _WARM_UP_RULES if name in timing) or None


_FACTS = tuple((name, _over_hosts(value_of)) for name, value_of in SAME_FACTS)

CHECKED: tuple[tuple[str, Callable[[Run], object]], ...] = (
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
    return pool([read(path) for path in paths], force=force)


def read(path: Path) -> store.StoredRun:
    """``store.read`` that converts the samples of pair matrices to columns while reading."""
    return store.read(path, keep=packed)


def pool(stored_runs: Iterable[store.StoredRun], *, force: bool = False) -> Dataset:
    """``load`` for runs that are already read. Control characters in their text are escaped here, for all later use."""
    runs = tuple(_plain(_packed(stored)) for stored in stored_runs)
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
    outcomes = by_key((outcome.case, outcome) for stored in runs for outcome in _outcomes(stored))
    cases = tuple(_case_row(index, case, found) for index, (case, found) in enumerate(outcomes.items()))
    indices = {row.case: row.index for row in cases}
    rows = [
        (run, indices[row.case], row)
        for run, stored in enumerate(runs)
        for row in stored.rows
        if isinstance(row, Measurement | Imported)
    ]
    return Dataset(
        runs=runs,
        cases=cases,
        blocks=tuple(
            Block(run, row.launch, row.block, case, row, samples)
            for run, case, row in rows
            if isinstance(row, Measurement)
            for samples in row.groups
        ),
        notices=tuple(notices),
        pair_blocks=tuple((run, case, row) for run, case, row in rows if isinstance(row, PairBlock)),
        imported=tuple((run, case, row) for run, case, row in rows if isinstance(row, Imported)),
    )


def _plain(stored: store.StoredRun) -> store.StoredRun:
    """``stored`` with all its strings escaped by ``plain_text``."""
    run, rows, warnings = with_texts([stored.run, stored.rows, stored.warnings], plain_text)
    return replace(stored, run=run, rows=rows, warnings=warnings)


def pool_by_setup(stored_runs: Sequence[store.StoredRun]) -> tuple[Dataset, ...]:
    """Group ``stored_runs`` that agree in all of ``CHECKED`` and pool each group; groups keep the given order.

    Raises the errors of ``pool``.
    """
    sides: list[list[store.StoredRun]] = []
    for stored in stored_runs:
        matching = (side for side in sides if all(found.unknown_in for found in differences(side[0], stored)))
        if (side := next(matching, None)) is None:
            sides.append(side := [])
        side.append(stored)
    return tuple(pool(side) for side in sides) or (pool(()),)


def _packed(stored: store.StoredRun) -> store.StoredRun:
    """``stored`` with pair matrices as columns, for runs that ``read`` did not read."""
    rows = (
        packed(row, row.groups)
        if isinstance(row, Measurement) and row.case.op in PAIRED and not isinstance(row, PairBlock)
        else row
        for row in stored.rows
    )
    return replace(stored, rows=tuple(rows))


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


def _set_to(value: object) -> str:
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


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_VALUE else f"{text[:_SHOWN_VALUE]}…"


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What one record says about the state of a case. ``lost``: a launch ended for a transient reason."""

    case: Case
    state: Literal["planned", "measured", "skipped", "failed", "lost"]
    reason: str = ""
    cause: FailureCause | None = None


def _outcomes(stored: store.StoredRun) -> Iterator[_Outcome]:
    """Everything that a run records about the state of its cases."""
    yield from (_Outcome(case, "planned") for case in stored.run.cases)
    yield from (_Outcome(case, "measured") for case, _ in stored.checks)
    yield from (_Outcome(row.case, "skipped", row.reason) for row in stored.skipped)
    progress = progress_of(stored)
    for row in stored.failed:
        if not row.transient:
            yield _Outcome(row.case, "failed", row.error, row.cause)
        elif (row.case, row.block) in progress.lacking(progress.planned_as(row.launch)):
            reason = f"launch {row.launch + 1} of run {stored.run.id}: {row.error}"
            yield _Outcome(row.case, "lost", reason, row.cause)
        else:
            yield _Outcome(row.case, "planned")
    for case, check in stored.checks:
        if check.state == "wrong":
            reason = f"{WRONG_DATA}: {check.reason or f'{check.wrong_elements} elements differ'}"
            yield _Outcome(case, "failed", reason, "wrong_data")


def _case_row(index: int, case: Case, outcomes: Iterable[_Outcome]) -> CaseRow:
    ordered = sorted(outcomes, key=lambda one: one.cause != "wrong_data")
    found = grouped(ordered, lambda one: one.state)
    reasons = {state: tuple(dict.fromkeys(one.reason for one in members)) for state, members in found.items()}
    # A failure outweighs successful launches: an op that once returned wrong data has no result.
    # A rank that died does not invalidate the launches before.
    if "failed" in reasons:
        return CaseRow(index, case, "failed", reasons["failed"], cause=found["failed"][0].cause)
    if "measured" in reasons:
        return CaseRow(index, case, "measured", reasons.get("skipped", ()), reasons.get("lost", ()))
    if "lost" in reasons:
        return CaseRow(index, case, "failed", reasons["lost"], cause=found["lost"][0].cause)
    if "skipped" in reasons:
        return CaseRow(index, case, "skipped", reasons["skipped"])
    return CaseRow(index, case, "not reached", ("the run ended before this case was measured",))


def rank_list(ranks: Sequence[int]) -> str:
    """The ranks of a group as text: ``0-3`` for three or more consecutive ranks, else ``0,2``."""
    ordered = list(ranks)
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[0] + len(ordered))):
        return f"{ordered[0]}-{ordered[-1]}"
    return ",".join(str(rank) for rank in ordered)
