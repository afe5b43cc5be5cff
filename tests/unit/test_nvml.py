"""What NVIDIA's library tells of a GPU, from a stand-in for the library."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
from testing.blocks import measured
from testing.devices import DeviceScript
from testing.fakes import FakeWorld, Script
from testing.narrow import require, require_type
from testing.synthetic import case

from busbw.runs.facts import GpuFacts
from busbw.runs.records import GpuConditions, Measurement
from busbw.system.device import REASONS, DeviceConditions, reasons_in_words
from busbw.system.nvml import gpus_by_address, nvml_of

UUID = "GPU-12345678-1234-1234-1234-123456789abc"


class NVMLError(Exception):
    pass


class Library(ModuleType):
    """``pynvml`` with one GPU, number 3 of its host."""

    NVML_CLOCK_SM = 1
    NVMLError = NVMLError

    def __init__(self, *, mhz: int | None = 1_980, reasons: int = 0, works: bool = True) -> None:
        super().__init__("pynvml")
        self.mhz = mhz
        self.reasons = reasons
        self.works = works
        self.asked: list[object] = []

    def nvmlInit(self) -> None:  # noqa: N802 - the library's name
        if not self.works:
            raise NVMLError

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        self.asked.append(uuid)
        return "handle"

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        self.asked.append(index)
        return "handle"

    def nvmlDeviceGetIndex(self, handle: str) -> int:  # noqa: N802
        assert handle == "handle"
        return 3

    def nvmlDeviceGetClockInfo(self, handle: str, which: int) -> int:  # noqa: N802
        assert (handle, which) == ("handle", self.NVML_CLOCK_SM)
        if self.mhz is None:
            raise NVMLError
        return self.mhz

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:  # noqa: N802
        assert handle == "handle"
        return self.reasons


class NewLibrary(Library):
    """As from version 12.535 on."""

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:  # noqa: N802
        assert handle == "handle"
        return self.reasons

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:  # noqa: N802
        message = f"the old name was asked for {handle}"
        raise AssertionError(message)


class NewLibraryOldDriver(Library):
    """As from version 12.535 on, over a driver that is older."""

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:  # noqa: N802
        message = f"Function Not Found for {handle}"
        raise NVMLError(message)


def installed(monkeypatch: pytest.MonkeyPatch, library: ModuleType | None) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library)  # None: the import fails


@pytest.mark.parametrize("kind", [Library, NewLibrary, NewLibraryOldDriver])
def test_clock_and_reasons_are_told_in_words(monkeypatch: pytest.MonkeyPatch, kind: type[Library]) -> None:
    library = kind(reasons=0x1 | 0x4 | 0x40)
    installed(monkeypatch, library)
    gpu = require(nvml_of(UUID, 0))
    found = gpu.conditions()
    assert found == DeviceConditions(3, 1_980.0, 0x45)
    told = reasons_in_words(found.reasons)
    assert told == ("power limit", "temperature, by the hardware"), "a GPU that idles is not held back"
    assert library.asked == [UUID]


def test_a_gpu_without_uuid_is_found_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    installed(monkeypatch, library)
    assert nvml_of(None, 1) is not None
    assert library.asked == [1]


def test_what_the_driver_does_not_tell_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, Library(mhz=None))
    gpu = require(nvml_of(UUID, 0))
    assert gpu.conditions() == DeviceConditions(3, None, 0)


def test_a_driver_that_knows_no_reasons_tells_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent(Library):
        def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:  # noqa: N802
            raise NVMLError(handle)

    installed(monkeypatch, Silent())
    gpu = require(nvml_of(UUID, 0))
    assert gpu.conditions() == DeviceConditions(3, 1_980.0, 0)


def test_without_the_library_or_its_driver_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, None)
    assert nvml_of(UUID, 0) is None
    installed(monkeypatch, Library(works=False))
    assert nvml_of(UUID, 0) is None


class Several(Library):
    """Three GPUs, one of which has fallen off the bus."""

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 3

    def nvmlDeviceGetPciInfo(self, _handle: str) -> SimpleNamespace:  # noqa: N802
        index = self.asked[-1]
        if index == 1:
            raise NVMLError
        return SimpleNamespace(busId="00000000:1B:00.0" if index == 0 else "00000001:C3:00.0")

    def nvmlDeviceGetName(self, _handle: str) -> str:  # noqa: N802
        return "Fast 9000" if self.asked[-1] == 0 else "Faster"

    def nvmlDeviceGetNvLinkState(self, handle: str, _link: int) -> int:  # noqa: N802
        raise NVMLError(handle)


def test_gpus_are_found_by_their_addresses_as_the_kernel_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, Several())
    assert gpus_by_address() == {
        "0000:1b:00.0": GpuFacts(address="0000:1b:00.0", index=0, name="Fast 9000"),
        "0001:c3:00.0": GpuFacts(address="0001:c3:00.0", index=2, name="Faster"),
    }


def test_a_library_that_cannot_count_knows_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class Countless(Library):
        def nvmlDeviceGetCount(self) -> int:  # noqa: N802
            raise NVMLError

    installed(monkeypatch, Countless())
    assert gpus_by_address() == {}
    installed(monkeypatch, None)
    assert gpus_by_address() == {}


def test_every_reason_has_a_bit_of_its_own() -> None:
    assert all(bit.bit_count() == 1 and bit > 1 for bit in REASONS)


def test_a_block_tells_how_the_gpus_of_its_host_stood() -> None:
    told = DeviceScript(conditions=DeviceConditions(3, 1_980.0, 0x4))
    row = require_type(
        Measurement, measured(FakeWorld(2, Script(device=told)), case("all_reduce", 64, 2, device="cuda"))
    )
    gpu = GpuConditions(index=3, mhz_before=1_980.0, mhz_after=1_980.0, throttled=("power limit",))
    assert row.conditions[0].gpus == (gpu, gpu)
    silent = measured(FakeWorld(2, Script(device=DeviceScript())), case("all_reduce", 64, 2, device="cuda"))
    assert silent.conditions[0].gpus == ()
