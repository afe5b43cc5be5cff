"""Reader of what DCGM's diagnosis measures of PCI Express: its table (``dcgmi diag -r 3 -v``) and its JSON (``-j``).

Source: ``addBandwidthInfo`` in ``nvvs/plugin_src/pcie/PcieMain.cpp`` of NVIDIA/DCGM, 1.5 to 4.5. Rates are GB/s of 10^9
B/s; the bidirectional one counts both directions.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

from busbw_analysis.data.readers.draft import Draft

SIGN: Final = re.compile(rb"(?:GPU to Host|Host to GPU) bandwidth:|\| +DCGM Version")
_BESIDE: Final = re.compile(r"(?<!\d)\s+|\s+(?![\d.])|\||\\t|\\n")
"""What stands between the letters of a sentence, but not between numbers: in the table it is broken anywhere."""
_RATE: Final = re.compile(
    r'"entity_id":(?P<entity>\d{1,5})|(?:GPU(?P<gpu>\d{1,5}))?(?P<way>GPUtoHost|HosttoGPU|bidirectional)bandwidth:'
    r"(?P<rate>\d{1,6}(?:\.\d{1,9})?)GB/s",
    re.ASCII,
)
_FRAMED: Final = 2
_MOST_FRAMED: Final = 5
_WAYS: Final[dict[str, tuple[str, int]]] = {
    "GPUtoHost": ("device_to_host", 1),
    "HosttoGPU": ("host_to_device", 1),
    "bidirectional": ("host_and_device", 2),
}


def read(draft: Draft, lines: Iterable[str]) -> None:
    """The rates of every GPU, in one table. A rate that goes on in the next line is of the line in which it ends."""
    text, gpu = "", "0"
    for line in draft.scan(lines):
        cells = line.text.split("|")  # the second is the text, behind the number of a line perhaps
        text = "" if len(cells) > _MOST_FRAMED else text  # its cells were cut, and what was in them
        text += _BESIDE.sub("", cells[-2] if len(cells) > _FRAMED else line.text)
        end = 0
        for match in _RATE.finditer(text):
            end = match.end()
            gpu = match["entity"] or match["gpu"] or gpu
            if match["way"] is not None:
                op, messages = _WAYS[match["way"]]
                fields: dict[str, Any] = {"op": op, "messages": messages, "rate": float(match["rate"]) * 1e9}
                draft.add(line.number, tool_op="pcie", source=f"GPU {gpu}", target=f"GPU {gpu}", **fields)
        text = text[end:][-_LONGEST:]


_LONGEST: Final = 200
"""Characters kept of a line: a rate is shorter."""
