"""GPU facts from NVIDIA's management library: address, links, clock, throttling reasons, errors. Optional.

It is used through ``pynvml`` of the package nvidia-ml-py. A query takes tens of microseconds and disturbs the GPU's
work, so it is made before and after a block, never during one.
"""

import importlib
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from types import ModuleType
from typing import Any

from busbw.runs.facts import GpuFacts, NvLinkFacts
from busbw.system.device import DeviceConditions

_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
_TEMPERATURE = ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature")
"""New and old name of one function, the first renamed in driver 535 and nvidia-ml-py 12.535. Older drivers lack the new
name; the old one will be removed.
"""

_LIMITS = {"NVML_PERF_POLICY_POWER": 1 << 2, "NVML_PERF_POLICY_THERMAL": 1 << 5}
"""What reduces a clock and is counted (nvmlPerfPolicyType_t) → its bit of ``REASONS``."""

_FIELDS = {
    "ecc_corrected": "NVML_FI_DEV_ECC_SBE_VOL_TOTAL",
    "ecc_uncorrected": "NVML_FI_DEV_ECC_DBE_VOL_TOTAL",
    "nvlink_replay": "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    "nvlink_recovery": "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
    "nvlink_crc_flit": "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "nvlink_crc_data": "NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
    "pcie_replay": "NVML_FI_DEV_PCIE_REPLAY_COUNTER",
}
"""Name in ``counters.COUNTERS`` → the field of NVML: all of them are read in one call, sums over links."""
_NUMBER_OF_TYPE = {1: "uiVal", 2: "ulVal", 3: "ullVal", 5: "siVal", 6: "usVal"}
"""nvmlValueType_t → the member of nvmlValue_t with a whole number."""
_MOST_EVENTS = 1000


class Nvml:
    """One GPU."""

    def __init__(self, library: ModuleType, handle: object) -> None:
        self._library = library
        self._handle = handle
        self._index = int(library.nvmlDeviceGetIndex(handle))
        self._xids: Counter[int] = Counter()
        self._events: Any = None
        with suppress(library.NVMLError, AttributeError):  # not on every GPU and system
            events = library.nvmlEventSetCreate()
            library.nvmlDeviceRegisterEvents(handle, library.nvmlEventTypeXidCriticalError, events)
            self._events = events

    def conditions(self) -> DeviceConditions:
        """State of the GPU; what the driver does not report is None, 0 or missing."""
        library = self._library
        energy_mj = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        counted = {
            bit: self._ask("nvmlDeviceGetViolationStatus", of=getattr(library, name)) for name, bit in _LIMITS.items()
        }
        return DeviceConditions(
            index=self._index,
            mhz=self._ask("nvmlDeviceGetClockInfo", of=library.NVML_CLOCK_SM),
            reasons=self._ask(*_REASONS) or 0,
            memory_mhz=self._ask("nvmlDeviceGetClockInfo", of=library.NVML_CLOCK_MEM),
            celsius=self._ask(*_TEMPERATURE, of=library.NVML_TEMPERATURE_GPU),
            joules=None if energy_mj is None else energy_mj / 1000,
            limited_ns={bit: time.violationTime for bit, time in counted.items() if time is not None},
            counts=self._counts(),
        )

    def _counts(self) -> dict[tuple[str, int | None], int]:
        """Errors and repairs that the driver counts, and the XIDs that it has reported since the start."""
        library, counts = self._library, dict[tuple[str, int | None], int]()
        with suppress(library.NVMLError, AttributeError):
            values = library.nvmlDeviceGetFieldValues(self._handle, [getattr(library, of) for of in _FIELDS.values()])
            for name, field in zip(_FIELDS, values, strict=True):
                if field.nvmlReturn == 0 and (member := _NUMBER_OF_TYPE.get(field.valueType)) is not None:
                    counts[name, None] = int(getattr(field.value, member))
        with suppress(library.NVMLError, AttributeError):
            for _ in range(_MOST_EVENTS if self._events is not None else 0):
                event = library.nvmlEventSetWait_v2(self._events, 0)  # raises when there is none
                self._xids[int(event.eventData)] += 1
        return counts | {("xid", number): count for number, count in self._xids.items()}

    def _ask(self, *names: str, of: int | None = None) -> Any:  # noqa: ANN401 - a number, or a structure of NVML
        """Result of the first function that pynvml and the driver have; None without."""
        for name in names:
            with suppress(self._library.NVMLError, AttributeError):
                return getattr(self._library, name)(self._handle, *(() if of is None else (of,)))
        return None


def gpus_by_address(others: Iterable[str] = ()) -> dict[str, GpuFacts]:
    """The NVIDIA GPUs of this host by PCI address in the kernel's format (``0000:1b:00.0``).

    others: addresses of GPUs that the kernel knows; of those that NVML does not list, the facts say why.
    """
    library = _library()
    if isinstance(library, str):
        return {address: GpuFacts(address=address, error=library) for address in others}
    gpus: dict[str, GpuFacts] = {}
    with suppress(library.NVMLError):
        for index in range(library.nvmlDeviceGetCount()):
            # A GPU that is lost or hidden from this process must not hide others.
            with suppress(library.NVMLError):
                gpu = _gpu(library, index)
                gpus[gpu.address] = gpu
    return gpus | {address: _unlisted(library, address) for address in others if address not in gpus}


def _gpu(library: ModuleType, index: int) -> GpuFacts:
    handle = library.nvmlDeviceGetHandleByIndex(index)
    split = None
    with suppress(library.NVMLError):  # GPUs that cannot be split do not support the question
        split = library.nvmlDeviceGetMigMode(handle)[0] == library.NVML_DEVICE_MIG_ENABLE
    return GpuFacts(
        address=_as_the_kernel(library.nvmlDeviceGetPciInfo(handle).busId),
        index=index,
        name=library.nvmlDeviceGetName(handle),
        nvlink=_nvlink(library, handle),
        mig=split,
    )


def _unlisted(library: ModuleType, address: str) -> GpuFacts:
    """Why NVML does not list the GPU at ``address``."""
    try:
        library.nvmlDeviceGetHandleByPciBusId(address)
    except library.NVMLError as error:
        broken = {
            library.NVML_ERROR_INSUFFICIENT_POWER,
            library.NVML_ERROR_IRQ_ISSUE,
            library.NVML_ERROR_GPU_IS_LOST,
            library.NVML_ERROR_RESET_REQUIRED,
        }
        return GpuFacts(address=address, error=str(error), broken=error.value in broken)
    return GpuFacts(address=address, error="NVML does not list it")


_NVLINK_VERSIONS = {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}
"""nvmlDeviceGetNvLinkVersion (nvmlNvlinkVersion_t, which also numbers 2.2 and 3.1) → NVLink generation."""
_MOST_LINKS = 36


def _nvlink(library: ModuleType, handle: object) -> NvLinkFacts | None:
    """The NVLinks of a GPU; None without links."""
    ends: Counter[str] = Counter()
    generations: set[int] = set()
    down = switched = unknown = 0
    for link in range(getattr(library, "NVML_NVLINK_MAX_LINKS", _MOST_LINKS)):
        try:
            up = bool(library.nvmlDeviceGetNvLinkState(handle, link))
        except library.NVMLError:
            break  # this GPU has no link with this or a higher number
        if not up:
            down += 1
            continue
        with suppress(library.NVMLError):
            generations.add(_NVLINK_VERSIONS.get(int(library.nvmlDeviceGetNvLinkVersion(handle, link)), 0))
        try:
            if int(library.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)) == library.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                switched += 1
            else:
                ends[_as_the_kernel(library.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)] += 1
        except (library.NVMLError, AttributeError):
            unknown += 1
    up_links = switched + unknown + ends.total()
    if not up_links + down:
        return None
    return NvLinkFacts(
        generation=generations.pop() or None if len(generations) == 1 else None,
        up=up_links,
        down=down,
        switch=switched,
        peers=dict(sorted(ends.items())),
        unknown=unknown,
    )


def _as_the_kernel(address: str) -> str:
    """``00000000:1B:00.0`` → ``0000:1b:00.0``: NVML pads the domain to eight digits."""
    domain, _, rest = address.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _library() -> ModuleType | str:
    """NVML, initialised, or why it cannot be used."""
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        return "nvidia-ml-py is not installed"
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        return str(error)
    return library


def nvml_of(uuid: str | None, address: str | None) -> Nvml | None:
    """The GPU with this UUID, or at this PCI address; None without NVML.

    An instance of a GPU split by MIG has a UUID of its own: its conditions are those of the whole GPU.
    """
    library = _library()
    if isinstance(library, str):
        return None
    ways = ((library.nvmlDeviceGetHandleByUUID, uuid), (library.nvmlDeviceGetHandleByPciBusId, address))
    for handle_of, name in ways:
        if name is not None:
            with suppress(library.NVMLError):
                return Nvml(library, handle_of(name))
    return None
