"""Queries of the MPI library in a subprocess, so that the launcher itself never loads MPI."""

import subprocess
import sys
from collections.abc import Mapping
from functools import cache

from busbw.errors import LaunchError
from busbw.system.env_vars import without_places

SRUN_MPI = {"MPICH": "pmi2", "Intel MPI": "pmi2", "Open MPI": "pmix"}
"""Vendor of the MPI library, as mpi4py names it → ``srun --mpi`` with which the ranks of its usual builds find each
other.
"""

_ASKS_SECONDS = 60.0

_QUERY_VENDOR = """\
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.get_vendor()[0])
"""

_QUERY_CUDA = """\
import mpi4py
mpi4py.rc.thread_level = "single"
from mpi4py import MPI
from busbw.backends.mpi.info import cuda_aware, short_name, library, unaware
print(unaware(short_name(library()), aware=cuda_aware()) or "")
"""
_OF_LAUNCHERS = ("OMPI_COMM_", "OMPI_UNIVERSE_", "PRTE_", "SLURM_", "HYDI_", "MPIR_")
"""Prefixes of launcher variables, besides those of rank placement, that would make a lone process join a job."""


@cache
def unaware() -> str | None:
    """Reason why the MPI library does not accept GPU memory, or None.

    The query runs in a subprocess with a world of one rank, because only ranks should load MPI, and Open MPI knows the
    answer only after initialisation.
    """
    alone = {name: value for name, value in without_places().items() if not name.startswith(_OF_LAUNCHERS)}
    try:
        return _output_of(_QUERY_CUDA, alone) or None
    except subprocess.TimeoutExpired:
        return f"MPI did not report within {_ASKS_SECONDS:.0f} s whether it is CUDA-aware"
    except LaunchError as error:
        return f"MPI could not be queried for CUDA support: {error}"


def vendor_of_library() -> str:
    """Vendor of the library that mpi4py loads.

    Raises LaunchError if there is none, or the query times out.
    """
    try:
        return _output_of(_QUERY_VENDOR)
    except subprocess.TimeoutExpired as error:
        raise LaunchError(
            f"mpi4py did not load an MPI library within {_ASKS_SECONDS:g} s; a slow file system may be the cause"
        ) from error
    except LaunchError as error:
        raise LaunchError(f"mpi4py cannot load an MPI library: {error}; pip install 'busbw[mpi]'") from error


def _output_of(program: str, variables: Mapping[str, str] | None = None) -> str:
    """Output of ``program`` in a subprocess. Raises LaunchError with the last line of stderr if it fails."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_ASKS_SECONDS, env=variables)
    if done.returncode != 0:
        raise LaunchError(next(reversed(done.stderr.strip().splitlines()), f"exit status {done.returncode}"))
    return done.stdout.strip()
