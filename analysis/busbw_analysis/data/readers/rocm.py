"""Reader of the matrices of rocm_bandwidth_test (``-a``, ``-A``).

Source: ``ComputeCopyTime`` and ``PrintPerfMatrix`` of ROCm/rocm_bandwidth_test 2.6. Rates are GB/s of 10^9 B/s: of a
bidirectional copy for both directions, inside a GPU for bytes read and written. Devices without PCI address are CPUs.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.lines import number, scaled

SIGN: Final = re.compile(rb"(?m)directional copy (?:peak|average) bandwidth GB/s\s*$")
_DEVICE: Final = re.compile(r"(?:Device: +)?(\d{1,4}), +(.*?)(?:, +GPU-\w+)?(?:, +([\da-f]{2}:[\da-f]+\.\d))?")
_MATRIX: Final = re.compile(r"(Uni|Bi?)directional copy (peak|average) bandwidth GB/s")
_OPS: Final = {
    (False, "host", "GPU"): "host_to_device",
    (False, "GPU", "host"): "device_to_host",
    (False, "GPU", "GPU"): "peer_copy",
    (True, "host", "GPU"): "host_and_device",
    (True, "GPU", "GPU"): "peer_copy_both",
}
"""Whether both directions, and ends → operation. The bidirectional one has each pair twice."""


def read(draft: Draft, lines: Iterable[str]) -> None:
    """The matrices of every run."""
    matrix: re.Match[str] | None = None
    columns: list[str] = []
    names: dict[str, str] = {}
    for line in draft.scan(lines):
        words = line.text.split()
        if (device := _DEVICE.fullmatch(line.text)) is not None:
            if device[1] in names:  # of the next run
                draft.begin(line.number)
                names, matrix = {}, None
            gpus = sum(name != "host" for name in names.values())
            names[device[1]] = "host" if device[3] is None else f"GPU {gpus}"
            if device[3] is not None:
                draft.place(device=gpus, name=device[2], bus_id=f"0000:{device[3]}")
        elif words[:1] == ["D/D"]:
            columns = words[1:]
        elif words and not words[0].isdecimal():
            matrix, columns = _MATRIX.search(line.text), []  # None: the heading of another table
        elif matrix is not None and columns and len(words) == len(columns) + 1:
            if words[0] not in names:
                draft.note("no-header", line.number, "the list of devices is missing, which says what is a CPU: add it")
                continue
            for target, word in zip(columns, words[1:], strict=True):
                _add(draft, line.number, matrix, names, (words[0], target), number(word))


def _add(
    draft: Draft,
    line: int,
    matrix: re.Match[str],
    names: Mapping[str, str],
    devices: tuple[str, str],
    value: float | None,
) -> None:
    """One cell of a matrix, between two ``devices``. A host with several CPUs has a case for each of them."""
    source, target = (names.get(device, "") for device in devices)
    inside, both = devices[0] == devices[1], matrix[1] != "Uni"
    op = "memory_copy" if inside and not both else _OPS.get((both, source[:4].strip(), target[:4].strip()))
    if value is None or op is None or "host" in {source} & {target} or (both and int(devices[0]) > int(devices[1])):
        return
    cpu = next((device for device in devices if names.get(device) == "host"), None)
    several = sum(name == "host" for name in names.values()) > 1
    draft.add(
        line,
        op=op,
        tool_op=matrix[0].removesuffix(" GB/s"),
        source=source,
        target=target,
        part=f"CPU {cpu}" if cpu is not None and several else None,
        rate=scaled(value, 1e9),
        messages=2 if inside or both else 1,
        statistic="min" if matrix[2] == "peak" else "mean",
    )
