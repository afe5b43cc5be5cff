"""Local ranks: forked from one process that has already imported torch, and watched until all have exited.

Forking after ``import torch`` starts 16 ranks in under a second; spawning them takes 15 s. It is safe because the
parent has only imported torch and busbw's backend: it has no threads, no CUDA context and no process group.
"""

import multiprocessing
import os
import signal
import socket
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path

from busbw.backends.base import BackendRow, World
from busbw.backends.mpi.segments import LATE, remove_segments
from busbw.errors import BusbwError, LaunchError, RankFailure
from busbw.launch.launchers import default_ranks
from busbw.launch.live_table import LiveTable
from busbw.launch.mpiexec import RankStub, close_descriptors, rank_stubs
from busbw.launch.run_session import Listener, Result, RunSession, Settings, open_run
from busbw.launch.signals import die_with_parent, raise_interrupt
from busbw.launch.worker import Job, Outcome, run
from busbw.ops import OPS
from busbw.runs.cases import in_words
from busbw.runs.plan import Plan
from busbw.runs.progress import CaseBlock

_LOOPBACK = "127.0.0.1"
_KEY_BYTES = 32
_POLL_SECONDS = 0.5
_REPORT_SECONDS = 5.0
"""Time for the other ranks to report after one has failed; longer than they wait for each other."""
_INTERRUPTING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1})
"""Signals that end a run like Ctrl-C; Slurm sends the last one before the time limit."""


@dataclass(slots=True)
class _Rank:
    """A rank as the parent process sees it."""

    number: int
    process: ForkProcess
    pipe: Connection
    outcome: Outcome | None = None
    failure: BusbwError | None = None

    @property
    def exited(self) -> bool:
        return self.process.exitcode is not None

    def state(self) -> str:
        """The kernel's one-letter process state: T is stopped, D waits for a disk."""
        try:
            return Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return "?"


@dataclass(slots=True)
class Watch:
    """The parent's view of a running launch: its ranks, and the block that is being measured, also as text."""

    ranks: list[_Rank] = field(default_factory=list)
    current: CaseBlock | None = None
    during: str = "the start of the launch"


def run_local(plan: Plan, row: BackendRow, settings: Settings) -> Result:
    """Run every launch of ``plan`` on local ranks, in one run folder. Errors are recorded there, then raised."""
    size = plan.ranks or default_ranks(row)
    with open_run(plan, settings, size) as run_folder:
        return run_folder.nothing_to_do() or _run_launches(plan, row, settings, run_folder, size)


def _run_launches(plan: Plan, row: BackendRow, settings: Settings, session: RunSession, size: int) -> Result:
    began = time.monotonic()
    measured, failures, launch, watch = 0, session.failed, 0, Watch()
    for number in _INTERRUPTING - {signal.SIGINT}:
        if signal.getsignal(number) != signal.SIG_IGN:  # as below nohup: the run outlives the terminal
            signal.signal(number, raise_interrupt)
    try:
        for launch, remaining in session.launches:
            watch = Watch()
            job = Job(plan, session.folder, launch, "local", row, remaining)
            outcome = launch_ranks(job, watch, size, began, settings.port, quiet=settings.quiet)
            measured += outcome.measured
            failures += outcome.failed
    except BusbwError as error:
        session.broke(error, launch, watch.current)
        raise
    except KeyboardInterrupt:
        session.finish("interrupted", "interrupted by a signal")
        raise
    session.complete(failures)
    return Result(session.folder, measured, failures, speaks=True)


def launch_ranks(job: Job, watch: Watch, size: int, began: float, port: int = 0, *, quiet: bool) -> Outcome:
    """Run one launch of ``size`` local ranks; ``port`` is that of the rendezvous (0: a free one).

    Returns rank 0's outcome. Raises LaunchError or the error of a rank, after all ranks have exited; ``watch`` contains
    the block in which it occurred.
    """
    # Imported once in the parent, so that the forked ranks have torch and its backends.
    import busbw.backends.pytorch.backend  # noqa: F401, PLC0415 - for the ranks
    from busbw.backends.side_channel import first_line, serve_store  # noqa: PLC0415

    context = multiprocessing.get_context("fork")
    sys.stdout.flush()
    sys.stderr.flush()
    with ExitStack() as stack:
        # For libraries whose ranks mpiexec must start.
        stubs = () if job.backend.started_by == "anybody" else stack.enter_context(rank_stubs(size))
        stack.callback(_end_all, watch.ranks)
        # Signals are blocked while children are started, so that they cannot interrupt the start of one.
        signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTING)
        try:
            for number in range(size):
                try:
                    ours, theirs = context.Pipe()
                    process = context.Process(
                        target=_be_rank,
                        args=(job, number, size, theirs, began, quiet, stubs[number] if stubs else None),
                        name=f"busbw-rank-{number}",
                        daemon=True,
                    )
                    process.start()
                except OSError as error:
                    message = f"cannot start rank {number} of {size}: {error.strerror}"
                    raise LaunchError(f"{message}; use fewer ranks, or raise the limit") from error
                theirs.close()
                watch.ranks.append(_Rank(number, process, ours))
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTING)
        close_descriptors(stubs)
        try:
            store, _ = serve_store(_LOOPBACK, port, job.plan.timing.timeout_seconds)
        except (RuntimeError, OSError) as error:
            message = f"cannot open the rendezvous on {_LOOPBACK} port {port or '0 (any)'}: {first_line(error)}"
            advice = "; give another --port, or omit it to use a free one" if port else ""
            raise LaunchError(f"{message}{advice}") from error
        key = os.urandom(_KEY_BYTES)
        for rank in watch.ranks:
            with suppress(BrokenPipeError):  # it has died and is reported below
                rank.pipe.send((_LOOPBACK, store.port, key))
        return _watch(watch, job.plan.timing.timeout_seconds)


def _watch(watch: Watch, timeout_seconds: float) -> Outcome:
    """Wait until every rank has finished; raise the error of the launch once it is clear that they will not."""
    since: dict[str, float] = {}
    while not all(rank.exited or rank.outcome is not None for rank in watch.ranks):
        _receive_messages(watch)
        now = time.monotonic()
        dead = any((rank.process.exitcode or 0) < 0 for rank in watch.ranks)
        # A training step is many calls, of which the other ranks report the one that failed, so they are awaited.
        clear = dead and not (watch.current is not None and OPS[watch.current[0].op].splits)
        patience = _POLL_SECONDS if clear or not any(_may_report(rank) for rank in watch.ranks) else _REPORT_SECONDS
        states = {
            "failed": (any(rank.failure or (rank.exited and rank.outcome is None) for rank in watch.ranks), patience),
            "stopped": (all(rank.exited or rank.state() == "T" for rank in watch.ranks), timeout_seconds),
            # One rank has finished, so all have measured everything; another may still hang while it exits.
            "done": (any(rank.outcome is not None for rank in watch.ranks), timeout_seconds),
        }
        since = {name: since.get(name, now) for name, (holds, _) in states.items() if holds}
        if any(now - began > states[name][1] for name, began in since.items()):
            break
    _receive_messages(watch)
    outcome = watch.ranks[0].outcome
    if outcome is not None and all(rank.outcome is not None for rank in watch.ranks):
        return outcome
    raise _error_of(watch)


def _receive_messages(watch: Watch) -> None:
    """Process the messages of the ranks, for at most one poll interval."""
    open_pipes = {rank.pipe: rank for rank in watch.ranks if not rank.pipe.closed}
    sentinels = [rank.process.sentinel for rank in watch.ranks if not rank.exited]
    for ready in wait([*open_pipes, *sentinels], timeout=_POLL_SECONDS):
        rank = open_pipes.get(ready) if isinstance(ready, Connection) else None
        if rank is None:
            continue
        try:
            while rank.pipe.poll():
                _process(watch, rank, rank.pipe.recv())
        except (EOFError, OSError):
            rank.pipe.close()


def _process(watch: Watch, rank: _Rank, message: object) -> None:
    if isinstance(message, tuple):
        watch.current, watch.during = message, in_words(message[0])
    elif message is None and watch.current is not None:
        watch.current, watch.during = None, f"the pause after {watch.during}"
    elif isinstance(message, BusbwError):
        rank.failure = message
    elif isinstance(message, Outcome):
        rank.outcome = message


def _may_report(rank: _Rank) -> bool:
    """Whether ``rank`` may still send a message: it runs, and has not reported its end."""
    return not rank.exited and rank.failure is None and rank.outcome is None and rank.state() != "T"


def _error_of(watch: Watch) -> BusbwError:
    """The error that ended the launch.

    A rank that died or is stopped is blamed before one that does not answer, which may be waiting for it.
    """
    during = watch.during
    reported = [rank.failure for rank in watch.ranks if rank.failure is not None]
    failures = [failure for failure in reported if isinstance(failure, RankFailure)]
    roots = [failure for failure in reported if not isinstance(failure, RankFailure)]
    ends = {rank.number: end for rank in watch.ranks if (end := _end_of(rank)) is not None}
    certain = {number: text for number, (text, sure) in ends.items() if sure}
    suspects = certain or ({} if roots else {number: text for number, (text, _) in ends.items()})
    if suspects:
        names = [
            f"rank {number} (host {socket.gethostname()}, pid {watch.ranks[number].process.pid}) {text}"
            for number, text in suspects.items()
        ]
        said = next((f"; {failure.said}" for failure in failures if failure.said), "")
        late = not any(watch.ranks[number].exited for number in suspects)
        return RankFailure(f"{', '.join(names)} during {during}{said}", tuple(suspects), late=late)
    if roots:
        return roots[0]
    if not failures:
        return RankFailure(f"the launch ended during {during} without a known reason")
    # Every rank has reported, so those that another one considers lost answered too late.
    first = next((failure for failure in failures if failure.lost), failures[0])
    return RankFailure(str(first), first.lost, first.said, late=True)


def _end_of(rank: _Rank) -> tuple[str, bool] | None:
    """How a rank ended that reported neither outcome nor failure, and whether it is certainly the cause."""
    code = rank.process.exitcode
    if rank.outcome is not None or rank.failure is not None:
        return None
    if code is None:
        return ("is stopped and does not answer", True) if rank.state() == "T" else ("hangs: it does not answer", False)
    return (
        f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code} without a message",
        True,
    )


def _end_all(ranks: list[_Rank]) -> None:
    """End every rank that is still running. SIGKILL also ends a stopped process."""
    for rank in ranks:
        if rank.outcome is not None:
            rank.process.join(_REPORT_SECONDS)
        if not rank.exited:
            remove_segments(rank.process.pid or "", LATE)
            rank.process.kill()
    for rank in ranks:
        rank.process.join()
        rank.pipe.close()


# --- in the child ----------------------------------------------------------------------------------------------


def _be_rank(
    job: Job,
    number: int,
    size: int,
    parent: Connection,
    began: float,
    quiet: bool,  # noqa: FBT001
    stub: RankStub | None,
) -> None:
    launcher = multiprocessing.parent_process()
    if launcher is not None and launcher.pid is not None:
        die_with_parent(launcher.pid)
    # Ctrl-C reaches every process of the terminal, and Slurm's signal every process of a step, but the parent alone
    # decides when ranks end.
    for number_of_signal in _INTERRUPTING - {signal.SIGTERM}:
        signal.signal(number_of_signal, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPTING)
    # lo on Linux, lo0 on BSD: Gloo needs an interface name, and local ranks need no other interface.
    loopback = next((name for _, name in socket.if_nameindex() if name in {"lo", "lo0"}), "lo")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    if stub is not None:
        stub.enter()

    def lost(error: Exception) -> None:
        _report_and_exit(parent, error)

    try:
        host, port, key = parent.recv()
        timeout = job.plan.timing.timeout_seconds
        world = World(
            *(number, size, number, job.launcher, timeout), store=(host, port), local_size=size, key=key, lost=lost
        )
        table = Listener(parent.send) if number == 0 else Listener()
        if number == 0 and not quiet:
            table = LiveTable(job.plan, job.launch, began, job.remaining, report=parent.send)
        outcome = run(job, world, table)
        parent.send(outcome)
    except BusbwError as error:
        _report_and_exit(parent, error)
    except Exception as error:  # noqa: BLE001 - the parent reports a bug in a rank to the user
        _report_and_exit(parent, BusbwError(f"rank {number}: {type(error).__name__}: {error}"))
    sys.stdout.flush()


def _report_and_exit(parent: Connection, error: Exception) -> None:
    try:
        parent.send(error)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Not sys.exit, because Gloo's destructors may wait for peers that are gone.
        os._exit(1)
