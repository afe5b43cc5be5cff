"""The switch between the hosts: the C program beside this file, compiled for each bed and told by a file what to be."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bed.hosts import BedError, Host, wait_until
from bed.network import Network

_SOURCE = Path(__file__).with_name("switch.c")


@dataclass(frozen=True, slots=True)
class Switch:
    """A switch that runs: its process, and the folder with its program, its configuration and what it says."""

    pid: int
    folder: Path

    def apply(self, network: Network, hosts: Sequence[Host], head: str) -> None:
        """Make the network so from now on; frames under way keep their times. Returns when it is so."""
        before = _applied(self.folder)
        _configure(self.folder, network, hosts, head, generation=before + 1)
        os.kill(self.pid, signal.SIGHUP)
        wait_until(lambda: _applied(self.folder) > before, f"the switch did not take {network}: {_said(self.folder)}")


def start_switch(
    folder: Path, network: Network, hosts: Sequence[Host], head: str, lifeline: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Compile and start a switch with a port for each of ``hosts``; it is there when this returns, and lives until the
    other end of ``lifeline`` is closed. Raises BedError with what the compiler or the switch said.
    """
    folder.mkdir()
    program = folder / "switch"
    compiled = subprocess.run(
        ["cc", "-O2", "-o", program, _SOURCE], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if compiled.returncode != 0:
        message = f"the switch does not compile: {compiled.stderr}"
        raise BedError(message)
    _configure(folder, network, hosts, head, generation=1)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, folder / "configuration"],
            stdin=lifeline,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    wait_until(lambda: process.poll() is not None or _applied(folder) > 0, "the switch did not start")
    if process.poll() is not None:
        message = f"the switch did not start: {_said(folder)}"
        raise BedError(message)
    return process


def _configure(folder: Path, network: Network, hosts: Sequence[Host], head: str, generation: int) -> None:
    """Write what the switch is to be, whole or not at all."""
    ports = "".join(f"host {host.name} /proc/{host.pid}/ns/net\n" for host in hosts)
    names = [host.name for host in hosts if host.name != head]
    text = f"{ports}{network.configuration(names, head)}generation {generation}\n"
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=folder, delete=False) as written:
        written.write(text)
    Path(written.name).replace(folder / "configuration")


def _said(folder: Path) -> str:
    return (folder / "log").read_text(encoding="utf-8", errors="replace")


def _applied(folder: Path) -> int:
    """The generation of the configuration that the switch took last; 0 before the first."""
    lines = [line.split() for line in _said(folder).splitlines() if line.startswith("applied ")]
    return int(lines[-1][1]) if lines else 0
