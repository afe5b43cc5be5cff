"""Logs of other tools: what every reader makes of a small one with made-up numbers, and of generated tables.

``expected.json`` has all that is told by each log in tests/data/logs, or the code by which it is refused.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fuzz_logs
import msgspec
import pytest
from exhaustive import trials
from hypothesis import given
from hypothesis import strategies as st
from testing.logs import EXPECTED as EXPECTED_FILE
from testing.logs import LOGS, log_of, outcome, read_log
from testing.narrow import require

from busbw.errors import LogError
from busbw.ops import OPS
from busbw_analysis.data.readers.deduce import disagreements
from busbw_analysis.data.readers.lines import clean, number, op_named, whole
from busbw_analysis.data.readers.log import Aggregate
from busbw_analysis.data.readers.logs import READERS, recognise

EXPECTED: dict[str, Any] = json.loads(EXPECTED_FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_log_is_read_as_it_says(name: str) -> None:
    assert outcome(LOGS / name) == EXPECTED[name]


def test_every_log_and_every_reader_has_a_test() -> None:
    names = {path.name for path in LOGS.iterdir()} - {EXPECTED_FILE.name}
    assert names == set(EXPECTED)
    used = {reader.name for name in names if (reader := recognise((LOGS / name).read_bytes())) is not None}
    assert used == {reader.name for reader in READERS}


def rows(name: str) -> tuple[Aggregate, ...]:
    return read_log(LOGS / name).rows


def test_a_block_without_ranks_is_no_size(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("# OSU MPI Allgather Latency Test v5.6\n# Size       Avg Latency(us)\n8   2.5\n", encoding="utf-8")
    (row,) = read_log(path).rows
    assert (row.tool_size_bytes, row.size_bytes, row.ranks) == (8, None, None)


@pytest.mark.parametrize(
    ("factor", "code"),
    [
        (1.0, None),
        (1e9 / 2**30, "gib-as-gb"),
        (8.0, "size-per-rank"),
        (8 / 7, "no-bus-factor"),
        (3.0, "rate-differs"),
    ],
)
def test_a_bandwidth_that_size_time_and_ranks_do_not_give_is_named(factor: float, code: str | None) -> None:
    right = Aggregate(line=3, op="all_gather", ranks=8, size_bytes=1 << 30, time_seconds=0.01)
    row = msgspec.structs.replace(right, busbw=factor * (1 << 30) / 0.01 * 7 / 8)
    assert [note.code for note in disagreements([right, row])] == ([] if code is None else [code])


def test_the_environment_of_a_job_is_not_read() -> None:
    assert "SECRET" not in msgspec.json.encode(read_log(LOGS / "nccl-tests-v4.json")).decode()


def test_a_job_that_failed_is_refused_with_the_last_error_of_nccl() -> None:
    with pytest.raises(LogError, match="refused") as refused:
        read_log(LOGS / "nccl-tests-failed.txt")
    assert refused.value.code == "job-failed"
    log = read_log(LOGS / "nccl-tests-truncated.txt")
    assert require(log.last_error).startswith("Test NCCL failure")


def test_the_time_that_a_processor_takes_is_none_of_the_operation(tmp_path: Path) -> None:
    text = (LOGS / "nccl-tests-v1.json").read_text(encoding="utf-8")
    path = tmp_path / "log.json"
    path.write_text(re.sub(r'"time"\s*:', '"cpu_time":', text), encoding="utf-8")
    for row in (*read_log(path).rows, *rows("nccl-tests-cputime.txt")):
        assert row.time_seconds is None
        assert row.rate == (row.algbw if row.algbw is not None and row.algbw >= 0.1e9 else None)


def test_an_error_before_the_last_result_is_no_failure(tmp_path: Path) -> None:
    text = (LOGS / "osu-pairs.txt").read_text(encoding="utf-8")
    path = tmp_path / "log"
    for content, failed in ((f"UCX  ERROR no rc on eth0\n{text}", False), (f"{text}Assertion failed in a.c\n", True)):
        path.write_text(content, encoding="utf-8")
        log = read_log(path)
        assert (log.last_error is not None, "warning" in {note.code for note in log.notes}) == (failed, not failed)


@pytest.mark.parametrize(
    ("printed", "words"),
    [
        ("{{0,2,4,6},{1,3,5,7}}", ", groups 2"),
        ("[2,4]<=[8]", ", groups 2"),
        ("[4,8]<=[2,16]T(1,0)", ", groups 4"),
        ("", ""),
    ],
)
def test_xla_lists_groups_or_counts_them(printed: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    text = (LOGS / "jax.txt").read_text(encoding="utf-8")
    path.write_text(text.replace("{{0,2,4,6},{1,3,5,7}}", printed), encoding="utf-8")
    assert {row.settings for row in read_log(path).rows} == {f"mesh 2x2x2 over 2x2x1{words}"}


@pytest.mark.parametrize(("rate", "unit"), [(740.0, 1e9 / 8), (88214.9, 2.0**20), (3.0, None)])
def test_the_unit_of_a_rate_without_one_is_that_which_its_messages_give(
    tmp_path: Path, rate: float, unit: float | None
) -> None:
    path = tmp_path / "log.json"
    path.write_text((LOGS / "perftest.json").read_text(encoding="utf-8").replace("740.00", str(rate)), encoding="utf-8")
    if unit is None:
        with pytest.raises(LogError) as refused:
            read_log(path)
        assert refused.value.code == "no-results"
    else:
        assert [row.rate for row in read_log(path).rows] == [pytest.approx(rate * unit)]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "not-a-log"),
        (b"hello\n", "not-a-log"),
        (b"\x7fELF\x02\x01\x01\x00\x00\x00nThread 1 nGpus 1", "binary"),
        (b"# nThread 1 nGpus 8 minBytes 8\n", "hang"),
        (b"# nThread 1 nGpus 8 minBytes 8\n# size count type redop root time\n\x0b\n", "hang"),
        (b"# nThread 1 nGpus 8 minBytes 8\n# size count redop time\n8 2 sum\n", "truncated-row"),
        (b'{"version":3,"out_of_place":', "truncated"),
        (b'{"version":3,"out_of_place":}\n}', "damaged-json"),
    ],
)
def test_what_is_no_log_is_refused(content: bytes, code: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    with pytest.raises(LogError, match=r"^log") as refused:
        read_log(path)
    assert refused.value.code == code


@pytest.mark.parametrize(
    "line",
    [
        "  write: IOPS=2931, BW=2932MiB/s (3074MB/s)(20.0GiB/6986msec)",
        "Intel(R) Memory Latency Checker - v3.11",
        # NVIDIA/gds-nvidia-fs#30, hpc/ior#27 and #452
        "Throughput: 2.308903 GiB/sec, Avg_Latency: 81215.056568 usecs",
        "Max Write: 25154.87 MiB/sec (26376.80 MB/sec)",
        "SUMMARY rate: (of 1 iterations)",
        "      Name    Self CPU %   Self CPU   Self CUDA   Self CUDA %    CUDA total  CUDA time avg    # of Calls",
        "[tuning] Best combine: SMs 24, NVL chunk 2, RDMA chunk 20: 44.37 GB/s (RDMA), 145.16 GB/s (NVL)",
        " Transfer 00      |  33.520 GB/s |    2.002 ms |     67108864 bytes | G0 -> GPU00:004 -> G1",
        "Triad 11094.3 MB/s",
        "Benchmark                 Time             CPU   Iterations UserCounters...",
        "[INFO] [timer.py:189:stop] 0/40, SamplesPerSec=83.48, MemAllocated=0.26GB",
        "  1%|2   | 3/203 [00:20<19:53,  5.97s/it]",
        "psum_ici: Matrix size: 9x9, matrix_size_gbyte=0.6,achieved_bandwidth_gbyte_s=235.7",
        "psum_ici: Matrix size: 9x9, matrix_size_gbyte=0.6, ici_time_ms (median) = 2.5",
        "metadata:  {'iteration': 16384, 'op_type': 'AG', 'rank': 4}",
        "Success [1/1]. Benchmark ID: all_reduce-{'matrix_dim': 1024}. Metrics: {'avg_ms': 0.2}",
        "8-device collective performance",
    ],
)
def test_outputs_that_hold_no_comparable_result_are_known_by_name(line: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(f"{line}\n", encoding="utf-8")
    with pytest.raises(LogError, match=r"output of .*, which busbw does not read") as refused:
        read_log(path)
    assert refused.value.code == "not-a-log"


def test_other_encodings_are_read_or_noted(tmp_path: Path) -> None:
    text = (LOGS / "osu-pairs.txt").read_text(encoding="utf-8")
    path = tmp_path / "log"
    path.write_text(text, encoding="utf-16")
    assert read_log(path).rows == rows("osu-pairs.txt")
    path.write_bytes("# host Zürich\n".encode("latin-1") + text.encode())
    assert [(note.code, note.line) for note in read_log(path).notes] == [("encoding", 1)]


def test_a_log_may_begin_with_much_that_nccl_says(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("w", encoding="utf-8") as file:
        file.writelines("node1:4000:4010 [0] NCCL INFO Channel 00/02 : 0 1\n" for _ in range(50_000))
        file.write((LOGS / "nccl-tests-2.19.txt").read_text(encoding="utf-8"))
    log = read_log(path)
    assert [row.time_seconds for row in log.rows] == [row.time_seconds for row in rows("nccl-tests-2.19.txt")]
    assert log.rows[0].line == 50_021


TIMED = "Sun Dec 24 09:52:05 2017[1,0]<stdout>:"


LOGGED = (
    *("(pid=1234, ip=10.0.0.1) ", "(main pid=1234) ", "2026/05/01 10:11:12 ", "10:11:12 ", "INFO:root:"),
    *("2026-05-01 10:11:12,123 - INFO - ", "May 01 10:11:12 node1 nccl[1234]: "),
    "2026-05-01 10:11:12.123 | INFO     | mod:fn:12 - ",
    "job-x7k2p launcher ",
)


@pytest.mark.parametrize(
    "prefix",
    [*LOGGED, "[1,0]<stdout>:", TIMED, "0: ", "[0] ", "2026-08-21T03:26:03.123Z ", "> ", "    ", "job-x7k2p launcher "],
)
def test_prefixes_change_nothing(prefix: str) -> None:
    lines = (LOGS / "nccl-tests-2.19.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    plain = log_of("nccl-tests", iter(lines))
    assert log_of("nccl-tests", iter(prefix + line for line in lines)).rows == plain.rows


@pytest.mark.parametrize(
    "name", ["imb.txt", "nvbandwidth.txt", "osu-pairs.txt", "perftest-bw.txt", "nccl-tests-2.19.txt"]
)
def test_a_list_of_quoted_lines_and_indented_ones_say_the_same(name: str, tmp_path: Path) -> None:
    lines = (LOGS / name).read_text(encoding="utf-8").splitlines()
    plain = read_log(LOGS / name).tables
    path = tmp_path / name
    for written in ((f'        "{line}",' for line in lines), (f"    {line}" for line in lines)):
        path.write_text("\n".join(written) + "\n", encoding="utf-8")
        assert read_log(path).tables == plain


def test_a_row_keeps_its_numbers_before_a_comment_and_text_is_no_row(tmp_path: Path) -> None:
    path = tmp_path / "log"
    rows = "4  3.50  <- eager\n8  4.50\n16  5.50 ms later\n32 6.50  # rendezvous\n"
    path.write_text(f"# OSU MPI Latency Test v7.4\n# Size  Avg Latency(us)\n{rows}", encoding="utf-8")
    assert [row.tool_size_bytes for row in read_log(path).rows] == [4, 8, 32]


def test_osu_of_long_ago_has_its_version_in_brackets(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(
        "# OSU MPI Bidirectional Bandwidth Test (Version 2.1)\n# Size\t\tBi-Bandwidth (MB/s) \n1024\t\t200.5\n"
        "# OSU MPI Latency Test (Version 2.1)\n# Size\t\tLatency (us) \n1024\t\t5.05\n",
        encoding="utf-8",
    )
    log = read_log(path)
    assert [table.tool_version for table in log.tables] == ["2.1", "2.1"]
    assert [(row.op, row.rate, row.time_seconds) for row in log.rows] == [
        ("pair_bidir", 200.5e6, None),
        ("ping_pong", None, 5.05e-6),
    ]


def test_superbench_runs_groups_of_nodes(tmp_path: Path) -> None:
    path = tmp_path / "results-summary.jsonl"
    names = [f"nccl-bw:mesh/allreduce_{group}:1024_{what}:0" for group in ("0_0", "0_1") for what in ("time", "busbw")]
    path.write_text(json.dumps({"node": "a", **dict.fromkeys(names, 2.0)}) + "\n", encoding="utf-8")
    found = [(row.op, row.size_bytes, row.time_seconds, row.others["group"]) for row in read_log(path).rows]
    assert found == [("all_reduce", 1024, 2e-6, group) for group in ("0_0", "0_1")]


def test_a_table_of_ucc_that_does_not_say_its_collective_has_no_rows() -> None:
    with pytest.raises(LogError) as refused:
        log_of("ucc_perftest", ["Memory type:            host\n", "  1  4  2.5  2.0  3.0\n"])
    assert refused.value.code == "no-header"


def test_a_test_of_ucx_that_was_cut_has_the_average_until_then() -> None:
    title = "| Test: tag match bandwidth |\n"
    rows = [f"[thread 0]  {n}  0.588 440.0 440.0  2325.25  2325.25  2272  2272\n" for n in (33, 53)]
    log = log_of("ucx_perftest", [title, *rows])
    assert [row.iterations for row in log.rows] == [53]
    assert [note.code for note in log.notes if note.code == "unfinished"]
    (row,) = log_of(
        "ucx_perftest", [title, *rows, "Final:  60  0.588 440.0 440.0  2325.25  2325.25  2272  2272\n"]
    ).rows
    assert row.iterations == 60


def test_full_rows_below_a_short_heading_are_read() -> None:
    lines = [
        "# OSU MPI-CUDA Reduce Latency Test v7.3\n",
        "# Size       Avg Latency(us)\n",
        "1  50.89  18.27  89.23  1000\n",
    ]
    (row,) = log_of("osu-micro-benchmarks", lines).rows
    assert (row.time_seconds, row.iterations) == (50.89e-6, 1000)


def test_a_comment_behind_a_row_is_no_column() -> None:
    head = ["# OSU MPI Allreduce Latency Test v7.3\n", "# Size       Avg Latency(us)\n"]
    log = log_of("osu-micro-benchmarks", [*head, "4 812.33 <-- why slow\n", "8 813.5\n"])
    assert [row.time_seconds for row in log.rows] == [812.33e-6, 813.5e-6]


def test_every_excerpt_of_mpi_names_its_operation() -> None:
    head = "#bytes #repetitions t_min[usec] t_max[usec] t_avg[usec]\n"
    lines = [part for name in ("Allreduce", "Bcast") for part in (f"{name}:\n", head, "4 160 30.48 33.48 32.24\n")]
    assert [row.op for row in log_of("intel-mpi-benchmarks", lines).rows] == ["all_reduce", "broadcast"]


def test_a_barrier_of_ucc_has_no_size() -> None:
    lines = ["Collective: Barrier\n", "Count  Size   Time, us\n", "N/A N/A 2.50 2.00 3.00\n"]
    (row,) = log_of("ucc_perftest", lines).rows
    assert (row.op, row.tool_size_bytes, row.time_seconds) == ("barrier", 0, 2.5e-6)


ROCM_RUN = """
Device: 0,  AMD EPYC
Device: 1,  AMD Instinct MI210,  05:0.0
Device: 2,  AMD Instinct MI210,  08:0.0
Unidirectional copy peak bandwidth GB/s
D/D 0 1 2
1 28.1 637.4 27.1
Bdirectional copy peak bandwidth GB/s
D/D 0 1 2
1 52.1 N/A 51.2
Inter-Device Numa Distance
D/D 0 1 2
1 20 0 40
"""


def test_only_matrices_of_rates_are_read_in_every_run_of_rocm_bandwidth_test() -> None:
    tables = log_of("rocm_bandwidth_test", (ROCM_RUN * 2).splitlines(keepends=True)).tables
    expected = [
        ("device_to_host", 28.1e9, "GPU 0"),
        ("memory_copy", 637.4e9, "GPU 0"),
        ("peer_copy", 27.1e9, "GPU 0"),
        ("peer_copy_both", 51.2e9, "GPU 0"),
    ]
    assert [[(row.op, row.rate, row.source) for row in table.rows] for table in tables] == [expected] * 2


def test_what_is_printed_of_links_displaces_no_reader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = (LOGS / "nccl-tests-2.19.txt").read_text(encoding="utf-8")
    path = tmp_path / "log"
    path.write_text("\t\tLnkSta: Speed 16GT/s, Width x16\n" * 99 + text, encoding="utf-8")
    with monkeypatch.context() as patched:
        patched.setattr("busbw_analysis.data.readers.logs.HEAD_BYTES", 1024)
        assert len(read_log(path).rows) == 6
    matrix = "        GPU0    GPU1\nGPU0     X      NV18\nGPU1    NV18     X\n"
    table = (LOGS / "table.md").read_text(encoding="utf-8")
    path.write_text(f"{matrix}\n{table}\n# Avg bus bandwidth    : 364.24\n", encoding="utf-8")
    assert [row.time_seconds for row in read_log(path).rows] == [row.time_seconds for row in rows("table.md")]


def test_rows_of_a_part_of_the_calls_of_ucx_are_none_of_the_results(tmp_path: Path) -> None:
    path = tmp_path / "log"
    title = "| Test: tag match bandwidth |\n| Data layout: (automatic) |\n| Message size: 1024 |\n"
    interim = "".join(f"[thread 0]  {n}  0.588 440.0 440.0  2325.25  2325.25  2272  2272\n" for n in range(100, 199))
    path.write_text(f"{title}{interim}Final:  200  0.588 440.0 440.0  2325.25  2325.25  2272  2272\n", encoding="utf-8")
    assert [row.iterations for row in read_log(path).rows] == [200]


def test_a_row_with_a_blank_reduction_is_not_shifted_where_it_is_cut() -> None:
    head = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n"
    row = "1048576 262144 float -1 45.20 23.19 34.79 0e+00"
    lines = [head, f"{row}\n", f"{row} 44.9\n", f"{row} 44.90 23.35 35.03 0e+00\n"]
    assert [row.time_seconds for row in log_of("nccl-tests", lines).rows] == [45.2e-6, 45.2e-6, 45.2e-6, 44.9e-6]


def test_two_ranks_that_both_print_rows_are_several_jobs() -> None:
    lines = (LOGS / "nccl-tests-2.19.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    with pytest.raises(LogError) as refused:
        log_of("nccl-tests", (f"{at % 2}: {line}" for at, line in enumerate(lines)))
    assert refused.value.code == "interleaved-logs"


def test_two_headers_are_several_jobs_only_when_the_rows_come_twice() -> None:
    lines = (LOGS / "nccl-tests-2.19.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    head = next(line for line in lines if line.startswith("#       size"))
    once = [head, *lines]
    assert len(log_of("nccl-tests", iter(once)).rows) == 6
    twice = [line for line in lines if line[:1] == " " or line == head for _ in range(2)]
    with pytest.raises(LogError) as refused:
        log_of("nccl-tests", iter(twice))
    assert refused.value.code == "interleaved-logs"


@pytest.mark.parametrize(
    ("name", "op"), [("ReduceScatter", "reduce_scatter"), ("alltoallv_perf", "all_to_all_v"), ("hypercube", None)]
)
def test_names_of_collectives(name: str, op: str | None) -> None:
    assert op_named(name) == op
    assert op is None or op in OPS


@pytest.mark.parametrize("text", ["nan", "inf", "1_0", "0x1", "\u0663", "", "1e999", "N/A", "1.2.3", "9" * 400])
def test_only_numbers_are_numbers(text: str) -> None:
    assert number(text) is None
    assert whole(text) is None


@pytest.mark.parametrize("label", ["", "[1,0]<stdout>:", "0: "])
def test_the_last_word_of_a_row_is_no_part_of_the_host_that_nccl_begins_with(label: str) -> None:
    said = "node7:12:34 [0] NCCL INFO AllReduce: opCount 0"
    texts = [line.text for line in clean([f"{label}{said}", f"{label}  9.1  8.2  7.3      0{said}"])]
    assert texts[1].split() == ["9.1", "8.2", "7.3", "0"]


# --- rendered tables of random rows ---------------------------------------------------------------------------------

POSITIVE = st.floats(0.01, 9e5).map(lambda value: float(f"{value:.4g}"))
SIZES = st.integers(1, 1 << 40)


@given(
    st.lists(st.tuples(SIZES, POSITIVE, POSITIVE, st.sampled_from(("0", "N/A", "7"))), min_size=1, max_size=20),
    st.sampled_from(("all_reduce", "sendrecv", "reduce")),
    st.integers(2, 64),
    st.sampled_from(("sum", "")),
)
def test_a_table_of_nccl_tests_reads_back(
    table: Sequence[tuple[int, float, float, str]], name: str, ranks: int, redop: str
) -> None:
    lines = [f"# Collective test starting: {name}_perf", "# nThread 1 nGpus 1 minBytes 8"]
    lines += [f"#  Rank {rank} Group  0 Pid 1 on host device 0 [0000:0f:00] GPU" for rank in range(ranks)]
    lines.append("#  size count type redop root time algbw busbw #wrong time algbw busbw #wrong")
    for size, first, second, wrong in table:
        rates = [f"{size / time / 1e3:.6g} {size / time / 1e3:.6g} {wrong}" for time in (first, second)]
        lines.append(f"  {size} {size} int8 {redop} -1 {first} {rates[0]} {second} {rates[1]}")
    found = log_of("nccl-tests", (f"{line}\n" for line in [*lines, "# Out of bounds values : 0 OK"]))
    assert [(row.size_bytes, row.ranks, row.redop) for row in found.rows[::2]] == [
        (size, ranks, redop or None) for size, *_ in table
    ]
    assert [row.time_seconds for row in found.rows] == [time / 1e6 for _, *times, _ in table for time in times]
    assert [row.in_place for row in found.rows] == [False, True] * len(table)
    states = {"0": "verified", "N/A": "not checked", "7": "wrong"}
    assert [row.check for row in found.rows[::2]] == [states[wrong] for *_, wrong in table]
    assert found.tables[0].complete


def square(length: int) -> st.SearchStrategy[list[list[float]]]:
    return st.lists(st.lists(POSITIVE, min_size=length, max_size=length), min_size=length, max_size=length)


@given(st.integers(2, 8).flatmap(square))
def test_a_matrix_of_nvbandwidth_reads_back(matrix: Sequence[Sequence[float]]) -> None:
    lines = ["Running device_to_device_memcpy_write_ce.", "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)"]
    lines.append("   " + "".join(f"{column:>10}" for column in range(len(matrix))))
    lines += [
        f"{row:>2} " + " ".join("N/A" if column == row else str(value) for column, value in enumerate(values))
        for row, values in enumerate(matrix)
    ]
    found = log_of("nvbandwidth", (f"{line}\n" for line in lines))
    assert [(row.source, row.target, row.rate) for row in found.rows] == [
        (f"GPU {row}", f"GPU {column}", value * 1e9)
        for row, values in enumerate(matrix)
        for column, value in enumerate(values)
        if row != column
    ]


def test_hostile_logs_are_read_or_refused() -> None:
    assert fuzz_logs.campaign(seed=1, seconds=60, count=trials(60, 400)).failures == ()
