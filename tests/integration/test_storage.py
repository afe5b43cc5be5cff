"""Storage on real ranks: verified, cleaned up whatever happens, and what cannot be written fails alone."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from testing.narrow import require
from tests.integration.conftest import until

from busbw.backends import BACKENDS
from busbw.ops.settings import Access, Way
from busbw.runs import store
from busbw.runs.facts import StorageFacts
from busbw.runs.records import CrossCheck
from busbw.system.storage import PREFIX

if TYPE_CHECKING:
    from tests.integration.conftest import Commands

    from busbw.runs.store import StoredRun

pytestmark = pytest.mark.integration

_FILES = "storage_write,storage_read"
_ALL = f"{_FILES},checkpoint_save"
_BUSBW = (sys.executable, "-m", "busbw")


def _here(commands: Commands) -> Path:
    folder = commands.folder / "disk"
    folder.mkdir(exist_ok=True)
    return folder


def _errors(run: StoredRun) -> dict[str, str]:
    return {row.case.op: row.error for row in run.failed}


# --- what it measures ------------------------------------------------------------------------------------------------


def test_files_and_checkpoints_are_verified_and_nothing_is_left(commands: Commands) -> None:
    disk = _here(commands)
    plan = commands.sweep(_ALL, "64KiB,1MiB", blocks=["16KiB"], depths=[1, 3])
    commands.succeed("run", "--plan", plan, "--ranks", "2", "--path", disk)
    run = commands.read()
    assert not run.failed
    assert not run.not_reached
    assert {row.check.state for row in run.measurements} == {"verified"}
    assert all(row.calls == 1 for row in run.measurements)
    facts = _storage_of(run)
    assert facts.way is not None
    assert facts.path == str(disk)
    assert facts.error is None
    accesses = {Access(16 << 10, depth, facts.way) for depth in (1, 3)}
    assert {row.case.settings for row in run.measurements if row.case.op != "checkpoint_save"} == accesses
    assert list(disk.iterdir()) == []
    checks = [row.supplement for row in run.measurements if row.case.op != "checkpoint_save"]
    fio = shutil.which("fio")
    if fio is None:
        assert set(checks) == {None}
    for check in filter(None, checks):
        assert fio is not None
        assert isinstance(check, CrossCheck)
        version = subprocess.run([fio, "--version"], capture_output=True, text=True, check=True).stdout
        assert (check.tool, check.version, check.error) == ("fio", version.strip().removeprefix("fio-"), None)
        assert len(check.bytes_per_second) == 2


def _storage_of(run: store.StoredRun) -> StorageFacts:
    (host,) = run.run.environments.values()
    assert host.storage is not None
    return host.storage


@pytest.mark.slow
@pytest.mark.alone
def test_a_checkpoint_beside_computation_tells_how_long_the_trainer_waits(commands: Commands) -> None:
    disk = _here(commands)
    plan = commands.sweep("checkpoint_save", "256KiB", modes=["overlap"])
    commands.succeed("run", "--plan", plan, "--ranks", "2", "--path", disk)
    run = commands.read()
    assert run.measurements
    for row in run.measurements:
        assert row.check.state == "verified"
        parts = require(row.groups[0].overlap)
        assert min(parts.post_ns) > 0
        assert min(parts.pure_ns) > min(parts.post_ns)  # it is not durable when the trainer may go on
    assert list(disk.iterdir()) == []


@pytest.mark.slow
def test_a_plan_can_go_without_o_direct(commands: Commands) -> None:
    disk = _here(commands)
    plan = commands.sweep(_FILES, "64KiB", direct=False)
    finished = commands.run("run", "--plan", plan, "--ranks", "2", "--path", disk)
    assert finished.code == 0, finished.told
    run = commands.read()
    facts = _storage_of(run)
    way: Way = "memory" if facts.way == "memory" else "dropped"
    assert {row.case.settings for row in run.measurements} == {Access(1 << 20, 1, way)}
    assert {row.check.state for row in run.measurements} == {"verified"}


@pytest.mark.slow
def test_memory_is_measured_and_called_memory(commands: Commands) -> None:
    shm = Path("/dev/shm")  # noqa: S108 - it is what is tested
    if not shm.is_dir() or not os.access(shm, os.W_OK):
        pytest.skip("there is no /dev/shm")
    finished = commands.run("run", "--op", _FILES, "--sizes", "64KiB", "--max-seconds", "0.05", "--path", shm)
    assert finished.code == 0, finished.told
    assert "tmpfs is in memory; data written and read there never leave memory" in finished.err
    assert {row.case.settings for row in commands.read().measurements} == {Access(1 << 20, 1, "memory")}
    assert not list(shm.glob(f"{PREFIX}{commands.read().run.id}*"))


@pytest.mark.slow
@pytest.mark.skipif(BACKENDS["mpi"].missing() is not None, reason=str(BACKENDS["mpi"].missing()))
def test_over_mpi_files_are_the_same_and_a_checkpoint_is_refused(commands: Commands) -> None:
    disk = _here(commands)
    plan = commands.sweep(_ALL, "64KiB")
    commands.succeed("run", "--plan", plan, "--ranks", "2", "--path", disk, "--backend", "mpi")
    run = commands.read()
    assert {row.case.op for row in run.measurements} == set(_FILES.split(","))
    assert {row.check.state for row in run.measurements} == {"verified"}
    (skipped,) = run.skipped
    assert "checkpoint_save" in skipped.reason
    assert list(disk.iterdir()) == []


# --- what goes wrong -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_more_than_there_is_room_for_is_refused_before_anything_is_written(commands: Commands) -> None:
    disk = _here(commands)
    plan = commands.sweep("storage_write,checkpoint_save", "4KiB,1TiB")
    finished = commands.run("run", "--plan", plan, "--ranks", "2", "--path", disk)
    if shutil.disk_usage(disk).free > 2 << 40:
        pytest.skip("this disk is larger than what the test asks for")
    assert finished.code == 1, finished.told
    run = commands.read()
    assert {row.case.size_bytes for row in run.failed} == {1 << 40}
    assert {row.case.op for row in run.measurements} == {"storage_write", "checkpoint_save"}


@pytest.mark.slow
def test_a_disk_that_is_full_in_the_middle_fails_its_cases_and_no_others(commands: Commands) -> None:
    """A limit of the size of files stands in for the disk: the system says so in the same place."""
    limiter = shutil.which("prlimit")
    if limiter is None:
        pytest.skip("there is no prlimit (util-linux)")
    disk = _here(commands)
    plan = commands.sweep(f"{_ALL},memory_copy", "256KiB,16MiB")
    program = (limiter, f"--fsize={4 << 20}", *_BUSBW)
    finished = commands.run("run", "--plan", plan, "--ranks", "2", "--path", disk, program=program)
    assert finished.code == 1, finished.told
    run = commands.read()
    assert {(row.case.op, row.case.size_bytes) for row in run.failed} == {(op, 16 << 20) for op in _ALL.split(",")}
    for error in _errors(run).values():
        assert str(disk) in error
    assert {row.case.op for row in run.measurements} == {*_ALL.split(","), "memory_copy"}
    assert not run.not_reached
    assert list(disk.iterdir()) == []


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_a_run_that_is_interrupted_leaves_no_files(commands: Commands, number: signal.Signals) -> None:
    disk = _here(commands)
    plan = commands.sweep(_ALL, "4KiB..64KiB+4KiB", modes=["isolated"])
    started = commands.start("run", "--plan", plan, "--ranks", "2", "--path", disk)
    started.rows(2)
    # In the middle of something that has files: a checkpoint has names.
    until(lambda: next(disk.glob(f"{PREFIX}*"), None), "no folder for files", started.process)
    started.signal_group(number)
    finished = started.wait()
    assert finished.code == 1, finished.told
    assert "interrupted" in finished.err
    assert list(disk.iterdir()) == []
    assert not commands.alive()
