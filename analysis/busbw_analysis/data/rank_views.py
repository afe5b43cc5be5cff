"""Each rank's own times, beside those of the slowest rank, and how often it arrived last."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from busbw.runs.records import QUANTILES
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.load import Block


@dataclass(frozen=True, slots=True)
class RankView:
    """The results of one rank.

    median_ns: median over launches of this rank's median time, ns per call
    own_share: median over blocks of this rank's median over the slowest rank's median
    late_count: number of samples in which this rank entered last. If ``GroupSummary.entry_known`` is false: in which it
        had the shortest time. That usually means the same for a synchronising op, and nothing for any other.
    samples: number of samples counted
    """

    rank: int
    median_ns: float
    own_share: float
    late_count: int
    samples: int


def views_of(ranks: Sequence[int], launches: Mapping[tuple[int, int], Sequence[Block]]) -> tuple[RankView, ...]:
    """One view per rank in ``ranks``, from the blocks of every launch."""
    samples = [block.samples for blocks in launches.values() for block in blocks]
    last = np.concatenate([group.last_rank or group.fastest_rank for group in samples])
    middle = QUANTILES.index(0.5)
    medians: list[tuple[int, float]] = []
    shares: list[tuple[int, float]] = []
    for blocks in launches.values():
        own: list[tuple[int, float]] = []
        for block in blocks:
            slowest = float(np.median(block.samples.slowest_ns))
            for entry in block.samples.per_rank:
                own.append((entry.rank, entry.quantiles_ns[middle] / block.measurement.calls))
                shares.append((entry.rank, entry.quantiles_ns[middle] / slowest))
        medians += [(rank, median(values)) for rank, values in by_key(own).items()]
    of_rank, of_slowest, nothing = by_key(medians), by_key(shares), [float("nan")]
    return tuple(
        RankView(
            rank,
            median(of_rank.get(rank, nothing)),
            median(of_slowest.get(rank, nothing)),
            int((last == rank).sum()),
            len(last),
        )
        for rank in ranks
    )
