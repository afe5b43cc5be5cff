"""The time of a collective call: from a described network, or from a run's measurements.

A price is the time of one call of a group while all similar groups make theirs. It is split into latency and moving
bytes, so that a plan can vary the network.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import itemgetter
from statistics import median
from typing import Final, NamedTuple, Protocol

from busbw.errors import AnalysisError, UsageError
from busbw.ops import FLOP, MEMORY_TRAFFIC, PERSONALISED, bus_factor
from busbw.runs.records import Case
from busbw.units import format_flop, format_size
from busbw_analysis.data.groups import GroupSummary, Overlap
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.models.networks import FatTree, Flat, Placement, Rails, SharedHost, Specification, TwoLevel
from busbw_analysis.predict import Forecast, Questions
from busbw_analysis.training.layout import Layout
from busbw_analysis.training.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of a GPU in one direction while all GPUs send: B/s and seconds of delay, inside and between nodes.

    sharing: GPUs that share a card.
    """

    inner: float
    outer: float
    inner_delay: float
    outer_delay: float
    per_host: int
    sharing: int = 1


def rates_of(specification: Specification, ranks: int, per_host: int) -> Rates:
    """The rates of a GPU when all GPUs of its node send.

    It has a part of a shared card or of a shared memory, and less below an oversubscribed leaf.
    """
    on_each = ranks if specification.kind == "shared" else min(per_host, ranks)
    network = specification.on(Placement(ranks, on_each))
    match network:
        case SharedHost():
            rate = min(network.rate, network.memory / ranks)
            return Rates(rate, rate, network.delay, network.delay, ranks)
        case Flat():
            return Rates(network.rate, network.rate, network.delay, network.delay, on_each)
        case Rails():
            delays = network.inner_delay, network.delay
            return Rates(network.inner, network.nic, *delays, on_each, network.sharing or 1)
        case TwoLevel() | FatTree():
            over = max(1.0, network.oversubscription) if isinstance(network, FatTree) else 1.0
            inner = network.nic if network.inner is None else network.inner
            return Rates(inner, network.nic / on_each / over, network.inner_delay, network.delay, on_each)
    raise AssertionError(network)


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks of a group, the hosts that they are on, and the number of similar groups on each host (``at_once``)."""

    ranks: int
    hosts: int
    at_once: int

    @property
    def each(self) -> int:
        """Ranks of the group per host."""
        return -(-self.ranks // self.hosts)


def group_of(layout: Layout, row: Traffic, per_host: int) -> Group:
    """The placement of a group's ranks: hosts are filled in turn."""
    per_host, stride = min(per_host, layout.gpus), row.stride
    if row.dimension == "pp" and layout.gpus > per_host:
        return Group(row.ranks, row.ranks, per_host)  # some neighbours are on different hosts, and the others wait
    if layout.gpus <= per_host or stride * row.ranks <= per_host:
        return Group(row.ranks, 1, per_host // row.ranks)
    each = max(1, per_host // stride)
    return Group(row.ranks, -(-row.ranks // each), max(1, per_host // each))


@dataclass(frozen=True, slots=True)
class Price:
    """Seconds of a call.

    latency: the part that the smallest size also has.
    moving: the part that grows with the size.
    far: between hosts.
    low, high: ends of the 95 % interval of both parts together.
    origin: what the price is based on.
    extrapolated: in which respects it lies outside the measured range.
    validated: whether the same prediction passed validation on held-out data.
    """

    latency: float
    moving: float
    far: bool
    origin: str
    low: float | None = None
    high: float | None = None
    extrapolated: tuple[str, ...] = ()
    validated: bool = False

    @property
    def seconds(self) -> float:
        """Both parts together."""
        return self.latency + self.moving

    def times(self, factor: float) -> "Price":
        """The price of a call that takes ``factor`` times as long."""
        low, high = (None if end is None else end * factor for end in (self.low, self.high))
        return replace(self, latency=self.latency * factor, moving=self.moving * factor, low=low, high=high)


class Wires(NamedTuple):
    """The least seconds of calls on the links inside a host and on the cards between hosts; both work at once."""

    inside: float
    between: float


def wires_of(op: str, size_bytes: int, group: Group, rates: Rates) -> Wires:
    """The least time of one call on a GPU's links, without latency, for algorithms without switches that reduce.

    A collective is hierarchical: S of N hosts with g ranks each crosses the network once, (N−1)/N S/g on each rank's
    card, and then the links inside, (g−1)/g S on each rank (twice for all_reduce). An all_to_all sends (n−g)/n S by the
    card and (g−1)/n S inside (Austin et al. 2025, https://jax-ml.github.io/scaling-book/gpus/, on collectives).
    """
    hosts, each = group.hosts, group.each
    if op == "send_recv":
        return Wires(0.0, size_bytes / rates.outer) if hosts > 1 else Wires(size_bytes / rates.inner, 0.0)
    if op in PERSONALISED:
        away, near = (group.ranks - each) / group.ranks, (each - 1) / group.ranks
        return Wires(near * size_bytes / rates.inner, away * size_bytes / rates.outer)
    times = 2 if op == "all_reduce" else 1
    inside, between = (each - 1) / each / rates.inner, (hosts - 1) / hosts / each / rates.outer
    return Wires(times * inside * size_bytes, times * between * size_bytes)


def busiest(rows: Iterable[Traffic], layout: Layout, rates: Rates, per_host: int) -> Wires:
    """The least seconds of all calls of ``rows`` on either kind of link."""
    inside = between = 0.0
    for row in rows:
        wires = wires_of(row.op, row.size_bytes, group_of(layout, row, per_host), rates)
        inside, between = inside + row.messages * wires.inside, between + row.messages * wires.between
    return Wires(inside, between)


class Prices(Protocol):
    """A source of prices."""

    def price(self, op: str, size_bytes: int, group: Group) -> Price:
        """The price of one call. Raises AnalysisError if it is unknown."""


@dataclass(frozen=True, slots=True)
class Described:
    """Prices from the rates and delays of a GPU, with the bytes of a ring.

    A group with several ranks on a host uses the cards of all of them. If GPUs share cards, and no two ranks of a group
    have the same, it uses one part of one card: a ring leaves a host by the card that it enters by, which is far from
    the other ranks (https://github.com/NVIDIA/nccl/issues/412). Latency: one delay per doubling of hosts, and of ranks
    on one, twice for all_reduce. An all_gather or reduce_scatter between hosts with several ranks is a ring, as in NCCL
    (only one rank a host has PAT): one delay per hop through all ranks, if that is longer. An all_to_all is pairwise,
    and its traffic to other hosts uses each rank's own card.

    hops: seconds of a ring's hop inside and between hosts; None: the delays
    """

    rates: Rates
    origin: str = "the network as described"
    hops: tuple[float, float] | None = None

    def price(self, op: str, size_bytes: int, group: Group) -> Price:
        """The price of one call, without an interval."""
        rates, far = self.rates, group.hosts > 1
        if op == "send_recv":
            delay = rates.outer_delay if far else rates.inner_delay
            return Price(delay, max(wires_of(op, size_bytes, group, rates)), far, self.origin)
        ring = op in {"all_gather", "reduce_scatter"} and far and group.each > 1
        inner, outer = (ring and self.hops) or (rates.inner_delay, rates.outer_delay)
        by_ring = (group.hosts - 1) * outer + (group.ranks - group.hosts) * inner
        if op in PERSONALISED:
            return Price(by_ring, max(wires_of(op, size_bytes, group, rates)), far, self.origin)
        times = 2 if op == "all_reduce" else 1
        out, inside = (group.hosts - 1).bit_length(), (group.each - 1).bit_length()
        latency = times * (out * rates.outer_delay + inside * rates.inner_delay)
        latency = max(latency, by_ring * ring)
        apart = group.at_once >= rates.sharing > 1  # far groups have every at_once-th rank of a host
        card = min(rates.inner, rates.outer * (1 if apart else group.each)) if far else rates.inner
        moving = (bus_factor(op, group.ranks) or 0.0) * size_bytes / card
        return Price(latency, moving, far, self.origin)


_SIZES: Final = tuple(1 << power for power in range(10, 37, 2))
"""Sizes at which predictions are evaluated; between two of them time is interpolated linearly."""
_INSTEAD: Final = {"all_to_all_v": "all_to_all"}
"""Substitutes for ops that were not measured."""


_Priced = list[tuple[int, Price]]
"""Prices by size, ascending."""


class Measured:
    """Prices from runs: of a measured op interpolated between its calls, otherwise predicted.

    otherwise: used for calls that the runs do not cover.
    shared: ranks of a host share its card and memory, so that concurrent groups take as long as one with all of their
    bytes; default for ranks on CPUs.
    """

    def __init__(self, questions: Questions, otherwise: Prices | None = None, *, shared: bool | None = None) -> None:
        self.questions, self.otherwise = questions, otherwise
        hosts = max((results.facts.hosts for results in questions.results), key=len)
        self.per_host = max(map(hosts.count, hosts))
        device = {row.case.device for results in questions.results for row in results.cases}
        self.shared = "cpu" in device if shared is None else shared
        self._points = lru_cache(maxsize=None)(self._ask)

    def price(self, op: str, size_bytes: int, group: Group) -> Price:
        """The price of one call, interpolated between the two nearest evaluated sizes."""
        size = self.together(size_bytes, group)
        points = self._points(op, group.ranks, group.hosts, _SIZES)
        if isinstance(points, AnalysisError):
            if self.otherwise is None:
                raise points
            return self.otherwise.price(op, size_bytes, group)
        place = min(max(1, bisect_left(points, size, key=itemgetter(0))), len(points) - 1)
        (before, below), (after, above) = points[place - 1 : place + 1]
        if below.extrapolated != above.extrapolated:
            # The measured sizes end between the two: only the size itself says on which side it lies.
            exact = self._points(op, group.ranks, group.hosts, (size,))
            if not isinstance(exact, AnalysisError):
                above = below = dict(exact)[size]
        share = max(0.0, (size - before) / (after - before))
        seconds = below.seconds + share * (above.seconds - below.seconds)
        ends = (below.low, above.low), (below.high, above.high)
        low, high = (None if start is None or end is None else start + share * (end - start) for start, end in ends)
        latency = min(points[0][1].seconds, seconds)
        return replace(above, latency=latency, moving=seconds - latency, low=low, high=high)

    def together(self, size_bytes: int, group: Group) -> int:
        """Bytes of a call and of those that similar groups make on the same card and memory."""
        return size_bytes * (group.at_once if self.shared else 1)

    def _ask(self, op: str, ranks: int, hosts: int, sizes: tuple[int, ...]) -> "_Priced | AnalysisError":
        failed: AnalysisError | None = None
        for name, count, on in self._asks(op, ranks, hosts):
            try:
                curve = self.questions.curve(name, count, on)
                own = [] if curve is None else [(point.size_bytes, _own(point, on)) for point in curve.points]
                ends = own[:1] + own[-1:]
                asked = sorted({*sizes, *(size for size, _ in ends)})
                prediction = self.questions.predict(name, count, asked, hosts=on)
            except (AnalysisError, UsageError) as error:
                failed = failed or AnalysisError(f"{op} on {ranks} ranks, {hosts} host(s): {error}", code="no-price")
                continue
            if not prediction.unanswered:
                return _joined(own, [_price(forecast) for forecast in prediction.forecasts], asked)
            why = next(iter(prediction.unanswered.values())).reason
            failed = failed or AnalysisError(f"{op} on {ranks} ranks: {why}", code="no-price")
        # An op that was never measured: a ring of messages.
        rates = self.rates(hosts)
        if rates is None:
            return failed or AnalysisError(op, code="no-price")
        ways = Described(rates, f"{op} by a ring of messages: it was not measured")
        return [(size, ways.price(op, size, Group(ranks, hosts, 1))) for size in sizes]

    def _asks(self, op: str, ranks: int, hosts: int) -> Iterator[tuple[str, int, int]]:
        """Queries that may give the price of a call, the closest first: operation, ranks, hosts.

        A message between two ranks is that of a ping-pong, or one of those that more ranks sent together.
        """
        if op != "send_recv":
            yield op, ranks, min(hosts, ranks)
            if op in _INSTEAD:
                yield _INSTEAD[op], ranks, min(hosts, ranks)
            return
        for name in (op, "ping_pong"):
            yield name, 2, min(hosts, 2)
        sent = {
            (len(group.ranks), len(set(results.facts.hosts_of(group.ranks))))
            for results in self.questions.results
            for summary in results.cases
            if summary.case.op == op and summary.state == "measured"
            for group in summary.groups
        }
        yield from ((op, count, on) for count, on in sorted(sent) if count > 2 and (on > 1) == (hosts > 1))

    def rates(self, hosts: int) -> Rates | None:
        """Rates from α and β of messages inside a host and between ``hosts``; None if they are unknown.

        If only one kind exists (one host, or one rank per host), it is used for both.
        """
        kinds = (False,) if hosts == 1 else (True,) if self.per_host == 1 else (False, True)
        for op in ("all_reduce", "all_gather", "send_recv"):
            with suppress(AnalysisError, UsageError):
                fits = [self.questions.messages(op, far=far) for far in kinds]
                usable = [fit for fit in fits if not isinstance(fit, Unavailable)]
                if len(usable) == len(fits):
                    inner, outer = usable[0], usable[-1]
                    bytes_per_second = 1 / inner.beta_seconds_per_byte, 1 / outer.beta_seconds_per_byte
                    return Rates(*bytes_per_second, inner.alpha_seconds, outer.alpha_seconds, self.per_host)
        return None

    def flop_per_second(self, dtype: str) -> tuple[float, str] | None:
        """FLOP/s of one rank in the best measured matmul of this data type; None if there is none."""
        products = [
            (FLOP["matmul"](case.count) / group.time_ns * 1e9, case.size_bytes)
            for case, group in self._measured(lambda case: (case.op, case.dtype) == ("matmul", dtype))
        ]
        if not products:
            return None
        rate, size = max(products)
        return rate, f"{format_flop(rate)} a rank, the best matmul of the run ({dtype}, {format_size(size)})"

    def memory_per_second(self, device: str) -> float | None:
        """B/s that one rank reads and writes in the best triad of the largest size, which fits caches least; None if
        there is none in the memory of ``device``.
        """
        times = [
            (case.size_bytes, group.time_ns)
            for case, group in self._measured(lambda case: (case.op, case.device) == ("stream_triad", device))
        ]
        largest = max((size for size, _ in times), default=0)
        moved = MEMORY_TRAFFIC["stream_triad"] * largest * 1e9
        return max((moved / time_ns for size, time_ns in times if size == largest), default=None)

    def overlap(self) -> tuple[float, str] | None:
        """The share of a call hidden by concurrent computation, median over all cases; None if it was not measured."""
        shares = [overlap.share for overlap in self.overlaps]
        return (median(shares), f"as measured, median of {len(shares)} cases") if shares else None

    @property
    def overlaps(self) -> list[Overlap]:
        """Overlap with computation, of all cases that measured it."""
        measured = (group.overlap for _, group in self._measured(lambda case: case.mode == "overlap"))
        return [overlap for overlap in measured if overlap is not None]

    def _measured(self, keeps: Callable[[Case], bool]) -> Iterator[tuple[Case, GroupSummary]]:
        # Filter by case first: groups of a pair matrix are created one by one, and may be a million.
        every = (
            summary for results in self.questions.results for summary in results.cases if summary.state == "measured"
        )
        return ((summary.case, group) for summary in every if keeps(summary.case) for group in summary.groups)


OVERLAP: Final = 0.8
"""Fraction of a call that concurrent computation hides, assumed if no run measured it."""


def slowdown_of(run: Measured | None) -> tuple[float, str]:
    """Factor by which computation takes longer beside a call, and its origin; 1 if no run measured it."""
    slowdowns = [] if run is None else [overlap.slowdown for overlap in run.overlaps]
    if not slowdowns:
        return 1.0, "computation beside a call was not measured, so none is included"
    factor = max(1.0, median(slowdowns))
    return factor, f"computation takes {factor:.2f} times as long beside a call, median of {len(slowdowns)} cases"


def _own(point: GroupSummary, hosts: int) -> Price:
    """The price of a measured call: its mean, because a step waits for the sum of its calls."""
    seconds = sum(point.launch_means_ns) / point.launches / 1e9
    low, high = (end / 1e9 for end in point.ends)
    return Price(0.0, seconds, hosts > 1, "calls of these ranks", min(low, seconds), max(high, seconds), validated=True)


def _joined(own: _Priced, predicted: Sequence[Price], sizes: Sequence[int]) -> _Priced:
    """Measured prices, and beyond their sizes the ``predicted`` ones, as many times as long as at the nearest end."""
    others = list(zip(sizes, predicted, strict=True))
    if not own:
        return others
    (first, low), (last, high) = own[0], own[-1]
    at = dict(others)
    below = [(size, price.times(low.seconds / at[first].seconds)) for size, price in others if size < first]
    above = [(size, price.times(high.seconds / at[last].seconds)) for size, price in others if size > last]
    return [*below, *own, *above]


def _price(forecast: Forecast) -> Price:
    low, high = forecast.ends or (None, None)
    moving, passed = forecast.seconds.value, bool(forecast.held_out.passed)
    extrapolated = tuple(extrapolation.in_words for extrapolation in forecast.extrapolated)
    return Price(0.0, moving, forecast.hosts > 1, forecast.rests_on, low, high, extrapolated, passed)
