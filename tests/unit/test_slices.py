"""A slice is complete: its row alone brings its judgement to every output."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import pytest
from testing.synthetic import World, case, synthetic_run

from busbw_analysis.assembly import compose, to_json
from busbw_analysis.assembly import judge as assembled
from busbw_analysis.assembly.slices import SLICES
from busbw_analysis.data.load import pool
from busbw_analysis.diagnosis import judge as core
from busbw_analysis.diagnosis.answer import answer_of
from busbw_analysis.diagnosis.findings import Finding
from busbw_analysis.diagnosis.judge import AnswerPart, CaseNumber, Cause, Evidence, Judgement
from busbw_analysis.report.document import Paragraph, Section
from busbw_analysis.report.show import show_blocks, show_rows
from busbw_analysis.report.slices import CHAPTERS, Chapter, Placed, Slice
from busbw_analysis.report.to_terminal import render


@dataclass(frozen=True)
class Weather:
    """A judgement on something that no core knows: the temperature while each case ran."""

    degrees: dict[int, float | None]

    @property
    def findings(self) -> tuple[Finding, ...]:
        return (Finding("bad", "frost", ("It froze",)),)

    @property
    def numbers(self) -> tuple[CaseNumber, ...]:
        return (CaseNumber("cooled_ns", "cooled", "ns", self.degrees, "cooled: an example"),)

    def answer(self, _judgement: Judgement, _causes: Sequence[Cause]) -> AnswerPart:
        cause = Cause("frost", "it froze", "heat the room")
        return AnswerPart(
            label="Weather",
            text="cold",
            statuses=frozenset({"slower"}),
            causes=(cause,),
            action="dress",
            rates=("9 K",),
        )


def judge_weather(evidence: Evidence) -> Weather:
    return Weather({row.index: 7.0 for row in evidence.results.cases})


def placed(chapter: Chapter) -> Slice:
    def sections(judgement: Judgement, _models: object) -> Iterator[Placed]:
        blocks = (Paragraph(f"{len(judgement.of(Weather).degrees)} cases"),)
        yield Placed(chapter, "always", Section("weather", "Weather", blocks))
        yield Placed(chapter, "always", None)

    return Slice("weather", judge_weather, sections, lambda judgement, _: {"weather": len(judgement.slices)})


def with_weather(monkeypatch: pytest.MonkeyPatch, chapter: Chapter) -> Judgement:
    for module in (assembled, compose, to_json):
        monkeypatch.setattr(module, "SLICES", (*SLICES, placed(chapter)))
    run = synthetic_run([case("all_reduce", 1 << size) for size in (10, 20)], World(), launches=2)
    return assembled.judge(pool((run,)))


def test_a_third_slice_is_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    judgement = with_weather(monkeypatch, "results")
    assert "frost" in {finding.code for finding in judgement.findings}
    answer = answer_of(judgement)
    assert answer.status == "failed", "the worst of core and slices"
    assert ("Weather", "Cold.") in answer.lines
    assert "frost" in {cause.code for cause in answer.causes}
    assert "dress" in answer.action.lower()
    assert "9 K" in answer.measured
    rows = show_rows(judgement)
    assert all(row.document["cooled_ns"] == 7.0 for row in rows)
    assert "cooled" in render(show_blocks(rows))
    page = compose.page_of(judgement)
    anchors = [section.anchor for section in page.sections]
    assert anchors.count("weather") == 1
    assert anchors.index("weather") < anchors.index("glossary")
    assert json.loads(compose.compose(judgement).json)["weather"] == len(SLICES) + 1


def test_chapters_are_in_reading_order(monkeypatch: pytest.MonkeyPatch) -> None:
    places = []
    for chapter in CHAPTERS:
        sections = compose.page_of(with_weather(monkeypatch, chapter)).sections
        places.append([section.anchor for section in sections].index("weather"))
    assert places == sorted(places)


def test_the_core_judges_without_slices() -> None:
    dataset = pool((synthetic_run([case("all_reduce", 1 << 20)], World(), launches=2),))
    alone, whole = core.judge(dataset), assembled.judge(dataset)
    assert {type(part).__name__ for part in whole.slices} == {"FleetRun", "Endurance", "Training", "Node"}
    assert all(
        repr(getattr(alone, field.name)) == repr(getattr(whole, field.name))
        for field in fields(Judgement)
        if field.name not in {"slices", "results", "samples"}
    )
    assert answer_of(alone).status == answer_of(whole).status
