"""``busbw gate``, ``busbw rules`` and ``busbw baseline``: pass or fail, with a known error rate."""

import json
import os
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from busbw.errors import StoreError, UsageError
from busbw.escape import echo, plain_text, render_lines
from busbw.runs import store
from busbw.runs.files import replaced, store_errors
from busbw.runs.records import JSON
from busbw.shared_options import FILE, as_json_option, peaks_option, results_dir_option
from busbw.system.catalog import catalogue
from busbw.units import clock_time, counted, parse_share
from busbw_analysis.assembly.judge import judge_with_selftest
from busbw_analysis.assembly.since import since_of
from busbw_analysis.cli import options
from busbw_analysis.data.as_json import plain
from busbw_analysis.data.load import Dataset, pool
from busbw_analysis.data.sources import find
from busbw_analysis.diagnosis.hypothesis_tests import fewest_launches, percent
from busbw_analysis.diagnosis.trust import count_tests, fewest_made
from busbw_analysis.gate import baselines, outputs
from busbw_analysis.gate.launch_tests import TWO_SIDED
from busbw_analysis.gate.metrics import Evidence
from busbw_analysis.gate.prolog import measured_here
from busbw_analysis.gate.rules import Rule, read_rules, with_usual
from busbw_analysis.gate.suggestion import suggested
from busbw_analysis.gate.verdicts import Gate, Since, gate_of

DETECT: Final = 0.1
"""The slowdown, as a share, that a gate without rules must be able to see, or what counts as equal if that is more."""
_NOTIFY_SECONDS: Final = 60
_SUMMARY: Final = "GITHUB_STEP_SUMMARY"


@click.command()
@click.argument("runs", metavar="[RUN...]", nargs=-1, shell_complete=options.names_of_runs)
@click.option(
    "--prolog",
    is_flag=True,
    help="Health check: measure this node for at most 30 s, without a network, and judge that run.",
)
@click.option("--rules", "rules_file", type=FILE, help="TOML file of rules; see busbw rules.")
@click.option("--baseline", metavar="NAME|RUN", help="Baseline (busbw baseline list), or a run, to compare with.")
@click.option(
    "--within",
    help="With --baseline: the slowdown that counts as equal; a slowdown of 10%, or of this if it is more, must be "
    "detectable.  [default: 5%]",
)
@click.option("--junit", type=FILE, help="Also write JUnit XML to this file.")
@click.option("--github", is_flag=True, help="Also print GitHub annotations and append to $GITHUB_STEP_SUMMARY.")
@click.option(
    "--notify-command",
    metavar="ARGV",
    help="Also run this command (split like a shell does, but without one), with the JSON on its standard input.",
)
@results_dir_option
@peaks_option
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
def gate(  # noqa: PLR0913 - click hands every option over by name
    *,
    runs: tuple[str, ...],
    prolog: bool,
    rules_file: Path | None,
    baseline: str | None,
    within: str | None,
    junit: Path | None,
    github: bool,
    notify_command: str | None,
    results_dir: Path,
    peaks_file: Path | None,
    as_json: bool,
) -> None:
    """Decide whether RUN... passes: by rules, by a baseline, or both. Several runs are pooled.

    A healthy machine whose runs differ no more than their launches fails less than 1 in 1,000 gates. With --baseline,
    no band of sizes may be slower than it, and no case may be missing, unless rules say otherwise. With --prolog, data
    must be right, no counter of errors may move, and no GPU or case may be missing, unless rules say otherwise. Exit
    status: 0 pass, 1 fail, 3 cannot tell, 2 not usable as asked.
    """
    if prolog == bool(runs):
        raise UsageError("give a RUN, or --prolog to measure this node; not both")
    notifier = _argv(notify_command)
    if junit is not None and not junit.absolute().parent.is_dir():
        raise UsageError(f"--junit {junit}: there is no folder {junit.parent}")
    with _without_verdict(notifier):
        rules = _rules(rules_file, baseline, within, alone=not prolog)
        before = None if baseline is None else _pooled(results_dir, _baseline_runs(results_dir, baseline))
        with measured_here() if prolog else nullcontext() as node:
            dataset = _pooled(results_dir, runs if node is None else (str(node.folder),))
            for notice in dataset.notices:
                echo(f"caution: {notice}", err=True)
            evidence = Evidence(judge_with_selftest(dataset, catalogue(peaks_file)), dataset, before)
            result = gate_of(rules if node is None else node.and_usual(rules, dataset.summaries), evidence)
            if node is not None:
                result = replace(result, gaps=(*result.gaps, *node.gaps(dataset.summaries)))
            else:
                result = replace(result, since=_since(result, evidence, results_dir, peaks_file))
    names = [stored.run.id for stored in dataset.runs]
    document = outputs.document(result, names, list(dict.fromkeys(dataset.facts.hosts)), baseline)
    line = json.dumps(plain(document), ensure_ascii=False, allow_nan=False)
    echo(line if as_json else render_lines(outputs.lines(result)))
    if junit is not None:
        with _warned("--junit"), store_errors("write", junit), replaced(junit) as file:
            file.write(outputs.junit(result))
    if github:
        for annotation in outputs.annotations(result):
            echo(annotation, err=as_json)
        _append_summary(outputs.summary(result, names))
    if notifier:
        _notify(notifier, line)
    click.get_current_context().exit(result.code)


def _since(result: Gate, evidence: Evidence, results_dir: Path, peaks_file: Path | None) -> Since | None:
    """Since when a gate fails; None unless it does, and knows a baseline."""
    run = evidence.measured.runs[-1].run
    if evidence.baseline is None or result.state != "fail" or run.imported is not None:
        return None
    return since_of(result, run, evidence.baseline, list(store.folders(results_dir)), catalogue(peaks_file))


def _rules(file: Path | None, baseline: str | None, within: str | None, *, alone: bool) -> Sequence[Rule]:
    """The rules of the file, and those of a baseline whose metrics the file does not have; ``alone``: there are no
    others.
    """
    own = () if file is None else read_rules(file)
    if baseline is None:
        if file is None and alone:
            raise UsageError(
                "nothing to judge by: give --rules FILE (busbw rules suggest writes one) or --baseline NAME"
            )
        if within is not None:
            raise UsageError("--within is how much slower than --baseline is equal; give a baseline")
        return own
    try:
        equal = parse_share(within or "5%")
    except UsageError as error:
        raise UsageError(f"--within {error}") from error
    of_baseline = (
        Rule(metric="ratio_to_baseline", at_most=f"{1 + equal:.6g}", detect=f"{max(DETECT, equal):.6g}"),
        Rule(metric="missing_cases", at_most="0"),
    )
    if within is not None and any(rule.metric == "ratio_to_baseline" for rule in own):
        raise UsageError("--within and a rule of ratio_to_baseline: give one of them")
    return with_usual(own, of_baseline)


def _baseline_runs(results_dir: Path, name: str) -> list[str]:
    """The runs of a baseline, or the run itself."""
    if baselines.is_name(results_dir, name):
        return [str(folder) for folder in baselines.read(results_dir, name).folders(results_dir)]
    try:
        logs = options.several(click.get_current_context(), name)
        find(results_dir, logs[0])
    except UsageError as error:
        known = ", ".join(baselines.names(results_dir)) or "none"
        raise UsageError(
            f"--baseline: no baseline of this name (known: {known}; busbw baseline set {name} RUN), and {error}",
            code=error.code,
        ) from error
    return [name]


def _pooled(results_dir: Path, runs: Sequence[str]) -> Dataset:
    return pool(options.read_runs(results_dir, runs), force=None)


def _argv(command: str | None) -> list[str]:
    """The words of a command. Raises UsageError for unbalanced quotes."""
    try:
        words = shlex.split(command or "")
    except ValueError as error:
        raise UsageError(f"--notify-command {command!r}: {error}") from error
    if command is not None and not words:
        raise UsageError("--notify-command is empty; give a command")
    return words


@contextmanager
def _without_verdict(notifier: Sequence[str]) -> Iterator[None]:
    """A notifier is told of an error, too: whoever waits for its word must not take silence for a pass."""
    try:
        with options.refused():
            yield
    except UsageError as error:
        if notifier:
            _notify(notifier, json.dumps({"check": outputs.CHECK, "healthy": None, "message": str(error)}))
        raise


@contextmanager
def _warned(option: str) -> Iterator[None]:
    """A file that cannot be written does not change the verdict's status: it says nothing about the machine."""
    try:
        yield
    except StoreError as error:
        echo(f"warning: {option}: {error}", err=True)


def _notify(argv: Sequence[str], line: str) -> None:
    """Run a notifier. Its failure is a warning: it says nothing about the machine."""
    try:
        done = subprocess.run(
            argv, input=f"{line}\n", capture_output=True, text=True, timeout=_NOTIFY_SECONDS, check=False
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        echo(f"warning: --notify-command: {error}", err=True)
        return
    if done.returncode:
        said = plain_text(done.stderr.strip())
        echo(f"warning: --notify-command: {argv[0]} ended with status {done.returncode}: {said}", err=True)


def _append_summary(text: str) -> None:
    path = os.environ.get(_SUMMARY)
    if not path:
        echo(f"warning: --github: ${_SUMMARY} is not set, so there is no job summary", err=True)
        return
    with _warned("--github"), store_errors("write", Path(path)), Path(path).open("a", encoding="utf-8") as file:
        file.write(text)


# --- rules ---------------------------------------------------------------------------------------------------------


@click.group()
def rules() -> None:
    """Check rules of a gate, or write them from healthy runs."""


@rules.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=options.names_of_runs)
@results_dir_option
@click.option("--output", type=FILE, help="File to write.  [default: standard output]")
def suggest(*, runs: tuple[str, ...], results_dir: Path, output: Path | None) -> None:
    """Write rules from 3 or more healthy RUN..., better 10.

    Runs of several days are best. A machine whose runs scatter like these fails the rules less than once in 1,000.
    """
    suggestion = suggested(_pooled(results_dir, runs))
    if output is None:
        echo(suggestion.text, nl=False)
    else:
        with store_errors("write", output), replaced(output) as file:
            file.write(suggestion.text.encode())
    more = "" if suggestion.needed in {None, suggestion.runs} else f"; with {suggestion.needed} runs up to 10 %"
    echo(
        f"{counted(len(suggestion.rules), 'rule')} from {suggestion.runs} runs; slowdowns up to "
        f"{percent(suggestion.smallest)} can pass the widest{more}",
        err=True,
    )


@rules.command()
@click.argument("file", metavar="FILE", type=FILE)
def check(*, file: Path) -> None:
    """Say what the rules in FILE mean, or every mistake in it."""
    rules = read_rules(file)
    if not rules:
        raise UsageError(f"{file} has no [[rule]]")
    for rule in rules:
        name = "" if rule.name is None else f"{rule.name}: "
        echo(plain_text(f"{name}{rule.meaning} (severity {rule.severity})"))


# --- baselines -----------------------------------------------------------------------------------------------------


@click.group()
def baseline() -> None:
    """Name runs that later ones are compared with: busbw gate RUN --baseline NAME."""


@baseline.command("set")
@click.argument("name", metavar="NAME")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=options.names_of_runs)
@results_dir_option
@click.option("--replace", is_flag=True, help="Replace a baseline that exists.")
def set_(*, name: str, runs: tuple[str, ...], results_dir: Path, replace: bool) -> None:
    """Make RUN... the baseline NAME. Runs of another machine or with other settings are refused."""
    dataset = _pooled(results_dir, runs)
    if any(stored.run.imported is not None and not stored.path.is_dir() for stored in dataset.runs):
        raise UsageError("a baseline needs stored runs; store the log with busbw import first")
    path = baselines.write(results_dir, name, baselines.baseline_of(dataset.runs, results_dir), replace=replace)
    echo(str(path))
    launches = fewest_made(dataset.summaries)
    fewest = fewest_launches(count_tests(dataset.summaries), paired=False, level=TWO_SIDED)
    if launches < fewest:
        alone = ", which has no interval between launches" if launches == 1 else ""
        echo(
            f"caution: this baseline has {counted(launches, 'launch', 'launches')} of a case{alone}: a run of as many "
            f"cannot be found slower. Give more runs, or measure this and later ones with --launches {fewest} or more",
            err=True,
        )


@baseline.command("list")
@results_dir_option
@as_json_option
def list_(*, results_dir: Path, as_json: bool) -> None:
    """List the baselines."""
    rows = {}
    for name in baselines.names(results_dir):
        try:
            rows[name] = baselines.read(results_dir, name)
        except StoreError as error:
            echo(f"busbw: baseline {name} is left out: {plain_text(str(error))}", err=True)
    if as_json:
        options.print_json([{"name": name, **plain_baseline(row)} for name, row in rows.items()])
    elif not baselines.names(results_dir):
        echo(f"no baselines in {plain_text(str(results_dir))}", err=True)
    for name, row in rows.items() if not as_json else ():
        launches = sum(run.launches for run in row.runs)
        many = f"{counted(len(row.runs), 'run')}, {counted(launches, 'launch', 'launches')}"
        echo(plain_text(f"{name}: {many}, machine {row.machine}, set {clock_time(row.set)}"))


def plain_baseline(row: baselines.Baseline) -> dict[str, JSON]:
    """A baseline as JSON."""
    return {**plain(row), "runs": [plain(run) for run in row.runs]}


@baseline.command("show")
@click.argument("name", metavar="NAME")
@results_dir_option
@as_json_option
def show(*, name: str, results_dir: Path, as_json: bool) -> None:
    """Print the runs of the baseline NAME.

    Also what must be equal in a run that is compared with it.
    """
    row = baselines.read(results_dir, name)
    if as_json:
        options.print_json({"name": name, **plain_baseline(row)})
        return
    runs = [("run", f"{run.id}, {counted(run.launches, 'launch', 'launches')}") for run in row.runs]
    echo(render_lines([("set", clock_time(row.set)), *runs, *row.facts.items()]))


@baseline.command("remove")
@click.argument("name", metavar="NAME")
@results_dir_option
def remove(*, name: str, results_dir: Path) -> None:
    """Remove the baseline NAME, but not its runs."""
    baselines.remove(results_dir, name)
