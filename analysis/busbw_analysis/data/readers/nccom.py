"""Reader of nccom-test of AWS Neuron.

Source: ``tools/neuron-sys-tools/nccom-test.rst`` of aws-neuron/aws-neuron-sdk. GB/s are GiB/s. Only the command names
the operation and the number of ranks, which is that of all nodes together.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from busbw_analysis.data.readers import tables
from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.lines import op_named

SIGN: Final = re.compile(rb"size ?\([Bb]\w{0,4}\)[^\w\n]{1,30}count ?\(elems\)|\bnccom-test\b[^$|]{1,400}?size ?\([Bb]")
_GB: Final = re.compile(r"\(G[Bb](?:ytes?)?(?:/s(?:ec)?|ps)\)")
_COMMAND: Final = re.compile(r"\bnccom-test\b(.*)")
_RANKS: Final = re.compile(r"(?:-r|--nworkers)[ =]?(\d{1,7})\b")
_OPS: Final = {"allr": "all_reduce", "allg": "all_gather", "redsct": "reduce_scatter"}


def read(draft: Draft, lines: Iterable[str]) -> None:
    """The table of every command."""
    tables.read(draft, _in_gib(lines), about=_of_command)


def _in_gib(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        heading, units = _GB.subn("(GiB/s)", line)
        is_cut = "size" in line and units < line.count("bw")  # of which the last unit is in the next line
        yield "" if is_cut else heading


def _of_command(above: Sequence[str]) -> dict[str, Any]:
    """Operation and ranks of the last command."""
    command = next((match[1] for line in reversed(above) if (match := _COMMAND.search(line))), "")
    ranks = _RANKS.search(command)
    names = [word for word in command.split() if op_named(_OPS.get(word, word)) is not None]
    facts: dict[str, Any] = {} if ranks is None else {"ranks": int(ranks[1])}
    return facts | ({"tool_op": _OPS.get(names[0], names[0])} if len(names) == 1 else {})
