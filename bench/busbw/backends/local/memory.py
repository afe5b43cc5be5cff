"""Memory kernels: compiled, in host memory, by one thread or a team; or through torch on the device of the buffers.

The first touch of pages is a separate kind: its calls make the operating system allocate and clear pages.
"""

import ctypes
import mmap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from busbw.backends.base import ALONE, Bound, Call, Limits, Local, Operation, in_order
from busbw.backends.compiled_loop import Compiled, Native
from busbw.backends.local import kernels
from busbw.backends.local.kernels import LINE_BYTES
from busbw.backends.local.threads import Words, lines, pieces, shares, team_of
from busbw.errors import BackendError
from busbw.ops.local import SCALAR
from busbw.ops.settings import HostSettings, host_settings
from busbw.runs.records import DTYPE_BYTES, Case
from busbw.system import numa

_KERNEL_DTYPES = ("float32", "float64")
_SCRIBBLE = -1.0
_CHECKED_AT_ONCE = 1 << 18
"""Elements checked in one pass, so that temporaries stay in the caches. For a whole array, the temporaries would take
twice its memory, and the check ten times as long."""


# --- binding a kernel ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Arrays:
    """Arrays of a kernel.

    out, left, right: addresses of the written array and of two read arrays (0: none).
    count, itemsize: elements, and bytes of one.
    results: where each thread stores its result (None: the threads divide the written array).
    """

    out: int
    left: int
    right: int
    count: int
    itemsize: int
    results: Words | None = None

    def divided(self, threads: int, unit_bytes: int = LINE_BYTES) -> Words:
        """One piece per thread, aligned to ``unit_bytes``."""
        slices = []
        for number, (start, count) in enumerate(shares(self.count, threads, max(1, unit_bytes // self.itemsize))):
            out, left, right = (
                place + start * self.itemsize if place else 0 for place in (self.out, self.left, self.right)
            )
            if self.results is not None:
                out = self.results.ctypes.data + number * LINE_BYTES
            slices.append((out, left, right, count))
        return pieces(slices)

    def each(self) -> Iterator["_Arrays"]:
        """Each divided array separately, as written bytes."""
        for place in (0 if self.results is not None else self.out, self.left, self.right):
            if place:
                yield _Arrays(place, 0, 0, self.count * self.itemsize, 1)


def _bound(
    library: Compiled,
    bound: Bound,
    kernel: int,
    arrays: _Arrays,
    *,
    wrong: Callable[[], int] | None,
    keeps: tuple[object, ...],
    before: Call | None = None,
    unit_bytes: int = LINE_BYTES,
) -> Operation:
    """Bind ``kernel`` over ``arrays``, run by the calling thread or by a team that is awake when a sample starts.

    before: untimed work before each sample (None: nothing).
    """
    settings = host_settings(bound.case.settings)
    threads, node = settings.threads, settings.numa_node
    with ExitStack() as held:
        if node is not None:
            # It then no longer matters which thread touches the pages first.
            for array in arrays.each():
                held.callback(numa.release, array.out, array.count)
                numa.bind(array.out, array.count, node)
        team = None if threads is None else team_of(library, threads, bound.local_rank * threads)
        work = arrays.divided(threads or 1, unit_bytes)
        step, prepare = (kernel, *map(int, work[:4])), before
        if team is not None:
            held.callback(team.end)
            if before is None:
                for buffer in (bound.send, bound.receive):
                    # Each slice is then touched first by the thread that works on it, so it is in that thread's NUMA
                    # node.
                    numa.give_pages_back(buffer.data_ptr(), len(buffer) * buffer.itemsize)
                for array in arrays.each():
                    team.do(library.of("place"), array.divided(threads or 1, unit_bytes))
            step = team.step(kernel, work)
            wake = partial(team.do, library.of("nothing"), work)
            prepare = wake if before is None else in_order(before, wake)
        function, *arguments = step
        call = partial(ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * len(arguments))(function), *arguments)
        native = Native(
            (step,),
            lambda code: BackendError(f"a memory kernel returned code {code} instead of 0"),
            (library, work, team, *keeps),
        )
        return Operation(call, native=native, free=held.pop_all().close, wrong=wrong, prepare=prepare)


# --- the kernels on the host -----------------------------------------------------------------------------------


_EXPECTED: dict[str, Callable[..., torch.Tensor | float]] = {
    "stream_scale": lambda first: SCALAR * first,
    "stream_add": lambda first, other: first + other,
    "stream_triad": lambda first, other: first + SCALAR * other,
    "memory_write": lambda: SCALAR,
}
"""Expected content of the written array, computed from the read arrays, where the layout does not define it."""


def _wrong(expected: Callable[..., torch.Tensor | float], bound: Bound) -> int:
    """Number of elements of the written array that differ from ``expected``."""
    count, wrong = len(bound.receive), 0
    read = [bound.send[first : first + count] for first in range(0, len(bound.send), count)]
    for start in range(0, count, _CHECKED_AT_ONCE):
        piece = slice(start, start + _CHECKED_AT_ONCE)
        wrong += int(torch.count_nonzero(bound.receive[piece] != expected(*(source[piece] for source in read))))
    return wrong


def _compiled() -> Compiled:
    library = kernels.kernels()
    if library.missing is not None:
        raise BackendError(library.missing)
    return library


def _bind(bound: Bound) -> Operation:
    case = bound.case
    expected = _EXPECTED.get(case.op)
    wrong = None if expected is None else partial(_wrong, expected, bound)
    in_bytes = case.op == "memory_copy"  # memcpy of the C library, or torch's copy without a compiler
    if bound.device is not None or (in_bytes and kernels.missing() is not None):
        return Operation(_BY_TORCH[case.op](bound), wrong=wrong)
    library = _compiled()
    kernel = library.of(case.op, None if in_bytes else case.dtype)
    count, itemsize = (case.size_bytes, 1) if in_bytes else (case.count, DTYPE_BYTES[case.dtype or "uint8"])
    left = bound.send.data_ptr() if len(bound.send) else 0
    right = left + case.count * itemsize if len(bound.send) > case.count else 0
    arrays = _Arrays(bound.receive.data_ptr(), left, right, count, itemsize)
    return _bound(library, bound, kernel, arrays, wrong=wrong, keeps=(bound,))


def _read(bound: Bound) -> Operation:
    bits = bound.send.view(torch.int32 if bound.send.itemsize == DTYPE_BYTES["int32"] else torch.int64)
    if bound.device is not None:
        # With another dtype than that of the bits, torch would first convert all of them into a new array.
        total = torch.zeros((), dtype=bits.dtype, device=bits.device)
        return Operation(partial(torch.sum, bits, 0, out=total), wrong=partial(_wrong_sum, bits, total))
    library = _compiled()
    sums = lines(host_settings(bound.case.settings).threads or 1)
    arrays = _Arrays(0, bound.send.data_ptr(), 0, bound.case.count, bound.send.itemsize, sums)
    wrong = partial(_wrong_sum, bits, torch.from_numpy(sums)[:: LINE_BYTES // sums.itemsize])
    return _bound(library, bound, library.of("memory_read", bound.case.dtype), arrays, wrong=wrong, keeps=(bound, sums))


def _wrong_sum(bits: torch.Tensor, sums: torch.Tensor) -> int:
    """1 if the partial sums in ``sums`` do not add up to the sum of ``bits`` (modulo their width), else 0.

    ``sums`` is overwritten, so that the next call must compute it again.
    """
    width = 8 * bits.itemsize
    unlike = (int(sums.sum(dtype=bits.dtype)) - int(bits.sum(dtype=bits.dtype))) % (1 << width)
    sums.fill_(-1)
    return 1 if unlike else 0


def _touch(bound: Bound) -> Operation:
    library = _compiled()
    itemsize, count = DTYPE_BYTES[bound.case.dtype or "uint8"], bound.case.count
    try:
        region = mmap.mmap(-1, bound.case.size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError) as error:
        raise BackendError(f"cannot allocate {bound.case.size_bytes} B of fresh memory: {error}") from error
    array = np.frombuffer(region, dtype=bound.case.dtype)
    array.fill(_SCRIBBLE)

    def give_pages_back() -> None:
        region.madvise(mmap.MADV_DONTNEED)

    def wrong() -> int:
        """Count wrong elements: a fresh page has the scalar in its first element and zeros instead of old data."""
        expected = np.zeros(min(count, _CHECKED_AT_ONCE), dtype=array.dtype)  # whole pages, except at the end
        expected[:: mmap.PAGESIZE // itemsize] = SCALAR
        pieces = (array[start : start + len(expected)] for start in range(0, count, len(expected)))
        unlike = sum(int(np.count_nonzero(piece != expected[: len(piece)])) for piece in pieces)
        array.fill(_SCRIBBLE)
        return unlike

    arrays = _Arrays(array.ctypes.data, 0, 0, bound.case.size_bytes, 1)
    kernel = library.of("memory_touch", bound.case.dtype)
    return _bound(
        library, bound, kernel, arrays, wrong=wrong, keeps=(array,), before=give_pages_back, unit_bytes=mmap.PAGESIZE
    )


# --- on a device, and without a compiler -----------------------------------------------------------------------


_BY_TORCH: dict[str, Callable[[Bound], Call]] = {
    "memory_copy": lambda bound: partial(bound.receive.copy_, bound.send),
    # A multiplication by 1, to run a kernel: torch's copy on a GPU uses the copy path, which is memory_copy.
    "stream_copy": lambda bound: partial(torch.mul, bound.send, 1.0, out=bound.receive),
    "stream_scale": lambda bound: partial(torch.mul, bound.send, SCALAR, out=bound.receive),
    "stream_add": lambda bound: partial(torch.add, *bound.send.chunk(2), out=bound.receive),
    "stream_triad": lambda bound: partial(torch.add, *bound.send.chunk(2), alpha=SCALAR, out=bound.receive),
    "memory_write": lambda bound: partial(bound.receive.fill_, SCALAR),
}


# --- refusals --------------------------------------------------------------------------------------------------


def _why_not(case: Case) -> str | None:
    compiled = case.op != "memory_copy" or host_settings(case.settings) != HostSettings()
    return kernels.missing() if compiled and case.device == "cpu" else None


_LIMITS = Limits(modes=ALONE, dtypes=_KERNEL_DTYPES, pre_enqueue=True)
_FRESH = Limits(  # of several calls only the first would find fresh pages, which are in no cache
    modes=("isolated", "barriers"), caches=("warm", "flushed"), dtypes=_KERNEL_DTYPES, devices=("cpu",)
)
OPERATIONS: dict[str, Local] = {
    "memory_copy": Local(_bind, Limits(modes=ALONE, pre_enqueue=True), _why_not),
    "stream_copy": Local(_bind, _LIMITS, _why_not),
    "stream_scale": Local(_bind, _LIMITS, _why_not),
    "stream_add": Local(_bind, _LIMITS, _why_not),
    "stream_triad": Local(_bind, _LIMITS, _why_not),
    "memory_read": Local(_read, _LIMITS, _why_not),
    "memory_write": Local(_bind, _LIMITS, _why_not),
    "memory_touch": Local(_touch, _FRESH, _why_not),
}
