"""Computation that overlaps with a communication: a fixed amount of work, so that a slowdown is visible.

The work is repeated multiplication of two small matrices that stay in the cache. A loop that runs for a fixed time
would hide the cost of sharing a core with the communication.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from busbw.backends.base import Vector
from busbw.measure.clock import Clock

_SIDE = 48


class ComputeLoad:
    """Multiplications of two matrices of 48 × 48 doubles: some µs per unit, in this thread only."""

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        self._left, self._right = generator.random((2, _SIDE, _SIDE))
        self._product = np.empty((_SIDE, _SIDE))

    def do(self, units: int) -> None:
        """Do ``units`` multiplications."""
        for _ in range(units):
            np.matmul(self._left, self._right, out=self._product)

    def tries_ns(self, clock: Clock, units: int, count: int) -> Vector:
        """Time ``units`` multiplications ``count`` times, ns."""
        return np.asarray([self.timed_ns(clock, partial(self.do, units)) for _ in range(count)], dtype=np.int64)

    def timed_ns(self, clock: Clock, action: Callable[[], None]) -> int:
        """Time one ``action``, ns."""
        before = clock.now_ns()
        action()
        return clock.now_ns() - before
