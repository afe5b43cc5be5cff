"""Computation to put beside a communication: a fixed amount of it, so that being slowed down can be seen.

Multiplying two small matrices that stay in the cache, a number of times. A loop "until the clock says so" would end on
time however little it got done, and the cost of sharing a core with the communication would be invisible.
"""

from collections.abc import Callable

import numpy as np

from busbw.clock import Clock

_SIDE = 48
_TRIES = 25
_CALIBRATION_UNITS = 20


class Work:
    """``units`` multiplications of two matrices of 48 × 48 doubles: some µs each, and in this thread alone."""

    def __init__(self) -> None:
        generator = np.random.default_rng(0)
        self._left, self._right = generator.random((2, _SIDE, _SIDE))
        self._product = np.empty((_SIDE, _SIDE))

    def do(self, units: int) -> None:
        """Do ``units`` of it."""
        for _ in range(units):
            np.matmul(self._left, self._right, out=self._product)

    def unit_ns(self, clock: Clock) -> int:
        """What one unit takes here and now, ns: the median of some tries, at least 1."""
        return max(1, self.median_ns(clock, lambda: self.do(_CALIBRATION_UNITS)) // _CALIBRATION_UNITS)

    def median_ns(self, clock: Clock, action: Callable[[], None]) -> int:
        """The median time of ``action``, ns."""
        return int(np.median([self.timed_ns(clock, action) for _ in range(_TRIES)]))

    def timed_ns(self, clock: Clock, action: Callable[[], None]) -> int:
        """The time of one ``action``, ns."""
        before = clock.now_ns()
        action()
        return clock.now_ns() - before
