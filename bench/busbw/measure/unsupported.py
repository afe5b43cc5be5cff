"""Reasons why a case cannot run on this world; the same on every rank."""

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain

from busbw.backends.base import Backend
from busbw.measure.stopping import ROWED
from busbw.ops import OPS
from busbw.ops.algorithms import ALGORITHMS
from busbw.ops.base import Op, Share, first_reason
from busbw.ops.groups import Round, split_world
from busbw.ops.numa_nodes import MOST_NODES
from busbw.runs.records import DTYPE_BYTES, Case
from busbw.units import about_size, counted

_MEMORY_MARGIN = 0.1
_LEAST_MEMORY_MARGIN_BYTES = 64 << 20
_SETS_IN_TURNS = 2
"""Least number of buffer sets with ``--cache rotating``."""


@dataclass(frozen=True, slots=True)
class Place:
    """Properties of the machine that decide whether a case can run, apart from the backend.

    oversubscribed: whether a host has more ranks than cores.
    comparable: whether the ranks' clocks can be compared.
    cores: least number of cores per rank.
    in_blocks: whether the ranks of each host are consecutive, the same number on each.
    numa_nodes: NUMA nodes that every host has.
    hosts: host of each rank.
    memory: available bytes of each host (missing: unknown).
    """

    oversubscribed: bool
    comparable: bool
    cores: int = 1
    in_blocks: bool = True
    numa_nodes: frozenset[int] = field(default=frozenset())
    hosts: tuple[str, ...] = ()
    memory: Mapping[str, int] = field(default_factory=dict)


def anywhere() -> Place:
    """A place without limits: a case that is refused there is refused on any host."""
    return Place(oversubscribed=False, comparable=True, cores=sys.maxsize, numa_nodes=frozenset(range(MOST_NODES)))


def skip_reason(case: Case, backend: Backend, place: Place) -> str | None:
    """Reason why ``case`` cannot run on this world, or None; the same on every rank."""
    return unsuited(case, place) or backend.refuse(OPS[case.op], case)


def unsuited(case: Case, place: Place) -> str | None:
    """Reason why ``case`` cannot run at ``place`` with any backend, or None."""
    op = OPS[case.op]
    if op.sized and case.in_place not in op.in_place:
        return f"{op.name} supports only {'out-of-place' if case.in_place else 'in-place'} buffers"
    groups = split_world(case.group, case.ranks)
    smallest = min(len(group) for group in groups)
    if smallest < op.least_ranks():
        return f"{op.name} needs at least {op.least_ranks()} ranks in every group; the smallest has {smallest}"
    if op.needs_device and case.device == "cpu":
        return f"{op.name} needs a GPU; backend {case.backend} runs on the CPU"
    if case.root is not None and case.root >= smallest:
        return f"root {case.root} is not in every group; the smallest has {smallest} ranks"
    if op.uneven and len({len(group) for group in groups}) > 1:
        return f"{op.name} needs groups of equal size; these have {sorted({len(group) for group in groups})} ranks"
    here = _host_layout(case, place) or _no_numa_node(case, place) or _out_of_memory(case, op, groups, place)
    return here or _mode_conflict(case, place)


def _host_layout(case: Case, place: Place) -> str | None:
    """Reason why the hierarchical algorithm of ``case`` does not fit the placement of ranks, or None."""
    algorithm = ALGORITHMS.get(case.op, {}).get(case.algorithm or "")
    if place.in_blocks or algorithm is None or not algorithm.levels:
        return None
    return "the algorithm needs consecutive ranks on each host, the same number on each; the placement differs"


def _no_numa_node(case: Case, place: Place) -> str | None:
    """Reason why the NUMA node that ``case`` asks for cannot be used, or None."""
    node = case.numa_node
    if node is None:
        return None
    if len(place.numa_nodes) < 2:
        return "there is no NUMA node to choose: a host has only one, or its system reports none"
    if node not in place.numa_nodes:
        return f"not every host has NUMA node {node}; all have {', '.join(map(str, sorted(place.numa_nodes)))}"
    return None


def _out_of_memory(case: Case, op: Op, groups: Round, place: Place) -> str | None:
    """Reason why the arrays of ``case`` do not fit into a host's memory, or None.

    Counts the arrays of all ranks of a host that work concurrently, plus a margin for other processes. Only for local
    ops, which are asked for sizes up to the whole memory: the memory that a library uses for messages is unknown, and
    the memory that an op allocates itself is not counted.
    """
    if not (op.local and op.sized and case.device == "cpu" and place.memory):
        return None
    layout = op.layout(Share(0, 1, case.count))
    arrays = (layout.send_count + layout.receive_count) * DTYPE_BYTES[case.dtype or "uint8"]
    # The blocks of a file pass through separate memory between the array and the system.
    own = max(arrays, case.size_bytes) * (_SETS_IN_TURNS if case.cache == "rotating" else 1)
    own += case.size_bytes if op.stores else 0
    working = Counter(map(place.hosts.__getitem__, chain.from_iterable(groups)))
    for host, ranks in working.items():
        bare = ranks * own
        needed = bare + max(round(_MEMORY_MARGIN * bare), _LEAST_MEMORY_MARGIN_BYTES)
        if needed > place.memory.get(host, needed):
            return (
                f"too little memory: {host} had {about_size(place.memory[host])} available when the run started, but "
                f"{about_size(needed)} are needed ({counted(ranks, 'rank')} × "
                f"{about_size(own)} of arrays and a margin); use smaller --sizes or fewer --ranks"
            )
    return None


def _mode_conflict(case: Case, place: Place) -> str | None:
    """Reason why the settings of ``case`` contradict each other or the machine, or None."""
    window, rowed, cpu = case.sync == "window", case.mode in ROWED, case.device == "cpu"
    threads = case.threads or 1
    return first_reason(
        (
            threads > place.cores,
            f"{threads} threads need a core each; a host has {place.cores} per rank",
        ),
        (
            threads > 1 and case.cache == "flushed",
            f"cache flushed needs 1 thread, not {threads}: one thread flushes only the caches of its own core",
        ),
        (
            window and place.oversubscribed,
            "sync window needs a core for every rank, because ranks spin; a host has fewer cores than ranks",
        ),
        (
            window and not place.comparable,
            "sync window needs a clock that all ranks share or are synchronised to; there is none",
        ),
        (
            case.sync == "none" and rowed,
            f"mode {case.mode} already makes calls without a barrier between them; sync none adds nothing",
        ),
        (
            case.cache == "flushed" and rowed,
            f"mode {case.mode} makes back-to-back calls, of which only the first would find flushed caches",
        ),
        (
            case.mode == "barriers" and (case.group != "all" or OPS[case.op].members != "all" or case.pre_enqueue),
            "mode barriers ends each call with a barrier, so all ranks must take part in one group, not pre-enqueued",
        ),
        (case.mode == "graph" and cpu, "mode graph needs a GPU; this case runs on the CPU"),
        (
            case.pre_enqueue and cpu,
            "--pre-enqueue needs a GPU stream; on the CPU a call runs when it is made",
        ),
    )
