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
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from worlds import TIMEOUT_SECONDS, in_world

from busbw.backends import backend_named
from busbw.launch.local import Watch, launch_ranks
from busbw.launch.worker import Job
from busbw.measure import block as instrument
from busbw.measure import loops, stopping
from busbw.measure.bench import Bench, part_of
from busbw.ops import OPS
from busbw.runs import store
from busbw.runs.cases import expand
from busbw.runs.plan import Plan, Sweep, Timing
from busbw.runs.records import Case, Measurement, Mode
from busbw.system import environment
from busbw.units import format_size

SIZES = (8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20)
MODES: tuple[Mode, ...] = ("isolated", "pipelined")
SECONDS_A_SIZE = 5.0
LEAST_ROUNDS, MOST_ROUNDS = 10, 400
BATCH = 8
"""Samples of one loop in a row: the instrument prepares a batch, not a sample."""

EMPTY_ROUNDS = 500
QUANTILES = (0.2, 0.5)
"""Where the two are compared: the fast fifth, which has the least of the machine in it, and the middle."""

WORLDS = (1, 2)
"""One rank has the library's own cost and no other rank's scatter: there a difference of a percent can be seen."""

LIBRARIES = ("gloo", "mpi")


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
        launch_ranks(job, Watch(), size, began, quiet=True)
        return time.monotonic() - began


# --- calls -----------------------------------------------------------------------------------------------------


def calls() -> None:
    """Busbw's loop against the barest one, then the share of a case's time that goes into samples."""
    for library in LIBRARIES:
        missing = backend_named(library).missing()
        if missing is None:
            for ranks in WORLDS:
                in_world(ranks, partial(ask, library), library=library)
                print()
        else:
            print(f"# {library}: {missing}\n")


def ask(library: str, bench: Bench, say: Callable[[str], None]) -> None:
    """Both questions, on one of the ranks."""
    ranks = bench.backend.size
    say(f"# call: all_reduce over {ranks} {library} ranks, a barrier before each sample, slowest rank; both on one")
    say("# buffer, eight samples each in turns. Ratio busbw / bare of the 20 % quantile and of the median, with the")
    say("# 95 % bootstrap interval; own: what busbw's loop costs more than a bare one around a call that does nothing,")
    say("# over the 20 % quantile of the bare call")
    say("# (in turns: the middle of the ratios of neighbours, which a machine that changes its pace does not move)")
    head = f"{'20 %':24}  {'median':24}  {'in turns':24} own"
    say(f"      mode       size samples calls    bare µs   busbw µs   {head}")
    cases = expand(Plan(sweep=(Sweep(ops=("all_reduce",), sizes=",".join(map(str, SIZES))),)), ranks, 1).cases
    for mode in MODES:
        for case in cases:
            compare(bench, case, mode, say, BAREST[library])
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


def compare(
    bench: Bench,
    case: Case,
    mode: Mode,
    say: Callable[[str], None],
    barest: "Callable[[torch.Tensor], Callable[[int], int]]",
) -> None:
    """One size: both loops in turns of a few samples, so that both see the same machine."""
    part = part_of(bench, OPS[case.op], case, (tuple(range(bench.backend.size)),), ())
    if part is None:
        return
    send = part.sets[0].send.zero_()
    bare_sample = barest(send)
    row = 1
    warm = [bare_sample(row) for _ in range(30)]
    estimate = int(np.median(bench.backend.reduce(np.asarray(warm, dtype=np.int64), "max")))
    row = stopping.calls_per_sample(mode, estimate, bench.timer_ns, stopping.budget_of(bench.timing, 1, mode))
    calls = itertools.repeat(part.sets[0].operation.call)
    loop = loops.Loop(bench.backend, bench.clock, calls, bench.backend.barrier, None, row)
    rounds = int(min(MOST_ROUNDS, max(LEAST_ROUNDS, SECONDS_A_SIZE * 1e9 / (2 * BATCH * estimate * (row + 1)))))
    times = np.zeros((2, rounds, BATCH), dtype=np.int64)
    for number in range(rounds):
        for ours in (0, 1) if number % 2 else (1, 0):
            if ours:
                taken = loops.take(loop, BATCH)
                times[ours, number] = taken.exits - taken.entries
            else:
                times[ours, number] = [bare_sample(row) for _ in range(BATCH)]
    bare, busbw = bench.backend.reduce(times.reshape(-1), "max").reshape(times.shape) / row
    generator = np.random.default_rng(1)
    drawn = generator.integers(rounds, size=(500, rounds))  # whole rounds: neighbouring samples know of each other
    texts = []
    for quantile in QUANTILES:
        ratios = np.quantile(busbw[drawn], quantile, axis=(1, 2)) / np.quantile(bare[drawn], quantile, axis=(1, 2))
        low, high = np.quantile(ratios, (0.025, 0.975))
        ratio = np.quantile(busbw, quantile) / np.quantile(bare, quantile)
        texts.append(f"{ratio:6.3f} ({low:.3f} to {high:.3f})")
    turns = np.median(busbw, axis=1) / np.median(bare, axis=1)
    low, high = np.quantile(np.median(turns[drawn], axis=1), (0.025, 0.975))
    texts.append(f"{np.median(turns):6.3f} ({low:.3f} to {high:.3f})")
    share = own_cost_ns(bench, row) / np.quantile(bare, QUANTILES[0])
    say(
        f"{mode:>10} {format_size(case.size_bytes):>10} {rounds * BATCH:7d} {row:5d} {np.median(bare) / 1e3:10.1f}"
        f" {np.median(busbw) / 1e3:10.1f}   {'   '.join(texts)}   {share:+.3%}"
    )


def barest_torch(send: torch.Tensor) -> Callable[[int], int]:
    """The barest sample over torch.distributed: a barrier, the clock, a row of calls, the clock; ns."""

    def sample(row: int) -> int:
        dist.barrier(group=_control())
        before = time.perf_counter_ns()
        for _ in range(row):
            dist.all_reduce(send)
        return time.perf_counter_ns() - before

    return sample


@cache
def _control() -> dist.ProcessGroup:
    made: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=timedelta(seconds=TIMEOUT_SECONDS))
    return made


def barest_mpi(send: torch.Tensor) -> Callable[[int], int]:
    """As above, as mpi4py's own demonstrations write it."""
    from mpi4py import MPI  # noqa: PLC0415 - in the rank, once the backend has settled how it is initialised

    comm, array = MPI.COMM_WORLD, send.numpy()

    def sample(row: int) -> int:
        comm.Barrier()
        before = time.perf_counter_ns()
        for _ in range(row):
            comm.Allreduce(MPI.IN_PLACE, array)
        return time.perf_counter_ns() - before

    return sample


BAREST = {"gloo": barest_torch, "mpi": barest_mpi}


def own_cost_ns(bench: Bench, row: int) -> float:
    """What a call costs more in busbw's loop than in the barest one, when the call does nothing; ns, maybe below 0."""

    def nothing() -> None:
        pass

    loop = loops.Loop(bench.backend, bench.clock, itertools.repeat(nothing), nothing, None, row)
    differences = []
    for _ in range(EMPTY_ROUNDS):
        before = time.perf_counter_ns()
        for _ in range(row):
            nothing()
        bare = time.perf_counter_ns() - before
        taken = loops.take(loop, 1)
        differences.append((int(taken.exits[0] - taken.entries[0]) - bare) / row)
    return float(np.median(differences))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
