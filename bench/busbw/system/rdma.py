"""The ports of RDMA cards (InfiniBand, RoCE, Omni-Path) as the kernel tells them, without any library of theirs."""

import re
from pathlib import Path

from busbw.runs.records import JSON
from busbw.system.sysfs import SYSFS, text_of

_RATE = re.compile(r"([0-9.]+) Gb/sec(?: \(([^)]+)\))?")


def ports(sysfs: Path = SYSFS) -> list[JSON]:
    """Every port: ``device``, ``port``, the ``rate`` of one direction in B/s and what the kernel calls it (``4X HDR``),
    ``layer`` (``InfiniBand`` or ``Ethernet``), the ``driver`` of the card (``mlx5_core``, ``efa``), and whether it is
    ``up``. None is what is not told.
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
    """The driver of the card behind a device of sysfs (``/sys/class/net/eth0``); None where there is no card."""
    try:
        return (device / "device/driver").resolve(strict=True).name
    except OSError:
        return None
