"""A rank that torchrun, mpirun or srun has started: it joins the other ranks for one launch."""

import dataclasses
import faulthandler
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from busbw.backends.base import BackendRow, World
from busbw.errors import BusbwError, Interrupted, RankFailure
from busbw.escape import say
from busbw.launch.launchers import LauncherRow, usable_backend
from busbw.launch.live_table import LiveTable
from busbw.launch.rendezvous import LaunchOrder
from busbw.launch.run_session import Attachment, Listener, Result, RunSession, Settings, open_run
from busbw.launch.signals import LAST_WORDS_SECONDS, ShutdownHandler, die_with_parent
from busbw.launch.worker import Job, Outcome, run
from busbw.runs.plan import Plan
from busbw.runs.progress import CaseBlock
from busbw.system.storage import files_folder, remove_files

_INTERRUPTED = "interrupted by a signal"
_EXITS_SECONDS = 5.0


def run_rank0(plan: Plan, row: BackendRow, settings: Settings, attached: Attachment) -> Result:
    """Run one launch as rank 0, which writes the run folder and publishes the order to the other ranks."""
    launcher = attached.launcher
    if plan.launches > 1 and settings.resume is None and launcher.next_launches is None:
        say(f"{launcher.name} runs one launch only, so the plan's {plan.launches} launches are reduced to 1")
        plan = msgspec.structs.replace(plan, launches=1)
    with open_run(plan, settings, attached.info.local_size or 1) as session:
        return session.nothing_to_do() or _run_launch(plan, row, session, attached, quiet=settings.quiet)


def _run_launch(plan: Plan, row: BackendRow, session: RunSession, attached: Attachment, *, quiet: bool) -> Result:
    info, shutdown = attached.info, attached.shutdown
    launch, remaining = session.launches[0]
    current: CaseBlock | None = None

    def begins(block: CaseBlock | None) -> None:
        nonlocal current
        current = block

    files = files_folder(plan.files_below, session.folder.name)

    def lost(error: Exception) -> None:
        session.broke(error, launch, current)
        _leave(error)

    def abort() -> None:
        session.finish("interrupted", _INTERRUPTED)
        remove_files(files)
        _leave(Interrupted(session.folder))

    _die_with_launcher(shutdown)
    try:
        with shutdown.listening(abort):
            attached.publish(LaunchOrder(plan=plan, run=session.folder.name, launch=launch, remaining=remaining))
            began = time.monotonic()
            table = Listener(begins) if quiet else LiveTable(plan, launch, began, remaining, report=begins)
            job = Job(plan, session.folder, launch, info.launcher, row, remaining, shutdown.asked)
            outcome = run(job, _world(attached, plan, lost), table)
    except BusbwError as error:
        session.broke(error, launch, current)
        if shutdown.policy.together:
            _leave(error)
        _exit_soon(error)
        raise
    except KeyboardInterrupt as interrupt:
        session.finish("interrupted", _INTERRUPTED)
        _exit_soon(interrupt)
        raise
    if outcome.stopped:
        session.finish("interrupted", f"ended at the end of a block by {shutdown.in_words()}")
        raise Interrupted(session.folder)
    failures = session.failed + outcome.failed
    _close(session, failures, attached.launcher)
    return Result(session.folder, outcome.measured, failures, speaks=True)


def run_rank(attached: Attachment) -> Result | None:
    """Run one launch as another rank, by the order of rank 0; None if there is nothing to measure. Raises as
    ``launch.execute`` does, except for errors that rank 0 reports.
    """
    info, shutdown = attached.info, attached.shutdown
    order = attached.rendezvous.receive()
    if order.plan is None:
        attached.rendezvous.close()
        return Result(Path(), 0, 1, speaks=False, status=order.status) if order.status else None
    plan = order.plan
    _die_with_launcher(shutdown)

    def lost(error: Exception) -> None:
        if not (isinstance(error, RankFailure) and 0 in error.lost):
            time.sleep(LAST_WORDS_SECONDS)  # rank 0 goes first, because it writes the end of the run
        _leave(error, speaks=_speaks(error))

    job = Job(plan, Path(order.run), order.launch, info.launcher, usable_backend(plan), order.remaining, shutdown.asked)
    files = files_folder(plan.files_below, job.folder.name)

    def abort() -> None:
        remove_files(files)
        _leave(Interrupted(job.folder), speaks=False)

    try:
        with shutdown.listening(abort):
            outcome: Outcome = run(job, _world(attached, plan, lost), Listener())
    except BusbwError as error:
        if shutdown.policy.together:
            lost(error)
        _exit_soon(error)
        if _speaks(error):
            raise
        return Result(job.folder, 0, 1, speaks=False)
    return Result(job.folder, outcome.measured, 1 if outcome.stopped else outcome.failed, speaks=False)


def _die_with_launcher(shutdown: ShutdownHandler) -> None:
    if not shutdown.policy.cleans_up:
        die_with_parent(os.getppid())


def _world(attached: Attachment, plan: Plan, lost: Callable[[Exception], None]) -> World:
    return World(
        **dataclasses.asdict(attached.info),
        timeout_seconds=plan.timing.timeout_seconds,
        store=attached.rendezvous.store,
        key=attached.rendezvous.key,
        lost=lost,
    )


def _speaks(error: Exception) -> bool:
    """Whether a rank other than 0 reports ``error``: only if rank 0 cannot."""
    return not isinstance(error, RankFailure) or 0 in error.lost


def _exit_soon(error: BaseException) -> None:
    """Limit the time that this process takes to exit after ``error``: libraries that close connections may wait for
    ranks that are gone. The timer thread does not need the Python interpreter.
    """
    if isinstance(error, RankFailure | KeyboardInterrupt):
        discarded = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - open until this process ends
        faulthandler.dump_traceback_later(_EXITS_SECONDS, exit=True, file=discarded)


def _leave(error: BaseException, *, speaks: bool = True) -> None:
    """Report ``error`` and exit without closing the library, which could wait for ranks that are gone."""
    if speaks:
        say(error)
    sys.stdout.flush()
    os._exit(1)


def _close(session: RunSession, failed: int, launcher: LauncherRow) -> None:
    """Write the end of the run or, if other launches are missing, of this launch: a launcher runs one at a time."""
    others = len(session.launches) - 1
    if others == 0:
        session.complete(failed)
        return
    session.finish("interrupted", f"{others} launch(es) are still missing; {launcher.name} runs one at a time")
    action = f"use {launcher.next_launches}" if launcher.next_launches else "resume the run again"
    name = session.folder.name
    say(f"{others} launch(es) of run {name} are still missing, and {launcher.name} runs one at a time: {action}")
