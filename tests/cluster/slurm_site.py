"""A site with Slurm to work on: what the tests of the shipped batch files and those of jobs that end early share."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest
from bed import HEAD, Bed
from bed.whole import Job
from exhaustive import EXHAUSTIVE
from testing.plans import plan_text, sweep

from busbw.runs import store
from busbw.runs.resume import plan_of
from busbw.runs.store import StoredRun
from busbw.slurm.jobs import JobRuns

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 150.0
PMI2_GARBLED = "mpi/pmi2: invalid client request"
"""In the log of a job whose ranks never met: slurmstepd misread MPICH's requests. Seen at times on a loaded machine."""
SMALL = ("--op", "broadcast,barrier", "--sizes", "8,64KiB", "--max-seconds", "0.02", "--no-baseline")
"""Options of ``busbw run`` behind a shipped file: three cases of its suite."""


def steady(name: str, blocks: int, launches: int = 1, timeout: int = 60) -> str:
    """Two cases whose blocks take a tenth of a second each: about ``blocks`` / 3 seconds a launch."""
    timing = {"blocks": blocks, "min_samples": 2, "least_samples": 2, "min_seconds": 0.1, "max_seconds": 0.1}
    timing |= {"launch_warmup_seconds": 0.1, "timeout_seconds": timeout}
    text = plan_text(sweep("all_reduce,barrier", "8"), timing=timing, name=name)
    return f"launches = {launches}\n{text}"


Value = TypeVar("Value")


def either(backend: str) -> list[str]:
    """Both backends; for a commit this one alone, as each fault is tried by one of them and each of them by faults."""
    return ["gloo", "mpi"] if EXHAUSTIVE else [backend]


@dataclass
class Site:
    """A cluster to work on: commands on its head node, jobs, and the runs that come of them."""

    bed: Bed
    folder: Path
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def results(self) -> Path:
        return self.folder / "results"

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        return {"BUSBW_RESULTS_DIR": str(self.results), "SUITE": "quick", **self.variables, **(more or {})}

    def busbw(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return self.bed.run_on(
            HEAD, ["busbw", *arguments], environment=self.environment(), folder=self.folder, seconds=PATIENCE_SECONDS
        )

    @contextmanager
    def submitted(self, *arguments: str | Path, **variables: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
        """``busbw submit … --wait`` under way, and the number of its job."""
        argv = ["busbw", "submit", *arguments, "--wait"]
        with self.bed.running_on(HEAD, argv, environment=self.environment(variables), folder=self.folder) as process:
            assert process.stdout is not None
            number = process.stdout.readline().strip()
            assert number.isdigit(), process.communicate()
            yield int(number), process

    def shipped(self, name: str, options: Sequence[str] = (), more: Sequence[str] = SMALL, **variables: str) -> int:
        """Submit a file of ``slurm/`` as it is; ``more`` are options of ``busbw run``."""
        return self.bed.sbatch(
            [*options, ROOT / "slurm" / f"{name}.sbatch", *more],
            folder=self.folder,
            environment=self.environment({"LAUNCHES": "1", **variables}),
        )

    def ended(self, number: int) -> Job:
        return self.bed.ended_job(number, PATIENCE_SECONDS)

    def log(self, number: int) -> str:
        path = self.folder / f"busbw-{number}.out"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def runs(self, number: int) -> list[StoredRun]:
        """The runs of a job; each has to be readable."""
        return [store.read(folder) for folder in JobRuns(self.results).of(str(number))]

    def run(self, number: int) -> StoredRun:
        (run,) = self.runs(number)
        return run

    def measuring(self, number: int, atleast: int = 3) -> StoredRun:
        """The run of a job, once it has so many blocks."""

        def enough() -> StoredRun | None:
            runs = self.runs(number)
            if PMI2_GARBLED in self.log(number):
                pytest.skip("Slurm's pmi2 garbled the address exchange of MPICH, as it does on a loaded machine")
            return runs[0] if runs and len(runs[0].measurements) >= atleast else None

        return until(enough, lambda: f"job {number} measures nothing: {self.log(number)}")

    def rank_on(self, host: str) -> int:
        """The process of a rank of ``busbw run`` on a host."""
        pids = [
            pid
            for pid, command in self.bed.processes(host).items()
            if "busbw run" in command and "srun" not in command and "launches" not in command
        ]
        assert pids, self.bed.processes(host)
        return pids[0]

    def plan(self, name: str, blocks: int, launches: int = 1, timeout: int = 60) -> Path:
        path = self.folder / f"{name}.toml"
        path.write_text(steady(name, blocks, launches, timeout), encoding="utf-8")
        return path


def until(condition: Callable[[], Value | None], otherwise: Callable[[], str]) -> Value:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        value = condition()
        if value is not None:
            return value
        time.sleep(0.1)
    pytest.fail(otherwise())


def told(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit status and talk of a command, once it has ended."""
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, err


def assert_whole(run: StoredRun, *, launches: int, nodes: int, ranks: int, backend: str) -> None:
    assert run.end is not None
    assert (run.end.status, run.end.reason) == ("complete", None)
    assert len(run.launches) == launches
    assert (len(set(run.run.hosts)), len(run.run.hosts)) == (nodes, ranks)
    assert run.run.launcher == "srun"
    measured = [row for row in run.measurements if row.case.backend == backend]
    assert len(measured) == launches * len(run.run.cases) * plan_of(run.run, None).timing.blocks
    assert {row.check.state for row in measured if row.case.dtype} <= {"verified"}
