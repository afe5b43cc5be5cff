"""Memory: the traffic of every kernel over its working set, its plateaus, and its scaling with threads.

Traffic is counted as in STREAM (McCalpin 1995): every byte that a kernel reads or writes, once. Lines that a store
fetches before writing are not counted, though the memory moves them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec import structs

from busbw.ops import MEMORY_TRAFFIC
from busbw.ops.settings import host_settings
from busbw.units import counted
from busbw_analysis.data.facts import Facts
from busbw_analysis.data.grouped import grouped
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.intervals import IntervalKind
from busbw_analysis.data.series import SeriesKey
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.curves import Curve
from busbw_analysis.node.plateaus import Plateau, Plateaus, find_plateaus, least_of_memory
from busbw_analysis.peaks.peaks import Peak

FIRST_TOUCH = "memory_touch"
"""The kernel that writes pages for the first time: its time includes the operating system's work per page, and no cache
helps.
"""

_SHOWN = ("stream_triad", "stream_add", "stream_copy", "stream_scale", "memory_copy", "memory_read", "memory_write")
"""Kernels whose plateaus may be shown, in order of preference: STREAM's headline result is its triad."""


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """One size. Rates are traffic in B/s of all ranks that share the memory.

    size_bytes, working_set_bytes: S and all arrays of one rank.
    low, high: interval or range of ``rate``, as ``kind`` says.
    launch_rates: in the order of the launches.
    share: of the peak.
    practical_share: of the rate that is reached in practice on such hardware.
    """

    size_bytes: int
    working_set_bytes: int
    case: int
    time_ns: float
    rate: float
    low: float | None
    high: float | None
    kind: IntervalKind
    launch_rates: tuple[float, ...]
    share: float | None
    practical_share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCurve:
    """A kernel over its working set, with all other settings fixed.

    threads: None if the op was run without this setting.
    factor: traffic over S of one rank.
    together: number of ranks that share the memory.
    """

    key: SeriesKey
    threads: int | None
    factor: float
    together: int
    points: tuple[MemoryPoint, ...]
    plateaus: Plateaus | Unavailable
    peak: Peak | Unavailable

    @property
    def where(self) -> str:
        """The NUMA node of its memory, to be appended to its threads; "" if none was requested."""
        node = host_settings(self.key.settings).numa_node
        return "" if node is None else f" in memory of node {node}"

    @property
    def nominal(self) -> float | None:
        """The traffic that is 100 %, in B/s; None without a peak."""
        return at_peak(self.peak, self.factor * self.together)[0]

    @property
    def practical(self) -> float | None:
        """The traffic that is reached in practice on such hardware, in B/s; None if unknown."""
        return at_peak(self.peak, self.factor * self.together)[1]

    @property
    def beyond_caches(self) -> Plateau | None:
        """The plateau of the memory behind the caches; None if the sweep does not show it."""
        if isinstance(self.plateaus, Unavailable) or self.plateaus.end != "flat":
            return None
        return self.plateaus.plateaus[-1]

    @property
    def caches(self) -> tuple[tuple[str, Plateau], ...]:
        """The plateaus that are caches, with their names. The last plateau of a sweep may be a cache or memory, so it
        only counts if the rate falls after it.
        """
        if isinstance(self.plateaus, Unavailable):
            return ()
        named = tuple(zip(self.plateaus.names, self.plateaus.plateaus, strict=True))
        return named if self.plateaus.end == "falls" else named[:-1]


@dataclass(frozen=True, slots=True)
class Scaled:
    """A kernel on several threads at one size. ``times_one``: traffic over that of one thread; None if not measured."""

    curve: MemoryCurve
    point: MemoryPoint
    times_one: float | None


@dataclass(frozen=True, slots=True)
class MostOfMemory:
    """The kernel with the highest rate from the memory behind the caches.

    rate: B/s; median over ``sizes`` working sets.
    low, high: its interval or range.
    first_bytes: caches help no kernel from working sets of this size on.
    """

    curve: MemoryCurve
    rate: float
    low: float | None
    high: float | None
    sizes: int
    first_bytes: int


def memory_curves(facts: Facts, curves: Iterable[Curve]) -> tuple[MemoryCurve, ...]:
    """The curves of kernels in memory, in the order of the plan."""
    return tuple(_curve(facts, curve) for curve in curves if curve.series.key.op in MEMORY_TRAFFIC)


def _curve(facts: Facts, curve: Curve) -> MemoryCurve:
    key = curve.series.key
    factor = MEMORY_TRAFFIC[key.op]
    # A GPU has its own memory; the ranks of a host share one.
    working = curve.series.at_work
    together = max(working.values()) if key.device == "cpu" else 1
    points = tuple(_point(group, curve.peak, factor, together) for group in curve.series.points)
    caches_bytes = _caches_of_a_rank(facts, working) if key.device == "cpu" else None
    return MemoryCurve(
        key=key,
        threads=host_settings(key.settings).threads,
        factor=factor,
        together=together,
        points=points,
        plateaus=_plateaus(key, points, caches_bytes),
        peak=curve.peak,
    )


def _point(group: GroupSummary, peak: Peak | Unavailable, factor: float, together: int) -> MemoryPoint:
    # From the first entry to the last exit if clocks allow, because rates of ranks that take turns do not add up.
    waited = group.span_ns / group.time_ns if together > 1 and group.span_ns is not None else 1.0
    moved = factor * together * group.size_bytes * 1e9 / waited
    rate = moved / group.time_ns
    nominal, practical = at_peak(peak, factor * together)
    return MemoryPoint(
        size_bytes=group.size_bytes,
        working_set_bytes=round(factor * group.size_bytes),
        case=group.case,
        time_ns=group.time_ns,
        rate=rate,
        low=None if group.interval.high_ns is None else moved / group.interval.high_ns,
        high=None if group.interval.low_ns is None else moved / group.interval.low_ns,
        kind=group.interval.kind,
        launch_rates=tuple(moved / median for median in group.launch_medians_ns),
        share=None if nominal is None else rate / nominal,
        practical_share=None if practical is None else rate / practical,
    )


def at_peak(peak: Peak | Unavailable, moved: float) -> tuple[float | None, float | None]:
    """The nominal and the practical rate in B/s, None if unknown; ``moved``: bytes of all ranks for a byte of S."""
    if isinstance(peak, Unavailable):
        return None, None
    return peak.algbw * moved, None if peak.practical is None else peak.practical * moved


def _caches_of_a_rank(facts: Facts, working: Mapping[str, int]) -> int | None:
    """Last-level cache per working rank, on the host with the most; None if a host does not state it."""
    stated = {host: facts.environment(host).cpu.last_level_cache_bytes for host in working}
    shares = [math.ceil(held / working[host]) for host, held in stated.items() if held is not None]
    return max(shares) if len(shares) == len(working) else None


def _plateaus(key: SeriesKey, points: Sequence[MemoryPoint], caches_bytes: int | None) -> Plateaus | Unavailable:
    if key.op == FIRST_TOUCH:
        return Unavailable("fresh-pages", "pages that are written for the first time are not in any cache")
    if key.cache != "warm":
        return Unavailable("cold-caches", f"with {key.cache} buffers, the caches do not hold the data of one call")
    return find_plateaus(
        [point.working_set_bytes for point in points],
        [point.rate for point in points],
        [point.launch_rates for point in points],
        caches_bytes,
    )


def shown(curves: Iterable[MemoryCurve]) -> MemoryCurve | None:
    """The kernel whose plateaus represent the caches in every output, with the number of threads that shows the most
    plateaus: if a team of threads has to start for each call, its start hides small caches.
    """
    candidates = [
        (_SHOWN.index(curve.key.op), -len(curve.plateaus.plateaus), number, curve)
        for number, curve in enumerate(curves)
        if isinstance(curve.plateaus, Plateaus) and curve.key.op in _SHOWN
    ]
    return min(candidates)[-1] if candidates else None


def most_of_memory(curves: Iterable[MemoryCurve]) -> MostOfMemory | None:
    """The kernel with the highest rate from the memory behind the caches; None if no sweep shows that memory.

    Sweeps with plateaus show the working set from which that memory is used. From there on every kernel counts, even
    one with too few sizes for a plateau. A sweep without any cache only shows that its end is memory.
    """
    kernels = [curve for curve in curves if curve.key.op != FIRST_TOUCH]
    shown_by = [curve.plateaus for curve in kernels if isinstance(curve.plateaus, Plateaus) and curve.beyond_caches]
    firsts = [
        max(
            plateaus.plateaus[-1].first_bytes,
            0 if len(plateaus.plateaus) > 1 else least_of_memory(plateaus.caches_bytes),
        )
        for plateaus in shown_by
    ]
    if not firsts:
        return None
    candidates = [candidate for curve in kernels if (candidate := _behind(curve, max(firsts))) is not None]
    return max(candidates, key=lambda candidate: candidate.rate)


def _behind(curve: MemoryCurve, first_bytes: int) -> MostOfMemory | None:
    """The rate of a kernel for working sets of ``first_bytes`` and more; None if it has none."""
    last = curve.beyond_caches
    if last is not None:
        return MostOfMemory(curve, last.rate, last.low, last.high, last.sizes, first_bytes)
    rated = sorted(
        (point for point in curve.points if point.working_set_bytes >= first_bytes), key=lambda point: point.rate
    )
    if not rated:
        return None
    middle = rated[(len(rated) - 1) // 2]
    return MostOfMemory(curve, middle.rate, middle.low, middle.high, len(rated), first_bytes)


def who(curve: MemoryCurve) -> str:
    """The kernel of a curve as text, with its threads, ranks and the NUMA node of its memory."""
    threads = "" if curve.threads is None else f" on {counted(curve.threads, 'thread')}"
    ranks = "" if curve.together == 1 else f" of {curve.together} ranks together"
    return f"{curve.key.op}{threads}{curve.where}{ranks}"


def scaling(curves: Iterable[MemoryCurve]) -> tuple[Scaled, ...]:
    """Every kernel at the largest size that all of its thread counts share, by kernel and threads."""
    threaded = (curve for curve in curves if curve.threads is not None)
    alike = grouped(threaded, lambda curve: (structs.replace(curve.key, settings=None), curve.where))
    scaled: list[Scaled] = []
    for members in alike.values():
        at = _at_largest(sorted(members, key=lambda curve: curve.threads or 0))
        one_thread = next((point.rate for curve, point in at.items() if curve.threads == 1), None)
        scaled += [
            Scaled(curve, point, None if one_thread is None else point.rate / one_thread) for curve, point in at.items()
        ]
    return tuple(scaled)


def compared_at_largest(
    curves: Iterable[MemoryCurve], op: str, other: str
) -> tuple[tuple[MemoryCurve, MemoryPoint, MemoryPoint], ...]:
    """``op`` and ``other`` at their largest common size, if measured in the same way, with the curve of ``op``."""
    measured = list(curves)
    others = {_but_for_op(curve.key): curve for curve in measured if curve.key.op == other}
    compared: list[tuple[MemoryCurve, MemoryPoint, MemoryPoint]] = []
    for curve in (curve for curve in measured if curve.key.op == op and _but_for_op(curve.key) in others):
        partner = others[_but_for_op(curve.key)]
        at = _at_largest([curve, partner])
        if at:
            compared.append((curve, at[curve], at[partner]))
    return tuple(compared)


def _but_for_op(key: SeriesKey) -> SeriesKey:
    """What two kernels must share to be compared. Mode and sync may differ, because a first touch can only be timed
    call by call.
    """
    return structs.replace(key, op="", mode="isolated", sync="barrier")


def _at_largest(curves: Sequence[MemoryCurve]) -> dict[MemoryCurve, MemoryPoint]:
    """The point of each of ``curves`` at their largest common size; empty if there is none."""
    shared = set.intersection(*({point.size_bytes for point in curve.points} for curve in curves))
    largest = max(shared, default=None)
    return {curve: point for curve in curves for point in curve.points if point.size_bytes == largest}
