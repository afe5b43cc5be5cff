"""What a machine's memories and links can do: the facts of a host matched with the catalogue, and what is odd.

It reads facts as ``run.json`` holds them, so it serves the machine at hand and a run from elsewhere alike. Where a fact
or a row is missing there is a reason in words instead of a number.
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
"""The kernel's name of a drive, before the number of its namespace and that of a partition."""

Name = Literal["HBM", "NVLink", "PCIe", "C2C", "DRAM", "NIC", "NVMe"]

_LANES = 16
"""Of the link of a GPU to its host."""

GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6, 128.0: 7}
"""GT/s of a lane → generation of PCI Express."""


@dataclass(frozen=True, slots=True)
class Level:
    """A level of the hierarchy at ``holder`` (``GPU 0``): its peak or None. ``why`` says by what, or why not."""

    name: Name
    holder: str
    peak: HardwarePeak | None
    why: str


@dataclass(frozen=True, slots=True)
class Picture:
    """The levels of one host from the chip outwards, what is odd about them, and what could not be read. ``resting``
    are links slower than both of their ends, which may only save power while nobody uses them.
    """

    levels: tuple[Level, ...]
    findings: tuple[str, ...]
    unknown: tuple[str, ...]
    resting: tuple[str, ...] = ()


def picture(facts: Mapping[str, JSON], rows: Catalogue) -> Picture:
    """The picture of a host from its facts."""
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
    """The GPUs of a host, as ``run.json`` has them."""
    return _listed(facts, "gpus")


def _listed(facts: Mapping[str, JSON], what: str) -> list[dict[str, JSON]]:
    devices: list[dict[str, JSON]] = fact(facts, f"pci.{what}") or []
    return devices


def called(gpu: Mapping[str, JSON]) -> str:
    """``GPU 0``, or its address where NVML gives it no number."""
    index = gpu.get("index")
    return f"GPU {gpu.get('address')}" if index is None else f"GPU {index}"


def _names(device: Mapping[str, JSON]) -> str:
    return "/".join(device.get("names") or ()) or str(device.get("address"))


# --- one level each: its peak, or the reason why there is none ---------------------------------------------------


def from_log(device: Mapping[str, JSON]) -> bool:
    """Whether all that is known of a device is its name, from the log of a tool: its links are those of its kind."""
    return device.get("told_by") is not None


def memory_of(gpu: Mapping[str, JSON], rows: Catalogue) -> HardwarePeak | str:
    """The memory of a GPU, reads and writes together."""
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
    """The row of a GPU. NVML's word for it counts alone; where NVML does not know it its name is what its maker wrote
    on the card, as the kernel reads it, and its PCI identity tells where no row has that name.
    """
    name, identity = gpu.get("name"), gpu.get("id")
    found = rows.gpu(name, identity)
    return rows.gpu(None, identity) if found is None and gpu.get("index") is None else found


def no_row(gpu: Mapping[str, JSON], rows: Catalogue) -> str:
    """Why a GPU has no row."""
    name, identity = gpu.get("name"), gpu.get("id")
    said = f"{name!r}" if name else f"the GPU with PCI identity {identity}" if identity else "a GPU of unknown kind"
    alike = [row.name for row in rows.identified(identity)] if gpu.get("index") is None else []
    either = f", which could be {' or '.join(alike)}" if len(alike) > 1 else ""
    return f"no row for {said}{either}; add one to your peaks file"


def nvlink_of(gpu: Mapping[str, JSON], rows: Catalogue, peers: Sequence[str] | None = None) -> HardwarePeak | str:
    """The links of a GPU to others in one direction: those that are up, as NVML tells. With ``peers`` (addresses) only
    those that lead to a switch or to one of them.
    """
    return _all_links(gpu, rows, peers) or _nvlinks_up(gpu, rows, peers)


_MESH: Final = 7
"""Links of a GPU that has one to each of the others on a board of eight (MI300 and later)."""


def _all_links(gpu: Mapping[str, JSON], rows: Catalogue, peers: Sequence[str] | None) -> HardwarePeak | None:
    """Of a GPU that is known by its name alone, the links that its kind has, of a mesh those to ``peers``; None for
    others.
    """
    row = row_of(gpu, rows) if from_log(gpu) else None
    if row is None or not row.links:
        return None
    link, count, which = rows.rate("nvlink", row.link or ""), row.links, f"all that {row.name} has"
    if link is None and row.links == _MESH and peers:
        link, count, which = rows.rate("xgmi", row.link or ""), min(_MESH, len(peers)), "one to each of the others"
    if link is None:
        return None
    return link.peak.times(count, f"{count} × {row.link} ({format_rate(link.bytes_per_second)} a link), {which}")


def _nvlinks_up(gpu: Mapping[str, JSON], rows: Catalogue, peers: Sequence[str] | None) -> HardwarePeak | str:
    told = gpu.get("nvlink")
    row = row_of(gpu, rows)
    if told is None:
        if row is not None and row.link is not None and row.link.startswith("xGMI"):
            return f"{row.name} has {row.links} links of {row.link}; which are up and where they lead is not read yet"
        return "NVML tells of no NVLink"
    generation = told.get("generation")
    # The driver's word comes first: what is plugged in counts, not what the datasheet has.
    name = f"NVLink {generation}" if generation else (row.link if row is not None and row.link else None)
    if name is None:
        return "NVML does not tell the generation of its NVLinks"
    link = rows.rate("nvlink", name)
    if link is None:
        return f"no row for {name!r} of kind nvlink; add one to your peaks file"
    usable = nvlinks(gpu, peers)
    if not usable:
        up = nvlinks(gpu)
        return f"none of its {up} NVLinks leads to them" if up else "none of its NVLinks is up"
    return link.peak.times(usable, f"{usable} × {name} ({format_rate(link.bytes_per_second)} a link)")


def nvlinks(gpu: Mapping[str, JSON], peers: Sequence[str] | None = None) -> int | None:
    """How many NVLinks of a GPU are up and, with ``peers`` (addresses), lead to a switch or to one of them. None: NVML
    tells of none. Where it does not tell where links lead, all count.
    """
    told = gpu.get("nvlink")
    if told is None:
        return None
    if peers is None or told.get("untold"):
        return int(told.get("up") or 0)
    reached = told.get("peers") or {}
    return int(told.get("switch") or 0) + sum(int(reached.get(peer) or 0) for peer in peers)


def host_link_of(gpu: Mapping[str, JSON], rows: Catalogue) -> HardwarePeak | str:
    """The way of a GPU to the host in one direction: PCI Express as it is trained, or what its row has instead."""
    row = row_of(gpu, rows)
    link = None if row is None or row.host_link is None else rows.rate("c2c", row.host_link)
    return pcie_of(gpu, rows) if link is None else link.peak


def _on_a_superchip(gpu: Mapping[str, JSON], rows: Catalogue) -> bool:
    """Whether a GPU reaches the host by another way than PCI Express, which then only configures it."""
    row = row_of(gpu, rows)
    return row is not None and row.host_link is not None


def pcie_of(device: Mapping[str, JSON], rows: Catalogue) -> HardwarePeak | str:
    """The link of a device to the host in one direction, as it is trained."""
    if from_log(device):
        card = row_of(device, rows)
        widest = None if card is None else rows.rate("pcie", card.pcie or "")
        if card is None or widest is None:
            return no_row(device, rows)
        return widest.peak.times(_LANES, f"{widest.name} x{_LANES}, the most that {card.name} has")
    trained = fact(device, "link.trained")
    if trained is None:
        return "the kernel does not tell how its link was trained"
    row = rows.rate("pcie", f"PCIe {GENERATIONS.get(float(trained['gigatransfers']))}")
    if row is None:
        return f"no row for PCIe at {trained['gigatransfers']:g} GT/s; add one to your peaks file"
    return row.peak.times(int(trained["lanes"]), f"{row.name} x{trained['lanes']} as trained")


def dram_of(facts: Mapping[str, JSON], rows: Catalogue) -> HardwarePeak | str:
    """The memory of the host, all sockets together, reads and writes together."""
    told = facts.get("memory_modules")
    if told is None:
        return "its modules are not recorded"
    kind, speed, channels = told.get("kind"), told.get("megatransfers"), told.get("channels")
    missing = [what for what, value in (("kind", kind), ("speed", speed), ("channels", channels)) if not value]
    if missing:
        return f"not told of its modules: {', '.join(missing)}"
    # Firmware rounds thirds up or down: 2666 and 2667 MT/s are the same modules.
    alike = (speed + off for off in (0, -1, 1))
    row = next((row for one in alike if (row := rows.rate("ddr", f"{kind}-{one}")) is not None), None)
    if row is None:
        width = "; how wide their channels are differs from machine to machine" if str(kind).startswith("LP") else ""
        return f"no row for {kind}-{speed} of kind ddr{width}; add one to your peaks file"
    return row.peak.times(channels, f"{channels} channels of {row.name}, all sockets")


def _networks(facts: Mapping[str, JSON], rows: Catalogue) -> Iterator[tuple[str, HardwarePeak | str]]:
    """Ports of RDMA cards that are up (those of EFA together where an instance has just these), then physical
    interfaces that are up and belong to none of them.
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
    yield from found if instance is None else ((f"{len(found)} ports of EFA together", instance),)
    for nic in facts.get("nics") or ():
        if nic.get("kind") == "physical" and nic.get("up") and nic.get("name") not in shown:
            yield str(nic.get("name")), interface_of(nic, rows)


def _drive(drive: Mapping[str, JSON], rows: Catalogue) -> HardwarePeak | str:
    link = pcie_of(drive, rows)
    if isinstance(link, str):
        return f"{drive.get('model') or 'model not told'}: {link}"
    bus = link.what.removesuffix(" as trained")
    row = rows.rate("nvme", f"NVMe on {bus}")
    what = f"{drive.get('model') or 'model not told'} on {link.what}"
    # What drives reach over such a link is less than the link itself does.
    reached = replace(link, practical=None, practical_source=None) if row is None else row.peak
    return replace(
        link,
        practical=reached.practical,
        practical_source=reached.practical_source,
        practical_of=reached.practical_of,
        what=what,
    )


def drive_of(facts: Mapping[str, JSON], device: str, rows: Catalogue) -> HardwarePeak | str:
    """The drive behind a block device (``/dev/nvme0n1p2``) in one direction."""
    named = _NVME.match(device.rpartition("/")[2])
    for drive in _listed(facts, "drives"):
        if named is not None and named[0] in (drive.get("names") or ()):
            return _drive(drive, rows)
    return "that is no NVMe drive which the kernel tells of, so its rate is not known"


# --- what is odd -------------------------------------------------------------------------------------------------


def _findings(facts: Mapping[str, JSON], rows: Catalogue) -> Iterator[str]:
    for name, link in _links(facts, rows):
        yield from _link_findings(name, link, virtual=bool(facts.get("virtualization")))
    for gpu in gpus_of(facts):
        # One GPU alone has nobody to talk to: clouds leave its links down.
        if nvlinks(gpu) or len(gpus_of(facts)) > 1:
            yield from _nvlink_findings(gpu, rows)
    for card in _listed(facts, "nics"):
        yield from _card_findings(card, facts, rows)


def _links(facts: Mapping[str, JSON], rows: Catalogue) -> Iterator[tuple[str, Mapping[str, JSON]]]:
    """The links of GPUs, cards and drives of which is known how they are trained and what the card could."""
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
                f"{name} runs at {speed:g} of its {most:g} GT/s; a link at rest may save power: look again while it "
                "copies, and at slot and riser if it stays so"
            )


def _link_findings(name: str, link: Mapping[str, JSON], *, virtual: bool) -> Iterator[str]:
    trained, card, port = link["trained"], link["card"], link.get("port")
    shown = " (as the virtual machine shows it)" if virtual else ""
    lanes, speed = trained["lanes"], trained["gigatransfers"]
    if lanes < card["lanes"]:
        if port and port["lanes"] <= lanes:
            reason = "the slot above it has no more: another slot may"
        else:
            reason = "reseat it, and look at risers, cables and the firmware's bifurcation of the slot"
        yield f"{name} runs on {lanes} of its {card['lanes']} PCIe lanes{shown}; {reason}"
    if speed < card["gigatransfers"] and port and port["gigatransfers"] <= speed:
        slot = "the slot above it can do no more"
        yield f"{name} runs at {speed:g} of its {card['gigatransfers']:g} GT/s{shown}; {slot}"
    narrowest = link.get("narrowest")
    if narrowest and not virtual:  # a hypervisor's bridges have links that it made up
        step = f"x{narrowest['lanes']} at {narrowest['gigatransfers']:g} GT/s"
        own = f"x{lanes} at {speed:g} GT/s"
        yield f"{name} has {own}, but {narrowest['address']} on its way to the host only {step}"


def _nvlink_findings(gpu: Mapping[str, JSON], rows: Catalogue) -> Iterator[str]:
    up, row = nvlinks(gpu), row_of(gpu, rows)
    if up is not None and row is not None and row.links is not None and up < row.links:
        yield (
            f"{called(gpu)} has {up} of its {row.links} NVLinks up; see nvidia-smi nvlink --status, the fabric manager "
            "and dmesg"
        )


def _card_findings(card: Mapping[str, JSON], facts: Mapping[str, JSON], rows: Catalogue) -> Iterator[str]:
    """A card whose ports carry more than its way to the host."""
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
        yield from fact(facts, f"{source}.untold") or ()
    gpus = [gpu for gpu in gpus_of(facts) if not _on_a_superchip(gpu, rows)]
    devices = [*gpus, *_listed(facts, "nics"), *_listed(facts, "drives")]
    if silent := [str(one.get("address")) for one in devices if one.get("link") is None]:
        yield f"PCIe link: the kernel does not tell it of {', '.join(silent)}"
    if unnamed := [str(gpu.get("address")) for gpu in gpus_of(facts) if not gpu.get("name")]:
        yield f"name and NVLink of GPU {', '.join(unnamed)}: NVML does not know it, or nvidia-ml-py is not installed"
