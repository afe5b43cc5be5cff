"""Ranks of busbw on virtual hosts, forked from a process that has torch in memory already: a world in a second.

Reads orders from its standard input, one JSON object a line, and answers each with the exit codes of its ranks:
``arguments`` of ``busbw``, ``folder`` to work in, and for every rank the process that is its ``host``, its
``environment``, its ``fault`` or null, the number of its simulated ``gpus``, and the files for ``output`` and
``error``. What runs in a rank is the command as it is, from its first line on.
"""

import atexit
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

# What every rank needs is here before they fork.
import torch.distributed.fsdp
import torch.distributed.pipelining  # noqa: F401

from busbw.backends import BACKENDS, compiled_loop  # noqa: F401
from busbw.backends.base import Backend, Bound, Operation, in_order
from busbw.backends.faults import WrappingBackend, wrapped
from busbw.backends.pytorch import backend  # noqa: F401
from busbw.cli.main import main
from busbw.launch import (  # noqa: F401
    attach,
    rendezvous,
    run_session,
    worker,
)
from busbw.ops import OPS

sys.path.append(str(Path(__file__).resolve().parents[2] / "shared"))
from simulated.machine import EXACT
from simulated.management import managed_machine

_C = ctypes.CDLL(None, use_errno=True)
_DIE_WITH_PARENT = 1


class SlowBackend(WrappingBackend):
    """A slow node: each call of this rank begins ``seconds`` late, and a local one does its work ``times`` over."""

    def __init__(self, inner: Backend, seconds: float = 0.0, times: int = 1) -> None:
        super().__init__(inner)
        self._seconds, self._times = seconds, times

    def bind(self, bound: Bound) -> Operation:
        """Bind the call of ``inner``, made late or repeated."""
        inner = self.inner.bind(bound)
        times = self._times if OPS[bound.case.op].local else 1
        late = partial(time.sleep, self._seconds)
        return replace(inner, call=in_order(late, *[inner.call] * times), native=None)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies."""
    _C.prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def enter(host: int) -> None:
    """Go over into the namespaces of a host, but for that of its processes: the next fork does. Raises OSError."""
    spaces = [os.open(f"/proc/{host}/ns/{kind}", os.O_RDONLY) for kind in ("net", "uts", "ipc", "pid", "mnt")]
    for space in spaces:
        if _C.setns(space, 0) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter a namespace of process {host}")
        os.close(space)


def be_rank(order: Mapping[str, Any], rank: Mapping[str, Any]) -> None:
    """Be a rank, and end with its exit code."""
    die_with_parent()
    os.environ.clear()
    os.environ.update(rank["environment"])
    os.chdir(order["folder"])
    for number, name in ((0, os.devnull), (1, rank["output"]), (2, rank["error"])):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT, 0o644), number)
    if rank["fault"] is not None:
        BACKENDS["gloo"] = wrapped(BACKENDS["gloo"], partial(SlowBackend, **rank["fault"]))
    gpus = rank["gpus"]
    try:
        with managed_machine(replace(EXACT, gpus=gpus)) if gpus else nullcontext():
            main(order["arguments"], prog_name="busbw")
    except SystemExit as ended:
        # What every process does at its end, but for taking apart what torch and the others have in memory: those are
        # pages of the process that forked this one, and copying them takes longer than a small measurement.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        code = ended.code or 0
        os._exit(code if isinstance(code, int) else 1)


def fork_rank(order: Mapping[str, Any], rank: Mapping[str, Any]) -> int:
    """Start a rank; the process that ends with its exit code."""
    outside = os.fork()
    if outside != 0:
        return outside
    die_with_parent()
    enter(rank["host"])
    first_in_line()
    inside = os.fork()
    if inside == 0:
        be_rank(order, rank)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(inside, 0)[1]) & 0xFF)


def first_in_line() -> None:
    """Go before other processes of the machine, as a rank on a host of its own does. Its threads inherit it."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        os.nice(-10)


def serve() -> None:
    """Do what comes, until nothing comes any more."""
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        order = json.loads(line)
        processes = [fork_rank(order, rank) for rank in order["ranks"]]
        codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
        answers.write(json.dumps(codes) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve()
