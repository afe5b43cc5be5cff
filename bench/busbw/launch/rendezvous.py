"""Rendezvous of ranks that a launcher has started: rank 0 publishes what to measure before the backend connects.

So only rank 0 reads the plan and the run folder, and only its host must have them.
"""

import ipaddress
import os
import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
import psutil

from busbw.backends import BACKENDS, backend_named
from busbw.backends.base import no_longer_than
from busbw.backends.mpi.segments import LATE, remove_segments
from busbw.backends.signing import key_of, new_secret, printable, signed, verified
from busbw.errors import LaunchError
from busbw.escape import say
from busbw.launch.signals import RankInfo
from busbw.runs.decoding import decode
from busbw.runs.plan import Plan
from busbw.runs.records import Record
from busbw.runs.resume import Remaining

if TYPE_CHECKING:
    import torch.distributed as dist


ALONE: Final = "alone"
"""Code of the error of a rank that no other has met: perhaps nobody has started them."""
_AGAIN_SECONDS = 0.2


def wait_for(host: str, port: int, seconds: float) -> None:
    """Wait until a process listens on ``port`` of ``host``. Raises LaunchError with the last error after ``seconds``.

    torch waits as well, but on a timeout it prints a page of its own functions on every rank.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            # Not 0, which would be a non-blocking connection.
            socket.create_connection((host, port), max(deadline - time.monotonic(), _AGAIN_SECONDS)).close()
        except (OSError, UnicodeError) as error:
            if time.monotonic() + _AGAIN_SECONDS > deadline:
                raise LaunchError(f"{getattr(error, 'strerror', None) or error}, for {seconds:g} s") from error
            time.sleep(_AGAIN_SECONDS)
        else:
            return


def use_interface_to(host: str, distant: str) -> None:
    """Make Gloo use the interface to ``host`` or, on that host, to ``distant``, an address on another host.

    By default Gloo uses the interface of this host's own name, which is the loopback on many systems. Nothing is
    changed if all ranks are on one host (``distant`` is empty), or if the user has set an interface.
    """
    if not distant or "GLOO_SOCKET_IFNAME" in os.environ:
        return
    name = interface_to(host) or interface_to(distant)
    if name is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = name


def interface_to(host: str) -> str | None:
    """The interface for traffic to ``host``, or the one with its address if ``host`` is this host.

    None if there is none but the loopback.
    """
    mine = address_towards(host)
    for name, addresses in psutil.net_if_addrs().items() if mine else ():
        if any(entry.address.partition("%")[0] == mine for entry in addresses):
            return name
    return None


def address_towards(host: str) -> str:
    """The address of this host towards ``host``; empty if there is none but the loopback.

    For the same ``host``, it is equal on all ranks of this host and different on other hosts.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as asking:
            asking.connect(address)  # sends nothing
            mine = ipaddress.ip_address(str(asking.getsockname()[0]).partition("%")[0])
    except OSError:
        return ""
    mine = getattr(mine, "ipv4_mapped", None) or mine
    return "" if mine.is_loopback else str(mine)


def elsewhere(addresses: Sequence[str]) -> str:
    """The first of ``addresses`` (of all ranks, towards one host) that differs from rank 0's; empty if there is none
    because all ranks are on one host.
    """
    return next((address for address in addresses if address not in {"", addresses[0]}), "")


_PRESENT, _ASKED, _ORDER, _RECEIVED = "present/{rank}", "asked/{rank}", "order/{rank}", "heard/{rank}"
_ELSEWHERE = "elsewhere"
_SLACK_SECONDS = 2.0
"""Added to the store's own timeout before a wait is ended: without a network, the store does not notice its timeout."""

_LINGER_SECONDS = 3.0
"""How long rank 0 waits for the others if there is nothing to measure."""

_WITHOUT_MPI = (
    "to use gloo or nccl without MPI, set MASTER_ADDR to rank 0's host and MASTER_PORT to a free port on it for all "
    "ranks"
)

_POLL_SECONDS = 0.02
_MOST_LISTED_RANKS = 16


class LaunchOrder(Record, frozen=True, kw_only=True):
    """The order of rank 0 to the other ranks.

    ``plan``: what to measure (None: nothing).
    ``run``: name of the run.
    ``launch``: number of this launch, from 0.
    ``remaining``: what remains to be measured (None: a new run).
    ``status``: exit status if nothing is measured.
    ``session``: random text, new for each launch, from which the ranks derive the key that signs their messages.
    """

    plan: Plan | None = None
    run: str = ""
    launch: int = 0
    remaining: Remaining | None = None
    status: int = 0
    session: str = ""


class Rendezvous(Protocol):
    """How rank 0 reaches the other ranks before the backend connects them.

    ``store``: host and port of a key-value store for the backend (None: the backend does not need one).
    ``key``: the key with which ranks sign messages.

    Both are set after ``publish`` or ``receive``.
    """

    store: tuple[str, int] | None
    key: bytes

    def publish(self, order: LaunchOrder) -> None:
        """Send the order to all other ranks (rank 0, once). Raises LaunchError when that fails."""

    def receive(self) -> LaunchOrder:
        """The order of rank 0 (other ranks). Raises LaunchError when none arrives."""

    def close(self) -> None:
        """Leave the rendezvous if nothing will be measured."""


class StoreRendezvous:
    """Rendezvous over a torch key-value store at ``host`` and ``port``.

    ``serves``: rank 0 opens the store, and the backend uses it too; else it exists already.
    ``attempt``: separates the ranks of different attempts in one store.
    ``secret``: signs the messages (empty: anyone can sign).

    A rank asks with a random number and only accepts an order that is signed for this number, so that a recorded order
    cannot be replayed. Raises LaunchError when rank 0 cannot open the store, or another rank cannot reach it within
    ``timeout_seconds``.
    """

    def __init__(
        self,
        info: RankInfo,
        host: str,
        port: int,
        timeout_seconds: float,
        *,
        serves: bool = True,
        attempt: str = "0",
        secret: bytes = b"",
    ) -> None:
        import torch.distributed as dist  # noqa: PLC0415 - slow import, only needed here

        from busbw.backends.side_channel import serve_store  # noqa: PLC0415 - as above

        self._info = info
        self._me = f"rank {info.rank} of {info.size} (host {socket.gethostname()})"
        self._host, self._where = host, f"{host} port {port}"
        self._timeout_seconds = timeout_seconds
        self._counts_ranks = serves  # a store that outlives rank 0 still counts ranks of earlier attempts
        self._secret = secret
        self.key = b""
        keeps = serves and info.lead
        action = "open a port for the other ranks at" if keeps else "reach rank 0 at"
        problem = f"{self._me} cannot {action} {self._where}"
        try:
            if keeps:
                self._kept, _ = serve_store(host, port, timeout_seconds, one_host=info.local_size == info.size)
            else:
                wait_for(host, port, timeout_seconds)
                with _exit_after(timeout_seconds, problem):
                    timeout = timedelta(seconds=timeout_seconds)
                    self._kept = dist.TCPStore(host, port, None, False, timeout, wait_for_workers=False)
        except (RuntimeError, OSError, LaunchError) as error:
            code = None if keeps else ALONE
            message = f"{problem}: {_in_words(error)}; set another MASTER_ADDR and MASTER_PORT"
            raise LaunchError(message, code=code) from error
        self._attempt = attempt
        self._store: dist.Store = dist.PrefixStore(f"busbw/rendezvous/{attempt}", self._kept)
        self.store = (host, port) if serves else None

    def publish(self, order: LaunchOrder) -> None:
        """Store the order, and wait until all ranks have received it, because the store ends with this process."""
        measures = order.plan is not None
        patience = self._timeout_seconds if measures else min(self._timeout_seconds, _LINGER_SECONDS)
        order = msgspec.structs.replace(order, session=new_secret())
        self.key = key_of(self._secret, order.session)
        try:
            absent = self._absent(msgspec.json.encode(order).decode(), patience)
            if not measures:
                return
            self._refuse_taken_ranks(range(1, self._info.size), coming=0)
            distant = "" if absent else self._distant_address()
        except RuntimeError as error:
            raise LaunchError(f"rank 0 cannot send the order to the other ranks: {_in_words(error)}") from error
        if absent:
            raise LaunchError(
                f"{len(absent)} of {self._info.size} ranks have not reached rank 0 at {self._where} within "
                f"{patience:g} s: {_listed(absent)}",
                code=ALONE if len(absent) == self._info.size - 1 else None,
            )
        if distant and not self._secret:
            risk = f"anyone who reaches {self._where} can give these ranks orders; set it for all ranks"
            say(f"caution: BUSBW_SECRET is not set: {risk}")
        use_interface_to(self._host, distant)

    def receive(self) -> LaunchOrder:
        """Wait for the order in the store, and for an address on another host."""
        rank = self._info.rank
        problem = f"{self._me} has received nothing from rank 0"
        try:
            with _exit_after(self._timeout_seconds + _SLACK_SECONDS, problem):
                self._refuse_taken_ranks([rank], coming=1)
                asked = new_secret()
                self._store.set(_ASKED.format(rank=rank), asked)
                order = self._order_for(asked)
                self.key = key_of(self._secret, order.session)
                self._set_signed(_RECEIVED.format(rank=rank), address_towards(self._host))
            if order.plan is not None:
                problem = f"{self._me} has reached rank 0, but not all other ranks have"
                with _exit_after(self._timeout_seconds + _SLACK_SECONDS, problem):
                    use_interface_to(self._host, self._get_verified(_ELSEWHERE))
        except RuntimeError as error:
            raise LaunchError(f"{problem} for {self._timeout_seconds:g} s: {_in_words(error)}") from error
        return order

    def close(self) -> None:
        """Nothing to do: the store ends with its process."""

    def _order_for(self, asked: str) -> LaunchOrder:
        """Rank 0's answer to the number ``asked``. Raises LaunchError when the signature is not valid."""
        name = _ORDER.format(rank=self._info.rank)
        text = verified(self._secret, f"{self._attempt}/{name}/{asked}", self._store.get(name))
        try:
            if text is not None:
                return decode(text, LaunchOrder)
        except msgspec.MsgspecError:
            pass  # from another sender, if there is no secret
        raise LaunchError(
            f"{self._me} refuses the order from {self._where}: it is not signed with this rank's BUSBW_SECRET; "
            "set the same one for all ranks"
        )

    def _answer(self, rank: int, text: str) -> None:
        """Store the order ``text``, signed for the number of ``rank``."""
        name = _ORDER.format(rank=rank)
        asked = printable(self._store.get(_ASKED.format(rank=rank)).decode(errors="replace"))
        self._store.set(name, signed(self._secret, f"{self._attempt}/{name}/{asked}", text))

    def _set_signed(self, name: str, text: str) -> None:
        self._store.set(name, signed(self.key, name, text))

    def _get_verified(self, name: str) -> str:
        """The message ``name`` of a rank of this launch. Raises LaunchError when its signature is not valid."""
        text = verified(self.key, name, self._store.get(name))
        if text is None:
            raise LaunchError(
                f"{self._me} found a message ({name}) at {self._where} that was not signed by a rank of this launch"
            )
        return printable(text)

    def _refuse_taken_ranks(self, ranks: Iterable[int], *, coming: int) -> None:
        """Count ``coming`` more processes for each of ``ranks``. Raises LaunchError if a rank is present twice."""
        if not self._counts_ranks:
            return
        twice = [rank for rank in ranks if self._store.add(_PRESENT.format(rank=rank), coming) > 1]
        if twice:
            raise LaunchError(
                f"rank(s) {_listed(twice)} of {self._info.size} registered twice at {self._where}: two jobs use this "
                "MASTER_ADDR and MASTER_PORT; give each its own port"
            )

    def _distant_address(self) -> str:
        """An address on another host ("" if there is none), which rank 0 also sends to all ranks."""
        addresses = [self._get_verified(_RECEIVED.format(rank=rank)) for rank in range(1, self._info.size)]
        distant = elsewhere([address_towards(self._host), *addresses])
        self._set_signed(_ELSEWHERE, distant)
        return distant

    def _absent(self, text: str, seconds: float) -> list[int]:
        """Send the order ``text`` to each rank that asks; return those that have not received it after ``seconds``."""
        absent = list(range(1, self._info.size))
        answered: set[int] = set()
        deadline = time.monotonic() + seconds
        while True:
            for rank in absent:
                if rank not in answered and self._store.check([_ASKED.format(rank=rank)]):
                    self._answer(rank, text)
                    answered.add(rank)
            absent = [rank for rank in absent if not self._store.check([_RECEIVED.format(rank=rank)])]
            if not absent or time.monotonic() >= deadline:
                return absent
            time.sleep(_POLL_SECONDS)


class MpiRendezvous:
    """Rendezvous by an MPI broadcast. For other backends, a store is opened at rank 0, and MPI is finalised before
    anything is measured.

    MPI waits without a timeout: a call that takes longer than ``timeout_seconds`` ends this process and with it all
    ranks. Raises LaunchError when MPI_COMM_WORLD does not match the launcher's variables.
    """

    def __init__(self, info: RankInfo, timeout_seconds: float) -> None:
        missing = BACKENDS["mpi"].missing()
        if missing is not None:
            raise LaunchError(f"{info.launcher} started this rank, and {missing}; {_WITHOUT_MPI}")
        self._info = info
        self._me = f"rank {info.rank} of {info.size} (host {socket.gethostname()})"
        self._timeout_seconds = timeout_seconds
        self._kept: dist.TCPStore | None = None
        self.store: tuple[str, int] | None = None
        self.key = b""
        with _exit_after(timeout_seconds, f"{self._me} waits in MPI_Init, which not all ranks have called"):
            try:
                from busbw.backends.mpi import init  # noqa: PLC0415 - mpi4py loads the library

                init.initialise(info.rank, info.size, info.local_size or info.size, info.launcher)
            except LaunchError as error:
                raise LaunchError(f"{error}; {_WITHOUT_MPI}") from error
        self._mpi = init

    def publish(self, order: LaunchOrder) -> None:
        """Broadcast the order as root."""
        order = msgspec.structs.replace(order, session=new_secret())
        with _exit_after(self._timeout_seconds, f"{self._me} cannot send the order to every rank"):
            self._mpi.broadcast(msgspec.json.encode(order))
        self._leave_for(order)

    def receive(self) -> LaunchOrder:
        """Receive the order by the broadcast."""
        with _exit_after(self._timeout_seconds, f"{self._me} has received nothing from rank 0"):
            order = decode(self._mpi.broadcast(b""), LaunchOrder)
        self._leave_for(order)
        return order

    def close(self) -> None:
        """Finalise MPI, which must not just be ended."""
        with _exit_after(self._timeout_seconds, f"{self._me} cannot finalise MPI"):
            self._mpi.finalize()

    def _leave_for(self, order: LaunchOrder) -> None:
        """If the backend of ``order`` does not use MPI, agree on a store and an interface, and finalise MPI."""
        self.key = key_of(b"", order.session)  # no secret: the order came over MPI
        if order.plan is None or backend_named(order.plan.backend).started_by == "mpiexec":
            return
        with _exit_after(self._timeout_seconds, f"{self._me} has not received from every rank over MPI"):
            try:
                self._kept, self.store = self._mpi.meet_at_store(self._timeout_seconds)
            except (RuntimeError, OSError) as error:
                raise LaunchError(f"{self._me} cannot open a port for the other ranks: {_in_words(error)}") from error
            host, _ = self.store
            use_interface_to(host, elsewhere(self._mpi.gathered(address_towards(host))))
            self._mpi.finalize()


def _exit_after(seconds: float, problem: str) -> AbstractContextManager[None]:
    """Exit with the message ``problem`` if the block takes longer than ``seconds``; it must release the GIL."""

    def end() -> None:
        say(f"{problem} within {seconds:g} s")
        remove_segments("self", LATE)  # because MPI is not finalised
        os._exit(1)

    return no_longer_than(seconds, end)


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:_MOST_LISTED_RANKS])) + (", …" if len(ranks) > _MOST_LISTED_RANKS else "")


def _in_words(error: Exception) -> str:
    from busbw.backends.side_channel import first_line  # noqa: PLC0415 - imports torch, which raised the error

    return first_line(error)
