"""MPI's world before anything is measured in it: joined, and held against what the launcher stated."""

import ctypes
import os
import socket
from collections.abc import Mapping

import numpy as np
import torch.distributed as dist

from busbw.backends.mpi.info import THREADS, first_words, library
from busbw.backends.mpi.native import MPI, function
from busbw.backends.mpi.segments import EARLY, remove_segments
from busbw.backends.side_channel import first_line, serve_store
from busbw.errors import LaunchError
from busbw.system.environment import cores_of_launcher

_LONGEST_NAME = 256


def initialise(rank: int, size: int, local_size: int, launcher: str) -> None:
    """Initialise MPI, once, in the world that ``launcher`` stated. Raises LaunchError when it is another one."""
    if not MPI.Is_initialized():
        refuse_another_manager(launcher, os.environ, library())
        _init(THREADS[thread_level(os.environ.get("MPI4PY_RC_THREAD_LEVEL"), local_size, cores_of_launcher())])
    everyone = MPI.COMM_WORLD
    try:
        refuse_another_world((rank, size), (everyone.Get_rank(), everyone.Get_size()), launcher, library())
    except LaunchError:
        remove_segments("self", EARLY)  # of a world that is nobody's
        raise


def _init(threads: int) -> None:
    """As ``MPI.Init_thread``, which waits for other ranks and lets no thread run meanwhile; here one can look on."""
    call = function("MPI_Init_thread")
    code = MPI.ERR_UNSUPPORTED_OPERATION if call is None else call(None, None, threads, ctypes.byref(ctypes.c_int()))
    if code:
        raise LaunchError(f"MPI cannot be initialised: {in_words(MPI.Exception(code))}")


def broadcast(text: bytes) -> bytes:
    """Rank 0's ``text`` at every rank. Raises LaunchError when MPI cannot."""
    refuse_mixed_levels(MPI.COMM_WORLD)
    length = np.asarray([len(text)], dtype=np.int64)
    try:
        MPI.COMM_WORLD.Bcast(length)
        given = bytearray(text.ljust(int(length[0]), b"\0"))
        MPI.COMM_WORLD.Bcast((given, len(given), MPI.BYTE))
    except MPI.Exception as error:
        raise LaunchError(f"MPI does not bring the plan to the other ranks: {in_words(error)}") from error
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
        raise LaunchError(
            f"srun was given --mpi=pmix, which {name} does not understand; start the ranks with {_flag_of(version)}"
        )
    if "OMPI_COMM_WORLD_RANK" in variables and "PMI_RANK" not in variables:
        raise LaunchError(
            f"the mpirun of Open MPI started the ranks, and mpi4py has loaded {name}, which does not understand its "
            "PMIx; start them with the mpiexec of MPICH, or name the library of Open MPI to mpi4py with MPI4PY_LIBMPI"
        )


def refuse_another_world(stated: tuple[int, int], formed: tuple[int, int], launcher: str, version: str) -> None:
    """Raise LaunchError when ``formed``, rank and size by MPI, is not what the launcher ``stated``.

    Ranks that the library knows nothing of come up as so many worlds of one rank, each of which would measure itself.
    """
    if stated == formed:
        return
    what = f"{launcher} stated rank {stated[0]} of {stated[1]}, but MPI says rank {formed[0]} of {formed[1]}"
    if launcher == "srun":
        raise LaunchError(
            f"{what}: srun was not told how to speak to the library that mpi4py has loaded ({first_words(version)}); "
            f"start the ranks with {_flag_of(version)}"
        )
    raise LaunchError(
        f"{what}: its mpiexec does not belong to the library that mpi4py has loaded ({first_words(version)}). Start "
        "the ranks with the mpiexec of that library, or name another library to mpi4py with MPI4PY_LIBMPI"
    )


def thread_level(asked: str | None, local_ranks: int, cores: int) -> str:
    """The level of threads to ask MPI for: it decides what a call costs (MPICH 5, 8 B between two ranks: 0.5 µs with
    ``funneled``, 1.7 µs with ``multiple``), so it is recorded.

    One thread calls MPI, as in most programs, so ``funneled`` is enough; but where ranks share cores, MPICH gives the
    core to others while it waits with ``multiple`` alone. ``asked``, mpi4py's own variable, comes before both. Raises
    LaunchError when MPI has no such level.
    """
    level = asked or ("multiple" if local_ranks > cores else "funneled")
    if level not in THREADS:
        raise LaunchError(f"MPI4PY_RC_THREAD_LEVEL is {level!r}; MPI has {', '.join(THREADS)}")
    return level


def refuse_mixed_levels(everyone: MPI.Intracomm) -> None:
    """Raise LaunchError, on every rank, when ``everyone`` has not one level of threads: MPICH chooses algorithms by it,
    so that ranks of different levels would take each other's messages for others.

    Messages between two ranks are the same at every level: each round tells ever more ranks the least and the highest.
    All have been heard then, behind MPI_Init, and files that it alone needs are removed.
    """
    mine = MPI.Query_thread()
    seen, heard = np.asarray([mine, -mine], dtype=np.int64), np.empty(2, dtype=np.int64)
    rank, size, step = everyone.Get_rank(), everyone.Get_size(), 1
    while step < size:
        everyone.Sendrecv(seen, (rank + step) % size, 0, heard, (rank - step) % size, 0)
        seen, step = np.maximum(seen, heard), 2 * step
    remove_segments("self", EARLY)
    highest, least = int(seen[0]), -int(seen[1])
    if highest != least:
        names = {level: name for name, level in THREADS.items()}
        raise LaunchError(
            f"some ranks have MPI with threads {names[least]}, others {names[highest]}: they see different numbers of "
            f"ranks or cores on their hosts, and MPI needs one level; set MPI4PY_RC_THREAD_LEVEL={names[highest]} for "
            "all"
        )


def meet_at_store(
    timeout_seconds: float, comm: MPI.Intracomm = MPI.COMM_WORLD
) -> tuple[dist.TCPStore | None, tuple[str, int]]:
    """A store that the first rank of ``comm`` keeps (None in the others), and where this rank reaches it.

    Raises RuntimeError or OSError in the first rank when it can have no port.
    """
    hosts = gathered(socket.gethostname(), comm)
    kept, told = None, ""
    if comm.Get_rank() == 0:
        one_host = len(set(hosts)) == 1
        kept, address = serve_store("127.0.0.1" if one_host else hosts[0], 0, timeout_seconds, one_host=one_host)
        told = f"{address} {kept.port}"
    address, _, port = gathered(told, comm)[0].rpartition(" ")
    here = hosts[comm.Get_rank()] == hosts[0]
    return kept, ((address or "127.0.0.1") if here else hosts[0], int(port))


def gathered(name: str, comm: MPI.Intracomm = MPI.COMM_WORLD) -> list[str]:
    """The ``name`` of every rank of ``comm``: 256 bytes at most, as the names of hosts have."""
    names = bytearray(_LONGEST_NAME * comm.Get_size())
    comm.Allgather(name.encode().ljust(_LONGEST_NAME, b"\0"), names)
    return [bytes(names[at : at + _LONGEST_NAME]).rstrip(b"\0").decode() for at in range(0, len(names), _LONGEST_NAME)]


def in_words(error: Exception) -> str:
    """What MPI or torch says, in one line."""
    if isinstance(error, MPI.Exception):
        return " ".join(error.Get_error_string().split())
    return first_line(error)
