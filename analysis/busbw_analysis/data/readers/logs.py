"""The readers of other tools' logs, and how a log is recognised by what stands in it."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import IO, Final

import msgspec

from busbw.errors import LogError, refuse_unknown
from busbw.runs.records import LogNote
from busbw_analysis.data.readers import (
    imb,
    inspector,
    named,
    nccl_json,
    nccl_text,
    nixlbench,
    nvbandwidth,
    osu,
    param,
    perftest,
    superbench,
)
from busbw_analysis.data.readers.lines import LONGEST_LINE
from busbw_analysis.data.readers.log import ForeignLog
from busbw_analysis.data.readers.tools import EVERY_NAME, NCCL, OF_MPI, UNTOLD, Tool

HEAD_BYTES: Final = 1 << 20
"""What is looked at at once to recognise a log; a log may begin with more of what NCCL says."""
_MOST_HEAD: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Reader:
    """A format: the words by which its logs are recognised, what reads the lines of a log of the given name, and what
    is known of the ``tool`` that writes it. It is called like the tool, whose logs in JSON have a name of their own.
    """

    name: str
    sign: re.Pattern[bytes]
    read: Callable[[str, Iterator[str]], ForeignLog]
    tool: Tool = UNTOLD


_NVBANDWIDTH: Final = Tool("cuda", "cuda", names=EVERY_NAME, one_host=True, copies=True)
_SUPERBENCH: Final = replace(NCCL, names=re.compile("^[HD]2[HD]"), one_host=True)
_PERFTEST: Final = Tool("verbs", "cpu", names=EVERY_NAME)

READERS: Final = (
    Reader("nccl-tests JSON", nccl_json.SIGN, nccl_json.read, NCCL),
    Reader("nvbandwidth JSON", nvbandwidth.JSON, nvbandwidth.read_json, _NVBANDWIDTH),
    Reader("NCCL inspector", inspector.SIGN, inspector.read, replace(NCCL, mode="isolated")),
    Reader("perftest JSON", perftest.JSON, perftest.read_json, _PERFTEST),
    Reader("rccl-tests JSON", named.JSON, named.read_json, NCCL),
    Reader("SuperBench", superbench.SIGN, superbench.read, _SUPERBENCH),
    Reader("PARAM comms", param.SIGN, param.read),
    Reader("nvbandwidth", nvbandwidth.TEXT, nvbandwidth.read_text, _NVBANDWIDTH),
    Reader("OSU micro-benchmarks", osu.SIGN, osu.read, OF_MPI),
    Reader("Intel MPI benchmarks", imb.SIGN, imb.read, OF_MPI),
    Reader("perftest", perftest.SIGN, perftest.read, _PERFTEST),
    Reader("nixlbench", nixlbench.SIGN, nixlbench.read),
    Reader("nccl-tests", nccl_text.SIGN, nccl_text.read, NCCL),
    Reader("CSV", named.CSV, named.read_csv),
)
"""The first whose sign is in a log reads it; the last one if its sign is in the first line."""


def recognise(head: bytes) -> Reader | None:
    """The reader of a log that begins like this; None: it is no log of a tool that busbw knows."""
    first, csv = head.partition(b"\n")[0], READERS[-1]
    if csv.sign.search(first) is not None:
        return csv
    return next((reader for reader in READERS if reader.sign.search(head) is not None), None)


def read_log(path: Path) -> ForeignLog:
    """The results of another tool.

    Raises LogError if there are none that can be read, with one of the codes in docs/logs.md.
    """
    try:
        with path.open("rb") as file:
            return read_file(path.name, file)
    except OSError as error:
        message = f"{path}: cannot be read: {error.strerror}"
        raise LogError(message, code="unreadable") from error


def tool_named(name: str) -> Tool:
    """What is known of the tool that a log names (``ForeignLog.tool``); of one without a reader, nothing."""
    return next((reader.tool for reader in READERS if reader.name in {name, f"{name} JSON"}), UNTOLD)


def reader_named(name: str) -> Reader:
    """The reader that ``--format`` means. Raises UsageError that lists them."""
    named = {slug(reader): reader for reader in READERS}
    if name not in named:
        refuse_unknown("format", name, named)
    return named[name]


def slug(reader: Reader) -> str:
    """The name of a reader as an option has it: ``nccl-tests-json``."""
    return reader.name.lower().replace(" ", "-")


def read_file(name: str, file: IO[bytes], reader: Reader | None = None) -> ForeignLog:
    """As ``read_log``, of an open file that can be gone back in; ``reader``: by this one, whatever is in it."""
    head = file.read(HEAD_BYTES)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        file.seek(0)
        file = BytesIO(file.read(_MOST_HEAD).decode("utf-16", "replace").encode())
        head = file.read(HEAD_BYTES)
    elif b"\x00" in head[:4096]:
        message = f"{name}: binary data, no log"
        raise LogError(message, code="binary")
    reader, seen = reader or recognise(head), len(head)
    while reader is None and seen < _MOST_HEAD and (more := file.read(HEAD_BYTES)):
        seen += len(more)
        head = head[-4096:] + more
        reader = recognise(head)
    if reader is None:
        message = f"{name}: no log of a tool that busbw can read"
        raise LogError(message)
    found = reader.sign.search(head)
    file.seek(0)
    notes: list[LogNote] = []
    log = reader.read(name, _lines(file, notes))
    words = "" if found is None else " ".join(found[0].decode("utf-8", "replace").split())
    return msgspec.structs.replace(log, recognised_by=words[:80], notes=(*log.notes, *notes))


def _lines(file: IO[bytes], notes: list[LogNote]) -> Iterator[str]:
    """The lines of a file, with what is no text replaced; adds ``notes`` about the first such line, and about a last
    line without its end.
    """
    number, last = 0, ""
    while piece := file.readline(LONGEST_LINE):
        number += 1
        try:
            last = piece.decode()
        except UnicodeDecodeError:
            last = piece.decode(errors="replace")
            if not notes:
                notes.append(LogNote(code="encoding", line=number, text="bytes that are no UTF-8 are replaced"))
        yield last
    # A cut number is another number.
    if last[-1:].isdigit():
        text = "the last line has no end: its last number may be cut"
        notes.append(LogNote(code="unfinished-line", line=number, text=text))
