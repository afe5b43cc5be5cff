"""Kernels in memory on real ranks: verified, with threads and without, and a wrong one is caught."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from testing.plans import sweep

from busbw.backends.local import kernels
from busbw.ops import LATENCIES
from busbw.ops.local import COPIES
from busbw.ops.settings import host_settings
from busbw.system.environment import usable_cores

if TYPE_CHECKING:
    from tests.integration.conftest import Commands

pytestmark = [pytest.mark.integration, pytest.mark.skipif(kernels.missing() is not None, reason=str(kernels.missing()))]

_ON_CPU = [op for op in COPIES if op.name not in LATENCIES]
_ROWED = [op.name for op in _ON_CPU if not op.fresh]


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_every_kernel_is_verified_over_threads(commands: Commands, ranks: int) -> None:
    modes = {",".join(_ROWED): "pipelined", "memory_touch": "isolated"}
    plan = commands.plan(
        *(sweep(ops, "36KiB,4MiB", dtypes=["float64"], modes=[mode], threads="1,cores") for ops, mode in modes.items())
    )
    commands.succeed("run", "--plan", plan, "--ranks", str(ranks))
    run = commands.read()
    assert not run.failed
    assert not run.skipped
    assert {row.check.state for row in run.measurements} == {"verified"}
    threads = {1, max(1, usable_cores() // ranks)}
    assert {(row.case.op, host_settings(row.case.settings).threads) for row in run.measurements} == {
        (op.name, number) for op in _ON_CPU for number in threads
    }
    assert {row.loop for row in run.measurements} == {"compiled"}
    assert {row.calls for row in run.measurements if row.case.op == "memory_touch"} == {1}
    assert all(min(launch.compiled_call_ns) >= 0 for launch in run.launches)
    assert {len(launch.compiled_call_ns) for launch in run.launches} == {ranks}
    (host,) = run.run.environments.values()
    assert {type(rank.binds_threads) for rank in host.ranks} == {bool}
    assert not commands.alive()


@pytest.mark.slow
def test_more_threads_than_cores_are_skipped_with_the_reason(commands: Commands) -> None:
    finished = commands.run(
        *("run", "--op", "stream_triad", "--sizes", "64KiB", "--ranks", "2"), *("--threads", "1,4096")
    )
    assert finished.code == 0, finished.told
    run = commands.read()
    (row,) = run.skipped
    assert host_settings(row.case.settings).threads == 4096
    assert row.reason.startswith("4096 threads need a core each; a host has ")
    assert {host_settings(row.case.settings).threads for row in run.measurements} == {1}


def test_a_wrong_kernel_is_caught_on_every_rank(commands: Commands) -> None:
    arguments = ("run", "--op", "stream_triad,stream_add", "--sizes", "64KiB", "--dtype", "float64", "--ranks", "2")
    finished = commands.run(*arguments, program=commands.program("with_wrong_kernel.py"))
    assert finished.code == 1, finished.told
    run = commands.read()
    (failed,) = run.failed
    assert failed.case.op == "stream_triad"
    assert failed.error.startswith("wrong data before timing")
    assert {row.case.op for row in run.measurements} == {"stream_add"}
