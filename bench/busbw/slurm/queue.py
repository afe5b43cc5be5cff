"""Slurm's own commands, each a thin call: hand a script in, ask how jobs stand."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from busbw.errors import LaunchError

_ANSWERS_SECONDS = 60.0

_FORMAT = "%A|%i|%T|%r|%N|%k|%j"
"""Of a job: number, number with that of the task in its array, state, reason, nodes, comment, name. The last two may
hold anything; of a job of ours only the name does."""

_FIELDS = _FORMAT.count("|")

ENDED_WELL = "COMPLETED"
ENDED_BADLY = {
    "BOOT_FAIL": "a node did not come up for it",
    "CANCELLED": "it was cancelled",
    "DEADLINE": "it had not ended by its deadline",
    "FAILED": "its script ended with an error",
    "NODE_FAIL": "a node went down",
    "OUT_OF_MEMORY": "it ran out of memory",
    "PREEMPTED": "another job took its place",
    "REVOKED": "another cluster took it over",
    "TIMEOUT": "it reached its time limit",
}
"""The states in which a job has ended and was not good, in words; every other state goes on, back to PENDING maybe."""

_PENDING_FOR_EVER = {
    "PartitionNodeLimit": "the partition has fewer nodes than were asked for, or allows fewer",
    "PartitionConfig": "the partition has fewer nodes than were asked for, or allows less",  # from 22.05 on
    "PartitionTimeLimit": "the partition does not allow that much time",
    "AssocGrpNodeLimit": "the account may not use that many nodes",
    "QOSMaxNodePerUserLimit": "the QOS does not allow that many nodes",
    "JobHeldUser": "it is held: scontrol release",
    "JobHeldAdmin": "an administrator holds it",
    "BadConstraints": "no node has the features that were asked for",
    "ReqNodeNotAvail": "a node that was asked for is down, drained or reserved",
}
"""Reasons of pending jobs that time alone does not remove."""


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """How a job stands. ``id`` is its number, the one that its processes see; ``shown`` is what Slurm prints: 12_4 for
    a task of an array.
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
        """Whether nothing more will happen to it."""
        return self.state == ENDED_WELL or self.state in ENDED_BADLY

    def in_words(self) -> str:
        """State, and why it waits or where it runs."""
        if self.state == "PENDING" and self.reason:
            hint = _PENDING_FOR_EVER.get(self.reason.partition(",")[0])
            return f"PENDING ({self.reason}{f': {hint}' if hint else ''})"
        return f"{self.state} on {self.nodes}" if self.nodes and not self.ended else self.state


def missing() -> str | None:
    """Why there is no Slurm to talk to here; None when there is."""
    gone = [name for name in ("sbatch", "squeue") if shutil.which(name) is None]
    if not gone:
        return None
    return (
        f"there is no {' and no '.join(gone)} in PATH: submit from a login node of the cluster, or load the module "
        "that brings Slurm's commands"
    )


def submit(script: str) -> str:
    """Hand ``script`` to sbatch and return the number of the job. Raises LaunchError with Slurm's own words."""
    said = _ask(["sbatch", "--parsable"], script)
    number = re.match(r"\d+", said.strip())
    if number is None:
        raise LaunchError(f"sbatch answered {said.strip()!r} where the number of a job was expected")
    return number[0]


def job(number: str) -> tuple[QueuedJob, ...]:
    """How job ``number`` stands, for an array every task; nothing when Slurm has forgotten it, some time after its end.

    Raises LaunchError with Slurm's own words when it does not answer.
    """
    try:
        return _jobs(_ask(["squeue", "--noheader", "--states=all", f"--jobs={number}", f"--format={_FORMAT}"]))
    except LaunchError as error:
        if "Invalid job id" in str(error):
            return ()
        raise


def mine() -> tuple[QueuedJob, ...]:
    """This user's jobs that Slurm remembers, ended ones too. Raises LaunchError when it does not answer."""
    return _jobs(_ask(["squeue", "--noheader", "--states=all", "--me", f"--format={_FORMAT}"]))


def _jobs(said: str) -> tuple[QueuedJob, ...]:
    rows = [line.split("|", _FIELDS) for line in said.splitlines() if line.count("|") >= _FIELDS]
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
        raise LaunchError(missing() or f"{argv[0]} cannot be started") from None
    except subprocess.TimeoutExpired:
        raise LaunchError(
            f"{argv[0]} has not answered for {_ANSWERS_SECONDS:g} s: is Slurm's controller up? (scontrol ping)"
        ) from None
    if asked.returncode != 0:
        said = "; ".join(line.strip() for line in asked.stderr.splitlines() if line.strip())
        raise LaunchError(f"{argv[0]} refused: {said or f'exit status {asked.returncode}'}")
    return asked.stdout
