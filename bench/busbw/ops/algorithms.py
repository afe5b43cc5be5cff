"""Explicit algorithms that run over send/recv, besides the library's own, by operation and name.

Collectives with a root have root 0. ``on_host``, the number of ranks per host, divides the number of ranks.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations

from busbw.ops.schedules import NOTHING, Round, Schedule, Slots, Transfer, every_turn, joined, own_blocks, same, vectors
from busbw.ops.trees import distances, down_the_binomial_tree, filled, in_segments, twins, up_the_binomial_tree

LIBRARY, ALL_ALGORITHMS = "library", "all"
"""In a plan: the library's own algorithm, and all algorithms."""


# --- partners at doubling and halving distance, and ranks beyond a power of two ------------------------------------


def is_power_of_two(ranks: int) -> bool:
    """Whether ``ranks`` is a power of two."""
    return ranks & (ranks - 1) == 0


def core(ranks: int) -> int:
    """The largest power of two up to ``ranks``."""
    return 1 << (ranks.bit_length() - 1)


def aligned(rank: int, length: int) -> Slots:
    """The ``length`` consecutive slots around slot ``rank``, starting at a multiple of ``length``."""
    first = rank // length * length
    return tuple(range(first, first + length))


def halving(ranks: int) -> Iterator[Round]:
    """Recursive halving of a power of two of ranks: rank r ends with the sum of block r. In each round it sends its
    partner's half of the blocks that it still adds up.
    """
    return every_turn(
        ranks,
        reversed(distances(ranks)),
        lambda rank, far: same(rank, rank ^ far, aligned(rank ^ far, far), adds=True),
    )


def doubling(ranks: int) -> Iterator[Round]:
    """Recursive doubling of a power of two of ranks: rank r starts with block r, and all end with all blocks. In each
    round a rank sends everything it has.
    """
    return every_turn(ranks, distances(ranks), lambda rank, near: same(rank, rank ^ near, aligned(rank, near)))


def fold(ranks: int, whole: Slots) -> Round:
    """Ranks beyond a power of two send their input to a partner."""
    middle = core(ranks)
    return tuple(same(rank, rank - middle, whole, adds=True) for rank in range(middle, ranks))


def unfold(ranks: int, whole: Slots) -> Round:
    """Ranks beyond a power of two receive the result."""
    middle = core(ranks)
    return tuple(same(rank - middle, rank, whole) for rank in range(middle, ranks))


# --- rings ---------------------------------------------------------------------------------------------------------


def around_every_host(
    ranks: int, on_host: int, slots: Callable[[int], Slots] = lambda place: (place,), *, adds: bool = False
) -> Iterator[Round]:
    """On each host, a ring in which ``slots(place)`` start from that place."""

    def onward(rank: int, turn: int) -> Transfer:
        following = rank - rank % on_host + (rank + 1) % on_host
        return same(rank, following, slots((rank - turn) % on_host), adds=adds)

    return every_turn(ranks, range(on_host - 1), onward)


def on_every_host(ranks: int, on_host: int, length: int, *, adds: bool) -> Iterator[Round]:
    """On each host, a ring over shards of ``length`` blocks: it reduces and leaves shard p + 1 at place p, or gathers
    these shards.
    """
    first = 0 if adds else 1
    return around_every_host(ranks, on_host, lambda place: shard(place + first, on_host, length), adds=adds)


def shard(number: int, on_host: int, length: int) -> Slots:
    """The blocks of shard ``number`` out of ``on_host``."""
    first = number % on_host * length
    return tuple(range(first, first + length))


# --- all-reduce: rings ---------------------------------------------------------------------------------------------


def ring(ranks: int) -> Schedule:
    """Once around to reduce, once around to gather (Patarasuk and Yuan 2009)."""
    return _rings(ranks, [range(ranks)])


def _double_ring(ranks: int) -> Schedule:
    """Two rings in opposite directions, each with half of the data."""
    return _rings(ranks, [range(ranks), range(ranks - 1, -1, -1)])


def _multi_ring(ranks: int, on_host: int) -> Schedule:
    """One ring per rank of a host, each with its share of the data. Ring i enters every host at local rank i and leaves
    at the one before it: each rank sends to another host in one ring only, so all NICs of a host are used.
    """
    orders = [
        [first + (place + ring) % on_host for first in range(0, ranks, on_host) for place in range(on_host)]
        for ring in range(on_host)
    ]
    return _rings(ranks, orders)


def _rings(ranks: int, orders: Sequence[Sequence[int]]) -> Schedule:
    """One ring per order of the ranks; blocks with the same source and destination in a round form one message."""

    def rounds() -> Iterator[Round]:
        for first, adds in ((0, True), (1, False)):
            for turn in range(ranks - 1):
                blocks: dict[tuple[int, int], list[int]] = defaultdict(list)
                for number, order in enumerate(orders):
                    for place, rank in enumerate(order):
                        to = order[(place + 1) % ranks]
                        blocks[rank, to].append(number * ranks + (place + first - turn) % ranks)
                yield tuple(same(rank, to, tuple(slots), adds=adds) for (rank, to), slots in blocks.items())

    return _all_reduce(ranks, ranks * len(orders), rounds())


_RING_SEGMENTS, _IN_FLIGHT = 4, 2
"""Segments per rank's block of a segmented ring, and segments in flight. Gloo uses segments of at most 1 MiB, at least
two per block, and two in flight."""


def _segmented_ring(ranks: int) -> Schedule:
    """A ring in which each rank's block is cut into pipelined segments, several at once, so that a library can reduce
    one segment while another is in flight (as Gloo does).
    """

    def half(first: int, *, adds: bool) -> Iterator[Round]:
        steps = [divmod(step, _RING_SEGMENTS) for step in range((ranks - 1) * _RING_SEGMENTS)]
        for start in range(0, len(steps), _IN_FLIGHT):
            yield tuple(
                same(rank, (rank + 1) % ranks, ((rank + first - turn) % ranks * _RING_SEGMENTS + segment,), adds=adds)
                for turn, segment in steps[start : start + _IN_FLIGHT]
                for rank in range(ranks)
            )

    return _all_reduce(ranks, ranks * _RING_SEGMENTS, half(0, adds=True), half(1, adds=False))


def _all_reduce_two_level(ranks: int, on_host: int) -> Schedule:
    """Ring reduce-scatter within every host, ring all-reduce between ranks with the same local rank, ring all-gather
    within every host.
    """
    hosts = ranks // on_host

    def across(first: int, *, adds: bool) -> Iterator[Round]:
        def transfer(rank: int, turn: int) -> Transfer:
            host, place = divmod(rank, on_host)
            mine = shard(place + 1, on_host, hosts)  # the shard that a reducing ring leaves at this place
            return same(rank, (rank + on_host) % ranks, (mine[(host + first - turn) % hosts],), adds=adds)

        return every_turn(ranks, range(hosts - 1), transfer)

    before, after = (on_every_host(ranks, on_host, hosts, adds=adds) for adds in (True, False))
    return _all_reduce(ranks, ranks, before, across(0, adds=True), across(1, adds=False), after)


# --- all-reduce: partners, trees and servers -----------------------------------------------------------------------


def _recursive_doubling(ranks: int) -> Schedule:
    """Each rank exchanges everything with partners at doubling distance; ranks beyond a power of two fold in before and
    receive the result afterwards (Thakur et al. 2005).
    """
    middle = core(ranks)
    rounds = every_turn(middle, distances(middle), lambda rank, far: same(rank, rank ^ far, (0,), adds=True))
    return _all_reduce(ranks, 1, [fold(ranks, (0,))], rounds, [unfold(ranks, (0,))])


def _rabenseifner(ranks: int) -> Schedule:
    """Recursive halving to reduce, recursive doubling to gather, folded likewise (Rabenseifner 2004)."""
    middle = core(ranks)
    whole = tuple(range(middle))
    return _all_reduce(ranks, middle, [fold(ranks, whole)], halving(middle), doubling(middle), [unfold(ranks, whole)])


def _binomial(ranks: int) -> Schedule:
    """Up a binomial tree to rank 0 and down again (Chan et al. 2007)."""
    return _all_reduce(ranks, 1, up_the_binomial_tree(ranks), down_the_binomial_tree(ranks))


def _tree(ranks: int, children: int) -> Schedule:
    """Up a tree with ``children`` children per rank to rank 0 and down again, level by level."""
    trees = [filled(ranks, children)]
    return _all_reduce(ranks, 1, in_segments(trees, 1, adds=True), in_segments(trees, 1, adds=False))


SEGMENTS = 8
"""Segments of a chain or tree: enough to overlap, few enough to stay large."""


def double_tree(ranks: int, segments: int = SEGMENTS) -> Schedule:
    """Up two trees and down again, each with half of the data in ``segments`` segments; a rank with children in one
    tree is a leaf in the other (Sanders et al. 2009).
    """
    both = twins(range(ranks))
    up, down = (in_segments(both, segments, adds=adds) for adds in (True, False))
    return _all_reduce(ranks, 2 * segments, up, down)


def _reduce_scatter_all_gather(ranks: int) -> Schedule:
    """PAT reduce-scatter, then PAT all-gather."""
    gathering = _all_gather_pat(ranks)
    return _all_reduce(ranks, ranks, mirrored(gathering).rounds, gathering.rounds)


def _parameter_server(ranks: int) -> Schedule:
    """All send to rank 0, which adds up and sends back; rank 0 is the bottleneck."""
    others = range(1, ranks)
    up = tuple(same(rank, 0, (0,), adds=True) for rank in others)
    return _all_reduce(ranks, 1, [up, tuple(same(0, rank, (0,)) for rank in others)])


def _sharded_parameter_server(ranks: int) -> Schedule:
    """Every rank is the server of one block."""
    pairs = list(permutations(range(ranks), 2))
    served = tuple(same(rank, to, (to,), adds=True) for rank, to in pairs)
    return _all_reduce(ranks, ranks, [served, tuple(same(rank, to, (rank,)) for rank, to in pairs)])


def _all_reduce_direct(ranks: int) -> Schedule:
    """Every rank sends everything to all others at once."""
    return _all_reduce(ranks, 1, [tuple(same(*pair, (0,), adds=True) for pair in permutations(range(ranks), 2))])


def _all_reduce(ranks: int, blocks: int, *parts: Iterable[Round]) -> Schedule:
    whole = vectors(ranks, blocks)
    return Schedule(ranks, blocks, whole, joined(*parts), whole)


# --- all-gather --------------------------------------------------------------------------------------------------


def _all_gather_ring(ranks: int) -> Schedule:
    """Every block goes around once (Chan et al. 2007)."""
    return _all_gather(ranks, around_every_host(ranks, ranks))


def _all_gather_recursive_doubling(ranks: int) -> Schedule:
    """Exchange everything with partners at doubling distance; needs a power of two of ranks (Thakur et al. 2005)."""
    return _all_gather(ranks, doubling(ranks))


def _all_gather_pairwise(ranks: int) -> Schedule:
    """Every block goes directly to each other rank, one rank per round."""
    rounds = every_turn(ranks, range(1, ranks), lambda rank, far: same(rank, (rank + far) % ranks, (rank,)))
    return _all_gather(ranks, rounds)


def _all_gather_neighbour_exchange(ranks: int) -> Schedule:
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


def _all_gather_bruck(ranks: int) -> Schedule:
    """Send everything to the rank at doubling distance below; any number of ranks (Bruck et al. 1997)."""
    steps = distances(ranks)
    sent = {step: tuple(range(min(step, ranks - step))) for step in steps}
    received = {step: tuple(range(step, min(2 * step, ranks))) for step in steps}

    def onward(rank: int, step: int) -> Transfer:
        return Transfer(rank, (rank - step) % ranks, sent[step], received[step])

    begins = ((0, *[NOTHING] * (ranks - 1)),) * ranks
    ends = tuple(tuple((block - rank) % ranks for block in range(ranks)) for rank in range(ranks))
    return Schedule(ranks, ranks, begins, joined(every_turn(ranks, steps, onward)), ends)


def _all_gather_direct(ranks: int) -> Schedule:
    """Every block to all ranks at once."""
    return _all_gather(ranks, [tuple(same(rank, to, (rank,)) for rank, to in permutations(range(ranks), 2))])


def _all_gather_pat(ranks: int) -> Schedule:
    """One binomial tree per block, farthest ranks first; blocks with the same destination in a round form one message.
    Most bytes go to near ranks, whereas Bruck's algorithm sends most bytes far. Any number of ranks (PAT with buffers
    for all blocks: Jeaugey 2025).
    """

    def onward(rank: int, step: int) -> Transfer:
        # Distance of a block from its own rank when it is forwarded.
        offsets = range(0, ranks - step, 2 * step)
        return same(rank, (rank + step) % ranks, tuple((rank - offset) % ranks for offset in offsets))

    return _all_gather(ranks, every_turn(ranks, reversed(distances(ranks)), onward))


def _all_gather_two_level(ranks: int, on_host: int) -> Schedule:
    """Rings between ranks with the same local rank, then a ring within every host; there a message carries all blocks
    that a rank received from other hosts.
    """

    def across(rank: int, turn: int) -> Transfer:
        return same(rank, (rank + on_host) % ranks, ((rank - turn * on_host) % ranks,))

    between = every_turn(ranks, range(ranks // on_host - 1), across)
    inside = around_every_host(ranks, on_host, lambda place: tuple(range(place, ranks, on_host)))
    return _all_gather(ranks, between, inside)


def _all_gather(ranks: int, *parts: Iterable[Round]) -> Schedule:
    return Schedule(ranks, ranks, own_blocks(ranks), joined(*parts), vectors(ranks, ranks))


# --- reduce-scatter ----------------------------------------------------------------------------------------------


def _reduce_scatter_ring(ranks: int) -> Schedule:
    """Every partial sum goes around once (Chan et al. 2007)."""
    return _reduce_scatter(ranks, around_every_host(ranks, ranks, lambda place: ((place - 1) % ranks,), adds=True))


def _reduce_scatter_recursive_halving(ranks: int) -> Schedule:
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


def _all_to_all_pairwise(ranks: int) -> Schedule:
    """One partner per round."""
    return _all_to_all(ranks, (_pairs_at(ranks, [distance]) for distance in range(1, ranks)))


def _all_to_all_spread(ranks: int) -> Schedule:
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


def _all_to_all_bruck(ranks: int) -> Schedule:
    """Blocks travel by the bits of their distance: fewer messages, more bytes (Bruck et al. 1997)."""
    moving = {step: tuple(slot for slot in range(ranks) if slot & step) for step in distances(ranks)}
    rounds = every_turn(ranks, moving, lambda rank, step: same(rank, (rank + step) % ranks, moving[step]))
    begins = tuple(tuple((rank + slot) % ranks for slot in range(ranks)) for rank in range(ranks))
    ends = tuple(tuple((rank - source) % ranks for source in range(ranks)) for rank in range(ranks))
    return Schedule(ranks, ranks, begins, joined(rounds), ends)


def _all_to_all_two_level(ranks: int, on_host: int) -> Schedule:
    """Within a host, each rank gives its neighbours the blocks for ranks with their local rank on any host; then
    ranks with the same local rank exchange their hosts' blocks in one message per pair. Raises ValueError unless
    ``on_host`` divides ``ranks``.

    Slots: a rank's input, blocks waiting for the second phase, final blocks.
    """
    hosts = ranks // on_host

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


# --- with a root, and the barrier -----------------------------------------------------------------------------------


def _broadcast_binomial(ranks: int) -> Schedule:
    """Every rank that has the data forwards it; their number doubles in each round (Chan et al. 2007)."""
    return _broadcast(ranks, 1, down_the_binomial_tree(ranks))


def _broadcast_scattered(ranks: int) -> Schedule:
    """A binomial scatter, then a ring all-gather (van de Geijn: Barnett et al. 1994)."""
    return _broadcast(ranks, ranks, down_the_binomial_tree(ranks, scatters=True), around_every_host(ranks, ranks))


def _broadcast_chain(ranks: int) -> Schedule:
    """From each rank to the next one, in pipelined segments."""
    return _broadcast(ranks, SEGMENTS, in_segments([filled(ranks, 1)], SEGMENTS, adds=False))


def _broadcast_tree(ranks: int) -> Schedule:
    """Down a binary tree, in pipelined segments."""
    return _broadcast(ranks, SEGMENTS, in_segments([filled(ranks, 2)], SEGMENTS, adds=False))


def _broadcast_double_tree(ranks: int) -> Schedule:
    """Rank 0 sends each half of the data down one of two trees of all others, in segments; a rank with children in
    one tree is a leaf in the other (Sanders et al. 2009).
    """
    trees = twins(range(1, ranks), above=[0]) if ranks > 1 else ((), ())
    return _broadcast(ranks, 2 * SEGMENTS, in_segments(trees, SEGMENTS, adds=False))


def _broadcast_two_level(ranks: int, on_host: int) -> Schedule:
    """A binomial scatter on the first host, binomial trees between ranks with the same local rank, and a ring
    all-gather on every host, so that each NIC of a host carries its share.
    """
    between = (
        tuple(
            same(message.source * on_host + place, message.to * on_host + place, (place,))
            for message in messages
            for place in range(on_host)
        )
        for messages in down_the_binomial_tree(ranks // on_host)
    )
    inside = around_every_host(ranks, on_host)
    return _broadcast(ranks, on_host, down_the_binomial_tree(on_host, scatters=True), between, inside)


def _broadcast(ranks: int, blocks: int, *parts: Iterable[Round]) -> Schedule:
    return Schedule(ranks, blocks, _from_root(ranks, blocks), joined(*parts), vectors(ranks, blocks))


def _from_root(ranks: int, blocks: int) -> tuple[Slots, ...]:
    return (tuple(range(blocks)), *[(NOTHING,) * blocks] * (ranks - 1))


def _reduce_binomial(ranks: int) -> Schedule:
    """Reduction up a binomial tree to rank 0 (Chan et al. 2007)."""
    whole = vectors(ranks, 1)
    return Schedule(ranks, 1, whole, joined(up_the_binomial_tree(ranks)), _at_root(ranks, (0,)))


def _reduce_rabenseifner(ranks: int) -> Schedule:
    """Recursive halving to reduce, then a binomial gather to rank 0; ranks beyond a power of two fold in before
    (Rabenseifner 2004).
    """
    middle = core(ranks)
    whole = tuple(range(middle))
    rounds = joined([fold(ranks, whole)], halving(middle), up_the_binomial_tree(middle, gathers=True))
    return Schedule(ranks, middle, vectors(ranks, middle), rounds, _at_root(ranks, whole))


def _scatter_binomial(ranks: int) -> Schedule:
    """Every rank that holds other ranks' blocks forwards half of them (Chan et al. 2007)."""
    return _scatter(ranks, down_the_binomial_tree(ranks, scatters=True))


def _scatter_linear(ranks: int) -> Schedule:
    """Rank 0 sends every block directly."""
    return _scatter(ranks, [tuple(same(0, rank, (rank,)) for rank in range(1, ranks))])


def _scatter(ranks: int, rounds: Iterable[Round]) -> Schedule:
    ends = tuple((rank,) for rank in range(ranks))
    return Schedule(ranks, ranks, _from_root(ranks, ranks), joined(rounds), ends)


def _gather_binomial(ranks: int) -> Schedule:
    """A binomial scatter in reverse."""
    return _gather(ranks, up_the_binomial_tree(ranks, gathers=True))


def _gather_linear(ranks: int) -> Schedule:
    """Every rank sends its block to rank 0."""
    return _gather(ranks, [tuple(same(rank, 0, (rank,)) for rank in range(1, ranks))])


def _gather(ranks: int, rounds: Iterable[Round]) -> Schedule:
    return Schedule(ranks, ranks, own_blocks(ranks), joined(rounds), _at_root(ranks, tuple(range(ranks))))


def _barrier_dissemination(ranks: int) -> Schedule:
    """In each round a rank signals the rank at doubling distance (Hensgen et al. 1988)."""
    rounds = every_turn(ranks, distances(ranks), lambda rank, step: same(rank, (rank + step) % ranks, ()))
    return _barrier(ranks, rounds)


def _barrier_linear(ranks: int) -> Schedule:
    """Every rank signals rank 0, one after the other; then rank 0 signals every rank likewise."""
    others = range(1, ranks)
    return _barrier(ranks, [*((same(rank, 0, ()),) for rank in others), *((same(0, rank, ()),) for rank in others)])


def _barrier_of(all_reduce: Callable[[int], Schedule]) -> Callable[[int], Schedule]:
    """An all-reduce of one element, the last block: a rank that has the sum has heard from all ranks."""

    def schedule(ranks: int) -> Schedule:
        reducing = all_reduce(ranks)
        rounds = (
            tuple(same(message.source, message.to, ()) for message in messages if reducing.blocks - 1 in message.sent)
            for messages in reducing.rounds
        )
        return _barrier(ranks, rounds)

    return schedule


def _barrier(ranks: int, rounds: Iterable[Round]) -> Schedule:
    nothing: tuple[Slots, ...] = ((),) * ranks
    return Schedule(ranks, 1, nothing, joined(rounds), nothing)


def _at_root(ranks: int, slots: Slots) -> tuple[Slots, ...]:
    return (slots, *[()] * (ranks - 1))


# --- the table -----------------------------------------------------------------------------------------------------


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
    return lambda *ranks: mirrored(all_gather(*ranks))


ALGORITHMS: dict[str, dict[str, Algorithm]] = {
    "all_reduce": {
        "ring": Algorithm("ring reduce-scatter, then ring all-gather", ring),
        "segmented-ring": Algorithm("ring with every block in 4 segments, two in flight", _segmented_ring),
        "double-ring": Algorithm("two rings in opposite directions, each with half of the data", _double_ring),
        "multi-ring": _in_levels("one ring per rank of a host, each leaving the host at another rank", _multi_ring),
        "recursive-doubling": Algorithm("exchanges everything with partners at doubling distance", _recursive_doubling),
        "rabenseifner": Algorithm("recursive halving, then recursive doubling", _rabenseifner),
        "binomial-tree": Algorithm("reduces up a binomial tree, broadcasts down it", _binomial),
        "binary-tree": Algorithm("reduces up a binary tree, broadcasts down it", lambda ranks: _tree(ranks, 2)),
        "4-ary-tree": Algorithm("reduces up a 4-ary tree, broadcasts down it", lambda ranks: _tree(ranks, 4)),
        "double-tree": Algorithm(
            "reduces up and broadcasts down two trees, each with half of the data in 8 segments", double_tree
        ),
        "reduce-scatter-all-gather": Algorithm("PAT reduce-scatter, then PAT all-gather", _reduce_scatter_all_gather),
        "parameter-server": Algorithm("all send to rank 0, which sends the sum back", _parameter_server),
        "sharded-parameter-server": Algorithm("each rank serves one block", _sharded_parameter_server),
        "direct": Algorithm("every rank sends everything to all others at once", _all_reduce_direct),
        "hierarchical": _in_levels("rings within hosts, between hosts, and within hosts again", _all_reduce_two_level),
    },
    "all_gather": {
        "ring": Algorithm("every block goes around once", _all_gather_ring),
        "bruck": Algorithm("sends everything to ranks at doubling distance", _all_gather_bruck),
        "recursive-doubling": _of_powers_of_two(
            "exchanges everything with partners at doubling distance", _all_gather_recursive_doubling
        ),
        "neighbour-exchange": _of_even_ranks("two blocks to each neighbour in turn", _all_gather_neighbour_exchange),
        "pairwise": Algorithm("one partner per round", _all_gather_pairwise),
        "pat": Algorithm("one binomial tree per block, farthest ranks first", _all_gather_pat),
        "direct": Algorithm("every block to all ranks at once", _all_gather_direct),
        "hierarchical": _in_levels("rings between hosts, then rings within hosts", _all_gather_two_level),
    },
    "reduce_scatter": {
        "ring": Algorithm("every partial sum goes around once", _reduce_scatter_ring),
        "recursive-halving": Algorithm(
            "exchanges halves with partners at halving distance", _reduce_scatter_recursive_halving
        ),
        "pairwise": Algorithm("one partner per round", _reversed(_all_gather_pairwise)),
        "bruck": Algorithm("Bruck's all-gather in reverse", _reversed(_all_gather_bruck)),
        "neighbour-exchange": _of_even_ranks(
            "the neighbour-exchange all-gather in reverse", _reversed(_all_gather_neighbour_exchange)
        ),
        "pat": Algorithm("one binomial tree per block, nearest ranks first", _reversed(_all_gather_pat)),
        "direct": Algorithm("every block to its rank at once", _reversed(_all_gather_direct)),
        "hierarchical": _in_levels("rings within hosts, then rings between hosts", _reversed(_all_gather_two_level)),
    },
    "all_to_all": {
        "pairwise": Algorithm("one partner per round", _all_to_all_pairwise),
        "spread": Algorithm("all messages at once", _all_to_all_spread),
        "bruck": Algorithm("blocks travel by the bits of their distance", _all_to_all_bruck),
        "two-level": _in_levels(
            "within hosts first, then one message per pair of hosts and rank", _all_to_all_two_level
        ),
    },
    "broadcast": {
        "binomial-tree": Algorithm("every rank that has the data forwards it", _broadcast_binomial),
        "scatter-ring": Algorithm("binomial scatter, then ring all-gather", _broadcast_scattered),
        "chain": Algorithm("from rank to rank in 8 segments", _broadcast_chain),
        "binary-tree": Algorithm("down a binary tree in 8 segments", _broadcast_tree),
        "double-tree": Algorithm("down two trees, each with half of the data in 8 segments", _broadcast_double_tree),
        "hierarchical": _in_levels(
            "scatter on the first host, trees between hosts, rings within hosts", _broadcast_two_level
        ),
    },
    "reduce": {
        "binomial-tree": Algorithm("up a binomial tree", _reduce_binomial),
        "rabenseifner": Algorithm("recursive halving, then binomial gather", _reduce_rabenseifner),
    },
    "gather": {
        "binomial-tree": Algorithm("up a binomial tree, messages growing", _gather_binomial),
        "linear": Algorithm("every rank to rank 0", _gather_linear),
    },
    "scatter": {
        "binomial-tree": Algorithm("down a binomial tree, messages shrinking", _scatter_binomial),
        "linear": Algorithm("rank 0 to every rank", _scatter_linear),
    },
    "barrier": {
        "dissemination": Algorithm("signals ranks at doubling distance", _barrier_dissemination),
        "linear": Algorithm("every rank signals rank 0, which then signals every rank", _barrier_linear),
        "ring": Algorithm("a ring all-reduce of one element", _barrier_of(ring)),
        "binomial-tree": Algorithm("a binomial-tree all-reduce of one element", _barrier_of(_binomial)),
        "recursive-doubling": Algorithm(
            "a recursive-doubling all-reduce of one element", _barrier_of(_recursive_doubling)
        ),
    },
}
"""Operation → name → algorithm. ``busbw_analysis.models.textbook`` has their costs, and its tests count them."""
