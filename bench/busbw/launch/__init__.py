"""How ranks come to life, and how a run is begun, resumed or joined in them."""

import dataclasses
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from busbw.backends import backend_named
from busbw.backends.base import BackendRow
from busbw.errors import LaunchError, UsageError
from busbw.launch import launcher_env
from busbw.launch.base import Attachment, Result, Settings
from busbw.launch.launchers import LAUNCHERS, launcher_here
from busbw.launch.rendezvous import LaunchOrder
from busbw.launch.run_session import refuse_crowd, refuse_impossible
from busbw.launch.signals import ShutdownHandler
from busbw.runs import store
from busbw.runs.plan import Plan, Timing, told_as_options
from busbw.runs.resume import plan_of, refuse_another_world


@contextmanager
def session(settings: Settings, timeout_seconds: float) -> Iterator[Settings]:
    """``settings``, with this rank's place where somebody else has started it (``Settings.attached``).

    Rank 0, and a process that starts ranks itself (``Settings.leads``), then calls ``execute`` or ``resume``, or
    neither; other ranks call ``follow``. They are released in the end if rank 0 has told them nothing.
    ``timeout_seconds`` bounds the wait for rank 0. Raises UsageError in every rank when it is not a time, and
    LaunchError when the ranks do not meet.
    """
    # torch's own warnings (no name for an address, a connection that closed) are many, one a rank, and help nobody.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    launcher = launcher_here(os.environ)
    if launcher.rendezvous is None:
        yield settings
        return
    with told_as_options():
        Timing(timeout_seconds=timeout_seconds)  # the plan's check of it comes too late for the rendezvous
    info = launcher.rank_info(os.environ)
    shutdown = ShutdownHandler(info, launcher.signals)
    shutdown.note_from_now()
    attached = Attachment(info, launcher.rendezvous(info, os.environ, timeout_seconds), shutdown)
    status = 1
    try:
        yield dataclasses.replace(settings, attached=attached)
        status = 0
    except UsageError:
        status = 2  # of all ranks alike: an mpiexec makes one number of those that it gets, and 2 and 1 are 3
        raise
    finally:
        if info.lead and not attached.published:
            attached.publish(LaunchOrder(status=status))
            attached.rendezvous.close()


def follow(settings: Settings) -> Result | None:
    """Be a rank that does what rank 0 says; None when that is nothing. Raises as ``execute``, but not what rank 0 says
    itself.
    """
    from busbw.launch.attach import run_rank  # noqa: PLC0415 - it measures, and so it loads torch

    return run_rank(settings, usable_backend)


def ranks_of(plan: Plan, variables: Mapping[str, str]) -> int:
    """How many ranks a run of ``plan`` has here. Raises UsageError when the plan and the launcher's world disagree, and
    LaunchError when this is one of several ranks of a world that no launcher here knows.
    """
    row = launcher_here(variables)
    started = row.size(variables)
    if started is None:
        launcher_env.refuse_unknown_world(variables)
        return plan.ranks or launcher_env.default_ranks(backend_named(plan.backend).places())
    if plan.ranks not in {None, started}:
        raise UsageError(
            f"--ranks {plan.ranks}, but {row.name} started {started}; leave --ranks out or make them agree"
        )
    return started


def execute(plan: Plan, settings: Settings, row: BackendRow | None = None) -> Result:
    """Run ``plan`` in the world that is here, or in one that is made for it.

    ``row`` stands in for the plan's backend where given: the same one with a fault, for example.
    Raises BusbwError when it breaks (everything measured until then is on the disk) and KeyboardInterrupt when it is
    interrupted.
    """
    launcher, ranks = launcher_here(os.environ), ranks_of(plan, os.environ)
    with told_as_options():
        if launcher.rendezvous is None:
            refuse_crowd(ranks)
        # First: a machine without GPUs has fewer ranks than a suite for them asks for.
        usable = usable_backend(plan, row)
        refuse_impossible(plan, ranks, on_one_host=launcher.rendezvous is None)
    return launcher.run(plan, usable, settings)


def usable_backend(plan: Plan, row: BackendRow | None = None) -> BackendRow:
    """The backend of ``plan``, or ``row`` in its stead. Raises LaunchError when it cannot run here."""
    row = row or backend_named(plan.backend)
    missing = row.missing()
    if missing is not None:
        raise LaunchError(f"backend {row.name} cannot run here: {missing}")
    launcher = launcher_here(os.environ)
    if row.started_by not in launcher.starts:
        others = ", ".join(one.name for one in LAUNCHERS.values() if row.started_by in one.starts)
        raise LaunchError(f"{launcher.name} cannot start ranks of backend {row.name}; it runs below: {others}")
    return row


def resume(folder: Path, launches: int | None, settings: Settings, timeout_seconds: float | None = None) -> Result:
    """Measure what the run in ``folder`` lacks; ``launches`` may ask for more of them than it has, and
    ``timeout_seconds`` is for what is measured now (None: the one of the run).

    Raises as ``execute`` does; LaunchError also when this is another world than the one that the run began in.
    """
    launcher = launcher_here(os.environ)
    run = store.read_run(folder)
    plan = plan_of(run, launches, timeout_seconds)
    refuse_another_world(
        run,
        store.written_schema(folder),
        launcher=launcher.name,
        ranks=launcher.size(os.environ) or ranks_of(plan, os.environ),
        host=socket.gethostname(),
    )
    return execute(plan, dataclasses.replace(settings, resume=folder))
