"""The seam between the instrument and a communication library: small enough that a fake fits behind it."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import numpy.typing as npt

from busbw.backends.compiled_loop import Native
from busbw.errors import BackendError
from busbw.escape import say
from busbw.ops.base import Matrix, Op
from busbw.ops.groups import Ranks
from busbw.runs.records import JSON, BackendTraits, Case, CrossCheck
from busbw.system.device import Device, DeviceConditions

if TYPE_CHECKING:
    import torch

Vector = npt.NDArray[np.int64]
Call = Callable[[], object]

Wait = Callable[[], object]
Post = Callable[[], Wait]
"""Starts an operation and returns what waits for it; there is no other way to start one without finishing it."""


def do_nothing() -> None:
    """A call where there is nothing to do."""


Span = tuple[str, int, int]
"""A piece of a step: ``compute`` or the name of a call, when it began and when it ended, ns of a clock."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A step of training taken apart: the whole of it, the same without what is sent, and what is sent without the
    rest. All ranks call them together, and ``prepare`` before each, outside of its time.

    steps: how many of them the three are. gaps: as in ``records.StepParts``.
    timeline: takes the step once more and says what it does by the clock that it is given.
    profile: takes it once more, and returns the trace that the library's own profiler writes.
    sent: op, ranks of the group and S → calls of this rank.
    memory: bytes at the peak, of weights, and of gradients, on this rank; None: not measured. The rest as in
    ``records.StepParts``.
    """

    prepare: Call
    step: Call
    compute: Call
    communicate: Call
    timeline: Callable[[Callable[[], int]], list[Span]]
    profile: Callable[[], str]
    sent: dict[tuple[str, int, int], int]
    memory: tuple[int, int, int] | None
    parameters: int
    flop: int
    tokens: int
    dropped: int
    steps: int = 1
    gaps: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation bound to its buffers: ``call`` returns when this rank has finished it, ``post`` starts it and
    returns what finishes it (None: the library cannot do the two apart). Both raise what the backend ``raises``. On a
    device, finished means that nothing which is handed over later runs before it has.

    ``native`` is what ``call`` does, for a compiled loop that makes rows of it (None: only Python can call it).
    ``free`` gives back what the library holds for this operation, once it will not be called any more. ``wrong`` counts
    the elements that are not what the last call had to leave, where the layout of the buffers does not say it (None: it
    does). ``prepare`` is done before every call that is checked or sampled, outside of its time and before the ranks
    come together; it raises as the call does (None: nothing). Of several
    sets of buffers only the first one's is asked, and once for all calls of a sample: what has to be prepared for each
    call says so (``Op.fresh``, ``Op.stores``), and has one set. ``cross_check`` has another tool do the same, and gives
    it up after so many seconds.

    ``buffers`` are those that it sends from and receives into, where they have to be elsewhere than those that it was
    given: in memory of the host, or of another device (None: those that it was given).

    ``parts`` takes a step of training apart, once its samples are taken; all ranks call it (None: it is no such step).
    """

    call: Call
    post: Post | None = None
    native: Native | None = None
    free: Call = do_nothing
    wrong: Callable[[], int] | None = None
    prepare: Call | None = None
    cross_check: Callable[[float], CrossCheck | None] | None = None
    buffers: "tuple[torch.Tensor, torch.Tensor] | None" = None
    parts: Callable[[], Parts] | None = None


def _end_here(error: Exception) -> None:
    say(error)
    os._exit(1)


@dataclass(frozen=True, slots=True)
class World:
    """This rank's place among the others, as the launcher stated it.

    ``store`` is the host and port of a key-value store that the launcher keeps (None: the launcher's own
    environment says how to meet). ``timeout_seconds`` bounds every wait for another rank. ``local_size`` is how many
    ranks this host has, ``node`` its number (None: not stated). ``folder`` is where operations on storage make their
    files (None: the plan has none of them). ``key`` is what the ranks of this launch sign with on the store.

    A backend whose calls never end by themselves watches them from a thread and calls ``lost`` when this rank has got
    nowhere for the timeout, and for ``batch_seconds``, what it may measure without a word with the others, on top. The
    rank is still in that call and cannot be called back: ``lost`` says why and ends the process.
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

    ``raises`` is what bound operations raise as they are, BackendError among them: catching and renaming is done around
    a whole loop, so that there is nothing but the library's call in the timed region; ``explain`` puts such an error
    into words.

    ``device`` is what its operations run on when that is not the processor of the host: bound calls then hand their
    work over and return, waiting makes the device's stream wait, and ``device.synchronise`` is when it is finished.
    """

    rank: int
    size: int
    raises: tuple[type[Exception], ...]
    device: Device | None

    def explain(self, error: Exception) -> str:
        """What ``error`` says, in one line."""

    def refuse(self, op: Op, case: Case) -> str | None:
        """Why this backend cannot run ``case``; None when it can."""

    def allocate(self, count: int, dtype: str) -> "torch.Tensor":
        """A new 1-D buffer of ``count`` elements on the device of the backend, its pages touched by this rank."""

    def use_groups(self, groups: tuple[Ranks, ...]) -> None:
        """Make the groups that ``bind`` will be asked for. All ranks of the world call it, with the same groups."""

    def bind(
        self, op: Op, case: Case, group: Ranks, send: "torch.Tensor", receive: "torch.Tensor", traffic: Matrix
    ) -> Operation:
        """``op`` over ``group`` with these buffers, prepared as far as can be."""

    def barrier(self) -> None:
        """Return when every rank of the world has come."""

    def reduce(self, values: Vector, how: Literal["max", "sum"], *, wary: bool = False) -> Vector:
        """Element-wise over all ranks, apart from the traffic that is measured; every rank gets the result.

        ``wary``: this rank has just seen an operation fail and does not know whether the world still stands. It waits
        no longer than until another one gives up (``fail``): who waits on a second time is taken for lost.
        """

    def send(self, to: int, values: Sequence[int]) -> None:
        """Send ``values`` to a rank, apart from the traffic that is measured."""

    def receive(self, source: int, count: int) -> Vector:
        """Wait for ``count`` values of a rank."""

    def swap(self, to: int, source: int) -> None:
        """Tell rank ``to`` that this rank is here, and wait for the same from rank ``source``."""

    def share(self, text: str) -> list[str]:
        """Every rank's text, by rank, at every rank."""

    def conditions(self) -> DeviceConditions | None:
        """How the GPU of this rank stands, whoever times its work; None where it has none, or nobody tells."""

    def moved_factor(self, op: Op) -> float:
        """How many times the least possible bytes this library is known to move for ``op`` (1 when it is optimal)."""

    def fail(self, text: str) -> dict[int, str]:
        """Tell the others that this rank failed, and return what every rank that still answers has to say."""

    def close(self) -> None:
        """Leave the world. Never waits for a rank that is gone."""


@dataclass(frozen=True, slots=True)
class BackendRow:
    """A row of the table of backends. ``missing`` says why it cannot run on this machine (None: it can), ``places`` how
    many ranks have a device of their own here (None: any number). ``started_by`` is what has to start its ranks: any
    launcher, or one that speaks to the library. ``packages`` are those of pip that it is made of, as far as they are
    installed. ``facts`` is what the library says of itself once it is open, by its name.
    ``native``: what it binds can be called by a compiled loop. ``traits`` is stored with a run for its analysis.

    ``open`` is called on every rank and returns when the world has formed. Raises LaunchError when it does not.
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
    facts: Callable[[], dict[str, JSON]] = dict
    native: bool = False


@contextmanager
def no_longer_than(seconds: float, otherwise: Callable[[], None]) -> Iterator[None]:
    """Call ``otherwise``, from another thread, when what is done meanwhile takes longer; it must let threads run."""
    timer = threading.Timer(seconds, otherwise)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def explained(backend: Backend) -> Iterator[None]:
    """What ``backend`` raises becomes BackendError, in its words."""
    try:
        yield
    except backend.raises as error:
        raise BackendError(backend.explain(error)) from error


def of_every_rank(backend: Backend, mine: Sequence[int]) -> Vector:
    """Numbers of every rank, at every rank: ranks × as many as each brings. Raises BackendError."""
    table = np.zeros((backend.size, len(mine)), dtype=np.int64)
    table[backend.rank] = mine
    return backend.reduce(table.reshape(-1), "sum").reshape(table.shape)
