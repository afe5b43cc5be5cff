"""One command below every launcher, over two hosts: the plan and the results are on the host of rank 0 alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from bed import Bed
from bed.whole import Job
from exhaustive import EXHAUSTIVE
from slurm_site import PMI2_GARBLED
from testing.narrow import require
from testing.plans import plan_text, sweep

from busbw.runs import store
from busbw.runs.resume import plan_of

_PLAN = plan_text(sweep("all_reduce,pair_matrix", "1KiB"))

# /tmp is each host's own; the script runs on the first host of the job, and so does rank 0.
_SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2 --output={folder}/told
cat > /tmp/plan.toml <<'PLAN'
{plan}PLAN
run="busbw run --plan /tmp/plan.toml --results-dir /tmp/results"
export MASTER_ADDR=$(hostname)
{command}
status=$?
cp -r /tmp/results {folder}/results
rm -r /tmp/results /tmp/plan.toml
exit $status
"""

_A_NODE = "srun --ntasks=2 --ntasks-per-node=1"
_ELASTIC = "--rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID --rdzv-endpoint=$(hostname):29500"
_STATIC = "--node-rank=$SLURM_NODEID --master-addr=$MASTER_ADDR --master-port=29501"
_SLURMS = "RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID MASTER_PORT=29502"

_OPEN_MPIS = "$OPAL_PREFIX/bin/mpirun --allow-run-as-root --oversubscribe --bind-to none --map-by ppr:2:node -n 4"

COMMANDS = {
    "srun": ("srun", "gloo", "srun $run"),
    "srun, MPI": ("srun", "mpi", "srun --mpi=pmi2 $run --backend mpi"),
    "mpirun": ("mpirun", "mpi", "mpirun -n 4 $run --backend mpi"),
    "mpirun of Open MPI": ("mpirun", "mpi", f"{_OPEN_MPIS} $run --backend mpi"),
    "mpirun, Gloo, by MPI": ("mpirun", "gloo", "mpirun -n 4 $run"),
    # No MPI is loaded there: there is none of that name.
    "mpirun, Gloo, where it is told": ("mpirun", "gloo", "MASTER_PORT=29503 MPI4PY_LIBMPI=/nowhere mpirun -n 4 $run"),
    # MPICH is loaded there, whose ranks this mpirun cannot start: Gloo asks nothing of it.
    "mpirun of Open MPI, Gloo": ("mpirun", "gloo", f"unset MPI4PY_LIBMPI; MASTER_PORT=29504 {_OPEN_MPIS} $run"),
    "torchrun, elastic": (
        "torchrun",
        "gloo",
        f"{_A_NODE} torchrun --nnodes=2 --nproc-per-node=2 {_ELASTIC} --no-python $run",
    ),
    "torchrun, static": (
        "torchrun",
        "gloo",
        f"{_A_NODE} bash -c 'torchrun --nnodes=2 --nproc-per-node=2 {_STATIC} --no-python '\"$run\"",
    ),
    "variables alone": ("torchrun", "gloo", f"srun bash -c '{_SLURMS} exec '\"$run\""),
}
AT_NIGHT = {"srun, MPI", "mpirun, Gloo, where it is told", "mpirun of Open MPI, Gloo", "torchrun, static"}
"""Commands whose ranks get what others get, also those of test_slurm.py and tests/integration/test_mpi.py."""


def _ended(cluster: Bed, place: Path, command: str, environment: dict[str, str]) -> tuple[Job, str]:
    """A job that ran ``command``, and what it said; its results are in ``place``."""
    place.mkdir()
    script = place / "job.sh"
    script.write_text(_SCRIPT.format(folder=place, plan=_PLAN, command=command), encoding="utf-8")
    job = cluster.ended_job(cluster.sbatch([script], environment=environment))
    return job, (place / "told").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [name for name in COMMANDS if EXHAUSTIVE or name not in AT_NIGHT])
def test_it_joins_what_was_started_and_only_rank_0_needs_plan_and_results(
    cluster: Bed, tmp_path: Path, name: str, request: pytest.FixtureRequest
) -> None:
    launcher, backend, command = COMMANDS[name]
    if launcher == "mpirun" or backend == "mpi":
        pytest.importorskip("mpi4py")
    environment = request.getfixturevalue("openmpi") if "Open MPI" in name else {}
    place = tmp_path / "first"
    job, printed = _ended(cluster, place, command, environment)
    if PMI2_GARBLED in printed:
        place = tmp_path / "again"
        job, printed = _ended(cluster, place, command, environment)
    assert job.exit_code == 0, printed
    (folder,) = store.folders(place / "results")
    run = store.read(folder)
    assert (run.run.launcher, plan_of(run.run, None).backend) == (launcher, backend)
    hosts = cluster.ask("scontrol", "show", "hostnames", job.facts["NodeList"]).split()
    assert Counter(run.run.hosts) == dict.fromkeys(hosts, 2)
    assert require(run.end).status == "complete"
    assert not run.not_reached
    assert printed.count("# op ") == 1, "one rank prints the table"
    assert {case.nodes for case in run.run.cases} == {2}
    nodes = [{rank.node for rank in facts.ranks} for facts in run.run.environments.values()]
    tells = launcher == "srun" or name.startswith("torchrun")
    assert sorted(nodes, key=str) == ([{0}, {1}] if tells else [{None}, {None}])
    if name == "mpirun of Open MPI":
        assert all(facts.mpi and facts.mpi.transport["pml"] == "ob1" for facts in run.run.environments.values())


def test_the_mpirun_of_another_library_is_refused_in_words(
    cluster: Bed, tmp_path: Path, openmpi: dict[str, str]
) -> None:
    """MPICH's MPI_Init would end the process where it finds the PMIx of Open MPI, with words that name neither."""
    pytest.importorskip("mpi4py")
    output = tmp_path / "told"
    run = f"busbw run --op barrier --backend mpi --results-dir {tmp_path}/results"
    command = f"$OPAL_PREFIX/bin/mpirun --allow-run-as-root -n 1 {run}"
    environment = {"OPAL_PREFIX": openmpi["OPAL_PREFIX"]}
    job = cluster.ended_job(cluster.sbatch([f"--output={output}", f"--wrap={command}"], environment=environment))
    text = output.read_text(encoding="utf-8")
    assert job.exit_code == 1, text
    assert "mpi4py" in text
    assert "Abort" not in text
