"""Jobs that lose a rank, a node or a cable: each ends in a clear message, a run that can be read, the right status."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest
from exhaustive import AT_NIGHT
from slurm_site import Site, either, told, until


@pytest.mark.parametrize("backend", either("mpi"))
def test_a_rank_that_dies_is_named(site: Site, backend: str) -> None:
    plan = site.plan("dies", blocks=400, timeout=5 if backend == "mpi" else 60)
    where = ("--nodelist=n1,n2", "--nodes", "2", "--ranks-per-node", "1", "--backend", backend)
    with site.submitted(plan, *where) as (number, process):
        site.measuring(number)
        os.kill(site.rank_on("n2"), signal.SIGKILL)
        code, err = told(process)
    assert code == 1
    assert "FAILED" in err
    run = site.run(number)
    assert run.end is not None
    assert run.end.status == "failed"
    assert "rank 1 (host n2)" in str(run.end.reason)
    assert run.measurements


def test_a_rank_of_open_mpi_that_dies_takes_all_along_and_loses_nothing_that_was_finished(
    site: Site, openmpi: dict[str, str]
) -> None:
    """Slurm's part of PMIx kills the whole step when it loses one of its ranks: nobody is left to name it."""
    plan = site.plan("dies", blocks=400)
    where = ("--nodelist=n1,n2", "--nodes", "2", "--ranks-per-node", "1", "--backend", "mpi", "--mpi", "pmix")
    with site.submitted(plan, *where, **openmpi) as (number, process):
        before = len(site.measuring(number).measurements)
        os.kill(site.rank_on("n2"), signal.SIGKILL)
        code, err = told(process)
    assert code == 1
    assert "FAILED" in err
    assert len(site.run(number).measurements) >= before
    assert re.search(r"error: .*n2.* task 1: Killed", site.log(number)), site.log(number)


@AT_NIGHT  # a cable that stays cut is a rank that does not answer, too
@pytest.mark.parametrize("backend", either("gloo"))
def test_a_rank_that_hangs_is_named(site: Site, backend: str) -> None:
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
    assert run.end is not None
    assert run.end.status == "failed"
    assert "rank 1 (host n4)" in str(run.end.reason)
    assert len(run.measurements) >= before


@pytest.mark.parametrize("backend", either("gloo"))
def test_a_node_that_goes_down_ends_the_job_and_loses_nothing_that_was_finished(site: Site, backend: str) -> None:
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
    assert "NODE_FAIL" in err
    run = site.run(number)
    assert len(run.measurements) >= before
    assert run.end is None or run.end.status in {"interrupted", "failed"}


def test_a_cable_that_is_cut_for_a_moment_is_survived(site: Site) -> None:
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
def test_a_cable_that_stays_cut_is_a_rank_that_does_not_answer(site: Site, backend: str) -> None:
    plan = site.plan("cut-for-ever", blocks=400, timeout=5)
    where = ("--nodelist=n3,n4", "--nodes", "2", "--ranks-per-node", "1", "--no-requeue", "--backend", backend)
    with site.submitted(plan, *where) as (number, process):
        site.measuring(number)
        site.bed.cut("n4")
        try:
            run = until(lambda: run if (run := site.run(number)).end is not None else None, lambda: site.log(number))
            code, err = told(process)
        finally:
            site.bed.mend("n4")
    assert code == 1, err
    assert run.end is not None
    assert run.end.status == "failed"
    assert "rank 1 (host n4) did not answer during" in str(run.end.reason)
