"""Clean lines of logs, without the additions of launchers, terminals and containers; and parsing of their words."""

import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from busbw.ops import OPS
from busbw.units import LARGEST_SIZE

LONGEST_LINE: Final = 1 << 20
"""Maximum characters; longer lines arrive in parts."""
_LONGEST_TEXT: Final = 1 << 13
"""Maximum characters of a line outside JSON. No table is wider, and some patterns take quadratic time."""

SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_DECIMAL: Final = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BINARY: Final = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
RATES: Final = {
    f"{prefix}{unit}/s": factor / bits
    for unit, bits in (("B", 1), ("b", 8))
    for prefix, factor in (_DECIMAL | _BINARY).items()
}
"""Unit of a rate → bytes per second."""

_DTYPES: Final = {
    "float": "float32",
    "fp32": "float32",
    "f32": "float32",
    "double": "float64",
    "half": "float16",
    "fp16": "float16",
    "f16": "float16",
    "bf16": "bfloat16",
    "char": "int8",
    "byte": "uint8",
    "int": "int32",
    "32-bit": "int32",
    "64-bit": "int64",
    "f8e4m3": "float8_e4m3",
    "fp8_e4m3": "float8_e4m3",
    "f8e5m2": "float8_e5m2",
    "fp8_e5m2": "float8_e5m2",
}
_REDOPS: Final = {"prod": "product", "none": None, "": None}
_OPS: Final = {name.replace("_", ""): name for name in OPS} | {"bcast": "broadcast", "alltoallsingle": "all_to_all"}
NCCL_BLOCKS: Final = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
MPI_BLOCKS: Final = frozenset({"all_gather", "all_to_all", "all_to_all_v", "gather", "scatter"})
"""Operations whose size or count is that of one block, in NCCL's and in MPI's benchmarks."""
_EVEN: Final = frozenset({"allgatherv", "gatherv", "scatterv", "alltoallw"})
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,40}(?:\.[0-9]{1,40})?(?:[eE][+-]?[0-9]{1,3})?")
_NOISE: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00\ufeff]")
_PREFIX: Final = re.compile(
    r"\s*(?:"
    r"(?:[A-Z][a-z]{2} [A-Z][a-z]{2} +\d+ [\d:]+ \d{4})?"  # Open MPI --timestamp-output, before
    r"\[(?:\d+|[\w.-]+@\d+),(?P<tagged>\d+)\]<std\w+>:?\s?"  # --tag-output
    r"|\[?(?P<rank>\d{1,7})(?:\]:?|:)\s(?=\s*\S)"  # srun --label, MPICH -prepend-rank
    r"|\[pod/[^\]]*\]\s|\[(?:default|rank)\d+\]:\s?"  # kubectl logs --prefix, torchrun
    r"|\[\d{4}-\d\d-\d\d[T ][\d:.,]+Z?\]\s"
    r"|\d{4}[-/]\d\d[-/]\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?\s"
    r"(?:std\w+\s[FP]\s|\d\d[OE][ +]|[\w.-]{1,64} [\w.-]{1,64}\[\d+\]:\s)?"  # container, GitLab, journald
    r"|1\d{9}\.\d{1,9}\s(?=\s*\S)|\{\w+=\"[^\"]*\"(?:, ?\w+=\"[^\"]*\")*\}\s"  # ts, logcli
    r"|\d\d:\d\d:\d\d(?:[.,]\d+)?\s"
    r"|(?:[-|]\s)?(?:DEBUG|INFO|WARNING|ERROR)\s*(?:-\s|\|\s+\S{1,99}\s-\s|:\w{0,64}:)"  # Python's logging, loguru
    r"|\((?:[\w.]{1,64}\s)?pid=\d+(?:, ip=[\d.]+)?\)\s"  # Ray
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?:\S{1,64} [\w.-]{1,64}(?:\[\d+\])?:\s)?"  # journald, syslog, ts
    r"|[\w.-]{1,64}\s*\|\s(?=\s*[#\d][^|]*$)"  # docker compose
    r"|[A-Za-z][\w.-]{0,63}:\s+(?=#|\d\S*\s+\S)"  # pdsh
    r"|[a-z][\w.]{0,64}-[\w.-]{1,64} [a-z][\w-]{0,64} (?=\s*[#\d])"  # stern
    r"|[\w./-]{1,99}\.(?:log|txt|out|err|o\d+)[:-](?:\d+[:-])?"  # grep -H
    r"|>\s(?=\s*[#\d]))"
)
_NCCL: Final = re.compile(
    # A host name that starts with a letter may follow the root of a row directly: "-1node7:12:34 [0] NCCL INFO".
    r"(?:(?:(?:^|(?<=\s))(?!-1)\S{0,255}?|[A-Za-z][\w.-]{0,63}):\d+:\d+(?: \[-?\d+\])?(?: \S{1,255})? "
    r"|^\s*(?:\[-?\d+\] )?(?:[\w./]{1,255}:\d+ )?)"
    r"NCCL (?:INFO|WARN|TRACE|DEBUG|CALL)\b.*$"
)
_HOST: Final = re.compile(r"(?:\S{0,255}:)?([^\s:]{1,255}):\d+:\d+\b")
_MOST_HOSTS: Final = 1 << 12
_SUFFIX: Final = re.compile(r"(?:(?:test)?perf(?:mpi)?|test|block|base)$")
_QUOTED: Final = re.compile(r'\s*"([^"]*)(?:",?)?\s*')
"""A line as item of a JSON list, which is how Ansible shows the output of a command."""
GLUED: Final = re.compile(r"(?<=\d)\[\d{1,7}(?:,\d{1,7}\]<std(?:out|err)>:|\])(?=\s|$)")
"""The label of a rank inside a row: ``-1[0]     42.1``, ``-1[1,0]<stdout>:    42.1``."""


_HEADING: Final = re.compile(
    r"(?i)#?(?:size|count|type|redop|root|time|algbw|busbw|#wrong|bytes|secs?\.|repetitions|iterations|throughput|elapsed"
    r"|\((?:B|[mun]?s|[KMG]i?B/s(?:ec)?)\)|[\w.^]*(?:bits|bytes|MB|msg|usec|xfers)/(?:s|sec|xfer)|\w+\[[\w/]+\])"
)
_FEWEST_HEADINGS: Final = 3
_HEADING_SHARE: Final = 0.4

HOSTS: Final = re.compile(
    r"(?<!\S)(?:-H|--?hosts?)[= ](?!(?i:x+)(?![\w.-]))([\w.-]+(?::\d+)?(?:,[\w.-]+(?::\d+)?)*)(?!\S)"
)
"""The hosts that a launcher is given by name, with their slots; ``xxx`` hides some."""


class Line(NamedTuple):
    """A cleaned line of a log.

    number: from 1
    text: without colours, prefixes and NCCL messages
    label: the rank that a launcher printed before it
    nccl: the NCCL message in the line
    """

    number: int
    text: str
    label: str | None
    nccl: str | None


def clean(lines: Iterable[str]) -> Iterator[Line]:
    """The lines of a log without colours, carriage returns and launcher prefixes, with NCCL's messages separated."""
    hosts: set[str] = set()
    for number, raw in enumerate(lines, 1):
        text = raw[:_LONGEST_TEXT].rstrip("\r\n")
        nccl = None
        if "NCCL " in text and (match := _NCCL.search(text)) is not None:
            start = match.start() + _glued(text[: match.start()], match[0], hosts)
            text, nccl = text[:start], text[start:]
        if "\x1b" in text or "\x00" in text or "\ufeff" in text:
            text = _NOISE.sub("", text)
        if "\r" in text:
            text = text.rpartition("\r")[2]
        label = None
        while (prefix := _PREFIX.match(text)) is not None:
            label = prefix["tagged"] or prefix["rank"] or label
            text = text[prefix.end() :]
        if label is not None and f"{label}]" in text:
            text = GLUED.sub(" ", text)
        if (quoted := _QUOTED.fullmatch(text)) is not None:
            text = quoted[1].replace("\\t", "\t")
        yield Line(number, text.strip(), label, nccl)


def has_prefix(text: str) -> bool:
    """Whether a launcher's prefix stands before a line."""
    return _PREFIX.match(_NOISE.sub("", text)) is not None


def without_prefix(text: str) -> str:
    """A line without colours, the prefixes of launchers and space around it."""
    text = _NOISE.sub("", text)
    while (prefix := _PREFIX.match(text)) is not None:
        text = text[prefix.end() :]
    return text.strip()


def _glued(before: str, message: str, hosts: set[str]) -> int:
    """How many characters at the start of an NCCL ``message`` are the end of a row, such as 1 in ``0node7:12:34``.

    ``node7`` is recognised because it started an earlier line; ``hosts`` collects these names.
    """
    host = _HOST.match(message)
    if host is None or host[1] in hosts:
        return 0
    if len(before.split()) <= 1 and len(hosts) < _MOST_HOSTS:  # nothing before it except the label of a rank
        hosts.add(host[1])
        return 0
    return min((len(host[1]) - len(name) for name in hosts if host[1].endswith(name)), default=0)


def hosts_of(command: str | Sequence[str], ranks: int) -> tuple[str, ...]:
    """The host of each of ``ranks``, from the command line of a launcher or a list with one for each; () if it names
    none, or if their slots (one where it says none) are not as many.
    """
    if isinstance(command, str):
        found = HOSTS.search(command)
        named = (host.partition(":") for host in found[1].split(",")) if found is not None else ()
        command = [host for host, _, count in named for _ in range(int(count or 1))]
    return tuple(command) if len(command) == ranks else ()


def are_headings(words: Sequence[str]) -> bool:
    """Whether words are those of a line of headings or units above rows of some tool."""
    known = sum(_HEADING.fullmatch(word) is not None for word in words)
    return known >= max(_FEWEST_HEADINGS, _HEADING_SHARE * len(words)) and not any(
        number(word) is not None for word in words
    )


def number(text: str) -> float | None:
    """A finite number; None for anything else, such as ``N/A``, ``nan`` and ``inf``."""
    if _NUMBER.fullmatch(text) is None:
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def whole(text: object) -> int | None:
    """A count or a number of bytes, also in the form ``1e+07``; None for anything else."""
    plain = str(text).strip()
    value = int(plain) if plain.isascii() and plain.isdecimal() and len(plain) < 20 else number(plain)
    if value is None or not 0 <= value <= LARGEST_SIZE or value != int(value):
        return None
    return int(value)


def op_named(name: str) -> str | None:
    """busbw's name of a collective; None if busbw does not have it."""
    return _OPS.get(_SUFFIX.sub("", re.sub("[^a-z]", "", name.lower())))


def mpi_op_named(name: str) -> str | None:
    """``op_named`` for tools that use equal blocks even in calls for unequal ones, such as ``MPI_Allgatherv``."""
    plain = re.sub("[^a-z]", "", name.lower())
    return op_named(plain) or (op_named(plain[:-1]) if plain in _EVEN else None)


def dtype_named(name: str | None) -> str | None:
    """busbw's name of a type, else the given name; None for ``none``, which busbw's own export writes."""
    return None if name in {None, "", "none"} else _DTYPES.get(name.removeprefix("MPI_").lower(), name)


def redop_named(name: str | None) -> str | None:
    """busbw's name of a reduction, else the given name."""
    return None if name is None else _REDOPS.get(name, name)


def numbered(headings: Iterable[str]) -> list[str]:
    """The headings of a table; repeated headings get their column number."""
    names: list[str] = []
    for name in headings:
        names.append(name if name not in names else f"{name} {len(names)}")
    return names


def scaled(value: float | None, factor: float) -> float | None:
    """The value in base units. Factors below 1 are divided by: only division gives the nearest float."""
    if value is None:
        return None
    return value * factor if factor >= 1 else value / round(1 / factor)


def rest(row: Mapping[str, float | None], used: Container[str]) -> dict[str, float]:
    """The columns that are not ``used``, by their headings; columns without a number are omitted."""
    return {name: value for name, value in row.items() if name not in used and value is not None}


def verdict(wrong: float | str | None) -> dict[str, Any]:
    """The fields ``check`` and ``wrong_elements`` for a number of wrong elements; not checked if it is not a number."""
    count = number(str(wrong).strip())
    check = "not checked" if count is None else "wrong" if count else "verified"
    return {"check": check, "wrong_elements": None if count is None else whole(count)}
