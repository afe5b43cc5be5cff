"""Logs of other tools in tests."""

from pathlib import Path

from busbw_analysis.data.readers.log import ForeignLog
from busbw_analysis.data.readers.logs import read_file


def read_log(path: Path) -> ForeignLog:
    """The log at ``path``. Raises LogError if it has no usable result."""
    with path.open("rb") as file:
        return read_file(path.name, file)
