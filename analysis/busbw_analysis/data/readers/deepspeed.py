"""Reader of DeepSpeed's communication benchmark (``ds_bench``, ``run_all.py``, ``all_reduce.py`` …).

Source: ``benchmarks/communication/utils.py`` (``print_header``, ``get_bw``, ``get_metric_strings``) of
deepspeedai/DeepSpeedExamples. The size is that of the input, exact only as elements × bytes of each. Of all_reduce the
throughput counts the input twice, so that it is no algbw.
"""

import re
from collections.abc import Iterable
from typing import Final

from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.lines import RATES, SECONDS, number, op_named, scaled

SIGN: Final = re.compile(rb"- Performance of \w{1,40} on \d{1,7} devices\b")
_TITLE: Final = re.compile(r"- Performance of (\w{1,40}) on (\d{1,7}) devices\b")
_HEADING: Final = re.compile(r"Duration(?: \((us)\))?\s+Throughput \((\w)(\w)ps\)\s+BusBW")
_ROW: Final = re.compile(r"\S+(?: ?[KMGT]?B)?\s+(\d{1,15})x(\d{1,3})\s+([\d.]+)(?: ?(us|ms))?\s+([\d.]+)\s+([\d.]+)")


def read(draft: Draft, lines: Iterable[str]) -> None:
    """The tables of all operations."""
    name, unit = "", ""
    rate: float | None = None
    for line in draft.scan(lines):
        if (match := _TITLE.search(line.text)) is not None:
            draft.begin(line.number)
            name, draft.facts["ranks"] = match[1], int(match[2])
        elif (match := _HEADING.search(line.text)) is not None:
            unit, rate = match[1] or "", RATES.get(f"{match[2]}{match[3]}/s")
        elif name and (match := _ROW.fullmatch(line.text)) is not None:
            if not (match[4] or unit):
                draft.note("no-unit", line.number, "a duration without its unit is ignored")
                continue
            elements, each = int(match[1]), int(match[2])
            throughput, busbw = (number(match[at]) for at in (5, 6))
            draft.add(
                line.number,
                op="pair_uni" if name == "pt2pt" else op_named(name),
                tool_op=name,
                count=elements,
                tool_size_bytes=elements * each,
                tool_size_is="block" if name == "all_gather" else "S",
                time_seconds=scaled(number(match[3]), SECONDS[match[4] or unit]),
                busbw=None if rate is None else scaled(busbw, rate),
                statistic="mean",
                others={} if throughput is None else {"Throughput": throughput},
            )
