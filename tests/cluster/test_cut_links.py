"""The network goes in the middle of a run: every rank ends in bounded time, and says which ranks it lost, and when."""

from __future__ import annotations

import subprocess
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from bed import Bed
from bed.hosts import wait_until
from exhaustive import AT_NIGHT
from testing.narrow import require
from testing.plans import QUICK, plan_text, sweep

from busbw.runs import store

_TIMEOUT = 4.0
_BOUND = 2 * _TIMEOUT + 5
_BUSY_SECONDS = 15.0
"""What a machine that is busy with something else may take on top; without a bound it is a quarter of an hour."""

_PORT = 29520


def _plan(path: Path, op: str, warmup: float = 0.0, seconds: float = 0.2) -> Path:
    timing = {"blocks": 100, "min_samples": 2, "least_samples": 2, "min_seconds": seconds, "max_seconds": seconds}
    timing |= {"launch_warmup_seconds": warmup, "timeout_seconds": _TIMEOUT}
    path.write_text(plan_text(sweep(op, "1MiB"), timing={**QUICK, **timing}), encoding="utf-8")
    return path


def _rank(bed: Bed, stack: ExitStack, rank: int, size: int, plan: Path, results: Path) -> subprocess.Popen[str]:
    place = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
    world = {**place, "MASTER_ADDR": bed.address("n1"), "MASTER_PORT": _PORT, "BUSBW_SECRET": "0123456789abcdef"}
    variables = [f"{name}={value}" for name, value in world.items()]
    run = ["busbw", "run", "--plan", str(plan), "--timeout", f"{_TIMEOUT:g}", "--results-dir", str(results)]
    return stack.enter_context(bed.running_on(f"n{rank + 1}", ["env", *variables, *run]))


def _connected(bed: Bed, host: str) -> bool:
    tables = [Path(f"/proc/{bed.pid(host)}/net/{name}").read_text(encoding="ascii") for name in ("tcp", "tcp6")]
    lines = (line.split() for table in tables for line in table.splitlines())
    return any(line[2].endswith(f":{_PORT:04X}") and line[3] == "01" for line in lines)


def _ended(processes: list[subprocess.Popen[str]], since: float) -> list[tuple[int, str]]:
    """Exit status and words of every rank; fails when one goes on for longer than is promised."""
    left = [max(since + _BOUND + _BUSY_SECONDS - time.monotonic(), 0.1) for _ in processes]
    outputs = [process.communicate(timeout=seconds) for process, seconds in zip(processes, left, strict=True)]
    return [(process.returncode, "".join(said)) for process, said in zip(processes, outputs, strict=True)]


MOMENTS = {
    "warm-up": ("barrier", 300.0, 0.2, "the warm-up of the launch"),
    "measuring": ("all_reduce", 0.0, 0.2, "all_reduce"),
    "between blocks": ("memory_copy", 0.0, 1.0, "memory_copy"),
}


@pytest.mark.parametrize("moment", ["warm-up", pytest.param("measuring", marks=AT_NIGHT), "between blocks"])
def test_both_sides_of_a_cut_end_and_name_each_other(network: Bed, tmp_path: Path, moment: str) -> None:
    op, warmup, seconds, where = MOMENTS[moment]
    plan, results = _plan(tmp_path / "plan.toml", op, warmup, seconds), tmp_path / "results"
    with ExitStack() as stack:
        ranks = [_rank(network, stack, rank, 2, plan, results) for rank in range(2)]
        rows = 0 if moment == "warm-up" else 2
        wait_until(
            lambda: any(
                (run := store.read(folder)).launches and len(run.rows) >= rows for folder in store.folders(results)
            ),
            "nothing is measured",
        )
        network.cut("n2")
        (first, said_first), (second, said_second) = _ended(ranks, time.monotonic())
    assert (first, second) == (1, 1), (said_first, said_second)
    assert "rank 1 (host n2) did not answer during " in said_first
    assert "rank 0 (host n1) did not answer during " in said_second
    assert where in said_first
    assert where in said_second
    (folder,) = store.folders(results)
    end = require(store.read(folder).end)
    assert end.status == "failed"


def test_a_rank_that_is_cut_off_while_others_are_still_to_come_ends(network: Bed, tmp_path: Path) -> None:
    plan = _plan(tmp_path / "plan.toml", "barrier")
    with ExitStack() as stack:
        ranks = [_rank(network, stack, rank, 3, plan, tmp_path / "results") for rank in range(2)]
        wait_until(lambda: _connected(network, "n2"), "rank 1 does not come")
        network.cut("n2")
        (first, said_first), (second, said_second) = _ended(ranks, time.monotonic())
    assert (first, second) == (1, 1), (said_first, said_second)
    assert "rank 1" in said_second
    assert not list(store.folders(tmp_path / "results"))


def test_local_ranks_end_when_the_loopback_goes(network: Bed, tmp_path: Path) -> None:
    plan, results = _plan(tmp_path / "plan.toml", "all_reduce"), tmp_path / "results"
    run = ["busbw", "run", "--plan", str(plan), "--ranks", "2", "--timeout", f"{_TIMEOUT:g}"]
    with ExitStack() as stack:
        process = stack.enter_context(network.running_on("n3", [*run, "--results-dir", str(results)]))
        wait_until(
            lambda: any(store.read(folder).measurements for folder in store.folders(results)), "nothing is measured"
        )
        network.run_on("n3", ["ip", "link", "set", "lo", "down"])
        stack.callback(network.run_on, "n3", ["ip", "link", "set", "lo", "up"])
        ((status, said),) = _ended([process], time.monotonic())
    assert status == 1, said
    assert "all_reduce" in said
    assert "n3" in said
