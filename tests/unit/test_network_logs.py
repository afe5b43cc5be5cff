"""Logs of small network benchmarks: what is a sample, what is counted once, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from testing.logs import LOGS, log_of, read_log

from busbw.errors import LogError
from busbw.system.catalog import catalogue
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.imported import LogFacts
from busbw_analysis.data.load import pool
from busbw_analysis.data.readers.log import Aggregate
from busbw_analysis.data.sources import find
from busbw_analysis.diagnosis.answer import answer_of

GBIT = 1e9 / 8
HEAD = "[ ID] Interval           Transfer     Bitrate         Retr  Cwnd\n"
CONNECTED = "[  5] local 192.0.2.6 port 40102 connected to 192.0.2.7 port 5201\n"


def iperf(*lines: str, head: str = HEAD) -> tuple[Aggregate, ...]:
    return log_of("iperf", [head, *(f"{line}\n" for line in lines)]).rows


def line(start: int, rate: str, rest: str = "   0   1.2 MBytes", stream: str = "  5", end: int | None = None) -> str:
    return f"[{stream}]   {start}.00-{start + 1 if end is None else end}.00   sec  1.10 GBytes  {rate} Gbits/sec {rest}"


def summary(rate: str, side: str, end: int = 3, stream: str = "  5") -> str:
    return line(0, rate, f"   7             {side}", stream, end)


def test_intervals_are_samples_and_the_summary_is_no_other_one() -> None:
    (row,) = iperf(line(0, "8.00"), line(1, "9.00"), line(2, "9.50"), summary("8.83", "sender"))
    assert [row.tool_size_bytes / seconds / GBIT for seconds in row.samples_seconds] == pytest.approx([8, 9, 9.5])  # type: ignore[operator]
    assert (row.statistic, row.others) == ("mean", {"Retr": 7.0})


@pytest.mark.parametrize(
    ("lines", "rate"),
    [
        ((line(0, "8.00"), "...", summary("9.00", "sender", 10), summary("8.90", "receiver", 10)), 8.9),  # cut out
        ((line(0, "8.00"), line(1, "0.00"), line(2, "9.00"), summary("5.60", "receiver")), 5.6),  # nothing moved
        ((line(0, "5.00"), line(0, "3.00", stream="  7"), line(1, "5.00"), line(1, "4.00", stream="  7")), 8.5),
        ((line(0, "8.00", "  3  1.2 MBytes  (omitted)"), line(0, "9.00"), line(1, "9.00")), 9.0),
        (
            (line(0, "9.00"), line(1, "9.00"), "[  5]   2.00-2.03   sec  0.00 Bytes  0.00 bits/sec    0   1.2 MBytes"),
            9.0,
        ),
        ((summary("8.00", "sender", stream="SUM"),), 8.0),
    ],
)
def test_the_rate_of_a_stream_is_that_of_all_its_time(lines: tuple[str, ...], rate: float) -> None:
    (row,) = iperf(*lines)
    assert row.rate == pytest.approx(rate * GBIT)


def test_a_stream_of_several_is_not_taken_for_all() -> None:
    (row,) = iperf("$ iperf3 -c node1 -P 4", summary("8.00", "receiver"))
    assert row.tool_op == "TCP, 1 of 4 streams"
    assert {row.tool_op for row in read_log(LOGS / "iperf.txt").rows} == {"TCP, 2 streams"}


def test_summaries_of_two_tests_are_two_launches() -> None:
    rows = iperf(*2 * (summary("8.00", "sender", stream="SUM"), summary("7.90", "receiver", stream="SUM")))
    assert [row.rate for row in rows] == [7.9 * GBIT, 7.9 * GBIT]


def test_a_test_that_both_sides_print_is_read_once() -> None:
    server = (
        "Accepted connection from 192.0.2.6, port 40100\n",
        CONNECTED.replace("192.0.2.6 port 40102", "X")
        .replace("192.0.2.7 port 5201", "192.0.2.6 port 40102")
        .replace("X", "192.0.2.7 port 5201"),
    )
    rows = [f"{line(0, '8.00')}\n", f"{line(1, '9.00')}\n"]
    log = log_of("iperf", ["Connecting to host node1, port 5201\n", CONNECTED, HEAD, *rows, *server, HEAD, *rows])
    assert len(log.rows) == 1
    assert [place.host for place in log.tables[0].places] == ["192.0.2.6", "192.0.2.7"]
    assert "repeated-header" in {note.code for note in log.notes}


@pytest.mark.parametrize(
    ("lines", "direction"),
    [
        (("Connecting to host a, port 5201\n", "Reverse mode, remote host a is sending\n", CONNECTED), True),
        (("Connecting to host a, port 5201\n", CONNECTED), False),
        (("$ iperf3 -c a -R\n",), True),
    ],
)
def test_reverse_mode_is_another_case(lines: tuple[str, ...], *, direction: bool) -> None:
    (row,) = log_of("iperf", [*lines, f"{line(0, '8.00', '')}\n", f"{line(1, '8.00', '')}\n"]).rows
    assert (row.tool_op == "TCP, client receives") == direction


@pytest.mark.parametrize(
    ("command", "size"), [("-l 1M", 1 << 20), ("-l 64KB", 64 << 10), ("--length 1000", 1000), ("-t 10", 128 << 10)]
)
def test_a_message_has_the_given_size_or_that_of_the_manual(command: str, size: int) -> None:
    assert [row.tool_size_bytes for row in iperf(f"$ iperf3 -c node1 {command}", line(0, "8.00"))] == [size]


UDP = "[ ID] Interval           Transfer     Bitrate         Jitter    Lost/Total Datagrams\n"


def test_of_udp_counts_what_arrived() -> None:
    (row,) = read_log(LOGS / "iperf-udp.txt").rows
    assert (row.rate, row.tool_size_bytes) == (0.8 * GBIT, 1448)
    old = "[  4]   0.00-10.00  sec  1.25 GBytes  1.00 Gbits/sec  0.013 ms  41000/164000 (25%)"
    (row,) = iperf(old, "[  4] Sent 164000 datagrams", head=UDP)
    assert row.rate == pytest.approx(0.75 * GBIT)


LOST = "0.015 ms  212585/850341 (25%)"


@pytest.mark.parametrize(
    ("lines", "rate", "size"),
    [
        (("[  4]   0.00-10.00  sec  1.25 GBytes  1.00 Gbits/sec  0.013 ms  41000/164000 (25%)",), 0.75, 8192),
        (
            (
                "[  3]  0.0-10.0 sec  1.16 GBytes  1.00 Gbits/sec",
                "[  3] Sent 850341 datagrams",
                "[  3] Server Report:",
                f"[  3]  0.0-10.0 sec   894 MBytes   750 Mbits/sec   {LOST}",
            ),
            0.75,
            1470,
        ),
        (("[  3] Sent 850341 datagrams", f"[  3]  0.0-10.0 sec   894 MBytes   750 Mbits/sec   {LOST}"), 0.75, 1470),
    ],
)
def test_of_udp_counts_what_arrived_by_what_fits_the_datagrams(lines: tuple[str, ...], rate: float, size: int) -> None:
    (row,) = iperf(*lines, head=UDP)
    assert row.rate == pytest.approx(rate * GBIT)
    assert row.tool_size_bytes == size


def test_of_udp_a_sum_that_fits_no_datagrams_is_refused() -> None:
    with pytest.raises(LogError):
        iperf(f"[  3]  0.0-10.0 sec   600 MBytes   500 Mbits/sec   {LOST}", head=UDP)


SECOND = "[  5] local 192.0.2.8 port 40104 connected to 192.0.2.7 port 5202\n"
DUAL = "[  4] local 192.0.2.6 port 5001 connected to 192.0.2.7 port 58220\n"


@pytest.mark.parametrize("second", [SECOND, DUAL, SECOND.replace("0.2.8", "0.2.6")])
def test_tests_that_run_at_once_are_refused(second: str) -> None:
    with pytest.raises(LogError) as refused:
        iperf(CONNECTED + second, summary("9.40", "receiver"), summary("1.00", "receiver"))
    assert refused.value.code == "interleaved-logs"
    with pytest.raises(LogError) as refused:
        iperf(CONNECTED, summary("9.40", "receiver"), summary("1.00", "receiver"))
    assert refused.value.code == "interleaved-logs"


def test_a_client_that_fails_is_not_mixed_with_the_next() -> None:
    (row,) = iperf(CONNECTED, "iperf3: error - unable to receive control message", SECOND, summary("9.40", "receiver"))
    assert row.rate == pytest.approx(9.4 * GBIT)


@pytest.mark.parametrize("head", [UDP, HEAD.replace("Retr  Cwnd", "Total Datagrams")])
def test_tcp_after_udp_is_read_as_tcp(head: str) -> None:
    udp = "[  5]   0.00-10.00  sec  1.16 GBytes  1.00 Gbits/sec   0.015 ms  0/850341 (0%)  receiver"
    tcp = HEAD.replace("Retr  Cwnd", "")
    rows = iperf(CONNECTED, udp, CONNECTED.replace("40102", "40112"), tcp, line(0, "9.40", ""), head=head)
    assert [row.tool_op for row in rows] == ["UDP", "TCP"]


def test_iperf_2_in_both_directions_is_refused_and_in_reverse_is_another_case() -> None:
    (row,) = iperf(CONNECTED, line(0, "9.37", "", " *1"))
    assert row.tool_op == "TCP, client receives"
    with pytest.raises(LogError) as refused:
        iperf(CONNECTED, line(0, "9.37", "", "  1"), line(0, "9.28", "", " *1"), line(0, "18.7", "", "FD1"))
    assert refused.value.code == "no-results"


@pytest.mark.parametrize("lines", [(), (CONNECTED, HEAD, line(0, "0.00"))])
def test_an_error_of_iperf_without_results_is_a_failed_job(lines: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "log"
    error = "iperf3: error - unable to connect to server - server may have stopped running: Connection refused"
    path.write_text("\n".join([*lines, error, ""]), encoding="utf-8")
    with pytest.raises(LogError, match="Connection refused") as refused:
        read_log(path)
    assert refused.value.code == "job-failed"


def test_prose_with_an_interval_is_no_log_of_iperf(tmp_path: Path) -> None:
    path = tmp_path / "log"
    table = "| op | ranks | size | time_us |\n|---|---|---|---|\n| all_reduce | 8 | 1073741824 | 5000 |\n"
    path.write_text(f"First iperf3 (0.0-10.0 sec 10.9 GBytes 9.40 Gbits/sec), then:\n\n{table}", encoding="utf-8")
    assert read_log(path).tool == "table"


def test_udp_without_a_line_of_the_receiver_is_refused() -> None:
    with pytest.raises(LogError, match="receiver"):
        iperf(line(0, "1.00", " 86330"), line(1, "1.00", " 86320"), head=HEAD.replace("Retr  Cwnd", "Total Datagrams"))


def test_a_json_document_with_an_error_is_a_failed_job() -> None:
    text = '{"start": {"test_start": {"blksize": 131072}}, "intervals": [], "error": "unable to connect"}'
    with pytest.raises(LogError, match="unable to connect") as refused:
        log_of("iperf-json", [text])
    assert refused.value.code == "job-failed"


def test_every_document_of_json_is_read() -> None:
    text = (LOGS / "iperf.json").read_text(encoding="utf-8")
    one = log_of("iperf-json", [text])
    other = text.replace("55494", "55495")
    log = log_of("iperf-json", [text, other, text, text[: len(text) // 2]])
    assert [row.rate for row in log.rows] == 2 * [row.rate for row in one.rows]
    assert {"repeated-header", "truncated-row"} <= {note.code for note in log.notes}
    assert [table.line for table in log.tables] == [1, 1 + text.count("\n")]


def test_the_events_of_a_json_stream_are_a_document() -> None:
    text = (LOGS / "iperf.json").read_text(encoding="utf-8")
    parts = json.loads(text)
    events = [("start", parts["start"]), *(("interval", part) for part in parts["intervals"]), ("end", parts["end"])]
    log = log_of("iperf-json", [json.dumps({"event": name, "data": data}) + "\n" for name, data in events])
    assert log.rows == log_of("iperf-json", [text]).rows


@pytest.mark.parametrize(
    ("options", "paced"), [("-u", True), ("-u -b 0", False), ("-b 1G", True), ("-u -b 0.5G", True), ("-t 3", False)]
)
def test_a_sender_held_to_a_rate_is_noted(options: str, *, paced: bool) -> None:
    udp = "[  5]   0.00-10.00  sec  1.16 GBytes  1.00 Gbits/sec   0.015 ms  0/850341 (0%)  receiver"
    log = log_of("iperf", [f"$ iperf3 -c node1 {options}\n", udp if "-u" in options else line(0, "8.00")])
    assert ("paced" in {note.code for note in log.notes}) == paced


@pytest.mark.parametrize("omitted", [" (omitted)", "\n(omitted)", " (omit\nted)", " (\nomitted)"])
def test_an_interval_before_the_test_counts_is_none_of_it_where_a_terminal_breaks_it(omitted: str) -> None:
    (row,) = iperf(line(0, "2.00") + omitted, line(0, "8.00"), line(1, "8.00"))
    assert (row.rate, len(row.samples_seconds)) == (8 * GBIT, 2)


def test_several_intervals_in_a_line_are_none() -> None:
    with pytest.raises(LogError):
        iperf(f"{line(0, '8.00')} {line(1, '9.00')}")


@pytest.mark.parametrize("before", ["", "pod/iperf-1 | ", "2026-01-01T10:00:00Z "])
def test_the_number_of_a_stream_is_no_prefix(before: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    text = (LOGS / "iperf.txt").read_text(encoding="utf-8")
    path.write_text("".join(f"{before}{line}\n" for line in text.splitlines()), encoding="utf-8")
    assert [row.samples_seconds for row in read_log(path).rows] == [
        row.samples_seconds for row in read_log(LOGS / "iperf.txt").rows
    ]


@pytest.mark.parametrize(("nics", "status"), [("1x10Gb/s", "as expected"), ("1x100Gb/s", "slower")])
def test_samples_of_a_stream_are_one_launch_judged_by_the_nic(nics: str, status: str) -> None:
    path, facts = LOGS / "iperf.txt", LogFacts.stated({"nics": nics}, catalogue())
    judgement = judge(pool([find(path.parent, str(path)).read(facts)]))
    (row,) = judgement.runs[0].imported
    assert row.case.size_bytes / row.time_ns == pytest.approx(8.5 / 8)
    assert [verdict.status for verdict in judgement.verdicts] == [status]


@pytest.mark.parametrize(("options", "status"), [("-b 1G", "explained"), ("-t 3", "slower")])
def test_a_rate_to_which_the_sender_is_held_explains_itself(options: str, status: str, tmp_path: Path) -> None:
    path, facts = tmp_path / "log", LogFacts.stated({"nics": "1x10Gb/s"}, catalogue())
    text = f"$ iperf3 -c node1 {options}\n{CONNECTED}{HEAD}{summary('1.00', 'receiver')}\n"
    path.write_text(text, encoding="utf-8")
    judgement = judge(pool([find(tmp_path, str(path)).read(facts)]))
    assert answer_of(judgement).status == status
    assert ("held to -b" in (judgement.cases[0].case.tool_op or "")) == (status == "explained")


SOCKETS = (
    "Local /Remote\nSocket Size   Request  Resp.   Elapsed  Trans.\nbytes  Bytes  bytes    bytes   secs.    per sec\n"
)


@pytest.mark.parametrize(
    ("above", "sizes", "seconds"),
    [("TCP_RR\n", "64       64", 2e-5), ("", "1        1", None), ("TCP_RR\n", "1        1000", None)],
)
def test_transactions_are_round_trips_of_one_size(above: str, sizes: str, seconds: float | None) -> None:
    lines = f"{above}{SOCKETS}16384  87380  {sizes}       10.00    25000.00\n16384  87380\n".splitlines(keepends=True)
    if seconds is None:
        with pytest.raises(LogError):
            log_of("netperf", lines)
    else:
        (row,) = log_of("netperf", lines).rows
        assert (row.op, row.time_seconds) == ("ping_pong", seconds)


def test_a_connection_for_each_transaction_is_no_ping_pong() -> None:
    title = "TCP Connect/Request/Response TEST from 0.0.0.0 port 0 AF_INET to node1 () port 0 AF_INET\n"
    row = "16384  87380  1        1       10.00    14118.53\n"
    assert [row.op for row in log_of("netperf", [title, SOCKETS, row]).rows] == [None]


def test_a_row_of_netperf_has_as_many_cells_as_columns() -> None:
    head = "bytes  bytes   bytes    secs.    10^6bits/sec\n"
    rows = ["131072  16384  16384    10.01    9400.00\n", "9\t131072  16384  16384    10.01    9400.00\n"]
    (row,) = log_of("netperf", ["TCP_RR\n", head, *rows]).rows
    assert (row.tool_op, row.tool_size_bytes, row.rate) == ("TCP_STREAM", 16384, 9.4e9 / 8)


def test_a_decimal_comma_of_qperf_is_none_of_thousands() -> None:
    rows = ["tcp_bw:\n", "    bw  =  1,25 GB/sec\n", "    bw  =  1.25 GB/sec\n"]
    assert [row.rate for row in log_of("qperf", rows).rows] == [1.25e9]


def test_a_sweep_of_qperf_without_sizes_has_none() -> None:
    lines = ["$ qperf node1 -oo msg_size:1:64K:*2 tcp_bw\n", *2 * ("tcp_bw:\n", "    bw  =  1.25 GB/sec\n")]
    assert {row.tool_size_bytes for row in log_of("qperf", lines).rows} == {None}


def test_columns_of_fabtests_have_to_agree() -> None:
    head = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n"
    rows = ["1k      10      =10      20k         0.00s    128.00       8.00       0.12\n"]
    rows.append("1k      10      =10      20k         0.00s    128.00       80.0       0.12\n")
    assert len(log_of("fabtests", [head, *rows]).rows) == 1


PREFLIGHT = f"{HEAD}{line(0, '8.00')}\n{line(1, '9.00')}\n{summary('8.50', 'receiver', 2)}\niperf Done.\n"
TABLE = "\n| op | ranks | size | time_us |\n|---|---|---|---|\n| all_reduce | 8 | 1048576 | 50 |\n"
WAITED = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=8, NumelOut=8) ran"
FABTESTS = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n"
FABTEST = f"{FABTESTS}1k      10      =10      20k         0.00s    128.00       8.00       0.12\n"
SOCKPERF = "sockperf: Summary: Latency is 17.2 usec\n"


@pytest.mark.parametrize("before", [PREFLIGHT, FABTEST, SOCKPERF])
@pytest.mark.parametrize(
    ("after", "code"),
    [
        ("".join(f"step: {step}, loss: 2.1, time: 250.0 ms\n" for step in range(9)), "training-log"),
        (f"[rank3]:[E1130 ProcessGroupNCCL.cpp:629] [Rank 3] {WAITED} for 600017 milliseconds\n", "hang"),
        ("node1:1:2 [0] misc/ibvwrap.cc:160 NCCL WARN Call to ibv_modify_qp failed with error 110\n", "job-failed"),
        (TABLE, ""),
    ],
)
def test_a_test_of_the_network_hides_nothing_below(before: str, after: str, code: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(before + after, encoding="utf-8")
    if code:
        with pytest.raises(LogError) as refused:
            read_log(path)
        assert refused.value.code == code
    else:
        assert {row.op for row in read_log(path).rows} == {"all_reduce"}


@pytest.mark.parametrize("log", [PREFLIGHT, FABTEST, SOCKPERF])
def test_a_log_of_the_network_alone_is_read_behind_any_prefix(log: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"node1: {line}\n" for line in log.splitlines()), encoding="utf-8")
    assert len(read_log(path).rows) == 1


def test_prose_about_sockperf_is_no_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(f"Before: {SOCKPERF[:-1]} between the hosts, then all_reduce.\n", encoding="utf-8")
    with pytest.raises(LogError):
        read_log(path)


@pytest.mark.parametrize(
    ("command", "row", "size", "seconds"),
    [
        ("fi_rma_bw -I 1900", "64k     1k      118m        0.01s  10485.76       6.25       0.16", 65536, 6.25e-6),
        ("fi_pingpong -I 1500", "64      1k      =1k      187k        0.02s      8.00       8.00       0.12", 64, 8e-6),
        ("fi_pingpong", "64      1k      =1k      125k        0.02s      8.00       8.00       0.12", 64, 8e-6),
        ("", "64      1k      =1k      125k        0.02s      8.00       8.00       0.12", 64, 8e-6),
    ],
)
def test_digits_of_fabtests_are_cut_off(command: str, row: str, size: int, seconds: float) -> None:
    (read,) = log_of("fabtests", [f"$ {command} node1\n", FABTESTS, f"{row}\n"]).rows
    assert (read.tool_size_bytes, read.time_seconds) == (size, seconds)
    assert read.op == ("pair_uni" if "bw" in command else "ping_pong")


def test_a_row_of_fabtests_that_does_not_fit_is_no_row_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(f"{FABTESTS}64      1k      =1k      999m        0.02s      8.00       8.00       0.12\n")
    with pytest.raises(LogError):
        read_log(path)


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ("-m 1M", 1 << 20),
        ("-m 64k", 64000),
        ("-m64K", 64 << 10),
        ("--msg_size 2kib", 2048),
        ("-m 1gb", 10**9),
        ("-m 1:2", None),
        ("-t 9", 64 << 10),
    ],
)
def test_the_size_of_qperf_is_that_of_its_option(given: str, size: int | None) -> None:
    lines = [f"$ qperf {given} node1 rc_bw\n", "rc_bw:\n", "    bw  =  11 GB/sec\n"]
    assert [row.tool_size_bytes for row in log_of("qperf", lines).rows] == [size]


@pytest.mark.parametrize(
    ("command", "burst"), [("", " : first burst 15"), ("$ netperf -H node1 -t TCP_RR -- -b 15 -r 64,64\n", "")]
)
def test_of_transactions_under_way_at_a_time_no_latency_follows(command: str, burst: str) -> None:
    title = f"MIGRATED TCP REQUEST/RESPONSE TEST from 0.0.0.0 () port 0 AF_INET to node1 () port 0 AF_INET{burst}\n"
    row = "16384  131072 64       64      10.00    250000.00\n"
    with pytest.raises(LogError):
        log_of("netperf", [command, title, SOCKETS, row])


def test_of_udp_with_the_load_of_cpus_counts_what_arrived() -> None:
    head = "bytes   bytes    secs            #      #   10^6bits/sec % SS     us/KB\n"
    rows = ["212992   65507   10.00       91812      0     4811.5     2.10     0.572\n"]
    rows.append("212992           10.00       45906            2405.7     1.30     0.354\n")
    (row,) = log_of("netperf", [head, *rows]).rows
    assert (row.tool_op, row.tool_size_bytes) == ("UDP_STREAM", 65507)
    assert row.rate == pytest.approx(2405.7e6 / 8)


@pytest.mark.parametrize(("given", "status"), [({}, "not judged"), ({"nics": "1x20Gb/s", "hosts": 2}, "as expected")])
def test_small_messages_of_a_stream_are_no_latency(given: dict[str, Any], status: str, tmp_path: Path) -> None:
    lines = ["$ sockperf tp -i node1 --tcp -m 1024", "sockperf: Summary: Message Rate is 2000000 [msg/sec]"]
    path = tmp_path / "log"
    path.write_text("\n".join([*lines, "sockperf: Summary: BandWidth is 1953.125 MBps", ""]), encoding="utf-8")
    judgement = judge(pool([find(tmp_path, str(path)).read(LogFacts.stated(given, catalogue()))]))
    assert [verdict.status for verdict in judgement.verdicts] == [status]
    assert "latency" not in answer_of(judgement).headline


def test_a_stream_without_its_end_is_said_to_lack_it() -> None:
    ends = (summary("8.40", "sender", 2), summary("8.30", "receiver", 2))
    for lines, codes in ((ends, set()), ((), {"unfinished"})):
        text = [CONNECTED, HEAD, *(f"{row}\n" for row in (line(0, "8.00"), line(1, "8.80"), *lines))]
        assert {note.code for note in log_of("iperf", text).notes} & {"unfinished"} == codes


def test_sums_over_streams_lack_no_stream() -> None:
    """A paste that ends between the last lines of two streams."""
    rows = [line(0, "5.00"), line(0, "3.00", stream="  7"), line(1, "5.00")]
    log = log_of("iperf", [HEAD, *(f"{row}\n" for row in rows)])
    assert [row.rate for row in log.rows] == pytest.approx([8 * GBIT])
    assert "truncated-row" in {note.code for note in log.notes}
    both = [*rows, line(1, "3.00", stream="  7")]
    assert "truncated-row" not in {note.code for note in log_of("iperf", [HEAD, *(f"{row}\n" for row in both)]).notes}


def test_a_client_that_arrives_late_is_not_mixed_with_another() -> None:
    late = CONNECTED.replace("[  5]", "[  7]").replace("192.0.2.7", "192.0.2.8")
    text = [CONNECTED, HEAD, f"{line(0, '8.00')}\n", late, f"{line(0, '4.00', stream='  7')}\n", f"{line(1, '4.00')}\n"]
    with pytest.raises(LogError) as refused:
        log_of("iperf", text)
    assert refused.value.code == "interleaved-logs"
    assert len(log_of("iperf", text[:-1]).tables) == 2  # one after the other


@pytest.mark.parametrize(("log", "ports"), [("iperf.txt", 0), ("perftest-bw.txt", 1)])
def test_nics_that_are_given_are_interfaces_of_sockets(log: str, ports: int, tmp_path: Path) -> None:
    given = LogFacts.stated({"nics": "1x100Gb/s", "hosts": 2}, catalogue())
    hosts = find(tmp_path, str(LOGS / log)).read(given).stored.run.environments.values()
    assert {len(host.rdma) for host in hosts} == {ports}
    assert {nic.speed_bytes_per_second for host in hosts for nic in host.nics} == ({12.5e9} if not ports else set())


@pytest.mark.parametrize(("command", "launches"), [("ethtool -K eth0 rxhash on", 1), ("ethtool eth0", 2)])
def test_a_setting_of_the_system_between_two_tests_is_a_difference(command: str, launches: int, tmp_path: Path) -> None:
    one = [CONNECTED, HEAD, f"{line(0, '8.00')}\n", f"{line(1, '8.80')}\n"]
    path = tmp_path / "log"
    path.write_text("".join([*one, f"root@node1:~# {command}\n", *one]).replace("40102", "40108", 1))
    cases = find(tmp_path, str(path)).read(LogFacts()).stored.run.cases
    assert len(set(cases)) == 3 - launches
