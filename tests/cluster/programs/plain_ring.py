"""What a network gives a program that does nothing else: ``plain_ring.py RANK BYTES ADDRESS…``, one on each host.

Each rank is joined to the next one. Rank 0 and 1 play ping-pong; then everybody sends BYTES to the next rank and takes
as many from the one before, at once. Every rank tells the median time of a message in ms (rank 0 knows it) and the
seconds that BYTES took it, the last of several times: TCP begins slowly.
"""

import json
import socket
import statistics
import sys
import threading
import time

_PORT = 5601
_PIECE = bytes(1 << 18)
_PLAYS = 200
_EXCHANGES = 4


def connected(address: str) -> socket.socket:
    """Asks until the program is there; raises OSError when it is not in time."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection((address, _PORT), timeout=20)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def joined(rank: int, addresses: list[str]) -> tuple[socket.socket, socket.socket]:
    """Connections to the next rank and from the one before."""
    with socket.create_server(("", _PORT)) as door:
        after = connected(addresses[(rank + 1) % len(addresses)])
        before, _ = door.accept()
    for connection in (after, before):
        connection.settimeout(60)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return after, before


def give(drain: socket.socket, count: int) -> None:
    """Send so many bytes, in whole pieces."""
    for _ in range(count // len(_PIECE)):
        drain.sendall(_PIECE)


def taken(source: socket.socket, count: int) -> None:
    """Take so many bytes."""
    buffer = bytearray(1 << 18)
    while count > 0:
        count -= source.recv_into(buffer, min(count, len(buffer)))


def message_ms(rank: int, after: socket.socket, before: socket.socket) -> float | None:
    """Half of the median round trip from rank 0 to rank 1; None elsewhere."""
    if rank == 1:
        for _ in range(_PLAYS):
            taken(before, 8)
            before.sendall(bytes(8))
    if rank != 0:
        return None
    times = []
    for _ in range(_PLAYS):
        began = time.perf_counter()
        after.sendall(bytes(8))
        taken(after, 8)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 500


def exchange_seconds(rank: int, count: int, after: socket.socket, before: socket.socket) -> float:
    """Send ``count`` bytes one way while as many come the other way, when a token has gone around."""
    if rank == 0:
        after.sendall(b"!")
        taken(before, 1)
    else:
        taken(before, 1)
        after.sendall(b"!")
    began = time.perf_counter()
    sender = threading.Thread(target=give, args=(after, count))
    sender.start()
    taken(before, count // len(_PIECE) * len(_PIECE))
    sender.join()
    return time.perf_counter() - began


def main() -> None:
    """Play, exchange, tell."""
    rank, count, addresses = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    after, before = joined(rank, addresses)
    delay_ms = message_ms(rank, after, before)
    taken_seconds = [exchange_seconds(rank, count, after, before) for _ in range(_EXCHANGES)]
    sys.stdout.write(json.dumps([delay_ms, taken_seconds[-1]]))


main()
