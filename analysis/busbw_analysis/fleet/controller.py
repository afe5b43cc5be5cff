"""From a run's ranks and rows to a fleet's nodes and rounds, and back: the controller of a run, and its replay."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import Final

import numpy as np
from msgspec import structs

from busbw.errors import UsageError
from busbw.ops import OPS
from busbw.ops.groups import ASKED
from busbw.runs.asked import LEAST_NODES, Ask
from busbw.runs.facts import UNKNOWN_HOST, HostFacts
from busbw.runs.plan import LogPlan, Plan
from busbw.runs.records import Case, Failed, HostConditions, Imported, Measurement, Skipped
from busbw.runs.run import Run
from busbw.runs.store import StoredRun
from busbw.units import counted
from busbw_analysis.data.block_columns import columns_of
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.readers.logs import UNKNOWN
from busbw_analysis.fleet.rounds import Fleet, Round, Stage
from busbw_analysis.fleet.search import Options, Search
from busbw_analysis.fleet.topology import Path_
from busbw_analysis.fleet.verdicts import Device, FleetJudgement, judge, without_usual

Members = tuple[tuple[int, ...], ...]
"""The ranks of each node."""

_DEVICES: Final[dict[str, Callable[[HostFacts], int]]] = {
    "GPUs": lambda facts: sum(not gpu.broken for gpu in facts.pci.gpus),
    "RDMA ports that are up": lambda facts: sum(bool(port.up) for port in facts.rdma),
    "network cards that are up": lambda facts: sum(bool(nic.up) and nic.kind == "physical" for nic in facts.nics),
    "NVMe drives": lambda facts: len(facts.pci.drives),
    "cores": lambda facts: facts.cpu.physical_cores or 0,
}
"""What is counted on every node → its number."""
_LEAST_ALIKE: Final = 3
_RESENT: Final = frozenset(
    ("RetransSegs", "packet_seq_err", "local_ack_timeout_err", "roce_adp_retrans", "retrans_pkts")
)
"""Counters (``busbw.system.counters``) of what a host sent again over a network."""
_COLLECTIVE: Final = "all"


def nodes_of_ranks(hosts: Sequence[str]) -> tuple[tuple[str, ...], Members]:
    """Names of the nodes and their ranks: hosts, or single ranks if all are on one host."""
    names = tuple(dict.fromkeys(hosts))
    if len(names) == 1:
        return tuple(f"rank {rank}" for rank in range(len(hosts))), tuple((rank,) for rank in range(len(hosts)))
    ranks: dict[str, list[int]] = {name: [] for name in names}
    for rank, host in enumerate(hosts):
        ranks[host].append(rank)
    return names, tuple(map(tuple, ranks.values()))


def fleet_of(
    names: Sequence[str],
    cases: Sequence[Case],
    facts: Mapping[str, HostFacts],
    topology: Mapping[str, Path_] | None = None,
    *,
    several_ranks: bool = False,
    are_hosts: bool = True,
) -> Fleet:
    """The nodes with their switches: of ``topology``, else as Slurm told the ranks.

    several_ranks: every node has several, so that collectives can be measured inside
    Raises UsageError for a topology of other nodes.
    """
    told = {name: node.switches for name in names if (node := facts.get(name, UNKNOWN_HOST).node) and node.switches}
    paths = told if topology is None else topology
    if topology and names and not topology.keys() & set(names):
        raise UsageError(
            f"--topology has none of the {counted(len(names), 'node')}, such as {names[0]}", code="topology"
        )
    switches = sorted({paths[name] for name in names if name in paths})
    leaf = np.asarray([switches.index(paths[name]) if name in paths else -1 for name in names], dtype=np.int64)
    asked = [(place, case, OPS[case.op]) for place, case in enumerate(cases) if case.op in OPS]
    alone = [place for place, _, op in asked if op.local or (several_ranks and op.members == _COLLECTIVE)]
    pairs = sorted(((-case.size_bytes, place) for place, case, op in asked if op.members == "ends"))
    return Fleet(
        tuple(names),
        leaf,
        tuple(path[-1] for path in switches),
        tuple(alone),
        tuple(place for _, place in pairs),
        are_hosts,
    )


def missing_devices(names: Sequence[str], facts: Mapping[str, HostFacts]) -> list[tuple[int, Device]]:
    """Nodes that have fewer of a kind of device than most nodes have, by number."""
    found = []
    for what, count_of in _DEVICES.items():
        counts = [count_of(facts[name]) if name in facts else 0 for name in names]
        usual, alike = Counter(counts).most_common(1)[0] if counts else (0, 0)
        if alike >= _LEAST_ALIKE and 2 * alike > len(counts):
            found += [(node, Device(what, count, usual)) for node, count in enumerate(counts) if count < usual]
    return found


def group_times(row: Measurement, quantile: float = 0.5) -> list[tuple[tuple[int, ...], float, float]]:
    """The ranks of each group of a block, a quantile of the times of a call in seconds, and their spread."""
    columns = columns_of(row)
    ends = np.cumsum(columns.length)
    starts = ends - columns.length
    samples = [1e-9 / row.calls * columns.slowest[start:end] for start, end in zip(starts, ends, strict=True)]
    flat = columns.ranks.flat.tolist()
    ranks: list[tuple[int, ...]] = [tuple(flat[start:end]) for start, end in pairwise(columns.ranks.starts.tolist())]
    return [
        (members, float(np.quantile(own, quantile)), float(own.mean() / np.quantile(own, 0.25)))
        for members, own in zip(ranks, samples, strict=True)
    ]


@dataclass(slots=True)
class FleetController:
    """A ``Controller`` (``busbw.runs.asked``) that finds what is slow in a fleet."""

    plan: Plan | None = None
    options: Options = field(default_factory=Options)
    topology: Mapping[str, Path_] | None = None
    search: Search = field(init=False)
    _cases: tuple[Case, ...] = field(default=(), init=False)
    _hosts: Sequence[str] = field(default=(), init=False)
    _ranks: Members = field(default=(), init=False)
    _taken: dict[str, float] = field(default_factory=dict, init=False)
    _limits: list[Counter[str]] = field(default_factory=list, init=False)
    _devices: list[tuple[int, Device]] = field(default_factory=list, init=False)

    def begin(self, cases: Sequence[Case], hosts: Sequence[str], facts: Mapping[str, HostFacts]) -> None:
        """As in ``Controller``. Raises UsageError for too few nodes to be measured."""
        names, self._ranks = nodes_of_ranks(hosts)
        if self.plan is not None and len(names) < LEAST_NODES:
            raise UsageError(f"{counted(len(names), 'node')}, but a fleet has {LEAST_NODES} or more")
        self._hosts, self._limits = hosts, [Counter() for _ in names]
        if self.plan is not None:
            self.options = replace(self.options, sample=self.plan.matchings, seed=self.plan.seed)
        several = all(len(ranks) > 1 for ranks in self._ranks)
        self._cases = tuple(cases)
        self._devices = missing_devices(names, facts)
        fleet = fleet_of(
            names, cases, facts, self.topology, several_ranks=several, are_hosts=len(set(hosts)) == len(names)
        )
        self.search = Search(fleet, self.options)

    def next(self, measured: Measurement | Failed | Skipped | None) -> Ask | None:
        """As in ``Controller``."""
        if measured is not None and self.search.asked is not None:
            self.search.tell(self._outcome(self.search.asked, measured))
        return self.asked

    def take(self, case: int, row: Measurement) -> None:
        """Take a measured round that the search, with its options or in this version, would not ask for now."""
        node_of = self._node_of
        ends = dict.fromkeys((node_of[ranks[0]], node_of[ranks[-1]]) for ranks, *_ in group_times(row))
        sender, receiver = np.asarray([*ends], dtype=np.int64).T
        taken = self._outcome(Round.of(case, self.search.stage_of(case, sender, receiver), sender, receiver), row)
        asked = self.search.asked
        if asked is not None and (asked.case, asked.stage) == (taken.case, taken.stage):
            self.search.tell(taken)
        else:
            self.search.rounds.append(taken)

    @property
    def _node_of(self) -> dict[int, int]:
        return {rank: node for node, ranks in enumerate(self._ranks) for rank in ranks}

    def _note(self, conditions: Sequence[HostConditions]) -> None:
        """The CPUs that other programs took of each host, and the throttled GPUs of each node.

        A round may be too short to know the former on most hosts: then it is that of the last round of which it is
        known. Shares of different rounds are not compared.
        """
        shares = {
            host.host: max(known)
            for host in conditions
            if (known := [share for share in (host.foreign_share, host.steal_share) if share is not None])
        }
        if 2 * len(shares) > len(conditions):
            self._taken = shares
        for host in conditions:
            ranks = [rank for rank, name in enumerate(self._hosts) if name == host.host]
            for node, members in enumerate(self._ranks):
                gpus = [gpu for rank, gpu in zip(ranks, host.gpus, strict=False) if rank in members]
                self._limits[node].update({reason for gpu in gpus for reason in gpu.throttled})

    @property
    def asked(self) -> Ask | None:
        """The round that is to be measured."""
        asked = self.search.asked
        if asked is None:
            return None
        case = self._cases[asked.case]
        if asked.case in self.search.fleet.pairs:
            first = [ranks[0] for ranks in self._ranks]
            groups: Members = tuple((first[sender], first[receiver]) for sender, receiver in asked.pairs)
        elif OPS[case.op].local:
            groups = tuple((rank,) for node in asked.sender.tolist() for rank in self._ranks[node])
        else:
            groups = tuple(self._ranks[node] for node in asked.sender.tolist())
        return Ask(case=asked.case, groups=groups)

    def _outcome(self, asked: Round, measured: Measurement | Failed | Skipped) -> Round:
        """``asked`` with its times. A node alone is as slow as its slowest rank, whose fastest sample counts: what
        takes its CPUs only adds, and hides a slow memory. Of pairs, it may be what a limiter of rates lets pass first.
        """
        node_of = self._node_of
        if isinstance(measured, Skipped):
            return asked.measured(np.zeros(len(asked.sender)))
        if isinstance(measured, Failed):
            wrong = [node_of[rank] for rank in measured.ranks]
            failed = np.isin(asked.sender, wrong) | np.isin(asked.receiver, wrong) | (not wrong)
            return asked.measured(np.where(failed, np.nan, 0.0), wrong=bool(wrong))
        self._note(measured.conditions)
        times: dict[tuple[int, int], tuple[float, float]] = {}
        for ranks, *seconds in group_times(measured, 0.0 if asked.case in self.search.fleet.alone else 0.5):
            pair = (node_of[ranks[0]], node_of[ranks[-1]])
            times[pair] = max((seconds[0], seconds[1]), times.get(pair, (0.0, 0.0)))
        median, spread = np.asarray([times.get(pair, (np.nan, np.nan)) for pair in asked.pairs]).T
        taken = np.asarray([self._taken.get(self._hosts[ranks[0]], np.nan) for ranks in self._ranks])
        packets: Counter[str] = Counter()
        for host in measured.conditions:
            packets[host.host] += sum(moved.delta for moved in host.counters if moved.name in _RESENT)
        resent = np.asarray([packets[self._hosts[ranks[0]]] for ranks in self._ranks], dtype=np.float64)
        return asked.measured(median, spread, taken, resent)

    @property
    def judgement(self) -> FleetJudgement:
        """The verdicts of the rounds so far."""
        return self.judged(self.search.fleet, self.options)

    def judged(self, fleet: Fleet, options: Options) -> FleetJudgement:
        """The verdicts of the rounds so far, whatever topology and options the rounds were chosen by."""
        often = len(self.search.rounds) / 2
        throttled = {
            node: tuple(sorted(reason for reason, rounds in limits.items() if rounds > often))
            for node, limits in enumerate(self._limits)
        }
        return judge(fleet, self.search.rounds, options, self._devices, throttled)


# --- stored runs and logs --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Judged:
    """A judged fleet, and the cases that its rounds name by place; ``in_rounds``: whether a controller chose them."""

    judgement: FleetJudgement
    cases: tuple[Case, ...]
    in_rounds: bool = True


def judged(
    runs: Sequence[StoredRun], names: Sequence[str | None], options: Options, topology: Mapping[str, Path_] | None
) -> Judged:
    """The verdicts of a stored fleet run, whose rows are taken through the controller again, or of any runs and logs of
    pairs.

    names: for each run, text that names its two hosts if the run itself does not; None: none
    """
    if len(runs) == 1 and is_fleet(runs[0].run):
        replayed = _replayed(runs[0], options, topology)
        if replayed is not None:
            return replayed
    return _of_pairs(runs, names, options, topology)


def is_fleet(run: Run) -> bool:
    """Whether a controller chose its rounds."""
    return run.imported is None and any(case.group == ASKED for case in run.cases)


def _replayed(stored: StoredRun, options: Options, topology: Mapping[str, Path_] | None) -> Judged | None:
    """The verdicts of the rows, which are taken through the controller with the options that they were measured with.

    None if another version chose them and one failed: nobody knows its groups.
    """
    run, plan, is_asked = stored.run, stored.run.plan, True
    kept = options if isinstance(plan, LogPlan) else replace(options, sample=plan.matchings, seed=plan.seed)
    controller = FleetController(options=Options(sample=kept.sample, seed=kept.seed))
    controller.begin(run.cases, run.hosts, run.environments)
    fleet = controller.search.fleet
    if topology is not None:
        paths = fleet_of(fleet.names, (), run.environments, topology)
        fleet = replace(fleet, leaf=paths.leaf, switches=paths.switches)
    skipped = {row.case: row for row in stored.rows if isinstance(row, Skipped)}
    ask = controller.asked
    for row in (row for row in stored.rows if isinstance(row, Measurement | Failed)):
        while ask is not None and (why := skipped.get(run.cases[ask.case])) is not None:
            ask = controller.next(why)
        is_asked = is_asked and ask is not None and run.cases[ask.case] == row.case and _answers(ask, row)
        if is_asked:
            ask = controller.next(row)
        elif isinstance(row, Failed):
            return None
        else:
            controller.take(run.cases.index(row.case), row)
            ask = controller.asked
    return Judged(controller.judged(fleet, kept), run.cases)


def _answers(ask: Ask, row: Measurement | Failed) -> bool:
    return isinstance(row, Failed) or {ranks for ranks, *_ in group_times(row)} == set(ask.groups)


@dataclass(frozen=True, slots=True)
class _Time:
    """A time of a case between two nodes, or of a node alone."""

    case: Case
    sender: str
    receiver: str
    seconds: float


def _of_pairs(
    runs: Sequence[StoredRun],
    names: Sequence[str | None],
    options: Options,
    topology: Mapping[str, Path_] | None,
) -> Judged:
    """Verdicts on pairs that were measured without a controller: half of them find suspects, the others confirm them.

    If pairs were measured several times, the first times find and the others confirm.
    """
    pairs = hosts_named(names)
    hosts = [_hosts(stored.run, pair) for stored, pair in zip(runs, pairs, strict=True)]
    are_hosts = len({*chain(*hosts)}) > 1
    times = [
        time
        for stored, own in zip(runs, hosts, strict=True)
        for time in _times(stored, own if are_hosts else nodes_of_ranks(own)[0])
        if not are_hosts or UNKNOWN not in own  # of a log beside them that names none
    ]
    nodes = tuple(dict.fromkeys(name for time in times for name in (time.sender, time.receiver)))
    number = {name: place for place, name in enumerate(nodes)}
    cases = _ends_of_sizes(dict.fromkeys(time.case for time in times))
    facts = {name: each for stored in runs for name, each in stored.run.environments.items()}
    rounds = [each for place, case in enumerate(cases) for each in _rounds(place, case, times, number)]
    # As of a fleet's run: the largest messages first.
    by_size = sorted(range(len(cases)), key=lambda place: -cases[place].size_bytes)
    asked = {(each.stage, each.case) for each in rounds}
    places = {stage: tuple(place for place in by_size if (stage, place) in asked) for stage in ("alone", "pairs")}
    fleet = fleet_of(nodes, (), facts, topology)
    whole = Fleet(nodes, fleet.leaf, fleet.switches, places["alone"], places["pairs"], are_hosts)
    judgement = judge(whole, rounds, options, missing_devices(nodes, facts))
    if not judgement.accused and not fleet.switches:
        judgement = without_usual(judgement, rounds, cases, options.within)
    return Judged(judgement, cases, in_rounds=False)


def _ends_of_sizes(cases: Iterable[Case]) -> tuple[Case, ...]:
    """The cases of the largest and the smallest size of each operation: latency and bandwidth."""
    by_op: dict[tuple[str, str | None], list[Case]] = {}
    for case in cases:
        by_op.setdefault((case.op, case.tool_op), []).append(case)
    sizes = {op: {case.size_bytes for case in members} for op, members in by_op.items()}
    return tuple(
        case for op, members in by_op.items() for case in members if case.size_bytes in {min(sizes[op]), max(sizes[op])}
    )


def _times(stored: StoredRun, node_of: Sequence[str]) -> Iterable[_Time]:
    """The times of one or two nodes in a run; ``node_of``: the node of each rank. Other GPUs make another case."""
    tables = by_key(((row.case.op, row.ranks), row.case.group) for row in stored.imported)
    apart = all(len(set(groups)) == 1 for groups in tables.values())  # by its nodes alone, not also by NICs
    gpus = {name: {gpu.name for gpu in facts.pci.gpus if gpu.name} for name, facts in stored.run.environments.items()}
    for row in stored.rows:
        if not isinstance(row, Measurement | Imported):
            continue
        of_groups = [(row.ranks, 1e-9 * row.time_ns, 0.0)] if isinstance(row, Imported) else group_times(row)
        for members, seconds, _ in of_groups:
            inside = list(dict.fromkeys(node_of[rank] for rank in members if rank < len(node_of)))
            if inside and len(inside) <= 2:
                names = " ".join(sorted({*chain(*(gpus.get(node, ()) for node in inside))}))
                of_nodes = {"group": _COLLECTIVE, "ranks": len(members), "nodes": len(inside)}
                alike = isinstance(row, Imported) and apart
                case = structs.replace(row.case, **of_nodes) if alike else row.case
                case = structs.replace(case, group=f"{case.group} {names}".rstrip())
                yield _Time(case, inside[0], inside[-1], seconds)


def _hosts(run: Run, pair: tuple[str, ...]) -> Sequence[str]:
    """The host of each rank: of the run, or half of the ranks on each of the two of ``pair``."""
    ranks = max(len(run.hosts), 2)
    return [pair[2 * rank // ranks] for rank in range(ranks)] if pair and len(set(run.hosts)) < 2 else run.hosts


_BETWEEN: Final = ("--", "__", "_to_", "-to-", ",", "_")
_LEAST_NAMES: Final = 3


def hosts_named(names: Sequence[str | None]) -> list[tuple[str, ...]]:
    """The two hosts in the name of each log, such as ``n1_n2.txt`` or ``n1--n2.log``; empty if it names others.

    Many names may also begin with the same words, or have one ``-`` between hosts: read so that they name fewest hosts.
    """
    stems = ["" if name is None else name.rpartition("/")[2].partition(".")[0] for name in names]
    readings = [[next(filter(None, (_two(stem, between) for between in _BETWEEN)), ()) for stem in stems]]
    if len(stems) >= _LEAST_NAMES:
        start = re.sub(r"[^-_]*$", "", os.path.commonprefix(stems))  # noqa: RUF071 - of characters
        short = [stem.removeprefix(start) for stem in stems]
        readings += [[_two(stem, between) for stem in some] for some in (stems, short) for between in (*_BETWEEN, "-")]
    every = [reading for reading in readings if all(reading) and len({*chain(*reading)}) <= len(reading)]
    return min(every, key=lambda reading: len({*chain(*reading)}), default=readings[0])


def _two(stem: str, between: str) -> tuple[str, ...]:
    """The two different parts of a name; empty if it has more or fewer."""
    parts = tuple(part for part in stem.split(between) if part)
    return parts if len(parts) == 2 and parts[0] != parts[1] else ()


def _rounds(place: int, case: Case, times: Sequence[_Time], number: Mapping[str, int]) -> Iterable[Round]:
    """The times of a case as rounds that find suspects, and such that confirm them."""
    own = [(number[time.sender], number[time.receiver], time.seconds) for time in times if time.case == case]
    symmetric = case.op in OPS and OPS[case.op].members == _COLLECTIVE
    seen: Counter[tuple[int, int]] = Counter()
    pairs: Counter[tuple[int, bool]] = Counter()
    sent: Counter[tuple[int, bool]] = Counter()
    rows: list[tuple[Stage, int, int, float]] = []
    several = len({tuple(sorted(pair[:2])) if symmetric else pair[:2] for pair in own}) < len(own)
    for first, second, seconds in own:
        # Who meets whom is scheduled: half of the pairs of each node confirm, whatever the order is.
        confirms = (
            not several and pairs[first, True] + pairs[second, True] <= pairs[first, False] + pairs[second, False]
        )
        # A collective has no direction: half of a node's pairs count as sent.
        swap = symmetric and sent[first, confirms] > sent[second, confirms]
        pair = (second, first) if swap else (first, second)
        again = seen[pair] > 0
        seen[pair] += 1
        if first == second:
            stage: Stage = "alone again" if again else "alone"
        elif several:
            stage = "suspects" if again else "pairs"
        else:
            stage = "held out" if confirms else "pairs"
        pairs.update({(first, confirms): 1, (second, confirms): 1})
        sent[pair[0], confirms] += 1
        rows.append((stage, *pair, seconds))
    for stage in dict.fromkeys(row[0] for row in rows):
        table = np.asarray([row[1:] for row in rows if row[0] == stage], dtype=np.float64)
        yield Round(place, stage, table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2])
