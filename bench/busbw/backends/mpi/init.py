"""Initialising MPI and checking its world against the launcher's variables."""

import ctypes
import os
import socket
from collections.abc import Mapping

import numpy as np
import torch.distributed as dist

from busbw.backends.mpi.info import THREADS, library, short_name
from busbw.backends.mpi.native import MPI, function
from busbw.backends.mpi.probe import SRUN_MPI
from busbw.backends.mpi.segments import EARLY, remove_segments
from busbw.backends.side_channel import first_line, serve_store
from busbw.errors import LaunchError
from busbw.runs.placement import oversubscribed
from busbw.system.environment import cores_of_launcher


def initialise(rank: int, size: int, local_size: int, launcher: str) -> None:
    """Initialise MPI once. Raises LaunchError if its world differs from the one that ``launcher`` stated."""
    if not MPI.Is_initialized():
        refuse_another_manager(launcher, os.environ, library())
        _init(THREADS[thread_level(os.environ.get("MPI4PY_RC_THREAD_LEVEL"), local_size, cores_of_launcher())])
    everyone = MPI.COMM_WORLD
    try:
        refuse_mismatched_world((rank, size), (everyone.Get_rank(), everyone.Get_size()), launcher, library())
    except LaunchError:
        remove_segments("self", EARLY)  # of the unusable world
        raise


def _init(threads: int) -> None:
    """Like ``MPI.Init_thread``, which keeps the GIL while it waits for other ranks; this releases it."""
    call = function("MPI_Init_thread")
    code = MPI.ERR_UNSUPPORTED_OPERATION if call is None else call(None, None, threads, ctypes.byref(ctypes.c_int()))
    if code:
        raise LaunchError(f"MPI cannot be initialised: {message_of(MPI.Exception(code))}")


def broadcast(text: bytes) -> bytes:
    """Broadcast rank 0's ``text`` to every rank. Raises LaunchError when MPI fails."""
    refuse_mixed_levels(MPI.COMM_WORLD)
    try:
        return bytes(MPI.COMM_WORLD.bcast(text))
    except MPI.Exception as error:
        raise LaunchError(f"MPI cannot broadcast the plan: {message_of(error)}") from error


def finalize() -> None:
    """Finalise MPI if it is initialised and no backend has been opened on it."""
    if MPI.Is_initialized() and not MPI.Is_finalized():
        MPI.Finalize()


def _flag_of(version: str) -> str:
    name = version.replace("(R)", "")  # Intel(R) MPI Library
    srun_flag = next((flag for vendor, flag in SRUN_MPI.items() if name.startswith(vendor)), None)
    return f"srun --mpi={srun_flag}" if srun_flag else "the srun --mpi type that it was built for (see srun --mpi=list)"


def refuse_another_manager(launcher: str, variables: Mapping[str, str], version: str) -> None:
    """Raise LaunchError if srun or Open MPI's mpirun set up PMIx and MPICH was built without it.

    MPICH's MPI_Init would end the process.
    """
    if not version.startswith("MPICH") or "pmix" in version.lower() or "PMIX_RANK" not in variables:
        return
    name = short_name(version)
    if launcher == "srun":
        raise LaunchError(f"srun --mpi=pmix is not supported by {name}; start the ranks with {_flag_of(version)}")
    if "OMPI_COMM_WORLD_RANK" in variables and "PMI_RANK" not in variables:
        raise LaunchError(
            f"Open MPI's mpirun started the ranks, but mpi4py has loaded {name}, which does not support its PMIx; "
            "start the ranks with MPICH's mpiexec, or set MPI4PY_LIBMPI to the path of Open MPI's library"
        )


def refuse_mismatched_world(stated: tuple[int, int], formed: tuple[int, int], launcher: str, version: str) -> None:
    """Raise LaunchError if MPI's rank and size (``formed``) differ from the launcher's (``stated``).

    With the wrong launcher every rank becomes a separate world of size 1, which would measure only itself.
    """
    if stated == formed:
        return
    what = f"{launcher} reports rank {stated[0]} of {stated[1]}, but MPI reports rank {formed[0]} of {formed[1]}"
    if launcher == "srun":
        raise LaunchError(
            f"{what}: srun's --mpi type does not match the library that mpi4py has loaded ({short_name(version)}); "
            f"start the ranks with {_flag_of(version)}"
        )
    raise LaunchError(
        f"{what}: the launcher does not belong to the library that mpi4py has loaded ({short_name(version)}). Start "
        "the ranks with that library's mpiexec, or set MPI4PY_LIBMPI to the path of another library"
    )


def thread_level(asked: str | None, local_ranks: int, cores: int) -> str:
    """The thread level to request from MPI.

    It is recorded, because it affects the cost of a call (MPICH 5, 8 B between two ranks: 0.5 µs with ``funneled``,
    1.7 µs with ``multiple``). Only one thread calls MPI, so ``funneled`` is enough. If ranks share cores, ``multiple``
    is needed: only then does MPICH yield the core while it waits. ``asked``, the value of mpi4py's own variable,
    overrides both. Raises LaunchError for an unknown level.
    """
    level = asked or ("multiple" if oversubscribed(local_ranks, cores) else "funneled")
    if level not in THREADS:
        raise LaunchError(f"MPI4PY_RC_THREAD_LEVEL={level!r}: expected one of {', '.join(THREADS)}")
    return level


def refuse_mixed_levels(everyone: MPI.Intracomm) -> None:
    """Raise LaunchError, on every rank, if the ranks of ``everyone`` have different thread levels.

    MPICH selects algorithms by it, so ranks of different levels would misinterpret each other's messages.
    Point-to-point messages are the same at every level, so a dissemination over log₂ n rounds finds the lowest and the
    highest level. Afterwards all ranks have passed MPI_Init, and files that only it needs are removed.
    """
    mine = MPI.Query_thread()
    seen, received = np.asarray([mine, -mine], dtype=np.int64), np.empty(2, dtype=np.int64)
    rank, size, step = everyone.Get_rank(), everyone.Get_size(), 1
    while step < size:
        everyone.Sendrecv(seen, (rank + step) % size, 0, received, (rank - step) % size, 0)
        seen, step = np.maximum(seen, received), 2 * step
    remove_segments("self", EARLY)
    highest, least = int(seen[0]), -int(seen[1])
    if highest != least:
        names = {level: name for name, level in THREADS.items()}
        raise LaunchError(
            f"some ranks use MPI thread level {names[least]}, others {names[highest]}, because their hosts have "
            f"different numbers of ranks or cores; set MPI4PY_RC_THREAD_LEVEL={names[highest]} for all ranks"
        )


def meet_at_store(
    timeout_seconds: float, comm: MPI.Intracomm = MPI.COMM_WORLD
) -> tuple[dist.TCPStore | None, tuple[str, int]]:
    """Start a store on the first rank of ``comm``; returns it (None on other ranks) and its host and port.

    Raises RuntimeError or OSError on the first rank if no port is available.
    """
    hosts = gathered(socket.gethostname(), comm)
    store, where = None, ("", 0)
    if comm.Get_rank() == 0:
        one_host = len(set(hosts)) == 1
        store, address = serve_store("127.0.0.1" if one_host else hosts[0], 0, timeout_seconds, one_host=one_host)
        where = address, store.port
    address, port = comm.bcast(where)
    is_local = hosts[comm.Get_rank()] == hosts[0]
    return store, ((address or "127.0.0.1") if is_local else hosts[0], port)


def gathered(name: str, comm: MPI.Intracomm = MPI.COMM_WORLD) -> list[str]:
    """Gather the ``name`` of every rank of ``comm``."""
    names: list[str] = comm.allgather(name)
    return names


def message_of(error: Exception) -> str:
    """The message of MPI or torch in one line."""
    if isinstance(error, MPI.Exception):
        return " ".join(error.Get_error_string().split())
    return first_line(error)
