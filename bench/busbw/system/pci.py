"""PCI devices: addresses, NUMA nodes and links of GPUs, NICs and NVMe drives, the closest NICs of each GPU, RDMA ports.

All facts come from sysfs; NVML, if installed, adds numbers and names of GPUs. Facts that the kernel does not report are
None or listed in ``unknown``: virtual machines often show a flat bus, whatever the hardware is.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import TypeVar

import msgspec

from busbw.runs.facts import Drive, GpuFacts, Lanes, LinkFacts, Narrowest, PciDevice, PciFacts, PciNic, RdmaPort
from busbw.system.nvml import gpus_by_address
from busbw.system.sysfs import SYSFS, text_of

_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")
_NVIDIA = "0x10de"
_GPU_CLASSES = {
    _NVIDIA: ("0x0300", "0x0302"),
    "0x1002": ("0x0300", "0x0302", "0x0380", "0x1200"),
    # An integrated Intel GPU is a VGA controller (0x0300) and not an accelerator.
    "0x8086": ("0x0302", "0x0380"),
}
"""PCI vendor → the classes of its GPUs (PCI Code and ID Assignment Specification: 03 display, 12 accelerator)."""
_SPEED = re.compile(r"([0-9.]+) GT/s")  # "16 GT/s" up to Linux 5.6, "16.0 GT/s PCIe" since
_RATE = re.compile(r"([0-9.]+) Gb/sec(?: \(([^)]+)\))?")
_Device = TypeVar("_Device", bound=PciDevice)


@dataclass(frozen=True, slots=True)
class _Place:
    """A PCI device: ``path`` is the host bridge and all bridges down to its own address (``pci0000:16``,
    ``0000:16:02.0`` …); ``numa_node`` is None if the kernel does not know it.
    """

    path: tuple[str, ...]
    numa_node: int | None
    folder: Path = field(compare=False)

    @property
    def address(self) -> str:
        return self.path[-1]

    def located(self, device: _Device) -> _Device:
        """``device`` with the facts of every kind of device: path, NUMA node, identity (``10de:2335``) and link."""
        vendor, number = text_of(self.folder / "vendor"), text_of(self.folder / "device")
        steps = [folder for folder in (*reversed(self.folder.parents), self.folder) if folder.name in self.path[1:]]
        identity = f"{vendor}:{number}".replace("0x", "") if vendor and number else None
        return msgspec.structs.replace(
            device, path=self.path, numa_node=self.numa_node, id=identity, link=link_facts(steps)
        )


def affinity(sysfs: Path = SYSFS, by_address: Mapping[str, GpuFacts] | None = None) -> PciFacts:
    """The GPUs, NICs and NVMe drives of this host, and the closest NICs of every GPU.

    ``by_address``: GPUs known to NVML, by PCI address.
    """
    gpus = _gpus(sysfs)
    if by_address is None:
        by_address = gpus_by_address(place.address for place in gpus if text_of(place.folder / "vendor") == _NVIDIA)
    nics, elsewhere = _named(sysfs, ("class/infiniband", "class/net"))
    drives, remote = _named(sysfs, ("class/nvme",))
    unknown = [f"{name} is not on PCI, so its location is unknown" for name in (*elsewhere, *remote)]
    missing = sorted(set(by_address) - {place.address for place in gpus})
    unknown += [f"NVML reports a GPU at {address} that sysfs does not show" for address in missing]
    return PciFacts(
        gpus=tuple(_gpu(place, by_address.get(place.address), nics) for place in gpus),
        nics=tuple(place.located(PciNic(address=place.address, names=names)) for place, names in nics),
        drives=tuple(_drive(place, names, sysfs) for place, names in drives),
        unknown=tuple(unknown),
    )


def _drive(place: _Place, names: tuple[str, ...], sysfs: Path) -> Drive:
    model = text_of(sysfs / "class/nvme" / names[0] / "model")
    return place.located(Drive(address=place.address, names=names, model=model))


def _gpu(place: _Place, facts: GpuFacts | None, nics: Sequence[tuple[_Place, tuple[str, ...]]]) -> GpuFacts:
    """The GPU at ``place``, with the ``facts`` that NVML has of it; the kernel knows at most its name."""
    gpu = facts or GpuFacts(address=place.address, name=text_of(place.folder / "product_name") or None)
    closest, shared = _closest(place, nics)
    return place.located(msgspec.structs.replace(gpu, closest_nics=closest, closest_by=shared))


def _closest(gpu: _Place, nics: Sequence[tuple[_Place, tuple[str, ...]]]) -> tuple[tuple[str, ...], str | None]:
    """The NICs that share most of the path to the host with ``gpu``, or else its NUMA node; and which of the two."""
    if not nics:
        return (), None
    shared = {place: _in_common(gpu.path, place.path) for place, _ in nics}
    most = max(shared.values())
    if most:
        names = tuple(name for place, them in nics if shared[place] == most for name in them)
        # The first step is the host bridge; the following ones are bridges or switches.
        return names, "PCI switch" if most > 1 else "PCI root"
    if gpu.numa_node is None or any(place.numa_node is None for place, _ in nics):
        return (), None
    near = tuple(name for place, them in nics if place.numa_node == gpu.numa_node for name in them)
    return near, "NUMA node" if near else "none in its NUMA node"


def _in_common(first: Sequence[str], other: Sequence[str]) -> int:
    """Number of steps from the top that both paths share."""
    return sum(1 for _ in takewhile(lambda steps: steps[0] == steps[1], zip(first, other, strict=False)))


def _gpus(sysfs: Path) -> list[_Place]:
    places = []
    for device in sorted((sysfs / "bus/pci/devices").glob("*")):
        vendor, kind = text_of(device / "vendor"), text_of(device / "class") or ""
        if kind.startswith(_GPU_CLASSES.get(vendor or "", ())) and (place := _place(device)) is not None:
            places.append(place)
    return places


def _named(sysfs: Path, folders: Sequence[str]) -> tuple[list[tuple[_Place, tuple[str, ...]]], list[str]]:
    """The devices with their names (an RDMA NIC has two), and the names of devices that are not on PCI."""
    by_address: dict[str, tuple[_Place, list[str]]] = {}
    elsewhere: list[str] = []
    for folder in folders:
        for entry in sorted((sysfs / folder).glob("*")):
            device = entry / "device"
            if not device.exists():
                continue  # loopback, bridges, tunnels: no hardware
            place = _place(device)
            if place is None:
                elsewhere.append(entry.name)
            else:
                by_address.setdefault(place.address, (place, []))[1].append(entry.name)
    return [(place, tuple(names)) for place, names in by_address.values()], elsewhere


def _place(device: Path) -> _Place | None:
    """Location of a device in sysfs, or of the PCI device it is part of (virtio); None if there is none."""
    steps = device.resolve().parts
    path = tuple(step for step in steps if _ROOT.fullmatch(step) or _ADDRESS.fullmatch(step))
    if not path or not _ADDRESS.fullmatch(path[-1]):
        return None
    folder = Path(*steps[: steps.index(path[-1]) + 1])
    node = text_of(folder / "numa_node")
    return _Place(path, int(node) if node is not None and node.isdigit() else None, folder)


# --- PCI Express links: above a card and below a port; virtual machines report nothing, or zero lanes -----------------


def link_facts(steps: Sequence[Path]) -> LinkFacts | None:
    """The link of the last of ``steps``: sysfs devices from the port below the host down to the card. None if the
    kernel does not report how the card's link was trained.
    """
    if not steps:
        return None
    trained = _read(steps[-1], "current")
    if trained is None:
        return None
    above = [(link, step.name) for step in steps[:-1] if (link := _read(step, "current")) is not None]
    least, address = min(above, key=lambda entry: _raw_rate(entry[0]), default=(trained, None))
    slower = _raw_rate(least) < _raw_rate(trained)
    return LinkFacts(
        trained=trained,
        card=_read(steps[-1], "max"),
        port=_read(steps[-2], "max") if len(steps) > 1 else None,
        narrowest=Narrowest(gigatransfers=least.gigatransfers, lanes=least.lanes, address=address) if slower else None,
    )


def _raw_rate(link: Lanes) -> float:
    """Raw rate for comparing links, without the encoding, which is equal or better on faster links."""
    return link.gigatransfers * link.lanes


def _read(device: Path, which: str) -> Lanes | None:
    """The ``current`` or ``max`` link of ``device``: GT/s of a lane, and lanes; None: unknown."""
    speed = _SPEED.match(text_of(device / f"{which}_link_speed") or "")
    lanes = text_of(device / f"{which}_link_width") or ""
    # A device that no longer answers reports 255 lanes.
    if speed is None or not lanes.isdigit() or not 0 < int(lanes) <= 32:
        return None
    return Lanes(gigatransfers=float(speed[1]), lanes=int(lanes))


# --- RDMA ports (InfiniBand, RoCE, Omni-Path) as the kernel reports them ---------------------------------------------


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
