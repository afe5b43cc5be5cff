"""The index: whatever happens to it, its rows are those of the run folders."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import duckdb
import pytest
from click.testing import Result
from exhaustive import trials
from hypothesis import given, settings
from hypothesis import strategies as st
from testing.command import busbw
from testing.nights import CASES, write_night
from testing.synthetic import SyntheticEnd, case, synthetic_run, write_synthetic

from busbw.errors import StoreError, UsageError
from busbw.runs import store
from busbw.runs.progress import line_of, outline
from busbw.runs.store import folders
from busbw_analysis.data import kept
from busbw_analysis.history import index
from busbw_analysis.history.columns import IN_BOTH, OF_LAUNCHES, OF_RUNS
from busbw_analysis.history.engine import Local
from busbw_analysis.history.index import contents, gather, lines_of
from busbw_analysis.history.views import views_of

HERE = Local(1)


def rows_of(results: Path) -> list[tuple[Any, ...]]:
    """All rows of the views."""
    with views_of(results, list(folders(results)), HERE) as views:
        return [
            *views.rows("SELECT * FROM runs ORDER BY run"),
            *views.rows("SELECT * FROM launches ORDER BY run, series, launch, group_ranks"),
        ]


def rows_without_index(results: Path) -> list[tuple[Any, ...]]:
    """The same, read from the run folders alone."""
    aside = results / "aside"
    if (results / index.INDEX).exists():
        (results / index.INDEX).rename(aside)
    try:
        return rows_of(results)
    finally:
        if aside.exists():
            aside.rename(results / index.INDEX)


def index_files(results: Path) -> list[Path]:
    return sorted((results / index.INDEX).rglob("*.parquet"))


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five runs with kept summaries, in two months, and another version of the third in a folder of its own."""
    place = tmp_path_factory.mktemp("nights")
    for night in (0, 10, 20, 30, 40):
        kept.read_summarised(write_night(place / "results", night))
    kept.read_summarised(write_night(place / "versions", 20, slower=2.0, launches=3))
    return place


@pytest.fixture
def results(nights: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(nights / "results", tmp_path / "results"))


def test_the_index_has_the_rows_of_the_runs_by_machine_and_month(results: Path) -> None:
    wanted = rows_of(results)
    assert len(wanted) == 5 + 5 * len(CASES) * 2
    assert gather(results, list(folders(results)), HERE) == index.Gathering(5, 0, ())
    assert [path.parent.relative_to(results).as_posix() for path in index_files(results)] == [
        "index/machine=cluster/month=2026-02",
        "index/machine=cluster/month=2026-03",
    ]
    index_of_all = contents(results, list(folders(results)))
    assert (len(index_of_all.entries), index_of_all.fresh) == (5, ())
    assert rows_of(results) == wanted


def test_only_new_and_changed_runs_are_gathered(results: Path) -> None:
    gather(results, list(folders(results)), HERE)
    assert gather(results, list(folders(results)), HERE) == index.Gathering(0, 5, ())
    changed = write_night(results, 20, slower=3.0)
    added = write_night(results, 50)
    assert contents(results, list(folders(results))).fresh == (changed, added)
    assert gather(results, list(folders(results)), HERE) == index.Gathering(2, 4, ())
    assert rows_of(results) == rows_without_index(results)


def _gather_some(results: Path, _nights: Path, chosen: set[int]) -> None:
    gather(results, [folder for place, folder in enumerate(folders(results)) if place in chosen], HERE)


def _gather_as_if_nothing_were_there(results: Path, nights: Path, chosen: set[int]) -> None:
    """As a writer does that looked before another one was done."""
    with patch.object(index, "_rows", return_value=[]):
        _gather_some(results, nights, chosen)


def _replace_run(results: Path, nights: Path, number: int) -> None:
    version = nights / ("versions" if number % 2 else "results") / "cluster/night-020"
    shutil.copytree(version, results / "cluster/night-020", dirs_exist_ok=True)


def _delete_run(results: Path, _nights: Path, number: int) -> None:
    for folder in list(folders(results))[1:][number : number + 1]:
        shutil.rmtree(folder)


def _copy_run(results: Path, _nights: Path, number: int) -> None:
    for folder in list(folders(results))[number : number + 1]:
        if folder.parent != results / "copies":
            shutil.copytree(folder, results / "copies" / folder.name, dirs_exist_ok=True)


def _cut_file(results: Path, _nights: Path, number: int) -> None:
    for path in index_files(results)[:1]:
        os.truncate(path, number * path.stat().st_size // 10)


def _copy_file(results: Path, _nights: Path, number: int) -> None:
    for path in index_files(results)[-1:]:
        shutil.copy(path, path.with_name(f"{number}{path.name}"))


HAPPENINGS: dict[str, Callable[[Path, Path, Any], None]] = {
    "gather": _gather_some,
    "gather too": _gather_as_if_nothing_were_there,
    "replace run": _replace_run,
    "delete run": _delete_run,
    "copy run": _copy_run,
    "cut file": _cut_file,
    "copy file": _copy_file,
}
STEPS = st.lists(
    st.one_of(
        *(st.tuples(st.just(name), st.sets(st.integers(0, 4))) for name in list(HAPPENINGS)[:2]),
        *(st.tuples(st.just(name), st.integers(0, 4)) for name in list(HAPPENINGS)[2:]),
    ),
    max_size=6,
)


@given(steps=STEPS)
@settings(max_examples=trials(5, 12))
def test_any_order_of_gatherings_gives_the_rows_of_the_runs(
    nights: Path, tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, Any]]
) -> None:
    results = tmp_path_factory.mktemp("any") / "results"
    shutil.copytree(nights / "results", results)
    for step, argument in steps:
        HAPPENINGS[step](results, nights, argument)
    rows = rows_of(results)
    assert rows == rows_without_index(results)
    assert len({row[0] for row in rows}) == len({folder.name for folder in folders(results)})


def test_files_that_are_no_index_are_left_alone(results: Path) -> None:
    gather(results, list(folders(results)), HERE)
    wanted = rows_of(results)
    (path, *_) = index_files(results)
    duckdb.execute(f"COPY (SELECT 1 AS something) TO '{path.with_name('0.v1.parquet')}'")
    path.with_name("1.v1.parquet").write_bytes(b"PAR1" + bytes(200) + b"PAR1")
    path.with_name("2.v2.parquet").write_bytes(path.read_bytes())
    assert len(contents(results, list(folders(results))).entries) == 5
    assert rows_of(results) == wanted


# --- writers that die, and several at once ---------------------------------------------------------------------------


class _Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("point", ["fsync", "replace"])
@pytest.mark.parametrize("after", range(3))
def test_a_writer_that_is_killed_loses_nothing(
    results: Path, monkeypatch: pytest.MonkeyPatch, point: str, after: int
) -> None:
    wanted = rows_of(results)
    calls = 0

    def killed(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls > after:
            raise _Killed

    with monkeypatch.context() as patched:
        if point == "fsync":
            patched.setattr(os, "fsync", killed)
        else:
            original = Path.replace

            def replaced(self: Path, target: Path) -> Path:
                killed()
                return original(self, target)

            patched.setattr(Path, "replace", replaced)
        patched.setattr(Path, "unlink", lambda *_, **__: None)  # a killed process removes nothing
        if after < 2:  # there are two files
            with pytest.raises(_Killed):
                gather(results, list(folders(results)), HERE)
        else:
            gather(results, list(folders(results)), HERE)
    assert rows_of(results) == wanted
    gather(results, list(folders(results)), HERE)
    assert contents(results, list(folders(results))).fresh == ()
    assert rows_of(results) == wanted


def test_four_writers_at_once_count_nothing_twice(results: Path) -> None:
    wanted = rows_of(results)
    command = [sys.executable, "-m", "busbw", "index", "--results-dir", str(results)]
    writers = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4
    assert contents(results, list(folders(results))).fresh == ()
    assert rows_of(results) == wanted


def test_drafts_of_killed_writers_are_removed_when_they_are_old(results: Path) -> None:
    gather(results, list(folders(results)), HERE)
    (path, *_) = index_files(results)
    new, old = (path.with_name(f".{name}.draft") for name in ("new", "old"))
    new.touch()
    old.touch()
    os.utime(old, (0, 0))
    gather(results, [], HERE)
    assert (new.exists(), old.exists()) == (True, False)


# --- runs that are not as usual --------------------------------------------------------------------------------------


def test_a_run_that_is_being_written_counts_as_far_as_it_is(results: Path) -> None:
    folder = write_night(results, 60)
    whole = (folder / store.SAMPLES_FILE).read_bytes()
    lines = whole.splitlines(keepends=True)
    (folder / store.SAMPLES_FILE).write_bytes(b"".join(lines[:4]) + lines[4][:30])  # launch 0 without its last block
    gather(results, list(folders(results)), HERE)
    partly = [row for row in rows_of(results) if row[0] == folder.name]
    assert len(partly) == 1 + 3
    (folder / store.SAMPLES_FILE).write_bytes(whole)
    for _ in range(2):
        assert len([row for row in rows_of(results) if row[0] == folder.name]) == 1 + 2 * len(CASES)
        gather(results, list(folders(results)), HERE)


def test_a_run_without_its_samples_and_a_damaged_one(results: Path) -> None:
    half, damaged = write_night(results, 60), write_night(results, 61)
    (half / store.SAMPLES_FILE).unlink()
    (damaged / store.SAMPLES_FILE).write_bytes(b"{}\n{}\n")
    gathering = gather(results, list(folders(results)), HERE)
    assert gathering.added == 6
    assert [run.folder for run in gathering.unreadable] == [damaged]
    assert [row[0] for row in rows_of(results)[:6]] == [folder.name for folder in folders(results)][:6]
    assert contents(results, list(folders(results))).fresh == (damaged,)


def test_a_folder_that_cannot_be_read_is_named(results: Path) -> None:
    closed = next(folders(results)).with_name("20260102T000000.000Z-closed")
    closed.symlink_to(closed.name)
    places = store.places(results)
    with views_of(results, places, HERE) as views:
        assert [run.folder for run in views.unreadable] == [closed]
        assert views.rows("SELECT count(*) FROM runs") == [(5,)]
    assert [run.folder for run in gather(results, list(folders(results)), HERE).unreadable] == [closed]


def test_a_name_that_is_no_unicode_is_unreadable_and_no_other(results: Path) -> None:
    wanted = rows_of(results)
    folder = write_night(results, 60)
    strange = folder.rename(os.fsdecode(os.fsencode(folder) + b"\xff"))
    gathering = gather(results, list(folders(results)), HERE)
    assert [run.folder for run in gathering.unreadable] == [strange]
    assert rows_of(results) == wanted


def test_a_run_that_nothing_can_be_kept_of(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = rows_of(results)
    for folder in folders(results):
        (folder / store.SUMMARY_FILE).unlink()
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert rows_of(results) == wanted
    assert gather(results, list(folders(results)), HERE).added == 5
    assert not list(results.glob(f"*/*/{store.SUMMARY_FILE}"))
    assert rows_of(results) == wanted


def test_a_damaged_summary_is_made_again(results: Path) -> None:
    wanted = rows_of(results)
    first, *_ = folders(results)
    content = (first / store.SUMMARY_FILE).read_bytes()
    half = len(content) // 2
    (first / store.SUMMARY_FILE).write_bytes(content[:4] + bytes(half) + content[4 + half :])
    assert rows_of(results) == wanted
    assert (first / store.SUMMARY_FILE).read_bytes() == content
    assert gather(results, list(folders(results)), HERE) == index.Gathering(5, 0, ())


def test_a_folder_that_looks_like_a_pattern_is_read_but_not_indexed(nights: Path, tmp_path: Path) -> None:
    results = Path(shutil.copytree(nights / "results", tmp_path / "re[s]ults"))
    assert rows_of(results) == rows_of(nights / "results")
    with pytest.raises(StoreError):
        gather(results, list(folders(results)), HERE)


def test_failed_skipped_and_unverified_cases(tmp_path: Path) -> None:
    cases = [case("all_reduce", 64), case("barrier", 0), case("all_gather", 64), case("broadcast", 64)]
    end = SyntheticEnd(failed={cases[2]: "lost"}, skipped={cases[3]: "not here"})
    write_synthetic(tmp_path, synthetic_run(cases, launches=1, end=end))
    gather(tmp_path, list(folders(tmp_path)), HERE)
    with views_of(tmp_path, list(folders(tmp_path)), HERE) as views:
        states = dict(views.rows("SELECT op, state FROM launches"))
        assert states == {"all_reduce": "verified", "barrier": "not checked"}
        assert views.rows("SELECT op FROM launches WHERE busbw_bytes_per_s IS NULL") == [("barrier",)]


def test_a_log_is_a_run_with_its_tool(tmp_path: Path) -> None:
    log = Path(__file__).parents[1] / "data/logs/nccl-tests-2.19.txt"
    assert busbw("import", str(log), "--results-dir", str(tmp_path)).exit_code == 0
    gather(tmp_path, list(folders(tmp_path)), HERE)
    with views_of(tmp_path, list(folders(tmp_path)), HERE) as views:
        ((tool, hosts, rows),) = views.rows(
            "SELECT tool, any_value(hosts), count(*) FROM launches JOIN runs USING (run, tool) GROUP BY tool"
        )
    assert (tool, hosts) == ("nccl-tests", ["node1", "node2"])
    assert rows > 3


# --- lists of runs ---------------------------------------------------------------------------------------------------


def test_the_list_of_runs_is_that_of_the_folders(results: Path) -> None:
    there = store.places(results)
    wanted = {place: line_of(outline(Path(place))) for place in there}
    gather(results, list(map(Path, there[:3])), HERE)
    assert lines_of(store.places(results)) == wanted, "what is no run folder has no line"
    for place in there[:3]:
        (Path(place) / store.SUMMARY_FILE).unlink()
    assert lines_of(there) == wanted
    write_night(results, 0, CASES[:1])
    assert lines_of(there)[there[1]] == wanted[there[1]]
    assert there[0] not in lines_of(there)


# --- SQL -------------------------------------------------------------------------------------------------------------


def _refused(results: Path, query: str) -> str:
    with views_of(results, list(folders(results)), HERE) as views, pytest.raises(UsageError) as refusal:
        views.answer(query)
    return refusal.value.code


@pytest.mark.parametrize(
    "query",
    [
        "DROP VIEW runs",
        "CREATE TABLE copied AS SELECT * FROM runs",
        "COPY (SELECT * FROM runs) TO '{file}'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{file}'",
        "SET lock_configuration = false",
        "ATTACH '{file}'",
        "INSTALL httpfs",
        "SELECT 1; SELECT 2",
        "",
    ],
)
def test_sql_that_writes_is_refused(results: Path, tmp_path: Path, query: str) -> None:
    file = tmp_path / "written"
    assert _refused(results, query.format(file=file)) == "not-a-select"
    assert not file.exists()


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM sniff_csv('/etc/passwd')",
        "SELECT * FROM read_text('{run}')",
        "SELECT * FROM read_parquet('{run}')",
        "SELECT * FROM results",
        "SELECT nothing FROM runs",
        "SELECT FROM",
    ],
)
def test_sql_reads_the_views_and_nothing_else(results: Path, query: str) -> None:
    gather(results, list(folders(results)), HERE)
    run = next(folders(results)) / store.RUN_FILE
    assert _refused(results, query.format(run=run)) == "sql"


def _sql(results: Path, *arguments: str) -> Result:
    return busbw("sql", *arguments, "--results-dir", str(results))


@pytest.mark.parametrize("command", [["index"], ["sql", "SELECT 1"], ["history"]])
def test_a_folder_that_is_not_there_is_a_mistake(command: list[str], tmp_path: Path) -> None:
    assert busbw(*command, "--results-dir", str(tmp_path / "misspelt")).exit_code == 2
    assert not (tmp_path / "misspelt").exists()


def test_sql_prints_a_table_csv_or_json(results: Path) -> None:
    query = "SELECT run, started, hosts, 0.5::DECIMAL(3, 1) AS half FROM runs ORDER BY run LIMIT 1"
    row = ["night-000", "2026-02-12T02:00:00", ["node0"], 0.5]
    answer = _sql(results, query, "--json")
    assert answer.exit_code == 0
    assert f'"rows": [\n    [\n      "{row[0]}",\n      "{row[1]}"' in answer.stdout
    assert _sql(results, query, "--csv").stdout.splitlines()[0] == "run,started,hosts,half"
    assert _sql(results, query).stdout.split()[-1] == "0.5"
    assert _sql(results, query, "--csv", "--json").exit_code == 2
    assert _sql(results, "DROP VIEW runs").exit_code == 2


def test_every_column_is_one_of_its_view(results: Path) -> None:
    with views_of(results, list(folders(results)), HERE) as views:
        of_runs, _ = views.answer("SELECT * FROM runs LIMIT 0")
        of_launches, _ = views.answer("SELECT * FROM launches LIMIT 0")
    assert of_runs == tuple(column.name for column in OF_RUNS)
    assert of_launches == (*IN_BOTH, *(column.name for column in OF_LAUNCHES))
