"""The algorithms of MPI libraries under the libraries' own names: each a row of the textbook, or of those that cannot
be measured over send/recv here, which are counted like those of the textbook.

A test builds the schedule of every row marked as counted, executes it for 2 to 64 ranks and holds the row against it.
Where there is no row of what a library runs on n ranks, there is no cost.
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
_AT_ONCE: Final = (
    f"{_TOPOLOGY}; coll_base_bcast.c: a rank sends to all of its children at once, and they share its link"
)
_RADIX: Final = 4
"""Of the k-nomial tree: coll_tuned_bcast_algorithm_knomial_radix, as by default."""


def one_after_another(op: str, first: CostModel, second: CostModel, algorithm: str) -> CostModel:
    """The cost of ``second`` after ``first``; S of both is that of ``op``."""

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
    """Messages in a row through a binary tree that is filled level by level: two a level, one in the last
    where all first children come before any second one and there are no more than those.
    """
    deepest = down(ranks)
    return 2 * deepest - (1 if 2 * (ranks - (1 << deepest) + 1) <= 1 << deepest else 0)


def _down_the_k_nomial_tree(ranks: int) -> list[int]:
    """How many messages each rank sends at once that stands on the way from the root to who hears last: from each to
    its child with most ranks below.
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
    """Ranks of the core whose number is another one with its bits in mirrored order."""
    return core(ranks) - (1 << -(-down(ranks) // 2))


def _with_sums(broadcast: CostModel, formula: str) -> CostModel:
    """The same the other way round, adding up all that comes."""
    return replace(broadcast, op="reduce", added=broadcast.sent, formula=formula)


def _if_folded(power: Count, folded: Callable[[int], float]) -> Count:
    return lambda n, *where: power(n, *where) if is_power(n) else folded(n)


_broadcast = partial(CostModel, "broadcast", moved=others)
_LINEAR = _broadcast("linear", one, "α + (n−1) S β", "counted: all messages at once", sent=others, messages=others)
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
    source="counted; ompi/mca/coll/base: of two ranks of which one is beyond the power of two each adds up one half",
    added=lambda n, *_: share(core(n)) + folds(n, 0, 0.5),
)

OF_LIBRARIES: Final[tuple[CostModel, ...]] = (
    _in_halves(
        "all_reduce",
        rounds=lambda n, *_: folds(n, 2 * up(n), 2 * down(n) + 3),
        formula="2 lg n α + 2(n−1)/n S β + (n−1)/n S γ; for other n with 2^⌊lg n⌋ in place of n, and 3 α + 2 S β + "
        "S/2 γ more",
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
        "d α + Σ S β, d ranks that send on the longest way, Σ their children; 3 d(d+1)/2 for n = 4^d",
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
        formula="2 lg n α + 2(n−1)/n S β + (n−1)/n S γ; for other n with 2^⌊lg n⌋ in place of n, and 2 α + S β + S/2 γ "
        "more",
        sent=lambda n, *_: 2 * share(core(n)) + folds(n, 0, 1),
        moved=lambda n, *_: core(n) - 1 + below(core(n)) + 1.5 * (n - core(n)),
    ),
    CostModel(
        "reduce_scatter",
        "recursive-doubling",
        up,
        "lg n α + (lg n − (n−1)/n)(S β + S γ), n a power of 2",
        f"{THAKUR}; counted: what is already at home is sent no more",
        sent=lambda n, *_: up(n) - share(n),
        added=lambda n, *_: up(n) - share(n),
        moved=lambda n, *_: n * (up(n) - share(n)),
        possible=powers_of_two,
    ),
    CostModel(
        "reduce_scatter",
        "butterfly",
        _if_folded(_HALVING.rounds, lambda n: down(n) + 2 + (1 if _mirrored(n) else 0)),
        "lg n α + (n−1)/n S β + (n−1)/n S γ, n a power of 2; for other n as recursive halving, and α + S/n β more from "
        "5 ranks on",
        "Träff 2005; counted: blocks come home by the mirrored bits of the ranks",
        sent=_if_folded(_HALVING.sent, lambda n: 1 + (in_pairs(n) + 1 + (1 if _mirrored(n) else 0)) / n),
        added=_HALVING.added,
        moved=_if_folded(_HALVING.moved, lambda n: n - 1 + (n - core(n) + _mirrored(n)) / n),
    ),
    CostModel(
        "gather",
        "linear-in-turns",
        twice_the_others,
        "2(n−1) α + (n−1)/n S β",
        "counted; ompi_coll_base_gather_intra_linear_sync: the root asks one rank after the other",
        sent=share,
        moved=share,
    ),
    CostModel(
        "barrier",
        "linear-at-once",
        two,
        "2 α",
        "counted: all to rank 0 at once, and back",
        messages=twice_the_others,
    ),
)
"""Each has another name than the rows of the textbook for the same op."""


_ROWS: Final = ROWS | {(row.op, row.algorithm): row for row in OF_LIBRARIES}


def library_row(op: str, algorithm: str) -> CostModel | None:
    """The row of an algorithm of the libraries or of the textbook; None for an unknown one."""
    return _ROWS.get((op, algorithm))


_MPICH: Final = "MPICH"
_OPEN_MPI: Final = "Open MPI"


def formula_of(library: str, op: str, name: str, ranks: int) -> CostModel | None:
    """What ``op`` costs on ``ranks`` ranks by what ``library`` calls ``name``; None where no formula is known."""
    found = _BY_NAME.get((library, op), {}).get(name, name.replace("_", "-"))
    row = library_row(op, found if isinstance(found, str) else found(ranks))
    return row if row is not None and row.possible(ranks, 1, 0) else None


def _doubling_gather(ranks: int) -> str:
    """Open MPI's own recursive doubling turns to Bruck's way where n is no power of two."""
    return "recursive-doubling" if is_power(ranks) else "bruck"


def _neighbours(ranks: int) -> str:
    """Open MPI's own neighbour exchange turns to the ring where n is odd."""
    return "ring" if ranks % 2 else "neighbour-exchange"


def _halved(ranks: int) -> str:
    """Where n is no power of two, each two ranks of which one is beyond it share the work of both."""
    return "rabenseifner" if is_power(ranks) else "rabenseifner-in-halves"


_Named = str | Callable[[int], str]

_BY_NAME: Final[dict[tuple[str, str], dict[str, _Named]]] = {
    (_OPEN_MPI, "all_reduce"): {
        "segmented_ring": "ring",  # without a segment size, as by default, it is the ring
        "rabenseifner": _halved,
    },
    (_OPEN_MPI, "all_gather"): {
        "recursive_doubling": _doubling_gather,
        "neighbor": _neighbours,
        "two_proc": "direct",
    },
    (_OPEN_MPI, "all_to_all"): {
        "linear": "spread",
        "modified_bruck": "bruck",
        "linear_sync": "spread",
        "two_proc": "pairwise",
    },
    (_OPEN_MPI, "broadcast"): {
        "basic_linear": "linear",
        "chain": "unsegmented-chain",  # a fan-out of 0, as by default, makes one chain
        "pipeline": "unsegmented-chain",
        "binary_tree": "unsegmented-binary-tree",
        "binomial": "binomial-tree-at-once",
        "knomial": "4-nomial-tree-at-once",
        "scatter_allgather": "scatter-recursive-doubling",
        "scatter_allgather_ring": "scatter-ring",
    },
    (_OPEN_MPI, "reduce"): {
        "chain": "unsegmented-chain",
        "pipeline": "unsegmented-chain",
        "binary": "unsegmented-binary-tree",
        "binomial": "binomial-tree",
        "rabenseifner": _halved,
    },
    (_OPEN_MPI, "gather"): {
        "basic_linear": "linear",
        "binomial": "binomial-tree",
        "linear_sync": "linear-in-turns",
    },
    (_OPEN_MPI, "scatter"): {"basic_linear": "linear", "binomial": "binomial-tree", "linear_nb": "linear"},
    (_OPEN_MPI, "barrier"): {"linear": "linear-at-once", "bruck": "dissemination", "tree": "binomial-tree"},
    (_MPICH, "all_reduce"): {"reduce_scatter_allgather": "rabenseifner"},
    (_MPICH, "all_gather"): {"brucks": "bruck"},
    (_MPICH, "all_to_all"): {"scattered": "spread", "brucks": "bruck"},
    (_MPICH, "broadcast"): {
        "binomial": "binomial-tree",
        "scatter_recursive_doubling_allgather": "scatter-recursive-doubling",
        "scatter_ring_allgather": "scatter-ring",
    },
    (_MPICH, "reduce"): {"binomial": "binomial-tree", "reduce_scatter_gather": "rabenseifner"},
    (_MPICH, "gather"): {"binomial": "binomial-tree"},
    (_MPICH, "scatter"): {"binomial": "binomial-tree"},
    (_MPICH, "barrier"): {"k_dissemination": "dissemination"},
}
"""Library and op → its own name of an algorithm → that of the textbook, or what makes the row from n. Names that are
not here are the same but for hyphens; those that no row has are of algorithms whose cost is not known.
"""
