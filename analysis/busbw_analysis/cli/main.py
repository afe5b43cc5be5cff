"""The commands of the analysis: find the runs, judge them, print. ``busbw.cli.main`` loads this module by name."""

import math
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import click

from busbw.errors import UsageError
from busbw.escape import echo, echo_toned
from busbw.runs.records import JSON
from busbw.system.catalog import catalogue
from busbw.workloads import model_rows
from busbw_analysis.cli import options
from busbw_analysis.data.as_json import plain
from busbw_analysis.data.load import pool, pool_alike
from busbw_analysis.data.sources import find
from busbw_analysis.diagnosis.answer import OPEN_FINDINGS, answer_of
from busbw_analysis.diagnosis.compare import compare as compare_sides
from busbw_analysis.diagnosis.findings import ranked
from busbw_analysis.diagnosis.gate import FAILURES, gate_of
from busbw_analysis.diagnosis.judge import Finding, Judgement, judge_with_selftest, judgement_of, with_joint_fits
from busbw_analysis.predict import read_groups
from busbw_analysis.report import to_json
from busbw_analysis.report.document import Block, Section
from busbw_analysis.report.tables import compare as compare_tables
from busbw_analysis.report.tables.crossovers import crossing_table
from busbw_analysis.report.tables.fits import fits_table, names_apart
from busbw_analysis.report.tables.joint_fits import joint_sections
from busbw_analysis.report.tables.nccl import nccl_choices, nccl_table
from busbw_analysis.report.tables.show import about, show_blocks, show_rows
from busbw_analysis.report.to_terminal import lines, render_lines


@click.command()
@options.run_options
@options.as_json_option
def show(*, runs: tuple[str, ...], results_dir: Path, peaks_file: Path | None, force: bool, as_json: bool) -> None:
    """Print the table of RUN...: every case with its rate, interval, skew and share of the peak.

    RUN is a run folder, the start or end of a run's name, or "latest". Several runs are pooled.
    """
    judgement = judgement_of(runs, results_dir, peaks_file, force=force, facts=options.log_facts())
    answer = answer_of(judgement)
    if not as_json:
        echo(f"{render_lines(answer.lines, '# ')}\n")
    _print([judgement], _cases(judgement), _table(judgement), answer.findings, as_json=as_json)


def _cases(judgement: Judgement) -> dict[str, JSON]:
    answer = to_json.answer_fields(answer_of(judgement))
    return {"answer": answer, "best": judgement.best, "cases": show_rows(judgement)}


def _table(judgement: Judgement) -> list[Block]:
    return [*show_blocks(show_rows(judgement), *about(judgement))]


def tell(folder: Path) -> None:
    """Print the table of the run in ``folder``, and its answer on stderr: the end of ``busbw run``, which loads this by
    name. Raises BusbwError where the run cannot be read or judged.
    """
    judgement = judgement_of([str(folder)], folder.parent, None, force=False)
    echo_toned(lines(_table(judgement)))
    answer = answer_of(judgement)
    told = [render_lines(answer.lines), *(f"{one.severity}: {one.text}" for one in answer.opened)]
    echo("\n" + "\n".join(told), err=True)


def shown(folder: Path) -> JSON:
    """The run in ``folder`` as ``busbw show --json`` prints it. Raises as ``tell``."""
    judgement = judgement_of([str(folder)], folder.parent, None, force=False)
    return plain(_document([judgement], _cases(judgement)))


@click.command()
@options.run_options
@options.as_json_option
def fit(*, runs: tuple[str, ...], results_dir: Path, peaks_file: Path | None, force: bool, as_json: bool) -> None:
    """Fit time over size for every curve of RUN..., and one set of parameters for all of them together.

    RUN is a run folder, the start or end of a run's name, or "latest". Runs of the same number of ranks are pooled;
    those of different numbers stand beside each other, which tells more of what the parameters are.
    """
    catalogued = catalogue(peaks_file)
    datasets = read_groups(options.read_runs(results_dir, runs), force=force)
    judgements = with_joint_fits([judge_with_selftest(dataset, catalogued) for dataset in datasets])
    fitted = names_apart(judgements, lambda one: [curve.series.key for curve in one.curves])
    compared = names_apart(judgements, lambda one: [pair.key for pair in one.comparisons])
    curves = [(one, names[curve.series.key], curve) for one, names in fitted for curve in one.curves]
    pairs = [(one, names[pair.key], pair) for one, names in compared for pair in one.comparisons]
    choices = [(one, choice) for one, names in fitted for choice in nccl_choices(one, names, catalogued)]
    regimes = judgements[0].regimes
    blocks: list[Block | Section] = [
        fits_table([(name, curve) for _, name, curve in curves]),
        *([nccl_table([choice for _, choice in choices])] if choices else []),
        *(crossing_table(pair, name) for _, name, pair in pairs),
        *joint_sections(regimes),
    ]
    document: dict[str, JSON] = {
        "fits": [{**to_json.fit_row(curve), "curve": name, "runs": run_names(one)} for one, name, curve in curves],
        "nccl": [{**plain(choice), "runs": run_names(one)} for one, choice in choices],
        "joint": to_json.joint_rows(regimes),
        "crossings": [
            {**row, "curve": name, "runs": run_names(one)}
            for one, name, pair in pairs
            for row in to_json.crossing_rows([pair])
        ],
    }
    findings = ranked(dict.fromkeys(finding for judgement in judgements for finding in judgement.findings))
    _print(judgements, document, blocks, findings, as_json=as_json)


@click.command()
@click.argument("first", metavar="A", shell_complete=options.names_of_runs)
@click.argument("second", metavar="B", required=False, shell_complete=options.names_of_runs)
@click.option("--within", default="5%", show_default=True, help="Differences inside ± this share are called equal.")
@click.option("--paired", is_flag=True, help="Compare neighbouring launches, which were taken in turns (A B B A …).")
@click.option(
    "--fail-on",
    type=click.Choice(FAILURES),
    multiple=True,
    help="Exit 1 when a band is slower, when one cannot be told, or when a case of A has no result in B; 2 when there "
    "are too few launches for that to happen.",
)
@click.option("--cases", is_flag=True, help="A line a size with its times, below each band.")
@options.log_options()
@click.option(
    "--html",
    "page",
    type=options.FILE,
    metavar="FILE",
    help="Also write a page with the curves of both in the same figures.",
)
@options.results_dir_option
@click.option("--force", is_flag=True, help="Compare although machines or settings differ; say what differs.")
@options.as_json_option
def compare(  # noqa: PLR0913 - click hands every option over by name
    *,
    first: str,
    second: str | None,
    within: str,
    paired: bool,
    fail_on: tuple[str, ...],
    cases: bool,
    page: Path | None,
    results_dir: Path,
    force: bool,
    as_json: bool,
) -> None:
    """Hold B against A, launch by launch: per op and band of sizes faster, slower, equal, or cannot tell.

    A and B are runs (a folder, the start or end of a name, "latest"), or several with commas between, which are pooled.
    Exit status: 0, or with --fail-on 1 when it holds and 2 when it could not have.
    """
    if second is None:
        raise UsageError(
            f"one run is no comparison: B is missing (busbw compare {first} B; busbw list runs names what there is)"
        )
    margin = _share(within)
    names = [_several(side) for side in (first, second)]
    stored = options.read_runs(results_dir, chain(*names))
    sides = [pool(side, force=force) for side in (stored[: len(names[0])], stored[len(names[0]) :])]
    comparison = compare_sides(*sides, within=margin, paired=paired, force=force)
    gate = gate_of(comparison, fail_on)
    if page is not None:
        from busbw_analysis.report import compose as writer  # noqa: PLC0415 - it loads matplotlib

        judged = [judge_with_selftest(side, catalogue()) for side in sides]
        writer.write_text(page, writer.compared(comparison, *judged))
        echo(str(page), err=True)
    if as_json:
        options.print_json(compare_tables.document(comparison, gate))
    else:
        for notice in (*comparison.notices, *compare_tables.incomplete_lines(comparison)):
            echo(f"caution: {notice}", err=True)
        for line in compare_tables.left_out_lines(comparison):
            echo(line, err=True)
        echo(f"{render_lines(compare_tables.answer_lines(comparison), '# ')}\n")
        echo_toned(lines(compare_tables.compare_blocks(comparison, cases=cases)))
    for line in (compare_tables.gate_line(comparison, reason) for reason in gate.reasons):
        echo(f"busbw: --fail-on {' '.join(fail_on)}: {line}", err=True)
    if gate.code:
        click.get_current_context().exit(gate.code)


def _several(side: str) -> list[str]:
    names = [name.strip() for name in side.split(",")]
    if not all(names):
        raise UsageError(f"{side!r} is no list of runs; want one run, or several with commas between")
    return names


def _share(text: str) -> float:
    """``5%`` or ``0.05`` as a fraction. Raises UsageError for anything else, and for what is not within (0, 1)."""
    number = text.strip().removesuffix("%")
    try:
        share = float(number) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 < share < 1:
        raise UsageError(
            f"--within {text!r} is no share that two sides could be equal within; want a percentage such as 5% or a "
            "fraction such as 0.05, above 0 and below 1"
        )
    return share


def _print(
    judgements: Sequence[Judgement],
    document: dict[str, JSON],
    blocks: Iterable[Block | Section],
    findings: Sequence[Finding],
    *,
    as_json: bool,
) -> None:
    """Data to stdout, the first findings to stderr; as JSON all of them are data."""
    if as_json:
        options.print_json(_document(judgements, document))
        return
    for finding in findings[:OPEN_FINDINGS]:
        echo(f"{finding.severity}: {finding.text}", err=True)
    if len(findings) > OPEN_FINDINGS:
        echo(f"and {len(findings) - OPEN_FINDINGS} more: busbw report has them", err=True)
    echo_toned(lines(blocks))


def _document(judgements: Sequence[Judgement], document: dict[str, JSON]) -> dict[str, JSON]:
    every = ranked(dict.fromkeys(finding for judgement in judgements for finding in judgement.findings))
    runs = [name for judgement in judgements for name in run_names(judgement)]
    return {"runs": runs, "warnings": [one.as_json() for one in every], **document}


def run_names(judgement: Judgement) -> list[str]:
    """The runs that were judged."""
    return [stored.run.id for stored in judgement.dataset.runs]


@click.command()
@options.run_options
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the three files go.  [default: the run's own folder; of several reports/ in the results]",
)
@options.run_option(
    "--reference", "Draw the curves of this run as thin lines; may be given again.", "references", multiple=True
)
@click.option(
    "--model",
    "models",
    multiple=True,
    help="Plan its training on these ranks; one of busbw training models, may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the JSON summary, not the path of the page.")
def report(
    *,
    runs: tuple[str, ...],
    results_dir: Path,
    peaks_file: Path | None,
    force: bool,
    output: Path | None,
    references: tuple[str, ...],
    models: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write report.html, report.md and report.json for RUN... and say where they are.

    RUN is a run folder, the start or end of a run's name, or "latest". Launches of runs that are alike in machine,
    software and settings are pooled. Runs that differ in them, as in the backend, stand beside each other in one
    figure; --force pools them, too. To hold a run against an earlier one of the same kind: --reference, or busbw
    compare --html.
    """
    # matplotlib takes as long to load as the whole of ``show``, which does not need it.
    from busbw_analysis.report import compose as writer  # noqa: PLC0415

    folder = writer.folder_for([find(results_dir, run).folder for run in runs], output, results_dir)
    rows = catalogue(peaks_file)
    stored = options.read_runs(results_dir, (*runs, *references))
    own, earlier = stored[: len(runs)], stored[len(runs) :]
    datasets = (pool(own, force=True),) if force else pool_alike(own)
    wanted = [model_rows.named(model_rows.models(), name) for name in models]
    if len(datasets) > 1 and (references or wanted):
        name = "--reference" if references else "--model"
        message = f"{name} is for one kind of runs; these are {len(datasets)} that stand beside each other already"
        raise UsageError(message)
    judgements = [judge_with_selftest(dataset, rows) for dataset in datasets]
    thin = [judge_with_selftest(pool([run]), rows) for run in earlier]
    written = writer.compose(judgements[0], thin, wanted) if len(judgements) == 1 else writer.compose_beside(judgements)
    path = writer.write(written, folder)
    for name, answer in written.answers.items():
        echo("\n".join(filter(None, (name, render_lines(answer.lines)))), err=True)
    echo(written.json if as_json else str(path), nl=not as_json)
