"""Who may write into a run folder: one run at a time, by a lock that the kernel releases when its holder dies."""

import errno
import fcntl
import os
from pathlib import Path
from typing import Self

from busbw.errors import StoreError
from busbw.runs import files
from busbw.runs.store import SAMPLES_FILE

_HELD = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}
"""What another holder looks like; a file system without locks answers something else."""


class RunLock:
    """Holds the lock on the samples of a run from its making until ``close``, or until the last process that was
    forked in between is gone too: a run that lost its launcher is claimed as long as a rank of it lives.

    ``sure`` is False where the file system has no locks (some parallel ones are mounted without), so that nothing
    keeps a second writer away. Raises StoreError when another one holds it, or the samples cannot be opened.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / SAMPLES_FILE
        with files.explained("open", path):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.sure = True
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _HELD:
                os.close(self._file)
                raise StoreError(
                    f"run {folder.name} is still going on, or is being resumed by somebody else; "
                    "a run has one writer at a time"
                ) from error
            self.sure = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the next one in; once is enough, and again does no harm."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
