"""Headings and cells of tables that people write: what a column is, in which unit, and the number in a cell.

A unit may have two meanings, of which the reader of tables chooses by the other columns: MB of a size is 10^6 or 2^20
bytes, and ``gbps`` in small letters is bytes or bits.
"""

import re
from functools import lru_cache
from typing import Final, NamedTuple

from busbw_analysis.data.readers.lines import SECONDS, number

_ALIASES: Final = {
    "size": "bytes nbytes msg msgsize message messagesize datasize payload payloadsize buffersize tensorsize "
    "transfersize payloadsz sz",
    "count": "numel",
    "dtype": "type datatype",
    "redop": "reduction reduceop",
    "root": "",
    "time": "t latency lat duration elapsed elapsedtime runtime",
    "algbw": "algobw algorithmbw algbandwidth algobandwidth algorithmbandwidth algorithmicbandwidth",
    "busbw": "busbandwidth nwbw",
    "rate": "",
    "bandwidth": "bw throughput tput speed",
    "op": "operation collective collectiveoperation name primitive",
    "ranks": "nranks numranks nproc nprocs np processes worldsize totalranks totalgpus",
    "gpus": "ngpus numgpus gpucount devices",
    "nodes": "nnodes numnodes",
    "wrong": "",
    "iterations": "iters niters numiters",
    "check": "checkresult",
    **dict.fromkeys(("statistic", "group", "source", "target"), ""),
}
_NAMES: Final = {alias: name for name, aliases in _ALIASES.items() for alias in (name, *aliases.split())}
RATES: Final = ("rate", "algbw", "busbw", "bandwidth")
"""Columns whose unit is that of a rate; of ``bandwidth`` nothing says whether it is algbw or busbw."""
RESULTS: Final = frozenset({"time", *RATES})
_STATISTICS: Final = {
    **dict.fromkeys(("avg", "average", "mean", "aveg"), "mean"),
    **dict.fromkeys(("median", "p50"), "median"),
    **dict.fromkeys(("min", "minimum"), "min"),
    **dict.fromkeys(("max", "maximum"), "max"),
    "p99": "p99",
}
_STATISTIC: Final = re.compile(f"({'|'.join(_STATISTICS)})?(.*?)({'|'.join(_STATISTICS)})?")
_SECONDS: Final = SECONDS | {
    **dict.fromkeys(("µs", "μs", "usec", "usecs", "microsec", "microseconds"), 1e-6),
    **dict.fromkeys(("msec", "msecs", "milliseconds"), 1e-3),
    **dict.fromkeys(("sec", "secs", "seconds"), 1.0),
    **dict.fromkeys(("nsec", "nanoseconds"), 1e-9),
}
_SIZE_UNIT: Final = re.compile("([KMGTkmgt]?)(i?)(?i:B(?:ytes?)?)?")
_RATE_UNIT: Final = re.compile("([KMGTkmgt]?)(i?)(B|b|(?i:bytes?)|(?i:bits?))(?i:/| ?p(?:er )?)(?i:s(?:ec(?:ond)?)?)")
_OF_UNIT: Final = ("time", "bandwidth", "size")
"""What a column is whose heading is only a unit."""
_EMPTY: Final = frozenset({"", "in", "of", "number", "elements", "elems"})
"""Words of headings that say nothing, such as those in "count (elements)" and "number of GPUs"."""
_BRACKETS: Final = re.compile(r"[(\[]([^()\[\]]*)[)\]]")
_PLACE: Final = re.compile(r"(?i)\b(?:(out[- ]?of|in)[- ]?place|oop|ip)\b")
_LONGEST: Final = 100
_CELL: Final = re.compile(r"([+-]?\d[\d.,eE+-]*?) ?(?=[A-Za-zµμ]|\([^()]*\)|$)\(?([A-Za-zµμ][A-Za-zµμ/ ]*)?\)?")
_THOUSANDS: Final = re.compile(r"\d{1,3}(?:,\d{3})+(\.\d+)?")


_SPACED: Final = re.compile(r"(?<=\d)[ _](?=\d{3}(?!\d))")
"""Between thousands: ``2 287.61``, ``2_287``."""
_SIZED: Final = re.compile(r"(?<![\w.])\d[\d.]* ?[KMGTkmgt]i?B\b(?![/p])")


class Column(NamedTuple):
    """A column of a table.

    heading: as written
    name: what it is, a key of ``_ALIASES`` or ``in_place``; None: unknown
    factors: the possible base units (B, s, B/s) in a unit of its heading; empty if that has none
    place: whether it is of the operation in place; None if the heading does not say it
    statistic: of time and rates; None if the heading does not say it
    variant: other words of a heading that has the unit of a time or rate, such as "before", or the size that it names
    """

    heading: str
    name: str | None = None
    factors: tuple[float, ...] = ()
    place: bool | None = None
    statistic: str | None = None
    variant: str | None = None


@lru_cache(maxsize=1024)
def column(heading: str) -> Column:
    """What a heading says. Every word of it has to be known, else the column has no name."""
    if (sized := _SIZED.search(heading[:_LONGEST])) is not None:  # "8 GB busbw"
        rest = column(heading[: sized.start()] + heading[sized.end() :])
        named = rest.name in {"time", "algbw", "busbw"}
        return rest._replace(heading=heading, variant=sized[0]) if named else Column(heading)
    plain = re.sub("[*`]", "", heading[:_LONGEST]).strip(": ").lstrip("#").replace("_", " ")
    inside = [part.strip() for part in _BRACKETS.findall(plain)]
    unit = next((part for part in inside if any(factors(kind, part) for kind in _OF_UNIT)), None)
    plain = " ".join([_BRACKETS.sub(" ", plain), *(part for part in inside if part != unit)])
    place = _PLACE.search(plain)
    plain = re.sub("(?<=[a-z]{2})(?=[A-Z])", " ", _PLACE.sub(" ", plain))
    words = [word for word in re.split(r"[\s:,-]+", plain) if word.lower() not in _EMPTY]
    if unit is None and words and _name(words)[0] is None:  # "time_us", "busbw GB/s", "GB/s"
        *words, unit = words
    in_place = None if place is None else place[0].lower().startswith("i")
    if place is not None and not words and unit is None:
        return Column(heading, "in_place" if in_place else None)
    alone = next((name for name in _OF_UNIT if unit is not None and factors(name, unit)), None)
    name, statistic = _name(words) if words else (alone, None)
    if name is None and alone is not None and (of_unit := _STATISTICS.get("".join(words).lower())) is not None:
        name, statistic = alone, of_unit
    known = factors(name or "", unit or ("B" if "bytes" in plain.lower() else ""))
    if (unit is not None and not known) or (statistic is not None and name not in RESULTS):
        return Column(heading)
    return Column(heading, name, known, in_place, statistic)


@lru_cache(maxsize=1024)
def variant(heading: str) -> Column:
    """A heading of unknown words with the unit of a time or rate: what it says, and those words as ``variant``."""
    plain = re.sub("[*`]", "", heading[:_LONGEST]).strip()
    words = re.sub(r"(?<=\w)(?=\()", " ", plain.replace("_", " ")).split()
    for at in (-1, 0):  # "NCCL (GB/s)", "NCCL(ms)", "GB/s with NCCL"
        known = column(words[at]) if len(words) > 1 else Column(heading)
        rest = words[:at] if at else words[1:]
        if known.name in {"time", "bandwidth"} and known.factors and "per" not in rest:
            named = next((column(f"{word} {words[at]}") for word in rest if _NAMES.get(word.lower()) in RESULTS), known)
            others = " ".join(word for word in rest if _NAMES.get(word.lower()) not in RESULTS)
            return named._replace(heading=heading, variant=others or None)
    return Column(heading)


def _name(words: list[str]) -> tuple[str | None, str | None]:
    """The name of a column and its statistic, by the words of its heading."""
    joined = "".join(words).lower()
    if joined in _NAMES:
        return _NAMES[joined], None
    match = _STATISTIC.fullmatch(joined)
    if match is None or match[2] not in _NAMES:
        return None, None
    return _NAMES[match[2]], _STATISTICS.get(match[1] or match[3])


def factors(name: str, unit: str) -> tuple[float, ...]:
    """The base units in a unit of the column ``name``, all that it may be; empty if it is no unit of such a column."""
    if name == "time":
        known = _SECONDS.get(unit.lower())
        return () if known is None else (known,)
    match = None if not unit else _SIZE_UNIT.fullmatch(unit) if name == "size" else _RATE_UNIT.fullmatch(unit)
    if match is None or name not in {"size", *RATES}:
        return ()
    power = " KMGT".index(match[1].upper() or " ")
    decimal, binary = 1e3**power, 2.0 ** (10 * power)
    if name == "size":
        return (binary,) if match[2] or not power else (decimal, binary)
    factor, letters = binary if match[2] else decimal, match[3]
    if letters == "b" and not match[1].isupper():
        return (factor, factor / 8)
    return (factor / 8,) if letters.lower().startswith("bit") or letters == "b" else (factor,)


def size_of(text: str) -> str | None:
    """The bytes in a text such as ``8 GiB``; None for any other, and for a unit that may be of 1000 or of 1024."""
    size = amount(text, whole=True)
    known = () if size is None else factors("size", size.unit)
    return str(round(size.value * known[0])) if size is not None and len(known) == 1 else None


class Amount(NamedTuple):
    """The number of a cell, its unit (empty: the cell has none), and half a unit of its last digit."""

    value: float
    unit: str
    error: float


@lru_cache(maxsize=4096)
def amount(cell: str, *, whole: bool) -> Amount | None:
    """The number of a cell; None for anything else.

    whole: the number is a whole one, so that 8,192 has thousands and no decimals
    """
    match = _CELL.fullmatch(_SPACED.sub("", cell.strip("*` ")[:_LONGEST]))
    if match is None:
        return None
    digits = match[1]
    if (thousands := _THOUSANDS.fullmatch(digits)) is not None and (whole or thousands[1] or digits.count(",") > 1):
        digits = digits.replace(",", "")
    value = number(digits)
    decimals = len(digits.lower().partition("e")[0].partition(".")[2])
    return None if value is None else Amount(value, (match[2] or "").strip(), 0.5 / 10.0**decimals)
