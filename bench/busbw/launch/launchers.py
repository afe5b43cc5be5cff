"""The table of launchers: how each is recognised, how its ranks rendezvous, and how it ends them."""

import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from busbw.backends import backend_named
from busbw.backends.base import BackendRow
from busbw.backends.signing import secret_in
from busbw.errors import LaunchError, UsageError
from busbw.launch.rendezvous import MpiRendezvous, Rendezvous, StoreRendezvous
from busbw.launch.signals import LAST_WORDS_SECONDS, RankInfo, SignalPolicy
from busbw.runs.plan import Plan
from busbw.system import environment

_LAST_PORT = 65535
_REPEATED = re.compile(r"(\d+)(?:\(x(\d+)\))?")
_RANGE = r"\d+(?:-\d+)?"
_HOSTS = rf"(?:[^,\[\]]|\[{_RANGE}(?:,{_RANGE})*\])+"
_HOST_LIST = re.compile(rf"(?P<first>{_HOSTS})(?:,{_HOSTS})*")


@dataclass(frozen=True, slots=True)
class LauncherVariables:
    """The names of the variables that one launcher sets.

    ``rank``, ``size``, ``local_rank``, ``others``: all must be set, because another program may set one of them.
    ``least``: smallest number of ranks to join; with fewer, ranks are started locally.
    ``local_size``: ranks of this host (None: not set by the launcher).
    ``tasks``: ranks of every node, as ``2(x3),1`` (None: not set by the launcher).
    ``node``: index of this node. (Not Open MPI's OMPI_COMM_WORLD_NODE_RANK, which counts the ranks of a node.)
    """

    rank: str
    size: str
    local_rank: str
    local_size: str | None = None
    others: tuple[str, ...] = ()
    least: int = 1
    tasks: str | None = None
    node: str | None = None

    def are_set(self, variables: Mapping[str, str]) -> bool:
        """Whether all required variables are set, for enough ranks. An empty rank is that of no process."""
        names = (self.size, self.local_rank, *self.others)
        return (
            bool(variables.get(self.rank))
            and all(name in variables for name in names)
            and (self.least == 1 or env_int(variables, self.size) >= self.least)
        )


OF_MPIRUN = (
    # Open MPI
    LauncherVariables(
        rank="OMPI_COMM_WORLD_RANK",
        size="OMPI_COMM_WORLD_SIZE",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
        local_size="OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    # Hydra: MPICH and its kin, Intel MPI
    LauncherVariables(rank="PMI_RANK", size="PMI_SIZE", local_rank="MPI_LOCALRANKID", local_size="MPI_LOCALNRANKS"),
)
"""What the libraries of MPI set for the ranks that mpirun or mpiexec starts."""


# Set by other process managers: PALS and Flux (like Hydra); Flux; jsrun. A rank of prterun or PALS above 0 is only
# recognisable by its number.
_SIZES_OF_OTHERS = ("PMI_SIZE", "FLUX_JOB_SIZE", "JSM_NAMESPACE_SIZE")
_RANKS_OF_OTHERS = ("PMIX_RANK", "PALS_RANKID")


def refuse_unknown_world(variables: Mapping[str, str]) -> None:
    """Raise LaunchError if an unknown launcher has started several processes: each would begin its own run, on the same
    cores.
    """
    for names, least in ((_SIZES_OF_OTHERS, 2), (_RANKS_OF_OTHERS, 1)):
        for name in names:
            text = variables.get(name, "")
            if text.isdecimal() and int(text) >= least:
                raise LaunchError(
                    f"{name} is {text}: a launcher that busbw does not know has started several processes, which would "
                    "all measure; use torchrun, mpirun or srun, or set RANK, WORLD_SIZE, LOCAL_RANK, "
                    f"MASTER_ADDR and MASTER_PORT for each; if this is the only process, unset {name}"
                )


def found_in(candidates: Sequence[LauncherVariables], variables: Mapping[str, str]) -> LauncherVariables | None:
    """The first of ``candidates`` that is set in ``variables``, or None."""
    return next((names for names in candidates if names.are_set(variables)), None)


def _local_size(names: LauncherVariables, variables: Mapping[str, str], node: int | None) -> int | None:
    if names.local_size is not None and names.local_size in variables:
        return env_int(variables, names.local_size)
    if names.tasks is None or node is None or names.tasks not in variables:
        return None
    per_node = tasks_per_node(variables[names.tasks])
    return per_node[node] if 0 <= node < len(per_node) else None


def tasks_per_node(text: str) -> tuple[int, ...]:
    """Parse Slurm's tasks per node: ``2(x3),1`` → 2, 2, 2, 1. Raises LaunchError for anything else."""
    counts: list[int] = []
    for part in text.split(","):
        match = _REPEATED.fullmatch(part.strip())
        if match is None:
            raise LaunchError(f"{text!r} is not a list of tasks per node; expected, for example, 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return tuple(counts)


def first_host(text: str) -> str:
    """The first host of a list in Slurm's notation: ``gpu[01-03,7],login`` → gpu01 (man srun, SLURM_JOB_NODELIST).

    Raises LaunchError if ``text`` is not such a list.
    """
    match = _HOST_LIST.fullmatch(text.strip())
    if match is None:
        raise LaunchError(
            f"{text!r} is not a host list; expected names such as n1 or gpu[01-03,7], separated by commas"
        )
    return re.sub(r"\[(\d+)[^]]*\]", r"\1", match["first"])


def env_int(variables: Mapping[str, str], name: str) -> int:
    """The whole number in variable ``name``. Raises LaunchError if there is none."""
    try:
        return int(variables[name])
    except (KeyError, ValueError):
        raise LaunchError(f"{name} is {variables.get(name)!r}; expected a whole number from the launcher") from None


def port_in(variables: Mapping[str, str], name: str) -> int:
    """The TCP port in variable ``name``. Raises LaunchError if there is none."""
    port = env_int(variables, name)
    if not 1 <= port <= _LAST_PORT:
        raise LaunchError(f"{name} is {port}; allowed are ports 1 to {_LAST_PORT}")
    return port


def default_ranks(row: BackendRow) -> int:
    """The default number of ranks over a backend: one for each GPU, or on the CPU one per usable core, at least two.

    Raises UsageError if it uses GPUs, but their number is unknown.
    """
    places = row.places()
    if places is not None:
        return max(1, places)
    if row.device != "cpu":
        raise UsageError("the driver does not report the number of GPUs (as in WSL); give --ranks, one per GPU")
    return max(2, environment.usable_cores())


_LEAST_PORT, _PORTS = 10_000, 20_000
"""The range of the default port: below the ports that kernels use for outgoing connections."""


def at_torchrun(info: RankInfo, variables: Mapping[str, str], timeout_seconds: float) -> Rendezvous:
    """For ``torchrun``: at the store of its agent, or at one that rank 0 opens."""
    agent = variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return StoreRendezvous(
        info,
        variables["MASTER_ADDR"],
        port_in(variables, "MASTER_PORT"),
        timeout_seconds,
        serves=not agent,
        # The agent's store remains when it restarts its ranks.
        attempt=variables.get("TORCHELASTIC_RESTART_COUNT", "0"),
        secret=secret_in(variables),
    )


def at_srun(info: RankInfo, variables: Mapping[str, str], timeout_seconds: float) -> Rendezvous:
    """For ``srun``: at MASTER_ADDR and MASTER_PORT if set, else at the step's first node and ``port_of_step``."""
    host = variables.get("MASTER_ADDR") or first_host(variables["SLURM_STEP_NODELIST"])
    port = port_in(variables, "MASTER_PORT") if "MASTER_PORT" in variables else port_of_step(variables)
    # Two jobs that share a node may use the same port, and must not receive each other's ranks.
    step = f"{variables['SLURM_JOB_ID']}.{variables['SLURM_STEP_ID']}"
    return StoreRendezvous(info, host, port, timeout_seconds, attempt=step, secret=secret_in(variables))


def at_mpirun(info: RankInfo, variables: Mapping[str, str], timeout_seconds: float) -> Rendezvous:
    """For ``mpirun``: at MASTER_ADDR and MASTER_PORT if both are set, else over MPI."""
    host, port = variables.get("MASTER_ADDR"), variables.get("MASTER_PORT")
    if host and port:
        # Two concurrent jobs with one port must not receive each other's ranks. Open MPI's mpirun has a name that is
        # equal on all hosts. MPICH's has none; there the sizes may differ, and duplicate ranks are detected.
        name = variables.get("PMIX_NAMESPACE", "") if "OMPI_COMM_WORLD_RANK" in variables else ""
        attempt = f"{name}/{info.size}"
        port_there = port_in(variables, "MASTER_PORT")
        return StoreRendezvous(info, host, port_there, timeout_seconds, attempt=attempt, secret=secret_in(variables))
    return MpiRendezvous(info, timeout_seconds)


def port_of_step(variables: Mapping[str, str]) -> int:
    """A port for rank 0 of a step: the first that Slurm has reserved, else one derived from the job and step numbers,
    so that concurrent steps differ. Raises LaunchError when the numbers are not valid.
    """
    reserved = variables.get("SLURM_STEP_RESV_PORTS", "").partition("-")[0].partition(",")[0]
    if reserved.isdigit():
        return int(reserved)
    job, step = env_int(variables, "SLURM_JOB_ID"), env_int(variables, "SLURM_STEP_ID")
    return _LEAST_PORT + (job * 61 + step) % _PORTS


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

    def is_present(self, environ: Mapping[str, str]) -> bool:
        """Whether this process is one of its ranks, or can start them."""
        return not self.variables or found_in(self.variables, environ) is not None

    def size(self, environ: Mapping[str, str]) -> int | None:
        """Number of its ranks (None: not started yet)."""
        names = found_in(self.variables, environ)
        return None if names is None else env_int(environ, names.size)

    def rank_info(self, environ: Mapping[str, str]) -> RankInfo:
        """This process, one of its ranks. Raises LaunchError for invalid values."""
        names = next(names for names in self.variables if names.are_set(environ))
        rank, size, local_rank = (env_int(environ, name) for name in (names.rank, names.size, names.local_rank))
        if not 0 <= rank < size:
            raise LaunchError(f"{names.rank} is {rank} and {names.size} is {size}; ranks must be 0 to {names.size} - 1")
        node = env_int(environ, names.node) if names.node is not None and names.node in environ else None
        return RankInfo(self.name, rank, size, local_rank, _local_size(names, environ, node), node)


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
    return next(row for row in LAUNCHERS.values() if row.is_present(environ))


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
