"""What can be drawn: algorithms that can be measured by hand, those of a switch that adds, and those of libraries."""

from collections.abc import Callable, Iterator

from busbw.schedules import ALGORITHMS, Algorithm
from busbw.schedules.base import Round, Schedule, is_power_of_two, joined, same, vectors
from busbw.schedules.exchanges import gathering_recursive_doubling
from busbw.schedules.rooted import scatter_binomial
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


def _power_of_two(ranks: int) -> str | None:
    return None if is_power_of_two(ranks) else f"it takes a power of two of ranks; the group has {ranks}"


OF_LIBRARIES: dict[str, dict[str, Algorithm]] = {
    "all_reduce": {"gloo": Algorithm("Gloo's ring, two segments of each block under way", gloo_all_reduce)},
    "reduce": {"gloo": Algorithm("Gloo's ring that adds up, then all to rank 0", gloo_reduce)},
    "broadcast": {
        "scatter-recursive-doubling": Algorithm(
            "a binomial scatter, then all that is there to a partner", scatter_and_double, _power_of_two
        )
    },
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
