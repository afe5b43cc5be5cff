"""The parameters α, β and R of cost models, from the messages of a run, and γ, from its array sums."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from busbw.ops.settings import run_together
from busbw.units import format_rate, format_size, format_time
from busbw_analysis.data.facts import Facts
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.groups import Groups
from busbw_analysis.data.series import Series, SeriesKey
from busbw_analysis.data.summary import CaseSummary
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.models.costs import Parameters
from busbw_analysis.peaks.peaks import COPY, HostRates

_MESSAGES = {"ping_pong": 1, "pair_uni": 2}
"""Point-to-point ops that give α and β, the best first → message times per call."""

_SUM = "stream_add"
"""The local op that gives γ: c = a + b over arrays of S bytes, where every byte is added once."""

_Mask = npt.NDArray[np.bool_]
_LARGEST_LATENCY_MESSAGE = 1024
_SMALLEST_RATE_MESSAGE = 1 << 20


@dataclass(frozen=True, slots=True)
class Messages:
    """The messages between two ranks of a run, from which α, β and R of all its curves come.

    curves: curves of ``_MESSAGES``
    sums: curves of array sums, which give γ
    near, far: the median pair of a matrix inside a host, and between hosts
    together: the highest rate that all ranks of a host together send through the backend; None if it was not measured
    rates: memory copies and plain sockets of the hosts
    of_log: whether another tool measured them
    """

    curves: tuple[Series, ...]
    sums: tuple[Series, ...]
    near: "_MedianPair"
    far: "_MedianPair"
    together: "_Together | None"
    rates: HostRates
    of_log: bool

    def parameters_for(self, series: Series) -> Parameters | Unavailable:
        """α and β from messages on the same kind of path (inside a host or between hosts); on one host also R and M."""
        parameters = self._of_messages(series.key)
        if isinstance(parameters, Unavailable) or series.key.hosts > 1:
            return parameters
        rate, copies, origin, cases = self._host_rates(next(iter(series.at_work), None))
        return replace(
            parameters,
            host_bytes_per_second=rate,
            copy_bytes_per_second=copies,
            origin=f"{parameters.origin}{origin}",
            cases=(*parameters.cases, *cases),
        )

    def _of_messages(self, key: SeriesKey) -> Parameters | Unavailable:
        far = key.hosts > 1
        of_one_size: list[Series] = []
        for op, messages in _MESSAGES.items():
            alike = [
                curve
                for curve in self.curves
                if curve.key.op == op
                and curve.key.backend == key.backend
                and curve.key.mode in {key.mode, "isolated"}
                and (curve.key.hosts > 1) == far
                and curve.key.tool_op in {None, key.tool_op}  # other calls, such as puts with a fence each, cost more
            ]
            curves = [curve for curve in alike if len(curve.points) > 1]
            if not curves:
                of_one_size += alike
                continue
            best = min(curves, key=lambda curve: _unlikeness(curve.key, key))
            if best.key == key:
                return Unavailable(
                    "same-curve", "α and β come from this curve itself, so a comparison would be circular"
                )
            points = [(point.size_bytes, point.time_ns) for point in best.points]
            how = "" if best.key.mode == key.mode else f" ({best.key.mode} calls)"
            ends = (best.points[0].case, best.points[-1].case)
            return parameters_from(points, messages, f"{op} of this run{how}", ends)
        pair = self.far if far else self.near
        if len(pair.points) > 1:
            return parameters_from(pair.points, 2, "the pair matrix of this run (median pair)", pair.cases)
        if of_one_size:
            return _too_narrow(f"{of_one_size[0].key.op} of this run", of_one_size[0].points[0].size_bytes)
        lacks = "there is no ping_pong of several sizes, which gives α and β"
        again = "" if self.of_log else ": rerun without --no-baseline (in a plan: add ping_pong of 8 B and 4 MiB)"
        return Unavailable("no-messages", f"{lacks}{again}")

    def _host_rates(self, host: str | None) -> tuple[float | None, float | None, str, tuple[int, ...]]:
        """B/s that all ranks of ``host`` together send through the backend, B/s that they copy, their origin, and the
        cases that they were measured with.

        Without the rate of concurrent messages the first is the copy rate, an upper limit that a backend with two
        copies cannot reach.
        """
        copied = self.rates.get((COPY, host or ""))
        copies, of_copies = (None, ()) if copied is None else (copied.bytes_per_second, (copied.case,))
        if self.together is not None:
            rate, origin, of_rate = self.together
            return rate, copies, f"; R {format_rate(rate)}, from {origin}", (of_rate, *of_copies)
        if copies is None:
            return None, None, "; R unknown, taken as infinite", ()
        return copies, copies, f"; R {format_rate(copies)}, from memory_copy", of_copies


class _MedianPair(NamedTuple):
    """Sizes with the median time (ns) over the pairs of a matrix, and the cases of the smallest and largest size."""

    points: tuple[tuple[int, float], ...]
    cases: tuple[int, ...]


_Together = tuple[float, str, int]
"""A total rate in B/s, where it comes from, and the case that it was measured with."""


def messages_of(series: Sequence[Series], summaries: Sequence[CaseSummary], facts: Facts, rates: HostRates) -> Messages:
    """The messages of a run; ``rates`` are those of its hosts."""
    matrices = [
        (summary, _between_hosts(facts.hosts, summary.groups))
        for summary in summaries
        if summary.case.op == "pair_matrix" and summary.state == "measured"
    ]
    return Messages(
        curves=tuple(curve for curve in series if curve.key.op in _MESSAGES),
        sums=tuple(curve for curve in series if curve.key.op == _SUM),
        near=_median_pair((summary, ~between) for summary, between in matrices),
        far=_median_pair(matrices),
        together=max((*_rings(series), *_concurrent_pairs(matrices)), default=None),
        rates=rates,
        of_log=facts.is_log,
    )


def _unlikeness(key: SeriesKey, other: SeriesKey) -> tuple[bool, ...]:
    """Which settings of two curves differ, the most important first."""
    return (
        key.mode != other.mode,
        key.group != other.group,
        key.dtype != other.dtype,
        any(getattr(key, name) != getattr(other, name) for name in ("sync", "cache", "pre_enqueue", "registered")),
    )


def parameters_from(
    points: Sequence[tuple[int, float]], messages: int, origin: str, cases: tuple[int, ...] = ()
) -> Parameters | Unavailable:
    """α and β from point-to-point times: α is the time of the smallest message, β the slope to the largest.

    Not from the fit of the curve, which weighs all sizes alike: on the stored sample its line is 9 % below the smallest
    and 16 % below the largest time, and verdicts are on small and large messages.

    ``points``: (bytes, ns per call), ascending.
    ``messages``: message times per call.
    ``origin``, ``cases``: a description of the measurement, and its cases.
    """
    (small, small_ns), (large, large_ns) = points[0], points[-1]
    if small > _LARGEST_LATENCY_MESSAGE or large < _SMALLEST_RATE_MESSAGE:
        return _too_narrow(origin, small, large)
    beta = (large_ns - small_ns) / (large - small) / 1e9
    if beta <= 0:
        return Unavailable(
            "no-slope", f"in {origin} the largest message is not slower than the smallest, so β is unknown"
        )
    alpha = small_ns / messages / 1e9
    words = (
        f"α {format_time(alpha * 1e9)} at {format_size(small)}, 1/β {format_rate(1 / beta)} up to {format_size(large)}"
    )
    return Parameters(alpha, beta, None, f"{words}, from {origin}", cases=cases)


def _too_narrow(origin: str, *sizes_bytes: int) -> Unavailable:
    """Why ``origin`` with these smallest and largest sizes, or its only one, gives no α and β."""
    has = " to ".join(map(format_size, sizes_bytes))
    return Unavailable(
        "sizes-too-narrow",
        f"{origin} has {'only ' if len(sizes_bytes) == 1 else 'sizes '}{has}; α and β need one of at most "
        f"{format_size(_LARGEST_LATENCY_MESSAGE)} and one of at least {format_size(_SMALLEST_RATE_MESSAGE)}",
    )


class Gamma(NamedTuple):
    """γ in seconds per reduced byte, and what it was measured with; None, and what to do, if it is unknown."""

    seconds_per_byte: float | None
    origin: str


def gamma_of(key: SeriesKey, sums: Iterable[Series]) -> Gamma:
    """γ of a curve, from the ``sums`` of the same run on the same ranks: best those of its dtype and mode."""
    alike = [curve for curve in sums if curve.key.device == key.device and curve.key.ranks == key.ranks]
    for curve in sorted(alike, key=lambda curve: (curve.key.dtype != key.dtype, curve.key.mode != key.mode)):
        first, last = curve.points[0], curve.points[-1]
        if last.size_bytes > first.size_bytes and last.time_ns > first.time_ns:
            gamma = (last.time_ns - first.time_ns) / (last.size_bytes - first.size_bytes) / 1e9
            what = f"{_SUM} of this run{'' if curve.key.dtype == key.dtype else f' in {curve.key.dtype}'}"
            return Gamma(gamma, f"1/γ {format_rate(1 / gamma)} up to {format_size(last.size_bytes)}, from {what}")
    unknown = f"γ is unknown, so reduction is part of the unexplained time; add {_SUM} to the plan to measure it"
    return Gamma(None, unknown)


def shared(parameters: Parameters | Unavailable, sharing: float, *, far: bool) -> Parameters | Unavailable:
    """``parameters`` for one of several concurrent groups that together move ``sharing`` times its bytes.

    The groups share one R. If R is unknown, the result is Unavailable; between hosts (``far``) it is always unknown.
    """
    if isinstance(parameters, Unavailable) or sharing <= 1:
        return parameters
    if parameters.host_bytes_per_second is None:
        what = "network between the hosts" if far else "host"
        return Unavailable(
            "groups-at-once",
            f"other groups run at the same time, and the total rate of the {what} is unknown",
        )
    copies = parameters.copy_bytes_per_second
    return replace(
        parameters,
        host_bytes_per_second=parameters.host_bytes_per_second / sharing,
        copy_bytes_per_second=None if copies is None else copies / sharing,
        origin=f"{parameters.origin}, of which this one of the concurrent groups gets 1/{sharing:.3g}",
    )


def _median_pair(matrices: Iterable[tuple[CaseSummary, _Mask]]) -> _MedianPair:
    """The median over those pairs of matrices that are marked."""
    marked = list(matrices)
    times = by_key((summary.case.size_bytes, summary.groups.time_ns[mask]) for summary, mask in marked if mask.any())
    points = tuple((size, float(np.median(np.concatenate(parts)))) for size, parts in sorted(times.items()))
    ends = {points[0][0], points[-1][0]} if points else set()
    return _MedianPair(points, tuple(summary.index for summary, _ in marked if summary.case.size_bytes in ends))


def _between_hosts(hosts: Sequence[str], groups: Groups) -> _Mask:
    """Which pairs have their ranks on two different hosts."""
    numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    ends = np.asarray([numbers[host] for host in hosts])[groups.pairs]
    return np.asarray(ends[:, 0] != ends[:, 1])


def _rings(series: Iterable[Series]) -> Iterator[_Together]:
    """The rates of rings of messages inside a host."""
    for curve in series:
        last = curve.points[-1]
        if curve.key.op == "send_recv" and curve.key.hosts == 1 and last.size_bytes >= _SMALLEST_RATE_MESSAGE:
            rate = len(curve.key.ranks) * last.size_bytes / last.time_ns * 1e9
            yield rate, "the send_recv ring", last.case


def _concurrent_pairs(matrices: Iterable[tuple[CaseSummary, _Mask]]) -> Iterator[_Together]:
    """The rates of concurrent pairs inside a host; each matrix comes with its pairs between hosts."""
    for summary, between in matrices:
        size = summary.case.size_bytes
        at_once = len(np.unique(summary.groups.pairs[~between])) // 2
        if run_together(summary.case.settings) and at_once > 1 and size >= _SMALLEST_RATE_MESSAGE:
            time_ns = float(np.median(summary.groups.time_ns[~between]))
            yield at_once * size / time_ns * 1e9, "concurrent pairs of the pair matrix", summary.index
