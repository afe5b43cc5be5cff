"""One step a launch: a job goes on with its run until it is whole, and stops when a launch is broken off.

A function stands in for srun; it does to the run folder what ranks would do.
"""

import functools
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from testing.fakes import QUICK
from testing.synthetic import Machine, case, synthetic_run, write_synthetic

from busbw.backends.signing import new_secret
from busbw.cli.main import main
from busbw.errors import LaunchError, UsageError
from busbw.runs import store
from busbw.runs.facts import ResumedJob
from busbw.runs.plan import Plan, Sweep
from busbw.runs.progress import Progress, outline, progress_of
from busbw.runs.records import Ended, Failed, Row
from busbw.runs.resume import lack_of, plan_of
from busbw.runs.store import StoredRun
from busbw.slurm.jobs import JobRuns
from busbw.slurm.steps import carry_out

CASES = [case("all_reduce", 64), case("barrier", 0)]
LAUNCHES = 3
RUN = ("srun", "--mpi=pmi2", "busbw", "run")
JOB = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[1-2]"}
BROKEN = Ended(status="interrupted", reason="by a signal", ended="2026-01-02T03:04:05.000Z")


def progress_at(folder: Path) -> Progress:
    return progress_of(outline(folder))


def is_whole(folder: Path) -> bool:
    return progress_at(folder).measured == progress_at(folder).wanted


def run_of(job: str = "12", nodes: str = "n[1-2]", launches: int = LAUNCHES) -> StoredRun:
    """A whole run of so many launches, begun in this job."""
    variables = {"SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": nodes}
    stored = synthetic_run(
        CASES,
        machine=Machine(hosts=("n1", "n2"), facts={"variables": variables}),
        launches=launches,
        blocks=2,
        samples=3,
    )
    plan = Plan(launches=LAUNCHES, timing=msgspec.structs.replace(QUICK, blocks=2), sweep=(Sweep(ops=("all_reduce",)),))
    run = msgspec.structs.replace(stored.run, plan=plan)
    return StoredRun(stored.path, run, stored.rows, ())


def write(results: Path, stored: StoredRun, rows: Sequence[Row]) -> Path:
    return write_synthetic(results, StoredRun(stored.path, stored.run, tuple(rows), ()))


class Steps:
    """What srun does with each step: a launch of the run that is ``well``, ``broken`` off, has a ``failed`` case, or
    ``none`` at all; the last fate holds for all that follow. ``options`` are the options of ``busbw run`` of each.
    """

    def __init__(self, *fates: str) -> None:
        self.fates = list(fates)
        self.options: list[list[str]] = []
        self.secrets: list[str] = []

    def __call__(self, argv: Sequence[str], variables: Mapping[str, str]) -> int:
        options = list(argv[list(argv).index("busbw") + 2 :])
        self.options.append(options)
        self.secrets.append(variables["BUSBW_SECRET"])
        fate = self.fates.pop(0) if len(self.fates) > 1 else self.fates[0]
        return 143 if fate == "none" else _measure(Path(variables["BUSBW_RESULTS_DIR"]), options, fate)


def _measure(results: Path, options: list[str], fate: str) -> int:
    stored = run_of()
    if options[0] == "--resume":
        folder = store.find(results, options[1])
        there = store.read(folder)
        lack = lack_of(there, plan_of(there.run, None))
        if not lack.launches:
            return 0
        launch, blocks = lack.first, lack.launches[0].blocks
        left, resumes = len(lack.launches) - 1, lack.launches[0].resumes
    else:
        folder = store.create(results, "bed")
        store.write_run(folder, stored.run)
        launch, resumes, left = 0, None, LAUNCHES - 1
        blocks = frozenset((place, block) for place in range(len(CASES)) for block in range(2))
    rows: list[Row] = [msgspec.structs.replace(stored.launches[0], launch=launch, resumes=resumes)]
    for place, block in sorted(blocks)[: 1 if fate == "broken" else None]:
        like = next(row for row in stored.measurements if row.case == CASES[place])
        failed = fate == "failed" and place == 0
        rows.append(
            Failed(case=CASES[place], launch=launch, block=block, error="wrong", cause="backend")
            if failed
            else msgspec.structs.replace(like, launch=launch, block=block)
        )
    missing = msgspec.structs.replace(BROKEN, reason=f"{left} launch(es) are still missing")
    rows.append(BROKEN if fate == "broken" else missing if left else msgspec.structs.replace(BROKEN, status="complete"))
    with store.Appender(folder) as appender:
        for row in rows:
            appender.append(row)
    return 0 if fate == "well" else 1


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


def test_a_step_a_launch_until_the_run_is_whole(results: Path) -> None:
    steps = Steps("well")
    folder, code = carry_out([*RUN, "--suite", "quick", "--quiet"], results, JOB, steps)
    assert code == 0
    resumed = ["--resume", str(folder), "--quiet"]
    assert steps.options == [["--suite", "quick", "--quiet"], resumed, resumed]
    assert (
        progress_at(folder).with_blocks_and_end()
        == "12 of 12 blocks, 3 of 3 launches are complete; complete: by a signal"
    )


def test_the_steps_of_a_job_have_a_secret_of_their_own_unless_there_is_one(results: Path) -> None:
    made, given = Steps("well"), Steps("well")
    carry_out([*RUN, "--suite", "quick"], results, JOB, made)
    assert len(made.secrets) == LAUNCHES
    assert len(set(made.secrets)) == 1
    assert len(made.secrets[0]) >= 32
    carry_out(
        [*RUN, "--suite", "quick"], results.with_name("others"), {**JOB, "BUSBW_SECRET": "0123456789abcdef"}, given
    )
    assert set(given.secrets) == {"0123456789abcdef"}
    assert made.secrets[0] != new_secret()


@pytest.mark.parametrize("timeout", [["--timeout", "300"], ["--timeout=300"]])
def test_every_launch_is_told_how_long_its_ranks_wait_for_each_other(results: Path, timeout: list[str]) -> None:
    steps = Steps("well")
    folder, _ = carry_out([*RUN, "--suite", "quick", *timeout, "--quiet"], results, JOB, steps)
    assert steps.options[1:] == [["--resume", str(folder), "--timeout=300", "--quiet"]] * 2


def test_a_launch_that_is_broken_off_ends_the_job_and_says_what_goes_on(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = Steps("well", "broken")
    folder, code = carry_out([*RUN, "--suite", "quick"], results, JOB, steps)
    assert code == 1
    assert len(steps.options) == 2
    said = capsys.readouterr().err
    assert folder.name in said


@pytest.mark.parametrize("fates", [("failed", "well", "failed"), ("well", "failed", "failed")])
def test_a_case_that_failed_does_not_keep_the_other_launches_from_being_measured(
    results: Path, fates: tuple[str, ...]
) -> None:
    steps = Steps(*fates)
    folder, code = carry_out([*RUN, "--suite", "quick"], results, JOB, steps)
    assert len(steps.options) == 3
    assert progress_at(folder).measured == 6, "3 launches of the case that is left"
    assert code == 1, "busbw's own status of the last step says that a case has failed"


def test_a_job_that_was_requeued_goes_on_with_its_run(results: Path) -> None:
    stored = run_of()
    other = write(results, run_of(job="11"), stored.rows[:2])
    mine = write(results, stored, stored.rows[:2])
    steps = Steps("well")
    again = {**JOB, "SLURM_RESTART_COUNT": "1"}
    folder, code = carry_out([*RUN, "--suite", "quick", "--quiet"], results, again, steps)
    assert (folder, code) == (mine, 0)
    assert steps.options[0] == ["--resume", str(mine), "--quiet"]
    assert is_whole(folder)
    assert not is_whole(other)


def test_a_job_that_was_requeued_onto_other_nodes_begins_another_run(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = run_of(nodes="n[3-4]")
    before = write(results, stored, stored.rows[:2])
    steps = Steps("well")
    folder, code = carry_out([*RUN, "--suite", "quick"], results, {**JOB, "SLURM_RESTART_COUNT": "2"}, steps)
    assert code == 0
    assert folder != before
    assert steps.options[0] == ["--suite", "quick"]
    assert "requeued" in capsys.readouterr().err


def test_a_job_that_was_requeued_begins_another_run_if_a_controller_chose_the_rounds(results: Path) -> None:
    stored = run_of()
    plan = Plan(controller="fleet", timing=QUICK, sweep=(Sweep(ops=("ping_pong",), groups="asked"),))
    asked = msgspec.structs.replace(stored.run, plan=plan)
    before = write(results, StoredRun(stored.path, asked, stored.rows, ()), stored.rows[:2])
    steps = Steps("well")
    folder, code = carry_out([*RUN, "--suite", "fleet"], results, {**JOB, "SLURM_RESTART_COUNT": "1"}, steps)
    assert (folder != before, code) == (True, 0)
    assert steps.options[0] == ["--suite", "fleet"]


def test_a_run_that_is_resumed_is_gone_on_with_until_it_is_whole(results: Path) -> None:
    stored = run_of(job="7")
    before = write(results, stored, stored.rows[:2])
    steps = Steps("well")
    folder, code = carry_out([*RUN, "--resume", before.name], results, JOB, steps)
    assert (folder, code) == (before, 0)
    assert steps.options[0] == ["--resume", before.name]
    assert is_whole(folder)


@pytest.mark.parametrize("option", [("--resume", "latest"), ("--resume=latest",)])
def test_a_step_that_measures_nothing_is_not_started_again(results: Path, option: tuple[str, ...]) -> None:
    stored = run_of(job="7")
    write(results, stored, [row for row in stored.rows if getattr(row, "launch", 1) == 0])
    steps = Steps("none")
    _, code = carry_out([*RUN, *option], results, JOB, steps)
    assert code == 1
    assert len(steps.options) == 1


def test_steps_that_leave_no_run_are_errors(results: Path) -> None:
    with pytest.raises(LaunchError):
        carry_out([*RUN, "--suite", "quick"], results, JOB, Steps("none"))
    with pytest.raises(UsageError):
        carry_out([*RUN, "--suite", "nosuch"], results, JOB, lambda *_: 2)
    with pytest.raises(LaunchError):
        carry_out([*RUN, "--results-dir", "/elsewhere"], results, JOB, lambda *_: 0)


def test_a_command_that_runs_no_busbw_run_is_refused(tmp_path: Path) -> None:
    for command in (["srun", "hostname"], ["srun", "apptainer", "run", "x.sif"], ["run", "--suite", "quick"]):
        with pytest.raises(UsageError):
            carry_out(command, tmp_path, JOB, Steps("none"))


# --- the command -----------------------------------------------------------------------------------------------


def launches(results: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "busbw", "launches", "--results-dir", str(results), *command],
        env={"PATH": "/usr/bin:/bin", **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_outside_of_a_job_the_command_says_where_it_belongs(tmp_path: Path) -> None:
    ended = launches(tmp_path, "srun", "busbw", "run", "--suite", "quick")
    assert ended.returncode == 2


def test_what_steps_print_is_talk_and_what_cannot_be_started_is_named(tmp_path: Path) -> None:
    ended = launches(tmp_path, "/bin/echo", "the table", "busbw", "run", **JOB)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("the table busbw run\nbusbw: the step succeeded, but there is no run")
    ended = launches(tmp_path, "/nowhere/srun", "busbw", "run", **JOB)
    assert (ended.returncode, "/nowhere/srun" in ended.stderr) == (1, True)


def test_a_signal_that_ends_the_job_is_outlived_until_the_step_has_ended(tmp_path: Path) -> None:
    step = tmp_path / "srun"
    step.write_text("#!/bin/sh\nkill -TERM $PPID; kill -USR1 $PPID; sleep 0.2; echo the last word; exit 3\n")
    step.chmod(0o755)
    ended = launches(tmp_path, str(step), "busbw", "run", **JOB)
    assert ended.returncode == 1


def test_the_folder_is_printed_and_the_status_is_that_of_the_run(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("busbw.slurm.steps.carry_out", functools.partial(carry_out, start=Steps("well", "broken")))
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)
    result = CliRunner().invoke(main, ["launches", "--results-dir", str(results), *RUN, "--suite", "quick"])
    assert result.exit_code == 1
    assert result.stdout == f"{next(store.folders(results))}\n"


# --- whose run -------------------------------------------------------------------------------------------------


def test_a_run_belongs_to_every_job_that_measured_it(tmp_path: Path) -> None:
    stored = run_of(job="7")
    folder = write_synthetic(tmp_path, stored)
    runs = JobRuns(tmp_path)
    assert [stay.job for stay in runs.jobs(folder)] == ["7"]
    resumed = (ResumedJob(launch=1, variables={"SLURM_JOB_ID": "9", "SLURM_JOB_NODELIST": "n[1-2]"}),)
    environments = {
        host: msgspec.structs.replace(facts, resumed=resumed) for host, facts in stored.run.environments.items()
    }
    store.write_run(folder, msgspec.structs.replace(stored.run, environments=environments))
    assert [stay.job for stay in runs.jobs(folder)] == ["7", "9"]
    assert list(runs.of("9")) == [folder]
    assert list(runs.of("9", "n[3-4]")) == []
    (folder / store.RUN_FILE).write_text("{}")
    assert list(runs.of("9")) == []
