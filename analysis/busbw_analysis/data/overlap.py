"""How much of the communication is hidden behind a concurrent computation, with separate posting and waiting costs.

Overlap as OSU defines it for non-blocking collectives (osu_iallreduce and others): the time saved by running call and
computation together instead of one after the other, as a share of the time of the call alone. Time spent computing
does not count as communication, even if the two slow each other down; that slowdown is reported separately.
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
"""Range of computation alone over call alone in which the two count as about equal."""

_PURE, _POST, _COMPUTE, _WAIT, _EXPOSED, _ALONE, _SLOWDOWN = range(7)


@dataclass(frozen=True, slots=True)
class Overlap:
    """The overlap of one group. Times are ns per call: medians over launches of launch medians of the slowest rank.

    share: max(0, 1 − exposed / pure), median over launches: 1 if posting and waiting add nothing to the computation,
        0 if they cost as much as the call alone
    low, high: 95 % interval of ``share`` if there are enough launches, else their range; None for a single launch
    pure_ns: the call alone
    post_ns, wait_ns: posting the call, and waiting for it after the computation
    exposed_ns: the part of the call that the computation does not hide
    compute_alone_ns: the computation alone
    slowdown: computation during the call over the same computation alone. Each sample is divided by the time alone in
        its own block, because every block has its own amount of computation.
    slowdown_low, slowdown_high: interval of ``slowdown``, of the same kind as ``low`` and ``high``
    balance: computation alone over call alone, in the launch where they differ most; 1 is ideal
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
        """Whether in some launch computation and call differed too much in length."""
        return not BALANCED[0] <= self.balance <= BALANCED[1]

    @property
    def imbalance(self) -> float:
        """The longer of computation alone and call alone over the shorter, in the launch where they differ most."""
        return max(self.balance, 1 / self.balance)


def overlap_of(launches: Mapping[tuple[int, int], Sequence[Block]]) -> Overlap | None:
    """The overlap of one group of ranks, from the blocks of every launch; None unless all blocks recorded one."""
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
        balance=max(
            (float(middle[_ALONE] / middle[_PURE]) for middle in middles), key=lambda ratio: max(ratio, 1 / ratio)
        ),
    )


def _over_launches(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """The median over launches, with its interval if there are enough, else their range; None for a single launch."""
    over = median_over_launches(values)
    if len(values) == 1 or over.low is not None:
        return over.median, over.low, over.high
    return over.median, min(values), max(values)


def _rows(part: OverlapSamples) -> Floats:
    """One row per sample: pure, post, compute, wait, exposed, computation alone in this block, slowdown."""
    columns = [part.pure_ns, part.post_ns, part.compute_ns, part.wait_ns, part.exposed_ns]
    table = np.asarray(columns, dtype=np.float64).T
    # busbw never records 0; a clock without any tick must not break a report.
    alone = np.full(len(table), max(part.compute_alone_ns, 1), dtype=np.float64)
    return np.column_stack([table, alone, table[:, _COMPUTE] / alone])
