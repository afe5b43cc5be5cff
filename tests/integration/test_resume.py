"""A run that was broken off, and gone on with: real ranks, real signals, and in the end a whole run."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from exhaustive import thinned, trials
from testing.narrow import require
from tests.integration.conftest import until

from busbw.backends import BACKENDS
from busbw.runs import store

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.conftest import Commands, Finished, Started

    from busbw.runs.records import Case
    from busbw.runs.store import StoredRun

pytestmark = pytest.mark.integration

_RANKS = 2
_LAUNCHES = 3
_OPS = "all_reduce,all_gather"
_BLOCKS = 2


def _start(commands: Commands) -> Started:
    plan = commands.sweep(_OPS, "1KiB..3KiB+1KiB", in_place="both")
    return commands.start("run", "--plan", plan, "--ranks", str(_RANKS), "--launches", str(_LAUNCHES))


def _broken_off(commands: Commands, number: signal.Signals) -> StoredRun:
    """A run whose launcher got a signal in the middle of its second launch."""
    started = _start(commands)
    started.rows(atleast=1)
    run = store.read(started.folder())
    a_launch = (len(run.run.cases) - len(run.skipped)) * _BLOCKS
    started.rows(atleast=a_launch + 3)
    started.process.send_signal(number)
    started.wait()
    assert commands.nobody_left(within_seconds=20)
    return commands.read()


def _resume(commands: Commands, *arguments: str | Path) -> Finished:
    return commands.run("run", "--resume", "latest", *arguments)


def _blocks(run: StoredRun) -> list[tuple[int, Case, int]]:
    """Every block: the launch that it was planned for, its case, its number."""
    origin = {row.launch: row.launch if row.resumes is None else row.resumes for row in run.launches}
    return [(origin[row.launch], row.case, row.block) for row in run.measurements]


def _assert_whole(run: StoredRun, launches: int = _LAUNCHES) -> None:
    """Cases × launches × blocks, as of a run that nobody disturbed."""
    skipped = {row.case for row in run.skipped}
    cases = [case for case in run.run.cases if case not in skipped]
    assert cases
    assert len(run.skipped) == len(skipped)
    blocks = _blocks(run)
    assert len(blocks) == len(set(blocks)) == len(cases) * launches * _BLOCKS
    origins = {origin for origin, _, _ in blocks}
    assert len(origins) == launches
    assert set(blocks) == {(origin, case, block) for origin in origins for case in cases for block in range(_BLOCKS)}
    assert run.end is not None
    assert (run.end.status, run.end.reason) == ("complete", None)
    assert not run.warnings


def test_a_run_broken_off_in_its_second_launch_becomes_a_whole_one(commands: Commands) -> None:
    before = _broken_off(commands, signal.SIGKILL)
    assert [row.launch for row in before.launches] == [0, 1]
    listed = _resume(commands, "--dry-run")
    assert listed.code == 0, listed.told
    finished = _resume(commands)
    assert finished.code == 0, finished.told
    after = commands.read()
    assert after.rows[: len(before.rows)] == before.rows
    assert [(row.launch, row.resumes, row.order_seed) for row in after.launches] == [
        (0, None, 1),
        (1, None, 2),
        (2, 1, 3),
        (3, None, 4),
    ]
    _assert_whole(after)
    content = (after.path / store.SAMPLES_FILE).read_bytes()
    again = _resume(commands)
    assert again.code == 0, again.told
    assert (after.path / store.SAMPLES_FILE).read_bytes() == content


@pytest.mark.slow
def test_a_run_that_goes_on_cannot_be_resumed_until_it_is_gone_and_then_only_by_one(commands: Commands) -> None:
    started = _start(commands)
    started.rows(atleast=2)
    refused = _resume(commands)
    assert refused.code == 1, refused.told
    started.process.kill()
    started.wait()
    assert commands.nobody_left(within_seconds=20)
    both = [commands.start("run", "--resume", "latest") for _ in range(2)]
    ended = [command.wait() for command in both]
    assert sorted(finished.code for finished in ended) in ([0, 0], [0, 1]), [finished.told for finished in ended]
    assert all(finished.code == 0 or "measured" in finished.err for finished in ended)
    _assert_whole(commands.read())


@pytest.mark.slow
def test_below_torchrun_a_run_gets_one_launch_at_a_time(commands: Commands) -> None:
    plan = commands.sweep("all_reduce,all_gather", "1KiB..4KiB+512")
    started = commands.start("run", "--plan", plan, program=commands.torchrun(_RANKS))
    started.rows(atleast=2)
    for pid in started.pids():
        os.kill(pid, signal.SIGKILL)
    started.wait()
    before = commands.read()
    commands.succeed("run", "--resume", "latest", "--launches", "2", program=commands.torchrun(_RANKS))
    middle = commands.read()
    assert middle.rows[: len(before.rows)] == before.rows
    assert [row.resumes for row in middle.launches] == [None, 0]
    assert require(middle.end).status == "interrupted"
    commands.succeed("run", "--resume", "latest", program=commands.torchrun(_RANKS))
    assert [row.resumes for row in commands.read().launches] == [None, 0, None]
    _assert_whole(commands.read(), launches=2)
    again = commands.succeed("run", "--resume", "latest", program=commands.torchrun(_RANKS))
    assert again.err.count("nothing is missing in run") == 1


_BREAKS = [
    *(("a rank", number) for number in (signal.SIGKILL, signal.SIGSTOP)),
    *(("the launcher", number) for number in (signal.SIGTERM, signal.SIGKILL)),
    *(("all processes", number) for number in (signal.SIGINT, signal.SIGUSR1)),
    ("the samples", signal.SIGTERM),
]
_TIMEOUT_SECONDS = 4


@pytest.mark.slow
@pytest.mark.timeout(600)  # runs of seconds each, of which a busy machine makes minutes
@pytest.mark.usefixtures("no_shared_memory_left")
@pytest.mark.parametrize(("whom", "number"), thinned(_BREAKS, 2))
def test_a_run_broken_at_any_moment_leaves_nothing_and_becomes_whole(
    commands: Commands, whom: str, number: signal.Signals
) -> None:
    """Over Gloo or over MPI, in turns."""
    backends = [name for name in ("mpi", "gloo") if BACKENDS[name].missing() is None]
    temporary = commands.folder / "temporary"
    temporary.mkdir()
    for attempt in range(trials(1, 10)):
        dice = random.Random(f"{whom} {number} {attempt}")
        results, backend = commands.folder / str(attempt), backends[attempt % len(backends)]
        options = ("--ranks", str(_RANKS), "--launches", str(_LAUNCHES), "--timeout", str(_TIMEOUT_SECONDS))
        started = commands.start(
            *("run", "--plan", commands.sweep("all_reduce,broadcast", "1KiB..8KiB*2"), *options, "--backend", backend),
            environment={"TMPDIR": str(temporary)},
            results=results,
        )
        started.rows(atleast=dice.randrange(1, 40))
        time.sleep(dice.uniform(0, 0.1))
        culprit = _break(started, whom, number, dice)
        began = time.monotonic()
        finished = started.wait()
        assert "Traceback" not in finished.told
        assert finished.code != 1 or culprit in finished.err, finished.told
        assert whom == "the samples" or time.monotonic() - began < 2 * _TIMEOUT_SECONDS + 5
        assert commands.nobody_left(within_seconds=5)
        assert list(temporary.iterdir()) == []
        commands.succeed("run", "--resume", "latest", "--quiet", "--results-dir", results)
        _assert_whole(commands.read(results))


def _break(started: Started, whom: str, number: signal.Signals, dice: random.Random) -> str:
    """Break it. Return what stderr has to name, where the run notices before it is through."""
    rank = dice.randrange(_RANKS)
    with suppress(ProcessLookupError):  # a launch has ended meanwhile
        if whom == "a rank":
            os.kill(started.pids()[rank], number)
            return f"rank {rank} "
        if whom == "all processes":
            started.signal_group(number)
        elif whom == "the launcher":
            started.process.send_signal(number)
        else:
            (started.folder() / store.SAMPLES_FILE).unlink()
    return ""


@pytest.mark.slow
def test_a_run_with_a_duration_that_was_killed_is_resumed_until_it_is_over(commands: Commands) -> None:
    plan = commands.sweep("all_reduce", "1KiB,2KiB")
    started = commands.start("run", "--plan", plan, "--ranks", str(_RANKS), "--duration", "5s")
    until(lambda: len(store.read(started.folder()).windows) >= _RANKS * 2 or None, "no windows", started.process)
    started.process.kill()
    started.wait()
    assert commands.nobody_left(within_seconds=20)
    before = commands.read()
    assert 0 < before.windows[-1].end_ns < 5e9
    assert before.end is None
    finished = _resume(commands)
    assert finished.code == 0, finished.told
    after = commands.read()
    assert after.rows[: len(before.rows)] == before.rows
    assert after.end is not None
    assert after.end.status == "complete"
    assert after.windows[-1].end_ns > 4.5e9
    assert [row.resumes for row in after.launches] == [None, 0]
    _assert_whole(after, launches=1)
    assert _resume(commands).code == 0
    assert len(commands.read().rows) == len(after.rows)
