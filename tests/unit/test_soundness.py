"""What a run says is held against itself: a row twice, a row too few, numbers that contradict each other."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec
import pytest
from exhaustive import trials
from fuzz_folders import campaign
from testing.fakes import FakeBackend, FakeWorld
from testing.synthetic import SyntheticEnd, case, synthetic_run, write_synthetic

from busbw.backends.base import World
from busbw.cli import listing
from busbw.errors import DamagedRun, StoreError
from busbw.launch import worker
from busbw.launch.run_session import Listener
from busbw.ops import TRAINED
from busbw.runs import store
from busbw.runs.plan import Plan, Sweep, Timing
from busbw.runs.progress import outline, outline_of, progress_of
from busbw.runs.records import JSON, Ended, Failed
from busbw.runs.resume import lack_of
from busbw.runs.store import pack, unpack
from busbw.slurm import jobs as slurm_runs
from busbw_analysis.data.imported import LogFacts
from busbw_analysis.data.sources import find

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(params=["mpi-modes", "settings", "training"])
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A measured run."""
    return Path(shutil.copytree(DATA / "runs" / request.param, tmp_path / "vm" / "golden"))


def rows_of(folder: Path) -> list[JSON]:
    return [json.loads(line) for line in (folder / store.SAMPLES_FILE).read_text(encoding="utf-8").splitlines()]


def put(folder: Path, rows: list[JSON], *, with_end: bool) -> None:
    """Rows in the place of those that are there; without the end no checksum is in the way of other checks."""
    kept = [row for row in rows if with_end or row["kind"] != "end"]
    (folder / store.SAMPLES_FILE).write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")


@pytest.mark.parametrize("ended", [True, False])
def test_a_block_that_is_there_twice_is_refused(golden: Path, ended: bool) -> None:  # noqa: FBT001
    rows = rows_of(golden)
    place = next(number for number, row in enumerate(rows) if row["kind"] == "measurement")
    put(golden, [*rows[: place + 1], rows[place], *rows[place + 1 :]], with_end=ended)
    with pytest.raises(DamagedRun, match=f"line {place + 2}: line {place + 1} has the same block"):
        store.read(golden)


def test_a_launch_begins_once(golden: Path) -> None:
    rows = rows_of(golden)
    put(golden, [rows[0], *rows], with_end=False)
    with pytest.raises(DamagedRun):
        store.read(golden)


@pytest.mark.parametrize("text", ["", "yesterday", "2026-01-02", "2026-01-02T03:04:05.000", "A" * 5000])
@pytest.mark.parametrize("key", ["started", "ended"])
def test_a_row_has_the_time_of_a_clock_that_is_known(golden: Path, key: str, text: str) -> None:
    rows = rows_of(golden)
    place = next(number for number, row in enumerate(rows) if key in row)
    rows[place].update({key: text}, **({"checksum": None, "rows": None} if key == "ended" else {}))
    put(golden, [row for row in rows if key in row or row["kind"] != "end"], with_end=True)
    with pytest.raises(DamagedRun, match=key):
        store.read(golden)


def test_an_operation_of_data_has_some(tmp_path: Path) -> None:
    folder = write_synthetic(tmp_path, synthetic_run([case("all_reduce", 0), case("barrier", 0)]))
    with pytest.raises(DamagedRun, match="size_bytes"):
        store.read(folder)


def _without_a_row(lines: list[bytes]) -> list[bytes]:
    return [*lines[:2], *lines[3:]]


def _with_another_digit(lines: list[bytes]) -> list[bytes]:
    return [lines[0].replace(b'"pids":[', b'"pids":[1'), *lines[1:]]


def _in_another_order(lines: list[bytes]) -> list[bytes]:
    return [lines[0], lines[2], lines[1], *lines[3:]]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("change", [_without_a_row, _with_another_digit, _in_another_order])
def test_what_was_changed_before_the_end_is_refused(
    change: Callable[[list[bytes]], list[bytes]],
    packed: bool,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    folder = Path(shutil.copytree(DATA / "runs" / "training", tmp_path / "golden"))
    path = folder / store.SAMPLES_FILE
    lines = path.read_bytes().splitlines(keepends=True)
    changed = change(lines)
    path.write_bytes(b"".join(changed))
    if packed:
        pack(folder, least_bytes=0)
    with pytest.raises(DamagedRun, match=f"line {len(changed)}: "):
        store.read(folder)
    unpack(folder)
    path.write_bytes(b"".join(lines))
    assert store.read(folder).warnings == ()


def test_every_end_of_a_resumed_run_is_held_against_the_rows_before_it(tmp_path: Path) -> None:
    cases = [case("all_reduce", 8), case("all_reduce", 64)]
    whole = synthetic_run(cases, launches=2)
    end = Ended(status="interrupted", reason="Ctrl-C", ended="2026-01-01T00:00:00.000Z")
    rows = (*whole.rows[:3], end, *whole.rows[3:])
    folder = write_synthetic(tmp_path, store.StoredRun(whole.path, whole.run, rows, ()))
    ends = [row for row in store.read(folder).rows if isinstance(row, Ended)]
    assert [row.rows for row in ends] == [3, len(rows) - 1]
    path = folder / store.SAMPLES_FILE
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], *lines[3:]]))
    with pytest.raises(DamagedRun):
        store.read(folder)


def _group(**changes: JSON) -> Callable[[JSON], None]:
    return lambda row: row["groups"][0].update(changes)


def _first(name: str, value: int) -> Callable[[JSON], None]:
    return lambda row: row["groups"][0][name].__setitem__(0, value)


def _rank(**changes: JSON) -> Callable[[JSON], None]:
    return lambda row: row["groups"][0]["per_rank"][0].update(changes)


FLAWS: dict[str, tuple[Callable[[JSON], None], str]] = {
    "calls": (lambda row: row.update(calls=-1), r">= 1 - at `\$.calls`"),
    "no calls": (lambda row: row.update(calls=0), r">= 1 - at `\$.calls`"),
    "many calls": (lambda row: row.update(calls=2**40), r"<= 2147483647 - at `\$.calls`"),
    "block": (lambda row: row.update(block=-1), r">= 0 - at `\$.block`"),
    "elapsed": (lambda row: row.update(elapsed_ns=2**62), r"at `\$.elapsed_ns`"),
    "no group": (lambda row: row.update(groups=[]), "groups is empty"),
    "group twice": (lambda row: row.update(groups=[row["groups"][0]] * 2), "the same ranks twice"),
    "another case": (lambda row: row["case"].update(size_bytes=12345), "not one of the cases in run.json"),
    "negative factor": (_group(bus_factor=-1.0), "bus_factor is -1.0, but .* has 1.0"),
    "large factor": (_group(bus_factor=1e9), "bus_factor is 1000000000.0"),
    "no factor": (_group(bus_factor=None), "bus_factor is None"),
    "moved": (_group(traffic_factor=0.0), "traffic_factor 0"),
    "wire": (_group(wire_bytes=-1.0), "wire_bytes is -1"),
    "slower than the slowest": (_first("fastest_ns", 10**12), "fastest_ns is above slowest_ns"),
    "beyond 64 bits": (_first("slowest_ns", 2**63), r"at `\$.groups\[0\].slowest_ns\[0\]`"),
    "fastest rank": (_first("fastest_rank", 7), "fastest_rank names a rank"),
    "disturbed": (_group(disturbed=[99]), "disturbed is not an ascending list"),
    "rank": (_rank(rank=5), "per_rank does not list"),
    "few quantiles": (_rank(quantiles_ns=[5, 6]), "quantiles_ns of rank 0 are not 7"),
    "no samples of a rank": (_rank(samples_ns=[]), "samples_ns of rank 0 has another length"),
    "no entries of a rank": (_rank(entries_ns=[]), "entries_ns of rank 0 has another length"),
    "short samples": (_rank(samples_ns=[5]), "samples_ns of rank 0 has another length"),
    "ranks": (_group(ranks=[0, 5]), "want different ranks out of 2"),
    "same rank": (_group(ranks=[1, 1]), "want different ranks out of 2"),
}


@pytest.mark.parametrize("name", FLAWS)
def test_a_number_that_cannot_be_is_refused_with_its_line(golden: Path, name: str) -> None:
    change, words = FLAWS[name]
    rows = rows_of(golden)
    place = next(n for n, row in enumerate(rows) if row["kind"] == "measurement" and row["case"]["op"] == "all_reduce")
    put(golden, rows, with_end=False)
    assert len(store.read(golden).rows) == len(rows) - 1
    change(rows[place])
    put(golden, rows, with_end=False)
    with pytest.raises(DamagedRun, match=f"line {place + 1}: .*{words}"):
        store.read(golden)


_MEMORY: Final[JSON] = {"rank": 0, "peak_bytes": 9, "weights_bytes": 4, "gradients_bytes": 4}
STEP_FLAWS: dict[str, tuple[dict[str, JSON], str]] = {
    "no tries": ({"step_ns": []}, "one time per try"),
    "one try more": ({"compute_ns": [5] * 9}, "one time per try"),
    "no time": ({"step_ns": [0] * 5}, r">= 1 - at `\$.supplement.step_ns"),
    "negative": ({"communication_ns": [-1] * 5}, r">= 0 - at `\$.supplement.communication_ns"),
    "steps": ({"steps": 0}, r"at `\$.supplement.steps`"),
    "few gaps": ({"steps": 2, "gaps": [1.0, 0.5]}, "gaps has 2"),
    "no gap": ({"steps": 1, "gaps": [0.0, 0.5]}, "gaps has 2"),
    "parameters": ({"parameters": 0}, r"at `\$.supplement.parameters`"),
    "tokens": ({"tokens": -1}, r"at `\$.supplement.tokens`"),
    "flop": ({"flop": 10**40}, "flop is 1"),
    "dropped": ({"dropped": -1}, r"at `\$.supplement.dropped`"),
    "group": (
        {"sent": [{"op": "all_reduce", "group": 9, "size_bytes": 8, "calls": 1, "ranks": [0]}]},
        "group of calls",
    ),
    "calls": (
        {"sent": [{"op": "all_reduce", "group": 2, "size_bytes": 8, "calls": -1, "ranks": [0]}]},
        r"at `\$.supplement.sent\[0\].calls`",
    ),
    "callers": ({"sent": [{"op": "x", "group": 2, "size_bytes": 8, "calls": 1, "ranks": [2]}]}, "name the ranks"),
    "rank twice": ({"timeline": [{"rank": 0, "spans": []}] * 2}, "timeline is of the ranks"),
    "memory of no rank": ({"memory": [_MEMORY | {"rank": 2}]}, "memory is of the ranks"),
}


def a_step() -> tuple[JSON, list[JSON], int]:
    """The run that has a step of training of two ranks, and which row that is."""
    rows = rows_of(DATA / "runs" / "training")
    place = next(number for number, row in enumerate(rows) if row.get("supplement"))
    return json.loads((DATA / "runs" / "training" / store.RUN_FILE).read_bytes()), rows, place


@pytest.mark.parametrize("name", STEP_FLAWS)
def test_a_step_that_cannot_be_is_refused_with_its_line(name: str, tmp_path: Path) -> None:
    change, words = STEP_FLAWS[name]
    run, rows, place = a_step()
    rows[place]["supplement"].update(change)
    (tmp_path / store.RUN_FILE).write_text(json.dumps(run), encoding="utf-8")
    put(tmp_path, rows, with_end=False)
    with pytest.raises(DamagedRun, match=f"line {place + 1}: .*{words}"):
        store.read(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pp": 0}, "degrees whose product"),
        ({"dp": 2}, "degrees whose product"),
        ({"dp": -1, "pp": -2}, "degrees whose product"),
        ({"ep": 2}, "ep of a workload is 2"),
        ({"shard": 0}, "shard of a workload is 0"),
        ({"micro_batches": 0}, "settings.micro_batches"),
        ({"interleave": 0}, "settings.interleave"),
        ({"scale": 1e308}, "settings.scale"),
        ({"scale": 0}, "settings.scale"),
        ({"wait_ns": 0}, "settings.wait_ns"),
        ({"slow_rank": 2, "slow_ns": 5}, "slow_rank is 2 of 2 ranks"),
        ({"slow_ns": 5}, "want both or neither"),
        ({"expert_imbalance": 0.5}, "settings.expert_imbalance"),
        ({"capacity": 1e300}, "settings.capacity"),
    ],
)
def test_a_workload_that_cannot_be_is_refused(change: dict[str, JSON], words: str, tmp_path: Path) -> None:
    run, _, _ = a_step()
    next(setting for setting in run["cases"] if setting["op"] in TRAINED)["settings"].update(change)
    (tmp_path / store.RUN_FILE).write_text(json.dumps(run), encoding="utf-8")
    with pytest.raises(DamagedRun, match=words):
        store.read_run(tmp_path)


def an_imported_run(folder: Path) -> Path:
    path = DATA / "logs" / "nccl-tests-per-iteration.txt"
    stored = find(folder, str(path)).read(LogFacts()).stored
    return write_synthetic(folder, stored)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "block"),
        ({"block": 99, "time_ns": -1.0}, "time_ns"),
        ({"block": 99, "samples_ns": [1.0, 0.0]}, "samples_ns"),
        ({"block": 99, "bus_factor": 1e9}, "bus_factor"),
        ({"block": 99, "ranks": [0, 0]}, "ranks"),
    ],
)
def test_a_number_of_a_log_that_cannot_be_is_refused_with_its_line(
    change: dict[str, JSON], words: str, tmp_path: Path
) -> None:
    folder = an_imported_run(tmp_path)
    rows = rows_of(folder)
    assert rows[0]["kind"] == "imported"
    put(folder, [rows[0], {**rows[0], **change}, *rows[1:]], with_end=False)
    with pytest.raises(DamagedRun, match=f"line 2: .*{words}"):
        store.read(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"timing": 5}, "timing"),
        ({"timing": {"blocks": "2"}}, "blocks"),
        ({"timing": {"blocks": 10**12}}, "blocks"),
        ({"timing": {"blocks": True}}, "blocks"),
        ({"launches": 10**9}, "launches"),
        ({"launches": [2]}, "launches"),
        ({"name": {}}, "name"),
    ],
)
def test_a_plan_that_nobody_can_count_is_one_row_of_the_list(
    change: dict[str, JSON], words: str, golden: Path, tmp_path: Path
) -> None:
    write_synthetic(tmp_path, synthetic_run([case("all_reduce", 8)], launches=1))
    path = golden / store.RUN_FILE
    document = json.loads(path.read_bytes())
    document["plan"].update(change)
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(DamagedRun, match=words):
        store.read(golden)
    states = {row["run"]: str(row["state"]) for row in listing.rows("runs", tmp_path)}
    assert sorted(state.partition(":")[0] for state in states.values()) == ["complete", "unreadable"]
    assert words in states["golden"]


@pytest.mark.parametrize("name", [store.RUN_FILE, store.SAMPLES_FILE, store.PACKED_FILE])
@pytest.mark.parametrize("kind", ["fifo", "zero", "folder"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(name: str, kind: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(DATA / "runs" / "training", tmp_path / "vm" / "golden"))
    path = folder / name
    path.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises(StoreError):
        store.read(folder)
    with pytest.raises(StoreError):
        outline(folder)
    if name == store.SAMPLES_FILE:
        with pytest.raises(StoreError):
            store.Appender(folder)


def test_an_archive_that_unpacks_to_far_more_than_samples_do_is_refused(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(DATA / "runs" / "training", tmp_path / "golden"))
    with (folder / store.SAMPLES_FILE).open("ab") as file:
        file.write(b" " * (30 << 20))
    pack(folder, least_bytes=0)
    assert (folder / store.PACKED_FILE).stat().st_size < 200_000
    for reader in (store.read, outline):
        with pytest.raises(DamagedRun):
            reader(folder)
    with pytest.raises(StoreError):
        unpack(folder)
    assert (folder / store.PACKED_FILE).exists()


def test_the_outline_of_a_run_is_that_of_all_its_rows(golden: Path, tmp_path: Path) -> None:
    cases = [case("all_reduce", 8), case("all_reduce", 64), case("barrier", 0)]
    end = SyntheticEnd(skipped={cases[2]: "not here"}, failed={cases[1]: "wrong data"}, ended=None)
    folders = [golden, write_synthetic(tmp_path, synthetic_run(cases, launches=2, blocks=2, end=end))]
    for folder in folders:
        stored = store.read(folder)
        summary = outline(folder)
        assert summary == outline_of(stored)
        assert progress_of(summary) == progress_of(stored)


def test_a_row_that_was_torn_behind_an_end_is_lost_and_nothing_else(tmp_path: Path) -> None:
    folder = write_synthetic(tmp_path, synthetic_run([case("all_reduce", 8)], launches=1, end=SyntheticEnd(ended=None)))
    with store.Appender(folder) as appender:
        appender.append(Ended(status="complete", reason=None, ended=store.utc_now()))
    with (folder / store.SAMPLES_FILE).open("ab") as file:
        file.write(b'{"kind":"launch"')
    summary = outline(folder)
    assert summary.end is not None
    assert summary == outline_of(store.read(folder))


# --- while it is written -------------------------------------------------------------------------------------------

RUN = synthetic_run([case("all_reduce", 8)], launches=1)
ROW = Failed(case=RUN.run.cases[0], launch=0, block=1, error="x", cause="backend")


def _removed(path: Path) -> None:
    path.unlink()


def _replaced(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)


def _cut(path: Path) -> None:
    os.truncate(path, 10)


def _longer(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"{}\n")


BEFALLS = (_removed, _replaced, _cut, _longer)


@pytest.mark.parametrize("befalls", BEFALLS)
def test_a_file_that_is_lost_while_it_is_written_ends_the_writing(
    befalls: Callable[[Path], None], tmp_path: Path
) -> None:
    folder = write_synthetic(tmp_path, RUN)
    with store.Appender(folder) as appender:
        befalls(folder / store.SAMPLES_FILE)
        with pytest.raises(StoreError):
            appender.append(ROW)


class _Loses(Listener):
    """Loses the samples of a run when the first row is written."""

    def __init__(self, path: Path, befalls: Callable[[Path], None]) -> None:
        super().__init__()
        self._path, self._befalls, self.done = path, befalls, False

    def row_written(self, row: object) -> None:  # noqa: ARG002 - whichever is first
        if not self.done:
            self.done = True
            self._befalls(self._path)


@pytest.mark.parametrize("befalls", BEFALLS)
def test_a_launch_whose_samples_are_lost_does_not_go_on(befalls: Callable[[Path], None], tmp_path: Path) -> None:
    folder = store.create(tmp_path, "fake")
    world = FakeWorld(1)
    plan = Plan(
        timing=Timing(
            blocks=2,
            launch_warmup_seconds=0.0,
            warmup_seconds=0.0,
            min_samples=20,
            max_samples=30,
            min_seconds=0.0,
            max_seconds=0.01,
        ),
        sweep=(Sweep(ops=("memory_copy",), sizes="64"),),
    )
    job = worker.Job(plan, folder, 0, "local", world.row())
    loses = _Loses(folder / store.SAMPLES_FILE, befalls)

    def work(backend: FakeBackend) -> worker.Outcome:
        return worker.run(job, World(0, 1, 0, "local", 5.0), loses, backend.clock)

    (outcome,) = world.run(work)
    assert loses.done
    assert isinstance(outcome, StoreError)


def test_an_operation_that_is_not_known_is_not_resumed() -> None:
    known = synthetic_run([case("all_reduce", 8)], launches=1, end=SyntheticEnd(reached=0, ended=None))
    strange = msgspec.structs.replace(known.run.cases[0], op="all_to_none")
    stored = replace(known, run=msgspec.structs.replace(known.run, cases=(strange,)))
    with pytest.raises(StoreError, match="all_to_none"):
        lack_of(stored, Plan(sweep=(Sweep(ops=("barrier",)),)))


@pytest.mark.parametrize("change", [{"nics": ["x"]}, {"cpu": 5}, {"variables": []}, {"resumed": "x"}, {"ranks": [1]}])
def test_facts_of_another_shape_are_refused(change: dict[str, JSON], golden: Path) -> None:
    path = golden / store.RUN_FILE
    document = json.loads(path.read_bytes())
    next(iter(document["environments"].values())).update(change)
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(DamagedRun, match="environments"):
        store.read(golden)
    assert slurm_runs.rows(golden.parents[1], ())


def test_facts_that_a_neighbouring_version_adds_are_ignored_at_any_depth(golden: Path) -> None:
    known = store.read(golden).run
    path = golden / store.RUN_FILE
    document = json.loads(path.read_bytes())
    facts = next(iter(document["environments"].values()))
    for record in (facts, facts["cpu"], facts["nics"][0]):
        record["new"] = {"of": [1, "b"]}
    path.write_text(json.dumps(document), encoding="utf-8")
    assert store.read(golden).run == known


def test_a_hundred_damaged_folders_are_answered_in_words() -> None:
    outcome = campaign(seed=20261122, seconds=10.0, count=trials(50, 150))
    assert outcome.failures == ()
    assert outcome.tried > 0


@pytest.mark.parametrize("key", ["sizes", "threads", "blocks"])
def test_a_long_value_is_not_repeated_in_the_list(key: str, golden: Path) -> None:
    path = golden / store.RUN_FILE
    document = json.loads(path.read_bytes())
    value = "9" * 50_000
    document["plan"]["sweep"][0][key] = [value] if key == "blocks" else value
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(DamagedRun) as caught:
        store.read_run(golden)
    assert len(str(caught.value)) < len(str(path)) + 1000
