"""Start ranks or join those of a launcher, and execute or resume a run with them."""

import dataclasses
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from busbw.backends import backend_named
from busbw.backends.base import BackendRow
from busbw.errors import LaunchError, UsageError
from busbw.launch.launchers import (
    LauncherRow,
    default_ranks,
    found_in,
    launcher_here,
    refuse_unknown_world,
    usable_backend,
)
from busbw.launch.rendezvous import ALONE, LaunchOrder
from busbw.launch.run_session import Attachment, Result, Settings, refuse_crowd, refuse_impossible
from busbw.launch.signals import ShutdownHandler
from busbw.runs import collection, store
from busbw.runs.plan import Plan, Timing, naming_options
from busbw.runs.resume import plan_of, refuse_other_environment


@contextmanager
def session(settings: Settings, timeout_seconds: float) -> Iterator[Settings]:
    """``settings``, with ``Settings.attached`` set if a launcher has started this rank.

    Rank 0 and a process that starts ranks itself may then call ``execute`` or ``resume``; other ranks call
    ``attach.run_rank``.
    On exit they are released if rank 0 has published no order.

    ``timeout_seconds`` limits the wait for rank 0. Raises UsageError on every rank if it is not valid, and LaunchError
    when the rendezvous fails.
    """
    # torch warns on every rank about addresses without a name and closed connections, which helps nobody.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    launcher = launcher_here(os.environ)
    if launcher.rendezvous is None:  # launcher.local, which mypy does not follow
        yield settings
        return
    with naming_options():
        Timing(timeout_seconds=timeout_seconds)  # the plan's own check would come after the rendezvous
    info = launcher.rank_info(os.environ)
    shutdown = ShutdownHandler(info, launcher.signals)
    shutdown.note_from_now()
    with _naming_what_may_be_left_over(launcher):
        attached = Attachment(launcher, info, launcher.rendezvous(info, os.environ, timeout_seconds), shutdown)
        status = 1
        try:
            yield dataclasses.replace(settings, attached=attached)
            status = 0
        except (UsageError, OSError, MemoryError):
            status = 2  # on all ranks, because mpiexec combines their statuses: 2 and 1 would become 3
            raise
        finally:
            if info.lead and not attached.published:
                attached.publish(LaunchOrder(status=status))
                attached.rendezvous.close()


@contextmanager
def _naming_what_may_be_left_over(launcher: LauncherRow) -> Iterator[None]:
    """Add the variable by which this process is a rank to the error of one that has met no other."""
    try:
        yield
    except LaunchError as error:
        names = found_in(launcher.variables, os.environ)
        if error.code == ALONE and names is not None:
            error.add_note(f"if {launcher.name} has not started this process, unset {names.rank}")
        raise


def ranks_of(plan: Plan, variables: Mapping[str, str]) -> int:
    """The number of ranks of a run of ``plan``.

    Raises UsageError when the plan and the launcher disagree, and LaunchError below an unknown launcher.
    """
    row = launcher_here(variables)
    started = row.size(variables)
    if started is None:
        refuse_unknown_world(variables)
        return plan.ranks or default_ranks(backend_named(plan.backend))
    if plan.ranks not in {None, started}:
        raise UsageError(
            f"--ranks {plan.ranks}, but {row.name} started {started} ranks; omit --ranks or make them agree"
        )
    return started


def on_one_host(ranks: int) -> bool:
    """Whether all ``ranks`` of a run are known to be on this host."""
    launcher = launcher_here(os.environ)
    return launcher.rendezvous is None or launcher.rank_info(os.environ).local_size == ranks


def execute(plan: Plan, settings: Settings, row: BackendRow | None = None) -> Result:
    """Run ``plan`` on the ranks of a launcher, or on local ranks.

    ``row`` replaces the plan's backend if given, for example to inject a fault. Raises BusbwError when the run fails
    and KeyboardInterrupt when it is interrupted; what was measured until then is on disk.
    """
    launcher, ranks = launcher_here(os.environ), ranks_of(plan, os.environ)
    # A resumed run was checked when it began, and keeps its plan.
    is_local = settings.resume is None and on_one_host(ranks)
    with naming_options():
        if launcher.local:
            refuse_crowd(ranks)
        # Before refuse_impossible: a GPU suite may need more ranks than a machine without GPUs has.
        usable = usable_backend(plan, row)
        refuse_impossible(plan, ranks, on_one_host=is_local)
    with collection.paused(kept=True):
        from busbw.launch.attach import run_rank0  # noqa: PLC0415 - imports torch
        from busbw.launch.local import run_local  # noqa: PLC0415 - as above
    if settings.attached is None:
        return run_local(plan, usable, settings)
    return run_rank0(plan, usable, settings, settings.attached)


def resume(folder: Path, launches: int | None, settings: Settings, timeout_seconds: float | None = None) -> Result:
    """Measure what the run in ``folder`` lacks.

    ``launches``: number of launches, to extend the run (None: that of the run).
    ``timeout_seconds``: timeout for the measurements to come (None: that of the run).

    Raises as ``execute`` does, and LaunchError if launcher, ranks or hosts differ from those of the run.
    """
    launcher = launcher_here(os.environ)
    run = store.read_run(folder)
    plan = plan_of(run, launches, timeout_seconds)
    refuse_other_environment(
        run,
        launcher=launcher.name,
        ranks=launcher.size(os.environ) or ranks_of(plan, os.environ),
        host=socket.gethostname(),
    )
    return execute(plan, dataclasses.replace(settings, resume=folder))
