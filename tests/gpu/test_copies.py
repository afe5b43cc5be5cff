"""Copies of a real GPU: inside of it, with the host, to another one. Skipped, with the reason, where there is none."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from testing.gpu import FEWER, GPUS, ON_GPU, REAL, heavy, run_on_gpus
from testing.narrow import require
from testing.synthetic import case

from busbw.backends.base import Backend, Bound
from busbw.backends.cuda import CudaDevice
from busbw.backends.local import LOCAL
from busbw.backends.pytorch import nccl
from busbw.measure.unsupported import Place, skip_reason
from busbw.ops import OPS
from busbw.ops.settings import host_settings
from busbw.runs import store
from busbw.runs.records import Case, Measurement, Mode
from busbw.system.device import Device

pytestmark = ON_GPU

Measure = Callable[[Case], Measurement]
SIZE = (1 << 22) // FEWER
KERNELS = ("memory_copy", "stream_copy", "stream_scale", "stream_add", "stream_triad", "memory_read", "memory_write")
WITH_HOST = ("host_to_device", "device_to_host", "host_and_device")
HOLD_NS = 50_000_000


def one_case(
    op: str, mode: Mode, *, pre_enqueue: bool = False, pinning: str | None = None, dtype: str = "float32"
) -> Case:
    return case(
        op, SIZE, 1, backend="nccl", device="cuda", mode=mode, pre_enqueue=pre_enqueue, pinning=pinning, dtype=dtype
    )


@pytest.mark.parametrize("op", KERNELS)
@pytest.mark.parametrize(
    ("mode", "pre_enqueue", "dtype"),
    [("isolated", False, "float32"), ("pipelined", True, "float64"), ("graph", False, "float32")],
)
def test_kernels_in_its_memory_are_exact(measured: Measure, op: str, mode: Mode, pre_enqueue: bool, dtype: str) -> None:  # noqa: FBT001
    made = measured(one_case(op, mode, pre_enqueue=pre_enqueue, dtype=dtype))
    assert made.check.state == "verified"
    assert made.groups[0].timed_by == ("host" if mode == "isolated" else "device")


@pytest.mark.parametrize(
    ("op", "pre_enqueue"), [*((op, False) for op in KERNELS), ("memory_copy", True), ("stream_triad", True)]
)
def test_rows_over_buffers_in_turns_are_verified_in_every_set(measured: Measure, op: str, pre_enqueue: bool) -> None:  # noqa: FBT001
    made = measured(
        case(op, SIZE, 1, backend="nccl", device="cuda", mode="pipelined", pre_enqueue=pre_enqueue, cache="rotating")
    )
    assert made.check.state == "verified"
    assert made.buffer_sets > 1
    assert made.groups[0].timed_by == "device"


@pytest.mark.parametrize("op", WITH_HOST)
def test_rows_with_the_host_take_their_buffers_in_turns(measured: Measure, op: str) -> None:
    copy = case(op, SIZE, 1, backend="nccl", device="cuda", mode="pipelined", cache="rotating", pinning="pinned")
    made = measured(copy)
    assert made.check.state == "verified"
    assert made.buffer_sets > 1


@pytest.mark.parametrize("op", [*KERNELS, *WITH_HOST])
def test_the_replay_of_a_graph_leaves_what_a_call_leaves(replayed: Callable[[Case], int], op: str) -> None:
    pinning = "pinned" if op in WITH_HOST else None
    assert replayed(case(op, SIZE, 1, backend="nccl", device="cuda", mode="graph", pinning=pinning)) == 0


@pytest.mark.parametrize("op", WITH_HOST)
@pytest.mark.parametrize("pinning", ["pinned", "pageable"])
@pytest.mark.parametrize(
    ("mode", "pre_enqueue"), [("isolated", False), ("pipelined", False), ("pipelined", True), ("graph", False)]
)
def test_copies_with_the_host_are_verified_or_refused_in_words(
    backend: Backend,
    measured: Measure,
    op: str,
    pinning: str,
    mode: Mode,
    pre_enqueue: bool,  # noqa: FBT001
) -> None:
    copy = one_case(op, mode, pre_enqueue=pre_enqueue, pinning=pinning)
    reason = skip_reason(copy, backend, Place(oversubscribed=False, comparable=True))
    pageable = pinning == "pageable"
    assert (reason is not None) == (pageable and (pre_enqueue or mode == "graph" or op == "host_and_device"))
    if reason is None:
        assert measured(copy).check.state == "verified"


def bound(device: Device, op: str, *, peer: str | None = None, **settings: str) -> Bound:
    copy = case(op, SIZE, 2 if peer else 1, backend="nccl", device="cuda", **settings)
    send = torch.arange(copy.count, device=device.name, dtype=torch.float32) % 1021
    return Bound(copy, send, torch.full_like(send, -1.0), device, peers=(device.name, peer))


@pytest.mark.parametrize("op", ["host_to_device", "device_to_host"])
def test_memory_of_the_host_is_pinned_where_it_is_called_so(device: Device, op: str) -> None:
    for pinning in ("pinned", "pageable"):
        made = LOCAL[op].bind(bound(device, op, pinning=pinning))
        (host,) = (buffer for buffer in require(made.buffers) if buffer.device.type == "cpu")
        assert host.is_pinned() == (pinning == "pinned")


def test_both_directions_count_what_is_wrong_in_either(device: Device) -> None:
    made = LOCAL["host_and_device"].bind(bound(device, "host_and_device", pinning="pinned"))
    assert made.wrong is not None
    assert made.buffers is not None
    device.synchronise()
    assert made.wrong() > 0, "nothing was copied yet"
    made.call()
    device.synchronise()
    assert made.wrong() == 0
    made.call()
    device.synchronise()
    made.buffers[1][7] += 1
    assert made.wrong() == 1


def test_two_streams_run_at_once_and_the_marks_wait_for_both(device: Device) -> None:
    device.hold(1_000_000)  # calibrated before
    both = device.together(lambda: device.hold(HOLD_NS), lambda: device.hold(HOLD_NS))
    before, after = device.mark(), device.mark()
    device.synchronise()
    before.record()
    both()
    after.record()
    device.synchronise()
    assert HOLD_NS / 2 < after.ns_since(before) < 1.8 * HOLD_NS, (
        "one hold, its clock may rise; two in turn are twice that"
    )


@pytest.mark.parametrize("op", ["peer_copy", "peer_copy_both", "peer_copy_staged", "peer_copy_sm", "peer_one_to_all"])
def test_a_copy_to_a_peer_arrives_also_where_the_peer_is_the_same_gpu(device: Device, op: str) -> None:
    """What one GPU can show of it: streams that wait for each other, and the marks for both."""
    made = LOCAL[op].bind(bound(device, op, pairs="together", peer=device.name))
    source, target = require(made.buffers)
    made.call()
    device.synchronise()
    assert bool((source == target).all())
    source.add_(1)
    made.call()
    made.call()
    device.synchronise()
    assert bool((source == target).all())


def test_a_process_sees_its_own_gpu_by_its_name(device: Device) -> None:
    assert isinstance(device, CudaDevice)
    seen = nccl.view("here", device)
    assert seen.gpu is not None, "this torch tells UUIDs"
    assert seen.names[seen.gpu] == device.name
    assert seen.gpu not in seen.access
    assert msgspec.json.decode(msgspec.json.encode(seen), type=nccl.View) == seen


def run_command(folder: Path, *arguments: str) -> store.StoredRun:
    ran = run_on_gpus(folder, *arguments)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (made,) = store.folders(folder)
    return store.read(made)


@pytest.mark.alone  # beside three others it comes near the limit of a command
@heavy
def test_the_suite_runs_on_one_gpu_and_says_why_it_has_no_pair(tmp_path: Path) -> None:
    size = "1MiB" if REAL else "64KiB"
    run = run_command(tmp_path, "--suite", "memory-gpu", "--sizes", size, "--ranks", "1", "--launches", "1")
    assert not run.failed
    assert {row.check.state for row in run.measurements} == {"verified"}
    assert {row.case.op for row in run.measurements} == {*KERNELS, *WITH_HOST, "memory_latency"}
    reasons = {row.case.op: row.reason for row in run.skipped if host_settings(row.case.settings).pinning != "pageable"}
    pairs = [name for name, op in OPS.items() if op.between_devices]
    assert reasons == {op: f"{op} needs at least 2 ranks in every group; the smallest has 1" for op in pairs}


@pytest.mark.skipif(not REAL, reason="one of some 20 simulated runs was a SIGSEGV, none of 15 with faulthandler")
@pytest.mark.skipif(GPUS < 2, reason="needs two GPUs")
def test_every_pair_of_two_gpus_copies_or_says_why_not(tmp_path: Path) -> None:
    ops = "peer_copy,peer_copy_both,peer_copy_staged"
    run = run_command(tmp_path, "--op", ops, "--sizes", "1MiB", "--ranks", "2", "--mode", "isolated,pipelined")
    assert not run.failed
    staged = [row for row in run.measurements if row.case.op == "peer_copy_staged"]
    assert len({row.case for row in staged}) == 2
    for row in run.measurements:
        assert row.check.state == "verified"
        assert sorted(group.ranks for group in row.groups) == [(0, 1), (1, 0)]
    assert all("access" in row.reason for row in run.skipped)
