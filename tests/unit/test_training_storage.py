"""Storage of training: published cases, and the best interval found by trying all and by playing failures."""

import math
import random

import pytest
from testing.narrow import require

from busbw.errors import UsageError
from busbw.workloads.model_rows import models, samples
from busbw_analysis.training.storage import (
    checkpoints,
    copy_seconds,
    daly,
    lost,
    reading_samples,
    reading_tokens,
    young,
)

HOUR = 3600.0


@pytest.mark.parametrize(
    ("sample", "flop", "expected"),
    [("CosmoFlow", 1e15, 63.26e9), ("ResNet-50", 130e12, 573.3e6), ("DeepCAM", 1e15, 9.133e9)],
)
def test_samples_are_read_as_fast_as_their_source_says(sample: str, flop: float, expected: float) -> None:
    assert reading_samples(samples()[sample], flop, 1).per_gpu == pytest.approx(expected, rel=1e-3)


def test_eight_gpus_read_eight_times_as_much() -> None:
    reading = reading_samples(samples()["ResNet-50"], 130e12, 8)
    assert reading.bytes_per_second == pytest.approx(4.59e9, rel=1e-3)
    assert reading.share_of(2 * reading.bytes_per_second) == 0.5


def test_tokens_take_two_or_four_bytes() -> None:
    """6 N of Llama 3 8B is 4.5e10 FLOP a token, and attention to half of a short sequence hardly more."""
    wide = reading_tokens(models()["Llama 3 8B"], 1, 1e15, 1)
    assert wide.per_gpu == pytest.approx(4 / (6 * 7504658432) * 1e15, rel=1e-3)
    narrow = reading_tokens(models()["GPT-3 175B"], 1, 1e15, 1)
    assert narrow.per_gpu == pytest.approx(2 / (6 * 174.56e9) * 1e15, rel=1e-3)


def test_all_gpus_copy_their_parts_at_once() -> None:
    assert copy_seconds(55e9 * 8, 8) == 1.0


@pytest.mark.parametrize(
    ("cost", "between"), [(1.0, 10 * HOUR), (60.0, 3 * HOUR), (600.0, 3 * HOUR), (3000.0, 2 * HOUR)]
)
def test_dalys_interval_is_the_best_of_all(cost: float, between: float) -> None:
    tried = [cost / 10 * 1.01**step for step in range(1500)]
    best = min(tried, key=lambda interval: lost(cost, interval, between, 300.0))
    assert lost(cost, daly(cost, between), between, 300.0) == pytest.approx(lost(cost, best, between, 300.0), rel=2e-3)
    assert daly(cost, between) == pytest.approx(best, rel=0.06)


def test_young_is_daly_for_rare_failures() -> None:
    assert young(1.0, 1e9) == pytest.approx(math.sqrt(2e9))
    assert daly(1.0, 1e9) == pytest.approx(young(1.0, 1e9), rel=1e-4)
    assert daly(10.0, 5.0) == daly(11.0, 5.0) == 5.0


def test_lost_time_is_that_of_played_failures() -> None:
    """Failures by chance: a piece of work and its checkpoint begin anew, after a restart that may fail, too."""
    rng, cost, interval, between, restart = random.Random(1), 60.0, 900.0, 3 * HOUR, 300.0
    clock, done = 0.0, 0.0
    for _ in range(20_000):
        while (fails := rng.expovariate(1 / between)) < interval + cost:
            clock += fails
            while (fails := rng.expovariate(1 / between)) < restart:
                clock += fails
            clock += restart
        clock += interval + cost
        done += interval
    assert lost(cost, interval, between, restart) == pytest.approx(1 - done / clock, rel=0.02)


def test_the_llama_3_case() -> None:
    """419 failures in 54 days: one every 3.09 hours."""
    between = 54 * 24 / 419 * HOUR
    assert between / HOUR == pytest.approx(3.09, abs=0.01)
    checkpointing = checkpoints(56.7, 56.7, between, 0.0, how="synchronous")
    assert checkpointing.young == pytest.approx(math.sqrt(2 * 56.7 * between))
    assert require(checkpointing.loosely) == pytest.approx(checkpointing.lost, rel=0.1)


def test_one_that_goes_on_waits_for_what_is_still_written() -> None:
    checkpointing = checkpoints(0.01, 600.0, 3 * HOUR, 0.0, how="asynchronous")
    assert checkpointing.interval == 600.0 - 0.01
    waited = checkpoints(600.0, 600.0, 3 * HOUR, 0.0, how="synchronous")
    assert require(checkpointing.lost) < require(waited.lost)


def test_without_failures_there_are_times_alone() -> None:
    checkpointing = checkpoints(1.0, 600.0, None, 0.0, how="asynchronous")
    assert (checkpointing.stops, checkpointing.written, checkpointing.interval, checkpointing.lost) == (
        1.0,
        600.0,
        None,
        None,
    )


def test_failures_before_anything_is_saved_lose_everything() -> None:
    assert lost(1.0, 1e6, 1.0, 0.0) == 1.0


@pytest.mark.parametrize("cost", [0.0, -1.0, math.inf, math.nan])
def test_times_that_cannot_be_are_refused(cost: float) -> None:
    with pytest.raises(UsageError) as refused:
        daly(cost, HOUR)
    assert refused.value.code == "storage"
