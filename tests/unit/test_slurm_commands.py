"""busbw submit and busbw status: what is refused before anything is submitted, what is handed over, what is listed."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from testing.command import busbw
from testing.synthetic import Machine, case, planned, synthetic_run, write_synthetic

from busbw import __version__
from busbw.backends.mpi.probe import SRUN_MPI
from busbw.errors import LaunchError
from busbw.launch.launchers import LAUNCHERS
from busbw.launch.mpiexec import FLAVOURS
from busbw.runs import store
from busbw.runs.plan import Timing, read_suite
from busbw.runs.records import JSON, Ended
from busbw.runs.store import StoredRun
from busbw.slurm import job_plan
from busbw.slurm.follow import Follower, Verdict

JOB = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[1-2]"}
WORLD = ("--nodes", "2", "--ranks-per-node", "4")


@pytest.fixture(autouse=True)
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Slurm of two programs: sbatch keeps the script and says 77, squeue says what is in a file."""
    monkeypatch.setattr(job_plan, "this_busbw", lambda: "/shared/venv/bin/busbw")
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, shell in (
        ("sbatch", f"cat > {tmp_path}/script; echo 77"),
        ("squeue", f"cat {tmp_path}/queue 2>/dev/null; exit 0"),
    ):
        (programs / name).write_text(f"#!/bin/sh\n{shell}\n", encoding="utf-8")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(*arguments: str) -> str:
    result = busbw(*arguments)
    assert result.exit_code == 2, result.output
    assert not Path("script").exists(), "nothing may be submitted"
    return result.stderr


# --- submit ----------------------------------------------------------------------------------------------------


def test_a_dry_run_prints_the_very_text_and_submits_nothing() -> None:
    shown = busbw("submit", "quick", *WORLD, "--dry-run", "--partition", "gpu", "--gpus-per-node", "8")
    assert shown.exit_code == 0
    assert not Path("script").exists()
    submitted = busbw("submit", "quick", *WORLD, "--partition", "gpu", "--gpus-per-node", "8")
    assert submitted.exit_code == 0
    assert Path("script").read_text() == shown.stdout
    assert "--partition=gpu\n" in shown.stdout
    assert "--gpus-per-node=8\n" in shown.stdout


def test_a_dry_run_in_json_holds_the_very_text(slurm: Path) -> None:
    shown = busbw("submit", "quick", *WORLD, "--dry-run")
    as_json = busbw("submit", "quick", *WORLD, "--dry-run", "--json")
    assert json.loads(as_json.stdout) == {"script": shown.stdout, "results": f"{slurm}/results"}
    assert as_json.stderr == shown.stderr
    assert not Path("script").exists()


def test_the_number_of_the_job_is_data_and_where_its_results_will_be_is_talk(slurm: Path) -> None:
    result = busbw("submit", "quick", *WORLD, "--results-dir", "my results")
    assert result.stdout == "77\n"
    assert f"{slurm}/busbw-77.out\n" in result.stderr
    assert Path("my results").is_dir()
    as_json = busbw("submit", "quick", *WORLD, "--json")
    assert json.loads(as_json.stdout) == {"job": "77", "results": f"{slurm}/results", "log": f"{slurm}/busbw-77.out"}


def test_a_plan_of_ones_own_is_handed_over_by_its_whole_path(slurm: Path) -> None:
    Path("my plan.toml").write_text('name = "mine"\nlaunches = 2\n[[sweep]]\nops = ["barrier"]\n')
    text = busbw("submit", "my plan.toml", *WORLD, "--launches", "6", "--dry-run").stdout
    assert f"run --plan '{slurm}/my plan.toml' --launches 6 --ranks 8\n" in text
    assert "--job-name=busbw-mine\n" in text


def test_a_path_is_handed_over_whole_and_is_not_looked_for_where_the_job_is_submitted(slurm: Path) -> None:
    text = busbw("submit", "storage", *WORLD, "--path", "my scratch", "--dry-run").stdout
    assert f" run --suite storage --path '{slurm}/my scratch' --ranks 8\n" in text
    assert not Path("my scratch").exists()


def test_how_long_ranks_wait_for_each_other_is_handed_over(slurm: Path) -> None:
    assert "300" in busbw("submit", "quick", *WORLD, "--timeout", "300", "--dry-run").stdout
    assert "--timeout" not in busbw("submit", "quick", *WORLD, "--dry-run").stdout
    broken_off(slurm / "results")
    again = busbw("submit", "--resume", "latest", "--timeout", "1e3", "--launches", "3", "--dry-run")
    assert "1000\n" in again.stdout


@pytest.mark.parametrize(
    ("limit", "fits"), [("10m", False), ("1h", False), ("30", True), ("1:30:00", True), ("1-0", True)]
)
def test_a_time_limit_that_sbatch_would_refuse_is_refused(limit: str, *, fits: bool) -> None:
    asked = ("submit", "quick", *WORLD, "--dry-run", "--time", limit)
    assert f"--time={limit}\n" in busbw(*asked).stdout if fits else "--time" in refused(*asked)


@pytest.mark.parametrize("seconds", ["0", "-5", "nan", "1e300"])
def test_a_timeout_that_is_none_is_refused_before_anything_is_submitted(slurm: Path, seconds: str) -> None:
    broken_off(slurm / "results")
    assert "--timeout: " in refused("submit", "quick", *WORLD, "--timeout", seconds)
    assert "--timeout: " in refused("submit", "--resume", "latest", "--timeout", seconds)


@pytest.mark.parametrize(("vendor", "mpi"), [("MPICH", "pmi2"), ("Intel MPI", "pmi2"), ("Open MPI", "pmix")])
def test_the_library_decides_how_srun_starts_ranks_of_mpi(
    monkeypatch: pytest.MonkeyPatch, vendor: str, mpi: str
) -> None:
    monkeypatch.setattr(job_plan, "vendor_of_library", lambda: vendor)
    assert f" --mpi={mpi} " in busbw("submit", "quick", *WORLD, "--backend", "mpi", "--dry-run").stdout
    assert " --mpi=none " in busbw("submit", "quick", *WORLD, "--backend", "mpi", "--mpi=none", "--dry-run").stdout
    assert "--mpi" not in busbw("submit", "quick", *WORLD, "--dry-run").stdout, "Gloo needs none"


def test_a_library_that_is_not_known_has_to_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_plan, "vendor_of_library", lambda: "MVAPICH")
    result = busbw("submit", "quick", *WORLD, "--backend", "mpi", "--dry-run")
    assert result.exit_code == 1
    assert "--mpi" in result.stderr

    monkeypatch.setattr(job_plan, "vendor_of_library", Mock(side_effect=LaunchError("there is no MPI library")))
    result = busbw("submit", "quick", *WORLD, "--backend", "mpi", "--dry-run")
    assert "--mpi" in result.stderr


def test_a_plan_is_checked_before_it_is_submitted() -> None:
    Path("bad.toml").write_text('[[sweep]]\nops = ["all_reduse"]\n')
    assert "'all_reduse'" in refused("submit", "bad.toml", *WORLD)
    Path("ranks.toml").write_text('ranks = 6\n[[sweep]]\nops = ["barrier"]\n')
    refused("submit", "ranks.toml", *WORLD)
    Path("groups.toml").write_text('[[sweep]]\nops = ["barrier"]\ngroups = "0,1;2,30"\n')
    assert "30" in refused("submit", "groups.toml", *WORLD)


@pytest.mark.parametrize(("status", "sentence"), [(0, "job 77 ended well"), (1, "job 77 ended TIMEOUT")])
def test_waiting_ends_with_the_verdict_of_the_job(monkeypatch: pytest.MonkeyPatch, status: int, sentence: str) -> None:
    monkeypatch.setattr(Follower, "follow", lambda _: Verdict(status, (sentence,)))
    result = busbw("submit", "quick", *WORLD, "--wait")
    assert result.exit_code == status
    assert result.stderr.endswith(f"{sentence}\n")


def test_ctrl_c_ends_the_following_and_not_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Follower, "follow", Mock(side_effect=KeyboardInterrupt))
    result = busbw("submit", "quick", *WORLD, "--wait")
    assert result.exit_code == 1
    assert "scancel" in result.stderr


# --- submit --resume -------------------------------------------------------------------------------------------


def broken_off(results: Path, hosts: tuple[str, ...] = ("n1.example.org", "n2.example.org"), **facts: JSON) -> Path:
    """A run of two launches in Slurm, of which one was measured."""
    stored = synthetic_run(
        [case("all_reduce", 64)], machine=Machine(hosts=hosts, facts={"variables": JOB, **facts}), launches=2, samples=3
    )
    wanted = msgspec.structs.replace(read_suite("quick"), launches=2, ranks=None)
    run = msgspec.structs.replace(stored.run, plan=wanted, launcher="srun")
    return write_synthetic(results, StoredRun(stored.path, run, stored.rows[:2], ()))


def test_a_run_that_is_resumed_goes_to_the_nodes_it_began_on(slurm: Path) -> None:
    folder = broken_off(slurm / "results", node={"name": "cn-01"})
    text = busbw("submit", "--resume", "latest", "--dry-run").stdout
    assert f"{folder}\n" in text
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=2\n" in text
    assert "--nodelist=cn-01\n" in text, "the names that Slurm has for the nodes"
    assert "--nodelist=n7\n" in busbw("submit", "--resume", "latest", "--nodelist=n7", "--dry-run").stdout


def test_nodes_that_were_not_recorded_are_taken_from_the_names_of_the_hosts(slurm: Path) -> None:
    broken_off(slurm / "results")
    assert "--nodelist=n1,n2\n" in busbw("submit", "--resume", "latest", "--dry-run").stdout


def test_a_run_is_resumed_in_a_world_like_its_own_alone(slurm: Path) -> None:
    broken_off(slurm / "results")
    refused("submit", "--resume", "latest", "--nodes", "4")
    refused("submit", "--resume", "latest", "--ranks-per-node", "3")
    same = ("--nodes", "2", "--ranks-per-node", "2")
    assert busbw("submit", "--resume", "latest", *same, "--dry-run").exit_code == 0


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"launcher": "mpirun"}, "mpirun"),
        ({"launcher": "local"}, "local"),
        ({"busbw": "0.0.1"}, f"busbw: 0.0.1 then, {__version__} now); start a new run"),
    ],
)
def test_a_run_that_no_job_can_go_on_with_is_not_submitted(slurm: Path, changed: dict[str, str], words: str) -> None:
    stored = store.read(broken_off(slurm / "results"))
    run = msgspec.structs.replace(stored.run, **changed)
    folder = write_synthetic(slurm / "other", StoredRun(stored.path, run, stored.rows, ()))
    result = busbw("submit", "--resume", str(folder))
    assert result.exit_code == 1
    assert words in result.stderr
    assert not Path("script").exists(), "nothing may be submitted"


def test_of_another_busbw_on_the_nodes_nothing_is_said(slurm: Path) -> None:
    stored = store.read(broken_off(slurm / "results"))
    run = msgspec.structs.replace(stored.run, busbw="0.0.1")
    folder = write_synthetic(slurm / "other", StoredRun(stored.path, run, stored.rows, ()))
    assert busbw("submit", "--resume", str(folder), "--busbw", "/shared/old/busbw", "--dry-run").exit_code == 0


def test_a_run_of_one_rank_is_that_of_a_step_of_one_task(slurm: Path) -> None:
    plan = store.read_run(broken_off(slurm / "results")).plan
    stored = synthetic_run([case("all_reduce", 64, 1)], machine=Machine(hosts=("n1",)), launches=1, samples=3)
    for launcher, status in (("local", 0), ("srun", 1)):
        run = msgspec.structs.replace(stored.run, plan=plan, launcher=launcher)
        folder = write_synthetic(slurm / launcher, StoredRun(stored.path, run, stored.rows[:2], ()))
        assert busbw("submit", "--resume", str(folder), "--dry-run").exit_code == status


def test_a_whole_run_is_not_submitted_again_but_for_more_launches(slurm: Path) -> None:
    stored = store.read(broken_off(slurm / "results"))
    whole = synthetic_run([case("all_reduce", 64)], machine=Machine(hosts=("n1", "n2")), launches=1, samples=3)
    plan = planned(stored.run, launches=1, timing=Timing(blocks=1)).plan
    run = msgspec.structs.replace(whole.run, launcher="srun", plan=plan)
    folder = write_synthetic(slurm / "other", StoredRun(whole.path, run, whole.rows, ()))
    refused("submit", "--resume", str(folder))
    more = busbw("submit", "--resume", str(folder), "--launches", "4", "--dry-run")
    assert more.exit_code == 0
    assert f"run --resume {folder} --launches 4\n" in more.stdout


@pytest.mark.parametrize(
    ("queued", "words"),
    [
        ("12|12|RUNNING|None|n[1-2]|(null)|busbw-quick", "RUNNING"),
        ("12|12|PENDING|BeginTime||(null)|busbw-quick", "BeginTime"),
        ("15|15|RUNNING|None|n[3-4]|resumes RUN|busbw-quick", "RUNNING"),
        ("15|15|PENDING|Resources||resumes RUN|busbw-quick", "Resources"),
    ],
)
def test_a_run_that_a_job_goes_on_with_is_not_submitted_a_second_time(slurm: Path, queued: str, words: str) -> None:
    folder = broken_off(slurm / "results")
    (slurm / "queue").write_text(f"{queued.replace('RUN|', f'{folder.name}|')}\n")
    result = busbw("submit", "--resume", "latest")
    assert result.exit_code == 1
    assert words in result.stderr
    assert not Path("script").exists(), "nothing may be submitted"


@pytest.mark.parametrize(
    "queued",
    [
        "12|12|TIMEOUT|None||(null)|busbw-quick",
        "12|12|RUNNING|None|n[3-4]|(null)|busbw-quick",  # requeued onto other nodes, where it began another run
        "15|15|FAILED|None||resumes RUN|busbw-quick",
        "16|16|RUNNING|None|n[1-2]|resumes another|busbw-quick",
    ],
)
def test_jobs_that_leave_a_run_alone_do_not_keep_it_from_being_resumed(slurm: Path, queued: str) -> None:
    folder = broken_off(slurm / "results")
    (slurm / "queue").write_text(f"{queued.replace('RUN|', f'{folder.name}|')}\n")
    assert busbw("submit", "--resume", "latest").exit_code == 0
    assert f"{folder}\n" in Path("script").read_text()


# --- status ----------------------------------------------------------------------------------------------------


def listed(*arguments: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(busbw("status", "--json", *arguments).stdout)
    return rows


def test_jobs_and_runs_stand_side_by_side(slurm: Path) -> None:
    folder = broken_off(slurm / "results")
    (slurm / "queue").write_text(
        "12|12|RUNNING|None|n[1-2]|(null)|busbw-quick\n"
        "13|13|PENDING|Resources||(null)|busbw-full\n"
        "14|14|RUNNING|None|n3|(null)|something else\n"
    )
    mine = {"job": "12", "state": "RUNNING", "reason": None, "run": str(folder.relative_to(slurm)), "ended": None}
    waiting = {"job": "13", "state": "PENDING", "reason": "Resources", "run": None, "blocks": None, "ended": None}
    assert listed() == [waiting, {**mine, "blocks": "1 of 2"}]
    table = busbw("status").stdout
    assert [line.split()[:2] for line in table.splitlines()] == [["job", "state"], ["13", "PENDING"], ["12", "RUNNING"]]


def test_a_job_that_has_yet_to_resume_a_run_is_shown_beside_it(slurm: Path) -> None:
    folder = broken_off(slurm / "results")
    (slurm / "queue").write_text(
        f"12|12|TIMEOUT|None||(null)|busbw-quick\n15|15|PENDING|Priority||resumes {folder.name}|busbw-quick\n"
    )
    coming, ended = listed()
    assert (coming["job"], coming["state"], coming["reason"]) == ("15", "PENDING", "Priority")
    assert (ended["job"], ended["state"], ended["reason"]) == ("12", "TIMEOUT", None)
    assert coming["run"] == ended["run"] == str(folder.relative_to(slurm))


INTERRUPTED = Ended(status="interrupted", reason="1 launch(es) are still missing", ended="2026-01-02T03:04:05.000Z")


def between_launches(results: Path, *resumed_in: str) -> Path:
    """A run that job 12 began on n[1-2], after the first of its two launches; these jobs tried to go on with it."""
    later: list[JSON] = [{"launch": 1, "variables": {**JOB, "SLURM_JOB_ID": job}} for job in resumed_in]
    folder = broken_off(results, resumed=later)
    with store.Appender(folder) as appender:
        appender.append(INTERRUPTED)
    return folder


def test_every_job_of_a_run_has_its_row_and_the_one_that_goes_on_comes_first(slurm: Path) -> None:
    folder = between_launches(slurm / "results", "13")
    (slurm / "queue").write_text(
        f"13|13|FAILED|NonZeroExitCode||resumes {folder.name}|busbw-quick\n"
        "12|12|RUNNING|None|n[1-2]|(null)|busbw-quick\n"
    )
    assert [(row["job"], row["state"], row["blocks"], row["ended"]) for row in listed()] == [
        ("12", "RUNNING", "1 of 2", None),
        ("13", "FAILED", "1 of 2", None),
    ], "what a step wrote between two launches is no end"
    (slurm / "queue").write_text("13|13|FAILED|None||(null)|busbw-quick\n12|12|TIMEOUT|None||(null)|busbw-quick\n")
    assert [(row["job"], row["ended"]) for row in listed()] == [
        (job, "interrupted: 1 launch(es) are still missing") for job in ("13", "12")
    ]


def test_jobs_that_go_on_come_first_then_the_newest_and_runs_without_a_job_last(slurm: Path) -> None:
    broken_off(slurm / "results")
    broken_off(slurm / "results", variables={})
    (slurm / "queue").write_text(
        "9|9|RUNNING|None|n3|(null)|busbw-a\n"
        "11|11|COMPLETED|None||(null)|busbw-b\n"
        "100|100|FAILED|None||(null)|busbw-c\n"
        "10|10|PENDING|Priority||(null)|busbw-d\n"
    )
    assert [(row["job"], row["state"]) for row in listed()] == [
        ("10", "PENDING"),
        ("9", "RUNNING"),
        ("100", "FAILED"),
        ("12", None),
        ("11", "COMPLETED"),
        (None, None),
    ]


def test_runs_are_listed_when_slurm_has_forgotten_their_jobs_or_is_not_there(
    slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_off(slurm / "results")
    (row,) = listed()
    assert (row["job"], row["state"]) == ("12", None)
    (slurm / "programs/squeue").write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1\n")
    result = busbw("status")
    assert result.exit_code == 0
    assert "squeue" in result.stderr
    monkeypatch.setenv("PATH", str(slurm / "nothing"))
    assert "PATH" in busbw("status").stderr


def test_a_run_that_cannot_be_read_is_listed_with_the_reason(slurm: Path) -> None:
    folder = broken_off(slurm / "results")
    (folder / store.SAMPLES_FILE).write_text("nonsense\nnonsense\n")
    assert listed()[0]["ended"].startswith("unreadable: ")


def test_every_launcher_that_starts_from_mpiexec_has_a_flag_for_srun() -> None:
    assert set(SRUN_MPI) == set(FLAVOURS)
    assert "srun" in LAUNCHERS
