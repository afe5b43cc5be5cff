"""Commands that are forked are what a test takes them for: started by itself, and otherwise as from nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from testing.narrow import require

if TYPE_CHECKING:
    from collections.abc import Callable

    from forked import Forker

pytestmark = pytest.mark.integration

_TELLS = """\
import atexit, json, os, signal, sys, threading, time
atexit.register(lambda: print("at the end", file=sys.stderr))
print(json.dumps({
    "parent": os.getppid(),
    "session": os.getsid(0) == os.getpid(),
    "folder": os.getcwd(),
    "environment": dict(os.environ),
    "arguments": sys.argv,
    "name": __name__,
    "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd")),
    "input": sys.stdin.read(),
    "ignored": [number for number in range(1, 32) if signal.getsignal(number) is signal.SIG_IGN],
    "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "threads": threading.active_count(),
}), flush=True)
if "wait" in sys.argv:
    time.sleep(1000)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "tells.py"
    path.write_text(_TELLS, encoding="utf-8")
    return path


def _told(process: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
    out, err = process.communicate(timeout=60)
    return json.loads(out), err


def test_it_is_what_a_fresh_one_is(forker: Callable[[], Forker], program: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(program), "7", "an argument"]
    environment = {"LC_ALL": "C.UTF-8", "ONLY": "this"}  # no locale at all is one that Python puts there
    fresh = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=tmp_path,
    )
    forked = forker().start(command, environment, tmp_path)
    wanted = _told(fresh)
    assert _told(forked) == wanted
    assert wanted[0]["parent"] == os.getpid()
    assert forked.returncode == fresh.returncode == 7


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_it_as_it_ends_any(
    forker: Callable[[], Forker], program: Path, tmp_path: Path, number: signal.Signals
) -> None:
    forked = forker().start([sys.executable, str(program), "0", "wait"], {}, tmp_path)
    assert require(forked.stdout).read(1) == "{"  # it is in its own lines
    os.killpg(forked.pid, number)
    _, err = forked.communicate(timeout=60)
    assert forked.returncode == -number
    assert ("KeyboardInterrupt" in err) == (number == signal.SIGINT)
