"""Fleets of known truth: what a search names, in how many rounds, beside plain bisection and a threshold on the median.

    python tests/bench/fleet.py --fleets 3 --healthy 1000

Times of single calls scatter as those of real launches do (``tests/data/launches.json``), or by a part of that. Nodes
have the same faults in all three ways; those of the field look once and compare with a limit.
"""

import argparse
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from testing.fleets import ALONE, NODE_FAULTS, PAIRS, World, fleet_of, judged, scatter

from busbw_analysis.fleet.rounds import Floats, Round, everybody, matching
from busbw_analysis.fleet.verdicts import FleetJudgement

LIMIT: Final = 1 / 0.85
"""Slowdown at which the ways of the field call a node bad."""
BELOW: Final = 32
SECONDS_PER_ROUND: Final = 0.5
"""A round's part of the plan's estimate: its time budget and what is around its samples."""


@dataclass(slots=True)
class Score:
    """Nodes that were named rightly, wrongly, and not at all, over some fleets."""

    right: int = 0
    wrong: int = 0
    missed: int = 0

    def add(self, truth: set[int], named: set[int]) -> None:
        """Count a fleet."""
        self.right += len(truth & named)
        self.wrong += len(named - truth)
        self.missed += len(truth - named)

    @property
    def line(self) -> str:
        """Recall and precision."""
        recall = self.right / max(1, self.right + self.missed)
        precision = self.right / max(1, self.right + self.wrong)
        return f"recall {recall:7.2%}  precision {precision:7.2%}"


def planted(
    count: int, share: float, slower: float, errors: Floats, generator: np.random.Generator
) -> tuple[World, set[int]]:
    """A fat tree with so many bad nodes, of every kind in turn; with 1,000 nodes or more, a bad switch and a bad trunk
    are among them, whose nodes count.
    """
    world = World(fleet_of(count, BELOW), errors)
    number = max(1, round(share * count))
    truth: set[int] = set()
    if number >= 3 * BELOW:
        first, second = generator.choice(len(world.fleet.switches) - 1, 2, replace=False).tolist()
        world.switches[first] = world.trunks[second] = math.log(slower)
        truth |= {node for node in range(count) if node // BELOW in {first, second}}
    others = generator.permutation([node for node in range(count) if node not in truth])[: number - len(truth)]
    for place, node in enumerate(others.tolist()):
        kind = list(NODE_FAULTS)[place % len(NODE_FAULTS)]
        NODE_FAULTS[kind](world, node, math.log(slower))
    return world, truth | set(others.tolist())


def by_threshold(world: World, generator: np.random.Generator) -> set[int]:
    """Alone once. Pairs once, the nodes of a slow pair again with a good one: slow again is bad (DLRover's check)."""
    nodes = np.arange(world.fleet.count)
    first = matching(nodes, PAIRS, "pairs", generator)
    times = world.seconds(first, generator)
    slow = times > LIMIT * np.median(times)
    suspects = np.concatenate([first.sender[slow], first.receiver[slow]])
    good = generator.permutation(np.concatenate([first.sender[~slow], first.receiver[~slow]]))[: len(suspects)]
    again = Round.of(PAIRS, "pairs", suspects[: len(good)], good)
    second = world.seconds(again, generator)
    return set(again.sender[second > LIMIT * np.median(times)].tolist()) | slow_alone(world, generator)


def slow_alone(world: World, generator: np.random.Generator) -> set[int]:
    """Nodes that take longer than the limit by themselves, in a single look."""
    times = world.seconds(everybody(world.fleet, ALONE, "alone"), generator)
    return set(np.flatnonzero(times > LIMIT * np.median(times)).tolist())


def by_bisection(world: World, generator: np.random.Generator) -> set[int]:
    """Halves of the nodes, as long as a group is slower than a good one: a group is as slow as its slowest pair."""
    usual = float(
        np.median(world.seconds(matching(np.arange(world.fleet.count), PAIRS, "pairs", generator), generator))
    )
    groups, bad = [np.arange(world.fleet.count)], set()
    while groups:
        halves = [half for group in groups for half in np.array_split(group, 2) if len(half)]
        groups = []
        for half in halves:
            ring = Round.of(
                PAIRS, "pairs", half, np.roll(half, -1) if len(half) > 1 else (half + 1) % world.fleet.count
            )
            if world.seconds(ring, generator).max() > LIMIT * usual:
                if len(half) == 1:
                    bad |= set(half.tolist())
                else:
                    groups.append(half)
    return bad | slow_alone(world, generator)


def named(judgement: FleetJudgement) -> set[int]:
    """The nodes that a search names."""
    return set(judgement.bad_nodes)


def large(count: int, share: float, slower: float, part: float, fleets: int) -> Iterator[str]:
    """A line for each way."""
    scores: dict[str, Score] = {way: Score() for way in ("busbw fleet", "threshold", "bisection")}
    rounds, seconds = [], []
    for seed in range(fleets):
        generator = np.random.default_rng(seed)
        world, truth = planted(count, share, slower, scatter(part), generator)
        began = time.perf_counter()
        judgement = judged(world, seed)
        seconds.append(time.perf_counter() - began)
        rounds.append(len(judgement.rounds))
        scores["busbw fleet"].add(truth, named(judgement))
        others: dict[str, Callable[[World, np.random.Generator], set[int]]] = {
            "threshold": by_threshold,
            "bisection": by_bisection,
        }
        for way, find in others.items():
            scores[way].add(truth, find(world, generator))
    what = f"{count:6} nodes, {share:5.1%} bad, {slower:g} times, scatter {part:.0%}"
    for way, score in scores.items():
        more = ""
        if way == "busbw fleet":
            estimate = max(rounds) * SECONDS_PER_ROUND
            more = f"  {max(rounds)} rounds, about {estimate:.0f} s, decided in {max(seconds):.1f} s"
        yield f"{what}  {way:12} {score.line}{more}"


def healthy(count: int, fleets: int, part: float) -> str:
    """How many healthy fleets have an accused node, and how many are undecided."""
    codes = Counter(judged(World(fleet_of(count), scatter(part)), seed).code for seed in range(fleets))
    shares = f"{codes[1] / fleets:.2%} accused, {codes[3] / fleets:.2%} undecided"
    return f"{count:6} nodes, healthy, scatter {part:.0%}: {shares}"


def main() -> None:
    """Print all of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fleets", type=int, default=3)
    parser.add_argument("--healthy", type=int, default=1000)
    given = parser.parse_args()
    for count in (4, 8, 16):
        print(healthy(count, given.healthy, 1.0), flush=True)
    for count in (1_000, 10_000):
        for share in (0.001, 0.005, 0.02):
            for slower, part in ((2.0, 1.0), (1.5, 0.3)):
                for line in large(count, share, slower, part, given.fleets):
                    print(line, flush=True)


if __name__ == "__main__":
    main()
