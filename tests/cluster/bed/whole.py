"""The bed as a whole: hosts, switch and Slurm, started together and taken down together."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self, TypeVar

from bed.hosts import BedError, Host, kill_group, start_host, started_host, wait_until
from bed.network import Network
from bed.slurm import start_slurm, told_by_daemons
from bed.switch import Switch, start_switch

HEAD = "head"
"""The node that computes nothing: Slurm's controller lives there, and people log in there."""
MOST_HOSTS = 60

_END_SECONDS = 10.0
_LONGEST_FOLDER = 88
_CHECKOUT = Path(__file__).resolve().parents[3]
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_UNFINISHED = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "RESIZING", "STOPPED")

_Process = TypeVar("_Process", subprocess.Popen[str], subprocess.Popen[bytes])


@dataclass(frozen=True, slots=True)
class Job:
    """A job as Slurm tells it: everything of ``scontrol show job``, by Slurm's names."""

    number: int
    facts: Mapping[str, str]

    @property
    def state(self) -> str:
        """``PENDING``, ``RUNNING``, ``COMPLETED``, ``FAILED``, ``TIMEOUT``, ``NODE_FAIL``, ``CANCELLED``, …"""
        return self.facts["JobState"]

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state not in _UNFINISHED

    @property
    def exit_code(self) -> int:
        """The exit code of the batch script; it means something once the job has ended."""
        return int(self.facts["ExitCode"].partition(":")[0])


class _Lifeline:
    """A pipe on which every process of a bed waits: they all end when its other end closes, which only this process
    holds, and so also when this process is killed.
    """

    def __init__(self) -> None:
        read, write = os.pipe()
        self.reading = os.fdopen(read, "rb")
        self._writing = os.fdopen(write, "wb")
        self._processes: list[subprocess.Popen[str] | subprocess.Popen[bytes]] = []

    def hold(self, process: _Process) -> _Process:
        """Wait for this process, too, when all of them end."""
        self._processes.append(process)
        return process

    def end(self) -> None:
        """End all of them, and wait until they have."""
        self._writing.close()
        self.reading.close()
        for process in self._processes:
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


@dataclass(slots=True)
class Bed:
    """``hosts`` virtual hosts n1, n2, … and the head node. A context: they are there inside it, and nothing of them is
    left after it, whatever happened. Several beds can be at once, as none of them has a name outside of its folder.

    All hosts see the checkout, the Python environment, the folder of the bed and the folders in ``shared`` under
    the same names as the machine; each has its own /tmp. ``cpus`` is what Slurm believes that each has.
    """

    hosts: int = 4
    network: Network = field(default_factory=Network)
    slurm: bool = False
    cpus: int = 4
    shared: Sequence[Path] = ()
    folder: Path | None = None
    _hosts: dict[str, Host] = field(default_factory=dict, init=False)
    _switch: Switch | None = field(default=None, init=False)
    _undo: ExitStack = field(default_factory=ExitStack, init=False)

    def __enter__(self) -> Self:
        if not 1 <= self.hosts <= MOST_HOSTS:
            message = f"a bed has 1 to {MOST_HOSTS} hosts, not {self.hosts}"
            raise BedError(message)
        with ExitStack() as undo:
            self._start(undo)
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undo.close()

    # --- what there is

    @property
    def names(self) -> tuple[str, ...]:
        """The hosts without the head, in order."""
        return tuple(name for name in self._hosts if name != HEAD)

    @property
    def place(self) -> Path:
        """The folder of the bed, which all hosts share, and which goes with the bed."""
        if self.folder is None:
            message = "the bed has not been started"
            raise BedError(message)
        return self.folder

    def address(self, host: str) -> str:
        """The IPv4 address of a host."""
        return self._host(host).address

    def pid(self, host: str) -> int:
        """The process, as this one sees it, whose namespaces are those of a host."""
        return self._host(host).pid

    def processes(self, host: str) -> Mapping[int, str]:
        """What runs on a host: process number, as this process sees it, and command line."""
        return self._host(host).processes()

    def environment(self) -> dict[str, str]:
        """What every command on a host has around it, like somebody who logged in: nothing of the caller's own."""
        programs = f"{Path(sys.prefix) / 'bin'}:{_SYSTEM_PATH}"
        slurm = {"SLURM_CONF": str(self.place / "slurm/slurm.conf")} if self.slurm else {}
        return {"PATH": programs, "HOME": str(self.place / "home"), "LANG": "C.UTF-8", **slurm}

    # --- what can be done

    def set_network(self, network: Network) -> None:
        """Make the network so from now on. Raises ValueError for a host that there is not."""
        assert self._switch is not None
        self._switch.apply(network, list(self._hosts.values()), HEAD)
        for name, host in self._hosts.items():
            if (rate := network.up_mbit(name, HEAD)) != self.network.up_mbit(name, HEAD):
                host.send_at(rate)
        self.network = network

    def cut(self, host: str) -> None:
        """Cut the cable of a host: nothing reaches it or leaves it any more, and nobody is told."""
        self.set_network(self.network.with_cut(host, cut=True))

    def mend(self, host: str) -> None:
        """Mend the cable of a host."""
        self.set_network(self.network.with_cut(host, cut=False))

    def command(self, host: str, argv: Sequence[str | Path], folder: Path | None = None) -> list[str]:
        """The command by which this machine runs ``argv`` on a host; it needs ``environment()`` around it."""
        return self._host(host).command(argv, folder or self.place)

    def start_on(
        self,
        host: str,
        argv: Sequence[str | Path],
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        output: IO[bytes] | IO[str] | int = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Start a command on a host, the leader of a process group of its own, standard error apart where ``output`` is
        a pipe. ``environment`` is added to ``environment()``; ``folder`` is where it works, by default that of the bed.
        """
        return subprocess.Popen(
            self.command(host, argv, folder),
            env={**self.environment(), **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output if output == subprocess.PIPE else subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    @contextmanager
    def running_on(
        self,
        host: str,
        argv: Sequence[str | Path],
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        output: IO[bytes] | IO[str] | int = subprocess.PIPE,
    ) -> Iterator[subprocess.Popen[str]]:
        """``start_on``, and at the end of the context it and all that it started in its process group are killed."""
        with self.start_on(host, argv, environment=environment, folder=folder, output=output) as process:
            try:
                yield process
            finally:
                kill_group(process)

    def run_on(
        self,
        host: str,
        argv: Sequence[str | Path],
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        seconds: float = 240.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host until it has ended. Kills it after ``seconds``, with subprocess.TimeoutExpired."""
        with self.running_on(host, argv, environment=environment, folder=folder) as process:
            out, err = process.communicate(timeout=seconds)
        return subprocess.CompletedProcess([*map(str, argv)], process.returncode, out, err)

    def ask(self, *argv: str | Path) -> str:
        """What a command says on the head node. Raises BedError when it fails."""
        done = self.run_on(HEAD, argv)
        if done.returncode != 0:
            message = f"{' '.join(map(str, argv))} ended with {done.returncode}: {done.stdout}{done.stderr}"
            raise BedError(message)
        return done.stdout

    # --- Slurm

    def sbatch(
        self,
        arguments: Sequence[str | Path],
        *,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Submit a job from the head node: options of sbatch, then a script or ``--wrap=…``; the number of the job.
        Raises BedError with Slurm's words when it is refused.
        """
        argv = ["sbatch", "--parsable", *arguments]
        done = self.run_on(HEAD, argv, folder=folder, environment=environment)
        if done.returncode != 0:
            message = f"sbatch refused it: {done.stderr.strip()}"
            raise BedError(message)
        return int(done.stdout.partition(";")[0])

    def job(self, number: int) -> Job:
        """How a job stands. Raises BedError for one that Slurm does not know."""
        text = self.ask("scontrol", "show", "job", "--oneliner", str(number))
        pairs = (word.partition("=") for word in text.split())
        return Job(number, {name: value for name, _, value in pairs})

    def ended_job(self, number: int, seconds: float = 240.0) -> Job:
        """The job, once nothing more will happen to it. Raises BedError when that takes more than ``seconds``."""
        deadline = time.monotonic() + seconds
        while not (job := self.job(number)).ended:
            if time.monotonic() > deadline:
                message = f"job {number} is still {job.state} after {seconds:.0f} s: {dict(job.facts)}"
                raise BedError(message)
            time.sleep(0.1)
        return job

    # --- coming and going

    def _host(self, name: str) -> Host:
        if name not in self._hosts:
            message = f"no host {name}; there are {', '.join(self._hosts)}"
            raise BedError(message)
        return self._hosts[name]

    def _start(self, undo: ExitStack) -> None:
        folder = self._make_folder(undo)
        lifeline = _Lifeline()
        undo.callback(lifeline.end)
        plan = {**{f"n{number}": f"10.77.0.{number}" for number in range(1, self.hosts + 1)}, HEAD: "10.77.0.254"}
        # torch looks its peers up by the mapped address.
        lines = [f"{address} {name}\n::ffff:{address} {name}\n" for name, address in plan.items()]
        (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines), encoding="utf-8")
        shared = _outermost([folder, _CHECKOUT, Path(sys.prefix), Path(sys.base_prefix), *self.shared])
        starting: dict[str, subprocess.Popen[str]] = {}
        for name in plan:
            (folder / "stages" / name).mkdir(parents=True)
            starting[name] = lifeline.hold(start_host(name, folder, shared, lifeline.reading))
        self._hosts = {name: started_host(name, plan[name], process) for name, process in starting.items()}
        hosts = list(self._hosts.values())
        switch = lifeline.hold(start_switch(folder / "switch", self.network, hosts, HEAD, lifeline.reading))
        self._switch = Switch(switch.pid, folder / "switch")
        for number, host in enumerate(hosts, start=1):
            host.configure(number, prefix_length=24)
            host.send_at(self.network.up_mbit(host.name, HEAD))
        if self.slurm:
            self._start_slurm(lifeline)

    def _make_folder(self, undo: ExitStack) -> Path:
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="busbw-bed-"))
            undo.callback(setattr, self, "folder", None)
        else:
            try:
                self.folder.mkdir()
            except FileExistsError as error:
                message = f"{self.folder} is there already: a bed, or what is left of one that was killed"
                raise BedError(message) from error
        undo.callback(shutil.rmtree, self.folder)
        self.folder = self.folder.resolve()
        if len(str(self.folder)) > _LONGEST_FOLDER:
            message = f"{self.folder} is too long a name: {_LONGEST_FOLDER} characters at most, as sockets are in there"
            raise BedError(message)
        self.folder.chmod(0o755)
        (self.folder / "home").mkdir()
        return self.folder

    def _start_slurm(self, lifeline: _Lifeline) -> None:
        folder = self.place / "slurm"

        def start(host: str, argv: Sequence[str | Path], log: Path) -> subprocess.Popen[str]:
            with log.open("wb") as output:
                return lifeline.hold(self.start_on(host, argv, output=output))

        def all_idle() -> bool:
            idle = self.run_on(HEAD, ["sinfo", "--noheader", "--Node", "--states=idle", "--format=%N"])
            return len(set(idle.stdout.split())) == self.hosts

        try:
            start_slurm(folder, [self._hosts[name] for name in self.names], self._hosts[HEAD], self.cpus, start)
            wait_until(all_idle, "its nodes are not all idle")
        except BedError as error:
            message = f"Slurm did not start: {error}\n{told_by_daemons(folder)}"
            raise BedError(message) from error


def _outermost(folders: Sequence[Path]) -> list[Path]:
    """These folders without those that lie in another one of them."""
    resolved = sorted({folder.resolve() for folder in folders})
    return [
        folder for folder in resolved if not any(folder != other and folder.is_relative_to(other) for other in resolved)
    ]
