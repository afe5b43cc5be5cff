"""A slice: a topic beside collectives and point to point, with all that is its own. ``assembly.slices`` lists them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from busbw.runs.records import JSON
from busbw.workloads.model_rows import Model
from busbw_analysis.diagnosis.answer import Answer
from busbw_analysis.diagnosis.judge import Evidence, Judgement, SliceJudgement
from busbw_analysis.report.document import Section

Chapter = Literal["answer", "curves", "asked", "results", "theory", "node", "run", "last"]
CHAPTERS: Final[tuple[Chapter, ...]] = get_args(Chapter)
"""The chapters of a report in reading order: the answer at length, the curves, what the command asked for, what was
measured, how it compares with models, the machine, how it was measured, the rest. In each, the sections of the slices
come before those of the core.
"""
Unfolded = Literal["always", "alone", "failed", "never"]
"""When a section is unfolded: always; ``alone``: if the run sent no messages; ``failed``: if a case failed; or never,
which needs a ``gist``.
"""


@dataclass(frozen=True, slots=True)
class Placed:
    """A section in its place; ``section`` is None if it has no content."""

    chapter: Chapter
    unfolded: Unfolded
    section: Section | None


@dataclass(frozen=True, slots=True)
class Slice:
    """One topic. Its findings, its part of the answer and its columns of tables are in its judgement.

    judge: its judgement on the data.
    sections: its sections of the report; the models are those for which ``busbw report`` was asked to plan.
    as_json: its keys of ``report.json``.
    exports: formats of ``busbw export`` that only it has.
    """

    name: str
    judge: Callable[[Evidence], SliceJudgement]
    sections: Callable[[Judgement, Sequence[Model]], Iterable[Placed]]
    as_json: Callable[[Judgement, Answer], Mapping[str, JSON]]
    exports: Mapping[str, Callable[[Judgement], bytes]] = field(default_factory=dict)
