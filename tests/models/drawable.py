"""What can be drawn: algorithms that can be measured by hand, those of a switch that adds, and those of libraries."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from library_schedules import LIBRARY_SCHEDULES
from switched_schedules import SWITCHED

from busbw.ops.algorithms import ALGORITHMS, Algorithm, is_power_of_two
from busbw.ops.schedules import NOTHING, Round, Schedule, joined, same, vectors

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


def gloo_all_gather(ranks: int) -> Schedule:
    """gloo/allgather.cc: a ring, every block in two halves."""
    own = tuple(
        tuple(slot % _SEGMENTS if slot // _SEGMENTS == rank else NOTHING for slot in range(ranks * _SEGMENTS))
        for rank in range(ranks)
    )
    rounds = tuple(
        tuple(
            same(rank, (rank + 1) % ranks, ((rank - step) % ranks * _SEGMENTS + half,))
            for half in range(_SEGMENTS)
            for rank in range(ranks)
        )
        for step in range(ranks - 1)
    )
    return Schedule(ranks, ranks * _SEGMENTS, own, rounds, vectors(ranks, ranks * _SEGMENTS))


_GLOO: dict[str, dict[str, Algorithm]] = {
    "all_reduce": {"gloo": Algorithm("Gloo's ring, two segments of each block under way", gloo_all_reduce)},
    "all_gather": {"gloo": Algorithm("Gloo's ring, both halves of each block under way", gloo_all_gather)},
    "reduce": {"gloo": Algorithm("Gloo's ring that adds up, then all to rank 0", gloo_reduce)},
}
"""What else Gloo runs has the messages of an algorithm by hand, or of an MPI library."""

_MPI = {
    ("all_reduce", "rabenseifner-in-halves"): "Rabenseifner's way; of a pair beyond the power of two each adds a half",
    ("broadcast", "linear"): "everything from rank 0 to everybody at once",
    ("broadcast", "unsegmented-chain"): "from rank to rank",
    ("broadcast", "unsegmented-binary-tree"): "down a binary tree",
    ("broadcast", "binomial-tree-at-once"): "down a binomial tree, to all children at once",
    ("broadcast", "4-nomial-tree-at-once"): "down a tree of radix 4, to all children at once",
    ("broadcast", "scatter-recursive-doubling"): "a binomial scatter, then all that is there to a partner",
    ("reduce", "linear"): "everything to rank 0 at once",
    ("reduce", "unsegmented-chain"): "from rank to rank",
    ("reduce", "unsegmented-binary-tree"): "up a binary tree",
    ("reduce", "rabenseifner-in-halves"): "Rabenseifner's way; of a pair beyond the power of two each adds a half",
    ("reduce_scatter", "recursive-doubling"): "all that is not at home yet to a partner twice as far",
    ("reduce_scatter", "butterfly"): "halving in the order of mirrored bits, then blocks go home",
    ("gather", "linear-in-turns"): "rank 0 asks one rank after the other",
    ("barrier", "linear-at-once"): "all to rank 0 at once, and back",
}
_POWERS_OF_TWO = frozenset({("broadcast", "scatter-recursive-doubling"), ("reduce_scatter", "recursive-doubling")})


def _of_mpi(op: str, name: str) -> Algorithm:
    algorithm = Algorithm(_MPI[op, name], LIBRARY_SCHEDULES[op, name])
    return (
        replace(algorithm, fit=is_power_of_two, needs="a power-of-two number of ranks")
        if (op, name) in _POWERS_OF_TWO
        else algorithm
    )


def _of_libraries(op: str) -> dict[str, Algorithm]:
    return {**_GLOO.get(op, {}), **{name: _of_mpi(of, name) for of, name in LIBRARY_SCHEDULES if of == op}}


def _switched(op: str, name: str, schedule: Callable[[int, int], Schedule]) -> Algorithm:
    summary = _SUMMARIES[op, name]
    if name == "sharp":
        return Algorithm(summary, schedule, needs="several hosts with equal rank counts", levels=True)
    return Algorithm(summary, lambda ranks: schedule(ranks, ranks))


DRAWABLE: dict[str, dict[str, Algorithm]] = {
    op: {
        **named,
        **{name: _switched(op, name, make) for name, make in SWITCHED.get(op, {}).items()},
        **_of_libraries(op),
    }
    for op, named in ALGORITHMS.items()
}
"""Operation → name → algorithm. Whoever is in a schedule beyond the ranks that were asked for is a switch."""
