"""How close busbw comes to the fastest copy inside a GPU's memory, as ratios within one run. Nothing is asserted.

The others are called in the barest loop: rows of calls between two events of CUDA, handed over while the stream is
held. They take turns with busbw's blocks, so that a clock that falls while the GPU gets warm falls for all of them:
cudaMemcpyAsync called for itself, torch's ``copy_`` and a kernel of torch.

Where there is no GPU it says so and ends well.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from statistics import median

import torch
import torch.distributed as dist

from busbw.backends import BACKENDS
from busbw.backends.base import Backend, World
from busbw.measure.bench import Bench
from busbw.measure.block import measure
from busbw.measure.clock import CommonClock, HostClock
from busbw.runs.plan import Timing
from busbw.runs.records import DTYPE_BYTES, Case, Measurement
from busbw.system.device import Device
from busbw.units import format_rate, format_size

SIZES = (64 << 20, 256 << 20, 1 << 30)
ROUNDS = 15
ROW = 20
"""Calls between two events; busbw chooses its own number."""

HOLD_NS = 2_000_000
TIMEOUT_SECONDS = 60.0
WANTED = 0.98
"""Of the fastest of the others; less is marked OUT."""
_DEVICE_TO_DEVICE = 3
"""cudaMemcpyDeviceToDevice, and hipMemcpyDeviceToDevice."""
TIMING = Timing(
    blocks=1,
    min_samples=10,
    least_samples=10,
    max_samples=20,
    min_seconds=0.0,
    max_seconds=0.5,
    launch_warmup_seconds=0.0,
)


def main() -> None:
    """Compare at each size."""
    missing = BACKENDS["nccl"].missing() or (None if torch.cuda.is_available() else "torch.cuda is not available")
    if missing is not None:
        print(f"# there is no GPU here, so nothing is compared: {missing}")
        return
    with opened() as backend:
        device = backend.device
        if device is None:
            sys.exit("backend nccl drives no device")
        print(
            f"# {torch.cuda.get_device_name()}, torch {torch.__version__}; medians of {ROUNDS} rounds, traffic is "
            f"2 × S; wanted of busbw: {WANTED} (OUT: less)"
        )
        for size_bytes in SIZES:
            report(size_bytes, compared(backend, device, size_bytes))


@contextmanager
def opened() -> Iterator[Backend]:
    """A world of one rank."""
    meeting = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    backend = BACKENDS["nccl"].open(World(0, 1, 0, "local", TIMEOUT_SECONDS, store=("127.0.0.1", meeting.port)))
    try:
        yield backend
    finally:
        backend.close()


def compared(backend: Backend, device: Device, size_bytes: int) -> dict[str, float]:
    """What a copy of ``size_bytes`` takes by each of them, ns."""
    source = torch.rand(size_bytes // DTYPE_BYTES["float32"], device=device.name)
    target = torch.empty_like(source)
    ways: dict[str, Callable[[], float]] = {
        "busbw memory_copy": partial(by_busbw, backend, "memory_copy", size_bytes),
        "busbw stream_copy": partial(by_busbw, backend, "stream_copy", size_bytes),
        "torch copy_": partial(barest, device, partial(target.copy_, source)),
        "torch kernel": partial(barest, device, partial(torch.mul, source, 1.0, out=target)),
    }
    call = by_runtime(source, target, runtime())
    if call is not None:
        ways["cudaMemcpyAsync"] = partial(barest, device, call)
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(ROUNDS + 1):
        for name, way in ways.items():
            ns = way()
            if number:  # the first round warms up
                taken[name].append(ns)
    return {name: median(values) for name, values in taken.items()}


def by_busbw(backend: Backend, op: str, size_bytes: int) -> float:
    """Median of a block, ns a call."""
    clock = HostClock()
    bench = Bench(backend, clock, TIMING, CommonClock(backend, clock, ("here",)), seed=1, timer_ns=50, hosts=("here",))
    case = Case(
        op=op,
        backend="nccl",
        device="cuda",
        dtype="float32",
        redop=None,
        size_bytes=size_bytes,
        ranks=1,
        nodes=1,
        mode="pipelined",
        pre_enqueue=True,
    )
    made = measure(bench, case, (), launch=0, block=0)
    if not isinstance(made, Measurement):
        sys.exit(f"busbw could not measure {op}: {made.error}")
    return median(made.groups[0].slowest_ns) / made.calls


def barest(device: Device, call: Callable[[], object]) -> float:
    """A row of calls between two marks, ns a call."""
    before, after = device.mark(), device.mark()
    device.synchronise()
    device.hold(HOLD_NS)
    before.record()
    for _ in range(ROW):
        call()
    after.record()
    device.synchronise()
    return after.ns_since(before) / ROW


def runtime() -> ctypes.CDLL | None:
    """The runtime library of CUDA or HIP that this process has loaded already; None where none has its call.

    torch's own ``torch.cuda.cudart()`` has no copies. A second copy of the library would have no context of its own to
    share, so only what is loaded counts: symbols of the process first, then the library by its name.
    """
    major = (torch.version.cuda or "").partition(".")[0]
    for name in (None, f"libcudart.so.{major}", "libcudart.so", "libamdhip64.so"):
        try:
            # What torch has loaded, or nothing.
            library = ctypes.CDLL(name, mode=ctypes.DEFAULT_MODE | (0 if name is None else os.RTLD_NOLOAD))
        except OSError:
            continue
        if symbol_of(library) is not None:
            return library
    return None


def symbol_of(library: ctypes.CDLL) -> str | None:
    """What the asynchronous copy is called there."""
    return next((name for name in ("cudaMemcpyAsync", "hipMemcpyAsync") if hasattr(library, name)), None)


def by_runtime(source: torch.Tensor, target: torch.Tensor, library: ctypes.CDLL | None) -> Callable[[], object] | None:
    """A copy by the runtime's own call on torch's stream, checked; None, and why, where it cannot be had."""
    symbol = None if library is None else symbol_of(library)
    if library is None or symbol is None:
        print("# the runtime library is not to be found: cudaMemcpyAsync for itself is left out")
        return None
    copy = getattr(library, symbol)
    copy.restype = ctypes.c_int
    copy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
    size_bytes = source.numel() * source.element_size()
    stream = torch.cuda.current_stream().cuda_stream
    call = partial(copy, target.data_ptr(), source.data_ptr(), size_bytes, _DEVICE_TO_DEVICE, stream)
    code = call()
    torch.cuda.synchronize()
    if code or not torch.equal(source, target):
        sys.exit(f"{symbol} does not copy: it ended with code {code}")
    target.zero_()
    return call


def report(size_bytes: int, ns: dict[str, float]) -> None:
    """The rates, and busbw's best over the best of the others."""
    own = {name: value for name, value in ns.items() if name.startswith("busbw")}
    others = {name: value for name, value in ns.items() if name not in own}
    print(f"\n{format_size(size_bytes)}")
    for name, value in sorted(ns.items(), key=lambda entry: entry[1]):
        print(f"  {name:<30} {format_rate(2 * size_bytes / value * 1e9):>12} of reads and writes together")
    fastest, best = min(others, key=others.__getitem__), min(own, key=own.__getitem__)
    ratio = others[fastest] / own[best]
    mark = " OUT" if ratio < WANTED else ""
    print(f"  {best} reaches {ratio:.3f} of the fastest of the others ({fastest}){mark}")


if __name__ == "__main__":
    main()
