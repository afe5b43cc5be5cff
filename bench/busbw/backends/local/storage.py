"""Writing and reading a file per rank: the speed of storage without the page cache."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from busbw.backends.base import Operation
from busbw.backends.local import fio
from busbw.backends.local.base import Bound, Local
from busbw.backends.local.files import BlockFile
from busbw.backends.supplements import OtherTool
from busbw.errors import BackendError
from busbw.ops.base import first_reason
from busbw.ops.storage import Access
from busbw.runs.records import Case

_NOISE_BYTES = 1 << 20
_NOISE_SEED = 5
_POISON = 0xFF


class _DataFile:
    """A file with the data that ``bound`` sends.

    The error of a failed call is raised when its data are checked; raising between two samples would leave the other
    ranks waiting. The data repeat, so random noise is XORed over them: otherwise compressing storage would hold little.
    """

    def __init__(self, bound: Bound) -> None:
        if bound.folder is None:
            raise BackendError(f"{bound.case.op} needs a folder: give --path DIR, or 'path' in the plan")
        access = bound.case.settings
        if not isinstance(access, Access):
            raise BackendError(f"{bound.case.op} needs 'blocks' in its case")
        self._bound = bound
        self.file = BlockFile(bound.folder, bound.case.size_bytes, access)
        self._random = np.random.default_rng(_NOISE_SEED)
        self._noise = np.zeros(_NOISE_BYTES, dtype=np.uint8)
        self._fresh = True
        self._failed: OSError | None = None

    def prepare_to_write(self) -> None:
        """Fill the memory with the data."""
        if self._fresh:
            self._fill()

    def prepare_to_read(self) -> None:
        """Put the data into the file, and remove them from memory and the page cache."""
        if self._fresh:
            self._fill()
            self._try(self.file.write)
            self.file.memory.fill(_POISON)
        self._try(self.file.drop_cache)

    def write(self) -> None:
        """Write the file (the timed call)."""
        self._try(self.file.write)

    def read(self) -> None:
        """Read the file (the timed call)."""
        self._try(self.file.read)

    def wrong_written(self) -> int:
        """Read the file back and count wrong elements. Raises BackendError if any call failed."""
        self.file.memory.fill(_POISON)
        self._try(self.file.drop_cache)
        self._try(self.file.read)
        return self.wrong_read()

    def wrong_read(self) -> int:
        """Count wrong elements in the memory. Raises BackendError if any call failed."""
        failed, self._failed, self._fresh = self._failed, None, True
        if failed is not None:
            raise BackendError(self.file.explain(failed)) from failed
        self._xor_noise()
        self._bound.receive.view(torch.uint8).copy_(torch.from_numpy(self.file.memory))
        return int(torch.count_nonzero(self._bound.receive != self._bound.send))

    def _fill(self) -> None:
        """Fill the memory with data and new noise, so that data left from an earlier check count as wrong."""
        self._noise = self._random.integers(0, 256, _NOISE_BYTES, dtype=np.uint8)
        torch.from_numpy(self.file.memory).copy_(self._bound.send.view(torch.uint8))
        self._xor_noise()
        self._fresh = False

    def _xor_noise(self) -> None:
        """XOR the noise over the memory; a second call removes it."""
        for start in range(0, self.file.size_bytes, _NOISE_BYTES):
            part = self.file.memory[start : start + _NOISE_BYTES]
            part ^= self._noise[: len(part)]

    def _try(self, what: Callable[[], None]) -> None:
        if self._failed is None:
            try:
                what()
            except OSError as error:
                self._failed = error


def _bind(bound: Bound, *, writes: bool) -> Operation:
    data_file = _DataFile(bound)
    file = data_file.file
    return Operation(
        data_file.write if writes else data_file.read,
        wrong=data_file.wrong_written if writes else data_file.wrong_read,
        prepare=data_file.prepare_to_write if writes else data_file.prepare_to_read,
        supplement=OtherTool(partial(fio.measured, file.name, file.size_bytes, file.access, writes=writes)),
        free=file.close,
    )


def _refuse(case: Case) -> str | None:
    return first_reason(
        (
            case.mode != "isolated",
            f"{case.op} supports only mode isolated, because the page cache is dropped before each call",
        ),
        (case.cache != "warm", "storage operations support only cache warm: CPU caches do not matter"),
        (case.pre_enqueue, "file operations cannot be enqueued on a device's stream"),
    )


OPERATIONS: dict[str, Local] = {
    "storage_write": Local(partial(_bind, writes=True), _refuse),
    "storage_read": Local(partial(_bind, writes=False), _refuse),
}
