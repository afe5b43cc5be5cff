"""Runs as other programs read them: what is written is read back as the same numbers."""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_fd_to_metric_families
from prometheus_client.parser import text_string_to_metric_families
from refused import refused
from testing.logs import log_of
from testing.narrow import require
from testing.synthetic import Machine, case, planned, synthetic_run, with_changes, write_synthetic

from busbw.cli.main import main
from busbw.errors import AnalysisError
from busbw.escape import as_cell, from_cell
from busbw.runs import store
from busbw.runs.records import Measurement
from busbw_analysis.assembly.judge import judge
from busbw_analysis.data.imported import LogFacts
from busbw_analysis.data.load import pool
from busbw_analysis.data.readers.logs import recognise
from busbw_analysis.data.sources import find
from busbw_analysis.diagnosis.answer import answer_of
from busbw_analysis.diagnosis.judge import Judgement
from busbw_analysis.export import EXPORTERS, tidy
from busbw_analysis.export.nccl_tests import _number
from busbw_analysis.report.show import about

SIZES = (1024, 65536, 1 << 20)


def judged(ops: tuple[str, ...] = ("all_reduce", "all_gather", "ping_pong", "barrier")) -> Judgement:
    cases = [case(op, size) for op in ops for size in (SIZES if op != "barrier" else (0,))]
    out_of_place = [
        msgspec.structs.replace(case, in_place=not case.in_place) for case in cases if case.op == "all_reduce"
    ]
    return judge(pool([synthetic_run([*cases, *out_of_place], launches=2, samples=10)]))


@pytest.fixture(scope="module")
def judgement() -> Judgement:
    return judged()


def times(judgement: Judgement, op: str, *, in_place: bool) -> list[float]:
    return [
        group.time_ns / 1e9
        for row in judgement.cases
        if (row.case.op, row.case.in_place) == (op, in_place)
        for group in row.groups
    ]


def _parquet(content: bytes, folder: Path) -> pd.DataFrame:
    path = folder / "frame.parquet"
    path.write_bytes(content)
    frame: pd.DataFrame = duckdb.read_parquet(str(path)).df()
    return frame


def test_the_table_of_nccl_tests_reads_back(judgement: Judgement) -> None:
    text = EXPORTERS["nccl-tests"].cases(judgement).decode()
    log = log_of("nccl-tests", iter(text.splitlines(keepends=True)))
    assert [table.rows[0].op for table in log.tables] == ["all_reduce", "all_gather"]
    reduced = log.tables[0]
    assert (reduced.ranks, reduced.complete, len(reduced.rows)) == (4, True, 6)
    for in_place in (False, True):
        read = [row.time_seconds for row in reduced.rows if row.in_place == in_place]
        assert read == pytest.approx(times(judgement, "all_reduce", in_place=in_place), rel=1e-3)
    assert not [note for note in log.notes if note.code == "rate-differs"]


def test_the_table_of_nccl_tests_is_laid_out_as_its_own() -> None:
    """The lines of its own log of the same numbers, byte for byte."""
    text = EXPORTERS["nccl-tests"].cases(judged(("all_reduce",))).decode().splitlines()
    log = Path(__file__).parents[1] / "data/logs/nccl-tests-2.19.txt"
    own = log.read_text(encoding="utf-8").splitlines()
    start = next(at for at, line in enumerate(own) if "out-of-place" in line)
    assert text[text.index(own[start]) :][:3] == own[start : start + 3]
    rows = [line for line in text if line[:1] == " "]
    assert {len(line) for line in rows} == {52 + 2 * 33}  # printf of its writeBenchmarkLinePreamble and -Body
    assert all(len(line.split()) == 13 for line in rows)
    assert any(line.startswith("# Out of bounds values : 0 OK") for line in text)
    assert any(line.startswith("# Avg bus bandwidth    : ") for line in text)


@pytest.mark.parametrize(("sizes", "step"), [((8, 64, 512), "step: 8(factor) "), ((8,), ""), ((8, 12, 18), "")])
def test_the_step_of_nccl_tests_is_the_one_between_all_sizes(sizes: tuple[int, ...], step: str) -> None:
    stored = synthetic_run([case("all_reduce", size) for size in sizes], launches=1, samples=5)
    text = EXPORTERS["nccl-tests"].cases(judge(pool((stored,)))).decode()
    assert f"maxBytes {max(sizes)} {step}warmup iters" in text


def test_one_wrong_case_reads_back_as_the_only_wrong_one(tmp_path: Path) -> None:
    sizes = [f"  {1 << power} {1 << power - 2} float sum -1" for power in range(20, 28)]
    head = "# nThread 1 nGpus 2 minBytes 1024\n# size count type redop root time algbw busbw #wrong "
    rows = [f"{size} 9.1 9.1 9.1 {7 if row == 3 else 0} 9.1 9.1 9.1 0" for row, size in enumerate(sizes)]
    log, again = tmp_path / "all_reduce.log", tmp_path / "again.log"
    text = "\n".join([f"{head}time algbw busbw #wrong", *rows, "# Out of bounds values : 1 FAILED", ""])
    log.write_text(text, encoding="utf-8")
    facts = LogFacts(op="all_reduce", ranks=2)
    first = judge(pool([find(tmp_path, str(log)).read(facts)]))
    again.write_bytes(EXPORTERS["nccl-tests"].cases(first))
    second = find(tmp_path, str(again)).read().stored
    for stored in (first.runs[0], second):
        wrong = [row for row in stored.imported if row.check.state == "wrong"]
        assert [(row.case.size_bytes, row.case.in_place, row.check.wrong_elements) for row in wrong] == [
            (1 << 23, False, 7)
        ]
        assert len(stored.imported) == 16


def test_counts_of_wrong_elements_are_laid_out_as_its_own(tmp_path: Path) -> None:
    rows = [f"  {1 << power} {1 << power - 2} float sum -1" for power in (20, 21)]
    rest = ("9.1 9.1 9.1 3986340 9.1 9.1 9.1 0", "9.1 9.1 9.1 N/A 9.1 9.1 9.1 12")
    head = "# nThread 1 nGpus 2\n# size count type redop root time algbw busbw #wrong time algbw busbw #wrong"
    log = tmp_path / "all_reduce.log"
    log.write_text("\n".join([head, *(map(" ".join, zip(rows, rest, strict=True))), ""]), encoding="utf-8")
    judgement = judge(pool([find(tmp_path, str(log)).read(LogFacts(op="all_reduce", ranks=2))]))
    text = EXPORTERS["nccl-tests"].cases(judgement).decode().splitlines()
    first, second = (line for line in text if line[:1] == " ")
    rates, twice = (f"     9.10  {rate}  {rate}" for rate in ("115.23", "230.46"))
    # printf("  %7s  %6s  %6s  %6g") of a double, or "    N/A".
    assert (first[52:], second[52:]) == (f"{rates}  3.98634e+06{rates}       0", f"{twice}    N/A{twice}      12")


def test_a_type_that_is_not_known_reads_back_as_unknown(tmp_path: Path) -> None:
    text = "op,ranks,size_bytes,time_us\nall_reduce,8,1024,1000\nall_reduce,8,2048,2000\n"
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    again = tmp_path / "again.log"
    again.write_bytes(EXPORTERS["nccl-tests"].cases(judge(pool([find(tmp_path, str(tmp_path / "a.csv")).read()]))))
    rows = find(tmp_path, str(again)).read().stored.imported
    assert [(row.case.dtype, row.time_ns) for row in rows] == [(None, 1e6), (None, 2e6)]


@pytest.mark.parametrize(
    ("value", "width", "text"),
    [
        (123456.7, 7, " 123457"),
        (99.999, 6, "100.00"),
        (999.995, 6, "1000.0"),  # rounded to one digit more than it has: two after the point would be a column too wide
        (9999.95, 6, " 10000"),
        (999999.5, 6, " 1e+06"),
        (12345678.0, 7, "1.2e+07"),
    ],
)
def test_numbers_have_as_many_digits_as_there_is_room(value: float, width: int, text: str) -> None:
    assert _number(value, width) == text


def test_the_table_of_osu_reads_back(judgement: Judgement) -> None:
    text = EXPORTERS["osu"].cases(judgement).decode()
    log = log_of("osu-micro-benchmarks", iter(text.splitlines(keepends=True)))
    operations = ["all_reduce", "all_gather", "ping_pong", "barrier", "all_reduce"]
    assert [table.rows[0].op for table in log.tables] == operations
    gathered = log.tables[1]
    assert [(row.ranks, row.size_bytes) for row in gathered.rows] == [(4, size) for size in SIZES]
    read = [row.time_seconds for row in gathered.rows]
    written = times(judgement, "all_gather", in_place=False) or times(judgement, "all_gather", in_place=True)
    assert read == pytest.approx(written, rel=1e-2)


def test_tidy_files_have_the_same_numbers(judgement: Judgement, tmp_path: Path) -> None:
    csv = pd.read_csv(io.BytesIO(EXPORTERS["csv"].cases(judgement)))
    parquet = _parquet(EXPORTERS["parquet"].cases(judgement), tmp_path)
    lines = [json.loads(line) for line in EXPORTERS["json-lines"].cases(judgement).splitlines()]
    expected = [group.time_ns for row in judgement.cases for group in row.groups]
    for column in (csv["time_ns"], parquet["time_ns"], [line["time_ns"] for line in lines]):
        assert list(column) == pytest.approx(expected, rel=1e-12)
    assert list(csv.columns) == list(parquet.columns) == list(lines[0])


CELLS = st.lists(
    st.tuples(
        st.none() | st.floats(allow_infinity=False),
        st.none()
        | st.text(st.characters(exclude_categories=["Cs"]), max_size=5).filter(lambda text: as_cell(text) == text),
        st.none() | st.integers(-(2**40), 2**40),
        st.booleans(),
    ),
    min_size=1,
    max_size=20,
)


@given(CELLS)
@settings(max_examples=30, deadline=None)
def test_tidy_files_have_all_cells_exactly(
    rows: list[tuple[float | None, str | None, int | None, bool]],
) -> None:
    columns = {name: tidy._column(values) for name, values in zip("abcd", zip(*rows, strict=True), strict=True)}
    frame = pd.DataFrame([dict(zip("abcd", row, strict=True)) for row in rows])
    assert tidy.to_csv(columns) == frame.to_csv(index=False).encode()
    known = [dict(zip("abcd", row, strict=True)) for row in rows]
    unknown_is_null = [{**row, "a": None if row["a"] != row["a"] else row["a"]} for row in known]
    assert [json.loads(line) for line in tidy.to_json_lines(columns).splitlines()] == unknown_is_null


def test_tidy_files_tell_runs_apart(tmp_path: Path) -> None:
    runs = []
    for seed, label in ((2, "after"), (1, "before")):
        machine = Machine(facts={"variables": {"OMP_NUM_THREADS": "2", "HOME": "/"}})
        stored = synthetic_run([case("all_reduce", 64)], machine=machine, launches=1, samples=3, seed=seed)
        run = msgspec.structs.replace(planned(stored.run, label=label), started=f"2026-01-0{seed}T00:00:00.000Z")
        runs.append(replace(stored, run=run))
    row = pd.read_csv(io.BytesIO(EXPORTERS["csv"].cases(judge(pool(runs))))).iloc[0]
    assert list(row[["run", "label", "started", "machine", "host_names", "variables"]]) == [
        *("synthetic-2, synthetic-1", "after, before", "2026-01-01T00:00:00.000Z"),
        *("synthetic", "node0", "OMP_NUM_THREADS=2"),
    ]
    log = Path(__file__).parents[1] / "data/logs/nccl-tests-2.19.txt"
    imported = CliRunner().invoke(main, ["import", str(log), "--label", "theirs", "--results-dir", str(tmp_path)])
    of_log = tidy.case_columns(judge(pool([find(tmp_path, imported.stdout.strip()).read()])))
    assert set(of_log["label"]) == {"theirs"}
    refusal = CliRunner().invoke(main, ["import", str(log), "--label", "a\nb", "--results-dir", str(tmp_path)])
    assert refusal.exit_code == 2


def test_samples_are_exported_one_a_row(judgement: Judgement, tmp_path: Path) -> None:
    export = EXPORTERS["parquet"].samples
    assert export is not None
    table = _parquet(export(judgement.samples), tmp_path)
    blocks = [(case, row) for _, case, row in judgement.samples.rows() if isinstance(row, Measurement)]
    assert len(table) == sum(len(group.slowest_ns) for _, row in blocks for group in row.groups)
    case, first = blocks[0]
    own = table[(table["case"] == case) & (table["launch"] == first.launch) & (table["block"] == first.block)]
    assert np.allclose(own["time_ns"], np.asarray(first.groups[0].slowest_ns) / first.calls)


def test_metrics_pass_both_parsers(judgement: Judgement) -> None:
    text = EXPORTERS["openmetrics"].cases(judgement).decode()
    families = {family.name: family for family in text_fd_to_metric_families(io.StringIO(text))}  # type: ignore[no-untyped-call]
    plain = {family.name for family in text_string_to_metric_families(text)}
    assert set(families) == plain >= {"busbw_time_seconds", "busbw_failed_cases", "busbw_started_seconds"}
    samples = families["busbw_time_seconds"].samples
    assert len({tuple(sorted(sample.labels.items())) for sample in samples}) == len(samples) == len(judgement.cases)
    assert families["busbw_failed_cases"].samples[0].value == 0


@pytest.mark.parametrize(("hosts", "unknown"), [(("node0",), False), (("node0", "node1"), True)])
def test_our_csv_reads_back_as_it_was_measured(tmp_path: Path, hosts: tuple[str, ...], unknown: bool) -> None:  # noqa: FBT001
    plain = case("all_reduce", 65536)
    changes: list[dict[str, Any]] = [
        {},
        {"mode": "pipelined", "sync": "none"},
        {"mode": "pipelined", "algorithm": "ring"},
        {"sync": "window", "cache": "rotating"},
    ]
    cases = [with_changes(plain, **change) for change in changes]
    cases += [case("memory_copy", 1 << 20), with_changes(case("pair_matrix", 65536), pairs="together")]
    cases += [msgspec.structs.replace(case("broadcast", 65536), root=2)]
    first = judge(pool([synthetic_run(cases, machine=Machine(hosts=hosts), launches=2, samples=10)]))
    (tmp_path / "a.csv").write_bytes(EXPORTERS["csv"].cases(first))
    second = judge(pool([find(tmp_path, str(tmp_path / "a.csv")).read()]))
    assert {row.check.state for row in second.runs[0].imported} == {"verified"}
    columns = ["case", "op", "root", "backend", "device", "mode", "group", "ranks"]
    before, after = (
        pd.read_csv(io.BytesIO(EXPORTERS["csv"].cases(judgement)), keep_default_na=False)
        for judgement in (first, second)
    )
    assert after[columns].to_numpy().tolist() == before[columns].to_numpy().tolist()
    words = [[set(text.split(", ")) for text in frame["settings"]] for frame in (before, after)]
    assert words[0] == words[1]
    assert after["time_ns"].to_numpy() == pytest.approx(before["time_ns"].to_numpy())
    assert set(after["statistic"]) == {"median"}
    assert (second.facts.hosts_in_words == "unknown hosts") == unknown
    assert second.facts.backend.transport == first.facts.backend.transport


def test_no_text_of_a_csv_is_a_formula_and_all_of_it_reads_back(tmp_path: Path) -> None:
    names = ["=1+2", "+x", "-x", "@x", "'=x", "'x", "x=1"]
    cases = [case("all_reduce", 65536, backend=name, tool_op=f"{name} y") for name in names]
    first = judge(pool([synthetic_run(cases, launches=1, samples=10)]))
    cells = [cell for row in csv.reader(EXPORTERS["csv"].cases(first).decode().splitlines()) for cell in row]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@"))]
    columns = {"number": np.array([-1.5]), "text": np.array(["-1.5"])}
    assert tidy.to_csv(columns) == b"number,text\n-1.5,'-1.5\n"
    (tmp_path / "a.csv").write_bytes(EXPORTERS["csv"].cases(first))
    read = [
        (row.case.backend, row.case.tool_op) for row in find(tmp_path, str(tmp_path / "a.csv")).read().stored.imported
    ]
    assert read == [(name, f"{name} y") for name in names]


@given(st.text())
def test_a_cell_is_no_formula_and_gives_its_text_back(text: str) -> None:
    assert not as_cell(text).startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
    assert from_cell(as_cell(text)) == text


def test_a_mode_of_another_program_is_not_ours(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("op,ranks,size_bytes,time_us,mode\nall_reduce,8,1024,1000,isolated\n", encoding="utf-8")
    (row,) = find(tmp_path, str(path)).read().stored.imported
    assert (row.case.mode, row.case.sync, row.case.backend, row.statistic) == ("pipelined", "none", "unknown", None)


def test_a_csv_is_one_whatever_its_cells_say() -> None:
    head = b"op,size_bytes,time_us,settings\nping_pong,1,1,Send Latency Test\n"
    reader = require(recognise(head))
    assert reader.name == "table"


def test_hosts_that_nobody_tells_are_not_one(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("op,ranks,size_bytes,time_us\nall_reduce,128,1024,1000\n", encoding="utf-8")
    for facts, hosts, label, words in ((LogFacts(), None, "", "unknown hosts"), (LogFacts(hosts=2), 2, "2", "2 hosts")):
        judgement = judge(pool([find(tmp_path, str(path)).read(facts)]))
        assert [json.loads(line)["hosts"] for line in EXPORTERS["json-lines"].cases(judgement).splitlines()] == [hosts]
        metrics = text_string_to_metric_families(EXPORTERS["openmetrics"].cases(judgement).decode())
        labels = {sample.labels["hosts"] for family in metrics for sample in family.samples if "hosts" in sample.labels}
        assert (labels, judgement.facts.hosts_in_words) == ({label}, words)
        assert words in about(judgement)[2]
        assert words in answer_of(judgement).measured


@pytest.mark.parametrize("form", ["nccl-tests", "osu"])
def test_calls_beside_computation_are_left_out_and_counted(form: str) -> None:
    calls = [case("all_reduce", size) for size in (1 << 10, 1 << 20)]
    beside = [msgspec.structs.replace(call, mode="overlap") for call in calls]
    alone, both = (
        EXPORTERS[form].cases(judge(pool((synthetic_run(cases, launches=1, samples=5),)))).decode().splitlines()
        for cases in (calls, [*calls, *beside])
    )
    (comment,) = [line for line in both if "overlap" in line]
    assert comment.startswith("# busbw: 2 cases ")
    rows = [line for line in both if not line.startswith("#")]
    assert rows == [line for line in alone if not line.startswith("#")]
    averages = [[line for line in text if "Avg bus" in line] for text in (alone, both)]
    assert averages[0] == averages[1]
    for cases in (beside, [case("memory_copy", 1 << 10)]):
        with refused(AnalysisError, "nothing-to-export"):
            EXPORTERS[form].cases(judge(pool((synthetic_run(cases, launches=1, samples=5),))))


@pytest.mark.parametrize("form", sorted(set(EXPORTERS) - {"trace"}))  # of steps alone: test_timelines
def test_every_format_is_written_by_the_command(form: str, tmp_path: Path) -> None:
    write_synthetic(tmp_path, synthetic_run([case("all_reduce", 1024)], launches=1, samples=10))
    target = tmp_path / "file"
    arguments = ["export", "latest", "--results-dir", str(tmp_path), "--to", form, "--output", str(target)]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert target.stat().st_size > 0


@pytest.mark.parametrize(
    "arguments", [[], ["--format", "csv"], ["--to", "nothing"], ["--to", "osu", "--samples"], ["--to", "parquet"]]
)
def test_what_cannot_be_exported_is_refused_and_nothing_is_written(arguments: list[str], tmp_path: Path) -> None:
    write_synthetic(tmp_path, synthetic_run([case("all_reduce", 1024)], launches=1, samples=10))
    before = sorted(tmp_path.rglob("*"))
    done = CliRunner().invoke(main, ["export", "latest", "--results-dir", str(tmp_path), *arguments])
    assert done.exit_code == 2
    assert sorted(tmp_path.rglob("*")) == before


def test_a_log_is_kept_as_a_run_with_the_log_beside_it(tmp_path: Path) -> None:
    log = Path(__file__).parents[1] / "data/logs/nccl-tests-2.19.txt"
    results = tmp_path / "results"
    kept = ["import", str(log), "--machine", "theirs", "--results-dir", str(results)]
    done = CliRunner().invoke(main, kept)
    assert done.exit_code == 0, done.output
    (folder,) = store.folders(results)
    assert (folder.parent.name, str(folder)) == ("theirs", done.output.strip())
    assert (folder / "original-nccl-tests-2.19.txt").read_bytes() == log.read_bytes()
    shown = CliRunner().invoke(main, ["show", "latest", "--json", "--results-dir", str(results)])
    assert len(json.loads(shown.stdout)["cases"]) == 6


def test_an_import_of_which_one_log_is_none_writes_nothing(tmp_path: Path) -> None:
    log = Path(__file__).parents[1] / "data/logs/nccl-tests-2.19.txt"
    bad = tmp_path / "bad.log"
    bad.write_text("hello\n", encoding="utf-8")
    results = tmp_path / "results"
    done = CliRunner().invoke(main, ["import", str(log), str(bad), "--results-dir", str(results)])
    assert (done.exit_code, results.exists()) == (1, False)


def test_every_format_is_named_by_the_help_and_the_documentation() -> None:
    usage = (Path(__file__).parents[2] / "docs/usage.md").read_text(encoding="utf-8")
    printed = CliRunner().invoke(main, ["export", "--help"], terminal_width=200).stdout
    assert [form for form in EXPORTERS if f"`{form}`" not in usage] == []
    assert [form for form in EXPORTERS if not re.search(rf"\b{form}\b", printed.partition("--to")[2])] == []
