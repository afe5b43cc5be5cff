"""Simulate a schedule on a network, message by message, to find the limiting link, which a formula cannot give.

Concurrent messages share every link max-min fairly: none can get more without taking from one that has less
(progressive filling: Bertsekas and Gallager, Data Networks, 1992, §6.5.2). Rates are constant between events; an event
is the start or the end of a message.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
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
    """A round as an array with one column per message. Rows: round number, source, target, blocks, reduced blocks."""
    sources, targets = [message.source for message in transfers], [message.to for message in transfers]
    blocks = [len(message.sent) for message in transfers]
    sums = [len(message.sent) if message.adds else 0 for message in transfers]
    return np.array([[0] * len(transfers), sources, targets, blocks, sums], dtype=np.int64)


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

    def messages(self, *, free_running: bool) -> int:
        """Number of messages that ``simulate`` processes; identical rounds count once unless ``free_running``."""
        numbers = self.order if free_running else range(len(self.different))
        return sum(self.different[number].shape[1] for number in numbers)

    def pairs(self) -> tuple[Whole, Whole]:
        """Sources and targets of all messages, each pair once."""
        every = np.unique(np.concatenate([source * self.ranks + to for _, source, to, *_ in self.different]))
        return every // self.ranks, every % self.ranks


def simulate(
    traffic: Traffic, size_bytes: float, network: Network, costs: Costs | None = None, *, free_running: bool = False
) -> Simulation:
    """One call of the schedule with S = ``size_bytes``.

    A round ends when its last message has arrived and is reduced, as in the closed forms. With ``free_running``, each
    rank continues as soon as its own messages of a round are complete and reduced, and a message waits for both of its
    ranks. A rank reduces after all messages of a round. Raises AnalysisError if the numbers of ranks of ``traffic`` and
    ``network`` differ.
    """
    if traffic.ranks != network.placement.ranks:
        raise AnalysisError(f"a schedule of {traffic.ranks} ranks cannot run on a network of {network.placement.ranks}")
    links = network.links()
    carried, seconds = np.zeros(len(links)), 0.0
    if free_running:
        rounds = [traffic.different[number] for number in traffic.order]
        joined = np.concatenate(rounds, axis=1)
        joined[0] = np.repeat(np.arange(len(rounds)), [columns.shape[1] for columns in rounds])
        parts = [(joined, 1)]
    else:
        times_of = Counter(traffic.order)
        parts = [(messages, times_of[number]) for number, messages in enumerate(traffic.different)]
    for messages, times in parts:
        run = _Run(messages, size_bytes / traffic.blocks, network, links, costs or Costs())
        seconds += times * run.run()
        carried += times * run.carried
    return Simulation(seconds, links, carried)


class _Run:
    """A simulation in progress.

    A turn is the part of one rank in one round. It begins when the rank's previous turn has ended, and ends when all
    its messages, sent and received, are complete and reduced.
    """

    def __init__(
        self, messages: Whole, block_bytes: float, network: Network, links: Iterable[Link], costs: Costs
    ) -> None:
        number, source, to, blocks, sums = messages
        ranks, rounds = network.placement.ranks, int(number.max()) + 1
        pairs, self._pair = np.unique(source * ranks + to, return_inverse=True)
        routes = network.routes(pairs // ranks, pairs % ranks)
        self._links, self._delays = routes.links, routes.delays + costs.overhead
        self._capacities = np.array([link.bytes_per_second for link in links])
        self._left_bytes = blocks * block_bytes

        # Turns are numbered by rank and then by round, so the next turn of a rank has the next number.
        keys = np.concatenate([source * rounds + number, to * rounds + number])
        turns, of_end = np.unique(keys, return_inverse=True)
        self._sender, self._receiver = np.split(of_end, 2)
        self._open = np.bincount(of_end)
        self._adding = np.bincount(self._receiver, sums, len(turns)) * block_bytes * costs.gamma
        new_rank = np.diff(turns // rounds, prepend=-1, append=-1) != 0
        self._first, self._last = np.flatnonzero(new_rank[:-1]), new_rank[1:]
        self._ends = np.argsort(of_end, kind="stable") % len(source)  # messages sorted by turn
        self._from = np.concatenate([[0], np.cumsum(self._open)])  # index of the first message of each turn
        self._waits = np.full(len(source), 2)  # number of ranks that each message still waits for

        self.carried = np.zeros(len(self._capacities))
        self._coming: list[tuple[float, int, bool, Whole]] = []  # time, tie-breaker, turns or messages, their numbers
        self._number = count()
        self._active = np.zeros(0, dtype=np.int64)

    def run(self) -> float:
        """Run to the end; returns the end time of the last turn in seconds."""
        now, end = 0.0, 0.0
        self._expect(np.zeros(len(self._first)), self._first, turns=True)
        while self._coming or len(self._active):
            routes = self._links[self._pair[self._active]]
            rates = fair_rates(routes, self._capacities)
            needed = self._left_bytes[self._active] / rates
            step = max(0.0, min(needed.min(initial=np.inf), (self._coming[0][0] if self._coming else np.inf) - now))
            self._flow(routes, rates * step)
            now += step
            through = needed <= step + _SAME * now
            ended, self._active = self._active[through], self._active[~through]
            end = max(end, self._finish(ended, now))
            while self._coming and self._coming[0][0] <= now * (1 + _SAME):
                _, _, turns, numbers = heapq.heappop(self._coming)
                if turns:
                    self._begin(numbers, now)
                else:
                    self._active = np.concatenate([self._active, numbers])
        return end

    def _flow(self, routes: Whole, moved: Real) -> None:
        self._left_bytes[self._active] -= moved
        there = routes != NOWHERE
        through = np.broadcast_to(moved[:, None], routes.shape)[there]
        self.carried += np.bincount(routes[there], through, len(self.carried))

    def _expect(self, times: Real, numbers: Whole, *, turns: bool) -> None:
        for time in np.unique(times):
            heapq.heappush(self._coming, (float(time), next(self._number), turns, numbers[times == time]))

    def _begin(self, turns: Whole, now: float) -> None:
        lengths = self._open[turns]
        starts = np.cumsum(lengths) - lengths
        messages = self._ends[np.arange(lengths.sum()) + np.repeat(self._from[turns] - starts, lengths)]
        np.subtract.at(self._waits, messages, 1)
        ready = np.unique(messages[self._waits[messages] == 0])
        self._expect(now + self._delays[self._pair[ready]], ready, turns=False)

    def _finish(self, messages: Whole, now: float) -> float:
        """End the turns completed by ``messages`` and schedule the following ones; returns the latest end time."""
        touched = np.concatenate([self._sender[messages], self._receiver[messages]])
        np.subtract.at(self._open, touched, 1)
        done = np.unique(touched[self._open[touched] == 0])
        times = now + self._adding[done]
        goes_on = ~self._last[done]
        self._expect(times[goes_on], done[goes_on] + 1, turns=True)
        return float(times.max(initial=0.0))


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
