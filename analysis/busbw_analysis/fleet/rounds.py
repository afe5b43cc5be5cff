"""What a fleet's controller decides on: nodes by number, and rounds of disjoint pairs with their times."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Truths = npt.NDArray[np.bool_]

Stage = Literal[
    "alone", "alone again", "pairs", "held out", "suspects", "within", "cross", "halves", "narrow", "between"
]
"""Why a round is measured. alone: every node by itself, and again for suspects; pairs: the schedule that finds
suspects; suspects: each against a good node; within: pairs below one switch; cross, halves: pairs across a cut, and as
many inside of its sides; narrow: part of the pairs across. held out: pairs that another program measured, which find no
suspect but confirm one. between: no evidence, but time between rounds that are."""

AGAIN: Final[tuple[Stage, ...]] = ("alone again", "suspects")
FRESH: Final[tuple[Stage, ...]] = ("held out", *AGAIN)
"""Stages whose data confirm a suspect; without those that another program measured."""
BUSY: Final = 0.06
"""Share of CPUs that other programs may use, as in ``data/summary.py``."""
_APART_SIGMAS: Final = 4.0
MAD_TO_SIGMA: Final = 1.4826
FULL: Final = 32
"""Up to so many nodes, every pair is measured; of more, random matchings."""
_NODES_PER_LINK: Final = 4
_LEAST_RESENT, _TIMES_OTHERS = 3, 3
"""Packets that a pair sent again in a round, at least, and over the mean of the other pairs, to count as lost. On the
test bed, 97 % of the rounds of a node with 3 % loss have them, and 2 % of those of others.
"""
SAMPLES: Final = 4
"""Matchings of a large fleet, both ways: the median over 4 partners outvotes a bad one."""


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """Pairs that are measured at the same time; nodes alone are pairs of a node with itself.

    case: place in the run's cases
    sender, receiver: numbers of nodes; each node once
    seconds: median time of each pair, shortest of a node alone; NaN if it was not measured or failed, 0 if that cannot
        be told
    spread: mean over the lower quartile of the samples of each time; None if unknown
    resent: pairs whose nodes sent packets again, more than the other pairs; None if unknown
    wrong: whether pairs without a time computed or received wrong data
    disturbed: pairs on whose nodes other programs took the CPUs, clearly more than on most: no evidence against them
    busy: whether other programs took the CPUs of most nodes
    """

    case: int
    stage: Stage
    sender: Ints
    receiver: Ints
    seconds: Floats
    spread: Floats | None = None
    resent: Truths | None = None
    wrong: bool = False
    disturbed: Truths | None = None
    busy: bool = False

    @classmethod
    def of(cls, case: int, stage: Stage, sender: Ints, receiver: Ints) -> "Round":
        """A round to be measured."""
        return cls(case, stage, sender, receiver, np.full(len(sender), np.nan))

    @property
    def turned(self) -> "Round":
        """The same pairs in the other direction, to be measured."""
        return Round.of(self.case, self.stage, self.receiver, self.sender)

    def part(self, first: int, last: int) -> "Round":
        """Some of its pairs, to be measured."""
        return Round.of(self.case, self.stage, self.sender[first:last], self.receiver[first:last])

    def without(self, nodes: Ints) -> "Round":
        """The pairs that have none of ``nodes``, to be measured."""
        kept = ~(np.isin(self.sender, nodes) | np.isin(self.receiver, nodes))
        return Round.of(self.case, self.stage, self.sender[kept], self.receiver[kept])

    def measured(
        self,
        seconds: Floats,
        spread: Floats | None = None,
        taken: Floats | None = None,
        packets: Floats | None = None,
        *,
        wrong: bool = False,
    ) -> "Round":
        """The round with its times.

        taken: of each node, the share of its CPUs that other programs used; NaN if unknown
        packets: of each node, how many it sent again
        """
        resent = None
        if packets is not None and len(self.sender) > 1:  # a single pair has no others
            own = packets[self.sender] + packets[self.receiver]
            others = (own.sum() - own) / max(1, len(own) - 1)
            resent = (own >= _LEAST_RESENT) & (own > _TIMES_OTHERS * others)
            # Barriers are between all nodes: neighbours of one that loses messages send them again, too.
            waits = ~np.isin(np.arange(len(packets)), [self.sender, self.receiver])
            most = np.maximum(packets[self.sender], packets[self.receiver])
            resent &= most > packets[waits].max(initial=0.0)
        self = replace(self, seconds=seconds, spread=spread, resent=resent, wrong=wrong)  # noqa: PLW0642
        if taken is None or np.isnan(taken).all():
            return self
        usual = float(np.nanmedian(taken))
        # Shares of different moments scatter where programs compete everywhere.
        scatter = MAD_TO_SIGMA * float(np.nanmedian(np.abs(taken - usual)))
        apart = np.nan_to_num(taken) > usual + max(BUSY, _APART_SIGMAS * scatter)
        disturbed = apart[self.sender] | apart[self.receiver]
        return replace(self, disturbed=disturbed, busy=usual > BUSY)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Sender and receiver of each time."""
        return list(zip(self.sender.tolist(), self.receiver.tolist(), strict=True))

    @property
    def evidence(self) -> Floats:
        """The times without those of disturbed pairs."""
        return self.seconds if self.disturbed is None else np.where(self.disturbed, np.nan, self.seconds)


@dataclass(frozen=True, slots=True, eq=False)
class Fleet:
    """The nodes, and what can be asked of them.

    names: of the nodes
    leaf: number of each node's leaf switch; -1: unknown
    switches: names of the leaf switches, neighbours beside each other
    alone: places of the cases that a node runs by itself
    pairs: places of the cases of pairs, the largest messages first
    are_hosts: whether nodes are hosts; else ranks of one host
    """

    names: tuple[str, ...]
    leaf: Ints
    switches: tuple[str, ...] = ()
    alone: tuple[int, ...] = ()
    pairs: tuple[int, ...] = ()
    are_hosts: bool = True

    @property
    def count(self) -> int:
        """Number of nodes."""
        return len(self.names)

    @property
    def noun(self) -> str:
        """What a node is."""
        return "node" if self.are_hosts else "rank"

    def path(self, sender: Ints, receiver: Ints) -> Ints:
        """Kind of each pair's path: 0 below one switch or unknown, 1 between switches."""
        return np.asarray(self.leaf[sender] != self.leaf[receiver], dtype=np.int64)


def everybody(fleet: Fleet, case: int, stage: Stage) -> Round:
    """All nodes at once, each alone."""
    nodes = np.arange(fleet.count)
    return Round.of(case, stage, nodes, nodes)


def tournament(count: int, case: int) -> Iterator[Round]:
    """Every pair of ``count`` nodes once, in count − 1 rounds (count, if odd): the circle method."""
    circle = np.arange(count + count % 2)
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        first, second = circle[:half], circle[half:][::-1]
        both = (first < count) & (second < count)
        yield Round.of(case, "pairs", first[both], second[both])
        circle = np.concatenate([circle[:1], circle[-1:], circle[1:-1]])


def matching(nodes: Ints, case: int, stage: Stage, generator: np.random.Generator) -> Round:
    """A random perfect matching of ``nodes``; of an odd number, a node is left out."""
    order = generator.permutation(nodes)
    half = len(order) // 2
    return Round.of(case, stage, order[:half], order[half : 2 * half])


def matchings_within(fleet: Fleet, nodes: Ints, case: int, stage: Stage, generator: np.random.Generator) -> Round:
    """A random matching of ``nodes`` below each switch, of all switches at the same time."""
    parts = [
        matching(nodes[fleet.leaf[nodes] == leaf], case, stage, generator) for leaf in np.unique(fleet.leaf[nodes])
    ]
    return joined(parts)


def joined(parts: list[Round]) -> Round:
    """Rounds of disjoint nodes as a single round, to be measured."""
    first = parts[0]
    sender, receiver = (np.concatenate([getattr(part, name) for part in parts]) for name in ("sender", "receiver"))
    return Round.of(first.case, first.stage, sender, receiver)


def most_links(fleet: Fleet) -> int:
    """Suspected links of a round; the other pairs are controls."""
    return max(1, fleet.count // _NODES_PER_LINK)


def against_good(
    fleet: Fleet, case: int, nodes: Ints, links: Ints, suspects: Ints, turn: int, generator: np.random.Generator
) -> Round:
    """Suspects against good nodes, suspected links by themselves, and the rest among each other as controls.

    nodes: suspects that are open; links: open pairs (k × 2), which come first; suspects: all that are no partner
    turn: number of the round among its kind; a suspect has another partner in each as long as there are any
    """
    busy = np.zeros(fleet.count, dtype=np.bool_)
    chosen: list[tuple[int, int]] = []
    most = most_links(fleet)
    for first, second in links.tolist():
        if not busy[first] and not busy[second] and len(chosen) < most:
            busy[[first, second]] = True
            chosen.append((first, second))
    direct = np.asarray(chosen, dtype=np.int64).reshape(-1, 2)
    nodes = nodes[~busy[nodes]]
    free = ~busy
    free[suspects] = False
    good = np.flatnonzero(free)
    count = min(len(nodes), len(good))
    # With few nodes every partner has its turn; with many, a random one is new.
    order = np.roll(good, -turn) if fleet.count <= FULL else generator.permutation(good)
    tested = np.roll(nodes, -turn)[:count] if len(nodes) > count else nodes
    rest = order[count:]
    half = len(rest) // 2
    sender = np.concatenate([tested, direct[:, 0], rest[:half]])
    receiver = np.concatenate([order[:count], direct[:, 1], rest[half : 2 * half]])
    return Round.of(case, "suspects", sender, receiver)
