"""What ranks of torch.distributed say to each other when the world breaks, over a real store."""

from __future__ import annotations

import socket
import threading
from datetime import timedelta
from typing import cast

import pytest
import torch.distributed as dist

from busbw.backends import side_channel
from busbw.backends.side_channel import answers, wait_warily
from busbw.errors import BackendError


class Waiting:
    """A collective that is over when it is told so."""

    def __init__(self, *, over: bool = False, error: str = "") -> None:
        self.over = threading.Event()
        self.error = error
        self.waited = False
        if over:
            self.over.set()

    def is_completed(self) -> bool:
        return self.over.is_set()

    def wait(self) -> None:
        assert self.over.is_set(), "it would wait for the timeout"
        self.waited = True
        if self.error:
            raise RuntimeError(self.error)


@pytest.fixture
def store() -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))


def wait(work: Waiting, store: dist.Store) -> None:
    wait_warily(cast("dist.Work", work), store, 3)


def test_a_wary_wait_ends_when_another_rank_gives_up(store: dist.Store) -> None:
    work = Waiting()
    told: list[str] = []

    def wait_for_it() -> None:
        try:
            wait(work, store)
        except BackendError as error:
            told.append(str(error))

    waiting = threading.Thread(target=wait_for_it, daemon=True)
    waiting.start()
    # One rank only: of two that give up at once, the wait may see either first.
    assert answers(store, 1, {0: "Timed out"}) == {0: "Timed out"}
    waiting.join(20)
    assert told == ["rank 0 has given up"]


def test_all_that_have_something_to_say_are_heard(store: dist.Store) -> None:
    assert answers(store, 2, {0: "Timed out", 1: "as rank 0 says"}) == {0: "Timed out", 1: "as rank 0 says"}


def test_a_wary_wait_gives_what_the_work_gives(store: dist.Store) -> None:
    work = Waiting(over=True)
    wait(work, store)
    assert work.waited
    with pytest.raises(RuntimeError, match="closed by peer"):
        wait(Waiting(over=True, error="Connection closed by peer"), store)


def test_who_does_not_answer_is_not_heard(store: dist.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("busbw.backends.side_channel._ANSWER_GRACE_SECONDS", 0.0)
    assert answers(store, 3, {0: "Timed out"}) == {0: "Timed out"}
    store.set("busbw/failed/2", "Timed out, too")
    monkeypatch.setattr("busbw.backends.side_channel._ANSWER_GRACE_SECONDS", 0.2)
    assert answers(store, 3, {0: "Timed out"}) == {0: "Timed out", 2: "Timed out, too"}


def test_hanging_up_closes_every_connection_but_those_to_the_store(store: dist.TCPStore) -> None:
    with socket.socket() as listening, socket.socket() as calling:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        calling.connect(listening.getsockname())
        accepted, _ = listening.accept()
        pipe, end = socket.socketpair()
        with accepted, pipe, end:
            other = dist.TCPStore("127.0.0.1", store.port, is_master=False, timeout=timedelta(seconds=10))
            side_channel.hang_up(store.port)
            accepted.settimeout(5)
            assert accepted.recv(1) == b"", "who waited for this rank sees that it is gone"
            pipe.setblocking(False)
            with pytest.raises(BlockingIOError):
                pipe.recv(1)
            other.set("here", "still")
            assert store.get("here") == b"still"


def test_a_rank_lets_go_of_the_others_before_it_listens(store: dist.Store) -> None:
    """One that waits for it in the library would else stay silent, and be blamed."""
    known: list[bool] = []

    def leave() -> None:
        known.append(store.check(["busbw/failed/0"]))
        store.set("busbw/failed/1", "the connection was closed")

    assert answers(store, 2, {0: "reset by peer"}, leave) == {0: "reset by peer", 1: "the connection was closed"}
    assert known == [True], "its own reason comes first"
