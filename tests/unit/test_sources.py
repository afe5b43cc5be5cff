"""What a user names is opened in one way by every command: a path of something that a source recognises, or a run."""

import bz2
import gzip
import json
import lzma
import os
import zipfile
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from testing.synthetic import case, synthetic_run, write_synthetic

from busbw.cli.main import main
from busbw.errors import LogError, StoreError, UsageError
from busbw.runs import store
from busbw_analysis.data import sources
from busbw_analysis.data.imported import LogFacts
from busbw_analysis.data.kept import Summarised, summarised
from busbw_analysis.data.sources import Found, Source, find, read_all

OF_A_RUN = (
    ("show", "{}"),
    ("fit", "{}"),
    ("report", "{}", "--output", "{}.report"),
    ("compare", "{}", "latest"),
    ("predict", "--from", "{}", "--op", "all_reduce", "--ranks", "4", "--size", "1KiB"),
    ("simulate", "--from", "{}", "--op", "all_reduce", "--algorithm", "ring", "--size", "1MiB"),
)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Where one run is kept."""
    cases = [case(op, 1 << power) for op in ("ping_pong", "all_reduce") for power in range(3, 21)]
    stored = synthetic_run(cases, launches=6, samples=10)
    write_synthetic(tmp_path / "results", stored)
    return tmp_path / "results"


@pytest.fixture
def log(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The log of a tool that one more row reads, with the same numbers as the run that is kept."""

    def read(path: Path, _facts: LogFacts) -> Summarised:
        stored = store.read(find(results, "latest").path)
        return summarised(replace(stored, path=path, run=msgspec.structs.replace(stored.run, id="of a log")))

    row = Source("a log of tests", lambda _path, head: head.startswith(b"# a log"), read)
    monkeypatch.setattr(sources, "SOURCES", (sources.SOURCES[0], row, *sources.SOURCES[1:]))
    path = tmp_path / "some.log"
    path.write_text("# a log\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("arguments", OF_A_RUN, ids=lambda arguments: arguments[0])
def test_a_source_is_a_row_and_every_command_reads_it(arguments: tuple[str, ...], log: Path, results: Path) -> None:
    given = [argument.format(log) for argument in arguments]
    done = CliRunner().invoke(main, [*given, "--results-dir", str(results)])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("arguments", OF_A_RUN[:4], ids=lambda arguments: arguments[0])
def test_what_is_said_of_logs_is_refused_of_runs_alone(arguments: tuple[str, ...], log: Path, results: Path) -> None:
    for run, code in (("latest", 2), (str(log), 0)):
        given = [argument.format(run) for argument in arguments]
        given = [f"{log}.report" if argument == "latest.report" else argument for argument in given]
        done = CliRunner().invoke(main, [*given, "--op", "all_gather", "--results-dir", str(results)])
        assert done.exit_code == code, done.output


def test_reports_beside_logs_are_no_logs(tmp_path: Path) -> None:
    rates = tmp_path / "rates.csv"
    rates.write_text("size_bytes,time_us\n8,1\n16,2\n", encoding="utf-8")
    assert sources.logs_in(str(tmp_path), lambda: tmp_path) == (str(rates),)
    given = ["report", str(rates), "--op", "broadcast", "--ranks", "2", "--output", str(tmp_path)]
    done = CliRunner().invoke(main, given)
    assert done.exit_code == 0, done.output
    assert {file.name for file in tmp_path.iterdir()} == {rates.name, *sources.REPORT_FILES}
    assert sources.logs_in(str(tmp_path), lambda: tmp_path) == (str(rates),)
    assert all(sources._is_report(tmp_path / name) for name in sources.REPORT_FILES)
    theirs = [tmp_path / name for name in sources.REPORT_FILES]
    for path in theirs:
        path.write_bytes(rates.read_bytes())
    assert sources.logs_in(str(tmp_path), lambda: tmp_path) == tuple(sorted(map(str, (rates, *theirs))))


def test_a_report_on_a_file_lies_beside_it(log: Path, results: Path) -> None:
    assert find(results, str(log)).folder == log.parent


@pytest.mark.parametrize("selector", ["latest", "{run}", "{run.name}", "{run}/run.json"])
def test_a_run_is_named_by_its_folder_or_its_name(selector: str, results: Path) -> None:
    (run,) = store.folders(results)
    assert find(results, selector.format(run=run)) == Found(run, sources.SOURCES[0])


def test_a_log_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogError) as refused:
        Found(tmp_path / "missing", sources.SOURCES[-1]).read()
    assert refused.value.code == "unreadable"


def test_what_no_source_recognises_is_refused_with_what_could_be_read(log: Path, results: Path) -> None:
    log.write_bytes(b"")
    with pytest.raises(StoreError):
        find(results, str(log))
    log.write_bytes(b"\0" * 100)
    with pytest.raises(LogError) as refused:
        find(results, str(log)).read()
    assert refused.value.code == "binary"
    with pytest.raises(UsageError):
        find(results, "nothing")


def table(folder: Path, name: str, sizes: int = 9, factor: float = 1.0) -> Path:
    """A log with a row for each of several sizes."""
    rows = (f"all_reduce,4,{1 << power},{factor * (10 + power):.3f}\n" for power in range(12, 12 + sizes))
    path = folder / name
    path.write_text(f"op,ranks,size_bytes,time_us\n{''.join(rows)}", encoding="utf-8")
    return path


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
def test_a_compressed_log_is_read_as_it_was(compress: Callable[[bytes], bytes], tmp_path: Path) -> None:
    plain = table(tmp_path, "rates.csv")
    packed = tmp_path / "packed" / "rates.csv.1"
    packed.parent.mkdir()
    packed.write_bytes(compress(plain.read_bytes()))
    assert sources.logs_in(str(packed.parent), lambda: tmp_path) == (str(packed),)
    first, second = (find(tmp_path, str(path)).read().stored for path in (plain, packed))
    assert first.imported == second.imported
    packed.write_bytes(packed.read_bytes()[:-12])
    with pytest.raises(LogError) as refused:
        find(tmp_path, str(packed)).read()
    assert refused.value.code == "unreadable"


@pytest.mark.parametrize(("sizes", "counted"), [(9, 2), (1, 3)])
def test_a_copy_of_a_log_is_no_launch(sizes: int, counted: int, tmp_path: Path) -> None:
    """Of few numbers, two logs may well have the same."""
    paths = [table(tmp_path, f"n{number}.csv", sizes, factor) for number, factor in enumerate((1.0, 1.01, 1.0))]
    assert len(read_all(tmp_path, map(str, paths), None)) == counted


NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "day"),
    [
        ("2026-11-13.csv", "2026-11-13"),
        ("nccl_2026_11_13_run1.csv", "2026-11-13"),
        ("20261113T0300.csv", "2026-11-13"),
        ("2026.11.13/rates.csv", "2026-11-13"),
        ("2026-12-01.csv", "2026-12-01"),  # the time of the file says more
        ("2026-12-24.csv", "2026-12-01"),  # it cannot be measured later than it was written
        ("2026-13-01.csv", "2026-12-01"),
        ("slurm-20261113.csv", "2026-12-01"),  # the number of a job
        ("rates.csv", "2026-12-01"),
    ],
)
def test_the_day_in_the_name_of_a_log_is_the_day_of_its_measurement(name: str, day: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    path = table(tmp_path, name)
    os.utime(path, (NOON.timestamp(), NOON.timestamp()))
    started = find(tmp_path, str(path)).read().stored.run.started
    assert (started[:10], started[11:13]) == (day, "00" if day == "2026-11-13" else "12")


def test_a_folder_of_logs_is_taken_wherever_its_logs_are(tmp_path: Path) -> None:
    logs, results = tmp_path / "logs", tmp_path / "results"
    logs.mkdir()
    for number, factor in enumerate((1.0, 1.01, 0.99)):
        table(logs, f"{number}.csv", factor=factor)
    other = table(tmp_path, "other.csv", factor=1.02)
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nop = "all_reduce"\nmetric = "time"\nat_most = "1s"\n')

    def code(*words: str) -> int:
        return CliRunner().invoke(main, [*words, "--results-dir", str(results)]).exit_code

    assert code("gate", str(logs), "--rules", str(rules)) == 0
    assert code("gate", str(other), "--baseline", str(logs)) == 3
    done = CliRunner().invoke(main, ["history", str(logs), "--results-dir", str(results)])
    assert (done.exit_code, f"busbw import {logs}" in done.output) == (2, True)
    assert code("import", str(logs), "--machine", "cluster") == 0
    assert len(list(store.folders(results))) == 3
    assert code("history") == 0


@pytest.mark.parametrize("logs", [1, 2])
def test_the_report_of_an_archive_lies_beside_it(logs: int, tmp_path: Path) -> None:
    """It was in the folder that the archive is unpacked to, which is removed."""
    with zipfile.ZipFile(tmp_path / "logs.zip", "w") as archive:
        for number in range(logs):
            archive.write(table(tmp_path, "rates.csv", factor=1 + number), f"logs/{number}.csv")
    (tmp_path / "rates.csv").unlink()
    done = CliRunner().invoke(main, ["report", str(tmp_path / "logs.zip"), "--results-dir", str(tmp_path / "results")])
    assert done.exit_code == 0, done.output
    assert {path.name for path in tmp_path.iterdir()} == {"logs.zip", *sources.REPORT_FILES}


def test_the_logs_of_a_side_stay_on_it_if_some_are_left_out(tmp_path: Path) -> None:
    """A log of a training, or a copy, beside those of A moved the first log of B to A."""
    for side, slow in (("A", 1.0), ("B", 2.0)):
        (tmp_path / side).mkdir()
        for number, factor in enumerate((1.0, 1.01, 0.99, 1.02, 1.0)):
            table(tmp_path / side, f"{side}{number}.csv", factor=slow * factor)
    steps = (f" iteration {step:8}/ 100 | elapsed time per iteration (ms): 1000.{step} |\n" for step in range(1, 9))
    (tmp_path / "A" / "megatron.log").write_text("".join(steps))
    done = CliRunner().invoke(main, ["compare", str(tmp_path / "A"), str(tmp_path / "B"), "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    for side in "AB":
        names = {run.partition(".")[0] for run in document[side.lower()]["runs"]}
        assert names == {f"{side}{number}" for number in range(4)}


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", "--op", "all_reduce", "--ranks", "4", "--size", "32KiB"),
        ("simulate", "--op", "all_reduce", "--algorithm", "ring", "--size", "1MiB"),
        ("training", "plan", "--model", "MLP 1024", "--gpus", "4"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_folder_of_logs_is_as_its_logs_where_measurements_are_used(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log = table(folder, "rates.csv")
    done, alone = (CliRunner().invoke(main, [*arguments, "--from", str(given)]) for given in (folder, log))
    assert (done.exit_code, done.output) == (alone.exit_code, alone.output.replace(str(log), str(folder)))
