"""``busbw import`` and ``busbw export``: convert logs of other tools to runs, and runs to formats of other tools."""

import shutil
from functools import partial
from pathlib import Path

import click
import msgspec

from busbw.errors import LogError, StoreError, UsageError, refuse_unknown
from busbw.escape import echo, plain_text
from busbw.runs import store
from busbw.runs.files import replaced
from busbw.runs.plan import check_label
from busbw.shared_options import FILE, results_dir_option
from busbw_analysis.assembly.judge import judgement_of
from busbw_analysis.cli.options import each_log, log_facts, log_options, parsed, read_runs, run_options
from busbw_analysis.data.imported import LogFacts
from busbw_analysis.data.load import pool
from busbw_analysis.data.sources import BESIDE, STANDARD_INPUT, find, without_copies
from busbw_analysis.history.engine import engine_of


@click.command("import")
@click.argument("logs", metavar="LOG...", nargs=-1, required=True, callback=each_log)
@log_options()
@click.option(
    "--label",
    callback=parsed(check_label),
    help="Word that tells these runs from others in lists, tables and comparisons.",
)
@results_dir_option
def import_(*, logs: tuple[str, ...], label: str | None, results_dir: Path) -> None:
    """Store each LOG of another tool, or in a folder or archive, as a run with a copy of the log; print its folder.

    All logs are read before anything is written. Beside others, logs of trainings or without results are left out.
    """
    paths = [Path(log) for log in logs]
    if STANDARD_INPUT in paths:
        raise UsageError("standard input cannot be copied into the run; give a file")
    with engine_of(None) as engine:
        read = dict(zip(paths, engine.map(partial(_read_or_code, results_dir, log_facts()), paths), strict=True))
    runs = {path: run for path, run in read.items() if not isinstance(run, str)}
    for path in [] if runs else paths:
        read_log(results_dir, log_facts(), path)
    unfit = next((path for path, run in runs.items() if run.run.imported is None), None)
    if unfit is not None:
        raise UsageError(f"{unfit} is already a run; import takes logs of other tools")
    for path, code in read.items():
        if isinstance(code, str):
            echo(f"busbw: {plain_text(str(path))}: no results of a benchmark ({code}); it is left out", err=True)
    for (path, run), kept in zip(runs.items(), without_copies(runs.values()), strict=True):
        if kept:
            echo(str(_keep(path, run, results_dir, label)))


def _read_or_code(results_dir: Path, facts: LogFacts, path: Path) -> store.StoredRun | str:
    """The run of a log, or why it has no results where others have: a code in ``BESIDE``."""
    try:
        return read_log(results_dir, facts, path)
    except LogError as error:
        if error.code in BESIDE:
            return str(error.code)
        raise


def read_log(results_dir: Path, facts: LogFacts, path: Path) -> store.StoredRun:
    """The run of a log; for ``Engine.map``."""
    return find(results_dir, str(path)).read(facts).stored


def _keep(path: Path, stored: store.StoredRun, results_dir: Path, label: str | None) -> Path:
    """Write a run that was read from the log at ``path``, with a copy of the log; under ``label``."""
    folder = store.create(results_dir, stored.run.machine)
    try:
        shutil.copyfile(path, folder / f"original-{path.name}")
    except OSError as error:
        raise StoreError(f"cannot copy {path} into {folder}: {error.strerror}") from error
    store.write_run(
        folder,
        msgspec.structs.replace(stored.run, id=folder.name, plan=msgspec.structs.replace(stored.run.plan, label=label)),
    )
    with store.Appender(folder) as appender:
        for row in stored.rows:
            appender.append(row)
    return folder


@click.command("export")
@run_options
@click.option(
    "--to",
    "form",
    metavar="FORMAT",
    help="Output format: nccl-tests, osu, csv, json-lines, parquet, openmetrics, trace or markdown.",
)
@click.option("--samples", is_flag=True, help="One row per sample instead of one per case (csv, json-lines, parquet).")
@click.option("--output", type=FILE, help="Output file.  [default: standard output]")
def export(
    *,
    runs: tuple[str, ...],
    results_dir: Path,
    peaks_file: Path | None,
    force: bool,
    form: str | None,
    samples: bool,
    output: Path | None,
) -> None:
    """Convert RUN... to a format of other programs: nccl-tests or OSU tables, tidy data, metrics or a Markdown report.

    RUN is a run folder, the start or end of a run's name, "latest", or a log of another tool.
    """
    from busbw_analysis.export import EXPORTERS  # noqa: PLC0415 - the report is loaded with it

    if form is None:
        for run in runs:
            find(results_dir, run)
        written = log_facts().reader
        instead = "" if written is None else f"; --format {written} only selects how a log is read"
        raise UsageError(f"--to is missing: give the output format, one of {', '.join(EXPORTERS)}{instead}")
    if form not in EXPORTERS:
        refuse_unknown("format", form, EXPORTERS)
    exporter = EXPORTERS[form]
    if exporter.binary and output is None:
        raise UsageError(f"{form} is a binary format; give a file with --output", code="no-output")
    if not samples:
        content = exporter.cases(judgement_of(runs, results_dir, peaks_file, force=force, facts=log_facts()))
    elif exporter.samples is not None:
        content = exporter.samples(pool(read_runs(results_dir, runs), force=force).samples)
    else:
        with_samples = ", ".join(name for name, exporter in EXPORTERS.items() if exporter.samples is not None)
        raise UsageError(f"{form} cannot hold samples; use one of {with_samples}")
    if output is None:
        echo(content.decode(), nl=False)
        return
    try:
        with replaced(output) as file:
            file.write(content)
    except OSError as error:
        raise StoreError(f"cannot write {output}: {error.strerror}") from error
