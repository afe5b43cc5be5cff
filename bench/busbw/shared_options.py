"""Options of the commands that measure and of those that analyse."""

from pathlib import Path
from typing import Final

import click

FILE: Final = click.Path(path_type=Path, dir_okay=False)

results_dir_option = click.option(
    "--results-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("results"),
    envvar="BUSBW_RESULTS_DIR",
    help="Folder in which runs are stored.  [default: $BUSBW_RESULTS_DIR, else results]",
)
peaks_option = click.option(
    "--peaks",
    "peaks_file",
    type=FILE,
    help="TOML file with your own peaks.  [default: $BUSBW_PEAKS, else ~/.config/busbw/peaks.toml]",
)
as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
