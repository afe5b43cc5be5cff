"""Plans: what to measure, from a TOML file, a shipped suite or options."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from busbw import units
from busbw.errors import UsageError, nearest, refuse_unknown, what_is_known
from busbw.ops import OPS, limits, op_named, storage, traffic
from busbw.ops.algorithms import ALGORITHMS, ALL_ALGORITHMS, LIBRARY
from busbw.ops.base import Op
from busbw.ops.exchanges import EVERY as EVERY_EXCHANGE
from busbw.ops.exchanges import parse_exchange
from busbw.ops.groups import ALL
from busbw.ops.limits import refuse_beyond
from busbw.ops.numa_nodes import MOST_NODES, takes_nodes
from busbw.ops.threads import parse_threads
from busbw.ops.training import parse_compute, parse_slow
from busbw.runs.records import DTYPE_BYTES, JSON, REDOPS, Cache, Mode, Pairs, Pinning, Record, Sync

_MANY_CORES = 1 << 10


InPlace = Literal["native", "yes", "no", "both"]


_EVERY_ALGORITHM = tuple(
    dict.fromkeys((LIBRARY, ALL_ALGORITHMS, *(name for named in ALGORITHMS.values() for name in named)))
)


_TIMING_RANGES: dict[str, tuple[float, float]] = {
    "blocks": (1, limits.MOST_BLOCKS),
    **dict.fromkeys(("least_samples", "warmup_calls"), (1, limits.MOST_SAMPLES)),
    **dict.fromkeys(("min_samples", "max_samples", "max_warmup_calls"), (0, limits.MOST_SAMPLES)),
    **dict.fromkeys(("min_seconds", "max_seconds"), (0, limits.LONGEST_SECONDS)),
    **dict.fromkeys(("launch_warmup_seconds", "warmup_seconds"), (0, limits.LONGEST_SECONDS)),
}
"""Field of the protocol → its minimum and maximum."""


class Timing(Record, frozen=True, kw_only=True):
    """Parameters of the measurement protocol. Times are in seconds; budgets are per case and launch.

    blocks: blocks per case, spread over a launch
    precision: sampling stops when the confidence interval of the median is within ± this fraction
    min_samples, min_seconds: but not before
    max_seconds, max_samples: and at the latest then, with at least ``least_samples``
    launch_warmup_seconds: small collectives at the start of a launch
    warmup_seconds: warm-up of a block, with ``warmup_calls`` to ``max_warmup_calls`` calls
    timeout_seconds: a rank without progress for this long is considered lost
    """

    blocks: int = 2
    precision: float = 0.05
    min_samples: int = 30
    least_samples: int = 20
    max_samples: int = 4000
    min_seconds: float = 0.1
    max_seconds: float = 0.5
    launch_warmup_seconds: float = 1.0
    warmup_seconds: float = 0.02
    warmup_calls: int = 5
    max_warmup_calls: int = 50
    timeout_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name, (least, most) in _TIMING_RANGES.items():
            refuse_beyond(name, getattr(self, name), least, most)
        if not 0 < self.timeout_seconds <= limits.LONGEST_TIMEOUT_SECONDS:
            raise UsageError(
                f"key 'timeout_seconds': {self.timeout_seconds:g} is not allowed; use a number above 0 and up to "
                f"{limits.LONGEST_TIMEOUT_SECONDS}"
            )
        if self.warmup_calls > self.max_warmup_calls:
            raise UsageError(f"want warmup_calls ({self.warmup_calls}) ≤ max_warmup_calls ({self.max_warmup_calls})")
        if not self.least_samples <= self.min_samples <= self.max_samples:
            raise UsageError("want least_samples ≤ min_samples ≤ max_samples")
        if not 0 < self.precision < 1:
            raise UsageError(f"key 'precision': want above 0 and below 1; given {self.precision:g}")
        if self.min_seconds > self.max_seconds:
            raise UsageError(f"want min_seconds ({self.min_seconds:g}) ≤ max_seconds ({self.max_seconds:g})")


class Sweep(Record, frozen=True, kw_only=True):
    """One sweep of a plan: ops × modes × data types × reductions × sizes.

    sizes: as in ``units.parse_sizes``
    modes, sync, cache, pre_enqueue: how calls are timed, see ``records.Case``
    in_place: whether the send buffer is the receive buffer (native: the op's default)
    groups: split of the ranks, as in ``ops.groups``
    imbalance, traffic: of all_to_all_v, as in ``ops.traffic``
    pairs: whether disjoint pairs of a matrix run concurrently
    baseline: measured only as a reference for models and peaks of the other sweeps
    algorithms: explicit algorithms, and ``library``
    blocks, depths, direct: of file accesses: block sizes, blocks in flight, and whether to bypass the page cache
    threads: threads of a rank that share a call, as in ``ops.threads``; None: only its main thread, unbound
    pinning: kinds of host memory of GPU copies
    numa_nodes: NUMA nodes of host memory, one case each; None: where it is first touched

    Training steps:
    models: rows of ``busbw training models``
    scale: of the models; None: as in ``ops.training``
    micro_batches: per step and replica; None: two per pipeline stage, else one
    replicas: of the model, if ranks divide more than the batch; None: one, or two if groups of ranks shard weights
    expert_imbalance, capacity: as in ``workloads.routing``
    compute: as in ``ops.training``
    slow_ranks: further cases with one rank late by a known time, such as ``1=20ms``
    exchanges: how ranks exchange gradients or weights, as in ``ops.exchanges``
    """

    ops: tuple[str, ...]
    sizes: str = "8..16MiB*2"
    dtypes: tuple[str, ...] = ("float32",)
    redops: tuple[str, ...] = ("sum",)
    modes: tuple[str, ...] = ("isolated",)
    sync: Sync = "barrier"
    cache: Cache = "warm"
    pre_enqueue: bool = False
    in_place: InPlace = "native"
    groups: str = ALL
    root: int = 0
    imbalance: float = 0.5
    traffic: tuple[tuple[float, ...], ...] | None = None
    pairs: Pairs = "together"
    baseline: bool = False
    algorithms: tuple[str, ...] = (LIBRARY,)
    blocks: tuple[str, ...] = ("1MiB",)
    depths: tuple[int, ...] = (1,)
    direct: bool = True
    threads: str | None = None
    pinning: tuple[str, ...] = get_args(Pinning)
    numa_nodes: tuple[int, ...] | None = None
    models: tuple[str, ...] | None = None
    scale: float | None = None
    micro_batches: tuple[int, ...] | None = None
    replicas: tuple[int, ...] | None = None
    expert_imbalance: float = 1.0
    capacity: float | None = None
    compute: str = "real"
    slow_ranks: tuple[str, ...] = ()
    exchanges: tuple[str, ...] = EVERY_EXCHANGE

    def __post_init__(self) -> None:
        refuse_beyond("scale", 1.0 if self.scale is None else self.scale, limits.LEAST_SCALE, 1)
        refuse_beyond("expert_imbalance", self.expert_imbalance, 1, limits.MOST_RANKS)
        refuse_beyond("capacity", 1.0 if self.capacity is None else self.capacity, 1, limits.MOST_RANKS)
        for number in self.replicas or ():
            refuse_beyond("replicas", number, 1, limits.MOST_RANKS)
        for number in self.micro_batches or ():
            refuse_beyond("micro_batches", number, 1, limits.MOST_MICRO_BATCHES)
        for key, check in _CHECKS.items():
            given = getattr(self, key)
            try:
                if key != "traffic" and isinstance(given, tuple) and len(given) > limits.MOST_VALUES:
                    raise UsageError(f"{len(given)} values are too many; use at most {limits.MOST_VALUES}")  # noqa: TRY301 - the key is put before it below
                if given is not None:
                    check(given)
            except UsageError as error:
                raise UsageError(f"key {key!r}: {error}") from error


class Plan(Record, frozen=True, kw_only=True):
    """A whole run.

    ranks: None: as many as the machine or the launcher provides
    path: folder, on every host, below which storage ops create their files; None: not given
    record_trace: also write a trace of one training step by the library's profiler
    """

    name: str = "custom"
    backend: str = "gloo"
    ranks: int | None = None
    launches: int = 1
    seed: int = 1
    path: str | None = None
    record_trace: bool = False
    timing: Timing = Timing()
    sweep: tuple[Sweep, ...]

    def __post_init__(self) -> None:
        refuse_beyond("launches", self.launches, 1, limits.MOST_LAUNCHES)
        if self.ranks is not None:
            refuse_beyond("ranks", self.ranks, 1, limits.MOST_RANKS)
        refuse_beyond("seed", self.seed, -limits.LARGEST_SEED, limits.LARGEST_SEED)
        if "\0" in (self.path or ""):
            raise UsageError(f"key 'path': {self.path!r} contains a NUL character, which file names cannot contain")
        if len(self.sweep) > limits.MOST_SWEEPS:
            raise UsageError(f"key 'sweep': {len(self.sweep)} are too many; use at most {limits.MOST_SWEEPS}")
        if not self.sweep:
            raise UsageError("key 'sweep': want at least one; given none")
        # Checked over the whole plan: a suite may mix sweeps of ops with and without algorithms.
        ops = {op: None for sweep in self.sweep for op in sweep.ops}
        available = {name for op in ops for name in ALGORITHMS.get(op, {})} | {LIBRARY, ALL_ALGORITHMS}
        unavailable = {name: None for sweep in self.sweep for name in sweep.algorithms if name not in available}
        if unavailable:
            raise UsageError(
                f"key 'algorithms': {', '.join(unavailable)} is not an algorithm of {', '.join(ops)}; "
                "busbw list algorithms shows those of each op"
            )

    @property
    def storing(self) -> tuple[str, ...]:
        """The planned operations that create files below the path."""
        return tuple(name for name, op in OPS.items() if op.stores and any(name in sweep.ops for sweep in self.sweep))

    @property
    def files_below(self) -> str | None:
        """The path, if any operation creates files there."""
        return self.path if self.storing else None

    def require_path(self) -> None:
        """Raise UsageError if storage operations are planned without a path."""
        if self.storing and not self.path:
            raise UsageError(
                f"key 'path': the folder for the files of {', '.join(self.storing)} is missing; give one on the "
                "storage to be measured, on every host"
            )

    def as_json(self) -> dict[str, JSON]:
        """The plan as it is stored with a run."""
        document: dict[str, JSON] = msgspec.to_builtins(self)
        return document


def _require(given: Sequence[object]) -> None:
    if not given:
        raise UsageError("want at least one; given none")


def _known(what: str, given: Sequence[object], allowed: Collection[object]) -> None:
    unknown = [name for name in given if name not in allowed]
    if unknown or not given:
        names = [f"{allowed[0]} to {allowed[-1]}"] if isinstance(allowed, range) else [*map(str, allowed)]
        found = f"{what} {', '.join(map(repr, unknown))} is unknown" if unknown else f"the list of {what}s is empty"
        likely = nearest(str(unknown[0]), map(str, allowed)) if unknown else None
        raise UsageError(f"{found}; {what_is_known(names, likely)}")


_CHECKS: dict[str, Callable[[Any], object]] = {
    "ops": lambda names: [op_named(name) for name in names],
    "sizes": units.parse_sizes,
    "dtypes": lambda names: _known("dtype", names, DTYPE_BYTES),
    "redops": lambda names: _known("redop", names, REDOPS),
    "modes": lambda names: _known("mode", names, get_args(Mode)),
    "sync": lambda name: _known("sync", (name,), get_args(Sync)),
    "cache": lambda name: _known("cache", (name,), get_args(Cache)),
    "in_place": lambda name: _known("in place", (name,), get_args(InPlace)),
    "algorithms": lambda names: _known("algorithm", names, _EVERY_ALGORITHM),
    "pairs": lambda name: _known("pairs", (name,), get_args(Pairs)),
    "pinning": lambda names: _known("pinning", names, get_args(Pinning)),
    "threads": lambda text: parse_threads(text, _MANY_CORES),
    "numa_nodes": lambda nodes: _known("NUMA node", nodes, range(MOST_NODES)),
    "blocks": lambda sizes: storage.accesses(sizes, (1,), "direct"),
    "depths": lambda depths: storage.accesses(("1MiB",), depths, "direct"),
    "imbalance": lambda share: traffic.imbalanced(2, share),
    "traffic": lambda weights: traffic.checked_weights(weights or ((1.0,),), "of the plan"),
    **dict.fromkeys(("models", "micro_batches", "replicas"), _require),
    "compute": parse_compute,
    "slow_ranks": lambda ranks: list(map(parse_slow, ranks)),
    "exchanges": lambda names: _require([*map(parse_exchange, names)]),
}
"""Key of a sweep → function that raises UsageError for an invalid value; None is always valid."""


# --- reading ---------------------------------------------------------------------------------------------------


def suites() -> dict[str, str]:
    """Name of a shipped suite → its TOML text."""
    return limits.shipped("busbw.runs", "suites")


def read_suite(name: str) -> Plan:
    """A shipped suite. Raises UsageError that lists all suites."""
    known = suites()
    if name not in known:
        refuse_unknown("suite", name, known)
    return parse_plan(known[name], f"suite {name}", Path())


def read_plan(path: Path) -> Plan:
    """A plan file. Raises UsageError with key, line and allowed values."""
    return parse_plan(limits.read_text(path, limits.MOST_TOML_BYTES, "plan "), str(path), path.parent)


def parse_plan(text: str, origin: str, folder: Path) -> Plan:
    """A plan from TOML ``text``; ``traffic`` of a sweep may name a CSV file relative to ``folder``."""
    document = limits.read_toml(text, origin, repeated=("sweep",))
    sweeps = document.get("sweep", [])
    sweeps = sweeps if isinstance(sweeps, list) else []
    if len(sweeps) > limits.MOST_SWEEPS:  # before building them, which may take long
        raise UsageError(f"{origin}: key 'sweep': {len(sweeps)} are too many; use at most {limits.MOST_SWEEPS}")
    read: dict[str, traffic.Weights] = {}
    cells = 0
    for sweep in sweeps:
        if isinstance(sweep, dict) and isinstance(name := sweep.get("traffic"), str):
            if name not in read:
                read[name] = traffic.read_weights(folder / name)
            sweep["traffic"] = read[name]
            cells += len(read[name]) ** 2
            if cells > limits.MOST_MATRIX_RANKS**2:
                raise UsageError(
                    f"{origin}: the traffic matrices together have more than {limits.MOST_MATRIX_RANKS}² cells"
                )
    timing = document.get("timing")
    if isinstance(timing, dict) and isinstance(most := timing.get("max_seconds"), int | float):
        timing.setdefault("min_seconds", _minimum_within(most, Timing().min_seconds))
    return limits.converted(document, text, origin, Plan, sweep=Sweep, timing=Timing)


def override(plan: Plan, *, ops: Sequence[str] = (), **settings: Any) -> Plan:  # noqa: ANN401 - each value goes to the field of that name, which checks it
    """``plan`` with options applied: ``ops`` selects sweeps and ops; each setting goes to the plan or to every sweep.

    ``sizes`` does not change local copies that a plan measures besides other ops: their purpose is the peak for large
    messages. Raises UsageError for an op that is not in the plan, and for a setting that no op of the plan has.
    """
    given = {key: value for key, value in settings.items() if value is not None}
    sweeps = list(plan.sweep)
    if ops:
        here = {name for sweep in sweeps for name in sweep.ops}
        missing = [name for name in ops if op_named(name).name not in here]
        if missing:
            has = ", ".join(name for name in OPS if name in here)
            raise UsageError(f"op {', '.join(map(repr, missing))} is not in plan {plan.name!r}; it has: {has}")
        chosen = [
            msgspec.structs.replace(sweep, ops=tuple(name for name in sweep.ops if name in ops)) for sweep in sweeps
        ]
        sweeps = [sweep for sweep in chosen if sweep.ops]
    others = any(not _is_peak(sweep) for sweep in sweeps)
    of_sweep = {key: value for key, value in given.items() if key in Sweep.__struct_fields__}
    of_peak = {key: value for key, value in of_sweep.items() if key != "sizes" or not others}
    sweeps = [msgspec.structs.replace(sweep, **(of_peak if _is_peak(sweep) else of_sweep)) for sweep in sweeps]
    pace = {key: value for key, value in given.items() if key in Timing.__struct_fields__}
    if "max_seconds" in pace:
        pace.setdefault("min_seconds", _minimum_within(pace["max_seconds"], plan.timing.min_seconds))
    timing = msgspec.structs.replace(plan.timing, **pace)
    own = {key: value for key, value in given.items() if key in Plan.__struct_fields__}
    changed = msgspec.structs.replace(plan, sweep=tuple(sweeps), timing=timing, **own)
    _refuse_what_changes_nothing(changed, given)
    return changed


def _minimum_within(max_seconds: float, min_seconds: float) -> float:
    """A time budget below the minimum lowers the minimum too."""
    return max(0.0, min(min_seconds, max_seconds))


@contextmanager
def naming_options() -> Iterator[None]:
    """Replace plan keys in error messages by option names, for users who typed options."""
    try:
        yield
    except UsageError as error:
        named = _KEY.sub(lambda key: f"{_OPTIONS.get(key[1], '--' + key[1].replace('_', '-'))}: ", str(error))
        raise UsageError(named) from error


_KEY = re.compile(r"^key '(\w+)': ")
_OPTIONS = {
    "ops": "--op",
    "dtypes": "--dtype",
    "redops": "--redop",
    "modes": "--mode",
    "models": "--model",
    "algorithms": "--algorithm",
    "numa_nodes": "--numa-node",
    "slow_ranks": "--slow-rank",
    "exchanges": "--exchange",
    "timeout_seconds": "--timeout",
}
"""Plan key → its option, if the option has another name."""


def given_path(path: str) -> str:
    """``path`` as an absolute path. An empty one stays empty: it is an unset shell variable, not the current folder."""
    return str(Path(path).absolute()) if path else ""


_TAKEN_BY: dict[str, Callable[[Op], bool]] = {
    "sizes": lambda op: op.sized,
    "dtypes": lambda op: op.sized,
    "redops": lambda op: op.reduces,
    "algorithms": lambda op: op.name in ALGORITHMS,
    "in_place": lambda op: op.sized,
    "root": lambda op: op.rooted,
    "imbalance": lambda op: op.uneven,
    "traffic": lambda op: op.uneven,
    "threads": lambda op: op.threaded,
    "numa_nodes": takes_nodes,
    "pairs": lambda op: op.members == "pairs",
    "path": lambda op: op.stores,
    **dict.fromkeys(("expert_imbalance", "capacity"), lambda op: "ep" in op.splits),
    "replicas": lambda op: op.splits not in {(), ("dp",)},
    **dict.fromkeys(
        ("models", "scale", "micro_batches", "compute", "slow_ranks", "record_trace"), lambda op: bool(op.splits)
    ),
}
"""Setting that only some ops have → whether an op has it. All other settings change how every op is timed."""


def _refuse_what_changes_nothing(plan: Plan, given: Mapping[str, Any]) -> None:
    """Raise UsageError for a setting that no op of the plan has: ignoring it silently would mislead. A setting that
    equals the default is accepted.
    """
    defaults = {field.name: field.default for field in msgspec.structs.fields(Sweep)}
    ops = tuple(name for name in OPS if any(name in sweep.ops for sweep in plan.sweep))
    for key, takes in _TAKEN_BY.items():
        if key not in given or given[key] == defaults.get(key):
            continue
        takers = [name for name, op in OPS.items() if takes(op) and (given[key] != "both" or len(op.in_place) > 1)]
        if not set(takers) & set(ops):
            others = [name for name in OPS if name not in takers]
            known = ", ".join(takers) if len(takers) < len(others) else f"all but {', '.join(others)}"
            raise UsageError(f"key {key!r}: has no effect on {', '.join(ops)}; it applies to {known}")


def _is_peak(sweep: Sweep) -> bool:
    return all(OPS[name].local or OPS[name].plain_sockets for name in sweep.ops)
