"""Lock of a run folder: one writer at a time. The kernel releases the lock when its holder dies."""

import errno
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from busbw.errors import StoreError
from busbw.runs import files
from busbw.runs.store import SAMPLES_FILE

_HELD = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}
"""errno if another process holds the lock; a file system without locks returns another errno."""


@contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Lock the samples of a run until the end of the block, or until all processes that were forked in it have exited:
    a run whose launcher died stays locked as long as one of its ranks lives.

    False on a file system without locks (some parallel ones are mounted so), where nothing keeps a second writer away.
    Raises StoreError if another process holds the lock, or the samples cannot be opened.
    """
    path = folder / SAMPLES_FILE
    with files.store_errors("open", path):
        file = path.open("ab")
    with file:
        sure = True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _HELD:
                raise StoreError(
                    f"run {folder.name} is still being measured, or is being resumed by another process; "
                    "wait until that process ends"
                ) from error
            sure = False
        yield sure
