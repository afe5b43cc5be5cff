"""The latency of a GPU's memory: one thread follows pointers, so that each load has to wait for the one before.

torch has no operation whose loads depend on each other. The kernel is PTX, which the driver translates for any NVIDIA
GPU of compute capability 5.0 or more (cuda.h, ``cuModuleLoadData``: PTX "hand-written" too). NVRTC, Triton or
``torch.cuda._compile_kernel`` (private, since torch 2.8) would add a compiler that may be missing. Checked: ptxas of
CUDA 12.9 and 13.5 assembles it for 5.0 to 12.0; in what nvdisasm shows for 7.5 to 12.0, the address of each load is the
result of the one before, without arithmetic between, and no load is ahead.

Each line of 128 B has the address of the next one, and its own number. The cycle visits all lines in random order.
``.cg`` loads from the L2, not from the L1, which keeps nothing from kernel to kernel. Before each sample an array that
fits into the L2 is read once; for a larger one the L2 is flushed. The time includes misses of the TLB, as any random
access does. To start the kernel takes some µs, less than 1 % of its loads. It has not run on hardware yet.
"""

import ctypes
from functools import cache, partial
from typing import Any, Final

import torch

from busbw.backends.base import ALONE, Bound, Limits, Local, Operation
from busbw.errors import BackendError
from busbw.ops.local import LINE_BYTES, LOADS
from busbw.runs.records import Case

_SEED: Final = 7
_KERNEL: Final = b"follow"
_PTX: Final = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry follow(.param .u64 place, .param .u32 loads)
{
    .reg .u64 %place, %at;
    .reg .u32 %left;
    .reg .pred %more;
    ld.param.u64 %place, [place];
    ld.param.u32 %left, [loads];
    ld.global.u64 %at, [%place];
    st.global.u64 [%place+8], %at;
NEXT:
    ld.global.cg.u64 %at, [%at];
    sub.u32 %left, %left, 1;
    setp.ne.u32 %more, %left, 0;
    @%more bra NEXT;
    st.global.u64 [%place], %at;
    ret;
}
"""
"""place: address of two addresses, that of the line to start from, and after the call that of its last line and of its
first one. loads: at least 1."""


def driver() -> Any:  # noqa: ANN401 - a library has any function
    """The CUDA driver, which torch has loaded. Raises BackendError."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise BackendError(f"memory_latency needs the CUDA driver: {error}") from error


def _check(library: Any, status: int) -> None:  # noqa: ANN401 - as above
    """Raise BackendError with the driver's own words if ``status`` is an error."""
    if status:
        words = ctypes.c_char_p()
        library.cuGetErrorString(status, ctypes.byref(words))
        raise BackendError(f"memory_latency: CUDA driver: {(words.value or b'unknown error').decode()} ({status})")


@cache
def _kernel(device: str) -> tuple[Any, ctypes.c_void_p]:
    """The driver and the kernel, loaded for the current GPU, which is ``device``. Raises BackendError."""
    library, module, function = driver(), ctypes.c_void_p(), ctypes.c_void_p()
    with torch.cuda.device(device):
        _check(library, library.cuModuleLoadData(ctypes.byref(module), _PTX))
        _check(library, library.cuModuleGetFunction(ctypes.byref(function), module, _KERNEL))
    return library, function


def _follow(library: Any, function: ctypes.c_void_p, place: ctypes.c_uint64, loads: ctypes.c_uint32) -> None:  # noqa: ANN401 - as above
    """Start the kernel with one thread on the current stream, as torch's kernels are. Raises BackendError."""
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    given = (ctypes.c_void_p * 2)(ctypes.addressof(place), ctypes.addressof(loads))
    _check(library, library.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, given, None))


def _cycle(lines: torch.Tensor) -> None:
    """Make a random cycle of ``lines``, an int64 tensor of lines × words: the address of the next one, and a number."""
    generator = torch.Generator(lines.device).manual_seed(_SEED)
    order = torch.randperm(len(lines), generator=generator, device=lines.device)
    lines[order, 0] = order.roll(-1).mul_(LINE_BYTES).add_(lines.data_ptr())
    lines[order, 1] = torch.arange(len(lines), device=lines.device)


def _wrong_links(lines: torch.Tensor) -> int:
    """Number of lines that do not lead to the one with the next number: 0 if all of them are one cycle."""
    following = (lines[:, 0] - lines.data_ptr()).div_(LINE_BYTES, rounding_mode="floor").clamp_(0, len(lines) - 1)
    return int((lines[following, 1] != (lines[:, 1] + 1).remainder_(len(lines))).sum())


def _bind(bound: Bound) -> Operation:
    device = bound.device
    if device is None:
        raise BackendError("memory_latency needs a device, but the backend has none")
    size, words = bound.case.size_bytes, LINE_BYTES // torch.int64.itemsize
    lines = torch.full((size // LINE_BYTES, words), -1, dtype=torch.int64, device=device.name)
    _cycle(lines)
    place, total = (torch.zeros(count, dtype=torch.int64, device=device.name) for count in (2, 1))
    place[0] = lines.data_ptr()

    def wrong() -> int:
        """Count links that are wrong, and 1 if the last call did not end ``LOADS`` lines behind its start."""
        last, first = (((place - lines.data_ptr()) // LINE_BYTES).clamp_(0, len(lines) - 1)).tolist()
        moved = int(lines[last, 1] - lines[first, 1])
        missing = int(place[1]) == 0 or (moved - LOADS) % len(lines) != 0
        place[1] = 0  # so that the next call has to write it again
        return _wrong_links(lines) + int(missing)

    read = partial(torch.sum, lines.view(-1), 0, keepdim=True, out=total)
    call = partial(_follow, *_kernel(device.name), ctypes.c_uint64(place.data_ptr()), ctypes.c_uint32(LOADS))
    return Operation(call, wrong=wrong, prepare=read if size <= device.cache_bytes else device.flush)


def _why_not(_case: Case) -> str | None:
    """The driver's names and PTX are NVIDIA's."""
    return None if torch.version.hip is None else "memory_latency has a kernel for NVIDIA's GPUs only, not for ROCm"


OPERATIONS: dict[str, Local] = {
    "memory_latency": Local(
        _bind, Limits(modes=ALONE, caches=("warm",), devices=("cuda",), pre_enqueue=True), _why_not
    ),
}
