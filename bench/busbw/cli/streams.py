"""Protection against a stdout or stderr that is closed, full or no longer read: runs continue.

Output that stdout lost is told on stderr. Whoever closes a stream wants nothing of it.
"""

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
    """

    def __init__(self, number: int, *, strict: bool) -> None:
        super().__init__(number, "w", closefd=False)
        self.error: OSError | None = None
        self._strict = strict

    def write(self, data: "ReadableBuffer") -> int:
        """Write, or keep the error. Raises OSError for the first error if ``strict``."""
        size = memoryview(data).nbytes
        if self.error is not None:
            return size
        try:
            return super().write(data)
        except OSError as error:
            self.error = error
            if self._strict and not isinstance(error, BrokenPipeError):
                raise
            return size


@dataclass(frozen=True, slots=True)
class Streams:
    """stdout of this process (None: replaced by another object, such as in a test)."""

    out: _Raw | None

    def raised(self, error: OSError) -> bool:
        """Whether ``error`` is the error of stdout."""
        return self.out is not None and error is self.out.error

    def status_after(self, status: int) -> int:
        """Flush both streams and return the exit status, which is ``status`` unless output of stdout was lost. A reader
        that has gone is not a failure.
        """
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError as error:
                if not self.raised(error):
                    raise
        lost = None if self.out is None else self.out.error
        if lost is None or isinstance(lost, BrokenPipeError):
            return status
        say(f"cannot write to stdout: {lost.strerror}")
        return status or 1


def guard() -> Streams:
    """Replace stdout and stderr by streams that fail at most once.

    Descriptors 0 to 2 that are closed become /dev/null. Otherwise a file of a run could get such a number, and messages
    of libraries would be written into it.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets ``number``, the lowest one that is free
    raws: dict[str, _Raw | None] = {}
    for number, name in ((1, "stdout"), (2, "stderr")):
        old: TextIO | None = getattr(sys, name)
        if old is not None and old is not getattr(sys, f"__{name}__"):
            raws[name] = None
            continue
        raws[name] = raw = _Raw(number, strict=number == 1)
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
    return Streams(raws["stdout"])
