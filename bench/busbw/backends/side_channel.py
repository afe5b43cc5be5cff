"""Failure reports between the ranks of a broken world, over the launcher's key-value store."""

import contextlib
import errno
import ipaddress
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import torch.distributed as dist

from busbw.backends.base import do_nothing
from busbw.backends.signing import printable, signed, verified
from busbw.errors import BackendError

_FAILED = "failed/{rank}"
_FAILED_KEY = f"busbw/{_FAILED}"
_ANY_KEY = "busbw/failed"
"""Set after a report, so that ranks that wait ask for one key, not for one of every rank."""
_ANSWER_GRACE_SECONDS = 3.0
_ANSWER_POLL_SECONDS = 0.05
_STORE_SECONDS = 1.0
"""Longest time of a call to a reachable store."""

_INTERNET = (socket.AF_INET, socket.AF_INET6)
_LOOPBACK = "127.0.0.1"


def serve_store(host: str, port: int, timeout_seconds: float, *, one_host: bool = False) -> tuple[dist.TCPStore, str]:
    """Start a store in this process at ``port`` (0: any free port); also returns the address it listens on ("": all).

    host: name of this host among the ranks. The store listens only on its address. It listens on all addresses if that
        address does not belong to this host, or is a loopback under a name that other hosts may resolve differently.
    one_host: all ranks are on this host, so a loopback address is sufficient.
    Raises RuntimeError or OSError when the port is unavailable.
    """
    listening, address = _listening(host, port, one_host=one_host)
    store = dist.TCPStore(
        address or _LOOPBACK,
        listening.getsockname()[1],
        None,
        is_master=True,
        timeout=timedelta(seconds=timeout_seconds),
        wait_for_workers=False,
        master_listen_fd=listening.detach(),  # the store closes it, also if it fails
    )
    return store, address


def _listening(host: str, port: int, *, one_host: bool) -> tuple[socket.socket, str]:
    for family, address in _addresses(host, one_host=one_host):
        try:
            return socket.create_server((address, port), family=family), address
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True), ""
    return socket.create_server(("", port)), ""


def _addresses(host: str, *, one_host: bool) -> list[tuple[socket.AddressFamily, str]]:
    """Addresses of ``host`` here, IPv4 first; without the loopback if other hosts may resolve the name differently."""
    try:
        addresses = {(family, str(address[0])) for family, _, _, _, address in socket.getaddrinfo(host, 0)}
    except (OSError, UnicodeError):
        return []
    local = one_host or host == "localhost" or host in {address for _, address in addresses}
    return sorted(
        (family, address)
        for family, address in addresses
        if "%" not in address and (local or not ipaddress.ip_address(address).is_loopback)
    )


def wait_warily(is_completed: Callable[[], bool], store: dist.Store, size: int, key: bytes = b"") -> None:
    """Wait until an operation in progress ``is_completed``. Raises BackendError as soon as any rank has given up.

    Without that check, a rank whose operation just timed out would wait for a second timeout, while the others have
    exchanged their reports and left. A thread queries the store, because calls to an unreachable store block for 15
    minutes.
    """
    gone: list[int] = []
    over = threading.Event()

    def ask() -> None:
        with contextlib.suppress(RuntimeError):  # the store is gone; the operation's own timeout ends the wait
            while not over.wait(_ANSWER_POLL_SECONDS):
                gone.extend(_failures(store, size, key))

    threading.Thread(target=ask, name="busbw-ask", daemon=True).start()
    try:
        while not is_completed():
            if gone:
                raise BackendError(f"rank {gone[0]} has given up")
            time.sleep(_ANSWER_POLL_SECONDS)
    finally:
        over.set()


@contextlib.contextmanager
def heeding(
    reach: Callable[[], dist.Store], size: int, lost: Callable[[BackendError], None], key: bytes = b""
) -> Iterator[None]:
    """Call ``lost``, from a thread, with the report of a rank that gives up during the block.

    For calls that would never return then. They use the store themselves and may wait in it, so that the thread takes
    a connection of its own, by ``reach``.
    """
    over = threading.Event()

    def ask() -> None:
        with contextlib.suppress(RuntimeError):  # the store is gone; the watchdog ends the call
            store = reach()
            while not over.wait(_ANSWER_POLL_SECONDS):
                texts = list(_failures(store, size, key).values())
                if texts and not over.is_set():
                    lost(BackendError(texts[0]))
                    return

    threading.Thread(target=ask, name="busbw-heed", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _failures(store: dist.Store, size: int, key: bytes) -> dict[int, str]:
    """The failure reports by rank."""
    if not store.check([_ANY_KEY]):
        return {}
    return {rank: text for rank in range(size) if (text := _failure(store, rank, key)) is not None}


def _failure(store: dist.Store, rank: int, key: bytes) -> str | None:
    """Failure report of ``rank``; None if there is none, or its signature is invalid."""
    if not store.check([_FAILED_KEY.format(rank=rank)]):
        return None
    text = verified(key, _FAILED.format(rank=rank), store.get(_FAILED_KEY.format(rank=rank)))
    return None if text is None else printable(text)


def shut_connections(kept_port: int) -> None:
    """Shut down all TCP connections of this process except those of ``kept_port``, the launcher's store.

    Called by a rank that gives up. Ranks that wait for it in the library notice only a closed connection; otherwise
    they would not report in time and be considered lost.
    """
    for path in Path("/proc/self/fd").iterdir():
        # An error: it was closed in the meantime, or is not connected. Not ``is_socket``, which waits for the storage
        # of an open file, and this rank may give up because that is gone.
        with contextlib.suppress(OSError):
            if not str(path.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(path.name))) as connection:
                if connection.family in _INTERNET and kept_port not in {
                    connection.getsockname()[1],
                    connection.getpeername()[1],
                }:
                    connection.shutdown(socket.SHUT_RDWR)


def collect_reports(
    store: dist.Store, size: int, mine: dict[int, str], leave: Callable[[], None] = do_nothing, key: bytes = b""
) -> dict[int, str]:
    """Post ``mine`` and collect the reports of a failed world until all ranks have reported or the grace period ends.

    leave: called in between; wakes the ranks that still wait for this one.
    key: signing key of this launch; unsigned reports are ignored.
    Returns in bounded time even if the store is unreachable, although calls to it then block for 15 minutes.
    """
    reports = dict(mine)

    def post() -> None:
        for rank, text in mine.items():
            store.set(_FAILED_KEY.format(rank=rank), signed(key, _FAILED.format(rank=rank), text))
        store.set(_ANY_KEY, "")

    def listen() -> None:
        deadline = time.monotonic() + _ANSWER_GRACE_SECONDS
        while len(reports) < size and time.monotonic() < deadline:
            for rank in set(range(size)) - set(reports):
                text = _failure(store, rank, key)
                if text is not None:
                    reports[rank] = text
            time.sleep(_ANSWER_POLL_SECONDS)

    posted = _within(_STORE_SECONDS, post)
    leave()
    if posted:
        _within(_ANSWER_GRACE_SECONDS + _STORE_SECONDS, listen)
    return dict(reports)


def _within(seconds: float, talk: Callable[[], None]) -> bool:
    """Run ``talk`` in a thread; returns whether it finished in time. If not, the store is gone or unreachable."""
    ended = threading.Event()

    def run() -> None:
        with contextlib.suppress(RuntimeError, OSError):
            talk()
            ended.set()

    thread = threading.Thread(target=run, name="busbw-last-words", daemon=True)
    thread.start()
    thread.join(seconds)
    return ended.is_set()


def first_line(error: Exception) -> str:
    """First line of a torch error, without the path of its source file and without its advice; of an NCCL error also
    what NCCL says last, which is the cause.
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    first = re.sub(r"^(\[[^\]]*\.cc:\d+\]|NCCL error in: \S+:\d+,)\s*", "", lines[0])
    first = first.partition(" This is typically ")[0]
    last = next((text for heading, text in pairwise(lines) if heading.strip() == "Last error:"), "")
    return f"{first}: {last}" if last.strip() else first
