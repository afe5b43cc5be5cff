"""How far a run is: which launches of its plan are there, whole or in part, by the blocks that have a row."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from busbw.records import Case
from busbw.store import StoredRun

CaseBlock = tuple[Case, int]
"""A block of a case, by its number."""


@dataclass(frozen=True, slots=True)
class Progress:
    """``planned`` launches of the blocks ``whole`` each; ``there`` maps every launch that began to what it has of them.

    A launch that measured what another one left counts for that one. Cases that failed or were skipped are no part of
    ``whole``: they lack nothing.
    """

    planned: int
    whole: frozenset[CaseBlock]
    there: Mapping[int, frozenset[CaseBlock]]

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
        return ", ".join([f"{self.complete} of {launches} {verb} complete", *self._parts()])

    def _parts(self) -> Iterator[str]:
        for launch, blocks in self.partial.items():
            yield f"launch {launch + 1} in part ({blocks} of {len(self.whole)} blocks)"


def progress_of(stored: StoredRun) -> Progress:
    """How much of its plan ``stored`` has. A plan that does not say how many blocks or launches it has (of an older
    busbw) is taken to have as many as there are.
    """
    out = {row.case for row in stored.skipped} | {row.case for row in stored.failed}
    timing = stored.run.plan.get("timing") or {}
    blocks = timing.get("blocks") or 1 + max((row.block for row in stored.measurements), default=0)
    origin: dict[int, int] = {}
    for launch in stored.launches:
        origin[launch.launch] = launch.launch if launch.resumes is None else origin.get(launch.resumes, launch.resumes)
    there: dict[int, set[CaseBlock]] = {launch: set() for launch in sorted(set(origin.values()))}
    for row in stored.measurements:
        there.setdefault(origin.get(row.launch, row.launch), set()).add((row.case, row.block))
    return Progress(
        planned=stored.run.plan.get("launches") or len(there),
        whole=frozenset((case, block) for case in stored.run.cases if case not in out for block in range(blocks)),
        there={launch: frozenset(blocks) for launch, blocks in there.items()},
    )
