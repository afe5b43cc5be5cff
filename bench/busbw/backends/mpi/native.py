"""The MPI library: loaded, and its functions as a compiled loop calls them: their addresses, their arguments as in C.

The addresses are of the library that mpi4py has loaded, and so are the handles: whatever they are there, whole numbers
in MPICH or pointers in Open MPI, mpi4py tells their value.
"""

import ctypes
import socket
from collections.abc import Callable, Sequence
from functools import cache

import mpi4py
import numpy as np

from busbw.backends.compiled_loop import Native
from busbw.errors import LaunchError

mpi4py.rc.initialize = False  # not by an import, which is too early to be watched
mpi4py.rc.finalize = False  # not at exit: it would wait for ranks that are gone

try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as error:
    raise LaunchError(
        f"mpi4py cannot load an MPI library on {socket.gethostname()}: {' '.join(str(error).split())}; MPI4PY_LIBMPI "
        "names one, and pip install 'busbw[mpi]' brings one"
    ) from error

__all__ = ["MPI", "Buffer", "Counts", "Spec", "Step", "Steps", "address", "function", "scopes"]

Counts = tuple[list[int], list[int]]
Spec = tuple[MPI.buffer, int | Counts, MPI.Datatype]
"""A buffer as mpi4py takes it: memory, elements (or those of each block and where it begins), type."""

Buffer = Spec | MPI.InPlaceType | None
Step = tuple[int, ...]

_MOST_ELEMENTS = np.iinfo(np.intc).max

_SHARED = {"Allreduce", "Reduce", "Reduce_scatter_block"}
"""Collectives whose two buffers have one count and one type in C, those of the receive buffer where there is one."""


def function(name: str) -> "Callable[..., int] | None":
    """Function ``name`` of the library; None when it has none of that name."""
    for scope in scopes():
        try:
            found: Callable[..., int] = getattr(scope, name)
        except AttributeError:
            continue
        return found
    return None


@cache
def address(name: str) -> int | None:
    """Where function ``name`` of the library is; None when it has none of that name."""
    found = function(name)
    return None if found is None else ctypes.cast(found, ctypes.c_void_p).value  # type: ignore[arg-type]


@cache
def scopes() -> tuple[ctypes.CDLL, ...]:
    """Where mpi4py's own calls are looked up, in that order: a profiler that was preloaded comes first."""
    return ctypes.CDLL(None), ctypes.CDLL(MPI.__file__)


class Steps:
    """Calls of C in the making: each method adds one."""

    def __init__(self) -> None:
        self._steps: list[Step | None] = []
        self._keeps: list[object] = []

    def native(self) -> Native | None:
        """All of them; None when one cannot be called from C: it has too many elements for an int."""
        steps = [step for step in self._steps if step is not None]
        return Native(tuple(steps), MPI.Exception, tuple(self._keeps)) if len(steps) == len(self._steps) else None

    def collective(self, name: str, comm: MPI.Comm, arguments: Sequence[object]) -> None:
        """``comm``'s method of that name with mpi4py's ``arguments``: at most two buffers, then the others."""
        buffers = [one for one in arguments if one is None or isinstance(one, tuple | MPI.InPlaceType)]
        others = [self._value(one) for one in arguments[len(buffers) :]]
        there = [self._lowered(one) for one in buffers if isinstance(one, tuple)]
        if name in _SHARED:
            places = [self._place(one) for one in buffers]
            flat = [*places, *there[-1][1:]]
        else:
            # A buffer that is not there has the count and type of the other: nobody reads them, but some check them.
            flat = []
            for one in buffers:
                lowered = self._lowered(one) if isinstance(one, tuple) else (self._place(one), *there[0][1:])
                flat += lowered
        self._add(f"MPI_{name}", *flat, *others, self._value(comm))

    def message(self, name: str, comm: MPI.Comm, buffer: Spec, other: int, tag: int) -> None:
        """A blocking ``Send`` to another rank, or a ``Recv`` from it."""
        status = (self._status(),) if name == "Recv" else ()
        self._add(f"MPI_{name}", *self._lowered(buffer), other, tag, self._value(comm), *status)

    def exchange(self, comm: MPI.Comm, outgoing: Spec, to: int, incoming: Spec, source: int, tag: int) -> None:
        """Both at once."""
        sent = (*self._lowered(outgoing), to, tag)
        self._add("MPI_Sendrecv", *sent, *self._lowered(incoming), source, tag, self._value(comm), self._status())

    def turn(self, requests: Sequence[MPI.Prequest]) -> None:
        """Prepared requests: all are started, then all are waited for."""
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
            raise TypeError(f"{given!r} is no argument of a function of MPI that is known here")
        self._keeps.append(given)
        return MPI._handleof(given)  # noqa: SLF001 - as above

    def _place(self, buffer: Buffer) -> int:
        if buffer is None:
            return 0
        return buffer[0].address if isinstance(buffer, tuple) else int(buffer)

    def _lowered(self, buffer: Spec) -> tuple[int | None, ...]:
        """Address, count (or addresses of counts and displacements), type; None for what is no int of C."""
        memory, count, datatype = buffer
        self._keeps.append(memory)
        if isinstance(count, int):
            return memory.address, count if count <= _MOST_ELEMENTS else None, self._value(datatype)
        if max(map(max, count)) > _MOST_ELEMENTS:
            return memory.address, None, None, self._value(datatype)
        arrays = [np.asarray(numbers, dtype=np.intc) for numbers in count]
        self._keeps += arrays
        return memory.address, *(array.ctypes.data for array in arrays), self._value(datatype)
