"""Fleets of virtual hosts with one fault, drawn by a seed, and what busbw says of them."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from types import MappingProxyType

import msgspec
import numpy as np
import psutil
from bed import Bed, Cable, Fault, Network, Ranks, Trunk, both_ways
from bed.network import Path as Way
from click.testing import CliRunner
from testing.plans import plan_text, sweep

from busbw.cli.main import main
from busbw.runs import store
from busbw.runs.plan import read_suite

HOSTS = 16
"""Of a fleet whose verdicts are counted."""
_MBIT = 50.0
"""Of every cable: the bed carries 1 Gbit/s in all, and 8 hosts send at once."""
_SLOW_MBIT = _MBIT / 2
_DELAY_MS = 0.2
_LATE_SECONDS = 4e-3
_LOST = 0.03
_GPUS = 8

_ASKED = {"groups": "asked", "sync": "none"}
PLAN = plan_text(
    sweep("memory_copy", "4MiB", **_ASKED),
    sweep("pair_uni", "8,64KiB", **_ASKED),
    sweep("all_reduce", "64KiB", **_ASKED),
    timing=msgspec.to_builtins(read_suite("fleet").timing),
    controller="fleet",
)
"""The suite, with messages for cables of the bed, and copies for 16 ranks on its cores."""

Named = tuple[str, tuple[str, ...], str]
"""A verdict: its kind, nodes and direction."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What is wrong.

    network, faults: of the bed
    right: the verdicts that name it, any of which is one; none: nothing is wrong
    any_nodes: whether the kind alone counts, as the nodes are examples
    gpus: that hosts list
    """

    network: Network
    right: frozenset[Named] = frozenset()
    faults: Mapping[str, Fault] = field(default_factory=lambda: MappingProxyType({}))
    any_nodes: bool = False
    gpus: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


def _network(
    cables: dict[str, Cable] | None = None, paths: tuple[Way, ...] = (), trunk: Trunk | None = None
) -> Network:
    return Network(_MBIT, _DELAY_MS, cables or {}, paths, trunk)


def _host(draw: random.Random, names: Sequence[str]) -> Truth:
    name = draw.choice(names)
    cable = Cable(up_mbit=_SLOW_MBIT, down_mbit=_SLOW_MBIT)
    return Truth(_network({name: cable}), frozenset({("node", (name,), "both")}))


def _sender(draw: random.Random, names: Sequence[str]) -> Truth:
    name = draw.choice(names)
    return Truth(_network({name: Cable(up_mbit=_SLOW_MBIT)}), frozenset({("node", (name,), "out")}))


def _receiver(draw: random.Random, names: Sequence[str]) -> Truth:
    name = draw.choice(names)
    return Truth(_network({name: Cable(down_mbit=_SLOW_MBIT)}), frozenset({("node", (name,), "in")}))


def _pair(draw: random.Random, names: Sequence[str]) -> Truth:
    one, other = draw.sample(names, 2)
    right = frozenset({("link", (one, other), "both"), ("link", (other, one), "both")})
    return Truth(_network(paths=both_ways(one, other, rate_mbit=_SLOW_MBIT)), right)


def _direction(draw: random.Random, names: Sequence[str]) -> Truth:
    one, other = draw.sample(names, 2)
    path = Way(one, other, rate_mbit=_SLOW_MBIT)
    return Truth(_network(paths=(path,)), frozenset({("link", (one, other), "out")}))


def _lossy(draw: random.Random, names: Sequence[str]) -> Truth:
    name = draw.choice(names)
    return Truth(_network({name: Cable(lost=_LOST)}), frozenset({("node", (name,), "both")}))


def _late(draw: random.Random, names: Sequence[str]) -> Truth:
    name = draw.choice(names)
    right = frozenset({("alone", (name,), "both"), ("node", (name,), "both")})
    return Truth(_network(), right, {name: Fault(seconds=_LATE_SECONDS)})


def _memory(draw: random.Random, names: Sequence[str]) -> Truth:
    name = draw.choice(names)
    return Truth(_network(), frozenset({("alone", (name,), "both")}), {name: Fault(times=2)})


def _device(draw: random.Random, names: Sequence[str]) -> Truth:
    name = draw.choice(names)
    right = frozenset({("device", (name,), "both")})
    return Truth(_network(), right, gpus=dict.fromkeys(names, _GPUS) | {name: _GPUS - 1})


def _halves(draw: random.Random, names: Sequence[str]) -> Truth:
    del draw
    behind = names[: len(names) // 2]
    trunk = Trunk(behind, _MBIT * len(behind) / 2)
    return Truth(_network(trunk=trunk), frozenset({("trunk", (), "both")}), any_nodes=True)


KINDS: dict[str, Callable[[random.Random, Sequence[str]], Truth]] = {
    "healthy": lambda _draw, _names: Truth(_network()),
    "slow host": _host,
    "slow sender": _sender,
    "slow receiver": _receiver,
    "slow pair": _pair,
    "slow in one direction": _direction,
    "lossy cable": _lossy,
    "late CPU": _late,
    "half-speed memory": _memory,
    "missing device": _device,
    "halves pass": _halves,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What busbw said of a fleet.

    named: its verdicts, but for those that are undecided
    right: whether they are the truth and nothing else
    seconds: from the start of the first round to the end of the last
    busy: share of the processors that other programs took while ranks ran; None if unknown
    kept: folder of the run, if it was not right, below that of all results
    """

    named: tuple[Named, ...]
    right: bool
    rounds: int
    seconds: float
    busy: float | None = None
    kept: str = ""


def fleet_of(kind: str, seed: int, hosts: Sequence[str]) -> Truth:
    """The fleet of this kind and seed."""
    return KINDS[kind](random.Random(f"{kind} {seed}"), hosts)


@dataclass(frozen=True, slots=True)
class Fleets:
    """Measures fleets on the hosts of a bed."""

    bed: Bed
    ranks: Ranks
    results: Path

    def outcome(self, truth: Truth) -> Outcome:
        """What a run of ``PLAN`` and ``busbw fleet`` say."""
        self.bed.set_network(truth.network)
        results = Path(mkdtemp(dir=self.results))
        plan = results / "plan.toml"
        plan.write_text(PLAN)
        before = _of_others()
        ends = self.ranks.run("--plan", plan, "--quiet", "--results-dir", results, faults=truth.faults, gpus=truth.gpus)
        others, counted = np.subtract(_of_others(), before).tolist()
        assert [end.code for end in ends] == [0] * len(ends), ends
        (folder,) = store.folders(results)
        # In this process: a fresh one takes longer to load scipy than to judge.
        told = CliRunner().invoke(main, ["fleet", str(folder), "--json"])
        document = json.loads(told.stdout)
        named = tuple(
            (row["kind"], () if truth.any_nodes else tuple(row["nodes"]), row["way"])
            for row in document["verdicts"]
            if row["kind"] != "undecided"
        )
        assert told.exit_code == document["exit_code"], told.output
        measured = store.read(folder).measurements
        right = set(named) <= truth.right and len(named) == bool(truth.right)
        seconds = sum(row.elapsed_ns for row in measured) * 1e-9
        if right:
            shutil.rmtree(results)
        kept = "" if right else str(folder.relative_to(self.results))
        return Outcome(named, right, document["rounds"], seconds, round(others / counted, 3), kept)


def _of_others() -> tuple[float, float]:
    """Seconds of the processors so far: those of programs that this process did not start, and all."""
    times, me = psutil.cpu_times(), psutil.Process()
    own = [process.cpu_times() for process in (me, *me.children(recursive=True))]
    # What ended counts for its parent.
    started = sum(each.user + each.system + each.children_user + each.children_system for each in own)
    return times.user + times.nice + times.system + times.steal - started, sum(times)
