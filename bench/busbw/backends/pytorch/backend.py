"""torch.distributed: the base of its backends, and Gloo.

Control traffic always uses Gloo, in a separate process group.
"""

import os
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from threading import Thread
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist

from busbw.backends import no_interface
from busbw.backends.base import Vector, World, explained, no_longer_than
from busbw.backends.library import LibraryBackend
from busbw.backends.patterns import TORCH_DTYPES
from busbw.backends.pytorch import checkpoint
from busbw.backends.pytorch.calls import CALLS, exchange_all
from busbw.backends.pytorch.names import REDUCTIONS
from busbw.backends.pytorch.nccl_calls import IN_PLACE_ONLY
from busbw.backends.pytorch.training import step
from busbw.backends.scheduled import Exchange
from busbw.backends.side_channel import collect_reports, first_line, shut_connections, wait_warily
from busbw.errors import BackendError, BusbwError, LaunchError
from busbw.ops import MESSAGES
from busbw.ops.base import Op
from busbw.ops.groups import Ranks, split_world
from busbw.ops.settings import AlgorithmSettings
from busbw.runs.records import FLOAT8, Case
from busbw.system.device import Device


class TorchBackend(LibraryBackend):
    """Tensors over ``library``, one of torch's backends, on the CPU or on ``device``.

    Raises LaunchError if the ranks cannot join.
    """

    calls = CALLS

    def __init__(self, world: World, library: Literal["gloo", "nccl"], device: Device | None = None) -> None:
        super().__init__(world, device)
        self._library = library
        self._timeout = timeout = timedelta(seconds=world.timeout_seconds)
        try:
            with _connecting(world):
                self._store = store_of(world)
                self._store_port = world.store[1] if world.store else int(os.environ.get("MASTER_PORT", "0"))
                dist.init_process_group(
                    library,
                    store=dist.PrefixStore("busbw", self._store),
                    rank=world.rank,
                    world_size=world.size,
                    timeout=timeout,
                )
                self._control = dist.new_group(backend="gloo", timeout=timeout)
        except (RuntimeError, ValueError, OSError) as error:
            advice = _gloo_advice() if no_interface() or "connectFullMesh" in str(error) else ""
            raise LaunchError(
                f"rank {world.rank} of {world.size} could not join the world: {first_line(error)}{advice}"
            ) from error
        self._here = torch.zeros(2, dtype=torch.uint8)
        self._groups: dict[Ranks, dist.ProcessGroup | None] = {tuple(range(world.size)): None}

    def progressed(self) -> None:
        """Called before each message of control traffic."""

    def refuse_call(self, op: Op, case: Case) -> str | None:
        """Reason why torch.distributed has no call for ``op`` in this ``case``, or None."""
        if op.stores or op.splits:
            return checkpoint.LIMITS.refuse(case) if op.stores else step.refuse(case)
        if op.name not in CALLS:
            return f"torch.distributed has no {op.name}"
        if is_apart(op, case) and (reason := self.not_apart(case)) is not None:
            return f"torch.distributed has no out-of-place {op.name}; {reason}"
        if case.mode == "persistent":
            return "torch.distributed has no persistent calls; use backend mpi"
        groups = split_world(case.group, case.ranks)
        if op.name in MESSAGES and any(len(group) == 1 for group in groups):
            return "torch.distributed cannot send from a rank to itself, which a group of one rank needs"
        # torch 2.4 always sorts the ranks of a group.
        ordered = not op.in_blocks or all(group == tuple(sorted(group)) for group in groups)
        another = f"groups {case.group} needs another order"
        return None if ordered else f"torch.distributed sorts the ranks of a group in ascending order; {another}"

    def not_apart(self, case: Case) -> str | None:
        """Reason why this backend has no call of its own for ``case``, which ``is_apart``, or None."""
        return f"use backend {'nccl' if case.op == 'broadcast' else 'nccl or mpi'}"

    def use_groups(self, groups: tuple[Ranks, ...]) -> None:
        """Create missing process groups; torch requires every rank of the world to take part."""
        self.progressed()
        for group in groups:
            if group in self._groups:
                continue
            with explained(self), _connecting(self._world):
                self._groups[group] = dist.new_group(list(group), timeout=self._timeout, backend=self._library)

    def exchange(self, case: Case) -> Exchange:  # noqa: ARG002 - a tensor has its own dtype
        """Exchange messages by torch.distributed's point-to-point calls."""
        return exchange_all

    def comm(self, op: Op, group: Ranks) -> dist.ProcessGroup | None:
        """The process group; None if all ranks communicate."""
        # Hosts write the files of ops that store, and no other control traffic is sent meanwhile.
        if op.members != "all":
            return None
        ranks: dist.ProcessGroup | None = self._control if op.stores else self._groups[group]
        return ranks

    def barrier(self) -> None:
        """Gloo's barrier on the control group."""
        self.progressed()
        dist.barrier(group=self._control)

    def reduce(self, values: Vector, how: Literal["max", "sum"], *, wary: bool = False) -> Vector:
        """All-reduce of int64 values on the control group."""
        self.progressed()
        buffer = torch.from_numpy(np.array(values, dtype=np.int64))
        all_reduce = partial(self._doubled if buffer.nbytes <= _MOST_DOUBLED_BYTES else self._by_gloo, buffer, how)
        with explained(self):
            result: Vector = (self._warily(all_reduce) if wary else all_reduce()).numpy()
        return result

    def _warily(self, all_reduce: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The result of ``all_reduce``. Raises BackendError as soon as any rank has given up."""
        result: Future[torch.Tensor] = Future()

        def run() -> None:
            try:
                result.set_result(all_reduce())
            except RuntimeError as error:
                result.set_exception(error)

        Thread(target=run, name="busbw-reduce", daemon=True).start()
        wait_warily(result.done, self._store, self.size, self._world.key)
        return result.result()

    def _by_gloo(self, buffer: torch.Tensor, how: Literal["max", "sum"]) -> torch.Tensor:
        dist.all_reduce(buffer, REDUCTIONS[how], group=self._control)
        return buffer

    def _doubled(self, buffer: torch.Tensor, how: Literal["max", "sum"]) -> torch.Tensor:
        """All-reduce by recursive doubling (Thakur et al. 2005): ⌈lg n⌉ messages one after the other, where Gloo's ring
        has 2(n − 1), each of which waits for a note that it is expected. Here all receives are posted before.

        Ranks beyond a power of two hand their values to a partner below it.
        """
        rank, whole = self.rank, 1 << (self.size.bit_length() - 1)
        combine = torch.maximum if how == "max" else torch.add
        if rank >= whole:
            result = torch.empty_like(buffer)
            coming = dist.irecv(result, rank - whole, group=self._control)
            dist.send(buffer, rank - whole, group=self._control)
            _wait_for(coming)
            return result
        partners = [rank ^ (1 << step) for step in range(whole.bit_length() - 1)]
        received = [torch.empty_like(buffer) for _ in partners]
        expected = [
            dist.irecv(into, partner, group=self._control) for into, partner in zip(received, partners, strict=True)
        ]
        if rank + whole < self.size:
            beyond = torch.empty_like(buffer)
            dist.recv(beyond, rank + whole, group=self._control)
            buffer = combine(buffer, beyond)
        for into, partner, coming in zip(received, partners, expected, strict=True):
            _wait_for(dist.isend(buffer, partner, group=self._control), coming)
            buffer = combine(buffer, into)
        if rank + whole < self.size:
            dist.send(buffer, rank + whole, group=self._control)
        return buffer

    def send(self, to: int, values: Sequence[int]) -> None:
        """Send on the control group."""
        self.progressed()
        dist.send(torch.tensor(values, dtype=torch.int64), to, group=self._control)

    def receive(self, source: int, count: int) -> Vector:
        """Receive on the control group."""
        self.progressed()
        buffer = torch.empty(count, dtype=torch.int64)
        dist.recv(buffer, source, group=self._control)
        result: Vector = buffer.numpy()
        return result

    def swap(self, to: int, source: int) -> None:
        """Exchange one byte in both directions on the control group."""
        self.progressed()
        coming = dist.irecv(self._here[:1], source, group=self._control)
        going = dist.isend(self._here[1:], to, group=self._control)
        _wait_for(coming, going)

    def fail(self, text: str) -> dict[int, str]:
        """Post ``text`` on the launcher's store, close all other connections, and collect the other ranks' reports."""
        return collect_reports(
            self._store, self.size, {self.rank: text}, lambda: shut_connections(self._store_port), self._world.key
        )

    def close(self) -> None:
        """Destroy the process groups before the interpreter exits.

        Their threads end with the last reference. A thread that still releases a tensor while the interpreter shuts
        down would abort the process (SIGABRT).
        """
        with explained(self), _time_limited(self._world, BackendError, "the process groups have not shut down"):
            dist.destroy_process_group()
            self._groups.clear()
            del self._control


def is_apart(op: Op, case: Case) -> bool:
    """Whether ``case`` is from one buffer into another and torch has a call for one only.

    torch's own calls with two, such as _reduce_oop, are in C++ alone.
    """
    return op.name in IN_PLACE_ONLY and not case.in_place and not isinstance(case.settings, AlgorithmSettings)


class GlooBackend(TorchBackend):
    """CPU tensors over Gloo."""

    def __init__(self, world: World) -> None:
        torch.set_num_threads(1)  # ranks share the cores, and Gloo has its own threads for communication
        super().__init__(world, "gloo")

    def refuse(self, op: Op, case: Case) -> str | None:
        """Reason why Gloo cannot run ``case``, or None."""
        if case.redop == "avg" and case.dtype is not None and not TORCH_DTYPES[case.dtype].is_floating_point:
            return f"Gloo's avg divides in place, which {case.dtype} does not support; use a floating-point dtype"
        if op.reduces and case.dtype in FLOAT8:
            return f"Gloo cannot reduce {case.dtype}, only move it"
        return super().refuse(op, case)

    def traffic_factor(self, op: Op) -> float:
        """2 for reduce_scatter: ProcessGroupGloo clones the input, all-reduces all of it and keeps a slice."""
        return 2.0 if op.name == "reduce_scatter" else 1.0


def _wait_for(*works: dist.Work | None) -> None:
    for work in works:
        if work is not None:
            work.wait()


_MOST_DOUBLED_BYTES = 64 << 10
"""Longest vector of control traffic that recursive doubling reduces: it sends ⌈lg n⌉ times the vector, a ring twice."""

_TIMEOUTS = 2
"""Timeouts that ranks may take to connect or to shut down; Gloo itself waits for five, for each of its groups."""


def _time_limited(world: World, kind: type[BusbwError], problem: str, advice: str = "") -> AbstractContextManager[None]:
    """Give up with an error if the block takes too long; some of the other ranks may have failed."""
    seconds = _TIMEOUTS * world.timeout_seconds
    return no_longer_than(seconds, lambda: world.lost(kind(f"{problem} within {seconds:g} s{advice}")))


def _connecting(world: World) -> AbstractContextManager[None]:
    """Give up if the other ranks do not connect in time after the rendezvous."""
    return _time_limited(world, LaunchError, "not all other ranks have connected", _gloo_advice())


def _gloo_advice() -> str:
    """Advice if Gloo cannot connect the ranks after their rendezvous, which may have used another interface."""
    if absent := no_interface():
        return f"; {absent}"
    named = os.environ.get("GLOO_SOCKET_IFNAME")
    by = named or "the interface that this host's own name resolves to"
    return f"; Gloo uses {by} on {socket.gethostname()}: set GLOO_SOCKET_IFNAME to the interface to the other hosts"


def store_of(world: World) -> dist.Store:
    """A new connection to the launcher's key-value store."""
    timeout = timedelta(seconds=world.timeout_seconds)
    if world.store is not None:
        host, port = world.store
        return dist.TCPStore(host, port, is_master=False, timeout=timeout)
    store, _, _ = next(dist.rendezvous("env://", world.rank, world.size, timeout=timeout))
    given: dist.Store = store
    return given
