"""The batch files in ``slurm/`` as jobs; ``python tests/shared/batch_files.py slurm`` writes them."""

import sys
from functools import partial
from pathlib import Path

from busbw.slurm.script import Job, Setting, Shell, render

_RANKS_PER_NODE = 2
_GPUS = 8

_job = partial(Job, time="1:00:00")

_BUSBW = Setting("BUSBW", "busbw", "path of busbw if it is not in PATH: /shared/venv/bin/busbw")
_RESULTS = Setting(
    "BUSBW_RESULTS_DIR", "results", "folder of the runs, relative to the folder of submission", exported=True
)
_SUITE = Setting("SUITE", "quick", "or standard, full")
_LAUNCHES = Setting("LAUNCHES", "6", "repetitions in new processes; confidence intervals need several")
_MPI = Setting("MPI", "pmi2", "pmi2 for MPICH and Intel MPI, pmix for Open MPI; srun --mpi=list shows the choices")


_MORE = "--op all_reduce --sizes 8..64MiB*2"


def _about(name: str, *lines: str, more: str = _MORE) -> tuple[str, ...]:
    return (
        *lines,
        "",
        f"    sbatch slurm/{name}.sbatch",
        f"    sbatch --nodes=4 --partition=… slurm/{name}.sbatch {more}",
        "",
        "Options of sbatch go before the file name and override its #SBATCH lines; those of busbw run go after it.",
        "Add what your cluster requires, such as --partition or --account, to the command or to this file.",
    )


def _suite(backend: str | Shell) -> tuple[str | Shell, ...]:
    return ("--suite", Shell("$SUITE"), "--backend", backend, "--launches", Shell("$LAUNCHES"), Shell("$@"))


def _gpus(name: str, nodes: int, about: str, suite: Setting = _SUITE, more: str = _MORE) -> Job:
    return _job(
        name=f"busbw-{name}",
        about=_about(
            name,
            about,
            "One rank uses one GPU: set --ntasks-per-node and --gpus-per-node to the number of GPUs per node.",
            more=more,
        ),
        nodes=nodes,
        ranks_per_node=_GPUS,
        gpus_per_node=_GPUS,
        settings=(_BUSBW, _RESULTS, suite, _LAUNCHES),
        run=_suite("nccl"),
    )


SHIPPED: dict[str, Job] = {
    "gpu-node": _gpus("gpu-node", 1, "Measure the GPUs of one node over NCCL, that is, over NVLink or PCIe."),
    "gpu-nodes": _gpus(
        "gpu-nodes", 2, "Measure the GPUs of several nodes over NCCL, that is, over the network between them."
    ),
    "gpu-memory": _gpus(
        "gpu-memory",
        1,
        "Measure the GPUs of a node: memory, host links and every pair. Every rank must see all GPUs.",
        suite=Setting("SUITE", "memory-gpu", "or quick, standard, full"),
        more=f"--op host_to_device,peer_copy --groups div:{_GPUS}",
    ),
    "cpu": _job(
        name="busbw-cpu",
        about=_about("cpu", "Measure the CPUs of several nodes over Gloo (TCP); no MPI is needed."),
        nodes=2,
        ranks_per_node=_RANKS_PER_NODE,
        settings=(_BUSBW, _RESULTS, _SUITE, _LAUNCHES),
        run=_suite("gloo"),
    ),
    "mpi": _job(
        name="busbw-mpi",
        about=_about(
            "mpi",
            "Measure the CPUs of several nodes over MPI. mpi4py loads the library of the virtual environment, else",
            "that of the system, or MPI4PY_LIBMPI=/path/to/libmpi.so. The variable MPI below must match the library.",
        ),
        nodes=2,
        ranks_per_node=_RANKS_PER_NODE,
        settings=(_BUSBW, _RESULTS, _SUITE, _LAUNCHES, _MPI),
        mpi=Shell("$MPI"),
        run=_suite("mpi"),
    ),
    "pairs": _job(
        name="busbw-pairs",
        about=(
            *_about(
                "pairs",
                "Measure every pair of nodes, one rank per node, to find a slow node, direction or cable.",
                more="--pairs alone",
            ),
            "",
            "All idle nodes of the default partition:",
            "",
            '    sbatch --nodes="$(sinfo --noheader --states=idle --format=%D)" slurm/pairs.sbatch',
        ),
        nodes=4,
        ranks_per_node=1,
        settings=(_BUSBW, _RESULTS, Setting("SIZES", "8,4MiB"), _LAUNCHES),
        # No barrier before each sample: with unequal latencies, it releases near ranks before far ones.
        run=(
            *("--op", "pair_matrix", "--sync", "none", "--sizes", Shell("$SIZES")),
            *("--launches", Shell("$LAUNCHES"), Shell("$@")),
        ),
    ),
    "nightly": _job(
        name="busbw-nightly",
        about=(
            "Regression test: measure and compare with a good run. The job fails with status 1 if a case is slower by",
            "more than WITHIN, is missing, gave wrong results, or could not run. It fails with status 3 if a slowdown",
            "of DETECT could have gone unseen, because there are too few launches or they scatter too much.",
            "",
            "    sbatch --nodelist=node[1-4] --nodes=4 slurm/nightly.sbatch",
            "",
            "Use the same nodes every night, because nodes differ. To start it at 2 a.m., add to crontab:",
            "0 2 * * * cd /shared/acceptance && sbatch --nodelist=… nightly.sbatch",
            "",
            "The first run becomes the baseline. To accept a new state, point the link BASELINE to another run. It is",
            "not updated automatically, because such a baseline would hide a slowdown of 1 % every night.",
        ),
        nodes=2,
        ranks_per_node=_RANKS_PER_NODE,
        settings=(
            _BUSBW,
            _RESULTS,
            _SUITE,
            Setting("LAUNCHES", "10", "with fewer than 7 per side (8 of full) no difference can be found"),
            Setting("BACKEND", "gloo", "or nccl (with --gpus-per-node), mpi (with SLURM_MPI_TYPE=pmi2 or pmix)"),
            Setting("WITHIN", "10%", "smaller differences count as equal"),
            Setting("DETECT", Shell("$WITHIN"), "the slowdown that a night must be able to show; not below WITHIN"),
            Setting("BASELINE", Shell("$BUSBW_RESULTS_DIR/baseline"), "link to the good run"),
        ),
        run=_suite(Shell("$BACKEND")),
        after=(
            '"$BUSBW" report "$run" || exit',
            'if [ -L "$BASELINE" ] && [ ! -e "$BASELINE" ]; then',
            '    echo "$BASELINE points to $(readlink "$BASELINE"), which does not exist; point it to a good run," >&2',
            '    echo "or remove it to make the next run the baseline" >&2',
            "    exit 1",
            "fi",
            'if [ ! -e "$BASELINE" ]; then',
            '    ln -s "$(realpath "$run")" "$BASELINE" || exit',
            '    echo "first run: $BASELINE now points to $run"',
            "    exit 0",
            "fi",
            '"$BUSBW" compare "$BASELINE" "$run" \\',
            '    --within "$WITHIN" --detect "$DETECT" --fail-on slower --fail-on missing',
            "status=$?",
            "case $status in",
            '0) echo "night passed: nothing is slower than $BASELINE, and a slowdown of $DETECT would have shown" ;;',
            '1) echo "night failed: something is slower than $BASELINE, or missing" >&2 ;;',
            '3) echo "night cannot tell: a slowdown of $DETECT could have gone unseen; the reason is above" >&2 ;;',
            "esac",
            "exit $status",
        ),
    ),
    "scaling": _job(
        name="busbw-scaling",
        about=(
            "Measure scaling: the same plan on 1, 2 and 4 nodes, one after another. In this job array, every task gets",
            "all nodes and uses as many of them as its task number.",
            "",
            "    sbatch slurm/scaling.sbatch",
            "    sbatch --nodes=16 --array=1,2,4,8,16%1 slurm/scaling.sbatch --op all_reduce --sizes 8..64MiB*2",
            "",
            "Options of sbatch go before the file name and override its #SBATCH lines; those of busbw run go after it.",
        ),
        nodes=4,
        node_counts=(1, 2, 4),
        ranks_per_node=_RANKS_PER_NODE,
        settings=(_BUSBW, _RESULTS, _SUITE, _LAUNCHES),
        run=_suite("gloo"),
    ),
    "container": _job(
        name="busbw-container",
        about=_about(
            "container",
            "Run the ranks in containers: uncomment the line of your container runtime, else they run without one. The",
            "node itself needs busbw too, to start the steps; BUSBW must be valid inside and outside the container.",
        ),
        nodes=2,
        ranks_per_node=_RANKS_PER_NODE,
        settings=(_BUSBW, _RESULTS, _SUITE, _LAUNCHES, Setting("IMAGE", "/shared/images/busbw.sqsh")),
        before=(
            'mkdir -p "$BUSBW_RESULTS_DIR"',
            "CONTAINER=()",
            "# pyxis and enroot, with an image from a file or a registry; GPU drivers are mounted automatically:",
            '# CONTAINER=(--container-image="$IMAGE" --container-mounts="$PWD:$PWD" --container-workdir="$PWD")',
            "# apptainer (singularity), with an image in a .sif file; --nv mounts the GPU driver:",
            '# CONTAINER=(apptainer exec --nv --bind "$PWD" --pwd "$PWD" "$IMAGE")',
        ),
        srun=(Shell("${CONTAINER[@]}"),),
        run=_suite("gloo"),
    ),
}
"""File name without suffix → its job."""


def write(folder: Path) -> None:
    """Write all batch files to ``folder``."""
    folder.mkdir(exist_ok=True)
    for name, job in SHIPPED.items():
        (folder / f"{name}.sbatch").write_text(render(job), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
