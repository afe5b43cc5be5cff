"""The constants of NCCL's tuning model, in its units: µs and GB/s.

Source: NCCL 2.30.7 (5067397), src/graph/tuning.cc for all but what a link carries, which is in src/graph/topo.h, and
what the search tries and allows, which is in src/graph/search.cc.
Rows are LL, LL128, Simple; or one host, two hosts, more hosts.
"""

from dataclasses import dataclass
from typing import Final, Literal

Algorithm = Literal["Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"]
Protocol = Literal["LL", "LL128", "Simple"]
Architecture = Literal["Volta", "Ampere", "Hopper", "Blackwell"]
Medium = Literal["NVLink", "PCIe"]

Three = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Silicon:
    """An architecture: from which compute capability on, and what one of its NVLinks carries in one direction in
    practice, GB/s.
    """

    capability: int
    link_rate: float


ARCHITECTURES: Final[dict[Architecture, Silicon]] = {
    "Volta": Silicon(70, 20.0),
    "Ampere": Silicon(80, 20.0),
    "Hopper": Silicon(90, 20.6),
    "Blackwell": Silicon(100, 40.1),
}

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
