"""Who comes late: a rank is named only when chance and its own slow spells cannot explain it."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import binomtest

from busbw.statistics import autocorrelation_time
from busbw_analysis.load import Block, Dataset
from busbw_analysis.summary import SYNCHRONISING, CaseSummary

_SIGNIFICANCE = 1e-4
_COST_WORTH_NAMING = 0.1


@dataclass(frozen=True, slots=True)
class LateRank:
    """A rank that the others wait for, in one group of ranks.

    It was late in ``accused`` of ``cases`` synchronising cases. The numbers are of the case ``worst`` in which it
    cost most: ``share`` of ``samples`` samples, ``chance`` that each rank would have, ``cost`` the median share of
    the call's time that the others waited, ``p_value`` of the binomial test on as many free samples as the
    autocorrelation leaves. ``entry_known``: that it entered last was read from a shared clock in all those cases;
    otherwise it held the shortest time.
    """

    rank: int
    ranks: tuple[int, ...]
    accused: int
    cases: int
    worst: int
    share: float
    chance: float
    samples: int
    cost: float
    p_value: float
    entry_known: bool


@dataclass(frozen=True, slots=True)
class _Evidence:
    case: int
    rank: int
    share: float
    samples: int
    cost: float
    p_value: float
    entry_known: bool
    guilty: bool


def late_ranks(dataset: Dataset, summaries: Iterable[CaseSummary]) -> tuple[LateRank, ...]:
    """The ranks to be named.

    A rank is late in a case when it enters last into a synchronising op (without a shared clock: holds the shortest
    time of it) more often than chance
    (p < 10⁻⁴ over the number of ranks), in at least half of the samples beyond its fair share, more often than chance
    in every launch, and costs 10 % of the time; it is named when that is so in most cases.
    """
    blocks: dict[tuple[int, tuple[int, ...]], list[Block]] = {}
    for block in dataset.blocks:
        blocks.setdefault((block.case, block.samples.ranks), []).append(block)
    late = dataset.samples["last_rank"].to_numpy(dtype=np.int64)
    slowest = dataset.samples["slowest_ns"].to_numpy(dtype=np.float64)
    fastest = dataset.samples["fastest_ns"].to_numpy(dtype=np.float64)
    skew = dataset.samples["arrival_skew_ns"].to_numpy(dtype=np.float64)
    wait_share = np.where(np.isnan(skew), 1 - fastest / slowest, np.minimum(skew / slowest, 1.0))
    by_group: dict[tuple[int, ...], list[_Evidence]] = {}
    for summary in summaries:
        if summary.state != "measured" or summary.case.op not in SYNCHRONISING:
            continue
        for group in summary.groups:
            if len(group.ranks) > 1:
                evidence = _evidence(summary.index, group.ranks, blocks[summary.index, group.ranks], late, wait_share)
                by_group.setdefault(group.ranks, []).append(evidence)
    found: list[LateRank] = []
    for ranks, cases in by_group.items():
        for rank in ranks:
            guilty = [evidence for evidence in cases if evidence.guilty and evidence.rank == rank]
            if 2 * len(guilty) > len(cases):
                found.append(_named(rank, ranks, guilty, len(cases)))
    return tuple(found)


def _named(rank: int, ranks: tuple[int, ...], guilty: list[_Evidence], cases: int) -> LateRank:
    worst = max(guilty, key=lambda evidence: evidence.cost)
    return LateRank(
        rank=rank,
        ranks=ranks,
        accused=len(guilty),
        cases=cases,
        worst=worst.case,
        share=worst.share,
        chance=1 / len(ranks),
        samples=worst.samples,
        cost=worst.cost,
        p_value=worst.p_value,
        entry_known=all(evidence.entry_known for evidence in guilty),
    )


def _evidence(
    case: int,
    ranks: tuple[int, ...],
    blocks: list[Block],
    late: npt.NDArray[np.int64],
    wait_share: npt.NDArray[np.float64],
) -> _Evidence:
    """What speaks against the rank that was late most often in one case."""
    launches: dict[tuple[int, int], list[Block]] = {}
    for block in blocks:
        launches.setdefault((block.run, block.launch), []).append(block)
    series = [np.concatenate([late[block.rows] for block in members]) for members in launches.values()]
    everything = np.concatenate(series)
    counts = [int((everything == rank).sum()) for rank in ranks]
    rank = ranks[int(np.argmax(counts))]
    chance, share = 1 / len(ranks), max(counts) / len(everything)
    free = sum(max(1, int(len(one) / _autocorrelation(one == rank))) for one in series)
    p_value = float(binomtest(round(share * free), free, chance, alternative="greater").pvalue)
    waits = np.concatenate([wait_share[block.rows] for block in blocks])
    cost = float(np.median(waits[np.concatenate([late[block.rows] for block in blocks]) == rank]))
    guilty = (
        p_value < _SIGNIFICANCE / len(ranks)
        and share >= (1 + chance) / 2
        and all(float((one == rank).mean()) > chance for one in series)
        and cost >= _COST_WORTH_NAMING
    )
    known = all(block.samples.last_rank is not None for block in blocks)
    return _Evidence(case, rank, share, len(everything), cost, p_value, known, guilty)


def _autocorrelation(was_late: npt.NDArray[np.bool_]) -> float:
    """In samples; of whichever of "late" and "not late" is the rarer, which is what lies above the median."""
    rare = was_late if was_late.mean() < 0.5 else ~was_late
    return autocorrelation_time(rare.astype(np.float64))
