"""Reading files of unknown origin: only regular files are opened, and only a limited number of bytes is read."""

import errno
import gzip
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

from busbw.errors import StoreError

LONGEST_LINE_BYTES = 2 << 30
"""Longest row: about 80 million samples of a group, or all pairs of 1,500 ranks."""

MOST_DOCUMENT_BYTES = 256 << 20
"""Largest JSON document: the facts of about 10,000 hosts."""

_MOST_OF_PACKED = 100
_ALWAYS_UNPACKED_BYTES = 1 << 20
"""Samples compress to a third; a file that grows to more than 100 times its size (and this) is a zip bomb."""


class NotRegular(OSError):
    """A folder, pipe or device: reading it might never end."""


class TooLong(OSError):
    """The file is longer than any file that busbw writes."""


@contextmanager
def store_errors(doing: str, path: Path) -> Iterator[None]:
    """Turn an OSError in the block into StoreError: cannot ``doing`` (read, write, open) ``path``."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot {doing} {path}: {error.strerror}") from error


def opened(path: Path) -> IO[bytes]:
    """``path``, opened for reading. Raises NotRegular, and OSError like ``open``."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        require_regular(handle)
        return os.fdopen(handle, "rb")
    except OSError:
        os.close(handle)
        raise


@contextmanager
def replaced(target: Path) -> Iterator[IO[bytes]]:
    """As ``drafted``, but a link is followed, and a device or pipe, such as /dev/stdout, is written to."""
    if target.parent == Path("/dev") or (target.exists() and not target.is_file()):
        with target.open("wb") as file:
            yield file
        return
    with drafted(Path(os.path.realpath(target))) as file:
        yield file


@contextmanager
def drafted(target: Path) -> Iterator[IO[bytes]]:
    """A draft that replaces ``target`` atomically once it is completely on disk; a failed draft is removed. Raises
    OSError.
    """
    # Of this writer alone: another one may replace the same file meanwhile.
    draft = target.with_name(f".{secrets.token_hex(4)}.draft")
    try:
        with draft.open("wb") as file:
            with suppress(OSError):  # a new file, or a file system without modes
                os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """A folder that is removed at the end. Raises StoreError where none can be made."""
    try:
        made = TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True)
    except OSError as error:
        message = f"cannot make a temporary folder: {error.strerror}; set TMPDIR to a folder that can be written to"
        raise StoreError(message, code="no-temporary-folder") from error
    with made as place:
        yield Path(place)


def require_regular(handle: int) -> None:
    """Raise NotRegular if the open file ``handle`` is not a regular file."""
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        raise NotRegular(errno.EINVAL, "not a regular file")


def document(path: Path) -> bytes:
    """All bytes of a JSON document. Raises like ``opened``, and TooLong."""
    with opened(path) as file:
        # Not ``read`` of the most that is allowed, which takes that much memory first.
        if os.fstat(file.fileno()).st_size > MOST_DOCUMENT_BYTES:
            raise TooLong(errno.EFBIG, f"larger than the allowed {MOST_DOCUMENT_BYTES} bytes")
        return file.read()


@contextmanager
def lines(path: Path, *, packed: bool) -> Iterator[Iterator[bytes]]:
    """The lines of ``path`` with their newlines; only an incomplete last line has none. ``packed``: gzip.

    Raises like ``opened``; while iterating, TooLong and the exceptions of gzip for a broken archive.
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
    while line := file.readline(longest + 1):
        taken += len(line)
        if len(line) > longest or (most is not None and taken > most):
            raise TooLong(errno.EFBIG, "longer than measured rows can be")
        yield line
        del line  # frees a long line before the next one is read
