"""Reader of the OSU micro-benchmarks, 2.x to 7.x: point-to-point, collectives, non-blocking with overlap.

Source: ``c/util/osu_util_mpi.c`` (``print_only_header``, ``print_stats``) and the benchmarks beside it. Sizes of
collectives are those of one rank or peer. OSU does not print the number of ranks; it is taken from the command line or
from MPI's own output.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

from busbw.errors import LogError
from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.launched import LAUNCHER, launched
from busbw_analysis.data.readers.lines import (
    MPI_BLOCKS,
    Line,
    dtype_named,
    hosts_of,
    mpi_op_named,
    number,
    rest,
    scaled,
    whole,
)

SIGN: Final = re.compile(rb"# {0,9}(?:OSU|OMB)[ -][^\n]{1,99} Test\b")
_TITLE: Final = re.compile(r"\s*#\s*(?:OSU|OMB(?:-Py| Python)?) (.*?) Test(?:\s+(?:v|\(Version )(\d[^\s)]*)\)?)?\s*$")
_CUT_TITLE: Final = re.compile(r"#\s*(?:OSU|OMB)\b|#?-{20}")
"""What ends a table: a title that is cut, or the rule of another tool."""
_KIND: Final = re.compile(
    r"^(?:(?:MPI )?One Sided MPI|MPI|UPC\+\+|UPC|OpenSHMEM|NCCL|RCCL|XCCL)?(?:-[A-Z]+(?: MANAGED)?)?\s*"
)
_HEADING: Final = re.compile(
    r"(?:(?:Avg|Min|Max) )?Lat(?:ency)? ?\(us\)|(?:Bi-)?Bandwidth ?\(MB/s\)"
    r"|(?:Coll\. Init|(?:Pure|Min|Max|Avg) Comm\.|\w+) ?\(us\)"
    r"|Overlap ?\(%\)|Size \([Bb]\w*\)|P\d+(?:\.\d+)? Tail (?:Lat|BW) ?\([^)]*\)|Transmit Size|\S+"
)
_HEAD: Final = re.compile(r"\s*#?\s*(?:Size\b|(?:Avg )?Latency ?\(us\)|Overall ?\(us\)|Bandwidth ?\(MB/s\)|MB/s\b)")
_PAIRS: Final = re.compile(r"\[ pairs: (\d{1,7}) \] \[ window size: \w+ \]")
_DATATYPE: Final = re.compile(r"\s*#\s*(?:MPI )?Datatype: (.*?)\.?\s*$")
_BUFFERS: Final = re.compile(r"\s*# Send Buffer on (\w+) \(\w+\) and Receive Buffer on (\w+)")
_STARTUP: Final = re.compile(r"MPI startup\(\): (\d{1,7})\s+(\d{1,9})\s+(\S+)\s+\{")
_PROGRAM: Final = re.compile(r"\bosu_\w+(?![\w.])")
_LISTED: Final = re.compile(r"mpirun_rsh\b.*\s-np?\s+\d+((?:\s+[A-Za-z\d][\w.-]*(?=\s))+)")
"""The hosts that MVAPICH's launcher is given, one for each rank."""
_TIMES: Final = ("Pure Comm.(us)", "Avg Latency(us)", "Latency(us)", "Avg Lat(us)", "Lat(us)")
_RATES: Final = ("Bandwidth(MB/s)", "MB/s")
_SHORT: Final = ["Size", "Avg Latency(us)"]
_FULL: Final = [*_SHORT, "Min Latency(us)", "Max Latency(us)", "Iterations"]
"""The headings of collectives, and those with ``-f``."""
_USED: Final = frozenset({"Size", "Iterations", "Validation", *_TIMES, *_RATES})
_TWO: Final = (
    (re.compile(r"(?:multi-?|multi-threaded |multi-process |partitioned )? ?latency(?: persistent)?"), "ping_pong", 1),
    (re.compile(r"(?:bandwidth(?: persistent)?|multiple bandwidth / message rate)"), "pair_uni", 1),
    (re.compile(r"bi-?directional bandwidth(?: persistent)?"), "pair_bidir", 2),
    (re.compile(r"_?(?:put|get)(?:-\w+)?(?: latency| bandwidth)?"), "pair_uni", 1),
    (re.compile(r"_?(?:put|get)(?:-\w+)? bi-directional bandwidth"), "pair_bidir", 2),
)
"""Benchmarks of pairs, including one-sided ones → busbw's op, and how often the rate of one pair counts S."""
_CHECKS: Final = {"Pass": "verified", "Fail": "wrong", "N/A": "not checked", "-": "not checked"}


def read(draft: Draft, lines: Iterable[str]) -> None:
    """The tables of all benchmarks in the log."""
    test: dict[str, Any] = {}
    heading = 0
    for line in draft.scan(lines):
        if (match := _TITLE.match(line.text)) is not None:
            _refuse_two(draft, line)
            draft.begin(line.number)
            draft.facts["tool_version"] = match[2] or draft.facts.get("tool_version")
            test = _benchmark(match[1])
        elif _CUT_TITLE.match(line.text) is not None:
            test = {}  # nobody knows what the rows below are of
        elif not test:
            _around(draft, line.text)
        elif (match := _PAIRS.search(line.text)) is not None:
            test["messages"] = int(match[1])
        elif (match := _BUFFERS.match(line.text)) is not None and match[1] + match[2] != "DEVICEDEVICE":
            test["tool_op"] += f" {match[1].lower()} to {match[2].lower()}"
        elif (match := _DATATYPE.match(line.text)) is not None:
            test["dtype"] = dtype_named(match[1])
        elif _HEAD.match(line.text) is not None:
            draft.names = _names(draft, line, is_rest=heading == line.number - 1 and "#" not in line.text)
            heading = line.number
        elif (cells := _cells(draft, line)) is not None:
            _add(draft, line.number, test, cells)
        else:
            _around(draft, line.text)


def _refuse_two(draft: Draft, line: Line) -> None:
    if line.text.count("# OSU ") > 1:
        why = "two outputs stand side by side: paste one below the other"
        raise LogError(f"{draft.source}:{line.number}: {why}", code="ambiguous-heading")


def _names(draft: Draft, line: Line, *, is_rest: bool) -> list[str]:
    """The headings of a line; none if it is the rest of the line above, which a mail broke, or those of a test whose
    title is missing.
    """
    if draft.rows:
        draft.note("repeated-header", line.number, "a header without a title: output of two jobs is mixed")
    if is_rest:
        draft.note("truncated-row", line.number, "a header in two lines is ignored: paste it in one")
        return []
    names = [_column(name) for name in _HEADING.findall(line.text.strip().lstrip("# "))]
    return names if not draft.rows or names == [*draft.names] else []


def _cells(draft: Draft, line: Line) -> dict[str, str] | None:
    """The cells of a row; a short heading above full rows is one that somebody cut."""
    words = line.text.split()
    if draft.names == _SHORT and len(words) == len(_FULL) and all(number(word) is not None for word in words):
        draft.names = _FULL
    return draft.cells(line, words, _CHECKS)


def _column(heading: str) -> str:
    """A heading in the spelling of the tables above."""
    return "Size" if heading.startswith("Size") else heading.removeprefix("Bi-").replace(" (", "(")


def _benchmark(title: str) -> dict[str, Any]:
    """The fields that the title of a benchmark sets for all its rows."""
    name = _KIND.sub("", title).lower()
    for pattern, op, messages in _TWO:
        if pattern.fullmatch(name) is not None:
            return {"tool_op": title, "op": op, "messages": messages, "ranks": 2, "tool_size_is": "S"}
    plain = re.sub(r"non-blocking |personalized exchange|persistent|latency$", "", name)
    collective = mpi_op_named(plain) if name.endswith(" latency") else None
    meaning = None if collective is None else "block" if collective in MPI_BLOCKS else "S"
    return {"tool_op": title, "op": collective, "tool_size_is": meaning}


def _around(draft: Draft, text: str) -> None:
    """Record ranks and command from lines of a launcher or MPI."""
    if (match := _STARTUP.search(text)) is not None:
        draft.place(rank=match[1], pid=match[2], host=match[3])
        draft.facts["ranks"] = max(int(match[1]) + 1, draft.facts.get("ranks") or 0)
    elif (
        LAUNCHER.search(text) is not None
        and (program := _PROGRAM.search(text)) is not None
        and (launch := launched(text[: program.start()])).ranks is not None
    ):
        draft.end()  # of the next table
        draft.command(text)
        draft.facts |= {"ranks": launch.ranks, "hosts": launch.even_hosts}
        draft.places.clear()
        listed = _LISTED.search(text)
        for rank, host in enumerate(hosts_of(listed[1].split() if listed else text, launch.ranks)):
            draft.place(rank=rank, host=host)


def _add(draft: Draft, line: int, test: dict[str, Any], row: dict[str, str]) -> None:
    values = {name: number(word) for name, word in row.items()}
    rate = next((values[name] for name in _RATES if name in row), None)
    draft.add(
        line,
        **{name: value for name, value in test.items() if name != "messages" or rate is not None},
        tool_size_bytes=whole(row.get("Size", 0 if test["op"] == "barrier" else None)),
        time_seconds=scaled(next((values[name] for name in _TIMES if name in row), None), 1e-6),
        rate=scaled(rate, 1e6),
        statistic="mean",
        iterations=whole(row.get("Iterations")),
        check=_CHECKS.get(row.get("Validation", "")),
        others=rest(values, _USED),
    )
