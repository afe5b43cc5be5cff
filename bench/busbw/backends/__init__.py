"""The table of backends. Their libraries are loaded only when one is opened."""

import importlib.util
import os
import re
from contextlib import suppress
from importlib import metadata
from itertools import takewhile
from pathlib import Path

from busbw.backends.base import Backend, BackendRow, World
from busbw.environment import MPI_PACKAGES, NCCL_PACKAGES
from busbw.errors import UsageError
from busbw.records import JSON


def _open_gloo(world: World) -> Backend:
    from busbw.backends.torch_dist import GlooBackend  # noqa: PLC0415 - torch costs a second; load it when it is used

    return GlooBackend(world)


def _torch_missing() -> str | None:
    return None if importlib.util.find_spec("torch") else "torch is not installed"


def _torch_versions() -> dict[str, str]:
    return {"torch": metadata.version("torch")}


def _open_nccl(world: World) -> Backend:
    from busbw.backends.nccl import NcclBackend  # noqa: PLC0415 - as above

    return NcclBackend(world)


def _nccl_missing() -> str | None:
    """What can be told without importing torch, which would start CUDA in a process that is to fork its ranks."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return "torch is not installed"
    reasons = []
    if not _device_files():
        reasons.append("there is no CUDA device")
    elif not _gpus():
        reasons.append("CUDA_VISIBLE_DEVICES hides every GPU")
    if not _built_with_cuda(Path(spec.origin).with_name("version.py")):
        reasons.append(f"torch {metadata.version('torch')} was built without CUDA, and so without NCCL")
    return "; ".join(reasons) or None


_CUDA_DEVICES = ("nvidia[0-9]*", "dxg", "nvhost-gpu")
"""Device files of the NVIDIA driver: on a Linux host, in WSL, on Jetson."""


def _device_files() -> int:
    """How many GPUs the driver has a file for."""
    return sum(len(list(Path("/dev").glob(pattern))) for pattern in _CUDA_DEVICES)


def _gpus() -> int:
    """GPUs that CUDA shows to a process, as far as can be told without starting CUDA."""
    there, shown = _device_files(), os.environ.get("CUDA_VISIBLE_DEVICES")
    if shown is None:
        return there
    # CUDA stops at the first entry that it does not know; -1 is the usual way to show none.
    return min(there, len(list(takewhile(lambda entry: entry.strip() not in {"", "-1"}, shown.split(",")))))


def _built_with_cuda(version_file: Path) -> bool:
    """By the file in which torch notes how it was built; True where that cannot be read, for torch will say."""
    try:
        noted = re.search(r"^cuda\b[^=]*=\s*(.+)$", version_file.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return True
    return noted is None or noted[1].strip() != "None"


def _nccl_versions() -> dict[str, str]:
    found = _torch_versions()
    for name in NCCL_PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _open_mpi(world: World) -> Backend:
    from busbw.backends.mpi import MpiBackend  # noqa: PLC0415 - as above

    return MpiBackend(world)


def _mpi_missing() -> str | None:
    """What can be told without loading MPI, which only ranks should do."""
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed: pip install 'busbw[mpi]', or mpi4py alone where the system has an MPI"
    return _torch_missing()


def _mpi_facts() -> dict[str, JSON]:
    from busbw.backends import mpi  # noqa: PLC0415 - as above

    return {"mpi": mpi.facts()}


def _mpi_versions() -> dict[str, str]:
    found = {**_torch_versions(), "mpi4py": metadata.version("mpi4py")}
    for name in MPI_PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


BACKENDS: dict[str, BackendRow] = {
    row.name: row
    for row in (
        BackendRow(
            name="gloo",
            device="cpu",
            summary="torch.distributed over Gloo: CPU ranks, TCP",
            missing=_torch_missing,
            open=_open_gloo,
            versions=_torch_versions,
        ),
        BackendRow(
            name="nccl",
            device="cuda",
            summary="torch.distributed over NCCL: one NVIDIA GPU a rank",
            missing=_nccl_missing,
            open=_open_nccl,
            versions=_nccl_versions,
            places=_gpus,
        ),
        BackendRow(
            name="mpi",
            device="cpu",
            summary="MPI through mpi4py: CPU ranks, whatever network the library has",
            missing=_mpi_missing,
            open=_open_mpi,
            versions=_mpi_versions,
            started_by="mpiexec",
            facts=_mpi_facts,
        ),
    )
}


def backend_named(name: str) -> BackendRow:
    """The row of one backend. Raises UsageError that lists the known ones."""
    try:
        return BACKENDS[name]
    except KeyError:
        message = f"backend {name!r} is unknown; known: {', '.join(BACKENDS)}"
        raise UsageError(message) from None
