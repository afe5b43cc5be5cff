"""Counters of errors: what is read of the kernel's files and of NVML, and which of them moved."""

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest
from simulated.management import Driver, ManagedGpu, managed
from testing.devices import DeviceScript
from testing.fakes import FakeBackend, FakeWorld, Script
from testing.narrow import require

from busbw.measure.interference import InterferenceMonitor
from busbw.runs.records import CounterDelta
from busbw.system.counters import COUNTERS, CounterWatch
from busbw.system.device import DeviceConditions
from busbw.system.nvml import nvml_of

SNMP = "Ip: Forwarding RetransSegs\nIp: 1 {0}\nTcp: ActiveOpens RetransSegs InErrs\nTcp: 5 {1} {2}\n"
PORT = "sys/class/infiniband/mlx5_0/ports/1"

Moment = Callable[[], float]


def moments(*times: float) -> Moment:
    each = iter(times)
    return lambda: next(each)


def write(root: Path, values: dict[str, object]) -> None:
    for path, value in values.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(f"{value}\n", encoding="utf-8")


def seen(deltas: tuple[CounterDelta, ...]) -> dict[tuple[str, str, int | None], int]:
    return {(delta.name, delta.device, delta.port): delta.delta for delta in deltas}


def test_counters_that_moved_are_named_with_device_and_port(laid_out: Callable[[str], Path]) -> None:
    root = laid_out("sysfs/counters")
    write(root, {"proc/net/snmp": SNMP.format(1, 40, 0), "proc/net/netstat": "TcpExt: TCPTimeouts\nTcpExt: 9"})
    watch = CounterWatch(root, lambda: 0.0)
    assert not watch.moved()
    write(
        root,
        {
            f"{PORT}/counters/symbol_error": 13,
            f"{PORT}/counters/link_downed": 1,
            f"{PORT}/counters/port_xmit_data": 81985529999,  # traffic is no error
            f"{PORT}/hw_counters/lifespan": 99,
            f"{PORT}/hw_counters/local_ack_timeout_err": 7,
            f"{PORT}/hw_counters/out_of_sequence": 2,  # was reset: 5 before
            "sys/class/infiniband/mlx5_0/ports/2/hw_counters/np_cnp_sent": 1005,
            "sys/class/infiniband/rdmap16s27/ports/1/hw_counters/retrans_pkts": 8,
            "sys/class/net/eth0/statistics/rx_crc_errors": 4,
            "sys/class/net/eth0/carrier_down_count": 2,
            "sys/class/net/docker0/carrier_down_count": 5,  # with the last container
            "sys/devices/system/edac/mc/mc1/ue_count": 1,
            "proc/net/snmp": SNMP.format(1, 42, 1),
            "proc/net/netstat": "TcpExt: TCPTimeouts\nTcpExt: 10",
        },
    )
    assert seen(watch.moved()) == {
        ("symbol_error", "mlx5_0", 1): 12,
        ("link_downed", "mlx5_0", 1): 1,
        ("local_ack_timeout_err", "mlx5_0", 1): 2,
        ("np_cnp_sent", "mlx5_0", 2): 1000,
        ("retrans_pkts", "rdmap16s27", 1): 1,
        ("rx_crc_errors", "eth0", None): 1,
        ("carrier_down_count", "eth0", None): 1,
        ("ue_count", "mc1", None): 1,
        ("RetransSegs", "tcp", None): 2,
        ("InErrs", "tcp", None): 1,
        ("TCPTimeouts", "tcp", None): 1,
    }
    assert not watch.moved()


def test_every_counter_of_a_file_is_in_the_layouts_or_of_tcp(laid_out: Callable[[str], Path]) -> None:
    root = laid_out("sysfs/counters")
    of_files = {name for name, row in COUNTERS.items() if row.path is not None and row.path.startswith("sys")}
    assert of_files == {path.name for path in root.rglob("*") if path.is_file()} & set(COUNTERS)


def test_reading_takes_a_twentieth_of_the_time_at_most_and_loses_nothing(tmp_path: Path) -> None:
    write(tmp_path, {f"{PORT}/counters/symbol_error": 0})
    # A reading takes 1 s. The first question comes 10 s after it, the second 20 s, the third 1 s after the next.
    watch = CounterWatch(tmp_path, moments(0.0, 1.0, 11.0, 21.0, 21.0, 22.0, 23.0))
    write(tmp_path, {f"{PORT}/counters/symbol_error": 5})
    assert not watch.moved()
    assert seen(watch.moved()) == {("symbol_error", "mlx5_0", 1): 5}
    assert not watch.moved()


def test_the_kernel_counts_what_tcp_sends_again() -> None:
    """A full queue of connections drops the next one, whose start is repeated after a second."""
    watch = CounterWatch()
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        clients = [socket.socket() for _ in range(3)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        deadline = time.monotonic() + 10.0
        total = 0
        while not total and time.monotonic() < deadline:
            time.sleep(0.1)
            total = seen(watch.moved()).get(("TCPSynRetrans", "tcp", None), 0)
        for client in clients:
            client.close()
    assert total > 0


def test_a_host_is_read_once_and_each_gpu_by_its_rank(tmp_path: Path) -> None:
    write(tmp_path, {f"{PORT}/counters/symbol_error": 0})

    def work(backend: FakeBackend) -> object:
        counts: Iterator[Mapping[tuple[str, int | None], int]] = iter(
            [{("pcie_replay", None): 3}, {("pcie_replay", None): 3 + backend.rank, ("xid", 79): 1}]
        )
        backend.conditions = lambda: DeviceConditions(  # type: ignore[method-assign]
            backend.rank, None, counts=next(counts)
        )
        watch = CounterWatch(tmp_path, lambda: 0.0)
        monitor = InterferenceMonitor(backend, ("a", "a", "b"), counters=watch)
        backend.barrier()  # all have read
        if backend.rank == 0:
            write(tmp_path, {f"{PORT}/counters/symbol_error": 2})
        backend.barrier()
        return [(host.host, seen(host.counters)) for host in monitor.ended()]

    first, *others = FakeWorld(3, Script(device=DeviceScript())).run(work)
    assert first == others[0] == others[1]
    assert first == [
        ("a", {("symbol_error", "mlx5_0", 1): 2, ("xid", "GPU 0", 79): 1}
         | {("pcie_replay", "GPU 1", None): 1, ("xid", "GPU 1", 79): 1}),
        ("b", {("symbol_error", "mlx5_0", 1): 2, ("pcie_replay", "GPU 2", None): 2, ("xid", "GPU 2", 79): 1}),
    ]  # fmt: skip


GPU = ManagedGpu(fields={pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL: 2, pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER: 40})


@pytest.mark.parametrize("lacks", [(), ("nvmlEventSetCreate",)])
def test_counts_of_a_gpu_are_those_of_the_driver(lacks: tuple[str, ...]) -> None:
    driver = Driver([GPU], lacks=lacks)
    with managed(driver):
        nvml = require(nvml_of(GPU.uuid, None))
        driver.xids += [79, 94, 79]
        counts = nvml.conditions().counts
        again = nvml.conditions().counts
    own = {("ecc_uncorrected", None): 2, ("pcie_replay", None): 40}
    assert counts == again == (own if lacks else own | {("xid", 79): 2, ("xid", 94): 1})


def test_a_driver_without_fields_has_no_counts() -> None:
    with managed(Driver([replace(GPU, fields={})], lacks=["nvmlDeviceGetFieldValues"])):
        assert require(nvml_of(GPU.uuid, None)).conditions().counts == {}
