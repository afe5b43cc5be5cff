"""Tables that people paste: the right numbers, or a code that says what is ambiguous."""

from pathlib import Path

import pytest
from testing.logs import LOGS, read_log
from testing.narrow import require_type

from busbw.errors import LogError
from busbw.runs.records import Imported
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.imported import LogFacts
from busbw_analysis.data.load import pool
from busbw_analysis.data.readers.headings import amount, column
from busbw_analysis.data.sources import find

GIB = 1 << 30


def imported(text: str, folder: Path, facts: LogFacts | None = None) -> list[Imported]:
    path = folder / "pasted"
    path.write_text(text, encoding="utf-8")
    return list(find(folder, str(path)).read(facts or LogFacts()).stored.imported)


def numbers(text: str, folder: Path) -> list[tuple[str, int, int, float, bool]]:
    """Operation, ranks, S, time in µs with four digits, and whether it is in place."""
    return [
        (row.case.op, row.case.ranks, row.case.size_bytes, float(f"{row.time_ns / 1e3:.4g}"), row.case.in_place)
        for row in imported(text, folder)
    ]


def markdown(header: str, *rows: str, above: str = "all_reduce on 8 GPUs") -> str:
    rule = "|---" * (header.count("|") + 1) + "|"
    return "\n".join([above, "", f"| {header} |", rule, *(f"| {row} |" for row in rows), ""])


@pytest.mark.parametrize(
    ("heading", "name", "factors"),
    [
        ("**Size** (B)", "size", (1.0,)),
        ("size_bytes", "size", (1.0,)),
        ("payload", "size", ()),
        ("msg size [MiB]", "size", (2.0**20,)),
        ("Message Size (MB)", "size", (1e6, 2.0**20)),
        ("algbw_GBps", "algbw", (1e9,)),
        ("Algo BW (GBPS)", "algbw", (1e9,)),
        ("BusBW (Gbps)", "busbw", (1e9 / 8,)),
        ("busBw", "busbw", ()),
        ("busbw_gbps", "busbw", (1e9, 1e9 / 8)),
        ("Throughput (Gbit/s)", "bandwidth", (1e9 / 8,)),
        ("GB/s", "bandwidth", (1e9,)),
        ("time:avg(us)", "time", (1e-6,)),
        ("Latency in ms", "time", (1e-3,)),
        ("count (elements)", "count", ()),
        ("before busbw", None, ()),
        ("size per rank", None, ()),
        ("time (GB/s)", None, ()),
        ("busbw MB", None, ()),
    ],
)
def test_a_heading_is_known_by_all_of_its_words(heading: str, name: str | None, factors: tuple[float, ...]) -> None:
    meaning = column(heading)
    assert meaning.name == name
    assert meaning.factors == pytest.approx(factors)


@pytest.mark.parametrize(
    ("cell", "whole", "value"),
    [
        ("0.92GBps", False, (0.92, "GBps")),
        ("8.4 MB", True, (8.4, "MB")),
        ("1,048,576", False, (1048576, "")),
        ("8,192", True, (8192, "")),
        ("8,192", False, None),
        ("1,234.5", False, (1234.5, "")),
        ("~5", False, None),
        ("N/A", False, None),
    ],
)
def test_a_cell_is_a_number_with_or_without_its_unit(
    cell: str, *, whole: bool, value: tuple[float, str] | None
) -> None:
    number = amount(cell, whole=whole)
    assert (None if number is None else number[:2]) == value


@pytest.mark.parametrize(
    "text",
    [
        "op,size,ranks,busbw (GB/s)\nall_reduce,1073741824,8,375.8\n",
        "op;size (MiB);ranks;busbw (Gb/s)\nAllReduce;1024;8;3006.4\n",
        "op\tsize_bytes\tnproc\talgbw_GBps\nall-reduce\t1073741824\t8\t214.743\n",
        markdown("size | busbw", "1GiB | 375.8GBps"),
        markdown("size | time | busbw", "1GiB | 5.0002 ms | 375.8 GB/s"),
        markdown("size | time (us) | bandwidth (gbps)", "1,073,741,824 | 5000.2 | 375.8"),
        markdown("size | count | time | busbw", "(B) | (elements) | (us) | (GB/s)", "1073741824 | 2 | 5000.2 | 375.8"),
        "size (B) | latency min (us) | latency avg (us)\n--- | --- | ---\n1073741824 | 4000 | 5000.2\n",
        "## AllReduce, 8 GPUs\nMessage size    Latency     Bus bandwidth\n1 GiB           5000.2 us     375.8 GB/s\n",
        "   op        size  ranks  time_us   busbw_GBps\n0  all_reduce  1073741824      8   5000.2  375.8\n",
        "8 ranks\n│ op │ Size (B) │ Time (us) │\n├──┼──┼──┤\n│ all_reduce │ 1073741824 │ 5000.2 │\n",
        '"op","size_bytes","number of ranks","busbw (GB/s)"\n"all_reduce","1073741824","8","375.8"\n',
        "op,size_bytes,nodes,gpus,busbw (GB/s)\nall_reduce,1073741824,1,8,375.8\n",
        "all_reduce on 16 GPUs\nsize,algbw (GB/s),busbw (GB/s)\n1GiB,214.74,375.8\n",
        markdown("size | busbw", "1GiB | 375.8GBps") + "# Avg bus bandwidth    : 375.8\n",
        "./all_reduce_perf -b 1G -e 1G\n8 ranks\nsize time algbw busbw\n1073741824 5000.2 214.74 375.8\n",
    ],
)
def test_one_result_in_many_spellings(text: str, tmp_path: Path) -> None:
    (row,) = numbers(
        text if "GPUs" in text or "op" in text or "ranks" in text else f"all_reduce, 8 GPUs\n{text}", tmp_path
    )
    assert row == ("all_reduce", 8, GIB, 5000.0, False)


@pytest.mark.parametrize(
    ("header", "cells", "expected"),
    [
        ("out-of-place busbw (GB/s) | in-place busbw (GB/s)", "375.8 | 187.9", [(5000.0, False), (10000.0, True)]),
        (
            "algbw GB/s | busbw GB/s | algbw GB/s | busbw GB/s",
            "214.7|375.8|107.4|187.9",
            [(5000.0, False), (10000.0, True)],
        ),
        ("oop time (us) | ip time (us)", "5000 | 10000", [(5000.0, False), (10000.0, True)]),
        ("time (us) | busbw (in-place) GB/s", "4000 | 187.9", [(10000.0, True)]),
        ("busbw GB/s | busbw (in-place) GB/s", "375.8 | 187.9", [(5000.0, False), (10000.0, True)]),
    ],
)
def test_results_in_place_and_out_of_place_have_columns_of_their_own(
    header: str, cells: str, expected: list[tuple[float, bool]], tmp_path: Path
) -> None:
    text = markdown(f"size | {header}", f"1GiB | {cells}")
    assert sorted((time, in_place) for *_, time, in_place in numbers(text, tmp_path)) == sorted(expected)


@pytest.mark.parametrize(
    ("header", "rows", "sizes"),
    [
        # size over time is algbw
        ("size (MB) | time (ms) | algbw (GB/s)", ("1024 | 6.785 | 158.25",), [GIB]),
        ("size (MB) | time (ms) | algbw (GB/s)", ("1000 | 6.319 | 158.25",), [10**9]),
        ("size | time (us) | algbw (GB/s)", ("8 B | 10.1 | 0.00", "1 GB | 5000 | 214.7"), [8, GIB]),
        # doubles across a unit, or is a power of two only when rounded
        ("size | busbw (GB/s)", ("512 MB | 300", "1 GB | 310"), [GIB // 2, GIB]),
        ("size | busbw (GB/s)", ("8.39 MB | 300", "67.1 MB | 310"), [8_390_000, 67_100_000]),
        ("size | busbw (GB/s)", ("1 GB | 300", "2 GB | 310"), None),
        ("size | busbw (GB/s)", ("1 MB | 300", "1 GB | 310"), None),
        ("size (MB) | busbw (GB/s)", ("100 | 300",), None),
        # 512 B in 2 ns
        ("size | busbw (GB/s)", ("512 | 300",), None),
        ("size (B) | busbw (GB/s)", ("512 | 300",), [512]),
    ],
)
def test_a_size_in_mb_is_what_the_table_leaves_or_asked_for(
    header: str, rows: tuple[str, ...], sizes: list[int] | None, tmp_path: Path
) -> None:
    text = markdown(header, *rows)
    if sizes is not None:
        assert [row[2] for row in numbers(text, tmp_path)] == sizes
        return
    with pytest.raises(LogError) as refused:
        imported(text, tmp_path)
    assert refused.value.code == "ambiguous-heading"


@pytest.mark.parametrize(("algbw", "is_read"), [("214.7", True), ("1718", True), ("500", False)])
def test_gbps_in_small_letters_is_what_size_and_time_give(algbw: str, *, is_read: bool, tmp_path: Path) -> None:
    text = f"op,size,ranks,time_us,algbw_gbps\nall_reduce,1073741824,8,5000,{algbw}\n"
    path = tmp_path / "a.csv"
    path.write_text(text, encoding="utf-8")
    run = find(tmp_path, str(path)).read(LogFacts()).stored.run
    assert run.imported is not None
    assert ("ambiguous-heading" in {note.code for note in run.imported.notes}) == (not is_read)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (markdown("size (B) | bandwidth (GB/s)", "1048576 | 100"), "ambiguous-heading"),
        (markdown("size (B) | busbw_gbps", "1048576 | 100"), "ambiguous-heading"),
        (markdown("size (B) | time (us) | time (us)", "1048576 | 100 | 110"), "ambiguous-heading"),
        (markdown("size (B) | algbw | busbw", "1048576 | 100 | 175"), "no-unit"),
        (markdown("size (B) | time", "1048576 | 100"), "no-unit"),
        (markdown("size (B) | time | algbw | busbw", "1048576 | 100 | 300 | 525"), "no-unit"),
        (markdown("size (B) | busbw (GB/s)", "1048576 | 100", above="all_reduce, 2 nodes, 8 GPUs each"), "no-ranks"),
        (markdown("size (B) | busbw (GB/s)", "1048576 | 100", above="all_reduce, 2 servers of 8xH100"), "no-ranks"),
        (markdown("size (B) | busbw (GB/s)", "1048576 | 100", above="all_reduce beats all_gather, 8 GPUs"), "no-op"),
        ("op,size_bytes,nodes,gpus,busbw (GB/s)\nall_reduce,1073741824,2,8,375.8\n", "no-ranks"),
        (markdown("size (B) | busbw (GB/s)", "1048576 | ~100"), "no-results"),
        (markdown("size (B) | score", "1048576 | 100"), "not-a-log"),
        ("We measured the size, the latency and the bandwidth,  and all of it was bad.\n", "not-a-log"),
    ],
)
def test_what_has_two_meanings_is_refused(text: str, code: str, tmp_path: Path) -> None:
    with pytest.raises(LogError) as refused:
        imported(text, tmp_path)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("given", "options"),
    [
        (LogFacts(), {"--op", "--ranks", "--size"}),
        (LogFacts(op="all_reduce"), {"--ranks", "--size"}),
        (LogFacts(ranks=8), {"--op", "--size"}),
        (LogFacts(size="1GiB", ranks=8), {"--op"}),
        (LogFacts(op="barrier"), {"--ranks"}),
    ],
)
def test_all_that_a_table_lacks_is_asked_for_at_once(given: LogFacts, options: set[str], tmp_path: Path) -> None:
    with pytest.raises(LogError) as refused:
        imported(markdown("run | busbw (GB/s)", "1 | 90.1", "2 | 91.1", above=""), tmp_path, given)
    assert {option for option in ("--op", "--ranks", "--size") if option in str(refused.value)} == options


def test_the_duration_beside_samples_is_that_of_the_test(tmp_path: Path) -> None:
    """cloud-bulldozer/e2e-benchmarking#575: k8s-netperf."""
    header, row = "message size | duration | samples | avg value", "8192 | 30s | 3 | 7164.31 (Mb/s)"
    (imported_row,) = imported(markdown(header, row, above="broadcast on 2 GPUs"), tmp_path)
    assert 8192 * 8 / imported_row.time_ns == pytest.approx(7.16431)
    with pytest.raises(LogError) as refused:
        imported(markdown("message size | duration | samples", "8192 | 30s | 3"), tmp_path)
    assert refused.value.code == "no-results"


@pytest.mark.parametrize(
    ("headings", "cells"),
    [
        ("samples,duration_us", "20,100"),
        ("num_samples,avg_duration_us", "20,100"),
        ("samples,duration_us,time_us", "20,9999,100"),
    ],
)
def test_a_duration_in_us_beside_samples_is_the_time_unless_there_is_another(
    headings: str, cells: str, tmp_path: Path
) -> None:
    rows = numbers(f"op,ranks,size_bytes,{headings}\nall_reduce,8,1048576,{cells}\n", tmp_path)
    assert [time for *_, time, _ in rows] == [100]


def test_a_bandwidth_is_read_where_algbw_and_busbw_are_the_same(tmp_path: Path) -> None:
    for above in ("broadcast on 8 GPUs", "all_reduce on 2 GPUs"):
        (row,) = imported(markdown("size (B) | bandwidth (GB/s)", "1048576 | 100", above=above), tmp_path)
        assert row.time_ns == pytest.approx(10485.76)


def test_every_table_has_its_own_title(tmp_path: Path) -> None:
    texts = [
        markdown("size (B) | time (us)", "1048576 | 100", above=f"## {op}, 8 GPUs")
        for op in ("all_reduce", "all-gather")
    ]
    assert [row[0] for row in numbers("\n".join(texts), tmp_path)] == ["all_reduce", "all_gather"]


ROW = "  1073741824     {count}     float {base}   6785.0  158.25  {busbw} {wrong}   6790.1  158.13  {busbw}  {wrong}\n"


@pytest.mark.parametrize(
    ("row", "op", "state"),
    [
        (ROW.format(count=1 << 28, base="sum -1", busbw="296.72", wrong="0"), "all_reduce", "verified"),
        (ROW.format(count=1 << 28, base="sum -1", busbw="296.72", wrong="N/A"), "all_reduce", "not checked"),
        (ROW.format(count=1 << 28, base="sum -1", busbw="296.72", wrong=""), "all_reduce", "not checked"),
        (ROW.format(count=1 << 28, base="sum", busbw="296.72", wrong="2e-07"), "all_reduce", "not checked"),
        (ROW.format(count=1 << 24, base="", busbw="148.36", wrong="0e+00"), "all_gather", "not checked"),
    ],
)
def test_rows_without_a_header_are_read_where_they_have_one_meaning(
    row: str, op: str, state: str, tmp_path: Path
) -> None:
    rows = imported(row, tmp_path)
    assert [
        (entry.case.op, entry.case.ranks, entry.time_ns, entry.case.in_place, entry.check.state) for entry in rows
    ] == [
        (op, 16, 6785e3, False, state),
        (op, 16, 6790.1e3, True, state),
    ]
    one_group = " ".join(row.split()[: -len(row.split()[-4:])]) if state == "verified" else None
    if one_group is not None:
        (only,) = imported(one_group, tmp_path)
        assert (only.time_ns, only.case.ranks) == (6785e3, 16)


@pytest.mark.parametrize(
    "words", ["6785.0 296.72 158.25 0", "6785.0 158.25 296.72 0 20 20", "6785.0 158.25 296.72 0 6790.1 296.50 158.13 0"]
)
def test_other_rows_without_a_header_are_refused(words: str, tmp_path: Path) -> None:
    with pytest.raises(LogError) as refused:
        imported(f"  1073741824 268435456 float sum -1 {words}\n", tmp_path)
    assert refused.value.code == "no-header"


@pytest.mark.parametrize(
    ("final", "size"),
    [
        ("1000 0.240 1675.942 1671.351 46615.58 46743.62 597 598", 81_920_000),
        ("1000 0.040 0.250 0.251 30.40 30.40 3984063 3984063", 8),
        ("1000 0.240 1675.942 1671.351 46615.58 46743.11 597 598", None),  # 81,919,105 B is no round number
    ],
)
def test_a_size_that_ucx_perftest_does_not_print_follows_from_time_and_rate(
    final: str, size: int | None, tmp_path: Path
) -> None:
    lines = (LOGS / "ucx-perftest.txt").read_text(encoding="utf-8").splitlines()
    text = "\n".join([*(line for line in lines[8:-2]), f"Final: {final}", ""])
    if size is None:
        with pytest.raises(LogError) as refused:
            imported(text, tmp_path)
        assert refused.value.code == "no-case"
        (row,) = imported(text, tmp_path, LogFacts(size="81919105"))
        assert row.time_ns == pytest.approx(1671.351e3, rel=1e-4)
    else:
        (row,) = imported(text, tmp_path)
        assert (row.case.op, row.case.size_bytes) == ("pair_uni", size)


@pytest.mark.parametrize(
    ("title", "op"), [("+tag_lat-------+-----+", "ping_pong"), ("===== tag_bw =====", "pair_uni"), ("", None)]
)
def test_a_test_of_ucx_perftest_without_a_name_is_asked_for(title: str, op: str | None, tmp_path: Path) -> None:
    lines = (LOGS / "ucx-perftest.txt").read_text(encoding="utf-8").splitlines()
    text = "\n".join([*lines[8:-2], title, "Final: 1000 1.240 1.250 1.251 6.10 6.10 799360 799360", ""])
    if op is None:
        with pytest.raises(LogError) as refused:
            imported(text, tmp_path)
        assert refused.value.code == "no-op"
        op = "ping_pong"
    (row,) = imported(text, tmp_path, LogFacts(op=op))
    assert (row.case.op, row.case.size_bytes) == (op, 8)
    assert row.time_ns == pytest.approx(1251, rel=2e-3)


def test_messages_of_other_calls_are_no_model_of_these(tmp_path: Path) -> None:
    """A put with a fence of its own takes as long as many without one; plain messages are a model of both."""
    head = "# #processes = 2\n{mode}#bytes #repetitions t[usec] Mbytes/sec\n4 1000 {time} 0.7\n4194304 10 37282 107\n"
    tables = [
        "# Benchmarking Unidir_Put\n" + head.format(mode=f"#    MODE: {mode}\n", time=time)
        for mode, time in (("AGGREGATE", 5.6), ("NON-AGGREGATE", 585.3))
    ]
    plain = "# Benchmarking PingPong\n" + head.format(mode="", time=5.0)
    title = "#    Intel (R) MPI Benchmarks 4.1, MPI-2 part\n"
    path = tmp_path / "imb"
    for text, is_judged in (("".join(tables), False), (plain + "".join(tables), True)):
        path.write_text(title + text, encoding="utf-8")
        judgement = judge(pool([find(tmp_path, str(path)).read(LogFacts(hosts=2))]))
        puts = [verdict for verdict in judgement.verdicts if require_type(str, verdict.key.tool_op or "-") != "-"]
        assert puts
        assert {verdict.status != "not judged" for verdict in puts} == {is_judged}


def test_a_table_of_ucc_perftest_has_blocks_or_buffers(tmp_path: Path) -> None:
    text = (LOGS / "ucc-perftest.txt").read_text(encoding="utf-8")
    rows = imported(text, tmp_path)
    assert [(row.case.op, row.case.size_bytes, row.case.ranks, row.case.device) for row in rows] == [
        ("all_reduce", 4 << 20, 8, "cpu"),
        ("all_reduce", 64 << 20, 8, "cpu"),
        ("all_gather", 16 << 20, 8, "cuda"),
    ]
    for row, busbw in zip(rows, (7.34e9, 7.34e9, 14.68e9), strict=True):
        assert row.case.size_bytes * (row.bus_factor or 0) / (row.time_ns * 1e-9) == pytest.approx(busbw, rel=1e-3)
    older = text.replace("Allgather", "Alltoall").replace("Bus Bandwidth", "Bandwidth")
    assert {row.case.op for row in imported(older, tmp_path)} == {"all_reduce"}


def test_rows_with_units_below_headings_are_theirs(tmp_path: Path) -> None:
    rows = "all_reduce,1 GiB,5.0002 ms,375.8 GB/s\nall_reduce,2 GiB,10.0004 ms,375.8 GB/s\n"
    path = tmp_path / "log"
    path.write_text(f"8 GPUs\nop,size,time,busbw\n{rows}", encoding="utf-8")
    assert [(row.op, row.size_bytes, row.busbw) for row in read_log(path).rows] == [
        ("all_reduce", 1 << 30, 375.8e9),
        ("all_reduce", 1 << 31, 375.8e9),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "AllReduce 16 MiB: 0.150 ms, 0.2 ms",
        "All 8 GB of data were copied in 3 s",
        "| all_reduce 16 MiB: 0.150 ms",
        "AllReduce 16 MiB: 20 iters, 0.150 ms",
    ],
)
def test_other_lines_with_units_are_no_results(line: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(f"{line}\n", encoding="utf-8")
    with pytest.raises(LogError) as refused:
        read_log(path)
    assert refused.value.code == "not-a-log"


# --- tables whose rows or columns are settings, and tables without sizes ----------------------------------------------


def told(text: str, folder: Path, facts: LogFacts | None = None) -> dict[tuple[str | None, int, int], list[float]]:
    """Times in µs, four digits, by what tells cases apart: the tool's words, ranks and S."""
    found: dict[tuple[str | None, int, int], list[float]] = {}
    for row in imported(text, folder, facts):
        found.setdefault((row.case.tool_op, row.case.ranks, row.case.size_bytes), []).append(
            float(f"{row.time_ns / 1e3:.4g}")
        )
    return found


def test_rows_of_other_settings_are_not_taken_for_repetitions(tmp_path: Path) -> None:
    header = "Config | GPUs | Size (MiB) | Time (ms)"
    text = markdown(header, "1n2g | 2 | 512 | 34.0", "2n1g | 2 | 512 | 40.3", "2n2g | 4 | 512 | 42.9")
    size = 512 << 20
    assert told(text, tmp_path) == {("1n2g", 2, size): [34e3], ("2n1g", 2, size): [40.3e3], ("2n2g", 4, size): [42.9e3]}
    rows = [f"{channels} | {mib} | 34.0" for channels in (4, 16) for mib in (512, 1024)]
    sizes = (size, 2 * size)
    assert set(told(markdown("channels | size (MiB) | time (ms)", *rows), tmp_path)) == {
        (f"channels {channels}", 8, of_rows) for channels in (4, 16) for of_rows in sizes
    }
    runs = markdown("Run | size (MiB) | time (ms) | note", "1 | 512 | 34.0 | cold", "2 | 512 | 33.0 | warm")
    assert told(runs, tmp_path) == {(None, 8, size): [34e3, 33e3]}


@pytest.mark.parametrize(
    ("header", "cells"),
    [
        ("epoch", "0 0 1 1"),
        ("timestamp", "1690000000.12 1690000003.53 1690000007.02 1690000011.44"),
        ("iteration", "0 10 20 30"),
        ("run", "1 2 1 2"),
        ("trial", "4 3 2 1"),
        ("date", "2025-01-02 2025-01-02 2025-01-03 2025-01-05"),
        ("day", "2025-01-02T10 2025-01-03T10 2025-01-04T10 2025-01-05T10"),
        ("loss", "2.31 2.11 2.01 1.99"),
        ("gpu_temp_c", "61 62 64 64"),
        ("job_id", "8812371 8812399 8812455 8812460"),
        ("seed", "1 2 4 8"),
        ("power", "651.2W 649.9W 650.1W 651W"),
        ("note", "first second - third"),
    ],
)
def test_repetitions_stay_one_case(header: str, cells: str, tmp_path: Path) -> None:
    rows = [f"{cell},{size},8,all_reduce,52.1\n" for size in (1 << 20, 1 << 21) for cell in cells.split()]
    text = f"{header},size_bytes,ranks,op,time_us\n" + "".join(rows)
    assert told(text, tmp_path) == {(None, 8, size): [52.1] * 4 for size in (1 << 20, 1 << 21)}


def test_hosts_beside_repetitions_are_cases_and_an_empty_cell_names_none(tmp_path: Path) -> None:
    rows = ["1,n1", "1,n2", "2,n1", "2,n2", "2,"]
    text = "iteration,host,op,size_bytes,ranks,time_us\n" + "".join(f"{row},all_reduce,1024,8,5\n" for row in rows)
    assert told(text, tmp_path) == {("n1", 8, 1024): [5.0, 5.0], ("n2", 8, 1024): [5.0, 5.0], (None, 8, 1024): [5.0]}


def test_a_table_of_rates_gets_its_size_from_a_heading_a_command_or_the_user(tmp_path: Path) -> None:
    gib = markdown("NCCL | 1 GiB busbw (GB/s)", "2.18 | 175", "2.21 | 350")
    assert told(gib, tmp_path) == {("NCCL 2.18", 8, GIB): [10740.0], ("NCCL 2.21", 8, GIB): [5369.0]}
    command = markdown("Run | busbw (GB/s)", "1 | 175", above="all_reduce_perf -b 1G -e 1G -g 8, on 8 GPUs")
    assert told(command, tmp_path) == {(None, 8, GIB): [10740.0]}
    scaling = markdown("Nodes | Total GPUs | Max Bus Bandwidth (GB/s)", "1 | 4 | 342.5", "10 | 40 | 92.7")
    with pytest.raises(LogError, match="--size"):
        told(scaling, tmp_path)
    assert told(scaling, tmp_path, LogFacts(size="1GiB")) == {(None, 4, GIB): [4703.0], (None, 40, GIB): [22590.0]}
    decimal = markdown("NCCL | 1 GB busbw (GB/s)", "2.18 | 175")
    with pytest.raises(LogError, match="--size"):
        told(decimal, tmp_path)


def test_rows_side_by_side_are_two(tmp_path: Path) -> None:
    text = markdown("Node | Busbw (GB/s) | | Node | Busbw (GB/s)", "a1 | 484.6 | | b1 | 447.0")
    found = told(text, tmp_path, LogFacts(size="1GiB"))
    assert found == {("a1", 8, GIB): [3878.0], ("b1", 8, GIB): [4204.0]}
    sizes = markdown("Size | time (us) | Size | time (us)", "1 MiB | 35 | 2 MiB | 60", "4 MiB | 90 | |")
    assert told(sizes, tmp_path) == {(None, 8, mib << 20): [time] for mib, time in ((1, 35.0), (2, 60.0), (4, 90.0))}


def test_two_settings_side_by_side_are_no_repetitions(tmp_path: Path) -> None:
    with pytest.raises(LogError) as refused:
        told(markdown("Size | time (us) | Size | time (us)", "1 MiB | 35 | 1 MiB | 60"), tmp_path)
    assert refused.value.code == "ambiguous-heading"


@pytest.mark.parametrize(
    ("above", "header", "row", "code"),
    [
        (
            "all_reduce with 8 GPUs (in us)",
            "Size | Average | Stddev | Samples",
            "1 MiB | 35.2 | 0.3 | 20",
            "no-results",
        ),
        ("all_reduce on 8 GPUs (in us)", "Size | Iterations done | ring", "8 KiB | 20 | 15", "no-results"),
        ("broadcast on 8 ranks, disk (500 us)", "Size | before | after", "1 MiB | 20 | 30", "no-results"),
        ("broadcast on 8 GPUs", "size | peak bandwidth (GB/s)", "1 MiB | 450", "no-results"),
        ("all_reduce on 8 GPUs", "Size | 1 node | 2 nodes", "1 MiB | 52.1 us | 60.2 us", "no-ranks"),
        ("64 MiB buffers, all_reduce on 8 GPUs (-b 8 -e 8G)", "Set | busbw (GB/s)", "a | 200", "no-case"),
    ],
)
def test_what_stands_around_a_table_is_not_taken_for_its_own(
    above: str, header: str, row: str, code: str, tmp_path: Path
) -> None:
    with pytest.raises(LogError) as refused:
        told(markdown(header, row, above=above), tmp_path)
    assert refused.value.code == code


def test_a_theoretical_peak_is_no_statistic(tmp_path: Path) -> None:
    text = markdown("op | size | peak algbw (GB/s) | measured (GB/s)", "broadcast | 1 MiB | 450 | 20")
    assert told(text, tmp_path)["measured", 8, 1 << 20] == [52.43]


@pytest.mark.parametrize(
    ("option", "ranks"),
    [("-npernode 1", 2), ("--map-by ppr:1:node", 2), ("-N 1", 2), ("--npersocket 1", None), ("-pernode", None)],
)
def test_slots_are_no_ranks_where_the_command_says_how_many(option: str, ranks: int | None, tmp_path: Path) -> None:
    text = (
        "mpirun {}-H node1:8,node2:8 osu_allreduce\n\n# OSU MPI Allreduce Latency Test v7.3\n"
        "# Size       Avg Latency(us)\n4                       3.21\n"
    )
    assert [row.case.ranks for row in imported(text.format(""), tmp_path)] == [16]
    if ranks is not None:
        assert [row.case.ranks for row in imported(text.format(f"{option} "), tmp_path)] == [ranks]
        return
    with pytest.raises(LogError) as refused:
        imported(text.format(f"{option} "), tmp_path)
    assert refused.value.code == "no-ranks"


@pytest.mark.parametrize(
    "text",
    [
        "all_reduce, 4 ranks (latency us)\n| msg size | before | after |\n|---|---|---|\n| 4MiB | 63.86 | 37.49 |\n",
        "all_reduce on 4 GPUs\n\nsize\tbefore\tafter\n4MiB\t0.06386ms\t0.03749ms\n",
        markdown("size (MiB) | before (us) | after (us)", "4 | 63.86 | 37.49", above="all_reduce on 4 GPUs"),
        markdown(
            "size (MiB) | before (us) | after (us)",
            "4 | 63.86 | 37.49",
            above="torchrun \\\n --nproc-per-node 4 \\\n --nnodes=1 all_reduce.py",
        ),
    ],
)
def test_columns_of_settings_have_the_unit_above_in_cells_or_headings(text: str, tmp_path: Path) -> None:
    assert told(text, tmp_path) == {("before", 4, 4 << 20): [63.86], ("after", 4, 4 << 20): [37.49]}


def test_cells_below_one_heading_may_have_several_units_of_time(tmp_path: Path) -> None:
    text = markdown("Size | bf16", "1 MiB | 35.2 us", "4 MiB | 0.08 ms")
    assert told(text, tmp_path) == {("bf16", 8, 1 << 20): [35.2], ("bf16", 8, 4 << 20): [80.0]}


def test_a_single_setting_and_thousands_with_spaces(tmp_path: Path) -> None:
    text = markdown("n_ctx | size | custom (\u00b5s)", "8 | 192.0KiB | 2 287.61", "16 | 12.0MiB | 1 182 699.49")
    assert told(text, tmp_path) == {("custom", 8, 192 << 10): [2288.0], ("custom", 8, 12 << 20): [1183e3]}


def test_numbers_behind_names_with_units_in_brackets(tmp_path: Path) -> None:
    text = "all_reduce on 8 GPUs\nSize (MiB): 64, Time (ms): 1.5\nSize (MiB): 128, Time (ms): 2.5\n"
    assert told(text, tmp_path) == {(None, 8, 64 << 20): [1500.0], (None, 8, 128 << 20): [2500.0]}


BLOCKS = """
 All-Gather Benchmark (world_size=8, dtype=torch.bfloat16)
   Size (KB) |     NCCL Time (ms) |  NVSHMEM Time (ms) |     NCCL BW (GB/s) |  NVSHMEM BW (GB/s)
        4096 |             0.1792 |             0.3062 |             163.80 |              95.89
        8192 |             0.3040 |             0.5914 |             193.18 |              99.29
"""


@pytest.mark.parametrize("unit", ["KB", "KiB"])
def test_sizes_of_one_rank_are_those_of_all_where_rates_say_so(unit: str, tmp_path: Path) -> None:
    """KuangjuX/NVSHMEM-Tutorial#23: 8 ranks × 8 MiB in 0.304 ms have the printed 193.18 GB/s."""
    (tmp_path / "log").write_text(BLOCKS.replace("KB", unit), encoding="utf-8")
    run = find(tmp_path, str(tmp_path / "log")).read(LogFacts()).stored.run
    assert {case.size_bytes for case in run.cases} == {8 * 4096 << 10, 8 * 8192 << 10}
    assert run.imported is not None
    assert "size-per-rank" in {note.code for note in run.imported.notes}


@pytest.mark.parametrize(("rate", "differs"), [(10.49, False), (18.35, False), (20.97, True)])
def test_a_bandwidth_that_size_and_time_do_not_give_is_named(rate: float, differs: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """1 MiB in 100 µs over 8 ranks: an algbw of 10.49 GB/s and a busbw of 18.35 GB/s."""
    table = markdown("size (B) | time (us) | bandwidth (GB/s)", f"1048576 | 100 | {rate}", above="all_reduce, 8 GPUs")
    (tmp_path / "log").write_text(table, encoding="utf-8")
    run = find(tmp_path, str(tmp_path / "log")).read(LogFacts()).stored.run
    assert run.imported is not None
    assert ("rate-differs" in {note.code for note in run.imported.notes}) == differs


@pytest.mark.parametrize("title", ["Benchmarking NCCL all-reduce on 8 GPUs", "Performance of the all_reduce on 8 GPUs"])
def test_a_title_with_more_words_than_its_operation(title: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(f"{title}\nsize  time_us\n1048576  50\n2097152  90\n")
    assert {row.op for row in read_log(path).rows} == {"all_reduce"}


@pytest.mark.parametrize(
    ("command", "known"),
    [
        ("$ srun -N2 --ntasks-per-node=4 --mpi=pmix --environment=x /opt/perftest/alltoall_latency", (8, 2)),
        ("$ mpirun -np 8 ${HCCL_TEST_PATH}/bin/alltoall_test -b 8K -e 64M -n 20", (8, None)),
        ("$ mpirun --mca btl tcp,self -np 8 -N 4 ./bench -n 20", (8, 2)),
        ("$ srun -N2 ./bench -n 20", None),  # 20 is the program's
        ("$ srun -N2 --ntasks-per-node=1 torchrun --nproc-per-node=8 bench.py", None),
        ("$ mpirun -np 2 python bench.py", None),
        ("$ ./bench -np 8", None),
    ],
)
def test_the_launcher_above_a_table_gives_its_ranks_and_hosts(
    command: str, known: tuple[int, int | None] | None, tmp_path: Path
) -> None:
    text = f"{command}\n32 threads per block\n#alltoall\nsize(B)  latency(us)\n1048576  100.0\n2097152  190.0\n"
    if known is None:
        with pytest.raises(LogError) as refused:
            imported(text, tmp_path)
        assert refused.value.code == "no-ranks"
        return
    path = tmp_path / "pasted"
    path.write_text(text, encoding="utf-8")
    run = find(tmp_path, str(path)).read(LogFacts()).stored.run
    assert {case.ranks for case in run.cases} == {known[0]}
    assert len(set(run.hosts)) == (known[1] or 1)
    assert ("hosts" in run.imported.unknown) == (known[1] is None)  # type: ignore[union-attr]


def test_digits_in_groups_and_breaks_in_headings(tmp_path: Path) -> None:
    table = markdown("payload | 4-node<br>`busbw`<br>GBps", "1_048_576 | 64.43")
    assert told(table, tmp_path, LogFacts(ranks=8)) == {("4-node", 8, 1 << 20): [28.48]}
    assert amount("1_04", whole=True) is None


@pytest.mark.parametrize(("result", "check"), [("success", "verified"), ("failed", "wrong"), ("NULL", "not checked")])
def test_a_table_of_hccl_has_a_time_and_a_check(result: str, check: str, tmp_path: Path) -> None:
    heading = "all_reduce on 8 NPUs\ndata_size(Bytes): | aveg_time(us): | alg_bandwidth(GB/s): | check_result:\n"
    (row,) = imported(f"{heading}1048576 | 100.00 | 10.48576 | {result}\n", tmp_path)
    assert (row.time_ns, row.check.state) == (100_000, check)


def test_powers_of_two_with_a_bare_letter_are_of_1024(tmp_path: Path) -> None:
    rows = ("2M | 50", "4M | 70", "64M | 600")
    assert [row[2] for row in numbers(markdown("size | time (us)", *rows), tmp_path)] == [2 << 20, 4 << 20, 64 << 20]
    for other in (["2M | 50"], ["2MB | 50", "4MB | 70"], ["2M | 50", "5M | 70"]):
        with pytest.raises(LogError) as refused:
            imported(markdown("size | time (us)", *other), tmp_path)
        assert refused.value.code == "ambiguous-heading"
    exact = ("1M | 100 | 10.0", "2M | 200 | 10.0")  # size over time says 10^6
    assert [row[2] for row in numbers(markdown("size | time (us) | algbw (GB/s)", *exact), tmp_path)] == [
        10**6,
        2 * 10**6,
    ]


@pytest.mark.parametrize(("rate", "unit"), [("35.35", 1e9), ("32.92", 2.0**30)])
def test_rates_of_nccom_have_the_unit_that_size_over_time_says(rate: str, unit: float, tmp_path: Path) -> None:
    text = (
        "$ nccom-test -r 8 -d fp32 allg\n"
        "    size(B)    count(elems)    type    time:avg(us)    time:p25(us)    algbw(GB/s)    busbw(GB/s)\n"
        f"    1024       256    fp32    10.0    10    0.10    0.09\n"
        f"    524288     131072    fp32    14.83    14    {rate}    {float(rate) * 7 / 8:.2f}\n"
    )
    path = tmp_path / "pasted"
    path.write_text(text, encoding="utf-8")
    log = read_log(path)
    assert log.rows[1].algbw == pytest.approx(float(rate) * unit)
    assert not [note for note in log.notes if note.code in {"rate-differs", "gib-as-gb"}]


def test_headings_with_single_spaces_are_known_by_their_units(tmp_path: Path) -> None:
    text = "all_reduce on 8 GPUs\nSize (bytes) Latency (us) algbw (GB/s) Issue (us)\n1048576 100.0 10.49 3.2\n"
    assert [row[2:4] for row in numbers(text, tmp_path)] == [(1 << 20, 100.0)]
    with pytest.raises(LogError):  # one heading or two
        imported(text.replace("Issue (us)", "Issue after"), tmp_path)
