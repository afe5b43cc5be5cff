"""Reader of STREAM, 4.0 to 5.10, which measures the memory of a host by all of its threads, and of BabelStream.

Sources: ``stream.c`` of jeffhammond/STREAM, ``main.cpp`` of UoB-HPC/BabelStream. MB/s are 10^6 B/s, by the best of
several times; S is one array.
"""

import re
from collections.abc import Iterable
from math import log2
from typing import Final

from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.lines import Line, number, scaled, whole

SIGN: Final = re.compile(rb"STREAM version|Function +(?:Best )?Rate \(?MB/s|(?m:^Function +MBytes/sec)")
_NAME: Final = re.compile(r"\b(Copy|Scale|Add|Triad):")
"""Which looks like the prefix of a launcher before a row."""
_ROW: Final = re.compile(r"(Copy|Scale|Add|Triad) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)$")
_ARRAY: Final = re.compile(r"Array size = (\d{1,15})(?=,| \()")
_ELEMENT: Final = re.compile(r"system uses (\d{1,3}) bytes per")
_THREADS: Final = re.compile(r"Number of Threads (?:requested|counted) = (\d{1,6})")
_BABEL: Final = re.compile(r"(Copy|Mul|Add|Triad|Dot) +([\d.]+)(?: +[\d.]+){3}$")
_OF_BABEL: Final = {"Copy": ("stream_copy", 2), "Mul": ("stream_scale", 2), "Dot": (None, 2)}
"""Kernels of two arrays → busbw's operation and the arrays; the others have three."""
_MEGABYTES: Final = re.compile(r"Array size: ([\d.]{1,12}) MB")
_PRECISION: Final = re.compile(r"Precision: (double|float)\b")
_IMPLEMENTATION: Final = re.compile(r"Implementation: (\w+)")
_USING: Final = re.compile(r"Using \w+ device (\S.{0,99})")


def read(draft: Draft, lines: Iterable[str]) -> None:
    """The table of every run."""
    babel = _Babel(draft)
    elements, element, threads = None, 8, None
    fields: dict[str, object]
    for line in draft.scan(_NAME.sub(r"\1 ", line) for line in lines):
        if "STREAM version" in line.text:
            draft.begin(line.number)
        elif babel.take(line):
            pass
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


class _Babel:
    """BabelStream, on a GPU if it is that of CUDA or HIP; others do not say on what they run."""

    def __init__(self, draft: Draft) -> None:
        self.draft, self.dtype, self.backend, self.begun = draft, "float64", "unknown", False
        self.size: int | None = None

    def take(self, line: Line) -> bool:
        """Take a line; return whether it is of BabelStream."""
        text = line.text
        if (match := _IMPLEMENTATION.match(text)) is not None:
            self.draft.begin(line.number)
            self.draft.places.clear()
            self.backend = "cuda" if match[1] in {"CUDA", "HIP"} else "unknown"
        elif (match := _PRECISION.match(text)) is not None:
            self.dtype = "float64" if match[1] == "double" else "float32"
        elif (match := _MEGABYTES.match(text)) is not None:
            self.size = _bytes(number(match[1]) or 0.0)
        elif (match := _USING.match(text)) is not None and self.backend == "cuda":
            self.draft.place(device="0", name=match[1])
        elif text.startswith("Function "):
            self.begun = "MBytes/sec" in text
        elif self.begun and (match := _BABEL.match(text)) is not None:
            op, arrays = _OF_BABEL.get(match[1], (f"stream_{match[1].lower()}", 3))
            fields: dict[str, object] = {"dtype": self.dtype, "backend": self.backend, "device": self.backend}
            fields |= {"ranks": 1, "statistic": "min", "tool_size_bytes": self.size, "tool_size_is": "S"}
            rate = scaled(number(match[2]), 1e6)
            self.draft.add(line.number, op=op, tool_op=match[1], rate=rate, messages=arrays, **fields)
        else:
            return False
        return True


def _bytes(megabytes: float) -> int:
    """The size of an array, of which one decimal is printed: a power of two if that is printed so."""
    power = 2 ** round(log2(megabytes * 1e6)) if megabytes else 0
    return power if round(power / 1e6, 1) == megabytes else round(megabytes * 1e6)
