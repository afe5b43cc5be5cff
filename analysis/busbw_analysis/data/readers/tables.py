"""Reader of tables that people write or export: Markdown, CSV with any separator, aligned columns, lines of JSON.

docs/logs.md lists the headings. rccl-tests writes no units; its times are microseconds and its rates GB/s. Source:
``Reporter`` in ``src/common.cu`` of ROCm/rccl-tests.
"""

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, get_args

from busbw.errors import LogError
from busbw.escape import from_cell
from busbw.ops import OPS, bus_factor
from busbw.ops.settings import Pairs
from busbw.runs.records import Mode, Sync
from busbw_analysis.data.grouped import by_key
from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.headings import RATES, RESULTS, Column, amount, column, factors, size_of, variant
from busbw_analysis.data.readers.json_text import real, text
from busbw_analysis.data.readers.launched import LAUNCHER, launched_any
from busbw_analysis.data.readers.lines import NCCL_BLOCKS, are_headings, op_named, verdict, whole
from busbw_analysis.data.readers.paste import LONGEST_CAPTION
from busbw_analysis.data.readers.table_units import Units

SIGN: Final = re.compile(
    rb"(?im)^(?=[ \t>#|\x80-\xff]*[a-z*`(\"])"
    rb"(?![^|\n]{0,99}(?:MB/sec +usec/xfer|bytes +secs|Size +Size +(?:Size +)?Time|Socket .{1,60}Elapsed"
    rb"|iteration +\d+/|[^\n]{0,300}Pure Comm))"
    rb"(?=[^\n]{0,999}(?:size|bytes|payload|message|msg|\b[KMG]i?B\b))"
    rb"(?=[^\n]{0,999}(?:time|lat|duration|elapsed|bw|bandwidth|rate|throughput|[KMG]i?b(?:it|yte)?s?(?:/|p)s"
    rb"|(?:\b[mu]|\xc2\xb5|\xce\xbc)s\b))"
    rb"(?=[^\n]{0,999}(?:[|;,\t]| {2}|bw|\xe2\x94))[ \t>#|\x80-\xff]*[a-z*`(\"][^\n{}=]{3,999}$"
    rb"|(?i:\b(?:size|bytes)(?: ?\(\w{1,6}\))? *[:=] *\d[^\n]{0,199}"
    rb"\b(?:time|latency|duration|algbw|busbw|bandwidth|bw)(?: ?\([\w/]{1,6}\))? *[:=] *\d)"
    rb"|(?im:^(?=[^\n]{0,999}(?:[|;\t]|,(?! )))[^\n]{0,999}(?:\b|_)(?:bus|alg\w{0,6})[_ -]?(?:bw|bandwidth)(?:\b|_)"
    rb"[^\n{}=]{0,999}$)"
    rb"|(?im:\([^()\n]{0,60}\b(?:[mu]s|GB/s)\b[^()\n]{0,60}\)[^\n]{0,60}\n"
    rb"\s{0,9}\|?[ \t]*(?:\w{1,9} )?(?:size|bytes)\b)"
    rb"|(?im:^\|?[ \t]*(?:\w{1,9} )?(?:size|bytes)[ \t]*[|\t][^\n]{1,200}\n(?:[-|: ]*\n)?"
    rb"\|?[ \t]*\d[\d.]{0,20} ?[KMG]i?B[ \t]*[|\t][^\n]{0,99}\d ?(?:[mu]?s|[GM]B/s)\b)"
    rb"|(?im:^[^\w\n]{0,9}(?:all[-_ ]?(?:reduce|gather|to[-_ ]?all)|reduce[-_ ]?scatter|broadcast|send[-_ ]?recv)\b"
    rb"[^\n]{0,40}?[ :(]\d[\d.]{0,20} ?[KMG]i?B\b[^\n/]{0,40}?[ :]\d[\d.]{0,20} ?(?:[mu]|\xc2\xb5|\xce\xbc)?s\b)"
)
CSV: Final = re.compile(rb"(?im)^(?:[#\w /()-]+,)*(?:size|size_bytes|bytes)(?:,[#\w /()-]+)+\r?$")
JSON: Final = re.compile(rb'"busBw"\s*:')
_STATED: Final = re.compile(
    r"([A-Za-z][\w -]{0,30}?(?: ?\([\w/]{1,6}\))?) ?[:=] ?"
    r"(\d(?:[\d.,eE+-]*[\d.])?(?: ?[A-Za-z\u03bc\u00b5]+(?:/s)?)?)(?![\w:=])"
)
"""A number behind its name, as programs print them in a line: ``busbw: 16.4 GB/s``."""
_AMOUNT: Final = re.compile(r"(?<![\w.])\d[\d.]* ?([A-Za-z\u00b5\u03bc]{1,5}(?:/s)?)(?![\w/])")
"""A number before its unit: ``AllReduce 16 MB: 0.150 ms, 111.85 GB/s``."""
_OF_UNITS: Final = (["size", "time"], ["bandwidth", "size", "time"])
"""What the units of such a line say, each once."""
_LONGEST_LINE: Final = 1 << 13
_MOST_COLUMNS: Final = 200
_BOX: Final = str.maketrans(
    dict.fromkeys(map(chr, range(0x2500, 0x2570)), "-") | dict.fromkeys("\u2502\u2503\u2551", "|")
)
_RULE: Final = re.compile(r"[\s|+:=-]*[=-][\s|+:=-]*")
"""A line that separates a heading from its rows."""
_UNIT: Final = re.compile(r"(?:[(\[][^)\]]*[)\]])?")
_WORDS: Final = re.compile(r"[^\s(\[]+(?: ?[(\[][^)\]]*[)\]])?|\S+")
_NUMBERS: Final = re.compile(r"\S+ (?=[KMGTkmgt]?i?[Bb](?:ytes|ps|/s)?(?:\s|$)|[num\u03bc\u00b5]?s(?:\s|$))\S+|\S+")
"""Words of a heading with their units in brackets, and those of a row with their units."""
_CHECKS: Final = {
    **{state: state for state in ("verified", "wrong", "not checked")},
    "success": "verified",
    "failed": "wrong",
    "NULL": "not checked",  # of HCCL's test
}
_OF_BUSBW: Final = frozenset({"backend", "device", "mode", "settings", "hosts", "statistic"})
_PAIR: Final = re.compile(r"(\d+)(?:,(\d+))?")
"""A group of one or two ranks."""
_TRUE: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_STATISTICS: Final = (None, "mean", "median", "p99", "max", "min")
"""Which of several columns of one kind is read: the first of these."""
_RATIO: Final = 0.02
_DIGIT: Final = 0.01e9
"""Error allowed of the largest busbw over algbw of a table: relative, and that of algbw in B/s."""
_MOST_ABOVE: Final = 50
_FEWEST_BLOCKS: Final = 2
"""Ranks above which the rate of a size that is one block differs from that of all of them."""
_OP: Final = re.compile(
    r"(?i)(?<![a-z])(all[-_ ]?reduce|all[-_ ]?gather|reduce[-_ ]?scatter|all[-_ ]?to[-_ ]?all|broadcast|send[-_ ]?recv"
    r"|(?:reduce|gather|scatter)(?=_perf))(?![a-z])"
)
_BENCHMARK: Final = re.compile(r"\bPerformance of (\w{1,40}) on \d|\bBenchmarking\W{1,3}([\w-]{1,40})\W*$")
"""The title of a table of DeepSpeed or Intel MPI benchmarks, perhaps of an operation that busbw does not have."""
_RANKS: Final = re.compile(
    r"(?i)(?<![\w.*×x-])(\d{1,6})(?:[- ]?(?:ranks|gpus|devices|processes|npus)|-gpu)\b(?! (?:per|each|/))"
)
_TIMES_GPU: Final = re.compile(r"(?<![\w.])(\d{1,3}) ?[x×] ?(?:(?:NVIDIA|AMD|RTX) )?(?:[A-Z]{1,2}\d{2,4}|MI\d{3})")
"""GPUs by their name: ``8xH100``."""
_WORLD: Final = re.compile(r"(?i)\b(?:world[_ ]?size|n_?ranks|ranks|processes)[ =:]{1,3}(\d{1,6})\b")
_TORCHRUN: Final = re.compile(r"\btorchrun\b(?=.*--nproc[-_]per[-_]node[ =](\d{1,5})\b)(?:.*--nnodes[ =](\d{1,6})\b)?")
_UNIT_ABOVE: Final = re.compile(r"(?i)(?<=[( ])(?<!\d )([mu]s|[GM]B/s)\b(?=[^()]*\))")
"""The unit of a table without others, in brackets in the line above."""
_SIZES: Final = re.compile(r"-b (\d+[KMGkmg]?) -e (\d+[KMGkmg]?)\b")
_NO_RESULT: Final = re.compile(
    r"(?i)(?<![a-z])(?:std|dev|sample|count|iter|err|used|avail|peak|theor)|%|speed[- ]?up|ratio|sigma"
)
"""Headings of columns that have the unit of a result at most by chance."""
_REPEATS: Final = re.compile(r"(?i)(?<![a-z])(?:epoch|iter|step|run|trial|rep|seed|time|date|job|rank|note)")
"""Headings of columns that tell repetitions apart, and no settings."""
_VERSION: Final = re.compile(r"\d{1,2}(?:\.\d{1,3}){1,2}")
_OTHER_RANKS: Final = re.compile(r"(?i)\d ?[-x]? ?(?:nodes?|hosts?|machines?|servers?|gpus?|ranks?|devices?)\b")
_NODES: Final = re.compile(r"(?i)\b(?<!intra-)(?:nodes?|hosts?|machines?|servers?|pods?|per)\b")


def read(draft: Draft, lines: Iterable[str], about: "About | None" = None) -> None:
    """All tables of the log, of which each begins with a line of headings.

    about: operation (``tool_op``) and ``ranks`` by the lines between a table and the one before

    Raises LogError if no line has headings for a size and for a time or a rate.
    """
    table: Table | None = None
    above: list[str] = []
    for number, line in enumerate(lines, 1):
        plain = line.translate(_BOX).strip("\r\n \ufeff")[:_LONGEST_LINE]
        plain = plain.replace("||", "|") if plain.startswith("||") and plain.endswith("||") else plain  # Jira
        if not plain or _OF_NCCL.search(plain) or (table is not None and table.take_units(plain)):
            continue
        stated = _stated(plain)
        head = None if stated else _head(plain) or (None if table is not None and table.rows else _unnamed(plain))
        if not stated and head is None:
            if table is not None and table.take(number, plain):
                continue
            stated = _with_units(plain)
        if stated and table is not None and table.header == tuple(stated):
            table.rows.append((number, list(stated.values())))
        elif stated or head is not None:
            split, header = head or (_piped, tuple(stated))
            facts = (about or _about)(above)
            if table is not None:
                table.end()
                facts = {**table.facts, **facts} if about is None and table.header == header else facts
            table, above = Table(draft, number, split, header, facts), []
            table.is_torn = plain[0] != "|" and plain[-1] == "|"
            if stated:
                table.rows.append((number, list(stated.values())))
        else:
            above = [*above[1 - _MOST_ABOVE :], plain]
    if table is None:
        raise LogError(
            f"{draft.source}: no line has headings for a size and for a time or a rate (docs/logs.md); write a table "
            "with the headings op, ranks, size and time_us"
        )
    table.end()


def read_json(draft: Draft, lines: Iterable[str]) -> None:
    """The objects of rccl-tests, one per line, possibly in a list."""
    table: Table | None = None
    for number, row in draft.objects(lines):
        if table is None or table.header != tuple(row):
            if table is not None:
                table.end()
            table = Table(draft, 1 if table is None else number, list, tuple(row), {})
        table.rows.append((number, [text(value) or "" for value in row.values()]))
    if table is not None:
        table.end()


def _stated(line: str) -> dict[str, str]:
    """The numbers of a line by the names before them, and its operation, if it states a size and a result."""
    cells = {_OP.sub("", name).strip(): value.rstrip(",") for name, value in _STATED.findall(line)}
    names = {column(name).name for name in cells}
    if "size" not in names or not names & RESULTS:
        return {}
    op = None if "op" in names else _OP.search(line)
    return cells if op is None else {"op": op[1], **cells}


def _with_units(line: str) -> dict[str, str]:
    """The operation that a line begins with, and the numbers behind it by their units; {} if there are others."""
    op = _OP.search(line)
    if op is None or line[: op.start()].strip("#*->[ "):
        return {}
    cells = [(column(match[1]).name or match[1], match[0]) for match in _AMOUNT.finditer(line, op.end())]
    return {"op": op[1], **dict(cells)} if sorted(name for name, _ in cells) in _OF_UNITS else {}


About = Callable[[Sequence[str]], Mapping[str, Any]]


def _about(above: Sequence[str]) -> dict[str, Any]:
    """Operation and ranks that the lines above a table name, if they name one. Ranks of each node are not all ranks."""
    above = "\n".join(above).replace("\\\n", " ").split("\n")
    ops = {op_named(name) for line in above for name in _OP.findall(line)} - {None, "barrier"}  # which has no size
    titles = [(title[1] or title[2], line) for line in above if (title := _BENCHMARK.search(line)) is not None]
    if titles and not any(map(op_named, _OP.findall(titles[-1][1]))):
        ops = {titles[-1][0]} if op_named(titles[-1][0]) != "barrier" else set()
    ranks = {int(count) for line in above for count in _RANKS.findall(line)}
    ranks |= {int(count) for sign in (_WORLD, _TIMES_GPU) for line in above for count in sign.findall(line)}
    ranks |= {int(match[1]) * int(match[2] or 1) for line in above if (match := _TORCHRUN.search(line)) is not None}
    launches = {launch for line in above if (launch := launched_any(line)).ranks is not None}
    prose = (line for line in above if LAUNCHER.search(line) is None and not re.search(r"(?i)\branks\b|torchrun", line))
    ranks = set() if any(map(_NODES.search, prose)) else ranks
    ranks |= {launch.ranks for launch in launches if launch.ranks is not None}
    ends = [pair for line in above for pair in _SIZES.findall(line)]
    sizes = {size_of(f"{first}iB") if first == last else None for first, last in ends}
    units = _UNIT_ABOVE.findall(above[-1]) if above else []
    hosts = {launch.even_hosts for launch in launches} if len(ranks) == 1 else set()
    named: dict[str, set[Any]] = {"tool_op": ops, "ranks": ranks, "hosts": hosts, "size": sizes, "unit": set(units)}
    return {name: values.pop() for name, values in named.items() if len(values) == 1}


# --- lines and their cells -------------------------------------------------------------------------------------------


_OF_NCCL: Final = re.compile(r"\bNCCL (?:INFO|WARN) ")
_ALONE: Final = re.compile(r"\([A-Za-z/]{1,6}\)")
"""A unit without what it is of."""


def _piped(line: str) -> list[str]:
    return [cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")]


def _separated(line: str, by: str) -> list[str]:
    try:
        (cells,) = csv.reader([line], delimiter=by, skipinitialspace=True)
    except (csv.Error, ValueError):
        return []
    return [cell.strip() for cell in cells]


Split = Callable[[str], list[str]]
_SPLITS: Final[tuple[tuple[str, Split], ...]] = (
    ("|", _piped),
    ("\t", lambda line: _separated(line, "\t")),
    (";", lambda line: _separated(line, ";")),
    (",", lambda line: _separated(line, ",")),
    ("  ", lambda line: re.split(r"\s{2,}", line)),
    (" ", _WORDS.findall),
)
"""What separates the cells of a line of headings, in the order in which it is tried."""
_ALIGNED: Final = frozenset(split for by, split in _SPLITS if by.isspace() and by != "\t")


def _head(line: str) -> tuple[Split, tuple[str, ...]] | None:
    """The headings of a line and how it is split into them; None for any other line."""
    is_units = all(map(_UNIT.fullmatch, line.lstrip("# ").split()))
    for by, split in _SPLITS if not is_units and SIGN.search(line.encode()) is not None else ():
        names = split(line.lstrip("# ") if split in _ALIGNED else line) if by in line else []
        known = _columns(names[:_MOST_COLUMNS], least=1 if by in {"|", "\t"} else 2)
        columns = {entry.name for entry in known}
        is_torn = by in {"|", "\t"} and any(_ALONE.fullmatch(name) for name in names)  # "size<tab>(B)"
        has_units = all(name.endswith((")", "]")) for name in names)
        if is_torn or (None in columns and by == " " and not has_units):
            continue
        results = columns & RESULTS if "size" in columns else columns & {"algbw", "busbw"} if by.strip() else None
        stated = "size" in columns or by == "|" or any(map(_is_rate, known))  # else by its cells
        if 1 < len(names) <= _MOST_COLUMNS and results and stated:
            return split, tuple(names)
    return None


def _unnamed(line: str) -> tuple[Split, tuple[str, ...]] | None:
    """A line of headings of which only the first, the size, is known: units of the others may be elsewhere."""
    for by, split in _SPLITS if "size" in line.lower() or "bytes" in line.lower() else ():
        names = split(line) if by in line and by in {"|", "\t", "  "} else []
        are_words = all(_is_word(name) or _OTHER_RANKS.search(name) is not None for name in names)
        if 1 < len(names) <= _MOST_COLUMNS and column(names[0]).name == "size" and are_words:
            return split, tuple(names)
    return None


def _is_word(cell: str) -> bool:
    """Whether a cell has letters and is no number with a unit, no date and no time of day."""
    is_number = amount(cell, whole=False) is not None or re.search(r"\d:\d\d|\d{4}-\d\d", cell) is not None
    return not is_number and re.search("[A-Za-z]", cell) is not None


def _are_settings(groups: Sequence[Sequence[str]]) -> bool:
    """Whether cells of one column, by the size of their rows, are settings: all words, or the same powers of two at
    several sizes.
    """
    cells = {cell for group in groups for cell in group if cell}
    if all(map(_is_word, cells)):
        return True
    counts = [whole(cell) or 0 for cell in cells]
    are_powers = all(count.bit_count() == 1 for count in counts) and max(counts) > 2
    return are_powers and len(groups) > 1 and len({frozenset(group) for group in groups}) == 1


def _is_plain(tool_op: str | None, ranks: int | None) -> bool:
    """Whether algbw and busbw of an operation are the same."""
    op = op_named(tool_op or "")
    return op in OPS and {bus_factor(op, count) for count in ([ranks] if ranks else (2, 64))} <= {1.0, None}


def _unit_of(cells: Iterable[str]) -> str | None:
    """A unit of ``cells`` that all have units of time, or all of a rate; else None."""
    units = sorted({number.unit for cell in cells if (number := amount(cell, whole=False)) is not None})
    of_one = (all(factors(kind, unit) for unit in units) for kind in ("time", "bandwidth"))
    return units[0] if units and any(of_one) else None


def _is_rate(entry: Column) -> bool:
    """Whether a column is algbw or busbw by its heading, in bytes per second: it needs no size beside."""
    return entry.name in {"algbw", "busbw"} and (entry.factors != () or entry.variant is not None)


def _columns(names: Sequence[str], least: int = 1) -> list[Column]:
    """What the headings say. Without a result, those of ``least`` and more that have its unit are variants of one."""
    known = [column(name) for name in names]
    variants = [entry if entry.name else variant(entry.heading) for entry in known]
    stated = [_NO_RESULT.search(entry.heading) is None for entry in variants if entry.variant is not None]
    several = len(stated) >= least and (len(stated) > 1 or any(stated))
    return variants if several and not any(entry.name in RESULTS for entry in known) else known


class _Group(NamedTuple):
    """The columns of one result of a row, by name, those of all its results, whether it is in place, its variant."""

    at: Mapping[str, int]
    all_at: frozenset[int]
    place: bool | None
    variant: str | None = None


class Table:
    """A table while it is read: its headings, the facts that the lines above them state, and the cells of its rows."""

    def __init__(
        self, draft: Draft, line: int, split: Split, header: tuple[str, ...], facts: Mapping[str, Any]
    ) -> None:
        self.draft, self.line, self.split, self.header, self.facts = draft, line, split, header, facts
        self.columns = _columns(header)
        if {"total", "time"} <= set(header):  # of fabtests, whose time is that of the test
            self.columns = [Column(own.heading) if own.heading == "time" else own for own in self.columns]
        if any("samples" in heading.lower() for heading in header):  # whose duration is that of the test
            without = [Column(own.heading) if "duration" in own.heading.lower() else own for own in self.columns]
            others = any(own.name in RESULTS for own in without)
            short = any(own.name == "time" and own.factors and max(own.factors) < 1 for own in self.columns)
            self.columns = self.columns if short and not others else without
        self.keys: list[int] = []
        self.rows: list[tuple[int, list[str]]] = []
        self.is_open, self.is_torn = True, False
        """Whether rows may follow, and the line of headings is only the rest of one in Markdown."""
        self.rccl = "numCycle" in header or split is list
        draft.begin(line)
        comma = split is dict(_SPLITS)[","]
        draft.tool = "rccl-tests" if self.rccl else "csv" if comma and draft.tool == "table" else draft.tool

    def take(self, number: int, line: str) -> bool:
        """Take a line that is a row, a second line of headings or a rule; return whether it was one of them."""
        aligned = self.split in _ALIGNED
        self.is_open &= not (line.startswith("$ ") or (self.rows and are_headings(line.split())))  # of what follows
        if not self.is_open:
            return False
        if _RULE.fullmatch(line) is not None:
            return True
        cells = [] if self.is_torn and line.startswith("|") else self.split(line)
        if aligned and len(cells) != len(self.header):
            cells = _NUMBERS.findall(line)
        if aligned and len(cells) == len(self.header) + 1 and cells[0] == str(len(self.rows)):
            cells = cells[1:]  # pandas prints the number of the row below no heading
        if len(cells) != len(self.header):
            are_numbers = [real(cell) is not None for cell in cells]
            is_row = len(cells) > 1 and (are_numbers[0] and are_numbers[-1] if aligned else any(are_numbers))
            if is_row:
                why = (
                    "a row whose number of cells differs from the header is ignored: write each row in one line, with "
                    f"{len(self.header)} cells"
                )
                self.draft.note("truncated-row", number, why)
            return is_row
        types = [cell for cell, entry in zip(cells, self.columns, strict=True) if entry.name == "dtype"]
        if any(real(cell) is not None or cell == "N/A" for cell in types):
            self.draft.note("truncated-row", number, "a row with a number in place of a type is ignored")
            return True
        sizes = [cell for cell, entry in zip(cells, self.columns, strict=True) if entry.name == "size" and cell]
        if not all(amount(cell, whole=True) for cell in sizes):
            return False
        self.rows.append((number, cells))
        return True

    def take_units(self, line: str) -> bool:
        """Take a second line of headings that has only units, which the headings above get; return whether it was."""
        is_aligned = self.split in _ALIGNED
        cells = [] if self.rows else self._in_order(line) if is_aligned else self.split(line)
        if len(cells) != len(self.header) or not all(_UNIT.fullmatch(cell) for cell in cells):
            return False
        joined = [f"{heading} {cell}" for heading, cell in zip(self.header, cells, strict=True)]
        self.columns = [column(heading)._replace(heading=old) for heading, old in zip(joined, self.header, strict=True)]
        return any(cells)

    def _in_order(self, line: str) -> list[str]:
        """The units of a line below aligned headings, each below the next heading that may have it; [] for another."""
        cells, left = [], line.lstrip("# ").split()
        for heading in self.header:
            name, unit = column(heading).name or "", left[0].strip("()[]") if left else ""
            fits = factors(name, unit) or (name == "count" and unit in {"elements", "elems"})
            cells.append(left.pop(0) if fits else "")
        return [] if left else cells

    def end(self) -> None:
        """Add all rows to the draft, or a note that says why their numbers are not known."""
        if self.rccl and not any(entry.name == "size" for entry in self.columns):
            self.draft.note("no-header", self.line, "rows without a size are ignored")
            return
        self._join_halves()
        self.columns = self._with_units() if self.rows else self.columns
        groups = self._groups()
        if not self.rows or not groups:
            return
        if any(sign.search(group.variant or "") for group in groups for sign in (_NODES, _OTHER_RANKS)):
            self.facts = {name: value for name, value in self.facts.items() if name != "ranks"}
        factor, blocks = self._factors()
        rows = [cells for _, cells in self.rows]
        units = Units(self.columns, rows, groups[0].at, factor, blocks=blocks, usual=self.rccl)
        self._check_facts(groups[0], units)
        self.keys = [] if self.rccl or _OF_BUSBW.issubset(self.header) else self._keys()
        self.draft.facts |= {"caption": self._shared(), "hosts": self.facts.get("hosts")}
        for number, cells in self.rows if units.size_is_known else ():
            for group in groups:
                self._add(number, cells, group, units)
        for code, why in units.notes:
            self.draft.note(code, self.line, why)

    def _join_halves(self) -> None:
        """Make two rows of each if the headings stand twice, for other sizes or operations (without them: names)."""
        half, rest = divmod(len(self.header), 2)
        left, between, right = self.header[:half], self.header[half : half + rest], self.header[half + rest :]
        if half < 2 or left != right or any(between):
            return
        kinds = [entry.name for entry in self.columns[:half]]
        known = [at for at, kind in enumerate(kinds) if kind in {"size", "op"}]
        known = known or [at for at, kind in enumerate(kinds) if kind not in RESULTS]
        rows = [(number, part) for number, cells in self.rows for part in (cells[:half], cells[-half:]) if any(part)]
        keys = [tuple(amount(cells[at], whole=True) or cells[at] for at in known) for _, cells in rows]
        if len(set(keys)) == len(keys):
            self.header, self.columns, self.rows = left, self.columns[:half], rows

    def _with_units(self) -> list[Column]:
        """The columns; if none is a result, those with the unit of one in their cells or in the line above are."""
        if any(entry.name in RESULTS for entry in self.columns):
            return self.columns
        others = [_NO_RESULT.search(entry.heading) is not None for entry in self.columns]
        above = None if any(others) else self.facts.get("unit")
        return [
            variant(f"{entry.heading} ({unit})")._replace(heading=entry.heading)
            if entry.name is None
            and not others[at]
            and (unit := _unit_of(cells[at] for _, cells in self.rows) or above) is not None
            else entry
            for at, entry in enumerate(self.columns)
        ]

    def _keys(self) -> list[int]:
        """The columns of unknown headings before the results that tell rows apart which are the same by all known ones.
        Numbers do not, as those of repetitions; without sizes, versions in the first column do.
        """
        known = [at for at, entry in enumerate(self.columns) if entry.name not in {None, "nodes", *RESULTS}]
        same = by_key((tuple(cells[at] for at in known), cells) for _, cells in self.rows)
        first = min(at for at, entry in enumerate(self.columns) if entry.name in RESULTS)
        sized = any(entry.name == "size" for entry in self.columns)
        keys: list[int] = []
        for at in set(range(first)).difference(known) if len(same) < len(self.rows) else ():
            values = [[cells[at] for cells in rows] for rows in same.values() if len(rows) > 1]
            is_key = self.columns[at].name == "nodes" or _are_settings(values)
            is_key |= at == 0 and not sized and all(_VERSION.fullmatch(value) for some in values for value in some)
            differ = any(len(set(some)) > 1 for some in values)
            if differ and is_key and _REPEATS.search(self.header[at]) is None:
                keys.append(at)
        return sorted(keys)

    def _shared(self) -> str | None:
        """The word below an unknown heading before the results that is the same in all rows, by which tables differ."""
        first = min(at for at, entry in enumerate(self.columns) if entry.name in RESULTS)
        unknown = (at for at, entry in enumerate(self.columns[:first]) if entry.name is None)
        words = ({cells[at] for _, cells in self.rows} for at in unknown)
        return " ".join(word for own in words if len(own) == 1 and _is_word(word := min(own)))[:LONGEST_CAPTION] or None

    def _factors(self) -> tuple[float | None, int]:
        """busbw over algbw by the only operation of the rows and the ranks above the table (None: unknown), and how
        many blocks of a rank its size may be instead.
        """
        at = {entry.name: place for place, entry in enumerate(self.columns)}
        if not at.keys().isdisjoint({"ranks", "gpus"}):
            return None, 1
        above = self.facts.get("tool_op") or ""
        ops = {op_named(cells[at["op"]] or above if "op" in at else above) for _, cells in self.rows}
        op, ranks = ops.pop() if len(ops) == 1 else None, self.facts.get("ranks")
        if op is None or ranks is None:
            return None, 1
        return bus_factor(op, ranks), ranks if op in NCCL_BLOCKS and ranks > _FEWEST_BLOCKS else 1

    def _check_facts(self, group: _Group, units: Units) -> None:
        """Forget what the lines above the table state if busbw over algbw says something else."""
        factor, _ = self._factors()
        if factor is None or not {"algbw", "busbw"} <= group.at.keys():
            return
        rates = (
            [units.rate_or_time(at, cells[at]) for at in (group.at["busbw"], group.at["algbw"])]
            for _, cells in self.rows
        )
        busbw, algbw = max((busbw or 0.0, algbw or 0.0) for busbw, algbw in rates)
        if algbw and abs(busbw / algbw / factor - 1) > _RATIO + _DIGIT / algbw:
            self.facts = {}

    def _groups(self) -> list[_Group]:
        """The results of a row. Columns that come twice are out of place and in place."""
        if variants := list(dict.fromkeys(entry.variant for entry in self.columns if entry.variant is not None)):
            of_each = {
                name: {entry.name or "": at for at, entry in enumerate(self.columns) if entry.variant == name}
                for name in variants
            }
            every = frozenset(at for columns in of_each.values() for at in columns.values())
            return [_Group(columns, every, None, name) for name, columns in of_each.items()]
        by_place: dict[bool | None, dict[str, list[int]]] = {}
        results = [at for at, entry in enumerate(self.columns) if entry.name in RESULTS or entry.name == "wrong"]
        for at in sorted(results, key=lambda at: _STATISTICS.index(self.columns[at].statistic)):
            entry = self.columns[at]
            same = by_place.setdefault(entry.place, {}).setdefault(entry.name or "", [])
            if not same or self.columns[same[0]].statistic == entry.statistic:
                same.append(at)
        if by_place.keys() == {None, True} and by_place[None].keys() >= by_place[True].keys():
            by_place[False] = by_place.pop(None)  # only the results in place say where they are
        groups: list[_Group] = []
        for place, named in by_place.items():
            if place is None and len(by_place) > 1:
                continue
            most = max(named.values(), key=len)
            of_nccl_tests = not {"algbw", "busbw"}.isdisjoint(named)
            places = (place,) if len(most) == 1 else (False, True) if len(most) == 2 and of_nccl_tests else ()
            if not places:
                heading = repr(self.header[most[0]][:80])
                why = f"the heading {heading} stands {len(most)} times: say of each what it is, such as in-place"
                self.draft.note("ambiguous-heading", self.line, why)
                return []
            for which, in_place in enumerate(places):
                columns = {name: ats[which] for name, ats in named.items() if len(ats) == len(places)}
                groups.append(_Group(columns, frozenset(), in_place))
        all_at = frozenset(at for group in groups for at in group.at.values())
        return [group._replace(all_at=all_at) for group in groups]

    def _add(self, number: int, cells: list[str], group: _Group, units: Units) -> None:
        row = dict(zip(self.header, cells, strict=True))
        if ours := _OF_BUSBW.issubset(row) and row["mode"] in get_args(Mode):
            row = {heading: from_cell(cell) for heading, cell in row.items()}
            cells = [from_cell(cell) for cell in cells]
        values, others = self._values(number, cells, group, units)
        if values["size"] is None and any(map(self._is_part, cells, self.columns)):
            self.draft.note("truncated-row", number, "a row with a part of a byte is ignored")
            return
        of_heading = size_of(group.variant or "")
        values["size"] = values["size"] or of_heading or self.facts.get("size")
        told = [at for at in self.keys if cells[at]]
        named = [cells[at] if _is_word(cells[at]) else f"{self.header[at]} {cells[at]}" for at in told]
        named = [name.replace("`", "").strip("*") for name in named]
        named += [] if group.variant is None or of_heading else [group.variant]
        gpus = values.get("gpus") if values.get("nodes", "1") == "1" else None  # of several nodes: perhaps of each
        ranks = whole(values.get("ranks", gpus)) if "ranks" in values or gpus else self.facts.get("ranks")
        tool_op = text(values.get("op")) or self.facts.get("tool_op")
        rate, messages = values.get("rate"), None
        if values.get("time") is None:
            if rate is None and values.get("busbw") is None:
                rate = values.get("algbw") or self._bandwidth(number, group, values.get("bandwidth"), tool_op, ranks)
            is_rated = rate is not None or values.get("algbw") is not None
            messages = 1 if is_rated else None  # one S in a call, so that its time follows
        elif _is_plain(tool_op, ranks):
            values.setdefault("algbw", values.get("bandwidth"))
        check = next((_CHECKS[word] for word in _CHECKS if (values.get("check") or "").startswith(word)), None)
        pair = _PAIR.fullmatch(values.get("group") or "")
        source, target = (None, None) if pair is None else pair.groups()
        result = next((self.columns[group.at[name]] for name in ("time", *RATES) if name in group.at), None)
        statistic = values.get("statistic") or (None if result is None else result.statistic)
        fields: dict[str, Any] = {} if check is None else {"check": check}
        fields |= verdict(values["wrong"]) if "wrong" in values else {}
        fields |= {} if ranks is None and "ranks" not in values else {"ranks": ranks}
        fields |= {"settings": " ".join(named)} if named else {}
        fields |= {"statistic": "mean" if self.rccl else statistic} | (_of_busbw(row) if ours else {})
        self.draft.collective(
            number,
            tool_op,
            values,
            time_seconds=values.get("time"),
            algbw=values.get("algbw"),
            busbw=values.get("busbw"),
            in_place=_TRUE.get(str(values.get("in_place")).lower()) if group.place is None else group.place,
            rate=rate,
            messages=messages,
            others=others,
            source=values.get("source", source),
            target=values.get("target", target),
            **fields,
        )

    @staticmethod
    def _is_part(cell: str, entry: Column) -> bool:
        """Whether a cell is a size that is no whole number, without a unit."""
        size = amount(cell, whole=True) if entry.name == "size" else None
        return size is not None and not size.unit and size.value % 1 > 0

    def _values(
        self, number: int, cells: list[str], group: _Group, units: Units
    ) -> tuple[dict[str, Any], dict[str, float | str]]:
        """The cells of a row by what they are, results in base units, and the cells of other columns."""
        values: dict[str, Any] = {"size": units.sized(cells)}
        others: dict[str, float | str] = {}
        for at, (entry, cell) in enumerate(zip(self.columns, cells, strict=True)):
            name = entry.name
            if at in group.at.values() and name in RESULTS:
                values[name or ""] = units.rate_or_time(at, cell)
                if values[name or ""] is None and amount(cell, whole=False) is None and any(map(str.isdecimal, cell)):
                    self.draft.note("not-a-number", number, f"{cell[:40]!r} is no plain number such as 56 GB/s")
                used = values[name or ""] is not None and (name != "bandwidth" or len(group.at) == 1)
            elif at in group.all_at and at not in group.at.values():
                continue
            elif used := name is not None and name not in RESULTS:
                count = amount(cell, whole=True) if name in {"count", "ranks", "gpus", "nodes"} else None
                values.setdefault(name or "", cell if count is None or count.value % 1 else str(int(count.value)))
                used = name != "nodes"
            if not used and (kept := real(cell) if real(cell) is not None else text(cell)) is not None:
                others[entry.heading] = kept
        return values, others

    def _bandwidth(
        self, number: int, group: _Group, value: float | None, tool_op: str | None, ranks: int | None
    ) -> float | None:
        """A bandwidth of which nothing says whether it is algbw or busbw, if the two are the same; else None, noted."""
        if value is None or _is_plain(tool_op, ranks):
            return value
        heading = self.header[group.at["bandwidth"]][:80]
        why = f"the heading {heading!r} may be algbw (size over time) or busbw: write algbw or busbw instead"
        self.draft.note("ambiguous-heading", number, why)
        return None


# --- busbw's own tables ----------------------------------------------------------------------------------------------


def _of_busbw(row: Mapping[str, Any]) -> dict[str, Any]:
    """What only a row that ``busbw export --to csv`` wrote says: others mean other things by these headings."""
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
