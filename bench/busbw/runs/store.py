"""The run folder: creating, locking, appending rows so that a crash loses at most one line, compressing, and reading.

``results/<machine>/<UTC>-<id>/run.json`` is written once, atomically. ``samples.jsonl`` grows by one complete line per
block, which is flushed and fsynced before the next block starts. The analysis needs nothing else.
"""

import contextlib
import errno
import fcntl
import gzip
import hashlib
import os
import re
import secrets
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self, TypeVar

import msgspec

import busbw
from busbw.errors import DamagedRun, NewerSchema, StoreError, UsageError, nearest
from busbw.escape import as_argument, with_texts
from busbw.runs import files, soundness
from busbw.runs.records import (
    SCHEMA,
    Case,
    Check,
    Ended,
    Failed,
    GroupSamples,
    Imported,
    LaunchStarted,
    Measurement,
    Row,
    Skipped,
    Window,
)
from busbw.runs.run import Run, document_of, read_document
from busbw.units import counted

RUN_FILE = "run.json"
SAMPLES_FILE = "samples.jsonl"
PACKED_FILE = "samples.jsonl.gz"
"""Samples of a large run that has ended; it takes precedence over a plain file."""

SUMMARY_FILE = "summary.parquet"
"""Statistics of the launches, which the analysis keeps beside them (``busbw_analysis.data.kept``)."""

PLACES = (PACKED_FILE, SAMPLES_FILE) * 2
"""Files to try for rows, twice: another process may pack or unpack the run meanwhile, which swaps the two files."""

_Decoded = TypeVar("_Decoded")

Keep = Callable[[Measurement, "Groups"], Measurement]
"""Takes a block without groups and an iterator over its groups; returns the block to keep."""

_WIDE_BYTES = 4 << 20
"""Longer rows are decoded group by group: all pairs of 1,024 ranks as records would take 6 GB."""


_LONGEST_FLAW: Final = 600
NOT_A_RECORD = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Exceptions for damaged bytes: not JSON or of another shape, not UTF-8, nested too deeply."""


def utc_now() -> str:
    """The current time as it is stored: UTC, ISO 8601, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run read from disk: ``rows`` in file order, and ``warnings`` of the reader."""

    path: Path
    run: Run
    rows: tuple[Row, ...]
    warnings: tuple[str, ...]

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """The measured blocks."""
        return tuple(row for row in self.rows if isinstance(row, Measurement))

    @property
    def windows(self) -> tuple[Window, ...]:
        """The windows of a run with a duration, in order."""
        return tuple(row for row in self.rows if isinstance(row, Window))

    @property
    def imported(self) -> tuple[Imported, ...]:
        """The results of another tool."""
        return tuple(row for row in self.rows if isinstance(row, Imported))

    @property
    def checks(self) -> Iterator[tuple[Case, Check]]:
        """The data checks of all measured or imported blocks."""
        yield from ((row.case, row.check) for row in self.measurements)
        yield from ((row.case, row.check) for row in self.imported)

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """The cases that could not run here."""
        return tuple(row for row in self.rows if isinstance(row, Skipped))

    @property
    def failed(self) -> tuple[Failed, ...]:
        """The blocks that were tried and gave no result."""
        return tuple(row for row in self.rows if isinstance(row, Failed))

    @property
    def launches(self) -> tuple[LaunchStarted, ...]:
        """The launches, in order."""
        return tuple(row for row in self.rows if isinstance(row, LaunchStarted))

    @property
    def end(self) -> Ended | None:
        """How the run ended; None if it was killed or is not over. A resumed run has older ends, too."""
        last = self.rows[-1] if self.rows else None
        return last if isinstance(last, Ended) else None

    @property
    def not_reached(self) -> tuple[Case, ...]:
        """The cases of the plan without any row."""
        seen = {row.case for row in self.rows if isinstance(row, Measurement | Imported | Skipped | Failed)}
        return tuple(case for case in self.run.cases if case not in seen)


def create(results_dir: Path, machine: str) -> Path:
    """Create the folder of a new run. Raises UsageError on failure.

    Its name starts with the time in milliseconds, so that runs sort by age even if several start in one second.
    """
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", machine).strip("-.") or "machine"
    stamp = re.sub(r"[-:]", "", utc_now())
    folder = results_dir / slug / f"{stamp}-{secrets.token_hex(3)}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise UsageError(
            f"cannot create the run folder {folder}: {error.strerror}; use --results-dir to choose a writable folder"
        ) from error
    return folder


def write_run(folder: Path, run: Run) -> None:
    """Write ``run.json`` atomically."""
    target = folder / RUN_FILE
    with files.store_errors("write", target):
        with files.replaced(target) as file:
            file.write(msgspec.json.format(encode(document_of(run)), indent=2) + b"\n")
        _sync_folder(folder)


class Appender:
    """Appends rows to ``samples.jsonl``; each is on disk before ``append`` returns.

    An incomplete or damaged last line, left by a killed writer or a power cut, is removed on opening: ``read`` ignores
    it as well, and another row after it would make it damage in the middle of the file.

    Raises StoreError if the file cannot be opened.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / SAMPLES_FILE
        with files.store_errors("open", self._path):
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
            try:
                files.require_regular(self._file)
                self._end = self._sound_length(self._complete_length(os.lseek(self._file, 0, os.SEEK_END)))
                os.ftruncate(self._file, self._end)
                _sync_folder(folder)
            except OSError:
                os.close(self._file)
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def append(self, row: Row) -> None:
        """Append one row; an end gets the number and checksum of the rows before it.

        Raises StoreError if the file was changed since it was opened, and for write errors (disk full, quota, …), after
        which the file is cut back to its last complete line.
        """
        self._require_whole()
        if isinstance(row, Ended):
            rows, checksum = self._summed_up()
            row = msgspec.structs.replace(row, rows=rows, checksum=checksum)
        line = memoryview(encode(row) + b"\n")
        try:
            written = 0
            while written < len(line):
                written += os.pwrite(self._file, line[written:], self._end + written)
            os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):  # if this fails, the next opening cuts the line
                os.ftruncate(self._file, self._end)
            raise StoreError(f"cannot write {self._path}: {error.strerror}; earlier rows are kept") from error
        self._end += len(line)

    def _require_whole(self) -> None:
        """Raise StoreError if the file was removed, replaced or truncated by someone else."""
        opened = os.fstat(self._file)
        try:
            current = self._path.stat()
        except OSError:
            current = None
        is_here = current is not None and (current.st_dev, current.st_ino) == (opened.st_dev, opened.st_ino)
        if not is_here or opened.st_size != self._end:
            raise StoreError(
                f"{self._path} was removed, replaced or changed while it was being written: "
                f"{opened.st_size if is_here else 0} of {self._end} bytes remain; measure again"
            )

    def _summed_up(self) -> tuple[int, str]:
        """Number of rows in the file, and the checksum of their bytes."""
        rows, checksum, place = 0, hashlib.sha256(), 0
        while part := os.pread(self._file, min(1 << 20, self._end - place), place):
            rows, place = rows + part.count(b"\n"), place + len(part)
            checksum.update(part)
        return rows, checksum.hexdigest()

    def _sound_length(self, end: int) -> int:
        """Length without the last line, if that line is not a row."""
        start = self._complete_length(end - 1) if end else 0
        try:
            if end:
                _ROW_DECODER.decode(os.pread(self._file, end - start, start))
        except NOT_A_RECORD:
            return start
        return end

    def _complete_length(self, end: int) -> int:
        """Length of the complete lines within the first ``end`` bytes."""
        step = 1 << 16
        while end > 0:
            start = max(0, end - step)
            newline = os.pread(self._file, end - start, start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
        return 0


_HELD = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}
"""errno if another process holds the lock; a file system without locks returns another errno."""


@contextlib.contextmanager
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


def encode(record: msgspec.Struct) -> bytes:
    """JSON of a record. Names and messages of the system may contain bytes that are not UTF-8; these are escaped."""
    try:
        return msgspec.json.encode(record)
    except UnicodeEncodeError:
        return msgspec.json.encode(with_texts(record, lambda text: text.encode(errors="backslashreplace").decode()))


def _sync_folder(folder: Path) -> None:
    """Flush the folder: without this, a new file may not survive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- compression: the packed file is put in place atomically, and takes precedence as long as it exists --------------


PACK_BYTES = 32 << 20
"""Smaller files stay uncompressed, readable and searchable with grep."""


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
            gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=file, mtime=0) as sink,
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


# --- reading ---------------------------------------------------------------------------------------------------------


def read(folder: Path, *, keep: Keep | None = None) -> StoredRun:
    """Read a run folder and check its consistency. ``keep`` reduces every block to what is kept of it (None: all).

    A damaged last line is dropped with a warning that names its case. Raises NewerSchema for a run of a newer busbw,
    DamagedRun (with the line number) for any other damage, StoreError if there is no run or one of an unreleased busbw.
    """
    run = read_run(folder)
    for name in PLACES:
        with contextlib.suppress(FileNotFoundError):
            return _read_samples(folder / name, run, keep)
    return StoredRun(path=folder, run=run, rows=(), warnings=())


def _read_samples(path: Path, run: Run, keep: Keep | None) -> StoredRun:
    """The run with the rows of ``path``. Raises FileNotFoundError, StoreError and DamagedRun."""
    rows: list[Row] = []
    warnings: list[str] = []
    sound, checksum = soundness.Rows(run), hashlib.sha256()

    def decode(line: bytes) -> tuple[Row, Groups | None]:
        with _written_by(run.busbw, path):
            return _decode_row(line, one_by_one=keep is not None)

    for number, line, decoded in decoded_lines(path, decode):
        if decoded is None:
            warnings.append(f"{path}: the last line is incomplete and was dropped")
            break
        row, groups = decoded
        try:
            flaw = next(sound.flaws(row, number), None) or _flaw_of_end(row, number - 1, checksum.hexdigest)
            if flaw is None and isinstance(row, Measurement) and groups is not None:
                row = _kept(row, groups, keep)
        except soundness.Unsound as error:
            flaw = str(error)
        except NOT_A_RECORD as error:
            flaw = str(error)
        if flaw is not None:
            raise _damaged(path, number, flaw)
        rows.append(row)
        checksum.update(line)
        del line, groups, decoded  # frees a long line before the next one is read
    return StoredRun(path=path.parent, run=run, rows=tuple(rows), warnings=tuple(warnings))


def decoded_lines(path: Path, decode: Callable[[bytes], _Decoded]) -> Iterator[tuple[int, bytes, _Decoded | None]]:
    """The lines of ``SAMPLES_FILE`` or ``PACKED_FILE``, each as (number, line, decoded); decoded is None for an
    incomplete last line.

    Raises FileNotFoundError, StoreError, and DamagedRun for a broken archive or any other line that cannot be decoded.
    """
    bad: Exception | None = None
    number = 0
    try:
        with files.lines(path, packed=path.name == PACKED_FILE) as lines:
            for line in lines:
                if bad is not None:
                    raise _damaged(path, number, str(bad)) from bad
                number += 1
                if not line.endswith(b"\n"):
                    yield number, line, None
                    return
                try:
                    decoded = decode(line)
                except NOT_A_RECORD as error:
                    bad = error
                    continue
                yield number, line, decoded
                del line, decoded
    except FileNotFoundError:
        raise
    except (gzip.BadGzipFile, EOFError, zlib.error, files.TooLong) as error:
        raise DamagedRun(f"{path}: {error.strerror if isinstance(error, files.TooLong) else error}") from error
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    if bad is not None:
        yield number, b"", None


def _flaw_of_end(row: Row, before: int, checksum: Callable[[], str]) -> str | None:
    """Contradiction between an end and the rows before it; older ends record nothing about them."""
    if not isinstance(row, Ended):
        return None
    if row.rows not in {None, before}:
        return f"the run ended with {row.rows} rows, but has {before}"
    if row.checksum not in {None, checksum()}:
        return "a row before this end was changed after it was written: the checksum differs"
    return None


def _cut(flaw: str) -> str:
    """``flaw`` with its ends alone, if it has a long value."""
    return flaw if len(flaw) <= _LONGEST_FLAW else f"{flaw[: _LONGEST_FLAW - 100]}…{flaw[-100:]}"


def _damaged(path: Path, line: int, flaw: str) -> DamagedRun:
    return DamagedRun(
        f"{path}, line {line}: {_cut(flaw)}; measure again, or delete this line and all end rows, and resume the run"
    )


def find(results_dir: Path, selector: str) -> Path:
    """The folder of a run; ``selector``: a path, a run's name, ``latest``, a label, or the beginning or end of a name.

    Raises UsageError unless exactly one run matches, StoreError if the folder cannot be read.
    """
    given = Path(selector)
    with files.store_errors("read", given):
        if (given / RUN_FILE).is_file():
            return given
        if given.name == RUN_FILE and given.is_file():
            return given.parent
    runs = list(folders(results_dir))
    matching = runs[-1:] if selector == "latest" else _answering(runs, selector)
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise UsageError(f"run {selector!r} is ambiguous in {results_dir}: {', '.join(run.name for run in matching)}")
    if given.is_file():
        raise UsageError(
            f"{selector!r} is a file, not a stored run: busbw import {as_argument(selector)} --machine NAME stores logs"
        )
    where = "it is neither a run folder nor a file"
    measure = "measure one with busbw run --suite quick, or give another folder of runs with --results-dir"
    if selector and given.is_dir():
        # A folder of results has one of runs for each machine.
        inner = sorted(child for child in given.iterdir() if is_run(str(child)))
        held, root = (inner, given.parent) if inner else (list(folders(given)), given)
        holds, hint = (
            f"is a folder without a run ({RUN_FILE}) or a log",
            "busbw list runs shows runs" if runs else measure,
        )
        if held:
            holds, hint = (
                f"is a folder of {counted(len(held), 'run')}, but not a run",
                f"give one of them, such as {as_argument(held[-1])}, or --results-dir {as_argument(root)}",
            )
        message = f"{selector!r} {holds if any(given.iterdir()) else 'is an empty folder'}; {hint}"
    elif runs:
        there = counted(len(runs), "run")
        likely = nearest(selector, ["latest"])
        hint = "busbw list runs" if likely is None else f"did you mean {likely}?"
        message = f"{selector!r} not found: {where}, nor among the {there} in {results_dir} ({hint})"
    else:
        message = f"{selector!r} not found: {where}, and there are no runs in {results_dir}; {measure}"
    raise UsageError(message, code="no-such-run")


def _answering(runs: Sequence[Path], selector: str) -> list[Path]:
    """The runs that ``selector`` names: a label comes before parts of names, whose last digits are random."""
    if not selector:
        return []
    exact = [run for run in runs if run.name == selector]
    exact = exact or [run for run in runs if (plan := _plan(run)) is not None and plan.label == selector]
    return exact or [run for run in runs if run.name.startswith(selector) or run.name.endswith(selector)]


class _Plan(msgspec.Struct, frozen=True):
    label: str | None = None
    controller: str | None = None


class _Planned(msgspec.Struct, frozen=True):
    """What ``_plan`` reads of ``run.json``."""

    plan: _Plan


def _plan(folder: Path) -> _Plan | None:
    """Part of the plan of a run; None: it cannot be read."""
    with contextlib.suppress(StoreError, *NOT_A_RECORD):
        return msgspec.json.decode(run_document(folder / RUN_FILE), type=_Planned).plan
    return None


def latest_of(results_dir: Path, controller: str) -> Path | None:
    """The folder of the newest run whose rounds ``controller`` chose, or that cannot be read; None: there is none."""
    runs = reversed(list(folders(results_dir)))
    plans = ((folder, _plan(folder)) for folder in runs)
    return next((folder for folder, plan in plans if plan is None or plan.controller == controller), None)


def usual_results_dir() -> Path:
    """The folder of the runs where the user names none, as for the commands."""
    return Path(os.environ.get("BUSBW_RESULTS_DIR") or "results")


def folders(results_dir: Path) -> Iterator[Path]:
    """All run folders below ``results_dir``, oldest first."""
    yield from map(Path, filter(is_run, places(results_dir)))


def is_run(place: str) -> bool:
    """Whether there is a ``run.json``, or a folder with the name of a run: reading it says why it cannot be read."""
    try:
        os.stat(f"{place}/{RUN_FILE}")  # noqa: PTH116 - as below
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return os.path.basename(place)[:8].isdigit()  # noqa: PTH119 - the stamp of its start; as below
    return True


def places(results_dir: Path) -> list[str]:
    """All paths below ``results_dir`` where a run may be, oldest first, for those who look at each of them anyway.

    They are texts: thousands of ``Path`` take longer than the search.
    """
    paths: list[tuple[str, str, str]] = []
    with files.store_errors("read", results_dir), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for machine in os.listdir(results_dir):  # noqa: PTH208 - as below
            base = results_dir / machine
            try:
                paths += [(name, machine, f"{base}/{name}") for name in os.listdir(base)]  # noqa: PTH208
            except OSError as error:  # no folder, or one of somebody else, or gone meanwhile
                if error.errno not in {errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP}:
                    raise
    return [path for _, _, path in sorted(paths)]


def read_run(folder: Path) -> Run:
    """Only ``run.json`` of a run folder; raises like ``read``."""
    path = folder / RUN_FILE
    content = run_document(path)
    try:
        document = msgspec.json.decode(content)
    except NOT_A_RECORD as error:
        message = f"{path}: damaged: {error}; restore it from a copy, or measure again"
        raise DamagedRun(message) from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(schema, int) or schema < 1:
        raise DamagedRun(f"{path}: 'schema' is {schema!r:.40}; want a whole number from 1 to {SCHEMA}")
    if schema > SCHEMA:
        raise NewerSchema(
            f"{path} has schema {schema}, but this busbw supports only schemas up to {SCHEMA}; read it with the busbw "
            "that wrote it"
        )
    try:
        with _written_by(str(document.get("busbw")), path):
            run = read_document(document)
    except NOT_A_RECORD as error:
        message = f"{path}: {_cut(str(error))}; it was edited, or an unreleased busbw wrote it"
        raise DamagedRun(f"{message}: restore it from a copy, or measure again") from error
    if (flaw := next(soundness.flaws_of_run(run), None)) is not None:
        raise DamagedRun(f"{path}: {_cut(flaw)}")
    return run


_UNKNOWN: Final = re.compile("unknown|Invalid (enum )?value")
"""In the message about a field, a key or a name that this version does not have."""


@contextlib.contextmanager
def _written_by(version: str, path: Path) -> Iterator[None]:
    """Raise NewerSchema instead of msgspec.ValidationError for unknown names in ``path`` by a newer ``version``."""
    try:
        yield
    except msgspec.ValidationError as error:
        if _UNKNOWN.search(str(error)) and _order(version) > _order(busbw.__version__):
            raise NewerSchema(
                f"{path}: {_cut(str(error))}; busbw {version:.40}, which wrote it, is newer than this one, "
                f"{busbw.__version__}: read it with that version"
            ) from error
        raise


def _order(version: str) -> tuple[list[int], float]:
    """The numbers of a release, and that of the development version before it."""
    release, development = re.fullmatch(r"(.*?)(?:\.dev(\d{1,9}))?", version, re.DOTALL).groups()  # type: ignore[union-attr] # matches every text
    return [int(part) for part in re.findall(r"\d{1,9}", release)], float(development or "inf")


def run_document(path: Path) -> bytes:
    """The bytes of a ``run.json``. Raises StoreError."""
    try:
        return files.document(path)
    except FileNotFoundError as error:
        raise StoreError(f"{path.parent} is not a run folder: it has no {RUN_FILE}") from error
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error


_ROW_DECODER: msgspec.json.Decoder[Row] = msgspec.json.Decoder(Row)


class _Wide(Measurement, frozen=True, kw_only=True, tag="measurement", tag_field="kind"):
    """A block whose groups are still encoded."""

    groups: tuple[msgspec.Raw, ...]  # type: ignore[assignment]  # decoded in a second step


_WIDE_DECODER: msgspec.json.Decoder[_Wide | Imported | Skipped | Failed | LaunchStarted | Ended] = msgspec.json.Decoder(
    _Wide | Imported | Skipped | Failed | LaunchStarted | Ended
)
_GROUP_DECODER = msgspec.json.Decoder(GroupSamples)


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of a block, each checked when it is read; raises Unsound for the first flaw."""

    case: Case
    groups: Iterable[GroupSamples]

    def __iter__(self) -> Iterator[GroupSamples]:
        return soundness.sound_groups(self.groups, self.case)


def _decode_row(line: bytes, *, one_by_one: bool) -> tuple[Row, Groups | None]:
    """A row, and its groups if it is a block; ``one_by_one``: groups of a long row are decoded lazily."""
    if one_by_one and len(line) > _WIDE_BYTES:
        wide = _WIDE_DECODER.decode(line)
        if isinstance(wide, _Wide):
            fields = {name: getattr(wide, name) for name in Measurement.__struct_fields__ if name != "groups"}
            groups = Groups(wide.case, map(_GROUP_DECODER.decode, wide.groups))
            return Measurement(**fields, groups=()), groups
        return wide, None
    row = _ROW_DECODER.decode(line)
    return row, Groups(row.case, row.groups) if isinstance(row, Measurement) else None


def _kept(row: Measurement, groups: Groups, keep: Keep | None) -> Measurement:
    """The block to keep, after all of its groups were read."""
    if keep is not None:
        return keep(row, groups)
    for _ in groups:
        pass
    return row
