"""Options that several commands have."""

from pathlib import Path

import click

results_dir_option = click.option(
    "--results-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("results"),
    show_default=True,
    envvar="BUSBW_RESULTS_DIR",
    help="Where runs are kept.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
