"""Plain TCP sockets between the ranks of one host: the speed of its loopback without a communication library."""

import select
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from busbw.backends.base import Bound, Limits, Operation
from busbw.errors import BackendError
from busbw.ops.base import Op
from busbw.runs.records import Case

if TYPE_CHECKING:
    import torch

_LOOPBACK = "127.0.0.1"
_LIMITS = Limits(modes=("isolated", "pipelined"), groups=("all",), devices=("cpu",))


def refuse(case: Case) -> str | None:
    """Reason why ``case`` cannot run, or None; the same on every rank."""
    if case.nodes > 1:
        return f"{case.op} measures the loopback of one host; the ranks are on {case.nodes} hosts"
    return _LIMITS.refuse(case)


def bind(op: Op, bound: Bound, share: Callable[[str], list[str]], timeout_seconds: float) -> Operation:
    """Bind a call that sends to the next rank and receives from the previous one concurrently.

    A ping-pong (an op of two trips) instead sends a message from the first rank to the last and then one back.
    share: gathers a text of every rank on every rank; binding is collective. Raises BackendError when the ranks cannot
    connect; so does a call without progress for ``timeout_seconds``.
    """
    rank = bound.me  # of the only group
    following, previous = _connected(share, rank, timeout_seconds)
    outgoing, incoming = _bytes_of(bound.send), _bytes_of(bound.receive)
    if op.trips == 1:
        exchange = _exchange(following, previous, timeout_seconds)
        steps = [(outgoing, incoming)]
    else:
        # The last rank is connected to the first, and a connection works in both directions.
        link = previous if rank == 0 else following
        exchange = _exchange(link, link, timeout_seconds)
        steps = [(outgoing, incoming[:0]), (outgoing[:0], incoming)]
        if rank > 0:
            steps.reverse()

    def call() -> None:
        for step in steps:
            exchange(*step)

    def free() -> None:
        following.close()
        previous.close()

    return Operation(call, free=free)


def _exchange(
    following: socket.socket, previous: socket.socket, timeout_seconds: float
) -> Callable[[memoryview, memoryview], None]:
    """Make a function that sends its first argument and meanwhile fills its second with received data."""
    wait_ms = timeout_seconds * 1000
    polls = _polls(following, previous)

    def exchange(outgoing: memoryview, incoming: memoryview) -> None:
        sent = received = 0
        to_send, to_receive = len(outgoing), len(incoming)
        while sent < to_send or received < to_receive:
            before = sent + received
            try:
                if sent < to_send:
                    with suppress(BlockingIOError):
                        sent += following.send(outgoing[sent:])
                if received < to_receive:
                    with suppress(BlockingIOError):
                        count = previous.recv_into(incoming[received:])
                        if count == 0:
                            raise BackendError("the previous rank closed its socket")
                        received += count
            except OSError as error:
                raise BackendError(f"a socket to a neighbour failed: {error.strerror}") from error
            if sent + received == before and not polls[sent < to_send, received < to_receive].poll(wait_ms):
                raise BackendError(f"a neighbour neither sent nor received for {timeout_seconds:g} s")

    return exchange


def _bytes_of(tensor: "torch.Tensor") -> memoryview:
    import torch  # noqa: PLC0415 - takes a second; callers with a tensor have already loaded it

    return memoryview(tensor.view(torch.uint8).numpy())  # type: ignore[arg-type] # typed as a buffer from Python 3.12


def _polls(following: socket.socket, previous: socket.socket) -> dict[tuple[bool, bool], select.poll]:
    """Pollers by (sending, receiving): ``following`` is writable, ``previous`` is readable, or either."""
    polls = {(sending, receiving): select.poll() for sending in (True, False) for receiving in (True, False)}
    for (sending, receiving), poll in polls.items():
        if sending:
            poll.register(following, select.POLLOUT)
        if receiving:
            poll.register(previous, select.POLLIN)
    return polls


def _connected(share: Callable[[str], list[str]], me: int, seconds: float) -> tuple[socket.socket, socket.socket]:
    """Connect to the next and from the previous rank. Every rank shares its port before any of them can fail."""
    try:
        listening = socket.create_server((_LOOPBACK, 0))
    except OSError as error:
        share("")
        raise BackendError(f"cannot listen on {_LOOPBACK}: {error.strerror}") from error
    with listening:
        ports = share(str(listening.getsockname()[1]))
        if not all(ports):
            raise BackendError(f"rank {ports.index('')} cannot listen on {_LOOPBACK}")
        listening.settimeout(seconds)
        try:
            with ExitStack() as held:
                next_port = int(ports[(me + 1) % len(ports)])
                following = held.enter_context(socket.create_connection((_LOOPBACK, next_port), timeout=seconds))
                previous = held.enter_context(listening.accept()[0])
                for end in (following, previous):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    end.setblocking(False)
                held.pop_all()
        except OSError as error:
            raise BackendError(f"cannot connect to the neighbours on {_LOOPBACK}: {error.strerror or error}") from error
    return following, previous
