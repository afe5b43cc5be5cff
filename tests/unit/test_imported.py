"""Logs of other tools as runs: every command takes them, what they cannot tell is not judged, and no number changes."""

import io
import json
import re
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from testing.logs import EXPECTED as EXPECTED_FILE
from testing.logs import LOGS, read_log
from testing.narrow import require, require_type

import busbw_analysis
from busbw.cli.main import main
from busbw.errors import LogError, UsageError
from busbw.ops import OPS, bus_factor
from busbw.runs import store
from busbw.runs.records import CheckState, Imported
from busbw.system.catalog import catalogue
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.imported import LogFacts
from busbw_analysis.data.load import pool
from busbw_analysis.data.readers import deduce
from busbw_analysis.data.readers.log import Aggregate
from busbw_analysis.data.sources import find
from busbw_analysis.data.unavailable import Unavailable
from busbw_analysis.diagnosis.answer import answer_of
from busbw_analysis.diagnosis.causes import CONTRASTS
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.peaks.paths import Network, host_network
from busbw_analysis.peaks.peaks import Peak
from busbw_analysis.report.curves import panel_of
from busbw_analysis.report.document import Table
from busbw_analysis.report.show import show_blocks, show_rows

EXPECTED: dict[str, Any] = json.loads(EXPECTED_FILE.read_text(encoding="utf-8"))
RANK = "#  Rank {0:2} Group  0 Pid {0} on node{1} device {2} [0000:{2:02x}:00] {3}"
HEAD = "#       size count type redop root time algbw busbw #wrong time algbw busbw #wrong"
NOTHING = LogFacts()
SIZES = tuple(1 << power for power in range(10, 34))
READABLE = [name for name, told in EXPECTED.items() if "refused" not in told]


def nccl_log(
    op: str = "all_reduce",
    gpu: str = "NVIDIA H100 80GB HBM3",
    hosts: int = 1,
    ranks: int = 8,
    wrong: str = "0",
    footer: str = "# Out of bounds values : 0 OK",
    sizes: tuple[int, ...] = SIZES,
    curve: tuple[float, float] = (20, 210e3),
) -> str:
    """A log of nccl-tests whose time is α in µs and S over B in bytes per µs, as ``curve`` has them."""
    lines = [f"# Collective test starting: {op}_perf", "# nThread 1 nGpus 1 minBytes 1024"]
    lines += [RANK.format(rank, rank * hosts // ranks, rank % (ranks // hosts), gpu) for rank in range(ranks)]
    lines.append(HEAD)
    for size in sizes:
        time = curve[0] + size / curve[1]
        rates = f"{size / time / 1e3:.2f} {size / time / 1e3 * (bus_factor(op, ranks) or 0):.2f} {wrong}"
        lines.append(f"  {size} {size // 4} float sum -1 {time:.2f} {rates} {time:.2f} {rates}")
    return "\n".join([*lines, footer, "# Avg bus bandwidth    : 100", ""])


def log_in(folder: Path, **facts: Any) -> Path:  # noqa: ANN401 - those of nccl_log
    """The file of such a log."""
    path = folder / "log"
    path.write_text(nccl_log(**facts), encoding="utf-8")
    return path


def judged(path: Path, facts: LogFacts = NOTHING) -> Judgement:
    return judge(pool([find(path.parent, str(path)).read(facts)]))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "all_reduce.log"
    path.write_text(nccl_log(), encoding="utf-8")
    return path


def run(*arguments: str, text: str | None = None) -> tuple[int, str]:
    done = CliRunner().invoke(main, list(arguments), input=text)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done.exit_code, done.output


OPTIONS = {"hosts": "1", "gpu": "H100 SXM5", "nics": "4x200Gb/s", "ranks": "8", "op": "all_reduce", "size": "1GiB"}
ACCUSING = ("-slow.txt", "8-nics.txt", "collapse.txt", "host-pairs.txt", "nvloom.txt", "osu-settings.txt")
"""Logs of which something is slower than its like: test_siblings.py has them."""


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_stored_log_is_shown_or_refused_in_a_sentence(name: str) -> None:
    """A text is shown with the options that it asks for; a healthy log accuses nobody."""
    arguments = ["show", str(LOGS / name), "--json"]
    shown = CliRunner().invoke(main, arguments)
    if shown.exit_code != 0:
        assert shown.exit_code == 1
        assert re.fullmatch(r"busbw: [^\n]+\n(?:(?:(?:Why|Do|Also|Error|NCCL|Log|Path):)? +[^\n]+\n)*", shown.output)
    elif not name.endswith(ACCUSING):
        codes = {finding["code"] for finding in json.loads(shown.stdout)["warnings"]}
        assert not codes & {*CONTRASTS, "slow-host", "slow-rank", "slow-pair"}
    try:
        unknown = require(find(LOGS, str(LOGS / name)).read().stored.run.imported).unknown
    except LogError:
        assert shown.exit_code == 1
        return
    if name.endswith(".txt"):
        asked = [word for option in unknown if option != "machine" for word in (f"--{option}", OPTIONS[option])]
        assert (CliRunner().invoke(main, [*arguments, *asked]) if asked else shown).exit_code == 0


@pytest.mark.parametrize("late", [None, 1])
def test_times_of_every_process_show_stragglers(late: int | None, tmp_path: Path) -> None:
    """In a synchronising call the last to arrive waits for nobody: its own time is the shortest."""
    written = json.loads((LOGS / "nccl-tests-v1.json").read_text(encoding="utf-8"))
    written["config"] |= {"nthreads": 1, "ngpus": 1}
    devices = written["config"]["devices"]
    for rank, device in enumerate(devices):
        device |= {"rank": rank, "pid": 100 + rank}
    random = np.random.default_rng(1)
    for row in written["results"]:
        for key in ("out_of_place_per_iter", "in_place_per_iter"):
            times = 1000 + random.normal(0, 3, (len(devices), 60))
            if late is not None:
                times[late] -= 400
            row[key] = {"times_us": times.max(axis=0).tolist(), "per_process_max_times_us": times.tolist()}
            row[key.removesuffix("_per_iter")] |= {"bus_bw": row[key.removesuffix("_per_iter")]["alg_bw"]}  # two ranks
    path = tmp_path / "each.json"
    path.write_text(json.dumps(written, indent=1), encoding="utf-8")
    judgement = judged(path)
    assert {len(row.rank_samples_ns) for row in judgement.runs[0].imported} == {len(devices)}
    (group,) = judgement.results.lateness
    assert group.seen == "shortest time"
    assert [member.rank for member in group.flagged] == ([] if late is None else [late])
    imported = next(finding.text for finding in judgement.findings if finding.code == "imported")
    assert "stragglers" not in imported
    if late is not None:
        assert group.flagged[0].median_ns == pytest.approx(400e3, rel=0.05)
    kept = run("import", str(path), "--results-dir", str(tmp_path))[1].strip()
    assert store.read(Path(kept)).imported == judgement.runs[0].imported


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("nccl-tests-two-machines.txt", {"H100 PCIe", "A100 SXM4"}),
        ("osu-settings.txt", {"MPI-CUDA Bandwidth host to device", "UCX_RNDV_SCHEME=get_zcopy"}),
        ("perftest-gpu.txt", {"GPU -> GPU Performance Results", "CPU -> CPU"}),
        ("nvbandwidth-buffers.txt", {"host_to_device_memcpy_sm"}),
        ("table-variants.md", {"NCCL", "RCCL"}),
    ],
)
def test_tables_of_a_paste_with_other_text_or_settings_are_other_cases(name: str, names: set[str]) -> None:
    rows = find(LOGS, str(LOGS / name)).read().stored.imported
    assert len({(row.case, row.ranks) for row in rows}) == len(rows)
    assert all(any(words in (row.case.tool_op or "") for row in rows) for words in names)


def test_a_table_of_a_paste_is_read_although_another_is_not(tmp_path: Path) -> None:
    path = tmp_path / "log"
    head = "# size count type redop time algbw busbw error time algbw busbw error"
    blocks = {
        "all_reduce result": "268435456 67108864 float sum 122131 2.20 4.33 2e-06 122165 2.20 4.33 2e-06",
        "alltoall result": "268435456 1048576 float      520935 0.52 0.51 0e+00 519562 0.52 0.51 1e+00",
    }
    text = "\n".join(f"{title}\n```\n{head}\n  {row}\n```" for title, row in blocks.items())
    path.write_text(f"{text}\n", encoding="utf-8")
    stored = find(tmp_path, str(path)).read().stored
    assert {(row.case.op, row.case.ranks) for row in stored.imported} == {("all_to_all", 64)}
    assert "table-left-out" in {note.code for note in require(stored.run.imported).notes}


def test_ranks_that_are_given_are_those_of_every_table() -> None:
    """Three of its tables are below no command line."""
    stored = find(LOGS, str(LOGS / "osu-collectives.txt")).read(LogFacts(ranks=4)).stored
    assert {(row.case.group, row.case.ranks, row.ranks) for row in stored.imported} == {("all", 4, (0, 1, 2, 3))}


def test_tables_and_rows_that_are_left_out_for_the_same_reason_are_one_note() -> None:
    stored = find(LOGS, str(LOGS / "osu-collectives.txt")).read().stored
    notes = [note for note in require(stored.run.imported).notes if "left-out" in note.code]
    assert [(note.code, note.line) for note in notes] == [("table-left-out", 11), ("left-out", 22)]
    assert re.findall(r"\d+", notes[0].text) == ["3", "11", "17", "23"]


def test_rows_of_a_table_may_be_over_other_numbers_of_ranks(tmp_path: Path) -> None:
    path = tmp_path / "log"
    head = " nodes        size         count  type   redop     time   algbw   busbw"
    rows = ((1, 8142.6, 131.87, 230.77), (2, 35215, 30.49, 57.17), (4, 70253, 15.28, 29.61))
    lines = [
        f"   {nodes}   1073741824   268435456  float   sum   {us}   {low}   {high}" for nodes, us, low, high in rows
    ]
    path.write_text("\n".join(["all_reduce", head, *lines, ""]), encoding="utf-8")
    stored = find(tmp_path, str(path)).read().stored
    assert [row.case.ranks for row in stored.imported] == [8, 16, 32]


def test_rows_of_other_numbers_of_ranks_are_other_tables(tmp_path: Path) -> None:
    part = "$ mpirun -n {ranks} ./osu_allreduce\n# OSU MPI Allreduce Latency Test v7.4\n# Size  Avg Latency(us)\n"
    part += "4  1.20\n1024  3.20\n"
    path = tmp_path / "log"
    path.write_text(part.format(ranks=2) + part.format(ranks=4), encoding="utf-8")
    rows = show_rows(judged(path))
    tables = [block for block in show_blocks(rows) if isinstance(block, Table)]
    assert [len(table.rows) for table in tables] == [2, 2]
    assert [table.caption.rpartition(" · ")[2] for table in tables] == ["2 ranks", "4 ranks"]
    (alone,) = [block for block in show_blocks(rows[:2]) if isinstance(block, Table)]
    assert "ranks" not in alone.caption


def test_times_of_processes_with_several_gpus_are_of_no_rank() -> None:
    stored = find(LOGS, str(LOGS / "nccl-tests-v4.json")).read().stored
    assert any(row.process_seconds for row in read_log(LOGS / "nccl-tests-v4.json").rows)
    assert not any(row.rank_samples_ns for row in stored.imported)


@pytest.mark.parametrize("name", READABLE)
def test_every_number_is_the_one_in_the_log(name: str) -> None:
    try:
        stored = find(LOGS, str(LOGS / name)).read().stored
    except LogError as error:
        pytest.skip(str(error))
    by_line: dict[int, list[Aggregate]] = {}
    for told in read_log(LOGS / name).rows:
        by_line.setdefault(told.line, []).append(told)
    for row in stored.imported:
        seconds = row.time_ns / 1e9
        assert any(
            (median(one.samples_seconds) if one.samples_seconds else one.time_seconds)
            == pytest.approx(seconds, rel=1e-12)
            or one.rate == pytest.approx(row.case.size_bytes * (one.messages or 0) / seconds, rel=1e-12)
            or one.busbw == pytest.approx(row.case.size_bytes * (row.bus_factor or 0) / seconds, rel=1e-12)
            for one in by_line[row.line]
        )


def test_times_of_every_iteration_are_samples(tmp_path: Path) -> None:
    written = json.loads((LOGS / "nccl-tests-v1.json").read_text(encoding="utf-8"))
    times = [float(10 + place) for place in range(22)]
    for row in written["results"]:
        for key in ("out_of_place_per_iter", "in_place_per_iter"):
            row[key] = {"times_us": times, "skipped_iterations": 2}
    path = tmp_path / "log.json"
    path.write_text(json.dumps(written), encoding="utf-8")
    judgement = judged(path)
    for summary in judgement.cases:
        (group,) = summary.groups
        assert (group.statistic, group.samples) == ("median", 20)
        assert [group.time_ns, group.p5_ns, group.p95_ns] == pytest.approx([21.5e3, 12.95e3, 30.05e3])
    status, told = run("export", str(path), "--to", "csv", "--samples")
    header, *lines = told.splitlines()
    assert (status, len(lines)) == (0, 20 * len(judgement.cases))
    assert dict(zip(header.split(","), lines[0].split(","), strict=True))["time_ns"] == "12000.0"


@pytest.mark.parametrize(("told", "name"), [("f8e4m3", "float8_e4m3"), ("uint64", "uint64")])
def test_a_type_that_busbw_does_not_measure_is_a_case_all_the_same(tmp_path: Path, told: str, name: str) -> None:
    path = tmp_path / "log"
    path.write_text(nccl_log().replace(" float ", f" {told} "), encoding="utf-8")
    assert {one.case.dtype for one in judged(path).cases} == {name}
    status, table = run("export", str(path), "--to", "nccl-tests")
    assert (status, f" {told} " in table) == (0, True)


def test_every_command_takes_a_log(log: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.log"
    other.write_text(nccl_log().replace("20.0", "21.0"), encoding="utf-8")
    for arguments in (
        ("show", str(log)),
        ("fit", str(log)),
        ("report", str(log), "--output", str(tmp_path / "report")),
        ("compare", str(log), str(other)),
        ("predict", "--from", str(log), "--op", "all_reduce", "--ranks", "8", "--size", "1GiB"),
    ):
        status, told = run(*arguments)
        assert (arguments[0], status) == (arguments[0], 0), told


def test_hints_on_a_log_lead_on(log: Path, tmp_path: Path) -> None:
    status, output = run("compare", str(log))
    assert (status, "--by" in output) == (2, False), "a log has no launches that form pairs"
    run("import", str(log), "--results-dir", str(tmp_path / "runs"))
    status, output = run("show", "latest", "--nics", "8x400Gb/s", "--results-dir", str(tmp_path / "runs"))
    assert (status, "busbw import" in output) == (2, True), "a stored log does not take facts any more"


def test_standard_input_is_a_log(log: Path) -> None:
    status, told = run("show", "-", "--json", text=log.read_text(encoding="utf-8"))
    assert status == 0
    assert len(json.loads(told)["cases"]) == 48


def test_an_aggregate_has_no_samples_and_no_interval(log: Path) -> None:
    stored = find(log.parent, str(log)).read().stored
    dataset = pool([stored])
    assert stored.measurements == ()
    for summary in dataset.summaries:
        (group,) = summary.groups
        assert (group.statistic, group.samples, group.spread, group.interval.kind) == ("mean", 0, None, "none")
        assert group.busbw == pytest.approx(summary.case.size_bytes / group.time_ns * 1e9 * 1.75)
    codes = {finding.code for finding in judge(dataset).findings}
    assert "imported" in codes
    assert not codes & {"few-launches", "self-test", "straggler", "disturbed"}


def test_the_peak_is_that_of_the_gpu_in_the_header(log: Path) -> None:
    judgement = judged(log)
    peak = require_type(Peak, judgement.curves[0].peak)
    assert peak.busbw == pytest.approx(450e9)
    assert judgement.verdicts[2].peak_share == pytest.approx(0.816, abs=0.01)


@pytest.mark.parametrize("gpu", ["AMD Instinct MI300A", "AMD Instinct MI250"])
def test_links_whose_rate_no_source_gives_are_not_those_to_the_host(gpu: str, tmp_path: Path) -> None:
    peak = require_type(Unavailable, judged(log_in(tmp_path, gpu=gpu, ranks=4)).curves[0].peak)
    assert peak.code == "links-not-known"


@pytest.mark.parametrize(
    ("op", "rate", "status"),
    [
        ("all_reduce", 470.0, "as expected"),  # a switch that does the sums
        ("all_reduce", 960.0, "undecided"),
        ("all_gather", 453.0, "as expected"),
        ("all_gather", 456.0, "undecided"),
        ("all_gather", 480.0, "undecided"),
    ],
)
def test_far_above_a_nominal_peak_nothing_is_as_expected(op: str, rate: float, status: str, tmp_path: Path) -> None:
    path = log_in(tmp_path, op=op, sizes=(1 << 30,), curve=(0, rate * 1e3 / (bus_factor(op, 8) or 0)))
    judgement = judged(path)
    assert {one.status for one in judgement.verdicts} == {status}
    answer = answer_of(judgement)
    assert (status == "undecided") == ("above-peak" in {cause.code for cause in answer.causes})
    assert "--launches" not in answer.action, "a log cannot be measured again"


def test_what_others_published_of_the_same_gpus_is_named(tmp_path: Path) -> None:
    path = log_in(tmp_path, gpu="NVIDIA H200")
    judgement = judged(path)
    large = next(one for one in judgement.verdicts if one.band == "large")
    # 210 GB/s of algbw are 367 of busbw; 8 GiB were published with 477.45 and 475.16.
    published = require(
        re.search(r"the time is ([\d.]+) × the published time: 475 GB/s to 477 GB/s at this size", large.why)
    )
    assert float(published[1]) == pytest.approx(476.3 / 367.5, rel=0.05)
    assert len(judgement.curves) == 2
    drawn = [line for line in panel_of(judgement.curves, ["", ""]).lines if line.kind == "reference"]
    rates = sorted(dict(line.vertices)[8 << 30] for line in drawn)
    assert rates == pytest.approx([475.16e9, 477.45e9], rel=1e-4), "each once, though in place and out of place"
    path.write_text(nccl_log(gpu="NVIDIA H200", ranks=4), encoding="utf-8")
    assert not any("published" in one.why for one in judged(path).verdicts)


@pytest.mark.parametrize(
    ("gpu", "algbw", "large"),
    [
        ("NVIDIA H100 80GB HBM3", 274e3, "as expected"),
        ("NVIDIA H100 80GB HBM3", 210e3, "as expected"),
        ("NVIDIA A100-SXM4-80GB", 130e3, "as expected"),
        ("NVIDIA A100-SXM4-80GB", 90e3, "slower"),
        ("AMD Instinct MI300X", 180e3, "as expected"),
        ("AMD Instinct MI300X", 120e3, "slower"),
    ],
)
def test_who_is_as_fast_as_published_is_as_expected(tmp_path: Path, gpu: str, algbw: float, large: str) -> None:
    path = log_in(tmp_path, gpu=gpu, curve=(20, algbw))
    judgement = judged(path)
    found = {one.band: one for one in judgement.verdicts}
    assert found["large"].status == large
    assert "published" in found["large"].text
    assert "published" in answer_of(judgement).answer
    path.write_text(nccl_log(gpu=gpu, curve=(60, algbw)), encoding="utf-8")
    small = {one.band: one for one in judged(path).verdicts}["small"]
    assert small.status == ("not judged" if "A100" in gpu else "slower"), "published from 32 KiB on, or in 13 to 34 µs"


@pytest.mark.parametrize(
    ("op", "gpu", "algbw", "status", "peak_share"),
    [
        # Links carry less in practice than they signal.
        ("sendrecv", "NVIDIA B200", 640e3, "as expected", 0.711),
        ("sendrecv", "NVIDIA B200", 590e3, "slower", 0.656),
        # Those of a mesh are judged by what their maker asks of them.
        ("all_reduce", "AMD Instinct MI350X", 206e3, "as expected", 0.671),
        # It may have a narrower link than such a GPU can have.
        ("all_reduce", "NVIDIA H100 PCIe", 23e3, "not judged", 0.639),
    ],
)
def test_a_rate_is_judged_by_the_links_of_the_gpus(
    op: str, gpu: str, algbw: float, status: str, peak_share: float, tmp_path: Path
) -> None:
    path = log_in(tmp_path, op=op, gpu=gpu, curve=(20, algbw))
    large = next(one for one in judged(path).verdicts if one.band == "large")
    assert large.status == status
    assert large.peak_share == pytest.approx(peak_share, rel=0.01)


def test_results_of_before_2019_are_verified_by_the_sum_of_their_errors() -> None:
    stored = find(LOGS, str(LOGS / "nccl-tests-2.0.txt")).read().stored
    assert [row.check.state for row in stored.imported] == ["verified"] * 3 + ["not checked"]


@pytest.mark.parametrize(
    ("title", "backend", "device"),
    [
        ("MPI Allreduce", "mpi", "cpu"),
        ("MPI-CUDA Allreduce", "mpi-cuda", "cuda"),
        ("MPI-ZE Allreduce", "mpi-cuda", "cuda"),
        ("NCCL-CUDA Allreduce", "nccl", "cuda"),
    ],
)
def test_where_buffers_of_osu_are_and_what_sends_them(title: str, backend: str, device: str, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(f"# OSU {title} Latency Test v7.4\n# Size  Avg Latency(us)\n1024  10.00\n", encoding="utf-8")
    (case,) = find(tmp_path, str(path)).read(LogFacts(ranks=4)).stored.run.cases
    assert (case.op, case.backend, case.device) == ("all_reduce", backend, device)


@pytest.mark.parametrize(("split", "level", "busbw"), [("mod", "network", 50e9), ("div", "links of GPUs", 450e9)])
def test_groups_at_once_are_where_the_log_says_and_share_the_network(
    split: str, level: str, busbw: float, tmp_path: Path
) -> None:
    text = nccl_log(hosts=2, ranks=16, op="sendrecv")
    for rank in range(16):
        group = rank % 8 if split == "mod" else rank // 2
        text = text.replace(f"#  Rank {rank:2} Group  0", f"#  Rank {rank:2} Group {group:2}")
    path = tmp_path / "log"
    path.write_text(text, encoding="utf-8")
    judgement = judged(path, LogFacts.stated({"nics": "8x400Gb/s"}, catalogue()))
    curve = judgement.curves[0]
    assert curve.series.key.ranks == ((0, 8) if split == "mod" else (0, 1))
    assert curve.series.key.group == "8 at once"
    assert isinstance(curve.peak, Peak)
    assert curve.peak.level == level
    assert curve.peak.busbw == pytest.approx(busbw)


def test_links_of_a_mesh_are_those_to_the_others(tmp_path: Path) -> None:
    peak = require_type(Peak, judged(log_in(tmp_path, gpu="AMD Instinct MI300X", ranks=4)).curves[0].peak)
    assert peak.busbw == pytest.approx(3 * 64e9)


def test_a_network_is_what_the_user_says(tmp_path: Path) -> None:
    path = log_in(tmp_path, hosts=2, ranks=16)
    assert not isinstance(judged(path).curves[0].peak, Peak)
    judgement = judged(path, LogFacts.stated({"nics": "8x400Gb/s"}, catalogue()))
    peak = require_type(Peak, judgement.curves[0].peak)
    # 450 GB/s of links and an eighth of 400 GB/s of cards: no GPU sends more, though the cards would let 750 GB/s by.
    assert peak.level == "links of GPUs"
    assert peak.busbw == pytest.approx(500e9)
    assert "given" in {finding.code for finding in judgement.findings}


@pytest.mark.parametrize(
    ("wrong", "footer"), [("7", "# Out of bounds values : 48 FAILED"), ("N/A", "# Out of bounds values : 3 FAILED")]
)
def test_wrong_results_fail_their_cases(wrong: str, footer: str, tmp_path: Path) -> None:
    judgement = judged(log_in(tmp_path, wrong=wrong, footer=footer))
    assert {summary.state for summary in judgement.cases} == {"failed"}
    assert (judgement.curves, judgement.findings[0].code) == ((), "wrong-data")


def test_a_last_line_without_its_end_is_a_caution_and_kept(tmp_path: Path) -> None:
    whole = "op,ranks,size_bytes,time_us\nall_reduce,8,1024,1000\nall_reduce,8,2048,2000\n"
    for encoding in ("utf-8", "utf-16"):
        for cut, cautions in ((0, 0), (1, 1), (3, 1)):
            path = tmp_path / "a.csv"
            path.write_bytes(whole[: len(whole) - cut].encode(encoding))
            judgement = judged(path)
            found = [one.severity for one in judgement.findings if one.code == "unfinished-line"]
            assert (found, len(judgement.cases)) == (["caution"] * cautions, 2)


def test_a_log_that_failed_is_not_resumed(tmp_path: Path) -> None:
    found = answer_of(judged(log_in(tmp_path, footer="node1: Test NCCL failure common.cu:958")))
    assert found.status == "failed"
    assert "failed" in {cause.code for cause in found.causes}
    assert "--resume" not in found.action + found.cause


def test_python_says_of_a_log_what_it_does_not_say_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("size_bytes,time_us\n1024,1000\n", encoding="utf-8")
    table = busbw_analysis.load(path, op="all_reduce", ranks=8, hosts=2).table()
    assert table[["op", "ranks", "hosts"]].to_numpy().tolist() == [["all_reduce", 8, 2]]
    for wrong in ({"rank": 8}, {"ranks": "eight"}):
        with pytest.raises(UsageError):
            busbw_analysis.load(path, op="all_reduce", **wrong)


def test_one_number_a_side_is_compared_without_a_test(log: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.log"
    other.write_text(nccl_log().replace("20.0", "21.0"), encoding="utf-8")
    assert run("compare", str(log), str(other))[0] == 0
    bands = json.loads(run("compare", str(log), str(other), "--json")[1])["bands"]
    assert {one["statistic"] for band in bands for one in band["cases"]} == {"mean"}


def test_what_contradicts_the_log_is_refused(log: Path) -> None:
    for facts in (LogFacts(ranks=4), LogFacts(op="broadcast"), LogFacts(hosts=2)):
        with pytest.raises(UsageError) as refused:
            find(log.parent, str(log)).read(facts)
        assert refused.value.code == "contradiction"


def test_a_gpu_that_the_log_names_is_not_another_one(tmp_path: Path) -> None:
    path = log_in(tmp_path, gpu="NVIDIA H100 80GB HBM3", ranks=4)
    assert isinstance(judged(path, LogFacts.stated({"gpu": "H100 SXM5"}, catalogue())).curves[0].peak, Peak)
    with pytest.raises(UsageError) as refused:
        find(tmp_path, str(path)).read(LogFacts.stated({"gpu": "H100 PCIe"}, catalogue()))
    assert refused.value.code == "contradiction"


def test_a_log_that_is_cut_did_not_fail(tmp_path: Path) -> None:
    path = tmp_path / "cut.txt"
    whole = (LOGS / "nccl-tests-2.19.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(whole[:22]), encoding="utf-8")
    judgement = judged(path, LogFacts.stated({"nics": "4x400Gb/s"}, catalogue()))
    assert [require(stored.end).status for stored in judgement.runs] == ["interrupted"]
    bad = {finding.code for finding in judgement.findings if finding.severity == "bad"}
    answer = answer_of(judgement)
    assert (bad, {"failed"} & {cause.code for cause in answer.causes}) == ({"interrupted"}, set())
    assert "fail" not in answer.answer + answer.cause + answer.measured


def test_of_a_log_of_tpus_no_facts_are_asked() -> None:
    """No source gives the rates of their links."""
    judgement = judged(LOGS / "jax.txt")
    assert "unknown" not in {finding.code for finding in judgement.findings}
    assert "--" not in answer_of(judgement).answer


def test_short_and_full_names_of_a_gpu_are_no_several_gpus(tmp_path: Path) -> None:
    path = tmp_path / "pasted.txt"
    text = (LOGS / "nccl-tests-two-machines.txt").read_text(encoding="utf-8")
    path.write_text(text.replace("\nA100 SXM4\n", "\nH100\n"), encoding="utf-8")
    facts = LogFacts.stated({"hosts": 1, "gpu": "H100 PCIe"}, catalogue())
    imported = require(find(tmp_path, str(path)).read(facts).stored.run.imported)
    assert "several-gpus" not in {note.code for note in imported.notes}


def test_a_gpu_is_not_given_to_tables_of_several() -> None:
    source = find(LOGS, str(LOGS / "nccl-tests-two-machines.txt"))
    imported = require(source.read(LogFacts(hosts=1)).stored.run.imported)
    assert "several-gpus" in {note.code for note in imported.notes}
    assert "gpu" not in imported.unknown
    with pytest.raises(UsageError) as refused:
        source.read(LogFacts.stated({"hosts": 1, "gpu": "A100 SXM4 80 GB"}, catalogue()))
    assert refused.value.code == "contradiction"


@pytest.mark.parametrize(
    ("nics", "busbw", "practical", "source"),
    [
        ("8x4X NDR", 8 * 50e9, 8 * 47.5e9, "http"),
        ("8x400G Ethernet", 8 * 50e9, 8 * 47.5e9, "http"),
        ("8x400G", 8 * 50e9, None, "as given"),
        ("EFA of P5", 400e9, None, "http"),
        ("EFA of Trn2", 400e9, None, "http"),
        ("8xGPUDirect-TCPXO", 8 * 25e9, None, "http"),
        ("8xSlingshot 11", 8 * 25e9, 8 * 24.3e9, "http"),
    ],
)
def test_cards_are_what_the_user_calls_them(
    nics: str, busbw: float, practical: float | None, source: str, tmp_path: Path
) -> None:
    """A bare rate is that of no kind of network: no row gives it a practical rate."""
    path = log_in(tmp_path, hosts=2, ranks=16, op="all_gather")
    stored = find(tmp_path, str(path)).read(LogFacts.stated({"nics": nics}, catalogue())).stored
    network = require_type(
        Network, host_network(stored.run.environments[stored.run.hosts[0]], stored.run.backend.transport, catalogue())
    )
    assert network.peak.nominal == pytest.approx(busbw)
    assert network.peak.practical == (None if practical is None else pytest.approx(practical, rel=0.01))
    assert network.peak.source.startswith(source)


def test_ranks_that_nobody_tells_are_asked_for_and_marked(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("# OSU MPI Allreduce Latency Test v7.4\n# Size  Avg Latency(us)\n8   2.5\n", encoding="utf-8")
    with pytest.raises(LogError) as refused:
        find(tmp_path, str(path)).read()
    assert refused.value.code == "no-ranks"
    stored = find(tmp_path, str(path)).read(LogFacts(ranks=64)).stored
    assert stored.run.imported is not None
    assert (stored.imported[0].case.ranks, stored.run.imported.given) == (64, {"ranks": "64"})
    assert "hosts" in stored.run.imported.unknown


@pytest.mark.parametrize(
    ("op", "ranks", "blocks", "redop"),
    [("all_reduce", 16, 1, "sum"), ("reduce_scatter", 8, 8, "sum"), ("all_reduce", 5, 1, "sum")],
)
def test_operation_and_ranks_follow_from_the_columns(op: str, ranks: int, blocks: int, redop: str | None) -> None:
    factor = bus_factor(op, ranks) or 0
    row = Aggregate(
        line=1,
        dtype="float32",
        redop=redop,
        size_bytes=1 << 30,
        count=(1 << 28) // blocks,
        algbw=200e9,
        busbw=round(200 * factor, 2) * 1e9,
    )
    assert deduce.fits([row])[0] == (op, ranks)


def test_columns_that_fit_several_operations_leave_it_to_the_name_of_the_file() -> None:
    row = Aggregate(line=1, dtype="float32", size_bytes=1 << 30, count=1 << 24, algbw=200e9, busbw=187.5e9)
    candidates = deduce.fits([row])
    assert {fit.op for fit in candidates} >= {"all_gather", "all_to_all"}
    assert deduce.hinted("x-alltoall-8.log", candidates) == ("all_to_all", 16)
    assert deduce.hinted("tests_nccl_allgather_2.log", candidates) == ("all_gather", 16)
    assert deduce.hinted("x.log", candidates) is None


@pytest.mark.parametrize(
    ("out_of_place", "in_place", "ops"),
    [
        ("verified", "verified", {"all_gather"}),
        ("verified", "not checked", {"all_to_all"}),
        ("not checked", "not checked", {"all_gather", "all_to_all"}),
    ],
)
def test_what_is_never_checked_in_place_tells_operations_apart(
    out_of_place: CheckState, in_place: CheckState, ops: set[str]
) -> None:
    row = Aggregate(line=1, dtype="float32", size_bytes=1 << 30, count=1 << 24, algbw=200e9, busbw=187.5e9)
    rows = [
        msgspec.structs.replace(row, in_place=place, check=check)
        for place, check in ((False, out_of_place), (True, in_place))
    ]
    assert {fit.op for fit in deduce.fits(rows)} & {"all_gather", "all_to_all"} == ops


def test_more_ranks_than_there_may_be_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(nccl_log(sizes=(8,)).replace("Rank  7", "Rank 70000000"), encoding="utf-8")
    with pytest.raises(LogError) as refused:
        find(tmp_path, str(path)).read()
    assert refused.value.code == "too-large"


def test_a_format_may_be_named(log: Path) -> None:
    assert run("show", str(log), "--format", "nccl-tests")[0] == 0
    assert run("show", str(log), "--format", "perftest")[0] == 1
    assert run("show", str(log), "--format", "nothing")[0] == 2


def test_a_log_reads_alike_from_a_pipe(monkeypatch: pytest.MonkeyPatch, log: Path) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(log.read_bytes()))
    monkeypatch.setattr("sys.stdin", stdin)
    piped, plain = (find(log.parent, name).read().stored for name in ("-", str(log)))
    assert piped.rows[:-1] == plain.rows[:-1]


def test_an_imported_run_is_stored_and_read_back(log: Path, tmp_path: Path) -> None:
    stored = find(log.parent, str(log)).read().stored
    folder = store.create(tmp_path, "machine")
    store.write_run(folder, msgspec.structs.replace(stored.run, id=folder.name))
    with store.Appender(folder) as appender:
        for row in stored.rows:
            appender.append(row)
    again = store.read(folder)
    assert again.imported == stored.imported
    assert {row.case.op for row in again.imported} <= set(OPS)


@pytest.mark.parametrize("rate", ["busbw (GB/s)", "algbw_GBps", "rate (GB/s)"])
@given(
    size=st.integers(1, 1 << 40),
    ranks=st.integers(2, 1024),
    value=st.floats(1e-3, 1e4).map(lambda number: float(f"{number:.4g}")),
    op=st.sampled_from(["all_reduce", "all_gather", "send_recv", "broadcast"]),
)
def test_a_table_of_rates_without_times_is_read_and_no_rate_changes(
    rate: str, size: int, ranks: int, value: float, op: str
) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rates.csv"
        path.write_text(f"op,bytes,ranks,{rate}\n{op},{size},{ranks},{value}\n", encoding="utf-8")
        (row,) = find(Path(), str(path)).read().stored.rows[:-1]
    assert isinstance(row, Imported)
    factor = bus_factor(op, ranks) or 0.0
    algbw = 1e9 * value / (factor if rate.startswith("busbw") else 1)
    assert row.time_ns == pytest.approx(1e9 * size / algbw)


def test_a_busbw_alone_waits_for_the_number_of_ranks(tmp_path: Path) -> None:
    path = tmp_path / "rates.csv"
    path.write_text("op,bytes,busbw (GB/s)\nall_reduce,1048576,1.75\n", encoding="utf-8")
    with pytest.raises(LogError) as refused:
        find(tmp_path, str(path)).read()
    assert refused.value.code == "no-ranks"
    (row,) = find(tmp_path, str(path)).read(LogFacts(ranks=8)).stored.rows[:-1]
    assert isinstance(row, Imported)
    assert row.time_ns == pytest.approx(1048576)


def test_a_copy_of_one_rank_is_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "copy.csv"
    path.write_text("op,bytes,ranks,algbw (GB/s)\nmemory_copy,1048576,1,2\n", encoding="utf-8")
    (row,) = find(tmp_path, str(path)).read().stored.rows[:-1]
    assert isinstance(row, Imported)
    assert row.ranks == (0,)


def test_a_host_that_is_called_unknown_is_a_host(log: Path) -> None:
    text = log.read_text(encoding="utf-8")
    host = min(re.findall(r"Pid +\d+ on +(\S+)", text))
    log.write_text(text.replace(host, "unknown"), encoding="utf-8")
    assert "unknown" in judged(log).runs[0].run.environments


def test_wrong_results_of_what_busbw_does_not_measure_are_the_answer(tmp_path: Path) -> None:
    path = tmp_path / "log"
    of_hypercube = nccl_log(wrong="2.5e+06", footer="# Out of bounds values : 32 FAILED").replace(
        "all_reduce", "hypercube"
    )
    end = (
        "mpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be terminated"
    )
    path.write_text(f"{nccl_log()}{of_hypercube.replace(' sum ', ' ')}{end}", encoding="utf-8")
    answer = answer_of(judged(path))
    assert (answer.status, [cause.code for cause in answer.causes]) == ("failed", ["wrong-data"])
    assert "hypercube_perf reported 32" in answer.cause
    assert answer.measured.startswith("48 of 48 cases")
    path.write_text(f"{nccl_log()}{end}", encoding="utf-8")
    assert "non-zero status." in answer_of(judged(path)).cause


def test_what_a_tool_checks_only_out_of_place_had_no_verification_turned_off(tmp_path: Path) -> None:
    path = log_in(tmp_path)
    text = re.sub(r" 0$", " N/A", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    path.write_text(text, encoding="utf-8")
    checks = {case.check.in_words for case in judged(path).cases if case.check.state == "not checked"}
    assert checks == {"not checked (the tool checks only other rows of this table)"}


def test_wrong_data_were_measured(tmp_path: Path) -> None:
    answer = answer_of(judged(log_in(tmp_path, wrong="1")))
    assert answer.headline.startswith("Wrong data: the tool counted 1 wrong value (")
    assert "nothing" not in answer.trust.casefold()


def test_columns_of_copies_to_a_host_are_gpus_whatever_the_heading_says(tmp_path: Path) -> None:
    path = tmp_path / "log"
    heading = "Running device_to_host_memcpy_ce.\nmemcpy CE GPU(row) -> CPU(column) bandwidth (GB/s)"
    path.write_text(f"{heading}\n           0         1\n 0     25.97     26.00\n", encoding="utf-8")
    assert [case.case.group for case in judged(path).cases] == ["0", "1"]


def test_a_log_has_no_launches_to_complete(tmp_path: Path) -> None:
    path = log_in(tmp_path, sizes=(1 << 20, 1 << 20, 1 << 21))
    assert "launches complete" not in answer_of(judged(path)).measured


def test_what_a_log_cannot_have_is_not_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(
        "# OSU MPI Bandwidth Test v7.4\n# Size      Bandwidth (MB/s)\n4194304   3000.00\n", encoding="utf-8"
    )
    assert answer_of(judged(path)).headline.endswith("--hosts and --nics if its ranks are on several hosts.")
    headline = answer_of(judged(path, LogFacts(hosts=1))).headline
    assert "--no-baseline" not in headline
    assert "busbw run" in headline


@pytest.mark.parametrize("nics", [None, "8x400Gb/s"])
def test_small_sizes_alone_show_the_latency_whatever_the_peak(nics: str | None, tmp_path: Path) -> None:
    given = {} if nics is None else {"nics": nics}
    judgement = judged(log_in(tmp_path, hosts=2, sizes=(32, 64)), LogFacts.stated(given, catalogue()))
    assert "sizes up to 64 B show the latency only" in answer_of(judgement).headline


def test_a_ring_at_line_rate_is_called_so(tmp_path: Path) -> None:
    path = log_in(tmp_path, hosts=2)
    for nics, at_line_rate in (("4x200Gb/s", True), ("4x4X NDR", False)):
        curve = judged(path, LogFacts.stated({"nics": nics}, catalogue())).curves[0]
        assert require_type(Peak, curve.peak).in_practice.endswith("at line rate") is at_line_rate
