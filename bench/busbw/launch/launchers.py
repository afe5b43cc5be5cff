"""The table of launchers: how each is recognised, how its ranks rendezvous, and how it ends them."""

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from busbw.backends import backend_named
from busbw.backends.base import BackendRow
from busbw.errors import LaunchError
from busbw.launch.launcher_env import OF_MPIRUN, LauncherVariables, RankInfo, env_int, found_in
from busbw.launch.rendezvous import Rendezvous, at_mpirun, at_srun, at_torchrun
from busbw.launch.signals import LAST_WORDS_SECONDS, SignalPolicy
from busbw.runs.plan import Plan

_BEFORE_SLURM_KILLS_SECONDS = 20.0
"""Less than Slurm's ``KillWait``, the time from SIGTERM to SIGKILL: 30 s by default."""


@dataclass(frozen=True, slots=True)
class LauncherRow:
    """A row of the table of launchers.

    ``variables``: environment variables of its ranks, several variants (empty: no such variables).
    ``rendezvous``: makes the rendezvous from rank, environment and timeout in seconds (None: busbw starts the ranks).
    ``signals``: how it ends its ranks.
    ``starts``: the kinds of backends (``started_by``) whose ranks it can start.
    ``next_launches``: what starts the other launches of a run (None: nothing, so a new run has one launch).
    """

    name: str
    summary: str
    variables: tuple[LauncherVariables, ...] = ()
    rendezvous: Callable[[RankInfo, Mapping[str, str], float], Rendezvous] | None = None
    signals: SignalPolicy = field(default_factory=SignalPolicy)
    starts: tuple[str, ...] = ("anybody", "mpiexec")
    next_launches: str | None = None

    @property
    def local(self) -> bool:
        """Whether busbw itself starts the ranks, on this host."""
        return self.rendezvous is None

    def found(self, environ: Mapping[str, str]) -> bool:
        """Whether this process is one of its ranks, or can start them."""
        return not self.variables or found_in(self.variables, environ) is not None

    def size(self, environ: Mapping[str, str]) -> int | None:
        """Number of its ranks (None: not started yet)."""
        names = found_in(self.variables, environ)
        return None if names is None else env_int(environ, names.size)


LAUNCHERS: dict[str, LauncherRow] = {
    row.name: row
    for row in (
        LauncherRow(
            name="torchrun",
            summary="joins ranks started by torchrun: torchrun --nproc-per-node 4 --no-python busbw run …",
            variables=(
                LauncherVariables(
                    rank="RANK",
                    size="WORLD_SIZE",
                    local_rank="LOCAL_RANK",
                    local_size="LOCAL_WORLD_SIZE",  # users who set the variables themselves omit this one and the node
                    node="GROUP_RANK",
                    others=("MASTER_ADDR", "MASTER_PORT"),
                ),
            ),
            rendezvous=at_torchrun,
            # It also sends SIGTERM when a rank has died, which the backend is about to report.
            signals=SignalPolicy({signal.SIGTERM: LAST_WORDS_SECONDS, signal.SIGUSR1: None}),
            starts=("anybody",),
        ),
        LauncherRow(
            name="mpirun",
            summary="joins ranks started by mpirun or mpiexec, over any backend: mpirun -n 4 busbw run …",
            variables=OF_MPIRUN,
            rendezvous=at_mpirun,
            signals=SignalPolicy({signal.SIGUSR1: None}, at_once=(signal.SIGINT, signal.SIGTERM), together=True),
        ),
        LauncherRow(
            name="srun",
            summary="joins ranks of a Slurm job step: srun --ntasks 4 busbw run …; for MPI with srun's --mpi",
            # In a step with a single task, such as `srun --pty bash`, ranks are started locally. So they are in a batch
            # script, which has SLURM_PROCID but no SLURM_STEP_NODELIST.
            variables=(
                LauncherVariables(
                    rank="SLURM_PROCID",
                    size="SLURM_STEP_NUM_TASKS",
                    local_rank="SLURM_LOCALID",
                    tasks="SLURM_STEP_TASKS_PER_NODE",
                    node="SLURM_NODEID",
                    others=("SLURM_STEP_NODELIST", "SLURM_STEP_ID"),
                    least=2,
                ),
            ),
            rendezvous=at_srun,
            signals=SignalPolicy(
                {
                    signal.SIGTERM: _BEFORE_SLURM_KILLS_SECONDS,
                    signal.SIGINT: _BEFORE_SLURM_KILLS_SECONDS,
                    signal.SIGUSR1: None,
                },
                cleans_up=True,
            ),
            next_launches="busbw launches or busbw submit --resume",
        ),
        # The last row applies if no other does.
        LauncherRow(
            name="local",
            summary="starts ranks on this machine, for MPI through mpiexec: busbw run --ranks 4 …",
        ),
    )
}


def launcher_here(environ: Mapping[str, str]) -> LauncherRow:
    """The launcher that has started this process as a rank, else ``local``."""
    return next(row for row in LAUNCHERS.values() if row.found(environ))


def usable_backend(plan: Plan, row: BackendRow | None = None) -> BackendRow:
    """The backend of ``plan``, or ``row`` if given. Raises LaunchError when it cannot run here."""
    row = row or backend_named(plan.backend)
    missing = row.missing()
    if missing is not None:
        raise LaunchError(f"backend {row.name} cannot run here: {missing}")
    launcher = launcher_here(os.environ)
    if row.started_by not in launcher.starts:
        others = ", ".join(other.name for other in LAUNCHERS.values() if row.started_by in other.starts)
        raise LaunchError(f"{launcher.name} cannot start ranks of backend {row.name}; use one of: {others}")
    return row
