"""Logs as documents publish them: between prose, shortened, several tables with what differs above each."""

from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from busbw.errors import LogError
from busbw.runs.store import StoredRun
from busbw.system.catalog import catalogue
from busbw_analysis.data.imported import LogFacts
from busbw_analysis.data.readers.training import OfTraining
from busbw_analysis.data.sources import find

OSU: Final = "# OSU MPI Bandwidth Test v7.5\n# Size      Bandwidth (MB/s)\n{0}                  {1}\n"
HEAD: Final = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
ROW: Final = "1073741824 268435456 float sum -1 10887.4 98.62 184.92 0 10867.5 98.80 185.26 0\n"
"""busbw is 15/8 of algbw: 16 ranks."""


def read(folder: Path, text: str, **given: Any) -> StoredRun:  # noqa: ANN401 - options
    path = folder / "log"
    path.write_text(text, encoding="utf-8")
    return find(folder, str(path)).read(LogFacts.stated(given, catalogue())).stored


def code_of(folder: Path, text: str) -> str:
    with pytest.raises(LogError) as refused:
        read(folder, text)
    return refused.value.code


PLACED: Final = "$ srun -n2 -N{} osu_bw {} {}\n"
TABS: Final = '=== "intra-node"\n```console\n{}```\n\n=== "inter-node"\n```console\n{}```\n'
PROSE: Final = "A bandwidth benchmark for different message sizes  between two ranks.\nThe size and latency | rate.\n"


@pytest.mark.parametrize(
    "text",
    [
        PLACED.format(1, "H", "H")
        + OSU.format(1048576, 36400)
        + PLACED.format(2, "H", "H")
        + OSU.format(1048576, 23951),
        PROSE + TABS.format(OSU.format(1048576, 36400), OSU.format(1048576, 23951)),
        "export HSA_ENABLE_SDMA=0\nexport HIP_VISIBLE_DEVICES=0,1\n"
        + OSU.format(1048576, 142235)
        + "\nexport HIP_VISIBLE_DEVICES=0,2\n"
        + OSU.format(1048576, 38963)
        + "\nexport HSA_ENABLE_SDMA=1\nexport HIP_VISIBLE_DEVICES=0,1\n"
        + OSU.format(1048576, 49396)
        + "\nexport HIP_VISIBLE_DEVICES=0,2\n"
        + OSU.format(1048576, 41925),
    ],
    ids=["placement", "prose", "exports"],
)
def test_tables_below_other_settings_are_no_launches_of_one(text: str, tmp_path: Path) -> None:
    stored = read(tmp_path, text)
    assert len(stored.run.cases) == len(stored.imported) == text.count("# OSU")


def test_the_scope_of_a_column_tells_tables_apart(tmp_path: Path) -> None:
    head = "#alltoall_device\nsize(B)     count     type      scope     latency(us)       algbw(GB/s)   busbw(GB/s)\n"
    row = "4194304     1048576   32-bit    {}     {}         {}        {}\n"
    tables = ("thread", 400.0, 10.486, 9.175), ("warp", 300.0, 13.981, 12.233)
    stored = read(tmp_path, "".join(head + row.format(*cells) for cells in tables), ranks=8)
    assert {(case.tool_op, case.dtype) for case in stored.run.cases} == {("thread", "int32"), ("warp", "int32")}
    assert sorted(row.time_ns for row in stored.imported) == [300_000, 400_000]


def listed(*places: tuple[int, str, int]) -> str:
    lines = (
        f"#  Rank {rank:2d} Group  0 Pid 25 on {host} device {device:2d} [0000:0f:00] NVIDIA H200\n"
        for rank, host, device in places
    )
    return "# Using devices\n" + "".join(lines) + HEAD + ROW + "# Out of bounds values : 0 OK\n"


def test_ranks_between_the_first_and_last_device_of_a_host_are_there(tmp_path: Path) -> None:
    stored = read(tmp_path, listed((0, "a", 0), (7, "a", 7), (8, "b", 0), (15, "b", 7)), op="all_reduce")
    assert stored.run.hosts == ("a",) * 8 + ("b",) * 8
    assert len(stored.run.environments["b"].pci.gpus) == 8
    doubtful = read(tmp_path, listed((0, "a", 0), (7, "a", 3), (8, "b", 0), (15, "b", 3)), op="all_reduce")
    assert doubtful.run.imported is not None
    assert "hosts" in doubtful.run.imported.unknown


def test_a_summary_without_rows_is_no_hang(tmp_path: Path) -> None:
    shortened = listed((0, "a", 0), (1, "b", 0)).replace(ROW, "# ... (truncated) ...\n")
    shortened = "".join(line for line in shortened.splitlines(keepends=True) if "count" not in line)
    assert code_of(tmp_path, f"{shortened}# Avg bus bandwidth    : 22.2173\n") == "no-results"


def test_results_that_follow_messages_of_nccl_are_named(tmp_path: Path) -> None:
    text = "h:1:1 [0] NCCL INFO comm 0x1 rank 0 nranks 4 cudaDev 0 busId 1a000 - Init COMPLETE\n"
    assert code_of(tmp_path, text) == "messages"
    assert code_of(tmp_path, f"{text}0:\n algo throughput: 1336658447010.4644 bps, 1336.6 Gbps\n") == "not-a-log"
    assert code_of(tmp_path, f"IOPS=18, BW=2\n{text}") == "messages"


@pytest.mark.parametrize(
    "text", ['{\n "fio version" : "fio-3.16",\n "bw" : 3\n}\n', "  train_samples_per_second =  3.749\n"]
)
def test_outputs_of_other_programs_are_named(text: str, tmp_path: Path) -> None:
    assert code_of(tmp_path, text) == "not-a-log"
    with pytest.raises(LogError, match="which busbw does not read"):
        read(tmp_path, text)


def test_steps_in_seconds_are_read(tmp_path: Path) -> None:
    line = " iteration {:8d}/   95367 | consumed samples: 4096 | elapsed time per iteration (s): {} | lm loss: 6.3\n"
    with pytest.raises(OfTraining) as steps:
        read(tmp_path, "".join(line.format(number, 7.5) for number in range(1, 9)))
    assert {step.value for step in steps.value.steps.steps} == {7.5}


def test_tasks_of_slurm_on_each_node_are_ranks(tmp_path: Path) -> None:
    text = (
        "$ srun -N2 --ntasks-per-node=4 ./osu_alltoall\n# OSU MPI All-to-All Personalized Exchange Latency Test v7.5\n"
    )
    stored = read(tmp_path, f"{text}# Size       Avg Latency(us)\n1048576        120.5\n")
    assert {case.ranks for case in stored.run.cases} == {8}


def test_units_below_aligned_headings_are_theirs(tmp_path: Path) -> None:
    text = (
        "(src!=dst, collective=all_reduce, iterations=1)\n\n"
        "size          count         type          redop         time          algo_bw       nw_bw\n"
        "(B)           (elements)                                (ms)          (GB/s)        (GB/s)\n"
        "1048576       262144        float         sum           0.124         8.456         14.798\n"
        "2097152       524288        float         sum           0.154         13.617        23.830\n"
    )
    stored = read(tmp_path, text)
    assert [row.time_ns for row in stored.imported] == [124_000, 154_000]
    assert {case.ranks for case in stored.run.cases} == {8}


def test_units_in_the_cells_of_a_rate_without_sizes(tmp_path: Path) -> None:
    table = "2-node `all_reduce_perf`\n\n| NICs | Avg busbw |\n|---|---|\n| 4 | {} |\n"
    stored = read(tmp_path, table.format("42.53 GB/s"), ranks=16, size="8GiB")
    assert [round(1.875 * 2**33 / row.time_ns, 2) for row in stored.imported] == [42.53]
    with pytest.raises(LogError, match="'~56 GB/s' is no plain number"):
        read(tmp_path, table.format("~56 GB/s"))


@pytest.mark.parametrize(("implementation", "device"), [("CUDA", "cuda"), ("OpenCL", "unknown")])
def test_babelstream_is_of_a_gpu_if_it_says_so(implementation: str, device: str, tmp_path: Path) -> None:
    text = (
        f"BabelStream\nVersion: 5.0\nImplementation: {implementation}\nPrecision: double\n"
        "Array size: 268.4 MB (=0.3 GB)\nUsing CUDA device NVIDIA A100-SXM4-40GB\n"
        "Function    MBytes/sec  Min (sec)   Max         Average\n"
        "Copy        1329066.043 0.00040     0.00046     0.00046\n"
        "Triad       1304742.056 0.00062     0.00068     0.00068\n"
        "Dot         1117596.303 0.00048     0.00055     0.00053\n"
    )
    stored = read(tmp_path, text)
    assert {(case.op, case.device) for case in stored.run.cases} == {("stream_copy", device), ("stream_triad", device)}
    assert [round(arrays * 2**28 / row.time_ns, 1) for arrays, row in zip((2, 3), stored.imported, strict=True)] == [
        1329.1,
        1304.7,
    ]
    assert code_of(tmp_path, text.replace("Array size", "Size")) == "no-case"


@pytest.mark.parametrize(
    "text",
    [
        "No deadlock or hang observed up to 64M.\nSimple hangs above.\n",
        "The deadlock of LL is real in theory.\n",
    ],
)
def test_a_table_beside_a_text_about_hangs_is_no_hang(text: str, tmp_path: Path) -> None:
    assert code_of(tmp_path, f"{text}\n| size (B) | busbw (GB/s) |\n|---|---|\n| 1048576 | ~100 |\n") == "no-results"


def test_that_nothing_hangs_is_no_hang(tmp_path: Path) -> None:
    init = "h:1:1 [0] NCCL INFO comm 0x1 rank 0 nranks 4 cudaDev 0 busId 1a000 - Init COMPLETE\n"
    assert code_of(tmp_path, f"No deadlock or hang observed up to 64M.\n{init}") == "messages"
    assert code_of(tmp_path, f"It hangs without a warning.\n{init}") == "hang"


def test_bandwidth_test_prints_a_line_for_each_size_in_shmoo_mode(tmp_path: Path) -> None:
    line = "bandwidthTest-{}, Bandwidth = {} GB/s, Time = 0.00008 s, Size = 64000000 bytes, NumDevsUsed = 1\n"
    text = " Device 0: Tesla V100-PCIE-32GB\n" + line.format("D2D", 772.0) + line.format("H2D-Pinned", 12.3)
    stored = read(tmp_path, text + line.format("D2H-Paged", 6.1))
    assert {row.case.op: round(64e6 / row.time_ns, 1) for row in stored.imported} == {
        "memory_copy": 386.0,
        "host_to_device": 12.3,
    }


def test_repetitions_below_numbered_files_are_launches_of_their_setting(tmp_path: Path) -> None:
    table = HEAD + ROW + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 185.09\n"
    command = "NCCL_SOCKET_NTHREADS={} mpirun -np 16 all_reduce_perf -g 1\n"
    parts = (
        f"### Rep {rep}: `config-{name}-rep{rep}.log`\n```\n{command.format(threads) if rep == 1 else ''}{table}```\n"
        for name, threads in (("a", 1), ("b", 4))
        for rep in (1, 2, 3)
    )
    stored = read(tmp_path, "".join(parts), op="all_reduce")
    launches = Counter((row.case.tool_op, row.case.in_place) for row in stored.imported)
    assert set(launches.values()) == {3}
    assert len(launches) == 4


def test_labels_of_open_mpi_inside_rows_are_removed(tmp_path: Path) -> None:
    glued = ROW.replace("sum -1 ", "sum -1[1,0]<stdout>: ")
    rows = [glued.strip().replace("1073741824 268435456", f"{4 * count} {count}") for count in range(64, 80)]
    text = "".join(f"[1,0]<stdout>:{line}\n" for line in [*HEAD.splitlines(), *rows])
    stored = read(tmp_path, f"{text}[1,0]<stdout>:# Avg bus bandwidth : 185.09\n", op="all_reduce")
    assert sorted(row.time_ns for row in stored.imported) == [10_867_500] * 16 + [10_887_400] * 16


def test_averages_of_steps_are_named(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="output of a training program, which busbw does not read"):
        read(tmp_path, "step:1/6200 train_loss:10.9184 train_time:74701ms step_avg:nanms\n")


def test_both_ends_of_a_connection_are_one_launch(tmp_path: Path) -> None:
    table = (
        "                    RDMA_Write BW Test\n Dual-port       : OFF  Device         : ib0\n"
        " {} address: LID 0xd06 QPN 0x095f PSN 0x3c9e82 RKey 0x080359 VAddr 0x007f9fc479c000\n"
        " {} address: LID 0xd06 QPN 0x095e PSN 0xbd024b RKey 0x080258 VAddr 0x007fe62504b000\n"
        " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n"
        " 8388608    20000            24056.74            24056.72   0.003007\n"
    )
    waits = "* Waiting for client to connect... *\n"
    stored = read(tmp_path, table.format("local", "remote") + waits + table.format("remote", "local"))
    assert [row.launch for row in stored.imported] == [0]
    again = read(tmp_path, table.format("local", "remote") * 2)
    assert [row.launch for row in again.imported] == [0, 1]


def test_a_heading_alone_is_where_a_job_hangs_whatever_helped(tmp_path: Path) -> None:
    text = "Works well with `-x UCX_DC_MLX5_TM_ENABLE=n`.\n# Benchmarking Allreduce\n# #processes = 1440\n"
    assert code_of(tmp_path, f"{text}       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]\n") == "hang"


def test_powers_of_two_up_to_1024_of_a_unit_are_of_1024(tmp_path: Path) -> None:
    rows = "".join(f"| {size} | {size} |\n" for size in (256, 512, 1024))
    table = f"all_reduce on 8 GPUs\n\n| Message Size (KB) | busbw (GB/s) |\n|---|---|\n{rows}"
    assert {row.case.size_bytes for row in read(tmp_path, table).imported} == {2**18, 2**19, 2**20}
    assert code_of(tmp_path, table.replace("| 1024 | 1024 |\n", "")) == "ambiguous-heading"
