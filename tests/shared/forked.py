"""``python …`` forked from a process that has busbw and torch in memory already, which spares two seconds of a core.

``Forker.start`` is ``subprocess.Popen`` for a command of this interpreter: a child of the process that asks for it, in
a session of its own, with the streams, folder and environment that it is given, and Python's own signals. What runs in
it is the command as it is, from its first line on. What is not tried in this way is that the modules can be loaded
from nothing: some tests start a fresh interpreter, with ``BUSBW_EXHAUSTIVE=1`` all of them do.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import inspect
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MARK = "BUSBW_TEST_MARK"
"""The variable by whose value, of ``MARK_LENGTH`` characters, a test finds its processes in /proc."""
MARK_LENGTH = 32

_MOST_BYTES = 1 << 18
_SUBREAPER = 36
_C = ctypes.CDLL(None, use_errno=True)
_C.getenv.restype = ctypes.c_void_p


class Forker:
    """The process that others are forked from; it ends with this one, or with ``close``."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                env={**environment, MARK: "0" * MARK_LENGTH},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def start(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> subprocess.Popen[str]:
        """``command``, which begins with this interpreter, the leader of a session, with pipes for what it says."""
        return _Forked(self, command, environment, folder)

    def close(self) -> None:
        """End it; what was forked from it goes on."""
        self._socket.close()
        self._process.wait()

    def fork(self, order: Mapping[str, Any], streams: Sequence[int]) -> int:
        """The process that carries out ``order`` with these streams: a child of this one, though forked elsewhere."""
        # Who loses its parent becomes a child of the nearest process above that has asked for it.
        _C.prctl(_SUBREAPER, 1)
        try:
            socket.send_fds(self._socket, [json.dumps(order).encode()], streams)
            answer = self._socket.recv(_MOST_BYTES)
        finally:
            _C.prctl(_SUBREAPER, 0)
        if not answer:
            message = f"the process that forks commands has ended: {self._process.wait()}"
            raise RuntimeError(message)
        return int(answer)


class _Forked(subprocess.Popen[str]):
    """A ``Popen`` whose process is forked by ``forker``."""

    def __init__(self, forker: Forker, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self._forker = forker
        super().__init__(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=folder,
        )

    def _execute_child(self, *arguments: object) -> None:
        """What a Popen starts its process by: here another process does, and all else of a Popen stays as it is."""
        started_by = subprocess.Popen._execute_child  # type: ignore[attr-defined] # it is nobody's business but here
        given = inspect.signature(started_by).bind(self, *arguments).arguments
        order = {"argv": given["args"], "environment": dict(given["env"]), "folder": str(given["cwd"])}
        ours = {given[name] for name in ("p2cread", "c2pwrite", "errwrite")}
        try:
            self.pid = self._forker.fork(order, [given["p2cread"], given["c2pwrite"], given["errwrite"]])
            self._child_created = True
        finally:
            for number in ours:
                os.close(number)
            self._closed_child_pipe_fds = True


# --- in the process that forks -----------------------------------------------------------------------------------


def serve(asked: socket.socket) -> None:
    """Fork what is asked for until nobody can ask any more."""
    import click  # noqa: PLC0415 - who only asks needs none of it

    from busbw.cli.main import main  # noqa: PLC0415 - as above

    for name in (
        "torch.distributed.run",
        "busbw.backends.pytorch.backend",
        "busbw.launch.local",
        "busbw.launch.attach",
        "busbw_analysis.cli.main",
    ):
        importlib.import_module(name)
    commands = click.Context(main)
    while True:
        message, streams, _, _ = socket.recv_fds(asked, _MOST_BYTES, 3)
        if not message:
            return
        order = json.loads(message)
        for word in order["argv"]:
            main.get_command(commands, word)  # those of the analysis are loaded when one is wanted
        gc.freeze()
        said, says = os.pipe()
        waits, goes = os.pipe()
        between = os.fork()
        if between == 0:
            if os.fork() != 0:
                os._exit(0)  # what it has forked falls to the process that asks
            asked.close()
            os.close(said)
            os.close(goes)
            os.setsid()
            _carry_mark(order["environment"].get(MARK, ""))
            os.write(says, str(os.getpid()).encode())
            os.close(says)
            os.read(waits, 1)
            os.close(waits)
            _be(order, streams)
        os.close(says)
        pid = os.read(said, 32)
        os.waitpid(between, 0)
        for number in (said, waits, goes, *streams):  # whoever waits may go
            os.close(number)
        asked.send(pid)


def _carry_mark(mark: str) -> None:
    """Let /proc show ``mark`` in the environment, which it reads where the first process of all has it."""
    if len(mark) == MARK_LENGTH:
        ctypes.memmove(_C.getenv(MARK.encode()), mark.encode(), MARK_LENGTH)


def _be(order: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Be the command, and end with its exit status."""
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    interpreter, *rest = order["argv"]
    sys.orig_argv = [interpreter, *rest]
    try:
        if rest[0] == "-m":
            sys.argv, sys.path[0] = rest[1:], order["folder"]
            runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv, sys.path[0] = rest, str(Path(rest[0]).parent)
            runpy.run_path(rest[0], run_name="__main__")
        code: object = 0
    except SystemExit as ended:
        code = ended.code
        if code is not None and not isinstance(code, int):
            sys.stderr.write(f"{code}\n")
            code = 1
    # What every process does at its end, but for taking apart what was in memory before: those are pages of the process
    # that has forked this one, and copying them takes longer than a small run.
    threading._shutdown()  # type: ignore[attr-defined] # the interpreter's own, as it would be called
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    serve(socket.socket(fileno=int(sys.argv[1])))
