"""Simulate a schedule on a network, message by message, to find the limiting link, which a formula cannot give.

Concurrent messages share every link max-min fairly: none can get more without taking from one that has less
(progressive filling: Bertsekas and Gallager, Data Networks, 1992, §6.5.2). Rates are constant between events; an event
is the start or the end of a message.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from busbw.errors import AnalysisError, UsageError
from busbw.ops.schedules import Round, Schedule
from busbw_analysis.models.costs import CostModel
from busbw_analysis.models.networks import NOWHERE, SLOWEST, Link, Network, Real, Whole, check_delay

_SAME: Final = 1e-12
"""Times that differ by less than this fraction are equal; the difference is rounding."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs in addition to the network: ``overhead`` in seconds per message, ``gamma`` in seconds per reduced byte."""

    overhead: float = 0.0
    gamma: float = 0.0

    def __post_init__(self) -> None:
        check_delay("overhead", self.overhead)
        if not 0 <= self.gamma <= 1 / SLOWEST:
            raise UsageError(f"{self.gamma} s per reduced byte: must be 0 to {1 / SLOWEST:g} s")


@dataclass(frozen=True, slots=True)
class Simulation:
    """The time of a schedule and the bytes through every link of the network."""

    seconds: float
    links: tuple[Link, ...]
    carried: Real

    def utilisation(self) -> Real:
        """The utilisation of every link over this time, 0 to 1."""
        rates = np.array([link.bytes_per_second for link in self.links])
        return self.carried / (rates * self.seconds) if self.seconds else np.zeros(len(rates))


def fair_rates(links: Whole, capacities: Real) -> Real:
    """Bytes per second of every flow; ``links[f]`` are the numbers of its links (``NOWHERE``: none), at least one.

    A link is settled when none of its flows has a smaller share on another link: then all get an equal share of it.
    This does not reduce the rate of any other flow, because the settled flows leave at least a fair share on their
    other links. The remaining links follow in the same way.
    """
    flows, columns = np.nonzero(links != NOWHERE)
    on = links[flows, columns]
    rates = np.zeros(len(links))
    left = capacities.astype(np.float64)
    while len(flows):
        sharing = np.bincount(on, minlength=len(left))
        share = np.divide(left, sharing, out=np.full(len(left), np.inf), where=sharing > 0)
        least = np.full(len(links), np.inf)
        np.minimum.at(least, flows, share[on])
        held_up = np.bincount(on[least[flows] < share[on] * (1 - _SAME)], minlength=len(left))
        settled = np.zeros(len(links), dtype=np.bool_)
        settled[flows[held_up[on] == 0]] = True
        rates[settled] = least[settled]
        gone = settled[flows]
        left = np.maximum(left - np.bincount(on[gone], rates[flows[gone]], len(left)), 0.0)
        flows, on = flows[~gone], on[~gone]
    return rates


def _messages(transfers: Round) -> Whole:
    """A round as an array with one column per message. Rows: source, target, blocks, reduced blocks."""
    sources, targets = [message.source for message in transfers], [message.to for message in transfers]
    blocks = [len(message.sent) for message in transfers]
    sums = [len(message.sent) if message.adds else 0 for message in transfers]
    return np.array([sources, targets, blocks, sums], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Traffic:
    """The messages of an algorithm on ``ranks`` ranks; made once for all sizes.

    ``blocks``: number of blocks of S.
    ``different``: the distinct rounds (usually few), as made by ``_messages``.
    ``order``: for each round, the index of its distinct round.
    """

    ranks: int
    blocks: int
    different: tuple[Whole, ...]
    order: tuple[int, ...]

    @staticmethod
    def of(schedule: Schedule) -> "Traffic":
        """The messages of ``schedule``."""
        seen: dict[bytes, tuple[int, Whole]] = {}
        order: list[int] = []
        for transfers in schedule.rounds:
            messages = _messages(transfers)
            number, _ = seen.setdefault(messages.tobytes(), (len(seen), messages))
            order.append(number)
        return Traffic(schedule.ranks, schedule.blocks, tuple(messages for _, messages in seen.values()), tuple(order))

    @property
    def messages(self) -> int:
        """Number of messages that ``simulate`` processes: identical rounds count once."""
        return sum(messages.shape[1] for messages in self.different)

    def pairs(self) -> tuple[Whole, Whole]:
        """Sources and targets of all messages, each pair once."""
        every = np.unique(np.concatenate([source * self.ranks + to for source, to, *_ in self.different]))
        return every // self.ranks, every % self.ranks


def simulate(traffic: Traffic, size_bytes: float, network: Network, costs: Costs | None = None) -> Simulation:
    """One call of the schedule with S = ``size_bytes``.

    A round ends when its last message has arrived and is reduced, as in the closed forms. A rank reduces after all its
    messages of a round. Raises AnalysisError if the numbers of ranks of ``traffic`` and ``network`` differ.
    """
    if traffic.ranks != network.placement.ranks:
        raise AnalysisError(f"a schedule of {traffic.ranks} ranks cannot run on a network of {network.placement.ranks}")
    links = network.links()
    carried, seconds = np.zeros(len(links)), 0.0
    times_of = Counter(traffic.order)
    for number, messages in enumerate(traffic.different):
        taken, through = _round(messages, size_bytes / traffic.blocks, network, links, costs or Costs())
        seconds += times_of[number] * taken
        carried += times_of[number] * through
    return Simulation(seconds, links, carried)


def _round(
    messages: Whole, block_bytes: float, network: Network, links: Sequence[Link], costs: Costs
) -> tuple[float, Real]:
    """Seconds of a round that all ranks begin together, and the bytes through every link."""
    source, to, blocks, sums = messages
    routes, ranks = network.routes(source, to), network.placement.ranks
    capacities = np.array([link.bytes_per_second for link in links])
    starts = routes.delays + costs.overhead
    coming = np.unique(starts).tolist()
    left_bytes, carried, ended = blocks * block_bytes, np.zeros(len(links)), np.zeros(ranks)
    now, active = 0.0, np.zeros(0, dtype=np.int64)
    while coming or len(active):
        taken = routes.links[active]
        rates = fair_rates(taken, capacities)
        needed = left_bytes[active] / rates
        step = max(0.0, min(needed.min(initial=np.inf), (coming[0] if coming else np.inf) - now))
        left_bytes[active] -= rates * step
        there = taken != NOWHERE
        moved = np.broadcast_to((rates * step)[:, None], taken.shape)[there]
        carried += np.bincount(taken[there], moved, len(links))
        now += step
        through = needed <= step + _SAME * now
        for ends in (source, to):
            ended[ends[active[through]]] = now
        active = active[~through]
        while coming and coming[0] <= now * (1 + _SAME):
            active = np.concatenate([active, np.flatnonzero(starts == coming.pop(0))])
    reducing = np.bincount(to, sums, ranks) * block_bytes * costs.gamma
    return float((ended + reducing).max()), carried


def formula_seconds(
    row: CostModel, traffic: Traffic, size_bytes: float, network: Network, costs: Costs | None = None
) -> float:
    """The closed form of the same schedule, with α and β of uncontended messages on this network.

    α is the longest delay of any route, 1/β the slowest link on any route; R is the rate of a shared memory. A
    hierarchical algorithm has separate α and β inside and between hosts, where the ranks of a host that send
    concurrently share its card.
    """
    costs = costs or Costs()
    ranks, hosts = traffic.ranks, network.placement.hosts
    where = (ranks, hosts, size_bytes)
    sources, targets = traffic.pairs()
    rounds, sent = row.rounds(*where), row.sent(*where) * size_bytes
    extra = rounds * costs.overhead + row.added(*where) * size_bytes * costs.gamma
    if row.inner_sent(*where) > 0:
        # Hosts as the algorithm assumes them; with cyclic placement its neighbours are on different hosts.
        inside = sources // (ranks // hosts) == targets // (ranks // hosts)
        near = _slowest_route(network, sources[inside], targets[inside], in_step=True)
        far = _slowest_route(network, sources[~inside], targets[~inside], in_step=True)
        inner_rounds, between = row.inner_rounds(*where), row.between(*where) * size_bytes
        if row.overlapped:
            return float(max(near(rounds, sent), far(rounds, between)) + extra)
        return float(near(inner_rounds, sent - between) + far(rounds - inner_rounds, between) + extra)
    route = _slowest_route(network, sources, targets)
    seconds = route(rounds, sent)
    memory = next((link.bytes_per_second for link in network.links() if link.part == "memory"), None)
    if memory is not None:
        seconds = max(seconds, route(rounds, 0.0) + row.moved(*where) * size_bytes / memory)
    return float(seconds + extra)


def _slowest_route(
    network: Network, sources: Whole, targets: Whole, *, in_step: bool = False
) -> Callable[[float, float], float]:
    """The slowest route of uncontended messages, as a function of rounds and of the bytes sent in all of them that
    gives seconds; with ``in_step``, all messages through a host's card share it.
    """
    links, routes = network.links(), network.routes(sources, targets)
    rates = np.array([link.bytes_per_second for link in links])
    message, place = np.nonzero(routes.links != NOWHERE)
    taken = routes.links[message, place]
    if in_step:
        at_once = np.minimum(*(_different(taken, ranks[message], len(links)) for ranks in (sources, targets)))
        cards = np.array([link.part == "card" for link in links])
        rates = rates / np.where(cards, np.maximum(at_once, 1), 1)
    delay, rate = float(routes.delays.max(initial=0.0)), float(rates[taken].min(initial=np.inf))
    return lambda rounds, sent_bytes: rounds * delay + sent_bytes / rate


def _different(links: Whole, ranks: Whole, count: int) -> Whole:
    """The number of distinct ``ranks`` on each of ``count`` links."""
    pairs = np.unique(np.stack([links, ranks]), axis=1)
    return np.bincount(pairs[0], minlength=count)
