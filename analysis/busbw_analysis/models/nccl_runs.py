"""NCCL's tuning model for a curve that was measured over NCCL, from the GPU facts of the run."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from busbw.ops.base import first_reason
from busbw.runs.placement import variables_of
from busbw.system.catalog import Catalogue, Gpu
from busbw_analysis.data.load import Dataset
from busbw_analysis.data.series import SeriesKey
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.models.nccl import ALGORITHMS, Architecture, Expectation, Machine, choose, ring_peak
from busbw_analysis.peaks.paths import gpu_model

_BY_LINK: Final[dict[str, Architecture]] = {
    "NVLink 2": "Volta",
    "NVLink 3": "Ampere",
    "NVLink 4": "Hopper",
    "NVLink 5": "Blackwell",
}
"""The architecture in NCCL's tables by the NVLink generation of a GPU."""

_OVERRIDES: Final = frozenset(
    f"NCCL_{name}"
    for name in (
        *("ALGO", "PROTO", "TUNER_PLUGIN", "NVLS_ENABLE", "P2P_DISABLE", "P2P_LEVEL"),
        *("MAX_NCHANNELS", "MIN_NCHANNELS", "MAX_CTAS", "MIN_CTAS"),
    )
)
_CHANNELS: Final = 16
"""Typical number of ring and tree channels that NCCL's search finds with NVSwitches; their model hardly depends on it.
NVLS has one channel per GPU.
"""


_ON_SWITCHES: Final = 8
"""This many GPUs with NVLink 3 or newer on one host are on one HGX board with NVSwitches."""
ONE_ELEMENT_BYTES: Final = 4
"""PyTorch implements its NCCL barrier as an all_reduce of one float (ProcessGroupNCCL.cpp)."""


def choices_of(
    dataset: Dataset, key: SeriesKey, sizes_bytes: Sequence[int], rows: Catalogue
) -> tuple[Machine, tuple[Expectation, ...]] | Unavailable:
    """The algorithm from NCCL's own model for each of ``sizes_bytes``, or what is missing for that. A barrier counts as
    an all_reduce of ONE_ELEMENT_BYTES.
    """
    op = next((one for one in ALGORITHMS if one == ("all_reduce" if key.op == "barrier" else key.op)), None)
    if op is None:
        return Unavailable(
            "op-not-in-table", f"NCCL runs {key.op} as sends and receives, which its tuning model does not include"
        )
    if key.algorithm is not None:
        return Unavailable("explicit-algorithm", "it ran an explicit algorithm over send/recv, not NCCL's own")
    machine = machine_of(dataset, key, rows)
    if isinstance(machine, Unavailable):
        return machine
    return machine, tuple(choose(op, size, machine) for size in sizes_bytes)


def machine_of(dataset: Dataset, key: SeriesKey, rows: Catalogue) -> Machine | Unavailable:
    """The input of NCCL's model from the facts of the run, or why it is incomplete."""
    variables = variables_of(dataset.environment(dataset.hosts_of(key.ranks)[0]))
    set_here = sorted(variable.in_words for variable in variables if variable.name in _OVERRIDES)
    refused = first_reason(
        (len(key.ranks) < 2, "one rank sends nothing"),
        (
            key.hosts > 1,
            "between hosts it needs the number of channels per network card, which is not recorded",
        ),
        (set_here, f"this run set {', '.join(set_here)}, so NCCL's own selection does not apply"),
    )
    if refused is not None:
        return Unavailable("nccl-not-asked", refused)
    row = gpu_model(dataset, key.ranks, rows)
    if isinstance(row, Unavailable):
        return replace(row, reason=f"NCCL's model needs the GPU: {row.reason}")
    architecture = _BY_LINK.get(row.link or "")
    if architecture is None:
        return Unavailable(
            "gpu-not-in-table", f"NCCL's tables do not include {row.name}, or it is not connected by NVLink"
        )
    up, switched = _links(dataset, key.ranks, row)
    if up is None:
        return Unavailable(
            "nvlinks-not-recorded",
            f"the number of active NVLinks per {row.name} was not recorded, so NCCL's bandwidth is unknown",
        )
    if not switched:
        return Unavailable(
            "no-nvswitch",
            "the GPUs are not connected by NVSwitches, so the result of NCCL's topology search is unknown",
        )
    return Machine(architecture, len(key.ranks), ring_peak(architecture, up), channels=max(_CHANNELS, up // 2))


def _links(dataset: Dataset, ranks: Sequence[int], row: Gpu) -> tuple[int | None, bool]:
    """The fewest active links of any of the ranks' GPUs (None if unknown), and whether all of them end at switches."""
    numbers = {dataset.placements[rank].gpu for rank in ranks}
    gpus = dataset.environment(dataset.hosts_of(ranks)[0]).pci.gpus
    if len(numbers) == _ON_SWITCHES and all(gpu.source is not None for gpu in gpus):
        return row.links, True
    used = [gpu.nvlink for gpu in gpus if gpu.index in numbers and gpu.nvlink is not None and gpu.nvlink.up]
    if len(used) < len(numbers):
        return None, False
    return min(links.up for links in used), all(links.switch == links.up for links in used)
