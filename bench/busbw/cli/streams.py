"""Protection against a stdout or stderr that is closed, full or no longer read: runs continue, and the user is told.

Only stderr may be closed: whoever closes it wants no messages.
"""

import errno
import io
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from busbw.escape import say

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class _Raw(io.FileIO):
    """A file descriptor that is written to until a write fails; later output is discarded.

    ``strict``: raise the first failure, except that of a closed pipe, so that a missing reader changes no exit status.
    ``closed_before``: the descriptor was closed when the program started.
    """

    def __init__(self, number: int, *, strict: bool, closed_before: bool) -> None:
        super().__init__(number, "w", closefd=False)
        self.error: OSError | None = None
        self._strict = strict
        self._closed_before = closed_before

    def write(self, data: "ReadableBuffer") -> int:
        """Write, or keep the error. Raises OSError for the first error if ``strict``."""
        size = memoryview(data).nbytes
        if self.error is not None:
            return size
        try:
            if self._closed_before:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))  # noqa: TRY301 - as the system would raise it
            return super().write(data)
        except OSError as error:
            self.error = error
            if self._strict and not isinstance(error, BrokenPipeError):
                raise
            return size


@dataclass(frozen=True, slots=True)
class Streams:
    """stdout and stderr of this process (None: replaced by another object, such as in a test)."""

    out: _Raw | None
    err: _Raw | None

    def raised(self, error: OSError) -> bool:
        """Whether ``error`` is the error of stdout."""
        return self.out is not None and error is self.out.error

    def status_after(self, status: int, *, data_only: bool) -> int:
        """Flush both streams and return the exit status, which is ``status`` unless output was lost.

        Lost output of one stream is reported on the other, but not on stdout if that is for programs (``data_only``).
        A reader that has gone is not a failure.
        """
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError as error:
                if not self.raised(error):
                    raise
        out, err = (None if raw is None else raw.error for raw in (self.out, self.err))
        if out is not None and not isinstance(out, BrokenPipeError):
            say(f"cannot write to stdout: {out.strerror}")
            status = status or 1
        if err is not None and not isinstance(err, BrokenPipeError):
            if not data_only and out is None:
                sys.stdout.write(f"# busbw: cannot write to stderr: {err.strerror}\n")
                sys.stdout.flush()
            status = status or 1
        return status


def guard() -> Streams:
    """Replace stdout and stderr by streams that fail at most once.

    Descriptors 0 to 2 that are closed become /dev/null. Otherwise a file of a run could get such a number, and messages
    of libraries would be written into it. Writing to a stdout that was closed still fails.
    """
    closed = set()
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            closed.add(number)
            os.open(os.devnull, os.O_RDWR)  # gets ``number``, the lowest one that is free
    raws: list[_Raw | None] = []
    for number, name in ((1, "stdout"), (2, "stderr")):
        old: TextIO | None = getattr(sys, name)
        if old is not None and old is not getattr(sys, f"__{name}__"):
            raws.append(None)
            continue
        gone = number == 1 and (old is None or number in closed)
        raw = _Raw(number, strict=number == 1, closed_before=gone)
        raws.append(raw)
        # Characters that the locale cannot show are escaped instead of raising an error.
        setattr(
            sys,
            name,
            io.TextIOWrapper(
                io.BufferedWriter(raw),
                encoding="utf-8" if old is None else old.encoding,
                errors="backslashreplace" if old is None or old.errors == "strict" else old.errors,
                line_buffering=number == 2 or (old is not None and old.isatty()),
            ),
        )
    return Streams(*raws)
