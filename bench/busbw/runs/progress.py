"""How far a run is: which launches of its plan are there, whole or in part, by the blocks that have a row."""

from collections.abc import Mapping
from dataclasses import dataclass

from busbw.runs.outline import Outline, outline_of
from busbw.runs.records import Case
from busbw.runs.store import StoredRun

CaseBlock = tuple[Case, int]
"""A block of a case, by its number."""


@dataclass(frozen=True, slots=True)
class Progress:
    """``planned`` launches of the blocks ``whole`` each; ``there`` maps every launch that began to what it has of them.

    A launch that measured what another one left counts for that one: ``origin`` says for which. Cases that were
    skipped, or failed by their own doing, are no part of ``whole``: they lack nothing.
    """

    planned: int
    whole: frozenset[CaseBlock]
    there: Mapping[int, frozenset[CaseBlock]]
    origin: Mapping[int, int]

    def planned_as(self, launch: int) -> int:
        """The launch of the plan whose blocks ``launch`` measures: itself, or the one that it resumes."""
        return self.origin.get(launch, launch)

    def lacking(self, launch: int) -> frozenset[CaseBlock]:
        """What ``launch`` has not measured yet: all of it where it never began."""
        return self.whole - self.there.get(launch, frozenset())

    @property
    def complete(self) -> int:
        """How many launches have all their blocks."""
        return sum(not self.lacking(launch) for launch in self.there)

    @property
    def partial(self) -> dict[int, int]:
        """The launches that began and lack blocks → how many blocks they have."""
        return {launch: len(self.whole) - len(lacking) for launch in self.there if (lacking := self.lacking(launch))}

    def in_words(self) -> str:
        """For people, who count launches from 1: "1 of 4 launches is complete, launch 2 in part (40 of 80 blocks)"."""
        launches = "1 launch" if self.planned == 1 else f"{self.planned} launches"
        verb = "is" if self.complete == 1 else "are"
        whole = len(self.whole)
        parts = [f"launch {one + 1} in part ({blocks} of {whole} blocks)" for one, blocks in self.partial.items()]
        return ", ".join([f"{self.complete} of {launches} {verb} complete", *parts])


def progress_of(stored: StoredRun | Outline) -> Progress:
    """How much of its plan ``stored`` has. A plan that does not say how many blocks or launches it has (of an older
    busbw) is taken to have as many as there are.
    """
    told = outline_of(stored) if isinstance(stored, StoredRun) else stored
    timing = told.plan.get("timing") or {}
    blocks = timing.get("blocks") or 1 + max((block for _, _, block in told.blocks), default=0)
    origin: dict[int, int] = {}
    for launch, resumes in told.launches.items():
        origin[launch] = launch if resumes is None else origin.get(resumes, resumes)
    there: dict[int, set[CaseBlock]] = {launch: set() for launch in sorted(set(origin.values()))}
    for launch, case, block in told.blocks:
        there.setdefault(origin.get(launch, launch), set()).add((case, block))
    return Progress(
        planned=told.plan.get("launches") or len(there),
        whole=frozenset((case, block) for case in told.cases if case not in told.out for block in range(blocks)),
        there={launch: frozenset(found) for launch, found in there.items()},
        origin=origin,
    )
