"""Why a case cannot run on this world: said once for the case, and the same on every rank."""

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
from busbw.units import about_size

_MEMORY_MARGIN = 0.1
_LEAST_MEMORY_MARGIN_BYTES = 64 << 20
_SETS_IN_TURNS = 2
"""As many sets of buffers as take turns at least."""


@dataclass(frozen=True, slots=True)
class Place:
    """What decides whether a case can run, besides the backend: whether a host has more ranks than cores, whether
    clocks can be compared, how many cores every rank has at least, whether the ranks of every host follow one
    another, as many on each, the NUMA nodes that every host has, the host of every rank, and the bytes of memory that
    a host has to give (a host that is not named: not known).
    """

    oversubscribed: bool
    comparable: bool
    cores: int = 1
    in_blocks: bool = True
    numa_nodes: frozenset[int] = field(default=frozenset())
    hosts: tuple[str, ...] = ()
    memory: Mapping[str, int] = field(default_factory=dict)


def anywhere() -> Place:
    """A place that has everything: what is refused there is refused on any host."""
    return Place(oversubscribed=False, comparable=True, cores=sys.maxsize, numa_nodes=frozenset(range(MOST_NODES)))


def skip_reason(case: Case, backend: Backend, place: Place) -> str | None:
    """Why ``case`` cannot run on this world; None when it can. The same on every rank."""
    return unsuited(case, place) or backend.refuse(OPS[case.op], case)


def unsuited(case: Case, place: Place) -> str | None:
    """Why ``case`` cannot run at ``place``, whatever the backend; None when that would have to be asked."""
    op = OPS[case.op]
    if op.sized and case.in_place not in op.in_place:
        return f"{op.name} is measured {'out of place' if case.in_place else 'in place'} only"
    groups = split_world(case.group, case.ranks)
    smallest = min(len(group) for group in groups)
    if smallest < op.least_ranks():
        return f"{op.name} needs {op.least_ranks()} ranks in every group; the smallest here has {smallest}"
    if op.needs_device and case.device == "cpu":
        return f"there is no device: backend {case.backend} drives the processor, and {op.name} copies with a GPU"
    if case.root is not None and case.root >= smallest:
        return f"root {case.root} is not a rank of every group; the smallest has {smallest} ranks"
    if op.uneven and len({len(group) for group in groups}) > 1:
        return f"{op.name} needs groups of one size; these have {sorted({len(group) for group in groups})} ranks"
    here = _host_layout(case, place) or _no_numa_node(case, place) or _out_of_memory(case, op, groups, place)
    return here or _mode_conflict(case, place)


def _host_layout(case: Case, place: Place) -> str | None:
    """Why the algorithm of ``case``, which goes host by host, does not fit where the ranks lie."""
    algorithm = ALGORITHMS.get(case.op, {}).get(case.algorithm or "")
    if place.in_blocks or algorithm is None or not algorithm.levels:
        return None
    return "it takes as many ranks on every host, one after the other; here they lie otherwise"


def _no_numa_node(case: Case, place: Place) -> str | None:
    """Why the memory of ``case`` cannot lie where it asks for."""
    node = case.numa_node
    if node is None:
        return None
    if len(place.numa_nodes) < 2:
        return "there is no NUMA node to choose: a host here has one, or its system tells of none"
    if node not in place.numa_nodes:
        return f"there is no NUMA node {node} on every host; there are {', '.join(map(str, sorted(place.numa_nodes)))}"
    return None


def _out_of_memory(case: Case, op: Op, groups: Round, place: Place) -> str | None:
    """Why the arrays of ``case`` do not fit into the memory of a host, those of all of its ranks that work at once
    together; a margin is left for everybody else. Only of ops without other ranks, which are asked for sizes up to what
    a host has: what a library takes for its messages is not known, and what an op makes for itself is not counted.
    """
    if not (op.local and op.sized and case.device == "cpu" and place.memory):
        return None
    layout = op.layout(Share(0, 1, case.count))
    arrays = (layout.send_count + layout.receive_count) * DTYPE_BYTES[case.dtype or "uint8"]
    # Blocks of a file go through memory of their own on their way between an array and the system.
    own = max(arrays, case.size_bytes) * (_SETS_IN_TURNS if case.cache == "rotating" else 1)
    own += case.size_bytes if op.stores else 0
    working = Counter(map(place.hosts.__getitem__, chain.from_iterable(groups)))
    for host, ranks in working.items():
        bare = ranks * own
        needed = bare + max(round(_MEMORY_MARGIN * bare), _LEAST_MEMORY_MARGIN_BYTES)
        if needed > place.memory.get(host, needed):
            return (
                f"too little memory: {host} had {about_size(place.memory[host])} available when the run began and "
                f"{about_size(needed)} are needed, which is {ranks} rank{'s' if ranks > 1 else ''} × "
                f"{about_size(own)} of arrays and a margin; ask for smaller --sizes or fewer --ranks"
            )
    return None


def _mode_conflict(case: Case, place: Place) -> str | None:
    """Why ``case`` cannot be timed as it asks for."""
    window, rowed, cpu = case.sync == "window", case.mode in ROWED, case.device == "cpu"
    threads = case.threads or 1
    return first_reason(
        (
            threads > place.cores,
            f"{threads} threads need a core each; a host here has {place.cores} for every rank",
        ),
        (
            threads > 1 and case.cache == "flushed",
            f"one thread flushes what its core reaches; caches of the others of {threads} threads would stay warm",
        ),
        (
            window and place.oversubscribed,
            "a window is waited for by spinning, which needs a core for every rank; a host here has fewer",
        ),
        (
            window and not place.comparable,
            "a window opens by a clock that all ranks read or are synchronised to; here they are not",
        ),
        (
            case.sync == "none" and rowed,
            f"mode {case.mode} is calls without a barrier between them already; sync none adds nothing to it",
        ),
        (
            case.cache == "flushed" and rowed,
            f"mode {case.mode} is calls in a row, of which only the first would find flushed caches",
        ),
        (
            case.mode == "barriers" and (case.group != "all" or OPS[case.op].members != "all" or case.pre_enqueue),
            "mode barriers ends with a barrier of all ranks, which all have to come to from a call of their own",
        ),
        (case.mode == "graph" and cpu, "a graph is captured on a GPU; there is none on a CPU"),
        (
            case.pre_enqueue and cpu,
            "only a device's stream can be held while calls are handed to it; on a CPU a call runs when it is made",
        ),
    )
