"""The table of log readers, what is known of their tools, and recognition of a log by its content."""

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import SEEK_END, BytesIO
from typing import IO, Final, Literal, NamedTuple, Protocol

import msgspec

from busbw.errors import LogError, refuse_unknown
from busbw.runs.records import BackendTraits, Mode
from busbw.runs.run import LogNote
from busbw_analysis.data.readers import (
    collectivex,
    cuda_samples,
    dcgm,
    deepspeed,
    failures,
    flight,
    hosts,
    imb,
    inspector,
    iperf,
    jax,
    nccl_info,
    nccl_json,
    nccl_text,
    nccom,
    network,
    nixlbench,
    nvbandwidth,
    osu,
    param,
    paste,
    perftest,
    progress,
    ras,
    rocm,
    stream,
    superbench,
    tables,
    training,
    ucc,
    ucx,
    watchdog,
)
from busbw_analysis.data.readers.deduce import said
from busbw_analysis.data.readers.draft import Draft
from busbw_analysis.data.readers.lines import LONGEST_LINE
from busbw_analysis.data.readers.log import ForeignLog, Table
from busbw_analysis.data.readers.unread import unread_in

HEAD_BYTES: Final = 1 << 20
"""Bytes searched at a time to recognise a log; NCCL messages at the start of a log may be longer."""
_MOST_HEAD: Final = 64 << 20


UNKNOWN: Final = "unknown"
_LONGEST_SENTENCE: Final = 1 << 10


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool. ``names``: its own names of tests are part of what is measured. ``one_host``: it knows no other.
    ``copies``: bytes of its copies where the log does not
    state them, if all of its tests copy.
    """

    backend: str = UNKNOWN
    device: str = UNKNOWN
    mode: Mode = "pipelined"
    traits: BackendTraits | None = None
    names: re.Pattern[str] | None = None
    one_host: bool = False
    copies: int | None = None


UNKNOWN_TOOL: Final = Tool()
NCCL: Final = Tool("nccl", "cuda", traits=BackendTraits(cost_models="nccl", transport="nccl-net"))
_MPI: Final = Tool("mpi", "cpu", traits=BackendTraits(cost_models="mpi", transport="mpi-net"))
_GLOO: Final = Tool("gloo", "cpu", traits=BackendTraits(cost_models="gloo"))
OF_BACKEND: Final = {tool.backend: tool for tool in (NCCL, _MPI, _GLOO)}
"""For logs that name the backend and, unlike runs, store nothing else of it."""
_OTHER_CALLS: Final = re.compile(
    r"(?i)non-blocking|persistent|^I[a-z]+|managed|host|put|get|source|multi-(?:threaded|process)|partitioned"
    r"|(?:gather|scatter)v|alltoallw"
)
"""Names of tests of MPI that measure their operation by other calls than the plain one."""
OF_MPI: Final = replace(_MPI, names=_OTHER_CALLS)
EVERY_NAME: Final = re.compile("")


class Sign(Protocol):
    """What recognises a log by its beginning, such as a pattern."""

    def search(self, text: bytes, /) -> object | None:
        """What is found; None if it is not there."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A log format.

    name: for messages and ``--format``; that of the tool, with " JSON" behind it for a second format of the same tool
    sign: by which its logs are recognised
    read: reads the lines of a log into a draft
    tool: facts about the tool that hold for all its logs
    json: whether its logs are JSON
    """

    name: str
    sign: Sign
    read: Callable[[Draft, Iterable[str]], None]
    tool: Tool = UNKNOWN_TOOL
    json: bool = False


_NVBANDWIDTH: Final = Tool("cuda", "cuda", names=EVERY_NAME, one_host=True, copies=512 << 20)
_CUDA_SAMPLES: Final = replace(_NVBANDWIDTH, copies=160_000_000)
_SUPERBENCH: Final = replace(NCCL, names=re.compile("^[HD]2[HD]"), one_host=True)
_ALL_REDUCE_BENCH: Final = re.compile(rb"bandwidth of all_reduce over \d+ ranks \(\d+ warmups")
"""``network/benchmarks/all_reduce_bench.py`` of stas00/ml-engineering, which starts each call at a barrier."""
_PERFTEST: Final = Tool("verbs", "cpu", names=EVERY_NAME)
_SOCKETS: Final = Tool("sockets", "cpu", names=EVERY_NAME, traits=BackendTraits(cost_models="sockets"))


def _messages_alone(draft: Draft, lines: Iterable[str]) -> None:
    """Nothing but messages: the draft says where they end, and how the job failed."""
    for _ in draft.scan(draft.progress.watched(lines)):
        pass


_AFTER_THE_LAST: Final = 40
"""Lines that a launcher prints at most after the exception that ended a program."""


def _starting(draft: Draft, lines: Iterable[str]) -> None:
    """Where a program that starts its ranks stops, and its last exception, without a message of NCCL."""
    is_traced, last, at = False, None, 0
    for at, line in enumerate(draft.scan(lines)):
        draft.progress.start(line.number, line.text)
        is_traced = is_traced or progress.TRACEBACK in line.text
        if is_traced and progress.EXCEPTION.match(line.text) is not None:
            last = (at, line)
    if last is not None and at - last[0] <= _AFTER_THE_LAST:
        draft.fail(last[1].text, last[1].number)


_START: Final = Reader("a parallel job", progress.STARTS, _starting, NCCL)
_FAILURE: Final = Reader("failed job", failures.SIGN, _messages_alone, NCCL)
_MESSAGES: Final = Reader("NCCL messages", nccl_info.SIGN, _messages_alone, NCCL)
_HARDWARE: Final = Reader(
    "hardware", re.compile(nccl_info.HARDWARE.pattern + b"|" + hosts.SIGN.pattern), _messages_alone
)
_TABLE: Final = Reader("table", tables.SIGN, tables.read)
_WATCHDOG: Final = Reader("torch watchdog", watchdog.SIGN, watchdog.read, NCCL)
_NETWORK: Final = (
    Reader("iperf", iperf.SIGN, iperf.read, _SOCKETS),
    Reader("fabtests", network.FABTESTS, network.read_fabtests, Tool("libfabric", "cpu", names=EVERY_NAME)),
    Reader("sockperf", network.SOCKPERF, network.read_sockperf, _SOCKETS),
    Reader("qperf", network.QPERF, network.read_qperf, _SOCKETS),
    Reader("netperf", network.NETPERF, network.read_netperf, _SOCKETS),
)
"""Readers of tests that a job runs before its own calls."""
_STALLED: Final = Reader("iperf", iperf.ERROR, iperf.read, _SOCKETS)
"""An iperf that ended before its first row."""
READERS: Final = (
    Reader("CollectiveX", collectivex.SIGN, collectivex.read, NCCL, json=True),
    Reader("nccl-tests JSON", nccl_json.SIGN, nccl_json.read, NCCL, json=True),
    Reader("nvbandwidth JSON", nvbandwidth.JSON, nvbandwidth.read_json, _NVBANDWIDTH, json=True),
    Reader("NCCL inspector", inspector.SIGN, inspector.read, replace(NCCL, mode="isolated"), json=True),
    Reader("perftest JSON", perftest.JSON, perftest.read_json, _PERFTEST, json=True),
    Reader("rccl-tests JSON", tables.JSON, tables.read_json, NCCL, json=True),
    Reader("SuperBench", superbench.SIGN, superbench.read, _SUPERBENCH, json=True),
    Reader("NCCL RAS JSON", ras.JSON, ras.read_json, NCCL, json=True),
    Reader("torch flight recorder", flight.SIGN, flight.read, NCCL, json=True),
    Reader("iperf JSON", iperf.JSON, iperf.read_json, _SOCKETS, json=True),
    Reader("PARAM comms", param.SIGN, param.read, json=True),
    Reader("nvbandwidth", nvbandwidth.TEXT, nvbandwidth.read_text, _NVBANDWIDTH),
    Reader("nvloom", nvbandwidth.NVLOOM, nvbandwidth.read_text, replace(_NVBANDWIDTH, one_host=False)),
    Reader("DCGM diagnosis", dcgm.SIGN, dcgm.read, replace(_NVBANDWIDTH, copies=None)),
    Reader("STREAM", stream.SIGN, stream.read, Tool("cpu", "cpu", one_host=True)),
    Reader("CUDA samples", cuda_samples.SIGN, cuda_samples.read, _CUDA_SAMPLES),
    Reader("rocm_bandwidth_test", rocm.SIGN, rocm.read, replace(_NVBANDWIDTH, copies=64 << 20)),
    Reader("OSU micro-benchmarks", osu.SIGN, osu.read, OF_MPI),
    Reader("oneCCL benchmark", imb.ONECCL, imb.read, Tool("oneccl")),
    Reader("Intel MPI benchmarks", imb.SIGN, imb.read, OF_MPI),
    Reader("perftest", perftest.SIGN, perftest.read, _PERFTEST),
    Reader("ucx_perftest", ucx.SIGN, ucx.read, Tool("ucx", "cpu", names=EVERY_NAME)),
    Reader("ucc_perftest", ucc.SIGN, ucc.read, Tool("ucc", "cpu")),
    Reader("nixlbench", nixlbench.SIGN, nixlbench.read),
    Reader("DeepSpeed benchmark", deepspeed.SIGN, deepspeed.read, NCCL),
    Reader("nccom-test", nccom.SIGN, nccom.read, Tool("neuron", "neuron")),
    Reader("nccl-tests", nccl_text.SIGN, nccl_text.read, NCCL),
    Reader("all_reduce_bench.py", _ALL_REDUCE_BENCH, tables.read, replace(NCCL, mode="isolated")),
    Reader("JAX microbenchmarks", jax.SIGN, jax.read, Tool("jax", "tpu", mode="isolated")),
    _TABLE,
    _WATCHDOG,
    Reader("NCCL RAS", ras.SIGN, ras.read, NCCL),
    *_NETWORK,
    _FAILURE,
    _MESSAGES,
    _STALLED,
    _HARDWARE,
)
"""The first reader whose sign is in a log reads it. A table takes precedence if the first line is that of a CSV."""


_WITHOUT_RESULTS: Final = (_FAILURE, _MESSAGES, _HARDWARE)
"""Readers of logs that may have results further below."""
_BEFORE_STEPS: Final = frozenset({None, *_WITHOUT_RESULTS, *_NETWORK, _STALLED})
"""Readers of what a training program prints before its steps."""


def recognise(head: bytes) -> Reader | None:
    """The first reader for a log that begins with ``head``; None if no reader recognises it."""
    return next(_recognising(head), None)


def _recognising(head: bytes) -> Iterator[Reader]:
    """The readers whose sign is in ``head``, the best first."""
    if tables.CSV.search(head.partition(b"\n")[0]) is not None:
        yield _TABLE
    yield from (reader for reader in READERS if reader.sign.search(head) is not None)


def tool_named(name: str) -> Tool:
    """Facts about the tool that a log names (``ForeignLog.tool``); none for a tool without a reader."""
    return next((reader.tool for reader in READERS if reader.name in {name, f"{name} JSON"}), UNKNOWN_TOOL)


def reader_named(name: str) -> Reader:
    """The reader that ``--format`` names. Raises UsageError, with all names, for an unknown one."""
    named = {slug(reader): reader for reader in READERS}
    if name not in named:
        refuse_unknown("format", name, named)
    return named[name]


def slug(reader: Reader) -> str:
    """The name of a reader as an option value: ``nccl-tests-json``."""
    return reader.name.lower().replace(" ", "-")


Kind = Literal["results", "hang", "failure", "training"]


def kind_of(file: IO[bytes]) -> Kind | None:
    """What a reader recognises in the beginning of a file: results, where a job hangs, how it failed, or steps of a
    training program; None for none of these.
    """
    try:
        _, head = _unwrapped("", file)
    except LogError:
        return None
    reader = recognise(_unpasted(paste.recognised(_texts(head), _is_log), head))
    if reader in _BEFORE_STEPS and training.SIGN.search(head) is not None:
        return "training"
    if reader in {None, _HARDWARE}:
        return None
    return "failure" if reader is _FAILURE else "hang" if reader in {_WATCHDOG, _MESSAGES} else "results"


def _of_training(name: str, file: IO[bytes]) -> LogError:
    """The error with the steps in a log, or why there are none."""
    file.seek(0)
    try:
        return training.OfTraining(read_steps(name, file))
    except LogError as error:
        return error


def read_file(name: str, file: IO[bytes], reader: Reader | None = None) -> ForeignLog:
    """Read the log of another tool from a seekable file, with the given or the recognised ``reader``.

    Raises LogError, with a code of docs/logs.md, if it has no usable result; FailedTraining for a job that failed below
    steps of training.
    """
    try:
        return _read_file(name, file, reader)
    except LogError as error:
        file.seek(0)
        parts = (file.read(HEAD_BYTES) for _ in range(_MOST_HEAD // HEAD_BYTES))
        if error.code in {"job-failed", "hang"} and any(map(_has_steps, parts)):
            steps = _of_training(name, file)
            if isinstance(steps, training.OfTraining):
                raise training.FailedTraining(error, steps.steps) from error
        raise


def _read_file(name: str, file: IO[bytes], reader: Reader | None) -> ForeignLog:
    file, head = _unwrapped(name, file)
    pasted = paste.recognised(_texts(head), _is_log)
    is_recognised = reader is None
    reader, pasted = (reader, pasted) if reader else _with_spaces(recognise(_unpasted(pasted, head)), pasted, head)
    reader, head, has_steps, goes_on = _further(file, reader, pasted, head)
    no_failure = goes_on if reader is _FAILURE else reader in {None, _MESSAGES, *_NETWORK, _STALLED}
    if has_steps and is_recognised and no_failure:
        if _ends_in_an_exception(file):
            _read_exception(name, file, pasted)
        raise _of_training(name, file)
    searched = head[head.rfind(b"NCCL INFO") :] if reader is _MESSAGES else head
    if reader in {None, _HARDWARE, _MESSAGES} and (unread := unread_in(name, searched)) is not None:
        raise unread
    if reader is None:
        raise _unknown(name, file, pasted, head)
    try:
        is_table = is_recognised and reader is _TABLE
        return _read_table(name, file, pasted, head) if is_table else _read(name, file, reader, pasted)
    except LogError as error:
        return _read_otherwise(_Sight(name, file, pasted, head, reader, is_recognised, has_steps), error)


class _Sight(NamedTuple):
    """A log in which a reader found no result; ``is_recognised`` if no user named this reader."""

    name: str
    file: IO[bytes]
    pasted: paste.Paste
    head: bytes
    reader: Reader
    is_recognised: bool
    has_steps: bool


def _read_otherwise(log: _Sight, error: LogError) -> ForeignLog:
    """What another reader finds in a log. Raises what says most of it, perhaps the ``error`` of the first reader."""
    says_little = log.is_recognised and error.code in _SAYS_LITTLE
    if says_little and log.reader is not _FAILURE:
        is_sentence = error.code == "not-a-log" and not log.has_steps  # that was taken for headings
        ends = (_WATCHDOG, _FAILURE, *([_MESSAGES] if is_sentence else []), _HARDWARE)
        _read_messages(log.name, log.file, log.pasted, ends)
        if log.pasted.fenced:  # what failed may stand in the prose around fences that say nothing of it
            _read_messages(log.name, log.file, replace(log.pasted, fenced=False), (_FAILURE,))
    if log.reader is _FAILURE and log.is_recognised and error.code == "no-results":  # a failure that did not come
        raise _unknown(log.name, log.file, log.pasted, log.head) from error
    is_unread = log.reader not in {_WATCHDOG, _FAILURE} and error.code in {*_SAYS_LITTLE, "hang", "messages"}
    if log.has_steps and (log.reader is _TABLE or is_unread):
        raise _of_training(log.name, log.file) from error
    if says_little and log.reader is _TABLE and (unread := unread_in(log.name, log.head)) is not None:
        raise unread from error
    if log.is_recognised and error.code in {"no-results", "healthy", "hang", "messages", "no-header"}:
        without = {log.reader, *_WITHOUT_RESULTS, *_NETWORK}
        others = (other for other in _recognising(_unpasted(log.pasted, log.head)) if other not in without)
        with suppress(LogError, StopIteration):  # such as a Markdown table above the last line of nccl-tests
            return _read(log.name, log.file, next(others), log.pasted)
    raise error


def _ends_in_an_exception(file: IO[bytes]) -> bool:
    """Whether a traceback of Python is below the last step of a training program, but none of an error that is ignored
    or comes after the end of training.
    """
    file.seek(max(0, file.seek(0, SEEK_END) - HEAD_BYTES))
    before, traced, after = file.read().rpartition(progress.TRACEBACK.encode())
    lines = after.decode(errors="replace").split("\n")
    raised = next((at for at, line in enumerate(lines) if progress.EXCEPTION.match(line) is not None), len(lines))
    goes_on = any(line.strip() and _AT_END.match(line) is None for line in lines[raised + 1 :])
    return bool(traced) and not goes_on and not _has_steps(after) and _IGNORED.search(before[-500:]) is None


_AT_END: Final = re.compile(
    r"\W|\w*(?:Error|Exception)|[A-Z]?\d{4}|srun|slurm|mpirun|mpiexec|torch|wandb|raise|Root|Killed|Aborted|command "
    r"|(?:ERROR|WARNING|INFO)\b"
)
"""Of Python, a launcher or a logger, behind the exception that ended a program."""


_IGNORED: Final = re.compile(
    rb"(?:[Ii]gnored in|Logging error|excepthook|atexit)[^\n]*\n?[^\n]*$"
    rb"|train_runtime|(?i:training (?:is )?(?:completed?|finished|done))"
)


def _read_exception(name: str, file: IO[bytes], pasted: paste.Paste) -> None:
    """Raises LogError with the exception that ended a program, if its traceback is at the end of the log."""
    try:
        _read(name, file, _START, pasted)
    except LogError as error:
        if error.code == "job-failed":
            raise


def _further(
    file: IO[bytes], reader: Reader | None, pasted: paste.Paste, head: bytes
) -> tuple[Reader | None, bytes, bool, bool]:
    """The reader of a log by what follows a beginning without results, the part that was searched last, whether any
    part has steps, and whether a job goes on there.
    """
    seen, has_steps, goes_on = len(head), _has_steps(head), _goes_on(head, before=True)
    while reader in _BEFORE_STEPS and seen < _MOST_HEAD and (reader is not None or not has_steps):
        if not (more := file.read(HEAD_BYTES)):
            break
        seen += len(more)
        head = head[-4096:].partition(b"\n")[2] + more  # the rest of a line may look like headings
        has_steps, goes_on = has_steps or _has_steps(head), _goes_on(head, before=goes_on)
        found = recognise(_unpasted(pasted, head))
        reader = reader if found is None or (reader in {_FAILURE, *_NETWORK} and found in _WITHOUT_RESULTS) else found
    if has_steps and reader in _BEFORE_STEPS and (left := file.seek(0, SEEK_END) - seen) > 0:
        file.seek(-min(left, HEAD_BYTES), SEEK_END)
        goes_on = _goes_on(end := file.read(HEAD_BYTES), before=goes_on)
        reader = _WATCHDOG if _WATCHDOG.sign.search(end) is not None else reader if goes_on else _FAILURE
    return reader, head, has_steps, goes_on


def _goes_on(part: bytes, *, before: bool) -> bool:
    """Whether a job goes on at the end of a part of its log, as ``before`` it, or all that ended it is somebody."""
    if failures.SIGN.search(part) is None or (before and failures.passes(part)):
        return before or _has_steps(part)
    return failures.is_only_ended(part) or _has_steps(failures.after_the_last(part))


def _has_steps(head: bytes) -> bool:
    """Whether steps are in a log as it is: behind a prefix, a step's name may be taken for a part of it."""
    return training.SIGN.search(head) is not None


def _with_spaces(reader: Reader | None, pasted: paste.Paste, head: bytes) -> tuple[Reader | None, paste.Paste]:
    """The reader of a log in which somebody replaced spaces by tabs, else the given one."""
    if b"\t" not in head or (reader not in {None, _TABLE} and b"NCCL\tINFO" not in head):
        return reader, pasted
    spaced = replace(pasted, tabs=False)
    found = recognise(_unpasted(spaced, head))
    is_known = found not in {_TABLE, *_BEFORE_STEPS} or (reader is None and found is not None)
    return (found, spaced) if is_known else (reader, pasted)


_SAYS_LITTLE: Final = frozenset({"not-a-log", "no-results", "healthy", "no-header"})
"""Codes of errors that say only that there is no result."""


def _unknown(name: str, file: IO[bytes], pasted: paste.Paste, head: bytes) -> LogError:
    """The error about a log without a reader: its last error, or where its ranks hang if a sentence says so."""
    if _START.sign.search(head) is not None and file.seek(0, SEEK_END) <= len(head):
        try:
            _read(name, file, _START, pasted)
        except LogError as error:
            if error.code in {"hang", "job-failed"}:
                return error
    errors = ((at, line.strip()) for at, line in enumerate(_texts(head), 1) if _ERROR.search(line) is not None)
    at, line = next(errors, (0, ""))
    quoted = [("Error", f"busbw does not know what line {at} means: {line[:_QUOTED]}")] if line else []
    return LogError(
        f"{name}: no results of a tool that busbw knows. If it is a log of one in docs/logs.md, name it with --format "
        "of busbw show or import; else write a table with the headings op, ranks, size and time_us",
        [*quoted, *_evidence(name, file, pasted, head)],
    )


_ERROR: Final = re.compile(
    r"(?i)^(?:.{0,60}[]:)>*]|.{0,30}\d:\d\d(?:[.,]\d+)?Z?) .{0,200}?\b(?:errors?|fatal|fail(?:ed|ure)|cannot|can't"
    r"|could not|couldn't|unable to|refused|denied|timed out|no such|aborted|invalid)\b(?! ?[=:]? ?(?:0|no|none)\b)"
)
"""Of a program that says what went wrong, behind its name, a time or a host: people's sentences have nothing before."""
_QUOTED: Final = 200


def _evidence(name: str, file: IO[bytes], pasted: paste.Paste, head: bytes) -> list[tuple[str, str]]:
    """What a short text without results says of the way that data take, such as a command with its settings."""
    if file.seek(0, SEEK_END) <= len(head):
        try:
            _read(name, file, _MESSAGES, pasted)
        except LogError as error:
            return [line for line in error.lines if line[0] == "Also"]
    return []


def _read_table(name: str, file: IO[bytes], pasted: paste.Paste, head: bytes) -> ForeignLog:
    """Read a table, or the test of a network whose rows were taken for one."""
    try:
        return _read(name, file, _TABLE, pasted)
    except LogError as error:
        network = next(filter(_NETWORK.__contains__, _recognising(_unpasted(pasted, head))), None)
        if error.code == "not-a-log" and network is None:  # words that were taken for headings
            raise LogError(error.said, _evidence(name, file, pasted, head), code=error.code, log=error.log) from error
        if network is None or error.code not in _SAYS_LITTLE:
            raise
        return _read(name, file, network, pasted)


def _read_messages(name: str, file: IO[bytes], pasted: paste.Paste, readers: Iterable[Reader]) -> None:
    """Read with those ``readers`` of messages whose sign is in the beginning or the end of a file. Raises LogError with
    what they say; nothing if that is little.
    """
    file.seek(0)
    head = file.read(HEAD_BYTES)
    file.seek(max(len(head), file.seek(0, SEEK_END) - HEAD_BYTES))
    ends = _unpasted(pasted, head + file.read(HEAD_BYTES))
    for reader in readers:
        try:
            if reader.sign.search(ends) is not None:
                _read(name, file, reader, pasted)
        except LogError as error:
            if error.code != "no-results" and not (reader is _HARDWARE and error.code == "hang"):
                raise


def read_steps(name: str, file: IO[bytes]) -> training.TrainingLog:
    """Read the steps in the log of a training program from a seekable file.

    Raises LogError (``no-steps``) if no line is about one.
    """
    file, head = _unwrapped(name, file)
    # Lines about steps are recognised behind any prefix, and their numbers have their names before them.
    pasted = replace(paste.recognised(_texts(head), _is_log), prefix=None, bare=False, commas=False, last=False)
    file.seek(0)
    log = training.read(name, pasted.lines(_lines(file, [])))
    if log is None:
        raise LogError(
            f"{name}: no line about a step in a format that busbw knows: those of {', '.join(training.PROGRAMS)}, or "
            "lines such as step: 1, loss: 2.1, time: 250.0 ms",
            code="no-steps",
        )
    return log


def _read(name: str, file: IO[bytes], reader: Reader, pasted: paste.Paste) -> ForeignLog:
    file.seek(0)
    notes: list[LogNote] = []
    draft = Draft(reader.name.removesuffix(" JSON"), name)
    draft.progress.is_excerpt, draft.progress.is_unknown = pasted.fenced, reader is _START
    around: dict[int, str] = {}
    reader.read(draft, pasted.lines(_remedies(draft, _lines(file, notes)), around))
    log = draft.log()
    if reader in _NETWORK and log.last_error is not None:
        _read_messages(name, file, pasted, (_FAILURE,))
    tables = _captioned(log.tables, around, fenced=pasted.fenced)
    if pasted.fenced and log.last_error is None:  # an excerpt: that its end is missing says nothing of the job
        tables = (msgspec.structs.replace(table, complete=table.complete or None) for table in tables)
    return msgspec.structs.replace(log, tables=tuple(tables), notes=(*log.notes, *notes))


def _remedies(draft: Draft, lines: Iterable[str]) -> Iterator[str]:
    """The ``lines``, of which the first that names a variable which helped is noted."""
    for number, line in enumerate(lines, 1):
        draft.progress.hear(number, line[:_LONGEST_SENTENCE])
        if "=" in line and len(line) < _LONGEST_SENTENCE and (variable := nccl_info.remedy(line)) is not None:
            draft.note(nccl_info.REMEDY, number, f"the text says that {variable} helped")
            draft.progress.helped = draft.progress.helped or variable
        yield line


def _captioned(tables: Sequence[Table], around: dict[int, str], *, fenced: bool) -> Iterable[Table]:
    """The tables with the last line of text that stands above their rows and not beside every one of them. In a log
    without fences, only where another table of the same cases is below another text.
    """
    numbers, texts = list(around), list(around.values())
    ends = [0, *(table.rows[-1].line for table in tables)]
    above = [
        texts[bisect_right(numbers, end) : bisect_left(numbers, table.rows[0].line)]
        for end, table in zip(ends, tables, strict=False)
    ]
    above_or_below = [*above[1:], texts[bisect_right(numbers, ends[-1]) :]]
    common = set[str]().union(*(set.intersection(*map(set, lines)) for lines in (above, above_or_below) if lines))
    captions: list[str | None] = []
    for lines in above:
        left = [text for text in lines if text not in common or len(tables) == 1]
        captions.append(left[-1] if left else captions[-1] if captions else None)
    cases = [
        {
            (row.tool_op, row.op, row.tool_size_bytes, row.dtype, row.in_place, row.source, row.target)
            for row in table.rows
        }
        for table in tables
    ]
    captions_of: dict[object, set[str | None]] = {}
    for caption, measured in zip(captions, cases, strict=True):
        for case in measured:
            captions_of.setdefault(case, set()).add(caption)
    for table, lines, caption, measured in zip(tables, above, captions, cases, strict=True):
        rivals = set[str | None]().union(*(captions_of[case] for case in measured))
        own = caption if caption and (fenced or len(rivals) > 1) else None
        shared = table.caption is not None and len(set(captions)) == 1
        shown = " ".join(filter(None, (None if shared else own, table.caption))) or None
        lacks = any(row.ranks is None for row in table.rows)
        yield msgspec.structs.replace(table, caption=shown, said=said([*lines, caption or ""]) if lacks else None)


def _unwrapped(name: str, file: IO[bytes]) -> tuple[IO[bytes], bytes]:
    """The file and its first bytes, as UTF-8 and without JSON or markup around the log. Raises LogError for binary
    data.
    """
    head = file.read(HEAD_BYTES)
    if head.startswith(b"\x80") and (dump := flight.dump_of(head + file.read(_MOST_HEAD))) is not None:
        file = BytesIO(json.dumps(dump).encode())
        head = file.read(HEAD_BYTES)
    wide = head.startswith((b"\xff\xfe", b"\xfe\xff"))
    if not wide and b"\x00" in head[:4096]:
        raise LogError(f"{name}: binary data, not a log", code="binary")
    if (
        not wide
        and b"<br" not in head
        and b"</td" not in head
        and head.lstrip()[:1] not in {b"{", b"["}
        and (b"\n" in head or b"\r" not in head)
        and not (b"\\n" in head and paste.is_escaped(head.decode(errors="replace")))
    ):
        return file, head
    file.seek(0)
    text = paste.as_text(file.read(_MOST_HEAD).decode("utf-16" if wide else "utf-8", "replace"))
    log = paste.of_json(text, _is_log) or paste.of_json_lines(text.splitlines(), _is_log) or text
    file = BytesIO(log.encode())
    head = file.read(HEAD_BYTES)
    return file, head


def _texts(head: bytes) -> list[str]:
    return head.decode(errors="replace").split("\n")


def _unpasted(pasted: paste.Paste, head: bytes) -> bytes:
    return "\n".join(pasted.lines(_texts(head))).encode()


def _is_log(text: str) -> int:
    """Whether a text is a log; 2 for one of a tool that prose cannot be taken for."""
    reader = recognise(text.encode())
    if reader not in {_TABLE, *_BEFORE_STEPS}:
        return 2
    return int(reader not in {None, _FAILURE} or training.SIGN.search(text.encode()) is not None)


def _lines(file: IO[bytes], notes: list[LogNote]) -> Iterator[str]:
    """The lines of a file, with invalid UTF-8 replaced. Adds ``notes`` about the first such line, and about a last
    line that ends in a digit without a newline.
    """
    number, last = 0, ""
    while line := file.readline(LONGEST_LINE):
        number += 1
        try:
            last = line.decode()
        except UnicodeDecodeError:
            last = line.decode(errors="replace")
            if not notes:
                notes.append(LogNote(code="encoding", line=number, text="bytes that are not UTF-8 are replaced"))
        yield last
    if last[-1:].isdigit():
        text = "the last line has no newline: its last number may be cut off"
        notes.append(LogNote(code="unfinished-line", line=number, text=text))
