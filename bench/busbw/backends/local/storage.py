"""Writing and reading a file of this rank's own: how fast storage is when nothing of it comes out of memory."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from busbw.backends.base import Operation
from busbw.backends.local import fio
from busbw.backends.local.base import Bound, Local
from busbw.backends.local.files import BlockFile
from busbw.errors import BackendError
from busbw.ops.base import first_reason
from busbw.runs.records import Case, CrossCheck

_NOISE_BYTES = 1 << 20
_NOISE_SEED = 5
_POISON = 0xFF


class _Kept:
    """What ``bound`` sends, in a file. A call that fails says so when its data are asked for: raising between two
    samples would leave the other ranks waiting for the next one.

    Noise is laid over the data, which repeat: storage that compresses would otherwise hold next to nothing.
    """

    def __init__(self, bound: Bound) -> None:
        if bound.folder is None:
            raise BackendError(f"{bound.case.op} was not told where: give --path DIR, or 'path' in the plan")
        if bound.case.access is None:
            raise BackendError(f"{bound.case.op} was not told how: its case has no blocks")
        self._bound = bound
        self._access = bound.case.access
        self.file = BlockFile(bound.folder, bound.case.size_bytes, self._access)
        self._random = np.random.default_rng(_NOISE_SEED)
        self._noise = np.zeros(_NOISE_BYTES, dtype=np.uint8)
        self._fresh = True
        self._failed: OSError | None = None

    def prepare_to_write(self) -> None:
        """The memory has what is sent."""
        if self._fresh:
            self._fill()

    def prepare_to_read(self) -> None:
        """The file has what is sent, and nothing else does."""
        if self._fresh:
            self._fill()
            self._try(self.file.write)
            self.file.memory.fill(_POISON)
        self._try(self.file.forget)

    def write(self) -> None:
        """The call."""
        self._try(self.file.write)

    def read(self) -> None:
        """The call."""
        self._try(self.file.read)

    def wrong_written(self) -> int:
        """Read what was written, and count what is not as it was sent. Raises BackendError when any call failed."""
        self.file.memory.fill(_POISON)
        self._try(self.file.forget)
        self._try(self.file.read)
        return self.wrong_read()

    def wrong_read(self) -> int:
        """Count what was read and is not as it was sent. Raises BackendError when any call failed."""
        failed, self._failed, self._fresh = self._failed, None, True
        if failed is not None:
            raise BackendError(self.file.explain(failed)) from failed
        self._lay_noise()
        self._bound.receive.view(torch.uint8).copy_(torch.from_numpy(self.file.memory))
        return int(torch.count_nonzero(self._bound.receive != self._bound.send))

    def cross_checked(self, timeout_seconds: float, *, writes: bool) -> CrossCheck | None:
        """What fio says of the same file."""
        return fio.measured(self.file.name, self.file.size_bytes, self._access, timeout_seconds, writes=writes)

    def _fill(self) -> None:
        """With other noise than the time before: what an earlier check has left in the file must not pass for data."""
        self._noise = self._random.integers(0, 256, _NOISE_BYTES, dtype=np.uint8)
        torch.from_numpy(self.file.memory).copy_(self._bound.send.view(torch.uint8))
        self._lay_noise()
        self._fresh = False

    def _lay_noise(self) -> None:
        """Over the memory; a second time takes it away."""
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
    kept = _Kept(bound)
    return Operation(
        kept.write if writes else kept.read,
        wrong=kept.wrong_written if writes else kept.wrong_read,
        prepare=kept.prepare_to_write if writes else kept.prepare_to_read,
        cross_check=partial(kept.cross_checked, writes=writes),
        free=kept.file.close,
    )


def _refuse(case: Case) -> str | None:
    return first_reason(
        (
            case.mode != "isolated",
            f"{case.op} is timed call by call (mode isolated): before each one the page cache is kept out",
        ),
        (case.cache != "warm", "caches of the processor say nothing of storage; want cache warm"),
        (case.pre_enqueue, "files are not handed to a device's stream"),
    )


OPERATIONS: dict[str, Local] = {
    "storage_write": Local(partial(_bind, writes=True), _refuse),
    "storage_read": Local(partial(_bind, writes=False), _refuse),
}
