"""Reader of SuperBench's ``results-summary.jsonl``, which has one object for every node.

Collectives are named ``nccl-bw…/allreduce_8192_busbw:0``, or ``allreduce_0_1:8192_busbw:0`` for groups of nodes: the
first number counts groups that ran one after the other, the second concurrent groups. Times are microseconds,
bandwidths GB/s as in nccl-tests. Pairs of hosts are named ``ib-traffic/ib_write_bw_8388608_cpu-to-cpu_0_1:n2_n5:0``:
the program of perftest, its size and memory, the number of the round and of the pair in it, server and client, and
the rank on the client; −1 is a failure. Source: ``cuda_nccl_bw_performance.py`` and ``ib_validation_performance.py``
of microsoft/superbenchmark.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.json_text import real
from busbw_analysis.data.readers.lines import scaled

SIGN: Final = re.compile(rb'"(?:[nr]ccl-bw|mem-bw|ib-traffic)[^"/\n]{0,80}/[\w-]+(?::[\w.-]+){0,3}"\s*:')
_COLLECTIVE: Final = re.compile(
    r"([nr]ccl-bw[^/]*)/([a-z]+)_(?:(\d+_\d+):)?(\d{1,19})_(time|algbw|busbw)(?::(\d{1,7}))?"
)
_COPY: Final = re.compile(r"(mem-bw[^/]*)/(H2D|D2H|D2D)_Mem_BW(?::(\d{1,7}))?")
_PAIR: Final = re.compile(
    r"(ib-traffic[^/]*)/(ib_(?:write|read|send)_(?:bw|lat))_(\d{1,19})_(\w+-to-\w+)_\d+_\d+:([^_]+)_([^:]+)(?::(\d{1,7}))*"
)
_COPIES: Final = {"H2D": "host_to_device", "D2H": "device_to_host", "D2D": None}


def read(draft: Draft, lines: Iterable[str]) -> None:
    """One table for every node."""
    for number, record in draft.objects(lines):
        draft.begin(number)
        _pairs(draft, number, record)
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


def _pairs(draft: Draft, number: int, record: Mapping[str, object]) -> None:
    """Pairs of hosts; a client writes to its server and reads from it."""
    ranks: dict[str, int] = {}
    for name, value in record.items():
        amount, values = real(value), _PAIR.fullmatch(name)
        if values is None or amount is None or values[3] == "0":
            continue
        server, client = (ranks.setdefault(host, len(ranks)) for host in values.group(5, 6))
        if amount <= 0:
            draft.note("failed", number, f"{name} has no result")
            continue
        reads, is_rate = "read" in values[2], values[2].endswith("_bw")
        ends = (server, client) if reads else (client, server)
        draft.add(
            number,
            op="pair_uni" if is_rate or reads else "ping_pong",
            tool_op=f"{values[2]} {values[4]}",
            size_bytes=int(values[3]),
            **({"rate": amount * 1e9, "messages": 1} if is_rate else {"time_seconds": amount * 1e-6}),
            ranks=2,
            source=f"rank {ends[0]}",
            target=f"rank {ends[1]}",
            others={"benchmark": values[1]},
        )
    for host, rank in ranks.items():
        draft.place(rank=rank, host=host)
