"""The text of a batch script, as a pure function of a job."""

import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, fields

from busbw.errors import UsageError

SIGNAL_SECONDS = 90
"""How long before its time limit a job is signalled to stop. A block takes seconds, but Slurm may signal some seconds
late."""

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./\[\]-]+")
"""Values that sbatch reads without quotes: no blanks, no quotes, and no # (which starts a comment)."""

_REPORT_SECONDS = 60
"""Time for the remaining ranks to report a lost rank and write it to the run, after their timeout."""


_MAY_BE_EMPTY = {"about", "before"}
"""Job fields that are rendered as lines. An empty argument usually means an unset shell variable, so it is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A Slurm job that runs ``busbw run`` once per launch. Fields that are None are left to the cluster.

    ``run``: options of ``busbw run``.
    ``nodes``: nodes of the job.
    ``node_counts``: tasks of a job array, one after another; each uses this many of the nodes.
    ``silence_seconds``: how long ranks wait for a silent rank; srun ends the others no sooner.
    ``mpi``: value of ``srun --mpi`` (pmi2, pmix).
    ``busbw``, ``results_dir``: path of busbw on the nodes, and its folder of runs.
    ``about``: comment at the top.
    ``before``: shell lines before the run (``module load …``).

    Numbers are checked by ``busbw submit``. Raises UsageError for text that a batch script cannot contain.
    """

    run: tuple[str, ...]
    busbw: str
    results_dir: str
    nodes: int
    ranks_per_node: int
    name: str = "busbw"
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | None = None
    gpus_per_node: int | None = None
    cpus_per_task: int | None = None
    nodelist: str | None = None
    exclude: str | None = None
    constraint: str | None = None
    reservation: str | None = None
    exclusive: bool = True
    requeue: bool = True
    signal_seconds: int = SIGNAL_SECONDS
    silence_seconds: float = 60.0
    node_counts: tuple[int, ...] = ()
    comment: str | None = None
    mpi: str | None = None
    srun: tuple[str, ...] = ()
    about: str = ""
    before: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, value in ((field.name, getattr(self, field.name)) for field in fields(self)):
            for text in value if isinstance(value, tuple) else (value,):
                if isinstance(text, str) and not text.strip() and name not in _MAY_BE_EMPTY:
                    raise UsageError(f"{name} {text!r} is empty; give a value or omit it")
                if isinstance(text, str) and not text.isprintable():
                    raise UsageError(f"{name} {text!r}: line breaks and other control characters are not allowed")


def render(job: Job) -> str:
    """The batch script of ``job``."""
    sections = [
        ["#!/bin/bash", *([f"# {job.about}"] if job.about else []), *_directives(job)],
        [*_assignments(job)],
        [*job.before],
        [*_command(job)],
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


_AS_SBATCH = ("partition", "account", "qos", "time", "nodelist", "exclude", "constraint", "reservation")
"""Fields of a job that are options of sbatch with the same name."""


def _directives(job: Job) -> Iterator[str]:
    log = "busbw-%A_%a.out" if job.node_counts else "busbw-%j.out"
    options: dict[str, str | int | None] = {
        "job-name": job.name,
        "comment": job.comment,
        "nodes": job.nodes,
        "ntasks-per-node": job.ranks_per_node,
        "gpus-per-node": job.gpus_per_node,
        "cpus-per-task": job.cpus_per_task,
        # One after another: concurrent tasks would share switches and disturb each other.
        "array": ",".join(map(str, job.node_counts)) + "%1" if job.node_counts else None,
        **{name: getattr(job, name) for name in _AS_SBATCH},
        "signal": f"USR1@{job.signal_seconds}" if job.signal_seconds else None,
        "output": log,
        "open-mode": "append",  # keep the output from before a requeue
    }
    for name, value in options.items():
        if value is not None:
            yield f"#SBATCH --{name}={_directive(str(value))}"
    if job.exclusive:
        yield "#SBATCH --exclusive"
    yield "#SBATCH --requeue" if job.requeue else "#SBATCH --no-requeue"


def _directive(value: str) -> str:
    """``value`` quoted for sbatch (tested with 22.05), with a backslash before quotes and backslashes."""
    if _PLAIN.fullmatch(value):
        return value
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def _assignments(job: Job) -> Iterator[str]:
    yield f"BUSBW={shlex.quote(job.busbw)}"
    yield f"export BUSBW_RESULTS_DIR={shlex.quote(job.results_dir)}"
    if job.cpus_per_task is not None:
        yield 'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"  # since 22.05 srun does not inherit it from the job'


def _command(job: Job) -> Iterator[str]:
    # The other ranks detect and name a dead rank; Slurm must not end them before they have recorded it.
    wait = math.ceil(job.silence_seconds) + _REPORT_SECONDS
    srun = ["srun", "--kill-on-bad-exit=0", f"--wait={wait}", *([] if job.mpi is None else [f"--mpi={job.mpi}"])]
    ranks = "$((SLURM_ARRAY_TASK_ID * SLURM_NTASKS_PER_NODE))"
    of_task = f'"--ranks={ranks}" ' if job.node_counts else ""
    lines = (
        f'"$BUSBW" launches {shlex.join(srun)}',
        *([f'"--nodes=$SLURM_ARRAY_TASK_ID" "--ntasks={ranks}"'] if job.node_counts else []),
        *([shlex.join(job.srun)] if job.srun else []),
        # Without --ranks, a step of one task would start a rank per core.
        f'"$BUSBW" run {of_task}{shlex.join(job.run)}',
    )
    yield "# Each srun is one launch; they are repeated until the run is complete. A requeued job continues its run."
    # exec, because the shell would exit as soon as Slurm ends the job, but busbw first records how the run ended.
    yield "exec " + " \\\n    ".join(lines)
