"""The text of a batch script: a pure function of what a job is to be."""

import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, fields

from busbw.errors import UsageError

SIGNAL_SECONDS = 90
"""How long before its time limit a job is told to come to its end: a block takes seconds, but Slurm may be late by
some, and what a job has left when it is told is all it has."""

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./\[\]-]+")
"""What sbatch takes as it stands: no blanks, no quotes, and no # (the rest would be a comment)."""

_WORDS_SECONDS = 60
"""What the ranks that are left have to say who is lost, and to write it down, once their patience is at its end."""


_MAY_BE_EMPTY = {"about", "before", "after"}
"""What of a job is lines. An empty word is mostly a variable that was not set, and never what Slurm is to be told."""


@dataclass(frozen=True, slots=True)
class Shell:
    """An argument that the shell of the job expands: ``$SUITE``. It is one word, whatever it becomes."""

    text: str


Word = str | Shell
"""An argument: a string stands for itself, whatever is in it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A variable at the top of the script, with the words behind it. ``ours``: the environment does not change it."""

    name: str
    value: Word
    comment: str = ""
    ours: bool = False
    exported: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job of Slurm that runs ``busbw run`` with the options ``run``, once a launch.

    ``nodes`` are what the job gets; with ``node_counts`` it is an array whose tasks use so many of them, one after
    another. What is None is left to the cluster. ``mpi`` is what srun is told of the MPI library (pmi2, pmix).
    ``silence_seconds`` is how long the plan's ranks wait for one that says nothing: srun ends the others no sooner.
    ``before`` are lines of shell before the run (``module load …``), ``after`` lines that follow it and find its folder
    in ``$run``; they decide the exit status. ``about`` are the comments at the top. Numbers are taken as they come
    from ``submit``, which checks them. Raises UsageError for a text that a batch script cannot hold.
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
    exclusive: bool = False
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
        for what, text in _texts(self):
            if not text.strip() and what not in _MAY_BE_EMPTY:
                raise UsageError(f"{what} {text!r}: want a word; leave it out where there is nothing to say")
            if any(not character.isprintable() for character in text):
                raise UsageError(
                    f"{what} {text!r}: a batch script cannot hold line breaks or other control characters there"
                )


def render(job: Job) -> str:
    """The batch script of ``job``: the same text for the same job, always."""
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
        for one in value if isinstance(value, tuple) else (value,):
            what, word = (f"variable {one.name}", one.value) if isinstance(one, Setting) else (field.name, one)
            if isinstance(word, str | Shell):
                yield what, word.text if isinstance(word, Shell) else word


_AS_SBATCH = ("partition", "account", "qos", "time", "nodelist", "exclude", "constraint", "reservation")
"""Fields of a job that sbatch calls the same."""


def _directives(job: Job) -> Iterator[str]:
    log = "busbw-%A_%a.out" if job.node_counts else "busbw-%j.out"
    options: dict[str, str | int | None] = {
        "job-name": job.name,
        "comment": job.comment,
        "nodes": job.nodes,
        "ntasks-per-node": job.ranks_per_node,
        "gpus-per-node": job.gpus_per_node,
        "cpus-per-task": job.cpus_per_task,
        # One after another: tasks side by side would share switches, and measure each other.
        "array": ",".join(map(str, job.node_counts)) + "%1" if job.node_counts else None,
        **{name: getattr(job, name) for name in _AS_SBATCH},
        "signal": f"USR1@{job.signal_seconds}" if job.signal_seconds else None,
        "output": log,
        "open-mode": "append",  # a job that is requeued keeps what it has said before
    }
    for name, value in options.items():
        if value is not None:
            yield f"#SBATCH --{name}={_directive(str(value))}"
    if job.exclusive:
        yield "#SBATCH --exclusive"
    yield "#SBATCH --requeue" if job.requeue else "#SBATCH --no-requeue"


def _directive(value: str) -> str:
    """``value`` as sbatch reads it back (tried with 22.05): quoted, with a backslash before quotes and backslashes."""
    if _PLAIN.fullmatch(value):
        return value
    return '"' + re.sub(r'(["\\])', r"\\\1", value) + '"'


def _assignments(job: Job) -> Iterator[str]:
    for setting in job.settings:
        value = setting.value.text if isinstance(setting.value, Shell) else shlex.quote(setting.value)
        line = f"{setting.name}={value if setting.ours else f'${{{setting.name}:-{value}}}'}"
        words = f"  # {setting.comment}" if setting.comment else ""
        yield f"{'export ' if setting.exported else ''}{line}{words}"
    if job.cpus_per_task is not None:
        yield 'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"  # since 22.05 srun does not take it from the job'


def _command(job: Job) -> Iterator[str]:
    # A rank that died is found and named by the others, which Slurm must not end before they have written it down.
    wait = math.ceil(job.silence_seconds) + _WORDS_SECONDS
    srun: list[Word] = ["srun", "--kill-on-bad-exit=0", f"--wait={wait}"]
    tasks: tuple[Word, ...] = ()
    run = job.run
    if job.mpi is not None:
        srun.append(Shell(f"--mpi={job.mpi.text}") if isinstance(job.mpi, Shell) else f"--mpi={job.mpi}")
    if job.node_counts:
        ranks = "$((SLURM_ARRAY_TASK_ID * SLURM_NTASKS_PER_NODE))"
        tasks = (Shell("--nodes=$SLURM_ARRAY_TASK_ID"), Shell(f"--ntasks={ranks}"))
        run = (Shell(f"--ranks={ranks}"), *run)  # a step of one task would start a rank for each core
    lines = (
        f'"$BUSBW" launches {_words(srun)}',
        *(_words(options) for options in (tasks, job.srun) if options),
        f'"$BUSBW" run {_words(run)}',
    )
    yield "# One srun is one launch. As many are started as the run lacks; a job that is requeued goes on with its run."
    command = " \\\n    ".join(lines)
    if not job.after:
        # The shell makes room: it would go at once when Slurm ends the job, and busbw writes down how it ended.
        yield f"exec {command}"
        return
    yield "trap : TERM  # when Slurm ends the job, wait until busbw has written down how it ended"
    yield f"run=$({command}) || exit"


def _words(words: "list[Word] | tuple[Word, ...]") -> str:
    return " ".join(f'"{word.text}"' if isinstance(word, Shell) else shlex.quote(word) for word in words)
