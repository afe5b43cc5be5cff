"""The address and network interface through which other hosts reach this one.

The host's own name is often useless for that, because many systems resolve it to the loopback address.
"""

import ipaddress
import os
import socket
import time
from collections.abc import Sequence

import psutil

from busbw.errors import LaunchError

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
