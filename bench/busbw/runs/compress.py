"""Large runs are packed when they have ended, and unpacked when they are resumed.

While a run is measured its samples are plain lines, so that a writer that is killed loses at most the last one. When it
has come to its end and has grown large, the file is compressed; ``store.read`` takes either. At every moment of it one
of the two files is whole: the packed one is put in its place in one step, and as long as it is there it counts.
"""

import contextlib
import gzip
import os
import shutil
import zlib
from pathlib import Path

from busbw.errors import StoreError
from busbw.runs import files
from busbw.runs.store import PACKED_FILE, SAMPLES_FILE

PACK_BYTES = 32 << 20
"""Samples that take less are left as they are: to be read by eye and with grep."""

_LEVEL = 6


def pack(folder: Path, least_bytes: int = PACK_BYTES) -> None:
    """Compress the samples of a run that has ended, if they take ``least_bytes`` or more.

    A disk that has no room for it is no reason to fail a run that is whole: the plain file then stays.
    """
    plain, packed = folder / SAMPLES_FILE, folder / PACKED_FILE
    # A disk that has no room for it, or a file that is gone, is no reason to fail.
    with contextlib.suppress(OSError):
        if plain.stat().st_size < least_bytes:
            return
        # No name and no time of day inside, so that the same samples give the same bytes.
        with (
            plain.open("rb") as source,
            files.replaced(packed) as file,
            gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=file, mtime=0) as sink,
        ):
            shutil.copyfileobj(source, sink, 1 << 20)
        plain.unlink()


def unpack(folder: Path) -> None:
    """Make the samples plain lines again, so that they can be appended to. Raises StoreError when that fails.

    They are written into the file that is there, which may be claimed; the packed one goes last.
    """
    plain, packed = folder / SAMPLES_FILE, folder / PACKED_FILE
    if not packed.exists():
        return
    try:
        with files.lines(packed, packed=True) as lines, plain.open("r+b" if plain.exists() else "wb") as sink:
            sink.truncate(0)
            sink.writelines(lines)
            sink.flush()
            os.fsync(sink.fileno())
        packed.unlink()
    except (OSError, EOFError, zlib.error) as error:
        raise StoreError(f"cannot unpack {packed}: {error}; it is left as it was") from error
