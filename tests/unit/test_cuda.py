"""A rank's GPU through torch.cuda, on the simulated machine, which refuses what CUDA refuses and sees races."""

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from simulated.device import State
from simulated.install import seen_by_busbw, simulated
from simulated.machine import EXACT
from simulated.management import Driver, ManagedGpu, managed
from testing.gpu import world_of_one
from testing.narrow import require
from testing.synthetic import case

from busbw.backends.base import Bound, World
from busbw.backends.cuda import CudaDevice, CudaMark, index_of
from busbw.backends.local import LOCAL
from busbw.backends.pytorch import nccl
from busbw.errors import BackendError, LaunchError
from busbw.ops import OPS
from busbw.ops.base import Share
from busbw.system import numa
from busbw.system.device import DeviceConditions

pytestmark = pytest.mark.usefixtures("lines_recorded")

HUNDRED = 100
COPIED, CALLS = 1 << 20, 5


@pytest.fixture(autouse=True)
def state() -> Iterator[State]:
    with simulated(EXACT) as simulation, seen_by_busbw():
        yield simulation


@pytest.fixture
def device() -> CudaDevice:
    return CudaDevice(0)


def test_a_device_knows_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    made = CudaDevice(1)
    assert (made.name, made.cache_bytes, torch.cuda.current_device()) == ("cuda:1", EXACT.l2_bytes, 1)
    assert (require(made.uuid)[:12], made.address) == ("GPU-00000001", "0000:1c:00.0")
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert CudaDevice(0).cache_bytes == 256 << 20, "AMD's has one that torch does not tell"
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: SimpleNamespace())
    silent = CudaDevice(1)
    shared = SimpleNamespace(uuid="58580000-0000-0000-0000-000000000000")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: shared)
    assert CudaDevice(1).uuid is None, "AMD's GPUs without one all have this"
    assert (silent.cache_bytes, silent.uuid, silent.address) == (32 << 20, None, None), "an older torch"


def test_conditions_are_those_of_its_own_gpu(device: CudaDevice) -> None:
    assert device.conditions() is None
    gpus = [
        ManagedGpu(address="0000:01:00.0", uuid="GPU-other"),
        ManagedGpu(address=require(device.address), uuid="", reasons=4),
    ]
    with managed(Driver(gpus)):
        assert CudaDevice(0).conditions() == DeviceConditions(1, 1_980.0, 4)


@pytest.mark.parametrize(("rank", "local_rank", "gpu"), [(3, 1, 1), (3, 0, 0), (6, 3, 1)])
def test_a_rank_takes_the_gpu_of_its_number_on_the_host(rank: int, local_rank: int, gpu: int) -> None:
    assert index_of(World(rank, 8, local_rank, "local", 1.0)) == gpu


def test_all_streams_of_a_gpu_are_waited_for(device: CudaDevice, state: State) -> None:
    device.hold(1)  # calibrates
    before = state.now
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call] # torch's
        device.hold(50_000_000)
    device.synchronise()
    assert state.now - before == pytest.approx(50_000_000, rel=0.01)


@pytest.mark.parametrize("ns", [3_000_000, 6_000_000])
def test_a_hold_is_as_long_as_asked(device: CudaDevice, ns: int) -> None:
    before, after = device.mark(), device.mark()
    device.hold(1)  # the first one calibrates
    before.record()
    device.hold(ns)
    after.record()
    device.synchronise()
    assert after.ns_since(before) == pytest.approx(ns, rel=0.01)


def test_a_flush_writes_twice_the_cache(device: CudaDevice, state: State) -> None:
    device.flush()
    allocated = state.gpus[0].allocated
    assert allocated == 2 * EXACT.l2_bytes
    device.flush()
    assert state.gpus[0].allocated == allocated
    assert bool((device._sweep == 1).all())


def test_a_capture_runs_nothing_and_a_replay_all_of_it(device: CudaDevice) -> None:
    data = torch.zeros(4, device=device.name)
    replay = device.capture([lambda: data.add_(1), lambda: data.mul_(2)])
    assert data.tolist() == [0.0] * 4
    replay()
    assert data.tolist() == [2.0] * 4


def test_after_a_capture_that_broke_off_work_goes_on_and_no_other_is_tried(device: CudaDevice) -> None:
    before = torch.cuda.current_stream()
    with pytest.raises(RuntimeError, match="permitted"):
        device.capture([torch.cuda.synchronize])
    assert torch.cuda.current_stream() == before
    with pytest.raises(BackendError, match="after a failed capture"):
        device.capture([lambda: None])


def test_a_capture_that_breaks_off_without_a_call_that_raises_says_why_too(device: CudaDevice, state: State) -> None:
    with pytest.raises(RuntimeError, match="previous"):
        device.capture([lambda: require(state.capturing).spoil()])
    assert device.uncapturable is not None


@pytest.mark.parametrize("kind", [RuntimeError, BackendError])
def test_a_call_that_raises_and_spoils_no_capture_leaves_room_for_the_next(
    device: CudaDevice, kind: type[Exception]
) -> None:
    def raises() -> None:
        message = "a tensor of another size"
        raise kind(message)

    with pytest.raises(kind, match="another"):
        device.capture([raises])
    data = torch.zeros(1, device=device.name)
    device.capture([lambda: data.add_(1)])()
    assert data.item() == 1


def test_two_calls_run_together_and_later_work_after_both(device: CudaDevice) -> None:
    streams, (a, b) = set(), torch.zeros((2, 4), device=device.name)

    def add(data: torch.Tensor) -> None:
        streams.add(torch.cuda.current_stream())
        data.add_(1)

    for run in (both := device.together(lambda: add(a), lambda: add(b)), device.capture([both])):
        run()
        assert (a + b).tolist() == [2.0] * 4, "a race is an error"
        a.zero_()
        b.zero_()
    assert len(streams) == 3


@pytest.mark.parametrize(
    ("op", "me", "known"),
    [
        ("peer_copy", 0, EXACT.peer_copy(0, 1, COPIED)),
        ("peer_copy_sm", 0, EXACT.peer_copy(0, 1, COPIED, kernel=True)),
        ("peer_one_to_all", 0, EXACT.peer_copy(0, 1, COPIED, sharing=2)),
        ("peer_all_to_one", 0, EXACT.peer_copy(0, 1, COPIED, sharing=2)),
        ("peer_all_to_one", 1, 0),
    ],
)
def test_copies_to_peers_take_what_their_links_and_their_way_allow(op: str, me: int, known: int) -> None:
    gpus, root = 3, (1 if op == "peer_all_to_one" else 0) if OPS[op].rooted else None
    with simulated(replace(EXACT, gpus=gpus)):
        device = CudaDevice(me)
        copy = case(op, COPIED, gpus, backend="nccl", device="cuda", root=root)
        layout = OPS[op].layout(Share(me, gpus, copy.count, root=root or 0))
        send = torch.ones(layout.send_count, device=device.name)
        with torch.cuda.device(2):  # another rank
            _held = torch.zeros(1, device="cuda:1") if op == "peer_all_to_one" else None
        peers = tuple(f"cuda:{index}" for index in range(gpus))
        made = LOCAL[op].bind(Bound(copy, send, torch.zeros_like(send), device, peers=peers, group=(0, 1, 2), me=me))
        assert made.wrong is None or made.wrong() > 0, "nothing was copied yet"
        first, last = CudaMark(), CudaMark()
        device.synchronise()
        device.hold(1_000_000)
        first.record()
        for _ in range(CALLS):
            made.call()
        last.record()
        device.synchronise()
        assert last.ns_since(first) / CALLS == pytest.approx(known, rel=0.01)
        assert known == 0 or require(made.buffers)[1].tolist() == [1.0] * copy.count
        assert made.wrong is None or (made.wrong(), made.wrong()) == (0, 2 * copy.count), "a check spoils what it saw"


def test_work_of_another_gpu_waits_for_this_one_and_this_one_for_it(device: CudaDevice, state: State) -> None:
    """Through the host's memory, because torch itself orders a copy from one GPU to another."""
    here, there = torch.zeros(4, device="cuda:0"), torch.zeros(4, device="cuda:1")
    between = torch.zeros(4, pin_memory=True)
    torch.cuda.synchronize(1)
    copy = device.on_other("cuda:1", lambda: there.copy_(between, non_blocking=True))
    device.hold(1)  # calibrates
    before = state.now
    device.hold(50_000_000)
    for value in (1, 2):
        between.copy_(here.fill_(value), non_blocking=True)
        copy()
    assert state.now - before < 1_000_000, "the host does not wait"
    device.synchronise()
    assert there.tolist() == [2.0] * 4, "a race is an error"


def test_computation_is_captured_once_and_replayed_by_the_hundred(
    device: CudaDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    products: list[object] = []
    multiply = torch.mm
    monkeypatch.setattr(torch, "mm", lambda *given, out: products.append(multiply(*given, out=out)))
    for _ in range(2):
        device.compute(2 * HUNDRED + 3)
        assert len(products) == 1 + HUNDRED + 1 + 3, "each is done once before it is captured"


def test_the_peak_of_a_call_is_that_of_its_tensors(device: CudaDevice) -> None:
    before = torch.cuda.memory_allocated(0)
    peak = device.peak_bytes(lambda: torch.zeros(1 << 18, device=device.name))
    assert peak - before == 1 << 20
    assert torch.cuda.memory_allocated(0) == before


@pytest.mark.parametrize("pinning", ["pinned", "pageable"])
def test_memory_on_a_numa_node_is_pinned_until_it_is_freed(
    device: CudaDevice, state: State, monkeypatch: pytest.MonkeyPatch, pinning: str
) -> None:
    nodes: list[int] = []
    monkeypatch.setattr(numa, "bind", lambda _address, _size, node: nodes.append(node))
    copy = case("host_to_device", 64, 1, backend="nccl", device="cuda", numa_node=1, pinning=pinning)
    target = torch.zeros(16, device=device.name)
    made = LOCAL["host_to_device"].bind(Bound(copy, torch.zeros(16, device=device.name), target, device))
    (source, _) = require(made.buffers)
    assert (nodes, source.is_pinned()) == ([1], pinning == "pinned")
    source.fill_(3)
    made.call()
    device.synchronise()
    assert target.tolist() == [3.0] * 16
    made.free()
    assert not state.pinned
    monkeypatch.undo()  # no kernel has node 1023
    copy = case("host_to_device", 64, 1, backend="nccl", device="cuda", numa_node=1023, pinning=pinning)
    with pytest.raises(BackendError, match="NUMA node 1023"):
        LOCAL["host_to_device"].bind(Bound(copy, target, target, device))


# --- the backend around it -------------------------------------------------------------------------------------


def test_a_pair_is_bound_to_the_name_that_this_process_has_for_the_other_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    copy = case("peer_copy", 64, 2, backend="nccl", device="cuda", pairs="together")
    with world_of_one(local_rank=4) as world:
        backend = nccl.NcclBackend(world)
        assert require(backend.device).name == "cuda:0", "of two GPUs"
        (own,) = backend._views
        assert list(own.names.values()) == ["cuda:0", "cuda:1"]
        (other,) = set(own.names) - {own.gpu}
        view = nccl.View(host=own.host, gpu=other, names=own.names, access=(require(own.gpu),))
        monkeypatch.setattr(backend, "_views", (own, view))
        assert backend.refuse(OPS["peer_copy"], copy) is None
        assert backend.peers_in((0, 1)) == ("cuda:0", "cuda:1")
        send, receive = torch.ones(16, device="cuda"), torch.zeros(16, device="cuda")
        made = backend.bind(Bound(copy, send, receive, group=(0, 1)))
        made.call()
        (_, copied) = require(made.buffers)
        assert copied.device == torch.device("cuda:1")
        assert copied.tolist() == [1.0] * 16
        backend.close()


def test_a_gpu_that_does_not_work_is_told_with_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_index: int) -> None:
        message = "CUDA error: all CUDA-capable devices are busy or unavailable\nCompile with …"
        raise RuntimeError(message)

    monkeypatch.setattr(torch.cuda, "set_device", broken)
    with pytest.raises(LaunchError, match=r"rank 3 .* busy"):
        nccl.NcclBackend(World(3, 4, 3, "local", 1.0))
    assert not dist.is_initialized()
