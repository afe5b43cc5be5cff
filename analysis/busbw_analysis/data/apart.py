"""Keeps tables and logs of another tool apart that are no launches of one case: over other hosts or devices, or with
other settings. They get groups of ranks of their own in one world of all hosts, or settings of their own.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

from msgspec import structs

from busbw.runs.facts import HostFacts
from busbw.runs.records import Case, Imported
from busbw.runs.run import LogNote, Run
from busbw.runs.store import StoredRun
from busbw.units import counted
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.likeness import is_unknown, options_of
from busbw_analysis.data.readers.log import Aggregate, Table

_MOST_NAMED: Final = 4
_FEWEST_CASES: Final = 3
_FAR: Final = 1.5
"""Two tables of as many ranks without a stated difference are apart if one takes longer by more than this factor in all
common cases, at least so many.
"""
_FAR_ALONE: Final = 3
"""The same factor for fewer common cases."""
_PLACED: Final = re.compile(r"(?<!\S)(-N|-ppn|--?npernode|--map-by|--nodes|--ntasks-per-node)[ =]?([\w:.-]+)")
"""Options of launchers that place ranks on hosts."""
_EACH_NODE: Final = re.compile(r"ppr:(\d+):node")
_NODES: Final = "--nodes"
_A_NODE: Final = "--ntasks-per-node"
_NAMES: Final = {"-ppn": _A_NODE, "-npernode": _A_NODE, "--npernode": _A_NODE}
"""Other names of such options; ``-N`` has another meaning for srun than for mpirun."""
_NO_CAPTION: Final = frozenset({""})
"""Of a table without text above, which is another one than that below a text."""
SEVERAL_GPUS: Final = "several-gpus"
"""The note of a log whose GPU cannot be given, because its tables are of several."""
TABLES_APART: Final = "tables-apart"
"""The note of a log whose tables have other settings: how they differ."""


def _placed(command: str) -> Iterator[str]:
    """The options of a command that place ranks on hosts, by one name each."""
    for name, value in _PLACED.findall(command):
        short = _NODES if "srun" in command else _A_NODE
        each = _EACH_NODE.fullmatch(value) if name == "--map-by" else None
        yield f"{_A_NODE if each else _NAMES.get(name, short if name == '-N' else name)}={each[1] if each else value}"


@dataclass(frozen=True, slots=True)
class Identity:
    """What the results of one table or log are of. Empty: not stated.

    ranks: how many there are
    hosts, nics, gpus: in any order; NICs by name if the tool uses one, GPUs by address
    settings: versions, and words of the command line
    ops: operations
    cases: sizes and types
    caption: what the text around a paste says above it
    layout: the host of every rank
    times: seconds, or what is in proportion to them, by all that is stated of a case
    """

    ranks: int
    hosts: frozenset[str]
    nics: frozenset[str] = frozenset()
    gpus: frozenset[str] = frozenset()
    settings: tuple[frozenset[str], ...] = ()
    ops: frozenset[object] = frozenset()
    cases: frozenset[object] = frozenset()
    caption: frozenset[str] = frozenset()
    layout: tuple[str, ...] = ()
    times: Mapping[object, float] = field(default_factory=dict, compare=False)

    @classmethod
    def of_table(cls, table: Table) -> "Identity":
        """As its log states it."""
        versions = (("", table.tool_version), ("library ", table.library_version))
        return cls(
            ranks=max([len(table.places), *(row.ranks or 1 for row in table.rows)]),
            hosts=frozenset(place.host for place in table.places if place.host is not None),
            nics=frozenset(filter(None, [table.nic])),
            gpus=frozenset(place.bus_id for place in table.places if place.bus_id is not None),
            settings=(
                *(frozenset([f"{name}{version}"] if version else []) for name, version in versions),
                options_of(table.command),
                frozenset(_placed(table.command or "")),
            ),
            caption=frozenset(filter(None, [table.caption])),
            layout=_layout(table),
            ops=frozenset((row.op, row.tool_op) for row in table.rows) - {(None, None)},
            cases=frozenset((row.tool_size_bytes or table.copy_bytes, row.dtype, row.in_place) for row in table.rows),
            times={_measured(row): seconds for row in table.rows if (seconds := _seconds(row))},
        )

    @property
    def facts(self) -> tuple[frozenset[str], ...]:
        """Its settings, then its places."""
        return (*self.settings, self.hosts, self.nics, self.gpus)

    def on_first_of(self, widest: "Identity") -> bool:
        """Whether its ranks may be the first ones of ``widest``, the most ranks whose hosts are stated."""
        if self.layout:
            return widest.layout[: len(self.layout)] == self.layout
        return len(set(widest.layout)) < 2 or self.ranks >= len(widest.layout)

    @classmethod
    def of_run(cls, run: Run) -> "Identity":
        """As an imported run records it. Settings that differ between runs are a matter of ``CHECKED``."""
        environments = run.environments.values()
        nics = frozenset(port.device for host in environments for port in host.rdma)
        return cls(
            ranks=len(run.hosts),
            hosts=frozenset() if is_unknown(run, "hosts") else frozenset(run.hosts),
            nics=nics if len(nics) == 1 else frozenset(),
            gpus=frozenset(
                gpu.address
                for host in environments
                for gpu, rank in zip(host.pci.gpus, host.ranks, strict=False)
                if gpu.address != f"rank {rank.rank}"
            ),
        )


@dataclass(frozen=True, slots=True)
class Label:
    """What sets one of several apart: the name of its group of ranks, and its settings; "" for what all share."""

    group: str
    settings: str


def labels_of(identities: Sequence[Identity]) -> list[Label]:
    """A label for each of ``identities``. Places tell apart those with the same number of ranks and hosts, settings
    those with common cases: others are other cases anyway. What is not stated is no difference, unless two tables
    differ so much in every case that something else was changed between them.
    """
    labels = []
    widest = max(identities, key=lambda identity: len(identity.layout))
    alike = by_key((_shape(own), own) for own in identities)
    near = by_key((_near(own), own) for own in identities)
    hosts_of = {key: _Stated(other.hosts for other in others) for key, others in alike.items()}
    nics_of = {key: _Stated(other.nics for other in others) for key, others in near.items()}
    gpus_of = {key: _Stated(other.gpus for other in others) for key, others in near.items()}
    same_of = _same(identities)
    for number, own in enumerate(identities, 1):
        places = [
            _differing(own.hosts, hosts_of[_shape(own)], " + "),
            _differing(own.nics, nics_of[_near(own)], " + "),
            _differing(own.gpus, gpus_of[_near(own)], " + "),
        ]
        if not any(places) and not own.on_first_of(widest):
            hosts = f" on {counted(len(own.hosts), 'host')}" if own.hosts else ""
            places = [f"{counted(own.ranks, 'rank')}{hosts}"]
        same = same_of[own.ops, own.cases]
        settings = [
            _differing(words, stated, " ", own=True) for words, stated in zip(own.settings, same.settings, strict=False)
        ]
        like = same.like(own.facts if any(places) else own.settings)
        caption = _differing(own.caption or _NO_CAPTION, like.captions, " ")
        repeats = like.settings_of.get(own.caption, set()) - {own.settings}
        settings = [caption] if caption and repeats else [*settings, caption]
        if not any((*places, *settings)) and len(same.members) == 2 and _far(*same.members):
            settings = [f"table {number}"]
        labels.append(Label(" ".join(filter(None, places)), " ".join(filter(None, settings))))
    return labels


_Settings = tuple[frozenset[str], ...]


def _shape(own: Identity) -> tuple[int, int]:
    return own.ranks, len(own.hosts)


def _near(own: Identity) -> tuple[int, frozenset[str], int]:
    return own.ranks, own.hosts, len(own.gpus)


class _Stated:
    """What several tables state of one thing: whether it differs, and the words of all."""

    def __init__(self, every: Iterable[frozenset[str]]) -> None:
        stated = {words for words in every if words}
        self.differs = len(stated) > 1
        self.common = frozenset.intersection(*stated) if stated else frozenset[str]()


class _Like:
    """Tables whose settings may be the same: their captions, and the settings below each of them."""

    def __init__(self, members: Iterable[Identity]) -> None:
        self.settings_of: dict[frozenset[str], set[_Settings]] = {}
        for other in members:
            self.settings_of.setdefault(other.caption, set()).add(other.settings)
        self.captions = _Stated(caption or _NO_CAPTION for caption in self.settings_of)


class _Same:
    """Tables of one operation with common cases. As there may be thousands, no two of them are compared."""

    def __init__(self, members: Sequence[Identity]) -> None:
        self.members = members
        self.settings = [_Stated(kind) for kind in zip(*(other.settings for other in members), strict=True)]
        self._by_stated = by_key((tuple(map(bool, other.facts)), other) for other in members)
        self._by_both: dict[tuple[object, ...], Mapping[_Settings, Sequence[Identity]]] = {}
        self._like: dict[_Settings, _Like] = {}

    def like(self, facts: _Settings) -> _Like:
        """Those of which none of the first facts differs that both they and ``facts`` state."""
        if facts not in self._like:
            self._like[facts] = _Like(chain.from_iterable(self._found(facts)))
        return self._like[facts]

    def _found(self, facts: _Settings) -> Iterator[Sequence[Identity]]:
        for stated, members in self._by_stated.items():
            both = [kind for kind, words in enumerate(facts) if words and stated[kind]]
            if (stated, *both) not in self._by_both:
                known = by_key((tuple(other.facts[kind] for kind in both), other) for other in members)
                self._by_both[stated, *both] = known
            yield self._by_both[stated, *both].get(tuple(facts[kind] for kind in both), ())


def _same(identities: Iterable[Identity]) -> dict[tuple[frozenset[object], frozenset[object]], _Same]:
    """Of each operation and cases, the tables that have common cases of an operation that may be the same."""
    kinds = by_key(((own.ops, own.cases), own) for own in identities)
    return {
        (ops, cases): _Same(
            [
                other
                for (others, theirs), members in kinds.items()
                if (not others or not ops or others & ops) and theirs & cases
                for other in members
            ]
        )
        for ops, cases in kinds
    }


def _layout(table: Table) -> tuple[str, ...]:
    """The host of every rank; () unless all are listed."""
    hosts = {place.rank: place.host for place in table.places}
    listed = tuple(host for rank in range(len(hosts)) if (host := hosts.get(rank)) is not None)
    return listed if len(listed) == len(hosts) else ()


def differences(labels: Sequence[Label], tables: Sequence[Table]) -> Iterator[LogNote]:
    """By what factor tables take longer that only settings, captions or their times tell from the first such table."""
    known = list(zip(labels, tables, map(Identity.of_table, tables), strict=True))
    firsts: dict[str, tuple[Label, Table, Identity]] = {}
    texts: dict[Label, str] = {}
    for label, table, own in known:
        base, first, other = firsts.setdefault(label.group, (label, table, own))
        ratios = [own.times[case] / other.times[case] for case in own.times.keys() & other.times.keys()]
        if base == label or label in texts or not ratios:
            continue
        low, high = (f"{factor:.3g}" for factor in (min(ratios), max(ratios)))
        factor = low if low == high else f"{low} to {high}"
        cases = counted(len(ratios), "case")
        texts[label] = f"{_named(label, table)} takes {factor} times as long as {_named(base, first)} in {cases}"
    if texts:
        shown = "; ".join([*texts.values()][:_MOST_NAMED])
        text = f"{shown}; the tables are kept apart, not pooled as launches"
        yield LogNote(code=TABLES_APART, text=text)


def _named(label: Label, table: Table) -> str:
    at = f"line {table.rows[0].line}"
    return f"{label.settings} ({at})" if label.settings else f"the table of {at}"


def _seconds(row: Aggregate) -> float | None:
    """Time of a call, or what is in proportion to it if the tool prints only a rate."""
    rate = row.rate or row.algbw or row.busbw
    return row.time_seconds or (row.tool_size_bytes / rate if rate and row.tool_size_bytes else None)


def _measured(row: Aggregate) -> tuple[object, ...]:
    what = (row.op, row.tool_op, row.ranks, row.settings, row.source, row.target)
    return (*what, row.tool_size_bytes, row.dtype, row.in_place)


def _far(first: Identity, second: Identity) -> bool:
    """Whether one of two of as many ranks takes longer by far in every common case, of which there are enough."""
    if first.ranks != second.ranks:
        return False
    ratios = [first.times[case] / second.times[case] for case in first.times.keys() & second.times.keys()]
    far = _FAR if len(ratios) >= _FEWEST_CASES else _FAR_ALONE
    return bool(ratios) and (min(ratios) > far or max(ratios) < 1 / far)


def _differing(words: frozenset[str], others: _Stated, between: str, *, own: bool = False) -> str:
    """``words`` as text if ``others`` differ; "" if not. Of many, or with ``own``, those that not all have."""
    if not words or not others.differs:
        return ""
    special = words - others.common
    return between.join(sorted(special if own or len(words) > _MOST_NAMED else words)[:_MOST_NAMED])


def apart(runs: Sequence[StoredRun], labels: Sequence[Label] | None = None) -> list[StoredRun]:
    """Imported ``runs`` whose results cannot be taken for launches of the same cases; as they are if they are alike.

    All get the same world: the hosts of all, each with the most ranks that it has in any.
    """
    if any(stored.run.imported is None for stored in runs):
        return list(runs)
    labels = labels_of([Identity.of_run(stored.run) for stored in runs]) if labels is None else labels
    if not any(label.group or label.settings for label in labels):
        return list(runs)
    of_runs = [Counter(stored.run.hosts) for stored in runs]
    counts = {host: max(of_run[host] for of_run in of_runs) for host in dict.fromkeys(chain(*of_runs))}
    world = tuple(host for host, count in counts.items() for _ in range(count))
    environments: dict[str, HostFacts] = {}
    for stored in runs:
        ranks = _ranks_in(world, stored.run.hosts)
        for host, facts in stored.run.environments.items():
            environments[host] = _together(environments.get(host), facts, ranks)
    return [_in_world(stored, label, world, environments) for stored, label in zip(runs, labels, strict=True)]


def _ranks_in(world: Sequence[str], hosts: Sequence[str]) -> list[int]:
    """The rank in the world of every rank: the n-th of its host there."""
    left = {host: iter(ranks) for host, ranks in by_key((host, rank) for rank, host in enumerate(world)).items()}
    return [next(left[host]) for host in hosts]


def _together(known: HostFacts | None, facts: HostFacts, ranks: Sequence[int]) -> HostFacts:
    """The facts of a host from several runs: its ports together, its GPUs of the first run that has as many."""
    own = structs.replace(facts, ranks=tuple(structs.replace(rank, rank=ranks[rank.rank]) for rank in facts.ranks))
    if known is None:
        return own
    ports = {port.device: port for port in (*known.rdma, *own.rdma)}
    more = own if len(own.ranks) > len(known.ranks) else known
    return structs.replace(more, rdma=tuple(ports.values()))


def _in_world(
    stored: StoredRun, label: Label, world: tuple[str, ...], environments: Mapping[str, HostFacts]
) -> StoredRun:
    ranks = _ranks_in(world, stored.run.hosts)

    def case_of(case: Case) -> Case:
        group = case.group if not label.group else label.group if case.group == "all" else f"{label.group} {case.group}"
        words = " ".join(filter(None, (case.tool_op, label.settings)))
        split = group != "all" or case.ranks == len(stored.run.hosts)
        size = {"ranks": len(world), "nodes": len(set(world))} if label.group and split else {}
        return structs.replace(case, group=group, tool_op=words or None, **size)

    def row_of(row: Imported) -> Imported:
        members = tuple(ranks[rank] for rank in row.ranks)
        order = members if len(members) == 2 else tuple(sorted(members))  # a pair has a direction
        return structs.replace(row, case=case_of(row.case), ranks=order)

    run = structs.replace(
        stored.run, hosts=world, environments=dict(environments), cases=tuple(map(case_of, stored.run.cases))
    )
    rows = tuple(row_of(row) if isinstance(row, Imported) else row for row in stored.rows)
    return replace(stored, run=run, rows=rows)


def merged(runs: Sequence[StoredRun], notes: Sequence[LogNote]) -> StoredRun:
    """The parts of one log as one run, with ``notes`` about the whole."""
    first, imported = runs[0], [stored.run.imported for stored in runs if stored.run.imported is not None]
    known = {"gpu"} if any(note.code == SEVERAL_GPUS for note in notes) else set[str]()
    log = structs.replace(
        imported[0],
        unknown=tuple(dict.fromkeys(name for part in imported for name in part.unknown if name not in known)),
        notes=tuple(dict.fromkeys([*(note for part in imported for note in part.notes), *notes])),
    )
    ends = [stored.end for stored in runs if stored.end is not None]
    end = next((end for end in ends if end.status != "complete"), ends[0])
    run = structs.replace(first.run, cases=tuple(dict.fromkeys(_cases(runs))), imported=log)
    return replace(first, run=run, rows=(*(row for stored in runs for row in stored.imported), end))


def _cases(runs: Iterable[StoredRun]) -> Iterable[Case]:
    return (case for stored in runs for case in stored.run.cases)
