"""How long the analysis takes where there is much to read, and how much memory: each command in a process of its own.

Takes some minutes and 6 GB of disk. ``make bench-scale``, or with names of runs to take those alone:
``PYTHONPATH=tests/shared python tests/bench/scale.py pairs-256``.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
from testing.synthetic import Machine, World, case, synthetic_run, write_synthetic

from busbw.ops.groups import pair_rounds
from busbw.runs import store
from busbw.runs.records import QUANTILES, Case, Check, Ended, GroupSamples, LaunchStarted, Measurement, RankSamples

_MB = 1e6
_OF_ALL = {"history", "index", "list runs"}
"""Commands of all runs."""
_RANKS_OF_A_HOST = 8


@dataclass(frozen=True, slots=True)
class Run:
    """A run to judge: how it is made in a folder, and what each command may take: CPU seconds and MB (0: no goal)."""

    make: Callable[[Path], None]
    commands: tuple[tuple[str, float, float], ...]


def _pairs(folder: Path, ranks: int, sizes: Sequence[int], launches: int, samples: int) -> None:
    """Two runs of a pair matrix whose clocks are synchronised, as the instrument would write them."""
    for seed in (0, 1):
        hosts = tuple(f"node{number:03}" for number in range(ranks // _RANKS_OF_A_HOST))
        frame = synthetic_run(
            [case("barrier", 0, ranks)],
            World(shared_clock=False),
            machine=Machine(hosts=hosts),
            launches=launches,
            samples=1,
            seed=seed,
        )
        cases = tuple(
            case("pair_matrix", size, ranks, nodes=len(hosts), pairs="together", sync="window") for size in sizes
        )
        there = store.create(folder, frame.run.machine)
        store.write_run(there, msgspec.structs.replace(frame.run, cases=cases))
        generator = np.random.default_rng(seed)
        with store.Appender(there) as appender:
            for row in frame.rows:
                if isinstance(row, LaunchStarted):
                    appender.append(row)
                    for planned in cases:
                        appender.append(_matrix(planned, row.launch, samples, generator))
                elif isinstance(row, Ended):
                    appender.append(row)


def _matrix(case: Case, launch: int, samples: int, generator: np.random.Generator) -> Measurement:
    pairs = [pair for pairs in pair_rounds(tuple(range(case.ranks)), together=True) for pair in pairs]
    return Measurement(
        case=case,
        launch=launch,
        block=0,
        calls=1,
        first_call_ns=100_000,
        warmup_calls=5,
        stop_reason="converged",
        check=Check(state="verified"),
        started="2026-01-02T03:04:05.000Z",
        elapsed_ns=10**9,
        clock_error_ns=100,
        groups=tuple(_groups(case, pairs, samples, generator)),
    )


def _groups(
    case: Case, pairs: Sequence[tuple[int, ...]], samples: int, generator: np.random.Generator
) -> Iterator[GroupSamples]:
    """All numbers of all pairs are drawn at once: one pair after the other takes minutes."""
    ends = np.asarray(pairs)
    near = ends[:, 0] // _RANKS_OF_A_HOST == ends[:, 1] // _RANKS_OF_A_HOST
    usual = np.where(near, 5e3 + 0.05 * case.size_bytes, 20e3 + 0.1 * case.size_bytes)
    times = (usual[:, np.newaxis, np.newaxis] * np.exp(generator.normal(0, 0.05, (len(pairs), 2, samples)))).astype(int)
    slowest, fastest = times.max(axis=1), times.min(axis=1)
    late = np.take_along_axis(ends, times.argmin(axis=1), axis=1)
    quantiles = np.moveaxis(np.quantile(times, QUANTILES, axis=2), 0, -1).astype(int)
    for number, pair in enumerate(pairs):
        skew, last = tuple((slowest[number] - fastest[number]).tolist()), tuple(late[number].tolist())
        yield GroupSamples(
            ranks=pair,
            bus_factor=1.0,
            wire_bytes=float(case.size_bytes),
            slowest_ns=tuple(slowest[number].tolist()),
            fastest_ns=tuple(fastest[number].tolist()),
            fastest_rank=last,
            last_rank=last,
            arrival_skew_ns=skew,
            exit_span_ns=tuple(fastest[number].tolist()),
            exit_skew_ns=skew,
            per_rank=tuple(
                RankSamples(rank=rank, quantiles_ns=tuple(own), samples_ns=None)
                for rank, own in zip(pair, quantiles[number].tolist(), strict=True)
            ),
        )


def _collectives(folder: Path, ranks: int, sizes: Sequence[int], launches: int, samples: int) -> None:
    hosts = tuple(f"node{number:04}" for number in range(max(1, ranks // _RANKS_OF_A_HOST)))
    cases = [case("all_reduce", size, ranks, nodes=len(hosts)) for size in sizes]
    write_synthetic(
        folder,
        synthetic_run(
            cases, World(shared_clock=False), machine=Machine(hosts=hosts), launches=launches, samples=samples
        ),
    )


def _many(folder: Path, runs: int) -> None:
    stored = synthetic_run([case("all_reduce", 1 << 10)], launches=3, samples=10)
    for number in range(runs):
        write_synthetic(folder, replace(stored, run=msgspec.structs.replace(stored.run, id=f"run-{number}")))


_ALL = (("show", 20, 1000), ("fit", 20, 1000), ("report", 20, 1000), ("compare", 20, 1000))
RUNS = {
    "pairs-256": Run(lambda folder: _pairs(folder, 256, (4 << 10, 1 << 20), 3, 40), _ALL),
    "pairs-1024": Run(
        lambda folder: _pairs(folder, 1024, (1 << 20,), 3, 10),
        (("show", 120, 0), ("fit", 120, 0), ("report", 120, 0), ("compare", 120, 0)),
    ),
    "ranks-10000": Run(
        lambda folder: _collectives(folder, 10_000, [8 << 2 * step for step in range(10)], 3, 20),
        (("show", 23, 0), ("report", 23, 0)),
    ),
    "samples-1e6": Run(lambda folder: _collectives(folder, 4, [1 << 10, 1 << 20], 5, 100_000), (("report", 3.9, 0),)),
    "runs-2000": Run(
        lambda folder: _many(folder, 2000),
        # The summaries are made by the first, which takes the time of reading the samples.
        (("history", 0, 0), ("index", 10, 0), ("list runs", 1, 0), ("history", 1, 0)),
    ),
}


def _made(run: Run, results: Path) -> None:
    """Make ``run`` in a process of its own: the most memory of a process counts what its maker ever had."""
    process = multiprocessing.get_context("fork").Process(target=run.make, args=(results,))
    process.start()
    process.join()
    if process.exitcode:
        message = f"the run was not made: exit status {process.exitcode}"
        raise RuntimeError(message)


def _measured(arguments: Sequence[str]) -> tuple[float, float, float, int]:
    """Wall and CPU seconds of a process, the most memory that it had (MB), and how it ended."""
    began = time.perf_counter()
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - began
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / _MB, process.returncode


def main(names: Sequence[str]) -> None:
    print(f"{'run':12} {'command':10} {'seconds':>8} {'CPU s':>8} {'MB':>7}  goal")
    for name in names or RUNS:
        run = RUNS[name]
        with tempfile.TemporaryDirectory(prefix="busbw-scale-") as folder:
            results = Path(folder) / "results"
            _made(run, results)
            newest = [str(path) for path in list(store.folders(results))[-2:]]
            for command, seconds, most in run.commands:
                of = newest if command == "compare" else [] if command in _OF_ALL else newest[-1:]
                output = ["--output", str(Path(folder) / "report")] if command == "report" else []
                given = [sys.executable, "-m", "busbw", *command.split(), *of, *output, "--results-dir", str(results)]
                wall, cpu, memory, code = _measured(given)
                goal = f"{seconds:g} s" + (f", {most:g} MB" if most else "")
                # CPU time: what else the machine is doing should not decide.
                met = (
                    "met"
                    if code == 0 and (not seconds or cpu <= seconds) and (not most or memory <= most)
                    else "MISSED"
                )
                failed = "" if code == 0 else f", exit code {code}"
                print(f"{name:12} {command:10} {wall:8.1f} {cpu:8.1f} {memory:7.0f}  {goal}: {met}{failed}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
