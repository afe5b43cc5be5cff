"""What a call of a collective takes: by a network that is described, or by what a run has measured.

A price is the time of one call of a group while all groups like it have theirs, split into what latency and what moving
bytes takes, so that a plan can ask for another network.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median
from typing import Final, Protocol

from busbw.errors import AnalysisError, UsageError
from busbw.ops import FLOP, bus_factor
from busbw.runs.records import Case
from busbw.units import format_flop, format_size
from busbw_analysis.data.groups import GroupSummary
from busbw_analysis.data.overlap import Overlap
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.predict import Questions
from busbw_analysis.predict.forecast import Forecast
from busbw_analysis.training.layout import Layout
from busbw_analysis.training.rates import Rates
from busbw_analysis.training.traffic import Traffic


@dataclass(frozen=True, slots=True)
class Group:
    """Ranks of a group, the hosts that they are on, and how many groups like it share each host."""

    ranks: int
    hosts: int
    at_once: int

    @property
    def each(self) -> int:
        """Ranks of it on a host."""
        return -(-self.ranks // self.hosts)


def group_of(layout: Layout, row: Traffic, per_host: int) -> Group:
    """Where the ranks of a group are. They are numbered tp first, then cp, ep, dp and pp, as by Megatron
    (arXiv:2104.04473, section 3.2), and hosts are filled one after the other.
    """
    per_host = min(per_host, layout.gpus)
    stride = layout.tp
    if row.dimension == "tp":
        stride = 1
    elif row.dimension == "pp":
        stride = layout.tp * layout.replicas
        if stride * layout.pp > per_host:  # some neighbours are on two hosts, and the others wait for those
            return Group(row.ranks, row.ranks, per_host)
    elif row.dimension == "dp" and row.what.endswith("experts"):
        stride = layout.tp * layout.ep
    elif row.dimension == "dp" and layout.shard is not None and row.op == "all_reduce":
        stride = layout.tp * layout.shard
    elif row.dimension == "ep" and "between nodes" in row.what:
        stride = per_host
    if stride * row.ranks <= per_host:
        return Group(row.ranks, 1, per_host // row.ranks)
    each = max(1, per_host // stride)
    return Group(row.ranks, -(-row.ranks // each), max(1, per_host // each))


@dataclass(frozen=True, slots=True)
class Price:
    """Seconds of a call: ``latency`` is there for the smallest size, too, ``moving`` grows with it. ``far``: between
    hosts. ``low`` and ``high``: ends of the 95 % interval of both together. ``origin``: what it rests on.
    ``extrapolated``: what of it lies outside of what was measured; ``validated``: whether the same way of predicting
    held on what it had not seen.
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
        """Both parts."""
        return self.latency + self.moving


class Prices(Protocol):
    """Where prices are from."""

    def price(self, op: str, size_bytes: int, group: Group) -> Price:
        """Of one call. Raises AnalysisError where nothing tells."""


@dataclass(frozen=True, slots=True)
class Described:
    """By the rates and delays of a GPU: of a ring and a tree the faster one, each with the bytes of a ring.

    A group that has several ranks on a host uses the cards of all of them. ring: one delay for each hop on the way
    through all ranks, all_reduce twice; tree: one for each doubling of hosts, and of ranks on one. An all_to_all is
    pairwise, and what goes to other hosts has a rank's own card.
    """

    rates: Rates
    origin: str = "the network as described"

    def price(self, op: str, size_bytes: int, group: Group) -> Price:
        """Of one call; no interval."""
        rates, far = self.rates, group.hosts > 1
        if op == "send_recv":
            delay, rate = (rates.outer_delay, rates.outer) if far else (rates.inner_delay, rates.inner)
            return Price(delay, size_bytes / rate, far, self.origin)
        by_ring = (group.hosts - 1) * rates.outer_delay + (group.ranks - group.hosts) * rates.inner_delay
        if op.startswith("all_to_all"):
            away, near = (group.ranks - group.each) / group.ranks, (group.each - 1) / group.ranks
            moving = size_bytes * max(away / rates.outer, near / rates.inner)
            return Price(by_ring, moving, far, self.origin)
        times = 2 if op == "all_reduce" else 1
        out, inside = (group.hosts - 1).bit_length(), (group.each - 1).bit_length()
        doublings = out * rates.outer_delay + inside * rates.inner_delay
        card = min(rates.inner, rates.outer * group.each) if far else rates.inner
        moving = (bus_factor(op, group.ranks) or 0.0) * size_bytes / card
        return Price(times * min(by_ring, doublings), moving, far, self.origin)


_SIZES: Final = tuple(1 << power for power in range(10, 37, 2))
"""Sizes that a run's fits are asked for; between two of them time is taken as a line."""
_INSTEAD: Final = {"all_to_all_v": "all_to_all"}
"""What tells of an op that was not measured."""


class Measured:
    """By the fits of runs. ``shared``: ranks of a host share its card and memory, so that groups at once take as long
    as one with all of their bytes; by default where ranks are on processors. ``otherwise``: for what runs do not tell.
    """

    def __init__(self, questions: Questions, otherwise: Prices | None = None, *, shared: bool | None = None) -> None:
        self.questions, self.otherwise = questions, otherwise
        hosts = max((one.hosts for one in questions.datasets), key=len)
        self.per_host = max(map(hosts.count, hosts))
        device = {row.case.device for one in questions.datasets for row in one.cases}
        self.shared = "cpu" in device if shared is None else shared
        self._points = lru_cache(maxsize=None)(self._ask)

    def price(self, op: str, size_bytes: int, group: Group) -> Price:
        """Of one call, on the line between the two nearest sizes that were asked for."""
        size = size_bytes * (group.at_once if self.shared else 1)
        found = self._points(op, group.ranks, group.hosts)
        if isinstance(found, AnalysisError):
            if self.otherwise is None:
                raise found
            return self.otherwise.price(op, size_bytes, group)
        place = min(max(1, bisect_left(_SIZES, size)), len(_SIZES) - 1)
        below, above = found[place - 1], found[place]
        share = max(0.0, (size - _SIZES[place - 1]) / (_SIZES[place] - _SIZES[place - 1]))
        seconds = below.seconds + share * (above.seconds - below.seconds)
        ends = (below.low, above.low), (below.high, above.high)
        low, high = (None if one is None or other is None else one + share * (other - one) for one, other in ends)
        latency = min(found[0].seconds, seconds)
        return replace(above, latency=latency, moving=seconds - latency, low=low, high=high)

    def _ask(self, op: str, ranks: int, hosts: int) -> "list[Price] | AnalysisError":
        failed: AnalysisError | None = None
        for name, count, on in self._asks(op, ranks, hosts):
            try:
                found = self.questions.predict(name, count, on, _SIZES)
            except (AnalysisError, UsageError) as error:
                failed = failed or AnalysisError(f"{op} on {ranks} ranks, {hosts} host(s): {error}", code="no-price")
                continue
            if not found.unanswered:
                return [_price(one, 0.5 if name == "ping_pong" else 1.0) for one in found.forecasts]
            why = next(iter(found.unanswered.values()))
            failed = failed or AnalysisError(f"{op} on {ranks} ranks: {why}", code="no-price")
        # An op that was not measured on anything: in a ring of messages.
        rates = self.rates(hosts)
        if rates is None:
            return failed or AnalysisError(op, code="no-price")
        ways = Described(rates, f"{op} by a ring of messages: it was not measured")
        return [ways.price(op, size, Group(ranks, hosts, 1)) for size in _SIZES]

    def _asks(self, op: str, ranks: int, hosts: int) -> Iterator[tuple[str, int, int]]:
        """What may tell of a call, the nearest first: operation, ranks, hosts. A message between two is half of a
        ping-pong, or one of those that more ranks sent at once.
        """
        if op != "send_recv":
            yield op, ranks, min(hosts, ranks)
            if op in _INSTEAD:
                yield _INSTEAD[op], ranks, min(hosts, ranks)
            return
        for name in (op, "ping_pong"):
            yield name, 2, min(hosts, 2)
        sent = {
            (len(group.ranks), len(set(dataset.hosts_of(group.ranks))))
            for dataset, summaries in zip(self.questions.datasets, self.questions.summaries, strict=True)
            for one in summaries
            if one.case.op == op and one.state == "measured"
            for group in one.groups
        }
        yield from ((op, count, on) for count, on in sorted(sent) if count > 2 and (on > 1) == (hosts > 1))

    def rates(self, hosts: int) -> Rates | None:
        """By α and β of messages inside a host, and between ``hosts`` of them; None where nothing tells. What there is
        only one of stands for both: messages of one host, or of hosts with a rank each.
        """
        wanted = (False,) if hosts == 1 else (True,) if self.per_host == 1 else (False, True)
        for known in ("all_reduce", "all_gather", "send_recv"):
            with suppress(AnalysisError, UsageError):
                found = [self.questions.messages(known, far=far) for far in wanted]
                told = [one for one in found if not isinstance(one, Unavailable)]
                if len(told) == len(found):
                    inner, outer = told[0], told[-1]
                    bytes_per_second = 1 / inner.beta_seconds_per_byte, 1 / outer.beta_seconds_per_byte
                    return Rates(*bytes_per_second, inner.alpha_seconds, outer.alpha_seconds, self.per_host)
        return None

    def flop_per_second(self, dtype: str) -> tuple[float, str] | None:
        """Of one rank, by the best product of matrices of this type that was measured; None where there is none."""
        found = [
            (FLOP["matmul"](case.count) / group.time_ns * 1e9, case.size_bytes)
            for case, group in self._measured(lambda case: (case.op, case.dtype) == ("matmul", dtype))
        ]
        if not found:
            return None
        rate, size = max(found)
        return rate, f"{format_flop(rate)} a rank, the best matmul of the run ({dtype}, {format_size(size)})"

    def overlap(self) -> tuple[float, str] | None:
        """The share of a call that computation beside it hid, median over all cases; None where it was not measured."""
        shares = [one.share for one in self.overlaps]
        return (median(shares), f"as measured, median of {len(shares)} cases") if shares else None

    @property
    def overlaps(self) -> list[Overlap]:
        """Overlap with computation, of all cases that measured it."""
        measured = (group.overlap for _, group in self._measured(lambda case: case.mode == "overlap"))
        return [one for one in measured if one is not None]

    def _measured(self, wanted: Callable[[Case], bool]) -> Iterator[tuple[Case, GroupSummary]]:
        # The case is asked first: groups of a pair matrix are made one by one, and may be a million.
        every = (one for summaries in self.questions.summaries for one in summaries if one.state == "measured")
        return ((one.case, group) for one in every if wanted(one.case) for group in one.groups)


def slowdown_of(run: Measured | None) -> tuple[float, str]:
    """By what factor computation takes longer beside a call, with what it rests on; 1 where no run tells."""
    found = [] if run is None else [one.slowdown for one in run.overlaps]
    if not found:
        return 1.0, "not included: no run measured computation beside a call"
    factor = max(1.0, median(found))
    return factor, f"computation takes {factor:.2f} times as long beside a call, median of {len(found)} cases"


def _price(one: Forecast, share: float) -> Price:
    low, high = (None if end is None else end * share for end in (one.seconds.low, one.seconds.high))
    moving, passed = one.seconds.value * share, bool(one.held_out.passed)
    return Price(0.0, moving, one.hosts > 1, one.basis, low, high, one.extrapolated, passed)
