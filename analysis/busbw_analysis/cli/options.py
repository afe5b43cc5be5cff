"""What several commands of the analysis are given, and how they print JSON."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from busbw.escape import echo
from busbw.runs import store
from busbw.runs.records import JSON
from busbw.system.catalog import VARIABLE
from busbw_analysis.data.as_json import plain

_Command = TypeVar("_Command", bound=Callable[..., None])


results_dir_option = click.option(
    "--results-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("results"),
    show_default=True,
    envvar="BUSBW_RESULTS_DIR",
    help="Where runs are kept.",
)


def names_of_runs(context: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    """What a shell offers for RUN: ``latest``, and the names of the runs that are kept."""
    results_dir = Path(context.params.get("results_dir") or "results")
    return [
        name for name in ("latest", *(folder.name for folder in store.folders(results_dir))) if name.startswith(typed)
    ]


def run_options(command: _Command) -> _Command:
    """What every command of the analysis is given: RUN…, where runs are kept, whether unlike ones may be pooled, and a
    file of own peaks.
    """
    for decorate in (
        click.option(
            "--peaks",
            "peaks_file",
            type=click.Path(path_type=Path, dir_okay=False),
            help=f"A TOML file of your own peaks.  [default: ${VARIABLE}, else ~/.config/busbw/peaks.toml]",
        ),
        click.option("--force", is_flag=True, help="Pool runs even though their machines or settings differ."),
        results_dir_option,
        click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=names_of_runs),
    ):
        command = decorate(command)
    return command


as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


def print_json(document: JSON) -> None:
    """``document`` on stdout, strictly JSON."""
    echo(json.dumps(plain(document), indent=2, ensure_ascii=False, allow_nan=False))
