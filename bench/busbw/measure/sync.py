"""Synchronising ranks before each sample: one class for each policy of ``records.Sync``."""

import numpy as np

from busbw.backends.base import Backend
from busbw.measure.clock import CommonClock
from busbw.runs.records import Sync

_HEAD_START_NS = 1_000_000
_SLACK = 1.5
_TOO_MANY_MISSED = 0.25


class Synchronizer:
    """The library's own barrier before every sample; base class of the other policies.

    Call ``begin`` before a batch of samples, the object itself before each sample, and ``missed`` after the batch.
    """

    def __init__(self, backend: Backend, common: CommonClock) -> None:
        self._backend = backend
        self._common = common
        self._barrier = backend.barrier

    def begin(self, count: int, pace_ns: int) -> None:
        """Prepare a batch of ``count`` starts, one about every ``pace_ns``. Collective."""

    def __call__(self) -> None:
        """Wait for all ranks."""
        self._barrier()

    def missed(self) -> list[int]:
        """Indices of the last batch's starts that this rank missed: none, because a barrier waits for every rank."""
        return []


class FreeRun(Synchronizer):
    """One barrier before a batch and none between its samples: ranks may drift apart, as they do in applications."""

    def begin(self, count: int, pace_ns: int) -> None:  # noqa: ARG002 - the same for every batch
        """Start the batch with a barrier."""
        self._barrier()

    def __call__(self) -> None:
        """Return immediately."""


class DisseminationSync(Synchronizer):
    """Dissemination barrier: ⌈log₂ n⌉ rounds, in round k to the rank at distance 2ᵏ (Hensgen, Finkel & Manber 1988).

    The algorithm is fixed, so a library barrier that changes with the number of ranks cannot affect the measurement.
    """

    def __init__(self, backend: Backend, common: CommonClock) -> None:
        super().__init__(backend, common)
        self._swap = backend.swap
        steps = [1 << number for number in range(max(0, (backend.size - 1).bit_length()))]
        rank, size = backend.rank, backend.size
        self._rounds = [((rank + step) % size, (rank - step) % size) for step in steps]

    def __call__(self) -> None:
        """Exchange a message with the two partners of each round."""
        for to, source in self._rounds:
            self._swap(to, source)


class WindowSync(Synchronizer):
    """Every sample starts at an agreed time of the common clock. A rank that arrives later has missed its window.

    Ranks spin until the window opens, so each needs a core and a comparable clock. A window is 1.5 times as long as a
    sample; its length doubles when any rank misses more than a quarter of a batch (SKaMPI).
    """

    def __init__(self, backend: Backend, common: CommonClock) -> None:
        super().__init__(backend, common)
        self._now = common.clock.now_ns
        self._longer = 1
        self._opens: list[int] = []
        self._next = 0
        self._late: list[int] = []

    def begin(self, count: int, pace_ns: int) -> None:
        """Agree on the opening times and the length of the windows."""
        missed = len(self._late) > _TOO_MANY_MISSED * max(self._next, 1)
        local_now = int(self._common.common(np.asarray([self._now()], dtype=np.int64))[0])
        latest, pace, anybody = self._backend.reduce(np.asarray([local_now, pace_ns, missed], dtype=np.int64), "max")
        # A factor, because the last length is out of date if a sample has more calls now.
        self._longer *= 2 if anybody else 1
        length, first = int(pace * _SLACK * self._longer), int(latest) + _HEAD_START_NS
        self._opens = [self._common.local(first + number * length) for number in range(count)]
        self._next, self._late = 0, []

    def __call__(self) -> None:
        """Spin until the window opens; record a miss if it is already open."""
        opens = self._opens[self._next]
        if self._now() > opens:
            self._late.append(self._next)
        self._next += 1
        while self._now() < opens:
            pass

    def missed(self) -> list[int]:
        """Indices of the windows that were already open when this rank arrived."""
        return self._late


SYNCHRONIZERS: dict[Sync, type[Synchronizer]] = {
    "none": FreeRun,
    "barrier": Synchronizer,
    "dissemination": DisseminationSync,
    "window": WindowSync,
}
