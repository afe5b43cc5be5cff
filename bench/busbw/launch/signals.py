"""How ranks that somebody else has started are asked to end: which signals each launcher sends, and what they mean.

The usual answer is to end at the end of the block under way, which ranks agree on before the next one: nothing is lost,
and nobody waits in a call for a rank that has gone. An alarm is behind it, for ranks that do not come to that end, and
behind that a thread, for ranks that wait in their library: Python heeds no signal there.
"""

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from busbw.launch.launcher_env import RankInfo

LAST_WORDS_SECONDS = 5.0
"""How long rank 0 lets the backend tell why the launcher ends the world, and hears the others out; they wait longer."""


_HEEDS_SECONDS = 2.0
"""How long an alarm may go unheeded before the thread takes it that Python has no say."""


@dataclass(frozen=True, slots=True)
class SignalPolicy:
    """How a launcher ends its world: ``at_end_of_block`` are the signals that ask for that, each with the seconds after
    which rank 0 ends all the same (None: never). ``at_once`` are those that rank 0 heeds in the middle of a call, and
    the others leave to it. ``together``: it ends all ranks when one has ended badly, so they leave it to rank 0 to go
    first. ``cleans_up``: no rank outlives it, whatever happens to it.
    """

    at_end_of_block: Mapping[signal.Signals, float | None] = field(default_factory=dict)
    at_once: tuple[signal.Signals, ...] = ()
    together: bool = False
    cleans_up: bool = False


@dataclass(slots=True)
class ShutdownHandler:
    """What this rank has been asked. ``heard`` is the signal that asked it to end (None: nobody has)."""

    info: RankInfo
    policy: SignalPolicy
    heard: signal.Signals | None = field(default=None)

    def asked(self) -> bool:
        """Whether this rank was asked to end at the end of a block."""
        return self.heard is not None

    def in_words(self) -> str:
        """Who ended the run."""
        return "a signal to another rank" if self.heard is None else self.heard.name

    def note_from_now(self) -> None:
        """Remember the signal that comes before a time limit, which would kill a rank that still starts up. Others may:
        there is nothing to be lost yet.
        """
        signal.signal(signal.SIGUSR1, self._note)

    @contextmanager
    def listening(self, abort: Callable[[], None]) -> Iterator[None]:
        """Take in signals from now on; afterwards there is nothing left to be ended. ``abort`` is called from another
        thread when an alarm is not heeded, and has to end the process.
        """
        hears, tells = os.pipe()
        os.set_blocking(tells, False)
        over = threading.Event()
        watching = threading.Thread(target=self._watch, args=(hears, over, abort), name="busbw-shutdown", daemon=True)
        watching.start()
        signal.set_wakeup_fd(tells, warn_on_full_buffer=False)
        signal.signal(signal.SIGALRM, raise_interrupt)
        for number in self.policy.at_end_of_block:
            signal.signal(number, self._remember)
        for number in self.policy.at_once:
            signal.signal(number, raise_interrupt if self.info.lead else signal.SIG_IGN)
        try:
            yield
        finally:
            over.set()
            for number in self.policy.at_end_of_block:
                signal.signal(number, self._note)
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.set_wakeup_fd(-1)
            os.close(tells)
            watching.join()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.heard = signal.Signals(number)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self._note(number, frame)
        patience = self._patience(number)
        if patience is not None:
            signal.setitimer(signal.ITIMER_REAL, patience)

    def _patience(self, number: int) -> float | None:
        """The seconds that a signal leaves this rank (None: any). Rank 0's alarm comes first, so that a world that is
        ended on purpose is not taken for one that broke.
        """
        patience = 0.0 if number in self.policy.at_once else self.policy.at_end_of_block.get(signal.Signals(number))
        if patience is None or self.info.lead:
            return patience
        return patience + LAST_WORDS_SECONDS

    def _watch(self, hears: int, over: threading.Event, abort: Callable[[], None]) -> None:
        """Give up once a signal has been waited out; ``hears`` has a byte for each, and ends with what is listened to.
        ``over`` is looked at last: a thread may be late itself.
        """
        deadline: float | None = None
        try:
            while True:
                left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
                if not select.select([hears], [], [], left)[0]:
                    break
                numbers = os.read(hears, 64)
                if not numbers:
                    return
                for patience in map(self._patience, numbers):
                    if patience is not None and deadline is None:
                        deadline = time.monotonic() + patience + _HEEDS_SECONDS
        finally:
            os.close(hears)
        if not over.is_set():
            abort()


def raise_interrupt(number: int, _frame: FrameType | None) -> None:
    """End as on Ctrl-C, with the run folder closed."""
    raise KeyboardInterrupt(signal.Signals(number).name)
