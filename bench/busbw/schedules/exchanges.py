"""All-gather, reduce-scatter and all-to-all: every rank sends to, and hears from, all others."""

from collections.abc import Iterator
from functools import partial

from busbw.schedules.all_reduce import doubled, halved
from busbw.schedules.base import (
    NOTHING,
    Round,
    Schedule,
    Slots,
    Transfer,
    every_rank,
    joined,
    levels,
    own_blocks,
    same,
    vectors,
)

# --- all-gather --------------------------------------------------------------------------------------------------


def gathering_ring(ranks: int) -> Schedule:
    """Every block once around (Chan et al. 2007)."""
    return _gathered(
        ranks,
        (
            every_rank(ranks, lambda rank, turn=turn: same(rank, (rank + 1) % ranks, ((rank - turn) % ranks,)))  # type: ignore[misc]
            for turn in range(ranks - 1)
        ),
    )


def gathering_recursive_doubling(ranks: int) -> Schedule:
    """Everything to a partner twice as far in every round; a power of two of ranks (Thakur et al. 2005)."""
    return _gathered(
        ranks, (every_rank(ranks, partial(doubled, distance=1 << level)) for level in range(levels(ranks)))
    )


def gathering_neighbours(ranks: int) -> Schedule:
    """Exchanges with the two neighbours in turns, two blocks at a time; an even number of ranks (Chen et al. 2005)."""

    def neighbour(rank: int, turn: int) -> int:
        return (rank + (1 if (rank + turn) % 2 == 0 else -1)) % ranks

    def rounds() -> Iterator[Round]:
        yield every_rank(ranks, lambda rank: same(rank, neighbour(rank, 0), (rank,)))
        last = [tuple(sorted((rank, neighbour(rank, 0)))) for rank in range(ranks)]
        for turn in range(1, ranks // 2):
            sent = list(last)
            yield every_rank(ranks, lambda rank, turn=turn, sent=sent: same(rank, neighbour(rank, turn), sent[rank]))  # type: ignore[misc]
            last = [sent[neighbour(rank, turn)] for rank in range(ranks)]

    return _gathered(ranks, rounds())


def gathering_bruck(ranks: int) -> Schedule:
    """All that is there to ranks twice as far down in every round; any number of ranks (Bruck et al. 1997)."""

    def rounds() -> Iterator[Round]:
        for level in range(levels(ranks)):
            step = 1 << level
            sent = tuple(range(min(step, ranks - step)))
            received = tuple(slot + step for slot in sent)
            yield every_rank(
                ranks,
                lambda rank, step=step, sent=sent, received=received: Transfer(  # type: ignore[misc]
                    rank, (rank - step) % ranks, sent, received
                ),
            )

    begins = ((0, *[NOTHING] * (ranks - 1)),) * ranks
    ends = tuple(tuple((block - rank) % ranks for block in range(ranks)) for rank in range(ranks))
    return Schedule(ranks, ranks, begins, joined(rounds()), ends)


def gathering_direct(ranks: int) -> Schedule:
    """Every block to everybody at once."""
    return _gathered(
        ranks, iter([tuple(same(rank, to, (rank,)) for rank in range(ranks) for to in range(ranks) if to != rank)])
    )


def _gathered(ranks: int, rounds: Iterator[Round]) -> Schedule:
    return Schedule(ranks, ranks, own_blocks(ranks), joined(rounds), vectors(ranks, ranks))


# --- reduce-scatter ----------------------------------------------------------------------------------------------


def scattering_ring(ranks: int) -> Schedule:
    """Every block once around, growing (Chan et al. 2007)."""
    return _scattered(
        ranks,
        (
            every_rank(
                ranks,
                lambda rank, turn=turn: same(rank, (rank + 1) % ranks, ((rank - 1 - turn) % ranks,), adds=True),  # type: ignore[misc]
            )
            for turn in range(ranks - 1)
        ),
    )


def scattering_recursive_halving(ranks: int) -> Schedule:
    """Half of what is left to a partner half as far in every round; a power of two of ranks (Thakur et al. 2005)."""
    return _scattered(
        ranks, (every_rank(ranks, partial(halved, distance=1 << level)) for level in reversed(range(levels(ranks))))
    )


def scattering_pairwise(ranks: int) -> Schedule:
    """The block of each other rank straight to it, one rank a round (Thakur et al. 2005)."""
    return _scattered(ranks, (_pairwise(ranks, distance, adds=True) for distance in range(1, ranks)))


def _pairwise(ranks: int, distance: int, *, adds: bool) -> Round:
    return every_rank(
        ranks, lambda rank: same(rank, (rank + distance) % ranks, ((rank + distance) % ranks,), adds=adds)
    )


def _scattered(ranks: int, rounds: Iterator[Round]) -> Schedule:
    return Schedule(ranks, ranks, vectors(ranks, ranks), joined(rounds), tuple((rank,) for rank in range(ranks)))


# --- all-to-all --------------------------------------------------------------------------------------------------


def exchange_pairwise(ranks: int) -> Schedule:
    """One partner a round."""
    return _exchanged(ranks, (_crossed(ranks, [distance]) for distance in range(1, ranks)))


def exchange_spread(ranks: int) -> Schedule:
    """All messages at once."""
    return _exchanged(ranks, iter([_crossed(ranks, range(1, ranks))]))


def _crossed(ranks: int, distances: "range | list[int]") -> Round:
    return tuple(
        Transfer(rank, (rank + distance) % ranks, ((rank + distance) % ranks,), (ranks + rank,))
        for rank in range(ranks)
        for distance in distances
    )


def _exchanged(ranks: int, rounds: Iterator[Round]) -> Schedule:
    """What is received has slots of its own, after those of the input; a rank's own block stays where it is."""
    begins = (tuple(range(ranks)) + (NOTHING,) * ranks,) * ranks
    ends = tuple(tuple(rank if source == rank else ranks + source for source in range(ranks)) for rank in range(ranks))
    return Schedule(ranks, ranks, begins, joined(rounds), ends)


def exchange_bruck(ranks: int) -> Schedule:
    """Blocks travel by the bits of their distance: few messages, more bytes (Bruck et al. 1997)."""

    def rounds() -> Iterator[Round]:
        for level in range(levels(ranks)):
            step = 1 << level
            moving: Slots = tuple(slot for slot in range(ranks) if slot & step)
            yield every_rank(ranks, lambda rank, step=step, moving=moving: same(rank, (rank + step) % ranks, moving))  # type: ignore[misc]

    begins = tuple(tuple((rank + slot) % ranks for slot in range(ranks)) for rank in range(ranks))
    ends = tuple(tuple((rank - source) % ranks for source in range(ranks)) for rank in range(ranks))
    return Schedule(ranks, ranks, begins, joined(rounds()), ends)
