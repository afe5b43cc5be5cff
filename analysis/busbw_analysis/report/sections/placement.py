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
        (here, None if (node := run.environments.get(host, UNKNOWN_HOST).node) is None else node.name)
        for run in (stored.run for stored in runs)
        for host, here in grouped(rank_placements(run.hosts, run.environments), lambda one: one.host).items()
    ]
    return table("Where the ranks ran", _HOST_COLUMNS, hosts, distinct=True)


def _way(placement: RankPlacement) -> str | None:
    return None if placement.switches is None else " / ".join(placement.switches) or "none known to Slurm"


_HOST_COLUMNS: Final[tuple[Column[tuple[list[RankPlacement], str | None]], ...]] = (
    Column("Host", lambda one: one[0][0].host),
    Column("Ranks", lambda one: rank_list([placement.rank for placement in one[0]])),
    Column("Slurm node", lambda one: one[1] or None),
    Column("Switches", lambda one: _way(one[0][0])),
    Column("Cores of its ranks", lambda one: binding(one[0]) or None),
)
_RANK_COLUMNS: Final[tuple[Column[tuple[RankPlacement, str]], ...]] = (
    Column("Rank", lambda one: one[0].rank, str),
    Column("Host", lambda one: one[0].host),
    Column("Local rank", lambda one: one[0].local_rank),
    Column("Cores", lambda one: None if one[0].cores is None else number_list(one[0].cores)),
    Column("NUMA nodes", lambda one: number_list(one[0].numa_nodes or ()) or None),
    Column("GPU", lambda one: one[0].gpu_address or None if one[0].gpu is None else one[0].gpu),
    Column("Own variables", lambda one: one[1] or None),
)
_GPU_COLUMNS: Final[tuple[Column[tuple[GpuFacts, str]], ...]] = (
    Column("GPU", lambda one: one[0].index),
    Column("What", lambda one: one[0].name),
    Column("Address", lambda one: one[0].address),
    Column("NUMA node", lambda one: one[0].numa_node, str),
    Column("Closest network cards", lambda one: listed(one[0].closest_nics, _MOST_CARDS) or None),
    Column("Shared", lambda one: one[0].closest_by or None),
    Column("Hosts", lambda one: one[1]),
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
    own = next((known.variables for known in host.ranks if known.rank == rank), {})
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
