"""In the job: start one srun after another, each a launch, until the run of the job is whole or one breaks off."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from busbw.backends.signing import VARIABLE, new_secret
from busbw.errors import LaunchError, UsageError
from busbw.escape import say
from busbw.runs import store
from busbw.slurm.runs import JOB, NODES, JobRuns, read_progress

_RESTARTS = "SLURM_RESTART_COUNT"

Start = Callable[[Sequence[str], Mapping[str, str]], int]
"""Starts a step with these variables around it, waits for it, and returns its exit status."""


def start_step(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Start ``command`` and wait; what it prints goes to the log. Raises LaunchError when it cannot be started."""
    with _outlived():
        try:
            return subprocess.run(
                command, check=False, env=dict(variables), stdin=subprocess.DEVNULL, stdout=sys.stderr
            ).returncode
        except OSError as error:
            raise LaunchError(f"cannot start {command[0]}: {error.strerror}") from error


def carry_out(
    command: Sequence[str], results_dir: Path, variables: Mapping[str, str], start: Start = start_step
) -> tuple[Path, int]:
    """Start ``command`` (``srun … busbw run …``) once a launch; return the run's folder and the exit status.

    A launch that measured all that it was to is followed by the next one; one that was broken off ends the job, and
    what is missing is for the next. The steps get a secret that only this job has, unless the user has set one. A job
    that was requeued goes on with the run that it had begun, when it has the
    same nodes; on other ones it begins another. Raises LaunchError when a step ended well and left no run here,
    UsageError when ``command`` runs no ``busbw run``.
    """
    starts, options = _split(command)
    kept = _kept(options)
    runs = JobRuns(results_dir)
    folder = _resumed(options, results_dir)
    if folder is None and int(variables.get(_RESTARTS, "0") or 0) > 0:
        folder = _begun(runs, variables)
        if folder is None:
            say(f"requeued; no run of this job on these nodes in {results_dir}: a new one")
        else:
            say(f"requeued; going on with run {folder.name}")
            options = ["--resume", str(folder), *kept]
    old = set(store.folders(results_dir))
    variables = {**variables, VARIABLE: variables.get(VARIABLE) or new_secret()}
    while True:
        # Not by the blocks that are done: a case that fails takes those of the launches before out of the count.
        begun = 0 if folder is None else read_progress(folder).begun
        status = start([*starts, *options], {**variables, "BUSBW_RESULTS_DIR": str(results_dir)})
        folder = folder or _begun(runs, variables, old)
        if folder is None:
            return _without_run(status, results_dir)
        after = read_progress(folder)
        if after.whole:
            return folder, min(abs(status), 1)  # srun's may be a signal's, or one more than busbw ever gives
        if after.broken_off or after.begun == begun:
            say(
                f"run {folder.name} is not whole: {after.in_words()}; busbw submit --resume {folder.name} goes on, "
                "unless Slurm starts this job again by itself, as after the failure of a node (busbw status shows it)"
            )
            return folder, 1
        options = ["--resume", str(folder), *kept]


def _split(command: Sequence[str]) -> tuple[list[str], list[str]]:
    """``srun -n 4 busbw run --suite quick`` → up to ``run`` and with it, and the options of the run."""
    places = [
        place for place, word in enumerate(command) if word == "run" and place and command[place - 1].endswith("busbw")
    ]
    if not places:
        raise UsageError(
            f"want a command that runs busbw run: srun busbw run --suite quick; given: {' '.join(command)}"
        )
    first = places[0] + 1
    return list(command[:first]), list(command[first:])


def _kept(options: Sequence[str]) -> list[str]:
    """What every launch is told: to be quiet, and how long its ranks wait for each other, before they know the plan."""
    found = []
    for place, option in enumerate(options):
        if option == "--quiet" or option.startswith("--timeout="):
            found.append(option)
        elif option == "--timeout":
            found += options[place : place + 2]
    return found


def _resumed(options: Sequence[str], results_dir: Path) -> Path | None:
    for place, option in enumerate(options):
        if option == "--resume" and place + 1 < len(options):
            return store.find(results_dir, options[place + 1])
        if option.startswith("--resume="):
            return store.find(results_dir, option.partition("=")[2])
    return None


def _begun(runs: JobRuns, variables: Mapping[str, str], old: Collection[Path] = ()) -> Path | None:
    """The newest run of this job on these nodes, or None; ``old`` are folders that were there before."""
    return next((one for one in runs.of(variables[JOB], variables.get(NODES)) if one not in old), None)


def _without_run(status: int, results_dir: Path) -> tuple[Path, int]:
    if status == 0:
        raise LaunchError(
            f"the step ended well, but there is no run of this job in {results_dir}: give the results folder by "
            "BUSBW_RESULTS_DIR alone, and keep rank 0 on the first node of the job"
        )
    raise (UsageError if status == 2 else LaunchError)(
        f"no run came of it: the step ended with exit status {status}, and says why above"
    )


@contextmanager
def _outlived() -> Iterator[None]:
    """Signals that end the job reach the step too; what it has to say then is waited for."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    before = {number: signal.signal(number, _wait_for_the_step) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait_for_the_step(_number: int, _frame: object) -> None:
    """Nothing: a handler, not SIG_IGN, which srun would inherit."""


def here() -> Mapping[str, str]:
    """The environment of this job. Raises UsageError outside of one."""
    if JOB not in os.environ:
        raise UsageError(f"{JOB} is not set: busbw launches belongs into a batch script; busbw submit writes one")
    return os.environ
