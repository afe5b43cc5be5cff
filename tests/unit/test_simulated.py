"""The simulated GPU: it takes the time that its machine says, refuses what CUDA refuses, and sees races."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import cast

import pytest
import torch
import torch.distributed as dist
from simulated.device import Race, State
from simulated.install import simulated
from simulated.machine import EXACT, Faults, Machine
from simulated.nccl import ALLOCATOR, MemPool, _meet
from torch._C._distributed_c10d import FakeWork

from busbw.backends.pytorch.names import ALL_GATHER, REDUCE_SCATTER

SIZE = 1 << 16
HOLD_CYCLES = 1_000_000


@pytest.fixture(autouse=True)
def state() -> Iterator[State]:
    with simulated(EXACT) as simulation:
        yield simulation


def taken(call: Callable[[], object]) -> float:
    """Time of ``call`` on the device, ns: behind a kernel that spins until the host has submitted everything."""
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call] # torch's
    torch.cuda.synchronize()
    torch.cuda._sleep(HOLD_CYCLES)  # type: ignore[no-untyped-call] # torch's
    first.record()
    call()
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) * 1e6


def vectors(count: int, device: str = "cuda:0") -> list[torch.Tensor]:
    return [torch.ones(SIZE // 4, device=device) for _ in range(count)]


@pytest.mark.parametrize(
    ("call", "known"),
    [
        (lambda a, b, _c: a.copy_(b), EXACT.kernel(0, 2 * SIZE)),
        (lambda a, b, c: torch.add(a, b, out=c), EXACT.kernel(0, 3 * SIZE)),
        (lambda a, *_: a.fill_(1), EXACT.kernel(0, SIZE)),
        (lambda a, *_: a.sum(), EXACT.kernel(0, SIZE + 4)),
        (lambda a, b, _c: torch.mm(a.view(128, 128), b.view(128, 128)), EXACT.kernel(0, 3 * SIZE, 2 * 128**3)),
    ],
)
def test_a_kernel_takes_its_traffic_or_its_arithmetic(call: Callable[..., object], known: int) -> None:
    operands = vectors(3)
    assert taken(lambda: call(*operands)) == pytest.approx(known, abs=1)


def test_copies_take_the_way_that_they_go() -> None:
    (here,), (there,) = vectors(1), vectors(1, "cuda:1")
    fixed, pageable = torch.empty(SIZE // 4, pin_memory=True), torch.empty(SIZE // 4)
    assert taken(lambda: here.copy_(fixed, non_blocking=True)) == EXACT.host_copy(0, SIZE, pinned=True)
    assert taken(lambda: there.copy_(here)) == EXACT.peer_copy(0, 1, SIZE)
    assert taken(lambda: here.copy_(pageable)) >= EXACT.host_copy(0, SIZE, pinned=False)


def test_a_fault_is_seen_where_it_is() -> None:
    broken = Faults(slowed={1: 3.0}, slow_links={(0, 1): 2.0}, corrupted={0: 3}, lost={1: 40})
    with simulated(replace(EXACT, faults=broken)) as simulation:
        machine: Machine = simulation.machine
        assert machine.kernel(1, 1e6) - machine.kernel_ns == pytest.approx(3 * (machine.kernel(0, 1e6) - 1500), abs=2)
        assert machine.peer_copy(0, 1, SIZE) > machine.peer_copy(1, 0, SIZE)
        first, second = vectors(2)
        assert torch.count_nonzero(first.add_(second) != 2).item() == 1
        with pytest.raises(torch.AcceleratorError, match="launch failure"):  # noqa: PT012
            for _ in range(50):
                torch.ones(8, device="cuda:1").add_(1)


def test_time_on_the_host_and_on_the_device_are_apart(state: State) -> None:
    a, b = vectors(2)
    torch.cuda.synchronize()
    before = state.now
    for _ in range(10):
        a.copy_(b)
    assert state.now - before == 10 * EXACT.launch_ns
    torch.cuda._sleep(HOLD_CYCLES)  # type: ignore[no-untyped-call] # torch's
    torch.cuda.synchronize()
    assert state.now - before >= HOLD_CYCLES / EXACT.ghz


def test_a_full_queue_lets_the_host_wait(state: State) -> None:
    a, b = vectors(2)
    torch.cuda._sleep(100 * HOLD_CYCLES)  # type: ignore[no-untyped-call] # torch's
    before = state.now
    for _ in range(EXACT.queue + 10):
        a.copy_(b)
    assert state.now - before > 50 * HOLD_CYCLES / EXACT.ghz


# --- order -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [False, True])
def test_two_streams_that_touch_the_same_bytes_race_unless_an_event_orders_them(ordered: bool) -> None:  # noqa: FBT001
    a, b = vectors(2)
    torch.cuda.synchronize()
    other, event = torch.cuda.Stream(), torch.cuda.Event()  # type: ignore[no-untyped-call] # torch's
    with torch.cuda.stream(other):
        a.copy_(b)
        event.record()
    if ordered:
        torch.cuda.current_stream().wait_event(event)
        a.add_(1)
    else:
        with pytest.raises(Race):
            a.add_(1)


def test_parts_of_a_buffer_do_not_race() -> None:
    (a,) = vectors(1)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call] # torch's
        a[:100].fill_(2)
    a[100:].fill_(3)


@pytest.mark.parametrize("waits", [False, True])
def test_the_host_may_not_read_what_is_still_copied(waits: bool) -> None:  # noqa: FBT001
    (a,) = vectors(1)
    fixed = torch.empty(SIZE // 4, pin_memory=True)
    fixed.copy_(a, non_blocking=True)
    if waits:
        torch.cuda.synchronize()
        assert fixed.sum() == SIZE // 4
    else:
        with pytest.raises(Race):
            fixed.sum()


# --- what CUDA refuses -------------------------------------------------------------------------------------------


def test_an_event_is_read_when_it_has_occurred_and_where_it_was_recorded() -> None:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call] # torch's
    first.record()
    torch.cuda._sleep(HOLD_CYCLES)  # type: ignore[no-untyped-call] # torch's
    last.record()
    with pytest.raises(torch.AcceleratorError, match="not ready"):
        first.elapsed_time(last)
    with pytest.raises(RuntimeError, match="does not match"), torch.cuda.device(1):
        last.record()


def test_tensors_of_two_devices_are_not_added() -> None:
    (a,), (b,) = vectors(1), vectors(1, "cuda:1")
    for other in (b, torch.ones(SIZE // 4)):
        with pytest.raises(RuntimeError, match="same device"):
            a + other


def test_memory_ends_and_comes_back(state: State) -> None:
    with simulated(replace(EXACT, memory_bytes=4 * SIZE)) as small:
        held = vectors(3)
        with pytest.raises(torch.OutOfMemoryError):
            vectors(2)
        held.clear()
        vectors(3)
        assert small.gpus[0].peak <= 4 * SIZE
    assert not state.gpus[0].allocated


def test_memory_that_was_freed_is_no_longer_of_a_pool() -> None:
    """Other memory may have its address later, and would count as registered."""
    pool = MemPool(ALLOCATOR)
    with torch.cuda.use_mem_pool(pool):  # type: ignore[arg-type] # torch's is of CUDA
        held = vectors(2)
    assert len(pool.storages) == 2
    held.pop()
    assert len(pool.storages) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda a: a.sum().item(),
        lambda a: a.cpu(),
        lambda _a: torch.cuda.synchronize(),
        lambda a: a.copy_(torch.empty(SIZE // 4, pin_memory=True)),  # without non_blocking, the host waits
        lambda a: a.view(128, 128) @ a.view(128, 128),  # the first product initialises cuBLAS
    ],
)
def test_a_capture_allows_no_waiting(call: Callable[[torch.Tensor], object]) -> None:
    (a,) = vectors(1)
    with (
        pytest.raises(torch.AcceleratorError),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
        pytest.raises(torch.AcceleratorError, match="capturing"),
    ):
        call(a)


def test_a_capture_depends_on_nothing_outside_of_it() -> None:
    (a,) = vectors(1)
    event, before = torch.cuda.Event(), torch.cuda.current_stream()  # type: ignore[no-untyped-call] # torch's
    event.record()
    with pytest.raises(torch.AcceleratorError), torch.cuda.graph(torch.cuda.CUDAGraph()):  # noqa: PT012
        with pytest.raises(torch.AcceleratorError, match="uncaptured"):
            torch.cuda.current_stream().wait_event(event)
        a.add_(1)
    torch.cuda.set_stream(before)  # where torch's capture leaves off
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        a.add_(1)
        event.record()
    for use in (event.query, event.synchronize, lambda: before.wait_event(event)):
        with pytest.raises(torch.AcceleratorError, match="last recorded in a capturing stream"):
            use()


def test_a_capture_runs_nothing_and_a_replay_takes_the_longest_branch() -> None:
    a, b = vectors(2)
    other = torch.cuda.Stream()  # type: ignore[no-untyped-call] # torch's
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            b.add_(1)
        for _ in range(3):
            a.add_(1)
        torch.cuda.current_stream().wait_stream(other)
    torch.cuda.synchronize()
    assert a[0].item() == 1
    assert taken(graph.replay) == pytest.approx(3 * EXACT.kernel(0, 2 * SIZE), abs=3)
    assert (a[0].item(), b[0].item()) == (4, 2)


def test_a_branch_of_a_capture_must_come_back() -> None:
    a, b = vectors(2)
    other = torch.cuda.Stream()  # type: ignore[no-untyped-call] # torch's
    with pytest.raises(torch.AcceleratorError, match="unjoined"), torch.cuda.graph(torch.cuda.CUDAGraph()):  # noqa: PT012
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            b.add_(1)
        a.add_(1)


# --- autograd and NCCL in a world of one ---------------------------------------------------------------------------


def test_a_backward_pass_stays_on_the_gpu() -> None:
    layer = torch.nn.Linear(8, 8, device="cuda")
    layer(torch.ones(4, 8, device="cuda")).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.device == torch.device("cuda:0")


def test_collectives_run_on_the_streams_of_nccl() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))
    dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    try:
        (a,) = vectors(1)
        before = torch.cuda.current_stream()
        graph = torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local")
        with pytest.raises(torch.AcceleratorError), graph, pytest.raises(torch.AcceleratorError, match="capturing"):
            dist.all_reduce(a)  # the first collective makes the communicator
        torch.cuda.set_stream(before)  # where torch's capture leaves off
        assert taken(lambda: dist.all_reduce(a)) == EXACT.nccl_ns
        work = dist.all_reduce(a, async_op=True)
        with pytest.raises(Race):
            a.add_(1)
        assert work is not None
        work.wait()
        a.add_(1)
        with pytest.raises(RuntimeError, match="cpu"):
            dist.all_reduce(torch.ones(1))
        with pytest.raises(RuntimeError, match="current"), torch.cuda.device(1):
            dist.all_reduce(a)
        with pytest.raises(ValueError, match="contiguous"):
            dist.all_reduce(a[::2])
        ALL_GATHER(a, a)
        REDUCE_SCATTER(a, a)
        for gathers in (ALL_GATHER, REDUCE_SCATTER, dist.all_to_all_single):
            with pytest.raises(RuntimeError, match="overlap"):
                gathers(a[1:], a[:-1])
        with pytest.raises(RuntimeError, match="overlap"):
            dist.all_to_all_single(a, a)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("other", [5, 6])
def test_all_ranks_of_a_group_make_the_same_call(other: int) -> None:
    class Group:
        """A group whose other rank makes the call with the number ``other``."""

        def size(self) -> int:
            return 2

        def allgather(self, into: list[list[torch.Tensor]], _own: list[torch.Tensor]) -> dist.Work:
            for rank, (slot, call) in enumerate(zip(into[0], (5, other), strict=True)):
                slot.copy_(torch.tensor([7 + rank, rank, call]))
            return FakeWork()

    group = cast("dist.ProcessGroup", Group())
    if other == 5:
        assert _meet(group, 7, 0, 5) == ([7, 8], (0, 1))
    else:
        with pytest.raises(RuntimeError, match="different"):
            _meet(group, 7, 0, 5)
