"""Large runs are packed and unpacked: the same rows either way, and never half of one."""

import gzip
from pathlib import Path

import pytest
from testing.narrow import require
from testing.synthetic import SyntheticEnd, case, synthetic_run, write_synthetic

from busbw.errors import DamagedRun, StoreError
from busbw.launch.run_session import RunSession
from busbw.runs import store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_synthetic(tmp_path, synthetic_run([case("all_reduce", 1024)], launches=3))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_packed_run_reads_as_before_and_unpacks_to_the_same_bytes(folder: Path) -> None:
    plain, before = (folder / store.SAMPLES_FILE).read_bytes(), store.read(folder).rows
    store.pack(folder, least_bytes=0)
    assert names(folder) == [store.RUN_FILE, store.PACKED_FILE]
    assert len((folder / store.PACKED_FILE).read_bytes()) < len(plain) / 2
    assert store.read(folder).rows == before
    store.unpack(folder)
    assert names(folder) == [store.RUN_FILE, store.SAMPLES_FILE]
    assert (folder / store.SAMPLES_FILE).read_bytes() == plain


def test_small_runs_and_runs_without_samples_stay_as_they_are(folder: Path, tmp_path: Path) -> None:
    store.pack(folder)
    assert names(folder) == [store.RUN_FILE, store.SAMPLES_FILE]
    store.unpack(folder)
    assert names(folder) == [store.RUN_FILE, store.SAMPLES_FILE]
    store.pack(tmp_path / "nothing here", least_bytes=0)


def test_a_large_run_is_packed_when_it_ends_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.pack, "__defaults__", (0,))
    folder = write_synthetic(tmp_path, synthetic_run([case("all_reduce", 1024)], end=SyntheticEnd(ended=None)))
    RunSession(folder, ()).complete(0)
    assert names(folder) == [store.RUN_FILE, store.PACKED_FILE]
    end = require(store.read(folder).end)
    assert end.status == "complete"


def test_whatever_is_beside_an_archive_does_not_count(folder: Path) -> None:
    """A writer that died between the two steps of packing, or in the middle of unpacking, leaves both files."""
    rows = store.read(folder).rows
    plain = (folder / store.SAMPLES_FILE).read_bytes()
    store.pack(folder, least_bytes=0)
    for left in (b"", plain[:100], plain):
        (folder / store.SAMPLES_FILE).write_bytes(left)
        assert store.read(folder).rows == rows
    store.unpack(folder)
    assert store.read(folder).rows == rows


@pytest.mark.parametrize("was_packed", [False, True])
def test_a_run_that_is_packed_or_unpacked_while_it_is_read_is_read_whole(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    was_packed: bool,  # noqa: FBT001
) -> None:
    rows = store.read(folder).rows
    if was_packed:
        store.pack(folder, least_bytes=0)
    name = store.PACKED_FILE if was_packed else store.SAMPLES_FILE
    read_bytes = Path.read_bytes

    def overtaken(path: Path) -> bytes:
        if path.name == name:
            monkeypatch.setattr(Path, "read_bytes", read_bytes)
            if was_packed:
                store.unpack(folder)
            else:
                store.pack(folder, least_bytes=0)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", overtaken)
    assert store.read(folder).rows == rows


def test_a_broken_archive_is_damage_and_is_left_alone(folder: Path) -> None:
    store.pack(folder, least_bytes=0)
    packed = folder / store.PACKED_FILE
    for broken in (packed.read_bytes()[:-20], b"no archive", gzip.compress(b"{")[:5]):
        packed.write_bytes(broken)
        with pytest.raises(DamagedRun, match=store.PACKED_FILE):
            store.read(folder)
        with pytest.raises(StoreError):
            store.unpack(folder)
        assert packed.read_bytes() == broken


def test_a_disk_without_room_keeps_the_plain_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", full)
    store.pack(folder, least_bytes=0)
    assert names(folder) == [store.RUN_FILE, store.SAMPLES_FILE]
