"""Storage without ranks: files in blocks, what is asked before anything is written, and what says why it cannot be."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import resource
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import psutil
import pytest
import torch
from click.testing import CliRunner
from testing.blocks import measure_everywhere, measured
from testing.fakes import QUICK, FakeWorld
from testing.narrow import require
from testing.synthetic import case

from busbw.backends.base import Bound
from busbw.backends.faults import WrappingBackend
from busbw.backends.local import LOCAL
from busbw.backends.local import storage as files
from busbw.backends.local.storage import BlockFile
from busbw.backends.pytorch import checkpoint
from busbw.cli.main import main
from busbw.errors import BackendError, UsageError
from busbw.ops.settings import Access
from busbw.runs import cases, plan
from busbw.runs.facts import HostFacts, StorageFacts
from busbw.runs.plan import FileKeys, Plan, Sweep
from busbw.runs.records import Failed
from busbw.system import storage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from busbw.backends.base import Backend, Operation
    from busbw.ops.settings import Way
    from busbw.runs.records import Settings

MIB = 1 << 20


# --- cases -----------------------------------------------------------------------------------------------------------


def accesses(sweep: Sweep, way: Way = "direct") -> set[Settings | None]:
    return {planned.settings for planned in cases.expand(Plan(sweep=(sweep,)), 2, 1, way=way).cases}


def test_blocks_and_depths_multiply_and_a_checkpoint_has_none() -> None:
    sweep = Sweep(ops=("storage_read",), files=FileKeys(blocks=("4KiB", "1MiB"), depths=(1, 8)))
    wanted = {Access(block, depth, "direct") for block in (4096, MIB) for depth in (1, 8)}
    assert accesses(sweep) == wanted
    assert accesses(Sweep(ops=("checkpoint_save",), files=FileKeys(blocks=("4KiB", "1MiB")))) == {None}


def test_a_plan_can_do_without_o_direct_but_not_make_storage_of_memory() -> None:
    sweep = Sweep(ops=("storage_read",), files=FileKeys(direct=False))
    assert accesses(sweep) == {Access(MIB, 1, "dropped")}
    assert accesses(sweep, "memory") == {Access(MIB, 1, "memory")}
    assert accesses(Sweep(ops=("storage_read",)), "dropped") == {Access(MIB, 1, "dropped")}


def test_files_are_whole_blocks_of_storage_and_that_is_said() -> None:
    expanded = cases.expand(Plan(sweep=(Sweep(ops=("storage_write",), sizes="100", dtypes=("uint8",)),)), 2, 1)
    assert [planned.size_bytes for planned in expanded.cases] == [4096]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ('blocks = ["1000"]', "multiple"),
        ('blocks = ["0"]', "key 'blocks'"),
        ("blocks = []", "least"),
        ("depths = [0]", "'depths'"),
        ("depths = [2000]", "2000"),
    ],
)
def test_blocks_and_depths_that_cannot_be_are_refused_with_their_line(keys: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        plan.parse_plan(f'[[sweep]]\nops = ["storage_read"]\n{keys}\n', "my.toml", Path())
    assert "my.toml, line 3: " in str(refused.value)
    assert words in str(refused.value)


@pytest.mark.parametrize("given", [[], ["--path", ""]])
def test_without_a_path_nothing_is_measured(tmp_path: Path, given: list[str]) -> None:
    result = CliRunner().invoke(main, ["run", "--suite", "storage", "--results-dir", str(tmp_path), *given])
    assert result.exit_code == 2
    words = "--path: the folder for the files of storage_write, storage_read, checkpoint_save is missing"
    assert words in result.output
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="path"):
        Plan(sweep=(Sweep(ops=("storage_read",)),)).require_path()
    Plan(sweep=(Sweep(ops=("all_reduce",)),)).require_path()


def test_a_path_is_asked_about_only_where_files_are_made() -> None:
    assert Plan(path="/x", sweep=(Sweep(ops=("all_reduce",)),)).files_below is None
    assert Plan(path="/x", sweep=(Sweep(ops=("checkpoint_save",)),)).files_below == "/x"


# --- a file in blocks ------------------------------------------------------------------------------------------------


def facts_at(folder: Path) -> StorageFacts:
    return require(storage.storage_facts(str(folder)))


def ways_here(folder: Path) -> list[Way]:
    way: Way = require(facts_at(folder).way)
    return ["direct", "dropped"] if way == "direct" else [way]


@pytest.mark.parametrize("depth", [1, 3, 64])
@pytest.mark.parametrize("way", ["direct", "dropped", "memory"])
def test_what_is_written_is_read_whatever_the_blocks(tmp_path: Path, depth: int, way: Way) -> None:
    if way == "direct" and way not in ways_here(tmp_path):
        pytest.skip(f"{tmp_path} has no O_DIRECT")
    size = 11 * 4096  # no multiple of the block
    file = BlockFile(tmp_path / "new", size, Access(8192, depth, way))
    wanted = torch.arange(size).remainder(251).to(torch.uint8).numpy()
    file.memory[:] = wanted
    file.write()
    file.memory.fill(0)
    file.drop_cache()
    file.read()
    assert (file.memory == wanted).all()
    assert Path(file.name).read_bytes() == wanted.tobytes()
    assert list((tmp_path / "new").iterdir()) == []  # it has no name that could be left behind
    file.close()


def test_a_block_is_never_longer_than_the_file_and_a_short_write_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = BlockFile(tmp_path, 8192, Access(MIB, 1, "dropped"))
    file.memory[:] = 7
    real, lengths = os.pwrite, []

    def half(fd: int, data: memoryview, start: int) -> int:
        lengths.append(len(data))
        return real(fd, data[: max(1, len(data) // 2)], start)

    monkeypatch.setattr(os, "pwrite", half)
    file.write()
    assert lengths[0] == 8192
    assert Path(file.name).read_bytes() == bytes([7]) * 8192
    file.close()


def test_a_file_that_ends_early_is_no_data(tmp_path: Path) -> None:
    file = BlockFile(tmp_path, 8192, Access(4096, 1, "dropped"))
    with pytest.raises(OSError, match="8192"):
        file.read()
    file.close()


def test_the_kernel_forgets_a_file_that_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int]] = []
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append(("fsync", fd)))
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, _start, _length, what: calls.append((f"advice {what}", fd)))
    for way in ("dropped", "direct"):
        if way in ways_here(tmp_path):
            calls.clear()
            file = BlockFile(tmp_path, 8192, Access(4096, 1, way))
            file.drop_cache()
            names = [name for name, _ in calls]
            assert names == (["fsync", f"advice {os.POSIX_FADV_DONTNEED}"] if way == "dropped" else [])


@pytest.mark.parametrize("size", [1 << 60, 1 << 70])
def test_memory_that_cannot_be_had_for_a_file_is_a_clear_error(tmp_path: Path, size: int) -> None:
    with pytest.raises(BackendError):
        BlockFile(tmp_path / "new", size, Access(MIB, 4, "direct"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EINVAL, "Invalid argument; if O_DIRECT does not allow this path or block size, set direct = false"),
        (errno.EPERM, "Operation not permitted"),
    ],
)
def test_a_file_that_o_direct_does_not_suit_or_is_not_allowed_for_leaves_no_name(
    tmp_path: Path, number: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_direct(monkeypatch, number)
    with pytest.raises(BackendError, match=re.escape(said)):
        BlockFile(tmp_path, 8192, Access(4096, 1, "direct"))
    assert list(tmp_path.iterdir()) == []


# --- operations ------------------------------------------------------------------------------------------------------


def bound_at(folder: Path | None, op: str, way: Way = "dropped", size: int = 64 * 1024) -> Bound:
    storage_case = case(op, size, 1, dtype="float32", access=Access(8192, 2, way))
    send = torch.arange(size // 4, dtype=torch.float32)
    return Bound(storage_case, send, torch.zeros(size // 4), None, folder=folder)


@pytest.mark.parametrize("op", ["storage_write", "storage_read"])
def test_right_data_are_right_and_one_wrong_byte_is_seen(
    tmp_path: Path, op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation = LOCAL[op].bind(bound_at(tmp_path, op))
    for _ in range(2):  # a check before and after
        checked(operation)
        assert require(operation.wrong)() == 0
    real = os.pwrite

    def spoilt(fd: int, data: memoryview, start: int) -> int:
        changed = bytearray(data)
        changed[5] ^= 1 if start == 8192 else 0
        return real(fd, changed, start)

    monkeypatch.setattr(os, "pwrite", spoilt)
    checked(operation)
    assert operation.wrong is not None
    assert operation.wrong() == 1
    operation.free()


def checked(operation: Operation) -> None:
    assert operation.prepare is not None
    operation.prepare()
    operation.call()


@pytest.mark.parametrize("op", ["storage_write", "storage_read"])
def test_a_call_that_moves_nothing_is_seen(tmp_path: Path, op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    operation = LOCAL[op].bind(bound_at(tmp_path, op))
    checked(operation)
    assert operation.wrong is not None
    assert operation.wrong() == 0
    monkeypatch.setattr(BlockFile, "write" if op == "storage_write" else "read", lambda _file: None)
    checked(operation)
    assert operation.wrong() > 0
    operation.free()


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "device"), (errno.EDQUOT, "another"), (errno.EIO, "Input/output error")]
)
def test_a_full_disk_is_told_when_the_data_are_asked_for_and_not_between_samples(
    tmp_path: Path, number: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation = LOCAL["storage_write"].bind(bound_at(tmp_path, "storage_write"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", raising(number))
        checked(operation)
        operation.call()
    assert operation.wrong is not None
    with pytest.raises(BackendError) as error:
        operation.wrong()
    assert str(tmp_path) in str(error.value)
    assert words in str(error.value)
    checked(operation)
    assert operation.wrong() == 0  # the next one begins anew
    operation.free()


def raising(number: int) -> Callable[..., Any]:
    def fail(*_arguments: object) -> Any:  # noqa: ANN401 - it never returns
        raise OSError(number, os.strerror(number))

    return fail


class Gathered(Exception):
    """What torch raises on every rank: the errors of those that failed, with their stacks."""

    def __init__(self, failures: dict[int, tuple[BaseException, object]]) -> None:
        super().__init__("a page of stacks")
        self.failures = failures


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EACCES, "Permission denied"), "Permission denied"),
        (OSError(errno.ENOSPC, "No space left on device"), f"No space left on device; {files.MAKE_ROOM}"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), f"Disk quota exceeded; {files.MAKE_ROOM}"),
        (RuntimeError("unexpected pos 704 vs 598"), "unexpected pos 704 vs 598"),
    ],
)
def test_a_checkpoint_that_fails_advises_by_what_the_system_said(error: Exception, words: str, tmp_path: Path) -> None:
    assert checkpoint.in_words(error, tmp_path, MIB) == f"a checkpoint in {tmp_path}: {words}"
    message = checkpoint.in_words(Gathered({3: (error, None), 1: (error, None)}), tmp_path, MIB)
    assert message == f"a checkpoint in {tmp_path}: rank 1 says: {words}"


def test_a_checkpoint_whose_library_keeps_the_reason_to_itself_asks_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, folder = RuntimeError("unexpected pos 704 vs 598"), tmp_path / "checkpoint" / "step-1"
    begin = f"a checkpoint in {folder}: unexpected pos 704 vs 598"
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (4 * MIB, resource.RLIM_INFINITY))
    assert checkpoint.in_words(error, folder, 4 * MIB) == begin


def test_an_operation_without_a_folder_says_what_it_wants() -> None:
    with pytest.raises(BackendError):
        LOCAL["storage_write"].bind(bound_at(None, "storage_write"))


# --- in a block of samples -------------------------------------------------------------------------------------------


class Changed(WrappingBackend):
    """Binds as ``inner`` does, and then what ``change`` makes of it."""

    def __init__(self, inner: Backend, change: Callable[[Operation, int], Operation]) -> None:
        super().__init__(inner)
        self._change = change

    def bind(self, bound: Bound) -> Operation:
        return self._change(self.inner.bind(bound), self.rank)


def test_what_is_prepared_is_prepared_once_a_call_and_is_in_no_time() -> None:
    world = FakeWorld(2)
    steps: list[str] = []

    def prepared(operation: Operation, rank: int) -> Operation:
        clock = world.backends[rank].clock

        def prepare() -> None:
            clock.advance(1_000_000)
            steps.extend(["prepare"] if rank == 0 else [])

        def call() -> None:
            operation.call()
            steps.extend(["call"] if rank == 0 else [])

        return dataclasses.replace(operation, prepare=prepare, call=call)

    # Reading the clock costs so much that a sample would have several calls.
    made = measured(world, case("storage_read", 64, 2), timer_ns=1_000, wrap=lambda backend: Changed(backend, prepared))
    assert made.calls == 1
    assert set(made.groups[0].slowest_ns) == {1_000}
    assert steps == ["prepare", "call"] * (len(steps) // 2)
    assert len(steps) > 2 * len(made.groups[0].slowest_ns)


def test_what_failed_on_one_rank_fails_the_case_and_not_the_run() -> None:
    def spoilt(operation: Operation, rank: int) -> Operation:
        numbers = iter(range(100))

        def wrong() -> int:
            if rank == 1 and next(numbers) == 1:
                message = "the disk is full"
                raise BackendError(message)
            return 0

        return dataclasses.replace(operation, wrong=wrong)

    for row in measure_everywhere(
        FakeWorld(3), case("storage_write", 64, 3), wrap=lambda backend: Changed(backend, spoilt)
    ):
        assert isinstance(row, Failed)
        assert row.cause == "backend"


def test_what_was_bound_is_given_back_where_another_rank_could_not_bind() -> None:
    freed: list[int] = []

    def refusing(operation: Operation, rank: int) -> Operation:
        if rank == 1:
            message = "no room here"
            raise BackendError(message)
        return dataclasses.replace(operation, free=lambda: freed.append(rank))

    for row in measure_everywhere(
        FakeWorld(3), case("storage_write", 64, 3), wrap=lambda backend: Changed(backend, refusing)
    ):
        assert isinstance(row, Failed)
        assert row.cause == "backend"
    assert sorted(freed) == [0, 2]


# --- fio -------------------------------------------------------------------------------------------------------------


def test_fio_does_what_our_own_loop_does() -> None:
    job = require(files.fio_command("fio", "/x", 8 * MIB, Access(MIB, 4, "direct"), writes=True))
    wanted = (
        "--filename=/x --rw=write --size=8388608 --bs=1048576 --direct=1 --ioengine=libaio --iodepth=4 --end_fsync=1"
    )
    assert set(wanted.split()) <= set(job)
    job = require(files.fio_command("fio", "/x", 8192, Access(MIB, 1, "dropped"), writes=False))
    assert {"--rw=read", "--bs=8192", "--direct=0", "--ioengine=psync", "--invalidate=1"} <= set(job)
    assert files.fio_command("fio", "/x", 8192, Access(4096, 2, "dropped"), writes=False) is None


def fake_fio(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script = folder / "fio"
    script.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_the_rate_of_fio_has_its_version_and_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = '{"fio version": "fio-3.33", "jobs": [{"read": {"bw_bytes": 123456789}}]}'
    fake_fio(tmp_path, f"echo 'fio: a warning first'\necho '{output}'", monkeypatch)
    check = require(files.fio_check("/x", 8192, Access(4096, 1, "dropped"), 60.0, writes=False))
    assert (check.tool, check.version, check.bytes_per_second, check.error) == ("fio", "3.33", (123456789.0,), None)
    assert "--ioengine=psync" in check.settings
    assert "/x" not in check.settings


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("exit 1", "ValueError"),
        ("echo '{}'", "KeyError"),
        ('echo \'{"fio version": "fio-3", "jobs": [{"read": {"bw_bytes": 0}}]}\'; echo "no such engine" >&2', "engine"),
    ],
)
def test_a_fio_that_fails_has_no_rate_and_says_why(
    tmp_path: Path, body: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_fio(tmp_path, body, monkeypatch)
    check = require(files.fio_check("/x", 8192, Access(4096, 1, "dropped"), 60.0, writes=False))
    assert check.bytes_per_second == ()
    assert words in str(check.error)


def test_a_fio_that_does_not_end_is_given_up_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_fio(tmp_path, "exec sleep 30", monkeypatch)
    check = require(files.fio_check("/x", 8192, Access(4096, 1, "dropped"), 0.25, writes=False))
    assert check.error is not None


def test_fio_has_half_of_the_timeout_of_the_run() -> None:
    given: list[float] = []

    def timed(seconds: float) -> None:
        given.append(seconds)

    def with_check(operation: Operation, _rank: int) -> Operation:
        return dataclasses.replace(operation, other_tool=timed)

    timing = msgspec.structs.replace(QUICK, timeout_seconds=7.0)
    measured(
        FakeWorld(1), case("storage_read", 64, 1), timing=timing, wrap=lambda backend: Changed(backend, with_check)
    )
    assert given == [3.5]


def test_what_fio_leaves_out_of_a_file_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = '{"fio version": "fio-3.33", "jobs": [{"read": {"bw_bytes": 123456789}}]}'
    fake_fio(tmp_path, f"echo '{output}'", monkeypatch)
    for size, moved, said in ((3 * 65536 + 4096, 3 * 65536, "without the partial block of 4096 B"), (65536, 65536, "")):
        check = require(files.fio_check("/x", size, Access(65536, 1, "direct"), 60.0, writes=False))
        assert f"--size={moved} " in check.settings
        assert said in check.settings
        assert ("without" in check.settings) == bool(said)


@pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")
def test_fio_moves_whole_blocks_alone(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(2 * 65536 + 4096))
    job = require(
        files.fio_command("fio", str(tmp_path / "x"), 2 * 65536 + 4096, Access(65536, 1, "dropped"), writes=False)
    )
    output = subprocess.run(job, capture_output=True, text=True, check=True).stdout
    assert json.loads(output[output.index("{") :])["jobs"][0]["read"]["io_bytes"] == 2 * 65536


def test_without_fio_there_is_no_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert files.fio_check("/x", 8192, Access(4096, 1, "dropped"), 60.0, writes=False) is None


@pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")
@pytest.mark.parametrize("op", ["storage_write", "storage_read"])
def test_fio_itself_runs_on_the_file_that_has_no_name(tmp_path: Path, op: str) -> None:
    for way in ways_here(tmp_path):
        bound = bound_at(tmp_path, op, way, MIB)
        bound = dataclasses.replace(bound, case=case(op, MIB, 1, access=Access(65536, 1, way)))
        operation = LOCAL[op].bind(bound)
        checked(operation)
        assert operation.other_tool is not None
        check = operation.other_tool(60.0)
        assert check is not None
        assert check.error is None
        assert check.bytes_per_second[0] > 0
        operation.free()


# --- what is asked before anything is written ------------------------------------------------------------------------


def error_at(path: Path) -> str:
    return str(facts_at(path).error)


def test_a_folder_is_known_by_its_file_system(tmp_path: Path) -> None:
    facts = facts_at(tmp_path)
    assert facts.error is None
    assert facts.type
    assert facts.device
    assert str(tmp_path.resolve()).startswith(str(facts.mount))
    assert 0 < (facts.free_bytes or 0) < (facts.total_bytes or 0)
    assert (facts.no_direct is None) == (facts.way == "direct")
    assert list(tmp_path.iterdir()) == []
    assert storage.storage_facts(None) is None


def test_a_path_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert str(tmp_path / "a") in error_at(tmp_path / "a")
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert "folder" in error_at(tmp_path / "file")


@pytest.mark.parametrize(
    ("number", "words"), [(errno.EROFS, "read-only"), (errno.EACCES, "Permission"), (errno.ENOSPC, "accepts")]
)
def test_a_folder_that_takes_no_files_is_told(
    tmp_path: Path, number: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_where: raising(number)())
    assert words in error_at(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_of_somebody_else_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "writable" in error_at(tmp_path)
    tmp_path.chmod(0o700)


def mounted(monkeypatch: pytest.MonkeyPatch, kind: str, device: str) -> None:
    """Let the root be the only file system, of this kind."""
    root = SimpleNamespace(mountpoint="/", fstype=kind, device=device, opts="rw")
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_options: [root])


def refuse_direct(monkeypatch: pytest.MonkeyPatch, number: int = errno.EINVAL) -> None:
    real = os.open

    def opened(name: Any, flags: int, *more: Any, **others: Any) -> int:  # noqa: ANN401 - those of os.open
        if flags & os.O_DIRECT:
            raise OSError(number, os.strerror(number))
        return real(name, flags, *more, **others)

    monkeypatch.setattr(os, "open", opened)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EPERM, errno.EACCES])
def test_where_o_direct_is_not_possible_files_are_dropped_and_that_is_said(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_direct(monkeypatch, number)
    mounted(monkeypatch, "ext4", "/dev/sda")
    facts = facts_at(tmp_path)
    assert (facts.type, facts.device, facts.way) == ("ext4", "/dev/sda", "dropped")
    assert facts.no_direct is not None
    (caution,) = storage.cautions({"n0": HostFacts(storage=facts)})
    assert "O_DIRECT" in caution
    assert list(tmp_path.iterdir()) == []


def test_memory_is_called_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted(monkeypatch, "tmpfs", "tmpfs")
    facts = HostFacts(storage=facts_at(tmp_path))
    assert require(facts.storage).way == "memory"
    (caution,) = storage.cautions({"n0": facts, "n1": facts})
    assert caution.endswith("tmpfs is in memory; data written and read there never leave memory")


def rank_of(host: str, free: int, *, kind: str = "ext4", device: str = "/dev/sda") -> HostFacts:
    facts = StorageFacts(path="/scratch", type=kind, device=device, number=8, free_bytes=free, way="direct")
    return HostFacts(host=host, boot_id=f"boot of {host}", storage=facts)


def obstacle(facts: Sequence[HostFacts], op: str = "storage_write", size: int = 1 << 30) -> str | None:
    return storage.obstacle(case(op, size, len(facts)), facts)


def test_ranks_of_one_file_system_need_their_room_together() -> None:
    enough, little = 3 << 30, 2 << 30
    assert obstacle([rank_of("a", enough), rank_of("a", enough)]) is None
    refused = require(obstacle([rank_of("a", little), rank_of("a", little)]))
    assert obstacle([rank_of("a", little), rank_of("a", little)], "checkpoint_save") == refused
    assert obstacle([rank_of("a", little), rank_of("a", little)], "all_reduce") is None
    assert obstacle([rank_of("a", little), rank_of("b", little)]) is None  # a drive of its own in each
    shared = [rank_of(host, little, kind="nfs4", device="server:/export") for host in ("a", "b")]
    assert obstacle(shared) is not None


def test_a_small_file_has_a_margin_too() -> None:
    assert obstacle([rank_of("a", 17 << 20)], size=1 << 20) is None
    assert obstacle([rank_of("a", 16 << 20)], size=1 << 20) is not None


def test_hosts_without_the_path_are_named() -> None:
    broken = [
        HostFacts(host=host, storage=StorageFacts(path="/scratch", error=f"/scratch on {host} does not exist; …"))
        for host in ("b", "c", "b")
    ]
    assert obstacle([rank_of("a", 9 << 30), *broken]) == (
        "files cannot be created: /scratch on b does not exist; …; a similar problem on c"
    )


def test_the_worst_way_of_any_rank_is_that_of_all() -> None:
    ways = [
        StorageFacts(path="/scratch", way="direct"),
        StorageFacts(path="/scratch", way="memory"),
        StorageFacts(path="/scratch", way="dropped"),
    ]
    assert storage.way_of_all(ways[:1]) == "direct"
    assert storage.way_of_all([ways[0], ways[2]]) == "dropped"
    assert storage.way_of_all(ways) == "memory"
    assert storage.way_of_all([None, StorageFacts(path="/scratch")]) == "direct"


def test_the_folder_of_a_run_is_known_by_its_name_and_is_removed_whatever_is_in_it(tmp_path: Path) -> None:
    folder = storage.files_folder(str(tmp_path), "run-1")
    assert folder == tmp_path / "busbw-files-run-1"
    (folder / "checkpoint" / "step-1").mkdir(parents=True)
    (folder / "checkpoint" / "step-1" / "__0_0.distcp").write_text("x", encoding="utf-8")
    storage.remove_files(folder)
    storage.remove_files(folder)
    storage.remove_files(storage.files_folder(None, "run-1"))
    assert list(tmp_path.iterdir()) == []
