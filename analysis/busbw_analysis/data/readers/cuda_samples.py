"""Reader of p2pBandwidthLatencyTest and bandwidthTest of the CUDA samples.

Sources: ``p2pBandwidthLatencyTest.cu`` and, up to 12.8, ``bandwidthTest.cu`` of NVIDIA/cuda-samples. Rates are GB/s of
10^9 B/s. Data go from the row to the column, with P2P Reads from the column to the row. Copies inside a GPU count bytes
read and written; they are in every matrix, and those of the first are read. Latencies are those of 16 B; those of the
CPU are the time to start a copy and are left out.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.lines import Line, number, scaled, whole

SIGN: Final = re.compile(
    rb"P2P=(?:En|Dis)abled [^\n]{0,40}Matrix \(|(?:Host|Device) to (?:Host|Device) Bandwidth, \d+ Device"
    rb"|Host/Device Bandwidth Matrix \(GB/s\)|bandwidthTest-[HD]2[HD]\b"
)
_MATRIX: Final = re.compile(
    r"(?:(Uni|Bi)directional P2P=|(?<!\S)P2P=(?=\w+ Lat))(Enabled|Disabled) (Bandwidth|Latency)"
    r"(?: \(P2P (Writes|Reads)\))?"
    r" Matrix \((GB/s|us)\)"
)
_COPY: Final = re.compile(r"((?:Host|Device) to (?:Host|Device)) Bandwidth, (\d+) Device")
_GRIND: Final = re.compile(r"((?:Concurrent )?)Host/Device Bandwidth Matrix \(GB/s\)(?:, memory=(\w+))?")
"""Of busGrind: a column for each device, a row for each direction."""
_GROUND: Final = {
    "H2D": ("host_to_device", "host", "GPU", 1),
    "D2H": ("device_to_host", "GPU", "host", 1),
    "BiDir": ("host_and_device", "host", "GPU", 2),
}
"""Row → operation, ends, and how often its rate counts S."""
_DEVICE: Final = re.compile(
    r"(?:Device: )?(?P<device>\d+), (?P<name>.*?), pciBusID: (?P<bus>[\da-f]{1,2}), pciDeviceID: (?P<slot>[\da-f]{1,2})"
    r", pciDomainID: ?(?P<domain>[\da-f]{1,8})"
)
_DEVICE_ALONE: Final = re.compile(r"Device (?P<device>\d+): (?P<name>.*\S)")
_LINE: Final = re.compile(
    r"bandwidthTest-([HD])2([HD])(?:-(\w+))?, Bandwidth = ([\d.]+) ([GM]B/s), .*Size = (\d+) bytes, NumDevsUsed = (\d+)"
)
"""A size with ``--csv`` and in shmoo mode."""
_ENDS: Final = {"H": "Host", "D": "Device"}
_COPIES: Final = {
    "Host to Device": ("host_to_device", "host", "GPU", 1),
    "Device to Host": ("device_to_host", "GPU", "host", 1),
    "Device to Device": ("memory_copy", "GPU", "GPU", 2),
}
"""Copy → operation, ends, and how often its rate counts S."""
_BETWEEN: Final = {
    ("Uni", "Enabled"): ("peer_copy", 1),
    ("Uni", "Disabled"): ("peer_copy_driver", 1),
    ("Bi", "Enabled"): ("peer_copy_both", 2),
    ("Bi", "Disabled"): (None, 2),
    (None, "Enabled"): ("peer_copy", 1),
    (None, "Disabled"): ("peer_copy_driver", 1),
}
"""Matrix → operation between two GPUs, and how often its rate counts S."""
_LATENCY_BYTES: Final = 16
_OTHER_TITLE: Final = re.compile(
    r"#|\.\.\.|P2P Connectivity Matrix|(?:Uni|Bi)directional P2P=|P2P=(?:En|Dis)abled|Result = "
    r"|(?:Host|Device) to \w+ Bandwidth"
)
"""Of a matrix whose unit is cut off, of one without rates, and what ends the copies."""
_TITLES: Final = (_MATRIX, _COPY, _GRIND)


def read(draft: Draft, lines: Iterable[str]) -> None:
    """The matrices and the copies of every size."""
    title: re.Match[str] | None = None
    columns: list[str] = []
    kind, device = "", "0"
    inside: dict[str, re.Match[str]] = {}
    seen: set[tuple[str, str]] = set()
    for line in draft.scan(lines):
        words = line.text.split()
        if (match := next(filter(None, (sign.search(line.text) for sign in _TITLES)), None)) is not None:
            title, columns, kind = match, [], ""
            inside = {} if _is_next_run(draft, line.number, (match[0], device), seen) else inside
        elif _ends(draft, line):
            title = None
        elif (match := _DEVICE.match(line.text) or _DEVICE_ALONE.match(line.text)) is not None:
            device = match["device"]
            draft.place(device=device, name=match["name"], bus_id=_bus_id(match.groupdict()))
        elif words[:1] in (["D\\D"], ["GPU"], ["CPU"], ["Dir\\D"]):
            is_matrix = words[0] != "CPU" and title is not None and title.re is not _COPY
            columns = words[1:] if is_matrix and all(word.isdecimal() or word == "Total" for word in words[1:]) else []
        elif words[1:] == ["Memory", "Transfers"]:
            kind = words[0]
        elif _add_line(draft, line, device):
            continue
        elif title is not None and columns and len(words) == len(columns) + 1:
            is_first = inside.setdefault(words[0], title) is title
            _add_row(draft, line, title, columns, words, with_inside=is_first)
        elif title is not None and title.re is _COPY and len(words) == 2 and whole(words[0]) is not None:
            _add_copy(draft, line, (title[1], title[2]), kind, device, *words)


def _is_next_run(draft: Draft, line: int, title: tuple[str, str], seen: set[tuple[str, str]]) -> bool:
    """Whether this title of a device stands again, so that another run begins, which gets a table of its own."""
    again = title in seen
    if again:
        devices = {place.device: place for place in draft.places}
        draft.places = [*devices.values()]
        draft.begin(line)
        draft.places = [*devices.values()]
        seen.clear()
    seen.add(title)
    return again


def _ends(draft: Draft, line: Line) -> bool:
    """Whether ``line`` ends a matrix or the copies before it."""
    if "Bandwidth(MB/s)" in line.text:
        draft.note("no-unit", line.number, "MB/s of versions before CUDA 10.1 are of no known number of bytes")
        return True
    return _OTHER_TITLE.match(line.text) is not None


def _add_line(draft: Draft, line: Line, device: str) -> bool:
    """Whether ``line`` is a copy with its rate, which is added."""
    match = _LINE.search(line.text)
    if match is None or match[5] != "GB/s":
        return False
    way = f"{_ENDS[match[1]]} to {_ENDS[match[2]]}"
    _add_copy(draft, line, (way, match[7]), "PAGEABLE" if match[3] == "Paged" else "", device, match[6], match[4])
    return True


def _bus_id(parts: Mapping[str, str]) -> str | None:
    """The PCI address of a device; None if the sample does not print it."""
    if "bus" not in parts:
        return None
    bus, slot, domain = (int(parts[part], 16) for part in ("bus", "slot", "domain"))
    return f"{domain:04x}:{bus:02x}:{slot:02x}.0"


def _add_row(
    draft: Draft, line: Line, matrix: re.Match[str], columns: list[str], words: list[str], *, with_inside: bool
) -> None:
    """One row of a matrix. In its diagonal a GPU copies inside its own memory."""
    if matrix.re is _GRIND:
        _add_directions(draft, line, matrix, columns, words)
        return
    direction, access, _, how, unit = matrix.groups()
    op, messages = _BETWEEN[direction, access]
    for column, word in zip(columns, words[1:], strict=True):
        value, inside = number(word), column == words[0]
        if value is None or (inside and (unit == "us" or direction == "Bi" or not with_inside)):
            continue
        source, target = (column, words[0]) if how == "Reads" else (words[0], column)
        result: dict[str, object] = {"rate": value * 1e9, "messages": 2 if inside else messages}
        if unit == "us":
            result = {"time_seconds": scaled(value, 1e-6), "tool_size_bytes": _LATENCY_BYTES, "tool_size_is": "S"}
        draft.add(
            line.number,
            op="memory_copy" if inside else op,
            tool_op="inside a GPU" if inside else matrix[0].partition(" Matrix")[0],
            source=f"GPU {source}",
            target=f"GPU {target}",
            statistic="mean",
            **result,
        )


def _add_directions(draft: Draft, line: Line, grind: re.Match[str], columns: list[str], words: list[str]) -> None:
    """Copies in one direction to or from every device, one after the other or all at once."""
    op, source, target, messages = _GROUND.get(words[0], (None, "host", "GPU", 1))
    pageable = (grind[2] or "Pinned") != "Pinned"
    for column, word in zip(columns, words[1:], strict=True):
        if (rate := number(word)) is not None and column != "Total":
            draft.add(
                line.number,
                op=None if pageable else op,
                tool_op=f"{grind[1]}{words[0]} {grind[2] or ''}".strip(),
                source=source.replace("GPU", f"GPU {column}"),
                target=target.replace("GPU", f"GPU {column}"),
                rate=rate * 1e9,
                messages=messages,
                statistic="mean",
            )


def _add_copy(draft: Draft, line: Line, copy: tuple[str, str], kind: str, device: str, size: str, rate: str) -> None:
    """One size of a copy, with its way and the number of GPUs: rates of several are summed; those of pageable memory
    are no operation of busbw.
    """
    way, gpus = copy
    op, source, target, messages = _COPIES.get(way, (None, "host", "host", 1))
    draft.add(
        line.number,
        op=None if kind == "PAGEABLE" and "host" in {source, target} else op,
        tool_op=f"{way} {kind}".strip(),
        source=source.replace("GPU", f"GPU {device}"),
        target=target.replace("GPU", f"GPU {device}"),
        tool_size_bytes=whole(size),
        tool_size_is="S",
        rate=scaled(number(rate), 1e9),
        messages=messages,
        statistic="mean" if gpus == "1" else "sum",
    )
