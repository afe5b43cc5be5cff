"""The commands of the analysis: find the runs, judge them, print. ``busbw.cli.main`` loads this module by name."""

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar, get_args

import click

from busbw.errors import UsageError
from busbw.escape import echo
from busbw.runs import store
from busbw.runs.records import JSON
from busbw.system.catalog import VARIABLE, Catalogue, catalogue
from busbw_analysis.data.load import Dataset, load, read
from busbw_analysis.diagnosis.algorithms import races_of
from busbw_analysis.diagnosis.compare import FAILURES
from busbw_analysis.diagnosis.compare import compare as compare_sides
from busbw_analysis.diagnosis.judge import Judgement, Severity, judge
from busbw_analysis.diagnosis.selftest import selftest_for
from busbw_analysis.models.choices import library_of_run
from busbw_analysis.predict.joint_fits import joint_fits_of
from busbw_analysis.predict.selection import read_groups
from busbw_analysis.report import to_json
from busbw_analysis.report.tables import compare as compare_tables
from busbw_analysis.report.tables import joint_fits, nccl
from busbw_analysis.report.tables import show as tables
from busbw_analysis.report.tables.crossovers import crossing_rows, crossing_text
from busbw_analysis.report.tables.layout import Row

_Command = TypeVar("_Command", bound=Callable[..., None])


results_dir_option = click.option(
    "--results-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("results"),
    show_default=True,
    envvar="BUSBW_RESULTS_DIR",
    help="Where runs are kept.",
)


def run_options(command: _Command) -> _Command:
    """What every command of the analysis is given: RUN…, where runs are kept, whether unlike ones may be pooled, and a
    file of own peaks.
    """
    for decorate in (
        click.option(
            "--peaks",
            "peaks_file",
            type=click.Path(path_type=Path, dir_okay=False),
            help=f"A TOML file of your own peaks.  [default: ${VARIABLE}, else ~/.config/busbw/peaks.toml]",
        ),
        click.option("--force", is_flag=True, help="Pool runs even though their machines or settings differ."),
        results_dir_option,
        click.argument("runs", metavar="RUN...", nargs=-1, required=True),
    ):
        command = decorate(command)
    return command


as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


def judgement_of(runs: Sequence[str], results_dir: Path, peaks_file: Path | None, *, force: bool) -> Judgement:
    """The judgement of the runs that ``runs`` mean (paths, names, or ``latest``), pooled."""
    rows = catalogue(peaks_file)
    return _judged(load([store.find(results_dir, run) for run in runs], force=force), rows)


def _judged(dataset: Dataset, rows: Catalogue) -> Judgement:
    first = dataset.runs[0]
    backend = first.run.cases[0].backend if first.run.cases else ""
    began = max(stored.run.started for stored in dataset.runs)
    return judge(dataset, selftest_for(first.path.parent, backend, len(first.run.hosts), began), rows)


@click.command()
@run_options
@as_json_option
def show(*, runs: tuple[str, ...], results_dir: Path, peaks_file: Path | None, force: bool, as_json: bool) -> None:
    """Print the table of RUN...: every case with its rate, interval, skew and share of the peak.

    RUN is a run folder, the start or end of a run's name, or "latest". Several runs are pooled.
    """
    judgement = judgement_of(runs, results_dir, peaks_file, force=force)
    rows = tables.show_rows(judgement)
    document: dict[str, JSON] = {"best": to_json.plain(judgement.best), "cases": [*rows]}
    _print([judgement], document, tables.show_text(rows, judgement.best), as_json=as_json)


@click.command()
@run_options
@as_json_option
def fit(*, runs: tuple[str, ...], results_dir: Path, peaks_file: Path | None, force: bool, as_json: bool) -> None:
    """Fit time over size for every curve of RUN..., and one set of parameters for all of them together.

    RUN is a run folder, the start or end of a run's name, or "latest". Runs of the same number of ranks are pooled;
    those of different numbers stand beside each other, which tells more of what the parameters are.
    """
    catalogued = catalogue(peaks_file)
    datasets = read_groups([read(store.find(results_dir, run)) for run in runs], force=force)
    judgements = [_judged(dataset, catalogued) for dataset in datasets]
    rows = _told_apart(judgements, tables.fit_rows)
    regimes = joint_fits_of(datasets, [judgement.cases for judgement in judgements])
    joint = joint_fits.joint_rows(regimes)
    chosen = _told_apart(judgements, lambda judgement: nccl.nccl_rows(judgement, catalogued))
    crossed = _told_apart(
        judgements,
        lambda judgement: crossing_rows(races_of(judgement.curves, library_of_run(judgement.dataset), regimes)),
    )
    parts = [
        tables.fit_text(rows),
        nccl.nccl_text(chosen),
        crossing_text(crossed),
    ]
    text = "\n\n".join(part for part in [*parts, joint_fits.joint_text(joint) if joint else ""] if part)
    document: dict[str, JSON] = {
        "fits": rows,
        "nccl": chosen,
        "joint": joint,
        "crossings": crossed,
    }
    _print(judgements, document, text, as_json=as_json)


def _told_apart(judgements: Sequence[Judgement], rows_of: Callable[[Judgement], list[Row]]) -> list[Row]:
    """The rows of all ``judgements``, which differ in ranks or hosts, each with its ``runs``. A curve that several of
    them have under one name, as messages between two ranks, has behind it of how many ranks its run was.
    """
    tables_of = [rows_of(judgement) for judgement in judgements]
    counts = Counter(name for rows in tables_of for name in {row["curve"] for row in rows})
    told: list[Row] = []
    for judgement, rows in zip(judgements, tables_of, strict=True):
        runs: list[JSON] = [stored.run.id for stored in judgement.dataset.runs]
        hosts = judgement.dataset.runs[0].run.hosts
        several = f" on {len(set(hosts))} hosts" if len(set(hosts)) > 1 else ""
        world = f" of a run of {len(hosts)}{several}"
        for row in rows:
            name = row["curve"]
            told.append({**row, "curve": f"{name}{world}" if counts[name] > 1 else name, "runs": runs})
    return told


@click.command()
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--within", default="5%", show_default=True, help="Differences inside ± this share are called equal.")
@click.option("--paired", is_flag=True, help="Compare neighbouring launches, which were taken in turns (A B B A …).")
@click.option(
    "--fail-on",
    type=click.Choice(FAILURES),
    multiple=True,
    help="Exit 1 when a band is slower, when one cannot be told, or when a case of A has no result in B; 2 when there "
    "are too few launches for that to happen.",
)
@results_dir_option
@click.option("--force", is_flag=True, help="Compare although machines or settings differ; say what differs.")
@as_json_option
def compare(
    *,
    first: str,
    second: str,
    within: str,
    paired: bool,
    fail_on: tuple[str, ...],
    results_dir: Path,
    force: bool,
    as_json: bool,
) -> None:
    """Hold B against A, launch by launch: per op and band of sizes faster, slower, equal, or cannot tell.

    A and B are runs (a folder, the start or end of a name, "latest"), or several with commas between, which are pooled.
    Exit status: 0, or with --fail-on 1 when it holds and 2 when it could not have.
    """
    margin = _share(within)
    sides = [load([store.find(results_dir, run) for run in _several(side)], force=force) for side in (first, second)]
    comparison = compare_sides(*sides, within=margin, paired=paired, force=force)
    gate = comparison.gate(fail_on)
    if as_json:
        document = compare_tables.document(comparison, gate)
        echo(json.dumps(_strict(document), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        for notice in comparison.notices:
            echo(f"caution: {notice}", err=True)
        for line in compare_tables.incomplete_lines(comparison):
            echo(f"caution: {line}", err=True)
        for line in compare_tables.left_out_lines(comparison):
            echo(line, err=True)
        echo(compare_tables.text(comparison))
    for line in compare_tables.gate_lines(comparison, gate):
        echo(f"busbw: --fail-on {' '.join(fail_on)}: {line}", err=True)
    if gate.code:
        click.get_current_context().exit(gate.code)


def _several(side: str) -> list[str]:
    names = [name.strip() for name in side.split(",")]
    if not all(names):
        message = f"{side!r} is no list of runs; want one run, or several with commas between"
        raise UsageError(message)
    return names


def _share(text: str) -> float:
    """``5%`` or ``0.05`` as a fraction. Raises UsageError for anything else, and for what is not within (0, 1)."""
    number = text.strip().removesuffix("%")
    try:
        share = float(number) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 < share < 1:
        message = (
            f"--within {text!r} is no share that two sides could be equal within; want a percentage such as 5% or a "
            "fraction such as 0.05, above 0 and below 1"
        )
        raise UsageError(message)
    return share


def _print(judgements: Sequence[Judgement], document: dict[str, JSON], text: str, *, as_json: bool) -> None:
    """Data to stdout, remarks to stderr; as JSON both are data."""
    every = dict.fromkeys(remark for judgement in judgements for remark in judgement.remarks)
    remarks = sorted(every, key=lambda remark: get_args(Severity).index(remark.severity))
    if as_json:
        said = [one.as_json() for one in remarks]
        runs = [stored.run.id for judgement in judgements for stored in judgement.dataset.runs]
        complete = {"runs": runs, "remarks": said, **document}
        echo(json.dumps(_strict(complete), indent=2, ensure_ascii=False, allow_nan=False))
        return
    for remark in remarks:
        echo(f"{remark.severity}: {remark.text}", err=True)
    echo(text)


def _strict(value: JSON) -> JSON:
    """``value`` with null where a number is not finite: NaN is no JSON."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _strict(entry) for key, entry in value.items()}
    return [_strict(entry) for entry in value] if isinstance(value, list) else value


@click.command()
@run_options
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the three files go; the run's own folder unless given. Several runs need it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the JSON summary, not the path of the page.")
def report(
    *,
    runs: tuple[str, ...],
    results_dir: Path,
    peaks_file: Path | None,
    force: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """Write report.html, report.md and report.json for RUN... and say where they are.

    RUN is a run folder, the start or end of a run's name, or "latest". Several runs are pooled.
    """
    # matplotlib takes as long to load as the whole of ``show``, which does not need it.
    from busbw_analysis.report import compose as rooms  # noqa: PLC0415

    folder = rooms.folder_for([store.find(results_dir, run) for run in runs], output)
    written = rooms.compose(judgement_of(runs, results_dir, peaks_file, force=force))
    path = rooms.write(written, folder)
    echo(written.answer, err=True)
    echo(written.json if as_json else str(path), nl=not as_json)
