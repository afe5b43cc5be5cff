"""Fleets as a slice: the verdicts on a run whose rounds were chosen, its sections and JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from busbw.runs import store
from busbw.runs.records import JSON
from busbw.workloads.model_rows import Model
from busbw_analysis.diagnosis.answer import Answer
from busbw_analysis.diagnosis.judge import AnswerPart, CaseNumber, Cause, Evidence, Finding, Judgement
from busbw_analysis.fleet import outputs
from busbw_analysis.fleet.controller import Judged, is_fleet, judged
from busbw_analysis.fleet.search import Options
from busbw_analysis.fleet.verdicts import ratios
from busbw_analysis.report.document import Block, Paragraph, Section
from busbw_analysis.report.pairs import heatmap
from busbw_analysis.report.slices import Placed, Slice

_MOST_IN_A_MAP: Final = 64


@dataclass(frozen=True, slots=True)
class FleetRun:
    """The judged fleet; None if the run is of another kind, or several are pooled."""

    judged: Judged | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """None: the verdicts are the answer."""
        return ()

    @property
    def numbers(self) -> tuple[CaseNumber, ...]:
        """None."""
        return ()

    def answer(self, _judgement: Judgement, _causes: Sequence[Cause]) -> AnswerPart:
        """The answer of ``busbw fleet``."""
        return AnswerPart() if self.judged is None else AnswerPart(shown_instead=outputs.headline(self.judged, Options()))

    @property
    def blocks(self) -> list[Block]:
        """The verdicts, and all pairs as a figure; empty without a fleet."""
        if self.judged is None:
            return []
        lines = outputs.lines(self.judged, Options())
        blocks: list[Block] = [Paragraph(f"{label}: {text}") for label, text in lines[1:]]
        if self.judged.judgement.verdicts:
            blocks.append(outputs.verdict_table(self.judged))
        return blocks

    @property
    def map(self) -> list[Block]:
        """Every pair as a cell, ordered by switch; empty without pairs."""
        fleet = self.judged.judgement.fleet if self.judged is not None else None
        nodes = outputs.heat_nodes(self.judged, _MOST_IN_A_MAP) if self.judged is not None else []
        if self.judged is None or fleet is None or not fleet.pairs or len(nodes) < 2:
            return []
        times = ratios(self.judged.judgement, fleet.pairs[0])[np.ix_(nodes, nodes)]
        switches = [fleet.switches[leaf] if (leaf := int(fleet.leaf[node])) >= 0 else "" for node in nodes]
        return [heatmap("Time over the usual", [fleet.names[node] for node in nodes], times, "", switches, folded=False)]


def judge_fleet(evidence: Evidence) -> FleetRun:
    """The judgement on a run of ``busbw fleet``, whose samples are read again."""
    runs = evidence.results.runs
    if len(runs) != 1 or not is_fleet(runs[0].run):
        return FleetRun()
    return FleetRun(judged([store.read(runs[0].path)], [None], Options(), None))


def _sections(judgement: Judgement, _models: Sequence[Model]) -> Iterator[Placed]:
    found = judgement.of(FleetRun)
    section = None
    if found.judged is not None:
        answer = Paragraph(outputs.headline(found.judged, Options()))
        section = Section("fleet", "Fleet", (answer, *found.blocks, *found.map))
    yield Placed("asked", "always", section)


def _as_json(judgement: Judgement, _answer: Answer) -> dict[str, JSON]:
    found = judgement.of(FleetRun).judged
    names = [stored.run.id for stored in judgement.runs]
    return {"fleet": None if found is None else outputs.document(found, Options(), names, None)}


SLICE: Final = Slice("fleet", judge_fleet, _sections, _as_json)
