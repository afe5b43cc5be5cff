"""Where ranks that somebody else has started meet before there is a world: rank 0 tells the others what to measure.

So only rank 0 reads the plan and the run folder, and only its host has to have them.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol

import msgspec
import psutil

from busbw.errors import LaunchError
from busbw.launch.hostlist import expand
from busbw.launch.promises import Seat, promised
from busbw.plan import Plan
from busbw.records import Record
from busbw.resume import Remaining

_LEAST_PORT, _PORTS = 10_000, 20_000
"""Where a port is taken from that nobody has promised: below those that kernels give to outgoing connections."""

_ORDER_KEY, _HEARD_KEY = "order", "heard/{rank}"
_LINGER_SECONDS = 3.0
"""How long rank 0 waits for the others when there is nothing for them to do."""

_LOOK_SECONDS = 0.02
_MOST_NAMES = 16


class Order(Record, frozen=True, kw_only=True):
    """What rank 0 tells the others: the ``plan``, which ``launch`` this is of the run called ``run``, and what remains
    to be measured where that is resumed. ``plan`` None: nothing is measured, and ``status`` is the exit status then.
    """

    plan: Plan | None = None
    run: str = ""
    launch: int = 0
    remaining: Remaining | None = None
    status: int = 0


class Meeting(Protocol):
    """How rank 0 speaks to the others before the world has formed. ``store`` is the key-value store that the world can
    form over (None: it has its own way).
    """

    store: tuple[str, int] | None

    def tell(self, order: Order) -> None:
        """Rank 0, once: the order is there for all others. Raises LaunchError when it cannot be said."""

    def hear(self) -> Order:
        """Every other rank: what rank 0 tells. Raises LaunchError when nothing comes."""

    def part(self) -> None:
        """Leave, when no world is formed after all."""


class StoreMeeting:
    """Over a key-value store of torch's at ``host`` and ``port``, which rank 0 keeps if it ``serves``.

    Raises LaunchError when rank 0 cannot open it, or another rank does not reach it in ``timeout_seconds``.
    """

    def __init__(
        self,
        seat: Seat,
        host: str,
        port: int,
        timeout_seconds: float,
        *,
        serves: bool = True,
        attempt: str = "0",
        own_world: bool = True,
    ) -> None:
        import torch.distributed as dist  # noqa: PLC0415 - heavy, and only needed where ranks are joined

        self._seat = seat
        self._where = host, port
        self._timeout_seconds = timeout_seconds
        timeout = timedelta(seconds=timeout_seconds)
        keeps = serves and seat.lead
        try:
            # Everywhere, not at ``host``: rank 0 may know its own host by an address that others do not reach it by.
            self._kept = dist.TCPStore("0.0.0.0" if keeps else host, port, None, keeps, timeout, wait_for_workers=False)  # noqa: S104
        except RuntimeError as error:
            what = "open a port for the others at" if keeps else "reach rank 0 at"
            message = (
                f"rank {seat.rank} of {seat.size} (host {socket.gethostname()}) cannot {what} {host} port {port}: "
                f"{_in_words(error)}; MASTER_ADDR and MASTER_PORT name another one"
            )
            raise LaunchError(message) from error
        self._store: dist.Store = dist.PrefixStore(f"busbw/meeting/{attempt}", self._kept)
        self.store = (host, port) if own_world else None

    def tell(self, order: Order) -> None:
        """Put it into the store, and wait until the others have taken it: it goes with this process."""
        patience = min(self._timeout_seconds, _LINGER_SECONDS) if order.plan is None else self._timeout_seconds
        try:
            self._store.set(_ORDER_KEY, msgspec.json.encode(order).decode())
            absent = self._absent(patience)
        except RuntimeError as error:
            message = f"rank 0 cannot tell the others what to measure: {_in_words(error)}"
            raise LaunchError(message) from error
        if absent and order.plan is not None:
            names = ", ".join(map(str, absent[:_MOST_NAMES])) + (", …" if len(absent) > _MOST_NAMES else "")
            host, port = self._where
            message = (
                f"{len(absent)} of {self._seat.size} ranks have not come to rank 0 at {host} port {port} within "
                f"{patience:g} s: {names}"
            )
            raise LaunchError(message)

    def hear(self) -> Order:
        """Wait for it in the store."""
        try:
            told = self._store.get(_ORDER_KEY)
            self._store.set(_HEARD_KEY.format(rank=self._seat.rank), "")
        except RuntimeError as error:
            message = (
                f"rank {self._seat.rank} (host {socket.gethostname()}) has heard nothing from rank 0 for "
                f"{self._timeout_seconds:g} s: {_in_words(error)}"
            )
            raise LaunchError(message) from error
        return msgspec.json.decode(told, type=Order)

    def part(self) -> None:
        """Nothing is left behind but the store, which goes with its process."""

    def _absent(self, seconds: float) -> list[int]:
        """The ranks that have not heard after at most this long."""
        absent = list(range(1, self._seat.size))
        deadline = time.monotonic() + seconds
        while True:
            absent = [rank for rank in absent if not self._store.check([_HEARD_KEY.format(rank=rank)])]
            if not absent or time.monotonic() >= deadline:
                return absent
            time.sleep(_LOOK_SECONDS)


class MpiMeeting:
    """Over MPI itself, by a broadcast. Raises LaunchError when MPI's world is not the one that was promised.

    No wait of MPI ends by itself. What takes longer than ``timeout_seconds`` ends this process, and with it the world.
    """

    store: tuple[str, int] | None = None

    def __init__(self, seat: Seat, timeout_seconds: float) -> None:
        from busbw.backends import BACKENDS  # noqa: PLC0415 - only this meeting asks for one

        missing = BACKENDS["mpi"].missing()
        if missing is not None:
            message = f"{seat.launcher} started this rank, and MPI is what it speaks: {missing}"
            raise LaunchError(message)
        from busbw.backends import mpi  # noqa: PLC0415 - mpi4py loads the library

        self._me = f"rank {seat.rank} of {seat.size} (host {socket.gethostname()})"
        self._timeout_seconds = timeout_seconds
        with _no_longer_than(timeout_seconds, f"{self._me} waits in MPI_Init: not every rank has come there"):
            mpi.initialise(seat.rank, seat.size, seat.local_size or seat.size, seat.launcher)
        self._broadcast = mpi.broadcast
        self._finalize = mpi.finalize

    def tell(self, order: Order) -> None:
        """The root's part of the broadcast."""
        self._broadcast(msgspec.json.encode(order))

    def hear(self) -> Order:
        """The others' part."""
        with _no_longer_than(self._timeout_seconds, f"{self._me} has heard nothing from rank 0"):
            return msgspec.json.decode(self._broadcast(b""), type=Order)

    def part(self) -> None:
        """MPI wants to be left, and not just ended."""
        self._finalize()


@contextmanager
def _no_longer_than(seconds: float, otherwise: str) -> Iterator[None]:
    """End this process, saying ``otherwise``, when what is done meanwhile takes longer; it must let threads run."""

    def end() -> None:
        sys.stderr.write(f"busbw: {otherwise} within {seconds:g} s\n")
        sys.stderr.flush()
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Told:
    """Rank 0's meeting, which knows whether the others have been told."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        self._told = False
        self.store = meeting.store

    def tell(self, order: Order) -> None:
        """As the meeting's own, and remembered."""
        self._told = True
        self._meeting.tell(order)

    def hear(self) -> Order:
        """Nobody tells rank 0. Raises LaunchError."""
        message = "rank 0 is the one that tells the others what to measure"
        raise LaunchError(message)

    def part(self) -> None:
        """As the meeting's own."""
        self._meeting.part()

    def send_home(self, status: int) -> None:
        """Let the others go, with that exit status, that have been told nothing and would wait for it."""
        if not self._told:
            self.tell(Order(status=status))
            self.part()


def at_torchrun(seat: Seat, variables: Mapping[str, str], timeout_seconds: float) -> Meeting:
    """Where ``torchrun`` says: at the store of its agent, or at one that rank 0 keeps where it has none."""
    agent = variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return StoreMeeting(
        seat,
        variables["MASTER_ADDR"],
        promised(variables, "MASTER_PORT"),
        timeout_seconds,
        serves=not agent,
        # The agent's store lives on when it starts its ranks again.
        attempt=variables.get("TORCHELASTIC_RESTART_COUNT", "0"),
        own_world=not agent,
    )


def at_srun(seat: Seat, variables: Mapping[str, str], timeout_seconds: float) -> Meeting:
    """At MASTER_ADDR and MASTER_PORT where they are set, else at the first node of the step and a port of its own."""
    nodes = expand(variables["SLURM_STEP_NODELIST"])
    host = variables.get("MASTER_ADDR") or nodes[0]
    port = promised(variables, "MASTER_PORT") if "MASTER_PORT" in variables else port_of_step(variables)
    if promised(variables, "SLURM_STEP_NUM_NODES") > 1:
        use_the_way_to(host, *nodes[:2])  # a host may know itself by its loopback alone: then the second one tells
    # Two jobs that share a node may come to share a port, and must not take each other's ranks.
    step = f"{variables['SLURM_JOB_ID']}.{variables['SLURM_STEP_ID']}"
    return StoreMeeting(seat, host, port, timeout_seconds, attempt=step)


def at_mpirun(seat: Seat, variables: Mapping[str, str], timeout_seconds: float) -> Meeting:  # noqa: ARG001 - as the others
    """In MPI: nothing else says where rank 0 is."""
    return MpiMeeting(seat, timeout_seconds)


def port_of_step(variables: Mapping[str, str]) -> int:
    """A port for rank 0 of a step: the first one that Slurm has reserved, else one made of the numbers of job and step,
    so that steps side by side do not meet. Raises LaunchError when the numbers are none.
    """
    reserved = variables.get("SLURM_STEP_RESV_PORTS", "").partition("-")[0].partition(",")[0]
    if reserved.isdigit():
        return int(reserved)
    job, step = promised(variables, "SLURM_JOB_ID"), promised(variables, "SLURM_STEP_ID")
    return _LEAST_PORT + (job * 61 + step) % _PORTS


def use_the_way_to(*hosts: str) -> None:
    """Have Gloo use the interface by which the first of ``hosts`` is reached that there is one for, unless the user has
    named one.

    Left alone it takes the one that this host's own name resolves to, which on many systems is the loopback.
    """
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return
    name = next((name for host in hosts if (name := interface_to(host)) is not None), None)
    if name is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = name


def interface_to(host: str) -> str | None:
    """The interface that traffic to ``host`` leaves by, or that has its address where this is it; None where that is
    not to be found, or is the loopback.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as asking:
            asking.connect(address)  # sends nothing
            mine = asking.getsockname()[0]
    except OSError:
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == mine for one in addresses):
            return None if name.startswith("lo") else name
    return None


def _in_words(error: Exception) -> str:
    from busbw.backends.side_channel import first_line  # noqa: PLC0415 - torch, which has raised it

    return first_line(error)
