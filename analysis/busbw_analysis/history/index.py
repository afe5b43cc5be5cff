"""The index: kept summaries of many runs gathered into immutable Parquet files, so that all runs are one query.

Files lie below ``RESULTS/index/machine=…/month=…/``. Each gathering writes new ones, and renames them when they are
complete, so there is no lock between writers. A row names the version of its run: the sizes and times of change of
``run.json`` and of the samples. Only the version that the run's folder has now counts, from one of the files that have
it; a run without one is read from its own summary. So the index may lack runs or have them several times, in any order,
and the rows are those of the run folders.
"""

import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote

import duckdb
import msgspec

from busbw.errors import BusbwError, StoreError
from busbw.runs import store
from busbw.runs.files import drafted, store_errors, temporary_folder
from busbw.runs.progress import RunLine
from busbw_analysis.data import kept_sources
from busbw_analysis.history.columns import OF_ENTRIES, OF_KEPT, OF_LAUNCHES, OF_RUNS, STORED, quoted, run_values

if TYPE_CHECKING:
    from busbw_analysis.history.engine import Engine

INDEX: Final = "index"
_SUFFIX: Final = ".v1.parquet"
"""With the version of the columns: files of another version are left alone."""
_RUNS_AT_A_TIME: Final = 1000
_ABANDONED_SECONDS: Final = 24 * 3600
"""A draft of this age is of a writer that was killed."""

Version: TypeAlias = tuple[int, int, int, int, int]
"""Version of the kept summary; size and time of change (ns) of ``run.json``, and of the samples (0 without any)."""

_INCOMING: Final = (*OF_ENTRIES[1:-2], OF_ENTRIES[-1], *OF_RUNS)
_OF_INSERT: Final = {"file": "VARCHAR", "rated": "BOOLEAN[]"}
"""Of each run while it is inserted: its kept summary, and whether each of its cases has a rate."""
_STRUCTURE: Final = msgspec.json.encode([{row.name: row.type for row in _INCOMING} | _OF_INSERT]).decode()
_CREATE: Final = f"CREATE TABLE fresh ({', '.join(f'{quoted(column)} {column.type}' for column in STORED)})"
_VALUES: Final = ", ".join(f"{column.source} AS {quoted(column)}" for column in OF_LAUNCHES)
_INSERTS: Final = (
    f"""
    CREATE OR REPLACE TEMP TABLE incoming AS
    SELECT run.* FROM (SELECT unnest(from_json($runs, '{_STRUCTURE}')) AS run)
    """,  # noqa: S608 - names and types of columns, as below
    f"""
    CREATE OR REPLACE TEMP TABLE kept AS
    SELECT file, {", ".join(f'"{name}"' for name in OF_KEPT)}
    FROM read_parquet($paths, union_by_name = true, filename = 'file', hive_partitioning = false)
    """,  # noqa: S608 - names of columns
    f"""
    INSERT INTO fresh BY NAME
    WITH states AS (
        SELECT
            file, case_index, launch,
            CASE WHEN bool_or(check_state = 'wrong') THEN 'wrong'
            WHEN bool_and(check_state = 'verified') THEN 'verified' ELSE 'not checked' END AS state
        FROM kept WHERE case_index >= 0 AND kind <> 'numbers' GROUP BY ALL
    )
    SELECT 'launch' AS kind, incoming.entry, {_VALUES}
    FROM kept JOIN incoming USING (file) LEFT JOIN states USING (file, case_index, launch) WHERE kept.kind = 'numbers'
    """,  # noqa: S608
    """
    INSERT INTO fresh BY NAME
    SELECT 'run' AS kind, incoming.* EXCLUDE (file, rated), coalesce(counted.rows, 0) AS rows FROM incoming
    LEFT JOIN (SELECT file, count(*) FILTER (kind <> 'numbers') AS rows FROM kept GROUP BY file) AS counted USING (file)
    """,
)
_OF_RUNS: Final = "FROM read_parquet(?, filename = true, hive_partitioning = false) WHERE kind = 'run'"
_VERSIONS: Final = f"SELECT filename, entry, folder, version, document_size, document_time_ns, size, time_ns {_OF_RUNS}"
_LINES: Final = f"SELECT entry, line {_OF_RUNS}"
_COPY: Final = (
    "COPY (SELECT fresh.* FROM fresh SEMI JOIN part USING (entry) ORDER BY kind DESC, series, entry, launch) "
    "TO $path (FORMAT parquet, COMPRESSION zstd, USE_TMP_FILE false)"
)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A run that cannot be read, and why."""

    folder: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Gathering:
    """What ``gather`` did: numbers of runs that were added and that were there, and the runs that cannot be read."""

    added: int
    unchanged: int
    unreadable: tuple[Unreadable, ...]


@dataclass(frozen=True, slots=True)
class Contents:
    """What an index has of run folders.

    files: its files that can be read, without copies of others
    entries: paths of run folders, each with the entry of its present version
    fresh: run folders without one
    """

    files: tuple[Path, ...]
    entries: tuple[tuple[str, int], ...]
    fresh: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of summarising a run: why it cannot be read; the content of its summary if none can be kept beside it."""

    error: str | None = None
    content: bytes | None = None


def contents(
    results_dir: Path, places: Iterable[Path | str], connection: duckdb.DuckDBPyConnection | None = None
) -> Contents:
    """Which of ``places``, all below ``results_dir``, have their present version in the index. Those that are no run
    folders are left out. ``connection``: one that is open.
    """
    files = [path for path in sorted(results_dir.glob(f"{INDEX}/*/*/*{_SUFFIX}")) if kept_sources.is_complete(path)]
    if not kept_sources.is_named_literally(results_dir):
        files = []
    rows = _rows(_VERSIONS, list(map(str, files)), connection)
    first: dict[int, str] = {}
    copies = {row[0] for row in rows if first.setdefault(row[1], row[0]) != row[0]}
    known = {row[2:]: row[1] for row in rows if row[0] not in copies}
    readable = {row[0] for row in rows} - copies
    entries: list[tuple[str, int]] = []
    fresh: list[Path] = []
    for place in map(str, places):
        if (version := _version_of(place)) is None:
            continue
        entry = known.get((_name(place), *version))
        if entry is None:
            fresh.append(Path(place))
        else:
            entries.append((place, entry))
    return Contents(tuple(file for file in files if str(file) in readable), tuple(entries), tuple(fresh))


def _rows(query: str, files: list[str], connection: duckdb.DuckDBPyConnection | None = None) -> list[tuple[Any, ...]]:
    """The rows of ``query`` over the files that can be read: one damaged file fails the query for all."""
    if not files:
        return []
    try:
        return (connection or kept_sources.connection()).execute(query, [files]).fetchall()
    except duckdb.Error:
        if len(files) == 1:
            return []
    middle = len(files) // 2
    return [*_rows(query, files[:middle], connection), *_rows(query, files[middle:], connection)]


def _name(place: str) -> str:
    # A Path for each of 10,000 runs would take 50 ms.
    return f"{os.path.basename(os.path.dirname(place))}/{os.path.basename(place)}"  # noqa: PTH119, PTH120


def _version_of(place: str) -> Version | None:
    """The present version of a run; None if it has no ``run.json`` any more. Reading says why one cannot be read."""
    try:
        document = os.stat(f"{place}/{store.RUN_FILE}")  # noqa: PTH116 - several times as fast as pathlib
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return kept_sources.VERSION, 0, 0, 0, 0
    return kept_sources.VERSION, document.st_size, document.st_mtime_ns, *kept_sources.state_of(place)


def lines_of(places: Sequence[str]) -> dict[str, RunLine]:
    """The lines of those runs, by path, that the index or their kept summaries have. All are of one results folder."""
    if not places:
        return {}
    index = contents(Path(places[0]).parent.parent, places)
    lines = {str(folder): line for folder, line in kept_sources.lines_of(index.fresh).items()}
    stored = dict(_rows(_LINES, list(map(str, index.files))))
    decode = msgspec.json.Decoder(RunLine).decode
    with suppress(KeyError, msgspec.MsgspecError):
        lines |= {place: decode(stored[entry]) for place, entry in index.entries}
    return lines


def gather(results_dir: Path, folders: Sequence[Path], engine: "Engine") -> Gathering:
    """Add those of ``folders`` to the index whose present version it lacks. Those that it has are not read.

    Raises StoreError if the index cannot be written, and the errors of ``engine``.
    """
    if not kept_sources.is_named_literally(results_dir):
        raise StoreError(f"{results_dir} cannot be indexed: its path has one of *?[]{{}}; rename it")
    _remove_abandoned(results_dir)
    index = contents(results_dir, folders)
    unreadable: list[Unreadable] = []
    added = 0
    for first in range(0, len(index.fresh), _RUNS_AT_A_TIME):
        with fresh_table() as connection:
            entries, without = insert(connection, index.fresh[first : first + _RUNS_AT_A_TIME], engine)
            unreadable += without
            added += len(entries)
            _write(connection, results_dir)
    return Gathering(added, len(index.entries), tuple(unreadable))


@contextmanager
def fresh_table() -> Iterator[duckdb.DuckDBPyConnection]:
    """A database in memory with an empty table ``fresh`` of the columns ``STORED``.

    What does not fit into memory goes to a folder of its own: DuckDB lets queries read everything in that folder, even
    if they may read no file.
    """
    with (
        temporary_folder("busbw-duckdb-") as place,
        duckdb.connect(":memory:", config={"temp_directory": f"{place}/spilled"}) as connection,
    ):
        connection.execute(_CREATE)
        yield connection


def insert(
    connection: duckdb.DuckDBPyConnection, folders: Sequence[Path], engine: "Engine", *, repairing: bool = True
) -> tuple[dict[Path, int], list[Unreadable]]:
    """Insert the rows of ``folders`` into the table ``fresh``, from kept summaries, which are made where they are
    missing or damaged (``repairing``). The entry of each run, and the runs that cannot be read.
    """
    versions = {folder: version for folder in folders if (version := _version_of(str(folder))) is not None}
    fitting = kept_sources.sources_of(versions)
    missing = [folder for folder in versions if folder not in fitting]
    outcomes = dict(zip(missing, engine.map(summarise, [folder.absolute() for folder in missing]), strict=True))
    unreadable = [Unreadable(folder, outcome.error) for folder, outcome in outcomes.items() if outcome.error]
    with temporary_folder("busbw-summaries-") as place:
        places: dict[Path, Path] = {}
        for number, (folder, outcome) in enumerate(outcomes.items()):
            if outcome.content is not None:
                places[folder] = place / str(number)
                with store_errors("write", places[folder]):
                    places[folder].mkdir()
                    (places[folder] / store.SUMMARY_FILE).write_bytes(outcome.content)
            elif outcome.error is None:
                places[folder] = folder
        made = kept_sources.read_sources(places.values())
        sources = fitting | {folder: made[where] for folder, where in places.items() if where in made}
        entries: dict[Path, int] = {}
        rows: dict[Path, dict[str, object]] = {}
        for folder, source in sources.items():
            try:
                run = store.read_run(folder)
            except BusbwError as error:
                unreadable.append(Unreadable(folder, str(error)))
                continue
            _, document_size, document_time_ns, *_ = versions[folder]
            entries[folder] = secrets.randbits(62)
            rows[folder] = {
                "file": str(places.get(folder, folder) / store.SUMMARY_FILE),
                "entry": entries[folder],
                "folder": _name(str(folder)),
                "version": source.version,
                "document_size": document_size,
                "document_time_ns": document_time_ns,
                "size": source.size,
                "time_ns": source.time_ns,
                "checksum": source.run,
                "line": source.line,
                "rated": [case.has_rate for case in run.cases],
                **run_values(run),
            }
        damaged = _insert(connection, list(rows.items()))
    inserted = {folder: entry for folder, entry in entries.items() if folder not in damaged}
    if damaged and repairing:
        for folder in damaged:
            with suppress(OSError):
                (folder / store.SUMMARY_FILE).unlink(missing_ok=True)
        again, without = insert(connection, list(damaged), engine, repairing=False)
        return inserted | again, [*unreadable, *without]
    return inserted, [*unreadable, *(Unreadable(folder, reason) for folder, reason in damaged.items())]


def summarise(folder: Path) -> Outcome:
    """Keep a summary of a run, in any process that can read it."""
    from busbw_analysis.data.kept import summary_content  # noqa: PLC0415 - with numpy

    try:
        return Outcome(content=summary_content(folder))
    except (BusbwError, OSError, duckdb.Error) as error:
        return Outcome(error=str(error))


def _insert(
    connection: duckdb.DuckDBPyConnection, rows: Sequence[tuple[Path, Mapping[str, object]]]
) -> dict[Path, str]:
    """Insert runs. Those whose summary is damaged or whose path is no Unicode, and how: one of them fails the query for
    all.
    """
    if not rows:
        return {}
    try:
        runs = msgspec.json.encode([row for _, row in rows]).decode()
        paths: dict[str, object] = {"paths": [row["file"] for _, row in rows]}
        parameters: tuple[dict[str, object], ...] = ({"runs": runs}, paths, {}, {})
        for query, given in zip(_INSERTS, parameters, strict=True):
            connection.execute(query, given)
    except (duckdb.Error, UnicodeEncodeError) as error:
        if len(rows) == 1:
            return {rows[0][0]: f"{rows[0][1]['file']}: {error}"}
        middle = len(rows) // 2
        return _insert(connection, rows[:middle]) | _insert(connection, rows[middle:])
    return {}


def _write(connection: duckdb.DuckDBPyConnection, results_dir: Path) -> None:
    """Write the table ``fresh``: a file for each machine and month."""
    for folder, month in connection.execute(
        "SELECT DISTINCT parse_dirpath(folder), strftime(started, '%Y-%m') FROM fresh WHERE kind = 'run'"
    ).fetchall():
        target = results_dir / INDEX / f"machine={quote(folder, safe='')[:100]}" / f"month={month or 'unknown'}"
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
        path = target / f"{now}-{os.getpid()}-{secrets.token_hex(4)}{_SUFFIX}"
        connection.execute(
            "CREATE OR REPLACE TEMP TABLE part AS SELECT entry FROM fresh "
            "WHERE kind = 'run' AND parse_dirpath(folder) = ? AND strftime(started, '%Y-%m') IS NOT DISTINCT FROM ?",
            [folder, month],
        )
        with store_errors("write", path):
            target.mkdir(parents=True, exist_ok=True)
            try:
                with drafted(path) as draft:
                    connection.execute(_COPY, {"path": draft.name})
            except duckdb.Error as error:
                raise StoreError(f"cannot write {path}: {error}") from error


def _remove_abandoned(results_dir: Path) -> None:
    for draft in results_dir.glob(f"{INDEX}/*/*/.*.draft"):
        with suppress(OSError):
            if time.time() - draft.stat().st_mtime > _ABANDONED_SECONDS:
                draft.unlink()
