"""Signals with which a launcher ends its ranks, and how the ranks react.

Normally ranks end after the current block, on which they agree before the next one. So nothing is lost, and no rank
waits for another that has exited. An alarm ends ranks that do not reach the end of the block in time. A thread ends
ranks that wait inside a library, where Python handles no signals.
"""

import ctypes
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

LAST_WORDS_SECONDS = 5.0
"""Time for the backend on rank 0 to report why the launcher ends the ranks; other ranks wait longer."""

_HANDLED_SECONDS = 2.0
"""After an alarm is due, how long the thread waits before it assumes that Python cannot handle signals."""


@dataclass(frozen=True, slots=True)
class RankInfo:
    """This process among the ranks that ``launcher`` started. Rank 0 leads: it writes the run folder.

    ``local_size``: ranks of this host (None: unknown).
    ``node``: index of this host (None: unknown).
    """

    launcher: str
    rank: int
    size: int
    local_rank: int
    local_size: int | None
    node: int | None = None

    @property
    def lead(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0


@dataclass(frozen=True, slots=True)
class SignalPolicy:
    """How a launcher ends its ranks.

    ``at_end_of_block``: signals that ask to end after the current block, each with the seconds after which rank 0 ends
    in any case (None: never).
    ``at_once``: signals that rank 0 obeys immediately and other ranks ignore.
    ``together``: whether it ends all ranks when one fails; then rank 0 exits first.
    ``cleans_up``: whether it always ends all ranks, even if it is killed.
    """

    at_end_of_block: Mapping[signal.Signals, float | None] = field(default_factory=dict)
    at_once: tuple[signal.Signals, ...] = ()
    together: bool = False
    cleans_up: bool = False


@dataclass(slots=True)
class ShutdownHandler:
    """Handles the signals of a rank. ``received`` is the signal that asked it to end (None: none so far)."""

    info: RankInfo
    policy: SignalPolicy
    received: signal.Signals | None = None

    def asked(self) -> bool:
        """Whether this rank was asked to end after the current block."""
        return self.received is not None

    def in_words(self) -> str:
        """The signal that ended the run."""
        return "a signal to another rank" if self.received is None else self.received.name

    def note_from_now(self) -> None:
        """From now on, only record SIGUSR1, which is sent before a time limit and would kill a rank that is still
        starting. Other signals may kill it, because there is nothing to lose yet.
        """
        signal.signal(signal.SIGUSR1, self._note)

    @contextmanager
    def listening(self, abort: Callable[[], None]) -> Iterator[None]:
        """Handle signals inside the block. ``abort`` is called from another thread if Python does not handle an alarm;
        it must end the process.
        """
        wakeup_read, wakeup_write = os.pipe()
        os.set_blocking(wakeup_write, False)
        done = threading.Event()
        watchdog = threading.Thread(
            target=self._watch, args=(wakeup_read, done, abort), name="busbw-shutdown", daemon=True
        )
        watchdog.start()
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGALRM, raise_interrupt)
        for number in self.policy.at_end_of_block:
            signal.signal(number, self._note_with_alarm)
        for number in self.policy.at_once:
            signal.signal(number, raise_interrupt if self.info.lead else signal.SIG_IGN)
        try:
            yield
        finally:
            done.set()
            for number in self.policy.at_end_of_block:
                signal.signal(number, self._note)
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.set_wakeup_fd(-1)
            os.close(wakeup_write)
            watchdog.join()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.received = signal.Signals(number)

    def _note_with_alarm(self, number: int, frame: FrameType | None) -> None:
        self._note(number, frame)
        patience = self._patience(number)
        if patience is not None:
            signal.setitimer(signal.ITIMER_REAL, patience)

    def _patience(self, number: int) -> float | None:
        """Seconds until this rank must end after the signal ``number`` (None: no limit). Rank 0's alarm comes first, so
        that a deliberate end is not reported as a failure.
        """
        patience = 0.0 if number in self.policy.at_once else self.policy.at_end_of_block.get(signal.Signals(number))
        if patience is None or self.info.lead:
            return patience
        return patience + LAST_WORDS_SECONDS

    def _watch(self, wakeup_read: int, done: threading.Event, abort: Callable[[], None]) -> None:
        """Call ``abort`` when the time after a signal has passed. ``wakeup_read`` gets a byte per signal, and end of
        file at the end of the block. ``done`` is checked last, because this thread may be delayed itself.
        """
        deadline: float | None = None
        try:
            while True:
                left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
                if not select.select([wakeup_read], [], [], left)[0]:
                    break
                numbers = os.read(wakeup_read, 64)
                if not numbers:
                    return
                for patience in map(self._patience, numbers):
                    if patience is not None and deadline is None:
                        deadline = time.monotonic() + patience + _HANDLED_SECONDS
        finally:
            os.close(wakeup_read)
        if not done.is_set():
            abort()


def raise_interrupt(number: int, _frame: FrameType | None) -> None:
    """End as on Ctrl-C, so that the end of the run is recorded."""
    raise KeyboardInterrupt(signal.Signals(number).name)


_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent process ``parent`` dies.

    Otherwise an orphaned rank would continue and disturb later measurements. Linux only; elsewhere a no-op.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
