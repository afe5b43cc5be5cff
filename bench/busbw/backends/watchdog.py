"""Watchdog for libraries whose calls never return when another rank has died or hangs."""

import threading
import time
from collections.abc import Callable

from busbw.errors import BackendError

_LOOKS = 8
"""Progress checks per timeout, with the interval bounded by:"""
_LEAST_LOOK_SECONDS, _MOST_LOOK_SECONDS = 0.25, 5.0

_POLLING_SHARE, _ASLEEP = 0.02, 10
"""MPI and CUDA wait by polling. A rank that used less than this share of a core is not waiting in them; the others wait
for it. With a library that sleeps, all ranks look idle, so after ``_ASLEEP`` timeouts any rank is considered lost.
"""


class Watchdog:
    """Thread that calls ``lost`` if the counter ``beats`` does not change for the timeout, unless it is ``paused``.

    Each check takes a few microseconds and calls no library. It watches the thread that makes it.
    """

    def __init__(self, library: str, timeout_seconds: float, lost: Callable[[Exception], None]) -> None:
        self.beats = 0
        self.paused = False
        self._library = library
        self._timeout_seconds = timeout_seconds
        self._lost = lost
        self._ended = threading.Event()
        self._watched = time.pthread_getcpuclockid(threading.get_ident())
        threading.Thread(target=self._look, name="busbw-watch", daemon=True).start()

    def end(self) -> None:
        """Stop the watchdog."""
        self._ended.set()

    def _look(self) -> None:
        pause = min(max(self._timeout_seconds / _LOOKS, _LEAST_LOOK_SECONDS), _MOST_LOOK_SECONDS)
        beats, since, used = -1, 0.0, 0.0
        while not self._ended.wait(pause):
            now, processor = time.monotonic(), time.clock_gettime(self._watched)
            if self.beats != beats or self.paused:
                beats, since, used = self.beats, now, processor
            elif now - since > self._timeout_seconds and (
                processor - used > _POLLING_SHARE * (now - since) or now - since > _ASLEEP * self._timeout_seconds
            ):
                self._lost(BackendError(f"no progress over {self._library} for {now - since:.0f} s"))
                return
