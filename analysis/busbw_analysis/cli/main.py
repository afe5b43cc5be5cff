"""Analysis commands: find the runs, analyse them, print the result. ``busbw.cli.main`` loads this module by name."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from busbw.errors import LogError, UsageError
from busbw.escape import echo, echo_toned, plain_text, render_lines
from busbw.runs.records import JSON
from busbw.shared_options import FILE, as_json_option, results_dir_option
from busbw.system.catalog import Gpu, catalogue
from busbw.units import counted, listed, parse_share
from busbw.workloads import model_rows
from busbw_analysis.assembly import to_json
from busbw_analysis.assembly.judge import judge_with_selftest, judgement_of
from busbw_analysis.cli import options
from busbw_analysis.cli.steps import print_steps, with_steps
from busbw_analysis.data.as_json import plain
from busbw_analysis.data.load import pool, pool_by_setup
from busbw_analysis.data.readers.training import FailedTraining, OfTraining
from busbw_analysis.data.sources import find, steps_in
from busbw_analysis.diagnosis.answer import OPEN_FINDINGS, answer_of
from busbw_analysis.diagnosis.compare import compare as compare_sides
from busbw_analysis.diagnosis.compare_answer import answer_lines
from busbw_analysis.diagnosis.compare_within import compare_within, settings_varied
from busbw_analysis.diagnosis.findings import ranked
from busbw_analysis.diagnosis.judge import Finding, Judgement
from busbw_analysis.fleet.slice import FleetRun
from busbw_analysis.predict import read_groups
from busbw_analysis.report import compare as compare_tables
from busbw_analysis.report.document import SEVERITY, TONES, Block, Section
from busbw_analysis.report.fits import crossing_table, fits_table, names_apart, nccl_choices, nccl_table
from busbw_analysis.report.show import about, show_blocks, show_rows
from busbw_analysis.report.to_terminal import lines


@click.command()
@options.run_options
@click.option("--all", "every", is_flag=True, help="Also the cases that were measured only as a reference for others.")
@click.option("--explain", is_flag=True, help="Say what columns and flags mean.")
@as_json_option
def show(
    *,
    runs: tuple[str, ...],
    results_dir: Path,
    peaks_file: Path | None,
    force: bool,
    every: bool,
    explain: bool,
    as_json: bool,
) -> None:
    """Print the table of RUN...: every case with its rate, interval, skew and share of the peak.

    RUN is a run folder, the start or end of a run's name, or "latest". Several runs are pooled.
    """
    facts = options.log_facts()
    try:
        judgement = judgement_of(runs, results_dir, peaks_file, force=force, facts=facts)
    except OfTraining as found:
        if len(runs) == 1 or as_json:
            print_steps(found.steps, facts.gpu, as_json=as_json)
        else:
            _print_trained(runs, facts.gpu)
        return
    except FailedTraining as found:
        raise with_steps(found, facts.gpu) from found
    except LogError as found:
        if found.code not in {"healthy", "messages"}:
            raise
        if as_json:
            stated = {"status": found.code, "answer": found.answer, "lines": found.lines}
            options.print_json({"runs": [], "warnings": [], "answer": stated, "cases": []})
        else:
            texts = [(label, plain_text(text)) for label, text in (("Answer", found.answer), *found.lines)]
            echo(render_lines(texts, "# "))
        return
    answer = answer_of(judgement)
    if not as_json:
        echo(f"{render_lines(answer.lines, '# ')}\n")
    blocks = _table(judgement, every=every, explain=explain)
    _print([judgement], _cases(judgement), blocks, answer.findings, as_json=as_json)
    if len(runs) > 1 and not as_json:
        _print_trained(runs, facts.gpu)


def _print_trained(logs: Sequence[str], gpu: Gpu | None) -> None:
    """Print the steps of those of several logs that are of a training program, each below its name."""
    for steps in steps_in(logs):
        echo(f"\n# {steps.source}")
        print_steps(steps, gpu, as_json=False)


def _cases(judgement: Judgement) -> dict[str, JSON]:
    answer = to_json.answer_fields(answer_of(judgement))
    return {"answer": answer, "best": judgement.best, "cases": [row.document for row in show_rows(judgement)]}


def _table(judgement: Judgement, *, every: bool = False, explain: bool = False) -> list[Block]:
    fleet = judgement.of(FleetRun)
    if fleet.judged is not None and not every:
        return fleet.blocks
    rows = show_rows(judgement)
    references = frozenset() if every else frozenset(row.case.op for row in rows) - judgement.asked
    return [*show_blocks(rows, *about(judgement), references=references, explain=explain)]


def print_run(folder: Path) -> None:
    """Print the table of the run in ``folder`` to stdout and its answer to stderr.

    ``busbw run`` loads this function by name and calls it last. Raises BusbwError if the run cannot be read or judged.
    """
    judgement = judgement_of([str(folder)], folder.parent, None, force=False)
    echo_toned(lines(_table(judgement)))
    answer = answer_of(judgement)
    first, *others = answer.brief
    others += [(SEVERITY[finding.severity], finding.claim) for finding in answer.opened[:1]]
    width = max(len(label) for label, _ in (first, *others))
    echo(f"\n{render_lines(others, width=width)}", err=True)
    headline = render_lines([first], width=width).split("\n")
    echo_toned(([(line, TONES[answer.status])] for line in headline), err=True, bold=True)


def shown(folder: Path) -> JSON:
    """The run in ``folder`` as ``busbw show --json`` prints it. Raises like ``tell``."""
    judgement = judgement_of([str(folder)], folder.parent, None, force=False)
    return plain(_document([judgement], _cases(judgement)))


@click.command()
@options.run_options
@as_json_option
def fit(*, runs: tuple[str, ...], results_dir: Path, peaks_file: Path | None, force: bool, as_json: bool) -> None:
    """Fit time against size for each curve of the runs.

    RUN is a run folder, the start or end of a run's name, or "latest". Runs with the same number of ranks are pooled.
    Runs with different numbers of ranks are listed together.
    """
    catalogued = catalogue(peaks_file)
    datasets = read_groups(options.read_runs(results_dir, runs), force=force)
    judgements = [judge_with_selftest(dataset, catalogued) for dataset in datasets]
    fitted = names_apart(judgements, lambda judgement: [curve.series.key for curve in judgement.curves])
    compared = names_apart(judgements, lambda judgement: [pair.key for pair in judgement.comparisons])
    curves = [(judgement, names[curve.series.key], curve) for judgement, names in fitted for curve in judgement.curves]
    pairs = [(judgement, names[pair.key], pair) for judgement, names in compared for pair in judgement.comparisons]
    choices = [
        (judgement, choice) for judgement, names in fitted for choice in nccl_choices(judgement, names, catalogued)
    ]
    blocks: list[Block | Section] = [
        fits_table([(name, curve) for _, name, curve in curves]),
        *([nccl_table([choice for _, choice in choices])] if choices else []),
        *(crossing_table(pair, name) for _, name, pair in pairs),
    ]
    document: dict[str, JSON] = {
        "fits": [
            {**to_json.fit_row(curve), "curve": name, "runs": run_names(judgement)} for judgement, name, curve in curves
        ],
        "nccl": [{**plain(choice), "runs": run_names(judgement)} for judgement, choice in choices],
        "crossings": [
            {**row, "curve": name, "runs": run_names(judgement)}
            for judgement, name, pair in pairs
            for row in to_json.crossing_rows([pair])
        ],
    }
    findings = ranked(dict.fromkeys(finding for judgement in judgements for finding in judgement.findings))
    _print(judgements, document, blocks, findings, as_json=as_json)


@click.command()
@click.argument("first", metavar="A", shell_complete=options.names_of_runs)
@click.argument("second", metavar="B", required=False, shell_complete=options.names_of_runs)
@click.option("--within", default="5%", show_default=True, help="Differences within ± this fraction count as equal.")
@click.option("--paired", is_flag=True, help="Compare adjacent launches; for A and B measured in turn (A B B A …).")
@click.option(
    "--allow",
    metavar="NAME",
    multiple=True,
    help="A difference that is meant: a variable such as OMP_NUM_THREADS, or a fact such as kernel; repeatable.",
)
@click.option("--by", metavar="SETTING", help="Compare the values of a setting within A, such as algorithm or dtype.")
@click.option("--base", metavar="VALUE", help="The value that --by compares all others with.  [default: the first]")
@click.option("--cases", is_flag=True, help="Below each band, print one line per size with its times.")
@options.log_options()
@click.option(
    "--html",
    "page",
    type=FILE,
    metavar="FILE",
    help="Also write an HTML page that shows the curves of A and B in the same figures.",
)
@results_dir_option
@click.option("--force", is_flag=True, help="Compare even if machines or settings differ; the differences are listed.")
@as_json_option
def compare(  # noqa: PLR0913 - click hands every option over by name
    *,
    first: str,
    second: str | None,
    within: str,
    paired: bool,
    allow: tuple[str, ...],
    by: str | None,
    base: str | None,
    cases: bool,
    page: Path | None,
    results_dir: Path,
    force: bool,
    as_json: bool,
) -> None:
    """Compare B with A by launches: for each op and size band, B is faster, slower or equal, or it cannot tell.

    A and B are runs (a folder, the start or end of a name, a label, "latest"), or comma-separated lists of runs, which
    are pooled. An op that has another dtype, algorithm, threads or cache on each side is compared across that setting,
    other differences need --allow. With --by there is no B: settings of one run are compared. Exit status: 0, or 2 if
    the runs cannot be compared; busbw gate decides whether a run passes.
    """
    margin = _share("--within", within)
    _refuse_mixed(second, by, base, allow, page)
    names = [_several(first)] if by is not None else _both(first, second, results_dir)
    sides = [pool(side, force=force) for side in options.read_sides(results_dir, *names)]
    if by is not None:
        comparison = compare_within(sides[0], by, base, within=margin)
    else:
        comparison = compare_sides(sides[0], sides[1], within=margin, paired=paired, force=force, allow=allow)
    if page is not None:
        from busbw_analysis.assembly import compose as writer  # noqa: PLC0415 - it loads matplotlib

        judged = [judge_with_selftest(side, catalogue()) for side in sides]
        writer.write_text(page, writer.compared(comparison, *judged))
        echo(str(page), err=True)
    if as_json:
        options.print_json(compare_tables.document(comparison))
    else:
        echo(f"{render_lines(answer_lines(comparison), '# ')}\n")
        for finding in compare_tables.findings(comparison):
            echo(f"{finding.severity}: {finding.text}", err=True)
        for line in compare_tables.left_out_lines(comparison):
            echo(line, err=True)
        echo_toned(lines(compare_tables.compare_blocks(comparison, cases=cases)))


def _refuse_mixed(second: str | None, by: str | None, base: str | None, allow: object, page: Path | None) -> None:
    """Raise UsageError for arguments of a comparison of two sides beside ``by``, or the reverse."""
    if by is None and base is not None:
        raise UsageError("--base is the first value of --by; add --by SETTING")
    of_two = {f"B ({second})": second, "--allow": allow, "--html": page}
    given = [name for name, value in of_two.items() if value]
    if by is not None and given:
        raise UsageError(f"--by compares values within A, so it has no {' and no '.join(given)}")


def _both(first: str, second: str | None, results_dir: Path) -> list[list[str]]:
    """The runs of both sides. Raises UsageError if there is no second one, but first if the first does not exist."""
    if second is not None:
        return [_several(first), _several(second)]
    names = _several(first)
    for run in names:
        find(results_dir, run)
    stored = [run.stored.run for run in options.read_runs(results_dir, names)]
    # Logs have no launches that form pairs.
    varied = settings_varied(case for run in stored if run.imported is None for case in run.cases)
    within = f", or the {listed(varied)} within {first} (busbw compare {first} --by {varied[0]})" if varied else ""
    raise UsageError(
        f"B is missing: compare two runs (busbw compare {first} B; busbw list runs lists the stored runs){within}"
    )


def _several(side: str) -> list[str]:
    names = [name.strip() for name in side.split(",")]
    if not all(names):
        raise UsageError(f"{side!r} is not a list of runs; give one run, or several separated by commas")
    return [log for name in names for log in options.several(click.get_current_context(), name)]


def _share(option: str, text: str) -> float:
    """A fraction in (0, 1). Raises UsageError for anything else, with the ``option``."""
    try:
        return parse_share(text)
    except UsageError as error:
        raise UsageError(f"{option} {error}") from error


def _print(
    judgements: Sequence[Judgement],
    document: dict[str, JSON],
    blocks: Iterable[Block | Section],
    findings: Sequence[Finding],
    *,
    as_json: bool,
) -> None:
    """Print the data to stdout and the first findings to stderr; JSON has all findings in the data."""
    if as_json:
        options.print_json(_document(judgements, document))
        return
    for finding in findings[:OPEN_FINDINGS]:
        echo(f"{finding.severity}: {finding.text}", err=True)
    if len(findings) > OPEN_FINDINGS:
        more = counted(len(findings) - OPEN_FINDINGS, "more finding")
        echo(f"{more} in report.html (busbw report)", err=True)
    echo_toned(lines(blocks))


def _document(judgements: Sequence[Judgement], document: dict[str, JSON]) -> dict[str, JSON]:
    every = ranked(dict.fromkeys(finding for judgement in judgements for finding in judgement.findings))
    runs = [name for judgement in judgements for name in run_names(judgement)]
    return {"runs": runs, "warnings": [finding.as_json() for finding in every], **document}


def run_names(judgement: Judgement) -> list[str]:
    """The names of the runs behind ``judgement``."""
    return [stored.run.id for stored in judgement.runs]


@click.command()
@options.run_options
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Output folder.  [default: the run's folder, or beside the log; of several, reports/ in the results folder]",
)
@options.run_option(
    "--reference", "Draw the curves of this earlier run as thin lines; repeatable.", "references", multiple=True
)
@click.option(
    "--model",
    "models",
    multiple=True,
    help="Add a plan for training this model on these ranks (busbw training models lists them); repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the JSON summary instead of the path of the page.")
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
    """Write report.html, report.md and report.json for RUN... and print the path of the page.

    RUN is a run folder, the start or end of a run's name, or "latest". Runs with the same machine, software and
    settings are pooled. Runs that differ in these, for example in the backend, appear side by side in each figure;
    --force pools them too. To compare a run with an earlier one, use --reference or busbw compare --html.
    """
    # Loading matplotlib takes as long as all of ``show``, which does not need it.
    from busbw_analysis.assembly import compose as writer  # noqa: PLC0415

    places = dict.fromkeys(options.lasting(find(results_dir, run).folder) for run in runs)
    folder = writer.folder_for([*places], output, results_dir)
    rows = catalogue(peaks_file)
    own, earlier = options.read_sides(results_dir, runs, references)
    datasets = (pool(own, force=True),) if force else pool_by_setup(own)
    planned = [model_rows.named(model_rows.models(), name) for name in models]
    if len(datasets) > 1 and (references or planned):
        name = "--reference" if references else "--model"
        message = f"{name} needs runs that can be pooled; these form {len(datasets)} groups that are shown side by side"
        raise UsageError(message)
    judgements = [judge_with_selftest(dataset, rows) for dataset in datasets]
    thin = [judge_with_selftest(pool([run]), rows) for run in earlier]
    written = (
        writer.compose(judgements[0], thin, planned) if len(judgements) == 1 else writer.compose_beside(judgements)
    )
    path = writer.write(written, folder)
    for name, answer in written.answers.items():
        echo("\n".join(filter(None, (name, render_lines(answer.lines)))), err=True)
    echo(written.json if as_json else str(path), nl=not as_json)
