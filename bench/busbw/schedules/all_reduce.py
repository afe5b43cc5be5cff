"""All-reduce: every rank ends with the sum of all inputs."""

from collections.abc import Iterator
from functools import partial

from busbw.schedules.base import (
    Round,
    Schedule,
    Slots,
    Transfer,
    every_rank,
    joined,
    levels,
    same,
    vectors,
)


def ring(ranks: int) -> Schedule:
    """Once around to add, once around to hand out (Patarasuk and Yuan 2009)."""

    def rounds() -> Iterator[Round]:
        for adds in (True, False):
            for turn in range(ranks - 1):
                first = 0 if adds else 1
                yield every_rank(
                    ranks,
                    lambda rank, first=first, turn=turn, adds=adds: same(  # type: ignore[misc]
                        rank, (rank + 1) % ranks, ((rank + first - turn) % ranks,), adds=adds
                    ),
                )

    return _of(ranks, ranks, rounds())


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


def up_the_binomial_tree(ranks: int) -> Iterator[Round]:
    """Everything is added up at rank 0."""
    for level in range(levels(ranks)):
        step = 1 << level
        yield tuple(same(rank, rank - step, (0,), adds=True) for rank in range(step, ranks, 2 * step))


def down_the_binomial_tree(ranks: int) -> Iterator[Round]:
    """What rank 0 has goes to all others."""
    for level in reversed(range(levels(ranks))):
        step = 1 << level
        yield tuple(same(rank, rank + step, (0,)) for rank in range(0, ranks - step, 2 * step))


def tree(ranks: int, children: int) -> Schedule:
    """A tree in which each rank has so many children, up to rank 0 and down again, level by level."""

    def rounds() -> Iterator[Round]:
        below = list(_levels_below(ranks, children))
        for level in reversed(below):
            yield tuple(same(rank, (rank - 1) // children, (0,), adds=True) for rank in level)
        for level in below:
            yield tuple(same((rank - 1) // children, rank, (0,)) for rank in level)

    return _of(ranks, 1, rounds())


def _levels_below(ranks: int, children: int) -> Iterator[range]:
    first, width = 1, children
    while first < ranks:
        yield range(first, min(first + width, ranks))
        first, width = first + width, width * children


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


def hierarchical(ranks: int, on_node: int) -> Schedule:
    """A ring of the ranks of a node that adds up, rings of the ranks with the same place on all nodes, a ring of the
    node that hands out. Raises ValueError unless ``on_node`` divides ``ranks``.
    """
    if ranks % on_node:
        message = f"{ranks} ranks are not a multiple of {on_node} on a node"
        raise ValueError(message)
    nodes = ranks // on_node

    def shard(number: int) -> Slots:
        return tuple(range(number % on_node * nodes, number % on_node * nodes + nodes))

    def within(turn: int, first: int, *, adds: bool) -> Round:
        return tuple(
            same(rank, _next_on_node(rank, on_node), shard(rank % on_node + first - turn), adds=adds)
            for rank in range(ranks)
        )

    def across(turn: int, first: int, *, adds: bool) -> Round:
        def transfer(rank: int) -> Transfer:
            node, place = divmod(rank, on_node)
            mine = shard(place + 1)  # what a ring that adds up leaves at this place
            return same(rank, (rank + on_node) % ranks, (mine[(node + first - turn) % nodes],), adds=adds)

        return every_rank(ranks, transfer)

    def rounds() -> Iterator[Round]:
        if on_node > 1:
            yield from (within(turn, 0, adds=True) for turn in range(on_node - 1))
        for first, adds in ((0, True), (1, False)):
            yield from (across(turn, first, adds=adds) for turn in range(nodes - 1))
        if on_node > 1:
            yield from (within(turn, 1, adds=False) for turn in range(on_node - 1))

    return _of(ranks, ranks, rounds())


def _next_on_node(rank: int, on_node: int) -> int:
    node, place = divmod(rank, on_node)
    return node * on_node + (place + 1) % on_node


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
