"""One node as a slice: memory, storage, rooflines and the hierarchy of the machine; judgement, sections and JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from busbw.runs.records import JSON
from busbw.units import format_rate, listed
from busbw.workloads.model_rows import Model
from busbw_analysis.data.as_json import plain, with_values
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.answer import Answer
from busbw_analysis.diagnosis.judge import AnswerPart, CaseNumber, Cause, Evidence, Finding, Judgement
from busbw_analysis.node.hierarchy import HierarchyLevel, hierarchy
from busbw_analysis.node.memory import MemoryCurve, memory_curves
from busbw_analysis.node.roofline import (
    NetworkRoofline,
    Roofline,
    best_arithmetic,
    fusions_of,
    network_roofline,
    rooflines_of,
)
from busbw_analysis.node.storage import Stored, stored
from busbw_analysis.peaks.peaks import peak_as_json
from busbw_analysis.report.slices import Placed, Slice

_MOST: Final = 4
"""Levels that the answer names."""


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
        known = (level for level in self.levels if level.share is not None)
        shares = [f"{100 * (level.share or 0):.3g} % of {level.kind} by {level.name}" for level in known]
        return AnswerPart(
            shown_instead=f"not judged, because only nominal rates are known; reached: {listed(shares, _MOST)}"
            if shares
            else "",
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
    results, rows = evidence.results, evidence.rows
    first = results.facts.hosts[0]
    memory, files = memory_curves(results.facts, evidence.curves), stored(results, evidence.curves)
    rooflines = rooflines_of(results, memory, rows)
    return Node(
        memory=memory,
        files=files,
        rooflines=rooflines,
        networks=tuple(network for roofline in rooflines for network in network_roofline(results, roofline, rows)),
        levels=hierarchy(first, evidence.pictures[first].levels, evidence.curves, memory, files, evidence.matrices),
    )


def _sections(judgement: Judgement, _models: Sequence[Model]) -> Iterator[Placed]:
    # Loading matplotlib takes as long as all of ``show``, which does not need it.
    from busbw_analysis.node.sections.hierarchy import hierarchy  # noqa: PLC0415
    from busbw_analysis.node.sections.memory import memory  # noqa: PLC0415
    from busbw_analysis.node.sections.roofline import rooflines  # noqa: PLC0415
    from busbw_analysis.node.storage import storage  # noqa: PLC0415

    judged = judgement.of(Node)
    huge_pages = {str(host.thp) for stored in judgement.runs for host in stored.run.environments.values()}
    yield Placed("node", "alone", hierarchy(judged.levels))
    yield Placed("node", "alone", memory(judged.memory, judgement.cases, huge_pages))
    yield Placed("node", "alone", storage(judged.files))
    of_kernels = rooflines(judged.rooflines, judged.networks, several_ranks=len(judgement.facts.hosts) > 1)
    yield Placed("node", "alone", of_kernels)


def _as_json(judgement: Judgement, _answer: Answer) -> dict[str, JSON]:
    judged = judgement.of(Node)
    return {
        "rooflines": [_roofline(roofline) for roofline in judged.rooflines],
        "network_rooflines": plain(judged.networks),
        "memory": [_memory(curve) for curve in judged.memory],
        "storage": [
            {**plain(result), **result.check.document, "peak": peak_as_json(result.peak)} for result in judged.files
        ],
        "hierarchy": [with_values(level, "share") for level in judged.levels],
    }


def _roofline(roofline: Roofline) -> dict[str, JSON]:
    fusions = [with_values(fusion, "saved_ns", "saved_bytes") for fusion in fusions_of(roofline)]
    return {**plain(roofline), "fusions": fusions}


def _memory(curve: MemoryCurve) -> dict[str, JSON]:
    plateaus = curve.plateaus
    as_plain = plain(plateaus) if isinstance(plateaus, Unavailable) else with_values(plateaus, "outermost")
    return {**with_values(curve, "nominal"), "peak": peak_as_json(curve.peak), "plateaus": as_plain}


SLICE: Final = Slice("node", judge_node, _sections, _as_json)
