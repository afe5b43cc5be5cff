"""Plans: what to measure, from a TOML file, a shipped suite or options."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self, get_args

import msgspec

from busbw import units
from busbw.errors import UsageError, nearest, refuse_unknown, what_is_known
from busbw.ops import OPS, limits, op_named
from busbw.ops.algorithms import ALGORITHMS, ALL_ALGORITHMS, LIBRARY
from busbw.ops.base import Op
from busbw.ops.groups import ALL, ASKED
from busbw.ops.settings import MOST_NODES, Pairs, Pinning, accesses, parse_threads
from busbw.ops.traffic import Weights, checked_weights, imbalanced, read_weights
from busbw.ops.training import EVERY_EXCHANGE, EXCHANGE, parse_compute, parse_exchange, parse_slow
from busbw.runs.asked import CONTROLLERS, LEAST_NODES
from busbw.runs.records import DTYPE_BYTES, JSON, REDOPS, Cache, Mode, Sync

_LONGEST_DURATION_SECONDS: Final = 30 * limits.LONGEST_SECONDS
_MANY_CORES: Final = 1 << 10
"""Cores of a rank for which the text of threads is checked."""

InPlace = Literal["native", "yes", "no", "both"]

# --- keys and their checks -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a plan, beside the type of its field.

    check: raises UsageError for a value that is not allowed; is not called for None
    taken_by: whether an op has the setting; None: every op
    option: its option, if that has another name
    any_length: ``check`` limits the length of its list, or the value is one matrix
    """

    check: Callable[[Any], object] = bool
    taken_by: Callable[[Op], bool] | None = None
    option: str | None = None
    any_length: bool = False


@cache
def keys_of(record: type[msgspec.Struct]) -> Mapping[str, Key]:
    """Field of ``record`` → its key, for the fields that have one."""
    return {
        field.name: extra
        for field in msgspec.structs.fields(record)
        for extra in get_args(field.type)[1:]
        if isinstance(extra, Key)
    }


class Keyed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A record whose fields are checked by their keys."""

    def __post_init__(self) -> None:
        for name, key in keys_of(type(self)).items():
            given = getattr(self, name)
            try:
                if isinstance(given, tuple) and not key.any_length and len(given) > limits.MOST_VALUES:
                    raise UsageError(f"{len(given)} values are too many; use at most {limits.MOST_VALUES}")  # noqa: TRY301 - the key is put before it below
                if given is not None:
                    key.check(given)
            except UsageError as error:
                raise UsageError(f"key {name!r}: {error}") from error


def not_empty(given: Collection[object]) -> None:
    """Raise UsageError for an empty list."""
    if not given:
        raise UsageError("want at least one; given none")


def within(least: float, most: float) -> Callable[[float | tuple[float, ...]], None]:
    """A check that raises UsageError for an empty list, NaN, and numbers outside ``least`` to ``most``."""

    def check(given: float | tuple[float, ...]) -> None:
        if isinstance(given, tuple):
            not_empty(given)
        for number in given if isinstance(given, tuple) else (given,):
            if not least <= number <= most:
                raise UsageError(f"want at least {least} and at most {most}; given {number!s:.40}")

    return check


def among(what: str, allowed: Collection[object]) -> Callable[[Any], None]:
    """A check that raises UsageError for a value, or one of several, that is not ``allowed``, and for an empty list."""

    def check(given: object) -> None:
        names = given if isinstance(given, tuple) else (given,)
        unknown = [name for name in names if name not in allowed]
        if unknown or not names:
            names_allowed = [f"{allowed[0]} to {allowed[-1]}"] if isinstance(allowed, range) else [*map(str, allowed)]
            wrong = f"{what} {', '.join(map(repr, unknown))} is unknown" if unknown else f"the list of {what}s is empty"
            likely = nearest(str(unknown[0]), map(str, allowed)) if unknown else None
            raise UsageError(f"{wrong}; {what_is_known(names_allowed, likely)}")

    return check


# --- the records ---------------------------------------------------------------------------------------------------

_SOME_SAMPLES = Key(within(1, limits.MOST_SAMPLES))
_SAMPLES = Key(within(0, limits.MOST_SAMPLES))
_SECONDS = Key(within(0, limits.LONGEST_SECONDS))


class Timing(Keyed, frozen=True, kw_only=True):
    """Parameters of the measurement protocol. Times are in seconds; budgets are per case and launch.

    blocks: blocks per case, spread over a launch
    precision: sampling stops when the confidence interval of the median is within ± this fraction
    min_samples, min_seconds: but not before
    max_seconds, max_samples: and at the latest then, with at least ``least_samples``
    launch_warmup_seconds: small collectives at the start of a launch
    warmup_seconds: warm-up of a block, with ``warmup_calls`` to ``max_warmup_calls`` calls
    timeout_seconds: a rank without progress for this long is considered lost
    """

    blocks: Annotated[int, Key(within(1, limits.MOST_BLOCKS))] = 2
    precision: Annotated[float, Key(within(1e-6, 1))] = 0.05
    min_samples: Annotated[int, _SAMPLES] = 30
    least_samples: Annotated[int, _SOME_SAMPLES] = 20
    max_samples: Annotated[int, _SAMPLES] = 4000
    min_seconds: Annotated[float, _SECONDS] = 0.1
    max_seconds: Annotated[float, _SECONDS] = 0.5
    launch_warmup_seconds: Annotated[float, _SECONDS] = 1.0
    warmup_seconds: Annotated[float, _SECONDS] = 0.02
    warmup_calls: Annotated[int, _SOME_SAMPLES] = 5
    max_warmup_calls: Annotated[int, _SAMPLES] = 50
    timeout_seconds: Annotated[float, Key(within(1e-3, limits.LONGEST_TIMEOUT_SECONDS), option="--timeout")] = 60.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup_calls > self.max_warmup_calls:
            raise UsageError(f"want warmup_calls ({self.warmup_calls}) ≤ max_warmup_calls ({self.max_warmup_calls})")
        if not self.least_samples <= self.min_samples <= self.max_samples:
            raise UsageError("want least_samples ≤ min_samples ≤ max_samples")
        if self.min_seconds > self.max_seconds:
            raise UsageError(f"want min_seconds ({self.min_seconds:g}) ≤ max_seconds ({self.max_seconds:g})")


_OF_SIZES: Final = attrgetter("sized")
_OF_TRAFFIC: Final = attrgetter("uneven")
_OF_STEPS: Final = attrgetter("splits")


def in_host_memory(op: Op) -> bool:
    """Whether ``op`` measures host memory itself: memory kernels and copies of a GPU."""
    return op.host_memory or op.memory_traffic is not None


def may_register(op: Op) -> bool:
    """Whether ``op`` has buffers that a library could register."""
    return op.communicates and op.sized and not op.plain_sockets


_DTYPES = Key(among("dtype", DTYPE_BYTES), _OF_SIZES, "--dtype")
_ALGORITHMS = Key(
    among("algorithm", dict.fromkeys((LIBRARY, ALL_ALGORITHMS, *chain(*ALGORITHMS.values())))),
    lambda op: op.name in ALGORITHMS,
    "--algorithm",
)
_MATRIX = Key(lambda rows: checked_weights(rows or ((1.0,),), "of the plan"), _OF_TRAFFIC, any_length=True)
_THREADS = Key(lambda text: parse_threads(text, _MANY_CORES), attrgetter("threaded"))
_NUMA_NODES = Key(among("NUMA node", range(MOST_NODES)), in_host_memory, "--numa-node")
_PINNING = Key(among("pinning", get_args(Pinning)), attrgetter("host_memory"))
_REPLICAS = Key(within(1, limits.MOST_RANKS), lambda op: op.splits not in {(), ("dp",)})
_OF_EXPERTS = Key(within(1, limits.MOST_RANKS), lambda op: "ep" in op.splits)
_SLOW_RANKS = Key(lambda ranks: list(map(parse_slow, ranks)), _OF_STEPS, "--slow-rank")
_EXCHANGES = Key(lambda names: not_empty([*map(parse_exchange, names)]), lambda op: op.name == EXCHANGE, "--exchange")


class CommunicationKeys(Keyed, frozen=True, kw_only=True):
    """Keys of operations between ranks.

    imbalance, traffic: of all_to_all_v, and the matrix of weights that replaces it
    pairs: whether disjoint pairs of a matrix run concurrently
    algorithms: explicit algorithms, ``library`` and ``all``; those of other ops are skipped
    """

    imbalance: Annotated[float, Key(lambda share: imbalanced(2, share), _OF_TRAFFIC)] = 0.5
    traffic: Annotated[Weights | None, _MATRIX] = None
    pairs: Annotated[Pairs, Key(among("pairs", get_args(Pairs)), lambda op: op.members == "pairs")] = "together"
    algorithms: Annotated[tuple[str, ...], _ALGORITHMS] = (LIBRARY,)


class FileKeys(Keyed, frozen=True, kw_only=True):
    """Keys of file accesses: block sizes, blocks in flight, and whether to bypass the page cache."""

    blocks: Annotated[tuple[str, ...], Key(lambda sizes: accesses(sizes, (1,), "direct"))] = ("1MiB",)
    depths: Annotated[tuple[int, ...], Key(lambda depths: accesses(("1MiB",), depths, "direct"))] = (1,)
    direct: bool = True


class HostKeys(Keyed, frozen=True, kw_only=True):
    """Keys of memory kernels and GPU copies.

    threads: as in ``parse_threads``; None: only the main thread of a rank, unbound
    pinning: kinds of host memory of GPU copies
    numa_nodes: NUMA nodes of host memory, one case each; None: where it is first touched
    """

    threads: Annotated[str | None, _THREADS] = None
    pinning: Annotated[tuple[str, ...], _PINNING] = get_args(Pinning)
    numa_nodes: Annotated[tuple[int, ...] | None, _NUMA_NODES] = None


class TrainingKeys(Keyed, frozen=True, kw_only=True):
    """Keys of training steps.

    models: rows of ``busbw training models``; None: ``MODEL`` or ``OTHER_MODELS`` of ``ops.training``
    scale: of the models; None: ``SCALES``
    micro_batches: per step and replica; None: two per pipeline stage, else one
    replicas: of the model, if ranks divide more than the batch; None: one, or two if groups of ranks shard weights
    expert_imbalance, capacity: as in ``shapes.routed``
    compute: as in ``parse_compute``
    slow_ranks: further cases with one rank late by a known time, such as ``1=20ms``
    exchanges: how ranks exchange gradients or weights, as in ``parse_exchange``
    """

    models: Annotated[tuple[str, ...] | None, Key(not_empty, _OF_STEPS, "--model")] = None
    scale: Annotated[float | None, Key(within(limits.LEAST_SCALE, 1), _OF_STEPS)] = None
    micro_batches: Annotated[tuple[int, ...] | None, Key(within(1, limits.MOST_MICRO_BATCHES), _OF_STEPS)] = None
    replicas: Annotated[tuple[int, ...] | None, _REPLICAS] = None
    expert_imbalance: Annotated[float, _OF_EXPERTS] = 1.0
    capacity: Annotated[float | None, _OF_EXPERTS] = None
    compute: Annotated[str, Key(parse_compute, _OF_STEPS)] = "real"
    slow_ranks: Annotated[tuple[str, ...], _SLOW_RANKS] = ()
    exchanges: Annotated[tuple[str, ...], _EXCHANGES] = EVERY_EXCHANGE


_FAMILIES: Final[Mapping[str, type[Keyed]]] = {
    "communication": CommunicationKeys,
    "files": FileKeys,
    "host": HostKeys,
    "training": TrainingKeys,
}
"""Fields of ``Sweep`` with the keys that only some ops have. In a file these are keys of the sweep itself."""


class Sweep(Keyed, frozen=True, kw_only=True, rename=lambda name: f"keys of {name}" if name in _FAMILIES else name):
    """One sweep of a plan: ops × modes × data types × reductions × sizes, and the settings that only some ops have.

    sizes: as in ``units.parse_sizes``
    modes, sync, cache, pre_enqueue: how calls are timed, see ``records.Case``
    registered: of calls between ranks: whether the buffers are registered with the library
    in_place: whether the send buffer is the receive buffer (native: the op's default)
    groups: split of the ranks, as in ``ops.groups``; ``asked`` in a plan with a controller
    baseline: measured only as a reference for models and peaks of the other sweeps
    """

    ops: Annotated[tuple[str, ...], Key(lambda names: [op_named(name) for name in names], option="--op")]
    sizes: Annotated[str, Key(units.parse_sizes, _OF_SIZES)] = "8..16MiB*2"
    dtypes: Annotated[tuple[str, ...], _DTYPES] = ("float32",)
    redops: Annotated[tuple[str, ...], Key(among("redop", REDOPS), attrgetter("reduces"), "--redop")] = ("sum",)
    modes: Annotated[tuple[str, ...], Key(among("mode", get_args(Mode)), option="--mode")] = ("isolated",)
    sync: Annotated[Sync, Key(among("sync", get_args(Sync)))] = "barrier"
    cache: Annotated[Cache, Key(among("cache", get_args(Cache)))] = "warm"
    pre_enqueue: bool = False
    registered: Annotated[bool, Key(taken_by=may_register)] = False
    in_place: Annotated[InPlace, Key(among("in place", get_args(InPlace)), _OF_SIZES)] = "native"
    groups: str = ALL
    root: Annotated[int, Key(taken_by=attrgetter("rooted"))] = 0
    baseline: bool = False
    communication: CommunicationKeys = CommunicationKeys()
    files: FileKeys = FileKeys()
    host: HostKeys = HostKeys()
    training: TrainingKeys = TrainingKeys()

    def with_keys(self, keys: Mapping[str, Any]) -> Self:
        """The sweep with other values of ``keys``, of ``SWEEP_KEYS``."""
        families = {
            family: msgspec.structs.replace(getattr(self, family), **_part(keys, record))
            for family, record in _FAMILIES.items()
        }
        return msgspec.structs.replace(self, **{**_part(keys, Sweep), **families})


def _part(keys: Mapping[str, Any], record: type[Keyed]) -> dict[str, Any]:
    return {name: value for name, value in keys.items() if name in record.__struct_fields__}


_OF_SWEEP: Final[tuple[type[Keyed], ...]] = (Sweep, *_FAMILIES.values())

SWEEP_KEYS: Final[limits.Keys] = {
    name: field for record in _OF_SWEEP for name, field in limits.fields_of(record).items() if name not in _FAMILIES
}
"""The keys of a sweep in a file."""


def _by_family(document: Mapping[str, JSON]) -> dict[str, JSON]:
    """A plan file with the keys of each family in a table of their own, as ``Sweep`` has them."""
    sweeps = document.get("sweep")
    if not isinstance(sweeps, list | tuple):
        return dict(document)
    return {**document, "sweep": [_divided(sweep) if isinstance(sweep, dict) else sweep for sweep in sweeps]}


def _divided(sweep: Mapping[str, JSON]) -> dict[str, JSON]:
    parts = {f"keys of {family}": _part(sweep, record) for family, record in _FAMILIES.items()}
    own = {name: value for name, value in sweep.items() if not any(name in part for part in parts.values())}
    named_alike = {name: value for name, value in own.items() if name in parts}  # no key of a table, so it is refused
    return own | {name: part | named_alike for name, part in parts.items()}


def _path(path: str) -> None:
    if "\0" in path:
        raise UsageError(f"{path!r} contains a NUL character, which file names cannot contain")


def check_label(label: str) -> str:
    """``label``. Raises UsageError for one that would break a line of a list."""
    if not (0 < len(label) <= limits.MOST_LABEL and label.isprintable() and label == label.strip()):
        raise UsageError(
            f"a label has 1 to {limits.MOST_LABEL} printable characters in one line, without spaces around them; given "
            f"{label!r:.80}"
        )
    return label


def _duration(text: str) -> None:
    if not 1 <= units.parse_span(text) <= _LONGEST_DURATION_SECONDS:
        raise UsageError(f"{text!r} is not allowed; use 1s to {_LONGEST_DURATION_SECONDS / 3600:.0f}h, such as 8h")


def _sweeps(sweeps: Sequence[object]) -> None:
    if len(sweeps) > limits.MOST_SWEEPS:
        raise UsageError(f"{len(sweeps)} are too many; use at most {limits.MOST_SWEEPS}")
    not_empty(sweeps)


class Plan(Keyed, frozen=True, kw_only=True):
    """A whole run.

    label: what tells a run from others of the same plan, such as ``before``; changes nothing that is measured
    ranks: None: as many as the machine or the launcher provides
    duration: such as ``8h``: one launch repeats all cases for that long, and its blocks are spread over it; None: once
    path: folder, on every host, below which storage ops create their files; None: not given
    controller: chooses the groups of each round while the run measures, see ``runs.asked``; None: the plan does
    matchings: random matchings of all ranks that the controller begins with; None: it chooses
    record_trace: also write a trace of one training step by the library's profiler
    """

    name: str = "custom"
    label: Annotated[str | None, Key(check_label)] = None
    backend: str = "gloo"
    ranks: Annotated[int | None, Key(within(1, limits.MOST_RANKS))] = None
    launches: Annotated[int, Key(within(1, limits.MOST_LAUNCHES))] = 1
    duration: Annotated[str | None, Key(_duration)] = None
    seed: Annotated[int, Key(within(-limits.LARGEST_SEED, limits.LARGEST_SEED))] = 1
    path: Annotated[str | None, Key(_path, taken_by=lambda op: op.stores)] = None
    controller: Annotated[str | None, Key(among("controller", CONTROLLERS))] = None
    matchings: Annotated[int | None, Key(within(1, limits.MOST_RANKS))] = None
    record_trace: Annotated[bool, Key(taken_by=lambda op: bool(op.splits))] = False
    timing: Timing = Timing()
    sweep: Annotated[tuple[Sweep, ...], Key(_sweeps, any_length=True)]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.duration is not None and self.launches > 1:
            raise UsageError(f"key 'duration': a run of {self.duration} is one launch; given {self.launches} launches")
        self._check_controller()
        # Checked over the whole plan: a suite may mix sweeps of ops with and without algorithms.
        ops = {op: None for sweep in self.sweep for op in sweep.ops}
        available = {name for op in ops for name in ALGORITHMS.get(op, {})} | {LIBRARY, ALL_ALGORITHMS}
        unavailable = {
            name: None for sweep in self.sweep for name in sweep.communication.algorithms if name not in available
        }
        if unavailable:
            raise UsageError(
                f"key 'algorithms': {', '.join(unavailable)} is not an algorithm of {', '.join(ops)}; "
                "busbw list algorithms shows those of each op"
            )

    def _check_controller(self) -> None:
        """Raise UsageError if a controller and the sweeps do not fit each other."""
        asked = [sweep.groups == ASKED for sweep in self.sweep]
        if self.controller is None and any(asked):
            raise UsageError(f"key 'groups': {ASKED} needs a plan with a controller, such as the suite fleet")
        if self.controller is None:
            return
        if not all(asked):
            raise UsageError(f"key 'controller': it chooses the groups of every sweep: use groups = {ASKED!r}")
        for key, many in (("launches", self.launches > 1), ("duration", self.duration is not None)):
            if many:
                raise UsageError(f"key {key!r}: plan {self.name} has one launch, which ends by itself; leave it out")

    @property
    def duration_ns(self) -> int:
        """How long all cases are repeated; 0: once."""
        return 0 if self.duration is None else round(units.parse_span(self.duration) * 1e9)

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

    def require_nodes(self, ranks: int, nodes: int = 1) -> None:
        """Raise UsageError if these are too few for a controller; of a single node, each rank stands for a node."""
        count, noun = (ranks, "rank") if nodes == 1 else (nodes, "node")
        if self.controller is not None and count < LEAST_NODES:
            raise UsageError(
                f"{units.counted(count, noun)}, but plan {self.name} compares {LEAST_NODES} or more: --nodes "
                f"{LEAST_NODES} (busbw submit), or --ranks {LEAST_NODES} to try it on one host"
            )

    @property
    def baseline_ops(self) -> frozenset[str]:
        """The operations that are measured only as references (``Sweep.baseline``)."""
        asked = {op for sweep in self.sweep if not sweep.baseline for op in sweep.ops}
        return frozenset(op for sweep in self.sweep for op in sweep.ops) - asked

    def as_json(self) -> dict[str, JSON]:
        """The plan as it is stored with a run, with the keys of a plan file."""
        document: dict[str, JSON] = msgspec.to_builtins(self)
        for sweep in document["sweep"]:
            for family in _FAMILIES:
                sweep.update(sweep.pop(f"keys of {family}"))
        return document


class LogPlan(Keyed, frozen=True, kw_only=True, omit_defaults=True):
    """Of an imported log, in place of a plan: the log's name, and the label of the run."""

    controller: ClassVar[None] = None
    duration: ClassVar[None] = None
    baseline_ops: ClassVar[frozenset[str]] = frozenset()

    name: str
    label: Annotated[str | None, Key(check_label)] = None

    def as_json(self) -> dict[str, JSON]:
        """As it is stored with a run."""
        document: dict[str, JSON] = msgspec.to_builtins(self)
        return document


def measured_plan(document: Mapping[str, JSON]) -> Plan:
    """The plan of a plan file's content. Raises msgspec.ValidationError."""
    return msgspec.convert(_by_family(document), Plan)


def plan_of_json(document: Mapping[str, JSON]) -> Plan | LogPlan:
    """The plan that is stored with a run. Raises msgspec.ValidationError."""
    try:
        return measured_plan(document) if "sweep" in document else msgspec.convert(document, LogPlan)
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(f"its plan: {error}") from error


# --- reading ---------------------------------------------------------------------------------------------------


def suites() -> dict[str, str]:
    """Name of a shipped suite → its TOML text."""
    return limits.shipped("busbw.runs", "suites")


def read_suite(name: str) -> Plan:
    """A shipped suite. Raises UsageError that lists all suites."""
    texts = suites()
    if name not in texts:
        refuse_unknown("suite", name, texts)
    return parse_plan(texts[name], f"suite {name}", Path())


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
    read: dict[str, Weights] = {}
    for sweep in sweeps:
        if isinstance(sweep, dict) and isinstance(name := sweep.get("traffic"), str):
            if name not in read:
                read[name] = read_weights(folder / name)
            sweep["traffic"] = read[name]
    timing = document.get("timing")
    if isinstance(timing, dict) and isinstance(most := timing.get("max_seconds"), int | float):
        timing.setdefault("min_seconds", _minimum_within(most, Timing().min_seconds))
    return limits.converted(_by_family(document), text, origin, Plan, sweep=SWEEP_KEYS, timing=limits.fields_of(Timing))


def override(plan: Plan, *, ops: Sequence[str] = (), **settings: Any) -> Plan:  # noqa: ANN401 - each value goes to the field of that name, which checks it
    """``plan`` with options applied: ``ops`` selects sweeps and ops; each setting goes to the plan or to every sweep.

    ``sizes`` does not change local copies that a plan measures besides other ops: their purpose is the peak for large
    messages. A ``duration`` makes the plan one launch. Raises UsageError for an op that is not in the plan, and for a
    setting that no op of the plan has.
    """
    given = {key: value for key, value in settings.items() if value is not None}
    if "duration" in given:
        given.setdefault("launches", 1)
    sweeps = list(plan.sweep)
    if ops:
        swept = {name for sweep in sweeps for name in sweep.ops}
        missing = [name for name in ops if op_named(name).name not in swept]
        if missing:
            has = ", ".join(name for name in OPS if name in swept)
            raise UsageError(f"op {', '.join(map(repr, missing))} is not in plan {plan.name!r}; it has: {has}")
        chosen = [
            msgspec.structs.replace(sweep, ops=tuple(name for name in sweep.ops if name in ops)) for sweep in sweeps
        ]
        sweeps = [sweep for sweep in chosen if sweep.ops]
    others = any(not _is_peak(sweep) for sweep in sweeps)
    of_sweep = {key: value for key, value in given.items() if key in SWEEP_KEYS}
    of_peak = {key: value for key, value in of_sweep.items() if key != "sizes" or not others}
    sweeps = [sweep.with_keys(of_peak if _is_peak(sweep) else of_sweep) for sweep in sweeps]
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
        raise UsageError(_KEY.sub(_option, str(error))) from error


_KEY = re.compile(r"^key '(\w+)': ")


def _option(key: re.Match[str]) -> str:
    return f"{_KEYS.get(key[1], Key()).option or '--' + key[1].replace('_', '-')}: "


def given_path(path: str) -> str:
    """``path`` as an absolute path. An empty one stays empty: it is an unset shell variable, not the current folder."""
    return str(Path(path).absolute()) if path else ""


_KEYS: dict[str, Key] = {name: key for record in (Plan, Timing, *_OF_SWEEP) for name, key in keys_of(record).items()}
"""All keys of a plan that are checked, or that only some ops have."""
_TAKEN_BY = {name: key.taken_by for name, key in _KEYS.items() if key.taken_by is not None}
"""Key that only some ops have → whether an op has it. All other settings change how every op is timed."""


def _refuse_what_changes_nothing(plan: Plan, given: Mapping[str, Any]) -> None:
    """Raise UsageError for a setting that no op of the plan has: ignoring it silently would mislead. A setting that
    equals the default is accepted.
    """
    ops = tuple(name for name in OPS if any(name in sweep.ops for sweep in plan.sweep))
    for key, takes in _TAKEN_BY.items():
        if key not in given or (key in SWEEP_KEYS and given[key] == SWEEP_KEYS[key].default):
            continue
        takers = [name for name, op in OPS.items() if takes(op) and (given[key] != "both" or len(op.in_place) > 1)]
        if not set(takers) & set(ops):
            others = [name for name in OPS if name not in takers]
            allowed = ", ".join(takers) if len(takers) < len(others) else f"all but {', '.join(others)}"
            raise UsageError(f"key {key!r}: has no effect on {', '.join(ops)}; it applies to {allowed}")


def _is_peak(sweep: Sweep) -> bool:
    return all(OPS[name].local or OPS[name].plain_sockets for name in sweep.ops)
