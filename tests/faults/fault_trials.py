"""One run that is broken on purpose, and what has to be true of it afterwards."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from busbw.errors import BusbwError
from busbw.runs import store
from busbw.runs.records import LaunchStarted, Measurement
from busbw_analysis.data.load import pool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

RANKS = 2
LAUNCHES = 3
BLOCKS = 2
TIMEOUT_SECONDS = 4.0
ENDS_WITHIN_SECONDS = 2 * TIMEOUT_SECONDS + 5.0
_PATIENCE_SECONDS = 120.0
_MARK = "BUSBW_FAULT_MARK"
_FOREIGN = ("BUSBW_", "MASTER_", "TORCHELASTIC_", "GLOO_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "MPI_LOCAL")

_PLAN = f"""\
name = "faults"

[timing]
blocks = {BLOCKS}
min_samples = 4
least_samples = 2
min_seconds = 0.0
max_seconds = 0.02
launch_warmup_seconds = 0.05
warmup_seconds = 0.0
warmup_calls = 1
timeout_seconds = {TIMEOUT_SECONDS}

[[sweep]]
ops = ["all_reduce", "broadcast"]
sizes = "1KiB..8KiB*2"
"""
_CASES = 8


@dataclass(slots=True)
class Trial:
    """A run of ``backend`` in ``folder``, with a moment that ``dice`` choose. ``tree`` holds the busbw that is tried
    (None: the one that is installed). ``problems`` is what was not as it has to be.
    """

    folder: Path
    backend: str
    dice: random.Random
    tree: Path | None = None
    process: subprocess.Popen[str] | None = None
    problems: list[str] = field(default_factory=list)
    ended_seconds: float = 0.0

    @property
    def results(self) -> Path:
        """Where its run is."""
        return self.folder / "results"

    @property
    def shm(self) -> Path:
        """What it has as /dev/shm, where this user may mount one."""
        return self.folder / "shm"

    def start(self, *arguments: str, before: str = "", redirection: str = "") -> subprocess.Popen[str]:
        """``busbw`` with these arguments, below a shell that has done ``before``, with a /dev/shm of its own."""
        mounted = f"mount --bind '{self.shm}' /dev/shm && " if os.geteuid() == 0 else ""
        script = f'{mounted}{before}exec "$0" -m busbw "$@" {redirection}'
        unshared = ("unshare", "--mount") if os.geteuid() == 0 else ()
        return subprocess.Popen(
            [*unshared, "sh", "-c", script, sys.executable, *arguments],
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=self.folder,
        )

    def start_run(self, before: str = "", redirection: str = "") -> subprocess.Popen[str]:
        """The run that is to be broken."""
        for name in ("results", "shm", "tmp"):
            (self.folder / name).mkdir(exist_ok=True)
        plan = self.folder / "plan.toml"
        plan.write_text(_PLAN, encoding="utf-8")
        world = ("--ranks", str(RANKS), "--launches", str(LAUNCHES), "--backend", self.backend)
        self.process = self.start("run", "--plan", str(plan), *world, before=before, redirection=redirection)
        return self.process

    def run_folder(self) -> Path | None:
        """The folder of the run, when it has begun."""
        return next(iter(store.folders(self.results)), None)

    def until_the_moment(self) -> None:
        """Wait for a random moment between the start of the first launch and the end of the last."""
        wanted = self.dice.randrange(_CASES * BLOCKS * LAUNCHES)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline and self.process is not None and self.process.poll() is None:
            folder = self.run_folder()
            if folder is not None and self._launches(folder) and self._measured(folder) >= wanted:
                break
            time.sleep(0.005)
        time.sleep(self.dice.uniform(0.0, 0.1))

    def pids(self) -> tuple[int, ...]:
        """The ranks of the launch under way."""
        folder = self.run_folder()
        launches = [] if folder is None else self._launches(folder)
        return launches[-1].pids if launches else ()

    def wait(self) -> tuple[int, str, str]:
        """The end of the run: exit status, stdout, stderr. It has to come soon."""
        if self.process is None:
            message = "the trial has not begun"
            raise RuntimeError(message)
        began = time.monotonic()
        try:
            out, err = self.process.communicate(timeout=_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.problems.append(f"it did not end within {_PATIENCE_SECONDS:g} s")
            os.killpg(self.process.pid, signal.SIGKILL)
            out, err = self.process.communicate()
        self.ended_seconds = time.monotonic() - began
        if "Traceback" in out + err:
            self.problems.append(f"there is a traceback: {(out + err)[-300:]!r}")
        return self.process.returncode, out, err

    def look_for_leftovers(self) -> None:
        """Processes, shared memory and temporary files may not outlive the run."""
        deadline = time.monotonic() + 5.0
        while (left := self._alive()) and time.monotonic() < deadline:
            time.sleep(0.02)
        if left:
            self.problems.append(f"{len(left)} processes are left")
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for place in (self.shm, self.folder / "tmp"):
            if names := sorted(path.name for path in place.iterdir()):
                self.problems.append(f"left in {place.name}: {', '.join(names)}")

    def resume(self) -> None:
        """Whatever happened, ``--resume`` makes the run whole, and the analysis has all of it."""
        folder = self.run_folder()
        if folder is None:
            return  # it ended before there was something to go on with
        try:
            store.read(folder)
        except BusbwError as error:
            self.problems.append(f"it cannot be read: {error}")
            return
        code, _, err = self._finished("run", "--resume", str(folder), "--quiet")
        if code:
            failed = [(row.launch, row.cause, row.error) for row in store.read(folder).failed]
            self.problems.append(f"--resume ends with {code}: {err[-300:]!r}; failed: {failed}")
            return
        stored = store.read(folder)
        origin = {row.launch: row.launch if row.resumes is None else row.resumes for row in stored.launches}
        blocks = {(origin.get(row.launch), row.case, row.block) for row in stored.measurements}
        wanted = _CASES * BLOCKS * LAUNCHES
        if len(blocks) != wanted or stored.end is None or stored.end.status != "complete":
            self.problems.append(f"after --resume it has {len(blocks)} of {wanted} blocks, and its end is {stored.end}")
        rows = pool((stored,)).summaries  # what ``show`` shows, without another process
        few = [row for row in rows if row.only is None or row.only.launches < LAUNCHES]
        if few or len(rows) != _CASES:
            self.problems.append(f"show has {len(rows)} cases, of which {len(few)} without all launches")

    def _finished(self, *arguments: str) -> tuple[int, str, str]:
        process = self.start(*arguments)
        try:
            out, err = process.communicate(timeout=_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
        return process.returncode, out, err

    def _launches(self, folder: Path) -> list[LaunchStarted]:
        return [row for row in _rows(folder) if isinstance(row, LaunchStarted)]

    def _measured(self, folder: Path) -> int:
        return sum(isinstance(row, Measurement) for row in _rows(folder))

    def _environment(self) -> Mapping[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        if self.tree is not None:
            kept["PYTHONPATH"] = f"{self.tree / 'bench'}:{self.tree / 'analysis'}"
        kept |= {_MARK: str(self.folder), "TMPDIR": str(self.folder / "tmp"), "BUSBW_RESULTS_DIR": str(self.results)}
        return kept

    def _alive(self) -> list[int]:
        needle = f"{_MARK}={self.folder}\0".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and needle in (entry / "environ").read_bytes() + b"\0":
                    found.append(int(entry.name))
        return found


def _rows(folder: Path) -> Sequence[object]:
    try:
        return store.read(folder).rows
    except BusbwError:
        return ()


# --- the faults ------------------------------------------------------------------------------------------------


def _rank(trial: Trial, number: signal.Signals, words: str) -> None:
    trial.start_run()
    trial.until_the_moment()
    pids = trial.pids()
    rank = trial.dice.randrange(RANKS)
    alive = bool(pids) and Path(f"/proc/{pids[rank]}").exists()
    if alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[rank], number)
    code, _, err = trial.wait()
    if alive and code == 1 and f"rank {rank} " not in err:
        trial.problems.append(f"rank {rank} {words} and is not named: {err[-300:]!r}")


def kill_a_rank(trial: Trial) -> None:
    """SIGKILL, as by the kernel that is out of memory."""
    _rank(trial, signal.SIGKILL, "was killed")


def stop_a_rank(trial: Trial) -> None:
    """SIGSTOP: it does not answer, and does not end."""
    _rank(trial, signal.SIGSTOP, "was stopped")


def _launcher(trial: Trial, send: Callable[[int], None]) -> int:
    process = trial.start_run()
    trial.until_the_moment()
    if process.poll() is None:
        send(process.pid)
    return trial.wait()[0]


def interrupt(trial: Trial) -> None:
    """Ctrl-C: the signal reaches every process of the terminal."""
    _launcher(trial, lambda pid: os.killpg(pid, signal.SIGINT))


def terminate(trial: Trial) -> None:
    """SIGTERM to the launcher."""
    _launcher(trial, lambda pid: os.kill(pid, signal.SIGTERM))


def kill_the_launcher(trial: Trial) -> None:
    """SIGKILL to the launcher, which can do nothing about it."""
    _launcher(trial, lambda pid: os.kill(pid, signal.SIGKILL))


def full_disk(trial: Trial) -> None:
    """The results are on a disk that fills up; there is room again before the run is resumed."""
    trial.results.mkdir()
    size = trial.dice.randrange(40, 64)
    _mount("-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(trial.results))
    try:
        trial.start_run()
        trial.wait()
        _mount("-o", "remount,size=8m", str(trial.results))
        trial.look_for_leftovers()
        trial.resume()
    finally:
        subprocess.run(["umount", str(trial.results)], check=True)  # noqa: S607 - wherever it is


def few_descriptors(trial: Trial) -> None:
    """A limit on open files that is too low, or nearly."""
    trial.start_run(before=f"ulimit -S -n {trial.dice.randrange(12, 48)} && ")
    trial.wait()


def stdout_full(trial: Trial) -> None:
    """The table goes to a disk that is full."""
    trial.start_run(redirection=">/dev/full")
    code, _, err = trial.wait()
    if code != 1 or "cannot write to stdout" not in err:
        trial.problems.append(f"it ends with {code} and says {err[-300:]!r}")


def samples_removed(trial: Trial) -> None:
    """Somebody tidies up below a run that goes on."""
    process = trial.start_run()
    trial.until_the_moment()
    folder = trial.run_folder()
    if folder is not None and process.poll() is None:
        (folder / store.SAMPLES_FILE).unlink(missing_ok=True)
    trial.wait()


FAULTS: dict[str, Callable[[Trial], None]] = {
    one.__name__: one
    for one in (
        *(kill_a_rank, stop_a_rank, interrupt, terminate, kill_the_launcher),
        *(full_disk, few_descriptors, stdout_full, samples_removed),
    )
}


def carry_out(trial: Trial, fault: str) -> Trial:
    """Break ``trial`` by the fault of this name, and look at what is left of it."""
    if os.geteuid() == 0:
        trial.shm.mkdir(parents=True)
        _mount("-t", "tmpfs", "-o", "size=256m", "tmpfs", str(trial.shm))
    try:
        FAULTS[fault](trial)
        if trial.ended_seconds > ENDS_WITHIN_SECONDS and fault in _AT_A_MOMENT:
            trial.problems.append(f"it ended after {trial.ended_seconds:.1f} s, and has {ENDS_WITHIN_SECONDS:g} s")
        if fault != full_disk.__name__:
            trial.look_for_leftovers()
            trial.resume()
        trial.look_for_leftovers()
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", "--lazy", str(trial.shm)], check=True)  # noqa: S607 - wherever it is
    return trial


_AT_A_MOMENT = {"kill_a_rank", "stop_a_rank", "interrupt", "terminate", "kill_the_launcher"}
"""The faults from which on the time is counted; after the others a run goes on as long as it has work."""


def why_not(fault: str) -> str | None:
    """Why a fault cannot be made here; None when it can."""
    return "only root may mount a disk that is full" if fault == "full_disk" and os.geteuid() else None


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)  # noqa: S607 - wherever it is
