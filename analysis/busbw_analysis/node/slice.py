"""One node as a slice: memory, storage, rooflines and the hierarchy of the machine, their sections and JSON."""

from collections.abc import Iterator, Sequence
from typing import Final

from busbw.runs.records import JSON
from busbw.workloads.model_rows import Model
from busbw_analysis.data.as_json import plain, with_values
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.answer import Answer
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.node.fusion import fusions_of
from busbw_analysis.node.judgement import Node, judge_node
from busbw_analysis.node.memory import MemoryCurve
from busbw_analysis.node.roofline import Roofline
from busbw_analysis.peaks.peaks import peak_as_json
from busbw_analysis.report.slices import Placed, Slice


def _sections(judgement: Judgement, _models: Sequence[Model]) -> Iterator[Placed]:
    # Loading matplotlib takes as long as all of ``show``, which does not need it.
    from busbw_analysis.node.sections.hierarchy import hierarchy  # noqa: PLC0415
    from busbw_analysis.node.sections.memory import memory  # noqa: PLC0415
    from busbw_analysis.node.sections.roofline import rooflines  # noqa: PLC0415
    from busbw_analysis.node.sections.storage import storage  # noqa: PLC0415

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
