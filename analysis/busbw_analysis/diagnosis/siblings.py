"""What a run says of itself without a peak or a test: like parts beside each other, the sizes of one curve, and the two
directions of one link. The limits are far beyond the scatter of single numbers; docs/method.md states them.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise, permutations
from statistics import median
from typing import Final, Literal

import numpy as np
from msgspec import structs

from busbw.ops import LOCAL, TO_THE_HOST
from busbw.runs.facts import GpuFacts
from busbw.system.catalog import Catalogue
from busbw.units import counted, format_rate, format_size, format_time, listed
from busbw_analysis.data.facts import Facts
from busbw_analysis.data.grouped import by_key, grouped
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.names import rank_list
from busbw_analysis.data.series import Series, SeriesKey
from busbw_analysis.diagnosis.pairs import UPPER_QUARTILE_TO_SIGMA, PairMatrix

Code = Literal["slow-gpu", "slow-nic", "slow-host", "collapse", "asymmetric", "slow-peers", "groups-apart", "slow-size"]

SLOW: Final = 0.7
"""Share of the usual rate below which a part is slow: of one number, as for a line of a pair matrix in one launch."""
_SLOW_OF_TWO: Final = 0.5
NORMAL: Final = 0.85
"""Share of the fastest rate from which on a group of hosts clears all of them."""
_SIGMAS: Final = 4.0
_LEAST_SIGMA: Final = 0.05
_COLLAPSE: Final = 2.0
_COLLAPSE_OF_ONE: Final = 4.0
"""How many times the rate falls for good, and how many times if only the largest size shows it."""
_COLLAPSE_SIZE: Final = 64 << 10
"""Below this size, a fall is one of a protocol, or the scatter of short calls."""
_APART: Final = 0.9
"""Share of the slowest rate within groups that the fastest between them has at most."""
_LONGER: Final = 2.5
_LONGER_OF_CPUS: Final = 10.0
"""How many times as long as a larger size a size takes; between CPUs of a host, calls wait for cores."""
_PCIE_SHARES: Final = (0.75, 0.97)
"""Share of the nominal rate of a PCI Express link that copies reach: 0.86 to 0.92 in the catalogue's sources."""
_MOST_NAMED: Final = 3
_LANES: Final = (16, 8, 4, 2, 1)


@dataclass(frozen=True, slots=True)
class Contrast:
    """Something that is slower than other results of the same run.

    code: of its finding.
    name: of the slow part, or the operation.
    ratio: its rate over that of the others.
    claim: what is slow, without a full stop.
    hosts: the hosts of the slow part; empty if there is no such part.
    """

    code: Code
    name: str
    ratio: float
    claim: str
    hosts: tuple[str, ...] = ()


def contrasts_in(
    series: Sequence[Series], matrices: Sequence[PairMatrix], facts: Facts, rows: Catalogue
) -> tuple[Contrast, ...]:
    """The strongest contrast of each code, which names the others; ``rows`` is the catalogue of peaks."""
    alike = list(_alike(series, facts))
    every = [
        *_slow_parts(alike, facts, rows),
        *_slow_hosts(alike),
        *filter(None, (_collapse(curve) or _slow_size(curve) for curve in series)),
        *filter(None, map(_groups_apart, matrices)),
        *_unequal_directions(series),
        *(contrast for matrix in matrices for contrast in _unequal_pairs(matrix)),
        *_slow_peers(matrices),
    ]
    by_code = grouped(sorted(every, key=lambda contrast: contrast.ratio), lambda contrast: contrast.code)
    return tuple(_strongest(members) for members in by_code.values())


def _strongest(members: Sequence[Contrast]) -> Contrast:
    """The first of ``members``; its claim names the others."""
    worst = members[0]
    ratios = {contrast.name: contrast.ratio for contrast in reversed(members) if contrast.name != worst.name}
    also = listed((f"{name} ({ratio:.0%})" for name, ratio in reversed(ratios.items())), _MOST_NAMED)
    return replace(worst, claim=f"{worst.claim}; so is {also}") if also else worst


# --- parts -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Part:
    """One of several like groups of ranks at one size. ``rate``: its busbw, else its algbw, else 1/s."""

    name: str
    hosts: tuple[str, ...]
    point: GroupSummary

    @property
    def rate(self) -> float:
        return self.point.busbw or self.point.algbw or 1e9 / self.point.time_ns

    @property
    def best_ns(self) -> float:
        """Of its fastest launch."""
        return min(self.point.launch_medians_ns)


_Alike = tuple[SeriesKey, list[_Part]]
"""Curves that differ only in their group of ranks, on GPUs of the same names, each at the largest size that all of them
have; the first one's key.
"""


def _alike(series: Iterable[Series], facts: Facts) -> Iterator[_Alike]:
    def likeness(curve: Series) -> tuple[object, ...]:
        gpus = facts.gpus_of(rank for rank in curve.key.ranks if rank < len(facts.hosts))
        names = {each.gpu.name for each in gpus if isinstance(each.gpu, GpuFacts)}
        key = structs.replace(curve.key, group="", ranks=())
        return key, len(curve.key.ranks), curve.traffic_factor, frozenset(names)

    likenesses = grouped([curve for curve in series if curve.key.group != "all"], likeness)
    for curves in likenesses.values():
        common = set[int].intersection(*({point.size_bytes for point in curve.points} for curve in curves))
        distinct = {curve.key.group for curve in curves}
        if len(curves) > 1 and len(distinct) == len(curves) and common:
            largest = max(common)
            points = [(curve, point) for curve in curves if (point := curve.at(largest)) is not None]
            parts = [_Part(curve.key.group, tuple(curve.at_work), point) for curve, point in points]
            yield curves[0].key, parts


def _slow_parts(alike: Iterable[_Alike], facts: Facts, rows: Catalogue) -> Iterator[Contrast]:
    """GPUs and NICs that are slower than all like them; more than a quarter of slow ones are another kind, not slow."""
    for key, parts in alike:
        if len({part.hosts for part in parts}) > 1 and key.op not in LOCAL:
            continue
        for part in parts:
            others = [other for other in parts if other is not part]
            usual_ns = median(other.point.time_ns for other in others)
            if math.log(part.best_ns / usual_ns) <= _least_apart([other.point.time_ns for other in others]):
                continue
            usual = median(other.rate for other in others)
            of_gpu = key.op in LOCAL
            name = _gpu(part, facts, key.device) if of_gpu else part.name
            ratio = part.rate / usual
            share = f"{ratio:.0%} of the usual {format_rate(usual)} of {counted(len(others), 'sibling')}"
            claim = (
                f"{name} is slow: {key.op} at {format_size(part.point.size_bytes)}, {format_rate(part.rate)}, {share}"
            )
            fits = ""
            if key.op in TO_THE_HOST:
                alone = max(_rates_of(part, alike))
                is_wide = part.rate < SLOW * alone
                fits = f"; at best it has {format_rate(alone)}" if is_wide else _pcie(part.rate, usual, rows)
            code: Code = "slow-gpu" if of_gpu or key.device != "cpu" else "slow-nic"
            yield Contrast(code, name, ratio, f"{claim}{fits}", part.hosts)


def _rates_of(part: _Part, alike: Iterable[_Alike]) -> Iterator[float]:
    """The rates of all copies of a GPU from and to the host: none is faster than its link."""
    for key, parts in alike:
        if key.op in TO_THE_HOST:
            yield from (other.rate for other in parts if other.point.ranks == part.point.ranks)


def _gpu(part: _Part, facts: Facts, device: str) -> str:
    """The name of the only rank of a part: its number on its host."""
    rank, host = part.point.ranks[0], part.hosts[0]
    where = f" of {host}" if len(set(facts.hosts)) > 1 else ""
    return f"{'rank' if device == 'cpu' else 'GPU'} {rank - facts.hosts.index(host)}{where}"


def _least_apart(others_ns: Sequence[float]) -> float:
    """The logarithm of the ratio of times from which on a part stands apart from ``others_ns``."""
    if len(others_ns) == 1:
        return -math.log(_SLOW_OF_TWO)
    logs = np.log(others_ns)
    sigma = UPPER_QUARTILE_TO_SIGMA * float(np.quantile(np.abs(logs - np.median(logs)), 0.75))
    return max(-math.log(SLOW), _SIGMAS * max(sigma, _LEAST_SIGMA))


def _pcie(rate: float, usual: float, rows: Catalogue) -> str:
    """The PCI Express links that a rate fits, of the generations up to that of the siblings; "" if none."""
    links = [row for number in range(1, 8) if (row := rows.rate("pcie", f"PCIe {number}")) is not None]
    newest = next((at for at, link in enumerate(links) if 16 * link.peak.nominal >= usual), len(links) - 1)
    low, high = _PCIE_SHARES
    fits = [
        f"{link.name} x{lanes}"
        for link in links[: newest + 1]
        for lanes in _LANES
        if low <= rate / (lanes * link.peak.nominal) <= high
    ]
    return f"; {format_rate(rate)} fits {listed(fits, word='or')} (LnkSta in lspci -vv)" if fits else ""


def _slow_hosts(alike: Iterable[_Alike]) -> Iterator[Contrast]:
    """Hosts all of whose groups are slow while others are not; fast groups clear their hosts."""
    for key, parts in alike:
        if key.op in LOCAL or len({part.hosts for part in parts}) < len(parts):
            continue
        fastest_ns = min(part.point.time_ns for part in parts)
        normal = [part for part in parts if fastest_ns / part.point.time_ns >= NORMAL]
        slow = [part for part in parts if fastest_ns / part.best_ns < SLOW]
        if not slow or len(normal) + len(slow) < len(parts):
            continue
        cleared = {host for part in normal for host in part.hosts}
        usual = median(part.rate for part in normal)
        suspects = by_key(
            (tuple(host for host in part.hosts if host not in cleared) or (part.name,), part) for part in slow
        )
        # Those with the most slow groups, and of these a single host, first.
        (hosts, of_name), *more = sorted(suspects.items(), key=lambda entry: (-len(entry[1]), len(entry[0])))
        name = " or ".join(hosts)
        rate, size = median(part.rate for part in of_name), format_size(of_name[0].point.size_bytes)
        claim = (
            f"{_whose(hosts)} is slow: {key.op} at {size}, {format_rate(rate)} in "
            f"{listed((part.name for part in of_name), _MOST_NAMED)}, {rate / usual:.0%} of {format_rate(usual)} in "
            f"{listed((part.name for part in normal), _MOST_NAMED)}"
        )
        also = [f"{_whose(other)} ({format_rate(median(part.rate for part in parts))})" for other, parts in more]
        suspected = tuple({host: None for part in of_name for host in part.hosts if host not in cleared})
        whole = f"{claim}; so is {listed(also, _MOST_NAMED)}" if also else claim
        yield Contrast("slow-host", name, rate / usual, whole, suspected)


def _whose(hosts: tuple[str, ...]) -> str:
    """Where a group is slow, all of whose ``hosts`` are only in slow groups."""
    return f"host {hosts[0]}" if len(hosts) == 1 else f"{', '.join(hosts)} or what is between them"


# --- sizes and directions ----------------------------------------------------------------------------------------


def _collapse(curve: Series) -> Contrast | None:
    """The size from which on a rate stays far below that of smaller messages. Host memory within a host is left out:
    its copies are faster while they fit into a cache.
    """
    if curve.key.op in LOCAL or (curve.key.device == "cpu" and curve.key.hosts == 1):
        return None
    rates = [point.size_bytes / point.time_ns for point in curve.points]
    for at in range(1, len(rates)):
        before, rest = max(rates[:at]), rates[at:]
        least = _COLLAPSE if len(rest) > 1 else _COLLAPSE_OF_ONE
        if max(rest) * least <= before and curve.points[at].size_bytes >= _COLLAPSE_SIZE:
            best, fallen = curve.points[rates.index(before)], curve.points[at]
            factor = before / median(rest)
            of = [point.busbw or point.algbw or 0.0 for point in (best, fallen)]
            text = (
                f"the rate of {curve.key.op} collapses from {format_size(fallen.size_bytes)} on, by {factor:.2g}×: "
                f"{format_rate(of[1])} after {format_rate(of[0])} at {format_size(best.size_bytes)}"
            )
            return Contrast("collapse", curve.key.op, 1 / factor, text)
    return None


def _slow_size(curve: Series) -> Contrast | None:
    """The size that takes longest for what it is: much longer than a larger one. The first rows may be warm-up."""
    if curve.key.op in LOCAL:
        return None
    limit = _LONGER_OF_CPUS if curve.key.device == "cpu" and curve.key.hosts == 1 else _LONGER
    pairs = list(combinations(curve.points[1:], 2))
    slow, larger = max(pairs, key=lambda pair: pair[0].time_ns / pair[1].time_ns, default=(None, None))
    if slow is None or larger is None or slow.time_ns < limit * larger.time_ns:
        return None
    factor = slow.time_ns / larger.time_ns
    text = (
        f"{curve.key.op} takes {factor:.2g} times as long at {format_size(slow.size_bytes)} "
        f"({format_time(slow.time_ns)}) as at {format_size(larger.size_bytes)} ({format_time(larger.time_ns)})"
    )
    return Contrast("slow-size", curve.key.op, 1 / factor, text)


def _groups_apart(matrix: PairMatrix) -> Contrast | None:
    """Groups of GPUs of one host, all pairs within which are faster than any between them."""
    places, rates = range(len(matrix.ranks)), np.fmin(matrix.rate, matrix.rate.T)
    pairs = list(combinations(places, 2))
    ordered = sorted(float(rates[pair]) for pair in pairs)
    is_known = len(pairs) > 1 and np.isfinite(ordered).all() and all(ordered)
    if matrix.shares is None or len(set(matrix.hosts)) > 1 or matrix.size_bytes < _COLLAPSE_SIZE or not is_known:
        return None
    slow, fast = max(pairwise(ordered), key=lambda rates: rates[1] / rates[0])
    groups = dict.fromkeys(
        frozenset(other for other in places if other == place or rates[place, other] >= fast) for place in places
    )
    sizes = [len(group) for group in groups]
    if slow > _APART * fast or len(groups) < 2 or min(sizes) < 2 or sum(sizes) != len(places):
        return None
    within, between = (median(rate for rate in ordered if (rate >= fast) is near) for near in (True, False))
    names = (rank_list([matrix.ranks[place] for place in sorted(group)]) for group in groups)
    text = (
        f"GPUs {' | '.join(names)} are groups: {matrix.op} has {format_rate(within)} within them, "
        f"{format_rate(between)} between them ({between / within:.0%}), as across sockets (nvidia-smi topo -m)"
    )
    return Contrast("groups-apart", matrix.op, between / within, text)


def _unequal_directions(series: Iterable[Series]) -> Iterator[Contrast]:
    """GPUs whose copies to the host and from it differ."""
    ways = grouped(
        (curve for curve in series if curve.key.op in {"host_to_device", "device_to_host"}),
        lambda curve: (curve.key.ranks, curve.key.settings, curve.key.mode, curve.points[-1].size_bytes),
    )
    unequal: list[Contrast] = []
    both = set[Sequence[int]]()
    for (ranks, *_), curves in ways.items():
        best = {}
        for curve in sorted(curves, key=lambda curve: -curve.points[-1].time_ns):
            best[curve.key.op] = curve.points[-1]
        if len(best) < 2:
            continue
        both.add(ranks)
        slow, fast = sorted(best, key=lambda op: -best[op].time_ns)
        ratio = best[fast].time_ns / min(best[slow].launch_medians_ns)
        if ratio < SLOW:
            rates = [format_rate(best[op].algbw or 0.0) for op in (slow, fast)]
            text = f"GPU {ranks[0]}: {slow} has {rates[0]}, {fast} {rates[1]} ({ratio:.0%})"
            unequal.append(Contrast("asymmetric", f"GPU {ranks[0]}", ratio, text))
    gpus = len({contrast.name for contrast in unequal})
    if gpus <= max(2, len(both) / 2):
        yield from unequal
    else:
        worst = min(unequal, key=lambda contrast: contrast.ratio)
        claim = f"{gpus} of {counted(len(both), 'GPU')}: the directions differ; {worst.claim}"
        yield replace(worst, name="most GPUs", claim=claim)


def _slow_peers(matrices: Sequence[PairMatrix]) -> Iterator[Contrast]:
    """Copies with peer access that are slower than those without it, which go through the host's memory."""
    for direct, driven in permutations(matrices, 2):
        if (direct.op, driven.op) != ("peer_copy", "peer_copy_driver") or direct.size_bytes != driven.size_bytes:
            continue
        rates = [float(np.nanmedian(matrix.rate)) for matrix in (direct, driven)]
        if rates[0] < SLOW * rates[1] and direct.size_bytes >= _COLLAPSE_SIZE:
            with_access, without = map(format_rate, rates)
            share = f"{rates[0] / rates[1]:.0%}"
            text = f"copies between GPUs have {with_access} with peer access, {without} without ({share})"
            yield Contrast("slow-peers", "peer access", rates[0] / rates[1], text)


def _unequal_pairs(matrix: PairMatrix) -> Iterator[Contrast]:
    """Pairs with one slow direction, beyond the usual difference of directions; ranks of outliers are left out."""
    named = {rank for outlier in matrix.outliers for rank in outlier.ranks}
    pairs = [
        (first, second)
        for first, second in combinations(range(len(matrix.ranks)), 2)
        if np.isfinite(matrix.time_ns[[first, second], [second, first]]).all()
    ]
    logs = {pair: math.log(matrix.time_ns[pair] / matrix.time_ns[pair[::-1]]) for pair in pairs}
    for pair, log in logs.items():
        others = [abs(other) for of, other in logs.items() if of != pair]
        sigma = UPPER_QUARTILE_TO_SIGMA * float(np.quantile(others, 0.75)) if others else 0.0
        ranks = [matrix.ranks[place] for place in (pair if log > 0 else pair[::-1])]
        slow, fast = (pair, pair[::-1]) if log > 0 else (pair[::-1], pair)
        sure = not matrix.low_ns[slow] <= matrix.high_ns[fast]
        if abs(log) <= max(-math.log(SLOW), _SIGMAS * sigma) or not sure or named & set(ranks):
            continue
        ratio = math.exp(-abs(log))
        rates = [format_rate(float(matrix.rate[way])) for way in (slow, fast)]
        text = (
            f"{matrix.op} at {format_size(matrix.size_bytes)}: {ranks[0]} → {ranks[1]} has {rates[0]}, the other "
            f"direction {rates[1]} ({ratio:.0%})"
        )
        yield Contrast("asymmetric", f"{ranks[0]} → {ranks[1]}", ratio, text)
