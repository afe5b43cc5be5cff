"""The decision tables of MPI libraries as data: which algorithm by how many ranks and bytes, in the library's names.

Facts read from one version each, for commutative reductions that the library knows; ``choices`` says when they hold.
"""

from collections.abc import Callable
from typing import Final

from busbw_analysis.models.counts import is_power

OPEN_MPI_SOURCE: Final = (
    "ompi/mca/coll/tuned/coll_tuned_decision_fixed.c (4.1 to 5.0; its general table is the same on main, 8efebee)"
)
MPICH_SOURCE: Final = "the selection tables (JSON) inside the library of MPICH 5.0.2; src/mpi/coll/coll_selection.json"

_KIB: Final = 1 << 10


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

_ANY: Final = 1 << 62

OPEN_MPI: Final[dict[str, tuple[tuple[int, str], ...]]] = {
    "all_reduce": (
        (
            4,
            "ring 8 recursive_doubling 4K ring 8K recursive_doubling 16K ring 64K segmented_ring 256K rabenseifner",
        ),
        (8, "ring 16 recursive_doubling 8K rabenseifner"),
        (16, "recursive_doubling 8K rabenseifner"),
        (32, "segmented_ring 64 recursive_doubling 4K rabenseifner"),
        (64, "segmented_ring 128 rabenseifner"),
        (128, "recursive_doubling 256K rabenseifner"),
        (256, "nonoverlapping 128K recursive_doubling 256K rabenseifner"),
        (512, "nonoverlapping 4K rabenseifner"),
        (2048, "nonoverlapping 2K recursive_doubling 16K rabenseifner"),
        (4096, "nonoverlapping 2K segmented_ring 4K recursive_doubling 16K rabenseifner"),
        (_ANY, "nonoverlapping 2K segmented_ring 16K recursive_doubling 32K rabenseifner"),
    ),
    "all_gather": (
        (3, "two_proc"),
        (32, "recursive_doubling"),
        (64, "recursive_doubling 1K neighbor 64K ring"),
        (128, "recursive_doubling 512 neighbor 64K ring"),
        (256, "recursive_doubling 512 neighbor 128K ring 512K neighbor 1M ring"),
        (
            512,
            "recursive_doubling 32 bruck 128 recursive_doubling 1K neighbor 128K ring 512K neighbor 1M ring",
        ),
        (1024, "recursive_doubling 64 bruck 256 recursive_doubling 2K neighbor"),
        (
            2048,
            (
                "recursive_doubling 4 bruck 8 recursive_doubling 16 bruck 32 recursive_doubling 256 bruck 512 "
                "recursive_doubling 4K neighbor"
            ),
        ),
        (4096, "bruck 32 recursive_doubling 128 bruck 512 recursive_doubling 4K neighbor"),
        (_ANY, "recursive_doubling 2 bruck 8 recursive_doubling 16 bruck 512 recursive_doubling 4K neighbor"),
    ),
    "all_to_all": (
        (
            3,
            (
                "pairwise 2 two_proc 4 pairwise 16 two_proc 64 pairwise 256 two_proc 4K pairwise 32K linear_sync 256K "
                "two_proc 1M pairwise"
            ),
        ),
        (8, "linear_sync 8K linear 16K linear_sync 64K linear 512K pairwise 1M linear"),
        (16, "linear_sync 256K linear"),
        (
            32,
            "linear_sync 4 modified_bruck 512 linear_sync 8K linear 32K linear_sync 256K linear 512K linear_sync",
        ),
        (64, "modified_bruck 512 linear 512K linear_sync"),
        (128, "modified_bruck 1K linear 2K linear_sync 4K linear 256K pairwise"),
        (256, "modified_bruck 1K linear_sync 2K linear 256K pairwise"),
        (512, "modified_bruck 1K linear_sync 8K linear 32K pairwise"),
        (1024, "modified_bruck 512 linear_sync 8K linear 16K linear_sync 128K linear 256K pairwise"),
        (2048, "modified_bruck 512 linear_sync 1K linear 2K linear_sync 16K linear 256K linear_sync"),
        (4096, "modified_bruck 1K linear_sync 4K linear 8K linear_sync 128K linear"),
        (_ANY, "modified_bruck 2K linear_sync 8K linear 16K linear_sync 32K linear 64K linear_sync"),
    ),
    "broadcast": (
        (
            4,
            (
                "pipeline 32 binary_tree 256 pipeline 512 knomial 1K basic_linear 32K binary_tree 128K chain 256K "
                "basic_linear 512K binomial 1M binary_tree"
            ),
        ),
        (8, "binary_tree 64 binomial 128 binary_tree 2K binomial 8K basic_linear 1M chain"),
        (16, "knomial 8 binary_tree 64 knomial 4K binary_tree 16K binomial 32K basic_linear"),
        (32, "knomial 4K binomial 1M scatter_allgather"),
        (64, "binomial 2K knomial"),
        (128, "knomial"),
        (256, "binomial 2 binary_tree 16K basic_linear 32K binary_tree 64K knomial"),
        (1024, "knomial 16K split_binary_tree 32K knomial"),
        (2048, "knomial 512K scatter_allgather"),
        (4096, "knomial 256K scatter_allgather"),
        (_ANY, "knomial 8K binary_tree 16K knomial 256K scatter_allgather"),
    ),
    "reduce": (
        (
            4,
            "rabenseifner 8 binary 16 pipeline 32 linear 256K pipeline 512K chain 1M pipeline",
        ),
        (8, "binary 4K chain 64K binomial 256K linear 512K binomial 1M linear"),
        (16, "binary 8K binomial"),
        (32, "binary 4K binomial"),
        (256, "binomial"),
        (512, "binomial 8K in-order_binary 16K binomial"),
        (2048, "binomial"),
        (4096, "binomial 512 in-order_binary 1K binomial 8K in-order_binary 16K binomial"),
        (
            _ANY,
            "binomial 16 in-order_binary 32 binomial 1K in-order_binary 2K binomial 8K in-order_binary 16K binomial",
        ),
    ),
    "reduce_scatter": (
        (
            4,
            (
                "recursive_doubling 4 butterfly 8 recursive_halving 16 butterfly 128 recursive_halving 256 butterfly "
                "4K recursive_halving 8K butterfly 128K basic_linear"
            ),
        ),
        (
            8,
            (
                "recursive_halving 8 recursive_doubling 32 butterfly 256 recursive_halving 8K butterfly 16K "
                "recursive_halving 1M basic_linear"
            ),
        ),
        (
            16,
            "basic_linear 4 recursive_halving 32 butterfly 128 recursive_halving 512K basic_linear 4M butterfly",
        ),
        (32, "basic_linear 32 recursive_halving 512K basic_linear 2M recursive_halving 4M butterfly"),
        (_ANY, "recursive_halving 4 basic_linear 16 butterfly 64K basic_linear 256K butterfly"),
    ),
    "gather": (
        (4, "linear_sync 2 basic_linear 4 binomial 32K basic_linear 64K binomial 128K linear_sync"),
        (8, "binomial 1K basic_linear 8K binomial 32K basic_linear 256K linear_sync"),
        (256, "binomial"),
        (512, "binomial 2K basic_linear 8K binomial"),
        (_ANY, "binomial"),
    ),
    "scatter": (
        (4, "linear_nb 2 basic_linear 128K linear_nb 256K basic_linear"),
        (8, "binomial 2K basic_linear 4K binomial 8K basic_linear 32K linear_nb 1M basic_linear"),
        (16, "binomial 16K linear_nb 1M basic_linear"),
        (32, "binomial 16K basic_linear 32K linear_nb"),
        (64, "binomial 512 linear_nb 8K binomial 16K linear_nb"),
        (_ANY, "binomial 512 linear_nb"),
    ),
    "barrier": (
        (4, "recursive_doubling"),
        (8, "linear"),
        (64, "recursive_doubling"),
        (256, "bruck"),
        (512, "tree"),
        (1024, "bruck"),
        (4096, "tree"),
        (_ANY, "bruck"),
    ),
}
"""Op → below so many ranks → an algorithm, the bytes below which it is taken, the next, and so on; the last one takes
the rest. For commutative reductions. ``reduce_scatter`` is MPI_Reduce_scatter_block.
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
