"""Reader of the collectives of JAX on TPUs: the table that AI-Hypercomputer's accelerator-microbenchmarks writes.

Source: ``unified_ici_collectives_metrics`` in ``Ironwood/src/benchmark_collectives.py`` of
AI-Hypercomputer/accelerator-microbenchmarks at v1.1-legacy. People post it as Markdown (issues 71 and 73 there). The
input is that of one device: a block of all_gather, else S. Times are those of the profiler's trace, of one call each.
``achieved_bw`` is neither algbw nor busbw: it counts both cores of a chip, and leaves out what they exchange.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.lines import dtype_named, number, rest, scaled, whole

SIGN: Final = re.compile(rb"\bop_type\b[^\n]{0,400}\binput_num_elements\b[^\n]{0,400}\bstep_time_ms_p50\b")
_OPS: Final = {"AR": "all_reduce", "AG": "all_gather", "RS": "reduce_scatter", "A2A": "all_to_all"}
_TIME: Final = "step_time_ms_p50"
_OF_GROUPS: Final = re.compile(r"\{[\d, ]+\}")
_COUNTED_GROUPS: Final = re.compile(r"\[(\d+), ?\d+\]<=\[")
"""XLA's short form: ``[2,4]<=[8]`` is 2 groups of 4."""
_USED: Final = frozenset({_TIME, "iteration", "rank", "op_dimension", "input_num_elements"})


def read(draft: Draft, lines: Iterable[str]) -> None:
    """The tables of the log: Markdown with or without outer lines, or separated by tabs."""
    for line in draft.scan(lines):
        by = "|" if "|" in line.text else "\t"
        cells = [cell.strip() for cell in line.text.strip("| ").split(by)]
        if {"op_type", _TIME} <= set(cells):
            draft.begin(line.number)
            draft.names = cells
        elif draft.names and not _OPS.keys().isdisjoint(cells):
            if len(cells) == len(draft.names):
                _add(draft, line.number, dict(zip(draft.names, cells, strict=True)))
            else:
                draft.note("truncated-row", line.number, "a row that does not fit its header is ignored")


def _add(draft: Draft, line: int, row: Mapping[str, str]) -> None:
    op = _OPS.get(row["op_type"])
    elements, each = whole(row.get("input_num_elements")), whole(row.get("dtype_bytes"))
    listed = row.get("hlo_replica_groups", "")
    counted = _COUNTED_GROUPS.search(listed)
    groups = int(counted[1]) if counted is not None else len(_OF_GROUPS.findall(listed))
    draft.add(
        line,
        op=op,
        tool_op=row["op_type"],
        dtype=dtype_named(row.get("hlo_input_shape", "").strip('"').partition("[")[0]),
        redop="sum" if op in {"all_reduce", "reduce_scatter"} else None,
        ranks=whole(row.get("rank")),
        count=elements,
        tool_size_bytes=None if elements is None or each is None else elements * each,
        tool_size_is="block" if op == "all_gather" else "S",
        time_seconds=scaled(number(row[_TIME]), 1e-3),
        statistic="median",
        iterations=whole(row.get("step_time_ms_num_runs")),
        settings=f"mesh {row.get('mesh_shape')} over {row.get('sharding_strategy')}"
        + (f", groups {groups}" if groups else ""),
        others=rest({name: number(cell) for name, cell in row.items()}, _USED),
    )
