"""A CUDA GPU behind the ``Device`` Protocol: events, a spinning kernel, graphs, and a buffer larger than its cache.

Intentionally thin: each method is one or two calls of torch.cuda; comments explain where the obvious call is wrong.
"""

import gc
from collections.abc import Callable, Sequence
from functools import cached_property
from weakref import WeakSet

import torch

from busbw.backends.base import World
from busbw.backends.side_channel import first_line
from busbw.errors import BackendError, LaunchError
from busbw.system.device import DeviceConditions, Mark
from busbw.system.nvml import nvml_of

_CACHES_TO_FLUSH = 2
_LEAST_CACHE_BYTES = 32 << 20
"""Assumed L2 size if torch does not report it: larger than most."""

_INFINITY_CACHE_BYTES = 256 << 20
"""Last-level cache of AMD's Instinct GPUs (MI300X datasheet). torch does not report it: its L2_cache_size is 4 MiB."""

_SPIN_CYCLES = 1_000_000
_SPIN_TRIES = 7
_SIDE = 512
"""Matrix side: a unit of computation multiplies two matrices of 512 × 512 floats, some µs on a large GPU."""

_UNITS_PER_GRAPH = 100
_NS_PER_MS = 1_000_000


class CudaMark:
    """A CUDA event with timing.

    It is recorded once here, because the first record creates the event and would slow down the first sample.
    """

    def __init__(self) -> None:
        self.event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call] # torch's stubs stop here
        self.event.record()

    def record(self) -> None:
        """Record on the current stream."""
        self.event.record()

    def passed(self) -> bool:
        """Whether the stream has reached the event."""
        return bool(self.event.query())  # type: ignore[no-untyped-call] # as above

    def wait(self) -> None:
        """Wait for the event alone, by polling: cudaEventSynchronize."""
        self.event.synchronize()

    def ns_since(self, earlier: Mark) -> int:
        """Time since ``earlier``, ns, with the resolution ``CudaDevice.tick_ns``."""
        if not isinstance(earlier, CudaMark):
            raise BackendError(f"a CUDA event cannot be compared with {type(earlier).__name__}")
        elapsed_ms: float = earlier.event.elapsed_time(self.event)
        return round(elapsed_ms * _NS_PER_MS)


def _event() -> torch.cuda.Event:
    """A CUDA event without timing, recorded once for the same reason as a mark."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call] # as above
    event.record()
    return event


def _spin(cycles: int) -> None:
    """Enqueue a kernel that spins for ``cycles``; torch has it for its own tests."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call] # noqa: SLF001 - nothing public blocks a stream


def index_of(world: World) -> int:
    """torch's number of this rank's GPU. If the launcher shows each rank only its own, every rank calls it 0.

    Raises LaunchError if there is none.
    """
    reason = "torch sees no CUDA device"
    try:
        if count := torch.cuda.device_count():
            return world.local_rank % count
        torch.cuda.init()  # type: ignore[no-untyped-call] # torch's stubs stop here
    except (RuntimeError, AssertionError) as error:  # such as a driver that is too old
        reason = first_line(error)
    raise LaunchError(f"rank {world.rank} cannot use a GPU: {reason}")


class CudaDevice:
    """GPU ``index`` in torch's numbering, made the current GPU of this process."""

    tick_ns = 500
    """Resolution of events (CUDA runtime reference, cudaEventElapsedTime)."""

    def __init__(self, index: int) -> None:
        torch.cuda.set_device(index)
        properties = torch.cuda.get_device_properties(index)
        self.index = index
        self.name = f"cuda:{index}"
        self.uuid = uuid_at(index)
        self.address = address_of(properties)
        self.cache_bytes = int(getattr(properties, "L2_cache_size", 0)) or _LEAST_CACHE_BYTES
        if torch.version.hip is not None:
            self.cache_bytes = max(self.cache_bytes, _INFINITY_CACHE_BYTES)
        self.uncapturable: str | None = None
        # Some images set TORCH_ALLOW_TF32_CUBLAS_OVERRIDE, with which float32 products are not of float32.
        torch.set_float32_matmul_precision("highest")
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()
        self._nvml = nvml_of(self.uuid, self.address)
        self._computations: dict[int, Callable[[], object]] = {}
        # torch reuses its 32 streams in rotation. A new stream per capture or copy could coincide with another, and
        # work meant to be concurrent would share a stream.
        self._captured_on = torch.cuda.Stream(index)  # type: ignore[no-untyped-call] # as above
        self._concurrent: list[torch.cuda.Stream] = []

    def mark(self) -> Mark:
        """A new event with timing."""
        return CudaMark()

    def synchronise(self) -> None:
        """Synchronise the whole device, because libraries communicate on their own streams."""
        torch.cuda.synchronize(self.index)

    def hold(self, ns: int) -> None:
        """Block the stream with a one-thread spin kernel."""
        _spin(round(ns * self._cycles_per_ns))

    @cached_property
    def _cycles_per_ns(self) -> float:
        """Cycles per nanosecond of the spin kernel: the fastest of several tries, so that no hold is too short."""
        before, after = CudaMark(), CudaMark()
        rates = []
        for _ in range(_SPIN_TRIES):
            before.record()
            _spin(_SPIN_CYCLES)
            after.record()
            self.synchronise()
            rates.append(_SPIN_CYCLES / max(1, after.ns_since(before)))
        return max(rates)

    def flush(self) -> None:
        """Write a buffer of twice the cache size."""
        self._sweep.fill_(1)

    @cached_property
    def _sweep(self) -> torch.Tensor:
        return torch.empty(_CACHES_TO_FLUSH * self.cache_bytes, dtype=torch.uint8, device=self.name)

    def capture(self, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
        """Capture ``calls`` as a CUDA graph; returns its replay.

        The capture is thread-local, because NCCL's watchdog queries events in its own thread
        (https://github.com/pytorch/pytorch/pull/104555).
        """
        if self.uncapturable is not None:
            raise BackendError(self.uncapturable)
        self.synchronise()
        graph = torch.cuda.CUDAGraph()
        self._graphs.add(graph)
        before, refused = torch.cuda.current_stream(self.index), None
        try:
            with torch.cuda.graph(graph, stream=self._captured_on, capture_error_mode="thread_local"):
                try:
                    for call in calls:
                        call()
                except (RuntimeError, BackendError) as error:
                    refused = error
        except RuntimeError as error:
            # torch then skips the code after its capture_end: the captured stream stays current, and the allocator
            # believes that a capture is in progress for ever.
            torch.cuda.set_stream(before)
            reason = str(refused or error).strip().partition("\n")[0]
            self.uncapturable = f"torch cannot capture any more in this process after a failed capture ({reason})"
            raise refused or error from None
        if refused is not None:
            raise refused
        self.synchronise()
        return graph.replay

    def forget_graphs(self) -> None:
        """Free every captured graph. NCCL's communicators are not destroyed while a graph with their calls is alive
        (https://github.com/pytorch/pytorch/issues/115388).
        """
        self._computations.clear()
        for graph in list(self._graphs):
            graph.reset()

    def together(self, first: Callable[[], object], *others: Callable[[], object]) -> Callable[[], object]:
        """Run ``first`` on the current stream and each of ``others`` on another one, forked and joined by events."""
        while len(self._concurrent) < len(others):
            self._concurrent.append(torch.cuda.Stream(self.index))  # type: ignore[no-untyped-call] # as above
        begun = _event()
        branches = [(other, stream, _event()) for other, stream in zip(others, self._concurrent, strict=False)]

        def all_at_once() -> None:
            begun.record()
            for other, stream, ended in branches:
                stream.wait_event(begun)
                with torch.cuda.stream(stream):
                    other()
                    ended.record()
            first()
            for _, _, ended in branches:
                torch.cuda.current_stream(self.index).wait_event(ended)

        return all_at_once

    def on_other(self, name: str, call: Callable[[], object]) -> Callable[[], object]:
        """Run ``call`` on the current stream of the GPU ``name``, ordered by two events."""
        begun = _event()
        with torch.cuda.device(name):
            ended = _event()  # an event belongs to the GPU on which it is first recorded

        def in_turn() -> None:
            begun.record()
            with torch.cuda.device(name):
                torch.cuda.current_stream().wait_event(begun)
                call()
                ended.record()
            torch.cuda.current_stream(self.index).wait_event(ended)

        return in_turn

    def free_bytes(self) -> int:
        """Free memory by the driver, without what torch's allocator keeps."""
        free, _ = torch.cuda.mem_get_info(self.index)
        return free

    def used_bytes(self) -> int:
        """Bytes of tensors by torch's allocator, with those in cycles of references taken out first."""
        gc.collect()
        return torch.cuda.memory_allocated(self.index)

    def peak_bytes(self, call: Callable[[], object]) -> int:
        """Peak bytes during ``call`` by torch's allocator statistics: memory of tensors, without the cached reserve."""
        torch.cuda.reset_peak_memory_stats(self.index)
        call()
        self.synchronise()
        return torch.cuda.max_memory_allocated(self.index)

    def compute(self, units: int) -> None:
        """Enqueue matrix products, captured by the hundred, so that the host enqueues faster than the GPU computes."""
        hundreds, rest = divmod(units, _UNITS_PER_GRAPH)
        for _ in range(hundreds):
            self._computation(_UNITS_PER_GRAPH)()
        if rest:
            self._computation(rest)()

    def _computation(self, units: int) -> Callable[[], object]:
        """``units`` products as a graph."""
        computation = self._computations.get(units)
        if computation is not None:
            return computation
        left, right, product = self._operands

        def multiply() -> None:
            torch.mm(left, right, out=product)

        # The first call initialises cuBLAS, which a capture does not allow.
        multiply()
        computation = self._computations[units] = self.capture([multiply] * units)
        return computation

    @cached_property
    def _operands(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        left, right = torch.rand((2, _SIDE, _SIDE), device=self.name)
        return left, right, torch.empty_like(left)

    def conditions(self) -> DeviceConditions | None:
        """State of the GPU by NVML; None if nvidia-ml-py is not installed."""
        return None if self._nvml is None else self._nvml.conditions()


def address_of(properties: object) -> str | None:
    """PCI address of a GPU from torch's properties (NVIDIA and AMD); None if torch does not report it.

    A GPU is function 0 of its PCI device.
    """
    names = ("pci_domain_id", "pci_bus_id", "pci_device_id")
    domain, bus, device = (getattr(properties, name, None) for name in names)
    if not isinstance(domain, int) or not isinstance(bus, int) or not isinstance(device, int):
        return None
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


_NONE_OF_ITS_OWN = "-0000-0000-0000-000000000000"
"""End of the UUID of AMD's GPUs without one: all of them have ``XX`` (hsa_ext_amd.h, HSA_AMD_AGENT_INFO_UUID)."""


def uuid_at(index: int) -> str | None:
    """UUID of GPU ``index`` in NVML's format; None if torch does not report it, or it has none of its own."""
    uuid = str(getattr(torch.cuda.get_device_properties(index), "uuid", _NONE_OF_ITS_OWN))
    return None if uuid.endswith(_NONE_OF_ITS_OWN) else f"GPU-{uuid}"
