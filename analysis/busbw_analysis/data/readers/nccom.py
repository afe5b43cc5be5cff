"""Reader of nccom-test of AWS Neuron.

Source: ``tools/neuron-sys-tools/nccom-test.rst`` of aws-neuron/aws-neuron-sdk. GB/s are GiB/s, but those of 10^9 B/s in
tables of newer versions, as size over time shows. Only the command names the operation and the number of ranks, which
is that of all nodes together.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from busbw_analysis.data.readers import tables
from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.lines import number, op_named

SIGN: Final = re.compile(rb"size ?\([Bb]\w{0,4}\)[^\w\n]{1,30}count ?\(elems\)|\bnccom-test\b[^$|]{1,400}?size ?\([Bb]")
_GB: Final = re.compile(r"\(G[Bb](?:ytes?)?(?:/s(?:ec)?|ps)\)")
_COMMAND: Final = re.compile(r"\bnccom-test\b(.*)")
_RANKS: Final = re.compile(r"(?:-r|--nworkers)[ =]?(\d{1,7})\b")
_ROWS: Final = 64
_LEAST: Final = 1.0
_NEAR: Final = 0.02
"""How many rows say the unit of a rate, from how many GB/s on, and by how much they may differ."""
_OPS: Final = {"allr": "all_reduce", "allg": "all_gather", "redsct": "reduce_scatter"}


def read(draft: Draft, lines: Iterable[str]) -> None:
    """The table of every command."""
    tables.read(draft, _in_gib(lines), about=_of_command)


def _in_gib(lines: Iterable[str]) -> Iterator[str]:
    every = list(lines)
    for at, line in enumerate(every):
        heading, units = _GB.subn("(GiB/s)", line)
        is_cut = "size" in line and units < line.count("bw")  # of which the last unit is in the next line
        yield "" if is_cut else heading if units and _is_binary(line, every[at + 1 :]) else line


def _is_binary(heading: str, rows: Sequence[str]) -> bool:
    """Whether the rates below a heading are in GiB/s: all are, unless those of its first rows are size over time in
    10^9 B/s.
    """
    names = [re.sub(r"\W.*", "", name.strip()) for name in re.split(r"\s{2,}|\t", heading.strip())]
    places = [names.index(name) for name in ("size", "time", "algbw") if name in names]
    errors: list[float] = []
    for row in rows[:_ROWS] if len(places) == 3 else ():
        cells = row.split()
        if len(cells) != len(names):
            break
        size, time, algbw = (number(cells[place]) or 0.0 for place in places)
        errors += [size / time / 1e3 / algbw] if time and algbw >= _LEAST else []
    return not errors or not all(abs(ratio - 1) < _NEAR for ratio in errors)


def _of_command(above: Sequence[str]) -> dict[str, Any]:
    """Operation and ranks of the last command."""
    command = next((match[1] for line in reversed(above) if (match := _COMMAND.search(line))), "")
    ranks = _RANKS.search(command)
    names = [word for word in command.split() if op_named(_OPS.get(word, word)) is not None]
    facts: dict[str, Any] = {} if ranks is None else {"ranks": int(ranks[1])}
    return facts | ({"tool_op": _OPS.get(names[0], names[0])} if len(names) == 1 else {})
