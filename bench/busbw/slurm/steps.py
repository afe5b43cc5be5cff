"""``busbw launches``: start one srun per launch until the run of the job is complete or a launch is interrupted."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from busbw.backends.signing import VARIABLE, new_secret
from busbw.errors import LaunchError, UsageError
from busbw.escape import say
from busbw.runs import store
from busbw.runs.progress import outline, progress_of
from busbw.slurm.jobs import JOB, NODES, JobRuns

_RESTARTS = "SLURM_RESTART_COUNT"

Start = Callable[[Sequence[str], Mapping[str, str]], int]
"""Starts a step with these environment variables, waits for it, and returns its exit status."""


def start_step(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run ``command``, with its output in the log. Raises LaunchError when it cannot be started."""
    with _signals_ignored():
        try:
            return subprocess.run(
                command, check=False, env=dict(variables), stdin=subprocess.DEVNULL, stdout=sys.stderr
            ).returncode
        except OSError as error:
            raise LaunchError(f"cannot start {command[0]}: {error.strerror}") from error


def carry_out(
    command: Sequence[str], results_dir: Path, variables: Mapping[str, str], start: Start = start_step
) -> tuple[Path, int]:
    """Start ``command`` (``srun … busbw run …``) once per launch; return the run folder and the exit status.

    A complete launch is followed by the next one. An interrupted launch ends the job; the next job can resume the run.
    The steps get a secret of this job, unless the user has set one. A requeued job continues the run that it began if
    it has the same nodes and its plan no controller, else it begins a new one.

    Raises LaunchError when a step succeeded without a run in ``results_dir``, and UsageError when ``command`` does not
    contain ``busbw run``.
    """
    starts, options = _split(command)
    kept = _kept(options)
    runs = JobRuns(results_dir)
    selector = _value_of("--resume", options)
    folder = store.find(results_dir, selector) if selector else None
    if folder is None and int(variables.get(_RESTARTS, "0") or 0) > 0:
        folder = _begun(runs, variables)
        if folder is not None and outline(folder).run.plan.controller is not None:
            say(f"requeued; run {folder.name} chose its rounds itself and cannot be continued, so a new run begins")
            folder = None
        elif folder is None:
            say(f"requeued; no run of this job on these nodes in {results_dir}, so a new run begins")
        else:
            say(f"requeued; continuing run {folder.name}")
            options = ["--resume", str(folder), *kept]
    old = set(store.folders(results_dir))
    variables = {**variables, VARIABLE: variables.get(VARIABLE) or new_secret()}
    while True:
        # Not the number of blocks: a case that fails removes its earlier blocks from the count.
        begun = 0 if folder is None else len(outline(folder).launches)
        status = start([*starts, *options], {**variables, "BUSBW_RESULTS_DIR": str(results_dir)})
        folder = folder or _begun(runs, variables, old)
        if folder is None:
            return _without_run(status, results_dir)
        run = outline(folder)
        progress = progress_of(run)
        if progress.measured == progress.wanted:
            return folder, min(abs(status), 1)  # srun's own status may be a signal number or above 1
        if progress.partial or len(run.launches) == begun:
            say(
                f"run {folder.name} is not complete: {progress.with_blocks_and_end()}; to continue it: "
                f"busbw submit --resume {folder.name}, unless Slurm requeues this job (see busbw status)"
            )
            return folder, 1
        options = ["--resume", str(folder), *kept]


def _split(command: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split ``srun -n 4 busbw run --suite quick`` after ``run``, into the command and the options of the run."""
    for end in range(2, len(command) + 1):
        if command[end - 1] == "run" and command[end - 2].endswith("busbw"):
            return list(command[:end]), list(command[end:])
    raise UsageError(
        f"expected a command with busbw run, such as srun busbw run --suite quick; given: {' '.join(command)}"
    )


def _kept(options: Sequence[str]) -> list[str]:
    """Options that every launch needs: --quiet, and the --timeout that applies before ranks know the plan."""
    timeout = _value_of("--timeout", options)
    return [*([] if timeout is None else [f"--timeout={timeout}"]), *(["--quiet"] if "--quiet" in options else [])]


def _value_of(name: str, options: Sequence[str]) -> str | None:
    """The value of the option ``name``, which is given as ``--name VALUE`` or ``--name=VALUE``."""
    for option, following in pairwise([*options, ""]):
        if option == name:
            return following
        if option.startswith(f"{name}="):
            return option.partition("=")[2]
    return None


def _begun(runs: JobRuns, variables: Mapping[str, str], old: Collection[Path] = ()) -> Path | None:
    """The newest run of this job on these nodes, or None; ``old`` are folders that existed before."""
    return next((folder for folder in runs.of(variables[JOB], variables.get(NODES)) if folder not in old), None)


def _without_run(status: int, results_dir: Path) -> tuple[Path, int]:
    if status == 0:
        raise LaunchError(
            f"the step succeeded, but there is no run of this job in {results_dir}: set the results folder only with "
            "BUSBW_RESULTS_DIR, and place rank 0 on the first node of the job"
        )
    raise (UsageError if status == 2 else LaunchError)(
        f"the step produced no run and ended with exit status {status}; its messages are above"
    )


@contextmanager
def _signals_ignored() -> Iterator[None]:
    """Ignore the signals that end the job: the step receives them too, and its last output is awaited."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    before = {number: signal.signal(number, _ignore) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ignore(_number: int, _frame: object) -> None:
    """Do nothing. A handler and not SIG_IGN, which srun would inherit."""


def here() -> Mapping[str, str]:
    """The environment of this job. Raises UsageError outside of one."""
    if JOB not in os.environ:
        raise UsageError(f"{JOB} is not set: busbw launches works in Slurm batch scripts; busbw submit writes one")
    return os.environ
