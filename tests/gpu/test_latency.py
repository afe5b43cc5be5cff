"""The time of one load of a GPU's memory: of any GPU in order, of a simulated one as it is."""

from collections.abc import Callable

import pytest
import torch
from simulated.machine import EXACT
from testing.gpu import ON_GPU, REAL
from testing.narrow import require
from testing.synthetic import case

from busbw.backends.base import Backend, Bound, Operation
from busbw.backends.local import LOCAL, latency
from busbw.backends.local.latency import driver
from busbw.errors import BackendError
from busbw.measure.unsupported import Place, skip_reason
from busbw.ops.local import LINE_BYTES, LOADS
from busbw.runs.records import Case, Measurement, Mode
from busbw.system.device import Device

pytestmark = ON_GPU

Measure = Callable[[Case], Measurement]
simulated_only = pytest.mark.skipif(REAL, reason="what a real driver does wrong is not known")
SMALL = 1 << 18


def one_case(size: int, mode: Mode = "pipelined") -> Case:
    return case("memory_latency", size, 1, backend="nccl", device="cuda", mode=mode)


def load_ns(made: Measurement) -> float:
    assert made.check.state == "verified"
    (group,) = made.groups
    return float(sorted(group.slowest_ns)[len(group.slowest_ns) // 2]) / made.calls


def operation(device: Device, size: int = SMALL) -> Operation:
    nothing = torch.empty(0, device=device.name)
    return LOCAL["memory_latency"].bind(Bound(one_case(size), nothing, nothing, device))


def test_a_load_takes_what_it_takes(measured: Measure, device: Device) -> None:
    cases = one_case(SMALL), one_case(SMALL, "graph"), one_case(2 * device.cache_bytes)
    cached, captured, beyond = (load_ns(measured(setting)) for setting in cases)
    if REAL:
        assert 50 < cached < beyond / 1.3 < 3_000
        assert captured == pytest.approx(cached, rel=0.1)
    else:
        assert (cached, captured) == pytest.approx((EXACT.l2_load_ns, EXACT.l2_load_ns), rel=0.01)
        assert beyond == pytest.approx(EXACT.hbm_load_ns, rel=0.01)


def test_an_array_that_fits_is_in_the_cache_before_a_sample(device: Device) -> None:
    made, before, after = operation(device), device.mark(), device.mark()

    def call_ns() -> float:
        before.record()
        made.call()
        after.record()
        device.synchronise()
        return after.ns_since(before) / LOADS

    made.call()
    device.flush()
    cold = call_ns()
    device.flush()
    require(made.prepare)()
    warm = call_ns()
    assert warm < cold / 1.2
    assert REAL or warm == pytest.approx(EXACT.l2_load_ns, rel=0.01)


def test_the_replay_of_a_graph_leaves_what_a_call_leaves(replayed: Callable[[Case], int]) -> None:
    assert replayed(one_case(SMALL, "graph")) == 0


def test_a_call_that_did_not_run_is_wrong(device: Device) -> None:
    made = operation(device)
    wrong = require(made.wrong)
    assert wrong() == 1
    made.call()
    device.synchronise()
    assert wrong() == 0
    assert wrong() == 1


def test_a_cycle_visits_every_line_and_another_is_wrong(device: Device) -> None:
    lines = torch.full((64, LINE_BYTES // 8), -1, dtype=torch.int64, device=device.name)
    assert latency._wrong_links(lines) > 0
    latency._cycle(lines)
    assert latency._wrong_links(lines) == 0
    following = ((lines[:, 0].cpu() - lines.data_ptr()) // LINE_BYTES).tolist()
    at, seen = 0, set()
    for _ in range(64):
        seen.add(at)
        at = following[at]
    assert (at, len(seen)) == (0, 64)
    lines[:2, 0] = lines[:2, 0].flip(0)  # two cycles
    assert latency._wrong_links(lines) == 2


@simulated_only
@pytest.mark.parametrize(
    ("old", "new", "status"),
    [(b"sm_50", b"sm_100", 209), (b"sub.u32", b"subtract.u32", 218), (b"follow(", b"chase(", 500)],
)
def test_a_kernel_that_the_driver_does_not_take_is_refused_in_its_words(
    device: Device, monkeypatch: pytest.MonkeyPatch, old: bytes, new: bytes, status: int
) -> None:
    monkeypatch.setattr(latency, "_PTX", latency._PTX.replace(old, new))
    latency._kernel.cache_clear()
    with pytest.raises(BackendError, match=rf"\({status}\)"):
        operation(device)


@simulated_only
def test_without_the_driver_the_operation_says_so(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(latency, "driver", driver)
    monkeypatch.setattr("busbw.backends.local.latency.ctypes.CDLL", missing)
    latency._kernel.cache_clear()
    with pytest.raises(BackendError, match=r"libcuda\.so\.1"):
        operation(device)


@simulated_only
def test_gpus_of_amd_are_refused_by_name(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(oversubscribed=False, comparable=True)
    assert skip_reason(one_case(SMALL), backend, place) is None
    monkeypatch.setattr(torch.version, "hip", "6.2.41133")
    assert "ROCm" in require(skip_reason(one_case(SMALL), backend, place))
