"""The algorithms of MPI libraries under the libraries' own names: each a row of the textbook or of ``library_rows``.

Nothing is added to theory here: where there is no row of what a library runs on n ranks, there is no cost.
"""

from collections.abc import Callable
from typing import Final

from busbw_analysis.models.costs import CostModel
from busbw_analysis.models.counts import is_power
from busbw_analysis.models.library_rows import library_row

_MPICH: Final = "MPICH"
_OPEN_MPI: Final = "Open MPI"


def formula_of(library: str, op: str, name: str, ranks: int) -> CostModel | None:
    """What ``op`` costs on ``ranks`` ranks by what ``library`` calls ``name``; None where no formula is known."""
    found = _BY_NAME.get((library, op), {}).get(name)
    if found is None:
        return None
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
        "recursive_doubling": "recursive-doubling",
        "ring": "ring",
        "segmented_ring": "ring",  # without a segment size, as by default, it is the ring
        "rabenseifner": _halved,
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
        "linear": "linear",
        "chain": "unsegmented-chain",
        "pipeline": "unsegmented-chain",
        "binary": "unsegmented-binary-tree",
        "binomial": "binomial-tree",
        "rabenseifner": _halved,
    },
    (_OPEN_MPI, "reduce_scatter"): {
        "recursive_doubling": "recursive-doubling",
        "recursive_halving": "recursive-halving",
        "butterfly": "butterfly",
    },
    (_OPEN_MPI, "gather"): {
        "basic_linear": "linear",
        "binomial": "binomial-tree",
        "linear_sync": "linear-in-turns",
    },
    (_OPEN_MPI, "scatter"): {"basic_linear": "linear", "binomial": "binomial-tree", "linear_nb": "linear"},
    (_OPEN_MPI, "barrier"): {
        "linear": "linear-at-once",
        "recursive_doubling": "recursive-doubling",
        "bruck": "dissemination",
        "tree": "binomial-tree",
    },
    (_MPICH, "all_reduce"): {
        "recursive_doubling": "recursive-doubling",
        "reduce_scatter_allgather": "rabenseifner",
    },
    (_MPICH, "all_gather"): {"recursive_doubling": "recursive-doubling", "brucks": "bruck", "ring": "ring"},
    (_MPICH, "all_to_all"): {"scattered": "spread", "pairwise": "pairwise", "brucks": "bruck"},
    (_MPICH, "broadcast"): {
        "binomial": "binomial-tree",
        "scatter_recursive_doubling_allgather": "scatter-recursive-doubling",
        "scatter_ring_allgather": "scatter-ring",
    },
    (_MPICH, "reduce"): {"binomial": "binomial-tree", "reduce_scatter_gather": "rabenseifner"},
    (_MPICH, "reduce_scatter"): {"recursive_halving": "recursive-halving", "pairwise": "pairwise"},
    (_MPICH, "gather"): {"binomial": "binomial-tree"},
    (_MPICH, "scatter"): {"binomial": "binomial-tree"},
    (_MPICH, "barrier"): {"k_dissemination": "dissemination"},
}
"""Library and op → its own name of an algorithm → that of the textbook, or what makes the row from n."""
