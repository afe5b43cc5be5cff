"""A CUDA GPU behind the ``Device`` Protocol: events, a spinning kernel, graphs and a buffer larger than its cache.

Thin on purpose: each method is one or two calls of torch.cuda, with the reason where the obvious call would be wrong.
"""

import os
from collections.abc import Callable, Sequence

import torch

from busbw.errors import BackendError
from busbw.system.device import DeviceConditions, Mark
from busbw.system.nvml import nvml_of, uuid_of

_CACHES_TO_FLUSH = 2
_LEAST_CACHE_BYTES = 32 << 20
"""Where torch does not tell the size of the cache: more than most have."""

_INFINITY_CACHE_BYTES = 256 << 20
"""What AMD's Instinct GPUs have between their second-level cache and memory (MI300X datasheet), of which torch does not
tell: its L2_cache_size is 4 MiB there.
"""

_SPIN_CYCLES = 1_000_000
_SPIN_TRIES = 7
_SIDE = 512
"""A unit of computation multiplies two matrices of 512 × 512 floats: some µs on a large GPU."""

_UNITS_PER_GRAPH = 100
_NS_PER_MS = 1_000_000


class CudaMark:
    """A CUDA event that keeps time.

    It is put once when it is made: an event is created by its first record, and that would be in the first sample.
    """

    def __init__(self) -> None:
        self.event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call] # torch's stubs stop here
        self.event.record()

    def record(self) -> None:
        """On the current stream."""
        self.event.record()

    def passed(self) -> bool:
        """Ask the event."""
        return bool(self.event.query())  # type: ignore[no-untyped-call] # as above

    def ns_since(self, earlier: Mark) -> int:
        """By the events' own clock, which ticks about every 0.5 µs (CUDA runtime reference, cudaEventElapsedTime)."""
        if not isinstance(earlier, CudaMark):
            raise BackendError(f"a CUDA event cannot be compared with {type(earlier).__name__}")
        elapsed_ms: float = earlier.event.elapsed_time(self.event)
        return round(elapsed_ms * _NS_PER_MS)


def _event() -> torch.cuda.Event:
    """One that keeps no time, put once for the reason that a mark has."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call] # as above
    event.record()
    return event


class CudaDevice:
    """GPU ``index`` as torch counts them, made the current one of this process."""

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
        self._nvml = nvml_of(self.uuid, index)
        self._spin: Callable[[int], object] | None = getattr(torch.cuda, "_sleep", None)
        self._cycles_per_ns = 0.0
        self._sweep: torch.Tensor | None = None
        self._operands: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
        self._computations: dict[int, Callable[[], object]] = {}
        # torch hands out 32 streams in turns: one more for each capture or pair would now and then be the other one's,
        # and what is to run beside a stream would run on it.
        self._captured_on, self._beside = (
            torch.cuda.Stream(index)  # type: ignore[no-untyped-call] # as above
            for _ in range(2)
        )
        if self._captured_on == self._beside:
            raise BackendError(
                f"torch gave one stream of {self.name} twice, so nothing can run beside what is captured"
            )

    def mark(self) -> Mark:
        """A new event that keeps time."""
        return CudaMark()

    def synchronise(self) -> None:
        """Of the whole device, because libraries communicate on streams of their own."""
        torch.cuda.synchronize(self.index)

    def hold(self, ns: int) -> None:
        """A kernel of one thread that counts cycles. Raises BackendError where this torch has none."""
        if self._spin is None:
            raise BackendError(f"torch {torch.__version__} has no torch.cuda._sleep, so the stream cannot be held")
        if not self._cycles_per_ns:
            self._cycles_per_ns = self._measured_cycles(self._spin)
        self._spin(round(ns * self._cycles_per_ns))

    def _measured_cycles(self, spin: Callable[[int], object]) -> float:
        """Cycles a nanosecond, while the GPU spins: the fastest of some tries, so that no hold comes out too short."""
        before, after = CudaMark(), CudaMark()
        rates = []
        for _ in range(_SPIN_TRIES):
            before.record()
            spin(_SPIN_CYCLES)
            after.record()
            self.synchronise()
            rates.append(_SPIN_CYCLES / max(1, after.ns_since(before)))
        return max(rates)

    def flush(self) -> None:
        """Write a buffer of twice the second-level cache."""
        if self._sweep is None:
            self._sweep = torch.empty(_CACHES_TO_FLUSH * self.cache_bytes, dtype=torch.uint8, device=self.name)
        self._sweep.fill_(1)

    def capture(self, calls: Sequence[Callable[[], object]]) -> Callable[[], object]:
        """As a CUDA graph.

        Only what this thread does may spoil the capture: NCCL's watchdog asks events in a thread of its own
        (https://github.com/pytorch/pytorch/pull/104555).
        """
        if self.uncapturable is not None:
            raise BackendError(self.uncapturable)
        self.synchronise()
        graph = torch.cuda.CUDAGraph()
        before, refused = torch.cuda.current_stream(self.index), None
        try:
            with torch.cuda.graph(graph, stream=self._captured_on, capture_error_mode="thread_local"):
                try:
                    for call in calls:
                        call()
                except (RuntimeError, BackendError) as error:
                    refused = error
        except RuntimeError as error:
            # torch skips what comes after its capture_end then: the stream stays the captured one, and the allocator
            # takes a capture to be under way for ever.
            torch.cuda.set_stream(before)
            told = str(refused or error).strip().partition("\n")[0]
            self.uncapturable = f"torch captures nothing more in this process, since a capture broke off ({told})"
            raise refused or error from None
        if refused is not None:
            raise refused
        self.synchronise()
        return graph.replay

    def together(self, one: Callable[[], object], other: Callable[[], object]) -> Callable[[], object]:
        """On the current stream and one beside it, which an event forks off and another one joins again."""
        beside = self._beside
        begun, ended = _event(), _event()

        def both() -> None:
            begun.record()
            beside.wait_event(begun)
            with torch.cuda.stream(beside):
                other()
                ended.record()
            one()
            torch.cuda.current_stream(self.index).wait_event(ended)

        return both

    def on_other(self, name: str, call: Callable[[], object]) -> Callable[[], object]:
        """On the current stream of the other GPU, between two events."""
        begun = _event()
        with torch.cuda.device(name):
            ended = _event()  # an event belongs to the GPU that it was first recorded on

        def in_turn() -> None:
            begun.record()
            with torch.cuda.device(name):
                torch.cuda.current_stream().wait_event(begun)
                call()
                ended.record()
            torch.cuda.current_stream(self.index).wait_event(ended)

        return in_turn

    def peak_bytes(self, call: Callable[[], object]) -> int:
        """By the statistics of torch's allocator, which count what tensors ask for, not what it keeps in reserve."""
        torch.cuda.reset_peak_memory_stats(self.index)
        call()
        self.synchronise()
        return torch.cuda.max_memory_allocated(self.index)

    def compute(self, units: int) -> None:
        """Matrix products, captured once by the hundred, so that the host can hand over more than the GPU can do."""
        hundreds, rest = divmod(units, _UNITS_PER_GRAPH)
        if hundreds:
            replay = self._computation(_UNITS_PER_GRAPH)
            for _ in range(hundreds):
                replay()
        if rest:
            self._computation(rest)()

    def _computation(self, units: int) -> Callable[[], object]:
        """``units`` products as a graph."""
        known = self._computations.get(units)
        if known is not None:
            return known
        if self._operands is None:
            left, right = torch.rand((2, _SIDE, _SIDE), device=self.name)
            self._operands = left, right, torch.empty_like(left)
        left, right, product = self._operands

        def multiply() -> None:
            torch.mm(left, right, out=product)

        # cuBLAS sets itself up at its first call, which a capture would refuse.
        multiply()
        made = self._computations[units] = self.capture([multiply] * units)
        return made

    def conditions(self) -> DeviceConditions | None:
        """By NVML, where nvidia-ml-py is installed."""
        return None if self._nvml is None else self._nvml.conditions()


def address_of(properties: object) -> str | None:
    """The PCI address of a GPU by torch's properties of it, for AMD's as well as NVIDIA's; None from a torch that does
    not tell. A GPU is function 0 of its device.
    """
    names = ("pci_domain_id", "pci_bus_id", "pci_device_id")
    domain, bus, device = (getattr(properties, name, None) for name in names)
    if not isinstance(domain, int) or not isinstance(bus, int) or not isinstance(device, int):
        return None
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


def uuid_at(index: int) -> str | None:
    """The UUID of GPU ``index``; None where neither torch nor CUDA_VISIBLE_DEVICES tells it."""
    properties = torch.cuda.get_device_properties(index)
    return uuid_of(getattr(properties, "uuid", None)) or uuid_of(_visible(index))


def _visible(index: int) -> str | None:
    """The entry of CUDA_VISIBLE_DEVICES for GPU ``index``; older torch does not tell the UUID itself."""
    entries = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return entries[index] if index < len(entries) else None
