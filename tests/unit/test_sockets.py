"""Plain TCP sockets between the ranks of one host: what arrives, and what ends a call."""

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
import torch
from testing.synthetic import case

from busbw.backends import sockets
from busbw.backends.base import Bound, Operation
from busbw.errors import BackendError
from busbw.ops import OPS
from busbw.ops.base import Share


class Shared:
    """``share`` of a world whose ranks are threads."""

    def __init__(self, ranks: int, timeout: float = 30) -> None:
        self._texts = [""] * ranks
        self._met = threading.Barrier(ranks, timeout=timeout)

    def of(self, rank: int) -> Callable[[str], list[str]]:
        def share(text: str) -> list[str]:
            self._texts[rank] = text
            self._met.wait()
            return list(self._texts)

        return share


def bind_at(
    rank: int,
    send: torch.Tensor,
    receive: torch.Tensor,
    share: Callable[[str], list[str]],
    seconds: float = 30,
    op: str = "tcp_stream",
) -> Operation:
    return sockets.bind(OPS[op], Bound(case(op, 1 << 20), send, receive, me=rank), share, seconds)


def bound(
    ranks: int, elements: int, seconds: float = 30, op: str = "tcp_stream"
) -> list[tuple[Operation, torch.Tensor]]:
    shared = Shared(ranks)

    def bind_rank(rank: int) -> tuple[Operation, torch.Tensor]:
        layout = OPS[op].layout(Share(rank, ranks, elements))
        send = torch.full((layout.send_count,), float(rank), dtype=torch.bfloat16)
        receive = torch.zeros(layout.receive_count, dtype=torch.bfloat16)
        return bind_at(rank, send, receive, shared.of(rank), seconds, op), receive

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(bind_rank, range(ranks)))


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("elements", [1, 7, 3_000_001])
def test_every_rank_has_what_the_one_before_sent(ranks: int, elements: int) -> None:
    world = bound(ranks, elements)
    for _ in range(2):
        with ThreadPoolExecutor(ranks) as pool:
            list(pool.map(lambda end: end[0].call(), world))
    for rank, (operation, received) in enumerate(world):
        assert (received == float((rank - 1) % ranks)).all()
        operation.free()


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("elements", [1, 7, 3_000_001])
def test_the_ends_have_what_the_other_one_sent(ranks: int, elements: int) -> None:
    world = bound(ranks, elements, op="tcp_ping_pong")
    for _ in range(2):
        with ThreadPoolExecutor(ranks) as pool:
            list(pool.map(lambda end: end[0].call(), world))
    received = [received for _, received in world]
    assert [len(buffer) for buffer in received] == [elements, *[0] * (ranks - 2), elements]
    assert (received[0] == float(ranks - 1)).all()
    assert (received[-1] == 0.0).all()
    for operation, _ in world:
        operation.free()


def test_a_neighbour_that_does_nothing_ends_the_call() -> None:
    (first, _), (second, _) = bound(2, 10_000_000, seconds=0.2)
    with pytest.raises(BackendError):
        first.call()
    second.free()
    with pytest.raises(BackendError):
        first.call()
    first.free()


def test_a_rank_that_cannot_listen_is_known_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    shared, real = Shared(2), socket.create_server
    wanted = iter((True, False))
    lock = threading.Lock()

    def create_server(address: tuple[str, int]) -> socket.socket:
        with lock:
            if next(wanted):
                raise OSError(24, "Too many open files")
        return real(address)

    monkeypatch.setattr(socket, "create_server", create_server)

    def message_of(rank: int) -> str:
        with pytest.raises(BackendError) as caught:
            bind_at(rank, torch.zeros(1), torch.zeros(1), shared.of(rank))
        return str(caught.value)

    with ThreadPoolExecutor(2) as pool:
        messages = list(pool.map(message_of, range(2)))
    assert all("127.0.0.1" in message for message in messages)


@pytest.mark.parametrize(
    "settings", [{"nodes": 2}, {"device": "cuda"}, {"group": "div:2"}, {"mode": "overlap"}, {"mode": "persistent"}]
)
def test_what_it_is_not_made_for_is_refused(settings: dict[str, object]) -> None:
    usual = case("tcp_stream", 1 << 20)
    assert sockets.refuse(usual) is None
    assert sockets.refuse(msgspec.structs.replace(usual, **settings))
