"""A failure counts on a machine that has its processors, and on one that has not it is tried again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import measured as measuring
import pytest
from measured import TRIES, measured


@pytest.fixture
def stolen(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[int]], None]:
    """Sets of how many of 1000 ticks are stolen during each try; the last one goes on for ever."""

    def set_to(shares: list[int]) -> None:
        def ticks() -> Iterator[tuple[int, int]]:
            total = taken = 0
            for attempt in range(10):
                yield total, taken
                total, taken = total + 1000, taken + shares[min(attempt, len(shares) - 1)]
                yield total, taken

        counted = ticks()
        monkeypatch.setattr(measuring, "processor_ticks", lambda: next(counted))

    return set_to


def failing(times: int) -> tuple[Callable[[], None], list[None]]:
    """A test that fails so many times and then holds, and the list that grows with each of its calls."""
    calls: list[None] = []

    @measured
    def test() -> None:
        calls.append(None)
        assert len(calls) > times, "what was found is not true"

    return test, calls


def test_a_failure_on_an_undisturbed_machine_is_one(stolen: Callable[[list[int]], None]) -> None:
    stolen([5])
    test, calls = failing(1)
    with pytest.raises(AssertionError, match="what was found is not true"):
        test()
    assert len(calls) == 1


def test_a_disturbed_failure_is_begun_anew(stolen: Callable[[list[int]], None]) -> None:
    stolen([6])
    test, calls = failing(1)
    test()
    assert len(calls) == 2


def test_the_second_failure_counts_where_the_second_try_was_undisturbed(stolen: Callable[[list[int]], None]) -> None:
    stolen([6, 0])
    test, calls = failing(2)
    with pytest.raises(AssertionError):
        test()
    assert len(calls) == 2


def test_always_disturbed_is_skipped_with_what_failed(stolen: Callable[[list[int]], None]) -> None:
    stolen([50])
    test, calls = failing(TRIES)
    with pytest.raises(pytest.skip.Exception, match=r"more than 0\.5% of the processors 3 times; then: what was found"):
        test()
    assert len(calls) == TRIES


def test_what_holds_is_not_asked_twice(stolen: Callable[[list[int]], None]) -> None:
    stolen([50])
    test, calls = failing(0)
    test()
    assert len(calls) == 1
