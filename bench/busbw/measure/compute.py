"""Computation to put beside a communication: a fixed amount of it, so that being slowed down can be seen.

Multiplying two small matrices that stay in the cache, a number of times. A loop "until the clock says so" would end on
time however little it got done, and the cost of sharing a core with the communication would be invisible.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from busbw.backends.base import Vector
from busbw.measure.clock import Clock

_SIDE = 48


class ComputeLoad:
    """``units`` multiplications of two matrices of 48 × 48 doubles: some µs each, and in this thread alone."""

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        self._left, self._right = generator.random((2, _SIDE, _SIDE))
        self._product = np.empty((_SIDE, _SIDE))

    def do(self, units: int) -> None:
        """Do ``units`` of it."""
        for _ in range(units):
            np.matmul(self._left, self._right, out=self._product)

    def tries_ns(self, clock: Clock, units: int, count: int) -> Vector:
        """The times of ``count`` times ``units`` of it, ns."""
        return np.asarray([self.timed_ns(clock, partial(self.do, units)) for _ in range(count)], dtype=np.int64)

    def timed_ns(self, clock: Clock, action: Callable[[], None]) -> int:
        """The time of one ``action``, ns."""
        before = clock.now_ns()
        action()
        return clock.now_ns() - before
