"""What people do to a log when they paste it makes no number another: the row is read as it was, or not at all."""

import re
from collections.abc import Sequence
from io import BytesIO
from typing import Final

import pytest
from testing.logs import LOGS

from busbw.errors import LogError
from busbw_analysis.data.readers.log import Aggregate
from busbw_analysis.data.readers.logs import read_file, read_steps
from busbw_analysis.data.readers.training import OfTraining

NUMBERS: Final = ("op", "size_bytes", "source", "target", "time_seconds", "rate", "algbw", "busbw", "in_place")


def stored(name: str) -> str:
    return (LOGS / name).read_text(encoding="utf-8")


def rows(text: str) -> Sequence[Aggregate]:
    """None for a log that is refused."""
    try:
        return read_file("pasted", BytesIO(text.encode())).rows
    except LogError:
        return ()


def numbers(text: str) -> list[tuple[object, ...]]:
    return [tuple(getattr(row, name) for name in NUMBERS) for row in rows(text)]


SAME: Final = {
    "minus signs of a word processor": ("nvbandwidth.txt", r"-", "\u2212"),
    "tabs for spaces": ("osu-collectives.txt", r" +", "\t"),
    "tabs in an iperf": ("iperf.txt", r" {2,}", "\t"),
    "another spelling of units": ("nccom.txt", r"\(GB/s\)", "(GBps)"),
    "another spelling of bytes": ("nccom.txt", r"size\(B\)", "size(bytes)"),
    "lines with numbers": ("dcgm.txt", r"(?m)^(?=\|)", "25 | "),
    "numbers before a matrix": ("nvloom.txt", r"(?m)^(?=\S*\t)", "12  "),
    "a table below": ("oneccl.txt", r"\Z", "4096  1  20.0  195.3125  0.190735  0.2048\n"),
    "DCGM above": ("nccom.txt", r"\A", "| DCGM Version              | 3.3.1      |\n"),
    "another tool's matrix below": ("nvloom.txt", r"\Z", "D/D 0 1 2\n2 1 1 1\n0 1.5 1.5 1.5\n"),
}


@pytest.mark.parametrize(("name", "old", "new"), SAME.values(), ids=SAME)
def test_what_only_looks_otherwise_is_read_as_it_was(name: str, old: str, new: str) -> None:
    assert numbers(re.sub(old, new, stored(name))) == numbers(stored(name))


LESS: Final = {
    "heading in two lines": ("nvbandwidth.txt", r"(\(row\) ->) (GPU)", r"\1\n\2"),
    "no end of a heading": ("nvbandwidth-pair-slow.txt", r"GPU\(column\) ", ""),
    "unit of a matrix": ("cuda-p2p.txt", r"(P2P (?:Writes|Reads)\) Matrix) \(GB/s\)", r"\1\n(GB/s)"),
    "direction of a matrix": ("cuda-p2p.txt", r"(?:Uni|Bi)directional ", ""),
    "heading of copies": ("cuda-bandwidth.txt", r"(Device to Device Bandwidth, 1) ", r"\1\n"),
    "column of a title": ("deepspeed.txt", r"(?m)$", "&lt;br&gt;"),
    "title of OSU": ("osu-one-sided.txt", r"(Bi-directional Bandwidth) Test", r"\1"),
    "row of ucx_perftest": ("ucx-perftest.txt", r"(171.351)\s+", r"\1\n"),
    "thousands of ucx_perftest": ("ucx-perftest.txt", "Final:.*", "Final: 1 000 0,240 171,942 171,351 46 527,31 46"),
    "devices": ("rocm-bandwidth.txt", r"(?m)^ *Device.*\n", ""),
    "an algbw": ("table.md", r"(?m)^((?:\|[^|\n]*){6})\|[^|\n]*", r"\1"),
    "unit of a rate": ("nccom.txt", r"(.{37})(?=.)", r"\1\n"),
    "place in two lines": ("nccl-tests-per-iteration.txt", r"(?m)^(.{60,71}) (?=\S)", r"\1\n"),
    "thousands of elements": ("stream.txt", r"100000000", "100 000 000"),
    "a name": ("ucc-perftest.txt", "Allgather\n", "Allg\n"),
    "a block": ("nixlbench-old.txt", r"(B/W) \(GB/Sec\)(\n.*\n)4096.*", r"\1\g<2>4 096 1 20.0 195.3125 0.190735"),
    "a column of netperf": ("netperf.txt", r"(?m)^(?:bytes|131072) +(?=\w+ +\w+ +(?:secs|10\.01))", ""),
}


@pytest.mark.parametrize(("name", "old", "new"), LESS.values(), ids=LESS)
def test_what_has_lost_something_has_no_other_number(name: str, old: str, new: str) -> None:
    text = re.sub(old, new, stored(name))
    assert text != stored(name)
    known = numbers(stored(name))
    for row in numbers(text):
        assert any(all(mine in {None, theirs} for mine, theirs in zip(row, other, strict=True)) for other in known), row


def test_a_matrix_below_another_test_is_of_what_its_description_says() -> None:
    first, cut = stored("nvbandwidth-h2d-slow.txt"), stored("nvbandwidth-cut.txt")
    assert numbers(f"{first}\n{cut}") == [*numbers(first), *numbers(cut)]


def test_lines_that_a_terminal_of_windows_broke_are_joined() -> None:
    width = 60
    text = stored("cuda-p2p.txt")
    broken = [line[at : at + width] for line in text.splitlines() for at in range(0, max(1, len(line)), width)]
    assert numbers("\r\n".join(broken)) == numbers("\n".join(broken)) == numbers(text)


def test_a_megabyte_without_a_version_is_the_one_by_which_messages_are_whole() -> None:
    heading = "# Benchmarking PingPong\n# #processes = 2\n#bytes #repetitions t[usec] Mbytes/sec\n"
    (row,) = rows(f"{heading}1048576 40 100.00 10000.00\n")
    assert row.rate == 10000 * 2.0**20


def test_headings_of_osu_in_two_lines_name_no_columns() -> None:
    heading = "# OSU MPI Allgather Latency Test v7.4\n# Size  Avg Latency(us)  Max\nLatency(us)  Iterations\n"
    assert rows(f"{heading}1  5.25\n6.00  1000\n") == ()


def test_a_block_of_nixlbench_is_whole_behind_the_mark_of_a_mail() -> None:
    heading = "> Block Size (B)  Batch Size  B/W (GB/Sec)  Avg Lat. (us)\n"
    assert rows(f"{heading}10.5  12.0  2.5  3.0\n") == ()


def test_a_table_of_deepspeed_is_of_the_operation_in_its_title() -> None:
    titles = ("all_gather on 8", "pt2pt on 2")
    table = "size (bytes) | time (us) | note\n1048576 | 25.5 | x\n"
    found = rows("".join(f"-- Performance of {title} devices:\n{table}" for title in titles))
    assert [row.op for row in found] == ["all_gather", None]


def test_rows_below_another_command_are_none_of_the_table_above() -> None:
    table = "size(B)  time(us)\n1024  5.0\n"
    assert [row.size_bytes for row in rows(f"$ a\n{table}2048  6.0\n$ b\n4096  7.0\n")] == [1024, 2048]


def test_a_size_that_is_no_number_leaves_a_row_out() -> None:
    table = "| size | time (us) |\n|---|---|\n| 33.554.432 | 1.5 |\n| 1024 | 5.0 |\n"
    assert [row.size_bytes for row in rows(table)] == [1024]


def test_the_time_of_a_whole_test_is_not_that_of_a_call() -> None:
    assert rows("bytes  #sent  total  time  MB/sec\n64  10  1.2k  0.01s  8.00\n") == ()


def test_transactions_per_second_are_no_time() -> None:
    above = "Message  Elapsed      Messages                \n"
    assert rows(f"{above}Size  Size  Time  Rate\nbytes  bytes  secs.  per sec\n\n1  1  10.00  25000.00\n") == ()


def test_an_exponent_out_of_bounds_is_no_unit() -> None:
    assert [row.tool_op for row in rows(stored("netperf.txt").replace("10^6", f"10^{'9' * 400}"))] == ["TCP_RR"]


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("1,234.5 ms, loss: 2.5", 1.2345), ("1234,5 ms, loss: 2,5", 1.2345), ("1,234 ms, loss: 3", None)],
)
def test_a_comma_in_the_time_of_a_step(time: str, seconds: float | None) -> None:
    log = BytesIO(f"step: 1, time: {time}\n".encode())
    if seconds is None:
        with pytest.raises(LogError) as refused:
            read_steps("log", log)
        assert refused.value.code == "no-steps"
    else:
        assert [step.value for step in read_steps("log", log).steps] == [seconds]


def test_steps_are_found_above_more_than_is_searched_at_a_time() -> None:
    steps = "".join(f"step: {number}, loss: 2.5, time: 250.0 ms\n" for number in range(5))
    with pytest.raises(OfTraining) as found:
        read_file("log", BytesIO((steps + "a line of the program\n" * 200_000).encode()))
    assert len(found.value.steps.steps) == 5


def broken_by_mail(text: str, width: int) -> str:
    """Between words, as a mail does, so that no space is left at a break."""
    parts = (re.findall(rf"(?:\S{{{width},}}|.{{1,{width}}})(?:\s+|$)", line) or [""] for line in text.splitlines())
    return "\n".join(part.rstrip() for line in parts for part in line)


@pytest.mark.parametrize(
    "name", ["nccl-tests-two-machines.txt", "nccl-tests-cputime.txt", "rccl-tests-hypercube.txt", "nccom.txt"]
)
def test_words_between_which_a_mail_broke_lines_are_not_joined(name: str) -> None:
    known = [row[1:] for row in numbers(stored(name))]  # without the operation, which a command line may name
    for width in range(44, 100):
        for _, *row in numbers(broken_by_mail(stored(name), width)):
            assert any(all(a in {None, b} for a, b in zip(row, other, strict=True)) for other in known), (width, row)


OSU: Final = "# OSU MPI Allgather Latency Test v7.4\n# Size  Avg Latency(us)  Min Latency(us)  Max Latency(us)\n"
IMB: Final = "# Benchmarking PingPong\n# #processes = 2\n#bytes #repetitions t[usec] Mbytes/sec\n"
NCCOM: Final = "$ nccom-test -r 16 allg\nsize(B)  count(elems)  type  time(us)\n33554432  16777216  bf16  768\n"
NETPERF: Final = "Size   Size    Size     Time     Throughput\nbytes  bytes   bytes    secs.    10^6bits/sec\n"
UCC: Final = (
    "Collective: Allreduce\nCount  Size  Time, us  Bus Bandwidth, GB/s\n1048576  4194304  1000.00  980.00  1020.00\n"
)
PERFTEST: Final = "#bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]\n"
P2P: Final = "P2P=Disabled Latency Matrix (us)\n   GPU     0      1\n     0   2.25  21.50\n     1  22.50   2.50\n"
NIXL: Final = "Block Size (B)  Batch Size  B/W (GB/Sec)  Avg Lat. (us)  Avg Prep (us)\n"
DEEPSPEED: Final = (
    "- Performance of all_reduce on 8 devices\nSize  Description  Duration  Throughput (Gbps)  BusBW (Gbps)\n"
)
FABTESTS: Final = "bytes   iters   total       time     MB/sec    usec/xfer   Mxfers/sec\n"
COPIES: Final = (
    " Device to Device Bandwidth, 1 Device(s)\n PINNED Memory Transfers\n   Transfer Size (Bytes)  Bandwidth(GB/s)\n"
    "   32000000  739.2\n"
)
OF_BARRIER: Final = (
    "# Benchmarking Barrier\n| size (B) | algbw (GB/s) | busbw (GB/s) |\n|---|---|---|\n| 1024 | 0.48 | 0.92 |\n"
)
SOCKPERF: Final = (
    "sockperf tp -i 192.0.2.7\nNOTE: using msg-size=1024. \nSummary: Message Rate is 2000000 [msg/sec]\n"
    "Summary: BandWidth is 1953.125 MBps\nIP = 192.0.2.7 PORT = 11111 # TCP\nSummary: Latency is 17.250 usec\n"
)

SIZES: Final = {
    "an average between its extremes": (f"{OSU}8  5.25  4.50  6.00\n16  5.00  5.00  5.00\n", [8, 16]),
    "an average outside of its extremes": (f"{OSU}8  10.50  9.00  12.00\n16  4.50  6.00  5.00\n", [8]),
    "the headings of another tool": (f"{OSU}8 5 4 6\nbytes #sent #ack total time MB/sec usec/xfer\n64 10 9 11\n", [8]),
    "the rule of another tool": (f"{OSU}8 5 4 6\n{'-' * 80}\n64 10 9 11\n", [8]),
    "a line of a program": (f"{OSU}8 5 4 6\n[node1] UCX WARN size of a time in bytes is\n64 10 9 11\n", [8, 64]),
    "a space in a number": (f"{IMB}1024 1000 1.00 1024.00\n2 048 1000 2.00\n", [1024]),
    "a line that is one number": (f"{IMB.replace('t[usec] ', '')}1024 1000 1.00\n4 882 812\n4 882 81\n", [1024, 4]),
    "rows of netperf": (
        f"{NCCOM}{NETPERF}131072  16384  16384  10.01  9400.00\n131072  16384  bf16  9400.00\n",
        [33554432],
    ),
    "a line of NCCL": (f"{NCCOM}Interim size of a message\n67108864  33554432  bf16  1500\n", [33554432, 67108864]),
    "a number for a type": (f"{NCCOM}16777216  bf16  768  40.69\n", [33554432]),
    "netperf below ucc_perftest": (f"{UCC}{NETPERF}131072  16384  16384  10.01  9400.00\n", [4194304]),
    "a mean of calls for their number": (
        f"{PERFTEST}1024 1000 90.50 90.25 0.1\n65536 2700.50 2700.25 0.04 1\n",
        [1024],
    ),
    "a part of a byte": ("size (B) | time (us)\n1024 | 5.0\n7.34 | 7.49\n", [1024]),
    "a rounded size": ("size | time (us)\n2.93 KiB | 5.0\n1.4 MiB | 7.49\n", [3000, 1468006]),
    "units beside their headings": ("x\tsize\t(B)\ttime (us)\tbusbw (GB/s)\na\t1024\t2048\t5.0\t6.0\n", []),
    "the rest of headings in Markdown": ("time(us) | size (B) |\n| 40.69 | 38|\n", []),
    "a column less below the rest of headings": ("time(us) | size (B) |\n| 40.69 |\n", []),
    "calls that are no number of calls": (f"{IMB}1024 1000 1.00 1024.00\n2 28.2 28.2 637.4\n", [1024]),
    "the rest of a row": (f"{NIXL}4096 1 0.195 21.0 10.\n5 12.0 2.5 3.0 18.5\n1024 1 0.195 21.0 10.5\n", [1024]),
    "a copy and a row of OSU": (
        f"{COPIES}\n# OSU MPI Latency Test v5.6.2\n# Size  Latency (us)\n0  1.25\n",
        [32000000],
    ),
    "nixlbench below perftest": (f"{PERFTEST}1024 1000 90.50 90.25 0.1\n{NIXL}4096 1 0.195 21.0 10.5\n", [1024]),
    "a size with decimals": (f"{OSU}8 5 4 6\n16.00 5 4 6\n", [8]),
    "a duration": (f"{DEEPSPEED}1.0 MB 262144x4 12.345 us 1990.219 1741.441\n", [1048576]),
    "a duration without a unit": (f"{DEEPSPEED}1.0 MB 262144x4 12.345 1990.219 1741.441\n", []),
    "headings of OSU without a title": (
        f"{OSU.replace('Size  ', '')}5 4 6\n# Size  Avg Latency(us)\n8  2.25\n",
        [None],
    ),
    "the same headings of OSU again": (f"{OSU}8 5 4 6\n{OSU.splitlines()[1]}\n16 5 4 6\n", [8, 16]),
    "no bar before Markdown": ("time(us) | size (B) |\n--- | --- |\n40.69 | 38 |\n", [38]),
    "no time": ("size (B) | time (us) | busbw (GB/s)\n1024 | 0 | 18.35\n2048 | 5.0 | 18.35\n", [2048]),
    "a sentence below a matrix": (f"{P2P}\nGPU Boost is enabled.\n# of 16 ranks\n", [16, 16]),
    "a size of the test above": (SOCKPERF, [1024, 14]),
}


@pytest.mark.parametrize(("text", "sizes"), SIZES.values(), ids=SIZES)
def test_a_row_that_does_not_fit_its_headings_is_left_out(text: str, sizes: list[int]) -> None:
    assert [row.tool_size_bytes for row in rows(text)] == sizes


def test_a_table_is_not_of_a_barrier_that_is_named_above() -> None:
    assert [row.op for row in rows(OF_BARRIER)] == [None]
    assert [row.op for row in rows(OF_BARRIER.replace("Barrier", "Allreduce"))] == ["all_reduce"]


@pytest.mark.parametrize(
    ("rate", "value"),
    [
        ("159.628", 159.628),
        ("159.6,", 159.6),
        ("159.6\u00b91", None),
        ("15O.6", None),
        ("159.6l", None),
        ("159 .6", None),
    ],
)
def test_a_rate_with_a_strange_digit_is_no_shorter_one(rate: str, value: float | None) -> None:
    log = BytesIO(f"0/1, CurrSamplesPerSec=100.5, x\n0/2, CurrSamplesPerSec={rate} x\n".encode())
    assert [step.value for step in read_steps("log", log).steps] == [100.5, *([] if value is None else [value])]


@pytest.mark.parametrize(
    ("said", "rates"),
    [
        ("bandwidth:  13.1|\n|   | 3 GB/s", [13.13e9]),
        ("bandwidth:7 13.13 GB/s", []),
        ("bandwidth: | 13.13 GB/s,\n|| | | | 0 Host to GPU bandwidth: | 12.37 GB/s, GPU 0", []),
    ],
)
def test_a_rate_of_dcgm_is_one_number(said: str, rates: list[float]) -> None:
    assert [row.rate for row in rows(f"| DCGM Version | 3.3.1 |\n|  | GPU 0 GPU to Host {said} |\n")] == rates


def test_iterations_with_a_decimal_comma_are_no_iterations() -> None:
    text = stored("ucx-perftest.txt")
    assert [row.iterations for row in rows(re.sub(r"(Final: +)1000", r"\g<1>1,000", text))] == [1000]
    assert 15 not in {row.iterations for row in rows(re.sub(r"(Final: +)1000", r"\g<1>1,5", text))}


def test_rates_of_netperf_are_of_thousands() -> None:
    assert [row.tool_op for row in rows(stored("netperf.txt").replace("10^6", "10^1"))] == ["TCP_RR"]


def test_a_redop_is_no_number() -> None:
    header = "# size count type redop time algbw busbw error time algbw busbw"
    units = "# (B) (elements) (us) (GB/s) (GB/s) (us) (GB/s) (GB/s)"
    row = "4096 256 float 18.00 0.23 0.17 N/A 20.00 0.20 0.15 N/A"
    assert rows(f"{header}\n{units}\n{row}\n") == ()
    assert [found.time_seconds for found in rows(f"{header} error\n{units}\n{row}\n")] == [18e-6, 20e-6]


def test_a_second_log_of_p2p_copies_adds_no_latency_of_ones() -> None:
    text = stored("cuda-p2p.txt")
    assert set(numbers(text + text)) == set(numbers(text))


def test_a_step_that_a_terminal_broke_inside_of_its_time_is_whole() -> None:
    line = (
        "I0811 21:55:16.704861 138 metric_logger.py:226] completed step: {}, seconds: 10.344, TFLOP/s/device: 346.932, "
        "Tokens/s/device: 19006.461, total_weights: 1572864, loss: 12.979"
    )
    steps = map(line.format, range(1, 7))
    lines = [step[at : at + 39] for step in steps for at in range(0, len(step), 39)]
    assert {step.value for step in read_steps("log", BytesIO("\n".join(lines).encode())).steps} == {10.344}


def test_messages_of_nccl_are_no_row_of_a_table() -> None:
    table = "size count time algbw busbw wrong\n1024 256 5.0 0.2 0.3 0\n"
    assert [row.line for row in rows(f"{table}2048 node1:1:2 NCCL INFO x 0\n4096 1024 5.0 0.8 1.2 0\n")] == [2, 4]


def test_a_place_that_was_misread_is_unknown() -> None:
    text = stored("ucc-perftest.txt")
    assert {row.in_place for row in rows(re.sub(r"(Inplace: +)\d", r"\1l", text))} == {None}
    assert {row.in_place for row in rows(text)} == {False, True}


@pytest.mark.parametrize(
    ("gap", "sizes"), [("...", [8, 64]), ("[... 12 lines truncated ...]", [8, 64]), ("", [8, 8, 64])]
)
def test_rows_below_a_gap_that_begin_again_are_left_out(gap: str, sizes: list[int]) -> None:
    assert [row.tool_size_bytes for row in rows(f"{OSU}8 5 4 6\n{gap}\n8 9 8 10\n64 9 8 11\n")] == sizes


def test_a_number_with_thousands_is_no_hang() -> None:
    with pytest.raises(LogError) as refused:
        read_file("pasted", BytesIO(f"{PERFTEST}65,536 5,000 196.50 196.00 0.373840\n".encode()))
    assert refused.value.code == "truncated-row"


@pytest.mark.parametrize("size", ["9" * 400, "0", "0k"])
def test_a_size_of_fabtests_that_is_none_is_refused(size: str) -> None:
    text = stored("fabtests.txt")
    assert len(numbers(re.sub(r"(?m)^1 ( +20k)", rf"{size} \1", text))) == len(numbers(text)) - 1
