"""All-reduce by rings: one, several at once, in segments, and in two levels of hosts."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from busbw.ops.algorithms.base import Round, Schedule, Slots, Transfer, every_turn, joined, same, vectors


def ring(ranks: int) -> Schedule:
    """Once around to add, once around to hand out (Patarasuk and Yuan 2009)."""
    return _rings(ranks, [range(ranks)])


def both_ways(ranks: int) -> Schedule:
    """Two rings of half of the data each, in opposite directions."""
    return _rings(ranks, [range(ranks), range(ranks - 1, -1, -1)])


def across_hosts(ranks: int, on_host: int) -> Schedule:
    """As many rings as there are ranks on a host, each with its share of the data. Ring i comes to every host at the
    rank in place i and leaves it at the one before: each rank sends to another host in one ring alone, so that all
    network cards of a host are at work. Raises ValueError unless ``on_host`` divides ``ranks``.
    """
    hosts_of(ranks, on_host)
    orders = [
        [first + (place + ring) % on_host for first in range(0, ranks, on_host) for place in range(on_host)]
        for ring in range(on_host)
    ]
    return _rings(ranks, orders)


def _rings(ranks: int, orders: Sequence[Sequence[int]]) -> Schedule:
    """One ring for each order of the ranks; what goes from one rank to another in a round is one message."""

    def rounds() -> Iterator[Round]:
        for first, adds in ((0, True), (1, False)):
            for turn in range(ranks - 1):
                blocks: dict[tuple[int, int], list[int]] = defaultdict(list)
                for number, order in enumerate(orders):
                    for place, rank in enumerate(order):
                        to = order[(place + 1) % ranks]
                        blocks[rank, to].append(number * ranks + (place + first - turn) % ranks)
                yield tuple(same(rank, to, tuple(slots), adds=adds) for (rank, to), slots in blocks.items())

    whole = vectors(ranks, ranks * len(orders))
    return Schedule(ranks, ranks * len(orders), whole, joined(rounds()), whole)


SEGMENTS, IN_FLIGHT = 4, 2
"""Of the block of each rank in a segmented ring, and how many go around at once. Gloo has as many that none is longer
than 1 MiB, at least two, and two of them under way."""


def segmented(ranks: int) -> Schedule:
    """A ring in which the block of each rank is cut into ``SEGMENTS`` that go around one behind the other,
    ``IN_FLIGHT`` of them at once, so that a library can add up one while another is under way (as Gloo does).
    """

    def half(first: int, *, adds: bool) -> Iterator[Round]:
        steps = [divmod(step, SEGMENTS) for step in range((ranks - 1) * SEGMENTS)]
        for start in range(0, len(steps), IN_FLIGHT):
            yield tuple(
                same(rank, (rank + 1) % ranks, ((rank + first - turn) % ranks * SEGMENTS + segment,), adds=adds)
                for turn, segment in steps[start : start + IN_FLIGHT]
                for rank in range(ranks)
            )

    whole = vectors(ranks, ranks * SEGMENTS)
    return Schedule(ranks, ranks * SEGMENTS, whole, joined(half(0, adds=True), half(1, adds=False)), whole)


def in_two_levels(ranks: int, on_host: int) -> Schedule:
    """A ring of the ranks of a host that adds up, rings of the ranks with the same place on all hosts, a ring of the
    host that hands out. Raises ValueError unless ``on_host`` divides ``ranks``.
    """
    hosts = hosts_of(ranks, on_host)

    def across(first: int, *, adds: bool) -> Iterator[Round]:
        def transfer(rank: int, turn: int) -> Transfer:
            host, place = divmod(rank, on_host)
            mine = shard(place + 1, on_host, hosts)  # what a ring that adds up leaves at this place
            return same(rank, (rank + on_host) % ranks, (mine[(host + first - turn) % hosts],), adds=adds)

        return every_turn(ranks, range(hosts - 1), transfer)

    whole = vectors(ranks, ranks)
    rounds = joined(
        on_every_host(ranks, on_host, hosts, adds=True),
        across(0, adds=True),
        across(1, adds=False),
        on_every_host(ranks, on_host, hosts, adds=False),
    )
    return Schedule(ranks, ranks, whole, rounds, whole)


def on_every_host(ranks: int, on_host: int, length: int, *, adds: bool) -> Iterator[Round]:
    """On each host a ring over shards of ``length`` blocks: one that adds up, which leaves shard p + 1 at place p, or
    one that hands these out.
    """
    first = 0 if adds else 1
    return around_every_host(ranks, on_host, lambda place: shard(place + first, on_host, length), adds=adds)


def around_every_host(
    ranks: int, on_host: int, slots: Callable[[int], Slots] = lambda place: (place,), *, adds: bool = False
) -> Iterator[Round]:
    """On each host a ring in which ``slots(place)`` set out from that place."""

    def onward(rank: int, turn: int) -> Transfer:
        following = rank - rank % on_host + (rank + 1) % on_host
        return same(rank, following, slots((rank - turn) % on_host), adds=adds)

    return every_turn(ranks, range(on_host - 1), onward)


def shard(number: int, on_host: int, length: int) -> Slots:
    """The blocks of one of ``on_host`` shards."""
    first = number % on_host * length
    return tuple(range(first, first + length))


def hosts_of(ranks: int, on_host: int) -> int:
    """How many hosts there are. Raises ValueError unless ``on_host`` divides ``ranks``."""
    if ranks % on_host:
        raise ValueError(f"{ranks} ranks are not a multiple of {on_host} on a host")
    return ranks // on_host
