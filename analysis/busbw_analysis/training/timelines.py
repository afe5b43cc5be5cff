"""The timeline of each rank in one training step: computation, calls, and waiting for them."""

from dataclasses import dataclass
from itertools import pairwise

from busbw.ops import SYNCHRONISING
from busbw.runs.records import RankTimeline, Sent

COMPUTE = "compute"
Interval = tuple[int, int]


@dataclass(frozen=True, slots=True)
class RankTime:
    """One rank in one step. Times are ns.

    spans: as in ``records.RankTimeline``.
    span_ns: from the start of its first span to the end of its last.
    compute_ns: computation.
    waiting: intervals in which a call was in progress and nothing was computed.
    waiting_for_last_ns: part of ``waiting`` before the last rank entered the same call; None if ranks call in several
        groups, or make different calls.
    """

    rank: int
    spans: tuple[tuple[str, int, int], ...]
    span_ns: int
    compute_ns: int
    waiting: tuple[Interval, ...]
    waiting_for_last_ns: int | None

    @property
    def waiting_ns(self) -> int:
        """Total waiting time."""
        return sum(end - begin for begin, end in self.waiting)


def rank_times(timelines: tuple[RankTimeline, ...], sent: tuple[Sent, ...]) -> tuple[RankTime, ...]:
    """The times of every rank of a step."""
    together = [[span for span in row.spans if span[0] in SYNCHRONISING] for row in timelines]
    alike = len({tuple(call[0] for call in calls) for calls in together}) == 1
    whole = all(message.group == len(timelines) for message in sent if message.op in SYNCHRONISING)
    last = [max(call[1] for call in calls) for calls in zip(*together, strict=True)] if alike and whole else []
    return tuple(_rank_time(row, calls, last) for row, calls in zip(timelines, together, strict=True))


@dataclass(frozen=True, slots=True)
class CallTime:
    """All calls of one name in a step, all ranks together.

    under_way_ns: time in which at least one of them was in progress.
    hidden: share of that time in which the same rank computed.
    """

    name: str
    under_way_ns: int
    hidden: float


def call_times(timelines: tuple[RankTimeline, ...]) -> tuple[CallTime, ...]:
    """The call times of every name, in order of the first call; names whose calls took no time are left out."""
    times = []
    for call_name in dict.fromkeys(name for row in timelines for name, _, _ in row.spans if name != COMPUTE):
        whole = exposed = 0
        for row in timelines:
            under_way, computed = (
                _union([(begin, end) for name, begin, end in row.spans if name == of]) for of in (call_name, COMPUTE)
            )
            whole += _length(under_way)
            exposed += _length(_without(under_way, computed))
        if whole:
            times.append(CallTime(call_name, whole, 1 - exposed / whole))
    return tuple(times)


def _length(intervals: list[Interval]) -> int:
    return sum(end - begin for begin, end in intervals)


def _rank_time(row: RankTimeline, calls: list[tuple[str, int, int]], last: list[int]) -> RankTime:
    computed = _union([(begin, end) for name, begin, end in row.spans if name == COMPUTE])
    under_way = _union([(begin, end) for name, begin, end in row.spans if name != COMPUTE])
    waiting = _without(under_way, computed)
    late = _union([(begin, came) for (_, begin, _), came in zip(calls, last, strict=bool(last)) if came > begin])
    ends = [end for _, _, end in row.spans]
    return RankTime(
        rank=row.rank,
        spans=row.spans,
        span_ns=max(ends) - min(begin for _, begin, _ in row.spans) if ends else 0,
        compute_ns=_length(computed),
        waiting=tuple(waiting),
        waiting_for_last_ns=_length(_without(late, computed)) if last else None,
    )


def _union(intervals: list[Interval]) -> list[Interval]:
    """Equivalent intervals, disjoint and in ascending order."""
    joined: list[Interval] = []
    for begin, end in sorted(intervals):
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined


def _without(intervals: list[Interval], cut: list[Interval]) -> list[Interval]:
    """The parts of ``intervals`` outside all of ``cut``; both are results of ``_union``."""
    edges = [*sorted({at for interval in (*intervals, *cut) for at in interval})]
    pieces = [
        (begin, end)
        for begin, end in pairwise(edges)
        if any(interval[0] <= begin and end <= interval[1] for interval in intervals)
        and not any(interval[0] <= begin and end <= interval[1] for interval in cut)
    ]
    return _union(pieces)
