"""Each rank's own times beside the headline, and how often it came last."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from busbw.runs.records import QUANTILES
from busbw_analysis.data.load import Block


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank: median over launches of its own median (ns per call), the median over blocks of its own median over
    that of the slowest rank, and how often it was the last to come.

    ``late_count`` of ``samples`` samples had this rank enter last or, where ``GroupSummary.entry_known`` is false, hold
    the shortest time (which in a synchronising op is usually the same, and says nothing in another).
    """

    rank: int
    median_ns: float
    own_share: float
    late_count: int
    samples: int


def views_of(ranks: Sequence[int], launches: Mapping[tuple[int, int], Sequence[Block]]) -> tuple[RankView, ...]:
    """One view of each of ``ranks``, from the blocks of every launch."""
    samples = [block.samples for blocks in launches.values() for block in blocks]
    late = np.concatenate([one.last_rank or one.late_rank for one in samples])
    middle = QUANTILES.index(0.5)
    medians: dict[int, list[float]] = {rank: [] for rank in ranks}
    shares: dict[int, list[float]] = {rank: [] for rank in ranks}
    for blocks in launches.values():
        own: dict[int, list[float]] = {rank: [] for rank in ranks}
        for block in blocks:
            slowest = float(np.median(block.samples.slowest_ns))
            for entry in block.samples.per_rank:
                own[entry.rank].append(entry.quantiles_ns[middle] / block.measurement.calls)
                shares[entry.rank].append(entry.quantiles_ns[middle] / slowest)
        for rank, values in own.items():
            if values:
                medians[rank].append(median(values))
    return tuple(
        RankView(
            rank,
            median(medians[rank]) if medians[rank] else float("nan"),
            median(shares[rank]) if shares[rank] else float("nan"),
            int((late == rank).sum()),
            len(late),
        )
        for rank in ranks
    )
