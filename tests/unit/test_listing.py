"""Lists and the doctor: every row of every table is there, runs in any state are listed, findings are in words."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from testing.synthetic import (
    Machine,
    SyntheticEnd,
    as_facts,
    case,
    planned,
    synthetic_run,
    with_changes,
    write_synthetic,
)

from busbw.backends import BACKENDS
from busbw.cli import listing, machine
from busbw.cli.main import main
from busbw.errors import ClockError, LaunchError
from busbw.launch import mpiexec
from busbw.launch.launchers import LAUNCHERS
from busbw.runs import store
from busbw.runs.plan import Sweep
from busbw.runs.records import JSON, Case, LaunchStarted
from busbw.system import environment
from busbw_analysis.data.kept import read_summarised


def test_what_has_no_room_stands_below_its_row_and_what_is_the_same_once_above() -> None:
    rows: list[dict[str, JSON]] = [
        {"a": name, "of": "all", "none": None, "why": f"{name} " * 40, "b": number} for number, name in enumerate("xy")
    ]
    head, names, *lines = listing.as_table(rows).splitlines()
    assert (head, names) == ("of: all", "a  b")
    assert [line for line in lines if not line.startswith(" ")] == ["x  0", "y  1"]
    below = " ".join(line.removeprefix("    | ") for line in lines if line.startswith("    | "))
    assert below == " ".join(["why:", *"x" * 40, "why:", *"y" * 40])


def test_outside_of_torchrun_ranks_are_local(tmp_path: Path) -> None:
    by_launcher = {row["launcher"]: row["here"] for row in listing.rows("launchers", tmp_path)}
    assert by_launcher == {name: "yes" if name == "local" else "no" for name in LAUNCHERS}


def test_runs_are_listed_in_whatever_state_they_are(tmp_path: Path) -> None:
    cases = [case("all_reduce", 8), case("all_reduce", 64)]
    assert listing.rows("runs", tmp_path) == []
    ends = [SyntheticEnd(), SyntheticEnd(reached=1, ended=None), SyntheticEnd(reached=1, ended="interrupted")]
    for number, end in enumerate(ends):
        write_synthetic(tmp_path, synthetic_run(cases, launches=1, seed=number, end=end))
    broken = write_synthetic(tmp_path, synthetic_run(cases, launches=1, seed=9))
    (broken / "run.json").write_text("{", encoding="utf-8")
    rows = {row["run"]: row for row in listing.rows("runs", tmp_path)}
    assert len(rows) == 4
    assert sorted((str(row["cases"]), str(row["state"]).split(":")[0]) for row in rows.values()) == [
        ("1 of 2", "interrupted"),
        ("1 of 2", "not ended"),
        ("2 of 2", "complete"),
        ("None", "unreadable"),
    ]
    assert rows[broken.name]["machine"] == "synthetic"


def test_the_list_of_runs_says_how_many_launches_are_done(tmp_path: Path) -> None:
    cases = [case("all_reduce", 8), case("all_reduce", 64)]
    whole = synthetic_run(cases, launches=4, seed=1)
    second = next(place for place, row in enumerate(whole.rows) if isinstance(row, LaunchStarted) and row.launch == 1)
    write_synthetic(tmp_path, replace(whole, rows=whole.rows[: second + 2]))
    (row,) = listing.rows("runs", tmp_path)
    assert (row["cases"], row["launches"]) == ("2 of 2", "1 of 4")


def _labelled(results: Path, seed: int, label: str | None, cases: list[Case], **facts: JSON) -> None:
    stored = synthetic_run(cases, machine=Machine(facts=facts), launches=1, samples=3, seed=seed)
    custom = planned(stored.run, name="custom", label=label)
    run = msgspec.structs.replace(custom, started=f"2026-01-0{seed}T00:00:00.000Z")
    write_synthetic(results, replace(stored, run=run))


def test_seven_custom_runs_are_told_apart(tmp_path: Path) -> None:
    usual = [case("all_reduce", 8), case("all_reduce", 1 << 20)]
    mpi = [with_changes(setting, backend="mpi") for setting in usual]
    _labelled(tmp_path, 1, "before", usual, variables={"OMP_NUM_THREADS": "1"})
    _labelled(tmp_path, 2, "after", usual, variables={"OMP_NUM_THREADS": "2"})
    _labelled(tmp_path, 3, None, [*usual, case("all_reduce", 8, algorithm="ring")], kernel="9.9")
    _labelled(tmp_path, 4, None, [case("all_gather", 8)])
    _labelled(tmp_path, 5, None, [with_changes(setting, dtype="float64") for setting in usual])
    _labelled(tmp_path, 6, None, mpi, mpi={"library": "MPICH 5"})
    _labelled(tmp_path, 7, None, usual[:1])
    first = listing.rows("runs", tmp_path)
    for folder in store.folders(tmp_path):
        read_summarised(folder)
    rows = listing.rows("runs", tmp_path)
    assert rows == first, "kept summaries hold the same"
    assert [row["label"] for row in rows[:3]] == ["before", "after", None]
    assert [(row["op"], row["backend"]) for row in rows[3:6]] == [
        *((["all_gather"], ["gloo"]), (["all_reduce"], ["gloo"]), (["all_reduce"], ["mpi"]))
    ]
    assert {(row["host"], row["hosts"], row["ranks"]) for row in rows} == {("node0", 1, 4)}
    assert [row["started"] for row in rows] == [f"2026-01-0{number}T00:00:00.000Z" for number in range(1, 8)]
    differs = [row["differs"] for row in rows]
    assert [difference["OMP_NUM_THREADS"] for difference in differs[:2]] == ["1", "2"]
    assert differs[2]["algorithm"] == "library, ring"
    assert (differs[1]["kernel"], differs[2]["kernel"]) == ("6.0.0-synthetic", "9.9")
    assert (differs[3] or {}).keys() == {"kernel"}, "no other run has its op"
    assert [differs[place]["dtype"] for place in (0, 4, 5)] == ["float32", "float64", "float32"]
    assert "mpi.library" not in differs[5], "no other run has its backend"
    assert [differs[place]["sizes"] for place in (0, 6)] == ["8 B to 1 MiB", "8 B"]
    apart = {json.dumps([row["label"], row["op"], row["backend"], row["differs"]]) for row in rows}
    assert len(apart) == 7
    shown = CliRunner().invoke(main, ["list", "runs", "--results-dir", str(tmp_path)]).stdout
    assert all(word in shown for word in ("before", "after", "OMP_NUM_THREADS 2", "algorithm library, ring"))
    assert max(map(len, shown.splitlines())) <= 80


def test_references_and_many_ops_and_hosts_are_counted_not_listed(tmp_path: Path) -> None:
    hosts = tuple(f"node{number}" for number in range(4))
    cases = [case(op, 8, nodes=4) for op in ("all_reduce", "all_gather", "broadcast", "reduce", "ping_pong")]
    stored = synthetic_run(cases, machine=Machine(hosts=hosts), launches=1, samples=3)
    asked = Sweep(ops=("all_reduce", "all_gather", "broadcast", "reduce"))
    run = planned(stored.run, sweep=(asked, Sweep(ops=("ping_pong",), baseline=True)))
    write_synthetic(tmp_path, replace(stored, run=run))
    (row,) = listing.rows("runs", tmp_path)
    assert (row["op"], row["host"], row["hosts"]) == (["all_reduce", "all_gather", "broadcast", "reduce"], "node0", 4)
    shown = CliRunner().invoke(main, ["list", "runs", "--results-dir", str(tmp_path)]).stdout
    assert "all_gather and 2 more" in shown
    assert "node0 and 3 more" in shown


FACTS = {
    "cpu": {"logical_cores": 8, "usable_cores": 2},
    "virtualization": "QEMU",
    "nics": [{"name": "lo", "kind": "loopback", "up": True}],
}


def test_the_doctor_says_what_matters_of_a_poor_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "host_facts", lambda: as_facts(FACTS))
    monkeypatch.setattr(environment, "load_average", lambda: 7.5)
    monkeypatch.setattr(machine, "read_cost_ns", lambda _clock: 65)
    examined = machine.examine()
    findings = "\n".join(str(finding) for finding in examined.findings)
    for said in ("2 usable cores", "2 of 8 cores", "QEMU", "7.5 on 2 cores", "network interface"):
        assert said in findings
    assert msgspec.json.decode(msgspec.json.encode(examined), type=machine.Examined) == examined


def test_a_clock_that_cannot_be_trusted_is_the_first_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        message = "perf_counter is a sundial"
        raise ClockError(message)

    monkeypatch.setattr(machine, "HostClock", broken)
    examined = machine.examine()
    assert examined.timer_ns is None
    assert "sundial" in examined.findings[0]


def test_suites_over_threads_are_counted_for_the_cores_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    counts: list[JSON] = []
    for cores in (1, 4):  # threads 1, and 1, 2, 4
        monkeypatch.setattr(environment, "cores_of_launcher", partial(int, cores))
        counts += [row["cases at 4 ranks"] for row in listing.rows("suites", tmp_path) if row["suite"] == "memory"]
    for_all_cores_alone = 10  # the largest arrays
    assert counts == [71, 3 * (71 - for_all_cores_alone) + for_all_cores_alone]


@pytest.mark.parametrize("reason", [None, "mpi4py cannot load an MPI library"])
def test_doctor_asks_the_mpi_library_itself(reason: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """An mpi4py without its library is installed, and measures nothing."""

    def chosen() -> tuple[str, str]:
        if reason is not None:
            raise LaunchError(reason)
        return "MPICH", "mpiexec"

    monkeypatch.setattr(mpiexec, "chosen", chosen)
    monkeypatch.setitem(BACKENDS, "mpi", replace(BACKENDS["mpi"], missing=lambda: None))
    here = {row["backend"]: row["here"] for row in machine.examine().backends}
    assert here["mpi"] == (reason or "yes")
