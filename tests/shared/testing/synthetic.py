"""Runs with a known truth: what the instrument would have stored on a machine that obeys α + β·S exactly as told.

An analysis is tested by giving it data whose answer is known. A ``World`` says what the truth is; ``synthetic_run``
plays the part of the ranks and returns (or writes) a run folder like any other.
"""

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt

from busbw import __version__
from busbw.backends import BACKENDS
from busbw.ops import OPS
from busbw.ops.groups import pair_rounds, split_world
from busbw.ops.settings import AlgorithmSettings, HostSettings, PairSettings, TrafficSettings, run_together
from busbw.runs import store
from busbw.runs.causes import failed
from busbw.runs.facts import HostFacts
from busbw.runs.placement import RankPlacement, distance, rank_placements
from busbw.runs.plan import Plan, Sweep, Timing
from busbw.runs.records import (
    JSON,
    QUANTILES,
    SCHEMA,
    BackendTraits,
    Case,
    Check,
    Ended,
    EndStatus,
    GroupSamples,
    HostConditions,
    LaunchStarted,
    Measurement,
    RankSamples,
    Row,
    Settings,
    Skipped,
)
from busbw.runs.run import Run
from busbw.units import number_list

Floats = npt.NDArray[np.float64]

_STARTED = "2026-01-02T03:04:05.000Z"
_REDUCING = "float32"
_PAUSE_SECONDS = 50e-6
"""Between the last exit of a sample and the start of the next."""


@dataclass(frozen=True, slots=True)
class Piece:
    """From ``first_bytes`` on, one call takes ``alpha_seconds`` + ``beta_seconds_per_byte`` · S."""

    alpha_seconds: float
    beta_seconds_per_byte: float
    first_bytes: int = 0


@dataclass(frozen=True, slots=True)
class World:
    """The truth. ``pieces`` holds for every op that ``by_op`` does not name, nor ``by_setting`` a setting of the case.

    ``sample_noise`` and ``launch_noise`` are the standard deviations of the logarithm of a sample and of a whole
    launch. ``jitter_seconds`` is the mean of the exponential delay with which each rank arrives; ``late_rank`` arrives
    ``late_seconds`` after that on top, in a random ``late_share`` of the samples. ``slow_share`` of the samples take
    ``slow_seconds`` more. ``slow_ranks`` and ``slow_pairs`` divide the rate of the pair ops by ``slow_factor``.
    ``by_distance`` is what holds for pairs that are so far apart (``placement.distance``; None: between hosts), before
    all others. ``moved`` are the traffic factors of ops.
    """

    pieces: tuple[Piece, ...] = (Piece(20e-6, 1e-10),)
    by_op: Mapping[str, tuple[Piece, ...]] = field(default_factory=dict)
    by_distance: Mapping[int | None, tuple[Piece, ...]] = field(default_factory=dict)
    by_setting: Mapping[Any, tuple[Piece, ...]] = field(default_factory=dict)
    sample_noise: float = 0.02
    launch_noise: float = 0.0
    jitter_seconds: float = 0.0
    late_rank: int | None = None
    late_seconds: float = 0.0
    late_share: float = 1.0
    slow_share: float = 0.0
    slow_seconds: float = 0.0
    slow_ranks: tuple[int, ...] = ()
    slow_pairs: tuple[tuple[int, int], ...] = ()
    slow_factor: float = 10.0
    moved: Mapping[str, float] = field(default_factory=dict)
    shared_clock: bool = True

    def seconds(self, op: str, size_bytes: int, ranks: Sequence[int], apart: int | None = None) -> float:
        """The true time of one call on ``ranks``; ``apart`` is how far the two of a pair are."""
        is_pair = OPS[op].members != "all"
        pieces = self.by_op.get(op, self.pieces)
        if is_pair:
            pieces = self.by_distance.get(apart, pieces)
        piece = [piece for piece in pieces if piece.first_bytes <= size_bytes][-1]
        slow = is_pair and (tuple(ranks) in self.slow_pairs or any(rank in self.slow_ranks for rank in ranks))
        return (piece.alpha_seconds + piece.beta_seconds_per_byte * size_bytes) * (self.slow_factor if slow else 1.0)


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the run claims to have been taken: hosts with the same number of ranks each, and the facts of each host.
    ``switches`` are those above a host, from the top to the leaf, where Slurm knows them.
    """

    name: str = "synthetic"
    hosts: tuple[str, ...] = ("node0",)
    usable_cores: int | None = 64
    interface_bytes_per_second: float | None = None
    facts: Mapping[str, JSON] = field(default_factory=dict)
    switches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def environment(self, host: str, ranks: Sequence[int]) -> HostFacts:
        """The facts of one host with these ranks. Every rank may use all cores."""
        cores = self.usable_cores
        above = self.switches.get(host)
        usual: dict[str, JSON] = {
            "cpu": {"model": "Synthetic 1.0", "physical_cores": cores, "logical_cores": cores, "usable_cores": cores},
            "memory": {"total_bytes": 1 << 36},
            "kernel": "6.0.0-synthetic",
            "python": "3.12.0",
            "torch": "2.13.0",
            "virtualization": None,
            "nics": [
                {"name": "lo", "speed_bytes_per_second": None, "up": True, "kind": "loopback"},
                {
                    "name": "eth0",
                    "speed_bytes_per_second": self.interface_bytes_per_second,
                    "up": True,
                    "kind": "ethernet",
                },
            ],
            "variables": {},
            "thp": "madvise",
            "clock": {},
            "machines": 1,
            "node": None
            if above is None
            else {"name": host, "number": self.hosts.index(host), "switches": list(above)},
            "ranks": [
                {
                    "rank": rank,
                    "local_rank": place,
                    "cores": None if cores is None else number_list(range(cores)),
                    "numa_nodes": [0],
                    "gpu": None,
                    "variables": {},
                }
                for place, rank in enumerate(ranks)
            ],
        }
        return as_facts({**usual, **self.facts})


@dataclass(frozen=True, slots=True)
class SyntheticEnd:
    """What goes wrong. Cases in ``failed`` and ``skipped`` become rows with that error or reason; only the first
    ``reached`` cases get a turn; ``ended`` is how the run ends, None when it is killed.
    """

    failed: Mapping[Case, str] = field(default_factory=dict)
    skipped: Mapping[Case, str] = field(default_factory=dict)
    reached: int | None = None
    ended: EndStatus | None = "complete"


def as_facts(facts: Mapping[str, JSON]) -> HostFacts:
    """The facts of a host from those that ``run.json`` would hold."""
    return msgspec.convert(facts, HostFacts)


def case(op: str, size_bytes: int, ranks: int = 4, **changes: JSON) -> Case:
    """A case as the plan would make it: float32, summed where the op reduces, in place where it is the only way."""
    row = OPS[op]
    usual: dict[str, JSON] = {
        "op": op,
        "backend": "gloo",
        "device": "cpu",
        "dtype": _REDUCING if row.sized else None,
        "redop": "sum" if row.reduces else None,
        "size_bytes": size_bytes if row.sized else 0,
        "ranks": ranks,
        "nodes": 1,
        "in_place": row.in_place[0],
        "root": 0 if row.rooted else None,
    }
    return with_changes(Case(**usual), **changes)


_FAMILIES: dict[str, type[Settings]] = {
    "algorithm": AlgorithmSettings,
    **dict.fromkeys(("threads", "numa_node", "pinning"), HostSettings),
    "pairs": PairSettings,
    **dict.fromkeys(("imbalance", "traffic"), TrafficSettings),
}
"""Setting → the family that has it."""


def with_changes(case: Case, **changes: JSON) -> Case:
    """``case`` with other fields, or other settings of its op's family; ``access`` and ``workload`` are whole families.
    None takes a setting away.
    """
    own = {name: changes.pop(name) for name in [*_FAMILIES, "access", "workload"] if name in changes}
    return msgspec.structs.replace(case, **changes, **({"settings": _settings(case.settings, own)} if own else {}))


def _settings(there: Settings | None, changes: Mapping[str, JSON]) -> Settings | None:
    whole = next((changes[name] for name in ("access", "workload") if changes.get(name) is not None), None)
    if whole is not None:
        return cast("Settings", whole)
    kept = {name: getattr(there, name) for name in _FAMILIES if getattr(there, name, None) is not None}
    given = {name: value for name, value in {**kept, **changes}.items() if value is not None}
    families = {_FAMILIES[name] for name in given}
    assert len(families) < 2, f"{sorted(given)} are not settings of one family"
    return families.pop()(**given) if given else None


def synthetic_run(
    cases: Sequence[Case],
    world: World | None = None,
    *,
    machine: Machine | None = None,
    launches: int = 3,
    blocks: int = 1,
    samples: int = 40,
    seed: int = 0,
    end: SyntheticEnd | None = None,
) -> store.StoredRun:
    """A run of ``cases`` in ``world``, not written anywhere.

    Every case has ``blocks`` blocks of ``samples`` samples in each of ``launches`` launches, unless ``end`` has other
    plans. The same arguments give the same run; ``seed`` is also its name.
    """
    world, machine, end = world or World(), machine or Machine(), end or SyntheticEnd()
    ranks = max(case.ranks for case in cases)
    hosts = tuple(machine.hosts[rank * len(machine.hosts) // ranks] for rank in range(ranks))
    environments = {
        host: machine.environment(host, [rank for rank, name in enumerate(hosts) if name == host])
        for host in machine.hosts
    }
    seats = rank_placements(hosts, environments)
    generator = np.random.default_rng(seed)
    turns = cases[: end.reached]
    rows: list[Row] = [Skipped(case=case, reason=reason) for case, reason in end.skipped.items()]
    for launch in range(launches):
        rows.append(_launch_row(launch, hosts, world))
        pace = {case: math.exp(generator.normal(0, world.launch_noise)) for case in turns}
        for block in range(blocks):
            for case in turns:
                if case in end.failed:
                    wrong = end.failed[case].startswith("wrong data")
                    rows.append(failed(case, launch, block, end.failed[case], "wrong_data" if wrong else None))
                elif case not in end.skipped:
                    rows.append(_measurement(world, seats, case, launch, block, pace[case], samples, generator))
    if end.ended is not None:
        rows.append(Ended(status=end.ended, reason=None if end.ended == "complete" else "as told", ended=_STARTED))
    identifier, name = f"synthetic-{seed}", cases[0].backend if cases else ""
    run = Run(
        schema=SCHEMA,
        id=identifier,
        busbw=__version__,
        machine=machine.name,
        started=_STARTED,
        launcher="local",
        plan=_plan(cases, launches, blocks),
        cases=tuple(cases),
        adjusted=(),
        hosts=hosts,
        environments=environments,
        backend=BACKENDS[name].traits if name in BACKENDS else BackendTraits(cost_models=name),
    )
    return store.StoredRun(path=Path(identifier), run=run, rows=tuple(rows), warnings=())


def _plan(cases: Sequence[Case], launches: int, blocks: int) -> Plan:
    ops = tuple(dict.fromkeys(one.op for one in cases if one.op in OPS)) or ("all_reduce",)
    return Plan(name="synthetic", launches=launches, timing=Timing(blocks=blocks), sweep=(Sweep(ops=ops),))


def planned(run: Run, **changes: Any) -> Run:  # noqa: ANN401 - any field of a plan
    """``run`` with other fields of its plan."""
    return msgspec.structs.replace(run, plan=msgspec.structs.replace(run.plan, **changes))


def with_blocks(stored: store.StoredRun, change: Callable[[Measurement], Measurement]) -> store.StoredRun:
    """``stored`` with every block changed."""
    return replace(stored, rows=tuple(change(row) if isinstance(row, Measurement) else row for row in stored.rows))


def with_groups(stored: store.StoredRun, change: Callable[[GroupSamples], GroupSamples]) -> store.StoredRun:
    """``stored`` with the samples of every group of every block changed."""
    return with_blocks(stored, lambda block: msgspec.structs.replace(block, groups=tuple(map(change, block.groups))))


def disturbed(
    stored: store.StoredRun, ops: Container[str], foreign: float = 0.7, lost: Sequence[int] = ()
) -> store.StoredRun:
    """The same run where other programs took a share of the CPUs during ``ops``, or the samples ``lost`` a core."""
    host = HostConditions(
        host="node0",
        load_before=1.0,
        load_after=1.0,
        busy_share=0.9,
        foreign_share=foreign,
        steal_share=0.0,
        switches=(0, 0, 0, 0),
    )

    def change(block: Measurement) -> Measurement:
        if block.case.op not in ops:
            return block
        groups = tuple(msgspec.structs.replace(group, disturbed=tuple(lost)) for group in block.groups)
        return msgspec.structs.replace(block, conditions=(host,), groups=groups)

    return with_blocks(stored, change)


def write_synthetic(results_dir: Path, stored: store.StoredRun) -> Path:
    """Write ``stored`` as a run folder below ``results_dir`` and return the folder."""
    folder = store.create(results_dir, stored.run.machine)
    store.write_run(folder, stored.run)
    with store.Appender(folder) as appender:
        for row in stored.rows:
            appender.append(row)
    return folder


def _launch_row(launch: int, hosts: tuple[str, ...], world: World) -> LaunchStarted:
    return LaunchStarted(
        launch=launch,
        started=_STARTED,
        order_seed=launch,
        hosts=hosts,
        pids=tuple(1000 + rank for rank in range(len(hosts))),
        timer_ns=(60,) * len(hosts),
        shared_clock=world.shared_clock and len(set(hosts)) == 1,
        load_average=0.0,
    )


def _measurement(
    world: World,
    seats: Sequence[RankPlacement],
    case: Case,
    launch: int,
    block: int,
    pace: float,
    samples: int,
    generator: np.random.Generator,
) -> Measurement:
    op = OPS[case.op]
    groups = tuple(_group(world, seats, case, members, pace, samples, generator) for members in _groups(case))
    slowest = max(max(group.slowest_ns) for group in groups)
    return Measurement(
        case=case,
        launch=launch,
        block=block,
        calls=op.trips,
        first_call_ns=3 * slowest,
        warmup_calls=5,
        stop_reason="converged",
        check=Check(state="verified") if op.sized else Check(state="not checked", reason="there are no data"),
        started=_STARTED,
        elapsed_ns=slowest * (samples + 10),
        groups=groups,
    )


def _groups(case: Case) -> tuple[tuple[int, ...], ...]:
    """The groups of ranks in the order in which the instrument would record them."""
    groups = split_world(case.group, case.ranks)
    members = OPS[case.op].members
    if members == "all":
        return groups
    if members == "ends":
        return tuple((group[0], group[-1]) for group in groups)
    together = run_together(case.settings)
    return tuple(pair for group in groups for pairs in pair_rounds(group, together=together) for pair in pairs)


def _group(
    world: World,
    seats: Sequence[RankPlacement],
    case: Case,
    members: tuple[int, ...],
    pace: float,
    samples: int,
    generator: np.random.Generator,
) -> GroupSamples:
    op = OPS[case.op]
    apart = distance(seats[members[0]], seats[members[-1]])
    for setting in () if case.settings is None else msgspec.structs.astuple(case.settings):
        if setting is not None and setting in world.by_setting:
            world = replace(world, by_op={**world.by_op, case.op: world.by_setting[setting]})
    truth = world.seconds(case.op, case.size_bytes, members, apart) * op.trips * pace
    done = truth * np.exp(generator.normal(0, world.sample_noise, samples))
    done += np.where(generator.random(samples) < world.slow_share, world.slow_seconds, 0.0)
    arrival = (
        generator.exponential(world.jitter_seconds, (len(members), samples))
        if world.jitter_seconds
        else np.zeros((len(members), samples))
    )
    if world.late_rank in members:
        when = generator.random(samples) < world.late_share if world.late_share < 1 else True
        arrival[members.index(world.late_rank)] += np.where(when, world.late_seconds, 0.0)
    last = arrival.max(axis=0)
    # All leave `done` after the last one came, but for a trace of their own noise; who copies waits for nobody.
    alone = op.bus_factor is None and not op.synchronising
    leave = (arrival if alone else last) + done * (1 + 1e-4 * generator.random((len(members), samples)))
    durations = np.maximum(np.rint((leave - arrival) * 1e9), 1).astype(np.int64)
    begins = np.concatenate([[0.0], np.cumsum(leave.max(axis=0) + _PAUSE_SECONDS)[:-1]])
    entries = (begins + arrival - arrival[:, 0].min()) * 1e9
    return GroupSamples(
        ranks=members,
        bus_factor=op.factor(len(members)),
        wire_bytes=float(op.wire_bytes(len(members), case.size_bytes)),
        traffic_factor=world.moved.get(case.op, 1.0),
        slowest_ns=_integers(durations.max(axis=0)),
        fastest_ns=_integers(durations.min(axis=0)),
        fastest_rank=tuple(members[index] for index in durations.argmin(axis=0).tolist()),
        last_rank=tuple(members[index] for index in arrival.argmax(axis=0).tolist()) if world.shared_clock else None,
        arrival_skew_ns=_integers((last - arrival.min(axis=0)) * 1e9) if world.shared_clock else None,
        exit_span_ns=_integers((leave.max(axis=0) - last) * 1e9) if world.shared_clock else None,
        per_rank=tuple(
            RankSamples(
                rank=rank,
                quantiles_ns=_integers(np.quantile(durations[place], QUANTILES)),
                samples_ns=_integers(durations[place]),
                entries_ns=_integers(entries[place]) if world.shared_clock else None,
            )
            for place, rank in enumerate(members)
        ),
    )


def _integers(values: npt.NDArray[np.generic]) -> tuple[int, ...]:
    return tuple(int(value) for value in np.rint(values.astype(np.float64)).tolist())
