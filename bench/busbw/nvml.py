"""What NVIDIA's management library tells of a GPU: its clock and why it is held back. Without it, nothing.

It is read through ``pynvml`` of the package nvidia-ml-py, which need not be there. Reading costs some tens of
microseconds and runs beside the GPU's work: it is done before and after a block, never in between.
"""

import importlib
from types import ModuleType
from typing import Any

from busbw.devices import DeviceConditions

_UUID_PREFIX = "GPU-"


def uuid_of(given: object) -> str | None:
    """A GPU's UUID as NVML writes it, from torch's device property or an entry of CUDA_VISIBLE_DEVICES."""
    text = "" if given is None else str(given).strip()
    if text.startswith(("MIG-", _UUID_PREFIX)):
        return text
    return f"{_UUID_PREFIX}{text}" if text.count("-") == 4 else None


class Nvml:
    """One GPU as NVML sees it, found by its UUID or else by its number on the host."""

    def __init__(self, library: ModuleType, handle: object) -> None:
        self._library = library
        self._handle = handle
        self._index = int(library.nvmlDeviceGetIndex(handle))
        # The name changed with version 12.535 of nvidia-ml-py; the old one is to be removed.
        self._reasons: Any = getattr(library, "nvmlDeviceGetCurrentClocksEventReasons", None) or getattr(
            library, "nvmlDeviceGetCurrentClocksThrottleReasons", None
        )

    def conditions(self) -> DeviceConditions:
        """The GPU now; what the driver does not tell of it is None or 0."""
        library = self._library
        try:
            mhz: float | None = float(library.nvmlDeviceGetClockInfo(self._handle, library.NVML_CLOCK_SM))
        except library.NVMLError:
            mhz = None
        try:
            reasons = int(self._reasons(self._handle)) if self._reasons is not None else 0
        except library.NVMLError:
            reasons = 0
        return DeviceConditions(index=self._index, mhz=mhz, reasons=reasons)


def nvml_of(uuid: str | None, index: int) -> Nvml | None:
    """The GPU with this UUID, or number ``index`` of the host where torch tells no UUID; None without NVML."""
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        library.nvmlInit()
        by_uuid = uuid is not None
        handle = library.nvmlDeviceGetHandleByUUID(uuid) if by_uuid else library.nvmlDeviceGetHandleByIndex(index)
        return Nvml(library, handle)
    except library.NVMLError:
        return None
