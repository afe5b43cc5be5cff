"""Is stopping by the interval worth it: its time and coverage against the fixed number of calls of other tools.

Both loops run in turns in one world of real Gloo ranks, with the same barriers and buffers. The fixed loop takes 1000
samples up to 8 KiB and 100 above (OSU's numbers), after 200 or 10 calls of warm-up; ours is the block of the
instrument, with its two checks left out of the time. Coverage: how often the interval holds the median of all samples
that were taken of that size in this world, by both. The interval of the fixed loop is worked out in the same way, for
its own tools give none. Nothing is asserted.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import repeat

import numpy as np
import torch
from worlds import in_world

from busbw.backends.base import Vector
from busbw.measure import loops
from busbw.measure.bench import Bench, Part, agreed, part_of
from busbw.measure.sampling import RoundSettings, sample
from busbw.measure.stopping import budget_of
from busbw.ops import OPS
from busbw.runs.cases import expand
from busbw.runs.plan import Plan, Sweep, Timing
from busbw.runs.records import Case
from busbw.statistics import autocorrelation_time, median_interval
from busbw.units import format_size

RANKS = 2
TRIALS = 20
SIZES = "8..16MiB*8"
_SMALL_BYTES = 8 << 10
_PACE = Timing(blocks=1, timeout_seconds=60.0)


@dataclass(slots=True)
class Tally:
    """Of one way of sampling, trial by trial: seconds, samples in ns (slowest rank)."""

    seconds: list[float] = field(default_factory=list)
    samples: list[Vector] = field(default_factory=list)


def stopping(trials: int = TRIALS) -> None:
    """Print time and coverage of both ways, size by size and over the sweep."""
    print(f"# stopping: to ± 5 % of the median at 95 %, all_reduce over {RANKS} Gloo ranks, {trials} trials a size,")
    print("# against a fixed loop of 1000 (to 8 KiB) or 100 samples in turns with it; coverage of the common median")
    print("      size     fixed s   ours s  ratio   samples   converged   half-width   coverage fixed / ours")
    in_world(RANKS, lambda bench, say: _sweep(bench, say, trials), _PACE)


def _sweep(bench: Bench, say: Callable[[str], None], trials: int) -> None:
    cases = expand(Plan(sweep=(Sweep(ops=("all_reduce",), sizes=SIZES),)), RANKS, 1).cases
    total = np.zeros(2)
    covered = np.zeros(2)
    for case in cases:
        fixed, ours, converged = _both(bench, case, trials)
        truth = float(np.median(np.concatenate([*fixed.samples, *ours.samples])))
        spent = np.asarray([sum(fixed.seconds), sum(ours.seconds)])
        hits = np.asarray([_covering(fixed, truth), _covering(ours, truth)])
        total, covered = total + spent, covered + hits
        widths = [_interval(vector)[2] for vector in ours.samples]
        say(
            f"{format_size(case.size_bytes):>10} {spent[0] / trials:10.2f} {spent[1] / trials:8.2f}"
            f"  {spent[1] / spent[0]:5.2f} {np.median([len(vector) for vector in ours.samples]):9.0f}"
            f" {converged / trials:11.0%} {np.median(widths):12.1%}   {hits[0] / trials:9.0%} / {hits[1] / trials:.0%}"
        )
    share = covered / (trials * len(cases))
    say(
        f"     sweep {total[0] / trials:10.2f} {total[1] / trials:8.2f}  {total[1] / total[0]:5.2f}"
        f"{'':37}{share[0]:11.0%} / {share[1]:.0%}   (wanted: ratio ≤ 0.33 at equal coverage)"
    )


def _both(bench: Bench, case: Case, trials: int) -> tuple[Tally, Tally, int]:
    part = part_of(bench, OPS[case.op], case, (tuple(range(RANKS)),), ())
    if part is None:
        message = "every rank takes part"
        raise RuntimeError(message)
    part.sets[0].send.zero_()
    fixed, ours, converged = Tally(), Tally(), 0
    for number in range(trials):
        for way in (0, 1) if number % 2 else (1, 0):
            bench.backend.barrier()
            began = bench.clock.now_ns()
            if way == 0:
                slowest = _fixed(bench, case, part)
            else:
                slowest, reason = _ours(bench, case, part)
                converged += reason == "converged"
            spent = int(agreed(bench, [bench.clock.now_ns() - began])[0])
            tally = ours if way else fixed
            tally.seconds.append(spent / 1e9)
            tally.samples.append(slowest)
    return fixed, ours, converged


def _fixed(bench: Bench, case: Case, part: Part) -> Vector:
    warm, count = (200, 1000) if case.size_bytes <= _SMALL_BYTES else (10, 100)
    loop = loops.Loop(bench.backend, bench.clock, repeat(part.sets[0].operation.call), bench.backend.barrier)
    loops.take(loop, warm)
    taken = loops.take(loop, count)
    return bench.backend.reduce(taken.exits - taken.entries, "max")


def _ours(bench: Bench, case: Case, part: Part) -> tuple[Vector, str]:
    budget = budget_of(bench.timing, 1)
    result = sample(bench, OPS[case.op], case, (tuple(range(RANKS)),), part, (), RoundSettings(budget))
    return np.asarray(result.groups[0].slowest_ns, dtype=np.int64), result.stop_reason


def _interval(vector: Vector) -> tuple[float, float, float]:
    interval = median_interval(vector, tau=autocorrelation_time(vector))
    low = interval.median if interval.low is None else interval.low
    high = interval.median if interval.high is None else interval.high
    return low, high, interval.relative_half_width


def _covering(tally: Tally, truth: float) -> int:
    return sum(low <= truth <= high for low, high, _ in map(_interval, tally.samples))


if __name__ == "__main__":
    torch.set_num_threads(1)
    stopping(int(sys.argv[1]) if len(sys.argv) > 1 else TRIALS)
