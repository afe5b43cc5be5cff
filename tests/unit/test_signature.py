"""Silent data corruption: a computation with known results, and the rank whose results differ."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from testing.blocks import measure_everywhere
from testing.fakes import FakeBackend, FakeWorld
from testing.narrow import require_type
from testing.synthetic import case

from busbw.backends.base import Backend, Bound, Operation
from busbw.backends.faults import CorruptingBackend, WrappingBackend
from busbw.backends.local import LOCAL
from busbw.backends.patterns import TORCH_DTYPES
from busbw.measure.verify import unlike
from busbw.ops import OPS
from busbw.runs.records import DTYPE_BYTES, Failed, Measurement

RESULTS = ("_product", "_other", "_sums")


def operation(side: int, dtype: str = "float32") -> tuple[Operation, Any]:
    """The operation, and the object that has its buffers."""
    setting = case("signature", side * side * DTYPE_BYTES[dtype], 1, dtype=dtype)
    bound = Bound(setting, torch.empty(0), torch.empty(side * side, dtype=TORCH_DTYPES[dtype]))
    made = LOCAL["signature"].bind(bound)
    return made, made.call.__self__  # type: ignore[attr-defined]


def called(made: Operation, times: int = 1) -> None:
    for _ in range(times):
        assert made.prepare is not None
        made.prepare()
        made.call()


def wrong(made: Operation) -> int:
    assert made.wrong is not None
    return made.wrong()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("side", [16, 256])
def test_results_are_known_and_repeat(side: int, dtype: str) -> None:
    made, results = operation(side, dtype)
    called(made, 3)
    assert wrong(made) == 0
    # Known in other words: each element is a sum of products of signs.
    left, right = results._whole
    assert torch.equal(results._product.double(), left.double() @ right.double())
    assert set(results._product.abs().unique().tolist()) == {side / 8}
    assert len(results._other.unique()) > side, "fractions, not one number"


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("bit", [0, 30])
def test_one_bit_in_one_call_is_found(name: str, bit: int) -> None:
    made, results = operation(64)
    called(made, 2)
    getattr(results, name).view(-1)[5:6].view(torch.int32).bitwise_xor_(1 << bit)
    called(made, 2)  # right again
    assert wrong(made) == 1
    assert wrong(made) == 0


def test_a_call_that_computes_nothing_is_wrong_everywhere() -> None:
    made, results = operation(16)
    called(made)
    assert made.prepare is not None
    made.prepare()
    results._called = True
    assert wrong(made) == 16 * 16 + 16 * 16 + 16


def test_sides_are_the_period_times_a_power_of_two() -> None:
    shape = OPS["signature"].shape
    assert shape is not None
    assert [shape.down(side * side) for side in (1, 16, 31, 32, 500, 512)] == [
        side * side for side in (16, 16, 16, 32, 256, 512)
    ]


@pytest.mark.parametrize(
    ("hashes", "odd"),
    [
        ("aaaa", ()),
        ("aaba", (2,)),
        ("ab", (0, 1)),  # nobody knows which
        ("aabb", (0, 1, 2, 3)),
        ("aaab", (3,)),
        ("a", ()),
    ],
)
def test_the_ranks_without_the_result_of_most_are_named(hashes: Sequence[str], odd: tuple[int, ...]) -> None:
    assert unlike([("one kind", text) for text in hashes]) == odd


def test_only_ranks_of_one_kind_are_compared() -> None:
    assert unlike([("old", "a"), ("new", "b"), ("old", "a"), ("new", "b"), ("new", "c")]) == (4,)


class Computing(WrappingBackend):
    """The real operation in the fake world; on ``bad``, fractions are always multiplied a little wrongly."""

    bad = 2

    def bind(self, bound: Bound) -> Operation:
        inner = LOCAL["signature"].bind(bound)
        results: Any = inner.call.__self__  # type: ignore[attr-defined]

        def call() -> None:
            inner.call()
            self.inner.clock.advance(10_000)  # type: ignore[attr-defined]
            if self.inner.rank == self.bad:
                results._other[3, 4] += 0.5

        return dataclasses.replace(inner, call=call)


def failure(world: FakeWorld, wrap: Callable[[FakeBackend], Backend]) -> Failed:
    outcomes = measure_everywhere(world, case("signature", 1024, world.size), wrap=wrap)
    first, *others = outcomes
    assert all(other == first for other in others)
    return require_type(Failed, first)


def test_a_rank_that_always_computes_the_same_wrong_result_is_found_by_the_others() -> None:
    row = failure(FakeWorld(4), Computing)
    assert (row.cause, row.ranks) == ("wrong_data", (2,))


@pytest.mark.parametrize("when", [0, 4])
def test_a_bit_that_flips_once_names_its_rank(when: int) -> None:
    def wrap(backend: FakeBackend) -> Backend:
        numbers = itertools.count()

        class Sound(Computing):
            bad = -1

        sound = Sound(backend)
        return CorruptingBackend(sound, lambda *_: backend.rank == 1 and next(numbers) == when)

    row = failure(FakeWorld(3), wrap)
    assert (row.cause, row.ranks) == ("wrong_data", (1,))


def test_sound_ranks_are_measured() -> None:
    class Sound(Computing):
        bad = -1

    outcomes = measure_everywhere(FakeWorld(3), case("signature", 1024, 3), wrap=Sound)
    assert all(isinstance(outcome, Measurement) for outcome in outcomes)
