"""Sampling on a device, over a stream whose every nanosecond is scripted: what is in a sample and what is not."""

from collections.abc import Callable
from itertools import repeat
from typing import Any

import numpy as np
import pytest
from testing.blocks import failures, measure_everywhere
from testing.devices import DeviceScript, FakeDevice
from testing.fakes import FakeBackend, FakeClock, FakeWorld, Script
from testing.narrow import require
from testing.synthetic import case

from busbw.backends.base import Bound, Operation
from busbw.errors import BackendError
from busbw.measure import loops
from busbw.measure.loops import DeviceWork, Hold, Loop, Overlapped, captured, empty_call_ns
from busbw.measure.loops import take_on_device as take
from busbw.measure.loops import take_overlapped_on_device as take_overlapped
from busbw.runs.records import Cache, Case, Measurement, Mode

pytestmark = pytest.mark.usefixtures("lines_recorded")

LAUNCH, REPLAY, WAIT, UNIT, FLUSH = 4_000, 6_000, 700, 100, 20_000
CALL, POST = 10_000, 200
DEVICE = DeviceScript(launch_ns=LAUNCH, replay_ns=REPLAY, wait_ns=WAIT, unit_ns=UNIT, flush_ns=FLUSH)


def world(ranks: int = 2, device: DeviceScript = DEVICE, call_ns: int = CALL) -> FakeWorld:
    return FakeWorld(ranks, Script(durations=lambda _rank, _number, _case: call_ns, post_ns=POST, device=device))


def one_case(
    mode: Mode = "isolated", *, pre_enqueue: bool = False, cache: Cache = "warm", size_bytes: int = 64, ranks: int = 2
) -> Case:
    return case("all_reduce", size_bytes, ranks, device="cuda", mode=mode, pre_enqueue=pre_enqueue, cache=cache)


def measured(over: FakeWorld, case: Case) -> Measurement:
    rows = []
    for outcome in measure_everywhere(over, case):
        assert isinstance(outcome, Measurement), outcome
        rows.append(outcome)
    assert all(row.groups == rows[0].groups for row in rows)
    return rows[0]


def only(vector: tuple[int, ...] | None) -> int:
    """The value of a vector that has but one."""
    assert vector is not None
    (value,) = set(vector)
    return value


def bound(over: FakeWorld) -> tuple[FakeBackend, FakeDevice, Operation]:
    """The one rank of a world with an operation, for the loops alone."""
    backend = over.backends[0]
    assert backend.stream is not None
    send, receive = backend.allocate(16, "float32"), backend.allocate(16, "float32")
    return backend, backend.stream, backend.bind(Bound(one_case(ranks=1), send, receive))


def nothing() -> None:
    pass


def loop_of(backend: FakeBackend, operation: Operation, calls: int = 1) -> Loop:
    return Loop(backend, backend.clock, repeat(operation.call), nothing, calls_per_sample=calls)


# --- what is in a sample ---------------------------------------------------------------------------------------


def test_a_call_on_its_own_is_timed_by_the_host_with_launch_and_wait_and_the_device_stands_beside() -> None:
    (group,) = measured(world(), one_case()).groups
    assert group.timed_by == "host"
    assert only(group.slowest_ns) == LAUNCH + CALL + WAIT
    assert only(group.other_clock_ns) == LAUNCH + CALL, "a stream that has nothing to do waits for the launch"


def test_holding_the_stream_leaves_the_launch_out() -> None:
    (group,) = measured(world(), one_case(pre_enqueue=True)).groups
    assert group.timed_by == "device", "the host's time has the hold in it"
    assert only(group.slowest_ns) == CALL
    assert group.missed == ()
    hold = loops._LEAST_HOLD_NS + 2 * (LAUNCH + LAUNCH)  # twice what handing over the hold and the call took
    assert only(group.other_clock_ns) == LAUNCH + hold + CALL + WAIT


@pytest.mark.parametrize("call_ns", [CALL, LAUNCH // 4])
def test_a_row_of_held_calls_lasts_as_long_as_its_calls_however_short_they_are(call_ns: int) -> None:
    made = measured(world(call_ns=call_ns), one_case("pipelined", pre_enqueue=True))
    (group,) = made.groups
    assert made.calls >= 10
    assert group.timed_by == "device"
    assert only(group.slowest_ns) == made.calls * call_ns


def test_a_row_that_is_not_held_has_its_first_launch_in_it_or_all_where_launching_takes_longer() -> None:
    long = measured(world(), one_case("pipelined"))
    assert only(long.groups[0].slowest_ns) == LAUNCH + long.calls * CALL
    assert only(long.groups[0].other_clock_ns) == LAUNCH + long.calls * CALL + WAIT
    short = measured(world(call_ns=1_000), one_case("pipelined"))
    assert only(short.groups[0].slowest_ns) == short.calls * LAUNCH + 1_000


def test_a_graph_is_launched_once_however_many_calls_it_has() -> None:
    over = world(call_ns=1_000)
    made = measured(over, one_case("graph"))
    (group,) = made.groups
    assert group.timed_by == "device"
    assert only(group.slowest_ns) == REPLAY + made.calls * 1_000
    held = measured(world(call_ns=1_000), one_case("graph", pre_enqueue=True))
    assert only(held.groups[0].slowest_ns) == held.calls * 1_000
    assert made.check.state == "verified"
    device = require(over.backends[0].stream)
    assert device.log.count("replay") >= len(group.slowest_ns)


def test_rows_are_as_many_calls_as_fill_a_millisecond_of_the_device() -> None:
    made = measured(world(), one_case("pipelined", pre_enqueue=True))
    assert made.calls == 1_000_000 // CALL


def test_a_sample_shorter_than_the_device_can_tell_is_not_nothing() -> None:
    coarse = DeviceScript(launch_ns=0, clock_ns=512)
    (group,) = measured(world(device=coarse, call_ns=1), one_case(pre_enqueue=True, cache="flushed")).groups
    assert set(group.slowest_ns) <= {1, 512}


def test_samples_outlast_the_resolution_of_the_clock_that_times_them() -> None:
    coarse = DeviceScript(clock_ns=500)
    held = measured(world(device=coarse), one_case(pre_enqueue=True))
    assert held.calls * CALL >= 100 * coarse.clock_ns
    assert measured(world(device=coarse), one_case()).calls == 1, "by the host's clock"


# --- holding ---------------------------------------------------------------------------------------------------


def test_a_hold_that_ended_too_soon_is_noted_and_the_next_one_is_longer() -> None:
    backend, device, operation = bound(world(1))
    hold = Hold()
    hold.ns = 1_000
    first = take(loop_of(backend, operation, 10), device, 3, hold)
    assert require(first.unheld).tolist() == [1, 1, 1]
    hold.ns = hold.wanted_ns(10)
    assert hold.ns == loops._LEAST_HOLD_NS + 2 * 11 * LAUNCH
    second = take(loop_of(backend, operation, 10), device, 3, hold)
    assert require(second.unheld).tolist() == [0, 0, 0]
    assert require(second.device_ns).tolist() == [10 * CALL] * 3


def test_calls_that_wait_for_the_end_of_the_hold_do_not_make_it_longer_without_end() -> None:
    """A stream takes some 1000 launches ahead: from then on the host waits, and each hold would double the next one."""
    hold, calls, ahead, launch_ns = Hold(), 2_000, 1_000, 4_000
    for _ in range(12):
        hold.ns = hold.wanted_ns(calls)
        assert hold.ns <= 50_000_000
        waited_for = max(ahead * launch_ns, hold.ns)
        hold.learn(waited_for + (calls - ahead) * launch_ns, calls)
    assert hold.ns > 2 * ahead * launch_ns, "what can be held is"


def test_samples_that_were_not_held_are_among_those_that_were_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "_LEAST_HOLD_NS", 1)
    monkeypatch.setattr(loops, "_SLACK", 0.0)
    (group,) = measured(world(), one_case("pipelined", pre_enqueue=True)).groups
    assert group.missed == tuple(range(len(group.slowest_ns)))


def test_all_ranks_hold_for_as_long_as_the_slowest_needs() -> None:
    over = world(3)
    for backend in over.backends:
        require(backend.stream).script = DeviceScript(launch_ns=LAUNCH * (1 + backend.rank), wait_ns=WAIT)
    (group,) = measured(over, one_case("pipelined", pre_enqueue=True, ranks=3)).groups
    assert group.missed == ()
    # The holds are handed over one launch of each rank after the barrier, and last equally long.
    assert set(group.slowest_ns) == {group.fastest_ns[0] + 2 * LAUNCH}


# --- what is not in a sample -----------------------------------------------------------------------------------


def test_the_cache_is_flushed_and_done_with_before_a_sample_starts() -> None:
    over = world()
    (group,) = measured(over, one_case(cache="flushed")).groups
    assert only(group.slowest_ns) == LAUNCH + CALL + WAIT, "as long as with warm caches here: the flush is not in it"
    device = require(over.backends[0].stream)
    first = device.log.index("flush")
    samples = (len(device.log) - first) // 4
    assert device.log[first : first + 4 * (samples - 1)] == ["flush", "wait", "call", "wait"] * (samples - 1)


def test_rotating_buffers_are_as_many_as_sweep_the_cache_of_the_device() -> None:
    size = DEVICE.cache_bytes // 8
    made = measured(world(), one_case("pipelined", cache="rotating", size_bytes=size))
    assert made.buffer_sets == 16


def test_graphs_of_rotating_buffers_use_all_of_them() -> None:
    calls: list[int] = []
    device = FakeDevice(DEVICE, lambda: 0, lambda _ns: None)

    def call(number: int) -> Callable[[], None]:
        return lambda: device.hand_over("call", lambda begins: (calls.append(number), begins)[1])  # type: ignore[func-returns-value]

    replays = captured(device, [call(number) for number in range(5)], 2)
    for _ in range(4):
        next(replays)()
    assert calls == [0, 1, 2, 3, 4, 0, 0, 1]


# --- overlap ---------------------------------------------------------------------------------------------------


def overlapped(
    units: int, *, pre_enqueue: bool = True, slowed: float = 1.0, lazy: bool = False
) -> tuple[Overlapped, float]:
    """The parts of samples of a call of CALL ns beside ``units`` of work, and what of the call they hide, %."""
    backend, device, operation = bound(world(1, DeviceScript(LAUNCH, REPLAY, WAIT, UNIT, slowed, lazy)))
    work = DeviceWork(device)
    assert set(work.tries_ns(backend.clock, units, 3)) == {units * UNIT}, "handing it over is not in it"
    assert operation.post is not None
    loop, hold = loop_of(backend, operation), Hold() if pre_enqueue else None
    samples = take_overlapped(loop, device, repeat(operation.post), lambda: work.do(units), 3, hold)
    parts = require(samples.overlapped)
    assert np.array_equal(require(samples.device_ns), parts.post + parts.compute + parts.wait)
    return parts, 100 * (1 - float((parts.post + parts.wait)[0]) / float(parts.pure[0]))


def values(parts: Overlapped) -> tuple[int, ...]:
    return tuple(only(tuple(part.tolist())) for part in (parts.pure, parts.post, parts.compute, parts.wait))


@pytest.mark.parametrize(
    ("units", "how", "parts", "percent"),
    [
        (CALL // UNIT, {}, (CALL, 0, CALL, 0), 100),
        (CALL // UNIT, {"lazy": True}, (CALL, 0, CALL, CALL), 0),  # it begins when it is waited for
        (CALL // UNIT, {"slowed": 2.0}, (CALL, 0, 2 * CALL, 0), 100),  # all is hidden, and what that costs is seen
        (40, {}, (CALL, 0, 4_000, CALL - 4_000), 40),
    ],
)
def test_what_of_a_call_a_computation_hides(
    units: int, how: dict[str, Any], parts: tuple[int, ...], percent: float
) -> None:
    overlap, hides = overlapped(units, **how)
    assert values(overlap) == parts
    assert hides == pytest.approx(percent)


def test_posting_costs_the_host_and_that_is_kept_beside_the_device() -> None:
    parts, _ = overlapped(CALL // UNIT, pre_enqueue=False)
    assert values(parts) == (POST + CALL, POST, LAUNCH + CALL, 0)
    assert only(tuple(require(parts.host_post).tolist())) == POST


def test_caches_are_flushed_before_the_call_alone_and_before_the_one_beside_work() -> None:
    over = world()
    (group,) = measured(over, one_case("overlap", cache="flushed")).groups
    assert only(require(group.overlap).pure_ns) == POST + CALL
    device = require(over.backends[0].stream)
    sample = ["flush", "wait", "post", "wait", "flush", "wait", "post", "compute", "wait"]
    check = ["wait", "post", "wait"]
    last = len(device.log) - device.log[::-1].index("flush") + sample[::-1].index("flush")
    assert device.log[last - len(sample) : last] == sample
    assert set(device.log[last : -len(check)]) == {"compute", "wait", "hold"}, "the computation alone once more"
    assert device.log[-len(check) :] == check


def test_an_overlapped_case_is_measured_and_stored_with_its_parts() -> None:
    made = measured(world(3), one_case("overlap", ranks=3))
    (group,) = made.groups
    assert made.check.state == "verified"
    assert group.timed_by == "device"
    assert group.overlap is not None
    assert only(group.overlap.host_post_ns) == POST
    assert group.overlap.compute_alone_ns % UNIT == 0
    assert only(group.overlap.compute_ns) == LAUNCH + group.overlap.compute_alone_ns
    assert only(group.overlap.exposed_ns) == only(group.overlap.post_ns) + only(group.overlap.wait_ns)
    assert only(group.slowest_ns) == only(group.overlap.compute_ns) + only(group.overlap.exposed_ns)


# --- what must not pass in silence -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["isolated", "pipelined", "graph", "overlap"])
@pytest.mark.parametrize("pre_enqueue", [False, True])
def test_ranks_that_sit_out_bring_the_same_columns(mode: Mode, pre_enqueue: bool) -> None:  # noqa: FBT001
    planned = case("all_reduce", 64, 4, device="cuda", mode=mode, pre_enqueue=pre_enqueue, group="1,2")
    made = measured(world(4), planned)
    assert [group.ranks for group in made.groups] == [(1, 2)]
    assert made.check.state == "verified"


def test_calls_that_cannot_be_captured_fail_the_case_and_not_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_device: FakeDevice, _calls: object) -> Callable[[], object]:
        message = "operation not permitted when stream is capturing"
        raise BackendError(message)

    monkeypatch.setattr(FakeDevice, "capture", refuse)
    assert failures(world(), one_case("graph")) == {"backend"}


@pytest.mark.parametrize("mode", ["graph", "overlap"])
def test_what_needs_a_capture_where_one_broke_off_before_fails_and_the_run_does_not(mode: Mode) -> None:
    over = world(3)
    stream = require(over.backends[1].stream)
    stream.uncapturable = "a capture broke off"
    assert failures(over, one_case(mode, ranks=3)) == {"backend"}


def test_an_error_of_the_device_is_one_of_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    backend, device, operation = bound(world(1))

    def broken() -> None:
        message = "an illegal memory access was encountered"
        raise BackendError(message)

    monkeypatch.setattr(device, "synchronise", broken)
    with pytest.raises(BackendError, match="illegal"):
        take(loop_of(backend, operation), device, 1)


# --- the harness itself ----------------------------------------------------------------------------------------


def test_the_cost_of_the_loop_is_that_of_waiting_for_a_device_that_has_nothing_to_do() -> None:
    backend = world(1).backends[0]
    assert empty_call_ns(backend, backend.clock, samples=10) == WAIT
    assert empty_call_ns(backend, backend.clock, row=100, samples=10) == WAIT // 100


def test_without_a_device_it_is_that_of_the_loop_of_the_host() -> None:
    backend = FakeWorld(1).backends[0]
    assert empty_call_ns(backend, FakeClock(read_cost_ns=30), samples=10) == 30


def test_the_first_row_is_taken_to_estimate_and_is_no_sample() -> None:
    over = world()
    made = measured(over, one_case("pipelined"))
    checks, singles, rows = 2, 1 + made.warmup_calls, 1 + len(made.groups[0].slowest_ns)
    assert over.backends[0].calls == checks + singles + rows * made.calls


def test_buffers_are_filled_before_the_first_call_is_timed() -> None:
    over = world()
    made = measured(over, one_case())
    device = require(over.backends[0].stream)
    assert device.log[:3] == ["wait", "call", "wait"]
    assert made.first_call_ns == LAUNCH + CALL + WAIT
