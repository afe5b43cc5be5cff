"""What a run that was broken off still lacks, and whether this is the world that may go on with it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import msgspec

from busbw import __version__
from busbw.errors import LaunchError, StoreError, UsageError
from busbw.ops import OPS
from busbw.runs import store
from busbw.runs.facts import OF_A_JOB, SAME_FACTS, SAME_VARIABLES, fact
from busbw.runs.placement import binding, rank_placements, variables_of
from busbw.runs.plan import Plan, told_as_options
from busbw.runs.progress import CaseBlock, progress_of
from busbw.runs.records import JSON, SCHEMA, Case, Run
from busbw.runs.store import StoredRun

Block = tuple[int, int]
"""A block that is to be measured: place of its case in ``Run.cases``, number of the block."""

_SAME_FACTS = (*SAME_FACTS, "mpi.loop", "storage.way")
"""One that a run of before it was recorded lacks proves no difference, but for ``virtualization``: none is what a bare
machine has.
"""


@dataclass(frozen=True, slots=True)
class Remaining:
    """What one launch of a resumed run is to measure: ``blocks``, in the order that its own number gives them.

    ``resumes`` is the launch that began with them and was broken off (None: a launch of the plan that never began).
    ``skipped`` are the places of the cases whose ``skipped`` row is there already. ``number`` counts the launches of
    this resumption from 0, ``launches`` is how many it has. ``again`` are the places of the cases that have failed by
    no doing of theirs: they come last, so that one which breaks every launch keeps no other from being measured.
    """

    resumes: int | None
    blocks: frozenset[Block]
    skipped: frozenset[int]
    number: int
    launches: int
    again: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Lack:
    """What ``stored`` lacks of its plan: ``launches`` are to come, numbered from ``first`` on. ``void`` are the cases
    that failed by their own doing: such a failure stands for the whole run, so they are not tried again.
    """

    stored: StoredRun
    first: int
    launches: tuple[Remaining, ...]
    void: tuple[Case, ...]

    @property
    def blocks(self) -> int:
        """How many blocks are missing."""
        return sum(len(launch.blocks) for launch in self.launches)

    def by_case(self, launch: Remaining) -> dict[Case, tuple[int, ...]]:
        """The missing blocks of one launch to come, case by case in the order of the plan."""
        by_place = groupby(sorted(launch.blocks), key=itemgetter(0))
        return {self.stored.run.cases[place]: tuple(block for _, block in blocks) for place, blocks in by_place}

    def in_words(self) -> str:
        """What is missing, launch by launch (for people, who count them from 1), and what is not tried again."""
        name = self.stored.run.id
        void = f"; {len(self.void)} case(s) failed and are not tried again" if self.void else ""
        if not self.launches:
            return f"nothing is missing in run {name}{void}; it is complete, and nothing is measured"
        parts = []
        for one in self.launches:
            begun = one.resumes
            left = "of a launch that never began" if begun is None else f"that launch {begun + 1} did not come to"
            parts.append(f"launch {self.first + one.number + 1} measures {len(one.blocks)} block(s) {left}")
        return f"run {name} lacks {self.blocks} block(s): {', '.join(parts)}{void}"


def lack_of(stored: StoredRun, plan: Plan) -> Lack:
    """What ``stored`` lacks of ``plan``: the blocks of its cases, in each of its launches, that have no row.

    Missing blocks of a launch that began are measured by another launch, with the next free number, because fresh
    processes are another launch whatever they are called. Launches that never began come after these. Cases that
    were skipped, or failed by their own doing, lack nothing. Raises StoreError for an operation that this busbw lacks.
    """
    unknown = next((case.op for case in stored.run.cases if case.op not in OPS), None)
    if unknown is not None:
        raise StoreError(
            f"run {stored.run.id} has the op {unknown!r}, which this busbw does not have; resume it with its own"
        )
    places = {case: place for place, case in enumerate(stored.run.cases)}
    failed = {row.case for row in stored.failed if not row.transient}
    void = tuple(case for case in stored.run.cases if case in failed)
    skipped = frozenset(places[row.case] for row in stored.skipped)
    again = frozenset(places[row.case] for row in stored.failed if row.transient)
    progress = progress_of(stored)
    begun = [launch.launch for launch in stored.launches]
    wanted: list[tuple[int | None, frozenset[CaseBlock]]] = [
        *((number, lacking) for number in progress.there if (lacking := progress.lacking(number))),
        *([(None, progress.whole)] * (plan.launches - len(progress.there)) if progress.whole else ()),
    ]
    launches = tuple(
        Remaining(
            resumes, frozenset((places[case], block) for case, block in blocks), skipped, number, len(wanted), again
        )
        for number, (resumes, blocks) in enumerate(wanted)
    )
    return Lack(stored, max(begun, default=-1) + 1, launches, void)


def plan_of(run: Run, launches: int | None, timeout_seconds: float | None = None) -> Plan:
    """The plan of ``run``, with more launches where ``launches`` asks for more of the same, and with
    ``timeout_seconds`` for what is measured now.

    Raises UsageError for fewer launches and for a timeout that is none, StoreError when the stored plan is none (of an
    older busbw, for example).
    """
    try:
        plan = msgspec.convert(run.plan, Plan)
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        raise StoreError(
            f"the plan that is stored with run {run.id} is not one that this busbw can carry out: {error}"
        ) from error
    wanted = plan.launches if launches is None else launches
    seconds = plan.timing.timeout_seconds if timeout_seconds is None else timeout_seconds
    with told_as_options():
        timing = msgspec.structs.replace(plan.timing, timeout_seconds=seconds)
        if wanted < plan.launches:
            raise UsageError(
                f"--launches {wanted}, but run {run.id} has {plan.launches}; a run that is resumed may get more, not "
                "fewer: leave --launches out, or give a larger number"
            )
        return msgspec.structs.replace(plan, launches=wanted, timing=timing)


def refuse_options(given: Iterable[str]) -> None:
    """Refuse options that would change the plan of a run that is resumed; ``given`` are their names."""
    if names := ", ".join(given):
        raise UsageError(
            f"{names} cannot be given with --resume: a run that is resumed keeps its plan; allowed beside "
            "it are --launches (more of them), --timeout (for what is measured now), --port, --quiet, --json, "
            "--results-dir and --dry-run"
        )


def refuse_another_world(
    run: Run, schema: int, *, launcher: str, ranks: int, host: str, by_this_busbw: bool = True
) -> None:
    """Raise LaunchError, listing every difference, when this is not the world that ``run`` was measured in.

    ``schema`` is the one that the run was written in; ``host`` is this host, which must be one of the run's. Not
    ``by_this_busbw``: another one is to go on with it, of which nothing is known here.
    """
    differences = [
        f"{what}: {then} then, {now} now"
        for what, then, now in (
            ("schema", schema, SCHEMA if by_this_busbw else schema),
            ("busbw", run.busbw, __version__ if by_this_busbw else run.busbw),
            ("launcher", run.launcher, launcher),
            ("ranks", len(run.hosts), ranks),
        )
        if then != now
    ]
    if host not in run.hosts:
        differences.append(f"hosts: {', '.join(dict.fromkeys(run.hosts))} then, {host} now")
    _refuse(run, differences)


def lacking(order: Sequence[tuple[Case, int]], cases: Sequence[Case], remaining: Remaining) -> list[tuple[Case, int]]:
    """The part of ``order`` that is missing; cases that have failed before come last."""
    wanted = {(cases[place], block) for place, block in remaining.blocks if place < len(cases)}
    again = {cases[place] for place in remaining.again if place < len(cases)}
    return sorted((one for one in order if one in wanted), key=lambda one: one[0] in again)


def carry_on(
    folder: Path,
    plan: Plan,
    cases: Sequence[Case],
    hosts: Sequence[str],
    facts: Mapping[str, dict[str, JSON]],
    *,
    launch: int,
) -> None:
    """Rank 0, once the world has formed for the launch numbered ``launch``: hold it against the one that the run in
    ``folder`` began in, and note when the plan has more launches now, or the hosts are in another job. Raises
    LaunchError, listing every difference, StoreError when it cannot be noted.
    """
    run = store.read_run(folder)
    _refuse_other_facts(run, cases, hosts, facts)
    noted = msgspec.structs.replace(
        run,
        # The rest of it stays: a timeout may be another one for what is measured now.
        plan={**run.plan, "launches": plan.launches},
        environments={
            host: _with_what_is_new(then, facts.get(host, {}), launch) for host, then in run.environments.items()
        },
    )
    if noted != run:
        store.write_run(folder, noted)


def _with_what_is_new(then: dict[str, JSON], now: Mapping[str, JSON], launch: int) -> dict[str, JSON]:
    """The facts ``then``, and under ``resumed`` those of a job, which may differ, where they are no longer the same."""
    before = then.get("resumed") or []
    last = dict(then)
    for one in before:
        last.update(one)
    new = {name: now[name] for name in OF_A_JOB if name in now and now[name] != last.get(name)}
    return {**then, "resumed": [*before, {"launch": launch, **new}]} if new else then


def _refuse_other_facts(
    run: Run, cases: Sequence[Case], hosts: Sequence[str], facts: Mapping[str, Mapping[str, JSON]]
) -> None:
    differences = [] if run.hosts == tuple(hosts) else [f"hosts: {list(run.hosts)} then, {list(hosts)} now"]
    if run.cases != tuple(cases):
        differences.append(f"cases: {len(run.cases)} then, {len(cases)} now, and not the same")
    placements = rank_placements(run.hosts, run.environments), rank_placements(hosts, facts)
    for host in dict.fromkeys(hosts):
        then, now = _told(run.environments.get(host, {})), _told(facts.get(host, {}))
        for path in _SAME_FACTS:
            if not then[path] and path != "virtualization":
                del then[path], now[path]
        bound = [binding([placement for placement in those if placement.host == host]) for those in placements]
        if None not in bound:  # runs of before it was recorded do not tell
            then["binding"], now["binding"] = bound
        differences += [
            f"{key} of {host}: {then.get(key)} then, {now.get(key)} now"
            for key in dict.fromkeys([*then, *now])
            if then.get(key) != now.get(key)
        ]
    _refuse(run, differences)


def _refuse(run: Run, differences: Sequence[str]) -> None:
    if differences:
        raise LaunchError(
            f"run {run.id} cannot be resumed here, because this is another world: {'; '.join(differences)}; "
            "make a run of its own, and judge the two as two"
        )


def _told(facts: Mapping[str, JSON]) -> dict[str, JSON]:
    found = {path: fact(facts, path) for path in _SAME_FACTS}
    return found | {
        name: value for name, value in variables_of(facts).items() if name.partition(" ")[0].startswith(SAME_VARIABLES)
    }
