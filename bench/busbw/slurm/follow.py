"""Follow a job from the queue to its end: what it waits for, how far its run is, and how both came out."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from busbw.errors import LaunchError, StoreError
from busbw.runs.store import SAMPLES_FILE
from busbw.slurm import queue
from busbw.slurm.queue import QueuedJob
from busbw.slurm.runs import JobRuns, RunProgress, read_progress

_SHORTEST_SECONDS, _LONGEST_SECONDS = 2.0, 10.0
"""Between two questions: a controller has others to answer, too. But ``sbatch --wait``, which asks ever less often,
tells of the end of a job of 11 s after 42.
"""

_SILENCE_SECONDS = 600.0
"""How long Slurm's controller may be away: it is restarted now and then, and the jobs do not mind."""

_LAST_LINES = 12
"""Of the log of a job that ended badly."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a job ended: exit status, and the sentences that say why."""

    status: int
    sentences: tuple[str, ...]


@dataclass(slots=True)
class Follower:
    """Asks how job ``number`` stands, and ``say``s what has changed. ``log`` is where the job writes (None: an array),
    ``resumed`` the run that it goes on with (None: one of its own, among ``runs``), ``tasks`` are the numbers of an
    array's tasks (none: no array).
    """

    number: str
    runs: JobRuns
    say: Callable[[str], None]
    log: Path | None = None
    resumed: Path | None = None
    pause: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.monotonic
    tasks: tuple[int, ...] = ()
    _said: dict[str, str] = field(default_factory=dict)
    _read: dict[Path, tuple[int, RunProgress]] = field(default_factory=dict)

    def follow(self) -> Verdict:
        """Until every task of the job has ended. Raises LaunchError when Slurm does not answer for ten minutes."""
        seen: dict[str, QueuedJob] = {}
        began = heard = self.now()
        while True:
            interval = min(max(_SHORTEST_SECONDS, (self.now() - began) / 30), _LONGEST_SECONDS)
            try:
                tasks = queue.job(self.number)
                heard = self.now()
            except LaunchError as error:
                if self.now() - heard > _SILENCE_SECONDS:
                    raise
                self._tell("Slurm", f"{error}; the job goes on, and so does asking")
                self.pause(interval)
                continue
            seen = _brought_up_to_date(seen, tasks)
            for task in tasks or seen.values():
                self._tell_of(task)
            if all(task.ended for task in tasks):
                return self._verdict(tuple(seen.values()))
            self.pause(interval)

    def _tell_of(self, task: QueuedJob) -> None:
        self._tell(task.shown, f"job {task.shown}: {task.in_words()}")
        for folder in self._folders(task.id):
            self._tell(str(folder), f"run {folder.name}: {self._progress(folder, lambda progress: progress.blocks)}")

    def _tell(self, about: str, text: str) -> None:
        if self._said.get(about) != text:
            self._said[about] = text
            self.say(text)

    def _folders(self, number: str) -> Sequence[Path]:
        return [self.resumed] if self.resumed else list(self.runs.of(number))[:1]

    def _progress(self, folder: Path, words: Callable[[RunProgress], str] = RunProgress.in_words) -> str:
        """How far the run is, in these words; read again only when it has grown."""
        try:
            size = (folder / SAMPLES_FILE).stat().st_size
        except OSError:
            size = -1
        known = self._read.get(folder)
        if known is None or known[0] != size:
            try:
                known = (size, read_progress(folder))
            except StoreError as error:
                return f"cannot be read: {error}"
            self._read[folder] = known
        return words(known[1])

    def _verdict(self, tasks: tuple[QueuedJob, ...]) -> Verdict:
        if not tasks:
            return Verdict(1, (f"Slurm does not know job {self.number}, so how it ended cannot be said",))
        sentences: list[str] = []
        for task in tasks:
            if not task.ended:
                sentences.append(f"Slurm has forgotten job {task.shown}; it was last seen {task.in_words()}")
            elif task.state == queue.ENDED_WELL:
                sentences.append(f"job {task.shown} ended well")
            else:
                sentences.append(f"job {task.shown} ended {task.state}: {queue.ENDED_BADLY[task.state]}")
            folders = self._folders(task.id)
            sentences += [f"run {folder.name}: {self._progress(folder)}" for folder in folders]
            if not folders:
                sentences.append(f"no run of job {task.shown} can be seen in {self.runs.results_dir}")
        never_seen = self._never_seen(tasks)
        sentences += [f"Slurm has forgotten job {shown}, which was never seen to run" for shown in never_seen]
        bad = bool(never_seen) or any(task.state != queue.ENDED_WELL for task in tasks)
        if bad and self.log is not None:
            sentences += _last_lines(self.log)
        return Verdict(int(bad), tuple(sentences))

    def _never_seen(self, seen: Sequence[QueuedJob]) -> list[str]:
        """Tasks of the array that were over and forgotten between two answers, or while Slurm gave none."""
        if any(_several(task) for task in seen):
            return []  # these wait, or were ended, among them
        shown = {task.shown for task in seen}
        return [name for number in self.tasks if (name := f"{self.number}_{number}") not in shown]


def _brought_up_to_date(seen: Mapping[str, QueuedJob], tasks: Sequence[QueuedJob]) -> dict[str, QueuedJob]:
    """Every task as it was seen last: those of an array run one after another, and the first ones are forgotten before
    the last ones end.
    """
    now = {task.shown: task for task in tasks}
    # Tasks that wait are one line, which is another one as soon as one of them begins.
    return {shown: task for shown, task in seen.items() if not (now and _several(task) and not task.ended)} | now


def _several(task: QueuedJob) -> bool:
    """Whether these are several tasks of an array that have not begun: ``12_[2,4%1]``."""
    return "[" in task.shown


def _last_lines(log: Path) -> list[str]:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        return [f"its log {log} cannot be read: {error.strerror}"]
    return [f"the end of {log}:", *(f"  {line}" for line in lines[-_LAST_LINES:])]
