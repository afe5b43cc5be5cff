"""What a call finds in the caches: the buffers of the call before, other ones in turn, or nothing."""

import dataclasses
import threading
from collections import defaultdict

import pytest
from testing.blocks import failures, measured, quick
from testing.fakes import QUICK, FakeBackend, FakeWorld
from testing.narrow import require_type
from testing.synthetic import case

from busbw.backends.base import Bound, Operation
from busbw.backends.faults import WrappingBackend
from busbw.measure import block
from busbw.ops import OPS


class Noting(WrappingBackend):
    """Notes what this rank does: barriers, and calls with the number of their set of buffers."""

    def __init__(self, inner: FakeBackend) -> None:
        super().__init__(inner)
        self.events: list[str | int] = []
        self.settled: list[bool] = []
        self.sets = 0
        NOTED[threading.get_ident()] = self

    def barrier(self) -> None:
        self.events.append("barrier")
        self.inner.barrier()

    def bind(self, bound: Bound) -> Operation:
        call = self.inner.bind(bound).call
        number, self.sets = self.sets, self.sets + 1

        def noting() -> None:
            self.events.append(number)
            self.settled.append(not bool(bound.send.any()))
            call()

        return Operation(noting)


NOTED: dict[int, Noting] = {}


@pytest.fixture
def noted() -> dict[int, Noting]:
    NOTED.clear()
    return NOTED


@pytest.fixture
def caches_of_a_kilobyte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block, "last_level_cache_bytes", lambda: 1 << 10)


@pytest.mark.usefixtures("caches_of_a_kilobyte")
def test_rotating_buffers_take_turns_all_verified_and_settled(noted: dict[int, Noting]) -> None:
    made = measured(FakeWorld(2), case("all_reduce", 256, 2, cache="rotating"), quick(min_samples=20), wrap=Noting)
    assert made.buffer_sets == 8, "2 KiB of them"
    for backend in noted.values():
        calls = [number for number in backend.events if isinstance(number, int)]
        assert calls[:8] == calls[-8:] == list(range(8)), "the checks before and after"
        timed_calls = calls[8:-8]
        assert set(timed_calls[-16:]) == set(range(8))
        samples = timed_calls[1 + QUICK.warmup_calls :]
        assert samples == [(samples[0] + index) % 8 for index in range(len(samples))]
        assert all(backend.settled[8:-8]), "reductions in place run on what they leave unchanged"


@pytest.mark.usefixtures("caches_of_a_kilobyte")
@pytest.mark.parametrize(("size", "sets"), [(256, 8), (4096, 2), (4, 64)])
def test_buffers_in_turn_do_not_fit_into_the_caches_together(size: int, sets: int) -> None:
    made = measured(FakeWorld(2), case("broadcast", size, 2, cache="rotating"))
    assert made.buffer_sets == sets
    assert measured(FakeWorld(2), case("barrier", 0, 2, cache="rotating")).buffer_sets == 1


@pytest.mark.usefixtures("caches_of_a_kilobyte")
def test_wrong_data_in_one_of_many_buffers_fail_the_case() -> None:
    class OneSetIsWrong(WrappingBackend):
        made = 0

        def bind(self, bound: Bound) -> Operation:
            call, number = self.inner.bind(bound).call, self.made
            self.made += 1

            def now_and_then() -> None:
                call()
                bound.receive[0] += number == 5

            return Operation(now_and_then)

    assert failures(FakeWorld(2), case("all_gather", 256, 2, cache="rotating"), wrap=OneSetIsWrong) == {"wrong_data"}


def test_caches_are_flushed_before_the_start_and_outside_of_the_timed_region(
    noted: dict[int, Noting], monkeypatch: pytest.MonkeyPatch
) -> None:
    swept: defaultdict[int, int] = defaultdict(int)

    def sweep() -> None:
        me = noted[threading.get_ident()]
        me.events.append("sweep")
        swept[me.rank] += 1
        inner = require_type(FakeBackend, me.inner)
        inner.clock.advance(1_000_000)

    monkeypatch.setattr(block, "cache_sweep", lambda _size: sweep)
    made = measured(FakeWorld(2), case("all_reduce", 64, 2, cache="flushed"), wrap=Noting, timer_ns=100)
    samples = len(made.groups[0].slowest_ns)
    assert made.calls == 1, "the second call of a sample would find what the first one left"
    assert set(made.groups[0].slowest_ns) == {1_000}
    for backend in noted.values():
        assert backend.events == [
            *("barrier", 0),
            *("sweep", "barrier", 0) * (1 + QUICK.warmup_calls + samples),
            *("barrier", 0),
        ]


class Prepared(Noting):
    """Has to be prepared before every sample."""

    def bind(self, bound: Bound) -> Operation:
        return Operation(super().bind(bound).call, prepare=lambda: self.events.append("prepare"))


def test_what_prepares_a_call_comes_after_the_caches_are_flushed_and_before_the_start(
    noted: dict[int, Noting], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block, "cache_sweep", lambda _size: lambda: noted[threading.get_ident()].events.append("sweep"))
    monkeypatch.setitem(OPS, "all_reduce", dataclasses.replace(OPS["all_reduce"], fresh=True))
    for cache, before in (("flushed", ("sweep", "prepare")), ("warm", ("prepare",))):
        noted.clear()
        made = measured(FakeWorld(2), case("all_reduce", 64, 2, cache=cache), wrap=Prepared)
        samples = len(made.groups[0].slowest_ns)
        for backend in noted.values():
            assert backend.events == [
                *("prepare", "barrier", 0),
                *(*before, "barrier", *[0] * made.calls) * samples_with_warmup(backend.events, before),
                *("prepare", "barrier", 0),
            ]
        assert samples > 0


def samples_with_warmup(events: list[str | int], before: tuple[str, ...]) -> int:
    """How often ``before`` stands in ``events``, but for the two checks."""
    return events.count(before[-1]) - 2
