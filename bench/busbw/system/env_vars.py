"""Allow-list of recorded environment variables: those that affect results or describe a rank's placement, no secrets.

Also lists variables of a single rank, which other processes must not inherit.
"""

import os
from collections.abc import Mapping, Sequence
from importlib import resources

_LIST = resources.files("busbw.system").joinpath("variables.txt").read_text(encoding="utf-8")

VARIABLES = tuple(line for line in _LIST.splitlines() if line and not line.startswith("#"))
"""Environment variables that are recorded if they are set. None contains a secret, or the address of a server through
which others could join a job.
"""

RANK_VARIABLES = frozenset({"PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "SLURM_LOCALID"})
"""Variables of a single rank, even on a host with only one rank."""


def recorded(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of ``VARIABLES`` that are set."""
    return {name: environ[name] for name in VARIABLES if name in environ}


_PLACE_PREFIXES = ("PMI_", "PMI2_", "PMIX_", "OMPI_COMM_WORLD_")
_OF_THE_USER = "PMIX_MCA_"


def without_places(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """``environ`` without the variables by which MPI launchers give a rank its place: the new process gets another
    place, or none. Even a step of one task sets some of them for that task.
    """
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(_PLACE_PREFIXES) or name.startswith(_OF_THE_USER)
    }


def in_common(ranks: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The variables that all ranks of a host share, which describe the host; the others belong to single ranks."""
    first, *others = ranks
    return {
        name: value
        for name, value in first.items()
        if name not in RANK_VARIABLES and all(other.get(name) == value for other in others)
    }
