"""How many calls and samples, and when it is enough: pure rules, and the same decision on every rank."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from testing.blocks import measured, noisy, quick
from testing.fakes import QUICK, Durations, FakeWorld, Script
from testing.synthetic import case

from busbw.measure import reduction, stopping
from busbw.runs.plan import Timing
from busbw.runs.records import Measurement, Mode

WARM = 1 + 1 + QUICK.warmup_calls  # the check, the call that tells the pace and the warm-up come before sample 0


def samples_of(made: Measurement) -> int:
    return len(made.groups[0].slowest_ns)


# --- how long --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("durations", "pace", "reason", "samples"),
    [
        (Script().durations, {"min_samples": 30}, "converged", 30),
        (Script().durations, {"min_seconds": 100e-6}, "converged", 100),  # the minimum is in time as well
        (noisy(1), {"precision": 0.001}, "sample_limit", QUICK.max_samples),
        (lambda *_: 10_000_000_000, {"min_samples": 30, "least_samples": 20}, "time_limit", 20),
    ],
)
def test_samples_are_taken_until_they_converge_or_reach_a_limit(
    durations: Durations, pace: dict[str, Any], reason: str, samples: int
) -> None:
    made = measured(FakeWorld(2, Script(durations=durations)), case("all_reduce", 64, 2), quick(**pace))
    assert (made.stop_reason, samples_of(made)) == (reason, samples)


def test_samples_that_are_faster_than_the_warm_up_promised_still_fill_the_minimum_time() -> None:
    script = Script(durations=lambda _rank, index, _case: 10_000 if index < WARM else 1_000)
    made = measured(FakeWorld(2, script), case("all_reduce", 64, 2), quick(min_seconds=100e-6))
    assert made.stop_reason == "converged"
    assert sum(made.groups[0].slowest_ns) >= 100_000


def test_noise_is_sampled_up_to_the_cap_of_time() -> None:
    pace = quick(precision=0.001, max_seconds=0.01)
    made = measured(FakeWorld(2, Script(durations=noisy(1))), case("all_reduce", 64, 2), pace)
    assert made.stop_reason == "time_limit"
    assert QUICK.least_samples <= samples_of(made) < QUICK.max_samples


def test_blocks_and_rounds_share_the_budget_of_a_case() -> None:
    pace = quick(blocks=4, min_samples=80, least_samples=40, max_samples=400)
    assert samples_of(measured(FakeWorld(2), case("all_reduce", 64, 2), pace)) == 20
    half, whole = (stopping.budget_of(quick(min_seconds=0.1), rounds) for rounds in (2, 1))
    assert (half.min_ns, half.max_ns) == (whole.min_ns / 2, whole.max_ns / 2)


@pytest.mark.parametrize(
    ("each_ns", "tries"), [(100_000_000, 5), (249_000_000, 5), (300_000_000, 4), (60_000_000_000, 3)]
)
def test_parts_of_a_long_step_are_taken_three_times_and_of_a_short_one_five(each_ns: int, tries: int) -> None:
    budget = stopping.budget_of(quick(max_seconds=1.0), rounds=1)
    taken = 0
    while stopping.more_tries(budget, taken, taken * each_ns):
        taken += 1
    assert taken == tries


@given(st.floats(0, 1), st.integers(1, 100), st.integers(0, 100), st.integers(0, 10**12))
def test_warm_up_fills_its_time_within_its_limits(seconds: float, least: int, more: int, estimate: int) -> None:
    pace = quick(warmup_seconds=seconds, warmup_calls=least, max_warmup_calls=least + more)
    calls = stopping.warmup_calls(pace, estimate)
    assert least <= calls <= least + more
    if least < calls < least + more:
        assert (calls - 1) * estimate < seconds * 1e9 <= calls * max(estimate, 1) + 1


def test_warm_up_is_counted() -> None:
    world = FakeWorld(2)
    made = measured(world, case("all_reduce", 64, 2), quick(warmup_seconds=20e-6))
    assert made.warmup_calls == 20
    assert world.backends[0].calls == 2 + 1 + 20 + samples_of(made)


budgets = st.builds(
    lambda least, more, most, low, high: stopping.Budget(
        min_samples=least + more, least_samples=least, max_samples=least + more + most, min_ns=low, max_ns=low + high
    ),
    st.integers(2, 20),
    st.integers(0, 20),
    st.integers(0, 60),
    st.floats(0, 1e5),
    st.floats(0, 1e6),
)


@given(budgets, st.integers(0, 10**9), st.integers(0, 10**9))
def test_the_first_batch_is_within_the_budget(budget: stopping.Budget, estimate: int, barrier: int) -> None:
    batch = stopping.first_batch(budget, estimate, estimate + barrier)
    assert 1 <= batch <= budget.max_samples
    if batch > budget.least_samples:
        assert (batch - 1) * (estimate + barrier) <= budget.max_ns


def test_the_time_of_the_barriers_is_part_of_the_budget() -> None:
    budget = stopping.Budget(min_samples=30, least_samples=20, max_samples=4000, min_ns=1e8, max_ns=5e8)
    assert stopping.first_batch(budget, 10**6, 10**6) == 100
    assert stopping.first_batch(budget, 10**6, 10**7) == 50


@given(budgets, st.lists(st.integers(1, 10**5), min_size=2, max_size=80), st.integers(0, 10**7), st.floats(0.001, 0.5))
@settings(deadline=None)
def test_reasons_to_stop(budget: stopping.Budget, samples: list[int], elapsed: int, precision: float) -> None:
    vector = np.asarray(samples, dtype=np.int64)
    reason = stopping.stop_reason(budget, [vector], elapsed, precision)
    exact = stopping.half_width(vector) <= precision
    if reason == "converged":
        assert exact
        assert len(samples) >= budget.min_samples
        assert vector.sum() >= budget.min_ns
    elif reason == "sample_limit":
        assert len(samples) >= budget.max_samples
    elif reason == "time_limit":
        assert elapsed >= budget.max_ns
        assert len(samples) >= budget.least_samples
    else:
        assert len(samples) < budget.max_samples
        assert elapsed < budget.max_ns or len(samples) < budget.least_samples
        assert not exact or len(samples) < budget.min_samples or vector.sum() < budget.min_ns


def test_all_groups_of_a_round_must_have_converged() -> None:
    steady = np.full(40, 1_000, dtype=np.int64)
    wild = np.asarray([10, 100_000] * 20, dtype=np.int64)
    budget = stopping.Budget(30, 20, 1000, 0, 1e12)
    assert stopping.stop_reason(budget, [steady, steady], 1, 0.05) == "converged"
    assert stopping.stop_reason(budget, [steady, wild], 1, 0.05) is None


def test_all_groups_of_a_round_must_have_filled_the_minimum_time() -> None:
    fast, slow = np.full(40, 1_000, dtype=np.int64), np.full(40, 9_000, dtype=np.int64)
    budget = stopping.Budget(30, 20, 1000, 300_000, 1e12)
    assert stopping.stop_reason(budget, [slow, slow], 1, 0.05) == "converged"
    assert stopping.stop_reason(budget, [fast, slow], 1, 0.05) is None


@given(
    seed=st.integers(0, 10**6),
    ranks=st.integers(1, 4),
    spread=st.floats(0.01, 1.5),
    precision=st.floats(0.01, 0.3),
    blocks=st.integers(1, 3),
    group=st.sampled_from(["all", "mod:2"]),
)
@settings(deadline=None, max_examples=12)
def test_ranks_with_different_times_agree_on_everything(
    seed: int, ranks: int, spread: float, precision: float, blocks: int, group: str
) -> None:
    pace = quick(precision=precision, blocks=blocks, min_samples=12, max_seconds=0.02)
    world = FakeWorld(ranks, Script(durations=noisy(seed, spread)))
    made = measured(world, case("all_reduce", 64, ranks, group=group), pace)
    least = 12 // blocks if made.stop_reason == "converged" else 6 // blocks
    assert max(2, least) <= samples_of(made) <= pace.max_samples // blocks
    assert len({backend.calls for backend in world.backends}) == 1
    assert len({backend.barriers for backend in world.backends}) == 1
    assert len({backend.reductions for backend in world.backends}) == 1


def test_samples_are_kept_up_to_a_volume_and_quantiles_always() -> None:
    for most, kept in ((reduction.KEPT_VALUES // 2, True), (reduction.KEPT_VALUES // 2 + 1, False)):
        pace = quick(min_samples=most, max_samples=most)
        (group,) = measured(FakeWorld(2), case("barrier", 0, 2), pace).groups
        assert len(group.slowest_ns) == most
        assert [rank.samples_ns is not None for rank in group.per_rank] == [kept, kept]
        assert [set(rank.quantiles_ns) for rank in group.per_rank] == [{1_000}, {1_000}]


# --- calls per sample ------------------------------------------------------------------------------------------

FREE = stopping.Budget(min_samples=30, least_samples=20, max_samples=4000, min_ns=0, max_ns=1e15)
TIMER_NS = 70


@pytest.mark.parametrize(
    ("estimate", "calls"),
    [(1, 1_000_000), (1_000, 1_000), (1_001, 1_000), (30_000, 34), (100_000, 10), (100_001, 10), (10**9, 10)],
)
def test_a_row_fills_a_millisecond_and_has_ten_calls(estimate: int, calls: int) -> None:
    for mode in sorted(stopping.ROWED):
        assert stopping.calls_per_sample(mode, estimate, TIMER_NS, FREE) == calls


@pytest.mark.parametrize(("estimate", "calls"), [(10**6, 10), (2 * 10**7, 5), (4 * 10**7, 2), (10**9, 2)])
def test_a_row_leaves_time_for_the_least_samples_and_is_one_still(estimate: int, calls: int) -> None:
    budget = stopping.Budget(min_samples=5, least_samples=5, max_samples=4000, min_ns=0, max_ns=5e8)
    assert stopping.calls_per_sample("pipelined", estimate, TIMER_NS, budget) == calls


@given(st.integers(0, 10**10), st.integers(1, 20), st.floats(0, 1e10))
def test_rows_are_long_enough_and_never_dearer_than_the_budget(estimate: int, least: int, most_ns: float) -> None:
    budget = stopping.Budget(min_samples=least, least_samples=least, max_samples=4000, min_ns=0, max_ns=most_ns)
    calls = stopping.calls_per_sample("pipelined", estimate, TIMER_NS, budget)
    assert calls >= 2
    if calls > 2:
        assert calls * estimate * least <= most_ns
    if (calls + 1) * max(estimate, 1) * least <= most_ns:
        assert calls >= 10
        assert calls * max(estimate, 1) >= 1_000_000


@pytest.mark.parametrize(
    ("estimate", "calls"), [(7_000, 1), (6_999, 2), (5_000, 2), (4_999, 4), (100, 128), (1, 16_384), (0, 16_384)]
)
def test_calls_shorter_than_a_hundred_reads_of_the_clock_are_timed_together(estimate: int, calls: int) -> None:
    assert stopping.calls_per_sample("isolated", estimate, TIMER_NS, FREE) == calls
    assert calls == 1 or calls * max(estimate, 1) >= 10_000
    assert stopping.calls_per_sample("overlap", estimate, TIMER_NS, FREE) == 1
    assert stopping.calls_per_sample("isolated", estimate, TIMER_NS, FREE, "flushed") == 1
    assert stopping.calls_per_sample("isolated", estimate, 0, FREE) == 1, "a clock that costs nothing disturbs nothing"


def test_ten_rows_are_enough_in_number() -> None:
    timing = Timing()
    assert stopping.budget_of(timing, 1, "pipelined").least_samples == 10 // timing.blocks
    assert stopping.budget_of(timing, 1, "isolated").least_samples == 20 // timing.blocks


@given(seed=st.integers(0, 10**6), typical=st.integers(2_000, 100_000), mode=st.sampled_from(["isolated", "pipelined"]))
@settings(deadline=None, max_examples=5)
def test_ranks_with_different_times_agree_on_the_calls_of_a_sample(seed: int, typical: int, mode: Mode) -> None:
    """``measured`` holds the records of all ranks to be the same; here their calls, too."""
    world = FakeWorld(3, Script(durations=noisy(seed, 1.0, typical)))
    copy = case("memory_copy", 64, 3, mode=mode)  # nobody waits: every rank sees times of its own
    made = measured(world, copy, quick(max_samples=8), timer_ns=TIMER_NS)
    assert len({backend.calls for backend in world.backends}) == 1
    assert world.backends[0].calls == WARM + made.calls * len(made.groups[0].slowest_ns) + 1


# --- control traffic -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["isolated", "pipelined", "overlap"])
def test_ten_times_the_samples_cost_no_more_control_traffic(mode: Mode) -> None:
    counts = []
    for samples in (20, 200):
        world = FakeWorld(2, Script(durations=lambda *_: 100_000))
        pace = quick(min_samples=samples, least_samples=samples, max_seconds=100.0)
        # A row is content with ten samples, whatever the plan says: it gets them by time.
        pace = quick(max_seconds=100.0, min_seconds=samples * 1e-3) if mode == "pipelined" else pace
        made = measured(world, case("all_reduce", 64, 2, mode=mode), pace)
        assert len(made.groups[0].slowest_ns) == samples
        counts.append({backend.reductions for backend in world.backends})
    assert counts[0] == counts[1]


@pytest.mark.parametrize("most", [200, 2_000])
def test_batches_bound_the_control_traffic_of_what_never_converges(most: int) -> None:
    steady = FakeWorld(2)
    assert measured(steady, case("all_reduce", 64, 2)).stop_reason == "converged"
    world = FakeWorld(2, Script(durations=noisy(2, 1.5)))
    made = measured(world, case("all_reduce", 64, 2), quick(max_samples=most, precision=0.0001, max_seconds=100.0))
    assert made.stop_reason == "sample_limit"
    assert len(made.groups[0].slowest_ns) == most
    more = world.backends[0].reductions - steady.backends[0].reductions
    assert 0 < more <= 2 * (stopping.MOST_BATCHES - 1), "what was seen, and for how long, once a batch"


@pytest.mark.parametrize("seconds", [0.001, 0.01, 0.1])
def test_time_is_up_after_the_last_batch_at_the_latest(seconds: float) -> None:
    world = FakeWorld(2, Script(durations=noisy(3, 1.5)))
    made = measured(world, case("all_reduce", 64, 2), quick(max_samples=10**6, precision=0.0001, max_seconds=seconds))
    assert made.stop_reason == "time_limit"
