"""NCCL behind torch.distributed: data by Gloo, order and time by the streams.

A synchronous collective runs on the current stream (torch ≥ 2.8), an asynchronous one and every message on a stream of
its own; ``work.wait`` lets the current stream wait, never the host. All ranks of a group begin when the last of them is
there. Unlike NCCL, the host waits until the other ranks make the same call, because Gloo moves the data at once.

Messages over Gloo between tensors of the host carry the virtual time from rank to rank.
"""

import os
import time
import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeWork
from torch.distributed.distributed_c10d import GroupName
from torch.utils._python_dispatch import _disable_current_modes

from simulated.device import Order, Stream, cuda_error, current, merge, spoil, stream_of
from simulated.graphs import Node
from simulated.tensors import GpuTensor, host_of, leaves_of, map_leaves, size_of, wrapped

_MESSAGES: Final = ("c10d::send", "c10d::recv_")
ALLOCATOR: Final = object()
"""NCCL's allocator."""
_SMALL: Final = 32 << 10
"""Bytes up to which it chooses a ring."""
_FLOAT8: Final = (torch.float8_e4m3fn, torch.float8_e5m2)
_TAG: Final = 0x7100
"""Tag of the times that travel with messages: of the sender's, the receiver's, and the host's messages."""
_PAUSE_SECONDS: Final = 5e-4
_WIRE: Final[dict[str, Callable[[int], float]]] = {
    **dict.fromkeys(("allreduce_", "allreduce_coalesced_"), lambda n: 2 * (n - 1) / n),
    **dict.fromkeys(
        (
            *("allgather_", "_allgather_base_", "allgather_into_tensor_coalesced_", "alltoall_", "alltoall_base_"),
            *("reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_", "gather_", "scatter_"),
        ),
        lambda n: (n - 1) / n,
    ),
    **dict.fromkeys(("broadcast_", "reduce_"), lambda _n: 1.0),
}
"""Collective → bytes on the link of a rank over the size of the larger buffer, as bus bandwidth counts them."""
_UNEVEN: Final = ("alltoall", "all_to_all", "gather_", "scatter_", "allgather_")
"""Beginnings of the names of those whose ranks may have buffers of different sizes."""
_SCALED: Final = {"all_reduce": "allreduce_", "all_gather": "_allgather_base_", "all_to_all": "alltoall_base_"}
"""Functional collectives by the beginning of their name; the others are the reduce_scatter and broadcast below."""


@dataclass(slots=True)
class Pending:
    """A work that nobody has waited for: when it is done, what is then before, and what the host does on its wait."""

    work: object
    end: int = 0
    order: Order = field(default_factory=dict)
    arrived: Callable[[], object] | None = None


class MemPool:
    """``torch.cuda.MemPool``: the storages that are allocated in it."""

    def __init__(self, allocator: object = None) -> None:
        if allocator is not ALLOCATOR:
            raise RuntimeError("NCCL registers memory of its own allocator")
        self.storages: set[int] = set()


class OfGroup:
    """``ProcessGroupNCCL`` of a group: that of Gloo, and the registration of memory."""

    def __init__(self, group: dist.ProcessGroup, library: object) -> None:
        self._name, self._library = group.group_name, library
        self.mem_allocator = ALLOCATOR

    def __getattr__(self, name: str) -> object:
        return getattr(self._library, name)

    def _comm_ptr(self) -> int:
        """The address of the communicator on the current GPU; 0 if there is none yet."""
        known = current().nccl.connected
        return known.index(self._name) + 1 if self._name in known else 0

    def register_mem_pool(self, pool: MemPool) -> None:
        if self._name not in current().nccl.connected:
            raise RuntimeError("NCCL communicator has not been initialized before mem pool creation.")
        current().nccl.pools.append((self._name, pool))

    def deregister_mem_pool(self, pool: MemPool) -> None:
        current().nccl.pools.remove((self._name, pool))


class Communicator:
    """The NCCL of one process: its streams, its works that nobody has waited for, and the messages of an open group.

    of_hosts: names of the process groups that were asked for with Gloo; all others are NCCL's
    connected: names of those that have a communicator of all their ranks, which the first collective makes
    pool: the pool in which memory is allocated; None: in none
    pools: registered pools, with the names of their groups
    registered_calls: number of collectives whose buffers were all registered with their group
    log: file of the lines about its tuning; None: it prints none
    """

    def __init__(self) -> None:
        self._streams: dict[tuple[int, str], Stream] = {}
        self.pending: dict[int, Pending] = {}
        self.group: list[Message] | None = None
        self.results: dict[int, Pending] = {}
        self.of_hosts: set[str] = set()
        self.connected: list[str] = []
        self.calls = 0
        self.sending: list[tuple[torch.Tensor, dist.Work]] = []
        self.pool: MemPool | None = None
        self.pools: list[tuple[str, MemPool]] = []
        self.registered_calls = 0
        self.log: Path | None = None

    def count_registered(self, group: dist.ProcessGroup, tensors: Sequence[torch.Tensor]) -> None:
        """Count a collective if all of its ``tensors`` are registered with its ``group``."""
        known = {storage for name, pool in self.pools if name == group.group_name for storage in pool.storages}
        self.registered_calls += bool(tensors) and all(t.untyped_storage()._cdata in known for t in tensors)

    def read_variables(self) -> None:
        """``ncclResetDebugInit``."""
        prints = (os.environ.get("NCCL_DEBUG"), os.environ.get("NCCL_DEBUG_SUBSYS")) == ("INFO", "TUNING")
        self.log = Path(os.environ["NCCL_DEBUG_FILE"]) if prints else None

    def print_tuning(self, size: int) -> None:
        """Print what the first rank of a group prints of a collective."""
        if self.log is not None:
            chosen = (
                "RING proto LL channel{Lo..Hi}={0..0}"
                if size <= _SMALL
                else "NVLS proto SIMPLE channel{Lo..Hi}={0..15}"
            )
            with self.log.open("a", encoding="utf-8") as file:
                file.write(f"host:1:1 [0] NCCL INFO Collective: {size} Bytes -> Algo {chosen}\n")

    def connect(self, group: dist.ProcessGroup) -> None:
        """Make the communicator of ``group``, at its first collective. It allocates, which a capture does not allow."""
        if group.group_name not in self.connected:
            current().refuse_in_capture()
            _meet_network(current().device)
            self.connected.append(group.group_name)

    def arrive(self, gpu: int) -> None:
        """Count a call of NCCL; the rank stays away for ever from the one that ``Faults.hung`` names."""
        self.calls += 1
        while self.calls == current().machine.faults.hung.get(gpu):
            time.sleep(1)

    def stream(self, gpu: int, what: str) -> Stream:
        """The stream of the collectives of a GPU, or of its messages."""
        if (gpu, what) not in self._streams:
            self._streams[gpu, what] = Stream(gpu)
        return self._streams[gpu, what]

    def later(self, stream: Stream) -> FakeWork:
        """A work that is done when the work of ``stream`` so far is done."""
        work = FakeWork()
        self.pending[id(work)] = Pending(work, stream.end, dict(stream.order))
        return work

    def waited(self, work: object) -> None:
        """The current stream waits for ``work``; of a message between hosts, the host has it."""
        state, pending = current(), self.pending.pop(id(work), None)
        if pending is None:
            return
        if pending.arrived is not None:
            with _disable_current_modes():  # what it sends is no message of the program
                pending.arrived()
            return
        state.now += state.machine.event_ns
        stream = state.stream()
        stream.end = max(stream.end, pending.end)
        merge(stream.order, pending.order)


def _meet_network(gpu: int) -> None:
    """Raise what NCCL does on a GPU that cannot connect; on others, wait for it by polling and for ever."""
    unconnected = current().machine.faults.unconnected
    if gpu in unconnected:
        raise dist.DistBackendError(
            "NCCL error in: NCCLUtils.cpp:94, unhandled system error, NCCL version 2.27.5\n"
            "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n"
            "Last error:\nBootstrap : no socket interface found"
        )
    while unconnected:
        time.sleep(_PAUSE_SECONDS)


@dataclass(frozen=True, slots=True)
class Message:
    """A send or a receive that waits for the end of its group."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    tensor: torch.Tensor
    sends: bool
    group: dist.ProcessGroup
    peer: int

    def start(self) -> dist.Work:
        """Start it; returns its work."""
        return dist.Work.unbox(self.func(*self.args))


def complete(work: dist.Work) -> None:
    """Wait for the other ranks. Where one hangs, by polling and for ever, as the host of a GPU does: from that, the
    watchdog knows who waits. Not elsewhere, because some works of Gloo are done by those who wait for them.
    """
    while current().machine.faults.hung and not (work.is_completed() and work.is_success()):
        time.sleep(_PAUSE_SECONDS)
    work.wait()


def communicate(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], mine: list[GpuTensor]) -> Any:  # noqa: ANN401
    """Execute an operation of c10d: of the host's tensors as it is, of tensors on a GPU in the order of its streams."""
    state = current()
    group = _group_of(args)
    nccl = group is not None and group.group_name not in state.nccl.of_hosts
    if mine and name in {"_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd"}:
        # torch wraps a result so that its first use waits. For C++ the wrapper is on a GPU, and autograd would ask for
        # an accelerator that is not there; so the stream waits when torch would wrap it.
        return _wait_tensor(mine[0])
    if not mine and not (nccl and name == "c10d::barrier"):
        if nccl and group is not None:
            raise RuntimeError("No backend type associated with device type cpu")
        return _between_hosts(func, name, args, kwargs, group)
    if name == "c10d::recv_any_source_":
        raise RuntimeError("ProcessGroupNCCL does not support recvAnysource")
    gpu = mine[0].home.index if mine else state.device
    if gpu != state.device:
        raise RuntimeError(f"NCCL on cuda:{gpu} while GPU {state.device} is current: real ranks would wait for ever")
    if not nccl or group is None:
        raise RuntimeError("No backend type associated with device type cuda")
    if not all(tensor.inner.is_contiguous() for tensor in mine):
        raise ValueError("Tensors must be contiguous")
    state.now += state.machine.launch_ns
    inner = map_leaves(host_of, args)
    if name in _MESSAGES:
        message = Message(func, inner, inner[0][0], name == "c10d::send", group, inner[2])
        if state.nccl.group is not None:
            state.nccl.group.append(message)
            return FakeWork().boxed()
        return exchange([message], gpu).boxed()
    return _collective(func, name, args, inner, group, gpu)


def _group_of(args: tuple[Any, ...]) -> dist.ProcessGroup | None:
    """The process group among the arguments of an operation."""
    for value in args:
        if isinstance(value, dist.ProcessGroup):
            return value
        if isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type()):
            return dist.ProcessGroup.unbox(value)
    names = [value for value in args if isinstance(value, str)]
    return torch._C._distributed_c10d._resolve_process_group(GroupName(names[-1])) if names else None


def _collective(
    func: Any,  # noqa: ANN401 - an OpOverload
    name: str,
    args: tuple[Any, ...],
    inner: tuple[Any, ...],
    group: dist.ProcessGroup,
    gpu: int,
) -> Any:  # noqa: ANN401 - the operation's results
    """One collective: its data now, its time when the last rank of the group is there."""
    state, schema = current(), func._schema.arguments
    functional, barrier = name.startswith("_c10d_functional"), name == "c10d::barrier"
    if barrier and not args[2]:
        warnings.warn("barrier(): using the device under current context.", stacklevel=2)  # as torch, of device_ids
    here = state.stream(gpu)
    state.nccl.connect(group)
    state.nccl.arrive(gpu)
    at = next((at for at, argument in enumerate(schema) if argument.name == "async_op"), None)
    asynchronous = functional or (at is not None and (at >= len(args) or bool(args[at])))
    parts = [[leaf for leaf in leaves_of(part) if isinstance(leaf, torch.Tensor)] for part in inner[:2]]
    wrote, read = parts if parts[1] and not functional else (parts[0], parts[0])
    size = max(sum(map(size_of, part)) for part in parts)

    def run() -> Any:  # noqa: ANN401 - as above
        out = _over_gloo(func, inner, wrote, read)
        return map_leaves(_waited, out) if functional else out

    if here.capture is not None and asynchronous and not functional:
        raise NotImplementedError("an asynchronous collective in a capture")
    stream = state.nccl.stream(gpu, "collectives") if asynchronous and here.capture is None else here
    out = _Collective(name, group, gpu, size, read, wrote, run).submit(here, stream)
    if here.capture is not None:
        return _without_running(func, args)
    if barrier:
        state.wait_for([stream])
    work = state.nccl.later(stream) if asynchronous and not functional else FakeWork()
    return _returned(out, work, args, torch.device("cuda", gpu), stream if functional else None)


@dataclass(frozen=True, slots=True)
class _Collective:
    """A collective, by its name in c10d: the GPU of this rank reads and writes tensors of the host; ``run`` does it."""

    name: str
    group: dist.ProcessGroup
    gpu: int
    size: int
    read: Sequence[torch.Tensor]
    wrote: Sequence[torch.Tensor]
    run: Callable[[], Any]

    def submit(self, here: Stream, stream: Stream) -> Any:  # noqa: ANN401 - the operation's results
        """Run it on ``stream`` after the work of ``here``, or let ``here`` capture it."""
        state, tensors = current(), [*self.wrote, *self.read]
        _refuse_overlap(self.name, self.wrote, self.read, self.group.rank())
        state.nccl.count_registered(self.group, tensors)
        if self.group.rank() == 0:
            state.nccl.print_tuning(self.size)
        if here.capture is not None:
            here.capture.nodes.append(Node(here.stream_id, 0, self._executed, self.read, self.wrote, self._together))
            return state.touch(here, here.count(), self.read, self.wrote)
        stream.follow(here)
        begin, duration = self._together(stream.begin())
        out = self._executed()
        state.touch(stream, stream.work(duration, begin), self.read, self.wrote)
        return out

    def _executed(self) -> Any:  # noqa: ANN401 - as above
        out = self.run()
        if self.gpu in current().machine.faults.garbled:
            spoil(self.wrote)
        return out

    def _together(self, begin: int) -> tuple[int, int]:
        """When all ranks are there, and how long it then takes."""
        shared = "" if self.name.partition("::")[2].startswith(_UNEVEN) else self.size
        dtype = next((tensor.dtype for tensor in (*self.wrote, *self.read)), None)
        begins, gpus = _meet(self.group, begin, self.gpu, zlib.crc32(f"{self.name} {shared} {dtype}".encode()))
        whole = self.size * len(gpus) if "all_gather" in self.name else self.size
        wire = 0.0 if self.name == "c10d::barrier" else _wire_of(self.name)(len(gpus)) * whole
        return max(begins), current().machine.collective(gpus, wire)


def _over_gloo(
    func: Any,  # noqa: ANN401 - an OpOverload
    inner: tuple[Any, ...],
    wrote: Sequence[torch.Tensor],
    read: Sequence[torch.Tensor],
) -> Any:  # noqa: ANN401 - the operation's results
    """The data of a collective. Gloo adds no 8-bit floats, so these go as float32."""
    wide = {id(leaf): leaf.float() for leaf in (*wrote, *read) if leaf.dtype in _FLOAT8}
    out = func(*(map_leaves(lambda leaf: wide.get(id(leaf), leaf), inner) if wide else inner))
    for leaf in leaves_of(out):
        work = dist.Work.unbox(leaf) if isinstance(leaf, torch.ScriptObject) else None
        if work is not None:
            complete(work)
    for leaf in wrote if wide else ():
        leaf.copy_(wide[id(leaf)])
    return out


def _wire_of(name: str) -> Callable[[int], float]:
    """The row of ``_WIRE`` for an operation of c10d or a functional collective."""
    short = name.partition("::")[2]
    scaled = next((row for begin, row in _SCALED.items() if short.startswith(begin)), None)
    other = "_reduce_scatter_base_" if short.startswith("reduce_scatter") else "broadcast_"
    return _WIRE[short] if short in _WIRE else _WIRE[scaled or other]


def _waited(leaf: Any) -> Any:  # noqa: ANN401 - any result
    return torch.ops._c10d_functional.wait_tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf


def _without_running(func: Any, args: tuple[Any, ...]) -> Any:  # noqa: ANN401 - the operation's results
    """What a captured collective returns: its tensors, which only a replay writes."""
    kinds = [str(given.type) for given in func._schema.returns]
    results = [FakeWork().boxed() if "Work" in kind else args[0] for kind in kinds]
    return results[0] if len(results) == 1 else tuple(results)


def _returned(out: Any, work: FakeWork, args: tuple[Any, ...], home: torch.device, stream: Stream | None) -> Any:  # noqa: ANN401
    """The results as tensors on the GPU, and ``work`` in place of Gloo's; functional ones remember ``stream``."""
    leaves = leaves_of(args)
    result = map_leaves(
        lambda leaf: work.boxed() if isinstance(leaf, torch.ScriptObject) else leaf, wrapped(out, home, leaves)
    )
    if stream is not None:
        for leaf in leaves_of(result):
            if isinstance(leaf, GpuTensor):
                current().nccl.results[storage_of(leaf)] = Pending(None, stream.end, dict(stream.order))
    return result


def _wait_tensor(tensor: GpuTensor) -> GpuTensor:
    """The current stream waits for the functional collective that made ``tensor``."""
    state = current()
    done = state.nccl.results.pop(storage_of(tensor), None)
    if done is not None:
        stream = state.stream(tensor.home.index)
        stream.end = max(stream.end, done.end)
        merge(stream.order, done.order)
    return tensor


def storage_of(tensor: GpuTensor) -> int:
    """What identifies the memory of a tensor, whatever views of it there are."""
    return int(tensor.inner.untyped_storage()._cdata)


def _refuse_overlap(name: str, wrote: Sequence[torch.Tensor], read: Sequence[torch.Tensor], rank: int) -> None:
    """Raise RuntimeError for buffers that overlap in another way than NCCL's in-place operations: the smaller one is
    the block of this rank in the larger one, or both are the same.
    """
    for out, given in ((out, given) for out in wrote for given in read if wrote is not read):
        first, other = sorted((out, given), key=size_of)
        begin = first.data_ptr() - other.data_ptr()
        if first.numel() and -size_of(first) < begin < size_of(other):
            block = rank * size_of(first) if size_of(first) < size_of(other) else 0
            if begin != block or "alltoall" in name:
                raise RuntimeError(
                    f"{name}: buffers of rank {rank} overlap, which is not in place: undefined over NCCL"
                )


def _meet(group: dist.ProcessGroup, begin: int, gpu: int, what: int = 0) -> tuple[list[int], tuple[int, ...]]:
    """The times at which the ranks of a group can begin, and their GPUs.

    Raises RuntimeError if they do not all make the call with the number ``what``.
    """
    own = torch.tensor([begin, gpu, what])
    everyone = [torch.empty_like(own) for _ in range(group.size())]
    complete(group.allgather([everyone], [own]))
    begins, gpus, calls = zip(*(entry.tolist() for entry in everyone), strict=True)
    if len(set(calls)) > 1:
        raise RuntimeError(
            "ranks make different calls, or of different sizes: real ones would hang, or have wrong data"
        )
    return list(begins), gpus


# --- libnccl ---------------------------------------------------------------------------------------------------------


class Library:
    """``libnccl.so.2``: the functions that busbw calls itself; each returns a status."""

    def ncclResetDebugInit(self) -> None:  # noqa: N802 - NCCL's name, as below
        current().nccl.read_variables()

    def ncclAllReduce(self, *call: Any) -> int:  # noqa: ANN401, N802 - as above
        *buffers, reduction, communicator, stream = call
        return _apart("allreduce_", buffers, reduction, 0, communicator, stream)

    def ncclReduce(self, *call: Any) -> int:  # noqa: ANN401, N802 - as above
        *buffers, reduction, root, communicator, stream = call
        return _apart("reduce_", buffers, reduction, root, communicator, stream)

    def ncclBroadcast(self, *call: Any) -> int:  # noqa: ANN401, N802 - as above
        *buffers, root, communicator, stream = call
        return _apart("broadcast_", buffers, None, root, communicator, stream)

    @staticmethod
    def ncclGetErrorString(_status: int) -> bytes:  # noqa: N802 - as above; the type of its result can be set
        return b"invalid argument"


_DTYPES: Final = {
    0: torch.int8,
    1: torch.uint8,
    2: torch.int32,
    4: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    9: torch.bfloat16,
    10: torch.float8_e4m3fn,
    11: torch.float8_e5m2,
}
_REDUCTIONS: Final = (
    dist.ReduceOp.SUM,
    dist.ReduceOp.PRODUCT,
    dist.ReduceOp.MAX,
    dist.ReduceOp.MIN,
    dist.ReduceOp.AVG,
)
"""By their numbers in nccl.h."""
_INVALID_ARGUMENT: Final = 4


def _apart(name: str, buffers: list[Any], reduction: int | None, root: int, pointer: Any, handle: Any) -> int:  # noqa: ANN401
    """A collective from one buffer into another; ``buffers`` are their addresses, the count and the type."""
    state, (source, target, count, kind) = current(), buffers
    if not 0 < (pointer.value or 0) <= len(state.nccl.connected) or kind not in _DTYPES:
        return _INVALID_ARGUMENT
    group = torch._C._distributed_c10d._resolve_process_group(GroupName(state.nccl.connected[pointer.value - 1]))
    here, leads = stream_of(handle.value), group.rank() == root
    state.now += state.machine.launch_ns
    with _disable_current_modes():
        send = _memory(source.value, count.value, _DTYPES[kind], state.device)
        receive = _memory(target.value, count.value, _DTYPES[kind], state.device)
        read = [send] if leads or name != "broadcast_" else []
        wrote = [receive] if leads or name != "reduce_" else []

        def run() -> None:
            data = send.clone() if reduction is None or send.dtype not in _FLOAT8 else send.float()
            if reduction is None:
                work = group.broadcast(data, root)
            elif name == "reduce_":
                work = group.reduce(data, root, _REDUCTIONS[reduction])
            else:
                work = group.allreduce([data], _REDUCTIONS[reduction])
            complete(work)
            for tensor in wrote:
                tensor.copy_(data)

        state.nccl.arrive(state.device)
        _Collective(f"c10d::{name}", group, state.device, size_of(receive), read, wrote, run).submit(here, here)
    return 0


def _memory(address: int, count: int, dtype: torch.dtype, gpu: int) -> torch.Tensor:
    """``count`` elements at an address. Raises CudaError if no allocation has them all."""
    size = count * dtype.itemsize
    whole = current().bytes_at(address, gpu)
    begin = address - whole.data_ptr()
    if begin + size > len(whole):
        raise cuda_error("an illegal memory access was encountered")
    return whole[begin : begin + size].view(dtype)


# --- messages --------------------------------------------------------------------------------------------------------


def exchange(messages: Sequence[Message], gpu: int) -> FakeWork:
    """Start messages together: each begins when both ends are there; those of one direction follow one another."""
    state = current()
    state.nccl.arrive(gpu)
    here = state.stream(gpu)
    read = [message.tensor for message in messages if message.sends]
    wrote = [message.tensor for message in messages if not message.sends]

    def run() -> None:
        for work in [message.start() for message in messages]:
            work.wait()
        if gpu in state.machine.faults.garbled:
            spoil(wrote)

    def together(begin: int) -> tuple[int, int]:
        ends = _times_of_peers(messages, begin, gpu)
        durations = [
            sum(state.machine.message(*way, size_of(message.tensor)) for message, (_, way) in direction)
            for direction in _by_direction(messages, ends)
        ]
        return max([begin, *(at for at, _ in ends)]), max(durations)

    if here.capture is not None:
        here.capture.nodes.append(Node(here.stream_id, 0, run, read, wrote, together))
        state.touch(here, here.count(), read, wrote)
        return FakeWork()
    stream = state.nccl.stream(gpu, "messages")
    stream.follow(here)
    run()
    begin, duration = together(stream.begin())
    state.touch(stream, stream.work(duration, begin), read, wrote)
    return state.nccl.later(stream)


_Ends = list[tuple[int, tuple[int, int]]]


def _by_direction(messages: Sequence[Message], ends: _Ends) -> list[list[tuple[Message, tuple[int, tuple[int, int]]]]]:
    """Messages that leave and those that arrive, each with what is known of its other end."""
    pairs = list(zip(messages, ends, strict=True))
    return [[pair for pair in pairs if pair[0].sends == sends] for sends in (True, False)]


def _times_of_peers(messages: Sequence[Message], begin: int, gpu: int) -> _Ends:
    """For each message, the time at which its other end can begin, and the GPUs that it goes from and to."""
    works, theirs = [], []
    for message in messages:
        own, other = torch.tensor([begin, gpu]), torch.empty(2, dtype=torch.int64)
        works.append(message.group.send([own], message.peer, _TAG + message.sends))
        works.append(message.group.recv([other], message.peer, _TAG + (not message.sends)))
        theirs.append(other)
    for work in works:
        work.wait()
    numbers = [other.tolist() for other in theirs]
    return [
        (at, (gpu, there) if message.sends else (there, gpu))
        for message, (at, there) in zip(messages, numbers, strict=True)
    ]


def _between_hosts(func: Any, name: str, args: Any, kwargs: dict[str, Any], group: dist.ProcessGroup | None) -> Any:  # noqa: ANN401
    """An operation on the host's tensors: afterwards the clock is that of the last rank, plus the message's time."""
    state, out = current(), func(*args, **kwargs)
    if group is None or group.size() == 1:
        return out
    works = [dist.Work.unbox(leaf) for leaf in leaves_of(out) if isinstance(leaf, torch.ScriptObject)]
    work = next(iter(works), None)
    peer: int = args[2] if name in _MESSAGES else -1

    def arrived() -> None:
        if name == "c10d::recv_":
            other = torch.empty(1, dtype=torch.int64)
            group.recv([other], peer, _TAG + 2).wait()
            state.now = max(state.now, int(other) + state.machine.control_ns)
        elif peer < 0:
            late = state.machine.faults.late.get(state.device, 0) if name == "c10d::barrier" else 0
            state.now = max(_meet(group, state.now, 0)[0]) + state.machine.control_ns + late

    if name == "c10d::send":
        own = torch.tensor([state.now])
        state.nccl.sending = [sent for sent in state.nccl.sending if not sent[1].is_completed()]
        state.nccl.sending.append((own, group.send([own], peer, _TAG + 2)))
    elif work is None:
        arrived()
    else:
        state.nccl.pending[id(work)] = Pending(work, arrived=arrived)
    return out


class Grouped:
    """The work of a group of messages."""

    def __init__(self, work: FakeWork) -> None:
        self._work = work

    def wait(self, *_timeout: object) -> bool:
        """Let the current stream wait for all of them."""
        current().nccl.waited(self._work)
        return True


def start_coalescing(_group: dist.ProcessGroup, _device: torch.device) -> None:
    """Begin a group of messages."""
    current().nccl.group = []


def end_coalescing(_group: dist.ProcessGroup, device: torch.device) -> Grouped | None:
    """Start all messages of the group."""
    state = current()
    messages, state.nccl.group = state.nccl.group, None
    if not messages:
        return None
    if messages[0].group.group_name not in state.nccl.connected:
        raise RuntimeError("the first call of a group is a batch of messages: undefined unless all its ranks make it")
    with _disable_current_modes():
        return Grouped(exchange(messages, state.index_of(device)))
