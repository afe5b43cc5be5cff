"""Kernels in memory: of the host, compiled, by one thread or a team of them; or of the device that the buffers are on.

The first touch of pages is apart: there the call is what makes the kernel of the system find a page and clear it.
"""

import ctypes
import mmap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from busbw.backends.base import Call, Operation
from busbw.backends.compiled_loop import Compiled, Native
from busbw.backends.local import kernels
from busbw.backends.local.base import Bound, Local
from busbw.backends.local.kernels import LINE_BYTES
from busbw.backends.local.threads import Lease, Words, lines, pieces, shares
from busbw.errors import BackendError
from busbw.ops.base import first_reason
from busbw.ops.copies import SCALAR
from busbw.runs.records import DTYPE_BYTES, Case
from busbw.system import numa

_KERNEL_DTYPES = ("float32", "float64")
_SCRIBBLE = -1.0
_CHECKED_AT_ONCE = 1 << 18
"""Elements that are checked in one go: what is computed for it stays in the caches. For a whole array it would be as
much fresh memory again, twice over, and take ten times as long."""


# --- what a kernel is to do ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Arrays:
    """Addresses of the array that is written and of two that are read (0: there is none), their elements and how many
    bytes one has, and where every thread leaves what it found (None: the array that is written is divided as well).
    """

    out: int
    left: int
    right: int
    count: int
    itemsize: int
    found: Words | None = None

    def divided(self, threads: int, unit_bytes: int = LINE_BYTES) -> Words:
        """A piece for each of ``threads``, which begin at multiples of ``unit_bytes``."""
        slices = []
        for number, (start, count) in enumerate(shares(self.count, threads, max(1, unit_bytes // self.itemsize))):
            out, left, right = (
                place + start * self.itemsize if place else 0 for place in (self.out, self.left, self.right)
            )
            if self.found is not None:
                out = self.found.ctypes.data + number * LINE_BYTES
            slices.append((out, left, right, count))
        return pieces(slices)

    def each(self) -> Iterator["_Arrays"]:
        """Every array that is divided, on its own, as bytes that are written."""
        for place in (0 if self.found is not None else self.out, self.left, self.right):
            if place:
                yield _Arrays(place, 0, 0, self.count * self.itemsize, 1)


def _called(step: tuple[int, ...]) -> Call:
    """A step of the compiled loop, called by Python."""
    function = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * (len(step) - 1))(step[0])
    return partial(function, *step[1:])


def _never_fails(code: int) -> Exception:
    return BackendError(f"a kernel in memory ended with code {code}, which none of them does")


def _bound(
    made: Compiled,
    bound: Bound,
    kernel: int,
    arrays: _Arrays,
    *,
    wrong: Callable[[], int] | None = None,
    keeps: tuple[object, ...] = (),
    before: Call | None = None,
    unit_bytes: int = LINE_BYTES,
) -> Operation:
    """``kernel`` over ``arrays``, by the thread that calls or by a team, which is awake when a sample begins. Before
    each sample ``before`` is done.
    """
    threads = bound.case.threads
    with ExitStack() as held:
        _settle(bound.case, arrays, held)
        lease = None if threads is None else Lease(made, threads, bound.local_rank * threads)
        work = arrays.divided(threads or 1, unit_bytes)
        step, prepare = (kernel, *map(int, work[:4])), before
        if lease is not None:
            held.callback(lease.give_back)
            if before is None:
                for buffer in (bound.send, bound.receive):
                    # Each array in it is then touched first by the threads that will work on it: every slice lies in
                    # its thread's node of memory.
                    numa.give_pages_back(buffer.data_ptr(), len(buffer) * buffer.itemsize)
                for one in arrays.each():
                    lease.team.do(made.of("place"), one.divided(threads or 1, unit_bytes))
            step = lease.team.step(kernel, work)
            wake = partial(lease.team.do, made.of("nothing"), work)
            prepare = wake if before is None else partial(_both, before, wake)
        native = Native((step,), _never_fails, (made, work, lease, *keeps))
        return Operation(_called(step), native=native, free=held.pop_all().close, wrong=wrong, prepare=prepare)


def _both(first: Call, second: Call) -> None:
    first()
    second()


def _settle(case: Case, arrays: _Arrays, held: ExitStack) -> None:
    """Put every array on the NUMA node of the case, if it has one, and leave what takes them off it with ``held``.
    Whose thread touches their pages then no longer matters.
    """
    node = case.numa_node
    if node is None:
        return
    for one in arrays.each():
        held.callback(numa.release, one.out, one.count)
        numa.bind(one.out, one.count, node)


# --- the kernels on the host -----------------------------------------------------------------------------------


_EXPECTED: dict[str, Callable[..., torch.Tensor | float]] = {
    "stream_scale": lambda one: SCALAR * one,
    "stream_add": lambda one, other: one + other,
    "stream_triad": lambda one, other: one + SCALAR * other,
    "memory_write": lambda: SCALAR,
}
"""What must be in the array that is written, by those that are read, where the layout does not say it."""


def _wrong(expected: Callable[..., torch.Tensor | float], bound: Bound) -> int:
    """How many elements of the array that is written are not as ``expected``."""
    count, wrong = len(bound.receive), 0
    read = [bound.send[first : first + count] for first in range(0, len(bound.send), count)]
    for start in range(0, count, _CHECKED_AT_ONCE):
        piece = slice(start, start + _CHECKED_AT_ONCE)
        wrong += int(torch.count_nonzero(bound.receive[piece] != expected(*(one[piece] for one in read))))
    return wrong


def _compiled() -> Compiled:
    made = kernels.kernels()
    if isinstance(made, str):
        raise BackendError(made)
    return made


def _bind(bound: Bound) -> Operation:
    case = bound.case
    expected = _EXPECTED.get(case.op)
    wrong = None if expected is None else partial(_wrong, expected, bound)
    in_bytes = case.op == "memory_copy"  # the library's, for which torch's own stands in without a compiler
    if bound.device is not None or (in_bytes and kernels.missing() is not None):
        return Operation(_BY_TORCH[case.op](bound), wrong=wrong)
    made = _compiled()
    kernel = made.of(case.op, None if in_bytes else case.dtype)
    count, itemsize = (case.size_bytes, 1) if in_bytes else (case.count, DTYPE_BYTES[case.dtype or "uint8"])
    left = bound.send.data_ptr() if len(bound.send) else 0
    right = left + case.count * itemsize if len(bound.send) > case.count else 0
    arrays = _Arrays(bound.receive.data_ptr(), left, right, count, itemsize)
    return _bound(made, bound, kernel, arrays, wrong=wrong, keeps=(bound,))


def _read(bound: Bound) -> Operation:
    bits = bound.send.view(torch.int32 if bound.send.itemsize == DTYPE_BYTES["int32"] else torch.int64)
    if bound.device is not None:
        # Of another type than the bits, torch would write all of them anew as that type before it adds them up.
        total = torch.zeros((), dtype=bits.dtype, device=bits.device)
        return Operation(partial(torch.sum, bits, 0, out=total), wrong=partial(_unlike_sum, bits, total))
    made = _compiled()
    found = lines(bound.case.threads or 1)
    arrays = _Arrays(0, bound.send.data_ptr(), 0, bound.case.count, bound.send.itemsize, found)
    wrong = partial(_unlike_sum, bits, torch.from_numpy(found)[:: LINE_BYTES // found.itemsize])
    return _bound(made, bound, made.of("memory_read", bound.case.dtype), arrays, wrong=wrong, keeps=(bound, found))


def _unlike_sum(bits: torch.Tensor, found: torch.Tensor) -> int:
    """Whether the parts of a sum that were ``found`` are not that of ``bits``, which wraps around at its own width.
    They are made wrong afterwards, so that the next call has to find them anew.
    """
    width = 8 * bits.itemsize
    unlike = (int(found.sum(dtype=bits.dtype)) - int(bits.sum(dtype=bits.dtype))) % (1 << width)
    found.fill_(-1)
    return 1 if unlike else 0


def _touch(bound: Bound) -> Operation:
    made = _compiled()
    itemsize, count = DTYPE_BYTES[bound.case.dtype or "uint8"], bound.case.count
    try:
        region = mmap.mmap(-1, bound.case.size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError) as error:
        raise BackendError(f"{bound.case.size_bytes} B of fresh memory cannot be had: {error}") from error
    array = np.frombuffer(region, dtype=bound.case.dtype)
    array.fill(_SCRIBBLE)

    def give_pages_back() -> None:
        region.madvise(mmap.MADV_DONTNEED)

    def wrong() -> int:
        """Every page begins with the number and is zero otherwise, although it was full of others: it is fresh."""
        expected = np.zeros(min(count, _CHECKED_AT_ONCE), dtype=array.dtype)  # whole pages, but at the end
        expected[:: mmap.PAGESIZE // itemsize] = SCALAR
        pieces = (array[start : start + len(expected)] for start in range(0, count, len(expected)))
        unlike = sum(int(np.count_nonzero(piece != expected[: len(piece)])) for piece in pieces)
        array.fill(_SCRIBBLE)
        return unlike

    arrays = _Arrays(array.ctypes.data, 0, 0, bound.case.size_bytes, 1)
    kernel = made.of("memory_touch", bound.case.dtype)
    return _bound(
        made, bound, kernel, arrays, wrong=wrong, keeps=(array,), before=give_pages_back, unit_bytes=mmap.PAGESIZE
    )


# --- on a device, and where nothing can be compiled ------------------------------------------------------------


_BY_TORCH: dict[str, Callable[[Bound], Call]] = {
    "memory_copy": lambda bound: partial(bound.receive.copy_, bound.send),
    # A kernel: what torch copies with on a GPU is the copy path, which is memory_copy. Times 1 changes no value.
    "stream_copy": lambda bound: partial(torch.mul, bound.send, 1.0, out=bound.receive),
    "stream_scale": lambda bound: partial(torch.mul, bound.send, SCALAR, out=bound.receive),
    "stream_add": lambda bound: partial(torch.add, *bound.send.chunk(2), out=bound.receive),
    "stream_triad": lambda bound: partial(torch.add, *bound.send.chunk(2), alpha=SCALAR, out=bound.receive),
    "memory_write": lambda bound: partial(bound.receive.fill_, SCALAR),
}


# --- what cannot be --------------------------------------------------------------------------------------------


def _refuse_copy(case: Case) -> str | None:
    on_host, threads, node = case.device == "cpu", case.threads, case.numa_node
    return first_reason(
        (case.mode == "persistent", f"{case.op} is nothing that could be prepared"),
        (
            case.mode == "overlap" and on_host,
            "work of the processor in its memory is computation itself; it does not overlap with any",
        ),
        (
            case.mode == "overlap" and not on_host,
            f"{case.op} is one step, which cannot be posted first and waited for later",
        ),
        (threads is not None and not on_host, "threads divide the work of a processor; a GPU divides it itself"),
        (node is not None and not on_host, "the buffers are memory of the GPU, which lies on no NUMA node of the host"),
        ((threads, node) != (None, None) and on_host and kernels.missing() is not None, kernels.missing()),
    )


def _refuse(case: Case) -> str | None:
    if case.dtype not in _KERNEL_DTYPES:
        return f"{case.op} is there in {' and '.join(_KERNEL_DTYPES)}, as in STREAM; not in {case.dtype}"
    return (kernels.missing() if case.device == "cpu" else None) or _refuse_copy(case)


def _refuse_touch(case: Case) -> str | None:
    return first_reason(
        (
            case.device != "cpu",
            "the first touch is of pages of the host; memory of a GPU has none that are cleared when they are touched",
        ),
        (
            case.mode in {"pipelined", "graph"},
            f"mode {case.mode} is calls in a row, of which only the first would find fresh pages",
        ),
        (case.cache == "rotating", "fresh pages are in no cache; buffers in turns add nothing to them"),
    ) or _refuse(case)


OPERATIONS: dict[str, Local] = {
    "memory_copy": Local(_bind, _refuse_copy),
    "stream_copy": Local(_bind, _refuse),
    "stream_scale": Local(_bind, _refuse),
    "stream_add": Local(_bind, _refuse),
    "stream_triad": Local(_bind, _refuse),
    "memory_read": Local(_read, _refuse),
    "memory_write": Local(_bind, _refuse),
    "memory_touch": Local(_touch, _refuse_touch),
}
