"""The algorithms that a user can measure over send/recv beside the library's own, by operation and name."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from busbw.ops.algorithms import all_reduce, exchanges, rings, rooted
from busbw.ops.algorithms.base import Schedule, is_power_of_two

LIBRARY, ALL_ALGORITHMS = "library", "all"
"""In a plan: the library's own, and every one that there is."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """``schedule(n)`` for n ranks that ``fit``; where it has ``levels``, it is given how many of them are on each host,
    too. ``takes`` says in words what it needs (None: nothing).
    """

    summary: str
    schedule: Callable[..., Schedule]
    fit: Callable[[int], bool] = lambda _ranks: True
    takes: str | None = None
    levels: bool = False

    def refuse(self, ranks: int) -> str | None:
        """Why there is none for so many ranks; None where there is."""
        return None if self.fit(ranks) else f"it takes {self.takes}; the group has {ranks}"

    def on(self, ranks: int, hosts: int) -> Schedule:
        """The schedule of ``ranks`` ranks on ``hosts`` hosts, as many on each."""
        return self.schedule(ranks, ranks // hosts) if self.levels else self.schedule(ranks)


_in_levels = partial(Algorithm, takes="several hosts, as many ranks on each", levels=True)
_of_powers_of_two = partial(Algorithm, fit=is_power_of_two, takes="a power of two of ranks")
_of_even_ranks = partial(Algorithm, fit=lambda ranks: ranks % 2 == 0, takes="an even number of ranks")


def _scattering(gathering: Callable[..., Schedule]) -> Callable[..., Schedule]:
    return lambda *ranks: exchanges.mirrored(gathering(*ranks))


ALGORITHMS: dict[str, dict[str, Algorithm]] = {
    "all_reduce": {
        "ring": Algorithm("once around to add, once to hand out", rings.ring),
        "segmented-ring": Algorithm("a ring with every block in 4 segments, two under way", rings.segmented),
        "double-ring": Algorithm("two rings with half of the data, in opposite directions", rings.both_ways),
        "multi-ring": _in_levels(
            "as many rings as ranks on a host, each leaves it at another rank",
            rings.across_hosts,
        ),
        "recursive-doubling": Algorithm(
            "everything to a partner twice as far each time", all_reduce.recursive_doubling
        ),
        "rabenseifner": Algorithm("halves to partners to add, doubled to hand out", all_reduce.rabenseifner),
        "binomial-tree": Algorithm("up a binomial tree and down again", all_reduce.binomial),
        "binary-tree": Algorithm("up a binary tree and down again", lambda ranks: all_reduce.tree(ranks, 2)),
        "4-ary-tree": Algorithm("up a tree of four children and down again", lambda ranks: all_reduce.tree(ranks, 4)),
        "double-tree": Algorithm(
            "up two trees with half of the data in 8 segments, and down again", all_reduce.double_tree
        ),
        "reduce-scatter-all-gather": Algorithm(
            "one after the other, both by trees that reach far last and first",
            lambda ranks: all_reduce.in_two_parts(
                exchanges.mirrored(exchanges.gathering_trees(ranks)), exchanges.gathering_trees(ranks)
            ),
        ),
        "parameter-server": Algorithm("all to rank 0 and back", all_reduce.parameter_server),
        "sharded-parameter-server": Algorithm("each rank serves one block", all_reduce.sharded_parameter_server),
        "direct": Algorithm("everything to everybody at once", all_reduce.direct),
        "hierarchical": _in_levels(
            "rings on every host, rings between them, rings on every host",
            rings.in_two_levels,
        ),
    },
    "all_gather": {
        "ring": Algorithm("every block once around", exchanges.gathering_ring),
        "bruck": Algorithm("all that is there to ranks twice as far each time", exchanges.gathering_bruck),
        "recursive-doubling": _of_powers_of_two(
            "all that is there to a partner twice as far each time", exchanges.gathering_recursive_doubling
        ),
        "neighbour-exchange": _of_even_ranks("two blocks to either neighbour in turns", exchanges.gathering_neighbours),
        "pairwise": Algorithm("one partner after the other", exchanges.gathering_pairwise),
        "pat": Algorithm("every block down a tree of its own, far first, together", exchanges.gathering_trees),
        "direct": Algorithm("every block to everybody at once", exchanges.gathering_direct),
        "hierarchical": _in_levels(
            "rings between hosts, then rings on every host",
            exchanges.gathering_in_two_levels,
        ),
    },
    "reduce_scatter": {
        "ring": Algorithm("every block once around, growing", exchanges.scattering_ring),
        "recursive-halving": Algorithm(
            "half of what is left to a partner half as far each time",
            exchanges.scattering_recursive_halving,
        ),
        "pairwise": Algorithm("one partner after the other", exchanges.scattering_pairwise),
        "bruck": Algorithm("Bruck's all-gather the other way round", _scattering(exchanges.gathering_bruck)),
        "neighbour-exchange": _of_even_ranks(
            "the all-gather with neighbours the other way round", _scattering(exchanges.gathering_neighbours)
        ),
        "pat": Algorithm(
            "every block up a tree of its own, far last, together", _scattering(exchanges.gathering_trees)
        ),
        "direct": Algorithm("every block to its rank at once", _scattering(exchanges.gathering_direct)),
        "hierarchical": _in_levels(
            "rings on every host, then rings between hosts",
            _scattering(exchanges.gathering_in_two_levels),
        ),
    },
    "all_to_all": {
        "pairwise": Algorithm("one partner after the other", exchanges.exchange_pairwise),
        "spread": Algorithm("all messages at once", exchanges.exchange_spread),
        "bruck": Algorithm("blocks travel by the bits of their distance", exchanges.exchange_bruck),
        "two-level": _in_levels(
            "on every host to the place, then from host to host in one message a pair",
            exchanges.exchange_in_two_levels,
        ),
    },
    "broadcast": {
        "binomial-tree": Algorithm("whoever has it sends it on", rooted.broadcast_binomial),
        "scatter-ring": Algorithm("a binomial scatter, then a ring", rooted.broadcast_scattered),
        "chain": Algorithm("from rank to rank in 8 segments", rooted.broadcast_chain),
        "binary-tree": Algorithm("down a binary tree in 8 segments", rooted.broadcast_tree),
        "double-tree": Algorithm("down two trees with half of the data in 8 segments", rooted.broadcast_double_tree),
        "hierarchical": _in_levels(
            "a scatter on the first host, trees between hosts, rings on every host",
            rooted.broadcast_in_two_levels,
        ),
    },
    "reduce": {
        "binomial-tree": Algorithm("up a binomial tree", rooted.reduce_binomial),
        "rabenseifner": Algorithm("halves to partners to add, then a binomial gather", rooted.reduce_rabenseifner),
    },
    "gather": {
        "binomial-tree": Algorithm("up a binomial tree, growing", rooted.gather_binomial),
        "linear": Algorithm("every rank to rank 0", rooted.gather_linear),
    },
    "scatter": {
        "binomial-tree": Algorithm("down a binomial tree, shrinking", rooted.scatter_binomial),
        "linear": Algorithm("rank 0 to every rank", rooted.scatter_linear),
    },
    "barrier": {
        "dissemination": Algorithm("a word to ranks twice as far each time", rooted.barrier_dissemination),
        "linear": Algorithm("rank 0 hears one after the other, then tells one after the other", rooted.barrier_linear),
        "ring": Algorithm("an all-reduce of one element by a ring", lambda ranks: rooted.barrier_of(rings.ring(ranks))),
        "binomial-tree": Algorithm(
            "an all-reduce of one element by a binomial tree",
            lambda ranks: rooted.barrier_of(all_reduce.binomial(ranks)),
        ),
        "recursive-doubling": Algorithm(
            "an all-reduce of one element by recursive doubling",
            lambda ranks: rooted.barrier_of(all_reduce.recursive_doubling(ranks)),
        ),
    },
}
"""Operation → name → algorithm. What each costs is in ``busbw_analysis.models.textbook``, and counted in its tests."""
