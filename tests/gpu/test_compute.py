"""Kernels that compute, on one real GPU: verified in every type and mode. Skipped, with the reason, without one."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from testing.gpu import GPUS, ON_GPU, REAL, heavy, run_on_gpus
from testing.synthetic import case

from busbw.backends.base import Backend
from busbw.cli.main import main
from busbw.measure.unsupported import Place, skip_reason
from busbw.runs import store
from busbw.runs.cases import expand
from busbw.runs.plan import read_suite, suites
from busbw.runs.records import DTYPE_BYTES, Case, Measurement, Mode

pytestmark = ON_GPU

Measure = Callable[[Case], Measurement]

_ELEMENTS = {"matmul": 1024 * 1024, "attention": 512 * 1024, "attention_unfused": 512 * 1024}
if not REAL:  # 256 × 256, and 64 tokens
    _ELEMENTS = {"matmul": 1 << 16, "attention": 1 << 15, "attention_unfused": 1 << 15}


@pytest.mark.parametrize("name", _ELEMENTS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_every_type_is_verified(measured: Measure, name: str, dtype: str) -> None:
    size = _ELEMENTS[name] * DTYPE_BYTES[dtype]
    made = measured(case(name, size, 1, backend="nccl", device="cuda", dtype=dtype))
    assert made.check.state == "verified"


@pytest.mark.parametrize("name", _ELEMENTS)
@pytest.mark.parametrize("mode", ["pipelined", "graph"])
def test_rows_and_graphs_are_verified_and_timed_by_the_device(measured: Measure, name: str, mode: Mode) -> None:
    made = measured(case(name, 2 * _ELEMENTS[name], 1, backend="nccl", device="cuda", dtype="bfloat16", mode=mode))
    assert made.check.state == "verified"
    assert made.groups[0].timed_by == "device"


@pytest.mark.parametrize("name", _ELEMENTS)
def test_the_replay_of_a_graph_leaves_what_a_call_leaves(replayed: Callable[[Case], int], name: str) -> None:
    kernel = case(name, 2 * _ELEMENTS[name], 1, backend="nccl", device="cuda", dtype="bfloat16", mode="graph")
    assert replayed(kernel) == 0


@heavy
@pytest.mark.parametrize("name", _ELEMENTS)
def test_rows_over_buffers_in_turns_are_verified_in_every_set(measured: Measure, name: str) -> None:
    size = 2 * _ELEMENTS[name]
    kernel = case(name, size, 1, backend="nccl", device="cuda", dtype="bfloat16", mode="pipelined", cache="rotating")
    made = measured(kernel)
    assert made.check.state == "verified"
    assert made.buffer_sets > 1


def test_no_case_of_the_suite_is_refused_on_one_gpu(backend: Backend) -> None:
    """A dry pass: what it asks for can be run, whatever its sizes would take."""
    cases = expand(read_suite("roofline-gpu"), 1, 1, "cuda").cases
    place = Place(oversubscribed=False, comparable=True)
    refused = {
        (case.op, case.dtype): reason for case in cases if (reason := skip_reason(case, backend, place)) is not None
    }
    assert {op for op, _ in refused} <= {"all_reduce"}  # which needs a second rank
    assert {case.op for case in cases} >= {*_ELEMENTS, "stream_triad", "all_reduce"}


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=() if REAL else pytest.mark.slow), *{GPUS} - {1}])
def test_the_suite_draws_the_roofline_of_the_gpus(tmp_path: Path, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of simulated ones, whose products the host makes, of one size, and the rates are those that they were given."""
    monkeypatch.setenv("SIMULATED_MACHINE", str(TRUTH))
    small = tmp_path / "plan.toml"
    small.write_text(re.sub("^sizes = .*", 'sizes = "1MiB"', suites()["roofline-gpu"], flags=re.MULTILINE))
    suite = ("--suite", "roofline-gpu") if REAL else ("--plan", str(small))
    ran = run_on_gpus(tmp_path, *suite, "--ranks", str(ranks), "--launches", "1", "--quiet")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (folder,) = store.folders(tmp_path)
    run = store.read(folder)
    assert not run.failed
    assert {row.case.op for row in run.skipped} == ({"all_reduce"} if ranks == 1 else set())
    assert {row.check.state for row in run.measurements} == {"verified"}
    reported = CliRunner().invoke(main, ["report", str(folder), "--json", "--output", str(tmp_path / "report")])
    (roofline,) = json.loads(reported.stdout)["rooflines"]
    compute = {peak["dtype"]: peak["flop_per_second"] for peak in roofline["compute"] if peak["measured"]}
    memory = [peak["bytes_per_second"] for peak in roofline["memory"] if peak["measured"]]
    kernels = {kernel["op"]: kernel["flop_per_second"] for kernel in roofline["kernels"]}
    assert kernels.keys() == {"matmul", "attention", "attention_unfused", "stream_triad", "stream_add", "stream_scale"}
    if not REAL:
        flops, hbm = pytest.approx(TRUTH["flops"], rel=0.01), pytest.approx(TRUTH["hbm"], rel=0.01)
        assert compute == {"bfloat16": flops, "float32": flops}
        assert kernels["attention"] == flops
        assert memory == [hbm]
        triad_flop_per_byte = 2 / 12
        assert kernels["stream_triad"] == pytest.approx(TRUTH["hbm"] * triad_flop_per_byte, rel=0.01)


TRUTH = {"flops": 1e8, "hbm": 1e8}
"""FLOP/s and B/s of a simulated GPU: slow, so that what the host executes within a sample is a single call."""
