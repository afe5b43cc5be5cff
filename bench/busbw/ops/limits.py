"""Limits of plans and options, and reading of their files within these limits.

The limits are far beyond real measurements, yet small enough that any plan is read or refused, and its cases are
made, within 2 s and 500 MB. docs/operations.md has the main ones.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec.structs import FieldInfo

from busbw.errors import UsageError
from busbw.escape import plain_text

MOST_RANKS: Final = 1 << 17
MOST_MATRIX_RANKS: Final = 1 << 11
"""Ranks of a group for which every pair counts (pair matrices, uneven traffic): a matrix of 4 million cells."""
MOST_LAUNCHES: Final = 10_000
MOST_LABEL: Final = 60
"""Characters of the label of a run, which is a column of lists."""
MOST_BLOCKS: Final = 10_000
MOST_LAUNCH_BLOCKS: Final = 2_000_000
"""Blocks × cases: at 50 ms each that is a day."""
MOST_CASES: Final = 20_000
"""Of a plan, or of all jobs of an array together."""
MOST_SWEEPS: Final = 256
MOST_VALUES: Final = 1024
"""Values of a list in a sweep."""
MOST_SAMPLES: Final = 1_000_000
"""Samples of a block; also calls of a warm-up."""
LONGEST_SECONDS: Final = 86_400
"""Time budget of a case, and its warm-up: a day."""
LONGEST_TIMEOUT_SECONDS: Final = 1_000_000
LARGEST_SEED: Final = 10**18
"""Seed plus launch number must fit a signed 64-bit integer."""
MOST_THREADS: Final = 1 << 16
MOST_DEPTH: Final = 1024
LEAST_SCALE: Final = 1e-6
"""Scale of a trained model; the largest is 1."""
MOST_MICRO_BATCHES: Final = 1 << 16
MOST_TOML_BYTES: Final = 1 << 18
"""Of a plan or a file of peaks."""
MOST_TRAFFIC_BYTES: Final = 1 << 25

_MOST_KEY_PARTS: Final = 64
_DEEP_KEY: Final = re.compile(
    rf"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{_MOST_KEY_PARTS}}}"""
)


def read_text(path: Path, most_bytes: int, what: str = "") -> str:
    """The text of a file; ``what`` names its kind. Raises UsageError if it is unreadable, not UTF-8 or too large."""
    try:
        with path.open("rb") as file:
            content = file.read(most_bytes + 1)
        text = content[:most_bytes].decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except (OSError, ValueError) as error:  # a name with NUL is a ValueError
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UsageError(f"{what}{path}: cannot read it: {why}") from error
    if len(content) > most_bytes:
        raise UsageError(f"{what}{path}: cannot read it: it has more than {most_bytes} bytes, the allowed maximum")
    return text


def shipped(package: str, folder: str) -> dict[str, str]:
    """Name without ``.toml`` → text of the TOML files in ``folder`` of ``package``, by name."""
    entries = (resources.files(package) / folder).iterdir()
    files = {entry.name.removesuffix(".toml"): entry for entry in entries if entry.name.endswith(".toml")}
    return {name: files[name].read_text(encoding="utf-8") for name in sorted(files)}


def read_toml(text: str, origin: str, repeated: Iterable[str] = ()) -> dict[str, Any]:
    """The document in ``text``; ``repeated``: tables that may be given several times.

    Raises UsageError if it is not TOML, or nested too deeply.
    """
    if _DEEP_KEY.search(text):  # tomllib takes quadratic time in the number of parts
        raise UsageError(f"{origin}: unsupported TOML: a key has more than {_MOST_KEY_PARTS} parts")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # plain ValueError: a number of 5000 digits
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        hints = [f"; write each {name} as [[{name}]]" for name in repeated if f"('{name}',)" in why]
        raise UsageError(f"{origin}: not TOML: {why}{''.join(hints)}") from error


_Record = TypeVar("_Record", bound=msgspec.Struct)
_AT: Final = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)
_MENTIONED: Final = re.compile(r"(?:field `|key ')(?P<key>[^`']+)")


Keys = Mapping[str, FieldInfo]
"""Keys of a table, with their types and defaults."""


def fields_of(record: type[msgspec.Struct]) -> Keys:
    """The keys of a table that has those of a record."""
    return {field.name: field for field in msgspec.structs.fields(record)}


def converted(document: Mapping[str, Any], text: str, origin: str, record: type[_Record], **tables: Keys) -> _Record:
    """``document``, parsed from ``text``, as a record; ``tables``: keys of its tables.

    Raises UsageError with line, row, key and allowed values.
    """
    try:
        return msgspec.convert(document, record)
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        raise UsageError(_explain(str(error), document, text, origin, {"": fields_of(record), **tables})) from error


def _explain(error: str, document: Mapping[str, Any], text: str, origin: str, tables: Mapping[str, Keys]) -> str:
    """Message of msgspec with the line and the row in question, and what is allowed there."""
    match = _AT.match(error)
    what, path = (match["what"], match["path"] or "") if match else (error, "")
    steps = re.findall(r"\w+", path)
    table = steps.pop(0) if steps and steps[0] in tables else ""
    number = int(steps.pop(0)) if table and steps and steps[0].isdigit() else None
    mentioned = _MENTIONED.search(what)
    key = mentioned["key"] if mentioned else next((step for step in reversed(steps) if not step.isdigit()), "")
    if table and number is None and not key:
        where = f"{origin}, line {line_of(text, '', 0, table)}: key {table!r}"
        rows = what.startswith("Expected `array`")
        return f"{where}: {f'every entry needs its own table, under a line [[{table}]]' if rows else what}"
    where = f"{origin}, line {line_of(text, table, number or 0, key)}"
    keys = tables[table]
    if number is not None and "name" in keys:
        name = document[table][number].get("name") if isinstance(document[table][number], dict) else None
        where += f": [[{table}]] {name!r}" if name else f": [[{table}]] number {number + 1}"
    if what.startswith("Object missing required field"):
        needed = [name for name, field in keys.items() if field.required]
        return f"{where}: key {key!r} is missing; required keys: {', '.join(needed)}"
    if what.startswith("Object contains unknown field"):
        return f"{where}: unknown key {key!r}; allowed keys: {', '.join(keys)}"
    if mentioned or not key:
        return f"{where}: {what}"
    words = _literals(keys[key].type) if key in keys and what.startswith("Invalid enum value") else ()
    allowed = f"; allowed: {', '.join(words)}" if words else ""
    return f"{where}: key {key!r}: {what[:1].lower()}{what[1:]}{allowed}"


def _literals(hint: object) -> tuple[str, ...]:
    """The allowed words of a type, also of an annotated or optional one; empty for other types."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    return next(filter(None, map(_literals, get_args(hint))), ())


def line_of(text: str, table: str, number: int, key: str) -> int:
    """Line of ``key`` in the ``number``-th such table, else of the table, else 1: tomllib keeps no positions."""
    inside, seen, line_of_table = not table, -1, 1
    start_of_key = re.compile(rf"""\s*(?:\[\[?\s*)?["']?{re.escape(key or " ")}["']?\s*[]=.]""")
    for at, line in enumerate(text.splitlines(), start=1):
        if table and (header := re.match(r"\s*\[\[?\s*([\w.-]+)\s*\]", line)):
            seen += header[1] == table
            inside = header[1] == table and seen == number
            line_of_table = at if inside else line_of_table
        if inside and start_of_key.match(line):
            return at
    return line_of_table


# --- TOML rows that name the source of their numbers ---------------------------------------------------------------

URL: Final = re.compile(r"https?://[^\s/]+\.[^\s/]+\S*")
_MONTH: Final = re.compile(r"20\d\d-(0[1-9]|1[0-2])")


class SourcedRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
