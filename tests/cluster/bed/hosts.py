"""Virtual hosts: each is one process in namespaces of its own, and all of it is gone as soon as that process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

START_SECONDS = 60.0
"""How long anything of a bed may take to start, on a machine that is busy with something else."""

_LEAST_BURST_BYTES = 20_000
"""Two frames."""

_BURST_SECONDS = 1e-3
"""What may leave the queue of a host at once, as time on its cable: timers are no finer on a busy machine."""

_MOST_WAITING_BYTES = 90_000_000
"""More than all connections of a host can have waiting: nothing is dropped."""

_GAP_BYTES = 24
"""What a frame takes on a cable beyond its bytes (GAP in switch.c)."""

_FIRST_PROCESS = Path(__file__).with_name("host.py")
_NAMESPACES = ("--net", "--uts", "--ipc", "--mount", "--pid")


class BedError(Exception):
    """The bed did not start, or something on it did not do what it had to; the message says what was heard of it."""


@dataclass(frozen=True, slots=True)
class Host:
    """A virtual host that runs: its name, its address, and the process (seen from outside) that is it."""

    name: str
    address: str
    pid: int

    def command(self, argv: Sequence[str | Path], folder: Path) -> list[str]:
        """The command that runs ``argv`` on this host, in ``folder``."""
        enter = ["nsenter", f"--target={self.pid}", *_NAMESPACES]
        return [*enter, "--", "env", f"--chdir={folder}", *map(str, argv)]

    def configure(self, number: int, prefix_length: int) -> None:
        """Give the interface that the switch has made its addresses. Raises BedError when ``ip`` refuses."""
        commands = f"""\
            link set lo up
            link set eth0 address 02:00:00:00:00:{number:02x} mtu 9000 txqueuelen 10000 up
            address add {self.address}/{prefix_length} dev eth0
            """
        self._set_up(["ip", "-batch", "-"], commands)

    def send_at(self, mbit: float) -> None:
        """Let frames wait in the host until its cable takes them (Mbit/s; 0: at once). Raises BedError when ``tc``
        refuses.

        The TAP device would hold them too, but a frame in there is off TCP's books (tun_net_xmit orphans it), so that
        TCP piles up all that its buffers hold in front of its own acknowledgements: one 32 MiB exchange in both
        directions at once reached 0.78 of a link of 1 Gbit/s and 5 ms, and 0.95 with this. A real card's driver keeps
        its own queue short for the same reason.
        """
        burst = round(max(_LEAST_BURST_BYTES, mbit * 1e6 / 8 * _BURST_SECONDS))
        shaped = f"tbf rate {mbit}mbit burst {burst} limit {_MOST_WAITING_BYTES} overhead {_GAP_BYTES}"
        self._set_up(["tc", "-batch", "-"], f"qdisc replace dev eth0 root {shaped if mbit else 'pfifo_fast'}\n")

    def _set_up(self, command: Sequence[str], lines: str) -> None:
        """Give a program on this host its ``lines``."""
        argv = ["nsenter", f"--target={self.pid}", "--net", *command]
        done = subprocess.run(argv, input=lines, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            message = f"the network of {self.name} cannot be set up: {done.stderr.strip()}"
            raise BedError(message)

    def listens(self, port: int) -> bool:
        """Whether some process of this host takes connections at this TCP port."""
        sockets = (line.split() for line in Path(f"/proc/{self.pid}/net/tcp").read_text(encoding="ascii").splitlines())
        return any(line[1].endswith(f":{port:04X}") and line[3] == "0A" for line in sockets)

    def processes(self) -> Mapping[int, str]:
        """What runs on this host, its first process left out: process number (seen from outside) and command line."""
        mine = Path(f"/proc/{self.pid}/ns/pid").readlink()
        commands: dict[int, str] = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == self.pid:
                continue
            try:
                if (entry / "ns/pid").readlink() == mine:
                    commands[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            except OSError:
                continue  # it ended while we looked
        return commands


def start_host(name: str, run: Path, shared: Sequence[Path], lifeline: IO[bytes]) -> subprocess.Popen[str]:
    """Begin to start a host; it is there once it has said so, which ``started_host`` waits for. It lives until the
    other end of ``lifeline`` is closed.
    """
    unshare = ["unshare", *_NAMESPACES, "--fork", "--kill-child", "--propagation", "private"]
    return subprocess.Popen(
        [*unshare, sys.executable, "-S", "-E", str(_FIRST_PROCESS), name, str(run), *map(str, shared)],
        stdin=lifeline,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def started_host(name: str, address: str, process: subprocess.Popen[str]) -> Host:
    """The host, once it has set itself up. Raises BedError with what it said when it could not."""
    assert process.stdout is not None
    said = process.stdout.readline()
    if said != "ready\n":
        message = f"host {name} did not start: {said}{process.stdout.read()}".strip()
        raise BedError(message)
    process.stdout.close()
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
    return Host(name, address, int(child))


def wait_until(condition: Callable[[], bool], otherwise: str, seconds: float = START_SECONDS) -> None:
    """Poll until ``condition`` holds. Raises BedError with ``otherwise`` when it does not within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            message = f"{otherwise} within {seconds:.0f} s"
            raise BedError(message)
        time.sleep(0.01)


def kill_group(process: subprocess.Popen[str]) -> None:
    """Kill whoever is left of the group that this process leads, and wait until they are gone.

    The leader is ``nsenter``, outside of the host, and goes last: it buries its child, which else would be left to the
    machine's first process, and while that takes its time the host cannot end either.
    """

    def gone() -> bool:
        members = _members(process.pid)
        for pid in members - {process.pid} or members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return process.poll() is not None and not members

    wait_until(gone, f"process group {process.pid} does not end")


def _members(group: int) -> set[int]:
    """The processes of a group that have not ended."""
    members = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it ended while we looked
                state, _, its_group = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:3]
                if int(its_group) == group and state != "Z":
                    members.add(int(entry.name))
    return members
