"""Everything that has to be seen on a machine with GPUs, at most 20 minutes: ``make gpu-acceptance``.

It leaves a folder with the output of every part, the runs, and ``summary.json``, and the same as an archive to send
back. A part that hangs is ended with all its processes and costs only its own time. Exit status 1 when a part failed.
"""

import argparse
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec
import torch

from busbw.escape import say
from busbw.ops import OPS
from busbw.runs.records import DTYPE_BYTES

ROOT: Final = Path(__file__).parents[2]
_GRACE_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Part:
    """A command with its time limit. A needless one may fail: its program is not everywhere."""

    name: str
    command: tuple[str, ...]
    minutes: float
    needed: bool = True


_PYTHON: Final = sys.executable
_BUSBW: Final = f"{shlex.quote(_PYTHON)} -m busbw"
_STEPS_OF_ONE: Final = ("train_all_reduce", "train_ddp", "train_zero1", "train_fsdp", "train_fsdp_prefetch")


def _words(*arguments: str) -> str:
    """A command of busbw, for a shell."""
    return f"{_BUSBW} {shlex.join(arguments)}"


def _ended_by(signal_name: str, arguments: tuple[str, ...], runs: tuple[str, ...]) -> tuple[str, ...]:
    """A run that gets a signal after 15 s: what was measured must be there, and the GPU free for another run."""
    ended = f"timeout --foreground -k 5 -s {signal_name} 15 {_words(*arguments)}"
    again = ("run", "--backend", "nccl", "--op", "memory_copy", "--sizes", "1MiB", "--launches", "1", "--ranks", "1")
    return ("sh", "-c", f"{ended}; {_words('show', 'latest', *runs)} && {_words(*again, *runs)}")


State = Literal["passed", "failed", "timed out", "not here"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a part."""

    part: str
    command: tuple[str, ...]
    state: State
    seconds: float
    exit_status: int | None = None


def _busbw(name: str, minutes: float, *arguments: str, needed: bool = True) -> Part:
    return Part(name, (_PYTHON, "-m", "busbw", *arguments), minutes, needed)


_SYSFS: Final = (
    'for d in /sys/bus/pci/devices/*; do echo "$d -> $(readlink $d)"; '
    "for f in class vendor device numa_node current_link_speed current_link_width max_link_speed max_link_width; do "
    'test -r $d/$f && echo "$d/$f = $(cat $d/$f)"; done; done; true'
)
"""Prints the kernel's files of PCI devices as ``tests/data/machines`` has them."""


def parts(folder: Path, gpus: int) -> tuple[Part, ...]:
    """All parts for a machine with ``gpus``, the quick ones first; runs are stored in ``folder``/runs."""
    ops = ",".join(name for name, op in OPS.items() if op.sized and not (op.stores or op.splits))
    runs = ("--results-dir", str(folder / "runs"))
    quick = ("--launches", "1", *runs)
    nccl, short = ("run", "--backend", "nccl", "--sizes", "1MiB"), ("--max-seconds", "0.05", *quick)
    held = ("--mode", "pipelined", "--pre-enqueue", "--dtype", ",".join(DTYPE_BYTES))
    modes = ("--mode", "isolated,pipelined,graph,overlap", "--in-place", "both")
    endless = (*nccl, "--op", "memory_copy", "--duration", "1h", "--ranks", "1", *quick)
    ended, crowded = (*nccl, "--op", "all_reduce", *quick), ("--ranks", str(gpus + 1))
    return (
        _busbw("doctor", 0.5, "doctor", "--json"),
        _busbw("peaks", 0.5, "peaks", "--here", "--json"),
        Part("nvml", (_PYTHON, "tests/shared/testing/nvml_record.py"), 0.25, needed=False),  # of NVIDIA
        Part("timer", (_PYTHON, "tests/shared/testing/gpu_timer.py"), 0.5),
        Part("packages", (_PYTHON, "-m", "pip", "list"), 0.25, needed=False),
        Part("nvidia-smi", ("nvidia-smi", "-q"), 0.25, needed=False),
        Part("topology", ("nvidia-smi", "topo", "-m"), 0.25, needed=False),
        Part("sysfs", ("sh", "-c", _SYSFS), 0.25),
        Part(
            "tests",
            (_PYTHON, "-m", "pytest", "-q", "tests/gpu", "--timeout=60", f"--junitxml={folder / 'tests.xml'}"),
            5,
        ),
        Part("copies", (_PYTHON, "tests/bench/hbm.py"), 1),
        _busbw("operations", 2, *nccl, "--op", ops, *modes, *short),
        _busbw("types", 1, *nccl, "--op", ops, *held, *short),
        Part("interrupted", _ended_by("INT", endless, runs), 0.75),
        Part("killed", _ended_by("KILL", endless, runs), 0.75),
        Part("crowded", ("sh", "-c", f"{_words(*ended, *crowded)}; test $? -eq 1"), 0.5),
        *(_of_several(quick, runs) if gpus > 1 else _of_one(quick, runs)),
        _busbw("memory", 2, "run", "--suite", "memory-gpu", *quick),
        _busbw("roofline", 1.5, "run", "--suite", "roofline-gpu", *quick),
        _busbw("report", 0.25, "report", "latest", *runs),
    )


def _of_several(quick: tuple[str, ...], runs: tuple[str, ...]) -> tuple[Part, ...]:
    return (
        _busbw("self-test", 1.5, "selftest", "--backend", "nccl", "--launches", "6", *runs),
        _busbw("training", 1, "run", "--suite", "training-gpu", *quick),
    )


def _of_one(quick: tuple[str, ...], runs: tuple[str, ...]) -> tuple[Part, ...]:
    """Two equal runs, whose comparison says how small a difference is visible; the self-test needs two GPUs."""
    options = ("--backend", "nccl", "--op", "memory_copy", "--sizes", "64KiB,64MiB", "--launches", "3", *runs)
    same = "; ".join(_words("run", "--label", label, *options) for label in ("first", "second"))
    compared = _words("compare", "first", "second", *runs)
    return (
        Part("same", ("sh", "-c", f"{same}; {compared}"), 1.5),
        _busbw("training", 1, "run", "--backend", "nccl", "--op", ",".join(_STEPS_OF_ONE), "--ranks", "1", *quick),
    )


def run(part: Part, folder: Path) -> Outcome:
    """Run ``part`` with its output in ``folder``; afterwards none of its processes is left."""
    began = time.monotonic()
    if shutil.which(part.command[0]) is None:
        return Outcome(part.name, part.command, "not here", 0.0)
    with (folder / f"{part.name}.txt").open("wb") as output:
        process = subprocess.Popen(
            part.command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, process_group=0
        )
        status: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(60 * part.minutes)
        finally:
            _end(process)
    states: dict[int | None, State] = {None: "timed out", 0: "passed"}
    seconds = round(time.monotonic() - began, 1)
    return Outcome(part.name, part.command, states.get(status, "failed"), seconds, status)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a part and all that it has started: they are one process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_SECONDS)


def accept(chosen: Sequence[Part], folder: Path) -> int:
    """Run ``chosen``, write ``summary.json`` and the archive; returns the exit status."""
    folder.mkdir(parents=True)
    outcomes = []
    for part in chosen:
        outcomes.append(run(part, folder))
        say(f"{part.name}: {outcomes[-1].state} after {outcomes[-1].seconds:g} s")
        (folder / "summary.json").write_bytes(msgspec.json.format(msgspec.json.encode(outcomes)))
    archive = shutil.make_archive(str(folder), "gztar", folder.parent, folder.name)
    say(f"attach {archive} to an issue")
    needed = {part.name for part in chosen if part.needed}
    return int(any(outcome.part in needed and outcome.state != "passed" for outcome in outcomes))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--into", type=Path, default=ROOT / "build" / f"gpu-acceptance-{time.strftime('%Y%m%dT%H%M%S')}"
    )
    target = parser.parse_args().into.resolve()
    sys.exit(accept(parts(target, torch.cuda.device_count()), target))
