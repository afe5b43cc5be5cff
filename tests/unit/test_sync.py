"""How ranks come together before a sample: what each policy costs in messages, and that it keeps its word."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from testing.blocks import measured, quick
from testing.fakes import QUICK, FakeBackend, FakeWorld, Script
from testing.narrow import require
from testing.synthetic import case

from busbw.backends.base import Bound, Operation
from busbw.backends.faults import WrappingBackend
from busbw.measure.clock import CommonClock
from busbw.measure.sync import SYNCHRONIZERS, WindowSync
from busbw.measure.unsupported import Place, skip_reason
from busbw.runs.records import Case, Mode, Sync

WARM = 1 + 1 + QUICK.warmup_calls
READ_NS = 10
BATCHES = 3  # the call that tells the pace, those that warm up, and one of samples
CHECKS = 2
CALIBRATIONS = 2  # of the computation beside a call: by a guess, and by what is found then
CALIBRATION_SAMPLES = 20


def started(sync: Sync, **changes: object) -> Case:
    return case("all_reduce", 64, 3, sync=sync, **changes)


def on_all(world: FakeWorld, work: Callable[[FakeBackend], object]) -> list[object]:
    outcomes: list[object] = list(world.run(work))
    for outcome in outcomes:
        assert not isinstance(outcome, Exception), outcome
    return outcomes


def one_clock(backend: FakeBackend) -> CommonClock:
    return CommonClock(backend, backend.clock, ("one",) * backend.size)


# --- none and barrier ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sync", "barriers_a_batch", "barriers_a_sample"),
    [("none", 1, 0), ("barrier", 0, 1), ("dissemination", 0, 0), ("window", 0, 0)],
)
@pytest.mark.parametrize("mode", ["isolated", "overlap"])
def test_barriers_are_where_the_policy_wants_them(
    sync: Sync, mode: Mode, barriers_a_batch: int, barriers_a_sample: int
) -> None:
    world = FakeWorld(3, Script(read_cost_ns=READ_NS))
    samples = len(measured(world, started(sync, mode=mode)).groups[0].slowest_ns)
    overlaps = mode == "overlap"
    batches = BATCHES + (CALIBRATIONS if overlaps else 0)
    starts = (samples + CALIBRATIONS * CALIBRATION_SAMPLES) * 2 if overlaps else samples
    before_work = CALIBRATIONS + 1 if overlaps else 0
    assert {backend.barriers for backend in world.backends} == {
        CHECKS + before_work + barriers_a_batch * batches + barriers_a_sample * (1 + QUICK.warmup_calls + starts)
    }


@pytest.mark.parametrize(("sync", "apart_ns"), [("none", 50), ("barrier", 0)])
def test_without_a_barrier_ranks_run_apart_and_it_is_seen(sync: Sync, apart_ns: int) -> None:
    """Nobody waits in this op: the rank whose calls are longer falls behind, sample by sample."""
    script = Script(durations=lambda rank, *_: 1_000 + 50 * rank)
    made = measured(FakeWorld(2, script), case("memory_copy", 64, 2, sync=sync))
    skews = made.groups[0].arrival_skew_ns or ()
    assert skews == tuple(number * apart_ns for number in range(len(skews)))


# --- dissemination ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", range(1, 10))
def test_everyone_leaves_a_dissemination_after_the_last_came(size: int) -> None:
    def came(rank: int) -> int:
        return (rank * 7919) % 10_007

    def work(backend: FakeBackend) -> tuple[int, int]:
        start = SYNCHRONIZERS["dissemination"](backend, one_clock(backend))
        start.begin(1, 0)
        backend.clock.advance(came(backend.rank))
        start()
        return backend._true_ns() - 1_000_000_000, backend._sent

    rounds = (size - 1).bit_length()
    assert rounds == int(np.ceil(np.log2(size)))
    world = FakeWorld(size, Script(latency_ns=lambda *_: 100))
    for outcome in on_all(world, work):
        assert isinstance(outcome, tuple)
        left, sent = outcome
        assert sent == rounds
        assert left >= max(map(came, range(size)))
        assert left <= max(map(came, range(size))) + 100 * rounds


# --- windows ---------------------------------------------------------------------------------------------------


def windows(backend: FakeBackend, lasts_ns: Callable[[int, int], int], batches: Sequence[int]) -> list[object]:
    """The lengths of the windows of some batches, and which of them were missed here."""
    start = WindowSync(backend, one_clock(backend))
    outcomes: list[object] = []
    for number, count in enumerate(batches):
        start.begin(count, 1_000)
        length = set(np.diff(start._opens).tolist())
        for _ in range(count):
            start()
            backend.clock.advance(lasts_ns(backend.rank, number))
        outcomes.append((length, start.missed()))
    return outcomes


def test_windows_become_twice_as_long_for_all_when_a_rank_missed_more_than_a_quarter() -> None:
    world = FakeWorld(2, Script(read_cost_ns=READ_NS))
    quiet, slow = on_all(
        world, lambda backend: windows(backend, lambda rank, batch: 2_000 if (rank, batch) == (1, 0) else 100, (8,) * 3)
    )
    assert quiet == [({1_500}, []), ({3_000}, []), ({3_000}, [])]
    assert slow == [({1_500}, list(range(1, 8))), ({3_000}, []), ({3_000}, [])]


def test_windows_that_were_missed_now_and_then_stay_as_they_are() -> None:
    def work(backend: FakeBackend) -> list[object]:
        turns = iter([2_000, *[100] * 100])
        return windows(backend, lambda *_: next(turns), (8, 8))

    (outcomes,) = on_all(FakeWorld(1, Script(read_cost_ns=READ_NS)), work)
    assert outcomes == [({1_500}, [1]), ({1_500}, [])]


def test_windows_follow_the_pace_of_what_they_are_for() -> None:
    def work(backend: FakeBackend) -> list[int]:
        start = WindowSync(backend, one_clock(backend))
        lengths = []
        for pace in (1_000, 20_000):
            start.begin(2, pace)
            lengths.append(int(np.diff(start._opens)[0]))
        return lengths

    assert on_all(FakeWorld(1, Script(read_cost_ns=READ_NS)), work) == [[1_500, 30_000]]


class TrulyEntering(WrappingBackend):
    """Notes when this rank truly enters a call, whatever its clock says."""

    entered: list[int]

    def bind(self, bound: Bound) -> Operation:
        call, inner, entered = self.inner.bind(bound).call, self.inner, self.entered
        assert isinstance(inner, FakeBackend)

        def noting() -> None:
            entered.append(inner._true_ns())
            call()

        return Operation(noting)


@given(offsets=st.tuples(st.integers(-(10**9), 10**9), st.integers(-(10**9), 10**9)), late=st.integers(0, 20_000))
@settings(deadline=None, max_examples=10)
def test_clocks_that_are_apart_open_their_windows_together(offsets: tuple[int, int], late: int) -> None:
    """However late a rank was in the call before, all enter the next one within a read of the clock or two."""
    entered: list[list[int]] = [[], [], []]

    def noting(backend: FakeBackend) -> TrulyEntering:
        wrapped = TrulyEntering(backend)
        wrapped.entered = entered[backend.rank]
        return wrapped

    script = Script(
        durations=lambda rank, *_: 50_000 + (late if rank == 1 else 0), read_cost_ns=500, offsets_ns=(0, *offsets)
    )
    made = measured(FakeWorld(3, script), started("window"), domains=("a", "b", "c"), wrap=noting)
    bound = require(made.clock_error_ns)
    truth = np.asarray(entered)[:, WARM:-1]
    assert (truth.max(axis=0) - truth.min(axis=0) <= 2_000).all()
    assert made.groups[0].missed == ()
    assert max(made.groups[0].arrival_skew_ns or ()) <= 2_000 + bound


def test_windows_that_are_missed_are_noted_and_their_samples_kept() -> None:
    def script(slow_ns: int) -> Script:
        def durations(_rank: int, index: int, _case: Case) -> int:
            return slow_ns if index == WARM + 3 else 10_000

        return Script(durations=durations, read_cost_ns=500)

    pace = quick(min_samples=20, least_samples=20)
    (usual,) = measured(FakeWorld(3, script(10_000)), started("window"), pace).groups
    assert usual.missed == ()
    entries = require(usual.per_rank[0].entries_ns)
    (length,) = {round(apart / 500) * 500 for apart in np.diff(entries).tolist()}
    (group,) = measured(FakeWorld(3, script(int(2.5 * length))), started("window"), pace).groups
    assert group.missed == (4, 5), "the two windows that opened during the slow call"
    assert len(group.slowest_ns) == 20
    assert group.slowest_ns[3] >= 2.5 * length


def test_windows_that_turn_out_too_short_are_lengthened_before_most_are_missed() -> None:
    """The warm-up promised 10 µs a call, but then each takes 3 ms: a first batch of all would be missed whole."""

    def durations(_rank: int, index: int, _case: Case) -> int:
        return 10_000 if index < WARM else 3_000_000

    pace = quick(min_samples=200, max_samples=200)
    world = FakeWorld(3, Script(durations=durations, read_cost_ns=500))
    (group,) = measured(world, started("window"), pace).groups
    assert len(group.slowest_ns) == 200
    assert 0 < len(group.missed) < 60


@pytest.mark.parametrize("mode", ["pipelined", "overlap"])
def test_windows_are_as_long_as_what_a_mode_does_in_them(mode: Mode) -> None:
    script = Script(durations=lambda *_: 50_000, read_cost_ns=1_000)
    made = measured(FakeWorld(2, script), case("all_reduce", 64, 2, mode=mode, sync="window"))
    assert made.groups[0].missed == ()
    assert len(made.groups[0].slowest_ns) >= QUICK.least_samples


def test_a_missed_window_of_an_overlap_is_that_of_its_sample() -> None:
    """Two windows a sample: of the call alone, and of the one with computation beside it."""

    def durations(_rank: int, index: int, _case: Case) -> int:
        # Sample 2 is of the calls 4 (alone) and 5 after those that tell how much to compute. Reading the clock is in
        # what the guess takes, so that it is out by more than is allowed, and it takes one step more.
        return 10_000_000 if index == WARM + 2 * (CALIBRATIONS + 1) * CALIBRATION_SAMPLES + 4 else 10_000

    made = measured(
        FakeWorld(2, Script(durations=durations, read_cost_ns=1_000)),
        case("all_reduce", 64, 2, mode="overlap", sync="window"),
        quick(min_samples=200, max_samples=200),
    )
    missed = made.groups[0].missed
    assert missed[0] == 2
    assert missed == tuple(range(2, 2 + len(missed)))
    assert len(missed) < 190


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (Place(oversubscribed=True, comparable=True), "core"),
        (Place(oversubscribed=False, comparable=False), "synchronised"),
        (Place(oversubscribed=False, comparable=True), None),
    ],
)
def test_windows_need_a_core_for_every_rank_and_clocks_that_can_be_compared(place: Place, said: str | None) -> None:
    reason = skip_reason(started("window"), FakeWorld(3).backends[0], place)
    assert (reason is None) if said is None else (said in str(reason))
