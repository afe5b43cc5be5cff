"""A team of threads that do a kernel together: each a slice of the arrays of its own, on a core of its own.

The first of them is the thread that measures; the others wait inside of compiled code. They look for work for about a
millisecond and sleep after that, so that a core is not burnt between samples; what is given out before a sample
(``Operation.prepare``) wakes them. A team lives as long as somebody holds a ``Lease`` of it.
"""

import ctypes
import os
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from busbw.backends.compiled_loop import Compiled
from busbw.backends.local.kernels import LINE_BYTES
from busbw.errors import BackendError
from busbw.system.slurm_topology import allowed_cores, binds_threads
from busbw.units import numbers_in

Words = npt.NDArray[np.int64]
"""Whole numbers and addresses, as compiled code reads them."""

_LINE_WORDS = LINE_BYTES // 8
_HEAD_LINES = 4


def lines(count: int) -> Words:
    """Zeroed words that fill ``count`` lines and begin with one."""
    made = np.zeros((count + 1) * _LINE_WORDS, dtype=np.int64)
    first = -made.ctypes.data % LINE_BYTES // 8
    return made[first : first + count * _LINE_WORDS]


def pieces(slices: Sequence[tuple[int, int, int, int]]) -> Words:
    """A line for each thread: the addresses of the array that it writes and of two that it reads, and its elements."""
    made = lines(len(slices))
    for number, one in enumerate(slices):
        made[number * _LINE_WORDS :][: len(one)] = one
    return made


def shares(count: int, threads: int, unit: int) -> list[tuple[int, int]]:
    """Start and length of each of ``threads`` slices of ``count`` elements: they touch, and begin at multiples of
    ``unit`` elements. Where there are fewer units than threads, some are empty.
    """
    units = -(-count // unit)
    ends = [min(count, unit * (units * number // threads)) for number in range(threads + 1)]
    return [(start, end - start) for start, end in pairwise(ends)]


def cores_in_order(cores: Sequence[int], folder: Path = Path("/sys/devices/system/cpu")) -> list[int]:
    """``cores`` in the order in which threads take them: those that share a physical core with an earlier one last."""

    def place_among_siblings(core: int) -> int:
        try:
            told = (folder / f"cpu{core}" / "topology" / "thread_siblings_list").read_text(encoding="utf-8")
        except OSError:
            return 0
        siblings = sorted(set(cores) & set(numbers_in(told) or ()))
        return siblings.index(core) if core in siblings else 0

    return sorted(cores, key=lambda core: (place_among_siblings(core), core))


class Team:
    """``threads`` threads, the calling one among them, on cores from the ``first`` allowed one on where the system lets
    them be bound (``bound``). Raises BackendError when they cannot be started; those that were end then.
    """

    def __init__(self, kernels: Compiled, threads: int, first: int) -> None:
        self._kernels = kernels
        self._leader = threading.get_native_id()
        self._home = frozenset(allowed_cores())
        self._head = lines(_HEAD_LINES)
        self._workers: list[threading.Thread] = []
        self._run = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 3, ctypes.c_int64)(kernels.of("run"))
        self.bound = binds_threads() and threads <= len(self._home)
        order = cores_in_order(sorted(self._home))
        cores = [order[(first + number) % len(order)] if self.bound else None for number in range(threads)]
        serve = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)(kernels.of("serve"))
        head = self._head.ctypes.data

        def work(number: int) -> None:
            # Not a method: a thread that held its team would keep it alive.
            _bind(cores[number])
            serve(head, number)

        try:
            for number in range(1, threads):
                worker = threading.Thread(target=work, args=(number,), daemon=True)
                worker.start()
                self._workers.append(worker)
        except RuntimeError as error:
            message = f"{threads} threads cannot be had, the system gives {len(self._workers) + 1}: {error}"
            self.end()
            raise BackendError(message) from error
        _bind(cores[0])

    def step(self, kernel: int, work: Words) -> tuple[int, ...]:
        """A step of the compiled loop that makes the team do ``kernel``, each thread its piece of ``work``."""
        if not self._workers:
            return (kernel, *map(int, work[:4]))
        return (self._kernels.of("run"), self._head.ctypes.data, kernel, work.ctypes.data, len(self._workers))

    def do(self, kernel: int, work: Words) -> None:
        """Let the team do ``kernel``, each thread its piece of ``work``."""
        self._run(self._head.ctypes.data, kernel, work.ctypes.data, len(self._workers))

    def end(self) -> None:
        """Let all threads end, and the calling one go where it liked before."""
        if self._workers:
            self._run(self._head.ctypes.data, None, None, len(self._workers))
        for worker in self._workers:
            worker.join()
        self._workers.clear()
        if self.bound:
            with suppress(OSError):  # the thread that measured may have ended
                os.sched_setaffinity(self._leader, self._home)


def _bind(core: int | None) -> None:
    """Keep the calling thread on ``core``."""
    if core is not None:
        with suppress(OSError):  # the core was taken away since the team was made: then the thread is where it can be
            os.sched_setaffinity(0, {core})


class Lease:
    """A team that all operations of a thread share which want as many threads: several teams on the same cores would
    look for work in each other's way. The last one that gives its lease back, or is forgotten, ends the team.
    """

    def __init__(self, kernels: Compiled, threads: int, first: int) -> None:
        key = (threading.get_native_id(), threads, first)
        with _lock:
            if key not in _teams:
                _teams[key] = (Team(kernels, threads, first), 0)
            self.team, holders = _teams[key]
            _teams[key] = (self.team, holders + 1)
        self._finalizer = weakref.finalize(self, _give_back, key)

    def give_back(self) -> None:
        """The team is not needed any more. A second time does nothing."""
        self._finalizer()


_teams: dict[tuple[int, int, int], tuple[Team, int]] = {}
"""Thread that measures, threads, first core → its team, and how many hold it."""

_lock = threading.RLock()


def _give_back(key: tuple[int, int, int]) -> None:
    with _lock:
        team, holders = _teams.pop(key)
        if holders > 1:
            _teams[key] = (team, holders - 1)
            return
    team.end()
