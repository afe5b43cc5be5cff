"""Options that several analysis commands share, and their output."""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
from click.core import ParameterSource

from busbw.errors import BusbwError, StoreError, UsageError
from busbw.escape import echo, echo_toned
from busbw.key_values import Key, written
from busbw.ops import limits
from busbw.runs import files, store
from busbw.runs.records import JSON
from busbw.shared_options import FILE, peaks_option, results_dir_option
from busbw_analysis.data.as_json import plain
from busbw_analysis.report.document import Block, Paragraph
from busbw_analysis.report.to_terminal import render

if TYPE_CHECKING:  # what reads runs and logs takes as long to load as the history of thousands of runs
    from busbw_analysis.data.imported import LogFacts
    from busbw_analysis.data.kept import Summarised

Command = Callable[..., None]
Option = Callable[[Command], Command]


def names_of_runs(context: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    """Shell completions for RUN: ``latest`` and the names of the stored runs."""
    results_dir = Path(context.params.get("results_dir") or store.usual_results_dir())
    with suppress(StoreError):  # whoever presses Tab wants no message
        names = ["latest", *(folder.name for folder in store.folders(results_dir))]
        return [name for name in names if name.startswith(typed)]
    return []


def run_option(flag: str, words: str, name: str = "run", **how: Any) -> Option:  # noqa: ANN401 - click's own
    """An option ``flag RUN`` with the help text ``words``."""
    return click.option(flag, name, metavar="RUN", shell_complete=names_of_runs, help=words, **how)


def choice_option(flag: str, allowed: object, default: str | None, words: str) -> Option:
    """An option whose choices are the values of the Literal ``allowed``."""
    return click.option(flag, type=click.Choice(get_args(allowed)), default=default, show_default=True, help=words)


def parsed(parse: Callable[[Any], Any]) -> Callable[..., Any]:
    """A callback that reads a text before click asks for options that are missing; None if it was not given."""
    return lambda _context, _parameter, text: None if text is None else parse(text)


def given(without: Collection[str]) -> Iterator[list[str]]:
    """The words of each option of the command line, except those of the parameters ``without``."""
    context = click.get_current_context()
    values = {**context.meta.get(_FACTS, {}), **context.params}
    for parameter in context.command.params:
        name = parameter.name or ""
        if name not in without and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            yield parameter.opts[:1] + ([] if values[name] is True else [str(values[name])])


def with_options(command: Command, options: Sequence[Option]) -> Command:
    """``command`` with ``options``, listed in this order in its help."""
    return reduce(lambda decorated, option: option(decorated), reversed(options), command)


_FACTS = "busbw.log-facts"
_UNPACKED = "busbw.unpacked"
_LOG_OPTIONS: dict[str, tuple[str, dict[str, Any], str]] = {
    "reader": ("--format", {"metavar": "NAME"}, "Logs only: format, such as perftest.  [default: detected]"),
    "op": ("--op", {}, "Logs only: operation, if the log does not name it."),
    "ranks": ("--ranks", {"type": click.IntRange(1, limits.MOST_RANKS)}, "Logs only: number of ranks, if missing."),
    "hosts": ("--hosts", {"type": click.IntRange(1)}, "Logs only: number of hosts, if missing."),
    "gpu": ("--gpu", {}, "Logs only: GPU, if the log does not name it, such as 'H100 SXM5' (busbw peaks)."),
    "nics": (
        "--nics",
        {},
        "Logs only: NICs of each host: '8x4X NDR', number x name (names and rates: busbw peaks), or 8x400Gb/s.",
    ),
    "size": ("--size", {}, "Logs only: size of each copy, if the log does not contain it."),
    "machine": ("--machine", {}, "Logs only: name of the machine."),
}
"""Field of ``LogFacts`` → option name, arguments for click, help text."""


def _keep_fact(context: click.Context, parameter: click.Parameter, value: Any) -> None:  # noqa: ANN401 - click's own
    context.meta.setdefault(_FACTS, {})[parameter.name] = value


def log_options(*fields: str) -> Option:
    """Options that describe logs: the ``fields`` of ``LogFacts``, or all. ``read_runs`` uses their values."""
    options = [
        click.option(name, field, expose_value=False, callback=_keep_fact, help=words, **how)
        for field, (name, how, words) in _LOG_OPTIONS.items()
        if not fields or field in fields
    ]
    return lambda command: with_options(command, options)


def log_facts() -> "LogFacts":
    """The values of ``log_options`` that the user gave. Raises UsageError for unknown hardware."""
    from busbw.system.catalog import catalogue  # noqa: PLC0415
    from busbw_analysis.data.imported import LogFacts  # noqa: PLC0415

    context = click.get_current_context()
    given = context.meta.get(_FACTS, {})
    named = any(given.get(name) is not None for name in ("gpu", "nics"))
    return LogFacts.stated(given, catalogue(context.params.get("peaks_file"))) if named else LogFacts(**given)


def read_runs(results_dir: Path, runs: Iterable[str]) -> "list[Summarised]":
    """Find and read each of ``runs``, of a folder or archive of logs all of them; raises BusbwError."""
    (read,) = read_sides(results_dir, runs)
    return read


def read_sides(results_dir: Path, *sides: Iterable[str]) -> "tuple[list[Summarised], ...]":
    """``read_runs`` for each of several sides."""
    from busbw_analysis.data import sources  # noqa: PLC0415

    context = click.get_current_context()
    logs = [[log for run in side for log in several(context, run)] for side in sides]
    return sources.read_sides(results_dir, logs, log_facts())


@contextmanager
def refused() -> Iterator[None]:
    """An error of what is read, such as a damaged run, has status 2: 1 would look like a verdict."""
    try:
        yield
    except UsageError:
        raise
    except BusbwError as error:
        raise UsageError(str(error), code=error.code) from error


def each_log(context: click.Context, _parameter: click.Parameter, runs: tuple[str, ...]) -> tuple[str, ...]:
    """The runs, with a folder or archive of logs as its logs."""
    return tuple(log for run in runs for log in several(context, run))


def several(context: click.Context, run: str) -> tuple[str, ...]:
    """A run, or the logs of a folder or archive; what is unpacked is removed at the end of the command."""
    from busbw_analysis.data.sources import logs_in  # noqa: PLC0415

    def unpacked() -> Path:
        folder = context.with_resource(files.temporary_folder("busbw-logs-"))
        context.meta.setdefault(_UNPACKED, {})[folder] = Path(run)
        return folder

    return logs_in(run, unpacked)


def lasting(folder: Path) -> Path:
    """``folder``, or that of the archive which it was unpacked from."""
    unpacked: dict[Path, Path] = click.get_current_context().meta.get(_UNPACKED, {})
    return next((archive.parent for base, archive in unpacked.items() if folder.is_relative_to(base)), folder)


def run_options(command: Command) -> Command:
    """Options of most analysis commands: RUN…, the results folder, --force, --peaks and the log options."""
    options: list[Option] = [
        click.argument(
            "runs", metavar="[RUN]...", nargs=-1, default=("latest",), callback=each_log, shell_complete=names_of_runs
        ),
        results_dir_option,
        click.option("--force", is_flag=True, help="Pool runs even if their machines or settings differ."),
        peaks_option,
        log_options(),
    ]
    return with_options(command, options)


class WithKeys(click.Command):
    """A command whose help lists the keys of its options: flag → key → its meaning."""

    def __init__(self, *args: Any, keys: Mapping[str, Mapping[str, Key]], **extra: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(*args, **extra)
        self.keys = keys

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, and then the keys of each list."""
        super().format_options(ctx, formatter)
        for flag, keys in self.keys.items():
            with formatter.section(f"Keys of {flag}"):
                formatter.write_dl(
                    [
                        (f"{written(name)}=…", f"{key.help}  [default: {key.default}]" if key.default else key.help)
                        for name, key in keys.items()
                    ]
                )


plot_option = click.option("--plot", type=FILE, help="Plot to this file (.svg, .png or .pdf).")


def print_json(document: JSON) -> None:
    """Print ``document`` to stdout as strict JSON (no NaN)."""
    echo(json.dumps(plain(document), indent=2, ensure_ascii=False, allow_nan=False))


def print_answer(headline: str, document: dict[str, JSON], shown: Iterable[Block], *, as_json: bool) -> None:
    """Print a headline, bold on a terminal, and ``shown``; or ``document`` as JSON."""
    if as_json:
        print_json({"headline": headline, **document})
        return
    echo_toned(([(line, "plain")] for line in render([Paragraph(headline)]).splitlines()), bold=True)
    if blocks := [*shown]:
        echo(f"\n{render(blocks)}")
