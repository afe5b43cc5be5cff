"""What a reader has understood so far, and the log that comes of it."""

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from busbw.errors import LogError
from busbw.runs.records import LogNote
from busbw.units import LARGEST_SIZE
from busbw_analysis.data.readers.check import disagreements
from busbw_analysis.data.readers.json_text import decoded, text
from busbw_analysis.data.readers.lines import Line, clean, dtype_named, number, op_named, redop_named, whole
from busbw_analysis.data.readers.log import Aggregate, ForeignLog, Place, Table

_QUOTED: Final = 200
_STRONG: Final = re.compile(
    r"NCCL WARN .+|Test (?:\w+ ?failure|timeout).*|# error: .+|NCCL [Ee]rror.*|nccl\w*Error.*|\[?CUDA_ERROR_.+"
)
_WEAK: Final = re.compile(
    r"(.*\b(?:ERROR|FATAL)\b.*|(?:srun|slurmstepd|mpirun|mpiexec|orted): error.*|.*(?:Segmentation fault|MPI_ABORT).*"
    r"|.*(?:Assertion failed|Invalid value when checking|Couldn't |Failed (?:to|status) |command not found).*"
    r"|.*(?:CANCELLED AT|noticed that process|exited (?:on|with)).*)"
)
_MAYBE: Final = re.compile(
    "rror|WARN|Invalid|ERR|FATAL|fail|Fail|abort|ABORT|fault|timeout|CANCEL|exited|notic|Couldn't|not found"
)
_FATAL: Final = ("placeholder", "no-header", "truncated-row")
"""Notes that say why there is no result."""
_LEAST_RATE: Final = 0.1e9
_RESULTS: Final = ("time_seconds", "rate", "algbw", "busbw")
_LASTING: Final = ("tool_version", "library_version", "driver_version")
_LIBRARY: Final = re.compile(r"\b[NR]CCL version (\d[\w.+-]*)|^[NR]CCL version\s*:\s*(\S+)")
_DRIVER: Final = re.compile(r"cudaDriverVersion (\d+)")
_RANKS: Final = re.compile(r" nranks (\d{1,7}) .*Init (?:START|COMPLETE)")
_NUMBERS: Final = frozenset({"rank", "group", "pid", "device"})
_WORDS: Final[Mapping[str, Callable[[str | None], object]]] = {
    **dict.fromkeys(("count", "root", "iterations"), whole),
    "dtype": dtype_named,
    "redop": redop_named,
}


class Draft:
    """A log while it is read: the present table's facts, its rows, and what was noticed."""

    def __init__(self, tool: str, source: str) -> None:
        self.tool, self.source = tool, source
        self.facts: dict[str, Any] = {}
        self.places: list[Place] = []
        self.rows: list[dict[str, Any]] = []
        self.tables: list[Table] = []
        self.line = 1
        self.nranks: set[int] = set()
        self._notes: dict[str, tuple[LogNote, int]] = {}
        self.error: str | None = None
        self._quotes_tool = False
        self._heard: int | None = None

    def note(self, code: str, line: int | None, text: str) -> None:
        """Keep the first note of every code, and count the others."""
        first, seen = self._notes.get(code, (LogNote(code=code, line=line, text=text), 0))
        self._notes[code] = first, seen + 1

    def listen(self, lines: Iterable[str]) -> Iterator[Line]:
        """The cleaned lines, after noticing what they say about versions, ranks and failures."""
        for line in clean(lines):
            self._hear(line)
            yield line

    def _hear(self, line: Line) -> None:
        """Notice what NCCL, a launcher or the tool says about versions, ranks and failures."""
        text = line.nccl or line.text
        if "CCL version" in text and (found := _LIBRARY.search(text)) is not None:
            self.facts["library_version"] = found[1] or found[2]
        elif line.nccl is not None and " nranks " in text and (found := _RANKS.search(text)) is not None:
            self.nranks.add(int(found[1]))
        elif line.nccl is not None and "cudaDriver" in text and (found := _DRIVER.search(text)) is not None:
            self.facts["driver_version"] = found[1]
        if line.nccl is not None and "NCCL INFO" in line.nccl:
            return
        if _MAYBE.search(text) is not None:
            strong = _STRONG.search(text)
            if strong is not None:
                self.fail(strong[0], line.number)
            elif _WEAK.match(text) is not None and not self._quotes_tool:
                self.error, self._heard = text.strip()[:_QUOTED], line.number

    def objects(self, lines: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
        """The object of every line that starts one, with its number. Lists may be around them."""
        for at, line in enumerate(lines, 1):
            text = line.strip().lstrip("[").rstrip(",]").strip()
            try:
                found = decoded(text, 0) if text.startswith("{") else None
            except (ValueError, RecursionError):
                self.note("truncated-row", at, "a line that is no valid JSON is left out")
                continue
            if isinstance(found, dict):
                yield at, found

    def place(self, **said: object) -> None:
        """Where a rank or a GPU is: the fields of its record as the log has them."""
        known: dict[str, Any] = {
            name: whole(value) if name in _NUMBERS else text(value) for name, value in said.items()
        }
        self.places.append(Place(**known))

    def fail(self, error: str, line: int | None = None) -> None:
        """The last error that the tool or NCCL gives, before those of others."""
        self.error, self._quotes_tool, self._heard = error.strip()[:_QUOTED], True, line

    def _went_on(self) -> None:
        """What was heard last was no failure."""
        self.note("warning", self._heard, f"{self.error}; the tool went on")
        self.error, self._quotes_tool = None, False

    def begin(self, line: int) -> None:
        """A heading: what comes now belongs to a new table."""
        self.end()
        self.line = line

    def add(self, line: int, **fields: object) -> None:
        """A row: the fields of its record. Ranks, and the S of a size in blocks, are filled in at the end."""
        if all(fields.get(name) is None for name in _RESULTS):
            self.note("not-a-number", line, "a row without a number for its time or rate is left out")
        else:
            self.rows.append(fields | {"line": line})

    def collective(
        self,
        line: int,
        tool_op: str | None,
        said: Mapping[str, object],
        *,
        time_seconds: float | None,
        algbw: float | None,
        busbw: float | None,
        blocks: Container[str | None] = (),
        cpu_time: bool = False,
        **fields: object,
    ) -> None:
        """The row of a collective whose rates are in GB/s; its size is one block for the ops in ``blocks``, else S.

        What the tool ``said`` of size, count, type, reduction, root and iterations is in its own words.
        With ``cpu_time`` the tool's time is not that of the operation, which is S over a rate with two digits after the
        point; below 0.1 GB/s it is unknown.
        """
        if cpu_time:
            why = "its cputime is what starting a call takes; times follow from algbw, from 0.1 GB/s on"
            self.note("cpu-time", line, why)
            if algbw is not None and algbw >= _LEAST_RATE:
                fields |= {"rate": algbw, "messages": 1}
        op = None if tool_op is None else op_named(tool_op)
        self.add(
            line,
            op=op,
            tool_op=tool_op,
            tool_size_bytes=whole(said.get("size")),
            tool_size_is="block" if op in blocks else "S",
            time_seconds=time_seconds,
            algbw=algbw,
            busbw=busbw,
            **{name: named(text(said.get(name))) for name, named in _WORDS.items()},
            **({"bandwidth_unit": "GB/s"} | fields),
        )

    def cells(
        self, line: Line, names: Sequence[str], words: Sequence[str], others: Iterable[str] = ()
    ) -> dict[str, str] | None:
        """The words of a row below its headings; None: it is no row. Words of a row are numbers or in ``others``; a
        comment may stand behind them.
        """
        known = {"...", *others}
        stop = next((at for at, word in enumerate(words) if number(word) is None and word not in known), len(words))
        commented = stop == len(names) < len(words) and not words[stop][0].isalnum()
        if not names or not words or words[0] == "..." or (stop < len(words) and not commented):
            return None
        if stop == len(names):
            return dict(zip(names, words[:stop], strict=True))
        self.note("truncated-row", line.number, "a row that does not fit its header is left out")
        return None

    def end(self, **facts: object) -> None:
        """The present table is over. Its versions stay for the next one; its places, settings and rows do not."""
        self.facts.update(facts)
        if self.rows and self.facts.get("complete") and (self.error or "").startswith("NCCL WARN"):
            self._went_on()
        if self.rows:
            nranks = next(iter(self.nranks)) if len(self.nranks) == 1 else None
            ranks = self.facts.setdefault("ranks", nranks)
            rows = tuple(_row(ranks, fields) for fields in self.rows)
            self.tables.append(Table(line=self.line, rows=rows, places=tuple(self.places), **self.facts))
            self.facts = {name: self.facts[name] for name in _LASTING if name in self.facts}
            self.rows, self.places, self.nranks = [], [], set()

    def log(self) -> ForeignLog:
        """The whole log.

        Raises LogError if there is no result in it: with the code ``job-failed`` and the last error, if it quotes one.
        """
        self.end()
        if not self.tables:
            self._refuse()
        unfinished = any(table.complete is False for table in self.tables)
        if self.error and self._heard and not unfinished and self._heard < self.tables[-1].rows[-1].line:
            self._went_on()
        for note in disagreements(row for table in self.tables for row in table.rows):
            self.note(note.code, note.line, note.text)
        notes = tuple(
            note if seen == 1 else LogNote(code=note.code, line=note.line, text=f"{note.text} ({seen} times)")
            for note, seen in self._notes.values()
        )
        return ForeignLog(
            tool=self.tool,
            source=self.source,
            tables=tuple(self.tables),
            notes=notes,
            last_error=self.error,
        )

    def _refuse(self) -> None:
        found = [self._notes[code][0] for code in _FATAL if code in self._notes]
        if self.error is not None and (not found or found[0].code == "truncated-row"):
            message = f"{self.source}: the {self.tool} job failed before its first result; its last error: {self.error}"
            raise LogError(message, code="job-failed")
        if found:
            message = f"{self.source}:{found[0].line}: {found[0].text}"
            raise LogError(message, code=found[0].code)
        message = f"{self.source}: a log of {self.tool} without any result"
        raise LogError(message, code="no-results")


def _row(ranks: int | None, fields: dict[str, Any]) -> Aggregate:
    known = {"ranks": ranks} | fields
    size, blocks = known.get("tool_size_bytes"), {"S": 1, "block": known["ranks"]}.get(known.get("tool_size_is", ""))
    if size is not None and blocks is not None and size * blocks <= LARGEST_SIZE:
        known["size_bytes"] = size * blocks
    return Aggregate(**known)
