"""Where hosts and ranks sit, as a real Slurm has it: nodes, switches, cores; and pairs split by what the network is."""

from __future__ import annotations

import math
from pathlib import Path
from tempfile import mkdtemp

import pytest
from bed import Bed, Network, both_ways
from measured import measured
from testing.plans import QUICK, plan_text, sweep

from busbw.runs import store
from busbw.runs.facts import NodeFacts
from busbw.runs.placement import distance, rank_placements
from busbw.runs.store import StoredRun
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.load import pool

DELAY_MS = 1.0
FURTHER_MS = 2.0
"""What the way between the two leaf switches of the bed takes longer, one way."""

PLAN = plan_text(sweep("pair_matrix", "8"), timing={**QUICK, "min_samples": 5, "least_samples": 5, "max_seconds": 0.1})


def run_of(cluster: Bed, results: Path) -> StoredRun:
    """Two ranks on each of four hosts, each rank bound to a core; the way between n1, n2 and n3, n4 is longer."""
    ways = [way for near in ("n1", "n2") for far in ("n3", "n4") for way in both_ways(near, far, 0, FURTHER_MS)]
    cluster.set_network(Network(delay_ms=DELAY_MS, paths=ways))
    plan = results / "plan.toml"
    plan.write_text(PLAN, encoding="utf-8")
    output = results / "told"
    bound = f"taskset --cpu-list $SLURM_LOCALID busbw run --plan {plan} --results-dir {results}/results"
    argv = ["--nodes=4", "--ntasks-per-node=2", f"--output={output}", f"--wrap=srun bash -c '{bound}'"]
    job = cluster.ended_job(cluster.sbatch(argv))
    assert job.exit_code == 0, output.read_text(encoding="utf-8")
    (folder,) = store.folders(results / "results")
    return store.read(folder)


@pytest.mark.timeout(400)  # eight ranks load torch on whatever processors there are
@measured
def test_places_are_those_of_slurm_and_pairs_are_split_by_them(cluster: Bed, tmp_path: Path) -> None:
    """One world for all of it: it takes longer to start than to look at."""
    run = run_of(cluster, Path(mkdtemp(dir=tmp_path)))
    facts = run.run
    assert facts.machine == "bed"
    assert {host: facts.environments[host].node for host in facts.environments} == {
        f"n{number + 1}": NodeFacts(name=f"n{number + 1}", number=number, switches=("spine", f"leaf{number // 2 + 1}"))
        for number in range(4)
    }
    for host, environment in facts.environments.items():
        variables = environment.variables
        assert variables["SLURM_JOB_NODELIST"] == "n[1-4]"
        assert variables["SLURM_TASKS_PER_NODE"] == "2(x4)"
        assert (variables["SLURM_STEP_ID"], variables["SLURM_JOB_PARTITION"]) == ("0", "main")
        assert environment.machines == 1
        assert [rank.variables["SLURM_LOCALID"] for rank in environment.ranks] == ["0", "1"], host
    seats = rank_placements(facts.hosts, facts.environments)
    assert [(seat.rank, seat.host, seat.local_rank) for seat in seats] == [
        (rank, f"n{rank // 2 + 1}", rank % 2) for rank in range(8)
    ]
    assert [seat.cores for seat in seats] == [frozenset({rank % 2}) for rank in range(8)]

    judgement = judge(pool((run,)))
    (split,) = judgement.splits
    *_, leaf, far = split.classes
    assert [(kind.name, kind.pairs) for kind in split.classes] == [
        ("within a host", 8),
        ("between hosts", 48),
        ("below one leaf switch", 16),
        ("between leaf switches", 32),
    ]
    assert leaf.time_ns < far.time_ns
    # A message and its answer go the way twice, and no sample is faster than that; what ranks on a busy machine add is
    # no matter of this test.
    quickest = dict.fromkeys((0, 1, 2, None), math.inf)
    for group in run.measurements[0].groups:
        steps = distance(*(seats[rank] for rank in group.ranks))
        quickest[steps] = min(quickest[steps], *group.slowest_ns)
    assert quickest[1] > 2e6 * DELAY_MS
    assert quickest[2] > 2e6 * (DELAY_MS + FURTHER_MS) > max(quickest[0], quickest[1])
    assert any(finding.code == "one-machine" for finding in judgement.findings)
