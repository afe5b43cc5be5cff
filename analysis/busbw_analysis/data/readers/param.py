"""Reader of PARAM's communication benchmarks.

Source: ``printPreamble`` and ``reportBenchTimeColl`` in ``train/comms/pt/comms.py`` of facebookresearch/param.
Percentiles and extremes are over the means of the ranks; the size is S.
"""

import re
from collections.abc import Iterable
from typing import Final

from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.lines import number, numbered, rest, scaled

SIGN: Final = re.compile(rb"COMMS-RES\b")
_HEAD: Final = re.compile(r"\s*COMMS-RES(?:-QUANT)?\s+(.*\bsize \(B\).*)")
_ROW: Final = re.compile(r"\s*COMMS-RES-(QUANT-)?([a-z0-9_]+)-([a-z0-9]+)(\S*)\s+(.*)")
_WORLD: Final = re.compile(r"'world_size': (\d{1,7})")
_HEADING: Final = re.compile(r"[\w-]+ \(B\)|P95 Latency\(us\): Quant|\S+")
_USED: Final = frozenset({"AlgBW(GB/s)", "BusBW(GB/s)", "nElementsPerRank", "total-size (B)", "size (B)"})


def read(draft: Draft, lines: Iterable[str]) -> None:
    """The tables of the log."""
    ranks = None
    for line in draft.scan(lines):
        if (match := _WORLD.search(line.text)) is not None:
            ranks = int(match[1])
        elif (match := _HEAD.match(line.text)) is not None:
            draft.begin(line.number)
            draft.facts["ranks"] = ranks
            draft.names = numbered(_HEADING.findall(match[1]))
        elif draft.names and (match := _ROW.match(line.text)) is not None:
            cells = draft.cells(line, match[5].split())
            if cells is None:
                continue
            row = {name: number(word) for name, word in cells.items()}
            median = next((name for name in draft.names if name.endswith(":p50")), "Overall")
            size = next((value for name, value in row.items() if name.endswith("size (B)")), None)
            draft.collective(
                line.number,
                match[2],
                {"size": size, "dtype": match[3], "count": row.get("nElementsPerRank")},
                time_seconds=scaled(row.get(median), 1e-6),
                algbw=scaled(row.get("AlgBW(GB/s)"), 1e9),
                busbw=scaled(row.get("BusBW(GB/s)"), 1e9),
                statistic="median" if match[1] is None else "p95",
                others=rest(row, {median, *_USED}),
            )
