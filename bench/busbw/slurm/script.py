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


_MAY_BE_EMPTY = {"about", "before", "after"}
"""Job fields that are rendered as lines. An empty argument usually means an unset shell variable, so it is refused."""


@dataclass(frozen=True, slots=True)
class Shell:
    """An argument that the shell of the job expands, such as ``$SUITE``. It is quoted, so it stays one argument."""

    text: str


Word = str | Shell
"""An argument; a plain string is not expanded."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A shell variable at the top of the script, with a comment. ``ours``: the environment does not override it."""

    name: str
    value: Word
    comment: str = ""
    ours: bool = False
    exported: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A Slurm job that runs ``busbw run`` once per launch. Fields that are None are left to the cluster.

    ``run``: options of ``busbw run``.
    ``nodes``: nodes of the job.
    ``node_counts``: tasks of a job array, one after another; each uses this many of the nodes.
    ``silence_seconds``: how long ranks wait for a silent rank; srun ends the others no sooner.
    ``mpi``: value of ``srun --mpi`` (pmi2, pmix).
    ``about``: comments at the top.
    ``before``: shell lines before the run (``module load …``).
    ``after``: shell lines after the run, with its folder in ``$run``; they determine the exit status.

    Numbers are checked by ``busbw submit``. Raises UsageError for text that a batch script cannot contain.
    """

    run: tuple[Word, ...]
    nodes: int
    ranks_per_node: int
    name: str = "busbw"
    settings: tuple[Setting, ...] = ()
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
    mpi: Word | None = None
    srun: tuple[Word, ...] = ()
    about: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, text in _texts(self):
            if not text.strip() and name not in _MAY_BE_EMPTY:
                raise UsageError(f"{name} {text!r} is empty; give a value or omit it")
            if any(not character.isprintable() for character in text):
                raise UsageError(f"{name} {text!r}: line breaks and other control characters are not allowed")


def render(job: Job) -> str:
    """The batch script of ``job``."""
    sections = [
        ["#!/bin/bash", *(f"# {line}".rstrip() for line in job.about), *_directives(job)],
        [*_assignments(job)],
        [*job.before],
        [*_command(job)],
        [*job.after],
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _texts(job: Job) -> Iterator[tuple[str, str]]:
    for field in fields(job):
        value = getattr(job, field.name)
        for item in value if isinstance(value, tuple) else (value,):
            name, word = (f"variable {item.name}", item.value) if isinstance(item, Setting) else (field.name, item)
            if isinstance(word, str | Shell):
                yield name, word.text if isinstance(word, Shell) else word


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
    for setting in job.settings:
        value = setting.value.text if isinstance(setting.value, Shell) else shlex.quote(setting.value)
        line = f"{setting.name}={value if setting.ours else f'${{{setting.name}:-{value}}}'}"
        comment = f"  # {setting.comment}" if setting.comment else ""
        yield f"{'export ' if setting.exported else ''}{line}{comment}"
    if job.cpus_per_task is not None:
        yield 'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"  # since 22.05 srun does not inherit it from the job'


def _command(job: Job) -> Iterator[str]:
    # The other ranks detect and name a dead rank; Slurm must not end them before they have recorded it.
    wait = math.ceil(job.silence_seconds) + _REPORT_SECONDS
    srun: list[Word] = ["srun", "--kill-on-bad-exit=0", f"--wait={wait}"]
    tasks: tuple[Word, ...] = ()
    run = job.run
    if job.mpi is not None:
        srun.append(Shell(f"--mpi={job.mpi.text}") if isinstance(job.mpi, Shell) else f"--mpi={job.mpi}")
    if job.node_counts:
        ranks = "$((SLURM_ARRAY_TASK_ID * SLURM_NTASKS_PER_NODE))"
        tasks = (Shell("--nodes=$SLURM_ARRAY_TASK_ID"), Shell(f"--ntasks={ranks}"))
        run = (Shell(f"--ranks={ranks}"), *run)  # without it, a step of one task would start a rank per core
    lines = (
        f'"$BUSBW" launches {_words(srun)}',
        *(_words(options) for options in (tasks, job.srun) if options),
        f'"$BUSBW" run {_words(run)}',
    )
    yield "# Each srun is one launch; they are repeated until the run is complete. A requeued job continues its run."
    command = " \\\n    ".join(lines)
    if not job.after:
        # exec, because the shell would exit as soon as Slurm ends the job, but busbw first records how the run ended.
        yield f"exec {command}"
        return
    yield "trap : TERM  # when Slurm ends the job, wait until busbw has recorded how the run ended"
    yield f"run=$({command}) || exit"


def _words(words: "list[Word] | tuple[Word, ...]") -> str:
    return " ".join(f'"{word.text}"' if isinstance(word, Shell) else shlex.quote(word) for word in words)
