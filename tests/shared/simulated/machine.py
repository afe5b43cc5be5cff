"""What is known of the simulated machine: the truth that measured numbers are compared with."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What is wrong with a machine.

    slowed: GPU → how many times longer its kernels take
    slow_links: pair of GPUs → how many times longer a copy or message from the first to the second takes
    lost: GPU → number of the submitted piece of work from which on it does not answer
    corrupted: GPU → number of the kernel whose result gets a wrong first element
    garbled: GPUs that get a wrong first element from every collective and message
    late: GPU → ns that its host leaves every barrier of the hosts late
    hung: GPU → number of the call of NCCL to which its rank never comes
    unconnected: GPUs whose NCCL finds no network; the ranks of the others wait for them for ever
    fragmented: GPU → bytes of the largest piece of its memory that is free, however much is free together
    lanes: lanes of PCIe on which every GPU runs
    links_down: NVLinks of every GPU that are down
    """

    slowed: Mapping[int, float] = field(default_factory=dict)
    slow_links: Mapping[tuple[int, int], float] = field(default_factory=dict)
    lost: Mapping[int, int] = field(default_factory=dict)
    corrupted: Mapping[int, int] = field(default_factory=dict)
    garbled: Collection[int] = ()
    late: Mapping[int, int] = field(default_factory=dict)
    hung: Mapping[int, int] = field(default_factory=dict)
    unconnected: Collection[int] = ()
    fragmented: Mapping[int, int] = field(default_factory=dict)
    lanes: int = 16
    links_down: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One host and its GPUs; rates in B/s and FLOP/s, times in ns. The defaults are those of a DGX H100.

    gpus: number of GPUs
    mig: each of them is an instance of a GPU that is split (MIG), and all that busbw sees of it
    memory_bytes: memory of a GPU
    l2_bytes: its last-level cache, as reported; it speeds up single loads only
    l2_load_ns, hbm_load_ns: a load of a line that the cache has, and that it has not
    hbm: traffic of its memory, reads and writes together
    flops: rate of matrix products
    pcie, pageable: rate of copies between the host and a GPU, from pinned and from pageable memory, on all lanes
    nvlink: rate out of a GPU and into it, each shared by all that copy there at once; that of its copy engines; as
        those of kernels and collectives, on all links
    peer_kernel: the same of a kernel that copies
    peers: whether GPUs reach each other; otherwise copies between them are staged through the host at ``pcie``
    ghz: cycles of the spinning kernel in a ns
    launch_ns: the host submits a kernel or a copy
    kernel_ns: a kernel takes at least; its traffic comes on top
    graph_launch_ns: the host submits a graph
    event_ns: the host records an event or waits for one in a stream
    sync_ns: the host returns from a synchronisation after its work is done
    tick_ns: resolution of events
    read_ns: the host reads its clock
    queue: pieces of work that a stream holds before the host waits
    nccl_ns: a collective takes at least
    nccl: bus bandwidth of collectives
    control_ns: a message between ranks through the host, such as a barrier
    """

    gpus: int = 8
    mig: bool = False
    name: str = "NVIDIA H100 80GB HBM3"
    memory_bytes: int = 80 << 30
    l2_bytes: int = 50 << 20
    l2_load_ns: int = 270
    hbm_load_ns: int = 700
    hbm: float = 3.35e12
    flops: float = 50e12
    pcie: float = 50e9
    pageable: float = 25e9
    nvlink: float = 450e9
    peer_kernel: float = 400e9
    peers: bool = True
    ghz: float = 1.5
    launch_ns: int = 4_000
    kernel_ns: int = 1_500
    graph_launch_ns: int = 6_000
    event_ns: int = 500
    sync_ns: int = 3_000
    tick_ns: int = 500
    read_ns: int = 30
    queue: int = 1024
    nccl_ns: int = 8_000
    nccl: float = 370e9
    control_ns: int = 20_000
    faults: Faults = Faults()

    def kernel(self, gpu: int, traffic: float, flop: float = 0.0) -> int:
        """Time of a kernel that moves ``traffic`` bytes and makes ``flop`` operations."""
        return self.kernel_ns + self._slowed(gpu, max(traffic / self.hbm, flop / self.flops))

    def host_copy(self, gpu: int, size: int, *, pinned: bool) -> int:
        """Time of a copy between the host and a GPU."""
        rate = (self.pcie if pinned else self.pageable) * self.faults.lanes / LANES
        return self.kernel_ns + self._slowed(gpu, size / rate)

    def peer_copy(self, source: int, target: int, size: int, *, kernel: bool = False, sharing: int = 1) -> int:
        """Time of a copy from one GPU to another, by copy engines or a ``kernel``, one of ``sharing`` on a link."""
        linked = (self.peer_kernel if kernel else self.nvlink) * self._up
        rate = linked if self.peers else self.pcie * self.faults.lanes / LANES / 2
        return self.kernel_ns + self._over(source, target, sharing * size, rate)

    def message(self, source: int, target: int, size: int) -> int:
        """Time of an NCCL message."""
        return self.nccl_ns + self._over(source, target, size, self.nvlink * self._up)

    def collective(self, gpus: tuple[int, ...], on_the_wire: float) -> int:
        """Time of a collective that sends ``on_the_wire`` bytes over the link of every GPU: the slowest sets it."""
        slowest = max((self.faults.slow_links.get(pair, 1.0) for pair in _neighbours(gpus)), default=1.0)
        return self.nccl_ns + round(on_the_wire / (self.nccl * self._up) * slowest * NS)

    @property
    def _up(self) -> float:
        """Share of the NVLinks that are up."""
        return 1 - self.faults.links_down / NVLINKS

    def _over(self, source: int, target: int, size: int, rate: float) -> int:
        return round(size / rate * self.faults.slow_links.get((source, target), 1.0) * NS)

    def _slowed(self, gpu: int, seconds: float) -> int:
        return round(seconds * self.faults.slowed.get(gpu, 1.0) * NS)


def _neighbours(gpus: tuple[int, ...]) -> list[tuple[int, int]]:
    """The pairs of a ring."""
    return list(zip(gpus, (*gpus[1:], *gpus[:1]), strict=True)) if len(gpus) > 1 else []


def uuid_of(gpu: int, *, mig: bool = False) -> str:
    """Its UUID as torch has it; that of an instance is another than NVML's of the whole GPU."""
    return f"{gpu:08x}-{'aaaa' if mig else '1111'}-2222-3333-444455556666"


FIRST_BUS: Final = 0x1B
"""PCI bus of GPU 0; the others follow."""
LANES: Final = 16
"""Lanes of PCIe that a GPU has."""
NVLINKS: Final = 18
"""NVLinks that it has."""
NS: Final = 1e9
"""Nanoseconds of a second."""
EXACT: Final = Machine(gpus=2, tick_ns=1, l2_bytes=1 << 20)
"""Two GPUs whose events are exact, for tests that compare numbers. Buffers beyond a cache are few of a small one."""
