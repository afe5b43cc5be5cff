"""Resumption: the missing blocks of an interrupted run, and whether this environment may continue it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import msgspec

from busbw import __version__
from busbw.errors import LaunchError, StoreError, UsageError
from busbw.ops import OPS
from busbw.runs import store
from busbw.runs.facts import JOB_FACTS, SAME_FACTS, SAME_VARIABLES, UNKNOWN_HOST, HostFacts, ResumedJob, fact_of
from busbw.runs.placement import binding, rank_placements, variables_of
from busbw.runs.plan import LogPlan, Plan, naming_options
from busbw.runs.progress import CaseBlock, progress_of
from busbw.runs.records import SCHEMA, Case
from busbw.runs.run import Run
from busbw.runs.store import StoredRun
from busbw.units import counted

Block = tuple[int, int]
"""A block to be measured: index of its case in ``Run.cases``, number of the block."""

_SAME_FACTS: Final = (*SAME_FACTS, "mpi.loop", "storage.way")
"""A fact that an older run lacks is not a difference, except ``virtualization``, which is missing on bare metal."""
_START_ANEW: Final = "start a new run instead"


@dataclass(frozen=True, slots=True)
class Remaining:
    """Work of one launch of a resumed run.

    resumes: interrupted launch whose blocks these are; None: a planned launch that never began
    blocks: blocks to measure
    skipped: indices of cases that already have a ``skipped`` row
    number, launches: number of this launch within the resumption, from 0, and their total
    again: indices of cases with transient failures; they come last, so that a case that breaks every launch does not
        keep others from being measured
    elapsed_ns: of a run with a duration: how long it was measured already
    """

    resumes: int | None
    blocks: frozenset[Block]
    skipped: frozenset[int]
    number: int
    launches: int
    again: frozenset[int] = frozenset()
    elapsed_ns: int = 0


@dataclass(frozen=True, slots=True)
class Lack:
    """What ``stored`` lacks of its plan.

    first: number of the next launch
    launches: launches to come
    void: cases that failed through their own fault; the failure holds for the whole run, so they are not retried
    """

    stored: StoredRun
    first: int
    launches: tuple[Remaining, ...]
    void: tuple[Case, ...]

    @property
    def blocks(self) -> int:
        """Number of missing blocks."""
        return sum(len(launch.blocks) for launch in self.launches)

    def by_case(self, launch: Remaining) -> dict[Case, tuple[int, ...]]:
        """The missing blocks of one coming launch, by case in plan order."""
        by_place = groupby(sorted(launch.blocks), key=itemgetter(0))
        return {self.stored.run.cases[place]: tuple(block for _, block in blocks) for place, blocks in by_place}

    def in_words(self) -> str:
        """A sentence about what is missing in each launch (counted from 1), and what is not retried."""
        name = self.stored.run.id
        void = f"; {counted(len(self.void), 'case')} failed, not tried again" if self.void else ""
        if not self.launches:
            return f"nothing is missing in run {name}, so nothing is measured{void}"
        if not self.blocks:
            return f"run {name} lacks the rest of its duration{void}"
        parts = []
        for launch in self.launches:
            begun = launch.resumes
            left = "of a launch that never began" if begun is None else f"left over from launch {begun + 1}"
            parts.append(f"launch {self.first + launch.number + 1} measures {len(launch.blocks)} block(s) {left}")
        return f"run {name} lacks {self.blocks} block(s): {', '.join(parts)}{void}"


def lack_of(stored: StoredRun, plan: Plan) -> Lack:
    """The blocks of ``plan`` that have no row in ``stored``.

    Missing blocks of a launch that began go to a new launch with the next free number, because fresh processes are a
    new launch. Launches that never began come after these. Cases that were skipped, or failed through their own fault,
    lack nothing. Raises StoreError for an operation that this busbw does not have.
    """
    unknown = next((case.op for case in stored.run.cases if case.op not in OPS), None)
    if unknown is not None:
        raise StoreError(
            f"run {stored.run.id} has the op {unknown!r}, which this busbw does not have; resume it with "
            "the busbw that measured it"
        )
    places = {case: place for place, case in enumerate(stored.run.cases)}
    failed = {row.case for row in stored.failed if not row.transient}
    void = tuple(case for case in stored.run.cases if case in failed)
    skipped = frozenset(places[row.case] for row in stored.skipped)
    again = frozenset(places[row.case] for row in stored.failed if row.transient)
    progress = progress_of(stored)
    elapsed_ns = max((window.end_ns for window in stored.windows), default=0)
    # A launch ends between two windows, so the last one of a run that is over can end before the duration does.
    is_over = stored.end is not None and stored.end.status == "complete"
    unfinished = elapsed_ns < plan.duration_ns and bool(progress.whole) and not is_over
    begun = [launch.launch for launch in stored.launches]
    parts: list[tuple[int | None, frozenset[CaseBlock]]] = [
        *((number, lacking) for number in progress.there if (lacking := progress.lacking(number)) or unfinished),
        *([(None, progress.whole)] * (plan.launches - len(progress.there)) if progress.whole else ()),
    ]
    launches = tuple(
        Remaining(
            resumes,
            frozenset((places[case], block) for case, block in blocks),
            skipped,
            number,
            len(parts),
            again,
            elapsed_ns,
        )
        for number, (resumes, blocks) in enumerate(parts)
    )
    return Lack(stored, max(begun, default=-1) + 1, launches, void)


def plan_of(run: Run, launches: int | None, timeout_seconds: float | None = None) -> Plan:
    """The plan of ``run``, with more launches if ``launches`` is larger, and a new ``timeout_seconds``.

    Raises UsageError for fewer launches, for an invalid timeout, and for the log of another tool.
    """
    plan = run.plan
    if isinstance(plan, LogPlan):
        raise UsageError(f"run {run.id} is the log of another tool, and cannot be resumed")
    if plan.controller is not None:
        raise UsageError(f"run {run.id} of plan {plan.name} chose its rounds by what was measured; {_START_ANEW}")
    launch_count = plan.launches if launches is None else launches
    seconds = plan.timing.timeout_seconds if timeout_seconds is None else timeout_seconds
    with naming_options():
        timing = msgspec.structs.replace(plan.timing, timeout_seconds=seconds)
        if launch_count < plan.launches:
            raise UsageError(
                f"--launches {launch_count}, but run {run.id} has {plan.launches}; a resumed run may have more "
                "launches, but not fewer: omit --launches or give a larger number"
            )
        return msgspec.structs.replace(plan, launches=launch_count, timing=timing)


def refuse_other_environment(run: Run, *, launcher: str, ranks: int, host: str, by_this_busbw: bool = True) -> None:
    """Raise LaunchError with all differences if this environment is not the one in which ``run`` was measured, and with
    the command that resumes it if only launcher or ranks differ.

    ``host``: this host, which must be one of the run's. Not ``by_this_busbw``: another busbw, about which nothing is
    known here, will continue the run.
    """
    compared: tuple[tuple[str, object, object], ...] = (
        ("schema", run.schema, SCHEMA if by_this_busbw else run.schema),
        ("busbw", run.busbw, __version__ if by_this_busbw else run.busbw),
        ("launcher", run.launcher, launcher),
        ("ranks", len(run.hosts), ranks),
    )
    changed = {what: (then, now) for what, then, now in compared if then != now}
    if host not in run.hosts:
        changed["hosts"] = (", ".join(dict.fromkeys(run.hosts)), host)
    again = changed.keys() <= {"launcher", "ranks"} and {launcher, run.launcher} != {"local"}
    differences = [f"{what}: {then} then, {now} now" for what, (then, now) in changed.items()]
    _refuse(run, differences, f"resume it with {command_resuming(run)}" if again else _START_ANEW)


def command_resuming(run: Run, name: str = "") -> str:
    """The command that completes ``run`` (``name``: its folder, quoted for a shell) with the ranks and launcher of the
    run; … stands for the options that name several hosts. A run with a controller is not completed, only judged.
    """
    if (controller := run.plan.controller) is not None:
        return f"busbw {controller} {name or run.id}"
    hosts = len(set(run.hosts)) or 1
    nodes, more = (f"--nnodes {hosts} ", " …") if hosts > 1 else ("", "")
    command = {
        "mpirun": f"mpirun -n {len(run.hosts)}{more} busbw run",
        "torchrun": f"torchrun {nodes}--nproc-per-node {len(run.hosts) // hosts}{more} --no-python busbw run",
        # The output of a step is read on the submitting node, where busbw run would start other ranks.
        "srun": "busbw submit",
    }.get(run.launcher, "busbw run")
    return f"{command} --resume {name or run.id}"


def lacking(order: Sequence[tuple[Case, int]], cases: Sequence[Case], remaining: Remaining) -> list[tuple[Case, int]]:
    """The missing part of ``order``; cases that failed before come last."""
    lacked = {(cases[place], block) for place, block in remaining.blocks if place < len(cases)}
    again = {cases[place] for place in remaining.again if place < len(cases)}
    return sorted((entry for entry in order if entry in lacked), key=lambda entry: entry[0] in again)


def record_resumption(
    folder: Path,
    plan: Plan,
    cases: Sequence[Case],
    hosts: Sequence[str],
    facts: Mapping[str, HostFacts],
    *,
    launch: int,
) -> None:
    """On rank 0, once all ranks are connected for launch ``launch``: compare the environment with that of the run in
    ``folder``, and record a larger number of launches or a new job. Raises LaunchError with all differences,
    StoreError if the changes cannot be recorded.
    """
    run = store.read_run(folder)
    _refuse_other_facts(run, cases, hosts, facts)
    noted = msgspec.structs.replace(
        run,
        # The rest of the plan stays; a new timeout applies only to what is measured now.
        plan=msgspec.structs.replace(run.plan, launches=plan.launches),
        environments={
            host: _with_what_is_new(then, facts[host], launch) if host in facts else then
            for host, then in run.environments.items()
        },
    )
    if noted != run:
        store.write_run(folder, noted)


def _with_what_is_new(then: HostFacts, now: HostFacts, launch: int) -> HostFacts:
    """``then`` with changed facts of the job, which may differ, appended under ``resumed``."""
    new: dict[str, Any] = {}
    for name in JOB_FACTS:
        stored = (getattr(record, name) for record in (*reversed(then.resumed), then))
        if (value := getattr(now, name)) != next(last for last in stored if last is not msgspec.UNSET):
            new[name] = value
    resumed = (*then.resumed, ResumedJob(launch=launch, **new))
    return msgspec.structs.replace(then, resumed=resumed) if new else then


def _refuse_other_facts(run: Run, cases: Sequence[Case], hosts: Sequence[str], facts: Mapping[str, HostFacts]) -> None:
    differences = [] if run.hosts == tuple(hosts) else [f"hosts: {list(run.hosts)} then, {list(hosts)} now"]
    if run.cases != tuple(cases):
        differences.append(f"cases: {len(run.cases)} then, {len(cases)} now, or other cases")
    placements = rank_placements(run.hosts, run.environments), rank_placements(hosts, facts)
    for host in dict.fromkeys(hosts):
        then, now = (
            _comparable_facts(environments.get(host, UNKNOWN_HOST)) for environments in (run.environments, facts)
        )
        for name in _SAME_FACTS:
            if not then[name] and name != "virtualization":
                del then[name], now[name]
        bound = [binding([placement for placement in bound_to if placement.host == host]) for bound_to in placements]
        if None not in bound:  # older runs did not record it
            then["binding"], now["binding"] = bound
        differences += [
            f"{key} of {host}: {then.get(key)} then, {now.get(key)} now"
            for key in dict.fromkeys([*then, *now])
            if then.get(key) != now.get(key)
        ]
    _refuse(run, differences)


def _refuse(run: Run, differences: Sequence[str], advice: str = _START_ANEW) -> None:
    if differences:
        raise LaunchError(
            f"run {run.id} cannot be resumed: the environment differs ({'; '.join(differences)}); {advice}"
        )


def _comparable_facts(host: HostFacts) -> dict[str, object]:
    return {name: fact_of(host, name) for name in _SAME_FACTS} | {
        variable.in_words: value
        for variable, value in variables_of(host).items()
        if variable.name.startswith(SAME_VARIABLES)
    }
