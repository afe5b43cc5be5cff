"""Writes the report of a judgement: composes the page, its answer and its verdicts, and puts the files on the disk."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from busbw.errors import StoreError, UsageError
from busbw.runs.progress import progress_of
from busbw.runs.store import StoredRun
from busbw.units import format_rate, format_size, format_time
from busbw_analysis.data.load import Dataset
from busbw_analysis.diagnosis.answer import Answer, answer_of
from busbw_analysis.diagnosis.judge import Judgement, Verdict, with_joint_fits
from busbw_analysis.diagnosis.verdicts import MODEL_TOLERANCE, NEAR_PEAK
from busbw_analysis.report import to_html, to_json, to_markdown
from busbw_analysis.report.document import (
    MISSING,
    TONES,
    Block,
    Cell,
    Column,
    Page,
    Paragraph,
    Section,
    clock_time,
    letter,
    percent,
    sentence,
    table,
    three_digits,
)
from busbw_analysis.report.sections.composition import composition
from busbw_analysis.report.sections.curves import ends_in_words, operations
from busbw_analysis.report.sections.fits import fits
from busbw_analysis.report.sections.hierarchy import hierarchy
from busbw_analysis.report.sections.memory import memory
from busbw_analysis.report.sections.models import theory
from busbw_analysis.report.sections.pairs import pairs
from busbw_analysis.report.sections.ranks import rank_views
from busbw_analysis.report.sections.roofline import rooflines
from busbw_analysis.report.sections.run import environment, glossary, missing_cases, ran_for, timing
from busbw_analysis.report.sections.selftest import overlaps, trust
from busbw_analysis.report.sections.steps import steps
from busbw_analysis.report.sections.storage import storage

HTML_FILE, TEXT_FILE, JSON_FILE = "report.html", "report.md", "report.json"

_PEAK_NOTE: Final = (
    "One number each, without an interval: that of a measured peak stands with memory_copy, a nominal one has none."
)
_NO_VERDICT: Final = (
    "There is no curve of messages to judge. What stays in memory or on storage is shown below with its peak, where "
    "one is known, and not judged."
)
_HOW: Final = (
    "Verdicts are rules of thumb, not tests, however many launches there are: they compare medians with fixed limits, "
    f"{NEAR_PEAK:.0%} of the peak, and {MODEL_TOLERANCE:g} times the model's time. "
    "Where the interval or the range of the launches lies on both sides of a limit, they are undecided."
)


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
        facts=_facts(judgement),
        sections=(
            _verdicts(answer),
            *(section for write_section in _SECTIONS if (section := write_section(judgement)) is not None),
        ),
    )


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


def _short_of(dataset: Dataset) -> str:
    """How many launches are whole, where a run has fewer of them than its plan."""
    found = [progress_of(stored) for stored in dataset.runs]
    complete, planned = sum(one.complete for one in found), sum(one.planned for one in found)
    return f" ({complete} of the {planned} planned complete)" if complete < planned else ""


def _facts(judgement: Judgement) -> tuple[tuple[str, str], ...]:
    dataset = judgement.dataset
    states = Counter(row.state for row in dataset.cases)
    missing = ", ".join(f"{number} {state}" for state, number in states.items() if state != "measured")
    ends = list(dict.fromkeys(stored.end.status if stored.end else "killed" for stored in dataset.runs))
    timers = [cost for stored in dataset.runs for launch in stored.launches for cost in launch.timer_ns]
    return (
        ("Cases measured", f"{states['measured']} of {len(dataset.cases)}"),
        ("Cases without a result", missing or "none"),
        ("Launches", f"{sum(len(stored.launches) for stored in dataset.runs)}{_short_of(dataset)}"),
        ("Run ended", ", ".join(ends)),
        ("Time spent", ", ".join(ran_for(stored) for stored in dataset.runs)),
        ("One clock reading", format_time(max(timers)) if timers else MISSING),
    )


def _verdicts(answer: Answer) -> Section:
    """Measured against peak and model. 100 % of what is said below the table, by letters."""
    verdicts, causes = answer.verdicts, {cause.code: cause.text for cause in answer.causes}
    if not verdicts:
        return Section("verdict", "Verdict", (Paragraph(_NO_VERDICT),))
    peaks: dict[tuple[str, str], list[str]] = {}
    for verdict in verdicts:
        if (peak := _peak(verdict)) is not None:
            peaks.setdefault(peak, []).append(verdict.op)
    letters = {peak: letter(number) for number, peak in enumerate(peaks)}
    columns: tuple[Column[Verdict], ...] = (
        Column("Curve", lambda one: one.label),
        Column("Sizes", lambda one: one.band),
        Column("Judged at", lambda one: one.size_bytes or None, format_size),
        Column("Time of a call", lambda one: one.time_ns, format_time),
        Column("low", lambda one: one.interval.low_ns, format_time),
        Column("high", lambda one: one.interval.high_ns, format_time),
        Column("Model's time", lambda one: one.time_ns / one.model_ratio if one.model_ratio else None, format_time),
        Column("Time / model", lambda one: one.model_ratio or None, three_digits),
        Column("busbw", lambda one: one.busbw, format_rate),
        Column("Share of the peak", lambda one: _share(one, letters), str),
        Column("Verdict", lambda one: Cell(one.text, tone=TONES[one.status])),
        Column("Explained by", lambda one: one.explained_by),
    )
    why: tuple[Column[Verdict], ...] = (
        *columns[:2],
        Column("Verdict", lambda one: one.text),
        Column("Why", lambda one: sentence(one.why)),
        Column("Explained by", lambda one: causes.get(one.explained_by or "")),
    )
    of_peaks: tuple[Column[tuple[str, str]], ...] = (
        Column("Peak", lambda peak: letters[peak]),
        Column("100 % (busbw)", lambda peak: peak[0], str),
        Column("For", lambda peak: ", ".join(dict.fromkeys(peaks[peak]))),
        Column("What it is", lambda peak: peak[1]),
    )
    blocks: list[Block] = [
        table(
            "Measured against peak and model",
            columns,
            verdicts,
            ends_in_words(verdict.interval for verdict in verdicts),
            "Time / model is the measured time over the predicted one: above 1 is slower than the model",
            "Ratio, busbw and share are as unsure as the time that they are made of",
            "Small: up to 4 KiB; large: from 1 MiB on",
        )
    ]
    if peaks:
        blocks.append(table("What 100 % is", of_peaks, peaks, _PEAK_NOTE))
    if any(verdict.why for verdict in verdicts):
        unsure = [verdict for verdict in verdicts if verdict.why]
        blocks.append(table("Why, verdict by verdict", why, unsure, row_headers=2, folded=True))
    blocks.insert(0, Paragraph(_HOW))
    if any(verdict.indicative for verdict in verdicts):
        few = "Indicative only: with fewer than 4 launches, another start of the same program may say something else."
        blocks.insert(0, Paragraph(few))
    return Section("verdict", "Verdict", tuple(blocks))


def _peak(verdict: Verdict) -> tuple[str, str] | None:
    """What 100 % is: the rate and the sentence, alike for all operations that have it in common."""
    if not verdict.peak_share or not verdict.busbw:
        return None
    what = verdict.denominator.replace(f"{verdict.op} on ranks", "the operation on ranks")
    return format_rate(verdict.busbw / verdict.peak_share), sentence(what)


def _share(verdict: Verdict, letters: dict[tuple[str, str], str]) -> str | None:
    peak = _peak(verdict)
    return None if peak is None else f"{percent(verdict.peak_share or 0.0)} % of {letters[peak]}"


_SECTIONS: Final[tuple[Callable[[Judgement], Section | None], ...]] = (
    hierarchy,
    operations,
    memory,
    storage,
    steps,
    lambda one: pairs(one.matrices, one.splits, one.dataset.seats, one.pair_shares),
    lambda one: rank_views(one.dataset, one.cases, one.lateness),
    overlaps,
    composition,
    theory,
    fits,
    rooflines,
    lambda one: missing_cases(one.dataset),
    trust,
    lambda one: timing(one.dataset),
    lambda one: environment(one.dataset),
    lambda _one: glossary(),
)
"""The sections of a report, in the order in which one should read them; a section without anything to say is None."""
