"""All-reduce by recursive doubling and halving, trees and servers. Ring algorithms are in ``rings``."""

from collections.abc import Iterable
from itertools import permutations

from busbw.ops.algorithms.base import Round, Schedule, every_turn, joined, same, vectors
from busbw.ops.algorithms.exchanges import all_gather_pat, mirrored
from busbw.ops.algorithms.partners import core, distances, doubling, fold, halving, unfold
from busbw.ops.algorithms.rooted import SEGMENTS
from busbw.ops.algorithms.trees import down, down_the_binomial_tree, filled, twins, up, up_the_binomial_tree


def recursive_doubling(ranks: int) -> Schedule:
    """Each rank exchanges everything with partners at doubling distance; ranks beyond a power of two fold in before and
    receive the result afterwards (Thakur et al. 2005).
    """
    middle = core(ranks)
    rounds = every_turn(middle, distances(middle), lambda rank, far: same(rank, rank ^ far, (0,), adds=True))
    return _of(ranks, 1, fold(ranks, (0,)), rounds, unfold(ranks, (0,)))


def rabenseifner(ranks: int) -> Schedule:
    """Recursive halving to reduce, recursive doubling to gather, folded likewise (Rabenseifner 2004)."""
    middle = core(ranks)
    whole = tuple(range(middle))
    return _of(ranks, middle, fold(ranks, whole), halving(middle), doubling(middle), unfold(ranks, whole))


def binomial(ranks: int) -> Schedule:
    """Up a binomial tree to rank 0 and down again (Chan et al. 2007)."""
    return _of(ranks, 1, up_the_binomial_tree(ranks), down_the_binomial_tree(ranks))


def tree(ranks: int, children: int) -> Schedule:
    """Up a tree with ``children`` children per rank to rank 0 and down again, level by level."""
    trees = [filled(ranks, children)]
    return _of(ranks, 1, up(trees, 1), down(trees, 1))


def double_tree(ranks: int, segments: int = SEGMENTS) -> Schedule:
    """Up two trees and down again, each with half of the data in ``segments`` segments; a rank with children in one
    tree is a leaf in the other (Sanders et al. 2009).
    """
    both = twins(range(ranks))
    return _of(ranks, 2 * segments, up(both, segments), down(both, segments))


def reduce_scatter_all_gather(ranks: int) -> Schedule:
    """PAT reduce-scatter, then PAT all-gather."""
    gathering = all_gather_pat(ranks)
    return _of(ranks, ranks, mirrored(gathering).rounds, gathering.rounds)


def parameter_server(ranks: int) -> Schedule:
    """All send to rank 0, which adds up and sends back; rank 0 is the bottleneck."""
    others = range(1, ranks)
    up = tuple(same(rank, 0, (0,), adds=True) for rank in others)
    return _of(ranks, 1, [up, tuple(same(0, rank, (0,)) for rank in others)])


def sharded_parameter_server(ranks: int) -> Schedule:
    """Every rank is the server of one block."""
    pairs = list(permutations(range(ranks), 2))
    served = tuple(same(rank, to, (to,), adds=True) for rank, to in pairs)
    return _of(ranks, ranks, [served, tuple(same(rank, to, (rank,)) for rank, to in pairs)])


def direct(ranks: int) -> Schedule:
    """Every rank sends everything to all others at once."""
    pairs = list(permutations(range(ranks), 2))
    return _of(ranks, 1, [tuple(same(rank, to, (0,), adds=True) for rank, to in pairs)])


def _of(ranks: int, blocks: int, *parts: Iterable[Round]) -> Schedule:
    whole = vectors(ranks, blocks)
    return Schedule(ranks, blocks, whole, joined(*parts), whole)
