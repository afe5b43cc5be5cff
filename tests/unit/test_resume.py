"""What a run that was broken off lacks, who may go on with it, and what comes of it."""

import errno
import fcntl
import functools
import json
import multiprocessing
import socket
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner
from testing.fakes import QUICK, FakeBackend, FakeWorld, Script
from testing.narrow import require
from testing.synthetic import Machine, as_facts, case, planned, synthetic_run, write_synthetic

from busbw import __version__, launch
from busbw.backends.base import World
from busbw.cli.main import main
from busbw.errors import BackendError, BusbwError, Interrupted, LaunchError, StoreError, UsageError
from busbw.launch import worker
from busbw.launch.run_session import Result as RunResult
from busbw.launch.run_session import Settings, open_run
from busbw.runs import store
from busbw.runs.facts import JOB_FACTS, HostFacts, ResumedJob
from busbw.runs.plan import LogPlan, Plan, Sweep
from busbw.runs.records import JSON, SCHEMA, Case, Ended, Failed, FailureCause, LaunchStarted, Measurement, Row, Skipped
from busbw.runs.resume import Lack, lack_of, lacking, plan_of, record_resumption, refuse_other_environment
from busbw.runs.run import Run
from busbw.runs.store import StoredRun, locked

BLOCKS = 2
LAUNCHES = 3
PLAN = Plan(
    ranks=2,
    launches=LAUNCHES,
    timing=msgspec.structs.replace(QUICK, blocks=BLOCKS),
    sweep=(
        Sweep(ops=("all_reduce", "all_gather", "barrier"), sizes="64,1KiB"),
        Sweep(ops=("all_to_all",), sizes="64", in_place="yes"),
    ),
)
CASES = [case("all_reduce", 64), case("all_gather", 1024), case("barrier", 0)]


@functools.cache
def whole_run() -> StoredRun:
    stored = synthetic_run(CASES, launches=LAUNCHES, blocks=BLOCKS, samples=3)
    plan = msgspec.structs.replace(PLAN, ranks=4)
    return StoredRun(stored.path, msgspec.structs.replace(stored.run, plan=plan), stored.rows, ())


def with_rows(stored: StoredRun, rows: Sequence[Row]) -> StoredRun:
    return StoredRun(stored.path, stored.run, tuple(rows), ())


def lack(stored: StoredRun, launches: int | None = None) -> Lack:
    return lack_of(stored, plan_of(stored.run, launches))


def measured_by_origin(stored: StoredRun) -> list[tuple[int, Case, int]]:
    """Every block as (launch that it was planned for, case, block)."""
    origin = {row.launch: row.launch if row.resumes is None else row.resumes for row in stored.launches}
    return sorted(((origin[row.launch], row.case, row.block) for row in stored.measurements), key=repr)


def gone_on_with(stored: StoredRun, blocks: int) -> StoredRun:
    """``stored`` with rows as the next launches would add them, broken off again after ``blocks`` blocks."""
    missing = lack(stored)
    template = whole_run().measurements
    rows = list(stored.rows)
    for remaining in missing.launches:
        number = missing.first + remaining.number
        row = msgspec.structs.replace(whole_run().launches[0], launch=number, resumes=remaining.resumes)
        rows.append(row)
        for place, block in sorted(remaining.blocks):
            if blocks == 0:
                return with_rows(stored, rows)
            blocks -= 1
            like = next(row for row in template if row.case == stored.run.cases[place])
            rows.append(msgspec.structs.replace(like, launch=number, block=block))
    return with_rows(stored, rows)


# --- what is missing -------------------------------------------------------------------------------------------


def test_a_whole_run_lacks_nothing() -> None:
    missing = lack(whole_run())
    assert missing.launches == ()
    assert missing.in_words().startswith("nothing is missing in run synthetic-0")


@pytest.mark.parametrize("kept", range(len(whole_run().rows)))
def test_wherever_a_run_breaks_off_what_is_missing_makes_it_whole(kept: int) -> None:
    stored = whole_run()
    broken = with_rows(stored, stored.rows[:kept])
    twice_broken = gone_on_with(broken, blocks=4)
    again = gone_on_with(twice_broken, blocks=1_000)
    blocks = measured_by_origin(again)
    assert len(blocks) == len(set(blocks)) == LAUNCHES * len(CASES) * BLOCKS
    origins = {origin for origin, _, _ in blocks}
    assert len(origins) == LAUNCHES
    assert {(case, block) for _, case, block in blocks} == {(case, block) for case in CASES for block in range(BLOCKS)}
    assert lack(again).launches == ()
    numbers = [row.launch for row in again.launches]
    assert numbers == list(range(len(numbers))), "every launch has a number of its own, in the order of time"


def test_a_launch_that_broke_off_is_resumed_by_the_next_free_number() -> None:
    stored = whole_run()
    begins = [place for place, row in enumerate(stored.rows) if isinstance(row, LaunchStarted)]
    missing = lack(with_rows(stored, stored.rows[: begins[1] + 3]))
    assert missing.first == 2
    assert [(launch.resumes, len(launch.blocks)) for launch in missing.launches] == [(1, 4), (None, 6)]


def test_what_failed_or_was_skipped_is_not_tried_again() -> None:
    stored = whole_run()
    rows = [row for row in stored.rows if isinstance(row, LaunchStarted)][:1]
    bad = Failed(
        case=CASES[0], launch=0, block=0, error="wrong data before timing: 1 elements differ", cause="wrong_data"
    )
    missing = lack(with_rows(stored, [*rows, bad, Skipped(case=CASES[1], reason="not here")]))
    assert missing.void == (CASES[0],)
    assert {place for launch in missing.launches for place, _ in launch.blocks} == {2}
    assert all(launch.skipped == {1} for launch in missing.launches)


def test_what_a_rank_or_the_machine_failed_is_measured_again_and_last() -> None:
    stored = whole_run()
    lost = Failed(case=CASES[0], launch=2, block=1, error="rank 1 was killed", cause="rank_lost")
    rows = [row for row in stored.rows if not isinstance(row, Ended)]
    kept = [row for row in rows if not (isinstance(row, Measurement) and row.launch == 2 and row.block == 1)]
    missing = lack(with_rows(stored, [*kept, lost]))
    assert missing.void == ()
    assert [(launch.resumes, set(launch.blocks)) for launch in missing.launches] == [(2, {(0, 1), (1, 1), (2, 1)})]
    order = [(case, block) for block in range(BLOCKS) for case in CASES]
    assert [case for case, _ in lacking(order, CASES, missing.launches[0])] == [CASES[1], CASES[2], CASES[0]]
    again = gone_on_with(with_rows(stored, [*kept, lost]), blocks=100)
    assert lack(again).launches == ()


@pytest.mark.parametrize(("cause", "status"), [("rank_lost", "complete"), ("wrong_data", "failed")])
def test_a_run_that_lacks_nothing_any_more_is_complete_unless_a_case_is_to_blame(
    tmp_path: Path, cause: FailureCause, status: str
) -> None:
    stored = whole_run()
    rows = [row for row in stored.rows if not isinstance(row, Ended)]
    bad = Failed(case=CASES[0], launch=0, block=0, error="it failed", cause=cause)
    ended = Ended(status="failed", reason="it failed", ended="2026-01-02T03:04:05.000Z")
    folder = write_synthetic(tmp_path, with_rows(stored, [*rows, bad, ended]))
    with open_run(msgspec.structs.replace(PLAN, ranks=4), Settings(tmp_path, resume=folder)) as here:
        result = here.nothing_to_do()
    assert result is not None
    assert result.failed == (status == "failed")
    end = require(store.read(folder).end)
    assert end.status == status


def test_more_launches_may_be_asked_for_and_fewer_may_not() -> None:
    stored = whole_run()
    missing = lack(stored, LAUNCHES + 2)
    assert [(missing.first + launch.number, launch.resumes) for launch in missing.launches] == [(3, None), (4, None)]
    with pytest.raises(UsageError, match="synthetic-0"):
        plan_of(stored.run, 2)


def test_a_plan_that_is_none_is_said() -> None:
    run = msgspec.structs.replace(whole_run().run, plan=LogPlan(name="a log"))
    with pytest.raises(UsageError):
        plan_of(run, None)


# --- whether this is the world ---------------------------------------------------------------------------------


def test_every_difference_of_another_world_is_listed() -> None:
    run = msgspec.structs.replace(whole_run().run, schema=SCHEMA - 1, busbw="0.0.1", launcher="torchrun")
    with pytest.raises(LaunchError) as refused:
        refuse_other_environment(run, launcher="local", ranks=2, host="elsewhere")
    for words in (
        f"schema: {SCHEMA - 1} then, {SCHEMA} now",
        f"busbw: 0.0.1 then, {__version__} now",
        "launcher: torchrun then, local now",
        "ranks: 4 then, 2 now",
        "hosts: node0 then, elsewhere now",
    ):
        assert words in str(refused.value)
    refuse_other_environment(whole_run().run, launcher="local", ranks=4, host="node0")


@pytest.mark.parametrize(
    ("then", "hosts", "now", "advice"),
    [
        ("mpirun", ("node0",), "local", "mpirun"),
        ("mpirun", ("node0",), "srun", "mpirun"),
        ("mpirun", ("node0", "node1"), "local", "mpirun"),
        ("torchrun", ("node0",), "local", "--nproc-per-node"),
        ("torchrun", ("node0", "node1"), "mpirun", "--nnodes"),
        ("srun", ("node0",), "local", "submit"),
        ("local", ("node0",), "mpirun", "busbw run"),
        ("local", ("node0",), "local", "instead"),
    ],
)
def test_ranks_that_were_started_in_another_way_can_be_started_so_again(
    then: str, hosts: tuple[str, ...], now: str, advice: str
) -> None:
    run = synthetic_run(CASES, machine=Machine(hosts=hosts)).run
    run = msgspec.structs.replace(run, launcher=then)
    with pytest.raises(LaunchError, match=advice):
        refuse_other_environment(run, launcher=now, ranks=2, host="node0")
    with pytest.raises(LaunchError, match="new"):
        refuse_other_environment(run, launcher=now, ranks=2, host="elsewhere")


def folder_of(run: Run, tmp_path: Path) -> Path:
    folder = store.create(tmp_path, "fake")
    store.write_run(folder, run)
    return folder


def facts_with(run: Run, **changes: JSON) -> dict[str, HostFacts]:
    return {host: as_facts({**msgspec.to_builtins(facts), **changes}) for host, facts in run.environments.items()}


def bound(*cores: str, **variables: str) -> dict[str, JSON]:
    return {"ranks": [{"rank": rank, "cores": text, "variables": variables} for rank, text in enumerate(cores)]}


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        ({}, {"kernel": "7"}, "kernel"),
        ({}, {"torch": "9"}, "torch"),
        ({}, {"variables": {"OMP_NUM_THREADS": "8"}}, "OMP_NUM_THREADS"),
        ({}, {"variables": {"PYTORCH_CUDA_ALLOC_CONF": "a:b"}}, "PYTORCH_CUDA_ALLOC_CONF"),
        # A fact that an older run lacks proves no difference.
        ({"mpi": {"transport": {}}}, {"mpi": {"transport": {"netmod": "ucx"}}}, None),
        ({"mpi": {"transport": {"netmod": "ofi"}}}, {"mpi": {"transport": {"netmod": "ucx"}}}, "transport"),
        ({"mpi": {"transport": {"netmod": "ofi"}}}, {"mpi": {"transport": {}}}, "transport"),
        ({}, {"nccl": {"version": "2.27.3"}}, None),
        ({"nccl": {"version": "2.26.2"}}, {"nccl": {"version": "2.27.3"}}, "version"),
        ({"virtualization": None}, {"virtualization": "QEMU"}, "QEMU"),
        (bound("0", "1"), bound("0-1", "0-1"), "binding"),
        (bound("0", "1", UCX_TLS="rc"), bound("0", "1", UCX_TLS="tcp"), "UCX_TLS"),
        (bound("0", "1", PMI_RANK="0"), bound("2", "3", PMI_RANK="1"), None),
        (bound(), bound("0", "1"), None),
    ],
)
def test_a_host_that_has_changed_is_refused(
    then: dict[str, JSON], now: dict[str, JSON], said: str | None, tmp_path: Path
) -> None:
    facts = {"kernel": "6", "torch": "2", **then}
    run = synthetic_run([case("all_reduce", 8, 2)], machine=Machine(hosts=("node0",), facts=facts)).run
    folder = folder_of(run, tmp_path)
    with nullcontext() if said is None else pytest.raises(LaunchError, match=said):
        record_resumption(folder, PLAN, run.cases, run.hosts, facts_with(run, **now), launch=3)


def test_other_hosts_and_other_cases_are_refused(tmp_path: Path) -> None:
    run = whole_run().run
    with pytest.raises(LaunchError, match=r"hosts:.*cases:"):
        record_resumption(folder_of(run, tmp_path), PLAN, run.cases[:2], ("a", "b"), {}, launch=3)


def test_the_jobs_that_a_run_was_resumed_in_are_noted_and_are_no_difference(tmp_path: Path) -> None:
    run = whole_run().run
    folder = folder_of(run, tmp_path)

    def go_on(launch: int, job: str, **more: JSON) -> None:
        variables = {"SLURM_JOB_ID": job, "SLURM_STEP_ID": str(launch), "SLURM_RESTART_COUNT": "1"}
        facts = facts_with(run, variables=variables, **more)
        record_resumption(folder, PLAN, run.cases, run.hosts, facts, launch=launch)

    go_on(3, "2", boot_id="x")
    go_on(3, "2", boot_id="x")
    go_on(4, "5", boot_id="x")
    written = json.loads((folder / store.RUN_FILE).read_bytes())["environments"]["node0"]
    assert written.pop("resumed") == [
        {
            "launch": 3,
            "boot_id": "x",
            "variables": {"SLURM_JOB_ID": "2", "SLURM_STEP_ID": "3", "SLURM_RESTART_COUNT": "1"},
        },
        {"launch": 4, "variables": {"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "4", "SLURM_RESTART_COUNT": "1"}},
    ]
    assert as_facts(written) == run.environments["node0"]


def test_the_facts_of_a_job_are_those_that_a_resumption_notes() -> None:
    assert ("launch", *JOB_FACTS) == ResumedJob.__struct_fields__
    assert set(JOB_FACTS) < set(HostFacts.__struct_fields__)


# --- one writer ------------------------------------------------------------------------------------------------


def lock_and_unlock(folder: Path) -> None:
    with locked(folder):
        pass


def test_a_run_has_one_writer_at_a_time(tmp_path: Path) -> None:
    folder = store.create(tmp_path, "fake")
    with locked(folder) as sure:
        assert sure
        with pytest.raises(StoreError, match=folder.name):
            lock_and_unlock(folder)
    lock_and_unlock(folder)


def test_a_claim_lasts_as_long_as_a_process_of_its_holder(tmp_path: Path) -> None:
    folder = store.create(tmp_path, "fake")
    going_on = multiprocessing.get_context("fork").Event()
    child = multiprocessing.get_context("fork").Process(target=going_on.wait, args=(60,), daemon=True)
    with locked(folder):
        child.start()
    with pytest.raises(StoreError):
        lock_and_unlock(folder)
    child.kill()
    child.join()
    lock_and_unlock(folder)


def test_a_file_system_without_locks_is_said_and_not_fatal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_file: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with locked(store.create(tmp_path, "fake")) as sure:
        assert not sure


def test_a_folder_that_cannot_be_claimed_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_folder: Path) -> None:
        message = "no"
        raise StoreError(message)

    monkeypatch.setattr("busbw.launch.run_session.locked", broken)
    with pytest.raises(StoreError), open_run(PLAN, Settings(tmp_path)):
        pass
    assert not list(tmp_path.glob("*/*"))


def test_a_second_interrupt_while_files_are_removed_still_says_where_the_run_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again(_folder: Path | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("busbw.launch.run_session.remove_files", again)

    def broken_off() -> None:
        with open_run(PLAN, Settings(tmp_path)) as here:
            (here.folder / store.RUN_FILE).write_text("{}", encoding="utf-8")
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as raised:
        broken_off()
    assert (raised.value.folder / store.RUN_FILE).exists()


# --- launches over fake ranks ----------------------------------------------------------------------------------


def measured(folder: Path, number: int, missing: Lack | None, script: Script | None = None) -> list[object]:
    """One launch of a run over fake ranks: a new one, or one of those that a run lacks."""
    world = FakeWorld(2, script)
    remaining = None if missing is None else missing.launches[number - missing.first]
    job = worker.Job(PLAN, folder, number, "local", world.row(), remaining)

    def work(backend: FakeBackend) -> worker.Outcome:
        return worker.run(job, World(backend.rank, 2, backend.rank, "local", 5.0), worker_listener(), backend.clock)

    return list(world.run(work))


def worker_listener() -> Any:  # noqa: ANN401 - every rank has one that does not listen
    from busbw.launch.run_session import Listener  # noqa: PLC0415

    return Listener()


def breaking_off() -> Script:
    def durations(_rank: int, index: int, case: Case) -> int:
        if case.op == "barrier" and index > 3:
            message = "the switch is off"
            raise BackendError(message)
        return 1_000

    return Script(durations=durations)


def test_a_launch_that_broke_off_is_completed_by_another_one(tmp_path: Path) -> None:
    folder = store.create(tmp_path, "fake")
    outcomes = measured(folder, 0, None, breaking_off())
    assert all(isinstance(outcome, BusbwError) for outcome in outcomes)
    before = store.read(folder)
    missing = lack_of(before, PLAN)
    assert missing.launches[0].resumes == 0
    assert missing.launches[0].blocks
    assert measured(folder, 1, missing) == [worker.Outcome(measured=len(missing.launches[0].blocks), failed=0)] * 2
    stored = store.read(folder)
    assert stored.rows[: len(before.rows)] == before.rows
    row = stored.launches[1]
    assert (row.launch, row.resumes, row.order_seed) == (1, 0, PLAN.seed + 1)
    blocks = [(measurement.case, measurement.block) for measurement in stored.measurements]
    assert len(blocks) == len(set(blocks)) == 5 * BLOCKS
    assert len(stored.skipped) == 1, "once a run"
    assert [launch.resumes for launch in lack_of(stored, PLAN).launches] == [None] * (LAUNCHES - 1)


def test_the_order_of_a_resuming_launch_is_that_of_its_number(tmp_path: Path) -> None:
    whole, part = store.create(tmp_path, "fake"), store.create(tmp_path, "fake")
    measured(whole, 0, None)
    order = [(row.case, row.block) for row in store.read(whole).measurements]
    store.write_run(part, store.read_run(whole))
    missing = lack_of(store.read(part), PLAN)
    assert missing.first == 0, "a run that broke off before its first launch began"
    measured(part, 0, missing)
    assert [(row.case, row.block) for row in store.read(part).measurements] == order
    assert len(store.read(part).skipped) == 1, "the launch that would have said it never did"
    again = lack_of(store.read(part), PLAN)
    measured(part, 1, again)
    second = [(row.case, row.block) for row in store.read(part).measurements][len(order) :]
    assert set(second) == set(order)
    assert second != order


def test_a_run_that_could_not_be_resumed_stays_as_it_was(tmp_path: Path) -> None:
    stored = whole_run()
    folder = write_synthetic(tmp_path, with_rows(stored, stored.rows[:3]))
    before = (folder / store.SAMPLES_FILE).read_bytes()
    with open_run(plan_of(stored.run, None), Settings(tmp_path, resume=folder)) as here:
        here.finish("failed", "it is another world")
        assert (folder / store.SAMPLES_FILE).read_bytes() == before
        with store.Appender(folder) as appender:
            appender.append(stored.launches[1])
        here.finish("interrupted", "it was this one")
    end = require(store.read(folder).end)
    assert end.status == "interrupted"


@pytest.mark.parametrize("end", [None, "interrupted", "complete", "failed"])
def test_a_whole_run_without_a_good_end_gets_one(tmp_path: Path, end: Any) -> None:  # noqa: ANN401 - a status
    stored = whole_run()
    rows = [row for row in stored.rows if not isinstance(row, Ended)]
    ends = [] if end is None else [Ended(status=end, reason=None, ended="2026-01-01T00:00:00.000Z")]
    folder = write_synthetic(tmp_path, with_rows(stored, [*rows, *ends]))
    with open_run(plan_of(stored.run, None), Settings(tmp_path, resume=folder)) as here:
        result = here.nothing_to_do()
    assert result is not None
    assert result.whole
    last = require(store.read(folder).end)
    assert last.status == "complete", "no case of it has failed"
    assert len(store.read(folder).rows) == len(rows) + (2 if end in {"interrupted", "failed"} else 1)


# --- the command -----------------------------------------------------------------------------------------------


@pytest.fixture
def broken_off(tmp_path: Path) -> Path:
    """A run in ``tmp_path`` that lacks the second half of its last launch, and no launcher around."""
    stored = whole_run()
    return write_synthetic(tmp_path, with_rows(stored, stored.rows[:-3]))


def busbw(folder: Path, *arguments: str) -> Any:  # noqa: ANN401 - click's Result
    command = ["run", "--resume", "latest", "--results-dir", str(folder.parents[1]), *arguments]
    return CliRunner().invoke(main, command)


def test_every_option_of_run_but_a_few_changes_the_plan() -> None:
    kept = {"--resume", "--launches", "--timeout", "--port", "--quiet", "--json", "--results-dir", "--dry-run"}
    run = require(main.get_command(click.Context(main), "run"))
    for parameter in run.params:
        name = parameter.opts[0]
        if name in {*kept, "--help"}:
            continue
        values = {"boolean": [], "integer": ["1"], "float": ["1"]}.get(parameter.type.name, ["x"])
        result = CliRunner().invoke(main, ["run", "--resume", "latest", name, *values])
        assert result.exit_code == 2, name
        assert name in result.stderr


def test_a_timeout_is_for_what_is_measured_now(broken_off: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = store.read_run(broken_off)
    monkeypatch.setattr(socket, "gethostname", lambda: run.hosts[0])
    carried_out: list[Plan] = []

    def execute(plan: Plan, _settings: Settings) -> None:
        carried_out.append(plan)

    monkeypatch.setattr(launch, "execute", execute)
    assert busbw(broken_off, "--timeout", "300").exit_code == 0
    assert busbw(broken_off).exit_code == 0
    assert [plan.timing.timeout_seconds for plan in carried_out] == [300, plan_of(run, None).timing.timeout_seconds]
    refused = busbw(broken_off, "--timeout", "-5")
    assert refused.exit_code == 2


def test_a_timeout_for_what_is_measured_now_is_not_noted(tmp_path: Path) -> None:
    run = whole_run().run
    folder = folder_of(run, tmp_path)
    record_resumption(folder, plan_of(run, 7, 300.0), run.cases, run.hosts, run.environments, launch=3)
    assert store.read_run(folder).plan == planned(run, launches=7).plan


def test_a_dry_run_lists_what_is_missing(broken_off: Path) -> None:
    result = busbw(broken_off, "--dry-run")
    assert result.exit_code == 0
    document = json.loads(busbw(broken_off, "--dry-run", "--json").stdout)
    assert document["run"] == "synthetic-0"
    assert [(row["launch"], row["resumes"], row["case"]["op"], row["blocks"]) for row in document["missing"]] == [
        (3, 2, "all_gather", [1]),
        (3, 2, "barrier", [1]),
    ]


def test_a_dry_run_of_a_whole_run_says_once_that_nothing_is_measured(tmp_path: Path) -> None:
    result = busbw(write_synthetic(tmp_path, whole_run()), "--dry-run")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert result.stderr.count("nothing is missing") == 1
    assert result.stderr.count("measured") == 1
    assert "complete" not in result.stderr


def test_the_command_refuses_another_world(broken_off: Path) -> None:
    result = busbw(broken_off)
    assert result.exit_code == 1
    assert "hosts:" in result.stderr
    assert store.read(broken_off).end is None


def test_a_run_that_lacks_nothing_says_so_and_exits_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "node0")
    folder = write_synthetic(tmp_path, whole_run())
    result = busbw(folder)
    assert result.exit_code == 0, result.output
    assert "skipped" not in result.stderr


def test_the_launcher_is_told_which_run_and_how_many_launches(
    broken_off: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Plan, Settings]] = []

    def execute(plan: Plan, settings: Settings) -> RunResult:
        asked.append((plan, settings))
        return RunResult(broken_off, 2, 0, speaks=True)

    monkeypatch.setattr(launch, "execute", execute)
    monkeypatch.setattr("socket.gethostname", lambda: "node0")
    assert busbw(broken_off, "--launches", "9", "--port", "7", "--quiet").exit_code == 0
    ((plan, settings),) = asked
    assert plan.launches == 9
    assert (settings.resume, settings.port, settings.quiet) == (broken_off, 7, True)
