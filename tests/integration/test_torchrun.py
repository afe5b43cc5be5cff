"""The same command below torchrun: it joins the world that it finds."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from exhaustive import AT_NIGHT, EXHAUSTIVE
from testing.narrow import require, require_type
from tests.integration.conftest import until

from busbw.runs import store
from busbw.runs.records import Failed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.integration.conftest import Commands, Started

pytestmark = pytest.mark.integration


def test_it_joins_the_world_and_writes_one_run(commands: Commands) -> None:
    plan = commands.sweep("all_reduce,all_gather,pair_matrix,barrier")
    finished = commands.succeed(
        *("run", "--plan", plan), program=commands.torchrun(3, commands.program("threads_left.py")[1:])
    )
    left = {f"rank {rank} leaves with 0 of Gloo's threads" for rank in range(3)}
    assert left <= set(finished.err.replace("busbw: ", "").splitlines()), finished.told
    run = commands.read()
    assert run.run.launcher == "torchrun"
    assert {case.ranks for case in run.run.cases} == {3}
    assert len(set(run.launches[0].pids)) == 3
    assert not run.not_reached
    assert not run.failed
    assert require(run.end).status == "complete"
    assert finished.err.count("# op ") == 1, "one rank prints the table"


@pytest.mark.slow
def test_a_host_that_is_started_on_twice_is_said_and_ranks_have_their_places(commands: Commands) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    plan = commands.sweep("all_reduce")
    agents = [
        commands.start(
            *("run", "--plan", plan),
            program=(
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(agent)),
                *("--nproc-per-node", "2", "--master-addr", "127.0.0.1", "--master-port", str(port), "-m", "busbw"),
            ),
        )
        for agent in range(2)
    ]
    first, *_ = finished = [agent.wait() for agent in agents]
    assert [one.code for one in finished] == [0, 0], [one.told for one in finished]
    host = socket.gethostname()
    assert "caution" in first.err
    ranks = commands.read().run.environments[host].ranks
    assert [(rank.rank, rank.local_rank) for rank in ranks] == [(0, 0), (1, 1), (2, 0), (3, 1)]
    assert all(rank.cores for rank in ranks)


def _under_way(commands: Commands, ranks: Sequence[int]) -> list[Started]:
    """A long run below torchrun for each of ``ranks``, in a results folder of that name."""
    return [
        commands.start(
            *("run", "--plan", commands.long(), "--timeout", "12"),
            program=commands.torchrun(3),
            results=commands.folder / str(rank),
        )
        for rank in ranks
    ]


def _blamed(told: str, rank: int) -> bool:
    """Whether ``rank`` is named with its host, and nobody beside it: the others waited for it."""
    said = re.findall(r"^busbw: (.*) did not answer during ", told, re.MULTILINE)
    return bool(said) and set(said) == {f"rank {rank} (host {socket.gethostname()})"}


def _end(pid: int) -> None:
    """Of a process that does not end by itself, for which torchrun would wait half a minute."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGSTOP, pytest.param(signal.SIGKILL, marks=AT_NIGHT)])
def test_a_lost_rank_is_named_and_nothing_is_lost_with_it(commands: Commands, number: signal.Signals) -> None:
    ranks = (0, 2) if EXHAUSTIVE else (2,)
    started = _under_way(commands, ranks)
    before = [command.rows(atleast=2) for command in started]
    for rank, command in zip(ranks, started, strict=True):
        os.kill(command.pids()[rank], number)
    for rank, command, rows in zip(ranks, started, before, strict=True):
        pids = command.pids()
        commands.until_gone(pid for other, pid in enumerate(pids) if other != rank)
        _end(pids[rank])
        finished = command.wait()
        assert finished.code != 0
        assert _blamed(finished.err, rank), finished.told
        run = commands.read(command.results)
        assert run.rows[: len(rows)] == rows
        if rank != 0:
            assert require(run.end).status == "failed"
            assert f"rank {rank} " in str(require(run.end).reason)


@pytest.mark.slow
def test_a_rank_that_waited_in_the_check_is_not_blamed_for_the_one_it_waited_for(commands: Commands) -> None:
    """Rank 1 sends to rank 2, which hangs, and runs into the timeout; rank 0 has its data and waits for both in the
    vote on the check. When rank 1 comes to vote, it must not wait for a second timeout, while rank 0 listens and goes.
    """
    started = commands.start(
        *("hang-last", "run", "--plan", commands.sweep("broadcast"), "--root", "1", "--timeout", "12"),
        program=commands.torchrun(3, commands.program("with_fault.py")[1:]),
    )
    folder = started.folder()
    first, second, hung = until(lambda: next((row.pids for row in store.read(folder).launches), None), "no launch")
    commands.until_gone((first, second))
    _end(hung)
    finished = started.wait()
    assert finished.code != 0
    assert _blamed(finished.err, 2), finished.told
    run = commands.read()
    assert require_type(Failed, run.rows[-2]).error.startswith(
        f"rank 2 (host {socket.gethostname()}) did not answer during broadcast at "
    )


@pytest.mark.slow
def test_ctrl_c_ends_in_order(commands: Commands) -> None:
    plan = commands.long()
    # What torchrun promises may be repeated.
    started = commands.start("run", "--plan", plan, "--ranks", "2", program=commands.torchrun(2))
    before = started.rows(atleast=2)
    started.signal_group(signal.SIGINT)
    finished = started.wait()
    assert finished.code != 0
    run = commands.read()
    assert run.rows[: len(before)] == before
    assert require(run.end).status == "interrupted"


@pytest.mark.slow
def test_a_killed_torchrun_takes_its_ranks_along(commands: Commands) -> None:
    started = commands.start("run", "--plan", commands.long(), program=commands.torchrun(2))
    before = started.rows(atleast=1)
    started.process.kill()
    started.wait()
    assert commands.nobody_left(within_seconds=20)
    folder = started.folder()
    assert store.read(folder).rows[: len(before)] == before
