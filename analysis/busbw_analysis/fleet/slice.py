"""Fleets as a slice: the verdicts on a run whose rounds were chosen, its sections and JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from busbw.runs import store
from busbw.runs.records import JSON
from busbw.workloads.model_rows import Model
from busbw_analysis.data.sentences import capitalised
from busbw_analysis.diagnosis.answer import Answer
from busbw_analysis.diagnosis.judge import AnswerPart, CaseNumber, Cause, Evidence, Finding, Judgement
from busbw_analysis.fleet import outputs
from busbw_analysis.fleet.controller import Judged, is_fleet, judged
from busbw_analysis.fleet.search import Options
from busbw_analysis.fleet.verdicts import fullest, ratios
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
        return AnswerPart(shown_instead=outputs.headline(self.judged, Options()) if self.judged is not None else "")

    @property
    def blocks(self) -> list[Block]:
        """The verdicts, without the first in words; empty without a fleet."""
        if self.judged is None:
            return []
        blocks: list[Block] = [
            Paragraph(f"{label}: {text}.") for label, text in outputs.lines(self.judged, Options())[1:]
        ]
        return [*blocks, outputs.verdict_table(self.judged)] if self.judged.judgement.verdicts else blocks


def judge_fleet(evidence: Evidence) -> FleetRun:
    """The judgement on a run of ``busbw fleet``, whose samples are read again."""
    runs = evidence.results.runs
    if len(runs) != 1 or not is_fleet(runs[0].run):
        return FleetRun()
    return FleetRun(judged([store.read(runs[0].path)], [None], Options(), None))


def _sections(judgement: Judgement, _models: Sequence[Model]) -> Iterator[Placed]:
    run = judgement.of(FleetRun)
    section = None
    if run.judged is not None:
        answer = Paragraph(f"{capitalised(outputs.headline(run.judged, Options()))}.")
        section = Section("fleet", "Fleet", (answer, *run.blocks, *_map(run.judged)))
    yield Placed("answer", "always", section)


def _map(fleet_run: Judged) -> Iterator[Block]:
    """Every pair as a cell, ordered by switch."""
    judgement, nodes = fleet_run.judgement, outputs.heat_nodes(fleet_run, _MOST_IN_A_MAP)
    fleet = judgement.fleet
    if fleet.pairs and len(nodes) > 1:
        shown = fullest(judgement)
        times = ratios(judgement, shown)[np.ix_(nodes, nodes)]
        switches = [fleet.switches[fleet.leaf[node]] if fleet.leaf[node] >= 0 else "" for node in nodes]
        names = [fleet.names[node] for node in nodes]
        yield heatmap(
            f"Time of {outputs.case_words(fleet_run, shown)} over the usual",
            names,
            times,
            "times",
            switches,
            folded=False,
        )


def _as_json(judgement: Judgement, _answer: Answer) -> dict[str, JSON]:
    fleet_run = judgement.of(FleetRun).judged
    names = [stored.run.id for stored in judgement.runs]
    return {"fleet": None if fleet_run is None else outputs.document(fleet_run, Options(), names, None)}


SLICE: Final = Slice("fleet", judge_fleet, _sections, _as_json)
