"""GPU facts from NVIDIA's management library: address, links, clock, throttling reasons. Optional.

It is used through ``pynvml`` of the package nvidia-ml-py. A query takes tens of microseconds and disturbs the GPU's
work, so it is made before and after a block, never during one.
"""

import importlib
from collections import Counter
from contextlib import suppress
from types import ModuleType
from typing import Any

from busbw.runs.facts import GpuFacts, NvLinkFacts
from busbw.system.device import DeviceConditions

_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
"""New and old name of one function: it was renamed in driver 535 and nvidia-ml-py 12.535. Older drivers lack the new
name; the old one will be removed.
"""


class Nvml:
    """One GPU, found by its UUID or else by its number on the host."""

    def __init__(self, library: ModuleType, handle: object) -> None:
        self._library = library
        self._handle = handle
        self._index = int(library.nvmlDeviceGetIndex(handle))
        self._reasons: list[Any] = [getattr(library, name) for name in _REASONS if hasattr(library, name)]

    def conditions(self) -> DeviceConditions:
        """State of the GPU; values that the driver does not report are None or 0."""
        library = self._library
        try:
            mhz: float | None = float(library.nvmlDeviceGetClockInfo(self._handle, library.NVML_CLOCK_SM))
        except library.NVMLError:
            mhz = None
        reasons = 0
        for asked in self._reasons:
            with suppress(library.NVMLError):
                reasons = int(asked(self._handle))
                break
        return DeviceConditions(index=self._index, mhz=mhz, reasons=reasons)


def gpus_by_address() -> dict[str, GpuFacts]:
    """The GPUs of this host by PCI address in the kernel's format (``0000:1b:00.0``); empty without NVML."""
    library = _library()
    if library is None:
        return {}
    try:
        count = library.nvmlDeviceGetCount()
    except library.NVMLError:
        return {}
    gpus: dict[str, GpuFacts] = {}
    for index in range(count):
        # A GPU that is lost or hidden from this process must not hide others.
        with suppress(library.NVMLError):
            handle = library.nvmlDeviceGetHandleByIndex(index)
            address = _as_the_kernel(library.nvmlDeviceGetPciInfo(handle).busId)
            name, nvlink = library.nvmlDeviceGetName(handle), _nvlink(library, handle)
            gpus[address] = GpuFacts(address=address, index=index, name=name, nvlink=nvlink)
    return gpus


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


def _library() -> ModuleType | None:
    """NVML, initialised; None if it is not installed or finds no driver."""
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        library.nvmlInit()
    except library.NVMLError:
        return None
    return library


def nvml_of(uuid: str | None, index: int) -> Nvml | None:
    """The GPU with this UUID, or number ``index`` of the host if torch reports no UUID; None without NVML."""
    library = _library()
    if library is None:
        return None
    try:
        by_uuid = uuid is not None
        handle = library.nvmlDeviceGetHandleByUUID(uuid) if by_uuid else library.nvmlDeviceGetHandleByIndex(index)
        return Nvml(library, handle)
    except library.NVMLError:
        return None
