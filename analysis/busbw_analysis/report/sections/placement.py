"""The part of a report about where the ranks ran: hosts, nodes and switches, cores, and which card is next to a GPU."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from busbw.runs.placement import RankPlacement, binding, mappings, rank_placements
from busbw.runs.records import JSON
from busbw.runs.store import StoredRun
from busbw.units import number_list
from busbw_analysis.data.load import fact, rank_list
from busbw_analysis.report.document import MISSING, Cell, Column, Table, words

_MOST_CARDS = 4

SHOWN_HERE = frozenset({"ranks", "node"})
"""The facts of a host that these tables show in full, so that no other has to."""


def places(runs: Sequence[StoredRun]) -> list[Table]:
    """The hosts, the ranks (folded) and, where there are any, the GPUs with the cards next to them."""
    return [_hosts(runs), *_ranks(runs), *_gpus(runs)]


def _hosts(runs: Sequence[StoredRun]) -> Table:
    rows: dict[tuple[str, ...], None] = {}
    for stored in runs:
        seats = rank_placements(stored.run.hosts, stored.run.environments)
        for host in dict.fromkeys(stored.run.hosts):
            here = [seat for seat in seats if seat.host == host]
            node = fact(stored.run.environments.get(host, {}), "node.name")
            rows[host, _ranks_of(here), str(node or MISSING), _way(here[0]), binding(here) or MISSING] = None
    names = ("Host", "Ranks", "Node of Slurm", "Switches above it", "Cores of its ranks")
    every = tuple(rows)
    # What no host has is no column.
    kept = [place for place in range(len(names)) if place < 2 or any(row[place] != MISSING for row in every)]
    return Table(
        "Where the ranks ran",
        tuple(Column(names[place], numeric=False) for place in kept),
        tuple(words(row[place] for place in kept) for row in every),
    )


def _ranks_of(seats: Iterable[RankPlacement]) -> str:
    return rank_list([seat.rank for seat in seats])


def _way(seat: RankPlacement) -> str:
    if seat.switches is None:
        return MISSING
    return " / ".join(seat.switches) or "none that Slurm knows"


def _ranks(runs: Sequence[StoredRun]) -> Iterator[Table]:
    rows: dict[tuple[str, ...], None] = {}
    for stored in runs:
        for seat in rank_placements(stored.run.hosts, stored.run.environments):
            own = _variables(stored.run.environments.get(seat.host, {}), seat.rank)
            if seat.cores is not None or seat.local_rank is not None or own:
                rows[_rank_row(seat, own)] = None
    if rows:
        names = ("Rank", "Host", "Its number there", "Cores", "NUMA nodes", "GPU", "Variables of its own")
        columns = tuple(Column(name, numeric=name == "Rank") for name in names)
        yield Table("Every rank", columns, tuple(words(row) for row in rows), folded=True)


def _rank_row(seat: RankPlacement, own: str) -> tuple[str, ...]:
    return (
        str(seat.rank),
        seat.host,
        MISSING if seat.local_rank is None else str(seat.local_rank),
        MISSING if seat.cores is None else number_list(seat.cores),
        MISSING if seat.numa_nodes is None else number_list(seat.numa_nodes) or MISSING,
        seat.gpu_address or MISSING if seat.gpu is None else str(seat.gpu),
        own or MISSING,
    )


def _variables(environment: Mapping[str, JSON], rank: int) -> str:
    ranks = environment.get("ranks")
    told = next((one for one in mappings(ranks) if one.get("rank") == rank), {}).get("variables")
    return ", ".join(f"{name}={value}" for name, value in told.items()) if isinstance(told, Mapping) else ""


def _gpus(runs: Sequence[StoredRun]) -> Iterator[Table]:
    """Hosts whose GPUs and cards sit alike have their rows once."""
    hosts_of: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for stored in runs:
        for host, facts in stored.run.environments.items():
            rows = tuple(_gpu_row(gpu) for gpu in mappings(fact(facts, "pci.gpus")))
            if rows and host not in hosts_of.setdefault(rows, []):
                hosts_of[rows].append(host)
    if not hosts_of:
        return
    columns = (
        Column("GPU", numeric=False),
        Column("What", numeric=False),
        Column("Address", numeric=False),
        Column("NUMA node"),
        Column("Closest network cards", numeric=False),
        Column("They share", numeric=False),
        Column("Hosts", numeric=False),
    )
    body = tuple((*words(row), Cell(", ".join(hosts))) for rows, hosts in hosts_of.items() for row in rows)
    note = (
        "By the kernel's PCI tree: cards with the most of the way to the host in common with the GPU, or else in its "
        "NUMA node. Where neither is told, there is no closest one."
    )
    yield Table("GPUs and the network cards next to them", columns, body, note=note)


def _gpu_row(gpu: Mapping[str, JSON]) -> tuple[str, ...]:
    nics = gpu.get("closest_nics")
    names = [str(name) for name in nics] if isinstance(nics, list) else []
    more = f" and {len(names) - _MOST_CARDS} more" if len(names) > _MOST_CARDS else ""
    index, name, node = (gpu.get(key) for key in ("index", "name", "numa_node"))
    return (
        MISSING if index is None else str(index),
        MISSING if name is None else str(name),
        str(gpu.get("address", MISSING)),
        MISSING if node is None else str(node),
        ", ".join(names[:_MOST_CARDS]) + more or MISSING,
        str(gpu.get("closest_by") or MISSING),
    )
