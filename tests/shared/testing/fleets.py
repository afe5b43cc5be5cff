"""Fleets of known truth: nodes, links and switches of which some are slow, with the scatter of real launches."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from busbw_analysis.fleet.rounds import Fleet, Floats, Round
from busbw_analysis.fleet.search import Options, Search
from busbw_analysis.fleet.verdicts import FleetJudgement, judge
from testing.gates import real_launches

ALONE, PAIRS = 0, 1
"""Places of the two cases of a simulated fleet."""
_SAMPLES: Final = 5


def scatter(part: float = 1.0) -> Floats:
    """Logarithms of the times of real launches over the median of their run, times ``part``."""
    logs = real_launches()[:, :, -1]
    return np.asarray(part * (logs - np.median(logs, axis=1, keepdims=True)).ravel())


def fleet_of(count: int, below: int = 0) -> Fleet:
    """``count`` nodes with a case alone and one of pairs; ``below``: nodes below each leaf switch (0: unknown)."""
    leaf = np.arange(count) // below if below else np.full(count, -1)
    switches = tuple(f"s{number}" for number in range(-(-count // below))) if below else ()
    return Fleet(tuple(f"n{number}" for number in range(count)), leaf, switches, (ALONE,), (PAIRS,))


@dataclass(slots=True)
class World:
    """The truth: logarithms of slowdowns.

    alone, out, back: of nodes by number: by themselves, sending and receiving
    links: of ordered pairs
    switches, trunks: of switches by number: all their traffic, and that with other switches
    cut: nodes of one side and a slowdown of pairs across if more than ``at_once`` of them run at the same time
    dead: nodes with which every call fails
    taken: share of the CPUs of nodes by number that other programs use
    moments: chance that a slow moment of a node begins in a round; in one, which lasts four rounds on average, all
        takes four times as long
    lost: chance that a sample of an ordered pair is late; late: of any sample
    resent: mean number of packets that a node by number sends again in a round; often: that any node does
    """

    fleet: Fleet
    errors: Floats
    alone: dict[int, float] = field(default_factory=dict)
    out: dict[int, float] = field(default_factory=dict)
    back: dict[int, float] = field(default_factory=dict)
    links: dict[tuple[int, int], float] = field(default_factory=dict)
    switches: dict[int, float] = field(default_factory=dict)
    trunks: dict[int, float] = field(default_factory=dict)
    cut: tuple[frozenset[int], float, int] | None = None
    dead: frozenset[int] = frozenset()
    taken: dict[int, float] = field(default_factory=dict)
    moments: float = 0.0
    lost: dict[tuple[int, int], float] = field(default_factory=dict)
    late: float = 0.001
    resent: dict[int, float] = field(default_factory=dict)
    often: float = 0.0
    _slow: set[int] = field(default_factory=set)

    def outcome(self, asked: Round, generator: np.random.Generator) -> Round:
        """What a round would show. A time has five samples, of which late ones take 20 times as long."""
        seconds = self.seconds(asked, generator)
        lost = [self.lost.get(pair, 0.0) for pair in zip(asked.sender.tolist(), asked.receiver.tolist(), strict=True)]
        late = generator.random((_SAMPLES, len(lost))) < np.maximum(self.late, lost)
        times = np.where(late, 20.0, 1.0)
        taken = np.asarray([self.taken.get(node, 0.0) for node in range(self.fleet.count)])
        spread = times.mean(axis=0) / np.quantile(times, 0.25, axis=0)
        means = [self.resent.get(node, self.often) for node in range(self.fleet.count)]
        packets = generator.poisson(means).astype(np.float64) if any(means) else None
        return asked.measured(seconds * np.median(times, axis=0), spread, taken, packets)

    def seconds(self, asked: Round, generator: np.random.Generator) -> Floats:
        """What a round would take. Fails as a whole if it has a dead node, as a launch of ranks does."""
        logs = generator.choice(self.errors, len(asked.sender))
        if self.dead and np.isin(np.concatenate([asked.sender, asked.receiver]), list(self.dead)).any():
            return np.full(len(logs), np.nan)
        if self.moments:
            chances = generator.random(self.fleet.count)
            limits = [0.75 if node in self._slow else self.moments for node in range(self.fleet.count)]
            self._slow = set(np.flatnonzero(chances < limits).tolist())
            logs += math.log(4) * np.isin(asked.sender, list(self._slow))
        if asked.case == ALONE:
            return np.asarray(np.exp(logs + self._of(self.alone)[asked.sender]))
        logs += self._of(self.out)[asked.sender] + self._of(self.back)[asked.receiver]
        if self.links:
            pairs = zip(asked.sender.tolist(), asked.receiver.tolist(), strict=True)
            logs += np.asarray([self.links.get(pair, 0.0) for pair in pairs])
        first, second = self.fleet.leaf[asked.sender], self.fleet.leaf[asked.receiver]
        for slow, where in ((self.switches, first > -2), (self.trunks, first != second)):
            for switch, log in slow.items():
                logs += np.where(((first == switch) | (second == switch)) & where, log, 0.0)
        if self.cut is not None:
            side, log, at_once = self.cut
            across = np.isin(asked.sender, list(side)) != np.isin(asked.receiver, list(side))
            logs += np.where(across & (across.sum() > at_once), log, 0.0)
        return np.asarray(np.exp(logs))

    def _of(self, slow: Mapping[int, float]) -> Floats:
        every = np.zeros(self.fleet.count)
        every[list(slow)] = list(slow.values())
        return every


def searched(world: World, seed: int, options: Options | None = None) -> Search:
    """A search of ``world`` until it is answered."""
    generator = np.random.default_rng(seed)
    search = Search(world.fleet, options or Options(seed=seed))
    while search.asked is not None:
        search.tell(world.outcome(search.asked, generator))
    return search


def judged(world: World, seed: int, options: Options | None = None) -> FleetJudgement:
    """The verdicts on ``world``."""
    search = searched(world, seed, options)
    return judge(search.fleet, search.rounds, search.options)


Plant = Callable[[World, int, float], None]


def _both(world: World, node: int, log: float) -> None:
    world.out[node] = world.back[node] = log


def _sending(world: World, node: int, log: float) -> None:
    world.out[node] = log


def _receiving(world: World, node: int, log: float) -> None:
    world.back[node] = log


def _alone(world: World, node: int, log: float) -> None:
    world.alone[node] = log


NODE_FAULTS: Final[dict[str, Plant]] = {
    "both ways": _both,
    "sending": _sending,
    "receiving": _receiving,
    "alone": _alone,
}
"""Kinds of faults of a node → plants one with the logarithm of a slowdown."""
