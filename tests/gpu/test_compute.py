"""Kernels that compute, on one real GPU: verified in every type and mode. Skipped, with the reason, without one."""

from collections.abc import Callable
from pathlib import Path

import pytest
from testing.gpu import ON_GPU, REAL, heavy, run_on_gpus
from testing.synthetic import case

from busbw.backends.base import Backend
from busbw.measure.unsupported import Place, skip_reason
from busbw.runs import store
from busbw.runs.cases import expand
from busbw.runs.plan import read_suite
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
    one = case(name, 2 * _ELEMENTS[name], 1, backend="nccl", device="cuda", dtype="bfloat16", mode="graph")
    assert replayed(one) == 0


@heavy
@pytest.mark.parametrize("name", _ELEMENTS)
def test_rows_over_buffers_in_turns_are_verified_in_every_set(measured: Measure, name: str) -> None:
    size = 2 * _ELEMENTS[name]
    one = case(name, size, 1, backend="nccl", device="cuda", dtype="bfloat16", mode="pipelined", cache="rotating")
    made = measured(one)
    assert made.check.state == "verified"
    assert made.buffer_sets > 1


def test_no_case_of_the_suite_is_refused_on_one_gpu(backend: Backend) -> None:
    """A dry pass: what it asks for can be run, whatever its sizes would take."""
    cases = expand(read_suite("roofline-gpu"), 1, 1, "cuda").cases
    place = Place(oversubscribed=False, comparable=True)
    refused = {(one.op, one.dtype): reason for one in cases if (reason := skip_reason(one, backend, place)) is not None}
    assert {op for op, _ in refused} <= {"all_reduce"}  # which needs a second rank
    assert {one.op for one in cases} >= {*_ELEMENTS, "stream_triad", "all_reduce"}


@pytest.mark.skipif(not REAL, reason="the shapes of its products take the host of a simulated GPU hours")
def test_the_suite_runs_on_one_gpu_and_is_verified(tmp_path: Path) -> None:
    ran = run_on_gpus(tmp_path, "--suite", "roofline-gpu", "--sizes", "2MiB", "--ranks", "1", "--launches", "1")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (folder,) = store.folders(tmp_path)
    run = store.read(folder)
    assert not run.failed
    assert not run.skipped
    assert {row.check.state for row in run.measurements} == {"verified"}
