"""The errors that busbw raises on purpose.

A message states what is wrong, what was given and what is allowed. Only ``cli`` turns errors into exit codes.

Every class has a ``code``, a short stable word for scripts and tests, while the message may change. Where one class
covers several conditions that must be distinguished, ``code=`` overrides it when the error is raised.

    BusbwError    failed            base class; exit code 1
    ├── UsageError    usage             an invalid option, plan or name; exit code 2
    │   └── UnlikeRuns    unlike-runs       runs that cannot be pooled or compared; names the key and both values
    ├── StoreError    store             a run folder that cannot be written or read
    │   ├── DamagedRun    damaged-run       a line that differs from what was written
    │   └── NewerSchema   newer-schema      written by a newer busbw
    ├── LaunchError   launch            the ranks did not start, or do not match the request
    ├── BackendError  backend           an operation was refused or failed on this rank
    ├── RankFailure   rank-failure      a rank died, hung or disconnected during a launch
    ├── ClockError    clock             a clock that went backwards or is unreliable
    ├── LogError      not-a-log         a log of another tool that cannot be read
    └── AnalysisError analysis          the data do not allow the requested analysis

    Interrupted   interrupted       not a BusbwError: Ctrl-C or a signal during a run
"""

import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Final, NoReturn


class BusbwError(Exception):
    """Base class: a failure that busbw can explain. ``folder`` is the interrupted run (None: it cannot be resumed)."""

    code: str = "failed"
    folder: Path | None = None

    def __init__(self, *words: object, code: str | None = None) -> None:
        super().__init__(*words)
        if code is not None:
            self.code = code


class Interrupted(KeyboardInterrupt):
    """A run was interrupted; ``folder`` is its folder."""

    code = "interrupted"

    def __init__(self, folder: Path) -> None:
        super().__init__("interrupted; completed blocks are kept")
        self.folder = folder


class UsageError(BusbwError, ValueError):
    """The request of the user is invalid.

    It is also a ValueError, so that a record may raise it in its constructor and msgspec adds the position in the file.
    """

    code = "usage"


_FEW_NAMES: Final = 12


def refuse_unknown(what: str, given: str, allowed: Iterable[str], code: str = UsageError.code) -> NoReturn:
    """Raise a UsageError for the unknown ``given``, with the most similar known name or a list of all."""
    names = list(allowed)
    raise UsageError(f"{what} {given!r} is unknown; {what_is_known(names, nearest(given, names))}", code=code)


def what_is_known(names: Collection[str], likely: str | None) -> str:
    """The end of a message about an unknown name. A long list is omitted if there is a ``likely`` name."""
    hint = [] if likely is None else [f"did you mean {likely}?"]
    listed = [f"known: {', '.join(names) or 'none'}"] if likely is None or len(names) <= _FEW_NAMES else []
    return " ".join([*hint, *listed])


def nearest(given: str, names: Iterable[str]) -> str | None:
    """The name in ``names`` that is most similar to ``given``; None if none is similar."""
    return next(iter(alike(given, names)), None)


def alike(given: str, names: Iterable[str]) -> list[str]:
    """The names in ``names`` that are similar to ``given``, the most similar first."""
    plain = {_plain(name): name for name in names}
    return [plain[match] for match in get_close_matches(_plain(given), plain, n=max(1, len(plain)))]


def _plain(name: str) -> str:
    """``name`` in small letters and digits, with ``fp16`` as ``float16``."""
    return re.sub(r"^fp(?=\d)", "float", re.sub(r"[^a-z0-9]", "", name.lower()))


class StoreError(BusbwError):
    """A run folder cannot be created, appended to or read."""

    code = "store"


class DamagedRun(StoreError):
    """A line of a run, other than the last one, differs from what was written."""

    code = "damaged-run"


class NewerSchema(StoreError):
    """The run has a newer format than this version of busbw supports."""

    code = "newer-schema"


class LaunchError(BusbwError):
    """The ranks did not start, or do not match the request."""

    code = "launch"


class BackendError(BusbwError):
    """The backend refused an operation, or failed during it, on this rank."""

    code = "backend"


class RankFailure(BusbwError):
    """A rank died, hung or disconnected; the message names rank, host, operation and size.

    ``lost``: the ranks that caused it (empty: unknown).
    ``said``: message of the backend.
    ``late``: whether their processes exist but did not answer in time.
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
    """The log of another tool contains no results, or those of several jobs; docs/logs.md lists the codes.

    said: the first sentence, without ``log``, the name of the log before it (None: the sentence has it)
    answer: both, and all where ``lines`` is empty
    lines: label and text of what follows, such as ``Why`` a job failed and what to ``Do``
    follows: how often what it says of a job follows from a failure of another rank: 0 seldom, 1 often (a rank waited
        for others in vain), 2 nearly always
    """

    code = "not-a-log"
    follows = 0

    def __init__(
        self, said: str, lines: Iterable[tuple[str, str]] = (), *, code: str | None = None, log: str | None = None
    ) -> None:
        self.said, self.log, self.lines = said, log, tuple(lines)
        self.answer = said if log is None else f"{log}: {said}"
        super().__init__(". ".join([self.answer, *map(": ".join, self.lines)]), code=code)


class AnalysisError(BusbwError):
    """The data do not allow the requested analysis."""

    code = "analysis"


class UnlikeRuns(UsageError):
    """Runs that cannot be pooled or compared; the message names the key and both values."""

    code = "unlike-runs"
