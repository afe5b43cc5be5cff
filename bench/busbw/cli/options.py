"""Options that several commands share, and commands whose help is divided into sections."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any

import click


def _names(_context: click.Context, _parameter: click.Parameter, given: str | None) -> tuple[str, ...] | None:
    """Callback that splits a comma-separated list: ``all_reduce, barrier`` → ``("all_reduce", "barrier")``."""
    return None if given is None else tuple(name.strip() for name in given.split(","))


def option(
    declared: str,
    text: str,
    kind: "click.ParamType[Any] | type | Callable[[str], object] | None" = None,
    **how: Any,  # noqa: ANN401 - click's own
) -> click.Option:
    """A click option: ``declared`` are its names, separated by blanks; ``text`` is its help."""
    return click.Option(declared.split(), help=text, type=kind, **how)


listed = partial(option, callback=_names)
"""An option that takes a comma-separated list of names."""


class Section:
    """A group of options under a ``heading`` in the help of a command, followed by an ``example``."""

    def __init__(self, heading: str, example: str, *options: click.Option) -> None:
        self.heading, self.example, self.options = heading, example, options


class Sectioned(click.Command):
    """A command whose help lists its options in sections. Options of no section, such as ``--help``, are listed in the
    last one.
    """

    def __init__(self, *args: Any, sections: Sequence[Section], **extra: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(*args, **extra)
        self.sections = sections
        self.params[:0] = [member for section in sections for member in section.options]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options and the example of each section."""
        params = iter(self.get_params(ctx))
        for section in self.sections:
            shown = list(params if section is self.sections[-1] else islice(params, len(section.options)))
            with formatter.section(section.heading):
                formatter.write_dl([record for param in shown if (record := param.get_help_record(ctx)) is not None])
                formatter.write_text(f"Example: {section.example}")
