"""Removing the files in /dev/shm through which the MPI ranks of a host share memory.

A library removes them when MPI is finalised, so the files of killed ranks would occupy memory until a reboot. Once
every rank has mapped a file, its name is no longer needed. A process, or the launcher that started it, removes only
files that the process has mapped, so files of others are safe.
"""

from contextlib import suppress
from pathlib import Path

_FOLDER = "/dev/shm/"  # noqa: S108 - location of POSIX shared memory on Linux, not configurable

EARLY = ("mpich_shm_",)
"""Prefixes of files that MPICH needs only during MPI_Init. Open MPI maps files of its peers later, so none are here."""

LATE = (*EARLY, "mpich_shar_", "ucx_shm_", "vader_segment.", "sm_segment.")
"""Prefixes of files to remove when ranks are about to be killed: also those of Open MPI and UCX."""


def remove_segments(process: int | str, beginnings: tuple[str, ...]) -> None:
    """Remove the shared-memory files with prefixes ``beginnings`` that ``process`` (a pid, or ``self``) has mapped."""
    prefixes = tuple(_FOLDER + beginning for beginning in beginnings)
    with suppress(OSError):  # the process has ended, or this is not Linux
        for line in Path(f"/proc/{process}/maps").read_text(encoding="utf-8", errors="replace").splitlines():
            path = line.split(maxsplit=5)[-1]
            if path.startswith(prefixes):  # a removed file is listed with "(deleted)", a name that does not exist
                Path(path).unlink(missing_ok=True)
