"""What several commands of the analysis are given, and how they print JSON."""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, get_args

import click

from busbw.escape import echo
from busbw.ops import limits
from busbw.runs import store
from busbw.runs.records import JSON
from busbw.system.catalog import VARIABLE
from busbw_analysis.data.as_json import plain
from busbw_analysis.data.imported import LogFacts
from busbw_analysis.data.sources import read_all

Command = Callable[..., None]
Option = Callable[[Command], Command]

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


FILE = click.Path(path_type=Path, dir_okay=False)


def run_option(flag: str, words: str, name: str = "run", **how: Any) -> Option:  # noqa: ANN401 - click's own
    """``flag RUN``, for what ``words`` say."""
    return click.option(flag, name, metavar="RUN", shell_complete=names_of_runs, help=words, **how)


def choice_option(flag: str, allowed: object, default: str | None, words: str) -> Option:
    """One word of the Literal that is ``allowed``."""
    return click.option(flag, type=click.Choice(get_args(allowed)), default=default, show_default=True, help=words)


def with_options(command: Command, options: Sequence[Option]) -> Command:
    """``command`` with these options, in the order of its help."""
    return reduce(lambda made, option: option(made), reversed(options), command)


_FACTS = "busbw.log-facts"
_LOG_OPTIONS: dict[str, tuple[str, dict[str, Any], str]] = {
    "reader": (
        "--format",
        {"metavar": "NAME"},
        "Of a log, such as nccl-tests or perftest.  [default: what it is recognised as]",
    ),
    "op": ("--op", {}, "Operation of a log that names none."),
    "ranks": ("--ranks", {"type": click.IntRange(1, limits.MOST_RANKS)}, "Ranks of a log that tells none."),
    "hosts": ("--hosts", {"type": click.IntRange(1)}, "Hosts of a log that names none."),
    "gpu": ("--gpu", {}, "GPU of a log that names none, such as 'H100 SXM5' (busbw peaks)."),
    "nics": ("--nics", {}, "What leaves each host of a log, such as 8x400Gb/s."),
    "size": ("--size", {}, "Of each copy in a log that tells none."),
    "machine": ("--machine", {}, "Name of the machine of a log."),
}
"""Field of ``LogFacts`` → option, how click takes it, help."""


def _keep_fact(context: click.Context, parameter: click.Parameter, value: Any) -> None:  # noqa: ANN401 - click's own
    context.meta.setdefault(_FACTS, {})[parameter.name] = value


def log_options(*wanted: str) -> Option:
    """What may be said of logs; each field of ``LogFacts`` unless some are ``wanted``. ``read_runs`` takes it."""
    options = [
        click.option(name, field, expose_value=False, callback=_keep_fact, help=words, **how)
        for field, (name, how, words) in _LOG_OPTIONS.items()
        if not wanted or field in wanted
    ]
    return lambda command: with_options(command, options)


def log_facts() -> LogFacts:
    """What the user said of logs."""
    return LogFacts(**click.get_current_context().meta.get(_FACTS, {}))


def read_runs(results_dir: Path, runs: Iterable[str]) -> list[store.StoredRun]:
    """What each of ``runs`` means, read; raises BusbwError."""
    return read_all(results_dir, runs, log_facts())


def run_options(command: Command) -> Command:
    """What every command of the analysis is given: RUN…, where runs are kept, whether unlike ones may be pooled, and a
    file of own peaks.
    """
    words = f"A TOML file of your own peaks.  [default: ${VARIABLE}, else ~/.config/busbw/peaks.toml]"
    options: list[Option] = [
        click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=names_of_runs),
        results_dir_option,
        click.option("--force", is_flag=True, help="Pool runs even though their machines or settings differ."),
        click.option("--peaks", "peaks_file", type=FILE, help=words),
        log_options(),
    ]
    return with_options(command, options)


as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


def print_json(document: JSON) -> None:
    """``document`` on stdout, strictly JSON."""
    echo(json.dumps(plain(document), indent=2, ensure_ascii=False, allow_nan=False))
