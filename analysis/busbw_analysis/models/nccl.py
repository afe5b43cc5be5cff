"""NCCL's own tuning model on one host with NVSwitches: what it expects of every algorithm by every protocol, and which
it would therefore take. A run tells enough of no other machine.

time = latency · steps in flight + S / bandwidth, with latencies, efficiencies and limits from tables. These are NCCL's
expectations and not laws: it only has to order its choices rightly. Rates are B/s and times seconds; the tables keep
NCCL's units (µs, GB/s) as they stand in its source.
"""

from dataclasses import dataclass
from typing import Final, Literal

from busbw.errors import AnalysisError
from busbw_analysis.models.nccl_tables import (
    BASE_LATENCY,
    LINK_RATE,
    LL128_RING_MOST,
    LL128_TREE_MOST,
    LL_MOST,
    NVLS_EFFICIENCY,
    NVLS_FEWEST_RANKS,
    NVLS_MOST_HEADS,
    SEARCHED_SPEEDS,
    SLOWEST_SEARCHED,
    STEP_LATENCY,
    TREE_CORRECTION,
    TREE_MOST,
    Algorithm,
    Architecture,
    Protocol,
)

Op = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"]

OPS: Final[tuple[Op, ...]] = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
"""Those that NCCL chooses an algorithm for; its other ones are groups of plain sends and receives."""

SOURCE: Final = "NCCL's tuning model, src/graph/tuning.cc of 2.30.7 (5067397)"

_PROTOCOLS: Final[tuple[Protocol, ...]] = ("LL", "LL128", "Simple")
_LL128_OF_A_LINE: Final = 0.92
_SMALLEST_CORRECTED: Final = 64


@dataclass(frozen=True, slots=True)
class Machine:
    """What NCCL's model is fed with: GPUs of one host that NVSwitches connect.

    ``bus_rate``: what all channels of a GPU carry together, B/s in one direction.
    ``channels``: those of rings and trees; NVLS has others (``heads``).
    """

    architecture: Architecture
    ranks: int
    bus_rate: float
    channels: int

    def __post_init__(self) -> None:
        """Raise AnalysisError for a machine that cannot be."""
        if self.ranks < 2:
            message = f"{self.ranks} ranks: want 2 or more"
            raise AnalysisError(message)
        if self.channels < 1 or not self.bus_rate > 0:
            message = f"{self.channels} channels of together {self.bus_rate} B/s: want 1 or more, and a rate above 0"
            raise AnalysisError(message)

    @property
    def heads(self) -> int:
        """Channels of NVLS: one for each GPU, which is its head."""
        return min(self.ranks, NVLS_MOST_HEADS)


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
    return links * LINK_RATE[architecture] * 1e9


def expectations(op: Op, machine: Machine) -> tuple[Expectation, ...]:
    """Everything that NCCL would consider for ``op`` on ``machine``."""
    if op not in OPS:
        message = f"NCCL's model has no {op}; it has {', '.join(OPS)}"
        raise AnalysisError(message)
    return tuple(
        Expectation(op, algorithm, protocol, _latency(op, algorithm, protocol, machine) / 1e6, rate)
        for algorithm in BASE_LATENCY
        for protocol in _PROTOCOLS
        if (rate := _algbw(op, algorithm, protocol, machine)) > 0
    )


def seconds(expectation: Expectation, size_bytes: int) -> float:
    """Time of one call of S = ``size_bytes`` as NCCL expects it."""
    rate = expectation.algbw
    if expectation.algorithm == "Tree" and size_bytes >= _SMALLEST_CORRECTED:
        row = TREE_CORRECTION[expectation.protocol]
        place = (size_bytes // _SMALLEST_CORRECTED).bit_length() - 1
        rate *= row[place] if place < len(row) - 1 else 1.0
    return expectation.latency_seconds + size_bytes / rate


def choose(op: Op, size_bytes: int, machine: Machine) -> Chosen:
    """What NCCL takes for S = ``size_bytes``: the smallest expected time."""
    if size_bytes < 1:
        message = f"a size of {size_bytes} B has no choice; want 1 B or more"
        raise AnalysisError(message)
    timed = [(seconds(one, size_bytes), one) for one in expectations(op, machine)]
    time, best = min(timed, key=lambda pair: pair[0])
    return Chosen(best, size_bytes, time)


def _steps(op: Op, ranks: int) -> int:
    return {"all_reduce": 2 * (ranks - 1), "all_gather": ranks - 1, "reduce_scatter": ranks - 1}.get(op, ranks)


_GATHERING: Final = frozenset({"all_gather", "reduce_scatter"})


def _algbw(op: Op, algorithm: Algorithm, protocol: Protocol, machine: Machine) -> float:
    """B/s of S; 0 where NCCL would not consider it."""
    match algorithm:
        case "Ring":
            return _ring_busbw(protocol, machine) * machine.ranks / _steps(op, machine.ranks)
        case "Tree":
            return _tree_busbw(protocol, machine) * 0.5 if op == "all_reduce" else 0.0
        case "NVLS":
            if protocol != "Simple" or machine.ranks < NVLS_FEWEST_RANKS:
                return 0.0
            if op == "all_reduce":
                return _switched_busbw(op, machine) * machine.ranks / _steps(op, machine.ranks)
            return _switched_busbw(op, machine) if op in _GATHERING else 0.0


def _ring_busbw(protocol: Protocol, machine: Machine) -> float:
    bus = _of_whole_channels(machine)
    if protocol == "LL":
        return min(LL_MOST[machine.architecture] * 1e9, bus * 0.5)
    if protocol == "LL128":
        return min(bus * _LL128_OF_A_LINE, machine.channels * LL128_RING_MOST[machine.architecture] * 1e9)
    return bus


def _tree_busbw(protocol: Protocol, machine: Machine) -> float:
    tree = min(_of_whole_channels(machine) * 0.92, machine.channels * TREE_MOST[machine.architecture] * 1e9)
    if protocol == "LL":
        return min(tree / 3.8, LL_MOST[machine.architecture] * 1e9)
    if protocol == "LL128":
        return min(tree * (7 / 9), machine.channels * LL128_TREE_MOST[machine.architecture] * 1e9)
    return tree


def _of_whole_channels(machine: Machine) -> float:
    """What the search finds for rings: as many channels as fit, of the fastest rate that carries most."""
    found, speed_found = 0.0, 0.0
    for speed in (one * 1e9 for one in SEARCHED_SPEEDS[machine.architecture]):
        if speed <= SLOWEST_SEARCHED * speed_found:
            break
        together = machine.bus_rate // speed * speed
        if together > found:
            found, speed_found = together, speed
    return found or machine.bus_rate  # slower than all that are tried: no channel of NVLinks


def _switched_busbw(op: Op, machine: Machine) -> float:
    """Twice what all heads have together in an all-reduce, where the switch adds up and hands out at the same time, but
    no more than what the search found for them as if they went on to other hosts.
    """
    heads = machine.heads
    inside, beyond = _head_rates(machine)
    bus = heads * inside * NVLS_EFFICIENCY[machine.architecture] * (heads - 1) / heads
    bus *= 2 if op == "all_reduce" else (machine.ranks - 1) / machine.ranks
    return min(bus, heads * beyond)


def _head_rates(machine: Machine) -> tuple[float, float]:
    """What a channel of NVLS gets inside a host and beyond it. A link carries that of its own head twice and every
    other one once, so it has room for 1/(n+1) of the link; it is the fastest of a list of rates that fits (0 where none
    does). Beyond the host, where nothing is sent then, the search goes up the list to twice that or its end.
    """
    room = machine.bus_rate / (machine.heads + 1)
    speeds = [speed * 1e9 for speed in SEARCHED_SPEEDS[machine.architecture]]
    place = next((place for place, speed in enumerate(speeds) if speed <= room), None)
    if place is None:
        return 0.0, 0.0
    inside = speeds[place]
    while place and speeds[place] < 2 * inside:
        place -= 1
    return inside, speeds[place]


def _latency(op: Op, algorithm: Algorithm, protocol: Protocol, machine: Machine) -> float:
    """µs. Through switches all channels go through the GPUs in the same order, and NCCL then counts a chain as one
    step.
    """
    place = _PROTOCOLS.index(protocol)
    steps = {
        "Tree": 2 * (machine.ranks - 1),
        "Ring": 1 if op in {"broadcast", "reduce"} else _steps(op, machine.ranks),
        "NVLS": 1,
    }
    return BASE_LATENCY[algorithm][place] + steps[algorithm] * STEP_LATENCY[algorithm][place]
