"""Kept summaries: the numbers of the samples, made again whenever they could be wrong, and never in the way."""

import os
import shutil
import stat
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np
import pytest
from testing.narrow import require
from testing.synthetic import SyntheticEnd, World, case, synthetic_run, write_synthetic

from busbw.errors import DamagedRun
from busbw.runs import store
from busbw.runs.progress import line_of, outline
from busbw.runs.records import JSON
from busbw_analysis.data import kept_sources
from busbw_analysis.data.as_json import plain
from busbw_analysis.data.imported import LogFacts
from busbw_analysis.data.kept import Summarised, read_summarised, summarised
from busbw_analysis.data.kept_sources import lines_of
from busbw_analysis.data.load import pool
from busbw_analysis.data.ragged import Ragged
from busbw_analysis.data.sources import find

LOGS = Path(__file__).parents[1] / "data/logs"

CASES = [
    case("all_reduce", 64),
    case("all_reduce", 4096, group="div:2"),
    case("all_gather", 4096, mode="overlap"),
    case("pair_matrix", 1024, pairs="alone"),
    case("barrier", 0),
    case("memory_copy", 1 << 20),
]
UNEVEN = World(launch_noise=0.3, sample_noise=0.4, slow_share=0.3, slow_seconds=3e-3, jitter_seconds=2e-6)


def _write(folder: Path, **how: Any) -> Path:  # noqa: ANN401 - arguments of synthetic_run
    end = SyntheticEnd(failed={CASES[4]: "lost"}, skipped={CASES[5]: "not here"})
    return write_synthetic(folder, synthetic_run(CASES, UNEVEN, **{"launches": 2, "blocks": 2, "end": end, **how}))


def _same(loaded: Summarised, wanted: Summarised) -> None:
    assert loaded.stored == wanted.stored
    assert loaded.lateness == wanted.lateness
    for field in fields(loaded.table):
        columns = (getattr(side.table, field.name) for side in (loaded, wanted))
        left, right = (column.flat if isinstance(column, Ragged) else column for column in columns)
        np.testing.assert_array_equal(left, right)


def _document(folder: Path) -> JSON:
    return [
        [*map(plain, summary.groups), plain(summary.total)] for summary in pool([read_summarised(folder)]).summaries
    ]


@pytest.mark.parametrize("launches", [1, 2, 7])
def test_a_kept_summary_is_that_of_the_samples(launches: int, tmp_path: Path) -> None:
    folder = _write(tmp_path, launches=launches)
    made = read_summarised(folder)
    with patch.object(store, "read", side_effect=AssertionError("the samples were read again")):
        again = read_summarised(folder)
        _same(again, made)
        _document(folder)
    _same(again, summarised(store.read(folder)))


def test_an_imported_log_has_the_numbers_of_the_log(tmp_path: Path) -> None:
    log = require(find(tmp_path, str(LOGS / "nccl-tests-per-iteration.txt")).read(LogFacts()).samples)
    folder = write_synthetic(tmp_path, log)
    made = read_summarised(folder)
    _same(read_summarised(folder), made)
    assert set(made.table.statistic) == {"mean"}


@pytest.mark.parametrize("change", ["rows", "run", "version"])
def test_a_summary_of_something_else_is_made_again(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _write(tmp_path)
    first = read_summarised(folder)
    samples = folder / store.SAMPLES_FILE
    if change == "rows":
        lines = samples.read_bytes().splitlines(keepends=True)
        samples.write_bytes(b"".join(lines[:-3]))
    elif change == "run":
        store.write_run(folder, msgspec.structs.replace(first.stored.run, machine="another"))
    else:
        monkeypatch.setattr(kept_sources, "VERSION", kept_sources.VERSION + 1)
    again = read_summarised(folder)
    assert again.samples is not None
    assert (len(again.stored.rows) < len(first.stored.rows)) == (change == "rows")
    assert read_summarised(folder).samples is None


def test_rows_of_the_same_size_and_age_are_told_by_the_files_age_only(tmp_path: Path) -> None:
    """Size and time are compared first; a touched file of the same rows is not summarised again."""
    folder = _write(tmp_path)
    read_summarised(folder)
    os.utime(folder / store.SAMPLES_FILE, ns=(1, 1))
    assert lines_of([folder]) == {}
    assert read_summarised(folder).samples is None
    assert lines_of([folder]), "the summary does not name the file as it is now"


def test_a_packed_run_keeps_its_summary(tmp_path: Path) -> None:
    folder = _write(tmp_path)
    made = read_summarised(folder)
    store.pack(folder, least_bytes=0)
    assert not (folder / store.SAMPLES_FILE).exists()
    again = read_summarised(folder)
    assert again.samples is None
    _same(again, made)


def test_a_summary_does_not_hide_that_an_archive_is_damaged(tmp_path: Path) -> None:
    folder = _write(tmp_path)
    read_summarised(folder)
    store.pack(folder, least_bytes=0)
    for damage in (b"\x1f\x8b\x00 another method", (folder / store.PACKED_FILE).read_bytes()[:-20]):
        (folder / store.PACKED_FILE).write_bytes(damage)
        with pytest.raises(DamagedRun):
            read_summarised(folder)


def test_a_damaged_summary_is_replaced(tmp_path: Path) -> None:
    folder = _write(tmp_path, launches=1, blocks=1)
    made = read_summarised(folder)
    whole = (folder / store.SUMMARY_FILE).read_bytes()
    cut = [whole[:end] for end in range(0, len(whole), len(whole) // 7)]
    for content in (*cut, b"PAR1", b"no parquet", b"PAR1" + b"\0" * 100 + b"PAR1"):
        (folder / store.SUMMARY_FILE).write_bytes(content)
        _same(read_summarised(folder), made)
        assert read_summarised(folder).samples is None


def test_a_pipe_in_place_of_a_summary_does_not_hang(tmp_path: Path) -> None:
    folder = _write(tmp_path)
    os.mkfifo(folder / store.SUMMARY_FILE)
    assert read_summarised(folder).samples is not None
    assert not stat.S_ISFIFO((folder / store.SUMMARY_FILE).stat().st_mode)


def test_a_folder_that_cannot_be_written_to_works_without(tmp_path: Path) -> None:
    folder = _write(tmp_path)
    with patch.object(Path, "replace", side_effect=PermissionError("read-only")):
        assert read_summarised(folder).samples is not None
    assert sorted(path.name for path in folder.iterdir()) == [store.RUN_FILE, store.SAMPLES_FILE]


def test_a_run_that_grows_while_it_is_read_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _write(tmp_path)
    samples = folder / store.SAMPLES_FILE
    read = store.read

    def growing(path: Path, **how: Any) -> store.StoredRun:  # noqa: ANN401 - as store.read
        stored = read(path, **how)
        with samples.open("ab") as file:
            file.write(b"{")
        return stored

    monkeypatch.setattr(store, "read", growing)
    read_summarised(folder)
    assert not (folder / store.SUMMARY_FILE).exists()


def test_a_copied_run_keeps_its_summary(tmp_path: Path) -> None:
    folder = _write(tmp_path / "one")
    read_summarised(folder)
    shutil.copytree(folder, tmp_path / "other", copy_function=shutil.copyfile)
    assert read_summarised(tmp_path / "other").samples is None


def test_the_line_of_a_list_is_that_of_the_outline(tmp_path: Path) -> None:
    ends = (SyntheticEnd(), SyntheticEnd(ended=None))
    folders = [_write(tmp_path, seed=seed, end=end) for seed, end in enumerate(ends)]
    damaged = _write(tmp_path, seed=2)
    for folder in (*folders, damaged):
        read_summarised(folder)
    (damaged / store.SUMMARY_FILE).write_bytes(b"no parquet")
    unread = _write(tmp_path, seed=3)
    assert lines_of([*folders, damaged, unread]) == {folder: line_of(outline(folder)) for folder in folders}


@pytest.mark.parametrize("name", [store.SAMPLES_FILE, store.RUN_FILE])
def test_a_list_does_not_trust_the_summary_of_another_file(name: str, tmp_path: Path) -> None:
    folder = _write(tmp_path)
    read_summarised(folder)
    with (folder / name).open("ab") as file:
        file.write(b" ")
    assert lines_of([folder]) == {}
