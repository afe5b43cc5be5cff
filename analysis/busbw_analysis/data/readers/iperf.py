"""Reader of iperf3 and iperf 2: their text and iperf3's ``--json``.

Transfers are in powers of 1024, rates in bits of powers of 1000 (with ``-f M`` and such in bytes of 1024), as the two
columns of any output show. iperf3(1): TCP writes 128 KB at a time by default, UDP what fits the MTU. An interval is a
sample of the time of such a message: its size over the rate of all streams.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, Final, NamedTuple, NoReturn

from busbw.errors import LogError
from busbw.units import format_size
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.json_text import decoded, document, items, mapping, real, text
from busbw_analysis.data.readers.lines import Line, number, whole

SIGN: Final = re.compile(
    rb"\[ *\*?(?:SUM|\d{1,9})\](?:\[[RT]X-[CS]\])? +\d+\.\d+- *\d+\.\d+ +sec +[\d.]+ +[KMGT]?Bytes"
    rb" +[\d.]+ +[KMGT]?(?:bits|Bytes)/sec"
)
ERROR: Final = re.compile(rb"iperf3: error - ")
JSON: Final = re.compile(rb'"test_start"\s*:\s*\{|"intervals"\s*:\s*\[\s*\{\s*"streams"')
_DOCUMENT: Final = re.compile(r"^ {0,9}(\{)", re.MULTILINE)
_ROW: Final = re.compile(
    r"(?:\[ *(SUM|\*?\d{1,9})\](?:\[([RT]X)-[CS]\])? +|^)(\d{1,9}\.\d{1,9})- *(\d{1,9}\.\d{1,9}) +sec"
    r" +([\d.]{1,19}) +([KMGT]?)Bytes +([\d.]{1,19}) +([KMGT]?)(bits|Bytes)/sec(?:\s+(\d{1,19})(?=\s|$))?"
    r"(?:.{0,60}?(\d{1,19}) ?/ {0,9}(\d{1,19}) +\()?(?:.{0,60}?\b(sender|receiver)\b)?(?P<rest>.*)"
)
_FAILED: Final = re.compile(r"\biperf3: (?:(error)|interrupt) - .+")
_OMITTED: Final = re.compile(r"\((?:o|$)")
"""Behind an interval before the test counts, perhaps broken off by a terminal."""
_BEGINS: Final = re.compile(r"(?:Connecting to host|Client connecting to|Accepted connection from|Server listening)\b")
_ENDS: Final = re.compile(
    r"(?:\[ *\*?(?P<stream>\d{1,9})\] +)?\blocal ([\w.:%-]+) port (\d+) connected (?:to|with) ([\w.:%-]+) port (\d+)"
)
_COMMAND: Final = re.compile(r"\biperf3?(?:\.exe)?\s+(?=.*-\w)(.*)")
_LENGTH: Final = re.compile(r"(?<!\S)(?:-l ?|--len(?:gth)?[ =])(\d{1,9}(?:\.\d{1,9})?)([KkMmGg]?)[A-Za-z]?(?!\S)")
_STREAMS: Final = re.compile(r"(?<!\S)(?:-P ?|--parallel[ =])(\d{1,4})(?!\S)")
_PACED: Final = re.compile(r"(?<!\S)(?:-b ?|--(?:bitrate|bandwidth)[ =])(?:(0)(?![\d.])|\d)")
_SIZE: Final = re.compile(r"(?:Sending|Receiving|streams?,) (\d+) byte (?:datagrams|blocks)")
_SERVER_PORTS: Final = frozenset({"5001", "5201"})
_TCP_BYTES: Final = 128 << 10
_UDP_BYTES: Final = (1448, 1460, 1470, 8192)
"""Default messages of the versions, of which the one that fits transfers and datagrams up to ``_CLOSE`` is taken."""
_CLOSE: Final = 0.001
_NEAR: Final = 0.05
"""Share by which the only interval of iperf 2 and its summary, or both sides of a test, may differ."""
_POWER: Final = " KMGT"
_LEAST_COVERED: Final = 2
"""Lines besides itself that a summary covers."""
_WHOLE: Final = 0.9
"""Share of a test that the intervals cover if none was cut out."""


class _Row(NamedTuple):
    """A line of a test: an interval, or a summary, which has a ``side`` or covers others.

    role: TX or RX of the side that prints, if the test has both directions
    moved, error, rate: bytes, half a unit of their last digit, and B/s
    sent: segments sent again or, of UDP, all datagrams, of which ``lost`` did not arrive
    """

    line: int
    stream: str
    role: str
    start: float
    end: float
    side: str
    moved: float
    error: float
    rate: float
    sent: int | None
    lost: int | None


@dataclass(slots=True)
class _Test:
    """A test while it is read.

    ends: address and port of this side, and of the other
    streams, connected: those asked for, and connections
    ids, before: names of its streams, and of those of the tests before it
    paced: whether the sender is held to a rate; None if that is not said
    sent_datagrams: rates beside lost datagrams are those of the sender, as clients of old versions print them, where
        transfers fit all datagrams and those that arrived
    reported: the next row is what the server counts
    """

    line: int = 1
    command: str | None = None
    heading: str = ""
    ends: tuple[str, ...] = ()
    streams: int = 0
    connected: int = 0
    ids: set[str] = field(default_factory=set)
    before: frozenset[str] = frozenset()
    size: int | None = None
    at_server: bool = False
    reverse: bool = False
    udp: bool = False
    paced: bool | None = None
    sent_datagrams: bool = False
    reported: bool = False
    rows: list[_Row] = field(default_factory=list)


_Seen = set[frozenset[tuple[str, ...]]]


def read(draft: Draft, lines: Iterable[str]) -> None:
    """The tests of the log. Raises LogError if none ended because of an error of iperf, or if several are mixed."""
    test, seen = _Test(), _Seen()
    error: str | None = None
    for line in draft.scan(lines):
        match = _ROW.search(line.text) if line.text.count(" sec ") == 1 else None
        row = None if match is None or _OMITTED.search(match["rest"]) is not None else _row(line, match)
        if row is not None:
            test = _with_row(draft, test, seen, row)
        elif match is None:
            test = _with_heading(draft, test, seen, line)
            if (failed := _FAILED.search(line.text)) is not None:
                test.ends = test.ends if test.rows else ()
                if failed[1] is not None:
                    error = failed[0]
                    draft.fail(error, line.number)
    _add(draft, test, seen)
    _refuse_failed(draft, error)


def _refuse_failed(draft: Draft, error: str | None) -> None:
    """Raise LogError with the error of iperf if there is no result."""
    if error is not None and not draft.tables:
        message = f"the job of iperf failed before its first result; its last error: {error}"
        raise LogError(message, code="job-failed", log=draft.source)


def _with_row(draft: Draft, test: _Test, seen: _Seen, row: _Row) -> _Test:
    """The test that a row belongs to: the last, or the next of the same kind where the last has such a row."""
    if test.reported:
        row, test.reported = row._replace(side="receiver"), False
    if test.ids and (stream := row.stream.lstrip("*")) not in test.ids and stream in test.before:
        _refuse_mixed(draft, row.line)  # a client arrived while the test of another one went on
    same = next((other for other in test.rows if row[1:6] == other[1:6]), None)
    if same is not None and (test.ends or same is test.rows[-1]) and abs(row.rate - same.rate) > _NEAR * same.rate:
        _refuse_mixed(draft, row.line)
    if same is not None:
        _add(draft, test, seen)
        test = replace(test, line=row.line, rows=[])
    test.rows.append(row)
    return test


def _with_heading(draft: Draft, test: _Test, seen: _Seen, line: Line) -> _Test:
    """The test that a line without a row belongs to, with what the line says of it."""
    begins, command, ends = (sign.search(line.text) for sign in (_BEGINS, _COMMAND, _ENDS))
    if line.text == "(omitted)" and test.rows:
        test.rows.pop()
    if test.rows and (begins or command or ends):
        _add(draft, test, seen)
        before = test.before | test.ids
        test = _Test(line.number, heading=test.heading, at_server=test.at_server, before=before)
    _take(test, line.text)
    if begins is not None:
        test.at_server = begins[0][0] in "AS"
    if command is not None:
        _options(test, command[0].strip(), command[1])
    if ends is not None:
        stream, *found = ends.groups()
        test.ids |= {stream} if stream else set()
        shared = [mine == its for mine, its in zip(test.ends, found, strict=False)]
        if shared and not (shared[0] and shared[2] and (shared[1] or shared[3])):
            _refuse_mixed(draft, line.number)
        test.ends, test.connected = test.ends or tuple(found), test.connected + 1
        test.at_server |= found[1] in _SERVER_PORTS and found[3] not in _SERVER_PORTS
    return test


def _refuse_mixed(draft: Draft, line: int) -> NoReturn:
    why = "the output of tests that ran at once, such as of several clients or of iperf 2 with -d, is mixed"
    do = "give each client a file, and measure both directions with iperf3 --bidir"
    raise LogError(f"{draft.source}:{line}: {why}: {do}", code="interleaved-logs")


def _take(test: _Test, text: str) -> None:
    """Record what a line that is no row says of its test."""
    if "Interval" in text and "Transfer" in text:
        test.heading, test.udp = text, "Datagrams" in text or (test.udp and "Retr" not in text)
    elif (match := _SIZE.search(text)) is not None:
        test.size = whole(match[1])
    test.udp |= "UDP port" in text
    test.reported |= text.endswith("Server Report:")
    test.reverse |= text.startswith("Reverse mode") or text.endswith("(reverse)")
    test.sent_datagrams |= text.endswith(" datagrams") and "Sent " in text


def _options(test: _Test, command: str, options: str) -> None:
    length, streams = _LENGTH.search(options), _STREAMS.search(options)
    test.command, test.udp = command, "-u" in options.split()
    test.reverse = not {"-R", "--reverse"}.isdisjoint(options.split())
    paced = _PACED.search(options)
    test.paced, test.streams = paced and paced[1] is None, int(streams[1]) if streams is not None else 0
    power = _POWER.index(length[2].upper() or " ") if length is not None else 0
    test.size = int(float(length[1]) * (1 << 10 * power)) or None if length is not None else None


def _row(line: Line, match: re.Match[str]) -> _Row | None:
    """The row of a line; None if a number of it is none."""
    stream, role, *_, unit, _, prefix, kind, sent, lost, total, side, _ = match.groups()
    start, end, moved, rate = (number(match[at]) for at in (3, 4, 5, 7))
    if start is None or end is None or moved is None or rate is None:
        return None
    of_unit, power = 1 << 10 * _POWER.index(unit or " "), _POWER.index(prefix or " ")
    return _Row(
        line=line.number,
        stream=stream or line.label or "",
        role=role or "",
        start=start,
        end=end,
        side=side or "",
        moved=moved * of_unit,
        error=0.5 / 10 ** len(match[5].partition(".")[2]) * of_unit,
        rate=rate * (1000.0**power / 8 if kind == "bits" else 1024.0**power),
        sent=whole(total or sent),
        lost=whole(lost),
    )


def read_json(draft: Draft, lines: Iterable[str]) -> None:
    """The tests of ``--json``, each a document. Raises LogError if none ended because of an error of iperf."""
    first, seen = document(draft.source, lines), _Seen()
    found: list[tuple[int, dict[str, Any]]] = []
    for match in _DOCUMENT.finditer(first.text):
        line = 1 + first.text.count("\n", 0, match.start())
        try:
            value = mapping(decoded(first.text, match.start(1)))
        except (ValueError, RecursionError):
            draft.note("truncated-row", line, "a JSON document that is cut off or damaged is ignored")
            continue
        if value == first or not value.keys().isdisjoint(("intervals", "error", "event")):
            found.append((line, value))
    found = found if any(value == first for _, value in found) else [(1, first), *found]
    errors = [
        error for line, parsed in _gathered(found) if (error := _read_document(draft, line, parsed, seen)) is not None
    ]
    _refuse_failed(draft, errors[-1] if errors else None)


def _gathered(found: Iterable[tuple[int, dict[str, Any]]]) -> Iterable[tuple[int, dict[str, Any]]]:
    """The documents with their lines, in which the events of ``--json-stream`` are put together."""
    whole: list[tuple[int, dict[str, Any]]] = []
    for line, value in found:
        event, data = value.get("event"), value.get("data")
        if event == "start" or event is None:
            whole.append((line, value if event is None else {"start": data, "intervals": []}))
        elif event == "interval" and whole:
            items(whole[-1][1].get("intervals")).append(data)
        elif isinstance(event, str) and whole:  # "end" or "error"
            whole[-1][1][event] = data
    return whole


def _read_document(draft: Draft, line: int, parsed: dict[str, Any], seen: _Seen) -> str | None:
    """Add the test of a document; return the error in it."""
    start, end = mapping(parsed.get("start")), mapping(parsed.get("end"))
    settings, connected = mapping(start.get("test_start")), [*map(mapping, items(start.get("connected")))]
    if (error := text(parsed.get("error"))) is not None:
        draft.fail(error, line)
    draft.facts["tool_version"] = (text(start.get("version")) or "").removeprefix("iperf ") or None
    first = connected[0] if connected else {}
    ends = [text(first.get(f"{side}_{what}")) for side in ("local", "remote") for what in ("host", "port")]
    both = settings.get("bidir") == 1
    target = whole(settings.get("target_bitrate"))
    test = _Test(
        line,
        ends=tuple(map(str, ends)) if all(ends) else (),
        streams=whole(settings.get("num_streams")) or 0,
        size=whole(settings.get("blksize")) or None,
        at_server="accepted_connection" in start,
        reverse=settings.get("reverse") == 1,
        udp=settings.get("protocol") == "UDP",
        paced=None if target is None else target > 0,
        sent_datagrams=True,
    )
    for interval in map(mapping, items(parsed.get("intervals"))):
        for name in ("sum", "sum_bidir_reverse"):
            test.rows += _of_json(line, mapping(interval.get(name)), "", both=both)
    for name, side in (("sum_sent", "sender"), ("sum_received", "receiver"), ("sum", "both")):
        for suffix in ("", "_bidir_reverse"):
            test.rows += _of_json(line, mapping(end.get(name + suffix)), side, both=both)
    _add(draft, test, seen)
    return error


def _of_json(line: int, values: dict[str, Any], side: str, *, both: bool) -> Iterator[_Row]:
    """The row of a sum over all streams; none if it is no sum."""
    start, end, moved, rate = (real(values.get(name)) for name in ("start", "end", "bytes", "bits_per_second"))
    if start is None or end is None or moved is None or rate is None or values.get("omitted") is True:
        return
    role = ("TX" if values.get("sender") is True else "RX") if both else ""
    sent, lost = whole(values.get("packets", values.get("retransmits"))), whole(values.get("lost_packets"))
    yield _Row(line, "SUM", role, start, end, side, moved, 0.0, rate / 8, sent, lost)


def _add(draft: Draft, test: _Test, seen: _Seen) -> None:
    """Add the cases of a test, unless its other side printed it, too."""
    ends = frozenset((test.ends[:2], test.ends[2:]))
    if test.rows and test.ends and ends in seen:
        why = "the same test is printed twice, such as by client and server: the first one is read"
        draft.note("repeated-header", test.line, why)
    elif len(stars := {row.stream[:1] == "*" for row in test.rows if row.stream != "SUM"}) > 1:
        why = "a test of iperf 2 in both directions is ignored: measure them with iperf3 --bidir"
        draft.note("waived", test.line, why)
    elif test.rows:
        test.reverse |= stars == {True}
        draft.begin(test.line)
        draft.facts |= {"command": test.command} if test.command else {}
        for rank, host in enumerate(test.ends[2::-2] if test.at_server else test.ends[::2]):
            draft.place(rank=rank, host=host)
        for role, rows in by_key((row.role, row) for row in test.rows).items():
            _add_case(draft, test, role, rows)
        if draft.rows:
            seen.add(ends)
        draft.end()


def _add_case(draft: Draft, test: _Test, role: str, rows: Sequence[_Row]) -> None:
    """Add the case of one direction: samples by its intervals or, without them, the mean by its summary."""
    udp = test.udp or any(row.lost is not None for row in rows)
    found = len({row.stream for row in rows} - {"SUM"})
    asked = test.streams or test.connected // (2 if role else 1)
    sums = [row for row in rows if row.stream == "SUM"]
    streams = max(found, asked) if sums else found
    rows = sums or _summed(draft, rows)
    in_order = sorted(rows, key=lambda row: row.start)
    starts = [row.start for row in in_order]
    summaries = [row for row in rows if row.side or len(rows) == 1 or _covers(row, in_order, starts)]
    intervals = [row for row in rows if row not in summaries]
    usual = median([row.end - row.start for row in intervals] or [0.0])
    intervals = [row for row in intervals if row.end - row.start > usual / 2]
    covered = sum(row.end - row.start for row in intervals)
    arrived = [row for row in intervals if row.rate and (not udp or row.lost is not None)]
    summary = next(_summary(summaries, test, udp=udp), None)
    cut = summary is not None and covered < _WHOLE * (summary.end - summary.start)
    alone = len(intervals) == 1 and summary is not None
    samples = arrived if len(arrived) == len(intervals) and not cut and not alone else []
    mean = sum(row.rate * (row.end - row.start) for row in intervals) / covered if arrived else 0.0
    rate = mean if samples else summary.rate if summary is not None else 0.0
    line = (samples or summaries or rows)[0].line
    if not rate:
        lacks = "the lines of the receiver" if udp else "the summary, as nothing moved in an interval"
        why = f"a test is ignored, of which no line says how much arrived: paste {lacks}, too"
        draft.note("waived", line, why)
        return
    if summary is None and test.ends and not draft.error:
        why = "the test ends without its summary: it was cut off, or still ran"
        draft.note("unfinished", rows[-1].line, why)
    size = test.size or _assumed(draft, test, udp=udp)
    again = 0 if udp else max([0, *(row.sent or 0 for row in summaries)])
    again = again if "Retr" in test.heading or sums else 0
    if test.paced or (udp and test.paced is None):
        unless = "" if test.paced else " (UDP without it: 1 Mbit/s) unless that is 0"
        why = f"the sender is held to the rate of -b{unless}, which is no limit of the network"
        draft.note("paced", line, why)
    if again:
        draft.note("retransmitted", line, f"TCP sent {again} segments again (Retr): they were lost or late")
    sends = (not udp and "Retr" in test.heading) or {row.side for row in rows} == {"sender"}
    server_sends = (role == "TX") == test.at_server if role else test.reverse or (test.at_server and sends)
    name = "UDP" if udp else "TCP"
    name += f", {streams} {f'of {asked} ' * (streams < asked)}streams" if max(streams, asked) > 1 else ""
    name += ", held to -b" if test.paced else ""
    draft.add(
        line,
        op="pair_bidir" if role else "pair_uni",
        tool_op=f"{name}, client receives" if server_sends else name,
        ranks=2,
        tool_size_bytes=size,
        tool_size_is="S",
        rate=rate,
        messages=1,
        statistic="mean",
        samples_seconds=tuple(size / row.rate for row in samples) if size and len(samples) > 1 else (),
        others={"Retr": float(again)} if again else {},
    )


def _covers(row: _Row, in_order: Sequence[_Row], starts: Sequence[float]) -> bool:
    """Whether a line is the summary of others, which iperf 2 does not say. ``in_order``: by their ``starts``."""
    inside = in_order[bisect_left(starts, row.start) : bisect_right(starts, row.end)]
    return sum(other.end <= row.end for other in inside) > _LEAST_COVERED


def _summed(draft: Draft, rows: Sequence[_Row]) -> list[_Row]:
    """The sums over streams: of the first line of each, the second and so on, as long as no stream lacks its line."""
    count = Counter[tuple[str, str]]()
    parts: dict[tuple[str, int], list[_Row]] = {}
    for row in rows:
        count[row.stream, row.side] += 1
        parts.setdefault((row.side, count[row.stream, row.side]), []).append(row)
    most = max(map(len, parts.values()))
    if cut := [part[0].line for part in parts.values() if len(part) < most]:
        draft.note("truncated-row", cut[0], f"lines of fewer than {most} streams are ignored: paste those of all")
    sums = []
    for of_streams in (part for part in parts.values() if len(part) == most):
        lost = [row.lost for row in of_streams if row.lost is not None]
        total = of_streams[0]._replace(
            end=max(row.end for row in of_streams),
            rate=sum(row.rate for row in of_streams),
            sent=sum(row.sent or 0 for row in of_streams),
            lost=sum(lost) if len(lost) == len(of_streams) else None,
        )
        sums.append(total)
    return sums


def _summary(rows: Sequence[_Row], test: _Test, *, udp: bool) -> Iterator[_Row]:
    """The summaries that say what arrived, at best as the receiver counts it."""
    for side in ("receiver", "", "both", "sender"):
        for row in rows:
            share = _lost(row, test) if udp else 0.0
            if row.side == side and row.rate and share is not None:
                yield row._replace(rate=row.rate * (1 - share))


def _lost(row: _Row, test: _Test) -> float | None:
    """The share that is lost of what a row of UDP says was moved; None if the row does not say what arrived."""
    if row.lost is None or row.side == "receiver" or not row.lost or not row.sent:
        return None if row.lost is None else 0.0
    sizes = (test.size,) if test.size else _UDP_BYTES
    is_sent, is_arrived = (any(_fits(row, count, size) for size in sizes) for count in (row.sent, row.sent - row.lost))
    if not is_sent and not is_arrived:
        return None
    return row.lost / row.sent if is_sent and (test.sent_datagrams or not is_arrived) else 0.0


def _fits(row: _Row, count: int, size: int) -> bool:
    return abs(row.moved - count * size) <= row.error + _CLOSE * row.moved


def _assumed(draft: Draft, test: _Test, *, udp: bool) -> int | None:
    """The default size of a message; of UDP, the one that fits transfers and datagrams; None if none or several do."""
    counted = [row for row in test.rows if row.sent]
    fits = [
        size
        for size in (_UDP_BYTES if counted else ())
        if all(
            _fits(row, row.sent or 0, size) or _fits(row, (row.sent or 0) - (row.lost or 0), size) for row in counted
        )
    ]
    size = _TCP_BYTES if not udp else fits[0] if len(fits) == 1 else None
    if size is not None:
        draft.note("assumed-size", test.line, f"messages of {format_size(size)}, a default of iperf, are assumed")
    return size
