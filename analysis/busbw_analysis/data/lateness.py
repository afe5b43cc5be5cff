"""Stragglers: which ranks arrive late, how often, by how much and at what cost. Only significant ones are flagged.

The rule and its reasons are in docs/method.md, "Stragglers and slow links"; ``tests/bench/late_ranks.py`` measures its
error rates on real ranks.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from busbw.ops import SYNCHRONISING
from busbw.runs.records import GroupSamples, Imported, Measurement
from busbw.runs.store import StoredRun
from busbw.statistics import autocorrelation_time
from busbw_analysis.data.distributions import binomial_tail
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.intervals import LAUNCHES_FOR_AN_INTERVAL, Floats, resampled
from busbw_analysis.data.ragged import Integers

Seen = Literal["every entry", "last entry", "shortest time"]
"""What is known about arrivals: the entry of every rank; the last rank and its delay after the first; or, without a
common clock, only the rank with the shortest time, which in a synchronising op is usually the last to arrive.
"""

TIMES_USUAL = 5.0
"""A rank is late if it arrives last by more than this many times the usual delay of the other ranks …"""
RELEASE_NS = (10_000.0, 100_000.0)
"""… and by more than half of the fastest call, within these limits. A barrier releases its ranks up to one message
apart, always in the same order: some hundred ns to some µs in shared memory, up to 0.1 ms over sockets. The last one to
leave is not a straggler.
"""

_USUAL_QUANTILE = 0.8
_SHORTEST_STRETCH = 5


@dataclass(frozen=True, slots=True)
class Part:
    """The arrivals of one block.

    slowest: time of the slowest rank, per sample, ns.
    last: place (in the group) of the last rank, per sample.
    gap: delay of the last rank after the next one, ns; after the first one if the other entries are unknown.
    entries: entry of every rank (ranks × samples, ns); None if unknown.
    """

    launch: int
    slowest: Floats
    last: Integers
    gap: Floats
    entries: Floats | None
    clock_error_ns: float


@dataclass(frozen=True, slots=True)
class LateCounts:
    """One case, evaluated for a set of suspects.

    usual_ns: usual delay of the ranks that are not suspects.
    shares: launch → share of the samples in which each place of the group was late.
    share: mean of ``shares`` over launches.
    cost: share of the time of the calls that the others waited for each place.
    late: place and lateness (ns) of every late arrival.
    duels: windows that each suspect won and lost (ranks × 2).
    """

    usual_ns: float
    shares: Mapping[int, Floats]
    share: Floats
    cost: Floats
    late: tuple[Integers, Floats]
    duels: Integers


def mean(vectors: Iterable[Floats]) -> Floats:
    """The mean of vectors of equal length."""
    return np.asarray(np.mean(list(vectors), axis=0), dtype=np.float64)


def _seen_in(blocks: Sequence[GroupSamples]) -> Seen:
    """What is known about arrivals in all of these blocks."""
    if any(samples.last_rank is None or samples.arrival_skew_ns is None for samples in blocks):
        return "shortest time"
    # Long blocks do not store the entries of every rank. They have enough quiet samples without them.
    return "every entry" if any(map(_has_entries, blocks)) else "last entry"


def _has_entries(samples: GroupSamples) -> bool:
    return all(member.entries_ns is not None for member in samples.per_rank)


def _part(block: Measurement, samples: GroupSamples, seen: Seen) -> Part:
    """The arrivals of one group in one block, at the level of detail ``seen``."""
    slowest = np.asarray(samples.slowest_ns, dtype=np.float64)
    places = {rank: place for place, rank in enumerate(samples.ranks)}
    entries: Floats | None = None
    if seen == "shortest time":
        who, gap = samples.fastest_rank, slowest - np.asarray(samples.fastest_ns, dtype=np.float64)
    else:
        who, gap = samples.last_rank or (), np.asarray(samples.arrival_skew_ns, dtype=np.float64)
    if seen == "every entry" and _has_entries(samples):
        by_rank = {member.rank: member.entries_ns for member in samples.per_rank}
        entries = np.asarray([by_rank[rank] for rank in samples.ranks], dtype=np.float64)
        gap = _highest_gap(entries)
    return Part(
        launch=block.launch,
        slowest=slowest,
        last=np.asarray([places[rank] for rank in who], dtype=np.int64),
        gap=gap,
        entries=entries,
        clock_error_ns=float(block.clock_error_ns or 0),
    )


def most_suspicious(cases: Sequence[Sequence[Part]], count: int) -> list[int]:
    """The places of the group by the share of the time of the calls that each arrived after the median, largest
    first.
    """
    mass = np.zeros(count)
    for parts in cases:
        total = np.zeros(count)
        for part in parts:
            if part.entries is None:
                total += np.bincount(part.last, np.minimum(part.gap / part.slowest, 1), count)
            else:
                behind = np.maximum(part.entries - np.median(part.entries, axis=0), 0)
                total += np.minimum(behind / part.slowest, 1).sum(axis=1)
        mass += total / sum(len(part.slowest) for part in parts)
    return [int(place) for place in np.argsort(-mass, kind="stable")]


def release_ns(cases: Iterable[Sequence[Part]]) -> float:
    """How far apart (ns) a barrier may release the ranks that ran ``cases``."""
    fastest = min(float(np.median(np.concatenate([part.slowest for part in parts]))) for parts in cases)
    return float(np.clip(fastest / 2, *RELEASE_NS))


def late_counts(parts: Sequence[Part], suspects: Sequence[int], count: int, release: float) -> LateCounts:
    """Evaluate one case; the usual delay is computed without ``suspects``, and delays up to ``release`` (ns) are that
    of the barrier.
    """
    of_others = [np.where(np.isin(part.last, suspects), 0.0, part.gap) for part in parts]
    # With several suspects, most samples have a suspect last, so the usual delay is taken from the other entries.
    among = [
        gap if part.entries is None or len(suspects) == 1 else _highest_gap(np.delete(part.entries, suspects, axis=0))
        for part, gap in zip(parts, of_others, strict=True)
    ]
    usual = float(np.quantile(np.concatenate(among), _USUAL_QUANTILE))
    limit = max(TIMES_USUAL * usual, release, *(part.clock_error_ns for part in parts))
    taken: Counter[int] = Counter()
    counts = {part.launch: np.zeros(count) for part in parts}
    waits = {part.launch: np.zeros(count) for part in parts}
    places, lateness = [], []
    duels = np.zeros((count, 2), dtype=np.int64)
    for part, others in zip(parts, of_others, strict=True):
        at = np.flatnonzero(others > limit)
        late = [(part.last[at], at, others[at])]
        for place in suspects:
            own = _lateness_of(part, place, suspects)
            was_late = own > limit
            mine = np.flatnonzero(was_late)
            late.append((np.full(len(mine), place, dtype=np.int64), mine, own[mine]))
            duels[place] += _duels(was_late, at, part.last[at], count)
        who, when, by = (np.concatenate(column) for column in zip(*late, strict=True))
        taken[part.launch] += len(part.slowest)
        counts[part.launch] += np.bincount(who, minlength=count)
        waits[part.launch] += np.bincount(who, np.minimum(by / part.slowest[when], 1), count)
        places.append(who)
        lateness.append(by)
    shares = {launch: counts[launch] / samples for launch, samples in taken.items()}
    return LateCounts(
        usual_ns=usual,
        shares=shares,
        share=mean(shares.values()),
        cost=mean(waits[launch] / samples for launch, samples in taken.items()),
        late=(np.concatenate(places), np.concatenate(lateness)),
        duels=duels,
    )


def _highest_gap(entries: Floats) -> Floats:
    highest = np.partition(entries, len(entries) - 2, axis=0)[-2:]
    return np.asarray(highest[1] - highest[0])


def _lateness_of(part: Part, place: int, suspects: Sequence[int]) -> Floats:
    """How long after the last rank that is not a suspect ``place`` arrived, ns; 0 if it was earlier."""
    if part.entries is None:
        return np.asarray(np.where(part.last == place, part.gap, 0.0))
    others: Floats = np.delete(part.entries, suspects, axis=0).max(axis=0)
    return np.asarray(np.maximum(part.entries[place] - others, 0.0))


def _duels(was_late: npt.NDArray[np.bool_], at: Integers, who: Integers, count: int) -> tuple[int, int]:
    """The number of windows of one block in which a rank was late more often, and less often, than the worst other
    rank.

    ``at`` are the samples in which another rank, ``who``, was late. A window is twice the autocorrelation time of the
    lateness, so that one spell of a busy core counts once.
    """
    if not was_late.any() and not len(at):
        return 0, 0
    rare = was_late if was_late.mean() < 0.5 else ~was_late
    length = max(_SHORTEST_STRETCH, math.ceil(2 * autocorrelation_time(rare.astype(np.float64))))
    stretches = max(1, len(was_late) // length)
    stretch = np.arange(len(was_late)) * stretches // len(was_late)
    own = np.bincount(stretch[was_late], minlength=stretches)
    most = np.zeros(stretches, dtype=np.int64)
    keys, times = np.unique(stretch[at] * count + who, return_counts=True)
    np.maximum.at(most, keys // count, times)
    return int((own > most).sum()), int((own < most).sum())


LEAST_EXCESS = 0.1
"""A straggler is late in at least this much more of the samples than the next rank."""
LEAST_COST = 0.07
"""The others wait for a straggler for at least this share of the time of the calls."""

_SIGNIFICANCE = 0.01
_MOST_LATE_TOGETHER = 8


@dataclass(frozen=True, slots=True)
class RankLateness:
    """How late one rank arrives, over all synchronising cases of its group.

    host: None if unknown, and until runs are pooled
    share: share of the samples in which it was late, that is after all ranks not flagged with it, by more than five
        times the usual delay; mean over cases.
    low, high: 95 % interval of ``share`` over launches from six launches on, range from two on, None for one.
    median_ns: median lateness in those samples; None if it was never late.
    cost: share of the time of the calls that the others waited for it.
    ahead: number of windows of samples (of ``stretches``) in which it was late more often than any other rank.
    p_value: probability of ``ahead`` or more among equal ranks, times their number.
    cases, launches: number of them in which it stands out.
    worst: index of the case in which it stands out most.
    excess: how much more often it is late than the next rank, as a share of the samples; mean over cases.
    rivals: number of ranks of which one wins a window.
    launch_shares: ``share`` of every launch.
    flagged: it is a straggler: all of this is beyond chance and beyond what healthy ranks do.
    """

    rank: int
    host: str | None
    share: float
    low: float | None
    high: float | None
    median_ns: float | None
    cost: float
    ahead: int
    stretches: int
    p_value: float
    cases: int
    launches: int
    worst: int
    excess: float
    rivals: int
    launch_shares: tuple[float, ...]
    flagged: bool


@dataclass(frozen=True, slots=True)
class GroupLateness:
    """The ranks of one group.

    release_ns: delays up to this are those of the barrier.
    usual_ns: in 4 of 5 samples no rank arrived later than this after the next one, except the flagged ones (or the most
        suspicious one); median over cases.
    cases, launches, samples: how many were evaluated.
    """

    ranks: tuple[int, ...]
    seen: Seen
    release_ns: float
    usual_ns: float
    cases: int
    launches: int
    samples: int
    members: tuple[RankLateness, ...]

    @property
    def flagged(self) -> tuple[RankLateness, ...]:
        """The stragglers, the most costly first."""
        return tuple(sorted((member for member in self.members if member.flagged), key=lambda member: -member.cost))


def lateness_of(stored: StoredRun) -> tuple[GroupLateness, ...]:
    """Every group of ranks of a run that ran synchronising ops together, in the order of the plan.

    Cases weigh alike, and so do launches within a case, because lateness belongs to a rank and not to a size. A case
    with wrong data does not count.
    """
    failed = {row.case for row in stored.failed if not row.transient}
    failed |= {case for case, check in stored.checks if check.state == "wrong"}
    places = {case: place for place, case in enumerate(stored.run.cases)}
    results = (row for row in stored.rows if isinstance(row, Measurement | Imported) and row.case not in failed)
    waiting = sorted((row for row in results if row.case.op in SYNCHRONISING), key=lambda row: places[row.case])
    blocks = by_key(
        (group.ranks, (row, group)) for row in waiting if isinstance(row, Measurement) for group in row.groups
    )
    printed = by_key((row.ranks, row) for row in waiting if isinstance(row, Imported) and row.rank_samples_ns)
    groups: list[GroupLateness] = []
    for ranks, members in blocks.items():
        if len(ranks) > 1:
            seen = _seen_in([samples for _, samples in members])
            parts = by_key((places[row.case], _part(row, samples, seen)) for row, samples in members)
            groups.append(_group(ranks, seen, parts))
    for ranks, rows in printed.items():
        if len(ranks) > 1:
            parts = by_key((places[row.case], _printed_part(row)) for row in rows)
            groups.append(_group(ranks, "shortest time", parts))
    return tuple(groups)


def _printed_part(row: Imported) -> Part:
    """The arrivals in a row of a log with the times of every rank."""
    times = np.asarray(row.rank_samples_ns, dtype=np.float64)
    slowest: Floats = times.max(axis=0)
    return Part(row.launch, slowest, times.argmin(axis=0), slowest - times.min(axis=0), None, 0.0)


def together(
    runs: Sequence[tuple[Sequence[GroupLateness], Sequence[int]]], hosts: Sequence[str]
) -> tuple[GroupLateness, ...]:
    """The lateness over several runs, each with the indices of its cases among those of all runs; ``hosts[r]`` is the
    host of rank r.

    Every run has its own usual delay. Shares and costs are means over launches, windows and launches are added.
    """
    groups = by_key((group.ranks, (group, indices)) for of_run, indices in runs for group in of_run)
    return tuple(_together(members, hosts) for members in groups.values())


def _together(members: Sequence[tuple[GroupLateness, Sequence[int]]], hosts: Sequence[str]) -> GroupLateness:
    groups = [group for group, _ in members]
    weights = [group.launches for group in groups]
    seen: Seen = max((group.seen for group in groups), key=get_args(Seen).index)
    return replace(
        groups[0],
        seen=seen,
        release_ns=max(group.release_ns for group in groups),
        usual_ns=float(np.median([group.usual_ns for group in groups])),
        cases=max(group.cases for group in groups),
        launches=sum(weights),
        samples=sum(group.samples for group in groups),
        members=tuple(
            replace(
                _member(
                    [(group.members[place], indices) for group, indices in members], weights, seen, len(groups[0].ranks)
                ),
                host=hosts[rank] if rank < len(hosts) else None,
            )
            for place, rank in enumerate(groups[0].ranks)
        ),
    )


def _member(
    entries: Sequence[tuple[RankLateness, Sequence[int]]], weights: Sequence[int], seen: Seen, ranks: int
) -> RankLateness:
    """One rank over several runs."""
    if len(entries) == 1:
        ((member, indices),) = entries
        return replace(member, worst=indices[member.worst])
    members = [member for member, _ in entries]
    worst, indices = max(entries, key=lambda entry: entry[0].excess)
    late = [member.median_ns for member in members if member.median_ns is not None]
    shares = tuple(share for member in members for share in member.launch_shares)
    low, high = _over_launches(shares)
    total = {name: sum(getattr(member, name) for member in members) for name in ("ahead", "stretches", "launches")}
    means: dict[str, Any] = {
        name: float(np.average([getattr(member, name) for member in members], weights=weights))
        for name in ("share", "cost", "excess")
    }
    rivals = min(member.rivals for member in members)
    pooled = replace(
        worst,
        **total,
        **means,
        low=low,
        high=high,
        median_ns=float(np.median(late)) if late else None,
        p_value=_p_value(total["ahead"], total["stretches"], ranks, rivals),
        cases=max(member.cases for member in members),
        worst=indices[worst.worst],
        rivals=rivals,
        launch_shares=shares,
        flagged=any(member.flagged for member in members),
    )
    return _flagged(pooled, seen, ranks)


def _p_value(ahead: int, stretches: int, ranks: int, rivals: int) -> float:
    """The probability that one of ``ranks`` equal ranks wins ``ahead`` or more windows of ``stretches`` among
    ``rivals``. Each wins a window with the same probability; ties are left out.
    """
    return min(1.0, ranks * binomial_tail(ahead, stretches, 1 / rivals))


def _flagged(member: RankLateness, seen: Seen, ranks: int) -> RankLateness:
    """``member``, flagged only if all conditions of a straggler are met; ``flagged``: it is a suspect."""
    return replace(
        member,
        flagged=(
            member.flagged
            and member.excess >= LEAST_EXCESS
            and member.cost >= LEAST_COST
            and member.p_value < _SIGNIFICANCE
            and 2 * member.launches > len(member.launch_shares)
            # Some algorithms always give one rank the shortest time, so a majority of the samples is required.
            and (seen != "shortest time" or member.share >= (1 + 1 / ranks) / 2)
        ),
    )


def _group(ranks: tuple[int, ...], seen: Seen, parts: Mapping[int, Sequence[Part]]) -> GroupLateness:
    # The largest set of suspects of which every one stands out. Ranks that are late in turn hide each other when they
    # are tested one by one.
    order = most_suspicious(list(parts.values()), len(ranks))
    most = min(len(ranks) // 2, _MOST_LATE_TOGETHER) if seen == "every entry" else 1
    trial = _trial(tuple(order[:1]), parts, ranks, seen, release_ns(parts.values()))
    for count in range(2, most + 1):
        more = _trial(tuple(order[:count]), parts, ranks, seen, trial.release_ns)
        if all(more.judged(place).flagged for place in more.suspects):
            trial = more
    return GroupLateness(
        ranks=ranks,
        seen=seen,
        release_ns=trial.release_ns,
        usual_ns=float(np.median([tally.usual_ns for tally in trial.counts.values()])),
        cases=len(parts),
        launches=len({part.launch for members in parts.values() for part in members}),
        samples=sum(len(part.slowest) for members in parts.values() for part in members),
        members=tuple(trial.judged(place) for place in range(len(ranks))),
    )


def _trial(
    suspects: tuple[int, ...],
    parts: Mapping[int, Sequence[Part]],
    ranks: tuple[int, ...],
    seen: Seen,
    release_ns: float,
) -> "_Trial":
    counts = {case: late_counts(blocks, suspects, len(ranks), release_ns) for case, blocks in parts.items()}
    by_launch = by_key(pair for tally in counts.values() for pair in tally.shares.items())
    return _Trial(suspects, ranks, seen, release_ns, counts, [mean(shares) for shares in by_launch.values()])


@dataclass(frozen=True, slots=True)
class _Trial:
    """All cases evaluated for one set of suspects.

    counts: of every case, by case index
    means: the share of late samples of every rank (mean over cases), launch by launch
    """

    suspects: tuple[int, ...]
    ranks: tuple[int, ...]
    seen: Seen
    release_ns: float
    counts: Mapping[int, LateCounts]
    means: Sequence[Floats]

    def judged(self, place: int) -> RankLateness:
        """One rank over all cases; only a suspect can be flagged."""
        aside = self.suspects if place in self.suspects else (place,)
        # Called for each of up to 10,000 ranks: setdiff1d would sort.
        others = np.delete(np.arange(len(self.ranks)), aside)
        counts = self.counts.values()
        excess = {case: float(tally.share[place] - tally.share[others].max()) for case, tally in self.counts.items()}
        won, lost = np.sum([tally.duels[place] for tally in counts], axis=0).tolist()
        launch_shares = tuple(float(shares[place]) for shares in self.means)
        low, high = _over_launches(launch_shares)
        own = np.concatenate([tally.late[1][tally.late[0] == place] for tally in counts])
        count = len(self.ranks)
        return _flagged(
            RankLateness(
                rank=self.ranks[place],
                host=None,
                share=float(np.mean([tally.share[place] for tally in counts])),
                low=low,
                high=high,
                median_ns=float(np.median(own)) if len(own) else None,
                cost=float(np.mean([tally.cost[place] for tally in counts])),
                ahead=won,
                stretches=won + lost,
                p_value=_p_value(won, won + lost, count, 1 + len(others)),
                cases=sum(value >= LEAST_EXCESS for value in excess.values()),
                launches=sum(float(shares[place] - shares[others].max()) >= LEAST_EXCESS for shares in self.means),
                worst=max(excess, key=excess.__getitem__),
                excess=float(np.mean(list(excess.values()))),
                rivals=1 + len(others),
                launch_shares=launch_shares,
                flagged=place in self.suspects,
            ),
            self.seen,
            count,
        )


def _over_launches(shares: Sequence[float]) -> tuple[float | None, float | None]:
    if len(shares) == 1:
        return None, None
    if len(shares) < LAUNCHES_FOR_AN_INTERVAL:
        return min(shares), max(shares)
    # The interval of the mean, not the median: a rank that is late in one launch of ten has a median share of 0.
    interval = resampled(shares)
    return interval.low, interval.high
