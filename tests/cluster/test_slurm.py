"""busbw on a real Slurm: the shipped batch files as they are, MPI by both ways of srun, and whatever ends a job early.

Each ends in a clear message, a run folder that can be read, and the right exit status.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from bed import HEAD, Bed, Cable, Network
from bed.whole import Job
from exhaustive import EXHAUSTIVE, thinned

from busbw.runs import store
from busbw.runs.records import Measurement
from busbw.runs.store import StoredRun
from busbw.slurm.runs import JobRuns

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 150.0
SMALL = ("--op", "broadcast,barrier", "--sizes", "8,64KiB", "--max-seconds", "0.02")
"""Options of ``busbw run`` behind a shipped file: three cases of its suite."""

STEADY = """\
name = "{name}"
launches = {launches}
[timing]
blocks = {blocks}
min_samples = 2
least_samples = 2
min_seconds = 0.1
max_seconds = 0.1
launch_warmup_seconds = 0.1
timeout_seconds = {timeout}
[[sweep]]
ops = ["all_reduce", "barrier"]
sizes = "8"
"""
"""Two cases whose blocks take a tenth of a second each: about ``blocks`` / 3 seconds a launch."""

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
            environment=self.environment({"LAUNCHES": "2", **variables}),
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
            return runs[0] if runs and len(runs[0].measurements) >= atleast else None

        return until(enough, lambda: f"job {number} measures nothing: {self.log(number)}")

    def rank_on(self, host: str) -> int:
        """The process of a rank of ``busbw run`` on a host."""
        found = [
            pid
            for pid, command in self.bed.processes(host).items()
            if "busbw run" in command and "srun" not in command and "launches" not in command
        ]
        assert found, self.bed.processes(host)
        return found[0]

    def plan(self, name: str, blocks: int, launches: int = 1, timeout: int = 60) -> Path:
        path = self.folder / f"{name}.toml"
        text = STEADY.format(name=name, blocks=blocks, launches=launches, timeout=timeout)
        path.write_text(text, encoding="utf-8")
        return path


def until(condition: Callable[[], Value | None], otherwise: Callable[[], str]) -> Value:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        found = condition()
        if found is not None:
            return found
        time.sleep(0.1)
    pytest.fail(otherwise())


def told(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit status and talk of a command, once it has ended."""
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    return process.returncode, err


def waits_for_ever(job: Job) -> str | None:
    """The reason why there will never be enough nodes, by its older or newer name."""
    reason = job.facts.get("Reason")
    return reason if reason in {"PartitionConfig", "PartitionNodeLimit"} else None


def blocks_of(run: StoredRun) -> list[tuple[int, str, int]]:
    """Every block as (launch that it was planned for, op, block)."""
    origin = {row.launch: row.launch if row.resumes is None else row.resumes for row in run.launches}
    return sorted((origin[row.launch], row.case.op, row.block) for row in run.measurements)


def assert_whole(run: StoredRun, *, launches: int, nodes: int, ranks: int, backend: str) -> None:
    assert run.end is not None
    assert (run.end.status, run.end.reason) == ("complete", None)
    assert len(run.launches) == launches
    assert (len(set(run.run.hosts)), len(run.run.hosts)) == (nodes, ranks)
    assert run.run.launcher == "srun"
    measured = [row for row in run.measurements if row.case.backend == backend]
    assert len(measured) == launches * len(run.run.cases) * run.run.plan["timing"]["blocks"]
    assert {row.check.state for row in measured if row.case.dtype} <= {"verified"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Eight hosts with Slurm. The last four belong to the jobs that are to reach their time limit: they take a minute,
    and so they begin first, and the other tests go on beside them. Their network is slow, for they are not to keep the
    processor from the others.
    """
    folder = tmp_path_factory.mktemp("site")
    slow = Network(cables={f"n{number}": Cable(delay_ms=5) for number in (5, 6, 7, 8)})
    with Bed(hosts=8, network=slow, slurm=True, shared=[tmp_path_factory.getbasetemp()]) as bed:
        yield Site(bed, folder)
        bed.ask("scancel", "--user=root")


@pytest.fixture(scope="module", autouse=True)
def limited(site: Site) -> Iterator[dict[str, tuple[int, subprocess.Popen[str]]]]:
    """Jobs with a limit of a minute and much more to do, told before it ends and not."""
    plan = site.plan("limited", blocks=2000)
    options = ("--nodes", "2", "--ranks-per-node", "1", "--time", "1")
    # Slurm looks at limits every half a minute: told "1 s before" is between 29 s and 59 s after the beginning.
    with (
        site.submitted(plan, *options, "--nodelist=n5,n6", "--signal-seconds=1") as warned,
        site.submitted(plan, *options, "--nodelist=n7,n8", "--signal-seconds=0") as unwarned,
    ):
        yield {"warned": warned, "unwarned": unwarned}


# --- the files in slurm/ ---------------------------------------------------------------------------------------


class TestShippedFiles:
    def test_processors_over_gloo(self, site: Site) -> None:
        number = site.shipped("cpu")
        assert (site.ended(number).state, site.ended(number).exit_code) == ("COMPLETED", 0), site.log(number)
        assert_whole(site.run(number), launches=2, nodes=2, ranks=4, backend="gloo")

    def test_processors_over_the_mpi_of_the_environment(self, site: Site) -> None:
        # Ranks of MPICH that wait do not let go of their core, and here are few.
        number = site.shipped("mpi", ("--ntasks-per-node=1",))
        assert site.ended(number).state == "COMPLETED", site.log(number)
        run = site.run(number)
        assert_whole(run, launches=2, nodes=2, ranks=2, backend="mpi")
        for facts in run.run.environments.values():
            assert "MPICH" in facts["mpi"]["library"]
            assert facts["mpi"]["transport"]["netmod"] == "ucx"

    def test_processors_over_open_mpi(self, site: Site, openmpi: dict[str, str]) -> None:
        number = site.shipped("mpi", ("--ntasks-per-node=1",), MPI="pmix", LAUNCHES="1", **openmpi)
        if site.ended(number).state == "FAILED" and re.search(r"Segmentation fault[^$]*MPI_Init", site.log(number)):
            # Open MPI 5.0 crashes at times, when a rank comes so late to MPI_Init that others speak to it already.
            number = site.shipped("mpi", ("--ntasks-per-node=1",), MPI="pmix", LAUNCHES="1", **openmpi)
        assert site.ended(number).state == "COMPLETED", site.log(number)
        run = site.run(number)
        assert_whole(run, launches=1, nodes=2, ranks=2, backend="mpi")
        for facts in run.run.environments.values():
            assert "Open MPI" in facts["mpi"]["library"]
            assert facts["mpi"]["transport"]["pml"] == "ob1", "which is what sends over TCP"

    def test_every_pair_of_nodes(self, site: Site) -> None:
        number = site.shipped("pairs", more=("--max-seconds", "0.02"), SIZES="8,64KiB", LAUNCHES="1")
        assert site.ended(number).state == "COMPLETED", site.log(number)
        run = site.run(number)
        assert_whole(run, launches=1, nodes=4, ranks=4, backend="gloo")
        (first, *_) = run.measurements
        assert {group.ranks for group in first.groups} == {(a, b) for a in range(4) for b in range(4) if a != b}

    def test_ranks_without_a_container(self, site: Site) -> None:
        number = site.shipped("container", LAUNCHES="1")
        assert site.ended(number).state == "COMPLETED", site.log(number)
        assert_whole(site.run(number), launches=1, nodes=2, ranks=4, backend="gloo")

    def test_the_same_plan_on_more_and_more_nodes(self, site: Site) -> None:
        number = site.shipped("scaling", more=("--op", "barrier", "--max-seconds", "0.02"), LAUNCHES="1")
        until(
            lambda: None if site.bed.ask("squeue", "-h", "-j", str(number)) else True,
            lambda: site.bed.ask("squeue"),
        )
        tasks = site.bed.ask("squeue", "-h", "-t", "all", "-j", str(number), "-o", "%A %K %T").split("\n")
        found = {}
        for task in filter(None, tasks):
            job, nodes, state = task.split()
            assert state == "COMPLETED", (site.folder / f"busbw-{number}_{nodes}.out").read_text()
            run = site.run(int(job))
            assert_whole(run, launches=1, nodes=int(nodes), ranks=2 * int(nodes), backend="gloo")
            found[int(nodes)] = run.run.hosts
        assert sorted(found) == [1, 2, 4]

    @pytest.mark.timeout(600)
    def test_a_night_is_held_against_the_first_one(self, site: Site) -> None:
        nights = site.folder / "nights"
        options = ("--nodelist=n1,n2", "--ntasks-per-node=1")

        def night(launches: int, *more: str) -> Job:
            variables = {"BUSBW_RESULTS_DIR": str(nights), "LAUNCHES": str(launches), "WITHIN": "90%"}
            return site.ended(site.shipped("nightly", options, more, **variables))

        whole = ("--op", "all_reduce,barrier", "--sizes", "8", "--max-seconds", "0.02")
        first = night(5, *whole)  # the fewest that can tell two bands apart
        assert first.state == "COMPLETED", site.log(first.number)
        baseline = nights / "baseline"
        assert f"the first run: {baseline} is now" in site.log(first.number)
        assert (baseline / "report.html").is_file()
        second = night(5, *whole)
        assert second.state == "COMPLETED", site.log(second.number)
        third = night(1, "--op", "barrier", "--max-seconds", "0.02")
        assert (third.state, third.exit_code) == ("FAILED", 1), site.log(third.number)
        assert "all_reduce" in site.log(third.number).rpartition("launch is complete")[2]
        assert len(list(store.folders(nights))) == 3
        assert store.read_run(baseline).id == min(folder.name for folder in store.folders(nights))


# --- busbw submit and status -----------------------------------------------------------------------------------


class TestSubmit:
    def test_waiting_shows_the_progress_and_ends_with_the_verdict(self, site: Site) -> None:
        place = site.folder / "a 0"
        place.mkdir()
        plan = place / '"a\'; echo foo".toml'
        name = "a'; echo foo | #é"
        plan.write_text(STEADY.format(name=name, blocks=12, launches=2, timeout=60))
        with site.submitted(plan, "--nodes", "2", "--ranks-per-node", "1", "--results-dir", place) as (number, process):
            code, err = told(process)
        assert code == 0, err
        (folder,) = store.folders(place)
        assert_whole(store.read(folder), launches=2, nodes=2, ranks=2, backend="gloo")
        assert f"results: '{place}'\n" in err
        assert f"job {number}: RUNNING on n[" in err
        assert f"run {folder.name}: 48 of 48 blocks\n" in err
        assert err.endswith(
            f"job {number} ended well\nrun {folder.name}: 48 of 48 blocks, 2 of 2 launches are complete; complete\n"
        )
        shown = site.bed.ask("squeue", "-h", "-t", "all", "-j", str(number), "-o", "%j")
        assert shown == f"busbw-{name}\n"

    @pytest.mark.parametrize("backend", either("gloo"))
    def test_a_step_of_one_task_has_one_rank(self, site: Site, backend: str) -> None:
        """Over MPI its mpiexec must not ask Slurm for a step within the step, which there is no room for."""
        plan = site.plan("alone", blocks=1)
        options = ("--nodes", "1", "--ranks-per-node", "1", "--backend", backend)
        with site.submitted(plan, *options) as (number, process):
            code, err = told(process)
        assert code == 0, err
        assert len(site.run(number).run.hosts) == 1

    def test_what_slurm_refuses_is_told_in_its_words(self, site: Site) -> None:
        refused = site.busbw("submit", "quick", "--nodes", "2", "--ranks-per-node", "1", "--partition", "nosuch")
        assert refused.returncode == 1
        assert refused.stderr.startswith("busbw: sbatch refused: ")
        assert "invalid partition specified: nosuch" in refused.stderr

    def test_a_job_that_waits_for_ever_says_why(self, site: Site) -> None:
        with site.submitted(site.plan("large", blocks=1), "--nodes", "99", "--ranks-per-node", "1") as (
            number,
            process,
        ):
            reason = until(lambda: waits_for_ever(site.bed.job(number)), lambda: "no reason")
            rows = json.loads(site.busbw("status", "--json").stdout)
            (row,) = [row for row in rows if row["job"] == str(number)]
            assert (row["state"], row["reason"], row["run"]) == ("PENDING", reason, None)
            process.send_signal(signal.SIGINT)
            site.bed.ask("scancel", str(number))
            _, err = told(process)
        assert f"{reason}: the partition has fewer nodes than were asked for" in err


# --- MPI that srun was not told of -----------------------------------------------------------------------------


class TestWrongMpi:
    @pytest.mark.parametrize("given", thinned(["none", "pmix"], 2))
    def test_singletons_are_an_error_that_names_the_flag(self, site: Site, given: str) -> None:
        number = site.shipped("mpi", ("--ntasks-per-node=1",), MPI=given)
        job = site.ended(number)
        assert (job.state, job.exit_code) == ("FAILED", 1)
        assert "start the ranks with srun --mpi=pmi2" in site.log(number)
        assert "no run came of it: the step ended with exit status 1" in site.log(number)
        assert site.runs(number) == []

    def test_so_they_are_of_open_mpi(self, site: Site, openmpi: dict[str, str]) -> None:
        number = site.shipped("mpi", ("--ntasks-per-node=1",), MPI="pmi2", **openmpi)
        job = site.ended(number)
        assert (job.state, job.exit_code) == ("FAILED", 1)
        assert "srun --mpi=pmix" in site.log(number)
        assert site.runs(number) == []


# --- what ends a job early -------------------------------------------------------------------------------------


class TestBrokenOff:
    @pytest.mark.parametrize("backend", either("mpi"))
    def test_a_rank_that_dies_is_named(self, site: Site, backend: str) -> None:
        plan = site.plan("dies", blocks=400, timeout=5 if backend == "mpi" else 60)
        where = ("--nodelist=n1,n2", "--nodes", "2", "--ranks-per-node", "1", "--backend", backend)
        with site.submitted(plan, *where) as (number, process):
            site.measuring(number)
            os.kill(site.rank_on("n2"), signal.SIGKILL)
            code, err = told(process)
        assert code == 1
        assert f"job {number} ended FAILED: its script ended with an error" in err
        assert "rank 1 (host n2) did not answer during" in err
        run = site.run(number)
        assert run.end is not None
        assert run.end.status == "failed"
        assert "rank 1 (host n2)" in str(run.end.reason)
        assert run.measurements

    def test_a_rank_of_open_mpi_that_dies_takes_all_along_and_loses_nothing_that_was_finished(
        self, site: Site, openmpi: dict[str, str]
    ) -> None:
        """Slurm's part of PMIx kills the whole step when it loses one of its ranks: nobody is left to name it."""
        plan = site.plan("dies", blocks=400)
        where = ("--nodelist=n1,n2", "--nodes", "2", "--ranks-per-node", "1", "--backend", "mpi", "--mpi", "pmix")
        with site.submitted(plan, *where, **openmpi) as (number, process):
            before = len(site.measuring(number).measurements)
            os.kill(site.rank_on("n2"), signal.SIGKILL)
            code, err = told(process)
        assert code == 1
        assert f"job {number} ended FAILED: its script ended with an error" in err
        assert len(site.run(number).measurements) >= before
        assert re.search(r"error: .*n2.* task 1: Killed", site.log(number)), site.log(number)

    @pytest.mark.parametrize("backend", either("gloo"))
    def test_a_rank_that_hangs_is_named(self, site: Site, backend: str) -> None:
        plan = site.plan("hangs", blocks=400, timeout=5)
        where = ("--nodelist=n3,n4", "--nodes", "2", "--ranks-per-node", "1", "--backend", backend)
        with site.submitted(plan, *where) as (number, process):
            before = len(site.measuring(number).measurements)
            hangs = site.rank_on("n4")
            os.kill(hangs, signal.SIGSTOP)
            run = until(lambda: run if (run := site.run(number)).end is not None else None, lambda: site.log(number))
            os.kill(hangs, signal.SIGKILL)  # srun would do so about a minute later
            code, err = told(process)
        assert code == 1, err
        assert "rank 1 (host n4) did not answer during" in err
        assert run.end is not None
        assert run.end.status == "failed"
        assert "rank 1 (host n4)" in str(run.end.reason)
        assert len(run.measurements) >= before

    def test_what_was_interrupted_is_resumed_on_its_nodes_and_measured_once(self, site: Site) -> None:
        plan = site.plan("interrupted", blocks=20, launches=2)
        where = ("--nodelist=n3,n4", "--nodes", "2", "--ranks-per-node", "1")
        with site.submitted(plan, *where) as (number, process):
            before = site.measuring(number)
            site.bed.ask("scancel", "--signal=USR1", str(number))
            code, err = told(process)
        assert code == 1, err
        assert "interrupted: ended at the end of a block by SIGUSR1" in err
        left = 80 - len(site.run(number).measurements)
        with site.submitted("--resume", before.run.id) as (second, process):
            code, err = told(process)
        assert code == 0, err
        assert f"lacks {left} block(s)" in site.log(second)
        run = site.run(second)
        assert run.run.id == before.run.id
        assert len(set(blocks_of(run))) == len(blocks_of(run)) == 80
        assert run.end is not None
        assert run.end.status == "complete"
        rows = json.loads(site.busbw("status", "--json").stdout)
        of_run = [row for row in rows if row["run"] and row["run"].endswith(run.run.id)]
        assert [(row["job"], row["state"], row["blocks"], row["ended"]) for row in of_run] == [
            (str(second), "COMPLETED", "80 of 80", "complete"),
            (str(number), "FAILED", "80 of 80", "complete"),
        ]

    def test_a_job_that_is_requeued_goes_on_with_its_run(self, site: Site) -> None:
        plan = site.plan("requeued", blocks=20, launches=2)
        where = ("--nodelist=n3,n4", "--nodes", "2", "--ranks-per-node", "1")
        with site.submitted(plan, *where) as (number, process):
            before = site.measuring(number)
            site.bed.ask("scontrol", "requeue", str(number))
            until(lambda: site.bed.job(number).state == "PENDING" or None, lambda: site.log(number))
            # Slurm lets it wait for two minutes, lest the node be bad.
            site.bed.ask("scontrol", "update", f"jobid={number}", "starttime=now")
            code, err = told(process)
        assert code == 0, err
        assert f"requeued; going on with run {before.run.id}" in site.log(number)
        run = site.run(number)
        assert run.run.id == before.run.id
        assert len(set(blocks_of(run))) == len(blocks_of(run)) == 80

    def test_ranks_over_mpi_that_are_cancelled_end_at_the_end_of_a_block(self, site: Site) -> None:
        plan = site.plan("cancelled", blocks=400)
        where = ("--nodelist=n1,n2", "--nodes", "2", "--ranks-per-node", "1", "--backend", "mpi")
        with site.submitted(plan, *where) as (number, process):
            site.measuring(number)
            site.bed.ask("scancel", str(number))
            code, err = told(process)
        assert code == 1, err
        assert f"job {number} ended CANCELLED: it was cancelled" in err
        run = site.run(number)
        assert run.end is not None
        assert (run.end.status, run.end.reason) == ("interrupted", "ended at the end of a block by SIGTERM")

    @pytest.mark.parametrize("backend", either("gloo"))
    def test_a_node_that_goes_down_ends_the_job_and_loses_nothing_that_was_finished(
        self, site: Site, backend: str
    ) -> None:
        plan = site.plan("down", blocks=400)
        where = ("--nodelist=n1,n2", "--nodes", "2", "--ranks-per-node", "1", "--no-requeue", "--backend", backend)
        with site.submitted(plan, *where) as (number, process):
            before = len(site.measuring(number).measurements)
            site.bed.ask("scontrol", "update", "nodename=n2", "state=down", "reason=test")
            try:
                code, err = told(process)
            finally:
                site.bed.ask("scontrol", "update", "nodename=n2", "state=idle")
        assert code == 1
        assert f"job {number} ended NODE_FAIL: a node went down" in err
        run = site.run(number)
        assert len(run.measurements) >= before
        assert run.end is None or run.end.status in {"interrupted", "failed"}

    def test_a_cable_that_is_cut_for_a_moment_is_survived(self, site: Site) -> None:
        plan = site.plan("cut", blocks=30)
        where = ("--nodelist=n1,n2", "--nodes", "2", "--ranks-per-node", "1")
        with site.submitted(plan, *where) as (number, process):
            site.measuring(number)
            site.bed.cut("n2")
            time.sleep(3)
            site.bed.mend("n2")
            code, err = told(process)
        assert code == 0, err
        assert len(site.run(number).measurements) == 60

    @pytest.mark.parametrize("backend", either("mpi"))
    def test_a_cable_that_stays_cut_is_a_rank_that_does_not_answer(self, site: Site, backend: str) -> None:
        plan = site.plan("cut-for-ever", blocks=400, timeout=5)
        where = ("--nodelist=n3,n4", "--nodes", "2", "--ranks-per-node", "1", "--no-requeue", "--backend", backend)
        with site.submitted(plan, *where) as (number, process):
            site.measuring(number)
            site.bed.cut("n4")
            try:
                run = until(
                    lambda: run if (run := site.run(number)).end is not None else None, lambda: site.log(number)
                )
                code, err = told(process)
            finally:
                site.bed.mend("n4")
        assert code == 1, err
        assert run.end is not None
        assert run.end.status == "failed"
        assert "rank 1 (host n4) did not answer during" in str(run.end.reason)
        assert "rank 1 (host n4) did not answer during" in err


class TestTimeLimit:
    """They have been under way since the first test."""

    def test_a_signal_before_the_limit_ends_the_run_at_the_end_of_a_block(
        self, site: Site, limited: dict[str, Any]
    ) -> None:
        number, process = limited["warned"]
        code, err = told(process)
        assert code == 1
        assert f"job {number} ended FAILED: its script ended with an error" in err
        run = site.run(number)
        assert run.end is not None
        assert (run.end.status, run.end.reason) == ("interrupted", "ended at the end of a block by SIGUSR1")
        assert f"busbw submit --resume {run.run.id} goes on" in site.log(number)

    def test_the_limit_itself_loses_nothing_that_was_finished(self, site: Site, limited: dict[str, Any]) -> None:
        number, process = limited["unwarned"]
        code, err = told(process)
        assert code == 1
        assert f"job {number} ended TIMEOUT: it reached its time limit" in err
        run = site.run(number)
        assert all(isinstance(row, Measurement) for row in run.rows[1:-1])
        assert run.end is not None
        assert (run.end.status, run.end.reason) == ("interrupted", "ended at the end of a block by SIGTERM")
