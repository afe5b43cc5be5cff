"""One real GPU at world size 1: what is a fact whatever its speed. Skipped, with the reason, where there is none."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from simulated.device import current
from testing.gpu import FEWER, GPUS, ON_GPU, REAL, heavy, run_on_gpus
from testing.narrow import require
from testing.synthetic import case

from busbw.backends.base import Backend
from busbw.measure.unsupported import Place, unsuited
from busbw.ops import OPS
from busbw.runs import store
from busbw.runs.records import Cache, Case, Measurement, Mode
from busbw.system.device import Device

pytestmark = ON_GPU

SIZE = (1 << 20) // FEWER
PLACE = Place(oversubscribed=False, comparable=True)
TICK_NS = 2_000
"""Steps of the events' clock, rounded up: what a device's time may be longer than the host's around it."""


Measure = Callable[[Case], Measurement]


def one_case(mode: Mode, *, pre_enqueue: bool = False, cache: Cache = "warm", op: str = "all_reduce") -> Case:
    return case(op, SIZE, 1, backend="nccl", device="cuda", mode=mode, pre_enqueue=pre_enqueue, cache=cache)


@pytest.mark.parametrize("mode", ["isolated", "pipelined", "graph", "overlap"])
@pytest.mark.parametrize("pre_enqueue", [False, True])
def test_every_mode_is_verified_and_timed_by_both_clocks(measured: Measure, mode: Mode, pre_enqueue: bool) -> None:  # noqa: FBT001
    made = measured(one_case(mode, pre_enqueue=pre_enqueue, op="all_gather"))
    (group,) = made.groups
    assert made.check.state == "verified"
    assert group.timed_by == ("host" if mode == "isolated" and not pre_enqueue else "device")
    by_device, by_host = group.slowest_ns, require(group.other_clock_ns)
    if group.timed_by == "host":
        by_device, by_host = by_host, by_device
    for on_device, on_host in zip(by_device, by_host, strict=True):
        assert 0 < on_device <= on_host + TICK_NS, "the host's time has the device's in it"
    assert group.bus_factor is None, "there is no wire"
    if mode != "isolated":  # there a call that is short for the clock is made several times in a sample
        assert (made.calls > 1) == (mode in {"pipelined", "graph"})


@pytest.mark.skipif(REAL, reason="a simulated GPU can have either name")
@pytest.mark.parametrize("op", ["all_reduce", "memory_copy", "host_to_device"])
def test_a_gpu_of_amd_has_the_same_calls(measured: Measure, op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch calls AMD's GPUs CUDA devices and RCCL NCCL; that they are AMD's stands in its version alone."""
    monkeypatch.setattr(torch.version, "hip", "6.2.41133")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert measured(one_case("isolated", op=op)).check.state == "verified"


@pytest.mark.parametrize(
    ("op", "in_place"), [("all_reduce", True), ("all_reduce", False), ("all_gather", False), ("all_gather", True)]
)
@pytest.mark.parametrize("mode", ["pipelined", "graph"])
def test_registered_buffers_are_those_of_the_calls(measured: Measure, op: str, in_place: bool, mode: Mode) -> None:  # noqa: FBT001
    planned = msgspec.structs.replace(one_case(mode, op=op), in_place=in_place)
    before = 0 if REAL else current().nccl.registered_calls
    assert measured(planned).check.state == "verified"
    assert REAL or current().nccl.registered_calls == before
    assert measured(msgspec.structs.replace(planned, registered=True)).check.state == "verified"
    assert REAL or current().nccl.registered_calls > before


def test_communicators_that_do_not_block_are_refused_by_name(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = msgspec.structs.replace(one_case("isolated"), in_place=False)
    monkeypatch.setenv("TORCH_NCCL_USE_COMM_NONBLOCKING", "0")
    assert backend.refuse(OPS["all_reduce"], planned) is None
    monkeypatch.setenv("TORCH_NCCL_USE_COMM_NONBLOCKING", "1")
    assert "TORCH_NCCL_USE_COMM_NONBLOCKING" in require(backend.refuse(OPS["all_reduce"], planned))


def test_the_parts_of_an_overlap_are_those_of_its_samples(measured: Measure) -> None:
    (group,) = measured(one_case("overlap", op="all_gather")).groups
    overlap = require(group.overlap)
    assert overlap.host_post_ns is not None
    assert overlap.compute_alone_ns > 0
    assert min(overlap.pure_ns) > 0
    for total, compute, exposed in zip(group.slowest_ns, overlap.compute_ns, overlap.exposed_ns, strict=True):
        assert abs(total - compute - exposed) <= 2, "each is rounded to ns"


@pytest.mark.parametrize("cache", ["flushed", "rotating"])
def test_caches_are_treated_as_asked(measured: Measure, device: Device, cache: Cache) -> None:
    made = measured(one_case("isolated", cache=cache, op="memory_copy"))
    assert made.check.state == "verified"
    assert (made.buffer_sets > 1) == (cache == "rotating")
    assert device.cache_bytes >= 1 << 20


@pytest.mark.parametrize("name", [name for name, op in OPS.items() if not op.stores])  # those: test_storage.py
def test_every_op_is_verified_or_refused_in_words(backend: Backend, measured: Measure, name: str) -> None:
    planned = case(name, 4_096, 1, backend="nccl", device="cuda", imbalance=0.5 if OPS[name].uneven else None)
    # A run skips communication of one rank; its call is NCCL's all the same.
    alone = OPS[name].communicates and OPS[name].least_ranks() == 1
    reason = (None if alone else unsuited(planned, PLACE)) or backend.refuse(OPS[name], planned)
    if reason is not None:
        assert reason.strip()
        return
    made = measured(planned)
    assert made.check.state == ("verified" if OPS[name].sized else "not checked")


def test_a_held_stream_is_held_and_marks_tell_when_it_was_passed(device: Device) -> None:
    device.hold(1_000_000)
    before, after = device.mark(), device.mark()
    device.synchronise()
    before.record()
    device.hold(50_000_000)
    after.record()
    assert not after.passed()
    device.synchronise()
    assert after.passed()
    assert after.ns_since(before) >= 25_000_000, "its clock may rise after it was calibrated, but not to the double"


def test_a_graph_does_its_calls_when_it_is_replayed_and_not_before(device: Device) -> None:
    numbers = torch.zeros(16, device=device.name)
    numbers.add_(0)
    replay = device.capture([lambda: numbers.add_(1)] * 10)
    device.synchronise()
    assert numbers.tolist() == [0.0] * 16
    replay()
    replay()
    device.synchronise()
    assert numbers.tolist() == [20.0] * 16


def test_computation_takes_the_time_of_the_device(device: Device) -> None:
    device.compute(250)
    device.synchronise()
    before, after = device.mark(), device.mark()
    before.record()
    device.compute(250)
    after.record()
    device.synchronise()
    assert after.ns_since(before) > 0


def test_conditions_are_told_or_not(device: Device) -> None:
    conditions = device.conditions()
    assert conditions is None or (conditions.index >= 0 and (conditions.mhz is None or conditions.mhz > 0))


@heavy
def test_the_command_measures_on_one_gpu(tmp_path: Path) -> None:
    ran = run_on_gpus(tmp_path, "--op", "all_reduce,memory_copy", "--sizes", "1KiB,1MiB", "--ranks", "1")
    assert ran.returncode == 0, ran.stderr
    (folder,) = store.folders(tmp_path)
    run = store.read(folder)
    assert {(row.case.op, row.case.device) for row in run.measurements} == {("memory_copy", "cuda")}
    assert {row.check.state for row in run.measurements} == {"verified"}
    assert {row.case.op for row in run.skipped} == {"all_reduce"}


@pytest.mark.skipif(not REAL, reason="test_nccl.py has it without a GPU")
def test_two_ranks_on_one_gpu_are_refused_in_words(tmp_path: Path) -> None:
    ran = run_on_gpus(tmp_path, "--op", "all_reduce", "--sizes", "1KiB", "--ranks", str(GPUS + 1))
    assert ran.returncode == 1
    assert "GPU" in ran.stderr
