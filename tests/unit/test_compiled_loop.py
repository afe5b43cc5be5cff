"""The compiled loop: rows of C functions, and rows of whole worlds whose operations are such functions."""

import ctypes
import dataclasses
import os
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import repeat

import pytest
from testing.blocks import failures, measured, quick
from testing.fakes import FakeBackend, FakeClock, FakeWorld, Script
from testing.narrow import require, require_type
from testing.synthetic import case

from busbw.backends import compiled_loop
from busbw.backends.base import Bound, Call, Operation
from busbw.backends.compiled_loop import Native, Row, row_of
from busbw.backends.faults import WrappingBackend
from busbw.errors import BackendError
from busbw.measure import block
from busbw.measure.loops import Loop, empty_call_ns, take
from busbw.runs.records import Cache, Measurement, Mode

pytestmark = pytest.mark.skipif(compiled_loop.missing() is not None, reason=str(compiled_loop.missing()))


def failed(code: int) -> Exception:
    return BackendError(f"code {code}")


def c_function(arguments: int, call: Callable[..., int]) -> tuple[int, object]:
    """The address of a function of C that takes so many whole numbers, and what has to live as long."""
    made = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * arguments)(call)
    return ctypes.cast(made, ctypes.c_void_p).value or 0, made


def native(*steps: tuple[Callable[..., int], tuple[int, ...]]) -> Native:
    made = [(*c_function(len(arguments), call), arguments) for call, arguments in steps]
    return Native(
        tuple((address, *arguments) for address, _, arguments in made), failed, tuple(keep for _, keep, _ in made)
    )


def code_of(call: Call) -> Callable[[], int]:
    """``call`` as C sees it: 1 if it raises."""

    def to_its_end() -> int:
        try:
            call()
        except Exception:  # noqa: BLE001 - C has no exceptions
            return 1
        return 0

    return to_its_end


def row(*natives: Native) -> Row:
    return require(row_of(natives))


# --- rows of functions -----------------------------------------------------------------------------------------


def test_steps_are_called_in_order_with_their_arguments() -> None:
    calls: list[tuple[int, ...]] = []

    def note(*arguments: int) -> int:
        calls.append(arguments)
        return 0

    most = tuple(range(1, 13))
    made = row(native((note, most), (note, ()), (note, (-1, 1 << 40))))
    assert made.of(2)() == 0
    assert calls == [most, (), (-1, 1 << 40)] * 2


def test_calls_take_turns_and_the_next_row_goes_on_where_the_last_one_stopped() -> None:
    numbers: list[int] = []

    def note(number: int) -> int:
        numbers.append(number)
        return 0

    made = row(*[native((note, (number,)), (note, (-number,))) for number in (1, 2, 3)])
    for calls in (1, 4, 2):
        assert made.of(calls)() == 0
    turn = [1, -1, 2, -2, 3, -3]
    assert numbers == (turn * 3)[:14]


def test_a_row_ends_with_the_first_code_that_is_not_0() -> None:
    codes: list[int] = []

    def note(code: int) -> int:
        codes.append(code)
        return code

    assert row(native((note, (0,)), (note, (17,)), (note, (0,)))).of(100)() == 17
    assert codes == [0, 17]


def test_what_has_no_room_is_refused() -> None:
    with pytest.raises(ValueError, match="broadcast"):
        row_of([Native(((0, *range(13)),), failed)])
    with pytest.raises(ValueError, match="unpack"):
        row_of([native((int, ())), native((int, ()), (int, ()))])


def test_a_call_without_a_native_one_has_no_row() -> None:
    assert row_of([native((int, ())), None]) is None
    assert row_of([]) is None


def test_other_threads_run_while_a_row_waits() -> None:
    """The watch over a library whose waits never end looks from one."""
    libc = ctypes.CDLL(None)
    address = ctypes.cast(libc.read, ctypes.c_void_p).value or 0
    buffer = ctypes.create_string_buffer(1)
    reading, writing = os.pipe()
    made = row(Native(((address, reading, ctypes.addressof(buffer), 1),), failed))
    writer = threading.Timer(0.05, os.write, (writing, b"x"))
    writer.start()
    try:
        assert made.of(1)() == 1, "one byte was read, after a thread of Python had written it"
    finally:
        writer.join()
        os.close(reading)
        os.close(writing)


@pytest.fixture
def compiled_anew() -> Iterator[None]:
    compiled_loop._library.cache_clear()
    yield
    compiled_loop._library.cache_clear()


@pytest.mark.usefixtures("compiled_anew")
def test_without_llvmlite_there_is_no_row_and_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    monkeypatch.setitem(sys.modules, "llvmlite.binding", None)
    assert "llvmlite" in str(compiled_loop.missing())
    assert row_of([native((int, ()))]) is None
    assert compiled_loop.nothing() is None


@pytest.mark.usefixtures("compiled_anew")
def test_on_machines_with_another_way_of_calling_there_is_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "ppc64le")
    assert "ppc64le" in str(compiled_loop.missing())


# --- samples ---------------------------------------------------------------------------------------------------


def test_a_sample_is_one_row_between_two_reads_of_the_clock() -> None:
    clock = FakeClock(read_cost_ns=7)
    events: list[str] = []

    def call() -> int:
        events.append("call")
        clock.advance(100)
        return 0

    def start() -> None:
        events.append("start")

    backend = FakeWorld(1).backends[0]
    taken = take(Loop(backend, clock, iter(()), start, None, 3, row(native((call, ())))), 2)
    assert events == ["start", "call", "call", "call"] * 2
    assert list(taken.exits - taken.entries) == [307, 307]


def test_a_code_in_a_row_is_the_error_of_the_backend() -> None:
    backend = FakeWorld(1).backends[0]
    loop = Loop(backend, FakeClock(), repeat(lambda: None), lambda: None, None, 3, row(native((lambda: 5, ()))))
    with pytest.raises(BackendError):
        take(loop, 1)


def test_an_empty_call_of_the_compiled_loop_is_timed_through_it() -> None:
    backend, nothing = FakeWorld(1).backends[0], compiled_loop.nothing()
    assert nothing is not None
    assert empty_call_ns(backend, FakeClock(read_cost_ns=60), row=20, samples=10, compiled=row(nothing)) == 3


LONG = Script(durations=lambda _rank, _index, _case: 100_000)
"""Calls of which a row has 10."""


# --- worlds ----------------------------------------------------------------------------------------------------


class Natively(WrappingBackend):
    """Operations that a compiled loop can call, and that Python must not call; what is freed is counted."""

    def __init__(self, inner: FakeBackend) -> None:
        super().__init__(inner)
        self.bound = self.freed = 0

    def bind(self, bound: Bound) -> Operation:
        operation = self.inner.bind(bound)
        self.bound += 1

        def free() -> None:
            self.freed += 1

        def by_python() -> None:
            message = "Python called what a compiled loop can call"
            raise BackendError(message)

        return Operation(by_python, operation.post, native((code_of(operation.call), ())), free)


class Mixed(Natively):
    """The second rank has no compiled loop."""

    def bind(self, bound: Bound) -> Operation:
        if self.rank == 1:
            return self.inner.bind(bound)
        operation = super().bind(bound)
        call = self.inner.bind(bound).call
        return dataclasses.replace(operation, call=call)


@pytest.mark.parametrize("cache", ["warm", "rotating"])
@pytest.mark.parametrize("mode", ["isolated", "pipelined", "persistent"])
def test_a_world_is_timed_by_the_compiled_loop_and_says_so(
    mode: Mode, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block, "last_level_cache_bytes", lambda: 1 << 7)
    setting = case("all_reduce", 64, 3, mode=mode, cache=cache)
    made = measured(FakeWorld(3, LONG), setting, wrap=Natively)
    assert made.loop == "compiled"
    assert made.check.state == "verified"
    plain = measured(FakeWorld(3, LONG), setting)
    assert plain.loop == "python"
    assert made.calls == plain.calls
    times = [
        [(group.slowest_ns, group.exit_span_ns, group.per_rank) for group in measurement.groups]
        for measurement in (made, plain)
    ]
    assert times[0] == times[1]


def test_what_is_posted_is_timed_by_python() -> None:
    class Posted(Natively):
        def bind(self, bound: Bound) -> Operation:
            operation = super().bind(bound)
            call = self.inner.bind(bound).call
            return dataclasses.replace(operation, call=call, native=Native(((0,),), failed))

    assert measured(FakeWorld(2), case("all_reduce", 64, 2, mode="overlap"), wrap=Posted).loop == "python"


def test_one_rank_without_a_compiled_loop_makes_all_of_them_python() -> None:
    assert measured(FakeWorld(3, LONG), case("all_reduce", 64, 3, mode="pipelined"), wrap=Mixed).loop == "python"


def test_ranks_that_sit_out_record_the_loop_of_those_that_do_not() -> None:
    made = measured(FakeWorld(5), case("ping_pong", 16, 5, group="1,2"), wrap=Natively)
    assert made.loop == "compiled"
    assert measured(FakeWorld(5), case("ping_pong", 16, 5, group="1,2")).loop == "python"


def test_wrong_data_that_the_compiled_loop_makes_fail_the_case() -> None:
    class Wrong(Natively):
        def bind(self, bound: Bound) -> Operation:
            operation = super().bind(bound)
            call = self.inner.bind(bound).call
            steps = (code_of(call), ()), (code_of(lambda: bound.receive[-1:].add_(1)), ())
            return dataclasses.replace(operation, native=native(*steps))

    assert failures(FakeWorld(2), case("all_gather", 64, 2, mode="pipelined"), wrap=Wrong) == {"wrong_data"}


def test_a_code_on_every_rank_fails_the_case_and_what_was_prepared_is_freed() -> None:
    class Failing(Natively):
        def bind(self, bound: Bound) -> Operation:
            operation = super().bind(bound)
            return dataclasses.replace(operation, native=native((lambda: 5, ())))

    there: list[Natively] = []
    wrap = kept_in(there, Failing)
    assert failures(FakeWorld(2), case("all_gather", 64, 2, mode="persistent"), wrap=wrap) == {"backend"}
    assert [(backend.bound, backend.freed) for backend in there] == [(1, 1)] * 2


def kept_in(there: list[Natively], kind: type[Natively]) -> Callable[[FakeBackend], Natively]:
    def wrap(inner: FakeBackend) -> Natively:
        there.append(kind(inner))
        return there[-1]

    return wrap


@pytest.mark.parametrize("op", ["all_reduce", "pair_matrix"])
def test_every_operation_is_freed_once(op: str) -> None:
    there: list[Natively] = []
    setting = case(op, 64, 3, pairs="together" if op == "pair_matrix" else None)
    require_type(Measurement, measured(FakeWorld(3), setting, quick(max_samples=12), wrap=kept_in(there, Natively)))
    assert all(backend.freed == backend.bound > 0 for backend in there)
