"""Schedules of one more member, a switch that adds what comes and hands out to many: they are executed and counted, but
no send and receive can do them. The switch is the last rank, begins with nothing and ends with nothing.
"""

from collections.abc import Callable, Iterable, Iterator

from busbw.ops.algorithms import on_every_host
from busbw.ops.schedules import (
    NOTHING,
    Round,
    Schedule,
    Slots,
    Transfer,
    joined,
    own_blocks,
    same,
    vectors,
)


def nvls_all_reduce(ranks: int) -> Schedule:
    """Each rank has the switch add up one block, as everybody has it, and hand out the sum to everybody, itself
    included (NVLink SHARP).
    """
    whole = tuple(range(ranks))
    rounds = [
        tuple(_added(ranks, ((rank, whole) for rank in whole))),
        tuple(same(ranks, rank, (rank,)) for rank in range(ranks)),
        tuple(same(rank, ranks, (rank,)) for rank in range(ranks)),
        tuple(same(ranks, rank, whole) for rank in range(ranks)),
    ]
    return _with_switch(vectors(ranks, ranks), rounds, vectors(ranks, ranks))


def nvls_all_gather(ranks: int) -> Schedule:
    """Each rank has the switch hand out its block to all others."""
    rounds = [
        tuple(same(rank, ranks, (rank,)) for rank in range(ranks)),
        tuple(same(ranks, rank, _others(rank, ranks)) for rank in range(ranks)),
    ]
    return _with_switch(own_blocks(ranks), rounds, vectors(ranks, ranks))


def nvls_reduce_scatter(ranks: int) -> Schedule:
    """Each rank has the switch add up its block as all others have it."""
    rounds = [
        tuple(_added(ranks, ((rank, _others(rank, ranks)) for rank in range(ranks)))),
        tuple(same(ranks, rank, (rank,), adds=True) for rank in range(ranks)),
    ]
    return _with_switch(vectors(ranks, ranks), rounds, tuple((rank,) for rank in range(ranks)))


def sharp_all_reduce(ranks: int, on_host: int) -> Schedule:
    """A ring of the ranks of a host that adds up, the switch of the network that adds up what hosts have, a ring of the
    host that hands out (SHARP; CollNet in NCCL): every rank sends its share of S to the network once.
    """
    hosts = ranks // on_host

    def mine(rank: int) -> Slots:
        return ((rank + 1) % on_host,)  # what a ring that adds up leaves here

    between = [
        tuple(_added(ranks, ((rank, mine(rank)) for rank in range(ranks) if hosts > 1))),
        tuple(same(ranks, rank, mine(rank)) for rank in range(ranks) if hosts > 1),
    ]
    rounds = joined(
        on_every_host(ranks, on_host, 1, adds=True), iter(between), on_every_host(ranks, on_host, 1, adds=False)
    )
    return _with_switch(vectors(ranks, on_host), rounds, vectors(ranks, on_host))


SWITCHED: dict[str, dict[str, Callable[[int, int], Schedule]]] = {
    "all_reduce": {"nvls": lambda ranks, _on_host: nvls_all_reduce(ranks), "sharp": sharp_all_reduce},
    "all_gather": {"nvls": lambda ranks, _on_host: nvls_all_gather(ranks)},
    "reduce_scatter": {"nvls": lambda ranks, _on_host: nvls_reduce_scatter(ranks)},
}
"""Operation → name → the schedule of n ranks, so many on each host."""


def _with_switch(begins: tuple[Slots, ...], rounds: Iterable[Round], ends: tuple[Slots, ...]) -> Schedule:
    """One rank alone has its result, and sends nothing."""
    blocks = len(begins[0])
    sent = joined(iter(rounds)) if len(begins) > 1 else ()
    return Schedule(len(begins) + 1, blocks, (*begins, (NOTHING,) * blocks), sent, (*ends, ()))


def _added(switch: int, sent: Iterable[tuple[int, Slots]]) -> Iterator[Transfer]:
    """What ranks send to the switch: the first of each block replaces what it had, all others are added."""
    there: set[int] = set()
    for rank, slots in sent:
        first = tuple(slot for slot in slots if slot not in there)
        more = tuple(slot for slot in slots if slot in there)
        there.update(first)
        yield from (same(rank, switch, group, adds=adds) for group, adds in ((first, False), (more, True)) if group)


def _others(rank: int, ranks: int) -> Slots:
    return tuple(slot for slot in range(ranks) if slot != rank)
