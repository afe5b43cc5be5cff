"""Lists of KEY=VALUE in one option: ``tp=8,pp=4``, or after a name, ``Llama 3 70B,layers=16``."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from busbw.errors import UsageError, nearest

_MOST_DIGITS: Final = 10


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a list.

    read: gives the value of a text, or raises UsageError.
    help: meaning and unit. default: in words.
    """

    read: Callable[[str], Any]
    help: str = ""
    default: str = ""


def written(key: str) -> str:
    """A key as users write it: ``micro_batch`` → ``micro-batch``. Both are read."""
    return key.replace("_", "-")


def split_name(text: str) -> tuple[str, str]:
    """The part of ``text`` before the first key, and the list of keys."""
    parts = text.split(",")
    first = next((place for place, part in enumerate(parts) if "=" in part), len(parts))
    return ",".join(parts[:first]).strip(), ",".join(parts[first:])


def read_key_values(
    what: str, text: str, keys: Mapping[str, Key], keys_in_words: str | None = None, code: str = UsageError.code
) -> dict[str, Any]:
    """The values in ``text`` by key. A key without a value means yes if it takes yes.

    what: name of the list in messages. keys_in_words: the allowed keys, in words (None: their names).
    Raises UsageError with ``code`` for a part without a value, an unknown or repeated key, and an invalid value.
    """
    values: dict[str, Any] = {}
    for part in text.split(",") if text.strip() else ():
        key, equals, value = part.strip().partition("=")
        name = key.strip().replace("-", "_")
        if not equals and name in keys and keys[name].read is yes_or_no:
            equals, value = "=", "yes"
        if not equals or name not in keys or name in values:
            likely = nearest(name, keys)
            meant = f"did you mean {written(likely)}? " if likely is not None and name not in keys else ""
            why = "is given twice" if name in values else "is not a known key with a value"
            allowed = keys_in_words or f"keys: {', '.join(map(written, keys))}"
            raise UsageError(f"{what} {text!r}: {part.strip()!r} {why}; {meant}{allowed}", code=code)
        try:
            values[name] = keys[name].read(value.strip())
        except UsageError as error:
            raise UsageError(f"{what} {text!r}, {key.strip()}: {error}", code=code) from error
    return values


def whole(least: int = 0, most: int = 10**_MOST_DIGITS - 1) -> Callable[[str], int]:
    """A reader of integers from ``least`` to ``most``."""

    def read(text: str) -> int:
        if not (text.isdecimal() and text.isascii() and len(text) <= _MOST_DIGITS):
            raise UsageError(f"{text!r} is not 1 to {_MOST_DIGITS} digits")
        if not least <= int(text) <= most:
            raise UsageError(f"{text}: expected {least} to {most}")
        return int(text)

    return read


def number(text: str) -> float:
    """A number."""
    try:
        return float(text)
    except ValueError as error:
        raise UsageError(f"{text!r} is not a number") from error


def choice(allowed: Collection[str]) -> Callable[[str], str]:
    """A reader of one of the ``allowed`` words."""

    def read(text: str) -> str:
        if text not in allowed:
            raise UsageError(f"{text!r} is not allowed; use {' or '.join(allowed)}")
        return text

    return read


def yes_or_no(text: str) -> bool:
    """``yes`` or ``no``."""
    return choice(("yes", "no"))(text) == "yes"
