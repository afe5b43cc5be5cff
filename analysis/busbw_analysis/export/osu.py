"""Export to the tables of the OSU micro-benchmarks 7: latency of a collective, or of a message, over size.

Source: ``print_header`` and ``print_stats`` of ``c/util/osu_util_mpi.c``. Sizes of gathers, scatters and exchanges are
one block. The number of ranks is only in the command line, because OSU does not print it.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from busbw.runs.records import Case, case_in_words
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.export.nccl_tests import joined

_TESTS: Final = {
    "all_reduce": ("Allreduce", "allreduce", False),
    "all_gather": ("Allgather", "allgather", True),
    "reduce_scatter": ("Reduce_scatter", "reduce_scatter", False),
    "all_to_all": ("All-to-All Personalized Exchange", "alltoall", True),
    "broadcast": ("Broadcast", "bcast", False),
    "reduce": ("Reduce", "reduce", False),
    "gather": ("Gather", "gather", True),
    "scatter": ("Scatter", "scatter", True),
    "barrier": ("Barrier", "barrier", False),
    "ping_pong": ("", "latency", False),
}
"""Operation → title, program, and whether the size is one block."""
_TYPES: Final = {"float32": "MPI_FLOAT", "float64": "MPI_DOUBLE", "int8": "MPI_CHAR", "int32": "MPI_INT"}


def text(judgement: Judgement) -> bytes:
    """One table for each operation, data type and set of settings. Raises AnalysisError if there is none."""
    tables: dict[tuple[Case, tuple[int, ...]], dict[int, GroupSummary]] = {}
    every = [summary for summary in judgement.cases if summary.case.op in _TESTS and summary.groups]
    for summary in every:
        if summary.case.mode != "overlap":
            table = msgspec.structs.replace(summary.case, size_bytes=0)
            for group in summary.groups:
                tables.setdefault((table, group.ranks), {})[summary.case.size_bytes] = group
    parts = [_table(case, rows) for (case, _), rows in tables.items()]
    return joined(every, parts, "the OSU benchmarks", _TESTS)


def _table(case: Case, rows: Mapping[int, GroupSummary]) -> Iterator[str]:
    title, program, of_block = _TESTS[case.op]
    statistics = " and ".join(dict.fromkeys(group.statistic or "median" for group in rows.values()))
    ranks = len(next(iter(rows.values())).ranks)
    words = " ".join(word for word in ("MPI", title, "Latency Test v7.5") if word)
    yield f"# busbw: {' · '.join(case_in_words(case))}; times: {statistics}"
    yield from (f"# OSU {words}", f"# mpirun -np {ranks} osu_{program}")
    if case.dtype in _TYPES:
        yield f"# Datatype: {_TYPES[case.dtype]}."
    yield "# Avg Latency(us)" if case.op == "barrier" else f"{'# Size':<10}{'Avg Latency(us)':>18}"
    for size, group in rows.items():
        shown = "" if case.op == "barrier" else f"{size // ranks if of_block else size:<10}"
        yield f"{shown}{group.time_ns / 1e3:>18.2f}"
    yield ""
