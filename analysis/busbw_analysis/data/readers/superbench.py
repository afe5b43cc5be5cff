"""Reader of SuperBench's ``results-summary.jsonl``, which has one object for every node.

Collectives are named ``nccl-bw…/allreduce_8192_busbw:0``, or ``allreduce_0_1:8192_busbw:0`` for groups of nodes: the
first number counts groups that ran one after the other, the second concurrent groups. Times are microseconds,
bandwidths GB/s as in nccl-tests. Source: ``cuda_nccl_bw_performance.py`` of microsoft/superbenchmark.
"""

import re
from collections.abc import Iterable
from typing import Final

from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.json_text import real
from busbw_analysis.data.readers.lines import scaled

SIGN: Final = re.compile(rb'"(?:[nr]ccl-bw|mem-bw)[^"/\n]{0,80}/\w+(?::\w+){0,2}"\s*:')
_COLLECTIVE: Final = re.compile(
    r"([nr]ccl-bw[^/]*)/([a-z]+)_(?:(\d+_\d+):)?(\d{1,19})_(time|algbw|busbw)(?::(\d{1,7}))?"
)
_COPY: Final = re.compile(r"(mem-bw[^/]*)/(H2D|D2H|D2D)_Mem_BW(?::(\d{1,7}))?")
_COPIES: Final = {"H2D": "host_to_device", "D2H": "device_to_host", "D2D": None}


def read(draft: Draft, lines: Iterable[str]) -> None:
    """One table for every node."""
    for number, record in draft.objects(lines):
        draft.begin(number)
        draft.place(host=record.get("node"))
        rows: dict[tuple[str, ...], dict[str, float]] = {}
        for name, value in record.items():
            amount = real(value)
            if amount is None:
                continue
            if (values := _COLLECTIVE.fullmatch(name)) is not None:
                rows.setdefault((values[1], values[2], values[4], values[6] or "", values[3] or ""), {})[values[5]] = (
                    amount
                )
            elif (values := _COPY.fullmatch(name)) is not None:
                others = {"benchmark": values[1], "rank": values[3] or ""}
                draft.add(
                    number, op=_COPIES[values[2]], tool_op=values[2], rate=amount * 1e9, messages=1, others=others
                )
        for (benchmark, op, size, rank, group), cells in rows.items():
            draft.collective(
                number,
                op,
                {"size": size},
                time_seconds=scaled(cells.get("time"), 1e-6),
                algbw=scaled(cells.get("algbw"), 1e9),
                busbw=scaled(cells.get("busbw"), 1e9),
                others={"benchmark": benchmark, "rank": rank} | ({"group": group} if group else {}),
            )
