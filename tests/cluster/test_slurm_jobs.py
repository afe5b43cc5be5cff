"""``busbw submit`` and ``status`` on a real Slurm, and jobs that are interrupted, requeued, cancelled or too long."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from bed import Bed, Cable, Network
from bed.whole import Job
from slurm_site import Site, assert_whole, either, steady, told, until
from testing.narrow import require

from busbw.runs import store
from busbw.runs.records import Measurement
from busbw.runs.store import StoredRun


def waits_for_ever(job: Job) -> str | None:
    """The reason why there will never be enough nodes, by its older or newer name."""
    reason = job.facts.get("Reason")
    return reason if reason in {"PartitionConfig", "PartitionNodeLimit"} else None


def blocks_of(run: StoredRun) -> list[tuple[int, str, int]]:
    """Every block as (launch that it was planned for, op, block)."""
    origin = {row.launch: row.launch if row.resumes is None else row.resumes for row in run.launches}
    return sorted((origin[row.launch], row.case.op, row.block) for row in run.measurements)


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


# --- busbw submit and status -----------------------------------------------------------------------------------


class TestSubmit:
    def test_waiting_shows_the_progress_and_ends_with_the_verdict(self, site: Site) -> None:
        place = site.folder / "a 0"
        place.mkdir()
        plan = place / '"a\'; echo foo".toml'
        name = "a'; echo foo | #é"
        plan.write_text(steady(name, blocks=12, launches=2))
        with site.submitted(plan, "--nodes", "2", "--ranks-per-node", "1", "--results-dir", place) as (number, process):
            code, err = told(process)
        assert code == 0, err
        (folder,) = store.folders(place)
        assert_whole(store.read(folder), launches=2, nodes=2, ranks=2, backend="gloo")
        assert str(place) in err
        assert "RUNNING" in err
        assert folder.name in err
        assert err.endswith(
            f"job {number} ended well\nrun {folder.name}: 48 of 48 blocks, 2 of 2 launches are complete; complete\n"
        )
        shown = site.bed.ask("squeue", "-h", "-t", "all", "-j", str(number), "-o", "%j")
        assert shown == f"busbw-{name}\n"

    @pytest.mark.parametrize("backend", either("gloo"))
    def test_a_step_of_one_task_has_one_rank(self, site: Site, backend: str) -> None:
        """Over MPI its mpiexec must not ask Slurm for a step within the step, which there is no room for."""
        plan = site.plan("alone", blocks=1)
        plan.write_text(plan.read_text("utf-8").replace('"all_reduce", "barrier"', '"memory_copy"'), "utf-8")
        options = ("--nodes", "1", "--ranks-per-node", "1", "--backend", backend)
        with site.submitted(plan, *options) as (number, process):
            code, err = told(process)
        assert code == 0, err
        stored = site.run(number)
        assert (len(stored.run.hosts), len(stored.measurements)) == (1, 1)

    def test_what_slurm_refuses_is_told_in_its_words(self, site: Site) -> None:
        refused = site.busbw("submit", "quick", "--nodes", "2", "--ranks-per-node", "1", "--partition", "nosuch")
        assert refused.returncode == 1
        assert refused.stderr.startswith("busbw: sbatch failed: ")
        assert "nosuch" in refused.stderr

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
        assert reason in err


# --- what ends a job early -------------------------------------------------------------------------------------


class TestBrokenOff:
    def test_what_was_interrupted_is_resumed_on_its_nodes_and_measured_once(self, site: Site) -> None:
        plan = site.plan("interrupted", blocks=20, launches=2)
        where = ("--nodelist=n3,n4", "--nodes", "2", "--ranks-per-node", "1")
        with site.submitted(plan, *where) as (number, process):
            before = site.measuring(number)
            site.bed.ask("scancel", "--signal=USR1", str(number))
            code, err = told(process)
        assert code == 1, err
        assert "SIGUSR1" in err
        with site.submitted("--resume", before.run.id) as (second, process):
            code, err = told(process)
        assert code == 0, err
        run = site.run(second)
        assert run.run.id == before.run.id
        assert len(set(blocks_of(run))) == len(blocks_of(run)) == 80
        assert require(run.end).status == "complete"
        rows = json.loads(site.busbw("status", "--json").stdout)
        of_run = [row for row in rows if row["run"] and row["run"].endswith(run.run.id)]
        assert [(row["job"], row["state"], row["blocks"], row["ended"]) for row in of_run] == [
            (str(second), "COMPLETED", "80 of 80", "complete"),
            (str(number), "FAILED", "80 of 80", "complete"),
        ]

    def test_a_job_that_is_requeued_goes_on_with_its_run(self, site: Site) -> None:
        plan = site.plan("requeued", blocks=20)
        where = ("--nodelist=n3,n4", "--nodes", "2", "--ranks-per-node", "1")
        with site.submitted(plan, *where) as (number, process):
            before = site.measuring(number)
            site.bed.ask("scontrol", "requeue", str(number))
            until(lambda: site.bed.job(number).state == "PENDING" or None, lambda: site.log(number))
            # Slurm lets it wait for two minutes, lest the node be bad.
            site.bed.ask("scontrol", "update", f"jobid={number}", "starttime=now")
            code, err = told(process)
        assert code == 0, err
        assert before.run.id in site.log(number)
        run = site.run(number)
        assert run.run.id == before.run.id
        assert len(set(blocks_of(run))) == len(blocks_of(run)) == 40

    def test_ranks_over_mpi_that_are_cancelled_end_at_the_end_of_a_block(self, site: Site) -> None:
        plan = site.plan("cancelled", blocks=400)
        where = ("--nodelist=n1,n2", "--nodes", "2", "--ranks-per-node", "1", "--backend", "mpi")
        with site.submitted(plan, *where) as (number, process):
            site.measuring(number)
            site.bed.ask("scancel", str(number))
            code, err = told(process)
        assert code == 1, err
        assert "CANCELLED" in err
        run = site.run(number)
        assert require(run.end).status == "interrupted"


class TestTimeLimit:
    """They have been under way since the first test."""

    def test_a_signal_before_the_limit_ends_the_run_at_the_end_of_a_block(
        self, site: Site, limited: dict[str, Any]
    ) -> None:
        number, process = limited["warned"]
        code, err = told(process)
        assert code == 1
        assert "FAILED" in err
        run = site.run(number)
        assert require(run.end).status == "interrupted"

    def test_the_limit_itself_loses_nothing_that_was_finished(self, site: Site, limited: dict[str, Any]) -> None:
        number, process = limited["unwarned"]
        code, err = told(process)
        assert code == 1
        assert "TIMEOUT" in err
        run = site.run(number)
        assert all(isinstance(row, Measurement) for row in run.rows[1:-1])
        assert require(run.end).status == "interrupted"
