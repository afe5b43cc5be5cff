"""Reader of STREAM, 4.0 to 5.10, which measures the memory of a host by all of its threads together.

Source: ``stream.c`` of jeffhammond/STREAM. MB/s are 10^6 B/s, by the best of several times; S is one array.
"""

import re
from collections.abc import Iterable
from typing import Final

from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.lines import number, whole

SIGN: Final = re.compile(rb"STREAM version|Function +(?:Best )?Rate \(?MB/s")
_NAME: Final = re.compile(r"\b(Copy|Scale|Add|Triad):")
"""Which looks like the prefix of a launcher before a row."""
_ROW: Final = re.compile(r"(Copy|Scale|Add|Triad) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)$")
_ARRAY: Final = re.compile(r"Array size = (\d{1,15})(?=,| \()")
_ELEMENT: Final = re.compile(r"system uses (\d{1,3}) bytes per")
_THREADS: Final = re.compile(r"Number of Threads (?:requested|counted) = (\d{1,6})")


def read(draft: Draft, lines: Iterable[str]) -> None:
    """The table of every run."""
    elements, element, threads = None, 8, None
    fields: dict[str, object]
    for line in draft.scan(_NAME.sub(r"\1 ", line) for line in lines):
        if "STREAM version" in line.text:
            draft.begin(line.number)
        elif (match := _ARRAY.search(line.text)) is not None:
            elements = whole(match[1])
        elif (match := _ELEMENT.search(line.text)) is not None:
            element = int(match[1])
        elif (match := _THREADS.search(line.text)) is not None:
            threads = f"{match[1]} threads"
        elif (match := _ROW.match(line.text)) is not None:
            size = None if elements is None else elements * element
            fields = {"settings": threads, "dtype": "float64" if element == 8 else None, "statistic": "min", "ranks": 1}
            fields |= {"tool_size_bytes": size, "tool_size_is": "S", "time_seconds": number(match[4])}
            draft.add(line.number, op=f"stream_{match[1].lower()}", tool_op=match[1], **fields)
