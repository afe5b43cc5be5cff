"""The algorithms of MPI libraries by the libraries' own names.

Each is a row of the textbook, or an additional row for an algorithm that is not available over send/recv here. A test
builds the schedule of every row marked as counted, executes it for 2 to 64 ranks and compares the counts. An algorithm
without a row has no known cost.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from busbw_analysis.models.costs import CostModel, Count
from busbw_analysis.models.textbook import (
    ROWS,
    THAKUR,
    below,
    core,
    down,
    down_a_tree_at_once,
    folds,
    in_pairs,
    is_power,
    one,
    others,
    powers_of_two,
    share,
    twice_the_others,
    two,
    up,
)

_TOPOLOGY: Final = "counted; ompi/mca/coll/base/coll_base_topo.c"
_AT_ONCE: Final = f"{_TOPOLOGY}; coll_base_bcast.c: a rank sends to all its children concurrently over its link"
_RADIX: Final = 4
"""Radix of the k-nomial tree: the default of coll_tuned_bcast_algorithm_knomial_radix."""


def one_after_another(op: str, first: CostModel, second: CostModel, algorithm: str) -> CostModel:
    """The cost of ``first`` followed by ``second``, both with the S of ``op``."""

    def both(one_count: Count, other: Count) -> Count:
        return lambda *where: one_count(*where) + other(*where)

    return CostModel(
        op,
        algorithm,
        both(first.rounds, second.rounds),
        f"({first.formula}) + ({second.formula})",
        f"sum of the rows of {first.op} by {first.algorithm} and {second.op} by {second.algorithm}",
        sent=both(first.sent, second.sent),
        added=both(first.added, second.added),
        moved=both(first.moved, second.moved),
        possible=lambda *where: first.possible(*where) and second.possible(*where),
        messages=both(first.messages or first.rounds, second.messages or second.rounds),
    )


def _in_a_row(ranks: int, *_: float) -> float:
    """Sequential messages down a binary tree that is filled level by level: two per level, but one in the last level if
    it has only first children, which precede all second children.
    """
    deepest = down(ranks)
    return 2 * deepest - (1 if 2 * (ranks - (1 << deepest) + 1) <= 1 << deepest else 0)


def _down_the_k_nomial_tree(ranks: int) -> list[int]:
    """The number of concurrent messages of each rank on the longest path from the root: from each rank to its child
    with the most ranks below.
    """
    on_the_way = []
    while ranks > 1:
        width, messages = 1, 0
        while width < ranks:
            messages += min(_RADIX - 1, -(-ranks // width) - 1)
            width *= _RADIX
        on_the_way.append(messages)
        width //= _RADIX
        ranks = max(min(width, ranks - width), width // _RADIX)
    return on_the_way


def _mirrored(ranks: int) -> int:
    """Number of ranks in the core whose bit-reversed number is different."""
    return core(ranks) - (1 << -(-down(ranks) // 2))


def _with_sums(broadcast: CostModel, formula: str) -> CostModel:
    """The reverse of ``broadcast``, which reduces all received bytes."""
    return replace(broadcast, op="reduce", added=broadcast.sent, formula=formula)


def _if_folded(power: Count, folded: Callable[[int], float]) -> Count:
    return lambda n, *where: power(n, *where) if is_power(n) else folded(n)


_broadcast = partial(CostModel, "broadcast", moved=others)
_LINEAR = _broadcast("linear", one, "α + (n−1) S β", "counted: concurrent messages", sent=others, messages=others)
_CHAIN = _broadcast("unsegmented-chain", others, "(n−1)(α + S β)", "counted", sent=others)
_BINARY_TREE = _broadcast(
    "unsegmented-binary-tree",
    down,
    "d α + c S β, d = ⌊lg n⌋, c = 2d, or 2d − 1 for n below 3/2 2^d",
    _TOPOLOGY,
    sent=_in_a_row,
    messages=_in_a_row,
)
_HALVING = ROWS["reduce_scatter", "recursive-halving"]
_in_halves = partial(
    CostModel,
    algorithm="rabenseifner-in-halves",
    source="counted; ompi/mca/coll/base: each rank beyond the power of two reduces one half with its partner",
    added=lambda n, *_: share(core(n)) + folds(n, 0, 0.5),
)

OF_LIBRARIES: Final[tuple[CostModel, ...]] = (
    _in_halves(
        "all_reduce",
        rounds=lambda n, *_: folds(n, 2 * up(n), 2 * down(n) + 3),
        formula="2 lg n α + 2(n−1)/n S β + (n−1)/n S γ; for other n with 2^⌊lg n⌋ instead of n, plus 3 α + 2 S β + "
        "S/2 γ",
        sent=lambda n, *_: 2 * share(core(n)) + folds(n, 0, 2),
        moved=lambda n, *_: 2 * (core(n) - 1) + 2.5 * (n - core(n)),
    ),
    _LINEAR,
    _CHAIN,
    _BINARY_TREE,
    _broadcast(
        "binomial-tree-at-once",
        down,
        "⌊lg n⌋ α + Σ S β, Σ = Σ over j < ⌊lg n⌋ of ⌊lg(n − 2^j)⌋ − j + 1",
        _AT_ONCE,
        sent=down_a_tree_at_once,
        messages=down_a_tree_at_once,
    ),
    _broadcast(
        "4-nomial-tree-at-once",
        lambda n, *_: len(_down_the_k_nomial_tree(n)),
        "d α + Σ S β, d senders on the longest path, Σ = number of their children; 3 d(d+1)/2 for n = 4^d",
        _AT_ONCE,
        sent=lambda n, *_: sum(_down_the_k_nomial_tree(n)),
        messages=lambda n, *_: sum(_down_the_k_nomial_tree(n)),
    ),
    one_after_another(
        "broadcast",
        ROWS["scatter", "binomial-tree"],
        ROWS["all_gather", "recursive-doubling"],
        "scatter-recursive-doubling",
    ),
    _with_sums(_LINEAR, "α + (n−1)(S β + S γ)"),
    _with_sums(_CHAIN, "(n−1)(α + S β + S γ)"),
    _with_sums(_BINARY_TREE, "d α + c (S β + S γ), d = ⌊lg n⌋, c = 2d, or 2d − 1 for n below 3/2 2^d"),
    _in_halves(
        "reduce",
        rounds=lambda n, *_: folds(n, 2 * up(n), 2 * down(n) + 2),
        formula="2 lg n α + 2(n−1)/n S β + (n−1)/n S γ; for other n with 2^⌊lg n⌋ instead of n, plus 2 α + S β + S/2 γ",
        sent=lambda n, *_: 2 * share(core(n)) + folds(n, 0, 1),
        moved=lambda n, *_: core(n) - 1 + below(core(n)) + 1.5 * (n - core(n)),
    ),
    CostModel(
        "reduce_scatter",
        "recursive-doubling",
        up,
        "lg n α + (lg n − (n−1)/n)(S β + S γ), n a power of 2",
        f"{THAKUR}; counted: blocks that have arrived at their rank are not sent again",
        sent=lambda n, *_: up(n) - share(n),
        added=lambda n, *_: up(n) - share(n),
        moved=lambda n, *_: n * (up(n) - share(n)),
        possible=powers_of_two,
    ),
    CostModel(
        "reduce_scatter",
        "butterfly",
        _if_folded(_HALVING.rounds, lambda n: down(n) + 2 + (1 if _mirrored(n) else 0)),
        "lg n α + (n−1)/n S β + (n−1)/n S γ, n a power of 2; for other n like recursive halving, plus α + S/n β from "
        "5 ranks on",
        "Träff 2005; counted: blocks arrive at bit-reversed ranks",
        sent=_if_folded(_HALVING.sent, lambda n: 1 + (in_pairs(n) + 1 + (1 if _mirrored(n) else 0)) / n),
        added=_HALVING.added,
        moved=_if_folded(_HALVING.moved, lambda n: n - 1 + (n - core(n) + _mirrored(n)) / n),
    ),
    CostModel(
        "gather",
        "linear-in-turns",
        twice_the_others,
        "2(n−1) α + (n−1)/n S β",
        "counted; ompi_coll_base_gather_intra_linear_sync: the root requests the blocks one after the other",
        sent=share,
        moved=share,
    ),
    CostModel(
        "barrier",
        "linear-at-once",
        two,
        "2 α",
        "counted: all send to rank 0 concurrently, and it answers all",
        messages=twice_the_others,
    ),
)
"""Their names differ from those of the textbook rows for the same op."""


LIBRARY_ROWS: Final = ROWS | {(row.op, row.algorithm): row for row in OF_LIBRARIES}
"""The rows of the libraries and of the textbook, by operation and algorithm."""


def formula_of(library: str, op: str, name: str, ranks: int) -> CostModel | None:
    """The cost model of the algorithm ``name`` of ``library`` on ``ranks`` ranks; None if no formula is known."""
    of_op = _OF_OPEN_MPI.get((op, name)) if library == "Open MPI" else None
    model_name = of_op or _BY_NAME.get(name, name.replace("_", "-"))
    row = LIBRARY_ROWS.get((op, model_name if isinstance(model_name, str) else model_name(ranks)))
    return row if row is not None and row.possible(ranks, 1, 0) else None


def _doubling_gather(ranks: int) -> str:
    """Open MPI's recursive doubling switches to Bruck if n is not a power of two."""
    return "recursive-doubling" if is_power(ranks) else "bruck"


def _neighbours(ranks: int) -> str:
    """Open MPI's neighbour exchange switches to the ring if n is odd."""
    return "ring" if ranks % 2 else "neighbour-exchange"


def _halved(ranks: int) -> str:
    """If n is not a power of two, each rank beyond it shares the reduction with a partner."""
    return "rabenseifner" if is_power(ranks) else "rabenseifner-in-halves"


_Named = str | Callable[[int], str]

_BY_NAME: Final[dict[str, _Named]] = {
    "basic_linear": "linear",
    "binary": "unsegmented-binary-tree",
    "binary_tree": "unsegmented-binary-tree",
    "binomial": "binomial-tree",
    "brucks": "bruck",
    "chain": "unsegmented-chain",  # a fan-out of 0 (default) makes one chain
    "k_dissemination": "dissemination",
    "knomial": "4-nomial-tree-at-once",
    "linear_nb": "linear",
    "modified_bruck": "bruck",
    "neighbor": _neighbours,
    "pipeline": "unsegmented-chain",
    "rabenseifner": _halved,
    "reduce_scatter_allgather": "rabenseifner",
    "reduce_scatter_gather": "rabenseifner",
    "scatter_allgather": "scatter-recursive-doubling",
    "scatter_allgather_ring": "scatter-ring",
    "scatter_recursive_doubling_allgather": "scatter-recursive-doubling",
    "scatter_ring_allgather": "scatter-ring",
    "scattered": "spread",
    "segmented_ring": "ring",  # without a segment size (default) it is the ring
    "tree": "binomial-tree",
}
"""The libraries' name of an algorithm → the name of our row, or a function of n that gives it. Names that are not
listed differ only in hyphens; names without a row are algorithms with unknown cost.
"""

_OF_OPEN_MPI: Final[dict[tuple[str, str], _Named]] = {
    ("all_gather", "recursive_doubling"): _doubling_gather,
    ("all_gather", "two_proc"): "direct",
    ("all_to_all", "linear"): "spread",
    ("all_to_all", "linear_sync"): "spread",
    ("all_to_all", "two_proc"): "pairwise",
    ("broadcast", "binomial"): "binomial-tree-at-once",
    ("gather", "linear_sync"): "linear-in-turns",
    ("barrier", "bruck"): "dissemination",
    ("barrier", "linear"): "linear-at-once",
}
"""Op and Open MPI's name, where the same name means another row than elsewhere."""
