"""Reasons why a case cannot run on this world; the same on every rank."""

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain

from busbw.backends.base import Backend
from busbw.measure.stopping import ROWED
from busbw.ops import LATENCIES, OPS
from busbw.ops.algorithms import ALGORITHMS
from busbw.ops.base import Layout, Op, Share, first_reason
from busbw.ops.groups import ASKED, Ranks, split_world
from busbw.ops.settings import MOST_NODES, TrafficSettings, explicit_algorithm, host_settings, run_together
from busbw.ops.traffic import imbalanced
from busbw.runs.records import DTYPE_BYTES, Case
from busbw.units import about_size, counted

_MEMORY_MARGIN = 0.1
_LEAST_MEMORY_MARGIN_BYTES = 64 << 20
_SETS_IN_TURNS = 2
"""Least number of buffer sets with ``--cache rotating``."""
_FAR_MORE = 10
"""More than all buffers of a rank in units of S: counting the buffers of many ranks takes long, and most are small."""


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
    gpu_memory: least free bytes of any rank's GPU (None: unknown).
    """

    oversubscribed: bool
    comparable: bool
    cores: int = 1
    in_blocks: bool = True
    numa_nodes: frozenset[int] = field(default=frozenset())
    hosts: tuple[str, ...] = ()
    memory: Mapping[str, int] = field(default_factory=dict)
    gpu_memory: int | None = None


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
    smallest = min(map(len, groups))
    if (too_few := _too_few_ranks(op, case, groups)) is not None:
        return too_few
    if op.needs_device and case.device == "cpu":
        return f"{op.name} needs a GPU; backend {case.backend} runs on the CPU"
    if case.root is not None and case.root >= smallest:
        return f"root {case.root} is not in every group; the smallest has {smallest} ranks"
    if op.uneven and len({len(group) for group in groups}) > 1:
        return f"{op.name} needs groups of equal size; these have {sorted({len(group) for group in groups})} ranks"
    reason = (
        _unaskable(op, case) or _host_layout(case, place) or _no_numa_node(case, place) or out_of_memory(case, place)
    )
    return reason or _mode_conflict(case, place)


def _unaskable(op: Op, case: Case) -> str | None:
    """Reason why no controller can choose the groups of ``case``, or None."""
    fixed = op.members == "pairs" or op.between_devices or op.in_blocks or op.splits or (op.stores and not op.local)
    return f"{op.name} needs to know its groups before a run" if case.group == ASKED and fixed else None


def _too_few_ranks(op: Op, case: Case, groups: Sequence[Ranks]) -> str | None:
    """Reason why groups of this size have nothing to measure, or None."""
    smallest, largest = min(map(len, groups)), max(map(len, groups))
    if op.communicates and largest < 2:
        more = "use --ranks 2 or more" if case.ranks == 1 else "use other --groups"
        return f"communication needs at least 2 ranks in a group, but every group has 1; {more}"
    if smallest < op.least_ranks():
        return f"{op.name} needs at least {op.least_ranks()} ranks in every group; the smallest has {smallest}"
    return None


def _host_layout(case: Case, place: Place) -> str | None:
    """Reason why the hierarchical algorithm of ``case`` does not fit the placement of ranks, or None."""
    algorithm = ALGORITHMS.get(case.op, {}).get(explicit_algorithm(case.settings) or "")
    if place.in_blocks or algorithm is None or not algorithm.levels:
        return None
    return "the algorithm needs consecutive ranks on each host, the same number on each; the placement differs"


def _no_numa_node(case: Case, place: Place) -> str | None:
    """Reason why the NUMA node that ``case`` asks for cannot be used, or None."""
    node = host_settings(case.settings).numa_node
    if node is None:
        return None
    if case.device != "cpu" and not OPS[case.op].host_memory:
        return "--numa-node applies to host memory; the buffers are in GPU memory"
    if len(place.numa_nodes) < 2:
        return "no NUMA node can be chosen: a host has only one, or its system reports none"
    if node not in place.numa_nodes:
        return f"not every host has NUMA node {node}; all have {', '.join(map(str, sorted(place.numa_nodes)))}"
    return None


def out_of_memory(case: Case, place: Place) -> str | None:
    """Reason why the buffers of ``case`` do not fit into a host's memory, or None.

    Counts the buffers of all ranks of a host that work concurrently, plus a margin for other memory. Not counted,
    because unknown here: memory that a library takes for messages, temporary memory of explicit algorithms, memory that
    an op allocates itself, and blocks sent by a given traffic matrix. Checkpoints are held against their disk.
    """
    op = OPS[case.op]
    if case.dtype is None or (op.stores and not op.local):
        return None
    if case.device != "cpu":
        return _out_of_gpu_memory(op, case, place)
    if not place.memory:
        return None
    if _FAR_MORE * case.size_bytes * case.ranks + _LEAST_MEMORY_MARGIN_BYTES < min(place.memory.values()):
        return None
    held: defaultdict[str, list[int]] = defaultdict(list)
    for rank, own in _buffer_bytes(op, case):
        held[place.hosts[rank]].append(own)
    for host, of_ranks in held.items():
        bare = sum(of_ranks)
        # Kernels are asked for sizes up to the whole memory; a small message needs little more than itself.
        needed = bare + max(round(_MEMORY_MARGIN * bare), _LEAST_MEMORY_MARGIN_BYTES if op.local else 0)
        if needed > place.memory.get(host, needed):
            return (
                f"too little memory: {host} had {about_size(place.memory[host])} available when the run started, but "
                f"{about_size(needed)} are needed (buffers of {counted(len(of_ranks), 'rank')}, up to "
                f"{about_size(max(of_ranks))} each, and a margin); use smaller --sizes or fewer --ranks"
            )
    return None


def _out_of_gpu_memory(op: Op, case: Case, place: Place) -> str | None:
    """Reason why the buffers of some rank do not fit into its GPU, or None; with no margin, since torch keeps none."""
    if place.gpu_memory is None or _FAR_MORE * case.size_bytes * case.ranks < place.gpu_memory:
        return None
    needed = max(own for _, own in _buffer_bytes(op, case))
    if needed <= place.gpu_memory:
        return None
    return (
        f"too little GPU memory: a GPU had {about_size(place.gpu_memory)} free when the run started, but the buffers "
        f"of a rank need {about_size(needed)}; use smaller --sizes"
    )


def _buffer_bytes(op: Op, case: Case) -> Iterator[tuple[int, int]]:
    """Every rank that has buffers at the same time, and their bytes."""
    sets = _SETS_IN_TURNS if case.cache == "rotating" else 1
    groups = split_world(case.group, case.ranks)
    if case.group == ASKED and op.members == "ends":  # each rank may be the end of a pair
        yield from ((rank, sets * _bytes_of(op, case, 0, 2)) for rank in range(case.ranks))
        return
    if op.members == "pairs":
        # A rank is in one pair at a time, in which it has either the send or the receive buffer.
        paired = [group[: len(group) // 2 * 2] for group in groups] if run_together(case.settings) else [groups[0][:2]]
        yield from ((rank, sets * case.size_bytes) for rank in chain.from_iterable(paired))
        return
    for group in groups if op.members == "all" else tuple((group[0], group[-1]) for group in groups):
        yield from ((rank, sets * _bytes_of(op, case, index, len(group))) for index, rank in enumerate(group))


def _bytes_of(op: Op, case: Case, index: int, ranks: int) -> int:
    """Bytes of one set of buffers of the rank at ``index`` of a group."""
    if op.between_devices and op.rooted:  # the GPU of the root has a buffer of every other rank
        return ranks * case.size_bytes
    if op.local:
        arrays = _elements(op.layout(Share(0, 1, case.count))) * DTYPE_BYTES[case.dtype or "uint8"]
        # The blocks of a file pass through separate memory between the array and the system.
        return max(arrays, case.size_bytes) + (case.size_bytes if op.stores else 0)
    if op.name in LATENCIES:  # two orders of its lines, while the cycle is made
        return case.size_bytes + case.size_bytes // 8
    if op.uneven:
        imbalance = case.settings.imbalance if isinstance(case.settings, TrafficSettings) else None
        return round(case.size_bytes * _uneven_buffers(ranks, imbalance)[index])
    return round(case.size_bytes * _even_buffers(op.name, index, ranks, case.root or 0, in_place=case.in_place))


@lru_cache
def _uneven_buffers(ranks: int, imbalance: float | None) -> tuple[float, ...]:
    """Buffers of each rank of all_to_all_v, in units of S, the most that any rank receives (0: a given matrix)."""
    if imbalance is None:
        return (0.0,) * ranks
    received = imbalanced(ranks, imbalance)[0]
    return tuple((1 + weight) / max(received) for weight in received)


@lru_cache
def _even_buffers(name: str, index: int, ranks: int, root: int, *, in_place: bool) -> float:
    """Buffers of a rank in units of S."""
    op = OPS[name]
    count = op.multiple(ranks)
    return _elements(op.layout(Share(index, ranks, count, in_place, root))) / count


def _elements(layout: Layout) -> int:
    """Elements of both buffers; one of them may be part of the other."""
    counts = layout.send_count, layout.receive_count
    return sum(counts) if layout.receives_into_send is layout.sends_from_receive is None else max(counts)


def _mode_conflict(case: Case, place: Place) -> str | None:
    """Reason why the settings of ``case`` contradict each other or the machine, or None."""
    window, rowed, cpu = case.sync == "window", case.mode in ROWED, case.device == "cpu"
    given = host_settings(case.settings).threads
    threads = given or 1
    return first_reason(
        (given is not None and not cpu, "--threads applies to the CPU only; this case runs on a GPU"),
        (threads > place.cores, f"{threads} threads need a core each; a host has {place.cores} per rank"),
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
        (case.pre_enqueue and cpu, "--pre-enqueue needs a GPU stream; on the CPU a call runs when it is made"),
    )
