"""Cases and samples as tidy columns, for data frames and exported files; units are in the column names.

docs/python.md explains the columns.
"""

import csv
from collections.abc import Iterable, Sequence
from io import StringIO
from operator import attrgetter
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from busbw.errors import StoreError
from busbw.escape import as_cell
from busbw.runs.described import variables_in_words
from busbw.runs.files import temporary_folder
from busbw.runs.records import JSON, Detail, Imported, Measurement, case_in_words
from busbw_analysis.data.block_columns import columns_of
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.load import Samples
from busbw_analysis.data.names import rank_list
from busbw_analysis.data.summary import CaseSummary
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.peaks.peaks import Peak
from busbw_analysis.report.show import peaks_of, share_of

_IN_COLUMNS: Final[frozenset[Detail]] = frozenset(
    {"op", "dtype", "redop", "mode", "in_place", "group", "device", "root"}
)
_OF_CASE: Final = ("op", "dtype", "redop", "size_bytes", "root", "backend", "device", "mode", "in_place")
_OF_GROUP: Final = {
    **{name: name for name in ("launches", "samples", "time_ns", "fastest_ns", "p5_ns", "p95_ns")},
    "spread_share": "spread",
    **{name: name for name in ("skew_share", "statistic")},
    "algbw_bytes_per_s": "algbw",
    "busbw_bytes_per_s": "busbw",
    "low_ns": "interval.low_ns",
    "high_ns": "interval.high_ns",
    "interval": "interval.kind",
}
"""Columns of the table → fields of a group."""
_OF_SAMPLES: Final = (
    *("run", "launch", "block", "case", "op", "size_bytes", "group", "sample", "calls"),
    *("time_ns", "fastest_ns", "arrival_skew_ns", "exit_span_ns", "last_rank"),
)


Columns: TypeAlias = dict[str, npt.NDArray[Any]]
"""Columns of one length by name: numbers, NaN if unknown, or objects, None if unknown."""


def case_columns(judgement: Judgement) -> Columns:
    """One row per case and group of ranks, in the order of the plan."""
    peaks = peaks_of(judgement)
    rows = [
        _row(judgement, summary, group, None if group is None else peaks.get((summary.index, group.ranks)))
        for summary in judgement.cases
        for group in summary.groups or (None,)
    ]
    return {name: _column([row[name] for row in rows]) for name in rows[0]}


def sample_columns(samples: Samples) -> Columns:
    """One row per sample and group of ranks. Times are ns per call."""
    parts = [
        _of_block(run, case, row) if isinstance(row, Measurement) else _of_log(run, case, row)
        for run, case, row in samples.rows()
        if isinstance(row, Measurement) or row.samples_ns
    ]
    if not parts:
        return {name: np.empty(0, dtype=object) for name in _OF_SAMPLES}
    columns = {name: np.concatenate([part[name] for part in parts]) for name in _OF_SAMPLES}
    for name in ("time_ns", "fastest_ns", "arrival_skew_ns", "exit_span_ns"):
        columns[name] = columns[name] / columns["calls"]
    return columns


def _row(judgement: Judgement, summary: CaseSummary, group: GroupSummary | None, peak: Peak | None) -> dict[str, JSON]:
    """A case on one group of ranks; ``group`` is None if nothing was measured."""
    case = summary.case
    most = None if peak is None or group is None else peak.algbw if group.bus_factor is None else peak.busbw
    return {
        "case": summary.index,
        **{name: getattr(case, name) for name in _OF_CASE},
        "settings": ", ".join(case_in_words(case, _IN_COLUMNS)),
        "group": None if group is None else rank_list(group.ranks),
        "ranks": case.ranks if group is None else len(group.ranks),
        "hosts": judgement.facts.host_count(range(case.ranks) if group is None else group.ranks),
        "state": summary.state,
        "check": summary.check.in_words,
        **{name: None if group is None else attrgetter(field)(group) for name, field in _OF_GROUP.items()},
        "peak_bytes_per_s": most,
        "peak_share": None if group is None else share_of(group, peak),
        "flags": ", ".join(summary.flags),
        **_of_runs(judgement),
    }


def _of_runs(judgement: Judgement) -> dict[str, JSON]:
    """What tells the pooled runs from others: the same in all rows."""
    runs = [stored.run for stored in judgement.runs]
    facts = judgement.facts
    variables = (f"{name}={value}" for name, value in variables_in_words(facts.environments).items())
    return {
        "run": _distinct(run.id for run in runs),
        "label": _distinct(run.plan.label for run in runs),
        "started": min(run.started for run in runs),
        "machine": _distinct(run.machine for run in runs),
        "host_names": _distinct(facts.hosts) if facts.hosts_known else None,
        "variables": _distinct(variables),
    }


def _distinct(values: Iterable[str | None]) -> str | None:
    """The distinct ``values`` in one cell; None if there are none."""
    return ", ".join(dict.fromkeys(value for value in values if value is not None)) or None


def _column(values: Sequence[JSON]) -> npt.NDArray[Any]:
    """``values`` as numbers if all that are known are numbers."""
    known = np.array([value for value in values if value is not None])
    if len(known) == len(values) and known.dtype.kind != "U":
        return known
    return np.array(values, dtype=np.float64 if len(known) and known.dtype.kind in "if" else object)


def _of_log(run: int, case: int, row: Imported) -> Columns:
    """The samples of a case from another tool's log: one call each, of the slowest process."""
    return _part(
        (run, case, row),
        group=np.array(rank_list(row.ranks), dtype=object),
        sample=np.arange(len(row.samples_ns)),
        calls=1,
        time_ns=np.array(row.samples_ns),
    )


def _of_block(run: int, case: int, block: Measurement) -> Columns:
    """The samples of all groups of a block."""
    columns = columns_of(block)
    lengths, starts = columns.length, columns.ranks.starts[:-1]
    places = columns.last_place if len(columns.last_place) else columns.fastest_place
    return _part(
        (run, case, block),
        group=np.repeat(np.array([rank_list(ranks) for ranks in columns.ranks], dtype=object), lengths),
        sample=np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths),
        calls=block.calls,
        time_ns=columns.slowest,
        fastest_ns=columns.fastest,
        last_rank=columns.ranks.flat[np.repeat(starts, lengths) + places].astype(np.int64),
        arrival_skew_ns=columns.skew if len(columns.skew) else np.nan,
        exit_span_ns=columns.span if len(columns.span) else np.nan,
    )


def _part(where: tuple[int, int, Measurement | Imported], **given: npt.ArrayLike) -> Columns:
    """The columns of the samples of a row, with the numbers of its run and case; NaN if not ``given``. Times are those
    of all calls of a sample.
    """
    run, case, row = where
    whole = {
        **dict.fromkeys(_OF_SAMPLES, np.nan),
        "run": run,
        "launch": row.launch,
        "block": row.block,
        "case": case,
        "size_bytes": row.case.size_bytes,
        "op": np.array(row.case.op, dtype=object),
        **given,
    }
    return dict(zip(whole, np.broadcast_arrays(*whole.values()), strict=True))


def to_csv(columns: Columns) -> bytes:
    """A header and one line per row; unknown numbers are empty, and no text is a formula (``as_cell``)."""
    text = StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    cells = (
        [as_cell(value) if isinstance(value, str) else value for value in _values(column)]
        for column in columns.values()
    )
    writer.writerows(zip(*cells, strict=True))
    return text.getvalue().encode()


def to_json_lines(columns: Columns) -> bytes:
    """One object per row; unknown numbers are null."""
    rows = (dict(zip(columns, row, strict=True)) for row in zip(*map(_values, columns.values()), strict=True))
    return msgspec.json.Encoder().encode_lines(rows)


def to_parquet(columns: Columns) -> bytes:
    """A Parquet file."""
    import duckdb  # noqa: PLC0415 - 0.1 s, for this format only

    with temporary_folder("busbw-export-") as folder, duckdb.connect(":memory:") as connection:
        path = folder / "tidy.parquet"
        connection.register("tidy", columns)
        try:
            connection.execute("COPY tidy TO ? (FORMAT parquet, COMPRESSION zstd)", [str(path)])
        except duckdb.IOException as error:
            raise StoreError(f"cannot write {path}: {error}") from error
        return path.read_bytes()


def _values(column: npt.NDArray[Any]) -> list[Any]:
    """The values of ``column``, None if unknown."""
    if column.dtype.kind == "f":
        column = np.where(np.isfinite(column), column, np.array(None))
    values: list[Any] = column.tolist()
    return values
