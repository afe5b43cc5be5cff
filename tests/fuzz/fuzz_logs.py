"""Hostile logs of other tools: the fixtures of every reader, cut, mixed and spoiled, or pasted as people paste them.

What comes of one is results or a LogError, soon, and every number of them is in the log. Of a paste that has only lost
something or looks otherwise, every row is one of the fixture.

An input has its own seed, so it can be repeated alone.
"""

import contextlib
import math
import re
import time
import tomllib
import traceback
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from fuzz_outcome import Outcome
from pastes import PASTES, PREFIXES, fill, wrap, write

from busbw.errors import LogError
from busbw_analysis.data.imported import LogFacts, run_of
from busbw_analysis.data.load import pool
from busbw_analysis.data.readers.lines import clean
from busbw_analysis.data.readers.log import ForeignLog
from busbw_analysis.data.readers.logs import read_file, recognise
from busbw_analysis.data.readers.paste import as_line
from busbw_analysis.data.readers.training import OfTraining, TrainingLog

MOST_SECONDS: Final = 20.0
"""Of the processor; a second of work on a virtual machine without rivals was seen to take 20 beside them."""
_DATA: Final = Path(__file__).parents[1] / "data"
_STEPS: Final = 6
"""Of each training program."""
_CLOSE: Final = 1e-2
"""By which matrices of the CUDA samples differ in the copies inside a GPU, of which the first is read. Of iperf, the
mean is read of those intervals that are left.
"""
_JOINED_SHARE: Final = 0.1
_POOLED_SHARE: Final = 0.1
"""Of the inputs with results: pooling takes as long as all the rest, and sees of them only what a reader returned."""
_MOST_CHARACTERS: Final = 300_000
_NUMBER: Final = re.compile(r"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?")
_PRODUCT: Final = re.compile(r"([0-9]{1,15})x([0-9]{1,3})\b")
"""A size as DeepSpeed writes it: elements × bytes of each."""
_THOUSANDS: Final = re.compile(r"(?<=\d)[,_](?=\d{3}(?!\d))")
_CONSTANTS: Final = frozenset({16.0})
"""Sizes that a tool has without saying so: the copies of p2pBandwidthLatencyTest whose latency it prints."""
_ASSUMED: Final = {"iperf": {131072, 1448, 1460, 1470, 8192}, "qperf": {65536, 1}, "sockperf": {14}}
"""Sizes of messages by default, which a log need not have."""
_CUT: Final = ("nccl-tests-truncated.txt",)
"""Fixtures with a row that is cut, which are whole where more of them is cut."""
_IN_GIB: Final = ("nccom-test",)
"""Tools whose GB/s are GiB/s, which a table does not say."""
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
    *("\ufeff1", "1\x00", "[[" * 50, '"', "{}", "null", "1e+07", "18446744073709551616", "\u202e", "1,5"),
)
_INSERTED: Final = (
    "node1:4000:4010 [0] NCCL INFO Channel 00/02 : 0 1",
    "node1:4000:4010 [0] misc/socket.cc:484 NCCL WARN Net : Connection closed by remote peer",
    *("srun: error: node1: task 0: Exited with exit code 1", "node1:1:1 [0] NCCL INFO " + "x" * 500, "1" * 300),
    *("A failed ERROR: a_perf -b " * 5, '# Benchmarking RDMA_Write Send (row) OSU {["' * 5, "\n \n", "{\n" * 20),
    *(" ".join(["7"] * 21), ""),
)
_LARGE: Final = (
    *("[[" * 5000, "node1:1:1 [0] NCCL INFO " + "x" * 5000, "1" * 3000, "A failed ERROR: a_perf -b " * 5000),
    *('# Benchmarking RDMA_Write Send (row) OSU {["' * 5000, "\n \n" * 20_000, "{\n" * 20_000),
)
"""For what takes quadratic time; only in a few inputs, because all of them take long."""
_LARGE_SHARE: Final = 0.005


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
    others = list(_any(random).lines) if random.random() < 0.5 else list(lines)
    mixed = list(lines)
    for line in others:
        mixed.insert(random.randrange(len(mixed) + 1), line)
    lines[:] = mixed if random.random() < 0.5 else [line for pair in zip(lines, others, strict=False) for line in pair]


def _insert(random: Random, lines: list[str]) -> None:
    for _ in range(random.choice((1, 5))):
        at = random.randrange(len(lines))
        inserted = random.choice(_LARGE if random.random() < _LARGE_SHARE else _INSERTED)
        if random.random() < 0.5:
            lines.insert(at, inserted)
        else:
            place = random.randrange(len(lines[at]) + 1)
            lines[at : at + 1] = [lines[at][:place] + inserted, lines[at][place:]]


def _prefix(random: Random, lines: list[str]) -> None:
    prefix = random.choice(PREFIXES)
    lines[:] = [prefix + line if random.random() < 0.5 else line for line in lines]


def _junk(random: Random, lines: list[str]) -> None:
    at = random.randrange(len(lines))
    numbers = list(_NUMBER.finditer(lines[at]))
    for found in numbers[-1:] if random.random() < 0.5 else random.sample(numbers, min(1, len(numbers))):
        lines[at] = lines[at][: found.start()] + random.choice(_JUNK) + lines[at][found.end() :]


_SPOILED: Final[tuple[Callable[[Random, list[str]], None], ...]] = (
    *(_delete, _duplicate, _truncate, _flip, _interleave, _insert, _prefix, _junk, _junk, _junk),
)


class Fixture(NamedTuple):
    """A log, by the name of its file or program, and the name of its reader."""

    name: str
    reader: str
    lines: tuple[str, ...]


def _fixtures() -> dict[str, list[Fixture]]:
    """All logs by their reader."""
    of_reader: dict[str, list[Fixture]] = {}
    for path in sorted(_DATA.joinpath("logs").glob("[!e]*")):
        reader = recognise(path.read_bytes())
        name = "none" if reader is None else reader.name
        lines = tuple(path.read_text(encoding="utf-8").splitlines())
        of_reader.setdefault(name, []).append(Fixture(path.name, name, lines))
    for program, entry in tomllib.loads(_DATA.joinpath("training/lines.toml").read_text(encoding="utf-8")).items():
        lines = tuple(entry["line"].format(step) for step in range(1, _STEPS + 1))
        of_reader.setdefault("training", []).append(Fixture(program, "training", lines))
    return of_reader


FIXTURES: Final = _fixtures()
READERS: Final = tuple(FIXTURES)


def _any(random: Random) -> Fixture:
    return random.choice(FIXTURES[random.choice(READERS)])


class Hostile(NamedTuple):
    """An input, what it was made of, and whether it is a paste of these, in which no number is another."""

    content: bytes
    originals: tuple[Fixture, ...]
    is_paste: bool


def make(seed: int) -> Hostile:
    """The input of ``seed``, always the same."""
    random = Random(seed)
    originals = [random.choice(FIXTURES[READERS[seed % len(READERS)]])]
    if random.random() < _JOINED_SHARE:
        originals.append(_any(random))
    lines = [line for original in originals for line in original.lines]
    kind = random.choice(("spoiled", "spoiled", "pasted", "pasted", "both"))
    changes = [] if kind == "pasted" else random.choices(_SPOILED, k=random.choice((1, 1, 2, 4)))
    changes += [] if kind == "spoiled" else dict.fromkeys(random.sample(PASTES, random.choice((1, 1, 2, 3))))
    if kind != "pasted":  # where every number has to be in the log as it is
        changes = [change for change in changes if change not in {wrap, write}]
    changes.sort(key={wrap, fill}.__contains__)  # as the last, else nobody can say where lines were broken
    for change in changes:
        change(random, lines)
        lines = lines or [""]
    text = random.choice(("\n", "\n", "\r\n")).join(lines)[:_MOST_CHARACTERS]
    encoding = "latin-1" if kind != "pasted" and random.random() < 0.1 and text.isascii() else "utf-8"
    return Hostile(text.encode(encoding, "replace"), tuple(originals), kind == "pasted")


def _numbers(text: str) -> list[float]:
    stripped = "\n".join(line.text for line in clean(text.split("\n")))
    seen = as_line(text)  # without characters that nobody sees, such as a soft hyphen inside a number
    plain = _THOUSANDS.sub("", text)
    found = set(map(float, {word for part in {text, seen, plain, stripped} for word in _NUMBER.findall(part)}))
    found |= _CONSTANTS
    found |= {float(count) * float(each) for count, each in _PRODUCT.findall(text + seen)}
    return sorted(filter(math.isfinite, found))


def _told(log: ForeignLog | TrainingLog) -> Iterable[float | None]:
    if isinstance(log, TrainingLog):
        for step in log.steps:
            yield from (step.value, step.flops, step.utilised, step.tokens, step.batch)
        return
    for row in log.rows:
        is_sum = log.tool == "iperf" and (row.samples_seconds or "streams" in (row.tool_op or ""))
        yield from (row.count, row.time_seconds, None if is_sum else row.rate, row.busbw, row.iterations)
        is_implied = log.tool == "sockperf" and row.messages is not None  # by bandwidth and rate of messages
        is_implied |= log.tool == "ucx_perftest"  # by bandwidth and time
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


def _foreign(log: ForeignLog | TrainingLog, text: str) -> float | None:
    """A number of the results that is not in the log in any unit; None: there is none."""
    known = _numbers(text)
    for value in set(_told(log)) - {None, 0}:
        assert value is not None
        is_part = isinstance(log, ForeignLog) and log.tool in _PER_SECOND
        parts = (value, 1 / value, 0.5 / value, 2 * value) if is_part else (value,)
        if not any(_near(known, abs(part) / unit) for part in parts for unit in _UNITS):
            return value
    return None


def _near(known: list[float], value: float) -> bool:
    at = bisect_left(known, value)
    return any(math.isclose(value, other, rel_tol=1e-9) for other in known[max(0, at - 1) : at + 2])


class _Result(NamedTuple):
    """The numbers of a row, or of a step, that a paste must not change. None: unknown."""

    statistic: str | None
    named: tuple[object, ...]
    ends: tuple[object, ...]
    sizes: tuple[int | None, int | None]
    results: tuple[float | None, ...]

    def is_of(self, other: "_Result") -> bool:
        """Whether this is ``other``, or a part of what is known of it."""
        same = all(mine in {None, theirs} for mine, theirs in zip(self.named, other.named, strict=False))
        same &= all(
            None in {mine, theirs} or mine == theirs for mine, theirs in zip(self.ends, other.ends, strict=False)
        )
        is_sized = self.sizes == (None, None) or not {*self.sizes, None}.isdisjoint({*other.sizes} - {None})
        return (
            same
            and is_sized
            and all(
                mine is None
                or math.isclose(mine, theirs or 0.0, rel_tol=_CLOSE)
                or (theirs is None and mine in other.results)
                for mine, theirs in zip(self.results, other.results, strict=False)
            )
        )


def _in_gb(result: _Result) -> _Result:
    time, *rates = result.results
    return result._replace(results=(time, *(None if rate is None else rate / 2**30 * 1e9 for rate in rates)))


def _results(read: ForeignLog | TrainingLog) -> list[_Result]:
    if isinstance(read, TrainingLog):
        return [_Result(None, (step.step, read.unit), (), (None, None), (step.value,)) for step in read.steps]
    assumed = _ASSUMED.get(read.tool, set()) if any(note.code == "assumed-size" for note in read.notes) else set()
    return [
        _Result(
            row.statistic,
            (row.op, row.in_place),
            (row.source, row.target),
            (None, None) if row.tool_size_bytes in assumed else (row.size_bytes, row.tool_size_bytes),
            () if read.tool == "iperf" else (row.time_seconds, row.rate, row.algbw, row.busbw),
        )
        for row in read.rows
    ]


def _read(name: str, content: bytes) -> ForeignLog | TrainingLog:
    try:
        return read_file(name, BytesIO(content))
    except OfTraining as of_training:
        return of_training.steps


@cache
def _truth(original: Fixture) -> list[_Result]:
    try:
        return _results(_read(original.name, "\n".join(original.lines).encode()))
    except LogError:
        return []


def _changed(read: ForeignLog | TrainingLog, originals: Sequence[Fixture]) -> _Result | None:
    """A result of a paste that none of the ``originals`` has; None: there is none."""
    if isinstance(read, ForeignLog) and any(note.code == "rate-differs" for note in read.notes):
        return None  # the reader says that a number is doubtful
    if any(original.name in _CUT for original in originals):
        return None
    truth = [result for original in originals for result in _truth(original)]
    if isinstance(read, ForeignLog) and read.tool not in _IN_GIB:
        truth += [_in_gb(result) for original in originals if original.reader in _IN_GIB for result in _truth(original)]
    if isinstance(read, ForeignLog) and len(originals) > 1:  # the text of one may name the operation of the other
        ops = {row.op for row in read.rows}
        truth += [
            result._replace(named=(op, *result.named[1:])) for result in truth for op in ops if not result.named[0]
        ]
    known = frozenset(truth)
    statistics = {result.statistic for result in truth}
    rest = (result for result in _results(read) if result not in known and result.statistic in statistics)
    return next((result for result in rest if not any(map(result.is_of, truth))), None)


def attempt(seed: int, hostile: Hostile) -> str | None:
    """What was wrong with how the log was read; None: it was read or refused as it should."""
    name = "fuzzed.log"
    try:
        read = _read(name, hostile.content)
        if isinstance(read, ForeignLog):
            with contextlib.suppress(LogError):  # too little for a case; what is read is held against the log anyway
                run = run_of(read, "0" * 64, 0.0, LogFacts(), Path(name))
                if Random(seed).random() < _POOLED_SHARE:
                    pool([run])
    except LogError as error:
        said = str(error)
        return None if name in said and "\n" not in said else f"no sentence with the file: {said[:80]!r}"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the campaign looks for
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {str(error)[:80]}"
    if hostile.is_paste:
        changed = _changed(read, hostile.originals)
        return None if changed is None else f"{changed} is not in the fixture"
    foreign = _foreign(read, hostile.content.decode("utf-8", "replace"))
    return None if foreign is None else f"{foreign!r} is not in the log"


def campaign(seed: int, seconds: float | None, count: int | None) -> Outcome:
    """The inputs of ``seed``, ``seed`` + 1 and so on, until ``seconds`` are over or ``count`` of them were tried."""
    until = math.inf if seconds is None else time.monotonic() + seconds
    last = math.inf if count is None else seed + count
    failures: list[str] = []
    slowest, now = 0.0, seed
    of_each: Counter[str] = Counter()
    with contextlib.suppress(KeyboardInterrupt):
        while now < last and time.monotonic() < until:
            hostile = make(now)
            begun = time.process_time()
            failure = attempt(now, hostile)
            taken = time.process_time() - begun
            if failure is None and taken > MOST_SECONDS:
                failure = f"took {taken:.1f} s"
            if failure is not None:
                names = ", ".join(original.name for original in hostile.originals)
                failures.append(f"--seed {now} --count 1: {failure}: {names}")
            of_each.update(original.reader for original in hostile.originals)
            slowest, now = max(slowest, taken), now + 1
    return Outcome(now - seed, tuple(failures), slowest, of_each)
