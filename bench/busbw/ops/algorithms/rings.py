"""All-reduce by rings: one, several at once, in segments, and in two levels of hosts."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from busbw.ops.algorithms.base import Round, Schedule, Slots, Transfer, every_rank, joined, same, vectors


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


def segmented(ranks: int, segments: int, in_flight: int) -> Schedule:
    """A ring in which the block of each rank is cut into ``segments`` that go around one behind the other,
    ``in_flight`` of them at once, so that a library can add up one while another is under way (as Gloo does).
    """

    def half(first: int, *, adds: bool) -> Iterator[Round]:
        steps = range((ranks - 1) * segments)
        for start in steps[::in_flight]:
            together = steps[start : start + in_flight]
            yield tuple(_step(rank, *divmod(step, segments), first, adds=adds) for step in together for rank in every)

    def _step(rank: int, turn: int, segment: int, first: int, *, adds: bool) -> Transfer:
        return same(rank, (rank + 1) % ranks, ((rank + first - turn) % ranks * segments + segment,), adds=adds)

    every, whole = range(ranks), vectors(ranks, ranks * segments)
    return Schedule(ranks, ranks * segments, whole, joined(half(0, adds=True), half(1, adds=False)), whole)


def in_two_levels(ranks: int, on_host: int) -> Schedule:
    """A ring of the ranks of a host that adds up, rings of the ranks with the same place on all hosts, a ring of the
    host that hands out. Raises ValueError unless ``on_host`` divides ``ranks``.
    """
    hosts = hosts_of(ranks, on_host)

    def across(turn: int, first: int, *, adds: bool) -> Round:
        def transfer(rank: int) -> Transfer:
            host, place = divmod(rank, on_host)
            mine = shard(place + 1, on_host, hosts)  # what a ring that adds up leaves at this place
            return same(rank, (rank + on_host) % ranks, (mine[(host + first - turn) % hosts],), adds=adds)

        return every_rank(ranks, transfer)

    between = (across(turn, first, adds=adds) for first, adds in ((0, True), (1, False)) for turn in range(hosts - 1))
    whole = vectors(ranks, ranks)
    rounds = joined(
        on_every_host(ranks, on_host, hosts, adds=True), between, on_every_host(ranks, on_host, hosts, adds=False)
    )
    return Schedule(ranks, ranks, whole, rounds, whole)


def on_every_host(ranks: int, on_host: int, length: int, *, adds: bool) -> Iterator[Round]:
    """On each host a ring over shards of ``length`` blocks: one that adds up, which leaves shard p + 1 at place p, or
    one that hands these out.
    """
    first = 0 if adds else 1
    return around_every_host(ranks, on_host, lambda place: shard(place + first, on_host, length), adds=adds)


def around_every_host(
    ranks: int, on_host: int, slots: Callable[[int], Slots], *, adds: bool = False
) -> Iterator[Round]:
    """On each host a ring in which ``slots(place)`` set out from that place."""
    for turn in range(on_host - 1):
        yield tuple(
            same(rank, _next(rank, on_host), slots((rank - turn) % on_host), adds=adds) for rank in range(ranks)
        )


def shard(number: int, on_host: int, length: int) -> Slots:
    """The blocks of one of ``on_host`` shards."""
    first = number % on_host * length
    return tuple(range(first, first + length))


def _next(rank: int, on_host: int) -> int:
    host, place = divmod(rank, on_host)
    return host * on_host + (place + 1) % on_host


def hosts_of(ranks: int, on_host: int) -> int:
    """How many hosts there are. Raises ValueError unless ``on_host`` divides ``ranks``."""
    if ranks % on_host:
        raise ValueError(f"{ranks} ranks are not a multiple of {on_host} on a host")
    return ranks // on_host
