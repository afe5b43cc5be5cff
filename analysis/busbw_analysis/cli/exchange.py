"""``busbw import`` and ``busbw export``: logs of other tools become runs, and runs what other tools read."""

import shutil
from pathlib import Path

import click
import msgspec

from busbw.errors import StoreError, UsageError, refuse_unknown
from busbw.escape import echo
from busbw.runs import store
from busbw_analysis.cli.options import FILE, log_facts, log_options, read_runs, results_dir_option, run_options
from busbw_analysis.data.load import pool
from busbw_analysis.data.sources import STANDARD_INPUT, find
from busbw_analysis.diagnosis.judge import judgement_of


@click.command("import")
@click.argument("logs", metavar="LOG...", nargs=-1, required=True, type=FILE)
@log_options()
@results_dir_option
def import_(*, logs: tuple[Path, ...], results_dir: Path) -> None:
    """Keep each LOG of another tool as a run, with the log beside it, and print where.

    All logs are read before anything is written.
    """
    if STANDARD_INPUT in logs:
        raise UsageError("standard input is read once and cannot be kept beside the run; give a file")
    runs = [find(results_dir, str(path)).read(log_facts()) for path in logs]
    unfit = next((path for path, run in zip(logs, runs, strict=True) if run.run.imported is None), None)
    if unfit is not None:
        raise UsageError(f"{unfit} is a run already")
    for path, run in zip(logs, runs, strict=True):
        echo(str(_keep(path, run, results_dir)))


def _keep(path: Path, stored: store.StoredRun, results_dir: Path) -> Path:
    """Write a run that was read from the log at ``path``, and the log."""
    folder = store.create(results_dir, stored.run.machine)
    try:
        shutil.copyfile(path, folder / f"original-{path.name}")
    except OSError as error:
        raise StoreError(f"cannot copy {path} into {folder}: {error.strerror}") from error
    store.write_run(folder, msgspec.structs.replace(stored.run, id=folder.name))
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
    help="What is written: nccl-tests, osu, csv, json-lines, parquet, openmetrics, trace or markdown.",
)
@click.option("--samples", is_flag=True, help="One row a sample, not one a case: csv, json-lines, parquet.")
@click.option("--output", type=FILE, help="The file.  [default: standard output]")
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
    """Write RUN... as other programs read it: tables of nccl-tests or OSU, tidy data, metrics, the report as Markdown.

    RUN is a run folder, the start or end of a run's name, "latest", or a log of another tool.
    """
    from busbw_analysis.export import EXPORTERS  # noqa: PLC0415 - the report is loaded with it

    if form is None:
        written = log_facts().reader
        instead = "" if written is None else f"; --format {written} says how a log is read"
        raise UsageError(f"say with --to what is written: {', '.join(EXPORTERS)}{instead}")
    if form not in EXPORTERS:
        refuse_unknown("format", form, EXPORTERS)
    exporter = EXPORTERS[form]
    if exporter.binary and output is None:
        raise UsageError(f"{form} is no text; say with --output which file it goes to", code="no-output")
    if not samples:
        content = exporter.cases(judgement_of(runs, results_dir, peaks_file, force=force, facts=log_facts()))
    elif exporter.samples is not None:
        content = exporter.samples(pool(read_runs(results_dir, runs), force=force))
    else:
        having = ", ".join(name for name, one in EXPORTERS.items() if one.samples is not None)
        raise UsageError(f"{form} has no place for samples; {having} have")
    if output is None:
        echo(content.decode(), nl=False)
        return
    draft = output.with_name(f".{output.name}.draft")
    try:
        draft.write_bytes(content)
        draft.replace(output)
    except OSError as error:
        raise StoreError(f"cannot write {output}: {error.strerror}") from error
