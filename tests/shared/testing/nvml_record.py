"""What NVML knows of the GPUs of this machine, as JSON on stdout, in the form of ``tests/data/machines``."""

import json
import sys
from collections import Counter
from contextlib import suppress

import pynvml


def record() -> dict[str, dict[str, object]]:
    """Address → name, ``version`` of NVLink, links ``down``, to a ``switch``, to which ``gpus``; none if it has none.

    Raises NVMLError.
    """
    pynvml.nvmlInit()
    return dict(_gpu(index) for index in range(pynvml.nvmlDeviceGetCount()))


def _gpu(index: int) -> tuple[str, dict[str, object]]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    record: dict[str, object] = {"name": pynvml.nvmlDeviceGetName(handle)}
    links: Counter[str] = Counter()
    gpus: Counter[str] = Counter()
    with suppress(pynvml.NVMLError):  # of a link that the GPU has not
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            if not pynvml.nvmlDeviceGetNvLinkState(handle, link):
                links["down"] += 1
                continue
            record["version"] = pynvml.nvmlDeviceGetNvLinkVersion(handle, link)
            if pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link) == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                links["switch"] += 1
            else:
                gpus[pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId] += 1
    record |= links
    if gpus:
        record["gpus"] = gpus
    with suppress(pynvml.NVMLError):  # of a GPU that cannot be split
        record["mig"] = bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    return pynvml.nvmlDeviceGetPciInfo(handle).busId, record


if __name__ == "__main__":
    json.dump(record(), sys.stdout, indent=1)
