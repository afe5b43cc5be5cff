"""Compose a report from a judgement and write its files."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from busbw.errors import StoreError
from busbw.runs.files import replaced
from busbw.runs.run import Run
from busbw.units import clock_time
from busbw.workloads.model_rows import Model
from busbw_analysis.assembly import to_json
from busbw_analysis.assembly.slices import SLICES
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.sentences import capitalised
from busbw_analysis.data.sources import REPORT_FILES
from busbw_analysis.diagnosis.answer import Answer, answer_of
from busbw_analysis.diagnosis.compare import Comparison
from busbw_analysis.diagnosis.compare_answer import answer_lines
from busbw_analysis.diagnosis.findings import Finding
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.fleet.slice import FleetRun
from busbw_analysis.report import to_html, to_markdown
from busbw_analysis.report.compare import bands_table, compare_blocks, findings, left_out_lines
from busbw_analysis.report.curves import Side, operations, overview
from busbw_analysis.report.document import ComparisonSummary, Page, Paragraph, Section
from busbw_analysis.report.equivalents import composition, one_call, overlaps, trust
from busbw_analysis.report.models import fits, theory
from busbw_analysis.report.pairs import pairs, rank_views
from busbw_analysis.report.run import environment, glossary, missing_cases, timing
from busbw_analysis.report.slices import CHAPTERS, Chapter, Placed, Unfolded
from busbw_analysis.report.verdicts import reasons, verdict_table

_LONGEST_NAME: Final = 100
HTML_FILE, TEXT_FILE, JSON_FILE = REPORT_FILES


@dataclass(frozen=True, slots=True)
class Report:
    """The three files of a report, as text, and the answer of each run by its name."""

    answers: Mapping[str, Answer]
    html: str
    text: str
    json: str


def compose(judgement: Judgement, references: Sequence[Judgement] = (), models: Sequence[Model] = ()) -> Report:
    """The report of one ``judgement``; the same judgement gives the same bytes.

    references: their curves are drawn as thin lines.
    models: training plans are added for these models.
    """
    page = page_of(judgement, references, models)
    return _report(page, to_json.render(judgement, page.answers[0][1]))


def compose_beside(judgements: Sequence[Judgement]) -> Report:
    """The report of several judgements that may not be pooled: their answers, and their curves in shared figures."""
    page = page_beside(judgements, names_beside(judgements))
    return _report(page, to_json.render_beside(judgements, page.answers))


def _report(page: Page, machines: str) -> Report:
    answers = {name: answer for name, answer, _ in page.answers}
    return Report(answers, to_html.render(page), to_markdown.render(page), machines)


def compared(comparison: Comparison, first: Judgement, second: Judgement) -> str:
    """The HTML page of a comparison: how each band of sizes compares, and the curves of both sides in one figure."""
    page = page_beside((first, second), ("A", "B"))
    blocks = (*compare_blocks(comparison, cases=True), *map(Paragraph, left_out_lines(comparison)))
    by_size = Section("sizes", "Comparison by size", blocks, folded=True, gist="Every size of every band.")
    cases = [case for band in comparison.bands for case in band.cases]
    means = sum(case.statistic == "mean" for case in cases)
    text = f"{means} of {len(cases)} sizes have bimodal samples: their means are compared; figures show medians"
    notices = (*findings(comparison), *([Finding("note", "bimodal", (text,))] if means else []))
    notices = tuple(
        replace(finding, sentences=(capitalised(finding.claim), *finding.sentences[1:])) for finding in notices
    )
    summary = ComparisonSummary(answer_lines(comparison), notices, bands_table(comparison))
    return to_html.render(replace(page, title="B against A", comparison=summary, sections=(by_size, *page.sections)))


def folder_for(runs: Sequence[Path], output: Path | None, results_dir: Path) -> Path:
    """The folder for a report: ``output`` if given, else the folder of the only run.

    A report of several runs goes to ``results_dir``, named after their id suffixes. In the folder of one run it would
    replace that run's own report.
    """
    if output is not None:
        return output
    if len(runs) == 1:
        return runs[0]
    return results_dir / "reports" / "+".join(run.name.rpartition("-")[2] for run in runs)[:_LONGEST_NAME]


def write(report: Report, folder: Path) -> Path:
    """Write the three files into ``folder``, creating it if needed, and return the path of the HTML file.

    Each file is replaced atomically, so readers never see half of one. Raises StoreError if a file cannot be written.
    """
    for name, text in ((JSON_FILE, report.json), (TEXT_FILE, report.text), (HTML_FILE, report.html)):
        write_text(folder / name, text)
    return folder / HTML_FILE


def write_text(path: Path, text: str) -> None:
    """Write one file atomically, creating its folder if needed. Raises StoreError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise StoreError(
            f"cannot write {path}: {error.strerror}; choose another folder", code="not-writable"
        ) from error


def page_of(judgement: Judgement, references: Sequence[Judgement] = (), models: Sequence[Model] = ()) -> Page:
    """The page of one judgement, in reading order."""
    first = judgement.runs[0].run
    answer = answer_of(judgement)
    sides = (Side(judgement), *(Side(reference, run_names(reference), reference=True) for reference in references))
    return Page(
        title=_title(judgement),
        subtitle=f"busbw {first.busbw} · {_pooled(judgement)} · {_dated(first)}",
        answers=(("", answer, verdict_table(judgement, answer)),),
        figure=overview(sides),
        sections=tuple(_fold_sections(sides, answer, models)),
    )


def page_beside(judgements: Sequence[Judgement], names: Sequence[str]) -> Page:
    """The page of several judgements; details of a single one are left to its own report."""
    sides = [Side(judgement, name) for name, judgement in zip(names, judgements, strict=True)]
    answered = [(side, answer_of(side.judgement)) for side in sides]
    facing = by_key(
        (op, block)
        for side, answer in answered
        for op, blocks in reasons(answer, side.name).items()
        for block in blocks
    )
    return Page(
        title=" beside ".join(names),
        subtitle=" · ".join(f"{side.name}: {_title(side.judgement)}, {_pooled(side.judgement)}" for side in sides),
        answers=tuple((side.name, answer, verdict_table(side.judgement, answer)) for side, answer in answered),
        figure=overview(sides),
        sections=(operations(sides, facing), glossary()),
    )


def names_beside(judgements: Sequence[Judgement]) -> tuple[str, ...]:
    """The shortest names that distinguish the judgements: backends, ranks, machines, or else their runs."""
    kinds = (
        [_backends(judgement) for judgement in judgements],
        [_world(judgement) for judgement in judgements],
        [judgement.runs[0].run.machine for judgement in judgements],
        [run_names(judgement) for judgement in judgements],
    )
    return next((tuple(names) for names in kinds if len(set(names)) == len(names)), tuple(kinds[-1]))


def _backends(judgement: Judgement) -> str:
    return " and ".join(dict.fromkeys(row.case.backend for row in judgement.cases))


def run_names(judgement: Judgement) -> str:
    """The ids of the pooled runs, with their labels."""
    runs = [stored.run for stored in judgement.runs]
    return ", ".join(run.id if run.plan.label is None else f"{run.id} {run.plan.label!r}" for run in runs)


def _pooled(judgement: Judgement) -> str:
    several = f"pooled from {len(judgement.pooled)} runs: " if judgement.pooled else ""
    return several + run_names(judgement)


def _fold_sections(sides: Sequence[Side], answer: Answer, models: Sequence[Model]) -> Iterator[Section]:
    """The sections that have content; those that most readers do not need are folded."""
    judgement = sides[0].judgement
    sent = any(verdict.busbw is not None for verdict in judgement.verdicts)
    failed = any(row.state == "failed" for row in judgement.cases)
    unfolded: dict[Unfolded, bool] = {"always": True, "alone": not sent, "failed": failed, "never": False}
    of_pairs = judgement.of(FleetRun).judged is not None
    curves = operations(sides, reasons(answer))
    curves = replace(curves, gist="Each pair by itself.") if of_pairs else curves
    of_slices = [placed for row in SLICES for placed in row.sections(judgement, models)]
    of_core = [Placed("curves", "never" if of_pairs else "always", curves)]
    of_core += [Placed(chapter, when, write_section(judgement)) for chapter, when, write_section in _SECTIONS]
    for placed in sorted([*of_slices, *of_core], key=lambda placed: CHAPTERS.index(placed.chapter)):
        if placed.section is not None:
            yield replace(placed.section, folded=not unfolded[placed.unfolded])


def _title(judgement: Judgement) -> str:
    logs = [stored.run.imported for stored in judgement.runs]
    unnamed = any(log is not None and "machine" in log.unknown for log in logs)
    machines = dict.fromkeys(stored.run.machine for stored in judgement.runs)
    runs = f"{len(judgement.runs)} runs, " if len(judgement.runs) > 1 else ""
    return f"{runs}{_world(judgement)} on {judgement.facts.hosts_in_words if unnamed else ', '.join(machines)}"


def _dated(run: Run) -> str:
    """When a run started, or when the log of another tool was written."""
    return f"{'started' if run.imported is None else 'log file of'} {clock_time(run.started)} UTC"


def _world(judgement: Judgement) -> str:
    """Ranks and backends in a few words."""
    ranks = sorted({len(stored.run.hosts) for stored in judgement.runs})
    return f"{' and '.join(map(str, ranks))} {_backends(judgement)} {'rank' if ranks == [1] else 'ranks'}"


_SECTIONS: Final[tuple[tuple[Chapter, Unfolded, Callable[[Judgement], Section | None]], ...]] = (
    ("results", "always", one_call),
    ("results", "always", pairs),
    ("results", "always", rank_views),
    ("results", "failed", lambda judgement: missing_cases(judgement.cases)),
    ("theory", "never", composition),
    ("theory", "never", overlaps),
    ("theory", "never", theory),
    ("theory", "never", fits),
    ("run", "never", trust),
    ("run", "never", lambda judgement: timing(judgement.runs)),
    ("run", "never", lambda judgement: environment(judgement.runs)),
    ("run", "never", lambda _judgement: glossary()),
)
"""The sections of the core, in reading order; a section without content is None."""
