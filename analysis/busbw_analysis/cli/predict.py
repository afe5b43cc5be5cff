"""``busbw predict``: from what was measured to what was not."""

from pathlib import Path

import click

from busbw.escape import echo
from busbw.units import parse_sizes
from busbw_analysis import predict as predictions
from busbw_analysis.cli import options
from busbw_analysis.report.document import Paragraph
from busbw_analysis.report.tables import predict as tables
from busbw_analysis.report.to_terminal import render


@click.command("predict")
@options.run_option("--from", "What was measured; several for more ranks.", "runs", multiple=True, required=True)
@click.option("--op", required=True, help="Operation (busbw list ops).")
@click.option("--ranks", type=int, required=True, help="How many ranks there would be.")
@click.option("--size", "sizes", help="Size S, or several: 1GiB, or 8..1GiB*2.  [default: five of the measured]")
@click.option(
    "--hosts",
    type=int,
    help="On how many hosts.  [default: one if one was measured, else with as many ranks each]",
)
@click.option("--ranks-per-host", type=int, help="The same the other way round.")
@click.option(
    "--algorithm",
    help="library (the backend's own), or ring … (busbw list algorithms), nvls, sharp.  [default: library]",
)
@click.option("--dtype", help="Of the data types that were measured.  [default: the most usual]")
@click.option("--mode", help="Of the modes that were measured.  [default: the most usual]")
@click.option(
    "--imbalance", type=float, help="Of those that all_to_all_v was measured with.  [default: the most usual]"
)
@click.option(
    "--plot",
    type=options.FILE,
    help="Draw time and busbw over 2 to 65,536 ranks, by every algorithm, as .svg, .png or .pdf.",
)
@options.log_options("reader")
@options.results_dir_option
@click.option("--force", is_flag=True, help="Take runs together even though their machines or settings differ.")
@options.as_json_option
def predict(  # noqa: PLR0913 - click hands every option over by name
    *,
    runs: tuple[str, ...],
    op: str,
    ranks: int,
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
    """Say how long a call would take that was not measured: at another size, on more ranks, and how sure that is.

    RUN is a run folder, the start or end of a run's name, or "latest". Runs of different numbers of ranks stand
    beside each other; runs of the same are pooled.
    """
    wanted = () if sizes is None else parse_sizes(sizes)
    stored = options.read_runs(results_dir, runs)
    groups = predictions.read_groups(stored, force=force)
    prediction = predictions.predict(
        groups, op, ranks, wanted, algorithm=algorithm, hosts=hosts, ranks_per_host=ranks_per_host, **way
    )
    if plot is not None:  # before anything is printed: what cannot be drawn is refused, and then there is no table
        # matplotlib takes as long to load as all the rest.
        from busbw_analysis.report.plots.scaling import write  # noqa: PLC0415

        write(prediction.data, prediction.query, plot)
        echo(f"drawn: {plot}", err=True)
    for notice in prediction.notes:
        echo(f"note: {notice}", err=True)
    if as_json:
        options.print_json({"runs": [one.run.id for one in stored], **tables.document(prediction)})
    else:
        echo(render([Paragraph(tables.headline(prediction)), tables.predict_table(prediction)]))
