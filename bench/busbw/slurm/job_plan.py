"""From what the user asks for to the job: the plan is read and held against the world before anything is submitted."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from busbw.backends import backend_named
from busbw.backends.mpi.probe import vendor_of_library
from busbw.errors import LaunchError, UsageError
from busbw.ops import limits
from busbw.runs import cases, plan, resume, store
from busbw.runs.plan import Plan
from busbw.runs.records import Run
from busbw.slurm.script import Setting

MPI_OF = {"MPICH": "pmi2", "Intel MPI": "pmi2", "Open MPI": "pmix"}
"""Vendor of the library, as mpi4py gives it → what srun has to be told, so that its ranks find each other."""


_COUNT = re.compile("[1-9][0-9]{0,8}")


@dataclass(frozen=True, slots=True)
class Shape:
    """Nodes of the job (for an array: the most), ranks on each, and the node counts of an array (none: no array)."""

    nodes: int
    ranks_per_node: int
    node_counts: tuple[int, ...] = ()

    @property
    def worlds(self) -> tuple[tuple[int, int], ...]:
        """Nodes and ranks of every run that comes of it."""
        return tuple((nodes, nodes * self.ranks_per_node) for nodes in self.node_counts or (self.nodes,))


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What a job is to measure: the options of ``busbw run``, its plan, and on which nodes (None: any)."""

    options: tuple[str, ...]
    plan: Plan
    shape: Shape
    name: str
    nodelist: str | None = None
    resumed: Path | None = None


def shape_of(nodes: str, ranks_per_node: int) -> Shape:
    """``4``, or ``1,2,4`` for an array of runs on so many. Raises UsageError for anything else, and for more ranks than
    a plan can have.
    """
    words = [word.strip() for word in nodes.split(",")]
    if not all(_COUNT.fullmatch(word) for word in words):
        raise UsageError(f"--nodes {nodes!r}: want a number (4), or several for one run each (1,2,4)")
    counts = tuple(dict.fromkeys(int(word) for word in words))
    ranks = max(counts) * ranks_per_node
    if ranks > limits.MOST_RANKS:
        raise UsageError(
            f"--nodes {nodes} with {ranks_per_node} rank(s) on each: {ranks} ranks; allowed: up to {limits.MOST_RANKS}"
        )
    return Shape(max(counts), ranks_per_node, counts if len(words) > 1 else ())


def new_order(
    selector: str,
    shape: Shape,
    *,
    backend: str | None,
    launches: int | None,
    path: str | None = None,
    timeout_seconds: float | None = None,
) -> JobRequest:
    """A run of the shipped suite or the TOML file ``selector``, with what is given instead of what it has. Raises
    UsageError when it does not fit ``shape``. Whether ``path`` takes files is found out on the nodes: it may be theirs.
    """
    known = plan.suites()
    file = Path(selector)
    if selector in known:
        base, options = plan.read_suite(selector), ["--suite", selector]
    elif file.is_file():
        base, options = plan.read_plan(file), ["--plan", str(file.absolute())]
    else:
        raise UsageError(f"plan {selector!r} is neither a file nor a shipped suite ({', '.join(known)})")
    if path is not None:
        path = plan.given_path(path)
    with plan.told_as_options():
        wanted = plan.override(base, backend=backend, launches=launches, path=path, timeout_seconds=timeout_seconds)
        wanted.require_path()
    device = backend_named(wanted.backend).device
    _hold_against(shape, wanted, device)
    options += _given(backend=backend, launches=launches, path=path, timeout=timeout_seconds)
    if not shape.node_counts:
        # The world is held against it; and a step of one task, which is no world, would start a rank for each core.
        options += ["--ranks", str(shape.worlds[0][1])]
    return JobRequest(tuple(options), wanted, shape, f"busbw-{wanted.name}")


def _hold_against(shape: Shape, wanted: Plan, device: str) -> None:
    """Raise UsageError when ``wanted`` does not fit the worlds of ``shape``."""
    made = 0
    for nodes, ranks in shape.worlds:
        if wanted.ranks not in {None, ranks}:
            raise UsageError(
                f"plan {wanted.name!r} is for {wanted.ranks} ranks, but {nodes} node(s) with {shape.ranks_per_node} "
                f"on each are {ranks}; leave 'ranks' out of the plan or make them agree"
            )
        made += len(cases.expand(wanted, ranks, nodes, device).cases)
        if made > limits.MOST_CASES:
            raise UsageError(
                f"the runs of the array have together more than {limits.MOST_CASES} cases, the most that is allowed"
            )


def _given(**options: str | float | None) -> Iterator[str]:
    """Options of ``busbw run`` by their names, but for those that were not given."""
    for name, value in options.items():
        if value is not None:
            yield from (f"--{name}", value if isinstance(value, str) else f"{value:.12g}")


def resuming_order(
    folder: Path,
    *,
    nodes: str | None,
    ranks_per_node: int | None,
    launches: int | None,
    timeout_seconds: float | None = None,
    busbw: str | None = None,
) -> JobRequest:
    """What the run in ``folder`` lacks, in a world like the one it began in; ``busbw`` is the command that is to go on
    with it (None: this one). Raises UsageError for another world, and when nothing is missing, and LaunchError when
    a job could only find that it cannot go on with this run.
    """
    stored = store.read(folder)
    run = stored.run
    shape = _shape_of_run(run)
    given = shape if nodes is None else shape_of(nodes, ranks_per_node or shape.ranks_per_node)
    if given != shape or ranks_per_node not in {None, shape.ranks_per_node}:
        raise UsageError(
            f"run {run.id} began on {shape.nodes} node(s) with {shape.ranks_per_node} rank(s) on each, and goes on in "
            "such a world alone; leave --nodes and --ranks-per-node out"
        )
    wanted = resume.plan_of(run, launches, timeout_seconds)
    if not resume.lack_of(stored, wanted).launches:
        raise UsageError(f"nothing is missing in run {run.id}; --launches asks for more of the same")
    resume.refuse_another_world(
        run,
        store.written_schema(folder),
        launcher="srun" if len(run.hosts) > 1 else "local",  # a step of one task is no world
        ranks=len(run.hosts),
        host=run.hosts[0],
        by_this_busbw=busbw is None,
    )
    options = ["--resume", str(folder.absolute())]
    options += _given(launches=launches, timeout=timeout_seconds)
    nodes_then = ",".join(dict.fromkeys(_node_of(run, host) for host in run.hosts))
    return JobRequest(tuple(options), wanted, shape, f"busbw-{wanted.name}", nodes_then, folder.absolute())


def _node_of(run: Run, host: str) -> str:
    """What Slurm calls ``host``: as it was recorded, or for a run outside of Slurm the name up to its first dot."""
    node = run.environments.get(host, {}).get("node") or {}
    return str(node.get("name") or host.partition(".")[0])


def _shape_of_run(run: Run) -> Shape:
    hosts = tuple(dict.fromkeys(run.hosts))
    counts = {run.hosts.count(host) for host in hosts}
    if len(counts) > 1:
        raise LaunchError(
            f"run {run.id} has unlike numbers of ranks on its hosts; resume it by hand: srun busbw run --resume"
        )
    return Shape(len(hosts), counts.pop())


def mpi_for(wanted: Plan, given: str | None) -> str | None:
    """What srun is told of the MPI library: what is ``given``, or what belongs to the library that mpi4py loads here.

    None for a backend that needs none. Raises LaunchError when it cannot be found out.
    """
    if given is not None or backend_named(wanted.backend).started_by != "mpiexec":
        return given
    try:
        vendor = vendor_of_library()
    except LaunchError as error:
        raise LaunchError(
            f"{error}; or is it another one on the nodes? Then say so: --mpi pmi2 (MPICH, Intel MPI) or pmix"
        ) from error
    if vendor not in MPI_OF:
        raise LaunchError(
            f"how srun starts ranks of {vendor} is not known; say it with --mpi (srun --mpi=list shows what there is)"
        )
    return MPI_OF[vendor]


def settings_of(results_dir: Path, busbw: str | None) -> tuple[Setting, ...]:
    """The variables of a submitted job: this busbw, or the one that is named, and where runs are kept."""
    return (
        Setting("BUSBW", this_busbw() if busbw is None else busbw, ours=True),
        Setting("BUSBW_RESULTS_DIR", str(results_dir.absolute()), ours=True, exported=True),
    )


def this_busbw() -> str:
    """The path of the command beside this Python. Raises UsageError when there is none."""
    path = Path(sys.executable).absolute().parent / "busbw"
    if not path.is_file():
        raise UsageError(f"there is no {path}; say with --busbw where the nodes find the command")
    return str(path)
