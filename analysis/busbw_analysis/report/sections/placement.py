"""Report tables on where the ranks ran: hosts, nodes and switches, cores, and the network cards closest to each GPU."""

from collections.abc import Iterator, Sequence
from typing import Final

from busbw.runs.facts import UNKNOWN_HOST, GpuFacts, HostFacts
from busbw.runs.placement import RankPlacement, binding, rank_placements
from busbw.runs.store import StoredRun
from busbw.units import listed, number_list
from busbw_analysis.data.grouped import grouped
from busbw_analysis.data.names import rank_list
from busbw_analysis.report.document import Column, Table, table

_MOST_CARDS = 4

SHOWN_HERE: Final = frozenset({"ranks", "node"})
"""Facts of a host that these tables show in full; other tables omit them."""


def places(runs: Sequence[StoredRun]) -> list[Table]:
    """The hosts, the ranks (folded) and the GPUs with their closest network cards, if there are any."""
    return [_hosts(runs), *_ranks(runs), *_gpus(runs)]


def _hosts(runs: Sequence[StoredRun]) -> Table:
    hosts = [
        (ranks, None if (node := run.environments.get(host, UNKNOWN_HOST).node) is None else node.name)
        for run in (stored.run for stored in runs)
        for host, ranks in grouped(rank_placements(run.hosts, run.environments), lambda rank: rank.host).items()
    ]
    return table("Where the ranks ran", _HOST_COLUMNS, hosts, distinct=True)


def _way(placement: RankPlacement) -> str | None:
    return None if placement.switches is None else " / ".join(placement.switches) or "none known to Slurm"


_HOST_COLUMNS: Final[tuple[Column[tuple[list[RankPlacement], str | None]], ...]] = (
    Column("Host", lambda row: row[0][0].host),
    Column("Ranks", lambda row: rank_list([placement.rank for placement in row[0]])),
    Column("Slurm node", lambda row: row[1] or None),
    Column("Switches", lambda row: _way(row[0][0])),
    Column("Cores of its ranks", lambda row: binding(row[0]) or None),
)
_RANK_COLUMNS: Final[tuple[Column[tuple[RankPlacement, str]], ...]] = (
    Column("Rank", lambda row: row[0].rank, str),
    Column("Host", lambda row: row[0].host),
    Column("Local rank", lambda row: row[0].local_rank),
    Column("Cores", lambda row: None if row[0].cores is None else number_list(row[0].cores)),
    Column("NUMA nodes", lambda row: number_list(row[0].numa_nodes or ()) or None),
    Column("GPU", lambda row: row[0].gpu_address or None if row[0].gpu is None else row[0].gpu),
    Column("Own variables", lambda row: row[1] or None),
)
_GPU_COLUMNS: Final[tuple[Column[tuple[GpuFacts, str]], ...]] = (
    Column("GPU", lambda row: row[0].index),
    Column("What", lambda row: row[0].name),
    Column("Address", lambda row: row[0].address),
    Column("NUMA node", lambda row: row[0].numa_node, str),
    Column("Closest network cards", lambda row: listed(row[0].closest_nics, _MOST_CARDS) or None),
    Column("Shared", lambda row: row[0].closest_by or None),
    Column("Hosts", lambda row: row[1]),
)


def _ranks(runs: Sequence[StoredRun]) -> Iterator[Table]:
    ranks: list[tuple[RankPlacement, str]] = []
    for stored in runs:
        for placement in rank_placements(stored.run.hosts, stored.run.environments):
            own = _variables(stored.run.environments.get(placement.host, UNKNOWN_HOST), placement.rank)
            if placement.cores is not None or placement.local_rank is not None or own:
                ranks.append((placement, own))
    if ranks:
        yield table("Every rank", _RANK_COLUMNS, ranks, folded=True, distinct=True)


def _variables(host: HostFacts, rank: int) -> str:
    own = next((facts.variables for facts in host.ranks if facts.rank == rank), {})
    return ", ".join(f"{name}={value}" for name, value in own.items())


def _gpus(runs: Sequence[StoredRun]) -> Iterator[Table]:
    """The GPUs; hosts with the same GPUs and cards share their rows."""
    alike: dict[str, dict[str, tuple[GpuFacts, ...]]] = {}
    for stored in runs:
        for host, facts in stored.run.environments.items():
            gpus = facts.pci.gpus
            shown = str([[column.value((gpu, "")) for column in _GPU_COLUMNS] for gpu in gpus])
            alike.setdefault(shown, {})[host] = gpus
    rows = [(gpu, ", ".join(hosts)) for hosts in alike.values() for gpu in next(iter(hosts.values()))]
    if not rows:
        return
    note = (
        "From the kernel's PCI tree: the cards that share most of the GPU's path to the host, or else its NUMA node. "
        "If both are unknown, there is no closest card."
    )
    yield table("GPUs and the network cards next to them", _GPU_COLUMNS, rows, note)
