"""The environment variables in which launchers state rank, number of ranks and host."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from busbw.errors import LaunchError
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

    def found(self, variables: Mapping[str, str]) -> bool:
        """Whether all required variables are set, for enough ranks."""
        names = (self.rank, self.size, self.local_rank, *self.others)
        return all(name in variables for name in names) and (
            self.least == 1 or env_int(variables, self.size) >= self.least
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


@dataclass(frozen=True, slots=True)
class RankInfo:
    """This process among the ranks that ``launcher`` started. Rank 0 leads: it writes the run folder.

    ``local_size``: ranks of this host (None: unknown).
    ``node``: index of this host (None: unknown).
    """

    launcher: str
    rank: int
    size: int
    local_rank: int
    local_size: int | None
    node: int | None = None

    @property
    def lead(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0


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
    return next((names for names in candidates if names.found(variables)), None)


def rank_info(launcher: str, candidates: Sequence[LauncherVariables], variables: Mapping[str, str]) -> RankInfo:
    """This process by the first of ``candidates`` that is set (one must be). Raises LaunchError for invalid values."""
    names = next(candidate for candidate in candidates if candidate.found(variables))
    rank, size, local_rank = (env_int(variables, name) for name in (names.rank, names.size, names.local_rank))
    if not 0 <= rank < size:
        raise LaunchError(f"{names.rank} is {rank} and {names.size} is {size}; ranks must be 0 to {names.size} - 1")
    node = env_int(variables, names.node) if names.node is not None and names.node in variables else None
    return RankInfo(launcher, rank, size, local_rank, _local_size(names, variables, node), node)


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


def default_ranks(places: int | None = None) -> int:
    """The default number of ranks: one for each of the ``places`` (devices) of the backend, or for None one per usable
    core, at least two.
    """
    return max(2, environment.usable_cores()) if places is None else max(1, places)
