"""What the commands of the analysis read, and the one way to what a user names: a run folder, a log, ``latest``."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from busbw.errors import StoreError
from busbw.runs import files, store
from busbw_analysis.data.load import read

_HEAD_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Source:
    """Something that results can be read from.

    name: in words, such as "a run folder"
    recognises: whether it is at a path; the bytes are those that a file begins with, empty for a folder
    read: what is there as a run; raises BusbwError
    """

    name: str
    recognises: Callable[[Path, bytes], bool]
    read: Callable[[Path], store.StoredRun]


def _is_run_folder(path: Path, _head: bytes) -> bool:
    return (path / store.RUN_FILE).is_file()


SOURCES: Final = (Source("a run folder", _is_run_folder, read),)
"""The first that recognises what is at a path reads it."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a user named: where it is, and what reads it."""

    path: Path
    source: Source

    @property
    def folder(self) -> Path:
        """Where a report on it goes."""
        return self.path if self.path.is_dir() else self.path.parent

    def read(self) -> store.StoredRun:
        """Its results; raises BusbwError."""
        return self.source.read(self.path)


def find(results_dir: Path, selector: str) -> Found:
    """What ``selector`` means: the path of one of ``SOURCES``, a run's name or the start or end of it, or ``latest``.

    Raises StoreError when that is nothing, or more than one run.
    """
    given = Path(selector)
    try:
        found, is_file = _at(given), given.is_file()
    except OSError as error:
        message = f"cannot read {given}: {error.strerror}"
        raise StoreError(message) from error
    if found is not None:
        return found
    try:
        return Found(store.find(results_dir, selector), SOURCES[0])
    except StoreError as error:
        if not is_file:
            raise
        message = f"{given} holds no results that can be read; want {' or '.join(one.name for one in SOURCES)}"
        raise StoreError(message) from error


def _at(path: Path) -> Found | None:
    """What is at ``path``; None where no source recognises it."""
    head = b""
    if path.is_file():
        with files.opened(path) as file:
            head = file.read(_HEAD_BYTES)
    return next((Found(path, source) for source in SOURCES if source.recognises(path, head)), None)
