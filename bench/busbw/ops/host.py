"""Settings of memory kernels, computation, and copies between a GPU and its host: threads, and memory of the host."""

import re
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Annotated, Literal, cast, get_args

import msgspec

from busbw.errors import UsageError
from busbw.ops.base import Op
from busbw.ops.limits import MOST_THREADS
from busbw.ops.settings import CaseSettings, Key, Ranks, SweepSettings, among
from busbw.units import counted, parse_sizes

CORES = "cores"

MOST_NODES = 1024
"""Largest number of NUMA nodes that a Linux kernel can be built for (CONFIG_NODES_SHIFT ≤ 10)."""

Pinning = Literal["pinned", "pageable"]
"""Host memory of GPU copies: page-locked or not."""

_MANY_CORES = 1 << 10
"""Cores of a rank for which the text of threads is checked."""

_PART = re.compile(rf"(?P<low>[0-9]{{1,9}}|{CORES})(?:\.\.(?P<high>[0-9]{{1,9}}|{CORES})[*+][0-9]{{1,9}})?")


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


def _in_host_memory(op: Op) -> bool:
    """Whether ``op`` measures host memory itself: memory kernels and copies of a GPU."""
    return op.host_memory or op.memory_traffic is not None


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


class HostSweep(SweepSettings, frozen=True):
    """Threads and memory of a sweep.

    threads: as in ``parse_threads``; None: only the main thread of a rank, unbound
    pinning: kinds of host memory of GPU copies
    numa_nodes: NUMA nodes of host memory, one case each; None: where it is first touched
    """

    threads: Annotated[
        str | None, Key(lambda text: parse_threads(text, _MANY_CORES), taken_by=lambda op: op.threaded)
    ] = None
    pinning: Annotated[
        tuple[str, ...], Key(among("pinning", get_args(Pinning)), taken_by=lambda op: op.host_memory)
    ] = get_args(Pinning)
    numa_nodes: Annotated[
        tuple[int, ...] | None,
        Key(among("NUMA node", range(MOST_NODES)), taken_by=_in_host_memory, option="--numa-node"),
    ] = None

    @classmethod
    def belongs_to(cls, op: Op) -> bool:
        """As in the base class."""
        return op.threaded or _in_host_memory(op)

    def cases(self, op: Op, ranks: Ranks) -> Iterator[CaseSettings | None]:
        """As in the base class."""
        threads = parse_threads(self.threads, ranks.cores) if op.threaded and self.threads is not None else (None,)
        pinning = self.pinning if op.host_memory else (None,)
        nodes = self.numa_nodes or (None,) if _in_host_memory(op) else (None,)
        for count, kind, node in product(threads, cast("tuple[Pinning | None, ...]", pinning), nodes):
            settings = HostSettings(threads=count, numa_node=node, pinning=kind)
            yield None if settings == HostSettings() else settings
