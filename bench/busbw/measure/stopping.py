"""How much of everything: warm-up, calls per sample, samples per batch, and when it is enough. Pure functions.

Every rank decides for itself from numbers that an all-reduce made the same everywhere, so all decide alike. Protocol:
docs/method.md.
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
"""The modes in which a sample is a row of calls."""

MOST_BATCHES = 6
"""Batches of samples in a round: control traffic is bounded by it, however many samples are taken."""

MOST_CALIBRATIONS = 5
"""How often the amount of computation beside a call is held against the call, and set anew where it does not fit."""

FIRST_UNITS = 20
"""Units of computation to begin with: enough to be timed, and short beside most calls."""

_BALANCE = 1.25
_CALIBRATION_SAMPLES = 20
_LEAST_CALIBRATION_SAMPLES = 7
_CALIBRATION_SHARE = 0.25
_LEAST_TRIES = 3
_MOST_TRIES = 5

_TIMER_READS = 100
"""A sample that lasts as long as so many reads of the clock is 1 % clock; shorter ones are made of several calls."""

_SHORTEST_SAMPLE_NS = 10_000
_ROW_NS = 1_000_000
_ROW_CALLS = 10
_SHORTEST_ROW = 2
_ROWS = 10


@dataclass(frozen=True, slots=True)
class Budget:
    """A block's and a round's share of the case's budget in this launch."""

    min_samples: int
    least_samples: int
    max_samples: int
    min_ns: float
    max_ns: float


def budget_of(timing: Timing, rounds: int, mode: Mode = "isolated") -> Budget:
    """A round's share of what a case may spend in one launch, when each of its blocks has ``rounds`` rounds.

    Where a sample is a row of calls, 10 of them are enough in number.
    """
    parts = timing.blocks * rounds
    least = min(timing.least_samples, _ROWS) if mode in ROWED else timing.least_samples
    wanted = min(timing.min_samples, _ROWS) if mode in ROWED else timing.min_samples
    return Budget(
        min_samples=max(least // timing.blocks, math.ceil(wanted / timing.blocks), 2),
        least_samples=max(math.ceil(least / timing.blocks), 2),
        max_samples=max(timing.max_samples // timing.blocks, 2),
        min_ns=timing.min_seconds * SECOND_NS / parts,
        max_ns=timing.max_seconds * SECOND_NS / parts,
    )


def warmup_calls(timing: Timing, estimate_ns: int) -> int:
    """Calls that fill the warm-up time at ``estimate_ns`` each, within the plan's limits."""
    wanted = math.ceil(timing.warmup_seconds * SECOND_NS / max(estimate_ns, 1))
    return min(max(wanted, timing.warmup_calls), timing.warmup_calls_cap)


def calls_per_sample(mode: Mode, estimate_ns: int, timer_ns: int, budget: Budget, cache: Cache = "warm") -> int:
    """Calls between two reads of the clock, when one call takes ``estimate_ns`` and a read ``timer_ns``.

    One, where a call is much longer than reading the clock, and where the caches are flushed before a sample: a second
    call would find the data of the first there. Else the smallest power of two that fills 10 µs. A row fills 1 ms and
    has at least 10 calls, or as many (at least 2) as leave time for the least number of samples.
    """
    estimate = max(estimate_ns, 1)
    if mode in ROWED:
        affordable = int(budget.max_ns / budget.least_samples / estimate)
        return max(min(max(math.ceil(_ROW_NS / estimate), _ROW_CALLS), affordable), _SHORTEST_ROW)
    if mode == "overlap" or cache == "flushed" or estimate >= _TIMER_READS * timer_ns:
        return 1
    return 1 << max(0, math.ceil(math.log2(_SHORTEST_SAMPLE_NS / estimate)))


def calibration_samples(budget: Budget, pace_ns: int) -> int:
    """Samples by which one amount of computation is held against the call, when one takes ``pace_ns``: 20, or for long
    calls what a quarter of the budget allows, at least 7.
    """
    affordable = int(_CALIBRATION_SHARE * budget.max_ns / max(pace_ns, 1))
    return min(max(affordable, _LEAST_CALIBRATION_SAMPLES), _CALIBRATION_SAMPLES)


def balanced_units(units: int, alone_ns: int, pure_ns: int) -> int:
    """How many units of computation take as long as a call of ``pure_ns``, when ``units`` take ``alone_ns``: the same
    where they are within 25 % of it, else as many as take as long by that rate, at least 1.
    """
    # No unit takes less than 1 ns: on a clock that does not see it the amount would grow without end.
    alone, pure = max(alone_ns, units), max(pure_ns, 1)
    return units if alone <= _BALANCE * pure and pure <= _BALANCE * alone else max(1, round(units * pure / alone))


def first_batch(budget: Budget, estimate_ns: int, pace_ns: int) -> int:
    """Samples of the first batch: enough for the minimum in count and time, as far as the maximum time allows.

    A sample measures ``estimate_ns`` and takes ``pace_ns`` of the budget: the barrier before it is paid for, too.
    """
    wanted = max(budget.min_samples, math.ceil(budget.min_ns / max(estimate_ns, 1)))
    affordable = max(budget.least_samples, int(budget.max_ns / max(pace_ns, estimate_ns, 1)))
    return max(1, min(wanted, affordable, budget.max_samples))


def more_tries(budget: Budget, taken: int, spent_ns: int) -> bool:
    """Whether the parts of a step of training are taken once more, after ``taken`` times in ``spent_ns``: always 3
    times, and while that is within the budget 5 times.
    """
    return taken < _LEAST_TRIES or (taken < _MOST_TRIES and spent_ns < budget.max_ns)


def next_batch(
    budget: Budget, slowest: Sequence[Vector] | Vector, elapsed_ns: int, precision: float, batches: int
) -> int:
    """Samples of the next batch, after ``batches`` of them were not enough.

    An interval narrows with the root of the number of samples, so the first batches tell how many it takes; at least
    as many again, so that there are few batches, and all that time and count allow in the last one.
    """
    count = len(slowest[0])
    affordable = max(int((budget.max_ns - elapsed_ns) / (elapsed_ns / count)), budget.least_samples - count, 1)
    most = min(budget.max_samples - count, affordable)
    if batches + 1 >= MOST_BATCHES:
        return most
    width = max(map(half_width, slowest))
    wanted = count if math.isinf(width) else math.ceil(count * ((width / precision) ** 2 - 1))
    return max(1, min(max(wanted, count), most))


def stop_reason(
    budget: Budget, slowest: Sequence[Vector] | Vector, elapsed_ns: int, precision: float, batches: int = 1
) -> StopReason | None:
    """Whether these samples are enough; None to go on. All groups of a round must have converged.

    The interval of the median is that of as many free samples as the autocorrelation leaves.
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
        return "cap_samples"
    if count < budget.least_samples:
        return None
    return "cap_time" if elapsed_ns >= budget.max_ns or batches >= MOST_BATCHES else None


def half_width(vector: Vector) -> float:
    """Half of the 95 % interval of the median over the median, with the autocorrelation taken into account."""
    return median_interval(vector, tau=autocorrelation_time(vector)).relative_half_width
