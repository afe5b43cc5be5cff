"""Readers of small network benchmarks between two processes: fabtests, sockperf, qperf and netperf.

fabtests: MB/sec times usec/xfer is the size, so MB are 10^6 B; the total is the size times the calls, and twice that of
a ping-pong, whose time is half a round trip. sockperf: the latency is half a round trip; a message rate times the size
is a bandwidth in MB of 2^20 B. qperf: rates in powers of 1000, messages in those of 1024 (``qperf --help options``).
netperf: a transaction is a request and a response, a round trip.
"""

import re
from collections.abc import Iterable
from typing import Final

from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.headings import factors
from busbw_analysis.data.readers.lines import SECONDS, number, scaled, whole

_PREFIXES: Final = " kmgt"


def _cut(text: str, base: float) -> tuple[float, float]:
    """The least and the largest value of a number with a suffix, a power of ``base``, whose further digits are cut."""
    digits = text.rstrip("kmgt")
    value, power = number(digits) or 0.0, base ** _PREFIXES.index(text[len(digits) :] or " ")
    return value * power, (value + (power > 1)) * power


def _add(draft: Draft, line: int, tool_op: str, size: int | None, *, trips: int = 1, **fields: object) -> None:
    """Add a result between two ranks. ``trips``: 2 where each message is answered by one of the same size."""
    of_op = {"op": "ping_pong"} if trips > 1 else {"op": "pair_uni", "messages": 1}
    fixed = {"ranks": 2, "tool_size_is": "S", "statistic": "mean"}
    draft.add(line, **fixed | of_op | fields, tool_op=tool_op.strip(), tool_size_bytes=size)


# --- fabtests --------------------------------------------------------------------------------------------------------

FABTESTS: Final = re.compile(rb"total +time +MB/sec +usec/xfer +Mxfers/sec")
_FABTEST: Final = re.compile(r"\bfi_(?:[a-z]+_)*(?:pingpong|bw|lat)\b")
_FABTEST_SIZE: Final = re.compile(r"\s-S ?(\d{1,15})(?!\S)")
_TRANSFERS: Final = re.compile(
    r"(?<!\S)(\d[\d.]*[kmg]?)\s+(\d[\d.]*[km]?)\s+(?:=?\d\S*\s+)?(\d[\d.]*[kmgt]?)\s+[\d.]+s\s+([\d.]+)\s+([\d.]+)\s+[\d.]+$"
)
_ERROR: Final = 0.02


def read_fabtests(draft: Draft, lines: Iterable[str]) -> None:
    """The tables of the log. Rows whose columns do not agree are left out."""
    program, device, given = "", "cpu", 0
    for line in draft.scan(lines):
        if (match := _FABTEST.search(line.text)) is not None:
            program, device = match[0], "cuda" if "-D cuda" in line.text else "cpu"
            given = int(option[1]) if (option := _FABTEST_SIZE.search(line.text)) is not None else 0
            draft.command(line.text)
        elif FABTESTS.search(line.text.encode()) is not None:
            draft.begin(line.number)
        elif (match := _TRANSFERS.search(line.text)) is not None:
            (size, _), calls, total = _cut(match[1], 1024.0), _cut(match[2], 1000.0), _cut(match[3], 1024.0)
            rate, time = number(match[4]) or 0.0, number(match[5]) or 0.0
            error = 0.006 / max(rate, 0.01) + 0.006 / max(time, 0.01)  # of the last digits
            size = given if abs(given / (size or 1) - 1) < _ERROR else size  # 100000000 is printed as 95m
            fewest, most = total[0] / (size or 1) / (1 + _ERROR), total[1] / (size or 1) * (1 + _ERROR)
            fitting = [trips for trips in (1, 2) if fewest <= calls[1] * trips and calls[0] * trips <= most]
            named = [2 if "pingpong" in program else 1] if program and len(fitting) > 1 else fitting[-1:]
            if not named or not size or abs(rate * time / size - 1) > error or whole(size) is None:
                draft.note("not-a-number", line.number, "a row whose columns do not fit its size is ignored")
                continue
            name = program or ("ping-pong" if named == [2] else "bandwidth")
            seconds = scaled(time, 1e-6)
            more = {
                "iterations": int(calls[0]) if fewest <= calls[0] * named[0] <= most else None,
                "backend": "libfabric",
                "device": device,
            }
            _add(draft, line.number, name, int(size), trips=named[0], time_seconds=seconds, **more)


# --- sockperf --------------------------------------------------------------------------------------------------------

SOCKPERF: Final = re.compile(rb"(?m)Summary: (?:Latency|Round trip|Message Rate) is [\d.]+ (?:usec|\[msg/sec\])\s*$")
_SUMMARY: Final = re.compile(r"Summary: (Latency|Round trip|Message Rate) is ([\d.]+) (?:usec|\[msg/sec\])")
_BANDWIDTH: Final = re.compile(r"Summary: BandWidth is ([\d.]+) MBps")
_SOCKPERF: Final = re.compile(r"\bsockperf\s+(pp|ping-pong|ul|under-load|tp|throughput)\b(.*)")
_SOCKPERF_SIZE: Final = re.compile(r"(?:(?<!\S)-m ?|--msg-size[= ])(\d+)\b")
_USED_SIZE: Final = re.compile(r"using msg-size=(\d+)")
_TO: Final = re.compile(r"\bIP = \S+ +PORT = +\d+ +# (TCP|UDP)")
_MODES: Final = {"pp": "ping-pong", "ul": "under-load"}
_SOCKPERF_BYTES: Final = 14


def read_sockperf(draft: Draft, lines: Iterable[str]) -> None:
    """The summaries of the log."""
    mode, protocol, size, rate = "latency", "", None, 0.0
    used: int | None = None  # by a test of throughput, which says it
    for line in draft.scan(lines):
        text = line.text
        if (match := _SOCKPERF.search(text)) is not None:
            mode, given = _MODES.get(match[1], match[1]), _SOCKPERF_SIZE.search(match[2])
            protocol, size = "TCP" if "--tcp" in text else "UDP", None if given is None else whole(given[1])
            draft.command(text)
            draft.begin(line.number)
        elif (match := _TO.search(text)) is not None:
            protocol = match[1]
            draft.begin(line.number)
        elif (match := _USED_SIZE.search(text)) is not None:
            used = whole(match[1])
        elif (match := _SUMMARY.search(text)) is not None and match[1] == "Message Rate":
            rate = number(match[2]) or 0.0
        elif match is not None and (time := number(match[2])):
            if size is None:
                draft.note("assumed-size", line.number, "messages of 14 B, the default of sockperf, are assumed")
            seconds = time / (1e6 if match[1] == "Latency" else 2e6)
            _add(draft, line.number, f"{protocol} {mode}", size or _SOCKPERF_BYTES, trips=2, time_seconds=seconds)
        elif (match := _BANDWIDTH.search(text)) is not None and rate:
            draft.note("as-sent", line.number, "sockperf throughput counts what was sent, whether or not it arrived")
            moved = used or size or whole(round((number(match[1]) or 0.0) * 2.0**20 / rate))
            _add(draft, line.number, f"{protocol} throughput", moved, time_seconds=1 / rate)
            rate, used = 0.0, None


# --- qperf -----------------------------------------------------------------------------------------------------------

QPERF: Final = re.compile(rb"(?m)\b[a-z_]{2,20}_(?:bw|lat):\s*\n[^\w\n]*(?:(?:send_|recv_)?bw|latency) += +\d")
_QPERF: Final = re.compile(r"\bqperf\s+(\S.*_(?:bw|lat)\b.*)")
_QPERF_TEST: Final = re.compile(r"(?:^|\s)([a-z]{2,4}(?:_[a-z]+)*_(?:bw|lat|mr)):$")
_QPERF_VALUE: Final = re.compile(r"(bw|recv_bw|latency|msg_size) += +([\d.]+) ([\w/]+)(?: \((\d{1,3}(?:,\d{3})*)\))?")
_QPERF_SIZE: Final = re.compile(r"(?:(?<!\S)-m ?|--msg_size[ =]|-oo msg_size:)(\d+)(?:([KMGkmg])(ib|iB|b|B)?)?(?=\s|$)")
_GIVEN_SIZE: Final = re.compile(r"msg_size|\s-m(?![a-z])")
_QPERF_64K: Final = re.compile(r"(?:tcp|[ru]c(?:_rdma_\w+)?)_(?:bw|lat)")
"""Tests whose default is 64 KiB for bandwidths, and 1 B for latencies."""
_ON_SOCKETS: Final = ("tcp_", "udp_", "sdp_", "rds_", "sctp_")


def read_qperf(draft: Draft, lines: Iterable[str]) -> None:
    """The results of the log. A size below a result is that of its messages."""
    test, given = "", None
    result: tuple[int, str, float | None, str] | None = None
    for line in draft.scan(lines):
        match = _QPERF_VALUE.match(line.text) if test else None
        if match is not None and match[1] == "msg_size" and result is not None:
            power = factors("size", {"bytes": "B", "byte": "B"}.get(match[3], match[3]))
            value = number((match[4] or match[2]).replace(",", "")) or 0.0
            _add_qperf(draft, *result, size=whole(round(value * (1 if match[4] else power[-1]))) if power else None)
            result = None
        elif match is not None and match[1] != "msg_size":
            _add_qperf(draft, *result or (), size=given)
            result = line.number, test, number(match[2]), match[3]
        elif (named := _QPERF_TEST.search(line.text)) is not None:
            _add_qperf(draft, *result or (), size=given)
            result, test = None, named[1]
        elif (command := _QPERF.search(line.text)) is not None:
            _add_qperf(draft, *result or (), size=given)
            result, size = None, _QPERF_SIZE.search(command[1])
            given = None if size is None else _sized(*size.groups())
            draft.command(line.text)
            draft.begin(line.number)
    _add_qperf(draft, *result or (), size=given)


def _sized(digits: str, prefix: str | None, rest: str | None) -> int | None:
    """The size of messages that an option gives: k and kb are powers of 1000, K and kib of 1024."""
    binary = (rest or "").startswith("i") or (rest is None and (prefix or "").isupper())
    power = _PREFIXES.index((prefix or " ").lower())
    return whole((whole(digits) or 0) * (1024 if binary else 1000) ** power)


def _add_qperf(
    draft: Draft, line: int = 0, test: str = "", value: float | None = None, unit: str = "", *, size: int | None
) -> None:
    """Add a result. A read is a round trip; of tests in both directions nothing says which of them are counted."""
    latency = test.endswith("_lat")
    factor = ({"sec": 1.0} | SECONDS).get(unit) if latency else next(iter(factors("rate", unit)), None)
    if not value or factor is None:
        return
    is_given = _GIVEN_SIZE.search(draft.facts.get("command") or "") is not None
    if size is None and not is_given and _QPERF_64K.fullmatch(test) is not None:
        size = 1 if latency else 64 << 10
        draft.note("assumed-size", line, "messages of 64 KiB (latencies: 1 B), the defaults of qperf, are assumed")
    result = {"time_seconds" if latency else "rate": scaled(value, factor)}
    of_op = {"op": None} if "_bi_" in test else {}
    device = {} if test.startswith(_ON_SOCKETS) else {"backend": "verbs", "device": "cpu"}
    _add(draft, line, test, size, trips=2 if latency and "read" not in test else 1, **result, **of_op, **device)


# --- netperf ---------------------------------------------------------------------------------------------------------

_UNIT: Final = r"[Bb]ytes +(?:[Bb]ytes +){1,3}secs\.? +(?:# +# +)?(?:10\^([369])bits/s|([KMG]?)[Bb]ytes/s|per sec).*"
NETPERF: Final = re.compile(_UNIT.encode())
_NETPERF_UNIT: Final = re.compile(_UNIT)
_TITLE: Final = re.compile(r"\b(TCP|UDP|SCTP) (STREAM|MAERTS|SENDFILE|REQUEST/RESPONSE|[Cc]onnect\S+) TEST from ")
_NAME: Final = re.compile(r"\b(?:TCP|UDP|SCTP)_(?:STREAM|MAERTS|SENDFILE|RR|CRR)\b")
_KINDS: Final = {"REQUEST/RESPONSE": "RR", "CONNECT/REQUEST/RESPONSE": "CRR"}
_BURST: Final = re.compile(r"first burst [1-9]|\s--\s(?:.*\s)?-b ?[1-9]")
_NUMBERS: Final = re.compile(r"\d[\d.]*(?:\s+-?\d[\d.]*)+")
_FEWEST_OF_STREAM: Final = 4
_COLUMN: Final = re.compile(r"per sec|% [SU]{1,2}\b|\S+")


def read_netperf(draft: Draft, lines: Iterable[str]) -> None:
    """The tables of the log, without the interim results above them."""
    name, unit, above, burst = "", None, [0.0], False
    for line in draft.scan(lines):
        if (match := _NETPERF_UNIT.search(line.text)) is not None:
            unit, above = match, [0.0]
            draft.begin(line.number)
        elif (match := _TITLE.search(line.text)) is not None:
            name, unit = f"{match[1]}_{_KINDS.get(match[2].upper(), match[2])}", None
            burst = (burst and "first burst" not in line.text) or _BURST.search(line.text) is not None
        elif (named := _NAME.findall(line.text)) or "netperf -" in line.text:
            name = named[-1] if named else ""
            if "netperf -" in line.text:
                burst = _BURST.search(line.text) is not None
                draft.command(line.text)
        elif unit is not None and _NUMBERS.fullmatch(line.text) is not None:
            cells = [number(word) or 0.0 for word in line.text.split()]
            _add_netperf(draft, line.number, name, unit, cells, above, burst=burst)
            above = cells


def _add_netperf(
    draft: Draft,
    line: int,
    name: str,
    unit: re.Match[str],
    cells: list[float],
    above: list[float],
    *,
    burst: bool,
) -> None:
    """Add a row with as many cells as there are columns; of datagrams, what arrived by the second line, which has two
    less, of those whose size is in the first. Requests and responses of one size are a ping-pong, unless each has a
    connection of its own, or several are on their way at a time.
    """
    power = 10.0 ** int(unit[1]) / 8 if unit[1] else 1024.0 ** _PREFIXES.index((unit[2] or " ").lower())
    columns = len(_COLUMN.findall(unit[0]))
    is_row, is_transaction = len(cells) == columns, "per sec" in unit[0]
    name = name if name.endswith("RR") == is_transaction else ""
    if is_row and is_transaction and name and cells[2] == cells[3] and cells[5] and not burst:
        op = {} if name.endswith("_RR") else {"op": None}
        _add(draft, line, name, whole(cells[2]), trips=2, time_seconds=0.5 / cells[5], **op)
    elif is_row and is_transaction:
        why = "requests and responses differ in size" if name else "paste the line above that names the test, too"
        why = "several are under way at a time, so that a rate says nothing of latency" if burst else why
        draft.note("waived", line, f"a row of transactions is ignored: {why}")
    elif "#" in unit[0] and len(cells) == columns - 2 and len(above) == columns:
        _add(draft, line, name or "UDP_STREAM", whole(above[1]), rate=cells[3] * power or None)
    elif is_row and "#" not in unit[0] and columns > _FEWEST_OF_STREAM:
        _add(draft, line, name or "TCP_STREAM", whole(cells[2]), rate=cells[4] * power or None)
    elif not is_transaction and "#" not in unit[0]:
        draft.note("truncated-row", line, f"a row without {columns} numbers is ignored: paste all of its words")
