"""MPI over host memory, through mpi4py: a separate communicator for control traffic, and a watchdog for every wait.

An MPI call never returns when another rank has died or hangs. A watchdog thread therefore checks this rank's progress;
after the timeout without progress it reports the error to the launcher, which ends the process.
"""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Literal

import numpy as np
import torch
import torch.distributed as dist

from busbw.backends.base import Limits, Vector, World, explained
from busbw.backends.cuda import address_of, index_of, uuid_at
from busbw.backends.library import LibraryBackend
from busbw.backends.mpi.calls import CALLS, COLLECTIVES, MOVED_ONLY, REDUCTIONS, exchange_all
from busbw.backends.mpi.info import cuda_aware, library, short_name, unaware
from busbw.backends.mpi.init import initialise, meet_at_store, message_of, refuse_mixed_levels
from busbw.backends.mpi.native import MPI, address
from busbw.backends.scheduled import Exchange
from busbw.backends.side_channel import collect_reports, first_line, wait_warily
from busbw.backends.watchdog import Watchdog
from busbw.errors import LaunchError
from busbw.ops import MESSAGES
from busbw.ops.base import Op, first_reason
from busbw.ops.groups import Ranks, split_world
from busbw.ops.settings import AlgorithmSettings
from busbw.runs.records import Case
from busbw.system.device import DeviceConditions
from busbw.system.nvml import nvml_of


class MpiBackend(LibraryBackend):
    """Host memory over MPI. Raises LaunchError if MPI's world differs from the launcher's."""

    raises = (MPI.Exception, *LibraryBackend.raises)
    calls = CALLS

    def __init__(self, world: World) -> None:
        torch.set_num_threads(1)  # ranks share the cores
        super().__init__(world)
        self._watchdog = Watchdog("MPI", world.timeout_seconds + world.batch_seconds, world.lost)
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
                f"rank {world.rank} of {world.size} could not join the world: {message_of(error)}"
            ) from error
        self._groups: dict[Ranks, MPI.Intracomm] = {tuple(range(world.size)): self._measured}

    def explain(self, error: Exception) -> str:
        """MPI's message in one line."""
        return message_of(error)

    def refuse_call(self, op: Op, case: Case) -> str | None:
        """Reason why MPI has no call for ``op`` in this ``case``, or None."""
        groups = split_world(case.group, case.ranks)
        prepares = f"MPI_{COLLECTIVES[op.name][0]}_init" if op.name in COLLECTIVES else None
        return first_reason(
            (op.stores or op.splits, f"{op.name} needs torch.distributed: use backend gloo or nccl"),
            (op.name not in CALLS, f"MPI has no {op.name}"),
            (
                case.mode == "persistent" and prepares is not None and address(prepares) is None,
                f"{short_name(library())} has no {prepares}: persistent collectives came with MPI 4.0",
            ),
            (
                op.reduces and case.redop not in REDUCTIONS,
                f"MPI has no reduction {case.redop}; it has {', '.join(REDUCTIONS)}",
            ),
            (
                op.reduces and case.dtype in MOVED_ONLY,
                f"MPI cannot reduce {case.dtype}, only move it",
            ),
            (op.name == "broadcast" and not case.in_place, "MPI_Bcast has one buffer, so it is in place"),
            (
                op.name == "reduce_scatter" and case.in_place and any(len(group) > 1 for group in groups),
                "MPI's in-place reduce_scatter leaves each rank's block at the start of the buffer, not at its offset",
            ),
        )

    def use_groups(self, groups: tuple[Ranks, ...]) -> None:
        """Create missing communicators; only the ranks of a group take part."""
        for group in groups:
            if group in self._groups or self.rank not in group:
                continue
            self._watchdog.beats += 1
            with explained(self):
                members = self._measured.Get_group().Incl(list(group))
                communicator = self._measured.Create_group(members)
                communicator.Set_errhandler(MPI.ERRORS_RETURN)
            self._groups[group] = communicator

    def exchange(self, case: Case) -> Exchange:
        """Exchange messages on the communicator of all ranks."""
        return partial(exchange_all, self._measured, case.dtype)

    def comm(self, op: Op, group: Ranks) -> MPI.Intracomm:
        """The communicator of the group, or for messages of all ranks."""
        return self._measured if op.members != "all" or op.name in MESSAGES else self._groups[group]

    def barrier(self) -> None:
        """MPI's barrier on the control communicator."""
        self._watchdog.beats += 1
        self._control.Barrier()

    def reduce(self, values: Vector, how: Literal["max", "sum"], *, wary: bool = False) -> Vector:
        """All-reduce of int64 values on the control communicator.

        It is nonblocking on every rank, wary or not: MPI does not match blocking with nonblocking collectives.
        """
        self._watchdog.beats += 1
        result: Vector = np.array(values, dtype=np.int64)
        with explained(self):
            request = self._control.Iallreduce(MPI.IN_PLACE, (result, len(result), MPI.INT64_T), REDUCTIONS[how])
            if wary:
                wait_warily(request.Test, self._store, self.size, self._world.key)
            request.Wait()
        return result

    def send(self, to: int, values: Sequence[int]) -> None:
        """Send on the control communicator."""
        self._watchdog.beats += 1
        self._control.Send((np.asarray(values, dtype=np.int64), len(values), MPI.INT64_T), to)

    def receive(self, source: int, count: int) -> Vector:
        """Receive on the control communicator."""
        self._watchdog.beats += 1
        result: Vector = np.empty(count, dtype=np.int64)
        self._control.Recv((result, count, MPI.INT64_T), source)
        return result

    def swap(self, to: int, source: int) -> None:
        """Exchange empty messages on the control communicator."""
        self._watchdog.beats += 1
        self._control.Sendrecv((None, 0, MPI.BYTE), to, 1, (None, 0, MPI.BYTE), source, 1)

    def fail(self, text: str) -> dict[int, str]:
        """Post ``text`` on a TCP store, independent of MPI, and collect the reports of other ranks for a short time."""
        return collect_reports(self._store, self.size, {self.rank: text}, key=self._world.key)

    def close(self) -> None:
        """Finalise MPI."""
        try:
            with explained(self):
                MPI.Finalize()
        finally:
            self._watchdog.end()


def _store(world: World, control: MPI.Intracomm) -> dist.Store:
    """The launcher's store, or one on the first rank; ranks report failures on it when MPI hangs."""
    timeout = timedelta(seconds=world.timeout_seconds)
    if world.store is not None:
        return dist.TCPStore(*world.store, is_master=False, timeout=timeout)
    store, where = meet_at_store(world.timeout_seconds, control)
    return store or dist.TCPStore(*where, is_master=False, timeout=timeout)


class MpiCudaBackend(MpiBackend):
    """CUDA tensors over MPI. Raises LaunchError if this rank has no GPU or the library is not CUDA-aware.

    Calls block the host as they do with host memory, so the host's clock times them, without device marks. ``barrier``
    also waits for pending GPU work, mainly the filling of buffers.
    """

    def __init__(self, world: World) -> None:
        number = index_of(world)
        where = f"cuda:{number}"
        try:
            # Before MPI_Init, for libraries that use the GPU that is current there. Under mpirun the ranks may already
            # have initialised MPI for their rendezvous, unless MASTER_ADDR and MASTER_PORT are set.
            torch.cuda.set_device(where)
            torch.cuda.synchronize()
            self._nvml = nvml_of(uuid_at(number), address_of(torch.cuda.get_device_properties(number)))
        except RuntimeError as error:
            raise LaunchError(f"rank {world.rank} cannot use its GPU: {first_line(error)}") from error
        super().__init__(world)
        self._where = where
        problem = unaware(short_name(library()), aware=cuda_aware())
        if problem is not None:
            raise LaunchError(problem)

    def refuse(self, op: Op, case: Case) -> str | None:
        """Reason why MPI cannot run ``case`` on GPUs, or None."""
        return why_not(op, case) or super().refuse(op, case)

    def conditions(self) -> DeviceConditions | None:
        """State of the GPU by NVML. Its index is that of the host, so it reveals ranks that share a GPU."""
        return None if self._nvml is None else self._nvml.conditions()

    def barrier(self) -> None:
        """Barrier after this rank's GPU is idle, because MPI ignores its streams."""
        with explained(self):
            torch.cuda.synchronize()
        super().barrier()


_BLOCKING = Limits(modes=("isolated", "barriers", "pipelined", "persistent"), caches=("warm",))
"""Overlap would compute on the host, and the size of the caches is the host's, but the data are on a GPU."""


def why_not(op: Op, case: Case) -> str | None:
    """Reason why a call that blocks the host does not support ``case``, or None."""
    return _BLOCKING.refuse(case) or first_reason(
        (
            isinstance(case.settings, AlgorithmSettings),
            "explicit algorithms reduce on GPU streams, for which MPI's calls do not wait",
        ),
        (op.local, f"{op.name} on a GPU does not block the host as MPI's calls do; use backend nccl"),
    )
