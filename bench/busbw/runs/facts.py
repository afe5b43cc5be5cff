"""The shape of the facts about a host that readers go by. Others may stand beside them, and any may be missing or null.

``environment`` and the modules below it record them, and docs/formats.md says what they are. A run whose facts have
another shape was changed by somebody else: this is where that is found, so that no reader has to expect it.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from busbw.runs.records import JSON

SAME_FACTS: Final = (
    *("cpu.model", "cpu.physical_cores", "cpu.logical_cores", "cpu.usable_cores"),
    *("kernel", "python", "torch", "mpi.library", "mpi.threads", "mpi.transport", "nccl.version"),
    *("virtualization", "thp", "storage.type", "storage.device"),
)
"""Facts of a host that may not change within a run, or between runs that are pooled."""

SAME_VARIABLES: Final = (
    *("GLOO_", "NCCL_", "TORCH_", "PYTORCH_", "OMP_", "MKL_", "KMP_", "MALLOC_", "GLIBC_"),
    *("OMPI_", "MPICH_", "MPIR_", "I_MPI_", "FI_", "UCX_"),
)
"""How variables begin that may not, either."""


def fact(facts: Mapping[str, JSON], path: str) -> JSON:
    """The value at a dotted ``path`` such as ``cpu.usable_cores``; None where any step of it is missing."""
    value: JSON = facts
    for step in path.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Rate = Annotated[float, msgspec.Meta(ge=0, le=1e18)]


class _Facts(msgspec.Struct, kw_only=True):
    """Fields that are not named here are passed over."""


class _Cpu(_Facts):
    model: str | None = None
    physical_cores: Count | None = None
    logical_cores: Count | None = None
    usable_cores: Count | None = None
    last_level_cache_bytes: Count | None = None


class _Memory(_Facts):
    total_bytes: Count | None = None
    available_bytes: Count | None = None


class _Interface(_Facts):
    name: str | None = None
    kind: str | None = None
    driver: str | None = None
    up: bool | None = None
    speed_bytes_per_second: Rate | None = None


class _Lanes(_Facts):
    gigatransfers: Rate
    lanes: Count


class _Narrowest(_Lanes):
    address: str | None = None


class _Link(_Facts):
    trained: _Lanes | None = None
    card: _Lanes | None = None
    port: _Lanes | None = None
    narrowest: _Narrowest | None = None


class _Nvlink(_Facts):
    generation: Count | None = None
    up: Count | None = None
    down: Count | None = None
    switch: Count | None = None
    untold: Count | None = None
    peers: dict[str, Count] | None = None


class _Device(_Facts):
    names: list[str] | None = None
    name: str | None = None
    model: str | None = None
    address: str | None = None
    index: Count | None = None
    numa_node: int | None = None
    id: str | None = None
    link: _Link | None = None
    nvlink: _Nvlink | None = None
    closest_nics: list[str] | None = None
    closest_by: str | None = None


class _Pci(_Facts):
    gpus: list[_Device] | None = None
    nics: list[_Device] | None = None
    drives: list[_Device] | None = None
    untold: list[str] | None = None


class _Port(_Facts):
    device: str | None = None
    port: Count | None = None
    bytes_per_second: Rate | None = None
    rate: str | None = None
    layer: str | None = None
    driver: str | None = None
    up: bool | None = None


class _Modules(_Facts):
    kind: str | None = None
    megatransfers: Count | None = None
    channels: Count | None = None
    untold: list[str] | None = None


class _Node(_Facts):
    name: str | None = None
    number: Count | None = None
    switches: list[str] | None = None


class _Rank(_Facts):
    rank: Count | None = None
    local_rank: Count | None = None
    cores: str | None = None
    numa_nodes: list[Count] | None = None
    gpu: Count | None = None
    gpu_address: str | None = None
    variables: dict[str, str] | None = None


class _Storage(_Facts):
    path: str | None = None
    type: str | None = None
    device: str | None = None
    way: str | None = None
    tools: dict[str, str | None] | None = None


class _Nccl(_Facts):
    version: str | None = None


class _Mpi(_Facts):
    library: str | None = None
    threads: str | None = None
    device: str | None = None
    transport: dict[str, str] | None = None
    loop: str | None = None


class _Job(_Facts):
    """What may be another one in each of the jobs that a run was measured in."""

    boot_id: str | None = None
    node: _Node | None = None
    variables: dict[str, str] | None = None
    ranks: list[_Rank] | None = None


class _Resumed(_Job):
    launch: Count | None = None


class _Host(_Job):
    cpu: _Cpu | None = None
    memory: _Memory | None = None
    kernel: str | None = None
    python: str | None = None
    torch: str | None = None
    virtualization: str | None = None
    thp: str | None = None
    machines: Count | None = None
    nics: list[_Interface] | None = None
    pci: _Pci | None = None
    rdma: list[_Port] | None = None
    memory_modules: _Modules | None = None
    storage: _Storage | None = None
    nccl: _Nccl | None = None
    mpi: _Mpi | None = None
    versions: dict[str, str | None] | None = None
    resumed: list[_Resumed] | None = None


def flaw_of_facts(facts: Any) -> str | None:  # noqa: ANN401 - JSON
    """Where the facts of a host have another shape than those that are recorded; None where they have not."""
    try:
        msgspec.convert(facts, _Host)
    except (msgspec.ValidationError, RecursionError) as error:
        return str(error)
    return None
