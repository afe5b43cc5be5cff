"""Ranks on this machine: forked from one process that has torch in memory already, watched until the last is gone.

Forking after ``import torch`` starts 16 ranks in under a second where spawning them takes a quarter of a minute. It
is safe because the parent has done nothing with torch but import it: no threads, no CUDA, no process group.
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

from busbw import errors
from busbw.backends.base import BackendRow, World
from busbw.backends.mpi.segments import LATE, remove_segments
from busbw.errors import BusbwError, LaunchError, RankFailure
from busbw.launch.base import Result, Settings, die_with_parent, finish_well
from busbw.launch.launcher_env import default_ranks
from busbw.launch.live_table import LiveTable
from busbw.launch.mpiexec import RankStub, close_descriptors, rank_stubs
from busbw.launch.observers import Listener, Relay, in_words
from busbw.launch.run_session import RunSession, open_run
from busbw.launch.signals import raise_interrupt
from busbw.launch.worker import Job, Outcome, run
from busbw.ops import OPS
from busbw.runs.plan import Plan
from busbw.runs.progress import CaseBlock

_LOOPBACK = "127.0.0.1"
_KEY_BYTES = 32
_POLL_SECONDS = 0.5
_LAST_WORDS_SECONDS = 5.0
"""How long the others may take to say what happened once one rank is in trouble; more than they wait themselves."""


@dataclass(frozen=True, slots=True)
class _Broke:
    kind: str
    message: str
    said: str = ""


@dataclass(slots=True)
class _Rank:
    """A child as the parent sees it."""

    number: int
    process: ForkProcess
    pipe: Connection
    outcome: Outcome | None = None
    broke: _Broke | None = None

    @property
    def gone(self) -> bool:
        return self.process.exitcode is not None

    def state(self) -> str:
        """The kernel's one letter for the process: T is stopped, D waits for a disk."""
        try:
            return Path(f"/proc/{self.process.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
        except (OSError, IndexError):
            return "?"


@dataclass(slots=True)
class Watch:
    """What the parent knows of a launch while it goes on."""

    ranks: list[_Rank] = field(default_factory=list)
    now: CaseBlock | None = None
    during: str = "the start of the launch"


def run_local(plan: Plan, row: BackendRow, settings: Settings) -> Result:
    """Run every launch of ``plan`` here, in one run folder. Raises what broke it, with the folder closed in order."""
    size = plan.ranks or default_ranks(row.places())
    with open_run(plan, settings, size) as run_folder:
        return run_folder.nothing_to_do() or _run_launches(plan, row, settings, run_folder, size)


def _run_launches(plan: Plan, row: BackendRow, settings: Settings, here: RunSession, size: int) -> Result:
    began = time.monotonic()
    measured, failures, launch, watch = 0, here.failed, 0, Watch()
    written: int | None = here.size_bytes
    # They end a run as Ctrl-C does; the last one is what Slurm sends before the time limit.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, raise_interrupt)
    try:
        for launch, remaining in here.launches:
            watch = Watch()
            job = Job(plan, here.folder, launch, "local", row, remaining, written=written)
            outcome = launch_ranks(job, watch, size, began, settings.port, quiet=settings.quiet)
            measured += outcome.measured
            failures += outcome.failed
            written = outcome.written
    except BusbwError as error:
        here.broke(error, launch, watch.now)
        raise
    except KeyboardInterrupt:
        here.finish("interrupted", "interrupted by a signal")
        raise
    finish_well(here.folder, failures, written)
    return Result(here.folder, measured, failures, speaks=True)


def launch_ranks(job: Job, watch: Watch, size: int, began: float, port: int = 0, *, quiet: bool = False) -> Outcome:
    """Run one launch of ``size`` ranks here; ``port`` 0 takes a free one for the rendezvous.

    Returns rank 0's outcome. Raises LaunchError or what broke the launch, with every rank gone: ``watch`` says in the
    middle of what.
    """
    # Loaded in the parent, once, so that the forked ranks have torch.
    from busbw.backends.side_channel import first_line, serve_store  # noqa: PLC0415

    context = multiprocessing.get_context("fork")
    sys.stdout.flush()
    sys.stderr.flush()
    with ExitStack() as stack:
        # What a library that starts its ranks itself has for them.
        stubs = () if job.backend.started_by == "anybody" else stack.enter_context(rank_stubs(size))
        stack.callback(_end, watch.ranks)
        # Pending while children are being made, so that none is half made when it arrives.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
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
                    raise LaunchError(f"{message}; ask for fewer, or raise the limit") from error
                theirs.close()
                watch.ranks.append(_Rank(number, process, ours))
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        close_descriptors(stubs)
        try:
            store, _ = serve_store(_LOOPBACK, port, job.plan.timing.timeout_seconds)
        except (RuntimeError, OSError) as error:
            message = f"cannot open the rendezvous on {_LOOPBACK} port {port}: {first_line(error)}"
            advice = "give another port with --port, or leave it out for a free one"
            raise LaunchError(f"{message}; {advice}") from error
        key = os.urandom(_KEY_BYTES)
        for rank in watch.ranks:
            with suppress(BrokenPipeError):  # it has died, and is named below
                rank.pipe.send((_LOOPBACK, store.port, key))
        return _watch(watch, job.plan.timing.timeout_seconds)


def _watch(watch: Watch, timeout_seconds: float) -> Outcome:
    """Wait until every rank has ended well; raise what broke them once it is clear that they will not."""
    since: dict[str, float] = {}
    while not all(rank.gone or rank.outcome is not None for rank in watch.ranks):
        _listen(watch)
        now = time.monotonic()
        dead = any((rank.process.exitcode or 0) < 0 for rank in watch.ranks)
        # What the others were at is what they say of a step, which is many calls.
        whole = dead and not (watch.now is not None and OPS[watch.now[0].op].splits)
        patience = _POLL_SECONDS if whole or not any(_may_speak(rank) for rank in watch.ranks) else _LAST_WORDS_SECONDS
        states = {
            "trouble": (any(rank.broke or (rank.gone and rank.outcome is None) for rank in watch.ranks), patience),
            "stopped": (all(rank.gone or rank.state() == "T" for rank in watch.ranks), timeout_seconds),
            # One rank has finished, so all have measured everything; another one may still hang on its way out.
            "done": (any(rank.outcome is not None for rank in watch.ranks), timeout_seconds),
        }
        since = {name: since.get(name, now) for name, (holds, _) in states.items() if holds}
        if any(now - began > states[name][1] for name, began in since.items()):
            break
    _listen(watch)
    if all(rank.outcome is not None for rank in watch.ranks):
        outcome = watch.ranks[0].outcome
        if outcome is not None:
            return outcome
    raise _verdict(watch)


def _listen(watch: Watch) -> None:
    """Take in what the ranks say, for at most one poll."""
    open_pipes = {rank.pipe: rank for rank in watch.ranks if not rank.pipe.closed}
    sentinels = [rank.process.sentinel for rank in watch.ranks if not rank.gone]
    for ready in wait([*open_pipes, *sentinels], timeout=_POLL_SECONDS):
        rank = open_pipes.get(ready) if isinstance(ready, Connection) else None
        if rank is None:
            continue
        try:
            while rank.pipe.poll():
                _take_in(watch, rank, rank.pipe.recv())
        except (EOFError, OSError):
            rank.pipe.close()


def _take_in(watch: Watch, rank: _Rank, word: object) -> None:
    if isinstance(word, tuple):
        watch.now, watch.during = word, in_words(word[0])
    elif word is None and watch.now is not None:
        watch.now, watch.during = None, f"the pause after {watch.during}"
    elif isinstance(word, _Broke):
        rank.broke = word
    elif isinstance(word, Outcome):
        rank.outcome = word


def _may_speak(rank: _Rank) -> bool:
    """Whether something is still to be heard from a rank: it runs, and has not said how it ended."""
    return not rank.gone and rank.broke is None and rank.outcome is None and rank.state() != "T"


def _verdict(watch: Watch) -> BusbwError:
    """Who or what ended the launch, in words.

    A rank that died or is stopped is to blame before one that merely does not answer: that one may be waiting for it.
    """
    during = watch.during
    words = [rank.broke for rank in watch.ranks if rank.broke is not None]
    roots = [word for word in words if word.kind != RankFailure.__name__]
    ends = {rank.number: end for rank in watch.ranks if (end := _fate(rank)) is not None}
    certain = {number: text for number, (text, sure) in ends.items() if sure}
    suspects = certain or ({} if roots else {number: text for number, (text, _) in ends.items()})
    if suspects:
        names = [
            f"rank {number} (host {socket.gethostname()}, pid {watch.ranks[number].process.pid}) {text}"
            for number, text in suspects.items()
        ]
        said = next((f"; {word.said}" for word in words if word.said), "")
        late = not any(watch.ranks[number].gone for number in suspects)
        return RankFailure(f"{', '.join(names)} during {during}{said}", tuple(suspects), late=late)
    if roots:
        return _as_error(roots[0])
    return RankFailure(words[0].message if words else f"the launch ended during {during} and no rank says why")


def _fate(rank: _Rank) -> tuple[str, bool] | None:
    """What became of a rank that neither finished nor said why, and whether that is certain to be its own doing."""
    code = rank.process.exitcode
    if rank.outcome is not None or rank.broke is not None:
        return None
    if code is None:
        return ("is stopped and does not answer", True) if rank.state() == "T" else ("hangs: it does not answer", False)
    return (
        f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code} without a word",
        True,
    )


def _as_error(word: _Broke) -> BusbwError:
    kind = getattr(errors, word.kind, None)
    return kind(word.message) if isinstance(kind, type) and issubclass(kind, BusbwError) else BusbwError(word.message)


def _end(ranks: list[_Rank]) -> None:
    """Nobody is left behind, whatever happened. SIGKILL also ends a stopped process."""
    for rank in ranks:
        if rank.outcome is not None:
            rank.process.join(_LAST_WORDS_SECONDS)
        if not rank.gone:
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
    # Ctrl-C reaches every process of the terminal, and Slurm's signal every one of a step of one task; the parent alone
    # decides what becomes of the ranks.
    for left in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(left, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # lo on Linux, lo0 on BSD: Gloo wants a name, and ranks of one machine need no other interface.
    loopback = next((name for _, name in socket.if_nameindex() if name in {"lo", "lo0"}), "lo")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    if stub is not None:
        stub.enter()

    def lost(error: Exception) -> None:
        _last_words(parent, _as_word(error))

    try:
        host, port, key = parent.recv()
        timeout = job.plan.timing.timeout_seconds
        world = World(
            *(number, size, number, job.launcher, timeout), store=(host, port), local_size=size, key=key, lost=lost
        )
        table = Listener() if quiet else LiveTable(job.plan, job.launch, began, job.remaining)
        outcome = run(job, world, Relay(table, parent.send) if number == 0 else Listener())
        parent.send(outcome)
    except BusbwError as error:
        _last_words(parent, _as_word(error))
    except Exception as error:  # noqa: BLE001 - a bug in one rank has to reach the user through the parent
        _last_words(parent, _Broke("BusbwError", f"rank {number}: {type(error).__name__}: {error}"))
    sys.stdout.flush()


def _as_word(error: Exception) -> _Broke:
    return _Broke(type(error).__name__, str(error), getattr(error, "said", ""))


def _last_words(parent: Connection, word: _Broke) -> None:
    try:
        parent.send(word)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Not sys.exit: Gloo's destructors may wait for peers that are gone.
        os._exit(1)
