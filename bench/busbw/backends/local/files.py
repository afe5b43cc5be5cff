"""A file that is gone through in blocks, several of them under way at once, past the page cache where that can be had.

The file has no name from the moment that it is open: whatever becomes of this process, nothing of it is left.
"""

import errno
import mmap
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
import numpy.typing as npt

from busbw.errors import BackendError
from busbw.ops.storage import Access
from busbw.units import format_size

Bytes = npt.NDArray[np.uint8]

O_DIRECT: int = getattr(os, "O_DIRECT", 0)
"""0 where the system has none."""

_WITH_DIRECT = " with O_DIRECT"

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the system says where there is no room for more."""
MAKE_ROOM = "free some space there, or ask for smaller sizes, fewer ranks or another path"


class BlockFile:
    """A file of ``size_bytes`` in ``folder``, which is made where it is missing, and memory for all of it, at the start
    of a page. Raises BackendError when it cannot be made.
    """

    def __init__(self, folder: Path, size_bytes: int, access: Access) -> None:
        self.size_bytes = size_bytes
        try:
            self.memory: Bytes = np.frombuffer(mmap.mmap(-1, size_bytes), dtype=np.uint8)
        except (OSError, OverflowError) as error:
            raise BackendError(
                f"{format_size(size_bytes)} of memory for a file of as many cannot be had: {error}"
            ) from error
        self._folder = folder
        self._access = access
        self._block = min(access.block_bytes, size_bytes)
        self._pool = ThreadPoolExecutor(access.depth) if access.depth > 1 else None
        try:
            self._file = opened_nameless(folder, direct=access.way == "direct")
        except OSError as error:
            raise BackendError(in_words(error, folder, size_bytes)) from error

    @property
    def name(self) -> str:
        """By which other processes of this user can open it."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    def write(self) -> None:
        """All of the memory into the file, and until the device has it. Raises OSError."""
        self._all_blocks(self._write_block)
        os.fsync(self._file)

    def read(self) -> None:
        """All of the file into the memory. Raises OSError."""
        self._all_blocks(self._read_block)

    def forget(self) -> None:
        """Have the page cache drop the file, where it is not kept out of it anyway. Raises OSError."""
        if self._access.way != "direct" and hasattr(os, "posix_fadvise"):
            os.fsync(self._file)  # what is not on the device yet cannot be dropped
            os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)

    def explain(self, error: OSError) -> str:
        """What went wrong with this file, and what can be done about it."""
        return in_words(error, self._folder, self.size_bytes)

    def close(self) -> None:
        """End the threads and give the file back to the file system."""
        if self._pool is not None:
            self._pool.shutdown()
        os.close(self._file)

    def _all_blocks(self, move: Callable[[int], None]) -> None:
        if self._pool is None:
            self._every(move, 0, 1)
            return
        depth = self._access.depth
        # Each thread has one block under way and takes every depth-th: they stay about side by side in the file.
        under_way = [self._pool.submit(self._every, move, first, depth) for first in range(depth)]
        wait(under_way)  # also where one has failed: none may go on into the next call
        for done in under_way:
            done.result()

    def _every(self, move: Callable[[int], None], first: int, step: int) -> None:
        for start in range(first * self._block, self.size_bytes, step * self._block):
            move(start)

    def _write_block(self, start: int) -> None:
        end = min(start + self._block, self.size_bytes)
        while start < end:
            start += os.pwrite(self._file, self.memory[start:end].data, start)

    def _read_block(self, start: int) -> None:
        end = min(start + self._block, self.size_bytes)
        while start < end:
            count = os.preadv(self._file, [self.memory[start:end].data], start)
            if count == 0:
                raise OSError(errno.EIO, f"the file ends after {start} of {self.size_bytes} bytes")
            start += count


def opened_nameless(folder: Path, *, direct: bool) -> int:
    """A new file in ``folder``, open for reading and writing, whose name is gone. Raises OSError."""
    folder.mkdir(exist_ok=True)
    opened, name = tempfile.mkstemp(prefix="busbw-", dir=folder)
    try:
        if direct:
            # Not at once: some file systems make the file and refuse O_DIRECT then.
            again = os.open(name, os.O_RDWR | O_DIRECT)
            os.close(opened)
            opened = again
    except OSError as error:
        os.close(opened)
        raise OSError(error.errno, f"{error.strerror}{_WITH_DIRECT}") from error
    finally:
        Path(name).unlink()
    return opened


def in_words(error: OSError, folder: Path, size_bytes: int) -> str:
    """What the system says of a file of so many bytes in ``folder``, and what can be done about it."""
    said = f"a file of {format_size(size_bytes)} in {folder}: {error.strerror or error}"
    if error.errno in FULL:
        return f"{said}; {MAKE_ROOM}"
    if error.errno == errno.EINVAL:
        return f"{said}; where O_DIRECT wants other blocks than these, direct = false in the plan does without it"
    if str(error.strerror).endswith(_WITH_DIRECT):
        return f"{said}; direct = false in the plan does without it"
    return said
