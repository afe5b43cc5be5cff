"""TOML rows that name the source of their numbers."""

import re
from typing import Final

from busbw.errors import UsageError
from busbw.escape import plain_text
from busbw.runs.records import Record

URL: Final = re.compile(r"https?://[^\s/]+\.[^\s/]+\S*")
_MONTH: Final = re.compile(r"20\d\d-(0[1-9]|1[0-2])")


class SourcedRow(Record, frozen=True, kw_only=True):
    """Fields of every row: ``name``, ``source`` (URL) of its values, month ``looked_up`` (YYYY-MM), ``note``."""

    name: str
    source: str
    looked_up: str
    note: str = ""

    def check_source(self) -> None:
        """Raise UsageError if one of these fields is invalid."""
        if not self.name.strip():
            refuse("name", self.name, "a name")
        for key in self.__struct_fields__:
            if isinstance(text := getattr(self, key), str) and plain_text(text) != text:
                refuse(key, text, "one line of printable text")
        if not URL.fullmatch(self.source):
            refuse("source", self.source, "a URL; every row needs a source")
        if not _MONTH.fullmatch(self.looked_up):
            refuse("looked_up", self.looked_up, "the month in which the source was read, such as 2026-11")


def refuse(key: str, given: object, allowed: str) -> None:
    """Raise UsageError for a key of a row."""
    raise UsageError(f"key '{key}': {given!r} is not allowed; want {allowed}", code="row")
