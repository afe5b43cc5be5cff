"""Ranks that torchrun or mpirun has started: this process is one of them and joins the world it finds."""

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import msgspec

from busbw import store
from busbw.backends.base import BackendRow, World
from busbw.console import LiveTable
from busbw.errors import BusbwError, LaunchError, RankFailure
from busbw.launch.base import Result, Settings, die_with_parent, finish_well
from busbw.launch.opening import Opened, opened
from busbw.launch.promises import Promise, found_in, promised
from busbw.listeners import Listener, Several, Silent
from busbw.plan import Plan
from busbw.records import Case, Failed, Measurement, Skipped
from busbw.resume import lack_of
from busbw.worker import Job, run

_LAST_WORDS_SECONDS = 5.0
"""How long rank 0 lets the backend tell why torchrun ends the world, and hears the others out; they wait longer."""


@dataclass(frozen=True, slots=True)
class _Seat:
    """This process's place: what the launcher called ``launcher`` promised. ``rank`` 0 leads: it keeps the run folder.

    ``ended_together``: the launcher ends all ranks at once when one has ended badly, so the others leave it to rank 0
    to go first.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int
    local_size: int | None
    ended_together: bool

    @property
    def lead(self) -> bool:
        return self.rank == 0


class _Tracking(Silent):
    """Remembers in the middle of what a launch broke."""

    def __init__(self) -> None:
        self.case: Case | None = None
        self.block = 0

    def block_begins(self, case: Case, launch: int, block: int) -> None:  # noqa: ARG002 - there is one launch
        """Remember."""
        self.case, self.block = case, block

    def row_written(self, row: Measurement | Skipped | Failed) -> None:  # noqa: ARG002 - it is the one that began
        """Nothing of it can be lost any more."""
        self.case = None


def run_joined(
    plan: Plan,
    row: BackendRow,
    settings: Settings,
    *,
    launcher: str,
    promises: Sequence[Promise],
    ended_together: bool = False,
) -> Result:
    """Be one rank of the world that ``launcher`` started, for one launch; rank 0 keeps the run folder."""
    die_with_parent(os.getppid())
    seat = _seat(launcher, promises, ended_together=ended_together)
    if plan.launches > 1 and settings.resume is None:
        if seat.lead:
            sys.stderr.write(f"busbw: {launcher}'s world is one launch; the plan's {plan.launches} launches become 1\n")
        plan = msgspec.structs.replace(plan, launches=1)
    with opened(plan, settings) if seat.lead else _looked_into(plan, settings) as here:
        return here.nothing_to_do(speaks=seat.lead) or _run_launch(plan, row, settings, here, seat)


def _seat(launcher: str, promises: Sequence[Promise], *, ended_together: bool) -> _Seat:
    made = found_in(promises, os.environ)
    if made is None:
        message = f"{launcher} does not say in the environment which rank this is"
        raise LaunchError(message)
    rank, size, local_rank = (promised(os.environ, name) for name in (made.rank, made.size, made.local_rank))
    local_size = None if made.local_size is None else promised(os.environ, made.local_size)
    return _Seat(launcher, rank, size, local_rank, local_size, ended_together)


@contextmanager
def _looked_into(plan: Plan, settings: Settings) -> Iterator[Opened]:
    """What the other ranks have for a folder: they write nothing there, and what is missing they hear from rank 0."""
    if settings.resume is None:
        yield Opened(settings.results_dir, ((0, None),))
        return
    lack = lack_of(store.read(settings.resume), plan)
    yield Opened(settings.resume, tuple((lack.first + one.number, one) for one in lack.launches), lack)


def _run_launch(plan: Plan, row: BackendRow, settings: Settings, here: Opened, seat: _Seat) -> Result:
    lead = seat.lead
    launch, remaining = here.launches[0]
    tracking = _Tracking()

    def broke(error: Exception) -> None:
        if not lead:
            return
        failure = (
            None
            if tracking.case is None
            else Failed(case=tracking.case, launch=launch, block=tracking.block, error=str(error))
        )
        here.finish("failed", str(error), failure)

    def lost(error: Exception) -> None:
        broke(error)
        _leave(error, seat)

    timeout = plan.timing.timeout_seconds
    world = World(seat.rank, seat.size, seat.local_rank, seat.launcher, timeout, local_size=seat.local_size, lost=lost)
    table: Listener = LiveTable(plan, launch, time.monotonic(), remaining) if lead and not settings.quiet else Silent()
    _listen_to_signals(seat)
    try:
        outcome = run(Job(plan, here.folder, launch, seat.launcher, row, remaining), world, Several(table, tracking))
    except BusbwError as error:
        broke(error)
        if seat.ended_together:
            _leave(error, seat)
        if lead or not isinstance(error, RankFailure) or 0 in error.lost:
            raise
        return Result(here.folder, 0, 1, speaks=False)
    except KeyboardInterrupt:
        if lead:
            here.finish("interrupted", "interrupted by a signal")
        raise
    failed = here.failed + outcome.failed
    if lead:
        _close(here, failed, seat.launcher)
    return Result(here.folder, outcome.measured, failed, speaks=lead)


def _leave(error: Exception, seat: _Seat) -> None:
    """Say what happened and go, without a word to the library, which would wait for ranks that are gone.

    Rank 0 goes first: the launcher ends all others when one has gone, and rank 0 has the end of the run to write.
    """
    if not seat.lead:
        time.sleep(_LAST_WORDS_SECONDS)
    if seat.lead or not isinstance(error, RankFailure) or 0 in error.lost:
        sys.stderr.write(f"busbw: {error}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _close(here: Opened, failed: int, launcher: str) -> None:
    """The end of the run, or of this launch of it: the world is one launch, and others may be missing still."""
    others = len(here.launches) - 1
    if others == 0:
        finish_well(here.folder, failed)
        return
    here.finish("interrupted", f"{others} launch(es) are still missing; {launcher}'s world is one at a time")
    sys.stderr.write(
        f"busbw: {others} launch(es) of run {here.folder.name} are still missing, and {launcher}'s world is one "
        "at a time: resume it again\n"
    )


def _listen_to_signals(seat: _Seat) -> None:
    """The end of a world that is ended from outside.

    Where ranks are ended together, it is rank 0 that a signal ends, in order; the others go on, so that it is not left
    waiting for them in the middle of a call, and the launcher ends them next.
    """
    signal.signal(signal.SIGALRM, _raise_interrupt)
    if not seat.ended_together:
        signal.signal(signal.SIGTERM, _wait_for_the_reason)
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _raise_interrupt if seat.lead else signal.SIG_IGN)


def _wait_for_the_reason(_number: int, _frame: FrameType | None) -> None:
    """torchrun ends its ranks with SIGTERM, also when one of them has died: then the backend is about to say so.

    The end itself comes by SIGALRM, a moment later. Rank 0 goes first, so that a world that is ended on purpose is not
    taken for one that broke.
    """
    lead = os.environ.get("RANK") == "0"
    signal.setitimer(signal.ITIMER_REAL, _LAST_WORDS_SECONDS if lead else 2 * _LAST_WORDS_SECONDS)


def _raise_interrupt(_number: int, _frame: FrameType | None) -> None:
    """End as on Ctrl-C, with the run folder closed."""
    raise KeyboardInterrupt(signal.Signals.SIGTERM.name)
