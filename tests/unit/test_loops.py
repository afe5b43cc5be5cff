"""What happens between two reads of the clock: every mode, exact to the nanosecond on a fake clock."""

import itertools
from collections.abc import Callable

import pytest
from testing.blocks import measure_everywhere, measured, noisy, quick
from testing.fakes import QUICK, FakeBackend, FakeClock, FakeWork, FakeWorld, Script
from testing.narrow import require
from testing.synthetic import case

from busbw.backends.base import Backend, Bound, Operation, Wait
from busbw.backends.faults import WrappingBackend
from busbw.measure import block, loops
from busbw.measure.loops import Loop, empty_call_ns, take_overlapped
from busbw.measure.stopping import MOST_CALIBRATIONS
from busbw.measure.unsupported import Place, skip_reason
from busbw.runs.records import Cache, Case, Failed, Mode, OverlapSamples

WARM = 1 + 1 + QUICK.warmup_calls
TIMED = 2  # barriers before the first sample besides those of the calls that warm up: checks of one set of buffers
BALANCED = WARM + 2 * 2 * 20  # calls, once the amount is found: alone and beside, of 20 samples, before and after
HERE = Place(oversubscribed=False, comparable=True)


def timed(op: str, mode: Mode, ranks: int = 2, **changes: object) -> Case:
    return case(op, 64, ranks, mode=mode, **changes)


# --- rows of calls ---------------------------------------------------------------------------------------------


def test_a_row_is_as_long_as_its_calls_to_the_nanosecond() -> None:
    def durations(_rank: int, index: int, _case: Case) -> int:
        return 40_000 + 7 * index

    made = measured(FakeWorld(3, Script(durations=durations)), timed("all_reduce", "pipelined", 3))
    (group,) = made.groups
    calls = made.calls
    assert calls == -(-1_000_000 // durations(0, WARM - 1, made.case)), "1 ms of calls as long as those of the warm-up"
    for number, slowest in enumerate(group.slowest_ns):
        first = WARM + number * calls
        assert slowest == sum(durations(0, index, made.case) for index in range(first, first + calls))
    assert set(group.arrival_skew_ns or ()) == {0}


@pytest.mark.parametrize(("op", "trips"), [("all_reduce", 1), ("ping_pong", 2)])
@pytest.mark.parametrize("mode", ["isolated", "pipelined"])
def test_the_calls_of_a_sample_are_its_trips_in_its_rows(op: str, trips: int, mode: Mode) -> None:
    world = FakeWorld(2, Script(durations=lambda *_: 1_000))
    made = measured(world, timed(op, mode), timer_ns=70)
    row = {"isolated": 16, "pipelined": 1_000}[mode]
    assert made.calls == trips * row
    assert set(made.groups[0].slowest_ns) == {row * 1_000}
    assert world.backends[0].calls == WARM + row * len(made.groups[0].slowest_ns) + 1


def test_one_barrier_comes_before_a_row_and_none_within() -> None:
    world = FakeWorld(2)
    made = measured(world, timed("all_reduce", "pipelined"))
    assert world.backends[0].barriers == TIMED + 1 + QUICK.warmup_calls + len(made.groups[0].slowest_ns)


def test_rounds_of_one_block_have_rows_of_one_length() -> None:
    """Else the time of one call, which is the sample's over ``calls``, would be wrong for all rounds but one."""

    def durations(rank: int, _index: int, _case: Case) -> int:
        return 100_000 if rank == 3 else 20_000

    setting = timed("pair_matrix", "pipelined", 4, pairs="alone")
    made = measured(FakeWorld(4, Script(durations=durations)), setting)
    per_call = {group.ranks: max(group.slowest_ns) / made.calls for group in made.groups}
    assert per_call == {pair: 100_000 if 3 in pair else 20_000 for pair in per_call}


# --- overlap ---------------------------------------------------------------------------------------------------


def overlap_of(script: Script, wrap: Callable[[FakeBackend], Backend] = lambda backend: backend) -> OverlapSamples:
    made = measured(FakeWorld(2, script), timed("all_reduce", "overlap"), wrap=wrap)
    (group,) = made.groups
    assert group.overlap is not None
    assert group.slowest_ns == tuple(
        post + compute + wait
        for post, compute, wait in zip(
            group.overlap.post_ns, group.overlap.compute_ns, group.overlap.wait_ns, strict=True
        )
    )
    return group.overlap


def hidden(overlap: OverlapSamples) -> set[float]:
    """OSU's overlap of every sample, per cent."""
    total = [exposed + compute for exposed, compute in zip(overlap.exposed_ns, overlap.compute_ns, strict=True)]
    return {
        max(0.0, 100 * (1 - (whole - compute) / pure))
        for whole, compute, pure in zip(total, overlap.compute_ns, overlap.pure_ns, strict=True)
    }


def test_a_call_that_runs_beside_the_computation_is_hidden_but_for_its_post() -> None:
    overlap = overlap_of(Script(durations=lambda *_: 10_000, post_ns=200))
    assert set(overlap.pure_ns) == {10_000}
    assert set(overlap.post_ns) == {200}
    assert set(overlap.compute_ns) == {10_000}
    assert overlap.compute_alone_ns == 10_000, "as much computation as a call takes"
    assert set(overlap.wait_ns) == {0}
    assert set(overlap.exposed_ns) == {200}
    assert hidden(overlap) == {98.0}
    assert hidden(overlap_of(Script(durations=lambda *_: 10_000, post_ns=0))) == {100.0}


def test_a_call_that_outlasts_the_computation_is_hidden_in_part() -> None:
    script = Script(durations=lambda _rank, index, _case: 10_000 if index < BALANCED else 40_000, post_ns=500)
    overlap = overlap_of(script)
    assert set(overlap.pure_ns) == {40_000}
    assert set(overlap.wait_ns) == {40_000 - 500 - 10_000}
    assert set(overlap.exposed_ns) == {30_000}
    assert hidden(overlap) == {25.0}


class NoProgress(WrappingBackend):
    """Does nothing before it is waited for, as libraries without a thread of their own."""

    def bind(self, bound: Bound) -> Operation:
        call = self.inner.bind(bound).call
        return Operation(call, lambda: call)


def test_a_call_that_only_runs_in_its_wait_is_not_hidden_at_all() -> None:
    overlap = overlap_of(Script(durations=lambda *_: 10_000), NoProgress)
    assert set(overlap.exposed_ns) == set(overlap.wait_ns) == {10_000}
    assert hidden(overlap) == {0.0}


def test_what_is_exposed_is_post_and_wait_of_the_same_rank() -> None:
    """Rank 1 comes late to every sample, so that rank 0 waits for it: the longest post and wait are on two ranks."""

    def post(rank: int) -> int:
        return 5_000 if rank == 1 else 0

    class SlowPost(WrappingBackend):
        def bind(self, bound: Bound) -> Operation:
            operation = self.inner.bind(bound)
            clock, start = world.backends[self.rank].clock, operation.post
            assert start is not None

            def slowly() -> Wait:
                clock.advance(post(self.rank))
                return start()

            return Operation(operation.call, slowly)

    def durations(_rank: int, index: int, _case: Case) -> int:
        return 5_000 if index < BALANCED else 10_000

    world = FakeWorld(2, Script(durations=durations, post_ns=0))
    (group,) = measured(world, timed("all_reduce", "overlap"), wrap=SlowPost).groups
    overlap = require(group.overlap)
    assert set(overlap.post_ns) == {5_000}
    assert set(overlap.wait_ns) == {5_000}, "of rank 0, which computes for 10 µs of the 15 until both have finished"
    assert set(overlap.exposed_ns) == {5_000}, "and not 10 µs"
    assert set(overlap.pure_ns) == {15_000}


class BusyWork(FakeWork):
    """Computation whose unit takes ``unit_ns(number, units)`` on its ``number``-th time, on every rank."""

    def __init__(self, clock: FakeClock, unit_ns: Callable[[int, int], float]) -> None:
        super().__init__(clock)
        self._now, self._of, self._done = clock, unit_ns, 0

    def do(self, units: int) -> None:
        self._now.advance(round(units * self._of(self._done, units)))
        self._done += 1


def beside(
    unit_ns: Callable[[int, int], float], durations: Callable[[int, int, Case], int] = lambda *_: 10_000, ranks: int = 2
) -> tuple[OverlapSamples, FakeWorld]:
    world = FakeWorld(ranks, Script(durations=durations))
    made = measured(world, timed("all_reduce", "overlap", ranks), computing=lambda clock: BusyWork(clock, unit_ns))
    (group,) = made.groups
    assert group.overlap is not None
    return group.overlap, world


@pytest.mark.parametrize("times", [0.02, 0.5, 2.0, 50.0])
def test_an_amount_that_was_found_on_a_busy_machine_is_set_anew(times: float) -> None:
    """The first 20 tries, by which a unit is known at first, are of a machine that was slower or faster."""
    overlap, _ = beside(lambda number, _units: 100 * (times if number < 20 else 1))
    assert 8_000 <= overlap.compute_alone_ns <= 12_500
    assert set(overlap.compute_ns) == {overlap.compute_alone_ns}
    assert set(overlap.pure_ns) == {10_000}


@pytest.mark.parametrize("times", [0.02, 50])
def test_the_amount_goes_by_the_call_as_it_is_sampled_and_not_by_its_warm_up(times: float) -> None:
    overlap, _ = beside(lambda *_: 100, lambda _rank, index, _case: round(10_000 * (times if index < WARM else 1)))
    assert overlap.compute_alone_ns == 10_000


def test_what_a_computation_takes_alone_is_looked_at_again_after_the_samples() -> None:
    before = 20 + 20 + 20 + 20 + QUICK.min_samples
    overlap, _ = beside(lambda number, _units: 100 if number < before else 300)
    assert set(overlap.compute_ns) == {10_000}
    assert overlap.compute_alone_ns == 20_000, "the median over 20 tries before and 20 after"


def test_an_amount_that_never_fits_ends_the_search_alike_on_all_ranks() -> None:
    """Little computation is fast and much is slow, so that every step is too far."""
    overlap, world = beside(lambda _number, units: 10 if units < 50 else 1_000, ranks=3)
    assert overlap.compute_alone_ns == 1_000 * 1_000
    assert len({backend.calls for backend in world.backends}) == 1
    calls = MOST_CALIBRATIONS * 20 + len(overlap.pure_ns)
    assert world.backends[0].calls == WARM + 2 * calls + 1


def test_ranks_that_sit_out_come_to_both_starts_of_an_overlap() -> None:
    made = measured(FakeWorld(4), timed("all_reduce", "overlap", 4, group="1,2"))
    (group,) = made.groups
    assert group.ranks == (1, 2)
    assert set(require(group.overlap).pure_ns) == {1_000}


def test_every_post_is_waited_for_and_starts_in_turns() -> None:
    events: list[str] = []
    clock = FakeClock()

    def post() -> Wait:
        events.append("post")
        clock.advance(1)
        return lambda: events.append("wait")

    backend = FakeWorld(1).backends[0]
    loop = Loop(backend, clock, iter(()), lambda: events.append("start"))
    take_overlapped(loop, itertools.repeat(post), lambda: events.append("compute"), 3)
    assert events == ["start", "post", "wait", "start", "post", "compute", "wait"] * 3


class CannotPost(WrappingBackend):
    def bind(self, bound: Bound) -> Operation:
        operation = self.inner.bind(bound)
        return Operation(operation.call, None if self.rank == 1 else operation.post)


def test_an_op_that_one_rank_cannot_post_is_a_failed_case_for_all() -> None:
    for outcome in measure_everywhere(FakeWorld(3), timed("all_gather", "overlap", 3), wrap=CannotPost):
        assert isinstance(outcome, Failed)
        assert "all_gather" in outcome.error


class WrongWhenPosted(WrappingBackend):
    """Right data from a call, wrong ones from what was posted and waited for."""

    def bind(self, bound: Bound) -> Operation:
        operation = self.inner.bind(bound)
        start = require(operation.post)

        def post() -> Wait:
            wait = start()

            def wrongly() -> None:
                wait()
                bound.receive[-1] += 1

            return wrongly

        return Operation(operation.call, post)


@pytest.mark.parametrize(("mode", "fails"), [("isolated", False), ("overlap", True)])
def test_wrong_data_of_the_posted_path_alone_fail_the_case_that_posts(mode: Mode, *, fails: bool) -> None:
    for outcome in measure_everywhere(FakeWorld(2), timed("all_gather", mode), wrap=WrongWhenPosted):
        assert isinstance(outcome, Failed) == fails
        assert not isinstance(outcome, Failed) or outcome.error.startswith("wrong data before timing")


# --- all modes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (timed("all_reduce", "pipelined", cache="flushed"), "flushed"),
        (timed("all_reduce", "pipelined", sync="none"), "already"),
        (timed("all_reduce", "graph"), "graph"),
        (case("all_reduce", 64, 2, pre_enqueue=True), "--pre-enqueue"),
    ],
)
def test_what_cannot_be_timed_so_is_refused(setting: Case, said: str) -> None:
    assert said in str(skip_reason(setting, FakeWorld(2).backends[0], HERE))


@pytest.mark.parametrize("cache", ["warm", "rotating", "flushed"])
@pytest.mark.parametrize("mode", ["isolated", "pipelined", "overlap"])
def test_ranks_agree_in_every_mode(mode: Mode, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block, "last_level_cache_bytes", lambda: 1 << 10)
    if mode == "pipelined" and cache == "flushed":
        return
    script = Script(durations=noisy(4, 0.3, 200_000))
    made = measured(FakeWorld(3, script), timed("all_gather", mode, 3, cache=cache), quick(max_samples=12))
    assert len(made.groups[0].slowest_ns) >= QUICK.least_samples


# --- the harness itself ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cost", [0, 60, 4_321])
def test_an_empty_call_costs_the_clock_and_nothing_else(cost: int) -> None:
    backend = FakeWorld(1).backends[0]
    assert empty_call_ns(backend, FakeClock(read_cost_ns=cost), samples=10) == cost
    assert empty_call_ns(backend, FakeClock(read_cost_ns=cost), row=20, samples=10) == round(cost / 20)


def test_samples_in_which_the_core_was_lost_are_marked_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two counts a sample: one when it comes to the start, one when it has left."""
    counts = iter([0, 0, 5, 5, 5, 7, 7, 7])
    monkeypatch.setattr(loops, "switches", lambda: next(counts))
    clock = FakeClock()
    loop = Loop(FakeWorld(1).backends[0], clock, itertools.repeat(lambda: clock.advance(10)), lambda: None)
    taken = loops.take(loop, 4)
    assert taken.switched.tolist() == [0, 0, 1, 0], "what was lost between samples is lost to nobody"
    assert (taken.exits - taken.entries).tolist() == [10] * 4
