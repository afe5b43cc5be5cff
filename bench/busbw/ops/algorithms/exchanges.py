"""All-gather, reduce-scatter and all-to-all: every rank's data reach all others."""

from collections.abc import Iterable, Iterator
from itertools import permutations

from busbw.ops.algorithms.base import NOTHING, Round, Schedule, Transfer, every_turn, joined, own_blocks, same, vectors
from busbw.ops.algorithms.partners import aligned, core, distances, doubling
from busbw.ops.algorithms.rings import around_every_host, hosts_of

# --- all-gather --------------------------------------------------------------------------------------------------


def all_gather_ring(ranks: int) -> Schedule:
    """Every block goes around once (Chan et al. 2007)."""
    return _all_gather(ranks, around_every_host(ranks, ranks))


def all_gather_recursive_doubling(ranks: int) -> Schedule:
    """Exchange everything with partners at doubling distance; needs a power of two of ranks (Thakur et al. 2005)."""
    return _all_gather(ranks, doubling(ranks))


def all_gather_pairwise(ranks: int) -> Schedule:
    """Every block goes directly to each other rank, one rank per round."""
    rounds = every_turn(ranks, range(1, ranks), lambda rank, far: same(rank, (rank + far) % ranks, (rank,)))
    return _all_gather(ranks, rounds)


def all_gather_neighbour_exchange(ranks: int) -> Schedule:
    """Alternate between both neighbours, two blocks at a time; needs an even number of ranks (Chen et al. 2005)."""

    def neighbour(rank: int, turn: int) -> int:
        return (rank + (1 if (rank + turn) % 2 == 0 else -1)) % ranks

    def rounds() -> Iterator[Round]:
        yield tuple(same(rank, neighbour(rank, 0), (rank,)) for rank in range(ranks))
        sent = [tuple(sorted((rank, neighbour(rank, 0)))) for rank in range(ranks)]
        for turn in range(1, ranks // 2):
            yield tuple(same(rank, neighbour(rank, turn), sent[rank]) for rank in range(ranks))
            sent = [sent[neighbour(rank, turn)] for rank in range(ranks)]

    return _all_gather(ranks, rounds())


def all_gather_bruck(ranks: int) -> Schedule:
    """Send everything to the rank at doubling distance below; any number of ranks (Bruck et al. 1997)."""
    steps = distances(ranks)
    sent = {step: tuple(range(min(step, ranks - step))) for step in steps}
    received = {step: tuple(range(step, min(2 * step, ranks))) for step in steps}

    def onward(rank: int, step: int) -> Transfer:
        return Transfer(rank, (rank - step) % ranks, sent[step], received[step])

    begins = ((0, *[NOTHING] * (ranks - 1)),) * ranks
    ends = tuple(tuple((block - rank) % ranks for block in range(ranks)) for rank in range(ranks))
    return Schedule(ranks, ranks, begins, joined(every_turn(ranks, steps, onward)), ends)


def all_gather_direct(ranks: int) -> Schedule:
    """Every block to all ranks at once."""
    return _all_gather(ranks, [tuple(same(rank, to, (rank,)) for rank, to in permutations(range(ranks), 2))])


def all_gather_pat(ranks: int) -> Schedule:
    """One binomial tree per block, farthest ranks first; blocks with the same destination in a round form one message.
    Most bytes go to near ranks, whereas Bruck's algorithm sends most bytes far. Any number of ranks (PAT with buffers
    for all blocks: Jeaugey 2025).
    """

    def onward(rank: int, step: int) -> Transfer:
        # Distance of a block from its own rank when it is forwarded.
        offsets = range(0, ranks - step, 2 * step)
        return same(rank, (rank + step) % ranks, tuple((rank - offset) % ranks for offset in offsets))

    return _all_gather(ranks, every_turn(ranks, reversed(distances(ranks)), onward))


def all_gather_two_level(ranks: int, on_host: int) -> Schedule:
    """Rings between ranks with the same local rank, then a ring within every host; there a message carries all blocks
    that a rank received from other hosts. Raises ValueError unless ``on_host`` divides ``ranks``.
    """

    def across(rank: int, turn: int) -> Transfer:
        return same(rank, (rank + on_host) % ranks, ((rank - turn * on_host) % ranks,))

    between = every_turn(ranks, range(hosts_of(ranks, on_host) - 1), across)
    inside = around_every_host(ranks, on_host, lambda place: tuple(range(place, ranks, on_host)))
    return _all_gather(ranks, between, inside)


def _all_gather(ranks: int, *parts: Iterable[Round]) -> Schedule:
    return Schedule(ranks, ranks, own_blocks(ranks), joined(*parts), vectors(ranks, ranks))


# --- reduce-scatter ----------------------------------------------------------------------------------------------


def reduce_scatter_ring(ranks: int) -> Schedule:
    """Every partial sum goes around once (Chan et al. 2007)."""
    return _reduce_scatter(ranks, around_every_host(ranks, ranks, lambda place: ((place - 1) % ranks,), adds=True))


def reduce_scatter_recursive_halving(ranks: int) -> Schedule:
    """Exchange halves with partners at halving distance. Ranks beyond a power of two: in the first pairs, the even
    rank sends all of its input to the odd rank, which adds up for both and returns the block (Thakur et al. 2005).
    """
    middle = core(ranks)
    folded = ranks - middle
    pairs = [(2 * number, 2 * number + 1) for number in range(folded)]
    # Remaining ranks by place, and the blocks that each adds up: two blocks for a rank that stands in for another.
    left = [*(taking for _, taking in pairs), *range(2 * folded, ranks)]
    meant = [*pairs, *((rank,) for rank in range(2 * folded, ranks))]

    def half(place: int, distance: int) -> Transfer:
        partner = place ^ distance
        blocks = tuple(block for member in aligned(partner, distance) for block in meant[member])
        return same(left[place], left[partner], blocks, adds=True)

    before = tuple(same(giving, taking, tuple(range(ranks)), adds=True) for giving, taking in pairs)
    halves = every_turn(middle, reversed(distances(middle)), half)
    after = tuple(same(taking, giving, (giving,)) for giving, taking in pairs)
    return _reduce_scatter(ranks, [before], halves, [after])


def reduce_scatter_pairwise(ranks: int) -> Schedule:
    """The block of each other rank goes directly to it, one rank per round (Thakur et al. 2005)."""

    def straight(rank: int, far: int) -> Transfer:
        to = (rank + far) % ranks
        return same(rank, to, (to,), adds=True)

    return _reduce_scatter(ranks, every_turn(ranks, range(1, ranks), straight))


def mirrored(gathering: Schedule) -> Schedule:
    """A reduce-scatter from an all-gather: the same messages in opposite direction and order, and each one adds. A tree
    that distributed one block then sums all contributions to it. Requires that every block reaches every rank exactly
    once, which holds for all schedules here.
    """
    ranks = gathering.ranks
    rounds = (
        tuple(Transfer(message.to, message.source, message.received, message.sent, adds=True) for message in messages)
        for messages in reversed(gathering.rounds)
    )
    begins = tuple(tuple(slots.index(slot) for slot in range(ranks)) for slots in gathering.ends)
    return Schedule(ranks, ranks, begins, joined(rounds), tuple((slots.index(0),) for slots in gathering.begins))


def _reduce_scatter(ranks: int, *parts: Iterable[Round]) -> Schedule:
    return Schedule(ranks, ranks, vectors(ranks, ranks), joined(*parts), tuple((rank,) for rank in range(ranks)))


# --- all-to-all --------------------------------------------------------------------------------------------------


def all_to_all_pairwise(ranks: int) -> Schedule:
    """One partner per round."""
    return _all_to_all(ranks, (_pairs_at(ranks, [distance]) for distance in range(1, ranks)))


def all_to_all_spread(ranks: int) -> Schedule:
    """All messages at once."""
    return _all_to_all(ranks, [_pairs_at(ranks, range(1, ranks))])


def _pairs_at(ranks: int, distances: Iterable[int]) -> Round:
    return tuple(
        Transfer(rank, (rank + distance) % ranks, ((rank + distance) % ranks,), (ranks + rank,))
        for rank in range(ranks)
        for distance in distances
    )


def _all_to_all(ranks: int, *parts: Iterable[Round], before: int = 1) -> Schedule:
    """Received blocks get their own slots, after ``before`` × ``ranks`` others, the first of which hold the input; a
    rank's own block stays in place.
    """
    first = before * ranks
    begins = (tuple(range(ranks)) + (NOTHING,) * first,) * ranks
    ends = tuple(tuple(rank if source == rank else first + source for source in range(ranks)) for rank in range(ranks))
    return Schedule(ranks, ranks, begins, joined(*parts), ends)


def all_to_all_bruck(ranks: int) -> Schedule:
    """Blocks travel by the bits of their distance: fewer messages, more bytes (Bruck et al. 1997)."""
    moving = {step: tuple(slot for slot in range(ranks) if slot & step) for step in distances(ranks)}
    rounds = every_turn(ranks, moving, lambda rank, step: same(rank, (rank + step) % ranks, moving[step]))
    begins = tuple(tuple((rank + slot) % ranks for slot in range(ranks)) for rank in range(ranks))
    ends = tuple(tuple((rank - source) % ranks for source in range(ranks)) for rank in range(ranks))
    return Schedule(ranks, ranks, begins, joined(rounds), ends)


def all_to_all_two_level(ranks: int, on_host: int) -> Schedule:
    """Within a host, each rank gives its neighbours the blocks for ranks with their local rank on any host; then
    ranks with the same local rank exchange their hosts' blocks in one message per pair. Raises ValueError unless
    ``on_host`` divides ``ranks``.

    Slots: a rank's input, blocks waiting for the second phase, final blocks.
    """
    hosts = hosts_of(ranks, on_host)

    def waiting(host: int, place: int, source_place: int) -> int:
        """Slot of rank ``place`` for the block from neighbour ``source_place`` to rank ``place`` of ``host``."""
        return host * on_host + place if source_place == place else ranks + host * on_host + source_place

    def on_a_host(rank: int, distance: int) -> Transfer:
        host, place = divmod(rank, on_host)
        there = (place + distance) % on_host
        sent = tuple(other * on_host + there for other in range(hosts))
        received = (2 * ranks + rank if other == host else waiting(other, there, place) for other in range(hosts))
        return Transfer(rank, host * on_host + there, sent, tuple(received))

    def between_hosts(rank: int, distance: int) -> Transfer:
        host, place = divmod(rank, on_host)
        there = (host + distance) % hosts
        sent = tuple(waiting(there, place, source) for source in range(on_host))
        received = tuple(2 * ranks + host * on_host + source for source in range(on_host))
        return Transfer(rank, there * on_host + place, sent, received)

    inside = every_turn(ranks, range(1, on_host), on_a_host)
    return _all_to_all(ranks, inside, every_turn(ranks, range(1, hosts), between_hosts), before=2)
