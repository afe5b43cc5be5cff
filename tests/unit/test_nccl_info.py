"""What NCCL and the tools beside it say of the way that data take, and that it becomes the cause."""

from pathlib import Path
from typing import Final

import pytest
from testing.logs import LOGS, read_log, refused
from testing.narrow import require

from busbw.errors import LogError
from busbw.system.catalog import catalogue
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.imported import LogFacts
from busbw_analysis.data.load import pool
from busbw_analysis.data.sources import find
from busbw_analysis.diagnosis.answer import Answer, answer_of

LINES: Final = (
    ("NET/IB : No device found.", "no-rdma"),
    ("NET/Socket : Using [0]eth0:10.0.0.1<0>", None),
    ("Using network Socket", "sockets"),
    ("Using network IB", None),
    ("NCCL_IB_DISABLE set by environment to 1.", "rdma-off"),
    ("NCCL_IB_DISABLE set by environment to 0.", None),
    ("NCCL_P2P_DISABLE set by environment to 1", "p2p-off"),
    ("NCCL_P2P_LEVEL set by environment to SYS", None),
    ("NCCL_SHM_DISABLE set by environment to 1.", "shm-off"),
    ("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "via-shm"),
    ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", None),
    ("Channel 00/0 : 15[7] -> 0[0] [receive] via NET/IB/0", "gdr-off"),
    ("Channel 00/0 : 15[7] -> 0[0] [receive] via NET/IB/0/GDRDMA", None),
    ("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", "gdr-off"),
    ("NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'", None),
    ("NVLS multicast support is not available on dev 0", None),
    ("NCCL_NVLS_ENABLE set by environment to 0.", "nvls-off"),
    ("NCCL_PXN_DISABLE set by environment to 1.", "pxn-off"),
    ("NCCL_ALGO set by environment to Tree", "choice-forced"),
    ("NCCL_MAX_NCHANNELS set by environment to 2.", "few-channels"),
    ("Call to connect returned Connection refused, retrying", "retries"),
    ("Channel 01 : 9[101d0] -> 0[101c0] [send] via NET/AWS Libfabric/0", "gdr-off"),
    ("Channel 01 : 9[101d0] -> 0[101c0] [send] via NET/AWS Libfabric/0/GDRDMA", None),
    ("Connected all rings, use ring PXN 0 GDR 0", "gdr-off"),
    ("Connected all rings, use ring PXN 0 GDR 1", None),
    ("HINT: In many cases this error occurs when NICs are not cross-rail connected.", "nccl-hint"),
    ("NET/OFI Selected Provider is tcp (found 1 nics)", "sockets"),
    ("NET/OFI Selected Provider is efa (found 4 nics)", None),
    ("NET/OFI aws-ofi-nccl initialization failed", "no-rdma"),
    ("Bootstrap : Using docker0:172.17.0.1<0>", "wrong-interface"),
    ("Bootstrap : Using bond0:10.0.0.1<0>", None),
    ("Bootstrap: Using lo:127.0.0.1<0>", "wrong-interface"),
    ("Bootstrap : Using br-ex:10.0.0.1<0>", None),
    ("NCCL_IB_HCA set to mlx5_0", "nics-chosen"),
    ("NCCL_IB_HCA set to mlx5_0,mlx5_1", None),
    ("NCCL_IB_HCA set to mlx5", None),
    ("P2P is disabled between connected GPUs 1 and 0. You can repress this message", "no-peers"),
    ("GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", "gdr-off"),
    ("ncclSocketTryConnect: connect to 10.0.0.1<4> returned Connection timed out, retrying (1/34)", "retries"),
)


WARNINGS: Final = (
    ("Failed to open libibverbs.so[.1]", "no-rdma", True),
    ("NET/IB : Unable to open device erdma_1", "nic-closed", True),
    ("P2P is disabled between connected GPUs 1 and 0. You can repress this message", "no-peers", True),
    ("NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129", "rdma-failed", False),
    ("NET/IB: Got completion from peer 10.0.0.1<5> with status=12 opcode=1 len=0 vendor err 129", "rdma-failed", False),
    ("Error: failed to extend /dev/shm/nccl-x to 9637892 bytes, no space left", "shm-full", False),
    ("Call to ibv_modify_qp failed with error Connection timed out", "rdma-failed", False),
    ("Call to ibv_reg_mr failed with error Cannot allocate memory", "locked-memory", False),
    ("socketProgress: Connection closed by remote peer node2<42830>", "peer-gone", False),
    ("P2P is disabled between NVLINK connected GPUs 1 and 0. This should not be the case", "no-peers", True),
    ('Missing "iommu=pt" from kernel command line which can lead to system instablity or hang!', "no-iommu-pt", True),
    ("NUMA auto balancing enabled which can lead to variability in the RCCL performance!", "numa-balancing", True),
    ("Cuda failure 802 'system not yet initialized'", "no-fabric", False),
    ("Cuda failure 711 'peer mapping resources exhausted'", "too-many-peers", False),
    ("Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000", "gpu-shared", False),
)
"""What NCCL warns of, its code, and whether the job goes on."""


def pasted(folder: Path, text: str) -> Path:
    path = folder / "log"
    path.write_text(text + (LOGS / "nccl-tests-2.19.txt").read_text(encoding="utf-8"), encoding="utf-8")
    return path


@pytest.mark.parametrize(("line", "code"), LINES)
def test_a_line_of_nccl_is_evidence(line: str, code: str | None, tmp_path: Path) -> None:
    known = {note.code for note in read_log(LOGS / "nccl-tests-2.19.txt").notes}
    notes = {note.code: note for note in read_log(pasted(tmp_path, f"node1:4:5 [0] NCCL INFO {line}\n")).notes}
    assert notes.keys() - known == ({code} if code else set())
    assert code is None or notes[code].line == 1


@pytest.mark.parametrize(("line", "code", "goes_on"), WARNINGS)
def test_a_warning_of_nccl_is_evidence_and_in_the_refusal_of_a_job(
    line: str, code: str, tmp_path: Path, *, goes_on: bool
) -> None:
    warning = f"node1:4:5 [0] misc/x.cc:63 NCCL WARN {line}\n"
    assert code in {note.code for note in read_log(pasted(tmp_path, warning)).notes}
    path = tmp_path / "log"
    path.write_text(f"node1:4:5 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n{warning}", encoding="utf-8")
    with pytest.raises(LogError) as refused:
        read_log(path)
    assert refused.value.code == ("messages" if goes_on else "job-failed")
    assert "(line 2)" in str(refused.value)


STARTS: Final = "".join(
    f"node1:4:{rank} [{rank}] NCCL INFO comm 0x5 rank {rank} nranks 2 cudaDev 0 nNodes {{0}} commId 0x6 - Init START\n"
    for rank in (0, 1)
)


def test_a_fault_that_a_log_shows_comes_before_the_usual_causes_of_a_hang(tmp_path: Path) -> None:
    """NVIDIA/nccl#529: a tunnel that every kernel has."""
    tunnel = "node1:4:5 [0] NCCL INFO Bootstrap : Using [0]ip6tnl0:fe80::745d<0>\n"
    error = refused(tmp_path, f"{tunnel}{STARTS.format(2)}")
    assert error.code == "hang"
    why, do = error.lines[:2]
    assert why[1].startswith("NCCL takes the interface ip6tnl0, which other hosts do not reach (line 1); else usually")
    assert do[1].startswith("name the right one (NCCL_SOCKET_IFNAME); else ")
    assert "Also" not in dict(error.lines)
    usual = refused(tmp_path, f"{tunnel.replace('ip6tnl0', 'eth0')}{STARTS.format(2)}").lines[0]
    assert usual[1].startswith("usually")


def test_messages_name_a_fault_that_they_show_and_what_to_do(tmp_path: Path) -> None:
    """ROCm/rccl#1026."""
    missing = (
        '[0] src/init.cpp:1 NCCL WARN Missing "HSA_FORCE_FINE_GRAIN_PCIE=1" from environment which can lead to hang!\n'
    )
    up = "node1:4:5 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"
    error = refused(tmp_path, f"{missing}{up}")
    assert error.code == "messages"
    assert "HSA_FORCE_FINE_GRAIN_PCIE=1 is not set" in error.answer
    assert dict(error.lines)["Do"].startswith("set it (mpirun -x); add the rows")
    assert dict(refused(tmp_path, up).lines)["Do"].startswith("add the rows")


def test_a_fault_alone_is_named(tmp_path: Path) -> None:
    """horovod/horovod#1408."""
    error = refused(tmp_path, "node1:4:5 NCCL INFO Call to connect returned Connection refused, retrying\n")
    assert error.code == "messages"
    assert "connect failed and was tried again (line 1)" in error.answer
    assert dict(error.lines)["Do"].startswith("check that connection")


@pytest.mark.parametrize(("nodes", "advised"), [(1, False), (2, True)])
def test_a_network_is_advised_only_to_jobs_on_several_hosts(nodes: int, tmp_path: Path, *, advised: bool) -> None:
    away = "node1:4:5 [0] NCCL INFO NET/IB : No device found.\n"
    ready = STARTS.format(nodes).replace("START", "COMPLETE")
    assert any("ibv_devices" in text for _, text in refused(tmp_path, f"{away}{ready}").lines) is advised


def test_a_wrong_interface_explains_a_connection_that_fails_and_no_full_gpu(tmp_path: Path) -> None:
    """horovod/horovod#584."""
    loopback = "node1:4:5 [0] NCCL INFO NET : Using interface lo:127.0.0.1<0>\n"
    away = "node1:4:5 [0] include/socket.h:361 NCCL WARN Call to connect timeout : Connection refused\n"
    why, do = refused(tmp_path, f"{loopback}{away}").lines[:2]
    assert why[1].startswith("NCCL takes the interface lo, which other hosts do not reach (line 1); else")
    assert do[1].startswith("name the right one (NCCL_SOCKET_IFNAME)")
    error = refused(tmp_path, f"{loopback}RuntimeError: CUDA out of memory\n")
    assert error.lines[0][1].startswith("usually")
    assert "interface lo" in dict(error.lines)["Also"]


def test_the_links_of_a_host_alone_say_what_to_expect(tmp_path: Path) -> None:
    """NVIDIA/nccl#1530."""
    links = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \t{0}\t0-15\nGPU1\t{0}\t X \t0-15\n"
    assert "PCI Express" in dict(refused(tmp_path, links.format("SYS")).lines)["Do"]
    assert "Also" not in dict(refused(tmp_path, links.format("NV4")).lines)


@pytest.mark.parametrize("above", ["", "The size of messages is 1 GiB and the bandwidth only 9 GB/s.\n"])
def test_a_command_without_results_still_says_what_it_sets(above: str, tmp_path: Path) -> None:
    """NVIDIA/nccl#700."""
    command = f"{above}mpirun -np 16 -x NCCL_IB_HCA={{}} ./build/all_reduce_perf -b 1G -e 8G -f 2\n"
    one = refused(tmp_path, command.format("mlx5_0"))
    assert one.code == "not-a-log"
    assert "leaves NCCL one NIC" in dict(one.lines)["Also"]
    assert refused(tmp_path, command.format("mlx5_0,mlx5_1")).lines == ()


def test_the_last_error_of_nccl_is_quoted(tmp_path: Path) -> None:
    """vllm-project/vllm#4062."""
    text = "ncclInternalError: Internal check failed.\nLast error:\nSomething that nobody knows\n"
    assert dict(refused(tmp_path, text).lines)["Error"] == "Something that nobody knows"
    of_jax = "failed: unhandled system error. Last NCCL warning(error) log entry (may be unrelated) 'Accept failed'.\n"
    assert "Accept failed" in dict(refused(tmp_path, of_jax).lines)["Error"]
    others = refused(tmp_path, text.replace("Last error", "Last words")).lines
    assert "nobody" not in dict(others)["Error"]


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ("GPU0\t X \tPHB\tSYS\t0-31\t0\t\tN/A", "no-nvlink"),
        ("GPU1\tPIX\t X \t0-31", "no-nvlink"),
        ("GPU0\t X \tNV18\tPXB\tSYS\t0-55", None),
        ("GPU0\tGPU1\tNIC0\tCPU Affinity", None),
        ("Device=0 CANNOT Access Peer Device=1", "no-peers"),
        ("Device=0 CAN Access Peer Device=1", None),
        ("\t\tACSCtl: SrcValid+ TransBlk- ReqRedir-", "acs-on"),
        ("\t\tACSCtl: SrcValid- TransBlk- ReqRedir-", None),
        ("GPU 0: NVIDIA H100 80GB HBM3", None),
    ],
)
def test_a_row_of_topo_without_nvlink_is_evidence(row: str, code: str | None, tmp_path: Path) -> None:
    notes = {note.code for note in read_log(pasted(tmp_path, f"{row}\n")).notes}
    assert notes == ({code} if code else set())


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("mpirun -np 2 -x NCCL_IB_DISABLE=1 ./all_reduce_perf -b 8", "rdma-off"),
        ("NCCL_P2P_DISABLE=1 ./all_reduce_perf -b 8 -g 2", "p2p-off"),
        ("export NCCL_SHM_DISABLE=1", "shm-off"),
        ("mpirun -np 2 -x NCCL_IB_DISABLE=0 ./all_reduce_perf -b 8", None),
        ("I also tried NCCL_P2P_DISABLE=1 with the same result", None),
        ("        D D D D D D", "nvlink-down"),
        ("        U U U U U U", None),
        ("\t Link 3: <inactive>", "nvlink-down"),
    ],
)
def test_a_command_line_and_the_state_of_links_are_evidence(line: str, code: str | None, tmp_path: Path) -> None:
    assert {note.code for note in read_log(pasted(tmp_path, f"{line}\n")).notes} == ({code} if code else set())


def test_a_link_that_lspci_calls_downgraded_is_evidence(tmp_path: Path) -> None:
    text = "\t\tLnkCap: Port #0, Speed 32GT/s, Width x16\n\t\tLnkSta: Speed 8GT/s (downgraded), Width x16\n"
    assert "pcie-degraded" in {note.code for note in read_log(pasted(tmp_path, text)).notes}
    plain = text.replace(" (downgraded)", "")
    express = "\tCapabilities: [70] Express (v2) {}, MSI 00\n"
    assert "pcie-degraded" in {
        note.code for note in read_log(pasted(tmp_path, express.format("Endpoint") + plain)).notes
    }
    for port in (express.format("Root Port (Slot+)"), ""):  # has what is behind it
        assert not read_log(pasted(tmp_path, port + plain)).notes
    assert not read_log(pasted(tmp_path, express.format("Endpoint") + plain.replace("x16\n", "x0\n"))).notes
    assert not read_log(pasted(tmp_path, text.replace("32GT/s", "8GT/s").replace(" (downgraded)", ""))).notes
    resting = text.replace("8GT/s", "2.5GT/s")
    assert {note.code for note in read_log(pasted(tmp_path, resting)).notes} == {"pcie-rest"}, "as at rest"
    narrow = resting.replace("Width x16\n", "Width x8 (downgraded)\n")
    assert "pcie-degraded" in {note.code for note in read_log(pasted(tmp_path, narrow)).notes}


@pytest.mark.parametrize(
    "text",
    [
        "n1:4:5 [0] NCCL INFO NET/IB: [{0}] mlx5_{0}:uverbs{0}:1/IB provider=Mlx5 speed=200000 context=0x5 ar=1\n",
        "CA 'mlx5_{0}'\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n\t\tRate: 200\n",
    ],
)
def test_ports_in_a_log_are_the_peak_of_its_hosts(text: str, tmp_path: Path) -> None:
    path = pasted(tmp_path, "".join(text.format(number) for number in range(4)))
    assert [port.bytes_per_second for port in read_log(path).ports] == [25e9] * 4
    (curve, *_) = judge(pool((find(tmp_path, str(path)).read(),))).curves
    assert curve.series.key.op == "all_reduce"
    peak = curve.peak
    assert getattr(peak, "level", None) == "network"


def test_a_port_of_ibstat_has_its_layer_and_a_retry_its_call(tmp_path: Path) -> None:
    text = "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n\t\tRate: 100\n\t\tLink layer: InfiniBand\n"
    (port,) = read_log(pasted(tmp_path, text)).ports
    assert (port.layer, port.bytes_per_second) == ("InfiniBand", 12.5e9)
    notes = read_log(pasted(tmp_path, "n1:4:51 [0] NCCL INFO Call to connect returned Refused, retrying\n")).notes
    assert [note.text for note in notes if note.code == "retries"] == ["connect failed and was tried again"]


def test_a_port_that_is_down_is_evidence(tmp_path: Path) -> None:
    text = "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Down\n\t\tPhysical state: Disabled\n\t\tRate: 10\n"
    log = read_log(pasted(tmp_path, text))
    assert not log.ports
    assert "port-down" in {note.code for note in log.notes}


def answer(folder: Path, text: str, **given: str) -> Answer:
    path = pasted(folder, text)
    facts = LogFacts.stated(given, catalogue())
    return answer_of(judge(pool((find(folder, str(path)).read(facts),))))


def test_the_network_that_nccl_uses_is_the_cause(tmp_path: Path) -> None:
    """365 GB/s over two hosts are slow over 64 NICs of 400 Gb/s."""
    text = "node1:4:5 [0] NCCL INFO NET/IB : No device found.\nnode1:4:5 [0] NCCL INFO Using network Socket\n"
    assert [cause.code for cause in answer(tmp_path, text, nics="64x400Gb/s").causes] == ["network-path"]
    assert not answer(tmp_path, "node1:4:5 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1\n").causes
    assert require(answer(tmp_path, text)).causes[0].code == "network-path"
    assert answer(tmp_path, text).headline.startswith("The path over the network may be slow (see Why). Not judged")


def test_evidence_is_the_cause_where_hosts_are_unknown(tmp_path: Path) -> None:
    path = tmp_path / "log"
    text = "n1:4:5 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/4\n"
    path.write_text(f"{text}67108864 16777216 float sum -1 12210.1 5.50 5.50 0 12150.0 5.52 5.52 0\n", encoding="utf-8")
    causes = answer_of(judge(pool((find(tmp_path, str(path)).read(),)))).causes
    assert [cause.code for cause in causes] == ["network-path"]


def test_a_single_rank_is_the_cause_of_no_bus_bandwidth(tmp_path: Path) -> None:
    path = tmp_path / "log"
    place = "all_reduce_perf -b 8M -g 1\n#  Rank  0 Group  0 Pid    127 on worker-0 device  0 [0x00] NVIDIA A10G\n"
    head = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
    path.write_text(
        f"{place}{head}8388608 2097152 float sum -1 43.66 192.13 0.00 0 0.31 27060 0.00 0\n", encoding="utf-8"
    )
    causes = answer_of(judge(pool((find(tmp_path, str(path)).read(),)))).causes
    assert [cause.code for cause in causes] == ["one-rank"]
