"""What the instrument itself costs, as ratios within one run. Nothing is asserted: the machine may be busy.

Three questions: is a call dearer in busbw's loop than in the barest loop over torch.distributed, how much of the
wall time of a case is spent in samples, and how long ranks take to start, measured in times of ``import torch``.
"""

import itertools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from worlds import TIMEOUT_SECONDS, in_world

from busbw import environment, loops, pacing, sampling, store
from busbw import measure as instrument
from busbw.backends import backend_named
from busbw.cases import expand
from busbw.launch.local import launch_ranks
from busbw.ops import OPS
from busbw.plan import Plan, Sweep, Timing
from busbw.records import Case, Measurement, Mode
from busbw.units import format_size
from busbw.worker import Job

SIZES = (8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20)
MODES: tuple[Mode, ...] = ("isolated", "pipelined")
ROUNDS = 24
SECONDS_A_ROUND = 0.02
RANKS = 2

Loop = Callable[[int], list[int]]


def main() -> None:
    """Ask the three questions in turn."""
    load = environment.load_average()
    print(f"# {environment.usable_cores()} usable cores, load average {load:.1f} before the start")
    starts()
    print()
    calls()


# --- start -----------------------------------------------------------------------------------------------------


def starts() -> None:
    """A launch of one tiny case against importing torch in a fresh Python."""
    print("# start: fork the ranks, form the world, measure one short barrier case, end; over `import torch`")
    python = [seconds_of("pass") for _ in range(3)]
    imports = [seconds_of("import torch") - min(python) for _ in range(3)]
    unit = statistics.median(imports)
    print(f"import torch     {unit:6.2f} s   (of 3: {min(imports):.2f} to {max(imports):.2f} s, without Python itself)")
    for size in (4, 16):
        spans = [launch_seconds(size) for _ in range(3)]
        ratios = [span / unit for span in spans]
        print(
            f"{size:2d} ranks         {statistics.median(spans):6.2f} s = {statistics.median(ratios):.2f} "
            f"× import torch   (of 3: {min(ratios):.2f} to {max(ratios):.2f} ×)"
        )


def seconds_of(program: str) -> float:
    """How long a fresh Python takes to run ``program``."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True)
    return time.perf_counter() - began


def launch_seconds(size: int) -> float:
    """One launch with ``size`` local ranks, from the first fork to the last exit."""
    quick = Timing(
        blocks=1,
        min_samples=20,
        min_seconds=0.0,
        max_seconds=0.01,
        launch_warmup_seconds=0.0,
        warmup_seconds=0.0,
        timeout_seconds=TIMEOUT_SECONDS,
    )
    plan = Plan(timing=quick, sweep=(Sweep(ops=("barrier",)),))
    with tempfile.TemporaryDirectory() as folder:
        job = Job(plan, store.create(Path(folder), "here"), 0, "local", backend_named("gloo"))
        began = time.monotonic()
        launch_ranks(job, size, began, quiet=True)
        return time.monotonic() - began


# --- calls -----------------------------------------------------------------------------------------------------


def calls() -> None:
    """Busbw's loop against the barest one, then the share of a case's time that goes into samples."""
    in_world(RANKS, ask)


def ask(bench: sampling.Bench, say: Callable[[str], None]) -> None:
    """Both questions, on one of the ranks."""
    say(f"# call: all_reduce over {RANKS} Gloo ranks, a barrier before each sample, slowest rank, {ROUNDS} rounds")
    say("# each round runs both loops on one buffer, in turns first; ratio: median of the rounds' ratios (quartiles)")
    say("      mode       size samples calls    bare µs   busbw µs   ratio")
    cases = expand(Plan(sweep=(Sweep(ops=("all_reduce",), sizes=",".join(map(str, SIZES))),)), RANKS, 1).cases
    for mode in MODES:
        for case in cases:
            compare(bench, case, mode, say)
    say("")
    say(
        "# case: share of the wall time of a block that its samples are; the rest is buffers, checks, warm-up, barriers"
    )
    say("      size  samples   wall ms   in samples")
    for case in cases:
        made = instrument.measure(bench, case, (), 0, 0)
        if isinstance(made, Measurement):
            spent = sum(made.groups[0].slowest_ns)
            say(
                f"{format_size(case.size_bytes):>10} {len(made.groups[0].slowest_ns):8d} {made.elapsed_ns / 1e6:9.1f}"
                f"   {spent / made.elapsed_ns:9.0%}"
            )


def compare(bench: sampling.Bench, case: Case, mode: Mode, say: Callable[[str], None]) -> None:
    """One size: both loops in every round, which one first alternates."""
    part = instrument.part_of(bench, OPS[case.op], case, (tuple(range(RANKS)),), ())
    if part is None:
        return
    send = part.sets[0].send.zero_()
    control = dist.new_group(backend="gloo", timeout=timedelta(seconds=TIMEOUT_SECONDS))
    row = 1

    def bare(samples: int) -> list[int]:
        durations = []
        for _ in range(samples):
            dist.barrier(group=control)
            before = time.perf_counter_ns()
            for _ in range(row):
                dist.all_reduce(send)
            durations.append(time.perf_counter_ns() - before)
        return durations

    def ours(samples: int) -> list[int]:
        calls = itertools.repeat(part.sets[0].operation.call)
        taken = loops.take(loops.Loop(bench.backend, bench.clock, calls, bench.backend.barrier, None, row), samples)
        durations: list[int] = (taken.exits - taken.entries).tolist()
        return durations

    slowest(bench, bare, 20)
    estimate = slowest(bench, bare, 20)
    budget = pacing.budget_of(bench.timing, 1, mode)
    row = pacing.calls_per_sample(mode, int(estimate), bench.timer_ns, budget)
    samples = int(min(500, max(4, SECONDS_A_ROUND * 1e9 / (estimate * row))))
    found: dict[Loop, list[float]] = {bare: [], ours: []}
    for number in range(ROUNDS):
        for loop in (bare, ours) if number % 2 else (ours, bare):
            found[loop].append(slowest(bench, loop, samples) / row)
    low, middle, high = np.quantile(np.asarray(found[ours]) / np.asarray(found[bare]), (0.25, 0.5, 0.75))
    say(
        f"{mode:>10} {format_size(case.size_bytes):>10} {samples:7d} {row:5d}"
        f" {statistics.median(found[bare]) / 1e3:10.1f}"
        f" {statistics.median(found[ours]) / 1e3:10.1f}   {middle:.3f}  ({low:.3f} to {high:.3f})"
    )
    dist.destroy_process_group(control)


def slowest(bench: sampling.Bench, loop: Loop, calls: int) -> float:
    """Median over the calls of the time of the slowest rank, ns; the same on all ranks."""
    return float(np.median(bench.backend.reduce(np.asarray(loop(calls), dtype=np.int64), "max")))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
