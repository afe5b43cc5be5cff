"""What goes wrong in real life, really done: every run ends with a message that names the culprit, keeps what it
had measured, and leaves no process behind (which the fixture ``commands`` checks after every test).
"""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import msgspec
import pytest
from exhaustive import AT_NIGHT, EXHAUSTIVE, trials
from testing.narrow import require
from testing.plans import plan_text, sweep

from busbw.runs import store
from busbw.runs.plan import read_suite
from busbw.runs.records import Ended, Failed, LaunchStarted, Measurement
from busbw.runs.resume import plan_of
from busbw_analysis.fleet.controller import judged
from busbw_analysis.fleet.search import Options

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.conftest import Commands, Finished, Started

pytestmark = pytest.mark.integration

_HOST = socket.gethostname()
_GONE_SECONDS = 15.0
_OP_AT_SIZE = r"(all_reduce|all_gather|broadcast) at [0-9.]+ (B|KiB)"


def _assert_kept(run: store.StoredRun, before: tuple[object, ...]) -> None:
    """Every row that was there when it happened is there now, and nothing had to be dropped."""
    assert run.rows[: len(before)] == before
    assert not run.warnings


# --- ranks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [pytest.param(0, marks=AT_NIGHT), 2])
def test_a_killed_rank_is_named_with_what_it_was_doing(commands: Commands, rank: int) -> None:
    started = commands.start("run", "--plan", commands.long(), "--ranks", "3", "--timeout", "60")
    before = started.rows(atleast=3)
    pid = started.pids()[rank]
    os.kill(pid, signal.SIGKILL)
    finished = started.wait()
    run = commands.read()
    _assert_kept(run, before)
    finished.assert_failed(run, f"rank {rank} (host {_HOST}, pid {pid}) was killed by SIGKILL during ")
    assert _matches(finished.err)
    assert run.not_reached


def test_a_stopped_rank_is_named_after_the_timeout(commands: Commands) -> None:
    ranks = (0, 2) if EXHAUSTIVE else (0,)
    started = [
        commands.start(
            "run", "--plan", commands.long(), "--ranks", "3", "--timeout", "8", results=commands.folder / str(rank)
        )
        for rank in ranks
    ]
    before = [program.rows(atleast=2) for program in started]
    for rank, program in zip(ranks, started, strict=True):
        os.kill(program.pids()[rank], signal.SIGSTOP)
    for rank, program, rows in zip(ranks, started, before, strict=True):
        finished = program.wait()
        run = commands.read(program.results)
        _assert_kept(run, rows)
        pid = run.launches[0].pids[rank]
        finished.assert_failed(run, f"rank {rank} (host {_HOST}, pid {pid}) is stopped and does not answer during ")
        assert _matches(finished.err)
        assert finished.err.count("(host ") == 1, "the ranks that waited for it are not to blame"


@pytest.mark.slow
def test_a_rank_that_is_stopped_for_a_moment_costs_nothing_but_time(commands: Commands) -> None:
    started = commands.start("run", "--plan", commands.sweep("all_reduce", "1KiB..8KiB*2"), "--ranks", "2")
    started.rows(atleast=1)
    pid = started.pids()[1]
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.5)
    os.kill(pid, signal.SIGCONT)
    finished = started.wait()
    assert finished.code == 0, finished.told
    assert not commands.read().failed


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        pytest.param("hang", "hangs: it does not answer during broadcast at 1 KiB (float32)", marks=pytest.mark.slow),
        pytest.param("crash", "was killed by SIGSEGV during broadcast at 1 KiB (float32)", marks=pytest.mark.slow),
        pytest.param(
            "leave", "exited with status 7 without a message during broadcast at 1 KiB (float32)", marks=AT_NIGHT
        ),
    ],
)
def test_a_rank_that_drops_out_is_named(commands: Commands, fault: str, words: str) -> None:
    plan = commands.sweep("broadcast,all_reduce")
    finished = _with_fault(commands, fault, "run", "--plan", plan, "--ranks", "3", "--timeout", "12")
    run = commands.read()
    finished.assert_failed(run, f"rank 1 (host {_HOST}, pid {run.launches[0].pids[1]}) {words}")
    assert finished.err.count("(host ") == 1, finished.told


@pytest.mark.slow
def test_a_rank_killed_in_a_step_is_named_with_the_step_and_the_run_goes_on(commands: Commands) -> None:
    options = ("--op", "train_tensor,train_all_reduce", "--scale", "0.05", "--max-seconds", "0.1", "--launches", "1")
    finished = _with_fault(commands, "die-in-a-step", "run", *options, "--ranks", "2", "--no-baseline")
    run = commands.read()
    dead = f"rank 1 (host {_HOST}, pid {run.launches[0].pids[1]}) was killed by SIGKILL during train_all_reduce"
    finished.assert_failed(run, dead, "rank 0 says: ")
    assert "train_all_reduce" not in {row.case.op for row in run.measurements}
    commands.succeed("run", "--resume", "latest")
    whole = commands.read()
    assert {row.case.op for row in whole.measurements if row.check.state == "verified"} == {
        "train_tensor",
        "train_all_reduce",
    }
    assert not whole.not_reached


@AT_NIGHT
def test_a_rank_that_hangs_while_groups_are_made_is_named(commands: Commands) -> None:
    arguments = ("run", "--plan", commands.sweep("broadcast"), "--ranks", "4", "--groups", "div:2", "--timeout", "12")
    finished = _with_fault(commands, "hang-over-groups", *arguments)
    run = commands.read()
    words = "hangs: it does not answer during broadcast at 1 KiB in groups div:2 (float32)"
    finished.assert_failed(run, f"rank 1 (host {_HOST}, pid {run.launches[0].pids[1]}) {words}")


@pytest.mark.slow
def test_a_rank_that_dies_when_all_is_measured_costs_no_case(commands: Commands) -> None:
    finished = _with_fault(commands, "leave-at-the-end", "run", "--plan", commands.sweep("broadcast"), "--ranks", "3")
    run = commands.read()
    assert finished.code == 1, finished.told
    assert not run.failed
    assert not run.not_reached
    assert require(run.end).status == "failed"


@pytest.mark.slow
def test_an_error_on_one_rank_alone_ends_the_run_and_is_told(commands: Commands) -> None:
    plan = commands.sweep("broadcast,all_reduce")
    finished = _with_fault(commands, "raise-alone", "run", "--plan", plan, "--ranks", "3", "--timeout", "12")
    finished.assert_failed(commands.read(), "broadcast at 1 KiB (float32)", "this rank does not like it")


@pytest.mark.slow
def test_a_bug_on_one_rank_is_told_and_nobody_else_is_blamed(commands: Commands) -> None:
    plan = commands.sweep("broadcast,all_reduce")
    finished = _with_fault(commands, "bug", "run", "--plan", plan, "--ranks", "3", "--timeout", "60")
    finished.assert_failed(commands.read(), "rank 1: ZeroDivisionError: a bug in one rank")
    assert "(host " not in finished.err


# --- wrong results ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "words", "ranks"),
    [
        pytest.param("corrupt", "wrong data before timing: 3 elements differ on rank 1", (1,), marks=AT_NIGHT),
        ("corrupt-later", "wrong data after timing: 1 elements differ on rank 1", (1,)),
        pytest.param(
            *("raise-everywhere", "the operation raised on every rank: this library does not like it", ()),
            marks=AT_NIGHT,
        ),
    ],
)
def test_a_case_that_fails_everywhere_fails_alone(
    commands: Commands, fault: str, words: str, ranks: tuple[int, ...]
) -> None:
    plan = commands.sweep("broadcast,all_reduce,all_gather", "1KiB,2KiB")
    finished = _with_fault(commands, fault, "run", "--plan", plan, "--ranks", "3", "--launches", "2")
    assert finished.code == 1, finished.told
    assert words in finished.err
    run = commands.read()
    failed = {(row.case.op, row.case.size_bytes, row.launch) for row in run.failed}
    assert failed == {("broadcast", size, launch) for size in (1024, 2048) for launch in (0, 1)}
    assert len(run.failed) == len(failed)
    assert all(row.error.startswith(words) for row in run.failed)
    assert {row.ranks for row in run.failed} == {ranks}
    assert {row.case.op for row in run.measurements} == {"all_reduce", "all_gather"}
    assert len(run.measurements) == 2 * 2 * 2 * 2
    assert not run.not_reached
    assert require(run.end).status == "failed"


@pytest.mark.parametrize("backend", [pytest.param("gloo", marks=pytest.mark.slow), pytest.param("mpi", marks=AT_NIGHT)])
def test_a_bit_that_flips_once_names_its_rank_and_host(commands: Commands, backend: str) -> None:
    options = ["--op", "signature", "--sizes", "4KiB", "--backend", backend, "--ranks", "3", "--launches", "1"]
    finished = _with_fault(commands, "flip", "run", *options, "--no-baseline")
    assert finished.code == 1, finished.told
    (row,) = commands.read().failed
    assert (row.cause, row.ranks) == ("wrong_data", (1,))
    assert f"rank 1 (host {_HOST})" in row.error


def test_a_bit_that_flips_in_a_fleet_names_its_node_and_the_others_are_measured(
    commands: Commands, tmp_path: Path
) -> None:
    sweeps = [sweep(op, "4KiB", groups="asked", sync="none") for op in ("signature", "pair_uni")]
    plan = tmp_path / "plan.toml"
    plan.write_text(plan_text(*sweeps, controller="fleet", timing=msgspec.to_builtins(read_suite("fleet").timing)))
    finished = _with_fault(commands, "flip", "run", "--plan", str(plan), "--ranks", "4")
    assert finished.code == 1, finished.told
    run = commands.read()
    accused = judged([run], [None], Options(), None).judgement.accused
    # what the machine does meanwhile can make a healthy node slow: only wrong data is what was done on purpose
    assert [verdict.nodes for verdict in accused if verdict.kind == "wrong"] == [(1,)]
    assert {rank for row in run.measurements for group in row.groups for rank in group.ranks} == {0, 2, 3}


def test_a_size_that_no_memory_holds_is_refused_before_anything_starts(commands: Commands) -> None:
    finished = commands.run("run", "--plan", commands.sweep("all_reduce", "1KiB,4096TiB"), "--ranks", "2")
    assert finished.code == 2, finished.told
    assert "--sizes: " in finished.err
    assert not commands.results.exists()


# --- signals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "to_all"),
    [
        (signal.SIGTERM, False),
        *(
            pytest.param(*row, marks=AT_NIGHT)
            for row in itertools.product((signal.SIGINT, signal.SIGHUP, signal.SIGUSR1), (False, True))
        ),
    ],
)
def test_a_signal_to_the_launcher_or_to_all_ends_in_order_and_keeps_what_was_measured(
    commands: Commands, number: signal.Signals, *, to_all: bool
) -> None:
    started = commands.start("run", "--plan", commands.long(), "--ranks", "3")
    before = started.rows(atleast=2)
    if to_all:
        started.signal_group(number)
    else:
        started.process.send_signal(number)
    _assert_interrupted(commands, started, before)


def test_ctrl_c_before_the_world_has_formed_leaves_no_run(commands: Commands) -> None:
    started = commands.start("run", "--plan", commands.long(), "--ranks", "8")
    _until_ranks_exist(commands)
    started.signal_group(signal.SIGINT)
    finished = started.wait()
    assert finished.code == 1, finished.told
    assert "Traceback" not in finished.told
    for folder in store.folders(commands.results):  # the world was faster than the signal
        end = require(store.read(folder).end)
        assert end.status == "interrupted"
    assert not [folder for folder in commands.results.glob("*/*") if not (folder / store.RUN_FILE).exists()]


@pytest.mark.slow
def test_an_impatient_user_presses_ctrl_c_again_and_again(commands: Commands) -> None:
    started = commands.start("run", "--plan", commands.long(), "--ranks", "4")
    before = started.rows(atleast=2)
    for _ in range(20):
        if started.process.poll() is None:
            started.signal_group(signal.SIGINT)
        time.sleep(0.02)
    finished = started.wait()
    assert finished.code in {1, -signal.SIGINT}, finished.told
    assert commands.nobody_left(_GONE_SECONDS)
    _assert_kept(commands.read(), before)


def test_a_killed_launcher_takes_its_ranks_along_and_loses_no_complete_row(commands: Commands) -> None:
    generator = random.Random(7)
    for attempt in range(trials(1, 3)):
        results = commands.folder / str(attempt)
        started = commands.start("run", "--plan", commands.long(), "--ranks", "3", results=results)
        started.rows(atleast=1)
        time.sleep(generator.uniform(0, 0.2))
        before = (started.folder() / store.SAMPLES_FILE).read_bytes().count(b"\n")
        started.process.kill()
        started.wait()
        assert commands.nobody_left(_GONE_SECONDS)
        run = commands.read(results)
        assert len(run.rows) >= before
        assert run.end is None
        assert run.measurements


# --- places ----------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB. Only root can make one."""
    place = tmp_path / "tiny"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)],  # noqa: S607 - wherever it is
        check=False,
        capture_output=True,
        text=True,
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small file system here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)  # noqa: S607 - wherever it is


def test_a_full_disk_ends_the_run_with_the_earlier_rows_kept(commands: Commands, tiny_disk: Path) -> None:
    finished = commands.run(*_more_than_fits(commands), "--results-dir", tiny_disk)
    _assert_stopped_by_the_disk(finished, commands.read(tiny_disk), "No space left on device")


def test_a_results_folder_below_a_file_is_refused_before_anything_starts(commands: Commands) -> None:
    file = commands.folder / "file"
    file.write_text("not a folder\n", encoding="utf-8")
    finished = commands.run("run", "--plan", commands.long(), "--ranks", "2", "--results-dir", file / "results")
    assert finished.code == 2, finished.told
    assert f"{file}/results/" in finished.err
    assert "--results-dir" in finished.err
    assert finished.out == ""


def test_a_port_in_use_is_named(commands: Commands) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        finished = commands.run("run", "--plan", commands.long(), "--ranks", "2", "--port", str(port))
    assert finished.code == 1, finished.told
    assert str(port) in finished.err
    assert "--port" in finished.err
    assert "Traceback" not in finished.told
    assert not list(commands.results.glob("*/*")), "a run that never began leaves no folder"


@pytest.mark.slow
def test_a_free_port_that_is_asked_for_is_taken_again_by_every_launch(commands: Commands) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    commands.succeed(
        "run", "--plan", commands.sweep("all_reduce"), "--ranks", "2", "--port", str(port), "--launches", "2"
    )


# --- what the tests above share --------------------------------------------------------------------------------


def _matches(text: str) -> bool:
    return re.search(rf"during (the pause after )?{_OP_AT_SIZE}", text) is not None


def _with_fault(commands: Commands, fault: str, *arguments: str | Path) -> Finished:
    return commands.run(fault, *arguments, program=commands.program("with_fault.py"))


def _assert_interrupted(commands: Commands, started: Started, before: tuple[object, ...]) -> None:
    finished = started.wait()
    assert finished.code == 1, finished.told
    folder = commands.read().path
    assert finished.err.endswith(f"busbw run --resume {folder}\n")
    assert "Traceback" not in finished.told
    assert not commands.alive()
    run = commands.read()
    _assert_kept(run, before)
    assert not run.failed, "nothing failed: the user had enough"
    assert require(run.end).status == "interrupted"


def _assert_stopped_by_the_disk(finished: Finished, run: store.StoredRun, reason: str) -> None:
    assert finished.code == 1, finished.told
    assert reason in finished.err
    assert "Traceback" not in finished.told
    assert "(host " not in finished.err, "no rank is to blame for a disk"
    assert isinstance(run.rows[0], LaunchStarted)
    assert 0 < len(run.measurements) < plan_of(run.run, None).launches * 2 * len(run.run.cases)
    assert all(isinstance(row, LaunchStarted | Measurement | Failed | Ended) for row in run.rows)
    assert run.end is None or run.end.status == "failed"


def _more_than_fits(commands: Commands) -> tuple[str | Path, ...]:
    """A run whose rows, at 600 B or more each, do not fit into 64 KiB, while run.json does."""
    return "run", "--plan", commands.sweep("all_reduce,all_gather", "1KiB..8KiB+512"), "--ranks", "2", "--launches", "9"


def _until_ranks_exist(commands: Commands) -> None:
    deadline = time.monotonic() + 60
    while len(commands.alive()) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
