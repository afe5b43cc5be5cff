"""Facts of a host as records, as ``run.json`` stores them.

``system/environment`` and its modules make the records. A fact that is unknown, or that an older busbw did not record,
is None or empty. Facts of another shape were edited by hand; they are rejected on reading, so that no reader has to
handle them.
"""

from operator import attrgetter
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from busbw.ops.settings import Way

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Rate = Annotated[float, msgspec.Meta(ge=0, le=1e18)]


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all facts. Unknown fields are ignored, because a neighbouring version of busbw may have more."""


class CpuFacts(Facts, frozen=True, kw_only=True):
    """The processors.

    model: name, as the kernel reports it
    physical_cores, logical_cores: cores without and with their hardware threads
    usable_cores: number of cores that the ranks of this host may use together
    allowed_cores: numbers of the cores in their affinity masks
    last_level_cache_bytes: sum over all last-level caches
    """

    model: str | None = None
    physical_cores: Count | None = None
    logical_cores: Count | None = None
    usable_cores: Count | None = None
    allowed_cores: tuple[Count, ...] = ()
    last_level_cache_bytes: Count | None = None


class MemoryFacts(Facts, frozen=True, kw_only=True):
    """Host memory: in total, and available to the ranks at the start."""

    total_bytes: Count | None = None
    available_bytes: Count | None = None


class ClockFacts(Facts, frozen=True, kw_only=True):
    """The host's clock: the function that Python reads, and the kernel's source of time."""

    implementation: str | None = None
    source: str | None = None


class Nic(Facts, frozen=True, kw_only=True):
    """A network interface.

    name, driver: such as ``eth0`` and ``mlx5_core``
    kind: ``physical``, ``virtual`` or ``loopback``
    up: whether it is up
    speed_bytes_per_second: in one direction
    mtu: largest packet in bytes
    """

    name: str
    kind: str | None = None
    driver: str | None = None
    up: bool | None = None
    speed_bytes_per_second: Rate | None = None
    mtu: Count | None = None


class RdmaPort(Facts, frozen=True, kw_only=True):
    """A port of an RDMA NIC.

    device, port: name of the NIC, number of the port
    bytes_per_second, rate: rate in one direction, and the kernel's name of it (``4X HDR``)
    layer: ``InfiniBand`` or ``Ethernet``
    driver: driver of the NIC (``mlx5_core``, ``efa``)
    up: whether the port is active
    given: the user stated the rate for a log that does not have it; ``kind`` and ``name`` are its row in the catalogue
    """

    device: str
    port: Count | None = None
    bytes_per_second: Rate | None = None
    rate: str | None = None
    layer: str | None = None
    driver: str | None = None
    up: bool | None = None
    given: bool = False
    kind: str | None = None
    name: str | None = None


class Lanes(Facts, frozen=True, kw_only=True):
    """A PCI Express link: ``gigatransfers`` per second of each of its ``lanes``."""

    gigatransfers: Rate
    lanes: Count


class Narrowest(Lanes, frozen=True, kw_only=True):
    """The link above the device at ``address``."""

    address: str | None = None


class LinkFacts(Facts, frozen=True, kw_only=True):
    """The PCI Express link of a device.

    trained: the link as trained
    card, port: maximum of the card, and of the port above it
    narrowest: slowest link on the way to the host if it is slower than the card's link; else None
    """

    trained: Lanes
    card: Lanes | None = None
    port: Lanes | None = None
    narrowest: Narrowest | None = None


class NvLinkFacts(Facts, frozen=True, kw_only=True):
    """The NVLinks of a GPU.

    generation: NVLink generation
    up, down: number of links
    switch: active links that end at a switch
    peers: address of another GPU → active links to it
    unknown: active links with an unknown other end
    """

    generation: Count | None = None
    up: Count = 0
    down: Count = 0
    switch: Count = 0
    peers: dict[str, Count] = {}
    unknown: Count = 0


class PciDevice(Facts, frozen=True, kw_only=True):
    """A PCI device.

    address: its PCI address; of a GPU known from a log, at least its rank
    path: addresses from the host bridge down to the device
    numa_node: its NUMA node
    id: vendor and device, such as ``10de:2335``
    link: None if the kernel does not report how it was trained
    """

    address: str
    path: tuple[str, ...] = ()
    numa_node: int | None = None
    id: str | None = None
    link: LinkFacts | None = None


class GpuFacts(PciDevice, frozen=True, kw_only=True):
    """A GPU.

    index, name: of NVML, which may be absent; then the vendor's name
    nvlink: None if it has none, or if NVML does not report them
    mig: whether it is split into instances (MIG); None: it cannot be
    error, broken: why NVML reports nothing of it, and whether it no longer works (None: NVML reports it)
    closest_nics, closest_by: names of the closest NICs, and what they share with the GPU
    source: the tool whose log names the GPU; its links are then those of its kind. None: found by busbw
    """

    index: Count | None = None
    name: str | None = None
    nvlink: NvLinkFacts | None = None
    mig: bool | None = None
    error: str | None = None
    broken: bool | None = None
    closest_nics: tuple[str, ...] = ()
    closest_by: str | None = None
    source: str | None = None

    @property
    def label(self) -> str:
        """``GPU 0``, or its address if NVML gives it no number."""
        return f"GPU {self.address}" if self.index is None else f"GPU {self.index}"


class PciNic(PciDevice, frozen=True, kw_only=True):
    """A NIC on PCI: the names of its RDMA device and its network interface."""

    names: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Its names, or its address without names."""
        return "/".join(self.names) or self.address


class Drive(PciNic, frozen=True, kw_only=True):
    """An NVMe drive on PCI."""

    model: str | None = None


class PciFacts(Facts, frozen=True, kw_only=True):
    """The devices on PCI. ``unknown``: sentences about what could not be read."""

    gpus: tuple[GpuFacts, ...] = ()
    nics: tuple[PciNic, ...] = ()
    drives: tuple[Drive, ...] = ()
    unknown: tuple[str, ...] = ()


class MemoryModules(Facts, frozen=True, kw_only=True):
    """The memory modules.

    modules: number of modules
    kind, megatransfers: such as ``DDR5``, and the running speed in MT/s
    channels: channels with a module, over all sockets
    source: source of the facts
    unknown: sentences about what could not be read, and why
    """

    modules: Count | None = None
    kind: str | None = None
    megatransfers: Count | None = None
    channels: Count | None = None
    source: str | None = None
    unknown: tuple[str, ...] = ()


class StorageFacts(Facts, frozen=True, kw_only=True):
    """The storage below a plan's path.

    path: absolute path
    error: why files cannot be created there; the other facts are then unknown
    type, device, mount, options, number: of the file system
    free_bytes, total_bytes: at the start
    way, no_direct: how the page cache is bypassed, and why O_DIRECT is not possible
    """

    path: str
    error: str | None = None
    type: str | None = None
    device: str | None = None
    mount: str | None = None
    options: str | None = None
    free_bytes: Count | None = None
    total_bytes: Count | None = None
    number: Count | None = None
    way: Way | None = None
    no_direct: str | None = None


class NcclFacts(Facts, frozen=True, kw_only=True):
    """NCCL: ``version`` of the loaded library, which a cluster may have substituted for pip's."""

    version: str | None = None


class MpiFacts(Facts, frozen=True, kw_only=True):
    """The MPI library.

    library, standard: its name and version, and the version of the MPI standard
    threads: granted level of threads
    device: how MPICH was built
    transport: names and values of the settings that select its transport
    cuda_aware: "unknown" if the library cannot report it
    loop, loop_missing: which loop makes back-to-back calls, and why it is Python
    """

    library: str | None = None
    standard: tuple[int, ...] = ()
    threads: str | None = None
    device: str | None = None
    transport: dict[str, str] = {}
    cuda_aware: bool | Literal["unknown"] | None = None
    loop: str | None = None
    loop_missing: str | None = None


class NodeFacts(Facts, frozen=True, kw_only=True):
    """A node of Slurm: its name, its number in the job, and the switches above it from the top to its leaf."""

    name: str
    number: Count | None = None
    switches: tuple[str, ...] | None = None


class RankFacts(Facts, frozen=True, kw_only=True):
    """A rank.

    rank: number in the world
    local_rank: number on its host, from the launcher
    node: number of its host, from the launcher
    cores: cores it may use, such as ``0-3,8``
    binds_threads: whether it may bind threads to them
    numa_nodes: NUMA nodes of these cores
    gpu, gpu_address: number of the GPU it drives, and its PCI address
    gpu_free_bytes: memory of that GPU which no process used when the launch began
    variables: variables that differ between the ranks of the host
    """

    rank: Count
    local_rank: Count | None = None
    node: Count | None = None
    cores: str | None = None
    binds_threads: bool | None = None
    numa_nodes: tuple[Count, ...] | None = None
    gpu: Count | None = None
    gpu_address: str | None = None
    gpu_free_bytes: Count | None = None
    variables: dict[str, str] = {}


class ResumedJob(Facts, frozen=True, kw_only=True):
    """A job that continued the run: its first ``launch``, and those of ``JOB_FACTS`` that it changed (else UNSET)."""

    launch: Count
    boot_id: str | UnsetType | None = UNSET
    node: NodeFacts | UnsetType | None = UNSET
    variables: dict[str, str] | UnsetType = UNSET
    ranks: tuple[RankFacts, ...] | UnsetType = UNSET


class HostFacts(Facts, frozen=True, kw_only=True):
    """A host.

    host: its name
    boot_id: of the running kernel
    kernel, system, python, torch: versions
    virtualization: the hypervisor; None if nothing indicates one
    versions: package → version
    drivers: kernel module of GPUs and networks → version, where it has one of its own
    firmware: ``bios``, ``microcode`` and the driver of RDMA devices → version
    numa_nodes: number of a NUMA node → its cores in the kernel's format
    memory_modules: from firmware (SMBIOS, root only); None: not recorded
    thp: mode of transparent huge pages
    variables: recorded environment variables with one value for all ranks
    mpi, nccl: the library; None for another backend
    storage: below the path of the plan; None without one
    machines: running kernels with this host name, normally 1
    node: the node of Slurm; None outside of Slurm
    ranks: the ranks of this host
    resumed: the jobs that continued the run
    """

    host: str | None = None
    boot_id: str | None = None
    cpu: CpuFacts = CpuFacts()
    memory: MemoryFacts = MemoryFacts()
    kernel: str | None = None
    system: str | None = None
    virtualization: str | None = None
    python: str | None = None
    torch: str | None = None
    versions: dict[str, str | None] = {}
    drivers: dict[str, str] = {}
    firmware: dict[str, str] = {}
    nics: tuple[Nic, ...] = ()
    numa_nodes: dict[str, str] = {}
    pci: PciFacts = PciFacts()
    rdma: tuple[RdmaPort, ...] = ()
    memory_modules: MemoryModules | None = None
    thp: str | None = None
    clock: ClockFacts = ClockFacts()
    variables: dict[str, str] = {}
    mpi: MpiFacts | None = None
    nccl: NcclFacts | None = None
    storage: StorageFacts | None = None
    machines: Count | None = None
    node: NodeFacts | None = None
    ranks: tuple[RankFacts, ...] = ()
    resumed: tuple[ResumedJob, ...] = ()


UNKNOWN_HOST: Final = HostFacts()
"""A host of which nothing was recorded."""

JOB_FACTS: Final = ("boot_id", "node", "variables", "ranks")
"""Facts of a host that may change within a run, because its launches may belong to several jobs."""

SAME_FACTS: Final = (
    *("cpu.model", "cpu.physical_cores", "cpu.logical_cores", "cpu.usable_cores", "kernel", "python", "torch"),
    *("mpi.library", "mpi.threads", "mpi.transport", "nccl.version", "virtualization", "thp"),
    *("drivers", "firmware"),
    *("storage.type", "storage.device"),
)
"""Facts of a host that must not change within a run, or between runs that are pooled."""


def fact_of(host: HostFacts, name: str) -> Any:  # noqa: ANN401 - any fact
    """The fact ``name``, such as ``cpu.model``; None if the host has no such part."""
    try:
        return attrgetter(name)(host)
    except AttributeError:
        return None


LIBRARY_VARIABLES: Final = ("GLOO_", "NCCL_", "OMPI_", "MPICH_", "MPIR_", "I_MPI_", "FI_", "UCX_")
"""Prefixes of environment variables of communication libraries."""
SAME_VARIABLES: Final = (
    *("TORCH_", "PYTORCH_", "OMP_", "MKL_", "KMP_", "MALLOC_", "GLIBC_"),
    *LIBRARY_VARIABLES,
)
"""Prefixes of environment variables that must not change either."""
