"""How much of a communication a computation beside it hides, with the cost of posting and of waiting apart.

Overlap as OSU defines it for non-blocking collectives (osu_iallreduce and its kin): of the time that the call takes
alone, the share by which call and computation together are shorter than one after the other. Time spent computing is
no communication even where the two slow each other down, so that slow-down is told beside it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from busbw.runs.records import OverlapSamples
from busbw_analysis.data.intervals import median_over_launches
from busbw_analysis.data.load import Block

Floats = npt.NDArray[np.float64]

BALANCED: Final = (0.5, 2.0)
"""Computation alone over call alone, from where to where the two are about equal."""

_PURE, _POST, _COMPUTE, _WAIT, _EXPOSED, _ALONE, _SLOWDOWN = range(7)


@dataclass(frozen=True, slots=True)
class Overlap:
    """Times are ns a call, medians over launches of launch medians of the slowest rank.

    ``share`` is max(0, 1 − exposed / pure): 1 when posting and waiting cost nothing beside the computation, 0 when they
    cost as much as the call alone. It is the median over launches of what each of them has; ``low`` and ``high`` are
    its 95 % interval where there are launches enough for one, else their range, None for a single launch. ``slowdown``
    is the computation beside the call over the same one alone, with ends alike: every sample over what that computation
    took alone in its own block, because each block has an amount of its own.

    ``balance`` is the computation alone over the call alone, of the launch where the two are furthest apart: both
    should take as long as each other.
    """

    share: float
    low: float | None
    high: float | None
    pure_ns: float
    post_ns: float
    wait_ns: float
    exposed_ns: float
    compute_alone_ns: float
    slowdown: float
    slowdown_low: float | None
    slowdown_high: float | None
    balance: float

    @property
    def unbalanced(self) -> bool:
        """Whether the computation of a launch was far from as long as its call."""
        return not BALANCED[0] <= self.balance <= BALANCED[1]

    @property
    def imbalance(self) -> float:
        """The longer of computation alone and call alone over the shorter, where they are furthest apart."""
        return max(self.balance, 1 / self.balance)


def overlap_of(launches: Mapping[tuple[int, int], Sequence[Block]]) -> Overlap | None:
    """The overlap of one group of ranks, from the blocks of every launch; None where nothing was to overlap."""
    middles: list[Floats] = []
    for blocks in launches.values():
        parts = [block.samples.overlap for block in blocks]
        known = [_rows(part) for part in parts if part is not None]
        if len(known) != len(parts):
            return None
        middles.append(np.median(np.concatenate(known), axis=0))
    pure, post, _, wait, exposed, alone, _ = np.median(middles, axis=0).tolist()
    hidden = [max(0.0, 1.0 - float(middle[_EXPOSED] / middle[_PURE])) for middle in middles]
    slowed = [float(middle[_SLOWDOWN]) for middle in middles]
    share, low, high = _over_launches(hidden)
    slowdown, slowdown_low, slowdown_high = _over_launches(slowed)
    return Overlap(
        share=share,
        low=low,
        high=high,
        pure_ns=pure,
        post_ns=post,
        wait_ns=wait,
        exposed_ns=exposed,
        compute_alone_ns=alone,
        slowdown=slowdown,
        slowdown_low=slowdown_low,
        slowdown_high=slowdown_high,
        balance=max((float(middle[_ALONE] / middle[_PURE]) for middle in middles), key=lambda one: max(one, 1 / one)),
    )


def _over_launches(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """The median over launches; its interval with launches enough, else their range, None for a single one."""
    over = median_over_launches(values)
    if len(values) == 1 or over.low is not None:
        return over.median, over.low, over.high
    return over.median, min(values), max(values)


def _rows(part: OverlapSamples) -> Floats:
    """The samples as rows: pure, post, compute, wait, exposed, the computation alone in its block, and the
    computation over that.
    """
    columns = [part.pure_ns, part.post_ns, part.compute_ns, part.wait_ns, part.exposed_ns]
    table = np.asarray(columns, dtype=np.float64).T
    # Never 0 in what the instrument writes; a clock that saw none must not break a report.
    alone = np.full(len(table), max(part.compute_alone_ns, 1), dtype=np.float64)
    return np.column_stack([table, alone, table[:, _COMPUTE] / alone])
