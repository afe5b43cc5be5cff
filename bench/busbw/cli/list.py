"""The command ``busbw list``."""

import json
from pathlib import Path

import click

from busbw.cli import listing
from busbw.cli.options import json_option, results_dir_option
from busbw.escape import echo, plain_text


@click.command("list")
@click.argument("what", type=click.Choice(["ops", "algorithms", "backends", "suites", "launchers", "runs"]))
@results_dir_option
@json_option
def list_(*, what: str, results_dir: Path, as_json: bool) -> None:
    """List ops, algorithms, backends, suites, launchers or runs."""
    rows = listing.rows(what, results_dir)
    if as_json:
        echo(json.dumps(rows, indent=2))
    elif not rows:
        echo(f"no {what} in {plain_text(str(results_dir))}", err=True)
    else:
        echo(listing.as_table(rows))
