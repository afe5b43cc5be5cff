"""Reader of nvbandwidth's output, text and JSON (``-j``), 0.1 to 0.10, and of the pairwise tests of nvloom.

Sources: ``output.cpp``, ``json_output.cpp`` and ``testcases_*.cpp`` of NVIDIA/nvbandwidth; ``cli`` of NVIDIA/nvloom.
Every cell of a matrix is one copy or one latency; the arrow in the description is the direction of the data.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.json_text import document, items, mapping, real, text
from busbw_analysis.data.readers.lines import RATES, SECONDS, Line, number, scaled, whole

TEXT: Final = re.compile(
    rb"nvbandwidth Version|Running \w+_(?:memcpy|latency|copy)_?\w*\.|\((?:row|column)\)[^\n]{0,80}\((?:GB/s|ns)\)"
)
NVLOOM: Final = re.compile(rb"nvloom_cli \d")
_NVLOOM: Final = {"uni": "GPU(column) -> GPU(row)", "bi": "GPU(column) <-> GPU(row) Total"}
"""What a cell is of pairwise tests, which print no description: of ``device_to_device_unidir_write_ce`` and alike."""
_OF_NVLOOM: Final = re.compile(r"device_to_device_(?:(uni|bi)dir_)?(?:write|read)_(?:ce|sm)$")
_BESIDE: Final = re.compile(r";\([^)]*\)|\|")
"""Notes and rulers of nvloom in a row."""
JSON: Final = re.compile(rb'"nvbandwidth"\s*:\s*\{')
_OPS: Final = (
    (re.compile(r"(?:host_to_(?:device|all)|(?:device|all)_to_host)_bidirectional_memcpy"), "host_and_device"),
    (re.compile(r"host_to_(?:device|all)_memcpy"), "host_to_device"),
    (re.compile(r"(?:device|all)_to_host_memcpy"), "device_to_host"),
    (re.compile(r"(?:multinode_)?device_to_device_bidirectional_memcpy"), "peer_copy_both"),
    (re.compile(r"(?:multinode_)?device_to_device_memcpy"), "peer_copy"),
    (re.compile(r"device_to_device_(?:unidir_)?(?:read|write)_"), "peer_copy"),
    (re.compile(r"device_to_device_bidir_(?:read|write)_"), "peer_copy_both"),
    (re.compile(r"device_local_copy"), "memory_copy"),
    (re.compile(r"memcpy \w+ CPU\(row\) -> GPU\(column\)"), "host_to_device"),
    (re.compile(r"memcpy \w+ CPU\(row\) <- GPU\(column\)"), "device_to_host"),
    (re.compile(r"memcpy \w+ CPU\(row\) <-> GPU\(column\)"), "host_and_device"),
    (re.compile(r"memcpy \w+ GPU\(row\) (?:<-|->) GPU\(column\)"), "peer_copy"),
    (re.compile(r"memcpy \w+ GPU\(row\) <-> GPU\(column\)"), "peer_copy_both"),
)
"""Name of a test, or the description of its matrix where the log has no name."""
_RUNNING: Final = re.compile(r"Running (\w+)\.?\s*$")
_DESCRIPTION: Final = re.compile(r"(.*\S)\s*\((GB/s|ns|us)\)\s*$")
_ARROW: Final = re.compile(r"\s*(<->|->|<-)\s*")
_END: Final = re.compile(r"\b([CG]PU)\((row|column)\)")
_PART: Final = re.compile(r"\b(Read|Write)\d|\bTotal\b|\btotal\b")
_PLACE: Final = re.compile(
    r"(?:Process\s+(?P<rank>\d+)\s+\((?P<host>.*?)\): d|D)evice (?P<device>\d+): (?P<name>.*?)"
    r"\s*(?:\((?P<bus_id>[0-9a-fA-F:.]+)\))?(?:; rackGuid: \S*)?$"
)
_LISTED: Final = re.compile(r"(?P<device>\d+): (?P<name>.*?) \((?P<bus_id>[0-9a-fA-F:.]+)\)(?:: \((?P<host>.*)\))?")
_VERSION: Final = re.compile(r"nvbandwidth Version: (.*\S)")
_BUFFER: Final = re.compile(
    r"Buffer [Ss]ize: (\d{1,6})(?: MiB)?\s*$|\bnvbandwidth\b.*\s(?:-b|--bufferSize)[ =]?(\d{1,6})\b"
)
_ENDED: Final = re.compile(r"(?<!\S)(?:SUM|Min|Done|ExecutionTime|ERROR:|nvloom_cli) \w")
"""Below a matrix."""
_SUM: Final = re.compile(r"SUM (\w+) [\d.]+")
_STATUS: Final = re.compile(r"(Waived|WAIVED|Waiving|ERROR|Error|Not Found|NOT FOUND|Failed|FAILED)\b:?\s*(.*)")


class _Matrix:
    """Converts the cells of a matrix to rows of a draft, given its test, its description and its column labels.

    before: words of a prefix before the labels, and before every row
    """

    def __init__(self, test: str | None, description: str, unit: str) -> None:
        described, named = _op_of(description), _op_of(test or "")
        test = None if described and named and described != named else test  # of another test, whose name was cut
        self.test, self.unit, self.factor = test, unit, (RATES | SECONDS)[unit]
        self.columns: list[str] = []
        self.before = 0
        part = _PART.search(description)
        self.part = None if part is None else part[0]
        self.ends = _ARROW.split(description, maxsplit=1)
        # Of copies from or to a host, the columns are always GPUs.
        self.crossed = "GPU(row)" in description and "CPU(column)" in description
        self.op = described if test is None else named

    def add(self, draft: Draft, line: int, row: str, cells: list[str]) -> None:
        """Add one row of cells; cells without a number are ignored."""
        for column, cell in zip(self.columns, cells, strict=True):
            if (value := real(cell)) is None:
                continue
            source, target = (self._label(end, row, column) for end in (self.ends[0], self.ends[-1]))
            if self.ends[1:2] == ["<-"]:
                source, target = target, source
            both = self.op == "peer_copy_both" and self.part == "Total"
            result: dict[str, object] = (
                {"time_seconds": scaled(value, self.factor)}
                if self.unit in SECONDS
                else {"rate": value * self.factor, "messages": 2 if both else 1}
            )
            draft.add(line, op=self.op, tool_op=self.test, part=self.part, source=source, target=target, **result)

    def _label(self, end: str, row: str, column: str) -> str:
        match = _END.search(end)
        of_row = match is not None and (match[2] == "row") != (self.crossed and len(self.columns) > 1)
        return "all" if match is None else f"{match[1]} {row if of_row else column}"


def _op_of(name: str) -> str | None:
    """busbw's operation of a test, by its name or the description above a matrix."""
    return next((op for sign, op in _OPS if sign.match(name)), None)


def _columns(words: Sequence[str]) -> list[str]:
    """The labels of columns at the end of a line, which count from 0; empty if there are none."""
    labels = list(map(str, range(len(words))))
    return next((labels[:count] for count in range(len(words), 0, -1) if [*words[-count:]] == labels[:count]), [])


def read_text(draft: Draft, lines: Iterable[str]) -> None:
    """Read the matrices of all tests."""
    matrix: _Matrix | None = None
    test = begun = None
    for line in draft.scan(lines):
        words = _BESIDE.sub(" ", line.text).split()
        if not words:
            continue
        if (match := _RUNNING.search(line.text)) is not None:
            test, begun, matrix = match[1], match[1], None
            if (pairs := _OF_NVLOOM.match(test)) is not None:
                matrix = _Matrix(test, _NVLOOM[pairs[1] or "uni"], "GB/s")
        elif (match := _DESCRIPTION.fullmatch(line.text.strip())) is not None and number(words[0]) is None:
            ends = _ARROW.split(match[1], maxsplit=1)[::2]
            is_whole = all(len(_END.findall(end)) == 1 for end in ends) and _END.match(match[1]) is None
            begun, matrix = None, _Matrix(test, match[1], match[2]) if is_whole else None
        elif matrix is not None and not matrix.columns and (columns := _columns(words)):
            matrix.before, matrix.columns = len(words) - len(columns), columns
        elif (
            matrix is not None
            and len(cells := words[matrix.before :]) > 1
            and whole(cells[0]) is not None
            and all(number(word) is not None or word == "N/A" for word in cells[1:])
        ):
            if len(cells) == len(matrix.columns) + 1:
                matrix.add(draft, line.number, cells[0], cells[1:])
            else:
                draft.note("truncated-row", line.number, "a row of a matrix that is cut off is ignored")
        else:
            _other(draft, line, begun if matrix is None else None)
            matrix = None if _ENDED.search(line.text) is not None else matrix


def _other(draft: Draft, line: Line, test: str | None) -> None:
    if (match := _VERSION.search(line.text)) is not None:
        if draft.rows:
            draft.begin(line.number)
        draft.facts["tool_version"] = match[1]
    elif (match := _BUFFER.search(line.text)) is not None:
        if draft.rows:
            draft.begin(line.number)
        draft.facts["copy_bytes"] = int(match[1] or match[2]) << 20
    elif (match := _PLACE.match(line.text)) is not None:
        draft.place(**match.groupdict())
    elif (match := _SUM.match(line.text)) is not None:
        for row in draft.rows:
            if row["tool_op"] is None:  # the line before its matrix was cut
                row |= {"tool_op": match[1], "op": _op_of(match[1])}
    elif (match := _STATUS.match(line.text)) is not None:
        code = "waived" if match[1].lower().startswith("waiv") else "failed-test"
        draft.note(code, line.number, f"{test or 'a test'}: {match[0].strip()[:120]}")


def read_json(draft: Draft, lines: Iterable[str]) -> None:
    """Read the JSON output."""
    parsed = document(draft.source, lines)
    output = mapping(parsed.get("nvbandwidth"))
    for listed in items(output.get("GPU Device list")):
        if (device := _LISTED.match(str(listed))) is not None:
            draft.place(**device.groupdict())
    draft.facts["tool_version"] = text(output.get("version")) or text(output.get("git_version"))
    if (error := text(output.get("error"))) is not None:
        draft.fail(error)
    tests = [mapping(test) for test in items(output.get("testcases"))]
    for test, line in zip(tests, parsed.lines_of("name", len(tests)), strict=True):
        name, status = text(test.get("name")), text(test.get("status")) or "without a status"
        description = _DESCRIPTION.fullmatch(str(test.get("bandwidth_description")).strip())
        if description is None or not items(test.get("bandwidth_matrix")):
            code = "waived" if status == "Waived" else "failed-test"
            draft.note(code, line, f"{name}: {status} {text(test.get('error')) or ''}".strip())
            continue
        matrix = _Matrix(name, description[1], description[2])
        for row, cells in enumerate(items(test.get("bandwidth_matrix"))):
            matrix.columns = [str(at) for at in range(len(items(cells)))]
            matrix.add(draft, line, str(row), items(cells))
