"""``map(function, runs)`` on the cores of this machine, or on the workers of a Dask cluster."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from busbw.errors import AnalysisError, UsageError

if TYPE_CHECKING:
    from distributed import Client

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

DASK: Final = "dask"
_AT_A_TIME: Final = 8
_CONNECT_SECONDS: Final = 10


class Engine(Protocol):
    """Where work is done that is the same for each of many items."""

    def map(self, function: Callable[[_Item], _Result], items: Sequence[_Item]) -> Iterator[_Result]:
        """The results in the order of ``items``. ``function`` and ``items`` can be pickled."""


@dataclass(frozen=True, slots=True)
class Local:
    """This machine.

    processes: number of processes, one for each core that busbw may use
    fewest: fewer items are done in this process, before others would have started
    """

    processes: int
    fewest: int = 64

    def map(self, function: Callable[[_Item], _Result], items: Sequence[_Item]) -> Iterator[_Result]:
        """As ``Engine``. Raises AnalysisError if a process was killed."""
        if self.processes < 2 or len(items) < self.fewest:
            yield from map(function, items)
            return
        from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415 - most histories need no other process
        from concurrent.futures.process import BrokenProcessPool  # noqa: PLC0415
        from multiprocessing import get_context  # noqa: PLC0415

        try:
            with ProcessPoolExecutor(self.processes, mp_context=get_context("forkserver")) as executor:
                yield from executor.map(function, items, chunksize=_AT_A_TIME)
        except BrokenProcessPool as error:
            message = "a process that read runs was killed, perhaps for lack of memory; what it finished is kept"
            raise AnalysisError(message, code="process-killed") from error


@dataclass(frozen=True, slots=True)
class Dask:
    """The workers of a Dask cluster, which read the runs by the same paths. Work of a worker that dies is repeated."""

    client: "Client"

    def map(self, function: Callable[[_Item], _Result], items: Sequence[_Item]) -> Iterator[_Result]:
        """As ``Engine``. Raises AnalysisError if several workers died of the same item."""
        from distributed import KilledWorker  # noqa: PLC0415 - an extra

        try:
            yield from self.client.gather(self.client.map(function, items, pure=False))  # type: ignore[no-untyped-call]
        except KilledWorker as error:
            raise AnalysisError(f"workers died: {error}", code="process-killed") from error


@contextmanager
def engine_of(name: str | None) -> Iterator[Engine]:
    """The engine ``dask:ADDRESS`` (of the scheduler), or this machine.

    Raises UsageError for another name, without ``distributed``, and if no scheduler answers.
    """
    if name is None:
        yield Local(len(os.sched_getaffinity(0)))
        return
    kind, _, address = name.partition(":")
    if kind != DASK or not address:
        raise UsageError(f"engine {name!r} is unknown; use {DASK}:ADDRESS, such as {DASK}:tcp://login1:8786")
    try:
        from distributed import Client  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UsageError("--engine dask needs the package distributed: pip install 'busbw[dask]'") from error
    try:
        client = Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError) as error:
        raise UsageError(f"--engine {name}: no Dask scheduler answers at {address}: {error}") from error
    with client:
        yield Dask(client)
