"""What can be drawn: the algorithms that can be measured by hand, and those that need a switch which adds."""

from collections.abc import Callable

from busbw.schedules import ALGORITHMS, Algorithm
from busbw.schedules.base import Schedule
from busbw.schedules.switched import SWITCHED

_SUMMARIES = {
    ("all_reduce", "nvls"): "a switch adds up a block for each rank, and hands it out",
    ("all_reduce", "sharp"): "rings on every host, a switch between them",
    ("all_gather", "nvls"): "a switch hands out the block of each rank",
    ("reduce_scatter", "nvls"): "a switch adds up a block for each rank",
}


def _switched(op: str, name: str, schedule: Callable[[int, int], Schedule]) -> Algorithm:
    summary = _SUMMARIES[op, name]
    if name == "sharp":
        return Algorithm(summary, schedule, takes="several hosts, as many ranks on each", levels=True)
    return Algorithm(summary, lambda ranks: schedule(ranks, ranks))


DRAWABLE: dict[str, dict[str, Algorithm]] = {
    op: {**named, **{name: _switched(op, name, make) for name, make in SWITCHED.get(op, {}).items()}}
    for op, named in ALGORITHMS.items()
}
"""Operation → name → algorithm. Whoever is in a schedule beyond the ranks that were asked for is a switch."""
