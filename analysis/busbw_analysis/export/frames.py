"""Cases and samples as tidy data frames, for notebooks and exported files; units are in the column names.

docs/python.md explains the columns.
"""

from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import pandas as pd

from busbw.escape import as_cell
from busbw.runs.described import variables_in_words
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


def case_frame(judgement: Judgement) -> pd.DataFrame:
    """One row per case and group of ranks, in the order of the plan."""
    peaks = peaks_of(judgement)
    return pd.DataFrame(
        [
            _row(judgement, summary, group, None if group is None else peaks.get((summary.index, group.ranks)))
            for summary in judgement.cases
            for group in summary.groups or (None,)
        ]
    )


def sample_frame(samples: Samples) -> pd.DataFrame:
    """One row per sample and group of ranks. Times are ns per call."""
    parts = [
        _of_block(run, case, row) if isinstance(row, Measurement) else _of_log(run, case, row)
        for run, case, row in samples.rows()
        if isinstance(row, Measurement) or row.samples_ns
    ]
    if not parts:
        return pd.DataFrame(columns=list(_OF_SAMPLES))
    frame = pd.concat(parts, ignore_index=True)
    cases, calls = {index: case for case, index in samples.cases.items()}, frame["calls"]
    for name in ("op", "size_bytes"):
        frame[name] = frame["case"].map({index: getattr(case, name) for index, case in cases.items()})
    frame["group"] = frame["group"].astype("category")
    frame["time_ns"] = frame["slowest_ns"] / calls
    for name in ("fastest_ns", "arrival_skew_ns", "exit_span_ns"):
        frame[name] = frame[name] / calls
    return frame[list(_OF_SAMPLES)]


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
        "label": _distinct(run.label for run in runs),
        "started": min(run.started for run in runs),
        "machine": _distinct(run.machine for run in runs),
        "host_names": _distinct(facts.hosts) if facts.hosts_known else None,
        "variables": _distinct(variables),
    }


def _distinct(values: Iterable[str | None]) -> str | None:
    """The distinct ``values`` in one cell; None if there are none."""
    return ", ".join(dict.fromkeys(value for value in values if value is not None)) or None


def _of_log(run: int, case: int, row: Imported) -> pd.DataFrame:
    """The samples of a case from another tool's log: one call each, of the slowest process."""
    return _frame(
        (run, row.launch, row.block, case),
        group=rank_list(row.ranks),
        sample=np.arange(len(row.samples_ns)),
        calls=1,
        slowest_ns=np.array(row.samples_ns),
    )


def _of_block(run: int, case: int, block: Measurement) -> pd.DataFrame:
    """The samples of all groups of a block."""
    columns = columns_of(block)
    lengths, starts = columns.length, columns.ranks.starts[:-1]
    places = columns.last_place if len(columns.last_place) else columns.fastest_place
    return _frame(
        (run, block.launch, block.block, case),
        group=np.repeat([rank_list(ranks) for ranks in columns.ranks], lengths),
        sample=np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths),
        calls=block.calls,
        slowest_ns=columns.slowest,
        fastest_ns=columns.fastest,
        last_rank=columns.ranks.flat[np.repeat(starts, lengths) + places].astype(np.int64),
        arrival_skew_ns=columns.skew if len(columns.skew) else None,
        exit_span_ns=columns.span if len(columns.span) else None,
    )


def _frame(where: tuple[int, int, int, int], **columns: object) -> pd.DataFrame:
    """A frame of ``columns`` for the run, launch, block and case in ``where``; NaN for missing values."""
    present = {name: value for name, value in columns.items() if value is not None}
    unknown = dict.fromkeys(("fastest_ns", "last_rank", "arrival_skew_ns", "exit_span_ns"), np.nan)
    return pd.DataFrame({**dict(zip(("run", "launch", "block", "case"), where, strict=True)), **unknown, **present})


def csv(frame: pd.DataFrame) -> bytes:
    """A header and one line per row; unknown numbers are empty, and no text is a formula (``as_cell``)."""
    texts = {
        str(name): column.map(lambda value: as_cell(value) if isinstance(value, str) else value)
        for name, column in frame.select_dtypes(exclude="number").items()
    }
    return frame.assign(**texts).to_csv(index=False).encode()


def json_lines(frame: pd.DataFrame) -> bytes:
    """One object per row; unknown numbers are null."""
    return frame.to_json(orient="records", lines=True, double_precision=15, force_ascii=False).encode()


def parquet(frame: pd.DataFrame) -> bytes:
    """A Parquet file."""
    import duckdb  # noqa: PLC0415 - 0.1 s, for this format only

    with TemporaryDirectory() as folder, duckdb.connect(":memory:") as connection:
        path = Path(folder) / "frame.parquet"
        connection.register("frame", frame)
        connection.execute("COPY frame TO ? (FORMAT parquet, COMPRESSION zstd)", [str(path)])
        return path.read_bytes()
