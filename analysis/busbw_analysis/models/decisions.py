"""The decision tables of MPI libraries as data: which algorithm by how many ranks and bytes, in the library's names.

Facts read from one version each, for commutative reductions that the library knows; ``choices`` says when they hold.
"""

import math
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from busbw_analysis.models.counts import is_power

OPEN_MPI_SOURCE: Final = (
    "ompi/mca/coll/tuned/coll_tuned_decision_fixed.c (4.1 to 5.0; its general table is the same on main, 8efebee)"
)
MPICH_SOURCE: Final = "the selection tables (JSON) inside the library of MPICH 5.0.2; src/mpi/coll/coll_selection.json"

_KIB: Final = 1 << 10
_TABLE: Final = Path(__file__).with_name("open_mpi.toml")


def of_open_mpi(op: str, ranks: int, size_bytes: int, elements: int) -> str | None:
    """What ``tuned`` of Open MPI takes by its fixed rules; None for an op that has no table here. ``elements`` are
    those of S: what cannot be cut into one piece a rank goes another way, whatever the rule says.
    """
    rows = OPEN_MPI.get(op)
    if rows is None:
        return None
    size = size_bytes / ranks if op in BY_BLOCK else size_bytes
    words = next(line for below, line in rows if ranks < below).split()
    bounds = zip(words[::2], words[1::2], strict=False)
    name = next((name for name, bound in bounds if size < _bytes(bound)), words[-1])
    pieces = ranks if "ring" in name else 1 << (ranks.bit_length() - 1)
    return _TOO_FEW_ELEMENTS.get((op, name), name) if elements < pieces else name


_TOO_FEW_ELEMENTS: Final = {
    ("all_reduce", "ring"): "recursive_doubling",
    ("all_reduce", "segmented_ring"): "recursive_doubling",
    ("all_reduce", "rabenseifner"): "basic_linear",
    ("reduce", "rabenseifner"): "linear",
}
"""ompi/mca/coll/base: a ring needs an element for each rank, halving one for each of its core (a power of two)."""


def _bytes(text: str) -> int:
    units = {"K": _KIB, "M": _KIB**2}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


BY_BLOCK: Final = frozenset({"all_gather", "all_to_all", "reduce_scatter", "gather", "scatter"})
"""Ops for which Open MPI goes by the bytes of one rank's block, S/n; for the others by S."""


def _rows(table: Mapping[str, str]) -> tuple[tuple[float, str], ...]:
    return tuple((math.inf if below == "more" else int(below), line) for below, line in table.items())


OPEN_MPI: Final[dict[str, tuple[tuple[float, str], ...]]] = {
    op: _rows(table) for op, table in tomllib.loads(_TABLE.read_text(encoding="utf-8")).items()
}
"""Op → below so many ranks → an algorithm, the bytes below which it is taken, the next, and so on; the last one takes
the rest.
"""


# --- MPICH -----------------------------------------------------------------------------------------------------


def of_mpich(op: str, ranks: int, size_bytes: int, elements: int) -> str | None:
    """What the general table of MPICH takes; None for an op that has none here. ``elements`` are those of S."""
    rule = MPICH.get(op)
    return None if rule is None else rule(ranks, size_bytes, elements)


MANY: Final = 8
SHORT_BROADCAST: Final = 12 * _KIB
LONG: Final = 512 * _KIB
_SHORT_GATHER: Final = 80 * _KIB
_SHORT_REDUCE: Final = 2 * _KIB
_SHORT_BLOCK: Final = 256
_LONG_BLOCK: Final = 32 * _KIB
_ONE_NUMBER: Final = 8


def _scattered(ranks: int, elements: int) -> bool:
    """Fewer elements than ranks in the core (the largest power of two) cannot be scattered over it."""
    return elements >= 1 << (ranks.bit_length() - 1)


def _all_reduce(ranks: int, size: int, elements: int) -> str:
    long = size > _ONE_NUMBER and _scattered(ranks, elements)
    return "reduce_scatter_allgather" if long else "recursive_doubling"


def _reduce(ranks: int, size: int, elements: int) -> str:
    return "reduce_scatter_gather" if size > _SHORT_REDUCE and _scattered(ranks, elements) else "binomial"


def _broadcast(ranks: int, size: int, _elements: int) -> str:
    if ranks < MANY or size <= SHORT_BROADCAST:
        return "binomial"
    return "scatter_recursive_doubling_allgather" if is_power(ranks) and size <= LONG else "scatter_ring_allgather"


def _all_gather(ranks: int, size: int, _elements: int) -> str:
    if is_power(ranks):
        return "recursive_doubling" if size < LONG else "ring"
    return "brucks" if size < _SHORT_GATHER else "ring"


def _reduce_scatter(_ranks: int, size: int, _elements: int) -> str:
    return "recursive_halving" if size < LONG else "pairwise"


def _all_to_all(ranks: int, size: int, _elements: int) -> str:
    block = size / ranks
    if ranks >= MANY and block <= _SHORT_BLOCK:
        return "brucks"
    return "scattered" if block <= _LONG_BLOCK else "pairwise"


MPICH: Final[dict[str, Callable[[int, int, int], str]]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "gather": lambda _ranks, _size, _elements: "binomial",
    "scatter": lambda _ranks, _size, _elements: "binomial",
    "barrier": lambda _ranks, _size, _elements: "k_dissemination",
}
"""Op → what n, S and the elements of S decide. ``reduce_scatter`` is MPI_Reduce_scatter_block."""
