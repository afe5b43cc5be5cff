"""What a run says of itself: like parts, sizes of a curve, directions of a link; and which logs are kept apart."""

import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from testing.logs import LOGS

from busbw.errors import UnlikeRuns
from busbw.ops import LEAST_CROSSING
from busbw.system.catalog import catalogue
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.imported import LogFacts
from busbw_analysis.data.likeness import differences, options_of
from busbw_analysis.data.load import pool
from busbw_analysis.data.sources import find
from busbw_analysis.diagnosis.answer import answer_of
from busbw_analysis.diagnosis.causes import CONTRASTS
from busbw_analysis.diagnosis.compare import compare
from busbw_analysis.diagnosis.judge import Finding, Judgement
from busbw_analysis.diagnosis.verdicts import summed_on_the_way
from busbw_analysis.peaks.peaks import Peak
from busbw_analysis.report.document import Table
from busbw_analysis.report.show import show_blocks, show_rows

CODES = {*CONTRASTS, "slow-host", "slow-rank", "slow-pair"}
NICS = LogFacts.stated({"hosts": 2, "nics": "8x200Gb/s"}, catalogue())


def judged(*paths: Path, facts: LogFacts | None = None) -> Judgement:
    return judge(pool([find(path.parent, str(path)).read(facts) for path in paths]))


def contrasts(judgement: Judgement) -> list[Finding]:
    return [finding for finding in judgement.findings if finding.code in CODES]


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(("direct", "named"), [(9.9, True), (18.0, False), (48.0, False)])
def test_copies_that_are_slower_with_peer_access_are_the_cause(direct: float, tmp_path: Path, *, named: bool) -> None:
    """NVIDIA/nccl#814: 9.9 GB/s with, 22.2 GB/s without."""
    text = "".join(
        f"Unidirectional P2P={kind} Bandwidth{way} Matrix (GB/s)\n   D\\D     0      1\n"
        f"     0 912.0 {rate}\n     1 {rate} 912.0\n"
        for kind, way, rate in (("Disabled", "", 22.2), ("Enabled", " (P2P Writes)", direct))
    )
    judgement = judged(written(tmp_path, "log", text))
    assert ([finding.code for finding in contrasts(judgement)] == ["slow-peers"]) == named
    assert not named or "9.9 GB/s" in answer_of(judgement).cause


def test_the_copies_of_all_gpus_are_one_table() -> None:
    (shown,) = (
        block for block in show_blocks(show_rows(judged(LOGS / "nvbandwidth-h2d-slow.txt"))) if isinstance(block, Table)
    )
    assert [row[1].text for row in shown.rows] == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("log", "code", "says"),
    [
        ("nvbandwidth-h2d-slow.txt", "slow-gpu", ("GPU 0 ", "14.2 GB/s", "PCIe 3 x16", "PCIe 5 x4")),
        ("nvbandwidth-pair-slow.txt", "slow-pair", ("2 ↔ 5", "41.9 GB/s", "11%")),
        ("perftest-8-nics.txt", "slow-nic", ("mlx5_5 ", "12.2 GB/s")),
        ("nccl-tests-collapse.txt", "collapse", ("64 MiB", "5.6×", "28.9 GB/s")),
        ("nccl-tests-host-pairs.txt", "slow-host", ("host gn644 ", "49.3 GB/s", "56%", "gn284, gn678 or")),
    ],
)
def test_what_is_slower_than_its_like_is_named_and_is_the_cause(log: str, code: str, says: tuple[str, ...]) -> None:
    judgement = judged(LOGS / log)
    (finding,) = contrasts(judgement)
    assert finding.code == code
    assert all(words in finding.claim for words in says)
    answer = answer_of(judgement)
    assert answer.status == "explained"
    assert finding.claim.casefold()[1:] in answer.cause.casefold()


# --- GPUs and pairs of them ----------------------------------------------------------------------------------------


def h2d(*rates: float) -> str:
    row = " ".join(f"{rate:.2f}" for rate in rates)
    return (
        "Running host_to_device_memcpy_ce.\nmemcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n"
        f"  {' '.join(map(str, range(len(rates))))}\n 0 {row}\n\nSUM host_to_device_memcpy_ce {sum(rates)}\n"
    )


@pytest.mark.parametrize(
    ("rates", "slow"),
    [
        ((57, 56, 57, 14, 56, 57, 57, 56), ["GPU 3"]),
        ((57, 14, 57, 14, 56, 57, 57, 56), ["GPU 1", "GPU 3"]),
        ((57, 20), ["GPU 1"]),
        # Half of the GPUs at another socket are another kind, and a fifth less is within what single numbers scatter.
        ((57, 57, 57, 57, 30, 30, 30, 30), []),
        ((57, 57, 57, 46), []),
        ((57, 40), []),
    ],
)
def test_a_gpu_is_slow_if_its_like_are_alike(tmp_path: Path, rates: tuple[float, ...], slow: list[str]) -> None:
    judgement = judged(written(tmp_path, "log", h2d(*rates)))
    named = "".join(finding.claim for finding in contrasts(judgement))
    assert [gpu for gpu in (f"GPU {number}" for number in range(len(rates))) if gpu in named] == slow


def matrix(count: int, change: Callable[[np.ndarray], None]) -> str:
    rates = 369 + np.arange(count * count).reshape(count, count) % 5 / 10
    change(rates)
    lines = ["Running device_to_device_memcpy_read_ce.", "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)"]
    lines.append(" ".join(map(str, range(count))))
    for row in range(count):
        cells = ["N/A" if row == column else f"{rates[row, column]:.2f}" for column in range(count)]
        lines.append(f" {row} {' '.join(cells)}")
    return "\n".join([*lines, "", "SUM device_to_device_memcpy_read_ce 1", ""])


@pytest.mark.parametrize(
    ("count", "cells", "share", "expected"),
    [
        (8, [(1, 3)], 0.1, [("slow-pair", "1 → 3")]),
        (4, [(1, 3), (3, 1)], 0.4, [("slow-pair", "1 ↔ 3")]),
        (8, [(1, 3)], 0.6, [("asymmetric", "1 → 3")]),
        (2, [(1, 0)], 0.5, [("asymmetric", "1 → 0")]),
        (3, [(1, 2)], 0.5, [("asymmetric", "1 → 2")]),
        (8, [(1, 3), (3, 1)], 0.6, []),
        (8, [(1, 3)], 0.8, []),
        (2, [(1, 0)], 0.8, []),
    ],
)
def test_a_pair_far_below_all_others_or_its_other_direction_is_named(
    tmp_path: Path, count: int, cells: list[tuple[int, int]], share: float, expected: list[tuple[str, str]]
) -> None:
    def slow(rates: np.ndarray) -> None:
        for cell in cells:
            rates[cell] *= share

    named = contrasts(judged(written(tmp_path, "log", matrix(count, slow))))
    assert [finding.code for finding in named] == [code for code, _ in expected]
    assert all(name in finding.claim for finding, (_, name) in zip(named, expected, strict=True))


def test_a_gpu_whose_copies_to_the_host_are_slower_than_from_it_is_named(tmp_path: Path) -> None:
    back = h2d(25, 12, 25).replace("host_to_device", "device_to_host").replace("CPU(row) -> GPU", "CPU(row) <- GPU")
    named = contrasts(judged(written(tmp_path, "log", h2d(25, 25, 25) + back)))
    assert {"asymmetric", "slow-gpu"} == {finding.code for finding in named}
    assert all("GPU 1" in finding.claim for finding in named)


def test_directions_that_differ_on_all_gpus_name_no_link(tmp_path: Path) -> None:
    """NVIDIA/nvbandwidth#24: by SM, 35 GB/s to all GPUs and 53 GB/s from them."""
    back = h2d(53, 53, 53, 53).replace("host_to_device", "device_to_host").replace("CPU(row) ->", "CPU(row) <-")
    (named,) = contrasts(judged(written(tmp_path, "log", h2d(35, 35, 35, 34) + back)))
    assert named.code == "asymmetric"
    assert named.claim.startswith("4 of 4 GPUs")


def test_two_gpus_with_two_kinds_of_copies_are_two_gpus(tmp_path: Path) -> None:
    back = h2d(53, 53).replace("host_to_device", "device_to_host").replace("CPU(row) ->", "CPU(row) <-")
    both = h2d(35, 34) + back
    text = both + both.replace("_ce", "_sm").replace("memcpy CE", "memcpy SM")
    named = contrasts(judged(written(tmp_path, "log", text)))
    assert named
    assert all(finding.claim.startswith("GPU ") for finding in named), "not: 4 of 4 GPUs"


def test_a_gpu_that_is_slow_in_both_directions_at_once_has_no_narrow_link(tmp_path: Path) -> None:
    """NVIDIA/cuda-samples#357."""
    text = (
        "Host/Device Bandwidth Matrix (GB/s), memory=Pinned\n   Dir\\D       0      1      2      3\n"
        "   D2H     56.83  57.12  57.14  55.49\n   H2D     56.17  56.21  56.21  56.12\n"
        "   BiDir  101.26 101.38 101.40   7.25\n"
    )
    (named,) = contrasts(judged(written(tmp_path, "log", text)))
    assert "GPU 3" in named.claim
    assert "56.1 GB/s" in named.claim
    assert "LnkSta" not in named.claim


def test_the_slowest_pair_of_a_matrix_of_latencies_has_a_time(tmp_path: Path) -> None:
    """NVIDIA/cuda-samples#230."""
    text = (
        "P2P=Disabled Latency Matrix (us)\n   GPU     0      1      2\n     0   2.61  14.95  19.61\n"
        "     1  11.09   2.10  19.16\n     2  13.34  16.44   2.06\n"
    )
    answer = answer_of(judged(written(tmp_path, "log", text)))
    assert "0 → 2: 19.6 µs at 16 B" in str(answer)


# --- apart ---------------------------------------------------------------------------------------------------------


def test_every_nic_has_its_own_port_as_peak() -> None:
    judgement = judged(LOGS / "perftest-8-nics.txt", facts=NICS)
    peaks = {curve.series.key.group: curve.peak for curve in judgement.curves}
    assert set(peaks) == {f"mlx5_{number}" for number in range(8)}
    assert all(isinstance(peak, Peak) and peak.algbw == 25e9 for peak in peaks.values())
    shares = [curve.judged[0].peak_share or 0 for curve in judgement.curves]
    assert [round(share, 2) for share in shares] == [0.98, 0.98, 0.98, 0.98, 0.98, 0.49, 0.98, 0.98]
    assert not [finding for finding in judgement.findings if finding.code == "launches-differ"]


def test_files_of_pairs_of_hosts_are_as_one_file_of_them(tmp_path: Path) -> None:
    whole = judged(LOGS / "nccl-tests-host-pairs.txt")
    tables = (LOGS / "nccl-tests-host-pairs.txt").read_text(encoding="utf-8").split("# nThread")[1:]
    files = [written(tmp_path, f"{number}.log", f"# nThread{table}") for number, table in enumerate(tables)]
    pooled = judged(*files)
    assert [case.case for case in pooled.cases] == [case.case for case in whole.cases]
    assert len(whole.cases) == 10
    assert all(case.only is not None and len(case.only.launch_medians_ns) == 1 for case in whole.cases)
    assert [finding.claim for finding in contrasts(pooled)] == [finding.claim for finding in contrasts(whole)]
    # Two of them are still the same case on two sides.
    (first, *_) = compare(*(pool([find(tmp_path, str(path)).read()]) for path in files[:2])).bands
    assert (first.verdict.word, round(first.estimate.ratio, 2)) == ("faster", 0.56)


def test_what_holds_for_several_logs_is_said_once(tmp_path: Path) -> None:
    """The cautions of 128 logs of pairs hid everything else."""
    text = (LOGS / "nccl-tests-no-header.txt").read_text(encoding="utf-8")
    one, *more = (written(tmp_path, f"{number}.log", text.replace("1.", f"{number}.")) for number in (1, 2, 3))
    alone, together = (judged(*paths, facts=LogFacts(ranks=8)) for paths in ((one,), (one, *more)))
    codes = [finding.code for finding in alone.findings if finding.code in {"imported", "deduced"}]
    assert codes
    assert [finding.code for finding in together.findings if finding.code in {"imported", "deduced"}] == codes


@pytest.mark.parametrize(("gpu", "named"), [("NVIDIA H100 80GB HBM3", True), ("NVIDIA A100-SXM4-80GB", False)])
def test_hosts_with_other_gpus_are_not_what_is_slow(gpu: str, tmp_path: Path, *, named: bool) -> None:
    """Logs of two clusters in one folder: nothing is wrong with the one that has slower GPUs."""
    text = (LOGS / "nccl-tests-2.19.txt").read_text(encoding="utf-8")
    half = re.sub(
        r"(208.98|209.54)( +)(365.72|366.69)", r"104.49\g<2>182.86", re.sub("128[14].[0-9]0", "2569.00", text)
    )
    other = re.sub("node([12])", r"other\1", half).replace("NVIDIA H100 80GB HBM3", gpu)
    paths = written(tmp_path, "first.log", text), written(tmp_path, "second.log", other)
    assert ("slow-host" in {finding.code for finding in contrasts(judged(*paths))}) == named


@pytest.mark.parametrize(
    ("gpu", "alike"), [("NVIDIA A100-SXM4-80GB", False), ("H100 SXM5", True), ("NVIDIA H100 80GB HBM3", True)]
)
def test_logs_of_other_gpus_are_compared_by_name_and_never_pooled(gpu: str, tmp_path: Path, *, alike: bool) -> None:
    """The names of their hosts may be the same: node1 of two clusters."""
    text = (LOGS / "nccl-tests-2.19.txt").read_text(encoding="utf-8")
    other = text.replace("NVIDIA H100 80GB HBM3", gpu).replace("45.21", "45.22")
    logs = [find(tmp_path, str(written(tmp_path, name, log))).read(None) for name, log in (("a", text), ("b", other))]
    assert [each.key for each in differences(logs[0].stored, logs[1].stored)] == ["gpu"] * (not alike)
    with nullcontext() if alike else pytest.raises(UnlikeRuns):
        pool(logs)
    notices = compare(pool(logs[:1]), pool(logs[1:])).notices
    assert ("across" in {notice.code for notice in notices}) == (not alike)


@pytest.mark.parametrize(
    ("names", "alike"),
    [(("NCCL_ALGO=Ring.log", "NCCL_ALGO=Tree.log"), False), (("NCCL_ALGO=Ring_1.log", "NCCL_ALGO=Ring_2.log"), True)],
)
def test_logs_whose_names_state_other_settings_are_not_pooled(
    names: tuple[str, str], tmp_path: Path, *, alike: bool
) -> None:
    text = (LOGS / "nccl-tests-2.19.txt").read_text(encoding="utf-8")
    logs = [find(tmp_path, str(written(tmp_path, name, text))).read(None) for name in names]
    with nullcontext() if alike else pytest.raises(UnlikeRuns):
        pool(logs)


def test_repeated_tables_on_the_same_hosts_are_launches(tmp_path: Path) -> None:
    table = (LOGS / "nccl-tests-host-pairs.txt").read_text(encoding="utf-8").split("# nThread")[1]
    judgement = judged(written(tmp_path, "log", f"# nThread{table}# nThread{table}"))
    assert [len(case.groups[0].launch_medians_ns) for case in judgement.cases] == [2, 2]
    assert {case.case.group for case in judgement.cases} == {"all"}


def test_a_table_that_takes_far_longer_than_the_other_is_named(tmp_path: Path) -> None:
    table = "# nThread" + (LOGS / "nccl-tests-host-pairs.txt").read_text(encoding="utf-8").split("# nThread")[1]
    slower = table.replace("326299   26.33   49.36", "652598   13.17   24.68")
    judgement = judged(written(tmp_path, "log", f"{table}{slower}"))
    (finding,) = (finding for finding in judgement.findings if finding.code == "launches-differ")
    assert "Table 2 of log took 2×" in finding.claim


def test_a_rate_near_what_a_ring_reaches_says_so(tmp_path: Path) -> None:
    table = (LOGS / "nccl-tests-host-pairs.txt").read_text(encoding="utf-8").split("# nThread")[2]
    nics = LogFacts.stated({"nics": "4x200Gb/s"}, catalogue())
    (verdict, _) = judged(written(tmp_path, "log", f"# nThread{table}"), facts=nics).verdicts
    assert (verdict.status, round(verdict.peak_share or 0, 3)) == ("as expected", 0.471)
    assert "88.4 % of the 100 GB/s that a ring" in verdict.reached


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        ("$ ./all_reduce_perf -g 1\n", "$ NCCL_ALGO=Tree ./all_reduce_perf -g 1\n", (None, "NCCL_ALGO=Tree")),
        ("$ ./all_reduce_perf -R 0\n", "$ ./all_reduce_perf -R 1\n", ("-R 0", "-R 1")),
        ("NCCL version 2.18.3\n", "NCCL version 2.20.5\n", ("library 2.18.3", "library 2.20.5")),
        ("$ ./all_reduce_perf -n 20\n", "$ ./all_reduce_perf -n 50 > x\n", (None,)),
    ],
)
def test_tables_with_other_settings_are_other_cases_and_files_with_them_are_compared(
    tmp_path: Path, first: str, second: str, names: tuple[str | None, ...]
) -> None:
    table = "# nThread" + (LOGS / "nccl-tests-host-pairs.txt").read_text(encoding="utf-8").split("# nThread")[1]
    slower = table.replace("326299   26.33   49.36", "652598   13.17   24.68")
    judgement = judged(written(tmp_path, "log", first + table + second + slower))
    assert tuple(dict.fromkeys(case.case.tool_op for case in judgement.cases)) == names
    files = [written(tmp_path, "a.log", first + table), written(tmp_path, "b.log", second + slower)]
    sides = [find(tmp_path, str(path)).read() for path in files]
    if len(names) > 1:
        with pytest.raises(UnlikeRuns):
            pool(sides)
    comparison = compare(pool(sides[:1]), pool(sides[1:]))
    assert {band.verdict.word for band in comparison.bands} == {"slower"}
    assert ("across" in {notice.code for notice in comparison.notices}) == (len(names) > 1)


def test_options_are_those_that_change_results() -> None:
    command = (
        "mpirun -np 16 -H a,b -x NCCL_ALGO=Ring -x NCCL_DEBUG=INFO ./build/all_reduce_perf -b 1G -f 2 -g 1 -R 1 >log"
    )
    assert options_of(command) == {"NCCL_ALGO=Ring", "all_reduce_perf", "-g 1", "-R 1"}


@pytest.mark.parametrize(("factor", "word"), [(3.6, "slower"), (1 / 3.6, "faster"), (1.2, "cannot tell")])
def test_one_number_a_side_tells_what_no_scatter_reaches(tmp_path: Path, factor: float, word: str) -> None:
    rows = [(1 << power, 10.0 * (power + 1)) for power in range(12, 20)]
    head = "# OSU MPI Bi-Directional Bandwidth Test v5.7\n# Size      Bandwidth (MB/s)\n"
    sides = [
        pool([find(tmp_path, str(written(tmp_path, name, head + text))).read()])
        for name, text in (
            ("a", "".join(f"{size} {rate:.2f}\n" for size, rate in rows)),
            ("b", "".join(f"{size} {rate / factor:.2f}\n" for size, rate in rows[2:])),
        )
    ]
    assert {band.verdict.word for band in compare(*sides).bands} == {word}


def test_a_case_with_fewer_sizes_is_compared_over_the_common_ones() -> None:
    sides = [pool([find(LOGS, str(LOGS / f"osu-bibw-{name}.txt")).read()]) for name in ("good", "bad")]
    (band,) = compare(*sides).bands
    assert (band.verdict.word, round(band.estimate.ratio, 1)) == ("slower", 3.6)


@pytest.mark.parametrize(("nics", "doubt"), [("4x4X NDR", "exceeded"), ("8x4X NDR", None)])
def test_a_nominal_peak_that_is_exceeded_decides_nothing(nics: str, doubt: str | None) -> None:
    """At 104 % of a network over which no switch can save bytes of two hosts, the verdict was as expected."""
    judgement = judged(LOGS / "nccl-tests-2.19.txt", facts=LogFacts.stated({"nics": nics}, catalogue()))
    assert {verdict.doubt for verdict in judgement.verdicts} == {doubt}
    assert {verdict.status for verdict in judgement.verdicts} == {"as expected" if doubt is None else "undecided"}
    peak = judgement.curves[0].peak
    assert isinstance(peak, Peak)
    if doubt:
        assert [peak.rate, peak.busbw] == pytest.approx([200e9, 350e9])
        assert all(rate in peak.allowance for rate in ("350 GB/s", "200 GB/s"))
        assert [cause.code for cause in answer_of(judgement).causes] == ["above-peak"]


@pytest.mark.parametrize(("op", "most"), [("all_reduce", 1.75), ("reduce_scatter", 1.0), ("all_gather", 1.0)])
def test_only_switches_that_add_pass_on_fewer_bytes_than_a_peak_assumes(op: str, most: float) -> None:
    hosts = [str(rank) for rank in range(8)]
    times = LEAST_CROSSING[op](hosts, 0)
    peak = Peak(450e9 / times, 450e9, 450e9, "links of GPUs", "GPU 0", "links", "", (), measured=False)
    assert summed_on_the_way(op, peak) == most
    assert summed_on_the_way(op, replace(peak, level="PCIe")) == 1


def groups_log(within: float, between: float, of_group: int, count: int) -> str:
    names = "".join(f"{gpu:10d}" for gpu in range(count))
    rows = "".join(
        f" {gpu}"
        + "".join(
            f"{'N/A' if other == gpu else within if other // of_group == gpu // of_group else between:>10}"
            for other in range(count)
        )
        + "\n"
        for gpu in range(count)
    )
    return (
        "nvbandwidth Version: v0.8\nRunning device_to_device_memcpy_read_ce.\n"
        f"memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n  {names}\n{rows}\n"
    )


@pytest.mark.parametrize(
    ("within", "between", "of_group", "count", "named"),
    [
        (26.34, 22.02, 3, 6, "GPUs 0-2 | 3-5 "),  # NVIDIA/nvbandwidth#50
        (50.0, 10.0, 2, 8, "GPUs 0,1 | 2,3 | 4,5 | 6,7 "),
        (26.34, 25.0, 3, 6, ""),
        (26.34, 22.02, 5, 6, ""),
        (26.34, 22.02, 8, 8, ""),
    ],
)
def test_gpus_of_two_sockets_are_groups(
    within: float, between: float, of_group: int, count: int, named: str, tmp_path: Path
) -> None:
    judgement = judged(written(tmp_path, "log", groups_log(within, between, of_group, count)))
    found = {finding.code: finding.claim for finding in contrasts(judgement)}
    assert ("groups-apart" in found) == bool(named)
    assert named in found.get("groups-apart", "")
    assert not named or "slow-pair" not in found


@pytest.mark.parametrize(("time_us", "named"), [(2113.56, True), (20.0, True), (2.5, False)])
def test_a_size_that_takes_longer_than_larger_ones_is_named(time_us: float, tmp_path: Path, *, named: bool) -> None:
    """openucx/ucx#2111: 2 ms at 4 B, 1.25 us at 8 B."""
    text = f"# OSU MPI Latency Test v3.6\n# Size          Latency (us)\n2      1.90\n4      {time_us}\n8      1.25\n"
    judgement = judged(written(tmp_path, "log", text))
    assert ([finding.code for finding in contrasts(judgement)] == ["slow-size"]) == named


def test_the_first_row_of_a_table_may_be_a_warm_up(tmp_path: Path) -> None:
    text = "# OSU MPI Latency Test v3.6\n# Size          Latency (us)\n2      2000\n4      1.2\n8      1.25\n"
    assert contrasts(judged(written(tmp_path, "log", text))) == []
