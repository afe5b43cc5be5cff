"""Facts of the machine: from allow-lists only, None where nothing can be read, and never a secret."""

import os
import socket
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import msgspec
import psutil
import pytest
from testing.fakes import FakeWorld

from busbw.measure.clock import CommonClock
from busbw.runs.facts import CpuFacts, HostFacts
from busbw.runs.placement import oversubscribed_hosts
from busbw.system import environment
from busbw.system.environment import by_host


def reading(monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    """Let the machine consist of ``files`` alone."""
    monkeypatch.setattr(environment, "text_of", lambda path: files.get(str(path)))


@pytest.mark.parametrize(
    ("kind", "files", "made_up"),
    [
        ("a TAP device", {"tun_flags": "0x1002", "iflink": "2", "ifindex": "2"}, True),
        ("one end of a pair", {"iflink": "7", "ifindex": "2"}, True),
        ("a card", {"device/vendor": "0x15b3", "iflink": "2", "ifindex": "2"}, False),
        ("a bond", {"bonding/slaves": "eth0", "iflink": "2", "ifindex": "2"}, False),
        ("a VLAN", {"lower_eth0/mtu": "1500", "iflink": "2", "ifindex": "5"}, False),
        ("what /sys does not know", {}, False),
    ],
)
def test_the_speed_of_an_interface_that_nothing_stands_behind_is_none(
    tmp_path: Path,
    kind: str,
    files: dict[str, str],
    made_up: bool,  # noqa: FBT001 - a column of the table
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert environment.speed_is_made_up(tmp_path) is made_up, kind


def test_the_facts_are_plain_values_that_a_file_can_hold() -> None:
    facts = environment.host_facts()
    assert msgspec.json.decode(msgspec.json.encode(facts), type=HostFacts) == facts
    for known in (facts.host, facts.cpu.usable_cores, facts.memory.available_bytes, facts.nics, facts.clock.source):
        assert known


def test_only_variables_of_the_list_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("NCCL_SECRET_TOKEN", "hush")
    monkeypatch.setenv("MY_PASSWORD", "hush")
    text = msgspec.json.encode(environment.host_facts()).decode()
    assert environment.host_facts().variables["NCCL_ALGO"] == "Ring"
    assert "hush" not in text


def test_a_machine_that_tells_nothing_still_has_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    reading(monkeypatch, {})
    monkeypatch.setattr(environment, "versions", lambda _packages: {})
    facts = environment.host_facts()
    assert facts.boot_id is None
    assert facts.thp is None
    assert facts.torch is None
    assert facts.virtualization is None
    assert facts.cpu.last_level_cache_bytes is None


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"/sys/fs/cgroup/cpu.max": "max 100000"}, 8),
        ({"/sys/fs/cgroup/cpu.max": "250000 100000"}, 2),
        ({"/sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
        ({"/sys/fs/cgroup/cpu.max": "9000000 100000"}, 8),
        ({"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 8),
        ({"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "300000", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}, 3),
    ],
)
def test_usable_cores_respect_affinity_and_quota(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, str], cores: int
) -> None:
    reading(monkeypatch, files)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)
    assert environment.usable_cores() == cores


def caches(cpus: Path, *cores: tuple[tuple[str, str | None, str], ...]) -> Path:
    """The caches of every core as the kernel lays them out: level, size and the cores that share it."""
    for core, known in enumerate(cores):
        for index, (level, size, shared) in enumerate(known):
            folder = cpus / f"cpu{core}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            (folder / "level").write_text(f"{level}\n")
            (folder / "shared_cpu_list").write_text(f"{shared}\n")
            if size is not None:
                (folder / "size").write_text(f"{size}\n")
    (cpus / "cpufreq").mkdir(parents=True, exist_ok=True)
    return cpus


def test_caches_of_a_host_are_counted_once_each_at_the_last_level(tmp_path: Path) -> None:
    def core(number: int, shared: str) -> tuple[tuple[str, str | None, str], ...]:
        own = str(number)
        # As two cores of a virtual machine on an EPYC showed them.
        return (("1", "48K", own), ("1", "32K", own), ("2", "1024K", own), ("3", "32768K", shared))

    as_one = caches(tmp_path / "one", core(0, "0-1"), core(1, "0-1"))
    assert environment.host_caches_bytes(as_one) == 32 << 20
    apart = caches(tmp_path / "two", *(core(number, "0-1" if number < 2 else "2-3") for number in range(4)))
    assert environment.host_caches_bytes(apart) == 64 << 20
    small = caches(tmp_path / "small", (("1", "32K", "0"), ("2", "2M", "0-1")), (("1", "32K", "1"), ("2", "2M", "0-1")))
    assert environment.host_caches_bytes(small) == 2 << 20, "the last level is the one that is there"


def test_caches_that_are_not_all_told_have_no_sum(tmp_path: Path) -> None:
    assert environment.host_caches_bytes(tmp_path / "absent") is None
    some = caches(tmp_path / "some", (("1", "32K", "0"), ("3", "16384K", "0")), (("1", "32K", "1"), ("3", None, "1")))
    assert environment.host_caches_bytes(some) is None


def test_ranks_that_are_bound_share_the_cores_of_their_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    masks = {0: {3}, os.getppid(): {0, 1, 2, 3}}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: masks.get(pid, {3}), raising=False)
    monkeypatch.setattr(environment, "_quota_cores", lambda: None)
    assert (environment.usable_cores(), environment.cores_of_launcher()) == (1, 4)
    monkeypatch.setattr(environment, "_quota_cores", lambda: 2.5)
    assert environment.cores_of_launcher() == 2


def test_a_launcher_that_is_bound_for_a_moment_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    siblings = [SimpleNamespace(pid=os.getpid()), SimpleNamespace(pid=-2), SimpleNamespace(pid=-3)]
    launcher = SimpleNamespace(pid=os.getppid(), children=lambda: siblings)
    monkeypatch.setattr(psutil, "Process", lambda _pid: launcher)
    masks = {0: {3}, os.getpid(): {3}, os.getppid(): {0}, -2: {1, 2}}

    def mask(pid: int) -> set[int]:
        if pid not in masks:
            raise ProcessLookupError(pid)
        return masks[pid]

    monkeypatch.setattr(os, "sched_getaffinity", mask, raising=False)
    monkeypatch.setattr(environment, "_quota_cores", lambda: None)
    assert environment.cores_of_launcher() == 4


def test_interfaces_without_a_speed_of_their_own_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = namedtuple("stats", "isup duplex speed mtu flags")  # noqa: PYI024 - psutil's own shape
    interfaces = {
        "lo": stats(True, 0, 0, 65536, "up,loopback,running"),
        "bond0": stats(True, 0, -1, 9000, "up,running"),
        "nic0": stats(False, 0, 25_000, 1500, "broadcast"),
    }
    monkeypatch.setattr(psutil, "net_if_stats", lambda: interfaces)
    nics = {nic.name: nic for nic in environment.nics()}
    assert nics["lo"].speed_bytes_per_second is None
    assert nics["lo"].kind == "loopback"
    assert nics["bond0"].speed_bytes_per_second is None
    assert nics["nic0"].speed_bytes_per_second == 25e9 / 8
    assert (nics["nic0"].up, nics["nic0"].mtu, nics["nic0"].kind) == (False, 1500, "virtual")


@pytest.mark.parametrize(
    ("boots", "shared"),
    [(["a"], True), (["a", "a"], True), (["a", "b"], False), ([None, None], False), (["a", None], False)],
)
def test_one_running_kernel_is_one_clock(boots: list[str | None], shared: bool) -> None:  # noqa: FBT001
    world = FakeWorld(len(boots))
    domains = environment.clock_domains([HostFacts(boot_id=boot) for boot in boots])
    assert CommonClock(world.backends[0], world.backends[0].clock, domains).shared is shared


@pytest.mark.parametrize(
    ("choices", "chosen"),
    [("always [madvise] never", "madvise"), ("[always] madvise never", "always"), ("odd", "odd"), (None, None)],
)
def test_the_choice_in_brackets_is_the_one(choices: str | None, chosen: str | None) -> None:
    assert environment._selected(choices) == chosen


@pytest.mark.parametrize(
    ("cpuinfo", "vendor", "said"),
    [
        ("flags\t: fpu hypervisor sse", "QEMU", "QEMU"),
        ("flags\t: fpu hypervisor sse", None, "hypervisor"),
        ("flags\t: fpu sse", "Dell Inc.", None),
        ("", None, None),
    ],
)
def test_a_hypervisor_shows_in_the_flags(
    monkeypatch: pytest.MonkeyPatch, cpuinfo: str, vendor: str | None, said: str | None
) -> None:
    files = {"/proc/cpuinfo": cpuinfo, **({"/sys/class/dmi/id/sys_vendor": vendor} if vendor else {})}
    reading(monkeypatch, files)
    assert environment._virtualization() == said


@pytest.mark.parametrize(
    ("cpuinfo", "model"), [("processor : 0\nmodel name\t: Fast 9000\n", "Fast 9000"), ("Model\t: Board 5\n", "Board 5")]
)
def test_the_model_of_the_cpu(monkeypatch: pytest.MonkeyPatch, cpuinfo: str, model: str) -> None:
    reading(monkeypatch, {"/proc/cpuinfo": cpuinfo})
    assert environment.cpu_model() == model


@pytest.mark.parametrize(
    ("host", "variables", "name"),
    [
        ("node7.cluster.example", {}, "node7"),
        ("box", {}, "box"),
        ("", {}, "machine"),
        ("n1.cluster.example", {"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "alps"}, "alps"),
        ("n1", {"SLURM_CLUSTER_NAME": "alps"}, "n1"),
        ("n1", {"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": ""}, "n1"),
    ],
)
def test_a_machine_is_named_by_its_host_and_within_a_job_of_slurm_by_the_cluster(
    monkeypatch: pytest.MonkeyPatch, host: str, variables: dict[str, str], name: str
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    for variable in ("SLURM_CLUSTER_NAME", "SLURM_JOB_ID"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert environment.machine_name() == name


def test_ranks_that_are_bound_to_cores_have_them_together() -> None:
    def bound(*cores: int, usable: int | None = None) -> HostFacts:
        return HostFacts(cpu=CpuFacts(usable_cores=usable or len(cores), allowed_cores=cores), kernel="6")

    hosts = ("a", "b", "a", "b")
    facts = [bound(0), bound(0, 1, 2, 3, usable=2), bound(1, 2), bound(0, 1, 2, 3, usable=2)]
    joined = by_host(hosts, facts)
    assert joined["a"].cpu == CpuFacts(usable_cores=3, allowed_cores=(0, 1, 2))
    assert joined["a"].kernel == "6"
    assert joined["b"].cpu.usable_cores == 2, "a quota is one for all"
    assert not oversubscribed_hosts(hosts, joined)


@pytest.mark.parametrize(
    ("hosts", "usable", "allowed", "cores"),
    [
        (("a", "a"), (8, 8), (8, 8), 4),
        (("a", "a", "b"), (8, 8, 2), (8, 8, 2), 2),
        (("a", "a"), (8, 8), (3, 5), 3),
        (("a", "a", "a"), (2, 2, 2), (2, 2, 2), 1),
    ],
)
def test_cores_of_a_rank_are_those_that_every_rank_has(
    hosts: tuple[str, ...], usable: tuple[int, ...], allowed: tuple[int, ...], cores: int
) -> None:
    of_hosts = [HostFacts(cpu=CpuFacts(usable_cores=number)) for number in usable]
    of_ranks = [HostFacts(cpu=CpuFacts(allowed_cores=tuple(range(number)))) for number in allowed]
    assert environment.cores_of_a_rank(hosts, of_hosts, of_ranks) == cores
