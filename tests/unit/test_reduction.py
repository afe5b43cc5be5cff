"""What all ranks saw, brought together: what is stored of each rank tells again all that was derived from it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from testing.blocks import measured, noisy, quick
from testing.fakes import FakeWorld, Script
from testing.synthetic import case

from busbw.measure import reduction
from busbw.runs.records import QUANTILES, Case, GroupSamples


def hold(group: GroupSamples) -> None:
    """Entries and samples of the ranks give every derived vector, exactly."""
    entries = np.asarray([rank.entries_ns for rank in group.per_rank], dtype=np.int64)
    durations = np.asarray([rank.samples_ns for rank in group.per_rank], dtype=np.int64)
    exits, ranks = entries + durations, np.asarray(group.ranks)
    assert entries.min() == 0
    assert group.slowest_ns == tuple(durations.max(axis=0).tolist())
    assert group.fastest_ns == tuple(durations.min(axis=0).tolist())
    # Of equals, the first by rank was fastest, and the last by rank came last.
    assert group.fastest_rank == tuple(ranks[durations.argmin(axis=0)].tolist())
    assert group.last_rank == tuple(ranks[::-1][entries[::-1].argmax(axis=0)].tolist())
    assert group.arrival_skew_ns == tuple((entries.max(axis=0) - entries.min(axis=0)).tolist())
    assert group.exit_span_ns == tuple((exits.max(axis=0) - entries.max(axis=0)).tolist())
    assert group.exit_skew_ns == tuple((exits.max(axis=0) - exits.min(axis=0)).tolist())
    for rank, own in zip(group.per_rank, durations, strict=True):
        assert rank.quantiles_ns == tuple(np.rint(np.quantile(own, QUANTILES)).astype(int).tolist())


@given(
    seed=st.integers(0, 10**6),
    size=st.integers(1, 5),
    op=st.sampled_from(["all_reduce", "memory_copy", "barrier"]),
    group=st.sampled_from(["all", "mod:2"]),
    coarse=st.booleans(),
)
@settings(deadline=None, max_examples=25)
def test_what_is_derived_follows_from_what_each_rank_saw(
    seed: int, size: int, op: str, group: str, *, coarse: bool
) -> None:
    def lateness(rank: int, number: int) -> int:
        return int(np.random.default_rng((seed, rank, number)).integers(0, 4 if coarse else 10**6))

    def steps(rank: int, index: int, _case: Case) -> int:
        return 1_000 * int(np.random.default_rng((seed, rank, index)).integers(1, 4))

    script = Script(durations=steps if coarse else noisy(seed, 0.5), lateness=lateness)
    made = measured(FakeWorld(size, script), case(op, 0 if op == "barrier" else 64, size, group=group))
    for measured_group in made.groups:
        hold(measured_group)


def test_entries_are_kept_as_long_as_samples_are() -> None:
    for most, kept in ((reduction.KEPT_VALUES // 2, True), (reduction.KEPT_VALUES // 2 + 1, False)):
        pace = quick(min_samples=most, max_samples=most)
        (group,) = measured(FakeWorld(2), case("barrier", 0, 2), pace).groups
        assert [rank.entries_ns is not None for rank in group.per_rank] == [kept, kept]
        assert [len(rank.quantiles_ns) for rank in group.per_rank] == [len(QUANTILES)] * 2
        assert len(group.exit_skew_ns or ()) == most, "what is derived stays, sample by sample"


def test_without_a_common_clock_there_are_samples_and_no_entries() -> None:
    script = Script(offsets_ns=(0, 10**9))
    made = measured(FakeWorld(2, script), case("all_reduce", 64, 2), shared_clock=False)
    (group,) = made.groups
    assert (made.clock_error_ns, made.clocks) == (None, None)
    assert (group.last_rank, group.arrival_skew_ns, group.exit_span_ns, group.exit_skew_ns) == (None,) * 4
    assert [rank.entries_ns for rank in group.per_rank] == [None, None]
    assert all(rank.samples_ns for rank in group.per_rank)


def test_on_one_clock_the_error_is_nothing_and_there_is_nothing_to_tell_of_it() -> None:
    made = measured(FakeWorld(2), case("all_reduce", 64, 2))
    assert (made.clock_error_ns, made.clocks) == (0, None)


@pytest.mark.parametrize("late", range(3))
def test_batches_are_joined_in_the_order_in_which_they_were_taken(late: int) -> None:
    """Every sample is another one, and several batches are needed."""
    script = Script(
        durations=lambda _rank, index, _case: 10_000 + 1_000 * (index % 97),
        lateness=lambda rank, number: 10 * number if rank == late else 0,
    )
    made = measured(FakeWorld(3, script), case("all_reduce", 64, 3), quick(precision=0.001, max_samples=60))
    (group,) = made.groups
    assert len(group.slowest_ns) == 60
    assert set(np.diff(group.arrival_skew_ns or ()).tolist()) == {10}
    assert set(group.last_rank or ()) == {late}
    hold(group)
