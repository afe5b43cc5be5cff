"""Common to all launchers: their settings, their result, and the end of a run folder."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from busbw.errors import StoreError
from busbw.launch.launcher_env import RankInfo
from busbw.launch.launchers import LauncherRow
from busbw.launch.rendezvous import LaunchOrder, Rendezvous
from busbw.launch.signals import ShutdownHandler
from busbw.runs import store
from busbw.runs.cases import Cases
from busbw.runs.progress import CaseBlock
from busbw.runs.records import Case, Ended, EndStatus, Failed, Measurement, Skipped

_PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class Attachment:
    """A rank that ``launcher`` has started.

    ``rendezvous``: how rank 0 reaches the other ranks.
    ``published``: whether rank 0 has published its order.
    """

    launcher: LauncherRow
    info: RankInfo
    rendezvous: Rendezvous
    shutdown: ShutdownHandler
    published: bool = False

    def publish(self, order: LaunchOrder) -> None:
        """Publish the order to the other ranks (rank 0, once). Raises LaunchError when that fails."""
        self.published = True
        self.rendezvous.publish(order)


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a run besides the plan.

    ``port``: local rendezvous port (0: a free one).
    ``resume``: folder of the run to resume (None: a new run).
    ``attached``: this rank, if a launcher has started it (None: this process starts the ranks).
    """

    results_dir: Path
    port: int = 0
    quiet: bool = False
    resume: Path | None = None
    attached: Attachment | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run.

    ``measured``: number of blocks.
    ``failed``: number of cases.
    ``speaks``: whether this process prints the result.
    ``whole``: whether the run was to be resumed and lacked nothing.
    ``status``: exit status if something failed.
    """

    folder: Path
    measured: int
    failed: int
    speaks: bool
    whole: bool = False
    status: int = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent process ``parent`` dies.

    Otherwise an orphaned rank would continue and disturb later measurements. Linux only; elsewhere a no-op.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def finish(folder: Path, status: EndStatus, reason: str | None, failure: Failed | None = None) -> None:
    """Write the end of a failed or interrupted run, or remove the folder if the run never began.

    Does not raise: the run is failing already, maybe because of this disk, and the first error is the one to report.
    """
    try:
        if not (folder / store.RUN_FILE).exists():
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()
            return
        with store.Appender(folder) as appender:
            if failure is not None:
                appender.append(failure)
            appender.append(Ended(status=status, reason=reason, ended=store.utc_now()))
    except (StoreError, OSError):
        return


def finish_well(folder: Path, failed: int) -> None:
    """Write the end of a run whose launches are complete, and compress it if it is large. Raises StoreError."""
    status: EndStatus = "failed" if failed else "complete"
    reason = f"{failed} case(s) failed" if failed else None
    with store.Appender(folder) as appender:
        appender.append(Ended(status=status, reason=reason, ended=store.utc_now()))
    store.pack(folder)


class Listener:
    """Receives the events of a launch, and calls ``report`` with the current block: case and number, or None once its
    row is on disk.
    """

    def __init__(self, report: Callable[[CaseBlock | None], None] = lambda _: None) -> None:
        self._report = report

    def world_formed(self, cases: Cases, blocks: int, hosts: tuple[str, ...], cautions: tuple[str, ...]) -> None:
        """All ranks are connected; this launch has ``blocks`` blocks. ``cautions`` are to be shown first."""

    def block_begins(self, case: Case, launch: int, block: int) -> None:  # noqa: ARG002 - for observers that count them
        """A block begins."""
        self._report((case, block))

    def row_written(self, row: Measurement | Skipped | Failed) -> None:  # noqa: ARG002 - for observers that show it
        """A row was written to disk."""
        self._report(None)

    def launch_ended(self) -> None:
        """All blocks of this launch are written."""
