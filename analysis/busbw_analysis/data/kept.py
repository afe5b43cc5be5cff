"""Kept summaries: the numbers of every launch beside the run, so that its samples are read once and not at every look.

``summary.parquet`` has one row per launch, case and group of ranks (columns of ``LaunchTable``), and one per stored row
without its samples (``record``). It is never the truth: it names the samples that it was made from, and is made again
if these, ``run.json`` or ``VERSION`` differ. A folder that cannot be written to works without.
"""

import contextlib
import hashlib
import os
import threading
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from busbw.errors import StoreError
from busbw.escape import plain_text, with_texts
from busbw.runs import files, store
from busbw.runs.placement import Variable
from busbw.runs.progress import line_of, outline_of
from busbw.runs.records import Case, Imported, Measurement, Row
from busbw.runs.run import Run
from busbw_analysis.data import kept_sources
from busbw_analysis.data.block_columns import PairBlock, packed, packed_run
from busbw_analysis.data.lateness import GroupLateness, lateness_of
from busbw_analysis.data.launches import COLUMNS, OF_MEMBERS, OVERLAP, LaunchTable, launch_table
from busbw_analysis.data.likeness import CHECKED
from busbw_analysis.data.ragged import Ragged

_COPY: Final = """
    COPY (
        SELECT 'numbers' AS kind, cases.* EXCLUDE (case_index), numbers.*, members.* EXCLUDE (place)
        FROM numbers JOIN cases USING (case_index) JOIN (
            SELECT
                place, list(rank ORDER BY member) AS ranks, list(own_ns ORDER BY member) AS own_ns,
                list(own_share ORDER BY member) AS own_share, list(late ORDER BY member) AS late
            FROM members GROUP BY place
        ) AS members USING (place)
        UNION ALL BY NAME SELECT * FROM records
    ) TO $path (FORMAT parquet, COMPRESSION zstd, USE_TMP_FILE false, KV_METADATA {source: $source})
"""
_NUMBERS: Final = "numbers"
"""The ``kind`` of rows with numbers."""
_LISTS: Final = ("ranks", *sorted(OF_MEMBERS))
_SCALARS: Final = tuple(name for name in COLUMNS if name not in {*OF_MEMBERS, "overlap"})
_OVERLAP: Final = tuple(f"overlap_{name}" for name in OVERLAP)
_IN_CASE: Final = tuple(field.name for field in msgspec.structs.fields(Case))
_ONE_AT_A_TIME: Final = threading.Lock()
"""Threads of a process share ``_connection``, and the names of tables in it."""
_ROW_DECODER: msgspec.json.Decoder[Row] = msgspec.json.Decoder(Row)


@dataclass(frozen=True, slots=True)
class Summarised:
    """A run without its samples, and the numbers of its launches.

    stored: its measurements have no groups
    lateness: how late the ranks of each group arrive
    samples: the run with its samples; None if only its folder has them
    is_plain: known to have no text that ``plain_run`` would change
    """

    stored: store.StoredRun
    table: LaunchTable
    lateness: tuple[GroupLateness, ...]
    samples: store.StoredRun | None = None
    is_plain: bool = False


def summarised(stored: store.StoredRun) -> Summarised:
    """The summary of a run in memory."""
    whole = packed_run(stored)
    bare = replace(whole, rows=tuple(map(_without_samples, whole.rows)))
    return Summarised(bare, launch_table(whole), lateness_of(whole), whole)


def summary_of(run: store.StoredRun | Summarised) -> Summarised:
    """The summary of a run that may have one already."""
    return run if isinstance(run, Summarised) else summarised(run)


def _without_samples(row: Row) -> Row:
    if isinstance(row, PairBlock):
        fields = {name: getattr(row, name) for name in Measurement.__struct_fields__}
        return Measurement(**{**fields, "groups": ()})
    return msgspec.structs.replace(row, groups=()) if isinstance(row, Measurement) else row


def plain_run(stored: store.StoredRun) -> store.StoredRun:
    """``stored`` with all its strings escaped by ``plain_text``."""
    run, rows, warnings = with_texts([stored.run, stored.rows, stored.warnings], plain_text)
    return store.StoredRun(stored.path, run, rows, warnings)


def read_summarised(folder: Path) -> Summarised:
    """The summary of the run in ``folder``: the kept one if it fits, else a new one, which is kept if possible.

    Raises like ``store.read``.
    """
    run = store.read_run(folder)
    document = kept_sources.document_checksum(folder)
    kept = kept_sources.read_sources([folder]).get(folder)
    if kept is not None and (kept.version, kept.run) == (kept_sources.VERSION, document) and _fits(kept, folder):
        with contextlib.suppress(*kept_sources.unreadable()):
            rows, table = _read(folder)
            stored = store.StoredRun(folder, run, rows, kept.warnings)
            lateness = msgspec.json.decode(kept.lateness, type=tuple[GroupLateness, ...])
            summary = Summarised(stored, table, lateness, is_plain=kept.is_plain)
            if not kept_sources.is_unchanged(kept, folder):
                # The same rows in another file: the next look need not read them.
                _keep(summary, document, kept_sources.state_of(folder))
            return summary
    before = kept_sources.state_of(folder)
    summary = summarised(store.read(folder, keep=packed))
    if kept_sources.state_of(folder) == before:  # else the run is being written
        _keep(summary, document, before)
    return summary


def _keep(summary: Summarised, document: str, state: tuple[int, int]) -> None:
    """Write the summary if the folder can be written to, and the samples are still those of ``state``."""
    folder = summary.stored.path
    if not kept_sources.is_named_literally(folder) or not os.access(folder, os.W_OK):
        return
    with contextlib.suppress(OSError, StoreError, *kept_sources.unreadable()):
        source = _source_of(summary, document, state)
        if kept_sources.state_of(folder) == state:  # else rows arrived, and the hash may be of more of them
            _write(folder, summary, source)


def _source_of(summary: Summarised, document: str, state: tuple[int, int]) -> kept_sources.Source:
    return kept_sources.Source(
        version=kept_sources.VERSION,
        run=document,
        size=state[0],
        time_ns=state[1],
        rows=_checksum(summary.stored.path),
        warnings=summary.stored.warnings,
        line=line_of(outline_of(summary.stored)),
        is_plain=plain_run(summary.stored) == summary.stored,
        lateness=msgspec.Raw(msgspec.json.encode(summary.lateness)),
    )


def summary_content(folder: Path) -> bytes | None:
    """Make sure that the run in ``folder`` has a kept summary that fits. Where none can be kept (the folder cannot be
    written to, or the run is being written), the bytes of its file.

    Raises like ``store.read``, and StoreError, OSError or duckdb.Error without room for a temporary file.
    """
    with _ONE_AT_A_TIME, files.temporary_folder("busbw-summary-") as place:
        # Runs are summarised beside each other, in a process for each core.
        kept_sources.connection().execute("SET threads = 1")
        document, state = kept_sources.document_checksum(folder), kept_sources.state_of(folder)
        summary = read_summarised(folder)
        if kept_sources.sources_of([folder]):
            return None
        _write(place, summary, _source_of(summary, document, state))
        return (place / store.SUMMARY_FILE).read_bytes()


def _fits(kept: kept_sources.Source, folder: Path) -> bool:
    """Whether the samples are those of the summary. They are only read if their size or time of change differs: a
    packed or copied run has the same rows.
    """
    try:
        return (kept.size, kept.time_ns) == kept_sources.state_of(folder) or kept.rows == _checksum(folder)
    except (OSError, EOFError, zlib.error):
        return False  # reading the samples says what is wrong with them


def _checksum(folder: Path) -> str:
    """SHA-256 of the uncompressed rows. Raises the errors of a file and of an archive that cannot be read."""
    checksum = hashlib.sha256()
    for name in store.PLACES:
        try:
            with files.lines(folder / name, packed=name == store.PACKED_FILE) as lines:
                for line in lines:
                    checksum.update(line)
            break
        except FileNotFoundError:
            continue
    return checksum.hexdigest()


def _read(folder: Path) -> tuple[tuple[Row, ...], LaunchTable]:
    path = str(folder / store.SUMMARY_FILE)

    def columns(what: str, *, numbers: bool = True) -> dict[str, npt.NDArray[Any]]:
        # All of these queries read the rows in the order of the file.
        query = f"SELECT {what} FROM read_parquet(?, hive_partitioning = false) WHERE (kind = '{_NUMBERS}') = {numbers}"  # noqa: S608
        result = kept_sources.connection().execute(query, [path]).fetchnumpy()
        return {name: _typed(name, column) for name, column in result.items()}

    records = columns("record, place", numbers=False)
    rows = [records["record"][at] for at in np.argsort(records["place"], kind="stable").tolist()]
    lengths = columns("len(ranks) AS lengths")["lengths"]
    lists = {name: columns(f"unnest({name}) AS {name}")[name] for name in _LISTS}
    scalars = columns(", ".join(("place", *_SCALARS, *_OVERLAP)))
    order = np.argsort(scalars.pop("place"), kind="stable")
    overlap = np.stack([scalars.pop(name) for name in _OVERLAP], axis=1)
    table = LaunchTable(ranks=Ragged.of(lists.pop("ranks"), lengths), overlap=overlap, **scalars, **lists)
    is_sorted = (np.diff(order) == 1).all()
    return tuple(map(_ROW_DECODER.decode, rows)), table if is_sorted else table.take(order)


def _typed(name: str, column: Any) -> npt.NDArray[Any]:  # noqa: ANN401 - DuckDB's types are wider than its results
    """A column in the type that the table has for it; NULL is NaN."""
    dtype, _ = COLUMNS.get(name, (column.dtype, None))
    if dtype == np.float64:
        return np.ma.filled(np.ma.asarray(column).astype(dtype), np.nan)
    return np.asarray(np.ma.asarray(column).data).astype(dtype)


def _write(folder: Path, summary: Summarised, source: kept_sources.Source) -> None:
    """Replace the kept summary atomically. Raises OSError and the errors of DuckDB."""
    tables = {
        "cases": _case_columns(summary.stored.run),
        **_launch_columns(summary.table),
        "records": _record_columns(summary.stored),
    }
    connection = kept_sources.connection()
    for name, columns in tables.items():
        connection.register(name, columns)
    try:
        with files.drafted(folder / store.SUMMARY_FILE) as draft:
            connection.execute(_COPY, {"path": draft.name, "source": msgspec.json.encode(source).decode()})
    finally:
        for name in tables:
            connection.unregister(name)


def _launch_columns(table: LaunchTable) -> dict[str, dict[str, npt.NDArray[Any]]]:
    """One row per launch and group (``numbers``), and one per rank of every group (``members``)."""
    scalars = {name: getattr(table, name) for name in _SCALARS} | dict(zip(_OVERLAP, table.overlap.T, strict=True))
    ranks, place = table.ranks, np.arange(len(table))
    of_members = {name: getattr(table, name) for name in OF_MEMBERS}
    each = {"place": np.repeat(place, ranks.lengths), "member": np.arange(len(ranks.flat)), "rank": ranks.flat}
    return {"numbers": {"place": place, **scalars}, "members": {**each, **of_members}}


def _case_columns(run: Run) -> dict[str, npt.NDArray[Any]]:
    """The run, what identifies its machine and software, and the settings of every case."""
    of_run: dict[str, object] = {
        "run": run.id,
        "started": run.started,
        "plan": run.plan.name,
        "label": run.plan.label,
        "launcher": run.launcher,
    }
    of_run |= {name.replace(" ", "_").replace(".", "_"): value_of(run) for name, value_of in CHECKED}
    count = len(run.cases)
    columns: dict[str, npt.NDArray[Any]] = {
        name: np.full(count, _scalar(value), dtype=object) for name, value in of_run.items() if name not in _IN_CASE
    }
    records = [msgspec.to_builtins(case) for case in run.cases]
    for name in _IN_CASE:
        column = np.empty(count, dtype=object)
        column[:] = [_scalar(case.get(name)) for case in records]
        columns[f"case_{name}" if name == "ranks" else name] = column
    return {"case_index": np.arange(count), **columns}


def _scalar(value: object) -> object:
    if isinstance(value, dict):
        value = {name.in_words if isinstance(name, Variable) else name: of_name for name, of_name in value.items()}
    return msgspec.json.encode(value).decode() if isinstance(value, dict | list) else value


def _record_columns(stored: store.StoredRun) -> dict[str, npt.NDArray[Any]]:
    kinds = [str(row.__struct_config__.tag) for row in stored.rows]
    records = [msgspec.json.encode(row).decode() for row in stored.rows]
    cases = {case: index for index, case in enumerate(stored.run.cases)}
    blocks = [row if isinstance(row, Measurement | Imported) else None for row in stored.rows]
    return {
        "kind": np.asarray(kinds, dtype=object),
        "place": np.arange(len(records)),
        "record": np.asarray(records, dtype=object),
        "case_index": np.asarray([-1 if row is None else cases[row.case] for row in blocks], dtype=np.int64),
        "launch": np.asarray([-1 if row is None else row.launch for row in blocks], dtype=np.int64),
        "check_state": np.asarray([None if row is None else row.check.state for row in blocks], dtype=object),
    }
