"""Plans: what to measure, from a TOML file, a shipped suite or options."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec.structs import FieldInfo

from busbw import units
from busbw.errors import UsageError, refuse_unknown
from busbw.ops import OPS, limits, op_named, traffic
from busbw.ops.algorithms import ALGORITHMS, ALL_ALGORITHMS, LIBRARY
from busbw.ops.algorithms.settings import AlgorithmSweep
from busbw.ops.base import Op
from busbw.ops.groups import ALL
from busbw.ops.host import HostSweep
from busbw.ops.pairs import PairSweep
from busbw.ops.settings import Key, Keyed, SweepSettings, among, keys_of, not_empty, within
from busbw.ops.storage import StorageSweep
from busbw.ops.traffic import TrafficSweep
from busbw.ops.training import TrainingSweep
from busbw.runs.records import DTYPE_BYTES, JSON, REDOPS, Cache, Mode, Sync

InPlace = Literal["native", "yes", "no", "both"]


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


class Sweep(Keyed, frozen=True, kw_only=True):
    """One sweep of a plan: ops × modes × data types × reductions × sizes, and the settings that only some ops have.

    sizes: as in ``units.parse_sizes``
    modes, sync, cache, pre_enqueue: how calls are timed, see ``records.Case``
    in_place: whether the send buffer is the receive buffer (native: the op's default)
    groups: split of the ranks, as in ``ops.groups``
    baseline: measured only as a reference for models and peaks of the other sweeps

    In a plan file the settings of a family are keys of the sweep, beside the others (``from_table``).
    """

    ops: Annotated[tuple[str, ...], Key(lambda names: [op_named(name) for name in names], option="--op")]
    sizes: Annotated[str, Key(units.parse_sizes, taken_by=lambda op: op.sized)] = "8..16MiB*2"
    dtypes: Annotated[
        tuple[str, ...], Key(among("dtype", DTYPE_BYTES), taken_by=lambda op: op.sized, option="--dtype")
    ] = ("float32",)
    redops: Annotated[
        tuple[str, ...], Key(among("redop", REDOPS), taken_by=lambda op: op.reduces, option="--redop")
    ] = ("sum",)
    modes: Annotated[tuple[str, ...], Key(among("mode", get_args(Mode)), option="--mode")] = ("isolated",)
    sync: Annotated[Sync, Key(among("sync", get_args(Sync)))] = "barrier"
    cache: Annotated[Cache, Key(among("cache", get_args(Cache)))] = "warm"
    pre_enqueue: bool = False
    in_place: Annotated[InPlace, Key(among("in place", get_args(InPlace)), taken_by=lambda op: op.sized)] = "native"
    groups: str = ALL
    root: Annotated[int, Key(taken_by=lambda op: op.rooted)] = 0
    uneven: TrafficSweep = TrafficSweep()
    paired: PairSweep = PairSweep()
    baseline: bool = False
    explicit: AlgorithmSweep = AlgorithmSweep()
    storage: StorageSweep = StorageSweep()
    host: HostSweep = HostSweep()
    training: TrainingSweep = TrainingSweep()

    @property
    def families(self) -> tuple[SweepSettings, ...]:
        """The settings that only some ops have."""
        return tuple(value for value in msgspec.structs.astuple(self) if isinstance(value, SweepSettings))

    def of_op(self, op: Op) -> SweepSettings | None:
        """The settings that ``op`` has."""
        return next((family for family in self.families if family.belongs_to(op)), None)

    def with_keys(self, keys: Mapping[str, Any]) -> "Sweep":
        """This sweep with other values for ``keys`` of a plan file."""
        tables = _in_families(keys)
        families = {
            field: msgspec.structs.replace(family, **tables.pop(field, {}))
            for field, family in zip(_FAMILIES, self.families, strict=True)
        }
        return msgspec.structs.replace(self, **families, **tables)


_FIELDS: dict[str, FieldInfo] = {field.name: field for field in msgspec.structs.fields(Sweep)}
_FAMILIES: dict[str, tuple[FieldInfo, ...]] = {
    name: msgspec.structs.fields(field.default)
    for name, field in _FIELDS.items()
    if isinstance(field.default, SweepSettings)
}
_FAMILY_OF = {key.name: family for family, keys in _FAMILIES.items() for key in keys}
SWEEP_KEYS: dict[str, FieldInfo] = {
    key.name: key for name, field in _FIELDS.items() for key in _FAMILIES.get(name, (field,))
}
"""Keys of a sweep in a plan file: its own, and those of the families."""


def _in_families(keys: Mapping[str, Any]) -> dict[str, Any]:
    """``keys`` of a sweep, those of each family in a table of their own, under the name of its field.

    Raises msgspec.ValidationError for a key that is not allowed.
    """
    tables: dict[str, Any] = {}
    for key, value in keys.items():
        if key not in SWEEP_KEYS:
            raise msgspec.ValidationError(f"Object contains unknown field `{key}`")
        if key in _FAMILY_OF:
            tables.setdefault(_FAMILY_OF[key], {})[key] = value
        else:
            tables[key] = value
    return tables


def _path(path: str) -> None:
    if "\0" in path:
        raise UsageError(f"{path!r} contains a NUL character, which file names cannot contain")


def _sweeps(sweeps: Sequence[object]) -> None:
    if len(sweeps) > limits.MOST_SWEEPS:
        raise UsageError(f"{len(sweeps)} are too many; use at most {limits.MOST_SWEEPS}")
    not_empty(sweeps)


class Plan(Keyed, frozen=True, kw_only=True):
    """A whole run.

    ranks: None: as many as the machine or the launcher provides
    path: folder, on every host, below which storage ops create their files; None: not given
    record_trace: also write a trace of one training step by the library's profiler
    """

    name: str = "custom"
    backend: str = "gloo"
    ranks: Annotated[int | None, Key(within(1, limits.MOST_RANKS))] = None
    launches: Annotated[int, Key(within(1, limits.MOST_LAUNCHES))] = 1
    seed: Annotated[int, Key(within(-limits.LARGEST_SEED, limits.LARGEST_SEED))] = 1
    path: Annotated[str | None, Key(_path, taken_by=lambda op: op.stores)] = None
    record_trace: Annotated[bool, Key(taken_by=lambda op: bool(op.splits))] = False
    timing: Timing = Timing()
    sweep: Annotated[tuple[Sweep, ...], Key(_sweeps, any_length=True)]

    def __post_init__(self) -> None:
        super().__post_init__()
        # Checked over the whole plan: a suite may mix sweeps of ops with and without algorithms.
        ops = {op: None for sweep in self.sweep for op in sweep.ops}
        available = {name for op in ops for name in ALGORITHMS.get(op, {})} | {LIBRARY, ALL_ALGORITHMS}
        unavailable = {
            name: None for sweep in self.sweep for name in sweep.explicit.algorithms if name not in available
        }
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
        """The plan as it is stored with a run, with the keys of a plan file."""
        document: dict[str, JSON] = msgspec.to_builtins(self)
        for sweep in document["sweep"]:
            for family in _FAMILIES:
                sweep.update(sweep.pop(family))
        return document


def plan_from(document: Mapping[str, JSON]) -> Plan:
    """The plan with the keys of ``document``. Raises UsageError, and msgspec.ValidationError with the path of a key."""
    sweeps = document.get("sweep")
    if not isinstance(sweeps, Sequence):
        return msgspec.convert(document, Plan)
    tables = []
    for number, sweep in enumerate(sweeps):
        try:
            tables.append(_in_families(sweep) if isinstance(sweep, Mapping) else sweep)
        except msgspec.ValidationError as error:
            raise msgspec.ValidationError(f"{error} - at `$.sweep[{number}]`") from error
    return msgspec.convert({**document, "sweep": tables}, Plan)


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
    read: dict[str, traffic.Weights] = {}
    for sweep in sweeps:
        if isinstance(sweep, dict) and isinstance(name := sweep.get("traffic"), str):
            if name not in read:
                read[name] = traffic.read_weights(folder / name)
            sweep["traffic"] = read[name]
    timing = document.get("timing")
    if isinstance(timing, dict) and isinstance(most := timing.get("max_seconds"), int | float):
        timing.setdefault("min_seconds", _minimum_within(most, Timing().min_seconds))
    return limits.converted(document, text, origin, Plan, plan_from, sweep=SWEEP_KEYS, timing=limits.fields_of(Timing))


def override(plan: Plan, *, ops: Sequence[str] = (), **settings: Any) -> Plan:  # noqa: ANN401 - each value goes to the field of that name, which checks it
    """``plan`` with options applied: ``ops`` selects sweeps and ops; each setting goes to the plan or to every sweep.

    ``sizes`` does not change local copies that a plan measures besides other ops: their purpose is the peak for large
    messages. Raises UsageError for an op that is not in the plan, and for a setting that no op of the plan has.
    """
    given = {key: value for key, value in settings.items() if value is not None}
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


_NO_SETTINGS = Sweep(ops=()).families
_KEYS: dict[str, Key] = {
    name: key for record in (Plan, Timing, Sweep, *map(type, _NO_SETTINGS)) for name, key in keys_of(record).items()
}
"""All keys of a plan that are checked, or that only some ops have."""
_TAKEN_BY: dict[str, Callable[[Op], bool]] = {
    **{name: key.taken_by for name, key in _KEYS.items() if key.taken_by is not None},
    **{
        name: key.taken_by or family.belongs_to
        for family in _NO_SETTINGS
        for name, key in keys_of(type(family)).items()
    },
}
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
