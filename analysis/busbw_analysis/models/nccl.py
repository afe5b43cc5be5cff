"""NCCL's own tuning model: what it expects of every algorithm by every protocol, and which it would therefore take.

time = latency · steps in flight + S / bandwidth, with latencies, efficiencies and limits from tables. These are NCCL's
expectations and not laws: it only has to order its choices rightly. Rates are B/s and times seconds; the tables keep
NCCL's units (µs, GB/s) as they stand in its source.

Source: NCCL 2.30.7 (5067397), src/graph/tuning.cc for all but what a link carries, which is in src/graph/topo.h, and
what the search tries and allows, which is in src/graph/search.cc.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from busbw.errors import AnalysisError

Algorithm = Literal["Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"]
Protocol = Literal["LL", "LL128", "Simple"]
Architecture = Literal["Volta", "Ampere", "Hopper", "Blackwell"]
Medium = Literal["NVLink", "PCIe"]

Three = tuple[float, float, float]
"""For LL, LL128 and Simple; or for one host, two hosts and more hosts."""


LINK_RATES: Final[dict[Architecture, float]] = {"Volta": 20.0, "Ampere": 20.0, "Hopper": 20.6, "Blackwell": 40.1}
"""What one NVLink carries in one direction in practice, GB/s."""

BASE_LATENCY: Final[dict[Algorithm, Three]] = {
    "Tree": (6.8, 14.0, 8.4),
    "Ring": (6.6, 14.0, 8.4),
    "CollNetDirect": (0, 0, 0),
    "CollNetChain": (0, 0, 0),
    "NVLS": (0, 0, 0),
    "NVLSTree": (0, 0, 0),
    "PAT": (8.0, 8.0, 8.0),
}

HARDWARE_LATENCY: Final[dict[Literal["NVLink", "PCIe", "network"], dict[Algorithm, Three]]] = {
    "NVLink": {
        "Tree": (0.6, 1.25, 4.0),
        "Ring": (0.6, 1.9, 3.4),
        "CollNetDirect": (0, 0, 3.7),
        "CollNetChain": (0, 0, 2.8),
        "NVLS": (0, 0, 25),
        "NVLSTree": (0, 0, 25),
        "PAT": (0, 0, 4.0),
    },
    "PCIe": {
        "Tree": (1.0, 1.9, 4.0),
        "Ring": (1.0, 2.5, 5.7),
        "CollNetDirect": (0, 0, 3.7),
        "CollNetChain": (0, 0, 2.8),
        "NVLS": (0, 0, 0),
        "NVLSTree": (0, 0, 0),
        "PAT": (0, 0, 4.0),
    },
    "network": {
        "Tree": (5.0, 8.5, 14),
        "Ring": (2.7, 4.0, 14.0),
        "CollNetDirect": (0, 0, 31),
        "CollNetChain": (0, 0, 30),
        "NVLS": (0, 0, 18),
        "NVLSTree": (0, 0, 20.9),
        "PAT": (0, 0, 14),
    },
}
"""What one step adds."""

LL_MOST: Final[dict[Architecture, Three]] = {
    "Volta": (39.0, 39.0, 20.4),
    "Ampere": (87.7, 22.5, 19.0),
    "Hopper": (141.0, 45.0, 35.0),
    "Blackwell": (282.0, 90.0, 70.0),
}
"""busbw of all channels by LL. On several hosts the processor decides: Volta's row for Intel, Ampere's for AMD."""

LL128_RING_MOST: Final[dict[Architecture, Three]] = {
    "Volta": (20.0, 20.0, 20.0),
    "Ampere": (20.0, 20.0, 20.0),
    "Hopper": (36.7, 36.7, 36.7),
    "Blackwell": (40.0, 40.0, 40.0),
}
"""Of one channel, as all below."""

LL128_TREE_MOST: Final[dict[Architecture, Three]] = {
    "Volta": (20.0, 20.0, 20.0),
    "Ampere": (20.0, 20.0, 20.0),
    "Hopper": (36.7, 36.7, 29.0),
    "Blackwell": (55.6, 31.67, 20.0),
}

TREE_MOST: Final[dict[Architecture, Three]] = {
    "Volta": (26.5, 18.5, 10.0),
    "Ampere": (24.0, 23.6, 17.8),
    "Hopper": (38.7, 41.4, 36.0),
    "Blackwell": (70.0, 42.8, 24.0),
}

NVLS_TREE_MOST: Final[dict[Architecture, Three]] = {
    "Volta": (26.5, 18.5, 10.0),
    "Ampere": (24.0, 23.6, 17.8),
    "Hopper": (0.0, 57.7, 45.5),
    "Blackwell": (0.0, 96.0, 80.0),
}

NVLS_EFFICIENCY: Final[dict[Architecture, float]] = {"Volta": 0.0, "Ampere": 0.0, "Hopper": 0.85, "Blackwell": 0.74}

NVLS_MOST_HEADS: Final = 32
"""GPUs of a host that have a channel of NVLS each; no more do."""

NVLS_FEWEST_RANKS: Final = 3
"""Of a host: for two, NCCL has long had no NVLS, and where it has, expects less than a third of a ring of it."""

_UP_TO_AMPERE: Final = (40.0, 30.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0)

SEARCHED_SPEEDS: Final[dict[Architecture, tuple[float, ...]]] = {
    "Volta": _UP_TO_AMPERE,
    "Ampere": _UP_TO_AMPERE,
    "Hopper": (60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0),
    "Blackwell": (90.0, 80.0, 70.0, 60.0, 50.0, 45.0, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0),
}
"""What the search on one host tries for each channel of a ring or of NVLS, the fastest first."""

SLOWEST_SEARCHED: Final = 0.49
"""Of what was found: the search for more channels of a ring tries no slower ones."""

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
"""What is left of a tree's rate at 64 B, 128 B, … 512 MiB."""


Op = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"]

OPS: Final[tuple[Op, ...]] = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
"""Those that NCCL chooses an algorithm for; its other ones are groups of plain sends and receives."""

SOURCE: Final = "NCCL's tuning model, src/graph/tuning.cc of 2.30.7 (5067397)"

_PROTOCOLS: Final[tuple[Protocol, ...]] = ("LL", "LL128", "Simple")
_LL128_OF_A_LINE: Final = 0.92
_SMALLEST_CORRECTED: Final = 64
_PLATEAU_CHUNK: Final = 64
_NET_OVERHEAD: Final = {"Intel": 1.0, "AMD": 2.0}


@dataclass(frozen=True, slots=True)
class Machine:
    """What NCCL's model is fed with. ``bus_rate`` is what all channels of a GPU carry inside a host together, B/s in
    one direction; ``network_rate`` the same between hosts for each GPU's ring (all channels together), None on one
    host. ``channels`` are those of rings and trees; NVLS has others (``heads``). ``switched``: whether NVSwitches
    connect the GPUs, which NVLS takes. ``medium`` is what GPUs of a host talk over. ``in_network``: whether the
    network's switches add up, which CollNet takes.
    """

    architecture: Architecture
    ranks: int
    hosts: int
    bus_rate: float
    channels: int
    network_rate: float | None = None
    switched: bool = False
    medium: Medium = "NVLink"
    processor: str = "Intel"
    in_network: bool = False

    def __post_init__(self) -> None:
        """Raise AnalysisError for a machine that cannot be."""
        if self.ranks < 2 or not 1 <= self.hosts <= self.ranks or self.ranks % self.hosts:
            message = f"{self.ranks} ranks on {self.hosts} hosts: want 2 ranks or more, as many on each host"
            raise AnalysisError(message)
        if self.channels < 1 or not self.bus_rate > 0:
            message = f"{self.channels} channels of together {self.bus_rate} B/s: want 1 or more, and a rate above 0"
            raise AnalysisError(message)
        if self.hosts > 1 and (self.network_rate is None or not self.network_rate > 0):
            message = f"{self.hosts} hosts and a network of {self.network_rate} B/s: between hosts its rate is needed"
            raise AnalysisError(message)

    @property
    def ranks_per_host(self) -> int:
        """GPUs of one host."""
        return self.ranks // self.hosts

    @property
    def heads(self) -> int:
        """Channels of NVLS: one for each GPU of a host, which is its head."""
        return min(self.ranks_per_host, NVLS_MOST_HEADS)


@dataclass(frozen=True, slots=True)
class Expectation:
    """What NCCL expects of one algorithm by one protocol for an op: a latency and a rate in bytes of S a second."""

    op: Op
    algorithm: Algorithm
    protocol: Protocol
    latency_seconds: float
    algbw: float


@dataclass(frozen=True, slots=True)
class Chosen:
    """The fastest of all expectations at one size, and its time."""

    expectation: Expectation
    size_bytes: int
    seconds: float


def ring_peak(architecture: Architecture, links: int) -> float:
    """What NCCL takes ``links`` NVLinks to carry in practice, B/s: no ring has more."""
    return links * LINK_RATES[architecture] * 1e9


def expectations(op: Op, machine: Machine) -> tuple[Expectation, ...]:
    """Everything that NCCL would consider for ``op`` on ``machine``."""
    if op not in OPS:
        message = f"NCCL's model has no {op}; it has {', '.join(OPS)}"
        raise AnalysisError(message)
    found: list[Expectation] = []
    for algorithm in BASE_LATENCY:
        for protocol in _PROTOCOLS:
            rate = _algbw(op, algorithm, protocol, machine)
            if rate > 0:
                found.append(
                    Expectation(op, algorithm, protocol, _latency(op, algorithm, protocol, machine) / 1e6, rate)
                )
    return tuple(found)


def seconds(expectation: Expectation, size_bytes: int, machine: Machine) -> float:
    """Time of one call of S = ``size_bytes`` as NCCL expects it."""
    latency, rate = expectation.latency_seconds, expectation.algbw
    tree = expectation.algorithm == "Tree" or (
        expectation.algorithm == "NVLSTree" and machine.architecture == "Blackwell"
    )
    if expectation.op == "all_reduce" and tree and size_bytes >= _SMALLEST_CORRECTED:
        row = TREE_CORRECTION[expectation.protocol]
        place = (size_bytes // _SMALLEST_CORRECTED).bit_length() - 1
        rate *= row[place] if place < len(row) - (1 if expectation.algorithm == "Tree" else 0) else 1.0
    if (
        (expectation.op, expectation.algorithm, expectation.protocol) == ("all_reduce", "Ring", "Simple")
        and machine.hosts > 1
        and size_bytes // (machine.channels * machine.ranks) >= _PLATEAU_CHUNK
    ):
        latency *= 1.9 if machine.architecture == "Volta" else 1.4
    return latency + size_bytes / rate


def choose(op: Op, size_bytes: int, machine: Machine) -> Chosen:
    """What NCCL takes for S = ``size_bytes``: the smallest expected time."""
    if size_bytes < 1:
        message = f"a size of {size_bytes} B has no choice; want 1 B or more"
        raise AnalysisError(message)
    timed = [(seconds(one, size_bytes, machine), one) for one in expectations(op, machine)]
    time, best = min(timed, key=lambda pair: pair[0])
    return Chosen(best, size_bytes, time)


def _steps(op: Op, ranks: int) -> int:
    return {"all_reduce": 2 * (ranks - 1), "all_gather": ranks - 1, "reduce_scatter": ranks - 1}.get(op, ranks)


_GATHERING: Final = frozenset({"all_gather", "reduce_scatter"})
_OF_ALL_REDUCE: Final[frozenset[Algorithm]] = frozenset(
    {"Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree"}
)
_OF_GATHERING: Final[frozenset[Algorithm]] = frozenset({"Ring", "NVLS", "PAT"})


def _considered(op: Op, algorithm: Algorithm, protocol: Protocol, machine: Machine) -> bool:
    """Whether NCCL has ``algorithm`` for ``op`` by ``protocol`` on such a machine."""
    known = _OF_ALL_REDUCE if op == "all_reduce" else _OF_GATHERING if op in _GATHERING else frozenset({"Ring"})
    if algorithm not in known:
        return False
    if algorithm not in {"Tree", "Ring"} and protocol != "Simple":
        return False
    adding = machine.switched and machine.ranks_per_host >= NVLS_FEWEST_RANKS
    needs = {
        "NVLS": adding,
        "NVLSTree": adding and machine.hosts > 1,
        "CollNetDirect": machine.in_network and machine.switched and machine.hosts > 1,
        "CollNetChain": machine.in_network and machine.hosts > 1,
        "PAT": machine.hosts == machine.ranks,
    }
    if algorithm == "NVLS" and machine.hosts > 1 and (op in _GATHERING or not machine.in_network):
        return False
    return needs.get(algorithm, True)


def _algbw(op: Op, algorithm: Algorithm, protocol: Protocol, machine: Machine) -> float:
    """B/s of S; 0 where NCCL would not consider it."""
    if not _considered(op, algorithm, protocol, machine):
        return 0.0
    bus = _busbw(op, algorithm, protocol, machine)
    if algorithm != "Ring" and op in _GATHERING:
        return bus
    if algorithm in {"Ring", "NVLS", "NVLSTree"}:
        return bus * machine.ranks / _steps(op, machine.ranks)
    return bus * 0.5


def _busbw(op: Op, algorithm: Algorithm, protocol: Protocol, machine: Machine) -> float:
    intra = _of_whole_channels(machine) if machine.hosts == 1 else machine.bus_rate
    inter = machine.network_rate or math.inf
    match algorithm:
        case "NVLS" | "NVLSTree":
            return _switched_busbw(op, algorithm, machine)
        case "Ring":
            return _ring_busbw(protocol, machine, min(intra, inter))
        case "Tree":
            # Of two hosts, one half of either tree begins on each, so that a link between them has but half of it.
            return _tree_busbw(protocol, machine, min(intra, inter * (2 if machine.hosts == 2 else 1)))
        case "PAT":
            return min(intra, inter) * 0.75
        case "CollNetChain":
            return intra
        case "CollNetDirect":
            factor = machine.ranks_per_host / machine.channels
            late = 0.85 if machine.architecture in {"Hopper", "Blackwell"} else 1.0
            return intra / (factor - (factor - 1) / 2) * late


def _ring_busbw(protocol: Protocol, machine: Machine, bus: float) -> float:
    if protocol == "LL":
        return min(_ll_most(machine), bus * 0.5)
    if protocol == "LL128":
        return min(bus * _LL128_OF_A_LINE, _of_channels(LL128_RING_MOST, machine, machine.channels))
    return bus


def _tree_busbw(protocol: Protocol, machine: Machine, bus: float) -> float:
    tree = min(bus * 0.92, _of_channels(TREE_MOST, machine, machine.channels))
    if protocol == "LL":
        return min(tree / 3.8, _ll_most(machine))
    if protocol == "LL128":
        share = 7 / 9 if machine.hosts == 1 else 120 / 128
        return min(tree * share, _of_channels(LL128_TREE_MOST, machine, machine.channels))
    return tree


def _place(machine: Machine) -> int:
    """One host, two hosts, more hosts."""
    return min(machine.hosts, 3) - 1


def _ll_most(machine: Machine) -> float:
    over_network: Architecture = "Ampere" if machine.processor == "AMD" else "Volta"
    row = LL_MOST[machine.architecture if machine.hosts == 1 else over_network]
    return row[_place(machine)] * 1e9


def _of_channels(most: Mapping[Architecture, Three], machine: Machine, channels: int) -> float:
    return channels * most[machine.architecture][_place(machine)] * 1e9


def _of_whole_channels(machine: Machine) -> float:
    """What the search finds for rings on one host: as many channels as fit, of the fastest rate that carries most."""
    found, speed_found = 0.0, 0.0
    for speed in (one * 1e9 for one in SEARCHED_SPEEDS[machine.architecture]):
        if speed <= SLOWEST_SEARCHED * speed_found:
            break
        together = machine.bus_rate // speed * speed
        if together > found:
            found, speed_found = together, speed
    return found or machine.bus_rate  # slower than all that are tried: no channel of NVLinks


def _switched_busbw(op: Op, algorithm: Algorithm, machine: Machine) -> float:
    """Twice what all heads have together in an all-reduce, where the switch adds up and hands out at the same time, but
    no more than what the search found for them as if they went on to other hosts.
    """
    per_host, heads = machine.ranks_per_host, machine.heads
    inside, beyond = _head_rates(machine)
    bus = heads * inside * NVLS_EFFICIENCY[machine.architecture] * (heads - 1) / heads
    bus *= 2 if op == "all_reduce" else (per_host - 1) / per_host
    if machine.hosts == 1:
        return min(bus, heads * beyond)
    inter = (machine.network_rate or 0.0) * (2 if algorithm == "NVLSTree" and machine.hosts == 2 else 1)
    most = _of_channels(NVLS_TREE_MOST, machine, heads) if algorithm == "NVLSTree" else math.inf
    return min(bus, inter, most)


def _head_rates(machine: Machine) -> tuple[float, float]:
    """What a channel of NVLS gets inside a host and beyond it. A link carries that of its own head twice and every
    other one once, so it has room for 1/(n+1) of the link; on one host it is the fastest of a list of rates that fits
    (0 where none does). Beyond it, where nothing is sent then, the search goes up the list to twice that or its end.
    """
    room = machine.bus_rate / (machine.heads + 1)
    if machine.hosts > 1:
        return room, math.inf
    speeds = [speed * 1e9 for speed in SEARCHED_SPEEDS[machine.architecture]]
    place = next((place for place, speed in enumerate(speeds) if speed <= room), None)
    if place is None:
        return 0.0, 0.0
    inside = speeds[place]
    while place and speeds[place] < 2 * inside:
        place -= 1
    return inside, speeds[place]


def _latency(op: Op, algorithm: Algorithm, protocol: Protocol, machine: Machine) -> float:
    """µs."""
    place = _PROTOCOLS.index(protocol)
    base = BASE_LATENCY[algorithm][place]
    intra = HARDWARE_LATENCY[machine.medium][algorithm][place]
    inter = HARDWARE_LATENCY["network"]["Tree" if machine.ranks_per_host == 1 else algorithm][place]
    levels = machine.hosts.bit_length() - 1
    peers = machine.ranks_per_host - 1
    if algorithm == "Ring":
        return base + _ring_latency(op, protocol, machine, intra, inter)
    added: dict[Algorithm, float] = {
        "Tree": 2 * (peers * intra + levels * inter),
        "CollNetDirect": 2 * (min(1, peers) * intra + peers * 0.4) + inter,
        "CollNetChain": 2 * peers * intra + inter,
        "NVLS": intra + (inter if machine.hosts > 1 else 0.0),
        "NVLSTree": intra + 2 * levels * inter,
        "PAT": levels * inter / 3.5 + machine.ranks * 2.8,
    }
    return base + added[algorithm]


def _ring_latency(op: Op, protocol: Protocol, machine: Machine, intra: float, inter: float) -> float:
    steps = _steps(op, machine.ranks)
    if op in {"broadcast", "reduce"}:
        if machine.hosts == 1 and machine.switched:
            # All channels go through the GPUs in the same order there, and NCCL then counts one step.
            return intra
        place = _PROTOCOLS.index(protocol)
        slow = HARDWARE_LATENCY["network" if machine.hosts > 1 else machine.medium]
        return steps * slow["Tree" if protocol == "Simple" else "Ring"][place]
    if machine.hosts > 1:
        overhead = _NET_OVERHEAD.get(machine.processor, 1.0) * (3 if protocol == "Simple" else 1)
        intra = max(intra, overhead)
    between = 0 if machine.hosts == 1 else (2 if op == "all_reduce" else 1) * (machine.hosts - 1)
    return (steps - between) * intra + between * inter
