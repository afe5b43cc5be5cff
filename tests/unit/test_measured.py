"""A failure counts on a machine that has its processors, and on one that has not it is tried again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import measured as measuring
import pytest
from bed import Bed
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


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, float], None]:
    """Sets what plain programs find on every bed."""

    def set_to(late_ms: float, carried: float) -> None:
        monkeypatch.setattr(measuring, "plainly", lambda _: (late_ms, carried))

    return set_to


def failing(times: int) -> tuple[Callable[[], None], list[None]]:
    """A test that fails so many times and then holds, and the list that grows with each of its calls."""
    calls: list[None] = []

    @measured
    def test() -> None:
        calls.append(None)
        assert len(calls) > times, "what was found is not true"

    return test, calls


@pytest.mark.parametrize(
    ("shares", "failures", "calls", "ends"),
    [
        ([5], 1, 2, None),
        ([5], 2, 2, AssertionError),  # the second failure on an undisturbed machine counts
        ([6], 1, 2, None),
        ([6, 0], 2, 2, AssertionError),
        ([50], TRIES, TRIES, pytest.skip.Exception),
        ([50], 0, 1, None),  # what holds is not asked twice
    ],
)
def test_a_disturbed_failure_is_begun_anew(
    stolen: Callable[[list[int]], None], shares: list[int], failures: int, calls: int, ends: type[BaseException] | None
) -> None:
    stolen(shares)
    test, made = failing(failures)
    with nullcontext() if ends is None else pytest.raises(ends, match="what was found is not true"):
        test()
    assert len(made) == calls


@dataclass
class Networks:
    """What a test of a bed is given."""

    bed: Bed


@pytest.mark.parametrize(
    ("late_ms", "carried", "ends"),
    [(0.1, 0.98, AssertionError), (0.2, 0.98, pytest.skip.Exception), (0.1, 0.9, pytest.skip.Exception)],
)
def test_a_failure_counts_only_on_a_bed_on_which_plain_programs_find_what_was_set(
    late_ms: float,
    carried: float,
    ends: type[BaseException],
    stolen: Callable[[list[int]], None],
    plain: Callable[[float, float], None],
) -> None:
    stolen([0])
    plain(late_ms, carried)

    @measured
    def test(networks: Networks) -> None:
        assert networks.bed.slurm, "what was found is not true"

    with pytest.raises(ends, match="what was found is not true"):
        test(networks=Networks(Bed(hosts=2)))
