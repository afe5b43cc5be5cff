"""The hierarchy of a machine: every level with its measured rate and its rate by datasheet.

Levels without a measurement are listed with their nominal rate, and measured levels without a datasheet entry without
one; both state the reason.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from statistics import median
from typing import Literal, TypeVar

import numpy as np

from busbw.ops import LATENCIES, TO_THE_HOST
from busbw.system.catalog import HardwarePeak
from busbw.system.detect import Level, Name
from busbw.units import counted, format_size
from busbw_analysis.data.grouped import grouped
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.curves import Curve
from busbw_analysis.diagnosis.pairs import DIRECT, PairMatrix, PairShares
from busbw_analysis.node.memory import FIRST_TOUCH, MemoryCurve, most_of_memory, shown, who
from busbw_analysis.node.storage import Stored
from busbw_analysis.peaks.peaks import LEAST_COPY_BYTES, Peak

Kind = Literal["cache", "GPU cache", "ranks of a host", "pairs of GPUs", "links of GPUs", "network", "storage"] | Name
"""Levels that only measurements show, and those known from the facts of a machine."""

_Kind = TypeVar("_Kind")
_Rates = tuple[float, float | None, float | None]
"""A rate (B/s) and both ends of its interval or range; None if there is none."""
_WAYS: tuple[Kind, ...] = ("ranks of a host", "links of GPUs", "network")
"""The connections between ranks."""


@dataclass(frozen=True, slots=True)
class HierarchyLevel:
    """One level.

    measured: B/s; None if not measured.
    how: how it was measured.
    nominal, practical: rate by datasheet, and in practice, B/s.
    denominator: description of these two, or why they are unknown.
    latency_ns: time of a load that waits for the one before, median over the working sets of the level; None if not
        measured.
    """

    kind: Kind
    name: str
    measured: float | None = None
    low: float | None = None
    high: float | None = None
    how: str = "not measured in this run"
    nominal: float | None = None
    practical: float | None = None
    denominator: str = ""
    latency_ns: float | None = None

    @property
    def share(self) -> float | None:
        """Measured over nominal."""
        return None if self.measured is None or not self.nominal else self.measured / self.nominal


def hierarchy(
    host: str,
    levels: Sequence[Level],
    curves: Sequence[Curve],
    memory: Sequence[MemoryCurve],
    files: Sequence[Stored],
    matrices: Sequence[PairMatrix],
) -> tuple[HierarchyLevel, ...]:
    """The levels from the core outwards, measured and as recorded of ``host``; empty if only latencies were measured
    and nothing is known.
    """
    loads = [point for curve in curves if curve.series.key.op in LATENCIES for point in curve.series.points]
    datasheet = [_by_datasheet(level, level.peak, host) for level in levels if level.peak is not None]
    outwards = [
        *_memories(memory, "cpu", "cache", "DRAM", datasheet),
        *_memories(memory, "cuda", "GPU cache", "HBM", datasheet, loads),
        *_to_the_host(curves, datasheet, c2c=any(level.name == "C2C" for level in levels)),
        *(between_pairs := list(_between_pairs(matrices))),
        *_between_ranks(curves, [level for level in datasheet if not between_pairs or level.kind != "NVLink"]),
        *_files(files, datasheet),
    ]
    return tuple(outwards) if any(level.measured is not None for level in outwards) else ()


def _by_datasheet(level: Level, peak: HardwarePeak, host: str) -> HierarchyLevel:
    """A level of a host by its peak alone, used if it was not measured."""
    return HierarchyLevel(
        kind="network" if level.name == "NIC" else level.name,
        name=f"{level.holder} of {host}",
        nominal=peak.nominal,
        practical=peak.practical,
        denominator=f"{peak.what}, {peak.direction}, {peak.in_words}",
    )


def _memories(
    memory: Sequence[MemoryCurve],
    device: str,
    cache: Kind,
    outermost: Kind,
    datasheet: Sequence[HierarchyLevel],
    loads: Sequence[GroupSummary] = (),
) -> Iterator[HierarchyLevel]:
    """The plateaus of one kernel, then the memory behind them with the highest rate of any kernel. ``loads``: the time
    of one by working set.
    """
    mine = [curve for curve in memory if curve.key.device == device and curve.key.op != FIRST_TOUCH]
    chosen = shown(mine)
    if chosen is not None:
        for name, plateau in chosen.caches:
            yield HierarchyLevel(
                kind=cache,
                name=name,
                measured=plateau.rate,
                low=plateau.low,
                high=plateau.high,
                how=f"traffic of {who(chosen)}, {plateau.sizes} sizes",
                denominator="no peak: plateaus are found from the data, and caches have no datasheet entry",
                latency_ns=_latency(loads, plateau.first_bytes, plateau.last_bytes),
            )
    best = most_of_memory(mine)
    if best is not None:
        how = f"traffic of {who(best.curve)}, median over {counted(best.sizes, 'size')} there"
        level = _measured(outermost, "memory behind the caches", (best.rate, best.low, best.high), how, best.curve)
        yield replace(level, latency_ns=_latency(loads, best.first_bytes, math.inf))
    elif large := [curve for curve in mine if curve.points[-1].working_set_bytes >= LEAST_COPY_BYTES]:
        most = max(large, key=lambda curve: curve.points[-1].rate)
        point = most.points[-1]
        size = format_size(point.working_set_bytes)
        how = f"traffic of {who(most)}, {size} of working set; caches may still help"
        yield _measured(outermost, "memory, perhaps with caches", (point.rate, point.low, point.high), how, most)
    else:
        yield from (level for level in datasheet if level.kind == outermost)


def _latency(loads: Sequence[GroupSummary], first_bytes: int, last_bytes: float) -> float | None:
    """Median time of a load over the working sets of a level, ns; None without any."""
    times = [point.time_ns for point in loads if first_bytes <= point.size_bytes <= last_bytes]
    return median(times) if times else None


def _measured(kind: Kind, name: str, rates: _Rates, how: str, of: MemoryCurve | Stored) -> HierarchyLevel:
    """A level with a measured rate and the peak of ``of``."""
    rate, low, high = rates
    return HierarchyLevel(
        kind=kind,
        name=name,
        measured=rate,
        low=low,
        high=high,
        how=how,
        nominal=of.nominal,
        practical=of.practical,
        denominator=_denominator(of.peak),
    )


def _denominator(peak: Peak | Unavailable) -> str:
    return peak.denominator if isinstance(peak, Peak) else f"no peak: {peak.reason}"


def _to_the_host(
    curves: Sequence[Curve], datasheet: Sequence[HierarchyLevel], *, c2c: bool
) -> Iterator[HierarchyLevel]:
    """The best of each kind of copy between host and GPU, or else the links by datasheet. The link of a copy is known
    from its peak; without a peak, from the first host.
    """
    copies = (curve for curve in curves if curve.series.key.op in TO_THE_HOST)
    best = _best_of_each(copies, lambda curve: curve.series.key.op)
    for op, (curve, rate, point) in best.items():
        by_c2c = curve.peak.level == "NVLink-C2C" if isinstance(curve.peak, Peak) else c2c
        yield _of_curve(curve, rate, point, "C2C" if by_c2c else "PCIe", op.replace("_", " "))
    if not best:
        yield from (level for level in datasheet if level.kind in {"PCIe", "C2C"})


def _between_pairs(matrices: Sequence[PairMatrix]) -> Iterator[HierarchyLevel]:
    """The fastest pair of GPUs that copied to each other without the host."""
    direct = [matrix for matrix in matrices if matrix.op in DIRECT and np.isfinite(matrix.rate).any()]
    if not direct:
        return
    matrix = max(direct, key=lambda matrix: float(np.nanmax(matrix.rate)))
    shares = matrix.shares
    row, column = np.unravel_index(np.nanargmax(matrix.rate), matrix.rate.shape)
    rate = float(matrix.rate[row, column])
    nominal = practical = None
    denominator = f"no peak: {shares.reason}" if isinstance(shares, Unavailable) else "no peak: unknown"
    if isinstance(shares, PairShares):
        nominal = rate / float(shares.share[row, column])
        reached = float(shares.practical_share[row, column])
        practical = rate / reached if np.isfinite(reached) else None
        denominator = f"the link between the two; for the pair with the lowest peak: {shares.denominator}"
    yield HierarchyLevel(
        kind="pairs of GPUs",
        name=f"pairs of GPUs: {matrix.op}",
        measured=rate,
        how=f"the fastest pair, {matrix.ranks[row]} → {matrix.ranks[column]}, at {format_size(matrix.size_bytes)}",
        nominal=nominal,
        practical=practical,
        denominator=denominator,
    )


def _between_ranks(curves: Sequence[Curve], datasheet: Sequence[HierarchyLevel]) -> Iterator[HierarchyLevel]:
    """The collective with the highest rate on each connection between ranks, then the unused connections."""
    best = _best_of_each((curve for curve in curves if curve.series.bus_factor is not None), _way)
    for kind in _WAYS:
        if kind in best:
            curve, rate, point = best[kind]
            yield _of_curve(curve, rate, point, kind, f"{kind}: busbw of {curve.series.key.op}")
    for way, unused in (("links of GPUs", "NVLink"), ("network", "network")):
        if way not in best:
            yield from (level for level in datasheet if level.kind == unused)


def _way(curve: Curve) -> Kind:
    if curve.series.key.hosts > 1:
        return "network"
    return "ranks of a host" if curve.series.key.device == "cpu" else "links of GPUs"


def _best_of_each(
    curves: Iterable[Curve], kind_of: Callable[[Curve], _Kind]
) -> dict[_Kind, tuple[Curve, float, GroupSummary]]:
    """The curve of each kind with the highest rate, with that rate and its point."""
    rated = ((curve, *most) for curve in curves if (most := _most(curve)) is not None)
    return {
        kind: max(members, key=itemgetter(1))
        for kind, members in grouped(rated, lambda entry: kind_of(entry[0])).items()
    }


def _most(curve: Curve) -> tuple[float, GroupSummary] | None:
    """The highest rate of a curve (busbw; algbw if nothing crosses a wire) and its point."""
    rated = [
        (rate, point)
        for point in curve.series.points
        if (rate := point.algbw if curve.series.bus_factor is None else point.busbw) is not None
    ]
    return max(rated, key=lambda entry: (entry[0], entry[1].size_bytes), default=None)


def _of_curve(curve: Curve, rate: float, point: GroupSummary, kind: Kind, name: str) -> HierarchyLevel:
    low_ns, high_ns, no_bus = point.interval.low_ns, point.interval.high_ns, curve.series.bus_factor is None
    nominal = practical = None
    if isinstance(curve.peak, Peak):
        peak = curve.peak
        most, reached = (peak.algbw, peak.practical) if no_bus else (peak.busbw, peak.practical_busbw)
        # A peak measured in this run is not a datasheet value, so it is listed as the practical rate.
        nominal, practical = (None, most) if peak.measured else (most, reached)
    return HierarchyLevel(
        kind=kind,
        name=name,
        measured=rate,
        low=None if high_ns is None else rate * point.time_ns / high_ns,
        high=None if low_ns is None else rate * point.time_ns / low_ns,
        how=f"{'algbw' if no_bus else 'busbw'} of {curve.series.key.label} at {format_size(point.size_bytes)}",
        nominal=nominal,
        practical=practical,
        denominator=_denominator(curve.peak),
    )


def _files(files: Sequence[Stored], datasheet: Sequence[HierarchyLevel]) -> Iterator[HierarchyLevel]:
    for op, members in grouped(files, lambda file: file.op).items():
        best = max(members, key=lambda file: file.rate)
        way = "".join(f", {words}" for words in (best.access.words.values() if best.access else ()))
        ranks = "1 rank" if best.ranks == 1 else f"{best.ranks} ranks together"
        name = f"{op.replace('_', ' ')}{', in memory' * (best.access is not None and best.access.way == 'memory')}"
        how = f"{ranks}, {format_size(best.size_bytes)} each{way}"
        yield _measured("storage", name, (best.rate, best.low, best.high), how, best)
    if not any(file.nominal for file in files):
        yield from (level for level in datasheet if level.kind == "NVMe")
