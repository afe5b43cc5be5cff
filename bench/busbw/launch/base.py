"""What every launcher has in common: what it is told, what it returns, and how a run folder is closed."""

import ctypes
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from busbw.errors import StoreError
from busbw.launch.launcher_env import RankInfo
from busbw.launch.rendezvous import LaunchOrder, Rendezvous
from busbw.launch.signals import ShutdownHandler
from busbw.runs import store
from busbw.runs.compress import pack
from busbw.runs.records import Ended, EndStatus, Failed

_PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class Attachment:
    """A rank that somebody else has started: its place, where rank 0 reaches the others, what it has been asked since
    it began, and whether rank 0 has ``published`` what to do.
    """

    info: RankInfo
    rendezvous: Rendezvous
    shutdown: ShutdownHandler
    published: bool = False

    def publish(self, order: LaunchOrder) -> None:
        """Rank 0, once: what the others are to do. Raises LaunchError when it cannot be said."""
        self.published = True
        self.rendezvous.publish(order)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a run needs besides the plan. ``port`` is the local rendezvous port (0: a free one), ``resume`` the folder
    of the run that is gone on with (None: a new one), ``attached`` this rank's place where somebody else has started
    the ranks (None: this process starts them).
    """

    results_dir: Path
    port: int = 0
    quiet: bool = False
    resume: Path | None = None
    attached: Attachment | None = None

    @property
    def leads(self) -> bool:
        """Whether this process begins the run, and does not wait for what rank 0 says."""
        return self.attached is None or self.attached.info.lead


@dataclass(frozen=True, slots=True)
class Result:
    """A run that came to its end: blocks measured, cases failed. ``speaks``: this process talks to the user; ``whole``:
    it was to be resumed and lacked nothing. ``status`` is the exit status of one in which something failed.
    """

    folder: Path
    measured: int
    failed: int
    speaks: bool
    whole: bool = False
    status: int = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when ``parent``, its parent, dies, however it dies.

    A rank that nobody waits for any more must not go on and disturb what is measured next. Linux only; elsewhere a
    no-op.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def finish(folder: Path, status: EndStatus, reason: str | None, failure: Failed | None = None) -> None:
    """Write how a run ended that did not end well; a run that never began leaves no folder behind.

    Does not raise: the run is failing already, maybe because of this very disk; the first reason is the one to tell.
    """
    try:
        if not (folder / store.RUN_FILE).exists():
            for left in folder.iterdir():
                left.unlink()
            folder.rmdir()
            return
        with store.Appender(folder) as appender:
            if failure is not None:
                appender.append(failure)
            appender.append(Ended(status=status, reason=reason, ended=store.utc_now()))
    except (StoreError, OSError):
        return


def finish_well(folder: Path, failed: int, written: int | None = None) -> None:
    """Write the end of a run whose launches all came to theirs, and pack it when it is large.

    ``written`` is how many bytes of samples they wrote (None: whatever is there). Raises StoreError when they are no
    longer there, which is then how the run ended, and when the end cannot be written.
    """
    status: EndStatus = "failed" if failed else "complete"
    try:
        with store.Appender(folder, written) as appender:
            appender.append(
                Ended(status=status, reason=f"{failed} case(s) failed" if failed else None, ended=store.utc_now())
            )
            appender.require_whole()
    except StoreError as error:
        finish(folder, "failed", str(error))
        raise
    pack(folder)
