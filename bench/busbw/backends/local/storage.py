"""Writing and reading a file per rank: the speed of storage without the page cache."""

import errno
import json
import mmap
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from busbw.backends.base import Bound, Limits, Local, Operation
from busbw.errors import BackendError
from busbw.ops.settings import Access
from busbw.runs.records import CrossCheck
from busbw.units import format_size

Bytes = npt.NDArray[np.uint8]


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
            raise BackendError(self.explain(error)) from error

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
        message = f"a file of {format_size(self.size_bytes)} in {self._folder}: {error.strerror or error}"
        if error.errno in FULL:
            return f"{message}; {MAKE_ROOM}"
        if error.errno in {errno.EINVAL, errno.EOPNOTSUPP}:
            return f"{message}; if O_DIRECT does not allow this path or block size, set direct = false in the plan"
        return message

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
    except OSError:
        os.close(opened)
        raise
    finally:
        Path(name).unlink()
    return opened


def fio_command(fio: str, file: str, size_bytes: int, access: Access, *, writes: bool) -> tuple[str, ...] | None:
    """fio's command line for the same accesses as ours: ``size_bytes`` of ``file`` once from start to end.

    fio always leaves out a last partial block. None if fio has no suitable engine: without O_DIRECT, none accesses more
    than one block concurrently.
    """
    direct = access.way == "direct"
    if not direct and access.depth > 1:
        return None
    engine = ("--ioengine=libaio", f"--iodepth={access.depth}") if direct else ("--ioengine=psync",)
    return (
        fio,
        "--name=busbw",
        "--thread",
        f"--filename={file}",
        f"--rw={'write' if writes else 'read'}",
        f"--size={size_bytes - _rest(size_bytes, access)}",
        f"--bs={min(access.block_bytes, size_bytes)}",
        f"--direct={int(direct)}",
        *engine,
        # The unlinked file is reused; written data count once they are on the device.
        *(("--overwrite=1", "--end_fsync=1") if writes else ("--invalidate=1",)),
        "--output-format=json",
    )


def _rest(size_bytes: int, access: Access) -> int:
    """Bytes of a partial block at the end of the file."""
    return size_bytes % min(access.block_bytes, size_bytes)


def fio_check(file: str, size_bytes: int, access: Access, timeout_seconds: float, *, writes: bool) -> CrossCheck | None:
    """Rate that fio measures for ``file`` on this rank; None if it is not installed or has no suitable engine.

    A job that failed, or took longer than ``timeout_seconds``, has an error in place of a rate.
    """
    fio = shutil.which("fio")
    job = None if fio is None else fio_command(fio, file, size_bytes, access, writes=writes)
    if job is None:
        return None
    settings = " ".join(part for part in job[1:] if not part.startswith(("--name", "--filename", "--output")))
    if rest := _rest(size_bytes, access):
        settings += f" (without the partial block of {rest} B at the end of {size_bytes} B)"
    check = partial(CrossCheck, tool="fio", version="", settings=settings)
    try:
        # The kernel kills it when this process dies, if util-linux is installed.
        command = job if shutil.which("setpriv") is None else ("setpriv", "--pdeathsig", "KILL", *job)
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_seconds, check=False)
        # Warnings may precede the JSON.
        report = json.loads(done.stdout[done.stdout.index("{") :])
        rate = float(report["jobs"][0]["write" if writes else "read"]["bw_bytes"])
        version = str(report["fio version"]).removeprefix("fio-")
    except subprocess.TimeoutExpired:
        return check(error=f"not finished after {timeout_seconds:g} s, half of --timeout")
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, IndexError) as error:
        return check(error=f"{type(error).__name__}: {error}")
    if rate <= 0:
        return check(version=version, error=(done.stderr.strip().splitlines() or ["no data were moved"])[0])
    return check(version=version, bytes_per_second=(rate,))


_NOISE_BYTES = 1 << 20
_NOISE_SEED = 5
_POISON = 0xFF


class _DataFile:
    """A file with the data that ``bound`` sends.

    The error of a failed call is raised when its data are checked; raising between two samples would leave the other
    ranks waiting. The data repeat, so random noise is XORed over them: otherwise compressing storage would hold little.
    """

    def __init__(self, bound: Bound, *, writes: bool) -> None:
        access = bound.case.settings
        if not isinstance(access, Access):
            raise BackendError(f"{bound.case.op} needs 'blocks' in its case")
        self._bound, self._writes = bound, writes
        self.file = BlockFile(bound.path, bound.case.size_bytes, access)
        self._random = np.random.default_rng(_NOISE_SEED)
        self._noise = np.zeros(_NOISE_BYTES, dtype=np.uint8)
        self._fresh = True
        self._failed: OSError | None = None

    def prepare(self) -> None:
        """Fill the memory with the data; before a read put them into the file, and out of memory and the page cache."""
        if self._fresh:
            # New noise, so that data left from an earlier check count as wrong.
            self._noise = self._random.integers(0, 256, _NOISE_BYTES, dtype=np.uint8)
            torch.from_numpy(self.file.memory).copy_(self._bound.send.view(torch.uint8))
            self._xor_noise()
            self._fresh = False
            if not self._writes:
                self.attempt(self.file.write)
                self.file.memory.fill(_POISON)
        if not self._writes:
            self.attempt(self.file.drop_cache)

    def wrong(self) -> int:
        """Count wrong elements that were read, or written and read back. Raises BackendError if any call failed."""
        if self._writes:
            self.file.memory.fill(_POISON)
            self.attempt(self.file.drop_cache)
            self.attempt(self.file.read)
        failed, self._failed, self._fresh = self._failed, None, True
        if failed is not None:
            raise BackendError(self.file.explain(failed)) from failed
        self._xor_noise()
        self._bound.receive.view(torch.uint8).copy_(torch.from_numpy(self.file.memory))
        return int(torch.count_nonzero(self._bound.receive != self._bound.send))

    def _xor_noise(self) -> None:
        """XOR the noise over the memory; a second call removes it."""
        for start in range(0, self.file.size_bytes, _NOISE_BYTES):
            part = self.file.memory[start : start + _NOISE_BYTES]
            part ^= self._noise[: len(part)]

    def attempt(self, what: Callable[[], None]) -> None:
        """Call ``what`` unless a call has failed."""
        if self._failed is None:
            try:
                what()
            except OSError as error:
                self._failed = error


def _bind(bound: Bound, *, writes: bool) -> Operation:
    data_file = _DataFile(bound, writes=writes)
    file = data_file.file
    return Operation(
        lambda: data_file.attempt(file.write if writes else file.read),
        wrong=data_file.wrong,
        prepare=data_file.prepare,
        other_tool=partial(fio_check, file.name, file.size_bytes, file.access, writes=writes),
        free=file.close,
    )


_LIMITS = Limits(modes=("isolated",), caches=("warm",))

OPERATIONS: dict[str, Local] = {
    "storage_write": Local(partial(_bind, writes=True), _LIMITS),
    "storage_read": Local(partial(_bind, writes=False), _LIMITS),
}
