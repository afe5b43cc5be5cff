"""Files that somebody else may have put there: only regular ones are opened, and nothing is read without a bound."""

import errno
import gzip
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from busbw.errors import StoreError

LONGEST_LINE_BYTES = 2 << 30
"""Of one row: some 80 million samples of a group, or all pairs of 1,500 ranks."""

MOST_DOCUMENT_BYTES = 256 << 20
"""Of one JSON document, the facts of some 10,000 hosts."""

_MOST_OF_PACKED = 100
_ALWAYS_UNPACKED_BYTES = 1 << 20
"""Samples shrink to a third; what grows beyond 100 times its packed size (and this) was made to fill the memory."""

_PIECE_BYTES = 1 << 20


class NotRegular(OSError):
    """A folder, a pipe, a device: reading it might never end."""


class TooLong(OSError):
    """More bytes than what was written there can have."""


@contextmanager
def explained(doing: str, path: Path) -> Iterator[None]:
    """Within, an OSError becomes the StoreError that one cannot be ``doing`` (read, write, open) ``path``."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot {doing} {path}: {error.strerror}") from error


def opened(path: Path) -> IO[bytes]:
    """``path`` opened for reading. Raises NotRegular for what is no regular file, OSError as ``open`` does."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        require_regular(handle)
        return os.fdopen(handle, "rb")
    except OSError:
        os.close(handle)
        raise


@contextmanager
def replaced(target: Path) -> Iterator[IO[bytes]]:
    """A draft that takes the place of ``target`` in one step, once all of it is on the disk; of one that fails nothing
    is left. Raises OSError.
    """
    draft = target.with_name(f".{target.name}.draft")
    try:
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    except OSError:
        with suppress(OSError):
            draft.unlink()
        raise


def require_regular(handle: int) -> None:
    """Raise NotRegular when the open file ``handle`` is no regular file."""
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise NotRegular(errno.EINVAL, "it is no regular file")


def document(path: Path) -> bytes:
    """All bytes of a JSON document. Raises as ``opened``, and TooLong."""
    with opened(path) as file:
        content = file.read(MOST_DOCUMENT_BYTES + 1)
    if len(content) > MOST_DOCUMENT_BYTES:
        raise TooLong(errno.EFBIG, f"it has more than the {MOST_DOCUMENT_BYTES} bytes that are read of it")
    return content


@contextmanager
def lines(path: Path, *, packed: bool) -> Iterator[Iterator[bytes]]:
    """The lines of ``path``, each with its newline but for a last one that is torn; ``packed``: gzip.

    Raises as ``opened``, and while lines are taken TooLong, and what gzip raises for a broken archive.
    """
    with opened(path) as file:
        if not packed:
            yield _lines(file, LONGEST_LINE_BYTES)
            return
        most = _MOST_OF_PACKED * os.fstat(file.fileno()).st_size + _ALWAYS_UNPACKED_BYTES
        with gzip.GzipFile(fileobj=file) as unpacked:
            yield _lines(unpacked, min(most, LONGEST_LINE_BYTES), most)


def _lines(file: IO[bytes] | gzip.GzipFile, longest: int, most: int | None = None) -> Iterator[bytes]:
    taken = 0
    while line := _line(file, longest + 1):
        taken += len(line)
        if len(line) > longest or (most is not None and taken > most):
            raise TooLong(errno.EFBIG, "it has more bytes than rows that were measured can have")
        yield line
        del line  # a long one is gone before the next one is there


def _line(file: IO[bytes] | gzip.GzipFile, most: int) -> bytes:
    """``file.readline(most)``, which would have the pieces of a long line and the line at one time."""
    line = file.readline(min(most, _PIECE_BYTES))
    if len(line) < _PIECE_BYTES or line.endswith(b"\n"):
        return line
    whole = io.BytesIO()
    whole.write(line)
    while not line.endswith(b"\n") and (line := file.readline(min(most - whole.tell(), _PIECE_BYTES))):
        whole.write(line)
    return whole.getvalue()
