"""What a case costs beside its samples, by the number of ranks: in times of a call of the library's own barrier.

Everything that is not a sample counts: buffers, first touch, the checks before and after, the warm-up, the barriers
that start each sample, and the agreements after every batch.
"""

from collections.abc import Callable
from dataclasses import replace

import msgspec
import numpy as np
from worlds import in_world

from busbw.measure.bench import Bench
from busbw.measure.block import measure
from busbw.runs.cases import expand
from busbw.runs.plan import Plan, Sweep, Timing
from busbw.runs.records import Measurement

WORLDS = (4, 16, 64)
SAMPLES = 50
BLOCKS = 5
BARRIERS = 50


def control_time() -> None:
    """Print it for three sizes of the world."""
    print(f"# one block of all_reduce 8 B, {SAMPLES} samples: median of {BLOCKS}, Gloo ranks on this machine")
    print("# in times of one barrier; start: that before each sample; rest: buffers, checks, warm-up, agreements")
    print("ranks  barrier ms  block ms  samples ms     start      rest")
    for ranks in WORLDS:
        in_world(ranks, _ask, Timing(timeout_seconds=240.0))


def _ask(bench: Bench, say: Callable[[str], None]) -> None:
    ranks = bench.backend.size
    (case,) = expand(Plan(sweep=(Sweep(ops=("all_reduce",), sizes="8"),)), ranks, 1).cases
    timing = msgspec.structs.replace(
        bench.timing, blocks=1, min_samples=SAMPLES, max_samples=SAMPLES, max_seconds=60.0, precision=0.999
    )
    bench = replace(bench, timing=timing)
    blocks, samples, barriers = [], [], []
    for number in range(BLOCKS):
        barriers.append(_barrier_ns(bench))
        made = measure(bench, case, (), 0, number)
        if not isinstance(made, Measurement):
            return
        blocks.append(made.elapsed_ns)
        samples.append(sum(made.groups[0].slowest_ns))
    barrier, block, taken = (float(np.median(values)) for values in (barriers, blocks, samples))
    rest = (block - taken) / barrier - SAMPLES
    say(f"{ranks:5d} {barrier / 1e6:11.2f} {block / 1e6:9.1f} {taken / 1e6:11.1f} {SAMPLES:9d} {rest:9.0f}")


def _barrier_ns(bench: Bench) -> float:
    bench.backend.barrier()
    before = bench.clock.now_ns()
    for _ in range(BARRIERS):
        bench.backend.barrier()
    return (bench.clock.now_ns() - before) / BARRIERS


if __name__ == "__main__":
    control_time()
