"""MPI over host memory, through mpi4py: control traffic on a communicator of its own, and a watch over every wait.

No call of MPI ends by itself when another rank is gone or hangs. A thread therefore looks whether this rank still gets
on; when it has not for the timeout it tells the launcher, which ends the process: nothing waits for ever.
"""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist

from busbw.backends.base import Operation, Vector, World, explained
from busbw.backends.library import LibraryBackend
from busbw.backends.mpi.calls import CALLS, MOVED_ONLY, PREPARED, REDUCTIONS, Bound, exchange_all
from busbw.backends.mpi.info import first_words, library
from busbw.backends.mpi.init import in_words, initialise, meet_at_store, refuse_mixed_levels
from busbw.backends.mpi.native import MPI, address
from busbw.backends.scheduled import Exchange
from busbw.backends.side_channel import answers, wait_warily
from busbw.errors import BackendError, LaunchError
from busbw.ops.base import Matrix, Op, first_reason
from busbw.ops.groups import Ranks, split_world
from busbw.runs.records import Case

_LOOKS = 8
"""How often in a timeout the watch looks whether this rank gets on, within these bounds:"""
_LEAST_LOOK_SECONDS, _MOST_LOOK_SECONDS = 0.25, 5.0

_POLLING_SHARE, _ASLEEP = 0.02, 10
"""MPI waits by polling. A rank that has used less of a processor than this share is not waiting in MPI: it is the one
that the others wait for. In a library that sleeps every rank looks like that: after so many timeouts each one is lost.
"""


class MpiBackend(LibraryBackend):
    """Host memory over MPI. Raises LaunchError when the world that formed is not the one that was stated."""

    raises = (MPI.Exception, *LibraryBackend.raises)

    def __init__(self, world: World) -> None:
        torch.set_num_threads(1)  # ranks share the cores
        super().__init__(world)
        self._watch = _Watch(world.timeout_seconds + world.batch_seconds, world.lost)
        try:
            initialise(world.rank, world.size, world.local_size or world.size, world.launcher)
            everyone = MPI.COMM_WORLD
            for comm in (everyone, MPI.COMM_SELF):
                comm.Set_errhandler(MPI.ERRORS_RETURN)
            refuse_mixed_levels(everyone)
            self._control = everyone.Dup()
            self._measured = everyone.Dup()
            self._store = _store(world, self._control)
        except (MPI.Exception, RuntimeError, OSError) as error:
            raise LaunchError(
                f"rank {world.rank} of {world.size} could not join the world: {in_words(error)}"
            ) from error
        self._groups: dict[Ranks, MPI.Intracomm] = {tuple(range(world.size)): self._measured}

    def explain(self, error: Exception) -> str:
        """What MPI says, in one line."""
        return in_words(error)

    def refuse_call(self, op: Op, case: Case) -> str | None:
        """Why MPI has no such call."""
        prepares = PREPARED.get(op.name)
        return first_reason(
            (op.stores or op.splits, f"{op.name} is torch.distributed's, and needs a backend of it (gloo or nccl)"),
            (op.name not in CALLS, f"MPI has no {op.name}"),
            (
                case.mode == "persistent" and prepares is not None and address(prepares) is None,
                f"{first_words(library())} has no {prepares}: persistent collectives came with MPI 4.0",
            ),
            (
                op.reduces and case.redop not in REDUCTIONS,
                f"MPI has no reduction {case.redop}; it has {', '.join(REDUCTIONS)}",
            ),
            (
                op.reduces and case.dtype in MOVED_ONLY,
                f"MPI has no {case.dtype}: floats of 16 bits can be moved and not be reduced",
            ),
            (
                op.name == "reduce_scatter" and case.in_place and any(len(one) > 1 for one in _groups(case)),
                "MPI's reduce_scatter in place leaves every rank's block at the start of the buffer, not at its place",
            ),
        )

    def use_groups(self, groups: tuple[Ranks, ...]) -> None:
        """Make the communicators that are not there yet; only the ranks of a group take part."""
        for group in groups:
            if group in self._groups or self.rank not in group:
                continue
            self._watch.beats += 1
            with explained(self):
                members = self._measured.Get_group().Incl(list(group))
                made = self._measured.Create_group(members)
                made.Set_errhandler(MPI.ERRORS_RETURN)
            self._groups[group] = made

    def exchange(self, case: Case) -> Exchange:
        """Over the communicator of all ranks."""
        return partial(exchange_all, self._measured, case.dtype)

    def bind_call(
        self, op: Op, case: Case, group: Ranks, send: torch.Tensor, receive: torch.Tensor, traffic: Matrix
    ) -> Operation:
        """A call of MPI."""
        comm = self._groups[group] if op.members == "all" else self._measured
        return CALLS[op.name](Bound(case, group, group.index(self.rank), comm, self._measured, send, receive, traffic))

    def barrier(self) -> None:
        """MPI's barrier over the control communicator."""
        self._watch.beats += 1
        try:
            self._control.Barrier()
        except MPI.Exception as error:
            raise BackendError(in_words(error)) from error

    def reduce(self, values: Vector, how: Literal["max", "sum"], *, wary: bool = False) -> Vector:
        """All-reduce of int64 values over the control communicator.

        Posted on every rank, wary or not: MPI matches no blocking collective with one that is posted.
        """
        self._watch.beats += 1
        result: Vector = np.array(values, dtype=np.int64)
        with explained(self):
            request = self._control.Iallreduce(MPI.IN_PLACE, (result, len(result), MPI.INT64_T), REDUCTIONS[how])
            if wary:
                wait_warily(request.Test, self._store, self.size, self._world.key)
            request.Wait()
        return result

    def send(self, to: int, values: Sequence[int]) -> None:
        """A message over the control communicator."""
        self._watch.beats += 1
        try:
            self._control.Send((np.asarray(values, dtype=np.int64), len(values), MPI.INT64_T), to)
        except MPI.Exception as error:
            raise BackendError(in_words(error)) from error

    def receive(self, source: int, count: int) -> Vector:
        """A message over the control communicator."""
        self._watch.beats += 1
        result: Vector = np.empty(count, dtype=np.int64)
        try:
            self._control.Recv((result, count, MPI.INT64_T), source)
        except MPI.Exception as error:
            raise BackendError(in_words(error)) from error
        return result

    def swap(self, to: int, source: int) -> None:
        """An empty message each way over the control communicator."""
        self._watch.beats += 1
        try:
            self._control.Sendrecv((None, 0, MPI.BYTE), to, 1, (None, 0, MPI.BYTE), source, 1)
        except MPI.Exception as error:
            raise BackendError(in_words(error)) from error

    def fail(self, text: str) -> dict[int, str]:
        """Post ``text`` beside MPI, on a store over TCP, and wait a moment for what the others post."""
        return answers(self._store, self.size, {self.rank: text}, key=self._world.key)

    def close(self) -> None:
        """Finalise MPI."""
        try:
            with explained(self):
                MPI.Finalize()
        finally:
            self._watch.end()


class _Watch:
    """Looks from a thread whether this rank gets on: ``beats`` counts what it does; ``lost`` hears when it does not.

    The thread sleeps but for some microseconds a look, and calls nothing of MPI.
    """

    def __init__(self, timeout_seconds: float, lost: Callable[[Exception], None]) -> None:
        self.beats = 0
        self._timeout_seconds = timeout_seconds
        self._lost = lost
        self._ended = threading.Event()
        self._watched = time.pthread_getcpuclockid(threading.get_ident())
        threading.Thread(target=self._look, name="busbw-watch", daemon=True).start()

    def end(self) -> None:
        """There is nothing to be waited for any more."""
        self._ended.set()

    def _look(self) -> None:
        pause = min(max(self._timeout_seconds / _LOOKS, _LEAST_LOOK_SECONDS), _MOST_LOOK_SECONDS)
        beats, since, used = -1, 0.0, 0.0
        while not self._ended.wait(pause):
            now, processor = time.monotonic(), time.clock_gettime(self._watched)
            if self.beats != beats:
                beats, since, used = self.beats, now, processor
            elif now - since > self._timeout_seconds and (
                processor - used > _POLLING_SHARE * (now - since) or now - since > _ASLEEP * self._timeout_seconds
            ):
                self._lost(BackendError(f"nothing came back from MPI for {now - since:.0f} s"))
                return


def _store(world: World, control: MPI.Intracomm) -> dist.Store:
    """The launcher's store, or one that the first rank keeps: what ranks say to each other when MPI hangs."""
    timeout = timedelta(seconds=world.timeout_seconds)
    if world.store is not None:
        return dist.TCPStore(*world.store, is_master=False, timeout=timeout)
    kept, where = meet_at_store(world.timeout_seconds, control)
    return kept or dist.TCPStore(*where, is_master=False, timeout=timeout)


def _groups(case: Case) -> tuple[Ranks, ...]:
    return split_world(case.group, case.ranks)
