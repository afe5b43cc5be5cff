"""Placement of a rank and of a host's node: cores, NUMA nodes, and names and switches given by Slurm."""

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from busbw.runs.records import JSON
from busbw.system.env_vars import in_common
from busbw.system.sysfs import text_of
from busbw.units import number_list, numbers_in

_NUMA = Path("/sys/devices/system/node")


def rank_facts(local_rank: int, gpu: int | None, node: int | None = None) -> dict[str, JSON]:
    """Placement of this process; None: unknown.

    local_rank: number on its host, from the launcher
    node: number of the host, from the launcher
    cores: cores it may use
    binds_threads: whether it may bind threads to them
    numa_nodes: NUMA nodes of these cores
    gpu: number of the GPU it drives
    """
    allowed = allowed_cores()
    nodes = numa_nodes()
    within = [int(number) for number, cores in nodes.items() if set(allowed) & set(numbers_in(cores) or ())]
    return {
        "local_rank": local_rank,
        "node": node,
        "cores": number_list(allowed),
        "binds_threads": binds_threads(),
        "numa_nodes": within if nodes else None,
        "gpu": gpu,
    }


def allowed_cores() -> list[int]:
    """Core numbers in the affinity mask of this process."""
    return sorted(os.sched_getaffinity(0))


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


def of_hosts(hosts: Sequence[str], facts: Sequence[Mapping[str, JSON]]) -> dict[str, dict[str, JSON]]:
    """Facts about every host that follow from those of its ranks.

    machines: number of machines with this host name
    node: the host's node in Slurm
    variables: variables that all its ranks share
    ranks: facts and other variables of each rank
    """
    names = {host: _variables(facts[hosts.index(host)]).get("SLURMD_NODENAME") for host in dict.fromkeys(hosts)}
    found: dict[str, dict[str, JSON]] = {}
    for host in names:
        ranks = [rank for rank, name in enumerate(hosts) if name == host]
        variables = [_variables(facts[rank]) for rank in ranks]
        alike = in_common(variables)
        kernels = {fact.get("boot_id") for fact in (facts[rank] for rank in ranks)}
        found[host] = {
            "machines": None if None in kernels else len(kernels),
            "node": _node(host, names, alike),
            "variables": alike,
            "ranks": [
                {
                    "rank": rank,
                    **(facts[rank].get("rank") or {}),
                    "variables": {name: value for name, value in own.items() if name not in alike},
                }
                for rank, own in zip(ranks, variables, strict=True)
            ],
        }
    return found


def _variables(fact: Mapping[str, JSON]) -> dict[str, str]:
    return fact.get("variables") or {}


def _node(host: str, names: Mapping[str, str | None], variables: Mapping[str, str]) -> dict[str, JSON] | None:
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
    return {
        "name": name,
        "number": int(number) if number.isdigit() else None,
        "switches": None if switches is None else list(switches),
    }


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
