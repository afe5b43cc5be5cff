"""The shipped batch files of more than one job: the same plan on more and more nodes, and night after night."""

from __future__ import annotations

import json

import pytest
from bed.whole import Job
from exhaustive import EXHAUSTIVE, trials
from slurm_site import Site, assert_whole, until

from busbw.runs import store


def test_the_same_plan_on_more_and_more_nodes(site: Site) -> None:
    tasks = [1, 2, *([4] if EXHAUSTIVE else [])]
    array = f"--array={','.join(map(str, tasks))}%1"
    number = site.shipped("scaling", (array,), ("--op", "barrier", "--max-seconds", "0.02"))
    until(lambda: None if site.bed.ask("squeue", "-h", "-j", str(number)) else True, lambda: site.bed.ask("squeue"))
    hosts = {}
    for line in site.bed.ask("squeue", "-h", "-t", "all", "-j", str(number), "-o", "%A %K %T").splitlines():
        job, nodes, state = line.split()
        assert state == "COMPLETED", (site.folder / f"busbw-{number}_{nodes}.out").read_text()
        run = site.run(int(job))
        assert_whole(run, launches=1, nodes=int(nodes), ranks=2 * int(nodes), backend="gloo")
        hosts[int(nodes)] = run.run.hosts
    assert sorted(hosts) == tasks


@pytest.mark.timeout(600)
def test_a_night_is_held_against_the_first_one(site: Site) -> None:
    nights = site.folder / "nights"
    options = ("--nodelist=n1,n2", "--ntasks-per-node=1")

    def night(launches: int, *more: str) -> Job:
        variables = {"BUSBW_RESULTS_DIR": str(nights), "LAUNCHES": str(launches), "WITHIN": "90%"}
        return site.ended(site.shipped("nightly", options, more, **variables))

    whole = ("--op", "all_reduce,barrier", "--sizes", "8", "--max-seconds", "0.02", "--no-baseline")
    launches = trials(1, 8)  # 7 are the fewest that can fail one of two bands; of fewer nothing can be told (3)
    first = night(launches, *whole)
    assert first.state == "COMPLETED", site.log(first.number)
    (baseline,) = store.folders(nights)
    assert (baseline / "report.html").is_file()

    def later() -> int:
        """Exit status of one more night like the first, which is that of the gate."""
        job = night(launches, *whole)
        newest = max(store.folders(nights), key=lambda folder: folder.name)
        gate = ("gate", newest, "--baseline", baseline, "--within", "90%")
        judged = site.busbw(*gate).returncode
        assert job.exit_code == judged, site.log(job.number)
        return judged

    # Launches of a busy machine may scatter so much that nothing can be told (3).
    assert later() in {0, 3} or later() in {0, 3}, "other work may make one night slower, not two"
    third = night(1, "--op", "barrier", "--max-seconds", "0.02")
    assert (third.state, third.exit_code) == ("FAILED", 1), site.log(third.number)
    assert "all_reduce" in site.log(third.number).rpartition("launch is complete")[2]
    assert len(list(store.folders(nights))) in {3, 4}
    assert baseline.name in (nights / "baselines/nightly.json").read_text(encoding="utf-8")


@pytest.mark.timeout(300)
def test_nodes_that_fail_their_health_check_are_listed(site: Site) -> None:
    """Neither node has a GPU, so both fail; each is checked on its own, whatever job it is in."""
    rules = site.folder / "gpus.toml"
    rules.write_text('[[rule]]\nmetric = "gpus"\nat_least = "1"\n', encoding="utf-8")
    job = site.ended(site.shipped("health", ("--nodelist=n1,n2",), ("--rules", str(rules))))
    log = site.log(job.number)
    assert (job.state, job.exit_code) == ("FAILED", 1), log
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert {line["node"] for line in lines} == {"n1", "n2"}
    assert not any(line["healthy"] for line in lines)
    assert log.splitlines()[-1] == "--exclude=n[1-2]"
