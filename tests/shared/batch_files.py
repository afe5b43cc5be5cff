"""The batch files in ``slurm/`` as jobs; ``python tests/shared/batch_files.py slurm`` writes them."""

import sys
from pathlib import Path

from busbw.slurm.script import Job, Setting, Shell, render

_RANKS_PER_NODE = 2
_GPUS = 8

_BUSBW = Setting("BUSBW", "busbw", "the command, if it is not in PATH: /shared/venv/bin/busbw")
_RESULTS = Setting(
    "BUSBW_RESULTS_DIR", "results", "where runs are kept, from where the job was submitted", exported=True
)
_SUITE = Setting("SUITE", "quick", "or standard, full")
_LAUNCHES = Setting("LAUNCHES", "6", "fresh processes so many times: what an interval is made of")
_MPI = Setting("MPI", "pmi2", "pmi2 for MPICH and Intel MPI, pmix for Open MPI; srun --mpi=list shows what there is")


_MORE = "--op all_reduce --sizes 8..64MiB*2"


def _about(name: str, *lines: str, more: str = _MORE) -> tuple[str, ...]:
    return (
        *lines,
        "",
        f"    sbatch slurm/{name}.sbatch",
        f"    sbatch --nodes=4 --partition=… slurm/{name}.sbatch {more}",
        "",
        "Options of sbatch go before the file and win over its lines; those of busbw run go behind it. What a job of",
        "yours needs besides, as --partition or --account, is added here or there.",
    )


def _suite(backend: str) -> tuple[str | Shell, ...]:
    return ("--suite", Shell("$SUITE"), "--backend", backend, "--launches", Shell("$LAUNCHES"), Shell("$@"))


def _gpus(name: str, nodes: int, about: str, suite: Setting = _SUITE, more: str = _MORE) -> Job:
    return Job(
        name=f"busbw-{name}",
        about=_about(
            name,
            about,
            "One rank drives one GPU: make --ntasks-per-node and --gpus-per-node what your nodes have.",
            more=more,
        ),
        nodes=nodes,
        ranks_per_node=_GPUS,
        gpus_per_node=_GPUS,
        exclusive=True,
        time="1:00:00",
        settings=(_BUSBW, _RESULTS, suite, _LAUNCHES),
        run=_suite("nccl"),
    )


SHIPPED: dict[str, Job] = {
    "gpu-node": _gpus("gpu-node", 1, "The GPUs of one node, over NCCL: what NVLink or PCIe give."),
    "gpu-nodes": _gpus("gpu-nodes", 2, "The GPUs of several nodes, over NCCL: what the network between them gives."),
    "gpu-memory": _gpus(
        "gpu-memory",
        1,
        "What feeds the GPUs of one node: their memory, their links to the host, every pair. Each must see all others.",
        suite=Setting("SUITE", "memory-gpu", "or quick, standard, full"),
        more=f"--op host_to_device,peer_copy --groups div:{_GPUS}",
    ),
    "cpu": Job(
        name="busbw-cpu",
        about=_about("cpu", "The processors of several nodes, over Gloo: what TCP gives, and no MPI is needed."),
        nodes=2,
        ranks_per_node=_RANKS_PER_NODE,
        exclusive=True,
        time="1:00:00",
        settings=(_BUSBW, _RESULTS, _SUITE, _LAUNCHES),
        run=_suite("gloo"),
    ),
    "mpi": Job(
        name="busbw-mpi",
        about=_about(
            "mpi",
            "The processors of several nodes, over the MPI that mpi4py loads: that of the virtual environment, or else",
            "the system's; MPI4PY_LIBMPI=/path/to/libmpi.so names another one. MPI below has to match it.",
        ),
        nodes=2,
        ranks_per_node=_RANKS_PER_NODE,
        exclusive=True,
        time="1:00:00",
        settings=(_BUSBW, _RESULTS, _SUITE, _LAUNCHES, _MPI),
        mpi=Shell("$MPI"),
        run=_suite("mpi"),
    ),
    "pairs": Job(
        name="busbw-pairs",
        about=(
            *_about(
                "pairs",
                "One rank a node, every node with every other one: a slow node, direction or cable has a name then.",
                more="--pairs alone",
            ),
            "",
            "All nodes of the default partition that are idle:",
            "",
            '    sbatch --nodes="$(sinfo --noheader --states=idle --format=%D)" slurm/pairs.sbatch',
        ),
        nodes=4,
        ranks_per_node=1,
        exclusive=True,
        time="1:00:00",
        settings=(_BUSBW, _RESULTS, Setting("SIZES", "8,4MiB"), _LAUNCHES),
        # Without a barrier before each sample: where delays differ, it lets go of near ranks before far ones.
        run=(
            *("--op", "pair_matrix", "--sync", "none", "--sizes", Shell("$SIZES")),
            *("--launches", Shell("$LAUNCHES"), Shell("$@")),
        ),
    ),
    "nightly": Job(
        name="busbw-nightly",
        about=(
            "Acceptance: measure, and hold it against a run that was good. The job fails (exit status 1) when",
            "something is slower than then by more than WITHIN, is missing, gave wrong results, or could not run.",
            "",
            "    sbatch --nodelist=node[1-4] --nodes=4 slurm/nightly.sbatch",
            "",
            "The same nodes every night, as nodes differ. By itself at two in the morning, with a line of cron:",
            "0 2 * * * cd /shared/acceptance && sbatch --nodelist=… nightly.sbatch",
            "",
            "The first run becomes the baseline. To accept another state, point the link at the run that is to be it:",
            "a baseline that followed by itself would not notice 1 % more every night.",
        ),
        nodes=2,
        ranks_per_node=_RANKS_PER_NODE,
        exclusive=True,
        time="1:00:00",
        settings=(
            _BUSBW,
            _RESULTS,
            _SUITE,
            Setting("LAUNCHES", "10", "with fewer than 7 a side (8 of full) no difference can be found"),
            Setting("BACKEND", "gloo", "or nccl (with --gpus-per-node), mpi (with SLURM_MPI_TYPE=pmi2 or pmix)"),
            Setting("WITHIN", "10%", "smaller differences are called equal"),
            Setting("BASELINE", Shell("$BUSBW_RESULTS_DIR/baseline"), "a link to the run that was good"),
        ),
        run=(
            *(
                "--suite",
                Shell("$SUITE"),
                "--backend",
                Shell("$BACKEND"),
                "--launches",
                Shell("$LAUNCHES"),
                Shell("$@"),
            ),
        ),
        after=(
            '"$BUSBW" report "$run" || exit',
            'if [ -L "$BASELINE" ] && [ ! -e "$BASELINE" ]; then',
            '    echo "$BASELINE points to $(readlink "$BASELINE"), which is gone; point it to a good run, or" >&2',
            '    echo "remove it: the next run becomes the baseline then" >&2',
            "    exit 1",
            "fi",
            'if [ ! -e "$BASELINE" ]; then',
            '    ln -s "$(realpath "$run")" "$BASELINE" || exit',
            '    echo "the first run: $BASELINE is now $run"',
            "    exit 0",
            "fi",
            '"$BUSBW" compare "$BASELINE" "$run" --within "$WITHIN" --fail-on slower --fail-on missing',
        ),
    ),
    "scaling": Job(
        name="busbw-scaling",
        about=(
            "The same plan on 1, 2 and 4 nodes, one after another: how does it scale? An array, whose tasks use the",
            "first nodes of a job that has them all; the numbers of its tasks are the numbers of nodes.",
            "",
            "    sbatch slurm/scaling.sbatch",
            "    sbatch --nodes=16 --array=1,2,4,8,16%1 slurm/scaling.sbatch --op all_reduce --sizes 8..64MiB*2",
            "",
            "Options of sbatch go before the file and win over its lines; those of busbw run go behind it.",
        ),
        nodes=4,
        node_counts=(1, 2, 4),
        ranks_per_node=_RANKS_PER_NODE,
        exclusive=True,
        time="1:00:00",
        settings=(_BUSBW, _RESULTS, _SUITE, _LAUNCHES),
        run=_suite("gloo"),
    ),
    "container": Job(
        name="busbw-container",
        about=_about(
            "container",
            "Ranks in containers: uncomment the line of what your cluster has. Without one they run as they are. The",
            "node itself needs busbw, too: it starts the steps; let BUSBW be right inside and outside.",
        ),
        nodes=2,
        ranks_per_node=_RANKS_PER_NODE,
        exclusive=True,
        time="1:00:00",
        settings=(_BUSBW, _RESULTS, _SUITE, _LAUNCHES, Setting("IMAGE", "/shared/images/busbw.sqsh")),
        before=(
            'mkdir -p "$BUSBW_RESULTS_DIR"',
            "CONTAINER=()",
            "# pyxis and enroot, image from a file or a registry; beside GPUs it brings their driver by itself:",
            '# CONTAINER=(--container-image="$IMAGE" --container-mounts="$PWD:$PWD" --container-workdir="$PWD")',
            "# apptainer (singularity), an image in a .sif file; --nv brings the driver of GPUs:",
            '# CONTAINER=(apptainer exec --nv --bind "$PWD" --pwd "$PWD" "$IMAGE")',
        ),
        srun=(Shell("${CONTAINER[@]}"),),
        run=_suite("gloo"),
    ),
}
"""Name of the file, without its ending → the job in it."""


def write(folder: Path) -> None:
    """Write every file below ``folder``."""
    folder.mkdir(exist_ok=True)
    for name, job in SHIPPED.items():
        (folder / f"{name}.sbatch").write_text(render(job), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
