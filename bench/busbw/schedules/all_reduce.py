"""All-reduce by partners, trees and servers: every rank ends with the sum of all inputs. Rings are in ``rings``."""

from collections.abc import Iterator
from functools import partial

from busbw.schedules.base import Round, Schedule, Slots, Transfer, every_rank, joined, levels, same, vectors
from busbw.schedules.trees import down, down_the_binomial_tree, filled, twins, up, up_the_binomial_tree


def recursive_doubling(ranks: int) -> Schedule:
    """Everything to a partner twice as far in every round; ranks beyond a power of two fold in before and get the
    result afterwards (Thakur et al. 2005).
    """
    core = _core(ranks)

    def rounds() -> Iterator[Round]:
        for distance in _doubled(core):
            yield every_rank(core, lambda rank, far=distance: same(rank, rank ^ far, (0,), adds=True))  # type: ignore[misc]

    return _of(ranks, 1, *_folded(ranks, (0,), rounds()))


def rabenseifner(ranks: int) -> Schedule:
    """Recursive halving to add, recursive doubling to hand out, folded likewise (Rabenseifner 2004)."""
    core = _core(ranks)

    def rounds() -> Iterator[Round]:
        for distance in reversed([*_doubled(core)]):
            yield every_rank(core, partial(halved, distance=distance))
        for distance in _doubled(core):
            yield every_rank(core, partial(doubled, distance=distance))

    return _of(ranks, core, *_folded(ranks, tuple(range(core)), rounds()))


def halved(rank: int, distance: int) -> Transfer:
    """In recursive halving: the half of what ``rank`` still adds up that is its partner's."""
    partner = rank ^ distance
    return same(rank, partner, _aligned(partner, distance), adds=True)


def doubled(rank: int, distance: int) -> Transfer:
    """In recursive doubling: all that ``rank`` has got."""
    return same(rank, rank ^ distance, _aligned(rank, distance))


def _aligned(rank: int, length: int) -> Slots:
    first = rank // length * length
    return tuple(range(first, first + length))


def binomial(ranks: int) -> Schedule:
    """A binomial tree up to rank 0 and down again (Chan et al. 2007)."""
    return _of(ranks, 1, up_the_binomial_tree(ranks), down_the_binomial_tree(ranks))


def tree(ranks: int, children: int) -> Schedule:
    """A tree in which each rank has so many children, up to rank 0 and down again, level by level."""
    one = [filled(ranks, children)]
    return _of(ranks, 1, up(one, 1), down(one, 1))


def double_tree(ranks: int, segments: int) -> Schedule:
    """Up two trees and down again, each with half of the data in so many segments; who has children in one has none in
    the other (Sanders et al. 2009).
    """
    both = twins(range(ranks))
    return _of(ranks, 2 * segments, up(both, segments), down(both, segments))


def in_two_parts(first: Schedule, second: Schedule) -> Schedule:
    """A reduce-scatter that leaves block r in slot r of rank r, and an all-gather that begins there."""
    return _of(first.ranks, first.blocks, iter(first.rounds), iter(second.rounds))


def parameter_server(ranks: int) -> Schedule:
    """All send to rank 0, which adds up and sends back: the bottleneck that the others avoid."""
    others = range(1, ranks)
    return _of(
        ranks,
        1,
        iter([tuple(same(rank, 0, (0,), adds=True) for rank in others), tuple(same(0, rank, (0,)) for rank in others)]),
    )


def sharded_parameter_server(ranks: int) -> Schedule:
    """Every rank is the server of one block."""
    pairs = [(rank, to) for rank in range(ranks) for to in range(ranks) if rank != to]
    return _of(
        ranks,
        ranks,
        iter(
            [
                tuple(same(rank, to, (to,), adds=True) for rank, to in pairs),
                tuple(same(rank, to, (rank,)) for rank, to in pairs),
            ]
        ),
    )


def direct(ranks: int) -> Schedule:
    """Everything to everybody at once."""
    pairs = [(rank, to) for rank in range(ranks) for to in range(ranks) if rank != to]
    return _of(ranks, 1, iter([tuple(same(rank, to, (0,), adds=True) for rank, to in pairs)]))


def _of(ranks: int, blocks: int, *parts: Iterator[Round]) -> Schedule:
    whole = vectors(ranks, blocks)
    return Schedule(ranks, blocks, whole, joined(*parts), whole)


def _core(ranks: int) -> int:
    """The largest power of two that is not more than ``ranks``."""
    return 1 << (ranks.bit_length() - 1)


def _doubled(core: int) -> Iterator[int]:
    return (1 << level for level in range(levels(core)))


def _folded(ranks: int, whole: Slots, inner: Iterator[Round]) -> tuple[Iterator[Round], ...]:
    """``inner`` among a power of two of ranks; the others hand in their input before and get the result afterwards."""
    core = _core(ranks)
    before = tuple(same(rank, rank - core, whole, adds=True) for rank in range(core, ranks))
    after = tuple(same(rank - core, rank, whole) for rank in range(core, ranks))
    return iter([before]), inner, iter([after])
