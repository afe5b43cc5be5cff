"""Runs with a duration as a slice: judgement, section and JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from busbw.runs.records import JSON, Case
from busbw.units import clock_time, counted, format_seconds, format_span, format_time
from busbw.workloads.model_rows import Model
from busbw_analysis.data.as_json import plain
from busbw_analysis.data.grouped import by_key
from busbw_analysis.diagnosis.answer import Answer
from busbw_analysis.diagnosis.findings import case_name
from busbw_analysis.diagnosis.judge import AnswerPart, CaseNumber, Cause, Evidence, Finding, Judgement
from busbw_analysis.endurance.timeline import FEWEST, Timeline, timeline_of
from busbw_analysis.report.document import Column, Paragraph, Section, percent, table
from busbw_analysis.report.slices import Placed, Slice

_LINE: Final = "▁▂▃▄▅▆▇█"
_LINE_POINTS: Final = 40


@dataclass(frozen=True, slots=True)
class Endurance:
    """The time-lines of the repeated cases, with their cases."""

    lines: tuple[tuple[Case, Timeline], ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Drift, steps and periodic slow spells."""
        return tuple(finding for case, line in self.lines for finding in _findings(case_name(case), line))

    @property
    def numbers(self) -> tuple[CaseNumber, ...]:
        """None."""
        return ()

    def answer(self, _judgement: Judgement, _causes: Sequence[Cause]) -> AnswerPart:
        """How long the cases were repeated, and how many changed."""
        if not self.lines:
            return AnswerPart()
        changed = sum(bool(line.drift or line.moves or line.spells) for _, line in self.lines)
        few = sum(line.windows < FEWEST for _, line in self.lines)
        span = format_span(max(line.seconds_measured for _, line in self.lines))
        text = f"{span}: {changed} of {counted(len(self.lines), 'case')} changed over time"
        return AnswerPart(
            label="Over time",
            text=f"{text}; {few} with fewer than {FEWEST} windows cannot be judged" if few else text,
        )


def judge_endurance(evidence: Evidence) -> Endurance:
    """The time-lines of all runs with a duration; of pooled ones, each by itself."""
    indices = {summary.case: summary.index for summary in evidence.results.cases}
    return Endurance(
        tuple(
            (case, timeline_of(indices[case], windows))
            for stored in evidence.results.runs
            for case, windows in by_key((window.case, window) for window in stored.windows).items()
        )
    )


def _findings(name: str, line: Timeline) -> Iterator[Finding]:
    for move in line.moves:
        size = f"The time of {name} stepped by {100 * (move.ratio - 1):+.3g} % at {clock_time(move.started)} UTC"
        between = f"95 %: {format_span(move.low)} to {format_span(move.high)}"
        when = f"That is {format_span(move.seconds)} into the run ({between})"
        yield Finding("caution", "level-step", (size, when))
    if line.drift is not None:
        drift = line.drift
        claim = f"The time of {name} drifts by {100 * drift.per_hour:+.2g} % per hour"
        yield Finding("caution", "slow-drift", (claim, f"95 %: {100 * drift.low:.2g} to {100 * drift.high:.2g} %"))
    if line.spells is not None:
        spells = line.spells
        claim = f"{name} is {100 * (spells.ratio - 1):.0f} % slower every {format_seconds(spells.period_seconds)}"
        yield Finding("caution", "periodic", (claim, f"A slow spell is {100 * spells.share:.0f} % of the period"))


def _shape(line: Timeline) -> str:
    """The medians from the lowest to the highest, left to right in time."""
    step = max(1, -(-line.windows // _LINE_POINTS))
    points = [float(line.median_ns[begin : begin + step].mean()) for begin in range(0, line.windows, step)]
    low, high = min(points), max(points)
    return "".join(_LINE[round((point - low) / ((high - low) or 1) * (len(_LINE) - 1))] for point in points)


_COLUMNS: Final[tuple[Column[tuple[Case, Timeline]], ...]] = (
    Column("Case", lambda row: case_name(row[0])),
    Column("Windows", lambda row: row[1].windows, str),
    Column("Lowest", lambda row: float(row[1].median_ns.min()), format_time),
    Column("Highest", lambda row: float(row[1].median_ns.max()), format_time),
    Column("Over time", lambda row: _shape(row[1])),
    Column(
        "Drift",
        lambda row: row[1].drift and row[1].drift.per_hour,
        percent,
        "% per hour",
        ends=lambda row: (None, None) if row[1].drift is None else (row[1].drift.low, row[1].drift.high),
    ),
    Column("Steps", lambda row: ", ".join(format_span(move.seconds) for move in row[1].moves) or None),
    Column("Period", lambda row: row[1].spells and row[1].spells.period_seconds, format_seconds),
)


def _sections(judgement: Judgement, _models: Sequence[Model]) -> Iterator[Placed]:
    lines = judgement.of(Endurance).lines
    section = None
    if lines:
        how = "Medians of windows, of the slowest rank. Interruptions are left out of the time."
        section = Section("over-time", "Over time", (Paragraph(how), table("Repeated cases", _COLUMNS, lines)))
    yield Placed("results", "always", section)


def _as_json(judgement: Judgement, _answer: Answer) -> dict[str, JSON]:
    return {"endurance": [plain(line) for _, line in judgement.of(Endurance).lines]}


SLICE: Final = Slice("endurance", judge_endurance, _sections, _as_json)
