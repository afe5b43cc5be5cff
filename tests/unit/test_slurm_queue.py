"""Slurm's commands as busbw calls them, with programs of that name in PATH that answer what the test says."""

from collections.abc import Callable
from pathlib import Path

import pytest

from busbw.errors import LaunchError
from busbw.slurm import jobs

Answers = Callable[[str, str], None]


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Put a program called so, with this shell in it, into PATH, where there is nothing else of Slurm."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")

    def make(name: str, shell: str) -> None:
        (programs / name).write_text(f"#!/bin/sh\n{shell}\n", encoding="utf-8")
        (programs / name).chmod(0o755)

    return make


def test_a_script_is_handed_over_and_the_number_comes_back(answers: Answers, tmp_path: Path) -> None:
    answers("sbatch", f'echo "$@" > {tmp_path}/argv; cat > {tmp_path}/script; echo "1234;cluster"')
    assert jobs.submit("#!/bin/bash\ntrue\n") == "1234"
    assert (tmp_path / "argv").read_text().split() == ["--parsable"]
    assert (tmp_path / "script").read_text() == "#!/bin/bash\ntrue\n"


def test_what_slurm_refuses_is_told_in_its_words(answers: Answers) -> None:
    answers("sbatch", "echo 'sbatch: error: invalid partition specified: nosuch' >&2; exit 1")
    with pytest.raises(LaunchError, match="nosuch"):
        jobs.submit("")


def test_an_answer_without_a_number_is_none(answers: Answers) -> None:
    answers("sbatch", "echo 'Submitted, more or less'")
    with pytest.raises(LaunchError, match="Submitted"):
        jobs.submit("")


def test_without_slurm_it_is_said_where_to_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LaunchError, match="PATH"):
        jobs.submit("")


def test_a_controller_that_does_not_answer_is_named(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_ANSWERS_SECONDS", 0.1)
    answers("squeue", "exec sleep 5")
    with pytest.raises(LaunchError, match="controller"):
        jobs.job("1")


def test_jobs_are_read_field_by_field_whatever_their_name_holds(answers: Answers) -> None:
    answers(
        "squeue",
        "echo '12|12|RUNNING|None|n[1-2]|(null)|busbw-a|b'; echo '15|14_2|PENDING|Resources||resumes x|busbw-c'",
    )
    running, pending = jobs.mine()
    assert (running.id, running.reason, running.nodes, running.name) == ("12", None, "n[1-2]", "busbw-a|b")
    assert (pending.id, pending.shown, pending.comment) == ("15", "14_2", "resumes x")


def test_a_job_that_slurm_has_forgotten_is_none(answers: Answers) -> None:
    answers("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert jobs.job("7") == ()


def test_other_errors_of_squeue_are_told(answers: Answers) -> None:
    answers("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(LaunchError, match="controller"):
        jobs.job("7")


@pytest.mark.parametrize(
    ("reason", "hint"), [("PartitionNodeLimit", "requested"), ("ReqNodeNotAvail, UnavailableNodes:n3", "reserved")]
)
def test_a_reason_that_waiting_does_not_remove_is_explained(answers: Answers, reason: str, hint: str) -> None:
    answers("squeue", f"echo '12|12|PENDING|{reason}||(null)|busbw'")
    (job,) = jobs.job("12")
    assert reason in job.in_words()
    assert hint in job.in_words()


@pytest.mark.parametrize(
    ("state", "ended"), [("COMPLETED", True), ("TIMEOUT", True), ("NODE_FAIL", True), ("COMPLETING", False)]
)
def test_a_job_has_ended_when_nothing_more_will_happen(answers: Answers, state: str, *, ended: bool) -> None:
    answers("squeue", f"echo '12|12|{state}|None|n1|(null)|busbw'")
    assert jobs.job("12")[0].ended is ended
