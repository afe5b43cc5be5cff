"""Reading time: the host's monotonic clock behind a small Protocol, so that tests can supply their own."""

import itertools
import statistics
import time
from typing import Protocol

from busbw.errors import ClockError

_CALIBRATION_READS = 10_000


class Clock(Protocol):
    """A monotonic clock in nanoseconds."""

    def now_ns(self) -> int:
        """Nanoseconds since an arbitrary start."""


class HostClock:
    """``time.perf_counter_ns``, which on Linux is CLOCK_MONOTONIC: one clock for all processes of a host.

    Raises ClockError where Python reads another clock, because arrival skew could not be measured with it.
    """

    def __init__(self) -> None:
        facts = time.get_clock_info("perf_counter")
        if not facts.monotonic or "CLOCK_MONOTONIC" not in facts.implementation:
            raise ClockError(f"perf_counter is {facts.implementation}; busbw needs clock_gettime(CLOCK_MONOTONIC)")

    def now_ns(self) -> int:
        """Nanoseconds of CLOCK_MONOTONIC."""
        return time.perf_counter_ns()


def read_cost_ns(clock: Clock) -> int:
    """Cost of one read of ``clock``: the median difference of back-to-back reads, ns. Stored, never subtracted.

    If the clock ticks in steps longer than a read, the result is one step: the clock resolves nothing shorter.
    """
    reads = [clock.now_ns() for _ in range(_CALIBRATION_READS)]
    differences = [after - before for before, after in itertools.pairwise(reads)]
    return max(int(statistics.median(differences)), min((step for step in differences if step > 0), default=0))
