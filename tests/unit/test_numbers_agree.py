"""Every output prints the same numbers: 200 of each, drawn at random, are computed again from samples.jsonl alone."""

import json
import random
import re
from collections.abc import Mapping, Sequence
from functools import cache
from html.parser import HTMLParser
from itertools import takewhile
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from click.testing import CliRunner

from busbw.cli.main import main
from busbw.ops import OPS
from busbw.units import format_rate, format_time, parse_size

SAMPLE = next((Path(__file__).parents[2] / "results" / "samples" / "vm").iterdir())
DRAWN = 200
THREE_DIGITS = 0.005
_UNITS = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9, "B/s": 1, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9}
_COLUMNS = {"Time": "time_ns", "low": "low_ns", "high": "high_ns", "algbw": "algbw", "busbw": "busbw"}

Numbers = Mapping[str, float | None]


def label_of(one: Mapping[str, Any], ranks: int) -> str:
    """A case as outputs name it."""
    words = [one["op"], one["dtype"], one["redop"], "in place" if one["in_place"] else None]
    words += [None if one["mode"] == "isolated" else one["mode"], f"{ranks} ranks"]
    return " · ".join(word for word in words if word)


def launches_in(folder: Path) -> dict[tuple[str, int], tuple[dict[int, list[float]], float | None]]:
    """Label and size of every case of one group: its samples by launch (ns per call), and its bus factor."""
    found: dict[tuple[str, int], tuple[dict[int, list[float]], float | None]] = {}
    for line in (folder / "samples.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["kind"] == "measurement" and len(row["groups"]) == 1:
            (group,) = row["groups"]
            key = (label_of(row["case"], len(group["ranks"])), row["case"]["size_bytes"])
            by_launch, _ = found.setdefault(key, ({}, group["bus_factor"]))
            by_launch.setdefault(row["launch"], []).extend(time / row["calls"] for time in group["slowest_ns"])
    return found


@cache
def truth() -> dict[tuple[str, int], Numbers]:
    """What every output has to say of the stored sample, in ns and B/s."""
    numbers: dict[tuple[str, int], Numbers] = {}
    for (label, size), (by_launch, factor) in launches_in(SAMPLE).items():
        medians = [median(samples) for samples in by_launch.values()]
        algbw = size / median(medians) * 1e9 if size and "overlap" not in label else None
        numbers[label, size] = {
            "time_ns": median(medians),
            "low_ns": min(medians),
            "high_ns": max(medians),
            "algbw": algbw,
            "busbw": algbw * factor if algbw is not None and factor is not None else None,
        }
    return numbers


def number(text: str) -> float | None:
    """A number with its unit as people read it, in ns or B/s; None for a dash."""
    value, _, unit = text.strip().partition(" ")
    return float(value) * _UNITS[unit] if unit else None


Said = list[tuple[float | None, float | None]]
"""What an output says, and what it should."""


def hold(said: Said) -> None:
    known = [(given, wanted) for given, wanted in said if given is not None or wanted is not None]
    assert len(known) >= DRAWN
    for given, wanted in random.Random(1).sample(known, DRAWN):
        assert given == pytest.approx(wanted, rel=THREE_DIGITS)


def said_in(tables: Sequence[tuple[str, list[str], list[list[str]]]]) -> Said:
    """The numbers of tables (caption, headings, rows) that are named like a case."""
    known = {label for label, _ in truth()}
    found: Said = []
    for caption, headings, rows in tables:
        if caption in known and headings[0] == "Size S":
            for cells in rows:
                size = 0 if cells[0] == "–" else parse_size(cells[0].replace(" ", ""))
                for heading, cell in zip(headings, cells, strict=True):
                    if heading in _COLUMNS:
                        found.append((number(cell), truth()[caption, size][_COLUMNS[heading]]))
    return found


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    result = CliRunner().invoke(main, ["report", str(SAMPLE), "--output", str(folder)])
    assert result.exit_code == 0, result.output
    return folder


def test_the_markdown(written: Path) -> None:
    lines = (written / "report.md").read_text(encoding="utf-8").replace("\\", "").splitlines()
    tables = []
    for place, line in enumerate(lines):
        if line.startswith("| Size S"):
            rows = takewhile(lambda row: row.startswith("| "), lines[place + 2 :])
            cells = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in (line, *rows)]
            tables.append((lines[place - 2].strip("*"), cells[0], cells[1:]))
    hold(said_in(tables))


class _Tables(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, list[str], list[list[str]]]] = []
        self._inside = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002 - as its base
        if tag == "table":
            self.found.append(("", [], []))
        if tag in {"caption", "th", "td", "tr"}:
            self._inside = tag
            if tag == "tr":
                self.found[-1][2].append([])
            elif tag != "caption":
                self.found[-1][2][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = "" if tag in {"caption", "th", "td"} else self._inside
        if tag == "table":
            caption, _, rows = self.found.pop()
            self.found.append((caption, rows[0], rows[1:]))

    def handle_data(self, data: str) -> None:
        if self._inside == "caption":
            self.found[-1] = (self.found[-1][0] + data, *self.found[-1][1:])
        elif self._inside in {"th", "td"}:
            self.found[-1][2][-1][-1] += data


def test_the_page(written: Path) -> None:
    hold(said_in(_Tables((written / "report.html").read_text(encoding="utf-8")).found))


def test_the_table_on_the_terminal() -> None:
    """It has fewer than 200 numbers of three digits: all of them are held, and the ± to a per cent."""
    result = CliRunner().invoke(main, ["show", str(SAMPLE)])
    words: dict[str, str | None] = {}
    held = 0
    for line in result.stdout.splitlines():
        if line.startswith("# ") and line.split()[1] in OPS:
            parts = line[2:].split(" · ")
            mode = next((word for word in ("pipelined", "overlap") if word in parts), "isolated")
            words = {"op": parts[0], "dtype": "float32", "redop": "sum" if "sum" in parts else None, "mode": mode}
            words["in_place"] = "in place" if "in place" in parts else ""
        row = re.match(r" +([\d.]+ \w+)  +([\d.]+ \w+)  +(\d+)%  +(?:([\d.]+ \w+/s)|–)", line)
        if row is None:
            continue
        ranks = 2 if words["op"] == "ping_pong" else 4
        wanted = truth()[label_of(words, ranks), parse_size(row[1].replace(" ", ""))]
        time, low, high = (wanted[name] or 0.0 for name in ("time_ns", "low_ns", "high_ns"))
        assert row[2] == format_time(time)
        assert int(row[3]) == round(100 * max(time - low, high - time) / time)
        assert row[4] == format_rate(wanted["algbw"] if wanted["busbw"] is None else wanted["busbw"])
        held += 3
    assert held >= 150
