"""Lock of a run folder: one writer at a time. The kernel releases the lock when its holder dies."""

import errno
import fcntl
from pathlib import Path
from typing import Self

from busbw.errors import StoreError
from busbw.runs import files
from busbw.runs.store import SAMPLES_FILE

_HELD = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}
"""errno if another process holds the lock; a file system without locks returns another errno."""


class RunLock:
    """Lock on the samples of a run, from construction until ``close``, or until all processes that were forked in
    between have exited: a run whose launcher died stays locked as long as one of its ranks lives.

    ``sure`` is False on a file system without locks (some parallel ones are mounted so), where nothing keeps a second
    writer away. Raises StoreError if another process holds the lock, or the samples cannot be opened.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / SAMPLES_FILE
        with files.store_errors("open", path):
            self._file = path.open("ab")
        self.sure = True
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _HELD:
                self._file.close()
                raise StoreError(
                    f"run {folder.name} is still being measured, or is being resumed by another process; "
                    "wait until that process ends"
                ) from error
            self.sure = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock; a second call does nothing."""
        self._file.close()
