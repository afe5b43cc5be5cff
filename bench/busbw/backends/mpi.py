"""MPI over host memory, through mpi4py: control traffic on a communicator of its own, and a watch over every wait.

No call of MPI ends by itself when another rank is gone or hangs. A thread therefore looks whether this rank still gets
on; when it has not for the timeout it tells the launcher, which ends the process: nothing waits for ever.
"""

import ctypes
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Literal

import mpi4py
import numpy as np
import torch
import torch.distributed as dist

from busbw.backends import by_hand
from busbw.backends.base import Operation, Vector, World
from busbw.backends.local import LOCAL
from busbw.backends.local import base as local
from busbw.backends.side_channel import answers, first_line, wait_warily
from busbw.devices import Device
from busbw.environment import cores_of_launcher
from busbw.errors import BackendError, LaunchError
from busbw.ops.base import Matrix, Op
from busbw.ops.data import TORCH_DTYPES
from busbw.ops.groups import Ranks, split_world
from busbw.records import Case

mpi4py.rc.initialize = False  # not by an import, which is too early to be watched
mpi4py.rc.finalize = False  # not at exit: it would wait for ranks that are gone

try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:
    message = (
        f"mpi4py cannot load an MPI library on {socket.gethostname()}: {' '.join(str(error).split())}; MPI4PY_LIBMPI "
        "names one, and pip install 'busbw[mpi]' brings one"
    )
    raise LaunchError(message) from error

from busbw.backends.mpi_calls import (  # noqa: E402 - as above
    CALLS,
    IN_ONE_PIECE,
    MOVED_ONLY,
    PREPARED,
    REDUCTIONS,
    Bound,
    exchange_all,
)
from busbw.backends.mpi_facts import THREADS, first_words, library  # noqa: E402 - as above
from busbw.backends.mpi_native import address, function  # noqa: E402 - as above

_LOOKS = 8
"""How often in a timeout the watch looks whether this rank gets on, within these bounds:"""
_LEAST_LOOK_SECONDS, _MOST_LOOK_SECONDS = 0.25, 5.0

_POLLING_SHARE, _ASLEEP = 0.02, 10
"""MPI waits by polling. A rank that has used less of a processor than this share is not waiting in MPI: it is the one
that the others wait for. In a library that sleeps every rank looks like that: after so many timeouts each one is lost.
"""

_COMBINE = {"max": MPI.MAX, "sum": MPI.SUM}


class MpiBackend:
    """Host memory over MPI. Raises LaunchError when the world that formed is not the one that was promised."""

    # RuntimeError: what torch raises in an operation that it does, memory that is not there for one.
    raises: tuple[type[Exception], ...] = (MPI.Exception, RuntimeError, BackendError)

    def __init__(self, world: World) -> None:
        torch.set_num_threads(1)  # ranks share the cores
        self.rank = world.rank
        self._local_rank = world.local_rank
        self.size = world.size
        self.device: Device | None = None
        self._folder = world.folder
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
        except (MPI.Exception, RuntimeError) as error:
            message = f"rank {world.rank} of {world.size} could not join the world: {_in_words(error)}"
            raise LaunchError(message) from error
        self._groups: dict[Ranks, MPI.Intracomm] = {tuple(range(world.size)): self._measured}

    def explain(self, error: Exception) -> str:
        """What MPI says, in one line."""
        return _in_words(error)

    def refuse(self, op: Op, case: Case) -> str | None:
        """Why MPI cannot run ``case``."""
        if op.local or by_hand.algorithm_of(case) is not None:
            return LOCAL[op.name].refuse(case) if op.local else by_hand.refuse(op, case)
        prepares = PREPARED.get(op.name)
        obstacles = (
            (op.stores, f"{op.name} is torch.distributed's, and needs a backend of it (gloo or nccl)"),
            (op.name not in CALLS, f"MPI has no {op.name}"),
            (
                case.mode == "overlap" and op.name in IN_ONE_PIECE,
                f"{op.name} is several blocking steps, which cannot be posted first and waited for later",
            ),
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
        return next((reason for applies, reason in obstacles if applies), None)

    def allocate(self, count: int, dtype: str) -> torch.Tensor:
        """A zeroed tensor: writing the zeros is this rank's first touch of its pages."""
        try:
            return torch.empty(count, dtype=TORCH_DTYPES[dtype]).zero_()
        except RuntimeError as error:
            raise BackendError(first_line(error)) from error

    def use_groups(self, groups: tuple[Ranks, ...]) -> None:
        """Make the communicators that are not there yet; only the ranks of a group take part."""
        for group in groups:
            if group in self._groups or self.rank not in group:
                continue
            self._watch.beats += 1
            try:
                members = self._measured.Get_group().Incl(list(group))
                made = self._measured.Create_group(members)
                made.Set_errhandler(MPI.ERRORS_RETURN)
            except MPI.Exception as error:
                raise BackendError(_in_words(error)) from error
            self._groups[group] = made

    def bind(
        self, op: Op, case: Case, group: Ranks, send: torch.Tensor, receive: torch.Tensor, traffic: Matrix
    ) -> Operation:
        """``op`` bound to its buffers (see Backend.bind)."""
        if op.local:
            return LOCAL[op.name].bind(
                local.Bound(case, send, receive, self.device, folder=self._folder, local_rank=self._local_rank)
            )
        if by_hand.algorithm_of(case) is not None:
            exchange = partial(exchange_all, self._measured, case.dtype)
            return by_hand.bind(op, case, group, group.index(self.rank), send, receive, exchange)
        comm = self._groups[group] if op.members == "all" else self._measured
        return CALLS[op.name](Bound(case, group, group.index(self.rank), comm, self._measured, send, receive, traffic))

    def barrier(self) -> None:
        """MPI's barrier over the control communicator."""
        self._watch.beats += 1
        try:
            self._control.Barrier()
        except MPI.Exception as error:
            raise BackendError(_in_words(error)) from error

    def reduce(self, values: Vector, how: Literal["max", "sum"], *, wary: bool = False) -> Vector:
        """All-reduce of int64 values over the control communicator.

        Posted on every rank, wary or not: MPI matches no blocking collective with one that is posted.
        """
        self._watch.beats += 1
        result: Vector = np.array(values, dtype=np.int64)
        try:
            request = self._control.Iallreduce(MPI.IN_PLACE, (result, len(result), MPI.INT64_T), _COMBINE[how])
            if wary:
                wait_warily(_Pending(request), self._store, self.size)
            else:
                request.Wait()
        except (MPI.Exception, RuntimeError) as error:
            raise BackendError(_in_words(error)) from error
        return result

    def send(self, to: int, values: Sequence[int]) -> None:
        """A message over the control communicator."""
        self._watch.beats += 1
        try:
            self._control.Send((np.asarray(values, dtype=np.int64), len(values), MPI.INT64_T), to)
        except MPI.Exception as error:
            raise BackendError(_in_words(error)) from error

    def receive(self, source: int, count: int) -> Vector:
        """A message over the control communicator."""
        self._watch.beats += 1
        result: Vector = np.empty(count, dtype=np.int64)
        try:
            self._control.Recv((result, count, MPI.INT64_T), source)
        except MPI.Exception as error:
            raise BackendError(_in_words(error)) from error
        return result

    def swap(self, to: int, source: int) -> None:
        """An empty message each way over the control communicator."""
        self._watch.beats += 1
        try:
            self._control.Sendrecv((None, 0, MPI.BYTE), to, 1, (None, 0, MPI.BYTE), source, 1)
        except MPI.Exception as error:
            raise BackendError(_in_words(error)) from error

    def share(self, text: str) -> list[str]:
        """All-gather of one text a rank over the control communicator."""
        self._watch.beats += 1
        mine = text.encode()
        lengths = np.empty(self.size, dtype=np.int64)
        try:
            self._control.Allgather(np.asarray([len(mine)], dtype=np.int64), lengths)
            together = bytearray(int(lengths.sum()))
            ends = np.cumsum(lengths)
            blocks = (lengths.tolist(), (ends - lengths).tolist())
            self._control.Allgatherv((mine, len(mine), MPI.BYTE), (together, blocks, MPI.BYTE))
        except MPI.Exception as error:
            raise BackendError(_in_words(error)) from error
        return [
            together[end - length : end].decode(errors="replace")
            for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)
        ]

    def moved_factor(self, op: Op) -> float:  # noqa: ARG002 - which algorithm runs is the library's choice at every size
        """Nothing is known to be moved that need not be."""
        return 1.0

    def fail(self, text: str) -> dict[int, str]:
        """Post ``text`` beside MPI, on a store over TCP, and wait a moment for what the others post."""
        return answers(self._store, self.size, {self.rank: text})

    def close(self) -> None:
        """Finalise MPI."""
        try:
            MPI.Finalize()
        except MPI.Exception as error:
            raise BackendError(_in_words(error)) from error
        finally:
            self._watch.end()


class _Pending:
    """A request, as ``wait_warily`` wants it."""

    def __init__(self, request: MPI.Request) -> None:
        self.is_completed = request.Test
        self.wait = request.Wait


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


def initialise(rank: int, size: int, local_size: int, launcher: str) -> None:
    """Initialise MPI, once, in the world that ``launcher`` promised. Raises LaunchError when it is another one."""
    if not MPI.Is_initialized():
        refuse_another_manager(launcher, os.environ, library())
        _init(THREADS[thread_level(os.environ.get("MPI4PY_RC_THREAD_LEVEL"), local_size, cores_of_launcher())])
    everyone = MPI.COMM_WORLD
    refuse_another_world((rank, size), (everyone.Get_rank(), everyone.Get_size()), launcher, library())


def _init(threads: int) -> None:
    """As ``MPI.Init_thread``, which waits for other ranks and lets no thread run meanwhile; here one can look on."""
    call = function("MPI_Init_thread")
    code = MPI.ERR_UNSUPPORTED_OPERATION if call is None else call(None, None, threads, ctypes.byref(ctypes.c_int()))
    if code:
        message = f"MPI cannot be initialised: {_in_words(MPI.Exception(code))}"
        raise LaunchError(message)


def broadcast(text: bytes) -> bytes:
    """Rank 0's ``text`` at every rank. Raises LaunchError when MPI cannot."""
    refuse_mixed_levels(MPI.COMM_WORLD)
    length = np.asarray([len(text)], dtype=np.int64)
    try:
        MPI.COMM_WORLD.Bcast(length)
        given = bytearray(text.ljust(int(length[0]), b"\0"))
        MPI.COMM_WORLD.Bcast((given, len(given), MPI.BYTE))
    except MPI.Exception as error:
        message = f"MPI does not bring the plan to the other ranks: {_in_words(error)}"
        raise LaunchError(message) from error
    return bytes(given)


def finalize() -> None:
    """Leave MPI where no world was formed over it."""
    if MPI.Is_initialized() and not MPI.Is_finalized():
        MPI.Finalize()


_FLAGS = {"MPICH": "pmi2", "Intel(R) MPI": "pmi2", "Open MPI": "pmix"}
"""How the library's version begins → what srun's ``--mpi`` has to be for it, as these libraries are usually built."""


def _flag_of(version: str) -> str:
    wanted = next((flag for name, flag in _FLAGS.items() if version.startswith(name)), None)
    return f"srun --mpi={wanted}" if wanted else "the --mpi of srun that it was built for (srun --mpi=list)"


def refuse_another_manager(launcher: str, variables: Mapping[str, str], version: str) -> None:
    """Raise LaunchError where PMIx has been set up for the ranks, by srun or by Open MPI's mpirun, and MPICH was built
    without: its MPI_Init would end the process.
    """
    if not version.startswith("MPICH") or "pmix" in version.lower() or "PMIX_RANK" not in variables:
        return
    name = first_words(version)
    if launcher == "srun":
        message = (
            f"srun was given --mpi=pmix, which {name} does not understand; start the ranks with {_flag_of(version)}"
        )
        raise LaunchError(message)
    if "OMPI_COMM_WORLD_RANK" in variables and "PMI_RANK" not in variables:
        message = (
            f"the mpirun of Open MPI started the ranks, and mpi4py has loaded {name}, which does not understand its "
            "PMIx; start them with the mpiexec of MPICH, or name the library of Open MPI to mpi4py with MPI4PY_LIBMPI"
        )
        raise LaunchError(message)


def refuse_another_world(promised: tuple[int, int], formed: tuple[int, int], launcher: str, version: str) -> None:
    """Raise LaunchError when ``formed``, rank and size by MPI, is not what the launcher ``promised``.

    Ranks that the library knows nothing of come up as so many worlds of one rank, each of which would measure itself.
    """
    if promised == formed:
        return
    what = f"{launcher} promised rank {promised[0]} of {promised[1]}, but MPI says rank {formed[0]} of {formed[1]}"
    if launcher == "srun":
        message = (
            f"{what}: srun was not told how to speak to the library that mpi4py has loaded ({first_words(version)}); "
            f"start the ranks with {_flag_of(version)}"
        )
        raise LaunchError(message)
    message = (
        f"{what}: its mpiexec does not belong to the library that mpi4py has loaded ({first_words(version)}). Start "
        "the ranks with the mpiexec of that library, or name another library to mpi4py with MPI4PY_LIBMPI"
    )
    raise LaunchError(message)


def thread_level(asked: str | None, local_ranks: int, cores: int) -> str:
    """The level of threads to ask MPI for: it decides what a call costs (MPICH 5, 8 B between two ranks: 0.5 µs with
    ``funneled``, 1.7 µs with ``multiple``), so it is recorded.

    One thread calls MPI, as in most programs, so ``funneled`` is enough; but where ranks share cores, MPICH gives the
    core to others while it waits with ``multiple`` alone. ``asked``, mpi4py's own variable, comes before both. Raises
    LaunchError when MPI has no such level.
    """
    level = asked or ("multiple" if local_ranks > cores else "funneled")
    if level not in THREADS:
        message = f"MPI4PY_RC_THREAD_LEVEL is {level!r}; MPI has {', '.join(THREADS)}"
        raise LaunchError(message)
    return level


def refuse_mixed_levels(everyone: MPI.Intracomm) -> None:
    """Raise LaunchError, on every rank, when ``everyone`` has not one level of threads: MPICH chooses algorithms by it,
    so that ranks of different levels would take each other's messages for others.

    Messages between two ranks are the same at every level: each round tells ever more ranks the least and the highest.
    """
    mine = MPI.Query_thread()
    seen, heard = np.asarray([mine, -mine], dtype=np.int64), np.empty(2, dtype=np.int64)
    rank, size, step = everyone.Get_rank(), everyone.Get_size(), 1
    while step < size:
        everyone.Sendrecv(seen, (rank + step) % size, 0, heard, (rank - step) % size, 0)
        seen, step = np.maximum(seen, heard), 2 * step
    highest, least = int(seen[0]), -int(seen[1])
    if highest != least:
        names = {level: name for name, level in THREADS.items()}
        message = (
            f"some ranks have MPI with threads {names[least]}, others {names[highest]}: they see different numbers of "
            f"ranks or cores on their hosts, and MPI needs one level; set MPI4PY_RC_THREAD_LEVEL={names[highest]} for "
            "all"
        )
        raise LaunchError(message)


def _store(world: World, control: MPI.Intracomm) -> dist.Store:
    """The launcher's store, or one that the first rank keeps: what ranks say to each other when MPI hangs."""
    timeout = timedelta(seconds=world.timeout_seconds)
    if world.store is not None:
        return dist.TCPStore(*world.store, is_master=False, timeout=timeout)
    port = np.zeros(1, dtype=np.int64)
    kept = None
    if world.rank == 0:
        kept = dist.TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False, timeout=timeout)  # noqa: S104 - other hosts have to reach it
        port[0] = kept.port
    control.Bcast(port)
    name = socket.gethostname().encode().ljust(256, b"\0")
    names = bytearray(256 * world.size)
    control.Allgather(name, names)
    if kept is not None:
        return kept
    there = bytes(names[:256]).rstrip(b"\0").decode()
    host = "127.0.0.1" if bytes(names[:256]) == name else there
    return dist.TCPStore(host, int(port[0]), is_master=False, timeout=timeout)


def _groups(case: Case) -> tuple[Ranks, ...]:
    return split_world(case.group, case.ranks)


def _in_words(error: Exception) -> str:
    if isinstance(error, MPI.Exception):
        return " ".join(error.Get_error_string().split())
    return first_line(error)
