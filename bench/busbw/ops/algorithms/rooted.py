"""Broadcast, reduce, gather and scatter with root 0, and the barrier."""

from collections.abc import Iterable, Iterator

from busbw.ops.algorithms.base import NOTHING, Round, Schedule, Slots, every_turn, joined, own_blocks, same, vectors
from busbw.ops.algorithms.partners import core, distances, fold, halving
from busbw.ops.algorithms.rings import around_every_host, hosts_of
from busbw.ops.algorithms.trees import chain, down, down_the_binomial_tree, filled, twins, up_the_binomial_tree

SEGMENTS = 8
"""Segments of a chain or tree: enough to overlap, few enough to stay large."""


def broadcast_binomial(ranks: int) -> Schedule:
    """Every rank that has the data forwards it; their number doubles in each round (Chan et al. 2007)."""
    return _broadcast(ranks, 1, down_the_binomial_tree(ranks))


def broadcast_scattered(ranks: int) -> Schedule:
    """A binomial scatter, then a ring all-gather (van de Geijn: Barnett et al. 1994)."""
    return _broadcast(ranks, ranks, _scattering_tree(ranks), around_every_host(ranks, ranks))


def broadcast_chain(ranks: int) -> Schedule:
    """From each rank to the next one, in pipelined segments."""
    return _broadcast(ranks, SEGMENTS, down([chain(ranks)], SEGMENTS))


def broadcast_tree(ranks: int) -> Schedule:
    """Down a binary tree, in pipelined segments."""
    return _broadcast(ranks, SEGMENTS, down([filled(ranks, 2)], SEGMENTS))


def broadcast_double_tree(ranks: int) -> Schedule:
    """Rank 0 sends each half of the data down one of two trees of all others, in segments; a rank with children in
    one tree is a leaf in the other (Sanders et al. 2009).
    """
    trees = twins(range(1, ranks), above=[0]) if ranks > 1 else ((), ())
    return _broadcast(ranks, 2 * SEGMENTS, down(trees, SEGMENTS))


def broadcast_two_level(ranks: int, on_host: int) -> Schedule:
    """A binomial scatter on the first host, binomial trees between ranks with the same local rank, and a ring
    all-gather on every host, so that each NIC of a host carries its share. Raises ValueError unless ``on_host``
    divides ``ranks``.
    """
    between = (
        tuple(
            same(message.source * on_host + place, message.to * on_host + place, (place,))
            for message in messages
            for place in range(on_host)
        )
        for messages in down_the_binomial_tree(hosts_of(ranks, on_host))
    )
    inside = around_every_host(ranks, on_host)
    return _broadcast(ranks, on_host, _scattering_tree(on_host), between, inside)


def _broadcast(ranks: int, blocks: int, *parts: Iterable[Round]) -> Schedule:
    return Schedule(ranks, blocks, _from_root(ranks, blocks), joined(*parts), vectors(ranks, blocks))


def _from_root(ranks: int, blocks: int) -> tuple[Slots, ...]:
    return (tuple(range(blocks)), *[(NOTHING,) * blocks] * (ranks - 1))


def reduce_binomial(ranks: int) -> Schedule:
    """Reduction up a binomial tree to rank 0 (Chan et al. 2007)."""
    whole = vectors(ranks, 1)
    return Schedule(ranks, 1, whole, joined(up_the_binomial_tree(ranks)), _at_root(ranks, (0,)))


def reduce_rabenseifner(ranks: int) -> Schedule:
    """Recursive halving to reduce, then a binomial gather to rank 0; ranks beyond a power of two fold in before
    (Rabenseifner 2004).
    """
    middle = core(ranks)
    whole = tuple(range(middle))
    rounds = joined(fold(ranks, whole), halving(middle), _gathering_tree(middle))
    return Schedule(ranks, middle, vectors(ranks, middle), rounds, _at_root(ranks, whole))


def scatter_binomial(ranks: int) -> Schedule:
    """Every rank that holds other ranks' blocks forwards half of them (Chan et al. 2007)."""
    return _scatter(ranks, _scattering_tree(ranks))


def scatter_linear(ranks: int) -> Schedule:
    """Rank 0 sends every block directly."""
    return _scatter(ranks, [tuple(same(0, rank, (rank,)) for rank in range(1, ranks))])


def _scatter(ranks: int, rounds: Iterable[Round]) -> Schedule:
    ends = tuple((rank,) for rank in range(ranks))
    return Schedule(ranks, ranks, _from_root(ranks, ranks), joined(rounds), ends)


def _scattering_tree(ranks: int) -> Iterator[Round]:
    for step in reversed(distances(ranks)):
        yield tuple(
            same(rank, rank + step, _from(rank + step, step, ranks)) for rank in range(0, ranks - step, 2 * step)
        )


def gather_binomial(ranks: int) -> Schedule:
    """A binomial scatter in reverse."""
    return _gather(ranks, _gathering_tree(ranks))


def _gathering_tree(ranks: int) -> Iterator[Round]:
    for step in distances(ranks):
        yield tuple(same(rank, rank - step, _from(rank, step, ranks)) for rank in range(step, ranks, 2 * step))


def gather_linear(ranks: int) -> Schedule:
    """Every rank sends its block to rank 0."""
    return _gather(ranks, [tuple(same(rank, 0, (rank,)) for rank in range(1, ranks))])


def _gather(ranks: int, rounds: Iterable[Round]) -> Schedule:
    return Schedule(ranks, ranks, own_blocks(ranks), joined(rounds), _at_root(ranks, tuple(range(ranks))))


def barrier_dissemination(ranks: int) -> Schedule:
    """In each round a rank signals the rank at doubling distance (Hensgen et al. 1988)."""
    rounds = every_turn(ranks, distances(ranks), lambda rank, step: same(rank, (rank + step) % ranks, ()))
    return _barrier(ranks, rounds)


def barrier_linear(ranks: int) -> Schedule:
    """Every rank signals rank 0, one after the other; then rank 0 signals every rank likewise."""
    others = range(1, ranks)
    return _barrier(ranks, [*((same(rank, 0, ()),) for rank in others), *((same(0, rank, ()),) for rank in others)])


def barrier_of(all_reduce: Schedule) -> Schedule:
    """An all-reduce of one element, the last block: a rank that has the sum has heard from all ranks."""
    one_element = all_reduce.blocks - 1
    rounds = (
        tuple(same(message.source, message.to, ()) for message in messages if one_element in message.sent)
        for messages in all_reduce.rounds
    )
    return _barrier(all_reduce.ranks, rounds)


def _barrier(ranks: int, rounds: Iterable[Round]) -> Schedule:
    nothing: tuple[Slots, ...] = ((),) * ranks
    return Schedule(ranks, 1, nothing, joined(rounds), nothing)


def _from(first: int, length: int, ranks: int) -> Slots:
    return tuple(range(first, min(first + length, ranks)))


def _at_root(ranks: int, slots: Slots) -> tuple[Slots, ...]:
    return (slots, *[()] * (ranks - 1))
