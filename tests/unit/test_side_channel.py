"""What ranks of torch.distributed say to each other when the world breaks, over a real store."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from dataclasses import replace
from datetime import timedelta
from typing import cast

import psutil
import pytest
import torch.distributed as dist

from busbw.backends import side_channel
from busbw.backends.base import World
from busbw.backends.pytorch.backend import GlooBackend
from busbw.backends.side_channel import collect_reports, serve_store, wait_warily
from busbw.backends.signing import key_of, signed, verified
from busbw.errors import BackendError, BusbwError


def test_a_message_is_of_one_launch_of_one_job_and_about_one_thing() -> None:
    key = key_of(b"secret", "session")
    message = signed(key, "order/1", "go").encode()
    assert verified(key, "order/1", message) == "go"
    assert verified(key, "order/2", message) is None
    assert verified(key_of(b"secret", "another session"), "order/1", message) is None
    assert verified(key_of(b"another secret", "session"), "order/1", message) is None


def test_a_store_that_cannot_be_opened_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_given: object, master_listen_fd: int, **_named: object) -> None:
        os.close(master_listen_fd)  # as torch's does
        message = "the network is unreachable"
        raise RuntimeError(message)

    monkeypatch.setattr(dist, "TCPStore", fails)
    with pytest.raises(RuntimeError, match="unreachable"):
        serve_store("127.0.0.1", 0, 1.0)


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
    wait_warily(work.is_completed, store, 3)
    work.wait()


def test_a_wary_wait_ends_when_another_rank_gives_up(store: dist.Store) -> None:
    work = Waiting()
    errors: list[str] = []

    def wait_for_it() -> None:
        try:
            wait(work, store)
        except BackendError as error:
            errors.append(str(error))

    waiting = threading.Thread(target=wait_for_it, daemon=True)
    waiting.start()
    # One rank only: of two that give up at once, the wait may see either first.
    assert collect_reports(store, 1, {0: "Timed out"}) == {0: "Timed out"}
    waiting.join(20)
    assert errors == ["rank 0 has given up"]


def test_a_wary_wait_gives_what_the_work_gives(store: dist.Store) -> None:
    work = Waiting(over=True)
    wait(work, store)
    assert work.waited
    with pytest.raises(RuntimeError, match="peer"):
        wait(Waiting(over=True, error="Connection closed by peer"), store)


def test_who_does_not_answer_is_not_heard(store: dist.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("busbw.backends.side_channel._ANSWER_GRACE_SECONDS", 0.0)
    assert collect_reports(store, 3, {0: "Timed out"}) == {0: "Timed out"}
    store.set("busbw/failed/2", signed(b"", "failed/2", "Timed out, too"))
    monkeypatch.setattr("busbw.backends.side_channel._ANSWER_GRACE_SECONDS", 0.2)
    assert collect_reports(store, 3, {0: "Timed out"}) == {0: "Timed out", 2: "Timed out, too"}


def stale(*_: object, **__: object) -> os.stat_result:
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))


def test_hanging_up_closes_every_connection_but_those_to_the_store(
    store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as listening, socket.socket() as calling:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        calling.connect(listening.getsockname())
        accepted, _ = listening.accept()
        pipe, end = socket.socketpair()
        with accepted, pipe, end:
            other = dist.TCPStore("127.0.0.1", store.port, is_master=False, timeout=timedelta(seconds=10))
            with monkeypatch.context() as storage:
                storage.setattr(os, "stat", stale)
                side_channel.shut_connections(store.port)
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
        store.set("busbw/failed/1", signed(b"", "failed/1", "the connection was closed"))

    assert collect_reports(store, 2, {0: "reset by peer"}, leave) == {
        0: "reset by peer",
        1: "the connection was closed",
    }
    assert known == [True], "its own reason comes first"


KEY = b"of the ranks of this launch"


def test_a_word_that_no_rank_has_signed_is_neither_heard_nor_ends_a_wait(
    store: dist.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("busbw.backends.side_channel._ANSWER_GRACE_SECONDS", 0.2)
    own = signed(KEY, "failed/1", "Timed out")
    forged = [
        "all is well\nbusbw: forged",  # by a stranger
        signed(b"another key", "failed/1", "Timed out"),  # by one that knows how it is done
        signed(KEY, "failed/2", "Timed out"),  # of another rank, moved
        own[:-1] + "?",  # changed
    ]
    for word in forged:
        store.set("busbw/failed/1", word)
        assert collect_reports(store, 2, {0: "mine"}, key=KEY) == {0: "mine"}, word
    work = Waiting()
    threading.Timer(0.3, work.over.set).start()
    store.set("busbw/failed/0", forged[0])
    wait_warily(work.is_completed, store, 2, KEY)
    store.set("busbw/failed/1", own)
    assert collect_reports(store, 2, {0: "mine"}, key=KEY) == {0: "mine", 1: "Timed out"}


def test_what_a_rank_says_is_one_line_of_bounded_length(store: dist.Store) -> None:
    store.set("busbw/failed/1", signed(KEY, "failed/1", "one\nrank 2 says: \x1b[31mforged\u202e" + "x" * 100_000))
    heard = collect_reports(store, 2, {0: "mine"}, key=KEY)[1]
    assert heard.startswith("one rank 2 says:  [31mforged x")
    assert heard.isprintable()
    assert len(heard) <= 1000


class Unreachable:
    """A store behind a link that was cut: its calls do not return for a quarter of an hour."""

    def __getattr__(self, _name: str) -> object:
        return lambda *_arguments: time.sleep(900)


def test_a_store_that_does_not_answer_holds_up_neither_the_last_words_nor_a_wary_wait() -> None:
    left: list[bool] = []
    cut = cast("dist.Store", Unreachable())
    began = time.monotonic()
    assert collect_reports(cut, 3, {1: "Timed out"}, lambda: left.append(True)) == {1: "Timed out"}
    assert left == [True], "who waits for this rank is woken all the same"
    work = Waiting(error="Timed out")
    threading.Timer(0.1, work.over.set).start()
    with pytest.raises(RuntimeError, match="Timed"):
        wait(work, cut)
    assert time.monotonic() - began < 60


def listens_at(port: int) -> set[str]:
    """The addresses at which this process listens at ``port``."""
    connections = psutil.Process(os.getpid()).net_connections("tcp")
    return {
        connection.laddr.ip
        for connection in connections
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    }


EVERYWHERE = {"::"} if socket.has_dualstack_ipv6() else {"0.0.0.0"}  # noqa: S104 - what must not be


@pytest.mark.parametrize(
    ("host", "one_host", "resolved", "where"),
    [
        ("127.0.0.1", False, None, {"127.0.0.1"}),
        ("localhost", False, ["127.0.0.1"], {"127.0.0.1"}),
        ("n1", True, ["127.0.1.1"], {"127.0.1.1"}),  # as Debian has it; nobody else needs to come
        ("n1", False, ["127.0.1.1"], EVERYWHERE),  # other hosts know n1 by another address
        ("n1", False, ["192.0.2.7"], EVERYWHERE),  # none of this host: an address in front of it
        ("n1", False, ["192.0.2.7", "127.0.0.1"], EVERYWHERE),
        ("nosuch.invalid", False, [], EVERYWHERE),
    ],
)
def test_a_store_listens_where_the_launcher_named_it(
    host: str,
    one_host: bool,  # noqa: FBT001 - a parameter of this test
    resolved: list[str] | None,
    where: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if resolved is not None:
        families = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in resolved]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_arguments, **_more: families)
    kept, _ = serve_store(host, 0, 10.0, one_host=one_host)
    assert listens_at(kept.port) == where
    kept.set("it", "works")
    assert kept.get("it") == b"works"


def test_a_shutdown_that_hangs_is_not_said_to_be_a_missing_connection(
    store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[Exception] = []
    given_up = threading.Event()

    def lost(error: Exception) -> None:
        reported.append(error)
        given_up.set()

    backend = GlooBackend(World(0, 1, 0, "local", 5, store=("127.0.0.1", store.port)))
    backend._world = replace(backend._world, timeout_seconds=0.05, lost=lost)
    destroy = dist.destroy_process_group
    monkeypatch.setattr(dist, "destroy_process_group", lambda: given_up.wait(60))
    try:
        backend.close()
    finally:
        destroy()
    (error,) = reported
    assert isinstance(error, BusbwError)
    assert error.code == BackendError.code
