"""The errors that busbw raises on purpose.

A message says what was wrong, what was given and what is allowed. Only ``cli`` turns one into an exit code.

    BusbwError                 everything below; exit code 1
    ├── UsageError             an option, plan or name that cannot be right; exit code 2
    ├── StoreError             a run folder that cannot be written or read
    │   ├── DamagedRun         a line that is not what the writer wrote
    │   └── NewerSchema        written by a busbw that knows more than this one
    ├── LaunchError            the ranks did not come to life, or the world is not the one that was promised
    ├── BackendError           the backend refused or broke an operation on this rank
    ├── RankFailure            a rank died, hung or dropped out while the others were measuring
    ├── ClockError             a clock that went backwards or cannot be trusted
    └── AnalysisError          the data cannot carry the judgement that was asked for
        └── UnlikeRuns         runs that may not be pooled; names the key and both values

    Interrupted                no failure, and no BusbwError: Ctrl-C or its like during a run
"""

from pathlib import Path


class BusbwError(Exception):
    """Root of the tree: a failure that busbw can explain. ``folder`` is the run that it broke off and that can be gone
    on with (None: there is none).
    """

    folder: Path | None = None


class Interrupted(KeyboardInterrupt):
    """The user had enough in the middle of a run; ``folder`` is where it is kept."""

    def __init__(self, folder: Path) -> None:
        super().__init__("interrupted; what was finished is kept")
        self.folder = folder


class UsageError(BusbwError, ValueError):
    """What the user asked for cannot be right as written.

    A ValueError too, so that a record may raise it in its constructor and msgspec adds where in a file it happened.
    """


class StoreError(BusbwError):
    """A run folder cannot be created, appended to or read."""


class DamagedRun(StoreError):
    """A line of a run is not what the writer wrote, and it is not the last one."""


class NewerSchema(StoreError):
    """The run was written in a newer format than this busbw understands."""


class LaunchError(BusbwError):
    """The ranks did not come to life, or the world that formed is not the one that was promised."""


class BackendError(BusbwError):
    """The backend refused an operation, or broke in the middle of it, on this rank."""


class RankFailure(BusbwError):
    """A rank died, hung or dropped out; the message names rank, host, operation and size.

    ``lost`` are the ranks that are held to blame (empty: nobody stands out), ``said`` is what the backend said.
    ``late``: their processes are there, and did not answer in time.
    """

    def __init__(self, message: str, lost: tuple[int, ...] = (), said: str = "", *, late: bool = False) -> None:
        super().__init__(message)
        self.lost = lost
        self.said = said
        self.late = late


class ClockError(BusbwError):
    """The clock went backwards, stood still or is not monotonic."""


class AnalysisError(BusbwError):
    """The data cannot carry the judgement that was asked for."""


class UnlikeRuns(AnalysisError):
    """Runs that may not be pooled: the message names the key and both values."""
