"""Bus bandwidth from size, time and ranks, held against what the tool printed."""

from collections.abc import Iterable, Iterator
from typing import Final

from busbw.ops import bus_factor
from busbw.runs.records import LogNote
from busbw_analysis.data.readers.log import Aggregate

_TOLERANCE: Final = 0.02
"""Relative: tools print times with three digits and more."""
_DIGIT: Final = 0.0101e9
"""B/s: twice half a unit of the last digit of a rate printed in GB/s."""
_GIB: Final = 1e9 / 2**30


def busbw(row: Aggregate) -> float | None:
    """Bus bandwidth by busbw's definition in B/s; None where size, time or ranks are unknown or there is no wire."""
    if row.op is None or row.ranks is None or row.size_bytes is None or not row.time_seconds:
        return None
    factor = bus_factor(row.op, row.ranks)
    return None if factor is None else factor * row.size_bytes / row.time_seconds


def disagreements(rows: Iterable[Aggregate]) -> Iterator[LogNote]:
    """One note for every kind of difference: the first row that shows it."""
    seen: dict[str, LogNote] = {}
    for row in rows:
        if row.ranks == 1 and row.busbw is not None:
            text = "one rank has no wire: its bus bandwidth is left out, whatever the tool prints"
            seen.setdefault("one-rank", LogNote(code="one-rank", line=row.line, text=text))
        elif (code := _difference(row)) is not None:
            told, computed = (row.busbw or row.algbw or 0.0) / 1e9, _rates(row)[1] / 1e9
            text = f"{row.tool_op or row.op} prints {told:.4g} GB/s where size, time and ranks give {computed:.4g} GB/s"
            seen.setdefault(code, LogNote(code=code, line=row.line, text=f"{text}: {_WORDS[code]}"))
    yield from seen.values()


_WORDS: Final = {
    "gib-as-gb": "its GB is 2^30 bytes",
    "size-per-rank": "its size is one rank's share",
    "no-bus-factor": "it leaves out the bus factor",
    "rate-differs": "the reason is unknown",
}


def _rates(row: Aggregate) -> tuple[float | None, float]:
    """A rate that the tool printed, and the same by size, time and ranks; 0 where they do not tell."""
    if row.busbw is not None and (computed := busbw(row)) is not None:
        return row.busbw, computed
    return row.algbw, (row.size_bytes or 0) / row.time_seconds if row.time_seconds else 0.0


def _difference(row: Aggregate) -> str | None:
    told, computed = _rates(row)
    if (
        told is None
        or not computed
        or row.op is None
        or row.size_bytes is None
        or abs(told - computed) <= _DIGIT + _TOLERANCE * computed
    ):
        return None
    ratios = {"gib-as-gb": _GIB}
    if row.ranks is not None and row.ranks > 1:
        ratios |= {"size-per-rank": row.ranks, "no-bus-factor": 1 / (bus_factor(row.op or "", row.ranks) or 1)}
    ratio = told / computed
    near = {code: abs(ratio / expected - 1) for code, expected in ratios.items() if expected != 1}
    best = min(near, key=lambda code: near[code], default=None)
    return best if best is not None and near[best] <= _TOLERANCE else "rate-differs"
