"""The interface between the instrument and a communication library, small enough to be implemented by a fake."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from busbw.backends.compiled_loop import Native
from busbw.errors import BackendError
from busbw.escape import say
from busbw.ops.base import Matrix, Op
from busbw.ops.groups import Ranks
from busbw.runs.decoding import decode
from busbw.runs.facts import HostFacts
from busbw.runs.records import BackendTraits, Cache, Case, CrossCheck, Mode, NcclChoice, Sync
from busbw.system.device import Device, DeviceConditions

if TYPE_CHECKING:
    import torch

    from busbw.backends.parts import Parts


_Record = TypeVar("_Record")
_MOST_AT_ONCE: Final = 1024
"""Bytes of a broadcast that share a message with its length."""

Vector = npt.NDArray[np.int64]
Call = Callable[[], object]

Wait = Callable[[], object]
Post = Callable[[], Wait]
"""Starts a nonblocking operation and returns the call that waits for it."""


def do_nothing() -> None:
    """A call without any effect."""


def in_order(*calls: Call) -> Call:
    """One call that makes ``calls`` in order."""

    def call_all() -> None:
        for call in calls:
            call()

    return call_all


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation bound to its buffers. ``call`` and ``post`` raise the backend's errors.

    call: returns when this rank has completed the operation. On a device: when later work is ordered after it.
    post: starts the operation and returns its wait (None: the operation has no nonblocking form).
    native: the same call for the compiled loop (None: only Python can call it).
    free: releases the library's resources after the last call.
    wrong: counts wrong elements after a call (None: the layout of the buffers determines the expected data).
    prepare: untimed work before every checked call and every sample, before the ranks synchronise (None: nothing).
        Only the first buffer set's is called, once per sample. Ops that need it before each call have one buffer set
        and one call per sample (``Op.fresh``, ``Op.stores``).
    connect: collective work that the calls need, made before the checked ones; only the first does anything. Not in
        ``bind``, because a rank that cannot bind would leave the others waiting.
    buffers: send and receive buffers if the operation had to replace the given ones, for example by memory of the host
        or of another device (None: the given ones).
    parts: prepares separate runs of the parts of the call, after sampling; collective (None: it has no parts).
    choice: makes the call once more, after sampling, and returns what the library chose for it (None: it cannot tell).
    signature: after a call, what has to be equal for results to be equal, and the hash of the results (None: they need
        not be equal on other ranks).
    other_tool: runs another tool on the same operation, after sampling, with a time limit in seconds (None: there is
        none); returns None if the tool cannot.
    """

    call: Call
    post: Post | None = None
    native: Native | None = None
    free: Call = do_nothing
    wrong: Callable[[], int] | None = None
    prepare: Call | None = None
    connect: Call = do_nothing
    buffers: "tuple[torch.Tensor, torch.Tensor] | None" = None
    parts: "Callable[[], Parts] | None" = None
    choice: Callable[[], NcclChoice | None] | None = None
    signature: Callable[[], tuple[str, str]] | None = None
    other_tool: Callable[[float], CrossCheck | None] | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """Inputs from which an operation is bound.

    send, receive: buffers of this rank.
    device: device of the buffers (None: host memory).
    folder: where files are created (None: the plan has no path).
    peers: this process's name of the device of each rank of the group (None: it cannot allocate memory there).
    local_rank: index of this rank on its host.
    group: global ranks of the group.
    me: index of this rank in the group.
    traffic: traffic of an uneven op, elements.
    comm: the library's handle on the ranks that communicate.
    """

    case: Case
    send: "torch.Tensor"
    receive: "torch.Tensor"
    device: Device | None = None
    folder: Path | None = None
    peers: tuple[str | None, ...] = ()
    local_rank: int = 0
    group: Ranks = (0,)
    me: int = 0
    traffic: Matrix = ()
    comm: Any = None

    @property
    def path(self) -> Path:
        """Where files are created. Raises BackendError if the plan has no path."""
        if self.folder is None:
            raise BackendError(f"{self.case.op} needs a folder: give --path DIR, or 'path' in the plan")
        return self.folder

    @property
    def root(self) -> int:
        """Index of the root in the group."""
        return self.case.root or 0

    @property
    def redop(self) -> str:
        """Name of the reduction."""
        return self.case.redop or "sum"


@dataclass(frozen=True, slots=True)
class Limits:
    """Values of a case that a kind of operation supports (None: any)."""

    modes: tuple[Mode, ...] | None = None
    caches: tuple[Cache, ...] | None = None
    syncs: tuple[Sync, ...] | None = None
    dtypes: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    devices: tuple[str, ...] | None = None
    pre_enqueue: bool = False

    def refuse(self, case: Case) -> str | None:
        """Reason why ``case`` is beyond these limits, or None."""
        for name, value, supported in (
            ("mode", case.mode, self.modes),
            ("cache", case.cache, self.caches),
            ("sync", case.sync, self.syncs),
            ("dtype", case.dtype, self.dtypes),
            ("groups", case.group, self.groups),
            ("device", case.device, self.devices),
        ):
            if supported is not None and value not in supported:
                return f"{case.op} supports {name} {' or '.join(supported)}, not {value}"
        return f"{case.op} cannot be pre-enqueued" if case.pre_enqueue and not self.pre_enqueue else None


ALONE: Final[tuple[Mode, ...]] = ("isolated", "barriers", "pipelined", "graph")
"""Modes of operations that do not communicate."""


@dataclass(frozen=True, slots=True)
class Local:
    """How a local operation is bound.

    bind: prepares the operation, or raises BackendError. The operation raises BackendError or torch's RuntimeError.
    limits: what it supports.
    why_not: another reason why a case cannot run, or None; the same on every rank.
    """

    bind: Callable[[Bound], Operation]
    limits: Limits
    why_not: Callable[[Case], str | None] = lambda _case: None

    def refuse(self, case: Case) -> str | None:
        """Reason why ``case`` cannot run, or None."""
        return self.limits.refuse(case) or self.why_not(case)


def _end_here(error: Exception) -> None:
    say(error)
    os._exit(1)


@dataclass(frozen=True, slots=True)
class World:
    """This rank's place among all ranks, as stated by the launcher.

    rank, size, local_rank: rank, number of ranks, and rank within the host.
    launcher: name of the launcher.
    timeout_seconds: limit of every wait for another rank.
    store: host and port of the launcher's key-value store (None: taken from the launcher's environment variables).
    folder: where storage operations create their files (None: the plan has no storage operations).
    local_size: ranks on this host (None: unknown).
    node: number of this host (None: unknown).
    batch_seconds: longest time between two control messages while measuring.
    key: key with which the ranks of this launch sign messages on the store.
    lost: reports the error and ends the process. A backend whose calls may block forever runs a watchdog thread, which
        calls it after ``timeout_seconds + batch_seconds`` without progress.
    """

    rank: int
    size: int
    local_rank: int
    launcher: str
    timeout_seconds: float
    store: tuple[str, int] | None = None
    folder: Path | None = None
    local_size: int | None = None
    node: int | None = None
    batch_seconds: float = 0.0
    key: bytes = b""
    lost: Callable[[Exception], None] = _end_here


class Backend(Protocol):
    """One rank's handle on a library. Every method but ``refuse`` and ``bind`` may raise BackendError.

    raises: exceptions that bound operations, ``barrier`` and messages (send, receive, swap) raise unchanged,
        including BackendError. They are converted outside the timed loop (``explained``), so that the timed region and
        its start contain only the library's call.
    device: device that operations run on (None: the CPU). Bound calls then enqueue work and return, waits block only
        the stream, and ``device.synchronise`` completes the work.
    """

    rank: int
    size: int
    raises: tuple[type[Exception], ...]
    device: Device | None

    def explain(self, error: Exception) -> str:
        """The message of ``error`` in one line."""

    def refuse(self, op: Op, case: Case) -> str | None:
        """Reason why this backend cannot run ``case``, or None."""

    def allocate(self, count: int, dtype: str) -> "torch.Tensor":
        """A new 1-D buffer of ``count`` elements on the device of the backend, its pages touched by this rank."""

    def use_groups(self, groups: tuple[Ranks, ...]) -> None:
        """Create the groups that ``bind`` will use. Collective over all ranks, with the same groups on each."""

    def bind(self, bound: Bound) -> Operation:
        """Bind ``op`` over ``group`` to these buffers, with as much preparation as possible."""

    def barrier(self) -> None:
        """Return when every rank of the world has entered."""

    def reduce(self, values: Vector, how: Literal["max", "sum"], *, wary: bool = False) -> Vector:
        """Element-wise all-reduce over all ranks, separate from the measured traffic.

        wary: an operation just failed on this rank, so others may be gone. The wait then ends as soon as another rank
        calls ``fail``; waiting through a second timeout would make the others consider this rank lost.
        """

    def send(self, to: int, values: Sequence[int]) -> None:
        """Send ``values`` to a rank, separate from the measured traffic."""

    def receive(self, source: int, count: int) -> Vector:
        """Receive ``count`` values from a rank."""

    def swap(self, to: int, source: int) -> None:
        """Send an empty message to rank ``to`` and wait for one from rank ``source``."""

    def share(self, text: str) -> list[str]:
        """Gather the text of every rank on every rank, in rank order."""

    def conditions(self) -> DeviceConditions | None:
        """State of this rank's GPU (clock, throttling); None without a GPU or without NVML."""

    def traffic_factor(self, op: Op) -> float:
        """Bytes that this library is known to move for ``op`` over the necessary bytes (1: optimal)."""

    def fail(self, text: str) -> dict[int, str]:
        """Report this rank's failure to the others; returns the report of every rank that still answers."""

    def close(self) -> None:
        """Leave the world. Never waits for a rank that has ended."""


@dataclass(frozen=True, slots=True)
class BackendRow:
    """A row of the table of backends.

    name, device, summary: name, ``cpu`` or ``cuda``, and description in one line.
    missing: reason why it cannot run on this machine (None: it can).
    open: joins the world on every rank; returns when it is complete, or raises LaunchError.
    traits: properties that are stored with a run for its analysis.
    packages: its pip packages; some may not be installed.
    places: how many ranks can have their own device here (None: any number on the CPU, else unknown).
    started_by: required launcher: any, or one that the library supports.
    facts: adds to the facts of this host what the library reports once it is open.
    native: whether the compiled loop can make its calls.
    """

    name: str
    device: str
    summary: str
    missing: Callable[[], str | None]
    open: Callable[[World], Backend]
    traits: BackendTraits
    packages: tuple[str, ...]
    places: Callable[[], int | None] = lambda: None
    started_by: Literal["anybody", "mpiexec"] = "anybody"
    facts: Callable[[HostFacts], HostFacts] = lambda host: host
    native: bool = False


@contextmanager
def no_longer_than(seconds: float, otherwise: Callable[[], None]) -> Iterator[None]:
    """Call ``otherwise`` from another thread if the body takes longer; the body must release the GIL."""
    timer = threading.Timer(seconds, otherwise)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def explained(backend: Backend) -> Iterator[None]:
    """Convert the errors of ``backend`` into BackendError with its explanation."""
    try:
        yield
    except backend.raises as error:
        raise BackendError(backend.explain(error)) from error


def records_of_every_rank(backend: Backend, mine: object, kind: type[_Record]) -> list[_Record]:
    """Gather ``mine`` of every rank on every rank, decoded as ``kind``. Raises BackendError."""
    texts = backend.share(msgspec.json.encode(mine).decode())
    return [decode(text, kind) for text in texts]


def broadcast(backend: Backend, text: str, *, flag: bool) -> tuple[str, bool]:
    """The ``text`` of rank 0 on every rank, and whether any rank has the ``flag``. Collective. Raises BackendError.

    A text of up to ``_MOST_AT_ONCE`` bytes takes one reduction, as it has no zero bytes at its end.
    """
    mine = text.encode() if backend.rank == 0 else b""
    head = np.frombuffer(mine[:_MOST_AT_ONCE].ljust(_MOST_AT_ONCE, b"\0"), dtype=np.int64)
    flags, length, *words = backend.reduce(np.asarray([flag, len(mine), *head], dtype=np.int64), "sum")
    whole = np.asarray(words, dtype=np.int64).tobytes()
    if length > _MOST_AT_ONCE:
        rest = mine[_MOST_AT_ONCE:].ljust(8 * (int(length - _MOST_AT_ONCE + 7) // 8), b"\0")
        whole += backend.reduce(np.frombuffer(rest, dtype=np.int64), "sum").tobytes()
    return whole[: int(length)].decode(), bool(flags)


def of_every_rank(backend: Backend, mine: Sequence[int]) -> Vector:
    """Gather ``mine`` of every rank on every rank: an array of ranks × values. Raises BackendError."""
    table = np.zeros((backend.size, len(mine)), dtype=np.int64)
    table[backend.rank] = mine
    return backend.reduce(table.reshape(-1), "sum").reshape(table.shape)
