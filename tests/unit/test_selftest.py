"""The judgement of a self-test: runs whose truth is known, right and wrong ones, and what is said of them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from testing.synthetic import SyntheticEnd, World, case, synthetic_run

from busbw.errors import AnalysisError
from busbw.runs import store
from busbw.runs.records import HostConditions, LaunchStarted, Measurement, RankClock, Row
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.load import Dataset, load, pool
from busbw_analysis.diagnosis import selftest
from busbw_analysis.diagnosis.answer import answer_of
from busbw_analysis.diagnosis.selftest import SelfTest, as_json, judge_selftest, selftest_for, write_selftest

RANKS = 2
SAME = [case("all_reduce", 8, RANKS), case("all_reduce", 1 << 20, RANKS), case("barrier", 0, RANKS)]
WRONG = [case("all_gather", 1024, RANKS)]
QUIET = World(launch_noise=0.02, jitter_seconds=0.2e-6)
LATE = World(late_rank=1, late_seconds=0.002, late_share=0.3, jitter_seconds=0.5e-6, launch_noise=0.02)

Change = Callable[[Row], Row]


def equipped(row: Row) -> Row:
    """What a synthetic run lacks: costs of the clock and of an empty call, clocks by exchange, a quiet machine."""
    if isinstance(row, LaunchStarted):
        clocks = tuple(
            RankClock(rank=rank, offset_ns=-900 * rank, error_ns=2000 * rank, rtt_ns=5000) for rank in (0, 1)
        )
        return msgspec.structs.replace(row, empty_call_ns=(90, 100), empty_loop_ns=(20, 20), clocks=clocks)
    if isinstance(row, Measurement):
        host = HostConditions(
            host="node0",
            load_before=1.0,
            load_after=1.0,
            busy_share=0.5,
            foreign_share=0.01,
            steal_share=0.0,
            switches=(0, 0),
        )
        return msgspec.structs.replace(row, conditions=(host,))
    return row


def unchanged(row: Row) -> Row:
    return row


def taken(
    folder: Path,
    *,
    same: World = QUIET,
    late: World = LATE,
    spoilt: bool = True,
    launches: int = 10,
    change: Change = unchanged,
    backend: str = "gloo",
) -> Path:
    """A folder as ``busbw selftest`` leaves it, with runs of the given worlds."""
    wrong = SyntheticEnd(failed={WRONG[0]: "wrong data before timing: 3 elements differ"}) if spoilt else SyntheticEnd()
    runs = {
        "same": synthetic_run(SAME, same, launches=2 * launches, samples=60, seed=1),
        "straggler": synthetic_run(SAME, late, launches=2, samples=200, seed=2),
        "wrong": synthetic_run(WRONG, launches=1, seed=3, end=wrong),
    }
    for name, run in runs.items():
        (folder / name).mkdir(parents=True)
        store.write_run(folder / name, run.run)
        with store.Appender(folder / name) as appender:
            for row in run.rows:
                appender.append(change(equipped(row)))
    truth = {
        "runs": {name: name for name in runs},
        "backend": backend,
        "ranks": RANKS,
        "usable_cores": 2,
        "straggler_rank": 1,
        "straggler_delay_ns": 2_000_000,
        "straggler_share": 0.3,
    }
    (folder / "truth.json").write_text(json.dumps(truth), encoding="utf-8")
    return folder


def states(judged: SelfTest) -> dict[str, str]:
    return {check.name: check.state for check in judged.checks}


def test_a_good_instrument_on_a_good_machine_passes_and_tells_its_resolution(tmp_path: Path) -> None:
    judged = judge_selftest(taken(tmp_path / "one"))
    assert set(states(judged).values()) <= {"ok", "caution"}
    assert states(judged)["straggler"] == states(judged)["wrong data"] == states(judged)["clock error"] == "ok"
    assert judged.launches == 10
    assert all(0 < width < 0.1 for width in judged.resolution.values())


def test_a_rank_that_is_accused_beside_the_late_one_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def everybody(folders: Sequence[Path]) -> Dataset:
        dataset = load(folders)
        flagged = tuple(
            replace(group, members=tuple(replace(member, flagged=True) for member in group.members))
            for group in dataset.lateness
        )
        return replace(dataset, lateness=flagged)

    monkeypatch.setattr(selftest, "load", everybody)
    assert states(judge_selftest(taken(tmp_path / "one")))["straggler"] == "fail"


def lying_clock(row: Row) -> Row:
    if not isinstance(row, LaunchStarted):
        return row
    clocks = tuple(RankClock(rank=rank, offset_ns=5000 * rank, error_ns=2000 * rank, rtt_ns=9) for rank in (0, 1))
    return msgspec.structs.replace(row, clocks=clocks)


def slow_timer(row: Row) -> Row:
    return msgspec.structs.replace(row, timer_ns=(60, 4000)) if isinstance(row, LaunchStarted) else row


def taking(**shares: float) -> Change:
    """A machine on which others take these shares of the time."""

    def change(row: Row) -> Row:
        if not isinstance(row, Measurement):
            return row
        return msgspec.structs.replace(row, conditions=(msgspec.structs.replace(row.conditions[0], **shares),))

    return change


@pytest.mark.parametrize(
    ("change", "name", "number"),
    [
        (lying_clock, "clock error", ""),
        (slow_timer, "timer", ""),
        (taking(foreign_share=0.7), "quiet machine", "70%"),
        (taking(steal_share=0.2), "quiet machine", "20%"),
    ],
)
def test_each_part_can_fail_alone(tmp_path: Path, change: Change, name: str, number: str) -> None:
    judged = judge_selftest(taken(tmp_path / "one", change=change))
    assert [check.name for check in judged.failures] == [name]
    assert number in judged.answer()


WORLDS = {
    "delay": World(late_rank=1, late_seconds=0.0035, late_share=0.3, jitter_seconds=0.5e-6),
    "rank": World(late_rank=0, late_seconds=0.002, late_share=0.3, jitter_seconds=0.5e-6),
    "noise": World(launch_noise=1.5, jitter_seconds=0.2e-6),
}


@pytest.mark.parametrize(
    ("made", "check"),
    [
        ({"late": QUIET}, "straggler"),
        ({"late": WORLDS["rank"]}, "straggler"),
        ({"late": WORLDS["delay"]}, "straggler"),
        ({"same": WORLDS["noise"]}, "A/A all_reduce 1 MiB"),
        ({"spoilt": False}, "wrong data"),
    ],
)
def test_what_is_not_found_as_it_is_fails(tmp_path: Path, made: dict[str, Any], check: str) -> None:
    assert states(judge_selftest(taken(tmp_path / "one", **made)))[check] == "fail"


def test_a_report_finds_the_newest_one_of_before_its_run_of_its_backend_and_ranks(tmp_path: Path) -> None:
    kept = {}
    judged = judge_selftest(taken(tmp_path / "one"))
    for name, backend in (("20260101", "gloo"), ("20260102", "gloo"), ("20260103", "mpi"), ("20260105", "gloo")):
        folder = tmp_path / "selftests" / name
        folder.mkdir(parents=True)
        kept[name] = replace(judged, id=name, backend=backend, started=f"2026-01-{name[-2:]}T00:00:00.000Z")
        write_selftest(folder, kept[name])
    (tmp_path / "selftests" / "20260104").mkdir()
    (tmp_path / "selftests" / "20260104" / "selftest.json").write_text("{ torn", encoding="utf-8")
    whole = (tmp_path / "selftests" / "20260105" / "selftest.json").read_bytes()
    (tmp_path / "selftests" / "20260106").mkdir()
    (tmp_path / "selftests" / "20260106" / "selftest.json").write_bytes(whole.replace("±".encode(), b"\xff"))
    day = "2026-01-{:02}T12:00:00.000Z".format
    newest = selftest_for(tmp_path, "gloo", RANKS, day(4))
    assert newest == kept["20260102"]
    assert as_json(newest)["trustworthy"] is True
    assert selftest_for(tmp_path, "gloo", RANKS, day(6)) == kept["20260105"]
    assert selftest_for(tmp_path, "mpi", RANKS, day(1)) == kept["20260103"]
    assert selftest_for(tmp_path, "gloo", RANKS, "2025-12-31T00:00:00.000Z") == kept["20260101"]
    assert selftest_for(tmp_path, "gloo", 3, day(4)) is None
    assert selftest_for(tmp_path / "nowhere", "gloo", RANKS, day(4)) is None


@pytest.mark.parametrize(("year", "after"), [(2025, False), (2027, True)])
def test_a_self_test_from_after_the_run_is_called_so(tmp_path: Path, year: int, *, after: bool) -> None:
    judged = replace(judge_selftest(taken(tmp_path / "one")), started=f"{year}-01-01T06:12:34.567Z")
    trust = answer_of(judge(pool((synthetic_run(SAME, launches=4, seed=5),)), judged)).trust
    assert ("after the run" in trust) == after


def test_half_a_self_test_is_refused_in_words(tmp_path: Path) -> None:
    folder = taken(tmp_path / "one")
    (folder / "truth.json").unlink()
    with pytest.raises(AnalysisError):
        judge_selftest(folder)
