"""What NCCL's own model expects of a curve that was measured over NCCL, from what the run recorded of its GPUs."""

from collections.abc import Sequence
from typing import Final

from busbw.ops.base import first_reason
from busbw.runs.facts import fact
from busbw.runs.placement import variables_of
from busbw.system.catalog import Catalogue, Gpu
from busbw.system.detect import from_log, gpus_of
from busbw_analysis.data.load import Dataset
from busbw_analysis.data.series import SeriesKey
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.models.nccl import ALGORITHMS, Architecture, Chosen, Machine, choose, ring_peak
from busbw_analysis.peaks.paths import gpu_model

_BY_LINK: Final[dict[str, Architecture]] = {
    "NVLink 2": "Volta",
    "NVLink 3": "Ampere",
    "NVLink 4": "Hopper",
    "NVLink 5": "Blackwell",
}
"""What a GPU's links tell of its architecture: those that NCCL's tables have."""

_OVERRIDES: Final = frozenset(
    f"NCCL_{name}"
    for name in (
        *("ALGO", "PROTO", "TUNER_PLUGIN", "NVLS_ENABLE", "P2P_DISABLE", "P2P_LEVEL"),
        *("MAX_NCHANNELS", "MIN_NCHANNELS", "MAX_CTAS", "MIN_CTAS"),
    )
)
_CHANNELS: Final = 16
"""The search for rings and trees settles on about so many where NVSwitches connect the GPUs; the model of these hardly
depends on it. NVLS has one for each GPU.
"""


_ON_SWITCHES: Final = 8
"""So many GPUs with NVLink 3 or newer on one host are on one board, which connects them by NVSwitches (HGX)."""
_ONE_ELEMENT_BYTES: Final = 4
"""PyTorch has its barrier over NCCL as an all_reduce of one float (ProcessGroupNCCL.cpp)."""


def choices_of(
    dataset: Dataset, key: SeriesKey, sizes_bytes: Sequence[int], rows: Catalogue
) -> tuple[Machine, tuple[Chosen, ...]] | Unavailable:
    """What NCCL would choose and expect at each of ``sizes_bytes`` by its own model, or what is missing for that; of a
    barrier, what it would for one element.
    """
    op = next((one for one in ALGORITHMS if one == ("all_reduce" if key.op == "barrier" else key.op)), None)
    if op is None:
        return Unavailable(
            "op-not-in-table", f"NCCL makes {key.op} of plain sends and receives, for which its tuning model has no row"
        )
    if key.algorithm is not None:
        return Unavailable("explicit-algorithm", "it was run over send/recv, which is not NCCL's choice")
    machine = machine_of(dataset, key, rows)
    if isinstance(machine, Unavailable):
        return machine
    return machine, tuple(choose(op, size or _ONE_ELEMENT_BYTES, machine) for size in sizes_bytes)


def machine_of(dataset: Dataset, key: SeriesKey, rows: Catalogue) -> Machine | Unavailable:
    """What NCCL's model is fed with, as far as the run tells it; or why it does not."""
    variables = variables_of(dataset.environment(dataset.hosts_of(key.ranks)[0]))
    set_here = sorted(name for name in variables if name.split()[0] in _OVERRIDES)
    refused = first_reason(
        (len(key.ranks) < 2, "one rank sends nothing"),
        (
            key.hosts > 1,
            "between hosts it needs how many channels go through which network card, which is not recorded",
        ),
        (set_here, f"NCCL's own choice does not hold: {', '.join(set_here)} was set in this run"),
    )
    if refused is not None:
        return Unavailable("nccl-not-asked", refused)
    row = gpu_model(dataset, key.ranks, rows)
    if isinstance(row, str):
        return Unavailable("gpu-not-known", f"NCCL's model needs the GPU: {row}")
    architecture = _BY_LINK.get(row.link or "")
    if architecture is None:
        return Unavailable(
            "gpu-not-in-table", f"NCCL's tables have no row for {row.name}, or it is not connected by NVLink"
        )
    up, switched = _links(dataset, key.ranks, row)
    if up is None:
        return Unavailable(
            "nvlinks-not-recorded",
            f"how many NVLinks of each {row.name} are up was not recorded, so NCCL's bandwidth is not known",
        )
    if not switched:
        return Unavailable(
            "no-nvswitch",
            "the GPUs are not connected by NVSwitches: what NCCL's search makes of their links is not known",
        )
    return Machine(architecture, len(key.ranks), ring_peak(architecture, up), channels=max(_CHANNELS, up // 2))


def _links(dataset: Dataset, ranks: Sequence[int], row: Gpu) -> tuple[int | None, bool]:
    """The fewest links up of any of the ranks' GPUs, and whether all of them end at switches."""
    numbers = {dataset.placements[rank].gpu for rank in ranks}
    gpus = gpus_of(dataset.environment(dataset.hosts_of(ranks)[0]))
    if len(numbers) == _ON_SWITCHES and all(map(from_log, gpus)):
        return row.links, True
    used = [gpu for gpu in gpus if gpu.get("index") in numbers]
    ups = [up for gpu in used if (up := fact(gpu, "nvlink.up"))]
    if len(ups) < len(numbers):
        return None, False
    return min(ups), all(fact(gpu, "nvlink.switch") == fact(gpu, "nvlink.up") for gpu in used)
