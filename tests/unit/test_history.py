"""Trends over runs: unlike settings are never joined, and a step is named with what changed at it."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from testing.command import busbw
from testing.nights import CASES, write_night, write_run
from testing.synthetic import Machine, case, planned, synthetic_run, with_blocks, with_changes, write_synthetic

from busbw.runs import store
from busbw.runs.plan import LogPlan
from busbw.runs.records import Check, Measurement
from busbw.runs.run import ImportedLog
from busbw.runs.store import folders
from busbw.units import format_rate, format_time
from busbw_analysis.history import trends as history
from busbw_analysis.history.as_json import document
from busbw_analysis.history.engine import Local
from busbw_analysis.history.facts import facts_of
from busbw_analysis.history.page import page_of
from busbw_analysis.history.steps import FEWEST_BEFORE, FEWEST_RUNS, Step, steps_of
from busbw_analysis.history.text import answer_lines, case_table, names_of, sparkline
from busbw_analysis.history.trends import (
    History,
    RunFacts,
    Selection,
    Trend,
    history_of,
    moments_of,
    steps_with_changes,
)
from busbw_analysis.history.views import views_of

NIGHTS = 24
STEP = 14
NCCL = ({"nccl": {"version": "2.27.3"}}, {"nccl": {"version": "2.28.1"}})


def history_in(results: Path, **selection: Any) -> History:  # noqa: ANN401 - fields of Selection
    with views_of(results, list(folders(results)), Local(1)) as views:
        return history_of(views, Selection(**selection))


def step_at(at: int, low: int | None = None, high: int | None = None, ratio: float = 1.07) -> Step:
    return Step(at, 100.0, 100.0 * ratio, at if low is None else low, at if high is None else high, 1e-6)


@contextmanager
def steps(*those: Step) -> Iterator[None]:
    """Trends step where a test says: finding steps has its own tests."""
    with patch.object(history, "steps_of", lambda values: those if np.ptp(np.log(values)) > 0.05 else ()):
        yield


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nights of which those from ``STEP`` on have another NCCL and are 7 % slower from 1 MiB on; the kernel changed
    some nights before, and a variable now and then.
    """
    place = tmp_path_factory.mktemp("history")
    for night in range(NIGHTS):
        variables = {"NCCL_DEBUG": "INFO" if night % 7 == 0 else "WARN"}
        facts = {
            **NCCL[night >= STEP],
            "kernel": "6.1" if night < STEP - 4 else "6.2",
            "variables": variables,
            "boot_id": f"boot-{night}",
        }
        write_night(place, night, slower=1.07 if night >= STEP else 1.0, facts=facts)
    return place


def test_a_trend_has_the_median_over_launches_of_every_run(results: Path) -> None:
    history = history_in(results, ops=("all_gather",))
    (trend,) = history.trends
    assert (history.runs, len(trend.runs), trend.launches.tolist()) == (NIGHTS, NIGHTS, [2] * NIGHTS)
    for place, folder in enumerate(folders(results)):
        stored = store.read(folder)
        medians = [np.median(row.groups[0].slowest_ns) for row in stored.measurements if row.case.op == "all_gather"]
        assert trend.runs[place].run == stored.run.id
        assert trend.time_ns[place] == pytest.approx(np.median(medians))
        assert (trend.low_ns[place], trend.high_ns[place]) == (min(medians), max(medians))
        assert trend.busbw[place] == pytest.approx((1 << 20) / np.median(medians) * 1e9 / 2), "as in busbw show"


def test_the_busbw_of_a_case_is_that_of_its_shown_time(results: Path) -> None:
    history = history_in(results, ops=("all_gather",))
    times, moved = np.array([3e6, 30e6]), float(history.trends[0].busbw[0] * history.trends[0].time_ns[0])
    trend = replace(history.trends[0], runs=history.trends[0].runs[:2], time_ns=times, busbw=moved / times, steps=())
    shown = case_table(replace(history, trends=(trend,)))
    cells = {column.name: cell.text for column, cell in zip(shown.columns, shown.rows[0], strict=True)}
    assert (cells["median time"], cells["busbw"]) == (format_time(16.5e6), format_rate(moved / 16.5e6))


def test_the_step_is_named_with_the_library_that_changed_at_it(results: Path) -> None:
    with steps(step_at(STEP)):
        history = history_in(results)
    (moment,) = history.moments
    assert moment.first.date == "2026-02-26"
    assert (moment.last.run, moment.first.run) == ("night-013", "night-014")
    assert (moment.slower, moment.lasting) == (True, True)
    assert {(step.trend.case.op, step.trend.case.size_bytes) for step in moment.steps} == {
        ("all_reduce", 1 << 20),
        ("all_gather", 1 << 20),
    }
    (first, *others) = moment.changes
    assert (first.key, first.before, first.after) == ("nccl.version", "2.27.3", "2.28.1")
    assert (first.last, first.first, first.inside, first.elsewhere) == ("night-013", "night-014", True, 0)
    assert {change.key: change.elsewhere for change in others} == {
        "boot_id": NIGHTS - 2,
        "variables.NCCL_DEBUG": 6,  # it changes at this night, too
    }
    changes = {change.key: change.inside for change in moment.steps[0].changes}
    assert changes == {"nccl.version": True, "variables.NCCL_DEBUG": True, "boot_id": True, "kernel": False}


def test_the_real_steps_name_it_too(results: Path) -> None:
    lines = dict(answer_lines(history_in(results)))
    assert "nccl.version 2.27.3 → 2.28.1" in lines["since 2026-02-26"]


def test_the_interval_of_a_step_decides_what_lies_within(results: Path) -> None:
    with steps(step_at(STEP, low=STEP - 5)):
        (moment,) = history_in(results).moments
    assert [change.key for change in moment.changes][:2] == ["kernel", "nccl.version"]
    with steps(step_at(STEP + 2, low=STEP + 1, high=STEP + 3)):
        (moment,) = history_in(results).moments
    assert {change.key for change in moment.changes} == {"variables.NCCL_DEBUG", "boot_id"}


# --- identity of a case ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        *({name: value} for name, value in (("dtype", "float64"), ("redop", "max"), ("mode", "pipelined"))),
        *({name: value} for name, value in (("sync", "window"), ("cache", "flushed"), ("in_place", False))),
        *({name: True} for name in ("pre_enqueue", "registered")),
        *({name: value} for name, value in (("backend", "mpi"), ("device", "cuda"), ("nodes", 2), ("ranks", 3))),
        *({name: value} for name, value in (("tool_op", "other"), ("size_bytes", 8), ("algorithm", "ring"))),
    ],
)
def test_unlike_settings_are_never_joined(change: dict[str, Any], tmp_path: Path) -> None:
    usual = case("all_reduce", 1 << 10, 4)
    write_synthetic(tmp_path, _named("one", synthetic_run([usual], launches=1)))
    write_synthetic(tmp_path, _named("two", synthetic_run([with_changes(usual, **change)], launches=1)))
    write_synthetic(tmp_path, _named("three", synthetic_run([usual], launches=1, seed=1)))
    assert sorted(len(trend.runs) for trend in history_in(tmp_path).trends) == [1, 2]


@pytest.mark.parametrize(
    "machine",
    [Machine(name="another"), Machine(facts={"cpu": {"model": "Other"}})],
)
def test_other_machines_and_processors_are_other_lines(machine: Machine, tmp_path: Path) -> None:
    write_synthetic(tmp_path, _named("one", synthetic_run(CASES[:1], launches=1)))
    write_synthetic(tmp_path, _named("two", synthetic_run(CASES[:1], launches=1, machine=machine)))
    assert [len(trend.runs) for trend in history_in(tmp_path).trends] == [1, 1]


def test_results_of_another_tool_are_another_line(tmp_path: Path) -> None:
    stored = synthetic_run(CASES[:1], launches=1)
    log = ImportedLog(tool="osu", tool_version=None, file="x", command=None, given={}, unknown=(), notes=())
    write_synthetic(tmp_path, _named("one", stored))
    write_synthetic(tmp_path, _named("two", replace(stored, run=msgspec.structs.replace(stored.run, imported=log))))
    assert {trend.tool for trend in history_in(tmp_path).trends} == {"busbw", "osu"}


def _named(name: str, stored: store.StoredRun) -> store.StoredRun:
    return replace(stored, run=msgspec.structs.replace(stored.run, id=name))


def test_a_name_tells_what_differs_and_nothing_else(tmp_path: Path) -> None:
    cases = [case("all_reduce", 64), with_changes(case("all_reduce", 64), dtype="float64"), case("all_gather", 64)]
    write_synthetic(tmp_path, synthetic_run([*cases, case("all_gather", 8)], launches=1))
    assert set(names_of(history_in(tmp_path).trends).values()) == {
        "all_reduce float32",
        "all_reduce float64",
        "all_gather",
    }


def test_launches_with_wrong_data_have_no_value(tmp_path: Path) -> None:
    def spoil(block: Measurement) -> Measurement:
        check = Check(state="wrong", wrong_elements=1) if block.launch == 0 else block.check
        return msgspec.structs.replace(block, check=check)

    write_synthetic(tmp_path, with_blocks(synthetic_run(CASES[:1], launches=3), spoil))
    (trend,) = history_in(tmp_path).trends
    assert trend.launches.tolist() == [2]


# --- selection -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("selection", "runs", "cases"),
    [
        ({"ops": ("all_reduce",)}, NIGHTS, 2),
        ({"sizes": (1 << 20,)}, NIGHTS, 2),
        ({"machine": "cluster", "backend": "gloo"}, NIGHTS, 3),
        ({"machine": "elsewhere"}, 0, 0),
        ({"backend": "mpi"}, 0, 0),
        ({"label": "before"}, 0, 0),
        ({"since": datetime(2026, 2, 12), "until": datetime(2026, 2, 13)}, 2, 3),  # noqa: DTZ001 - as stored
        ({"since": datetime(2026, 3, 1)}, NIGHTS - 17, 3),  # noqa: DTZ001
    ],
)
def test_a_selection(results: Path, selection: dict[str, Any], runs: int, cases: int) -> None:
    history = history_in(results, **selection)
    assert (history.runs, len(history.trends)) == (runs, cases)


def test_the_label_of_a_run_selects_it_and_stands_beside_it(tmp_path: Path) -> None:
    for night, label in enumerate((None, "before", "after")):
        folder = write_night(tmp_path, night)
        stored = store.read(folder)
        write_run(folder, replace(stored, run=planned(stored.run, label=label)))
        assert facts_of(store.read_run(folder)).get("label") == label
    whole = history_in(tmp_path)
    assert {tuple(run.label for run in trend.runs) for trend in whole.trends} == {(None, "before", "after")}
    after = history_in(tmp_path, label="after")
    assert {run.run for trend in after.trends for run in trend.runs} == {"night-002"}


# --- changes of made-up trends ---------------------------------------------------------------------------------------


def trend_of(facts: Sequence[dict[str, str]], *those: Step, machine: str = "m", series: str = "s") -> Trend:
    start = datetime(2026, 1, 1)  # noqa: DTZ001 - as stored
    runs = [
        RunFacts(f"r{place}", start + timedelta(days=place), None, json.dumps(of)) for place, of in enumerate(facts)
    ]
    times = np.full(len(runs), 100.0)
    busbw, launches = np.full(len(runs), np.nan), np.ones(len(runs), dtype=np.int64)
    return Trend(series, CASES[0], machine, machine, "busbw", tuple(runs), times, times, times, busbw, launches, those)


def test_a_history_says_which_step_it_would_find() -> None:
    draw = np.random.default_rng(3)

    def of_trends(*trends: Trend) -> History:
        return History(100, trends, (), ())

    def trend(runs: int, scatter: float) -> Trend:
        return replace(trend_of([{}] * runs, series=str(runs)), time_ns=np.exp(draw.normal(0, scatter, runs)))

    quiet, loud, short = trend(60, 0.02), trend(61, 0.1), trend(FEWEST_BEFORE - 1, 0.02)
    assert quiet.smallest_step == pytest.approx(0.05, rel=0.3)
    assert loud.smallest_step == pytest.approx(0.25, rel=0.4)
    assert short.smallest_step is None
    stepped = replace(quiet, steps=(step_at(40),))
    assert stepped.smallest_step is None, "20 runs at the present level"
    said = [dict(answer_lines(of_trends(*of)))["next"] for of in ((quiet, loud), (quiet, short), (short,))]
    assert f"{100 * (loud.smallest_step or 0):.0f} %" in said[0]
    assert "1 case with fewer" in said[1]
    assert "%" not in said[2]
    (row, *_) = document(of_trends(loud))["trends"]
    assert row["smallest_step"] == loud.smallest_step


VALUES = st.sampled_from(["a", "b", "c"])


@given(
    values=st.lists(st.tuples(VALUES, st.one_of(st.none(), VALUES)), min_size=2, max_size=12),
    at=st.integers(1, 11),
    width=st.integers(0, 2),
)
def test_changes_are_those_of_the_runs_beside_the_step(
    values: list[tuple[str, str | None]], at: int, width: int
) -> None:
    at = min(at, len(values) - 1)
    step = step_at(at, max(1, at - width), min(len(values) - 1, at + width))
    facts = [{"x": x, **({} if y is None else {"y": y})} for x, y in values]
    (changed,) = steps_with_changes(trend_of(facts, step))
    for change in changed.changes:
        known = [(place, of[change.key]) for place, of in enumerate(facts) if change.key in of]
        places = {f"r{place}": (order, value) for order, (place, value) in enumerate(known)}
        last, first = places[change.last], places[change.first]
        assert first[0] == last[0] + 1, "there is no run in between that recorded the fact"
        assert (last[1], first[1]) == (change.before, change.after)
        assert change.before != change.after
        assert change.inside == (step.low <= int(change.first[1:]) <= step.high)
        assert change.elsewhere == sum(before[1] != after[1] for before, after in pairwise(known)) - 1
    assert ("x" in {change.key for change in changed.changes}) == (len({x for x, _ in values}) > 1)


def test_steps_at_one_time_are_one_moment_and_others_are_not() -> None:
    facts = [{"x": "a"}] * 5 + [{"x": "b"}] * 5
    made = [
        trend_of(facts, step_at(5), series="sure"),
        trend_of(facts, step_at(6, 4, 8), series="less sure"),
        trend_of(facts, step_at(5, ratio=0.9), series="faster"),
        trend_of(facts, step_at(5), series="elsewhere", machine="other"),
        trend_of(facts, step_at(2), step_at(5), series="twice"),
    ]
    moments = moments_of([step for trend in made for step in steps_with_changes(trend)])
    groups = [{step.trend.series for step in moment.steps} for moment in moments]
    assert sorted(map(sorted, groups)) == [
        ["elsewhere"],
        ["faster"],
        ["less sure", "sure", "twice"],
        ["twice"],
    ]
    assert [moment.first.run for moment in moments] == ["r5", "r5", "r5", "r2"]
    assert [moment.lasting for moment in moments] == [True, True, True, False]


@given(st.lists(st.floats(1, 1e6), min_size=1, max_size=200), st.sets(st.integers(1, 199), max_size=3))
def test_a_sparkline_is_short_and_marks_every_step(values: list[float], cuts: set[int]) -> None:
    marks = sorted(cut for cut in cuts if cut < len(values))
    line = sparkline(np.asarray(values), marks)
    assert line.count("│") == len(marks)
    assert 1 + len(marks) <= len(line) <= 15 + 2 * len(marks) + 1


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_page_is_one_file_with_what_a_reader_hovers_over(results: Path, tmp_path: Path) -> None:
    page = tmp_path / "history.html"
    with steps(step_at(STEP)):
        answer = busbw("history", "--html", str(page), "--json", "--results-dir", str(results))
    assert answer.exit_code == 0
    text = page.read_text(encoding="utf-8")
    assert not re.search(r'(?:src|href)="(?!#)', text)
    tips = re.findall(r'data-tip="([^"]*)"', text)
    assert len(tips) == NIGHTS * len(CASES)
    assert any("night-014" in tip and "nccl.version 2.27.3 → 2.28.1" in tip for tip in tips)
    document = json.loads(answer.stdout)
    assert document["runs"] == NIGHTS
    assert [trend["case"]["op"] for trend in document["trends"]] == ["all_gather", "all_reduce", "all_reduce"]
    (moment,) = document["moments"]
    assert moment["changes"][0]["key"] == "nccl.version"
    assert (moment["first_run"], moment["last_run_before"]) == ("night-014", "night-013")
    assert len(document["trends"][0]["values"]) == NIGHTS


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("minutes", [0.1, 4.4, 300, 10_000])
def test_runs_of_minutes_or_days_have_an_axis_of_time(minutes: float) -> None:
    trend = trend_of([{}] * 2)
    began = datetime(2026, 1, 1)  # noqa: DTZ001 - as stored
    runs = [
        msgspec.structs.replace(run, started=began + place * timedelta(minutes=minutes))
        for place, run in enumerate(trend.runs)
    ]
    assert "trend-0" in page_of(History(2, (replace(trend, runs=tuple(runs)),), (), ()))


def test_runs_may_be_named(results: Path) -> None:
    answer = busbw("history", "night-001", "night-002", "--json", "--results-dir", str(results))
    assert json.loads(answer.stdout)["runs"] == 2
    assert busbw("history", "nowhere", "--results-dir", str(results)).exit_code == 2
    assert busbw("history", "--op", "gather", "--results-dir", str(results)).exit_code == 1
    assert busbw("history", "--since", "yesterday", "--results-dir", str(results)).exit_code == 2
    assert busbw("history", "--results-dir", str(results / "none")).exit_code == 2


def test_a_hostile_run_reaches_neither_terminal_nor_page(tmp_path: Path) -> None:
    folder = write_night(tmp_path, 0)
    stored = store.read(folder)
    hostile = "<script>\x1b[31m'; DROP VIEW runs"
    for name, night in (("a", 1), ("b", 2)):
        run = msgspec.structs.replace(
            stored.run, id=name, machine=hostile, started=f"2026-01-0{night}", plan=LogPlan(name=hostile * night)
        )
        (tmp_path / "hostile" / name).mkdir(parents=True)
        write_run(tmp_path / "hostile" / name, replace(stored, run=run))
    page = tmp_path / "page.html"
    answer = busbw("history", "--html", str(page), "--results-dir", str(tmp_path))
    assert answer.exit_code == 0
    assert "\x1b" not in answer.stdout + page.read_text(encoding="utf-8")
    assert "<script>\\" not in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(("runs", "few"), [(2, True), (FEWEST_RUNS - 1, True), (FEWEST_RUNS, False)])
def test_too_few_runs_are_no_proof_of_no_change(runs: int, *, few: bool) -> None:
    """Of two runs that compare calls 4.5 times slower, no case was said to have changed."""
    trends = (trend_of([{}] * runs),)
    said = dict(answer_lines(History(runs, trends, (), ())))["cases"]
    assert (f"has {FEWEST_RUNS} runs" in said, "none of" in said) == (few, not few)
    assert not steps_of([100.0, 1000.0] * 2)
