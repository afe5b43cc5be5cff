"""The instrument, over ranks whose time and data are known: exact to the nanosecond, and the same on all ranks."""

import numpy as np
import pytest
import torch
from testing.blocks import measure_everywhere, measured, quick
from testing.fakes import QUICK, FakeBackend, FakeWorld, Script
from testing.narrow import require, require_type
from testing.synthetic import case

from busbw.backends.base import Backend
from busbw.backends.faults import DelayingBackend, WrappingBackend
from busbw.launch.worker import refusals
from busbw.measure.bench import Bench, part_of, rounds_of
from busbw.measure.clock import CommonClock
from busbw.measure.unsupported import Place, skip_reason
from busbw.ops import OPS, traffic
from busbw.ops.base import Op
from busbw.runs.records import QUANTILES, Case, Check, GroupSamples, Measurement

WARM = 1 + 1 + QUICK.warmup_calls  # the check, the call that tells the pace and the warm-up come before sample 0

HERE = Place(oversubscribed=False, comparable=True)


def samples_of(made: Measurement) -> int:
    return len(made.groups[0].slowest_ns)


# --- every operation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", [op for op in OPS.values() if not op.splits], ids=lambda op: op.name)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_op_is_measured_and_verified_on_every_world(op: Op, ranks: int) -> None:
    planned = case(op.name, 64 * ranks, ranks, pairs="together" if op.members == "pairs" else None)
    world = FakeWorld(ranks)
    if ranks < op.least_ranks():
        assert skip_reason(planned, world.backends[0], HERE) is not None
        return
    made = measured(world, planned)
    assert made.check == (
        Check(state="verified") if op.sized else Check(state="not checked", reason="there are no data")
    )
    assert made.calls == op.trips
    for group in made.groups:
        assert group.bus_factor == op.factor(len(group.ranks))
        assert set(group.slowest_ns) == {1_000}
        assert set(group.fastest_ns) == {1_000}
        assert [rank.rank for rank in group.per_rank] == list(group.ranks)


@pytest.mark.parametrize(
    ("group", "ranks", "alone"), [("all", 1, True), ("0", 3, True), ("0;1;2", 3, True), ("0;1,2", 3, False)]
)
def test_communication_of_ranks_that_are_all_alone_is_skipped(group: str, ranks: int, *, alone: bool) -> None:
    backend = FakeWorld(ranks).backends[0]
    for op in OPS.values():
        reason = str(skip_reason(case(op.name, 64 * ranks, ranks, group=group), backend, HERE))
        assert reason.startswith("communication needs") == (op.communicates and alone), op.name


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter", "gather", "scatter"])
def test_in_place_variants_are_verified_too(name: str) -> None:
    made = measured(FakeWorld(3), case(name, 96, 3, in_place=True, root=2 if OPS[name].rooted else None))
    assert made.check.state == "verified"


# --- what is recorded ------------------------------------------------------------------------------------------


def scripted(rank: int, index: int, _case: Case) -> int:
    """No two the same: the fastest rank changes from sample to sample."""
    return 10_000 + 97 * ((rank * 5 + index * 3) % 7) + rank


def test_durations_are_recorded_to_the_nanosecond() -> None:
    made = measured(FakeWorld(4, Script(durations=scripted)), case("all_reduce", 64))
    (group,) = made.groups
    for sample in range(samples_of(made)):
        durations = [scripted(rank, WARM + sample, made.case) for rank in range(4)]
        assert group.slowest_ns[sample] == max(durations)
        assert group.fastest_ns[sample] == min(durations)
        assert group.fastest_rank[sample] == durations.index(min(durations))
        assert [rank.samples_ns[sample] for rank in group.per_rank if rank.samples_ns] == durations
        assert require(group.exit_span_ns)[sample] == max(durations)
    assert set(group.arrival_skew_ns or ()) == {0}
    assert made.first_call_ns == max(scripted(rank, 0, made.case) for rank in range(4))
    assert made.warmup_calls == QUICK.warmup_calls


def test_quantiles_are_those_of_each_rank() -> None:
    made = measured(FakeWorld(3, Script(durations=scripted)), case("all_gather", 48, 3))
    for rank in made.groups[0].per_rank:
        expected = np.rint(np.quantile(np.asarray(require(rank.samples_ns)), QUANTILES))
        assert list(rank.quantiles_ns) == expected.tolist()


@pytest.mark.parametrize("late", range(4))
def test_the_rank_that_comes_late_is_named_in_a_synchronising_op(late: int) -> None:
    def lateness(rank: int, _number: int) -> int:
        return 3_000 + 10 * rank if rank == late else 7 * rank

    made = measured(FakeWorld(4, Script(lateness=lateness)), case("all_reduce", 64))
    (group,) = made.groups
    first = min(lateness(rank, 0) for rank in range(4))
    assert set(group.fastest_rank) == set(group.last_rank or ()) == {late}
    assert set(group.fastest_ns) == {1_000}, "the late one does not wait: its time is the cost without skew"
    assert set(group.slowest_ns) == {1_000 + lateness(late, 0) - first}
    assert set(group.arrival_skew_ns or ()) == {lateness(late, 0) - first}
    assert set(group.exit_span_ns or ()) == {1_000}


def test_the_rank_that_enters_last_is_told_from_the_one_that_leaves_soonest() -> None:
    script = Script(
        durations=lambda rank, _index, _case: 1 if rank == 0 else 10_000,
        lateness=lambda rank, _number: 500 if rank == 2 else 0,
    )
    (group,) = measured(FakeWorld(4, script), case("all_reduce", 64)).groups
    assert set(group.fastest_rank) == {0}
    assert set(group.last_rank or ()) == {2}
    apart = require_type(
        Measurement, measure_everywhere(FakeWorld(4, script), case("all_reduce", 64), shared_clock=False)[0]
    )
    assert apart.groups[0].last_rank is None


def with_a_delayed_rank(share: float, seed: int, samples: int) -> GroupSamples:
    def delayed(backend: FakeBackend) -> Backend:
        def wait(seconds: float) -> None:
            backend.clock.advance(round(seconds * 1e9))

        return DelayingBackend(backend, 2, 5e-6, share, seed=seed, wait=wait)

    outcomes = measure_everywhere(FakeWorld(4), case("all_reduce", 64), quick(min_samples=samples), wrap=delayed)
    return require_type(Measurement, outcomes[0]).groups[0]


def test_a_delayed_rank_is_late_in_the_share_of_samples_that_was_asked_for() -> None:
    group = with_a_delayed_rank(0.5, 1, 20)
    skews = group.arrival_skew_ns or ()
    late = [rank for rank, skew in zip(group.fastest_rank, skews, strict=True) if skew]
    assert set(late) == {2}
    assert 0 < len(late) < len(skews)
    assert set(skews) == {0, 5_000}


def test_a_rank_may_be_delayed_at_random_and_the_same_way_again() -> None:
    def late_samples(seed: int) -> list[int]:
        group = with_a_delayed_rank(0.3, seed, 100)
        return [index for index, skew in enumerate(group.arrival_skew_ns or ()) if skew]

    once = late_samples(1)
    assert 15 < len(once) < 45
    assert len(set(np.diff(once))) > 3, "not evenly spread"
    assert late_samples(1) == once
    assert late_samples(2) != once


def test_clocks_of_different_hosts_give_no_skew_but_the_same_durations() -> None:
    planned = case("all_reduce", 64)
    apart = FakeWorld(4, Script(durations=scripted, offsets_ns=(0, -900_000, 17, 10**12)))
    made = measured(apart, planned, shared_clock=False)
    (group,) = made.groups
    assert group.arrival_skew_ns is None
    assert group.exit_span_ns is None
    together = measured(FakeWorld(4, Script(durations=scripted)), planned).groups[0]
    assert group.slowest_ns == together.slowest_ns
    assert group.fastest_rank == together.fastest_rank


def test_reading_the_clock_costs_one_read_a_sample_and_no_more() -> None:
    made = measured(FakeWorld(2, Script(read_cost_ns=60)), case("all_reduce", 64, 2))
    assert set(made.groups[0].slowest_ns) == {1_060}


def test_the_wall_time_of_a_block_holds_its_samples() -> None:
    made = measured(FakeWorld(2), case("all_reduce", 64, 2))
    assert made.elapsed_ns >= sum(made.groups[0].slowest_ns)


def test_wire_bytes_come_from_the_split_matrix() -> None:
    planned = case("all_to_all_v", 4_000, 4, imbalance=0.5)
    matrix = traffic.split(traffic.imbalanced(4, 0.5), planned.count)
    (group,) = measured(FakeWorld(4), planned).groups
    assert group.wire_bytes == traffic.crossing(matrix) * 4
    assert measured(FakeWorld(4), case("all_reduce", 64)).groups[0].wire_bytes == 2 * 3 * 64


# --- groups ----------------------------------------------------------------------------------------------------


def test_groups_are_measured_at_once_and_apart() -> None:
    def durations(rank: int, _index: int, _case: Case) -> int:
        return 1_000 if rank in {0, 2} else 9_000

    made = measured(FakeWorld(4, Script(durations=durations)), case("all_reduce", 64, group="mod:2"))
    assert [(group.ranks, set(group.slowest_ns)) for group in made.groups] == [((0, 2), {1_000}), ((1, 3), {9_000})]
    assert [set(group.fastest_rank) for group in made.groups] == [{0}, {1}]


def test_ranks_outside_of_every_group_wait_and_know_the_result() -> None:
    made = measured(FakeWorld(5), case("all_reduce", 64, 5, group="1,3"))
    (group,) = made.groups
    assert group.ranks == (1, 3)
    assert [rank.rank for rank in group.per_rank] == [1, 3]
    assert made.check.state == "verified"


def test_data_of_the_neighbouring_group_are_wrong_data() -> None:
    kept: dict[int, torch.Tensor] = {}

    class Keeping(WrappingBackend):
        def allocate(self, count: int, dtype: str) -> torch.Tensor:
            buffer = self.inner.allocate(count, dtype)
            kept.setdefault(self.rank, buffer)
            return buffer

    measure_everywhere(FakeWorld(4), case("all_gather", 64, group="div:2"), wrap=Keeping)
    assert [len(kept[rank]) for rank in range(4)] == [16] * 4, "these are the receive buffers"
    assert torch.equal(kept[0], kept[1])
    assert torch.equal(kept[2], kept[3])
    assert bool((kept[0] != kept[2]).all())


@pytest.mark.parametrize("how", ["together", "alone"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_pair_matrix_has_every_ordered_pair(ranks: int, how: str) -> None:
    planned = case("pair_matrix", 16, ranks, pairs=how)
    made = measured(FakeWorld(ranks), planned)
    pairs = [group.ranks for group in made.groups]
    assert len(pairs) == len(set(pairs)) == ranks * (ranks - 1)
    assert all(group.bus_factor == 1.0 for group in made.groups)
    assert len(rounds_of(planned)) == (len(pairs) if how == "alone" else 2 * (ranks - 1 + ranks % 2))


def test_a_slow_pair_stands_out_in_the_matrix() -> None:
    def durations(rank: int, _index: int, case: Case) -> int:
        del case
        return 50_000 if rank == 3 else 1_000

    made = measured(FakeWorld(4, Script(durations=durations)), case("pair_matrix", 16, pairs="together"))
    slow = {group.ranks for group in made.groups if max(group.slowest_ns) == 50_000}
    assert slow == {(0, 3), (1, 3), (2, 3), (3, 0), (3, 1), (3, 2)}


def test_pair_ops_run_between_the_ends_of_each_group() -> None:
    made = measured(FakeWorld(5), case("ping_pong", 16, 5, group="0,1,2;3,4"))
    assert [group.ranks for group in made.groups] == [(0, 2), (3, 4)]
    assert made.calls == 2


def test_an_op_in_place_gets_its_buffer_and_no_view_of_it() -> None:
    """A view of the whole made every Gloo call 1 % slower than a program's own."""
    world = FakeWorld(2)

    def whole(backend: FakeBackend) -> bool:
        planned = case("all_reduce", 64, 2)
        common = CommonClock(backend, backend.clock, ("one",) * 2)
        bench = Bench(backend, backend.clock, QUICK, common, seed=1)
        part = part_of(bench, OPS[planned.op], planned, ((0, 1),), ())
        return part is not None and part.sets[0].send is part.sets[0].receive

    assert world.run(whole) == [True, True]


class Lacking(WrappingBackend):
    """Refuses an op on the rank that has the number ``missing``, as a host does where something is not installed."""

    missing = 1

    def refuse(self, op: Op, case: Case) -> str | None:
        if self.rank == self.missing and op.name == "broadcast":
            return "there is no compiler on this host"
        return self.inner.refuse(op, case)


def test_what_one_rank_refuses_is_refused_on_all() -> None:
    cases = [case("all_reduce", 64, 2), case("broadcast", 64, 2), case("barrier", 0, 2, sync="none", mode="pipelined")]
    refused = FakeWorld(2).run(lambda backend: refusals(cases, Lacking(backend), HERE))
    assert refused[0] == refused[1]
    assert isinstance(refused[0], dict)
    assert list(refused[0]) == cases[1:]
    assert refused[0][cases[1]] == "there is no compiler on this host"
