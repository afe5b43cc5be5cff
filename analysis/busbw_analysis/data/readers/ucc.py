"""Reader of ucc_perftest.

Source: ``print_header``, ``print_time`` and ``get_bw`` in ``tools/perf`` of openucx/ucc.
The size is that of the send buffer: one block of gathers, S of the others. Releases that print ``Bandwidth`` instead of
``Bus Bandwidth`` mean one block by the size of operations that scatter, which are therefore left out there. Times are
means over ranks.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.launched import LAUNCHER, launched
from busbw_analysis.data.readers.lines import (
    are_headings,
    dtype_named,
    number,
    op_named,
    redop_named,
    rest,
    scaled,
    whole,
)

SIGN: Final = re.compile(rb"(?m)^ *Count +Size +Time, us")
_MISSING: Final = (
    "the lines that name the operation of this table are missing; put them above it: Collective: Allreduce"
)
_SETTING: Final = re.compile(r"(Collective|Memory type|Datatype|Reduction|Inplace): +(\S+)")
_PROGRAM: Final = "ucc_perftest"
_GATHERED: Final = frozenset({"all_gather", "gather"})
_SCATTERED: Final = frozenset({"all_to_all", "reduce_scatter", "scatter"})
_NAMES: Final = ("count", "size", "avg", "min", "max", "busbw", "busbw max", "busbw min")
_USED: Final = frozenset({"count", "size", "avg", "busbw"})


def read(draft: Draft, lines: Iterable[str]) -> None:
    """The rows of every table."""
    test: dict[str, str] = {}
    started: dict[str, Any] = {}
    current = False
    for line in draft.scan(lines):
        before, program, _ = line.text.partition(_PROGRAM)
        if program and LAUNCHER.search(before) and (launch := launched(before)).ranks is not None:
            started = {"ranks": launch.ranks, "hosts": launch.even_hosts, "command": line.text[:1000]}
        elif (match := _SETTING.match(line.text)) is not None:
            if match[1] == "Collective":
                draft.begin(line.number)
                draft.facts |= started
                test = {}
            test[match[1]] = match[2]
        elif line.text.startswith("Count"):
            current = "Bus Bandwidth" in line.text
        elif are_headings(words := line.text.split()):
            test = {}  # the table of another tool
        elif len(words) in {5, 8} and _is_row(words):
            if "Collective" in test:
                _add(draft, line.number, test, dict(zip(_NAMES, words, strict=False)), current=current)
            else:
                draft.note("no-header", line.number, _MISSING)


def _is_row(words: list[str]) -> bool:
    are_counts = all(word.isdecimal() or word == "N/A" for word in words[:2])
    return are_counts and all(number(word) is not None for word in words[2:])


def _add(draft: Draft, line: int, test: dict[str, str], row: dict[str, str], *, current: bool) -> None:
    op = op_named(test["Collective"])
    if op in _SCATTERED and not current:
        draft.note("not-a-number", line, f"in this release the size of {test['Collective']} may be one block or all")
        return
    values = {name: number(word) for name, word in row.items()}
    size, seconds = whole(row["size"]), scaled(values["avg"], 1e-6)
    fields: dict[str, Any] = {"tool_size_bytes": 0 if op == "barrier" else size}
    if op in _GATHERED:
        fields["tool_size_is"] = "block"
    elif op is not None:
        fields |= {"tool_size_is": "S", "algbw": size / seconds if size and seconds else None}
    reduction, dtype = test.get("Reduction", "N/A"), test.get("Datatype", "")
    draft.add(
        line,
        op=op,
        tool_op=test["Collective"],
        dtype=dtype_named(dtype.lower()),
        redop=None if reduction == "N/A" else redop_named(reduction.lower()),
        in_place={"0": False, "1": True}.get(test.get("Inplace", "0")),
        time_seconds=seconds,
        busbw=scaled(values.get("busbw"), 1e9),
        statistic="mean",
        device="cuda" if test.get("Memory type") in {"cuda", "rocm"} else "cpu",
        backend="ucc",
        others=rest(values, _USED),
        **fields,
    )
