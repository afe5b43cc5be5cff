"""How ranks come to life: the table of launchers."""

import dataclasses
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from busbw.backends import backend_named
from busbw.backends.base import BackendRow
from busbw.errors import LaunchError, UsageError
from busbw.launch import launcher_env, rendezvous
from busbw.launch.base import LauncherRow, Result, Settings
from busbw.launch.session import refuse_impossible
from busbw.launch.signals import ending_below
from busbw.runs import store
from busbw.runs.plan import Plan, Timing, told_as_options
from busbw.runs.resume import plan_of, refuse_another_world


def _join(plan: Plan, row: BackendRow, settings: Settings) -> Result:
    from busbw.launch.attach import lead  # noqa: PLC0415 - it measures, and so it loads torch

    return lead(plan, row, settings, _seat(launcher_here(os.environ)))


def _run_local(plan: Plan, row: BackendRow, settings: Settings) -> Result:
    from busbw.launch.local import run_local  # noqa: PLC0415 - as above

    return run_local(plan, row, settings)


LAUNCHERS: dict[str, LauncherRow] = {
    row.name: row
    for row in (
        LauncherRow(
            name="torchrun",
            summary="joins the world that torchrun has started: torchrun --nproc-per-node 4 --no-python busbw run …",
            run=_join,
            promises=launcher_env.TORCHRUN,
            meets=rendezvous.at_torchrun,
            starts=("anybody",),
        ),
        LauncherRow(
            name="mpirun",
            summary="joins the world that mpirun or mpiexec has started: mpirun -n 4 busbw run …, over any backend",
            run=_join,
            promises=launcher_env.MPIRUN,
            meets=rendezvous.at_mpirun,
        ),
        LauncherRow(
            name="srun",
            summary="joins the world of a job step of Slurm: srun --ntasks 4 busbw run …, over MPI with srun's --mpi",
            run=_join,
            promises=launcher_env.SRUN,
            meets=rendezvous.at_srun,
        ),
        # The last one takes what none of the others recognises.
        LauncherRow(
            name="local",
            summary="forks the ranks on this machine and watches them, over MPI behind mpiexec: busbw run --ranks 4 …",
            run=_run_local,
        ),
    )
}


def launcher_here(variables: Mapping[str, str]) -> LauncherRow:
    """The launcher whose world this process is part of; ``local`` when it is part of none."""
    return next(row for row in LAUNCHERS.values() if row.found(variables))


def _seat(row: LauncherRow) -> launcher_env.Seat:
    return launcher_env.seat_in(row.name, row.promises, os.environ)


def take_part(begin: Callable[[Settings], Result | None], settings: Settings, timeout_seconds: float) -> Result | None:
    """``begin`` a run; or, in a rank that somebody else started and that is not the first, do what rank 0 says.

    ``begin`` reads the plan, or the run to be resumed, and calls ``execute`` or ``resume`` with the settings that it is
    given; it may also do neither and return None, which then every rank does. ``timeout_seconds`` bounds the wait for
    rank 0. Raises as ``execute``; in the others, not what rank 0 says itself. UsageError in every rank when the timeout
    is none.
    """
    # torch's own warnings (no name for an address, a connection that closed) are many, one a rank, and help nobody.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    row = launcher_here(os.environ)
    if row.meets is None:
        return begin(settings)
    with told_as_options():
        Timing(timeout_seconds=timeout_seconds)  # the plan's check of it comes too late for the meeting
    seat = _seat(row)
    ending = ending_below(seat)
    ending.note_from_now()
    where = row.meets(seat, os.environ, timeout_seconds)
    if not seat.lead:
        from busbw.launch.attach import follow  # noqa: PLC0415 - it measures, and so it loads torch

        return follow(where, seat, usable_backend, ending)
    told = rendezvous.Told(where)
    status = 1
    try:
        result = begin(dataclasses.replace(settings, meeting=told, ending=ending))
        status = 0
    except UsageError:
        status = 2  # of all ranks alike: an mpiexec makes one number of those that it gets, and 2 and 1 are 3
        raise
    else:
        return result
    finally:
        told.send_home(status)


def ranks_of(plan: Plan, variables: Mapping[str, str]) -> int:
    """How many ranks a run of ``plan`` has here. Raises UsageError when the plan and the launcher's world disagree, and
    LaunchError when this is one of several ranks of a world that no launcher here knows.
    """
    row = launcher_here(variables)
    promised = row.size(variables)
    if promised is None:
        launcher_env.refuse_unknown_world(variables)
        return plan.ranks or launcher_env.default_ranks(backend_named(plan.backend).places())
    if plan.ranks not in {None, promised}:
        message = f"--ranks {plan.ranks}, but {row.name} started {promised}; leave --ranks out or make them agree"
        raise UsageError(message)
    return promised


def execute(plan: Plan, settings: Settings, row: BackendRow | None = None) -> Result:
    """Run ``plan`` in the world that is here, or in one that is made for it.

    ``row`` stands in for the plan's backend where given: the same one with a fault, for example.
    Raises BusbwError when it breaks (everything measured until then is on the disk) and KeyboardInterrupt when it is
    interrupted.
    """
    launcher, ranks = launcher_here(os.environ), ranks_of(plan, os.environ)
    plan.require_path()
    with told_as_options():
        refuse_impossible(plan, ranks, on_one_host=launcher.meets is None)
    return launcher.run(plan, usable_backend(plan, row), settings)


def usable_backend(plan: Plan, row: BackendRow | None = None) -> BackendRow:
    """The backend of ``plan``, or ``row`` in its stead. Raises LaunchError when it cannot run here."""
    row = row or backend_named(plan.backend)
    missing = row.missing()
    if missing is not None:
        message = f"backend {row.name} cannot run here: {missing}"
        raise LaunchError(message)
    launcher = launcher_here(os.environ)
    if row.started_by not in launcher.starts:
        others = ", ".join(one.name for one in LAUNCHERS.values() if row.started_by in one.starts)
        message = f"{launcher.name} cannot start ranks of backend {row.name}; it runs below: {others}"
        raise LaunchError(message)
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
