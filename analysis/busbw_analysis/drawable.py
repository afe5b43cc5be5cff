"""What can be drawn: algorithms that can be measured by hand, those of a switch that adds, and those of libraries."""

from collections.abc import Callable, Iterator

from busbw.schedules import ALGORITHMS, Algorithm
from busbw.schedules.base import NOTHING, Round, Schedule, is_power_of_two, joined, own_blocks, same, vectors
from busbw.schedules.exchanges import gathering_recursive_doubling
from busbw.schedules.rooted import broadcast_chain, scatter_binomial
from busbw.schedules.switched import SWITCHED

_SEGMENTS = 2
"""Of each block in Gloo's rings, as long as S is at most 2n MiB; two are under way at once."""

_SUMMARIES = {
    ("all_reduce", "nvls"): "a switch adds up a block for each rank, and hands it out",
    ("all_reduce", "sharp"): "rings on every host, a switch between them",
    ("all_gather", "nvls"): "a switch hands out the block of each rank",
    ("reduce_scatter", "nvls"): "a switch adds up a block for each rank",
}


def gloo_all_reduce(ranks: int) -> Schedule:
    """gloo/allreduce.cc: a ring that adds up, then one that hands out, with every block in two segments."""
    whole = vectors(ranks, ranks * _SEGMENTS)
    rounds = joined(_around(ranks, 1, adds=True), _around(ranks, 0, adds=False))
    return Schedule(ranks, ranks * _SEGMENTS, whole, rounds, whole)


def gloo_reduce(ranks: int) -> Schedule:
    """gloo/reduce.cc: the ring that adds up, then every rank sends its block to the root."""
    blocks = ranks * _SEGMENTS
    home = tuple(same(rank, 0, tuple(range(rank * _SEGMENTS, (rank + 1) * _SEGMENTS))) for rank in range(1, ranks))
    rounds = joined(_around(ranks, 1, adds=True), iter([home]))
    return Schedule(ranks, blocks, vectors(ranks, blocks), rounds, (tuple(range(blocks)), *[()] * (ranks - 1)))


def _around(ranks: int, first: int, *, adds: bool) -> Iterator[Round]:
    """To the rank before, beginning with the block that is ``first`` after the own one."""
    blocks = ranks * _SEGMENTS
    for step in range(0, blocks - _SEGMENTS, _SEGMENTS):
        yield tuple(
            same(rank, (rank - 1) % ranks, (((rank + first) * _SEGMENTS + step + segment) % blocks,), adds=adds)
            for segment in range(_SEGMENTS)
            for rank in range(ranks)
        )


def scatter_and_double(ranks: int) -> Schedule:
    """A broadcast by a scatter, then recursive doubling; a power of two of ranks (Thakur et al. 2005)."""
    scattering, gathering = scatter_binomial(ranks), gathering_recursive_doubling(ranks)
    return Schedule(ranks, ranks, scattering.begins, (*scattering.rounds, *gathering.rounds), gathering.ends)


def broadcast_at_once(ranks: int) -> Schedule:
    """Rank 0 sends everything to everybody."""
    begins = ((0,), *[(NOTHING,)] * (ranks - 1))
    return Schedule(ranks, 1, begins, (tuple(same(0, rank, (0,)) for rank in range(1, ranks)),), vectors(ranks, 1))


def broadcast_down_a_tree(ranks: int) -> Schedule:
    """Everything to two children; all first ones of a level come before the second ones (Open MPI)."""

    def level(width: int) -> Round:
        parents = range(width - 1, min(2 * width - 1, ranks))
        below = [(rank, rank + width * child) for child in (1, 2) for rank in parents]
        return tuple(same(rank, to, (0,)) for rank, to in below if to < ranks)

    begins = ((0,), *[(NOTHING,)] * (ranks - 1))
    rounds = joined(level(1 << depth) for depth in range(ranks.bit_length()))
    return Schedule(ranks, 1, begins, rounds, vectors(ranks, 1))


def gather_in_turns(ranks: int) -> Schedule:
    """Rank 0 asks one rank after the other for its block (Open MPI)."""
    rounds = [one for rank in range(1, ranks) for one in ((same(0, rank, ()),), (same(rank, 0, (rank,)),))]
    return Schedule(ranks, ranks, own_blocks(ranks), tuple(rounds), (tuple(range(ranks)), *[()] * (ranks - 1)))


def barrier_at_once(ranks: int) -> Schedule:
    """Every rank to rank 0, and back (Open MPI)."""
    nothing = ((),) * ranks
    others = range(1, ranks)
    rounds = (tuple(same(rank, 0, ()) for rank in others), tuple(same(0, rank, ()) for rank in others))
    return Schedule(ranks, 1, nothing, rounds, nothing)


def _power_of_two(ranks: int) -> str | None:
    return None if is_power_of_two(ranks) else f"it takes a power of two of ranks; the group has {ranks}"


OF_LIBRARIES: dict[str, dict[str, Algorithm]] = {
    "all_reduce": {"gloo": Algorithm("Gloo's ring, two segments of each block under way", gloo_all_reduce)},
    "reduce": {"gloo": Algorithm("Gloo's ring that adds up, then all to rank 0", gloo_reduce)},
    "broadcast": {
        "linear": Algorithm("everything from rank 0 to everybody at once", broadcast_at_once),
        "unsegmented-chain": Algorithm("from rank to rank", lambda ranks: broadcast_chain(ranks, 1)),
        "unsegmented-binary-tree": Algorithm("down a binary tree", broadcast_down_a_tree),
        "scatter-recursive-doubling": Algorithm(
            "a binomial scatter, then all that is there to a partner", scatter_and_double, _power_of_two
        ),
    },
    "gather": {"linear-in-turns": Algorithm("rank 0 asks one rank after the other", gather_in_turns)},
    "barrier": {"linear-at-once": Algorithm("all to rank 0 at once, and back", barrier_at_once)},
}
"""What libraries run, and nobody can measure by hand."""


def _switched(op: str, name: str, schedule: Callable[[int, int], Schedule]) -> Algorithm:
    summary = _SUMMARIES[op, name]
    if name == "sharp":
        return Algorithm(summary, schedule, takes="several hosts, as many ranks on each", levels=True)
    return Algorithm(summary, lambda ranks: schedule(ranks, ranks))


DRAWABLE: dict[str, dict[str, Algorithm]] = {
    op: {
        **named,
        **{name: _switched(op, name, make) for name, make in SWITCHED.get(op, {}).items()},
        **OF_LIBRARIES.get(op, {}),
    }
    for op, named in ALGORITHMS.items()
}
"""Operation → name → algorithm. Whoever is in a schedule beyond the ranks that were asked for is a switch."""
