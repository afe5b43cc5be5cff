"""Files in /dev/shm through which MPI ranks of one host share memory: removed early, or when their ranks are ended.

A library removes them when MPI is finalised, so those of ranks that are killed stay and take memory until the machine
is started anew. A file that every rank has mapped is not needed under its name any more. Only files that a process has
mapped are removed by it, or by the launcher that started it, so nobody else's are.
"""

from contextlib import suppress
from pathlib import Path

_FOLDER = "/dev/shm/"  # noqa: S108 - where Linux has POSIX shared memory, whatever the user sets

EARLY = ("mpich_shm_",)
"""How names begin that MPICH needs during MPI_Init alone; Open MPI maps those of its peers only when it needs them."""

LATE = (*EARLY, "mpich_shar_", "ucx_shm_", "vader_segment.", "sm_segment.")
"""Those of ranks that are about to be killed: also what Open MPI, and UCX below either, have made."""


def remove_segments(process: int | str, beginnings: tuple[str, ...]) -> None:
    """Remove the files that ``process`` (a pid, or ``self``) has mapped, of those whose names begin like this."""
    wanted = tuple(_FOLDER + beginning for beginning in beginnings)
    with suppress(OSError):  # it has ended, or this is not Linux
        for line in Path(f"/proc/{process}/maps").read_text(encoding="utf-8", errors="replace").splitlines():
            path = line.split(maxsplit=5)[-1]
            if path.startswith(wanted):  # one that is gone already ends with "(deleted)": there is no such file
                Path(path).unlink(missing_ok=True)
