"""What a real run leaves behind: everything that was asked for, in order, and nothing that is nobody's business."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from testing.narrow import require, require_type

from busbw.runs import store
from busbw.runs.cases import expand
from busbw.runs.records import SCHEMA, Ended, LaunchStarted, Measurement, Skipped
from busbw.runs.resume import plan_of
from busbw.system import environment
from busbw.system.environment import VARIABLES

if TYPE_CHECKING:
    from tests.integration.conftest import Commands

    from busbw.runs.store import StoredRun

pytestmark = pytest.mark.integration

_SECRET = "correct-horse-battery-staple"  # noqa: S105 - it is there to be looked for
_RANKS = 3
_LAUNCHES = 2


@pytest.fixture(scope="module")
def run(shared_commands: Commands) -> StoredRun:
    plan = shared_commands.sweep(
        "all_gather,all_reduce,ping_pong,barrier", "1KiB,2KiB", in_place="both", imbalance=0.25
    )
    finished = shared_commands.run(
        *("run", "--plan", plan, "--ranks", str(_RANKS), "--launches", str(_LAUNCHES), "--seed", "11"),
        *("--in-place", "no"),
        environment={
            "API_TOKEN": _SECRET,
            "SLURM_JWT": _SECRET,
            "NCCL_SECRET": _SECRET,
            "OMP_NUM_THREADS": "1",
            "SLURM_JOB_PARTITION": "night",
        },
    )
    assert finished.code == 0, finished.told
    assert _SECRET not in finished.told
    return shared_commands.read()


def test_the_folder_holds_the_run_its_summary_and_the_plan_as_it_was_carried_out(run: StoredRun) -> None:
    files = [store.RUN_FILE, store.SAMPLES_FILE, store.SUMMARY_FILE]
    assert sorted(path.name for path in run.path.iterdir()) == files
    assert run.run.schema == SCHEMA
    assert run.run.id == run.path.name
    assert run.run.machine == run.path.parent.name == environment.machine_name()
    assert run.run.launcher == "local"
    assert not run.warnings
    plan = plan_of(run.run, None)
    assert (plan.ranks, plan.launches, plan.seed, plan.sweep[0].in_place) == (_RANKS, _LAUNCHES, 11, "no")
    assert run.run.cases == expand(plan, _RANKS, 1).cases


def test_every_case_has_every_block_of_every_launch_or_is_skipped_once(run: StoredRun) -> None:
    blocks = [(row.case, row.launch, row.block) for row in run.measurements]
    skipped = [row.case for row in run.skipped]
    assert sorted(case.op for case in skipped) == ["all_reduce", "all_reduce"]
    wanted = {
        (case, launch, block)
        for case in run.run.cases
        for launch in range(_LAUNCHES)
        for block in range(plan_of(run.run, None).timing.blocks)
        if case not in skipped
    }
    assert len(blocks) == len(wanted)
    assert set(blocks) == wanted


def test_the_rows_are_in_the_order_in_which_things_happened(run: StoredRun) -> None:
    assert isinstance(run.rows[0], LaunchStarted)
    assert require_type(Ended, run.rows[-1]).status == "complete"
    now = -1
    for row in run.rows[:-1]:
        if isinstance(row, LaunchStarted):
            now += 1
            assert row.launch == now
        elif isinstance(row, Skipped):
            assert now == 0
        else:
            assert isinstance(row, Measurement)
            assert row.launch == now
    times = [row.started for row in run.rows if isinstance(row, LaunchStarted | Measurement)]
    assert times == sorted(times)


def test_every_launch_has_an_order_and_processes_of_its_own(run: StoredRun) -> None:
    assert [launch.order_seed for launch in run.launches] == [11, 12]
    orders = [
        tuple((row.case, row.block) for row in run.measurements if row.launch == launch) for launch in range(_LAUNCHES)
    ]
    assert len(set(orders)) == _LAUNCHES
    assert len({pid for launch in run.launches for pid in launch.pids}) == _RANKS * _LAUNCHES
    for launch in run.launches:
        assert launch.hosts == run.run.hosts
        assert len(launch.hosts) == len(launch.pids) == len(launch.timer_ns) == _RANKS
        assert launch.shared_clock


def test_the_vectors_of_a_block_fit_together(run: StoredRun) -> None:
    for row in run.measurements:
        assert row.calls == (2 if row.case.op == "ping_pong" else 1)
        assert row.first_call_ns > 0
        assert row.elapsed_ns >= sum(row.groups[0].slowest_ns)
        for group in row.groups:
            assert len(group.slowest_ns) >= plan_of(run.run, None).timing.least_samples / 2
            assert group.exit_span_ns is not None
            assert min(require(group.arrival_skew_ns)) >= 0
            everyone = [samples.samples_ns for samples in group.per_rank]
            for number, (slowest, fastest) in enumerate(zip(group.slowest_ns, group.fastest_ns, strict=True)):
                mine = [samples[number] for samples in everyone if samples is not None]
                assert (max(mine), min(mine)) == (slowest, fastest)
                late = group.ranks.index(group.fastest_rank[number])
                assert mine[late] == fastest


def test_of_the_environment_only_what_is_on_the_list_is_kept(run: StoredRun) -> None:
    (facts,) = run.run.environments.values()
    assert set(facts.variables) <= set(VARIABLES)
    assert facts.variables["OMP_NUM_THREADS"] == "1"
    assert facts.variables["SLURM_JOB_PARTITION"] == "night"
    for path in run.path.iterdir():
        content = path.read_bytes()
        assert _SECRET.encode() not in content
        assert b"API_TOKEN" not in content


def test_a_run_can_be_read_while_it_goes_on(commands: Commands) -> None:
    started = commands.start("run", "--plan", commands.sweep("all_reduce", "1KiB..8KiB*2"), "--ranks", "2")
    seen = 0
    while started.process.poll() is None:
        for folder in store.folders(commands.results):
            stored = store.read(folder)
            assert stored.end is None or stored.end.status == "complete"
            assert len(stored.rows) >= seen
            seen = len(stored.rows)
        time.sleep(0.005)  # the ranks want the core
    assert started.wait().code == 0
    assert len(commands.read().rows) == 1 + 4 * 2 + 1


@pytest.mark.slow
def test_runs_started_together_do_not_mix(commands: Commands) -> None:
    plan = commands.sweep("all_reduce")
    both = [commands.start("run", "--plan", plan, "--ranks", "2") for _ in range(2)]
    assert [program.wait().code for program in both] == [0, 0]
    runs = [store.read(folder) for folder in store.folders(commands.results)]
    assert len(runs) == 2
    assert all(len(run.measurements) == 2 for run in runs)
