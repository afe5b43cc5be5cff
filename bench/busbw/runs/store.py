"""The run folder: create it, append to it so that a crash loses at most one line, read it, read old formats.

``results/<machine>/<UTC>-<id>/run.json`` is written once and whole; ``samples.jsonl`` grows by one complete line per
block, flushed and fsynced before the next block starts. Nothing else is needed to judge a run.
"""

import contextlib
import gzip
import hashlib
import json
import os
import re
import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from busbw.errors import DamagedRun, NewerSchema, StoreError, UsageError
from busbw.escape import with_texts
from busbw.runs import files, soundness, upgrades
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
    Run,
    Skipped,
)

RUN_FILE = "run.json"
SAMPLES_FILE = "samples.jsonl"
PACKED_FILE = "samples.jsonl.gz"
"""The samples of a large run that has ended; as long as it is there, a plain file beside it does not count."""

PLACES = (PACKED_FILE, SAMPLES_FILE) * 2
"""Where rows are looked for, twice: somebody else may pack or unpack the run meanwhile, and the file that one has just
looked for is the other one then.
"""

_Decoded = TypeVar("_Decoded")

Keep = Callable[[Measurement, "Groups"], Measurement]
"""Takes a block without its groups, and these as they are decoded; gives what is kept of the block."""

_WIDE_BYTES = 4 << 20
"""Longer rows are decoded group by group: all pairs of 1,024 ranks as records would be 6 GB."""


_LATEST = "latest"

NOT_A_RECORD = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding damaged bytes raises: no JSON or another shape, no UTF-8, nested without end."""


def utc_now() -> str:
    """The time of day as it is stored: UTC, ISO 8601, whole milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run as read back: ``rows`` as they were written, ``warnings`` what the reader has to say about them."""

    path: Path
    run: Run
    rows: tuple[Row, ...]
    warnings: tuple[str, ...]

    @property
    def measurements(self) -> tuple[Measurement, ...]:
        """The blocks that were measured."""
        return tuple(row for row in self.rows if isinstance(row, Measurement))

    @property
    def imported(self) -> tuple[Imported, ...]:
        """The numbers of another tool."""
        return tuple(row for row in self.rows if isinstance(row, Imported))

    @property
    def checks(self) -> Iterator[tuple[Case, Check]]:
        """Whether the data of each case were right, as often as that was told."""
        yield from ((row.case, row.check) for row in self.measurements)
        yield from ((row.case, row.check) for row in self.imported)

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """The cases that could not run here."""
        return tuple(row for row in self.rows if isinstance(row, Skipped))

    @property
    def failed(self) -> tuple[Failed, ...]:
        """The cases that were tried and gave no result."""
        return tuple(row for row in self.rows if isinstance(row, Failed))

    @property
    def launches(self) -> tuple[LaunchStarted, ...]:
        """The launches, in order."""
        return tuple(row for row in self.rows if isinstance(row, LaunchStarted))

    @property
    def end(self) -> Ended | None:
        """How the run ended; None when it was killed or is still going on. A run that was resumed has older ends."""
        last = self.rows[-1] if self.rows else None
        return last if isinstance(last, Ended) else None

    @property
    def not_reached(self) -> tuple[Case, ...]:
        """The cases of the plan that have no row at all."""
        seen = {row.case for row in self.rows if isinstance(row, Measurement | Imported | Skipped | Failed)}
        return tuple(case for case in self.run.cases if case not in seen)


def create(results_dir: Path, machine: str) -> Path:
    """Make the folder of a new run and return it. Raises UsageError when that is not possible.

    Its name starts with the time in milliseconds, so that runs sort by age even when a script makes several a second.
    """
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", machine).strip("-.") or "machine"
    stamp = re.sub(r"[-:]", "", utc_now())
    folder = results_dir / slug / f"{stamp}-{secrets.token_hex(3)}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise UsageError(
            f"cannot make the run folder {folder}: {error.strerror}; give a writable one with --results-dir"
        ) from error
    return folder


def write_run(folder: Path, run: Run) -> None:
    """Write ``run.json`` whole or not at all."""
    target = folder / RUN_FILE
    with files.explained("write", target):
        with files.replaced(target) as file:
            file.write(msgspec.json.format(_encode(run), indent=2) + b"\n")
        _sync_folder(folder)


class Appender:
    """Appends rows to ``samples.jsonl``; each is on the disk before ``append`` returns.

    A torn or damaged last line, left by a writer that was killed or by a power cut, is cut off on opening: ``read`` has
    no use for it either, and another row behind it would make it damage in the middle.

    ``written`` is how many bytes the file has to have by what the writers before this one know; None: any number, and
    none yet. Raises StoreError when it has not.
    """

    def __init__(self, folder: Path, written: int | None = None) -> None:
        self._path = folder / SAMPLES_FILE
        create = os.O_CREAT if written is None else 0
        with files.explained("open", self._path):
            try:
                self._file = os.open(self._path, os.O_RDWR | create | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
            except FileNotFoundError as error:
                raise _lost(self._path, 0, written or 0) from error
            try:
                files.require_regular(self._file)
                size = os.lseek(self._file, 0, os.SEEK_END)
                if written not in {None, size}:
                    raise _lost(self._path, size, written or 0)
                self._end = self._sound_length(self._complete_length(size))
                os.ftruncate(self._file, self._end)
                _sync_folder(folder)
            except (OSError, StoreError):
                os.close(self._file)
                raise

    @property
    def written(self) -> int:
        """How many bytes of complete rows there are."""
        return self._end

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def append(self, row: Row) -> None:
        """Add one row; an end gets the count and the checksum of the rows before it.

        Raises StoreError when the file is no longer the one that was opened, as long as it was left; and (disk full,
        quota …) with the file cut back to its last complete line.
        """
        self.require_whole()
        if isinstance(row, Ended):
            rows, checksum = self._summed_up()
            row = msgspec.structs.replace(row, rows=rows, checksum=checksum)
        line = memoryview(_encode(row) + b"\n")
        try:
            written = 0
            while written < len(line):
                written += os.pwrite(self._file, line[written:], self._end + written)
            os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):  # what cannot be cut now is cut on the next opening
                os.ftruncate(self._file, self._end)
            raise StoreError(f"cannot write {self._path}: {error.strerror}; the rows before are kept") from error
        self._end += len(line)

    def require_whole(self) -> None:
        """Raise StoreError when somebody removed, replaced or cut the file that is written here."""
        mine = os.fstat(self._file)
        try:
            there = self._path.stat()
        except OSError:
            there = None
        if there is None or (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino):
            raise _lost(self._path, 0, self._end)
        if mine.st_size != self._end:
            raise _lost(self._path, mine.st_size, self._end)

    def _summed_up(self) -> tuple[int, str]:
        """How many rows are in the file, and the checksum of their bytes."""
        rows, checksum, place = 0, hashlib.sha256(), 0
        while part := os.pread(self._file, min(1 << 20, self._end - place), place):
            rows, place = rows + part.count(b"\n"), place + len(part)
            checksum.update(part)
        return rows, checksum.hexdigest()

    def _sound_length(self, end: int) -> int:
        """The length without the last line where that one is no row."""
        start = self._complete_length(end - 1) if end else 0
        try:
            if end:
                _ROW_DECODER.decode(os.pread(self._file, end - start, start))
        except NOT_A_RECORD:
            return start
        return end

    def _complete_length(self, end: int) -> int:
        """How many of the first ``end`` bytes are complete lines."""
        step = 1 << 16
        while end > 0:
            start = max(0, end - step)
            newline = os.pread(self._file, end - start, start).rfind(b"\n")
            if newline >= 0:
                return start + newline + 1
            end = start
        return 0


def _lost(path: Path, found: int, written: int) -> StoreError:
    return StoreError(
        f"{path} was removed, replaced or changed while it was written: {found} of {written} bytes are there; "
        "measure again"
    )


def _encode(record: Row | Run) -> bytes:
    """JSON of a record. Names and error texts of the system may hold bytes that are no UTF-8: they are escaped."""
    try:
        return msgspec.json.encode(record)
    except UnicodeEncodeError:
        return msgspec.json.encode(with_texts(record, lambda text: text.encode(errors="backslashreplace").decode()))


def _sync_folder(folder: Path) -> None:
    """A new file survives a power cut only when its folder has been written too."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read(folder: Path, *, keep: Keep | None = None) -> StoredRun:
    """Read a run folder, and hold what it says against itself. ``keep`` makes of every block what is kept of it (None:
    all of it).

    A damaged last line is dropped with a warning that names the case it was for. Raises NewerSchema for a run from
    a newer busbw, DamagedRun (with the line's number) for damage anywhere else, StoreError when there is no run.
    """
    run, schema = _read_run(folder / RUN_FILE)
    for name in PLACES:
        with contextlib.suppress(FileNotFoundError):
            return _read_samples(folder / name, run, schema, keep)
    return StoredRun(path=folder, run=run, rows=(), warnings=())


def _read_samples(path: Path, run: Run, schema: int, keep: Keep | None) -> StoredRun:
    """The run with the rows of ``path``. Raises FileNotFoundError, StoreError and DamagedRun."""
    rows: list[Row] = []
    warnings: list[str] = []
    sound, checksum = soundness.Rows(run), hashlib.sha256()

    def damaged(number: int, line: bytes, error: Exception) -> DamagedRun:
        return _damaged(path, number, _damage(line, error))

    decode = partial(_decode_row, schema=schema, one_by_one=keep is not None)
    for number, line, decoded in decoded_lines(path, decode, damaged):
        if decoded is None:
            warnings.append(f"{path}: the last line is incomplete and was dropped; lost is {_case_of(line)}")
            break
        row, groups = decoded
        try:
            flaw = next(sound.flaws(row, number), None) or _flaw_of_end(row, number - 1, checksum.hexdigest)
            if flaw is None and isinstance(row, Measurement):
                row = _kept(row, groups, keep)
        except soundness.Unsound as error:
            flaw = str(error)
        except NOT_A_RECORD as error:
            flaw = _damage(line, error)
        if flaw is not None:
            raise _damaged(path, number, flaw)
        rows.append(row)
        checksum.update(line)
        del line, groups, decoded  # a long one is gone before the next one is there
    return StoredRun(path=path.parent, run=run, rows=tuple(rows), warnings=tuple(warnings))


def decoded_lines(
    path: Path, decode: Callable[[bytes], _Decoded], damaged: Callable[[int, bytes, Exception], DamagedRun]
) -> Iterator[tuple[int, bytes, _Decoded | None]]:
    """The lines of ``SAMPLES_FILE`` or ``PACKED_FILE``, each with its number and what ``decode`` makes of it; None of a
    last one that is incomplete.

    Raises FileNotFoundError, StoreError, DamagedRun for a broken archive, and what ``damaged`` makes of any other line
    that cannot be decoded.
    """
    bad: tuple[bytes, Exception] | None = None
    number = 0
    try:
        with files.lines(path, packed=path.name == PACKED_FILE) as lines:
            for line in lines:
                if bad is not None:
                    raise damaged(number, *bad) from bad[1]
                number += 1
                if not line.endswith(b"\n"):
                    yield number, line, None
                    return
                try:
                    decoded = decode(line)
                except NOT_A_RECORD as error:
                    bad = line[:-1], error
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
        yield number, bad[0], None


def _flaw_of_end(row: Row, before: int, checksum: Callable[[], str]) -> str | None:
    """What an end says of the rows before it that is not so; older ones say nothing."""
    if not isinstance(row, Ended):
        return None
    if row.rows not in {None, before}:
        return f"the run ended with {row.rows} rows, and {before} are there"
    if row.checksum not in {None, checksum()}:
        return "a row before this end was changed since it was written: their checksum is another one"
    return None


def _damaged(path: Path, line: int, flaw: str) -> DamagedRun:
    return DamagedRun(
        f"{path}, line {line}: {flaw}; measure it again, or take out this line and every end, and resume the run"
    )


def read_run(folder: Path) -> Run:
    """Only ``run.json`` of a run folder; raises as ``read`` does."""
    return _read_run(folder / RUN_FILE)[0]


def written_schema(folder: Path) -> int:
    """The schema that a run was written in, before it was lifted; raises as ``read`` does."""
    return _read_run(folder / RUN_FILE)[1]


def find(results_dir: Path, selector: str) -> Path:
    """The folder that ``selector`` means: a path, a run's name or the start or end of it, or ``latest``.

    Raises StoreError when nothing or more than one run answers to it.
    """
    given = Path(selector)
    with files.explained("read", given):
        if (given / RUN_FILE).is_file():
            return given
        if given.name == RUN_FILE and given.is_file():
            return given.parent
    runs = list(folders(results_dir))
    answering = [one for one in runs if selector and (one.name.startswith(selector) or one.name.endswith(selector))]
    found = runs[-1:] if selector == _LATEST else answering
    if len(found) == 1:
        return found[0]
    if found:
        raise StoreError(f"run {selector!r} is ambiguous in {results_dir}: {', '.join(one.name for one in found)}")
    raise StoreError(
        f"{selector!r} not found: it is neither a run folder nor a file, nor one of the {len(runs)} runs in "
        f"{results_dir} (busbw list runs)"
    )


def folders(results_dir: Path) -> Iterator[Path]:
    """All run folders below ``results_dir``, oldest first."""
    with files.explained("read", results_dir):
        found = [path.parent for path in results_dir.glob(f"*/*/{RUN_FILE}")]
    yield from sorted(found, key=lambda folder: (folder.name, folder.parent.name))


def _read_run(path: Path) -> tuple[Run, int]:
    content = run_document(path)
    try:
        document = msgspec.json.decode(content)
    except NOT_A_RECORD as error:
        raise DamagedRun(f"{path}: {_damage(content, error)}") from error
    schema = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(schema, int) or schema < 1:
        raise DamagedRun(f"{path}: 'schema' is {schema!r:.40}; a run has a whole number from 1 to {SCHEMA}")
    if schema > SCHEMA:
        raise NewerSchema(
            f"{path} has schema {schema}, which is newer than this busbw understands ({SCHEMA}); "
            "upgrade busbw to read it"
        )
    try:
        run = msgspec.convert(upgrades.run_as_now(document, schema), Run)
    except NOT_A_RECORD as error:
        raise DamagedRun(f"{path}: {error}") from error
    if (flaw := next(soundness.flaws_of_run(run), None)) is not None:
        raise DamagedRun(f"{path}: {flaw}")
    return run, schema


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
    """A block whose groups are not decoded yet."""

    groups: tuple[msgspec.Raw, ...]  # type: ignore[assignment]  # the one field that is read in two steps


_WIDE_DECODER: msgspec.json.Decoder[_Wide | Imported | Skipped | Failed | LaunchStarted | Ended] = msgspec.json.Decoder(
    _Wide | Imported | Skipped | Failed | LaunchStarted | Ended
)
_GROUP_DECODER = msgspec.json.Decoder(GroupSamples)


class Groups:
    """The groups of a block, each held against itself before it is given; Unsound is raised with the first flaw.

    ``raw``: the same as JSON, where the row is a long one (else empty); who takes these has to look by itself.
    """

    def __init__(self, case: Case | None, groups: Iterable[GroupSamples], raw: Sequence[msgspec.Raw] = ()) -> None:
        self.raw = raw
        self._case = case
        self._groups = groups

    def __iter__(self) -> Iterator[GroupSamples]:
        return iter(()) if self._case is None else soundness.sound_groups(self._groups, self._case)


def _decode_row(line: bytes, schema: int, *, one_by_one: bool) -> tuple[Row, Groups]:
    """A row, and the groups of a block; ``one_by_one``: those of a long row are decoded as they are taken."""
    line = upgrades.row_as_now(line, schema)
    if one_by_one and len(line) > _WIDE_BYTES:
        wide = _WIDE_DECODER.decode(line)
        if isinstance(wide, _Wide):
            fields = {name: getattr(wide, name) for name in Measurement.__struct_fields__ if name != "groups"}
            groups = Groups(wide.case, map(_GROUP_DECODER.decode, wide.groups), wide.groups)
            return Measurement(**fields, groups=()), groups
        return wide, Groups(None, ())
    row = _ROW_DECODER.decode(line)
    return row, Groups(row.case, row.groups) if isinstance(row, Measurement) else Groups(None, ())


def _kept(row: Measurement, groups: Groups, keep: Keep | None) -> Measurement:
    """What is kept of a block, with all of its groups taken."""
    if keep is not None:
        return keep(row, groups)
    for _ in groups:
        pass
    return row


def _damage(content: bytes, error: Exception) -> str:
    """What is wrong with a record. Writers that do not know JSON well put NaN and Infinity where a number was lost."""
    with contextlib.suppress(ValueError, RecursionError):
        constants: list[str] = []
        json.loads(content, parse_constant=constants.append)
        if constants:
            return f"{constants[0]} is no number; numbers are finite, and times are whole ns above 0"
    return str(error)


def _case_of(torn: bytes) -> str:
    """Which case a torn line was for, as far as it was written. A number counts only when something follows it."""
    text = torn.decode(errors="replace")
    if re.match(r'\{"kind":"(launch|end)"', text):
        return "no case: it told how a launch began or the run ended"
    op = re.search(r'"op":"([^"]+)"', text)
    if op is None:
        return "a case whose name was not yet written"
    size = re.search(r'"size_bytes":(\d+)[,}]', text)
    block = re.search(r'"launch":(\d+),"block":(\d+)[,}]', text)
    where = f" (launch {int(block[1]) + 1}, block {int(block[2]) + 1})" if block else ""
    return op[1] + (f" at {size[1]} B" if size else "") + where
