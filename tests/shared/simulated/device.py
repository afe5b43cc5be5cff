"""Time and order: the host's clock, the streams and events of the GPUs, and the memory that they access.

Work is executed at once, in the order of submission; when it takes place is computed. A stream's ``end`` is the time at
which all of its work is done. The order that streams, events and synchronisations define is kept apart from time, as a
vector clock: two accesses to the same bytes that it does not order are a race, whether or not they overlap in time.
"""

import itertools
import mmap
import os
import sys
import weakref
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from weakref import WeakSet, WeakValueDictionary

import numpy as np
import torch

from simulated.graphs import Capture
from simulated.machine import Machine

if TYPE_CHECKING:
    from simulated.nccl import Communicator, MemPool

Order = dict[int, int]
"""Stream → how many pieces of its work are done before."""
HOST: Final = -1
"""The host among the streams of an order."""


class CudaError(torch.AcceleratorError):
    """An error of the CUDA runtime, as torch raises it."""


def cuda_error(words: str) -> CudaError:
    """An error in the words of torch."""
    return CudaError(f"CUDA error: {words}\nCUDA kernel errors might be asynchronously reported at some other API call")


class Race(AssertionError):
    """Two accesses to the same bytes that nothing orders: what, and the place in the code."""


@dataclass(slots=True)
class Access:
    """An access of stream ``stream``: the ``number``-th piece of its work, on bytes ``low`` to ``high``."""

    stream: int
    number: int
    low: int
    high: int
    writes: bool
    place: str


@dataclass(slots=True)
class Gpu:
    """One GPU: its memory in use and the most of it, its streams and the number of pieces of work submitted to it.

    A stream stays when its Python object is gone: its work has to be waited for. In its cache are the lines ``cached``
    by single loads and the tensors ``moved`` by kernels, as addresses and bytes, each with the one used last at the end
    and together as large as the cache; a kernel that moves a larger tensor takes the place of all.
    """

    index: int
    allocated: int = 0
    peak: int = 0
    submitted: int = 0
    kernels: int = 0
    streams: "set[Stream]" = field(default_factory=set)
    cached: dict[int, None] = field(default_factory=dict)
    moved: dict[tuple[int, int], None] = field(default_factory=dict)
    moved_bytes: int = 0

    def move(self, tensors: Iterable[torch.Tensor], cache_bytes: int) -> None:
        """A kernel reads or writes ``tensors`` through the cache."""
        for place in ((tensor.data_ptr(), tensor.nbytes) for tensor in tensors):
            if place[1] > cache_bytes:
                self.cached.clear()
            self.moved_bytes += 0 if place in self.moved else place[1]
            self.moved.pop(place, None)
            self.moved[place] = None
            while self.moved_bytes > cache_bytes:
                oldest = next(iter(self.moved))
                self.moved_bytes -= oldest[1]
                del self.moved[oldest]

    def has(self, address: int) -> bool:
        """Whether a kernel has moved what is at ``address`` through the cache, where it still is."""
        return any(start <= address < start + size for start, size in self.moved)


_numbers = itertools.count(1)


class Stream:
    """``torch.cuda.Stream``."""

    def __init__(self, device: object = None, priority: int = 0, **_others: object) -> None:
        state = current()
        self.device = torch.device("cuda", state.index_of(device))
        self.device_index = self.device.index
        self.device_type = 1
        self.stream_id = self.cuda_stream = next(_numbers)
        self.priority = priority
        self.end = 0
        self.order: Order = {}
        self.capture: Capture | None = None
        self._queued: list[int] = []
        state.gpus[self.device_index].streams.add(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return self.stream_id

    def begin(self) -> int:
        """When work that is submitted now begins; the host waits if the queue is full."""
        state = current()
        state.submit(self.device_index)
        self._queued = [end for end in self._queued if end > state.now]
        if len(self._queued) >= state.machine.queue:
            state.now = self._queued[-state.machine.queue]
        return max(self.end, state.now)

    def work(self, duration: int, begin: int | None = None) -> int:
        """Submit work of ``duration`` ns that begins now or at ``begin``; returns its number in the stream."""
        self.end = (self.begin() if begin is None else begin) + duration
        self._queued.append(self.end)
        return self.count()

    def count(self) -> int:
        """Number the next piece of work, which is after all that the host has waited for."""
        merge(self.order, current().order)
        self.order[self.stream_id] = self.order.get(self.stream_id, 0) + 1
        return self.order[self.stream_id]

    def follow(self, other: "Stream") -> None:
        """Work from now on is after all work of ``other``."""
        self.end = max(self.end, other.end)
        merge(self.order, other.order)

    def wait_event(self, event: "Event") -> None:
        event.wait(self)

    def wait_stream(self, other: "Stream") -> None:
        self.wait_event(other.record_event())

    def record_event(self, event: "Event | None" = None) -> "Event":
        recorded = Event() if event is None else event
        recorded.record(self)
        return recorded

    def query(self) -> bool:
        current().refuse_in_capture()
        return self.end <= current().now

    def synchronize(self) -> None:
        current().wait_for([self])

    def __enter__(self) -> Self:
        self._before = torch.cuda.current_stream()
        torch.cuda.set_stream(self)  # type: ignore[arg-type] # this class takes the place of torch's
        return self

    def __exit__(self, *_raised: object) -> None:
        torch.cuda.set_stream(self._before)


class Event:
    """``torch.cuda.Event``."""

    def __init__(
        self,
        enable_timing: bool = False,  # noqa: FBT001, FBT002 - as torch has it
        blocking: bool = False,  # noqa: FBT001, FBT002, ARG002 - as torch has it
        interprocess: bool = False,  # noqa: FBT001, FBT002, ARG002 - as torch has it
        external: bool = False,  # noqa: FBT001, FBT002, ARG002 - as torch has it
    ) -> None:
        self.timing = enable_timing
        self.at: int | None = None
        self.device_index: int | None = None
        self._order: Order = {}
        self._captured: tuple[Capture, int, Stream] | None = None

    def record(self, stream: Stream | None = None) -> None:
        state = current()
        on = state.stream() if stream is None else stream
        if self.device_index not in {None, on.device_index}:
            raise RuntimeError(
                f"Event device {self.device_index} does not match recording stream's device {on.device_index}."
            )
        self.device_index = on.device_index
        state.now += state.machine.event_ns
        merge(on.order, state.order)
        self._order = dict(on.order)
        if on.capture is not None:
            self._captured, self.at = (on.capture, on.capture.mark(), on), None
        else:
            self._captured, self.at = None, max(on.end, state.now)

    def wait(self, stream: Stream | None = None) -> None:
        state = current()
        on = state.stream() if stream is None else stream
        state.now += state.machine.event_ns
        if self._captured is not None:
            capture, position, source = self._captured
            if capture.ended:
                self._refuse_captured()
            if on.capture not in {None, capture}:
                raise cuda_error("dependency created on uncaptured work in another stream")
            on.capture = capture
            capture.wait(on, source, position)
            merge(on.order, self._order)
        elif on.capture is not None and self.at is not None:
            on.capture.spoil()
            raise cuda_error("dependency created on uncaptured work in another stream")
        elif self.at is not None:
            on.end = max(on.end, self.at)
            merge(on.order, self._order)

    def _refuse_captured(self) -> None:
        """Raise CudaError if it was last recorded in a capture: it is no event of the device."""
        if self._captured is not None:
            raise cuda_error("operation not permitted on an event last recorded in a capturing stream")

    def query(self) -> bool:
        current().refuse_in_capture()
        self._refuse_captured()
        return self.at is None or self.at <= current().now

    def elapsed_time(self, end_event: "Event") -> float:
        """Time from this event to ``end_event``, ms."""
        if not (self.timing and end_event.timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self.at is None or end_event.at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if max(self.at, end_event.at) > current().now:
            raise cuda_error("device not ready")
        tick = current().machine.tick_ns
        return (end_event.at // tick - self.at // tick) * tick / 1e6

    def synchronize(self) -> None:
        state = current()
        state.refuse_in_capture()
        self._refuse_captured()
        state.now = max(state.now, self.at or 0) + state.machine.sync_ns
        merge(state.order, self._order)


def spoil(wrote: Sequence[torch.Tensor]) -> None:
    """Make the first element of the first tensor wrong."""
    if wrote and wrote[0].numel():
        first = wrote[0].view(-1)[:1]
        _ = first.logical_not_() if first.dtype == torch.bool else first.add_(1)


def merge(into: Order, other: Order) -> None:
    """Everything that ``other`` has seen is also before ``into``."""
    for stream, number in other.items():
        if into.get(stream, 0) < number:
            into[stream] = number


class State:
    """The simulated machine in one process. ``now`` is the time of its host thread, ns."""

    def __init__(self, machine: Machine, communicator: "Communicator") -> None:
        self.machine, self.nccl = machine, communicator
        self.now = 1_000_000_000
        self.order: Order = {}
        self.gpus = [Gpu(index) for index in range(machine.gpus)]
        self.device = 0
        self._streams: dict[int, Stream] = {}
        self._defaults: dict[int, Stream] = {}
        self.capturing: Capture | None = None
        self.graphs: WeakSet[Any] = WeakSet()
        """Captured graphs that are alive."""
        self.pinned: dict[int, int] = {}
        self.cublas: set[int] = set()
        """GPUs on which the first matrix product has initialised cuBLAS, which a capture does not allow."""
        self._accesses: defaultdict[int, list[Access]] = defaultdict(list)
        self._allocated: dict[int, tuple[int, int, int, MemPool | None]] = {}
        self._storages: WeakValueDictionary[int, torch.UntypedStorage] = WeakValueDictionary()
        # Bytes that the process of each GPU holds on every GPU, and its process: of all processes, because these fork.
        gpus = machine.gpus
        shared = np.frombuffer(mmap.mmap(-1, max(1, gpus * (gpus + 1)) * 8), dtype=np.int64)
        self._held = shared[: gpus * (gpus + 1)].reshape(gpus, gpus + 1)

    # --- devices and streams ---------------------------------------------------------------------------------------

    def read_clock(self) -> int:
        """The host's clock, ns."""
        self.now += self.machine.read_ns
        return self.now

    def index_of(self, device: object) -> int:
        """The number of a GPU from what torch takes for one. Raises CudaError if there is no such GPU."""
        if device is None or (isinstance(device, int) and device < 0):
            return self.device
        index = device if isinstance(device, int) else torch.device(device).index  # type: ignore[call-overload]
        index = self.device if index is None else index
        if index >= len(self.gpus):
            raise cuda_error("invalid device ordinal")
        return int(index)

    def default(self, device: object = None) -> Stream:
        """The default stream of a GPU."""
        index = self.index_of(device)
        if index not in self._defaults:
            self._defaults[index] = Stream(index)
        return self._defaults[index]

    def stream(self, device: object = None) -> Stream:
        """The current stream of a GPU."""
        index = self.index_of(device)
        return self._streams.get(index) or self.default(index)

    def use(self, stream: Stream | None) -> None:
        """Make a stream and its GPU current."""
        if stream is not None:
            self._streams[stream.device_index] = stream
            self.device = stream.device_index

    def submit(self, gpu: int) -> None:
        """Count a piece of work for a GPU. Raises CudaError from the call on at which the GPU is lost."""
        self.gpus[gpu].submitted += 1
        if self.gpus[gpu].submitted > self.machine.faults.lost.get(gpu, self.gpus[gpu].submitted):
            raise cuda_error("unspecified launch failure")

    def wait_for(self, streams: Iterable[Stream]) -> None:
        """The host waits until all work of ``streams`` is done."""
        self.refuse_in_capture()
        for stream in streams:
            self.submit(stream.device_index)
            self.now = max(self.now, stream.end)
            merge(self.order, stream.order)
        self.now += self.machine.sync_ns

    def synchronize(self, device: object = None) -> None:
        """The host waits until all work of a GPU is done."""
        self.wait_for([*self.gpus[self.index_of(device)].streams, self.default(device)])

    def refuse_in_capture(self) -> None:
        """Raise CudaError, and spoil the capture, if this thread captures."""
        if self.capturing is not None:
            self.capturing.spoil()
            raise cuda_error("operation not permitted when stream is capturing")

    def corrupt(self, gpu: int, wrote: list[torch.Tensor]) -> None:
        """Count a kernel, and change its result if it is the one that ``Faults.corrupted`` names."""
        self.gpus[gpu].kernels += 1
        if self.gpus[gpu].kernels == self.machine.faults.corrupted.get(gpu):
            spoil(wrote)

    # --- memory ------------------------------------------------------------------------------------------------------

    def allocate(self, tensor: torch.Tensor, gpu: int) -> None:
        """Count the storage of ``tensor`` until it is freed. Raises OutOfMemoryError if the GPU has no memory left."""
        storage = tensor.untyped_storage()
        key, size, owner = storage._cdata, storage.nbytes(), self.gpus[gpu]
        if key in self._allocated:
            return
        free = self.machine.memory_bytes - owner.allocated
        if size > min(free, self.machine.faults.fragmented.get(gpu, free)):
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size / 2**20:.2f} MiB. GPU {gpu} has a total capacity of "
                f"{self.machine.memory_bytes / 2**30:.2f} GiB"
            )
        self._allocated[key] = gpu, size, self.device, self.nccl.pool
        self._storages[key] = storage
        held = self._held[self.device]
        if held[-1] != os.getpid():  # of a process that has ended
            held[:] = 0
        held[-1], held[gpu] = os.getpid(), held[gpu] + size
        if self.nccl.pool is not None:
            self.nccl.pool.storages.add(key)
        owner.allocated += size
        owner.peak = max(owner.peak, owner.allocated)
        weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        gpu, size, holder, pool = self._allocated.pop(key)
        self.gpus[gpu].allocated -= size
        self._held[holder, gpu] -= size
        if pool is not None:
            pool.storages.discard(key)
        self._accesses.pop(key, None)

    def bytes_at(self, address: int, gpu: int) -> torch.Tensor:
        """The allocation of a GPU that has ``address``, as the host's bytes. Raises CudaError if there is none."""
        for key, storage in self._storages.items():
            if self._allocated[key][0] == gpu and 0 <= address - storage.data_ptr() < storage.nbytes():
                return torch.empty(0, dtype=torch.uint8).set_(storage)
        raise cuda_error("an illegal memory access was encountered")

    def sharing(self, source: int, target: int) -> int:
        """How many copies share the link of one from ``source`` to ``target``: one from each GPU whose process holds
        memory on the target, or one to each GPU on which that of the source does. When they run is not compared.
        """
        elsewhere = (self._held[:, :-1] > 0) & ~np.eye(len(self.gpus), dtype=bool)
        return max(1, int(elsewhere[:, target].sum()), int(elsewhere[source].sum()))

    def touch(self, stream: Stream, number: int, read: Iterable[torch.Tensor], wrote: Iterable[torch.Tensor]) -> None:
        """Note that piece of work ``number`` of ``stream`` has ``read`` and ``wrote`` tensors, given as the host's."""
        read, wrote = list(read), list(wrote)
        self.gpus[stream.device_index].move((*read, *wrote), self.machine.l2_bytes)
        self.note(
            [*((tensor, False) for tensor in read), *((tensor, True) for tensor in wrote)],
            stream.stream_id,
            number,
            stream.order,
        )

    def note(self, tensors: Iterable[tuple[torch.Tensor, bool]], stream: int, number: int, order: Order) -> None:
        """Note that a piece of work reads or writes (true) ``tensors``.

        Raises Race if an earlier access to the same bytes is not before it.
        """
        for tensor, writes in tensors:
            if not tensor.numel():
                continue
            # By storage, not by address: torch's allocator never gives freed memory to another stream.
            base = tensor.untyped_storage()._cdata
            low = int(tensor.storage_offset()) * tensor.element_size()
            reach = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
            high = low + (reach + 1) * tensor.element_size()
            kept = []
            for access in self._accesses[base]:
                before = order.get(access.stream, 0) >= access.number
                if low < access.high and access.low < high and (writes or access.writes) and not before:
                    raise Race(_race(writes=writes, access=access, shape=tuple(tensor.shape)))
                # What is before this access, and lies within it, needs no more comparison.
                if not (before and writes and low <= access.low and access.high <= high):
                    kept.append(access)
            if stream != HOST:
                kept = [
                    a for a in kept if not (a.stream == stream and (a.low, a.high, a.writes) == (low, high, writes))
                ]
                kept.append(Access(stream, number, low, high, writes, _place()))
            self._accesses[base] = kept


def _place() -> str:
    """The innermost line of busbw, or of a test, that runs now."""
    frame = sys._getframe(1)
    while frame.f_back is not None and not _is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _is_ours(path: str) -> bool:
    return "site-packages" not in path and not path.startswith(_OWN) and ("/busbw/" in path or "/tests/" in path)


_OWN: Final = str(Path(__file__).parent)


def _race(*, writes: bool, access: Access, shape: tuple[int, ...]) -> str:
    now, then = ("writes" if writes else "reads"), ("written" if access.writes else "read")
    return f"{_place()} {now} a tensor of shape {shape} that may still be {then} by the work of {access.place}"


_STATE: list[State] = []


def current() -> State:
    """The simulated machine of this process."""
    return _STATE[-1]


def stream_of(handle: int | None) -> Stream:
    """The stream of a handle; NULL is the default one. Raises CudaError if the current GPU has no such stream."""
    state = current()
    stream = next((stream for stream in state.gpus[state.device].streams if stream.cuda_stream == handle), None)
    if handle is not None and stream is None:
        raise cuda_error("invalid resource handle")
    return stream or state.default()
