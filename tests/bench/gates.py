"""The error rates of gates: resampled from real launches, drawn from known distributions, and on real runs.

    python tests/bench/gates.py --gates 10000 --real 10

``--real`` measures so many runs of a small plan here, one after the other, and gates each against the one before: a
healthy machine. Other work on the machine makes runs differ; its share is printed.
"""

import argparse
import math
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Final

import numpy as np
from click.testing import CliRunner
from testing.gates import (
    Floats,
    against_baseline,
    against_limits,
    bands,
    failed,
    real_launches,
    resampled,
    scaled,
)

from busbw.cli.main import main as busbw
from busbw.runs import store
from busbw_analysis.data.kept import read_summarised
from busbw_analysis.data.load import pool
from busbw_analysis.gate.metrics import Evidence
from busbw_analysis.gate.rules import Rule
from busbw_analysis.gate.verdicts import Gate, gate_of

BANDS: Final = ((0, 1), (2,), (3,))
SCATTER: Final = 0.02
LAUNCHES: Final = 7
PLAN: Final = """
name = "gates"
ranks = 2
[timing]
blocks = 1
max_seconds = 0.05
launch_warmup_seconds = 0.1
[[sweep]]
ops = ["all_reduce"]
sizes = "64,4KiB,256KiB,4MiB"
"""


def healthy(gates: int) -> Iterator[tuple[str, float]]:
    """Shares of healthy gates that fail."""
    launches = real_launches()
    alike = scaled(launches, SCATTER)
    for name, logs in (("as measured", launches), (f"scaled to {SCATTER:.0%}", alike)):

        def draw(generator: np.random.Generator, logs: Floats = logs) -> Floats:
            return bands(resampled(logs, 10, generator), BANDS)

        count = failed(gates, lambda generator: against_baseline(draw(generator), draw(generator)))
        yield f"healthy, against a baseline, 10 launches a side, {name}", count / gates
    limits = np.median(launches.reshape(-1, launches.shape[-1]), axis=0)
    for many in (1, 3, 10):
        count = failed(gates, partial(_at_the_limit, launches, limits, many))
        yield f"healthy, its true value at the limit, {many} launches", count / gates


def between_runs(gates: int) -> Iterator[tuple[str, float]]:
    """Shares of healthy gates that fail where runs differ by more than their launches, as do the real ones."""
    launches = bands(real_launches(), BANDS)
    for many in (1, 3, 5, 10):
        count = failed(gates, partial(_another_run, launches, many))
        yield f"healthy, another real run, a baseline of {many} real runs", count / gates
        for name, share, slower in (("healthy", 0.01, 0.0), ("10 % slower", 0.01, math.log(1.1))):
            count = failed(gates, partial(_paced, many, share, slower))
            yield f"{name}, runs differ by {share:.0%}, a baseline of {many} runs", count / gates


def _another_run(launches: Floats, many: int, generator: np.random.Generator) -> Gate:
    chosen = generator.permutation(len(launches))[: many + 1]
    return against_baseline(launches[chosen[:-1]], launches[chosen[-1]])


def _paced(many: int, between: float, slower: float, generator: np.random.Generator) -> Gate:
    shape = (many + 1, 10, len(BANDS))
    logs = generator.normal(0, SCATTER, shape) + generator.normal(0, between, (many + 1, 1, len(BANDS)))
    return against_baseline(logs[:-1], logs[-1] + slower)


def _at_the_limit(launches: Floats, limits: Floats, many: int, generator: np.random.Generator) -> Gate:
    return against_limits(resampled(launches, many, generator), limits)


def planted(gates: int) -> Iterator[tuple[str, float]]:
    """Shares of gates on something slower that fail."""
    alike = scaled(real_launches(), SCATTER)
    slower = math.log(1.05)

    def fails(members: tuple[tuple[int, ...], ...], generator: np.random.Generator, launches: int = 10) -> bool:
        before, after = (bands(resampled(alike, launches, generator), members) for _ in range(2))
        return against_baseline(before, after + slower).state == "fail"

    for name, members in (("three bands", BANDS), ("one band of four sizes", ((0, 1, 2, 3),)), ("one size", ((3,),))):
        generator = np.random.default_rng(1)
        yield f"5 % slower, 10 launches a side, {name}", sum(fails(members, generator) for _ in range(gates)) / gates
    for many in (10, 11, 12):
        count = failed(gates, partial(_normal, many, slower))
        yield f"5 % slower, normal, one size, {many} launches a side", count / gates
    count = failed(gates, lambda generator: against_limits(resampled(alike, 1, generator) + math.log(10), np.zeros(4)))
    yield "ten times the limit, one launch", count / gates


def _normal(launches: int, slower: float, generator: np.random.Generator) -> Gate:
    before, after = (generator.normal(mean, SCATTER, (launches, 1)) for mean in (0, slower))
    return against_baseline(before, after)


def on_real_runs(runs: int) -> Iterator[str]:
    """The states of gates of successive runs, against a baseline."""
    rules = (
        Rule(metric="ratio_to_baseline", at_most="1.05", detect="0.1"),
        Rule(metric="missing_cases", at_most="0"),
        Rule(metric="wrong_data", at_most="0"),
    )
    with tempfile.TemporaryDirectory() as place:
        plan, results = Path(place) / "plan.toml", Path(place) / "results"
        plan.write_text(PLAN, encoding="utf-8")
        asked = f"run --no-baseline --quiet --launches {LAUNCHES} --plan {plan} --results-dir {results}"
        for _ in range(runs):
            CliRunner().invoke(busbw, asked.split(), catch_exceptions=False)
        yield from gates_of(list(store.folders(results)), rules)


def gates_of(folders: list[Path], rules: tuple[Rule, ...]) -> Iterator[str]:
    """The state of the gate of each run against the one before."""
    from busbw_analysis.assembly.judge import judge  # noqa: PLC0415

    datasets = [pool([read_summarised(folder)]) for folder in folders]
    for before, after in pairwise(datasets):
        loaded = any(summary.disturbance.loaded for side in (before, after) for summary in side.summaries)
        state = gate_of(rules, Evidence(judge(after), after, before)).state
        yield f"{state}{' (other programs took CPU time)' if loaded else ''}"


def main() -> None:
    """Print all of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gates", type=int, default=10_000)
    parser.add_argument("--real", type=int, default=0)
    given = parser.parse_args()
    fewer = max(1, given.gates // 10)
    for name, share in chain(healthy(given.gates), planted(fewer), between_runs(fewer)):
        print(f"{share:9.4%}  {name}", flush=True)
    for state, count in Counter(on_real_runs(given.real)).items() if given.real else ():
        print(f"{count:9}  real gates: {state}")


if __name__ == "__main__":
    main()
