"""Runs with a duration whose truth is planted: drift, steps and periodic slow spells."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from msgspec import structs
from testing.narrow import require
from testing.synthetic import World, case, planned, synthetic_run

from busbw.runs.records import QUANTILES, Measurement, Window
from busbw.runs.store import StoredRun
from busbw_analysis.assembly.judge import judge
from busbw_analysis.assembly.to_json import document
from busbw_analysis.data.launches import launch_table
from busbw_analysis.data.load import pool
from busbw_analysis.data.windows import statistics_of
from busbw_analysis.diagnosis.answer import answer_of
from busbw_analysis.endurance.slice import Endurance
from busbw_analysis.endurance.timeline import FEWEST, Timeline, timeline_of

Floats = npt.NDArray[np.float64]
Level = Callable[[Floats], npt.NDArray[Any]]
CASE = case("all_reduce", 1 << 16, 4)
HOURS = 8


def windows(
    level: Level, hours: float = HOURS, count: int = 2048, scatter: float = 0.02, seed: int = 1
) -> tuple[Window, ...]:
    """Windows of equal length of a case whose time at a moment (s) is ``level`` × 100 µs."""
    generator = np.random.default_rng(seed)
    edges = np.linspace(0, hours * 3600, count + 1)
    within = edges[:-1, None] + np.linspace(0, edges[1], 21)[None, :-1]
    times = 1e5 * level(within) * np.exp(scatter * generator.normal(size=(count, 1)))
    times *= 1 + 0.05 * generator.exponential(size=times.shape)
    return tuple(
        Window(
            case=CASE,
            launch=0,
            begin_ns=round(begin * 1e9),
            end_ns=round(end * 1e9),
            started="2026-01-02T03:04:05.000Z",
            blocks=1,
            count=len(sampled),
            min_ns=sampled.min(),
            mean_ns=sampled.mean(),
            max_ns=sampled.max(),
            quantiles_ns=tuple(np.quantile(sampled, QUANTILES).tolist()),
        )
        for begin, end, sampled in zip(edges, edges[1:], times, strict=False)
    )


def steady(seconds: Floats) -> Floats:
    return np.ones_like(seconds)


def line(level: Level, **more: float) -> Timeline:
    return timeline_of(0, windows(level, **more))  # type: ignore[arg-type]  # counts are integers


@pytest.mark.parametrize("seed", range(5))
def test_a_steady_run_has_neither(seed: int) -> None:
    for scatter in (0.005, 0.05):
        course = line(steady, scatter=scatter, seed=seed)
        assert (course.drift, course.moves, course.spells) == (None, (), None)


@pytest.mark.parametrize("per_hour", [0.01, -0.005])
def test_a_drift_is_found_with_its_interval(per_hour: float) -> None:
    held = 0
    for seed in range(10):
        course = line(lambda seconds: np.exp(per_hour * seconds / 3600), count=1024, seed=seed)
        drift = require(course.drift)
        assert drift.per_hour == pytest.approx(per_hour, rel=0.2)
        held += drift.low <= per_hour <= drift.high
        assert (course.moves, course.spells) == ((), None)
    assert held >= 9


@pytest.mark.parametrize(("hours", "period"), [(1, 60.0), (8, 300.0)])
def test_periodic_slow_spells_are_found_with_their_period(hours: float, period: float) -> None:
    course = line(lambda seconds: 1 + 0.3 * (seconds % period < 0.2 * period), hours=hours)
    spells = require(course.spells)
    assert spells.period_seconds == pytest.approx(period, rel=0.01)
    assert spells.share == pytest.approx(0.2, abs=0.06)
    assert spells.ratio == pytest.approx(1.3, rel=0.05)
    assert (course.drift, course.moves) == (None, ())


def test_slow_spells_without_a_period_have_none() -> None:
    starts = np.cumsum(np.random.default_rng(3).exponential(60, size=60))
    course = line(
        lambda seconds: 1 + 0.3 * np.any([(seconds >= at) & (seconds < at + 12) for at in starts], axis=0), hours=1
    )
    assert course.spells is None


@pytest.mark.parametrize("count", [60, 2048])
def test_a_step_is_dated(count: int) -> None:
    moment = 0.37 * HOURS * 3600
    course = line(lambda seconds: 1 + 0.1 * (seconds >= moment), count=count)
    (move,) = course.moves
    assert move.ratio == pytest.approx(1.1, rel=0.01)
    assert move.seconds == pytest.approx(moment, abs=2 * HOURS * 3600 / min(count, 512))
    assert move.low <= move.seconds <= move.high
    assert (course.drift, course.spells) == (None, None)


def test_few_windows_are_not_judged() -> None:
    course = line(lambda seconds: 1 + (seconds > 3600 * HOURS / 2), count=FEWEST - 1)
    assert (course.drift, course.moves, course.spells) == (None, (), None)


def endured(level: Level) -> StoredRun:
    stored = synthetic_run([CASE], World(), launches=1, blocks=2)
    run = planned(stored.run, duration="8h")
    return replace(stored, run=run, rows=(*stored.rows[:-1], *windows(level, count=200), stored.rows[-1]))


@pytest.mark.parametrize(
    ("level", "codes"),
    [
        (steady, set()),
        (lambda seconds: np.exp(0.01 * seconds / 3600), {"slow-drift"}),
        (lambda seconds: 1 + 0.2 * (seconds > 10_000), {"level-step"}),
        (lambda seconds: 1 + 0.3 * (seconds % 1200 < 300), {"periodic"}),
    ],
)
def test_findings_and_answer_of_a_run_with_a_duration(level: Level, codes: set[str]) -> None:
    judgement = judge(pool((endured(level),)))
    assert {finding.code for finding in judgement.findings} & {"slow-drift", "level-step", "periodic"} == codes
    assert [line.windows for _, line in judgement.of(Endurance).lines] == [200]
    answer = answer_of(judgement)
    assert "Over time" in dict(answer.lines)
    assert "--launches" not in str(answer.lines), "it is one launch"
    (over_time,) = document(judgement, answer)["endurance"]
    assert [over_time["windows"], bool(over_time["drift"]), bool(over_time["moves"]), bool(over_time["spells"])] == [
        200,
        *(code in codes for code in ("slow-drift", "level-step", "periodic")),
    ]


def test_a_run_without_a_duration_says_nothing_of_time() -> None:
    judgement = judge(pool((synthetic_run([CASE], World(), launches=1),)))
    assert judgement.of(Endurance).lines == ()
    assert "Over time" not in dict(answer_of(judgement).lines)


def test_the_summary_is_of_all_samples_and_not_only_of_those_that_are_stored() -> None:
    (group,) = pool((endured(lambda seconds: 1 + (seconds > HOURS * 1200)),)).summaries[0].groups
    excess = 1 + 0.05 * np.random.default_rng(1).exponential(1, 60_000)
    times = 1e5 * np.where(np.arange(len(excess)) % 3, 2, 1) * excess
    assert group.time_ns == pytest.approx(np.median(times), rel=0.02)
    assert group.p95_ns == pytest.approx(np.quantile(times, 0.95), rel=0.02)
    assert group.p5_ns == pytest.approx(np.quantile(times, 0.05), rel=0.02)
    low, high = group.interval.low_ns, group.interval.high_ns
    assert require(low) <= group.time_ns <= require(high)


@pytest.mark.parametrize("stored", [0, 1])
def test_no_window_of_a_resumed_run_is_left_out(stored: int) -> None:
    """All stored blocks may be of one of its launches, before or after it was killed."""
    run = endured(lambda seconds: 1 + (seconds > HOURS * 1200))
    rows = [
        structs.replace(row, launch=int(row.begin_ns > HOURS * 1200e9) if isinstance(row, Window) else stored)
        if isinstance(row, Window | Measurement)
        else row
        for row in run.rows
    ]
    resumed = launch_table(replace(run, rows=tuple(rows)))
    assert resumed.launch.tolist() == [stored]
    assert resumed.mean_ns.tolist() == launch_table(run).mean_ns.tolist()


def test_quantiles_of_windows_are_those_of_their_samples() -> None:
    generator = np.random.default_rng(4)
    written = windows(lambda seconds: np.exp(0.2 * generator.normal(size=(len(seconds), 1))), count=300)
    summary = statistics_of(written)
    middles = np.asarray([window.quantiles_ns[3] for window in written])
    assert summary["median_ns"] == pytest.approx(np.median(middles), rel=0.02)
    assert summary["p99_ns"] == pytest.approx(np.quantile(middles, 0.99), rel=0.1)
    assert summary["mean_ns"] == pytest.approx(np.mean([window.mean_ns for window in written]))
    assert summary["low_ns"] < summary["median_ns"] < summary["high_ns"]
