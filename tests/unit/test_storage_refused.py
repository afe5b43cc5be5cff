"""A path that takes no files is refused before anything is started, as far as it can be known here."""

import dataclasses
import errno
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
from click.testing import CliRunner
from testing.synthetic import case, synthetic_run, write_synthetic

from busbw.backends import backend_named
from busbw.backends.base import BackendRow
from busbw.cli.main import main
from busbw.errors import UsageError
from busbw.launch.attach import run_rank0
from busbw.launch.launchers import LAUNCHERS
from busbw.launch.local import run_local
from busbw.launch.rendezvous import Rendezvous
from busbw.launch.run_session import Attachment, Result, Settings, open_run
from busbw.launch.signals import RankInfo, ShutdownHandler
from busbw.runs import store
from busbw.runs.plan import Plan, Sweep
from busbw.runs.records import Measurement
from busbw.system import storage


def free(monkeypatch: pytest.MonkeyPatch, size_bytes: int) -> None:
    """Let every file system have ``size_bytes`` free."""
    space = SimpleNamespace(f_bavail=size_bytes, f_blocks=1 << 40, f_frsize=1)
    monkeypatch.setattr(os, "statvfs", lambda _folder: space)


@pytest.mark.parametrize("launcher", ["local", "torchrun"])
@pytest.mark.parametrize(
    ("path", "size", "said"),
    [
        ("nowhere", "64KiB", "create"),
        ("file", "64KiB", "folder"),
        ("full", "64KiB,1MiB", "little"),
        ("read-only", "64KiB", "read-only"),
    ],
)
def test_a_path_without_files_is_refused_before_any_rank_is_started(
    launcher: str, path: str, size: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "read-only").mkdir()
    if path == "full":
        free(monkeypatch, 16 << 20)
    if path == "read-only":

        def refuses(**_: object) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        monkeypatch.setattr(tempfile, "TemporaryFile", refuses)
    for name in ("busbw.launch.local.launch_ranks", "busbw.launch.attach._run_launch"):
        monkeypatch.setattr(name, lambda *_, **__: pytest.fail("a rank was started"))
    sweeps = (Sweep(ops=("all_reduce",)), Sweep(ops=("storage_write",), sizes=size))
    wanted = Plan(path=str(tmp_path / path), ranks=2, sweep=sweeps)
    info = RankInfo("torchrun", 0, 2, 0, 2)
    torchrun = LAUNCHERS["torchrun"]
    attached = Attachment(torchrun, info, cast("Rendezvous", None), ShutdownHandler(info, torchrun.signals))
    settings = Settings(tmp_path / "results", quiet=True)
    row = backend_named("gloo")
    starts: dict[str, Callable[[Plan, BackendRow, Settings], Result]] = {
        "local": run_local,
        "torchrun": partial(run_rank0, attached=attached),
    }
    with pytest.raises(UsageError) as caught:
        starts[launcher](wanted, row, settings)
    assert str(caught.value).startswith(f"--path: files cannot be created: {'' if path == 'full' else tmp_path}")
    assert said in str(caught.value)
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(("path", "said"), [("nowhere", "create"), ("file", "file")])
def test_a_dry_run_refuses_a_path_as_the_run_would(path: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(main, ["run", "--suite", "storage", "--dry-run", "--path", str(tmp_path / path)])
    assert result.exit_code == 2
    assert str(tmp_path / path) in result.stderr
    assert said in result.stderr
    assert not result.stdout


def test_a_dry_run_lists_the_cases_that_the_path_makes_of_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_way", lambda _folder, _kind: ("memory", "it is memory itself"))
    result = CliRunner().invoke(
        main, ["run", "--op", "storage_write", "--sizes", "64KiB", "--ranks", "1", "--dry-run", "--path", str(tmp_path)]
    )
    assert result.exit_code == 0, result.stderr
    assert " memory" in result.stdout
    assert "direct" not in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_has_room_for_some_of_the_files_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, 20 << 20)
    wanted = Plan(path=str(tmp_path), sweep=(Sweep(ops=("storage_write",), sizes="1MiB,1GiB"),))
    with open_run(wanted, Settings(tmp_path / "results"), 2) as here:
        assert here.folder.is_dir()
    with pytest.raises(UsageError, match=r"20 MiB free, but 26 MiB are needed \(10 ranks × 1 MiB and a margin\)"):
        storage.refuse_path(str(tmp_path), 10, 1 << 20)


def test_a_resumed_run_asks_for_its_path_only_where_files_are_still_to_be_made(tmp_path: Path) -> None:
    cases = [case("storage_write", 1 << 20, 2), case("all_reduce", 1 << 20, 2)]
    wanted = Plan(ranks=2, path=str(tmp_path / "nowhere"), sweep=(Sweep(ops=("storage_write", "all_reduce")),))
    whole = synthetic_run(cases, launches=1, blocks=2)
    run = msgspec.structs.replace(whole.run, plan=wanted)
    for op in ("storage_write", "all_reduce"):
        rows = [row for row in whole.rows if not isinstance(row, Measurement) or row.case.op != op]
        folder = write_synthetic(tmp_path / op, dataclasses.replace(whole, run=run, rows=tuple(rows)))
        before = (folder / store.SAMPLES_FILE).read_bytes()
        settings = Settings(tmp_path, resume=folder)
        if op == "storage_write":
            with pytest.raises(UsageError), open_run(wanted, settings):
                pass
        else:
            with open_run(wanted, settings) as here:
                assert here.launches
        assert (folder / store.SAMPLES_FILE).read_bytes() == before
