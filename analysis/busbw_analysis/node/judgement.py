"""The judgement on one node: memory, storage, rooflines and the hierarchy of the machine."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from busbw.units import format_rate
from busbw_analysis.diagnosis.contributions import AnswerPart, CaseNumber, Cause
from busbw_analysis.diagnosis.judge import Evidence, Finding, Judgement
from busbw_analysis.node.hierarchy import HierarchyLevel, hierarchy
from busbw_analysis.node.memory import MemoryCurve, memory_curves
from busbw_analysis.node.network_roofline import NetworkRoofline, network_rooflines
from busbw_analysis.node.roofline import Roofline, best_arithmetic, rooflines_of
from busbw_analysis.node.storage import Stored, stored


@dataclass(frozen=True, slots=True)
class Node:
    """What was measured within hosts.

    memory, files: results of kernels in memory and of operations on storage.
    levels: the hierarchy of the machine.
    """

    memory: tuple[MemoryCurve, ...]
    files: tuple[Stored, ...]
    rooflines: tuple[Roofline, ...]
    networks: tuple[NetworkRoofline, ...]
    levels: tuple[HierarchyLevel, ...]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """None: rates that are too low show in their tables only."""
        return ()

    @property
    def numbers(self) -> tuple[CaseNumber, ...]:
        """None."""
        return ()

    def answer(self, _judgement: Judgement, _causes: Sequence[Cause]) -> AnswerPart:
        """The highest rates."""
        listed = any(level.share is not None for level in self.levels)
        return AnswerPart(
            shown_instead="not judged: the rates are listed beside the nominal rates of the hardware" if listed else "",
            rates=tuple(best_arithmetic(self.rooflines)),
            rates_without_busbw=tuple(self._best_memory()),
        )

    def _best_memory(self) -> Iterator[str]:
        """The rate of main memory, or those of storage if it was not measured."""
        measured = [level for level in self.levels if level.measured]
        memory = next((level for level in measured if level.kind in {"DRAM", "HBM"}), None)
        files = [level for level in measured if level.kind == "storage"]
        if memory is not None:
            share = "" if memory.share is None else f", {100 * memory.share:.3g} % of nominal"
            yield f"{memory.kind} ({memory.name}): {format_rate(memory.measured)}{share} ({memory.how})"
        elif files:
            rates = ", ".join(f"{level.name} {format_rate(level.measured)}" for level in files)
            yield f"highest rates of all ranks together: {rates}"


def judge_node(evidence: Evidence) -> Node:
    """The judgement on all that was measured within hosts."""
    dataset, rows = evidence.dataset, evidence.rows
    memory, files = memory_curves(dataset, evidence.curves), stored(dataset, evidence.curves)
    rooflines = rooflines_of(dataset, memory, rows)
    pairs = list(zip(evidence.matrices, evidence.pair_shares, strict=True))
    return Node(
        memory=memory,
        files=files,
        rooflines=rooflines,
        networks=network_rooflines(dataset, rooflines, rows),
        levels=hierarchy(dataset, evidence.curves, memory, files, pairs, rows),
    )
