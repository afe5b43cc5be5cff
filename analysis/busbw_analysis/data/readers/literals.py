"""Words of which a line must have one to match a pattern: ``in`` finds them much faster than ``re`` the pattern."""

import re
from collections.abc import Iterable
from typing import Final

_TOKEN: Final = re.compile(
    r"\\(?P<escaped>u[\da-f]{4}|.)|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])|\((?P<open>\?(?:[:=!]|<[=!]|[a-z]:))?|(?P<close>\))"
    r"|(?P<either>\|)|(?P<count>[*+?]|\{\d+(?:,\d*)?\})\??|(?P<other>[.^$])|(?P<plain>[^\\()])",
    re.DOTALL,
)
_Words = frozenset[str]
_NONE: Final[_Words] = frozenset()


def _better(first: _Words, second: _Words) -> _Words:
    """The words of which the shortest is longer."""
    return max(first, second, key=lambda words: min(map(len, words), default=0))


class _Group:
    """The words of a group while it is read: those of its branches, the best of this one, and letters in a row."""

    def __init__(self, opened: str) -> None:
        self.counts = opened in {"", "?:"}
        self._branches: list[_Words] = []
        self._best, self._run = _NONE, ""
        self._last: _Words = _NONE

    def letter(self, text: str) -> None:
        """A letter that must be there, unless a count follows that allows none."""
        self._best, self._last = _better(self._best, self._last), _NONE
        self._run += text

    def part(self, words: _Words) -> None:
        """A part of any text that has one of ``words``, or of any text at all without them."""
        self._keep()
        self._last = words

    def count(self, count: str) -> None:
        """How often the last letter or part is there."""
        if count in {"*", "?"} or count.startswith("{0"):
            self._run, self._last = self._run[:-1], _NONE
        self._keep()

    def _keep(self) -> None:
        self._best = _better(self._best, _better(self._last, frozenset({self._run}) if self._run else _NONE))
        self._run, self._last = "", _NONE

    def branch(self) -> None:
        """The end of a branch."""
        self._keep()
        self._branches.append(self._best)
        self._best = _NONE

    def words(self) -> _Words:
        """The words of all branches."""
        self.branch()
        return _NONE.union(*self._branches) if self.counts and all(self._branches) else _NONE


def needed(pattern: str) -> frozenset[str]:
    """Words of which every match of a regular expression has one; none if there is a match without any that is known.
    Of a pattern that ignores case, the words are as it writes them.
    """
    stack = [_Group("")]
    for match in _TOKEN.finditer(pattern.removeprefix("(?i)")):
        group, kind, text = stack[-1], match.lastgroup or "open", match[match.lastgroup] if match.lastgroup else ""
        if kind == "open":
            stack.append(_Group(text))
        elif kind == "close":
            stack.pop()
            stack[-1].part(group.words())
        elif kind == "either":
            group.branch()
        elif kind == "count":
            group.count(text)
        elif kind == "escaped" and text.startswith("u"):
            group.letter(chr(int(text[1:], 16)))
        elif kind == "plain" or (kind == "escaped" and not text.isalnum()):
            group.letter(text)
        else:
            group.part(_NONE)
    return stack[0].words()


def words_of(patterns: Iterable[str]) -> tuple[str, ...]:
    """The words of several patterns, without those that have another one in them. Raises ValueError for a pattern that
    has none.
    """
    known = _NONE
    for pattern in patterns:
        if not (words := needed(pattern)):
            raise ValueError(f"any text may match {pattern!r}")
        known |= words
    return tuple(sorted(word for word in known if not any(other != word and other in word for other in known)))
