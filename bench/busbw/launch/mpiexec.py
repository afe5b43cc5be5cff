"""The stubs that mpiexec starts in place of local ranks, which are forked by busbw.

An MPI library requires that its own mpiexec starts the ranks. But then every rank of every launch would import torch,
which takes seconds. So mpiexec starts ``mpi_stub.py``, which passes its environment and descriptors to busbw, and a
forked rank takes them over: to the library it is the process that mpiexec has started. As a child of busbw, it can be
watched.
"""

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from busbw.backends.mpi.probe import vendor_of_library
from busbw.errors import LaunchError
from busbw.launch.launchers import OF_MPIRUN, env_int, found_in
from busbw.runs import files
from busbw.runs.placement import oversubscribed
from busbw.system.environment import usable_cores, without_places

_STUB = Path(__file__).with_name("mpi_stub.py")
_OPENS_SECONDS = 60.0
_ENDS_SECONDS = 5.0
_ASKS_SECONDS = 30.0
_MOST_DESCRIPTORS = 64
_HEAD_BYTES = 8

_NAMES = ("mpiexec", "mpirun", "mpiexec.hydra", "mpiexec.mpich", "mpirun.mpich", "mpiexec.openmpi", "mpirun.openmpi")


@dataclass(frozen=True, slots=True)
class Flavour:
    """The mpiexec of an MPI library.

    ``mark``: text in the output of ``mpiexec --version``.
    ``arguments``: keep it on this machine, without binding, and allow more ranks than cores.
    ``variables``: defaults for local ranks, which need only loopback and shared memory.

    Without these arguments, an mpiexec in a job of Slurm (or PBS, LSF, Grid Engine) starts its ranks through the
    resource manager, on all hosts of the job. In a job step it would wait forever, because the step's task holds the
    resources.
    """

    mark: str
    arguments: tuple[str, ...]
    variables: Mapping[str, str]


_HYDRA_LOCAL = {"UCX_NET_DEVICES": "lo", "FI_TCP_IFACE": "lo"}
_NO_RESOURCE_MANAGER = "^alps,gridengine,lsf,pals,pbs,slurm,tm"
"""All resource managers of Open MPI 4 and 5; unknown names are ignored."""

FLAVOURS = {
    "MPICH": Flavour("HYDRA", ("-launcher", "fork", "-hosts", "localhost"), _HYDRA_LOCAL),
    "Intel MPI": Flavour(
        "Intel(R) MPI",
        ("-bootstrap", "fork", "-hosts", "localhost"),
        {**_HYDRA_LOCAL, "I_MPI_FABRICS": "shm"},
    ),
    # By default, Open MPI refuses more ranks than cores, and root in a container. It also binds ranks to cores, so that
    # they would see a machine with fewer cores.
    "Open MPI": Flavour(
        "Open MPI",
        (
            *("--oversubscribe", "--bind-to", "none"),
            *("--mca", "ras", _NO_RESOURCE_MANAGER, "--mca", "plm", _NO_RESOURCE_MANAGER),
        ),
        {
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_btl": "self,sm",
            "OMPI_MCA_pml": "ob1",
        },
    ),
}
"""Vendor as mpi4py names it → its mpiexec."""


@dataclass(frozen=True, slots=True)
class RankStub:
    """What mpiexec gave to one rank: ``variables``, ``descriptors`` (number in the stub → number here), ``cores``."""

    rank: int
    variables: Mapping[str, str]
    descriptors: Mapping[int, int]
    cores: tuple[int, ...]

    def enter(self) -> None:
        """Take the place of the process that mpiexec started; called in the forked rank."""
        os.environ.clear()
        os.environ.update(self.variables)
        if self.cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.cores)
        # In two steps, because a wanted number may be in use by another of these descriptors.
        high = {number: os.dup(source) for number, source in self.descriptors.items()}
        for number, duplicate in high.items():
            os.dup2(duplicate, number)


@contextmanager
def rank_stubs(size: int) -> Iterator[tuple[RankStub, ...]]:
    """The stubs of ``size`` ranks, by rank; mpiexec is ended on exit.

    Raises LaunchError when the library's mpiexec is not found, or does not start the stubs.
    """
    vendor, mpiexec = chosen()
    flavour = FLAVOURS[vendor]
    # Without srun's variables: MPICH refuses to start if it finds srun's PMIx beside its own mpiexec's PMI.
    variables = {**flavour.variables, **without_places()}
    if oversubscribed(size, usable_cores()) and vendor == "Open MPI":
        variables.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")  # else waiting ranks occupy the cores of working ones
    with ExitStack() as stack:
        # Closed as soon as the stubs have started, so that busbw leaves no folder behind if it is killed later.
        until_started = stack.enter_context(ExitStack())
        folder = until_started.enter_context(files.temporary_folder("busbw-"))
        listener = until_started.enter_context(socket.socket(socket.AF_UNIX))
        try:
            output = stack.enter_context((folder / "output").open("w+b"))
            listener.bind(str(folder / "stub"))
        except OSError as error:  # such as a path of more than 107 bytes, which no socket can have
            message = f"cannot open a socket in {folder}: {error.strerror or error}; set TMPDIR to another folder"
            raise LaunchError(message) from error
        listener.listen(size)
        stub = (sys.executable, "-I", "-S", str(_STUB), str(folder / "stub"))
        process = subprocess.Popen(
            [mpiexec, *flavour.arguments, "-n", str(size), *stub],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # Ctrl-C must only reach busbw, which then ends the ranks
        )
        guards: list[socket.socket] = []
        try:
            stubs = []
            for number in range(size):
                if not _stub_connects(listener, process):
                    output.seek(0)
                    # The output of mpiexec on one line, without its lines of dashes.
                    text = output.read().decode(errors="replace")
                    words = " ".join(word for word in text.split() if word.strip("-"))[:600]
                    raise LaunchError(
                        f"{mpiexec} started {number} of {size} ranks" + (f"; its output: {words}" if words else "")
                    )
                guards.append(listener.accept()[0])
                stubs.append(_received(guards[-1], size))
            stubs.sort(key=lambda stub: stub.rank)
            ranks = [stub.rank for stub in stubs]
            if ranks != list(range(size)):
                raise LaunchError(f"{mpiexec} started ranks {ranks} instead of 0 to {size - 1}")
            until_started.close()
            _reserve(stack, {descriptor for stub in stubs for descriptor in stub.descriptors})
            yield tuple(stubs)
        finally:
            _close(guards, process)


def _reserve(stack: ExitStack, numbers: Iterable[int]) -> None:
    """Occupy those descriptor ``numbers`` that are free: ``RankStub.enter`` overwrites them, and would otherwise close
    a pipe of the rank that got such a number.
    """
    free = {number for number in numbers if not _is_open(number)}
    null = os.open(os.devnull, os.O_RDONLY)  # may get one of these numbers itself
    for number in free:
        stack.callback(os.close, number)
        if number != null:
            os.dup2(null, number, inheritable=False)
    if null not in free:
        os.close(null)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


@cache
def chosen() -> tuple[str, str]:
    """The vendor of the MPI library that mpi4py loads, and its first mpiexec in PATH or beside this Python.

    Raises LaunchError when mpi4py finds no library, or there is no mpiexec for it.
    """
    vendor = vendor_of_library()
    flavour = FLAVOURS.get(vendor)
    if flavour is None:
        raise LaunchError(
            f"mpi4py has loaded {vendor}, whose ranks busbw cannot start (only those of {', '.join(FLAVOURS)}); start "
            "them with the library's own launcher: mpirun -n 4 busbw run --backend mpi …"
        )
    seen = []
    for folder in (*os.get_exec_path(), str(Path(sys.executable).parent)):
        for name in _NAMES:
            path = Path(folder) / name
            if os.access(path, os.X_OK) and str(path) not in seen:
                seen.append(str(path))
                if flavour.mark in _version_of(path):
                    return vendor, str(path)
    others = f"found only those of other libraries: {', '.join(seen)}" if seen else "none in PATH or beside this Python"
    raise LaunchError(f"mpi4py has loaded {vendor}, but its mpiexec is missing: {others}")


def _version_of(path: Path) -> str:
    try:
        asked = subprocess.run(
            [str(path), "--version"], check=False, capture_output=True, text=True, timeout=_ASKS_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout + asked.stderr


def _stub_connects(listener: socket.socket, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + _OPENS_SECONDS
    while time.monotonic() < deadline:
        if select.select([listener], [], [], 0.1)[0]:
            return True
        if process.poll() is not None:
            return False
    return False


def _received(guard: socket.socket, size: int) -> RankStub:
    head, descriptors, _, _ = socket.recv_fds(guard, _HEAD_BYTES, _MOST_DESCRIPTORS)
    length, data = int.from_bytes(head, "little"), b""
    while part := guard.recv(length - len(data)):
        data += part
    if len(head) < _HEAD_BYTES or len(data) < length:
        raise LaunchError("a process that mpiexec started ended before it reported its rank")
    about = json.loads(data)
    names = found_in(OF_MPIRUN, about["variables"])
    if names is None or env_int(about["variables"], names.size) != size:
        raise LaunchError("mpiexec does not set the environment variables of its library for rank and number of ranks")
    return RankStub(
        rank=env_int(about["variables"], names.rank),
        variables=about["variables"],
        descriptors=dict(zip(about["descriptors"], descriptors, strict=True)),
        cores=tuple(about["cores"]),
    )


def close_descriptors(stubs: tuple[RankStub, ...]) -> None:
    """Close the descriptors of the ranks in the parent, after all ranks are forked."""
    for stub in stubs:
        for descriptor in stub.descriptors.values():
            os.close(descriptor)


def _close(guards: list[socket.socket], process: subprocess.Popen[bytes]) -> None:
    """Release the stubs, for which mpiexec waits, and make sure that mpiexec ends."""
    for guard in guards:
        with suppress(OSError):
            guard.send(b"\0")
        guard.close()
    try:
        process.wait(_ENDS_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
