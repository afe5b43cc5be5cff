"""Which environment variables are recorded: what changes results and what says where a rank is, and never a secret.

And which of them belong to the place of one rank, so that no other process is to have them.
"""

import os
from collections.abc import Mapping, Sequence
from importlib import resources

_LIST = resources.files("busbw.system").joinpath("variables.txt").read_text(encoding="utf-8")

VARIABLES = tuple(line for line in _LIST.splitlines() if line and not line.startswith("#"))
"""The environment variables that are recorded when they are set. None holds a secret: no address of a server either,
through which a job could be joined.
"""

OF_A_RANK = frozenset({"PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "SLURM_LOCALID"})
"""Those that are one rank's alone, even where a host has no other."""


def recorded(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What is set of ``VARIABLES``."""
    return {name: environ[name] for name in VARIABLES if name in environ}


_OF_A_PLACE = ("PMI_", "PMI2_", "PMIX_", "OMPI_COMM_WORLD_")
_OF_THE_USER = "PMIX_MCA_"


def without_places(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """``environ`` but for what launchers of MPI leave there to tell a rank its place: the process that gets the rest is
    to have another one, or none. A step of one task has some, of that task.
    """
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(_OF_A_PLACE) or name.startswith(_OF_THE_USER)
    }


def in_common(ranks: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """What the ranks of a host have alike, which is what can be said of the host: the rest is each rank's own."""
    first, *others = ranks
    return {
        name: value
        for name, value in first.items()
        if name not in OF_A_RANK and all(other.get(name) == value for other in others)
    }
