"""What the commands of the analysis read, and the one way to what a user names: a run folder, a log, ``latest``."""

import hashlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import IO, Final, cast

from busbw.errors import LogError, StoreError, UsageError
from busbw.runs import files, store
from busbw_analysis.data.imported import LogFacts, run_of
from busbw_analysis.data.load import read
from busbw_analysis.data.readers.logs import read_file, reader_named

_HEAD_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Source:
    """Something that results can be read from.

    name: in words, such as "a run folder"
    recognises: whether it is at a path; the bytes are those that a file begins with, empty for a folder
    read: what is there as a run, by what the user says of a log; raises BusbwError
    """

    name: str
    recognises: Callable[[Path, bytes], bool]
    read: Callable[[Path, LogFacts], store.StoredRun]


STANDARD_INPUT: Final = Path("-")
_IN_MEMORY_BYTES: Final = 16 << 20


def _read_log(path: Path, facts: LogFacts) -> store.StoredRun:
    if path == STANDARD_INPUT:
        with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as kept:
            shutil.copyfileobj(sys.stdin.buffer, kept)
            kept.seek(0)
            return _run_of(path, "standard input", cast("IO[bytes]", kept), time(), facts)
    try:
        with files.opened(path) as file:
            return _run_of(path, path.name, file, path.stat().st_mtime, facts)
    except OSError as error:
        message = f"{path}: cannot be read: {error.strerror}"
        raise LogError(message, code="unreadable") from error


def _run_of(path: Path, name: str, file: IO[bytes], modified: float, facts: LogFacts) -> store.StoredRun:
    log = read_file(name, file, None if facts.reader is None else reader_named(facts.reader))
    file.seek(0)
    digest = hashlib.sha256()
    while part := file.read(1 << 20):
        digest.update(part)
    return run_of(log, digest.hexdigest(), modified, facts, path)


SOURCES: Final = (
    Source("a run folder", lambda path, _head: (path / store.RUN_FILE).is_file(), lambda path, _facts: read(path)),
    # Whatever is a file with something in it: its reader says best why it is none.
    Source("a log of another tool", lambda path, head: bool(head) and path.name != store.RUN_FILE, _read_log),
)
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

    def read(self, facts: LogFacts | None = None) -> store.StoredRun:
        """Its results, by what the user says of a log; raises BusbwError."""
        return self.source.read(self.path, facts or LogFacts())


def find(results_dir: Path, selector: str) -> Found:
    """What ``selector`` means: the path of one of ``SOURCES``, a run's name or the start or end of it, ``latest``, or
    ``-`` for a log on standard input.

    Raises StoreError when that is nothing, or more than one run.
    """
    given = Path(selector)
    if given == STANDARD_INPUT:
        return Found(given, SOURCES[-1])
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


def read_all(results_dir: Path, selectors: Iterable[str], facts: LogFacts | None = None) -> list[store.StoredRun]:
    """What each of ``selectors`` means, read. Raises UsageError where ``facts`` are said of logs and none is a log, and
    as ``find`` and ``Found.read``.
    """
    found = [find(results_dir, selector) for selector in selectors]
    said = [] if facts is None else [name for name in LogFacts.__slots__ if getattr(facts, name) is not None]
    if said and all(one.source is SOURCES[0] for one in found):
        options = ", ".join("--format" if name == "reader" else f"--{name}" for name in said)
        message = f"{options}: only for logs of other tools, which may not tell it; {found[0].path} is a run of busbw"
        raise UsageError(message)
    return [one.read(facts) for one in found]


def _at(path: Path) -> Found | None:
    """What is at ``path``; None where no source recognises it."""
    head = b""
    if path.is_file():
        with files.opened(path) as file:
            head = file.read(_HEAD_BYTES)
    return next((Found(path, source) for source in SOURCES if source.recognises(path, head)), None)
