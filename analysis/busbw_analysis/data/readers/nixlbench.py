"""Reader of nixlbench.

Source: ``printStatsHeader`` and ``printStats`` in ``benchmark/nixlbench/src/utils/utils.cpp`` of ai-dynamo/nixl.
Size and latency are those of one block of a batch.
"""

import re
from collections.abc import Iterable
from typing import Final

from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.lines import number, numbered, rest, scaled, whole

SIGN: Final = re.compile(rb"Block Size \(B\) +Batch Size")
_SETTING: Final = re.compile(r"\s*([A-Z][\w /]*?) \(--(\w+)=.*?\)\s*:\s*(\S.*?)\s*$")
_RATES: Final = {"B/W (GB/Sec)": 1e9, "B/W (GiB/Sec)": 2.0**30, "B/W (MiB/Sec)": 2.0**20}
_TIME: Final = "Avg Lat. (us)"
_SAME: Final = 1.02
_NETWORKS: Final = frozenset({"UCX", "UCX_MO", "LIBFABRIC", "GPUNETIO", "Mooncake", "UCCL"})
"""Backends that move data between processes; the others write files."""


def read(draft: Draft, lines: Iterable[str]) -> None:
    """The tables of the log."""
    settings: dict[str, str] = {}
    for line in draft.scan(lines):
        if "Block Size (B)" in line.text:
            draft.begin(line.number)
            heading = line.text[line.text.index("Block Size (B)") :]
            draft.names = numbered(re.split(r"\s{2,}", heading.strip()))
        elif (match := _SETTING.match(line.text)) is not None:
            settings = settings | {match[2]: match[3]}
        elif (cells := draft.cells(line, line.text.split())) is not None:
            row = {name: number(word) for name, word in cells.items()}
            rates = [rate for name, unit in _RATES.items() if (rate := scaled(row.get(name), unit))]
            if rates and max(rates) > _SAME * min(rates):
                draft.note("truncated-row", line.number, "a row whose rates disagree is ignored")
                continue
            pair = settings.get("backend") in _NETWORKS
            fields = {"op": "pair_uni", "ranks": 2, "tool_size_is": "S", "messages": 1} if pair else {}
            draft.add(
                line.number,
                **fields,
                tool_op=settings.get("op_type", "transfer"),
                tool_size_bytes=whole(cells.get("Block Size (B)")),
                time_seconds=scaled(row.get(_TIME), 1e-6),
                rate=rates[0] if rates else None,
                statistic="mean",
                iterations=whole(settings.get("num_iter")),
                others=rest(row, {"Block Size (B)", _TIME, *_RATES}),
            )
