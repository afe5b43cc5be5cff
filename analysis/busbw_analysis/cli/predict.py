"""``busbw predict``: times for sizes, ranks and hosts that were not measured."""

import shlex
from collections.abc import Sequence
from pathlib import Path

import click

from busbw.errors import UsageError
from busbw.escape import echo
from busbw.ops import LOCAL, ON_SOCKETS, STORING, limits
from busbw.runs.run import Run
from busbw.shared_options import FILE, as_json_option, results_dir_option
from busbw.units import parse_sizes
from busbw_analysis.cli import options
from busbw_analysis.predict import Questions, read_results
from busbw_analysis.report import predict as tables
from busbw_analysis.report.document import Paragraph
from busbw_analysis.report.to_terminal import render


@click.command("predict")
@click.argument("named", metavar="[RUN]...", nargs=-1, shell_complete=options.names_of_runs)
@options.run_option("--from", "Another measured run, like RUN; repeatable.", "runs", multiple=True)
@click.option("--op", help="Operation, one of those measured.")
@click.option("--ranks", type=click.IntRange(max=limits.MOST_RANKS), help="Number of ranks to predict for.")
@click.option("--size", "sizes", help="Size S: 1GiB, or a range 8..1GiB*2.  [default: five of the measured sizes]")
@click.option(
    "--hosts",
    type=int,
    help="Number of hosts.  [default: one if one was measured, else as many ranks per host as measured]",
)
@click.option("--ranks-per-host", type=int, help="Ranks per host (alternative to --hosts).")
@click.option(
    "--algorithm",
    help="library (the backend's own), ring … (busbw list algorithms), nvls or sharp.  [default: library]",
)
@click.option("--dtype", help="Data type, one of those measured.  [default: preferably float32]")
@click.option("--mode", help="Call mode, one of those measured.  [default: preferably isolated]")
@click.option(
    "--imbalance", type=float, help="Imbalance of all_to_all_v, one of those measured.  [default: preferably 0.5]"
)
@click.option(
    "--plot",
    type=FILE,
    help="Plot time and busbw over 2 to 65,536 ranks for every algorithm, as .svg, .png or .pdf.",
)
@options.log_options("reader")
@results_dir_option
@click.option("--force", is_flag=True, help="Combine runs even if their machines or settings differ.")
@as_json_option
def predict(  # noqa: PLR0913 - click hands every option over by name
    *,
    named: tuple[str, ...],
    runs: tuple[str, ...],
    op: str | None,
    ranks: int | None,
    sizes: str | None,
    hosts: int | None,
    ranks_per_host: int | None,
    algorithm: str | None,
    plot: Path | None,
    results_dir: Path,
    force: bool,
    as_json: bool,
    **way: str | float | None,
) -> None:
    """Predict the time of a call that was not measured (another size, more ranks), and how reliable that is.

    RUN is a run folder, the start or end of a run's name, or "latest", the default. Runs with the same number of ranks
    are pooled; runs with different numbers are combined.
    """
    sizes_bytes = () if sizes is None else parse_sizes(sizes)
    runs = (*named, *runs)
    stored = options.read_runs(results_dir, runs or ["latest"])
    if op is None or ranks is None:
        raise _missing([run.stored.run for run in stored], runs or ["latest"], op, ranks)
    prediction = Questions(read_results(stored, force=force)).predict(
        op, ranks, sizes_bytes, algorithm=algorithm, hosts=hosts, ranks_per_host=ranks_per_host, **way
    )
    if plot is not None:  # first, so that an error in the plot prevents a half-printed answer
        tables.write(prediction, plot)
        echo(f"plot: {plot}", err=True)
    if as_json:
        options.print_json({"runs": [run.stored.run.id for run in stored], **tables.document(prediction)})
    else:
        echo(render([Paragraph(tables.headline(prediction)), tables.predict_table(prediction)]))
    for notice in prediction.notes:
        echo(f"note: {notice}", err=True)
    if not runs:
        echo(f"from: {stored[0].stored.path}", err=True)


def _missing(runs: Sequence[Run], names: Sequence[str], op: str | None, ranks: int | None) -> UsageError:
    """What is to be given, with the operations that were measured and a command."""
    ops = dict.fromkeys(case.op for run in runs for case in run.cases if case.op not in LOCAL | STORING | ON_SOCKETS)
    largest = max(len(run.hosts) for run in runs)
    given = {
        f"--op, one of those measured ({', '.join(ops) or 'none'})": op,
        f"--ranks, the number to predict for (measured: {largest})": ranks,
    }
    lacks = " and ".join(words for words, value in given.items() if value is None)
    command = f"busbw predict {shlex.join(names)} --op {op or next(iter(ops), 'OP')} --ranks {ranks or 2 * largest}"
    command += "".join(f" {shlex.join(words)}" for words in options.given(without={"named", "runs", "op", "ranks"}))
    return UsageError(f"give {lacks}: {command}", code="usage")
