"""The commands for Slurm: submit a job, list jobs and runs, and run the launches of a job."""

import json
import re
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from busbw import units
from busbw.backends import backend_named
from busbw.cli import listing
from busbw.cli.options import option
from busbw.errors import LaunchError, UsageError
from busbw.escape import as_argument, echo, plain_text
from busbw.runs import cases, store
from busbw.shared_options import as_json_option, results_dir_option
from busbw.slurm import job_plan, jobs, steps
from busbw.slurm.follow import Follower
from busbw.slurm.job_plan import JobRequest
from busbw.slurm.jobs import JobRuns, refuse_a_second_job, resumption_of, rows
from busbw.slurm.script import SIGNAL_SECONDS, Job, render
from busbw.workloads.shapes import step_seconds

_LIMIT: Final = re.compile(r"(?:\d+-)?\d+(?::\d{1,2}){0,2}|infinite|unlimited", re.IGNORECASE)


def _limit(_context: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    """A time limit as sbatch takes it, which refuses ``10m``."""
    if text is not None and not _LIMIT.fullmatch(text):
        raise UsageError(f"--time {text!r}: expected minutes (30), hours:minutes:seconds (1:30:00) or days-hours (1-0)")
    return text


_OPTIONS = [
    option("--nodes", "Nodes of the job; several numbers submit a job array with one run for each.", metavar="N[,N…]"),
    option("--ranks-per-node", "Ranks per node.  [default: 1 for the suite fleet]", click.IntRange(min=1)),
    option("--resume", "Complete this run (folder, name or latest) on its nodes.", metavar="RUN"),
    option("--backend", "Communication library (busbw list backends).  [default: the plan's]"),
    option("--launches", "Repetitions in new processes, a step each.  [default: the plan's]", click.IntRange(min=1)),
    option(
        "--path",
        "storage_*, checkpoint_save: folder on the storage to measure, present on every node.  [default: the plan's]",
        click.Path(),
    ),
    option(
        "--timeout timeout_seconds",
        "Silence until a rank counts as lost: 30, 2min.  [default: the plan's]",
        units.parse_seconds,
        metavar="TIME",
    ),
    option("--label", "Word that tells the run from others in lists and comparisons.  [default: the plan's]"),
    option("--duration", "Repeat all cases for this long: 30s, 90min, 8h.  [default: the plan's]"),
    option("--mpi", "Value for srun --mpi: pmi2, pmix …  [default: from the MPI library on this host]"),
    *(option(f"--{name}", "Passed to sbatch.") for name in ("partition", "account", "qos")),
    option("--time", "Time limit, passed to sbatch: 30, 1:30:00, 1-0.  [default: the partition's]", callback=_limit),
    option("--gpus-per-node", "Passed to sbatch.", click.IntRange(min=1)),
    option("--cpus-per-task", "Passed to sbatch and srun.", click.IntRange(min=1)),
    option("--nodelist", "Passed to sbatch.  [default with --resume: the hosts of the run]"),
    *(option(f"--{name}", "Passed to sbatch.") for name in ("exclude", "constraint", "reservation")),
    option(
        "--exclusive/--no-exclusive",
        "Allow no other jobs on these nodes; they would disturb the measurement.",
        default=True,
        show_default=True,
    ),
    option("--requeue/--no-requeue", "Whether Slurm may requeue the job.", default=True, show_default=True),
    option(
        "--signal-seconds",
        "Stop this long before the time limit; 0 to run until Slurm ends the job.",
        click.IntRange(min=0),
        default=SIGNAL_SECONDS,
        show_default=True,
    ),
    option("--setup before", "Shell command before the run: module load …  Repeatable.", multiple=True, metavar="LINE"),
    option("--srun-arg srun", "Option for srun: --cpu-bind=cores  Repeatable.", multiple=True, metavar="OPTION"),
    option("--busbw", "Path of busbw on the nodes.  [default: this busbw]", metavar="PATH"),
    option("--dry-run", "Print the batch script without submitting it.", is_flag=True),
    option("--wait", "Wait for the end of the job; exit with 0 if it succeeded, else with 1.", is_flag=True),
]


@click.command(params=_OPTIONS)
@click.argument("plan", required=False)
@results_dir_option
@as_json_option
def submit(  # noqa: PLR0913 - click hands every option over by name
    *,
    plan: str | None,
    nodes: str | None,
    ranks_per_node: int | None,
    resume: str | None,
    mpi: str | None,
    nodelist: str | None,
    busbw: str | None,
    dry_run: bool,
    wait: bool,
    results_dir: Path,
    as_json: bool,
    **asked: Any,  # noqa: ANN401 - passed to the field of that name of the plan or the job, which checks it
) -> None:
    """Submit a Slurm job that measures PLAN: a shipped suite (busbw list suites) or a TOML file.

    Prints the job number. Exit status 0: the job was submitted or, with --wait, has succeeded.
    """
    of_plan = ("backend", "path", "label", "duration", "launches", "timeout_seconds")
    changes = {name: asked.pop(name) for name in of_plan}
    if resume is not None:
        kept = {name: changes.pop(name) for name in ("launches", "timeout_seconds")}
        if plan is not None or any(value is not None for value in changes.values()):
            others = ", ".join(f"--{name}" for name in changes)
            raise UsageError(f"--resume keeps the stored plan of the run; give it without PLAN, {others}")
        folder = store.find(results_dir, resume)
        order = job_plan.resuming_order(folder, nodes, ranks_per_node, busbw, kept)
    elif plan is not None:
        order = job_plan.new_order(plan, nodes, ranks_per_node, changes)
    else:
        raise UsageError("nothing to submit: give a plan with --nodes N and --ranks-per-node R, or --resume RUN")
    job = Job(
        run=order.options,
        **asdict(order.shape),
        name=f"busbw-{order.plan.name}",
        busbw=job_plan.this_busbw() if busbw is None else busbw,
        results_dir=str(results_dir.absolute()),
        mpi=job_plan.mpi_for(order.plan, mpi),
        silence_seconds=order.plan.timing.timeout_seconds + order.plan.timing.max_seconds,
        nodelist=order.nodelist if nodelist is None else nodelist,
        comment=resumption_of(order.resumed) if order.resumed else None,
        about=f"Written by busbw submit: {order.shape.nodes} × {order.shape.ranks_per_node} ranks.",
        **asked,
    )
    if job.gpus_per_node is not None and backend_named(order.plan.backend).device == "cpu":
        echo(f"caution: backend {order.plan.backend} measures no GPUs; give --backend nccl", err=True)
    text = render(job)
    if dry_run:
        shown = {"script": text, "results": str(results_dir.absolute())}
        echo(json.dumps(shown, indent=2) if as_json else text, nl=as_json)
        echo(_about(order), err=True)
        return
    if order.resumed:
        refuse_a_second_job(order.resumed)
    results_dir.mkdir(parents=True, exist_ok=True)
    number = jobs.submit(text)
    log = None if order.shape.node_counts else Path.cwd() / f"busbw-{number}.out"
    if as_json:
        echo(json.dumps({"job": number, "results": str(results_dir.absolute()), "log": str(log) if log else None}))
    else:
        echo(number)
    echo(
        f"job:     {number}, {_about(order)}\n"
        f"results: {as_argument(order.resumed or results_dir.absolute())}\n"
        f"log:     {as_argument(log or Path.cwd() / f'busbw-{number}_*.out')}\n"
        f"next:    busbw status, or scancel {number}",
        err=True,
    )
    if wait:
        _wait(Follower(number, JobRuns(results_dir), _say, log, order.resumed))


def _about(order: JobRequest) -> str:
    shape, plan = order.shape, order.plan
    device = backend_named(plan.backend).device
    worlds = [cases.expand(plan, ranks, nodes, device).cases for nodes, ranks in shape.worlds]
    # The cores of the nodes are unknown here: a core per rank.
    of_step = partial(step_seconds, cores=shape.ranks_per_node)
    at_least = plan.duration_ns / 1e9
    seconds = sum(max(at_least, cases.estimated_seconds(plan, world, of_step)) for world in worlds)
    return (
        f"{'/'.join(map(str, shape.node_counts or (shape.nodes,)))} node(s) × {shape.ranks_per_node} rank(s), backend "
        f"{plan.backend}, {units.counted(plan.launches, 'launch', 'launches')}: about "
        f"{units.format_span(seconds)} once started, longer if single calls take seconds"
    )


def _say(text: str) -> None:
    echo(plain_text(text), err=True)


def _wait(follower: Follower) -> None:
    try:
        verdict = follower.follow()
    except KeyboardInterrupt:
        echo(
            f"busbw: stopped waiting; job {follower.number} continues (busbw status); to cancel it: "
            f"scancel {follower.number}",
            err=True,
        )
        click.get_current_context().exit(1)
    for sentence in verdict.sentences:
        _say(sentence)
    click.get_current_context().exit(verdict.status)


@click.command()
@results_dir_option
@as_json_option
def status(*, results_dir: Path, as_json: bool) -> None:
    """List your jobs that run busbw and all runs, their state, and which job measures which run.

    A run has one row per job that Slurm still knows. Active jobs come first, then the newest.
    """
    listed = [asdict(row) for row in rows(results_dir, _queued())]
    if as_json:
        echo(json.dumps(listed, indent=2))
    elif listed:
        echo(listing.as_table(listed))
    else:
        echo(f"no jobs, and no runs in {plain_text(str(results_dir))}", err=True)


def _queued() -> tuple[jobs.QueuedJob, ...]:
    """The jobs of this user; if Slurm cannot be queried, print the reason and return none."""
    try:
        return jobs.mine()
    except LaunchError as error:
        echo(f"busbw: only runs are listed: {plain_text(str(error))}", err=True)
        return ()


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
@results_dir_option
def launches(*, command: tuple[str, ...], results_dir: Path) -> None:
    """For batch scripts: run COMMAND (srun … busbw run …) once per launch until the run is complete.

    Prints the run folder. A requeued job continues the run that it began. Exit status 0: the run is complete and no
    case failed.
    """
    variables = steps.here()
    folder, code = steps.carry_out(command, results_dir, variables)
    echo(folder)
    click.get_current_context().exit(code)
