"""What kept summaries were made from, and whether they still fit their runs: read without their numbers, and without
numpy, which takes longer to load than the lines of thousands of runs.
"""

import contextlib
import hashlib
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from busbw.errors import StoreError
from busbw.runs import files, store
from busbw.runs.progress import RunLine

if TYPE_CHECKING:
    import duckdb

VERSION: Final = 2
"""Version of the numbers and columns; a summary of another version is made again."""

_MAGIC: Final = b"PAR1"


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What a summary was made from, and what is true of the whole run.

    version: ``VERSION``
    run: SHA-256 of ``run.json``
    size, time_ns: of the file of samples; 0 without one
    rows: SHA-256 of the uncompressed rows
    warnings: of the reader
    line: the run in a list of runs
    is_plain: ``Summarised.is_plain``
    lateness: ``Summarised.lateness``
    """

    version: int
    run: str
    size: int
    time_ns: int
    rows: str
    warnings: tuple[str, ...]
    line: RunLine
    is_plain: bool
    lateness: msgspec.Raw


def is_named_literally(folder: Path) -> bool:
    """Whether DuckDB takes the path for that of one file, and not for a pattern."""
    return not set("*?[]{}") & set(str(folder))


def lines_of(folders: Iterable[Path]) -> dict[Path, RunLine]:
    """The lines of those runs in a list whose kept summary fits, by ``run.json`` and the size and time of change of the
    samples.
    """
    return {folder: source.line for folder, source in sources_of(folders).items()}


def sources_of(folders: Iterable[Path]) -> dict[Path, Source]:
    """What those kept summaries were made from that fit, by ``run.json`` and the samples' size and time of change."""
    return {folder: source for folder, source in read_sources(folders).items() if _is_of(source, folder)}


def read_sources(folders: Iterable[Path]) -> dict[Path, Source]:
    """What the summaries in ``folders`` were made from, as far as they can be read."""
    paths = (folder / store.SUMMARY_FILE for folder in folders if is_named_literally(folder))
    kept = {str(path): path.parent for path in paths if is_complete(path)}
    if not kept:
        return {}
    query = "SELECT file_name, value FROM parquet_kv_metadata(?) WHERE key = 'source'"
    with contextlib.suppress(*unreadable()):
        rows = connection().execute(query, [list(kept)]).fetchall()
        return {kept[name]: msgspec.json.decode(value, type=Source) for name, value in rows}
    return {}


def _is_of(kept: Source, folder: Path) -> bool:
    """Whether a summary fits without a look at the samples."""
    try:
        return is_unchanged(kept, folder) and kept.run == document_checksum(folder)
    except (OSError, StoreError):
        return False


def document_checksum(folder: Path) -> str:
    """SHA-256 of ``run.json``."""
    return hashlib.sha256(store.run_document(folder / store.RUN_FILE)).hexdigest()


def is_complete(path: Path) -> bool:
    """Whether a file ends like Parquet: one damaged file would fail the query for all."""
    try:
        with files.opened(path) as file:
            file.seek(-len(_MAGIC), os.SEEK_END)
            return file.read() == _MAGIC
    except OSError:
        return False


def is_unchanged(kept: Source, folder: Path) -> bool:
    """Whether a summary is of the numbers that this busbw makes, and of the file of samples as it is now."""
    return (kept.version, kept.size, kept.time_ns) == (VERSION, *state_of(folder))


@cache
def connection() -> "duckdb.DuckDBPyConnection":
    """One connection for all runs: opening one takes longer than reading a summary."""
    import duckdb  # noqa: PLC0415 - 0.1 s; a log of another tool needs none

    return duckdb.connect(":memory:")


def unreadable() -> tuple[type[Exception], ...]:
    """Errors of a summary that is damaged, of another shape, or cannot be written."""
    import duckdb  # noqa: PLC0415

    return duckdb.Error, msgspec.MsgspecError, KeyError, ValueError, TypeError


def state_of(folder: Path | str) -> tuple[int, int]:
    """Size and time of change (ns) of the samples; 0 without samples."""
    for name in store.PLACES:
        path = f"{folder}/{name}"  # paths of os are several times as fast as those of pathlib
        if not os.access(path, os.F_OK):  # twice as fast as a failing stat: most runs are not packed
            continue
        try:
            status = os.stat(path)  # noqa: PTH116
        except OSError:
            continue
        return status.st_size, status.st_mtime_ns
    return 0, 0
