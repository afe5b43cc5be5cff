"""What the kernel, the tools of a host, Kubernetes and Open MPI say of links, devices, services."""

from pathlib import Path
from typing import Final

import pytest
from testing.logs import LOGS, read_log, refused

from busbw_analysis.data.readers.hosts import KINDS
from busbw_analysis.data.readers.nccl_info import ACTIONS

AER: Final = "kernel: pcieport 0000:03:04.0: PCIe Bus Error: severity="
FAIL: Final = "| {:<25} | {:<46} |"
LIMITED: Final = (
    "mlx5_core 0000:5e:00.0: {} Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x8 link at 0000:5d:00.0"
)
EVENT: Final = "  {}  {}  9m52s (x2 over 11m)  kubelet  {}"
DENIED: Final = (
    'Failed to create pod sandbox: [failed to set up: error adding container to network "macvlan": Link not found]'
)
SERVICE: Final = "Sep 18 03:19:01 n1 systemd[1]: nvidia-fabricmanager.service: "
NO_NODE: Final = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu. preemption: none"
LINES: Final = (
    (f"{AER}Uncorrectable (Fatal), type=Transaction Layer, (Receiver ID)", "pcie-fatal", "0000:03:04.0"),
    (f"{AER}Corrected, type=Data Link Layer, id=0008(Transmitter ID)", "pcie-errors", "Data Link"),
    (f"{LIMITED.format('63.008')} (capable of 252.048 Gb/s with 16.0 GT/s PCIe x16 link)", "pcie-degraded", "63.008"),
    ("    HW Thermal Slowdown               : Active", "gpu-throttled", "HW Thermal"),
    ("        SRAM Uncorrectable            : 3", "gpu-memory", "3"),
    ("    Remapping Failure Occurred        : Yes", "gpu-memory", "Remapping"),
    ("        State                         : In Progress", "no-fabric", "In Progress"),
    ("request to query NVSwitch failed with error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]", "no-nvswitch", "no"),
    ("| Warning    | GPU 0's NvLink link 3 is currently down   |", "nvlink-down", "3"),
    ("Link 5: Replay Errors: 12", "nvlink-errors", "12"),
    (FAIL.format("PCIe", "Fail - All"), "dcgm-failed", "PCIe"),
    (EVENT.format("Warning", "FailedScheduling", NO_NODE), "pod-unscheduled", "Insufficient"),
    (EVENT.format("Warning", "FailedCreatePodSandBox", DENIED), "pod-warning", "Link not found"),
    (f"{SERVICE}Control process exited, code=exited, status=1/FAILURE", "service-failed", "fabricmanager"),
    ("[1.2] [n1:9:0] ucp_worker.c:1775 UCX INFO 0x5 inter-node cfg#1 tag(tcp/eth0)", "ucx-tcp", "eth0"),
    ("nvidia 0000:07:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x3 address=0x8]", "iommu-faults", "FAULT"),
    ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0", "host-memory", "1 CE"),
    ("nfs: server store1 not responding, still trying", "storage", "store1"),
    ("blk_update_request: I/O error, dev sdb, sector 9", "storage", "sdb"),
    (
        "[Mon Oct 16 10:06:17 2017] LustreError: 11-0: x-MDT0000: obd_ping to node failed: rc = -107",
        "storage",
        "obd_ping",
    ),
    ("kernel: INFO: task sim:788 blocked for more than 120 seconds.", "blocked", "sim:788"),
    ("CPU3: Core temperature above threshold, cpu clock throttled", "hot", "Core"),
    ("   Reason=gres/gpu count reported lower (0 < 1) [slurm@2024-12-19T11:03:34]", "node-drained", "0 < 1"),
    ("[2025-07-04T00:54:23] update_node: node n8 reason set to: health check failed", "node-drained", "n8"),
    ("[0] MPI startup(): libfabric provider: tcp;ofi_rxm", "sockets", "tcp;ofi_rxm"),
    ("libfabric:85:17::core:core:fi_getinfo_():1392<warn> no provider", "libfabric-warns", "no provider"),
    ("job-master-0      0/2     CrashLoopBackOff   8     2m32s", "pod-warning", "job-master-0"),
    ("back-off 40s restarting failed container=pytorch pod=simple-0_x(2e06) {}", "pod-warning", "simple-0"),
    ("libibverbs: Warning: no userspace device-specific driver found for /sys/class/uverbs1", "no-driver", "uverbs1"),
    ("NVML: Unable to retrieve NVLink information as all links are inActive", "nvlink-idle", "none"),
    ("     rx_discards_phy: 5142", "nic-errors", "5142"),
    ("link mlx5_0/1 state DOWN physical_state DISABLED netdev eth0", "port-down", "mlx5_0"),
)
"""A line, its code, and what the text names."""
HEALTHY: Final = (
    "mlx5_core 0000:5e:00.0: 252.048 Gb/s available PCIe bandwidth (16.0 GT/s PCIe x16 link)",
    "    HW Thermal Slowdown               : Not Active",
    "    SW Power Cap                      : Active",
    "        SRAM Uncorrectable            : 0",
    "    Remapping Failure Occurred        : No",
    "        State                         : Completed",
    "Link 5: Replay Errors: 0",
    FAIL.format("PCIe", "Pass - All"),
    "| test_io | Fail |",
    EVENT.format("Normal ", "Pulled", "Successfully pulled image"),
    "Warning: this is slow",
    f"{SERVICE}Deactivated successfully.",
    "[1.2] [n1:9:0] ucp_worker.c:1775 UCX INFO 0x5 inter-node cfg#1 tag(rc_mlx5/mlx5_0:1 tcp/eth0)",
    "     rx_discards_phy: 0",
    "libfabric:85:17::core:core:fi_getinfo_():1392<info> no provider",
    "   Reason=none",
    "AMD-Vi: Interrupt remapping enabled",
    "DMAR: IOMMU enabled",
    "[0] MPI startup(): libfabric provider: mlx",
    "libibverbs: Warning: couldn't load driver 'libmana-rdmav34.so'",
    "job-worker-1      1/1     Running            0          3m1s",
    "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev eth0",
)


@pytest.mark.parametrize(("line", "code", "named"), LINES)
def test_a_fact_of_a_host_is_noted(line: str, code: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(f"{line}\n{(LOGS / 'nccl-tests-2.19.txt').read_text(encoding='utf-8')}", encoding="utf-8")
    notes = {note.code: note for note in read_log(path).notes}
    assert code in notes
    assert named in notes[code].text
    assert any(code in path for path in ACTIONS.values())


def test_every_kind_has_an_example() -> None:
    assert {kind.code for kind in KINDS} <= {code for _, code, _ in LINES}


@pytest.mark.parametrize("line", HEALTHY)
def test_a_healthy_host_has_no_fact(line: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(f"{line}\n{(LOGS / 'nccl-tests-2.19.txt').read_text(encoding='utf-8')}", encoding="utf-8")
    assert not read_log(path).notes


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (f"Why?\n{AER}Uncorrectable (Fatal), type=Transaction Layer, (Receiver ID)\n", "0000:03:04.0"),
        (f"{AER}Corrected, type=Data Link Layer, id=0008\n:  [12] Replay Timer Timeout\n", "Data Link"),
        ("    Fabric\n        State          : In Progress\n            Access Timeout Recovery   : N/A\n", "Fabric"),
        (f"Events:\n{EVENT.format('Warning', 'FailedCreatePodSandBox', DENIED)}\n", "Link not found"),
    ],
)
def test_a_fact_alone_is_the_answer(text: str, named: str, tmp_path: Path) -> None:
    error = refused(tmp_path, text)
    assert error.code == "messages"
    assert named in error.answer
    assert "Do" in dict(error.lines)


DEVICE: Final = "hca_id: mlx5_{}\n        port:   1\n            state:         PORT_{} (1)\n"


def test_a_port_that_is_down_is_the_answer_unless_another_is_active(tmp_path: Path) -> None:
    assert "mlx5_0" in refused(tmp_path, DEVICE.format(0, "DOWN")).answer
    both = refused(tmp_path, DEVICE.format(0, "DOWN") + DEVICE.format(1, "ACTIVE"))
    assert "mlx5_0" not in both.answer
    assert "mlx5_0" in dict(both.lines)["Also"]


RESOURCES: Final = (
    "#      resource 2  :  md 2  dev 0  flags -- self/memory\n#      resource 3  :  md 3  dev 1  flags -- tcp/ib0\n"
)


def test_ucx_that_lists_only_tcp_has_no_nic(tmp_path: Path) -> None:
    assert "ib0" in refused(tmp_path, RESOURCES).answer
    verbs = "#      resource 4  :  md 4  dev 2  flags -- rc_mlx5/mlx5_0:1\n"
    assert "ib0" not in refused(tmp_path, RESOURCES + verbs).answer


def matrix(cells: str) -> str:
    rows = [row.split() for row in cells.split("; ")]
    heading = "\t".join(["", *(f"GPU{number}" for number in range(len(rows)))])
    return "\n".join([heading, *("\t".join([f"GPU{number}", *row, "0-31"]) for number, row in enumerate(rows))]) + "\n"


@pytest.mark.parametrize(
    ("cells", "groups"),
    [
        ("X NV12 SYS SYS; NV12 X SYS SYS; SYS SYS X NV12; SYS SYS NV12 X", "0, 1; 2, 3"),
        ("X NV1 SYS; NV1 X NV1; SYS NV1 X", None),
        ("X NV12; NV12 X", None),
    ],
)
def test_groups_that_nvlink_joins_are_named(cells: str, groups: str | None, tmp_path: Path) -> None:
    error = refused(tmp_path, matrix(cells))
    assert ("within groups" in error.answer) == (groups is not None)
    assert (groups or "") in error.answer


RULE: Final = "-" * 74
PORTS: Final = (
    "WARNING: There is a device, but there are no\nactive ports detected. Check your cables.\n\n  Local host: gpu7\n"
)
ENDED: Final = "Primary job  terminated normally, but 1 process returned\na code.\n\n  Local host: gpu7\n"


def test_a_help_message_of_open_mpi_is_the_answer_if_nothing_else_is(tmp_path: Path) -> None:
    error = refused(tmp_path, f"$ mpirun ./a.out\n{RULE}\n{PORTS}{RULE}\nhello\n")
    assert "no active ports detected" in error.answer
    assert "host gpu7" in error.answer
    assert "Open MPI says" not in str(refused(tmp_path, f"{RULE}\n{ENDED}{RULE}\n"))
    failed = refused(
        tmp_path, f"{RULE}\n{PORTS}{RULE}\nmpirun noticed that process rank 0 exited on signal 9 (Killed)\n"
    )
    assert failed.code == "job-failed"
    assert "signal 9" in failed.answer


def test_a_word_in_a_help_message_is_no_hang(tmp_path: Path) -> None:
    text = "WARNING: A device of Open MPI was late. Receivers retry timeout\nerrors before.\n\n  Local host: n24\n"
    error = refused(tmp_path, f"{RULE}\n{text}{RULE}\n")
    assert (error.code, "n24" in error.answer) == ("messages", True)


def test_counters_of_a_nic_and_one_unused_port(tmp_path: Path) -> None:
    path = "/sys/class/infiniband/mlx5_0/ports/1/hw_counters/"
    assert "2705" in refused(tmp_path, f"{path}lifespan:12\n{path}local_ack_timeout_err:2705\n").answer
    link = "link mlx5_{}/1 state {} physical_state {} netdev eth{}\n"
    down, active = link.format(0, "DOWN", "DISABLED", 0), link.format(1, "ACTIVE", "LINK_UP", 1)
    assert "mlx5_0" in refused(tmp_path, down).answer
    assert "mlx5_0" not in refused(tmp_path, down + active).answer
    assert "mlx5_1" in refused(tmp_path, link.format(1, "DOWN", "POLLING", 1) + active).answer, "it flaps"


def test_a_timeout_of_a_test_is_none_of_nccl_tests(tmp_path: Path) -> None:
    assert refused(tmp_path, "3: Test timeout computed to be: 10000000\n").code == "not-a-log"


def test_what_failed_may_stand_in_the_prose_around_fences(tmp_path: Path) -> None:
    text = "{}\nSome facts:\n```\n{}```\n"
    active = DEVICE.format(0, "ACTIVE")
    failed = refused(tmp_path, text.format("Error: Transport retry count exceeded on mlx5_0:1/RoCE", active))
    assert (failed.code, "line 1" in failed.answer) == ("job-failed", True)
    assert refused(tmp_path, text.format("Why is it slow?", active)).code == "no-results"


def test_a_pod_that_found_a_node_is_no_fault(tmp_path: Path) -> None:
    failed = (
        "  Warning  FailedScheduling  5m  default-scheduler  0/2 nodes are available: 2 Insufficient nvidia.com/gpu.\n"
    )
    found = "  Normal   Scheduled  4m  default-scheduler  Successfully assigned default/w-0 to node1\n"
    assert "Insufficient" in refused(tmp_path, failed).answer
    assert "Insufficient" not in refused(tmp_path, failed + found).answer
