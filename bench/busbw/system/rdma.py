"""Ports of RDMA NICs (InfiniBand, RoCE, Omni-Path) as the kernel reports them, without their libraries."""

import re
from collections.abc import Iterator
from pathlib import Path

from busbw.runs.facts import RdmaPort
from busbw.system.sysfs import SYSFS, text_of

_RATE = re.compile(r"([0-9.]+) Gb/sec(?: \(([^)]+)\))?")


def ports(sysfs: Path = SYSFS) -> Iterator[RdmaPort]:
    """All ports."""
    for folder in sorted((sysfs / "class/infiniband").glob("*/ports/*")):
        rate = _RATE.match(text_of(folder / "rate") or "")
        state = text_of(folder / "state")  # "4: ACTIVE"
        yield RdmaPort(
            device=folder.parent.parent.name,
            port=int(folder.name) if folder.name.isdigit() else None,
            bytes_per_second=float(rate[1]) * 1e9 / 8 if rate else None,
            rate=rate[2] if rate else None,
            layer=text_of(folder / "link_layer"),
            driver=driver_of(folder.parent.parent),
            up=None if state is None else state.endswith("ACTIVE") and "_" not in state,
        )


def driver_of(device: Path) -> str | None:
    """Driver of the NIC behind a device in sysfs (``/sys/class/net/eth0``); None for a virtual device."""
    try:
        return (device / "device/driver").resolve(strict=True).name
    except OSError:
        return None
