"""Following a job: what is said and when, and the verdict; Slurm's answers are told in turns."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from testing.synthetic import Machine, SyntheticEnd, case, synthetic_run, write_synthetic

from busbw.errors import LaunchError
from busbw.runs import store
from busbw.runs.records import Row
from busbw.slurm import jobs
from busbw.slurm.follow import Follower
from busbw.slurm.jobs import JobRuns, QueuedJob

VARIABLES = {"SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "n[1-2]"}
STORED = synthetic_run(
    [case("all_reduce", 64)],
    machine=Machine(facts={"variables": VARIABLES}),
    launches=2,
    samples=3,
    end=SyntheticEnd(ended="complete"),
)


def job(state: str, reason: str | None = None, number: str = "12", shown: str = "12") -> QueuedJob:
    return QueuedJob(number, shown, state, reason, "n[1-2]" if state == "RUNNING" else "", "", "busbw-quick")


class Cluster:
    """Answers one after the other, an error where that is one; the run grows by a row at each."""

    def __init__(self, folder: Path | None, *answers: Sequence[QueuedJob] | LaunchError) -> None:
        self.answers = list(answers)
        self.rows: list[Row] = list(STORED.rows)
        self.folder = folder
        self.clock = 0.0
        self.pauses: list[float] = []

    def __call__(self, number: str) -> tuple[QueuedJob, ...]:
        assert number == "12"
        answer = self.answers.pop(0)
        if isinstance(answer, LaunchError):
            raise answer
        if self.folder is not None and answer and answer[0].state == "RUNNING" and self.rows:
            with store.Appender(self.folder) as appender:
                appender.append(self.rows.pop(0))
        return tuple(answer)

    def pause(self, seconds: float) -> None:
        self.clock += seconds
        self.pauses.append(seconds)

    def now(self) -> float:
        return self.clock


def followed(
    cluster: Cluster, results: Path, monkeypatch: pytest.MonkeyPatch, log: Path | None = None
) -> tuple[int, list[str], list[str]]:
    """Exit status, what was said on the way, and the sentences of the verdict."""
    monkeypatch.setattr(jobs, "job", cluster)
    said: list[str] = []
    verdict = Follower("12", JobRuns(results), said.append, log, None, cluster.pause, cluster.now).follow()
    return verdict.status, said, list(verdict.sentences)


def how_they_ended(verdict: Sequence[str]) -> list[tuple[str, str | None]]:
    """The tasks whose end was seen, each with the state that Slurm gave it; None: it was good."""
    words = [sentence.split() for sentence in verdict if sentence.startswith("job ")]
    return [(name, None if how == "well" else how.rstrip(":")) for _, name, _, how, *_ in words]


def begun(results: Path) -> Path:
    folder = store.create(results, "bed")
    store.write_run(folder, STORED.run)
    return folder


def test_what_changes_is_said_once_and_the_end_is_a_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = begun(tmp_path)
    running = [job("RUNNING")]
    requeued = [job("PENDING", "BeginTime")]
    cluster = Cluster(folder, [job("PENDING", "Resources")], *[running] * 7, requeued, running, [job("COMPLETED")])
    status, said, _ = followed(cluster, tmp_path, monkeypatch)
    assert status == 0
    assert [sentence.partition(": ")[2].partition(" ")[0] for sentence in said] == [
        *("PENDING", "0", "RUNNING", "1", "2", "PENDING", "RUNNING", "COMPLETED"),
    ]


def test_a_long_job_is_asked_for_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(None, *[[job("RUNNING")]] * 400, [job("COMPLETED")])
    followed(cluster, tmp_path, monkeypatch)
    assert cluster.pauses[0] == 2
    assert cluster.pauses[-1] == 10
    assert cluster.pauses == sorted(cluster.pauses)


@pytest.mark.parametrize("state", sorted(jobs.ENDED_BADLY))
def test_a_bad_end_is_explained_with_the_last_words_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    log = tmp_path / "busbw-12.out"
    log.write_text("\n".join(f"line {number}" for number in range(40)) + "\nbusbw: rank 1 died\n")
    status, _, verdict = followed(Cluster(None, [job(state)]), tmp_path, monkeypatch, log)
    assert status == 1
    assert str(tmp_path) in verdict[1]
    assert str(log) in verdict[2]
    assert len(verdict) == 15
    _, _, verdict = followed(Cluster(None, [job(state)]), tmp_path, monkeypatch, tmp_path / "none")
    assert f"{tmp_path}/none" in verdict[-1]


def test_the_worst_task_of_an_array_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = job("COMPLETED", number="13", shown="12_1"), job("PENDING", "Resources", shown="12_[2,4%1]")
    done = [first, job("TIMEOUT", number="14", shown="12_2"), job("COMPLETED", number="12", shown="12_4")]
    status, said, verdict = followed(Cluster(None, [first, second], done), tmp_path, monkeypatch)
    assert status == 1
    assert any("12_[2,4%1]" in sentence and "Resources" in sentence for sentence in said)
    assert how_they_ended(verdict) == [("12_1", None), ("12_2", "TIMEOUT"), ("12_4", None)]


def test_a_task_that_slurm_has_forgotten_meanwhile_is_judged_as_it_was_seen_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed, second = job("FAILED", number="13", shown="12_1"), job("RUNNING", shown="12_2")
    answers = [[failed, second], [second], [job("COMPLETED", shown="12_2")]]
    status, _, verdict = followed(Cluster(None, *answers), tmp_path, monkeypatch)
    assert status == 1
    assert how_they_ended(verdict) == [("12_1", "FAILED"), ("12_2", None)]
    well = [[job("COMPLETED", number="13", shown="12_1"), second], [second], [job("COMPLETED", shown="12_2")]]
    assert followed(Cluster(None, *well), tmp_path, monkeypatch)[0] == 0


def test_tasks_whose_end_nobody_has_seen_are_not_called_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, waiting = job("RUNNING", number="13", shown="12_1"), job("PENDING", "Resources", shown="12_[2,4%1]")
    last = [job("COMPLETED", shown="12_4")]
    away = LaunchError("squeue refused: Unable to contact slurm controller")
    cluster = Cluster(None, [first, waiting], away, last)
    status, _, verdict = followed(cluster, tmp_path, monkeypatch)
    assert status == 1
    assert how_they_ended(verdict) == [("12_4", None)]
    assert any("12_1" in sentence and "RUNNING" in sentence for sentence in verdict)
    status, _, verdict = followed(Cluster(None, [waiting], []), tmp_path, monkeypatch)
    assert status == 1
    assert "12_[2,4%1]" in verdict[0]
    assert "Resources" in verdict[0]


def test_tasks_that_were_cancelled_while_they_waited_are_named_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done, cancelled = job("COMPLETED", number="13", shown="12_1"), job("CANCELLED", shown="12_[2,4%1]")
    status, _, verdict = followed(Cluster(None, [done, cancelled]), tmp_path, monkeypatch)
    assert status == 1
    assert how_they_ended(verdict) == [("12_1", None), ("12_[2,4%1]", "CANCELLED")]
    assert not any("12_2" in sentence or "12_4" in sentence for sentence in verdict)


def test_a_controller_that_is_away_for_a_while_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    away = LaunchError("squeue refused: Unable to contact slurm controller")
    cluster = Cluster(None, [job("RUNNING")], away, away, [job("COMPLETED")])
    status, said, _ = followed(cluster, tmp_path, monkeypatch)
    assert status == 0
    assert sum(str(away) in sentence for sentence in said) == 1
    with pytest.raises(LaunchError) as caught:
        followed(Cluster(None, [job("RUNNING")], *[away] * 400), tmp_path, monkeypatch)
    assert caught.value is away


def test_a_job_that_slurm_has_forgotten_is_not_called_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    status, _, verdict = followed(Cluster(None, [job("RUNNING")], []), tmp_path, monkeypatch)
    assert (status, how_they_ended(verdict)) == (1, [])
    status, _, verdict = followed(Cluster(None, []), tmp_path, monkeypatch)
    assert (status, how_they_ended(verdict), len(verdict)) == (1, [], 1)


def test_the_run_that_a_job_resumes_is_the_one_that_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = msgspec.structs.replace(STORED.run, environments={})
    folder = write_synthetic(tmp_path, store.StoredRun(STORED.path, other, STORED.rows, ()))
    cluster = Cluster(None, [job("COMPLETED")])
    monkeypatch.setattr(jobs, "job", cluster)
    verdict = Follower("12", JobRuns(tmp_path), lambda _: None, None, folder, cluster.pause, cluster.now).follow()
    assert verdict.sentences[1].startswith(f"run {folder.name}: 2 of 2 blocks")


def test_a_run_that_cannot_be_read_does_not_end_the_following(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = begun(tmp_path)
    (folder / store.SAMPLES_FILE).write_text("nonsense\nnonsense\n")
    status, said, _ = followed(Cluster(None, [job("RUNNING")], [job("COMPLETED")]), tmp_path, monkeypatch)
    assert status == 0
    assert any(sentence.startswith(f"run {folder.name}: cannot be read:") for sentence in said)
