"""From the options of ``busbw submit`` to a job; the plan is checked against the number of ranks before submission."""

import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from busbw.backends import backend_named
from busbw.backends.mpi.probe import SRUN_MPI, vendor_of_library
from busbw.errors import LaunchError, UsageError, nearest
from busbw.ops import OPS, limits
from busbw.runs import cases, plan, resume, store
from busbw.runs.facts import UNKNOWN_HOST
from busbw.runs.plan import Plan
from busbw.runs.run import Run

_COUNT = re.compile("[1-9][0-9]{0,8}")


@dataclass(frozen=True, slots=True)
class Shape:
    """Nodes of the job, ranks per node, and node counts of a job array (empty: not an array).

    ``nodes``: of an array, the largest node count.
    """

    nodes: int
    ranks_per_node: int
    node_counts: tuple[int, ...] = ()

    @property
    def worlds(self) -> tuple[tuple[int, int], ...]:
        """Nodes and ranks of every run of the job."""
        return tuple((nodes, nodes * self.ranks_per_node) for nodes in self.node_counts or (self.nodes,))


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A job to submit.

    ``options``: the options of ``busbw run``.
    ``nodelist``: nodes to run on (None: any).
    ``resumed``: folder of the run that the job resumes (None: a new run).
    """

    options: tuple[str, ...]
    plan: Plan
    shape: Shape
    nodelist: str | None = None
    resumed: Path | None = None


def shape_of(nodes: str, ranks_per_node: int) -> Shape:
    """Parse ``--nodes``: ``4``, or ``1,2,4`` for a job array with one run per number of nodes.

    Raises UsageError for anything else, and for more ranks than a plan can have.
    """
    texts = [text.strip() for text in nodes.split(",")]
    if not all(_COUNT.fullmatch(text) for text in texts):
        raise UsageError(f"--nodes {nodes!r}: expected a number (4), or several for one run each (1,2,4)")
    counts = tuple(dict.fromkeys(map(int, texts)))
    ranks = max(counts) * ranks_per_node
    if ranks > limits.MOST_RANKS:
        raise UsageError(
            f"--nodes {nodes} with {ranks_per_node} rank(s) each are {ranks} ranks; the maximum is {limits.MOST_RANKS}"
        )
    return Shape(max(counts), ranks_per_node, counts if len(texts) > 1 else ())


def new_order(selector: str, nodes: str | None, ranks_per_node: int | None, changes: Mapping[str, Any]) -> JobRequest:
    """A job for a new run of ``selector``, a shipped suite or a TOML file, with ``changes`` to the plan's fields.

    A plan with a controller has one rank a node by default.
    Raises UsageError for a plan that does not exist or cannot be changed so, for missing ``nodes`` or
    ``ranks_per_node``, and when the plan does not fit them. Whether ``path`` is writable is only checked on the nodes,
    because it may be local to them.
    """
    base, options = _plan_named(selector)
    if changes["path"] is not None:
        changes = {**changes, "path": plan.given_path(changes["path"])}
    with plan.naming_options():
        new_plan = plan.override(base, **changes)
        new_plan.require_path()
    device = backend_named(new_plan.backend).device
    if ranks_per_node is None and new_plan.controller is not None:
        ranks_per_node = 1
    if nodes is None or ranks_per_node is None:
        lacking = {"--nodes N": nodes, "--ranks-per-node R": ranks_per_node}
        raise UsageError(f"{selector}: give {' and '.join(name for name, given in lacking.items() if given is None)}")
    shape = shape_of(nodes, ranks_per_node)
    _check_fit(shape, new_plan, device)
    options += _given(changes)
    if not shape.node_counts:
        # busbw run checks the number of ranks; without it, a step of one task would start a local rank per core.
        options += ["--ranks", str(shape.worlds[0][1])]
    return JobRequest(tuple(options), new_plan, shape)


def _plan_named(selector: str) -> tuple[Plan, list[str]]:
    """The plan ``selector``, and the options of ``busbw run`` that name it."""
    suites = plan.suites()
    file = Path(selector)
    if selector in suites:
        return plan.read_suite(selector), ["--suite", selector]
    if file.is_file():
        return plan.read_plan(file), ["--plan", str(file.absolute())]
    likely = nearest(selector, suites)
    hint = f"; did you mean {likely}?" if likely else ""
    op = f"; {selector} is an op: write a TOML plan with it (docs/formats.md, Plans)" if selector in OPS else hint
    raise UsageError(f"plan {selector!r} is neither a file nor a shipped suite ({', '.join(suites)}){op}")


def _check_fit(shape: Shape, job_plan: Plan, device: str) -> None:
    """Raise UsageError when ``job_plan`` does not fit the numbers of ranks of ``shape``."""
    for nodes, ranks in shape.worlds:
        job_plan.require_nodes(ranks, nodes)
        if job_plan.ranks not in {None, ranks}:
            raise UsageError(
                f"plan {job_plan.name!r} is for {job_plan.ranks} ranks, but {nodes} node(s) with "
                f"{shape.ranks_per_node} each have {ranks}; remove 'ranks' from the plan or make them agree"
            )
        cases.expand(job_plan, ranks, nodes, device)


def _given(changes: Mapping[str, Any]) -> Iterator[str]:
    """``changes`` as options of ``busbw run``, without those that are None."""
    for name, value in changes.items():
        if value is not None:
            yield from (f"--{name.removesuffix('_seconds')}", value if isinstance(value, str) else f"{value:.12g}")


def resuming_order(
    folder: Path, nodes: str | None, ranks_per_node: int | None, busbw: str | None, changes: Mapping[str, Any]
) -> JobRequest:
    """A job that completes the run in ``folder`` on the same number of nodes and ranks.

    ``changes``: new numbers of launches and seconds of the timeout (None: those of the run).
    ``busbw``: the command that will resume it (None: this installation).

    Raises UsageError for other nodes or ranks, or if nothing is missing, and LaunchError if the run cannot be resumed.
    """
    stored = store.read(folder)
    run = stored.run
    shape = _shape_of_run(run)
    given = shape if nodes is None else shape_of(nodes, ranks_per_node or shape.ranks_per_node)
    if given != shape or ranks_per_node not in {None, shape.ranks_per_node}:
        raise UsageError(
            f"run {run.id} began on {shape.nodes} node(s) with {shape.ranks_per_node} rank(s) per node and can only "
            "continue there; omit --nodes and --ranks-per-node"
        )
    new_plan = resume.plan_of(run, **changes)
    if not resume.lack_of(stored, new_plan).launches:
        raise UsageError(f"nothing is missing in run {run.id}; use --launches to add launches")
    resume.refuse_other_environment(
        run,
        launcher="srun" if len(run.hosts) > 1 else "local",  # a step of one task starts local ranks
        ranks=len(run.hosts),
        host=run.hosts[0],
        by_this_busbw=busbw is None,
    )
    options = ["--resume", str(folder.absolute())]
    options += _given(changes)
    nodes_then = ",".join(dict.fromkeys(_node_of(run, host) for host in run.hosts))
    return JobRequest(tuple(options), new_plan, shape, nodes_then, folder.absolute())


def _node_of(run: Run, host: str) -> str:
    """Slurm's name of ``host``: the recorded one or, for a run outside of Slurm, the host name up to its first dot."""
    node = run.environments.get(host, UNKNOWN_HOST).node
    return host.partition(".")[0] if node is None else node.name


def _shape_of_run(run: Run) -> Shape:
    hosts = tuple(dict.fromkeys(run.hosts))
    counts = {run.hosts.count(host) for host in hosts}
    if len(counts) > 1:
        raise LaunchError(
            f"run {run.id} has different numbers of ranks per host; resume it in your own job: "
            f"srun busbw run --resume {run.id}"
        )
    return Shape(len(hosts), counts.pop())


def mpi_for(job_plan: Plan, given: str | None) -> str | None:
    """Value for ``srun --mpi``: ``given``, or the one for the library that mpi4py loads here; None for other backends.

    Raises LaunchError when it cannot be determined.
    """
    if given is not None or backend_named(job_plan.backend).started_by != "mpiexec":
        return given
    try:
        vendor = vendor_of_library()
    except LaunchError as error:
        raise LaunchError(
            f"{error}; if the nodes have an MPI library, give --mpi pmi2 (MPICH, Intel MPI) or --mpi pmix (Open MPI)"
        ) from error
    if vendor not in SRUN_MPI:
        raise LaunchError(
            f"the srun --mpi value for {vendor} is unknown; give --mpi (srun --mpi=list shows the choices)"
        )
    return SRUN_MPI[vendor]


def this_busbw() -> str:
    """The path of the command beside this Python. Raises UsageError if there is none."""
    path = Path(sys.executable).absolute().parent / "busbw"
    if not path.is_file():
        raise UsageError(f"{path} does not exist; give the path of busbw on the nodes with --busbw")
    return str(path)
