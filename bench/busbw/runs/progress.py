"""Progress of a run: which launches of its plan are complete or partial, counted in blocks that have a row."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from busbw.runs.outline import Outline, outline_of
from busbw.runs.records import Case
from busbw.runs.store import StoredRun
from busbw.units import counted

CaseBlock = tuple[Case, int]
"""A case and the number of one of its blocks."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run. A launch that resumes another one counts as that one.

    planned: number of launches in the plan
    whole: blocks of a complete launch; cases that were skipped, or failed through their own fault, are excluded
    there: launch → its measured blocks, for every launch that began
    origin: launch → the launch of the plan whose blocks it measures
    """

    planned: int
    whole: frozenset[CaseBlock]
    there: Mapping[int, frozenset[CaseBlock]]
    origin: Mapping[int, int]

    def planned_as(self, launch: int) -> int:
        """The launch of the plan whose blocks ``launch`` measures: itself, or the launch that it resumes."""
        return self.origin.get(launch, launch)

    def lacking(self, launch: int) -> frozenset[CaseBlock]:
        """The blocks that ``launch`` has not measured; all of them if it never began."""
        return self.whole - self.there.get(launch, frozenset())

    @property
    def complete(self) -> int:
        """Number of launches that have all their blocks."""
        return sum(not self.lacking(launch) for launch in self.there)

    @property
    def partial(self) -> dict[int, int]:
        """Launch that began but lacks blocks → number of its measured blocks."""
        return {launch: len(self.whole) - len(lacking) for launch in self.there if (lacking := self.lacking(launch))}

    def in_words(self) -> str:
        """A sentence that counts launches from 1: "1 of 4 launches is complete, launch 2 in part (40 of 80 blocks)"."""
        launches = counted(self.planned, "launch", "launches")
        verb = "is" if 1 in {self.complete, self.planned} else "are"
        whole = len(self.whole)
        parts = [f"launch {launch + 1} in part ({blocks} of {whole} blocks)" for launch, blocks in self.partial.items()]
        return ", ".join([f"{self.complete} of {launches} {verb} complete", *parts])


class RunLine(msgspec.Struct, frozen=True, kw_only=True):
    """What a list of runs shows of one. ``state``: how it ended; ``measured``: number of cases with a result."""

    machine: str
    plan: str | None
    ranks: int
    measured: int
    cases: int
    complete: int
    planned: int
    state: str


def line_of(run: Outline) -> RunLine:
    """The line of a run in a list."""
    progress = progress_of(run)
    return RunLine(
        machine=run.machine,
        plan=run.plan.get("name"),
        ranks=run.ranks,
        measured=len({case for _, case, _ in run.blocks}),
        cases=len(run.cases),
        complete=progress.complete,
        planned=progress.planned,
        state=run.end.status if run.end else "not ended: killed or still running",
    )


def progress_of(stored: StoredRun | Outline) -> Progress:
    """The progress of a run. If its plan (of a log) lacks the number of blocks or launches, the run is assumed
    to have all of them.
    """
    run = outline_of(stored) if isinstance(stored, StoredRun) else stored
    timing = run.plan.get("timing") or {}
    blocks = timing.get("blocks") or 1 + max((block for _, _, block in run.blocks), default=0)
    origin: dict[int, int] = {}
    for launch, resumes in run.launches.items():
        origin[launch] = launch if resumes is None else origin.get(resumes, resumes)
    there: dict[int, set[CaseBlock]] = {launch: set() for launch in sorted(set(origin.values()))}
    for launch, case, block in run.blocks:
        there.setdefault(origin.get(launch, launch), set()).add((case, block))
    return Progress(
        planned=run.plan.get("launches") or len(there),
        whole=frozenset((case, block) for case in run.cases if case not in run.out for block in range(blocks)),
        there={launch: frozenset(measured) for launch, measured in there.items()},
        origin=origin,
    )
