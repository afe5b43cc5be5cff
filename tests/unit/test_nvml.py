"""What NVIDIA's library tells of a GPU, from pynvml over a library that is not there."""

import sys
from dataclasses import replace

import pynvml
import pytest
from simulated.management import Driver, ManagedGpu, managed
from testing.blocks import measured
from testing.devices import DeviceScript
from testing.fakes import FakeWorld, Script
from testing.narrow import require, require_type
from testing.synthetic import case

from busbw.measure.interference import InterferenceMonitor, look
from busbw.runs.facts import GpuFacts
from busbw.runs.records import GpuConditions, Measurement
from busbw.system.device import REASONS, DeviceConditions, reasons_in_words
from busbw.system.nvml import gpus_by_address, nvml_of

pytestmark = pytest.mark.usefixtures("lines_recorded")

GPU = ManagedGpu(name="Fast 9000", address="0000:1b:00.0", uuid="GPU-12345678-1234-1234-1234-123456789abc")


@pytest.mark.parametrize("lacks", [(), ("nvmlDeviceGetCurrentClocksEventReasons",)])
def test_clock_and_reasons_are_those_of_the_driver(lacks: tuple[str, ...]) -> None:
    other = replace(GPU, address="0000:43:00.0", uuid="GPU-other")
    with managed(Driver([other, replace(GPU, reasons=0x1 | 0x4 | 0x40)], lacks=lacks)):
        conditions = require(nvml_of(GPU.uuid, other.address)).conditions()
    assert conditions == DeviceConditions(1, 1_980.0, 0x45)
    assert reasons_in_words(conditions.reasons) == ("power limit", "temperature, by the hardware"), "idle is none"


@pytest.mark.parametrize("uuid", [None, "GPU-of-an-instance"])
def test_a_gpu_whose_uuid_is_unknown_is_found_by_its_address(uuid: str | None) -> None:
    """torch's number would be another GPU under CUDA_VISIBLE_DEVICES; an instance (MIG) has a UUID of its own."""
    with managed(Driver([replace(GPU, address="0000:43:00.0", uuid="GPU-other"), GPU])):
        assert require(nvml_of(uuid, GPU.address)).conditions().index == 1
        assert nvml_of(uuid, None) is None


def test_what_the_driver_does_not_support_is_unknown() -> None:
    with managed(Driver([replace(GPU, mhz=None, reasons=None)])):
        assert require(nvml_of(GPU.uuid, None)).conditions() == DeviceConditions(0, None, 0)


@pytest.mark.parametrize("lacks", [(), ("nvmlDeviceGetTemperatureV",)])
def test_energy_temperature_and_times_of_a_reduced_clock_are_those_of_the_driver(lacks: tuple[str, ...]) -> None:
    limited = {pynvml.NVML_PERF_POLICY_POWER: 7_000, pynvml.NVML_PERF_POLICY_THERMAL: 9_000}
    gpu = replace(GPU, memory_mhz=2_619, celsius=54, energy_mj=1_234_567, limited_ns=limited)
    with managed(Driver([gpu], lacks=lacks)):
        conditions = require(nvml_of(GPU.uuid, None)).conditions()
    assert (conditions.memory_mhz, conditions.celsius, conditions.joules) == (2_619, 54, 1_234.567)
    assert {reasons_in_words(bit): ns for bit, ns in conditions.limited_ns.items()} == {
        ("power limit",): 7_000,
        ("temperature, by the driver",): 9_000,
    }


@pytest.mark.parametrize(("limited_ns", "throttled"), [(50_000_000, ("power limit",)), (5_000_000, ())])
def test_a_clock_that_was_reduced_within_a_block_is_noted_and_so_is_its_energy(
    limited_ns: int, throttled: tuple[str, ...]
) -> None:
    moments = iter([replace(look(), at=10.0), replace(look(), at=11.0)])
    stands = iter(
        [
            DeviceConditions(0, 1_980.0, joules=100.0, limited_ns={4: 10}),
            DeviceConditions(
                0, 1_980.0, joules=450.0, celsius=61.0, memory_mhz=2_619.0, limited_ns={4: 10 + limited_ns}
            ),
        ]
    )
    backend = FakeWorld(1, Script(device=DeviceScript())).backends[0]
    backend.conditions = lambda: next(stands)  # type: ignore[method-assign]
    (host,) = InterferenceMonitor(backend, ("here",), lambda: next(moments)).ended()
    (gpu,) = host.gpus
    assert (gpu.joules, gpu.celsius, gpu.memory_mhz, gpu.throttled) == (350.0, 61.0, 2_619.0, throttled)


def test_without_the_library_or_its_driver_the_reason_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with managed(Driver([GPU], error=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)):
        assert nvml_of(GPU.uuid, GPU.address) is None
        assert gpus_by_address() == {}
        (unstarted,) = gpus_by_address([GPU.address]).values()
    monkeypatch.setitem(sys.modules, "pynvml", None)  # the import fails
    assert nvml_of(GPU.uuid, GPU.address) is None
    (missing,) = gpus_by_address([GPU.address]).values()
    assert require(unstarted.error) != require(missing.error)
    assert not unstarted.broken


def test_gpus_are_found_by_their_addresses_as_the_kernel_writes_them() -> None:
    lost = replace(GPU, address="0000:43:00.0", error=pynvml.NVML_ERROR_GPU_IS_LOST)
    with managed(Driver([GPU, lost, replace(GPU, address="0001:c3:00.0", name="Faster")])):
        gpus = gpus_by_address([GPU.address, lost.address, "0000:99:00.0"])
    assert gpus[GPU.address] == GpuFacts(address=GPU.address, index=0, name="Fast 9000")
    assert gpus["0001:c3:00.0"] == GpuFacts(address="0001:c3:00.0", index=2, name="Faster")
    assert gpus[lost.address] == GpuFacts(address=lost.address, error="GPU is lost", broken=True)
    assert not gpus["0000:99:00.0"].broken


def test_a_driver_that_cannot_count_lists_no_gpu() -> None:
    with managed(Driver([GPU], lacks=["nvmlDeviceGetCount_v2"])):
        assert gpus_by_address() == {}


def test_every_reason_has_a_bit_of_its_own() -> None:
    assert all(bit.bit_count() == 1 and bit > 1 for bit in REASONS)


def test_a_block_tells_how_the_gpus_of_its_host_stood() -> None:
    script = DeviceScript(conditions=DeviceConditions(3, 1_980.0, 0x4))
    row = require_type(
        Measurement, measured(FakeWorld(2, Script(device=script)), case("all_reduce", 64, 2, device="cuda"))
    )
    gpu = GpuConditions(index=3, mhz_before=1_980.0, mhz_after=1_980.0, throttled=("power limit",))
    assert row.conditions[0].gpus == (gpu, gpu)
    silent = measured(FakeWorld(2, Script(device=DeviceScript())), case("all_reduce", 64, 2, device="cuda"))
    assert silent.conditions[0].gpus == ()
