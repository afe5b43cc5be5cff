"""What launchers set in the environment: which variables say rank, world and place."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from busbw.errors import LaunchError
from busbw.system import environment

_LAST_PORT = 65535
_REPEATED = re.compile(r"(\d+)(?:\(x(\d+)\))?")


@dataclass(frozen=True, slots=True)
class LauncherVariables:
    """The variables by which one launcher is recognised, and by which its ranks know their place.

    ``rank``, ``size``, ``local_rank``, ``others``: all have to be set; one alone may be another program's.
    ``least``: the smallest number of ranks that is a world.
    ``local_size``: ranks of this host, if the launcher sets it. ``tasks``: those of every node (``2(x3),1``).
    ``node``: the number of this node. (Open MPI's OMPI_COMM_WORLD_NODE_RANK is none: it counts the ranks of a node.)
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
        """Whether all of them are set, for enough ranks."""
        names = (self.rank, self.size, self.local_rank, *self.others)
        if not all(name in variables for name in names):
            return False
        return self.least == 1 or env_int(variables, self.size) >= self.least


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
    """This process's place in the world that the launcher called ``launcher`` started. Rank 0 leads: it keeps the run
    folder. ``local_size`` and ``node``, the number of its host, are None where they are not stated.
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


# What other process managers set: Hydra's kin, PALS and Flux; Flux; jsrun. One of prterun or PALS that is not the first
# shows by its number alone.
_SIZES_OF_OTHERS = ("PMI_SIZE", "FLUX_JOB_SIZE", "JSM_NAMESPACE_SIZE")
_RANKS_OF_OTHERS = ("PMIX_RANK", "PALS_RANKID")


def refuse_unknown_world(variables: Mapping[str, str]) -> None:
    """For a process that no known launcher has started. Raises LaunchError when another one did, and started several:
    each would begin a run of its own, on the cores of all.
    """
    for names, least, started in (
        (_SIZES_OF_OTHERS, 2, "so many processes like this one"),
        (_RANKS_OF_OTHERS, 1, "others before this one"),
    ):
        for name in names:
            text = variables.get(name, "")
            if text.isdecimal() and int(text) >= least:
                raise LaunchError(
                    f"{name} is {text}: a launcher that busbw does not know has started {started}, and each would "
                    "measure by itself; start them with torchrun, mpirun or srun, or give each its RANK, WORLD_SIZE, "
                    f"LOCAL_RANK, MASTER_ADDR and MASTER_PORT; unset {name} where it is alone after all"
                )


def too_few(known: Sequence[LauncherVariables], variables: Mapping[str, str]) -> bool:
    """Whether ``variables`` are those of one of ``known``, but of fewer ranks than make a world of it."""
    return any(replace(one, least=1).found(variables) and not one.found(variables) for one in known)


def found_in(known: Sequence[LauncherVariables], variables: Mapping[str, str]) -> LauncherVariables | None:
    """The first of ``known`` that is made in ``variables``."""
    return next((one for one in known if one.found(variables)), None)


def rank_info(launcher: str, known: Sequence[LauncherVariables], variables: Mapping[str, str]) -> RankInfo:
    """This process's place by the first of ``known`` that is made, as one is where the launcher is here. Raises
    LaunchError when what it says cannot be.
    """
    made = next(one for one in known if one.found(variables))
    rank, size, local_rank = (env_int(variables, name) for name in (made.rank, made.size, made.local_rank))
    if not 0 <= rank < size:
        raise LaunchError(f"{made.rank} is {rank} and {made.size} is {size}; the launcher counts ranks from 0")
    node = env_int(variables, made.node) if made.node is not None and made.node in variables else None
    return RankInfo(launcher, rank, size, local_rank, _local_size(made, variables, node), node)


def _local_size(made: LauncherVariables, variables: Mapping[str, str], node: int | None) -> int | None:
    if made.local_size is not None and made.local_size in variables:
        return env_int(variables, made.local_size)
    if made.tasks is None or node is None or made.tasks not in variables:
        return None
    per_node = tasks_per_node(variables[made.tasks])
    return per_node[node] if 0 <= node < len(per_node) else None


def tasks_per_node(text: str) -> tuple[int, ...]:
    """``2(x3),1`` → 2, 2, 2, 1, as Slurm writes it. Raises LaunchError when it is something else."""
    found: list[int] = []
    for part in text.split(","):
        match = _REPEATED.fullmatch(part.strip())
        if match is None:
            raise LaunchError(f"{text!r} does not say how many tasks each node has; Slurm writes, for example, 2(x3),1")
        found += [int(match[1])] * int(match[2] or 1)
    return tuple(found)


def env_int(variables: Mapping[str, str], name: str) -> int:
    """The whole number that a launcher has put into ``name``. Raises LaunchError when there is none."""
    try:
        return int(variables[name])
    except (KeyError, ValueError):
        raise LaunchError(f"{name} is {variables.get(name)!r}; the launcher sets a whole number there") from None


def port_in(variables: Mapping[str, str], name: str) -> int:
    """The port of TCP in ``name``. Raises LaunchError when there is none."""
    port = env_int(variables, name)
    if not 1 <= port <= _LAST_PORT:
        raise LaunchError(f"{name} is {port}, which is no port; allowed is 1 to {_LAST_PORT}")
    return port


def default_ranks(places: int | None = None) -> int:
    """What nobody has stated: one rank a device where each wants one (``places`` of them are here). Else one a usable
    core, and at least two, for one rank has nobody to talk to.
    """
    return max(2, environment.usable_cores()) if places is None else max(1, places)
