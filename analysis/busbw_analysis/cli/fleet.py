"""``busbw fleet``: which node, link or switch is slow, how sure that is, and what it costs."""

import importlib
import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import click

from busbw.errors import BusbwError, UsageError
from busbw.escape import as_argument, echo, render_lines
from busbw.runs import store
from busbw.runs.asked import LEAST_NODES
from busbw.runs.plan import override, read_suite
from busbw.shared_options import FILE, as_json_option, results_dir_option
from busbw.units import counted, parse_share
from busbw.workloads.model_rows import Model
from busbw_analysis.cli import options
from busbw_analysis.cli import training_options as inputs
from busbw_analysis.data.as_json import plain
from busbw_analysis.fleet import outputs
from busbw_analysis.fleet.controller import Judged, judged
from busbw_analysis.fleet.cost import Cost, cost_of
from busbw_analysis.fleet.search import Options
from busbw_analysis.fleet.topology import read_topology
from busbw_analysis.fleet.verdicts import FleetJudgement
from busbw_analysis.report.to_terminal import render
from busbw_analysis.training.layout import DEFAULT_SETTINGS
from busbw_analysis.training.machine import GivenNetwork, machine_of

_SUITE: Final = "fleet"


@click.command()
@click.argument("runs", metavar="[RUN]...", nargs=-1, shell_complete=options.names_of_runs)
@click.option("--backend", help="Without RUN: communication library.  [default: gloo]")
@click.option("--ranks", type=click.IntRange(LEAST_NODES), help="Without RUN or a launcher: number of local ranks.")
@click.option(
    "--sample",
    type=click.IntRange(1),
    help="Without RUN: each node meets so many random partners instead of all, or of 4 above 32 nodes.",
)
@click.option("--topology", type=FILE, help="topology.conf, or lines of a node and its switch.  [default: Slurm's]")
@click.option(
    "--within", default="15%", show_default=True, help="A rate that is lower by at most this counts as equal."
)
@inputs.model_option()
@inputs.layout_option(
    inputs.LAYOUT_KEYS,
    "With --model and --network: what a training step in this layout loses",
    "busbw training memory --help lists keys",
)
@inputs.network_option()
@click.option("--json-lines", is_flag=True, help="Print one line of JSON per node, for controllers.")
@results_dir_option
@as_json_option
def fleet(  # noqa: PLR0913 - click hands every option over by name
    *,
    runs: tuple[str, ...],
    backend: str | None,
    ranks: int | None,
    sample: int | None,
    topology: Path | None,
    within: str,
    model: Model | None,
    settings: Mapping[str, Any] | None,
    network: GivenNetwork | None,
    json_lines: bool,
    results_dir: Path,
    as_json: bool,
) -> None:
    """Name the slow nodes, links, directions and switches of a fleet, and how sure that is.

    Without RUN, the nodes of the launcher are measured (torchrun, mpirun, srun; one rank per node or per GPU). With
    RUN, a stored run is judged again, or logs of pairs of nodes, one or more to a file. A healthy fleet is accused in
    at most 1 of 100 cases. Exit status: 0 nothing is slow, 1 something is, 2 not usable
    as asked, 3 cannot tell.
    """
    if runs and (given := [name for name, value in _measuring(backend, ranks, sample).items() if value is not None]):
        raise UsageError(f"--{given[0]} is for measuring; leave RUN out")
    if model is None and (settings or network is not None):
        raise UsageError("--layout and --network say what a model loses; give --model too")
    if as_json and json_lines:
        raise UsageError("--json and --json-lines are two forms of the answer; give only one of them")
    priced = None if model is None else _priced(model, settings or {}, network)
    chosen = Options(within=-math.log1p(-_share(within)))
    folder = None
    with options.refused():
        places = None if topology is None else read_topology(topology)
        if not runs:
            folder = measured(_measuring(backend, ranks, sample), results_dir)
            if folder is None:
                return
            runs = (str(folder),)
        else:
            runs = tuple(log for run in runs for log in _logs(_latest(results_dir) if run == "latest" else run))
        stored = [_with_samples(summary) for summary in options.read_runs(results_dir, runs)]
        result = judged(stored, [str(run.path) if run.path.is_file() else None for run in stored], chosen, places)
    cost = None if priced is None else priced(result.judgement)
    names = [run.run.id for run in stored]
    if json_lines:
        for row in outputs.node_documents(result, names, priced):
            echo(json.dumps(plain(row), ensure_ascii=False, allow_nan=False))
    elif as_json:
        options.print_json(outputs.document(result, chosen, names, cost))
    else:
        _print(result, chosen, cost)
    if folder is not None:
        shown = as_argument(folder)
        echo(f"results: {shown}\nagain:   busbw fleet {shown}", err=True)
    click.get_current_context().exit(result.judgement.code)


def _measuring(backend: str | None, ranks: int | None, sample: int | None) -> dict[str, Any]:
    return {"backend": backend, "ranks": ranks, "sample": sample}


def _share(text: str) -> float:
    try:
        return parse_share(text)
    except UsageError as error:
        raise UsageError(f"--within {error}") from error


def _with_samples(summary: Any) -> store.StoredRun:  # noqa: ANN401 - data.kept is heavy
    samples: store.StoredRun | None = summary.samples
    return samples or store.read(summary.stored.path)


def measured(given: Mapping[str, Any], results_dir: Path) -> Path | None:
    """The folder of a run of the suite ``fleet`` on the ranks of the launcher, or on local ranks; None on other ranks.

    The instrument is loaded by name, as it loads the analysis: neither imports the other.
    """
    launch = importlib.import_module("busbw.launch")
    session = importlib.import_module("busbw.launch.run_session")
    measuring = importlib.import_module("busbw.cli.measuring")
    changes = {"backend": given["backend"], "ranks": given["ranks"], "matchings": given["sample"]}
    plan = override(read_suite(_SUITE), ops=(), **changes)
    world_settings = session.Settings(results_dir, quiet=not sys.stderr.isatty())
    with measuring.report_interruption(2), launch.session(world_settings, plan.timing.timeout_seconds) as world:
        if world.attached is not None and not world.attached.info.lead:
            importlib.import_module("busbw.launch.attach").run_rank(world.attached)
            return None
        folder: Path = launch.execute(plan, world).folder
        return folder


def _priced(
    model: Model, settings: Mapping[str, Any], network: GivenNetwork | None
) -> Callable[[FleetJudgement], Cost | None]:
    """What a judgement costs a training step. Raises UsageError for options that do not fit, before any measurement."""
    if network is None:
        raise UsageError(
            "--model says what a training step loses; give --network too, such as '4X NDR'", code="network"
        )
    # The cost is a share of a step, so the nearest batch that the layout divides is as good.
    layout = {**DEFAULT_SETTINGS, **settings}
    pieces = layout["dp"] * layout["micro_batch"] * (layout["pp"] if layout["vpp"] > 1 else 1)
    step, _ = inputs.step_of(model, settings, max(1, round(model.batch / pieces)) * pieces, model.sequence)
    machine = machine_of(model.dtype, step.layout.gpus, None, network=network).machine
    return lambda judgement: cost_of(judgement, step, machine)


def _latest(results_dir: Path) -> str:
    """The latest run of a fleet. Raises UsageError if there are only others."""
    found = store.latest_of(results_dir, _SUITE)
    if found is None and (others := list(store.folders(results_dir))):
        raise UsageError(
            f"no run in {results_dir} is of a fleet; busbw fleet and busbw submit fleet measure one. "
            f"To judge the latest run of any kind: busbw fleet {as_argument(others[-1])}",
            code="no-such-run",
        )
    return "latest" if found is None else str(found)


def _logs(run: str) -> tuple[str, ...]:
    """A run, or the logs of a folder or archive. Raises UsageError for a folder that has none."""
    logs = options.several(click.get_current_context(), run)
    if logs != (run,) or not Path(run).is_dir() or (Path(run) / store.RUN_FILE).is_file():
        return logs
    files = sorted(path for path in Path(run).rglob("*") if path.is_file())
    wanted = "fleet reads a run, or logs of pairs of nodes of perftest, OSU or nccl-tests with names such as n1_n2.txt"
    if not files:
        raise UsageError(f"{run}: an empty folder; {wanted}", code="not-a-log")
    try:
        options.read_runs(Path(run), [str(files[0])])
    except BusbwError as error:
        raise UsageError(f"{run}: none of {counted(len(files), 'file')} is a log; {error}; {wanted}") from error
    return logs


def _print(result: Judged, chosen: Options, cost: Cost | None) -> None:
    lines = outputs.lines(result, chosen)
    if cost is not None:
        lines.append(("cost", outputs.cost_sentence(cost)))
    echo(render_lines(lines))
    if outputs.exclude(result):  # not wrapped, to be copied
        echo(f"\n--exclude={outputs.exclude(result)}")
        for command in outputs.drain(result):
            echo(command)
    if result.judgement.verdicts:
        echo(f"\n{render([outputs.verdict_table(result)])}")
    echo("")
    for line in outputs.heat_lines(result):
        echo(line)
