"""Finds and reads the input that a user names: a run folder, a log of another tool, ``latest`` or ``-``."""

import bz2
import gzip
import hashlib
import lzma
import re
import shutil
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from time import time
from typing import IO, Any, Final, NoReturn, TypeVar, cast

from busbw.errors import LogError, StoreError, UsageError
from busbw.escape import echo, plain_text
from busbw.runs import files, store
from busbw.units import format_size, listed
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.imported import LogFacts, run_of
from busbw_analysis.data.kept import Summarised, read_summarised, summarised
from busbw_analysis.data.readers import flight, json_text
from busbw_analysis.data.readers.logs import Kind, kind_of, read_file, read_steps, reader_named
from busbw_analysis.data.readers.training import OfTraining, TrainingLog

_HEAD_BYTES: Final = 1 << 16
_ARCHIVES: Final = frozenset({".zip", ".tar", ".tgz", ".tbz2", ".txz"})
_COMPRESSED: Final[Mapping[bytes, Callable[[IO[bytes]], Any]]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file, mode="rb"),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ": lzma.LZMAFile,
}
"""First bytes of a compressed file, and what reads it."""
_DAY: Final = re.compile(
    r"(?<!\d)(20\d\d)([-_.])(\d\d)\2(\d\d)(?!\d)|(?<!\d)(20\d\d)(\d\d)(\d\d)(?=[T_-]\d{4}(?:\d\d)?(?!\d))"
)
"""A day in the name of a log: ``2026-11-13``, or ``20261113`` with a time, so that no number of a job is one."""
_FEWEST_SAME: Final = 8
"""Rows of a log from which on another with the same numbers is a copy, not a repetition: the last digits scatter."""
_MOST_FILES: Final = 10_000
_OF_JOBS: Final = frozenset({"job-failed", "hang"})
"""Codes of errors that say why a log has no result."""
BESIDE: Final = frozenset({"messages", "training-log"})
"""Codes of logs without results that may stand beside those with results, which are read then."""
_MOST_NAMED: Final = 8
REPORT_FILES: Final = ("report.html", "report.md", "report.json")
"""What `busbw report` writes beside a log."""
_REPORT: Final = re.compile(
    r'(?m)\A\{\s*"report":\s*\d|· busbw report</title>|^`busbw report` writes the HTML report,'.encode()
)
"""In every such file: its JSON, its HTML, its Markdown."""


@dataclass(frozen=True, slots=True)
class Source:
    """A kind of input that results can be read from.

    name: for messages, such as "a run folder"
    recognises: whether a path is of this kind; gets the path and the first bytes of the file (empty for a folder)
    read: reads the path as a run, with the user's facts about a log; raises BusbwError
    """

    name: str
    recognises: Callable[[Path, bytes], bool]
    read: Callable[[Path, LogFacts], Summarised]


STANDARD_INPUT: Final = Path("-")
_IN_MEMORY_BYTES: Final = 16 << 20


_Result = TypeVar("_Result")


def opened_log(path: Path, read: Callable[[str, IO[bytes], float], _Result]) -> _Result:
    """What ``read`` makes of a log: it gets the name, a seekable file and when the file was changed (s since 1970).

    path: of a file, or ``STANDARD_INPUT``
    Raises LogError (``unreadable``).
    """
    if path == STANDARD_INPUT:
        with (
            tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as given,
            tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as kept,
        ):
            shutil.copyfileobj(sys.stdin.buffer, given)
            given.seek(0)
            name = "standard input"
            return read(name, _uncompressed(name, cast("IO[bytes]", given), cast("IO[bytes]", kept)), time())
    try:
        with _opened(path) as file:
            return read(path.name, file, _measured(path))
    except OSError as error:
        message = f"{path}: cannot be read: {error.strerror}"
        raise LogError(message, code="unreadable") from error


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """A file, uncompressed. Raises OSError, and LogError for a compressed one that is damaged or too large."""
    with files.opened(path) as file, tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as kept:
        yield _uncompressed(str(path), file, cast("IO[bytes]", kept))


def _uncompressed(name: str, file: IO[bytes], kept: IO[bytes]) -> IO[bytes]:
    """``file``; or ``kept`` with its content if it is compressed. Raises LogError."""
    head = file.read(8)
    file.seek(0)
    uncompress = next((of for begin, of in _COMPRESSED.items() if head.startswith(begin)), None)
    if uncompress is None:
        return file
    try:
        with uncompress(file) as content:
            kept.write(content.read(json_text.MOST_BYTES + 1))
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise LogError(f"{name}: cannot be uncompressed: {error}", code="unreadable") from error
    if kept.tell() > json_text.MOST_BYTES:
        raise LogError(f"{name}: more than {format_size(json_text.MOST_BYTES)} uncompressed", code="too-large")
    kept.seek(0)
    return kept


def _measured(path: Path) -> float:
    """When the results of a log were measured (s since 1970): when it was changed, unless its name or that of its
    folder has an earlier day: copies and clones have a time of their own.
    """
    changed = path.stat().st_mtime
    for found in (match for name in (path.name, path.parent.name) for match in _DAY.finditer(name)):
        year, month, day = map(int, found.group(1, 3, 4) if found[1] else found.group(5, 6, 7))
        with suppress(ValueError):
            started = datetime(year, month, day, tzinfo=UTC)
            if started.date() < datetime.fromtimestamp(changed, UTC).date():
                return started.timestamp()
    return changed


def _read_log(path: Path, facts: LogFacts) -> Summarised:
    return opened_log(path, lambda name, file, modified: _run_of(path, name, file, modified, facts))


def _run_of(path: Path, name: str, file: IO[bytes], modified: float, facts: LogFacts) -> Summarised:
    log = read_file(name, file, None if facts.reader is None else reader_named(facts.reader))
    file.seek(0)
    digest = hashlib.sha256()
    while part := file.read(1 << 20):
        digest.update(part)
    return summarised(run_of(log, digest.hexdigest(), modified, facts, path))


SOURCES: Final = (
    Source(
        "a run folder",
        lambda path, _head: (path / store.RUN_FILE).is_file(),
        lambda path, _facts: read_summarised(path),
    ),
    # Accept any non-empty file: the log readers give the best reason if it is not a log.
    Source("a log of another tool", lambda path, head: bool(head) and path.name != store.RUN_FILE, _read_log),
)
"""The first source that recognises a path reads it."""


@dataclass(frozen=True, slots=True)
class Found:
    """An input that a user named: its path and the source that reads it."""

    path: Path
    source: Source

    @property
    def folder(self) -> Path:
        """The folder that its report is written to."""
        return self.path if self.path.is_dir() else self.path.parent

    def read(self, facts: LogFacts | None = None) -> Summarised:
        """Its results, with the user's facts about a log; raises BusbwError."""
        return self.source.read(self.path, facts or LogFacts())


def logs_in(selector: str, unpacked: Callable[[], Path]) -> tuple[str, ...]:
    """The logs in a folder or an archive (tar, zip) that is no run, by name; else ``selector`` itself.

    unpacked: makes a folder to unpack an archive into
    Raises LogError for an archive that is damaged or holds no log, for too many files, for dumps of a job that hangs.
    """
    path, folder = Path(selector), Path(selector)
    if path.is_file() and set(path.suffixes[-2:]) & _ARCHIVES:
        folder = unpacked()
        try:
            shutil.unpack_archive(path, folder, filter=None if path.suffix == ".zip" else "data")
        except (OSError, EOFError, ValueError, shutil.ReadError, tarfile.TarError, zipfile.BadZipFile) as error:
            raise LogError(f"{path}: cannot be unpacked: {error}", code="unreadable") from error
    elif not path.is_dir() or (path / store.RUN_FILE).is_file():
        return (selector,)
    members = list(
        islice((file for file in folder.rglob("*") if file.is_file() and not file.is_symlink()), _MOST_FILES)
    )
    if len(members) == _MOST_FILES:
        raise LogError(f"{path}: {_MOST_FILES} files or more; give the folder of the logs alone", code="too-large")
    # The log that an imported run keeps beside it is read with the run.
    candidates = [
        file for file in sorted(members) if not (file.parent / store.RUN_FILE).is_file() and not _is_report(file)
    ]
    kinds = {str(file): kind for file in candidates if (kind := _kind_of(file)) is not None}
    # Without a result, the answer is in messages of jobs that failed.
    logs = tuple(log for log, kind in kinds.items() if kind != "failure" or "results" not in kinds.values())
    if not logs and folder != path:
        raise LogError(f"{path}: none of {len(members)} files is a log that busbw can read", code="not-a-log")
    dumps = {log: dump for log in logs if (dump := _dump_of(Path(log))) is not None}
    if dumps and len(dumps) == len(logs):
        flight.refuse(str(path), dumps)  # only together do they say which rank is missing
    return logs or (selector,)


def steps_in(selectors: Iterable[str]) -> Iterator[TrainingLog]:
    """The steps of those of several logs that are of a training program. Raises LogError."""
    for path in map(Path, selectors):
        if path.is_file() and path.name != store.RUN_FILE and _kind_of(path) == "training":
            yield opened_log(path, lambda name, file, _modified: read_steps(name, file))


def _dump_of(path: Path) -> dict[str, Any] | None:
    try:
        with _opened(path) as file:
            return flight.dump_of(file.read(json_text.MOST_BYTES))
    except (OSError, LogError):
        return None


def _kind_of(path: Path) -> Kind | None:
    try:
        with _opened(path) as file:
            return kind_of(file)
    except (OSError, LogError):
        return None


def _is_report(path: Path) -> bool:
    if path.name not in REPORT_FILES:
        return False
    with files.opened(path) as file:
        return _REPORT.search(file.read(json_text.MOST_BYTES)) is not None


def find(results_dir: Path, selector: str) -> Found:
    """The input that ``selector`` names: a path of one of ``SOURCES``, the name of a run or its start or end,
    ``latest``, or ``-`` for a log on standard input.

    Raises UsageError if it matches nothing, or more than one run, and StoreError for a file without results.
    """
    given = Path(selector)
    if given == STANDARD_INPUT:
        return Found(given, SOURCES[-1])
    try:
        is_file, head = given.is_file(), b""
        if is_file:
            with files.opened(given) as file:
                head = file.read(_HEAD_BYTES)
        fitting = [source for source in SOURCES if source.recognises(given, head)]
    except OSError as error:
        message = f"cannot read {given}: {error.strerror}"
        raise StoreError(message) from error
    if fitting:
        return Found(given, fitting[0])
    try:
        return Found(store.find(results_dir, selector), SOURCES[0])
    except UsageError as error:
        if not is_file:
            raise
        message = f"{given}: no readable results; expected {' or '.join(source.name for source in SOURCES)}"
        raise StoreError(message) from error


def read_all(results_dir: Path, selectors: Iterable[str], facts: LogFacts | None) -> list[Summarised]:
    """Find and read every selector. Raises UsageError if ``facts`` are given and no input is a log, and the errors of
    ``find`` and ``Found.read``.
    """
    (read,) = read_sides(results_dir, [selectors], facts)
    return read


def read_sides(
    results_dir: Path, sides: Iterable[Iterable[str]], facts: LogFacts | None
) -> tuple[list[Summarised], ...]:
    """``read_all`` for each of several sides, which may have fewer runs than selectors: copies of a log, and logs
    without results, are left out. ``facts`` may be of the logs of any side.
    """
    found = [[find(results_dir, selector) for selector in side] for side in sides]
    inputs = [entry for side in found for entry in side]
    given = [] if facts is None else [name for name in LogFacts.__slots__ if getattr(facts, name) is not None]
    if given and all(entry.source is SOURCES[0] for entry in inputs):
        options = ", ".join("--format" if name == "reader" else f"--{name}" for name in given)
        log = inputs[0].read().stored.run.imported
        why = "is a busbw run, which records these facts"
        why = why if log is None else f"is stored: give them to busbw import, or here with the log ({log.file})"
        raise UsageError(f"{options}: only for logs of other tools; {inputs[0].path} {why}")
    return tuple(_read_side(side, facts) for side in found)


def _read_side(inputs: Sequence[Found], facts: LogFacts | None) -> list[Summarised]:
    read: list[Summarised] = []
    failed: list[tuple[Path, LogError]] = []
    for entry in inputs:
        try:
            read.append(entry.read(facts))
        except LogError as error:
            if len(inputs) == 1 or error.code not in _OF_JOBS | BESIDE:
                raise
            failed.append((entry.path, error))
    if any(error.code in _OF_JOBS for _, error in failed):
        _refuse_failed([entry for entry in failed if entry[1].code != OfTraining.code], len(inputs))
    if failed and not read:
        raise min((error for _, error in failed), key=lambda error: error.code != OfTraining.code)
    for path, reason in failed:
        echo(f"busbw: {plain_text(str(path))}: no results of a benchmark ({reason.code})", err=True)
    kept = without_copies([run.samples or run.stored for run in read])
    return [run for run, is_kept in zip(read, kept, strict=True) if is_kept]


def without_copies(runs: Iterable[store.StoredRun]) -> list[bool]:
    """Of each run, False if it is a log with the same content as an earlier one: a copy is no launch. Says so."""
    known: dict[str, store.StoredRun] = {}
    kept: list[bool] = []
    for run in runs:
        first = known.setdefault(run.run.id.rpartition("-")[2], run) if len(run.imported) >= _FEWEST_SAME else run
        is_copy = first.path != run.path and first.imported == run.imported
        kept.append(not is_copy)
        if is_copy:
            copy, original = (plain_text(str(each.path)) for each in (run, first))
            echo(f"busbw: {copy}: the same log as {original}; it counts once", err=True)
    return kept


def _refuse_failed(failed: Sequence[tuple[Path, LogError]], logs: int) -> NoReturn:
    """Raises LogError that says which of several logs are of jobs that failed, how, and where to look first."""
    parts = 1 if len({path.name for path, _ in failed}) == len(failed) else 2
    failures = [("/".join(path.parts[-parts:]), error.said, error) for path, error in failed]
    first, text, root = min(failures, key=lambda entry: (entry[2].follows, entry[2].code != "job-failed"))
    names_of = by_key((text, name) for name, text, _ in failures)
    shown = [("Log", f"{listed(names, _MOST_NAMED)}: {text}") for text, names in [*names_of.items()][:_MOST_NAMED]]
    more = [("Log", f"{len(names_of) - _MOST_NAMED} other answers")] if len(names_of) > _MOST_NAMED else []
    others = [] if len(failed) == logs else [("Do", "leave these logs out to see the results of the others")]
    answer = f"jobs or ranks failed in {len(failed)} of {logs} logs; look first at {first}: {text}"
    raise LogError(answer, [*root.lines, *others, *shown, *more], code=root.code)
