"""Reader of the Intel MPI benchmarks (IMB-MPI1, IMB-NBC, IMB-RMA and IMB-P2P) and of oneCCL's, which prints alike.

Sources: ``src_c/IMB_output.c`` of intel/mpi-benchmarks, ``examples/benchmark`` of oneapi-src/oneCCL. Sizes of gathers,
scatters and exchanges are one block. The rate of Sendrecv counts two messages, the rate of Exchange four.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.lines import MPI_BLOCKS, mpi_op_named, number, rest, scaled, whole

SIGN: Final = re.compile(
    rb"Intel ?\(R\) MPI Benchmark|# Benchmarking [^\n]{1,80}\n[^\n]{1,80}processes|#repetitions +t"
)
ONECCL: Final = re.compile(rb"# Benchmarking: [^\n]{1,200}\n[^\n]{0,99}# #processes: ")
_VERSION: Final = re.compile(r"Intel ?\(R\) MPI Benchmark(?:s| Suite)\s+([^,\n]*[^,\s])")
_BENCHMARK: Final = re.compile(r"\s*#\s*Benchmarking:?\s+(Multi-)?(\S+)")
_PROCESSES: Final = re.compile(r"#\s*#processes(?: =|:) (\d{1,7})")
_GROUPS: Final = re.compile(r"#\s*\( (\d{1,7}) groups of (\d{1,7}) processes")
_TWO: Final = {"pingpong": ("ping_pong", 1), "pingping": ("pair_bidir", 1)}
_MESSAGES: Final = {
    **_TWO,
    **{f"{name}{source}source": row for name, row in _TWO.items() for source in ("any", "specific")},
    "uniband": ("pair_uni", 1),
    "biband": ("pair_bidir", 2),
    "sendrecv": ("send_recv", 2),
    "exchange": (None, 4),
    **{f"unidir{way}": ("pair_uni", 1) for way in ("put", "get")},
    **{f"bidir{way}": ("pair_bidir", 1) for way in ("put", "get")},
}
_MODE: Final = re.compile(r"#\s+MODE: (AGGREGATE|NON-AGGREGATE)")
_TIMES: Final = ("t[usec]", "t_avg[usec]", "t_pure[usec]")
_YEAR: Final = re.compile(r"20(\d\d)\b|V?\d{1,2}\.\d")
_WHOLE: Final = 0.01
_USED: Final = frozenset({*_TIMES, "#bytes", "#repetitions", "Mbytes/sec", "defects", "Group"})


def read(draft: Draft, lines: Iterable[str]) -> None:
    """The tables of all benchmarks in the log."""
    test: dict[str, Any] = {}
    for line in draft.scan(lines):
        words = line.text.split()
        if (match := _BENCHMARK.match(line.text)) is not None:
            draft.begin(line.number)
            test = _benchmark(match[2])
        elif (match := _PROCESSES.match(line.text)) is not None:
            draft.facts["ranks"] = int(match[1])
        elif (match := _GROUPS.match(line.text)) is not None:
            draft.facts |= {"groups": int(match[1]), "ranks": int(match[2])}
        elif test and (match := _MODE.match(line.text)) is not None:
            test["tool_op"] += f" {match[1].lower()}"
        elif len(words) == 1 and (known := _benchmark(words[0].strip("#:\uff1a")))["op"] is not None:
            draft.begin(line.number)
            test = known  # all that an excerpt keeps of the lines above a table
        elif test and ("#repetitions" in words or words[:2] == ["#", "All"]):  # "All done", "All processes entering …"
            draft.names = words if "#repetitions" in words else ()
        elif (cells := draft.cells(line, words)) is not None:
            _add(draft, line.number, test, {name: number(word) for name, word in cells.items()})
        elif (match := _VERSION.search(line.text)) is not None:
            draft.facts["tool_version"] = match[1]


def _benchmark(name: str) -> dict[str, Any]:
    short = re.sub(r"[^a-z]", "", name.lower())
    if short in _MESSAGES:
        op, messages = _MESSAGES[short]
        return {"tool_op": name, "op": op, "messages": messages, "tool_size_is": None if op is None else "S"}
    short = short.removesuffix("pure")
    op = mpi_op_named(short) or (mpi_op_named(short[1:]) if short.startswith("i") else None)
    block = op in MPI_BLOCKS or short.endswith("reducescatterblock")
    return {"tool_op": name, "op": op, "tool_size_is": None if op is None else "block" if block else "S"}


def _add(draft: Draft, line: int, test: dict[str, Any], row: dict[str, float | None]) -> None:
    time = next((row[name] for name in _TIMES if name in row), None)
    megabyte = _megabyte(draft.facts.get("tool_version"), row)
    rate = None if megabyte is None else scaled(row.get("Mbytes/sec"), megabyte)
    fields = dict(test)
    ranks = draft.facts.get("ranks")
    if fields["op"] in {"pair_uni", "pair_bidir"} and ranks is not None and rate is not None and time is None:
        fields |= {"messages": fields["messages"] * (ranks // 2), "ranks": 2}
    defects = row.get("defects")
    draft.add(
        line,
        **fields,
        tool_size_bytes=whole(row.get("#bytes", 0 if test["op"] == "barrier" else None)),
        time_seconds=scaled(time, 1e-6),
        rate=rate,
        statistic="mean" if "t_avg[usec]" in row else "max",
        iterations=whole(row.get("#repetitions")),
        check=None if defects is None else "wrong" if defects else "verified",
        others=rest(row, _USED),
    )


def _megabyte(version: str | None, row: Mapping[str, float | None]) -> float | None:
    """Bytes per Mbyte: 2^20 up to IMB 2018, 10^6 since. Without a version, the one by which the rate counts whole
    messages; None without a size, or with times in another unit.
    """
    if version is None or _YEAR.match(version) is None:
        if "#bytes" not in row or any(name.startswith("t") and "[usec]" not in name for name in row):
            return None
        size, time, rate = (row.get(name) or 0.0 for name in ("#bytes", "t[usec]", "Mbytes/sec"))
        messages = rate * time * 2.0**20 / 1e6 / size if size else 0.0
        is_whole = messages > 1 - _WHOLE and abs(messages - round(messages)) < _WHOLE * messages
        return 2.0**20 if is_whole else 1e6
    year = _YEAR.match(version)
    return 1e6 if year is not None and int(year[1] or 0) >= 19 else 2.0**20
