"""How ranks come to the same moment before a sample: one class for each policy of ``records.Sync``."""

import numpy as np

from busbw.backends.base import Backend
from busbw.measure.clock_sync import CommonClock
from busbw.runs.records import Sync

_HEAD_START_NS = 1_000_000
_SLACK = 1.5
_TOO_MANY_MISSED = 0.25


def synchronizer_for(sync: Sync, backend: Backend, common: CommonClock) -> "Start":
    """The policy by its name."""
    if sync == "none":
        return NoStart(backend)
    if sync == "dissemination":
        return DisseminationStart(backend)
    return WindowStart(backend, common) if sync == "window" else Start(backend)


class Start:
    """The library's own barrier before every sample; the other policies differ from it.

    ``begin`` comes before a batch of samples, the call itself before each sample, and ``missed`` after the batch.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._barrier = backend.barrier

    def begin(self, count: int, pace_ns: int) -> None:
        """A batch with ``count`` starts is to come, one in about ``pace_ns``. All ranks call it."""

    def __call__(self) -> None:
        """Wait for all ranks."""
        self._barrier()

    def missed(self) -> list[int]:
        """The starts of the last batch that were too late on this rank: none, for a barrier waits for everybody."""
        return []


class NoStart(Start):
    """One barrier before a batch and nothing between its samples: ranks may run apart, as they do in programs."""

    def begin(self, count: int, pace_ns: int) -> None:  # noqa: ARG002 - the same for every batch
        """Begin together."""
        self._barrier()

    def __call__(self) -> None:
        """Go on at once."""


class DisseminationStart(Start):
    """⌈log₂ n⌉ rounds of messages, round k to the rank 2ᵏ further (Hensgen, Finkel & Manber 1988).

    It is the same whatever the library's barrier is, so that a barrier that changes with the number of ranks does not
    change what is measured after it.
    """

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._swap = backend.swap
        steps = [1 << number for number in range(max(0, (backend.size - 1).bit_length()))]
        rank, size = backend.rank, backend.size
        self._rounds = [((rank + step) % size, (rank - step) % size) for step in steps]

    def __call__(self) -> None:
        """Hear, through the others, of all ranks."""
        for to, source in self._rounds:
            self._swap(to, source)


class WindowStart(Start):
    """At an agreed moment of the common clock, one window after the other. A rank that comes later has missed it.

    It spins, so it needs a core for each rank, and clocks that can be compared. A window is half as
    long again as what it is for; when more than a quarter of a batch was missed somewhere, twice as long from then on
    (SKaMPI).
    """

    def __init__(self, backend: Backend, common: CommonClock) -> None:
        super().__init__(backend)
        self._common = common
        self._now = common.clock.now_ns
        self._longer = 1
        self._opens: list[int] = []
        self._next = 0
        self._late: list[int] = []

    def begin(self, count: int, pace_ns: int) -> None:
        """Agree on when the windows open, and how long they are."""
        missed = len(self._late) > _TOO_MANY_MISSED * max(self._next, 1)
        here = int(self._common.common(np.asarray([self._now()], dtype=np.int64))[0])
        latest, pace, anybody = self._backend.reduce(np.asarray([here, pace_ns, missed], dtype=np.int64), "max")
        # Not the last length doubled: the calls of a sample may have become more since then.
        self._longer *= 2 if anybody else 1
        length, first = int(pace * _SLACK * self._longer), int(latest) + _HEAD_START_NS
        self._opens = [self._common.local(first + number * length) for number in range(count)]
        self._next, self._late = 0, []

    def __call__(self) -> None:
        """Spin until the window opens; note it when it is open already."""
        opens = self._opens[self._next]
        if self._now() > opens:
            self._late.append(self._next)
        self._next += 1
        while self._now() < opens:
            pass

    def missed(self) -> list[int]:
        """The windows that were open already."""
        return self._late
