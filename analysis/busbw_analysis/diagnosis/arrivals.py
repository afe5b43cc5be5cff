"""Who came when: the order of arrival in every block, and which rank was late in one case.

This is the evidence; ``lateness`` weighs it over all cases of a group of ranks.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from busbw.statistics import autocorrelation_time
from busbw_analysis.data.load import Block

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

Seen = Literal["every entry", "last entry", "shortest time"]
"""What is known of who came when: when every rank entered; who came last and how long after the first; or, without a
common clock, only who had the shortest time, which in a synchronising op is usually the one that came last."""

TIMES_USUAL = 5.0
"""Late is who comes last by more than this many times what is usual for the others."""
RELEASE_NS = 10_000.0
"""And by more than this: a barrier in shared memory lets its ranks go one after another, always in the same order, some
hundred ns to some µs apart, and who leaves it last is no slow rank.
"""

_USUAL_QUANTILE = 0.8
_SHORTEST_STRETCH = 5


@dataclass(frozen=True, slots=True)
class Part:
    """One block: the slowest time, who came last (place in the group) and by how much after the next (or, where the
    other entries are not known, after the first), and the entry of every rank (ranks × samples, ns) or None.
    """

    launch: tuple[int, int]
    slowest: Floats
    last: Integers
    gap: Floats
    entries: Floats | None
    clock_error_ns: float


@dataclass(frozen=True, slots=True)
class LateCounts:
    """One case, seen with some suspects in mind. ``shares`` is launch → how often each place of the group was late,
    ``share`` the mean of that and ``cost`` of what it cost; ``late`` holds place and lateness (ns) of everybody who was
    late; ``duels`` is suspect → stretches that it won and lost.
    """

    usual_ns: float
    shares: Mapping[tuple[int, int], Floats]
    share: Floats
    cost: Floats
    late: tuple[Integers, Floats]
    duels: Mapping[int, tuple[int, int]]


def mean(vectors: Iterable[Floats]) -> Floats:
    """The mean of vectors of one length."""
    return np.asarray(np.mean(list(vectors), axis=0), dtype=np.float64)


def seen_in(blocks: Sequence[Block]) -> Seen:
    """What is known of all these blocks together."""
    if any(block.samples.last_rank is None or block.samples.arrival_skew_ns is None for block in blocks):
        return "shortest time"
    # Long blocks keep no entries of every rank, and need none: what they have many of are quiet samples.
    return "every entry" if any(_has_entries(block) for block in blocks) else "last entry"


def _has_entries(block: Block) -> bool:
    return all(one.entries_ns is not None for one in block.samples.per_rank)


def part_of(block: Block, seen: Seen) -> Part:
    """The arrivals of one block, as far as they were ``seen``."""
    samples = block.samples
    slowest = np.asarray(samples.slowest_ns, dtype=np.float64)
    places = {rank: place for place, rank in enumerate(samples.ranks)}
    entries: Floats | None = None
    if seen == "shortest time":
        who, gap = samples.late_rank, slowest - np.asarray(samples.fastest_ns, dtype=np.float64)
    else:
        who, gap = samples.last_rank or (), np.asarray(samples.arrival_skew_ns, dtype=np.float64)
    if seen == "every entry" and _has_entries(block):
        by_rank = {one.rank: one.entries_ns for one in samples.per_rank}
        entries = np.asarray([by_rank[rank] for rank in samples.ranks], dtype=np.float64)
        gap = _highest_gap(entries)
    return Part(
        launch=(block.run, block.launch),
        slowest=slowest,
        last=np.asarray([places[rank] for rank in who], dtype=np.int64),
        gap=gap,
        entries=entries,
        clock_error_ns=float(block.measurement.clock_error_ns or 0),
    )


def most_suspicious(cases: Sequence[Sequence[Part]], count: int) -> list[int]:
    """The places of the group by how much of the calls' time each came after the middle of all, most first."""
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


def late_counts(parts: Sequence[Part], suspects: Sequence[int], count: int) -> LateCounts:
    """What one case says about everybody when ``suspects`` are not asked what is usual."""
    of_others = [np.where(np.isin(part.last, suspects), 0.0, part.gap) for part in parts]
    among = [_gap_among_others(part, suspects, fallback) for part, fallback in zip(parts, of_others, strict=True)]
    usual = float(np.quantile(np.concatenate(among), _USUAL_QUANTILE))
    limit = max(TIMES_USUAL * usual, RELEASE_NS, *(part.clock_error_ns for part in parts))
    nothing = np.zeros(count)
    samples: dict[tuple[int, int], int] = {}
    counts: dict[tuple[int, int], Floats] = {}
    waits: dict[tuple[int, int], Floats] = {}
    places, lateness = [], []
    won = dict.fromkeys(suspects, 0)
    lost = dict.fromkeys(suspects, 0)
    for part, others in zip(parts, of_others, strict=True):
        at = np.flatnonzero(others > limit)
        late = [(part.last[at], at, others[at])]
        for place in suspects:
            own = _lateness_of(part, place, suspects)
            was_late = own > limit
            mine = np.flatnonzero(was_late)
            late.append((np.full(len(mine), place, dtype=np.int64), mine, own[mine]))
            wins, losses = _duels(was_late, at, part.last[at], count)
            won[place] += wins
            lost[place] += losses
        who, when, by = (np.concatenate(column) for column in zip(*late, strict=True))
        samples[part.launch] = samples.get(part.launch, 0) + len(part.slowest)
        counts[part.launch] = counts.get(part.launch, nothing) + np.bincount(who, minlength=count)
        share_of_call = np.minimum(by / part.slowest[when], 1)
        waits[part.launch] = waits.get(part.launch, nothing) + np.bincount(who, share_of_call, count)
        places.append(who)
        lateness.append(by)
    shares = {launch: counts[launch] / taken for launch, taken in samples.items()}
    return LateCounts(
        usual_ns=usual,
        shares=shares,
        share=mean(shares.values()),
        cost=mean(waits[launch] / taken for launch, taken in samples.items()),
        late=(np.concatenate(places), np.concatenate(lateness)),
        duels={place: (won[place], lost[place]) for place in suspects},
    )


def _gap_among_others(part: Part, suspects: Sequence[int], fallback: Floats) -> Floats:
    """How far the last unsuspected rank came after the next one, ns.

    Several suspects are so often last themselves that it takes the others alone to tell what is usual for them.
    """
    if part.entries is None or len(suspects) == 1:
        return fallback
    return _highest_gap(np.delete(part.entries, suspects, axis=0))


def _highest_gap(entries: Floats) -> Floats:
    highest = np.partition(entries, len(entries) - 2, axis=0)[-2:]
    return np.asarray(highest[1] - highest[0])


def _lateness_of(part: Part, place: int, suspects: Sequence[int]) -> Floats:
    """How long after the last unsuspected rank ``place`` came, 0 where it did not, ns."""
    if part.entries is None:
        return np.asarray(np.where(part.last == place, part.gap, 0.0))
    others: Floats = np.delete(part.entries, suspects, axis=0).max(axis=0)
    return np.asarray(np.maximum(part.entries[place] - others, 0.0))


def _duels(was_late: npt.NDArray[np.bool_], at: Integers, who: Integers, count: int) -> tuple[int, int]:
    """In how many stretches of one block a rank was late more often, and less often, than the worst of the others.

    ``at`` are the samples in which another one, ``who``, was late. A stretch is twice as long as lateness knows of
    itself, so that one spell of a busy core counts once.
    """
    rare = was_late if was_late.mean() < 0.5 else ~was_late
    length = max(_SHORTEST_STRETCH, math.ceil(2 * autocorrelation_time(rare.astype(np.float64))))
    stretches = max(1, len(was_late) // length)
    stretch = np.arange(len(was_late)) * stretches // len(was_late)
    own = np.bincount(stretch[was_late], minlength=stretches)
    most = np.zeros(stretches, dtype=np.int64)
    keys, times = np.unique(stretch[at] * count + who, return_counts=True)
    np.maximum.at(most, keys // count, times)
    return int((own > most).sum()), int((own < most).sum())
