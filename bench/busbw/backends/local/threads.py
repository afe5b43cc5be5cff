"""A team of threads that run a kernel together, each on its own slice of the arrays and its own core.

The first thread is the measuring one; the others wait inside compiled code. They spin for about a millisecond and then
sleep, so that cores are idle between samples; an empty kernel before each sample (``Operation.prepare``) wakes them. A
team is shared by the operations of a block and ends with the first of them.
"""

import ctypes
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from busbw.backends.compiled_loop import Compiled
from busbw.backends.local.kernels import LINE_BYTES
from busbw.errors import BackendError
from busbw.system.environment import allowed_cores, binds_threads
from busbw.system.sysfs import text_of
from busbw.units import numbers_in

Words = npt.NDArray[np.int64]
"""Integers and addresses for compiled code."""

_LINE_WORDS = LINE_BYTES // 8
_HEAD_LINES = 4


def lines(count: int) -> Words:
    """Zeroed words that fill ``count`` lines and are aligned to a line."""
    words = np.zeros((count + 1) * _LINE_WORDS, dtype=np.int64)
    first = -words.ctypes.data % LINE_BYTES // 8
    return words[first : first + count * _LINE_WORDS]


def pieces(slices: Sequence[tuple[int, int, int, int]]) -> Words:
    """One line per thread: addresses of the array it writes and of two that it reads, and its number of elements."""
    words = lines(len(slices))
    for number, piece in enumerate(slices):
        words[number * _LINE_WORDS :][: len(piece)] = piece
    return words


def shares(count: int, threads: int, unit: int) -> list[tuple[int, int]]:
    """Start and length of ``threads`` adjacent slices of ``count`` elements, aligned to ``unit`` elements.

    Some are empty if there are fewer units than threads.
    """
    units = -(-count // unit)
    ends = [min(count, unit * (units * number // threads)) for number in range(threads + 1)]
    return [(start, end - start) for start, end in pairwise(ends)]


def cores_in_order(cores: Sequence[int], folder: Path = Path("/sys/devices/system/cpu")) -> list[int]:
    """``cores`` in the order of use: cores that share a physical core with an earlier one come last."""

    def place_among_siblings(core: int) -> int:
        listed = text_of(folder / f"cpu{core}" / "topology" / "thread_siblings_list") or ""
        siblings = sorted(set(cores) & set(numbers_in(listed) or ()))
        return siblings.index(core) if core in siblings else 0

    return sorted(cores, key=lambda core: (place_among_siblings(core), core))


class Team:
    """``threads`` threads including the calling one, bound to cores starting at the ``first`` allowed one.

    bound: whether the system allows binding.
    ended: whether its threads have ended.
    Raises BackendError if not all threads can be started; started ones end.
    """

    def __init__(self, kernels: Compiled, threads: int, first: int) -> None:
        self._kernels = kernels
        self._leader = threading.get_native_id()
        self._home = frozenset(allowed_cores())
        self._head = lines(_HEAD_LINES)
        self._workers: list[threading.Thread] = []
        self.ended = False
        self._run = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 3, ctypes.c_int64)(kernels.of("run"))
        self.bound = binds_threads() and threads <= len(self._home)
        order = cores_in_order(sorted(self._home))
        cores = [order[(first + number) % len(order)] if self.bound else None for number in range(threads)]
        serve = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)(kernels.of("serve"))
        head = self._head.ctypes.data

        def work(number: int) -> None:
            # Not a method, because a reference to the team would keep it alive.
            _bind(cores[number])
            serve(head, number)

        try:
            for number in range(1, threads):
                worker = threading.Thread(target=work, args=(number,), daemon=True)
                worker.start()
                self._workers.append(worker)
        except RuntimeError as error:
            message = f"cannot start {threads} threads, only {len(self._workers) + 1}: {error}"
            self.end()
            raise BackendError(message) from error
        _bind(cores[0])

    def step(self, kernel: int, work: Words) -> tuple[int, ...]:
        """A step of the compiled loop that runs ``kernel`` on the team, each thread on its piece of ``work``."""
        if not self._workers:
            return (kernel, *map(int, work[:4]))
        return (self._kernels.of("run"), self._head.ctypes.data, kernel, work.ctypes.data, len(self._workers))

    def do(self, kernel: int, work: Words) -> None:
        """Run ``kernel`` on the team, each thread on its piece of ``work``."""
        self._run(self._head.ctypes.data, kernel, work.ctypes.data, len(self._workers))

    def end(self) -> None:
        """End all worker threads and restore the core affinity of the calling one."""
        if self._workers:
            self._run(self._head.ctypes.data, None, None, len(self._workers))
        for worker in self._workers:
            worker.join()
        self._workers.clear()
        self.ended = True
        if self.bound:
            with suppress(OSError):  # the measuring thread may have ended
                os.sched_setaffinity(self._leader, self._home)


def _bind(core: int | None) -> None:
    """Bind the calling thread to ``core`` (None: leave it unbound)."""
    if core is not None:
        with suppress(OSError):  # the core was removed since the team was created; the thread stays unbound
            os.sched_setaffinity(0, {core})


_teams: dict[tuple[int, int, int], Team] = {}
"""(Measuring thread, threads, first core) → its team."""


def team_of(kernels: Compiled, threads: int, first: int) -> Team:
    """The team that all operations of this thread with so many threads share until one of them ends it.

    Several teams on the same cores would disturb each other by spinning.
    """
    key = (threading.get_native_id(), threads, first)
    if key not in _teams or _teams[key].ended:
        _teams[key] = Team(kernels, threads, first)
    return _teams[key]
