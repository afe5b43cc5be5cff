"""Copies of a GPU, as far as they can be held without one: where the buffers are, what is checked, what is refused."""

from functools import partial
from itertools import permutations

import msgspec
import pytest
import torch
from simulated.install import simulated
from simulated.machine import EXACT
from testing.blocks import measure_everywhere
from testing.devices import DeviceScript, FakeDevice
from testing.fakes import FakeBackend, FakeClock, FakeWorld, Script
from testing.narrow import require
from testing.synthetic import case
from torch.profiler import ProfilerActivity, profile

from busbw.backends.base import Backend, Bound, Operation
from busbw.backends.faults import WrappingBackend
from busbw.backends.local import LOCAL, device
from busbw.backends.pytorch.nccl import View, name_of, why_no_pairs
from busbw.errors import BackendError
from busbw.measure.bench import rounds_of
from busbw.measure.unsupported import Place, skip_reason
from busbw.ops import OPS
from busbw.ops.base import Share
from busbw.runs.records import Case, Failed, Measurement, Mode
from busbw.system.device import Device

pytestmark = pytest.mark.usefixtures("lines_recorded")

HOST_OPS = ("host_to_device", "device_to_host", "host_and_device")
PEER_OPS = tuple(name for name, op in OPS.items() if op.needs_device and op.members == "pairs")
HERE = Place(oversubscribed=False, comparable=True)


def on_device(op: str, ranks: int = 1, **changes: object) -> Case:
    pinning, pairs = "pinned" if op in HOST_OPS else None, "together" if op in PEER_OPS else None
    return case(op, 64, ranks, **{"backend": "nccl", "device": "cuda", "pinning": pinning, "pairs": pairs, **changes})


class Machine:
    """A fake device, and the buffers that a rank would be given there."""

    def __init__(self) -> None:
        clock = FakeClock()
        self.device = FakeDevice(DeviceScript(), lambda: clock.ns, lambda ns: setattr(clock, "ns", ns))

    def bound(self, op: str, *, peer: str | None = None, there: bool = True, **changes: object) -> Bound:
        """As the layout of the first rank of a pair, or of the second one, has it."""
        copy = on_device(op, 2 if op in PEER_OPS else 1, **changes)
        layout = OPS[op].layout(Share(0 if there else 1, 2 if op in PEER_OPS else 1, copy.count))
        send = torch.arange(layout.send_count, dtype=torch.float32)
        receive = torch.full((layout.receive_count,), 0.5)
        driven: Device = self.device
        return Bound(copy, send, receive, driven, peers=(None, peer))


@pytest.fixture
def machine() -> Machine:
    return Machine()


# --- with the host -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pinned", "emptied"), [(True, 1), (False, 0)])
def test_pinned_memory_of_earlier_blocks_is_given_back_first(
    monkeypatch: pytest.MonkeyPatch, *, pinned: bool, emptied: int
) -> None:
    calls: list[str] = []
    with simulated(EXACT):
        monkeypatch.setattr(torch._C, "_host_emptyCache", lambda: calls.append("emptied"))
        device.host_memory(torch.ones(3), pinned=pinned)
    assert len(calls) == emptied


def test_memory_of_the_host_that_cannot_be_pinned_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_given: object, **_options: object) -> torch.Tensor:
        message = "cannot pin"
        raise RuntimeError(message)

    monkeypatch.setattr(torch, "empty", refused)
    with pytest.raises(BackendError):
        device.host_memory(torch.ones(3), pinned=True)


def test_both_directions_need_a_device() -> None:
    with simulated(EXACT), pytest.raises(BackendError):
        LOCAL["host_and_device"].bind(Bound(on_device("host_and_device"), torch.zeros(16), torch.zeros(16), None))


@pytest.mark.parametrize("mode", ["isolated", "pipelined"])
@pytest.mark.parametrize("op", [name for name, op in OPS.items() if op.needs_device])
def test_where_ranks_drive_no_device_there_is_nothing_to_copy_to(op: str, mode: Mode) -> None:
    backend = FakeBackend(FakeWorld(2, Script()), 0)
    require(skip_reason(on_device(op, 2, device="cpu", backend="gloo", mode=mode), backend, HERE))


def test_one_gpu_has_no_pair() -> None:
    backend = FakeBackend(FakeWorld(1, Script(device=DeviceScript())), 0)
    for op in PEER_OPS:
        assert skip_reason(on_device(op), backend, HERE) is not None


# --- inside of a GPU -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_read_and_its_check_write_the_array_nowhere_in_another_type(machine: Machine, dtype: str) -> None:
    """Its traffic would be that of the copy, several times what is counted."""
    send = torch.full((4096,), -1.0, dtype=torch.float32 if dtype == "float32" else torch.float64)
    made = LOCAL["memory_read"].bind(Bound(on_device("memory_read", dtype=dtype), send, send[:0], machine.device))
    assert made.wrong is not None
    with profile(activities=[ProfilerActivity.CPU]) as watched:
        made.call()
        assert made.wrong() == 0
    done = {event.key for event in watched.key_averages()}
    assert "aten::sum" in done
    assert not done & {"aten::to", "aten::_to_copy"}


# --- from GPU to GPU ----------------------------------------------------------------------------------------------


def seeing(hosts: str = "aa", *, lonely: bool = False, access: bool = True, uuids: bool = True) -> tuple[View, ...]:
    """What as many ranks as ``hosts`` see: those of their host, or only themselves."""
    gpus = [f"GPU-{rank}" for rank in range(len(hosts))]
    views = []
    for rank, host in enumerate(hosts):
        there = [
            gpu for gpu, other in zip(gpus, hosts, strict=True) if other == host and (not lonely or gpu == gpus[rank])
        ]
        names = {gpu: f"cuda:{index}" for index, gpu in enumerate(there)}
        others = tuple(gpu for gpu in there if gpu != gpus[rank]) if access else ()
        views.append(View(host=host, gpu=gpus[rank] if uuids else None, names=names, access=others))
    return tuple(views)


def test_copies_of_a_root_need_no_access_between_the_others() -> None:
    views = [*seeing("aaa")]
    views[1], views[2] = (msgspec.structs.replace(view, access=view.access[:1]) for view in views[1:])
    for op, possible in (("peer_all_to_one", True), ("peer_copy", False)):
        assert (why_no_pairs(OPS[op], on_device(op, 3), views) is None) == possible


def test_gpus_of_one_host_that_see_each_other_copy() -> None:
    views = seeing("aabb")
    for op in set(PEER_OPS) - {"peer_copy_driver"}:
        assert why_no_pairs(OPS[op], on_device(op, 4, group="div:2"), views) is None
    assert [name_of(views, rank, peer) for rank, peer in ((0, 1), (1, 0), (3, 2), (0, 2))] == [
        "cuda:1",
        "cuda:0",
        "cuda:0",
        None,
    ]


@pytest.mark.parametrize(
    ("views", "said"),
    [
        (seeing("ab"), "ranks 0 and 1 are on different hosts, but peer copies are within a host"),
        (seeing(lonely=True), "rank 0 sees only 1 GPU and not that of rank 1"),
        (seeing(uuids=False), "torch does not report the UUID of the GPU of rank 1"),
        (seeing(access=False), "the GPU of rank 0 has no peer access to that of rank 1; use peer_copy_driver or"),
    ],
)
def test_a_pair_that_cannot_copy_is_named_with_the_reason(views: tuple[View, ...], said: str) -> None:
    reason = require(why_no_pairs(OPS["peer_copy"], on_device("peer_copy", 2), views))
    assert reason.startswith(said)


def test_the_way_through_the_host_needs_no_peer_access() -> None:
    assert why_no_pairs(OPS["peer_copy_staged"], on_device("peer_copy_staged", 2), seeing(access=False)) is None


def test_the_way_of_the_driver_is_taken_only_without_peer_access() -> None:
    copy = on_device("peer_copy_driver", 2)
    assert why_no_pairs(OPS["peer_copy_driver"], copy, seeing(access=False)) is None
    require(why_no_pairs(OPS["peer_copy_driver"], copy, seeing()))


def test_a_gpu_that_is_not_seen_is_not_copied_to(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendError):
        LOCAL["peer_copy"].bind(machine.bound("peer_copy"))

    def full(*_given: object, **_options: object) -> torch.Tensor:
        message = "CUDA out of memory"
        raise RuntimeError(message)

    bound = machine.bound("peer_copy", peer="cuda:1")
    monkeypatch.setattr(torch, "empty_like", full)
    with pytest.raises(RuntimeError, match="memory"):
        LOCAL["peer_copy"].bind(bound)


@pytest.mark.parametrize("op", PEER_OPS)
def test_every_ordered_pair_copies_once_and_pairs_that_play_together_share_no_gpu(op: str) -> None:
    for pairs, most in (("together", 2), ("alone", 1)):
        rounds = rounds_of(on_device(op, 4, pairs=pairs))
        assert sorted(pair for turn in rounds for pair in turn) == sorted(permutations(range(4), 2))
        for turn in rounds:
            ranks = [rank for pair in turn for rank in pair]
            assert len(ranks) == len(set(ranks))
            assert len(turn) <= most


class Elsewhere(WrappingBackend):
    """Copies between buffers of its own, and one element of them wrong where it is ``broken``."""

    def __init__(self, inner: Backend, *, broken: bool) -> None:
        super().__init__(inner)
        self._broken = broken

    def bind(self, bound: Bound) -> Operation:
        inner = self.inner.bind(bound)
        source, target = torch.zeros_like(bound.send), torch.zeros_like(bound.receive)

        def call() -> None:
            inner.call()  # for the time that it takes
            target.copy_(source)
            if self._broken:
                target[5] += 1

        return Operation(call, buffers=(source, target))


def test_what_is_filled_and_checked_are_the_buffers_that_an_operation_says() -> None:
    copy = case("memory_copy", 64, 1)
    (right,) = measure_everywhere(FakeWorld(1), copy, wrap=partial(Elsewhere, broken=False))
    assert isinstance(right, Measurement)
    assert right.check.state == "verified"
    (wrong,) = measure_everywhere(FakeWorld(1), copy, wrap=partial(Elsewhere, broken=True))
    assert isinstance(wrong, Failed)
    assert wrong.cause == "wrong_data"
