"""Reader of NCCL's inspector plug-in, which writes one JSON object for every collective of an application.

Source: ``plugins/profiler/inspector/README.md`` of NVIDIA/nccl. Up to format 4.0 every object contains its
communicator. Since 4.3, an object without one belongs to the last communicator before it. Sizes of all-gathers and
reduce-scatters are those of one rank.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.json_text import mapping, real, text
from busbw_analysis.data.readers.lines import NCCL_BLOCKS, op_named, scaled, whole

SIGN: Final = re.compile(rb'"coll_perf"\s*:|"inspector_output_format_version"')
_HEADER: Final = ("id", "rank", "n_ranks", "nnodes")
_KINDS: Final = (("coll_perf", "coll"), ("p2p_perf", "p2p"))


def read(draft: Draft, lines: Iterable[str]) -> None:
    """One row for every collective; one table for every dump of a communicator."""
    header: dict[str, Any] = {}
    for number, record in draft.objects(lines):
        now = mapping(record.get("header")) or {name: record[name] for name in _HEADER if name in record}
        if now and now != header:
            header = now
            draft.begin(number)
            metadata = mapping(record.get("metadata")) or record
            draft.facts |= {
                "ranks": whole(header.get("n_ranks")),
                "tool_version": text(metadata.get("inspector_output_format_version")),
            }
            draft.place(rank=header.get("rank"), pid=metadata.get("pid"), host=metadata.get("hostname"))
        dropped = whole(mapping(record.get("dump_stats")).get("coll_dropped_since_last_dump"))
        if dropped:
            draft.note("dropped", number, f"{dropped} collectives were overwritten before the plug-in wrote them")
        for key, prefix in _KINDS:
            if mapping(record.get(key)):
                _add(draft, number, mapping(record.get(key)), prefix)


def _add(draft: Draft, line: int, row: dict[str, Any], prefix: str) -> None:
    names = ("exec_time_us", "algobw_gbs", "busbw_gbs")
    time, algbw, busbw = (real(row.get(f"{prefix}_{name}")) for name in names)
    own = {prefix, f"{prefix}_msg_size_bytes", *(f"{prefix}_{name}" for name in names)}
    others = ((name, value) for name, value in row.items() if name not in own)
    tool_op = text(row.get(prefix))
    draft.collective(
        line,
        tool_op,
        {"size": row.get(f"{prefix}_msg_size_bytes")},
        tool_size_is="block" if op_named(tool_op or "") in NCCL_BLOCKS else "S",
        time_seconds=scaled(time, 1e-6),
        algbw=scaled(algbw, 1e9),
        busbw=scaled(busbw, 1e9),
        statistic="sample",
        others={name: value for name, value in others if isinstance(value, str) or real(value) is not None},
    )
