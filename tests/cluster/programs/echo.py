"""A ruler for the network of the bed: ``answer`` on one host; ``time HOST`` or ``rate HOST MEGABYTES`` on another."""

import socket
import sys
import threading
import time

PORT = 9700


def answer_datagrams() -> None:
    """Send every datagram back."""
    here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    here.bind(("", PORT))
    while True:
        data, sender = here.recvfrom(2048)
        here.sendto(data, sender)


def answer_streams() -> None:
    """Read every stream to its end, one after the other, and answer with the rate of its second half in Mbit/s."""
    here = socket.create_server(("", PORT))
    buffer = bytearray(1 << 20)
    while True:
        stream, _ = here.accept()
        arrivals = []
        while length := stream.recv_into(buffer):
            arrivals.append((time.monotonic(), length))
        later = arrivals[len(arrivals) // 2 :]
        amount = sum(length for _, length in later[1:])
        stream.sendall(str(amount * 8e-6 / (later[-1][0] - later[0][0])).encode())
        stream.close()


def shortest_round_trip(host: str) -> float:
    """In ms, over 50 datagrams. Raises TimeoutError when one is not answered within a second."""
    here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    here.settimeout(1.0)
    here.connect((host, PORT))
    taken = []
    for _ in range(50):
        begin = time.perf_counter()
        here.send(b"x")
        here.recv(2048)
        taken.append(time.perf_counter() - begin)
    return min(taken) * 1e3


def stream_rate(host: str, megabytes: int) -> float:
    """What the other end saw of a stream of this length, in Mbit/s."""
    with socket.create_connection((host, PORT), timeout=30) as stream:
        for _ in range(megabytes):
            stream.sendall(bytes(1_000_000))
        stream.shutdown(socket.SHUT_WR)
        return float(stream.recv(100))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["answer"]:
            threading.Thread(target=answer_datagrams, daemon=True).start()
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            answer_streams()
        case ["time", host]:
            sys.stdout.write(f"{shortest_round_trip(host)}\n")
        case ["rate", host, megabytes]:
            sys.stdout.write(f"{stream_rate(host, int(megabytes))}\n")
