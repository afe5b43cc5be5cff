"""Rules of a gate: a TOML file with one ``[[rule]]`` for each limit. All mistakes of a file are named at once."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal, get_args

import msgspec

from busbw.errors import UsageError, nearest, what_is_known
from busbw.escape import plain_text
from busbw.ops import OPS
from busbw.ops.algorithms import ALGORITHMS, LIBRARY
from busbw.ops.limits import MOST_TOML_BYTES, read_text, read_toml
from busbw.ops.settings import explicit_algorithm
from busbw.runs.records import BACKEND_NAMES, CASE_DTYPE_BYTES, JSON, Case, Mode
from busbw.units import LARGEST_SIZE, counted, parse_rate, parse_share, parse_size, parse_sizes, parse_time
from busbw_analysis.data.readers.logs import READERS
from busbw_analysis.gate.metrics import METRICS, WORDS, Metric, Unit

Severity = Literal["error", "warning"]
_TABLE: Final = "rule"
_MOST_RULES: Final = 10_000


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One rule. Keys that are left out match every case.

    metric: a row of ``METRICS``
    at_least, at_most: the limit with its unit, such as 380 GB/s, 25us, 90%, 1.10; the metric says which of the two
    name: in outputs; else it is made of the other keys
    op, backend, dtype, mode, algorithm: cases that the rule is about; ``library`` is the library's own algorithm
    sizes: as of ``--sizes``, or a range of all sizes between two, such as 1MiB..1GiB or 1MiB..
    detect: PASS needs that a slowdown of this share would have failed
    severity: a ``warning`` does not change the exit status
    """

    metric: str
    at_least: str | None = None
    at_most: str | None = None
    name: str | None = None
    op: str | None = None
    sizes: str | None = None
    backend: str | None = None
    dtype: str | None = None
    mode: str | None = None
    algorithm: str | None = None
    detect: str | None = None
    severity: Severity = "error"

    @property
    def row(self) -> Metric:
        """The metric."""
        return METRICS[self.metric]

    @property
    def limit(self) -> float:
        """In the unit of the metric: B/s, ns, fraction, ratio or number."""
        return _READ[self.row.unit](getattr(self, self.row.bound))

    @property
    def visible(self) -> float | None:
        """``detect`` as a fraction."""
        return None if self.detect is None else parse_share(self.detect)

    @property
    def title(self) -> str:
        """The name, or the rule in words."""
        return self.meaning if self.name is None else self.name

    @property
    def meaning(self) -> str:
        """The rule in words."""
        about = [part for key in _FILTERS if (part := getattr(self, key)) is not None]
        limit = WORDS[self.row.unit](self.limit)
        return " ".join([*about, self.metric, self.row.sign, limit])

    def matches(self, case: Case) -> bool:
        """Whether the rule is about ``case``."""
        return all(
            given is None or test(case, given) for key, test in _FILTERS.items() for given in (getattr(self, key),)
        )


def with_usual(own: Sequence[Rule], usual: Sequence[Rule]) -> Sequence[Rule]:
    """``own``, and the ``usual`` rules whose metrics they do not have."""
    named = {rule.metric for rule in own}
    return (*own, *(rule for rule in usual if rule.metric not in named))


def _has_size(case: Case, sizes: str) -> bool:
    return any(low <= case.size_bytes <= high for low, high in _ranges(sizes))


_FILTERS: Final[Mapping[str, Callable[[Case, str], bool]]] = {
    "op": lambda case, op: case.op == op,
    "sizes": _has_size,
    "backend": lambda case, backend: case.backend == backend,
    "dtype": lambda case, dtype: case.dtype == dtype,
    "mode": lambda case, mode: case.mode == mode,
    "algorithm": lambda case, algorithm: (explicit_algorithm(case.settings) or LIBRARY) == algorithm,
}
"""Key → whether a case has the value."""


def _ranges(sizes: str) -> list[tuple[int, int]]:
    """Closed ranges of sizes. Raises UsageError."""
    ranges = []
    for part in sizes.split(","):
        low, between, high = part.partition("..")
        if between and not {"*", "+"} & set(high):
            ends = parse_size(low) if low.strip() else 0, parse_size(high) if high.strip() else LARGEST_SIZE
            if ends[0] > ends[1]:
                raise UsageError(f"range {part!r}: the first size is larger than the second")
            ranges.append(ends)
        else:
            ranges += [(size, size) for size in parse_sizes(part)]
    return ranges


_MOST: Final = 1e9
"""No count, ratio or share of a rule is larger."""


def _time(text: str) -> float:
    nanoseconds = round(parse_time(text) * 1e9, 3)
    if not nanoseconds > 0:
        raise UsageError(f"time {text!r}: expected a time above 0, such as {EXAMPLES['time']}")
    return nanoseconds


def _positive_share(text: str) -> float:
    return parse_share(text, most=_MOST)


def _ratio(text: str) -> float:
    ratio = _number(text)
    if not 1 / _MOST <= ratio <= _MOST:
        raise UsageError(f"{text!r}: expected a ratio from {1 / _MOST:g} to {_MOST:g}, such as 1.10")
    return ratio


def _count(text: str) -> float:
    count = _number(text)
    if not (0 <= count <= _MOST and count == math.floor(count)):
        raise UsageError(f"{text!r}: expected a whole number from 0 to {_MOST:g}, such as 0")
    return count


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    return number if math.isfinite(number) else math.nan


_READ: Final[Mapping[Unit, Callable[[str], float]]] = {
    "rate": parse_rate,
    "time": _time,
    "share": _positive_share,
    "ratio": _ratio,
    "count": _count,
    "devices": _count,
}
"""Unit → reads a limit; raises UsageError."""

EXAMPLES: Final[Mapping[Unit, str]] = {
    "rate": "380GB/s",
    "time": "25us",
    "share": "90%",
    "ratio": "1.10",
    "count": "0",
    "devices": "8",
}


# --- reading and writing -------------------------------------------------------------------------------------------


def _among(allowed: Sequence[str]) -> Callable[[str], None]:
    def check(given: str) -> None:
        if given not in allowed:
            raise UsageError(f"{given!r} is unknown; {what_is_known(allowed, nearest(given, allowed))}")

    return check


def _printable(given: str) -> None:
    if not given.strip() or plain_text(given) != given:
        raise UsageError(f"{given!r}: expected one line of printable text")


_CHECKS: Final[Mapping[str, Callable[[str], object]]] = {
    "metric": _among([*METRICS]),
    "name": _printable,
    "op": _among([*OPS]),
    "sizes": _ranges,
    "backend": _among(list(dict.fromkeys([*BACKEND_NAMES, *(reader.tool.backend for reader in READERS)]))),
    "dtype": _among([*CASE_DTYPE_BYTES]),
    "mode": _among(get_args(Mode)),
    "algorithm": _among([LIBRARY, *dict.fromkeys(chain.from_iterable(ALGORITHMS.values()))]),
    "detect": parse_share,
    "severity": _among(get_args(Severity)),
}
"""Key → raises UsageError for a value that is not allowed; the limits are checked with their metric."""


def read_rules(path: Path) -> tuple[Rule, ...]:
    """The rules of a file. Raises like ``parse_rules``."""
    return parse_rules(read_text(path, MOST_TOML_BYTES, "rules "), str(path))


def parse_rules(text: str, origin: str) -> tuple[Rule, ...]:
    """The rules in TOML ``text``. Raises UsageError with a note for every mistake: rule, key, what was given, what is
    allowed.
    """
    document = read_toml(text, origin, repeated=(_TABLE,))
    tables = document.get(_TABLE, [])
    flaws = [f"unknown key {key!r}; a file of rules has only [[rule]]" for key in document if key != _TABLE]
    if not isinstance(tables, list) or len(tables) > _MOST_RULES:
        raise UsageError(f"{origin}: write each rule as [[rule]], at most {_MOST_RULES} of them", code="rules")
    tables = [_with_texts(table) if isinstance(table, dict) else {} for table in tables]
    for number, table in enumerate(tables, start=1):
        flaws += [f"rule {number}{_called(table)}: {flaw}" for flaw in _flaws(table)]
    if flaws:
        error = UsageError(f"{origin}: {counted(len(flaws), 'mistake')}", code="rules")
        for flaw in flaws:
            error.add_note(flaw)
        raise error
    return tuple(msgspec.convert(table, Rule) for table in tables)


def _called(table: Mapping[str, Any]) -> str:
    return f" ({table['name']})" if isinstance(table.get("name"), str) else ""


def _with_texts(table: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers as text: a limit may be written as 1.1 or 0."""
    return {
        key: str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
        for key, value in table.items()
    }


def _flaws(table: Mapping[str, Any]) -> Iterator[str]:
    keys = Rule.__struct_fields__
    for key, value in table.items():
        if key not in keys:
            yield f"unknown key {key!r}; {what_is_known(keys, nearest(key, keys))}"
        elif not isinstance(value, str):
            yield f"key {key!r}: {value!r:.40} is not text or a number"
        elif key in _CHECKS:
            yield from _flaw(key, _CHECKS[key], value)
    row = METRICS.get(str(table.get("metric")))
    if "metric" not in table:
        yield f"key 'metric' is missing; allowed: {', '.join(METRICS)}"
    if row is None:
        return
    other = "at_most" if row.bound == "at_least" else "at_least"
    limit = table.get(row.bound)
    if other in table:
        yield f"key {other!r}: {table['metric']} is limited by {row.bound!r}, such as {EXAMPLES[row.unit]}"
    elif limit is None:
        yield f"key {row.bound!r} is missing: the limit of {table['metric']}, such as {EXAMPLES[row.unit]}"
    if isinstance(limit, str):
        yield from _flaw(row.bound, lambda text: _limit(str(table["metric"]), text), limit)


def _limit(metric: str, text: str) -> None:
    limit = _READ[METRICS[metric].unit](text)
    if metric == "ratio_to_baseline" and limit < 1:
        raise UsageError(f"{text!r}: expected a ratio of 1 or more, such as 1.05: 5 % slower than the baseline")


def _flaw(key: str, check: Callable[[str], object], value: str) -> Iterator[str]:
    try:
        check(value)
    except UsageError as error:
        yield f"key {key!r}: {error}"


def written(rules: Sequence[Rule], comments: Sequence[str] = ()) -> str:
    """A file of rules that reads back equal, below ``comments``."""
    lines = [f"# {plain_text(comment)}".rstrip() for comment in comments]
    for rule in rules:
        keys: dict[str, JSON] = msgspec.to_builtins(rule)
        # A string of JSON is one of TOML, but for DEL, which no printable text has.
        lines += ["", "[[rule]]", *(f"{key} = {msgspec.json.encode(value).decode()}" for key, value in keys.items())]
    return "\n".join(lines) + "\n"
