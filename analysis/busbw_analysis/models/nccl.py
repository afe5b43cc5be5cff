"""NCCL's tuning model: its estimate for every algorithm and protocol, and the one it therefore selects.

time = latency + S / bandwidth, with latencies, efficiencies and limits from tables. These are NCCL's estimates; they
only need to rank its options correctly. This module has the tables for one host with NVSwitches; for several hosts, a
run does not record the channels per network card. Rates are in B/s and times in seconds; the tables keep NCCL's units
(µs, GB/s).

Source: NCCL 2.30.7 (5067397): src/graph/tuning.cc, except link rates (src/graph/topo.h) and the speeds of the topology
search (src/graph/search.cc).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from busbw.ops.base import first_reason
from busbw.runs.placement import variables_of
from busbw.system.catalog import Catalogue, Gpu
from busbw_analysis.data.facts import Facts
from busbw_analysis.data.series import SeriesKey
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.peaks.paths import gpu_model

Algorithm = Literal["Tree", "Ring", "NVLS"]
Protocol = Literal["LL", "LL128", "Simple"]
Architecture = Literal["Volta", "Ampere", "Hopper", "Blackwell"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The entries of NCCL's tables for an architecture, GB/s.

    ``link``: practical rate of one NVLink in one direction.
    ``ll``: busbw of all channels with LL.
    ``ll128_ring``, ``ll128_tree``, ``tree``: busbw of one channel.
    ``nvls``: efficiency of NVLS, a fraction (0: no NVLS).
    ``searched``: rates per channel of a ring or of NVLS that the search tries, the fastest first.
    """

    link: float
    ll: float
    ll128_ring: float
    ll128_tree: float
    tree: float
    nvls: float
    searched: tuple[float, ...]


_UP_TO_AMPERE: Final = (40.0, 30.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0)
_OF_HOPPER: Final = (60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0)
_OF_BLACKWELL: Final = (90.0, 80.0, 70.0, 60.0, 50.0, 45.0, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0)

LIMITS: Final[dict[Architecture, Limits]] = {
    "Volta": Limits(20.0, 39.0, ll128_ring=20.0, ll128_tree=20.0, tree=26.5, nvls=0.0, searched=_UP_TO_AMPERE),
    "Ampere": Limits(20.0, 87.7, ll128_ring=20.0, ll128_tree=20.0, tree=24.0, nvls=0.0, searched=_UP_TO_AMPERE),
    "Hopper": Limits(20.6, 141.0, ll128_ring=36.7, ll128_tree=36.7, tree=38.7, nvls=0.85, searched=_OF_HOPPER),
    "Blackwell": Limits(40.1, 282.0, ll128_ring=40.0, ll128_tree=55.6, tree=70.0, nvls=0.74, searched=_OF_BLACKWELL),
}

LATENCY: Final[dict[Algorithm, dict[Protocol, tuple[float, float]]]] = {
    "Tree": {"LL": (6.8, 0.6), "LL128": (14.0, 1.25), "Simple": (8.4, 4.0)},
    "Ring": {"LL": (6.6, 0.6), "LL128": (14.0, 1.9), "Simple": (8.4, 3.4)},
    "NVLS": {"Simple": (0, 25)},
}
"""Base latency and latency per step over NVLinks, µs."""

NVLS_MOST_HEADS: Final = 32
"""Most GPUs of a host that are head of an NVLS channel."""

NVLS_FEWEST_RANKS: Final = 3
"""For two ranks, older NCCL has no NVLS, and newer NCCL expects less than a third of a ring's rate from it."""

SLOWEST_SEARCHED: Final = 0.49
"""Lowest channel rate that the search for more ring channels tries, as a fraction of the rate found."""

TREE_CORRECTION: Final[dict[Protocol, tuple[float, ...]]] = {
    "LL": (
        *(1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5),
        *(0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 1.0, 1.0),
    ),
    "LL128": (
        *(1.0, 1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6),
        *(0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1.0, 1.0, 1.0),
    ),
    "Simple": (
        *(0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5),
        *(0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9),
    ),
}
"""Correction factors of a tree's rate at 64 B, 128 B, … 512 MiB; NCCL does not use the last one."""
_SMALLEST_CORRECTED: Final = 64


Op = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"]

ALGORITHMS: Final[dict[Op, tuple[Algorithm, ...]]] = {
    "all_reduce": ("Tree", "Ring", "NVLS"),
    "all_gather": ("Ring", "NVLS"),
    "reduce_scatter": ("Ring", "NVLS"),
    "broadcast": ("Ring",),
    "reduce": ("Ring",),
}
"""The algorithms that NCCL selects from; its other ops are groups of sends and receives."""

SOURCE: Final = "NCCL's tuning model, src/graph/tuning.cc of 2.30.7 (5067397)"


@dataclass(frozen=True, slots=True)
class Machine:
    """The input of NCCL's model: two or more GPUs of one host.

    ``bus_rate``: total rate of all channels of a GPU, B/s in one direction.
    ``channels``: number of ring and tree channels; NVLS has its own.
    """

    architecture: Architecture
    ranks: int
    bus_rate: float
    channels: int


@dataclass(frozen=True, slots=True)
class Expectation:
    """NCCL's estimate for one algorithm and protocol: latency, and rate in bytes of S per second."""

    algorithm: Algorithm
    protocol: Protocol
    latency_seconds: float
    algbw: float


def ring_peak(architecture: Architecture, links: int) -> float:
    """The practical rate of ``links`` NVLinks according to NCCL, B/s: the upper limit of a ring."""
    return links * LIMITS[architecture].link * 1e9


def expectations(op: Op, machine: Machine) -> tuple[Expectation, ...]:
    """All options that NCCL considers for ``op`` on ``machine``."""
    ranks, rates = machine.ranks, _busbws(op, machine)
    chain = op in {"broadcast", "reduce"}
    steps = ranks if chain else (2 if op == "all_reduce" else 1) * (ranks - 1)
    expected: list[Expectation] = []
    for algorithm in ALGORITHMS[op]:
        for protocol, (base, step) in LATENCY[algorithm].items():
            rate = rates[algorithm, protocol]
            if algorithm == "Tree":
                rate *= 0.5
            elif algorithm == "Ring" or op == "all_reduce":
                rate = rate * ranks / steps
            # All channels visit the GPUs in the same order, in which case NCCL counts one step of a chain.
            latency = base + (1 if chain or algorithm == "NVLS" else steps) * step
            if rate > 0:
                expected.append(Expectation(algorithm, protocol, latency / 1e6, rate))
    return tuple(expected)


def seconds(expectation: Expectation, size_bytes: int) -> float:
    """NCCL's estimate of the time of one call with S = ``size_bytes``."""
    rate = expectation.algbw
    if expectation.algorithm == "Tree" and size_bytes >= _SMALLEST_CORRECTED:
        row = TREE_CORRECTION[expectation.protocol][:-1]
        place = (size_bytes // _SMALLEST_CORRECTED).bit_length() - 1
        rate *= row[place] if place < len(row) else 1.0
    return expectation.latency_seconds + size_bytes / rate


def choose(op: Op, size_bytes: int, machine: Machine) -> Expectation:
    """NCCL's selection for S = ``size_bytes``, 1 B or more: the smallest estimated time."""
    return min(expectations(op, machine), key=lambda expectation: seconds(expectation, size_bytes))


def _busbws(op: Op, machine: Machine) -> dict[tuple[Algorithm, Protocol], float]:
    """busbw in B/s; 0 for options that NCCL does not consider."""
    limits = LIMITS[machine.architecture]
    ring = _of_whole_channels(machine)
    tree = min(ring * 0.92, machine.channels * limits.tree * 1e9)
    return {
        ("Ring", "LL"): min(limits.ll * 1e9, ring * 0.5),
        ("Ring", "LL128"): min(ring * 0.92, machine.channels * limits.ll128_ring * 1e9),
        ("Ring", "Simple"): ring,
        ("Tree", "LL"): min(tree / 3.8, limits.ll * 1e9),
        ("Tree", "LL128"): min(tree * (7 / 9), machine.channels * limits.ll128_tree * 1e9),
        ("Tree", "Simple"): tree,
        ("NVLS", "Simple"): _nvls_busbw(op, machine),
    }


def _of_whole_channels(machine: Machine) -> float:
    """The rate that the search finds for rings: the channel rate with the highest total, with as many as fit."""
    best, best_speed = 0.0, 0.0
    for speed in (gigabytes * 1e9 for gigabytes in LIMITS[machine.architecture].searched):
        if speed <= SLOWEST_SEARCHED * best_speed:
            break
        together = machine.bus_rate // speed * speed
        if together > best:
            best, best_speed = together, speed
    return best or machine.bus_rate  # slower than all tried rates, so no NVLink channel fits


def _nvls_busbw(op: Op, machine: Machine) -> float:
    """The busbw of NVLS: for all_reduce twice the total rate of the heads, because the switch reduces and multicasts
    concurrently, but at most the rate that the search finds beyond the host.

    A link carries the channel of its own head twice and every other channel once, so each gets 1/(n+1) of the link,
    rounded down to a rate in the list (0 if none fits). Beyond the host, where nothing is sent, the search goes up the
    list to twice that rate or to the end.
    """
    limits, ranks = LIMITS[machine.architecture], machine.ranks
    if ranks < NVLS_FEWEST_RANKS:
        return 0.0
    heads = min(ranks, NVLS_MOST_HEADS)
    speeds = [speed * 1e9 for speed in limits.searched]
    inside = next((speed for speed in speeds if speed <= machine.bus_rate / (heads + 1)), 0.0)
    beyond = min((speed for speed in speeds if speed >= 2 * inside), default=speeds[0])
    bus = heads * inside * limits.nvls * (heads - 1) / heads
    bus *= 2 if op == "all_reduce" else (ranks - 1) / ranks
    return min(bus, heads * beyond)


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
    facts: Facts, key: SeriesKey, sizes_bytes: Sequence[int], rows: Catalogue
) -> tuple[Machine, tuple[Expectation, ...]] | Unavailable:
    """The algorithm from NCCL's own model for each of ``sizes_bytes``, or what is missing for that. A barrier counts as
    an all_reduce of ONE_ELEMENT_BYTES.
    """
    name = "all_reduce" if key.op == "barrier" else key.op
    op = next((op for op in ALGORITHMS if op == name), None)
    if op is None:
        return Unavailable(
            "op-not-in-table", f"NCCL runs {key.op} as sends and receives, which its tuning model does not include"
        )
    if key.algorithm is not None:
        return Unavailable("explicit-algorithm", "it ran an explicit algorithm over send/recv, not NCCL's own")
    machine = machine_of(facts, key, rows)
    if isinstance(machine, Unavailable):
        return machine
    return machine, tuple(choose(op, size, machine) for size in sizes_bytes)


def machine_of(facts: Facts, key: SeriesKey, rows: Catalogue) -> Machine | Unavailable:
    """The input of NCCL's model from the facts of the run, or why it is incomplete."""
    variables = variables_of(facts.environment(facts.hosts_of(key.ranks)[0]))
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
    row = gpu_model(facts.gpus_of(key.ranks), rows)
    if isinstance(row, Unavailable):
        return replace(row, reason=f"NCCL's model needs the GPU: {row.reason}")
    architecture = _BY_LINK.get(row.link or "")
    if architecture is None:
        return Unavailable(
            "gpu-not-in-table", f"NCCL's tables do not include {row.name}, or it is not connected by NVLink"
        )
    up, switched = _links(facts, key.ranks, row)
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


def _links(facts: Facts, ranks: Sequence[int], row: Gpu) -> tuple[int | None, bool]:
    """The fewest active links of any of the ranks' GPUs (None if unknown), and whether all of them end at switches."""
    numbers = {facts.placements[rank].gpu for rank in ranks}
    gpus = facts.environment(facts.hosts_of(ranks)[0]).pci.gpus
    if len(numbers) == _ON_SWITCHES and all(gpu.source is not None for gpu in gpus):
        return row.links, True
    used = [gpu.nvlink for gpu in gpus if gpu.index in numbers and gpu.nvlink is not None and gpu.nvlink.up]
    if len(used) < len(numbers):
        return None, False
    return min(links.up for links in used), all(links.switch == links.up for links in used)
