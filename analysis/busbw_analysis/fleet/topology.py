"""Host lists as Slurm writes them, and which leaf switch each node is below: ``topology.conf`` or a list."""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby, product
from pathlib import Path
from typing import Final

from busbw.errors import UsageError
from busbw.ops import limits

_BRACKETS: Final = re.compile(r"\[([^\]]*)\]")
_COMMA: Final = re.compile(r",(?![^\[]*\])")
_NUMBERED: Final = re.compile(r"(.*?)(\d+)", re.DOTALL)
_MOST_NODES: Final = 1 << 20

Path_ = tuple[str, ...]
"""Switches from the top to a leaf."""


def expand(text: str) -> tuple[str, ...]:
    """The hosts of a list such as ``n[01-03,7],login``. Raises UsageError."""
    names = tuple(name for part in _COMMA.split(text.replace(" ", "")) if part for name in _expanded(part))
    if not names:
        raise UsageError(f"{text!r} names no host; give a list such as n[01-16],m3")
    return names


def _expanded(part: str) -> Iterator[str]:
    pieces = _BRACKETS.split(part)
    choices = [list(_numbers(piece, part)) if place % 2 else [piece] for place, piece in enumerate(pieces)]
    yield from map("".join, product(*choices))


def _numbers(ranges: str, part: str) -> Iterator[str]:
    for each in ranges.split(","):
        low, _, high = each.partition("-")
        high = high or low
        if not (low.isdecimal() and high.isdecimal() and int(low) <= int(high) < _MOST_NODES):
            raise UsageError(f"host list {part!r}: {each!r} is no range; write n[1-4,7]")
        yield from (str(number).zfill(len(low)) for number in range(int(low), int(high) + 1))


def compressed(names: Iterable[str]) -> str:
    """The hosts as Slurm writes them (``n[01-03],login``), for ``--exclude``."""
    matches = {name: _NUMBERED.fullmatch(name) for name in dict.fromkeys(names)}
    parts = [(match[1], match[2]) for match in matches.values() if match is not None]
    padded = {(stem, len(digits)) for stem, digits in parts if len(digits) > 1 and digits[0] == "0"}
    numbered: dict[tuple[str, int], list[int]] = {}
    for stem, digits in parts:
        width = len(digits) if (stem, len(digits)) in padded else 0
        numbered.setdefault((stem, width), []).append(int(digits))
    plain = sorted(name for name, match in matches.items() if match is None)
    return ",".join([*(_bracketed(*key, numbers) for key, numbers in sorted(numbered.items())), *plain])


def _bracketed(stem: str, width: int, numbers: list[int]) -> str:
    runs = []
    for _, members in groupby(enumerate(sorted(numbers)), lambda entry: entry[1] - entry[0]):
        run = [f"{number:0{width}}" for _, number in members]
        runs.append(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return f"{stem}{runs[0]}" if len(numbers) == 1 else f"{stem}[{','.join(runs)}]"


def read_topology(path: Path) -> dict[str, Path_]:
    """Node → switches above it, of Slurm's ``topology.conf`` (topology/tree), or of lines with a node and its switch.

    Raises UsageError for a file that is neither, or that cannot be read.
    """
    text = limits.read_text(path, limits.MOST_TRAFFIC_BYTES, "topology ")
    lines = [line.split("#")[0].split() for line in text.splitlines()]
    words = [line for line in lines if line]
    if any("=" in word for line in words for word in line):
        return _of_slurm([_keys(line, path) for line in words])
    if not words or any(len(line) != 2 for line in words):
        raise UsageError(f"--topology {path}: expected lines of topology.conf, or of a node and its switch")
    return {node: (switch,) for nodes, switch in words for node in expand(nodes)}


def _keys(line: list[str], path: Path) -> dict[str, str]:
    keys = {key.lower(): value for key, equals, value in (word.partition("=") for word in line) if equals}
    if "switchname" not in keys:
        raise UsageError(f"--topology {path}: {' '.join(line)!r:.60} has no SwitchName")
    return keys


def _of_slurm(rows: list[dict[str, str]]) -> dict[str, Path_]:
    above = {child: row["switchname"] for row in rows if "switches" in row for child in expand(row["switches"])}
    paths: dict[str, Path_] = {}
    for row in rows:
        path = [row["switchname"]]
        while path[0] in above and above[path[0]] not in path:
            path.insert(0, above[path[0]])
        if "nodes" in row:
            paths.update(dict.fromkeys(expand(row["nodes"]), tuple(path)))
    return paths
