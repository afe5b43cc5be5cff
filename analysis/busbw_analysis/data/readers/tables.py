"""Reader of tables that people write or export: Markdown, CSV with any separator, aligned columns, JSON objects per row.

docs/logs.md lists the headings. Where a unit has two meanings, the other columns have to leave one of them: size over
time is algbw. rccl-tests and nccl-tests write no units; their times are microseconds and their rates GB/s. Source:
``Reporter`` in ``src/common.cu`` of ROCm/rccl-tests.
"""

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from math import log2
from typing import Any, Final, NamedTuple, get_args

from busbw.errors import LogError
from busbw.escape import from_cell
from busbw.ops import OPS, bus_factor
from busbw.ops.settings import Pairs
from busbw.runs.records import Mode, Sync
from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.headings import RATES, RESULTS, Column, amount, column, factors
from busbw_analysis.data.readers.json_text import real, text
from busbw_analysis.data.readers.lines import op_named, scaled, verdict, whole

SIGN: Final = re.compile(
    rb"(?im)^(?=[^\n]{0,999}(?:size|bytes|payload|message|msg|\b[KMG]i?B\b))"
    rb"(?=[^\n]{0,999}(?:time|lat|duration|elapsed|bw|bandwidth|rate|throughput|[KMG]i?b(?:it|yte)?s?(?:/|p)s|\bus\b))"
    rb"(?=[^\n]{0,999}(?:[|;,\t]| {2}|bw))[ \t>#|]*[a-z*`(][^\n\"{}=]{3,999}$"
)
CSV: Final = re.compile(rb"(?im)^(?:[#\w /()-]+,)*(?:size|size_bytes|bytes)(?:,[#\w /()-]+)+\r?$")
JSON: Final = re.compile(rb'"busBw"\s*:')
_LONGEST_LINE: Final = 1 << 13
_MOST_COLUMNS: Final = 200
_RULE: Final = re.compile(r"[\s|+:=-]*[=-][\s|+:=-]*")
"""A line that separates a heading from its rows."""
_UNIT: Final = re.compile(r"(?:[(\[][^)\]]*[)\]])?")
_WORDS: Final = re.compile(r"[^\s(\[]+(?: ?[(\[][^)\]]*[)\]])?|\S+")
_NUMBERS: Final = re.compile(r"\S+ (?=[KMGTkmgt]?i?[Bb](?:ytes|ps|/s)?(?:\s|$)|[num\u03bc\u00b5]?s(?:\s|$))\S+|\S+")
"""Words of a heading with their units in brackets, and those of a row with their units."""
_CHECK: Final = re.compile(r"verified|wrong|not checked")
_OF_BUSBW: Final = frozenset({"backend", "device", "mode", "settings", "hosts", "statistic"})
_PAIR: Final = re.compile(r"(\d+)(?:,(\d+))?")
"""A group of one or two ranks."""
_TRUE: Final = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
_PLACES: Final = {1: (None,), 2: (False, True)}
"""Number of columns of one kind → in place; nccl-tests prints the results out of place first."""
_STATISTICS: Final = (None, "mean", "median", "p99", "max", "min")
"""Which of several columns of one kind is read: the first of these."""
_USUAL: Final = {"size": 1.0, "time": 1e-6, **dict.fromkeys(("algbw", "busbw"), 1e9)}
_AGREES: Final = 0.005
_SURE: Final = 0.01
"""Relative errors: two numbers agree up to the first besides their digits, and tell units apart below the second."""
_LEAST_SECONDS: Final = 1e-8
_MOST_ABOVE: Final = 50
_OP: Final = re.compile(
    r"(?i)\b(all[-_ ]?reduce|all[-_ ]?gather|reduce[-_ ]?scatter|all[-_ ]?to[-_ ]?all|broadcast|send[-_ ]?recv"
    r"|(?:reduce|gather|scatter)(?=_perf))(?![a-z])"
)
_RANKS: Final = re.compile(r"(?i)(?<![\w.*×x-])(\d{1,6})[- ]?(?:ranks|gpus|devices|processes|npus)\b(?! (?:per|each|/))")
_NODES: Final = re.compile(r"(?i)\b(?:nodes?|hosts?|per)\b")


def read(draft: Draft, lines: Iterable[str]) -> None:
    """All tables of the log, of which each begins with a line of headings.

    Raises LogError if no line has headings for a size and for a time or a rate.
    """
    table: Table | None = None
    above: list[str] = []
    for number, line in enumerate(lines, 1):
        plain = line.strip("\r\n \ufeff")[:_LONGEST_LINE]
        if table is not None and table.take_units(plain):
            continue
        if (head := _head(plain)) is not None:
            if table is not None:
                table.end()
            table, above = Table(draft, number, *head, above), []
        elif (table is None or not table.take(number, plain)) and plain:
            above = [*above[1 - _MOST_ABOVE :], plain]
    if table is None:
        raise LogError(f"{draft.source}: no line has headings for a size and for a time or a rate (docs/logs.md)")
    table.end()


def read_json(draft: Draft, lines: Iterable[str]) -> None:
    """The objects of rccl-tests, one per line, possibly in a list."""
    table: Table | None = None
    for number, row in draft.objects(lines):
        if table is None or table.header != tuple(row):
            if table is not None:
                table.end()
            table = Table(draft, 1 if table is None else number, list, tuple(row), ())
        table.rows.append((number, [text(value) or "" for value in row.values()]))
    if table is not None:
        table.end()


# --- lines and their cells -------------------------------------------------------------------------------------------


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
    for by, split in _SPLITS:
        names = split(line.lstrip("# ") if split in _ALIGNED else line) if by in line else []
        columns = {column(name).name for name in names[:_MOST_COLUMNS]}
        if None in columns and by == " ":
            continue
        if len(names) <= _MOST_COLUMNS and "size" in columns and columns & RESULTS:
            return split, tuple(names)
    return None


class _Group(NamedTuple):
    """The columns of one result of a row, by name, and whether it is of the operation in place."""

    place: bool | None
    at: Mapping[str, int]


class Table:
    """A table while it is read: its headings, the lines above them, and the cells of its rows."""

    def __init__(self, draft: Draft, line: int, split: Split, header: tuple[str, ...], above: Sequence[str]) -> None:
        self.draft, self.line, self.split, self.header, self.above = draft, line, split, header, above
        self.columns = [column(heading) for heading in header]
        self.rows: list[tuple[int, list[str]]] = []
        self.rccl = "numCycle" in header
        draft.begin(line)
        comma = split is dict(_SPLITS)[","]
        draft.tool = "rccl-tests" if self.rccl else "csv" if comma and draft.tool == "table" else draft.tool

    def take(self, number: int, line: str) -> bool:
        """Take a line that is a row, a second line of headings or a rule; return whether it was one of them."""
        aligned = self.split in _ALIGNED
        if not line or _RULE.fullmatch(line) is not None:
            return True
        cells = self.split(line)
        if aligned and len(cells) != len(self.header):
            cells = _NUMBERS.findall(line)
        if len(cells) != len(self.header):
            if len(cells) > 1 and not aligned and any(cells) and not line.startswith("#"):
                self.draft.note(
                    "truncated-row", number, "a row whose number of cells differs from the header is ignored"
                )
            return not aligned and len(cells) > 1
        if aligned and not all(amount(cells[at], whole=True) for at in self._places("size")):
            return False
        self.rows.append((number, cells))
        return True

    def take_units(self, line: str) -> bool:
        """Take a second line of headings that has only units, which the headings above get; return whether it was."""
        cells = [] if self.rows or self.split in _ALIGNED else self.split(line)
        if len(cells) != len(self.header) or not all(_UNIT.fullmatch(cell) for cell in cells):
            return False
        joined = [f"{heading} {cell}" for heading, cell in zip(self.header, cells, strict=True)]
        self.columns = [column(heading)._replace(heading=old) for heading, old in zip(joined, self.header, strict=True)]
        return any(cells)

    def _places(self, name: str) -> list[int]:
        return [at for at, entry in enumerate(self.columns) if entry.name == name]

    def end(self) -> None:
        """Add all rows to the draft, or a note that says why their numbers are not known."""
        groups = self._groups()
        if not self.rows or not groups:
            return
        units = _Units(self, self._places("size")[0], groups[0].at)
        if units.size is None:
            return
        facts = self._above()
        for number, cells in self.rows:
            for group in groups:
                self._add(number, cells, group, units, facts)

    def _groups(self) -> list[_Group]:
        """The results of a row. Columns that come twice are out of place and in place."""
        by_place: dict[bool | None, dict[str, list[tuple[int, int]]]] = {}
        for at, entry in enumerate(self.columns):
            if entry.name in RESULTS or entry.name == "wrong":
                rank = _STATISTICS.index(entry.statistic)
                by_place.setdefault(entry.place, {}).setdefault(entry.name or "", []).append((rank, at))
        groups: list[_Group] = []
        for place, named in by_place.items():
            least = {name: min(rank for rank, _ in entries) for name, entries in named.items()}
            best = {name: [at for rank, at in entries if rank == least[name]] for name, entries in named.items()}
            times = max(map(len, best.values()))
            places = (place,) if times == 1 else _PLACES.get(times, ()) if "algbw" in best or "busbw" in best else ()
            if not places:
                twice = next(self.header[ats[0]] for ats in best.values() if len(ats) == times)
                why = f"the heading {twice[:80]!r} stands {times} times: say of each what it is, such as in-place"
                self.draft.note("ambiguous-heading", self.line, why)
                return []
            for which, in_place in enumerate(places):
                groups.append(_Group(in_place, {name: ats[which] for name, ats in best.items() if which < len(ats)}))
        shared = by_place.get(None, {}) if len(by_place) > 1 else {}
        return [group for group in groups if group.place is not None or not shared or len(groups) == 1]

    def _above(self) -> dict[str, Any]:
        """Operation and ranks that the lines above the table name, if they name one."""
        ops = {op_named(name) for line in self.above for name in _OP.findall(line)} - {None}
        ranks = {int(count) for line in self.above for count in _RANKS.findall(line)}
        if any(_NODES.search(line) and not re.search(r"(?i)\branks\b", line) for line in self.above):
            ranks = set()
        facts: dict[str, Any] = {"tool_op": ops.pop()} if len(ops) == 1 else {}
        return facts | ({"ranks": ranks.pop()} if len(ranks) == 1 else {})

    def _add(self, number: int, cells: list[str], group: _Group, units: "_Units", facts: Mapping[str, Any]) -> None:
        row = dict(zip(self.header, cells, strict=True))
        ours = _OF_BUSBW.issubset(row) and row["mode"] in get_args(Mode)
        row = {name: from_cell(cell) for name, cell in row.items()} if ours else row
        values: dict[str, Any] = {"size": units.sized(cells)}
        others: dict[str, float | str] = {}
        used = {*group.at.values(), *self._places("size")[:1]}
        for at, (entry, cell) in enumerate(zip(self.columns, row.values() if ours else cells, strict=True)):
            name = entry.name
            if at in used and name in RESULTS:
                values[name or ""] = units.of(at, cell)
                name = None if units.factor(at, cell) is None else name
            elif name is not None and name not in RESULTS and name not in {"size", *values}:
                read_whole = amount(cell, whole=True) if name in {"count", "ranks"} else None
                values[name] = str(int(read_whole[0])) if read_whole and read_whole[0] == int(read_whole[0]) else cell
            elif at not in used:
                name = None
            if name is None and (kept := real(cell) if real(cell) is not None else text(cell)) is not None:
                others[entry.heading] = kept
        counts: dict[str, Any] = {"ranks": whole(values["ranks"])} if "ranks" in values else {}
        counts |= verdict(values["wrong"]) if "wrong" in values else {}
        if (check := _CHECK.match(values.get("check") or "")) is not None:
            counts.setdefault("check", check[0])
        pair = _PAIR.fullmatch(values.get("group") or "")
        source, target = (None, None) if pair is None else pair.groups()
        result = next((self.columns[group.at[name]] for name in ("time", *RATES) if name in group.at), None)
        statistic = values.get("statistic") or (None if result is None else result.statistic)
        fields: dict[str, Any] = {"statistic": "mean" if self.rccl else statistic}
        fields |= _of_busbw(row) if ours else {}
        tool_op = text(values.get("op")) or facts.get("tool_op")
        ranks = counts.get("ranks", facts.get("ranks"))
        counts |= {} if ranks is None else {"ranks": ranks}
        rate = values.get("rate")
        if values.get("time") is None:
            if rate is None and values.get("busbw") is None:
                rate = values.get("algbw")
                if rate is None and values.get("bandwidth") is not None:
                    rate = self._bandwidth(number, group, values["bandwidth"], tool_op, ranks)
            # One S in a call, so that its time follows.
            fields |= {} if rate is None and values.get("algbw") is None else {"messages": 1}
        elif "bandwidth" in group.at and (kept := real(cells[group.at["bandwidth"]])) is not None:
            others[self.header[group.at["bandwidth"]]] = kept
        self.draft.collective(
            number,
            tool_op,
            values,
            time_seconds=values.get("time"),
            algbw=values.get("algbw"),
            busbw=values.get("busbw"),
            in_place=group.place if group.place is not None else _TRUE.get(str(values.get("in_place")).lower()),
            rate=rate,
            others=others,
            source=values.get("source", source),
            target=values.get("target", target),
            **(counts | fields),
        )

    def _bandwidth(
        self, number: int, group: _Group, value: float, tool_op: str | None, ranks: int | None
    ) -> float | None:
        """A bandwidth of which nothing says whether it is algbw or busbw, if the two are the same."""
        op = op_named(tool_op or "")
        if op in OPS and {bus_factor(op, count) for count in ([ranks] if ranks else (2, 64))} <= {1.0, None}:
            return value
        heading = self.header[group.at["bandwidth"]][:80]
        why = f"the heading {heading!r} may be algbw (size over time) or busbw: write algbw or busbw instead"
        self.draft.note("ambiguous-heading", number, why)
        return None


# --- units -----------------------------------------------------------------------------------------------------------


class _Amount(NamedTuple):
    """A number of a cell in base units, by each of the meanings of its unit, and the error of its last digit."""

    values: tuple[float, ...]
    error: float

    def by(self, meaning: int) -> float:
        return self.values[min(meaning, len(self.values) - 1)]


class _Units:
    """The meaning of every unit of a table: which of the ``factors`` of its column.

    size: the column of the size; None if its unit is not known, which a note of the draft then says
    """

    def __init__(self, table: Table, size: int, at: Mapping[str, int]) -> None:
        self.table, self.usual = table, table.rccl
        self.size: int | None = size
        rows = [cells for _, cells in table.rows]
        known = self._agreeing(rows, size, at.get("time"), at.get("algbw"))
        of_size, of_rate = ({pair[which] for pair in known} for which in (0, 1))
        self.size_meaning = self._only(of_size, [self._amount(size, row) for row in rows])
        self.rate_meaning = of_rate.pop() if len(of_rate) == 1 else None
        self.like_algbw = table.columns[at["algbw"]].factors if "algbw" in at else None
        sizes = f"sizes such as {rows[0][size][:40]!r} below {table.header[size][:80]!r}"
        if self.size_meaning is None:
            why = f"{sizes} may be powers of 1000 or of 1024: write them in bytes, or with KiB, MiB or GiB"
        elif self._is_too_fast(rows, size, [at[name] for name in RATES if name in at]):
            why = f"{sizes} have no unit, and bytes would take less than 10 ns: write the unit, such as size (MiB)"
        else:
            return
        self.size = None
        table.draft.note("ambiguous-heading", table.line, why)

    def _is_too_fast(self, rows: list[list[str]], size: int, rates: Sequence[int]) -> bool:
        """Whether sizes without a unit are too small for their rates, so that they are no bytes."""
        pairs = ((self._amount(size, row), self._amount(at, row)) for row in rows for at in rates)
        return not self.table.columns[size].factors and any(
            one.by(0) < two.by(0) * _LEAST_SECONDS for one, two in pairs if one is not None and two is not None
        )

    def sized(self, cells: list[str]) -> str | None:
        """The size of a row in bytes."""
        read_size = None if self.size is None else self._amount(self.size, cells)
        return None if read_size is None else str(round(read_size.by(self.size_meaning or 0)))

    def of(self, at: int, cell: str) -> float | None:
        """The number of a cell in base units; None if it has none, or no known unit."""
        parsed, factor = amount(cell, whole=False), self.factor(at, cell)
        return None if parsed is None or factor is None else scaled(parsed[0], factor)

    def factor(self, at: int, cell: str) -> float | None:
        """The base units in a unit of a cell; None and a note if it is unknown."""
        entry, parsed = self.table.columns[at], amount(cell, whole=False)
        known = factors(entry.name or "", parsed[1]) if parsed is not None and parsed[1] else entry.factors
        if not known and self.usual and parsed is not None and not parsed[1]:
            known = (_USUAL.get(entry.name or "", 1e9),)
        meaning = self.rate_meaning if entry.factors == self.like_algbw else None
        if len(known) == 1 or (known and meaning is not None):
            return known[min(meaning or 0, len(known) - 1)]
        if parsed is not None or not entry.factors:
            self._unknown(entry, several=bool(known))
        return None

    def _unknown(self, entry: Column, *, several: bool) -> None:
        heading = repr(entry.heading[:80])
        if several:
            why = f"the rates below {heading} may be bytes or bits: write GB/s or Gb/s"
        else:
            example = "time (us)" if entry.name == "time" else f"{entry.name} (GB/s)"
            why = f"the heading {heading} has no known unit: write it as {example!r}"
        self.table.draft.note("ambiguous-heading" if several else "no-unit", self.table.line, why)

    def _amount(self, at: int, cells: list[str]) -> _Amount | None:
        entry = self.table.columns[at]
        name = entry.name or ""
        parsed = amount(cells[at], whole=name == "size")
        if parsed is None:
            return None
        known = factors(name, parsed[1]) if parsed[1] else entry.factors or (_USUAL.get(name, 1e9),)
        if not known:
            return None
        digits = re.sub(r"[eE].*", "", cells[at])
        unit = 10.0 ** -len(re.sub(r"\D", "", digits.partition(".")[2]))
        error = 0.0 if name == "size" and not parsed[1] and "." not in digits else unit / 2
        return _Amount(tuple(parsed[0] * factor for factor in known), error / parsed[0] if parsed[0] else 1.0)

    def _agreeing(
        self, rows: list[list[str]], size: int, time: int | None, algbw: int | None
    ) -> list[tuple[int, int]]:
        """The meanings of size and algbw with which algbw is size over time; all of them where nothing says so.

        Numbers without a unit are taken to be microseconds and GB/s if they agree so.
        """
        everything = list(product((0, 1), (0, 1)))
        if time is None or algbw is None:
            return everything
        candidates = [tuple(self._amount(at, row) for at in (size, time, algbw)) for row in rows]
        known = [
            (one, two, three)
            for one, two, three in candidates
            if one is not None and two is not None and three is not None and one.error + two.error + three.error < _SURE
        ]
        if not known:
            return everything
        agreeing = [
            (of_size, of_rate)
            for of_size, of_rate in everything
            if all(
                abs(one.by(of_size) / two.by(0) / three.by(of_rate) - 1)
                <= one.error + two.error + three.error + _AGREES
                for one, two, three in known
                if two.by(0) and three.by(of_rate)
            )
        ]
        self.usual = self.usual or bool(agreeing)
        return agreeing

    def _only(self, meanings: set[int], sizes: Sequence[_Amount | None]) -> int | None:
        """The one meaning of the sizes that is left; None if there are two.

        Sizes that double across a unit (512 MB, 1 GB) are powers of 1024. Sizes that are powers of two only after
        rounding (8.4 MB, 67.1 MB) are powers of 1000.
        """
        several = [size for size in sizes if size is not None and len(size.values) > 1]
        if not several:
            return 0
        if len(meanings) == 1:
            return next(iter(meanings))
        scales = {round(size.values[1] / size.values[0], 3) for size in several}
        binary = all(_is_power(size.values[1], 0.0) for size in several)
        decimal = all(_is_power(size.values[0], size.error) for size in several)
        if binary and (len(scales) > 1 or any(size is not None and len(size.values) == 1 for size in sizes)):
            return 1
        return 0 if decimal and not binary and max(size.error for size in several) < _SURE else None


def _is_power(size: float, error: float) -> bool:
    """Whether a size is a power of two, up to its relative ``error``."""
    return size >= 1 and abs(size / 2.0 ** round(log2(size)) - 1) <= error


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
