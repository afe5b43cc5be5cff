"""Broadcast, reduce, gather and scatter from and to rank 0, and the barrier."""

from collections.abc import Iterator

from busbw.schedules.base import NOTHING, Round, Schedule, Slots, every_rank, joined, levels, own_blocks, same, vectors
from busbw.schedules.trees import below, chain, down, down_the_binomial_tree, filled, twins, up_the_binomial_tree


def broadcast_binomial(ranks: int) -> Schedule:
    """Whoever has it sends it on, twice as many in every round (Chan et al. 2007)."""
    return _broadcast(ranks, 1, down_the_binomial_tree(ranks))


def broadcast_scattered(ranks: int) -> Schedule:
    """A binomial scatter, then a ring that gathers (van de Geijn: Barnett et al. 1994)."""
    ring = (
        every_rank(ranks, lambda rank, turn=turn: same(rank, (rank + 1) % ranks, ((rank - turn) % ranks,)))  # type: ignore[misc]
        for turn in range(ranks - 1)
    )
    return _broadcast(ranks, ranks, _scattering_tree(ranks), ring)


def broadcast_chain(ranks: int, segments: int) -> Schedule:
    """From each rank to the next one, in so many segments one behind the other."""
    return _broadcast(ranks, segments, down([chain(ranks)], segments))


def broadcast_tree(ranks: int, segments: int) -> Schedule:
    """Down a binary tree, in so many segments one behind the other."""
    return _broadcast(ranks, segments, down([filled(ranks, 2)], segments))


def broadcast_double_tree(ranks: int, segments: int) -> Schedule:
    """Rank 0 hands each half of the data to one of two trees of all others, in so many segments; who has children in
    one tree has none in the other (Sanders et al. 2009).
    """
    others = range(1, ranks)
    # One other rank alone is the root of both trees, and has nobody below it.
    trees = below(0, *twins(others)) if ranks > 2 else (filled(ranks, 1),) * 2
    return _broadcast(ranks, 2 * segments, down(trees, segments))


def _broadcast(ranks: int, blocks: int, *parts: Iterator[Round]) -> Schedule:
    whole = tuple(range(blocks))
    return Schedule(
        ranks, blocks, (whole, *[(NOTHING,) * blocks] * (ranks - 1)), joined(*parts), vectors(ranks, blocks)
    )


def reduce_binomial(ranks: int) -> Schedule:
    """A binomial tree that adds up at rank 0 (Chan et al. 2007)."""
    whole = vectors(ranks, 1)
    return Schedule(ranks, 1, whole, joined(up_the_binomial_tree(ranks)), _at_root(ranks, (0,)))


def scatter_binomial(ranks: int) -> Schedule:
    """Whoever has blocks of others sends half of them on (Chan et al. 2007)."""
    return _scatter(ranks, _scattering_tree(ranks))


def scatter_linear(ranks: int) -> Schedule:
    """Rank 0 sends every block itself."""
    return _scatter(ranks, iter([tuple(same(0, rank, (rank,)) for rank in range(1, ranks))]))


def _scatter(ranks: int, rounds: Iterator[Round]) -> Schedule:
    begins = (tuple(range(ranks)), *[(NOTHING,) * ranks] * (ranks - 1))
    return Schedule(ranks, ranks, begins, joined(rounds), tuple((rank,) for rank in range(ranks)))


def _scattering_tree(ranks: int) -> Iterator[Round]:
    for level in reversed(range(levels(ranks))):
        step = 1 << level
        yield tuple(
            same(rank, rank + step, _from(rank + step, step, ranks)) for rank in range(0, ranks - step, 2 * step)
        )


def gather_binomial(ranks: int) -> Schedule:
    """The same the other way round."""
    rounds = (
        tuple(same(rank, rank - step, _from(rank, step, ranks)) for rank in range(step, ranks, 2 * step))
        for step in (1 << level for level in range(levels(ranks)))
    )
    return _gather(ranks, rounds)


def gather_linear(ranks: int) -> Schedule:
    """Every rank sends its block to rank 0."""
    return _gather(ranks, iter([tuple(same(rank, 0, (rank,)) for rank in range(1, ranks))]))


def _gather(ranks: int, rounds: Iterator[Round]) -> Schedule:
    return Schedule(ranks, ranks, own_blocks(ranks), joined(rounds), _at_root(ranks, tuple(range(ranks))))


def barrier_dissemination(ranks: int) -> Schedule:
    """A word to the rank that is twice as far in every round (Hensgen et al. 1988)."""
    nothing: tuple[Slots, ...] = ((),) * ranks
    rounds = (
        every_rank(ranks, lambda rank, step=1 << level: same(rank, (rank + step) % ranks, ()))  # type: ignore[misc]
        for level in range(levels(ranks))
    )
    return Schedule(ranks, 1, nothing, joined(rounds), nothing)


def _from(first: int, length: int, ranks: int) -> Slots:
    return tuple(range(first, min(first + length, ranks)))


def _at_root(ranks: int, slots: Slots) -> tuple[Slots, ...]:
    return (slots, *[()] * (ranks - 1))
