"""Explicit algorithms that run over send/recv, besides the library's own, by operation and name."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from busbw.ops.algorithms import all_reduce, exchanges, rings, rooted
from busbw.ops.algorithms.base import Schedule, is_power_of_two

LIBRARY, ALL_ALGORITHMS = "library", "all"
"""In a plan: the library's own algorithm, and all algorithms."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An explicit algorithm.

    schedule: ``schedule(n)`` for n ranks that ``fit``; with ``levels``, also the number of ranks per host
    needs: its requirement in words (None: no requirement)
    """

    summary: str
    schedule: Callable[..., Schedule]
    fit: Callable[[int], bool] = lambda _ranks: True
    needs: str | None = None
    levels: bool = False

    def refuse(self, ranks: int) -> str | None:
        """Why this algorithm cannot run on that many ranks; None if it can."""
        return None if self.fit(ranks) else f"it needs {self.needs}; the group has {ranks}"

    def on(self, ranks: int, hosts: int) -> Schedule:
        """The schedule for ``ranks`` ranks on ``hosts`` hosts, equally many on each."""
        return self.schedule(ranks, ranks // hosts) if self.levels else self.schedule(ranks)


_in_levels = partial(Algorithm, needs="several hosts with equal rank counts", levels=True)
_of_powers_of_two = partial(Algorithm, fit=is_power_of_two, needs="a power-of-two number of ranks")
_of_even_ranks = partial(Algorithm, fit=lambda ranks: ranks % 2 == 0, needs="an even number of ranks")


def _reversed(all_gather: Callable[..., Schedule]) -> Callable[..., Schedule]:
    return lambda *ranks: exchanges.mirrored(all_gather(*ranks))


ALGORITHMS: dict[str, dict[str, Algorithm]] = {
    "all_reduce": {
        "ring": Algorithm("ring reduce-scatter, then ring all-gather", rings.ring),
        "segmented-ring": Algorithm("ring with every block in 4 segments, two in flight", rings.segmented),
        "double-ring": Algorithm("two rings in opposite directions, each with half of the data", rings.both_ways),
        "multi-ring": _in_levels(
            "one ring per rank of a host, each leaving the host at another rank", rings.across_hosts
        ),
        "recursive-doubling": Algorithm(
            "exchanges everything with partners at doubling distance", all_reduce.recursive_doubling
        ),
        "rabenseifner": Algorithm("recursive halving, then recursive doubling", all_reduce.rabenseifner),
        "binomial-tree": Algorithm("reduces up a binomial tree, broadcasts down it", all_reduce.binomial),
        "binary-tree": Algorithm(
            "reduces up a binary tree, broadcasts down it", lambda ranks: all_reduce.tree(ranks, 2)
        ),
        "4-ary-tree": Algorithm("reduces up a 4-ary tree, broadcasts down it", lambda ranks: all_reduce.tree(ranks, 4)),
        "double-tree": Algorithm(
            "reduces up and broadcasts down two trees, each with half of the data in 8 segments", all_reduce.double_tree
        ),
        "reduce-scatter-all-gather": Algorithm(
            "PAT reduce-scatter, then PAT all-gather", all_reduce.reduce_scatter_all_gather
        ),
        "parameter-server": Algorithm("all send to rank 0, which sends the sum back", all_reduce.parameter_server),
        "sharded-parameter-server": Algorithm("each rank serves one block", all_reduce.sharded_parameter_server),
        "direct": Algorithm("every rank sends everything to all others at once", all_reduce.direct),
        "hierarchical": _in_levels("rings within hosts, between hosts, and within hosts again", rings.in_two_levels),
    },
    "all_gather": {
        "ring": Algorithm("every block goes around once", exchanges.all_gather_ring),
        "bruck": Algorithm("sends everything to ranks at doubling distance", exchanges.all_gather_bruck),
        "recursive-doubling": _of_powers_of_two(
            "exchanges everything with partners at doubling distance", exchanges.all_gather_recursive_doubling
        ),
        "neighbour-exchange": _of_even_ranks(
            "two blocks to each neighbour in turn", exchanges.all_gather_neighbour_exchange
        ),
        "pairwise": Algorithm("one partner per round", exchanges.all_gather_pairwise),
        "pat": Algorithm("one binomial tree per block, farthest ranks first", exchanges.all_gather_pat),
        "direct": Algorithm("every block to all ranks at once", exchanges.all_gather_direct),
        "hierarchical": _in_levels("rings between hosts, then rings within hosts", exchanges.all_gather_two_level),
    },
    "reduce_scatter": {
        "ring": Algorithm("every partial sum goes around once", exchanges.reduce_scatter_ring),
        "recursive-halving": Algorithm(
            "exchanges halves with partners at halving distance", exchanges.reduce_scatter_recursive_halving
        ),
        "pairwise": Algorithm("one partner per round", exchanges.reduce_scatter_pairwise),
        "bruck": Algorithm("Bruck's all-gather in reverse", _reversed(exchanges.all_gather_bruck)),
        "neighbour-exchange": _of_even_ranks(
            "the neighbour-exchange all-gather in reverse", _reversed(exchanges.all_gather_neighbour_exchange)
        ),
        "pat": Algorithm("one binomial tree per block, nearest ranks first", _reversed(exchanges.all_gather_pat)),
        "direct": Algorithm("every block to its rank at once", _reversed(exchanges.all_gather_direct)),
        "hierarchical": _in_levels(
            "rings within hosts, then rings between hosts", _reversed(exchanges.all_gather_two_level)
        ),
    },
    "all_to_all": {
        "pairwise": Algorithm("one partner per round", exchanges.all_to_all_pairwise),
        "spread": Algorithm("all messages at once", exchanges.all_to_all_spread),
        "bruck": Algorithm("blocks travel by the bits of their distance", exchanges.all_to_all_bruck),
        "two-level": _in_levels(
            "within hosts first, then one message per pair of hosts and rank", exchanges.all_to_all_two_level
        ),
    },
    "broadcast": {
        "binomial-tree": Algorithm("every rank that has the data forwards it", rooted.broadcast_binomial),
        "scatter-ring": Algorithm("binomial scatter, then ring all-gather", rooted.broadcast_scattered),
        "chain": Algorithm("from rank to rank in 8 segments", rooted.broadcast_chain),
        "binary-tree": Algorithm("down a binary tree in 8 segments", rooted.broadcast_tree),
        "double-tree": Algorithm(
            "down two trees, each with half of the data in 8 segments", rooted.broadcast_double_tree
        ),
        "hierarchical": _in_levels(
            "scatter on the first host, trees between hosts, rings within hosts", rooted.broadcast_two_level
        ),
    },
    "reduce": {
        "binomial-tree": Algorithm("up a binomial tree", rooted.reduce_binomial),
        "rabenseifner": Algorithm("recursive halving, then binomial gather", rooted.reduce_rabenseifner),
    },
    "gather": {
        "binomial-tree": Algorithm("up a binomial tree, messages growing", rooted.gather_binomial),
        "linear": Algorithm("every rank to rank 0", rooted.gather_linear),
    },
    "scatter": {
        "binomial-tree": Algorithm("down a binomial tree, messages shrinking", rooted.scatter_binomial),
        "linear": Algorithm("rank 0 to every rank", rooted.scatter_linear),
    },
    "barrier": {
        "dissemination": Algorithm("signals ranks at doubling distance", rooted.barrier_dissemination),
        "linear": Algorithm("every rank signals rank 0, which then signals every rank", rooted.barrier_linear),
        "ring": Algorithm("a ring all-reduce of one element", lambda ranks: rooted.barrier_of(rings.ring(ranks))),
        "binomial-tree": Algorithm(
            "a binomial-tree all-reduce of one element", lambda ranks: rooted.barrier_of(all_reduce.binomial(ranks))
        ),
        "recursive-doubling": Algorithm(
            "a recursive-doubling all-reduce of one element",
            lambda ranks: rooted.barrier_of(all_reduce.recursive_doubling(ranks)),
        ),
    },
}
"""Operation → name → algorithm. ``busbw_analysis.models.textbook`` has their costs, and its tests count them."""
