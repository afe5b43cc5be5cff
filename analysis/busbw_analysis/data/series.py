"""The curves of a run: one op at all its sizes with every other setting fixed; input for fits, models and plots."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from msgspec.structs import replace

from busbw.ops import PAIRED, TRAINED
from busbw.ops.algorithms.settings import explicit_algorithm
from busbw.ops.traffic import TrafficSettings
from busbw.runs.records import Case, Configuration, case_in_words
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.intervals import Interval
from busbw_analysis.data.names import rank_list
from busbw_analysis.data.summary import CaseSummary

LIBRARY = "library"
"""The name of the backend's own algorithm."""

_MORE = frozenset({"overlap", "barriers"})
"""Modes whose samples include more than the call."""


class SeriesKey(Configuration, frozen=True, kw_only=True):
    """The settings that all points of a curve share: those of ``Case`` except the size, and these.

    cost_models: the backend's family of cost models (``BackendTraits``)
    ranks, hosts: the ranks of the group, and how many hosts it spans
    """

    cost_models: str
    ranks: tuple[int, ...]
    hosts: int

    @property
    def algorithm(self) -> str | None:
        """The explicit algorithm; None: the backend's own."""
        return explicit_algorithm(self.settings)

    @property
    def of_library(self) -> "SeriesKey":
        """This key with the backend's own algorithm."""
        return self if self.algorithm is None else replace(self, settings=None)

    @property
    def imbalance(self) -> float | None:
        """Imbalance of uneven traffic."""
        return self.settings.imbalance if isinstance(self.settings, TrafficSettings) else None

    @property
    def parts(self) -> tuple[str, ...]:
        """The op, the settings that are not the default, and the ranks."""
        where = f"{len(self.ranks)} ranks" if self.group == "all" else f"ranks {rank_list(self.ranks)} of {self.group}"
        hosts = [] if self.hosts == 1 else [f"{self.hosts} hosts"]
        return (*case_in_words(self, {"group", "device"}), where, *hosts)

    @property
    def label(self) -> str:
        """A name for tables and legends."""
        return " · ".join(self.parts)


@dataclass(frozen=True, slots=True)
class Point:
    """One size of a curve. Sizes are bytes, times ns per call, rates B/s.

    case: index of its case
    launch_medians_ns, launch_keys: one entry per launch, in order; a key is run and launch
    The other fields are those of ``GroupSummary``.
    """

    size_bytes: int
    case: int
    time_ns: float
    interval: Interval
    fastest_ns: float | None
    algbw: float | None
    busbw: float | None
    wire_bytes: float
    samples: int
    launch_medians_ns: tuple[float, ...]
    launch_keys: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Series:
    """The measured points of one curve, by ascending size. ``bus_factor`` is None if nothing crosses a wire."""

    key: SeriesKey
    bus_factor: float | None
    traffic_factor: float
    points: tuple[Point, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Number of ranks and of hosts."""
        return len(self.key.ranks), self.key.hosts

    def at(self, size_bytes: int) -> Point | None:
        """The point of this size; None if it was not measured."""
        return next((point for point in self.points if point.size_bytes == size_bytes), None)

    @property
    def launches(self) -> int:
        """The smallest number of launches of any point."""
        return min(len(point.launch_medians_ns) for point in self.points)

    @property
    def in_common(self) -> tuple[tuple[float, ...], ...]:
        """The launch medians (ns) of every point, for the launches that measured all points, in the same order."""
        known = [dict(zip(point.launch_keys, point.launch_medians_ns, strict=True)) for point in self.points]
        common = [key for key in known[0] if all(key in medians for medians in known)]
        return tuple(tuple(medians[key] for key in common) for medians in known)


_OF_GROUP = {field.name for field in fields(Point)} - {"size_bytes", "case"}
"""Fields that a point copies from its group."""


def series_of(summaries: Sequence[CaseSummary], hosts: Sequence[str], cost_models: str) -> tuple[Series, ...]:
    """All curves of the measured cases; ``hosts[r]`` is the host of rank r.

    There are none of pair matrices, whose pairs are compared with each other; of modes whose samples include more than
    the call; and of training steps, where most of the time is not communication.
    """
    found: dict[SeriesKey, list[tuple[Point, GroupSummary]]] = {}
    for summary in summaries:
        if summary.state != "measured" or summary.case.op in PAIRED | TRAINED or summary.case.mode in _MORE:
            continue
        for group in summary.groups:
            key = key_of(summary.case, group.ranks, hosts, cost_models)
            found.setdefault(key, []).append((_point(summary, group), group))
    return tuple(
        Series(
            key=key,
            bus_factor=members[0][1].bus_factor,
            traffic_factor=members[0][1].traffic_factor,
            points=tuple(sorted((point for point, _ in members), key=lambda point: point.size_bytes)),
        )
        for key, members in found.items()
    )


def key_of(case: Case, ranks: tuple[int, ...], hosts: Sequence[str], cost_models: str) -> SeriesKey:
    """The key of the curve that a case belongs to, on one group of ranks."""
    of_case = {name: getattr(case, name) for name in Configuration.__struct_fields__}
    spanned = len({hosts[rank] for rank in ranks if rank < len(hosts)}) or 1
    return SeriesKey(**of_case, cost_models=cost_models, ranks=ranks, hosts=spanned)


def _point(summary: CaseSummary, group: GroupSummary) -> Point:
    of_group = {name: getattr(group, name) for name in _OF_GROUP}
    return Point(**of_group, size_bytes=summary.case.size_bytes, case=summary.index)
