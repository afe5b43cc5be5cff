"""Compresses large runs when they have ended, and unpacks them when they are resumed.

During measurement the samples are plain lines, so that a killed writer loses at most the last line. When a large run
has ended, the file is compressed; ``store.read`` accepts both forms. One of the two files is complete at any time: the
packed file is put in place atomically, and takes precedence as long as it exists.
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
"""Smaller files stay uncompressed, readable and searchable with grep."""

_LEVEL = 6


def pack(folder: Path, least_bytes: int = PACK_BYTES) -> None:
    """Compress the samples of a run that has ended, if they have ``least_bytes`` or more.

    On a full disk the plain file stays: the run is complete, so it must not fail.
    """
    plain, packed = folder / SAMPLES_FILE, folder / PACKED_FILE
    # A full disk or a missing file must not fail the run.
    with contextlib.suppress(OSError):
        if plain.stat().st_size < least_bytes:
            return
        # No name and no time inside, so that the same samples give the same bytes.
        with (
            plain.open("rb") as source,
            files.replaced(packed) as file,
            gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=file, mtime=0) as sink,
        ):
            shutil.copyfileobj(source, sink, 1 << 20)
        plain.unlink()


def unpack(folder: Path) -> None:
    """Make the samples plain lines again, so that they can be appended to. Raises StoreError on failure.

    The existing plain file, which may be locked, is overwritten; the packed file is removed last.
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
        raise StoreError(f"cannot unpack {packed}: {error}; the packed file is unchanged") from error
