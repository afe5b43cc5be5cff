"""What people do to a log when they paste it: it loses something or looks otherwise, but no number of it is another."""

import html
import json
import re
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final

PREFIXES: Final = (
    *("[1,0]<stdout>:", "0: ", "[0] ", "\x1b[31m", "2026-01-01T00:00:00Z ", "node1: ", "> ", "[pod/a/b] "),
    *('2026-01-01T00:00:00Z {app="a"} ', "Nov 05 12:00:05 ", "Dec  1 10:00:05 node1 bench: ", "[32m", "^[[1;32m"),
    *("2026-01-01T00:00:00+0000 node1 bench[12]: ", "\u2022 ", "at 10 %\rat 70 %\r", "a/run.log:"),
)
_WRITTEN: Final = ((",", ""), (",", "."), (",", " "), (",", "\u202f"), (".", ","), (".", "'"), (".", " "))
"""Signs before decimals and between thousands."""
_REAL: Final = re.compile(r"(?<![\w.,:/-])(\d+)(?:\.(\d+))?(?![\w.,:/-])")
_LAST: Final = re.compile(r"(?:(?<!\S)\d{1,3}(?: \d{3})*(?: \d{0,3})?|\S+)$")
"""The last word, which may be cut, or a number with spaces between thousands."""
_PLAIN_REAL: Final = re.compile(r"(?<![\w.])\d+\.\d+(?![\w.])")
_SPELLINGS: Final = {
    "GB/s": ("GBps", "GB/sec", "GByte/s", "GBytes/s"),
    "MB/s": ("MBps", "MB/sec", "MByte/s"),
    "Gb/s": ("Gbps", "Gbit/s", "Gbits/s"),
    "Gbits/sec": ("Gbps", "Gbit/s", "Gb/s"),
    "us": ("\u00b5s", "\u03bcs", "usec", "microseconds"),
    "usec": ("\u00b5s", "us"),
    "ms": ("msec", "milliseconds"),
    "B": ("bytes", "Bytes"),
}
_SPACES: Final = ((" {2,}", "\t"), (" +", "\t"), ("[ \t]+", " "), (" ", "\u00a0"), ("^ +", ""), ("^", "    "))
"""What is written instead of spaces."""


def _each(change: Callable[[str], str]) -> Callable[[Random, list[str]], None]:
    def changed(_: Random, lines: list[str]) -> None:
        lines[:] = [change(line) for line in lines]

    return changed


def _head(random: Random, lines: list[str]) -> None:
    del lines[random.randint(1, len(lines)) :]


def _tail(random: Random, lines: list[str]) -> None:
    del lines[: random.randrange(len(lines))]


def _cut_json(random: Random, lines: list[str]) -> None:
    text = "\n".join(lines)
    ends = [match.end() for match in re.finditer(r"[\[\]{},]\s", text)]
    lines[:] = (text[: random.choice(ends)] if ends else text).split("\n")


def _cut_right(random: Random, lines: list[str]) -> None:
    width = random.randint(40, 140)
    lines[:] = [line if len(line) <= width else _LAST.sub("", line[: width + 1]).rstrip() for line in lines]


def _cut_left(random: Random, lines: list[str]) -> None:
    width = random.randint(1, 30)
    lines[:] = [re.sub(r"^\S+", "", line[width - 1 :]).lstrip() for line in lines]


def _without_column(random: Random, lines: list[str]) -> None:
    """Of all lines with cells, as of a spreadsheet; else of the lines with as many words as most, which are rows."""
    text = "\n".join(lines)
    separator = next((sign for sign in "|;,\t" if text.count(sign) > 2 * len(lines)), None)
    parts = [line.split(separator) for line in lines]
    usual = Counter(len(words) for words in parts if len(words) > 2).most_common(1)
    left_out = random.randrange(8)
    for at, cells in enumerate(parts):
        is_row = len(cells) == usual[0][0] if usual else False
        is_row &= sum(cell[:1].isdecimal() for cell in cells) > 1
        if len(cells) > max(2, left_out) and (separator is not None or is_row):
            del cells[left_out]
            lines[at] = (separator or " ").join(cells)


def wrap(random: Random, lines: list[str]) -> None:
    """As a terminal does: anywhere."""
    width = random.randint(30, 120)
    lines[:] = [line[at : at + width] for line in lines for at in range(0, max(1, len(line)), width)]


def fill(random: Random, lines: list[str]) -> None:
    """As a mail does: between words."""
    width = random.randint(30, 100)
    pattern = re.compile(rf"(?:\S{{{width},}}|.{{1,{width}}})(?:\s+|$)")
    lines[:] = [part.rstrip() for line in lines for part in pattern.findall(line) or [""]]


def write(random: Random, lines: list[str]) -> None:
    """Numbers as in other countries, all or none."""
    decimal, between = random.choice(_WRITTEN)

    def written(number: re.Match[str]) -> str:
        whole = f"{int(number[1]):,}".replace(",", between) if len(number[1]) > 3 else number[1]
        return whole if number[2] is None else f"{whole}{decimal}{number[2]}"

    changed = [_REAL.sub(written, line) for line in lines]
    if decimal == "." or not any(map(_PLAIN_REAL.search, changed)):
        lines[:] = changed


def _spell(random: Random, lines: list[str]) -> None:
    chosen = {unit: random.choice(spellings) for unit, spellings in _SPELLINGS.items()}
    pattern = re.compile(rf"(?<![\w/])(?:{'|'.join(chosen)})(?![\w/])")
    lines[:] = [pattern.sub(lambda unit: chosen[unit[0]], line) for line in lines]


def _cells(random: Random, lines: list[str]) -> None:
    """Every line as a row of Markdown, or of a CSV."""
    sign = random.choice((" | ", ";", ","))
    if sign == "," and any(re.search(r"\d,\d", line) for line in lines):
        sign = ";"
    edge = sign.strip() if "|" in sign else ""
    parts = [re.split(r"\s{2,}|\t", line.strip()) for line in lines]
    lines[:] = [
        edge + sign.join(cells) + edge if len(cells) > 2 else line for line, cells in zip(lines, parts, strict=True)
    ]


def _prefix(random: Random, lines: list[str]) -> None:
    prefix = random.choice(PREFIXES)
    lines[:] = [prefix + line for line in lines]


def _number(random: Random, lines: list[str]) -> None:
    form = random.choice(("{:>6}\t", "{}: ", "{:>4}  ", "{}:", "{:>3} | "))
    lines[:] = [form.format(number) + line for number, line in enumerate(lines, 1)]


def _respace(random: Random, lines: list[str]) -> None:
    old, new = random.choice(_SPACES)
    lines[:] = [re.sub(old, new, line) for line in lines]


def _quote(random: Random, lines: list[str]) -> None:
    mark = random.choice(("> ", "> ", ">> "))
    lines[:] = [mark + line for line in lines]


def _list(_: Random, lines: list[str]) -> None:
    lines[:] = ['  "stdout_lines": [', *(f"    {json.dumps(line)}," for line in lines), "  ]"]


def _misread(random: Random, lines: list[str]) -> None:
    """As a picture of a log is read: some digits are taken for letters."""
    sign, seen = random.choice((("1", "l"), ("0", "O"), ("5", "S"), (".", " .")))
    share = random.choice((0.05, 0.5, 1.0))
    pattern = re.compile(rf"(?<=\d){re.escape(sign)}(?=\d)")
    lines[:] = [pattern.sub(lambda found: seen if random.random() < share else found[0], line) for line in lines]


def _fence(random: Random, lines: list[str]) -> None:
    start, end = random.choice((("```", "```"), ("Here is my log:\n```text", "```\nAny idea?"), ("<pre>", "</pre>")))
    lines[:] = [*start.split("\n"), *lines, *end.split("\n")]


PASTES: Final[tuple[Callable[[Random, list[str]], None], ...]] = (
    *(_head, _tail, _cut_json, _cut_right, _cut_left, _without_column, wrap, fill, write, write, _spell, _cells),
    *(_prefix, _number, _respace, _respace, _quote, _list, _fence),
    _each(html.escape),
    _each(lambda line: f"`{line}`"),
    _each(lambda line: line.replace("--", "\u2013").replace(" -", " \u2013")),
    _misread,
    _each(lambda line: f"{line}<br>"),
    _each(lambda line: f"{line}\n"),
    _each(lambda line: line.replace('"', "\u201c").replace("--", "\u2014")),
    _each(lambda line: line.replace("-", "\u2212")),
)
