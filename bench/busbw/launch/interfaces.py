"""The way between hosts: the address and the interface by which this one is seen from another.

A host's own name is often of no use there: many systems have it resolve to the loopback.
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
    """Wait until somebody listens at ``port`` of ``host``. Raises LaunchError, with what the last attempt met, when
    nobody has within ``seconds``.

    torch waits as well; but what it says when that was in vain is a page of its own functions in every rank.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            # Never 0, which would not wait for an answer at all.
            socket.create_connection((host, port), max(deadline - time.monotonic(), _AGAIN_SECONDS)).close()
        except (OSError, UnicodeError) as error:
            if time.monotonic() + _AGAIN_SECONDS > deadline:
                raise LaunchError(f"{getattr(error, 'strerror', None) or error}, for {seconds:g} s") from error
            time.sleep(_AGAIN_SECONDS)
        else:
            return


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
    mine = address_towards(host)
    for name, addresses in psutil.net_if_addrs().items() if mine else ():
        if any(one.address.partition("%")[0] == mine for one in addresses):
            return name
    return None


def address_towards(host: str) -> str:
    """The address by which ``host`` sees this one; empty where there is none but the loopback's.

    Ranks of one host give the same answer for the same ``host``, those of another one another.
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
    """One of ``addresses``, those by which every rank is seen from one host, that is not rank 0's; empty where none is:
    where all ranks are on one host.
    """
    return next((one for one in addresses if one not in {"", addresses[0]}), "")
