"""What is asked of torch.cuda, and in which order, by a stand-in for it. No GPU is needed, and none is proved right."""

import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from testing.narrow import require
from testing.synthetic import case

from busbw.backends.base import Bound, World
from busbw.backends.cuda import CudaDevice
from busbw.backends.pytorch import nccl
from busbw.errors import BackendError, LaunchError
from busbw.ops import OPS
from busbw.system.device import DeviceConditions
from busbw.system.nvml import Nvml

UUID = "12345678-1234-1234-1234-123456789abc"
GHZ = 1.5
HUNDRED = 100


@dataclass
class Named:
    """What is the same when its name is."""

    name: str


class Gpu:
    """The part of torch.cuda that is used. Everything is done at once; ``asked`` is what was asked, in order.

    Time passes while it spins, at ``GHZ`` cycles a nanosecond, and by 1000 ns with each event that is put.
    """

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.now_ns = 0.0
        self.handed_out: Iterator[int] = itertools.count()
        gpu = self

        class Event:
            def __init__(self, *, enable_timing: bool = False) -> None:
                self.timing = enable_timing
                self.at_ns: float | None = None

            def record(self) -> None:
                gpu.now_ns += 1_000
                self.at_ns = gpu.now_ns
                if not self.timing:
                    gpu.asked.append(("put", gpu.current))

            def query(self) -> bool:
                return self.at_ns is not None

            def elapsed_time(self, end: "Event") -> float:
                assert self.timing
                assert end.timing
                assert self.at_ns is not None
                assert end.at_ns is not None
                return (end.at_ns - self.at_ns) / 1e6

        class Stream(Named):
            """One of 32 that torch hands out in turns."""

            def __init__(self, index: object = 0) -> None:
                super().__init__(f"stream {next(gpu.handed_out) % 32} of {index}")

            def wait_event(self, event: Event) -> None:
                assert event.at_ns is not None
                gpu.asked.append(("waits", self.name))

        class CUDAGraph:
            def replay(self) -> None:
                gpu.asked.append("replay")

        self.event, self.graph_type, self.stream_type = Event, CUDAGraph, Stream
        self.current = "main:0"
        self.default_capture_stream: Named | None = None
        self.spoilt = self.underway = False

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        properties = SimpleNamespace(L2_cache_size=1 << 20, uuid=UUID)
        replaced = {
            "set_device": lambda index: self.asked.append(("set_device", index)),
            "get_device_properties": lambda _index: properties,
            "Event": self.event,
            "CUDAGraph": self.graph_type,
            "graph": self.capture,
            "synchronize": lambda index: self.asked.append(("synchronize", index)),
            "_sleep": self.spin,
            "Stream": self.stream_type,
            "stream": lambda stream: self.switched(stream.name),
            "device": lambda name: self.switched(f"main:{name}"),
            "current_stream": self.current_stream,
            "set_stream": lambda stream: setattr(self, "current", stream.name),
        }
        for name, stand_in in replaced.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)

    def spin(self, cycles: int) -> None:
        self.asked.append(("spin", cycles))
        self.now_ns += cycles / GHZ

    @contextmanager
    def switched(self, name: str) -> Iterator[None]:
        before, self.current = self.current, name
        yield
        self.current = before

    def current_stream(self, index: int | None = None) -> object:
        stream = self.stream_type.__new__(self.stream_type)
        stream.name = self.current if index is None else f"main:{index}"
        return stream

    @contextmanager
    def capture(self, graph: object, *, capture_error_mode: str, stream: Named | None = None) -> Iterator[None]:
        """In torch's own order: what is ``spoilt`` raises where the capture ends, and the rest is left undone."""
        assert isinstance(graph, self.graph_type)
        if self.underway:
            message = "captures_underway.empty() INTERNAL ASSERT FAILED"
            raise RuntimeError(message)
        if stream is None:
            stream = self.default_capture_stream = self.default_capture_stream or self.stream_type()
        self.asked.append(("capture", capture_error_mode))
        before, self.current, self.underway = self.current, stream.name, True
        try:
            yield
        finally:
            if self.spoilt:
                message = "operation failed due to a previous error during capture"
                raise RuntimeError(message)
            self.current, self.underway = before, False
        self.asked.append("captured")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    stand_in = Gpu()
    stand_in.install(monkeypatch)
    return stand_in


@pytest.fixture
def device(gpu: Gpu) -> CudaDevice:
    made = CudaDevice(0)
    assert gpu.asked == [("set_device", 0)]
    gpu.asked.clear()
    made.name = "cpu"  # where its tensors are, as far as this process can have them
    return made


def test_a_device_knows_itself(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    made = CudaDevice(1)
    assert (made.name, made.cache_bytes, made.uuid) == ("cuda:1", 1 << 20, f"GPU-{UUID}")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: SimpleNamespace())
    silent = CudaDevice(1)
    assert (silent.cache_bytes, silent.uuid) == (32 << 20, None)
    assert ("set_device", 1) in gpu.asked


def test_its_place_on_pci_is_told_as_the_kernel_writes_it(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CudaDevice(0).address is None, "an older torch does not tell"
    told = SimpleNamespace(pci_domain_id=2, pci_bus_id=0xC1, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: told)
    assert CudaDevice(0).address == "0002:c1:00.0"
    assert gpu.asked.count(("set_device", 0)) == 2


def test_a_hold_is_calibrated_once_and_then_as_long_as_asked(gpu: Gpu, device: CudaDevice) -> None:
    device.hold(3_000_000)
    device.hold(6_000_000)
    spins = [cycles for name, cycles in (one for one in gpu.asked if isinstance(one, tuple)) if name == "spin"]
    assert spins[-2:] == [pytest.approx(3_000_000 * GHZ, rel=0.01), pytest.approx(6_000_000 * GHZ, rel=0.01)]
    assert len(spins) == 7 + 2


def test_a_flush_writes_twice_the_cache(device: CudaDevice) -> None:
    device.flush()
    swept = require(device._sweep)
    assert swept.numel() * swept.itemsize == 2 << 20
    assert bool((swept == 1).all())
    device.flush()
    assert device._sweep is swept


def test_only_this_thread_may_spoil_a_capture_and_nothing_else_is_under_way(gpu: Gpu, device: CudaDevice) -> None:
    replay = device.capture([lambda: gpu.asked.append("a"), lambda: gpu.asked.append("b")])
    done = ("synchronize", 0)
    assert gpu.asked == [done, ("capture", "thread_local"), "a", "b", "captured", done]
    replay()
    assert gpu.asked[-1] == "replay"


def test_after_a_capture_that_broke_off_work_goes_on_and_no_other_is_tried(gpu: Gpu, device: CudaDevice) -> None:
    def synchronises() -> None:
        gpu.spoilt = True
        message = "operation not permitted when stream is capturing\nfor debugging consider"
        raise RuntimeError(message)

    with pytest.raises(RuntimeError, match="permitted"):
        device.capture([synchronises])
    assert gpu.current == "main:0", "as before it"
    gpu.spoilt = False
    said = (
        "torch cannot capture any more in this process after a failed capture (operation not permitted when stream is"
    )
    with pytest.raises(BackendError, match=re.escape(said)):
        device.capture([lambda: None])


def test_a_capture_that_breaks_off_without_a_call_that_raises_says_why_too(gpu: Gpu, device: CudaDevice) -> None:
    with pytest.raises(RuntimeError, match="previous"):
        device.capture([lambda: setattr(gpu, "spoilt", True)])
    assert gpu.current == "main:0"
    assert device.uncapturable is not None


@pytest.mark.parametrize("kind", [RuntimeError, BackendError])
def test_a_call_that_raises_and_spoils_no_capture_leaves_room_for_the_next(
    gpu: Gpu, device: CudaDevice, kind: type[Exception]
) -> None:
    def raises() -> None:
        message = "a tensor of another size"
        raise kind(message)

    with pytest.raises(kind, match="another"):
        device.capture([raises])
    device.capture([lambda: gpu.asked.append("a")])()
    assert gpu.asked[-1] == "replay"


def test_two_streams_are_two_in_a_capture_too_however_many_torch_has_handed_out(gpu: Gpu, device: CudaDevice) -> None:
    for taken in range(33):
        ran_on: list[str] = []
        both = device.together(lambda: ran_on.append(gpu.current), lambda: ran_on.append(gpu.current))  # noqa: B023
        device.capture([both])
        assert len(set(ran_on)) == 2, taken


def test_work_of_another_gpu_waits_for_this_one_and_this_one_for_it(gpu: Gpu, device: CudaDevice) -> None:
    later = device.on_other("cuda:3", lambda: gpu.asked.append(("work", gpu.current)))
    assert gpu.asked == [("put", "main:0"), ("put", "main:cuda:3")], "an event is the GPU's that had it first"
    gpu.asked.clear()
    later()
    assert gpu.asked == [
        ("put", "main:0"),
        ("waits", "main:cuda:3"),
        ("work", "main:cuda:3"),
        ("put", "main:cuda:3"),
        ("waits", "main:0"),
    ]


def test_a_gpu_of_amd_has_a_cache_that_torch_does_not_tell(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert CudaDevice(0).cache_bytes == 256 << 20
    assert gpu.asked


def test_computation_is_captured_once_and_replayed_by_the_hundred(gpu: Gpu, device: CudaDevice) -> None:
    products: list[torch.Tensor] = []
    multiply = torch.mm

    def counted(left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        products.append(out)
        return multiply(left, right, out=out)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "mm", counted)
        device.compute(2 * HUNDRED + 3)
        assert len(products) == 1 + HUNDRED + 1 + 3, "each is done once before it is captured"
        assert gpu.asked.count("replay") == 3
        device.compute(2 * HUNDRED + 3)
    assert len(products) == 1 + HUNDRED + 1 + 3
    assert gpu.asked.count("replay") == 6


def test_conditions_come_from_the_management_library(device: CudaDevice) -> None:
    assert device.conditions() is None
    told = DeviceConditions(3, 1_980.0, 4)
    library = SimpleNamespace(
        NVML_CLOCK_SM=1,
        NVMLError=OSError,
        nvmlDeviceGetIndex=lambda _handle: 3,
        nvmlDeviceGetClockInfo=lambda _handle, _which: 1_980,
        nvmlDeviceGetCurrentClocksEventReasons=lambda _handle: 4,
    )
    device._nvml = Nvml(library, "handle")  # type: ignore[arg-type] # a module by what it has
    assert device.conditions() == told


# --- the backend around it -------------------------------------------------------------------------------------


class Rank(CudaDevice):
    """Its tensors are on the processor."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.name = "cpu"


@pytest.fixture
def backend(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> Iterator[nccl.NcclBackend]:
    """NCCL's class around Gloo's library, in a world of one."""
    form = dist.init_process_group

    def formed(library: str, **options: object) -> None:
        assert library == "nccl"
        form("gloo", **options)  # type: ignore[arg-type] # passed on as they came

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(dist, "init_process_group", formed)
    monkeypatch.setattr(nccl, "CudaDevice", Rank)
    meeting = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=20))
    opened = nccl.NcclBackend(World(0, 1, 5, "local", 20.0, store=("127.0.0.1", meeting.port)))
    assert ("set_device", 0) in gpu.asked, "a rank that sees one GPU has that one, whatever its number on the host"
    yield opened
    opened.close()


def test_a_pair_is_bound_to_the_name_that_this_process_has_for_the_other_gpu(
    backend: nccl.NcclBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = case("peer_copy", 64, 2, backend="nccl", device="cuda", pairs="together")
    own = backend._views[0]
    assert (own.gpu, own.names, own.access) == (f"GPU-{UUID}", {f"GPU-{UUID}": "cuda:0"}, ())
    assert backend.peer_in((0,)) is None
    other = nccl.View(host=own.host, gpu="GPU-other", names={}, access=())
    monkeypatch.setattr(backend, "_views", (own, other))
    seen = nccl.View(host=own.host, gpu=own.gpu, names={**own.names, "GPU-other": "cpu"}, access=("GPU-other",))
    both = nccl.View(host=own.host, gpu="GPU-other", names=seen.names, access=(f"GPU-{UUID}",))
    monkeypatch.setattr(backend, "_views", (seen, both))
    assert backend.refuse(OPS["peer_copy"], one) is None
    assert backend.peer_in((0, 1)) == "cpu"
    made = backend.bind(Bound(one, torch.ones(16), torch.zeros(16), group=(0, 1)))
    assert made.buffers is not None
    made.call()
    assert made.buffers[1].tolist() == [1.0] * 16


def test_a_gpu_that_does_not_work_is_told_with_its_rank(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_index: int) -> None:
        message = "CUDA error: all CUDA-capable devices are busy or unavailable\nCompile with …"
        raise RuntimeError(message)

    monkeypatch.setattr(torch.cuda, "set_device", broken)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    with pytest.raises(LaunchError, match="busy"):
        nccl.NcclBackend(World(3, 4, 3, "local", 1.0))
    assert gpu.asked == []
