"""Sizes of warm-up, samples and batches, and the stopping rule. Pure functions.

Every rank applies them to the same all-reduced numbers, so all ranks decide alike. Protocol: docs/method.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from busbw.backends.base import Vector
from busbw.runs.plan import Timing
from busbw.runs.records import Cache, Mode, StopReason
from busbw.statistics import autocorrelation_time, median_interval

SECOND_NS = 1_000_000_000

ROWED: frozenset[Mode] = frozenset({"pipelined", "persistent", "graph"})
"""Modes in which a sample is a sequence of back-to-back calls."""

MOST_BATCHES = 6
"""Most batches of samples in a round; this bounds the control traffic, however many samples are taken."""

MOST_CALIBRATIONS = 5
"""Most times that the amount of concurrent computation is compared with the call and adjusted."""

FIRST_UNITS = 20
"""Initial units of computation: long enough to be timed, short compared with most calls."""

_BALANCE = 1.25
_CALIBRATION_SAMPLES = 20
_LEAST_CALIBRATION_SAMPLES = 7
_CALIBRATION_SHARE = 0.25
_LEAST_TRIES = 3
_MOST_TRIES = 5

_TIMER_READS = 100
"""Clock reads that a sample must outlast, so that reading the clock is at most 1 % of it."""

_SHORTEST_SAMPLE_NS = 10_000
_ROW_NS = 1_000_000
_ROW_CALLS = 10
_SHORTEST_ROW = 2
_ROWS = 10


@dataclass(frozen=True, slots=True)
class Budget:
    """One round's share of the case's samples and time in this launch.

    min_samples: samples to reach before precision may stop the round.
    least_samples: samples to take even when time is up.
    max_samples: samples at which the round stops.
    min_ns, max_ns: least total duration of the samples, and time after which the round stops.
    """

    min_samples: int
    least_samples: int
    max_samples: int
    min_ns: float
    max_ns: float


def budget_of(timing: Timing, rounds: int, mode: Mode = "isolated") -> Budget:
    """One round's share of a case's budget in one launch, when each block has ``rounds`` rounds.

    Where a sample is a sequence of calls, 10 samples are enough.
    """
    parts = timing.blocks * rounds
    least = min(timing.least_samples, _ROWS) if mode in ROWED else timing.least_samples
    needed = min(timing.min_samples, _ROWS) if mode in ROWED else timing.min_samples
    return Budget(
        min_samples=max(least // timing.blocks, math.ceil(needed / timing.blocks), 2),
        least_samples=max(math.ceil(least / timing.blocks), 2),
        max_samples=max(timing.max_samples // timing.blocks, 2),
        min_ns=timing.min_seconds * SECOND_NS / parts,
        max_ns=timing.max_seconds * SECOND_NS / parts,
    )


def warmup_calls(timing: Timing, estimate_ns: int) -> int:
    """Number of calls that fill the warm-up time at ``estimate_ns`` each, within the plan's limits."""
    needed = math.ceil(timing.warmup_seconds * SECOND_NS / max(estimate_ns, 1))
    return min(max(needed, timing.warmup_calls), timing.max_warmup_calls)


def calls_per_sample(mode: Mode, estimate_ns: int, timer_ns: int, budget: Budget, cache: Cache = "warm") -> int:
    """Number of calls between two clock reads, when a call takes ``estimate_ns`` and a clock read ``timer_ns``.

    timer_ns: or the resolution of the clock, if that is longer.
    One if a call is much longer than a clock read, in mode overlap, or if caches are flushed before a sample, because
    a second call would find the first one's data in them. Otherwise the smallest power of two that fills 10 µs and 100
    clock reads. In modes with sequences: enough for 1 ms and at least 10, limited (to no fewer than 2) by the time for
    ``least_samples``.
    """
    estimate = max(estimate_ns, 1)
    if mode in ROWED:
        affordable = int(budget.max_ns / budget.least_samples / estimate)
        return max(min(max(math.ceil(_ROW_NS / estimate), _ROW_CALLS), affordable), _SHORTEST_ROW)
    if mode == "overlap" or cache == "flushed" or estimate >= _TIMER_READS * timer_ns:
        return 1
    shortest = max(_SHORTEST_SAMPLE_NS, _TIMER_READS * timer_ns)
    return 1 << max(0, math.ceil(math.log2(shortest / estimate)))


def calibration_samples(budget: Budget, pace_ns: int) -> int:
    """Number of samples that compare computation and call, when one takes ``pace_ns``.

    20, or for long calls as many as a quarter of the budget allows, at least 7.
    """
    affordable = int(_CALIBRATION_SHARE * budget.max_ns / max(pace_ns, 1))
    return min(max(affordable, _LEAST_CALIBRATION_SAMPLES), _CALIBRATION_SAMPLES)


def balanced_units(units: int, alone_ns: int, pure_ns: int) -> int:
    """Units of computation that take as long as a call of ``pure_ns``, when ``units`` take ``alone_ns``.

    Unchanged if both are within 25 % of each other; otherwise scaled by their ratio, at least 1.
    """
    # At least 1 ns per unit: with a clock too coarse to see them, the amount would grow without bound.
    alone, pure = max(alone_ns, units), max(pure_ns, 1)
    return units if alone <= _BALANCE * pure and pure <= _BALANCE * alone else max(1, round(units * pure / alone))


def first_batch(budget: Budget, estimate_ns: int, pace_ns: int) -> int:
    """Number of samples in the first batch: enough for the minimum count and time, as far as the maximum time allows.

    A sample measures ``estimate_ns`` and uses ``pace_ns`` of the budget, because the barrier before it counts too.
    """
    needed = max(budget.min_samples, math.ceil(budget.min_ns / max(estimate_ns, 1)))
    affordable = max(budget.least_samples, int(budget.max_ns / max(pace_ns, estimate_ns, 1)))
    return max(1, min(needed, affordable, budget.max_samples))


def more_tries(budget: Budget, taken: int, spent_ns: int) -> bool:
    """Whether to repeat the parts of a training step after ``taken`` repetitions in ``spent_ns``.

    There are at least 3, and up to 5 while the time is within the budget.
    """
    return taken < _LEAST_TRIES or (taken < _MOST_TRIES and spent_ns < budget.max_ns)


def next_batch(
    budget: Budget, slowest: Sequence[Vector] | Vector, elapsed_ns: int, precision: float, batches: int
) -> int:
    """Number of samples in the next batch, after ``batches`` batches were not enough.

    The interval narrows with the square root of the sample count, which predicts the number needed. A batch at least
    doubles the samples, to keep batches few; the last batch takes all that time and count allow.
    """
    count = len(slowest[0])
    affordable = max(int((budget.max_ns - elapsed_ns) / (elapsed_ns / count)), budget.least_samples - count, 1)
    most = min(budget.max_samples - count, affordable)
    if batches + 1 >= MOST_BATCHES:
        return most
    width = max(map(half_width, slowest))
    needed = count if math.isinf(width) else math.ceil(count * ((width / precision) ** 2 - 1))
    return max(1, min(max(needed, count), most))


def stop_reason(
    budget: Budget, slowest: Sequence[Vector] | Vector, elapsed_ns: int, precision: float, batches: int = 1
) -> StopReason | None:
    """Reason to stop sampling, or None to continue. All groups of a round must have converged.

    The interval of the median uses the effective sample size, which accounts for autocorrelation.
    """
    count = len(slowest[0])
    spent = min(int(vector.sum()) for vector in slowest)
    if (
        count >= budget.min_samples
        and spent >= budget.min_ns
        and all(half_width(vector) <= precision for vector in slowest)
    ):
        return "converged"
    if count >= budget.max_samples:
        return "sample_limit"
    if count < budget.least_samples:
        return None
    return "time_limit" if elapsed_ns >= budget.max_ns or batches >= MOST_BATCHES else None


def half_width(vector: Vector) -> float:
    """Relative half-width of the median's 95 % interval, corrected for autocorrelation."""
    return median_interval(vector, tau=autocorrelation_time(vector)).relative_half_width
