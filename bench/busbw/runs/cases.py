"""Expansion of a plan into its ordered list of cases, and an estimate of their duration."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice, product
from typing import cast

from busbw import units
from busbw.errors import UsageError
from busbw.ops import OPS, limits, traffic, training
from busbw.ops.algorithms import ALGORITHMS, ALL_ALGORITHMS, LIBRARY
from busbw.ops.base import Matrix, Op, Shape, Split
from busbw.ops.groups import ASKED, EACH, Round, in_turn, number_of_rounds, split_world
from busbw.ops.settings import (
    AlgorithmSettings,
    HostSettings,
    PairSettings,
    Pinning,
    TrafficSettings,
    Way,
    accesses,
    parse_threads,
    run_together,
)
from busbw.runs.plan import InPlace, Plan, Sweep, Timing, TrainingKeys, in_host_memory, may_register
from busbw.runs.records import DTYPE_BYTES, Case, Settings, case_in_words

_BLOCK_OVERHEAD_SECONDS = 0.15
"""Buffers, two checks, minimum samples and control traffic of a block: measured with 4 Gloo ranks on 2 cores."""

_STEPS_AROUND = 15
"""Steps of a block besides warm-up and samples: both checks, the first one, three times each part, memory, calls,
timeline.
"""
_STEP_BLOCK_SECONDS = 2.0
_TRAINING_START_SECONDS = 2.0
"""Time to build a training step and to compute it in one process, and to load what it needs: measured with 2 Gloo ranks
on 2 cores.
"""

_MOST_PAIRED = 32
"""Ranks of which a controller asks for all pairs; of more, it asks for some, in fewer rounds."""

_PASSES = 7
"""Passes of a block over its files besides its samples: two checks write and read them; the first call, the warm-up
and the other tool are one call each."""
_STORAGE_BYTES_PER_SECOND = 1e9
_CHECKED_BYTES_PER_SECOND = 150e6
_OTHER_TOOL_SECONDS = 0.5
"""Storage rate of a host, rate at which a rank generates and verifies data, and start-up time of fio: measured on the
disk of a virtual machine."""

_BALANCING = 3.0
"""Extra time budgets of an overlap case, to match computation and call: up to 12 rounds of a quarter each."""


TrafficKey = tuple[str, TrafficSettings]
"""Determines the traffic of an uneven case: split of the world, and imbalance or matrix."""


@dataclass(frozen=True, slots=True)
class Cases:
    """The cases of a plan.

    cases: in order, without duplicates
    adjusted: sentences about sizes that were rounded
    weights: traffic of the uneven cases
    """

    cases: tuple[Case, ...]
    adjusted: tuple[str, ...]
    weights: dict[TrafficKey, traffic.Weights]


def expand(plan: Plan, ranks: int, nodes: int, device: str = "cpu", way: Way = "direct", cores: int = 1) -> Cases:
    """All cases of ``plan`` on ``ranks`` ranks over ``nodes`` hosts.

    device: driven by the plan's backend
    way: how the page cache can be bypassed for files below the plan's path
    cores: fewest cores of any rank
    A size that an op cannot have (S must hold a multiple of ranks × itemsize) is rounded down, or up to the smallest
    possible size, and noted in ``adjusted``. Raises UsageError for groups or a root that do not fit the world.
    """
    _refuse_ranks(plan, ranks)
    cases: dict[Case, None] = {}
    adjusted: dict[str, None] = {}
    weights: dict[TrafficKey, traffic.Weights] = {}
    count = 0  # with duplicates, which take as long
    for sweep in plan.sweep:
        for spec in in_turn(sweep.groups.replace(" ", ""), ranks):
            groups = split_world(spec, ranks)
            of_world = partial(Case, backend=plan.backend, device=device, ranks=ranks, nodes=nodes, group=spec)
            for op in (OPS[name] for name in sweep.ops):
                if op.uneven or op.members == "pairs":
                    traffic.refuse_large(max(map(len, groups)))
                settings = tuple(islice(_settings(sweep, op, ranks, cores, way), limits.MOST_CASES + 1))
                for case, note in _cases_of(op, sweep, groups, settings, of_world):
                    count += 1
                    if count > limits.MOST_CASES:
                        raise UsageError(_TOO_MANY)
                    cases[case] = None
                    if note:
                        adjusted[note] = None
                    if (key := _traffic_key(case)) is not None and key not in weights:
                        weights[key] = traffic.weights_of(
                            sweep.communication.imbalance, sweep.communication.traffic, len(groups[0])
                        )
    if len(cases) * plan.timing.blocks > limits.MOST_LAUNCH_BLOCKS:
        raise UsageError(
            f"{len(cases)} cases of {plan.timing.blocks} blocks are too many; allowed are cases × blocks up to "
            f"{limits.MOST_LAUNCH_BLOCKS}"
        )
    return Cases(tuple(cases), tuple(adjusted), weights)


_TOO_MANY = f"the plan has more than {limits.MOST_CASES} cases, the allowed maximum; use fewer sizes"


def _refuse_ranks(plan: Plan, ranks: int) -> None:
    """Raise UsageError for too many ``ranks``, and for a root that no group of them can have."""
    if ranks > limits.MOST_RANKS:
        raise UsageError(f"{ranks} ranks are too many; allowed are up to {limits.MOST_RANKS}")
    if any(sweep.groups.strip() == EACH for sweep in plan.sweep) and ranks > limits.MOST_CASES:
        raise UsageError(f"groups 'each' of {ranks} ranks: {_TOO_MANY}")
    roots = [sweep.root for sweep in plan.sweep if any(OPS[name].rooted for name in sweep.ops)]
    unknown = next((root for root in roots if not 0 <= root < ranks), None)
    if unknown is not None:
        raise UsageError(f"key 'root': rank {unknown} does not exist; allowed are 0 to {ranks - 1}")


def _cases_of(
    op: Op, sweep: Sweep, groups: Round, settings: tuple[Settings | None, ...], of_world: Callable[..., Case]
) -> Iterator[tuple[Case, str | None]]:
    dtypes: tuple[str | None, ...] = sweep.dtypes if op.sized else (None,)
    redops: tuple[str | None, ...] = sweep.redops if op.reduces else (None,)
    in_place = _in_place(op, sweep.in_place)
    sizes = units.parse_sizes(sweep.sizes) if op.sized else (0,)
    unit = math.lcm(*map(op.multiple, set(map(len, groups))))
    for mode, setting, dtype, redop, inside, requested in product(
        sweep.modes, settings, dtypes, redops, in_place, sizes
    ):
        size, note = 0, None
        if dtype is not None:
            shape, itemsize = op.shape or _multiples(unit, DTYPE_BYTES[dtype]), DTYPE_BYTES[dtype]
            size = shape.down(requested // itemsize) * itemsize
            if size != requested:
                asked, taken = units.format_size(requested), units.format_size(size)
                why = shape.words if size < requested else f"the smallest that is {shape.words}"
                note = f"{op.name} {dtype}: {asked} became {taken}, {why}"
        case = of_world(
            op=op.name,
            dtype=dtype,
            redop=redop,
            size_bytes=size,
            mode=mode,
            sync=sweep.sync,
            cache=sweep.cache,
            pre_enqueue=sweep.pre_enqueue,
            registered=sweep.registered and may_register(op),
            in_place=inside,
            root=sweep.root if op.rooted else None,
            settings=setting,
        )
        yield case, note


def _settings(sweep: Sweep, op: Op, ranks: int, cores: int, way: Way) -> Iterator[Settings | None]:
    """The settings of every case of ``op``, of the family that it has; None: all are the defaults."""
    if op.name in ALGORITHMS:
        every = (LIBRARY, *ALGORITHMS[op.name])
        for name in every if ALL_ALGORITHMS in sweep.communication.algorithms else sweep.communication.algorithms:
            if name in every:
                yield None if name == LIBRARY else AlgorithmSettings(name)
    elif op.uneven:
        yield traffic.settings_of(sweep.communication.imbalance, sweep.communication.traffic)
    elif op.members == "pairs":
        yield PairSettings(sweep.communication.pairs)
    elif op.stores and op.local:
        files = sweep.files
        yield from accesses(files.blocks, files.depths, "dropped" if way == "direct" and not files.direct else way)
    elif op.threaded or in_host_memory(op):
        host = sweep.host
        threads = parse_threads(host.threads, cores) if op.threaded and host.threads is not None else (None,)
        pinning = cast("tuple[Pinning | None, ...]", host.pinning if op.host_memory else (None,))
        nodes = host.numa_nodes or (None,) if in_host_memory(op) else (None,)
        for count, kind, node in product(threads, pinning, nodes):
            settings = HostSettings(threads=count, numa_node=node, pinning=kind)
            yield None if settings == HostSettings() else settings
    elif op.splits:
        yield from _workloads(sweep.training, op, ranks)
    else:
        yield None


def _workloads(keys: TrainingKeys, op: Op, ranks: int) -> Iterator[training.Workload]:
    """The workloads of a training step on all ranks, with those of the requested replicas that divide the ranks.

    Raises UsageError if none of them does, and for a slow rank that does not exist.
    """
    default = 2 if "shard" in op.splits and ranks % 2 == 0 else 1
    requested = (default,) if keys.replicas is None else keys.replicas
    dividing = [replicas for replicas in requested if ranks % replicas == 0]
    if not dividing:
        raise UsageError(
            f"key 'replicas': {', '.join(map(str, requested))} does not divide {ranks} ranks; use a divisor"
        )
    slow = list(map(training.parse_slow, keys.slow_ranks))
    if (beyond := max((rank for rank, _ in slow), default=0)) >= ranks:
        raise UsageError(f"key 'slow_ranks': rank {beyond} does not exist; use 0 to {ranks - 1}")
    methods = map(training.parse_exchange, keys.exchanges if op.name == training.EXCHANGE else ())
    exchanges: list[str | None] = [*(training.exchange_in_words(*method) for method in methods)] or [None]
    models = (training.OTHER_MODELS.get(op.name, training.MODEL),) if keys.models is None else keys.models
    has_experts = "ep" in op.splits
    for model, replicas in product(models, dividing if op.splits != ("dp",) else [ranks]):
        degrees = _degrees(op, ranks, replicas)
        filled = (2 * degrees.get("pp", 1) if "pp" in op.splits else 1,)
        micro = filled if keys.micro_batches is None else keys.micro_batches
        for micro_batches, exchange, (slow_rank, slow_ns) in product(micro, exchanges, ((None, None), *slow)):
            yield training.Workload(
                model=model,
                scale=training.SCALES.get(model, training.SCALE) if keys.scale is None else keys.scale,
                **{"tp": 1, "pp": 1, **degrees},
                micro_batches=micro_batches,
                interleave=training.PARTS if op.name == training.INTERLEAVED else 1,
                wait_ns=training.parse_compute(keys.compute),
                expert_imbalance=keys.expert_imbalance if has_experts else 1.0,
                capacity=keys.capacity if has_experts else None,
                slow_rank=slow_rank,
                slow_ns=slow_ns,
                exchange=exchange,
            )


def _degrees(op: Op, ranks: int, replicas: int) -> dict[Split, int]:
    """How many ranks divide a training step of ``replicas`` replicas in each way."""
    sharing = ranks // replicas
    degrees = {**dict.fromkeys(op.splits, sharing), "dp": ranks if "dp" in op.splits else replicas}
    if op.splits == ("pp", "tp"):
        degrees |= (
            {"pp": sharing // training.STAGE, "tp": training.STAGE} if sharing % training.STAGE == 0 else {"tp": 1}
        )
    return degrees


def _in_place(op: Op, choice: InPlace) -> tuple[bool, ...]:
    if choice == "native" or not op.sized:
        return op.in_place[:1]
    # A request that the op cannot fulfil still becomes a case, which is stored as skipped.
    return op.in_place if choice == "both" else (choice == "yes",)


def _multiples(unit: int, itemsize: int) -> Shape:
    of_ranks = "" if unit == 1 else f"{unit} ranks × "
    return Shape(lambda count: max(unit, count // unit * unit), f"a multiple of {of_ranks}{itemsize} B")


def estimated_seconds(plan: Plan, cases: Sequence[Case], step_seconds: Callable[[Case], float]) -> float:
    """Estimated duration of a run on an otherwise idle machine: the time budget of every case, plus start-up, warm-up
    and checks (the larger part for files and training steps).

    step_seconds: of one call of a training step.
    An overestimate if a backend converges early; an underestimate if a single call of another op takes a large part of
    the budget.
    """
    timing = plan.timing
    per_round = timing.blocks * (2 * timing.warmup_seconds + _BLOCK_OVERHEAD_SECONDS)
    steps = [case for case in cases if OPS[case.op].splits]
    others = [case for case in cases if not OPS[case.op].splits]
    asked = {case: _asked_rounds(case) for case in others}
    sampled = sum(asked[case] * timing.max_seconds * (1.0 + _BALANCING * (case.mode == "overlap")) for case in others)
    around = sum(
        asked[case] * _rounds(case.op, case.group, case.ranks, together=run_together(case.settings)) * per_round
        + timing.blocks * _file_seconds(case)
        for case in others
    )
    trained = sum(_training_seconds(timing, step_seconds(case)) for case in steps)
    starting = 1.0 + timing.launch_warmup_seconds + _TRAINING_START_SECONDS * bool(steps)
    return plan.launches * (starting + sampled + around + trained)


def _training_seconds(timing: Timing, step_seconds: float) -> float:
    """Time of a training step's blocks in a launch, when a step takes ``step_seconds``."""
    filling = math.ceil(timing.warmup_seconds / step_seconds) if step_seconds else 0
    warmup = min(max(filling, timing.warmup_calls), timing.max_warmup_calls)
    around = timing.blocks * (_STEP_BLOCK_SECONDS + (warmup + _STEPS_AROUND) * step_seconds)
    return around + max(timing.max_seconds, timing.least_samples * step_seconds)


def _file_seconds(case: Case) -> float:
    """Time that a block spends on its files outside its samples."""
    op = OPS[case.op]
    if not op.stores:
        return 0.0
    of_a_host = math.ceil(case.ranks / case.nodes) * case.size_bytes
    checked = case.size_bytes / _CHECKED_BYTES_PER_SECOND
    return _PASSES * of_a_host / _STORAGE_BYTES_PER_SECOND + checked + _OTHER_TOOL_SECONDS * op.local


def _asked_rounds(case: Case) -> int:
    """How often a controller asks for ``case``, if there is one: for the pairs of all ranks both ways, or of the most
    for which it does.
    """
    if case.group != ASKED or OPS[case.op].members != "ends":
        return 1
    return number_of_rounds(min(case.ranks, _MOST_PAIRED), together=True)


@lru_cache
def _rounds(op: str, spec: str, ranks: int, *, together: bool) -> int:
    """How often a block warms up and samples: once, or once per round of a pair matrix. Cached, because splitting many
    ranks takes long and cases share few splits.
    """
    if OPS[op].members != "pairs":
        return 1
    by_group = [number_of_rounds(len(group), together=together) for group in split_world(spec, ranks)]
    return max(by_group) if together else sum(by_group)


def shares(case: Case, weights: Mapping[TrafficKey, traffic.Weights]) -> Matrix:
    """The traffic matrix of an uneven case in elements; empty for other cases."""
    key = _traffic_key(case)
    return () if key is None else traffic.split(weights[key], case.count)


def _traffic_key(case: Case) -> TrafficKey | None:
    return (case.group, case.settings) if isinstance(case.settings, TrafficSettings) else None


def timing_in_words(case: Case) -> list[str]:
    """How ``case`` is timed, as far as that differs from the defaults: mode, sync, cache and pre-enqueue."""
    return case_in_words(case, {"op", "dtype", "redop", "in_place", "settings", "device", "group", "root"})


def in_words(case: Case) -> str:
    """A case as text: ``all_reduce at 1 MiB (float32 sum)``."""
    details = " ".join(case_in_words(case, {"op", "in_place", "device", "group", "root"}))
    where = "" if case.group == "all" else f" in groups {case.group}"
    size = f" at {units.format_size(case.size_bytes)}" if OPS[case.op].sized else ""
    return f"{case.op}{size}{where}{f' ({details})' if details else ''}"
