"""Ranks that torchrun has started: this process is one of them and joins the world it finds."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import msgspec

from busbw import store
from busbw.backends.base import BackendRow, World
from busbw.console import LiveTable
from busbw.errors import BusbwError, RankFailure
from busbw.launch.base import Result, Settings, die_with_parent, finish_well
from busbw.launch.opening import Opened, opened
from busbw.launch.promises import promised, torchrun_size
from busbw.listeners import Listener, Several, Silent
from busbw.plan import Plan
from busbw.records import Case, Failed, Measurement, Skipped
from busbw.resume import lack_of
from busbw.worker import Job, run

_LAST_WORDS_SECONDS = 5.0
"""How long rank 0 lets the backend tell why torchrun ends the world, and hears the others out; they wait longer."""


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


def run_joined(plan: Plan, row: BackendRow, settings: Settings) -> Result:
    """Be one rank of torchrun's world for one launch; rank 0 keeps the run folder."""
    die_with_parent(os.getppid())
    lead = promised(os.environ, "RANK") == 0
    if plan.launches > 1 and settings.resume is None:
        if lead:
            sys.stderr.write(f"busbw: torchrun's world is one launch; the plan's {plan.launches} launches become 1\n")
        plan = msgspec.structs.replace(plan, launches=1)
    with opened(plan, settings) if lead else _looked_into(plan, settings) as here:
        return here.nothing_to_do(speaks=lead) or _run_launch(plan, row, settings, here)


@contextmanager
def _looked_into(plan: Plan, settings: Settings) -> Iterator[Opened]:
    """What the other ranks have for a folder: they write nothing there, and what is missing they hear from rank 0."""
    if settings.resume is None:
        yield Opened(settings.results_dir, ((0, None),))
        return
    lack = lack_of(store.read(settings.resume), plan)
    yield Opened(settings.resume, tuple((lack.first + one.number, one) for one in lack.launches), lack)


def _run_launch(plan: Plan, row: BackendRow, settings: Settings, here: Opened) -> Result:
    rank = promised(os.environ, "RANK")
    world = World(
        rank, torchrun_size(os.environ), promised(os.environ, "LOCAL_RANK"), "torchrun", plan.timing.timeout_seconds
    )
    lead = rank == 0
    launch, remaining = here.launches[0]
    tracking = _Tracking()
    table: Listener = LiveTable(plan, launch, time.monotonic(), remaining) if lead and not settings.quiet else Silent()
    signal.signal(signal.SIGTERM, _wait_for_the_reason)
    signal.signal(signal.SIGALRM, _raise_interrupt)
    try:
        outcome = run(Job(plan, here.folder, launch, "torchrun", row, remaining), world, Several(table, tracking))
    except BusbwError as error:
        if lead:
            failure = (
                None
                if tracking.case is None
                else Failed(case=tracking.case, launch=launch, block=tracking.block, error=str(error))
            )
            here.finish("failed", str(error), failure)
        if lead or not isinstance(error, RankFailure) or 0 in error.lost:
            raise
        return Result(here.folder, 0, 1, speaks=False)
    except KeyboardInterrupt:
        if lead:
            here.finish("interrupted", "interrupted by a signal")
        raise
    failed = here.failed + outcome.failed
    if lead:
        _close(here, failed)
    return Result(here.folder, outcome.measured, failed, speaks=lead)


def _close(here: Opened, failed: int) -> None:
    """The end of the run, or of this launch of it: torchrun's world is one launch, and others may be missing still."""
    others = len(here.launches) - 1
    if others == 0:
        finish_well(here.folder, failed)
        return
    here.finish("interrupted", f"{others} launch(es) are still missing; torchrun's world is one at a time")
    sys.stderr.write(
        f"busbw: {others} launch(es) of run {here.folder.name} are still missing, and torchrun's world is one at "
        "a time: resume it again\n"
    )


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
