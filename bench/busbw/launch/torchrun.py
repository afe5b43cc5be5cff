"""Ranks that torchrun has started: this process is one of them and joins the world it finds."""

import os
import signal
import sys
import time
from types import FrameType

import msgspec

from busbw import environment, store
from busbw.backends.base import BackendRow, World
from busbw.console import LiveTable
from busbw.errors import BusbwError, RankFailure
from busbw.launch.base import Result, Settings, die_with_parent, finish, finish_well
from busbw.launch.promises import promised, torchrun_size
from busbw.listeners import Listener, Several, Silent
from busbw.plan import Plan
from busbw.records import Case, Failed, Measurement, Skipped
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
    rank = promised(os.environ, "RANK")
    world = World(
        rank, torchrun_size(os.environ), promised(os.environ, "LOCAL_RANK"), "torchrun", plan.timing.timeout_seconds
    )
    lead = rank == 0
    if plan.launches > 1:
        if lead:
            sys.stderr.write(f"busbw: torchrun's world is one launch; the plan's {plan.launches} launches become 1\n")
        plan = msgspec.structs.replace(plan, launches=1)
    # Only rank 0 needs the folder; the others are told a path that they never touch.
    folder = store.create(settings.results_dir, environment.machine_name()) if lead else settings.results_dir
    tracking = _Tracking()
    table: Listener = LiveTable(plan, 0, time.monotonic()) if lead and not settings.quiet else Silent()
    signal.signal(signal.SIGTERM, _wait_for_the_reason)
    signal.signal(signal.SIGALRM, _raise_interrupt)
    try:
        outcome = run(Job(plan, folder, 0, "torchrun", row), world, Several(table, tracking))
    except BusbwError as error:
        if lead:
            failure = (
                None
                if tracking.case is None
                else Failed(case=tracking.case, launch=0, block=tracking.block, error=str(error))
            )
            finish(folder, "failed", str(error), failure)
        if lead or not isinstance(error, RankFailure) or 0 in error.lost:
            raise
        return Result(folder, 0, 1, speaks=False)
    except KeyboardInterrupt:
        if lead:
            finish(folder, "interrupted", "interrupted by a signal")
        raise
    if lead:
        finish_well(folder, outcome.failed)
    return Result(folder, outcome.measured, outcome.failed, speaks=lead)


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
