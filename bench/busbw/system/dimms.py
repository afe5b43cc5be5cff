"""Memory modules of a host: kind, speed and channels, as far as the firmware reports them to this user.

The firmware's table (SMBIOS, as printed by dmidecode) is readable only by root. Most virtual machines have none, or an
invented module. The kernel's own list (EDAC) has no speeds and is not read.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from busbw.runs.facts import MemoryModules
from busbw.system.sysfs import SYSFS

_TABLE = "firmware/dmi/tables/DMI"
_MEMORY_DEVICE = 17
_KINDS = {
    0x18: "DDR3", 0x1A: "DDR4", 0x1E: "LPDDR4", 0x20: "HBM", 0x21: "HBM2", 0x22: "DDR5", 0x23: "LPDDR5", 0x24: "HBM3"
}  # fmt: skip
"""Memory type → its name: DMTF DSP0134, System Management BIOS reference, 7.18.2."""
_CHANNEL = re.compile(r"^(?P<socket>.*?)[\s_-]*CHANNEL[\s_-]*(?P<channel>[0-9]+|[A-Z])(?![A-Z0-9])", re.IGNORECASE)
"""Boards use ``P0 CHANNEL A``, ``P0_Node0_Channel0_Dimm0`` and ``CPU0_Channel_A_DIMM0``."""
_IN_DOUBLE_WORDS = 0xFFFF
_UNKNOWN = (0, _IN_DOUBLE_WORDS)


@dataclass(frozen=True, slots=True)
class _Module:
    """An installed module: ``kind``, running speed in MT/s and channel; None: unknown."""

    kind: str | None
    megatransfers: int | None
    channel: str | None


def memory_facts(sysfs: Path = SYSFS) -> MemoryModules:
    """Facts about the memory modules."""
    unknown: list[str] = []
    try:
        modules = list(_from_table((sysfs / _TABLE).read_bytes()))
        source = "SMBIOS"
    except PermissionError:
        modules, source = [], None
        unknown.append("memory speed: only root may read the firmware's table")
    except OSError:
        modules, source = [], None
        unknown.append("memory speed: the firmware provides no table of its modules")
    channels = len({module.channel for module in modules}) if all(module.channel for module in modules) else 0
    if not channels:
        unknown.append("memory channels: the firmware does not report them")
    speeds = {module.megatransfers for module in modules}
    kinds = {module.kind for module in modules}
    if len(speeds) > 1:
        unknown.append(f"memory speed: modules differ ({', '.join(sorted(map(str, speeds)))} MT/s)")
    return MemoryModules(
        modules=len(modules) or None,
        kind=kinds.pop() if len(kinds) == 1 else None,
        megatransfers=speeds.pop() if len(speeds) == 1 else None,
        channels=channels or None,
        source=source,
        unknown=tuple(unknown),
    )


def _from_table(table: bytes) -> Iterator[_Module]:
    """The modules of an SMBIOS table: structures of type, length and handle, each followed by its strings."""
    at = 0
    while at + 4 <= len(table):
        kind, length = table[at], table[at + 1]
        if length < 4:  # shorter than its own header: damaged
            return
        body = table[at : at + length]
        end = table.find(b"\0\0", at + length)
        end = len(table) if end < 0 else end
        strings = table[at + length : end].split(b"\0")
        if kind == _MEMORY_DEVICE and (module := _module(body, strings)) is not None:
            yield module
        at = end + 2


def _module(body: bytes, strings: list[bytes]) -> _Module | None:
    """One memory device; None for an empty slot."""

    def number(at: int, size: int) -> int:
        return int.from_bytes(body[at : at + size], "little") if at + size <= len(body) else 0

    def text(at: int) -> str:
        place = number(at, 1)
        return strings[place - 1].decode(errors="replace").strip() if 0 < place <= len(strings) else ""

    if number(0x0C, 2) in _UNKNOWN:
        return None
    running = number(0x58, 4) if number(0x20, 2) == _IN_DOUBLE_WORDS else number(0x20, 2)
    named = _CHANNEL.match(text(0x11)) or _CHANNEL.match(text(0x10))
    return _Module(
        kind=_KINDS.get(number(0x12, 1)),
        megatransfers=running or None,
        channel=f"{named['socket']} {named['channel']}".strip().casefold() if named else None,
    )
