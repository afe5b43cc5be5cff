"""What launchers promise in the environment: which variables say rank, world and place."""

from collections.abc import Mapping

from busbw import environment
from busbw.errors import LaunchError

TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def torchrun_found(variables: Mapping[str, str]) -> bool:
    """Whether torchrun's whole promise is there; half of it is somebody else's variable."""
    return all(name in variables for name in TORCHRUN)


def torchrun_size(variables: Mapping[str, str]) -> int:
    """The number of ranks that torchrun promises."""
    return promised(variables, "WORLD_SIZE")


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
