"""What a paste leaves out or hides, and what the user says: deduced, given, or refused, each with its reason."""

import json
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import psutil
import pytest
from click.testing import CliRunner
from testing.logs import LOGS, read_log

from busbw.backends import BACKENDS
from busbw.cli.main import main
from busbw.errors import BusbwError, LogError
from busbw.runs.store import StoredRun
from busbw.system.catalog import catalogue
from busbw_analysis.data.imported import LogFacts
from busbw_analysis.data.readers.deduce import said
from busbw_analysis.data.readers.log import Said
from busbw_analysis.data.readers.nccl_info import remedy
from busbw_analysis.data.readers.paste import of_json
from busbw_analysis.data.sources import find, logs_in

HEADER = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
ROW = "8589934592 2147483648 float sum -1 41644 206.27 360.97 0 40903 210.01 367.51 0\n"
"""8 GiB in 41.6 ms: busbw is 7/4 of algbw, so 8 ranks."""
END = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 364.24\n"


def ranks_on(*places: tuple[str, int], gpu: str = "AMD Instinct MI350X") -> str:
    """The lines of the tool that list a rank on each host and device."""
    return "# Using devices\n" + "".join(
        f"#  Rank {rank:2d} Group  0 Pid {100 + rank} on {host} device {device:2d} [0000:{16 + device:02x}:00] {gpu}\n"
        for rank, (host, device) in enumerate(places)
    )


def read(folder: Path, text: str, **given: Any) -> StoredRun:  # noqa: ANN401 - options
    path = folder / "log"
    path.write_text(text, encoding="utf-8")
    return find(folder, str(path)).read(LogFacts.stated(given, catalogue())).stored


def error_of(folder: Path, text: str) -> LogError:
    with pytest.raises(LogError) as refused:
        read(folder, text)
    return refused.value


def codes(stored: StoredRun) -> set[str]:
    assert stored.run.imported is not None
    return {note.code for note in stored.run.imported.notes}


def test_ranks_cut_from_the_list_follow_from_busbw(tmp_path: Path) -> None:
    settings = "# nThread 1 nGpus 8 minBytes 8589934592 maxBytes 8589934592 step: 2(factor) warmup iters: 5\n"
    text = f"{settings}{ranks_on(('node1', 0), ('node1', 1))}...\n{HEADER}{ROW}{END}"
    for given in ({}, {"ranks": 8}):
        run = read(tmp_path, text, **given).run
        assert run.hosts == ("node1",) * 8
        assert [gpu.name for gpu in run.environments["node1"].pci.gpus] == ["AMD Instinct MI350X"] * 8
        assert {case.ranks for case in run.cases} == {8}
    without = read(tmp_path, f"{ranks_on(('node1', 0), ('node1', 1))}{HEADER}{ROW}{END}")
    assert {case.ranks for case in without.run.cases} == {8}
    assert "deduced" in codes(without)


def test_a_command_of_several_lines_gives_ranks_and_hosts(tmp_path: Path) -> None:
    """ROCm/rccl#1490: srun starts 4 times 8 tasks, and its line does not name the tool."""
    command = "srun --nodes=1 --ntasks-per-node=8 --label \\\n    -- all_reduce_perf -b 64K -e 4G -f 2 -g 1\n"
    stored = read(tmp_path, f"```\n{command}```\n```\n{HEADER}{ROW}{END}```\n")
    assert (len(stored.run.hosts), {case.ranks for case in stored.run.cases}) == (8, {8})
    assert "one-rank" not in codes(stored)


SLOW: Final = ROW.replace("41644 206.27 360.97", "62466 137.51 240.65").replace(
    "40903 210.01 367.51", "61355 140.00 245.00"
)
"""1.5 times the time of ``ROW``."""


@pytest.mark.parametrize(
    ("first", "second", "settings"),
    [
        ("Before:\n", "I changed the driver. After:\n", {"Before", "After"}),
        ("", "After:\n", {None, "After"}),
        ("> <details>\n> <summary>old</summary>\n", "<details><summary>new</summary>\n\n", {"old", "new"}),
        ("Run 1\n", "Run 2\n", {None}),
        ("I got ncclSystemError before\n", "After:\n", {"I got ncclSystemError before", "After"}),
    ],
)
def test_tables_below_other_texts_are_no_launches(
    first: str, second: str, settings: set[str | None], tmp_path: Path
) -> None:
    stored = read(tmp_path, f"{first}```\n{HEADER}{ROW}{END}```\n{second}```\n{HEADER}{SLOW}{END}```\n")
    assert {case.tool_op for case in stored.run.cases} == settings
    assert stored.run.imported is not None
    said = [note.text for note in stored.run.imported.notes if note.code == "tables-apart"]
    assert ["1.5 times" in text for text in said] == [True] * (len(settings) > 1)


@pytest.mark.parametrize(
    ("first", "second", "settings"),
    [
        ("NCCL_CROSS_NIC=0\n", "\nNCCL_CROSS_NIC=1\n", {"NCCL_CROSS_NIC=0", "NCCL_CROSS_NIC=1"}),
        ("Before:\n", "After the update:\n", {"Before", "After the update"}),
        ("", "~> module load mpich/git\n", {None, "module load mpich/git"}),
        ("Run 1:\n", "Run 2:\n", {None}),
    ],
)
def test_lines_of_a_log_that_say_what_was_changed_tell_tables_apart(
    first: str, second: str, settings: set[str | None], tmp_path: Path
) -> None:
    """NVIDIA/nccl#1411, without a fence between the tables."""
    stored = read(tmp_path, f"{first}{HEADER}{ROW}{second}{HEADER}{SLOW}{END}")
    assert {case.tool_op for case in stored.run.cases} == settings


def test_the_factor_of_tables_that_only_print_rates_is_said(tmp_path: Path) -> None:
    """openucx/ucx#7245: OSU's bandwidths with two versions of UCX."""
    head = "# OSU MPI Bi-Directional Bandwidth Test v5.7\n# Size      Bandwidth (MB/s)\n"
    rows = "".join(f"{1 << power} {100 << power}.00\n" for power in range(4))
    halves = "".join(f"{1 << power} {50 << power}.00\n" for power in range(4))
    stored = read(tmp_path, f"{head}{rows}{head}{halves}")
    assert stored.run.imported is not None
    (note,) = (note for note in stored.run.imported.notes if note.code == "tables-apart")
    assert " 2 times " in note.text


def test_a_gpu_that_is_listed_twice_is_on_another_host(tmp_path: Path) -> None:
    places = [("<ip>", device) for _ in range(2) for device in range(4)]
    stored = read(tmp_path, f"{ranks_on(*places)}{HEADER}{ROW}{END}")
    assert len(set(stored.run.hosts)) == 2
    assert stored.run.hosts[0] != stored.run.hosts[4]
    assert "deduced" in codes(stored)
    assert read(tmp_path, f"{ranks_on(*places)}{HEADER}{ROW}{END}", hosts=2).run.hosts == stored.run.hosts


@pytest.mark.parametrize("devices", [(0, 0), (0, 1, 0)])
def test_ranks_that_share_gpus_are_not_taken_for_hosts(devices: tuple[int, ...], tmp_path: Path) -> None:
    rates = {2: "206.27 206.27 0", 3: "206.27 275.03 0"}[len(devices)]
    row = f"8589934592 2147483648 float sum -1 41644 {rates} 41644 {rates}\n"
    text = f"{ranks_on(*(('node1', device) for device in devices))}{HEADER}{row}{END}"
    assert set(read(tmp_path, text, op="all_reduce").run.hosts) == {"node1"}


def test_hosts_that_the_user_gives_win_over_one_name_but_not_over_several(tmp_path: Path) -> None:
    hidden = ranks_on(*(("HOST", rank) for rank in range(8)))
    assert len(set(read(tmp_path, f"{hidden}{HEADER}{ROW}{END}", hosts=2).run.hosts)) == 2
    named = ranks_on(*((f"node{rank // 4}", rank % 4) for rank in range(8)))
    with pytest.raises(BusbwError) as refused:
        read(tmp_path, f"{named}{HEADER}{ROW}{END}", hosts=4)
    assert refused.value.code == "contradiction"


def test_a_host_name_may_have_a_space(tmp_path: Path) -> None:
    places = ranks_on(*(("NODE A", rank) for rank in range(8)))
    assert set(read(tmp_path, f"{places}{HEADER}{ROW}{END}").run.hosts) == {"NODE A"}


@pytest.mark.parametrize(
    ("command", "hosts"),
    [
        ("./all_reduce_perf -b 8G -e 8G -g 8", None),
        ("mpirun -np 8 ./all_reduce_perf -b 8G -e 8G -g 1", None),
        ("srun -N 2 --ntasks-per-node=4 all_reduce_perf -b 8G -e 8G", 2),
        ("srun -N2 -n 8 all_reduce_perf -b 8G -e 8G", 2),
        ("./all_reduce_perf -g 8 -n 20 | tail -n 30", None),
        ("mpirun -np 8 -H a:4,b:4 ./all_reduce_perf -g 1 -n 100", 2),
        ("numactl -N 0 -m 0 ./all_reduce_perf -b 8 -g 8", None),
        ("nice -n 10 ./all_reduce_perf -g 8", None),
        ("nice mpirun -np 8 ./all_reduce_perf -g 1", None),
        ("mpirun -np 8 -N 4 ./all_reduce_perf -g 1", 2),
        ("mpirun -H n1,n2 --npernode 4 ./all_reduce_perf -g 1", 2),
    ],
)
def test_a_command_line_says_how_many_ranks_and_hosts(command: str, hosts: int | None, tmp_path: Path) -> None:
    """busbw and algbw of 0.01 GB/s leave open how many ranks there are."""
    row = "1024 256 float sum -1 41.6 0.02 0.04 0 41.6 0.02 0.04 0\n"
    stored = read(tmp_path, f"$ {command}\n{HEADER}{row}{END}")
    assert {case.ranks for case in stored.run.cases} == {8}
    assert len(set(stored.run.hosts)) == (hosts or 1)


def test_busbw_over_algbw_wins_over_a_command_line(tmp_path: Path) -> None:
    stored = read(tmp_path, f"$ mpirun -np 16 ./all_reduce_perf -g 1\n{HEADER}{ROW}{END}")
    assert {case.ranks for case in stored.run.cases} == {8}
    assert "deduced" in codes(stored)


HEAD = "#bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"


def test_the_command_line_names_the_test_whose_title_was_left_out(tmp_path: Path) -> None:
    text = f"I run numactl -C 64 ib_send_bw -d mlx5_0 -b\n\n{HEAD}1024 1000 0.00 **45.42** 5.68\n"
    (case,) = read(tmp_path, text).run.cases
    assert (case.op, case.tool_op) == ("pair_bidir", "Send Bidirectional BW Test")


@pytest.mark.parametrize(
    ("text", "code", "why"),
    [
        (f"{HEAD}65536 -1852466176 0.00 -4.73 -0.009026\n", "no-results", "negative"),
        ("Running a.\nnvbandwidth Version: v0.2\nWaiving device_to_device_memcpy_write_ce.\n", "no-results", "Waiving"),
        (END, "no-results", "average of all sizes"),
        ("Count  Size   Time, us\n  65536   262144   76.46   72.62   82.30\n", "no-header", "Collective"),
        ("Unidirectional copy peak bandwidth GB/s\nD/D 0 1\n0 N/A 28.1\n", "no-header", "list of devices"),
        (
            "n:1:2 [0] a.cc:9 NCCL WARN Cuda failure 711 'x y'\nTest NCCL failure a.cu:5 'unhandled cuda error'\n",
            "job-failed",
            "'x y'",
        ),
        (
            "ncclUnhandledCudaError: Call to CUDA function failed.\nn:1:2 [0] NCCL INFO a\nCuda failure 802 'x y'\n",
            "job-failed",
            "'x y'",
        ),
        ("Comm. Op            Message Size        Count\nbroadcast\n  0B  1  0.3\n", "not-a-log", "DeepSpeed"),
        ("algo throughput: 711.1111 bps, 711.1111 Gbps\n", "not-a-log", "no size"),
        ("Collective sequence number: 7 has missing ranks [0]\ncollective: nccl:b\n", "hang", r"missing ranks \[0\]"),
        ("Not all ranks joining collective 5 at entry 4\n  missing ranks: {1}\n", "hang", r"collective 5; missing .*1"),
        ("collective: nccl:all_reduce\nerror msg: Culprit rank 5; Error type: SIZE\n", "hang", "Culprit rank 5"),
        ("\t\tLnkSta: Speed 8GT/s (downgraded), Width x16\n", "messages", "runs at 8 GT/s"),
        (f"{HEADER}1024 4 float none -1 3343.1 0.00 0.00 0 560.6 0.00 0.00 N/A\n", "no-op", "--ranks"),  # msccl#48
        (  # ofiwg/libfabric#6480
            (
                "# OSU MPI Latency Test v5.6.2    [1,0]<stdout>:# OSU MPI Latency Test v5.6.2\n"
                "# Size          Latency (us)    [1,0]<stdout>:# Size          Latency (us)\n"
                "1048576                59.26    [1,0]<stdout>:1048576                71.11\n"
            ),
            "ambiguous-heading",
            "side by side",
        ),
    ],
)
def test_a_paste_without_results_says_why(text: str, code: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(LogError, match=why) as refused:
        read(tmp_path, text)
    assert refused.value.code == code


GLOO = """
Algorithm: allreduce_ring
Options: processes=2, inputs=1
    size (B)   elements   min (us)   p50 (us)   max (us)   avg (GB/s)
    400        100        113        120        400        0.003
"""
SGLANG = """
all_reduce, 4 ranks
    Size  Custom(ms)  Symm(ms)
    512K    0.037       0.055
      1M    0.044       0.045
"""
NVSHMEM = """
#reduction_on_stream
size(B)  count   type  redop  latency(us)  algbw(GB/s)  busbw(GB/s)
1048576  262144  int   sum    30.1         34.836       60.963
"""


STATED = """
world_size=8
AllReduce 1 MB: 0.060 ms, 17.48 GB/s
AllReduce 16 MB: 0.150 ms, 111.85 GB/s
"""
MEGATRON = """
torchrun --nproc_per_node 8 --nnodes 1 ./megatron-allreduce.py
size(MB)  tavg(usec)  avgbw(GB/sec)
1.00      121.5       14.41
100.00    500.0       350.00
"""


def test_a_rate_says_what_mb_are(tmp_path: Path) -> None:
    """16 MiB at 111.85 GB/s take 150 us, and 7/4 of 100 MB at 350 GB/s take 500 us."""
    assert [case.size_bytes for case in read(tmp_path, STATED).run.cases] == [2**20, 2**24]
    assert [case.size_bytes for case in read(tmp_path, MEGATRON).run.cases] == [10**6, 10**8]


def test_two_tables_that_differ_in_every_case_are_no_launches_of_one(tmp_path: Path) -> None:
    sizes = [(2**power, 3 + power) for power in range(28, 32)]

    def table(times: int) -> str:
        rows = (
            f"{size} {size // 4} float sum -1 {time} {(algbw := size / time / 1e3):.2f} {algbw * 1.75:.2f} 0 "
            f"{time} {algbw:.2f} {algbw * 1.75:.2f} 0\n"
            for size, power in sizes
            for time in [times * 2 ** (power - 20)]
        )
        return f"{ranks_on(*(('node1', rank) for rank in range(8)))}{HEADER}{''.join(rows)}{END}"

    apart = read(tmp_path, f"{table(10)}{table(21)}")
    assert {case.tool_op for case in apart.run.cases} == {"table 1", "table 2"}
    alike = read(tmp_path, f"{table(10)}{table(11)}")
    assert {row.launch for row in alike.imported} == {0, 1}


@pytest.mark.parametrize(
    ("text", "ranks", "times"),
    [
        (STATED, 8, [60e-6, 150e-6]),
        (MEGATRON, 8, [121.5e-6, 500e-6]),
        (GLOO, 2, [120e-6]),
        (SGLANG, 4, [37e-6, 55e-6, 44e-6, 45e-6]),
        (NVSHMEM, 8, [30.1e-6]),
    ],
)
def test_a_table_of_another_benchmark_is_read(text: str, ranks: int, times: list[float], tmp_path: Path) -> None:
    stored = read(tmp_path, text)
    assert {case.ranks for case in stored.run.cases} == {ranks}
    assert [row.time_ns / 1e9 for row in stored.imported] == pytest.approx(times)


def test_the_first_results_of_a_cut_row_are_read(tmp_path: Path) -> None:
    """mscclpp-test prints no type, and leaves out what it did not measure below the headings."""
    head = "#   in-place    out-of-place\n# size count time algbw busbw #wrong time algbw busbw #wrong\n"
    text = f"{ranks_on(*(('node1', rank) for rank in range(8)))}{head}1073741824 268435456 17018 63.09 110.41 0\n{END}"
    (row,) = read(tmp_path, text).imported
    assert (row.case.op, row.case.in_place) == ("all_reduce", True)
    assert row.time_ns == pytest.approx(17018e3)
    (row,) = read(tmp_path, f"{HEADER}{ROW[: ROW.index(' 40903')]}\n{END}").imported
    assert not row.case.in_place
    assert row.time_ns == pytest.approx(41644e3)


def test_a_benchmark_of_mpi_is_known_by_its_name_alone(tmp_path: Path) -> None:
    text = "Allreduce\uff1a\n#bytes #repetitions t_min[usec] t_max[usec] t_avg[usec]\n4 160 30.48 33.48 32.24\n"
    (case,) = read(tmp_path, text, ranks=4).run.cases
    assert (case.op, case.ranks, case.size_bytes) == ("all_reduce", 4, 4)


@pytest.mark.parametrize(
    ("messages", "phase"),
    [
        ("Bootstrap : Using eth0:10.0.0.1<0>", "ranks meet"),
        ("Channel 00/0 : 1[1] -> 0[0] [send] via NET/IB/0/GDRDMA", "ranks connect"),
        ("comm 0x5 rank 0 nranks 2 cudaDev 0 busId 1 commId 0x1 - Init COMPLETE", "first call"),
    ],
)
def test_a_job_that_hangs_says_where(messages: str, phase: str, tmp_path: Path) -> None:
    for heading in ("# nThread 1 nGpus 2 minBytes 8 maxBytes 8 step: 2(factor)\n", ""):
        with pytest.raises(LogError, match=phase) as refused:
            read(tmp_path, f"{heading}n1:5:5 [0] NCCL INFO {messages}\n")
        assert refused.value.code == ("hang" if heading else "messages")


READY = "".join(
    f"n{rank // 8}:5{rank}:5 [0] NCCL INFO Channel 00 : {rank}[901d0] -> {rank + 1}[a01c0] via P2P/IPC/read\n"
    f"n{rank // 8}:5{rank}:5 [0] NCCL INFO Channel 01 : 1[1] -> 8[0] [receive] via NET/AWS Libfabric/0/GDRDMA\n"
    f"n{rank // 8}:5{rank}:5 [0] NCCL INFO 2 coll channels, 2 p2p channels, 1 p2p channels per peer\n"
    f"n{rank // 8}:5{rank}:5 [0] NCCL INFO comm 0x5 rank {rank} nranks 16 cudaDev 0 busId 901c0 - Init COMPLETE\n"
    for rank in (4, 12)
)
"""NVIDIA/nccl#527, in parts."""


def test_messages_of_a_healthy_job_say_its_ways_and_claim_no_hang(tmp_path: Path) -> None:
    with pytest.raises(LogError) as refused:
        read(tmp_path, f"# Slow bus bandwidth, is this right?\n```\n{READY}```\n")
    assert refused.value.code == "messages"
    facts = dict(refused.value.lines)
    assert facts["Path"] == "2 × P2P/IPC, 2 × NET/AWS Libfabric/GDRDMA"
    assert [number in facts["Log"] for number in ("2 of 16", "2 hosts", "2 channels")] == [True] * 3


@pytest.mark.parametrize(
    "above",
    [
        "NCCL hangs when using more than 8 GPUs\n",
        "It stucks.\n",
        "It does not continue.\n",
        "NCCL timeout\n",
        "I get the same timeouts:\n",
        "\u8fd0\u884c\u5230\u8fd9\u91cc\u5c31hang\u4f4f\u4e86\n",
        "\u8bad\u7ec3\u5361\u4f4f\n",
    ],
)
def test_a_hang_that_the_text_reports_is_one(above: str, tmp_path: Path) -> None:
    """NVIDIA/nccl#634, #1609."""
    with pytest.raises(LogError) as refused:
        read(tmp_path, f"{above}```\n{READY}```\n")
    assert refused.value.code == "hang"


def test_the_start_of_a_single_rank_is_no_hang(tmp_path: Path) -> None:
    """NVIDIA/nccl#1537, awslabs/awsome-distributed-ai#386: an excerpt of the messages of one rank."""
    start = "n0:9:9 [0] NCCL INFO comm 0x5 rank 0 nranks 16 cudaDev 0 busId 1c000 commId 0x65 - Init START\n"
    away = "n0:9:9 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'\n"
    with pytest.raises(LogError) as refused:
        read(tmp_path, f"Why is this?\n{start}{away}")
    assert refused.value.code == "messages"
    assert "GPUDirect" in dict(refused.value.lines)["Also"]


def test_messages_below_a_sentence_with_rates_are_read(tmp_path: Path) -> None:
    """NVIDIA/nccl#1676, in parts."""
    text = "NCCL all_reduce dropped from ~180GB/s to ~10GB/s for 1GB message size. The logs shows, on 2 nodes\n\n"
    away = "n1:9:9 [3] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'\n"
    with pytest.raises(LogError) as refused:
        read(tmp_path, f"{text}{away}")
    assert refused.value.code == "messages"
    assert "GPUDirect" in dict(refused.value.lines)["Also"]


def test_a_text_that_only_speaks_of_messages_is_no_log_of_them(tmp_path: Path) -> None:
    text = "Bandwidth in GB/s of each message size, by tool and time | lines of NCCL INFO are left out\n"
    with pytest.raises(LogError) as refused:
        read(tmp_path, text)
    assert refused.value.code == "not-a-log"


INFO: Final = "n0:9:9 [0] NCCL INFO "


def test_an_excerpt_of_messages_of_which_no_rank_is_ready_is_no_hang(tmp_path: Path) -> None:
    """NVIDIA/nccl-tests#245."""
    starts = "".join(f"{INFO}comm 0x{rank} rank {rank} nranks 2 cudaDev 0 commId 0x7 - Init START\n" for rank in (0, 1))
    away = f"{INFO}NET/OFI Could not disable CUDA API usage for HMEM, disabling GDR\n"
    text = f"Why is this?\n```\n{away}{starts}{INFO}Channel 00/02 :    0   1\n```\n"
    refused = error_of(tmp_path, text)
    assert refused.code == "messages"
    assert "GPUDirect" in dict(refused.lines)["Also"]
    assert "ranks connect (line 6" in str(refused)
    assert error_of(tmp_path, text.replace("Why is this?", "It hangs.")).code == "hang"
    assert error_of(tmp_path, starts).code == "hang"


def test_the_line_of_a_phase_is_one_of_that_phase(tmp_path: Path) -> None:
    """NVIDIA/nccl#1597: the last line above the whole log."""
    last = f"{INFO}Channel 07/0 : 1[1] -> 0[0] [send] via NET/AWS Libfabric/1/GDRDMA\n"
    assert "(line 2: Channel 07/0" in str(
        error_of(tmp_path, f"It hangs.\n{last}{INFO}Bootstrap : Using eth0:1.2.3.4<0>\n")
    )


@pytest.mark.parametrize(
    ("given", "named"),
    [("NCCL_P2P_DISABLE=1 \\", {"NCCL_IB_DISABLE=1"}), ("export NCCL_P2P_DISABLE=1 NCCL_IB_DISABLE=1", set())],
)
def test_a_path_that_is_not_taken_is_not_advised_to_be_left(given: str, named: set[str], tmp_path: Path) -> None:
    text = f"It hangs.\n{given}\n./build/all_reduce_perf -g 2\n{INFO}Connected all rings\n"
    advice = dict(error_of(tmp_path, text).lines)["Do"]
    assert {name for name in ("NCCL_P2P_DISABLE=1", "NCCL_IB_DISABLE=1") if name in advice} == named


def test_members_that_lightning_numbers_twice_or_does_not_start_are_named(tmp_path: Path) -> None:
    """Lightning-AI/pytorch-lightning#4389, #8707, #19606."""
    members = [f"initializing ddp: GLOBAL_RANK: {rank}, MEMBER: {rank + 1}/8\n" for rank in range(4)]
    late = error_of(tmp_path, f"It freezes.\n{''.join(members)}")
    assert late.code == "hang"
    assert "no start of rank 4, 5, 6, 7 of 8" in late.answer
    assert "no start of rank 1, 2" in error_of(tmp_path, f"It is stuck.\n{members[0]}").answer
    twice = error_of(tmp_path, "".join(members * 2))
    assert twice.code == "job-failed"
    assert "rank 0 of 8 twice" in twice.answer
    again = f"{''.join(members)}All distributed processes registered.\n{''.join(members)}"
    assert "twice" not in str(error_of(tmp_path, again))


@pytest.mark.parametrize(
    "start",
    [
        "DEBUG parallel_state.py:1563] world_size=2 rank=1 distributed_init_method=tcp://127.0.0.1:43615 backend=nccl",
        "[2026-07-14 07:49:04 TP3 EP3] Init torch distributed begin.",
        "INFO 09-03 02:15:42 pynccl.py:63] vLLM is using nccl==2.21.5",
        "> initializing torch distributed ...",
    ],
)
def test_a_program_that_hangs_when_its_ranks_start_says_where(start: str, tmp_path: Path) -> None:
    """Project-HAMi/HAMi-core#261, sgl-project/sglang#30609 and others."""
    refused = error_of(tmp_path, f"It gets stuck here:\n{start}\n")
    assert refused.code == "hang"
    assert "ranks meet and connect (line 2" in str(refused)
    assert "ranks meet" not in str(error_of(tmp_path, f"It gets stuck here:\n{start}\nLoad weight begin.\n"))
    assert error_of(tmp_path, f"Which one is this?\n{start}\n").code == "not-a-log"


def test_a_message_in_a_sentence_is_one(tmp_path: Path) -> None:
    """NVIDIA/nccl#1939."""
    text = "nccl shows: `INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'`. Why?\n"
    assert "GPUDirect" in dict(error_of(tmp_path, text).lines)["Also"]


@pytest.mark.parametrize(("status", "word"), [(1, "CUDA"), (2, "system"), (3, "state"), (6, "another rank")])
def test_a_function_of_nccl_that_returns_an_error_is_one(status: int, word: str, tmp_path: Path) -> None:
    """NVIDIA/nccl#1410, #1059."""
    refused = error_of(tmp_path, f"{INFO}init.cc:1501 -> {status}\n{INFO}group.cc:64 -> {status} [Async thread]\n")
    assert refused.code == "job-failed"
    assert word in refused.answer
    assert error_of(tmp_path, f"{INFO}group.cc:15 -> 7\n{INFO}Tree 0 : 0 -> 1 -> 2/-1/-1\n").code == "messages"


def test_nccl_goes_on_without_sharp(tmp_path: Path) -> None:
    """NVIDIA/nccl#1050."""
    init = "n0:9:9 [7] sharp_plugin.c:320 NCCL WARN NET/IB : SHARP coll init error: Cannot create SHARP job(-11)\n"
    refused = error_of(tmp_path, f"{init}{INFO}transport.cc:291 -> 2\n{INFO}init.cc:670 -> 2\n{INFO}24 coll channels\n")
    assert refused.code == "messages"
    assert "SHARP" in refused.answer


def test_an_interface_of_early_nccl_that_others_do_not_reach_is_named(tmp_path: Path) -> None:
    """horovod/horovod#789."""
    refused = error_of(
        tmp_path, f"{INFO}NET : Using interface lo:127.0.0.1<0>\n{INFO}NET/Socket : 2 interfaces found\n"
    )
    assert "interface lo" in refused.answer


def test_a_setting_that_rccl_misses_is_no_failure(tmp_path: Path) -> None:
    """ROCm/rccl#1026."""
    warning = (
        'n0:9:9 [3] init.cpp:126 NCCL WARN Missing "HSA_FORCE_FINE_GRAIN_PCIE=1" from environment which can lead to'
    )
    refused = error_of(tmp_path, f"{warning} low RCCL performance\n{INFO}Bootstrap : Using bond0:10.64.4.23<0>\n")
    assert refused.code == "messages"
    assert "HSA_FORCE_FINE_GRAIN_PCIE=1" in refused.answer


def test_a_provider_without_a_nic_is_named(tmp_path: Path) -> None:
    """aws/aws-ofi-nccl#889."""
    away = "libfabric:85:174::core:core:fi_getinfo_():1392<warn> fi_getinfo: provider efa output empty list\n"
    assert "efa" in error_of(tmp_path, f"{INFO}Bootstrap : Using eth0:1.2.3.4<0>\n{away}").answer


def test_the_last_exception_of_a_parallel_job_is_its_error(tmp_path: Path) -> None:
    text = "With torchrun I get this.\nTraceback (most recent call last):\n[rank0]: ValueError: shape [3] is invalid\n"
    refused = error_of(tmp_path, text)
    assert refused.code == "job-failed"
    assert "shape [3]" in refused.answer
    assert error_of(tmp_path, text.replace("torchrun", "this")).code == "not-a-log"


@pytest.mark.parametrize(
    "text",
    [
        "MPI ranks: 4\nValueError: bad cell, skipped\neverything finished\n",
        "Notes on MPI and NCCL. A job can hang forever if a rank does not come.\n",
        "init_process_group\n12 prompts stuck in loops, 4 timed out\nscore 0.5\n",
    ],
)
def test_a_text_that_mentions_failures_is_no_failed_job(text: str, tmp_path: Path) -> None:
    assert error_of(tmp_path, text).code == "not-a-log"


@pytest.mark.parametrize(
    "text",
    [
        "I read that a bus error can come from a small /dev/shm. Is that so?\n",
        "My training on two nodes dies with a bus error when I use 8 workers.\n",
    ],
)
def test_a_sentence_only_mentions_a_failure(text: str, tmp_path: Path) -> None:
    refused = error_of(tmp_path, text)
    assert refused.code == "messages"
    assert "mentions" in refused.answer
    assert "--shm-size" in dict(refused.lines)["Do"]
    assert error_of(tmp_path, "Fatal: Bus error (core dumped).\n").code == "job-failed"


@pytest.mark.parametrize(
    "text",
    [
        "Use --shm-size=8g to avoid a bus error in the workers.\n",
        "We had no unhandled system error after this change of the driver.\n",
    ],
)
def test_a_failure_that_did_not_come_is_none(text: str, tmp_path: Path) -> None:
    assert error_of(tmp_path, text).code == "not-a-log"


def test_what_a_sentence_mentions_explains_only_what_follows_from_a_failure(tmp_path: Path) -> None:
    text = "After an hour of training I get a bus error on one of the nodes.\n"
    child = error_of(tmp_path, f"{text}torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n")
    assert child.code == "job-failed"
    assert "(line 2)" in child.answer
    assert "bus error, as the text says (line 1)" in dict(child.lines)["Why"]
    full = error_of(tmp_path, f"{text}RuntimeError: CUDA out of memory\n")
    assert "bus error" not in str(full)


def test_an_exit_status_is_no_signal(tmp_path: Path) -> None:
    """DeepSpeed's launcher prints signals as negative numbers."""
    why = [
        dict(error_of(tmp_path, f"[launch.py:347] Process 12 exits with return code = {code}\n").lines)["Why"]
        for code in (7, 9, -7, -9)
    ]
    assert why[0] == why[1]
    assert len(set(why)) == 3


@pytest.mark.parametrize(
    "text",
    [
        "serves forever",
        "inet 10.0.0.1/24 valid_lft forever preferred_lft forever",
        "the loss never completes its descent",
        "[W] This can potentially cause a hang if this rank to GPU mapping is incorrect.",
        "aborted if the watchdog is stuck for 480 s",
        "freezing the embedding layers; frozen parameters",
        "nccl_hang_detector loaded, no timeouts, timeouts=600",
        "It no longer hangs. The hang is fixed",
    ],
)
def test_words_of_healthy_programs_are_no_hang(text: str, tmp_path: Path) -> None:
    ready = f"{INFO}comm 0x5 rank 1 nranks 2 cudaDev 0 - Init COMPLETE\n"
    assert error_of(tmp_path, f"{text}\n{ready}").code == "messages"


def test_a_hang_without_a_log_says_what_to_add(tmp_path: Path) -> None:
    """hiyouga/LlamaFactory#7300, OpenNMT/OpenNMT-py#1606."""
    refused = error_of(tmp_path, "\u4e24\u53f0\u673a\u5668\u5361\u5728\u8fd9\u91cc MASTER_ADDR=10.0.1.3\n")
    assert "NCCL_DEBUG=INFO" in dict(refused.lines)["Do"]
    ready = f"{INFO}comm 0x5 rank 1 nranks 2 cudaDev 0 - Init COMPLETE\n{INFO}Ring 00 : 0 -> 8 via NET/Socket/0\n"
    refused = error_of(tmp_path, f"The program just hangs (1 hour already):\n```\n{ready}```\n")
    assert refused.code == "hang"
    assert "NCCL_IB_DISABLE" not in dict(refused.lines)["Do"]
    assert error_of(tmp_path, f"The watchdog timeout (ms) is 600000:\n```\n{ready}```\n").code == "messages"


def test_outputs_of_two_jobs_without_headers_are_not_pooled(tmp_path: Path) -> None:
    """NVIDIA/nccl-tests#182; each ends with its own summary."""
    row = "{0} 33554432 float sum -1 {1} {2} {2} 0 {1} {2} {2} 0\n"
    ends = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 1.8\n"
    rows = row.format(134217728, 27691, 4.85) + row.format(134217728, 29708, 4.52) + row.format(268435456, 55225, 4.86)
    assert error_of(tmp_path, f"{rows}{ends}{row.format(268435456, 59067, 4.54)}{ends}").code == "interleaved-logs"
    once = row.format(134217728, 27691, 4.85) + ends
    assert read(tmp_path, once + row.format(268435456, 59067, 4.54) + ends).run.cases


def test_the_first_results_of_a_row_that_is_cut_within_the_second_are_read(tmp_path: Path) -> None:
    """NVIDIA/nccl-tests#104."""
    stored = read(tmp_path, f"{ranks_on(('node1', 0), ('node1', 1))}{HEADER}{' '.join(ROW.split()[:10])}\n")
    assert len(stored.run.cases) == 1


def test_rows_that_do_not_fit_the_header_are_no_results(tmp_path: Path) -> None:
    """NVIDIA/nccl#340: the header that busbw proposed had columns that the rows lack."""
    row = "{} {} float 16.57 1.98 1.98 0e+00 13.83 2.37 2.37 0e+00\n"
    rows = row.format(65536, 8192) + row.format(131072, 16384)
    assert error_of(tmp_path, HEADER + rows).code == "truncated-row"
    proposed = str(error_of(tmp_path, rows)).split("such as: ")[1]
    assert proposed == "# size count dtype time algbw busbw error time algbw busbw error"
    assert len(read(tmp_path, f"{proposed}\n{rows}", op="all_gather", ranks=2).run.cases) == 4


def test_a_line_of_a_program_in_a_traceback_is_no_error(tmp_path: Path) -> None:
    """sgl-project/sglang#4289."""
    text = '    raise RuntimeError(f"NCCL error: {error_str}")\nRuntimeError: NCCL error: unhandled system error (run\n'
    assert "unhandled" in dict(error_of(tmp_path, text).lines)["Error"]


def test_a_rank_that_is_not_ready_is_a_hang(tmp_path: Path) -> None:
    start = "n0:9:9 [0] NCCL INFO comm 0x5 rank 3 nranks 16 cudaDev 0 busId 901c0 - Init START\n"
    with pytest.raises(LogError) as refused:
        read(tmp_path, READY + start)
    assert refused.value.code == "hang"


def of_communicator(name: str, ranks: range, of: int, state: str) -> str:
    where = (
        "n1:{0}:{0} [{0}] NCCL INFO ncclCommInitRank comm 0x{0} rank {0} nranks {1} cudaDev {0} commId {2} - Init {3}\n"
    )
    return "".join(where.format(rank, of, name, state) for rank in ranks)


FOUR: Final = of_communicator("0xa", range(4), 4, "START") + of_communicator("0xa", range(4), 4, "COMPLETE")


def test_a_second_communicator_whose_ranks_are_not_ready_is_a_hang(tmp_path: Path) -> None:
    with pytest.raises(LogError) as refused:
        read(tmp_path, FOUR + of_communicator("0xb", range(4), 4, "START"))
    assert refused.value.code == "hang"


def test_ranks_that_are_ready_are_those_of_the_largest_communicator(tmp_path: Path) -> None:
    pair = of_communicator("0xb", range(2), 2, "START") + of_communicator("0xb", range(2), 2, "COMPLETE")
    with pytest.raises(LogError) as refused:
        read(tmp_path, FOUR + pair)
    assert (refused.value.code, dict(refused.value.lines)["Log"][:6]) == ("messages", "4 of 4")


@pytest.mark.parametrize(
    "text",
    [
        of_communicator("0xa", range(1), 8, "START") + of_communicator("0xa", range(1), 8, "COMPLETE"),
        f"$ timeout 300 srun -N 2 ./train\n{FOUR}",
        f"$ timeout -k 5 300 ./train --timeout 60\n{FOUR}",
    ],
)
def test_a_log_of_one_rank_and_a_command_with_a_time_are_no_hang(text: str, tmp_path: Path) -> None:
    with pytest.raises(LogError) as refused:
        read(tmp_path, text)
    assert refused.value.code == "messages"


def test_messages_without_results_are_shown_with_all_that_they_say(tmp_path: Path) -> None:
    log = tmp_path / "info.log"
    log.write_text(READY, encoding="utf-8")
    shown = CliRunner().invoke(main, ["show", str(log)])
    document = json.loads(CliRunner().invoke(main, ["show", str(log), "--json"]).stdout)
    assert (shown.exit_code, document["answer"]["status"]) == (0, "messages")
    assert {"Log", "Path"} <= set(dict(document["answer"]["lines"]))
    assert "NET/AWS Libfabric/GDRDMA" in shown.stdout


def test_a_log_of_messages_beside_results_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "info.log").write_text(READY, encoding="utf-8")
    (tmp_path / "table.log").write_text(HEADER + ROW + END, encoding="utf-8")
    result = CliRunner().invoke(main, ["show", str(tmp_path)])
    assert result.exit_code == 0
    assert "368 GB/s" in result.output


def test_steps_of_training_logs_in_a_folder_are_shown(tmp_path: Path) -> None:
    line = "step: {0}  loss:  1.5  memory: 26.47GiB(33.47%)  wps: {1}  mfu: 10.46%\n"
    (tmp_path / "train.log").write_text("".join(line.format(step, 1700 + step) for step in range(10, 20)), "utf-8")
    (tmp_path / "table.log").write_text(HEADER + ROW + END, encoding="utf-8")
    for present in (True, False):
        result = CliRunner().invoke(main, ["show", str(tmp_path)])
        assert result.exit_code == 0, result.output
        assert ("368 GB/s" in result.output) == present
        assert "tokens/s" in result.output
        (tmp_path / "table.log").unlink(missing_ok=True)


@pytest.mark.parametrize(
    "launcher",
    [
        "mpirun -np 2 --host nodea,nodeb",
        "mpirun -np 2 -H nodea:1,nodeb:1",
        "mpiexec -n 2 -hosts nodea,nodeb",
        "mpirun_rsh -np 2 nodea nodeb MV2_CPU_MAPPING=0",
    ],
)
def test_the_hosts_of_a_launcher_are_those_of_its_ranks(launcher: str, tmp_path: Path) -> None:
    text = f"{launcher} ./osu_bw\n# OSU MPI Bandwidth Test v7.2\n# Size      Bandwidth (MB/s)\n4194304 12100.00\n"
    assert read(tmp_path, text).run.hosts == ("nodea", "nodeb")
    assert set(read(tmp_path, text.replace("nodeb", "nodeb,nodec").replace(":1,", ":2,")).run.hosts) != {"nodea"}


def test_a_table_whose_end_was_cut_with_its_fence_is_not_pooled(tmp_path: Path) -> None:
    """openucx/ucx#7947, in parts: the second fence has no end."""
    table = "```\n# OSU MPI Bi-Directional Bandwidth Test v5.8\n# Size      Bandwidth (MB/s)\n"
    rows = "1                       1.35\n2                       2.63\n"
    text = f"With UCX 1.11.2\n\n{table}{rows}```\n\nWith UCX 1.12 (.0 and .1-rc2)\n\n{table}{rows}102"
    captions = {"With UCX 1.11.2", "With UCX 1.12 (.0 and .1-rc2)"}
    assert {case.tool_op for case in read(tmp_path, text).run.cases} == captions


def test_a_sentence_that_names_a_program_does_not_say_the_operation(tmp_path: Path) -> None:
    """tinygrad/open-gpu-kernel-modules#17: the table is of all_reduce, as its columns say."""
    text = "# Enabling P2P on 8 RTX 4090 GPUs results in lower performance in alltoall_perf tests\n"
    ready = "n1:5:5 [2] NCCL INFO Init timings - ncclCommInitAll: rank 2 nranks 5 total 0.53 (kernels 0.38)\n"
    row = "33554432 8388608 float sum -1 2174.8 15.43 24.69 0 2170.2 15.46 24.74 0\n"
    stored = read(tmp_path, f"{text}```\n{ready}{HEADER}{row}```\n")
    assert {(case.op, case.ranks) for case in stored.run.cases} == {("all_reduce", 5)}


def test_a_rank_that_did_not_start_is_named(tmp_path: Path) -> None:
    starts = "".join(
        f"n1:{rank}:{rank} [{rank}] NCCL INFO comm 0x5 rank {rank} nranks 4 cudaDev {rank} - Init START\n"
        for rank in (0, 1, 3)
    )
    with pytest.raises(LogError, match="rank 2 of 4"):
        read(tmp_path, starts)


RAS = """
Communicators... (0.00s)
#1-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  26 ranks have launched up to operation 6650
  6 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 483072 on node 172.16.64.210
  Rank 3 -- GPU 3 managed by process 483075 on node 172.16.64.210
"""
SILENT = """
#2-0 (27a079b828ff1a75) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 5 -- GPU 5 managed by process 7 on node 10.0.0.2
"""
OLD = """
  Communicator ranks have different collective operation counts
  7 ranks have launched up to operation 9
  Rank 2 has not launched any operations -- [process information not found]
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (RAS, r"rank 0 \(GPU 0 managed .*, rank 3 .*, 4 more ranks launched AllReduce .* 6649 only.* 6650"),
        (SILENT, r"rank 5 \(GPU 5 .* does not answer"),
        (OLD, r"rank 2 .* up to 0 only, the others up to 9"),
    ],
)
def test_ras_of_nccl_names_who_is_behind(text: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(LogError, match=expected) as refused:
        read(tmp_path, text)
    assert refused.value.code == "hang"


@pytest.mark.parametrize(
    ("value", "wrong"),
    [
        *(("", None), ("lo", None), ("ib0,lo", None), ("bond4", "'bond4'"), ("^lo", "'^lo'")),
        *(("lo,bond4,down0", "'bond4' and 'down0'"), ("lo, ib0", "' ib0'")),
    ],
)
def test_interfaces_that_gloo_cannot_use_are_named_before_a_run(
    value: str, wrong: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    families = {"lo": socket.AF_INET, "ib0": socket.AF_INET6, "down0": psutil.AF_LINK}
    addresses = {name: [SimpleNamespace(family=family)] for name, family in families.items()}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: addresses)
    monkeypatch.setattr(socket, "if_nameindex", lambda: [*enumerate(addresses)])
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", value)
    words = f"GLOO_SOCKET_IFNAME={value} names {wrong}, but this host has lo, ib0, down0 (no address)"
    assert BACKENDS["gloo"].missing() == (wrong and words)


@pytest.mark.parametrize("archive", [None, "zip", "gztar"])
def test_a_folder_or_archive_of_logs_is_read_as_its_logs(archive: str | None, tmp_path: Path) -> None:
    folder = tmp_path / "logs" / "of node1"
    folder.mkdir(parents=True)
    for number in range(3):
        (folder / f"{number}.log").write_bytes((LOGS / "nccl-tests-2.19.txt").read_bytes())
    (folder / "notes.txt").write_text("nothing to read here\n", encoding="utf-8")
    path = folder.parent
    if archive is not None:
        path = Path(shutil.make_archive(str(tmp_path / "packed"), archive, folder.parent))
    result = CliRunner().invoke(main, ["show", "--json", str(path)])
    assert result.exit_code == 0, result.output
    assert {case["launches"] for case in json.loads(result.stdout)["cases"]} == {3}
    later = tmp_path / "later.log"
    later.write_bytes((LOGS / "nccl-tests-2.19.txt").read_bytes() + b"# later\n")
    assert CliRunner().invoke(main, ["compare", "--json", str(path), str(later)]).exit_code in {0, 3}


GLOO, AFTER = "ifa != nullptr. Unable to find address for: ib0", "RuntimeError: Connection reset by peer [10.0.0.1]:42"
"""A failure, and what follows from it on another rank."""


@pytest.mark.parametrize("archive", [None, "gztar"])
def test_logs_of_a_job_that_failed_have_one_answer(archive: str | None, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    texts = {"n0/err": AFTER, "n1/err": GLOO, "n2/err": GLOO, "notes": "nothing to read here"}
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text + "\n", encoding="utf-8")
    path = shutil.make_archive(str(tmp_path / "packed"), archive, folder) if archive else str(folder)
    result = CliRunner().invoke(main, ["show", path], env={"COLUMNS": "200"})
    assert result.exit_code == 1
    first, *others = result.output.splitlines()
    assert first.startswith("busbw: jobs or ranks failed in 3 of 3 logs; look first at n1/err: the job failed")
    assert [line.partition(": ")[0] for line in others if not line.startswith(" ")] == ["Why", "Do", "Log", "Log"]
    assert "n1/err and n2/err: the job failed" in result.output


def test_a_log_of_a_job_that_failed_is_named_beside_others(tmp_path: Path) -> None:
    (tmp_path / "err").write_text(f"{HEADER}{GLOO}\n", encoding="utf-8")
    shutil.copy(LOGS / "nccl-tests-2.19.txt", tmp_path / "good")
    result = CliRunner().invoke(main, ["show", str(tmp_path)], env={"COLUMNS": "200"})
    assert result.exit_code == 1
    assert "failed in 1 of 2 logs; look first at err: " in result.output
    assert "leave these logs out" in result.output


@pytest.mark.parametrize(("command", "status"), [("show", 1), ("report", 1), ("fit", 1), ("gate", 2)])
def test_an_answer_about_a_failed_job_is_folded(command: str, status: int, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(GLOO, encoding="utf-8")
    (tmp_path / "rules").write_text('[[rule]]\nmetric = "busbw"\nat_least = "1GB/s"\n', encoding="utf-8")
    rules = ["--rules", str(tmp_path / "rules")] if command == "gate" else []
    result = CliRunner().invoke(main, [command, str(tmp_path / "log"), *rules], env={"COLUMNS": "80"})
    assert result.exit_code == status
    lines = result.output.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.partition(":")[0] for line in lines if not line.startswith(" ")] == ["busbw", "Why", "Do"]


def test_busgrind_has_a_row_for_each_direction(tmp_path: Path) -> None:
    """NVIDIA/cuda-samples#357: the last two GPUs lose one direction while both are used."""
    (tmp_path / "log").write_text(
        "Test Description: Bus bandwidth between the host and a single device\n"
        "Host/Device Bandwidth Matrix (GB/s), memory=Pinned\n"
        "   Dir\\D       0      1\n   D2H     56.83  57.12\n   BiDir  101.26   7.25\n***\n"
        "Concurrent Host/Device Bandwidth Matrix (GB/s), memory=Pinned\n"
        "   Dir\\D       0      1  Total\n   H2D     44.61  44.80  89.41\n",
        encoding="utf-8",
    )
    assert [(row.tool_op, row.op, row.target, row.rate) for row in read_log(tmp_path / "log").rows] == [
        ("D2H Pinned", "device_to_host", "host", 56.83e9),
        ("D2H Pinned", "device_to_host", "host", 57.12e9),
        ("BiDir Pinned", "host_and_device", "GPU 0", 101.26e9),
        ("BiDir Pinned", "host_and_device", "GPU 1", 7.25e9),
        ("Concurrent H2D Pinned", "host_to_device", "GPU 0", 44.61e9),
        ("Concurrent H2D Pinned", "host_to_device", "GPU 1", 44.8e9),
    ]


def test_digits_of_other_scripts_are_no_rate(tmp_path: Path) -> None:
    with pytest.raises(LogError):
        read(tmp_path, "| Info | GPU 0 GPU to Host bandwidth:  \u0663 GB/s |\n")


def test_objects_without_a_size_are_no_table(tmp_path: Path) -> None:
    lines = (LOGS / "rccl-tests.json").read_text(encoding="utf-8").splitlines()
    broken = [line.replace('"size"', '"siz@"') if at < 2 else line for at, line in enumerate(lines)]
    assert 0 < len(read(tmp_path, "\n".join(broken)).rows) < len(read(tmp_path, "\n".join(lines)).rows)


APART = {
    "With the default I get this.\n": "Then I set NCCL_NET_GDR_LEVEL=5, and it got better.\n",
    "## Before the new driver\n": "## After the new driver\n",
    "=== channels 4 ===\n": "=== channels 16 ===\n",
    "IB off:\n": "IB on:\n",
    "2.19.3:\n": " \n2.20.3\n",
    "First cluster (H100, CX7):\n": "and the second cluster, with the same containers:\n",
}
TOGETHER = {
    "Starting run 1 at Fri Nov 28 10:00:01 2026\n": "Starting run 2 at Sat Nov 29 10:02:07 2026\n",
    "Run 1 with NVLS:\n": "Run 2 with NVLS:\n",
    "": "Done, all is well.\n",
    "[node1] iteration 1/2 started\n": "[node1] iteration 2/2 started\n",
    "srun: job 123 has been allocated resources\n": "srun: job 124 has been allocated resources\n",
}
"""Text above two tables, which differ by 10 %."""


@pytest.mark.parametrize(("first", "second"), [*APART.items(), *TOGETHER.items()])
def test_tables_below_texts_of_other_words_are_no_launches(first: str, second: str, tmp_path: Path) -> None:
    table = HEADER + ROW + ROW.replace("8589934592 2147483648", "17179869184 4294967296").replace("41644", "83288")
    faster = table.replace("41644", "37480").replace("83288", "74959")
    end = END + (second if not first else "")
    stored = read(tmp_path, f"{first}{table}{END}{second}{faster}{end}")
    assert len({case.tool_op for case in stored.run.cases}) == (2 if first in APART else 1)


def test_a_fenced_log_is_below_the_text_around_it_alone(tmp_path: Path) -> None:
    """linux-rdma/perftest#241: lines of the program itself are no captions."""
    test = " RDMA_Write BW Test\n{} #bytes #iterations BW peak[MB/sec] BW average[MB/sec] MsgRate[Mpps]\n"
    row = " 33554432 5000 11059.93 11059.86 0.000346\n"
    gpu = test.format(" creating CUDA Ctx\n PCIe relax order: ON\n") + row
    text = f"### GPU results\n```\n{gpu}```\n### CPU results\n```\n{test.format('')}{row}```\n"
    words = {case.tool_op for case in read(tmp_path, text).run.cases}
    assert words == {"RDMA_Write BW Test GPU results", "RDMA_Write BW Test CPU results"}


def test_a_log_that_lacks_a_fact_says_what_else_it_holds(tmp_path: Path) -> None:
    row = "268435456 67108864 float sum -1 402000 0.67 1.25 0 402000 0.67 1.25 0\n"
    text = f"n1:8:9 [0] NCCL INFO NET/IB : No device found.\n{HEADER}{row}"
    with pytest.raises(LogError, match="--ranks") as refused:
        read(tmp_path, text)
    assert "no InfiniBand or RoCE device (line 1)" in dict(refused.value.lines)["Also"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("mpirun -np 16 osu_allreduce -m 1048576 D D\n1024  21.44\n1048576  412.33\n", "lines that begin with #"),
        ("SUM host_to_device_memcpy_ce 101.21\nSUM device_to_host_memcpy_ce 103.88\n", "matrices"),
        ("  TRT-LLM AllReduce Benchmark\n  world_size=8\n#  size  ntok  NCCL\n#     time(us)  algbw\n", "one line"),
    ],
)
def test_a_part_of_a_log_without_meaning_says_what_to_paste(text: str, word: str, tmp_path: Path) -> None:
    with pytest.raises(LogError, match=word):
        read(tmp_path, text)


def test_headings_of_a_public_table_with_times_of_two_programs(tmp_path: Path) -> None:
    """ByteDance-Seed/Triton-distributed#57."""
    sizes = {"128B": 128, "1KB": 1 << 10, "16KB": 16 << 10, "1MB": 1 << 20, "2MB": 2 << 20, "16MB": 16 << 20}
    rows = "".join(f"| {size} | 204.18 | {19.19 + at} |\n" for at, size in enumerate(sizes))
    stored = read(
        tmp_path,
        f"Your AllReduce (using 8xH100, intra-node).\n\n| Payload Sz | Yours (µs) | NCCL (µs) |\n|---|---|---|\n{rows}",
    )
    assert {(case.op, case.ranks) for case in stored.run.cases} == {("all_reduce", 8)}
    assert {case.size_bytes for case in stored.run.cases} == {*sizes.values()}
    assert {case.tool_op for case in stored.run.cases} == {"Yours", "NCCL"}


def test_a_table_without_facts_is_of_what_the_one_above_is(tmp_path: Path) -> None:
    table = "\n| size (MiB) | time (us) |\n|---|---|\n| 64 | 1000 |\n| 256 | 3600 |\n\n"
    stored = read(tmp_path, f"Without SHARP, all_reduce over 16 ranks:\n{table}and with SHARP:\n{table}")
    assert {(case.op, case.ranks) for case in stored.run.cases} == {("all_reduce", 16)}
    assert len({case.tool_op for case in stored.run.cases}) == 2


def test_a_heading_of_a_matrix_below_one_of_copies_is_no_heading(tmp_path: Path) -> None:
    text = " Device to Host Bandwidth, 1 Device(s)\n   D\\D     0      1\n     0   1.5   2.5\n 32000000 12.5\n"
    assert len(read(tmp_path, text).rows) == 2


@pytest.mark.parametrize(("content", "code"), [(b"no archive", "unreadable"), (None, "not-a-log")])
def test_an_archive_without_logs_is_refused(content: bytes | None, code: str, tmp_path: Path) -> None:
    path = tmp_path / "logs.zip"
    if content is None:
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "a.txt").write_text("hello\n", encoding="utf-8")
        shutil.make_archive(str(path.with_suffix("")), "zip", tmp_path / "in")
    else:
        path.write_bytes(content)
    with pytest.raises(LogError) as refused:
        logs_in(str(path), lambda: tmp_path / "out")
    assert refused.value.code == code


def test_a_folder_of_runs_is_no_folder_of_their_logs(tmp_path: Path) -> None:
    """An imported run keeps its log beside it."""
    result = CliRunner().invoke(
        main,
        ["import", str(LOGS / "nccl-tests-2.19.txt"), "--machine", "m", "--results-dir", str(tmp_path / "results")],
    )
    assert result.exit_code == 0, result.output
    assert logs_in(str(tmp_path / "results"), lambda: tmp_path) == (str(tmp_path / "results"),)


def test_numbers_of_another_tool_are_no_row_of_ucx_perftest(tmp_path: Path) -> None:
    """Its rows begin with a whole number of calls; those of a broken row of nccl-tests do not."""
    test = "| Test:         tag match bandwidth |\n| Data layout:  (automatic) |\n| Message size: 8388608 |\n"
    with pytest.raises(LogError) as refused:
        read(tmp_path, f"{test}   152.30  110.16  192.78      0   151.90  110.45  193.29      0\n")
    assert refused.value.code == "no-results"


WIDE: Final = "8589934592 2147483648 float sum 41644 206.27 386.76 N/A 40903 210.01 393.77 N/A\n"
PAIR: Final = "8589934592 2147483648 float sum 171799 50.00 50.00 N/A 171799 50.00 50.00 N/A\n"
"""Rows without a root or a check: over 16 ranks (15/8), and over two, of which one may be a send."""
OLD_HEADER: Final = "# size count type redop time algbw busbw error time algbw busbw error\n"


@pytest.mark.parametrize("listed", [True, False])
def test_fewer_ranks_in_another_table_are_not_on_the_first_host_of_all(tmp_path: Path, *, listed: bool) -> None:
    """NVIDIA/nccl#398: 8 ranks on each of two hosts, then one on each; NVLink of a host is no peak of the pair."""
    places = [(host, device) for host in ("node1", "node2") for device in range(8)]
    pair = ranks_on(("node1", 0), ("node2", 0)) if listed else ""
    stored = read(tmp_path, f"{ranks_on(*places)}{OLD_HEADER}{WIDE}{END}\n{pair}{OLD_HEADER}{PAIR}{END}")
    ranks = {row.case.op: set[tuple[int, ...]]() for row in stored.imported}
    for row in stored.imported:
        ranks[row.case.op].add(row.ranks)
    assert set(ranks) == {"all_reduce"}
    hosts = {tuple(stored.run.hosts[rank] for rank in members) for members in ranks["all_reduce"] if len(members) == 2}
    assert hosts == {("node1", "node2") if listed else ("unknown", "unknown")}
    assert "deduced" in codes(stored)


def test_a_table_that_is_left_out_is_said_first(tmp_path: Path) -> None:
    text = f"{OLD_HEADER}{WIDE}{END}\n# size count type time algbw busbw error\n1024 16 float 9.1 0.11 0.09 N/A\n{END}"
    path = tmp_path / "log"
    path.write_text(text, encoding="utf-8")
    shown = json.loads(CliRunner().invoke(main, ["show", "--json", str(path)]).stdout)
    assert shown["warnings"][0]["code"] == "table-left-out"


BARE: Final = "| Size | Time (us) | algbw (GB/s) |\n|---|---|---|\n| 1 MB | 100.0 | 10.00 |\n| 1 GB | 10000 | 100.0 |\n"


@pytest.mark.parametrize(
    ("text", "ranks", "hosts"),
    [
        ("all_reduce on 16 GPUs (2 nodes), NCCL 2.21:", 16, 2),
        ("AllReduce over 2 nodes with 8 GPUs each:", 16, 2),
        ("all_reduce with 4 nodes of 8xH100 on our cluster:", 32, 4),
        ("Results of all_reduce for 8 H100 GPUs:", 8, 1),
        ("all_reduce, 2 nodes with 8 GPUs:", None, None),
        ("all_reduce with 8 GPUs per node:", None, None),
        ("all_reduce is slower on 16 GPUs than on 8 GPUs:", None, None),
        ("How can I reduce the time on 16 GPUs:", None, None),
    ],
)
def test_ranks_that_the_text_above_a_table_names(
    text: str, ranks: int | None, hosts: int | None, tmp_path: Path
) -> None:
    if ranks is None:
        with pytest.raises(LogError) as error:
            read(tmp_path, f"{text}\n\n{BARE}")
        assert error.value.code in {"no-ranks", "no-op"}
        return
    stored = read(tmp_path, f"{text}\n\n{BARE}")
    assert {(row.case.op, row.case.ranks) for row in stored.imported} == {("all_reduce", ranks)}
    assert len(set(stored.run.hosts)) == hosts
    assert "deduced" in codes(stored)


@pytest.mark.parametrize(
    ("text", "ranks", "hosts"),
    [
        ("16 GPUs", 16, None),
        ("all_reduce on 16 gpus", 16, None),
        ("all_reduce over 1024 ranks", 1024, None),
        ("all_reduce, 8 H100 GPUs", 8, None),
        ("16 GPUs on 2 nodes, NCCL 2.21", 16, 2),
        ("32 GPUs across 4 nodes", 32, 4),
        ("8 GPUs on 1 node", 8, 1),
        ("4 nodes x 8 H100 GPUs", 32, 4),
        ("2 nodes × 8 GPUs each", 16, 2),
        ("2 nodes, 8 GPUs per node: all_reduce", 16, 2),
        *(
            (text, None, None)
            for text in (
                *("each node has 8 GPUs, two nodes", "Each node has 8 H100 GPUs, over two of them", "per node 8 GPUs"),
                *("two nodes with 8 GPUs", "2 nodes with 8 GPUs", "2 nodes 8xH100", "two nodes with 8 GPUs each"),
                *("on 2 x 8 GPUs", "on 2x8 GPUs", "2 × 8 GPUs", "on 8 GPUs x 2", "on 8 GPUs/node", "8 GPUs a node"),
                *("on 32 GPU nodes", "32 GPU nodes", "16-node cluster, 8 GPUs", "DGX, 8 GPUs", "2 DGX with 8 GPUs"),
                *("on 0 nodes with 8 GPUs each", "on 2 nodes with 0 GPUs each", "on 0 GPUs", "16 GPUs on 3 nodes"),
                *("16 GPUs across 4 nodes with 8 GPUs each", "8 GPUs, 1 node / 2 nodes", "8 GPUs all_gather 2 nodes"),
                *("8 of 16 GPUs", "fewer than 16 GPUs", "up to 16 GPUs", "on max 16 GPUs", "at least 8 GPUs"),
                *(
                    "compared to 8 GPUs",
                    "compared with all_reduce on 8 GPUs",
                    "expected for 8 GPUs",
                    "slower on 16 GPUs",
                ),
                *(
                    "8, 16 GPUs",
                    "8 or 16 GPUs",
                    "8-16 GPUs",
                    "on 16 GPUs and 32",
                    "1,024 GPUs",
                    "on 16 GPUs and 2nodes",
                ),
                *("not on 8 GPUs", "Is all_reduce on 8 GPUs slow?", "all_reduce on 8 GPUs in pairs"),
                "all_reduce on 16 GPUs of a machine that is made of two, of wh",
            )
        ),
    ],
)
def test_ranks_are_read_only_from_a_plain_statement(text: str, ranks: int | None, hosts: int | None) -> None:
    found = said([text]) or Said()
    assert (found.ranks, found.hosts) == (ranks, hosts)


def test_texts_that_disagree_name_no_ranks() -> None:
    for other in ("all_reduce on 8 GPUs", "each node has eight GPUs", "2 nodes"):
        assert (said(["all_reduce on 16 GPUs", other]) or Said()).ranks is None
    assert (said(["all_reduce on 16 GPUs", "The nodes share a switch."]) or Said()).ranks == 16


def test_a_printed_busbw_wins_over_the_text_above(tmp_path: Path) -> None:
    stored = read(tmp_path, f"all_reduce on 16 GPUs:\n\n{HEADER}{ROW}{END}")
    assert {row.case.ranks for row in stored.imported} == {8}


def test_copies_of_another_size_need_no_caption(tmp_path: Path) -> None:
    """NVIDIA/nvbandwidth#42."""
    part = "```\n$ ./nvbandwidth -t host_to_device_memcpy_sm -b {size}\nRunning host_to_device_memcpy_sm.\n"
    part += "memcpy SM CPU(row) -> GPU(column) bandwidth (GB/s)\n           0\n 0     {rate}\n```\n"
    text = f"Below is the output:\n{part.format(size=512, rate=25.13)}and\n{part.format(size=20480, rate=16.5)}"
    stored = read(tmp_path, text)
    assert {row.case.tool_op for row in stored.imported} == {"host_to_device_memcpy_sm"}
    assert {row.case.size_bytes for row in stored.imported} == {512 << 20, 20480 << 20}


def test_the_second_command_of_a_paste_gives_ranks_to_the_second_table(tmp_path: Path) -> None:
    """open-mpi/ompi#10347, pmodels/mpich#7448."""
    part = (
        "+ mpirun -np {ranks} ./osu_{op} -m 4:4\n# OSU MPI {title} Latency Test v5.9\n# Size  Avg Latency(us)\n4 9.5\n"
    )
    text = part.format(ranks=44, op="bcast", title="Broadcast") + part.format(
        ranks=88, op="allreduce", title="Allreduce"
    )
    stored = read(tmp_path, text)
    assert {(row.case.op, row.case.ranks) for row in stored.imported} == {("broadcast", 44), ("all_reduce", 88)}


def test_a_table_of_three_cells_without_outer_bars_has_no_prefix(tmp_path: Path) -> None:
    """linux-rdma/perftest#98."""
    rows = "".join(f" {1 << power} | {power}.83 | {power}.06\n" for power in range(1, 9))
    stored = read(tmp_path, f" #bytes | Latency (us) | Bandwidth (Gb/s)\n -- | -- | --\n{rows}", op="pair_uni", ranks=2)
    assert {row.case.size_bytes for row in stored.imported} == {1 << power for power in range(1, 9)}


def test_mscclpp_prints_in_place_first(tmp_path: Path) -> None:
    """microsoft/mscclpp#57."""
    text = "mpirun -np 8 ./build/bin/tests/allreduce_test_perf -b 2M -e 2M\n#   in-place   out-of-place\n"
    text += "# size count time algbw busbw #wrong time algbw busbw #wrong\n# (B) (elements) (us) (GB/s) (GB/s) (us)\n"
    stored = read(tmp_path, f"{text}2097152 524288 40.07 52.34 91.60 0 41.07 51.07 89.37 0\n")
    times = {row.case.in_place: row.time_ns for row in stored.imported}
    assert times == {True: pytest.approx(40_070), False: pytest.approx(41_070)}


@pytest.mark.parametrize(("factor", "tables"), [(1.2, 1), (3.4, 2)])
def test_a_single_case_that_is_far_slower_in_another_table_is_no_launch(
    factor: float, tables: int, tmp_path: Path
) -> None:
    """pmodels/mpich#7448: 17.74 and 61.02 us have no mean that anybody measured."""
    part = (
        "mpirun -np 6 ./osu_allreduce\n# OSU MPI Allreduce Latency Test v5.6.2\n# Size  Avg Latency(us)\n2048  {:.2f}\n"
    )
    stored = read(tmp_path, part.format(17.74) + part.format(17.74 * factor))
    assert len({row.case for row in stored.imported}) == tables


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("sloved with `NCCL_NVLS_ENABLE=0`", True),
        ("Setting `NCCL_CROSS_NIC=0` worked for me.", True),
        ("Setting NCCL_CROSS_NIC=0 did not help.", False),
        ("Does it work with NCCL_CROSS_NIC=0?", False),
        ("$ NCCL_CROSS_NIC=0 ./all_reduce_perf -g 8", False),
    ],
)
def test_a_variable_that_helped_by_the_text_is_evidence(text: str, named: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """NVIDIA/nccl#1706, #2013."""
    assert ("remedy" in codes(read(tmp_path, f"```\n{HEADER}{ROW}{END}```\n\n{text}\n"))) == named
    warning = "node1:1:2 [5] ibvwrap.c:262 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out"
    with pytest.raises(LogError) as error:
        read(tmp_path, f"```\n{warning}\n```\n{text}\n")
    assert any("the text says" in line for _, line in error.value.lines) == named


TOPOLOGY: Final = (
    "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPXB\t0-27,56-83\t0\nGPU1\tPXB\t X \t0-27,56-83\t0\n\n"
)


@pytest.mark.parametrize(
    ("variable", "cause"),
    [("NCCL_P2P_DISABLE=1", "IOMMU"), ("NCCL_IB_DISABLE=1", "GID"), ("NCCL_ALGO=Tree", "did not")],
)
def test_a_variable_that_ends_a_hang_says_its_cause(variable: str, cause: str, tmp_path: Path) -> None:
    """NVIDIA/nccl#667, in parts."""
    with pytest.raises(LogError) as error:
        read(tmp_path, f"{TOPOLOGY}The rest will result in hanging.\n\nSetting {variable} did workaround.\n")
    assert error.value.code == "hang"
    assert cause in dict(error.value.lines)["Why"]


@pytest.mark.parametrize(
    ("text", "helped"),
    [
        ("It hangs with NCCL_ALGO=Ring, works with NCCL_ALGO=Tree.", "NCCL_ALGO=Tree"),
        ("breaks with NCCL_P2P_LEVEL=NVL but works with NCCL_P2P_LEVEL=SYS", "NCCL_P2P_LEVEL=SYS"),
        ("I tried NCCL_ALGO=Ring; NCCL_ALGO=Tree helped", "NCCL_ALGO=Tree"),
        ("Setting NCCL_IB_DISABLE=1 fixes it", "NCCL_IB_DISABLE=1"),
        ("Workaround: NCCL_IB_HCA=mlx5_0,mlx5_1.", "NCCL_IB_HCA=mlx5_0,mlx5_1"),
        ("solved with UCX_NET_DEVICES=mlx5_0:1, thanks", "UCX_NET_DEVICES=mlx5_0:1"),
        ("NCCL_SOCKET_IFNAME=eth0.100 solved it.", "NCCL_SOCKET_IFNAME=eth0.100"),
        ("UCX_TLS=rc helps to sustain the rate, but only at 7.5 GB/s", "UCX_TLS=rc"),
        *(
            (text, None)
            for text in (
                "works fine until NCCL_ALGO=Tree is set",
                "only NCCL_IB_DISABLE=0 hangs; it works otherwise",
                "Run it with NCCL_DEBUG=INFO to see how it works",
                "works with NCCL_DEBUG=INFO",
                "tried NCCL_P2P_DISABLE=1 as workaround, it hangs the same",
                "NCCL_P2P_DISABLE=1 as workaround, it hangs the same",
                "NCCL_P2P_DISABLE=1 helped, but it fails later",
                "NCCL_P2P_DISABLE=1 made it hang and NCCL_IB_DISABLE=1 helped",
                "works with NCCL_ALGO=Ring, works with NCCL_ALGO=Tree",
                "NCCL_P2P_DISABLE=1 works around nothing",
                "Fixed in: NCCL_VERSION=2.18.1",
            )
        ),
    ],
)
def test_only_a_clause_without_doubt_says_what_helped(text: str, helped: str | None) -> None:
    assert remedy(text) == helped


def test_a_table_below_the_name_of_a_tool_says_what_is_wrong_with_the_table(tmp_path: Path) -> None:
    table = "| Size (bytes) | MVAPICH2 (MB/s) | OpenMPI (MB/s) |\n|---|---|---|\n| 1024 | 2441.7 | 2400.9 |\n"
    with pytest.raises(LogError) as error:
        read(tmp_path, f"osu_bw between two nodes (2 ranks):\n\n{table}")
    assert error.value.code == "ambiguous-heading"


def test_an_operation_in_words_is_that_operation(tmp_path: Path) -> None:
    row = "1048576 262144 float sum 50 20.97 20.97 0e+00 51 20.56 20.56 0e+00\n"
    header = "# size count type redop time algbw busbw error time algbw busbw error\n"
    text = f"The all reduce bandwidth is too low\n```\n# nThread 1 nGpus 2 minBytes 32\n{header}{row}```\n"
    assert {case.op for case in read(tmp_path, text).run.cases} == {"all_reduce"}


@pytest.mark.parametrize(("option", "is_known"), [("xxx", False), ("n1:16,n2:16", True)])
def test_a_hidden_list_of_hosts_is_not_one_host(option: str, is_known: bool, tmp_path: Path) -> None:  # noqa: FBT001
    row = "1048576 262144 float sum -1 500 2.10 4.06 0 500 2.10 4.06 0\n"
    run = read(tmp_path, f"mpirun -np 32 -H {option} ./all_reduce_perf -b 1M -g 1\n{HEADER}{row}{END}").run
    assert run.imported is not None
    assert ("hosts" not in run.imported.unknown) == is_known


def test_open_mpi_without_a_count_starts_a_rank_in_every_slot(tmp_path: Path) -> None:
    title = "# OSU MPI Allreduce Latency Test v7.4\n# Size       Avg Latency(us)\n1048576              1519.43\n"
    run = read(tmp_path, f"mpirun -H b3115:128,b3142:128 ./osu_allreduce\n\n{title}").run
    assert {(case.ranks, case.nodes) for case in run.cases} == {(256, 2)}


def test_a_server_whose_client_came_does_not_wait_for_it(tmp_path: Path) -> None:
    rule = "-" * 87
    text = (
        f"* Waiting for client to connect... *\n{rule}\n                    RDMA_Write BW Test\n{rule}\n"
        f" local address: LID 0000 QPN 0x0108 PSN 0x63ad7d\n remote address: LID 0000 QPN 0x0076 PSN 0xf3810c\n{rule}\n"
        " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n 65536      664644\n"
    )
    with pytest.raises(LogError) as refused:
        read(tmp_path, text)
    assert refused.value.code == "truncated-row"


def test_three_decimals_of_rates_say_the_ranks_of_short_calls(tmp_path: Path) -> None:
    """NVIDIA/nvshmem#39."""
    rows = "256 64 int sum 7.167418 0.036 0.063\n512 128 int sum 7.522909 0.068 0.119\n"
    run = read(tmp_path, f"{NVSHMEM.rpartition('1048576')[0]}{rows}").run
    assert {(case.op, case.ranks) for case in run.cases} == {("all_reduce", 8)}


def test_a_failure_above_the_rows_is_of_a_run(tmp_path: Path) -> None:
    """NVIDIA/nccl-tests#280."""
    failure = "node1: Test NCCL failure common.cu:1005 'unhandled CUDA error'\n"
    assert "failed-test" in codes(read(tmp_path, f"{failure}{ranks_on(('node1', 0), ('node1', 1))}{HEADER}{ROW}"))


@pytest.mark.parametrize(
    ("line", "is_error"),
    [
        ("[node3:12345] frobnicate_init: ERROR: cannot map doorbell of mlx5_3", True),
        ("2023/09/02 06:23:37 error creating new device", True),
        ("[node3:12345] frobnicate_init: errors=0", False),
        ("There are no errors but I cannot say why it needs 4 hours", False),
    ],
)
def test_an_error_that_no_reader_knows_is_quoted(tmp_path: Path, line: str, *, is_error: bool) -> None:
    error = error_of(tmp_path, f"I get this\n{line}\nand then it exits. Any idea?\n")
    assert [label for label, text in error.lines if line in text] == (["Error"] if is_error else [])


def test_rows_below_a_gap_keep_both_of_their_results(tmp_path: Path) -> None:
    heading = "#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong\n"
    row = "{0} {1} float sum -1 {2:.1f} 10.00 10.00 0 {2:.1f} 10.00 10.00 0\n"
    rows = [row.format(size, size // 4, size / 1e4) for size in (1 << 20, 1 << 22, 1 << 24)]
    text = f"$ mpirun -np 2 all_reduce_perf -b 1M -e 16M -f 4 -g 1\n{heading}{rows[0]}...\n{rows[1]}{rows[2]}"
    assert len(read(tmp_path, text).imported) == 6


def test_a_list_of_records_with_lists_is_no_log_in_pieces() -> None:
    """NVIDIA/nvbandwidth's JSON, whose descriptions look like the titles of its other output."""
    case = {"bandwidth_description": "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n", "matrix": [["12.5"]]}
    nested = json.dumps({"testcases": [case] * 4})
    flat = json.dumps([{"msg": f"line {number}"} for number in range(5)])
    assert of_json(nested, lambda text: "memcpy" in text) is None
    assert of_json(flat, lambda text: "line 3" in text) is not None
