"""What is known of a rank's place and of a host's node: cores and NUMA nodes, and what Slurm calls them."""

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
    """The place of this process: its number on its host, and the number of that ``node``, by the launcher; the cores
    that it may use, whether it may bind threads to them, the NUMA nodes that they lie in, and the number of the GPU
    that it drives. None is what nobody tells.
    """
    mine = allowed_cores()
    nodes = numa_nodes()
    within = [int(number) for number, cores in nodes.items() if set(mine) & set(numbers_in(cores) or ())]
    return {
        "local_rank": local_rank,
        "node": node,
        "cores": number_list(mine),
        "binds_threads": binds_threads(),
        "numa_nodes": within if nodes else None,
        "gpu": gpu,
    }


def allowed_cores() -> list[int]:
    """The numbers of the cores in the affinity mask of this process."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


@cache
def binds_threads() -> bool:
    """Whether the system lets a thread of this process choose the core that it runs on."""
    if not hasattr(os, "sched_setaffinity"):
        return False
    mine = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(mine)})
        os.sched_setaffinity(0, mine)
    except OSError:
        return False
    return True


def numa_nodes(folder: Path = _NUMA) -> dict[str, str]:
    """The cores of every NUMA node of this host, as the kernel writes them (``0-31,64-95``); empty: not told."""
    told = {path.parent.name.removeprefix("node"): text_of(path) for path in folder.glob("node*/cpulist")}
    return {number: told[number] or "" for number in sorted(told, key=int) if told[number] is not None}


def of_hosts(hosts: Sequence[str], facts: Sequence[Mapping[str, JSON]]) -> dict[str, dict[str, JSON]]:
    """What the facts of every rank say of every host, to stand beside its own: ``machines`` that have its name, the
    ``node`` that Slurm has there, the ``variables`` that its ranks have alike, and its ``ranks`` with the rest.
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
                    "variables": {name: value for name, value in mine.items() if name not in alike},
                }
                for rank, mine in zip(ranks, variables, strict=True)
            ],
        }
    return found


def _variables(fact: Mapping[str, JSON]) -> dict[str, str]:
    found = fact.get("variables")
    return dict(found) if isinstance(found, Mapping) else {}


def _node(host: str, names: Mapping[str, str | None], variables: Mapping[str, str]) -> dict[str, JSON] | None:
    """What Slurm calls this host, its number in the job and the switches above it; None where it does not say.

    An mpiexec that starts its ranks over ssh hands them the variables of the host that it was started on. So a name
    that several hosts have is the name of none of them but of the one that is called so.
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
    """The switches above ``node`` from the top to its leaf, by SLURM_TOPOLOGY_ADDR (``spine.leaf1.n7``) and the kinds
    of its parts, SLURM_TOPOLOGY_ADDR_PATTERN (``switch.switch.node``); empty where Slurm knows none. None when they are
    not those of this node. Format: man srun, OUTPUT ENVIRONMENT VARIABLES.
    """
    if address is None or pattern is None:
        return None
    kinds = pattern.split(".")
    parts = address.split(".", len(kinds) - 1)  # the name of a node may have dots of its own
    return tuple(parts[:-1]) if len(parts) == len(kinds) and parts[-1] == node else None
