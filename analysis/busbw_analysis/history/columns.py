"""The columns of the index and of the views ``runs`` and ``launches``: name, type, meaning, and source of the value.

Only what stays stable is a column. Everything else that a run recorded of its machine is in ``facts``, by key.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec

from busbw.escape import plain_text
from busbw.runs.facts import fact_of
from busbw.runs.records import JSON, Case
from busbw.runs.run import Run
from busbw_analysis.data.likeness import is_unknown
from busbw_analysis.history.facts import facts_of


@dataclass(frozen=True, slots=True)
class Column:
    """A column. ``type`` is that of DuckDB, ``source`` a SQL expression over a kept summary, or the function that reads
    the value from a run.
    """

    name: str
    type: str
    meaning: str
    source: str | Callable[[Run], JSON]


def _over_hosts(*names: str) -> Callable[[Run], str | None]:
    """The distinct values of facts over the hosts of a run as text; None if no host recorded one."""

    def read(run: Run) -> str | None:
        values = {str(value) for host in run.environments.values() for name in names if (value := fact_of(host, name))}
        return ", ".join(sorted(values)) or None

    return read


def _gpus(run: Run) -> str | None:
    names = {gpu.name for host in run.environments.values() for gpu in host.pci.gpus if gpu.name}
    return ", ".join(sorted(names)) or None


def _tool(run: Run) -> str:
    return "busbw" if run.imported is None else run.imported.tool


_CPU: Final = _over_hosts("cpu.model")


def machine_kind(run: Run) -> str:
    """The machine, its processors and its GPUs: what a case must have in common to be of the same series."""
    return " · ".join(filter(None, (run.machine, _CPU(run), _gpus(run))))


def started(run: Run) -> str | None:
    """When the run began, as UTC without its zone; None if what is stored is no time."""
    try:
        time = datetime.fromisoformat(run.started)
        utc = time if time.tzinfo is None else time.astimezone(UTC)
        return utc.replace(tzinfo=None).isoformat(sep=" ")
    except (ValueError, OverflowError):
        return None


_TEXT: Final = "VARCHAR"
OF_RUNS: Final = (
    Column("run", _TEXT, "id of the run", lambda run: run.id),
    Column("started", "TIMESTAMP", "UTC", started),
    Column("label", _TEXT, "given name", lambda run: run.plan.label),
    Column("plan", _TEXT, "its plan", lambda run: run.plan.name),
    Column("machine", _TEXT, "cluster or host", lambda run: run.machine),
    Column("machine_kind", _TEXT, "machine, processors and GPUs", machine_kind),
    Column(
        "hosts",
        "VARCHAR[]",
        "their names; NULL: unknown",
        lambda run: None if is_unknown(run, "hosts") else sorted(set(run.hosts)),
    ),
    Column("world", "INTEGER", "number of ranks", lambda run: len(run.hosts)),
    Column("launcher", _TEXT, "what started the ranks", lambda run: run.launcher),
    Column("tool", _TEXT, "`busbw`, or that of an imported log", _tool),
    Column("busbw", _TEXT, "version of busbw", lambda run: run.busbw),
    Column("cpu", _TEXT, "models", _CPU),
    Column("gpu", _TEXT, "models", _gpus),
    Column("kernel", _TEXT, "version", _over_hosts("kernel")),
    Column("python", _TEXT, "version", _over_hosts("python")),
    Column("torch", _TEXT, "version", _over_hosts("torch")),
    Column("nccl", _TEXT, "version", _over_hosts("nccl.version")),
    Column("mpi", _TEXT, "version", _over_hosts("mpi.library")),
    Column("facts", "JSON", "all facts by key, as JSON: `facts->>'$.\"nccl.version\"'`", facts_of),
)
"""Columns of the view ``runs``."""

_CASE_TYPES: Final = {
    "size_bytes": "BIGINT",
    "ranks": "INTEGER",
    "nodes": "INTEGER",
    "root": "INTEGER",
    "settings": "JSON",
    **dict.fromkeys(("pre_enqueue", "registered", "in_place"), "BOOLEAN"),
}
_CASE: Final = tuple(
    Column(
        field.name,
        _CASE_TYPES.get(field.name, _TEXT),
        '[as of a case](#a-case); quote `"group"`',
        "kept.case_ranks" if field.name == "ranks" else f'kept."{field.name}"',
    )
    for field in msgspec.structs.fields(Case)
)
_SERIES: Final = ", ".join(f"CAST({column.source} AS VARCHAR)" for column in _CASE)


def _known(expression: str) -> str:
    """A number that may be NaN, as NULL where it is unknown."""
    return f"CASE WHEN NOT isnan({expression}) THEN {expression} END"


_RATE: Final = "CASE WHEN incoming.rated[kept.case_index + 1] THEN size_bytes / median_ns * 1e9 END"
_TIMES: Final = {
    "median_ns": "median time of a call, slowest rank",
    **dict.fromkeys(("mean_ns", "p5_ns", "p95_ns", "p99_ns"), "mean and percentiles"),
    "skew_ns": "median arrival skew",
}
OF_LAUNCHES: Final = (
    Column(
        "series",
        _TEXT,
        "equal where all settings, `machine_kind` and `tool` are",
        f"substr(md5(to_json([incoming.machine_kind, incoming.tool, {_SERIES}])), 1, 12)",
    ),
    *_CASE,
    Column("launch", "INTEGER", "its number", "kept.launch"),
    Column("group_ranks", "INTEGER[]", "the group", "kept.ranks"),
    *(Column(name, "DOUBLE", meaning, _known(f"kept.{name}")) for name, meaning in _TIMES.items()),
    Column("algbw_bytes_per_s", "DOUBLE", "size over `median_ns`", _RATE),
    Column("busbw_bytes_per_s", "DOUBLE", "bus bandwidth", _known(f"({_RATE}) * kept.bus_factor")),
    Column("samples", "BIGINT", "number of samples", "kept.samples"),
    Column(
        "state", _TEXT, "of the data: `verified`, `wrong` or `not checked`", "coalesce(states.state, 'not checked')"
    ),
    Column("statistic", _TEXT, "of the number in an imported log", "kept.statistic"),
)
"""Columns of the view ``launches``, besides those of ``IN_BOTH``."""

OF_KEPT: Final = (
    *("kind", "case_index", "launch", "check_state", "ranks", "bus_factor", "samples", "statistic", *_TIMES),
    *("case_ranks" if column.name == "ranks" else column.name for column in _CASE),
)
"""Columns of a kept summary that ``OF_LAUNCHES`` reads."""

IN_BOTH: Final = ("run", "started", "label", "machine", "machine_kind", "tool")
"""Columns of ``runs`` that ``launches`` has, too."""

OF_ENTRIES: Final = (
    Column("kind", _TEXT, "`run` or `launch`", ""),
    Column("entry", "BIGINT", "number of one version of a run in one gathering", ""),
    Column("folder", _TEXT, "folder of the run, below the results", ""),
    Column("version", "INTEGER", "of the kept summary", ""),
    Column("document_size", "BIGINT", "bytes of `run.json`", ""),
    Column("document_time_ns", "BIGINT", "when it was changed", ""),
    Column("size", "BIGINT", "bytes of the samples", ""),
    Column("time_ns", "BIGINT", "when they were changed", ""),
    Column("checksum", _TEXT, "SHA-256 of `run.json`", ""),
    Column("rows", "BIGINT", "rows of `samples.jsonl`", ""),
    Column("line", "JSON", "the run in a list of runs", ""),
)
"""Columns of an index file that no view has: what a row was made from."""

STORED: Final = (*OF_ENTRIES, *OF_RUNS, *OF_LAUNCHES)
"""Columns of an index file. A row of kind ``run`` has no values of ``OF_LAUNCHES``, one of kind ``launch`` none of
``OF_RUNS``."""


def quoted(column: Column) -> str:
    """The name of ``column`` in SQL, where ``group`` is a keyword."""
    return f'"{column.name}"'


def run_values(run: Run) -> dict[str, JSON]:
    """The values of ``OF_RUNS``; control characters in texts are escaped."""
    values = {column.name: column.source(run) for column in OF_RUNS if callable(column.source)}
    return {name: plain_text(value) if isinstance(value, str) else value for name, value in values.items()}
