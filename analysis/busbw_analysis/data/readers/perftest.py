"""Reader of the perftest programs (ib_write_bw, ib_read_lat …): their text output and ``--out_json``.

Source: ``src/perftest_parameters.h`` (``RESULT_FMT…``) of linux-rdma/perftest. ``MB/sec`` in older versions and
``MiB/sec`` in newer ones are 2^20 B/s. The latency of reads and atomics is a full round trip, of writes and sends half.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.json_text import document, mapping, real, text
from busbw_analysis.data.readers.lines import Line, number, rest, scaled, whole
from busbw_analysis.data.readers.progress import Phase

SIGN: Final = re.compile(rb"#?bytes +#?iterations|(?:RDMA_\w+|Send)[^\n]{0,40} (?:BW|Latency) Test")
_TITLE: Final = re.compile(
    r"\s*((?:RDMA_Write|RDMA_Read|Send|Atomic|Raw Ethernet|Write)[\w ,_-]*?(?:BW|Latency) Test)\s*$"
)
_BARE: Final = re.compile(r"(?<![#\w])(?=(?:bytes|iterations)\b)")
"""Where a heading lost its #, which Markdown takes for its own."""
_HEADING: Final = re.compile(r"#\w+|tps average|(?:[\w.%]{1,20} )?[\w.]{1,20}\[[^\]]{1,20}\]")
_DEVICE: Final = re.compile(r"(?:^|\s)Device\s*:\s*(\S+)")
_PROGRAM: Final = re.compile(r"\bib_(write|read|send|atomic)_(bw|lat)\b(.*?\s(?:-b|--bidirectional)\b)?")
_NAMED: Final = {"write": "RDMA_Write", "read": "RDMA_Read", "send": "Send", "atomic": "Atomic"}
_ON_GPU: Final = re.compile(r"creating CUDA Ctx|--use_(?:cuda|rocm)|Using (?:ROCm|HIP) Device|[aA]llocated GPU buffer")
"""What is printed or given where messages begin in a GPU, above the title."""
JSON: Final = re.compile(rb'"MsgSize"\s*:')
_RATES: Final = {"MB/sec": 2.0**20, "MiB/sec": 2.0**20, "Gb/sec": 1e9 / 8, "GB/sec": 1e9}
_BANDWIDTH: Final = re.compile(rf"BW average\[({'|'.join(_RATES)})\]")
_JSON_NAMES: Final = {
    "MsgSize": "#bytes",
    "n_iterations": "#iterations",
    "MsgRate": "MsgRate[Mpps]",
    **{name: f"{name}[usec]" for name in ("t_min", "t_max", "t_typical", "t_avg", "t_stdev")},
    "percentile_99": "99% percentile[usec]",
    "percentile_99.9": "99.9% percentile[usec]",
}
_OTHER: Final = "start the other program, and paste its output, too"
_PHASES: Final = (
    Phase("Waiting for client", "the server waits for its client", "no client, or a firewall", _OTHER),
    Phase("local address", "client and server meet", "the other program was not started, ended or waits", _OTHER),
    Phase(
        "remote address",
        "the first call runs",
        "GID index (RoCE), MTU, VLAN, a cable",
        "check these (show_gids, ibstat)",
    ),
)
"""What lines begin that stand above the table; of a server, which prints no rows in some versions."""
_ADDRESS: Final = re.compile(r"(local|remote) address: .*?(QPN \w+ PSN \w+)")
"""An end of a connection, which both ends print."""
_UNIT_FITS: Final = 0.02
_UNTITLED: Final[dict[str, Any]] = {"ranks": 2, "tool_size_is": "S"}
_USED: Final = frozenset({"#bytes", "#iterations", "t_avg[usec]"})


def read(draft: Draft, lines: Iterable[str]) -> None:
    """The tables of the log."""
    test: dict[str, Any] = {}
    untitled, place = _UNTITLED, dict[str, Any]()
    device: str | None = None
    for line in _once(draft, _reached(draft, draft.scan(lines))):
        words = line.text.split()
        untitled = _of_command(line.text) or untitled
        if (match := _TITLE.match(line.text)) is not None:
            draft.begin(line.number)
            test, place = _benchmark(match[1]), {}
        elif (match := _DEVICE.search(line.text)) is not None:
            if draft.rows:
                draft.begin(line.number)
                test = {}
            draft.facts["nic"] = match[1]
            place, device = {"device": device}, None
        elif _ON_GPU.search(line.text) is not None:
            device = "cuda"
        elif words[:1] in (["#bytes"], ["bytes"]) and "iterations" in line.text:
            if draft.rows:
                draft.begin(line.number)
                test, place = {}, {}
            elif draft.names:
                draft.note("repeated-header", line.number, "client and server print to one log; rows may repeat")
            draft.names = _HEADING.findall(_BARE.sub("#", line.text))
        elif (cells := draft.cells(line, words)) is not None:
            values = {name: number(word) for name, word in cells.items()}
            _add(draft, line.number, (test or untitled) | place, values)


def _reached(draft: Draft, lines: Iterable[Line]) -> Iterator[Line]:
    """The ``lines``; those that begin a phase tell where a log without rows ends."""
    for line in lines:
        begins = line.text.lstrip("* ")
        if begins.startswith(("local address", "remote address")):
            draft.progress.went_on()
        for phase in _PHASES:
            if begins.startswith(phase.sign):
                draft.progress.reach(line.number, phase, line.text)
        yield line


def _once(draft: Draft, lines: Iterable[Line]) -> Iterator[Line]:
    """The ``lines`` without the rows that the other end of a connection prints again."""
    ends: dict[str, list[str]] = {"local": [], "remote": []}
    known: list[list[list[str]]] = []
    is_known = False
    for line in lines:
        if (match := _ADDRESS.search(line.text)) is not None:
            ends[match[1]].append(match[2])
        elif line.text.startswith("#bytes"):
            is_known = [ends["remote"], ends["local"]] in known
            known += [[ends["local"], ends["remote"]]] if ends["local"] else []
            ends = {"local": [], "remote": []}
        if is_known and line.text[:1].isdecimal():
            draft.note("repeated-header", line.number, "the rows of the other end of a connection are not read again")
        else:
            yield line


def read_json(draft: Draft, lines: Iterable[str]) -> None:
    """Read the single result of ``--out_json``. The unit of its rate is deduced from size and message rate."""
    parsed = document(draft.source, lines)
    cells = mapping(parsed.get("results"))
    title = text(mapping(parsed.get("test_info")).get("test"))
    draft.facts["nic"] = text(mapping(parsed.get("test_info")).get("Device"))
    test = dict(_UNTITLED) if title is None else _benchmark(title.replace("_", " ").replace("RDMA ", "RDMA_"))
    row = {heading: real(cells.get(name)) for name, heading in _JSON_NAMES.items() if name in cells}
    size, average, peak = (real(cells.get(name)) for name in ("MsgSize", "BW_average", "BW_peak"))
    if average and size and (messages := real(cells.get("MsgRate"))):
        moved = messages * 1e6 * size
        unit = next((name for name in _RATES if abs(average * _RATES[name] / moved - 1) < _UNIT_FITS), None)
        row |= {} if unit is None else {f"BW average[{unit}]": average, f"BW peak[{unit}]": peak}
    _add(draft, parsed.lines_of("MsgSize", 1)[0], test, row)


def _of_command(text: str) -> dict[str, Any] | None:
    """The fields of the program that a command line starts, for rows whose title was left out."""
    if (match := _PROGRAM.search(text)) is None:
        return None
    kind = "BW" if match[2] == "bw" else "Latency"
    return _benchmark(f"{_NAMED[match[1]]} {'Bidirectional ' if match[3] else ''}{kind} Test")


def _benchmark(title: str) -> dict[str, Any]:
    both, latency = "Bidirectional" in title, "Latency" in title
    latency_op = None if "Atomic" in title else "pair_uni" if "Read" in title else "ping_pong"
    op = latency_op if latency else "pair_bidir" if both else "pair_uni"
    fields = _UNTITLED | {"tool_op": title, "op": op}
    return fields if latency else fields | {"messages": 2 if both else 1}


def _add(draft: Draft, line: int, test: dict[str, Any], row: dict[str, float | None]) -> None:
    used, rate = set(_USED), None
    for heading, value in row.items():
        if (match := _BANDWIDTH.fullmatch(heading)) is not None and value is not None:
            used.add(heading)
            rate = value * _RATES[match[1]]
            if match[1] == "MB/sec":
                draft.note("binary-unit", line, "the tool's MB/sec is 2^20 B/s")
    time = row.get("t_avg[usec]", row.get("t_typical[usec]"))
    draft.add(
        line,
        **test,
        tool_size_bytes=whole(row.get("#bytes")),
        time_seconds=scaled(time, 1e-6),
        rate=rate,
        statistic="mean" if rate is not None or "t_avg[usec]" in row else "median",
        iterations=whole(row.get("#iterations")),
        others=rest(row, used),
    )
