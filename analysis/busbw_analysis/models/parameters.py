"""The parameters α, β and R of cost models, from the messages of a run."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import numpy as np
import numpy.typing as npt

from busbw.ops.pairs import run_together
from busbw.units import format_rate, format_size, format_time
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.groups import Groups
from busbw_analysis.data.load import Dataset
from busbw_analysis.data.series import Series
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.models.costs import Parameters
from busbw_analysis.peaks.peaks import host_copies

_MESSAGES = {"ping_pong": 1, "pair_uni": 2}
"""Point-to-point ops that give α and β, the best first → message times per call."""

_LARGEST_LATENCY_MESSAGE = 1024
_SMALLEST_RATE_MESSAGE = 1 << 20


def parameters_for(dataset: Dataset, series: Series) -> Parameters | Unavailable:
    """α and β from messages of this run on the same kind of path (inside a host or between hosts); on one host also R
    and M.
    """
    found = _of_messages(dataset, series)
    if isinstance(found, Unavailable) or series.key.hosts > 1:
        return found
    rate, copies, origin, cases = _host_rates(dataset, series)
    return replace(
        found,
        host_bytes_per_second=rate,
        copy_bytes_per_second=copies,
        origin=f"{found.origin}{origin}",
        cases=(*found.cases, *cases),
    )


def _of_messages(dataset: Dataset, series: Series) -> Parameters | Unavailable:
    far = series.key.hosts > 1
    for op, messages in _MESSAGES.items():
        found = [
            other
            for other in dataset.series
            if other.key.op == op
            and other.key.backend == series.key.backend
            and other.key.mode in {series.key.mode, "isolated"}
            and (other.key.hosts > 1) == far
            and len(other.points) > 1
        ]
        if not found:
            continue
        best = min(found, key=lambda other: _unlikeness(other, series))
        if best.key == series.key:
            return Unavailable("same-curve", "α and β come from this curve itself, so a comparison would be circular")
        points = [(point.size_bytes, point.time_ns) for point in best.points]
        how = "" if best.key.mode == series.key.mode else f" ({best.key.mode} calls)"
        ends = (best.points[0].case, best.points[-1].case)
        return _measured_with(ends, parameters_from(points, messages, f"{op} of this run{how}"))
    points, cases = _matrix_points(dataset, far=far)
    if len(points) > 1:
        return _measured_with(cases, parameters_from(points, 2, "the pair matrix of this run (median pair)"))
    return Unavailable(
        "no-messages", "this run has no message between two ranks; add ping_pong to the plan for a model"
    )


def _measured_with(cases: tuple[int, ...], found: Parameters | Unavailable) -> Parameters | Unavailable:
    return found if isinstance(found, Unavailable) else replace(found, cases=cases)


def _unlikeness(other: Series, series: Series) -> tuple[bool, ...]:
    """Which settings of two curves differ, the most important first."""
    one, two = other.key, series.key
    return (
        one.mode != two.mode,
        one.group != two.group,
        one.dtype != two.dtype,
        (one.sync, one.cache, one.pre_enqueue) != (two.sync, two.cache, two.pre_enqueue),
    )


def parameters_from(points: Sequence[tuple[int, float]], messages: int, origin: str) -> Parameters | Unavailable:
    """α and β from point-to-point times: α is the time of the smallest message, β the slope to the largest.

    Not from the fit of the curve, which weighs all sizes alike: on the stored sample its line is 9 % below the smallest
    and 16 % below the largest time, and verdicts are on small and large messages.

    ``points``: (bytes, ns per call), ascending.
    ``messages``: message times per call.
    ``origin``: a description of the measurement.
    """
    (small, small_ns), (large, large_ns) = points[0], points[-1]
    if small > _LARGEST_LATENCY_MESSAGE or large < _SMALLEST_RATE_MESSAGE:
        return Unavailable(
            "sizes-too-narrow",
            f"{origin} has sizes {format_size(small)} to {format_size(large)}; α and β need one of at most "
            f"{format_size(_LARGEST_LATENCY_MESSAGE)} and one of at least {format_size(_SMALLEST_RATE_MESSAGE)}",
        )
    beta = (large_ns - small_ns) / (large - small) / 1e9
    if beta <= 0:
        return Unavailable(
            "no-slope", f"in {origin} the largest message is not slower than the smallest, so β is unknown"
        )
    alpha = small_ns / messages / 1e9
    words = (
        f"α {format_time(alpha * 1e9)} at {format_size(small)}, 1/β {format_rate(1 / beta)} up to {format_size(large)}"
    )
    return Parameters(alpha, beta, None, f"{words}, from {origin}")


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


def _matrix_points(dataset: Dataset, *, far: bool) -> tuple[list[tuple[int, float]], tuple[int, ...]]:
    """Median time over the pairs at each size of the pair matrix, and the cases of the smallest and largest size."""
    measured = [one for one in dataset.summaries if one.case.op == "pair_matrix" and one.state == "measured"]
    times = by_key(
        (summary.case.size_bytes, time_ns)
        for summary in measured
        for time_ns in summary.groups.time_ns[_between_hosts(dataset, summary.groups) == far].tolist()
    )
    points = [(size, median(values)) for size, values in sorted(times.items())]
    ends = {points[0][0], points[-1][0]} if points else set()
    return points, tuple(summary.index for summary in measured if summary.case.size_bytes in ends)


def _between_hosts(dataset: Dataset, groups: Groups) -> npt.NDArray[np.bool_]:
    """Which pairs have their ranks on two different hosts."""
    numbers = {host: number for number, host in enumerate(dict.fromkeys(dataset.hosts))}
    ends = np.asarray([numbers[host] for host in dataset.hosts])[groups.pairs]
    return np.asarray(ends[:, 0] != ends[:, 1])


def _host_rates(dataset: Dataset, series: Series) -> tuple[float | None, float | None, str, tuple[int, ...]]:
    """B/s that all ranks of one host together send through the backend, B/s that they copy, their origin, and the
    cases that they were measured with.

    The first is the total rate of concurrent messages. Without these it is the copy rate, an upper limit that a backend
    with two copies cannot reach.
    """
    rates: list[tuple[float, str, int]] = []
    for other in dataset.series:
        last = other.points[-1]
        if other.key.op == "send_recv" and other.key.hosts == 1 and last.size_bytes >= _SMALLEST_RATE_MESSAGE:
            rates.append((len(other.key.ranks) * last.size_bytes / last.time_ns * 1e9, "the send_recv ring", last.case))
    for summary in dataset.summaries:
        case = summary.case
        if case.op == "pair_matrix" and summary.state == "measured" and run_together(case.settings):
            within = ~_between_hosts(dataset, summary.groups)
            at_once = len(np.unique(summary.groups.pairs[within])) // 2
            if at_once > 1 and case.size_bytes >= _SMALLEST_RATE_MESSAGE:
                time_ns = float(np.median(summary.groups.time_ns[within]))
                rate = at_once * case.size_bytes / time_ns * 1e9
                rates.append((rate, "concurrent pairs of the pair matrix", summary.index))
    host = dataset.hosts_of(series.key.ranks)
    copied = host_copies(dataset).get(host[0]) if host else None
    copies, of_copies = (None, ()) if copied is None else (copied.bytes_per_second, (copied.case,))
    if rates:
        rate, origin, of_rate = max(rates)
        return rate, copies, f"; R {format_rate(rate)}, from {origin}", (of_rate, *of_copies)
    if copies is None:
        return None, None, "; R unknown, taken as infinite", ()
    return copies, copies, f"; R {format_rate(copies)}, from memory_copy", of_copies
