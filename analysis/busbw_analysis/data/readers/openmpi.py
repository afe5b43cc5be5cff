"""The help messages of Open MPI and PMIx: sentences between rules of dashes, and which host or device they are about.

Source: ``opal/util/show_help.c`` and the ``help-*.txt`` files of open-mpi/ompi.
"""

import re
from typing import Final

_RULE: Final = re.compile(r"-{60,}$")
_PREFIX: Final = re.compile(r"(?:PMIX: |\[\[\d+,\d+\],\d+\]: )?(.*)")
_BEGINS: Final = re.compile(r"WARNING: |(?:A|The|No)\b.*\b(?:Open MPI|OpenFabrics|BTL|PMIx)\b")
"""A message without the rule above it."""
_FIRST: Final = frozenset("-WATNP[")
"""One of which begins a rule, a message or its prefix."""
_FOLLOWS: Final = re.compile(r"Primary job|mpirun (?:noticed|detected|has exited)|MPI_ABORT|By default, for Open MPI")
"""What Open MPI says after another error, or of every job."""
_WHERE: Final = re.compile(
    r"(?i:(?:local )?(host|device|adapter|port|value|module|component|device name|error)) *: +(\S.{0,60})"
)
_ENDS: Final = re.compile(r"(?<=[.)])\s+(?=[A-Z])")
_ENOUGH: Final = 120
_MOST_LINES: Final = 12
_LONGEST: Final = 300


class Help:
    """The help messages in a log, read line by line; ``said`` has line and text of each."""

    def __init__(self) -> None:
        self.said: list[tuple[int, str]] = []
        self._ruled = False
        self._begin()

    def _begin(self) -> None:
        self._line, self._words, self._where = 0, list[str](), list[str]()

    def take(self, number: int, text: str) -> None:
        """Note a line; a rule ends a message."""
        if not self._words and not self._ruled and text[:1] not in _FIRST:
            return
        match = _PREFIX.match(text)
        text = "" if match is None else match[1].strip()
        if _RULE.match(text) is not None:
            self.close()
            self._ruled = True
        elif not text or len(self._words) > _MOST_LINES:
            pass
        elif self._words and (where := _WHERE.fullmatch(text)) is not None:
            self._where.append(f"{where[1].lower()} {where[2]}")
        elif self._words and not self._where:
            self._words.append(text)
        elif not self._words and (self._ruled or _BEGINS.match(text) is not None):
            self._line, self._words, self._ruled = number, [text], False

    def close(self) -> None:
        """End a message, and keep it if it is about a host or device."""
        if self._where and _FOLLOWS.match(self._words[0]) is None:
            first, *others = _ENDS.split(" ".join(self._words).removeprefix("WARNING: "))
            said = f"{first} {others[0]}" if others and len(first) < _ENOUGH else first
            where = ", ".join(self._where[:3])
            self.said.append((self._line, f"Open MPI says: {said[:_LONGEST].rstrip('.: ')} ({where})"))
        self._begin()
        self._ruled = False
