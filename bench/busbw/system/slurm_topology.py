"""Placement of a rank and of a host's node: cores, NUMA nodes, and names and switches given by Slurm."""

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec

from busbw.runs.facts import CpuFacts, HostFacts, NodeFacts, RankFacts
from busbw.system.env_vars import in_common
from busbw.system.sysfs import text_of
from busbw.units import number_list, numbers_in

_NUMA = Path("/sys/devices/system/node")


def rank_facts(
    rank: int,
    local_rank: int | None,
    node: int | None = None,
    *,
    gpu: int | None = None,
    gpu_address: str | None = None,
) -> RankFacts:
    """Placement of this process."""
    allowed = allowed_cores()
    nodes = numa_nodes()
    within = tuple(int(number) for number, cores in nodes.items() if set(allowed) & set(numbers_in(cores) or ()))
    return RankFacts(
        rank=rank,
        local_rank=local_rank,
        node=node,
        cores=number_list(allowed),
        binds_threads=binds_threads(),
        numa_nodes=within if nodes else None,
        gpu=gpu,
        gpu_address=gpu_address,
    )


def allowed_cores() -> tuple[int, ...]:
    """Core numbers in the affinity mask of this process."""
    return tuple(sorted(os.sched_getaffinity(0)))


@cache
def binds_threads() -> bool:
    """Whether threads of this process may choose their core."""
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        os.sched_setaffinity(0, allowed)
    except OSError:
        return False
    return True


def numa_nodes(folder: Path = _NUMA) -> dict[str, str]:
    """Cores of every NUMA node of this host, in the kernel's format (``0-31,64-95``); empty if unknown."""
    cores = {path.parent.name.removeprefix("node"): text_of(path) for path in folder.glob("node*/cpulist")}
    return {number: cores[number] or "" for number in sorted(cores, key=int) if cores[number] is not None}


def by_host(hosts: Sequence[str], facts: Sequence[HostFacts]) -> dict[str, HostFacts]:
    """The facts of every host from those that its ranks report: ``machines``, ``node``, ``variables`` that they share,
    ``ranks`` with their other variables, the union of their cores. The other facts are those of its first rank.
    """
    of_hosts: dict[str, list[HostFacts]] = {}
    for host, own in zip(hosts, facts, strict=True):
        of_hosts.setdefault(host, []).append(own)
    names = {host: reports[0].variables.get("SLURMD_NODENAME") for host, reports in of_hosts.items()}
    merged: dict[str, HostFacts] = {}
    for host, reports in of_hosts.items():
        alike = in_common([own.variables for own in reports])
        kernels = {own.boot_id for own in reports}
        merged[host] = msgspec.structs.replace(
            reports[0],
            machines=None if None in kernels else len(kernels),
            node=_node(host, names, alike),
            variables=alike,
            cpu=_together([own.cpu for own in reports]),
            ranks=tuple(
                msgspec.structs.replace(
                    rank, variables={name: value for name, value in own.variables.items() if name not in alike}
                )
                for own in reports
                for rank in own.ranks
            ),
        )
    return merged


def _together(cpus: Sequence[CpuFacts]) -> CpuFacts:
    """The cores that the ranks of a host may use together: mpirun and srun bind them to different cores, so each rank
    sees only its own. A quota of the control group applies to all ranks together.
    """
    allowed = tuple(sorted({core for cpu in cpus for core in cpu.allowed_cores}))
    limited = any(usable_of(cpu) < len(cpu.allowed_cores) for cpu in cpus)
    usable = max(map(usable_of, cpus)) if limited else len(allowed)
    return msgspec.structs.replace(cpus[0], usable_cores=usable, allowed_cores=allowed)


def usable_of(cpu: CpuFacts) -> int:
    """Cores that a rank may use."""
    return cpu.usable_cores or len(cpu.allowed_cores)


def _node(host: str, names: Mapping[str, str | None], variables: Mapping[str, str]) -> NodeFacts | None:
    """Slurm's name of this host, its number in the job and the switches above it; None if Slurm does not provide them.

    An mpiexec that starts ranks over ssh passes on the variables of its own host. A name shared by several hosts is
    therefore valid only for the host that is called so.
    """
    name = names[host]
    shared = sum(other == name for other in names.values()) > 1
    if name is None or (shared and name != host.partition(".")[0]):
        return None
    number = variables.get("SLURM_NODEID", "")
    switches = switches_of(variables.get("SLURM_TOPOLOGY_ADDR"), variables.get("SLURM_TOPOLOGY_ADDR_PATTERN"), name)
    return NodeFacts(name=name, number=int(number) if number.isdigit() else None, switches=switches)


def switches_of(address: str | None, pattern: str | None, node: str) -> tuple[str, ...] | None:
    """The switches above ``node`` from the top to its leaf.

    ``address``: SLURM_TOPOLOGY_ADDR (``spine.leaf1.n7``); ``pattern``: SLURM_TOPOLOGY_ADDR_PATTERN, the kinds of its
    parts (``switch.switch.node``). Empty if Slurm has no topology; None if they describe another node. Format: man
    srun, OUTPUT ENVIRONMENT VARIABLES.
    """
    if address is None or pattern is None:
        return None
    kinds = pattern.split(".")
    parts = address.split(".", len(kinds) - 1)  # the node's name may contain dots
    return tuple(parts[:-1]) if len(parts) == len(kinds) and parts[-1] == node else None
