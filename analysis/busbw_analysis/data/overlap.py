"""How much of the communication is hidden behind a concurrent computation, with separate posting and waiting costs.

Overlap as OSU defines it for non-blocking collectives (osu_iallreduce and others): the time saved by running call and
computation together instead of one after the other, as a share of the time of the call alone. Time spent computing
does not count as communication, even if the two slow each other down; that slowdown is reported separately.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from busbw_analysis.data.intervals import Floats, interval_of

BALANCED: Final = (0.5, 2.0)
"""Range of computation alone over call alone in which the two count as about equal."""


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


def overlap_of(launches: Floats) -> Overlap | None:
    """The overlap of one group of ranks from launches × ``launches.OVERLAP``; None unless all launches have one."""
    if np.isnan(launches).any():
        return None
    pure, post, _, wait, exposed, alone, slowed = launches.T
    hidden = np.maximum(0.0, 1.0 - exposed / pure)
    share, slowdown = interval_of(hidden), interval_of(slowed)
    return Overlap(
        share=float(np.median(hidden)),
        low=share.low_ns,
        high=share.high_ns,
        pure_ns=float(np.median(pure)),
        post_ns=float(np.median(post)),
        wait_ns=float(np.median(wait)),
        exposed_ns=float(np.median(exposed)),
        compute_alone_ns=float(np.median(alone)),
        slowdown=float(np.median(slowed)),
        slowdown_low=slowdown.low_ns,
        slowdown_high=slowdown.high_ns,
        balance=max((alone / pure).tolist(), key=lambda ratio: max(ratio, 1 / ratio)),
    )
