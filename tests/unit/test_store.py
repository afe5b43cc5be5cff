"""The run folder under everything that can befall it: torn lines, damage, full disks, newer formats, bad names."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from busbw.errors import DamagedRun, StoreError, UsageError
from busbw.runs import store
from busbw.runs.cases import expand
from busbw.runs.facts import HostFacts
from busbw.runs.files import document, replaced, temporary_folder
from busbw.runs.plan import LogPlan, Plan
from busbw.runs.progress import outline, outline_of
from busbw.runs.records import (
    QUANTILES,
    SCHEMA,
    BackendTraits,
    Case,
    Check,
    Ended,
    Failed,
    GroupSamples,
    LaunchStarted,
    Measurement,
    RankSamples,
    Row,
    Skipped,
)
from busbw.runs.resume import plan_of
from busbw.runs.run import Run, document_of

RUNS = Path(__file__).parents[1] / "data" / "runs"

CASE = Case(
    op="all_reduce", backend="gloo", device="cpu", dtype="float32", redop="sum", size_bytes=1048576, ranks=2, nodes=1
)
BARRIER = Case(op="barrier", backend="gloo", device="cpu", dtype=None, redop=None, size_bytes=0, ranks=2, nodes=1)
NEVER = Case(op="reduce", backend="gloo", device="cpu", dtype="int8", redop="max", size_bytes=8, ranks=2, nodes=1)

LAUNCH = LaunchStarted(
    launch=0,
    started="2026-01-01T00:00:00.000Z",
    order_seed=7,
    hosts=("a", "a"),
    pids=(1, 2),
    timer_ns=(70, 71),
    shared_clock=True,
    load_average=0.5,
)
SKIPPED = Skipped(case=BARRIER, reason="not here")
FAILED = Failed(case=CASE, launch=0, block=1, error="wrong data", cause="wrong_data")
ENDED = Ended(status="complete", reason=None, ended="2026-01-01T00:01:00.000Z")


def measurement(samples: int = 3, block: int = 0) -> Measurement:
    ranks = (0, 1)
    return Measurement(
        case=CASE,
        launch=0,
        block=block,
        calls=1,
        first_call_ns=5000,
        warmup_calls=5,
        stop_reason="converged",
        check=Check(state="verified"),
        started="2026-01-01T00:00:01.000Z",
        elapsed_ns=10**6,
        groups=(
            GroupSamples(
                ranks=ranks,
                bus_factor=1.0,
                wire_bytes=2.0 * CASE.size_bytes,
                slowest_ns=(1200,) * samples,
                fastest_ns=(1100,) * samples,
                fastest_rank=(1,) * samples,
                arrival_skew_ns=None,
                exit_span_ns=None,
                per_rank=tuple(
                    RankSamples(rank=rank, quantiles_ns=(1100,) * len(QUANTILES), samples_ns=None) for rank in ranks
                ),
            ),
        ),
    )


RUNS = Path(__file__).parents[1] / "data" / "runs"


def a_run(**changes: Any) -> Run:  # noqa: ANN401 - any field of a run
    fields: dict[str, Any] = {
        "schema": SCHEMA,
        "id": "abc",
        "busbw": "0.dev0",
        "machine": "host",
        "started": "2026-01-01T00:00:00.000Z",
        "launcher": "local",
        "plan": LogPlan(name="test"),
        "cases": (CASE, BARRIER, NEVER),
        "adjusted": (),
        "hosts": ("a", "a"),
        "environments": {"a": HostFacts(kernel="6")},
        "backend": BackendTraits(cost_models="gloo"),
    }
    return Run(**fields | changes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A new run folder with its run.json and no rows."""
    made = store.create(tmp_path / "results", "host")
    store.write_run(made, a_run())
    return made


def write(folder: Path, *rows: Row) -> Path:
    with store.Appender(folder) as appender:
        for row in rows:
            appender.append(row)
    return folder / store.SAMPLES_FILE


def without_checksum(end: Ended | None) -> Ended:
    """An end as it was before the appender filled it in."""
    assert end is not None
    return msgspec.structs.replace(end, rows=None, checksum=None)


def test_what_was_appended_is_read_in_order_and_sorted_by_kind(folder: Path) -> None:
    rows: tuple[Row, ...] = (LAUNCH, measurement(), SKIPPED, FAILED, ENDED)
    write(folder, *rows)
    stored = store.read(folder)
    assert stored.rows == (*rows[:-1], stored.end)
    assert stored.warnings == ()
    assert stored.run == a_run()
    assert (stored.launches, stored.skipped, stored.failed) == ((LAUNCH,), (SKIPPED,), (FAILED,))
    assert stored.measurements == (measurement(),)
    assert without_checksum(stored.end) == ENDED
    assert stored.not_reached == (NEVER,)


def test_a_run_without_rows_loads_and_has_no_end(folder: Path) -> None:
    stored = store.read(folder)
    assert (stored.rows, stored.end, len(stored.not_reached)) == ((), None, 3)


def test_each_row_is_on_the_disk_before_append_returns(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: written.append(os.fstat(file).st_size))
    with store.Appender(folder) as appender:
        for _ in range(3):
            appender.append(SKIPPED)
            assert written[-1] == (folder / store.SAMPLES_FILE).stat().st_size


def test_a_tail_torn_at_any_byte_loads_with_a_warning(folder: Path) -> None:
    path = write(folder, LAUNCH, SKIPPED, measurement(block=12))
    content = path.read_bytes()
    start = content.rindex(b"\n", 0, -1) + 1
    for length in range(1, len(content) - start):
        path.write_bytes(content[: start + length])
        stored = store.read(folder)
        assert stored.rows == (LAUNCH, SKIPPED)
        (warning,) = stored.warnings
        assert str(path) in warning


@pytest.mark.parametrize("tail", [b"\0" * 4096, b"\xff\xfe", b'{"kind":"skipped","case":{"op":"\xff","x', b"[" * 10**5])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_garbage_at_the_end_is_a_torn_tail(folder: Path, tail: bytes, end: bytes) -> None:
    path = write(folder, SKIPPED)
    with path.open("ab") as file:
        file.write(tail + end)
    stored = store.read(folder)
    assert stored.rows == (SKIPPED,)
    assert len(stored.warnings) == 1


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"\0\0\0", b"\xff", b"[" * 10**5, b'{"kind":"skipped"}', b'{"kind":"end","status":"happy"}']
)
def test_damage_before_the_last_line_names_the_file_and_the_line(folder: Path, damage: bytes) -> None:
    path = write(folder, LAUNCH, SKIPPED, FAILED, ENDED)
    lines = path.read_bytes().split(b"\n")
    lines[2] = damage
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(DamagedRun, match="line 3: ") as caught:
        store.read(folder)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("written", "words"), [(b"NaN", "invalid character"), (b"0", "selftest"), (b"-5", "durations"), (b"null", "groups")]
)
def test_a_time_that_is_none_is_named_with_its_line_and_what_to_do(folder: Path, written: bytes, words: str) -> None:
    path = write(folder, LAUNCH, measurement(), ENDED)
    content = path.read_bytes()
    changed = re.sub(rb'("slowest_ns":\[)\d+', rb"\g<1>" + written, content)
    assert changed != content
    path.write_bytes(changed)
    with pytest.raises(DamagedRun, match=f"line 2: .*{words}") as caught:
        store.read(folder)
    assert str(path) in str(caught.value)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_is_more_than_an_error_of_the_store(folder: Path, data: st.DataObject) -> None:
    path = folder / store.SAMPLES_FILE
    path.unlink(missing_ok=True)
    write(folder, LAUNCH, measurement(), ENDED)
    content = bytearray(path.read_bytes())
    start = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(start, len(content)))
    content[start:end] = data.draw(st.binary(max_size=30))
    path.write_bytes(content)
    try:
        store.read(folder)
    except StoreError as error:
        assert "line " in str(error)  # noqa: PT017 - either it loads or it names the line


def test_the_appender_cuts_a_torn_tail_and_goes_on(folder: Path) -> None:
    path = write(folder, LAUNCH, measurement(samples=30_000))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    write(folder, SKIPPED)
    stored = store.read(folder)
    assert stored.rows == (LAUNCH, SKIPPED)
    assert stored.warnings == ()


@pytest.mark.parametrize("damage", [b"{}\n", b"\x00\x00\n", b"\n"])
def test_the_appender_cuts_a_damaged_last_line_which_would_be_in_the_middle_then(folder: Path, damage: bytes) -> None:
    path = write(folder, LAUNCH)
    path.write_bytes(path.read_bytes() + damage)
    write(folder, SKIPPED)
    stored = store.read(folder)
    assert stored.rows == (LAUNCH, SKIPPED)
    assert stored.warnings == ()


def test_text_that_is_no_utf8_is_escaped_and_not_fatal(folder: Path) -> None:
    hostile = os.fsdecode(b"/data/\xff")
    write(folder, Failed(case=CASE, launch=0, block=0, error=hostile, cause="backend"))
    store.write_run(folder, a_run(environments={"a": HostFacts(kernel=hostile, variables={hostile: hostile})}))
    stored = store.read(folder)
    assert stored.failed[0].error == "/data/\\udcff"
    escaped = "/data/\\udcff"
    assert stored.run.environments == {"a": HostFacts(kernel=escaped, variables={escaped: escaped})}


@pytest.mark.parametrize(("schema", "version"), [(SCHEMA + 1, "0.2.0"), (99, None)])
def test_another_schema_is_refused(folder: Path, schema: int, version: str | None) -> None:
    document = {**msgspec.to_builtins(a_run()), "schema": schema, "busbw": version}
    (folder / store.RUN_FILE).write_bytes(msgspec.json.encode(document))
    for reader in (store.read, store.read_run, outline):
        with pytest.raises(StoreError) as refused:
            reader(folder)
        assert refused.value.code == "newer-schema"


@pytest.mark.parametrize(
    ("version", "code"),
    [("9999.0", "newer-schema"), ("9999.0.dev1", "newer-schema"), ("0.dev0", "damaged-run"), ("", "damaged-run")],
)
@pytest.mark.parametrize("place", ["run", "plan", "row"])
def test_what_a_newer_busbw_wrote_is_not_taken_for_damage(folder: Path, version: str, code: str, place: str) -> None:
    document = msgspec.to_builtins(document_of(a_run(busbw=version)))
    end = msgspec.to_builtins(Ended(status="complete", reason=None, ended=""))
    {"run": document, "plan": document["plan"], "row": end}[place]["key_of_tomorrow"] = 1
    (folder / store.RUN_FILE).write_bytes(msgspec.json.encode(document))
    (folder / store.SAMPLES_FILE).write_bytes((msgspec.json.encode(end) + b"\n") * 2)
    with pytest.raises(StoreError) as refused:
        store.read(folder)
    assert refused.value.code == code
    assert (version in str(refused.value)) == (code == "newer-schema") or not version


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"[" * 10**5,
        b"{}",
        b'{"schema": 0}',
        b'{"schema": "1"}',
        b'{"schema": 1}',
        b'{"schema": true}',
        b'{"schema": 3, "plan": {"x": NaN}}',
    ],
)
def test_a_damaged_run_file_is_named(folder: Path, content: bytes) -> None:
    path = folder / store.RUN_FILE
    path.write_bytes(content)
    with pytest.raises(DamagedRun) as caught:
        store.read(folder)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("stored", sorted(RUNS.iterdir()), ids=lambda path: path.name)
def test_runs_that_were_stored_earlier_are_read_whole(stored: Path) -> None:
    run = store.read(stored)
    assert (run.warnings, run.not_reached, len(run.launches)) == ((), (), 2)
    assert run.end is not None
    assert (run.end.status, run.end.rows) == ("complete", len(run.rows) - 1)
    assert run.end.checksum is not None
    assert expand(plan_of(run.run, None), 2, 1).cases == run.run.cases
    assert outline(stored) == outline_of(run)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    mount, unmount = shutil.which("mount"), shutil.which("umount")
    if mount is None or unmount is None or os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    made = subprocess.run([mount, "-t", "tmpfs", "-o", "size=64k", "busbw-test", place], check=False)
    if made.returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield place
    subprocess.run([unmount, place], check=True)


def test_a_full_disk_keeps_the_rows_before(small_disk: Path) -> None:
    folder = store.create(small_disk, "host")
    store.write_run(folder, a_run())
    kept = 0
    with store.Appender(folder) as appender:
        appender.append(LAUNCH)
        with pytest.raises(StoreError, match="kept"):  # noqa: PT012
            for kept in range(1000):  # until it is full; which row that is depends on the page size
                appender.append(measurement(block=kept))
        assert 0 < kept < 1000
        appender.append(ENDED)  # a smaller row may still fit
    stored = store.read(folder)
    assert stored.warnings == ()
    assert [row.block for row in stored.measurements] == list(range(kept))
    assert without_checksum(stored.end) == ENDED


def test_a_full_disk_leaves_no_half_of_a_run_file(small_disk: Path) -> None:
    folder = store.create(small_disk, "host")
    (small_disk / "ballast").write_bytes(b"\0" * (60 << 10))
    with pytest.raises(StoreError, match="space"):
        store.write_run(folder, a_run(plan=LogPlan(name="x" * (64 << 10))))
    assert list(folder.iterdir()) == []


LIMITED = """
import resource, sys
from pathlib import Path
sys.path[:0] = {paths!r}
import msgspec
from busbw.runs import store
from busbw.runs.records import Skipped
row = msgspec.convert({row!r}, Skipped)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
with store.Appender(Path({folder!r})) as appender:
    for _ in range(100):
        appender.append(row)
"""


def test_a_file_that_may_not_grow_keeps_the_rows_before(folder: Path) -> None:
    source = LIMITED.format(paths=sys.path, row=msgspec.to_builtins(SKIPPED), folder=str(folder))
    ran = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert "StoreError" in ran.stderr
    assert os.strerror(errno.EFBIG) in ran.stderr
    stored = store.read(folder)
    assert stored.warnings == ()
    line = len((folder / store.SAMPLES_FILE).read_bytes()) // len(stored.rows)
    assert len(stored.rows) == 2000 // line


def test_a_results_folder_in_the_way_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file")
    with pytest.raises(UsageError, match="--results-dir"):
        store.create(tmp_path / "results", "host")


UNPRIVILEGED = """
import os, sys
from pathlib import Path
sys.path[:0] = {paths!r}
from busbw import errors
from busbw.runs import store
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    store.create(Path({folder!r}), "host")
except errors.UsageError as error:
    print(error)
try:
    store.find(Path({folder!r}), {closed!r})
except errors.StoreError as error:
    print(error)
"""


def test_an_unwritable_results_folder_names_the_option(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "run").mkdir(parents=True)
    closed.chmod(0o000)
    source = UNPRIVILEGED.format(paths=sys.path, folder=str(closed), closed=str(closed / "run"))
    try:
        ran = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    finally:
        closed.chmod(0o700)
    first, second = ran.stdout.splitlines()
    assert "Permission" in first
    assert "--results-dir" in first
    assert "Permission" in second


@pytest.mark.parametrize(
    ("machine", "slug"),
    [
        ("node-1.site", "node-1.site"),
        ("a 0", "a-0"),
        ("a'; echo foo", "a-echo-foo"),
        ("../..", "machine"),
        ("", "machine"),
    ],
)
def test_a_hostile_machine_name_stays_one_folder(tmp_path: Path, machine: str, slug: str) -> None:
    folder = store.create(tmp_path, machine)
    assert folder.parent == tmp_path / slug


def several(results_dir: Path, *names: str) -> list[Path]:
    made = [results_dir / name for name in names]
    for folder in made:
        folder.mkdir(parents=True)
        store.write_run(folder, a_run())
    return made


def test_runs_come_oldest_first_whatever_the_machine(tmp_path: Path) -> None:
    late, early = several(tmp_path, "a/20260102T000000.000Z-aaaaaa", "b/20260101T000000.000Z-bbbbbb")
    assert list(store.folders(tmp_path)) == [early, late]
    assert store.find(tmp_path, "latest") == late


def test_a_run_is_found_by_path_name_start_end_and_latest(tmp_path: Path) -> None:
    first, second = several(tmp_path, "host/20260101T000000.000Z-aaaaaa", "host/20260102T000000.000Z-bbbbbb")
    assert store.find(tmp_path, str(first)) == first
    assert store.find(tmp_path / "elsewhere", str(first / store.RUN_FILE)) == first
    assert store.find(tmp_path, first.name) == first
    assert store.find(tmp_path, "20260101") == first
    assert store.find(tmp_path, "bbbbbb") == second
    assert store.find(tmp_path, "latest") == second


def test_a_label_names_a_run_before_a_part_of_a_name_does(tmp_path: Path) -> None:
    first, second = several(tmp_path, "host/20260101T000000.000Z-aaaaaa", "host/20260102T000000.000Z-bbbbbb")
    store.write_run(first, msgspec.structs.replace(a_run(), plan=LogPlan(name="test", label="b")))
    assert store.find(tmp_path, "b") == first
    assert store.find(tmp_path, "bbb") == second
    (second / store.RUN_FILE).write_text("{", encoding="utf-8")
    assert store.find(tmp_path, "b") == first
    store.write_run(second, msgspec.structs.replace(a_run(), plan=LogPlan(name="test", label="b")))
    with pytest.raises(UsageError, match="ambiguous"):
        store.find(tmp_path, "b")


@pytest.mark.parametrize("selector", ["", "nothing", "x" * 5000, "\0", "latest"])
def test_a_run_that_is_not_there_is_an_error(tmp_path: Path, selector: str) -> None:
    if selector != "latest":
        several(tmp_path, "host/20260101T000000.000Z-aaaaaa")
    with pytest.raises((StoreError, UsageError)):
        store.find(tmp_path, selector)


def test_a_folder_of_runs_given_as_a_run_names_the_option_for_it(tmp_path: Path) -> None:
    several(tmp_path / "mine", "host/20260101T000000.000Z-aaaaaa", "host/20260102T000000.000Z-bbbbbb")
    for folder in ("mine", "mine/host"):
        with pytest.raises(UsageError) as caught:
            store.find(tmp_path / "results", str(tmp_path / folder))
        assert f"--results-dir {tmp_path / 'mine'}" in str(caught.value)
        assert str(tmp_path / "mine/host/20260102T000000.000Z-bbbbbb") in str(caught.value)
    (tmp_path / "empty").mkdir()
    for selector, words in (("empty", "an empty folder"), ("absent", "not found")):
        with pytest.raises(UsageError, match=words) as refused:
            store.find(tmp_path / "results", str(tmp_path / selector))
        assert refused.value.code == "no-such-run"


def test_two_runs_that_answer_are_both_named(tmp_path: Path) -> None:
    runs = several(tmp_path, "host/20260101T000000.000Z-aaaaaa", "host/20260101T000000.000Z-bbbbbb")
    with pytest.raises(UsageError, match="ambiguous") as caught:
        store.find(tmp_path, "20260101")
    assert all(folder.name in str(caught.value) for folder in runs)


def test_a_pipe_is_written_to_and_not_replaced() -> None:
    reading, writing = os.pipe()
    with replaced(Path(f"/dev/fd/{writing}")) as file:
        file.write(b"rows")
    assert os.read(reading, 8) == b"rows"
    os.close(reading)
    os.close(writing)


def test_a_file_is_replaced_by_the_last_of_two_writers_and_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to("real/file")
    with replaced(link) as last:
        last.write(b"last")
        with replaced(link) as first:
            first.write(b"the first one")
        assert link.read_bytes() == b"the first one"
    assert (link.is_symlink(), link.read_bytes()) == (True, b"last")
    for error in (StoreError, KeyboardInterrupt):
        with pytest.raises(error), replaced(link):
            raise error
    assert [path.name for path in (tmp_path / "real").iterdir()] == ["file"]
    assert link.read_bytes() == b"last"


def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.touch()
    target.chmod(0o664)
    with replaced(target) as file:
        file.write(b"rows")
    assert target.stat().st_mode & 0o777 == 0o664


def test_a_name_as_long_as_a_file_system_allows_is_replaced(tmp_path: Path) -> None:
    with replaced(tmp_path / ("x" * 255)) as file:
        file.write(b"rows")


def test_a_folder_that_cannot_be_read_hides_no_run(tmp_path: Path) -> None:
    (there,) = several(tmp_path, "host/20260101T000000.000Z-aaaaaa")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "host/zloop").symlink_to("zloop")  # no name of a run
    assert list(store.folders(tmp_path)) == [there]
    closed = tmp_path / "host/20260102T000000.000Z-closed"
    closed.symlink_to(closed.name)
    assert list(store.folders(tmp_path)) == [there, closed]
    with pytest.raises(StoreError, match="closed"):
        outline(closed)


def test_a_small_document_takes_little_memory(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(b"{}")
    tracemalloc.start()
    try:
        assert document(tmp_path / "run.json") == b"{}"
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_temporary_folder_that_cannot_be_made_is_an_error_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    with pytest.raises(StoreError, match="TMPDIR") as caught, temporary_folder("busbw-"):
        pass
    assert caught.value.code == "no-temporary-folder"


@pytest.mark.parametrize("name", ["settings", "training", "mpi-modes"])
def test_a_stored_plan_is_a_plan_and_is_stored_with_all_its_keys(name: str, tmp_path: Path) -> None:
    run = store.read_run(RUNS / name)
    assert isinstance(run.plan, Plan)
    store.write_run(tmp_path, run)
    assert store.read_run(tmp_path) == run
    then, now = (json.loads((folder / store.RUN_FILE).read_bytes()) for folder in (RUNS / name, tmp_path))
    for old, new in ((then["plan"], now["plan"]), *zip(then["plan"]["sweep"], now["plan"]["sweep"], strict=True)):
        assert {key: new[key] for key in old if key != "sweep"} == {key: old[key] for key in old if key != "sweep"}
