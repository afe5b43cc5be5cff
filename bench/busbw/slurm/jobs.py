"""Jobs of Slurm: submit a script, query their state, the runs of a job and the jobs of a run; ``busbw status``."""

import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from busbw.errors import LaunchError, StoreError
from busbw.runs import store
from busbw.runs.progress import outline, progress_of

_ANSWERS_SECONDS = 60.0

_FORMAT = "%A|%i|%T|%r|%N|%k|%j"
"""Fields of a job: number, number with array task, state, reason, nodes, comment, name. The last two may contain any
text; in jobs that busbw submits, only the name does."""

_FIELDS = _FORMAT.count("|")

ENDED_WELL = "COMPLETED"
ENDED_BADLY = {
    "BOOT_FAIL": "a node did not boot",
    "CANCELLED": "it was cancelled",
    "DEADLINE": "it reached its deadline",
    "FAILED": "its script exited with an error",
    "NODE_FAIL": "a node went down",
    "OUT_OF_MEMORY": "it ran out of memory",
    "PREEMPTED": "another job preempted it",
    "REVOKED": "another cluster took it over",
    "TIMEOUT": "it reached its time limit",
}
"""Final states of failed jobs → explanation. Jobs in other states continue, possibly back to PENDING."""

_PENDING_FOR_EVER = {
    "PartitionNodeLimit": "the partition has or allows fewer nodes than requested",
    "PartitionConfig": "the partition has or allows fewer nodes than requested",  # since 22.05
    "PartitionTimeLimit": "the time limit exceeds that of the partition",
    "AssocGrpNodeLimit": "the account may not use so many nodes",
    "QOSMaxNodePerUserLimit": "the QOS does not allow so many nodes",
    "JobHeldUser": "it is held; release it with scontrol release",
    "JobHeldAdmin": "an administrator holds it",
    "BadConstraints": "no node has the requested features",
    "ReqNodeNotAvail": "a requested node is down, drained or reserved",
}
"""Reasons of pending jobs that do not resolve by waiting."""


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job as Slurm reports it.

    ``id``: its number, as its processes see it.
    ``shown``: the number as Slurm prints it, such as 12_4 for a task of an array.
    """

    id: str
    shown: str
    state: str
    reason: str | None
    nodes: str
    comment: str
    name: str

    @property
    def ended(self) -> bool:
        """Whether the job is in a final state."""
        return self.state == ENDED_WELL or self.state in ENDED_BADLY

    def in_words(self) -> str:
        """State, with the reason for waiting or the nodes."""
        if self.state == "PENDING" and self.reason:
            hint = _PENDING_FOR_EVER.get(self.reason.partition(",")[0])
            return f"PENDING ({self.reason}{f': {hint}' if hint else ''})"
        return f"{self.state} on {self.nodes}" if self.nodes and not self.ended else self.state


def submit(script: str) -> str:
    """Submit ``script`` with sbatch and return the job number. Raises LaunchError with Slurm's message."""
    answer = _ask(["sbatch", "--parsable"], script)
    number = re.match(r"\d+", answer.strip())
    if number is None:
        raise LaunchError(f"sbatch printed {answer.strip()!r} instead of a job number")
    return number[0]


def job(number: str) -> tuple[QueuedJob, ...]:
    """The state of job ``number``, or of every task of an array. Empty when Slurm no longer knows the job.

    Raises LaunchError with Slurm's message when it does not answer.
    """
    try:
        return _jobs(_ask(["squeue", "--noheader", "--states=all", f"--jobs={number}", f"--format={_FORMAT}"]))
    except LaunchError as error:
        if "Invalid job id" in str(error):
            return ()
        raise


def mine() -> tuple[QueuedJob, ...]:
    """This user's jobs that Slurm knows, including ended ones. Raises LaunchError when it does not answer."""
    return _jobs(_ask(["squeue", "--noheader", "--states=all", "--me", f"--format={_FORMAT}"]))


def _jobs(answer: str) -> tuple[QueuedJob, ...]:
    rows = [line.split("|", _FIELDS) for line in answer.splitlines() if line.count("|") >= _FIELDS]
    return tuple(
        QueuedJob(number, shown, state, None if why == "None" else why, nodes.replace("(null)", ""), comment, name)
        for number, shown, state, why, nodes, comment, name in rows
    )


def _ask(argv: Sequence[str], given: str | None = None) -> str:
    try:
        asked = subprocess.run(
            argv, check=False, capture_output=True, text=True, input=given, timeout=_ANSWERS_SECONDS, errors="replace"
        )
    except FileNotFoundError:
        raise LaunchError(
            f"{argv[0]} not found in PATH: submit from a login node of the cluster, or load the module that provides "
            "Slurm's commands"
        ) from None
    except subprocess.TimeoutExpired:
        raise LaunchError(
            f"{argv[0]} has not answered for {_ANSWERS_SECONDS:g} s; check Slurm's controller with scontrol ping"
        ) from None
    if asked.returncode != 0:
        message = "; ".join(line.strip() for line in asked.stderr.splitlines() if line.strip())
        raise LaunchError(f"{argv[0]} failed: {message or f'exit status {asked.returncode}'}")
    return asked.stdout


JOB = "SLURM_JOB_ID"
NODES = "SLURM_JOB_NODELIST"


@dataclass(frozen=True, slots=True)
class JobAllocation:
    """A job number, and the nodes of the job as Slurm writes them: ``n[1-4]``."""

    job: str
    nodes: str


class _Job(msgspec.Struct):
    """Decoded part of ``ResumedJob``."""

    variables: dict[str, str] = {}


class _Facts(_Job):
    """Decoded part of ``HostFacts``; the other facts are skipped, because there may be thousands of runs."""

    resumed: tuple[_Job, ...] = ()


class _RunFile(msgspec.Struct):
    environments: dict[str, _Facts]


_RUN = msgspec.json.Decoder(_RunFile)


def _allocations(facts: _Facts) -> tuple[JobAllocation, ...]:
    """The jobs in the facts of a host: the job that began the run, and those in which it was resumed."""
    of_jobs = [job.variables for job in (facts, *facts.resumed) if JOB in job.variables]
    return tuple(dict.fromkeys(JobAllocation(variables[JOB], variables.get(NODES, "")) for variables in of_jobs))


@dataclass(slots=True)
class JobRuns:
    """The runs below ``results_dir`` and their jobs. A run is only read again when its file has changed, for example
    because another job has resumed it.
    """

    results_dir: Path
    _known: dict[Path, tuple[int, tuple[JobAllocation, ...]]] = field(default_factory=dict)

    def of(self, job: str, nodes: str | None = None) -> Iterator[Path]:
        """The folders of the runs of ``job``, newest first; only those on ``nodes`` if given."""
        for folder in reversed(list(store.folders(self.results_dir))):
            if any(entry.job == job and nodes in {None, entry.nodes} for entry in self.jobs(folder)):
                yield folder

    def jobs(self, folder: Path) -> tuple[JobAllocation, ...]:
        """The jobs of the run in ``folder``, in order; empty if it cannot be read."""
        try:
            written = (folder / store.RUN_FILE).stat().st_mtime_ns
            if folder not in self._known or self._known[folder][0] != written:
                run = _RUN.decode(store.run_document(folder / store.RUN_FILE))
                facts = next(iter(run.environments.values()), _Facts())
                self._known[folder] = (written, _allocations(facts))
        except (OSError, StoreError, *store.NOT_A_RECORD):
            return ()
        return self._known[folder][1]


# --- busbw status ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StatusRow:
    """A job, the run that it measures, or both. ``blocks`` says how many of the run's blocks are measured."""

    job: str | None = None
    state: str | None = None
    reason: str | None = None
    run: str | None = None
    blocks: str | None = None
    ended: str | None = None


def resumption_of(folder: Path) -> str:
    """The Slurm comment of a job that resumes ``folder``; the run itself names the job only after it has started."""
    return f"resumes {folder.name}"


def will_measure(job: QueuedJob, folder: Path, allocations: Sequence[JobAllocation]) -> bool:
    """Whether ``job`` measures the run in ``folder`` or will when it starts; ``allocations`` are the jobs of the run.

    A job that was requeued onto other nodes has begun another run there.
    """
    if job.ended:
        return False
    if job.comment == resumption_of(folder):
        return True
    nodes = {allocation.nodes for allocation in allocations if allocation.job == job.id}
    return bool(nodes) and (job.state != "RUNNING" or job.nodes in nodes)


def refuse_a_second_job(folder: Path) -> None:
    """Raise LaunchError when the run in ``folder`` has a job that has not ended, or when Slurm does not answer."""
    allocations = JobRuns(folder.parent).jobs(folder)
    job = next((queued for queued in mine() if will_measure(queued, folder, allocations)), None)
    if job is not None:
        raise LaunchError(
            f"run {folder.name} is already being resumed by job {job.shown}, {job.in_words()}; wait for its end (busbw "
            f"status) or cancel it (scancel {job.shown})"
        )


def rows(results_dir: Path, queued: Sequence[QueuedJob]) -> list[StatusRow]:
    """A row for every job and every run it measured: active jobs first, then the newest, runs without a job last.

    For a run whose jobs Slurm no longer knows, the last job is listed.
    """
    entries = [*_of_runs(results_dir, queued)]
    with_run = {number for number, *_ in entries}
    entries += [(job.id, job, StatusRow()) for job in queued if job.id not in with_run and job.name.startswith("busbw")]
    entries.sort(key=lambda row: _order(row[0], row[1]))
    return [
        replace(run, job=number) if job is None else replace(run, job=job.shown, state=job.state, reason=job.reason)
        for number, job, run in entries
    ]


def _of_runs(
    results_dir: Path, queued: Sequence[QueuedJob]
) -> Iterator[tuple[str | None, QueuedJob | None, StatusRow]]:
    runs = JobRuns(results_dir)
    for folder in reversed(list(store.folders(results_dir))):
        allocations = runs.jobs(folder)
        numbers = {allocation.job for allocation in allocations}
        theirs = [job for job in queued if job.id in numbers or job.comment == resumption_of(folder)]
        run = _run_part(folder, live=any(will_measure(job, folder, allocations) for job in theirs))
        for job in theirs:
            yield job.id, job, run
        if not theirs:
            yield allocations[-1].job if allocations else None, None, run


def _order(number: str | None, job: QueuedJob | None) -> tuple[bool, int]:
    """Sort key: active jobs first, then the newest number, rows without a number last."""
    return job is None or job.ended, -int(number) if number is not None and number.isdecimal() else 0


def _run_part(folder: Path, *, live: bool) -> StatusRow:
    try:
        progress = progress_of(outline(folder))
    except StoreError as error:
        return StatusRow(run=str(folder), ended=f"unreadable: {error}")
    # Below srun, each launch writes an end that the next launch supersedes: not final while a job is active.
    over = progress.end is not None and (not live or progress.measured == progress.wanted)
    ended = progress.end.in_words() if over and progress.end else None
    return StatusRow(run=str(folder), blocks=f"{progress.measured} of {progress.wanted}", ended=ended)
