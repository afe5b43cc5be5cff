"""The errors that busbw raises on purpose.

A message says what was wrong, what was given and what is allowed. Only ``cli`` turns one into an exit code.

Every class has a ``code``, a short stable word that scripts and tests go by; the words of a message may change. Where
one class covers conditions that somebody has to tell apart, ``code=`` says at the raise which of them it is.

    BusbwError    failed            everything below; exit code 1
    ├── UsageError    usage             an option, plan or name that cannot be right; exit code 2
    ├── StoreError    store             a run folder that cannot be written or read
    │   ├── DamagedRun    damaged-run       a line that is not what the writer wrote
    │   └── NewerSchema   newer-schema      written by a busbw that knows more than this one
    ├── LaunchError   launch            the ranks did not come to life, or the world is not the one that was stated
    ├── BackendError  backend           the backend refused or broke an operation on this rank
    ├── RankFailure   rank-failure      a rank died, hung or dropped out while the others were measuring
    ├── ClockError    clock             a clock that went backwards or cannot be trusted
    ├── LogError      not-a-log         the log of another tool that cannot be read
    └── AnalysisError analysis          the data cannot carry the judgement that was asked for
        └── UnlikeRuns    unlike-runs       runs that may not be pooled; names the key and both values

    Interrupted   interrupted       no failure, and no BusbwError: Ctrl-C or its like during a run
"""

import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Final, NoReturn


class BusbwError(Exception):
    """Root of the tree: a failure that busbw can explain. ``folder`` is the run that it broke off and that can be gone
    on with (None: there is none).
    """

    code: str = "failed"
    folder: Path | None = None

    def __init__(self, *words: object, code: str | None = None) -> None:
        super().__init__(*words)
        if code is not None:
            self.code = code


class Interrupted(KeyboardInterrupt):
    """The user had enough in the middle of a run; ``folder`` is where it is kept."""

    code = "interrupted"

    def __init__(self, folder: Path) -> None:
        super().__init__("interrupted; what was finished is kept")
        self.folder = folder


class UsageError(BusbwError, ValueError):
    """What the user asked for cannot be right as written.

    A ValueError too, so that a record may raise it in its constructor and msgspec adds where in a file it happened.
    """

    code = "usage"


_FEW_NAMES: Final = 12


def refuse_unknown(what: str, given: str, known: Iterable[str], code: str = UsageError.code) -> NoReturn:
    """Raise the UsageError that ``given`` is no ``what``: the name that was probably meant, and all that are known."""
    names = list(known)
    raise UsageError(f"{what} {given!r} is unknown; {what_is_known(names, nearest(given, names))}", code=code)


def what_is_known(names: Collection[str], likely: str | None) -> str:
    """The end of a message about an unknown name. Many names are not listed where the ``likely`` one was found."""
    meant = [] if likely is None else [f"did you mean {likely}?"]
    listed = [f"known: {', '.join(names)}"] if likely is None or len(names) <= _FEW_NAMES else []
    return " ".join([*meant, *listed])


def nearest(given: str, known: Iterable[str]) -> str | None:
    """The one of ``known`` that somebody who typed ``given`` probably meant; None where none is near."""
    plain = {re.sub(r"[^a-z0-9]", "", name.lower()): name for name in known}
    found = get_close_matches(re.sub(r"[^a-z0-9]", "", given.lower()), plain, n=1)
    return plain[found[0]] if found else None


class StoreError(BusbwError):
    """A run folder cannot be created, appended to or read."""

    code = "store"


class DamagedRun(StoreError):
    """A line of a run is not what the writer wrote, and it is not the last one."""

    code = "damaged-run"


class NewerSchema(StoreError):
    """The run was written in a newer format than this busbw understands."""

    code = "newer-schema"


class LaunchError(BusbwError):
    """The ranks did not come to life, or the world that formed is not the one that was stated."""

    code = "launch"


class BackendError(BusbwError):
    """The backend refused an operation, or broke in the middle of it, on this rank."""

    code = "backend"


class RankFailure(BusbwError):
    """A rank died, hung or dropped out; the message names rank, host, operation and size.

    ``lost`` are the ranks that are held to blame (empty: nobody stands out), ``said`` is what the backend said.
    ``late``: their processes are there, and did not answer in time.
    """

    code = "rank-failure"

    def __init__(self, message: str, lost: tuple[int, ...] = (), said: str = "", *, late: bool = False) -> None:
        super().__init__(message)
        self.lost = lost
        self.said = said
        self.late = late


class ClockError(BusbwError):
    """The clock went backwards, stood still or is not monotonic."""

    code = "clock"


class LogError(BusbwError):
    """The log of another tool holds no results, or not those of one job; docs/logs.md lists the codes."""

    code = "not-a-log"


class AnalysisError(BusbwError):
    """The data cannot carry the judgement that was asked for."""

    code = "analysis"


class UnlikeRuns(AnalysisError):
    """Runs that may not be pooled: the message names the key and both values."""

    code = "unlike-runs"
