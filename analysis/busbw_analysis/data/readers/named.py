"""Reader of rows with named values: CSV with a header, and the output of rccl-tests ``-Z json`` and ``-Z csv``.

docs/logs.md lists the names; the heading of a time or rate contains its unit. rccl-tests writes no units; its times
are microseconds and its rates GB/s. Source: ``Reporter`` in ``src/common.cu`` of ROCm/rccl-tests.
"""

import csv
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, get_args

from busbw.escape import from_cell
from busbw.ops.settings import Pairs
from busbw.runs.records import Mode, Sync
from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.json_text import real, text
from busbw_analysis.data.readers.lines import RATES, SECONDS, scaled, verdict, whole

_OTHER_NAMES: Final = {
    "collective": "op",
    "name": "op",
    "type": "dtype",
    "gpus": "ranks",
    "bytes": "size",
    "size_bytes": "size",
    "inplace": "in_place",
    "#wrong": "wrong",
}
CSV: Final = re.compile(rb"(?im)^(?:[#\w /()-]+,)*(?:size|size_bytes|bytes)(?:,[#\w /()-]+)+\r?$")
JSON: Final = re.compile(rb'"busBw"\s*:')
_LONGEST_HEADING: Final = 100
_HEADING: Final = re.compile(r"(.+?)(?:\s*[(\[](.+)[)\]]|_(ns|us|ms|s|[KMGT]?i?[Bb]ps))?")
_BANDWIDTHS: Final = frozenset({"rate", "algbw", "busbw"})
_NAMES: Final = frozenset(
    {
        *("time", *_BANDWIDTHS, "op", "size", "dtype", "redop", "ranks", "root", "in_place", "count", "statistic"),
        *("iterations", "wrong", "check", "group", "source", "target"),
    }
)
_SIZES: Final = frozenset({"size", "size_bytes", "bytes"})
_CHECK: Final = re.compile(r"verified|wrong|not checked")
_OF_BUSBW: Final = frozenset({"backend", "device", "mode", "settings", "hosts", "statistic"})
_PAIR: Final = re.compile(r"(\d+)(?:,(\d+))?")
"""A group of one or two ranks."""
_TRUE: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def read_csv(draft: Draft, lines: Iterable[str]) -> None:
    """The rows below every line that has a size column."""
    header: list[str] = []
    draft.tool = "csv"
    for number, line in enumerate(lines, 1):
        try:
            (cells,) = csv.reader([line.strip().lstrip("\ufeff")])
        except (csv.Error, ValueError):
            continue
        if _SIZES.intersection(cell.strip().lower() for cell in cells) and len(cells) > 1:
            draft.begin(number)
            header = [cell.strip() for cell in cells]
            draft.tool = "rccl-tests" if "numCycle" in header else "csv"
        elif header and len(cells) == len(header):
            row = dict(zip(header, cells, strict=True))
            _add(draft, number, {name: from_cell(cell) for name, cell in row.items()} if _is_ours(row) else row)
        elif header and any(cells) and not cells[0].startswith("#"):
            draft.note("truncated-row", number, "a row whose number of cells differs from the header is ignored")


def read_json(draft: Draft, lines: Iterable[str]) -> None:
    """The objects of rccl-tests, one per line, possibly in a list."""
    for number, row in draft.objects(lines):
        _add(draft, number, row)


@lru_cache(maxsize=1024)
def _meaning(heading: str) -> tuple[str | None, str | None]:
    """The name of a column (None: unknown) and the unit in its heading."""
    heading = heading.strip()[:_LONGEST_HEADING]
    plain = heading.lower()
    match = None if plain in _OTHER_NAMES or plain in _NAMES else _HEADING.fullmatch(heading)
    name, unit = (plain, None) if match is None else (match[1].strip().lower(), match[2] or match[3])
    name = _OTHER_NAMES.get(name, name)
    return name if name in _NAMES else None, None if unit is None else unit.replace("ps", "/s")


def _add(draft: Draft, line: int, row: Mapping[str, Any]) -> None:
    values: dict[str, Any] = {}
    others: dict[str, float | str] = {}
    rccl = draft.tool == "rccl-tests"
    for heading, value in row.items():
        name, unit = _meaning(str(heading))
        if name == "time" or name in _BANDWIDTHS:
            units, usual = (SECONDS, "us") if name == "time" else (RATES, "GB/s")
            unit = unit or (usual if rccl else None)
            amount = real(value)
            if unit not in units:
                draft.note("no-unit", line, f"the heading {str(heading)[:80]!r} has no known unit")
                name = None
            else:
                values[name or ""] = scaled(amount, units[unit or ""])
        elif name is not None:
            values[name] = text(value)
        if name is None and (kept := real(value) if real(value) is not None else text(value)) is not None:
            others[str(heading)] = kept
    counts: dict[str, Any] = {"ranks": whole(values["ranks"])} if "ranks" in values else {}
    counts |= verdict(values["wrong"]) if "wrong" in values else {}
    if (check := _CHECK.match(values.get("check") or "")) is not None:
        counts.setdefault("check", check[0])
    group = _PAIR.fullmatch(values.get("group") or "")
    source, target = (None, None) if group is None else group.groups()
    fields = {"statistic": "mean"} if rccl else {"statistic": values.get("statistic"), **_of_busbw(row)}
    rate = values.get("rate")
    if values.get("time") is None:
        rate = values.get("algbw") if rate is None else rate
        fields |= {} if rate is None else {"messages": 1}  # one S in a call, so that its time follows
    draft.collective(
        line,
        values.get("op"),
        values,
        time_seconds=values.get("time"),
        algbw=values.get("algbw"),
        busbw=values.get("busbw"),
        in_place=_TRUE.get(str(values.get("in_place")).lower()),
        rate=rate,
        others=others,
        source=values.get("source", source),
        target=values.get("target", target),
        **(counts | fields),
    )


def _is_ours(row: Mapping[str, Any]) -> bool:
    """Whether ``busbw export --to csv`` wrote the row."""
    return _OF_BUSBW.issubset(row) and row["mode"] in get_args(Mode)


def _of_busbw(row: Mapping[str, Any]) -> dict[str, Any]:
    """What only a row that ``busbw export --to csv`` wrote says: others mean other things by these headings."""
    if not _is_ours(row):
        return {}
    settings = [] if not row["settings"] else row["settings"].split(", ")
    others = ", ".join(setting for setting in settings if not setting.startswith(("sync ", "pairs ")))
    return {
        "mode": row["mode"],
        "sync": next((sync for sync in get_args(Sync) if f"sync {sync}" in settings), "barrier"),
        "pairs": next((pairs for pairs in get_args(Pairs) if f"pairs {pairs}" in settings), None),
        "backend": row["backend"] or None,
        "device": row["device"] or None,
        "settings": others or None,
        "one_host": real(row["hosts"]) == 1,
        "statistic": row["statistic"] or "median",
    }
