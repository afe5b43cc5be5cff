"""Peaks of a machine's memories and links: host facts matched with the catalogue, and hardware problems.

Facts are those of the local machine or of a stored run. If a fact or a row is missing, the result is a reason in words
instead of a number.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, cast

from busbw.runs.facts import Drive, GpuFacts, HostFacts, Lanes, LinkFacts, Nic, PciNic, RdmaPort
from busbw.system.catalog import Catalogue, HardwarePeak, Kind, KnownGpu, Over, Rate
from busbw.units import format_rate

EFA = "EFA"
"""Name of ports of the Elastic Fabric Adapter."""
_SYSTEM = "stated by the system"
SPLIT = "the GPU is split by MIG, and busbw does not know the share of an instance"
"""Why the peaks of a GPU's memory and arithmetic are unknown."""


def interface_of(nic: Nic, rows: Catalogue, over: Over | None = None) -> HardwarePeak | str:
    """Rate of a network interface in one direction. The practical rate is ``over`` TCP, except on Slingshot."""
    speed = nic.speed_bytes_per_second
    if not speed:
        return "the system does not report its speed"
    row = _ethernet(speed, rows)
    if is_slingshot(nic):
        row = next((rate for rate in rows.rates if rate.kind == "slingshot" and _same(rate, speed)), row)
    return _stated(speed, row, over or ("rdma" if is_slingshot(nic) else "tcp"))


def is_slingshot(nic: Nic) -> bool:
    """Whether an interface belongs to a Cassini NIC of Slingshot (driver cxi_ss1, cxi_eth), which bypasses TCP like
    RDMA NICs.
    """
    return (nic.driver or "").startswith("cxi")


def efa_together(peaks: Sequence[HardwarePeak], rows: Catalogue) -> HardwarePeak | None:
    """Total rate of an instance with exactly these EFA ports; None unless exactly one kind of instance matches."""
    if not peaks or any(peak.what != EFA for peak in peaks):
        return None
    total = sum(peak.nominal for peak in peaks)
    alike = [row for row in rows.rates if row.kind == "efa" and row.ports in {None, len(peaks)} and _same(row, total)]
    return _stated(total, alike[0], "rdma") if len(alike) == 1 else None


def port_of(port: RdmaPort, rows: Catalogue) -> HardwarePeak | str:
    """Rate of an RDMA port in one direction."""
    rate = port.bytes_per_second
    if not rate:
        return "the kernel does not report its rate"
    if port.driver == "efa" and not port.given:
        # The driver reports rates under InfiniBand names; the rows describe whole instances.
        return HardwarePeak(rate, None, EFA, "one direction", _SYSTEM)
    if port.given:  # nobody knows more than its name and rate
        row = rows.rate(cast("Kind", port.kind), str(port.name)) if port.kind else None
    else:
        row = rows.rate("infiniband", str(port.rate)) if port.layer == "InfiniBand" else _ethernet(rate, rows)
    # Up to FDR the kernel reports the signalling rate including the encoding; the row has the data rate.
    if row is not None and (port.given or (row.kind == "infiniband" and not _same(row, rate))):
        return row.peak
    return _stated(rate, row, "rdma", "as given" if port.given else _SYSTEM)


def _ethernet(bytes_per_second: float, rows: Catalogue) -> Rate | None:
    return rows.rate("ethernet", f"{bytes_per_second * 8 / 1e9:g}G Ethernet")


def _stated(rate: float, row: Rate | None, over: Over, source: str = _SYSTEM) -> HardwarePeak:
    """The rate that ``source`` states. The row of the same rate only adds its name, and its practical rate if that was
    measured ``over`` the same protocol: sockets are slower than RDMA.
    """
    if row is None or not _same(row, rate):
        return HardwarePeak(rate, None, format_rate(rate), "one direction", source)
    peak = replace(row.peak, nominal=rate, source=source)
    return peak if (row.over or "rdma") == over else replace(peak, practical=None, practical_source=None)


def _same(row: Rate, rate: float) -> bool:
    return abs(row.bytes_per_second - rate) <= 0.02 * rate


_NVME = re.compile(r"nvme\d+")
"""The kernel's name of a drive, without the numbers of namespace and partition."""

Name = Literal["HBM", "NVLink", "PCIe", "C2C", "DRAM", "NIC", "NVMe"]

_OnPcie = Sequence[GpuFacts | PciNic]


@dataclass(frozen=True, slots=True)
class Level:
    """A level of the hierarchy at ``holder`` (``GPU 0``): its peak or None.

    why: what it is, or why unknown
    gpu: number of the GPU that holds it
    """

    name: Name
    holder: str
    peak: HardwarePeak | None
    why: str
    gpu: int | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """The levels of one host from the chip outwards.

    of_gpus: problems of GPUs and of their links
    of_others: those of NICs and drives
    unknown: what could not be read
    resting: links slower than both of their ends, perhaps only to save power while idle
    """

    levels: tuple[Level, ...]
    of_gpus: tuple[str, ...]
    of_others: tuple[str, ...]
    unknown: tuple[str, ...]
    resting: tuple[str, ...] = ()

    @property
    def findings(self) -> tuple[str, ...]:
        """All problems."""
        return self.of_gpus + self.of_others


def picture(host: HostFacts, rows: Catalogue) -> Picture:
    """The levels and problems of a host from its facts."""
    gpus = [rows.known(gpu) for gpu in host.pci.gpus]
    cards = [(card, rows.pcie_of(card)) for card in host.pci.nics]
    # The GPUs, NICs and drives whose link to the host is PCI Express.
    on_pcie: _OnPcie = (*(gpu.facts for gpu in gpus if gpu.host_link is None), *host.pci.nics, *host.pci.drives)
    levels: list[Level] = []
    for gpu in gpus:
        label, number = gpu.facts.label, gpu.facts.index
        levels.append(_level("HBM", label, memory_of(gpu), number))
        if gpu.facts.nvlink is not None or gpu.row is None or gpu.row.links:
            levels.append(_level("NVLink", label, nvlink_of(gpu), number))
        levels.append(_level("PCIe" if gpu.host_link is None else "C2C", label, gpu.to_host, number))
    levels.append(_level("DRAM", "host", dram_of(host, rows)))
    levels += [_level("NIC", name, peak) for name, peak in _networks(host, rows)]
    levels += [_level("NVMe", drive.label, _drive(drive, rows)) for drive in host.pci.drives]
    return Picture(
        levels=tuple(levels),
        of_gpus=tuple(_of_gpus(host, gpus)),
        of_others=tuple(_of_others(host, cards)),
        unknown=tuple(_unknown(host, on_pcie)),
        resting=tuple(_resting(on_pcie)),
    )


def _level(name: Name, holder: str, peak: HardwarePeak | str, gpu: int | None = None) -> Level:
    if isinstance(peak, str):
        return Level(name, holder, None, peak, gpu)
    return Level(name, holder, peak, peak.what, gpu)


# --- one level each: its peak, or the reason why it is unknown ----------------------------------------------------


def memory_of(gpu: KnownGpu) -> HardwarePeak | str:
    """The memory of a GPU, reads plus writes."""
    if gpu.facts.broken:
        return f"the GPU does not answer: {gpu.facts.error}"
    if gpu.facts.mig:
        return SPLIT
    row = gpu.row
    if row is None:
        return gpu.no_row
    return HardwarePeak(
        nominal=row.memory_bytes_per_second,
        practical=row.practical_memory_bytes_per_second,
        what=f"memory of {row.name} ({row.memory})",
        direction="reads and writes together",
        source=row.source,
        practical_source=row.practical_source,
    )


def nvlink_of(gpu: KnownGpu, peers: Sequence[str] | None = None) -> HardwarePeak | str:
    """The active links of a GPU to others in one direction, from NVML. With ``peers`` (addresses), only those that lead
    to a switch or to one of the peers.
    """
    return _all_links(gpu, peers) or _nvlinks_up(gpu, peers)


_MESH: Final = 7
"""Links of a GPU with one link to each other GPU on a board of eight (MI300 and later)."""


def _all_links(gpu: KnownGpu, peers: Sequence[str] | None) -> HardwarePeak | None:
    """For a GPU known only by name: the links of its kind, in a mesh only those to ``peers``; None for other GPUs."""
    row, link = gpu.row, gpu.link
    if gpu.facts.source is None or row is None or not row.links or link is None:
        return None
    count, which = row.links, f"all links of {row.name}"
    if link.kind == "xgmi":
        if row.links != _MESH or not peers:
            return None
        count, which = min(_MESH, len(peers)), "one to each other GPU"
    return link.peak.times(count, f"{_links_in_words(count, link)}, {which}")


def _nvlinks_up(gpu: KnownGpu, peers: Sequence[str] | None) -> HardwarePeak | str:
    facts, row, link = gpu.facts, gpu.row, gpu.link
    if facts.nvlink is None:
        if row is not None and link is not None and link.kind == "xgmi":
            return f"{row.name} has {row.links} links of {row.link}; busbw does not read yet which are up"
        return facts.error or "NVML reports no NVLink"
    if gpu.link_name is None:
        return "NVML does not report the generation of its NVLinks"
    if link is None:
        return f"no row for {gpu.link_name!r} of kind nvlink; add one to your peaks file"
    usable = nvlinks(facts, peers)
    if not usable:
        up = nvlinks(facts)
        return f"none of its {up} active NVLinks leads to them" if up else "none of its NVLinks is up"
    return link.peak.times(usable, _links_in_words(usable, link))


def _links_in_words(count: int, link: Rate) -> str:
    return f"{count} × {link.name} ({format_rate(link.bytes_per_second)} per link)"


def nvlinks(gpu: GpuFacts, peers: Sequence[str] | None = None) -> int | None:
    """Number of active NVLinks of a GPU; with ``peers`` (addresses), only those that lead to a switch or to a peer.
    None: NVML reports none. If the ends of links are unknown, all links count.
    """
    if gpu.nvlink is None:
        return None
    if peers is None or gpu.nvlink.unknown:
        return gpu.nvlink.up
    return gpu.nvlink.switch + sum(gpu.nvlink.peers.get(peer, 0) for peer in peers)


def dram_of(host: HostFacts, rows: Catalogue) -> HardwarePeak | str:
    """The memory of the host over all sockets, reads plus writes."""
    if host.memory_modules is None:
        return "its modules were not recorded"
    kind, speed, channels = (getattr(host.memory_modules, name) for name in ("kind", "megatransfers", "channels"))
    missing = [what for what, value in (("kind", kind), ("speed", speed), ("channels", channels)) if not value]
    if missing:
        return f"{', '.join(missing)} of its modules could not be read"
    # Firmware rounds thirds up or down: 2666 and 2667 MT/s mean the same modules.
    alike = (speed + off for off in (0, -1, 1))
    row = next((row for candidate in alike if (row := rows.rate("ddr", f"{kind}-{candidate}")) is not None), None)
    if row is None:
        width = "; their channel width differs between machines" if str(kind).startswith("LP") else ""
        return f"no row for {kind}-{speed} of kind ddr{width}; add one to your peaks file"
    return row.peak.times(channels, f"{channels} channels of {row.name}, all sockets")


def _networks(host: HostFacts, rows: Catalogue) -> Iterator[tuple[str, HardwarePeak | str]]:
    """Active RDMA ports (EFA ports as one, if an instance has exactly these), then active physical interfaces that
    belong to none of them.
    """
    shown: set[str] = set()
    ports: list[tuple[str, HardwarePeak | str]] = []
    for port in host.rdma:
        shown.update(*(card.names for card in host.pci.nics if port.device in card.names))
        if port.up:
            ports.append((f"{port.device} port {port.port}", port_of(port, rows)))
    peaks = [peak for _, peak in ports if isinstance(peak, HardwarePeak)]
    instance = efa_together(peaks, rows) if len(peaks) == len(ports) else None
    yield from ports if instance is None else ((f"{len(ports)} EFA ports together", instance),)
    for nic in host.nics:
        if nic.kind == "physical" and nic.up and nic.name not in shown:
            yield nic.name, interface_of(nic, rows)


def _drive(drive: Drive, rows: Catalogue) -> HardwarePeak | str:
    bus, model = rows.bus_of(drive), drive.model or "unknown model"
    if isinstance(bus, str):
        return f"{model}: {bus}"
    row = rows.rate("nvme", f"NVMe on {bus.what}")
    what = f"{model} on {bus.what} as trained"
    # Drives reach less than the link itself.
    practical, source = (None, None) if row is None else (row.practical_bytes_per_second, row.practical_source)
    return replace(bus, practical=practical, practical_source=source, what=what, kind="nvme")


def drive_of(host: HostFacts, device: str, rows: Catalogue) -> HardwarePeak | str:
    """The drive behind a block device (``/dev/nvme0n1p2``) in one direction."""
    named = _NVME.match(device.rpartition("/")[2])
    for drive in host.pci.drives:
        if named is not None and named[0] in drive.names:
            return _drive(drive, rows)
    return "not an NVMe drive that the kernel reports, so its rate is unknown"


# --- problems ------------------------------------------------------------------------------------------------------


def _of_gpus(host: HostFacts, gpus: Sequence[KnownGpu]) -> Iterator[str]:
    for gpu in host.pci.gpus:
        if gpu.broken:
            yield f"{gpu.label} does not answer ({gpu.error}); look for Xid in dmesg, then reset it or restart the host"
    yield from _of_links(host, [gpu.facts for gpu in gpus if gpu.host_link is None])
    for known in gpus:
        up, row = nvlinks(known.facts), known.row
        # A single GPU has no peers: clouds leave its links down.
        lonely = not up and len(gpus) == 1
        if up is not None and row is not None and row.links is not None and up < row.links and not lonely:
            yield (
                f"{known.facts.label} has {up} of its {row.links} NVLinks up; check nvidia-smi nvlink --status, the "
                "fabric manager and dmesg"
            )


def _of_others(host: HostFacts, cards: Iterable[tuple[PciNic, HardwarePeak | str]]) -> Iterator[str]:
    yield from _of_links(host, [*host.pci.nics, *host.pci.drives])
    for card, to_host in cards:
        carried = sum(port.bytes_per_second or 0 for port in host.rdma if port.device in card.names and port.up)
        if isinstance(to_host, HardwarePeak) and carried > to_host.nominal:
            yield (
                f"{card.label} carries {format_rate(carried)} on its ports, but only {format_rate(to_host.nominal)} to "
                f"the host ({to_host.what}), in one direction"
            )


def _of_links(host: HostFacts, devices: _OnPcie) -> Iterator[str]:
    for name, link, most in _links(devices):
        yield from _link_findings(name, link, most, virtual=bool(host.virtualization))


def _links(devices: _OnPcie) -> Iterator[tuple[str, LinkFacts, Lanes]]:
    """The links of devices whose training and maximum are known, with the maximum of the card."""
    for device in devices:
        label, link = device.label, device.link
        if link is not None and link.card is not None:
            yield (label if device.address in label else f"{label} ({device.address})"), link, link.card


def _resting(on_pcie: _OnPcie) -> Iterator[str]:
    for name, link, card in _links(on_pcie):
        speed, port = link.trained.gigatransfers, link.port
        if speed < card.gigatransfers and not (port and port.gigatransfers <= speed):
            yield (
                f"{name} runs at {speed:g} of its {card.gigatransfers:g} GT/s; an idle link may save power, so check "
                "again during a copy; if it stays slow, check slot and riser"
            )


def _link_findings(name: str, link: LinkFacts, card: Lanes, *, virtual: bool) -> Iterator[str]:
    port = link.port
    shown = " (as reported in the virtual machine)" if virtual else ""
    lanes, speed = link.trained.lanes, link.trained.gigatransfers
    if lanes < card.lanes:
        if port and port.lanes <= lanes:
            reason = "its slot has no more lanes; try another slot"
        else:
            reason = "reseat it, and check risers, cables and the firmware's bifurcation of the slot"
        yield f"{name} runs on {lanes} of its {card.lanes} PCIe lanes{shown}; {reason}"
    if speed < card.gigatransfers and port and port.gigatransfers <= speed:
        slot = "its slot supports no more"
        yield f"{name} runs at {speed:g} of its {card.gigatransfers:g} GT/s{shown}; {slot}"
    narrowest = link.narrowest
    if narrowest and not virtual:  # hypervisors invent the links of their bridges
        step = f"x{narrowest.lanes} at {narrowest.gigatransfers:g} GT/s"
        own = f"x{lanes} at {speed:g} GT/s"
        yield f"{name} has {own}, but {narrowest.address} on its path to the host has only {step}"


def _unknown(host: HostFacts, on_pcie: _OnPcie) -> Iterator[str]:
    yield from host.pci.unknown
    yield from () if host.memory_modules is None else host.memory_modules.unknown
    if silent := [device.address for device in on_pcie if device.link is None]:
        yield f"PCIe link: the kernel does not report it for {', '.join(silent)}"
    unnamed: dict[str, list[str]] = {}
    for gpu in host.pci.gpus:
        if not (gpu.name or gpu.broken):
            unnamed.setdefault(gpu.error or "the driver does not report it", []).append(gpu.address)
    for error, addresses in unnamed.items():
        yield f"name and NVLink of GPU {', '.join(addresses)}: {error}"
