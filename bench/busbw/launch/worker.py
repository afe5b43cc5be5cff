"""One rank of a launch: connect the backend, exchange facts, measure block after block; rank 0 writes the results."""

import dataclasses
import itertools
import json
import os
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

import busbw
from busbw.backends.base import Backend, BackendRow, World, explained
from busbw.backends.compiled_loop import Row, nothing, row_of
from busbw.errors import BackendError, LaunchError, RankFailure
from busbw.launch.asked import AskedRounds
from busbw.launch.run_session import Listener
from busbw.measure.bench import Bench, agreed
from busbw.measure.block import measure
from busbw.measure.clock import Clock, CommonClock, HostClock, compare_all, read_cost_ns
from busbw.measure.loops import empty_call_ns
from busbw.measure.rounds import MOST_WINDOWS, Windows, rounds
from busbw.measure.unsupported import Place, skip_reason
from busbw.ops import OPS
from busbw.runs import store
from busbw.runs.cases import Cases, expand, in_words, shares
from busbw.runs.decoding import decode
from busbw.runs.facts import HostFacts
from busbw.runs.placement import cautions, oversubscribed_hosts
from busbw.runs.plan import Plan
from busbw.runs.records import SCHEMA, Case, Failed, LaunchStarted, Measurement, RankClock, Skipped, Window
from busbw.runs.resume import Remaining, lacking, record_resumption
from busbw.runs.run import Run
from busbw.system import environment
from busbw.system.environment import by_host, rank_facts
from busbw.system.storage import cautions as cautions_of_storage
from busbw.system.storage import files_folder, obstacle, remove_files, storage_facts, way_of_all

_EMPTY_ROW = 100
"""Calls in a row, to measure the harness's own cost per call."""

_WARMUP_UNITS = 1000
"""Units of device computation in each step of the launch's warm-up: some ms."""

_MOST_REASONS = 8
"""Number of different reasons that a message lists when every rank has failed."""


@dataclass(frozen=True, slots=True)
class Job:
    """The task of one launch.

    ``folder``: the run folder.
    ``launch``: number of the launch, from 0.
    ``launcher``: name of the launcher.
    ``remaining``: what remains to be measured (None: a new run).
    ``asked_to_end``: whether this rank was asked to end; ranks agree on it before each block (None: the parent process
    ends the ranks).
    """

    plan: Plan
    folder: Path
    launch: int
    launcher: str
    backend: BackendRow
    remaining: Remaining | None = None
    asked_to_end: Callable[[], bool] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a launch.

    ``measured``: number of blocks.
    ``failed``: number of cases.
    ``stopped``: whether it was ended early by a signal.
    """

    measured: int
    failed: int
    stopped: bool = False


def run(job: Job, world: World, listener: Listener, clock: Clock | None = None) -> Outcome:
    """Run one launch as rank ``world.rank``. ``listener`` receives events only on rank 0.

    Raises LaunchError when the ranks cannot connect, RankFailure when a rank is lost (with its host, the operation and
    the size), and StoreError on rank 0 when the results cannot be written.
    """
    opened: list[_Launch] = []
    folder = files_folder(job.plan.files_below, job.folder.name)

    def lost(error: Exception) -> None:
        """Called from the watchdog thread of a backend; the main thread will not return from its call."""
        remove_files(folder)
        world.lost(opened[0].failure_of(error) if opened else LaunchError(f"rank {world.rank}: {error}"))

    # Not named ``world``, because ``lost`` calls that of ``world``.
    watched = dataclasses.replace(world, batch_seconds=job.plan.timing.max_seconds, folder=folder, lost=lost)
    launch = _Launch(job, job.backend.open(watched), clock or HostClock(), listener)
    opened.append(launch)
    try:
        survey = launch.survey(world)
        outcome = launch.measure(survey, launch.decide(survey))
        launch.doing = "the end of the launch"
        launch.backend.close()
        opened.clear()  # breaks the cycle of ``lost`` and backend, whose threads must end before the interpreter exits
    except BackendError as error:
        raise launch.failure_of(error) from error
    finally:
        remove_files(folder)
    return outcome


class _Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank sends to all others at the start.

    facts, pid: of its host and itself
    timer_ns: cost of a clock read
    empty_ns, compiled_ns: cost of an empty call, single and in a row, in the Python loop and in the compiled one (None:
        there is none)
    """

    facts: HostFacts
    pid: int
    timer_ns: int
    empty_ns: tuple[int, int]
    compiled_ns: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class _Survey:
    """What all ranks know of each other.

    hosts, reports: host and report of each rank.
    facts: of each host.
    cores: fewest cores of any rank.
    common: the clock that all ranks share.
    clocks: offsets of the ranks' clocks from an exchange of time stamps.
    """

    hosts: tuple[str, ...]
    reports: tuple[_Report, ...]
    facts: dict[str, HostFacts]
    cores: int
    common: CommonClock
    clocks: tuple[RankClock, ...]


@dataclass(frozen=True, slots=True)
class _Decision:
    """What this launch measures; the same on every rank.

    cases: of the plan.
    skipped: cases that cannot run here, with the reason.
    hindered: cases that fail without being tried, with the reason.
    order: blocks in the order in which they are measured.
    seed: of the order and the data.
    """

    cases: Cases
    skipped: dict[Case, str]
    hindered: dict[Case, str]
    order: tuple[tuple[Case, int], ...]
    seed: int


@dataclass(slots=True)
class _Launch:
    """One launch on this rank, stage by stage. ``doing``: its activity, ``hosts``: of all ranks; for error messages.

    The stages are collective and raise BackendError.
    """

    job: Job
    backend: Backend
    clock: Clock
    listener: Listener
    doing: str = "the start of the launch"
    hosts: tuple[str, ...] = ()

    def survey(self, world: World) -> _Survey:
        """Exchange facts, costs and clocks with all ranks."""
        own = store.encode(self._own_report(world)).decode()
        reports = [decode(text, _Report) for text in self.backend.share(own)]
        of_ranks = [report.facts for report in reports]
        self.hosts = hosts = tuple(str(facts.host) for facts in of_ranks)
        of_hosts = by_host(hosts, of_ranks)
        common = CommonClock(self.backend, self.clock, environment.clock_domains(of_ranks))
        common.renew()
        return _Survey(
            hosts=hosts,
            reports=tuple(reports),
            facts=of_hosts,
            cores=environment.cores_of_a_rank(hosts, [of_hosts[host] for host in hosts], of_ranks),
            common=common,
            clocks=compare_all(self.backend, self.clock),
        )

    def _own_report(self, world: World) -> _Report:
        job, backend = self.job, self.backend
        now = backend.conditions()
        # Without NVML, as with AMD GPUs, only the PCI address identifies the GPU.
        own = rank_facts(
            *(backend.rank, world.local_rank, world.node),
            gpu=None if now is None else now.index,
            gpu_address=None if backend.device is None else backend.device.address,
            gpu_free_bytes=None if backend.device is None else backend.device.free_bytes(),
        )
        facts, storage = job.backend.facts(environment.host_facts()), storage_facts(job.plan.files_below)
        kernels = any(OPS[name].threaded for sweep in job.plan.sweep for name in sweep.ops)
        compiled = row_of([nothing()]) if job.backend.native or kernels else None
        return _Report(
            facts=msgspec.structs.replace(facts, storage=storage, ranks=(own,)),
            pid=os.getpid(),
            timer_ns=read_cost_ns(self.clock),
            empty_ns=self._empty_ns(),
            compiled_ns=None if compiled is None else self._empty_ns(compiled),
        )

    def _empty_ns(self, compiled: Row | None = None) -> tuple[int, int]:
        """Cost of an empty call, single and in a row, in the ``compiled`` loop if given."""
        single = empty_call_ns(self.backend, self.clock, compiled=compiled)
        return single, empty_call_ns(self.backend, self.clock, row=_EMPTY_ROW, samples=_EMPTY_ROW, compiled=compiled)

    def decide(self, survey: _Survey) -> _Decision:
        """Expand the plan for these ranks and order its blocks. Raises UsageError, too."""
        job, backend, hosts = self.job, self.backend, survey.hosts
        of_ranks = [report.facts for report in survey.reports]
        way = way_of_all(facts.storage for facts in of_ranks)
        cases = expand(job.plan, backend.size, len(set(hosts)), job.backend.device, way, survey.cores)
        begun = self._facts_when_the_run_began(survey.facts)
        free = [own.gpu_free_bytes for host in begun.values() for own in host.ranks if own.gpu_free_bytes is not None]
        place = Place(
            bool(oversubscribed_hosts(hosts, survey.facts)),
            survey.common.comparable,
            survey.cores,
            in_blocks=environment.in_blocks(hosts),
            numa_nodes=environment.common_numa_nodes([survey.facts[host] for host in hosts]),
            hosts=hosts,
            memory={host: size for host, facts in begun.items() if (size := facts.memory.available_bytes) is not None},
            gpu_memory=min(free, default=None),
        )
        skipped = refusals(cases.cases, backend, place)
        seed = job.plan.seed + job.launch
        blocks = range(job.plan.timing.blocks)
        order = [(case, block) for case in cases.cases if case not in skipped for block in blocks]
        random.Random(seed).shuffle(order)
        order = asked_first(order, job.plan.baseline_ops)
        return _Decision(
            cases=cases,
            skipped=skipped,
            hindered={case: reason for case in cases.cases if (reason := obstacle(case, of_ranks)) is not None},
            order=tuple(order if job.remaining is None else lacking(order, cases.cases, job.remaining)),
            seed=seed,
        )

    def _facts_when_the_run_began(self, facts: Mapping[str, HostFacts]) -> Mapping[str, HostFacts]:
        """The facts of every host when the run began, so that a case that does not fit into memory is skipped in all
        launches. In later launches only rank 0 knows them; its refusals apply to all ranks.
        """
        if self.job.launch > 0 or self.job.remaining is not None:
            return store.read_run(self.job.folder).environments if self.backend.rank == 0 else {}
        return facts

    def measure(self, survey: _Survey, decision: _Decision) -> Outcome:
        """Measure block after block; rank 0 writes the rows. Raises LaunchError and StoreError, too."""
        job, backend = self.job, self.backend
        begun = self._started(survey, decision.seed)
        appender = self._appender(survey, decision, begun) if backend.rank == 0 else None

        def record(row: Measurement | Window | Skipped | Failed) -> None:
            if appender is not None:
                appender.append(row)
                if not isinstance(row, Window):
                    self.listener.row_written(row)

        known = frozenset() if job.remaining is None else job.remaining.skipped
        for case, reason in decision.skipped.items():
            # Only once per run.
            if (job.launch == 0 or job.remaining is not None) and decision.cases.cases.index(case) not in known:
                record(Skipped(case=case, reason=reason))
        self.doing = "the warm-up of the launch"
        _warm_up(backend, self.clock, job.plan.timing.launch_warmup_seconds)
        bench = Bench(
            *(backend, self.clock, job.plan.timing, survey.common, decision.seed),
            timer_ns=max(begun.timer_ns),
            hosts=survey.hosts,
            traces=job.folder if job.plan.record_trace else None,
        )
        if job.plan.controller is None:
            outcome = self._measure_blocks(bench, decision, record)
        else:
            outcome = self._measure_rounds(bench, decision, survey, record)
        self.listener.launch_ended()
        return outcome

    def _started(self, survey: _Survey, seed: int) -> LaunchStarted:
        reports = survey.reports
        single_ns, in_a_row_ns = zip(*(report.empty_ns for report in reports), strict=True)
        compiled = [report.compiled_ns for report in reports if report.compiled_ns is not None]
        compiled_call_ns, compiled_loop_ns = zip(*compiled, strict=True) if len(compiled) == len(reports) else ((), ())
        return LaunchStarted(
            launch=self.job.launch,
            started=store.utc_now(),
            order_seed=seed,
            hosts=survey.hosts,
            pids=tuple(report.pid for report in reports),
            timer_ns=tuple(report.timer_ns for report in reports),
            shared_clock=survey.common.shared,
            load_average=environment.load_average(),
            empty_call_ns=single_ns,
            empty_loop_ns=in_a_row_ns,
            compiled_call_ns=compiled_call_ns,
            compiled_loop_ns=compiled_loop_ns,
            clocks=survey.clocks,
            resumes=None if self.job.remaining is None else self.job.remaining.resumes,
        )

    def _measure_blocks(
        self, bench: Bench, decision: _Decision, record: Callable[[Measurement | Window | Failed], None]
    ) -> Outcome:
        launch, asked = self.job.launch, self.job.asked_to_end
        measured = 0
        void: set[Case] = set()
        began = self.clock.now_ns() - (0 if self.job.remaining is None else self.job.remaining.elapsed_ns)
        repeated = self._repeated(decision)
        with_windows = frozenset(repeated)
        windows = Windows(launch, self.job.plan.duration_ns // MOST_WINDOWS, record)

        def now_ns() -> int:
            """Time of the run, of the rank on which it is latest. Collective."""
            return int(agreed(bench, [self.clock.now_ns() - began])[0])

        for (case, block), planned in rounds(self.job.plan, repeated, decision.order, void, now_ns):
            if case in void:
                continue
            self.doing = in_words(case)
            self.listener.block_begins(case, launch, block)
            # All ranks learn whether any rank was asked to end.
            if asked is not None and bench.backend.reduce(np.asarray([asked()], dtype=np.int64), "max")[0]:
                windows.close(now_ns())
                return Outcome(measured, len(void), stopped=True)
            row: Measurement | Failed
            begin_ns = now_ns() if case in with_windows else 0
            if case in decision.hindered:
                error = decision.hindered[case]
                row = Failed(case=case, launch=launch, block=block, error=error, cause="environment")
            else:
                row = measure(bench, case, shares(case, decision.cases.weights), launch, block)
            if planned or isinstance(row, Failed):
                record(row)
            self.doing = f"the pause after {in_words(case)}"
            if isinstance(row, Failed):
                void.add(case)
            else:
                measured += 1
                if case in with_windows:
                    windows.add(row, begin_ns, now_ns())
        windows.close(now_ns())
        return Outcome(measured, len(void))

    def _measure_rounds(
        self, bench: Bench, decision: _Decision, survey: _Survey, record: Callable[[Measurement | Failed], None]
    ) -> Outcome:
        """Measure the rounds that the plan's controller asks for. Raises LaunchError, too."""
        job, cases = self.job, decision.cases.cases
        rounds = AskedRounds(bench.backend, cases, decision.skipped)
        if bench.backend.rank == 0:
            rounds.begin(job.plan, survey.hosts, survey.facts)
        measured = 0
        failed: set[Case] = set()
        row: Measurement | Failed | None = None
        for number in itertools.count():
            self.doing = "the choice of a round"
            ask, stopped = rounds.next(row, stop=job.asked_to_end is not None and job.asked_to_end())
            if ask is None or stopped:
                return Outcome(measured, len(failed), stopped=stopped)
            case = cases[ask.case]
            self.doing = in_words(case)
            self.listener.block_begins(case, job.launch, number)
            if case in decision.hindered:
                error = decision.hindered[case]
                row = Failed(case=case, launch=job.launch, block=number, error=error, cause="environment")
            else:
                row = measure(bench, case, (), job.launch, number, ask.groups)
            record(row)
            measured += isinstance(row, Measurement)
            failed |= {case} if isinstance(row, Failed) else set()
        raise AssertionError  # the count has no end

    def _repeated(self, decision: _Decision) -> tuple[Case, ...]:
        """The cases that are measured until the duration of the plan is over: not those that are only references."""
        plan = self.job.plan
        asked = {op for sweep in plan.sweep if not sweep.baseline for op in sweep.ops} if plan.duration_ns else set()
        return tuple(case for case in decision.cases.cases if case.op in asked and case not in decision.skipped)

    def _appender(self, survey: _Survey, decision: _Decision, begun: LaunchStarted) -> store.Appender:
        """On rank 0, write run.json and the start of the launch, and return the appender for rows."""
        job, cases, hosts, facts = self.job, decision.cases, survey.hosts, survey.facts
        if job.launch == 0 and job.remaining is None:
            run_record = Run(
                schema=SCHEMA,
                id=job.folder.name,
                busbw=busbw.__version__,
                machine=job.folder.parent.name,
                started=begun.started,
                launcher=job.launcher,
                plan=job.plan,
                cases=cases.cases,
                adjusted=cases.adjusted,
                hosts=hosts,
                environments=facts,
                backend=job.backend.traits,
            )
            store.write_run(job.folder, run_record)
        elif job.remaining is not None:
            record_resumption(job.folder, job.plan, cases.cases, hosts, facts, launch=job.launch)
        elif (before_hosts := store.read_run(job.folder).hosts) != hosts:
            raise LaunchError(
                f"launch {job.launch + 1} runs on {list(hosts)}, but the first one ran on {list(before_hosts)}; "
                "all launches of a run must use the same hosts"
            )
        appender = store.Appender(job.folder)
        appender.append(begun)
        warnings = (*cautions(job.launcher, hosts, facts), *cautions_of_storage(facts))
        self.listener.world_formed(cases, len(decision.order), hosts, warnings)
        return appender

    def failure_of(self, error: Exception) -> RankFailure:
        """The failure with its cause: the ranks that no longer answer, else the errors that the ranks report."""
        reports = self.backend.fail(str(error))
        silent = tuple(sorted(set(range(self.backend.size)) - set(reports)))
        if not silent:
            # Most ranks only report that another rank has failed; the cause is among the other reports.
            reasons: dict[str, int] = {}
            for rank in sorted(reports):
                reasons.setdefault(reports[rank], rank)
            said = "; ".join(f"rank {rank} says: {reason}" for reason, rank in list(reasons.items())[:_MOST_REASONS])
            return RankFailure(f"{self.doing} failed on every rank; {said}", said=said)
        said = f"rank {self.backend.rank} says: {error}"
        names = [f"rank {rank} (host {self.hosts[rank]})" if self.hosts else f"rank {rank}" for rank in silent]
        return RankFailure(f"{', '.join(names)} did not answer during {self.doing}; {said}", silent, said)


def asked_first(order: list[tuple[Case, int]], references: Collection[str]) -> list[tuple[Case, int]]:
    """The blocks of ``order`` as a cycle from the first one of no reference on, so that its number is the first."""
    begin = next((place for place, (case, _) in enumerate(order) if case.op not in references), 0)
    return order[begin:] + order[:begin]


def refusals(cases: Sequence[Case], backend: Backend, place: Place) -> dict[Case, str]:
    """The ``cases`` that cannot run, with the reason. A case that one rank refuses, for example because its host has no
    compiler, is refused on all, with the reason of the first such rank.
    """
    refused = [(number, reason) for number, case in enumerate(cases) if (reason := skip_reason(case, backend, place))]
    reasons: dict[int, str] = {}
    for text in backend.share(json.dumps(refused)):
        for number, reason in json.loads(text):
            reasons.setdefault(number, reason)
    return {cases[number]: reasons[number] for number in sorted(reasons)}


def _warm_up(backend: Backend, clock: Clock, seconds: float) -> None:
    """Run small collectives for a time rather than a count, because connections, frequencies and caches need time.

    The collectives run on the hosts; a device computes meanwhile, because its clock rises under load. Raises
    BackendError.
    """
    spent = 0
    began = clock.now_ns()
    while spent < seconds * 1e9:
        with explained(backend):
            if backend.device is not None:
                backend.device.compute(_WARMUP_UNITS)
                backend.device.synchronise()
            for _ in range(10):
                backend.barrier()
        spent = int(backend.reduce(np.asarray([clock.now_ns() - began], dtype=np.int64), "max")[0])
