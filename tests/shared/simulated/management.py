"""The management library of the GPUs, NVML, behind pynvml's own code; and the kernel's files of their PCI devices.

The functions have the names and arguments of libnvidia-ml, and fill ctypes as it does. A function that is not here is
one that the driver does not have.
"""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias
from unittest.mock import patch

import pynvml

from busbw.system import environment, pci
from simulated.machine import FIRST_BUS, LANES, NVLINKS, Machine, uuid_of

Argument: TypeAlias = Any
"""A number, text or reference of ctypes."""
SWITCH: Final = "switch"
_MHZ: Final = 1_980
"""Of an H100."""
_HARDWARE_SLOWDOWN: Final = 1 << 3
"""nvmlClocksEventReasonHwSlowdown."""
_ROOT: Final = "pci0000:00"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedGpu:
    """What the driver knows of a GPU.

    address: in the kernel's format
    mhz, reasons: its clock and why it is held back; None: not supported
    memory_mhz, celsius, energy_mj, limited_ns: further state; ``limited_ns`` by the number of the policy
    ends: where each of its NVLinks leads: ``SWITCH`` or the address of a GPU
    down: number of links, from the first, that are down
    generation: what nvmlDeviceGetNvLinkVersion says
    mig: whether it is split into instances; None: it cannot be
    error: what every question about it is answered with; 0: none
    fields: number of a field of NVML → its count; others are not supported
    """

    name: str = "NVIDIA H100 80GB HBM3"
    address: str = "0000:1b:00.0"
    uuid: str = "GPU-00000000-1111-2222-3333-444455556666"
    mhz: int | None = _MHZ
    reasons: int | None = 0
    memory_mhz: int | None = None
    celsius: int | None = None
    energy_mj: int | None = None
    limited_ns: Mapping[int, int] = field(default_factory=dict)
    ends: tuple[str, ...] = ()
    down: int = 0
    generation: int = 6
    mig: bool | None = None
    error: int = 0
    fields: Mapping[int, int] = field(default_factory=dict)


class Driver:
    """libnvidia-ml of a host with ``gpus``.

    error: what it answers when it is started, such as that the library is not the driver's
    lacks: functions that are younger than the driver
    xids: numbers of the errors that it has still to report
    """

    def __init__(self, gpus: Sequence[ManagedGpu], *, error: int = 0, lacks: Sequence[str] = ()) -> None:
        self.gpus = gpus
        self.xids = list[int]()
        self._error = error
        self._lacks = lacks

    def __getattribute__(self, name: str) -> object:
        if name.startswith("nvml") and name in self._lacks:
            raise AttributeError(name)
        return object.__getattribute__(self, name)

    def nvmlInitWithFlags(self, _flags: int) -> int:
        return self._error

    def nvmlErrorString(self, code: int) -> bytes:
        return str(pynvml.NVMLError(code)).encode()

    def nvmlDeviceGetCount_v2(self, count: Argument) -> int:
        count._obj.value = len(self.gpus)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Argument, handle: Argument) -> int:
        return self._find(handle, [number == index.value for number in range(len(self.gpus))])

    def nvmlDeviceGetHandleByUUID(self, uuid: Argument, handle: Argument) -> int:
        return self._find(handle, [gpu.uuid.encode() == uuid.value for gpu in self.gpus])

    def nvmlDeviceGetHandleByPciBusId_v2(self, address: Argument, handle: Argument) -> int:
        return self._find(handle, [gpu.address.encode() == address.value for gpu in self.gpus])

    def _find(self, handle: Argument, matches: Sequence[bool]) -> int:
        if True not in matches:
            return int(pynvml.NVML_ERROR_NOT_FOUND)
        index = matches.index(True)
        ctypes.cast(handle, ctypes.POINTER(ctypes.c_void_p))[0] = index + 1
        return self.gpus[index].error

    def _gpu(self, handle: Argument) -> ManagedGpu:
        return self.gpus[self._index(handle)]

    def _index(self, handle: Argument) -> int:
        return (ctypes.cast(handle, ctypes.c_void_p).value or 0) - 1

    def nvmlDeviceGetIndex(self, handle: Argument, index: Argument) -> int:
        index._obj.value = self._index(handle)
        return 0

    def nvmlDeviceGetName(self, handle: Argument, name: Argument, _size: Argument) -> int:
        name.value = self._gpu(handle).name.encode()
        return 0

    def nvmlDeviceGetPciInfo_v3(self, handle: Argument, info: Argument) -> int:
        info._obj.busId = _padded(self._gpu(handle).address)
        return 0

    def nvmlDeviceGetClockInfo(self, handle: Argument, which: Argument, mhz: Argument) -> int:
        clocks = {pynvml.NVML_CLOCK_SM: self._gpu(handle).mhz, pynvml.NVML_CLOCK_MEM: self._gpu(handle).memory_mhz}
        return _fill(mhz, clocks.get(which.value))

    def nvmlDeviceGetTemperatureV(self, handle: Argument, temperature: Argument) -> int:
        celsius = self._gpu(handle).celsius
        if celsius is not None:
            temperature._obj.temperature = celsius
        return 0 if celsius is not None else int(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def nvmlDeviceGetTemperature(self, handle: Argument, _sensor: Argument, celsius: Argument) -> int:
        return _fill(celsius, self._gpu(handle).celsius)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Argument, energy_mj: Argument) -> int:
        return _fill(energy_mj, self._gpu(handle).energy_mj)

    def nvmlDeviceGetViolationStatus(self, handle: Argument, policy: Argument, time: Argument) -> int:
        limited_ns = self._gpu(handle).limited_ns.get(policy.value)
        if limited_ns is not None:
            time._obj.violationTime = limited_ns
        return 0 if limited_ns is not None else int(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: Argument, reasons: Argument) -> int:
        return _fill(reasons, self._gpu(handle).reasons)

    nvmlDeviceGetCurrentClocksThrottleReasons = nvmlDeviceGetCurrentClocksEventReasons

    def nvmlDeviceGetFieldValues(self, handle: Argument, count: Argument, values: Argument) -> int:
        for value in values._obj[: count.value]:
            known = self._gpu(handle).fields.get(value.fieldId)
            value.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED if known is None else 0
            value.valueType, value.value.ullVal = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, known or 0
        return 0

    def nvmlEventSetCreate(self, _events: Argument) -> int:
        return 0

    def nvmlDeviceRegisterEvents(self, _handle: Argument, kinds: Argument, _events: Argument) -> int:
        return 0 if kinds.value == pynvml.nvmlEventTypeXidCriticalError else int(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def nvmlEventSetWait_v2(self, _events: Argument, data: Argument, _milliseconds: Argument) -> int:
        if not self.xids:
            return int(pynvml.NVML_ERROR_TIMEOUT)
        data._obj.eventData = self.xids.pop(0)
        return 0

    def nvmlDeviceGetMigMode(self, handle: Argument, now: Argument, later: Argument) -> int:
        split = self._gpu(handle).mig
        return _fill(now, split) or _fill(later, split)

    def nvmlDeviceGetNvLinkState(self, handle: Argument, link: int, up: Argument) -> int:
        gpu = self._gpu(handle)
        if link >= len(gpu.ends):
            return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return _fill(up, link >= gpu.down)

    def nvmlDeviceGetNvLinkVersion(self, handle: Argument, _link: int, version: Argument) -> int:
        return _fill(version, self._gpu(handle).generation)

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: Argument, link: int, kind: Argument) -> int:
        at_switch = self._gpu(handle).ends[link] == SWITCH
        return _fill(kind, pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH if at_switch else pynvml.NVML_NVLINK_DEVICE_TYPE_GPU)

    def nvmlDeviceGetNvLinkRemotePciInfo_v2(self, handle: Argument, link: int, info: Argument) -> int:
        info._obj.busId = _padded(self._gpu(handle).ends[link])
        return 0


def _fill(into: Argument, value: int | None) -> int:
    if value is None:
        return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
    into._obj.value = value
    return 0


def _padded(address: str) -> bytes:
    """``0000:1b:00.0`` → ``00000000:1B:00.0``."""
    return f"0000{address.upper()}".encode()


@contextmanager
def managed(driver: Driver) -> Iterator[None]:
    """Within the block, pynvml finds ``driver``."""
    with patch.object(pynvml, "nvmlLib", driver), patch.object(pynvml, "_nvmlGetFunctionPointer_cache", {}):
        yield


def managed_gpus(record: Mapping[str, Any], down: int = 0) -> list[ManagedGpu]:
    """The GPUs of a machine on record (``tests/data/machines``), the first ``down`` links of each of them down."""

    def address(recorded: str) -> str:
        return recorded.removeprefix("0000").lower()

    return [
        ManagedGpu(
            address=address(recorded),
            name=gpu["name"],
            generation=gpu["version"],
            ends=(
                *[SWITCH] * gpu.get("switch", 0),
                *(address(peer) for peer, count in gpu.get("gpus", {}).items() for _ in range(count)),
            ),
            down=down,
        )
        for recorded, gpu in record.items()
    ]


def write_sysfs(folder: Path, addresses: Sequence[str], *, lanes: int = LANES, identity: str = "0x2330") -> Path:
    """The kernel's files of NVIDIA GPUs at ``addresses``, each below a port of its own, with PCIe 5 on ``lanes``."""
    for number, address in enumerate(addresses, 1):
        port = folder / "devices" / _ROOT / f"0000:00:{number:02x}.0"
        gpu = port / address
        gpu.mkdir(parents=True)
        links = {"current_link_speed": "32.0 GT/s PCIe", "max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16"}
        kinds = {
            port: {"class": "0x060400", "vendor": "0x8086", "current_link_width": "16"},
            gpu: {"class": "0x030200", "vendor": "0x10de", "device": identity, "current_link_width": str(lanes)},
        }
        for device, texts in kinds.items():
            for name, text in (texts | links).items():
                (device / name).write_text(f"{text}\n", encoding="utf-8")
            entry = folder / "bus/pci/devices" / device.name
            entry.parent.mkdir(parents=True, exist_ok=True)
            entry.symlink_to(device)
    return folder


@contextmanager
def managed_machine(machine: Machine) -> Iterator[None]:
    """Within the block, busbw finds the GPUs of ``machine`` through NVML and the kernel's files, with their links."""
    addresses = [f"0000:{FIRST_BUS + index:02x}:00.0" for index in range(machine.gpus)]
    slowed = machine.faults.slowed
    gpus = [
        ManagedGpu(
            name=machine.name,
            address=address,
            uuid=f"GPU-{uuid_of(index)}",
            ends=(SWITCH,) * NVLINKS,
            down=machine.faults.links_down,
            mig=machine.mig,
            mhz=round(_MHZ / slowed.get(index, 1.0)),
            reasons=_HARDWARE_SLOWDOWN if index in slowed else 0,
        )
        for index, address in enumerate(addresses)
    ]
    with TemporaryDirectory() as folder, managed(Driver(gpus)):
        sysfs = write_sysfs(Path(folder), addresses, lanes=machine.faults.lanes)
        with patch.object(environment, "affinity", lambda: pci.affinity(sysfs)):
            yield
