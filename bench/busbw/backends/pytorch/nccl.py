"""NCCL through torch.distributed: CUDA tensors, one GPU per rank, and all control traffic over Gloo on the hosts."""

import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from busbw.backends.base import Bound, Operation, World, explained, records_of_every_rank
from busbw.backends.cuda import CudaDevice, index_of, uuid_at
from busbw.backends.patterns import TORCH_DTYPES
from busbw.backends.pytorch import nccl_calls
from busbw.backends.pytorch.backend import TorchBackend, is_apart, store_of
from busbw.backends.pytorch.nccl_tuning import choice_of
from busbw.backends.side_channel import first_line, heeding
from busbw.backends.watchdog import Watchdog
from busbw.errors import BackendError, LaunchError, UsageError
from busbw.ops import OPS
from busbw.ops.base import Op
from busbw.ops.groups import Ranks, split_world
from busbw.ops.settings import AlgorithmSettings
from busbw.runs.facts import HostFacts, NcclFacts
from busbw.runs.records import FLOAT8, Case, Record
from busbw.system import numa
from busbw.units import counted

_SETTINGS = {
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"): "0",
    ("TORCH_NCCL_ENABLE_MONITORING",): "0",
    ("TORCH_NCCL_RETHROW_CUDA_ERRORS",): "0",
    ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"): "0",
}
"""Variable of torch and its older name → busbw's default, if neither is set. torch's threads would abort every rank
without a word about which one hangs; ``Watchdog`` names it. Its flight recorder, on since torch 2.11
(https://github.com/pytorch/pytorch/pull/172843), takes the Python stack of every call, within the call's time.
"""

_TUNED = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"})
"""Operations among whose algorithms NCCL chooses; torch makes the others of its sends and receives."""


class NcclBackend(TorchBackend):
    """CUDA tensors over NCCL. Raises LaunchError if this rank does not have its own GPU."""

    # torch raises ValueError for what NCCL calls invalid usage.
    raises = (ValueError, *TorchBackend.raises)

    def __init__(self, world: World) -> None:
        for names, value in _SETTINGS.items():
            if not any(name in os.environ for name in names):
                os.environ[names[0]] = value
        number = index_of(world)
        if not dist.is_nccl_available():
            raise LaunchError(f"rank {world.rank} cannot use NCCL: torch was built without NCCL")
        try:
            self._gpu = CudaDevice(number)
        except RuntimeError as error:
            raise LaunchError(f"rank {world.rank} cannot use its GPU: {first_line(error)}") from error
        numa.stay_near(self._gpu.address)  # before it allocates host memory, which is placed by first touch
        super().__init__(world, "nccl", self._gpu)
        self._pool: torch.cuda.MemPool | None = None
        self._registering: list[dist.ProcessGroup | None] = []
        self._connected: list[dist.ProcessGroup | None] = [None]
        self._watchdog = Watchdog("NCCL", world.timeout_seconds + world.batch_seconds, world.lost)
        try:
            self._views = records_of_every_rank(self, view(socket.gethostname(), self._gpu), View)
            if (problem := shared_gpu(self._views)) is not None:
                raise LaunchError(problem)
            # A collective of all ranks first: the first call must not be point-to-point (batch_isend_irecv).
            self._nothing = torch.zeros(1, device=self._gpu.name)
            with heeding(partial(store_of, world), world.size, self._given_up, world.key):
                dist.all_reduce(self._nothing)
                self._gpu.synchronise()
        except (RuntimeError, BackendError) as error:
            self._watchdog.end()
            problem = f"rank {world.rank} of {world.size} could not connect over NCCL: {first_line(error)}"
            self.fail(problem)  # the others wait in NCCL, and this process may hold the store
            raise LaunchError(problem) from error

    def _given_up(self, error: BackendError) -> None:
        """Leave with the error of another rank, which awaits an answer."""
        self.fail(str(error))
        self._world.lost(error)

    def explain(self, error: Exception) -> str:
        """As in the base class. Raises a UsageError again: it is a ValueError, but none of torch's."""
        if isinstance(error, UsageError):
            raise error
        return super().explain(error)

    def refuse(self, op: Op, case: Case) -> str | None:
        """Reason why NCCL cannot run ``case``, or None."""
        no_pairs = why_no_pairs(op, case, self._views) if op.between_devices else None
        return no_pairs or why_not(op, case) or super().refuse(op, case)

    def bind(self, bound: Bound) -> Operation:
        """As in the base class. What waits for no other rank may take as long as its file system does."""
        op = OPS[bound.case.op]
        self._watchdog.paused = op.local or op.stores
        if bound.case.registered:
            send, receive = self._in_pool(bound.send, bound.receive)
            bound = replace(bound, send=send, receive=receive)
        operation = self._apart(bound) if is_apart(op, bound.case) else super().bind(bound)
        if bound.case.registered:
            # Messages of an explicit algorithm use the communicator of all ranks.
            group = None if isinstance(bound.case.settings, AlgorithmSettings) else self.comm(op, bound.group)
            register = partial(self._register, group)
            operation = replace(operation, buffers=(bound.send, bound.receive), connect=register)
        if op.name not in _TUNED or isinstance(bound.case.settings, AlgorithmSettings):
            return operation
        captured = bound.case.mode == "graph"  # buffers of a graph are registered, which changes the choice
        call = partial(self._gpu.capture, [operation.call]) if captured else operation.call
        return replace(operation, choice=partial(choice_of, call, leads=bound.me == 0))

    def no_registration(self) -> str | None:
        """As in the base class."""
        known = hasattr(_library_of(None), "register_mem_pool")
        return None if known else f"torch {torch.__version__} cannot register memory with NCCL; a newer one can"

    def _in_pool(self, send: torch.Tensor, receive: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Buffers like these in memory of NCCL's allocator; shared where they are."""
        if self._pool is None:
            self._pool = torch.cuda.MemPool(_library_of(None).mem_allocator)
        storages = {
            buffer.untyped_storage().data_ptr(): buffer.untyped_storage().nbytes() for buffer in (send, receive)
        }
        with torch.cuda.use_mem_pool(self._pool):
            memory = {
                at: torch.empty(size, dtype=torch.uint8, device=self._gpu.name).zero_() for at, size in storages.items()
            }
        first, second = (
            memory[buffer.untyped_storage().data_ptr()].view(buffer.dtype)[buffer.storage_offset() :][: len(buffer)]
            for buffer in (send, receive)
        )
        return first, second

    def _register(self, group: dist.ProcessGroup | None) -> None:
        """Register NCCL's memory with the communicator of ``group``, also what its allocator gives later."""
        if group not in self._registering:
            self._connect(group)
            _library_of(group).register_mem_pool(self._pool)
            self._registering.append(group)

    def _connect(self, group: dist.ProcessGroup | None) -> None:
        """Let torch create the communicator of ``group``, which it does at the first collective."""
        if group not in self._connected:
            dist.all_reduce(self._nothing, group=group)
            self._connected.append(group)

    def not_apart(self, case: Case) -> str | None:
        """As in the base class."""
        reason = nccl_calls.why_not(_library_of(None))
        if reason is None and case.mode == "overlap":
            reason = "it has no nonblocking form for mode overlap"
        return None if reason is None else f"NCCL's own cannot be called: {reason}"

    def _apart(self, bound: Bound) -> Operation:
        """An operation that torch has in place only."""
        group = self.comm(OPS[bound.case.op], bound.group)
        operation = nccl_calls.bind(replace(bound, comm=group), partial(_pointer_of, group))
        return replace(operation, connect=partial(self._connect, group))

    def progressed(self) -> None:
        """Tell the watchdog."""
        self._watchdog.beats += 1

    def close(self) -> None:
        """Destroy the process groups, before them the graphs that hold their communicators."""
        try:
            with explained(self):
                self._gpu.forget_graphs()
                for group in self._registering:
                    _library_of(group).deregister_mem_pool(self._pool)
            super().close()
        finally:
            self._watchdog.end()

    def peers_in(self, group: Ranks) -> tuple[str | None, ...]:
        """Name of the GPU of each rank in this process."""
        return tuple(name_of(self._views, self.rank, rank) for rank in group)


def _library_of(group: dist.ProcessGroup | None) -> Any:  # noqa: ANN401 - a ProcessGroupNCCL, which torch without CUDA lacks
    """torch's NCCL object of ``group``; None: all ranks."""
    ranks = dist.group.WORLD if group is None else group
    return None if ranks is None else ranks._get_backend(torch.device("cuda"))  # noqa: SLF001 - as torch's documents have it


def _pointer_of(group: dist.ProcessGroup | None) -> int:
    """The communicator of ``group`` on the current GPU as a pointer; 0: none."""
    pointer: int = _library_of(group)._comm_ptr()  # noqa: SLF001 - nothing else shows it
    return pointer


def with_facts(host: HostFacts) -> HostFacts:
    """``host`` with the facts of NCCL; reading them creates no CUDA context."""
    version = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call] # as torch has it
    return msgspec.structs.replace(host, nccl=NcclFacts(version=version))


def why_not(op: Op, case: Case) -> str | None:
    """Reason why NCCL cannot run ``case``, or its data could not be verified; None otherwise."""
    # ProcessGroupNCCL's barrier blocks the host.
    if op.name == "barrier" and (case.pre_enqueue or case.mode == "graph"):
        how = "pre-enqueued" if case.pre_enqueue else "captured in a graph"
        return f"torch's NCCL {op.name} blocks the host, so it cannot be {how}"
    if op.reduces and case.dtype in FLOAT8 and (lacking := _no_float8()) is not None:
        return f"NCCL reduces {case.dtype} from version 2.24 and compute capability 9.0 on; here {lacking}"
    if case.redop == "avg" and case.dtype is not None and TORCH_DTYPES[case.dtype].is_floating_point:
        uneven = sorted({len(group) for group in split_world(case.group, case.ranks) if len(group).bit_count() != 1})
        if uneven:
            return (
                f"NCCL averages {case.dtype} by multiplying with 1/n first, which is exact only for powers of two; "
                f"groups here have {', '.join(map(str, uneven))} ranks"
            )
    return None


def _no_float8() -> str | None:
    """What is too old to reduce 8-bit floats; None: nothing. Of RCCL, its own error would tell."""
    if torch.version.hip is not None:
        return None
    version, capability = torch.cuda.nccl.version(), torch.cuda.get_device_capability()  # type: ignore[no-untyped-call] # as torch has it
    if version < (2, 24):
        return f"it is NCCL {'.'.join(map(str, version))}"
    return f"a GPU has {'.'.join(map(str, capability))}" if capability < (9, 0) else None


class View(Record, frozen=True, kw_only=True):
    """GPUs that one rank's process sees.

    host: name of its host.
    gpu: UUID of its own GPU (None: unknown).
    address: PCI address of its own GPU (None: unknown).
    names: UUID of each visible GPU → its name in this process, such as ``cuda:1``.
    access: UUIDs of the GPUs to which its own has peer access.
    """

    host: str
    gpu: str | None
    address: str | None = None
    names: dict[str, str]
    access: tuple[str, ...]


def shared_gpu(views: Sequence[View]) -> str | None:
    """Error message if two ranks share a GPU, or None.

    GPUs without a unique name are left to NCCL, which itself refuses duplicates. Their index would not do: it is 0 in
    every process that sees only one.
    """
    places = [(view.host, view.gpu or view.address) for view in views]
    for rank, (host, gpu) in enumerate(places):
        first = places.index((host, gpu))
        if gpu and first != rank:
            gpus = len({place for place in places if place[0] == host})
            return (
                f"ranks {first} and {rank} share one GPU ({gpu} on host {host}), but NCCL needs one GPU per rank; the "
                f"ranks of this host use {gpus}: start at most that many"
            )
    return None


_STAGED_COPY, _DRIVER_COPY = "peer_copy_staged", "peer_copy_driver"


def view(host: str, own: CudaDevice) -> View:
    """The view of this process."""
    uuids = {index: uuid for index in range(torch.cuda.device_count()) if (uuid := uuid_at(index)) is not None}
    access = tuple(
        uuid
        for index, uuid in uuids.items()
        if index != own.index and torch.cuda.can_device_access_peer(own.index, index)
    )
    names = {uuid: f"cuda:{index}" for index, uuid in uuids.items()}
    return View(host=host, gpu=own.uuid, address=own.address, names=names, access=access)


def name_of(views: Sequence[View], rank: int, peer: int) -> str | None:
    """Name of the GPU of rank ``peer`` in the process of ``rank``; None if that process does not see it."""
    gpu = views[peer].gpu
    return None if gpu is None or views[rank].host != views[peer].host else views[rank].names.get(gpu)


def why_no_pairs(op: Op, case: Case, views: Sequence[View]) -> str | None:
    """Reason why the GPUs of a group cannot copy to each other, or None; the same on every rank."""
    groups = split_world(case.group, case.ranks)
    every = ((group, pair) for group in groups for pair in permutations(group, 2))
    pairs = (pair for group, pair in every if case.root is None or group[case.root] in pair)
    return next((reason for pair in pairs if (reason := _why_not(op, *pair, views)) is not None), None)


def _why_not(op: Op, source: int, target: int, views: Sequence[View]) -> str | None:
    source_view, target_view = views[source], views[target]
    if source_view.host != target_view.host:
        return (
            f"ranks {source} and {target} are on different hosts, but peer copies are within a host; use one group per "
            "host (groups div:N with N ranks per host)"
        )
    if target_view.gpu is None:
        return f"torch does not report the UUID of the GPU of rank {target}, so rank {source} cannot find it"
    if target_view.gpu not in source_view.names:
        return (
            f"rank {source} sees only {counted(len(source_view.names), 'GPU')} and not that of rank {target}; show all "
            "GPUs to every rank (no --gpus-per-task, no --gpu-bind, no CUDA_VISIBLE_DEVICES per rank)"
        )
    if op.name == _STAGED_COPY or (target_view.gpu in source_view.access) == (op.name != _DRIVER_COPY):
        return None
    if op.name == _DRIVER_COPY:
        return f"the GPU of rank {source} has peer access to that of rank {target}; use peer_copy instead"
    return (
        f"the GPU of rank {source} has no peer access to that of rank {target}; use {_DRIVER_COPY} or "
        f"{_STAGED_COPY} instead"
    )
