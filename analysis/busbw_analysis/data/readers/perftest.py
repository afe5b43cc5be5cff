"""What the perftest programs print: ib_write_bw, ib_read_lat and the like.

Source: ``src/perftest_parameters.h`` (``RESULT_FMT…``) of linux-rdma/perftest. ``MB/sec`` of older versions
is 2^20 B/s, as ``MiB/sec`` of newer ones. Reads and atomics take a whole round trip, writes and sends half of one.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.lines import number, picked, rest, scaled, whole
from busbw_analysis.data.readers.log import ForeignLog

SIGN: Final = re.compile(rb"#bytes +#iterations|(?:RDMA_\w+|Send)[^\n]{0,40} (?:BW|Latency) Test")
_TITLE: Final = re.compile(
    r"\s*((?:RDMA_Write|RDMA_Read|Send|Atomic|Raw Ethernet|Write)[\w ,_-]*?(?:BW|Latency) Test)\s*$"
)
_HEADING: Final = re.compile(r"#\w+|tps average|(?:[\w.%]+ )?[\w.]+\[[^\]]+\]")
_SETTING: Final = re.compile(r"([A-Z][\w*.() -]*?)\s*:\s+(\S+(?: \S+)?)")
_RATES: Final = {"MB/sec": 2.0**20, "MiB/sec": 2.0**20, "Gb/sec": 1e9 / 8, "GB/sec": 1e9}
_BANDWIDTH: Final = re.compile(rf"BW (average|peak)\[({'|'.join(_RATES)})\]")
_SPREAD: Final = {
    "t_min[usec]": "min",
    "t_max[usec]": "max",
    "t_typical[usec]": "p50",
    "t_stdev[usec]": "stdev",
    "99% percentile[usec]": "p99",
    "99.9% percentile[usec]": "p99.9",
}
_UNTITLED: Final[dict[str, Any]] = {"ranks": 2, "tool_size_is": "S"}
_USED: Final = frozenset({"#bytes", "#iterations", "t_avg[usec]", *_SPREAD})


def read(source: str, lines: Iterator[str]) -> ForeignLog:
    """The tables of the log."""
    draft = Draft("perftest", source)
    test = dict(_UNTITLED)
    names: list[str] = []
    for line in draft.listen(lines):
        words = line.text.split()
        if (found := _TITLE.match(line.text)) is not None:
            draft.begin(line.number)
            test, names = _benchmark(found[1]), []
        elif "#bytes" in words and "#iterations" in line.text:
            if draft.rows:
                draft.begin(line.number)
                test = dict(_UNTITLED)
            elif names:
                draft.note("repeated-header", line.number, "two ends print into one log; their rows may repeat")
            names = _HEADING.findall(line.text)
        elif (cells := draft.cells(line, names, words)) is not None:
            _add(draft, line.number, test, {name: number(word) for name, word in cells.items()})
        elif not names or not draft.rows:
            found_settings = {name.strip(): value for name, value in _SETTING.findall(line.text)[:4]}
            if found_settings and "address" not in line.text and len(draft.facts.get("parameters", {})) < 50:
                draft.facts["parameters"] = draft.facts.get("parameters", {}) | found_settings
    return draft.log()


def _benchmark(title: str) -> dict[str, Any]:
    both, latency = "Bidirectional" in title, "Latency" in title
    whole_trip = "Read" in title or "Atomic" in title
    op = (None if whole_trip else "ping_pong") if latency else "pair_bidir" if both else "pair_uni"
    fields = _UNTITLED | {"tool_op": title, "op": op}
    return fields if latency else fields | {"messages": 2 if both else 1}


def _add(draft: Draft, line: int, test: dict[str, Any], row: dict[str, float | None]) -> None:
    spread, used = picked(row, _SPREAD, 1e-6), set(_USED)
    rate = None
    for heading, value in row.items():
        if (found := _BANDWIDTH.fullmatch(heading)) is not None and value is not None:
            used.add(heading)
            if found[1] == "average":
                rate = value * _RATES[found[2]]
            else:
                spread["max"] = value * _RATES[found[2]]
            if found[2] == "MB/sec":
                draft.note("binary-unit", line, "its MB/sec is 2^20 B/s")
    time = row.get("t_avg[usec]", row.get("t_typical[usec]"))
    draft.add(
        line,
        **test,
        tool_size_bytes=whole(row["#bytes"]),
        time_seconds=scaled(time, 1e-6),
        rate=rate,
        statistic="mean" if rate is not None or "t_avg[usec]" in row else "median",
        iterations=whole(row.get("#iterations")),
        spread=spread,
        others=rest(row, used),
    )
