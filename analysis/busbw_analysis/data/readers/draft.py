"""The state of a log while it is read; all readers fill a ``Draft`` and return its log."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn

import msgspec

from busbw.errors import LogError
from busbw.runs.run import LogNote
from busbw.units import LARGEST_SIZE
from busbw_analysis.data.readers import hosts
from busbw_analysis.data.readers.deduce import disagreements
from busbw_analysis.data.readers.failures import explained, may_fail
from busbw_analysis.data.readers.hosts import Topology, Transports
from busbw_analysis.data.readers.json_text import decoded, text
from busbw_analysis.data.readers.lines import (
    Line,
    are_headings,
    clean,
    dtype_named,
    number,
    op_named,
    redop_named,
    whole,
)
from busbw_analysis.data.readers.literals import words_of
from busbw_analysis.data.readers.log import Aggregate, ForeignLog, Place, Table
from busbw_analysis.data.readers.nccl_info import (
    ACTION,
    EVIDENCE,
    FAULTS,
    HARMLESS,
    LIKELY,
    OF_NETWORKS,
    OF_PORTS,
    UNUSUAL,
    Paths,
)
from busbw_analysis.data.readers.openmpi import Help
from busbw_analysis.data.readers.progress import FIRST_CALL_OF_OTHERS, Progress

_QUOTED: Final = 200
_STRONG: Final = re.compile(
    r"Last NCCL warning\(error\) log entry .+"
    r"|NCCL WARN .+|Test (?:\w+ ?failure|timeout).*|# error: .+|NCCL [Ee]rror.*|nccl\w*Error.*|\[?CUDA_ERROR_.+"
    r"|Cuda failure .*'.+'"
)
_CONSEQUENCE: Final = re.compile(r"unhandled \w+ error|internal error|nccl\w*Error|Call to CUDA function failed")
"""An error that says only that there was one before."""
_PROSE: Final = r"(?:[A-Z][\w',; -]{10,}[.?!]+\s*)+$"
"""Sentences of the person who pasted the log."""
_WEAK: Final = re.compile(
    rf"((?!{_PROSE}).*\b(?:ERROR|FATAL)\b.*"
    r"|(?:srun|slurmstepd|mpirun|mpiexec|orted): error.*|.*(?:Segmentation fault|MPI_ABORT).*"
    r"|.*(?:Assertion failed|Invalid value when checking|Couldn't |Failed (?:to|status) |command not found).*"
    r"|.*(?:CANCELLED AT|noticed that process|exited (?:on|with)(?! (?:exit )?(?:code|status):? 0\b)).*)"
)
_MAYBE: Final = words_of((_STRONG.pattern, _WEAK.pattern))
_GOES_ON: Final = re.compile(
    r"\bras/\w+\.cc:\d+ NCCL WARN|NCCL WARN (?:Missing \"|.{0,99}SHARP (?!\(NVLS)|Cannot initialize CollNet)"
    r"|NCCL WARN .{0,200}?(?:failed to IPC register userbuff"
    r"|async event ?: (?:client reregistration|port active|(?:[LG]ID|P_Key|SM)\b.* change))"
)
"""Warnings of NCCL after which jobs run as well."""
_FATAL: Final = ("placeholder", "no-header", "list-cut", "ambiguous-heading", "no-unit", "truncated-row")
"""Codes of notes that explain why there is no result."""
_REASONS: Final = ("not-a-number", "waived", "failed-test")
"""Codes of notes that say why there is no row."""
_GAP: Final = re.compile(r"\W{0,9}(?:\.\.\.|\[?\W*(?:\d+ )?(?:lines|rows) (?:truncated|omitted|removed)).{0,60}")
_LEAST_RATE: Final = 0.1e9
_RESULTS: Final = ("time_seconds", "rate", "algbw", "busbw")
_LASTING: Final = ("tool_version", "library_version")
_LIBRARY: Final = re.compile(r"\b[NR]CCL version (\d[\w.+-]*)|^[NR]CCL version\s*:\s*(\S+)")
_RANKS: Final = re.compile(r" nranks (\d{1,7}) (?:total |.*(?:Init START|(?:Init|Destroy) COMPLETE))")
_COMMAND: Final = re.compile(
    r"(?:^|[\s/$>#])(?:(?:ib_[a-z]+|raw_ethernet)_(?:bw|lat)|nvbandwidth|bandwidthTest|osu_\w+|IMB-\w+)"
    r"(?:\s+(?!Version)|$)"
)
"""A command line of a tool whose reader needs nothing else of it."""
_EXTREME: Final = re.compile(r"(?:t_)?(min|avg|max)(?![a-z])", re.IGNORECASE)
_SPACED: Final = re.compile(r"\d{1,3}(?: \d{3}){2,}")
"""A line that is one number with spaces between thousands."""
_WHOLE: Final = re.compile(r"-?\d+")
_COUNTS: Final = frozenset(
    {"Size", "Iterations", "#bytes", "#iterations", "#repetitions", "Block Size (B)", "Batch Size"}
)
_ROUNDED: Final = 1.01
_REST: Final = re.compile(r"0\d|\.\d")
"""The rest of a number, behind a space between thousands or before a point."""
_NUMBERS: Final = frozenset({"rank", "group", "pid", "device"})
_WORDS: Final[Mapping[str, Callable[[str | None], object]]] = {
    **dict.fromkeys(("count", "root", "iterations"), whole),
    "dtype": dtype_named,
    "redop": redop_named,
}


class Draft:
    """A log while it is read: the facts and rows of the current table, finished tables, notes and the last error."""

    def __init__(self, tool: str, source: str) -> None:
        self.tool, self.source = tool, source
        self.facts: dict[str, Any] = {}
        self.places: list[Place] = []
        self.names: Sequence[str] = ()
        self.rows: list[dict[str, Any]] = []
        self.tables: list[Table] = []
        self.line = 1
        self.nranks: set[int] = set()
        self.paths, self.progress, self.transports = Paths(), Progress(), Transports()
        self.topology, self.help = Topology(), Help()
        self._notes: dict[str, tuple[LogNote, int]] = {}
        self.error: str | None = None
        self._quotes_tool = False
        self._error_line: int | None = None
        self._gap = False
        """Whether lines were left out below the last heading."""
        self._next_version: str | None = None
        self._is_last_error = False
        self._next_command: str | None = None

    def note(self, code: str, line: int | None, text: str) -> None:
        """Keep the first note of every code and count the others."""
        first, seen = self._notes.get(code, (LogNote(code=code, line=line, text=text), 0))
        self._notes[code] = first, seen + 1

    def scan(self, lines: Iterable[str]) -> Iterator[Line]:
        """Yield the cleaned lines, after recording the versions, ranks and errors that they contain."""
        for line in clean(lines):
            self._gap = self._gap or _GAP.fullmatch(line.text) is not None
            self._scan_line(line)
            yield line

    def _scan_line(self, line: Line) -> None:
        """Record versions, ranks and errors that NCCL, a launcher or the tool prints."""
        text = line.nccl or line.text
        if "CCL version" in text and (match := _LIBRARY.search(text)) is not None:
            version = ("RCCL " if "RCCL" in match[0] else "") + (match[1] or match[2])
            # Another version below the rows is that of the next table.
            known = self.facts.setdefault("library_version", version) if self.rows else version
            self._next_version = version if known != version else None
            self.facts["library_version"] = known
        elif line.nccl is not None and " nranks " in text and (match := _RANKS.search(text)) is not None:
            self.nranks.add(int(match[1]))
        elif _COMMAND.search(text) is not None:
            self.command(text)
        if line.nccl is None:
            for part in (self.transports, self.topology, self.help):
                part.take(line.number, text)
        likely = LIKELY.search(text) or (line.nccl is None and hosts.LIKELY.search(text))
        codes = self._take_evidence(line.number, text) if likely else frozenset()
        if line.nccl is not None and "NCCL INFO" in line.nccl:
            if not self.rows:
                self.progress.take(line.number, line.nccl)
            return
        if HARMLESS.isdisjoint(codes) and _GOES_ON.search(text) is None:
            self._take_error(line, text)

    def _take_error(self, line: Line, text: str) -> None:
        """Record what a line says of an error."""
        if self._is_last_error and text.strip():
            self.fail(text, line.number)
        self._is_last_error = text.strip() == "Last error:"
        if not self.rows and (self.progress.in_summary or may_fail(text)):
            self.progress.fail(line.number, text)
        if any(word in text for word in _MAYBE):
            strong = _STRONG.search(text)
            if strong is not None and text.startswith("raise "):  # the program's text in a traceback
                return
            if strong is not None and not (self._quotes_tool and _CONSEQUENCE.search(text)):
                self.fail(strong[0], line.number)
            elif (
                strong is None
                and _WEAK.match(text) is not None
                and not self._quotes_tool
                and (self.error is None or not explained(self.error) or explained(text))
            ):
                self.error, self._error_line = text.strip().removesuffix(", thus causing")[:_QUOTED], line.number

    def _take_evidence(self, line: int, text: str) -> frozenset[str]:
        """Note what a line says of the way that data take; return the codes."""
        if hosts.SCHEDULED in text:
            self._notes.pop("pod-unscheduled", None)
        evidence = dict(self.paths.evidence(text))
        for code, meaning in evidence.items():
            self.note(code, line, meaning)
        return frozenset(evidence)

    def command(self, text: str) -> None:
        """Record the command line of this table, or of the next if this has rows."""
        if self.rows:
            self._next_command = text.strip()[:1000]
        else:
            self.facts["command"] = text.strip()[:1000]

    def objects(self, lines: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield line number and object of every line that starts a JSON object; objects may be in a list."""
        for at, line in enumerate(lines, 1):
            text = line.strip().lstrip("[").rstrip(",]").strip()
            try:
                value = decoded(text, 0) if text.startswith("{") else None
            except (ValueError, RecursionError):
                self.note("truncated-row", at, "a line without valid JSON is ignored")
                continue
            if isinstance(value, dict):
                yield at, value

    def place(self, **fields: object) -> None:
        """Add the place of a rank or a GPU, with the fields of ``Place`` as in the log."""
        values = ((name, whole(value) if name in _NUMBERS else text(value)) for name, value in fields.items())
        self.places.append(msgspec.convert(dict(values), Place))

    def fail(self, error: str, line: int | None = None) -> None:
        """Record an error of the tool or NCCL, which takes precedence over errors of others."""
        self.error, self._quotes_tool, self._error_line = error.strip()[:_QUOTED], True, line

    def _downgrade_error(self) -> None:
        """Turn the last error into a warning; nccl-tests ends with what it calls a failure of a test."""
        code, after = "warning", "the tool continued"
        if (self.error or "").startswith("Test "):
            code, after = "failed-test", "a run failed: another than that of the rows, or it failed after them"
        self.note(code, self._error_line, f"{self.error}; {after}")
        self.error, self._quotes_tool = None, False

    def begin(self, line: int) -> None:
        """Start a new table at a heading. Its columns are set as ``names``."""
        self.end()
        self.line, self.names, self._gap = line, (), False

    def add(self, line: int, **fields: object) -> None:
        """Add a row with fields of ``Aggregate``. ``end`` adds the ranks, and S for a size in blocks."""
        results = [value for name in _RESULTS if (value := fields.get(name)) is not None]
        no_time = fields.get("time_seconds") == 0.0
        if not results or no_time or any(isinstance(value, float) and value < 0 for value in results):
            self.note("not-a-number", line, "a row without a time or rate, or with a negative one, is ignored")
        elif self._gap and self._begins_again(line, fields.get("tool_size_bytes")):
            self.note("shortened", line, "rows below lines that were left out are of another table, and are ignored")
        else:
            self.rows.append(fields | {"line": line})

    def _begins_again(self, line: int, size: object) -> bool:
        """Whether a size is not above that of the line before: in place and out of place are on one line."""
        last = self.rows[-1].get("tool_size_bytes") if self.rows and self.rows[-1]["line"] != line else None
        return isinstance(size, int) and isinstance(last, int) and 0 < size <= last

    def collective(
        self,
        line: int,
        tool_op: str | None,
        words: Mapping[str, object],
        *,
        algbw: float | None,
        cpu_time: bool = False,
        **fields: object,
    ) -> None:
        """Add the row of a collective, whose size is S unless ``fields`` has another ``tool_size_is``.

        words: size, count, type, reduction, root and iterations as the tool prints them
        cpu_time: the tool's time is only the time to start a call. The time of the operation is then S over algbw,
            which is printed with two decimals; below 0.1 GB/s it is unknown.
        fields: further fields of ``Aggregate``
        """
        if cpu_time:
            why = "cputime is only the time to start a call; times are computed from algbw if it is at least 0.1 GB/s"
            self.note("cpu-time", line, why)
            if algbw is not None and algbw >= _LEAST_RATE:
                fields |= {"rate": algbw, "messages": 1}
        named = {name: value_of(text(words.get(name))) for name, value_of in _WORDS.items()}
        size = {"tool_size_bytes": whole(words.get("size")), "tool_size_is": "S"}
        fields = {"op": op_named(tool_op or ""), "tool_op": tool_op, "algbw": algbw, **named, **size, **fields}
        self.add(line, **fields)

    def cells(self, line: Line, words: Sequence[str], others: Iterable[str] = ()) -> dict[str, str] | None:
        """The ``words`` of a line by their columns; None if the line is not a row.

        The words of a row are numbers or in ``others``; a comment may follow.
        """
        self.names = () if words[:1] == ["$"] or (self.rows and are_headings(words)) else self.names  # of what follows
        names, allowed = self.names, {"...", *others}
        if names and (any(map(_REST.match, words)) or _SPACED.fullmatch(line.text)):
            self.note("truncated-row", line.number, "a row with a space inside a number is ignored: write 1024")
            return None
        stop = next((at for at, word in enumerate(words) if number(word) is None and word not in allowed), len(words))
        commented = stop == len(names) < len(words) and not words[stop][0].isalnum()
        if not names or not words or words[0] == "..." or (stop < len(words) and not commented):
            if names and len(words) == len(names) and all(word[:1].isdecimal() for word in words):
                self.note(
                    "truncated-row", line.number, f"{words[stop][:40]!r} in a row is no plain number such as 1024.5"
                )
            return None
        if stop == len(names) and _fits(cells := dict(zip(names, words[:stop], strict=True))):
            return cells
        self.note("truncated-row", line.number, "a row that does not fit its header is ignored: paste all of its words")
        return None

    def end(self, **facts: object) -> None:
        """Finish the current table. Versions are kept for the next table; places, settings and rows are not."""
        self.facts.update(facts)
        if self.rows and self.facts.get("complete") and (self.error or "").startswith("NCCL WARN"):
            self._downgrade_error()
        if self.rows:
            nranks = next(iter(self.nranks)) if len(self.nranks) == 1 else None
            ranks = self.facts.setdefault("ranks", nranks)
            rows = tuple(_row(ranks, fields) for fields in self.rows)
            self.tables.append(Table(line=self.line, rows=rows, places=tuple(self.places), **self.facts))
            self.facts = {name: self.facts[name] for name in _LASTING if name in self.facts}
            if self._next_version is not None:
                self.facts["library_version"], self._next_version = self._next_version, None
            if self._next_command is not None:
                self.facts["command"], self._next_command = self._next_command, None
            self.rows, self.places, self.nranks = [], [], set()

    def log(self) -> ForeignLog:
        """Finish and return the log.

        Raises LogError for a log without results; with code ``job-failed`` and the last error if it contains one.
        """
        self.end()
        for code, at, meaning in (*self.transports.evidence(), *self.topology.evidence()):
            self.note(code, at, meaning)
        if not self.tables:
            self._refuse()
        unfinished = any(table.complete is False for table in self.tables)
        if "wrong-results" in self._notes and not (self._quotes_tool or unfinished) and "exit" in (self.error or ""):
            self.error = None  # the exit status of a tool that reported them
        if self.error and self._error_line and not unfinished and self._error_line < self.tables[-1].rows[-1].line:
            self._downgrade_error()
        for note in disagreements(row for table in self.tables for row in table.rows):
            self.note(note.code, note.line, note.text)
        notes = (
            note if seen == 1 else LogNote(code=note.code, line=note.line, text=f"{note.text} ({seen} times)")
            for note, seen in self._notes.values()
        )
        return ForeignLog(
            tool=self.tool,
            source=self.source,
            tables=tuple(self.tables),
            notes=tuple(notes),
            last_error=self.error,
            ports=tuple(self.paths.ports.values()),
        )

    @property
    def _job(self) -> str:
        return "a parallel job" if self.tool == "failed job" else self.tool

    def _told(self) -> tuple[str, str] | None:
        """What to answer if there is no result, and what to do: the gravest fault, or the first fact that healthy jobs
        do not have; of hardware alone any fact.
        """
        return self._fault(UNUSUAL) or (self._fault(ACTION) if self.tool == "hardware" else None)

    def _refuse(self) -> None:
        self.help.close()
        for at, meaning in self.help.said[:1]:
            self.note("mpi-says", at, meaning)
        fatal = [self._notes[code][0] for code in _FATAL if code in self._notes]
        hides = fatal and fatal[0].code != "truncated-row"
        seen = [("Also", self._noted(code)) for code in self._notes if code in EVIDENCE]
        if not hides and (failed := self._failed(seen)) is not None:
            raise failed
        if fatal:
            message = f"{self.source}:{fatal[0].line}: {fatal[0].text}"
            raise LogError(message, code=fatal[0].code)
        self._refuse_without_error()

    def _refuse_without_error(self) -> NoReturn:
        told = self._told()
        if self.names and not self._notes.keys() - EVIDENCE:
            self.progress.reach(self.line, FIRST_CALL_OF_OTHERS, f"the heading {' '.join(self.names)}")
        facts = [*self.progress.facts()]
        codes = [code for code in self._notes if code in EVIDENCE and (told is None or self._noted(code) != told[0])]
        advised = [("Also", f"{self._noted(code)}{self._action(code)}") for code in codes]
        if "library_version" in self.facts:
            facts.insert(0, ("NCCL", str(self.facts["library_version"])))
        of_people = self.tool == "table" and self.progress.phase is None
        end = None if of_people else self.progress.end(self._notes)
        is_word = bool(told and self.help.said) and self.progress.phase is None  # "timeout", of a help message
        if end is not None and self.progress.hangs and not is_word:
            message = f"a log of {self._job} without results: {end.answer}"
            lines = end._replace(fault=self._fault()).lines
            seen = [
                ("Also", noted)
                for code in self._notes
                if code in EVIDENCE and (noted := self._noted(code)) not in lines[0][1]
            ]
            error = LogError(message, [*lines, *facts, *seen], code="hang", log=self.source)
            error.follows = end.follows
            raise error
        reasons = [self._notes[code][0].text for code in _REASONS if code in self._notes]
        if (end is not None and not is_word) or (facts and not reasons):
            where = "" if end is None else f"; {end.answer}"
            more = "add the rows or errors that follow" + ("" if end is None else f"; if it hangs there, {end.action}")
            do = [] if end is None else [("Do", more)]
            message = f"a log of {self._job} without results, an error or a sign of a hang{where}"
            if told is not None:
                message, do = f"{told[0]}; it has no results, and no error{where}", [("Do", f"{told[1]}; {more}")]
            error = LogError(message, [*facts, *advised, *do], code="messages", log=self.source)
            error.follows = 2
            raise error
        if told is not None and not reasons:
            raise LogError(told[0], [("Do", told[1]), *advised], code="messages", log=self.source)
        lacks = "no line has the columns that busbw reads there (docs/logs.md)"
        why = next(
            iter(reasons),
            "it describes hosts or links, and no rates or faults that busbw knows"
            if self.tool == "hardware"
            else lacks,
        )
        name = "a table" if self.tool == "table" else f"a log of {self.tool}"
        raise LogError(f"{self.source}: {name} without results: {why}", [*facts, *advised], code="no-results")

    def _failed(self, seen: Sequence[tuple[str, str]]) -> LogError | None:
        """The error that says how the job failed, with the evidence that was ``seen``; None if nothing says it."""
        if (failed := self.progress.failure()) is not None:
            last = [("Error", self.error)] if self.error and self._error_line else []
            code = "messages" if failed.is_mentioned else "hang" if self.progress.waits else "job-failed"
            lines = failed._replace(fault=(self._fault(OF_PORTS) if failed.network else None) or failed.fault).lines
            others = [line for line in seen if line[1] not in lines[0][1]]
            error = LogError(failed.answer, [*lines, *last, *others], code=code, log=self.source)
            error.follows = failed.follows
            return error
        if self.error is None or (self.tool == "hardware" and self._told() is not None):
            return None
        of = "" if self.tool in {"failed job", "a parallel job"} else f" of {self.tool}"
        when = " before its first result" if of else ""
        message = f"the job{of} failed{when}; its last error: {self.error}"
        fault = self._fault()
        do = [] if fault is None else [("Why", f"perhaps {fault[0]}"), ("Do", fault[1])]
        return LogError(message, [*do, *seen], code="job-failed", log=self.source)

    def _noted(self, code: str) -> str:
        """The text of a note with its line."""
        note, _ = self._notes[code]
        return f"{note.text} (line {note.line})"

    def _action(self, code: str) -> str:
        """What to do about evidence in the log of a job that did not fail."""
        applies = code in ACTION and (code not in OF_NETWORKS or self.progress.is_of_hosts)
        return f": {ACTION[code]}" if applies else ""

    def _fault(self, codes: Iterable[str] = FAULTS) -> tuple[str, str] | None:
        """Text and action of the gravest fault that is evident, of those with these codes."""
        unused = {"port-down"} if self.paths.is_connected else set[str]()
        unused |= set() if self.progress.is_of_hosts else OF_NETWORKS
        found = (code for code in codes if code in self._notes and code not in unused)
        return next(((self._noted(code), ACTION[code]) for code in found), None)


def _fits(cells: Mapping[str, str]) -> bool:
    """Whether counts are whole and an average is between its extremes; elsewhere a word of the row or of its header is
    missing.
    """
    if any(_WHOLE.fullmatch(word) is None for name, word in cells.items() if name in _COUNTS):
        return False
    of_each: dict[str, dict[str, float]] = {}
    for name, word in cells.items():
        if (match := _EXTREME.match(name)) is not None and (value := number(word)) is not None:
            of_each.setdefault(name[match.end() :], {})[match[1].lower()] = value
    known = [each for each in of_each.values() if len(each) == len({"min", "avg", "max"})]
    return all(each["min"] <= each["avg"] * _ROUNDED and each["avg"] <= each["max"] * _ROUNDED for each in known)


def _row(ranks: int | None, fields: dict[str, Any]) -> Aggregate:
    values = {"ranks": ranks} | fields
    size, blocks = values.get("tool_size_bytes"), {"S": 1, "block": values["ranks"]}.get(values.get("tool_size_is", ""))
    if size is not None and blocks is not None and size * blocks <= LARGEST_SIZE:
        values["size_bytes"] = size * blocks
    return Aggregate(**values)
