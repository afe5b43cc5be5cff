"""Calls of Slurm's commands: submit a script, query the state of jobs."""

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from busbw.errors import LaunchError

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
