"""Pairs of ranks by distance: within a host or between hosts, below the same leaf switch or not.

A pair is only compared with pairs at the same distance: a pair between hosts is not slow just because memory is faster
than a network.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from busbw.ops import MESSAGES, OPS
from busbw.runs.placement import WITHIN_A_HOST, RankPlacement, distance, distance_in_words
from busbw.runs.records import Case, case_in_words
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.groups import Groups
from busbw_analysis.data.intervals import Floats, Interval, interval_of
from busbw_analysis.data.summary import CaseSummary

Truths = npt.NDArray[np.bool_]
Steps: TypeAlias = tuple[tuple[int | None, ...], ...]
"""Distance of every rank to every rank, as in ``placement.distance``."""

_PAIR_OPS: Final = frozenset(name for name in MESSAGES if OPS[name].members != "all")
_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class PairClass:
    """The pairs of one case at one distance.

    pairs: their number.
    part: it is a part of the pairs between hosts.
    time_ns: median over launches of the median over pairs.
    rate: B/s by ``time_ns``; None if the op has no size.
    slowest: the pair with the longest time.
    times_within: time over that of the pairs within a host in the same launches; None if there are none.
    times_low, times_high: ends of ``times_within`` over launches, of the same kind as ``interval``.
    """

    name: str
    pairs: int
    part: bool
    time_ns: float
    interval: Interval
    rate: float | None
    slowest: tuple[int, int]
    times_within: float | None
    times_low: float | None
    times_high: float | None


@dataclass(frozen=True, slots=True)
class PairSplit:
    """One case of a pair op, its pairs split by distance: within a host, between hosts and, if Slurm knows more than
    one distance between these hosts, the parts of these.

    case: index of the case; the first one if several cases differ in their groups only.
    """

    case: int
    op: str
    label: str
    size_bytes: int
    classes: tuple[PairClass, ...]


def steps_between(placements: Sequence[RankPlacement], ranks: Sequence[int]) -> Steps:
    """The distances of ``ranks`` from each other; None to a rank without a placement."""
    apart, place_of = _places([placements[rank] if rank < len(placements) else None for rank in ranks])
    of_place = [tuple(row[place] for place in place_of) for row in apart]
    return tuple(of_place[place] for place in place_of)


def _places(placements: Sequence[RankPlacement | None]) -> tuple[list[list[int | None]], list[int]]:
    """The distances between the distinct places of ``placements``, and the number of the place of each of them."""
    keys = [None if placement is None else (placement.host, placement.switches) for placement in placements]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    places = [placements[keys.index(key)] for key in numbers]
    apart = [
        [None if place is None or other is None else distance(place, other) for other in places] for place in places
    ]
    return apart, [numbers[key] for key in keys]


def kinds(steps: Steps) -> list[Truths]:
    """The pairs of different ranks as one mask per distance, the nearest first; unknown distances come last."""
    grid = np.asarray([[-1 if step is None else step for step in row] for row in steps])
    off = ~np.eye(len(grid), dtype=np.bool_)
    return [(grid == step) & off for step in sorted(set(grid[off].tolist()), key=lambda step: (step < 0, step))]


def indistinct(hosts: Sequence[str], alike: Sequence[Truths]) -> str | None:
    """Why a slow host cannot be distinguished from a slow link, and which host; None if every host can be compared.

    ``alike``: the pairs at each distance, as of ``kinds``.

    A host cannot be compared if it is an end of every pair at each of its distances to other hosts.
    """
    every = list(dict.fromkeys(hosts))
    number = np.asarray([every.index(host) for host in hosts])
    # Every pair of hosts once, however many ranks they have.
    both = [np.unique(number[np.argwhere(kind)], axis=0).tolist() for kind in alike]
    ends = [[{every[source], every[to]} for source, to in pairs] for pairs in both]
    away = [pairs for pairs in ends if all(len(pair) == 2 for pair in pairs)]
    mine = {host: [pairs for pairs in away if any(host in pair for pair in pairs)] for host in dict.fromkeys(hosts)}
    unclear = [host for host, ways in mine.items() if ways and all(host in pair for pairs in ways for pair in pairs)]
    if not unclear:
        return None
    names = ", ".join(unclear[:_MOST_NAMED]) + (" and others" if len(unclear) > _MOST_NAMED else "")
    return (
        f"whether {names} or the link there is slow cannot be determined: every pair of hosts at this distance "
        f"includes {'it' if len(unclear) == 1 else 'one of them'}, so there is nothing to compare with"
    )


def splits_of(summaries: Iterable[CaseSummary], placements: Sequence[RankPlacement]) -> tuple[PairSplit, ...]:
    """The measured cases of pair ops, in the order of the plan; empty if all ranks are on one host."""
    if len({placement.host for placement in placements}) < 2:
        return ()
    together: dict[Case, list[CaseSummary]] = {}
    for summary in summaries:
        if summary.case.op in _PAIR_OPS and summary.state == "measured" and summary.groups:
            together.setdefault(msgspec.structs.replace(summary.case, group=""), []).append(summary)
    return tuple(_split(members, placements) for members in together.values())


def _split(summaries: Sequence[CaseSummary], placements: Sequence[RankPlacement]) -> PairSplit:
    case = summaries[0].case
    pairs = _Pairs.of([summary.groups for summary in summaries])
    apart, place_of = _places(placements)
    ends = np.asarray(place_of)[pairs.ranks]
    names, which = np.unique(ends, axis=0, return_inverse=True)
    numbers = by_key((apart[source][to], number) for number, (source, to) in enumerate(names.tolist()))
    by_steps = {steps: np.isin(which, members) for steps, members in numbers.items()}
    return PairSplit(
        case=summaries[0].index,
        op=case.op,
        label=" · ".join(case_in_words(case, {"group"})),
        size_bytes=case.size_bytes,
        classes=tuple(_classes(pairs, by_steps, case.size_bytes)),
    )


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Pairs with their times. ``medians``: pairs × all launches, NaN in the launches that did not measure a pair."""

    ranks: npt.NDArray[np.signedinteger]
    time_ns: Floats
    medians: Floats

    @classmethod
    def of(cls, parts: Sequence[Groups]) -> "_Pairs":
        launches = list(dict.fromkeys(key for part in parts for keys in part.launch_keys for key in keys))
        medians = [np.full((len(part), len(launches)), np.nan) for part in parts]
        for part, table in zip(parts, medians, strict=True):
            for keys, rows in by_key((keys, number) for number, keys in enumerate(part.launch_keys)).items():
                table[np.ix_(rows, [launches.index(key) for key in keys])] = part.launch_medians_ns[rows, : len(keys)]
        ranks, times = (np.concatenate([getattr(part, name) for part in parts]) for name in ("pairs", "time_ns"))
        return cls(ranks, times, np.concatenate(medians))


def _classes(pairs: _Pairs, by_steps: Mapping[int | None, Truths], size_bytes: int) -> Iterator[PairClass]:
    within = by_steps.get(WITHIN_A_HOST)
    away = {steps: mask for steps, mask in by_steps.items() if steps != WITHIN_A_HOST}
    if within is not None:
        yield _class(distance_in_words(WITHIN_A_HOST), pairs, within, size_bytes, None)
    if away:
        yield _class(distance_in_words(None), pairs, np.logical_or.reduce([*away.values()]), size_bytes, within)
    if len(away) > 1:
        for steps in sorted(away, key=lambda steps: (steps is None, steps or 0)):
            name = distance_in_words(steps) if steps is not None else "between hosts that Slurm does not place"
            yield _class(name, pairs, away[steps], size_bytes, within, part=True)


def _class(
    name: str, pairs: _Pairs, mask: Truths, size_bytes: int, within: Truths | None, *, part: bool = False
) -> PairClass:
    times, mine, ratios = pairs.time_ns[mask], _by_launch(pairs.medians[mask]), np.empty(0)
    if within is not None and len(_by_launch(pairs.medians[mask | within])):
        ratios = mine / _by_launch(pairs.medians[within])  # launch by launch: all pairs were measured in the same ones
    time_ns = float(np.median(mine if len(mine) else times))
    ends = interval_of(ratios)
    slowest = pairs.ranks[mask][int(np.argmax(times))].tolist()
    return PairClass(
        name=name,
        pairs=len(times),
        part=part,
        time_ns=time_ns,
        interval=interval_of(mine),
        rate=size_bytes / time_ns * 1e9 if size_bytes else None,
        slowest=(slowest[0], slowest[1]),
        times_within=float(np.median(ratios)) if len(ratios) else None,
        times_low=ends.low_ns,
        times_high=ends.high_ns,
    )


def _by_launch(medians: Floats) -> Floats:
    """The median over pairs in every launch; empty if the pairs were not measured in the same launches."""
    there = ~np.isnan(medians)
    if (there != there[0]).any():
        return np.empty(0)
    return np.asarray(np.median(medians[:, there[0]], axis=0))
