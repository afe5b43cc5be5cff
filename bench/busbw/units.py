"""Parsing and formatting of sizes, rates and times.

Internally, everything is in base units: bytes, bytes per second, integer nanoseconds. Rates are decimal
(1 GB/s = 1e9 B/s); buffer sizes are binary, with the units KiB, MiB and GiB.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from fractions import Fraction
from itertools import groupby
from typing import Final

from busbw.errors import UsageError

MOST_SIZES: Final = 10_000
"""Maximum number of sizes in a list or range."""
LARGEST_SIZE: Final = (1 << 63) - 1

_BINARY = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([A-Za-z]*)\s*")
_RANGE = re.compile(r"\s*(?P<low>[^.*+]+?(?:\.\d+\s*\w*)?)\s*\.\.\s*(?P<high>[^*+]+?)\s*(?P<how>[*+])\s*(?P<step>.+)")
_NUMBER_AND_UNIT = re.compile(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([^\s0-9.][^\s]*)\s*")
_PREFIXES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_RATES = {f"{prefix}B/s": factor for prefix, factor in _PREFIXES.items()} | {
    f"{prefix}b/s": factor / 8 for prefix, factor in _PREFIXES.items()
}
_TIMES = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_SPANS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_NUMBERS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_MOST_NUMBERS = 1_000_000


def clock_time(stamp: str) -> str:
    """A stored timestamp to the second, as people read it: ``2026-11-21 06:12:34``; any other text stays as it is."""
    try:
        return datetime.fromisoformat(stamp).replace(tzinfo=None).isoformat(" ", "seconds")
    except ValueError:
        return stamp


def parse_size(text: str) -> int:
    """Parse a buffer size to bytes: ``8``, ``64KiB``, ``1.5GiB``.

    Raises UsageError for anything else. ``M`` and ``MB`` are refused, because they may mean 10^6 or 2^20.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        ranges = "; write a range as 8..64MiB*2" if "-" in text else ""
        raise UsageError(f"size {text!r}: expected bytes (8) or a binary unit (64KiB, 1MiB, 1.5GiB){ranges}")
    number, unit = match.groups()
    factor = _BINARY.get(unit or "B")
    if factor is None:
        hint = _meant(number, unit[0].upper(), binary="i" in unit.lower())
        raise UsageError(f"size {text!r}: unit {unit!r} is not allowed; allowed are {', '.join(_BINARY)}{hint}")
    size = Fraction(number) * factor  # a float is not exact above 2**53
    if size.denominator != 1:
        raise UsageError(f"size {text!r} is not a whole number of bytes")
    if size > LARGEST_SIZE:
        raise UsageError(f"size {text!r} is too large; the maximum is {LARGEST_SIZE} B")
    return int(size)


def _meant(number: str, letter: str, *, binary: bool) -> str:
    """The sizes that a refused unit may mean: in decimal units unless it is ``binary``, and in binary ones."""
    power = " KMGT".find(letter)
    if power < 1:
        return ""
    decimal = Fraction(number) * 1000**power
    in_bytes = f"{decimal} ({number} {letter}B) or " if decimal.denominator == 1 and not binary else ""
    return f"; did you mean {in_bytes}{number}{letter}iB?"


def parse_sizes(text: str) -> tuple[int, ...]:
    """Parse the sizes of a sweep: a list (``8,1KiB,1MiB``), a geometric range (``8..64MiB*2``), an arithmetic one
    (``1MiB..4MiB+512KiB``) or a mixture. The result is ascending and without duplicates.

    Raises UsageError for an empty sweep, a descending range, a factor ≤ 1 or a step of 0.
    """
    sizes: set[int] = set()
    count = 0  # with duplicates, which take as long
    for part in text.split(","):
        if count > MOST_SIZES:
            raise UsageError(f"more than {MOST_SIZES} sizes, which is the maximum")
        count += 1
        match = _RANGE.fullmatch(part)
        if match is None:
            if ".." in part:
                raise UsageError(f"range {part!r} needs a factor or step, such as 8..64MiB*2 or 1MiB..4MiB+512KiB")
            sizes.add(parse_size(part))
            continue
        low, high = parse_size(match["low"]), parse_size(match["high"])
        if low > high:
            raise UsageError(f"range {part!r}: {match['low']} is larger than {match['high']}; write it ascending")
        of_part = _stepped(part, low, high, match["how"], match["step"])
        count += len(of_part)
        sizes.update(of_part)
    return tuple(sorted(sizes))


def _stepped(part: str, low: int, high: int, how: str, step: str) -> list[int]:
    """The sizes of a range with a factor (``how`` is ``*``) or a step."""
    sizes: list[int] = []
    if how == "+":
        width = parse_size(step)
        if width == 0:
            raise UsageError(f"range {part!r}: the step must be above 0")
        sizes = list(range(low, min(high, low + MOST_SIZES * width) + 1, width))
    else:
        try:
            factor = float(step)
        except ValueError:
            factor = 0.0
        if not 1 < factor < float("inf") or low == 0:
            raise UsageError(f"range {part!r}: a geometric range must start above 0 and have a factor above 1")
        size = float(low)
        # A large factor makes it infinite.
        while size <= LARGEST_SIZE and round(size) <= high and len(sizes) <= MOST_SIZES:
            sizes.append(round(size))
            size *= factor
    if len(sizes) > MOST_SIZES:
        raise UsageError(f"range {part!r} has more than {MOST_SIZES} sizes")
    return sizes


def parse_rate(text: str) -> float:
    """Parse a rate to bytes per second: ``50GB/s``, or ``400Gb/s`` in bits as for network cards.

    Raises UsageError for anything else, and for a rate of 0.
    """
    rate = _in_units("rate", text, _RATES, "50GB/s, 400Gb/s")
    if not rate > 0:
        raise UsageError(f"rate {text!r}: expected a rate above 0")
    return rate


def parse_time(text: str) -> float:
    """Parse a time to seconds: ``2us``, ``1.5ms``, ``3s``. Raises UsageError for anything else."""
    return _in_units("time", text, _TIMES, "2us, 1.5ms")


def parse_span(text: str) -> float:
    """Parse a time of seconds to days to seconds: ``30s``, ``90min``, ``8h``. Raises UsageError for anything else."""
    return _in_units("time", text, _SPANS, "30s, 90min, 8h")


def parse_seconds(text: str) -> float:
    """Parse a time to seconds: ``0.5`` (seconds), ``500ms``, ``2min``. Raises UsageError for anything else."""
    try:
        return float(text)
    except ValueError:
        return _in_units("time", text, _TIMES | _SPANS, "0.5, 500ms, 2min")


def parse_share(text: str, most: float = 1) -> float:
    """Parse a share to a fraction between 0 and ``most``: ``5%`` or ``0.05``. Raises UsageError for anything else."""
    number = text.strip().removesuffix("%")
    try:
        share = float(number) / (100 if text.strip().endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 < share < most:
        fraction = f"a fraction between 0 and {most:g}" if most < math.inf else "a fraction above 0"
        raise UsageError(f"{text!r}: expected a percentage (5%) or {fraction} (0.05)")
    return share


def _in_units(what: str, text: str, units: Mapping[str, float], examples: str) -> float:
    match = _NUMBER_AND_UNIT.fullmatch(text)
    factor = units.get(match[2]) if match else None
    if match is None or factor is None:
        raise UsageError(f"{what} {text!r}: expected a number with one of {', '.join(units)}, such as {examples}")
    return float(match[1]) * factor


def format_size(size_bytes: int) -> str:
    """``1048576`` → ``1 MiB``; in bytes if no binary unit gives the exact size with two decimals."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        whole, rest = divmod(size_bytes, _BINARY[unit])
        hundredths, beyond = divmod(rest * 100, _BINARY[unit])
        if whole >= 1 and beyond == 0:
            return f"{whole}.{hundredths:02d}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{size_bytes} B"


def about_size(size_bytes: float) -> str:
    """A rounded size with three digits: ``34752`` → ``33.9 KiB``."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_bytes >= _BINARY[unit]:
            return f"{_three_or_four_digits(size_bytes / _BINARY[unit])} {unit}"
    return f"{_three_or_four_digits(size_bytes)} B"


def _three_or_four_digits(value: float) -> str:
    """Four digits from 1000 to 1023, which occur in binary units."""
    return f"{value:.0f}" if value >= 999.5 else f"{value:.3g}"


def format_rate(bytes_per_second: float | None) -> str:
    """``1.25e10`` → ``12.5 GB/s`` with three significant digits; None (no data are sent) → ``–``."""
    if bytes_per_second is None:
        return "–"
    return _in_one_of(bytes_per_second, _prefixed("B/s"))


def format_flop(flop_per_second: float) -> str:
    """``5.12e10`` → ``51.2 GFLOP/s`` with three significant digits."""
    return _in_one_of(flop_per_second, [("PFLOP/s", 1e15), *_prefixed("FLOP/s")])


def format_time(nanoseconds: float) -> str:
    """``1_234_567`` → ``1.23 ms`` with three significant digits."""
    return _in_one_of(nanoseconds, (("s", 1e9), ("ms", 1e6), ("µs", 1e3), ("ns", 1.0)))


def signed_time(nanoseconds: float) -> str:
    """A difference of times: ``−1.23 ms``."""
    return f"{'−' if nanoseconds < 0 else ''}{format_time(abs(nanoseconds))}"


def format_seconds(seconds: float) -> str:
    """``0.00123`` → ``1.23 ms``."""
    return format_time(seconds * 1e9)


def format_span(seconds: float) -> str:
    """A duration in whole units: ``8 s``, ``3 min 5 s``, ``2 h 10 min``."""
    whole = max(0, round(seconds))
    minutes, rest = divmod(whole, 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes_over = divmod(minutes, 60)
    return f"{hours} h {minutes_over} min" if hours else f"{minutes} min {rest} s"


def _prefixed(unit: str) -> list[tuple[str, float]]:
    return [(f"{prefix}{unit}", factor) for prefix, factor in reversed(_PREFIXES.items())]


def _in_one_of(value: float, units: Sequence[tuple[str, float]]) -> str:
    """``value`` in the largest unit in which it is at least 1 after rounding: 999.9 MB/s is 1 GB/s."""
    rounded = abs(float(f"{value:.3g}"))
    name, factor = next((unit for unit in units if rounded >= unit[1]), units[-1])
    text = f"{value / factor:.3g}"
    return f"{f'{float(text):.0f}' if 'e+' in text else text} {name}"


def significant(value: float, decimals: int, width: int) -> str:
    """``value`` with at least three significant digits, and with ``decimals`` decimals if they fit into ``width``."""
    needed = max(0, 2 - math.floor(math.log10(value))) if value > 0 else decimals
    for digits in (max(decimals, needed), needed):
        text = f"{value:.{digits}f}"
        if len(text) <= width:
            return text
    return f"{value:.2e}"


def counted(count: int, singular: str, many: str | None = None) -> str:
    """A number with its noun: ``1 case``, ``2 cases``."""
    return f"{count} {singular if count == 1 else many or singular + 's'}"


def listed(texts: Iterable[str], most: int | None = None, *, word: str = "and") -> str:
    """``a, b and c``; if that is longer, ``most`` texts and the number of the others: ``a, b and 3 more``."""
    names = list(texts)
    if most is not None and len(names) > most + 1:
        names[most:] = [f"{len(names) - most} more"]
    return f" {word} ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def number_list(numbers: Iterable[int]) -> str:
    """Numbers in the kernel's notation for core lists: ``0-3,8``, ascending and without duplicates."""
    # In a run of consecutive numbers, the difference of number and index is constant.
    runs = groupby(enumerate(sorted(set(numbers))), key=lambda indexed: indexed[1] - indexed[0])
    ends = [(run[0], run[-1]) for run in ([number for _, number in indexed] for _, indexed in runs)]
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ends)


def numbers_in(text: str) -> tuple[int, ...] | None:
    """Parse ``number_list``; None if ``text`` is not such a list, or has more than a million numbers."""
    numbers: list[int] = []
    for part in text.strip().split(",") if text.strip() else ():
        match = _NUMBERS.fullmatch(part)
        if match is None:
            return None
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < first + _MOST_NUMBERS - len(numbers):
            return None
        numbers += range(first, last + 1)
    return tuple(numbers)
