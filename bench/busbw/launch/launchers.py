"""The table of launchers: how each is recognised, how its ranks meet, and how it ends them."""

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from busbw.backends.base import BackendRow
from busbw.launch.base import Result, Settings
from busbw.launch.launcher_env import OF_MPIRUN, LauncherVariables, RankInfo, env_int, found_in, rank_info
from busbw.launch.rendezvous import Rendezvous, at_mpirun, at_srun, at_torchrun
from busbw.launch.signals import LAST_WORDS_SECONDS, SignalPolicy
from busbw.runs.plan import Plan

_BEFORE_SLURM_KILLS_SECONDS = 20.0
"""Slurm kills what is left ``KillWait`` after SIGTERM: 30 s, unless the cluster says otherwise."""


def _run_rank0(plan: Plan, row: BackendRow, settings: Settings) -> Result:
    from busbw.launch.attach import run_rank0  # noqa: PLC0415 - it measures, and so it loads torch

    return run_rank0(plan, row, settings)


def _run_local(plan: Plan, row: BackendRow, settings: Settings) -> Result:
    from busbw.launch.local import run_local  # noqa: PLC0415 - as above

    return run_local(plan, row, settings)


@dataclass(frozen=True, slots=True)
class LauncherRow:
    """A row of the table of launchers.

    ``variables``: by which a rank knows that this launcher has started it (none: it starts ranks itself).
    ``rendezvous``: how rank 0 reaches the others, from its place, the environment and a timeout in seconds; it also
    says where their shared secret is from.
    ``signals``: how it ends its ranks.
    ``starts``: the kinds of backends (``started_by``) whose ranks it can start.
    ``run``: measures a plan, in rank 0 or in the process that starts ranks.
    """

    name: str
    summary: str
    variables: tuple[LauncherVariables, ...] = ()
    rendezvous: Callable[[RankInfo, Mapping[str, str], float], Rendezvous] | None = None
    signals: SignalPolicy = field(default_factory=SignalPolicy)
    starts: tuple[str, ...] = ("anybody", "mpiexec")
    run: Callable[[Plan, BackendRow, Settings], Result] = _run_rank0

    def found(self, environ: Mapping[str, str]) -> bool:
        """Whether this process is one of its ranks already, or could start some."""
        return not self.variables or found_in(self.variables, environ) is not None

    def size(self, environ: Mapping[str, str]) -> int | None:
        """How many ranks there are (None: as many as are asked for)."""
        found = found_in(self.variables, environ)
        return None if found is None else env_int(environ, found.size)

    def rank_info(self, environ: Mapping[str, str]) -> RankInfo:
        """This process's place among its ranks. Raises LaunchError when what the variables say cannot be."""
        return rank_info(self.name, self.variables, environ)


LAUNCHERS: dict[str, LauncherRow] = {
    row.name: row
    for row in (
        LauncherRow(
            name="torchrun",
            summary="joins the world that torchrun has started: torchrun --nproc-per-node 4 --no-python busbw run …",
            variables=(
                LauncherVariables(
                    rank="RANK",
                    size="WORLD_SIZE",
                    local_rank="LOCAL_RANK",
                    local_size="LOCAL_WORLD_SIZE",  # who sets them by hand leaves out this one and the node
                    node="GROUP_RANK",
                    others=("MASTER_ADDR", "MASTER_PORT"),
                ),
            ),
            rendezvous=at_torchrun,
            # It sends SIGTERM also when one rank has died: then the backend is about to say so.
            signals=SignalPolicy({signal.SIGTERM: LAST_WORDS_SECONDS, signal.SIGUSR1: None}),
            starts=("anybody",),
        ),
        LauncherRow(
            name="mpirun",
            summary="joins the world that mpirun or mpiexec has started: mpirun -n 4 busbw run …, over any backend",
            variables=OF_MPIRUN,
            rendezvous=at_mpirun,
            signals=SignalPolicy({signal.SIGUSR1: None}, at_once=(signal.SIGINT, signal.SIGTERM), together=True),
        ),
        LauncherRow(
            name="srun",
            summary="joins the world of a job step of Slurm: srun --ntasks 4 busbw run …, over MPI with srun's --mpi",
            # A step of a single task is no world but a place to start ranks in: `srun --pty bash`, or the script of a
            # launch. The script of a batch job is none either: it has SLURM_PROCID and no list of the nodes of a step.
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
        ),
        # The last one takes what none of the others recognises.
        LauncherRow(
            name="local",
            summary="forks the ranks on this machine and watches them, over MPI behind mpiexec: busbw run --ranks 4 …",
            run=_run_local,
        ),
    )
}


def launcher_here(environ: Mapping[str, str]) -> LauncherRow:
    """The launcher whose world this process is part of; ``local`` when it is part of none."""
    return next(row for row in LAUNCHERS.values() if row.found(environ))
