"""Put a simulated machine in the place of torch.cuda, NCCL and the host's clock."""

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import msgspec
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeWork, ProcessGroupGloo
from torch.utils._python_dispatch import _disable_current_modes

from busbw import backends
from busbw.backends import cuda, faults
from busbw.backends.local import latency
from busbw.backends.pytorch import nccl_calls
from busbw.cli import selftest
from simulated import ddp, nccl
from simulated.device import _STATE, Event, State, Stream, cuda_error, current, merge
from simulated.driver import Driver
from simulated.graphs import Capture, Node
from simulated.machine import FIRST_BUS, NS, Machine, uuid_of
from simulated.tensors import GpuTensor, OnGpus, pinned


class CudaGraph:
    """``torch.cuda.CUDAGraph``."""

    def __init__(self, keep_graph: bool = False) -> None:  # noqa: FBT001, FBT002, ARG002 - as torch has it
        self._capture: Capture | None = None

    @property
    def communicates(self) -> bool:
        """Whether it has calls of NCCL."""
        return self._capture is not None and any(
            isinstance(node, Node) and node.together is not None for node in self._capture.nodes
        )

    def capture_begin(self, *_pool: object, capture_error_mode: str = "global", **_options: object) -> None:
        state = current()
        if capture_error_mode == "global" and dist.is_initialized():
            raise RuntimeError("NCCL's watchdog queries events in a thread of its own, which spoils the capture")
        stream = state.stream()
        if stream == state.default():
            raise RuntimeError("CUDA graphs must be captured on a non-default stream.")
        if state.capturing is not None:
            raise cuda_error("operation not permitted when stream is capturing")
        state.capturing = self._capture = Capture(stream)

    def capture_end(self) -> None:
        state, capture = current(), self._capture
        state.capturing = None
        if capture is None:
            raise RuntimeError("capture_end without capture_begin")
        reason = capture.end()
        for stream in capture.streams:
            merge(state.order, stream.order)  # none of it has run
        if state.stream() != capture.origin:
            raise RuntimeError("Capture must end on the same stream it began on.")
        if reason is not None:
            self._capture = None
            raise cuda_error(reason)
        state.graphs.add(self)

    def replay(self) -> None:
        state, capture = current(), self._capture
        if capture is None:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        state.now += state.machine.graph_launch_ns
        stream = state.stream()
        begin = stream.begin()
        with _disable_current_modes():
            end = capture.replay(begin)
        number = stream.work(end - begin, begin)
        state.touch(stream, number, capture.read, capture.wrote)

    def reset(self) -> None:
        self._capture = None
        current().graphs.discard(self)

    def pool(self) -> tuple[int, int]:
        return 0, 1


class _Device:
    """``torch.cuda.device``."""

    def __init__(self, device: object) -> None:
        self.idx = current().index_of(device)

    def __enter__(self) -> None:
        self._before, current().device = current().device, self.idx

    def __exit__(self, *_raised: object) -> None:
        current().device = self._before


def _properties(device: object = None) -> SimpleNamespace:
    """``torch.cuda.get_device_properties``."""
    state = current()
    index, machine = state.index_of(device), state.machine
    return SimpleNamespace(
        name=machine.name + " MIG 1g.10gb" * machine.mig,
        major=9,
        minor=0,
        total_memory=machine.memory_bytes,
        multi_processor_count=132,
        L2_cache_size=machine.l2_bytes,
        uuid=uuid_of(index, mig=machine.mig),
        pci_domain_id=0,
        pci_bus_id=FIRST_BUS + index,
        pci_device_id=0,
        warp_size=32,
        gcnArchName="",
    )


class _Runtime:
    """``torch.cuda.cudart()``: calls of the CUDA runtime that return a status."""

    def cudaHostRegister(self, address: int, size: int, _flags: int) -> int:  # noqa: N802 - CUDA's name
        current().pinned[address] = size
        return 0

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802 - CUDA's name
        del current().pinned[address]
        return 0


def _generator(make: Callable[..., torch.Generator]) -> Callable[..., torch.Generator]:
    """``torch.Generator``: those of GPUs are the host's."""
    return lambda _device=None: make("cpu")


def _check(status: int) -> None:
    if status:
        raise cuda_error(f"status {status}")


def _sleep(cycles: int) -> None:
    """The kernel that spins."""
    state = current()
    state.now += state.machine.launch_ns
    stream = state.stream()
    stream.work(round(cycles / state.machine.ghz))


def _set_device(device: object) -> None:
    state = current()
    state.device = state.index_of(device)


def _reset_peak(device: object = None) -> None:
    gpu = current().gpus[current().index_of(device)]
    gpu.peak = gpu.allocated


def _gpu(device: object = None) -> Any:  # noqa: ANN401 - a Gpu
    return current().gpus[current().index_of(device)]


_OF_TORCH_CUDA: dict[str, object] = {
    "Stream": Stream,
    "Event": Event,
    "CUDAGraph": CudaGraph,
    "device": _Device,
    "init": lambda: None,
    "_lazy_init": lambda: None,
    "is_available": lambda: bool(current().gpus),
    "is_initialized": lambda: True,
    "device_count": lambda: len(current().gpus),
    "current_device": lambda: current().device,
    "set_device": _set_device,
    "current_stream": lambda device=None: current().stream(device),
    "default_stream": lambda device=None: current().default(device),
    "set_stream": lambda stream: current().use(stream),
    "synchronize": lambda device=None: current().synchronize(device),
    "_sleep": _sleep,
    "get_device_properties": _properties,
    "get_device_name": lambda device=None: _properties(device).name,
    "get_device_capability": lambda _device=None: (9, 0),
    "can_device_access_peer": lambda own, peer: current().machine.peers and own != peer,
    "empty_cache": lambda: None,
    "reset_peak_memory_stats": _reset_peak,
    "max_memory_allocated": lambda device=None: _gpu(device).peak,
    "memory_allocated": lambda device=None: _gpu(device).allocated,
    "mem_get_info": lambda device=None: (
        current().machine.memory_bytes - _gpu(device).allocated,
        current().machine.memory_bytes,
    ),
    "cudart": _Runtime,
    "check_error": _check,
    "is_current_stream_capturing": lambda: current().stream().capture is not None,
    "get_rng_state": lambda _device="cuda": torch.ByteTensor(16).zero_(),
    "set_rng_state": lambda _state, _device="cuda": None,
}


_FOR_EVER = timedelta(days=1)


@contextmanager
def _use_mem_pool(pool: nccl.MemPool, _device: object = None) -> Iterator[None]:
    current().nccl.pool = pool
    try:
        yield
    finally:
        current().nccl.pool = None


def _library_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """``ProcessGroup._get_backend``, with NCCL for GPUs."""

    def library(group: dist.ProcessGroup, device: torch.device) -> object:
        known = function(group, device)
        return nccl.OfGroup(group, known) if device.type == "cuda" else known

    return library


def _guard_gpus() -> None:
    """Give torch's C++ the device guard of Meta, which does nothing, for CUDA: autograd asks for it."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    registry = (ctypes.c_void_p * 24).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    registry[1] = registry[14]


def _over_gloo(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` of torch.distributed, which makes a process group, with Gloo in the place of NCCL; like NCCL, whose
    watchdog busbw turns off, it then waits for ever.
    """

    def made(*args: Any, **named: Any) -> Any:  # noqa: ANN401 - as torch has it
        asked = args[0] if args[:1] == ("nccl",) else named.get("backend", "")
        if asked == "nccl":
            args, named = (
                args[1:] if args[:1] == ("nccl",) else args,
                {**named, "backend": "gloo", "timeout": _FOR_EVER},
            )
        group = function(*args, **named)
        if asked == "gloo" and isinstance(group, dist.ProcessGroup):
            current().nccl.of_hosts.add(group.group_name)
        return group

    return made


def _destroying(destroy: Callable[..., Any]) -> Callable[..., Any]:
    """``dist.destroy_process_group``, which NCCL does not end while a graph is alive that has its calls."""

    def destroyed(*args: Any) -> Any:  # noqa: ANN401 - as torch has it
        if any(graph.communicates for graph in current().graphs):
            raise RuntimeError("a graph with NCCL calls is alive: real ranks would wait for ever")
        return destroy(*args)

    return destroyed


def _waiting(wait: Callable[..., Any]) -> Callable[..., Any]:
    def waited(self: object, *args: Any) -> Any:  # noqa: ANN401 - as torch has it
        done = wait(self, *args)
        current().nccl.waited(self)
        return done

    return waited


def _future(work: dist.Work) -> "torch.futures.Future[object]":
    """``Work.get_future``. torch runs its callbacks on a stream of their own; here they run on the current one."""
    current().nccl.waited(work)
    future: torch.futures.Future[object] = torch.futures.Future()
    future.set_result(None)
    return future


def _tensor(make: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.tensor``, which no dispatch mode sees."""

    def tensor(data: object, *args: Any, device: Any = None, **named: Any) -> torch.Tensor:  # noqa: ANN401 - as torch
        made: torch.Tensor = make(data, *args, **named)
        return made if device is None or torch.device(device).type != "cuda" else made.to(device)

    return tensor


@contextmanager
def simulated(machine: Machine) -> Iterator[State]:
    """Within the block, this process and those that it forks have ``machine``."""
    _guard_gpus()
    state = State(machine, nccl.Communicator())
    is_pinned = torch.Tensor.is_pinned
    with ExitStack() as held:
        _STATE.append(state)
        held.callback(_STATE.pop)
        for name, value in _OF_TORCH_CUDA.items():
            held.enter_context(patch.object(torch.cuda, name, value))
        for target, name, value in (
            (torch.cuda.streams, "Stream", Stream),
            (torch.cuda.streams, "Event", Event),
            (torch.cuda.graphs, "CUDAGraph", CudaGraph),
            (torch.cuda.nccl, "version", lambda: (2, 29, 3)),
            (nccl_calls, "loaded", nccl.Library),
            (latency, "driver", Driver),
            (torch.backends.cuda, "is_built", lambda: True),
            (torch._C, "_host_emptyCache", lambda: None),
            (torch, "tensor", _tensor(torch.tensor)),
            (torch, "Generator", _generator(torch.Generator)),
            (torch.Tensor, "is_pinned", lambda self, _device=None: not isinstance(self, GpuTensor) and pinned(self)),
            (time, "perf_counter_ns", state.read_clock),
            (dist, "init_process_group", _over_gloo(dist.init_process_group)),
            (dist, "new_group", _over_gloo(dist.new_group)),
            (dist, "destroy_process_group", _destroying(dist.destroy_process_group)),
            (dist, "is_nccl_available", lambda: True),
            (dist.Work, "wait", _waiting(dist.Work.wait)),
            (FakeWork, "wait", _waiting(FakeWork.wait)),
            (dist.Work, "get_future", _future),
            (dist, "Reducer", ddp.Reducer),
            (dist, "Logger", ddp.Logger),
            (dist, "_register_comm_hook", ddp.register_comm_hook),
            (dist, "_broadcast_coalesced", ddp.broadcast_coalesced),
            (dist, "_verify_params_across_processes", lambda *_given: None),
            (dist.ProcessGroup, "_get_backend", _library_of(dist.ProcessGroup._get_backend)),
            (torch.cuda, "MemPool", nccl.MemPool),
            (torch.cuda, "use_mem_pool", _use_mem_pool),
            (dist.ProcessGroup, "_start_coalescing", nccl.start_coalescing),
            (dist.ProcessGroup, "_end_coalescing", nccl.end_coalescing),
            (ProcessGroupGloo, "supports_coalescing", property(lambda _self: True)),
        ):
            held.enter_context(patch.object(target, name, value, create=True))
        held.callback(setattr, torch.Tensor, "is_pinned", is_pinned)
        held.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)  # the time of a kernel is virtual, and several threads of each process fight for cores
        overwrites = torch.__future__.get_overwrite_module_params_on_conversion()
        held.callback(torch.__future__.set_overwrite_module_params_on_conversion, overwrites)
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        held.enter_context(OnGpus())  # type: ignore[no-untyped-call] # torch's
        yield state


_SHORT: dict[str, float] = {"max_seconds": 0.01, "min_seconds": 0.0, "launch_warmup_seconds": 0, "warmup_seconds": 0}
"""Timing of the self-test: a second of the simulated clock takes the host minutes."""


def _wait(seconds: float) -> None:
    """``time.sleep`` on the simulated clock."""
    current().now += round(seconds * NS)


@contextmanager
def seen_by_busbw() -> Iterator[None]:
    """Within the block, busbw finds the GPUs of the simulated machine without torch, as it does before it forks."""
    with (
        patch.object(backends, "_device_files", lambda: len(current().gpus)),
        patch.object(backends, "_built_with", lambda what: what == "cuda"),
        patch.object(cuda, "_SIDE", 32),  # a unit of computation: the host makes each of its products
        patch.object(selftest, "_TIMING", msgspec.structs.replace(selftest._TIMING, **_SHORT)),
        patch.object(selftest, "DelayingBackend", partial(faults.DelayingBackend, wait=_wait)),
    ):
        yield
