"""Steps in histories whose truth is known: found, dated, and not found where there is none."""

import math

import numpy as np
import pytest
from testing.histories import SCATTER, STATIONARY, correlated, false_steps, steps_found

from busbw.errors import AnalysisError
from busbw_analysis.history.steps import smallest_step, steps_of


def at(values: "np.typing.ArrayLike") -> list[int]:
    return [step.at for step in steps_of(np.asarray(values, dtype=float).tolist())]


@pytest.mark.parametrize("kind", STATIONARY)
def test_a_stationary_history_has_at_most_one_false_step_in_a_thousand_runs(kind: str) -> None:
    # 8,000 runs each; tests/bench/steps.py has more.
    assert false_steps(kind, 40, 100) + false_steps(kind, 200, 20) <= 8


def test_a_step_of_5_percent_is_found_within_10_runs() -> None:
    assert steps_found(0.05, SCATTER, 60, 300) >= 0.95 * 300
    assert steps_found(1 / 1.05 - 1, SCATTER, 60, 300) >= 0.95 * 300


@pytest.mark.parametrize(("scatter", "before"), [(0.01, 30), (0.05, 60), (0.1, 25), (0.1, 200)])
def test_the_smallest_step_is_found_and_half_of_it_is_not(scatter: float, before: int) -> None:
    size = smallest_step(scatter, before)
    assert steps_found(size, scatter, before, 200) >= 0.95 * 200
    assert steps_found(size / 2, scatter, before, 200) <= 0.4 * 200


def test_the_smallest_step_grows_with_scatter_and_shrinks_with_runs() -> None:
    assert smallest_step(0.02, 100) < 0.05 < smallest_step(0.02, 30) < smallest_step(0.04, 30)


def test_several_steps_are_dated_with_the_levels_beside_them() -> None:
    generator = np.random.default_rng(5)
    levels = np.repeat([100.0, 110.0, 95.0], [40, 30, 50])
    steps = steps_of((levels * np.exp(0.01 * generator.normal(size=120))).tolist())
    assert [step.at for step in steps] == [40, 70]
    assert [step.before for step in steps] == pytest.approx([100, 110], rel=0.01)
    assert [step.after for step in steps] == pytest.approx([110, 95], rel=0.01)
    assert all(step.low <= step.at <= step.high and step.p_value < 1e-9 for step in steps)


@pytest.mark.parametrize("count", [1_001, 3_500, 10_000])
def test_steps_of_a_long_history_are_dated_to_the_run(count: int) -> None:
    draw = np.random.default_rng(count)
    logs = draw.normal(0, 0.01, count)
    places = [count // 3 + 1, 2 * count // 3 + 2]
    for place in places:
        logs[place:] += 0.1
    assert at(np.exp(logs)) == places


def test_the_interval_holds_the_step_in_95_percent() -> None:
    generator = np.random.default_rng(6)
    held = total = 0
    for _ in range(200):
        logs = SCATTER * generator.normal(size=100)
        logs[70:] += 0.04
        dates = steps_of(np.exp(logs).tolist())
        total += len(dates)
        held += sum(step.low <= 70 <= step.high for step in dates)
    assert total >= 190
    assert held >= 0.95 * total


def test_a_unit_of_the_values_changes_nothing() -> None:
    values = np.exp(correlated(np.random.default_rng(7), 80, 0.3) + 0.1 * (np.arange(80) >= 50))
    assert at(values) == at(1e9 * values) != []
    assert at(1 / values) == at(values)


def test_a_drift_is_no_step() -> None:
    generator = np.random.default_rng(8)
    for runs, share in ((100, 0.0003), (100, 0.001), (400, 0.0001), (400, 0.001), (400, 0.01)):
        histories = [at(np.exp(SCATTER * generator.normal(size=runs) + share * np.arange(runs))) for _ in range(50)]
        assert sum(map(bool, histories)) <= 3


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_spike_is_no_step_but_what_lasts_is(length: int) -> None:
    values = np.exp(SCATTER * np.random.default_rng(9).normal(size=60))
    values[30 : 30 + length] *= 2
    assert at(values) == []
    values[30:] *= 2
    assert at(values) == [30]


def test_the_latest_3_runs_are_enough_for_a_large_step() -> None:
    values = np.exp(SCATTER * np.random.default_rng(10).normal(size=23))
    values[20:] *= 1.5
    assert at(values) == [20]


def test_few_or_equal_values_have_no_step_and_an_exact_step_is_found() -> None:
    assert at([]) == at([1.0]) == at([1, 2, 3, 4, 50]) == at([100.0] * 30) == []
    assert at([100, 104, 99, 130, 131, 127, 133]) == []
    assert at([100.0] * 20 + [105.0] * 5) == [20]


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_value_without_a_logarithm_is_refused(value: float) -> None:
    with pytest.raises(AnalysisError):
        steps_of([1.0, value])
