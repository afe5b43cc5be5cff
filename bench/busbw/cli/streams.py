"""stdout and stderr that may be closed, full or not read any more: no run is lost by them, and the user hears of it."""

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
    """A descriptor that is written to until that fails once; what follows goes nowhere. Not ``strict``: the failure is
    not raised, as it never is where a reader has gone: a command then ends with the status that it has for its data.
    ``closed_before``: it was closed when the program began.
    """

    def __init__(self, number: int, *, strict: bool, closed_before: bool) -> None:
        super().__init__(number, "w", closefd=False)
        self.error: OSError | None = None
        self._strict = strict
        self._closed_before = closed_before

    def write(self, data: "ReadableBuffer") -> int:
        """Write, or remember why not. Raises OSError the first time, where it is strict."""
        size = memoryview(data).nbytes
        if self.error is not None:
            return size
        try:
            if self._closed_before:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))  # noqa: TRY301 - as the system would
            return super().write(data)
        except OSError as error:
            self.error = error
            if self._strict and not isinstance(error, BrokenPipeError):
                raise
            return size


@dataclass(frozen=True, slots=True)
class Streams:
    """The two streams of this process, where they are its own (None: somebody else has put another one there)."""

    out: _Raw | None
    err: _Raw | None

    def raised(self, error: OSError) -> bool:
        """Whether ``error`` is that of stdout."""
        return self.out is not None and error is self.out.error

    def status_after(self, status: int, *, data_only: bool) -> int:
        """The exit status when all is written, ``status`` so far. What could not be written is told on the other
        stream; stdout is left alone when it is for programs (``data_only``). A reader that has gone is no failure.
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
    """Put streams in the place of stdout and stderr that fail once at most. Descriptors 0 to 2 that are closed become
    /dev/null, so that no file of a run gets their number, where a library's message would land in it.
    """
    closed = set()
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            closed.add(number)
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
    raws: list[_Raw | None] = []
    for number, name in ((1, "stdout"), (2, "stderr")):
        old: TextIO | None = getattr(sys, name)
        if old is not None and old is not getattr(sys, f"__{name}__"):
            raws.append(None)
            continue
        raw = _Raw(number, strict=number == 1, closed_before=old is None or number in closed)
        raws.append(raw)
        # What a locale cannot show is escaped: a table is no reason to fail, either.
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
