"""Options that several commands have."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
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


def _names(_context: click.Context, _parameter: click.Parameter, given: str | None) -> tuple[str, ...] | None:
    """``all_reduce, barrier`` → ``("all_reduce", "barrier")``: the callback of an option that takes several names."""
    return None if given is None else tuple(name.strip() for name in given.split(","))


def option(
    declared: str,
    words: str,
    kind: "click.ParamType[Any] | type | None" = None,
    **how: Any,  # noqa: ANN401 - click's own
) -> click.Option:
    """An option as it is ``declared`` to click, with blanks between; ``words`` are its help."""
    return click.Option(declared.split(), help=words, type=kind, **how)


listed = partial(option, callback=_names)
"""An option that takes several names."""


class Section:
    """Options that belong together in the help of a command, which ends with an ``example`` of them."""

    def __init__(self, heading: str, example: str, *options: click.Option) -> None:
        self.heading, self.example, self.options = heading, example, options


class Sectioned(click.Command):
    """A command whose options are listed by what they are for, in its help and where they are written. What is in no
    section, such as ``--help``, stands in the last one.
    """

    def __init__(self, *args: Any, sections: Sequence[Section], **extra: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(*args, **extra)
        self.sections = sections
        self.params[:0] = [one for section in sections for one in section.options]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options of each section, and one example of it."""
        params = iter(self.get_params(ctx))
        for section in self.sections:
            shown = list(params if section is self.sections[-1] else islice(params, len(section.options)))
            with formatter.section(section.heading):
                formatter.write_dl([record for one in shown if (record := one.get_help_record(ctx)) is not None])
                formatter.write_text(f"Example: {section.example}")
