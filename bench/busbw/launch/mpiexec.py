"""The stubs that mpiexec starts for the ranks of this machine, and whose places forked ranks take.

An MPI library wants its ranks to be started by its own mpiexec; but a rank that starts from nothing imports torch
first, which takes seconds of a processor, in every rank of every launch. So mpiexec starts ``mpi_stub.py``, which
hands the environment and the descriptors that it was given to the launcher, and the rank that is forked there takes
them on: for the library it is the process that mpiexec has started. It is also a child of the launcher, which so sees
how it ends.
"""

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from busbw.backends.mpi.probe import vendor_of_library
from busbw.errors import LaunchError
from busbw.launch.launcher_env import OF_MPIRUN, env_int, found_in
from busbw.system.env_vars import without_places
from busbw.system.environment import usable_cores

_STUB = Path(__file__).with_name("mpi_stub.py")
_OPENS_SECONDS = 60.0
_ENDS_SECONDS = 5.0
_ASKS_SECONDS = 30.0
_MOST_DESCRIPTORS = 64
_HEAD_BYTES = 8

_NAMES = ("mpiexec", "mpirun", "mpiexec.hydra", "mpiexec.mpich", "mpirun.mpich", "mpiexec.openmpi", "mpirun.openmpi")


@dataclass(frozen=True, slots=True)
class Flavour:
    """How the mpiexec of a library is known and asked: ``mark`` is in what it says of its version; ``arguments`` keep
    it on this machine, and let it start more ranks than there are cores and bind none, where it would not by itself;
    ``variables`` hold for local ranks where the user has not set them: loopback and shared memory are enough for these.

    Left alone, an mpiexec that finds itself in a job of Slurm (or of PBS, LSF, Grid Engine) starts its ranks through
    that, on whatever hosts the job has. Within a step it then waits for ever: the step's own task has what it asks for.
    """

    mark: str
    arguments: tuple[str, ...]
    variables: Mapping[str, str]


_HYDRA_LOCAL = {"UCX_NET_DEVICES": "lo", "FI_TCP_IFACE": "lo"}
_NO_RESOURCE_MANAGER = "^alps,gridengine,lsf,pals,pbs,slurm,tm"
"""All that Open MPI 4 and 5 can ask for hosts or let start ranks; of those that one lacks it says nothing."""

FLAVOURS = {
    "MPICH": Flavour("HYDRA", ("-launcher", "fork", "-hosts", "localhost"), _HYDRA_LOCAL),
    "Intel MPI": Flavour(
        "Intel(R) MPI",
        ("-bootstrap", "fork", "-hosts", "localhost"),
        {**_HYDRA_LOCAL, "I_MPI_FABRICS": "shm"},
    ),
    # More ranks than cores, and root in a container, are refused by Open MPI unless it is told. Bound to single cores,
    # ranks would take the machine for one that has as few.
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
"""By the vendor's name, as mpi4py gives it."""


@dataclass(frozen=True, slots=True)
class RankStub:
    """What mpiexec gave to one rank: ``variables``, ``descriptors`` (number there → number here), ``cores``."""

    rank: int
    variables: Mapping[str, str]
    descriptors: Mapping[int, int]
    cores: tuple[int, ...]

    def enter(self) -> None:
        """Be the process that mpiexec started: called in the rank that was forked."""
        os.environ.clear()
        os.environ.update(self.variables)
        if self.cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.cores)
        # Twice: a number that is wanted may be that of another one here.
        high = {wanted: os.dup(here) for wanted, here in self.descriptors.items()}
        for wanted, here in high.items():
            os.dup2(here, wanted)


@contextmanager
def rank_stubs(size: int) -> Iterator[tuple[RankStub, ...]]:
    """Doors for ``size`` ranks, by rank, with mpiexec behind them; it is gone in the end.

    Raises LaunchError when there is no mpiexec of the library, or it does not open them.
    """
    vendor, mpiexec = chosen()
    flavour = FLAVOURS[vendor]
    # MPICH refuses to start where it finds srun's PMIx beside its own mpiexec's PMI.
    variables = {**flavour.variables, **without_places()}
    if size > usable_cores() and vendor == "Open MPI":
        variables.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")  # else waiting ranks take the core of working ones
    with ExitStack() as stack:
        # Only until the stubs are open: a launcher that is killed later leaves no folder behind.
        until_open = stack.enter_context(ExitStack())
        folder = Path(until_open.enter_context(tempfile.TemporaryDirectory(prefix="busbw-")))
        said = stack.enter_context((folder / "said").open("w+b"))
        listener = until_open.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(folder / "stub"))
        listener.listen(size)
        stub = (sys.executable, "-I", "-S", str(_STUB), str(folder / "stub"))
        process = subprocess.Popen(
            [mpiexec, *flavour.arguments, "-n", str(size), *stub],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,  # Ctrl-C is for the launcher: it decides what becomes of the ranks
        )
        guards: list[socket.socket] = []
        try:
            stubs = []
            for number in range(size):
                if not _somebody_comes(listener, process):
                    said.seek(0)
                    # What mpiexec said, without its lines of dashes, in one line.
                    text = said.read().decode(errors="replace")
                    words = " ".join(word for word in text.split() if word.strip("-"))[:600]
                    raise LaunchError(
                        f"{mpiexec} started {number} of {size} ranks" + (f"; it says: {words}" if words else "")
                    )
                guards.append(listener.accept()[0])
                stubs.append(_received(guards[-1], size))
            if sorted(stub.rank for stub in stubs) != list(range(size)):
                raise LaunchError(
                    f"{mpiexec} started ranks {sorted(stub.rank for stub in stubs)} where 0 to {size - 1} were asked"
                )
            until_open.close()
            _keep(stack, {wanted for stub in stubs for wanted in stub.descriptors})
            yield tuple(sorted(stubs, key=lambda stub: stub.rank))
        finally:
            _close(guards, process)


def _keep(stack: ExitStack, numbers: Iterable[int]) -> None:
    """Take the descriptor ``numbers`` that are free here, until the end: ``RankStub.enter`` puts others at them, and a
    pipe that its rank was given at one of them would be closed by that.
    """
    free = {number for number in numbers if not _is_open(number)}
    nothing = os.open(os.devnull, os.O_RDONLY)  # may be at one of them itself
    for number in free:
        stack.callback(os.close, number)
        if number != nothing:
            os.dup2(nothing, number, inheritable=False)
    if nothing not in free:
        os.close(nothing)


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


@cache
def chosen() -> tuple[str, str]:
    """The vendor of the library that mpi4py loads, and the first mpiexec of it: in PATH, or beside this Python.

    Raises LaunchError when mpi4py finds no library, or nothing starts ranks of it.
    """
    vendor = vendor_of_library()
    flavour = FLAVOURS.get(vendor)
    if flavour is None:
        raise LaunchError(
            f"mpi4py has loaded {vendor}, whose ranks busbw cannot start itself ({', '.join(FLAVOURS)} it can); start "
            "them with what belongs to it: mpirun -n 4 busbw run --backend mpi …"
        )
    seen = []
    for folder in (*os.get_exec_path(), str(Path(sys.executable).parent)):
        for name in _NAMES:
            path = Path(folder) / name
            if os.access(path, os.X_OK) and str(path) not in seen:
                seen.append(str(path))
                if flavour.mark in _version_of(path):
                    return vendor, str(path)
    found = f"found, of other libraries: {', '.join(seen)}" if seen else "there is none in PATH or beside this Python"
    raise LaunchError(f"mpi4py has loaded {vendor}, but there is no mpiexec of it; {found}")


def _version_of(path: Path) -> str:
    try:
        asked = subprocess.run(
            [str(path), "--version"], check=False, capture_output=True, text=True, timeout=_ASKS_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout + asked.stderr


def _somebody_comes(listener: socket.socket, process: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + _OPENS_SECONDS
    while time.monotonic() < deadline:
        if select.select([listener], [], [], 0.1)[0]:
            return True
        if process.poll() is not None:
            return False
    return False


def _received(guard: socket.socket, size: int) -> RankStub:
    head, descriptors, _, _ = socket.recv_fds(guard, _HEAD_BYTES, _MOST_DESCRIPTORS)
    length, told = int.from_bytes(head, "little"), b""
    while part := guard.recv(length - len(told)):
        told += part
    if len(head) < _HEAD_BYTES or len(told) < length:
        raise LaunchError("a process that mpiexec had started ended before it said which rank it was")
    about = json.loads(told)
    found = found_in(OF_MPIRUN, about["variables"])
    if found is None or env_int(about["variables"], found.size) != size:
        raise LaunchError(
            "mpiexec does not say in its environment variables which rank is which, as its library should"
        )
    return RankStub(
        rank=env_int(about["variables"], found.rank),
        variables=about["variables"],
        descriptors=dict(zip(about["descriptors"], descriptors, strict=True)),
        cores=tuple(about["cores"]),
    )


def close_descriptors(stubs: tuple[RankStub, ...]) -> None:
    """In the launcher, once all ranks are forked: their descriptors are theirs alone."""
    for stub in stubs:
        for descriptor in stub.descriptors.values():
            os.close(descriptor)


def _close(guards: list[socket.socket], process: subprocess.Popen[bytes]) -> None:
    """Let the stubs go, which mpiexec waits for, and see to it that it ends."""
    for guard in guards:
        with suppress(OSError):
            guard.send(b"\0")
        guard.close()
    try:
        process.wait(_ENDS_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
