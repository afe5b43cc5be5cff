"""The instrument, over ranks whose time and data are known: exact to the nanosecond, and the same on all ranks."""

import itertools
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from busbw import pacing, reduction
from busbw.backends.base import Backend, Operation
from busbw.errors import BackendError, BusbwError, ClockError
from busbw.measure import Place, refusal, rounds_of
from busbw.ops import OPS, traffic
from busbw.ops.base import Matrix, Op
from busbw.ops.groups import Ranks
from busbw.plan import Timing
from busbw.records import QUANTILES, Case, Check, Failed, GroupSamples, Measurement
from busbw.testing.fakes import QUICK, FakeBackend, FakeWorld, Script, measure_everywhere
from busbw.testing.faults import CorruptingBackend, DelayingBackend, WrappingBackend
from busbw.testing.synthetic import case

WARM = 1 + 1 + QUICK.warmup_calls  # the check, the call that tells the pace and the warm-up come before sample 0

HERE = Place(crowded=False, comparable=True)


def timing(**changes: float) -> Timing:
    return msgspec.structs.replace(QUICK, **changes)


def everywhere(
    world: FakeWorld,
    one: Case,
    pace: Timing = QUICK,
    wrap: Callable[[FakeBackend], Backend] = lambda backend: backend,
    *,
    shared_clock: bool = True,
) -> list[Measurement | Failed | BusbwError]:
    matrix = traffic.split(traffic.skewed(world.size, 0.5), one.count) if OPS[one.op].uneven else ()
    return measure_everywhere(world, one, pace, matrix=matrix, wrap=wrap, shared_clock=shared_clock)


def agreed(world: FakeWorld, one: Case, pace: Timing = QUICK, *, shared_clock: bool = True) -> Measurement:
    """The record that all ranks got: the same on each, but for the moment at which it began."""
    outcomes = everywhere(world, one, pace, shared_clock=shared_clock)
    rows = []
    for outcome in outcomes:
        assert isinstance(outcome, Measurement), outcome
        rows.append(msgspec.structs.replace(outcome, started="then"))
    assert all(row == rows[0] for row in rows)
    return rows[0]


def samples_of(made: Measurement) -> int:
    return len(made.groups[0].slowest_ns)


# --- every operation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_op_is_measured_and_verified_on_every_world(op: Op, ranks: int) -> None:
    one = case(op.name, 64 * ranks, ranks, variant="together" if op.members == "pairs" else None)
    world = FakeWorld(ranks)
    if ranks < op.least_ranks():
        assert "needs 2 ranks" in str(refusal(one, world.backends[0], HERE))
        return
    made = agreed(world, one)
    assert made.check == (
        Check(state="verified") if op.sized else Check(state="not checked", reason="there are no data")
    )
    assert made.calls == op.trips
    for group in made.groups:
        assert group.bus_factor == op.factor(len(group.ranks))
        assert set(group.slowest_ns) == {1_000}
        assert set(group.fastest_ns) == {1_000}
        assert [rank.rank for rank in group.per_rank] == list(group.ranks)


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter", "gather", "scatter"])
def test_in_place_variants_are_verified_too(name: str) -> None:
    made = agreed(FakeWorld(3), case(name, 96, 3, in_place=True, root=2 if OPS[name].rooted else None))
    assert made.check.state == "verified"


# --- what is recorded ------------------------------------------------------------------------------------------


def scripted(rank: int, index: int, _case: Case) -> int:
    """No two the same: the fastest rank changes from sample to sample."""
    return 10_000 + 97 * ((rank * 5 + index * 3) % 7) + rank


def test_durations_are_recorded_to_the_nanosecond() -> None:
    made = agreed(FakeWorld(4, Script(durations=scripted)), case("all_reduce", 64))
    (group,) = made.groups
    for sample in range(samples_of(made)):
        durations = [scripted(rank, WARM + sample, made.case) for rank in range(4)]
        assert group.slowest_ns[sample] == max(durations)
        assert group.fastest_ns[sample] == min(durations)
        assert group.late_rank[sample] == durations.index(min(durations))
        assert [rank.samples_ns[sample] for rank in group.per_rank if rank.samples_ns] == durations
        assert group.exit_span_ns is not None
        assert group.exit_span_ns[sample] == max(durations)
    assert set(group.arrival_skew_ns or ()) == {0}
    assert made.first_call_ns == max(scripted(rank, 0, made.case) for rank in range(4))
    assert made.warmup_calls == QUICK.warmup_calls


def test_quantiles_are_those_of_each_rank() -> None:
    made = agreed(FakeWorld(3, Script(durations=scripted)), case("all_gather", 48, 3))
    for rank in made.groups[0].per_rank:
        assert rank.samples_ns is not None
        expected = np.rint(np.quantile(np.asarray(rank.samples_ns), QUANTILES))
        assert list(rank.quantiles_ns) == expected.tolist()


@pytest.mark.parametrize("late", range(4))
def test_the_rank_that_comes_late_is_named_in_a_synchronising_op(late: int) -> None:
    def lateness(rank: int, _number: int) -> int:
        return 3_000 + 10 * rank if rank == late else 7 * rank

    made = agreed(FakeWorld(4, Script(lateness=lateness)), case("all_reduce", 64))
    (group,) = made.groups
    first = min(lateness(rank, 0) for rank in range(4))
    assert set(group.late_rank) == set(group.last_rank or ()) == {late}
    assert set(group.fastest_ns) == {1_000}, "the late one does not wait: its time is the cost without skew"
    assert set(group.slowest_ns) == {1_000 + lateness(late, 0) - first}
    assert set(group.arrival_skew_ns or ()) == {lateness(late, 0) - first}
    assert set(group.exit_span_ns or ()) == {1_000}


def test_the_rank_that_enters_last_is_told_from_the_one_that_leaves_soonest() -> None:
    script = Script(
        durations=lambda rank, _index, _case: 1 if rank == 0 else 10_000,
        lateness=lambda rank, _number: 500 if rank == 2 else 0,
    )
    (group,) = agreed(FakeWorld(4, script), case("all_reduce", 64)).groups
    assert set(group.late_rank) == {0}
    assert set(group.last_rank or ()) == {2}
    apart = everywhere(FakeWorld(4, script), case("all_reduce", 64), shared_clock=False)[0]
    assert isinstance(apart, Measurement)
    assert apart.groups[0].last_rank is None


def test_a_delayed_rank_is_late_in_the_share_of_samples_that_was_asked_for() -> None:
    def delayed(backend: FakeBackend) -> Backend:
        return DelayingBackend(backend, 2, 5e-6, 0.5, wait=lambda seconds: backend.clock.advance(round(seconds * 1e9)))

    world = FakeWorld(4)
    outcomes = everywhere(world, case("all_reduce", 64), timing(min_samples=20), delayed)
    made = outcomes[0]
    assert isinstance(made, Measurement)
    (group,) = made.groups
    skews = group.arrival_skew_ns or ()
    late = [rank for rank, skew in zip(group.late_rank, skews, strict=True) if skew]
    assert set(late) == {2}
    assert len(late) == len(skews) // 2
    assert set(skews) == {0, 5_000}


def test_a_rank_may_be_delayed_at_random_and_the_same_way_again() -> None:
    def late_samples(seed: int) -> list[int]:
        def delayed(backend: FakeBackend) -> Backend:
            def wait(seconds: float) -> None:
                backend.clock.advance(round(seconds * 1e9))

            return DelayingBackend(backend, 2, 5e-6, 0.3, wait=wait, seed=seed)

        made = everywhere(FakeWorld(4), case("all_reduce", 64), timing(min_samples=100), delayed)[0]
        assert isinstance(made, Measurement)
        return [index for index, skew in enumerate(made.groups[0].arrival_skew_ns or ()) if skew]

    once = late_samples(1)
    assert 15 < len(once) < 45
    assert len(set(np.diff(once))) > 3, "not evenly spread"
    assert late_samples(1) == once
    assert late_samples(2) != once


def test_clocks_of_different_hosts_give_no_skew_but_the_same_durations() -> None:
    one = case("all_reduce", 64)
    apart = FakeWorld(4, Script(durations=scripted, offsets_ns=(0, -900_000, 17, 10**12)))
    made = agreed(apart, one, shared_clock=False)
    (group,) = made.groups
    assert group.arrival_skew_ns is None
    assert group.exit_span_ns is None
    together = agreed(FakeWorld(4, Script(durations=scripted)), one).groups[0]
    assert group.slowest_ns == together.slowest_ns
    assert group.late_rank == together.late_rank


def test_reading_the_clock_costs_one_read_a_sample_and_no_more() -> None:
    made = agreed(FakeWorld(2, Script(read_cost_ns=60)), case("all_reduce", 64, 2))
    assert set(made.groups[0].slowest_ns) == {1_060}


def test_the_wall_time_of_a_block_holds_its_samples() -> None:
    made = agreed(FakeWorld(2), case("all_reduce", 64, 2))
    assert made.elapsed_ns >= sum(made.groups[0].slowest_ns)


def test_wire_bytes_come_from_the_split_matrix() -> None:
    one = case("all_to_all_v", 4_000, 4, variant="skew:0.5")
    matrix = traffic.split(traffic.skewed(4, 0.5), one.count)
    (group,) = agreed(FakeWorld(4), one).groups
    assert group.wire_bytes == traffic.crossing(matrix) * 4
    assert agreed(FakeWorld(4), case("all_reduce", 64)).groups[0].wire_bytes == 2 * 3 * 64


# --- groups ----------------------------------------------------------------------------------------------------


def test_groups_are_measured_at_once_and_apart() -> None:
    def durations(rank: int, _index: int, _case: Case) -> int:
        return 1_000 if rank in {0, 2} else 9_000

    made = agreed(FakeWorld(4, Script(durations=durations)), case("all_reduce", 64, group="mod:2"))
    assert [(group.ranks, set(group.slowest_ns)) for group in made.groups] == [((0, 2), {1_000}), ((1, 3), {9_000})]
    assert [set(group.late_rank) for group in made.groups] == [{0}, {1}]


def test_ranks_outside_of_every_group_wait_and_know_the_result() -> None:
    made = agreed(FakeWorld(5), case("all_reduce", 64, 5, group="1,3"))
    (group,) = made.groups
    assert group.ranks == (1, 3)
    assert [rank.rank for rank in group.per_rank] == [1, 3]
    assert made.check.state == "verified"


def test_data_of_the_neighbouring_group_are_wrong_data() -> None:
    kept: dict[int, torch.Tensor] = {}

    class Keeping(WrappingBackend):
        def allocate(self, count: int, dtype: str) -> torch.Tensor:
            buffer = super().allocate(count, dtype)
            kept.setdefault(self.rank, buffer)
            return buffer

    everywhere(FakeWorld(4), case("all_gather", 64, group="div:2"), wrap=Keeping)
    assert [len(kept[rank]) for rank in range(4)] == [16] * 4, "these are the receive buffers"
    assert torch.equal(kept[0], kept[1])
    assert torch.equal(kept[2], kept[3])
    assert bool((kept[0] != kept[2]).all())


@pytest.mark.parametrize("variant", ["together", "alone"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_pair_matrix_has_every_ordered_pair(ranks: int, variant: str) -> None:
    one = case("pair_matrix", 16, ranks, variant=variant)
    made = agreed(FakeWorld(ranks), one)
    pairs = [group.ranks for group in made.groups]
    assert len(pairs) == len(set(pairs)) == ranks * (ranks - 1)
    assert all(group.bus_factor == 1.0 for group in made.groups)
    assert len(rounds_of(one)) == (len(pairs) if variant == "alone" else 2 * (ranks - 1 + ranks % 2))


def test_a_slow_pair_stands_out_in_the_matrix() -> None:
    def durations(rank: int, _index: int, one: Case) -> int:
        del one
        return 50_000 if rank == 3 else 1_000

    made = agreed(FakeWorld(4, Script(durations=durations)), case("pair_matrix", 16, variant="together"))
    slow = {group.ranks for group in made.groups if max(group.slowest_ns) == 50_000}
    assert slow == {(0, 3), (1, 3), (2, 3), (3, 0), (3, 1), (3, 2)}


def test_pair_ops_run_between_the_ends_of_each_group() -> None:
    made = agreed(FakeWorld(5), case("ping_pong", 16, 5, group="0,1,2;3,4"))
    assert [group.ranks for group in made.groups] == [(0, 2), (3, 4)]
    assert made.calls == 2


# --- how long --------------------------------------------------------------------------------------------------


def noisy(seed: int, spread: float = 1.0, typical_ns: int = 100_000) -> Callable[[int, int, Case], int]:
    def durations(rank: int, index: int, _case: Case) -> int:
        generator = np.random.default_rng((seed, rank, index))
        return max(1, int(typical_ns * np.exp(generator.normal(0, spread))))

    return durations


def test_steady_samples_converge_at_the_minimum() -> None:
    made = agreed(FakeWorld(2), case("all_reduce", 64, 2), timing(min_samples=30))
    assert (made.stop_reason, samples_of(made)) == ("converged", 30)


def test_the_minimum_is_in_time_as_well_as_in_samples() -> None:
    made = agreed(FakeWorld(2), case("all_reduce", 64, 2), timing(min_seconds=100e-6))
    assert (made.stop_reason, samples_of(made)) == ("converged", 100)


def test_samples_that_are_faster_than_the_warm_up_promised_still_fill_the_minimum_time() -> None:
    script = Script(durations=lambda _rank, index, _case: 10_000 if index < WARM else 1_000)
    made = agreed(FakeWorld(2, script), case("all_reduce", 64, 2), timing(min_seconds=100e-6))
    assert made.stop_reason == "converged"
    assert sum(made.groups[0].slowest_ns) >= 100_000


def test_noise_is_sampled_up_to_the_cap_of_samples() -> None:
    made = agreed(FakeWorld(2, Script(durations=noisy(1))), case("all_reduce", 64, 2), timing(precision=0.001))
    assert (made.stop_reason, samples_of(made)) == ("cap_samples", QUICK.max_samples)


def test_noise_is_sampled_up_to_the_cap_of_time() -> None:
    pace = timing(precision=0.001, max_seconds=0.01)
    made = agreed(FakeWorld(2, Script(durations=noisy(1))), case("all_reduce", 64, 2), pace)
    assert made.stop_reason == "cap_time"
    assert QUICK.least_samples <= samples_of(made) < QUICK.max_samples


def test_a_slow_case_still_gets_the_least_number_of_samples() -> None:
    slow = Script(durations=lambda _rank, _index, _case: 10_000_000_000)
    pace = timing(min_samples=30, least_samples=20)
    made = agreed(FakeWorld(2, slow), case("all_reduce", 64, 2), pace)
    assert (made.stop_reason, samples_of(made)) == ("cap_time", 20)


def test_blocks_and_rounds_share_the_budget_of_a_case() -> None:
    pace = timing(blocks=4, min_samples=80, least_samples=40, max_samples=400)
    assert samples_of(agreed(FakeWorld(2), case("all_reduce", 64, 2), pace)) == 20
    half, whole = (pacing.budget_of(timing(min_seconds=0.1), rounds) for rounds in (2, 1))
    assert (half.min_ns, half.max_ns) == (whole.min_ns / 2, whole.max_ns / 2)


@given(
    st.floats(0, 1),
    st.integers(1, 100),
    st.integers(0, 100),
    st.integers(0, 10**12),
)
def test_warm_up_fills_its_time_within_its_limits(seconds: float, least: int, more: int, estimate: int) -> None:
    pace = timing(warmup_seconds=seconds, warmup_calls=least, warmup_calls_cap=least + more)
    calls = pacing.warmup_calls(pace, estimate)
    assert least <= calls <= least + more
    if least < calls < least + more:
        assert (calls - 1) * estimate < seconds * 1e9 <= calls * max(estimate, 1) + 1


def test_warm_up_is_counted() -> None:
    world = FakeWorld(2)
    made = agreed(world, case("all_reduce", 64, 2), timing(warmup_seconds=20e-6))
    assert made.warmup_calls == 20
    assert world.backends[0].calls == 2 + 1 + 20 + samples_of(made)


budgets = st.builds(
    lambda least, more, most, low, high: pacing.Budget(
        min_samples=least + more,
        least_samples=least,
        max_samples=least + more + most,
        min_ns=low,
        max_ns=low + high,
    ),
    st.integers(2, 20),
    st.integers(0, 20),
    st.integers(0, 60),
    st.floats(0, 1e5),
    st.floats(0, 1e6),
)


@given(budgets, st.integers(0, 10**9), st.integers(0, 10**9))
def test_the_first_batch_is_within_the_budget(budget: pacing.Budget, estimate: int, barrier: int) -> None:
    batch = pacing.first_batch(budget, estimate, estimate + barrier)
    assert 1 <= batch <= budget.max_samples
    if batch > budget.least_samples:
        assert (batch - 1) * (estimate + barrier) <= budget.max_ns


def test_the_time_of_the_barriers_is_part_of_the_budget() -> None:
    budget = pacing.Budget(min_samples=30, least_samples=20, max_samples=4000, min_ns=1e8, max_ns=5e8)
    assert pacing.first_batch(budget, 10**6, 10**6) == 100
    assert pacing.first_batch(budget, 10**6, 10**7) == 50


@given(budgets, st.lists(st.integers(1, 10**5), min_size=2, max_size=80), st.integers(0, 10**7), st.floats(0.001, 0.5))
@settings(deadline=None)
def test_reasons_to_stop(budget: pacing.Budget, samples: list[int], elapsed: int, precision: float) -> None:
    vector = np.asarray(samples, dtype=np.int64)
    reason = pacing.stop_reason(budget, [vector], elapsed, precision)
    exact = pacing.half_width(vector) <= precision
    if reason == "converged":
        assert exact
        assert len(samples) >= budget.min_samples
        assert vector.sum() >= budget.min_ns
    elif reason == "cap_samples":
        assert len(samples) >= budget.max_samples
    elif reason == "cap_time":
        assert elapsed >= budget.max_ns
        assert len(samples) >= budget.least_samples
    else:
        assert len(samples) < budget.max_samples
        assert elapsed < budget.max_ns or len(samples) < budget.least_samples
        assert not exact or len(samples) < budget.min_samples or vector.sum() < budget.min_ns


def test_all_groups_of_a_round_must_have_converged() -> None:
    steady = np.full(40, 1_000, dtype=np.int64)
    wild = np.asarray([10, 100_000] * 20, dtype=np.int64)
    budget = pacing.Budget(30, 20, 1000, 0, 1e12)
    assert pacing.stop_reason(budget, [steady, steady], 1, 0.05) == "converged"
    assert pacing.stop_reason(budget, [steady, wild], 1, 0.05) is None


def test_all_groups_of_a_round_must_have_filled_the_minimum_time() -> None:
    fast, slow = np.full(40, 1_000, dtype=np.int64), np.full(40, 9_000, dtype=np.int64)
    budget = pacing.Budget(30, 20, 1000, 300_000, 1e12)
    assert pacing.stop_reason(budget, [slow, slow], 1, 0.05) == "converged"
    assert pacing.stop_reason(budget, [fast, slow], 1, 0.05) is None


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
    pace = timing(precision=precision, blocks=blocks, min_samples=12, max_seconds=0.02)
    world = FakeWorld(ranks, Script(durations=noisy(seed, spread)))
    made = agreed(world, case("all_reduce", 64, ranks, group=group), pace)
    least = 12 // blocks if made.stop_reason == "converged" else 6 // blocks
    assert max(2, least) <= samples_of(made) <= pace.max_samples // blocks
    assert len({backend.calls for backend in world.backends}) == 1
    assert len({backend.barriers for backend in world.backends}) == 1
    assert len({backend.reductions for backend in world.backends}) == 1


def test_control_traffic_does_not_grow_with_the_samples_of_a_batch() -> None:
    counts = []
    for samples in (20, 180):
        world = FakeWorld(2)
        made = agreed(world, case("all_reduce", 64, 2), timing(min_samples=samples))
        assert samples_of(made) == samples
        counts.append(world.backends[0].reductions)
        assert world.backends[0].barriers == 2 + 1 + QUICK.warmup_calls + samples
    assert counts[0] == counts[1]


def test_samples_are_kept_up_to_a_volume_and_quantiles_always() -> None:
    for most, kept in ((reduction.KEPT_VALUES // 2, True), (reduction.KEPT_VALUES // 2 + 1, False)):
        pace = timing(min_samples=most, max_samples=most)
        (group,) = agreed(FakeWorld(2), case("barrier", 0, 2), pace).groups
        assert len(group.slowest_ns) == most
        assert [rank.samples_ns is not None for rank in group.per_rank] == [kept, kept]
        assert [set(rank.quantiles_ns) for rank in group.per_rank] == [{1_000}, {1_000}]


# --- what goes wrong -------------------------------------------------------------------------------------------


def errors_of(outcomes: Sequence[object]) -> list[BusbwError]:
    return [outcome for outcome in outcomes if isinstance(outcome, BusbwError)]


@pytest.mark.parametrize("takes", [0, -5])
def test_a_clock_that_stands_still_or_runs_backwards_is_refused(takes: int) -> None:
    def durations(rank: int, index: int, _case: Case) -> int:
        return takes if (rank, index) == (1, WARM + 2) else 1_000

    errors = errors_of(everywhere(FakeWorld(3, Script(durations=durations)), case("send_recv", 64, 3)))
    assert [type(error) for error in errors] == [BackendError, ClockError, BackendError]
    assert "rank 1" in str(errors[1])


def failing(ranks: set[int], indices: set[int]) -> Script:
    def durations(rank: int, index: int, _case: Case) -> int:
        if rank in ranks and index in indices:
            message = f"no such luck on rank {rank}"
            raise BackendError(message)
        return 1_000

    return Script(durations=durations)


def test_an_op_that_raises_everywhere_is_a_failed_case() -> None:
    outcomes = everywhere(FakeWorld(3, failing({0, 1, 2}, {0})), case("all_reduce", 64, 3))
    for outcome in outcomes:
        assert isinstance(outcome, Failed)
        assert outcome.error == "the operation raised on every rank: no such luck on rank 0"


def test_an_op_that_raises_on_one_rank_breaks_the_world() -> None:
    errors = errors_of(everywhere(FakeWorld(3, failing({1}, {0})), case("all_reduce", 64, 3)))
    assert [type(error) for error in errors] == [BackendError] * 3
    assert all("raised on 1 of 3 ranks" in str(error) for error in errors)
    assert "no such luck on rank 1" in str(errors[1])


class Cramped(WrappingBackend):
    """One rank that has no memory for its buffers."""

    def allocate(self, count: int, dtype: str) -> torch.Tensor:
        if self.rank == 1:
            message = f"no room for {count} elements of {dtype}"
            raise BackendError(message)
        return self.inner.allocate(count, dtype)


def test_buffers_that_one_rank_cannot_make_are_a_failed_case_for_all() -> None:
    for outcome in everywhere(FakeWorld(3), case("all_reduce", 64, 3), wrap=Cramped):
        assert isinstance(outcome, Failed)
        assert outcome.error == "cannot be prepared: rank 1 says: no room for 16 elements of float32"


def test_an_op_that_raises_while_it_is_timed_breaks_the_world() -> None:
    errors = errors_of(everywhere(FakeWorld(3, failing({1}, {WARM})), case("all_reduce", 64, 3)))
    assert len(errors) == 3
    assert "no such luck" in str(errors[1])
    assert str(errors[0]) == "rank 0 waits in vain: rank 1 is gone"


def corrupting(rank: int, when: Callable[[int], bool], elements: int = 1) -> Callable[[FakeBackend], Backend]:
    def wrap(backend: FakeBackend) -> Backend:
        if backend.rank != rank:
            return backend
        return CorruptingBackend(backend, lambda _case, index: when(index), elements=elements)

    return wrap


@pytest.mark.parametrize("name", [op.name for op in OPS.values() if op.sized])
def test_one_wrong_bit_on_one_rank_fails_the_case_everywhere(name: str) -> None:
    one = case(name, 64, 2, variant="together" if name == "pair_matrix" else None, root=1 if OPS[name].rooted else None)
    for outcome in everywhere(FakeWorld(2), one, wrap=corrupting(1, lambda index: index == 0)):
        assert isinstance(outcome, Failed)
        assert outcome.error == "wrong data before timing: 1 elements differ"


def test_data_that_went_wrong_during_the_timing_fail_the_case() -> None:
    for outcome in everywhere(FakeWorld(3), case("all_gather", 96, 3), wrap=corrupting(2, lambda i: i > WARM, 5)):
        assert isinstance(outcome, Failed)
        assert outcome.error == "wrong data after timing: 5 elements differ"


class OnlyOnce(WrappingBackend):
    """Moves the data in the first call, and then only says that it did."""

    def bind(
        self, op: Op, case: Case, group: Ranks, send: torch.Tensor, receive: torch.Tensor, traffic: Matrix
    ) -> Operation:
        inner, left = self.inner.bind(op, case, group, send, receive, traffic), receive.clone()
        numbers = itertools.count()

        def moving_once() -> None:
            left.copy_(receive)
            inner.call()
            if next(numbers):
                receive.copy_(left)

        return Operation(moving_once)


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter", "all_to_all", "scatter", "memory_copy"])
def test_right_data_that_were_left_from_an_earlier_call_do_not_count(name: str) -> None:
    for outcome in everywhere(FakeWorld(2), case(name, 64, 2), wrap=OnlyOnce):
        assert isinstance(outcome, Failed)
        assert "after timing" in outcome.error


def test_what_happens_to_data_that_nobody_checks_is_not_seen() -> None:
    """Only the calls before and after the timing are checked; the ones between run on settled data."""
    made = everywhere(FakeWorld(2), case("all_gather", 64, 2), wrap=corrupting(1, lambda index: 0 < index < WARM))[0]
    assert isinstance(made, Measurement)


def test_an_average_that_cannot_be_exact_is_measured_but_not_checked() -> None:
    made = agreed(FakeWorld(12), case("reduce_scatter", 48, 12, dtype="int8", redop="avg"))
    assert made.check.state == "not checked"
    assert "no exact test in int8" in (made.check.reason or "")


def test_a_rank_that_is_gone_ends_the_wait_of_the_others() -> None:
    def work(backend: FakeBackend) -> None:
        if backend.rank == 1:
            message = "I am leaving"
            raise BackendError(message)
        backend.barrier()

    errors = errors_of(FakeWorld(3).run(work))
    assert ["rank 1 is gone" in str(error) for error in errors] == [True, False, True]


# --- what is refused -------------------------------------------------------------------------------------------


REFUSALS: list[tuple[Case, str | None]] = [
    (case("all_reduce", 64), None),
    (case("all_reduce", 64, in_place=False), "in place only"),
    (case("all_to_all", 64, in_place=True), "out of place only"),
    (case("ping_pong", 64, group="div:1"), "needs 2 ranks in every group; the smallest here has 1"),
    (case("broadcast", 64, root=3), None),
    (case("broadcast", 64, root=4), "root 4 is not a rank of every group; the smallest has 4 ranks"),
    (case("broadcast", 64, root=2, group="div:2"), "the smallest has 2 ranks"),
    (case("all_to_all_v", 64, 3, group="div:2", variant="skew:0.5"), "groups of one size"),
    (case("barrier", 0), None),
]


@pytest.mark.parametrize(("one", "said"), REFUSALS)
def test_what_cannot_run_here_is_refused_with_its_reason(one: Case, said: str | None) -> None:
    reason = refusal(one, FakeWorld(one.ranks).backends[0], HERE)
    assert (reason is None) if said is None else (said in str(reason))


def test_the_backend_has_the_last_word() -> None:
    world = FakeWorld(2, Script(refuse=lambda op, _case: f"no {op.name} today"))
    assert refusal(case("all_reduce", 64, 2), world.backends[0], HERE) == "no all_reduce today"


def test_a_group_has_vectors_of_one_length() -> None:
    made = agreed(FakeWorld(4, Script(durations=noisy(3))), case("all_reduce", 64, group="div:2"))
    for group in made.groups:
        assert isinstance(group, GroupSamples)
        assert {len(group.slowest_ns), len(group.fastest_ns), len(group.late_rank)} == {samples_of(made)}
