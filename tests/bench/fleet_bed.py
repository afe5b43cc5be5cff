"""How often the fault of a fleet is named on the test bed, and a healthy fleet accused: 20 fleets a kind, 100 healthy.

Needs what the cluster tests need, and an hour or two; ``make bench-fleet``. Each fleet is a line of
``build/fleet_bed.jsonl``, so that what was broken off goes on, and the table is of all lines there.
"""

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import msgspec
from bed import Bed, Ranks
from faulty_fleets import HOSTS, KINDS, Fleets, Outcome, fleet_of

RESULTS = Path("build/fleet_bed").resolve()
"""Runs of the fleets that were not right."""
FILE = Path("build/fleet_bed.jsonl")
HEALTHY = 100


def lacking(done: set[tuple[str, int]], fleets: int, kinds: list[str]) -> Iterator[tuple[str, int]]:
    """Kinds and seeds that have no line yet, one of each kind in turn."""
    for seed in range(max(fleets, HEALTHY)):
        for kind in kinds:
            if seed < (HEALTHY if kind == "healthy" else fleets) and (kind, seed) not in done:
                yield kind, seed


class Line(msgspec.Struct, frozen=True):
    """A fleet that was measured."""

    kind: str
    seed: int
    outcome: Outcome


def lines() -> list[Line]:
    """What was measured so far."""
    return [msgspec.json.decode(line, type=Line) for line in FILE.read_bytes().splitlines()] if FILE.exists() else []


def table() -> str:
    """A row per kind."""
    rows = [f"{'fault':24}{'fleets':>8}{'right':>8}{'accused':>9}{'rounds':>8}{'seconds':>9}{'most':>7}{'busy':>7}"]
    for kind in KINDS:
        outcomes = [line.outcome for line in lines() if line.kind == kind]
        if outcomes:
            right = sum(outcome.right for outcome in outcomes)
            wrongly = sum(bool(outcome.named) and not outcome.right for outcome in outcomes)
            seconds = [outcome.seconds for outcome in outcomes]
            rounds = median(outcome.rounds for outcome in outcomes)
            busy = median([outcome.busy for outcome in outcomes if outcome.busy is not None] or [math.nan])
            times = f"{rounds:8.0f}{median(seconds):9.1f}{max(seconds):7.1f}{busy:7.0%}"
            rows.append(f"{kind:24}{len(outcomes):8}{right:8}{wrongly:9}{times}")
    return "\n".join(rows)


def main() -> None:
    """Measure what is lacking and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fleets", type=int, default=20, help="per kind of fault")
    parser.add_argument("kinds", nargs="*", default=list(KINDS), metavar="KIND")
    options = parser.parse_args()
    done = {(line.kind, line.seed) for line in lines()}
    RESULTS.mkdir(parents=True, exist_ok=True)
    with Bed(hosts=HOSTS, shared=[RESULTS]) as bed, Ranks(bed, RESULTS) as ranks:
        fleets = Fleets(bed, ranks, RESULTS)
        for kind, seed in lacking(done, options.fleets, options.kinds):
            outcome = fleets.outcome(fleet_of(kind, seed, bed.names))
            with FILE.open("ab") as file:
                file.write(msgspec.json.encode(Line(kind, seed, outcome)) + b"\n")
            sys.stderr.write(f"{kind} {seed}: {'right' if outcome.right else outcome.named or 'missed'}\n")
    sys.stdout.write(table() + "\n")


if __name__ == "__main__":
    main()
