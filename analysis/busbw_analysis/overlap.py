"""How much of a communication a computation beside it hides, with the cost of posting and of waiting apart.

Overlap as OSU defines it for non-blocking collectives (osu_iallreduce and its kin): of the time that the call takes
alone, the share by which call and computation together are shorter than one after the other. Time spent computing is
no communication even where the two slow each other down, so that slow-down is told beside it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from busbw_analysis.launches import median_over_launches
from busbw_analysis.load import Block

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Overlap:
    """Times are ns a call, medians over launches of launch medians of the slowest rank.

    ``share`` is max(0, 1 − exposed / pure): 1 when posting and waiting cost nothing beside the computation, 0 when they
    cost as much as the call alone. It is the median over launches of what each of them has; ``low`` and ``high`` are
    its 95 % interval where there are launches enough for one, else their range, None for a single launch. ``slowdown``
    is the computation beside the call over the same one alone.
    """

    share: float
    low: float | None
    high: float | None
    pure_ns: float
    post_ns: float
    wait_ns: float
    exposed_ns: float
    slowdown: float


def overlap_of(launches: Mapping[tuple[int, int], Sequence[Block]]) -> Overlap | None:
    """The overlap of one group of ranks, from the blocks of every launch; None where nothing was to overlap."""
    taken = [_launch(blocks) for blocks in launches.values()]
    tables = [table for table in taken if table is not None]
    if not tables or len(tables) != len(taken):
        return None
    pure, post, compute, wait, exposed = (
        median([float(np.median(table[:, column])) for table in tables]) for column in range(5)
    )
    parts = [block.samples.overlap for blocks in launches.values() for block in blocks]
    alone = median([part.compute_alone_ns for part in parts if part is not None])
    hidden = [_hidden(table) for table in tables]
    over = median_over_launches(hidden)
    ends = (over.low, over.high) if over.low is not None else (min(hidden), max(hidden))
    return Overlap(
        share=over.median,
        low=None if len(hidden) == 1 else ends[0],
        high=None if len(hidden) == 1 else ends[1],
        pure_ns=pure,
        post_ns=post,
        wait_ns=wait,
        exposed_ns=exposed,
        slowdown=compute / alone if alone else float("nan"),
    )


def _hidden(table: Floats) -> float:
    return max(0.0, 1.0 - float(np.median(table[:, 4])) / float(np.median(table[:, 0])))


def _launch(blocks: Sequence[Block]) -> Floats | None:
    """The samples of a launch as rows: pure, post, compute, wait, exposed."""
    parts = [block.samples.overlap for block in blocks]
    known = [part for part in parts if part is not None]
    if len(known) != len(parts):
        return None
    return np.concatenate(
        [
            np.asarray([part.pure_ns, part.post_ns, part.compute_ns, part.wait_ns, part.exposed_ns], dtype=np.float64).T
            for part in known
        ]
    )
