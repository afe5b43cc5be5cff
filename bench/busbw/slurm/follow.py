"""Follow a job from the queue to its end: why it waits, the progress of its run, and the outcome of both."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from busbw.errors import LaunchError, StoreError
from busbw.runs.progress import Progress, outline, progress_of
from busbw.slurm import jobs
from busbw.slurm.jobs import JobRuns, QueuedJob

_SHORTEST_SECONDS, _LONGEST_SECONDS = 2.0, 10.0
"""Interval between two queries, limited to spare the controller. (``sbatch --wait`` queries ever less often, and so
reported the end of a job of 11 s after 42 s.)
"""

_SILENCE_SECONDS = 600.0
"""How long Slurm's controller may be unreachable: it is sometimes restarted, which does not affect jobs."""

_LAST_LINES = 12
"""Lines of the log that are shown for a job that failed."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a job: exit status, and sentences that explain it."""

    status: int
    sentences: tuple[str, ...]


@dataclass(slots=True)
class Follower:
    """Queries the state of a job and reports every change.

    ``number``: the job number.
    ``say``: called with each line to report.
    ``log``: file with the output of the job (None: a job array).
    ``resumed``: the run that the job resumes (None: a new run, which is found in ``runs``).
    """

    number: str
    runs: JobRuns
    say: Callable[[str], None]
    log: Path | None
    resumed: Path | None
    pause: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.monotonic
    _reported: dict[str, str] = field(default_factory=dict)

    def follow(self) -> Verdict:
        """Wait until every task of the job has ended. Raises LaunchError if Slurm does not answer for ten minutes."""
        seen: dict[str, QueuedJob] = {}
        began = answered = self.now()
        while True:
            interval = min(max(_SHORTEST_SECONDS, (self.now() - began) / 30), _LONGEST_SECONDS)
            try:
                tasks = jobs.job(self.number)
                answered = self.now()
            except LaunchError as error:
                if self.now() - answered > _SILENCE_SECONDS:
                    raise
                self._report("Slurm", f"{error}; the job continues; retrying")
                self.pause(interval)
                continue
            seen = _updated(seen, tasks)
            for task in tasks or seen.values():
                self._report_task(task)
            if all(task.ended for task in tasks):
                return self._verdict(tuple(seen.values()))
            self.pause(interval)

    def _report_task(self, task: QueuedJob) -> None:
        self._report(task.shown, f"job {task.shown}: {task.in_words()}")
        for folder in self._folders(task.id):
            self._report(str(folder), f"run {folder.name}: {self._progress(folder, _blocks)}")

    def _report(self, about: str, text: str) -> None:
        if self._reported.get(about) != text:
            self._reported[about] = text
            self.say(text)

    def _folders(self, number: str) -> Sequence[Path]:
        return [self.resumed] if self.resumed else list(self.runs.of(number))[:1]

    def _progress(self, folder: Path, words: Callable[[Progress], str] = Progress.with_blocks_and_end) -> str:
        """The progress of a run as text. It is read at every query: while a job runs, its run grows between two."""
        try:
            return words(progress_of(outline(folder)))
        except StoreError as error:
            return f"cannot be read: {error}"

    def _verdict(self, tasks: tuple[QueuedJob, ...]) -> Verdict:
        if not tasks:
            return Verdict(1, (f"Slurm does not know job {self.number}, so its outcome is unknown",))
        sentences: list[str] = []
        for task in tasks:
            if not task.ended:
                sentences.append(f"Slurm no longer knows job {task.shown}; its last state was {task.in_words()}")
            elif task.state == jobs.ENDED_WELL:
                sentences.append(f"job {task.shown} ended well")
            else:
                sentences.append(f"job {task.shown} ended {task.state}: {jobs.ENDED_BADLY[task.state]}")
            folders = self._folders(task.id)
            sentences += [f"run {folder.name}: {self._progress(folder)}" for folder in folders]
            if not folders:
                sentences.append(f"no run of job {task.shown} was found in {self.runs.results_dir}")
        bad = any(task.state != jobs.ENDED_WELL for task in tasks)
        if bad and self.log is not None:
            sentences += _last_lines(self.log)
        return Verdict(int(bad), tuple(sentences))


def _blocks(progress: Progress) -> str:
    return f"{progress.measured} of {progress.wanted} blocks"


def _updated(seen: Mapping[str, QueuedJob], tasks: Sequence[QueuedJob]) -> dict[str, QueuedJob]:
    """The last known state of every task. The tasks of an array run one after another, and Slurm drops the first ones
    before the last ones end.
    """
    now = {task.shown: task for task in tasks}
    # Pending tasks share one line, which changes when one of them starts.
    return {shown: task for shown, task in seen.items() if not (now and _several(task) and not task.ended)} | now


def _several(task: QueuedJob) -> bool:
    """Whether ``task`` is a line for several pending tasks of an array, such as ``12_[2,4%1]``."""
    return "[" in task.shown


def _last_lines(log: Path) -> list[str]:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        return [f"cannot read its log {log}: {error.strerror}"]
    return [f"last lines of {log}:", *(f"  {line}" for line in lines[-_LAST_LINES:])]
