"""What a host was doing during a block, from scripted looks at it."""

import psutil
import pytest
from testing.blocks import measured
from testing.fakes import FakeBackend, FakeWorld
from testing.synthetic import case

from busbw.measure.interference import InterferenceMonitor, Reading, look
from busbw.runs.records import HostConditions

CORES = 4
BEFORE = Reading(at=100.0, counted=1_000.0, busy=500.0, stolen=3.0, own=7.0, switches=40, load=0.5, mhz=2_000.0)


@pytest.fixture(autouse=True)
def _four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda: CORES)


def after(seconds: float, busy: float, own: float, **changes: float) -> Reading:
    """What is seen ``seconds`` later, when so many CPU seconds were spent by anybody and by this rank."""
    seen = {
        "counted": BEFORE.counted + CORES * seconds,
        "stolen": BEFORE.stolen,
        "switches": BEFORE.switches,
        "load": BEFORE.load,
        "mhz": BEFORE.mhz,
    } | changes
    return Reading(
        at=BEFORE.at + seconds,
        counted=seen["counted"],
        busy=BEFORE.busy + busy,
        stolen=seen["stolen"],
        own=BEFORE.own + own,
        switches=int(seen["switches"]),
        load=seen["load"],
        mhz=seen["mhz"],
    )


def watched(hosts: tuple[str, ...], *looks: Reading, before: Reading = BEFORE) -> tuple[HostConditions, ...]:
    """What all ranks are told, when rank r sees ``before`` first and ``looks[r]`` in the end."""

    def work(backend: FakeBackend) -> tuple[HostConditions, ...]:
        seen = iter([before, looks[backend.rank]])
        return InterferenceMonitor(backend, hosts, lambda: next(seen)).ended()

    (first, *others) = FakeWorld(len(hosts)).run(work)
    assert isinstance(first, tuple)
    assert others == [first] * len(others)
    return first


def test_shares_are_of_all_cores_and_foreign_is_what_the_ranks_did_not_use() -> None:
    looks = [
        after(2.0, busy=4.0, own=1.0, stolen=3.4, switches=45, load=1.5, mhz=2_600.0),
        after(2.0, busy=9.9, own=1.4, switches=40),
        after(5.0, busy=5.0, own=5.0, switches=41, mhz=0.0),
    ]
    first, second = watched(("a", "a", "b"), *looks)
    assert first == HostConditions(
        host="a",
        load_before=0.5,
        load_after=1.5,
        busy_share=4.0 / 8.0,
        foreign_share=(4.0 - 1.0 - 1.4) / 8.0,
        steal_share=0.05,
        switches=(5, 0),
        mhz_before=2_000.0,
        mhz_after=2_600.0,
    )
    assert (second.host, second.busy_share, second.foreign_share, second.switches) == ("b", 0.25, 0.0, (1,))
    assert second.mhz_after is None, "0 MHz is what the kernel does not tell"


def test_a_block_too_short_for_ticks_has_no_shares() -> None:
    (short,) = watched(("a",), after(0.12, busy=0.1, own=0.1))
    assert (short.busy_share, short.foreign_share, short.steal_share) == (None, None, None)
    (long,) = watched(("a",), after(0.13, busy=0.1, own=0.1))
    assert long.busy_share is not None


def test_a_kernel_that_counts_nothing_is_not_taken_for_an_idle_one() -> None:
    (sandbox,) = watched(("a",), after(2.0, busy=0.0, own=1.0, counted=BEFORE.counted))
    assert (sandbox.busy_share, sandbox.foreign_share, sandbox.steal_share) == (None, None, None)


def test_ticks_that_are_short_of_our_own_time_leave_nothing_for_others() -> None:
    (host,) = watched(("a",), after(2.0, busy=0.99, own=1.0))
    assert host.foreign_share == 0.0


def test_a_real_look_only_goes_up() -> None:
    first, second = look(), look()
    assert second.at >= first.at
    assert second.counted >= second.busy > 0
    assert second.own >= first.own
    assert second.switches >= first.switches


def test_a_block_carries_the_conditions_of_every_host() -> None:
    made = measured(FakeWorld(3), case("all_reduce", 64, 3))
    assert [(host.host, len(host.switches)) for host in made.conditions] == [("here", 3)]
