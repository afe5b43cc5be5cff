"""Writes the report of a judgement: composes the page, its answer and its verdicts, and puts the files on the disk."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from busbw.errors import StoreError, UsageError
from busbw.runs.store import StoredRun
from busbw_analysis.data.load import Dataset
from busbw_analysis.diagnosis.answer import Answer, answer_of
from busbw_analysis.diagnosis.judge import Judgement, with_joint_fits
from busbw_analysis.report import to_html, to_json, to_markdown
from busbw_analysis.report.document import (
    Page,
    Section,
    clock_time,
)
from busbw_analysis.report.sections.composition import composition
from busbw_analysis.report.sections.curves import Side, operations, overview
from busbw_analysis.report.sections.fits import fits
from busbw_analysis.report.sections.hierarchy import hierarchy
from busbw_analysis.report.sections.memory import memory
from busbw_analysis.report.sections.models import theory
from busbw_analysis.report.sections.pairs import pairs
from busbw_analysis.report.sections.ranks import rank_views
from busbw_analysis.report.sections.roofline import rooflines
from busbw_analysis.report.sections.run import environment, glossary, missing_cases, timing
from busbw_analysis.report.sections.selftest import overlaps, trust
from busbw_analysis.report.sections.steps import steps
from busbw_analysis.report.sections.storage import storage
from busbw_analysis.report.sections.verdicts import reasons, verdict_table

HTML_FILE, TEXT_FILE, JSON_FILE = "report.html", "report.md", "report.json"


@dataclass(frozen=True, slots=True)
class Report:
    """The three files of a report, as text, and the answer that they begin with."""

    answer: Answer
    html: str
    text: str
    json: str


def compose(judgement: Judgement) -> Report:
    """The report of ``judgement``. The same judgement gives the same bytes."""
    (judgement,) = with_joint_fits([judgement])
    page = page_of(judgement)
    machines = to_json.render(judgement, page.answer)
    return Report(page.answer, to_html.render(page), to_markdown.render(page), machines)


def folder_for(runs: Sequence[Path], output: Path | None) -> Path:
    """Where a report goes: ``output``, else the folder of the only run.

    Raises UsageError for several runs without ``output``: a report on three runs that lies in one of them would
    replace that run's own and be taken for it.
    """
    if output is not None:
        return output
    if len(runs) == 1:
        return runs[0]
    message = f"a report on {len(runs)} runs belongs to none of their folders; say where it goes with --output DIR"
    raise UsageError(message, code="no-output")


def write(report: Report, folder: Path) -> Path:
    """Write the three files into ``folder`` (made if need be) and return the path of the HTML one.

    Raises StoreError when that is not possible. Each file is replaced whole, so that a reader never sees half of one.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in ((JSON_FILE, report.json), (TEXT_FILE, report.text), (HTML_FILE, report.html)):
            draft = folder / f".{name}.draft"
            draft.write_text(text, encoding="utf-8")
            draft.replace(folder / name)
    except OSError as error:
        message = f"cannot write the report into {folder}: {error.strerror}; choose another folder with --output"
        raise StoreError(message, code="not-writable") from error
    return folder / HTML_FILE


def page_of(judgement: Judgement) -> Page:
    """The page, in the order in which one should read it."""
    dataset = judgement.dataset
    answer = answer_of(judgement)
    return Page(
        title=_title(dataset),
        subtitle=_subtitle(dataset.runs),
        answer=answer,
        verdicts=verdict_table(judgement, answer),
        figure=overview((Side(judgement),)),
        sections=tuple(_folded(judgement, answer)),
    )


def _folded(judgement: Judgement, answer: Answer) -> Iterator[Section]:
    """The sections that have something to say. What most readers do not need waits for a click."""
    shown = _SHOWN if any(verdict.busbw is not None for verdict in judgement.verdicts) else _SHOWN | _SHOWN_ALONE
    yield operations((Side(judgement),), reasons(answer))
    for write_section in _SECTIONS:
        if (section := write_section(judgement)) is not None:
            bad = section.anchor == "missing" and any(row.state == "failed" for row in judgement.dataset.cases)
            yield replace(section, folded=not bad and section.anchor not in shown)


def _title(dataset: Dataset) -> str:
    machines = list(dict.fromkeys(stored.run.machine for stored in dataset.runs))
    runs = f"{len(dataset.runs)} runs, " if len(dataset.runs) > 1 else ""
    return f"{runs}{_world(dataset)} on {', '.join(machines)}"


def _world(dataset: Dataset) -> str:
    """Ranks and backends in a few words."""
    ranks = sorted({len(stored.run.hosts) for stored in dataset.runs})
    backends = list(dict.fromkeys(row.case.backend for row in dataset.cases))
    many = "rank" if ranks == [1] else "ranks"
    return " ".join((" and ".join(map(str, ranks)), *backends, many))


def _subtitle(runs: Sequence[StoredRun]) -> str:
    first = runs[0].run
    names = first.id if len(runs) == 1 else ", ".join(stored.run.id for stored in runs)
    return f"busbw {first.busbw} · {names} · started {clock_time(first.started)} UTC"


_SECTIONS: Final[tuple[Callable[[Judgement], Section | None], ...]] = (
    steps,
    lambda one: pairs(one.matrices, one.splits, one.dataset.seats, one.pair_shares),
    lambda one: rank_views(one.dataset, one.cases, one.lateness),
    lambda one: missing_cases(one.dataset),
    composition,
    overlaps,
    theory,
    fits,
    hierarchy,
    memory,
    storage,
    rooflines,
    trust,
    lambda one: timing(one.dataset),
    lambda one: environment(one.dataset),
    lambda _one: glossary(),
)
"""The sections of a report, in the order in which one should read them; a section without anything to say is None."""

_SHOWN: Final = frozenset({"pairs", "ranks"})
_SHOWN_ALONE: Final = frozenset({"hierarchy", "memory", "storage", "roofline"})
"""Shown where no message was sent: what was asked for is here then."""
