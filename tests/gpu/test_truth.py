"""On the simulated machine every measured number is held against the number that is."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from simulated.device import State, current
from simulated.machine import EXACT, Faults
from testing.gpu import ON_GPU, REAL
from testing.gpu_timer import timer_facts
from testing.narrow import require
from testing.synthetic import case

from busbw.backends.cuda import CudaDevice
from busbw.measure import stopping
from busbw.ops.settings import HostSettings
from busbw.runs.records import Case, GroupSamples, Measurement, Mode

pytestmark = [*ON_GPU, pytest.mark.skipif(REAL, reason="the truth of a real GPU is not known")]

Measure = Callable[[Case], Measurement]
SIZE = 1 << 16
TRUTH = replace(EXACT, hbm=5e9, pcie=1e9, pageable=5e8, flops=1e10, nccl_ns=30_000)
"""Slow enough that a millisecond is some tens of calls, each of which the host executes."""


def one_case(op: str, mode: Mode = "pipelined", *, pre_enqueue: bool = True, pinning: str | None = None) -> Case:
    asked = case(op, SIZE, 1, backend="nccl", device="cuda", mode=mode, pre_enqueue=pre_enqueue)
    return asked if pinning is None else msgspec.structs.replace(asked, settings=HostSettings(pinning=pinning))  # type: ignore[arg-type]


def group_of(row: Measurement) -> GroupSamples:
    assert row.check.state == "verified"
    (group,) = row.groups
    return group


def time_of(row: Measurement) -> float:
    """Time of a call, ns: the median over the samples."""
    return float(np.median(group_of(row).slowest_ns)) / row.calls


@pytest.fixture(autouse=True)
def state() -> Iterator[State]:
    state = current()
    before, state.machine = state.machine, TRUTH
    yield state
    state.machine = before


def test_the_timer_of_a_gpu_is_told_as_it_is(state: State) -> None:
    state.machine = replace(TRUTH, tick_ns=500)
    facts = timer_facts(CudaDevice(0))
    assert facts["host_read"] == facts["event_record"] - TRUTH.event_ns == TRUTH.read_ns
    assert facts["event_steps"] == 500
    known = {"launch": TRUTH.launch_ns, "graph_launch": TRUTH.graph_launch_ns, "synchronise": TRUTH.sync_ns}
    assert {name: facts[name] - TRUTH.read_ns for name in known} == known
    assert facts["events_per_host"] == pytest.approx(1, rel=1e-3)


TRAFFIC = {"memory_copy": 2, "stream_triad": 3, "stream_add": 3, "stream_scale": 2, "memory_read": 1, "memory_write": 1}


@pytest.mark.parametrize("op", TRAFFIC)
@pytest.mark.parametrize("mode", ["pipelined", "graph"])
def test_a_kernel_takes_its_traffic_over_the_rate_of_the_memory(measured: Measure, op: str, mode: Mode) -> None:
    known = TRUTH.kernel(0, TRAFFIC[op] * SIZE)
    assert time_of(measured(one_case(op, mode))) == pytest.approx(known, rel=0.01)


def test_without_a_hold_a_short_kernel_takes_its_launch(measured: Measure) -> None:
    short = msgspec.structs.replace(one_case("memory_copy", pre_enqueue=False), size_bytes=4096)
    assert TRUTH.kernel(0, 2 * 4096) < TRUTH.launch_ns
    assert time_of(measured(short)) == pytest.approx(TRUTH.launch_ns, rel=0.01)


def test_an_isolated_call_has_its_launch_and_the_wait_for_it_and_nothing_else(measured: Measure) -> None:
    kernel = TRUTH.kernel(0, 2 * SIZE)
    group = group_of(measured(one_case("memory_copy", "isolated", pre_enqueue=False)))
    host, device = np.median(group.slowest_ns), np.median(require(group.other_clock_ns))
    assert device == pytest.approx(TRUTH.launch_ns + max(kernel, TRUTH.event_ns), abs=TRUTH.event_ns)
    known = TRUTH.launch_ns + max(kernel, TRUTH.event_ns) + TRUTH.sync_ns
    assert host == pytest.approx(known, abs=3 * TRUTH.read_ns)


@pytest.mark.parametrize(
    ("op", "pinned"), [("host_to_device", True), ("device_to_host", True), ("host_to_device", False)]
)
def test_a_copy_to_or_from_the_host_takes_the_rate_of_its_memory(measured: Measure, op: str, *, pinned: bool) -> None:
    asked = one_case(op, pinning="pinned" if pinned else "pageable", pre_enqueue=pinned)
    known = TRUTH.host_copy(0, SIZE, pinned=pinned)
    assert time_of(measured(asked)) == pytest.approx(known, rel=0.01 if pinned else 0.5)


@pytest.mark.parametrize("mode", ["pipelined", "graph"])
def test_a_collective_takes_its_time_and_no_launch(measured: Measure, mode: Mode) -> None:
    assert time_of(measured(one_case("all_reduce", mode))) == pytest.approx(TRUTH.collective((0,), 0), rel=0.01)


def test_a_collective_is_hidden_by_as_much_computation(measured: Measure) -> None:
    overlap = require(group_of(measured(one_case("all_reduce", "overlap"))).overlap)
    assert np.median(overlap.pure_ns) == pytest.approx(TRUTH.collective((0,), 0), rel=0.01)
    assert overlap.compute_alone_ns >= TRUTH.collective((0,), 0)
    assert np.median(overlap.exposed_ns) == 0


def test_of_a_collective_what_is_longer_than_the_computation_is_exposed(
    measured: Measure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stopping, "FIRST_UNITS", 2)
    monkeypatch.setattr(stopping, "balanced_units", lambda units, *_: units)
    overlap = require(group_of(measured(one_case("all_reduce", "overlap"))).overlap)
    known, computed = TRUTH.collective((0,), 0), 2 * TRUTH.kernel(0, 3 * 4 * 32 * 32, 2 * 32**3)
    assert 0 < computed < known
    assert overlap.compute_alone_ns == pytest.approx(computed, rel=0.01)
    assert np.median(overlap.exposed_ns) == pytest.approx(known - computed, rel=0.01)


def test_a_throttled_gpu_is_as_slow_as_it_is(measured: Measure, state: State) -> None:
    state.machine = replace(TRUTH, faults=Faults(slowed={0: 3.0}))
    known = TRUTH.kernel_ns + 3 * (TRUTH.kernel(0, 2 * SIZE) - TRUTH.kernel_ns)
    assert time_of(measured(one_case("memory_copy"))) == pytest.approx(known, rel=0.01)


@pytest.mark.parametrize("op", ["memory_copy", "signature"])
def test_a_kernel_that_goes_wrong_while_data_are_checked_is_no_time(measured: Measure, state: State, op: str) -> None:
    wrong = 0
    asked = one_case(op) if op == "memory_copy" else one_case(op, "isolated", pre_enqueue=False)
    for kernel in range(1, 12) if op == "memory_copy" else range(30, 60, 3):  # fillings, then the call that is checked
        state.machine = replace(TRUTH, faults=Faults(corrupted={0: state.gpus[0].kernels + kernel}))
        try:
            measured(asked)
        except AssertionError as failure:
            assert "wrong_data" in str(failure)  # noqa: PT017 - what is not wrong is measured
            wrong += 1
    assert wrong
