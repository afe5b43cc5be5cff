"""Kernels that compute, on real ranks: verified, in every type, and judged by the roofline of their host."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from testing.plans import sweep

from busbw.ops.settings import host_settings

if TYPE_CHECKING:
    from tests.integration.conftest import Commands

pytestmark = pytest.mark.integration

_KERNELS = ("matmul", "attention", "attention_unfused")
_TYPES = ("float32", "float64", "bfloat16", "float16")


@pytest.mark.slow
def test_one_rank_has_a_roofline_of_what_it_measured(commands: Commands) -> None:
    plan = commands.plan(
        sweep(",".join(_KERNELS), "16KiB,256KiB", dtypes=_TYPES),
        sweep("matmul", "256KiB", threads="2", modes=["pipelined"]),
        sweep("stream_triad,memory_copy", "1MiB"),
        sweep("matmul,attention", "16KiB", dtypes=["int32"]),
    )
    commands.succeed("run", "--plan", plan, "--ranks", "1")
    run = commands.read()
    assert not run.failed
    assert {row.check.state for row in run.measurements} == {"verified"}
    measured = {(row.case.op, row.case.dtype) for row in run.measurements}
    assert {(op, dtype) for op in _KERNELS for dtype in _TYPES} <= measured
    assert {(row.case.op, host_settings(row.case.settings).threads) for row in run.measurements} >= {("matmul", 2)}
    assert {row.case.dtype for row in run.skipped} == {"int32"}

    commands.succeed("report", "latest", "--results-dir", commands.results)
    (roofline,) = json.loads((run.path / "report.json").read_text(encoding="utf-8"))["rooflines"]
    assert roofline["workers"] == 1
    assert {roof["dtype"] for roof in roofline["compute"]} == set(_TYPES)
    assert [roof["name"] for roof in roofline["memory"] if roof["measured"]] == ["memory"]
    for kernel in roofline["kernels"]:
        assert kernel["flop_per_second"] > 0
        assert kernel["attainable"] > 0
        assert kernel["bound"] in {"memory", "arithmetic"}
    best = max(kernel["flop_per_second"] for kernel in roofline["kernels"] if kernel["op"] == "matmul")
    assert best == max(roof["flop_per_second"] for roof in roofline["compute"])


@pytest.mark.slow
def test_two_ranks_have_a_roofline_of_the_network(commands: Commands) -> None:
    plan = commands.plan(sweep("matmul", "64KiB"), sweep("all_reduce", "1MiB"))
    commands.succeed("run", "--plan", plan, "--ranks", "2")
    commands.succeed("report", "latest", "--results-dir", commands.results)
    document = json.loads((commands.read().path / "report.json").read_text(encoding="utf-8"))
    (network,) = document["network_rooflines"]
    assert network["network_measured"]
    assert network["flop_per_byte"] == pytest.approx(network["flop_per_second"] / network["bytes_per_second"])
    assert document["rooflines"][0]["workers"] == 2


@pytest.mark.slow
def test_a_kernel_without_memory_fails_alone_and_says_so(commands: Commands) -> None:
    plan = commands.sweep(",".join(_KERNELS), "16KiB")
    short = commands.program("no_memory.py")
    finished = commands.run("run", "--plan", plan, "--ranks", "2", program=short)
    assert finished.code == 1, finished.told
    run = commands.read()
    assert {row.case.op for row in run.measurements} == {"matmul", "attention"}
    (failed,) = run.failed
    assert failed.case.op == "attention_unfused"
    assert "allocate" in failed.error
    assert not commands.alive()
