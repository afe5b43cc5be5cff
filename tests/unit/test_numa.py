"""Memory on a NUMA node: asked for in a plan, carried by the case, put there by the kernel's call, refused in words."""

import ctypes
import errno
import mmap
import os
import platform
from pathlib import Path
from typing import cast

import pytest
import torch
from simulated.install import simulated
from simulated.machine import EXACT, FIRST_BUS
from testing.fakes import FakeWorld
from testing.gpu import world_of_one
from testing.narrow import require
from testing.synthetic import case, with_changes

from busbw.backends import BACKENDS
from busbw.backends.base import Bound, Call
from busbw.backends.local import LOCAL, kernels, memory
from busbw.errors import BackendError, UsageError
from busbw.measure.unsupported import Place, skip_reason
from busbw.ops.settings import host_settings
from busbw.runs import cases
from busbw.runs.facts import UNKNOWN_HOST, HostFacts
from busbw.runs.plan import HostKeys, Plan, Sweep
from busbw.runs.records import Case
from busbw.system import environment, numa
from busbw.system.device import Device

BIND, DEFAULT = 2, 0
MOVE_ALL_OF_THEM = 3
compiled = pytest.mark.skipif(kernels.missing() is not None, reason=str(kernels.missing()))


class Kernel:
    """The system call, written down: number, address, length, policy, nodes, flags."""

    def __init__(self, answer: int = 0) -> None:
        self.answer = answer
        self.calls: list[tuple[int, int, int, int, set[int], int]] = []

    def __call__(self, number: int, *arguments: object) -> int:
        address, length, policy, mask, most, flags = arguments
        nodes = set()
        if isinstance(mask, bytes):
            assert isinstance(most, ctypes.c_ulong)
            assert most.value == 8 * len(mask) + 1, "the kernel takes off one"
            nodes = {at for at in range(8 * len(mask)) if mask[at // 8] >> at % 8 & 1}
        values = [argument.value for argument in (address, length, policy, flags) if hasattr(argument, "value")]
        self.calls.append((number, values[0] or 0, values[1], values[2], nodes, values[3]))
        return self.answer


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    fake = Kernel()
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(numa, "_kernel", fake)
    return fake


@pytest.mark.parametrize(
    ("cores", "bound", "wanted"),
    [("0-3", "", {1, 2, 3}), ("0-3", "0", None), ("8-9", "", None), ("", "", None), ("all", "", None)],
)
def test_a_rank_stays_on_those_of_its_cores_that_are_near_its_gpu(
    cores: str, bound: str, wanted: set[int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bus/pci/devices/0000:1b:00.0").mkdir(parents=True)
    (tmp_path / "bus/pci/devices/0000:1b:00.0/local_cpulist").write_text(f"{cores}\n")
    chosen: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {1, 2, 3, 4, 5})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _pid, cores: chosen.append(cores))
    monkeypatch.setenv(numa.VARIABLE, bound)
    for address in ("0000:1b:00.0", "0000:43:00.0", None):
        numa.stay_near(address, tmp_path)
    assert chosen == ([] if wanted is None else [wanted])


def test_a_rank_over_nccl_stays_near_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses: list[str | None] = []
    monkeypatch.setattr(numa, "stay_near", addresses.append)
    with simulated(EXACT), world_of_one() as world:
        BACKENDS["nccl"].open(world).close()
    assert addresses == [f"0000:{FIRST_BUS:02x}:00.0"]


# --- the call ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("node", [0, 1, 63, 64, 1023])
def test_whole_pages_are_bound_to_one_node(kernel: Kernel, node: int) -> None:
    numa.bind(10 * mmap.PAGESIZE + 8, mmap.PAGESIZE, node)
    ((number, address, length, policy, nodes, flags),) = kernel.calls
    assert (number, address, length) == (237, 10 * mmap.PAGESIZE, 2 * mmap.PAGESIZE)
    assert (policy, nodes, flags) == (BIND, {node}, MOVE_ALL_OF_THEM)


def test_a_release_lets_pages_be_touched_first_again(kernel: Kernel) -> None:
    numa.release(0, 5)
    assert kernel.calls == [(237, 0, mmap.PAGESIZE, DEFAULT, set(), 0)]


def resident(address: int, length: int) -> int:
    """How many of these pages the system keeps for this process."""
    kept = (ctypes.c_ubyte * (length // mmap.PAGESIZE))()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(length), kept) == 0
    return sum(page & 1 for page in kept)


linux = pytest.mark.skipif(platform.system() != "Linux", reason="mincore is of Linux")


@linux
def test_a_release_gives_the_whole_pages_inside_back() -> None:
    """Reset policies move no page: an allocator would hand those on the node to the next buffer."""
    region = mmap.mmap(-1, 8 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    array = torch.frombuffer(region, dtype=torch.uint8).fill_(7)
    assert resident(array.data_ptr(), len(array)) == 8
    numa.release(array.data_ptr() + 8, 6 * mmap.PAGESIZE)
    assert resident(array.data_ptr(), len(array)) == 3, "a neighbour's bytes stay"
    kept = array.view(8, -1)
    assert bool((kept[0] == 7).all())
    assert bool((kept[6:] == 7).all())


@linux
@compiled
@pytest.mark.parametrize("kib", [256, 4096])
@pytest.mark.parametrize("threads", [None, 2])
def test_the_next_buffer_finds_no_page_of_the_last_ones_node(
    monkeypatch: pytest.MonkeyPatch, kib: int, threads: int | None
) -> None:
    monkeypatch.setattr(numa, "bind", lambda *_: None)
    bound = buffers(case("memory_copy", kib << 10, 1, dtype="float64", threads=threads, numa_node=0), 1, 1)
    operation = LOCAL["memory_copy"].bind(bound)
    if operation.prepare is not None:
        operation.prepare()
    assert operation.call() == 0
    operation.free()
    for buffer in (bound.send, bound.receive):
        first = -(-buffer.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        inside = (buffer.data_ptr() + (kib << 10)) // mmap.PAGESIZE * mmap.PAGESIZE - first
        assert resident(first, inside) == 0


def test_another_processor_is_refused_in_words(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "s390x")
    with pytest.raises(BackendError, match="s390x"):
        numa.bind(0, 64, 0)
    numa.release(0, 64)
    assert kernel.calls == []


def test_pages_of_this_machine_are_put_on_its_first_node() -> None:
    region = mmap.mmap(-1, 8 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    array = torch.frombuffer(region, dtype=torch.uint8).fill_(7)
    try:
        numa.bind(array.data_ptr(), len(array), 0)
    except BackendError as error:
        pytest.skip(f"the kernel does not: {error}")
    assert bool((array == 7).all()), "pages that move keep what is in them"
    numa.release(array.data_ptr(), len(array))
    assert resident(array.data_ptr(), len(array)) == 0
    with pytest.raises(BackendError, match="1000"):
        numa.bind(array.data_ptr(), len(array), 1000)


# --- as a plan says it -------------------------------------------------------------------------------------------


def test_nodes_are_for_what_is_in_memory_of_the_host() -> None:
    sweep = Sweep(ops=("stream_triad", "host_to_device", "all_reduce"), sizes="1KiB", host=HostKeys(numa_nodes=(0, 1)))
    expanded = cases.expand(Plan(sweep=(sweep,)), 2, 1, "cuda").cases
    by_op = {
        op: [
            (host_settings(case.settings).pinning, host_settings(case.settings).numa_node)
            for case in expanded
            if case.op == op
        ]
        for op in sweep.ops
    }
    assert by_op["stream_triad"] == [(None, 0), (None, 1)]
    assert by_op["host_to_device"] == [("pinned", 0), ("pinned", 1), ("pageable", 0), ("pageable", 1)]
    assert by_op["all_reduce"] == [(None, None)]


def test_a_node_that_cannot_be_is_refused_with_the_key() -> None:
    with pytest.raises(UsageError, match="key 'numa_nodes': NUMA node -1 is unknown"):
        Sweep(ops=("stream_triad",), host=HostKeys(numa_nodes=(-1,)))
    with pytest.raises(UsageError, match="key 'numa_nodes': the list of NUMA nodes is empty; known: 0 to 1023"):
        Sweep(ops=("stream_triad",), host=HostKeys(numa_nodes=()))


# --- where it cannot be ------------------------------------------------------------------------------------------


def why_not(case: Case, *nodes: int) -> str | None:
    place = Place(oversubscribed=False, comparable=True, numa_nodes=frozenset(nodes))
    return skip_reason(case, FakeWorld(1).backends[0], place)


def test_a_host_with_one_node_has_no_choice() -> None:
    copy = case("memory_copy", 4096, 1, numa_node=0)
    assert why_not(copy, 0) == "no NUMA node can be chosen: a host has only one, or its system reports none"
    assert why_not(copy) == why_not(copy, 0)
    assert why_not(with_changes(copy, numa_node=2), 0, 1) == "not every host has NUMA node 2; all have 0, 1"
    assert "NUMA" not in str(why_not(with_changes(copy, numa_node=1), 0, 1))
    assert "NUMA" not in str(why_not(with_changes(copy, numa_node=None)))
    assert "--numa-node" in str(why_not(with_changes(copy, device="cuda"), 0, 1))
    assert "--threads" in str(why_not(with_changes(copy, device="cuda", numa_node=None, threads=1), 0, 1))


def test_nodes_are_those_of_every_host() -> None:
    split, whole = HostFacts(numa_nodes={"0": "0-3", "1": "4-7"}), HostFacts(numa_nodes={"0": "0-7"})
    assert environment.common_numa_nodes([split, whole]) == {0}
    assert environment.common_numa_nodes([split, UNKNOWN_HOST]) == frozenset()


# --- kernels and copies ------------------------------------------------------------------------------------------


def buffers(case: Case, sends: int, receives: int) -> Bound:
    send = torch.ones(sends * case.count, dtype=torch.float64)
    return Bound(case, send, torch.zeros(receives * case.count, dtype=torch.float64), None)


@compiled
@pytest.mark.parametrize(
    ("op", "sends", "receives"),
    [
        ("memory_copy", 1, 1),
        ("stream_triad", 2, 1),
        ("memory_read", 1, 0),
        ("memory_write", 0, 1),
        ("memory_touch", 0, 0),
    ],
)
@pytest.mark.parametrize("threads", [None, 2])
def test_every_array_of_a_kernel_is_put_on_the_node_and_taken_off(
    kernel: Kernel, op: str, sends: int, receives: int, threads: int | None
) -> None:
    planned = case(op, 64 * mmap.PAGESIZE, 1, dtype="float64", threads=threads, numa_node=1)
    bound = buffers(planned, sends, receives)
    operation = LOCAL[op].bind(bound)
    put = kernel.calls
    assert put
    assert all((policy, nodes) == (BIND, {1}) for _, _, _, policy, nodes, _ in put)
    for buffer in (bound.send, bound.receive):
        if len(buffer):
            first, last = buffer.data_ptr(), buffer.data_ptr() + len(buffer) * 8
            assert min(at for _, at, *_ in put if at + mmap.PAGESIZE > first) <= first
            assert any(at < last <= at + length for _, at, length, *_ in put)
    kernel.calls = []
    if operation.prepare is not None:
        operation.prepare()
    assert operation.call() == 0
    operation.free()
    assert sorted(entry[1:3] for entry in kernel.calls) == sorted(entry[1:3] for entry in put)
    assert all(policy == DEFAULT for _, _, _, policy, _, _ in kernel.calls)


def policies(kernel: Kernel, policy: int) -> list[tuple[int, int]]:
    return sorted(entry[1:3] for entry in kernel.calls if entry[3] == policy)


@compiled
def test_what_was_put_there_is_taken_off_when_the_next_array_cannot_be(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    bind, answers = numa.bind, iter((0, errno.EIO))

    def second_fails(address: int, length: int, node: int) -> None:
        kernel.answer = next(answers)
        bind(address, length, node)

    monkeypatch.setattr(numa, "bind", second_fails)
    copy = case("memory_copy", 64 * mmap.PAGESIZE, 1, dtype="float64", numa_node=1)
    with pytest.raises(BackendError):
        LOCAL["memory_copy"].bind(buffers(copy, 1, 1))
    assert len(policies(kernel, BIND)) == 2
    # The second as well: the kernel sets the policy before it finds that a page does not move.
    assert policies(kernel, DEFAULT) == policies(kernel, BIND)


@compiled
def test_what_was_put_there_is_taken_off_when_no_team_can_be_had(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_team(*_: object) -> None:
        message = "no thread can be started"
        raise BackendError(message)

    monkeypatch.setattr(memory, "team_of", no_team)
    copy = case("memory_copy", 64 * mmap.PAGESIZE, 1, dtype="float64", threads=2, numa_node=1)
    with pytest.raises(BackendError):
        LOCAL["memory_copy"].bind(buffers(copy, 1, 1))
    assert policies(kernel, DEFAULT) == policies(kernel, BIND) != []


@compiled
def test_without_a_node_nobody_asks_the_kernel(kernel: Kernel) -> None:
    LOCAL["memory_copy"].bind(buffers(case("memory_copy", 4096, 1, dtype="float64"), 1, 1)).free()
    assert kernel.calls == []


class Cudart:
    """Pins pages in name only."""

    def __init__(self) -> None:
        self.pinned: list[int] = []
        self.unpins = True

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802 - the library's name
        assert (size, flags) == (4096, 0)
        self.pinned.append(address)
        return 0

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        self.pinned.remove(address)
        return 0 if self.unpins else 1


def check_error(code: int) -> None:
    if code:
        message = f"CUDA error: {code}"
        raise RuntimeError(message)


@pytest.fixture
def cudart(monkeypatch: pytest.MonkeyPatch) -> Cudart:
    fake = Cudart()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: fake)
    monkeypatch.setattr(torch.cuda, "check_error", check_error)
    return fake


class Together:
    """Does one copy after the other; nothing else of a device is asked for."""

    def together(self, *calls: Call) -> Call:
        return lambda: [call() for call in calls]


def both_ways(device: Device | None) -> Bound:
    copies = case(
        "host_and_device", 4096, 1, dtype="float64", pinning="pinned", numa_node=1, device="cuda", backend="nccl"
    )
    on_gpu = torch.zeros(512, dtype=torch.float64)
    return Bound(copies, on_gpu, on_gpu.clone(), device)


@pytest.mark.usefixtures("kernel")
def test_a_pinned_buffer_is_unpinned_when_the_operation_cannot_be_made(cudart: Cudart) -> None:
    with pytest.raises(BackendError):
        LOCAL["host_and_device"].bind(both_ways(None))
    assert cudart.pinned == []


@pytest.mark.usefixtures("kernel")
def test_every_buffer_is_unpinned_though_the_first_raises(cudart: Cudart) -> None:
    operation = LOCAL["host_and_device"].bind(both_ways(cast("Device", Together())))
    assert len(cudart.pinned) == 2
    cudart.unpins = False
    with pytest.raises(RuntimeError, match="CUDA"):
        operation.free()
    assert cudart.pinned == []


@pytest.mark.parametrize("op", ["host_to_device", "device_to_host"])
@pytest.mark.parametrize("pinning", ["pinned", "pageable"])
def test_the_hosts_side_of_a_copy_lies_on_the_node(kernel: Kernel, cudart: Cudart, op: str, pinning: str) -> None:
    copy = case(op, 4096, 1, dtype="float64", pinning=pinning, numa_node=1, device="cuda", backend="nccl")
    on_gpu = torch.full((512,), 3.0, dtype=torch.float64)
    operation = LOCAL[op].bind(Bound(copy, on_gpu, torch.zeros_like(on_gpu), None))
    source, target = require(operation.buffers)
    mine = source if op == "host_to_device" else target
    ((_, address, _, policy, nodes, _),) = kernel.calls
    assert (address, policy, nodes) == (mine.data_ptr(), BIND, {1})
    assert cudart.pinned == ([mine.data_ptr()] if pinning == "pinned" else [])
    source.fill_(5.0)
    operation.call()
    assert bool((target == 5.0).all())
    operation.free()
    assert cudart.pinned == []


def test_memory_that_cannot_be_had_there_is_said(kernel: Kernel) -> None:
    kernel.answer = errno.EPERM
    copy = case(
        "host_to_device", 4096, 1, dtype="float64", pinning="pageable", numa_node=1, device="cuda", backend="nccl"
    )
    on_gpu = torch.zeros(512, dtype=torch.float64)
    with pytest.raises(BackendError, match="permitted"):
        LOCAL["host_to_device"].bind(Bound(copy, on_gpu, on_gpu.clone(), None))
