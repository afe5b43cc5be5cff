"""Where the time of a curve goes: latency, bandwidth, reduction and the unexplained rest; and the lower bound of any
algorithm.

A lower bound has the same form as a cost, T ≥ rounds · α + max(sent · S β, moved · S / R) + added · S γ.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from busbw.ops import LOWER_BOUNDS
from busbw.ops.base import LowerBound
from busbw_analysis.data.series import Series, SeriesKey
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.models.costs import CostModel, Parameters
from busbw_analysis.models.parameters import Gamma
from busbw_analysis.models.select import alternatives


def least_seconds(
    bound: LowerBound,
    ranks: int,
    size_bytes: float,
    parameters: Parameters,
    *,
    ports: int = 1,
    gamma: float | None = None,
) -> float:
    """The lower bound of one call in seconds; ``gamma`` in seconds per reduced byte, None if unknown."""
    sent, moved, added = (count(ranks) * size_bytes for count in (bound.sent, bound.moved, bound.added))
    fed = replace(parameters, gamma_seconds_per_byte=gamma or 0.0)
    return fed.seconds_of(bound.rounds(ranks, ports), sent, moved, added)


@dataclass(frozen=True, slots=True)
class Spent:
    """The parts of the time of one measured call, in ns.

    ``latency_ns``: latency (α).
    ``bandwidth_ns``: bandwidth (β, or R if slower) and copies (M).
    ``reduction_ns``: reduction (γ); None if unknown.
    ``bound_ns``: the lower bound of any algorithm; None if there is none.
    """

    size_bytes: int
    measured_ns: float
    latency_ns: float
    bandwidth_ns: float
    reduction_ns: float | None
    bound_ns: float | None

    @property
    def predicted_ns(self) -> float:
        """The sum of the parts."""
        return self.latency_ns + self.bandwidth_ns + (self.reduction_ns or 0.0)

    @property
    def unexplained_ns(self) -> float:
        """Measured − predicted; negative if the model is too slow."""
        return self.measured_ns - self.predicted_ns

    @property
    def bound_share(self) -> float | None:
        """Efficiency: the bound over the measured time."""
        return None if self.bound_ns is None else self.bound_ns / self.measured_ns


@dataclass(frozen=True, slots=True)
class Other:
    """The time of a textbook algorithm.

    ``times_ns``: at each size of the curve.
    ``at_once``: concurrent messages of its busiest rank, which count as one; with several, the processor overhead per
    message is ignored.
    """

    algorithm: str
    times_ns: tuple[float, ...]
    at_once: float


@dataclass(frozen=True, slots=True)
class Fastest:
    """The textbook algorithm with the least predicted time from ``from_bytes`` on, up to the next one; several with
    equal cost are a tie.
    """

    algorithms: tuple[str, ...]
    from_bytes: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """The analysis of one curve by its cost model.

    ``spent``: the parts of the time of each point.
    ``bound``: the formula of the lower bound; "" if there is none.
    ``gamma_origin``: the origin of γ or why it is unknown; "" for an op without reduction.
    ``others``: the times of the textbook algorithms.
    ``fastest``: the fastest textbook algorithms, with a new entry at each crossover S* within the measured sizes. Only
    algorithms with one message at a time are compared: the formulas of the others ignore their overhead per message.
    """

    spent: tuple[Spent, ...]
    bound: str
    gamma_origin: str
    others: tuple[Other, ...]
    fastest: tuple[Fastest, ...]


def explain(
    series: Series,
    models: Sequence[CostModel] | Unavailable,
    parameters: Parameters | Unavailable,
    gamma: Gamma,
) -> Explanation | Unavailable:
    """Where the time of every point of ``series`` goes by the model of its algorithm, or why that is unknown.

    ``models``: of ``models_of``, one per point.
    """
    key, ranks = series.key, len(series.key.ranks)
    sizes = [point.size_bytes for point in series.points]
    if isinstance(models, Unavailable):
        return models
    if isinstance(parameters, Unavailable):
        return parameters
    bound = LOWER_BOUNDS.get(key.op)
    hosts = key.hosts
    adds = any(model.added(ranks, hosts, 1 << 20) for model in models)
    per_byte, origin = gamma if adds else (None, "")
    ports = _ports(models, bound, key)
    spent: list[Spent] = []
    for point, model in zip(series.points, models, strict=True):
        size = point.size_bytes
        messages = model.rounds(ranks, hosts, size) * parameters.alpha_seconds
        least = None if bound is None else least_seconds(bound, ranks, size, parameters, ports=ports, gamma=per_byte)
        spent.append(
            Spent(
                size_bytes=size,
                measured_ns=point.time_ns,
                latency_ns=1e9 * messages,
                bandwidth_ns=1e9 * (parameters.seconds(model, ranks, hosts, size) - messages),
                reduction_ns=None if per_byte is None else 1e9 * model.added(ranks, hosts, size) * size * per_byte,
                bound_ns=None if least is None else 1e9 * least,
            )
        )
    sharing = parameters.host_bytes_per_second is not None
    rows = alternatives(key.op, ranks, hosts, key.cost_models)
    others = [
        Other(
            row.label,
            tuple(1e9 * parameters.seconds(row, ranks, hosts, size) for size in sizes),
            row.at_once(ranks, hosts, 0),
        )
        for row in rows
    ]
    singly = [row for row, other in zip(rows, others, strict=True) if other.at_once <= 1]
    leaders = fastest(singly, ranks, hosts, sizes[0], sizes[-1], parameters)
    return Explanation(
        spent=tuple(spent),
        bound="" if bound is None else bound.formula(ports=ports, sharing=sharing, sums=per_byte is not None),
        gamma_origin=origin,
        others=tuple(others),
        fastest=leaders,
    )


def _ports(models: Sequence[CostModel], bound: LowerBound | None, key: SeriesKey) -> int:
    """The number of concurrent messages that the bound allows: 1, as in the papers; but n−1 for an algorithm with fewer
    rounds than the bound for 1, because a bound must not exceed the algorithm's own model.
    """
    ranks = len(key.ranks)
    several = bound is not None and any(model.rounds(ranks, key.hosts, 0) < bound.rounds(ranks) for model in models)
    return ranks - 1 if several else 1


def fastest(
    rows: Sequence[CostModel], ranks: int, hosts: int, first_bytes: float, last_bytes: float, parameters: Parameters
) -> tuple[Fastest, ...]:
    """The fastest of ``rows`` at all sizes from ``first_bytes`` to ``last_bytes``; each change is a crossover S*.

    Costs must be linear in S, as those of the textbook are.
    """
    names: dict[tuple[float, float], list[str]] = {}
    for row in rows:
        start = parameters.seconds(row, ranks, hosts, 0)
        slope = (parameters.seconds(row, ranks, hosts, last_bytes) - start) / max(last_bytes, 1)
        names.setdefault((float(f"{start:.9g}"), float(f"{slope:.9g}")), []).append(row.label)
    if not names:
        return ()
    lowest = min(names, key=lambda line: (line[0] + line[1] * first_bytes, line[1]))
    segments = [Fastest(tuple(names[lowest]), first_bytes)]
    while True:
        # Only a line with a smaller slope can cross; of those that cross first, take the one with the smallest slope.
        crossings = [
            ((line[0] - lowest[0]) / (lowest[1] - line[1]), line[1], line) for line in names if line[1] < lowest[1]
        ]
        crossing, _, lowest = min(crossings, default=(math.inf, 0.0, lowest))
        if crossing > last_bytes:
            return tuple(segments)
        segments.append(Fastest(tuple(names[lowest]), crossing))
