"""Logs of other tools in tests."""

import json
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import Final

import msgspec
import pytest

from busbw.errors import LogError
from busbw_analysis.data.readers.log import ForeignLog
from busbw_analysis.data.readers.logs import read_file, reader_named

LOGS: Final = Path(__file__).parents[2] / "data/logs"
EXPECTED: Final = LOGS / "expected.json"
"""What is read of each file in ``LOGS``, or the code of its refusal. ``make golden`` writes it."""


def read_log(path: Path) -> ForeignLog:
    """The log at ``path``. Raises LogError if it has no usable result."""
    with path.open("rb") as file:
        return read_file(path.name, file)


def log_of(reader: str, lines: Iterable[str]) -> ForeignLog:
    """What the reader of this name reads of ``lines``."""
    return read_file("log", BytesIO("".join(lines).encode()), reader_named(reader))


def outcome(path: Path) -> object:
    """What is read, without what the log does not tell, or the code of the refusal."""
    try:
        return _stated(msgspec.to_builtins(read_log(path)))
    except LogError as error:
        return {"refused": error.code}


def expected() -> str:
    """The outcomes of all logs as JSON."""
    outcomes = {path.name: outcome(path) for path in sorted(LOGS.iterdir()) if path != EXPECTED}
    return json.dumps(outcomes, indent=1) + "\n"


def _stated(plain: object) -> object:
    if isinstance(plain, dict):
        return {name: _stated(value) for name, value in plain.items() if value not in (None, (), [], {}, "")}
    return [_stated(inner) for inner in plain] if isinstance(plain, list | tuple) else plain


def refused(folder: Path, text: str) -> LogError:
    """Why a log with this text has no results."""
    path = folder / "log"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(LogError) as error:
        read_log(path)
    return error.value
