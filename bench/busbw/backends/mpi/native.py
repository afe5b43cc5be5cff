"""Loading the MPI library, and describing its calls for the compiled loop: function addresses and C arguments.

The addresses and handles are those of the library that mpi4py has loaded. mpi4py gives the value of a handle, whether
it is an integer (MPICH) or a pointer (Open MPI).
"""

import ctypes
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import cache

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

__all__ = ["MPI", "Call", "Counts", "Spec", "address", "function", "native_calls", "native_turns", "scopes"]

Counts = tuple[list[int], list[int]]
Spec = tuple[MPI.buffer, int | Counts, MPI.Datatype]
"""A buffer in mpi4py's form: memory, count (or counts and displacements of blocks), type."""

Call = tuple[str, tuple[object, ...]]
"""Name of a communicator's method, and its arguments."""

_MOST_ELEMENTS = np.iinfo(np.intc).max

_SHARED = {"Allreduce", "Reduce", "Reduce_scatter_block"}
"""Collectives whose two buffers share one count and type in C: those of the receive buffer if present."""

_WITH_STATUS = {"Recv", "Sendrecv", "Wait"}


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


def native_calls(comm: MPI.Comm, *calls: Call) -> Native | None:
    """Describe ``calls`` on ``comm`` in C; None if one is impossible: a missing function, or a count beyond an int."""
    keeps: list[object] = []
    return _native([_step(name, (*_flat(name, arguments, keeps), comm), keeps) for name, arguments in calls], keeps)


def native_turns(turns: Sequence[Sequence[MPI.Prequest]]) -> Native | None:
    """For each turn in order: start all its persistent requests, then wait for them."""
    keeps: list[object] = [*turns]
    steps = []
    for requests in turns:
        # _addressof is documented, for other languages.
        at = [MPI._addressof(request) for request in requests]  # noqa: SLF001
        steps += [_step("Start", (place,), keeps) for place in at] + [_step("Wait", (place,), keeps) for place in at]
    return _native(steps, keeps)


Step = tuple[int | None, ...]
"""Address of a function and its arguments; None for those that are missing or no int of C."""


def _native(steps: Sequence[Step], keeps: Sequence[object]) -> Native | None:
    there = tuple(tuple(value for value in step if value is not None) for step in steps)
    return None if any(None in step for step in steps) else Native(there, MPI.Exception, tuple(keeps))


def _step(name: str, arguments: Sequence[object], keeps: list[object]) -> Step:
    """Call of function ``name``; ``keeps`` gets the objects that its arguments refer to."""
    status = [MPI.Status()] if name in _WITH_STATUS else []
    keeps += status
    places = (MPI._addressof(place) for place in status)  # noqa: SLF001 - as above
    return (address(f"MPI_{name}"), *(_value(argument, keeps) for argument in arguments), *places)


def _flat(name: str, arguments: Sequence[object], keeps: list[object]) -> Iterator[object]:
    """C arguments of mpi4py's ``arguments``, in which a buffer is one argument."""
    buffers = [_lowered(argument, keeps) for argument in arguments if isinstance(argument, tuple)]
    there = iter(buffers)
    for place, argument in enumerate(arguments):
        if argument is None or isinstance(argument, tuple | MPI.InPlaceType):
            # An absent buffer gets the count and type of the other: unused, but checked by some libraries.
            row = next(there) if isinstance(argument, tuple) else (int(argument or 0), *buffers[0][1:])
            yield from row[:1] if name in _SHARED and place == 0 else row
        else:
            yield argument


def _value(given: object, keeps: list[object]) -> int | None:
    if given is None or isinstance(given, int):
        return given
    if not isinstance(given, MPI.Op | MPI.Comm | MPI.Datatype):
        raise TypeError(f"{given!r} is not a supported argument of an MPI function")
    keeps.append(given)
    return MPI._handleof(given)  # noqa: SLF001 - as above


def _lowered(buffer: Spec, keeps: list[object]) -> tuple[object, ...]:
    """Address, count (or addresses of counts and displacements), type; None for a count that exceeds an int."""
    memory, count, datatype = buffer
    keeps.append(memory)
    if isinstance(count, int):
        return memory.address, count if count <= _MOST_ELEMENTS else None, datatype
    if max(map(max, count)) > _MOST_ELEMENTS:
        return memory.address, None, None, datatype
    arrays = [np.asarray(numbers, dtype=np.intc) for numbers in count]
    keeps += arrays
    return memory.address, *(array.ctypes.data for array in arrays), datatype
