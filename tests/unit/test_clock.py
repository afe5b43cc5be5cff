"""Clocks: the host's is the one that was asked for, and what a read costs is found without subtracting it."""

import time
from types import SimpleNamespace

import pytest
from testing.fakes import FakeClock

from busbw.errors import ClockError
from busbw.measure.clock import HostClock, read_cost_ns


def test_the_host_clock_never_runs_backwards() -> None:
    clock = HostClock()
    reads = [clock.now_ns() for _ in range(1000)]
    assert reads == sorted(reads)


@pytest.mark.parametrize(
    ("monotonic", "implementation"), [(False, "clock_gettime(CLOCK_MONOTONIC)"), (True, "QueryPerformanceCounter()")]
)
def test_another_clock_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, *, monotonic: bool, implementation: str
) -> None:
    facts = SimpleNamespace(monotonic=monotonic, implementation=implementation)
    monkeypatch.setattr(time, "get_clock_info", lambda _name: facts)
    with pytest.raises(ClockError, match=r"wants|needs") as caught:
        HostClock()
    assert implementation in str(caught.value)


@pytest.mark.parametrize("cost", [0, 1, 65])
def test_the_cost_of_a_read_is_the_median_distance_of_reads(cost: int) -> None:
    assert read_cost_ns(FakeClock(read_cost_ns=cost)) == cost


def test_a_clock_in_steps_costs_a_step() -> None:
    """Most reads of it would seem to cost nothing, and short calls to take no time."""

    class Stepping(FakeClock):
        def now_ns(self) -> int:
            return super().now_ns() // 1000 * 1000

    assert read_cost_ns(Stepping(read_cost_ns=70)) == 1000


def test_rare_interruptions_do_not_change_the_cost() -> None:
    class Interrupted(FakeClock):
        reads = 0

        def now_ns(self) -> int:
            self.reads += 1
            if self.reads % 100 == 0:
                self.advance(1_000_000)
            return super().now_ns()

    assert read_cost_ns(Interrupted(read_cost_ns=70)) == 70
