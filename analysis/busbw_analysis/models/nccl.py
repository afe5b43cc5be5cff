"""NCCL's own tuning model: what it expects of every algorithm by every protocol, and which it would therefore take.

time = latency + S / bandwidth, with latencies, efficiencies and limits from tables. These are NCCL's expectations and
not laws: it only has to order its choices rightly. Of its tables there is here what it goes by on one host whose GPUs
are connected by NVSwitches: of more hosts a run does not record which channels go through which network card. Rates are
B/s and times seconds; the tables keep NCCL's units (µs, GB/s) as they stand in its source.

Source: NCCL 2.30.7 (5067397), src/graph/tuning.cc for all but what a link carries, which is in src/graph/topo.h, and
what the search tries and allows, which is in src/graph/search.cc.
"""

from dataclasses import dataclass
from typing import Final, Literal

Algorithm = Literal["Tree", "Ring", "NVLS"]
Protocol = Literal["LL", "LL128", "Simple"]
Architecture = Literal["Volta", "Ampere", "Hopper", "Blackwell"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What NCCL's tables have of an architecture, GB/s.

    ``link``: what one NVLink carries in one direction in practice.
    ``ll``: busbw of all channels by LL.
    ``ll128_ring``, ``ll128_tree``, ``tree``: busbw of one channel.
    ``nvls``: the share of the rates of NVLS that is left, no rate.
    ``searched``: what the search tries for each channel of a ring or of NVLS, the fastest first.
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
"""What there is once, and what one step over NVLinks adds."""

NVLS_MOST_HEADS: Final = 32
"""GPUs of a host that have a channel of NVLS each, which they are the head of; no more do."""

NVLS_FEWEST_RANKS: Final = 3
"""For two, NCCL has long had no NVLS, and where it has, expects less than a third of a ring of it."""

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
"""What is left of a tree's rate at 64 B, 128 B, … 512 MiB, of which NCCL leaves out the last."""
_SMALLEST_CORRECTED: Final = 64


Op = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"]

ALGORITHMS: Final[dict[Op, tuple[Algorithm, ...]]] = {
    "all_reduce": ("Tree", "Ring", "NVLS"),
    "all_gather": ("Ring", "NVLS"),
    "reduce_scatter": ("Ring", "NVLS"),
    "broadcast": ("Ring",),
    "reduce": ("Ring",),
}
"""Those that NCCL chooses among; its other ops are groups of plain sends and receives."""

SOURCE: Final = "NCCL's tuning model, src/graph/tuning.cc of 2.30.7 (5067397)"


@dataclass(frozen=True, slots=True)
class Machine:
    """What NCCL's model is fed with: two GPUs of one host or more. ``bus_rate`` is what all channels of a GPU carry
    together, B/s in one direction. ``channels`` are those of rings and trees; NVLS has others.
    """

    architecture: Architecture
    ranks: int
    bus_rate: float
    channels: int


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
    return links * LIMITS[architecture].link * 1e9


def expectations(op: Op, machine: Machine) -> tuple[Expectation, ...]:
    """Everything that NCCL would consider for ``op`` on ``machine``."""
    ranks, rates = machine.ranks, _busbws(op, machine)
    chain = op in {"broadcast", "reduce"}
    steps = ranks if chain else (2 if op == "all_reduce" else 1) * (ranks - 1)
    found: list[Expectation] = []
    for algorithm in ALGORITHMS[op]:
        for protocol, (base, step) in LATENCY[algorithm].items():
            rate = rates[algorithm, protocol]
            if algorithm == "Tree":
                rate *= 0.5
            elif algorithm == "Ring" or op == "all_reduce":
                rate = rate * ranks / steps
            # All channels go through the GPUs in the same order, and NCCL then counts one step of a chain.
            latency = base + (1 if chain or algorithm == "NVLS" else steps) * step
            if rate > 0:
                found.append(Expectation(op, algorithm, protocol, latency / 1e6, rate))
    return tuple(found)


def seconds(expectation: Expectation, size_bytes: int) -> float:
    """Time of one call of S = ``size_bytes`` as NCCL expects it."""
    rate = expectation.algbw
    if expectation.algorithm == "Tree" and size_bytes >= _SMALLEST_CORRECTED:
        row = TREE_CORRECTION[expectation.protocol][:-1]
        place = (size_bytes // _SMALLEST_CORRECTED).bit_length() - 1
        rate *= row[place] if place < len(row) else 1.0
    return expectation.latency_seconds + size_bytes / rate


def choose(op: Op, size_bytes: int, machine: Machine) -> Chosen:
    """What NCCL takes for S = ``size_bytes``, 1 B or more: the smallest expected time."""
    best = min(expectations(op, machine), key=lambda one: seconds(one, size_bytes))
    return Chosen(best, size_bytes, seconds(best, size_bytes))


def _busbws(op: Op, machine: Machine) -> dict[tuple[Algorithm, Protocol], float]:
    """B/s; 0 where NCCL would not consider it."""
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
    """What the search finds for rings: as many channels as fit, of the fastest rate that carries most."""
    found, speed_found = 0.0, 0.0
    for speed in (one * 1e9 for one in LIMITS[machine.architecture].searched):
        if speed <= SLOWEST_SEARCHED * speed_found:
            break
        together = machine.bus_rate // speed * speed
        if together > found:
            found, speed_found = together, speed
    return found or machine.bus_rate  # slower than all that are tried: no channel of NVLinks


def _nvls_busbw(op: Op, machine: Machine) -> float:
    """Twice what all heads have together in an all-reduce, where the switch adds up and hands out at the same time, but
    no more than what the search found for them as if they went on to other hosts.

    A link carries the channel of its own head twice and every other one once, so each has room for 1/(n+1) of the link:
    it is the fastest of a list of rates that fits (0 where none does). Beyond the host, where nothing is sent, the
    search goes up the list to twice that or its end.
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
