"""Reader of the text output of nccl-tests and rccl-tests, from their first 2.x to 2.20.

Sources: ``src/common.cu`` and ``src/util.cu`` (``writeResultHeader``, ``writeBenchmarkLineBody``) of NVIDIA/nccl-tests
and ROCm/rccl-tests. A row is printed in several parts; NCCL and the launcher print between and inside them.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from math import prod
from typing import Final, NamedTuple

from msgspec.structs import replace

from busbw.errors import LogError
from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.launched import launched
from busbw_analysis.data.readers.lines import RATES, SECONDS, Line, number, rest, scaled, verdict, whole
from busbw_analysis.data.readers.log import Place
from busbw_analysis.data.readers.progress import FIRST_CALL, SET_UP

SIGN: Final = re.compile(
    rb"nThread \d+ nGpus|(?:size|bytes)[ \t]+(?:count|N)[ \t]+(?:type[ \t]+[^\n]{0,60})?time[ \t]+algbw"
    rb"|Collective test starting|Avg bus bandwidth +:"
    rb"|(?m:^[ \t]*\d+[ \t]+\d+[ \t]+[a-z]\w+(?:[ \t]+[a-z]+)?(?:[ \t]+-?\d+)?"
    rb"(?:[ \t]+(?:[\d.]+(?:e[+-]\d+)?|N/A)){4,}\s*$)"
)
_RANK: Final = re.compile(
    r"\bRank\s+(?P<rank>\d{1,9})\s+(?:Group\s+(?P<group>\d{1,9})\s+)?(?:Pid\s+(?P<pid>\d{1,9})\s+)?on\s+(?P<host>\S.{0,254}?)"
    r"\s+device\s+(?P<device>\d{1,9})(?:\s+\[(?P<bus_id>[^\]]*)\])?\s*(?P<name>.*)"
)
_TORN: Final = re.compile(r"Rank\s+\d+\s(?!.*\sdevice\s+\d)")
_SETTINGS: Final = re.compile(
    r"\bnThread (\d+) nGpus (\d+) (?:minBytes \d+ maxBytes (\d{1,18}) step: (\d{1,18})\((factor|bytes)\))?"
)
_VERSION: Final = re.compile(r"\b[nr]ccl-tests:? [Vv]ersion (\S+)(?:.*library=(\d+))?")
_STARTING: Final = re.compile(r"Collective test starting: (\S+)")
_PERF: Final = re.compile(r"\b([a-z]+(?:_[a-z]+)*?)_perf(?:_mpi)?\b")
_COMMAND: Final = re.compile(r"\b[a-z_]+_perf(?:_mpi)?\b(?=.* -\w)")
_OPTIONS: Final = tuple(
    re.compile(rf"(?<!\S)(?:{options})(\d{{1,6}})\b") for options in (r"-g\s*|--ngpus\s+", r"-t\s*|--nthreads\s+")
)
"""How many GPUs a thread has, and a process threads."""
_LAUNCHED: Final = re.compile(r"\b(?:mpirun|mpiexec|srun|torchrun)\b")
_SUMMARY: Final = re.compile(r"(Out of bounds values|Avg bus bandwidth)\s*:\s*(\S+)\s*(\w*)")
_NAMES: Final = {"type": "dtype", "bytes": "size", "N": "count", "op": "redop", "res": "error"}
_OLD_TIME: Final = "ms"
"""Unit of times in tables up to March 2019, which print no units."""
_TIMES: Final = frozenset({"time", "cputime"})
_LAST: Final = frozenset({"timestamp", "#iters"})
_PLACEHOLDER: Final = re.compile(r"[Xx]{2,}(?:\.[Xx]+)?|\?+|<[^>]*>|\.\.\.")
"""Placeholders for numbers in documentation."""
_TIMED: Final = ("time", "algbw", "busbw")
_ROOT: Final = re.compile(r"-?\d+")
_GROUPS: Final = ((2, 4), (2, 3), (1, 4), (1, 3))
"""Groups of times in a row, and their columns, the likeliest first."""
_LONGEST_COMMAND: Final = 4000
_LEAST_WORDS: Final = 6
_REST: Final = re.compile(r"\.\d")
"""The rest of a number, whose first digits somebody parted from it."""
_DIGITS: Final = 0.02
_TWO_DECIMALS: Final = 0.0051e9
"""Errors of size over time as a rate: relative, by the digits of a time, and in B/s, by those of a rate."""
_PLACE: Final = re.compile(r"(?:out-of|in)-place")
_USED: Final = frozenset({"time", "algbw", "busbw", "#wrong"})


class Columns(NamedTuple):
    """The columns of a table, from its header.

    base: columns before the times
    groups: columns of every group of times, such as out of place and in place
    last: columns after the times
    places: whether each group is in place (None: unknown)
    time_unit: a key of ``SECONDS``
    """

    base: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]
    last: tuple[str, ...]
    places: tuple[bool | None, ...]
    time_unit: str

    @property
    def width(self) -> int:
        """Number of words in a row; a timestamp has two."""
        return len(self.base) + sum(map(len, self.groups)) + len(self.last) + ("timestamp" in self.last)


def read(draft: Draft, lines: Iterable[str]) -> None:
    """The tables of the log. Raises LogError if it mixes several jobs."""
    reader = _Reader(draft)
    for line in draft.scan(lines):
        reader.take(line)
    reader.close()
    listed, ends = len(draft.places), draft.progress.phase is SET_UP and draft.progress.failure() is None
    if not draft.tables and ends and not draft.error and (reader.torn or 0 < listed < (reader.started or 0)):
        of = f" {listed} of {reader.started}" if reader.started else ""
        draft.note("list-cut", reader.torn or draft.line, f"the paste ends in the list of{of} ranks: add what follows")
    if not draft.tables and reader.summary:
        draft.progress.phase = None  # the rows were left out of the paste
        draft.note("not-a-number", reader.summary, "only its summary is there, an average of all sizes: add the rows")


class _Reader:
    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.columns: Columns | None = None
        self.place_order: tuple[bool, ...] = ()
        self.part: list[str] = []
        self.continued = ""
        """Lines before this one that end in a backslash, as commands of several lines do."""
        self.part_line = 0
        self.op_hint: str | None = None
        self.labels: set[str | None] = set()
        self.titled = self.done = self.doubled = self.repeated = False
        self.headed = True
        self.cases: set[tuple[str, ...]] = set()
        self.time_unit, self.rate_unit = "us", "GB/s"
        self.started: int | None = None
        """Ranks that the command line starts; None: it does not say."""
        self.announced: tuple[int, int, str] | None = None
        """Largest size, step, and whether the step is a factor or bytes, as the tool announces them."""
        self.largest = self.per_process = self.summary = 0
        self.torn = 0
        """Line of the list of ranks that is cut; the tool prints the list at once."""

    def take(self, line: Line) -> None:
        """Process one line: a row, a part of a row, a heading, or anything else."""
        text = line.text.lstrip("# \t")
        words = text.split()
        if not words or (line.text.lstrip()[:1] != "#" and self._row(line, words)):
            return
        first = text[:1]
        if first == "(" and self.columns is not None and not self.draft.rows:
            self._units(text)
        elif first in "Rr" and (match := _RANK.match(text)) is not None:
            self._rank(line, match)
        elif _TORN.match(text) is not None and self.draft.places:
            self.torn = line.number
        elif (head := _columns(words, self.place_order)) is not None:
            self._head(line, head)
        else:
            self._other(line, text)

    def _row(self, line: Line, words: list[str]) -> bool:
        """Process a line that may be a row or a part of one; return whether it was."""
        if self.columns is None and not self._without_header(line, words):
            return False
        if self.columns is None:
            return True
        # busbw's own export writes N/A for an unknown number of elements.
        counts = [whole(word) for word in words[:2] if word != "N/A"]
        begins = words[2:] and (words[2][:1].isalpha() or ("dtype" not in self.columns.base and words[1].isdecimal()))
        if words[0] != "N/A" and begins and None not in counts:
            self.cut()
            self.part, self.part_line = words, line.number
            self.largest = max(self.largest, counts[0] or 0)
        elif self.part and all(map(_is_cell, words)):
            self.part = [*self.part, *words]
        elif words[0] == "...":
            self.draft.note("shortened", line.number, "rows were removed from the log")
            return True
        else:
            return False
        missing = self.columns.width - len(self.part)
        blank = missing in {0, 1} and self._fill(self.columns)
        if missing < blank:
            self.draft.note("extra-words", line.number, "a row with more words than its header has columns is ignored")
            self.part = []
        elif missing == blank:
            self.labels |= {line.label} - {None}
            if len(self.labels) > 1:
                self._interleaved(line.number, "two ranks print rows")
            self._add(self.columns, self.part, self.part_line)
            self.part = []
        return True

    def _without_header(self, line: Line, words: list[str]) -> bool:
        """Whether ``words`` are a row, of which no header names the columns; they are known if they leave no doubt."""
        counts = [whole(word) for word in words[:2]]
        if len(words) <= _LEAST_WORDS or None in counts or not words[2][:1].isalpha():
            return False
        if self.done and self.repeated:
            self._interleaved(line.number, "rows appear twice, and go on below a summary")
        if (columns := _columns_of_row(words)) is not None:
            self._head(line, columns)
            self.headed = False
        else:
            header = f"# {' '.join(_header(words))}"
            why = f"rows without a header that names their columns; put it above them, such as: {header}"
            self.draft.note("no-header", line.number, why)
        return True

    def _fill(self, columns: Columns) -> bool:
        """Add the redop to a row if it is blank there; return whether it was."""
        at = columns.base.index("redop") if "redop" in columns.base else len(self.part)
        blank = number("".join(self.part[at : at + 1])) is not None
        if blank:
            self.part.insert(at, "")
        return blank

    def cut(self) -> None:
        """Discard an incomplete row, but for its first results if they are whole."""
        columns = self.columns
        if self.part and columns is not None and columns.groups[0][-1] not in _TIMED:
            self._fill(columns)
            first = columns._replace(groups=columns.groups[:1], last=(), places=columns.places[:1])
            root = dict(zip(first.base, self.part, strict=False)).get("root", "0")
            if len(self.part) >= first.width and _ROOT.fullmatch(root):
                self._add(first, self.part[: first.width], self.part_line)
                self.part = []
        if self.part:
            self.draft.note("truncated-row", self.part_line, "a row that is cut off is ignored")
            self.part = []

    def _add(self, columns: Columns, words: list[str], line: int) -> None:
        case = tuple(words[: len(columns.base)])
        redop = dict(zip(columns.base, words, strict=False)).get("redop", "")
        results = words[len(case) : len(case) + sum(map(len, columns.groups))]
        are_cells = all(_is_cell(word) or _PLACEHOLDER.fullmatch(word) for word in results)
        if not are_cells or any(map(_REST.match, words)) or not (redop in {"", "N/A"} or redop.isalpha()):
            self.draft.note(
                "truncated-row", line, "a row with a word that is no number, or a space inside one, is ignored"
            )
            return
        self.repeated = not self.headed and (self.repeated or case in self.cases)
        if self.doubled and case in self.cases:
            self._interleaved(line, "every row appears twice below two headers")
        self.cases.add(case)
        base = dict(zip(columns.base, words, strict=False))
        at = len(columns.base)
        after = words[at + sum(map(len, columns.groups)) :]
        if "#iters" in columns.last:
            base["iterations"] = after[-1]
        for group, place in zip(columns.groups, columns.places, strict=True):
            cells = dict(zip(group, words[at : at + len(group)], strict=True))
            at += len(group)
            if any(map(_PLACEHOLDER.fullmatch, cells.values())):
                self.draft.note("placeholder", line, "a row has placeholders instead of numbers")
                continue
            times = {name: number(cell) for name, cell in cells.items()}
            rate = RATES[self.rate_unit]
            self.draft.collective(
                line,
                self.op_hint,
                base,
                time_seconds=scaled(times.get("time"), SECONDS[self.time_unit]),
                algbw=scaled(times.get("algbw"), rate),
                cpu_time="cputime" in cells,
                busbw=scaled(times.get("busbw"), rate),
                in_place=place,
                statistic="mean",
                others=rest(times, _USED),
                **(verdict(cells["#wrong"]) if "#wrong" in cells else {}),
            )

    def _head(self, line: Line, columns: Columns) -> None:
        self.doubled = self.columns is not None and not self.draft.rows and not self.titled
        self.cases.clear()
        self.repeated = False
        self._finish()
        self.columns, self.titled, self.place_order, self.headed = columns, False, (), True
        self.time_unit, self.rate_unit, self.labels = columns.time_unit, "GB/s", set()
        self.draft.line = line.number
        self.draft.progress.reach(line.number, FIRST_CALL, line.text)

    def _units(self, text: str) -> None:
        for unit in re.findall(r"\(([^)]*)\)", text):
            if unit in SECONDS:
                self.time_unit = unit
            elif unit in RATES:
                self.rate_unit = unit

    def _rank(self, line: Line, match: re.Match[str]) -> None:
        self._title(line)
        self.draft.progress.reach(line.number, SET_UP, line.text)
        if any(place.rank == int(match["rank"]) for place in self.draft.places[:1]):
            self._interleaved(line.number, f"rank {match['rank']} is listed twice")
        self.draft.place(**match.groupdict())

    def _title(self, line: Line) -> None:
        """Process a line that belongs to the heading of a job."""
        self._finish()
        if not self.titled:
            self.titled = True
            self.draft.line = line.number

    def _other(self, line: Line, text: str) -> None:
        """Process a line that is neither row nor header."""
        text, self.continued = self.continued + text, ""
        if text.endswith("\\"):
            self.continued = f"{text[-_LONGEST_COMMAND:-1].rstrip()} "
            return
        if (match := _SETTINGS.search(text)) is not None or text.startswith("Using devices"):
            self._title(line)
            self.draft.places.clear()
            self.draft.progress.reach(line.number, SET_UP, line.text)
            if match is not None:
                self.per_process = int(match[1]) * int(match[2])
                self.announced = None if match[3] is None else (int(match[3]), int(match[4]), match[5])
        elif (match := _STARTING.search(text)) is not None:
            self._title(line)
            self.op_hint = match[1].partition("_perf")[0]
        elif (match := _VERSION.search(text)) is not None:
            self._title(line)
            self.draft.tool = "rccl-tests" if "rccl-tests" in match[0] else "nccl-tests"
            self.draft.facts["tool_version"] = match[1]
            self.draft.facts["library_version"] = match[2] or self.draft.facts.get("library_version")
        elif (match := _SUMMARY.search(text)) is not None:
            self._summary(line, match)
        elif "-place" in text and len(order := _PLACE.findall(text)) == text.count("-place"):
            self.place_order += tuple(word == "in-place" for word in order)  # a mail may break the line
        elif "_perf" in text and "concluded" not in text:
            self._command(text)

    def _command(self, text: str) -> None:
        """Process a line that names one program, possibly with its arguments."""
        program = _COMMAND.search(text)
        is_prose = program is None and len(text.split()) >= _LEAST_WORDS
        if len(names := set(_PERF.findall(text))) == 1 and not is_prose:
            if self.draft.rows:
                self.close()
            self.op_hint = names.pop()
            if program is not None:
                self.draft.facts["command"] = text.strip()[:1000]
                self._started(text[: program.start()], text[program.end() :].partition("|")[0])

    def _started(self, launcher: str, tool: str) -> None:
        """Record how many ranks and hosts a command line starts, if it says both processes and GPUs of each.

        launcher, tool: what stands before and behind the name of the program
        """
        launch = launched(launcher)
        processes = launch.ranks
        if (hosts := launch.hosts if processes is None else launch.even_hosts) is not None:
            self.draft.facts["hosts"] = hosts
        if processes or not _LAUNCHED.search(launcher):
            counts = [int(match[1]) for sign in _OPTIONS if (match := sign.search(tool)) is not None]
            self.started = prod(counts, start=processes or 1)

    def _summary(self, line: Line, match: re.Match[str]) -> None:
        self.cut()
        self.summary = line.number
        value = number(match[2])
        if value is not None and match[1].startswith("Out"):
            self.draft.facts["out_of_bounds"] = int(value)
            if value:
                program = "the tool" if self.op_hint is None else f"{self.op_hint}_perf"
                self.draft.note("wrong-results", line.number, f"{program} reported {value:.0f} results out of bounds")

        self.done, self.columns = True, None

    def _finish(self) -> None:
        """Finish the current table, if it has rows."""
        self.cut()
        if self.draft.rows:
            self.close()

    def close(self) -> None:
        """Finish the current table."""
        self.cut()
        if self.draft.rows and not self.done and self.headed:
            self.draft.note("unfinished", self.draft.rows[-1]["line"], "a table ends without the tool's summary")
        self._ranks()
        has_all = not self.headed or self._has_largest()  # without a header: a part of a log
        self.draft.end(complete=True if self.done else None if has_all else False)
        self.columns, self.op_hint, self.titled, self.done = None, None, False, False
        self.announced, self.largest, self.per_process = None, 0, 0

    def _has_largest(self) -> bool:
        """Whether the row of the largest size is there, or begun; also if no size was announced."""
        if self.announced is None:
            return True
        most, step, kind = self.announced
        return (self.largest * step if kind == "factor" else self.largest + step) > most

    def _ranks(self) -> None:
        """Record the ranks of a group: those listed, and those whose lines were removed from the log."""
        places = self.draft.places
        if not places or not self.draft.rows:
            if self.started is not None:
                self.draft.facts.setdefault("ranks", self.started)
            return
        listed = len(places)
        groups = Counter(place.group for place in places)
        sizes = set(groups.values())
        last = max(place.rank or 0 for place in places) + 1
        ranks: int | None = max(last, self.per_process)
        if self.per_process == ranks:
            self.draft.facts["hosts"] = 1
        places[:] = _between(places)
        if listed != ranks:
            self.draft.note("shortened", self.draft.line, f"{listed} of at least {ranks} ranks are listed")
        if len(groups) > 1:
            self.draft.facts["groups"] = len(groups)
            ranks = sizes.pop() if len(sizes) == 1 and listed == ranks else None
        self.draft.facts["ranks"] = ranks

    def _interleaved(self, line: int, why: str) -> None:
        message = f"{self.draft.source}:{line}: {why}: output of several jobs, or of ranks without MPI, is mixed"
        message += ": build nccl-tests with MPI=1, or give each job a file"
        raise LogError(message, code="interleaved-logs")


def _between(places: list[Place]) -> Iterator[Place]:
    """The places with those that a paste leaves out between the first and last device of a host."""
    yield from places[:1]
    for first, last in pairwise(places):
        lacking = (last.rank or 0) - (first.rank or 0)
        if first.host == last.host and first.name == last.name and lacking == (last.device or 0) - (first.device or 0):
            between = replace(first, pid=None, bus_id=None)
            for more in range(1, lacking):
                yield replace(between, rank=(first.rank or 0) + more, device=(first.device or 0) + more)
        yield last


def _columns(words: list[str], places: tuple[bool, ...]) -> Columns | None:
    """The columns of a header line; None for any other line."""
    names = [_NAMES.get(word, word) for word in words]
    if names[:2] != ["size", "count"] or not any(name in _TIMES for name in names):
        return None
    starts = [at for at, name in enumerate(names) if name in _TIMES]
    stop = next((at for at, name in enumerate(names) if name in _LAST), len(names))
    groups = tuple(tuple(names[at:to]) for at, to in zip(starts, [*starts[1:], stop], strict=True))
    if any(len(set(group)) < len(group) for group in groups):
        return None
    in_place: tuple[bool | None, ...] = (
        places if len(places) == len(groups) else (False, True) if len(groups) == 2 else ()
    )
    unit = _OLD_TIME if "N" in words else "us"
    return Columns(tuple(names[: starts[0]]), groups, tuple(names[stop:]), in_place or (None,) * len(groups), unit)


def _columns_of_row(words: list[str]) -> Columns | None:
    """The columns of a row without a header; None unless its words leave one possibility.

    Rows begin with size, count and type. Up to 2.9 only operations that reduce have a redop, and only those with a root
    a root; the last column is then the error.
    """
    base = _base_of_row(words)
    for count, width in _GROUPS:
        groups = [words[at : at + width] for at in range(len(base), len(words), width)]
        unit = next(
            (unit for unit in ("us", _OLD_TIME) if all(_agree(words[0], group, unit) for group in groups)), None
        )
        if len(words) == len(base) + count * width and unit is not None:
            last = "#wrong" if all(_is_count(group[-1]) for group in groups) else "error"
            names = (*_TIMED, *((last,) if width > len(_TIMED) else ()))
            return Columns(tuple(base), (names,) * count, (), (False, True) if count == 2 else (None,), unit)
    return None


def _base_of_row(words: list[str]) -> list[str]:
    base = ["size", "count", "dtype"]
    base += ["redop"] if words[len(base)].isalpha() else []
    return base + (["root"] if _ROOT.fullmatch(words[len(base)]) else [])


def _header(words: list[str]) -> list[str]:
    """A header with as many columns as a row has words."""
    base = _base_of_row(words)
    fits = (shape for shape in _GROUPS if shape[0] * shape[1] == len(words) - len(base))
    count, width = next(fits, _GROUPS[0])
    last = "#wrong" if _is_count(words[-1]) else "error"
    return [*base, *(*_TIMED, last)[:width] * count]


def _is_cell(word: str) -> bool:
    return number(word) is not None or word.lower() in {"n/a", "inf", "nan", "-nan"}


def _is_count(word: str) -> bool:
    return word.isdecimal() or word == "N/A"


def _agree(size: str, group: list[str], unit: str) -> bool:
    """Whether a group begins with a time in this unit, algbw, which is the size over it, and busbw."""
    numbers = [number(word) for word in group[: len(_TIMED)]]
    if len(numbers) < len(_TIMED) or None in numbers or not numbers[0]:
        return False
    time, algbw = numbers[0], numbers[1] or 0.0
    rate = (whole(size) or 0) / (time * SECONDS[unit])
    return abs(algbw * 1e9 - rate) <= _TWO_DECIMALS + _DIGITS * rate
