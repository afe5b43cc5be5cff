"""What the MPI library is and takes, asked in a process of its own: the launcher stays free of MPI."""

import subprocess
import sys
from collections.abc import Mapping
from functools import cache

from busbw.errors import LaunchError
from busbw.system.env_vars import without_places

_ASKS_SECONDS = 60.0

_WHICH_LIBRARY = """\
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.get_vendor()[0])
"""

_IS_IT_AWARE = """\
import mpi4py
mpi4py.rc.thread_level = "single"
from mpi4py import MPI
from busbw.backends.mpi.info import cuda_aware, first_words, library, unaware
print(unaware(first_words(library()), aware=cuda_aware()) or "")
"""
_OF_LAUNCHERS = ("OMPI_COMM_", "OMPI_UNIVERSE_", "PRTE_", "SLURM_", "HYDI_", "MPIR_")
"""How variables begin that launchers leave beside those of a place, and that would have a lone process join them."""


@cache
def unaware() -> str | None:
    """Why the MPI library cannot have addresses of GPU memory: asked in a process of its own, a world of one rank,
    because only ranks should load MPI, and Open MPI knows it only once it is initialised.
    """
    alone = {name: value for name, value in without_places().items() if not name.startswith(_OF_LAUNCHERS)}
    try:
        return _said(_IS_IT_AWARE, alone) or None
    except subprocess.TimeoutExpired:
        return f"MPI did not say within {_ASKS_SECONDS:.0f} s whether it takes CUDA memory"
    except LaunchError as error:
        return f"MPI could not be asked whether it takes CUDA memory: {error}"


def vendor_of_library() -> str:
    """The vendor of the library that mpi4py loads.

    Raises LaunchError when there is none, or it does not answer.
    """
    try:
        return _said(_WHICH_LIBRARY)
    except subprocess.TimeoutExpired as error:
        raise LaunchError(
            f"mpi4py has not loaded an MPI library within {_ASKS_SECONDS:g} s; a slow file system can be why"
        ) from error
    except LaunchError as error:
        raise LaunchError(f"mpi4py cannot load an MPI library: {error}; pip install 'busbw[mpi]' brings one") from error


def _said(program: str, variables: Mapping[str, str] | None = None) -> str:
    """What ``program`` prints in a process of its own. Raises LaunchError with the last words of one that fails."""
    command = [sys.executable, "-c", program]
    asked = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_ASKS_SECONDS, env=variables)
    if asked.returncode != 0:
        raise LaunchError(next(reversed(asked.stderr.strip().splitlines()), f"exit status {asked.returncode}"))
    return asked.stdout.strip()
