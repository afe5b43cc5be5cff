"""Reader of ucx_perftest.

Source: ``print_progress`` and ``print_header`` in ``src/tools/perf/perftest_run.c``, the table ``tests`` in
``perftest.c`` and ``ucx_perf_calc_result`` in ``lib/libperf.c`` of openucx/ucx. MB/s are 2^20 B/s. Latencies of
ping-pong tests are half a round trip. The bandwidth is the size over the overall latency or overhead, so that the
size follows from the two where neither the heading nor the command states it.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.lines import number, scaled, whole

SIGN: Final = re.compile(
    rb"# iterations \|[^\n]{1,30}\| average \| overall \||\| Test: +[a-z][^\n]{0,80}\|\r?\n\| Data layout:"
)
_SETTING: Final = re.compile(r"\| (Test|Message size|Send memory|Recv memory): +(.*?) +\|$")
_TITLE: Final = re.compile(r"[+=-]+ ?([a-z][\w/]*) ?[-=]{2,}[-+=]*")
_COMMAND: Final = re.compile(r"\bucx_perftest\b.* -\w")
_OPTION: Final = re.compile(r" -([ts]) ?(\w+)(?=\s|$)")
_THOUSANDS: Final = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_INTERIM: Final = re.compile(r"\[thread \d{1,4}\]((?:\s+[\d.,]+){8}|(?:\s+[\d.,]+){4})")
_ROW: Final = re.compile(
    r"(?:([A-Za-z]\S*)\s+)?(\d[\d,]*(?:\s+[\d.,]+){7}|\d[\d,]*(?:\s+[\d.,]+){3})(?:\s+[A-Za-z].*)?"
)
"""A final row, which begins with a whole number of calls. "Final: " before it may be missing, because it looks like the
prefix of a launcher.
"""
_MIB: Final = 2.0**20
_OVERLAP: Final = 0.5
"""Most calls return before their message has arrived only where messages overlap: in no ping-pong test."""
_ROUNDED: Final = 0.02
"""Error of a latency times the messages in a second, both rounded, near 1 ms and 1 us."""
_STEPS: Final = 64
"""A deduced size is a multiple of a power of two that is this many times wider than its error."""


def read(draft: Draft, lines: Iterable[str]) -> None:
    """The last row of every test: rows before it are of a part of the calls, of which the last is read if it is all."""
    test: dict[str, Any] = {}
    size: int | None = None
    cuda: set[str] = set()
    interim: tuple[int, list[str]] | None = None
    for line in draft.scan(lines):
        text = line.text
        if _COMMAND.search(text) is not None:
            options = dict(_OPTION.findall(text))
            test = _test(options["t"]) if "t" in options else test
            size = int(options["s"]) if options.get("s", "").isdecimal() else size
            draft.facts["command"] = text[:1000]
        elif (match := _SETTING.fullmatch(text)) is not None:
            name, value = match.groups()
            test = _test(value) if name == "Test" else test
            size = whole(value) if name == "Message size" else size
            cuda |= {name} if value.startswith(("cuda", "rocm")) else set()
        elif (match := _INTERIM.fullmatch(text)) is not None:
            interim = line.number, _THOUSANDS.sub("", match[1]).split()
        elif (match := _ROW.fullmatch(text)) is not None:
            named = test if match[1] in {None, "Final:"} else _test(match[1])
            words = _THOUSANDS.sub("", match[2]).split()
            if _agree(words):
                _add(draft, line.number, named, size, words, on_gpus=len(cuda) == 2)
            else:
                interim = None
                draft.note("truncated-row", line.number, "a row whose latency and message rate disagree is ignored")
        elif (match := _TITLE.fullmatch(text)) is not None:
            test, size = _test(match[1]), None
    if interim is not None and not draft.rows and _agree(interim[1]):
        draft.note("unfinished", interim[0], "the last row is missing: this one is the average of the calls before it")
        _add(draft, interim[0], test, size, interim[1], on_gpus=len(cuda) == 2)


def _agree(words: Sequence[str]) -> bool:
    """Whether the last numbers of a row are a latency and the messages in a second that follow from it."""
    latency, messages = (number(words[at]) or 0.0 for at in (-5 if len(words) == 8 else 1, -1))
    return words[-1].isdecimal() and abs(latency * messages / 1e6 - 1) < _ROUNDED * (
        1 + latency / 1e3 + 1 / max(latency, 1e-3)
    )


def _test(name: str) -> dict[str, Any]:
    """The operation of a test, by its short name or its description."""
    short = name.partition("/")[0]
    atomic = re.search("atomic|add|swap", short) is not None
    latency = re.search("lat(?:ency)?$", short) is not None
    return {"op": None if atomic else "ping_pong" if latency else "pair_uni", "tool_op": name}


def _add(draft: Draft, line: int, test: dict[str, Any], size: int | None, words: list[str], *, on_gpus: bool) -> None:
    values = [number(word) for word in words]
    latency, rate = (values[3], values[5]) if len(values) == 8 else (values[1], values[2])
    if not test and len(values) == 8 and (values[1] or 0.0) < _OVERLAP * (latency or 0.0):
        test = {"op": "pair_uni", "tool_op": "bandwidth"}
    if size is None and latency and rate:
        size = _implied(latency * 1e-6 * rate * _MIB, 0.0005 / latency + 0.005 / rate)
        if size is not None:
            draft.note("deduced", line, f"the log does not contain the size; bandwidth and time imply {size} B")
    ping_pong = test.get("op") == "ping_pong"
    draft.add(
        line,
        **test,
        ranks=2,
        tool_size_bytes=size,
        tool_size_is="S",
        time_seconds=scaled(latency, 1e-6) if ping_pong else None,
        rate=scaled(rate, _MIB),
        messages=None if ping_pong else 1,
        statistic="mean",
        iterations=None if values[0] is None else int(values[0]),
        device="cuda" if on_gpus else "cpu",
        backend="ucx",
    )


def _implied(size: float, error: float) -> int | None:
    """The size near ``size``, up to its relative ``error``: a whole number, or one that is rounder than by chance."""
    low, high = math.ceil(size * (1 - error)), math.floor(size * (1 + error))
    step = 1 << max(0, math.ceil(math.log2(max(1.0, 2 * size * error) * _STEPS))) if high > low else 1
    first = -(-low // step) * step
    return first if first <= high and first > 0 else None
