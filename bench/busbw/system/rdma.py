"""Ports of RDMA NICs (InfiniBand, RoCE, Omni-Path) as the kernel reports them, without their libraries."""

import re
from pathlib import Path

from busbw.runs.records import JSON
from busbw.system.sysfs import SYSFS, text_of

_RATE = re.compile(r"([0-9.]+) Gb/sec(?: \(([^)]+)\))?")


def ports(sysfs: Path = SYSFS) -> list[JSON]:
    """All ports; None: unknown.

    device, port: name of the NIC, number of the port
    bytes_per_second, rate: rate in one direction, and the kernel's name of it (``4X HDR``)
    layer: ``InfiniBand`` or ``Ethernet``
    driver: driver of the NIC (``mlx5_core``, ``efa``)
    up: whether the port is active
    """
    found: list[JSON] = []
    for folder in sorted((sysfs / "class/infiniband").glob("*/ports/*")):
        rate = _RATE.match(text_of(folder / "rate") or "")
        state = text_of(folder / "state")  # "4: ACTIVE"
        found.append(
            {
                "device": folder.parent.parent.name,
                "port": int(folder.name) if folder.name.isdigit() else None,
                "bytes_per_second": float(rate[1]) * 1e9 / 8 if rate else None,
                "rate": rate[2] if rate else None,
                "layer": text_of(folder / "link_layer"),
                "driver": driver_of(folder.parent.parent),
                "up": None if state is None else state.endswith("ACTIVE") and "_" not in state,
            }
        )
    return found


def driver_of(device: Path) -> str | None:
    """Driver of the NIC behind a device in sysfs (``/sys/class/net/eth0``); None for a virtual device."""
    try:
        return (device / "device/driver").resolve(strict=True).name
    except OSError:
        return None
