"""Ring all-reduce: one ring, several rings, segmented, and in two levels of hosts."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from busbw.ops.algorithms.base import Round, Schedule, Slots, Transfer, every_turn, joined, same, vectors


def ring(ranks: int) -> Schedule:
    """Once around to reduce, once around to gather (Patarasuk and Yuan 2009)."""
    return _rings(ranks, [range(ranks)])


def both_ways(ranks: int) -> Schedule:
    """Two rings in opposite directions, each with half of the data."""
    return _rings(ranks, [range(ranks), range(ranks - 1, -1, -1)])


def across_hosts(ranks: int, on_host: int) -> Schedule:
    """One ring per rank of a host, each with its share of the data. Ring i enters every host at local rank i and leaves
    at the one before it: each rank sends to another host in one ring only, so all NICs of a host are used. Raises
    ValueError unless ``on_host`` divides ``ranks``.
    """
    hosts_of(ranks, on_host)
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

    whole = vectors(ranks, ranks * len(orders))
    return Schedule(ranks, ranks * len(orders), whole, joined(rounds()), whole)


SEGMENTS, IN_FLIGHT = 4, 2
"""Segments per rank's block of a segmented ring, and segments in flight. Gloo uses segments of at most 1 MiB, at least
two per block, and two in flight."""


def segmented(ranks: int) -> Schedule:
    """A ring in which each rank's block is cut into ``SEGMENTS`` pipelined segments, ``IN_FLIGHT`` at once, so that a
    library can reduce one segment while another is in flight (as Gloo does).
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
    """Ring reduce-scatter within every host, ring all-reduce between ranks with the same local rank, ring all-gather
    within every host. Raises ValueError unless ``on_host`` divides ``ranks``.
    """
    hosts = hosts_of(ranks, on_host)

    def across(first: int, *, adds: bool) -> Iterator[Round]:
        def transfer(rank: int, turn: int) -> Transfer:
            host, place = divmod(rank, on_host)
            mine = shard(place + 1, on_host, hosts)  # the shard that a reducing ring leaves at this place
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
    """On each host, a ring over shards of ``length`` blocks: it reduces and leaves shard p + 1 at place p, or gathers
    these shards.
    """
    first = 0 if adds else 1
    return around_every_host(ranks, on_host, lambda place: shard(place + first, on_host, length), adds=adds)


def around_every_host(
    ranks: int, on_host: int, slots: Callable[[int], Slots] = lambda place: (place,), *, adds: bool = False
) -> Iterator[Round]:
    """On each host, a ring in which ``slots(place)`` start from that place."""

    def onward(rank: int, turn: int) -> Transfer:
        following = rank - rank % on_host + (rank + 1) % on_host
        return same(rank, following, slots((rank - turn) % on_host), adds=adds)

    return every_turn(ranks, range(on_host - 1), onward)


def shard(number: int, on_host: int, length: int) -> Slots:
    """The blocks of shard ``number`` out of ``on_host``."""
    first = number % on_host * length
    return tuple(range(first, first + length))


def hosts_of(ranks: int, on_host: int) -> int:
    """Number of hosts. Raises ValueError unless ``on_host`` divides ``ranks``."""
    if ranks % on_host:
        raise ValueError(f"{ranks} ranks are not a multiple of {on_host} ranks per host")
    return ranks // on_host
