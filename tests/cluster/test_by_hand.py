"""Algorithms by hand that know hosts, on real ranks of several hosts: verified data."""

from __future__ import annotations

from pathlib import Path

import pytest
from bed import Bed
from exhaustive import EXHAUSTIVE, thinned
from testing.plans import QUICK, plan_text, sweep

from busbw.ops.algorithms import ALGORITHMS
from busbw.ops.settings import explicit_algorithm
from busbw.runs import store

RANKS_PER_HOST = 2
RANKS_OF_ONE_HOST = 3
"""Those of tests/integration/test_by_hand.py, where every algorithm runs that they can run."""
SIZES = f"1KiB,40004{', 64KiB' if EXHAUSTIVE else ''}"
CHOSEN = {
    op: {
        name: algorithm
        for name, algorithm in named.items()
        if EXHAUSTIVE or algorithm.levels or algorithm.refuse(RANKS_OF_ONE_HOST) is not None
    }
    for op, named in ALGORITHMS.items()
    if any(algorithm.levels for algorithm in named.values())
}

PLAN = plan_text(
    *(sweep(op, SIZES, algorithms=[*named]) for op, named in CHOSEN.items()), timing={**QUICK, "min_samples": 3}
)
"""40,004 bytes are divided by no number of ranks that is tried here."""


@pytest.mark.timeout(400)  # so many ranks load torch on whatever processors there are
@pytest.mark.parametrize(("backend", "hosts"), thinned([("mpi", 3), ("gloo", 2), ("gloo", 3)], 3))
def test_what_goes_host_by_host_is_verified_on_several_hosts(
    cluster: Bed, tmp_path: Path, backend: str, hosts: int
) -> None:
    if backend == "mpi":
        pytest.importorskip("mpi4py")
    plan, output, results = tmp_path / "plan.toml", tmp_path / "told", tmp_path / "results"
    plan.write_text(PLAN, encoding="utf-8")
    srun = "srun --mpi=pmi2" if backend == "mpi" else "srun"
    command = f"{srun} busbw run --plan {plan} --backend {backend} --results-dir {results}"
    placed = [f"--nodes={hosts}", f"--ntasks-per-node={RANKS_PER_HOST}", f"--output={output}"]
    job = cluster.ended_job(cluster.sbatch([*placed, f"--wrap={command}"]))
    assert job.exit_code == 0, output.read_text(encoding="utf-8")
    (folder,) = store.folders(results)
    run = store.read(folder)
    assert run.run.hosts == tuple(f"n{1 + rank // RANKS_PER_HOST}" for rank in range(RANKS_PER_HOST * hosts))
    assert not run.failed
    done = {(row.case.op, explicit_algorithm(row.case.settings)) for row in run.measurements}
    for op, named in CHOSEN.items():
        for name, algorithm in named.items():
            assert ((op, name) in done) == (algorithm.refuse(RANKS_PER_HOST * hosts) is None), (op, name)
    assert {row.check.state for row in run.measurements} == {"verified"}
    assert {row.case.nodes for row in run.measurements} == {hosts}
