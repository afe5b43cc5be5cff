"""The commands of Slurm: submit a job, list jobs and runs, and what a job calls; ``main`` loads them by name."""

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from busbw import units
from busbw.backends import backend_named
from busbw.cli import listing
from busbw.cli.options import json_option, option, results_dir_option
from busbw.errors import LaunchError, UsageError
from busbw.escape import echo, plain_text
from busbw.runs import cases, store
from busbw.slurm import job_plan, queue, steps
from busbw.slurm.follow import Follower
from busbw.slurm.job_plan import JobRequest
from busbw.slurm.runs import JobRuns
from busbw.slurm.script import SIGNAL_SECONDS, Job, render
from busbw.slurm.status import refuse_a_second_job, resumption_of, rows

_OPTIONS = [
    option("--nodes", "Nodes of the job; several numbers make an array with a run on each.", metavar="N[,N…]"),
    option("--ranks-per-node", "Ranks on every node.", click.IntRange(min=1)),
    option("--resume", "Measure what this run lacks, on its nodes: a folder, a name, or latest.", metavar="RUN"),
    option("--backend", "Communication library (busbw list backends).  [default: the plan's]"),
    option("--launches", "Fresh sets of processes, a step each.  [default: the plan's]", click.IntRange(min=1)),
    option(
        "--path",
        "storage_*, checkpoint_save: folder on the measured storage, on every node.  [default: the plan's]",
        click.Path(),
    ),
    option(
        "--timeout timeout_seconds",
        "Seconds after which a silent rank is lost, and that ranks wait for each other.  [default: the plan's]",
        float,
    ),
    option("--mpi", "What srun is told of the MPI: pmi2, pmix …  [default: by the library that is here]"),
    *(option(f"--{name}", "As of sbatch.") for name in ("partition", "account", "qos")),
    option("--time", "Limit, as of sbatch: 30, 1:30:00, 1-0.  [default: the partition's]"),
    option("--gpus-per-node", "As of sbatch.", click.IntRange(min=1)),
    option("--cpus-per-task", "As of sbatch, and for the ranks.", click.IntRange(min=1)),
    option("--nodelist", "As of sbatch.  [default with --resume: the hosts of the run]"),
    *(option(f"--{name}", "As of sbatch.") for name in ("exclude", "constraint", "reservation")),
    option("--exclusive", "Nobody else on these nodes.", is_flag=True),
    option("--requeue/--no-requeue", "May Slurm put it back into the queue?", default=True, show_default=True),
    option(
        "--signal-seconds",
        "Come to an end so long before the time limit; 0: not before Slurm ends it.",
        click.IntRange(min=0),
        default=SIGNAL_SECONDS,
        show_default=True,
    ),
    option("--setup", "A line before the run, as: module load …  Repeatable.", multiple=True, metavar="LINE"),
    option("--srun-arg srun", "An option for srun, as: --cpu-bind=cores  Repeatable.", multiple=True, metavar="OPTION"),
    option("--busbw", "The command on the nodes.  [default: this one]", metavar="PATH"),
    option("--dry-run", "Print the batch script, and submit nothing.", is_flag=True),
    option("--wait", "Follow the job, and end with its verdict.", is_flag=True),
]


@click.command(params=_OPTIONS)
@click.argument("plan", required=False)
@results_dir_option
@json_option
def submit(  # noqa: PLR0913 - click hands every option over by name
    *,
    plan: str | None,
    nodes: str | None,
    ranks_per_node: int | None,
    resume: str | None,
    backend: str | None,
    launches: int | None,
    path: str | None,
    timeout_seconds: float | None,
    mpi: str | None,
    nodelist: str | None,
    setup: tuple[str, ...],
    srun: tuple[str, ...],
    busbw: str | None,
    dry_run: bool,
    wait: bool,
    results_dir: Path,
    as_json: bool,
    **of_sbatch: Any,  # noqa: ANN401 - each goes to the job's field of that name, which checks it
) -> None:
    """Submit a job that measures PLAN: a shipped suite (busbw list suites) or a TOML file.

    Prints the number of the job. Exit status 0: submitted, or with --wait: the job ended well.
    """
    changes = {"backend": backend, "launches": launches, "path": path, "timeout_seconds": timeout_seconds}
    order = _order(plan, nodes, ranks_per_node, resume, results_dir, busbw, changes)
    job = Job(
        run=order.options,
        **asdict(order.shape),
        name=order.name,
        settings=job_plan.settings_of(results_dir, busbw),
        mpi=job_plan.mpi_for(order.plan, mpi),
        silence_seconds=order.plan.timing.timeout_seconds + order.plan.timing.max_seconds,
        srun=srun,
        nodelist=order.nodelist if nodelist is None else nodelist,
        comment=resumption_of(order.resumed) if order.resumed else None,
        about=(f"Written by busbw submit: {order.shape.nodes} × {order.shape.ranks_per_node} ranks.",),
        before=setup,
        **of_sbatch,
    )
    text = render(job)
    if dry_run:
        shown = {"script": text, "results": str(results_dir.absolute())}
        echo(json.dumps(shown, indent=2) if as_json else text, nl=as_json)
        echo(_about(order), err=True)
        return
    if order.resumed:
        refuse_a_second_job(order.resumed)
    results_dir.mkdir(parents=True, exist_ok=True)
    number = queue.submit(text)
    log = None if order.shape.node_counts else Path.cwd() / f"busbw-{number}.out"
    if as_json:
        echo(json.dumps({"job": number, "results": str(results_dir.absolute()), "log": str(log) if log else None}))
    else:
        echo(number)
    echo(
        f"job:     {number}, {_about(order)}\n"
        f"results: {plain_text(shlex.quote(str(order.resumed or results_dir.absolute())))}\n"
        f"log:     {plain_text(shlex.quote(str(log or Path.cwd() / f'busbw-{number}_*.out')))}\n"
        f"next:    busbw status, or scancel {number}",
        err=True,
    )
    if wait:
        tasks = order.shape.node_counts
        _wait(Follower(number, JobRuns(results_dir), _say, log, order.resumed, tasks=tasks))


def _order(
    plan: str | None,
    nodes: str | None,
    ranks_per_node: int | None,
    resume: str | None,
    results_dir: Path,
    busbw: str | None,
    changes: dict[str, Any],
) -> JobRequest:
    """``changes`` go to the plan's fields of that name, which check them."""
    if resume is not None:
        if plan is not None or changes["backend"] is not None or changes["path"] is not None:
            raise UsageError("a run that is resumed keeps its plan: give --resume without a plan, --backend and --path")
        folder = store.find(results_dir, resume)
        kept = {name: changes[name] for name in ("launches", "timeout_seconds")}
        return job_plan.resuming_order(folder, nodes=nodes, ranks_per_node=ranks_per_node, busbw=busbw, **kept)
    if plan is None:
        raise UsageError("nothing to submit: give a plan with --nodes N and --ranks-per-node R, or --resume RUN")
    if nodes is None or ranks_per_node is None:
        lacking = {"--nodes N": nodes, "--ranks-per-node R": ranks_per_node}
        raise UsageError(
            f"{plan} has no place: give {' and '.join(name for name, given in lacking.items() if given is None)}"
        )
    return job_plan.new_order(plan, job_plan.shape_of(nodes, ranks_per_node), **changes)


def _about(order: JobRequest) -> str:
    shape, wanted = order.shape, order.plan
    device = backend_named(wanted.backend).device
    worlds = [cases.expand(wanted, ranks, nodes, device).cases for nodes, ranks in shape.worlds]
    seconds = sum(cases.estimated_seconds(wanted, world) for world in worlds)
    return (
        f"{'/'.join(map(str, shape.node_counts or (shape.nodes,)))} node(s) × {shape.ranks_per_node} rank(s), backend "
        f"{wanted.backend}, {wanted.launches} launch(es): about {units.format_span(seconds)} when it runs, "
        "more where one call takes seconds"
    )


def _say(text: str) -> None:
    echo(plain_text(text), err=True)


def _wait(follower: Follower) -> None:
    try:
        verdict = follower.follow()
    except KeyboardInterrupt:
        echo(
            f"busbw: not followed any more; job {follower.number} goes on (busbw status), scancel "
            f"{follower.number} ends it",
            err=True,
        )
        click.get_current_context().exit(1)
    for sentence in verdict.sentences:
        _say(sentence)
    click.get_current_context().exit(verdict.status)


@click.command()
@results_dir_option
@json_option
def status(*, results_dir: Path, as_json: bool) -> None:
    """List jobs of yours that run busbw, and all runs: how each stands, and which belongs to which.

    A run has a row for every job of it that Slurm still knows. Jobs that go on come first, then the newest.
    """
    found = rows(results_dir, _queued())
    if as_json:
        echo(json.dumps(found, indent=2))
    elif found:
        echo(listing.as_table(found))
    else:
        echo(f"no jobs, and no runs in {plain_text(str(results_dir))}", err=True)


def _queued() -> tuple[queue.QueuedJob, ...]:
    """This user's jobs; where Slurm cannot be asked, none, and it is said why."""
    try:
        why = queue.missing()
        queued = queue.mine() if why is None else ()
    except LaunchError as error:
        why, queued = str(error), ()
    if why is not None:
        echo(f"busbw: runs only: {plain_text(why)}", err=True)
    return queued


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
@results_dir_option
def launches(*, command: tuple[str, ...], results_dir: Path) -> None:
    """In a batch script: start COMMAND (srun … busbw run …) once a launch, until the run of the job is whole.

    Prints the folder of the run. A job that was requeued goes on with the run that it had begun. Exit status 0 when
    the run is whole and nothing failed.
    """
    variables = steps.here()
    folder, code = steps.carry_out(command, results_dir, variables)
    echo(folder)
    click.get_current_context().exit(code)


__all__ = ["launches", "status", "submit"]
