"""torch.distributed: the Gloo backend, and the calls that any backend of torch.distributed shares."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist

from busbw.backends.base import Operation, Vector, Wait, World
from busbw.devices import Device
from busbw.errors import BackendError, LaunchError
from busbw.ops.base import Matrix, Op
from busbw.ops.data import TORCH_DTYPES
from busbw.ops.groups import Ranks, split_world
from busbw.records import Case

_FAILED_KEY = "busbw/failed/{rank}"
_ANSWER_GRACE_SECONDS = 3.0
_ANSWER_POLL_SECONDS = 0.05

_BLOCKS_IN_RANK_ORDER = {"all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "gather", "scatter"}
"""Ops whose blocks lie in the order of the ranks of the group, which torch 2.4 always sorts."""

_REDUCTIONS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "product": dist.ReduceOp.PRODUCT,
}

# torch 2.13 renamed these and warns about the old names; torch 2.4 knows only the old ones.
_ALL_GATHER: Callable[..., Any] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_REDUCE_SCATTER: Callable[..., Any] = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


@dataclass(frozen=True, slots=True)
class _Bound:
    """What a call is made of: ``group`` in global ranks, ``me`` this rank's place in it."""

    case: Case
    group: Ranks
    me: int
    process_group: dist.ProcessGroup | None
    send: torch.Tensor
    receive: torch.Tensor
    traffic: Matrix

    @property
    def root(self) -> int:
        return self.group[self.case.root or 0]

    @property
    def redop(self) -> Any:  # noqa: ANN401 - torch.distributed's ReduceOp has no usable type
        return _REDUCTIONS[self.case.redop or "sum"]


def _split(function: Callable[..., Any], *arguments: Any, **options: Any) -> Operation:  # noqa: ANN401 - torch's own
    """A collective of torch.distributed, at once or posted; whatever can be bound is bound before the first call."""
    start = partial(function, *arguments, **options, async_op=True)

    def post() -> Wait:
        work = start()
        return _nothing if work is None else work.wait  # None: this rank is not in the group

    return Operation(partial(function, *arguments, **options), post)


def _nothing() -> None:
    pass


def _all_reduce(bound: _Bound) -> Operation:
    return _split(dist.all_reduce, bound.receive, bound.redop, group=bound.process_group)


def _all_gather(bound: _Bound) -> Operation:
    return _split(_ALL_GATHER, bound.receive, bound.send, group=bound.process_group)


def _reduce_scatter(bound: _Bound) -> Operation:
    return _split(_REDUCE_SCATTER, bound.receive, bound.send, bound.redop, group=bound.process_group)


def _all_to_all(bound: _Bound) -> Operation:
    return _split(dist.all_to_all_single, bound.receive, bound.send, group=bound.process_group)


def _all_to_all_v(bound: _Bound) -> Operation:
    incoming = [row[bound.me] for row in bound.traffic]
    outgoing = list(bound.traffic[bound.me])
    return _split(dist.all_to_all_single, bound.receive, bound.send, incoming, outgoing, group=bound.process_group)


def _broadcast(bound: _Bound) -> Operation:
    return _split(dist.broadcast, bound.receive, bound.root, group=bound.process_group)


def _reduce(bound: _Bound) -> Operation:
    # Also on the root the send buffer is the one that is reduced into: receive is a view of it.
    return _split(dist.reduce, bound.send, bound.root, bound.redop, group=bound.process_group)


def _gather(bound: _Bound) -> Operation:
    blocks = _blocks(bound.receive, bound) if bound.group[bound.me] == bound.root else None
    return _split(dist.gather, bound.send, blocks, dst=bound.root, group=bound.process_group)


def _scatter(bound: _Bound) -> Operation:
    blocks = _blocks(bound.send, bound) if bound.group[bound.me] == bound.root else None
    return _split(dist.scatter, bound.receive, blocks, src=bound.root, group=bound.process_group)


def _blocks(buffer: torch.Tensor, bound: _Bound) -> list[torch.Tensor]:
    return list(buffer.chunk(len(bound.group)))


def _barrier(bound: _Bound) -> Operation:
    return _split(dist.barrier, group=bound.process_group)


def _send_recv(bound: _Bound) -> Operation:
    after = bound.group[(bound.me + 1) % len(bound.group)]
    before = bound.group[(bound.me - 1) % len(bound.group)]
    return _exchange(bound.send, after, bound.receive, before)


def _pair_bidir(bound: _Bound) -> Operation:
    other = bound.group[1 - bound.me]
    return _exchange(bound.send, other, bound.receive, other)


def _exchange(send: torch.Tensor, to: int, receive: torch.Tensor, source: int) -> Operation:
    def post() -> Wait:
        # The receive is posted first: Gloo's sender waits for the note that it is there.
        coming, going = dist.irecv(receive, source), dist.isend(send, to)

        def wait() -> None:
            for work in (coming, going):
                if work is not None:
                    work.wait()

        return wait

    def call() -> None:
        post()()

    return Operation(call, post)


def _ping_pong(bound: _Bound) -> Operation:
    other = bound.group[1 - bound.me]
    if bound.me == 0:

        def there_and_back() -> None:
            dist.send(bound.send, other)
            dist.recv(bound.receive, other)

        return Operation(there_and_back)

    def back() -> None:
        dist.recv(bound.receive, other)
        dist.send(bound.send, other)

    return Operation(back)


def _pair_uni(bound: _Bound) -> Operation:
    other = bound.group[1 - bound.me]
    answer = torch.zeros(1, dtype=bound.send.dtype)
    if bound.me == 0:

        def there() -> None:
            dist.send(bound.send, other)
            dist.recv(answer, other)

        return Operation(there)

    def here() -> None:
        dist.recv(bound.receive, other)
        dist.send(answer, other)

    return Operation(here)


def _memory_copy(bound: _Bound) -> Operation:
    return Operation(partial(bound.receive.copy_, bound.send))


CALLS: dict[str, Callable[[_Bound], Operation]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "all_to_all_v": _all_to_all_v,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "gather": _gather,
    "scatter": _scatter,
    "barrier": _barrier,
    "send_recv": _send_recv,
    "ping_pong": _ping_pong,
    "pair_uni": _pair_uni,
    "pair_bidir": _pair_bidir,
    "pair_matrix": _pair_uni,
    "memory_copy": _memory_copy,
}


_IN_ONE_PIECE = {"ping_pong", "pair_uni", "pair_matrix", "memory_copy"}
"""Calls that are several steps in a row: there is nothing to be posted and waited for later."""


class GlooBackend:
    """CPU tensors over Gloo. Control traffic runs in a process group of its own."""

    raises: tuple[type[Exception], ...] = (RuntimeError, BackendError)
    device: Device | None = None

    def __init__(self, world: World) -> None:
        self.rank = world.rank
        self.size = world.size
        torch.set_num_threads(1)  # ranks share the cores; Gloo's own threads do the sending
        timeout = timedelta(seconds=world.timeout_seconds)
        try:
            self._store = _store(world)
            dist.init_process_group(
                "gloo",
                store=dist.PrefixStore("busbw", self._store),
                rank=world.rank,
                world_size=world.size,
                timeout=timeout,
            )
            self._control = dist.new_group(backend="gloo", timeout=timeout)
        except (RuntimeError, ValueError, OSError) as error:
            message = f"rank {world.rank} of {world.size} could not join the world: {_first_line(error)}"
            raise LaunchError(message) from error
        self._everyone = tuple(range(world.size))
        self._timeout = timeout
        self._here = torch.zeros(2, dtype=torch.uint8)
        self._groups: dict[Ranks, dist.ProcessGroup | None] = {self._everyone: None}

    def explain(self, error: Exception) -> str:
        """What torch says, in one line."""
        return _first_line(error)

    def refuse(self, op: Op, case: Case) -> str | None:
        """Why Gloo cannot run ``case``."""
        if op.name not in CALLS:
            return f"torch.distributed has no {op.name}"
        if case.redop == "avg" and case.dtype is not None and not TORCH_DTYPES[case.dtype].is_floating_point:
            return f"Gloo averages by dividing in place, which {case.dtype} cannot hold"
        if case.mode == "overlap" and op.name in _IN_ONE_PIECE:
            return f"{op.name} is several blocking steps, which cannot be posted first and waited for later"
        groups = split_world(case.group, case.ranks)
        if op.name == "send_recv" and any(len(group) == 1 for group in groups):
            return "Gloo has no connection of a rank to itself, which a ring of one rank needs"
        if op.name in _BLOCKS_IN_RANK_ORDER and any(group != tuple(sorted(group)) for group in groups):
            return (
                f"torch.distributed puts the ranks of a group in ascending order; groups {case.group} asks for another"
            )
        return None

    def allocate(self, count: int, dtype: str) -> torch.Tensor:
        """A zeroed CPU tensor: writing the zeros is this rank's first touch of its pages."""
        try:
            return torch.empty(count, dtype=TORCH_DTYPES[dtype]).zero_()
        except RuntimeError as error:
            raise BackendError(_first_line(error)) from error

    def use_groups(self, groups: tuple[Ranks, ...]) -> None:
        """Make the process groups that are not there yet; torch wants every rank of the world in this."""
        for group in groups:
            if group in self._groups:
                continue
            try:
                self._groups[group] = dist.new_group(list(group), timeout=self._timeout, backend="gloo")
            except RuntimeError as error:
                raise BackendError(_first_line(error)) from error

    def bind(
        self, op: Op, case: Case, group: Ranks, send: torch.Tensor, receive: torch.Tensor, traffic: Matrix
    ) -> Operation:
        """``op`` bound to its buffers (see Backend.bind)."""
        process_group = None if op.members != "all" else self._groups[group]
        return CALLS[op.name](_Bound(case, group, group.index(self.rank), process_group, send, receive, traffic))

    def barrier(self) -> None:
        """Gloo's barrier over the control group."""
        try:
            dist.barrier(group=self._control)
        except RuntimeError as error:
            raise BackendError(_first_line(error)) from error

    def reduce(self, values: Vector, how: Literal["max", "sum"]) -> Vector:
        """All-reduce of int64 values over the control group."""
        buffer = torch.from_numpy(np.array(values, dtype=np.int64))
        try:
            dist.all_reduce(buffer, _REDUCTIONS[how], group=self._control)
        except RuntimeError as error:
            raise BackendError(_first_line(error)) from error
        result: Vector = buffer.numpy()
        return result

    def send(self, to: int, values: Sequence[int]) -> None:
        """A message over the control group."""
        try:
            dist.send(torch.tensor(values, dtype=torch.int64), to, group=self._control)
        except RuntimeError as error:
            raise BackendError(_first_line(error)) from error

    def receive(self, source: int, count: int) -> Vector:
        """A message over the control group."""
        buffer = torch.empty(count, dtype=torch.int64)
        try:
            dist.recv(buffer, source, group=self._control)
        except RuntimeError as error:
            raise BackendError(_first_line(error)) from error
        result: Vector = buffer.numpy()
        return result

    def swap(self, to: int, source: int) -> None:
        """One byte each way over the control group."""
        try:
            coming = dist.irecv(self._here[:1], source, group=self._control)
            going = dist.isend(self._here[1:], to, group=self._control)
            for work in (coming, going):
                if work is not None:
                    work.wait()
        except RuntimeError as error:
            raise BackendError(_first_line(error)) from error

    def share(self, text: str) -> list[str]:
        """All-gather of one text a rank over the control group."""
        mine = text.encode()
        longest = int(self.reduce(np.asarray([len(mine)], dtype=np.int64), "max")[0])
        # Not all_gather_object, which pickles. A zero byte ends a text; JSON and messages hold none.
        padded = torch.frombuffer(bytearray(mine.ljust(longest + 1, b"\0")), dtype=torch.uint8)
        texts = [torch.empty_like(padded) for _ in range(self.size)]
        try:
            dist.all_gather(texts, padded, group=self._control)
        except RuntimeError as error:
            raise BackendError(_first_line(error)) from error
        return [bytes(given.tolist()).rstrip(b"\0").decode(errors="replace") for given in texts]

    def moved_factor(self, op: Op) -> float:
        """ProcessGroupGloo's reduce_scatter clones the input, all-reduces all of it and keeps a slice."""
        return 2.0 if op.name == "reduce_scatter" else 1.0

    def fail(self, text: str) -> dict[int, str]:
        """Post ``text`` on the launcher's store and wait a moment for what the others post."""
        return answers(self._store, self.size, {self.rank: text})

    def close(self) -> None:
        """Drop the process groups."""
        try:
            dist.destroy_process_group()
        except RuntimeError as error:
            raise BackendError(_first_line(error)) from error


def _store(world: World) -> dist.Store:
    timeout = timedelta(seconds=world.timeout_seconds)
    if world.store is not None:
        host, port = world.store
        return dist.TCPStore(host, port, is_master=False, timeout=timeout)
    store, _, _ = next(dist.rendezvous("env://", world.rank, world.size, timeout=timeout))
    given: dist.Store = store
    return given


def answers(store: dist.Store, size: int, mine: dict[int, str]) -> dict[int, str]:
    """Post ``mine`` and collect what the ranks of a failed world say, until all have spoken or a grace is over."""
    heard = dict(mine)
    try:
        for rank, text in mine.items():
            store.set(_FAILED_KEY.format(rank=rank), text)
        deadline = time.monotonic() + _ANSWER_GRACE_SECONDS
        while len(heard) < size and time.monotonic() < deadline:
            for rank in set(range(size)) - set(heard):
                key = _FAILED_KEY.format(rank=rank)
                if store.check([key]):
                    heard[rank] = store.get(key).decode()
            time.sleep(_ANSWER_POLL_SECONDS)
    except (RuntimeError, OSError):
        # The store went down with whoever held it; what was heard until then is all there is.
        return heard
    return heard


def _first_line(error: Exception) -> str:
    """What a torch error says, without the path of its source file and without its advice."""
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    return re.sub(r"^\[[^\]]*\.cc:\d+\]\s*", "", lines[0]).partition(" This is typically ")[0]
