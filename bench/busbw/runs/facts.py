"""The schema of host facts that readers rely on. Other facts may be present, and any fact may be missing or null.

``environment`` and its modules record the facts, and docs/formats.md describes them. Facts of another shape were edited
by hand; they are rejected here, so that no reader has to handle them.
"""

from collections.abc import Mapping
from types import GenericAlias
from typing import Annotated, Any, Final

import msgspec

from busbw.runs.records import JSON

SAME_FACTS: Final = (
    *("cpu.model", "cpu.physical_cores", "cpu.logical_cores", "cpu.usable_cores"),
    *("kernel", "python", "torch", "mpi.library", "mpi.threads", "mpi.transport", "nccl.version"),
    *("virtualization", "thp", "storage.type", "storage.device"),
)
"""Facts of a host that must not change within a run, or between runs that are pooled."""

SAME_VARIABLES: Final = (
    *("GLOO_", "NCCL_", "TORCH_", "PYTORCH_", "OMP_", "MKL_", "KMP_", "MALLOC_", "GLIBC_"),
    *("OMPI_", "MPICH_", "MPIR_", "I_MPI_", "FI_", "UCX_"),
)
"""Prefixes of environment variables that must not change either."""


def fact(facts: Mapping[str, JSON], path: str) -> JSON:
    """The value at a dotted ``path`` such as ``cpu.usable_cores``; None if any step is missing."""
    value: JSON = facts
    for step in path.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Rate = Annotated[float, msgspec.Meta(ge=0, le=1e18)]


class _Lanes(msgspec.Struct, kw_only=True):
    gigatransfers: Rate
    lanes: Count


class _Narrowest(_Lanes):
    address: str | None = None


_NODE = {"name": str, "number": Count, "switches": list[str]}
_RANK = {
    **dict.fromkeys(("rank", "local_rank", "gpu"), Count),
    **dict.fromkeys(("cores", "gpu_address"), str),
    "numa_nodes": list[Count],
    "variables": dict[str, str],
}
JOB_FACTS: Final = {"boot_id": str, "node": _NODE, "variables": dict[str, str], "ranks": [_RANK]}
"""Facts of a host that may change within a run, because its launches may belong to several jobs."""
_CORES = ("physical_cores", "logical_cores", "usable_cores")
_NIC = {**dict.fromkeys(("name", "kind", "driver"), str), "up": bool, "speed_bytes_per_second": Rate}
_NVLINK = {**dict.fromkeys(("generation", "up", "down", "switch", "unknown"), Count), "peers": dict[str, Count]}
_DEVICE = {
    **dict.fromkeys(("name", "model", "address", "id", "closest_by"), str),
    **dict.fromkeys(("names", "closest_nics"), list[str]),
    "index": Count,
    "numa_node": int,
    "link": {**dict.fromkeys(("trained", "card", "port"), _Lanes), "narrowest": _Narrowest},
    "nvlink": _NVLINK,
}
_PORT = {**dict.fromkeys(("device", "rate", "layer", "driver"), str), "port": Count, "bytes_per_second": Rate}
_HOST = {
    **JOB_FACTS,
    **dict.fromkeys(("kernel", "python", "torch", "virtualization", "thp"), str),
    "cpu": {"model": str, **dict.fromkeys((*_CORES, "last_level_cache_bytes"), Count)},
    "memory": dict.fromkeys(("total_bytes", "available_bytes"), Count),
    "machines": Count,
    "nics": [_NIC],
    "pci": {**{name: [_DEVICE] for name in ("gpus", "nics", "drives")}, "unknown": list[str]},
    "rdma": [{**_PORT, "up": bool}],
    "memory_modules": {"kind": str, "megatransfers": Count, "channels": Count, "unknown": list[str]},
    "storage": dict.fromkeys(("path", "type", "device", "way"), str),
    "nccl": {"version": str},
    "mpi": {**dict.fromkeys(("library", "threads", "device", "loop"), str), "transport": dict[str, str]},
    "versions": dict[str, str | None],
    "resumed": [{**JOB_FACTS, "launch": Count}],
}
"""Name → its type, a table of further names, or a list of the bracketed type."""


def _type_of(shape: Any) -> Any:  # noqa: ANN401 - a type is not a typed value
    """The msgspec type of facts of this ``shape``: any field may be null, and other fields are ignored."""
    if isinstance(shape, dict):
        return msgspec.defstruct("Facts", [(name, _type_of(of) | None, None) for name, of in shape.items()])
    return GenericAlias(list, _type_of(shape[0])) if isinstance(shape, list) else shape


_Facts = _type_of(_HOST)


def flaw_of_facts(facts: Any) -> str | None:  # noqa: ANN401 - JSON
    """Error message if the facts of a host do not fit the schema, else None."""
    try:
        msgspec.convert(facts, _Facts)
    except (msgspec.ValidationError, RecursionError) as error:
        return str(error)
    return None
