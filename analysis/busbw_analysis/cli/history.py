"""``busbw index``, ``busbw history`` and ``busbw sql``: all runs of a results folder together."""

import csv
import io
import re
import zlib
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import click

from busbw.errors import UsageError, refuse_unknown
from busbw.escape import as_argument, as_cell, echo, echo_toned, plain_text, render_lines
from busbw.ops import OPS
from busbw.runs import collection, store
from busbw.runs.records import JSON
from busbw.shared_options import FILE, as_json_option, results_dir_option
from busbw.units import counted, parse_sizes
from busbw_analysis.cli.options import names_of_runs, parsed, print_json, several
from busbw_analysis.history.as_json import document
from busbw_analysis.history.engine import engine_of
from busbw_analysis.history.index import Unreadable, gather
from busbw_analysis.history.text import answer_lines, case_table
from busbw_analysis.history.trends import Selection, history_of
from busbw_analysis.history.views import Views, views_of
from busbw_analysis.report.document import Column, table
from busbw_analysis.report.to_terminal import lines

_SHARD: Final = re.compile(r"([0-9]{1,6})/([0-9]{1,6})")
_MANY: Final = 100
"""Runs that are not indexed, from which on it is worth saying."""


def _day(text: str) -> datetime:
    """Raises UsageError for what is no day."""
    try:
        return datetime.strptime(text, "%Y-%m-%d")  # noqa: DTZ007 - stored times are UTC without their zone
    except ValueError as error:
        raise UsageError(f"{text!r} is no day; expected year, month and day, such as 2026-03-01") from error


_engine_option = click.option(
    "--engine", metavar="dask:ADDRESS", help="Read runs on the workers of this Dask scheduler.  [default: this machine]"
)


@click.command()
@click.option("--shard", metavar="I/N", help="Only the I-th of N parts of the runs, for an array of jobs.")
@_engine_option
@results_dir_option
def index(*, shard: str | None, engine: str | None, results_dir: Path) -> None:
    """Gather the summaries of new and changed runs into results/index, so that history, sql and list runs are fast."""
    part, parts = _shard(shard)
    _refuse_nowhere(results_dir)
    folders = [folder for folder in store.folders(results_dir) if zlib.crc32(folder.name.encode()) % parts == part - 1]
    with engine_of(engine) as workers:
        gathering = gather(results_dir, folders, workers)
    _say_unreadable(gathering.unreadable)
    echo(f"{counted(gathering.added, 'run')} added, {gathering.unchanged} unchanged")


def _refuse_nowhere(results_dir: Path) -> None:
    """Raise UsageError for a folder that does not exist, such as a misspelt one."""
    if not results_dir.is_dir():
        raise UsageError(f"there is no folder {results_dir}; measure a run, or give --results-dir", code="no-such-run")


def _shard(text: str | None) -> tuple[int, int]:
    if text is None:
        return 1, 1
    match = _SHARD.fullmatch(text)
    part, parts = (int(match[1]), int(match[2])) if match else (0, 0)
    if not 1 <= part <= parts:
        raise UsageError(f"--shard {text!r}: expected I/N with I from 1 to N, such as 1/4")
    return part, parts


def _say_unreadable(unreadable: Sequence[Unreadable]) -> None:
    for run in unreadable:
        echo(f"busbw: run {plain_text(run.folder.name)} is left out: {plain_text(run.reason)}", err=True)


def _say_what_is_missing(views: Views) -> None:
    _say_unreadable(views.unreadable)
    if views.fresh >= _MANY:
        echo(f"busbw: {views.fresh} runs are not indexed; busbw index makes this faster", err=True)


@click.command()
@click.argument("runs", metavar="[RUN]...", nargs=-1, shell_complete=names_of_runs)
@click.option("--op", "ops", metavar="OP,…", help="Only these operations.")
@click.option("--sizes", callback=parsed(parse_sizes), help="Only these sizes, such as 1MiB or 1KiB..1GiB*4.")
@click.option("--machine", help="Only runs on this machine.")
@click.option("--backend", help="Only this backend.")
@click.option("--label", help="Only runs with this label.")
@click.option(
    "--since", callback=parsed(_day), metavar="DAY", help="Only runs from this day on, such as 2026-03-01 (UTC)."
)
@click.option("--until", callback=parsed(_day), metavar="DAY", help="Only runs up to this day.")
@click.option("--html", "page", type=FILE, metavar="FILE", help="Also write a page with a figure of each case.")
@_engine_option
@results_dir_option
@as_json_option
@collection.paused(until_exit=True)
def history(  # noqa: PLR0913 - click hands every option over by name
    *,
    runs: tuple[str, ...],
    ops: str | None,
    sizes: tuple[int, ...] | None,
    machine: str | None,
    backend: str | None,
    label: str | None,
    since: datetime | None,
    until: datetime | None,
    page: Path | None,
    engine: str | None,
    results_dir: Path,
    as_json: bool,
) -> None:
    """Print since when each case is faster or slower over all runs, or over RUN..., and what changed at that moment.

    A value is the median over the launches of a run. Cases with other settings, machines or tools are other lines.
    """
    named = () if ops is None else tuple(name.strip() for name in ops.split(","))
    for name in named:
        if name not in OPS:
            refuse_unknown("--op", name, OPS)
    selection = Selection(
        ops=named,
        sizes=sizes or (),
        machine=machine,
        backend=backend,
        label=label,
        since=since,
        until=until,
    )
    places = [_stored(results_dir, run) for run in runs] or store.places(results_dir)
    with engine_of(engine) as workers, views_of(results_dir, places, workers) as views:
        if not views.folders:
            message = f"there are no runs in {results_dir}; measure one, or give --results-dir"
            raise UsageError(message, code="no-such-run")
        _say_what_is_missing(views)
        for name, value in (("machine", machine), ("backend", backend), ("label", label)):
            _refuse_absent(views, name, value)
        trends = history_of(views, selection)
    if page is not None:
        from busbw_analysis.assembly.compose import write_text  # noqa: PLC0415 - with matplotlib
        from busbw_analysis.history.page import page_of  # noqa: PLC0415

        write_text(page, page_of(trends))
        echo(str(page), err=True)
    if as_json:
        print_json(document(trends))
    else:
        echo(render_lines(answer_lines(trends), "# "))
        if trends.trends:
            echo("")
            echo_toned(lines([case_table(trends)]))
    if not trends.trends:
        click.get_current_context().exit(1)


def _stored(results_dir: Path, run: str) -> Path:
    """The folder of a run. Raises UsageError for a folder of logs, which have to be stored first."""
    logs = several(click.get_current_context(), run) if Path(run).is_dir() else (run,)
    if logs == (run,):
        return store.find(results_dir, run)
    raise UsageError(
        f"{run!r} is a folder of {counted(len(logs), 'log')}, not a stored run: busbw import {as_argument(run)} "
        "--machine NAME stores them",
        code="no-such-run",
    )


def _refuse_absent(views: Views, name: str, value: str | None) -> None:
    """Raise UsageError if no run has this ``value`` of a column, which otherwise looks like a history without runs."""
    if value is None:
        return
    query = f"SELECT DISTINCT {name} FROM launches WHERE {name} IS NOT NULL ORDER BY 1"  # noqa: S608 - a name of ours
    known = [str(row[0]) for row in views.answer(query)[1]]
    if value not in known:
        refuse_unknown(f"--{name}", value, known)


@click.command()
@click.argument("query")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@results_dir_option
@as_json_option
def sql(*, query: str, as_csv: bool, results_dir: Path, as_json: bool) -> None:
    """Print the result of QUERY, one SELECT in DuckDB's SQL over the views runs and launches of all runs."""
    if as_csv and as_json:
        raise UsageError("--csv and --json: give one of them")
    _refuse_nowhere(results_dir)
    with engine_of(None) as workers, views_of(results_dir, store.places(results_dir), workers) as views:
        _say_what_is_missing(views)
        names, rows = views.answer(query)
    if as_json:
        print_json({"columns": list(names), "rows": [[_json(value) for value in row] for row in rows]})
    elif as_csv:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([names, *([as_cell(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)])
        echo(text.getvalue(), nl=False)
    else:
        columns = [_column(name, place, rows) for place, name in enumerate(names)]
        echo_toned(lines([table("", columns, rows, every_column=True)]))


def _column(name: str, place: int, rows: Sequence[tuple[Any, ...]]) -> Column[tuple[Any, ...]]:
    """Numbers on the right."""
    is_numeric = all(isinstance(row[place], int | float | Decimal | None) for row in rows)
    return Column(name, itemgetter(place), str if is_numeric else None)


def _json(value: object) -> JSON:
    """A value of DuckDB as JSON."""
    if isinstance(value, dict):
        return {str(key): _json(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_json(inner) for inner in value]
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, Decimal | timedelta):
        return float(value) if isinstance(value, Decimal) else value.total_seconds()
    return value if isinstance(value, str | int | float | None) else str(value)
