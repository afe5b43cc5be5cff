"""Hostile logs of other tools: the fixtures of every reader, cut, mixed and spoiled. What comes of one is results or a
LogError, soon, and every number of them is in the log.

An input has its own seed, so it can be repeated alone.
"""

import contextlib
import math
import re
import tempfile
import time
import traceback
from bisect import bisect_left
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Final

from fuzz_outcome import Outcome
from testing.logs import read_log

from busbw.errors import LogError
from busbw_analysis.data.imported import LogFacts, run_of
from busbw_analysis.data.load import pool
from busbw_analysis.data.readers.lines import clean
from busbw_analysis.data.readers.log import ForeignLog
from busbw_analysis.data.readers.paste import as_line

MOST_SECONDS: Final = 20.0
"""Of the processor; a second of work on a virtual machine without rivals was seen to take 20 beside them."""
LOGS: Final = tuple(sorted(Path(__file__).parents[1].joinpath("data/logs").glob("[!e]*")))
_MOST_CHARACTERS: Final = 300_000
_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?")
_PRODUCT: Final = re.compile(r"([0-9]{1,15})x([0-9]{1,3})\b")
"""A size as DeepSpeed writes it: elements × bytes of each."""
_CONSTANTS: Final = frozenset({16.0})
"""Sizes that a tool has without saying so: the copies of p2pBandwidthLatencyTest whose latency it prints."""
_ASSUMED: Final = {"iperf": {131072, 1448, 1460, 1470, 8192}, "qperf": {65536, 1}, "sockperf": {14}}
"""Sizes of messages by default, which a log need not have."""
_PER_SECOND: Final = ("netperf", "sockperf")
"""Tools that print how often something happened in a second, or round trips, of which a time is a part."""
_UNITS: Final = (
    0.125,
    1.0,
    8.0,
    1e-9,
    1e-6,
    1e-3,
    1e-2,
    1e3,
    1e6,
    1e9,
    1e12,
    2.0**10,
    2.0**20,
    2.0**30,
    125.0,
    125e3,
    125e6,
    125e9,
)
_JUNK: Final = (
    *("nan", "inf", "-inf", "-1", "1e309", "9" * 400, "1_000", "0x10", "\u0663", "", "N/A", "XXX.XX", "1e-400", "-0"),
    *("\ufeff1", "1\x00", "[[" * 5000, '"', "{}", "null", "1e+07", "18446744073709551616", "\u202e", "1,5"),
)
_INSERTED: Final = (
    "node1:4000:4010 [0] NCCL INFO Channel 00/02 : 0 1",
    "node1:4000:4010 [0] misc/socket.cc:484 NCCL WARN Net : Connection closed by remote peer",
    *("srun: error: node1: task 0: Exited with exit code 1", "node1:1:1 [0] NCCL INFO " + "x" * 5000, "1" * 3000),
    *("A failed ERROR: a_perf -b " * 5000, '# Benchmarking RDMA_Write Send (row) OSU {["' * 5000, "\n \n" * 20_000),
    *("{\n" * 20_000, " ".join(["7"] * 21), ""),
)
_PREFIXES: Final = ("[1,0]<stdout>:", "0: ", "[0] ", "\x1b[31m", "2026-01-01T00:00:00Z ", "node1: ", "> ", "[pod/a/b] ")


def _delete(random: Random, lines: list[str]) -> None:
    del lines[random.randrange(len(lines)) : random.randrange(len(lines)) + 1]


def _duplicate(random: Random, lines: list[str]) -> None:
    at = random.randrange(len(lines))
    lines[at:at] = lines[at : at + random.randint(1, 4)] * random.choice((1, 1, 2, 50))


def _truncate(random: Random, lines: list[str]) -> None:
    at = random.randrange(len(lines))
    lines[at] = lines[at][: random.randrange(len(lines[at]) + 1)]
    if random.random() < 0.5:
        del lines[at + 1 :]


def _flip(random: Random, lines: list[str]) -> None:
    for _ in range(random.choice((1, 3, 30))):
        at = random.randrange(len(lines))
        if lines[at]:
            place = random.randrange(len(lines[at]))
            lines[at] = lines[at][:place] + chr(random.randrange(256)) + lines[at][place + 1 :]


def _interleave(random: Random, lines: list[str]) -> None:
    others = _lines(random.choice(LOGS)) if random.random() < 0.5 else list(lines)
    mixed = list(lines)
    for line in others:
        mixed.insert(random.randrange(len(mixed) + 1), line)
    lines[:] = mixed if random.random() < 0.5 else [line for pair in zip(lines, others, strict=False) for line in pair]


def _insert(random: Random, lines: list[str]) -> None:
    for _ in range(random.choice((1, 5))):
        at = random.randrange(len(lines))
        if random.random() < 0.5:
            lines.insert(at, random.choice(_INSERTED))
        else:
            place = random.randrange(len(lines[at]) + 1)
            lines[at : at + 1] = [lines[at][:place] + random.choice(_INSERTED), lines[at][place:]]


def _prefix(random: Random, lines: list[str]) -> None:
    prefix = random.choice(_PREFIXES)
    share = random.choice((1.0, 0.5))
    lines[:] = [prefix + line if random.random() < share else line for line in lines]


def _junk(random: Random, lines: list[str]) -> None:
    at = random.randrange(len(lines))
    numbers = list(_NUMBER.finditer(lines[at]))
    for found in numbers[-1:] if random.random() < 0.5 else random.sample(numbers, min(1, len(numbers))):
        lines[at] = lines[at][: found.start()] + random.choice(_JUNK) + lines[at][found.end() :]


_CHANGES: Final[tuple[Callable[[Random, list[str]], None], ...]] = (
    *(_delete, _duplicate, _truncate, _flip, _interleave, _insert, _prefix, _junk, _junk, _junk),
)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() or [""]


def make(seed: int) -> tuple[Path, bytes]:
    """The input of ``seed``, always the same, and the fixture that it was."""
    random = Random(seed)
    path = LOGS[seed % len(LOGS)]
    lines = _lines(path)
    for _ in range(random.choice((1, 1, 2, 4))):
        random.choice(_CHANGES)(random, lines)
        lines = lines or [""]
    text = random.choice(("\n", "\n", "\r\n")).join(lines)[:_MOST_CHARACTERS]
    return path, text.encode("latin-1" if random.random() < 0.1 and text.isascii() else "utf-8", "replace")


def _numbers(text: str) -> list[float]:
    stripped = [line.text for line in clean(text.split("\n"))]
    seen = as_line(text)  # without characters that nobody sees, such as a soft hyphen inside a number
    found = {float(word) for part in (text, seen, *stripped) for word in _NUMBER.findall(part)} | _CONSTANTS
    found |= {float(count) * float(each) for count, each in _PRODUCT.findall(text + seen)}
    return sorted(filter(math.isfinite, found))


def _told(log: ForeignLog) -> Iterable[float | None]:
    for row in log.rows:
        is_sum = log.tool == "iperf" and (row.samples_seconds or "streams" in (row.tool_op or ""))
        yield from (row.count, row.time_seconds, None if is_sum else row.rate, row.busbw, row.iterations)
        is_implied = log.tool == "sockperf" and row.messages is not None  # by bandwidth and rate of messages
        is_assumed = is_implied or row.tool_size_bytes in _ASSUMED.get(log.tool, ())
        if not is_assumed and row.tool_size_bytes != (row.count or 0) * _real(
            row.others.get("dtype_bytes")
        ):  # as of JAX
            yield row.tool_size_bytes
        if not row.time_seconds or row.algbw != (row.tool_size_bytes or 0) / row.time_seconds:  # as of ucc_perftest
            yield row.algbw
        size = (row.tool_size_bytes or 0) if log.tool == "iperf" else None
        several = size is not None and "streams" in (row.tool_op or "")
        yield from () if several else (seconds if size is None else size / seconds for seconds in row.samples_seconds)
        yield from (value for value in row.others.values() if isinstance(value, float))


def _real(value: float | str | None) -> float:
    return value if isinstance(value, float) else 0.0


def _foreign(log: ForeignLog, text: str) -> float | None:
    """A number of the results that is not in the log in any unit; None: there is none."""
    known = _numbers(text)
    for value in set(_told(log)) - {None, 0}:
        assert value is not None
        parts = (value, 1 / value, 0.5 / value, 2 * value) if log.tool in _PER_SECOND else (value,)
        if not any(_near(known, abs(part) / unit) for part in parts for unit in _UNITS):
            return value
    return None


def _near(known: list[float], value: float) -> bool:
    at = bisect_left(known, value)
    return any(math.isclose(value, other, rel_tol=1e-9) for other in known[max(0, at - 1) : at + 2])


def attempt(path: Path, content: bytes) -> str | None:
    """What was wrong with how the log was read; None: it was read or refused as it should."""
    path.write_bytes(content)
    try:
        log = read_log(path)
        with contextlib.suppress(LogError):  # too little for a case; what is read is held against the log all the same
            pool([run_of(log, "0" * 64, 0.0, LogFacts(), path)])
    except LogError as error:
        said = str(error)
        return None if path.name in said and "\n" not in said else f"no sentence with the file: {said[:80]!r}"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the campaign looks for
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {str(error)[:80]}"
    foreign = _foreign(log, content.decode("utf-8", "replace"))
    return None if foreign is None else f"{foreign!r} is not in the log"


def campaign(seed: int, seconds: float | None, count: int | None) -> Outcome:
    """The inputs of ``seed``, ``seed`` + 1 and so on, until ``seconds`` are over or ``count`` of them were tried."""
    until = math.inf if seconds is None else time.monotonic() + seconds
    last = math.inf if count is None else seed + count
    failures: list[str] = []
    slowest, now = 0.0, seed
    with contextlib.suppress(KeyboardInterrupt), tempfile.TemporaryDirectory() as scratch:
        while now < last and time.monotonic() < until:
            original, content = make(now)
            begun = time.process_time()
            failure = attempt(Path(scratch, "fuzzed.log"), content)
            taken = time.process_time() - begun
            if failure is None and taken > MOST_SECONDS:
                failure = f"took {taken:.1f} s"
            if failure is not None:
                failures.append(f"--seed {now} --count 1: {failure}: {original.name}")
            slowest, now = max(slowest, taken), now + 1
    return Outcome(now - seed, tuple(failures), slowest)
