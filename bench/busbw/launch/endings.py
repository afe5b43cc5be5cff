"""How ranks that somebody else has started are asked to end: which signals each launcher sends, and what they mean.

The usual answer is to end at the end of the block under way, which ranks agree on before the next one: nothing is lost,
and nobody waits in a call for a rank that has gone. An alarm is behind it, for ranks that do not come to that end.
"""

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import FrameType

from busbw.launch.promises import Seat

LAST_WORDS_SECONDS = 5.0
"""How long rank 0 lets the backend tell why the launcher ends the world, and hears the others out; they wait longer."""


@dataclass(frozen=True, slots=True)
class Manners:
    """How a launcher ends its world: ``at_end_of_block`` are the signals that ask for that, each with the seconds after
    which rank 0 ends all the same (None: never). ``at_once`` are those that rank 0 heeds in the middle of a call, and
    the others leave to it. ``together``: it ends all ranks when one has ended badly, so they leave it to rank 0 to go
    first. ``cleans_up``: no rank outlives it, whatever happens to it.
    """

    at_end_of_block: Mapping[signal.Signals, float | None]
    at_once: tuple[signal.Signals, ...] = ()
    together: bool = False
    cleans_up: bool = False


_BEFORE_SLURM_KILLS_SECONDS = 20.0
"""Slurm kills what is left ``KillWait`` after SIGTERM: 30 s, unless the cluster says otherwise."""

MANNERS = {
    # It sends SIGTERM also when one rank has died: then the backend is about to say so.
    "torchrun": Manners({signal.SIGTERM: LAST_WORDS_SECONDS, signal.SIGUSR1: None}),
    "mpirun": Manners({signal.SIGUSR1: None}, at_once=(signal.SIGINT, signal.SIGTERM), together=True),
    "srun": Manners(
        {
            signal.SIGTERM: _BEFORE_SLURM_KILLS_SECONDS,
            signal.SIGINT: _BEFORE_SLURM_KILLS_SECONDS,
            signal.SIGUSR1: None,
        },
        cleans_up=True,
    ),
}


@dataclass(slots=True)
class Ending:
    """What this rank has been asked. ``heard`` is the signal that asked it to end (None: nobody has)."""

    seat: Seat
    manners: Manners
    heard: signal.Signals | None = field(default=None)

    def asked(self) -> bool:
        """Whether this rank was asked to end at the end of a block."""
        return self.heard is not None

    def in_words(self) -> str:
        """Who ended the run."""
        return "a signal to another rank" if self.heard is None else self.heard.name

    def listen(self) -> None:
        """Take in signals from now on."""
        signal.signal(signal.SIGALRM, _raise_interrupt)
        for number in self.manners.at_end_of_block:
            signal.signal(number, self._remember)
        for number in self.manners.at_once:
            signal.signal(number, _raise_interrupt if self.seat.lead else signal.SIG_IGN)

    def _remember(self, number: int, _frame: FrameType | None) -> None:
        """Rank 0's alarm comes first, so that a world that is ended on purpose is not taken for one that broke."""
        self.heard = signal.Signals(number)
        patience = self.manners.at_end_of_block[self.heard]
        if patience is not None:
            signal.setitimer(signal.ITIMER_REAL, patience if self.seat.lead else patience + LAST_WORDS_SECONDS)


def ending_below(seat: Seat) -> Ending:
    """How a rank at ``seat`` is asked to end."""
    return Ending(seat, MANNERS[seat.launcher])


def _raise_interrupt(number: int, _frame: FrameType | None) -> None:
    """End as on Ctrl-C, with the run folder closed."""
    raise KeyboardInterrupt(signal.Signals(number).name)
