"""``map(function, runs)``: the same on the cores of this machine and on a Dask cluster, whose workers may die."""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from distributed import LocalCluster
from testing.command import busbw
from testing.nights import CASES, summarise_or_die, write_night

from busbw.errors import AnalysisError, UsageError
from busbw.runs import store
from busbw.runs.store import folders
from busbw_analysis.cli.exchange import read_log
from busbw_analysis.data.imported import LogFacts
from busbw_analysis.history import index
from busbw_analysis.history.engine import Local, engine_of
from busbw_analysis.history.index import contents, gather

RUNS = 20
LOGS = Path(__file__).parents[1] / "data/logs"


@pytest.fixture(scope="module")
def unread(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs without summaries."""
    results = tmp_path_factory.mktemp("engine") / "results"
    for night in range(RUNS):
        write_night(results, night, CASES[:2])
    return results


@pytest.fixture(scope="module")
def wanted(unread: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The summaries of all runs, made in this process."""
    results = _copy(unread, tmp_path_factory.mktemp("wanted"))
    assert gather(results, list(folders(results)), Local(1)).added == RUNS
    return _summaries(results)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    made = LocalCluster(  # type: ignore[no-untyped-call]
        n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50
    )
    with made as local:
        yield local


def _copy(unread: Path, place: Path) -> Path:
    """A copy with the times of change."""
    return Path(shutil.copytree(unread, place / "results"))


def _summaries(results: Path) -> dict[str, bytes]:
    return {folder.name: (folder / store.SUMMARY_FILE).read_bytes() for folder in folders(results)}


def test_workers_of_a_cluster_keep_the_same_bytes(
    cluster: LocalCluster, unread: Path, wanted: dict[str, bytes], tmp_path: Path
) -> None:
    results = _copy(unread, tmp_path)
    with engine_of(f"dask:{cluster.scheduler_address}") as engine:
        assert gather(results, list(folders(results)), engine) == index.Gathering(RUNS, 0, ())
    assert _summaries(results) == wanted


def test_a_worker_that_is_killed_loses_nothing(
    cluster: LocalCluster, unread: Path, wanted: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, marker = _copy(unread, tmp_path), tmp_path / "killed"
    monkeypatch.setattr(index, "summarise", partial(summarise_or_die, marker))
    with engine_of(f"dask:{cluster.scheduler_address}") as engine:
        assert gather(results, list(folders(results)), engine).added == RUNS
    assert marker.exists()
    assert _summaries(results) == wanted
    assert contents(results, list(folders(results))).fresh == ()


def test_logs_are_read_by_processes_as_in_this_one(tmp_path: Path) -> None:
    logs = sorted(LOGS.glob("nccl-tests*.txt"))[:4]
    read = partial(read_log, tmp_path, LogFacts())
    runs = list(Local(2, fewest=1).map(read, logs))
    assert [run.run.id for run in runs] == [run.run.id for run in map(read, logs)]
    assert [run.rows for run in runs] == [run.rows for run in map(read, logs)]
    with pytest.raises(UsageError) as error:
        list(Local(2, fewest=1).map(read, [*logs, tmp_path / "none.txt"]))
    assert error.value.code == "no-such-run"


def test_processes_of_this_machine_keep_the_same_bytes(unread: Path, wanted: dict[str, bytes], tmp_path: Path) -> None:
    results = _copy(unread, tmp_path)
    assert gather(results, list(folders(results)), Local(2, fewest=2)).added == RUNS
    assert _summaries(results) == wanted


def test_a_killed_process_of_this_machine_is_an_error_and_what_is_done_is_kept(
    unread: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = _copy(unread, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(index, "summarise", partial(summarise_or_die, tmp_path / "killed"))
        with pytest.raises(AnalysisError) as error:
            gather(results, list(folders(results)), Local(2, fewest=2))
    assert error.value.code == "process-killed"
    assert gather(results, list(folders(results)), Local(1)).added == RUNS


@pytest.mark.parametrize("name", ["dask", "dask:", "ray:here"])
def test_an_unknown_engine_is_refused(name: str) -> None:
    with pytest.raises(UsageError), engine_of(name):
        pass


def test_parts_of_an_array_of_jobs_are_all_runs(unread: Path, tmp_path: Path) -> None:
    results = _copy(unread, tmp_path)
    parts = [busbw("index", "--shard", f"{part}/3", "--results-dir", str(results)) for part in (1, 2, 3)]
    assert [part.exit_code for part in parts] == [0, 0, 0]
    assert contents(results, list(folders(results))).fresh == ()
    whole = busbw("index", "--results-dir", str(results))
    assert whole.stdout == f"0 runs added, {RUNS} unchanged\n"


@pytest.mark.parametrize("shard", ["0/3", "4/3", "1", "a/b", "-1/3"])
def test_a_part_that_is_none_is_refused(shard: str, tmp_path: Path) -> None:
    assert busbw("index", f"--shard={shard}", "--results-dir", str(tmp_path)).exit_code == 2
