"""The table of backends. Their libraries are loaded only when one is opened."""

import importlib.util
import math
import os
import re
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from itertools import takewhile
from pathlib import Path
from typing import Any

from busbw.backends.base import BackendRow
from busbw.backends.mpi.probe import unaware
from busbw.errors import refuse_unknown
from busbw.runs.records import BackendTraits
from busbw.system.environment import MPI_PACKAGES, NCCL_PACKAGES


def _lazily(module: str, name: str) -> Callable[..., Any]:
    """What is called so in a module that costs a second, torch's or MPI's: it is loaded by the first call."""

    def called(*arguments: object) -> Any:  # noqa: ANN401 - whatever it returns
        return getattr(importlib.import_module(f"busbw.backends.{module}"), name)(*arguments)

    return called


def _torch_missing() -> str | None:
    return None if importlib.util.find_spec("torch") else "torch is not installed"


def _cuda_missing(what: str) -> str | None:
    """Why ``what`` cannot be had: as far as it can be told without importing torch, which would start CUDA in a process
    that is to fork its ranks.
    """
    notes = _torch_notes()
    if notes is None:
        return "torch is not installed"
    reasons = []
    if not _device_files():
        reasons.append("there is no CUDA device")
    elif not _gpus():
        reasons.append(f"{' or '.join(_HIDING[_for_amd()])} hides every GPU")
    if not (_built_with("cuda", notes) or _built_with("hip", notes)):
        reasons.append(f"torch {metadata.version('torch')} was built without CUDA, and so without {what}")
    return "; ".join(reasons) or None


_CUDA_DEVICES = ("nvidia[0-9]*", "dxg", "nvhost-gpu")
"""Device files of the NVIDIA driver: on a Linux host, in WSL, on Jetson."""

_AMD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")
"""What AMD's driver computes on: GPUs, and processors, whose gpu_id is 0."""

_HIDING = {
    False: ("CUDA_VISIBLE_DEVICES",),
    True: ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
}
"""For GPUs of AMD or not: the variables that say which of them a process is shown (HIP reads CUDA's name, too)."""


def _for_amd() -> bool:
    """Whether this torch drives GPUs of AMD, which it calls CUDA devices, and RCCL NCCL."""
    notes = _torch_notes()
    return notes is not None and _noted("hip", notes) not in {None, "None"}


def _device_files() -> int:
    """How many GPUs the driver of those that torch was built for tells of."""
    if not _for_amd():
        return sum(len(list(Path("/dev").glob(pattern))) for pattern in _CUDA_DEVICES)
    found = 0
    for identity in _AMD_NODES.glob("*/gpu_id"):
        with suppress(OSError):  # one that belongs to another container cannot be read
            found += identity.read_text(encoding="utf-8").strip() not in {"", "0"}
    return found


def _gpus() -> int:
    """GPUs that CUDA shows to a process, as far as can be told without starting CUDA."""
    return int(min(_device_files(), *(_shown(os.environ.get(name)) for name in _HIDING[_for_amd()])))


def _shown(entries: str | None) -> float:
    """How many GPUs a variable lets a process see at most."""
    if entries is None:
        return math.inf
    # CUDA stops at the first entry that it does not know; -1 is the usual way to show none.
    return len(list(takewhile(lambda entry: entry.strip() not in {"", "-1"}, entries.split(","))))


def _torch_notes() -> Path | None:
    """The file in which torch notes how it was built; None where there is no torch."""
    spec = importlib.util.find_spec("torch")
    return None if spec is None or spec.origin is None else Path(spec.origin).with_name("version.py")


def _built_with(what: str, notes: Path) -> bool:
    """Whether torch was built with ``what`` (``cuda``, ``hip``). Where CUDA is not noted torch itself will say."""
    return _noted(what, notes) not in ({None, "None"} if what == "hip" else {"None"})


def _noted(what: str, notes: Path) -> str | None:
    try:
        noted = re.search(rf"^{what}\b[^=]*=\s*(.+)$", notes.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return None
    return None if noted is None else noted[1].strip()


def _mpi_missing() -> str | None:
    """What can be told without loading MPI, which only ranks should do."""
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed: pip install 'busbw[mpi]', or mpi4py alone where the system has an MPI"
    return _torch_missing()


def _mpi_cuda_missing() -> str | None:
    missing = _mpi_missing()
    if missing is not None:
        return missing
    reasons = [reason for reason in (_cuda_missing("the GPU's memory"), unaware()) if reason]
    return "; ".join(reasons) or None


BACKENDS: dict[str, BackendRow] = {
    row.name: row
    for row in (
        BackendRow(
            name="gloo",
            device="cpu",
            summary="torch.distributed over Gloo: CPU ranks, TCP",
            missing=_torch_missing,
            open=_lazily("pytorch.backend", "GlooBackend"),
            traits=BackendTraits(cost_models="gloo"),
            packages=("torch",),
        ),
        BackendRow(
            name="nccl",
            device="cuda",
            summary="torch.distributed over NCCL: one NVIDIA GPU a rank, or one of AMD over RCCL",
            missing=lambda: _cuda_missing("NCCL"),
            open=_lazily("pytorch.nccl", "NcclBackend"),
            traits=BackendTraits(cost_models="nccl", transport="nccl-net"),
            packages=("torch", *NCCL_PACKAGES),
            facts=_lazily("pytorch.nccl", "facts"),
            places=_gpus,
        ),
        BackendRow(
            name="mpi",
            device="cpu",
            summary="MPI through mpi4py: CPU ranks, whatever network the library has",
            missing=_mpi_missing,
            open=_lazily("mpi.backend", "MpiBackend"),
            traits=BackendTraits(cost_models="mpi", transport="mpi-net"),
            packages=("torch", "mpi4py", *MPI_PACKAGES),
            started_by="mpiexec",
            facts=_lazily("mpi.info", "facts"),
            native=True,
        ),
        BackendRow(
            name="mpi-cuda",
            device="cuda",
            summary="MPI through mpi4py: one NVIDIA GPU a rank, whose memory the library takes",
            missing=_mpi_cuda_missing,
            open=_lazily("mpi.cuda", "MpiCudaBackend"),
            traits=BackendTraits(cost_models="mpi-cuda", transport="mpi-net"),
            packages=("torch", "mpi4py", *MPI_PACKAGES),
            places=_gpus,
            started_by="mpiexec",
            facts=_lazily("mpi.info", "facts"),
            native=True,
        ),
    )
}


def backend_named(name: str) -> BackendRow:
    """The row of one backend. Raises UsageError that lists the known ones."""
    if name not in BACKENDS:
        refuse_unknown("backend", name, BACKENDS)
    return BACKENDS[name]
