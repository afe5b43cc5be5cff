"""Queries of the MPI library in a subprocess, so that the launcher itself never loads MPI."""

import subprocess
import sys

from busbw.errors import LaunchError

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


def vendor_of_library() -> str:
    """Vendor of the library that mpi4py loads.

    Raises LaunchError if there is none, or the query times out.
    """
    command = [sys.executable, "-c", _QUERY_VENDOR]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_ASKS_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise LaunchError(
            f"mpi4py did not load an MPI library within {_ASKS_SECONDS:g} s; a slow file system may be the cause"
        ) from error
    if done.returncode != 0:
        reason = next(reversed(done.stderr.strip().splitlines()), f"exit status {done.returncode}")
        raise LaunchError(f"mpi4py cannot load an MPI library: {reason}; pip install 'busbw[mpi]'")
    return done.stdout.strip()
