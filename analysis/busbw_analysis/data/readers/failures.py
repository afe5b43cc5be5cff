"""The messages with which jobs fail, and what each means: the rows of ``failures.toml``."""

import re
from collections.abc import Iterator
from importlib import resources
from typing import Any, Final

import msgspec

from busbw.ops.limits import read_toml
from busbw_analysis.data.readers.literals import words_of


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message with which jobs fail.

    name: by which readers find it that see it in several lines
    signs: recognise it; their groups fill ``text``
    doing: the phase; "": the message does not say it
    text: what it means
    causes: why it usually comes
    action: what to do
    network: whether a network interface or port that is evidently wrong explains it
    waits: whether ranks waited for others in vain
    follows: whether it usually follows from a failure of another rank
    """

    signs: tuple[str, ...]
    text: str
    causes: str
    action: str
    name: str = ""
    doing: str = ""
    network: bool = False
    waits: bool = False
    follows: bool = False
    passes: bool = False

    @property
    def sign(self) -> str:
        """The pattern of all signs."""
        return "|".join(self.signs)


def _shipped() -> tuple[dict[str, str], tuple[Failure, ...]]:
    """The words and the rows of ``failures.toml``."""
    text = (resources.files(__package__) / "failures.toml").read_text(encoding="utf-8")
    document: dict[str, Any] = read_toml(text, "failures.toml")
    words: dict[str, str] = document["words"]
    for row in document["failure"]:
        row.update({name: row[name].format_map(words) for name in ("causes", "action")})
    return words, msgspec.convert(document["failure"], tuple[Failure, ...])


WORDS, FAILURES = _shipped()
"""Sentences that several rows have, by name; and all rows: the first that a log has is its answer."""
NUMBERING: Final = next(place for place, failure in enumerate(FAILURES) if failure.name == "numbering")
SIGNS: Final = tuple(re.compile(failure.sign) for failure in FAILURES)
_SIGN: Final = re.compile("|".join(failure.sign for failure in FAILURES).encode())
_PASSES: Final = re.compile("|".join(failure.sign for failure in FAILURES if failure.passes).encode())
_NEEDED: Final = words_of(failure.sign for failure in FAILURES)
_NEEDED_BYTES: Final = tuple(word.encode() for word in _NEEDED)
_GOES_ON: Final = re.compile(
    rb"heartbeat|RayActorError|The actor (?:died|is dead)|A worker died|restarting"
    rb"|Waiting (?:in|for)|No available shared memory broadcast|may be stuck"
    rb"|init failed for transport|It is expected if|import of .{0,40} failed|UCX  ERROR ibv_reg"
)
"""Of workers that a launcher starts again, of what may still come, and of what a program can do without."""


def may_fail(text: str) -> bool:
    """Whether a line may be about a failure."""
    return any(word in text for word in _NEEDED)


def _about_failures(text: bytes) -> Iterator[tuple[int, re.Match[bytes]]]:
    """Number from 0 and match of all lines that are about a failure."""
    words = [word for word in _NEEDED_BYTES if word in text]
    for at, line in enumerate(text.split(b"\n") if words else ()):
        if any(word in line for word in words) and (match := _SIGN.search(line)) is not None:
            yield at, match


class _Sign:
    """Finds the first line that is about a failure."""

    def search(self, text: bytes) -> re.Match[bytes] | None:
        return next((match for _, match in _about_failures(text)), None)


SIGN: Final = _Sign()


def passes(text: bytes) -> bool:
    """Whether programs often go on after all that a text says of failures."""
    return all(_PASSES.search(match.string) is not None for _, match in _about_failures(text))


def after_the_last(text: bytes) -> bytes:
    """What follows the last line about a failure; nothing unless programs go on after all of them."""
    failed = list(_about_failures(text))
    if not failed or not all(_GOES_ON.search(match.string) or _PASSES.search(match.string) for _, match in failed):
        return b""
    return b"\n".join(text.split(b"\n")[failed[-1][0] + 1 :])


def is_only_ended(text: bytes) -> bool:
    """Whether all that a text says of a failure is that somebody ended the job."""
    return all(b"SIGTERM" in match.string for _, match in _about_failures(text))


def explained(text: str) -> str | None:
    """What an error means and why it usually comes; None for one that is not known or that follows from another."""
    signs = zip(FAILURES, SIGNS, strict=True) if may_fail(text) else ()
    failure, match = next(((own, match) for own, sign in signs if (match := sign.search(text))), (None, None))
    if failure is None or match is None or failure.follows or failure.waits:
        return None
    words = failure.text.format(*filter(None, match.groups()), *[""] * failure.text.count("{}"))
    return f"{words.replace(' ()', '').strip()}; usually {failure.causes}"
