"""Peaks of a machine's memories and links: host facts matched with the catalogue, and hardware problems.

Facts have the format of ``run.json``, so both the local machine and runs from elsewhere can be analysed. If a fact or a
row is missing, the result is a reason in words instead of a number.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from busbw.runs.facts import fact
from busbw.runs.records import JSON
from busbw.system.catalog import Catalogue, Gpu, HardwarePeak
from busbw.system.networks import efa_together, interface_of, port_of, rdma_ports
from busbw.units import format_rate

_NVME = re.compile(r"nvme\d+")
"""The kernel's name of a drive, without the numbers of namespace and partition."""

Name = Literal["HBM", "NVLink", "PCIe", "C2C", "DRAM", "NIC", "NVMe"]

_LANES = 16
"""Lanes between a GPU and its host."""

GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6, 128.0: 7}
"""GT/s per lane → PCI Express generation."""


@dataclass(frozen=True, slots=True)
class Level:
    """A level of the hierarchy at ``holder`` (``GPU 0``): its peak or None. ``why``: what it is, or why unknown."""

    name: Name
    holder: str
    peak: HardwarePeak | None
    why: str


@dataclass(frozen=True, slots=True)
class Picture:
    """The levels of one host from the chip outwards.

    findings: hardware problems
    unknown: what could not be read
    resting: links slower than both of their ends, perhaps only to save power while idle
    """

    levels: tuple[Level, ...]
    findings: tuple[str, ...]
    unknown: tuple[str, ...]
    resting: tuple[str, ...] = ()


def picture(facts: Mapping[str, JSON], rows: Catalogue) -> Picture:
    """The levels and problems of a host from its facts."""
    levels: list[Level] = []
    for gpu in gpus_of(facts):
        levels.append(_level("HBM", called(gpu), memory_of(gpu, rows)))
        if gpu.get("nvlink") is not None or (row := row_of(gpu, rows)) is None or row.link:
            levels.append(_level("NVLink", called(gpu), nvlink_of(gpu, rows)))
        levels.append(_level("C2C" if _on_a_superchip(gpu, rows) else "PCIe", called(gpu), host_link_of(gpu, rows)))
    levels.append(_level("DRAM", "host", dram_of(facts, rows)))
    levels += [_level("NIC", name, peak) for name, peak in _networks(facts, rows)]
    levels += [_level("NVMe", _names(drive), _drive(drive, rows)) for drive in _listed(facts, "drives")]
    return Picture(
        tuple(levels), tuple(_findings(facts, rows)), tuple(_unknown(facts, rows)), tuple(_resting(facts, rows))
    )


def _level(name: Name, holder: str, found: HardwarePeak | str) -> Level:
    if isinstance(found, str):
        return Level(name, holder, None, found)
    return Level(name, holder, found, found.what)


def gpus_of(facts: Mapping[str, JSON]) -> list[dict[str, JSON]]:
    """The GPUs of a host in ``run.json``."""
    return _listed(facts, "gpus")


def _listed(facts: Mapping[str, JSON], what: str) -> list[dict[str, JSON]]:
    devices: list[dict[str, JSON]] = fact(facts, f"pci.{what}") or []
    return devices


def called(gpu: Mapping[str, JSON]) -> str:
    """``GPU 0``, or its address if NVML gives it no number."""
    index = gpu.get("index")
    return f"GPU {gpu.get('address')}" if index is None else f"GPU {index}"


def _names(device: Mapping[str, JSON]) -> str:
    return "/".join(device.get("names") or ()) or str(device.get("address"))


# --- one level each: its peak, or the reason why it is unknown ----------------------------------------------------


def from_log(device: Mapping[str, JSON]) -> bool:
    """Whether only the name of a device is known, from a tool's log: its links are then those of its kind."""
    return device.get("source") is not None


def memory_of(gpu: Mapping[str, JSON], rows: Catalogue) -> HardwarePeak | str:
    """The memory of a GPU, reads plus writes."""
    row = row_of(gpu, rows)
    if row is None:
        return no_row(gpu, rows)
    return HardwarePeak(
        nominal=row.memory_bytes_per_second,
        practical=row.practical_memory_bytes_per_second,
        what=f"memory of {row.name} ({row.memory})",
        direction="reads and writes together",
        source=row.source,
        practical_source=row.practical_source,
    )


def row_of(gpu: Mapping[str, JSON], rows: Catalogue) -> Gpu | None:
    """The row of a GPU. If NVML knows the GPU, its name decides. Otherwise the kernel gives the vendor's name, and
    the PCI identity is used if no row has that name. For a log, the user may have named the row.
    """
    name, identity = gpu.get("name"), gpu.get("id")
    if from_log(gpu) and (named := next((row for row in rows.gpus if row.name == name), None)) is not None:
        return named
    found = rows.gpu(name, identity)
    return rows.gpu(None, identity) if found is None and gpu.get("index") is None else found


def no_row(gpu: Mapping[str, JSON], rows: Catalogue) -> str:
    """Why no row describes a GPU."""
    name, identity = gpu.get("name"), gpu.get("id")
    label = f"{name!r}" if name else f"the GPU with PCI identity {identity}" if identity else "a GPU of unknown kind"
    alike = [row.name for row in rows.identified(identity)] if gpu.get("index") is None else []
    either = f", which could be {' or '.join(alike)}" if len(alike) > 1 else ""
    return f"no row for {label}{either}; add one to your peaks file"


def nvlink_of(gpu: Mapping[str, JSON], rows: Catalogue, peers: Sequence[str] | None = None) -> HardwarePeak | str:
    """The active links of a GPU to others in one direction, from NVML. With ``peers`` (addresses), only those that lead
    to a switch or to one of the peers.
    """
    return _all_links(gpu, rows, peers) or _nvlinks_up(gpu, rows, peers)


_MESH: Final = 7
"""Links of a GPU with one link to each other GPU on a board of eight (MI300 and later)."""


def _all_links(gpu: Mapping[str, JSON], rows: Catalogue, peers: Sequence[str] | None) -> HardwarePeak | None:
    """For a GPU known only by name: the links of its kind, in a mesh only those to ``peers``; None for other GPUs."""
    row = row_of(gpu, rows) if from_log(gpu) else None
    if row is None or not row.links:
        return None
    link, count, which = rows.rate("nvlink", row.link or ""), row.links, f"all links of {row.name}"
    if link is None and row.links == _MESH and peers:
        link, count, which = rows.rate("xgmi", row.link or ""), min(_MESH, len(peers)), "one to each other GPU"
    if link is None:
        return None
    return link.peak.times(count, f"{count} × {row.link} ({format_rate(link.bytes_per_second)} per link), {which}")


def _nvlinks_up(gpu: Mapping[str, JSON], rows: Catalogue, peers: Sequence[str] | None) -> HardwarePeak | str:
    nvlink = gpu.get("nvlink")
    row = row_of(gpu, rows)
    if nvlink is None:
        if row is not None and row.link is not None and row.link.startswith("xGMI"):
            return f"{row.name} has {row.links} links of {row.link}; busbw does not read yet which are up"
        return "NVML reports no NVLink"
    generation = nvlink.get("generation")
    # The driver takes precedence: installed links count, not those of the datasheet.
    name = f"NVLink {generation}" if generation else (row.link if row is not None and row.link else None)
    if name is None:
        return "NVML does not report the generation of its NVLinks"
    link = rows.rate("nvlink", name)
    if link is None:
        return f"no row for {name!r} of kind nvlink; add one to your peaks file"
    usable = nvlinks(gpu, peers)
    if not usable:
        up = nvlinks(gpu)
        return f"none of its {up} active NVLinks leads to them" if up else "none of its NVLinks is up"
    return link.peak.times(usable, f"{usable} × {name} ({format_rate(link.bytes_per_second)} per link)")


def nvlinks(gpu: Mapping[str, JSON], peers: Sequence[str] | None = None) -> int | None:
    """Number of active NVLinks of a GPU; with ``peers`` (addresses), only those that lead to a switch or to a peer.
    None: NVML reports none. If the ends of links are unknown, all links count.
    """
    nvlink = gpu.get("nvlink")
    if nvlink is None:
        return None
    if peers is None or nvlink.get("unknown"):
        return int(nvlink.get("up") or 0)
    reached = nvlink.get("peers") or {}
    return int(nvlink.get("switch") or 0) + sum(int(reached.get(peer) or 0) for peer in peers)


def host_link_of(gpu: Mapping[str, JSON], rows: Catalogue) -> HardwarePeak | str:
    """The link of a GPU to the host in one direction: PCI Express as trained, or the row's ``host_link``."""
    row = row_of(gpu, rows)
    link = None if row is None or row.host_link is None else rows.rate("c2c", row.host_link)
    return pcie_of(gpu, rows) if link is None else link.peak


def _on_a_superchip(gpu: Mapping[str, JSON], rows: Catalogue) -> bool:
    """Whether a GPU has another link to the host than PCI Express, which then serves only for configuration."""
    row = row_of(gpu, rows)
    return row is not None and row.host_link is not None


def pcie_of(device: Mapping[str, JSON], rows: Catalogue) -> HardwarePeak | str:
    """The link of a device to the host in one direction, as trained."""
    if from_log(device):
        card = row_of(device, rows)
        widest = None if card is None else rows.rate("pcie", card.pcie or "")
        if card is None or widest is None:
            return no_row(device, rows)
        return widest.peak.times(_LANES, f"{widest.name} x{_LANES}, the maximum of {card.name}")
    trained = fact(device, "link.trained")
    if trained is None:
        return "the kernel does not report how its link was trained"
    row = rows.rate("pcie", f"PCIe {GENERATIONS.get(float(trained['gigatransfers']))}")
    if row is None:
        return f"no row for PCIe at {trained['gigatransfers']:g} GT/s; add one to your peaks file"
    return row.peak.times(int(trained["lanes"]), f"{row.name} x{trained['lanes']} as trained")


def dram_of(facts: Mapping[str, JSON], rows: Catalogue) -> HardwarePeak | str:
    """The memory of the host over all sockets, reads plus writes."""
    modules = facts.get("memory_modules")
    if modules is None:
        return "its modules were not recorded"
    kind, speed, channels = modules.get("kind"), modules.get("megatransfers"), modules.get("channels")
    missing = [what for what, value in (("kind", kind), ("speed", speed), ("channels", channels)) if not value]
    if missing:
        return f"{', '.join(missing)} of its modules could not be read"
    # Firmware rounds thirds up or down: 2666 and 2667 MT/s mean the same modules.
    alike = (speed + off for off in (0, -1, 1))
    row = next((row for one in alike if (row := rows.rate("ddr", f"{kind}-{one}")) is not None), None)
    if row is None:
        width = "; their channel width differs between machines" if str(kind).startswith("LP") else ""
        return f"no row for {kind}-{speed} of kind ddr{width}; add one to your peaks file"
    return row.peak.times(channels, f"{channels} channels of {row.name}, all sockets")


def _networks(facts: Mapping[str, JSON], rows: Catalogue) -> Iterator[tuple[str, HardwarePeak | str]]:
    """Active RDMA ports (EFA ports as one, if an instance has exactly these), then active physical interfaces that
    belong to none of them.
    """
    cards = [card.get("names") or [] for card in _listed(facts, "nics")]
    shown: set[str] = set()
    found: list[tuple[str, HardwarePeak | str]] = []
    for port in rdma_ports(facts):
        shown.update(*(names for names in cards if port.get("device") in names))
        if port.get("up"):
            found.append((f"{port.get('device')} port {port.get('port')}", port_of(port, rows)))
    known = [peak for _, peak in found if isinstance(peak, HardwarePeak)]
    instance = efa_together(known, rows) if len(known) == len(found) else None
    yield from found if instance is None else ((f"{len(found)} EFA ports together", instance),)
    for nic in facts.get("nics") or ():
        if nic.get("kind") == "physical" and nic.get("up") and nic.get("name") not in shown:
            yield str(nic.get("name")), interface_of(nic, rows)


def _drive(drive: Mapping[str, JSON], rows: Catalogue) -> HardwarePeak | str:
    link = pcie_of(drive, rows)
    if isinstance(link, str):
        return f"{drive.get('model') or 'unknown model'}: {link}"
    bus = link.what.removesuffix(" as trained")
    row = rows.rate("nvme", f"NVMe on {bus}")
    what = f"{drive.get('model') or 'unknown model'} on {link.what}"
    # Drives reach less than the link itself.
    practical, source = (None, None) if row is None else (row.practical_bytes_per_second, row.practical_source)
    return replace(link, practical=practical, practical_source=source, what=what, kind="nvme")


def drive_of(facts: Mapping[str, JSON], device: str, rows: Catalogue) -> HardwarePeak | str:
    """The drive behind a block device (``/dev/nvme0n1p2``) in one direction."""
    named = _NVME.match(device.rpartition("/")[2])
    for drive in _listed(facts, "drives"):
        if named is not None and named[0] in (drive.get("names") or ()):
            return _drive(drive, rows)
    return "not an NVMe drive that the kernel reports, so its rate is unknown"


# --- problems ------------------------------------------------------------------------------------------------------


def _findings(facts: Mapping[str, JSON], rows: Catalogue) -> Iterator[str]:
    for name, link in _links(facts, rows):
        yield from _link_findings(name, link, virtual=bool(facts.get("virtualization")))
    for gpu in gpus_of(facts):
        # A single GPU has no peers: clouds leave its links down.
        if nvlinks(gpu) or len(gpus_of(facts)) > 1:
            yield from _nvlink_findings(gpu, rows)
    for card in _listed(facts, "nics"):
        yield from _card_findings(card, facts, rows)


def _links(facts: Mapping[str, JSON], rows: Catalogue) -> Iterator[tuple[str, Mapping[str, JSON]]]:
    """The links of GPUs, NICs and drives whose training and maximum are known."""
    devices = [(called(gpu), gpu) for gpu in gpus_of(facts) if not _on_a_superchip(gpu, rows)]
    devices += [(_names(one), one) for what in ("nics", "drives") for one in _listed(facts, what)]
    for name, device in devices:
        link, address = device.get("link") or {}, str(device.get("address"))
        if link.get("trained") and link.get("card"):
            yield (name if address in name else f"{name} ({address})"), link


def _resting(facts: Mapping[str, JSON], rows: Catalogue) -> Iterator[str]:
    for name, link in _links(facts, rows):
        speed, most, port = link["trained"]["gigatransfers"], link["card"]["gigatransfers"], link.get("port")
        if speed < most and not (port and port["gigatransfers"] <= speed):
            yield (
                f"{name} runs at {speed:g} of its {most:g} GT/s; an idle link may save power, so check again during a "
                "copy; if it stays slow, check slot and riser"
            )


def _link_findings(name: str, link: Mapping[str, JSON], *, virtual: bool) -> Iterator[str]:
    trained, card, port = link["trained"], link["card"], link.get("port")
    shown = " (as reported in the virtual machine)" if virtual else ""
    lanes, speed = trained["lanes"], trained["gigatransfers"]
    if lanes < card["lanes"]:
        if port and port["lanes"] <= lanes:
            reason = "its slot has no more lanes; try another slot"
        else:
            reason = "reseat it, and check risers, cables and the firmware's bifurcation of the slot"
        yield f"{name} runs on {lanes} of its {card['lanes']} PCIe lanes{shown}; {reason}"
    if speed < card["gigatransfers"] and port and port["gigatransfers"] <= speed:
        slot = "its slot supports no more"
        yield f"{name} runs at {speed:g} of its {card['gigatransfers']:g} GT/s{shown}; {slot}"
    narrowest = link.get("narrowest")
    if narrowest and not virtual:  # hypervisors invent the links of their bridges
        step = f"x{narrowest['lanes']} at {narrowest['gigatransfers']:g} GT/s"
        own = f"x{lanes} at {speed:g} GT/s"
        yield f"{name} has {own}, but {narrowest['address']} on its path to the host has only {step}"


def _nvlink_findings(gpu: Mapping[str, JSON], rows: Catalogue) -> Iterator[str]:
    up, row = nvlinks(gpu), row_of(gpu, rows)
    if up is not None and row is not None and row.links is not None and up < row.links:
        yield (
            f"{called(gpu)} has {up} of its {row.links} NVLinks up; check nvidia-smi nvlink --status, the fabric "
            "manager and dmesg"
        )


def _card_findings(card: Mapping[str, JSON], facts: Mapping[str, JSON], rows: Catalogue) -> Iterator[str]:
    """A NIC whose ports carry more than its link to the host."""
    link = pcie_of(card, rows)
    ports = [port for port in rdma_ports(facts) if port.get("device") in (card.get("names") or ()) and port.get("up")]
    carried = sum(float(port.get("bytes_per_second") or 0) for port in ports)
    if isinstance(link, HardwarePeak) and carried > link.nominal:
        yield (
            f"{_names(card)} carries {format_rate(carried)} on its ports, but only {format_rate(link.nominal)} to "
            f"the host ({link.what}), in one direction"
        )


def _unknown(facts: Mapping[str, JSON], rows: Catalogue) -> Iterator[str]:
    for source in ("pci", "memory_modules"):
        yield from fact(facts, f"{source}.unknown") or ()
    gpus = [gpu for gpu in gpus_of(facts) if not _on_a_superchip(gpu, rows)]
    devices = [*gpus, *_listed(facts, "nics"), *_listed(facts, "drives")]
    if silent := [str(one.get("address")) for one in devices if one.get("link") is None]:
        yield f"PCIe link: the kernel does not report it for {', '.join(silent)}"
    if unnamed := [str(gpu.get("address")) for gpu in gpus_of(facts) if not gpu.get("name")]:
        yield f"name and NVLink of GPU {', '.join(unnamed)}: unknown to NVML, or nvidia-ml-py is not installed"
