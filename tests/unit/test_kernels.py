"""Kernels in memory: every element, for any length, place and number of threads, and nothing beside it."""

import dataclasses
import itertools
import re
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from testing.narrow import require
from testing.synthetic import case

from busbw.backends.base import Bound, Operation
from busbw.backends.compiled_loop import Compiled, row_of
from busbw.backends.local import LOCAL, kernels, memory
from busbw.backends.local.kernels import LINE_BYTES
from busbw.backends.local.threads import Team, Words
from busbw.backends.patterns import TORCH_DTYPES, count_wrong, fill, pattern, poison
from busbw.errors import BackendError
from busbw.ops import LATENCIES, OPS
from busbw.ops.base import Layout, Share
from busbw.ops.local import COPIES
from busbw.ops.settings import parse_threads
from busbw.runs.records import JSON

pytestmark = pytest.mark.skipif(kernels.missing() is not None, reason=str(kernels.missing()))

OF_ARRAYS = [op.name for op in COPIES if op.name not in {"memory_touch", *LATENCIES}]
DTYPES = ("float32", "float64")
GUARD = 40
UNTOUCHED = -77.0

Array = npt.NDArray[Any]


class Bed:
    """Buffers of a case in the middle of larger ones, and the operation that is bound to them."""

    def __init__(
        self, op: str, count: int, *, dtype: str = "float64", threads: int | None = None, start: int = 0
    ) -> None:
        kind = TORCH_DTYPES[dtype]
        self.case = case(op, count * kind.itemsize, 1, dtype=dtype, threads=threads)
        self.layout: Layout = OPS[op].layout(Share(0, 1, count))
        self.pattern = pattern(1, dtype, None, seed=3)
        self.start = start
        self.around = torch.full((self.layout.receive_count + start + GUARD,), UNTOUCHED, dtype=kind)
        self.receive = self.around[start : start + self.layout.receive_count]
        self.send = torch.zeros(self.layout.send_count + start, dtype=kind)[start:]
        self.operation: Operation = LOCAL[op].bind(Bound(self.case, self.send, self.receive, None))
        self.around[:start], self.around[start + len(self.receive) :] = UNTOUCHED, UNTOUCHED
        fill(self.send, self.layout.send, self.pattern)
        poison(self.receive, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.operation.free()

    def call(self) -> None:
        if self.operation.prepare is not None:
            self.operation.prepare()
        assert self.operation.call() == 0

    def wrong(self) -> int:
        if self.operation.wrong is not None:
            return self.operation.wrong()
        return count_wrong(self.receive, self.layout.expect, self.pattern)

    def untouched(self) -> bool:
        before, after = self.around[: self.start], self.around[self.start + len(self.receive) :]
        return bool((before == UNTOUCHED).all()) and bool((after == UNTOUCHED).all())


def reference(op: str, send: Array, count: int) -> Array:
    first, second = send[:count], send[count:]
    if op == "memory_read":
        return send[:0]
    if op == "memory_write":
        return np.full(count, 3, dtype=send.dtype)
    combined: Array = {
        "memory_copy": first,
        "stream_copy": first,
        "stream_scale": 3 * first,
        "stream_add": first + second if len(second) else first,
        "stream_triad": first + 3 * second if len(second) else first,
    }[op]
    return combined


@settings(max_examples=150, deadline=None)
@given(
    op=st.sampled_from(OF_ARRAYS),
    dtype=st.sampled_from(DTYPES),
    count=st.integers(1, 3000),
    start=st.integers(0, 33),
    threads=st.sampled_from([None, 1, 2, 3]),
)
def test_every_element_is_as_numpy_has_it_and_none_beside_them_is_touched(
    op: str, dtype: str, count: int, start: int, threads: int | None
) -> None:
    with Bed(op, count, dtype=dtype, threads=threads, start=start) as bed:
        bed.call()
        assert bed.wrong() == 0
        np.testing.assert_array_equal(bed.receive.numpy(), reference(op, bed.send.numpy(), count))
        assert bed.untouched()


@pytest.mark.parametrize("threads", [None, 1, 2])
@pytest.mark.parametrize("op", OF_ARRAYS)
def test_arrays_of_many_pages_are_verified_again_and_again(op: str, threads: int | None) -> None:
    with Bed(op, (3 << 20) + 8, threads=threads) as bed:
        for _ in range(3):
            poison(bed.receive, None)
            bed.call()
            assert bed.wrong() == 0


@pytest.mark.parametrize("op", OF_ARRAYS)
def test_the_thread_that_works_on_a_slice_of_an_array_is_the_first_one_to_touch_it(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_out: list[tuple[int, Words]] = []
    do = Team.do

    def noting(team: Team, kernel: int, work: Words) -> None:
        given_out.append((kernel, work))
        do(team, kernel, work)

    monkeypatch.setattr(Team, "do", noting)
    compiled = kernels.kernels()
    with Bed(op, 100_000, threads=3) as bed:
        bed.call()
        (work,) = [work for kernel, work in given_out if kernel == compiled.of("nothing")]
        touching = [work for kernel, work in given_out if kernel == compiled.of("place")]
        ours = [range(array.data_ptr(), array.data_ptr() + array.nbytes) for array in (bed.send, bed.receive)]
        itemsize = 1 if op == "memory_copy" else 8
        for piece in range(0, len(work), LINE_BYTES // 8):
            *places, count = map(int, work[piece : piece + 4])
            worked = {(place, count * itemsize) for place in places if any(place in span for span in ours)}
            touched = {(int(words[piece]), int(words[piece + 3])) for words in touching}
            assert worked
            assert touched == worked


@pytest.mark.parametrize("itemsize", [1, 4, 8])
def test_slices_of_threads_begin_a_line_apart_as_all_else_that_they_write_does(itemsize: int) -> None:
    base = 1 << 20
    divided = memory._Arrays(base, 0, 0, 10_000, itemsize).divided(3)
    starts = [int(divided[piece]) - base for piece in range(0, len(divided), LINE_BYTES // 8)]
    assert len(starts) == 3
    assert [start % LINE_BYTES for start in starts] == [0, 0, 0]
    assert starts == sorted(set(starts))


@pytest.mark.parametrize("op", OF_ARRAYS)
def test_the_compiled_loop_makes_the_same_calls(op: str) -> None:
    with Bed(op, 1000, threads=2) as bed:
        row = require(row_of([bed.operation.native]))
        assert row.of(50)() == 0
        assert bed.wrong() == 0


@pytest.mark.parametrize("op", [name for name in OF_ARRAYS if OPS[name].computed])
@pytest.mark.parametrize("threads", [None, 2])
def test_a_call_that_was_not_made_or_left_elements_out_is_seen(op: str, threads: int | None) -> None:
    with Bed(op, 4096, threads=threads) as bed:
        assert bed.wrong() > 0
        bed.call()
        assert bed.wrong() == 0
        if len(bed.receive):
            bed.receive[17] += 1
            bed.receive[4095] = float("nan")
            assert bed.wrong() == 2
        else:
            assert bed.wrong() == 1, "a sum that was found before does not count again"


def test_a_wrong_element_is_caught_wherever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_CHECKED_AT_ONCE", 64)
    for op in ("stream_scale", "stream_add", "stream_triad", "memory_write"):
        with Bed(op, 200) as bed:
            bed.call()
            assert bed.wrong() == 0
            for place in (0, 63, 64, 199):
                bed.receive[place] += 1
            assert bed.wrong() == 4


@pytest.mark.parametrize(
    ("op", "other"),
    [
        ("memory_copy", "nothing"),
        ("stream_copy", "stream_scale_float64"),
        ("stream_scale", "stream_copy_float64"),
        ("stream_add", "stream_triad_float64"),
        ("stream_triad", "stream_add_float64"),
        ("memory_read", "memory_read_float32"),
        ("memory_write", "nothing"),
    ],
)
def test_a_wrong_kernel_is_caught(op: str, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = kernels.kernels()
    name = "memory_copy" if op == "memory_copy" else f"{op}_float64"
    wrong = dataclasses.replace(made, addresses={**made.addresses, name: made.addresses[other]})
    monkeypatch.setattr(kernels, "kernels", lambda: wrong)
    with Bed(op, 4096) as bed:
        bed.call()
        assert bed.wrong() > 0


def test_plain_loops_are_vectorised_and_no_call_of_the_library_is_made_of_them() -> None:
    made = kernels.kernels()
    bodies = dict(re.findall(r"define [^@]*@(\w+)\([^\n]*\{\n(.*?)\n\}", made.optimised, re.DOTALL))
    for op, dtype in itertools.product(OF_ARRAYS, DTYPES):
        if op == "memory_copy":
            continue
        body = bodies[f"{op}_{dtype}"]
        assert not re.search(r"mem(cpy|set|move)", body), op
        assert re.search(r"<\d+ x (float|double|i32|i64)>", body), op
    assert "@memcpy" in bodies["memory_copy"]


# --- first touch -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [None, 1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_pages_are_fresh_in_every_call_and_only_when_they_were_given_back(
    threads: int | None, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_CHECKED_AT_ONCE", 1 << 14)
    with Bed("memory_touch", 50_001, dtype=dtype, threads=threads) as bed:
        assert bed.wrong() > 0, "nothing was touched yet"
        for _ in range(3):
            bed.call()
            assert bed.wrong() == 0
        assert bed.operation.call() == 0
        assert bed.wrong() > 0, "what was full of other numbers is no fresh page"


def test_memory_that_cannot_be_had_is_a_clear_error() -> None:
    setting = case("memory_touch", 1 << 60, 1, dtype="float64")
    with pytest.raises(BackendError):
        LOCAL["memory_touch"].bind(Bound(setting, torch.zeros(0), torch.zeros(0), None))


# --- what is refused -------------------------------------------------------------------------------------------


def refused(op: str, **changes: JSON) -> str | None:
    return LOCAL[op].refuse(case(op, 4096, 1, **{"dtype": "float64", **changes}))


@pytest.mark.parametrize(
    ("op", "changes", "said"),
    [
        *(("stream_add", {"dtype": dtype}, dtype) for dtype in ("int8", "float16")),
        *(("stream_copy", {"mode": mode}, mode) for mode in ("overlap", "persistent")),
        *(("memory_copy", {"mode": mode}, mode) for mode in ("overlap", "persistent")),
        *(("memory_touch", {key: value}, value) for key, value in (("mode", "pipelined"), ("cache", "rotating"))),
        ("memory_touch", {"device": "cuda"}, "cuda"),
        *(("storage_write", {"mode": mode}, mode) for mode in ("pipelined", "overlap")),
        ("storage_read", {"cache": "flushed"}, "flushed"),
        ("storage_read", {"pre_enqueue": True}, "pre-enqueued"),
        *((op, {"dtype": "int32"}, "int32") for op in ("matmul", "attention", "attention_unfused")),
        *(("matmul", {"mode": mode}, mode) for mode in ("overlap", "persistent")),
        *(("host_to_device", {"mode": mode}, mode) for mode in ("overlap", "persistent")),
        ("host_and_device", {"pinning": "pageable"}, "concurrently"),
        ("host_to_device", {"pinning": "pageable", "mode": "graph"}, "pre-enqueued"),
        ("device_to_host", {"pinning": "pageable", "pre_enqueue": True}, "pre-enqueued"),
        *(("peer_copy", {"mode": mode}, mode) for mode in ("graph", "overlap", "persistent")),
        ("peer_copy_both", {"pre_enqueue": True}, "pre-enqueued"),
        ("peer_copy_staged", {"cache": "flushed"}, "flushed"),
    ],
)
def test_what_an_operation_without_communication_cannot_be_timed_as_is_refused(
    op: str, changes: dict[str, JSON], said: str
) -> None:
    usual: dict[str, JSON] = {"device": "cuda", "pinning": "pinned"} if OPS[op].needs_device else {}
    assert LOCAL[op].refuse(case(op, 4096, 2, **usual)) is None
    assert said in str(LOCAL[op].refuse(case(op, 4096, 2, **{**usual, **changes})))


def test_without_a_compiler_the_reason_is_told_and_copies_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "kernels", lambda: Compiled(missing="llvmlite is not there"))
    assert {refused(op) for op in (*OF_ARRAYS, "memory_touch") if op != "memory_copy"} == {"llvmlite is not there"}
    assert refused("memory_copy") is None
    assert refused("memory_copy", threads=2) == "llvmlite is not there"
    bed = Bed("memory_copy", 100)
    bed.operation.call()
    assert bed.wrong() == 0
    assert bed.operation.native is None
    with pytest.raises(BackendError):
        Bed("stream_triad", 100)


# --- how many threads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "cores", "counts"),
    [
        ("1", 8, (1,)),
        ("1..cores*2", 6, (1, 2, 4)),
        ("1..cores*2,cores", 6, (1, 2, 4, 6)),
        ("cores, 1", 1, (1,)),
        ("2..cores*2,1", 1, (1,)),
        ("2..8+3", 1, (2, 5, 8)),
    ],
)
def test_numbers_of_threads_are_read(text: str, cores: int, counts: tuple[int, ...]) -> None:
    assert parse_threads(text, cores) == counts
