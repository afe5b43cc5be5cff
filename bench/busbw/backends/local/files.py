"""A file accessed in blocks, several of them concurrently, bypassing the page cache where possible.

The file is unlinked as soon as it is open, so nothing remains however this process ends.
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


_WITH_DIRECT = " with O_DIRECT"

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers for missing space."""
MAKE_ROOM = "free some space there, or ask for smaller sizes, fewer ranks or another path"


class BlockFile:
    """A file of ``size_bytes`` in ``folder`` (created if missing), and page-aligned memory of the same size.

    Raises BackendError if either cannot be created.
    """

    def __init__(self, folder: Path, size_bytes: int, access: Access) -> None:
        self.size_bytes = size_bytes
        try:
            self.memory: Bytes = np.frombuffer(mmap.mmap(-1, size_bytes), dtype=np.uint8)
        except (OSError, OverflowError) as error:
            raise BackendError(
                f"cannot allocate {format_size(size_bytes)} of memory for a file of the same size: {error}"
            ) from error
        self._folder = folder
        self.access = access
        self._block = min(access.block_bytes, size_bytes)
        self._pool = ThreadPoolExecutor(access.depth) if access.depth > 1 else None
        try:
            self._file = open_unlinked(folder, direct=access.way == "direct")
        except OSError as error:
            raise BackendError(in_words(error, folder, size_bytes)) from error

    @property
    def name(self) -> str:
        """Path under which other processes of this user can open the file."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    def write(self) -> None:
        """Write the memory to the file and wait until it is on the device. Raises OSError."""
        self._all_blocks(self._write_block)
        os.fsync(self._file)

    def read(self) -> None:
        """Read the file into the memory. Raises OSError."""
        self._all_blocks(self._read_block)

    def drop_cache(self) -> None:
        """Drop the file from the page cache, unless it is accessed with O_DIRECT. Raises OSError."""
        if self.access.way != "direct":
            os.fsync(self._file)  # dirty pages cannot be dropped
            os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)

    def explain(self, error: OSError) -> str:
        """Message for an error of this file, with advice."""
        return in_words(error, self._folder, self.size_bytes)

    def close(self) -> None:
        """End the threads and close the file."""
        if self._pool is not None:
            self._pool.shutdown()
        os.close(self._file)

    def _all_blocks(self, move: Callable[[int], None]) -> None:
        if self._pool is None:
            self._every(move, 0, 1)
            return
        depth = self.access.depth
        # Each thread accesses every depth-th block, one at a time, so all stay close together in the file.
        under_way = [self._pool.submit(self._every, move, first, depth) for first in range(depth)]
        wait(under_way)  # even if one has failed, because none may continue into the next call
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


def open_unlinked(folder: Path, *, direct: bool) -> int:
    """Create, open for reading and writing, and unlink a file in ``folder``. Raises OSError."""
    folder.mkdir(exist_ok=True)
    opened, name = tempfile.mkstemp(prefix="busbw-", dir=folder)
    try:
        if direct:
            # In two steps, because some file systems create the file before they refuse O_DIRECT.
            again = os.open(name, os.O_RDWR | os.O_DIRECT)
            os.close(opened)
            opened = again
    except OSError as error:
        os.close(opened)
        raise OSError(error.errno, f"{error.strerror}{_WITH_DIRECT}") from error
    finally:
        Path(name).unlink()
    return opened


def in_words(error: OSError, folder: Path, size_bytes: int) -> str:
    """Message for an error of a file of ``size_bytes`` in ``folder``, with advice."""
    message = f"a file of {format_size(size_bytes)} in {folder}: {error.strerror or error}"
    if error.errno in FULL:
        return f"{message}; {MAKE_ROOM}"
    if error.errno == errno.EINVAL:
        return f"{message}; if O_DIRECT does not allow this block size, set direct = false in the plan"
    if str(error.strerror).endswith(_WITH_DIRECT):
        return f"{message}; set direct = false in the plan to avoid O_DIRECT"
    return message
