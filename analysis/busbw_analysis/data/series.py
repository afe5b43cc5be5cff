"""The curves of a run: one op at all its sizes with every other setting fixed; input for fits, models and plots."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from busbw.ops import PAIRED, TRAINED
from busbw.ops.groups import groups_in_words
from busbw.ops.settings import TrafficSettings, explicit_algorithm
from busbw.runs.records import Case, Configuration, case_in_words
from busbw_analysis.data.facts import Facts
from busbw_analysis.data.groups import GroupSummary
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
        where = (
            f"{len(self.ranks)} ranks"
            if self.group == "all"
            else f"ranks {rank_list(self.ranks)} of {groups_in_words(self.group)}"
        )
        hosts = [] if self.hosts == 1 else [f"{self.hosts} hosts"]
        return (*case_in_words(self, {"group", "device"}), where, *hosts)

    @property
    def label(self) -> str:
        """A name for tables and legends."""
        return " · ".join(self.parts)


@dataclass(frozen=True, slots=True)
class Series:
    """The measured points of one curve, by ascending size.

    bus_factor: None if nothing crosses a wire
    at_work: the hosts of the group, and how many ranks work there at the same time, including those of other groups
    sharing: wire bytes of all groups that run at the same time on its hosts, over those of this group; 1 for one group
    """

    key: SeriesKey
    bus_factor: float | None
    traffic_factor: float
    points: tuple[GroupSummary, ...]
    at_work: Mapping[str, int]
    sharing: float = 1.0

    @property
    def shape(self) -> tuple[int, int]:
        """Number of ranks and of hosts."""
        return len(self.key.ranks), self.key.hosts

    def at(self, size_bytes: int) -> GroupSummary | None:
        """The point of this size; None if it was not measured."""
        return next((point for point in self.points if point.size_bytes == size_bytes), None)

    @property
    def launches(self) -> int:
        """The smallest number of launches of any point."""
        return min(len(point.launch_medians_ns) for point in self.points)

    @property
    def in_common(self) -> tuple[tuple[float, ...], ...]:
        """The launch medians (ns) of every point, for the launches that measured all points, in the same order."""
        by_point = [dict(zip(point.launch_keys, point.launch_medians_ns, strict=True)) for point in self.points]
        common = [key for key in by_point[0] if all(key in medians for medians in by_point)]
        return tuple(tuple(medians[key] for key in common) for medians in by_point)


def series_of(summaries: Sequence[CaseSummary], facts: Facts) -> tuple[Series, ...]:
    """All curves of the measured cases.

    There are none of pair matrices, whose pairs are compared with each other; of modes whose samples include more than
    the call; and of training steps, where most of the time is not communication.
    """
    measured: dict[SeriesKey, list[GroupSummary]] = {}
    for summary in summaries:
        if summary.state != "measured" or summary.case.op in PAIRED | TRAINED or summary.case.mode in _MORE:
            continue
        for group in summary.groups:
            key = key_of(summary.case, group.ranks, facts)
            measured.setdefault(key, []).append(group)
    at_once: dict[int, tuple[Counter[str], Counter[frozenset[str]]]] = {}
    curves: list[Series] = []
    for key, points in measured.items():
        hosts, largest = facts.hosts_of(key.ranks), max(points, key=lambda point: point.size_bytes)
        if largest.case not in at_once:
            at_once[largest.case] = _at_once(summaries[largest.case], facts)
        working, wire_bytes = at_once[largest.case]
        shared = sum(amount for others, amount in wire_bytes.items() if not others.isdisjoint(hosts))
        curves.append(
            Series(
                key=key,
                bus_factor=points[0].bus_factor,
                traffic_factor=points[0].traffic_factor,
                points=tuple(sorted(points, key=lambda point: point.size_bytes)),
                at_work={host: working[host] for host in hosts},
                sharing=shared / largest.wire_bytes if largest.wire_bytes and wire_bytes else 1.0,
            )
        )
    return tuple(curves)


def _at_once(summary: CaseSummary, facts: Facts) -> tuple[Counter[str], Counter[frozenset[str]]]:
    """How many ranks of all groups of a case work on each host at the same time, and the bytes that all groups on the
    same hosts send together; no bytes for a single group.
    """
    groups, hosts = summary.groups, facts.hosts
    wire_bytes: Counter[frozenset[str]] = Counter()
    if summary.total is not None:
        for ranks, amount in zip(groups.ranks, groups.rows.wire_bytes[groups.first].tolist(), strict=True):
            wire_bytes[frozenset(facts.hosts_of(ranks))] += amount
    return Counter(hosts[rank] for rank in groups.ranks.flat.tolist() if rank < len(hosts)), wire_bytes


def key_of(case: Case, ranks: tuple[int, ...], facts: Facts) -> SeriesKey:
    """The key of the curve that a case belongs to, on one group of ranks."""
    of_case = {name: getattr(case, name) for name in Configuration.__struct_fields__}
    hosts = len(facts.hosts_of(ranks)) or 1
    return SeriesKey(**of_case, cost_models=facts.backend.cost_models, ranks=ranks, hosts=hosts)
