"""Loading the MPI library, and describing its calls for the compiled loop: function addresses and C arguments.

The addresses and handles are those of the library that mpi4py has loaded. mpi4py gives the value of a handle, whether
it is an integer (MPICH) or a pointer (Open MPI).
"""

import ctypes
import socket
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain

import mpi4py
import numpy as np

from busbw.backends.compiled_loop import Native
from busbw.errors import LaunchError

mpi4py.rc.initialize = False  # not on import, when no watchdog runs yet
mpi4py.rc.finalize = False  # not at exit, where it would wait for ranks that have ended

try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:
    raise LaunchError(
        f"mpi4py cannot load an MPI library on {socket.gethostname()}: {' '.join(str(error).split())}; set "
        "MPI4PY_LIBMPI to its path, or pip install 'busbw[mpi]'"
    ) from error

__all__ = ["MPI", "Counts", "Spec", "Step", "Steps", "address", "function", "scopes"]

Counts = tuple[list[int], list[int]]
Spec = tuple[MPI.buffer, int | Counts, MPI.Datatype]
"""A buffer in mpi4py's form: memory, count (or counts and displacements of blocks), type."""

Step = tuple[int, ...]

_MOST_ELEMENTS = np.iinfo(np.intc).max

_SHARED = {"Allreduce", "Reduce", "Reduce_scatter_block"}
"""Collectives whose two buffers share one count and type in C: those of the receive buffer if present."""


def function(name: str) -> "Callable[..., int] | None":
    """Function ``name`` of the library; None if it does not exist."""
    return next((getattr(scope, name) for scope in scopes() if hasattr(scope, name)), None)


@cache
def address(name: str) -> int | None:
    """Address of function ``name`` of the library; None if it does not exist."""
    pointer = function(name)
    return None if pointer is None else ctypes.cast(pointer, ctypes.c_void_p).value  # type: ignore[arg-type]


@cache
def scopes() -> tuple[ctypes.CDLL, ...]:
    """Libraries in which mpi4py's own calls are resolved, in that order: a preloaded profiler comes first."""
    return ctypes.CDLL(None), ctypes.CDLL(MPI.__file__)


class Steps:
    """Builder of a sequence of C calls; each method appends calls."""

    def __init__(self) -> None:
        self._steps: list[Step | None] = []
        self._keeps: list[object] = []

    def native(self) -> Native | None:
        """The whole sequence; None if C cannot make a call: the function is missing, or a count exceeds an int."""
        steps = [step for step in self._steps if step is not None]
        return Native(tuple(steps), MPI.Exception, tuple(self._keeps)) if len(steps) == len(self._steps) else None

    def collective(self, name: str, comm: MPI.Comm, arguments: Sequence[object]) -> None:
        """Append collective ``name`` on ``comm`` with mpi4py's ``arguments``: up to two buffers, then the others."""
        buffers = [
            argument for argument in arguments if argument is None or isinstance(argument, tuple | MPI.InPlaceType)
        ]
        others = [self._value(argument) for argument in arguments[len(buffers) :]]
        there = [self._lowered(buffer) for buffer in buffers if isinstance(buffer, tuple)]
        # An absent buffer gets the count and type of the other: unused, but checked by some libraries.
        rows = [
            self._lowered(buffer)
            if isinstance(buffer, tuple)
            else (0 if buffer is None else int(buffer), *there[0][1:])
            for buffer in buffers
        ]
        flat = (*(row[0] for row in rows), *there[-1][1:]) if name in _SHARED else chain.from_iterable(rows)
        self._add(f"MPI_{name}", *flat, *others, self._value(comm))

    def message(self, name: str, comm: MPI.Comm, buffer: Spec, other: int, tag: int) -> None:
        """Append a blocking ``Send`` to another rank or ``Recv`` from it."""
        status = (self._status(),) if name == "Recv" else ()
        self._add(f"MPI_{name}", *self._lowered(buffer), other, tag, self._value(comm), *status)

    def exchange(self, comm: MPI.Comm, outgoing: Spec, to: int, incoming: Spec, source: int, tag: int) -> None:
        """Append a combined send and receive."""
        sent = (*self._lowered(outgoing), to, tag)
        self._add("MPI_Sendrecv", *sent, *self._lowered(incoming), source, tag, self._value(comm), self._status())

    def turn(self, requests: Sequence[MPI.Prequest]) -> None:
        """Append the start of all persistent ``requests``, then their waits."""
        self._keeps += requests
        for request in requests:
            self._add("MPI_Start", MPI._addressof(request))  # noqa: SLF001 - documented, for other languages
        for request in requests:
            self._add("MPI_Wait", MPI._addressof(request), self._status())  # noqa: SLF001 - as above

    def _add(self, name: str, *arguments: int | None) -> None:
        step = (address(name), *arguments)
        self._steps.append(None if None in step else tuple(value for value in step if value is not None))

    def _status(self) -> int:
        status = MPI.Status()
        self._keeps.append(status)
        return MPI._addressof(status)  # noqa: SLF001 - as above

    def _value(self, given: object) -> int:
        if isinstance(given, int):
            return given
        if not isinstance(given, MPI.Op | MPI.Comm | MPI.Datatype):
            raise TypeError(f"{given!r} is not a supported argument of an MPI function")
        self._keeps.append(given)
        return MPI._handleof(given)  # noqa: SLF001 - as above

    def _lowered(self, buffer: Spec) -> tuple[int | None, ...]:
        """Address, count (or addresses of counts and displacements), type; None for a count that exceeds an int."""
        memory, count, datatype = buffer
        self._keeps.append(memory)
        if isinstance(count, int):
            return memory.address, count if count <= _MOST_ELEMENTS else None, self._value(datatype)
        if max(map(max, count)) > _MOST_ELEMENTS:
            return memory.address, None, None, self._value(datatype)
        arrays = [np.asarray(numbers, dtype=np.intc) for numbers in count]
        self._keeps += arrays
        return memory.address, *(array.ctypes.data for array in arrays), self._value(datatype)
