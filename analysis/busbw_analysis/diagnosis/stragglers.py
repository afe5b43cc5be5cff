"""Who comes late, how often, by how much and at what cost; a rank is named only when chance cannot explain it.

The rule and its reasons are in docs/method.md, "Stragglers and slow links"; ``tests/bench/late_ranks.py`` measures on
real ranks how often it is right.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom

from busbw.ops import SYNCHRONISING
from busbw.units import format_time
from busbw_analysis.data.groups import LAUNCHES_FOR_AN_INTERVAL
from busbw_analysis.data.intervals import cluster_bootstrap
from busbw_analysis.data.load import Block, Dataset, rank_list
from busbw_analysis.data.summary import CaseSummary
from busbw_analysis.diagnosis.arrivals import (
    Floats,
    LateCounts,
    Part,
    Seen,
    late_counts,
    mean,
    most_suspicious,
    part_of,
    seen_in,
)

LEAST_EXCESS = 0.1
"""In so much more of the samples than the next rank must a rank be late to be named."""
LEAST_COST = 0.07
"""That share of the calls' time must the others have waited for it."""

_SIGNIFICANCE = 0.01
_MOST_LATE_TOGETHER = 8


@dataclass(frozen=True, slots=True)
class RankLateness:
    """How late one rank comes, over all synchronising cases of its group.

    ``share`` of the samples it came late: after all ranks that are not flagged with it, by more than five times what
    is usual there. It is a mean over cases; ``low`` and ``high`` are its 95 % interval over launches from six on, its
    range from two on, None for one. ``median_ns`` is the median lateness in those samples (NaN: never late), ``cost``
    the share of the calls' time that the others waited for it. Of ``stretches`` of samples it was late more often than
    any other in ``ahead``; ``p_value`` is the chance of that among equal ranks, times their number. It stands out in
    ``cases`` and ``launches``, most in the case ``worst``. ``flagged``: all of that is beyond what chance and healthy
    ranks do.
    """

    rank: int
    host: str | None
    share: float
    low: float | None
    high: float | None
    median_ns: float
    cost: float
    ahead: int
    stretches: int
    p_value: float
    cases: int
    launches: int
    worst: int
    flagged: bool


@dataclass(frozen=True, slots=True)
class GroupLateness:
    """The ranks of one group. In 4 of 5 samples nobody but the flagged (or the most suspicious rank) came more than
    ``usual_ns`` after the next one (median over the cases). There were so many ``cases``, ``launches`` and ``samples``.
    """

    ranks: tuple[int, ...]
    seen: Seen
    usual_ns: float
    cases: int
    launches: int
    samples: int
    members: tuple[RankLateness, ...]

    @property
    def flagged(self) -> tuple[RankLateness, ...]:
        """The ranks that the others wait for, the dearest first."""
        return tuple(sorted((member for member in self.members if member.flagged), key=lambda member: -member.cost))


def lateness_of(dataset: Dataset, summaries: Iterable[CaseSummary]) -> tuple[GroupLateness, ...]:
    """Every group of ranks that ran synchronising ops together, in the order of the plan.

    Cases weigh alike, and so do launches within a case: it is a rank that is late, not a size.
    """
    blocks: dict[tuple[int, tuple[int, ...]], list[Block]] = {}
    for block in dataset.blocks:
        blocks.setdefault((block.case, block.samples.ranks), []).append(block)
    groups: dict[tuple[int, ...], dict[int, list[Block]]] = {}
    for summary in summaries:
        if summary.state == "measured" and summary.case.op in SYNCHRONISING:
            for group in summary.groups:
                if len(group.ranks) > 1 and (summary.index, group.ranks) in blocks:
                    groups.setdefault(group.ranks, {})[summary.index] = blocks[summary.index, group.ranks]
    hosts = dataset.runs[0].run.hosts
    return tuple(_group(ranks, cases, hosts) for ranks, cases in groups.items())


def in_words(group: GroupLateness, member: RankLateness, case_names: Mapping[int, str]) -> str:
    """What is held against ``member`` of ``group``, as whole sentences; ``case_names`` has a name for every case."""
    who = f"Rank {member.rank}" + (f" (host {member.host})" if member.host else "")
    spread = "" if member.low is None or member.high is None else f" ({member.low:.0%} to {member.high:.0%} by launch)"
    chance = "p < 10⁻¹²" if member.p_value < 1e-12 else f"p = {member.p_value:.1g}"
    if group.seen == "shortest time":
        what = "has the shortest time (usually the one that came last)"
        usual = f"Of the others none is ahead by more than {format_time(group.usual_ns)}"
    else:
        what = "arrives late"
        usual = f"Of the others none comes more than {format_time(group.usual_ns)} after the rest"
    host = [other for other in group.members if other.host == member.host]
    together = (
        f" All ranks of host {member.host} are late."
        if 1 < len(host) < len(group.members) and all(other.flagged for other in host)
        else ""
    )
    return (
        f"{who} {what} in {member.share:.0%} of samples{spread}, median {format_time(member.median_ns)}. {usual} in 4 "
        f"of 5 samples. Waiting for it takes {member.cost:.0%} of the time of the calls. Among ranks "
        f"{rank_list(group.ranks)} it stands out in {member.cases} of {_counted(group.cases, 'case')} and "
        f"{member.launches} of {_counted(group.launches, 'launch', 'launches')}, most in {case_names[member.worst]}; "
        f"it was late more often than any other in {member.ahead} of "
        f"{_counted(member.stretches, 'stretch', 'stretches')} of samples ({chance} among equal ranks).{together}"
    )


def _counted(count: int, one: str, many: str | None = None) -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def _group(ranks: tuple[int, ...], cases: Mapping[int, list[Block]], hosts: Sequence[str]) -> GroupLateness:
    seen = seen_in([block for blocks in cases.values() for block in blocks])
    parts = {case: [part_of(block, seen) for block in blocks] for case, blocks in cases.items()}
    # The members of the largest set of which every one stands out; two ranks that are late in turns hide each other
    # from whoever looks for one.
    order = most_suspicious(list(parts.values()), len(ranks))
    most = min(len(ranks) // 2, _MOST_LATE_TOGETHER) if seen == "every entry" else 1
    counts, judged = _trial(order[:1], parts, ranks, hosts, seen)
    for count in range(2, most + 1):
        more = _trial(order[:count], parts, ranks, hosts, seen)
        if all(member.flagged for member in more[1].values()):
            counts, judged = more
    means = _of_launches(counts)
    return GroupLateness(
        ranks=ranks,
        seen=seen,
        usual_ns=float(np.median([one.usual_ns for one in counts.values()])),
        cases=len(cases),
        launches=len({part.launch for members in parts.values() for part in members}),
        samples=sum(len(part.slowest) for members in parts.values() for part in members),
        members=tuple(
            judged.get(place) or _judged(place, (), counts, means, ranks, hosts, seen) for place in range(len(ranks))
        ),
    )


def _trial(
    suspects: Sequence[int],
    parts: Mapping[int, Sequence[Part]],
    ranks: tuple[int, ...],
    hosts: Sequence[str],
    seen: Seen,
) -> tuple[dict[int, LateCounts], dict[int, RankLateness]]:
    """What every case says when these are suspected, and what that makes of each of them."""
    counts = {case: late_counts(members, suspects, len(ranks)) for case, members in parts.items()}
    means = _of_launches(counts)
    return counts, {place: _judged(place, suspects, counts, means, ranks, hosts, seen) for place in suspects}


def _of_launches(counts: Mapping[int, LateCounts]) -> list[Floats]:
    """The share of every rank in every launch, over all cases."""
    by_launch: dict[tuple[int, int], list[Floats]] = {}
    for one in counts.values():
        for launch, shares in one.shares.items():
            by_launch.setdefault(launch, []).append(shares)
    return [mean(shares) for shares in by_launch.values()]


def _judged(
    place: int,
    suspects: Sequence[int],
    counts: Mapping[int, LateCounts],
    means: Sequence[Floats],
    ranks: tuple[int, ...],
    hosts: Sequence[str],
    seen: Seen,
) -> RankLateness:
    """One rank over all cases; it can be flagged only when it is among ``suspects``."""
    aside = suspects if place in suspects else (place,)
    others = np.delete(np.arange(len(ranks)), aside)  # of 10,000 ranks each comes here: setdiff1d would sort them
    excess = {case: float(one.share[place] - one.share[others].max()) for case, one in counts.items()}
    share = float(np.mean([one.share[place] for one in counts.values()]))
    cost = float(np.mean([one.cost[place] for one in counts.values()]))
    won, lost = (sum(one.duels.get(place, (0, 0))[side] for one in counts.values()) for side in (0, 1))
    # Among equals the one that was late most often is each with the same chance, and ties are left out.
    p_value = min(1.0, len(ranks) * float(binom.sf(won - 1, won + lost, 1 / (1 + len(others)))))
    launches = sum(float(one[place] - one[others].max()) >= LEAST_EXCESS for one in means)
    low, high = _over_launches([float(one[place]) for one in means])
    own = np.concatenate([one.late[1][one.late[0] == place] for one in counts.values()])
    rank = ranks[place]
    return RankLateness(
        rank=rank,
        host=hosts[rank] if rank < len(hosts) else None,
        share=share,
        low=low,
        high=high,
        median_ns=float(np.median(own)) if len(own) else float("nan"),
        cost=cost,
        ahead=won,
        stretches=won + lost,
        p_value=p_value,
        cases=sum(value >= LEAST_EXCESS for value in excess.values()),
        launches=launches,
        worst=max(excess, key=excess.__getitem__),
        flagged=(
            place in suspects
            and float(np.mean(list(excess.values()))) >= LEAST_EXCESS
            and cost >= LEAST_COST
            and p_value < _SIGNIFICANCE
            and 2 * launches > len(means)
            # The shortest time is often some rank's by the algorithm, so it must be most of them to mean anything.
            and (seen != "shortest time" or share >= (1 + 1 / len(ranks)) / 2)
        ),
    )


def _over_launches(shares: Sequence[float]) -> tuple[float | None, float | None]:
    if len(shares) == 1:
        return None, None
    if len(shares) < LAUNCHES_FOR_AN_INTERVAL:
        return min(shares), max(shares)
    # Of the mean, as the share is one: a rank that is late in a launch of ten has a median of 0.
    found = cluster_bootstrap([np.asarray([share]) for share in shares], lambda one: float(one[0]))
    return found.low, found.high
