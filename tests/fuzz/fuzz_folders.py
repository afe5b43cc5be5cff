"""Run folders that were damaged, edited or planted: every command answers them in words, in bounded time and memory.

Each input is a stored run with up to three changes, drawn from a generator that is seeded with the campaign's seed and
the number of the input: `campaign(seed, None, 1, first=number)` repeats it alone.
"""

import copy
import gzip
import json
import os
import random
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Final

import msgspec
from click.testing import CliRunner
from fuzz_outcome import Outcome
from testing.synthetic import Machine, SyntheticEnd, case, synthetic_run, write_synthetic

from busbw.cli import listing
from busbw.cli.main import main
from busbw.errors import BusbwError
from busbw.runs import store
from busbw.runs.plan import read_suite
from busbw.runs.records import Ended, Measurement
from busbw.runs.run import Run
from busbw.slurm import jobs as slurm_runs

_DATA: Final = Path(__file__).parents[1] / "data"
_LIMIT_SECONDS: Final = 30.0
_WAIT_SECONDS: Final = 150.0
"""By the processor's time, and by the clock on the wall for what waits; the machine may be busy with other things."""

_MEMORY_BYTES: Final = 4 << 30
_MOST_FAILURES: Final = 200

_HOSTILE: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, -1, 1, 2, 7, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30, -(2**63), 10**12),
    *(0.5, -0.0, -1.5, 1e308, 1e-308, 2.0, "", "x", "0", "2", "-1", "nan", "all", "div:2", "0,1;2,3", "\0", "é" * 40),
    *("A" * 5000, "../../../etc/passwd", "<script>alert(1)</script>", "\x1b[31m", "{}", "%s%n", "0-99999999999"),
    *([], {}, [None], ["x"], [[]], {"x": {}}, [0] * 1000, {"": None}),
)

_THOROUGH_SHARE: Final = 0.1
"""Of the inputs that are refused on reading, those for which the commands are tried, too."""

_COMMANDS: Final = ("show", "fit", "report", "compare", "predict", "resume")
_SHARES: Final = (8, 4, 1, 3, 3, 6)


class _Hang(BaseException):
    """An input took longer than it may. No Exception: nobody is to take it for one of theirs."""


def campaign(seed: int, seconds: float | None, count: int | None, first: int = 0) -> Outcome:
    """Try damaged run folders until ``seconds`` have gone or ``count`` inputs are through, from number ``first`` on."""
    began, failures, slowest, number = time.monotonic(), [], 0.0, first
    with (
        suppress(KeyboardInterrupt),  # it says what was tried until then
        tempfile.TemporaryDirectory(prefix="busbw-fuzz-") as place,
        _limits(),
    ):
        bases = _bases(Path(place))
        while count is None or number < first + count:
            if seconds is not None and time.monotonic() - began > seconds:
                break
            start = time.monotonic()
            if (failure := _one(seed, number, bases, Path(place))) is not None:
                failures.append(f"--what folders --seed {seed}, input {number}: {failure}")
            slowest = max(slowest, time.monotonic() - start)
            number += 1
            if len(failures) >= _MOST_FAILURES:
                break
    return Outcome(number - first, tuple(failures), slowest)


def _bases(place: Path) -> list[Path]:
    """Runs that were measured, and one of two hosts in which much went wrong."""
    cases = [case(op, size) for op in ("all_reduce", "broadcast") for size in (8, 4096, 1 << 20)]
    cases += [case("barrier", 0), case("pair_matrix", 64), case("send_recv", 64), case("memory_copy", 4096)]
    end = SyntheticEnd(skipped={cases[-1]: "not here"}, failed={cases[2]: "wrong data"}, ended="interrupted")
    machine = Machine(hosts=("n1", "n2"), switches={"n1": ("s", "a"), "n2": ("s", "b")})
    stored = synthetic_run(cases, machine=machine, launches=2, blocks=2, samples=5, end=end)
    run = _with_a_plan(stored)
    made = write_synthetic(place / "bases", replace(stored, run=run))
    return [*sorted((_DATA / "runs").iterdir()), made]


def _with_a_plan(stored: store.StoredRun) -> Run:
    """The run with a plan that can be resumed."""
    plan = msgspec.structs.replace(read_suite("quick"), launches=4, ranks=4)
    return msgspec.structs.replace(stored.run, plan=plan)


@contextmanager
def _limits() -> Iterator[None]:
    """A bound on memory, and an alarm for what hangs."""

    def rings(_signal: int, _frame: FrameType | None) -> None:
        raise _Hang

    before = {number: signal.signal(number, rings) for number in (signal.SIGALRM, signal.SIGPROF)}
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + _MEMORY_BYTES, hard))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")


# --- one input -------------------------------------------------------------------------------------------------


def _one(seed: int, number: int, bases: list[Path], place: Path) -> str | None:
    """What went wrong with input ``number``; None when nothing did."""
    generator = random.Random(f"{seed}:{number}")
    base = generator.choice(bases)
    results = place / "results"
    folder = results / "vm" / "20260101T000000.000Z-aaaaaa"
    shutil.copytree(base, folder)
    changes: list[str] = []
    failure: str | None = None
    try:
        for _ in range(generator.choice((1, 1, 1, 2, 3))):
            change = generator.choices(_CHANGES, _CHANGE_SHARES)[0]
            changes.append(f"{change.__name__[1:]} {change(folder, generator)}")
        signal.setitimer(signal.ITIMER_PROF, _LIMIT_SECONDS)
        signal.setitimer(signal.ITIMER_REAL, _WAIT_SECONDS)
        failure = _tried(folder, base, results, generator)
    except _Hang:
        failure = f"more than {_LIMIT_SECONDS:g} s of computing, or {_WAIT_SECONDS:g} s of waiting"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        shutil.rmtree(results, ignore_errors=True)
    return None if failure is None else f"{base.name}: {'; '.join(changes)}: {failure}"


def _tried(folder: Path, base: Path, results: Path, generator: random.Random) -> str | None:
    thorough = generator.random() < _THOROUGH_SHARE
    try:
        # What the two lists are made of: the commands add some ms each.
        listing.rows("runs", results)
        slurm_runs.rows(results, ())
        for words in (["list", "runs"], ["status"]) if thorough else ():
            if (failure := _command([*words, "--results-dir", str(results)], is_list=True)) is not None:
                return failure
        stored = store.read(folder)
    except BusbwError:
        return _command(["show", str(folder)]) if thorough else None
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        return f"lists and reading: {_in_short(error)}"
    if (failure := _changed_in_silence(stored, base)) is not None:
        return failure
    return _command(_arguments(generator.choices(_COMMANDS, _SHARES)[0], folder, base, results))


def _arguments(command: str, folder: Path, base: Path, results: Path) -> list[str]:
    return {
        "show": ["show", str(folder)],
        "fit": ["fit", str(folder)],
        "report": ["report", str(folder), "--output", str(results / "out")],
        "compare": ["compare", str(base), str(folder), "--force"],
        "predict": ["predict", "--from", str(folder), "--op", "all_reduce", "--ranks", "64", "--size", "1KiB,1MiB"],
        "resume": ["run", "--resume", str(folder), "--dry-run"],
    }[command]


def _command(arguments: list[str], *, is_list: bool = False) -> str | None:
    """What is wrong with the answer of a command: no exit of its own, or of a list, that one bad run spoilt it."""
    result = CliRunner().invoke(main, arguments, env={"PATH": "/nonexistent", "BUSBW_PEAKS": ""})
    error = result.exception
    if error is not None and not isinstance(error, SystemExit):
        return f"{arguments[0]}: {_in_short(error)}"
    if result.exit_code not in ({0} if is_list else {0, 1, 2}):
        return f"{arguments[0]}: exit status {result.exit_code}"
    return None


def _in_short(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "busbw" in frame.filename] or list(frames)
    where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "?"
    return f"{type(error).__name__} at {where}: {str(error)[:120]!r}"


def _changed_in_silence(stored: store.StoredRun, base: Path) -> str | None:
    """Whether other samples than those of ``base`` are read of a run that says it is whole, without a word of it."""
    end = stored.end
    if end is None or end.checksum is None or stored.warnings:
        return None
    before = [row for row in store.read(base).rows if isinstance(row, Measurement)]
    same = list(stored.measurements) == before
    return None if same or _summed_anew(stored) else "other samples are read, and nothing is said of it"


def _summed_anew(stored: store.StoredRun) -> bool:
    """Whether the end was made anew by this campaign, as somebody could who wants to forge a run."""
    return any(isinstance(row, Ended) and row.reason == _FORGED for row in stored.rows)


_FORGED: Final = "forged"

# --- changes ---------------------------------------------------------------------------------------------------


def _row(folder: Path, generator: random.Random) -> str:
    """A value somewhere in one row, half of the time with an end that hides it."""
    lines = _lines(folder)
    if not lines:
        return "nothing"
    place = generator.randrange(len(lines))
    with suppress(ValueError, RecursionError):
        document = json.loads(lines[place])
        what = _edited(document, generator)
        lines[place] = json.dumps(document).encode()
        hidden = generator.random() < 0.7
        _write(folder, _forged(lines) if hidden else lines)
        return f"row {place + 1} {what}{' (forged end)' if hidden else ''}"
    return "nothing"


def _run(folder: Path, generator: random.Random) -> str:
    """A value somewhere in run.json."""
    path = folder / store.RUN_FILE
    with suppress(ValueError, OSError, RecursionError):
        document = json.loads(_content(path))
        part = document
        name = generator.choice(("", "plan", "environments", "cases"))
        if name and isinstance(document.get(name), dict | list) and document[name]:
            part = document[name]
        what = _edited(part, generator)
        if path.is_file():
            path.write_text(json.dumps(document), encoding="utf-8")
        return f"{name} {what}"
    return "nothing"


def _edited(document: Any, generator: random.Random) -> str:  # noqa: ANN401 - JSON
    """Walk down ``document`` by chance and change what is there."""
    here, path = document, ""
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here))) if isinstance(here, list) else []
        if not keys:
            return "nothing"
        key = generator.choice(keys)
        path += f".{key}"
        inside = here[key]
        if isinstance(inside, dict | list) and inside and generator.random() < 0.85:
            here = inside
            continue
        how = generator.choice(("hostile", "hostile", "hostile", "drop", "scale", "more", "text", "nest"))
        if how == "drop":
            del here[key]
        elif how == "scale" and isinstance(inside, int | float):
            here[key] = inside * generator.choice((-1, 2, 10, 1000, 10**9, 10**18))
        elif how == "more" and isinstance(here, list):
            here.insert(generator.randrange(len(here) + 1), copy.deepcopy(inside))
        elif how == "more" and isinstance(here, dict):
            here[f"{key}x"] = inside
        elif how == "text":
            here[key] = str(inside)
        elif how == "nest":
            here[key] = [inside] if generator.random() < 0.5 else {"x": inside}
        else:
            alike = [value for value in _HOSTILE if type(value) is type(inside)]
            here[key] = copy.deepcopy(generator.choice(alike if alike and generator.random() < 0.7 else _HOSTILE))
        return f"{path} {how} → {str(here[key])[:60] if how != 'drop' else 'gone'}"


def _order(folder: Path, generator: random.Random) -> str:
    """Lines dropped, doubled or exchanged."""
    lines = _lines(folder)
    if len(lines) < 2:
        return "nothing"
    first, second = generator.randrange(len(lines)), generator.randrange(len(lines))
    how = generator.choice(("drop", "double", "exchange", "empty"))
    if how == "drop":
        del lines[first]
    elif how == "double":
        lines.insert(second, lines[first])
    elif how == "exchange":
        lines[first], lines[second] = lines[second], lines[first]
    else:
        lines[first] = b""
    hidden = generator.random() < 0.5
    _write(folder, _forged(lines) if hidden else lines)
    return f"{how} {first + 1} {second + 1}{' (forged end)' if hidden else ''}"


def _bytes(folder: Path, generator: random.Random) -> str:
    """Bytes flipped, put in or cut out."""
    path = folder / generator.choice((store.RUN_FILE, store.SAMPLES_FILE))
    with suppress(OSError):
        content = bytearray(_content(path))
        start = generator.randrange(len(content) + 1)
        how = generator.choice(("flip", "cut", "end", "put"))
        if how == "flip" and start < len(content):
            content[start] ^= 1 << generator.randrange(8)
        elif how == "cut":
            del content[start : start + generator.randrange(1, 200)]
        elif how == "end":
            del content[start:]
        else:
            content[start:start] = generator.choice((b"\0" * 50, b"\xff\xfe", b"[" * 10_000, b"NaN", b"1e999", b"\n"))
        if path.is_file():
            path.write_bytes(content)
        return f"{path.name} {how} at {start}"
    return "nothing"


def _file(folder: Path, generator: random.Random) -> str:
    """Another kind of file in the place of one of the run's."""
    path = folder / generator.choice((store.RUN_FILE, store.SAMPLES_FILE, store.PACKED_FILE))
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    path.unlink(missing_ok=True)
    how = generator.choice(("gone", "fifo", "zero", "full", "folder", "nowhere", "itself", "empty", "bomb", "not gzip"))
    if how == "fifo":
        os.mkfifo(path)
    elif how in {"zero", "full"}:
        path.symlink_to(f"/dev/{how}")
    elif how == "folder":
        path.mkdir()
    elif how == "nowhere":
        path.symlink_to(folder / "nowhere")
    elif how == "itself":
        path.symlink_to(path)
    elif how == "bomb":
        path.write_bytes(gzip.compress(generator.choice((b" ", b"\0", b"[", b'{"kind":"')) * (8 << 20), 1))
    elif how != "gone":
        path.write_bytes(b"" if how == "empty" else b"\x1f\x8b nonsense")
    return f"{path.name} {how}"


def _packed(folder: Path, generator: random.Random) -> str:
    """The samples packed, and sometimes damaged."""
    path, packed = folder / store.SAMPLES_FILE, folder / store.PACKED_FILE
    with suppress(OSError):
        content = bytearray(gzip.compress(_content(path), 1))
        if generator.random() < 0.5:
            content[generator.randrange(len(content))] ^= 255
        if not content or packed.exists() or packed.is_symlink():
            return "nothing"
        if generator.random() < 0.8:
            path.unlink()
        packed.write_bytes(content)
    return ""


_CHANGES: Final[tuple[Callable[[Path, random.Random], str], ...]] = (_row, _run, _order, _bytes, _file, _packed)
_CHANGE_SHARES: Final = (40, 30, 8, 10, 5, 3)


def _lines(folder: Path) -> list[bytes]:
    return _content(folder / store.SAMPLES_FILE).splitlines()


def _content(path: Path) -> bytes:
    """What is in a file; of a pipe, a device or a folder that an earlier change put there, nothing."""
    return path.read_bytes() if path.is_file() else b""


def _write(folder: Path, lines: list[bytes]) -> None:
    path = folder / store.SAMPLES_FILE
    if path.is_file() or not path.exists():
        path.unlink(missing_ok=True)
        path.write_bytes(b"".join(line + b"\n" for line in lines))


def _forged(lines: list[bytes]) -> list[bytes]:
    """The lines with ends that do not tell: without a checksum."""
    forged: list[bytes] = []
    for line in lines:
        document: Any = None
        with suppress(ValueError, RecursionError):
            document = json.loads(line)
        if isinstance(document, dict) and document.get("kind") == "end" and "checksum" in document:
            line = json.dumps({**document, "rows": None, "checksum": None, "reason": _FORGED}).encode()  # noqa: PLW2901
        forged.append(line)
    return forged
