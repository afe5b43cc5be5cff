"""The algorithms of MPI libraries under the libraries' own names, as rows of the textbook or as sums of such rows.

Nothing is added to theory here: where a library runs one algorithm of the textbook after another (a scatter, then an
all-gather), its cost is the sum of two rows that are counted, and where there is no such row there is no cost.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from busbw_analysis.theory.textbook import Textbook, textbook, up

Count = Callable[[int, int], float]
"""n ranks on k hosts → a number."""

_MPICH: Final = "MPICH"
_OPEN_MPI: Final = "Open MPI"


def formula_of(library: str, op: str, name: str, ranks: int) -> Textbook | None:
    """What ``op`` costs on ``ranks`` ranks by what ``library`` calls ``name``; None where no formula is known."""
    table = _BY_NAME.get((library, op), {})
    found = table.get(name)
    row = found(ranks) if callable(found) else None if found is None else textbook(op, found)
    return row if row is not None and row.possible(ranks, 1) else None


def one_after_another(op: str, first: Textbook, second: Textbook, algorithm: str) -> Textbook:
    """The cost of ``second`` after ``first``; S of both is that of ``op``."""
    return Textbook(
        op,
        algorithm,
        _sum(first.rounds, second.rounds),
        _sum(first.sent, second.sent),
        _sum(first.added, second.added),
        _sum(first.moved, second.moved),
        f"({first.formula}) + ({second.formula})",
        f"sum of the rows of {first.op} by {first.algorithm} and {second.op} by {second.algorithm}",
        lambda n, k: first.possible(n, k) and second.possible(n, k),
    )


def _sum(one: Count, two: Count) -> Count:
    return lambda n, k: one(n, k) + two(n, k)


def _row(op: str, algorithm: str) -> Textbook:
    row = textbook(op, algorithm)
    if row is None:
        message = f"there is no row of {op} by {algorithm}"
        raise LookupError(message)
    return row


def is_power(ranks: int) -> bool:
    """Whether n is a power of two."""
    return ranks & (ranks - 1) == 0


def _several(ranks: int, _hosts: int) -> bool:
    return ranks > 1


def _powers_of_two(ranks: int, _hosts: int) -> bool:
    return ranks > 1 and is_power(ranks)


def _nothing(_ranks: int, _hosts: int) -> float:
    return 0.0


def _others(ranks: int, _hosts: int) -> float:
    return ranks - 1


def _everywhere(row: Textbook) -> Callable[[int], Textbook]:
    return lambda _ranks: row


def _depth(ranks: int, _hosts: int) -> float:
    """Levels below the root of a binary tree that is filled level by level."""
    return ranks.bit_length() - 1


def _in_a_row(ranks: int, _hosts: int) -> float:
    """Messages in a row through that tree: two a level, one in a last level that has but one rank."""
    return 2 * _depth(ranks, 1) - (1 if is_power(ranks) else 0)


_LINEAR_BROADCAST = Textbook(
    "broadcast",
    "linear",
    lambda _n, _k: 1.0,
    _others,
    _nothing,
    _others,
    "α + (n−1) S β",
    "counted: the root sends S to every other rank, all messages under way at once",
    _several,
)
_LINEAR_REDUCE = replace(
    _LINEAR_BROADCAST, op="reduce", added=_others, formula="α + (n−1)(S β + S γ)", source="as the linear broadcast"
)
_CHAIN_BROADCAST = Textbook(
    "broadcast",
    "chain, not segmented",
    _others,
    _others,
    _nothing,
    _others,
    "(n−1)(α + S β)",
    "counted: one rank after the other passes on all of S",
    _several,
)
_CHAIN_REDUCE = replace(
    _CHAIN_BROADCAST, op="reduce", added=_others, formula="(n−1)(α + S β + S γ)", source="as the chain of a broadcast"
)
_TREE_BROADCAST = Textbook(
    "broadcast",
    "binary tree, not segmented",
    _depth,
    _in_a_row,
    _nothing,
    _others,
    "d α + c S β, d levels, c = 2 for each, 1 for the last where n is a power of 2",
    "counted: a rank sends all of S to one child and to the other",
    _several,
)
_TREE_REDUCE = replace(
    _TREE_BROADCAST,
    op="reduce",
    added=_in_a_row,
    formula="d α + c (S β + S γ), d levels, c = 2 for each, 1 for the last where n is a power of 2",
    source="as the tree of a broadcast",
)
_SCATTER_DOUBLING = one_after_another(
    "broadcast",
    _row("scatter", "binomial-tree"),
    _row("all_gather", "recursive-doubling"),
    "scatter, then recursive doubling",
)
_HALVING_GATHER = one_after_another(
    "reduce",
    _row("reduce_scatter", "recursive-halving"),
    _row("gather", "binomial-tree"),
    "recursive halving, then gather",
)
_DOUBLING_SCATTER = Textbook(
    "reduce_scatter",
    "recursive doubling",
    lambda n, _k: up(n),
    lambda n, _k: up(n) - (n - 1) / n,
    lambda n, _k: up(n) - (n - 1) / n,
    lambda n, _k: n * (up(n) - (n - 1) / n),
    "lg n α + (lg n − (n−1)/n)(S β + S γ), n a power of 2",
    "Thakur et al. 2005: what is already at home is sent no more",
    _powers_of_two,
)


def _knomial(ranks: int) -> Textbook | None:
    """A tree of radix 4: up to 4 ranks its root sends to all others; above, no formula was counted."""
    return _LINEAR_BROADCAST if ranks <= 4 else None


def _doubling_gather(ranks: int) -> Textbook:
    """Open MPI's own recursive doubling turns to Bruck's way where n is no power of two."""
    return _row("all_gather", "recursive-doubling" if is_power(ranks) else "bruck")


def _neighbours(ranks: int) -> Textbook:
    """Open MPI's own neighbour exchange turns to the ring where n is odd."""
    return _row("all_gather", "ring" if ranks % 2 else "neighbour-exchange")


def _doubling_barrier(ranks: int) -> Textbook:
    row = _row("barrier", "dissemination")
    if is_power(ranks):
        return replace(row, algorithm="recursive doubling", formula="lg n α", source="Thakur et al. 2005")
    return replace(
        row,
        algorithm="recursive doubling",
        rounds=lambda n, _k: n.bit_length() + 1,
        formula="(⌊lg n⌋ + 2) α",
        source="Thakur et al. 2005: the rest folds in before and hears afterwards",
    )


def _linear_barrier(_ranks: int) -> Textbook:
    return replace(
        _row("barrier", "dissemination"),
        algorithm="linear",
        rounds=lambda _n, _k: 2.0,
        formula="2 α",
        source="counted: every rank to rank 0 and back",
    )


_Named = str | Callable[[int], Textbook | None]

_BY_NAME: Final[dict[tuple[str, str], dict[str, _Named]]] = {
    (_OPEN_MPI, "all_reduce"): {
        "recursive_doubling": "recursive-doubling",
        "ring": "ring",
        "segmented_ring": "ring",  # without a segment size, as by default, it is the ring
        "rabenseifner": "rabenseifner",
    },
    (_OPEN_MPI, "all_gather"): {
        "bruck": "bruck",
        "recursive_doubling": _doubling_gather,
        "ring": "ring",
        "neighbor": _neighbours,
        "two_proc": "direct",
    },
    (_OPEN_MPI, "all_to_all"): {
        "linear": "spread",
        "pairwise": "pairwise",
        "modified_bruck": "bruck",
        "linear_sync": "spread",
        "two_proc": "pairwise",
    },
    (_OPEN_MPI, "broadcast"): {
        "basic_linear": _everywhere(_LINEAR_BROADCAST),
        "chain": _everywhere(_CHAIN_BROADCAST),  # a fan-out of 0, as by default, makes one chain
        "pipeline": _everywhere(_CHAIN_BROADCAST),
        "binary_tree": _everywhere(_TREE_BROADCAST),
        "binomial": "binomial-tree",
        "knomial": _knomial,
        "scatter_allgather": _everywhere(_SCATTER_DOUBLING),
        "scatter_allgather_ring": "scatter-ring",
    },
    (_OPEN_MPI, "reduce"): {
        "linear": _everywhere(_LINEAR_REDUCE),
        "chain": _everywhere(_CHAIN_REDUCE),
        "pipeline": _everywhere(_CHAIN_REDUCE),
        "binary": _everywhere(_TREE_REDUCE),
        "binomial": "binomial-tree",
        "rabenseifner": _everywhere(_HALVING_GATHER),
    },
    (_OPEN_MPI, "reduce_scatter"): {
        "recursive_doubling": _everywhere(_DOUBLING_SCATTER),
        "recursive_halving": "recursive-halving",
        # For a power of 2 each rank puts its blocks in the order of mirrored bits before, and then halves.
        "butterfly": "recursive-halving",
    },
    (_OPEN_MPI, "gather"): {"basic_linear": "linear", "binomial": "binomial-tree"},
    (_OPEN_MPI, "scatter"): {"basic_linear": "linear", "binomial": "binomial-tree", "linear_nb": "linear"},
    (_OPEN_MPI, "barrier"): {
        "linear": _linear_barrier,
        "recursive_doubling": _doubling_barrier,
        "bruck": "dissemination",
    },
    (_MPICH, "all_reduce"): {
        "recursive_doubling": "recursive-doubling",
        "reduce_scatter_allgather": "rabenseifner",
    },
    (_MPICH, "all_gather"): {"recursive_doubling": "recursive-doubling", "brucks": "bruck", "ring": "ring"},
    (_MPICH, "all_to_all"): {"scattered": "spread", "pairwise": "pairwise", "brucks": "bruck"},
    (_MPICH, "broadcast"): {
        "binomial": "binomial-tree",
        "scatter_recursive_doubling_allgather": _everywhere(_SCATTER_DOUBLING),
        "scatter_ring_allgather": "scatter-ring",
    },
    (_MPICH, "reduce"): {"binomial": "binomial-tree", "reduce_scatter_gather": _everywhere(_HALVING_GATHER)},
    (_MPICH, "reduce_scatter"): {"recursive_halving": "recursive-halving", "pairwise": "pairwise"},
    (_MPICH, "gather"): {"binomial": "binomial-tree"},
    (_MPICH, "scatter"): {"binomial": "binomial-tree"},
    (_MPICH, "barrier"): {"k_dissemination": "dissemination"},
}
"""Library and op → its own name of an algorithm → that of the textbook, or what makes the row from n."""
