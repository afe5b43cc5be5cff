"""Placement of a run's ranks as recorded in ``run.json``: cores, GPUs, switches, and problems with it."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from busbw.runs.facts import UNKNOWN_HOST, HostFacts, RankFacts
from busbw.units import counted, number_list, numbers_in

WITHIN_A_HOST = 0
ONE_LEAF = 1
_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """Placement of one rank; None: not recorded.

    local_rank: number on its host, given by the launcher
    cores: cores it may use
    numa_nodes: NUMA nodes of these cores
    gpu, gpu_address: number of its GPU on the host, and PCI address
    switches: switches above the host, from the top to the leaf, from Slurm's topology (empty: no topology)
    """

    rank: int
    host: str
    local_rank: int | None = None
    cores: frozenset[int] | None = None
    numa_nodes: tuple[int, ...] | None = None
    gpu: int | None = None
    switches: tuple[str, ...] | None = None
    gpu_address: str | None = None


def rank_placements(hosts: Sequence[str], environments: Mapping[str, HostFacts]) -> tuple[RankPlacement, ...]:
    """The placement of every rank; ``hosts[r]`` is the host of rank r. Missing facts are None."""
    known = {(host, facts.rank): facts for host, environment in environments.items() for facts in environment.ranks}
    return tuple(
        _placement(host, environments.get(host, UNKNOWN_HOST), known.get((host, rank), RankFacts(rank=rank)))
        for rank, host in enumerate(hosts)
    )


def _placement(host: str, environment: HostFacts, facts: RankFacts) -> RankPlacement:
    cores = None if facts.cores is None else numbers_in(facts.cores)
    return RankPlacement(
        rank=facts.rank,
        host=host,
        local_rank=facts.local_rank,
        cores=None if cores is None else frozenset(cores),
        numa_nodes=facts.numa_nodes,
        gpu=facts.gpu,
        gpu_address=facts.gpu_address,
        switches=None if environment.node is None else environment.node.switches,
    )


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable of a host, or of one of its ranks.

    local_rank: order of the rank on its host, because the same ranks may have other numbers in another run
    """

    name: str
    local_rank: int | None = None

    @property
    def in_words(self) -> str:
        """``NAME``, or ``NAME of rank 0 of its host``."""
        return self.name if self.local_rank is None else f"{self.name} of rank {self.local_rank} of its host"


def variables_of(environment: HostFacts) -> dict[Variable, str]:
    """The recorded variables of a host and of its ranks."""
    variables = {Variable(name): value for name, value in environment.variables.items()}
    for place, rank in enumerate(environment.ranks):
        variables |= {Variable(name, place): value for name, value in rank.variables.items()}
    return variables


# --- distance of two ranks -----------------------------------------------------------------------------------------


def distance(first: RankPlacement, other: RankPlacement) -> int | None:
    """0 within a host, 1 below one leaf switch, plus 1 for every further level on the path between two leaves; None
    between hosts with unknown switches.
    """
    if first.host == other.host:
        return WITHIN_A_HOST
    if not first.switches or not other.switches or len(first.switches) != len(other.switches):
        return None
    pairs = enumerate(zip(first.switches, other.switches, strict=True))
    return ONE_LEAF + len(first.switches) - next((level for level, (a, b) in pairs if a != b), len(first.switches))


def distance_in_words(steps: int | None) -> str:
    """A distance as a heading."""
    if steps is None:
        return "between hosts"
    if steps <= ONE_LEAF:
        return "below one leaf switch" if steps else "within a host"
    return "between leaf switches" + (f", {steps - ONE_LEAF} levels up" if steps > ONE_LEAF + 1 else "")


# --- cores ---------------------------------------------------------------------------------------------------------


def binding(placements: Sequence[RankPlacement]) -> str | None:
    """Description of how the ranks of one host are bound to cores; None if that was not recorded."""
    bound = [(placement.rank, placement.cores) for placement in placements if placement.cores]
    if len(bound) != len(placements) or not placements:
        return None
    first = bound[0][1]
    if len(bound) == 1:
        return f"the only rank, on {counted(len(first), 'core')}"
    if all(cores == first for _, cores in bound):
        return f"not bound: every rank may use the same {counted(len(first), 'core')}"
    sharing = [(rank, other) for (rank, mine), (other, theirs) in combinations(bound, 2) if mine & theirs]
    if sharing:
        named = ", ".join(f"{rank} and {other}" for rank, other in sharing[:_MOST_NAMED])
        more = f" and {len(sharing) - _MOST_NAMED} more" if len(sharing) > _MOST_NAMED else ""
        return f"bound, but some share cores: ranks {named}{more}"
    fewest, most = (choose(len(cores) for _, cores in bound) for choose in (min, max))
    return f"bound: each rank has {'' if fewest == most else f'{fewest} to '}{counted(most, 'core')} of its own"


# --- problems ------------------------------------------------------------------------------------------------------


def shared_resources(placements: Sequence[RankPlacement], environments: Mapping[str, HostFacts]) -> tuple[str, ...]:
    """Warnings about hosts and GPUs that several ranks share although each should have its own."""
    warnings: list[str] = []
    for host in dict.fromkeys(placement.host for placement in placements):
        local = [placement for placement in placements if placement.host == host]
        machines = environments.get(host, UNKNOWN_HOST).machines or 1
        if machines > 1:
            warnings.append(
                f"{machines} machines are called {host} and count as one host, so clock, cores and network are "
                "ambiguous; give each machine its own name"
            )
        elif numbers := list(_shared(local, lambda placement: placement.local_rank)):
            warnings.append(
                f"host {host} appears twice: {_ranks_with(numbers, 'local rank')}; its ranks share what other ranks "
                "have to themselves, so name it once and start its ranks once"
            )
        if gpus := list(
            _shared(local, lambda placement: placement.gpu_address if placement.gpu is None else placement.gpu)
        ):
            warnings.append(f"ranks share a GPU on {host}: {_ranks_with(gpus, 'GPU')}")
    return tuple(warnings)


def _shared(
    placements: Iterable[RankPlacement], what: Callable[[RankPlacement], Hashable]
) -> Iterator[tuple[Hashable, list[int]]]:
    """Each value that several of ``placements`` share, with their ranks."""
    by_value: dict[Hashable, list[int]] = {}
    for placement in placements:
        if (value := what(placement)) is not None:
            by_value.setdefault(value, []).append(placement.rank)
    yield from ((value, ranks) for value, ranks in by_value.items() if len(ranks) > 1)


def _ranks_with(shared: Sequence[tuple[Hashable, list[int]]], noun: str) -> str:
    named = ", ".join(f"ranks {number_list(ranks)} have {noun} {value}" for value, ranks in shared[:_MOST_NAMED])
    return f"{named} and so on" if len(shared) > _MOST_NAMED else named


def oversubscribed(ranks: int, cores: int, hosts: int = 1) -> bool:
    """Whether ``ranks`` ranks, evenly on ``hosts`` hosts with ``cores`` usable cores each, have to share cores."""
    return -(-ranks // hosts) > cores


def oversubscribed_hosts(hosts: Sequence[str], environments: Mapping[str, HostFacts]) -> dict[str, tuple[int, int]]:
    """Hosts with more ranks than usable cores, as (ranks, cores)."""
    return {host: counts for host, counts in ranks_and_cores(hosts, environments).items() if oversubscribed(*counts)}


def ranks_and_cores(hosts: Sequence[str], environments: Mapping[str, HostFacts]) -> dict[str, tuple[int, int]]:
    """Ranks and usable cores of each host; hosts with an unknown number of cores are left out."""
    counts: dict[str, tuple[int, int]] = {}
    for host in dict.fromkeys(hosts):
        cpu = environments.get(host, UNKNOWN_HOST).cpu
        if (cores := cpu.usable_cores or cpu.logical_cores) is not None:
            counts[host] = (hosts.count(host), cores)
    return counts


def tasks_left_out(launcher: str, hosts: Sequence[str], environments: Mapping[str, HostFacts]) -> str | None:
    """Warning if a Slurm job has tasks that these ranks, started by ``launcher``, do not use: a batch script runs once,
    on the first node. Ranks started on purpose within a step of one task are recognised by the step's variables.
    """
    variables = environments.get(hosts[0], UNKNOWN_HOST).variables
    if launcher != "local" or "SLURM_STEP_NODELIST" in variables:
        return None
    tasks, nodes = (_number(variables, name) for name in ("SLURM_NTASKS", "SLURM_JOB_NUM_NODES"))
    if max(tasks, nodes) == 1 or (nodes == 1 and tasks == len(hosts)):
        return None
    asked = f"{max(tasks, nodes)} tasks" if nodes == 1 else f"{max(tasks, nodes)} tasks on {nodes} nodes"
    ranks = f"{counted(len(hosts), 'rank')} on {hosts[0]} alone"
    return f"this Slurm job has {asked}, but this run has {ranks}; use srun busbw run to start one rank per task"


def _number(variables: Mapping[str, str], name: str) -> int:
    """The integer in a Slurm variable; 1 if there is none."""
    value = variables.get(name, "")
    return int(value) if value.isdigit() else 1


def cautions(launcher: str, hosts: Sequence[str], environments: Mapping[str, HostFacts]) -> tuple[str, ...]:
    """Warnings for the user before the first result, one line each."""
    crowded = oversubscribed_hosts(hosts, environments)
    lines = []
    if crowded:
        ranks, cores = next(iter(crowded.values()))
        several = len(set(hosts)) > 1
        where = f" on {len(crowded)} of {len(set(hosts))} hosts, {next(iter(crowded))} among them" if several else ""
        lines.append(f"{ranks} ranks share {cores} usable cores{where}: oversubscribed")
    if (left_out := tasks_left_out(launcher, hosts, environments)) is not None:
        lines.append(left_out)
    return (*lines, *shared_resources(rank_placements(hosts, environments), environments))
