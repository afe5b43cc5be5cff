"""Settings of a case that only some operations have, by family. Those of training steps are in ``training``."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Final, Literal

import msgspec

from busbw.errors import UsageError
from busbw.ops.limits import MOST_DEPTH, MOST_THREADS
from busbw.units import LARGEST_SIZE, counted, format_size, parse_size, parse_sizes

Way = Literal["direct", "dropped", "memory"]
"""How the page cache is bypassed: O_DIRECT, dropping a file's pages before reading, or not at all because the file
system is memory. Ordered from best to worst.
"""
Pairs = Literal["together", "alone"]
"""How a pair matrix is measured: disjoint pairs concurrently, or one pair at a time."""
Pinning = Literal["pinned", "pageable"]
"""Host memory of GPU copies: page-locked or not."""

CORES: Final = "cores"
MOST_NODES: Final = 1024
"""Largest number of NUMA nodes that a Linux kernel can be built for (CONFIG_NODES_SHIFT ≤ 10)."""
GRAIN_BYTES: Final = 4096
"""O_DIRECT requires offsets, lengths and addresses in multiples of the device's block, today at most 4096 B."""

_PART = re.compile(rf"(?P<low>[0-9]{{1,9}}|{CORES})(?:\.\.(?P<high>[0-9]{{1,9}}|{CORES})[*+][0-9]{{1,9}})?")


class CaseSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="family"):
    """Settings of one case, of one family."""

    texts: ClassVar[Mapping[str, str]] = {}
    """Field → the format of its text."""

    @property
    def words(self) -> Mapping[str, str]:
        """Setting → its text, without settings that are not given."""
        given = {name: getattr(self, name) for name in self.texts}
        return {name: self.texts[name].format(value) for name, value in given.items() if value is not None}

    def flaws(self, ranks: int) -> Iterator[str]:  # noqa: ARG002 - most settings do not depend on the ranks
        """What is wrong with a stored case of ``ranks`` ranks, beyond the ranges of the fields."""
        yield from ()


class AlgorithmSettings(CaseSettings, frozen=True, tag="algorithm"):
    """``algorithm``: explicit algorithm over send and receive."""

    texts = {"algorithm": "{} over send/recv"}
    algorithm: str


def explicit_algorithm(settings: CaseSettings | None) -> str | None:
    """Name of the explicit algorithm; None: the backend's own."""
    return settings.algorithm if isinstance(settings, AlgorithmSettings) else None


class PairSettings(CaseSettings, frozen=True, tag="pairs"):
    """``pairs``: whether disjoint pairs of a matrix ran concurrently."""

    texts = {"pairs": "pairs {}"}
    pairs: Pairs


def run_together(settings: CaseSettings | None) -> bool:
    """Whether disjoint pairs of a matrix run concurrently."""
    return not isinstance(settings, PairSettings) or settings.pairs == "together"


class TrafficSettings(CaseSettings, frozen=True, kw_only=True, omit_defaults=True, tag="traffic"):
    """Traffic of all_to_all_v.

    imbalance: 0 (even) to 1
    traffic: fingerprint of the traffic matrix that replaces the imbalance
    """

    texts = {"imbalance": "imbalance {:g}", "traffic": "traffic matrix {}"}
    imbalance: Annotated[float, msgspec.Meta(ge=0)] | None = None
    traffic: str | None = None


class HostSettings(CaseSettings, frozen=True, kw_only=True, omit_defaults=True, tag="host"):
    """Threads of a rank, and its memory.

    threads: threads of a rank that share a call; None: only its main thread
    numa_node: NUMA node of host memory; None: where it was first touched
    pinning: kind of host memory of a GPU copy; None for other ops
    """

    threads: Annotated[int, msgspec.Meta(ge=1, le=MOST_THREADS)] | None = None
    numa_node: Annotated[int, msgspec.Meta(ge=0, lt=MOST_NODES)] | None = None
    pinning: Pinning | None = None

    @property
    def words(self) -> Mapping[str, str]:
        """As in the base class."""
        threads = {} if self.threads is None else {"threads": counted(self.threads, "thread")}
        node = {} if self.numa_node is None else {"numa_node": f"NUMA node {self.numa_node}"}
        return threads | node | ({} if self.pinning is None else {"pinning": self.pinning})


def host_settings(settings: CaseSettings | None) -> HostSettings:
    """The settings of this family; the defaults for a case without them."""
    return settings if isinstance(settings, HostSettings) else HostSettings()


def parse_threads(text: str, cores: int) -> tuple[int, ...]:
    """Thread counts from a list (``1,4,cores``), a range (``1..cores*2``, ``2..8+2``), or both; ``cores`` is the
    number of cores of a rank. Ascending, without duplicates. Raises UsageError.
    """
    kept = []
    for part in text.replace(" ", "").split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise UsageError(
                f"threads {part!r} is not a number; allowed: 1, {CORES}, 1..{CORES}*2, 2..8+2, or a list of these"
            )
        low, high = (cores if end == CORES else int(end) for end in (match["low"], match["high"] or match["low"]))
        if low <= high or CORES not in part:  # otherwise the range is empty because a rank has few cores
            kept.append(part.replace(CORES, str(cores)))
    if not kept:
        raise UsageError(f"threads {text!r} gives no number, because a rank has {cores} core(s); start at 1")
    numbers = parse_sizes(",".join(kept))
    if numbers[0] < 1 or numbers[-1] > MOST_THREADS:
        raise UsageError(f"threads {text[:80]!r}: not allowed; use 1 to {MOST_THREADS}")
    return numbers


class Access(CaseSettings, frozen=True, tag="storage"):
    """How a file is accessed: sequentially, in blocks, with ``depth`` blocks in flight."""

    block_bytes: Annotated[int, msgspec.Meta(ge=1, le=LARGEST_SIZE)]
    depth: Annotated[int, msgspec.Meta(ge=1, le=MOST_DEPTH)]
    way: Way

    @property
    def words(self) -> Mapping[str, str]:
        """As in the base class."""
        return {"access": f"{format_size(self.block_bytes)} blocks, depth {self.depth}, {self.way}"}


def accesses(blocks: Sequence[str], depths: Sequence[int], way: Way) -> Iterator[Access]:
    """All combinations of blocks and depths. Raises UsageError for a block or depth that is not allowed."""
    if not blocks or not depths:
        raise UsageError("blocks and depths: want at least one of each; given none")
    for block in blocks:
        if parse_size(block) % GRAIN_BYTES or not parse_size(block):
            raise UsageError(f"block {block} cannot bypass the page cache; use a multiple of {GRAIN_BYTES} B")
    for depth in depths:
        if not 1 <= depth <= MOST_DEPTH:
            raise UsageError(f"depth {depth} is not allowed; use 1 to {MOST_DEPTH} blocks in flight")
    return (Access(parse_size(block), depth, way) for block in blocks for depth in depths)
