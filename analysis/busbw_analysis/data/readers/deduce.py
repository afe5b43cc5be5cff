"""Deduces collective and number of ranks of an nccl-tests table from its columns, for logs that do not contain them.

Source: ``getCollByteCount`` and ``getBw`` of each ``*.cu`` of NVIDIA/nccl-tests. The column ``count`` is S for some
operations and one block of S for others. busbw over algbw depends on the ranks. Only some have a redop or a root.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from busbw.ops import OPS, bus_factor
from busbw.runs.records import CASE_DTYPE_BYTES
from busbw_analysis.data.readers.lines import NCCL_BLOCKS, op_named
from busbw_analysis.data.readers.log import Aggregate

_WHOLE: Final = ("all_reduce", "broadcast", "reduce", "send_recv")
_NEVER_IN_PLACE: Final = frozenset({"all_to_all", "send_recv"})
"""``alltoall.cu`` and ``sendrecv.cu`` print ``N/A`` errors in place, even if errors are counted out of place."""
_MOST_RANKS: Final = 1024
_HALF_A_DIGIT: Final = 0.0051e9
"""B/s: rates are printed in GB/s with two decimals."""


class Fit(NamedTuple):
    """A possible operation and number of ranks of a table; ``ranks`` is None if several numbers are possible."""

    op: str
    ranks: int | None


def fits(rows: Sequence[Aggregate], op: str | None = None, ranks: int | None = None) -> tuple[Fit, ...]:
    """All operations and ranks that ``rows`` may be of, given the known ``op`` and ``ranks`` (None: unknown)."""
    rated = [row for row in rows if row.algbw and row.busbw]
    if not rated:
        return ()
    best = max(rated, key=lambda row: row.busbw or 0.0)
    algbw, busbw = best.algbw or 1.0, best.busbw or 1.0
    ratio = busbw / algbw
    error = ratio * (_HALF_A_DIGIT / busbw + _HALF_A_DIGIT / algbw)
    blocks = _blocks(best)
    in_place, out_of_place = (
        {row.check in {"verified", "wrong"} or "error" in row.others for row in rows if row.in_place is place}
        for place in (True, False)
    )
    names = _WHOLE if blocks == 1 else NCCL_BLOCKS if blocks else (*_WHOLE, *NCCL_BLOCKS)
    candidates: list[Fit] = []
    for name in names if op is None else (op,):
        given = ranks or (blocks if blocks is not None and blocks > 1 else None)
        possible = [
            number
            for number in ([given] if given is not None else range(2, _MOST_RANKS + 1))
            if abs((bus_factor(name, number) or 0.0) - ratio) <= error
        ]
        if op is None and True in out_of_place and in_place and (name in _NEVER_IN_PLACE) == (True in in_place):
            continue
        if possible and (op is not None or _has_columns(name, best)):
            candidates.append(Fit(name, possible[0] if len(possible) == 1 else None))
    return tuple(candidates)


def _blocks(row: Aggregate) -> int | None:
    """How many blocks of ``count`` elements S contains; None unless it is a whole number."""
    block = (row.count or 0) * CASE_DTYPE_BYTES.get(row.dtype or "", 0)
    if not block or not row.size_bytes or row.size_bytes % block:
        return None
    return row.size_bytes // block


def _has_columns(op: str, row: Aggregate) -> bool:
    """Whether ``row`` has a redop and a root exactly if ``op`` has. Some versions print a redop for send_recv."""
    reduces = op == "send_recv" or OPS[op].reduces == (row.redop is not None)
    return reduces and OPS[op].rooted == (row.root is not None)


def hinted(name: str, among: Sequence[Fit]) -> Fit | None:
    """The fit in ``among`` whose operation is a word of the file ``name``; None unless there is exactly one."""
    plain = name.lower()
    words = {op_named(word) for parted in (r"[^a-z_]+|_perf", "[^a-z]+") for word in re.split(parted, plain)}
    named = [fit for fit in among if fit.op in words]
    return named[0] if len(named) == 1 else None
