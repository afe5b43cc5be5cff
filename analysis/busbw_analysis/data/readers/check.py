"""Recomputes bandwidths from size, time and ranks, and compares them with the printed ones."""

from collections.abc import Iterable, Iterator
from typing import Final

from busbw.ops import bus_factor
from busbw.runs.records import LogNote
from busbw_analysis.data.readers.log import Aggregate

_TOLERANCE: Final = 0.02
"""Relative error allowed: tools print times with at least three digits."""
_DIGIT: Final = 0.0101e9
"""Absolute error allowed, B/s: one unit in the last of two decimals of a rate in GB/s."""
_GIB: Final = 1e9 / 2**30


def busbw(row: Aggregate) -> float | None:
    """Bus bandwidth in B/s by busbw's definition; None if size, time, ranks or the bus factor is unknown."""
    if row.op is None or row.ranks is None or row.size_bytes is None or not row.time_seconds:
        return None
    factor = bus_factor(row.op, row.ranks)
    return None if factor is None else factor * row.size_bytes / row.time_seconds


def disagreements(rows: Iterable[Aggregate]) -> Iterator[LogNote]:
    """One note for every kind of disagreement, about the first row that shows it."""
    seen: dict[str, LogNote] = {}
    for row in rows:
        if row.ranks == 1 and row.busbw is not None:
            text = "a single rank has no bus bandwidth; the printed one is ignored"
            seen.setdefault("one-rank", LogNote(code="one-rank", line=row.line, text=text))
        elif (code := _difference(row)) is not None:
            printed, computed = ((rate or 0.0) / 1e9 for rate in _rates(row))
            text = (
                f"{row.tool_op or row.op} prints {printed:.4g} GB/s where size, time and ranks give {computed:.4g} GB/s"
            )
            seen.setdefault(code, LogNote(code=code, line=row.line, text=f"{text}: {_WORDS[code]}"))
    yield from seen.values()


_WORDS: Final = {
    "gib-as-gb": "the tool's GB is 2^30 bytes",
    "size-per-rank": "the tool's size is one rank's share",
    "no-bus-factor": "the tool omits the bus factor",
    "rate-differs": "the reason is unknown",
}


def _rates(row: Aggregate) -> tuple[float | None, float]:
    """A printed rate (None: there is none), and the same recomputed from size, time and ranks (0: unknown)."""
    if row.busbw is not None and (computed := busbw(row)) is not None:
        return row.busbw, computed
    return row.algbw, (row.size_bytes or 0) / row.time_seconds if row.time_seconds else 0.0


def _difference(row: Aggregate) -> str | None:
    printed, computed = _rates(row)
    if (
        printed is None
        or not computed
        or row.op is None
        or row.size_bytes is None
        or abs(printed - computed) <= _DIGIT + _TOLERANCE * computed
    ):
        return None
    ratios = {"gib-as-gb": _GIB}
    if row.ranks is not None and row.ranks > 1:
        ratios |= {"size-per-rank": row.ranks, "no-bus-factor": 1 / (bus_factor(row.op or "", row.ranks) or 1)}
    ratio = printed / computed
    near = {code: abs(ratio / expected - 1) for code, expected in ratios.items() if expected != 1}
    best = min(near, key=lambda code: near[code], default=None)
    return best if best is not None and near[best] <= _TOLERANCE else "rate-differs"
