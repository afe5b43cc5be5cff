"""The constants of NCCL's tuning model for one host with NVSwitches, in its units: µs and GB/s.

Source: NCCL 2.30.7 (5067397), src/graph/tuning.cc for all but what a link carries, which is in src/graph/topo.h, and
what the search tries and allows, which is in src/graph/search.cc.
Rows of three are LL, LL128, Simple.
"""

from typing import Final, Literal

Algorithm = Literal["Tree", "Ring", "NVLS"]
Protocol = Literal["LL", "LL128", "Simple"]
Architecture = Literal["Volta", "Ampere", "Hopper", "Blackwell"]

Three = tuple[float, float, float]

LINK_RATE: Final[dict[Architecture, float]] = {"Volta": 20.0, "Ampere": 20.0, "Hopper": 20.6, "Blackwell": 40.1}
"""What one NVLink carries in one direction in practice."""

BASE_LATENCY: Final[dict[Algorithm, Three]] = {
    "Tree": (6.8, 14.0, 8.4),
    "Ring": (6.6, 14.0, 8.4),
    "NVLS": (0, 0, 0),
}

STEP_LATENCY: Final[dict[Algorithm, Three]] = {
    "Tree": (0.6, 1.25, 4.0),
    "Ring": (0.6, 1.9, 3.4),
    "NVLS": (0, 0, 25),
}
"""What one step over NVLink adds."""

LL_MOST: Final[dict[Architecture, float]] = {"Volta": 39.0, "Ampere": 87.7, "Hopper": 141.0, "Blackwell": 282.0}
"""busbw of all channels by LL."""

LL128_RING_MOST: Final[dict[Architecture, float]] = {"Volta": 20.0, "Ampere": 20.0, "Hopper": 36.7, "Blackwell": 40.0}
"""Of one channel, as all below."""

LL128_TREE_MOST: Final[dict[Architecture, float]] = {"Volta": 20.0, "Ampere": 20.0, "Hopper": 36.7, "Blackwell": 55.6}

TREE_MOST: Final[dict[Architecture, float]] = {"Volta": 26.5, "Ampere": 24.0, "Hopper": 38.7, "Blackwell": 70.0}

NVLS_EFFICIENCY: Final[dict[Architecture, float]] = {"Volta": 0.0, "Ampere": 0.0, "Hopper": 0.85, "Blackwell": 0.74}

NVLS_MOST_HEADS: Final = 32
"""GPUs of a host that have a channel of NVLS each; no more do."""

NVLS_FEWEST_RANKS: Final = 3
"""For two, NCCL has long had no NVLS, and where it has, expects less than a third of a ring of it."""

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
