"""The table of backends. A library is loaded only when its backend is opened."""

import importlib.util
import math
import os
import re
import socket
from collections.abc import Callable
from functools import partial
from importlib import metadata
from itertools import takewhile
from pathlib import Path
from typing import Any

import psutil

from busbw.backends.base import BackendRow
from busbw.errors import refuse_unknown
from busbw.runs.records import BackendTraits
from busbw.system.environment import MPI_PACKAGES, NCCL_PACKAGES
from busbw.system.sysfs import text_of
from busbw.units import listed


def _lazily(module: str, name: str) -> Callable[..., Any]:
    """Function ``name`` of a backend module that takes a second to import; the first call imports it."""

    def called(*arguments: object) -> Any:  # noqa: ANN401 - whatever it returns
        return getattr(importlib.import_module(f"busbw.backends.{module}"), name)(*arguments)

    return called


_INTERNET = {socket.AF_INET, socket.AF_INET6}
_NO_TORCH = "torch is not installed: pip install 'busbw[run]'"


def _torch_missing() -> str | None:
    return None if importlib.util.find_spec("torch") else _NO_TORCH


def _gloo_missing() -> str | None:
    return _torch_missing() or no_interface()


def no_interface() -> str | None:
    """Why Gloo cannot use the interfaces that ``GLOO_SOCKET_IFNAME`` names, by exactly these names; None if it can."""
    named = os.environ.get("GLOO_SOCKET_IFNAME", "")
    here = dict.fromkeys(name for _, name in socket.if_nameindex())
    usable = [
        name
        for name, addresses in psutil.net_if_addrs().items()
        if {address.family for address in addresses} & _INTERNET
    ]
    if not (wrong := [name for name in named.split(",") if name and name not in usable]):
        return None
    without = "".join(f", {name} (no address)" for name in here if name not in usable)
    return (
        f"GLOO_SOCKET_IFNAME={named} names {listed(map(repr, wrong))}, but this host has {', '.join(usable)}{without}"
    )


def _cuda_missing(what: str) -> str | None:
    """Reasons why ``what`` is unavailable, as far as known without importing torch.

    torch would initialise CUDA in this process, which is going to fork the ranks.
    """
    if _torch_version_file() is None:
        return _NO_TORCH
    reasons = []
    if not _device_files():
        reasons.append("there is no CUDA device")
    elif _gpus() == 0:
        reasons.append(f"{' or '.join(_hiding())} hides every GPU")
    if not (_built_with("cuda") or _built_with("hip")):
        reasons.append(f"torch {metadata.version('torch')} was built without CUDA, and so without {what}")
    return "; ".join(reasons) or None


_CUDA_DEVICES, _CUDA_DEVICES_TOGETHER = ("nvidia[0-9]*",), ("dxg", "nvhost-gpu")
"""Device files of the NVIDIA driver: one for each GPU, and one for all in WSL and on Jetson."""

_AMD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")
"""Compute nodes of AMD's driver: GPUs, and CPUs with gpu_id 0."""


def _hiding() -> tuple[str, ...]:
    """Variables that restrict which GPUs a process sees; HIP reads CUDA's name too."""
    amd = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES") if _built_with("hip") else ()
    return *amd, "CUDA_VISIBLE_DEVICES"


def _device_files() -> float:
    """Number of GPUs of torch's vendor that the driver reports; infinite if it reports only that there are some."""
    if not _built_with("hip"):
        files = sum(len(list(Path("/dev").glob(pattern))) for pattern in _CUDA_DEVICES)
        together = any(Path("/dev", name).exists() for name in _CUDA_DEVICES_TOGETHER)
        return math.inf if together and not files else files
    identities = [text_of(path) or "" for path in _AMD_NODES.glob("*/gpu_id")]  # "" if it is another container's
    return sum(identity not in {"", "0"} for identity in identities)


def _gpus() -> int | None:
    """Number of GPUs that a process can see, as far as known without initialising CUDA; None: unknown."""
    most = min(_device_files(), *(_shown(os.environ.get(name)) for name in _hiding()))
    return None if math.isinf(most) else int(most)


def _shown(entries: str | None) -> float:
    """Most GPUs that a variable with these ``entries`` lets a process see."""
    if entries is None:
        return math.inf
    # CUDA stops at the first invalid entry; -1 is the usual way to hide all.
    return len(list(takewhile(lambda entry: entry.strip() not in {"", "-1"}, entries.split(","))))


def _torch_version_file() -> Path | None:
    """The file in which torch records its build options; None if torch is not installed."""
    spec = importlib.util.find_spec("torch")
    return None if spec is None or spec.origin is None else Path(spec.origin).with_name("version.py")


def _built_with(what: str) -> bool:
    """Whether torch was built with ``what`` (``cuda``, ``hip``); yes for CUDA if unrecorded, since torch will tell.

    Built for AMD GPUs (``hip``), torch calls them CUDA devices, and RCCL NCCL.
    """
    version_file = _torch_version_file()
    options = None if version_file is None else text_of(version_file)
    noted = re.search(rf"^{what}\b[^=]*=\s*(.+)$", options or "", re.MULTILINE)
    return what == "cuda" if noted is None else noted[1].strip() != "None"


def _mpi_missing() -> str | None:
    """Reason why MPI is unavailable, as far as known without loading it, which only ranks should do."""
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed: pip install 'busbw[mpi]', or only mpi4py if the system has an MPI"
    return _torch_missing()


_mpi_row = partial(
    BackendRow,
    packages=("torch", "mpi4py", *MPI_PACKAGES),
    started_by="mpiexec",
    facts=_lazily("mpi.info", "with_facts"),
    native=True,
)

BACKENDS: dict[str, BackendRow] = {
    row.name: row
    for row in (
        BackendRow(
            name="gloo",
            device="cpu",
            summary="torch.distributed over Gloo: CPU ranks, TCP",
            missing=_gloo_missing,
            open=_lazily("pytorch.backend", "GlooBackend"),
            traits=BackendTraits(cost_models="gloo"),
            packages=("torch",),
        ),
        BackendRow(
            name="nccl",
            device="cuda",
            summary="torch.distributed over NCCL (AMD: RCCL): one GPU per rank",
            missing=lambda: _cuda_missing("NCCL"),
            open=_lazily("pytorch.nccl", "NcclBackend"),
            traits=BackendTraits(cost_models="nccl", transport="nccl-net"),
            packages=("torch", *NCCL_PACKAGES),
            facts=_lazily("pytorch.nccl", "with_facts"),
            places=_gpus,
        ),
        _mpi_row(
            name="mpi",
            device="cpu",
            summary="MPI through mpi4py: CPU ranks, any network of the library",
            missing=_mpi_missing,
            open=_lazily("mpi.backend", "MpiBackend"),
            traits=BackendTraits(cost_models="mpi", transport="mpi-net"),
        ),
        _mpi_row(
            name="mpi-cuda",
            device="cuda",
            summary="CUDA-aware MPI through mpi4py: one NVIDIA GPU per rank",
            missing=lambda: _mpi_missing() or _cuda_missing("the GPU's memory"),
            open=_lazily("mpi.backend", "MpiCudaBackend"),
            traits=BackendTraits(cost_models="mpi-cuda", transport="mpi-net"),
            places=_gpus,
        ),
    )
}


def backend_named(name: str) -> BackendRow:
    """The row of backend ``name``. Raises UsageError that lists the known backends."""
    if name not in BACKENDS:
        refuse_unknown("backend", name, BACKENDS)
    return BACKENDS[name]
