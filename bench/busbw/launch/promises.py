"""What launchers promise in the environment: which variables say rank, world and place."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from busbw import environment
from busbw.errors import LaunchError


@dataclass(frozen=True, slots=True)
class Promise:
    """The variables of one launcher that say a rank, how many there are, its number on its host and how many that has;
    ``others`` have to be there, too: half of a promise is somebody else's variable.
    """

    rank: str
    size: str
    local_rank: str
    local_size: str | None
    others: tuple[str, ...] = ()

    def found(self, variables: Mapping[str, str]) -> bool:
        """Whether the whole promise is there."""
        names = (self.rank, self.size, self.local_rank, *self.others)
        return all(name in variables for name in names) and (self.local_size is None or self.local_size in variables)


TORCHRUN = (Promise("RANK", "WORLD_SIZE", "LOCAL_RANK", None, ("MASTER_ADDR", "MASTER_PORT")),)

MPIRUN = (
    # Open MPI
    Promise("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    # Hydra: MPICH and its kin, Intel MPI
    Promise("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


def found_in(known: Sequence[Promise], variables: Mapping[str, str]) -> Promise | None:
    """The first of ``known`` that is made in ``variables``."""
    return next((one for one in known if one.found(variables)), None)


def size_in(known: Sequence[Promise], variables: Mapping[str, str]) -> int:
    """The number of ranks by the first of ``known`` that is made. Raises LaunchError when there is none."""
    found = found_in(known, variables)
    if found is None:
        message = f"none of the promises that start with {', '.join(one.rank for one in known)} is made here"
        raise LaunchError(message)
    return promised(variables, found.size)


def promised(variables: Mapping[str, str], name: str) -> int:
    """The whole number that a launcher has put into ``name``. Raises LaunchError when there is none."""
    try:
        return int(variables[name])
    except (KeyError, ValueError):
        message = f"{name} is {variables.get(name)!r}; the launcher sets a whole number there"
        raise LaunchError(message) from None


def default_ranks(places: int | None = None) -> int:
    """What nobody has promised: one rank a device where each wants one (``places`` of them are here). Else one a usable
    core, and at least two, for one rank has nobody to talk to.
    """
    return max(2, environment.usable_cores()) if places is None else max(1, places)
