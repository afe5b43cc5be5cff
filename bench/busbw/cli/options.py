"""Options that several commands have."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

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


Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def completed_by(names: Callable[[], Iterable[str]]) -> Complete:
    """What a shell offers for an option that takes ``names``, one or several separated by commas."""

    def complete(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
        before, comma, last = typed.rpartition(",")
        return [f"{before}{comma}{name}" for name in names() if name.startswith(last)]

    return complete


def all_ops() -> Iterable[str]:
    """The names of all operations."""
    from busbw.ops import OPS  # noqa: PLC0415 - only where a shell asks

    return OPS


def backends() -> Iterable[str]:
    """The names of all backends."""
    from busbw.backends import BACKENDS  # noqa: PLC0415 - only where a shell asks

    return BACKENDS


def suites() -> Iterable[str]:
    """The names of the shipped suites."""
    from busbw.runs.plan import suites as shipped  # noqa: PLC0415 - only where a shell asks

    return shipped()


class Sectioned(click.Command):
    """A command whose help lists its options by what they are for.

    sections: heading → an example and the names of the parameters, as the function has them. What is in none, such as
        ``--help``, stands in the last one.
    """

    def __init__(self, *args: Any, sections: Mapping[str, tuple[str, tuple[str, ...]]], **extra: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(*args, **extra)
        self.sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options of each section, and one example of it."""
        rows = {one.name: record for one in self.get_params(ctx) if (record := one.get_help_record(ctx)) is not None}
        named = {name for _, names in self.sections.values() for name in names}
        rest = [record for name, record in rows.items() if name not in named]
        for number, (heading, (example, names)) in enumerate(self.sections.items(), 1):
            with formatter.section(heading):
                formatter.write_dl([rows[name] for name in names] + (rest if number == len(self.sections) else []))
                formatter.write_text(f"Example: {example}")
