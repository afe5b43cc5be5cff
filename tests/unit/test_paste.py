"""A log reads the same however it was pasted, or is refused; never with other numbers."""

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import hypothesis.strategies as st
import pytest
from hypothesis import given
from testing.logs import LOGS, read_log

from busbw.errors import LogError
from busbw_analysis.data.readers.log import Aggregate
from busbw_analysis.data.readers.paste import recognised

PASTED: Final = ("nccl-tests-2.19.txt", "osu-pairs.txt", "imb.txt", "perftest-bw.txt", "nvbandwidth.txt")
"""Logs as text whose lines have no prefix."""

Disguise = Callable[[list[str]], str]


def before(prefix: str) -> Disguise:
    return lambda lines: "\n".join(prefix + line for line in lines)


def numbered(form: str) -> Disguise:
    return lambda lines: "\n".join(form.format(at) + line for at, line in enumerate(lines, 1))


def wrapped(lines: list[str]) -> str:
    """As a terminal of 80 columns breaks lines."""
    return "\n".join(line[at : at + 80] for line in lines for at in range(0, max(1, len(line)), 80))


def with_commas(lines: list[str]) -> str:
    return "\n".join(
        " ".join(word.replace(".", ",") if word.replace(".", "").isdigit() else word for word in line.split(" "))
        if line[:1] != "#"
        else line
        for line in lines
    )


DISGUISES: Final[dict[str, Disguise]] = {
    "pdsh": before("10.3.35.83: "),
    "host": before("[host:0]: "),
    "logging": before("2024-11-05 12:00:00,123 INFO "),
    "logger": before("2024-11-05 12:00:00,123 - bench.py - INFO - "),
    "cat -n": numbered("{:6d}\t"),
    "grep -n": numbered("{}:"),
    "list": before("- "),
    "diff": before("+"),
    "frame": lambda lines: "\n".join(f"\u2502 {line:<130} \u2502" for line in lines),
    "pre": lambda lines: "Why?\n<pre>\n" + "\n".join(lines) + "\n</pre>\nIs it normal?\n",
    "nl": lambda lines: "```\n" + numbered("{:6d}  ")(lines) + "\n```\n",
    "quoted": before(">> "),
    "spaces": lambda lines: "\n".join(lines).replace(" ", "\u00a0"),
    "breaks": "<br>".join,
    "returns": "\r".join,
    "windows": "\r\n".join,
    "entities": lambda lines: "<pre>" + "\n".join(lines).replace("&", "&amp;").replace(">", "&gt;") + "</pre>",
    "fence": lambda lines: "Why is it slow? There is no ERROR.\n```\n" + "\n".join(lines) + "\n```\nIs it normal?\n",
    "json": lambda lines: json.dumps({"rc": 0, "results": [{"host": "a", "stdout": "\n".join(lines)}]}),
    "json list": lambda lines: json.dumps({"stdout_lines": lines, "rc": 0}, indent=2),
    "docker": lambda lines: "\n".join(json.dumps({"log": f"{line}\n", "stream": "stdout"}) for line in lines),
    "blank lines": "\n\n".join,
    "indented": before("        "),
    "trailing spaces": "   \n".join,
    "wrapped": wrapped,
    "commas": with_commas,
    "actions": before("bench\tRun it\t2024-05-01T10:00:05.1234567Z "),
    "logcli": before('2024-05-01T10:00:05Z {app="bench", pod="bench-0"} '),
    "GitLab": before("2024-05-01T10:00:05.123456Z 01O "),
    "ts": before("Nov 05 12:00:05 "),
    "journald": before("2024-05-01T10:00:05+0000 node1 bench[12]: "),
    "syslog": before("Dec  1 10:00:05 node1 bench: "),
    "grep -Hn": numbered("logs/run-1.log:{}:"),
    "bullets": before("\u2022 "),
    "colours in letters": lambda lines: "\n".join(f"\\u001b[32m{line}\\u001b[0m" for line in lines),
    "colours of a terminal": lambda lines: "\n".join(f"^[[1;32m{line}^[[0m^[[K" for line in lines),
    "colours lost": before("[32m"),
    "progress": before("at 10 %\rat 70 %\r"),
    "marks of code": lambda lines: "\n".join(f"`{line}`" if line.strip() else "" for line in lines),
    "dashes": lambda lines: "\n".join(lines).replace("--", "\u2014").replace("-", "\u2013"),
    "hyphens": lambda lines: "\n".join(lines).replace("-", "\u2010"),
    "escaped": "\\n".join,
    "bytes": lambda lines: repr("\n".join(["", *lines, ""]).encode()),
    "json lines in a list": lambda lines: json.dumps([{"ts": "2024-05-01", "message": line} for line in lines]),
    "bold": lambda lines: re.sub(r"(?<=\s)(\d+\.\d+)(?=\s)", r"**\1**", "\n".join(lines)),
}


def numbers(rows: tuple[Aggregate, ...]) -> list[tuple[object, ...]]:
    return [
        (row.op, row.tool_size_bytes, row.time_seconds, row.rate, row.algbw, row.busbw, row.in_place) for row in rows
    ]


def agrees(row: tuple[object, ...], plain: tuple[object, ...]) -> bool:
    """Whether every number of ``row`` is that of ``plain``."""
    return all(value in {None, other} for value, other in zip(row, plain, strict=True))


def rows_of(name: str, text: str, folder: Path) -> list[tuple[object, ...]] | str:
    """The numbers of a pasted log, or the code of its refusal."""
    path = folder / name
    path.write_text(text, encoding="utf-8", newline="")
    try:
        return numbers(read_log(path).rows)
    except LogError as error:
        return error.code


@pytest.mark.parametrize("disguise", DISGUISES)
@pytest.mark.parametrize("name", PASTED)
def test_a_disguise_changes_no_number(name: str, disguise: str, tmp_path: Path) -> None:
    lines = (LOGS / name).read_text(encoding="utf-8").splitlines()
    pasted, plain = rows_of(name, DISGUISES[disguise](lines), tmp_path), numbers(read_log(LOGS / name).rows)
    if disguise == "wrapped" and name != "nccl-tests-2.19.txt":  # too few of their lines are long
        assert isinstance(pasted, str) or all(any(agrees(row, other) for other in plain) for row in pasted)
    else:
        assert pasted == plain


TABLE: Final = """\
size count type redop root time algbw busbw #wrong time algbw busbw #wrong
1073741824 268435456 float sum -1 6785.5 158.24 296.70 0 6805.9 157.77 295.81 0
2147483648 536870912 float sum -1 12646.0 169.81 318.40 0 12684.0 169.31 317.45 0
4294967296 1073741824 float sum -1 24352.0 176.37 330.70 0 24425.0 175.85 329.71 0
"""
"""Of nccl-tests, of 16 ranks."""
Cells = list[list[str]]
CELLS: Final[Cells] = [line.split() for line in TABLE.splitlines()]


def in_semicolons(rows: Cells) -> str:
    return "\n".join(";".join(row).replace(".", ",") for row in rows)


def in_jira(rows: Cells) -> str:
    head, *others = rows
    return "\n".join([f"||{'||'.join(head)}||", *(f"|{'|'.join(row)}|" for row in others)])


def in_html(rows: Cells) -> str:
    return "".join(f"<tr><td>{'</td><td>'.join(row)}</td></tr>" for row in rows)


def in_a_log(rows: Cells) -> str:
    return "\n".join(f"2024-05-01T10:00:0{at}.5Z | {' | '.join(row)} |" for at, row in enumerate(rows))


def of_a_host(rows: Cells) -> str:
    return "\n".join(f"worker-0:  {'  '.join(row)}" for row in rows[1:])


def in_thousands(rows: Cells) -> str:
    grouped = ([f"{int(cell):,}" if len(cell) > 7 and cell.isdigit() else cell for cell in row] for row in rows)
    return "\n".join(map("  ".join, grouped))


def in_a_mail(rows: Cells) -> str:
    """Quoted, and broken before."""
    return "\n".join(f"> {line[at : at + 74]}" for line in map("  ".join, rows) for at in range(0, len(line), 74))


def in_latex(rows: Cells) -> str:
    body = [r" & ".join(cell.replace("#", r"\#") for cell in row) + r" \\" for row in rows]
    body[1] = body[1].replace("296.70", r"\textbf{296.70}") + r" \hline"
    return "\n".join([r"\begin{tabular}{lrrr}", r"\toprule", body[0], r"\midrule", *body[1:], r"\end{tabular}"])


WRITTEN: Final[dict[str, Callable[[Cells], str]]] = {
    "commas in semicolons": in_semicolons,
    "Jira": in_jira,
    "LaTeX": in_latex,
    "HTML": lambda rows: f"<table>\n{in_html(rows)}\n</table>".replace("</tr>", "</tr>\n"),
    "HTML in one line": in_html,
    "Markdown in a log": in_a_log,
    "rows of a host": of_a_host,
    "thousands": in_thousands,
    "a broken mail": in_a_mail,
}


@pytest.mark.parametrize("form", WRITTEN)
def test_a_table_has_the_same_numbers_in_every_form(form: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(WRITTEN[form](CELLS), encoding="utf-8")
    rows = read_log(tmp_path / "log").rows
    assert [(row.tool_size_bytes, row.busbw) for row in rows if not row.in_place] == [
        (2**30, 296.7e9),
        (2**31, 318.4e9),
        (2**32, 330.7e9),
    ]
    assert [row.time_seconds for row in rows] == pytest.approx(
        [float(cells[at]) / 1e6 for cells in CELLS[1:] for at in (5, 9)]
    )


def test_a_box_of_nccom_has_the_same_rates_as_its_table(tmp_path: Path) -> None:
    """Its GB/s are GiB/s, and the command above names operation and ranks."""
    row = ["33554432", "33554432", "uint8", "768", "40.69", "40.69"]
    head = ["size(B)", "count(elems)", "type", "time(us)", "algbw(GB/s)", "busbw(GB/s)"]
    bars = "\n".join("\u2502 " + " \u2502 ".join(cells) + " \u2502" for cells in (head, row))
    rows = rows_of("log", f"$ nccom-test -r 2 allr\n\u250c\u2500\u2500\u2510\n{bars}\n", tmp_path)
    assert [(row[0], row[1], row[5]) for row in rows] == [("all_reduce", 1 << 25, pytest.approx(40.69 * 2**30))]


def test_rows_of_two_hosts_are_no_log_of_one(tmp_path: Path) -> None:
    text = "\n".join(f"worker-{host}:  {'  '.join(row)}" for row in CELLS[1:] for host in (0, 1))
    assert isinstance(rows_of("log", text, tmp_path), str)


def test_whole_numbers_between_commas_are_cells(tmp_path: Path) -> None:
    text = "size,time_us,count\n512,100,128\n256,100,640\n"
    rows = rows_of("log", text, tmp_path)
    assert [row[1] for row in rows] == [512, 256]


PREFIXED: Final = (
    "cuda-p2p.txt",
    "nixlbench.txt",
    "plain.csv",
    "table-aligned.txt",
    "table-semicolon.csv",
    "ucx-perftest.txt",
)
"""Logs whose lines have no common shape, and words that look like a launcher's prefix."""


@pytest.mark.parametrize("disguise", ["pdsh", "host", "logger", "list", "diff", "quoted"])
@pytest.mark.parametrize("name", PREFIXED)
def test_the_same_characters_before_every_line_are_no_part_of_it(name: str, disguise: str, tmp_path: Path) -> None:
    lines = (LOGS / name).read_text(encoding="utf-8").splitlines()
    assert rows_of(name, DISGUISES[disguise](lines), tmp_path) == plain_rows(name)


def test_seconds_since_1970_before_every_line_are_no_part_of_it(tmp_path: Path) -> None:
    lines = (LOGS / "osu-pairs.txt").read_text(encoding="utf-8").splitlines()
    pasted = "\n".join(f"{1714557605 + at}.5 {line}" for at, line in enumerate(lines))
    assert rows_of("osu-pairs.txt", pasted, tmp_path) == plain_rows("osu-pairs.txt")


MISREAD: Final = {"1": "l", "0": "O", ".": " .", ". ": ". "}
"""Signs → what a reader of pictures may see."""


@pytest.mark.parametrize("sign", MISREAD)
@pytest.mark.parametrize("name", [*PASTED, "nccl-tests-old-prefixed.txt", "nccl-tests-truncated.txt"])
def test_a_picture_that_was_misread_gives_no_other_number(name: str, sign: str, tmp_path: Path) -> None:
    text = (LOGS / name).read_text(encoding="utf-8")
    pasted = re.sub(rf"(?<=\d){re.escape(sign.strip())}(?=\d)", MISREAD[sign], text)
    found = rows_of(name, pasted, tmp_path)
    assert isinstance(found, str) or all(any(agrees(row, other) for other in plain_rows(name)) for row in found)


LINE_BY_LINE: Final = frozenset(
    {
        "pdsh",
        "host",
        "list",
        "quoted",
        "spaces",
        "windows",
        "fence",
        "blank lines",
        "indented",
        "commas",
    }
)
"""Disguises that leave a log its lines, so that a terminal can break these."""
EVERY: Final = tuple(sorted(path.name for path in LOGS.iterdir() if path.suffix in {".txt", ".csv", ".md", ".jsonl"}))


@cache
def plain_rows(name: str) -> list[tuple[object, ...]]:
    return numbers(read_log(LOGS / name).rows)


@given(
    name=st.sampled_from(EVERY),
    disguises=st.lists(st.sampled_from(sorted(set(DISGUISES) - {"wrapped"})), max_size=2),
    is_wrapped=st.booleans(),
)
def test_disguises_of_disguises_give_no_other_number(name: str, disguises: list[str], is_wrapped: bool) -> None:  # noqa: FBT001
    lines = (LOGS / name).read_text(encoding="utf-8").splitlines()
    if is_wrapped and set(disguises) <= LINE_BY_LINE:
        disguises = [*disguises, "wrapped"]
    for disguise in sorted(disguises, key="returns".__eq__):  # a file has these line ends, or none
        lines = DISGUISES[disguise](lines).split("\n")
    with TemporaryDirectory() as folder:
        pasted = rows_of(name, "\n".join(lines), Path(folder))
    assert isinstance(pasted, str) or all(any(agrees(row, other) for other in plain_rows(name)) for row in pasted)


@pytest.mark.parametrize("before", ["", "> ", "10.0.0.1: ", "2024-11-05 12:00:00,123 INFO "])
def test_cells_of_a_table_are_no_prefix(before: str, tmp_path: Path) -> None:
    head = "| size | time (us) | algbw (GB/s) | busbw (GB/s) |\n|---|---|---|---|\n"
    body = "".join(f"| {1 << power} | {(1 << power) / 1e3:.3f} | 1.00 | 1.75 |\n" for power in range(20, 28))
    path = tmp_path / "log"
    path.write_text("".join(before + line for line in (head + body).splitlines(keepends=True)), encoding="utf-8")
    assert [row.size_bytes for row in read_log(path).rows] == [1 << power for power in range(20, 28)]


@pytest.mark.parametrize(
    ("added", "failed"),
    [
        ("nccl-1 exited with code 0\n", False),
        ("I do not see any ERROR messages. Is this number normal?\n", False),
        ("nccl-1 exited with code 1\n", True),
        ("[node1] ERROR: the link is down\n", True),
    ],
)
def test_only_what_a_program_prints_is_its_failure(added: str, failed: bool, tmp_path: Path) -> None:  # noqa: FBT001
    path = tmp_path / "log"
    path.write_text((LOGS / "nccl-tests-2.19.txt").read_text(encoding="utf-8") + added, encoding="utf-8")
    assert (read_log(path).last_error is not None) == failed


@pytest.mark.parametrize(("rows", "complete"), [(3, None), (2, False)])
def test_a_table_without_its_footer_is_unfinished_if_announced_sizes_are_missing(
    rows: int,
    complete: bool | None,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    """It announces 1 to 256 MiB by a factor of 16: three sizes."""
    text = (LOGS / "nccl-tests-2.19.txt").read_text(encoding="utf-8").partition("# Out of bounds")[0]
    kept = text if rows == 3 else text.rpartition(" 268435456 ")[0]
    path = tmp_path / "log"
    path.write_text(kept, encoding="utf-8")
    (table,) = read_log(path).tables
    assert (len(table.rows), table.complete) == (2 * rows, complete)


@pytest.mark.parametrize("name", ["superbench.jsonl", "inspector.jsonl", "inspector-flat.jsonl", "rccl-tests.json"])
def test_what_every_object_begins_with_is_no_prefix(name: str, tmp_path: Path) -> None:
    lines = [line for line in (LOGS / name).read_text(encoding="utf-8").splitlines() if line.rstrip(",")[-1:] == "}"]
    assert rows_of(name, "\n".join(lines * 20), tmp_path) == plain_rows(name) * 20


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("op: all_reduce, size: ", " B, time: 10 us, busbw: 0.5 GB/s\n"),
        ("[all_reduce] size=", " time=0.01 ms\n"),
        ("all_reduce size: ", " time: 10 us\n"),
    ],
)
def test_the_operation_before_stated_numbers_is_no_prefix(before: str, after: str, tmp_path: Path) -> None:
    pasted = rows_of("log", "".join(f"{before}{size}{after}" for size in (1024, 2048, 4096)), tmp_path)
    assert [row[:3] for row in pasted] == [("all_reduce", size, 10e-6) for size in (1024, 2048, 4096)]


def test_what_lspci_prints_before_the_state_of_a_link_is_no_prefix(tmp_path: Path) -> None:
    assert rows_of("log", "\t\tLnkSta: Speed 8GT/s (downgraded), Width x16\n" * 3, tmp_path) == "messages"


def test_a_prefix_is_sought_where_a_line_begins() -> None:
    for lines in ([f"{'a' * 200}: {word}\n" for word in "xyz"], ["x\n", "a:" * 500_000, "y\n"]):
        assert recognised(lines, lambda _: False).prefix is None


def test_digits_of_other_scripts_are_no_digits_of_a_tool(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text((LOGS / "deepspeed.txt").read_text().replace("262144x4 ", "262144x\u0663 "))
    assert 262144 * 3 not in {row.tool_size_bytes for row in read_log(log).rows}
