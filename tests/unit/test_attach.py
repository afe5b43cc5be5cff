"""Ranks that somebody else has started: their places, where they meet, what rank 0 tells them, and how they end."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import msgspec
import pytest
import torch.distributed as dist
from testing.narrow import require

from busbw import launch
from busbw.backends import BACKENDS, mpi
from busbw.backends.signing import signed
from busbw.errors import BusbwError, LaunchError, StoreError, UsageError
from busbw.launch import launchers, rendezvous, signals
from busbw.launch.attach import run_rank
from busbw.launch.launchers import LAUNCHERS, first_host, tasks_per_node
from busbw.launch.rendezvous import LaunchOrder, StoreRendezvous
from busbw.launch.run_session import Result, Settings
from busbw.launch.signals import RankInfo, ShutdownHandler
from busbw.runs.plan import Plan, Sweep
from busbw.runs.resume import Remaining

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PLAN = Plan(sweep=(Sweep(ops=("barrier",)),))
STEP = {
    "SLURM_PROCID": "5",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_ID": "3",
    "SLURM_JOB_ID": "812",
    "SLURM_STEP_NODELIST": "n[1-2],n7",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),3",
    "SLURM_NODEID": "2",
}


# --- lists of hosts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("n1", "n1"),
        (" n[1-3] ", "n1"),
        ("gpu[08-10,3],login", "gpu08"),
        ("login,gpu[08-10,3]", "login"),
        ("rack[1-2]node[1-2]-ib", "rack1node1-ib"),
        ("a-b.c,d", "a-b.c"),
    ],
)
def test_the_first_host_of_a_list(text: str, name: str) -> None:
    assert first_host(text) == name


@pytest.mark.parametrize("text", ["", "n[", "n]1", "n[1-", "n[x]", "a,,b", ",a", "n[1,]"])
def test_what_is_no_list_of_hosts_is_refused(text: str) -> None:
    with pytest.raises(LaunchError):
        first_host(text)


# --- places ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("launcher", "variables", "place"),
    [
        (
            "torchrun",
            {"RANK": "5", "WORLD_SIZE": "7", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "3", "GROUP_RANK": "2"},
            (5, 7, 1, 3, 2),
        ),
        ("torchrun", {"RANK": "5", "WORLD_SIZE": "7", "LOCAL_RANK": "1"}, (5, 7, 1, None, None)),
        ("srun", STEP, (5, 7, 1, 3, 2)),
        ("srun", {**STEP, "SLURM_NODEID": "9"}, (5, 7, 1, None, 9)),
        (
            "mpirun",
            # The last one counts the ranks of a node over all jobs: it is no node's number.
            {
                **{f"OMPI_COMM_WORLD_{name}": value for name, value in (("RANK", "5"), ("SIZE", "7"))},
                **{f"OMPI_COMM_WORLD_{name}": value for name, value in (("LOCAL_RANK", "1"), ("LOCAL_SIZE", "3"))},
                "OMPI_COMM_WORLD_NODE_RANK": "1",
            },
            (5, 7, 1, 3, None),
        ),
        (
            "mpirun",
            {"PMI_RANK": "5", "PMI_SIZE": "7", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "3"},
            (5, 7, 1, 3, None),
        ),
    ],
)
def test_a_place_is_what_each_launcher_tells(
    launcher: str, variables: dict[str, str], place: tuple[int, int, int, int | None, int | None]
) -> None:
    meets = {"MASTER_ADDR": "n0", "MASTER_PORT": "29500"} if launcher == "torchrun" else {}
    assert LAUNCHERS[launcher].rank_info({**variables, **meets}) == RankInfo(launcher, *place)


@pytest.mark.parametrize(("text", "counts"), [("4", (4,)), ("2(x3),1", (2, 2, 2, 1)), ("1,2(x2)", (1, 2, 2))])
def test_tasks_of_every_node(text: str, counts: tuple[int, ...]) -> None:
    assert tasks_per_node(text) == counts


@pytest.mark.parametrize("text", ["", "2(x", "two", "2;2"])
def test_tasks_that_slurm_would_not_write_are_refused(text: str) -> None:
    with pytest.raises(LaunchError):
        tasks_per_node(text)


def test_a_place_that_cannot_be_is_refused() -> None:
    with pytest.raises(LaunchError, match="SLURM_PROCID"):
        LAUNCHERS["srun"].rank_info({**STEP, "SLURM_PROCID": "7"})


@pytest.mark.parametrize("port", ["0", "-5", "65536", "99999", "http"])
def test_a_port_that_is_none_is_refused_before_anybody_meets(port: str) -> None:
    where = {**STEP, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for meets in (launchers.at_torchrun, launchers.at_srun, launchers.at_mpirun):
        with pytest.raises(LaunchError, match="MASTER_PORT"):
            meets(info(1), where, 1.0)
    assert [launchers.port_in({"PORT": text}, "PORT") for text in ("1", "65535")] == [1, 65535]


def test_steps_side_by_side_do_not_meet_at_one_port() -> None:
    ports = {
        launchers.port_of_step({"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)})
        for job in range(100, 120)
        for step in range(8)
    }
    assert len(ports) == 160
    assert all(1024 < port < 32768 for port in ports)
    assert launchers.port_of_step({**STEP, "SLURM_STEP_RESV_PORTS": "12000-12001"}) == 12000


# --- the way between hosts -------------------------------------------------------------------------------------


def test_the_way_to_this_host_itself_is_none_that_others_could_use() -> None:
    assert rendezvous.interface_to("127.0.0.1") is None
    assert rendezvous.interface_to("no.such.host.invalid") is None
    assert rendezvous.address_towards("127.0.1.1") == ""
    assert rendezvous.address_towards("::1") == ""
    assert rendezvous.address_towards("no.such.host.invalid") == ""


@pytest.mark.parametrize(
    ("addresses", "there"),
    [
        ([""], ""),
        (["", ""], ""),  # one host that knows itself by its loopback
        (["10.0.0.1", "10.0.0.1"], ""),  # one host, by its address
        (["", "", "10.0.0.2", "10.0.0.3"], "10.0.0.2"),
        (["10.0.0.1", "10.0.0.1", "10.0.0.2"], "10.0.0.2"),
    ],
)
def test_where_another_host_is(addresses: list[str], there: str) -> None:
    assert rendezvous.elsewhere(addresses) == there


@pytest.fixture
def gloo(monkeypatch: pytest.MonkeyPatch) -> Callable[[], str | None]:
    """Which interface Gloo has been told to use, on a host with two of them."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")  # so that it is put back as it was
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    monkeypatch.setattr(rendezvous, "interface_to", {"n1": None, "10.0.0.2": "ib0", "n2": "eth0"}.get)
    return lambda: os.environ.get("GLOO_SOCKET_IFNAME")


def meet(variables: dict[str, str], seen_from: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks below torchrun meet, each with its address in ``seen_from``, and this host is that of rank 0."""
    addresses = iter(seen_from)
    monkeypatch.setattr(rendezvous, "address_towards", lambda _host: next(addresses))
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **variables}
    first = launchers.at_torchrun(info(0), where, 20.0)
    other = threading.Thread(target=lambda: launchers.at_torchrun(info(1), where, 20.0).receive())
    other.start()
    first.publish(LaunchOrder(plan=PLAN))
    other.join()


@pytest.mark.parametrize(
    ("named", "addresses", "used"),
    [
        # The other rank is asked first: rank 0 waits for it, and knows itself by its loopback.
        (None, ["10.0.0.2", ""], "ib0"),
        (None, ["10.0.0.1", "10.0.0.1"], None),
        ("eth7", ["10.0.0.2", ""], "eth7"),
    ],
)
def test_gloo_uses_the_way_to_another_host_unless_the_user_names_one(
    gloo: Callable[[], str | None],
    monkeypatch: pytest.MonkeyPatch,
    named: str | None,
    addresses: list[str],
    used: str | None,
) -> None:
    if named is not None:
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", named)
    meet({}, addresses, monkeypatch)
    assert gloo() == used


# --- below mpirun ----------------------------------------------------------------------------------------------


def test_ranks_of_mpirun_meet_without_mpi_where_they_are_told_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "mpi", replace(BACKENDS["mpi"], missing=lambda: "mpi4py is not installed"))
    port = free_port()
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    first = launchers.at_mpirun(RankInfo("mpirun", 0, 1, 0, 1), where, 20.0)
    assert first.store == ("127.0.0.1", port)
    words = "mpirun started this rank, and mpi4py is not installed; to use gloo or nccl without MPI, set MASTER_ADDR"
    for half in ({}, {"MASTER_ADDR": "127.0.0.1"}, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": ""}):
        with pytest.raises(LaunchError, match=words):
            launchers.at_mpirun(RankInfo("mpirun", 0, 1, 0, 1), half, 20.0)


def info_of_mpirun(rank: int, size: int = 2) -> RankInfo:
    return RankInfo("mpirun", rank, size, rank, size)


@pytest.mark.parametrize(
    ("other", "size"), [({"OMPI_COMM_WORLD_RANK": "1", "PMIX_NAMESPACE": "prterun-n0-8@1"}, 2), ({"PMI_RANK": "1"}, 3)]
)
def test_another_mpirun_that_was_given_the_same_port_is_not_heard(other: dict[str, str], size: int) -> None:
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    mine = {**where, "OMPI_COMM_WORLD_RANK": "0", "PMIX_NAMESPACE": "prterun-n0-7@1"} if size == 2 else where
    first = launchers.at_mpirun(info_of_mpirun(0), mine, 20.0)
    heard: list[LaunchOrder] = []
    own = threading.Thread(target=lambda: heard.append(launchers.at_mpirun(info_of_mpirun(1), mine, 20.0).receive()))
    own.start()
    first.publish(LaunchOrder(plan=PLAN, run="mine"))
    own.join()
    assert [order.run for order in heard] == ["mine"]
    with pytest.raises(LaunchError):
        launchers.at_mpirun(info_of_mpirun(1, size), {**where, **other}, 0.5).receive()


def test_a_rank_that_comes_twice_is_refused_by_rank_0_and_by_the_second_of_them() -> None:
    """MPICH's mpirun has no name that its ranks see: two worlds of one size are known by their ranks alone."""
    port = free_port()
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    twice = rf"rank\(s\) 1 of 2 registered twice at 127\.0\.0\.1 port {port}: two jobs use .* its own port"
    first = launchers.at_mpirun(info_of_mpirun(0), where, 20.0)

    def hears(errors: list[str]) -> None:
        try:
            launchers.at_mpirun(info_of_mpirun(1), where, 1.0).receive()
        except LaunchError as error:
            errors.append(str(error))

    errors: list[str] = []
    others = [threading.Thread(target=hears, args=(errors,)) for _ in range(2)]
    others[0].start()
    others[1].start()
    while not any(re.search(twice, message) for message in errors):
        time.sleep(0.01)
    with pytest.raises(LaunchError, match=twice):
        first.publish(LaunchOrder(plan=PLAN))
    for other in others:
        other.join()
    first.publish(LaunchOrder(status=1))  # they are sent home all the same


class FakeMpi:
    """What a meeting over MPI asks of it, in a world whose other ranks do not answer."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def broadcast(self, text: bytes) -> bytes:
        assert self.ended.wait(20.0), "nobody ended this process"
        return text

    def initialise(self, *_promise: object) -> None:
        pass


@pytest.fixture
def over_mpi(monkeypatch: pytest.MonkeyPatch) -> FakeMpi:
    """Every rank of mpirun meets over this MPI; the process ends when ``ended`` is set, and goes on for the test."""
    fake = FakeMpi()
    monkeypatch.setitem(BACKENDS, "mpi", replace(BACKENDS["mpi"], missing=lambda: None))
    monkeypatch.setitem(sys.modules, "busbw.backends.mpi.init", fake)
    monkeypatch.setattr(mpi, "init", fake, raising=False)  # where it has been imported before
    monkeypatch.setattr(os, "_exit", lambda _status: fake.ended.set())
    return fake


def test_rank_0_does_not_wait_for_ever_for_others_that_take_no_order(over_mpi: FakeMpi) -> None:
    first = launchers.at_mpirun(info_of_mpirun(0), {}, 0.2)
    first.publish(LaunchOrder())
    assert over_mpi.ended.is_set()


def test_a_library_of_mpi_that_does_not_load_is_said_with_the_way_around_it() -> None:
    """In a process of its own: a module that failed to load is tried again, and mpi4py's stays loaded."""
    pytest.importorskip("mpi4py")
    meets = """
from busbw.errors import LaunchError
from busbw.launch import launchers
from busbw.launch.signals import RankInfo
try:
    launchers.at_mpirun(RankInfo("mpirun", 0, 2, 0, 2), {}, 20.0)
except LaunchError as error:
    print(error)
"""
    nowhere = {**os.environ, "MPI4PY_LIBMPI": "/nowhere/libmpi.so"}
    said = subprocess.run(
        [sys.executable, "-c", meets], check=True, capture_output=True, text=True, timeout=60, env=nowhere
    ).stdout
    assert "MASTER_ADDR" in said


# --- what rank 0 tells -----------------------------------------------------------------------------------------


def free_port() -> int:
    """A port that no other worker of pytest-xdist is given. Its parity says nothing: Linux gives odd ones first."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    mine = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port // 2 % workers == mine:
            return port


def info(rank: int, size: int = 2) -> RankInfo:
    return RankInfo("srun", rank, size, rank, size)


def test_the_others_hear_what_rank_0_tells() -> None:
    port = free_port()
    order = LaunchOrder(plan=PLAN, run="r", launch=3, remaining=Remaining(1, frozenset({(0, 1)}), frozenset({2}), 0, 1))
    first = StoreRendezvous(info(0), "127.0.0.1", port, 20.0)
    heard: list[LaunchOrder] = []
    other = threading.Thread(target=lambda: heard.append(StoreRendezvous(info(1), "127.0.0.1", port, 20.0).receive()))
    other.start()
    first.publish(order)
    other.join()
    assert [msgspec.structs.replace(heard_order, session="") for heard_order in heard] == [order]


SECRET = b"0123456789abcdef0123456789abcdef"


def hears(port: int, secret: bytes) -> tuple[threading.Thread, list[str]]:
    """Rank 1, which waits for an order in a thread, and what it says in the end: the run, or why there is none."""
    said: list[str] = []

    def receive() -> None:
        try:
            said.append(StoreRendezvous(info(1), "127.0.0.1", port, 20.0, secret=secret).receive().run)
        except LaunchError as error:
            said.append(str(error))

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    return thread, said


def stranger_at(port: int) -> dist.Store:
    """The store as somebody has it who knows its port, and nothing else."""
    store = dist.TCPStore("127.0.0.1", port, None, False, timedelta(seconds=20), wait_for_workers=False)
    return dist.PrefixStore("busbw/rendezvous/0", store)


def test_an_order_by_who_has_not_the_secret_is_not_taken() -> None:
    port = free_port()
    _keeps = StoreRendezvous(info(0), "127.0.0.1", port, 20.0, secret=SECRET)
    stranger = stranger_at(port)
    other, said = hears(port, SECRET)
    asked = stranger.get("asked/1").decode()
    text = msgspec.json.encode(LaunchOrder(plan=PLAN, run="a stranger's")).decode()
    stranger.set("order/1", signed(b"", f"0/order/1/{asked}", text))
    other.join()
    assert len(said) == 1
    assert re.search(
        r"refuses the order from .*: it is not signed with this rank's BUSBW_SECRET; set the same one", said[0]
    )


def test_an_order_of_an_earlier_launch_is_not_taken_again() -> None:
    port = free_port()
    first = StoreRendezvous(info(0), "127.0.0.1", port, 20.0, secret=SECRET)
    other, said = hears(port, SECRET)
    first.publish(LaunchOrder(plan=PLAN, run="before"))
    other.join()
    assert said == ["before"]
    recorded = first._store.get("order/1")

    port = free_port()
    _keeps = StoreRendezvous(info(0), "127.0.0.1", port, 20.0, secret=SECRET)
    stranger_at(port).set("order/1", recorded.decode())
    other, said = hears(port, SECRET)
    other.join()
    assert "refuses" in said[0]


@pytest.mark.parametrize("key", ["heard/1", "elsewhere"])
def test_what_else_ranks_say_when_they_meet_is_not_taken_from_a_stranger(key: str) -> None:
    port = free_port()
    first = StoreRendezvous(info(0), "127.0.0.1", port, 20.0, secret=SECRET)
    put = first._store.set
    forged = {"set": lambda name, text: put(name, text if name != key else "10.0.0.9"), "get": first._store.get}
    others = {"add": first._store.add, "check": first._store.check}
    other, said = hears(port, SECRET)
    if key == "heard/1":
        first.key = SECRET
        put(key, signed(b"", key, "10.0.0.9"))
        with pytest.raises(LaunchError, match="signed"):
            first._distant_address()
        first._store.wait(["asked/1"])  # who has been heard of is not answered later
        first.publish(LaunchOrder(status=1))
    else:
        first._store = cast("dist.Store", SimpleNamespace(**forged, **others))
        first.publish(LaunchOrder(plan=PLAN))
    other.join()
    assert key == "heard/1" or "signed" in said[0]


def test_a_secret_that_could_be_guessed_is_refused() -> None:
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "BUSBW_SECRET": "hunter2"}
    with pytest.raises(LaunchError, match="BUSBW_SECRET"):
        launchers.at_torchrun(info(0), where, 1.0)


def test_ranks_on_several_hosts_are_told_of_a_secret_that_is_lacking(
    gloo: Callable[[], str | None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    meet({}, ["10.0.0.2", ""], monkeypatch)
    assert "BUSBW_SECRET" in capsys.readouterr().err
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    meet({"BUSBW_SECRET": SECRET.decode()}, ["10.0.0.2", ""], monkeypatch)
    assert capsys.readouterr().err == ""
    assert gloo() == "ib0"


def test_a_step_of_another_job_that_took_the_same_port_is_not_heard() -> None:
    step = {**STEP, "SLURM_STEP_NUM_NODES": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    first = launchers.at_srun(info(0, 1), step, 20.0)
    first.publish(LaunchOrder(plan=PLAN, run="of job 812"))
    other = launchers.at_srun(info(1), {**step, "SLURM_JOB_ID": "813"}, 0.5)
    with pytest.raises(LaunchError):
        other.receive()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_meets_no_other_is_told_what_makes_it_one(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    for name, value in place.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(LaunchError) as caught, launch.session(Settings(tmp_path), 0.5) as joined:
        require(joined.attached).publish(LaunchOrder(plan=PLAN))
    assert caught.value.code == "alone"
    assert "RANK" in " ".join(caught.value.__notes__).split()


def test_ranks_that_do_not_come_are_named() -> None:
    port = free_port()
    first = StoreRendezvous(info(0, 4), "127.0.0.1", port, 1.0)

    def come() -> None:
        with pytest.raises(LaunchError):
            StoreRendezvous(info(2, 4), "127.0.0.1", port, 0.5).receive()

    first_comes = threading.Thread(target=come)
    first_comes.start()
    with pytest.raises(LaunchError, match=rf"2 of 4 ranks have not reached rank 0 .* port {port} within 1 s: 1, 3$"):
        first.publish(LaunchOrder(plan=PLAN))
    first_comes.join()
    first.publish(LaunchOrder(status=1))  # when nothing is to be measured, nobody is missed


@pytest.mark.parametrize(
    ("host", "why"), [("127.0.0.1", "Connection refused"), ("nosuch.invalid", "[nN]ame"), ("a..b", "label empty")]
)
def test_a_rank_0_that_is_not_there_is_said_in_one_line(host: str, why: str, capfd: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    words = rf"rank 1 of 2 \(host .*\) cannot reach rank 0 at {host} port {port}: .*{why}.*, for 0\.5 s; set"
    with pytest.raises(LaunchError, match=words):
        StoreRendezvous(info(1), host, port, 0.5)
    assert capfd.readouterr().err == "", "where torch would print the stack of its own functions"


def test_a_rank_that_comes_before_rank_0_waits_for_it() -> None:
    port = free_port()
    others: list[StoreRendezvous] = []
    comes = threading.Thread(target=lambda: others.append(StoreRendezvous(info(1), "127.0.0.1", port, 20.0)))
    comes.start()
    comes.join(0.3)
    assert not others
    first = StoreRendezvous(info(0), "127.0.0.1", port, 20.0)
    comes.join()
    assert [other.store for other in others] == [first.store]


def test_a_taken_port_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))  # noqa: S104 - what rank 0 would take
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(LaunchError, match=str(port)):
            StoreRendezvous(info(0), "127.0.0.1", port, 1.0)


class FakeRendezvous:
    """Keeps what is told."""

    def __init__(self) -> None:
        self.store: tuple[str, int] | None = None
        self.key = b""
        self.orders: list[LaunchOrder] = []
        self.parted = False

    def publish(self, order: LaunchOrder) -> None:
        self.orders.append(order)

    def receive(self) -> LaunchOrder:
        return self.orders[0]

    def close(self) -> None:
        self.parted = True


@pytest.fixture
def below_srun(monkeypatch: pytest.MonkeyPatch) -> FakeRendezvous:
    """Rank 0 of a step, with a rendezvous of its own."""
    for name, value in {**STEP, "SLURM_PROCID": "0"}.items():
        monkeypatch.setenv(name, value)
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID"):
        monkeypatch.delenv(name, raising=False)
    where = FakeRendezvous()
    row = LAUNCHERS["srun"]
    monkeypatch.setitem(LAUNCHERS, "srun", replace(row, rendezvous=lambda *_: where))
    return where


@pytest.mark.parametrize(("kind", "status"), [(UsageError, 2), (StoreError, 1)])
def test_when_rank_0_refuses_the_others_are_sent_home(
    below_srun: FakeRendezvous, tmp_path: Path, kind: type[BusbwError], status: int
) -> None:
    message = "not like this"
    with pytest.raises(kind, match=message), launch.session(Settings(tmp_path), 1.0):
        raise kind(message)
    assert below_srun.orders == [LaunchOrder(status=status)]
    assert below_srun.parted


def test_when_rank_0_only_looks_the_others_do_nothing_either(below_srun: FakeRendezvous, tmp_path: Path) -> None:
    with launch.session(Settings(tmp_path), 1.0) as world:
        assert require(world.attached).info.lead
    assert below_srun.orders == [LaunchOrder()]


@pytest.mark.parametrize("timeout", [1e300, float("nan"), -5.0, 0.0])
def test_a_timeout_that_is_none_is_refused_before_anybody_meets(
    below_srun: FakeRendezvous, tmp_path: Path, timeout: float
) -> None:
    with pytest.raises(UsageError, match=re.escape(f"{timeout:g}")), launch.session(Settings(tmp_path), timeout):
        pytest.fail("the ranks have met")
    assert not below_srun.orders


def test_the_others_do_not_begin_and_speak_only_where_rank_0_cannot(
    below_srun: FakeRendezvous, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_PROCID", "3")

    def follow() -> Result | None:
        with launch.session(Settings(tmp_path), 1.0) as world:
            assert world.attached is not None
            assert not world.attached.info.lead
            return run_rank(world.attached)

    for status in (1, 2):
        below_srun.orders[:] = [LaunchOrder(status=status)]
        result = require(follow())
        assert (result.failed, result.speaks, result.status) == (1, False, status)
    below_srun.orders[:] = [LaunchOrder()]
    assert follow() is None
    below_srun.orders[:] = [LaunchOrder(plan=Plan(backend="nccl", sweep=PLAN.sweep))]
    with pytest.raises(LaunchError, match="nccl"):
        follow()


# --- how they end ----------------------------------------------------------------------------------------------

INFO = RankInfo("srun", 0, 2, 0, 2)


def handler(launcher: str, rank: int) -> ShutdownHandler:
    return ShutdownHandler(RankInfo(launcher, rank, 2, rank, 2), LAUNCHERS[launcher].signals)


def nobody_aborts() -> None:
    pytest.fail("the signal was heeded, or there was time")


@pytest.fixture
def kept_signals() -> Iterator[None]:
    """Handlers and the alarm (which is that of the test's own timeout) as they were, afterwards."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGALRM)
    before = {number: signal.getsignal(number) for number in numbers}
    alarm = signal.getitimer(signal.ITIMER_REAL)
    yield
    signal.setitimer(signal.ITIMER_REAL, *alarm)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.alone
@pytest.mark.usefixtures("kept_signals")
def test_a_rank_that_still_starts_up_is_not_killed_by_the_signal_before_a_time_limit(
    below_srun: FakeRendezvous, tmp_path: Path
) -> None:
    with launch.session(Settings(tmp_path), 1.0) as world:
        assert world.attached is not None
        os.kill(os.getpid(), signal.SIGUSR1)
        with world.attached.shutdown.listening(pytest.fail):
            assert world.attached.shutdown.asked(), "and the first block is not begun"
    assert below_srun.orders == [LaunchOrder()]


@pytest.mark.alone
@pytest.mark.usefixtures("kept_signals")
@pytest.mark.parametrize("launcher", ["srun", "torchrun", "mpirun"])
def test_a_signal_before_the_time_limit_asks_for_the_end_of_a_block(launcher: str) -> None:
    alarm = signal.getitimer(signal.ITIMER_REAL)[0]
    shutdown = handler(launcher, 0)
    with shutdown.listening(nobody_aborts):
        assert not shutdown.asked()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert shutdown.asked()
        assert shutdown.in_words() == "SIGUSR1"
        assert signal.getitimer(signal.ITIMER_REAL)[0] <= alarm, "there is time until the limit: no alarm is set"


@pytest.mark.alone
@pytest.mark.usefixtures("kept_signals")
def test_a_rank_that_does_not_come_to_the_end_of_its_block_is_interrupted() -> None:
    policy = signals.SignalPolicy({signal.SIGTERM: 0.05})

    def terminated() -> None:
        with ShutdownHandler(INFO, policy).listening(nobody_aborts):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)

    with pytest.raises(KeyboardInterrupt):
        terminated()


@pytest.mark.alone
@pytest.mark.usefixtures("kept_signals")
def test_what_is_over_is_not_interrupted_any_more() -> None:
    shutdown = ShutdownHandler(INFO, signals.SignalPolicy({signal.SIGTERM: 0.05}))
    with shutdown.listening(nobody_aborts):
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert signal.set_wakeup_fd(-1) == -1
    assert not [thread for thread in threading.enumerate() if thread.name == "busbw-shutdown"]
    assert shutdown.in_words() == "SIGTERM"


def test_a_rank_that_waits_in_its_library_gives_up_all_the_same() -> None:
    waits = """
import ctypes, os, signal
from busbw.launch import signals
from busbw.launch.signals import RankInfo
signals._HEEDS_SECONDS = 0.1
policy = signals.SignalPolicy({signal.SIGTERM: 0.1})
with signals.ShutdownHandler(RankInfo("srun", 0, 2, 0, 2), policy).listening(lambda: os._exit(7)):
    os.kill(os.getpid(), signal.SIGTERM)
    mutex, lock = ctypes.create_string_buffer(64), ctypes.CDLL(None).pthread_mutex_lock
    lock(mutex)
    lock(mutex)  # no signal ends this
"""
    assert subprocess.run([sys.executable, "-c", waits], check=False, timeout=60).returncode == 7


def test_a_run_whose_ranks_do_not_come_leaves_no_folder(
    below_srun: FakeRendezvous, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def publish(_order: LaunchOrder) -> None:
        message = "1 of 2 ranks have not reached rank 0"
        raise LaunchError(message)

    monkeypatch.setattr(below_srun, "publish", publish)
    settings = Settings(tmp_path, quiet=True)
    with pytest.raises(LaunchError), launch.session(settings, 1.0) as world:
        launch.execute(PLAN, world)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.alone
@pytest.mark.usefixtures("kept_signals")
def test_below_mpirun_the_others_leave_it_to_rank_0() -> None:
    with handler("mpirun", 1).listening(nobody_aborts):
        os.kill(os.getpid(), signal.SIGTERM)
    leads = handler("mpirun", 0)
    with pytest.raises(KeyboardInterrupt), leads.listening(nobody_aborts):
        os.kill(os.getpid(), signal.SIGTERM)
